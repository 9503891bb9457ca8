//! The file system. Its public API, [`Fs`], is the native API: FUSE, the command line, the bulk
//! service and the benchmark are all thin callers of it.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  error, attr          what callers see
//!  groups               where resource groups are
//!  volume               geometry, superblock, raw metadata slots on the pool
//!  meta, journal        metadata cache, transactions, group commit, checkpoint
//!  replay               journal to disk, for a dead node or after a power cut
//!  alloc                resource groups, windows, reservations, deferred frees
//!  make                 mkfs
//!  tree, map            index nodes; extents of a file
//!  inode, core          inodes in memory under their cluster locks; the demotion pipeline
//!  data                 dirty data, direct I/O, flush
//!  dir, xattr           names; attributes
//!  namei, orphan, plock operations on names; unlinked-but-open files; programs' locks
//!  check                fsck
//!  upkeep               filling, moving and scrubbing members of the pool
//!  reshape              changes of the pool that a mounted node makes
//!  trim, discard        free space goes back to the devices: when asked for, and by itself
//!  api, mount           the facade; joining, leaving, recovering
//! ```
//!
//! Invariants of every operation, in order: (1) take cluster locks (named < inodes ascending <
//! resource groups); (2) reserve space; (3) write new data into blocks nobody refers to yet;
//! (4) open a transaction, change metadata, close it. No cluster lock is taken, no reservation
//! made, inside a transaction. Data first, then the transaction that makes it visible: so a crash
//! never shows a block's former contents, and no commit ever waits for data.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod api;
pub mod attr;
pub mod check;
mod cluster;
mod core;
mod damage;
mod data;
mod dir;
mod discard;
pub mod error;
mod groups;
mod handle;
mod inode;
mod inspect;
mod journal;
mod judge;
pub mod make;
mod map;
mod meta;
mod mount;
mod namei;
mod orphan;
mod plock;
mod recovery;
mod replay;
mod reshape;
#[doc(hidden)]
pub mod simulation;
mod stop;
mod stores;
#[cfg(test)]
mod test_volume;
#[cfg(test)]
mod tests_features;
#[cfg(test)]
mod tests_subpools;
mod tree;
mod trim;
mod upkeep;
mod volume;
mod xattr;

pub use api::Fs;
pub use attr::{
    Attr, Cred, DirEntry, Durable, EarlyReply, Fh, KernelCache, NoKernelCache, SetAttr, StatFs,
    Time, TimeSet, Write, WriteFlags,
};
pub use braid_format as format;
pub use braid_lock as lock;
pub use braid_pool as pool;
pub use damage::DamagedBlock;
pub use data::ReadHold;
pub use error::Error;
pub use inspect::{ClusterView, inspect};
pub use mount::{MountOptions, NamedLock, NodeStatus, vouch_dead};
pub use plock::{Canceller, LockDone, Plock, PlockKind, WaitId};
pub use reshape::{Fill, Heir, Leaving, Left, Rebalanced};
pub use trim::{TrimRange, Trimmed};
pub use upkeep::UpkeepStatus;
pub use xattr::KILL_GROUP;
