//! What is on disk, and the units it is measured in. Pure: nothing here does I/O, reads a clock,
//! or allocates more than a caller's buffer.
//!
//! Every structure ships five things together: a `repr(C)` layout whose size and offsets are
//! asserted at compile time, a `decode` that verifies, an `encode` that seals, a dump (`Debug`),
//! and a golden-bytes test. docs/FORMAT.md holds the tables.
//!
//! Invariants:
//! * all integers are little-endian and have a fixed width;
//! * no decoder panics, whatever the bytes are;
//! * a metadata block carries its own address, so a misdirected write is noticed.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  error        why bytes from a disk were refused
//!  text         characters of names
//!  crc, units   checksums; quantities, each with its own type
//!  meta         the one layout of every metadata block
//!  dinode, dirent, tree, rgrp, plock  what metadata blocks hold: inodes, names, B+trees, resource groups, locks
//!  journal      a node's journal
//!  label        member labels
//!  superblock   what a file system is, and where its fixed parts are
//!  features     every feature bit, by name
//!  lock_record  the device lock's record
//!  node         node slots, heartbeats, counters, orphan lists
//!  history      what happened to a pool
//!  redundancy   a node's redundancy log
//!  xattr        extended attributes
//! ```

#![forbid(unsafe_code)]

pub mod crc;
pub mod dinode;
pub mod dirent;
pub mod error;
pub mod features;
#[cfg(test)]
mod golden;
pub mod history;
pub mod journal;
pub mod label;
pub mod lock_record;
pub mod meta;
pub mod node;
pub mod plock;
pub mod redundancy;
pub mod rgrp;
pub mod superblock;
pub mod text;
pub mod tree;
pub mod units;
pub mod xattr;

pub use error::FormatError;
pub use units::{
    BlockCount, BlockNo, BlockSize, ByteOffset, Bytes, Epoch, Generation, Incarnation, InodeNo,
    LockNo, MemberIndex, NodeId, StripeUnit,
};
