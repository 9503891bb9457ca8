//! Inodes in memory. An inode's state is good only while its cluster lock is held; the demotion
//! pipeline ([`crate::demote`]) writes it back and forgets it.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use braid_format::dinode::{Layout, RawDinode, RawTime};
use braid_format::meta::{Geometry, MetaKind};
use braid_format::{BlockNo, Bytes, InodeNo, LockNo};
use braid_lock::{Guard, Mode};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zerocopy::{FromBytes, IntoBytes};

use crate::attr::{Attr, Time};
use crate::error::{Error, Result};
use crate::file_data::FileData;
use crate::meta::{Meta, Tx};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::unseen_writes::UnseenWrites;

/// What is known of an inode while its lock is held.
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// The dinode's fixed part: authoritative under the lock. `size` and times may be ahead of the disk.
    pub raw: RawDinode,
    /// Regular files: size up to which the data is in blocks (or in the tail) that the dinode refers
    /// to. What a transaction writes as the size until `data::flush` has caught up. Below `raw.size`
    /// only while there are dirty pages.
    pub disk_size: u64,
    /// `raw` differs from the body in the cache (times, size): encode before release or fsync.
    pub dirty: bool,
    /// When contents were last changed under concurrent holds, as far as the dinode does not say so:
    /// nanoseconds since 1970; 0: it says all. The lock's record carries it between nodes.
    pub deferred_mtime: u64,
    /// The lock was concurrent since `deferred_mtime` was looked up: other nodes may know of later changes.
    pub concurrent: bool,
}

impl InodeState {
    /// What a dinode says, as it was read or made.
    pub fn new(raw: RawDinode) -> Self {
        Self { raw, disk_size: raw.size.get(), dirty: false, deferred_mtime: 0, concurrent: false }
    }
    /// Contents were changed at `at` (nanoseconds since 1970), under a concurrent hold.
    pub fn changed_concurrently(&mut self, at: u64) {
        self.deferred_mtime = self.deferred_mtime.max(at);
        let Some(at) = NonZeroU64::new(self.deferred_mtime) else { return };
        let time = time_from_nanos(at);
        for old in [&mut self.raw.mtime, &mut self.raw.ctime] {
            if time_of(*old) < time {
                *old = raw_time(time);
            }
        }
    }
    /// Under the exclusive lock the dinode is to say what only the lock's record said.
    fn settle_deferred_mtime(&mut self) {
        self.concurrent = false;
        self.dirty |= std::mem::take(&mut self.deferred_mtime) > 0;
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Inode {
    /// Number.
    pub ino: InodeNo,
    /// `None` when the lock is not held or nothing was read yet.
    state: RwLock<Option<InodeState>>,
    /// Dirty contents (regular files).
    pub data: FileData,
    /// Open handles of this node.
    pub opens: AtomicU32,
    /// Of these, open for writing, and so perhaps mapped: the kernel dirties pages that it has
    /// without asking. Counted up under the exclusive lock only; while there is one, pages are
    /// filled under that lock, and dropped when it is weakened. So under a shared lock the kernel
    /// has no pages of an inode with writers.
    pub writers: AtomicU32,
    /// The kernel may have pages of its contents: it has filled some since it was last told to drop
    /// them all.
    pages: AtomicBool,
    /// Writes that such pages may not have.
    pub unseen_writes: UnseenWrites,
    /// The lock's record may name this node as an opener: see [`Inode::leaves_opener`].
    recorded_opener: AtomicBool,
}

impl Inode {
    pub(crate) fn new(ino: InodeNo) -> Self {
        Self {
            ino,
            state: RwLock::new(None),
            data: FileData::default(),
            opens: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            pages: AtomicBool::new(false),
            unseen_writes: UnseenWrites::default(),
            recorded_opener: AtomicBool::new(false),
        }
    }
    /// The kernel fills pages. The lock is held. Returns whether from now on programs may store
    /// bytes without this node's knowledge ([`Self::may_have_unseen_stores`]).
    pub fn fills_pages(&self) -> bool {
        !self.pages.swap(true, Ordering::AcqRel) && self.writers.load(Ordering::Acquire) > 0
    }
    /// The kernel is about to be told to drop all pages. A page that is filled later counts again;
    /// a page that is being filled is waited for, and dropped.
    pub fn drops_pages(&self) {
        self.pages.store(false, Ordering::Release);
    }
    /// Whether the kernel may have pages of its contents.
    pub fn has_pages(&self) -> bool {
        self.pages.load(Ordering::Acquire)
    }
    /// Whether a program of this node may have stored contents through a mapping that the kernel has
    /// not written back: it needs a page, and the file open for writing. (The kernel writes such
    /// pages back before it closes the file.)
    pub fn may_have_unseen_stores(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0 && self.has_pages()
    }
    /// The lock is being given up, and nobody is let in: whether its record is to name this node as an
    /// opener, that is, whether a program here has the inode open, or this node's kernel refers to it
    /// for one (`in_kernel`).
    ///
    /// A close does not wait for the lock. So this notes "recorded" before it counts the handles, and
    /// [`Self::end_opener`] is called after the handle was counted out: either the last handle is not
    /// counted here, or its close finds the note and takes this node out of the record.
    pub fn leaves_opener(&self, in_kernel: impl FnOnce() -> bool) -> bool {
        self.recorded_opener.store(true, Ordering::SeqCst);
        let open = self.opens.load(Ordering::SeqCst) > 0 || in_kernel();
        if !open {
            self.recorded_opener.store(false, Ordering::SeqCst);
        }
        open
    }
    /// A handle was counted out: whether none is left while the lock's record may name this node as an
    /// opener. The caller then takes the lock: the next release writes the record without this node.
    pub fn end_opener(&self) -> bool {
        self.opens.load(Ordering::SeqCst) == 0 && self.recorded_opener.swap(false, Ordering::SeqCst)
    }
    /// Whether the lock's record may name this node as an opener.
    pub fn may_be_opener(&self) -> bool {
        self.recorded_opener.load(Ordering::SeqCst)
    }
    /// [`Self::end_opener`] said so, but the lock could not be taken: to be tried again.
    pub fn still_opener(&self) {
        self.recorded_opener.store(true, Ordering::SeqCst);
    }
    /// A new inode has got this number: no record names anybody.
    pub fn no_opener(&self) {
        self.recorded_opener.store(false, Ordering::SeqCst);
    }
    /// The lock that covers it.
    pub fn lock_no(&self) -> LockNo {
        LockNo::from(self.ino)
    }
    /// Its dinode's slot.
    pub fn block(&self) -> BlockNo {
        BlockNo::from(self.ino)
    }
    /// Forgets the state: the lock is about to be released.
    pub fn unload(&self) {
        *self.state.write() = None;
        self.data.forget_map();
    }
    /// Whether a state is loaded.
    pub fn is_loaded(&self) -> bool {
        self.state.read().is_some()
    }
    /// State for the demotion pipeline, which runs without a guard.
    pub fn peek(&self) -> Option<InodeState> {
        self.state.read().clone()
    }
    /// The state, if one is loaded. The lock is held, or given up by the demotion that asks.
    pub fn state_ref(&self) -> Option<parking_lot::MappedRwLockReadGuard<'_, InodeState>> {
        RwLockReadGuard::try_map(self.state.read(), Option::as_ref).ok()
    }
    /// As [`Inode::state_ref`], to change.
    pub fn state_mut(&self) -> Option<parking_lot::MappedRwLockWriteGuard<'_, InodeState>> {
        RwLockWriteGuard::try_map(self.state.write(), Option::as_mut).ok()
    }
    /// Changes fixed fields in memory and in the body, in `tx`.
    pub fn update(&self, tx: &mut Tx<'_>, f: impl FnOnce(&mut RawDinode)) -> Result<()> {
        f(&mut self.state_mut().ok_or(Error::Stale(self.ino))?.raw);
        self.encode(tx)
    }
    /// The lock is given up down to `to`, and everything dirty is in place. What the lock's record
    /// is to say about changes that the dinode does not show. `None`: nothing is known of them
    /// here.
    pub fn deferred_mtime_for(&self, to: Mode) -> Option<u64> {
        let mut st = self.state_mut()?;
        st.concurrent |= to == Mode::Concurrent;
        Some(st.deferred_mtime)
    }
    /// A time of change is known here that the dinode does not tell.
    pub fn has_deferred_mtime(&self) -> bool {
        self.state_ref().is_some_and(|st| st.deferred_mtime > 0)
    }
    /// Contents or fields that the disk does not have yet.
    pub fn is_dirty(&self) -> bool {
        self.data.is_dirty() || self.state.read().as_ref().is_some_and(|st| st.dirty)
    }
    /// Puts a state in place (a new inode).
    pub fn set_state(&self, state: InodeState) {
        *self.state.write() = Some(state);
    }
    /// Encodes the state into the dinode's body in `tx`. Exclusive lock held.
    pub fn encode(&self, tx: &mut Tx<'_>) -> Result<()> {
        let mut guard = self.state.write();
        let Some(st) = guard.as_mut() else { return Ok(()) };
        let raw = on_disk(st);
        tx.modify(self.block(), self.lock_no(), MetaKind::Dinode, |body| write_fixed(body, &raw))?;
        st.dirty = false;
        Ok(())
    }
}

/// The fixed part as the disk may see it now.
fn on_disk(st: &InodeState) -> RawDinode {
    let mut raw = st.raw;
    if raw.mode.get() & S_IFMT == S_IFREG && st.disk_size < raw.size.get() {
        raw.size.set(st.disk_size);
    }
    raw
}

/// Puts everything but the header into a body.
pub(crate) fn write_fixed(body: &mut [u8], raw: &RawDinode) {
    const HEAD: usize = braid_format::meta::MetaHeader::LEN;
    if let (Some(to), Some(from)) =
        (body.get_mut(HEAD..RawDinode::TAIL_AT), raw.as_bytes().get(HEAD..RawDinode::TAIL_AT))
    {
        to.copy_from_slice(from);
    }
}

/// A locked inode: guard, and the inode with its state loaded.
pub(crate) struct Locked {
    /// Dropped last: unlocks.
    pub inode: Arc<Inode>,
    /// The hold.
    pub guard: Guard,
}

impl Locked {
    /// The state.
    ///
    /// # Panics
    /// Never: a `Locked` is made only with a state loaded, and it is unloaded only when no guard is out.
    pub fn st(&self) -> parking_lot::MappedRwLockReadGuard<'_, InodeState> {
        RwLockReadGuard::map(self.inode.state.read(), |s| s.as_ref().expect("state under lock"))
    }
    /// The state, to change (exclusive lock, or times under it).
    pub fn st_mut(&self) -> parking_lot::MappedRwLockWriteGuard<'_, InodeState> {
        RwLockWriteGuard::map(self.inode.state.write(), |s| s.as_mut().expect("state under lock"))
    }
    /// Number.
    pub fn ino(&self) -> InodeNo {
        self.inode.ino
    }
    /// Its cluster lock.
    pub fn lock_no(&self) -> LockNo {
        self.inode.lock_no()
    }
    /// Attributes.
    pub fn attr(&self, geo: Geometry) -> Attr {
        // Before the state: what is linked in between counts twice, rather than not at all.
        let unlinked = self.inode.data.unlinked();
        let st = self.st();
        // Mapped pages may hold at least one byte.
        let unlinked = unlinked.max(u64::from(self.inode.may_have_unseen_stores()) * BLOCKS_UNIT);
        let blocks512 = blocks512(&st.raw, unlinked, geo.block_size.bytes());
        attr_of(self.inode.ino, &st.raw, blocks512)
    }
    /// `S_IFMT` bits.
    pub fn file_type(&self) -> u32 {
        self.st().raw.mode.get() & S_IFMT
    }
    /// A directory?
    pub fn is_dir(&self) -> bool {
        self.file_type() == S_IFDIR
    }
    /// Refuses anything but a directory that still exists.
    pub fn require_dir(&self) -> Result<()> {
        if !self.is_dir() {
            return Err(Error::NotDirectory);
        }
        if self.st().raw.nlink.get() == 0 {
            return Err(Error::NotFound);
        }
        Ok(())
    }
    /// How the tail is used.
    pub fn layout(&self) -> Result<Layout> {
        Layout::from_u16(self.st().raw.layout.get())
            .ok_or(Error::Inconsistent { block: self.inode.block(), what: "layout" })
    }
    /// Changes fixed fields in memory and in the body, in `tx`.
    pub fn update(&self, tx: &mut Tx<'_>, f: impl FnOnce(&mut RawDinode)) -> Result<()> {
        self.inode.update(tx, f)
    }
    /// Changes the whole body (tail included) in `tx`, then encodes the state over its fixed part.
    /// `f` gets the body; it changes fixed fields only through [`Locked::update`] or `st_mut`.
    pub fn modify_body<R>(&self, tx: &mut Tx<'_>, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let r = tx.modify(self.inode.block(), self.lock_no(), MetaKind::Dinode, f)?;
        self.inode.encode(tx)?;
        Ok(r)
    }
    /// The dinode's body (tail and inline attributes).
    pub fn body(&self, meta: &Meta) -> Result<crate::meta::Body> {
        meta.read(self.inode.block(), self.lock_no(), MetaKind::Dinode)
    }
}

/// Bytes in a unit of `st_blocks`.
const BLOCKS_UNIT: u64 = 512;

/// Units of 512 bytes held. Contents that have no block count too, of which there are `unlinked`
/// bytes: archivers take a file without blocks for one hole.
fn blocks512(raw: &RawDinode, unlinked: u64, block: Bytes) -> u64 {
    const UNIT: u64 = BLOCKS_UNIT;
    let (size, block) = (raw.size.get(), block.get());
    let linked = raw.blocks.get().saturating_mul(block / UNIT);
    let whole = size.div_ceil(block).saturating_mul(block / UNIT);
    if raw.mode.get() & S_IFMT != S_IFREG || linked >= whole {
        return linked;
    }
    // In the dinode itself.
    let stuffed = if size < block { size.div_ceil(UNIT) } else { 0 };
    // An estimate: some of it may replace blocks.
    linked.saturating_add(unlinked / UNIT).min(whole).max(stuffed)
}

/// Attributes from a dinode.
fn attr_of(ino: InodeNo, raw: &RawDinode, blocks512: u64) -> Attr {
    Attr {
        ino,
        generation: raw.inode_generation.get(),
        size: raw.size.get(),
        blocks512,
        atime: time_of(raw.atime),
        mtime: time_of(raw.mtime),
        ctime: time_of(raw.ctime),
        btime: time_of(raw.btime),
        mode: raw.mode.get(),
        nlink: raw.nlink.get(),
        uid: raw.uid.get(),
        gid: raw.gid.get(),
        rdev: raw.rdev.get(),
        blksize: 1 << 20,
        flags: raw.flags.get(),
    }
}

/// From disk.
pub(crate) fn time_of(t: RawTime) -> Time {
    Time { sec: t.sec.get(), nsec: t.nsec.get() }
}
/// To disk.
pub(crate) fn raw_time(t: Time) -> RawTime {
    RawTime { sec: t.sec.into(), nsec: t.nsec.into() }
}
/// From nanoseconds since 1970.
fn time_from_nanos(at: NonZeroU64) -> Time {
    let (sec, nsec) = (at.get() / 1_000_000_000, at.get() % 1_000_000_000);
    // Both fit: 64 bits of nanoseconds end in 2554.
    Time { sec: i64::try_from(sec).unwrap_or(i64::MAX), nsec: u32::try_from(nsec).unwrap_or(0) }
}
/// The present in nanoseconds since 1970; at least 1.
pub(crate) fn now_nanos() -> u64 {
    let now = now();
    let sec = u64::try_from(now.sec).unwrap_or(0);
    sec.saturating_mul(1_000_000_000).saturating_add(now.nsec.into()).max(1)
}
/// The present, as file times have it.
pub(crate) fn now() -> Time {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time { sec: t.tv_sec, nsec: u32::try_from(t.tv_nsec).unwrap_or(0) }
}

/// Inodes in memory, by number.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    shards: [Mutex<HashMap<InodeNo, Arc<Inode>>>; 16],
}

impl InodeTable {
    fn shard(&self, ino: InodeNo) -> &Mutex<HashMap<InodeNo, Arc<Inode>>> {
        let n = usize::try_from((ino.get() ^ (ino.get() >> 4)) % 16).unwrap_or(0);
        &self.shards[n]
    }
    /// The inode, made if it is not there.
    pub fn get(&self, ino: InodeNo) -> Arc<Inode> {
        self.shard(ino).lock().entry(ino).or_insert_with(|| Arc::new(Inode::new(ino))).clone()
    }
    /// The inode, if it is in memory.
    pub fn find(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.shard(ino).lock().get(&ino).cloned()
    }
    /// Forgets an inode that nobody uses (called after its lock was given up).
    pub fn evict(&self, ino: InodeNo) {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.get(&ino) {
            let idle = inode.opens.load(Ordering::Acquire) == 0
                && Arc::strong_count(inode) == 1
                && !inode.data.has_lost()
                && !inode.recorded_opener.load(Ordering::SeqCst);
            if idle {
                shard.remove(&ino);
            }
        }
    }
    /// Inodes that are not open here although their locks' records may say so.
    pub fn closed_openers(&self) -> Vec<Arc<Inode>> {
        let left = |i: &&Arc<Inode>| {
            i.recorded_opener.load(Ordering::SeqCst) && i.opens.load(Ordering::SeqCst) == 0
        };
        let of = |shard: &Mutex<HashMap<InodeNo, Arc<Inode>>>| -> Vec<_> {
            shard.lock().values().filter(left).cloned().collect()
        };
        self.shards.iter().flat_map(of).collect()
    }
    /// All inodes in memory (a copy).
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()).collect()
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}

/// Loads `inode`'s state if it is not loaded, and brings it up to what `guard` allows. The lock is
/// held by `guard`.
pub(crate) fn load(meta: &Meta, inode: &Inode, guard: &Guard) -> Result<()> {
    let as_it_was = |st: &InodeState| match guard.mode() {
        Mode::Exclusive => !st.concurrent && st.deferred_mtime == 0,
        Mode::Concurrent => st.concurrent,
        Mode::Shared | Mode::Unlocked => true,
    };
    if inode.state_ref().is_some_and(|st| as_it_was(&st)) {
        return Ok(());
    }
    if !inode.is_loaded() {
        read_state(meta, inode, guard.written())?;
    }
    if let Some(mut st) = inode.state_mut() {
        match guard.mode() {
            Mode::Exclusive => {
                if st.concurrent {
                    st.changed_concurrently(guard.written());
                }
                st.settle_deferred_mtime();
            }
            Mode::Concurrent => st.concurrent = true,
            Mode::Shared | Mode::Unlocked => {}
        }
    }
    Ok(())
}

/// Reads a state that is not loaded; contents were changed at `written`, or before.
fn read_state(meta: &Meta, inode: &Inode, written: u64) -> Result<()> {
    let body = read_dinode(meta, inode)?;
    let (raw, _) = RawDinode::read_from_prefix(&body).map_err(|_| Error::Inconsistent {
        block: inode.block(),
        what: "dinode shorter than its fixed part",
    })?;
    if Layout::from_u16(raw.layout.get()).is_none() {
        return Err(Error::Inconsistent { block: inode.block(), what: "layout" });
    }
    let mut guard = inode.state.write();
    if guard.is_none() {
        let mut state = InodeState::new(raw);
        state.changed_concurrently(written);
        *guard = Some(state);
    }
    Ok(())
}

/// How often a dinode that fails its checksum is read.
const TORN_READS: u32 = 5;

/// The body of a dinode whose lock is held.
///
/// The number may be stale: the slot may be free, hold a block of another inode, or have become
/// something else altogether. Then it is not covered by the lock that is held, and may be written
/// while it is read: a checksum that does not fit is believed only when it stays.
fn read_dinode(meta: &Meta, inode: &Inode) -> Result<crate::meta::Body> {
    use braid_format::FormatError as F;
    let mut reads = 0;
    loop {
        let source = match meta.read(inode.block(), inode.lock_no(), MetaKind::Dinode) {
            Err(Error::Damaged { source, .. }) => source,
            other => return other,
        };
        reads += 1;
        match source {
            F::WrongKind { .. } | F::BadMagic { .. } => return Err(Error::Stale(inode.ino)),
            F::ChecksumMismatch { .. } if reads < TORN_READS => {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            source => return Err(Error::Damaged { block: inode.block(), source }),
        }
    }
}
