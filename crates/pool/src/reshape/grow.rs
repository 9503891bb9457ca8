//! Growing: space that members' devices have gained becomes space at the end of the pool.
//!
//! A device's second label stands at its end, and the end moves. Each device must have one whole
//! label of an epoch that counts at every moment. So: (1) the change is claimed, and this node
//! registers with the devices as they were opened again; (2) the label in force is written at the
//! new end too; (3) the new epoch, whose label has the new size, is written like any other: copy 0,
//! then copy 1 at the new end. A reader finds copy 1 by the size that copy 0 names; if copy 0 is
//! damaged, at the end of the device.

use std::sync::Arc;

use braid_device::Device;
use braid_format::Bytes;
use braid_format::label::{Label, Member, MemberState};

use super::add::{append, limits, shape};
use super::{AddOptions, Added};
use crate::error::{ChangeError, PoolError};
use crate::labels::{Found, Hint, member_of, next_epoch, own_uuid};
use crate::layout::map::Map;
use crate::membership::joining::{Joining, Larger};
use crate::pool::Pool;
use crate::topology::{PoolInfo, Topology};

/// Opens a member's device anew, by its path.
pub type Reopen<'a> = dyn Fn(&str) -> Result<Arc<dyn Device>, PoolError> + 'a;

/// Members in use whose devices are larger by at least what labels are aligned to.
fn larger(topology: &Topology, reopen: &Reopen<'_>) -> Result<Vec<Larger>, PoolError> {
    let mut all = Vec::new();
    for index in topology.map.members() {
        let Some(before) = topology.label.members.get(usize::from(index.0)) else { continue };
        if before.state != MemberState::Active {
            continue;
        }
        let path = &topology.device(index).info().name;
        let device = reopen(path)?;
        let found = member_of(&device, &Hint::default())?;
        let end = found.data_start.0 + found.data_len.0;
        if end < before.data_start.0 + before.data_len.0 + Label::ALIGN.0 {
            continue;
        }
        if Found::read(device.clone()).newest().and_then(own_uuid) != Some(before.uuid) {
            let (path, member) = (path.clone(), topology.name(index));
            return Err(ChangeError::Another { path, member }.into());
        }
        let (device_size, data_len) = (found.device_size, Bytes(end - before.data_start.0));
        let now = Member { device_size, data_len, ..before.clone() };
        all.push(Larger { index, before: before.clone(), now, device });
    }
    if all.is_empty() { Err(ChangeError::NotLarger.into()) } else { Ok(all) }
}

/// The epoch in which they have more.
fn plan(
    topology: &Topology,
    larger: &[Larger],
) -> Result<(Added, Vec<Arc<dyn Device>>), PoolError> {
    let mut label = next_epoch(&topology.label);
    let rest = |l: &Larger| Bytes(l.now.data_len.0 - l.before.data_len.0);
    // What they have more, as if they had nothing else.
    let members: Vec<Member> =
        larger.iter().map(|l| Member { data_len: rest(l), ..l.now.clone() }).collect();
    let built = shape(&label, &members, &AddOptions::default())?;
    let unused = Bytes(built.unused.iter().map(|b| b.0).sum());
    let mut devices = topology.devices.clone();
    for l in larger {
        let place = usize::from(l.index.0);
        if let (Some(m), Some(d)) = (label.members.get_mut(place), devices.get_mut(place)) {
            m.clone_from(&l.now);
            d.clone_from(&l.device);
        }
    }
    append(&mut label, built, |m| {
        larger.get(usize::from(m.0)).map_or((m, Bytes(0)), |l| (l.index, l.before.data_len))
    });
    limits(&label)?;
    let info = PoolInfo::of(&label, &Map::new(&label)?, &devices);
    let members = larger.iter().map(|l| l.index).collect();
    Ok((Added { members, info, label, unused }, devices))
}

impl Pool {
    /// What [`Pool::grow`] would make; nothing is written.
    ///
    /// # Errors
    /// As there.
    pub fn plan_grow(&self, reopen: &Reopen<'_>) -> Result<Added, PoolError> {
        let topology = self.0.epochs.read();
        topology.may_change()?;
        Ok(plan(&topology, &larger(&topology, reopen)?)?.0)
    }

    /// Lets the pool use what its members' devices have more than they had: a tree over it, as safe as
    /// the newest there is, at the end of the pool's bytes.
    ///
    /// # Errors
    /// [`ChangeError::NotLarger`], [`ChangeError::Another`]; too few have grown for copies or
    /// parity ([`PoolError::Layout`]); [`PoolError::Device`].
    pub fn grow(&self, reopen: &Reopen<'_>) -> Result<Added, PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| self.try_grow(reopen))
    }

    fn try_grow(&self, reopen: &Reopen<'_>) -> Result<Added, PoolError> {
        let topology = self.0.epochs.write();
        topology.may_change()?;
        if self.0.io.queued.load(std::sync::atomic::Ordering::Acquire) > 0 {
            return Err(ChangeError::Busy.into());
        }
        let larger = larger(&topology, reopen)?;
        let (added, devices) = plan(&topology, &larger)?;
        let joining = Joining::grown(&larger);
        self.0.change_with(topology, added.label.clone(), devices, &joining)?;
        Ok(added)
    }
}

#[cfg(test)]
pub(crate) mod tests;
