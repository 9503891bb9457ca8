//! Locks of programs, fcntl and flock, across nodes. Buckets of them are metadata like any other,
//! each under its own cluster lock ([`crate::plock_table`]).
//!
//! A wait is a record ([`crate::plock_table::waits`]). The thread that frees a lock on this node
//! grants it to a waiter; a thread of the bucket polls locks that other nodes hold ([`poll`]).
//! Requests that wait are served in the order in which they were made, on whatever node. A request
//! that must not block may pass them, as fcntl(2) says. Locks of dead nodes are ignored, and
//! removed when they are seen.
//!
//! Waits are recorded in the bucket when other nodes look at it, so circles of them are
//! found: those in one bucket at once, those through several when a wait has lasted a while, by a look
//! at all buckets at the same time. Each of a circle is recorded before it looks, so the last one
//! sees all of it.

mod bucket_io;
mod grant;
mod poll;
mod requests;
#[cfg(test)]
mod tests;

pub(crate) use poll::end_wait;
pub use requests::Canceller;
pub(crate) use requests::{ask, drop_owner, flock, getlk, setlk};
