//! Whose fcntl locks came through which open file.
//!
//! A process's locks go when it closes any descriptor of the file: the kernel says so with FLUSH,
//! which names the owner. Locks of an open file description (`F_OFD_SETLK`) have the description
//! itself for an owner, and nothing names that one when it goes. So owners are kept by open file.
//! An owner that is still there at RELEASE was an open file description, since every process has
//! flushed by then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_fs::Fh;
use parking_lot::Mutex;

/// Owners by open file.
#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    by_file: Mutex<HashMap<Fh, Vec<u64>>>,
    /// Entries in the map: most closes find none and take no lock.
    files: AtomicUsize,
}

impl LockOwners {
    /// `owner` is about to lock through `fh`.
    pub fn locking(&self, fh: Fh, owner: u64) {
        let mut map = self.by_file.lock();
        let owners = map.entry(fh).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
        self.files.store(map.len(), Ordering::Release);
    }
    /// `owner`'s locks on the file have gone.
    pub fn flushed(&self, fh: Fh, owner: u64) {
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut map = self.by_file.lock();
        if let Some(owners) = map.get_mut(&fh) {
            owners.retain(|o| *o != owner);
            if owners.is_empty() {
                map.remove(&fh);
            }
        }
        self.files.store(map.len(), Ordering::Release);
    }
    /// `fh` is closed: the owners that are left.
    pub fn released(&self, fh: Fh) -> Vec<u64> {
        if self.files.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut map = self.by_file.lock();
        let left = map.remove(&fh).unwrap_or_default();
        self.files.store(map.len(), Ordering::Release);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_never_flushed_is_left() {
        let lockers = LockOwners::default();
        assert!(lockers.released(1).is_empty());
        for owner in [7, 8, 8] {
            lockers.locking(1, owner);
        }
        lockers.locking(2, 7);
        lockers.flushed(1, 7);
        assert_eq!(lockers.released(1), [8]);
        lockers.flushed(2, 7);
        assert!(lockers.released(2).is_empty());
        assert_eq!(lockers.files.load(Ordering::Relaxed), 0);
    }
}
