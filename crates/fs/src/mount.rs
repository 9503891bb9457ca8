//! Joining and leaving: slot, journal, lock manager, recovery of others.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use braid_format::history::EventKind;
use braid_format::node::{SlotRecord, SlotState};
use braid_format::{LockNo, MemberIndex, NodeId};
use braid_lock::etcd::HintWatch;
use braid_lock::interrupt::Interrupt;
use braid_lock::{
    FenceMethod, GlockView, HintsBy, JoinOptions, Life, LockError, LockManager, LockStats,
    ManagerOptions, Membership, NodeStore, NodeView, NodeWait, OnLease, await_thaw,
};
use braid_pool::device::{FreezeGate, UnitName};
use braid_pool::{EpochTag, Pool};
use parking_lot::{Mutex, RwLock};

use crate::alloc::Alloc;
use crate::attr::{KernelCache, NoKernelCache};
use crate::cluster::{Bounds, Cluster};
use crate::core::Core;
use crate::deferred_ops::DeferredOps;
use crate::dirty_files::DirtyFiles;
use crate::discard::Discarder;
use crate::error::{Error, Result};
use crate::files_at::files_at;
use crate::freeze::NodeFreeze;
use crate::handle::Handles;
use crate::housekeeper::{Housekeeper, abandon, withdraw_from};
use crate::inflight_writes::InflightWrites;
use crate::inode::InodeTable;
use crate::jobs::{AllProgress, JobSlot};
use crate::maintenance::{FileSearch, Maintenance, MaintenancePeers};
use crate::meta::{Meta, MetaStats};
use crate::options::MountOptions;
use crate::recovery::Recoverer;
use crate::stat_ahead::StatAhead;
use crate::unused_metadata::{self, Alone};
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;
use crate::writeback::flush_all;

/// What a mounted node says of itself.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// Its slot.
    pub slot: NodeId,
    /// Where it is mounted, as it was mounted.
    pub mount_point: PathBuf,
    /// All nodes of the cluster.
    pub nodes: Vec<NodeView>,
    /// Lock counters.
    pub locks: LockStats,
    /// Cluster locks in memory.
    pub locks_held: usize,
    /// Inodes in memory.
    pub inodes: usize,
    /// Open files.
    pub open_files: usize,
    /// Metadata: its cache and its journal.
    pub metadata: MetaStats,
    /// Bytes of file data in memory that are not on the devices yet.
    pub dirty: u64,
    /// Dead nodes that it has recovered since it was mounted.
    pub recovered: u64,
    /// Damaged metadata that it has met since it was mounted.
    pub damaged: Vec<crate::damage::DamagedBlock>,
}

/// A lock of this node, and what it protects.
#[derive(Debug, Clone)]
pub struct NamedLock {
    /// For people.
    pub of: String,
    /// As it is now.
    pub view: GlockView,
}

/// A node that has joined: the core, its membership, its housekeeper.
pub(crate) struct Mounted {
    pub core: Arc<Core>,
    membership: Arc<Membership>,
    /// Hints that come by the store of the locks.
    hints: Mutex<Option<HintWatch>>,
    recoverer: Arc<Recoverer>,
    housekeeper: Mutex<Option<Housekeeper>>,
    pub maintenance: Maintenance,
    pub rebalance: JobSlot,
    pub trim: JobSlot,
    discarder: Discarder,
    /// How far each job is.
    pub progress: AllProgress,
    /// What a node that has left in order left to the next owner of its slot, because of damage.
    left_for_later: Mutex<Vec<String>>,
}

/// A node that leaves says what it waits for after so long, and then now and then.
const TELL_AFTER: Duration = Duration::from_secs(5);
const TELL_AGAIN: Duration = Duration::from_secs(15);
/// A node that leaves waits so long for the pool's history, at most.
const HISTORY_PATIENCE: Duration = Duration::from_secs(2);

/// Nodes of other hosts reach a unit of a target by the network, and this node by the address that
/// it reaches the unit from. Where etcd brings the hints no port is opened.
fn usual_hints(volume: &Volume) -> HintsBy {
    if volume.in_etcd() {
        return HintsBy::Unix;
    }
    let names = volume.pool.devices();
    let units = names.iter().filter_map(|d| UnitName::parse(&d.info().name));
    let portals: Vec<String> = units.map(|unit| unit.portal).collect();
    HintsBy::beside(portals.iter().map(String::as_str))
}

impl Mounted {
    /// Joins. See [`crate::Fs::mount`].
    pub fn new(pool: Pool, options: MountOptions, kernel: Arc<dyn KernelCache>) -> Result<Self> {
        braid_pool::device::fit_memory(options.memory);
        if pool.is_provisional() {
            count_as_lost(&Volume::open(pool.clone())?)?;
        }
        let volume = Arc::new(Volume::open(pool.gated())?);
        // A read-only mount, too, writes a slot, lock records, and the contents of journals that it
        // replays.
        volume.may_change()?;
        let areas = volume.node_areas()?;
        let deferred_ops = Arc::new(DeferredOps::default());
        let join = JoinOptions {
            slot: options.slot,
            mount_point: options.mount_point.clone(),
            serves: options.serves,
            timing: options.timing,
            fence: options.fence.clone(),
            identity: options.identity.clone(),
            hints: options.hints.unwrap_or_else(|| usual_hints(&volume)),
            ..JoinOptions::default()
        };
        let nodes = volume.node_store(areas);
        let recoverer = Arc::new(Recoverer {
            volume: volume.clone(),
            core: deferred_ops.clone(),
            nodes: nodes.clone(),
            join: join.clone(),
            cluster: Mutex::default(),
            bounds: Bounds::default(),
            leaving: RwLock::default(),
            finishing: Mutex::default(),
            recovered: AtomicU64::new(0),
        });
        let membership = join_thawed(nodes, join, &recoverer);
        let membership = membership.inspect_err(|_| recoverer.end_cluster())?;
        let on = volume.clone();
        let cluster = recoverer.cluster(membership.me());
        let started = cluster.and_then(|cluster| {
            if let Some(cluster) = &cluster {
                cluster.attach(&membership);
                // Others may have changed the pool before they could see this node.
                volume.pool.follow()?;
            }
            volume.pool.heal_labels()?;
            volume.pool.count_up(membership.me())?;
            let whole = volume
                .pool
                .attach_with(membership.me().slot.get(), &VolumeVerifier::of(&volume))?;
            if whole.records + whole.regions > 0 {
                let braid_pool::Recovered { records, regions, repaired } = whole;
                tracing::info!(
                    records,
                    regions,
                    %repaired,
                    "made whole what was being written when this node ended"
                );
            }
            volume.pool.history_of_node(membership.me().slot);
            let text = format!("the node has joined, at {}", options.mount_point.display());
            let joined = volume.clone();
            let started =
                Self::start(volume, options, kernel, &deferred_ops, &membership, cluster)?;
            joined.pool.record(EventKind::Mount, None, text);
            Ok(started)
        });
        match started {
            Ok(core) => Ok(Self::kept_up(core, membership, recoverer)),
            Err(e) => {
                // The slot counts as dead: whatever was begun is replayed by the next to mount.
                let cluster = recoverer.cluster.lock().take();
                abandon(&on, &membership, cluster.as_deref());
                Err(e)
            }
        }
    }

    /// With the threads that see to a node.
    fn kept_up(core: Arc<Core>, membership: Arc<Membership>, recoverer: Arc<Recoverer>) -> Self {
        membership.on_freeze(NodeFreeze::of(&core));
        let peers = Box::new(Arc::downgrade(&membership));
        let files = core.clone();
        let file_search: Box<FileSearch> =
            Box::new(move |places, go_on| files_at(&files, places, go_on));
        let kernel = core.kernel.clone();
        let drop_pages = Box::new(move || kernel.drop_pages());
        let maintenance = if core.options.only_plans {
            Maintenance::idle()
        } else {
            Maintenance::start(&core.volume, peers, file_search, drop_pages)
        };
        Self {
            hints: Mutex::new(watch_hints(&core.volume, &membership)),
            housekeeper: Mutex::new(Some(Housekeeper::start(&core, &membership))),
            maintenance,
            rebalance: JobSlot::default(),
            trim: JobSlot::default(),
            discarder: Discarder::start(&core),
            progress: AllProgress::default(),
            left_for_later: Mutex::default(),
            core,
            membership,
            recoverer,
        }
    }

    fn start(
        volume: Arc<Volume>,
        options: MountOptions,
        kernel: Arc<dyn KernelCache>,
        deferred_ops: &Arc<DeferredOps>,
        membership: &Arc<Membership>,
        cluster: Option<Arc<Cluster>>,
    ) -> Result<Arc<Core>> {
        let me = membership.me();
        let cache = options.metadata_cache.get();
        let mut meta = Meta::open(volume.clone(), me.slot, me.incarnation, cache)?;
        meta.bound_logged(options.logged_max.get());
        let meta = Arc::new(meta);
        deferred_ops.meta.set(Arc::downgrade(&meta)).ok();
        deferred_ops.volume.set(volume.clone()).ok();
        let store = volume.lock_store(Some(me));
        let manager_options =
            ManagerOptions { locks_max: options.locks_max, ..volume.manager_options() };
        let locks =
            LockManager::new(me, store, membership.clone(), deferred_ops.clone(), manager_options)?;
        let alloc = Arc::new(Alloc::open(
            volume.clone(),
            meta.clone(),
            locks.clone(),
            me.slot,
            me.incarnation,
        )?);
        let plocks = crate::plock_table::Plocks::new(&volume, options.metadata_cache);
        let core = Arc::new(Core {
            volume,
            meta,
            alloc,
            locks: locks.clone(),
            cluster,
            inodes: InodeTable::default(),
            handles: Handles::default(),
            orphans: crate::orphan_list::Orphans::default(),
            plocks,
            kernel,
            options,
            dirty: DirtyFiles::default(),
            inflight: InflightWrites::default(),
            stat_ahead: StatAhead::default(),
            me,
            membership: membership.clone(),
            withdrawn: OnceLock::new(),
            freeze: FreezeGate::default(),
            given_back: OnceLock::new(),
        });
        let others = membership.clone();
        core.alloc.set_others(Box::new(move || {
            let alone = others.is_alone();
            (!alone).then(|| others.others_deltas())
        }));
        deferred_ops.core.set(Arc::downgrade(&core)).ok();
        // Before the watcher, which changes what dead nodes had.
        let alone = Alone::look(&core.volume, me.slot)?;
        let for_space = Arc::downgrade(&core);
        core.alloc.set_leaving(Box::new(move || {
            let core = for_space.upgrade();
            core.is_some_and(|core| core.orphans.await_leaving(crate::orphan_list::LEAVE_PATIENCE))
        }));
        membership.attach(&locks)?;
        membership.watch_lease(Arc::new(KernelLease(core.kernel.clone())))?;
        if let Some(cluster) = &core.cluster {
            let on = Arc::downgrade(&core);
            cluster.on_epoch(Box::new(move || {
                // Others use what was added from now on, and this node would take it for damage.
                if let Some(core) = on.upgrade()
                    && let Err(error) = core.volume.refresh()
                {
                    core.withdraw(&error);
                }
            }));
        }
        let other = |n: &NodeView| n.state != SlotState::Free && n.life.slot != core.me.slot;
        crate::growth::catch_up(&core, !membership.nodes().iter().any(other))?;
        unused_metadata::give_back(&core, alone.as_ref())?;
        crate::orphan::reap(&core)?;
        Ok(core)
    }

    /// Leaves. See [`crate::Fs::unmount_telling`].
    pub fn unmount(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<()> {
        let say = || {
            let waits: Vec<String> = self.waits().iter().map(ToString::to_string).collect();
            if !waits.is_empty() {
                let awaited = waits.join("; ");
                tracing::warn!("this node leaves, and waits: {awaited}");
                tell(&awaited);
            }
        };
        while_late((TELL_AFTER, TELL_AGAIN), &say, || self.leave())
    }

    fn leave(&self) -> Result<()> {
        // A frozen node cannot write what leaving needs.
        self.membership.leave_freezes();
        // Another node may be dead, and not fenced for long.
        self.core.volume.pool.leave_within(self.patience());
        self.rebalance.close();
        self.trim.close();
        self.discarder.stop();
        self.maintenance.stop();
        drop(self.hints.lock().take());
        if let Some(housekeeper) = self.housekeeper.lock().take() {
            housekeeper.stop();
        } else {
            return Ok(());
        }
        let core = &self.core;
        if let Err(e) = core.check_alive().and_then(|()| self.leave_cleanly()) {
            core.withdraw(&e);
            withdraw_from(core, &self.membership);
            return Err(e);
        }
        Ok(())
    }

    /// How long a node that leaves waits for others: longer than it takes to fence one.
    fn patience(&self) -> Duration {
        let timing = self.core.options.timing;
        timing.fence_after() + timing.io_timeout()
    }

    /// Contents, then orphans and windows, then the locks, then the journal, then the slot.
    fn leave_cleanly(&self) -> Result<()> {
        let core = &self.core;
        core.plocks.end_waits(&|| Err(Error::Interrupted));
        // They hold space that is about to go back.
        core.inflight.settle_all();
        flush_all(core, true)?;
        // The part that takes locks that others hold. A living node gives them up soon; those of a
        // silent node come once it is fenced. For longer nobody waits. The slot's next owner
        // inherits what is left.
        let patience = self.patience();
        let interrupt = Interrupt::of_steps();
        {
            let _scope = interrupt.scope();
            unless_done_in(patience, &|| interrupt.trip_current(), || {
                let awaited = Error::is_out_of_reach;
                self.for_later(crate::orphan::reap(core).map(drop), awaited)?;
                self.for_later(core.alloc.close(), |e| awaited(e) || e.is_of_one_group())
            })?;
        }
        core.write_deferred_mtimes()?;
        // Recoveries need locks, and then a log.
        unless_done_in(patience, &|| self.recoverer.give_up(), || {
            self.membership.end_recoveries();
            self.recoverer.only_replay();
            core.locks.shutdown()?;
            core.meta.close()?;
            self.membership.end_tasks();
            Ok::<(), Error>(())
        })?;
        core.volume.pool.detach()?;
        // Everything is durable: an image of a member as it was before is known from now on.
        if let Err(error) = core.volume.pool.count_up(core.me) {
            tracing::warn!(%error, "event counts stay as they are");
        }
        core.volume.pool.record(EventKind::Unmount, None, "the node leaves");
        core.volume.pool.settle_history(HISTORY_PATIENCE);
        if let Some(cluster) = &core.cluster {
            cluster.leave()?;
        }
        // Nobody fences a node that has left.
        core.volume.pool.check_given_up()?;
        self.membership.leave()?;
        if let Some(cluster) = &core.cluster {
            cluster.end();
        }
        core.withdrawn.set("unmounted".into()).ok();
        Ok(())
    }

    /// Passes a result through; what fails with an error that `left` accepts is left to others.
    fn for_later(&self, done: Result<()>, left: impl Fn(&Error) -> bool) -> Result<()> {
        match done {
            Err(e) if left(&e) => {
                tracing::warn!("left for later: {e}");
                if e.is_of_one_group() {
                    self.left_for_later.lock().push(e.to_string());
                }
                Ok(())
            }
            done => done,
        }
    }

    /// See [`crate::Fs::left_for_later`].
    pub fn left_for_later(&self) -> Vec<String> {
        self.left_for_later.lock().clone()
    }

    /// Other nodes that have the file system mounted, as far as is known: dead ones too.
    pub fn others(&self) -> usize {
        let me = self.core.me.slot;
        let there = |n: &&NodeView| n.state != SlotState::Free && n.life.slot != me;
        self.membership.nodes().iter().filter(there).count()
    }

    /// See [`crate::Fs::has_silent_neighbour`].
    pub fn has_silent_neighbour(&self) -> bool {
        let me = self.core.me;
        let silent = |n: &NodeView| n.last_beat.is_none_or(|since| since > n.timing.seen_within());
        let here = |n: &NodeView| n.life != me && n.fence == FenceMethod::Kernel;
        self.membership.nodes().iter().any(|n| here(n) && silent(n))
    }

    /// See [`crate::Fs::stuck`].
    pub fn stuck(&self) -> Vec<NodeView> {
        let me = self.core.me;
        let there = |n: &NodeView| n.stuck.is_some() && n.beating && n.life != me;
        self.membership.nodes().into_iter().filter(there).collect()
    }

    /// See [`crate::Fs::waits`].
    pub fn waits(&self) -> Vec<NodeWait> {
        self.membership.waits()
    }

    /// See [`crate::Fs::vouch_dead`].
    pub fn vouch(&self, slot: NodeId) -> Result<()> {
        Ok(self.membership.vouch(slot).map(drop)?)
    }

    /// Locks, for people: the hottest, or those that are waited for and then the others.
    pub fn locks(&self, hot: bool, most: usize) -> Vec<NamedLock> {
        let manager = &self.core.locks;
        let mut all = manager.snapshot();
        if hot {
            let hottest = manager.hottest(most);
            let rank = |lock: LockNo| hottest.iter().position(|h| h.0 == lock);
            let there: Vec<LockNo> = all.iter().map(|v| v.lock).collect();
            all.retain(|v| rank(v.lock).is_some());
            // Not here any more.
            let gone = hottest.iter().filter(|h| !there.contains(&h.0));
            all.extend(gone.map(|(lock, count)| GlockView::gone(*lock, *count)));
            all.sort_by_key(|v| rank(v.lock));
        } else {
            let busy = |v: &GlockView| v.waiting > 0 || v.demoting.is_some();
            all.sort_by_key(|v| (!busy(v), v.users == 0, std::cmp::Reverse(v.hand_overs), v.lock));
        }
        all.truncate(most);
        all.into_iter().map(|view| self.named(view)).collect()
    }
    fn named(&self, view: GlockView) -> NamedLock {
        NamedLock { of: self.core.volume.name_of(view.lock), view }
    }

    /// One lock of this node, if it is in memory.
    pub fn lock(&self, lock: LockNo) -> Option<NamedLock> {
        self.core.locks.view(lock).map(|view| self.named(view))
    }

    /// For status displays.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            slot: self.core.me.slot,
            mount_point: self.core.options.mount_point.clone(),
            nodes: self.membership.nodes(),
            locks: self.core.locks.stats(),
            locks_held: self.core.locks.count(),
            inodes: self.core.inodes.len(),
            open_files: self.core.handles.len(),
            metadata: self.core.meta.stats(),
            dirty: self.core.dirty.bytes(),
            recovered: self.recoverer.recovered.load(Ordering::Relaxed),
            damaged: self.core.meta.damages.all(),
        }
    }
}

/// Joins, but not while the pool is frozen: whoever has frozen it does not know this node.
fn join_thawed(
    nodes: Arc<dyn NodeStore>,
    join: JoinOptions,
    recoverer: &Arc<Recoverer>,
) -> Result<Arc<Membership>> {
    nodes.check_not_copies().map_err(LockError::NodeStore)?;
    // It may take over a dead node's slot, and write what that one had begun.
    await_thaw(&*nodes)?;
    let membership = Membership::join(nodes, join, recoverer.clone())?;
    // Whoever freezes the pool from now on sees this node, and waits for its answer.
    membership.await_thaw()?;
    membership.remember_heartbeat();
    Ok(membership)
}

/// Does `work`, and calls `late` if it has not ended after `time`.
fn unless_done_in<T>(time: Duration, late: &(dyn Fn() + Sync), work: impl FnOnce() -> T) -> T {
    while_late((time, Duration::MAX), late, work)
}

/// Does `work`, and calls `late` if it has not ended after a time, and then after each second time.
fn while_late<T>(
    (first, again): (Duration, Duration),
    late: &(dyn Fn() + Sync),
    work: impl FnOnce() -> T,
) -> T {
    let (working, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let timer = move || {
            let mut time = first;
            while ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                late();
                time = again;
            }
        };
        let timer = std::thread::Builder::new().name("leave".into()).spawn_scoped(scope, timer);
        if let Err(error) = timer {
            tracing::warn!(%error, "cannot start a thread: leaving waits for other nodes without a bound");
        }
        let done = work();
        drop(working);
        done
    })
}

/// Has the kernel's caches dropped when the lease ends.
struct KernelLease(Arc<dyn KernelCache>);

impl OnLease for KernelLease {
    fn over(&self, for_good: bool, within: Duration, patience: Duration) {
        self.0.suspend(for_good, within, patience);
    }
    fn regained(&self) {
        self.0.resume();
    }
}

/// Hints by way of the store of the locks, if it carries any.
fn watch_hints(volume: &Volume, membership: &Arc<Membership>) -> Option<HintWatch> {
    let store = volume.external_store.as_ref()?;
    let to = Arc::downgrade(membership);
    let on_hint = Box::new(move |lock, hint| {
        if let Some(membership) = to.upgrade() {
            membership.hint_came(lock, &hint);
        }
    });
    let watch = store.etcd.watch_hints(membership.me(), on_hint);
    watch.inspect_err(|e| tracing::error!("cannot start a thread, locks are polled: {e}")).ok()
}

/// Maintenance is done by the node in the lowest slot. Two may think so for a moment when nodes come and go:
/// work is then done twice, and nothing else.
impl MaintenancePeers for Weak<Membership> {
    fn turn(&self) -> bool {
        let Some(membership) = self.upgrade() else { return false };
        let lives = membership.nodes().into_iter();
        let mut lives = lives.filter(|n| n.state == SlotState::Active && n.beating);
        lives.all(|n| n.life.slot >= membership.me().slot)
    }
    fn publish_stuck(&self, stuck: Option<(MemberIndex, EpochTag)>) {
        if let Some(membership) = self.upgrade() {
            membership.publish_stuck(stuck);
        }
    }
}

/// The nodes in the slot table, without joining.
pub(crate) fn nodes(volume: &Volume) -> Result<Vec<NodeView>> {
    let areas = volume.node_areas()?;
    let store = volume.node_store(areas);
    let packed = store.read_slots().map_err(LockError::NodeStore)?;
    let (mut nodes, places) = (Vec::new(), store.lock_places());
    for (n, sector) in (0..areas.node_slots).zip(packed.chunks_exact(store.sector_len())) {
        let slot = NodeId(n);
        let record = match SlotRecord::decode(sector, slot) {
            Ok(record) => record,
            Err(why) => {
                nodes.push(NodeView::unreadable(slot, why));
                continue;
            }
        };
        if record.state != SlotState::Free {
            let locked = store.life_locked(slot).map_err(LockError::NodeStore)?;
            nodes.push(NodeView::of_slot(&record, locked, &places));
        }
    }
    Ok(nodes)
}

/// Takes all members of `pool` as they are, although some were put back from an old image: a person has
/// said so. `pool` is from [`Pool::assemble_as_they_are`].
///
/// # Errors
/// A node has the pool mounted; a device failed.
pub fn accept_members(pool: Pool) -> Result<()> {
    accept_members_of(&Volume::open(pool)?)
}

/// Ends a pool: the labels of all members are wiped ([`Pool::destroy`]). Contents stay where they are.
///
/// # Errors
/// A node has the pool mounted, or may have; its file system cannot be read, so nobody can tell. Nothing was
/// changed then.
pub fn destroy(pool: Pool) -> Result<braid_pool::Destroyed> {
    destroy_of(&Volume::open(pool)?)
}

/// Gives a pool another name ([`Pool::rename`]).
///
/// # Errors
/// A node has the pool mounted, or may have; no pool may be called so; a device failed.
pub fn rename(pool: Pool, name: &str) -> Result<()> {
    let volume = Volume::open(pool)?;
    let _claimed = crate::exclusive_use::claim(&volume)?;
    volume.confirm_identity()?;
    let _taken_over = volume.pool.take_over()?;
    Ok(volume.pool.rename(name)?)
}

/// From now on the members that a pool was opened without count as lost, for all nodes.
pub(crate) fn count_as_lost(volume: &Volume) -> Result<()> {
    volume.may_change()?;
    let _claimed = crate::exclusive_use::claim(volume)?;
    volume.confirm_identity()?;
    let _taken_over = volume.pool.take_over()?;
    Ok(volume.pool.commit_degraded()?)
}

pub(crate) fn accept_members_of(volume: &Volume) -> Result<()> {
    volume.may_change()?;
    let _claimed = crate::exclusive_use::claim(volume)?;
    volume.confirm_identity()?;
    Ok(volume.pool.accept_members()?)
}

pub(crate) fn destroy_of(volume: &Volume) -> Result<braid_pool::Destroyed> {
    let _claimed = crate::exclusive_use::claim(volume)?;
    volume.confirm_identity()?;
    Ok(volume.pool.destroy()?)
}

/// Frees the slot of `life`, a node of this process that has withdrawn and is unmounted, by way of
/// a new life in that slot: it recovers the old one as any other node would. `options`: of the old
/// life. Whether the slot was still the old life's; if not, the node that has fenced it frees it.
///
/// # Errors
/// As [`crate::Fs::mount`]; the slot then stays to be recovered by the next node.
pub fn give_slot_back(pool: Pool, life: Life, options: MountOptions) -> Result<bool> {
    let lives = nodes(&Volume::open(pool.clone())?)?;
    if !lives.iter().any(|n| n.life == life && n.state == SlotState::Active) {
        return Ok(false);
    }
    let options = MountOptions { slot: Some(life.slot), ..options };
    let mounted = Mounted::new(pool, options, Arc::new(NoKernelCache))?;
    mounted.unmount(&|_| ())?;
    Ok(true)
}

/// Notes in a node's slot that its host is off, by a person's word: see [`braid_lock::vouch`]. The
/// pool need not be mounted on this host. The method is reported: a fence by reservation is a proof
/// of its own.
///
/// # Errors
/// The node shows signs of life, or is of this host; no file system on the pool; a device failed.
pub fn vouch_dead(pool: Pool, slot: NodeId) -> Result<braid_lock::FenceMethod> {
    let volume = Volume::open(pool)?;
    let store = volume.node_store(volume.node_areas()?);
    Ok(braid_lock::vouch(&*store, slot)?)
}
