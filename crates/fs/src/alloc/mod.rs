//! Space: resource groups, this node's windows, reservations, deferred frees.
//!
//! A window is a run of one group's blocks from which only this node allocates; taking and
//! returning one needs the group's lock, and so does making slots of its blocks; allocating from it
//! needs none. The group's bitmap shows a window's takeable blocks as `Data`, its takeable slots as
//! `MetaUsed`; the window block (private, journaled) says what they are. So every holder of the
//! group's lock can tell metadata slots from file data, for all nodes (`Alloc::is_slot`). When a
//! window goes back, for each of its blocks: window `Free` or `MetaFree` -> the same in the group;
//! window `MetaUsed` or `Data` -> the group is left alone (it says so, or the block was never the
//! window's).
//!
//! Freeing a block inside a window of this node changes the window (reusable once the transaction
//! is durable). Freeing any other block appends it to this node's free log (private, journaled) in
//! the same transaction; the log is drained later under the groups' locks: first the `Free` bodies
//! of metadata slots are put in place, then the bits change and the entries go, in one transaction.
//!
//! If metadata and file data have subpools of their own, a group is for one of the two, and so is a
//! window of it. What is free in a window of a metadata group is for chunks only.
//!
//! Invariants:
//! * exactly one of (a group, a window, a free log) knows that a block is free; so windows of two
//!   nodes may overlap (a block of one, freed by another, taken by a third) and still agree;
//! * what is takeable in memory is free in a durable image of the window, or was never used;
//! * a metadata slot becomes nothing else while two nodes live (`crate::unused_metadata`), and its
//!   `Free` body is stable before its bit says `MetaFree` where another node may look;
//! * reservations never exceed what is takeable.
//!
//! Lock order: the space lock (`last_blocks`), then `refill::Refill` (held across I/O and group locks),
//! then `state::State` (short, never across a call into the cache or the locks).

mod allocator;
pub(crate) mod bits;
mod chunks;
mod closed_space;
mod counters;
mod dead_node;
mod discard;
mod failed_search;
mod freed_places;
mod full;
mod group;
pub(crate) mod image;
mod inner;
mod last_blocks;
mod leave;
mod log;
mod private;
mod refill;
mod search;
mod set;
mod share;
mod slots;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod trim;
mod trimmed;
mod unused;
mod window;
mod window_placement;

pub(crate) use self::counters::Totals;
pub(crate) use self::dead_node::{free_log_entries, inspect, reclaim};
pub(crate) use self::group::{check_header as check_group_header, fits};
pub(crate) use self::inner::{Alloc, Counters, Reservation, Run};
pub(crate) use self::leave::{Use, is_empty};
pub(crate) use self::private::window_head;
pub(crate) use self::unused::PrivateRange;
