//! What groups have that are closed, because they leave.

use std::time::Instant;

/// What closed parts have, and when that was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClosedSpace {
    pub(super) since: Instant,
    pub(super) version: (u64, u64),
    /// Blocks that may hold file data.
    pub blocks: u64,
    /// Of those, free.
    pub free: u64,
    /// Free slots, and free blocks of groups for metadata alone.
    pub meta: u64,
}

impl ClosedSpace {
    /// Nothing is closed, or nothing is known of it.
    pub(super) fn none(version: (u64, u64)) -> Self {
        Self { since: Instant::now(), version, blocks: 0, free: 0, meta: 0 }
    }
}
