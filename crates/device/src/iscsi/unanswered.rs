//! How old the eldest command of a session is that has not been answered, to the [`TICK`], without a
//! queue: a ring of counters, one for each tick in which commands were issued.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Times are counted in these. They are short because two hosts may wait for the same silent unit of a mirror: each
/// takes the other for dead a quarter of `io_timeout` after the other should have given the unit up.
const TICK: Duration = Duration::from_millis(125);
/// Ticks that the ring holds: 256 s. More than [`SLOW_FACTOR`] times the longest bound.
const RING: usize = 2048;
/// Ticks back from now of which the ring tells: more than the longest bound, and what a slow command counts from,
/// up to 1,280 ticks ahead, does not stand in their places.
const SEEN: u64 = RING as u64 / 3;
/// Commands that a sound device may take long over (a flush, letting blocks go, a change of
/// reservations) have so many times the usual bound.
const SLOW_FACTOR: u32 = 5;

/// See the module.
#[derive(Debug)]
pub struct Unanswered {
    begun: Instant,
    /// Commands that count from each tick (modulo [`RING`]) and have not ended.
    ticks: Box<[AtomicU32]>,
    /// No command counts from before this tick.
    from: AtomicU64,
}

/// From which tick a command counts.
#[derive(Debug, Clone, Copy)]
pub struct Since(u64);

impl Unanswered {
    pub fn new() -> Self {
        let ticks = std::iter::repeat_with(|| AtomicU32::new(0)).take(RING).collect();
        Self { begun: Instant::now(), ticks, from: AtomicU64::new(0) }
    }
    fn now(&self) -> u64 {
        ticks(self.begun.elapsed())
    }
    fn slot(&self, tick: u64) -> &AtomicU32 {
        let ring = RING as u64;
        &self.ticks[usize::try_from(tick % ring).unwrap_or(0)]
    }
    /// A command is issued; `slow`: one that may take [`SLOW_FACTOR`] times as long as `bound`, so it
    /// counts from later.
    pub fn issued(&self, slow: bool, bound: Duration) -> Since {
        let later = if slow { ticks(bound * (SLOW_FACTOR - 1)) } else { 0 };
        let tick = self.now() + later;
        self.slot(tick).fetch_add(1, Ordering::Relaxed);
        Since(tick)
    }
    /// It has ended.
    pub fn ended(&self, since: Since) {
        self.slot(since.0).fetch_sub(1, Ordering::Relaxed);
    }
    /// Whether a command is older than `bound`, which may be seen up to a [`TICK`] late. Called by one
    /// thread at a time, every [`look_after`] while something is under way.
    pub fn is_beyond(&self, bound: Duration) -> bool {
        let now = self.now();
        // After a quiet time the ring has gone round: counters further back are those of commands that count later.
        let mut from = self.from.load(Ordering::Relaxed).max(now.saturating_sub(SEEN));
        while from < now && self.slot(from).load(Ordering::Relaxed) == 0 {
            from += 1;
        }
        self.from.store(from, Ordering::Relaxed);
        // A tick that has just begun counts as the one before.
        now.saturating_sub(from) > ticks(bound)
    }
}

/// How long after a look for commands that are older than `bound` the next one is due.
pub fn look_after(bound: Duration) -> Duration {
    (bound / 16).clamp(TICK, Duration::from_secs(1))
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX)
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
        all.begun -= TICK;
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
        all.begun -= TICK;
        assert!(all.is_beyond(bound));
        all.ended(flush);
        // Long after the ring has gone round.
        all.begun -= Duration::from_secs(RING as u64);
        assert!(!all.is_beyond(bound));
        let last = all.issued(false, bound);
        assert!(!all.is_beyond(bound));
        all.ended(last);
        // Quiet for so long that what is issued now stands where the next look would begin, or behind.
        for quiet in [256, 300, 400, 511] {
            let all = at(quiet);
            let longest = Duration::from_secs(40);
            for slow in [false, true] {
                all.issued(slow, longest);
                assert!(
                    !all.is_beyond(bound) && !all.is_beyond(longest),
                    "{quiet} s, slow: {slow}"
                );
            }
        }
    }
}
