//! FUSE: requests of the kernel become calls of the file system. This crate speaks the protocol of
//! `/dev/fuse` itself and decides nothing about files.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  abi                  messages of the kernel, to the byte
//!  error, request       checked slices of a message
//!  reply                answers and notifications: one writev each
//!  files, braid         the file system as a trait; the real one
//!  wire                 its values in the kernel's form
//!  nodes, interrupts    what the kernel holds; waits that a signal may end
//!  moves                directories that the kernel has at their old places
//!  lockers, lockwaits   whose locks came through which file; requests that wait for a lock
//!  shut                 whether requests are answered: not without a lease
//!  notify               drops of what the kernel caches
//!  terms, threads       what was agreed in the greeting; what all threads share
//!  payloads, space      memory for large messages, bounded; that of a thread for one message
//!  line                 requests that stand in line while all threads are busy
//!  killed               requests of killed programs: their waits end
//!  dispatch             one opcode, one call
//!  options, connect     mount and unmount
//!  intake, alert        waiting for requests: asking, and what processors do meanwhile
//!  seat, seats          requests by io_uring, if that is asked for
//!  workers, session     threads; a mount from greeting to end
//! ```
//!
//! Invariants: (1) every request is answered exactly once, except those that want no answer; (2) no
//! message of the kernel, however short or odd, panics; (3) a thread that answers requests never
//! sends a notification, except to drop attributes alone; (4) what the kernel may cache is covered
//! by a lock that this node holds, and is dropped before the lock goes ([`nodes`] has the races);
//! (5) a request blocked on a lock holds up no other, but that each large write beyond the memory
//! for them holds up what comes behind it for 100 ms ([`payloads`]); one that waits for a lock of
//! another program has no thread.
//!
//! How data flows. A file open for reading only is read through the kernel's page cache, filled
//! while the inode's lock is held ([`Files::read_reply`]). A file that may be written, or that is
//! opened with `O_DIRECT`, goes past the page cache, with parallel writes; mapping it shared still
//! works. After a write, pages that others on this node may have filled meanwhile are dropped
//! before the program goes on ([`notify`]).

#![forbid(unsafe_code)]

pub mod abi;
mod alert;
mod braid;
pub mod connect;
mod dispatch;
pub mod error;
pub mod files;
mod intake;
mod interrupts;
mod killed;
mod line;
mod lockers;
mod lockwaits;
mod moves;
mod nodes;
mod notify;
pub mod options;
mod payloads;
mod reply;
mod request;
mod seat;
mod seats;
pub mod session;
mod shut;
mod space;
mod terms;
mod threads;
mod wire;
mod workers;

pub use connect::unmount;
pub use error::{BadRequest, FuseError};
pub use files::{Answer, Errno, Files};
pub use notify::KernelLink;
pub use options::{CacheNames, FuseOptions};
pub use session::Session;
pub use terms::Terms;
