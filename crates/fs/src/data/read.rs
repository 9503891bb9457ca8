//! Reads: dirty pages over device data over zeros, straight into the memory that is handed on.

use std::sync::Arc;
use std::time::Duration;

use braid_format::dinode::Layout;
use braid_lock::Mode;
use braid_pool::PoolRequest;
use braid_pool::device::{AlignedBuf, HugeBuf, fitting};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::{Held, require_regular};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::handle::OpenFile;
use crate::inode::Locked;
use crate::readahead::ReadaheadLimiter;

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

/// Lends `f` a buffer, `len` bytes of whatever was in it before.
pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
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

impl Held<'_> {
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

    /// Issues requests for contents; the first that failed is the error.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        self.core.volume.pool.run(requests);
        first_failed(requests)
    }

    /// As [`Held::run`], for writes of what other nodes may be writing too (concurrent lock).
    pub fn run_beside(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        self.core.volume.pool.run_beside(requests);
        first_failed(requests)
    }

    /// One block as it is now, zero past the end of the file: to be written in part.
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

/// Reads up to `len` bytes at `offset` and calls `reply` with them while the inode's lock is held.
/// `fill`: the kernel fills pages, whose locks it holds meanwhile.
///
/// # Errors
/// `BadHandle`, `IsDirectory`, `Contents` when a device cannot read.
pub(crate) fn read_reply<R>(
    core: &Arc<Core>,
    file: &OpenFile,
    offset: u64,
    len: u32,
    fill: bool,
    reply: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let locked = lock_to_read(core, file, fill)?;
    let readahead = fill.then_some(&file.readahead);
    with_bytes(Held::of(core, &locked), offset, u64::from(len), readahead, reply)
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

/// As [`read_reply`], into the caller's memory: returns how many bytes, and the hold of the lock.
///
/// # Errors
/// As [`read_reply`].
///
/// # Panics
/// If `memory` is shorter than `len`.
pub(crate) fn read_into(
    core: &Arc<Core>,
    file: &OpenFile,
    (offset, len): (u64, u32),
    fill: bool,
    memory: &mut [u8],
) -> Result<(usize, ReadHold)> {
    let locked = lock_to_read(core, file, fill)?;
    let readahead = fill.then_some(&file.readahead);
    let held = Held::of(core, &locked);
    let blocks = bytes(held.blocks_for(u64::from(len)), held.shift());
    let aligned = offset & (held.block_size() - 1) == 0;
    let n = if aligned && blocks <= memory.len() {
        in_memory(held, (offset, len), readahead, memory)?
    } else {
        with_bytes(held, offset, u64::from(len), readahead, |bytes| copy_out(bytes, memory))?
    };
    Ok((n, ReadHold { _locked: locked }))
}

fn copy_out(bytes: &[u8], memory: &mut [u8]) -> usize {
    memory[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

/// [`with_bytes`] without memory of its own, from the beginning of a block.
fn in_memory(
    held: Held<'_>,
    (offset, len): (u64, u32),
    readahead: Option<&ReadaheadLimiter>,
    memory: &mut [u8],
) -> Result<usize> {
    held.core.behind.wait_for(held.inode.ino, &(offset..offset.saturating_add(len.into())));
    let (in_tail, view) = stuffed_now(held)?;
    if in_tail {
        let body = held.body()?;
        let all = held.stuffed(&body, view.size)?;
        let end = view.size.min(offset.saturating_add(len.into()));
        return Ok(copy_out(all.get(small(offset)..small(end)).unwrap_or_default(), memory));
    }
    let end = view.size.min(offset.saturating_add(len.into()));
    if offset >= end {
        return Ok(0);
    }
    let n = bytes(held.blocks_for(end - offset), held.shift());
    let turn = readahead.and_then(|r| r.wait(offset, n as u64));
    held.read_blocks(offset >> held.shift(), &mut memory[..n])?;
    drop(turn);
    Ok(small(end - offset))
}

/// Locks an inode that is to be read.
fn lock_to_read(core: &Arc<Core>, file: &OpenFile, fill: bool) -> Result<Locked> {
    if !fill && !file.readable() {
        return Err(Error::BadHandle);
    }
    let locked = if fill {
        let locked = lock_to_fill(core, file)?;
        if file.inode.fills_pages() {
            // The number of blocks: see `Locked::attr`.
            core.kernel.attributes_changed(file.inode.ino);
        }
        locked
    } else {
        core.lock_beside(file.inode.ino, Mode::Shared)?
    };
    require_regular(&locked)?;
    Ok(locked)
}

/// Locks an inode whose pages the kernel fills. A page that may be mapped for writing is dirtied
/// unasked: it lives under an exclusive lock (see `Inode::writers`).
fn lock_to_fill(core: &Arc<Core>, file: &OpenFile) -> Result<Locked> {
    let inode = &file.inode;
    loop {
        let has_writers = || inode.writers.load(std::sync::atomic::Ordering::Acquire) > 0;
        let mode = if has_writers() { Mode::Exclusive } else { Mode::Shared };
        let locked = core.lock_fill(inode.ino, mode)?;
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

/// Calls `f` with what stands in `len` bytes from `offset`, cut at the end of the file. What is not in
/// memory is read in its turn, if there are such.
pub(super) fn with_bytes<R>(
    held: Held<'_>,
    offset: u64,
    len: u64,
    readahead: Option<&ReadaheadLimiter>,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    // First, then the size: a page that is filled beside a write to it is as long as the write makes
    // the file, or the write is not answered early.
    held.core.behind.wait_for(held.inode.ino, &(offset..offset.saturating_add(len)));
    let (in_tail, view) = stuffed_now(held)?;
    let end = view.size.min(offset.saturating_add(len));
    if offset >= end {
        return Ok(f(&[]));
    }
    if in_tail {
        let body = held.body()?;
        let all = held.stuffed(&body, view.size)?;
        let (from, to) = (small(offset), small(end));
        return Ok(f(all.get(from..to).unwrap_or_default()));
    }
    let shift = held.shift();
    let first = offset >> shift;
    let start = first << shift;
    let n = bytes(held.blocks_for(end - start), shift);
    with_scratch(n, |memory| {
        let turn = readahead.and_then(|r| r.wait(start, n as u64));
        held.read_blocks(first, memory)?;
        drop(turn);
        Ok(f(memory.get(small(offset - start)..small(end - start)).unwrap_or_default()))
    })
}

/// Whether the bytes are in the tail. Dirtiness is looked at first: a flush beside this reader
/// first
/// changes the layout, then drops the pages, and a stuffed file gets pages only when it has no
/// readers.
fn stuffed_now(held: Held<'_>) -> Result<(bool, super::View)> {
    let dirty = held.data().is_dirty();
    let view = held.view()?;
    Ok((view.layout == Layout::Stuffed && !dirty, view))
}

/// An offset inside something that is in memory.
fn small(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Reads into the caller's memory; returns the bytes read. Aligned reads are not copied.
///
/// # Errors
/// As [`read_reply`].
pub(crate) fn read(
    core: &Arc<Core>,
    file: &OpenFile,
    offset: u64,
    buf: &mut AlignedBuf,
) -> Result<usize> {
    if !file.readable() {
        return Err(Error::BadHandle);
    }
    let locked = core.lock_beside(file.inode.ino, Mode::Shared)?;
    require_regular(&locked)?;
    let held = Held::of(core, &locked);
    let asked = offset..offset.saturating_add(buf.len() as u64);
    core.behind.wait_for(file.inode.ino, &asked);
    let (stuffed, view) = stuffed_now(held)?;
    let end = view.size.min(asked.end);
    if offset >= end {
        return Ok(0);
    }
    let n = small(end - offset);
    let shift = held.shift();
    let whole = bytes(held.blocks_for(end - offset), shift);
    let aligned = offset & (held.block_size() - 1) == 0;
    match buf.get_mut(..whole) {
        Some(memory) if aligned && !stuffed => held.read_blocks(offset >> shift, memory)?,
        _ => with_bytes(held, offset, n as u64, None, |bytes| {
            if let Some(to) = buf.get_mut(..bytes.len()) {
                to.copy_from_slice(bytes);
            }
        })?,
    }
    Ok(n)
}

/// The first failure of requests for contents.
fn first_failed(requests: &mut [PoolRequest<'_>]) -> Result<()> {
    for r in requests {
        std::mem::replace(&mut r.result, Ok(())).map_err(Error::Contents)?;
    }
    Ok(())
}
