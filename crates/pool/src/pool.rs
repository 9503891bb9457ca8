//! An open pool: its handle, and the objects that it is made of.
//!
//! The rooms above add the operations: `membership` changes of the epoch, `io` requests, `maintenance`
//! and `reshape` what an operator asks for.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use braid_device::tasks::DeviceKey;
use braid_device::{Device, IoCounters, Issued};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use uuid::Uuid;

use crate::clock;
use crate::cluster::ClusterView;
use crate::cluster::write_gate::WriteGate;
use crate::devices::migration::MemberMigration;
use crate::error::{LabelFault, PoolError};
use crate::health::MemberHealth;
use crate::history::Recorder;
use crate::labels::{self, discover};
use crate::layout::map::Map;
use crate::redundancy::{EpochInUse, RedundancyState};
use crate::simulation::{Opener, Pause, Simulated, Simulation};
use crate::topology::{EpochTag, MemberInfo, PoolInfo, Topology};

/// If the pool can spare a member whose session is lost, reconnecting is tried for one part in this many
/// of the lease.
const PATIENCE_SHARE: u32 = 4;

/// What was found when the labels were read again because of members that failed.
#[derive(Debug, Default)]
pub(crate) struct Reread {
    /// Which reading it was, counted from 1.
    pub number: u64,
    /// They said more than this node knew.
    pub newer: bool,
    /// What was logged last, and when.
    pub said: Option<(String, Instant)>,
}

/// The epoch in use, and what other nodes and requests under way see of it.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// The epoch in use. Every request holds it for reading while it is under way, so no request is under
    /// way while it is changed.
    in_use: RwLock<EpochInUse>,
    /// Its topology, for readers that must not wait for requests under way: those that write and read
    /// heartbeats.
    snapshot: RwLock<Arc<Topology>>,
    /// The epoch that this node announces in its heartbeat.
    pub announced: RwLock<EpochTag>,
    /// Held by the thread that announces an epoch, so that the later of two epochs is announced
    /// last.
    pub announcing: Mutex<()>,
    /// Held by the thread that asks whether the epoch is settled.
    pub settling: Mutex<()>,
    /// Readings of the labels, because of members that failed, that have begun.
    pub rereads: AtomicU64,
    /// The last that has ended. Held by the thread that reads them, while it does: the others that meet
    /// the failure wait for what it finds.
    pub reread: Mutex<Reread>,
    /// The highest epoch that any known member carries, or may carry.
    pub attempted: AtomicU64,
    /// The epoch in use is without a member of the last settled one.
    pub leaves_members: AtomicBool,
    /// Migrations of earlier epochs whose successors have missed what this node wrote.
    pub ended_migrations: Mutex<Vec<Arc<MemberMigration>>>,
}

impl Epochs {
    fn new(epoch: EpochInUse) -> Self {
        Self {
            snapshot: RwLock::new(epoch.snapshot()),
            announced: RwLock::new(epoch.tag()),
            in_use: RwLock::new(epoch),
            announcing: Mutex::default(),
            settling: Mutex::default(),
            rereads: AtomicU64::new(0),
            reread: Mutex::default(),
            attempted: AtomicU64::new(0),
            leaves_members: AtomicBool::new(false),
            ended_migrations: Mutex::default(),
        }
    }

    /// The epoch in use, for a request.
    pub fn read(&self) -> RwLockReadGuard<'_, EpochInUse> {
        self.in_use.read()
    }

    /// The epoch in use, while no request is under way.
    pub fn write(&self) -> RwLockWriteGuard<'_, EpochInUse> {
        self.in_use.write()
    }

    /// The topology of the epoch in use, or of the one before it while that is exchanged: waits for
    /// nothing.
    pub fn snapshot(&self) -> Arc<Topology> {
        self.snapshot.read().clone()
    }

    /// The snapshot is `epoch`'s from now on; what it was.
    pub fn replace_snapshot(&self, epoch: &EpochInUse) -> Arc<Topology> {
        std::mem::replace(&mut *self.snapshot.write(), epoch.snapshot())
    }
}

/// The I/O path: sizes that every request keeps to, and counters.
#[derive(Debug, Default)]
pub(crate) struct IoState {
    /// Grain of reads and writes, of the epoch in which the pool was opened.
    pub sector: Bytes,
    /// As [`PoolInfo::lock_sector`]; no epoch changes it.
    pub lock_sector: Bytes,
    /// Requests in flight that do not hold the epoch in use: those of [`PoolQueue`](crate::PoolQueue)'s
    /// rings.
    pub queued: AtomicU64,
    /// Batches of requests on groups so far, those of maintenance and of
    /// [`BackgroundIo`](crate::BackgroundIo) not counted.
    pub requests: AtomicU64,
    /// Members that cannot make zeros of what they give back, though they said so.
    pub cannot_deallocate: Mutex<HashSet<Uuid>>,
}

/// What an open pool is made of.
#[derive(Debug)]
pub(crate) struct PoolState {
    pub epochs: Epochs,
    pub io: IoState,
    pub redundancy: RedundancyState,
    pub cluster: ClusterView,
    pub health: MemberHealth,
    /// Where what happens is told; empty: nowhere.
    pub history: OnceLock<Recorder>,
    /// In a simulation only.
    pub simulated: Simulated,
}

impl PoolState {
    /// Waits a little.
    pub(crate) fn pause(&self, length: Duration, pause: Pause) {
        match self.simulated.get() {
            Some(simulation) => simulation.pause(pause),
            None => std::thread::sleep(length),
        }
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        self.simulated.get().map_or_else(clock::unix_seconds, |simulation| simulation.seconds())
    }

    /// The device of a member that another node has let in.
    pub(crate) fn open_member(&self, member: &Member) -> Option<Arc<dyn Device>> {
        match self.simulated.get() {
            Some(simulation) => simulation.open(member),
            None => discover::open_member(member),
        }
    }

    /// As [`PoolState::open_member`], for later.
    pub(crate) fn opener(&self) -> Opener {
        match self.simulated.get().cloned() {
            Some(simulation) => Box::new(move |member| simulation.open(member)),
            None => Box::new(discover::open_member),
        }
    }
}

/// An open pool. A clone is another handle on the same pool; all methods take `&self` and may be
/// called from any thread.
#[derive(Debug, Clone)]
pub struct Pool(pub(crate) Arc<PoolState>, pub(crate) Arc<WriteGate>);

impl Pool {
    /// Opens a pool on `devices` in member order, with a verified label.
    pub(crate) fn open(devices: Vec<Arc<dyn Device>>, label: Label) -> Result<Self, PoolError> {
        let epoch = EpochInUse::new(label, devices)?;
        let (sector, lock_sector) = (epoch.info.sector, epoch.info.lock_sector);
        let present = epoch.info.redundant;
        let suspicion = epoch.suspicion.clone();
        let health = MemberHealth { suspicion, ..MemberHealth::default() };
        let inner = PoolState {
            epochs: Epochs::new(epoch),
            io: IoState { sector, lock_sector, ..IoState::default() },
            redundancy: RedundancyState { present, ..RedundancyState::default() },
            cluster: ClusterView::default(),
            health,
            history: OnceLock::new(),
            simulated: Simulated::default(),
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
    /// `PoolQueue` are not covered.
    pub fn close(&self) {
        self.1.close();
    }

    /// Changes through this handle and its clones wait until [`Pool::thaw`], but for those of lock records, slots and
    /// heartbeats; on return no other is under way. False, and as before, if some still are at `deadline`, or
    /// `thaw` is called meanwhile.
    pub fn freeze(&self, deadline: std::time::Instant) -> bool {
        self.1.freeze.freeze(deadline)
    }

    /// Changes go on.
    pub fn thaw(&self) {
        self.1.freeze.thaw();
    }

    /// Whether this handle was closed.
    pub fn is_closed(&self) -> bool {
        self.1.is_closed()
    }

    /// This handle and its clones may change something until `until`; then they wait until this is
    /// called again. Never called: for ever.
    pub fn lease(&self, until: braid_device::Moment) {
        self.1.extend(until.nanoseconds());
        // Where others have what a member has, it is not waited for so long that the lease is over.
        let until =
            clock::part_of(until, if self.0.redundancy.present { PATIENCE_SHARE } else { 1 });
        let snapshot = self.0.epochs.snapshot();
        for session in snapshot.devices.iter().filter_map(|d| d.abilities().session) {
            session.lease(until);
        }
    }

    /// Bounds, from the node's `io_timeout`, how long a member may leave a command unanswered, if
    /// commands of it can be ended at all. If other members have the same bytes, it is given up
    /// sooner.
    pub fn answers_within(&self, io_timeout: std::time::Duration) {
        let time = if self.0.redundancy.present { io_timeout } else { io_timeout * 2 };
        let snapshot = self.0.epochs.snapshot();
        for bound in snapshot.devices.iter().filter_map(|d| d.abilities().bound) {
            bound.answers_within(time);
        }
    }

    /// As [`Pool::close`], but waits for nothing that is under way.
    pub fn refuse(&self) {
        self.1.refuse();
    }

    /// What this pool is, in the epoch in use. Waits for no request, as do [`Pool::label`], [`Pool::devices`] and
    /// [`Pool::issued`]: a device may answer nothing.
    pub fn info(&self) -> Arc<PoolInfo> {
        self.0.epochs.snapshot().info.clone()
    }

    /// The label in force (as member 0 has it, or another).
    pub fn label(&self) -> Label {
        self.0.epochs.snapshot().label.clone()
    }

    /// Whether every member still carries the label in force: nobody has made another pool of
    /// them, or changed this one, since.
    pub fn is_current(&self) -> bool {
        let topology = self.0.epochs.read();
        let id = labels::id(&topology.label);
        labels_of_used(&topology).all(|found| found.carries(id))
    }

    /// Whether every member in use is this pool's still, in whatever epoch: nobody has made another pool of
    /// them since. One whose labels cannot be read, or are being written, says nothing.
    pub fn has_its_members(&self) -> bool {
        let topology = self.0.epochs.read();
        let has_none = |copy: &labels::Copy| copy.as_ref().is_err_and(LabelFault::absent);
        labels_of_used(&topology).all(|found| match found.newest() {
            Some(label) => label.pool == topology.label.pool,
            None => !found.copies.iter().all(has_none),
        })
    }

    /// Batches of requests so far on what is mirrored or protected by parity, and requests on a
    /// member that is being moved: whether the pool is in use, for work that gives way. Those of
    /// `BackgroundIo` are not counted.
    pub fn requests(&self) -> u64 {
        let moved = self
            .0
            .epochs
            .read()
            .migration
            .as_ref()
            .map(|p| p.migration.used.load(Ordering::Relaxed));
        self.0.io.requests.load(Ordering::Relaxed) + moved.unwrap_or(0)
    }

    /// Waits while the time of [`Pool::lease`] is over; false if `cancelled`, which is asked again and again,
    /// was true before.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn await_lease_unless(&self, cancelled: &dyn Fn() -> bool) -> Result<bool, PoolError> {
        self.1.await_lease_unless(cancelled)
    }

    /// What each member is just now, in member order.
    pub fn member_states(&self) -> Vec<(MemberIndex, MemberState)> {
        let topology = self.0.epochs.read();
        topology.members().map(|m| (m, topology.state(m))).collect()
    }

    /// From now on this pool does all in the threads that call it, and sleeps nowhere: for `braid-sim`.
    #[doc(hidden)]
    pub fn simulate(&self, simulation: Arc<dyn Simulation>) {
        self.0.simulated.set(simulation);
    }

    /// The mapping of the epoch in use.
    pub fn map(&self) -> Map {
        self.0.epochs.read().map.clone()
    }

    /// The members' devices, in member order.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.0.epochs.snapshot().devices.clone()
    }

    /// What was asked of each member since the pool was opened, in member order.
    pub fn issued(&self) -> Vec<Issued> {
        let topology = self.0.epochs.snapshot();
        let of =
            |d: &Arc<dyn Device>| d.abilities().counters.map(IoCounters::now).unwrap_or_default();
        topology.devices.iter().map(of).collect()
    }

    /// The member on the device with this key, if there is one now.
    pub fn member_with(&self, key: DeviceKey) -> Option<MemberInfo> {
        let topology = self.0.epochs.read();
        let at = topology.devices.iter().position(|d| DeviceKey::of(d.info()) == key)?;
        topology.info.members.get(at).cloned()
    }

    /// The member and device offset of a logical byte, for messages; of its first copy where it
    /// has several.
    pub fn locate(&self, at: ByteOffset) -> Option<(MemberInfo, ByteOffset)> {
        let topology = self.0.epochs.read();
        let (member, at) = topology.map.locate(at)?;
        Some((topology.info.members.get(usize::from(member.0))?.clone(), at))
    }
}

/// The labels of each member in use, read now.
fn labels_of_used(topology: &Topology) -> impl Iterator<Item = labels::Found> {
    let members = topology.devices.iter().zip(&topology.label.members);
    let used = members.filter(|(_, member)| member.state != MemberState::Failed);
    used.map(|(device, _)| labels::Found::read(device.clone()))
}
