//! A window in memory: what of it may be taken now. Pure.
//!
//! ```text
//!              claim              commit_run, take_slot, commit_dinode
//!  takeable ----------> claimed ---------------------------------------> used
//!     ^  ^                 | dropped                                       | free
//!     |  +-----------------+                                               v
//!     +--------------------------------------------------- freed, not yet durable
//!                       the freeing transaction is durable
//! ```
//! `busy` counts the blocks claimed or freed but not durable: a window with any stays.

use braid_format::label::SubpoolKind;
use braid_format::rgrp::BlockState;

use super::bits;
use super::set::Set;
use crate::groups::{takes_data, takes_slots};
use crate::volume::Volume;

/// Which blocks a window has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    /// Group.
    pub group: u64,
    /// What the group is for.
    pub kind: SubpoolKind,
    /// First block.
    pub start: u64,
    /// Blocks; 0: not in use.
    pub len: u64,
    /// First block of all rows, and blocks in one (0: none): large files begin with one.
    pub rows: (u64, u64),
    /// The group was added to the file system.
    pub added: bool,
}

impl Extent {
    /// `len` blocks from `start` of group `group`.
    pub fn of(volume: &Volume, group: u64, start: u64, len: u64) -> Self {
        let (kind, rows) = (volume.groups.kind(group), volume.rows_at(group, start));
        Self { group, kind, start, len, rows, added: volume.groups.is_added(group) }
    }
}

/// One of this node's windows.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Group it was taken from.
    pub group: u64,
    /// What the group is for.
    pub kind: SubpoolKind,
    /// First block.
    pub start: u64,
    /// Blocks; 0: not in use.
    pub len: u64,
    /// First block of all rows, and blocks in one; 0: none.
    pub rows: (u64, u64),
    /// The group was added to the file system.
    pub added: bool,
    /// Takeable blocks for data or new chunks, as the kind says, from `start`.
    pub data: Set,
    /// First blocks of takeable metadata slots, from `start`.
    pub slots: Set,
    /// Blocks and slots claimed, or freed and not durable.
    pub busy: u64,
    /// Where the search for data goes on.
    pub data_cursor: u64,
    /// Where the search for slots goes on.
    pub slot_cursor: u64,
    /// On its way back to its group: nothing is taken from it or freed into it.
    pub closing: bool,
}

impl Window {
    /// In use, and not on its way back.
    pub fn is_open(&self) -> bool {
        self.len != 0 && !self.closing
    }
    /// Whether `block` lies in it (it is open).
    pub fn holds(&self, block: u64) -> bool {
        self.is_open() && block >= self.start && block - self.start < self.len
    }
    /// Open, and file data may be taken from it.
    pub fn gives_data(&self) -> bool {
        self.is_open() && takes_data(self.kind)
    }
    /// Open, and metadata slots may be taken from it, or made in it.
    pub fn gives_slots(&self) -> bool {
        self.is_open() && takes_slots(self.kind)
    }
    /// Empty window.
    pub fn reset(&mut self, extent: Extent) {
        let Extent { group, kind, start, len, rows, added } = extent;
        let (data, slots) = (Set::new(len), Set::new(len));
        *self = Self { group, kind, start, len, rows, added, data, slots, ..Self::default() };
    }
    /// Adds what `bits` (the window block's) say is takeable in `from..to`, and was not.
    pub fn absorb(&mut self, bits: &[u8], from: u64, to: u64, slot_blocks: u64) {
        for (start, n) in bits::runs(bits, from, to, BlockState::Free) {
            self.data.add(start, n);
        }
        for (start, n) in bits::runs(bits, from, to, BlockState::MetaFree) {
            for i in (start..start + n).step_by(usize::try_from(slot_blocks).unwrap_or(1)) {
                self.slots.add(i, 1);
            }
        }
    }
    /// Nothing to take, and nothing that will be.
    pub fn exhausted(&self) -> bool {
        self.is_open() && self.busy == 0 && self.data.count() == 0 && self.slots.count() == 0
    }
    /// The last aligned piece of `n` blocks that is takeable.
    pub fn last_aligned(&self, n: u64, align: u64) -> Option<u64> {
        let mut found = None;
        for (start, len) in self.data.runs() {
            if len < n {
                continue;
            }
            let last = (self.start + start + len - n) / align * align;
            if last >= self.start + start {
                found = Some(last - self.start);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_aligned_piece_is_inside_a_run() {
        let mut w = Window::default();
        w.reset(Extent { start: 100, len: 1000, ..Extent::default() });
        w.data.add(0, 300);
        w.data.add(400, 30);
        // Blocks 100..400 and 500..530.
        assert_eq!(w.last_aligned(64, 64), Some(320 - 100));
        assert_eq!(w.last_aligned(16, 2), Some(514 - 100));
        assert_eq!(w.last_aligned(256, 256), None);
        assert_eq!(w.last_aligned(301, 1), None);
        assert_eq!(w.last_aligned(300, 1), Some(0));
    }
    #[test]
    fn a_window_is_what_it_was_taken_as() {
        let mut w = Window { busy: 3, closing: true, ..Window::default() };
        let (group, kind, rows) = (3, SubpoolKind::Data, (5, 6));
        w.reset(Extent { group, kind, start: 100, len: 10, rows, added: true });
        assert_eq!((w.group, w.kind, w.rows, w.added), (group, kind, rows, true));
        assert_eq!((w.start, w.len, w.busy, w.closing), (100, 10, 0, false));
        assert!(w.holds(100) && w.holds(109) && !w.holds(99) && !w.holds(110));
    }
    #[test]
    fn what_a_window_block_calls_free_is_takeable() {
        let mut bits = vec![0x55; 25];
        bits::fill(&mut bits, 10, 5, BlockState::Free);
        bits::fill(&mut bits, 20, 6, BlockState::MetaFree);
        bits::fill(&mut bits, 40, 2, BlockState::MetaUsed);
        let mut w = Window::default();
        w.reset(Extent { start: 100, len: 100, ..Extent::default() });
        w.absorb(&bits, 0, 100, 2);
        assert_eq!(w.data.runs().collect::<Vec<_>>(), [(10, 5)]);
        assert_eq!(w.slots.runs().collect::<Vec<_>>(), [(20, 1), (22, 1), (24, 1)]);
    }
    #[test]
    fn a_window_is_exhausted_when_nothing_in_it_is_or_becomes_takeable() {
        let with = |change: &dyn Fn(&mut Window)| {
            let mut w = Window::default();
            w.reset(Extent { start: 100, len: 100, ..Extent::default() });
            change(&mut w);
            w.exhausted()
        };
        assert!(with(&|_| {}));
        assert!(!with(&|w| w.busy = 1));
        assert!(!with(&|w| w.data.add(3, 1)));
        assert!(!with(&|w| w.slots.add(3, 1)));
        assert!(!with(&|w| w.closing = true), "it is on its way back");
        assert!(!Window::default().exhausted(), "it is not in use");
    }
}
