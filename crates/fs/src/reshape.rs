//! Changes of the pool that a mounted node makes.

#![expect(
    clippy::missing_errors_doc,
    reason = "every call fails with `Error`, whose variants say why and which errno that is"
)]

use braid_format::MemberIndex;
use braid_pool::{Destination, Moving, Removed};

use crate::Fs;
use crate::error::{Error, Result};

impl Fs {
    /// Whether this node may change which devices the pool stands on: a node that does not know of
    /// the change would go on with the old ones.
    fn may_reshape(&self) -> Result<()> {
        self.core().check_alive()?;
        match self.mounted.others() {
            0 => Ok(()),
            nodes => Err(Error::OtherNodes { nodes }),
        }
    }

    /// Begins to move all that stands on a member to another device; the upkeep thread does it.
    pub fn evacuate_member(&self, member: MemberIndex, to: Destination) -> Result<Moving> {
        self.may_reshape()?;
        let moving = self.pool().begin_evacuation(member, to)?;
        self.mounted.upkeep.begin();
        Ok(moving)
    }

    /// Ends the move of a member.
    pub fn cancel_evacuation(&self, member: MemberIndex) -> Result<()> {
        self.may_reshape()?;
        Ok(self.pool().cancel_evacuation(member)?)
    }

    /// Takes a member on which nothing stands out of the pool.
    pub fn remove_member(&self, member: MemberIndex) -> Result<Removed> {
        self.may_reshape()?;
        Ok(self.pool().remove_member(member)?)
    }
}
