//! File contents: dirty data held under exclusive locks, direct I/O, flush, truncate, fallocate.
//!
//! Small files stand in the dinode's tail (*stuffed*): written by transactions. All others are in
//! extents. A write goes one of two ways:
//! * *cached*: into [`pages::Pages`] of the inode, its space promised at once, so that only the
//!   write can fail for want of space; [`flush`] later claims runs (delayed allocation), writes
//!   them, and links them in one transaction;
//! * *direct* (`O_DIRECT`, and large aligned writes, which a cache would only slow down): from the
//!   caller's memory to the devices, before the call returns or (without `O_DIRECT`) soon after the
//!   program was answered ([`behind`]). Neither is durable before fsync.
//!
//! Clean data is not cached here: that is the kernel's page cache's business.
//!
//! Invariants:
//! * data is on the devices before the transaction that makes it visible: a crash never shows a
//!   block's former contents;
//! * a dirty block over a hole has its space promised;
//! * bytes past the end of the file in its last block are zero in a dirty page, and undefined on
//!   disk: whoever makes the file longer writes zeros there first;
//! * a dinode that still says `Stuffed` while dirty pages exist has all its bytes in them;
//! * `disk_size` is below the size only while there are dirty pages or answered writes under way.
//!
//! Locks of one inode, in order: cluster lock, [`Promise`] (`change`), transaction, `map`, `pages`,
//! state. [`Promise`] is held by whoever flushes or changes the map, so both go on beside readers
//! and direct writers ([`braid_lock::Local::Shared`] under an exclusive cluster lock).

mod behind;
mod bound;
mod copy;
mod direct;
mod extents;
mod flush;
mod link;
mod pages;
mod punch;
mod read;
pub(crate) mod relocate;
mod seek;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_behind;
#[cfg(test)]
mod tests_beside;
#[cfg(test)]
mod tests_copies;
#[cfg(test)]
mod tests_demotion;
#[cfg(test)]
mod tests_interval;
mod truncate;
pub(crate) mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::BlockNo;
use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_lock::{Local, Mode};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::alloc::Reservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState, Locked, now, raw_time};
use crate::map::{Bounds, Load, Part};
use crate::meta::Body;
use crate::mode::{S_IFDIR, S_IFREG};
use crate::tree::{Reader, Root, root_of};

pub(crate) use behind::Behind;
pub(crate) use bound::DirtyBound;
pub(crate) use copy::copy_file_range;
pub use read::ReadHold;
pub(crate) use read::{read, read_into, read_reply};
pub(crate) use seek::lseek;
pub(crate) use space::fallocate;
pub(crate) use truncate::{free_contents, truncate};
pub(crate) use write::write;

/// Largest file.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// First and longest pause before contents that a device refused are written again by nobody's wish.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// What an inode holds besides its dinode.
#[derive(Debug, Default)]
pub(crate) struct FileData {
    /// Memory that `pages` hold: to be read without a lock.
    dirty: AtomicU64,
    /// Bytes of direct writes under way that go to holes.
    behind: AtomicU64,
    /// What became of an answered write that could be kept nowhere: for the next to sync the file.
    lost: Mutex<Option<Error>>,
    pages: RwLock<pages::Pages>,
    /// A device has refused contents: until when nobody tries who was not asked to, and how long the
    /// pause was.
    put_off: Mutex<Option<(Instant, Duration)>>,
    /// Some consecutive leaves of the map, decoded.
    map: RwLock<Option<Part>>,
    change: Mutex<Promise>,
    /// Where the last run that was claimed ended: (file block, pool block).
    last_run: Mutex<Option<(u64, BlockNo)>>,
}

/// Space promised to dirty pages.
#[derive(Debug, Default)]
struct Promise {
    reservation: Option<Reservation>,
    /// What the flush will ask of the tree.
    load: Load,
    /// Blocks that were promised and are kept back, because writing them failed: to be promised anew.
    short: u64,
}

impl FileData {
    /// Contents that the devices do not have yet.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire) > 0
    }
    /// Memory that they take.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }
    /// Bytes that blocks of the file may not hold yet, at most.
    pub fn unlinked(&self) -> u64 {
        self.dirty_bytes() + self.behind.load(Ordering::Acquire)
    }
    /// Whether contents were lost, and nobody has heard of it yet.
    pub fn has_lost(&self) -> bool {
        self.lost.lock().is_some()
    }
    /// Whether contents were refused a short while ago: only their own users try again. Each attempt
    /// that fails takes blocks out of use ([`crate::alloc::Run::keep_back`]).
    pub fn is_put_off(&self) -> bool {
        self.put_off.lock().is_some_and(|(until, _)| Instant::now() < until)
    }
    fn put_off(&self, error: &Error) {
        if matches!(error, Error::Contents(_)) {
            let mut put_off = self.put_off.lock();
            let pause = put_off.map_or(PAUSE_MIN, |(_, pause)| (pause * 2).min(PAUSE_MAX));
            *put_off = Some((Instant::now() + pause, pause));
        }
    }
    /// Drops the decoded map: the lock is about to be released.
    pub fn forget_map(&self) {
        *self.map.write() = None;
        *self.last_run.lock() = None;
    }
}

/// An inode whose cluster lock is held: by a guard, or by the demotion that gives it up.
#[derive(Clone, Copy)]
struct Held<'a> {
    core: &'a Core,
    inode: &'a Arc<Inode>,
}

/// The few fields of a state that all paths look at.
#[derive(Debug, Clone, Copy)]
struct View {
    size: u64,
    disk_size: u64,
    layout: Layout,
}

impl<'a> Held<'a> {
    fn of(core: &'a Core, locked: &'a Locked) -> Self {
        Self { core, inode: &locked.inode }
    }
    fn data(&self) -> &'a FileData {
        &self.inode.data
    }
    /// log2 of the block size.
    fn shift(&self) -> u32 {
        self.core.volume.geo.block_size.shift()
    }
    fn block_size(&self) -> u64 {
        1 << self.shift()
    }
    /// Blocks that `bytes` from a block's start touch.
    fn blocks_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block_size())
    }
    fn view(&self) -> Result<View> {
        let st = self.inode.state_ref().ok_or(Error::Stale(self.inode.ino))?;
        let layout = Layout::from_u16(st.raw.layout.get()).ok_or_else(|| self.bad("layout"))?;
        Ok(View { size: st.raw.size.get(), disk_size: st.disk_size, layout })
    }
    fn change_state(&self, f: impl FnOnce(&mut InodeState)) -> Result<()> {
        f(&mut *self.inode.state_mut().ok_or(Error::Stale(self.inode.ino))?);
        Ok(())
    }
    fn bad(&self, what: &'static str) -> Error {
        Error::Inconsistent { block: self.inode.block(), what }
    }
    fn reader(&self) -> Reader<'a> {
        Reader { meta: &self.core.meta, inode: self.inode }
    }
    fn root(&self) -> Result<Root> {
        root_of(self.inode, self.core.volume.geo.body_len())
    }
    fn bounds(&self) -> Bounds {
        let (start, end) = self.core.volume.data_bounds();
        Bounds { start, end }
    }
    fn body(&self) -> Result<Body> {
        self.core.meta.read(self.inode.block(), self.inode.lock_no(), MetaKind::Dinode)
    }
    /// The bytes of a stuffed file.
    fn stuffed<'b>(&self, body: &'b [u8], size: u64) -> Result<&'b [u8]> {
        let capacity = self.root()?.capacity;
        usize::try_from(size)
            .ok()
            .filter(|n| *n <= capacity)
            .and_then(|n| body.get(RawDinode::TAIL_AT..)?.get(..n))
            .ok_or_else(|| self.bad("size of a stuffed file"))
    }
    /// The result of a transaction; see [`Core::sealed`].
    fn fatal<T>(&self, result: Result<T>) -> Result<T> {
        self.core.sealed(result)
    }
    /// `change`, once nobody writes directly in the blocks of `len` bytes at `offset`: as long as it
    /// is held nobody will.
    fn change_apart(&self, offset: u64, len: u64) -> MutexGuard<'a, Promise> {
        let shift = self.shift();
        // A page of the kernel's may lie anywhere.
        let end = self.blocks_for(offset.saturating_add(len)).saturating_mul(self.block_size());
        let range = offset >> shift << shift..end;
        let behind = &self.core.behind;
        loop {
            behind.wait_for(self.inode.ino, &range);
            let change = self.data().change.lock();
            if !behind.is_in(self.inode.ino, &range) {
                return change;
            }
        }
    }
    /// Accounts for the memory that dirty pages hold now. `change` held.
    fn recount(&self) {
        let bytes = self.data().pages.read().bytes();
        let before = self.data().dirty.swap(bytes, Ordering::AcqRel);
        self.core.dirty.moved(self.inode, before, bytes);
    }
}

/// Refuses what has no contents of its own.
fn require_regular(locked: &Locked) -> Result<()> {
    match locked.file_type() {
        S_IFREG => Ok(()),
        S_IFDIR => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}

/// Contents changed now.
fn touch(st: &mut InodeState) {
    let t = raw_time(now());
    st.raw.mtime = t;
    st.raw.ctime = t;
    st.dirty = true;
}

/// Writes dirty contents, then the transaction that makes them visible; not durable by itself.
/// Exclusive cluster lock held.
///
/// # Errors
/// `Contents` when a device refuses: the data stays dirty, so every later flush tells again.
pub(crate) fn flush_inode(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    flush::flush(Held::of(core, locked), flush::What::All)
}

/// Contents (and all metadata, unless `data_only`) durable on return. No lock held.
///
/// # Errors
/// As [`flush_inode`]; `Withdrawn` when a flush of the devices failed.
pub(crate) fn fsync(core: &Arc<Core>, inode: &Arc<Inode>, data_only: bool) -> Result<()> {
    core.behind.settle_file(inode)?;
    if inode.is_dirty() {
        let locked = core.lock(inode.ino, Mode::Exclusive, Local::Shared)?;
        let what = if data_only { flush::What::Contents } else { flush::What::All };
        flush::flush(Held::of(core, &locked), what)?;
    }
    core.meta.barrier()
}

/// Writes all dirty contents (and the dinode's dirty fields) of an inode whose exclusive lock this
/// node gives up: no new lock, no new reservation.
pub(crate) fn flush_for_demotion(core: &Core, inode: &Arc<Inode>) -> Result<()> {
    flush::flush(Held { core, inode }, flush::What::All)
}
