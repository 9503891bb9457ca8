//! When a server that has ended is started again.
//!
//! ```text
//!  ended ── served for a minute ──> at once
//!    └── sooner ──> after 1, 2, 4 ... 30 s ── the eighth time ──> given up
//! ```

use std::time::Duration;

/// A server that served for so long was well.
const WELL: Duration = Duration::from_mins(1);
/// Ends in a row, each sooner than [`WELL`], after which it is given up.
const FAILURES_MAX: u32 = 8;
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Counts ends.
#[derive(Debug, Default)]
pub struct Restarts {
    in_a_row: u32,
    /// Restarts since the beginning.
    pub total: u32,
}

impl Restarts {
    /// The server has ended, `served` after it began. How long to wait before the next; `None`: it is given up.
    pub fn ended(&mut self, served: Duration) -> Option<Duration> {
        if served >= WELL {
            self.in_a_row = 0;
        }
        self.in_a_row += 1;
        if self.in_a_row >= FAILURES_MAX {
            return None;
        }
        self.total += 1;
        let doubled = self.in_a_row.checked_sub(2).map(|n| Duration::from_secs(1 << n));
        Some(doubled.unwrap_or_default().min(WAIT_MAX))
    }
    /// Somebody has looked after it: it begins anew.
    pub fn forget(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_again_and_again_is_given_up() {
        let mut restarts = Restarts::default();
        let soon = Duration::from_secs(1);
        let waits: Vec<_> = (0..8).map(|_| restarts.ended(soon).map(|w| w.as_secs())).collect();
        assert_eq!(waits, [Some(0), Some(1), Some(2), Some(4), Some(8), Some(16), Some(30), None]);
        assert_eq!(restarts.total, 7);
        restarts.forget();
        assert_eq!(restarts.ended(soon), Some(Duration::ZERO));
    }

    #[test]
    fn one_that_served_for_long_is_started_at_once() {
        let mut restarts = Restarts::default();
        for _ in 0..100 {
            assert_eq!(restarts.ended(WELL), Some(Duration::ZERO));
        }
    }
}
