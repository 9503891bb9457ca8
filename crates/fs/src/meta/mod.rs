//! The metadata cache and transactions.
//!
//! A cached block is an `Arc` of its body. A transaction changes a block by copy-on-write, so a
//! commit takes its snapshot by cloning `Arc`s, and an in-place write never sees a half-done
//! change. Life of a block:
//! ```text
//!            modify             snapshot               durable              written in place
//!  clean ------------> running ----------> committing ---------> logged --------------------> clean
//!                         ^                    | modify             | modify
//!                         +--------------------+--------------------+  (newer image running, older
//!                                                                       committing or logged)
//! ```
//! Invariants:
//! * a body reaches its place only after the commit that holds it is durable (write-ahead);
//! * a record is written only after the locks that cover its blocks are durably this node's;
//! * the generation in a body's header grows by one with each commit that holds it;
//! * bodies in memory are not sealed: the checksum is computed when one leaves for a device;
//! * bodies go to their places under one mutex, so an older image never lands after a newer one;
//! * the cache is bounded; only clean blocks are dropped. A free slot's body is dropped as soon as
//!   it is clean: another node may use the slot next, and what was known of it be stale;
//! * no cluster lock is taken while a transaction is open.
//!
//! Order of the locks in here: group of committers (never held over I/O), then journal, then
//! write-back, then gate, then running or a cache shard, then owner shard or ledger.
//!
//! A failed write or flush poisons the whole: what is on the devices is no longer known, so
//! nothing more is written, and every later call fails with [`Error::Withdrawn`].

mod cache;
mod commit;
mod writeback;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, FormatError, Generation, Incarnation, InodeNo, LockNo, NodeId};
use braid_lock::interrupt::Held;
use braid_pool::device::AlignedBuf;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};

use self::cache::{Cache, Entry, Shard};
use self::commit::{Group, Running};
use self::writeback::Ledger;
use crate::damage::Damages;
use crate::error::{Error, Result};
use crate::journal::Journal;
pub(crate) use crate::volume::Body;
use crate::volume::Volume;

/// Blocks that an open transaction is expected to change at most. So many transactions are open
/// at once that their credits stay below a quarter of the ring, and a commit is forced when the
/// running transaction has reached another quarter: a record then takes half the ring at most. One
/// transaction may go beyond its credit as long as the whole ring holds it.
pub(crate) const TX_CREDIT: usize = 32;

/// Generation of a block that replaces one whose own cannot be read: above all that any journal may
/// hold of it.
pub(crate) const GENERATION_AFTER_LOSS: Generation = Generation(1 << 40);

/// However small a bound is asked for, so many blocks may be logged: enough transactions at once.
const LOGGED_MIN: usize = 16 * TX_CREDIT;

/// The cache, the running transaction, and this node's journal.
pub(crate) struct Meta {
    volume: Arc<Volume>,
    cache: Cache,
    /// Read side: an open transaction. Write side: the instant of a snapshot.
    gate: RwLock<()>,
    open: AtomicUsize,
    running: Mutex<Running>,
    /// Blocks in `running`, to be read without its lock.
    running_blocks: AtomicUsize,
    on_filling: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// A quarter of the ring, in images; or of `logged_max`, if that is less.
    quarter: usize,
    /// Most blocks in memory that are in the journal and not in their place.
    logged_max: usize,
    group: Mutex<Group>,
    group_changed: Condvar,
    journal: Mutex<Journal>,
    ledger: Mutex<Ledger>,
    /// Bodies of others that go along when an owner's are written in place.
    along_max: usize,
    /// Held by the thread that writes bodies in place.
    write_back: Mutex<()>,
    /// Held by the thread that flushes for data alone.
    data_flush: Mutex<()>,
    data_written: AtomicU64,
    data_flushed: AtomicU64,
    /// Exclusive locks that this node was granted, and how many of their records are durable.
    granted: AtomicU64,
    granted_flushed: AtomicU64,
    poison: OnceLock<Arc<str>>,
    /// Damaged blocks that were met.
    pub damages: Damages,
    counters: Counters,
}

/// How much has been done since the start.
#[derive(Debug, Default)]
struct Counters {
    commits: AtomicU64,
    logged: AtomicU64,
    in_place: AtomicU64,
    flushes: AtomicU64,
    misses: AtomicU64,
}

/// What [`Meta::stats`] tells.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MetaStats {
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

thread_local! {
    /// Address of the `Meta` whose transaction this thread has open. A second one, or a commit,
    /// would wait for the first for ever.
    static OPEN_HERE: Cell<usize> = const { Cell::new(0) };
    /// Whether the last transaction of this thread has changed a block.
    static CHANGED_HERE: Cell<bool> = const { Cell::new(false) };
    /// This thread is in a closure that changes a body: a shard is locked.
    static CHANGING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `wait` as if nothing were open in this thread.
pub(crate) fn aside<T>(wait: impl FnOnce() -> T) -> T {
    let open = OPEN_HERE.replace(0);
    let changing = CHANGING.replace(false);
    let done = wait();
    CHANGING.set(changing);
    OPEN_HERE.set(open);
    done
}

/// Marks this thread as changing a body.
struct Changing;
impl Changing {
    fn enter() -> Self {
        CHANGING.set(true);
        Self
    }
}
impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.set(false);
    }
}

/// A block of another kind than its caller expects.
fn wrong_kind(block: BlockNo, expected: MetaKind, found: MetaKind) -> Error {
    let source =
        FormatError::WrongKind { expected: expected.name(), at: block.get(), found: found as u16 };
    Error::Damaged { block, source }
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
            gate: RwLock::new(()),
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
            along_max: writeback::ALONG_MAX,
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
    /// [`Error::Damaged`] with [`FormatError::WrongKind`] for a sound block of another kind.
    pub fn read(&self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        self.check()?;
        let mut shard = self.load(block, owner, Some(kind))?;
        let entry = shard.get(block).ok_or_else(|| lost(block))?;
        entry.check(block, owner, kind)?;
        Ok(entry.current.clone())
    }
    /// Joins the running transaction. Waits while a commit takes its snapshot, and starts a commit
    /// when the running transaction has grown large. Never nest.
    ///
    /// # Panics
    /// If this thread has one open already.
    pub fn begin(&self) -> Result<Tx<'_>> {
        self.assert_no_tx_here();
        loop {
            self.check()?;
            let gate = self.gate.read();
            let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
            let crowded = open > 1 && open * TX_CREDIT > self.quarter;
            if self.running_blocks.load(Ordering::Acquire) <= self.quarter && !crowded {
                let outer = OPEN_HERE.replace(self.address());
                CHANGED_HERE.set(false);
                return Ok(Tx { meta: self, outer, _held: Held::begin(), _gate: gate });
            }
            self.open.fetch_sub(1, Ordering::AcqRel);
            drop(gate);
            if crowded {
                // Until all that are open have closed.
                drop(self.gate.write());
            } else {
                self.commit()?;
            }
        }
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
    #[cfg(test)]
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

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    fn assert_no_tx_here(&self) {
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
            self.poison(e.to_string().into());
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
    fn load(
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
    fn load_free(&self, block: BlockNo, owner: LockNo) -> Result<MutexGuard<'_, Shard>> {
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
    fn read_free(&self, block: BlockNo) -> Result<Generation> {
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
    fn join_running(&self, block: BlockNo) {
        self.running.lock().blocks.push(block);
        let before = self.running_blocks.fetch_add(1, Ordering::AcqRel);
        if before + 1 == self.filling_from()
            && let Some(rouse) = self.on_filling.get()
        {
            rouse();
        }
    }
    /// Blocks in the running transaction from which on it is worth committing before somebody has
    /// to wait for that.
    fn filling_from(&self) -> usize {
        self.quarter / 2
    }
    /// Whether the running transaction has grown so large that it should be committed.
    pub fn is_filling(&self) -> bool {
        self.running_blocks.load(Ordering::Acquire) >= self.filling_from()
    }
    /// `rouse` is called when the running transaction begins to be large: by the thread that
    /// changes a block, so it must neither wait nor use the metadata. For the first caller.
    pub fn on_filling(&self, rouse: Box<dyn Fn() + Send + Sync>) {
        self.on_filling.set(rouse).ok();
    }
}

/// Allocated slots of these kinds become `Free` before they are given out again.
fn refuse_used(block: BlockNo, kind: MetaKind) -> Result<()> {
    use MetaKind as K;
    match kind {
        K::Dinode | K::Index | K::ExtentLeaf | K::DirLeaf | K::Xattr | K::XattrValue | K::Plock => {
            Err(Error::Inconsistent { block, what: "slot given out while it is in use" })
        }
        _ => Ok(()),
    }
}

fn lost(block: BlockNo) -> Error {
    Error::Inconsistent { block, what: "body lost from the cache" }
}

/// An open transaction. Dropping it closes it: its changes are then part of the running
/// transaction and become durable together with it. There is no roll-back: check everything
/// before the first change; an error after it makes the node withdraw, and so does a panic.
pub(crate) struct Tx<'a> {
    meta: &'a Meta,
    /// What this thread had open before (in another `Meta`).
    outer: usize,
    /// Nothing that it waits for is interrupted.
    _held: Held,
    /// Dropped last.
    _gate: RwLockReadGuard<'a, ()>,
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        OPEN_HERE.set(self.outer);
        if std::thread::panicking() {
            self.meta.poison("panic in a transaction".into());
        }
        self.meta.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tx<'_> {
    /// As [`Meta::read`]; sees this transaction's changes.
    pub fn read(&mut self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        self.meta.read(block, owner, kind)
    }
    /// Changes a body. `owner` held exclusively. `f` gets the whole body; what it does to the
    /// header is undone. It must not use the metadata cache (a panic tells).
    pub fn modify<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.meta.check()?;
        let mut shard = self.meta.load(block, owner, Some(kind))?;
        self.change(&mut shard, block, |entry| {
            entry.check(block, owner, kind)?;
            entry.edit(block, f)
        })
    }
    /// Gives a free slot a new content: zeros, a header of `kind` and `owner`, then `f`. The old
    /// body is read (or cached, or told by [`Meta::adopt_free`]) for its generation.
    ///
    /// # Errors
    /// When the slot holds a dinode or a part of one, or what stands there is neither a sound body
    /// nor all zero.
    pub fn create<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.meta.check()?;
        let mut shard = self.meta.load_free(block, owner)?;
        let owners = &self.meta.cache.owners;
        self.change(&mut shard, block, |entry| {
            refuse_used(block, entry.kind)?;
            owners.transfer(block, entry.owner, owner);
            entry.renew(block, owner, kind)?;
            entry.edit(block, f)
        })
    }
    /// Turns a slot into kind `Free` (still under `owner`). The allocator is told separately. The
    /// body's generation stays known, as by [`Meta::adopt_free`]: until [`Meta::forget_free`], no
    /// other node may use the slot.
    pub fn free(&mut self, block: BlockNo, owner: LockNo) -> Result<()> {
        self.meta.check()?;
        let mut shard = self.meta.load(block, owner, None)?;
        let generation = self.change(&mut shard, block, |entry| {
            entry.check_owner(block, owner)?;
            entry.renew(block, owner, MetaKind::Free)?;
            Ok(entry.generation())
        })?;
        shard.adopted.insert(block, generation);
        Ok(())
    }
    /// Runs `f` once the running transaction is durable (on the committing thread; short; it must
    /// not commit).
    pub fn on_commit(&mut self, f: Box<dyn FnOnce() + Send>) {
        self.meta.running.lock().hooks.push(f);
    }
    /// Applies `f` to a cached entry and takes the block into the running transaction.
    fn change<R>(
        &self,
        shard: &mut Shard,
        block: BlockNo,
        f: impl FnOnce(&mut Entry) -> Result<R>,
    ) -> Result<R> {
        let changing = Changing::enter();
        let done = shard.change(block, |entry| {
            let before = entry.running;
            let r = f(entry);
            (r, !before && entry.running)
        });
        drop(changing);
        let (r, joined) = done.ok_or_else(|| lost(block))?;
        if r.is_ok() {
            CHANGED_HERE.set(true);
        }
        if joined {
            self.meta.join_running(block);
        }
        r
    }
}

#[cfg(test)]
mod tests;
