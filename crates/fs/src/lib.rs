//! A POSIX file system that is striped over many devices and shared by many nodes, as a library: a process that mounts a
//! pool by this crate *is* a node of it, beside nodes of other processes and hosts, without FUSE and without the kernel.
//! Take it if a program reads or writes much and knows what it wants: large transfers, many ranges at once, buffers that
//! are not copied. Everything else works through a mount (`braid mount`), with the same files, locks and promises.
//!
//! FUSE, the command line, the bulk service, Python and the benchmark are all thin callers of this API.
//!
//! ```
//! use std::sync::Arc;
//!
//! use braid_fs::make::{MakeOptions, make};
//! use braid_fs::pool::device::{AlignedBuf, OpenOptions, open};
//! use braid_fs::pool::{CreateOptions, Pool};
//! use braid_fs::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two files stand for two disks here.
//! let folder = tempfile::tempdir()?;
//! let mut devices = Vec::new();
//! for name in ["disk0", "disk1"] {
//!     let path = folder.path().join(name);
//!     std::fs::File::create_new(&path)?.set_len(64 << 20)?;
//!     devices.push(open(&path, OpenOptions::default())?);
//! }
//! // Once: what `braid create` does.
//! let pool = Pool::create(devices, &CreateOptions::new("example"))?;
//! make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
//! // Later, `Pool::assemble` puts it together from its members, in any order.
//! let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;
//!
//! let (attr, file) = fs.create(fs.root(), b"greeting", 0o644, /* O_RDWR */ 2, &Cred::default())?;
//! fs.write(file, 0, b"hello", WriteFlags::default())?;
//! fs.fsync(file, false)?; // durable from here on
//! let mut buffer = AlignedBuf::zeroed(4096);
//! let read = fs.read(file, 0, &mut buffer)?;
//! assert_eq!(&buffer[..read], b"hello");
//! assert_eq!(fs.lookup(fs.root(), b"greeting")?.ino, attr.ino);
//! fs.release(file)?;
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! More: `crates/fs/examples` has `files` (directories, errors), `ranges` (many reads at once) and `two_nodes`.
//!
//! # Five types
//!
//! | type | what it is |
//! |---|---|
//! | [`pool::Pool`] | many devices as one address space: made once by `create`, put together by `assemble` |
//! | [`Fs`] | a node that has joined, and all calls. Cheap to clone, used by any number of threads; every call blocks |
//! | [`MountOptions`] | how a node joins: memory, timers, fencing, read-only |
//! | [`Attr`] | what `stat` says. A file is named by its number (`ino`) and, when it is open, by an [`Fh`] |
//! | [`Error`] | why a call failed |
//!
//! Names are bytes in one directory: a caller walks paths itself, from [`Fs::root`] by [`Fs::lookup`]. No permissions are
//! checked: [`Cred`] only says who owns what is made.
//!
//! # Errors
//!
//! A call fails with an [`Error`] whose variant names the fact; [`Error::errno`] is what a POSIX program would get. Most
//! are of one call or one file. [`Error::Withdrawn`] is for good: the node has left the pool after a failure, or lost its
//! lease, and every later call fails. Unmount, look at [`Fs::withdrawn`] and at the log (by `tracing`), mount again.
//!
//! # Durability
//!
//! What a write or a change of names has done is seen at once by all nodes, and becomes durable within
//! [`MountOptions::commit_interval`]. It is durable at once after [`Fs::fsync`] (a file's contents and metadata),
//! [`Fs::fsync_dir`], [`Fs::sync`] (all of this node), and on return from a write with [`WriteFlags::durable`]. After a
//! crash the file system is consistent: changes that were not made durable are there, or missing as if they had not
//! begun, and no file shows what its blocks held before. [`Fs::unmount`] makes everything durable and leaves; a node
//! whose process just ends is recovered by the others, or by the next to mount.
//!
//! # Inside
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  mode             file types and permission bits
//!  unseen_writes    writes that the kernel's pages may not have seen
//!  error, attr      what callers see
//!  damage           damaged metadata that this node has met, for the log and `status`
//!  options          what may be chosen when mounting
//!  jobs             work on the whole pool, one piece at a time
//!  readahead        reads that fill pages take turns at the devices
//!  kept             which inodes a request names by number, as its caller knows them
//!  stop_flag        how a thread that works now and then is told to end
//!  groups           where resource groups are: pure functions of the superblock
//!  external_store   where lock records and node slots are
//!  volume           geometry, superblock, raw metadata slots on the pool
//!  cluster          what the pool must know of the other nodes
//!  journal, meta    the ring of records; metadata cache, transactions, group commit, checkpoint
//!  replay, verifier  journal to disk, for a dead node or after a power cut; which bytes are good
//!  alloc            resource groups, windows, reservations, deferred frees
//!  tree, map        index nodes of B+trees; extents of a file
//!  file_data        dirty pages of a file, and the space reserved for them
//!  inode            inodes in memory under their cluster locks
//!  inode_tree       the tree of an inode, read or changed
//!  dirty_files, inflight_writes  what of this node's files is not on the devices yet
//!  make             mkfs
//!  handle           open files of this node
//!  orphan_list      lists of inodes without a name, on disk and in memory
//!  plock_table      locks of programs in memory
//!  stat_ahead       whose locks a program will probably need next
//!  core             what all operations share; locks of inodes
//!  plock            locks of programs: granting, waiting, their blocks
//!  deferred_ops     what the lock manager asks while the core is being made
//!  writeback        dirty data gets its blocks and is written
//!  dir, xattr       names; attributes
//!  data             reads and writes, through the cache and past it; truncation, allocation
//!  demote           what happens before a lock is given up
//!  orphan, namei    unlinked-but-open files; operations on names
//!  recovery         of a dead node, after its fence
//!  files_at         which files have bytes of the pool
//!  discard, maintenance  free space goes back to the devices; filling, moving, scrubbing members
//!  exclusive_use    nobody else has the file system mounted
//!  growth           space that was added to the pool is used
//!  unused_metadata  metadata that nobody uses becomes space for data again
//!  freeze           no node changes anything for a while
//!  housekeeper      what a mounted node does by itself
//!  mount            joining and leaving
//!  inspect          a look from outside; nothing is joined, locked or changed
//!  simulation       parts by themselves, for `crates/sim`
//!  api              the facade
//!  holds            other programs are kept from the members of a mounted pool
//!  check            fsck
//!  reshape, trim    changes of the pool that a mounted node makes; space given back when asked for
//!  plans            what such changes would do, and be refused for
//!  failure_log      failed calls in the log, now and then
//!  file_system      the operations as a trait, for FUSE and other carriers
//! ```
//!
//! `Core` is this node: what the documents call so. `Node` is taken twice: nodes here are also those of B+trees
//! (`tree`), and `braid_lock::node` is a node as others see it, by its slot and heartbeats.
//!
//! Invariants of every operation, in order: (1) take cluster locks (named < inodes ascending <
//! resource groups); (2) reserve space; (3) write new data into blocks nobody refers to yet;
//! (4) open a transaction, change metadata, close it. No cluster lock is taken, no reservation
//! made, inside a transaction. Data first, then the transaction that makes it visible: so a crash
//! never shows a block's former contents, and no commit ever waits for data.

#![forbid(unsafe_code)]
// What this crate's pages lead to is there: `cargo doc` fails otherwise.
#![deny(rustdoc::broken_intra_doc_links, rustdoc::private_intra_doc_links)]

pub mod alloc;
pub mod api;
pub mod attr;
pub mod check;
mod cluster;
mod core;
mod damage;
mod data;
mod deferred_ops;
mod demote;
mod dir;
mod dirty_files;
mod discard;
pub mod error;
mod exclusive_use;
mod external_store;
mod failure_log;
mod file_data;
pub mod file_system;
mod files_at;
mod freeze;
mod groups;
mod growth;
mod handle;
mod holds;
mod housekeeper;
mod inflight_writes;
mod inode;
mod inode_tree;
mod inspect;
mod jobs;
mod journal;
mod kept;
mod maintenance;
pub mod make;
mod map;
mod meta;
pub mod mode;
mod mount;
mod namei;
mod options;
mod orphan;
mod orphan_list;
mod plans;
mod plock;
mod plock_table;
mod readahead;
mod recovery;
mod replay;
mod reshape;
#[doc(hidden)]
pub mod simulation;
mod stat_ahead;
mod stop_flag;
#[cfg(test)]
mod test_pool;
#[cfg(test)]
mod test_volume;
#[cfg(test)]
mod tests_features;
#[cfg(test)]
mod tests_space;
#[cfg(test)]
mod tests_subpools;
mod tree;
mod trim;
mod unseen_writes;
mod unused_metadata;
mod verifier;
mod volume;
mod writeback;
mod xattr;

pub use api::{Cleared, Fs};
pub use attr::{
    Attr, Cred, DirEntry, Durable, EarlyReply, Fh, KernelCache, NoKernelCache, SetAttr, StatFs,
    Time, TimeSet, WithAttrs, Write, WriteFlags,
};
pub use braid_format as format;
pub use braid_lock as lock;
pub use braid_pool as pool;
pub use damage::DamagedBlock;
pub use data::{ReadHold, ReadRange};
pub use error::Error;
pub use exclusive_use::shows_life;
pub use file_system::{Answer, Errno, FileSystem, LockAnswer};
pub use files_at::{FileAt, FilesAt};
pub use holds::Holds;
pub use inspect::{ClusterView, inspect};
pub use jobs::JobProgress;
pub use kept::KeptNumbers;
pub use maintenance::{MaintenanceStatus, SCRUB_BEGUN, SCRUB_ENDED, WorkBegan};
pub use meta::MetaStats;
pub use mount::{
    NamedLock, NodeStatus, accept_members, destroy, give_slot_back, rename, vouch_dead,
};
pub use options::MountOptions;
pub use plans::{check_unused, plan_vouch_dead};
pub use plock::Canceller;
pub use plock_table::{LockDone, Plock, PlockKind, WaitId};
pub use reshape::{Fill, Leaving, Left, Rebalanced, Successor};
pub use trim::{TrimRange, Trimmed};
pub use unseen_writes::UnseenWrite;
pub use xattr::{ACCESS_LIST, DEFAULT_LIST, KILL_GROUP, Person};
