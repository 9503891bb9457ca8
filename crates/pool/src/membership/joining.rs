//! Devices that join the pool in a change of epoch, and members whose devices have grown.

use std::sync::Arc;

use braid_device::{AlignedBuf, ByteLockGuard, Device, Op, Request, run};
use braid_format::label::{Label, Member};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::cluster::reservations::{reservations_of, take_over, used};
use crate::error::PoolError;
use crate::labels::{
    Found, LABEL_LOCK_BYTE, id, same_device, wipe, wipe_behind, write_boot_sector, write_copies,
};
use crate::membership::device_checks::own_apart;
use crate::pool::PoolState;
use crate::topology::Topology;

/// Devices that join in a change, and members whose devices have grown.
pub(crate) struct Joining<'a> {
    devices: &'a [Arc<dyn Device>],
    force: bool,
    /// The one device is this member's, which comes back: it keeps its label until it gets a new one. If
    /// the change fails, it can still catch up.
    returns: Option<MemberIndex>,
    grown: &'a [Larger],
}

impl<'a> Joining<'a> {
    pub const NONE: Self = Self { devices: &[], force: false, returns: None, grown: &[] };

    /// `devices`, whatever is on them if `force` says so.
    pub fn new(devices: &'a [Arc<dyn Device>], force: bool) -> Self {
        Self { devices, force, ..Self::NONE }
    }

    /// The device of a member that was offline, and lacks only what was noted since.
    pub fn returning(device: &'a Arc<dyn Device>, member: MemberIndex) -> Self {
        Self {
            devices: std::slice::from_ref(device),
            force: true,
            returns: Some(member),
            ..Self::NONE
        }
    }

    /// No devices join, but those of these members have grown.
    pub fn grown(grown: &'a [Larger]) -> Self {
        Self { grown, ..Self::NONE }
    }

    /// Writes the label in force at the new ends.
    pub fn keep(&self, label: &Label) -> Result<(), PoolError> {
        self.grown.iter().try_for_each(|l| l.keep(label))
    }

    /// The change has failed before it can have been seen.
    pub fn forget(&self, label: &Label) {
        self.grown.iter().for_each(|l| l.forget(label));
    }

    /// The change has come to nothing: a member that was to come back is as it was in `label`, which stays in force on
    /// `devices`.
    pub fn restore(&self, label: &Label, devices: &[Arc<dyn Device>]) {
        let (Some(index), Some(device)) = (self.returns, self.devices.first()) else { return };
        let (own, mut devices) = (usize::from(index.0), devices.to_vec());
        if let Some(place) = devices.get_mut(own) {
            *place = device.clone();
        }
        let written = [0, 1].map(|copy| write_copies(&devices, label, copy, &[own]));
        if let Some(error) = written.into_iter().find_map(Result::err) {
            tracing::warn!(%error, "a member that was to come back has lost its label: it is filled whole");
        }
    }

    /// Makes them empty, but for labels that are kept; on this host nobody else takes them while the result is held.
    pub fn take(
        &self,
        inner: &PoolState,
        topology: &Topology,
    ) -> Result<Vec<ByteLockGuard>, PoolError> {
        let mut taken = Vec::new();
        for device in self.devices {
            let path = device.info().name.clone();
            let how = "it is about to become a member of a pool".to_owned();
            let guard = device.abilities().locks.lock_byte(LABEL_LOCK_BYTE)?;
            taken.push(guard.ok_or(PoolError::InUse { path, how })?);
            inner.check_joins(topology, device, self.force)?;
            if let Some(index) = own_apart(topology, &Found::read(device.clone())) {
                tracing::warn!(
                    path = device.info().name,
                    %index,
                    "what was written on this member without the others is thrown away"
                );
            }
        }
        // Hosts that use the pool may be registered with one that was a member before: they stay so.
        let _taken_over =
            self.force.then(|| take_over(self.devices, &keys(topology))).transpose()?;
        for device in self.devices {
            if device.abilities().session.is_some()
                && is_own(topology, device)
                && let Some(reservations) = reservations_of(&**device)
            {
                // What this node has under way by an earlier session ends.
                reservations.reset()?;
            }
            if self.returns.is_none() {
                wipe(device)?;
            }
            forget_logs(topology, device)?;
            write_boot_sector(&**device)?;
        }
        Ok(taken)
    }
}

/// Whether a device has been a member of the pool before.
fn is_own(topology: &Topology, device: &Arc<dyn Device>) -> bool {
    let found = Found::read(device.clone());
    found.newest().is_some_and(|l| l.pool == topology.label.pool)
        || topology.devices.iter().any(|d| same_device(d, device))
}

/// The keys of all who are registered with the pool.
fn keys(topology: &Topology) -> Vec<u64> {
    let mut devices = used(topology).into_iter();
    devices.find_map(|d| reservations_of(&*d)?.keys().ok()).unwrap_or_default()
}

/// Wipes the headers of redundancy logs, so that none counts which is of an earlier time: the device may have been
/// a member before.
fn forget_logs(topology: &Topology, device: &Arc<dyn Device>) -> Result<(), PoolError> {
    let slots = topology.label.members.iter().map(|m| LogPlace::slots(m.data_start)).max();
    let slots = u16::try_from(slots.unwrap_or(0)).unwrap_or(u16::MAX);
    let end = ByteOffset(device.info().size.0);
    let places = (0..slots).filter_map(|slot| {
        LogPlace::of_slot(slot, ByteOffset(Label::DATA_AT.0 + u64::from(slots) * LogPlace::LEN.0))
    });
    let zeros = AlignedBuf::zeroed(LogPlace::SECTOR);
    let headers = places.flat_map(|place| [0, 1].map(|copy| place.redo_header(copy)));
    let headers = headers.filter(|at| *at + Bytes::from(LogPlace::SECTOR) <= end);
    let write = |at| Request::new(&**device, at, Op::Write(&zeros));
    let mut writes: Vec<Request<'_>> = headers.map(write).collect();
    run(&mut writes);
    writes.into_iter().try_for_each(|w| w.result).map_err(PoolError::from)
}

/// A member whose device has grown: its entry before and now, and the device as it was opened again.
pub(crate) struct Larger {
    pub index: MemberIndex,
    pub before: Member,
    pub now: Member,
    pub device: Arc<dyn Device>,
}

impl Larger {
    /// Writes the label in force at the new end.
    ///
    /// # Errors
    /// [`PoolError::Label`], [`PoolError::Device`].
    pub fn keep(&self, label: &Label) -> Result<(), PoolError> {
        let Some(at) = Label::copy1_at(self.now.device_size) else { return Ok(()) };
        self.write(label, 1, at)
    }

    fn write(&self, label: &Label, copy: u32, at: ByteOffset) -> Result<(), PoolError> {
        let path = || self.device.info().name.clone();
        let mut own = label.clone();
        own.member = self.index;
        let mut image = AlignedBuf::zeroed(own.encoded_len());
        own.encode(copy, at, &mut image)
            .map_err(|source| PoolError::Label { path: path(), source: Box::new(source) })?;
        self.device.write(at, &image)?;
        Ok(self.device.flush()?)
    }

    /// The growth has failed: what [`Larger::keep`] wrote would be old when it is next found. This
    /// copy is wiped once the other copy is whole and again says where the old end is.
    pub fn forget(&self, label: &Label) {
        let Some(at) = Label::copy1_at(self.now.device_size) else { return };
        let mut room = AlignedBuf::zeroed(Label::LEN_MAX);
        let there = self.device.read(at, &mut room).is_ok();
        if !there || !Label::decode(&room, at).is_ok_and(|(found, _)| id(&found) == id(label)) {
            return;
        }
        let [first, _] = Found::read(self.device.clone()).copies;
        if !first.is_ok_and(|l| id(&l) == id(label))
            && let Err(error) = self.write(label, 0, Label::COPY0_AT)
        {
            tracing::warn!(%error, "cannot remove the label of a failed growth");
            return;
        }
        wipe_behind(&*self.device, at);
    }
}
