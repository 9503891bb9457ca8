//! The metadata of a node: cache, running transaction and journal.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, Generation, Incarnation, InodeNo, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::cache::{self, Cache, Entry, Shard};
use super::ledger::Ledger;
use super::running::{Group, Running, TX_CREDIT};
use super::thread_state::{CHANGED_HERE, CHANGING, OPEN_HERE};
use crate::damage::Damages;
use crate::error::{Error, Result};
use crate::journal::{GENERATION_AFTER_LOSS, Journal};
use crate::volume::{Body, Volume};

/// However small a bound is asked for, so many blocks may be logged: enough transactions at once.
pub(super) const LOGGED_MIN: usize = 16 * TX_CREDIT;

/// Bodies of others that go along when an owner's are written in place: enough to make the next
/// demotions find theirs clean, few enough not to hold this one up.
const ALONG_MAX: usize = 4096;

/// The cache, the running transaction, and this node's journal.
pub(crate) struct Meta {
    pub(super) volume: Arc<Volume>,
    pub(super) cache: Cache,
    /// The transaction barrier. Held shared by each open transaction, exclusively while a snapshot is taken.
    pub(super) barrier: RwLock<()>,
    pub(super) open: AtomicUsize,
    pub(super) running: Mutex<Running>,
    /// Blocks in `running`, to be read without its lock.
    pub(super) running_blocks: AtomicUsize,
    pub(super) on_filling: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// A quarter of the ring, in images; or of `logged_max`, if that is less.
    pub(super) quarter: usize,
    /// Most blocks in memory that are in the journal and not in their place.
    pub(super) logged_max: usize,
    pub(super) group: Mutex<Group>,
    pub(super) group_changed: Condvar,
    pub(super) journal: Mutex<Journal>,
    pub(super) ledger: Mutex<Ledger>,
    /// Bodies of others that go along when an owner's are written in place.
    pub(super) along_max: usize,
    /// Held by the thread that writes bodies in place.
    pub(super) write_back: Mutex<()>,
    /// Held by the thread that flushes for data alone.
    pub(super) data_flush: Mutex<()>,
    pub(super) data_written: AtomicU64,
    pub(super) data_flushed: AtomicU64,
    /// Exclusive locks that this node was granted, and how many of their records are durable.
    pub(super) granted: AtomicU64,
    pub(super) granted_flushed: AtomicU64,
    pub(super) poison: OnceLock<Arc<str>>,
    /// Damaged blocks that were met.
    pub damages: Damages,
    pub(super) counters: Counters,
}

/// How much has been done since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) logged: AtomicU64,
    pub(super) in_place: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) misses: AtomicU64,
}

/// What was done with metadata since the node was mounted, and what of it is in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Records written.
    pub commits: u64,
    /// Images in them.
    pub logged: u64,
    /// Bodies written in place.
    pub in_place: u64,
    /// Flushes of all devices.
    pub flushes: u64,
    /// Bodies read from the devices.
    pub misses: u64,
    /// Bodies in the cache.
    pub cached: u64,
    /// Of these, not in place.
    pub dirty: u64,
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meta")
            .field("open", &self.open)
            .field("running_blocks", &self.running_blocks)
            .field("poison", &self.poison)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Allocated slots of these kinds become `Free` before they are given out again.
pub(super) fn refuse_used(block: BlockNo, kind: MetaKind) -> Result<()> {
    use MetaKind as K;
    match kind {
        K::Dinode | K::Index | K::ExtentLeaf | K::DirLeaf | K::Xattr | K::XattrValue | K::Plock => {
            Err(Error::Inconsistent { block, what: "slot given out while it is in use" })
        }
        _ => Ok(()),
    }
}

pub(super) fn lost(block: BlockNo) -> Error {
    Error::Inconsistent { block, what: "body lost from the cache" }
}

impl Meta {
    /// Takes over the journal of `node` (clean: replay has been done), and starts with an empty
    /// cache of at most `cache_bytes` clean bodies. Writes nothing before the first commit.
    ///
    /// # Errors
    /// When the journal is not clean, or its headers cannot be read.
    pub fn open(
        volume: Arc<Volume>,
        node: NodeId,
        incarnation: Incarnation,
        cache_bytes: u64,
    ) -> Result<Self> {
        let journal = Journal::open(&volume, node, incarnation)?;
        let quarter = journal.ring().len / 4 / journal.ring().image;
        Ok(Self {
            cache: Cache::new(cache_bytes, volume.geo.body_len()),
            volume,
            barrier: RwLock::new(()),
            open: AtomicUsize::new(0),
            running: Mutex::new(Running::first()),
            running_blocks: AtomicUsize::new(0),
            on_filling: OnceLock::new(),
            quarter: usize::try_from(quarter).unwrap_or(usize::MAX),
            logged_max: usize::MAX,
            group: Mutex::default(),
            group_changed: Condvar::new(),
            journal: Mutex::new(journal),
            ledger: Mutex::default(),
            along_max: ALONG_MAX,
            write_back: Mutex::new(()),
            data_flush: Mutex::new(()),
            data_written: AtomicU64::new(0),
            data_flushed: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            granted_flushed: AtomicU64::new(0),
            poison: OnceLock::new(),
            damages: Damages::default(),
            counters: Counters::default(),
        })
    }
    /// At most `bytes` of bodies that are in the journal and not in their place, however large the
    /// ring is; a small bound is raised so that every transaction fits.
    pub fn bound_logged(&mut self, bytes: u64) {
        let images = bytes / self.volume.geo.body_len() as u64;
        self.logged_max = usize::try_from(images).unwrap_or(usize::MAX).max(LOGGED_MIN);
        self.quarter = self.quarter.min(self.logged_max / 4);
    }
    /// The body of `block`, from the cache or the devices, verified to be of `kind` and covered
    /// by `owner`. The caller holds `owner`, at least shared (or the block is private to this
    /// node: then `owner` is the block's own number, and the caller keeps its threads apart).
    ///
    /// # Errors
    /// [`Error::Damaged`] with [`braid_format::FormatError::WrongKind`] for a sound block of another kind.
    pub fn read(&self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        self.check()?;
        let mut shard = self.load(block, owner, Some(kind))?;
        let entry = shard.get(block).ok_or_else(|| lost(block))?;
        entry.check(block, owner, kind)?;
        Ok(entry.current.clone())
    }
    /// Tells that file data was written (complete, not flushed).
    pub fn note_data_written(&self) {
        self.data_written.fetch_add(1, Ordering::AcqRel);
    }
    /// Tells that this node was granted an exclusive lock, whose record is complete, not flushed.
    /// It is made durable before the next record of the journal. Otherwise a power cut could keep
    /// what was done under the lock and lose the lock, and another node would change the same
    /// blocks before the journal is replayed.
    pub fn note_granted(&self) {
        self.granted.fetch_add(1, Ordering::AcqRel);
    }
    /// Forgets all cached blocks under `owner`.
    ///
    /// # Panics
    /// If one of them is not clean (unless poisoned: then all is lost anyway).
    pub fn drop_owner(&self, owner: LockNo) {
        for block in self.cache.owners.blocks(owner) {
            let mut shard = self.cache.shard(block);
            let Some(entry) = shard.get(block) else { continue };
            if entry.owner != owner {
                continue;
            }
            let clean = entry.is_clean() || self.poison.get().is_some();
            assert!(clean, "block {block} dropped with lock {owner} while it is not in place");
            shard.remove(&self.cache.owners, block);
        }
    }
    /// Records the generation of the `Free` body in a slot that no other node may use now, so that
    /// [`Tx::create`] need not read it. Holds until used, or [`Meta::forget_free`]. The caller
    /// bounds their number.
    pub fn adopt_free(&self, block: BlockNo, generation: Generation) {
        self.cache.shard(block).adopted.insert(block, generation);
    }
    /// The slot may be used by other nodes again: its `Free` body (in place by now) is forgotten.
    pub fn forget_free(&self, block: BlockNo) {
        let mut shard = self.cache.shard(block);
        shard.adopted.remove(&block);
        if shard.get(block).is_some_and(|e| e.kind == MetaKind::Free && e.is_clean()) {
            shard.remove(&self.cache.owners, block);
        }
    }
    /// After a withdrawal: nothing is written any more, every call fails. May be called from
    /// anywhere; the first reason stays. A write already on its way cannot be recalled.
    pub fn poison(&self, reason: Arc<str>) {
        if self.poison.set(reason).is_ok() {
            // Not while a waiter is between its check and its wait.
            drop(self.group.lock());
            self.group_changed.notify_all();
        }
    }
    /// Whether something of `block` is not in place.
    pub fn is_dirty(&self, block: BlockNo) -> bool {
        self.cache.shard(block).get(block).is_some_and(|entry| !entry.is_clean())
    }
    /// What has been done so far.
    pub fn stats(&self) -> MetaStats {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (cached, dirty) = self.cache.count();
        MetaStats {
            commits: get(&self.counters.commits),
            logged: get(&self.counters.logged),
            in_place: get(&self.counters.in_place),
            flushes: get(&self.counters.flushes),
            misses: get(&self.counters.misses),
            cached: cached as u64,
            dirty: dirty as u64,
        }
    }
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    pub(super) fn assert_no_tx_here(&self) {
        assert_ne!(OPEN_HERE.get(), self.address(), "a transaction is open in this thread");
    }
    /// Fails once poisoned.
    pub fn check(&self) -> Result<()> {
        match self.poison.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Withdrawn { reason: reason.clone() }),
        }
    }
    /// Poisons when a step towards the devices failed.
    pub fn fatal<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.poison(e.reason());
        }
        result
    }
    /// The result of this thread's last transaction: poisons if it failed after a change, because half
    /// of a transaction must not be committed.
    pub fn sealed<T>(&self, result: Result<T>) -> Result<T> {
        if Self::has_changed() { self.fatal(result) } else { result }
    }
    /// The shard of `block`, locked, with the block cached in it. Without a `kind`, any will do.
    /// Only what matches is cached: what is known about another owner's block may be wrong a moment
    /// later.
    pub(super) fn load(
        &self,
        block: BlockNo,
        owner: LockNo,
        kind: Option<MetaKind>,
    ) -> Result<MutexGuard<'_, Shard>> {
        assert!(!CHANGING.get(), "a closure that changes a body used the metadata cache");
        let mut shard = self.cache.shard(block);
        if shard.get(block).is_some() {
            return Ok(shard);
        }
        drop(shard);
        let read = self.volume.read_body(block);
        let (body, header, found) = read.inspect_err(|e| self.damages.suspect(block, owner, e))?;
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.cache.shard(block);
        if shard.get(block).is_some() {
            return Ok(shard);
        }
        let entry = Entry::clean(LockNo(header.owner.get()), found, Arc::new(body));
        match kind {
            Some(kind) => entry.check(block, owner, kind)?,
            None => entry.check_owner(block, owner)?,
        }
        shard.insert(&self.cache.owners, block, entry);
        Ok(shard)
    }
    /// Caches those of `blocks`, ascending, that are dinodes and not cached; neighbours are read at once. Each is covered
    /// by its own lock, which the caller holds, and `may_stay` says of it after the read: this node has not been able to
    /// change it since. What cannot be read, or is damaged, is left to [`Meta::read`].
    pub fn read_ahead(&self, blocks: &[BlockNo], may_stay: &dyn Fn(BlockNo) -> bool) {
        let missing = |block: &BlockNo| self.cache.shard(*block).get(*block).is_none();
        let missing: Vec<BlockNo> = blocks.iter().copied().filter(missing).collect();
        if missing.len() < 2 || self.check().is_err() {
            return;
        }
        for (block, body) in self.volume.read_neighbours(&missing) {
            let Ok((header, kind)) = MetaHeader::decode(&body, block) else { continue };
            let entry = Entry::clean(LockNo(header.owner.get()), kind, Arc::new(body));
            let is_dinode = entry.check(block, LockNo::from(block), MetaKind::Dinode).is_ok();
            if !is_dinode || !may_stay(block) {
                continue;
            }
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            let mut shard = self.cache.shard(block);
            if shard.get(block).is_none() {
                shard.insert(&self.cache.owners, block, entry);
            }
        }
    }
    /// Logs an error that is damage, with whose it is, and remembers it for `status`.
    pub fn note_damage(&self, error: &Error) {
        let Some(block) = error.damaged_block() else { return };
        let cached = self.cache.shard(block).get(block).map(|entry| entry.owner);
        let owner = cached.or_else(|| self.damages.owner_of(block));
        let inode = owner.map(|lock| InodeNo(lock.get()));
        let holds = |ino: &InodeNo| self.volume.groups.may_hold_slot(BlockNo::from(*ino));
        self.damages.note(error, inode.filter(holds));
    }
    /// Whether this thread's last transaction (open, or closed by now) has changed a block: an error
    /// then leaves half of it behind.
    pub fn has_changed() -> bool {
        CHANGED_HERE.get()
    }
    /// As [`Meta::load`] for [`Tx::create`]: a slot that is not cached is cached as `Free` under
    /// its new owner, with the generation of the body that stands there.
    pub(super) fn load_free(&self, block: BlockNo, owner: LockNo) -> Result<MutexGuard<'_, Shard>> {
        assert!(!CHANGING.get(), "a closure that changes a body used the metadata cache");
        let mut shard = self.cache.shard(block);
        let cached = shard.get(block).is_some();
        let adopted = shard.adopted.remove(&block);
        if cached {
            return Ok(shard);
        }
        let generation = if let Some(generation) = adopted {
            generation
        } else {
            drop(shard);
            let generation = self.read_free(block)?;
            shard = self.cache.shard(block);
            if shard.get(block).is_some() {
                return Ok(shard);
            }
            generation
        };
        let body =
            cache::blank(self.volume.geo.body_len(), block, owner, MetaKind::Free, generation);
        shard.insert(&self.cache.owners, block, Entry::clean(owner, MetaKind::Free, body));
        Ok(shard)
    }
    /// Generation of the body in a slot that is about to be used.
    pub(super) fn read_free(&self, block: BlockNo) -> Result<Generation> {
        if !self.volume.holds(block) {
            return Err(Error::Inconsistent { block, what: "address beyond the file system" });
        }
        let mut body = AlignedBuf::zeroed(self.volume.geo.body_len());
        self.volume.pool.read(self.volume.body_at(block), &mut body)?;
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        match MetaHeader::decode(&body, block) {
            Ok((header, kind)) => {
                refuse_used(block, kind)?;
                Ok(header.generation())
            }
            Err(_) if body.iter().all(|b| *b == 0) => Ok(Generation(0)),
            // Its bitmap calls it free, so nothing is lost with it.
            Err(source) => {
                tracing::warn!(%block, "a free metadata block is damaged and gets a fresh body: {source}");
                Ok(GENERATION_AFTER_LOSS)
            }
        }
    }
    /// Notes that a block has joined the running transaction. Its shard is locked.
    pub(super) fn join_running(&self, block: BlockNo) {
        self.running.lock().blocks.push(block);
        let before = self.running_blocks.fetch_add(1, Ordering::AcqRel);
        if before + 1 == self.filling_from()
            && let Some(wake) = self.on_filling.get()
        {
            wake();
        }
    }
    /// Blocks in the running transaction from which on it is worth committing before somebody has
    /// to wait for that.
    pub(super) fn filling_from(&self) -> usize {
        self.quarter / 2
    }
    /// Whether the running transaction has grown so large that it should be committed.
    pub fn is_filling(&self) -> bool {
        self.running_blocks.load(Ordering::Acquire) >= self.filling_from()
    }
    /// `wake` is called when the running transaction begins to be large: by the thread that
    /// changes a block, so it must neither wait nor use the metadata. For the first caller.
    pub fn on_filling(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.on_filling.set(wake).ok();
    }
}
