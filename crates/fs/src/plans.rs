//! What orders to a mounted node would do, and what would be refused. Nothing is changed.

#![expect(clippy::missing_errors_doc, reason = "every call fails as the one that carries it out")]

use std::sync::Arc;

use braid_format::label::properties::Properties;
use braid_format::{MemberIndex, NodeId};
use braid_pool::device::Device;
use braid_pool::{Destination, MemberSelector, Pool, PropertyChange};

use crate::Fs;
use crate::error::{Error, Result};
use crate::jobs::Job;
use crate::volume::Volume;

impl Fs {
    /// What [`Fs::fail_member`] would refuse.
    pub fn plan_fail(&self, member: impl Into<MemberSelector>, force: bool) -> Result<()> {
        self.core().check_alive()?;
        Ok(self.pool().plan_fail(member, force)?)
    }
    /// What [`Fs::replace_member`] would refuse.
    pub fn plan_replace(
        &self,
        member: impl Into<MemberSelector>,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<()> {
        self.core().check_alive()?;
        Ok(self.pool().plan_replace(member, device, force)?)
    }
    /// What [`Fs::add_spare`] would refuse; the place that the device would get.
    pub fn plan_spare(&self, device: &Arc<dyn Device>, force: bool) -> Result<MemberIndex> {
        self.core().check_alive()?;
        Ok(self.pool().plan_spare(device, force)?)
    }
    /// What [`Fs::set_properties`] would refuse; the properties that the pool would have.
    pub fn plan_properties(&self, changes: &[PropertyChange]) -> Result<Properties> {
        self.core().check_alive()?;
        Ok(self.pool().plan_properties(changes)?)
    }
    /// What [`Fs::evacuate_member`] would refuse; the place of the member that would get everything.
    pub fn plan_evacuation(
        &self,
        member: impl Into<MemberSelector>,
        to: &Destination,
    ) -> Result<MemberIndex> {
        self.may_reshape()?;
        Ok(self.pool().plan_evacuation(member, to)?)
    }
    /// What [`Fs::cancel_evacuation`] would refuse.
    pub fn plan_cancel(&self, member: impl Into<MemberSelector>) -> Result<()> {
        self.may_reshape()?;
        Ok(self.pool().plan_cancel(member)?)
    }
    /// What [`Fs::remove_member`] would refuse.
    pub fn plan_remove(&self, member: impl Into<MemberSelector>) -> Result<()> {
        self.may_reshape()?;
        Ok(self.pool().plan_remove(member)?)
    }
    /// What [`Fs::stop_leaving`] would refuse; whether there is something to end.
    pub fn plan_stop_leaving(&self) -> Result<bool> {
        self.may_reshape()?;
        let core = self.core();
        core.volume.refresh()?;
        Ok(self.mounted.rebalance.is_running(Job::Leave) || core.volume.groups.any_closed())
    }
    /// What [`Fs::trim`] of everything would refuse.
    pub fn plan_trim(&self) -> Result<()> {
        let core = self.core();
        core.check_alive()?;
        if core.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.mounted.trim.begin(Job::Trim).map(drop).map_err(|_| Error::Trimming)
    }
    /// Whether a trim or a rebalancing of this node is under way.
    pub fn is_trimming(&self) -> bool {
        self.mounted.trim.is_running(Job::Trim)
    }
    /// See [`Fs::is_trimming`].
    pub fn is_rebalancing(&self) -> bool {
        self.mounted.rebalance.is_running(Job::Rebalance)
    }
    /// What [`Fs::freeze`] would refuse before it asks the other nodes.
    pub fn plan_freeze(&self) -> Result<()> {
        self.core().check_alive()?;
        self.core().membership.plan_freeze().map_err(Error::from)
    }
    /// What [`Fs::vouch_dead`] would refuse.
    pub fn plan_vouch(&self, slot: NodeId) -> Result<()> {
        self.core().check_alive()?;
        Ok(self.core().membership.plan_vouch(slot)?)
    }
}

/// What [`crate::destroy`], [`crate::rename`] and [`crate::accept_members`] would refuse: no node has the pool mounted,
/// or may have, and its file system can be read.
pub fn check_unused(pool: Pool) -> Result<()> {
    let volume = Volume::open(pool)?;
    let _claimed = crate::exclusive_use::claim(&volume)?;
    volume.confirm_identity()
}

/// What [`crate::vouch_dead`] would refuse, after as long a wait.
pub fn plan_vouch_dead(pool: Pool, slot: NodeId) -> Result<()> {
    let volume = Volume::open(pool)?;
    let store = volume.node_store(volume.node_areas()?);
    Ok(braid_lock::plan_vouch(&*store, slot)?)
}
