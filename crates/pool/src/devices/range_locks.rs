//! Locks on ranges of a redundancy group's bytes, within this process.
//!
//! Three things must not happen: two writes of the same bytes reach the copies of a mirror in
//! different orders; two partial writes of one parity row start from the same old parity; a rebuild
//! copies bytes while they change. So each request takes its ranges here, all at once, first come
//! first served. A request waits for every earlier request whose ranges overlap its own, whether
//! that one is served or still waits, and never for a later one. So there is no deadlock and no
//! starvation.

use braid_device::tasks::{self, Awaited};
use parking_lot::{Condvar, Mutex};

/// Bytes from `.0` to `.1` of the group.
pub(crate) type Range = (u64, u64);

/// The ranges of one group that are held or waited for.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    queue: Mutex<Queue>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// In order of arrival: `(ticket, ranges)`.
    entries: Vec<(u64, Vec<Range>)>,
}

/// Holds ranges until it is dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    ticket: u64,
}

fn overlap(a: &[Range], b: &[Range]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 < y.1 && y.0 < x.1))
}

impl RangeLocks {
    /// Waits until no earlier request overlaps `ranges`, and holds them. Ranges of one call may
    /// overlap each other.
    pub fn lock(&self, ranges: Vec<Range>) -> RangeGuard<'_> {
        let mut queue = self.queue.lock();
        let ticket = queue.next;
        queue.next += 1;
        queue.entries.push((ticket, ranges));
        loop {
            let place = queue.entries.iter().position(|e| e.0 == ticket).unwrap_or(0);
            let (before, own) = queue.entries.split_at(place);
            let own = own.first().map_or(&[][..], |e| &e.1);
            if !before.iter().any(|e| overlap(&e.1, own)) {
                return RangeGuard { locks: self, ticket };
            }
            let _waits = tasks::wait(Awaited::Request);
            self.freed.wait(&mut queue);
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.locks.queue.lock();
        queue.entries.retain(|e| e.0 != self.ticket);
        // A request waits only behind another one in the queue.
        let anybody = !queue.entries.is_empty();
        drop(queue);
        if anybody {
            self.locks.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use braid_testkit::wait_until;

    use super::*;

    #[test]
    fn overlapping_holders_exclude_each_other() {
        let locks = RangeLocks::default();
        let cells: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for t in 0..4_u64 {
                let (locks, cells) = (&locks, &cells);
                s.spawn(move || {
                    for i in 0..500_u64 {
                        let a = (i * 7 + t * 3) % 14;
                        let _held = locks.lock(vec![(a, a + 2), (a + 1, a + 2)]);
                        for c in &cells[usize::try_from(a).unwrap()..][..2] {
                            // Not atomic on purpose: only exclusion makes the sum right.
                            let v = c.load(Ordering::Relaxed);
                            std::thread::yield_now();
                            c.store(v + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(cells.iter().map(|c| c.load(Ordering::Relaxed)).sum::<u64>(), 4 * 500 * 2);
    }

    #[test]
    fn what_does_not_overlap_does_not_wait() {
        // In a thread that is left behind if it waits.
        let all = std::thread::spawn(|| {
            let locks = RangeLocks::default();
            let _a = locks.lock(vec![(0, 10)]);
            let _b = locks.lock(vec![(10, 20), (30, 40)]);
            drop(locks.lock(vec![(20, 30)]));
        });
        wait_until("all three are held", || all.is_finished());
        all.join().unwrap();
    }
}
