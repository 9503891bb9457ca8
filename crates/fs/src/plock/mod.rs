//! Locks of programs, fcntl and flock, across nodes. Buckets of them are metadata like any other,
//! each under its own cluster lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::InodeNo;

use crate::core::Core;
use crate::error::Result;

/// What a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlockKind {
    /// Beside other readers.
    Shared,
    /// Alone.
    Exclusive,
    /// Give up.
    Unlock,
}

/// A byte-range lock of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX`: to the end of the file, wherever that will be.
    pub end: u64,
    /// What is asked for, or held.
    pub kind: PlockKind,
    /// The kernel's lock owner on this node.
    pub owner: u64,
    /// Process, for `F_GETLK` (0 when it lives on another node).
    pub pid: u32,
}

/// Breaks off a wait from another thread. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Canceller {
    cancelled: Arc<AtomicBool>,
}

impl Canceller {
    /// Not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// The wait ends with `Interrupted`, soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// Waiters of this node.
#[derive(Debug, Default)]
pub(crate) struct Plocks {}

/// The first lock that stands in the way of `want`, or `None`.
pub(crate) fn getlk(core: &Arc<Core>, ino: InodeNo, want: &Plock) -> Result<Option<Plock>> {
    let _ = (core, ino, want);
    todo!()
}
/// Takes, changes or gives up an fcntl lock. `wait`: blocks until it is free or cancelled.
pub(crate) fn setlk(
    core: &Arc<Core>,
    ino: InodeNo,
    want: &Plock,
    wait: Option<&Canceller>,
) -> Result<()> {
    let _ = (core, ino, want, wait);
    todo!()
}
/// The same for flock: `start` and `end` do not count.
pub(crate) fn flock(
    core: &Arc<Core>,
    ino: InodeNo,
    want: &Plock,
    wait: Option<&Canceller>,
) -> Result<()> {
    let _ = (core, ino, want, wait);
    todo!()
}
/// Gives up all fcntl locks that `owner` of this node has on the file (a close).
pub(crate) fn drop_owner(core: &Arc<Core>, ino: InodeNo, owner: u64) -> Result<()> {
    let _ = (core, ino, owner);
    todo!()
}
