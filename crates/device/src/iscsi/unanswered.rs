//! How old the eldest command of a session is that has not been answered, to the second, without a
//! queue: a ring of counters, one for each second in which commands were issued.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds that the ring holds. More than [`SLOW_FACTOR`] times the longest bound.
const RING: usize = 256;
/// Commands that a sound device may take long over (a flush, letting blocks go, a change of
/// reservations) have so many times the usual bound.
const SLOW_FACTOR: u32 = 5;

/// See the module.
#[derive(Debug)]
pub struct Unanswered {
    begun: Instant,
    /// Commands that count from each second (modulo [`RING`]) and have not ended.
    seconds: [AtomicU32; RING],
    /// No command counts from before this second.
    from: AtomicU64,
}

/// From which second a command counts.
#[derive(Debug, Clone, Copy)]
pub struct Since(u64);

impl Unanswered {
    pub fn new() -> Self {
        let seconds = std::array::from_fn(|_| AtomicU32::new(0));
        Self { begun: Instant::now(), seconds, from: AtomicU64::new(0) }
    }
    fn now(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
    fn slot(&self, second: u64) -> &AtomicU32 {
        let ring = RING as u64;
        &self.seconds[usize::try_from(second % ring).unwrap_or(0)]
    }
    /// A command is issued; `slow`: one that may take [`SLOW_FACTOR`] times as long as `bound`, so it
    /// counts from later.
    pub fn issued(&self, slow: bool, bound: Duration) -> Since {
        let later = if slow { (bound * (SLOW_FACTOR - 1)).as_secs() } else { 0 };
        let second = self.now() + later;
        self.slot(second).fetch_add(1, Ordering::Relaxed);
        Since(second)
    }
    /// It has ended.
    pub fn ended(&self, since: Since) {
        self.slot(since.0).fetch_sub(1, Ordering::Relaxed);
    }
    /// Whether a command is older than `bound`, which may be seen up to a second late. Called by one
    /// thread at a time, every second while something is under way.
    pub fn is_beyond(&self, bound: Duration) -> bool {
        let now = self.now();
        let mut from = self.from.load(Ordering::Relaxed);
        while from < now && self.slot(from).load(Ordering::Relaxed) == 0 {
            from += 1;
        }
        self.from.store(from, Ordering::Relaxed);
        // A second that has just begun counts as the one before.
        now.saturating_sub(from) > bound.as_secs()
    }
}

/// Whether a command may take longer than a transfer: by its operation code.
pub fn is_slow(cdb: &[u8]) -> bool {
    // SYNCHRONIZE CACHE (10, 16), UNMAP, WRITE SAME (10, 16), PERSISTENT RESERVE OUT.
    matches!(cdb.first(), Some(0x35 | 0x91 | 0x42 | 0x41 | 0x93 | 0x5f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eldest_counts_and_what_has_ended_does_not() {
        let at = |seconds: u64| {
            let mut all = Unanswered::new();
            all.begun = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            all
        };
        let bound = Duration::from_secs(5);
        let mut all = at(0);
        let first = all.issued(false, bound);
        assert!(!all.is_beyond(bound));
        all.begun -= Duration::from_secs(5);
        let second = all.issued(false, bound);
        assert!(!all.is_beyond(bound), "5 s are not more than 5 s");
        all.begun -= Duration::from_secs(1);
        assert!(all.is_beyond(bound));
        all.ended(first);
        assert!(!all.is_beyond(bound));
        all.begun -= Duration::from_secs(5);
        assert!(all.is_beyond(bound));
        all.ended(second);
        assert!(!all.is_beyond(bound));
        // A flush has five times as long.
        let flush = all.issued(true, bound);
        all.begun -= Duration::from_secs(25);
        assert!(!all.is_beyond(bound));
        all.begun -= Duration::from_secs(1);
        assert!(all.is_beyond(bound));
        all.ended(flush);
        // Long after the ring has gone round.
        all.begun -= Duration::from_secs(3 * RING as u64);
        assert!(!all.is_beyond(bound));
        let last = all.issued(false, bound);
        assert!(!all.is_beyond(bound));
        all.ended(last);
    }
}
