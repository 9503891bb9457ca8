//! Which member is meant, whatever other nodes do to the pool before that is done to it.
//!
//! A place in the table is another's when one before it is removed, or two are exchanged. So who is
//! meant is settled first, and looked for anew in every epoch.

use braid_format::MemberIndex;
use uuid::Uuid;

use crate::Inner;
use crate::error::PoolError;
use crate::reshape::ChangeError;
use crate::topology::Topology;

/// Which member is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// Who is in this place just now, as this node knows the pool.
    Place(MemberIndex),
    /// Who is this one, in whatever place.
    Named(Uuid),
}

impl From<MemberIndex> for Whom {
    fn from(place: MemberIndex) -> Self {
        Self::Place(place)
    }
}

impl From<Uuid> for Whom {
    fn from(uuid: Uuid) -> Self {
        Self::Named(uuid)
    }
}

/// A member that something is to be done to.
#[derive(Debug, Clone)]
pub(crate) struct Meant {
    uuid: Uuid,
    /// For people.
    name: String,
}

impl Meant {
    /// It is no longer what it was when it was named.
    pub fn overtaken(&self) -> PoolError {
        ChangeError::Overtaken { member: self.name.clone() }.into()
    }
}

impl Topology {
    /// Where a member is now.
    ///
    /// # Errors
    /// [`ChangeError::Overtaken`]: it is none any more.
    pub fn place_of(&self, meant: &Meant) -> Result<MemberIndex, PoolError> {
        self.index_of(meant.uuid).ok_or_else(|| meant.overtaken())
    }
}

impl Inner {
    /// Who is meant, before anything is followed.
    ///
    /// # Errors
    /// [`PoolError::NoSuchMember`], [`ChangeError::Overtaken`].
    pub fn meant(&self, whom: Whom) -> Result<Meant, PoolError> {
        let topology = self.topology.read();
        match whom {
            Whom::Place(member) => {
                let uuid = topology.uuid(member).ok_or(PoolError::NoSuchMember { member })?;
                Ok(Meant { uuid, name: topology.name(member) })
            }
            Whom::Named(uuid) => {
                let name = topology.index_of(uuid).map(|m| topology.name(m));
                Ok(Meant { uuid, name: name.unwrap_or_else(|| format!("member {uuid}")) })
            }
        }
    }
}
