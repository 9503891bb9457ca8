//! Resource groups: regions of about 1 GiB with their own lock, counters and bitmap.
//! docs/FORMAT.md section 5.
//!
//! A group begins with its head, the header slot and then its bitmap slots; then come the blocks
//! the bitmap speaks of. (The heads of data groups stand apart, in the metadata subpool.) Two bits
//! a block:
//! ```text
//!  00 free          01 data (or in a node's window: the window then says what it is)
//!  10 metadata slot, free     11 metadata slot, in use
//! ```
//! While a node holds a window the group's bitmap shows the whole window as `01`; the truth for
//! those blocks is the node's window block. Giving the window back copies its bits here.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// State of one block in a bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// Nobody's.
    Free = 0,
    /// File data, or reserved by a window.
    Data = 1,
    /// Metadata slot, unused.
    MetaFree = 2,
    /// Metadata slot, used.
    MetaUsed = 3,
}
impl BlockState {
    /// From the two bits.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Free,
            1 => Self::Data,
            2 => Self::MetaFree,
            _ => Self::MetaUsed,
        }
    }
}

/// A resource group's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRgrp {
    /// Kind `Rgrp`, owner itself.
    pub header: MetaHeader,
    /// Which group, from 0.
    pub index: U64,
    /// Bitmap slots after this one.
    pub bitmap_slots: U32,
    /// Kind of the subpool that its blocks stand in, a [`SubpoolKind`]: 0 all, 1 file data only,
    /// 2 metadata only.
    ///
    /// [`SubpoolKind`]: crate::label::SubpoolKind
    pub subpool: U32,
    /// First block that the bitmap speaks of.
    pub first_block: U64,
    /// Blocks that the bitmap speaks of.
    pub block_count: U64,
    /// Of those, free (state `Free`, and in no window).
    pub free_blocks: U64,
    /// Free metadata slots, in blocks (state `MetaFree`, in no window).
    pub free_meta: U64,
    /// Dinodes in use when last counted here (windows hold the difference).
    pub dinodes: U64,
}
const _: () = assert!(size_of::<RawRgrp>() == 96);

/// A node's window: a run of blocks of one group that only this node allocates from.
/// Followed by two bits a block, `blocks` of them.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawWindow {
    /// Kind `Window`.
    pub header: MetaHeader,
    /// Slot of the group it was taken from; 0 when the window is not in use.
    pub rgrp: U64,
    /// First block.
    pub start: U64,
    /// Blocks; 0 when not in use.
    pub blocks: U64,
    /// Incarnation of the node that took it.
    pub incarnation: U32,
    /// Zero.
    pub reserved: U32,
}
const _: () = assert!(size_of::<RawWindow>() == 72);

/// A block of a node's free log (kind `FreeLog`): header, count, then as many places for a
/// [`RawFreed`] as fit; a place with length 0 is empty.
///
/// A run stands here from the transaction that frees it until the one that changes its bits in
/// the group: exactly one of (window, free log, group) knows that a block is free.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawFreeLog {
    /// Kind `FreeLog`.
    pub header: MetaHeader,
    /// Places in use.
    pub count: U64,
}
const _: () = assert!(size_of::<RawFreeLog>() == 48);

/// A freed run whose group does not know it yet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawFreed {
    /// First block.
    pub start: U64,
    /// Blocks; all of one group.
    pub len: U32,
    /// The [`BlockState`] they take: `Free` (data), or `MetaFree` (one metadata slot).
    pub state: U32,
}
const _: () = assert!(size_of::<RawFreed>() == 16);

impl RawFreeLog {
    /// Places in a body of `body_len` bytes.
    pub const fn capacity(body_len: usize) -> usize {
        body_len.saturating_sub(size_of::<Self>()) / size_of::<RawFreed>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_from_its_two_bits_alone() {
        use BlockState::{Data, Free, MetaFree, MetaUsed};
        for state in [Free, Data, MetaFree, MetaUsed] {
            assert_eq!(BlockState::from_bits(state as u8), state);
            assert_eq!(BlockState::from_bits(0xfc | state as u8), state);
        }
    }

    #[test]
    fn a_free_log_has_whole_places_behind_its_count() {
        assert_eq!([0, 48, 63, 64, 3584].map(RawFreeLog::capacity), [0, 0, 0, 1, 221]);
    }
}
