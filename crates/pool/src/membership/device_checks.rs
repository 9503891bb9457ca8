//! Whether a device may become a member of a new pool, or of a pool that is in use. Nothing is
//! changed: a unit of an iSCSI target gets its first sector written again as it was.

use std::sync::Arc;

use braid_device::{Device, DeviceError};
use braid_format::label::{Label, MemberState};
use braid_format::{ByteOffset, Bytes, MemberIndex, StripeUnit};

use crate::cluster::liveness::{HeldBytes, bearers};
use crate::cluster::reservations::has_registrants;
use crate::devices::is_late;
use crate::error::{ChangeError, PoolError};
use crate::labels::{Found, own_uuid, same_device, state_word};
use crate::pool::PoolState;
use crate::topology::Topology;

/// Slots of nodes whose liveness bytes are looked at before a pool is overwritten.
pub(crate) const NODE_SLOTS_MAX: u64 = 1024;

pub(crate) fn lives(device: &Arc<dyn Device>, pool: &str) -> PoolError {
    let how = format!("a node has pool {pool:?} mounted");
    PoolError::InUse { path: path_of(device), how }
}

pub(crate) fn path_of(device: &Arc<dyn Device>) -> String {
    device.info().name.clone()
}

/// What a pool needs of a member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Its sectors are no larger.
    pub sector_max: Bytes,
    /// It compares and writes so many bytes at once.
    pub compares: Bytes,
    /// It has room for one of these.
    pub unit: StripeUnit,
    /// Other pools and file systems on it may be overwritten.
    pub force: bool,
}

/// Whether the device may become a member; says whether something on it must be wiped first.
pub(crate) fn check_device(device: &Arc<dyn Device>, needs: Needs) -> Result<bool, PoolError> {
    let info = device.info();
    let path = || info.name.clone();
    if info.read_only {
        return Err(PoolError::ReadOnly { path: path() });
    }
    let lock_sector = needs.sector_max;
    if !matches!(lock_sector.0, 512 | 4096) || lock_sector < info.sector {
        return Err(PoolError::BadLockSector { path: path(), sector: info.sector, lock_sector });
    }
    compares_enough(&info.name, info.caps.compare_and_write, needs.compares)?;
    if device.abilities().session.is_some() {
        if !has_registrants(&**device)? {
            try_compare_and_write(&**device)?;
        } else if !needs.force {
            return Err(PoolError::Registered { path: path() });
        }
    }
    let ends = Label::DATA_AT.0 + Label::TAIL.0;
    let unit = needs.unit.bytes().0;
    let data = Label::copy1_at(info.size).map_or(0, |at| at.0 - Label::DATA_AT.0);
    if data < unit.max(Label::ALIGN.0) {
        let needed = Bytes(ends + unit.next_multiple_of(Label::ALIGN.0));
        return Err(PoolError::TooSmall { path: path(), size: info.size, needed });
    }
    // Another device has no path that somebody else could use.
    if info.is_path
        && let Some(how) = braid_device::in_use(std::path::Path::new(&info.name))?
    {
        return Err(PoolError::InUse { path: path(), how: how.to_string() });
    }
    let found = Found::read(device.clone());
    if let Some(label) = found.newest() {
        if !needs.force {
            let (name, pool) = (label.name.clone(), label.pool);
            return Err(PoolError::BelongsToPool { path: path(), name, pool });
        }
        return Ok(true);
    }
    let damaged = found.copies.iter().any(|c| c.as_ref().is_err_and(|e| !e.absent()));
    let what = if damaged {
        Some("a damaged label of a pool".to_owned())
    } else {
        braid_device::probe(&**device).map(|f| f.to_string())
    };
    match what {
        Some(what) if !needs.force => Err(PoolError::Foreign { path: path(), what }),
        what => Ok(what.is_some()),
    }
}

/// Compares the first sector with itself and writes the same bytes: some units say that they can
/// compare and write, and cannot.
fn try_compare_and_write(device: &dyn Device) -> Result<(), DeviceError> {
    let mut sector = vec![0; device.info().sector.to_usize()];
    device.read(ByteOffset(0), &mut sector)?;
    device.compare_and_write(ByteOffset(0), &sector, &sector).map(|_| ())
}

/// Whether a device that compares at most `most` bytes at once is good enough for locks of `len`.
fn compares_enough(name: &str, most: Bytes, len: Bytes) -> Result<(), PoolError> {
    if most < len {
        return Err(DeviceError::NoCompareAndWrite { device: name.into(), most, len }.into());
    }
    Ok(())
}

impl PoolState {
    /// Whether a device may join a pool that is in use, as [`Pool::create`] checks those it is
    /// given. It may be that of a member that has failed: what is on it counts no more, and with
    /// `force` it joins as any other device does. Changes nothing, as [`check_device`].
    ///
    /// # Errors
    /// As there; [`ChangeError::AlreadyMember`], [`ChangeError::OwnFailed`], [`ChangeError::OwnApart`],
    /// [`ChangeError::ApartInUse`], [`ChangeError::StillBusy`].
    pub(crate) fn check_joins(
        &self,
        topology: &Topology,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        // Requests are whole sectors of the largest kind that was there when the pool was opened.
        let compares = topology.label.lock_sector;
        let unit = StripeUnit::DEFAULT;
        let needs = Needs { sector_max: compares.min(self.io.sector), compares, unit, force };
        check_new(device, topology, needs, &self.cluster.liveness)
    }
}

fn check_new(
    device: &Arc<dyn Device>,
    topology: &Topology,
    needs: Needs,
    held: &HeldBytes,
) -> Result<(), PoolError> {
    let label = &topology.label;
    let path = || path_of(device);
    let members = topology.members().zip(&topology.devices);
    let same: Vec<MemberIndex> =
        members.filter(|(_, d)| same_device(d, device)).map(|(m, _)| m).collect();
    let in_use = same.iter().find(|m| topology.state(**m) != MemberState::Failed);
    if let Some(index) = in_use.copied() {
        let state = topology.state(index);
        let (word, holds) = (state_word(state), label.bytes_on(index) != Bytes(0));
        return Err(ChangeError::AlreadyMember { path: path(), index, state, word, holds }.into());
    }
    let found = Found::read(device.clone());
    let newest = found.newest();
    let is_known = |l: &Label| label.members.iter().any(|m| Some(m.uuid) == own_uuid(l));
    // What is left of a broken-off change of this pool belongs to nobody.
    let left = newest.is_some_and(|l| l.pool == label.pool && !is_known(l));
    let nobodys = newest.is_none() || left;
    let apart = own_apart(topology, &found);
    let own = own_failed(topology, &found).or(apart);
    let was = own.or(same.first().copied().filter(|_| nobodys));
    if let Some(index) = was {
        if !nobodys && !needs.force {
            let path = path();
            return Err(if apart.is_some() {
                ChangeError::OwnApart { path, index }.into()
            } else {
                ChangeError::OwnFailed { path, index }.into()
            });
        }
        match apart {
            Some(_) => apart_is_quiet(topology, device, (index, &same), held)?,
            None => own_is_quiet(topology, device, (index, &same))?,
        }
    } else if let Some(other) = newest
        && node_lives(device)?
    {
        return Err(lives(device, &other.name));
    }
    let (sector, lock_sector) = (device.info().sector, needs.sector_max);
    if sector > lock_sector {
        let name = label.name.clone();
        return Err(PoolError::LargeSectors { path: path(), name, sector, lock_sector });
    }
    let needs = Needs { force: needs.force || left, ..needs };
    check_device(device, needs).map(drop)
}

/// The failed member that a device was, by a label that is of before it failed.
fn own_failed(topology: &Topology, found: &Found) -> Option<MemberIndex> {
    let own = found.newest().filter(|l| l.pool == topology.label.pool)?;
    let index = topology.index_of(own_uuid(own)?)?;
    found.has_failed(&topology.label).then_some(index)
}

/// The failed member that a device was which has been used without the others since, by its label.
pub(crate) fn own_apart(topology: &Topology, found: &Found) -> Option<MemberIndex> {
    let own = found.newest().filter(|l| l.pool == topology.label.pool)?;
    let index = topology.index_of(own_uuid(own)?)?;
    let is_failed = topology.state(index) == MemberState::Failed;
    (is_failed && !found.has_failed(&topology.label)).then_some(index)
}

/// Whether nothing can reach the device any more of what was asked of it while it was a member. Nodes
/// that live use an epoch in which it is none, so what they asked has ended, unless they gave it up.
/// They hold their liveness bytes there still; the byte of any other node is held for what it has
/// under way.
fn own_is_quiet(
    topology: &Topology,
    device: &Arc<dyn Device>,
    (index, same): (MemberIndex, &[MemberIndex]),
) -> Result<(), PoolError> {
    own_is_done(topology, device, (index, same))?;
    let busy = || Err(ChangeError::StillBusy { path: path_of(device), index }.into());
    let bearers = bearers(topology);
    for byte in (0..NODE_SLOTS_MAX).map(|slot| 1 + slot) {
        if !device.abilities().locks.byte_locked(byte)? {
            continue;
        }
        let lives = |m: &MemberIndex| topology.device(*m).abilities().locks.byte_locked(byte);
        if !bearers.iter().map(lives).any(|l| l.unwrap_or(false)) {
            return busy();
        }
    }
    Ok(())
}

/// Whether nobody uses the half of a split. Slots are counted in each half for itself: a byte that is held there is
/// another node's, unless this process holds it since before the split (`held`), at the very same place.
fn apart_is_quiet(
    topology: &Topology,
    device: &Arc<dyn Device>,
    (index, same): (MemberIndex, &[MemberIndex]),
    held: &HeldBytes,
) -> Result<(), PoolError> {
    own_is_done(topology, device, (index, same))?;
    let place = device.info().lock_place;
    let at_its_place = topology.device(index).info().lock_place == place && place.is_some();
    let member = topology.uuid(index).filter(|_| at_its_place);
    for byte in (0..NODE_SLOTS_MAX).map(|slot| 1 + slot) {
        let is_ours = || member.is_some_and(|member| held.holds(byte, member));
        if device.abilities().locks.byte_locked(byte)? && !is_ours() {
            return Err(ChangeError::ApartInUse { path: path_of(device), index }.into());
        }
    }
    Ok(())
}

/// Whether this node has nothing more under way there that it gave up.
fn own_is_done(
    topology: &Topology,
    device: &Arc<dyn Device>,
    (index, same): (MemberIndex, &[MemberIndex]),
) -> Result<(), PoolError> {
    if same.iter().filter_map(|m| topology.devices.get(usize::from(m.0))).any(is_late) {
        return Err(ChangeError::StillBusy { path: path_of(device), index }.into());
    }
    Ok(())
}

/// Whether a node on this host lives on the pool that begins with this device.
pub(crate) fn node_lives(device: &Arc<dyn Device>) -> Result<bool, PoolError> {
    for slot in 0..NODE_SLOTS_MAX {
        if device.abilities().locks.byte_locked(1 + slot)? {
            return Ok(true);
        }
    }
    Ok(false)
}
