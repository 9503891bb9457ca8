//! What may be chosen when a node mounts.

use std::path::PathBuf;
use std::time::Duration;

use braid_format::{Bytes, NodeId};
use braid_lock::{FenceOptions, HintsBy, HostIdentity, Timing};

/// What may be chosen when mounting.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent options, each named")]
pub struct MountOptions {
    /// A fixed slot, or any free one.
    pub slot: Option<NodeId>,
    /// Nothing is changed.
    pub read_only: bool,
    /// Bound of the node's memory, of which the bounds that follow are parts.
    pub memory: Bytes,
    /// Bound of clean metadata in memory.
    pub metadata_cache: Bytes,
    /// Bound of metadata in memory that is in the journal and not yet in its place.
    pub logged_max: Bytes,
    /// Bound of dirty file data in memory.
    pub dirty_max: Bytes,
    /// Bound of cluster locks (and so of inodes) kept while idle.
    pub locks_max: usize,
    /// Dirty data and metadata become durable at the latest after this.
    pub commit_interval: Duration,
    /// What is freed goes back to the devices by itself, some time after that is durable.
    pub discard: bool,
    /// It only says what others would do: of itself it fills, moves and scrubs nothing, and marks or fails no member.
    pub only_plans: bool,
    /// After a repair: metadata that nobody uses becomes space for data again, however much is free.
    pub after_repair: bool,
    /// For people: where it is mounted.
    pub mount_point: PathBuf,
    /// It serves clients that rely for [`braid_lock::SERVED_WAIT`] at most on what it has told them: if it dies, others
    /// wait so long before they use what it had locked.
    pub serves: bool,
    /// All timers of its membership.
    pub timing: Timing,
    /// How it fences nodes of other hosts, besides by reservation.
    pub fence: FenceOptions,
    /// By which ways hints of other nodes come; `None`: what suits the pool's devices.
    pub hints: Option<HintsBy>,
    /// Who this host is; `None`: asked of the system.
    pub identity: Option<HostIdentity>,
}

impl Default for MountOptions {
    fn default() -> Self {
        let mut options = Self {
            slot: None,
            read_only: false,
            memory: Bytes(0),
            metadata_cache: Bytes(0),
            logged_max: Bytes(0),
            dirty_max: Bytes(0),
            locks_max: 0,
            commit_interval: Duration::from_secs(5),
            discard: false,
            only_plans: false,
            after_repair: false,
            serves: false,
            mount_point: PathBuf::new(),
            timing: Timing::default(),
            fence: FenceOptions::default(),
            hints: None,
            identity: None,
        };
        options.bound_memory(Self::MEMORY);
        options
    }
}

impl MountOptions {
    /// Usual bound of a node's memory: it holds 100,000 inodes.
    pub const MEMORY: Bytes = Bytes(512 << 20);
    /// Least bound that makes sense: below, buffers and threads need more than what is bounded.
    pub const MEMORY_MIN: Bytes = Bytes(64 << 20);
    /// Memory of an idle inode and its cluster lock (measured, with the allocator's share).
    pub const INODE_BYTES: u64 = 1280;

    /// What a node takes before it has anything to do, and what the allocator cannot give back.
    const PROGRAM: u64 = 16 << 20;

    /// Shares out `total` bytes, less what the program itself takes: three quarters go to what can
    /// be bounded one by one, a quarter to what is under way (contents of requests, reads).
    pub fn bound_memory(&mut self, total: Bytes) {
        self.memory = total;
        let sixteenth = total.get().saturating_sub(Self::PROGRAM) / 16;
        self.metadata_cache = Bytes(3 * sixteenth);
        self.dirty_max = Bytes(3 * sixteenth);
        self.logged_max = Bytes(2 * sixteenth);
        let locks = 4 * sixteenth / Self::INODE_BYTES;
        self.locks_max = usize::try_from(locks).unwrap_or(usize::MAX);
    }
}
