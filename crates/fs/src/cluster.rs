//! What the pool must know of the other nodes: which are alive, which epoch they use, and locks on
//! its regions.
//!
//! Region locks are named locks of the file system with a manager of their own: they lie below all
//! others. The flush of an inode's lock may wait for a region; giving a region up waits for
//! nothing but devices. With the same demoters the two could wait for each other in a circle.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use braid_format::features::Features;
use braid_format::lock_record::LockRecord;
use braid_format::node::{RawHeartbeat, SlotRecord, SlotState};
use braid_format::superblock::RawSuperblock;
use braid_format::{LockNo, NodeId};
use braid_lock::{
    DemoteFailed, Demoted, Demoting, GlockOps, Guard, JoinOptions, Life, Liveness, Local,
    LockError, LockManager, LockStore, ManagerOptions, Membership, Mode, NodeStore, PeerObserver,
    Peers, simulation,
};
use braid_pool::{EpochTag, HeldRegions, Others, Pool, PoolError, RegionHold, RegionLocks};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::volume::Volume;

/// A node that joins waits for so many beats for what a dead one holds that nobody recovers: 5 s, usually. Nodes
/// that live claim one within a second or two.
const UNCLAIMED_FOR: u32 = 20;

/// What is other than usual in simulations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Most regions that have locks of their own.
    pub regions: u64,
    /// [`UNCLAIMED_FOR`]; `None`: without an end.
    pub unclaimed_for: Option<u32>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { regions: u64::MAX, unclaimed_for: Some(UNCLAIMED_FOR) }
    }
}

/// A node that has joined, as its pool's locks need it: [`Membership`].
pub(crate) trait Joined: Send + Sync {
    /// The other nodes should learn soon which epoch this one uses.
    fn announce(&self);
    /// It is over.
    fn has_ended(&self) -> bool;
    /// Sends a hint about a region.
    fn hint(&self, to: Life, lock: LockNo, hint: &braid_lock::Hint);
    /// Whether hints reach that node.
    fn reaches(&self, life: Life) -> bool;
}

impl Joined for Weak<Membership> {
    fn announce(&self) {
        if let Some(membership) = self.upgrade() {
            membership.announce();
        }
    }
    fn has_ended(&self) -> bool {
        self.upgrade().is_none_or(|membership| membership.has_ended())
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &braid_lock::Hint) {
        if let Some(membership) = self.upgrade() {
            membership.hint(to, lock, hint);
        }
    }
    fn reaches(&self, life: Life) -> bool {
        self.upgrade().is_some_and(|membership| membership.reaches(life))
    }
}

/// The redundancy log of a slot that is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    InUse,
    Empty,
}

/// This node's place among those that use the pool. It lives as long as the node is a member; what
/// it holds of itself in circles is let go by [`Cluster::end`].
pub(crate) struct Cluster {
    pool: Pool,
    me: Life,
    nodes: Arc<dyn NodeStore>,
    peer_observer: PeerObserver,
    /// Held while a dead node's log is recovered.
    recovery: LockNo,
    /// First region lock, and from one to the next.
    first: LockNo,
    stride: u64,
    count: u64,
    store: Arc<dyn LockStore>,
    /// Once it has joined.
    joined: OnceLock<Box<dyn Joined>>,
    /// For how long it waits for what a dead node holds that nobody recovers, while it joins.
    unclaimed_for: Option<std::time::Duration>,
    /// What is done before this node says that it uses another epoch.
    adopted: OnceLock<Box<dyn Fn() + Send + Sync>>,
    manager: Mutex<Option<Arc<LockManager>>>,
    /// Slots whose dead lives this node recovers, and their logs.
    recovering: Mutex<Vec<(NodeId, Log)>>,
    /// This node leaves: its recoveries wait for nobody any more.
    gives_up: AtomicBool,
    /// Exclusive locks of regions granted so far.
    grants: AtomicU64,
}

impl Cluster {
    /// Makes the pool of `volume` one that `me` shares with others; `None` where there can be none.
    pub fn join(
        volume: &Volume,
        nodes: &Arc<dyn NodeStore>,
        options: &JoinOptions,
        me: Life,
        bounds: Bounds,
    ) -> Result<Option<Arc<Self>>> {
        let sb = &volume.sb;
        let count = u64::from(sb.named_count.get() - RawSuperblock::NAMED_COUNT);
        let count = count.min(bounds.regions);
        if sb.node_slots.get() < 2 || count == 0 {
            return Ok(None);
        }
        let pool = volume.pool.clone();
        let store = volume.lock_store(Some(me));
        let this = Arc::new(Self {
            peer_observer: PeerObserver::new(nodes.clone(), me, options),
            nodes: nodes.clone(),
            recovery: volume.named(RawSuperblock::NAMED_RECOVERY),
            first: volume.named(u64::from(RawSuperblock::NAMED_COUNT)),
            stride: volume.geo.slot_blocks(),
            joined: OnceLock::new(),
            unclaimed_for: bounds.unclaimed_for.map(|beats| options.timing.beat() * beats),
            adopted: OnceLock::new(),
            manager: Mutex::default(),
            recovering: Mutex::default(),
            gives_up: AtomicBool::new(false),
            grants: AtomicU64::new(0),
            pool,
            me,
            count,
            store,
        });
        let store = this.store.clone();
        let options = ManagerOptions {
            demoters: 2,
            // What is under way on the devices is seen through.
            interruptible: false,
            ..volume.manager_options()
        };
        let manager = LockManager::new(me, store, this.clone(), this.clone(), options)?;
        *this.manager.lock() = Some(manager);
        this.pool.share(this.clone(), this.clone());
        Ok(Some(this))
    }

    /// Who this node is.
    pub fn me(&self) -> Life {
        self.me
    }

    /// From now on hints come, and other nodes learn this node's epoch.
    pub fn attach(&self, membership: &Arc<Membership>) {
        self.has_joined(Box::new(Arc::downgrade(membership)));
        if let Some(manager) = &*self.manager.lock() {
            membership.attach_regions(self.range(), manager);
        }
    }

    /// It has joined.
    pub fn has_joined(&self, joined: Box<dyn Joined>) {
        self.joined.set(joined).ok();
    }

    /// Says what is done before this node says that it uses another epoch. It takes no lock.
    pub fn on_epoch(&self, adopted: Box<dyn Fn() + Send + Sync>) {
        self.adopted.set(adopted).ok();
    }

    /// Recovers the redundancy log of the dead lives of `slot` by `work`. If that log is not empty,
    /// only one recovery at a time works. It takes the lock of recoveries, and gives it up at the
    /// end, so that nobody waits for a holder that died after its work.
    ///
    /// What they hold exclusively stays held until the log is empty: nobody else may write there
    /// before. Their other holds, and their places in queues, are ignored from now on. At the end
    /// they hold no region, because the slot may stay as it is for a long time.
    ///
    /// An empty log is recovered without waiting for any lock. Otherwise this may wait for what a node
    /// holds that lives, or is silent and not fenced yet: the watcher fences that one meanwhile.
    pub fn recover<T>(
        &self,
        slot: NodeId,
        work: impl FnOnce() -> std::result::Result<T, PoolError>,
    ) -> std::result::Result<T, PoolError> {
        let manager = self.manager()?;
        let alone = if self.pool.is_log_empty(slot.get())? {
            None
        } else {
            let cancelled = || self.gives_up.load(Ordering::Acquire);
            let (lock, mode, local) = (self.recovery, Mode::Exclusive, Local::Exclusive);
            let alone =
                manager.acquire_unless(lock, mode, local, &cancelled).map_err(lock_error)?;
            Some(alone.ok_or_else(|| lock_error(LockError::Interrupted))?)
        };
        self.note(slot, Some(Log::InUse));
        let done = work().and_then(|whole| {
            self.note(slot, Some(Log::Empty));
            self.forget(slot)?;
            Ok(whole)
        });
        self.note(slot, None);
        if alone.is_some() {
            drop(alone);
            manager.release(self.recovery);
        }
        done
    }

    /// Threads that wait for what the slot's dead lives hold look again.
    fn note(&self, slot: NodeId, log: Option<Log>) {
        let mut recovering = self.recovering.lock();
        recovering.retain(|r| r.0 != slot);
        recovering.extend(log.map(|log| (slot, log)));
        drop(recovering);
        if let Some(manager) = &*self.manager.lock() {
            manager.node_gone();
        }
    }

    /// The log of a dead life that this node recovers.
    fn log_of(&self, dead: Life) -> Option<Log> {
        let recovering = self.recovering.lock();
        recovering.iter().find(|r| r.0 == dead.slot && dead != self.me).map(|r| r.1)
    }

    /// Gives every region up: nothing is under way.
    pub fn leave(&self) -> Result<()> {
        let manager = self.manager.lock().clone();
        manager.map_or(Ok(()), |m| Ok(m.shutdown()?))
    }

    /// What threads of this node have waited for longest.
    pub fn wishes(&self) -> Vec<(LockNo, Mode)> {
        let manager = self.manager.lock().clone();
        manager.map_or_else(Vec::new, |m| m.wishes(RawHeartbeat::WISHES))
    }

    /// Another node waits for a lock; nothing if it is none of these.
    pub fn wished(&self, lock: LockNo, mode: Mode, overdue: bool) {
        let manager = self.manager.lock().clone().filter(|_| self.range().contains(&lock));
        if let Some(manager) = manager {
            manager.heartbeat_wish(lock, mode, overdue);
        }
    }

    /// From now on no thread gets a region, or waits for one or for an epoch.
    pub fn withdraw(&self) {
        if let Some(manager) = &*self.manager.lock() {
            manager.withdraw();
        }
    }

    /// Whether it has withdrawn, by itself or because it was told to.
    pub fn has_withdrawn(&self) -> bool {
        self.manager.lock().as_ref().is_none_or(|m| m.has_withdrawn())
    }

    /// This node no longer uses the pool.
    pub fn end(&self) {
        self.pool.unshare();
        if let Some(manager) = self.manager.lock().take()
            && !manager.has_withdrawn()
        {
            manager.drop_idle(0);
        }
    }

    fn range(&self) -> Range<LockNo> {
        self.recovery..LockNo(self.first.0 + self.count * self.stride)
    }

    fn lock(&self, n: u64) -> LockNo {
        LockNo(self.first.0 + n * self.stride)
    }
}

fn pool_error(error: Error) -> PoolError {
    PoolError::Regions { source: Arc::new(error) }
}

impl RegionLocks for Cluster {
    fn grants(&self) -> u64 {
        self.grants.load(Ordering::Acquire)
    }
    fn count(&self) -> u64 {
        self.count
    }

    /// Waits for no lock while it holds another. The wait may be for a dead node, and the node that
    /// recovers that one may want what is held. A node that joins does not wait without end for a dead one
    /// that nobody recovers ([`Cluster::acquire`]). What a thread is told to do no more, or a node that leaves, does
    /// not wait without end either ([`braid_pool::BreakOff`]).
    fn hold(&self, locks: &[(u64, RegionHold)]) -> std::result::Result<HeldRegions, PoolError> {
        let manager = self.manager()?;
        if let [(n, hold)] = locks {
            let (lock, mode, local) = self.request(*n, *hold);
            return Ok(Box::new(self.acquire(&manager, lock, mode, local)?));
        }
        loop {
            let at_once = locks.iter().map(|(n, hold)| {
                let (lock, mode, local) = self.request(*n, *hold);
                manager.try_acquire(lock, mode, local)
            });
            if let Some(held) = at_once.collect::<Option<Vec<Guard>>>() {
                return Ok(Box::new(held));
            }
            // One by one, for nothing but to have them here for a while.
            for (n, hold) in locks {
                let (lock, mode, local) = self.request(*n, *hold);
                drop(self.acquire(&manager, lock, mode, local)?);
            }
        }
    }

    /// Waits for what the living hold only; they hold nothing while they wait.
    fn hold_to_recover(
        &self,
        locks: &[(u64, RegionHold)],
    ) -> std::result::Result<HeldRegions, PoolError> {
        let manager = self.manager()?;
        let mut held = Vec::with_capacity(locks.len());
        for (n, hold) in locks {
            let (lock, mode, local) = self.request(*n, *hold);
            if self.is_kept_by_dead(lock)? {
                continue;
            }
            let asked = Asked::default();
            let of_dead = || asked.note(self.is_kept_by_dead_or_cancelled(lock));
            let guard = manager.acquire_unless(lock, mode, local, &of_dead).map_err(lock_error)?;
            asked.answered()?;
            held.extend(guard);
        }
        Ok(Box::new(held))
    }
}

/// Called while a lock is waited for. If it fails, the wait makes no sense either.
#[derive(Default)]
struct Asked(Cell<Option<PoolError>>);

impl Asked {
    fn note(&self, found: std::result::Result<bool, PoolError>) -> bool {
        found.unwrap_or_else(|error| {
            self.0.set(Some(error));
            true
        })
    }
    fn answered(self) -> std::result::Result<(), PoolError> {
        self.0.into_inner().map_or(Ok(()), Err)
    }
}

fn lock_error(error: LockError) -> PoolError {
    pool_error(error.into())
}

impl Cluster {
    /// Whether this node has its place among the others; before that it joins.
    pub fn is_member(&self) -> bool {
        self.joined.get().is_some()
    }

    /// The manager of the locks of regions.
    ///
    /// # Errors
    /// This node no longer uses the pool.
    pub fn manager(&self) -> std::result::Result<Arc<LockManager>, PoolError> {
        self.manager.lock().clone().ok_or(PoolError::Closed)
    }

    /// Takes the lock of a region. A node that joins has no watcher, and recovers no node but the one whose
    /// slot it takes: if another dead one that nobody recovers keeps the region for a while, it gives up, and
    /// tries another slot. That one's log is then recovered first.
    fn acquire(
        &self,
        manager: &Arc<LockManager>,
        lock: LockNo,
        mode: Mode,
        local: Local,
    ) -> std::result::Result<Guard, PoolError> {
        let wait = self.pool.others_wait();
        if self.is_member() {
            let guard = manager.acquire_unless(lock, mode, local, &|| wait.is_over());
            return guard.map_err(lock_error)?.ok_or(PoolError::BrokenOff);
        }
        let (asked, since) = (Asked::default(), Cell::new(None::<Instant>));
        let is_cancelled = || {
            if wait.is_over() {
                return asked.note(Err(PoolError::BrokenOff));
            }
            let keeper = match self.unclaimed_keeper(lock) {
                Ok(keeper) => keeper,
                Err(error) => return asked.note(Err(error)),
            };
            let now = simulation::now();
            since.set(keeper.map(|_| since.get().unwrap_or(now)));
            let so_long = since.get().map(|since| now.saturating_duration_since(since));
            let too_long =
                so_long.zip(self.unclaimed_for).is_some_and(|(so_long, most)| so_long > most);
            let node = keeper.filter(|_| too_long).map(|keeper| keeper.slot);
            asked.note(
                node.map_or(Ok(false), |node| Err(lock_error(LockError::KeptByDead { node }))),
            )
        };
        let guard = manager.acquire_unless(lock, mode, local, &is_cancelled).map_err(lock_error)?;
        asked.answered()?;
        guard.ok_or_else(|| lock_error(LockError::GivenUp))
    }

    /// A dead life that holds a lock exclusively and that no living node has claimed.
    fn unclaimed_keeper(&self, lock: LockNo) -> std::result::Result<Option<Life>, PoolError> {
        let unclaimed = |life: &Life| {
            let by = self.slot(life.slot).and_then(|slot| slot.recoverer);
            by.is_none_or(|by| by != self.me && self.peer_observer.is_gone(by))
        };
        Ok(self.dead_keepers(lock)?.into_iter().find(unclaimed))
    }

    fn request(&self, n: u64, hold: RegionHold) -> (LockNo, Mode, Local) {
        let (mode, local) = match hold {
            RegionHold::Shared => (Mode::Shared, Local::Shared),
            RegionHold::Write => (Mode::Exclusive, Local::Shared),
            RegionHold::Alone => (Mode::Exclusive, Local::Exclusive),
        };
        (self.lock(n), mode, local)
    }

    fn record(&self, lock: LockNo) -> std::result::Result<Option<LockRecord>, PoolError> {
        let sector = self
            .store
            .read(lock)
            .map_err(|source| lock_error(LockError::Store { lock, source }))?;
        // A damaged record delays nobody here: a thread that wants the lock reports it.
        Ok(LockRecord::decode(&sector, lock).ok())
    }

    /// Whether a dead life, of the slot that is recovered or of another, holds a lock exclusively.
    /// Then its log must be replayed on those bytes before anything else.
    fn is_kept_by_dead(&self, lock: LockNo) -> std::result::Result<bool, PoolError> {
        Ok(!self.dead_keepers(lock)?.is_empty())
    }

    /// The dead lives that hold a lock exclusively, because of their logs.
    fn dead_keepers(&self, lock: LockNo) -> std::result::Result<Vec<Life>, PoolError> {
        let record = self.record(lock)?.filter(|record| record.mode == Mode::Exclusive);
        let unrecovered = |life: &Life| match self.log_of(*life) {
            Some(log) => log == Log::InUse,
            None => *life != self.me && self.is_unrecovered(*life),
        };
        let holders = record.map(|record| record.holders).unwrap_or_default();
        Ok(holders.into_iter().filter(unrecovered).collect())
    }

    /// The same, for a thread that waits; an error once this node gives recoveries up.
    fn is_kept_by_dead_or_cancelled(&self, lock: LockNo) -> std::result::Result<bool, PoolError> {
        if self.gives_up.load(Ordering::Acquire) {
            return Err(lock_error(LockError::Interrupted));
        }
        self.is_kept_by_dead(lock)
    }

    /// From now on recoveries fail that would have to wait for another node: this one leaves.
    pub fn give_recoveries_up(&self) {
        self.gives_up.store(true, Ordering::Release);
    }

    /// Whether a life is gone, and its slot not yet free again.
    fn is_unrecovered(&self, life: Life) -> bool {
        let record = self.slot(life.slot);
        let of_slot =
            |r: SlotRecord| r.state != SlotState::Free && life.incarnation >= r.life.incarnation;
        record.is_some_and(of_slot) && self.peer_observer.is_gone(life)
    }

    /// The dead lives that `by`, of another slot, was recovering, as the slots say.
    ///
    /// # Errors
    /// The slots cannot be read.
    pub fn recovered_by(&self, by: Life) -> std::result::Result<Vec<Life>, PoolError> {
        let mut lives = Vec::new();
        for slot in (0..self.nodes.slots()).map(NodeId).filter(|slot| *slot != by.slot) {
            let read = self.nodes.read_slot(slot);
            let sector = read.map_err(|e| lock_error(LockError::NodeStore(e)))?;
            lives.extend(SlotRecord::decode(&sector, slot).ok().filter(|record| {
                record.state == SlotState::Recovering
                    && record.recoverer == Some(by)
                    && record.life != self.me
            }));
        }
        Ok(lives.into_iter().map(|record| record.life).collect())
    }

    fn slot(&self, slot: NodeId) -> Option<SlotRecord> {
        let sector = self.nodes.read_slot(slot).ok()?;
        SlotRecord::decode(&sector, slot).ok()
    }

    /// No region is held exclusively by a dead life of `slot` any more. Everything else about it in
    /// a record is ignored (see [`Peers::liveness`]). To remove that could mean to wait for the
    /// nodes that are named beside it.
    fn forget(&self, slot: NodeId) -> std::result::Result<(), PoolError> {
        let manager = self.manager()?;
        if !self.pool.info().redundant {
            return Ok(());
        }
        let dead = |life: &Life| life.slot == slot && *life != self.me;
        for lock in (0..self.count).map(|n| self.lock(n)) {
            let names = || -> std::result::Result<bool, PoolError> {
                let Some(record) = self.record(lock)? else { return Ok(false) };
                Ok(record.mode == Mode::Exclusive && record.holders.iter().any(dead))
            };
            if names()? {
                let asked = Asked::default();
                let cancelled = || {
                    asked.note(if self.gives_up.load(Ordering::Acquire) {
                        Err(lock_error(LockError::Interrupted))
                    } else {
                        names().map(|named| !named)
                    })
                };
                manager
                    .acquire_unless(lock, Mode::Shared, Local::Shared, &cancelled)
                    .map_err(lock_error)?;
                asked.answered()?;
            }
        }
        Ok(())
    }
}

impl Others for Cluster {
    fn me(&self) -> Life {
        self.me
    }
    fn is_gone(&self, life: Life) -> bool {
        life != self.me && (self.log_of(life).is_some() || self.peer_observer.is_gone(life))
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        self.peer_observer.all_use(tag)
    }
    fn late(&self, tag: EpochTag) -> Vec<Life> {
        self.peer_observer.late(tag).unwrap_or_default()
    }
    fn who_lacks(&self, features: Features) -> std::result::Result<Vec<NodeId>, PoolError> {
        let who = self.peer_observer.who_lacks(features);
        who.map_err(|error| PoolError::NodesUnasked(Arc::new(error)))
    }
    fn adopt(&self) {
        if let Some(adopted) = self.adopted.get() {
            adopted();
        }
    }
    fn announce(&self) {
        if let Some(joined) = self.joined.get() {
            joined.announce();
        }
    }
    fn has_ended(&self) -> bool {
        self.has_withdrawn()
            || simulation::has_ended()
            || self.joined.get().is_some_and(|joined| joined.has_ended())
    }
}

impl Peers for Cluster {
    fn liveness(&self, lock: LockNo, life: Life) -> Liveness {
        if life == self.me {
            return Liveness::Alive;
        }
        if lock == self.recovery {
            // The node that takes its place begins again what it had begun.
            return if self.is_gone(life) { Liveness::Dead } else { Liveness::Alive };
        }
        match self.log_of(life) {
            // If that is not known, it may.
            Some(Log::InUse) if self.is_kept_by_dead(lock).unwrap_or(true) => {
                return Liveness::Alive;
            }
            Some(Log::InUse | Log::Empty) => return Liveness::Dead,
            None => {}
        }
        // If it is fenced, only an exclusive hold counts, because of its log: a shared hold or a
        // wait does not. If that is not known, it does.
        let nothing = || self.is_gone(life) && !self.is_kept_by_dead(lock).unwrap_or(true);
        if self.peer_observer.is_over(life) || nothing() { Liveness::Dead } else { Liveness::Alive }
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &braid_lock::Hint) {
        if let Some(joined) = self.joined.get() {
            joined.hint(to, lock, hint);
        }
    }
    fn reaches(&self, life: Life) -> bool {
        self.joined.get().is_some_and(|joined| joined.reaches(life))
    }
}

impl GlockOps for Cluster {
    fn granted(&self, lock: LockNo, mode: Mode) {
        if mode == Mode::Exclusive && lock != self.recovery {
            self.grants.fetch_add(1, Ordering::AcqRel);
        }
    }
    fn demote(&self, what: &Demoting<'_>) -> std::result::Result<Demoted, DemoteFailed> {
        let Demoting { lock, from, .. } = *what;
        if from == Mode::Exclusive
            && lock != self.recovery
            && let Err(error) =
                self.pool.give_up_regions().and_then(|()| self.pool.check_given_up())
        {
            tracing::error!(%lock, %error, "a region cannot be given up");
            return Err(DemoteFailed);
        }
        Ok(Demoted::default())
    }
}

#[cfg(test)]
mod tests;
