//! Ranges of a logical unit in use: readers together, writers alone.
//!
//! What makes a compare-and-write, and every other read-then-write, one step among all sessions:
//! it holds its range alone, and everything else holds the range it touches.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};

/// Ranges in use.
#[derive(Debug, Default)]
pub struct Ranges {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Few: at most as many as commands under way.
    held: Vec<(u64, Range<u64>, bool)>,
    next: u64,
    waiting: usize,
}

/// Keeps a range in use until it is dropped.
#[derive(Debug)]
pub struct RangeGuard<'a> {
    ranges: &'a Ranges,
    id: u64,
}

impl Ranges {
    /// Waits until `range` is free (`alone`), or used by readers only.
    pub fn take(&self, range: Range<u64>, alone: bool) -> RangeGuard<'_> {
        let mut state = self.state.lock();
        let meets = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        while state.held.iter().any(|(_, other, theirs)| (alone || *theirs) && meets(other)) {
            state.waiting += 1;
            self.freed.wait(&mut state);
            state.waiting -= 1;
        }
        let id = state.next;
        state.next += 1;
        state.held.push((id, range, alone));
        RangeGuard { ranges: self, id }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.ranges.state.lock();
        if let Some(at) = state.held.iter().position(|(id, ..)| *id == self.id) {
            state.held.swap_remove(at);
        }
        if state.waiting != 0 {
            self.ranges.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn writers_are_alone_where_they_overlap() {
        let (ranges, inside) = (Ranges::default(), AtomicU64::new(0));
        let apart = ranges.take(100..200, true);
        std::thread::scope(|s| {
            for n in 0..4_u64 {
                let (ranges, inside) = (&ranges, &inside);
                s.spawn(move || {
                    for round in 0..200 {
                        let alone = (round + n) % 2 == 0;
                        let _held = ranges.take(n..10 + n, alone);
                        let step = if alone { 1000 } else { 1 };
                        let now = inside.fetch_add(step, Ordering::SeqCst) + step;
                        assert!(now <= 1000, "{now}");
                        inside.fetch_sub(step, Ordering::SeqCst);
                    }
                });
            }
        });
        drop(apart);
        assert!(ranges.state.lock().held.is_empty());
    }
}
