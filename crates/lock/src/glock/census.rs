//! What people want to know of locks: how long threads waited, and which locks go to and fro.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_format::LockNo;
use parking_lot::Mutex;

/// Locks whose hand-overs are counted; beyond it all counts are halved, and those that are 0 go.
const HOT_MAX: usize = 4096;

/// Times in classes, each twice as long as the one before: the n-th is from 2^(n-1) to 2^n
/// microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How many there were in each class.
    pub classes: [u64; Times::CLASSES],
}

impl Times {
    /// The last one is of everything longer: half an hour.
    pub const CLASSES: usize = 32;

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
    /// A time that so many of a thousand did not exceed; `None` if there were none.
    pub fn per_mille(&self, mille: u64) -> Option<Duration> {
        let wanted = u128::from(self.count()) * u128::from(mille);
        let mut sum = 0;
        for (n, count) in (0_u32..).zip(self.classes) {
            sum += u128::from(count) * 1000;
            if count > 0 && sum >= wanted {
                return Some(Duration::from_micros(1 << n));
            }
        }
        None
    }
}

/// [`Times`] as they are counted.
#[derive(Debug, Default)]
pub(super) struct Histogram([AtomicU64; Times::CLASSES]);

impl Histogram {
    pub(super) fn note(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        if let Some(count) = self.0.get(class.min(Times::CLASSES - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    pub(super) fn now(&self) -> Times {
        let mut classes = [0; Times::CLASSES];
        for (to, from) in classes.iter_mut().zip(&self.0) {
            *to = from.load(Ordering::Relaxed);
        }
        Times { classes }
    }
}

/// How often locks were given up because other nodes wanted them.
#[derive(Debug, Default)]
pub(super) struct HandOvers(Mutex<HashMap<LockNo, u64>>);

impl HandOvers {
    pub(super) fn note(&self, lock: LockNo) {
        let mut all = self.0.lock();
        if all.len() >= HOT_MAX && !all.contains_key(&lock) {
            all.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        *all.entry(lock).or_insert(0) += 1;
    }
    pub(super) fn of(&self, lock: LockNo) -> u64 {
        self.0.lock().get(&lock).copied().unwrap_or(0)
    }
    /// The locks with the most, most first.
    pub(super) fn hottest(&self, most: usize) -> Vec<(LockNo, u64)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(lock, count)| (*lock, *count)).collect();
        all.sort_unstable_by_key(|(lock, count)| (std::cmp::Reverse(*count), *lock));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_their_classes() {
        let all = Histogram::default();
        assert_eq!(all.now().per_mille(500), None);
        for micros in [0, 1, 3, 3, 3, 3, 3, 3, 900, 5_000_000_000_000] {
            all.note(Duration::from_micros(micros));
        }
        let now = all.now();
        assert_eq!((now.count(), now.classes[0], now.classes[1], now.classes[2]), (10, 1, 1, 6));
        assert_eq!((now.classes[10], now.classes[31]), (1, 1));
        assert_eq!(now.per_mille(500), Some(Duration::from_micros(4)));
        assert_eq!(now.per_mille(900), Some(Duration::from_micros(1024)));
    }

    #[test]
    fn the_hottest_locks_outlast_many_others() {
        let all = HandOvers::default();
        for n in 0..10_000 {
            all.note(LockNo(7));
            all.note(LockNo(1000 + n));
        }
        assert_eq!(all.hottest(1)[0].0, LockNo(7));
        assert!(all.of(LockNo(7)) > 100 && all.hottest(usize::MAX).len() <= HOT_MAX);
    }
}
