//! FUSE: requests of the kernel become calls of the file system. This crate speaks the protocol of
//! `/dev/fuse` itself and decides nothing about files.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  abi         messages of the kernel, to the byte
//!  counts      requests are counted, and how long they take
//!  error       why a mount or a message is refused
//!  transport   how messages come and answers go: by the device, or by io_uring
//!  caches      what the kernel caches, and how that ends in time
//!  waits       requests that wait, and what ends their waits
//!  options     how a mount behaves
//!  terms       what was agreed in the greeting
//!  handlers    one opcode, one call; values of the file system in the kernel's form
//!  session     mount, threads, unmount
//! ```
//!
//! Invariants: (1) every request has exactly one answer that counts, except those that want none (if a killed program's
//! request is answered early, a second answer may follow, which the kernel drops); (2) no
//! message of the kernel, however short or odd, panics; (3) a thread that answers requests never
//! sends a notification, except to drop attributes alone; (4) what the kernel may cache is covered
//! by a lock that this node holds, and is dropped before the lock goes (`caches::nodes` has the races);
//! (5) a request blocked on a lock holds up no other, but that each large write beyond the memory
//! for them holds up what comes behind it for some ms (`transport::payloads`); one that waits for a lock of
//! another program has no thread.
//!
//! How data flows. A file open for reading only is read through the kernel's page cache, filled
//! while the inode's lock is held ([`braid_fs::FileSystem::read_reply`]). A file that may be written, or that is
//! opened with `O_DIRECT`, goes past the page cache, with parallel writes; mapping it shared still
//! works. After a write, pages that others on this node may have filled meanwhile are dropped
//! before the program goes on (`caches::notify`).

#![forbid(unsafe_code)]

pub mod abi;
mod caches;
mod counts;
pub mod error;
mod handlers;
pub mod options;
pub mod session;
mod terms;
mod transport;
mod waits;

pub use caches::notify::KernelLink;
pub use counts::{
    OperationCounts, ProgramCounts, RequestCounters, RequestUnderWay, WaitingRequests,
};
pub use error::{BadRequest, FuseError};
pub use options::{CacheNames, FuseOptions};
pub use session::Session;
pub use session::connect::unmount;
pub use terms::Terms;
pub use waits::killed_programs::has_memory;
