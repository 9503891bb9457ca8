//! Joining and leaving: slot, journal, lock manager, recovery of others.

use std::path::PathBuf;
use std::time::Duration;

use braid_format::{Bytes, NodeId};

/// What may be chosen when mounting.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// A fixed slot, or any free one.
    pub slot: Option<NodeId>,
    /// Nothing is changed.
    pub read_only: bool,
    /// Bound of clean metadata in memory.
    pub metadata_cache: Bytes,
    /// Bound of dirty file data in memory.
    pub dirty_max: Bytes,
    /// Bound of cluster locks (and so of inodes) kept while idle.
    pub locks_max: usize,
    /// Dirty data and metadata become durable at the latest after this.
    pub commit_interval: Duration,
    /// Access times: only when older than the modification time or a day.
    pub relatime: bool,
    /// For people: where it is mounted.
    pub mount_point: PathBuf,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            slot: None,
            read_only: false,
            metadata_cache: Bytes(128 << 20),
            dirty_max: Bytes(128 << 20),
            locks_max: 200_000,
            commit_interval: Duration::from_secs(5),
            relatime: true,
            mount_point: PathBuf::new(),
        }
    }
}
