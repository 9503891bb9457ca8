//! TEMPORARY
#[path = "../../fs/src/attr.rs"]
pub mod attr;
pub use attr::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
