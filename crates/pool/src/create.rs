//! Making a pool: checks first, all of them; then the labels; nothing is written before every
//! device has passed.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use braid_device::{AlignedBuf, ByteLockGuard, Device, DeviceError};
use braid_format::label::{DeviceClass, Label, Member, MemberState, NodeKind, TreeNode};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex, StripeUnit};

use crate::assemble::LABEL_LOCK_BYTE;
use crate::clock::unix_seconds;
use crate::error::PoolError;
use crate::fence::{has_registrants, seize};
use crate::layout::build::BuildOptions;
use crate::layout::{Layout, Redundancy, Weights, build, usual};
use crate::map::Map;
use crate::members::{Found, own_uuid, write_epoch};
use crate::simulation::fresh;
use crate::topology::Topology;
use crate::{Inner, Pool, PoolInfo};

/// Slots of nodes whose liveness bytes are looked at before a pool is overwritten.
const NODE_SLOTS_MAX: u64 = 1024;

/// How a pool is made.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Its name: 1 to 63 bytes.
    pub name: String,
    /// Contiguous bytes on one member before the next.
    pub stripe_unit: StripeUnit,
    /// Bytes in a device lock's sector, 512 or 4096; `None`: the largest sector of the devices.
    pub lock_sector: Option<Bytes>,
    /// Overwrite other pools and file systems (never a device in use).
    pub force: bool,
    /// The shape; `None`: what `redundancy` says, over all devices.
    pub layout: Option<Layout>,
    /// What may be lost, where there is no layout.
    pub redundancy: Redundancy,
    /// Weights of stripes that do not say them.
    pub weights: Weights,
    /// Leave the order of members in stripes and groups as given, whatever bus they are on.
    pub keep_order: bool,
    /// What is known of the devices, in their order; of those past its end nothing is.
    pub hints: Vec<Hint>,
    /// Node slots to keep redundancy logs for, where there is redundancy.
    pub log_slots: u16,
}

/// What is known of a device before it joins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    /// Bus or controller, from 1; 0 unknown.
    pub bus: u16,
    /// Bandwidth; 0 unknown.
    pub bytes_per_second: Bytes,
    /// Serial number or world-wide name.
    pub serial: String,
}

/// A pool as it would be made.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What it would be.
    pub info: PoolInfo,
    /// Its first label.
    pub label: Label,
}

impl CreateOptions {
    /// Defaults, with this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            stripe_unit: StripeUnit::DEFAULT,
            lock_sector: None,
            force: false,
            layout: None,
            redundancy: Redundancy::None,
            weights: Weights::None,
            keep_order: false,
            hints: Vec::new(),
            log_slots: 1,
        }
    }

    /// With this stripe unit.
    ///
    /// # Errors
    /// [`PoolError::BadStripeUnit`].
    pub fn stripe_unit(mut self, bytes: Bytes) -> Result<Self, PoolError> {
        self.stripe_unit = StripeUnit::new(bytes).ok_or(PoolError::BadStripeUnit { bytes })?;
        Ok(self)
    }
}

impl Pool {
    /// Makes a pool of `devices`, which become its members in this order, and opens it: striped over
    /// all of them unless the options say otherwise. All space of unequal members is used, up to
    /// one stripe unit each. Its logical bytes are whatever was there.
    ///
    /// # Errors
    /// Before anything is written: a layout that cannot be, a bad name, too many or no devices, one given twice, read-only,
    /// in use, too small, or (without `force`) with something on it. Later:
    /// [`PoolError::Device`]; the devices may then carry labels of the unfinished pool.
    pub fn create(
        devices: Vec<Arc<dyn Device>>,
        options: &CreateOptions,
    ) -> Result<Self, PoolError> {
        examine(&devices, options)?;
        // Until the labels stand: nobody who has read the old ones gets any further with them.
        let _claimed = claim(&devices)?;
        let _seized = options.force.then(|| seize(&devices)).transpose()?;
        let (label, dirty) = examine_claimed(&devices, options)?;
        for device in &dirty {
            wipe(device)?;
        }
        write_epoch(&devices, &label)?;
        for (device, member) in devices.iter().zip(&label.members) {
            verify(device, member, &devices)?;
        }
        Self::open(devices, label)
    }

    /// What [`Pool::create`] checks before it writes anything; the pool as it would be.
    ///
    /// # Errors
    /// As there.
    pub fn plan(devices: Vec<Arc<dyn Device>>, options: &CreateOptions) -> Result<Plan, PoolError> {
        let (label, _) = examine(&devices, options)?;
        let info = PoolInfo::clone(&Self::open(devices, label.clone())?.info());
        Ok(Plan { info, label })
    }
}

/// All checks; the label to be, and the devices that must be wiped first.
fn examine(
    devices: &[Arc<dyn Device>],
    options: &CreateOptions,
) -> Result<(Label, Vec<Arc<dyn Device>>), PoolError> {
    check_options(devices, options)?;
    for device in devices {
        if let Some(label) = Found::read(device.clone()).newest()
            && node_lives(device)?
        {
            return Err(lives(device, &label.name));
        }
    }
    examine_claimed(devices, options)
}

fn lives(device: &Arc<dyn Device>, pool: &str) -> PoolError {
    let how = format!("a node has pool {pool:?} mounted");
    PoolError::InUse { path: path_of(device), how }
}

/// Holds what a node, a check, another create or the mending of a label would need of each device.
fn claim(devices: &[Arc<dyn Device>]) -> Result<Vec<ByteLockGuard>, PoolError> {
    let mut claimed = Vec::new();
    for device in devices {
        for byte in LABEL_LOCK_BYTE..=NODE_SLOTS_MAX {
            let how = "a node is mounting, or another create or check runs";
            let busy = || PoolError::InUse { path: path_of(device), how: how.to_owned() };
            claimed.push(device.lock_byte(byte)?.ok_or_else(busy)?);
        }
    }
    Ok(claimed)
}

/// As [`examine`], with what nodes hold in this process's hands.
fn examine_claimed(
    devices: &[Arc<dyn Device>],
    options: &CreateOptions,
) -> Result<(Label, Vec<Arc<dyn Device>>), PoolError> {
    let mut dirty = Vec::new();
    let compares = options.lock_sector.unwrap_or(largest_sector(devices));
    for device in devices {
        let sector = device.info().sector;
        let sector_max = options.lock_sector.unwrap_or(Bytes(4096).max(sector));
        if check_device(device, options, Needs { sector_max, compares })? {
            dirty.push(device.clone());
        }
    }
    let label = label_of(devices, options)?;
    // Refuses what cannot be written or mapped before anything is lost.
    let written = label.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]);
    written.map_err(|source| PoolError::Label {
        path: devices.first().map(path_of).unwrap_or_default(),
        source: Box::new(source),
    })?;
    Map::new(&label)?;
    Ok((label, dirty))
}

fn path_of(device: &Arc<dyn Device>) -> String {
    device.info().name.clone()
}

fn check_options(devices: &[Arc<dyn Device>], options: &CreateOptions) -> Result<(), PoolError> {
    let name = &options.name;
    let plain = !name.contains(|c: char| c == '/' || c.is_control());
    if name.is_empty() || name.len() > Label::NAME_MAX || !plain {
        return Err(PoolError::BadName { name: name.clone() });
    }
    if devices.is_empty() {
        return Err(PoolError::NoDevices);
    }
    if devices.len() > Label::MEMBERS_MAX {
        return Err(PoolError::TooManyMembers { count: devices.len() });
    }
    for (i, a) in devices.iter().enumerate() {
        if let Some(b) = devices.iter().take(i).find(|b| same_device(a, b)) {
            return Err(PoolError::GivenTwice { path: path_of(a), other: path_of(b) });
        }
    }
    Ok(())
}

/// Two names of one device: links, or the same node twice.
pub(crate) fn same_device(a: &Arc<dyn Device>, b: &Arc<dyn Device>) -> bool {
    if Arc::ptr_eq(a, b) {
        return true;
    }
    if let (Some(a), Some(b)) = (a.initiator(), b.initiator()) {
        return a.is_same_unit(b);
    }
    // A loop device is the file that it stands on.
    let identity = |d: &Arc<dyn Device>| {
        let m = std::fs::metadata(&d.info().name).ok()?;
        if !d.info().is_block {
            return Some((m.dev(), m.ino()));
        }
        let file =
            braid_device::loop_backing_file(m.rdev()).and_then(|f| std::fs::metadata(f).ok());
        Some(file.map_or((u64::MAX, m.rdev()), |f| (f.dev(), f.ino())))
    };
    identity(a).is_some_and(|x| Some(x) == identity(b))
}

/// What a pool needs of a member.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Its sectors are no larger.
    sector_max: Bytes,
    /// It compares and writes so many bytes at once.
    compares: Bytes,
}

/// Whether the device may become a member; says whether something on it must be wiped first.
fn check_device(
    device: &Arc<dyn Device>,
    options: &CreateOptions,
    needs: Needs,
) -> Result<bool, PoolError> {
    let info = device.info();
    let path = || info.name.clone();
    if info.read_only {
        return Err(PoolError::ReadOnly { path: path() });
    }
    let lock_sector = needs.sector_max;
    if !matches!(lock_sector.0, 512 | 4096) || lock_sector < info.sector {
        return Err(PoolError::BadLockSector { path: path(), sector: info.sector, lock_sector });
    }
    compares_enough(&info.name, device.compare_max(), needs.compares)?;
    if let Some(unit) = device.initiator() {
        if !has_registrants(unit)? {
            unit.try_compare_and_write()?;
        } else if !options.force {
            return Err(PoolError::Registered { path: path() });
        }
    }
    let ends = Label::DATA_AT.0 + Label::TAIL.0;
    let unit = options.stripe_unit.bytes().0;
    let data = Label::copy1_at(info.size).map_or(0, |at| at.0 - Label::DATA_AT.0);
    if data < unit.max(Label::ALIGN.0) {
        let needed = Bytes(ends + unit.next_multiple_of(Label::ALIGN.0));
        return Err(PoolError::TooSmall { path: path(), size: info.size, needed });
    }
    // A device without a descriptor has no path that somebody else could use.
    if device.as_raw_fd().is_some()
        && let Some(how) = braid_device::in_use(std::path::Path::new(&info.name))?
    {
        return Err(PoolError::InUse { path: path(), how: how.to_string() });
    }
    let found = Found::read(device.clone());
    if let Some(label) = found.newest() {
        if !options.force {
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
        Some(what) if !options.force => Err(PoolError::Foreign { path: path(), what }),
        what => Ok(what.is_some()),
    }
}

/// Whether a unit that can compare `most` bytes at once does for locks of `len`.
fn compares_enough(name: &str, most: Bytes, len: Bytes) -> Result<(), PoolError> {
    if most < len {
        return Err(DeviceError::NoCompareAndWrite { device: name.into(), most, len }.into());
    }
    Ok(())
}

impl Inner {
    /// Whether a device may join a pool that is in use, as [`Pool::create`] checks those it is
    /// given; nothing is written.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn check_joins(
        &self,
        topology: &Topology,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        // Requests are whole sectors of the largest kind that was there when the pool was opened.
        let compares = topology.label.lock_sector;
        let needs = Needs { sector_max: compares.min(self.sector), compares };
        check_new(device, (&topology.label, &topology.devices), needs, force)
    }
}

fn check_new(
    device: &Arc<dyn Device>,
    (label, members): (&Label, &[Arc<dyn Device>]),
    needs: Needs,
    force: bool,
) -> Result<(), PoolError> {
    if let Some(other) = members.iter().find(|m| same_device(m, device)) {
        return Err(PoolError::GivenTwice { path: path_of(device), other: path_of(other) });
    }
    let mut options = CreateOptions::new("member");
    let found = Found::read(device.clone());
    // What is left of a change of this pool that was broken off is nobody's.
    let known = |uuid| label.members.iter().any(|m| Some(m.uuid) == uuid);
    let ours = |l: &Label| l.pool == label.pool && !known(own_uuid(l));
    let left = found.newest().is_some_and(ours);
    if let Some(other) = found.newest().filter(|_| !left)
        && node_lives(device)?
    {
        return Err(lives(device, &other.name));
    }
    options.force = force || left;
    check_device(device, &options, needs).map(drop)
}

/// Whether a node on this host lives on the pool that begins with this device.
fn node_lives(device: &Arc<dyn Device>) -> Result<bool, PoolError> {
    for slot in 0..NODE_SLOTS_MAX {
        if device.byte_locked(1 + slot)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Zeroes both ends, so that no signature of the former owner remains.
pub(crate) fn wipe(device: &Arc<dyn Device>) -> Result<(), PoolError> {
    let zeros = AlignedBuf::zeroed(Label::DATA_AT.0.try_into().unwrap_or(1 << 20));
    let size = device.info().size.0 / device.info().sector.0 * device.info().sector.0;
    let tail = ByteOffset(size - zeros.len() as u64);
    for at in [ByteOffset(0), tail] {
        device.write(at, &zeros)?;
    }
    Ok(())
}

/// Reads the labels back: two names of one device that nothing else gave away show here.
fn verify(
    device: &Arc<dyn Device>,
    member: &Member,
    devices: &[Arc<dyn Device>],
) -> Result<(), PoolError> {
    let found = Found::read(device.clone());
    let Some(label) = found.newest() else { return Err(found.refusal()) };
    let own = label.members.get(usize::from(label.member.0));
    if own.is_some_and(|o| o.uuid == member.uuid) {
        return Ok(());
    }
    let other = devices.get(usize::from(label.member.0)).map_or_else(String::new, path_of);
    Err(PoolError::GivenTwice { path: path_of(device), other })
}

fn redundant(nodes: &[TreeNode]) -> bool {
    nodes.iter().any(|n| matches!(n.kind, NodeKind::Mirror { .. } | NodeKind::Parity { .. }))
}

/// Moves the start of every member's data behind the redundancy logs.
fn make_room_for_logs(members: &mut [Member], options: &CreateOptions) -> Result<(), PoolError> {
    let logs = Bytes(u64::from(options.log_slots.max(1)) * LogPlace::LEN.0);
    for m in members {
        let needed = Label::ALIGN.max(options.stripe_unit.bytes());
        if m.data_len.0 < logs.0 + needed.0 {
            let ends = Label::DATA_AT.0 + Label::TAIL.0;
            return Err(PoolError::TooSmall {
                path: m.path.clone(),
                size: m.device_size,
                needed: Bytes(ends + logs.0 + needed.0.next_multiple_of(Label::ALIGN.0)),
            });
        }
        m.data_start = m.data_start + logs;
        m.data_len.0 -= logs.0;
    }
    Ok(())
}

fn largest_sector(devices: &[Arc<dyn Device>]) -> Bytes {
    devices.iter().map(|d| d.info().sector).max().unwrap_or(Bytes(512))
}

/// The first label of a pool of these devices.
fn label_of(devices: &[Arc<dyn Device>], options: &CreateOptions) -> Result<Label, PoolError> {
    let unit = options.stripe_unit;
    let none = Hint::default();
    let hints = options.hints.iter().chain(std::iter::repeat(&none));
    let mut members =
        devices.iter().zip(hints).map(|(d, h)| member_of(d, h)).collect::<Result<Vec<_>, _>>()?;
    let keep_order = options.keep_order;
    let layout = match &options.layout {
        Some(layout) => layout.clone(),
        None => usual(&members, options.redundancy, keep_order)?,
    };
    let how = BuildOptions { unit, keep_order, weights: options.weights.clone() };
    let mut built = build(&layout, &members, &how)?;
    if redundant(&built.nodes) {
        make_room_for_logs(&mut members, options)?;
        built = build(&layout, &members, &how)?;
    }
    let now = unix_seconds();
    Ok(Label {
        pool: fresh(),
        name: options.name.clone(),
        epoch: Epoch(1),
        change_id: fresh(),
        member: MemberIndex(0),
        features_compat: 0,
        features_ro_compat: 0,
        lock_sector: options.lock_sector.unwrap_or(largest_sector(devices)),
        block_size: Bytes(0),
        reshaping: false,
        stripe_unit: unit.bytes(),
        created: now,
        changed: now,
        members,
        nodes: built.nodes,
        segments: built.segments,
    })
}

pub(crate) fn member_of(device: &Arc<dyn Device>, hint: &Hint) -> Result<Member, PoolError> {
    let info = device.info();
    let copy1 = Label::copy1_at(info.size).ok_or_else(|| PoolError::TooSmall {
        path: info.name.clone(),
        size: info.size,
        needed: Bytes(Label::DATA_AT.0 + Label::ALIGN.0 + Label::TAIL.0),
    })?;
    let class = match (info.engine, info.rotational) {
        ("memory", _) => DeviceClass::Memory,
        (_, Some(true)) => DeviceClass::Rotational,
        (_, Some(false)) => DeviceClass::SolidState,
        (_, None) => DeviceClass::Unknown,
    };
    Ok(Member {
        uuid: fresh(),
        data_start: Label::DATA_AT,
        data_len: copy1 - Label::DATA_AT,
        // Whole sectors of the largest kind: the same file may be seen with other sectors later.
        device_size: Bytes(info.size.0 / Label::GRAIN as u64 * Label::GRAIN as u64),
        state: MemberState::Active,
        state_epoch: Epoch(1),
        class,
        bytes_per_second: hint.bytes_per_second,
        bus: hint.bus,
        successor: None,
        path: info.name.clone(),
        serial: hint.serial.clone(),
    })
}
