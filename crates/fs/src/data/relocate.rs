//! Moving a file's blocks to other resource groups, with its contents as they are.
//!
//! Under the inode's exclusive lock: blocks are claimed in a group that is wanted, the bytes are
//! copied, and one transaction puts the new extent in the place of the old and frees the old
//! blocks. Its commit flushes what was copied. Before it is durable the file has the old blocks, which
//! nobody reuses; after it the new ones.
//!
//! What is copied is compared before with its other copies, or its parity, as by a scrub: these are
//! given up, and what had rotted would be all that is left. That reads two more copies if there are
//! two, and whole rows of parity. Moving is paced, so this is acceptable.

use std::sync::Arc;

use braid_format::dinode::Layout;
use braid_format::{BlockNo, Bytes, InodeNo};
use braid_pool::device::AlignedBuf;
use braid_pool::{NoChecksums, PoolError};

use super::HeldInode;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::map::{self, Extent, LOGICAL_END, Load};
use crate::writeback::flush::{What, flush_locked};

/// Bytes copied in one transaction.
const STEP: Bytes = Bytes(4 << 20);

/// Groups to move away from, and to.
pub(crate) trait Places {
    /// Whether blocks of this group are to go.
    fn leaves(&self, group: u64) -> bool;
    /// Whether blocks may go there.
    fn takes(&self, group: u64) -> bool;
}

/// What was moved: so many blocks from one group to another; and where to go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    pub from: u64,
    pub to: u64,
    pub blocks: u64,
    pub next: u64,
}

/// Moves the first run of `ino`'s blocks from file block `at` on that is to go. `None`: there is
/// none, or no room for it.
pub(crate) fn relocate(
    core: &Arc<Core>,
    ino: InodeNo,
    at: u64,
    places: &dyn Places,
) -> Result<Option<Moved>> {
    let _change = core.enter_change()?;
    if at == 0 && !may_move(core, ino, places)? {
        return Ok(None);
    }
    let locked = core.lock_exclusive(ino)?;
    let held = HeldInode::of(core, &locked);
    let mut delalloc = held.data().change.lock();
    flush_locked(held, &mut delalloc, What::Contents)?;
    if held.view()?.layout != Layout::Extents || locked.st().raw.nlink.get() == 0 {
        return Ok(None);
    }
    let Some((extent, from)) = held.next_to_go(at, places)? else { return Ok(None) };
    held.exchange(extent, from, places)
}

/// Whether anything of a file may have to move. Most files are skipped with a shared lock only.
fn may_move(core: &Arc<Core>, ino: InodeNo, places: &dyn Places) -> Result<bool> {
    let locked = core.lock_shared(ino)?;
    let held = HeldInode::of(core, &locked);
    Ok(held.data().is_dirty()
        || (held.view()?.layout == Layout::Extents && held.next_to_go(0, places)?.is_some()))
}

impl HeldInode<'_> {
    /// The next extent (or part of a long one) that is to move, and its group. What is shared
    /// stays.
    fn next_to_go(&self, at: u64, places: &dyn Places) -> Result<Option<(Extent, u64)>> {
        let groups = &self.core.volume.groups;
        let most = self.core.volume.geo.block_size.blocks_for(STEP).get();
        let mut at = at;
        while at < LOGICAL_END {
            let part = map::part(&mut self.reader(), self.bounds(), at)?;
            for e in part.extents.iter().filter(|e| e.end() > at && !e.shared) {
                let e = e.clipped(&(at.max(e.logical)..e.end()));
                let Some(group) = groups.of_block(e.physical) else { continue };
                if places.leaves(group) {
                    let len = groups.part(e.physical.get(), e.len.min(most));
                    return Ok(Some((e.clipped(&(e.logical..e.logical + len)), group)));
                }
            }
            if part.high <= at {
                break;
            }
            at = part.high;
        }
        Ok(None)
    }

    fn exchange(&self, old: Extent, from: u64, places: &dyn Places) -> Result<Option<Moved>> {
        let core = self.core;
        let load = Load { blocks: 1, places: 1 };
        let slots = map::slots_bound(&self.root()?, core.volume.geo.body_len(), load);
        let frees = self.groups_of(&old) + 1;
        let mut reservation = core.alloc.reserve(old.len, slots, frees)?;
        let wanted = |group| places.takes(group);
        let Some(run) = core.alloc.claim_in(&mut reservation, old.len, &wanted)? else {
            return Ok(None);
        };
        let (start, len) = (run.start, run.len);
        let range = old.logical..old.logical + len;
        let old = old.clipped(&range);
        if !old.unwritten
            && let Err(Failed { writing, error }) = self.copy_blocks(old.physical, start, len)
        {
            if writing && !run.keep_back() {
                core.withdraw(&Error::KeptBack);
            }
            return Err(error);
        }
        let new = Extent { physical: start, ..old };
        self.edit(&mut reservation, |editor| {
            let gone = map::splice(editor, self.bounds(), range.clone(), &[new])?;
            core.alloc.commit_run(editor.tx, run, len)?;
            self.free_extents(editor, &gone)
        })?;
        let to = core.volume.rgrp_of(start).unwrap_or(from);
        Ok(Some(Moved { from, to, blocks: len, next: range.end }))
    }

    fn copy_blocks(&self, from: BlockNo, to: BlockNo, len: u64) -> std::result::Result<(), Failed> {
        let (pool, bs) = (&self.core.volume.pool, self.core.volume.geo.block_size);
        let whole = Bytes(len << bs.shift());
        let mut bytes = AlignedBuf::zeroed(whole.to_usize());
        // What fails concerns this file alone.
        let found =
            pool.scrub_range(bs.offset_of(from), whole, &NoChecksums).map_err(Failed::reading)?;
        if found.undecided.0 > 0 {
            let (bytes, ino) = (found.undecided.0, self.inode.ino);
            let first = found.places.first().copied().unwrap_or_default();
            tracing::error!(%ino, %first, bytes, "moved, though copies differ and nothing says which is right");
        }
        pool.read(bs.offset_of(from), &mut bytes).map_err(Failed::reading)?;
        pool.write(bs.offset_of(to), &bytes)
            .map_err(|e| Failed { writing: true, error: Error::Contents(e) })?;
        self.core.meta.note_data_written();
        Ok(())
    }
}

/// How a copy failed.
struct Failed {
    /// The new place may get the bytes yet.
    writing: bool,
    error: Error,
}

impl Failed {
    fn reading(error: PoolError) -> Self {
        Self { writing: false, error: Error::Contents(error) }
    }
}
