//! What the last search for space did not find.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use parking_lot::Mutex;

/// What the last search did not find, and when that may have changed.
#[derive(Debug, Default)]
pub(super) struct Full {
    pub(super) last: Mutex<Option<FailedSearch>>,
    /// Counts what gives this node more space to reserve.
    pub(super) events: AtomicU64,
    /// Searches, for tests.
    #[cfg(test)]
    pub searches: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FailedSearch {
    pub(super) data: u64,
    pub(super) slots: u64,
    pub(super) at: Instant,
    /// The number of the space lock's exclusive hold; `None`: no other node can come.
    pub(super) tenure: Option<u64>,
    pub(super) before: Before,
}

/// How things were before a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) events: u64,
    pub(super) groups: (u64, u64),
}
