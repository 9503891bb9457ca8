//! Which member an operator means, whatever other nodes do to the pool meanwhile.
//!
//! A member's index changes if a member before it is removed, or if two members are exchanged. So a
//! selector is resolved to an identity first, and the identity is looked up again in each epoch.

use braid_format::MemberIndex;
use uuid::Uuid;

use crate::error::{ChangeError, PoolError};
use crate::pool::PoolState;
use crate::topology::Topology;

/// How an operator names a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberSelector {
    /// The member with this index now, as this node knows the pool.
    Index(MemberIndex),
    /// The member with this identity, whatever its index.
    Uuid(Uuid),
}

impl From<MemberIndex> for MemberSelector {
    fn from(place: MemberIndex) -> Self {
        Self::Index(place)
    }
}

impl From<Uuid> for MemberSelector {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

/// A member that something is to be done to.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedMember {
    uuid: Uuid,
    /// Where it was when it was named.
    place: Option<MemberIndex>,
    /// For people.
    name: String,
}

impl ResolvedMember {
    /// In `now` it is no longer what it was when it was named.
    pub fn overtaken(&self, now: &Topology) -> PoolError {
        now.overtaken(self.name.clone(), (self.place, self.uuid))
    }
}

impl Topology {
    /// A member that was `who`, for people `member`, is no longer what it was.
    pub fn overtaken(
        &self,
        member: String,
        (place, who): (Option<MemberIndex>, Uuid),
    ) -> PoolError {
        let place = place.filter(|place| self.uuid(*place).is_some_and(|now| now != who));
        let device = place.and_then(|place| self.devices.get(usize::from(place.0)));
        let why = device.map_or_else(
            || "another command, or node, has changed the pool".to_owned(),
            |device| format!("another command has put {} in its place", device.info().name),
        );
        ChangeError::Overtaken { member, why }.into()
    }

    /// Where a member is now.
    ///
    /// # Errors
    /// [`ChangeError::Overtaken`]: it is none any more.
    pub fn place_of(&self, resolved: &ResolvedMember) -> Result<MemberIndex, PoolError> {
        self.index_of(resolved.uuid).ok_or_else(|| resolved.overtaken(self))
    }
}

impl PoolState {
    /// Which member a selector means now, before a change of another node is followed.
    ///
    /// # Errors
    /// [`PoolError::NoSuchMember`], [`ChangeError::Overtaken`].
    pub fn resolve_member(&self, selector: MemberSelector) -> Result<ResolvedMember, PoolError> {
        let topology = self.epochs.read();
        match selector {
            MemberSelector::Index(member) => {
                let uuid = topology.uuid(member).ok_or(PoolError::NoSuchMember { member })?;
                Ok(ResolvedMember { uuid, place: Some(member), name: topology.name(member) })
            }
            MemberSelector::Uuid(uuid) => {
                let place = topology.index_of(uuid);
                let name = place.map_or_else(|| format!("member {uuid}"), |m| topology.name(m));
                Ok(ResolvedMember { uuid, place, name })
            }
        }
    }
}
