//! Removing members that hold nothing from the pool.

use braid_device::DeviceError;
use braid_format::label::{Label, Member, MemberState, NodeKind};
use braid_format::{Bytes, MemberIndex};

use crate::error::{ChangeError, PoolError};
use crate::labels::{moving, next_epoch, state_word, wipe_labels};
use crate::membership::selector::{MemberSelector, ResolvedMember};
use crate::pool::Pool;
use crate::topology::Topology;

/// How a member was removed.
#[derive(Debug, Clone)]
pub struct Removed {
    /// Its device, for people.
    pub path: String,
    /// Why the labels on it could not be wiped; `None`: they are.
    pub unwiped: Option<DeviceError>,
}

/// `label` without a member: those after it move up.
pub(crate) fn without(label: &mut Label, member: MemberIndex) {
    if usize::from(member.0) >= label.members.len() {
        return;
    }
    label.members.remove(usize::from(member.0));
    let up = |m: &mut MemberIndex| m.0 -= u16::from(m.0 > member.0);
    for node in &mut label.nodes {
        if let NodeKind::Slice { member, .. } = &mut node.kind {
            up(member);
        }
    }
    label.members.iter_mut().filter_map(|m| m.successor.as_mut()).for_each(up);
    // Each copy that is written says its own.
    label.member = MemberIndex(0);
}

/// The member, if nothing stands on it.
fn may_remove(topology: &Topology, member: MemberIndex) -> Result<Member, PoolError> {
    let old = topology.label.members.get(usize::from(member.0)).cloned();
    let old = old.ok_or(PoolError::NoSuchMember { member })?;
    if topology.provisional {
        return Err(PoolError::Provisional { name: topology.label.name.clone() });
    }
    if let Some(m) = moving(&topology.label)
        && (m.leaving == member || m.successor == member)
    {
        let (leaving, successor) = (topology.name(m.leaving), topology.name(m.successor));
        return Err(ChangeError::Moving { leaving, successor }.into());
    }
    let bytes = topology.label.bytes_on(member);
    if bytes != Bytes(0) {
        let name = topology.name(member);
        if !topology.readable(member) {
            return Err(ChangeError::NotWhole { member: name, state: state_word(old.state) }.into());
        }
        return Err(ChangeError::HoldsData { member: name, index: member, bytes }.into());
    }
    Ok(old)
}

impl Pool {
    /// Takes a member on which nothing stands out of the pool, and wipes its labels, so that it
    /// can be used for something else. The members after it move up.
    ///
    /// # Errors
    /// [`ChangeError::HoldsData`], [`ChangeError::Moving`]; [`PoolError::Device`] of a member that
    /// stays.
    pub fn remove_member(&self, member: impl Into<MemberSelector>) -> Result<Removed, PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        self.0.changing(|| self.try_remove(&resolved))
    }

    /// What [`Pool::remove_member`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_remove(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        may_remove(&topology, topology.place_of(&resolved)?).map(drop)
    }

    fn try_remove(&self, resolved: &ResolvedMember) -> Result<Removed, PoolError> {
        let topology = self.0.epochs.write();
        let member = topology.place_of(resolved)?;
        let place = usize::from(member.0);
        let old = may_remove(&topology, member)?;
        let mut next = next_epoch(&topology.label);
        without(&mut next, member);
        let mut devices = topology.devices.clone();
        let device = devices.remove(place);
        let path = device.info().name.clone();
        if old.state == MemberState::Failed {
            // Nobody touches it any more.
            self.0.change(topology, next, devices)?;
            return Ok(Removed { path, unwiped: None });
        }
        self.0.cluster.key.keep(&device);
        let changed = self.0.change(topology, next, devices);
        let unwiped = match &changed {
            Ok(()) => wipe_labels(&*device, old.device_size).err(),
            Err(_) => None,
        };
        self.0.cluster.key.let_go(&device, changed.is_ok());
        changed.map(|()| Removed { path, unwiped })
    }
}

#[cfg(test)]
mod tests;
