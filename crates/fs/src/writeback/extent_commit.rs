//! The transaction that makes data visible: extents into the map, runs out of the allocator, size
//! and times into the dinode.

use braid_format::BlockNo;
use braid_format::dinode::Layout;

use super::held::HeldInode;
use crate::alloc::{Reservation, Run};
use crate::error::{Error, Result};
use crate::file_data::Delalloc;
use crate::inode::InodeState;
use crate::inode_tree::Editor;
use crate::map::{self, Extent, Load};
use crate::tree::NodesMut;

/// Extents that one transaction commits: each may change a leaf of its own.
pub(crate) const EXTENTS_PER_TX: usize = 64;

/// Blocks to be entered in the extent map.
#[derive(Debug)]
pub(crate) struct ExtentCommit {
    /// First file block.
    pub logical: u64,
    /// Blocks.
    pub len: u64,
    /// First pool block.
    pub physical: BlockNo,
    /// New blocks; `None`: the file has them already, unwritten.
    pub run: Option<Run>,
    /// Their contents count as zero.
    pub unwritten: bool,
}

impl ExtentCommit {
    fn extent(&self) -> Extent {
        Extent {
            logical: self.logical,
            physical: self.physical,
            len: self.len,
            unwritten: self.unwritten,
            shared: false,
        }
    }
}

impl HeldInode<'_> {
    /// Enters `commits` (ascending) in the map and changes the state by `finish`, in one transaction. `change`
    /// held, data written. A stuffed file becomes one with extents: its bytes are in what is committed.
    ///
    /// # Errors
    /// All of them are fatal, except when the transaction could not be opened.
    pub fn commit(
        &self,
        reservation: &mut Reservation,
        commits: Vec<ExtentCommit>,
        finish: impl FnOnce(&mut InodeState),
    ) -> Result<()> {
        let layout = self.view()?.layout;
        self.edit(reservation, |editor| {
            let new_blocks = self.change_map(editor, layout, commits)?;
            self.change_state(|st| {
                st.raw.blocks = st.raw.blocks.get().saturating_add(new_blocks).into();
                finish(st);
            })
        })
    }

    /// Changes the map by `f`, in one transaction with the dinode. `change` held.
    ///
    /// # Errors
    /// All of them are fatal, except when the transaction could not be opened.
    pub fn edit(
        &self,
        reservation: &mut Reservation,
        f: impl FnOnce(&mut Editor<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let core = self.core;
        let mut tx = core.meta.begin()?;
        let mut map = self.data().map.write();
        *map = None;
        let mut editor = Editor {
            alloc: &core.alloc,
            tx: &mut tx,
            reservation,
            inode: self.inode,
            geo: core.volume.geo,
        };
        let done = f(&mut editor).and_then(|()| self.inode.encode(editor.tx));
        self.fatal(done)
    }

    fn change_map(
        &self,
        editor: &mut Editor<'_, '_>,
        layout: Layout,
        commits: Vec<ExtentCommit>,
    ) -> Result<u64> {
        if layout == Layout::Stuffed && !commits.is_empty() {
            editor.set_tail(0, 0, &[])?;
            self.change_state(|st| st.raw.layout = (Layout::Extents as u16).into())?;
        }
        let range = |commit: &ExtentCommit| commit.logical..commit.logical + commit.len;
        for commit in commits.iter().skip(1) {
            map::readable(editor, self.bounds(), range(commit))?;
        }
        let mut new_blocks = 0;
        for commit in commits {
            let before = map::splice(editor, self.bounds(), range(&commit), &[commit.extent()])?;
            if let Some(run) = commit.run {
                if !before.is_empty() {
                    return Err(self.bad("hole that is none"));
                }
                new_blocks += commit.len;
                self.core.alloc.commit_run(editor.tx, run, commit.len)?;
            }
        }
        Ok(new_blocks)
    }

    /// Keeps back what `commits` claimed, if a device has failed to write it: the writes may land yet,
    /// long after, and would change whatever is in these blocks then.
    pub fn keep_back(&self, commits: Vec<ExtentCommit>, error: &Error) {
        if !matches!(error, Error::Contents(_)) {
            return;
        }
        for run in commits.into_iter().filter_map(|commit| commit.run) {
            let (ino, block, blocks) = (self.inode.ino, run.start, run.len);
            tracing::warn!(%ino, %block, blocks, %error, "writing failed: the blocks are not used again before unmount");
            if !run.keep_back() {
                return self.core.withdraw(&Error::KeptBack);
            }
        }
    }

    /// The reservation, with at least the slots that `commits` extents may take now.
    pub fn slots_for<'p>(
        &self,
        delalloc: &'p mut Delalloc,
        commits: &[ExtentCommit],
    ) -> Result<&'p mut Reservation> {
        let load = Load { blocks: commits.len() as u64, places: commits.len() as u64 };
        let need = map::slots_bound(&self.root()?, self.core.volume.geo.body_len(), load);
        self.top_up(delalloc, 0, need)?;
        delalloc.reservation.as_mut().ok_or(Error::NoSpace)
    }

    /// Makes the reservation hold `data` blocks more, and `slots` in all.
    ///
    /// # Errors
    /// `NoSpace`, with the reservation as before.
    pub fn top_up(&self, delalloc: &mut Delalloc, data: u64, slots: u64) -> Result<()> {
        let have = delalloc.reservation.as_ref().map_or(0, |r| r.slots);
        let more = slots.saturating_sub(have);
        if data == 0 && more == 0 && delalloc.reservation.is_some() {
            return Ok(());
        }
        let fresh = self.core.alloc.reserve(data, more, 0)?;
        match &mut delalloc.reservation {
            Some(r) => self.core.alloc.merge(r, fresh),
            none => *none = Some(fresh),
        }
        Ok(())
    }

    /// Claims runs for a hole, out of `reservation`; `sink` gets each.
    pub fn claim_hole(
        &self,
        reservation: &mut Reservation,
        (logical, len): (u64, u64),
        sink: &mut Vec<ExtentCommit>,
    ) -> Result<()> {
        let before = self.block_before(logical)?;
        let mut last_run = self.data().last_run.lock();
        let mut goal = match before {
            Some(block) => Some(BlockNo(block.get() + 1)),
            // Runs of concurrent writers are not in the map yet: leave the gap that they will fill.
            None => last_run
                .filter(|(end, _)| *end <= logical && logical - end <= GOAL_GAP_MAX)
                .map(|(end, block)| BlockNo(block.get() + (logical - end))),
        };
        let (mut at, end) = (logical, logical + len);
        while at < end {
            if reservation.data == 0 {
                return Err(Error::NoSpace);
            }
            let run = self.core.alloc.claim(reservation, end - at, goal)?;
            let (physical, n) = (run.start, run.len);
            sink.push(ExtentCommit {
                logical: at,
                len: n,
                physical,
                run: Some(run),
                unwritten: false,
            });
            at += n;
            let next = BlockNo(physical.get() + n);
            goal = Some(next);
            *last_run = Some((at, next));
        }
        Ok(())
    }
}

/// Blocks between the last run and the next up to which they are kept in step.
const GOAL_GAP_MAX: u64 = 4_096;
