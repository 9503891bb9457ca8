//! Making a pool. All checks come first: nothing is written before every device has passed.

use std::sync::Arc;

use braid_device::{ByteLockGuard, CAW_MAX, Device, DeviceInfo, MemoryDevice};
use braid_format::label::properties::Properties;
use braid_format::label::{Label, Member, NodeKind, TreeNode};
use braid_format::redundancy::LogPlace;
use braid_format::{Bytes, Epoch, MemberIndex, StripeUnit, text};

use crate::clock::unix_seconds;
use crate::cluster::reservations::take_over;
use crate::error::PoolError;
use crate::identity::fresh;
use crate::labels::{
    Found, Hint, LABEL_LOCK_BYTE, member_of, same_device, wipe, write_boot_sector, write_epoch,
};
use crate::layout::build::BuildOptions;
use crate::layout::map::Map;
use crate::layout::{Layout, Redundancy, Weights, build, usual};
use crate::membership::device_checks::{
    NODE_SLOTS_MAX, Needs, check_device, lives, node_lives, path_of,
};
use crate::pool::Pool;
use crate::topology::PoolInfo;

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
    /// What is known of the devices, in their order. Nothing is known of devices past its end.
    pub hints: Vec<Hint>,
    /// Node slots to keep redundancy logs for, where there is redundancy.
    pub log_slots: u16,
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
        // Held until the labels are written: a node that has read the old labels gets no further
        // with them.
        let _claimed = claim(&devices)?;
        let _taken_over = options.force.then(|| take_over(&devices, &[])).transpose()?;
        let (label, dirty) = examine_claimed(&devices, options)?;
        for device in &dirty {
            wipe(device)?;
        }
        devices.iter().try_for_each(|device| write_boot_sector(&**device))?;
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

/// Holds what a node, a check, another create or the mending of a label would need of each device.
fn claim(devices: &[Arc<dyn Device>]) -> Result<Vec<ByteLockGuard>, PoolError> {
    let mut claimed = Vec::new();
    for device in devices {
        for byte in LABEL_LOCK_BYTE..=NODE_SLOTS_MAX {
            let how = "a node is mounting, or another create or check runs";
            let busy = || PoolError::InUse { path: path_of(device), how: how.to_owned() };
            claimed.push(device.abilities().locks.lock_byte(byte)?.ok_or_else(busy)?);
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
    let (unit, force) = (options.stripe_unit, options.force);
    let compares = options.lock_sector.unwrap_or(largest_sector(devices));
    for device in devices {
        let sector = device.info().sector;
        let sector_max = options.lock_sector.unwrap_or(Bytes(4096).max(sector));
        if check_device(device, Needs { sector_max, compares, unit, force })? {
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

/// Whether a pool may be called so.
///
/// # Errors
/// [`PoolError::BadName`].
pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    let plain = name.chars().all(|c| c != '/' && text::shows(c));
    if name.is_empty() || name.len() > Label::NAME_MAX || !plain {
        return Err(PoolError::BadName { name: name.to_owned() });
    }
    Ok(())
}

fn check_options(devices: &[Arc<dyn Device>], options: &CreateOptions) -> Result<(), PoolError> {
    check_name(&options.name)?;
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

/// The largest sector of all devices. A file's is what it takes by direct I/O: smaller writes go through
/// the page cache, which is slower.
fn largest_sector(devices: &[Arc<dyn Device>]) -> Bytes {
    let of = |info: &DeviceInfo| {
        let direct = if info.is_block { info.sector } else { info.physical_sector };
        info.sector.max(direct.min(CAW_MAX))
    };
    devices.iter().map(|d| of(d.info())).max().unwrap_or(Bytes(512))
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
        ended: false,
        stripe_unit: unit.bytes(),
        created: now,
        changed: now,
        members,
        nodes: built.nodes,
        segments: built.segments,
        properties: Properties::new(),
    })
}

impl Pool {
    /// A pool of `n` memory devices of `size` each, named "test", for the tests of the layers
    /// above. Each device has room for the labels besides.
    ///
    /// # Panics
    /// When such a pool cannot be made (no member, or a size below one stripe unit).
    pub fn for_tests(n: usize, size: Bytes) -> Self {
        let whole =
            Bytes(Label::DATA_AT.0 + size.0.next_multiple_of(Label::ALIGN.0) + Label::TAIL.0);
        let devices = (0..n)
            .map(|i| MemoryDevice::new(&format!("memory{i}"), whole, Bytes(512)) as Arc<dyn Device>)
            .collect();
        match Self::create(devices, &CreateOptions::new("test")) {
            Ok(pool) => pool,
            Err(e) => panic!("a pool for tests: {e}"),
        }
    }
}
