//! Failed calls in the log: a program that tries again and again, or a node that has withdrawn, would fill it
//! with one line.
//!
//! Each text is said when it comes, and then at most once in [`AGAIN`], with the number of times that it was
//! not said. Texts are told apart up to [`TEXTS_MAX`]; of all others together one is said in that time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A text is not said again before.
const AGAIN: Duration = Duration::from_secs(5);
/// Texts that are told apart.
const TEXTS_MAX: usize = 16;

/// A text, or all that are not told apart.
#[derive(Debug, Clone, Copy)]
struct Said {
    at: Instant,
    /// Times since that it was not said.
    unsaid: u64,
}

/// What was said of late. Bounded by [`TEXTS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    texts: HashMap<String, Said>,
    others: Option<Said>,
}

impl FailureLog {
    /// Whether a text that comes at `now` is to be said: then with the number of times that it, or others
    /// with it, were not said since they last were.
    pub fn take(&mut self, text: &str, now: Instant) -> Option<u64> {
        let is_late = |said: &Said| now.saturating_duration_since(said.at) >= AGAIN;
        if !self.texts.contains_key(text) {
            // Nothing was left out of these.
            self.texts.retain(|_, said| said.unsaid > 0 || !is_late(said));
            if self.texts.len() == TEXTS_MAX {
                self.texts.retain(|_, said| !is_late(said));
            }
        }
        let first = Said { at: now, unsaid: 0 };
        let is_told_apart = self.texts.len() < TEXTS_MAX;
        let said = match self.texts.get_mut(text) {
            Some(said) => Some(said),
            None if is_told_apart => {
                self.texts.insert(text.to_owned(), first);
                return Some(0);
            }
            None => self.others.as_mut(),
        };
        let Some(said) = said else {
            self.others = Some(first);
            return Some(0);
        };
        if is_late(said) {
            let unsaid = said.unsaid;
            *said = first;
            return Some(unsaid);
        }
        said.unsaid += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_said_at_once_and_then_now_and_then_with_a_count() {
        let (mut log, begun) = (FailureLog::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(log.take("withdrawn", at(0)), Some(0));
        for ms in 1..5000 {
            assert_eq!(log.take("withdrawn", at(ms)), None);
        }
        assert_eq!(log.take("another", at(4999)), Some(0));
        assert_eq!(log.take("withdrawn", at(5000)), Some(4999));
        assert_eq!(log.take("withdrawn", at(20_000)), Some(0));
        assert_eq!(log.take("another", at(20_000)), Some(0));
    }

    #[test]
    fn texts_without_end_take_neither_memory_nor_the_log() {
        let (mut log, begun) = (FailureLog::default(), Instant::now());
        let mut said = 0;
        for ms in 0..20_000 {
            let now = begun + Duration::from_millis(ms);
            said += usize::from(log.take(&format!("write at {ms}"), now).is_some());
            assert!(log.texts.len() <= TEXTS_MAX);
        }
        assert!((4..=5 * (TEXTS_MAX + 1)).contains(&said), "{said}");
    }
}
