//! How long things took, in classes. Counted without a lock; read, added and subtracted later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Times in classes, each twice as long as the one before: the n-th is from 2^(n-1) to 2^n
/// microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How many there were in each class.
    pub classes: [u64; Times::CLASSES],
    /// All of them together, in nanoseconds. Over a stretch of time, divided by it: how many were
    /// under way on average.
    pub nanos: u64,
}

impl Times {
    /// The last one is of everything longer: half an hour.
    pub const CLASSES: usize = 32;

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
    /// The time that each class ends at.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0_u32..).take(Self::CLASSES).map(|n| Duration::from_micros(1 << n))
    }
    /// How long one took on average; nothing if there was none.
    pub fn mean(&self) -> Option<Duration> {
        self.nanos.checked_div(self.count()).map(Duration::from_nanos)
    }
    /// A time that so many of a thousand did not exceed; `None` if there were none.
    pub fn per_mille(&self, mille: u64) -> Option<Duration> {
        let wanted = u128::from(self.count()) * u128::from(mille);
        let mut sum = 0;
        for (bound, count) in Self::bounds().zip(self.classes) {
            sum += u128::from(count) * 1000;
            if count > 0 && sum >= wanted {
                return Some(bound);
            }
        }
        None
    }
    /// `f` of each number of both.
    #[must_use]
    pub fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let classes = std::array::from_fn(|n| f(self.classes[n], other.classes[n]));
        Self { classes, nanos: f(self.nanos, other.nanos) }
    }
}

/// [`Times`] as they are counted.
#[derive(Debug, Default)]
pub struct TimeCounters {
    classes: [AtomicU64; Times::CLASSES],
    nanos: AtomicU64,
}

impl TimeCounters {
    /// One more.
    pub fn note(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        if let Some(count) = self.classes.get(class.min(Times::CLASSES - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
    /// What was counted so far.
    pub fn now(&self) -> Times {
        let classes = self.classes.each_ref().map(|count| count.load(Ordering::Relaxed));
        Times { classes, nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_their_classes() {
        let all = TimeCounters::default();
        assert_eq!((all.now().per_mille(500), all.now().mean()), (None, None));
        for micros in [0, 1, 3, 3, 3, 3, 3, 3, 900, 5_000_000_000] {
            all.note(Duration::from_micros(micros));
        }
        let now = all.now();
        assert_eq!((now.count(), now.classes[0], now.classes[1], now.classes[2]), (10, 1, 1, 6));
        assert_eq!((now.classes[10], now.classes[31]), (1, 1));
        assert_eq!(now.per_mille(500), Some(Duration::from_micros(4)));
        assert_eq!(now.per_mille(900), Some(Duration::from_micros(1024)));
        assert_eq!(now.nanos, 5_000_000_919_000);
        assert_eq!(now.mean(), Some(Duration::from_nanos(500_000_091_900)));
        assert_eq!(now.each(&now, u64::saturating_sub), Times::default());
    }
}
