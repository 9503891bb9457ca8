//! Locks of programs in memory: what this node's programs hold and wait for, by bucket, and how a
//! bucket is stored in its blocks. Nothing here takes a cluster lock or touches a device:
//! [`crate::plock`] does.

pub(crate) mod bucket;
pub(crate) mod chain;
pub(crate) mod circle;
pub(crate) mod table;
pub(crate) mod threads;
mod users;
pub(crate) mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_format::{Bytes, LockNo};
use parking_lot::Mutex;

use self::bucket::Bucket;
use self::threads::CircleSearch;
use self::users::Users;
use self::waits::tell;
use crate::error::Result;
use crate::volume::Volume;

pub(crate) use self::bucket::BLOCKS_MAX;
pub use self::waits::{LockDone, WaitId};

/// The block of a bucket that follows this one, for the checker.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn next_block(
    body: &[u8],
) -> std::result::Result<Option<braid_format::BlockNo>, &'static str> {
    chain::Block::decode(body).map(|block| block.next)
}

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
    /// User to whom the lock counts.
    pub uid: u32,
}

/// Locks that programs of this node have, or wait for.
#[derive(Debug)]
pub(crate) struct Plocks {
    pub buckets: BTreeMap<LockNo, Arc<Bucket>>,
    pub users: Users,
    pub circles: Mutex<CircleSearch>,
}

impl Plocks {
    /// None. `metadata_cache` bounds their memory, see [`users`].
    pub fn new(volume: &Volume, metadata_cache: Bytes) -> Self {
        let buckets = volume.plock_buckets().map(|n| (n, Arc::new(Bucket::new(n)))).collect();
        let users = Users::new(metadata_cache);
        Self { buckets, users, circles: Mutex::default() }
    }
    /// The buckets, in the order in which several are locked.
    pub fn in_order(&self) -> impl Iterator<Item = &Arc<Bucket>> {
        self.buckets.values()
    }
    /// Another node says that something is free that programs of this node wait for.
    pub fn your_turn(&self, lock: LockNo) {
        if let Some(bucket) = self.buckets.get(&lock) {
            bucket.your_turn();
        }
    }
    /// A cluster lock, maybe a bucket's, was given up.
    pub fn forget(&self, lock: LockNo) {
        if let Some(bucket) = self.buckets.get(&lock) {
            bucket.forget();
        }
    }
    /// Ends all waits: the node leaves.
    pub fn end_waits(&self, how: &dyn Fn() -> Result<()>) {
        for bucket in self.in_order() {
            end_waits(&self.users, bucket, how);
        }
    }
}

/// Ends all waits in a bucket.
pub(crate) fn end_waits(users: &Users, bucket: &Bucket, how: &dyn Fn() -> Result<()>) {
    let (waits, parted) = {
        let mut state = bucket.state();
        (state.take_waits(), state.parting.take(Duration::ZERO))
    };
    for wait in &waits {
        users.count(wait.uid, -1);
    }
    tell(parted);
    tell(waits.into_iter().map(|wait| wait.ends(how())).collect());
}
