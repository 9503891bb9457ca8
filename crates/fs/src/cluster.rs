//! What the pool must know of the other nodes: who lives and uses which epoch, and locks on its
//! regions.
//!
//! Region locks are named locks of the file system with a manager of their own: they lie below all
//! others. The flush of an inode's lock may wait for a region; giving a region up waits for
//! nothing but devices. With the same demoters the two could wait for each other in a circle.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use braid_format::lock_record::LockRecord;
use braid_format::node::{RawHeartbeat, SlotRecord, SlotState};
use braid_format::superblock::RawSuperblock;
use braid_format::{LockNo, NodeId};
use braid_lock::{
    DemoteFailed, Demoted, DeviceStore, GlockOps, Guard, JoinOptions, Liveness, Local, LockError,
    LockManager, LockStore, ManagerOptions, Me, Membership, Mode, NodeStore, Onlooker, Peers,
    PoolNodes,
};
use braid_pool::{EpochTag, HeldRegions, Hold, Others, Pool, PoolError, RegionLocks};
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::volume::Volume;

/// How often who waits for a recovery looks whether this node has withdrawn.
const AWAIT: Duration = Duration::from_millis(100);

/// This node's place among those that use the pool. It lives as long as the node is a member; what
/// it holds of itself in circles is let go by [`Cluster::end`].
pub(crate) struct Cluster {
    pool: Pool,
    me: Me,
    nodes: Arc<PoolNodes>,
    onlooker: Onlooker,
    /// First region lock, and from one to the next.
    first: LockNo,
    stride: u64,
    count: u64,
    store: DeviceStore,
    membership: OnceLock<Weak<Membership>>,
    /// What is done before this node says that it uses another epoch.
    adopted: OnceLock<Box<dyn Fn() + Send + Sync>>,
    manager: Mutex<Option<Arc<LockManager>>>,
    /// Slots whose dead lives this node recovers: what they hold of regions counts for nothing
    /// here.
    recovering: Mutex<Vec<(NodeId, ThreadId)>>,
    /// A recovery has ended.
    recovered: Condvar,
}

impl Cluster {
    /// Makes the pool of `volume` one that `me` shares with others; `None` where there can be none.
    pub fn join(
        volume: &Volume,
        nodes: &Arc<PoolNodes>,
        options: &JoinOptions,
        me: Me,
    ) -> Result<Option<Arc<Self>>> {
        let sb = &volume.sb;
        let count = u64::from(sb.named_count.get() - RawSuperblock::NAMED_COUNT);
        if sb.node_slots.get() < 2 || count == 0 {
            return Ok(None);
        }
        let pool = volume.pool.clone();
        let store = DeviceStore::new(pool.clone(), volume.geo.block_size, volume.geo.lock_sector);
        let this = Arc::new(Self {
            onlooker: Onlooker::new(nodes.clone(), me, options),
            nodes: nodes.clone(),
            first: volume.named(u64::from(RawSuperblock::NAMED_COUNT)),
            stride: volume.geo.slot_blocks(),
            membership: OnceLock::new(),
            adopted: OnceLock::new(),
            manager: Mutex::default(),
            recovering: Mutex::default(),
            recovered: Condvar::new(),
            pool,
            me,
            count,
            store,
        });
        let store = Arc::new(this.store.clone());
        let options = ManagerOptions { demoters: 2, ..ManagerOptions::default() };
        let manager = LockManager::new(me, store, this.clone(), this.clone(), options)?;
        *this.manager.lock() = Some(manager);
        this.pool.share(this.clone(), this.clone());
        Ok(Some(this))
    }

    /// Who this node is.
    pub fn me(&self) -> Me {
        self.me
    }

    /// From now on hints come, and others hear of this node's epoch.
    pub fn attach(&self, membership: &Arc<Membership>) {
        self.membership.set(Arc::downgrade(membership)).ok();
        if let Some(manager) = &*self.manager.lock() {
            membership.attach_regions(self.range(), manager);
        }
    }

    /// Says what is done before this node says that it uses another epoch. It takes no lock.
    pub fn on_epoch(&self, adopted: Box<dyn Fn() + Send + Sync>) {
        self.adopted.set(adopted).ok();
    }

    /// What happens while dead lives of `slot` count for nothing in region locks.
    pub fn recovering<T>(&self, slot: NodeId, work: impl FnOnce() -> T) -> T {
        self.recovering.lock().push((slot, std::thread::current().id()));
        if let Some(manager) = &*self.manager.lock() {
            manager.node_gone();
        }
        let result = work();
        self.recovering.lock().retain(|s| s.0 != slot);
        self.recovered.notify_all();
        result
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

    /// Nobody gets a region any more, and nobody waits for one or for an epoch.
    pub fn withdraw(&self) {
        if let Some(manager) = &*self.manager.lock() {
            manager.withdraw();
        }
    }

    /// Whether it has withdrawn, of itself or told to.
    pub fn has_withdrawn(&self) -> bool {
        self.manager.lock().as_ref().is_none_or(|m| m.has_withdrawn())
    }

    /// This node uses the pool no more.
    pub fn end(&self) {
        self.pool.unshare();
        if let Some(manager) = self.manager.lock().take()
            && !manager.has_withdrawn()
        {
            manager.drop_idle(0);
        }
    }

    fn range(&self) -> Range<LockNo> {
        self.first..LockNo(self.first.0 + self.count * self.stride)
    }

    fn lock(&self, n: u64) -> LockNo {
        LockNo(self.first.0 + n * self.stride)
    }

    fn membership(&self) -> Option<Arc<Membership>> {
        self.membership.get()?.upgrade()
    }
}

fn pool_error(error: Error) -> PoolError {
    PoolError::Regions { source: Arc::new(error) }
}

impl RegionLocks for Cluster {
    fn count(&self) -> u64 {
        self.count
    }

    fn hold(&self, locks: &[(u64, Hold)]) -> std::result::Result<HeldRegions, PoolError> {
        loop {
            self.await_recoveries()?;
            let held = self.take(locks)?;
            // One that a dead life held may have come to this thread just as its recovery began.
            if !self.others_recover() {
                return Ok(Box::new(held));
            }
        }
    }

    fn of_dead(&self, slot: u16) -> std::result::Result<Vec<u64>, PoolError> {
        self.named_by(slot)
    }
}

impl Cluster {
    fn is_recovering(&self, slot: NodeId) -> bool {
        self.recovering.lock().iter().any(|r| r.0 == slot)
    }

    /// Whether another thread of this node recovers a slot.
    fn others_recover(&self) -> bool {
        let me = std::thread::current().id();
        let recovering = self.recovering.lock();
        !recovering.is_empty() && recovering.iter().all(|r| r.1 != me)
    }

    /// What dead lives hold counts for nothing while they are recovered, and only the recoverer may
    /// take it: it may have to write there first.
    fn await_recoveries(&self) -> std::result::Result<(), PoolError> {
        let me = std::thread::current().id();
        let mut recovering = self.recovering.lock();
        while recovering.iter().all(|r| r.1 != me) && !recovering.is_empty() {
            self.recovered.wait_for(&mut recovering, AWAIT);
            if self.has_withdrawn() {
                return Err(PoolError::Closed);
            }
        }
        Ok(())
    }

    /// Takes all locks, and waits for none while it holds another: who waits may wait for a dead
    /// node, and whoever recovers that one may want what is held.
    fn take(&self, locks: &[(u64, Hold)]) -> std::result::Result<Vec<Guard>, PoolError> {
        let manager = self.manager.lock().clone().ok_or(PoolError::Closed)?;
        let wanted = locks.iter().map(|(n, hold)| {
            let (mode, local) = match hold {
                Hold::Shared => (Mode::Shared, Local::Shared),
                Hold::Write => (Mode::Exclusive, Local::Shared),
                Hold::Alone => (Mode::Exclusive, Local::Exclusive),
            };
            (self.lock(*n), mode, local)
        });
        let acquire = |(lock, mode, local)| {
            manager.acquire(lock, mode, local).map_err(|e| pool_error(e.into()))
        };
        if locks.len() == 1 {
            return wanted.map(acquire).collect();
        }
        loop {
            let at_once =
                wanted.clone().map(|(l, mode, local)| manager.try_acquire(l, mode, local));
            if let Some(held) = at_once.collect::<Option<Vec<Guard>>>() {
                return Ok(held);
            }
            // One by one, for nothing but to have them here for a while.
            for one in wanted.clone() {
                drop(acquire(one)?);
            }
        }
    }

    /// Locks whose records name another life of `slot`.
    fn named_by(&self, slot: u16) -> std::result::Result<Vec<u64>, PoolError> {
        let mut found = Vec::new();
        for n in 0..self.count {
            let lock = self.lock(n);
            let sector = self
                .store
                .read(lock)
                .map_err(|source| pool_error(Error::Lock(LockError::Store { lock, source })))?;
            let Ok(record) = LockRecord::decode(&sector, lock) else { continue };
            let waiters = record.waiters.iter().map(|w| w.life);
            let mut named = record.holders.iter().copied().chain(waiters);
            if named.any(|l| l.slot.0 == slot && l != self.me) {
                found.push(n);
            }
        }
        Ok(found)
    }
}

impl Others for Cluster {
    fn me(&self) -> Me {
        self.me
    }
    fn is_gone(&self, life: Me) -> bool {
        self.is_recovering(life.slot) && life != self.me || self.onlooker.is_gone(life)
    }
    fn all_use(&self, tag: EpochTag) -> bool {
        self.onlooker.all_use(tag)
    }
    fn announce(&self) {
        if let Some(adopted) = self.adopted.get() {
            adopted();
        }
        if let Some(membership) = self.membership() {
            membership.announce();
        }
    }
    fn has_ended(&self) -> bool {
        self.has_withdrawn()
            || self.membership.get().is_some_and(|m| m.upgrade().is_none_or(|m| m.has_ended()))
    }
}

impl Peers for Cluster {
    /// While a slot is being recovered, so may be what its lives hold: it stands until that is done.
    fn liveness(&self, life: Me) -> Liveness {
        if life == self.me {
            return Liveness::Alive;
        }
        if self.is_recovering(life.slot) {
            return Liveness::Dead;
        }
        let sector = self.nodes.read_slot(life.slot);
        let Some(record) = sector.ok().and_then(|s| SlotRecord::decode(&s, life.slot).ok()) else {
            return Liveness::Alive;
        };
        let replayed = record.damage.is_some_and(|d| d.replayed);
        let earlier = life.incarnation < record.life.incarnation;
        match record.state {
            _ if earlier => Liveness::Dead,
            // A later life may be joining, and this copy of the slot be of before.
            SlotState::Free if life.incarnation == record.life.incarnation => Liveness::Dead,
            SlotState::Recovering if replayed => Liveness::Dead,
            _ => Liveness::Alive,
        }
    }
    fn hint(&self, to: Me, lock: LockNo, hint: braid_lock::Hint) {
        if let Some(membership) = self.membership() {
            membership.hint(to, lock, hint);
        }
    }
}

impl GlockOps for Cluster {
    fn demote(
        &self,
        lock: LockNo,
        from: Mode,
        _: Mode,
    ) -> std::result::Result<Demoted, DemoteFailed> {
        if from == Mode::Exclusive
            && let Err(error) = self.pool.give_up_regions()
        {
            tracing::error!(%lock, %error, "a region cannot be given up");
            return Err(DemoteFailed);
        }
        Ok(Demoted::default())
    }
}

#[cfg(test)]
mod tests;
