//! Taking blocks away from a file, in bounded transactions.

use std::ops::Range;

use super::HeldInode;
use crate::error::Result;
use crate::file_data::Delalloc;
use crate::inode::InodeState;
use crate::inode_tree::Editor;
use crate::map::{self, Extent, LOGICAL_END};
use crate::tree;

/// Extents that one transaction takes away.
const CUTS_PER_TX: usize = 64;

impl HeldInode<'_> {
    /// Takes all blocks from file block `from` on away, the last ones first, so that a crash
    /// between
    /// two transactions leaves a shorter file and never former contents past its end. `finish` gets
    /// the file block from which on nothing is left; it is called in each transaction, the last
    /// time
    /// (even if there was nothing to take) with `from`. Alone on this node, `change` held.
    pub fn cut_end(&self, from: u64, mut finish: impl FnMut(&mut InodeState, u64)) -> Result<()> {
        loop {
            let part = map::part(&mut self.reader(), self.bounds(), LOGICAL_END - 1)?;
            let list: Vec<Extent> = part.extents.into_iter().filter(|e| e.end() > from).collect();
            let skipped = list.len().saturating_sub(CUTS_PER_TX);
            let batch = list.get(skipped..).unwrap_or_default();
            let whole = skipped == 0 && (part.low <= from || part.low == 0);
            let at = batch.first().map_or(from, |e| e.logical.max(from));
            let at = if whole { from } else { at };
            self.cut(at..LOGICAL_END, batch, |st| finish(st, at))?;
            if whole {
                return Ok(());
            }
        }
    }

    /// Takes the blocks of `range` away. Alone on this node, `change` held.
    pub fn cut_hole(&self, range: Range<u64>, finish: impl Fn(&mut InodeState)) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let part = map::part(&mut self.reader(), self.bounds(), at)?;
            let within = at..range.end.min(part.high);
            let mut batch: Vec<Extent> = part
                .extents
                .into_iter()
                .filter(|e| e.end() > within.start && e.logical < within.end)
                .collect();
            let more = batch.len() > CUTS_PER_TX;
            batch.truncate(CUTS_PER_TX);
            let end = match batch.last() {
                Some(last) if more => last.end(),
                _ => within.end,
            };
            if !batch.is_empty() {
                self.cut(at..end, &batch, &finish)?;
            }
            at = end;
        }
        Ok(())
    }

    /// One transaction that takes `range` away; `batch`: the extents that it touches.
    fn cut(
        &self,
        range: Range<u64>,
        batch: &[Extent],
        finish: impl FnOnce(&mut InodeState),
    ) -> Result<()> {
        let core = self.core;
        let height = self.root()?.height;
        let groups: u64 = batch.iter().map(|e| self.groups_of(e)).sum();
        // Leaves that become empty, and the last one that goes back into the tail.
        let frees = groups + 2 * tree::frees_for_remove(height);
        // Cutting out of the middle of an extent makes two of it. Any other cut needs no space: a
        // file can be deleted from a full pool.
        let splits = batch.iter().any(|e| e.logical < range.start && e.end() > range.end);
        let slots = if splits { tree::slots_for_insert(height) } else { 0 };
        let mut reservation = core.alloc.reserve(0, slots, frees)?;
        self.edit(&mut reservation, |editor| {
            let removed = map::splice(editor, self.bounds(), range, &[])?;
            let blocks: u64 = removed.iter().map(|e| e.len).sum();
            self.free_extents(editor, &removed)?;
            self.change_state(|st| {
                st.raw.blocks = st.raw.blocks.get().saturating_sub(blocks).into();
                finish(st);
            })
        })
    }

    pub(super) fn free_extents(
        &self,
        editor: &mut Editor<'_, '_>,
        removed: &[Extent],
    ) -> Result<()> {
        for e in removed.iter().filter(|e| !e.shared) {
            self.core.alloc.free_data(editor.tx, editor.reservation, e.physical, e.len)?;
        }
        Ok(())
    }

    /// Resource groups that an extent touches, at most.
    pub(super) fn groups_of(&self, e: &Extent) -> u64 {
        self.core.volume.groups.touched(e.len)
    }

    /// Forgets dirty blocks of `range`; with none left their reservation goes back.
    pub fn forget_pages(&self, delalloc: &mut Delalloc, range: Range<u64>) {
        let empty = {
            let mut pages = self.data().pages.write();
            pages.forget(self.shift(), range);
            pages.is_empty()
        };
        self.recount();
        if empty {
            *delalloc = Delalloc::default();
        }
    }
}
