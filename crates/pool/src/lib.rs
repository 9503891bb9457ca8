//! Many devices, one striped address space.
//!
//! A [`Pool`] is made once by [`Pool::create`] and afterwards put together from its members by
//! [`Pool::assemble`], in whatever order and under whatever names they are found ([`discover`]).
//! All its offsets are logical; [`map`] says where they lie.
//!
//! Invariants:
//! * nothing is written before every check has passed;
//! * at every moment each member has one whole label ([`members`]);
//! * a pool is opened only with exactly its current members: no missing, stale, foreign,
//!   truncated or duplicated one.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  clock, pace  what time it is; when maintenance goes on
//!  error        why a pool cannot be made, put together or used
//!  layout       from what a user asks for to the topology in a label
//!  map          the pool's logical bytes to its members' bytes: a pure function
//!  write_gate, liveness, atomic_records  whether handles may change anything; liveness bytes; sectors that others may change
//!  background_io  what a node does by itself does not count as use of the pool
//!  verifier     who knows good bytes from bad
//!  simulation   what a simulation decides instead of chance
//!  members      labels on devices: reading, judging, writing an epoch
//!  topology     one epoch of a pool: its label, what it compiles to, its devices
//!  shared       what a pool must know of other nodes that use it
//!  fence        persistent reservations
//!  log          a node's redundancy log
//!  group        redundancy groups: mirrors and parity
//!  redundancy   what keeps a redundant pool whole
//!  io, concurrent   requests on a pool; writes of bytes that other nodes may be writing, too
//!  queue        a sliding window of large requests
//!  slow, suspect  members that are slow, or return garbage
//!  absent, assemble  members that are not there; putting a pool together
//!  create, discover, member_verify  making a pool; finding pools; whether a device agrees with its member
//!  selector     which member is meant
//!  epoch_rollback, epoch, heal  one epoch for all nodes; damaged labels and broken-off changes
//!  scrub, discard  reading everything to mend rot; space goes back to the devices
//!  fail_members, maintenance  taking failed members out; replacing, filling, spares
//!  restore      labels brought back from elsewhere
//!  reshape      members that come, go and change places
//!  modelled     pools of modelled disks
//!  advise       advice on a pool's shape, from measurement
//! ```

#![forbid(unsafe_code)]

pub use braid_device as device;

mod absent;
pub mod advise;
pub mod assemble;
mod atomic_records;
mod background_io;
mod clock;
mod concurrent;
pub mod create;
mod discard;
pub mod discover;
mod epoch;
mod epoch_rollback;
pub mod error;
mod fail_members;
mod fence;
pub mod group;
mod heal;
pub mod io;
pub mod layout;
mod liveness;
mod log;
mod maintenance;
pub mod map;
pub mod member_verify;
pub mod members;
pub mod modelled;
mod pace;
pub mod queue;
mod redundancy;
pub mod reshape;
pub mod restore;
mod scrub;
mod selector;
mod shared;
#[doc(hidden)]
pub mod simulation;
mod slow;
mod suspect;
mod topology;
mod verifier;
mod write_gate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_device::{Device, IoCounters, Issued, MemoryDevice};
use braid_format::label::{Label, SubpoolKind};
use braid_format::lock_record::Life;
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

pub use background_io::BackgroundIo;
pub use create::{CreateOptions, Hint, Plan};
pub use discover::{FoundMember, FoundPool, MemberCondition, discover};
pub use error::{MissingMember, PoolError};
pub use fence::{FenceHow, Reservable, Seized};
pub use io::PoolRequest;
pub use liveness::PoolByteLock;
pub use log::recover::Recovered;
pub use map::{Map, Piece, Place, ZoneInfo};
pub use pace::Pace;
pub use queue::{PoolOp, PoolQueue};
pub use verifier::{ChecksumVerifier, NoChecksums, Verification};

pub use maintenance::Progress;
pub use reshape::{AddOptions, Added, ChangeError, Destination, Moving, Removed};
pub use scrub::{Instead, Scrubbed};
pub use selector::MemberSelector;
pub use shared::{EpochTag, HeldRegions, Hold, Others, RegionLocks};
pub use slow::Noticed;

use fence::OwnKey;
use liveness::HeldBytes;
use shared::Shared;
use topology::Topology;
use write_gate::WriteGate;

/// Of a lease, the part for which a session with a member is tried to be begun anew that the pool can
/// do without.
const PATIENCE_SHARE: u32 = 4;

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

#[derive(Debug)]
pub(crate) struct Inner {
    /// Grain of reads and writes, of the epoch in which the pool was opened.
    sector: Bytes,
    /// As [`PoolInfo::redundant`]; no epoch changes it.
    redundant: bool,
    /// As [`PoolInfo::lock_sector`]; no epoch changes it.
    lock_sector: Bytes,
    /// The epoch in use. Every request holds it for reading while it is under way, so whoever
    /// changes it finds none.
    topology: RwLock<Topology>,
    /// The same, without a log, for those who must not wait for requests under way: heartbeats and
    /// what they are read by.
    snapshot: RwLock<Arc<Topology>>,
    /// The epoch that this node says that it uses.
    said: RwLock<EpochTag>,
    /// Held by who says it.
    saying: Mutex<()>,
    /// When the redundancy log was last rid of regions no longer written, Unix seconds.
    cleaned: AtomicU64,
    /// Liveness bytes that this process holds.
    held: HeldBytes,
    /// The key that this node has registered with the members.
    key: OwnKey,
    /// Requests in flight past the topology's guard: those of [`PoolQueue`]'s rings.
    windows: AtomicU64,
    /// Batches of requests on groups so far, those of maintenance and of [`BackgroundIo`] not counted.
    requests: AtomicU64,
    /// Writes whose copies differ, and are about to be made the same.
    divergent: concurrent::DivergentWrites,
    /// The other nodes, where there can be any.
    shared: RwLock<Option<Arc<Shared>>>,
    /// Held by who asks whether the epoch is settled.
    settling: Mutex<()>,
    /// Lives that claimed a change of the pool and are fenced.
    gone: Mutex<Vec<Life>>,
    /// The members' times.
    slow: Mutex<slow::Watch>,
    /// Members that return garbage.
    suspicion: Mutex<suspect::Suspicion>,
    /// Members that cannot make zeros of what they give back, though they said so.
    unable: discard::Unable,
    /// The highest epoch that stands, or may, on any member that this node knows.
    attempted: AtomicU64,
    /// Moves of epochs before, whose successors have missed what this node wrote.
    ended: Mutex<Vec<Arc<reshape::migration::MemberMigration>>>,
    /// In a simulation only.
    simulated: simulation::Simulated,
}

/// An open pool. A clone is another handle on the same pool; all methods take `&self` and may be
/// called from any thread.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>, Arc<WriteGate>);

impl Pool {
    /// Opens a pool on `devices` in member order, with a verified label.
    pub(crate) fn open(devices: Vec<Arc<dyn Device>>, label: Label) -> Result<Self, PoolError> {
        let topology = Topology::new(label, devices)?;
        let inner = Inner {
            sector: topology.info.sector,
            redundant: topology.info.redundant,
            lock_sector: topology.info.lock_sector,
            snapshot: RwLock::new(Arc::new(topology.snapshot())),
            said: RwLock::new(topology.tag()),
            saying: Mutex::default(),
            topology: RwLock::new(topology),
            cleaned: AtomicU64::new(0),
            held: HeldBytes::default(),
            key: OwnKey::default(),
            windows: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            shared: RwLock::default(),
            settling: Mutex::default(),
            gone: Mutex::default(),
            slow: Mutex::default(),
            suspicion: Mutex::default(),
            unable: discard::Unable::default(),
            divergent: concurrent::DivergentWrites::default(),
            attempted: AtomicU64::new(0),
            ended: Mutex::default(),
            simulated: simulation::Simulated::default(),
        };
        Ok(Self(Arc::new(inner), Arc::default()))
    }

    /// This handle, apart from all others: with clones of its own it can be closed by itself.
    #[must_use]
    pub fn gated(self) -> Self {
        Self(self.0, Arc::default())
    }

    /// Ends all changes through this handle and its clones: on return none is under way, however
    /// long the devices take, and each later one fails with [`PoolError::Closed`]. The windows of
    /// [`PoolQueue`] are not covered.
    pub fn close(&self) {
        self.1.close();
    }

    /// Whether this handle was closed.
    pub fn is_closed(&self) -> bool {
        self.1.is_closed()
    }

    /// This handle and its clones may change something until `until`, and then wait to be told so
    /// again. Never called: for ever.
    pub fn lease(&self, until: braid_device::Moment) {
        self.1.extend(until.nanoseconds());
        // Where others have what a member has, it is not waited for so long that the lease is over.
        let until = clock::part_of(until, if self.0.redundant { PATIENCE_SHARE } else { 1 });
        self.0.snapshot().devices.iter().for_each(|device| device.lease(until));
    }

    /// Bounds how long a command of a member may be unanswered, where it can be ended at all, from the
    /// node's `io_timeout`: where others have what the member has, it is given up sooner.
    pub fn answers_within(&self, io_timeout: std::time::Duration) {
        let time = if self.0.redundant { io_timeout } else { io_timeout * 2 };
        self.0.snapshot().devices.iter().for_each(|device| device.answers_within(time));
    }

    /// Waits while the time of [`Pool::lease`] is over; false if `cancelled`, which is asked again and again,
    /// was true before.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn await_lease_unless(&self, cancelled: &dyn Fn() -> bool) -> Result<bool, PoolError> {
        self.1.await_lease_unless(cancelled)
    }

    /// As [`Pool::close`], but waits for nothing that is under way.
    pub fn refuse(&self) {
        self.1.refuse();
    }

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

    /// What this pool is, in the epoch in use.
    pub fn info(&self) -> Arc<PoolInfo> {
        self.0.topology.read().info.clone()
    }

    /// The label in force (as member 0 has it, or another).
    pub fn label(&self) -> Label {
        self.0.topology.read().label.clone()
    }

    /// Whether every member still carries the label in force: nobody has made another pool of
    /// them since.
    pub fn is_current(&self) -> bool {
        let topology = self.0.topology.read();
        let id = members::id(&topology.label);
        let used = |(_, m): &(&Arc<dyn Device>, &braid_format::label::Member)| {
            m.state != braid_format::label::MemberState::Failed
        };
        let mut members = topology.devices.iter().zip(&topology.label.members).filter(used);
        members.all(|(d, _)| members::Found::read(d.clone()).carries(id))
    }

    /// Batches of requests so far on what is mirrored or protected by parity, and requests on a
    /// member that is being moved: whether the pool is in use, for work that gives way. Those of
    /// [`BackgroundIo`] are not counted.
    pub fn requests(&self) -> u64 {
        let moved = self
            .0
            .topology
            .read()
            .migration
            .as_ref()
            .map(|p| p.migration.used.load(Ordering::Relaxed));
        self.0.requests.load(Ordering::Relaxed) + moved.unwrap_or(0)
    }

    /// The mapping of the epoch in use.
    pub fn map(&self) -> Map {
        self.0.topology.read().map.clone()
    }

    /// The members' devices, in member order.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.0.topology.read().devices.clone()
    }

    /// What was asked of each member since the pool was opened, in member order.
    pub fn issued(&self) -> Vec<Issued> {
        let topology = self.0.topology.read();
        let of = |d: &Arc<dyn Device>| d.counters().map(IoCounters::now).unwrap_or_default();
        topology.devices.iter().map(of).collect()
    }

    /// The member and device offset of a logical byte, for messages; of its first copy where it
    /// has several.
    pub fn locate(&self, at: ByteOffset) -> Option<(MemberInfo, ByteOffset)> {
        let topology = self.0.topology.read();
        let (member, at) = topology.map.locate(at)?;
        Some((topology.info.members.get(usize::from(member.0))?.clone(), at))
    }
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
