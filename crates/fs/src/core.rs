//! What all operations share: the layers below, and how locks of inodes are taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::history::EventKind;
use braid_format::{BlockNo, FormatError, InodeNo, LockNo};
use braid_lock::interrupt::is_interrupted;
use braid_lock::{Guard, Held, Life, Liveness, Local, LockError, LockManager, Membership, Mode};

use braid_pool::device::{Change, FreezeGate};

use crate::alloc::Alloc;
use crate::attr::KernelCache;
use crate::cluster::Cluster;
use crate::dirty_files::DirtyFiles;
use crate::error::{Error, Result};
use crate::inflight_writes::InflightWrites;
use crate::inode::{Inode, InodeTable, Locked, load};
use crate::kept::generation_meant;
use crate::meta::Meta;
use crate::options::MountOptions;
use crate::plock_table::bucket::Lives;
use crate::stat_ahead::StatAhead;
use crate::volume::Volume;

/// How long a page fill waits for a demotion to end before it is let in under the lock still held.
const FILL_PATIENCE: Duration = Duration::from_millis(1);

/// How often a change that waits for the thaw looks whether its program was killed.
const THAW_LOOK: Duration = Duration::from_millis(20);

/// How long a node that leaves waits, in all, for locks whose times it would keep.
const TIMES_PATIENCE: Duration = Duration::from_secs(2);

/// A mounted file system's shared parts.
pub(crate) struct Core {
    pub volume: Arc<Volume>,
    pub meta: Arc<Meta>,
    pub alloc: Arc<Alloc>,
    pub locks: Arc<LockManager>,
    /// Where other nodes may use the pool.
    pub cluster: Option<Arc<Cluster>>,
    pub inodes: InodeTable,
    pub handles: crate::handle::Handles,
    pub kernel: Arc<dyn KernelCache>,
    pub options: MountOptions,
    /// Files of this node with contents that are not on the devices yet.
    pub dirty: DirtyFiles,
    /// Its direct writes under way.
    pub inflight: InflightWrites,
    pub stat_ahead: StatAhead,
    pub orphans: crate::orphan_list::Orphans,
    pub plocks: crate::plock_table::Plocks,
    /// This node, in this life.
    pub me: Life,
    pub membership: Arc<Membership>,
    /// For what programs change, and what this node does by itself for them.
    pub freeze: FreezeGate,
    /// First failure, once the node has withdrawn.
    pub withdrawn: OnceLock<Arc<str>>,
    /// Blocks of unused metadata that are space for data again since this node was mounted.
    pub given_back: OnceLock<u64>,
}

impl Core {
    /// Whether a program somewhere uses the inode, or this node's kernel refers to it. Exclusive lock
    /// held.
    pub fn is_in_use(&self, inode: &Locked) -> bool {
        self.is_used_here(&inode.inode) || !inode.guard.openers().is_empty()
    }
    /// Takes an inode's lock and loads its state.
    pub fn lock(&self, ino: InodeNo, mode: Mode, local: Local) -> Result<Locked> {
        self.check_ino(ino)?;
        let guard = self.guard(LockNo::from(ino), mode, local);
        let guard = guard.map_err(|e| self.stale_if_no_slot(ino, e))?;
        self.loaded(ino, guard)
    }
    /// A number that a caller has kept may lead to where a slot was. What is there now does not
    /// look like one.
    fn stale_if_no_slot(&self, ino: InodeNo, e: Error) -> Error {
        let magic = |e: &FormatError| matches!(e, FormatError::BadMagic { .. });
        if !matches!(&e, Error::Lock(LockError::Record { source, .. }) if magic(source)) {
            return e;
        }
        match self.volume.read_body(BlockNo::from(ino)) {
            Err(Error::Damaged { source, .. }) if magic(&source) => Error::Stale(ino),
            _ => e,
        }
    }
    /// Shared: to read.
    pub fn lock_shared(&self, ino: InodeNo) -> Result<Locked> {
        self.lock(ino, Mode::Shared, Local::Shared)
    }
    /// Shared; `None`: that was over before, or failed. No lock may be held.
    pub fn lock_shared_unless(&self, ino: InodeNo, is_over: &dyn Fn() -> bool) -> Option<Locked> {
        self.check_ino(ino).and_then(|()| self.check_alive()).ok()?;
        let lock = LockNo::from(ino);
        let guard = self.locks.acquire_unless(lock, Mode::Shared, Local::Shared, is_over);
        self.loaded(ino, guard.ok()??).ok()
    }
    /// Takes an inode's shared lock and loads its state, for whoever needs it next, unless that is over before. Ignores
    /// failures. No lock may be held.
    pub fn prefetch(&self, ino: InodeNo, is_over: &dyn Fn() -> bool) {
        drop(self.lock_shared_unless(ino, is_over));
    }
    /// Reads the dinodes of those of `inos`, ascending, whose locks are here, shared: neighbours by one read. Ignores
    /// failures. Waits for no lock.
    pub fn read_ahead(&self, inos: &[InodeNo]) {
        let mut taken = BTreeMap::new();
        for ino in inos {
            let lock = LockNo::from(*ino);
            let guard = self.locks.try_acquire(lock, Mode::Shared, Local::Shared);
            if let (Some(guard), Some(since)) = (guard, self.locks.shared_since(lock)) {
                taken.insert(BlockNo::from(*ino), (since, guard));
            }
        }
        let blocks: Vec<BlockNo> = taken.keys().copied().collect();
        // Nobody changes a dinode under a shared lock; one that was stronger meanwhile is another.
        let may_stay = |block| {
            let since = self.locks.shared_since(LockNo::from(block));
            since.is_some() && taken.get(&block).map(|t| t.0) == since
        };
        self.meta.read_ahead(&blocks, &may_stay);
    }
    /// To read or overwrite contents in place: as [`Self::lock`], but concurrent if other nodes do
    /// the same, see [`LockManager::acquire_concurrent`].
    pub fn lock_concurrent(&self, ino: InodeNo, alone: Mode) -> Result<Locked> {
        self.check_ino(ino)?;
        self.check_alive()?;
        let guard = self.locks.acquire_concurrent(LockNo::from(ino), alone, Local::Shared)?;
        self.loaded(ino, guard)
    }
    /// Exclusive: to change.
    pub fn lock_exclusive(&self, ino: InodeNo) -> Result<Locked> {
        self.lock(ino, Mode::Exclusive, Local::Exclusive)
    }
    /// Takes an inode's lock if that needs no waiting, whatever else is held.
    pub fn try_lock(&self, ino: InodeNo, mode: Mode, local: Local) -> Result<Option<Locked>> {
        self.check_ino(ino)?;
        self.check_alive()?;
        match self.locks.try_acquire(LockNo::from(ino), mode, local) {
            Some(guard) => self.loaded(ino, guard).map(Some),
            None => Ok(None),
        }
    }
    /// For a page fill that the kernel waits for (see `LockManager::acquire_fill`).
    pub fn lock_fill(&self, ino: InodeNo, mode: Mode, held: Held) -> Result<Locked> {
        self.check_ino(ino)?;
        let fill = (held, FILL_PATIENCE);
        let guard = self.locks.acquire_fill(LockNo::from(ino), mode, Local::Shared, fill)?;
        self.loaded(ino, guard)
    }
    /// Exclusive, for a truncation: the kernel holds back its own writes of the file meanwhile, and a
    /// demotion under way may be waiting for one of them.
    pub fn lock_truncation(&self, ino: InodeNo) -> Result<Locked> {
        self.check_ino(ino)?;
        let lock = LockNo::from(ino);
        let fill = (Held::Cut, FILL_PATIENCE);
        let guard = self.locks.acquire_fill(lock, Mode::Exclusive, Local::Exclusive, fill)?;
        self.loaded(ino, guard)
    }
    /// Exclusive locks of several inodes, taken in ascending order; the result is in the order given.
    /// Numbers must be distinct.
    pub fn lock_many(&self, inos: &[InodeNo]) -> Result<Vec<Locked>> {
        let mut order: Vec<usize> = (0..inos.len()).collect();
        order.sort_by_key(|&i| inos[i]);
        let mut out: Vec<Option<Locked>> = inos.iter().map(|_| None).collect();
        for i in order {
            out[i] = Some(self.lock_exclusive(inos[i])?);
        }
        Ok(out.into_iter().flatten().collect())
    }
    /// A lock without an inode behind it.
    pub fn guard(&self, lock: LockNo, mode: Mode, local: Local) -> Result<Guard> {
        self.check_alive()?;
        Ok(self.locks.acquire(lock, mode, local)?)
    }
    /// Fails once the node has withdrawn. While its lease is over it is not known whether it has been:
    /// then this waits.
    pub fn check_alive(&self) -> Result<()> {
        let end = self.volume.pool.await_lease_unless(&is_interrupted);
        if matches!(end, Ok(false)) {
            return Err(Error::Interrupted);
        }
        if end.is_err() {
            self.watch(Err(Error::Pool(braid_pool::PoolError::Closed)))?;
        }
        match self.withdrawn.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Withdrawn { reason: reason.clone() }),
        }
    }
    /// A change begins: waits for the thaw. No lock may be held, and no change be under way.
    pub fn enter_change(&self) -> Result<Change<'_>> {
        loop {
            if let Some(change) = self.freeze.try_enter() {
                return Ok(change);
            }
            self.check_alive()?;
            if is_interrupted() {
                return Err(Error::Interrupted);
            }
            self.freeze.wait(THAW_LOOK);
        }
    }
    /// Numbers come from programs and from disk: only slots inside resource groups for
    /// metadata are inodes.
    pub fn check_ino(&self, ino: InodeNo) -> Result<()> {
        let block = BlockNo::from(ino);
        if self.volume.groups.may_hold_slot(block) && self.volume.holds(block) {
            Ok(())
        } else {
            Err(Error::Stale(ino))
        }
    }
    /// Refuses a number that a caller has kept, as in a file handle, unless it is that of an inode in memory
    /// or of a metadata slot: in a block of file data a program may have written whatever looks like an
    /// inode and its lock. To be called before anything is read there. Takes the lock of a resource group,
    /// see [`Alloc::is_slot`]; no lock of a group may be held.
    ///
    /// # Errors
    /// [`Error::Stale`]; those of the group's lock and bitmap.
    pub fn check_kept_number(&self, ino: InodeNo) -> Result<()> {
        if self.inodes.find(ino).is_some_and(|inode| inode.is_loaded()) {
            return Ok(());
        }
        self.check_ino(ino)?;
        self.check_alive()?;
        let is_slot = self.alloc.is_slot(BlockNo::from(ino))?;
        if is_slot { Ok(()) } else { Err(Error::Stale(ino)) }
    }
    /// Puts times that only locks' records could tell (see [`Self::lock_concurrent`]) into the dinodes: a
    /// node that leaves writes no records. A time is not worth waiting long for others: those whose
    /// locks do not come soon are lost, and the file keeps the time before.
    pub fn write_deferred_mtimes(&self) -> Result<()> {
        let until = Instant::now() + TIMES_PATIENCE;
        let cancelled = || Instant::now() >= until;
        for inode in self.inodes.all().iter().filter(|inode| inode.has_deferred_mtime()) {
            let lock = inode.lock_no();
            match self.locks.acquire_unless(lock, Mode::Exclusive, Local::Shared, &cancelled) {
                Ok(Some(guard)) => drop(self.loaded(inode.ino, guard)?),
                Ok(None) => {
                    tracing::warn!(ino = %inode.ino, "its time of change is not kept");
                }
                Err(e) if Error::from(e.clone()).is_lost_lock() => {
                    tracing::warn!(ino = %inode.ino, "cannot keep its time of change: {e}");
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
    fn loaded(&self, ino: InodeNo, guard: Guard) -> Result<Locked> {
        let inode = self.inodes.get(ino);
        load(&self.meta, &inode, &guard)?;
        let locked = Locked { inode, guard };
        let meant = generation_meant(ino);
        if meant.is_some_and(|meant| meant != locked.st().raw.inode_generation.get()) {
            return Err(Error::Stale(ino));
        }
        Ok(locked)
    }
    /// Whether a program of this node has the inode open, or this node's kernel refers to it.
    pub fn is_used_here(&self, inode: &Inode) -> bool {
        inode.opens.load(Ordering::Acquire) > 0 || self.kernel.refers(inode.ino)
    }
    /// The exclusive holder of the inode's lock changes attributes until this is dropped, with or
    /// without success. Then the kernel's copy is dropped.
    pub fn changes(&self, ino: InodeNo) -> Changes<'_> {
        Changes { core: self, ino }
    }
    /// The same beside others on this node that read the attributes meanwhile.
    pub fn changes_concurrent(&self, ino: InodeNo) -> ConcurrentChanges<'_> {
        self.kernel.change_begins(ino);
        ConcurrentChanges { core: self, ino }
    }
    /// Leaves the cluster after a failure: nothing more is written, every call fails; other nodes
    /// see a dead node and replay its journal.
    pub fn withdraw(&self, why: &Error) {
        let reason = self.membership.withdrawn().unwrap_or_else(|| why.reason());
        if self.withdrawn.set(reason.clone()).is_ok() {
            tracing::error!("withdrawing: {reason}");
            let told = format!("the node withdraws: {reason}");
            self.volume.pool.record(EventKind::Withdrawn, None, told);
            self.meta.poison(reason.clone());
            self.locks.withdraw();
            self.plocks.end_waits(&|| Err(Error::Withdrawn { reason: reason.clone() }));
        }
    }
    /// Passes a result through; a fatal error makes the node withdraw, damage is noted.
    pub fn watch<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            if e.is_fatal() || self.meta.check().is_err() {
                self.withdraw(e);
            } else {
                self.meta.note_damage(e);
            }
        }
        result
    }
    /// The result of this thread's last transaction. There is no roll-back: an error after the first
    /// change, whatever it is, makes the node withdraw. Damage that was met before anything was
    /// changed is an error of what it belongs to.
    pub fn sealed<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            if e.damaged_block().is_none() || Meta::has_changed() {
                self.withdraw(e);
            } else {
                self.meta.note_damage(e);
            }
        }
        result
    }
}

/// See [`Core::changes`].
pub(crate) struct Changes<'a> {
    core: &'a Core,
    ino: InodeNo,
}
impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.core.kernel.attributes_changed(self.ino);
    }
}

/// See [`Core::changes_concurrent`].
pub(crate) struct ConcurrentChanges<'a> {
    core: &'a Core,
    ino: InodeNo,
}
impl Drop for ConcurrentChanges<'_> {
    fn drop(&mut self) {
        self.core.kernel.change_ends(self.ino);
    }
}

impl Lives for Core {
    fn me(&self) -> Life {
        self.me
    }
    fn is_live(&self, life: Life) -> bool {
        life == self.me || self.membership.liveness(life) == Liveness::Alive
    }
}
