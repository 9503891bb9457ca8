//! What a pool is in one epoch, for callers outside of this crate.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Label, SubpoolKind};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use uuid::Uuid;

use crate::layout::map::{Map, ZoneInfo};

/// A member of an open pool.
#[derive(Debug, Clone)]
pub struct MemberInfo {
    /// Its place.
    pub index: MemberIndex,
    /// Its identity.
    pub uuid: Uuid,
    /// Where it is now.
    pub path: String,
    /// Bytes in its data area.
    pub data_len: Bytes,
    /// Bytes of the device.
    pub size: Bytes,
    /// Bytes of it that the pool knows of: those it had when it joined, or was last grown.
    pub known: Bytes,
}

/// What a pool is, in one epoch.
#[derive(Debug, Clone)]
pub struct PoolInfo {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Its epoch.
    pub epoch: Epoch,
    /// Logical bytes, holes included.
    pub size: Bytes,
    /// Of those, bytes on which nothing stands any more.
    pub holes: Bytes,
    /// Contiguous bytes on one member before the next.
    pub stripe_unit: Bytes,
    /// Bytes in a full row of the first zone.
    pub stripe_width: Bytes,
    /// Bytes in a device lock's sector; the length of a compare-and-write.
    pub lock_sector: Bytes,
    /// Largest sector of the members: the grain of reads and writes.
    pub sector: Bytes,
    /// The members, in order.
    pub members: Vec<MemberInfo>,
    /// Runs of the logical space with the same columns.
    pub zones: Vec<ZoneInfo>,
    /// Runs of the logical space for one purpose, in order.
    pub subpools: Vec<SubpoolInfo>,
    /// The same, as they were made and added: the first ones when the pool was created.
    pub segments: Vec<SubpoolInfo>,
    /// Some bytes are mirrored or protected by parity.
    pub redundant: bool,
    /// Node slots that have a redundancy log; `None`: the pool needs none.
    pub log_slots: Option<u64>,
}

impl PoolInfo {
    /// What a verified label and the map it compiles to say.
    pub(crate) fn of(label: &Label, map: &Map, devices: &[Arc<dyn Device>]) -> Self {
        let zones = map.zones();
        let members = (0_u16..)
            .zip(label.members.iter().zip(devices))
            .map(|(i, (m, device))| MemberInfo {
                index: MemberIndex(i),
                uuid: m.uuid,
                path: device.info().name.clone(),
                data_len: m.data_len,
                size: device.info().size,
                known: m.device_size,
            })
            .collect();
        Self {
            name: label.name.clone(),
            uuid: label.pool,
            epoch: label.epoch,
            size: map.size(),
            holes: label.holes(),
            stripe_unit: label.stripe_unit,
            stripe_width: stripe_width(&zones, label.stripe_unit),
            lock_sector: label.lock_sector,
            sector: devices.iter().map(|d| d.info().sector).max().unwrap_or(Bytes(512)),
            members,
            subpools: subpools(label, &zones),
            segments: segments(label, &zones),
            zones,
            redundant: !map.groups().is_empty(),
            log_slots: log_slots(label, map),
        }
    }

    /// What the subpool that holds all of a range is for; `None` when no single one does.
    pub fn kind_of(&self, at: ByteOffset, len: Bytes) -> Option<SubpoolKind> {
        let inside = |s: &&SubpoolInfo| {
            let end = at.checked_add(len);
            at >= s.start && end.is_some_and(|end| end.0 <= s.start.0.saturating_add(s.len.0))
        };
        self.subpools.iter().find(inside).map(|s| s.kind)
    }
}

/// A run of the logical space for one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubpoolInfo {
    /// What it may hold.
    pub kind: SubpoolKind,
    /// First logical byte.
    pub start: ByteOffset,
    /// Bytes.
    pub len: Bytes,
    /// What the allocator best aligns large files to, counted from `start`: the
    /// [`ZoneInfo::width`] of its longest zone.
    pub width: Bytes,
}

/// The widest row; a pool of one member has rows of one unit.
fn stripe_width(zones: &[ZoneInfo], unit: Bytes) -> Bytes {
    zones.iter().map(|z| z.width).max().map_or(unit, |w| w.max(unit))
}

/// The segments of a label.
fn segments(label: &Label, zones: &[ZoneInfo]) -> Vec<SubpoolInfo> {
    let info = |s: &braid_format::label::Segment| SubpoolInfo {
        kind: s.subpool,
        start: s.start,
        len: s.len,
        width: Bytes(0),
    };
    with_widths(label.segments.iter().map(info).collect(), zones)
}

/// Slots for which every member in use has room for a log.
fn log_slots(label: &Label, map: &Map) -> Option<u64> {
    let used = map.members();
    let starts = used.iter().filter_map(|m| label.members.get(usize::from(m.0)));
    let least = starts.map(|m| LogPlace::slots(m.data_start)).min();
    (!map.groups().is_empty()).then(|| least.unwrap_or(0))
}

/// Neighbouring segments of one kind are one subpool.
fn subpools(label: &Label, zones: &[ZoneInfo]) -> Vec<SubpoolInfo> {
    let mut out: Vec<SubpoolInfo> = Vec::new();
    for s in segments(label, &[]) {
        match out.last_mut() {
            Some(last) if last.kind == s.kind => last.len.0 += s.len.0,
            _ => out.push(s),
        }
    }
    with_widths(out, zones)
}

fn with_widths(mut out: Vec<SubpoolInfo>, zones: &[ZoneInfo]) -> Vec<SubpoolInfo> {
    for subpool in &mut out {
        let (from, to) = (subpool.start.0, subpool.start.0 + subpool.len.0);
        let inner = zones.iter().filter(|z| z.start.0 < to && z.start.0 + z.len.0 > from);
        let longest = inner.max_by_key(|z| (z.len, std::cmp::Reverse(z.start)));
        subpool.width = longest.map_or(Bytes(0), |z| z.width);
    }
    out
}
