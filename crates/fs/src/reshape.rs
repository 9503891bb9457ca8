//! Changes of the pool that a mounted node makes.

#![expect(
    clippy::missing_errors_doc,
    reason = "every call fails with `Error`, whose variants say why and which errno that is"
)]

pub(crate) mod leave;
pub(crate) mod rebalance;
mod successor;

use std::sync::Arc;

use braid_pool::device::Device;
use braid_pool::reshape::Reopen;
use braid_pool::{AddOptions, Added, Destination, MemberSelector, Moving, Removed};

pub use self::leave::{Leaving, Left};
pub use self::rebalance::{Fill, Rebalanced};
pub use self::successor::Successor;
use crate::error::{Error, Result};
use crate::{Fs, growth};

impl Fs {
    /// Whether this node may change the pool's devices: a node that does not learn of the change
    /// would go on with the old ones.
    pub(crate) fn may_reshape(&self) -> Result<()> {
        self.core().check_alive()?;
        match self.mounted.others() {
            // They agree on epochs.
            _ if self.pool().is_shared() => Ok(()),
            0 => Ok(()),
            nodes => Err(Error::OtherNodes { nodes }),
        }
    }

    /// Begins to move all that is on a member to another device; the maintenance thread does the
    /// work.
    pub fn evacuate_member(
        &self,
        member: impl Into<MemberSelector>,
        to: Destination,
    ) -> Result<Moving> {
        self.may_reshape()?;
        let moving = self.pool().begin_evacuation(member, to)?;
        self.mounted.maintenance.begin();
        Ok(moving)
    }

    /// Ends the move of a member.
    pub fn cancel_evacuation(&self, member: impl Into<MemberSelector>) -> Result<()> {
        self.may_reshape()?;
        Ok(self.pool().cancel_evacuation(member)?)
    }

    /// Takes a member on which nothing stands out of the pool.
    pub fn remove_member(&self, member: impl Into<MemberSelector>) -> Result<Removed> {
        self.may_reshape()?;
        Ok(self.pool().remove_member(member)?)
    }

    /// What [`Fs::add_devices`] would make of these devices; nothing is changed.
    pub fn plan_add(&self, devices: &[Arc<dyn Device>], options: &AddOptions) -> Result<Added> {
        let planned = self.pool().plan_add(devices, options)?;
        growth::may_grow(self.core(), &planned.info)?;
        Ok(planned)
    }

    /// Adds devices to the pool, and their space to the file system.
    pub fn add_devices(&self, devices: &[Arc<dyn Device>], options: &AddOptions) -> Result<Added> {
        self.may_reshape()?;
        if self.core().options.read_only {
            return Err(Error::ReadOnly);
        }
        self.plan_add(devices, options)?;
        let added = self.pool().add(devices, options)?;
        self.grow()?;
        Ok(added)
    }

    /// What [`Fs::grow_devices`] would make; nothing is changed.
    pub fn plan_grow(&self, reopen: &Reopen<'_>) -> Result<Added> {
        let planned = self.pool().plan_grow(reopen)?;
        growth::may_grow(self.core(), &planned.info)?;
        Ok(planned)
    }

    /// Lets the pool, and its file system, use what its devices have more than they had.
    pub fn grow_devices(&self, reopen: &Reopen<'_>) -> Result<Added> {
        self.may_reshape()?;
        if self.core().options.read_only {
            return Err(Error::ReadOnly);
        }
        self.plan_grow(reopen)?;
        let added = self.pool().grow(reopen)?;
        self.grow()?;
        Ok(added)
    }

    /// Lets the file system use all that the pool has; blocks that came with it. An earlier growth
    /// that was broken off is finished.
    pub fn grow(&self) -> Result<u64> {
        self.may_reshape()?;
        let core = self.core();
        core.watch(growth::grow(core))
    }
}
