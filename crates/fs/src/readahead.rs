//! Reads that fill pages take turns at the devices.
//!
//! The kernel reads ahead in windows: it asks for all of the next one, 8 MiB in requests of 1 MiB,
//! once the program touches the first page of the one before. All at once on a disk, all of them end
//! together, at the end of the time that the whole window takes; only then does the program go on,
//! and asks for another, and meanwhile the disk has nothing to do. So of one open file half a window
//! goes to the devices at a time, lowest offsets first: the program has the first half while the
//! second is being read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use braid_pool::device::tasks::{self, Awaited};
use parking_lot::Mutex;

/// Bytes that an open file may have under way before others wait: half of what `read_ahead=` is
/// usually.
const MOST: u64 = 4 << 20;
/// What is smaller is no read-ahead of a stream.
const LARGE: u64 = 256 << 10;

/// Reads of which so many bytes may be under way at a time: those of one open file, or all of this node.
#[derive(Debug)]
pub(crate) struct ReadaheadLimiter {
    /// Bytes.
    most: fn() -> u64,
    /// Reads of fewer bytes wait for nobody, nor are they waited for.
    least: u64,
    state: Mutex<State>,
}

impl Default for ReadaheadLimiter {
    fn default() -> Self {
        Self::new(|| MOST, LARGE)
    }
}

#[derive(Debug)]
struct State {
    under_way: u64,
    /// By offset; the number tells those of the same offset apart.
    waiting: BTreeMap<(u64, u64), Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    len: u64,
    thread: Thread,
    called: Arc<AtomicBool>,
}

/// One turn; dropping it ends it.
#[derive(Debug)]
pub(crate) struct ReadTurn<'a> {
    limiter: &'a ReadaheadLimiter,
    len: u64,
}

impl ReadaheadLimiter {
    /// `most` bytes at a time, of reads of at least `least` bytes.
    pub const fn new(most: fn() -> u64, least: u64) -> Self {
        let state = State { under_way: 0, waiting: BTreeMap::new(), next: 0 };
        Self { most, least, state: Mutex::new(state) }
    }
    /// Waits for this read's turn. The caller must hold nothing that a holder may wait for: where holders wait for
    /// devices only, never for a lock of an inode, a wait for a turn may be under such locks.
    pub fn wait(&self, offset: u64, len: u64) -> Option<ReadTurn<'_>> {
        if len < self.least {
            return None;
        }
        let mut state = self.state.lock();
        if state.waiting.is_empty() && state.fits(len, (self.most)()) {
            state.under_way += len;
            return Some(ReadTurn { limiter: self, len });
        }
        let called = Arc::new(AtomicBool::new(false));
        let key = (offset, state.next);
        state.next += 1;
        let thread = std::thread::current();
        state.waiting.insert(key, Waiting { len, thread, called: Arc::clone(&called) });
        drop(state);
        let _waits = tasks::wait(Awaited::Memory);
        while !called.load(Ordering::Acquire) {
            std::thread::park();
        }
        Some(ReadTurn { limiter: self, len })
    }
}

impl State {
    /// Something always may: a request may be larger than what is allowed.
    fn fits(&self, len: u64, most: u64) -> bool {
        self.under_way == 0 || self.under_way + len <= most
    }
    /// Calls those whose turn it is; what they read is under way from here on.
    fn call(&mut self, most: u64) {
        while let Some(len) = self.waiting.first_key_value().map(|(_, first)| first.len)
            && self.fits(len, most)
            && let Some((_, first)) = self.waiting.pop_first()
        {
            self.under_way += len;
            first.called.store(true, Ordering::Release);
            first.thread.unpark();
        }
    }
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        state.under_way -= self.len;
        state.call((self.limiter.most)());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use braid_testkit::wait_until;

    const MIB: u64 = 1 << 20;

    #[test]
    fn half_a_window_goes_first_then_the_lowest_offset() {
        let limiter = ReadaheadLimiter::default();
        let mut first: Vec<_> = (0..4).map(|n| limiter.wait(n * MIB, MIB)).collect();
        assert!(first.iter().all(Option::is_some));
        let (say, said) = mpsc::channel();
        std::thread::scope(|scope| {
            for (n, offset) in [6, 5, 7, 4].into_iter().enumerate() {
                let (limiter, say) = (&limiter, say.clone());
                scope.spawn(move || {
                    let turn = limiter.wait(offset * MIB, MIB);
                    say.send(offset).unwrap();
                    drop(turn);
                });
                // A caller that comes earlier does not go first because of that.
                wait_until("it stands in line", || limiter.state.lock().waiting.len() == n + 1);
            }
            assert!(said.try_recv().is_err());
            // One goes; those behind it follow one by one as each ends.
            first.pop();
            let order: Vec<u64> = said.iter().take(4).collect();
            assert_eq!(order, [4, 5, 6, 7]);
        });
        drop(first);
        assert_eq!(limiter.state.lock().under_way, 0);
    }
    #[test]
    fn small_reads_wait_for_nobody_and_huge_ones_not_for_ever() {
        let limiter = ReadaheadLimiter::default();
        let huge = limiter.wait(0, 64 * MIB);
        assert!(huge.is_some() && limiter.wait(MIB, 4096).is_none());
        drop(huge);
        assert!(limiter.wait(0, 64 * MIB).is_some());
    }
}
