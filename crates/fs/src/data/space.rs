//! fallocate(2): blocks ahead of contents, holes, zeros.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::dinode::{Layout, RawDinode};
use braid_lock::interrupt::is_interrupted;

use super::{HeldInode, SIZE_MAX, limit, require_regular, touch};
use crate::attr::EarlyReply;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::file_data::Delalloc;
use crate::handle::OpenFile;
use crate::map::{Load, slots_bound};
use crate::writeback::extent_commit::{EXTENTS_PER_TX, ExtentCommit};
use crate::writeback::extents::Piece;
use crate::writeback::flush::{What, commit_extents, flush_locked};

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// Blocks that one step allocates: bounds what is reserved at a time.
const STEP: u64 = 64 << 10;
/// One for which there is no space is cut into so many.
const STEP_CUT: u64 = 8;
/// What every node has freed is known everywhere after this.
const NEWS_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is looked for.
const NEWS_LOOK: Duration = Duration::from_millis(50);

/// fallocate(2). Modes 0, `KEEP_SIZE`, `PUNCH_HOLE | KEEP_SIZE`, `ZERO_RANGE` with or without
/// `KEEP_SIZE`. `reply` is told of zeros that pages in the kernel may not have.
///
/// # Errors
/// `NotSupported` for other modes; `NoSpace` (what was allocated until then stays); `TooLarge`.
pub(crate) fn fallocate(
    core: &Arc<Core>,
    file: &OpenFile,
    mode: i32,
    offset: u64,
    len: u64,
    reply: &mut dyn EarlyReply,
) -> Result<()> {
    if !file.writable() {
        return Err(Error::BadHandle);
    }
    let known = matches!(mode & !KEEP_SIZE, 0 | ZERO_RANGE) || mode == PUNCH_HOLE | KEEP_SIZE;
    if !known {
        return Err(Error::NotSupported("this mode of fallocate"));
    }
    if len == 0 {
        return Err(Error::Invalid("length of fallocate"));
    }
    let end = offset.checked_add(len).filter(|e| *e <= SIZE_MAX).ok_or(Error::TooLarge)?;
    let locked = core.lock_exclusive(file.inode.ino)?;
    let _changes = core.changes(file.inode.ino);
    require_regular(&locked)?;
    let flags = locked.st().raw.flags.get();
    let append = flags & RawDinode::FLAG_APPEND != 0 && mode & !KEEP_SIZE != 0;
    if flags & RawDinode::FLAG_IMMUTABLE != 0 || append {
        return Err(Error::NotPermitted);
    }
    let held = HeldInode::of(core, &locked);
    let mut delalloc = held.data().change.lock();
    let keep_size = mode & KEEP_SIZE != 0;
    let what = mode & !KEEP_SIZE;
    if matches!(what, PUNCH_HOLE | ZERO_RANGE) {
        let unseen = file.inode.unseen_writes.begin(offset..end);
        held.punch(&mut delalloc, offset..end)?;
        unseen.done();
        reply.unseen(unseen);
    }
    if what == PUNCH_HOLE {
        return Ok(());
    }
    held.preallocate(&mut delalloc, offset..end, keep_size)
}

impl HeldInode<'_> {
    /// Zeros in place of bytes `range`; whole blocks of it become holes.
    fn punch(&self, delalloc: &mut Delalloc, range: Range<u64>) -> Result<()> {
        let view = self.view()?;
        let in_tail = view.layout == Layout::Stuffed && !self.data().is_dirty();
        if view.layout == Layout::Stuffed && !in_tail {
            flush_locked(*self, delalloc, What::Contents)?;
        }
        let (shift, bs) = (self.shift(), self.block_size());
        let last = range.end.min(view.size);
        if in_tail {
            return if range.start < last {
                let n = usize::try_from(last - range.start).unwrap_or(0);
                self.write_tail(range.start, &vec![0; n], view.size)
            } else {
                Ok(())
            };
        }
        // Up to the end of the file the last block counts as whole.
        let whole = range.start.div_ceil(bs)..if range.end >= view.size {
            range.end.div_ceil(bs)
        } else {
            range.end >> shift
        };
        self.zero_bytes(delalloc, range.start..last.min(whole.start << shift))?;
        if whole.start <= whole.end {
            self.zero_bytes(delalloc, whole.end << shift..last)?;
        }
        if whole.start < whole.end {
            self.forget_pages(delalloc, whole.clone());
            self.cut_hole(whole, |_| {})?;
        }
        // Pages that the size on disk waited for may have become part of the hole.
        self.settle_size()?;
        self.change_state(touch)
    }

    /// Writes zeros inside one block, unless it reads as zero anyway.
    fn zero_bytes(&self, delalloc: &mut Delalloc, range: Range<u64>) -> Result<()> {
        if range.start >= range.end {
            return Ok(());
        }
        let block = range.start >> self.shift();
        let dirty = self.data().pages.read().has(self.shift(), block);
        let written = self.lookup(block..block + 1)?.first().is_some_and(|p| p.written().is_some());
        if !dirty && !written {
            return Ok(());
        }
        let n = usize::try_from(range.end - range.start).unwrap_or(0);
        self.write_cached(delalloc, range.start, &vec![0; n])
    }

    /// Gives every hole of `range` blocks that read as zero. Makes the file longer unless the
    /// caller forbids it.
    fn preallocate(
        &self,
        delalloc: &mut Delalloc,
        range: Range<u64>,
        keep_size: bool,
    ) -> Result<()> {
        let view = self.view()?;
        let capacity = self.root()?.capacity as u64;
        if view.layout == Layout::Stuffed && !self.data().is_dirty() && range.end <= capacity {
            let size = if keep_size { view.size } else { view.size.max(range.end) };
            return self.write_tail(view.size, &[], size);
        }
        self.unstuff(delalloc)?;
        // Dirty blocks over holes get their blocks now: reserved and allocated would be too much.
        flush_locked(*self, delalloc, What::Contents)?;
        let blocks = range.start >> self.shift()..self.blocks_for(range.end);
        self.hopes_for(self.missing(&blocks)?)?;
        let (mut at, mut step) = (blocks.start, STEP);
        while at < blocks.end {
            at = match self.allocate(at..blocks.end.min(at + step)) {
                Err(Error::NoSpace) if step == STEP => {
                    limit::write_out(self.core, 0)?;
                    step /= STEP_CUT;
                    at
                }
                // In small pieces windows need not hold so much at a time.
                Err(Error::NoSpace) if step > 1 => {
                    step = (step / STEP_CUT).max(1);
                    at
                }
                done => done?,
            };
        }
        if !keep_size {
            self.extend(delalloc, self.view()?, range.end)?;
        }
        self.change_state(touch)
    }

    /// Refuses what is out of reach, before anything is allocated for it. What another node has freed is
    /// known here a little later.
    fn hopes_for(&self, blocks: u64) -> Result<()> {
        let until = Instant::now() + NEWS_PATIENCE;
        loop {
            let totals = self.core.alloc.totals();
            if blocks <= totals.free {
                return Ok(());
            }
            let alone = self.core.alloc.is_alone();
            if alone || blocks > totals.blocks || Instant::now() >= until || is_interrupted() {
                return Err(Error::NoSpace);
            }
            std::thread::sleep(NEWS_LOOK);
        }
    }

    /// Blocks of `range` that are holes.
    fn missing(&self, range: &Range<u64>) -> Result<u64> {
        let (mut at, mut sum) = (range.start, 0);
        while at < range.end {
            let pieces = self.lookup_some(at..range.end)?;
            sum += pieces.iter().filter(|p| p.physical.is_none()).map(|p| p.len).sum::<u64>();
            at = pieces.last().map_or(range.end, Piece::end);
        }
        Ok(sum)
    }

    /// Blocks for the holes at the start of `range`; where it stopped.
    fn allocate(&self, range: Range<u64>) -> Result<u64> {
        let pieces = self.lookup_some(range.start..range.end.min(range.start + STEP))?;
        let upto = pieces.last().map_or(range.end, Piece::end);
        let holes: Vec<(u64, u64)> =
            pieces.iter().filter(|p| p.physical.is_none()).map(|p| (p.logical, p.len)).collect();
        for batch in holes.chunks(EXTENTS_PER_TX) {
            let blocks = batch.iter().map(|h| h.1).sum();
            let load = Load { blocks: batch.len() as u64, places: batch.len() as u64 };
            let mut own = Delalloc::default();
            let slots = slots_bound(&self.root()?, self.core.volume.geo.body_len(), load);
            self.top_up(&mut own, blocks, slots)?;
            let mut links: Vec<ExtentCommit> = Vec::new();
            for hole in batch {
                let reservation = own.reservation.as_mut().ok_or(Error::NoSpace)?;
                self.claim_hole(reservation, *hole, &mut links)?;
            }
            for link in &mut links {
                link.unwritten = true;
            }
            commit_extents(*self, &mut own, links, 0, |_, _| {})?;
        }
        Ok(upto)
    }
}
