//! Problems that can be repaired.

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, ByteOffset, NodeId};

use super::cut::Cut;
use super::inodes::Counts;
use super::name::Name;

/// Those of the problems that can be repaired.
#[derive(Debug, Default)]
pub(super) struct Mendable {
    /// Bitmaps, group counters, windows, logs, cluster counters.
    pub(super) space: u64,
    /// Dinodes whose counts are wrong: number and what they must be.
    pub(super) counts: Vec<Counts>,
    /// Entries that lead nowhere: directory, block that holds the entry, cookie.
    pub(super) entries: Vec<Name>,
    /// Parts of inodes to be cut off.
    pub(super) cuts: Vec<Cut>,
    /// The root's dinode is damaged.
    pub(super) root: bool,
    /// Blocks of the fixed area that are damaged.
    pub(super) private: Vec<(BlockNo, MetaKind)>,
    /// Superblock copies to rewrite.
    pub(super) superblocks: Vec<BlockNo>,
    /// Blocks whose lock record is damaged.
    pub(super) locks: Vec<BlockNo>,
    /// Free metadata blocks that are damaged.
    pub(super) free: Vec<BlockNo>,
    /// Nodes' slots of which a copy is damaged, and where they are.
    pub(super) slots: Vec<(ByteOffset, NodeId)>,
    /// Blocks are in use that the bitmaps offer to the allocator, or call something else.
    pub(super) exposed: bool,
    /// Parts of inodes could not be read: bitmaps are not rewritten before those are cut off.
    pub(super) unsure: bool,
}

impl Mendable {
    pub(super) fn any(&self) -> bool {
        self.space > 0
            || !self.counts.is_empty()
            || !self.entries.is_empty()
            || !self.superblocks.is_empty()
            || !self.locks.is_empty()
            || !self.free.is_empty()
            || !self.slots.is_empty()
            || !self.private.is_empty()
            || !self.cuts.is_empty()
            || self.root
    }
}
