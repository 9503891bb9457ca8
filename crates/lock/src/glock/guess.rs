//! Whether it is worth while to guess that a lock was never used.
//!
//! A right guess saves a read; a wrong one costs a compare-and-write that fails, which tells what
//! stands (on a SCSI unit it takes a read besides). So a node guesses as long as that proves right,
//! and after a few wrong guesses only now and then.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::dlock::Event;

/// After so many wrong guesses in a row only one in [`SELDOM`] is made.
const WRONG_MAX: u32 = 4;
const SELDOM: u32 = 64;

/// How guessing went.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// Wrong ones since the last right one.
    wrong: AtomicU32,
    /// Occasions since guessing became seldom.
    passed: AtomicU32,
}

impl Guesses {
    pub fn is_worth_it(&self) -> bool {
        self.wrong.load(Ordering::Relaxed) < WRONG_MAX
            || self.passed.fetch_add(1, Ordering::Relaxed) % SELDOM == SELDOM - 1
    }
    /// The first answer about a lock that was guessed.
    pub fn learn(&self, answer: &Event) {
        match answer {
            Event::Written => self.wrong.store(0, Ordering::Relaxed),
            Event::Mismatch(_) => {
                // Less than exact, among threads, is good enough.
                let wrong = self.wrong.load(Ordering::Relaxed);
                self.wrong.store(wrong.saturating_add(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_format::LockNo;
    use braid_format::lock_record::LockRecord;

    use super::*;
    use crate::dlock::Seen;

    #[test]
    fn wrong_guesses_become_seldom_and_a_right_one_brings_them_back() {
        let guesses = Guesses::default();
        let record = Arc::new(LockRecord::unlocked(LockNo(1), 0));
        let miss = Event::Mismatch(Seen { record, dead: Vec::new() });
        for _ in 0..WRONG_MAX {
            assert!(guesses.is_worth_it());
            guesses.learn(&miss);
        }
        let made = (0..SELDOM * 10).filter(|_| guesses.is_worth_it()).count();
        assert_eq!(made, 10);
        guesses.learn(&Event::Written);
        assert!((0..1000).all(|_| guesses.is_worth_it()));
    }
}
