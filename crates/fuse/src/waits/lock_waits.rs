//! Requests that wait for a lock of another program. Such a request has no thread. Its number and
//! the file system's identifier of the wait are kept, so that an INTERRUPT finds it. The thread
//! that frees the lock answers it.
//!
//! A request that came by a ring keeps its ring entry, and with it a thread
//! ([`crate::session::ring_threads`]). Only so many of these may wait, and only a part of them for
//! one user, so that entries are left for requests that free the locks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The part (divisor) of a mount's threads that may wait for locks in their ring entries.
const SEATED_PART: usize = 2;
/// The part (divisor) of those that one user other than root may have.
const USER_PART: usize = 4;

/// The waits of a mount, by request. `W` names a wait to the file system.
#[derive(Debug)]
pub(crate) struct LockWaits<W> {
    by_request: Mutex<HashMap<u64, LockWait<W>>>,
}

#[derive(Debug)]
struct LockWait<W> {
    /// The thread of the program that waits.
    thread: u32,
    /// The file, by the kernel's number.
    node: u64,
    since: Instant,
    named: Option<W>,
}

impl<W> Default for LockWaits<W> {
    fn default() -> Self {
        Self { by_request: Mutex::default() }
    }
}

impl<W: Copy> LockWaits<W> {
    /// A request of a program's thread is about to ask for a lock of a file.
    pub fn begin(&self, unique: u64, thread: u32, node: u64) {
        let wait = LockWait { thread, node, since: Instant::now(), named: None };
        self.by_request.lock().insert(unique, wait);
    }
    /// It waits, as `wait`. Returns whether it still does.
    pub fn waits(&self, unique: u64, wait: W) -> bool {
        self.by_request.lock().get_mut(&unique).map(|w| w.named = Some(wait)).is_some()
    }
    /// It does not wait, or waits no longer.
    pub fn ended(&self, unique: u64) {
        self.by_request.lock().remove(&unique);
    }
    /// What a request waits as.
    pub fn of(&self, unique: u64) -> Option<W> {
        self.by_request.lock().get(&unique)?.named
    }
    /// All waits.
    pub fn all(&self) -> Vec<W> {
        self.by_request.lock().values().filter_map(|w| w.named).collect()
    }
    /// Those that wait: the program's thread, the file, and for how long.
    pub fn waiting(&self) -> Vec<(u32, u64, Duration)> {
        let waits = self.by_request.lock();
        let waiting = waits.values().filter(|wait| wait.named.is_some());
        waiting.map(|wait| (wait.thread, wait.node, wait.since.elapsed())).collect()
    }
    /// The requests that wait, each with its program's thread.
    pub fn whose(&self) -> Vec<(u64, u32)> {
        let waits = self.by_request.lock();
        let waiting = waits.iter().filter(|(_, w)| w.named.is_some());
        waiting.map(|(unique, w)| (*unique, w.thread)).collect()
    }
}

/// Waits that keep a ring entry.
#[derive(Debug, Default)]
pub(crate) struct RingWaits {
    all_max: usize,
    by_uid: Mutex<HashMap<u32, usize>>,
}

/// One of them; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct RingWait<'a> {
    waits: &'a RingWaits,
    uid: u32,
}

impl RingWaits {
    /// Of a mount with so many threads.
    pub fn new(threads: usize) -> Self {
        Self { all_max: (threads / SEATED_PART).max(1), by_uid: Mutex::default() }
    }
    /// One more of `uid`. `None`: there are too many.
    pub fn enter(&self, uid: u32) -> Option<RingWait<'_>> {
        let user_max = if uid == 0 { self.all_max } else { (self.all_max / USER_PART).max(1) };
        let mut by_uid = self.by_uid.lock();
        let all: usize = by_uid.values().sum();
        let own = by_uid.entry(uid).or_default();
        if all < self.all_max && *own < user_max {
            *own += 1;
            return Some(RingWait { waits: self, uid });
        }
        if *own == 0 {
            by_uid.remove(&uid);
        }
        None
    }
}

impl Drop for RingWait<'_> {
    fn drop(&mut self) {
        let mut by_uid = self.waits.by_uid.lock();
        if let Some(own) = by_uid.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                by_uid.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_known_until_it_ends() {
        let waits = LockWaits::default();
        waits.begin(4, 10, 30);
        assert_eq!((waits.of(4), waits.whose()), (None, vec![]));
        assert!(waits.waits(4, 'a'));
        assert_eq!((waits.of(4), waits.all()), (Some('a'), vec!['a']));
        assert_eq!(waits.whose(), [(4, 10)]);
        assert!(matches!(waits.waiting()[..], [(10, 30, _)]));
        waits.ended(4);
        assert!(!waits.waits(4, 'a') && waits.of(4).is_none() && waits.all().is_empty());
    }

    #[test]
    fn one_user_does_not_get_all_entries() {
        let waits = RingWaits::new(32);
        let mut held: Vec<_> = std::iter::from_fn(|| waits.enter(7)).collect();
        assert_eq!(held.len(), 4);
        assert!(waits.enter(8).is_some());
        held.extend(std::iter::from_fn(|| waits.enter(0)));
        assert_eq!(held.len(), 16);
        assert!(waits.enter(8).is_none());
        held.clear();
        assert!(waits.by_uid.lock().is_empty());
    }
}
