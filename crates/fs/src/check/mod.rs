//! fsck: verifies a file system that nobody has mounted, and repairs it when asked.
//!
//! ```text
//!  refuse while a node lives -> replay journals -> fixed area -> group headers and bitmaps
//!    -> walk all dinodes and trees from the root and the orphan lists, in batches
//!    -> compare links, parents, counts -> compare bitmaps with what was seen -> counters
//! ```
//! The walk marks every block it meets in a map of its own; what the bitmaps, the windows and the
//! free logs of dead nodes say together must be the same. Nothing here trusts a number from disk
//! before it is bounded, and no structure is followed twice, so the walk ends on any image. Unless it
//! repairs, all this is done on a [`braid_pool::Pool::on_scratch`], and no device is written.
//!
//! Repair rewrites what can be derived from the rest: bitmaps, group counters, cluster counters,
//! link counts, entry and block counts, the superblock's other copy; it empties windows and free
//! logs, whose content the bitmaps then hold, and orphan lists that are damaged, drops what stands
//! behind the damage in a journal, frees the slots of dead nodes that damage kept from recovery,
//! drops directory entries that lead nowhere, unlocks what has a damaged lock record, empties free
//! blocks that are damaged, and puts inodes without a name into `/lost+found`. What it cannot
//! derive is cut off and named in [`Report::cut`]: the entries of a damaged dinode; a damaged tree
//! node with all below it; the second user's extent of blocks that are used twice; attributes that
//! make no sense, with the permissions of group and others, which an access control list may have
//! narrowed. A file that lost contents goes to `/lost+found`: at its old name a reader would take
//! the hole for zeros. A repair repeats its passes until one finds nothing to repair, so a check
//! after it is clean.

mod bitmaps;
mod bodies;
mod buckets;
mod checker;
mod cut;
mod cut_off;
mod fixed;
#[cfg(test)]
mod flips;
#[cfg(test)]
mod flips_together;
mod inodes;
mod links;
mod lost;
mod mendable;
mod name;
mod passes;
mod repair;
mod report;
mod space;
#[cfg(test)]
mod tests;
mod walk;

pub use passes::check;
pub use report::{CheckOptions, Report};
