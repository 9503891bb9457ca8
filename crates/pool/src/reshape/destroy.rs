//! A pool ends: its devices are nobody's.
//!
//! First an epoch says on all members that the pool has ended, then they are wiped. So if a power cut comes
//! between, what is left says what became of it: nobody uses it, and [`finish_destroy`] wipes the rest.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Label, MemberState};

use crate::assembly::one_pool;
use crate::error::PoolError;
use crate::labels::{Found, ended, next_epoch, wipe_labels};
use crate::pool::Pool;

/// What became of the devices of a pool that was destroyed, for people.
#[derive(Debug, Clone, Default)]
pub struct Destroyed {
    /// The pool's name.
    pub name: String,
    /// They have no labels any more.
    pub wiped: Vec<String>,
    /// Devices whose labels were not wiped, and why.
    pub left: Vec<(String, String)>,
}

impl Destroyed {
    fn wipe(&mut self, device: &Arc<dyn Device>, label: &Label, member: usize) {
        let path = device.info().name.clone();
        let size = label.members.get(member).map_or(device.info().size, |m| m.device_size);
        match wipe_labels(&**device, size) {
            Ok(()) => self.wiped.push(path),
            Err(error) => self.left.push((path, error.to_string())),
        }
    }
}

impl Pool {
    /// Wipes the labels of all members, spares too; their contents stay. The caller sees to it that no
    /// node uses the pool, and nobody uses it afterwards. After a power failure in the middle the pool is
    /// either as it was, or nobody can use it and [`finish_destroy`] wipes the rest.
    ///
    /// # Errors
    /// The pool is closed. What goes wrong with one member is in the answer, and the others are wiped.
    pub fn destroy(&self) -> Result<Destroyed, PoolError> {
        let _pass = self.1.pass()?;
        if let Err(error) = self.end() {
            // A disk that cannot be written is a reason to end a pool.
            tracing::warn!(%error, "the labels cannot say that the pool has ended");
        }
        let topology = self.0.epochs.snapshot();
        let mut done = Destroyed { name: topology.label.name.clone(), ..Destroyed::default() };
        let members = topology.label.members.iter();
        for (index, (member, device)) in members.zip(&topology.devices).enumerate() {
            // A failed member is not in use, but its device may be there.
            let is_failed = member.state == MemberState::Failed;
            let present = is_failed.then(|| self.0.open_member(member)).flatten();
            done.wipe(present.as_ref().unwrap_or(device), &topology.label, index);
        }
        Ok(done)
    }

    /// Says on all members, durably, that the pool has ended.
    fn end(&self) -> Result<(), PoolError> {
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            let next = Label { ended: true, ..next_epoch(&topology.label) };
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }
}

/// Whether these devices are what is left of a pool whose [`Pool::destroy`] was broken off.
pub fn is_being_destroyed(devices: &[Arc<dyn Device>]) -> bool {
    let found: Vec<Found> = devices.iter().cloned().map(Found::read).collect();
    ended(&found).is_some()
}

/// Wipes what is left of a pool whose [`Pool::destroy`] was broken off. `devices`: those that are there. One
/// without a label is left alone, and so is one whose labels do not say that the pool has ended, if it had
/// not failed before: its label was restored since.
///
/// # Errors
/// A device is of another pool, or no label says that its pool has ended. Nothing was changed then.
pub fn finish_destroy(devices: Vec<Arc<dyn Device>>) -> Result<Destroyed, PoolError> {
    let mut found: Vec<Found> = devices.into_iter().map(Found::read).collect();
    found.retain(|f| f.newest().is_some());
    one_pool(&found)?;
    let label = ended(&found).ok_or(PoolError::NotEnded)?.clone();
    // The end was not written to it.
    let had_failed = |own: &Label| {
        let uuid = own.members.get(usize::from(own.member.0)).map(|m| m.uuid);
        let mut members = label.members.iter();
        members.any(|m| Some(m.uuid) == uuid && m.state == MemberState::Failed)
    };
    let mut done = Destroyed { name: label.name.clone(), ..Destroyed::default() };
    for f in &found {
        if let Some(own) = f.labels().find(|l| l.ended || had_failed(l)) {
            done.wipe(&f.device, own, usize::from(own.member.0));
        } else {
            let why = "its labels do not say that the pool has ended";
            done.left.push((f.path().to_owned(), why.to_owned()));
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests;
