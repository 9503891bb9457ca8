//! Messages that one thread has for other nodes: sent one by one, or, while it works on many locks, together. One
//! message wakes one thread of its receiver, whatever it holds.

use std::time::{Duration, Instant};

use braid_format::LockNo;
use braid_format::lock_record::Life;

use crate::dlock::Hint;
use crate::hints::TOGETHER_MAX;

/// A message is kept for others to join it for no longer than this, as far as the thread that has it comes by.
const KEPT_FOR: Duration = Duration::from_micros(500);

/// What goes to one node.
pub(super) type ForNode = (Life, Vec<(LockNo, Hint)>);

#[derive(Debug)]
pub(super) struct Post {
    together: bool,
    kept: Vec<ForNode>,
    /// When the first of them was put here.
    since: Option<Instant>,
}

impl Post {
    /// Keeps nothing.
    pub(super) fn at_once() -> Self {
        Self { together: false, kept: Vec::new(), since: None }
    }
    /// Keeps messages until [`Self::take`], as far as that is not too long, or too many.
    pub(super) fn together() -> Self {
        Self { together: true, ..Self::at_once() }
    }
    /// A message to `to`. Returns what is to be sent now.
    #[must_use]
    pub(super) fn put(&mut self, to: Life, message: (LockNo, Hint), now: Instant) -> Vec<ForNode> {
        let since = *self.since.get_or_insert(now);
        let mut full = false;
        if let Some((_, messages)) = self.kept.iter_mut().find(|kept| kept.0 == to) {
            messages.push(message);
            full = messages.len() >= TOGETHER_MAX;
        } else {
            self.kept.push((to, vec![message]));
        }
        let due = now.saturating_duration_since(since) >= KEPT_FOR;
        if full || due || !self.together { self.take() } else { Vec::new() }
    }
    /// Whether something has been kept for as long as it may be.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= KEPT_FOR)
    }
    /// What is kept, to be sent.
    #[must_use]
    pub(super) fn take(&mut self) -> Vec<ForNode> {
        self.since = None;
        std::mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use braid_format::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn messages_are_kept_for_others_but_neither_many_nor_long() {
        let life = |slot| Life { slot: NodeId(slot), incarnation: Incarnation(1) };
        let message = |n| (LockNo(n), Hint::Granted);
        let now = Instant::now();
        let mut one = Post::at_once();
        assert_eq!(one.put(life(1), message(1), now), [(life(1), vec![message(1)])]);
        assert!(one.take().is_empty());
        let mut many = Post::together();
        assert!(!many.is_due(now));
        for n in 1..TOGETHER_MAX as u64 {
            assert!(many.put(life(1), message(n), now).is_empty());
        }
        let full = many.put(life(1), message(64), now);
        assert_eq!((full.len(), full[0].1.len()), (1, TOGETHER_MAX));
        // Two nodes, in the order of what is for each.
        for n in [3, 2, 1] {
            assert!(many.put(life((n % 2) as u16), message(n), now).is_empty());
        }
        let old = many.put(life(0), message(4), now + KEPT_FOR);
        let expected =
            [(life(1), vec![message(3), message(1)]), (life(0), vec![message(2), message(4)])];
        assert_eq!(old, expected);
    }
}
