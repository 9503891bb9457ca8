//! The contents of a file that this node holds in memory: dirty pages, the space reserved for them, and a
//! part of the extent map, decoded.
//!
//! Nothing here takes a lock of the cluster or touches a device: [`crate::data`] does, with what is kept here.

mod pages;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::BlockNo;
use parking_lot::{Mutex, RwLock};

use crate::alloc::Reservation;
use crate::error::Error;
use crate::map::{Load, Part};

pub(crate) use pages::{Pages, SpareBuffers};

/// First and longest pause before contents that a device refused are written again by nobody's wish.
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// What an inode holds besides its dinode.
#[derive(Debug, Default)]
pub(crate) struct FileData {
    /// Memory that `pages` hold: to be read without a lock.
    pub dirty: AtomicU64,
    /// Bytes of direct writes under way that go to holes.
    pub inflight: AtomicU64,
    /// What became of an answered write that could be kept nowhere: for the next to sync the file.
    pub lost: Mutex<Option<Error>>,
    pub pages: RwLock<Pages>,
    /// A device has refused contents: until when the node does not try again by itself, and how
    /// long that pause is.
    pub put_off: Mutex<Option<(Instant, Duration)>>,
    /// Some consecutive leaves of the map, decoded.
    pub map: RwLock<Option<Part>>,
    pub change: Mutex<Delalloc>,
    /// Where the last run that was claimed ended: (file block, pool block).
    pub last_run: Mutex<Option<(u64, BlockNo)>>,
}

/// Delayed allocation: the space reserved for dirty pages, which get their blocks when they are written.
#[derive(Debug, Default)]
pub(crate) struct Delalloc {
    pub reservation: Option<Reservation>,
    /// What the flush will ask of the tree.
    pub load: Load,
    /// Blocks to reserve again: those reserved before are kept back, because writing to them
    /// failed.
    pub short: u64,
}

impl FileData {
    /// Contents that the devices do not have yet.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire) > 0
    }
    /// Memory that they take.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }
    /// Bytes that blocks of the file may not hold yet, at most.
    pub fn unlinked(&self) -> u64 {
        self.dirty_bytes() + self.inflight.load(Ordering::Acquire)
    }
    /// Whether contents were lost, and nobody has heard of it yet.
    pub fn has_lost(&self) -> bool {
        self.lost.lock().is_some()
    }
    /// Whether contents were refused a short while ago: only their own users try again. Each attempt
    /// that fails takes blocks out of use ([`crate::alloc::Run::keep_back`]).
    pub fn is_put_off(&self) -> bool {
        self.put_off.lock().is_some_and(|(until, _)| Instant::now() < until)
    }
    pub fn put_off(&self, error: &Error) {
        if matches!(error, Error::Contents(_)) {
            let mut put_off = self.put_off.lock();
            let pause = put_off.map_or(PAUSE_MIN, |(_, pause)| (pause * 2).min(PAUSE_MAX));
            *put_off = Some((Instant::now() + pause, pause));
        }
    }
    /// Drops the decoded map: the lock is about to be released.
    pub fn forget_map(&self) {
        *self.map.write() = None;
        *self.last_run.lock() = None;
    }
}
