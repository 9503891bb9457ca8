//! Reads: dirty pages over device data over zeros, straight into the memory that is handed on.

use std::sync::Arc;
use std::time::Duration;

use braid_format::dinode::Layout;
use braid_lock::{Held, Mode};
use braid_pool::PoolRequest;
use braid_pool::device::{HugeBuf, fitting, memory_part};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::{HeldInode, View, require_regular};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::handle::OpenFile;
use crate::inode::Locked;
use crate::readahead::{ReadTurn, ReadaheadLimiter};

/// Buffers up to this size are kept.
const SCRATCH_MAX: usize = 8 << 20;
/// As many as this: what the kernel has under way of two windows that it reads ahead, in requests of
/// 1 MiB, and some for others.
const SCRATCH_KEPT: usize = 24;
/// Before a page fill asks again for the lock that it needs.
const FILL_PAUSE: Duration = Duration::from_millis(1);

/// What was used last is on top: it is in the processors' caches. One for all threads, not one each:
/// there are more threads than reads under way, and only so many huge pages. In ordinary pages 1 MiB
/// is 256 segments, of which a device may take few at a time (a virtio disk with a ring of 256
/// descriptors: one request after the other).
static SCRATCH: Mutex<Vec<HugeBuf>> = Mutex::new(Vec::new());

/// What part of the node's memory reads under way may fill, beyond what is kept.
const READS_PART: usize = 16;
/// Reads of at least so many bytes wait until there is memory. The thread that has it waits for
/// devices only, so a wait for it may be under locks.
const READS_LEAST: u64 = 16 << 10;

/// The reads under way that have memory.
static READS: ReadaheadLimiter =
    ReadaheadLimiter::new(|| memory_part(READS_PART) as u64, READS_LEAST);

/// What part of it copies within the file system may fill, of what they read and have not yet written. What they write
/// takes several times as much for a moment, so this is little.
const COPIES_PART: usize = 64;

/// The copies under way that have memory.
static COPIES: ReadaheadLimiter =
    ReadaheadLimiter::new(|| memory_part(COPIES_PART) as u64, READS_LEAST);

/// Lends `f`, which waits for nothing but devices, a buffer, `len` bytes of whatever was in it before.
pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    lend(&READS, len, f)
}

/// The same to a copy, which may take locks meanwhile. The caller holds none: it may wait for one that does.
pub(super) fn with_copy_buffer<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    lend(&COPIES, len, f)
}

fn lend<R>(limiter: &ReadaheadLimiter, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let _turn = limiter.wait(0, len as u64);
    let kept = SCRATCH.lock().pop().filter(|b| b.len() >= len);
    let mut buf = kept.unwrap_or_else(|| HugeBuf::new(len));
    let r = f(buf.get_mut(..len).unwrap_or_default());
    if buf.len() <= SCRATCH_MAX {
        let mut kept = SCRATCH.lock();
        if kept.len() < fitting(SCRATCH_KEPT) {
            kept.push(buf);
        }
    }
    r
}

/// Memory for consecutive blocks that are not dirty.
struct Want<'b> {
    first: u64,
    memory: &'b mut [u8],
}

impl HeldInode<'_> {
    /// Fills `memory` (whole blocks) with file blocks from `first`. Bytes past the end of the file
    /// are undefined. Stuffed files without dirty pages are not read here.
    pub fn read_blocks(&self, first: u64, memory: &mut [u8]) -> Result<()> {
        let shift = self.shift();
        if !self.data().is_dirty() {
            return self.read_devices(smallvec![Want { first, memory }]);
        }
        let mut wants = SmallVec::new();
        {
            let pages = self.data().pages.read();
            let end = first + ((memory.len() as u64) >> shift);
            let mut rest = memory;
            let mut at = first;
            for run in pages.runs(shift, first..end) {
                let (clean, later) = rest.split_at_mut(bytes(run.start - at, shift));
                if !clean.is_empty() {
                    wants.push(Want { first: at, memory: clean });
                }
                let (dirty, later) = later.split_at_mut(bytes(run.end - run.start, shift));
                let mut to = &mut *dirty;
                for (_, from) in pages.slices(shift, run.clone()) {
                    let (now, next) = to.split_at_mut(from.len());
                    now.copy_from_slice(from);
                    to = next;
                }
                rest = later;
                at = run.end;
            }
            if !rest.is_empty() {
                wants.push(Want { first: at, memory: rest });
            }
        }
        self.read_devices(wants)
    }

    /// Reads from the devices, all at once; holes become zeros.
    fn read_devices(&self, wants: SmallVec<[Want<'_>; 1]>) -> Result<()> {
        let shift = self.shift();
        let block_size = self.core.volume.geo.block_size;
        let mut requests: SmallVec<[PoolRequest<'_>; 2]> = SmallVec::new();
        for want in wants {
            let mut rest = want.memory;
            let end = want.first + ((rest.len() as u64) >> shift);
            if want.first == end {
                continue;
            }
            for piece in self.lookup(want.first..end)? {
                let (now, later) = rest.split_at_mut(bytes(piece.len, shift));
                match piece.written() {
                    Some(at) => requests.push(PoolRequest::read(block_size.offset_of(at), now)),
                    None => now.fill(0),
                }
                rest = later;
            }
        }
        self.run(&mut requests)
    }

    /// One block as it is now, with zeros past the end of the file, so that a part of it can be
    /// written.
    pub fn block_now(&self, block: u64, size: u64, memory: &mut [u8]) -> Result<()> {
        let start = block << self.shift();
        if start >= size {
            memory.fill(0);
            return Ok(());
        }
        self.read_blocks(block, memory)?;
        if let Some(past) =
            usize::try_from(size - start).ok().and_then(|valid| memory.get_mut(valid..))
        {
            past.fill(0);
        }
        Ok(())
    }
}

/// Bytes in `blocks` blocks of something that is in memory.
pub(super) fn bytes(blocks: u64, shift: u32) -> usize {
    usize::try_from(blocks << shift).expect("length of a buffer")
}

/// Which bytes of a file are to be read, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct ReadRange {
    /// First byte.
    pub offset: u64,
    /// Bytes, at most: the read ends at the end of the file.
    pub len: u32,
    /// The kernel fills pages, and holds their locks meanwhile.
    pub fill: bool,
}

/// Holds the lock of an inode that was read, until it is dropped.
pub struct ReadHold {
    _locked: Locked,
}
impl std::fmt::Debug for ReadHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReadHold")
    }
}

/// Reads a range and calls `reply` with its bytes while the inode's lock is held.
///
/// # Errors
/// `BadHandle`, `IsDirectory`, `Contents` when a device cannot read.
pub(crate) fn read_reply<R>(
    core: &Arc<Core>,
    file: &OpenFile,
    range: ReadRange,
    reply: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let locked = lock_to_read(core, file, range)?;
    let readahead = range.fill.then_some(&file.readahead);
    let plan =
        ReadPlan::of(HeldInode::of(core, &locked), range.offset, range.len.into(), range.fill)?;
    plan.with_bytes(readahead, reply)
}

/// As [`read_reply`], into the caller's memory: returns how many bytes, and the hold of the lock. Whole
/// blocks are read straight into it, those behind the last byte that was asked for too.
///
/// # Errors
/// As [`read_reply`].
pub(crate) fn read_into(
    core: &Arc<Core>,
    file: &OpenFile,
    range: ReadRange,
    memory: &mut [u8],
) -> Result<(usize, ReadHold)> {
    let locked = lock_to_read(core, file, range)?;
    let readahead = range.fill.then_some(&file.readahead);
    let len = u64::from(range.len).min(memory.len() as u64);
    let plan = ReadPlan::of(HeldInode::of(core, &locked), range.offset, len, range.fill)?;
    let n = plan.into_memory(readahead, memory)?;
    Ok((n, ReadHold { _locked: locked }))
}

/// Locks an inode that is to be read.
fn lock_to_read(core: &Arc<Core>, file: &OpenFile, range: ReadRange) -> Result<Locked> {
    if !range.fill && !file.readable() {
        return Err(Error::BadHandle);
    }
    let locked = if range.fill {
        let locked = lock_to_fill(core, file, range)?;
        if file.inode.fills_pages() {
            // The number of blocks: see `Locked::attr`.
            core.kernel.attributes_changed(file.inode.ino);
        }
        locked
    } else {
        core.lock_concurrent(file.inode.ino, Mode::Shared)?
    };
    require_regular(&locked)?;
    Ok(locked)
}

/// Locks an inode whose pages the kernel fills. A page that may be mapped for writing is dirtied
/// unasked: it lives under an exclusive lock (see `Inode::writers`).
fn lock_to_fill(core: &Arc<Core>, file: &OpenFile, range: ReadRange) -> Result<Locked> {
    let inode = &file.inode;
    let held = Held::Filled(range.offset, range.offset.saturating_add(range.len.into()));
    loop {
        let has_writers = || inode.writers.load(std::sync::atomic::Ordering::Acquire) > 0;
        let mode = if has_writers() { Mode::Exclusive } else { Mode::Shared };
        let locked = core.lock_fill(inode.ino, mode, held)?;
        // Writers come under the exclusive lock: there is no new one while a weaker one is held.
        if locked.guard.mode() == Mode::Exclusive || !has_writers() {
            return Ok(locked);
        }
        // Let in while a shared lock goes, or a writer came before this lock. Waiting in the queue
        // like anybody else would not do: the exclusive hold of a thread before this one may be
        // given up first, and waits for this very page.
        drop(locked);
        std::thread::sleep(FILL_PAUSE);
    }
}

/// What a read returns, decided once: the inode's lock is held until it is done.
struct ReadPlan<'a> {
    held: HeldInode<'a>,
    offset: u64,
    /// One past the last byte; not below `offset`.
    end: u64,
    /// The bytes are in the dinode's tail.
    stuffed: Option<View>,
}

impl<'a> ReadPlan<'a> {
    /// Of `len` bytes from `offset`, those that the file has. Waits for direct writes under way there.
    /// `fill`: for pages of the kernel.
    fn of(held: HeldInode<'a>, offset: u64, len: u64, fill: bool) -> Result<Self> {
        let asked = offset..offset.saturating_add(len);
        // First, then the size: a page that is filled beside a write to it is as long as the write makes
        // the file, or the write is not answered early.
        held.core.inflight.wait_for(held.inode.ino, &asked);
        if fill {
            // What was waited for is in the pages.
            held.inode.unseen_writes.filled(&asked);
        }
        // Dirtiness is looked at first: a flush beside this reader first changes the layout, then drops
        // the pages, and a stuffed file gets pages only when it has no readers.
        let dirty = held.data().is_dirty();
        let view = held.view()?;
        let stuffed = (view.layout == Layout::Stuffed && !dirty).then_some(view);
        Ok(Self { held, offset, end: view.size.min(asked.end).max(offset), stuffed })
    }

    /// First block, and bytes of whole blocks from there to the end.
    fn blocks(&self) -> (u64, usize) {
        let shift = self.held.shift();
        let first = self.offset >> shift;
        (first, bytes(self.held.blocks_for(self.end - (first << shift)), shift))
    }

    /// Waits for the file's turn, if reading ahead.
    fn turn<'r>(&self, readahead: Option<&'r ReadaheadLimiter>) -> Option<ReadTurn<'r>> {
        let (first, n) = self.blocks();
        readahead.and_then(|r| r.wait(first << self.held.shift(), n as u64))
    }

    /// Calls `f` with the bytes.
    fn with_bytes<R>(
        &self,
        readahead: Option<&ReadaheadLimiter>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        if self.offset >= self.end {
            return Ok(f(&[]));
        }
        if let Some(view) = self.stuffed {
            let body = self.held.body()?;
            let all = self.held.stuffed(&body, view.size)?;
            return Ok(f(all.get(small(self.offset)..small(self.end)).unwrap_or_default()));
        }
        let (first, n) = self.blocks();
        let skipped = small(self.offset - (first << self.held.shift()));
        // First: those that wait for it have no memory.
        let turn = self.turn(readahead);
        with_scratch(n, |memory| {
            self.held.read_blocks(first, memory)?;
            drop(turn);
            let end = skipped + small(self.end - self.offset);
            Ok(f(memory.get(skipped..end).unwrap_or_default()))
        })
    }

    /// Puts the bytes into `memory`, without a copy if they begin with a block and whole blocks fit.
    fn into_memory(self, readahead: Option<&ReadaheadLimiter>, memory: &mut [u8]) -> Result<usize> {
        let (first, n) = self.blocks();
        let aligned = first << self.held.shift() == self.offset;
        if let Some(whole) = memory.get_mut(..n).filter(|_| aligned && self.stuffed.is_none()) {
            if !whole.is_empty() {
                let _turn = self.turn(readahead);
                self.held.read_blocks(first, whole)?;
            }
            return Ok(small(self.end - self.offset));
        }
        self.with_bytes(readahead, |bytes| {
            memory[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        })
    }
}

/// Calls `f` with the contents of `len` bytes from `offset`, cut at the end of the file.
pub(super) fn with_bytes<R>(
    held: HeldInode<'_>,
    offset: u64,
    len: u64,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    ReadPlan::of(held, offset, len, false)?.with_bytes(None, f)
}

/// An offset inside something that is in memory.
pub(super) fn small(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
