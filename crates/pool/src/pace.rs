//! The pace of maintenance (filling, moving, scrubbing): when a thread begins its next piece of
//! work.
//!
//! If nobody else uses the pool: at once, with as many pieces under way as there are threads. If
//! others use it: one piece at a time, and each begins four times as long after the one before as
//! that one took. A piece takes longer if its requests wait in queues; so on busy disks maintenance
//! takes less than a quarter of the time, whatever the number of its threads. On disks that turn,
//! this also pays for the seeks between maintenance and the other requests.
//!
//! Pure: times go in, a time comes out.

use std::time::Duration;

use braid_format::Bytes;

/// While others use the pool, a piece is begun so many times its own length after the one before.
const SHARE: u32 = 4;
/// But not later than this.
const LONGEST: Duration = Duration::from_secs(1);
/// For so long after a request the pool counts as in use.
const QUIET: Duration = Duration::from_millis(100);

/// The pace of some threads that share one piece of work.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Requests of others when it was last asked.
    requests: u64,
    /// When others were last seen to use the pool.
    used: Option<Duration>,
    /// When the last piece began, or begins.
    begun: Duration,
}

impl Pace {
    /// Nobody is known to use the pool; `requests` of others so far.
    pub const fn new(requests: u64) -> Self {
        Self { requests, used: None, begun: Duration::ZERO }
    }

    /// A piece has taken from `began` to `now`, and `requests` of others have come so far: when the
    /// thread that has done it begins its next one.
    pub fn next(&mut self, began: Duration, now: Duration, requests: u64) -> Duration {
        let took = now.saturating_sub(began);
        if requests != self.requests {
            self.requests = requests;
            self.used = Some(now);
        }
        let quiet = took.max(QUIET);
        let in_use = self.used.is_some_and(|used| now.saturating_sub(used) < quiet);
        let pause = if in_use { (took * SHARE).min(LONGEST) } else { Duration::ZERO };
        self.begun = now.max(self.begun.min(now + LONGEST) + pause);
        self.begun
    }
}

/// How far a rebuild or scrub has come, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Done.
    pub done: Bytes,
    /// To do in all.
    pub total: Bytes,
}

#[cfg(test)]
#[allow(clippy::unchecked_time_subtraction, reason = "tests")]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn alone_nothing_is_waited_for() {
        let mut pace = Pace::new(7);
        for i in 1..100 {
            assert_eq!(pace.next(ms(10 * (i - 1)), ms(10 * i), 7), ms(10 * i));
        }
    }

    #[test]
    fn beside_others_a_quarter_of_the_time_however_many_threads() {
        for threads in [1, 4] {
            let mut pace = Pace::new(0);
            // When each thread's piece begins; each takes 10 ms.
            let mut begun = vec![Duration::ZERO; threads];
            let mut starts = Vec::new();
            for requests in 1..60 {
                let first = begun.iter_mut().min().unwrap();
                *first = pace.next(*first, *first + ms(10), requests);
                starts.push(*first);
            }
            for pair in starts.windows(2).skip(threads) {
                assert_eq!(pair[1] - pair[0], ms(40), "{threads} threads");
            }
        }
    }

    #[test]
    fn when_the_others_are_done_it_goes_on_at_once_and_no_pause_is_long() {
        let mut pace = Pace::new(0);
        let next = pace.next(ms(0), ms(10_000), 1);
        assert!(next <= ms(11_000), "{next:?}");
        let done = next + QUIET + ms(10);
        assert_eq!(pace.next(done - ms(10), done, 1), done);
    }
}
