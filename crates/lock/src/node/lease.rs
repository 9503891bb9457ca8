//! This node's lease: until when it may issue changes, and what its kernel must be told.
//!
//! ```text
//!            written, issued while the lease lasted: it lasts until T after that
//!          +-----------------------------------------------+
//!          v                                               |
//!        Lasts ---- written, but issued after its end --> Check ---- slot and key are still ours
//!          |                                               |
//!          | refused: fenced                               | they are not
//!          | failed, and the lease is over                 |
//!          v                                               v
//!        Lost: this node withdraws, for good <-------------+
//! ```
//!
//! The lease runs from before a heartbeat was *issued*; the others' silence from when they *saw* it.

use super::Timing;
use crate::dlock::Time;

/// The lease, as it is kept by whoever writes heartbeats.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    timing: Timing,
    /// When the last heartbeat that counts was issued, or at first the slot's record.
    begun: Time,
    /// A heartbeat that was issued then is written, but the lease was over.
    checking: Option<Time>,
    lost: bool,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A heartbeat that was issued then is written.
    Written(Time),
    /// A heartbeat was refused: others have fenced this node.
    Refused,
    /// A heartbeat could not be written.
    Failed,
    /// Answer to [`Action::Check`]: whether slot and key are still this node's.
    Checked(bool),
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// This node may issue changes until then.
    Extend(Time),
    /// Look whether the slot is still this node's, and so is its key.
    Check,
    /// Withdraw.
    Withdraw(Loss),
}

/// Why a lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// A device refused a heartbeat.
    Fenced,
    /// The lease was over, and slot or key are not this node's any more.
    Replaced,
    /// No heartbeat could be written for the whole lease.
    Silent,
}

impl Lease {
    /// From when the slot's record was issued.
    pub fn new(timing: Timing, begun: Time) -> Self {
        Self { timing, begun, checking: None, lost: false }
    }
    /// Until when this node may issue changes.
    pub fn until(&self) -> Time {
        self.begun.saturating_add(self.timing.lease())
    }
    /// Whether this node may issue changes.
    pub fn lasts(&self, now: Time) -> bool {
        !self.lost && now < self.until()
    }
    /// Nothing brings it back: no heartbeat is written any more.
    pub fn is_lost(&self) -> bool {
        self.lost
    }
    /// Takes an event, says what to do.
    pub fn step(&mut self, now: Time, event: Event) -> Option<Action> {
        match event {
            _ if self.lost => None,
            Event::Written(issued) if issued >= self.until() => {
                self.checking = Some(issued);
                Some(Action::Check)
            }
            Event::Written(issued) => Some(self.extend(issued)),
            Event::Checked(ours) => {
                let issued = self.checking.take()?;
                Some(if ours { self.extend(issued) } else { self.lose(Loss::Replaced) })
            }
            Event::Refused => Some(self.lose(Loss::Fenced)),
            Event::Failed if now >= self.until() => Some(self.lose(Loss::Silent)),
            Event::Failed => None,
        }
    }
    fn extend(&mut self, issued: Time) -> Action {
        self.begun = self.begun.max(issued);
        Action::Extend(self.until())
    }
    fn lose(&mut self, loss: Loss) -> Action {
        self.lost = true;
        Action::Withdraw(loss)
    }
}

/// What was last said to those who keep what programs read without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Notice(State);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum State {
    #[default]
    Lasts,
    Over,
    Withdrawn,
}

/// What is to be said to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tell {
    /// The lease lasts again.
    Regained,
    /// The lease is over: what programs could read without asking must be gone before others act.
    Over,
    /// This node has withdrawn: the same, for good.
    Withdrawn,
}

impl Notice {
    /// Looks at a lease that lasts `until` then. What is to be said, if that is news.
    pub fn look(&mut self, now: Time, until: Time, withdrawn: bool) -> Option<Tell> {
        let state = match (withdrawn, now >= until) {
            (true, _) => State::Withdrawn,
            (false, true) => State::Over,
            (false, false) => State::Lasts,
        };
        if std::mem::replace(&mut self.0, state) == state {
            return None;
        }
        Some(match state {
            State::Lasts => Tell::Regained,
            State::Over => Tell::Over,
            State::Withdrawn => Tell::Withdrawn,
        })
    }
    /// It was said that the lease is over: whoever extends it calls for a look.
    pub fn is_over(self) -> bool {
        self.0 == State::Over
    }
    /// It was said that this node has withdrawn: there is nothing more to say.
    pub fn is_final(self) -> bool {
        self.0 == State::Withdrawn
    }
    /// When to look again at a lease that lasts `until` then, if nobody calls.
    pub fn next(self, until: Time) -> Option<Time> {
        (self.0 == State::Lasts).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BEAT: Duration = Duration::from_millis(250);
    const LEASE: Duration = Duration::from_secs(10);

    fn lease() -> Lease {
        Lease::new(Timing::of_beat(BEAT), BEAT)
    }

    #[test]
    fn a_lease_runs_from_before_its_heartbeat_was_issued() {
        let mut l = lease();
        assert!(l.lasts(LEASE + BEAT / 2) && !l.lasts(LEASE + BEAT));
        let later = l.step(BEAT * 9, Event::Written(BEAT * 2));
        assert_eq!(later, Some(Action::Extend(LEASE + BEAT * 2)));
        // An answer that comes out of order takes nothing back.
        let earlier = l.step(BEAT * 9, Event::Written(BEAT));
        assert_eq!(earlier, Some(Action::Extend(LEASE + BEAT * 2)));
    }

    #[test]
    fn who_was_silent_looks_before_it_goes_on() {
        for ours in [true, false] {
            let mut l = lease();
            let issued = LEASE + BEAT;
            assert_eq!(l.step(issued + BEAT, Event::Written(issued)), Some(Action::Check));
            assert!(!l.lasts(issued + BEAT), "not yet");
            let then = l.step(issued + BEAT * 2, Event::Checked(ours));
            if ours {
                assert_eq!(then, Some(Action::Extend(issued + LEASE)));
            } else {
                assert_eq!(then, Some(Action::Withdraw(Loss::Replaced)));
            }
            assert_eq!(l.lasts(issued + BEAT * 2), ours);
        }
        assert_eq!(lease().step(BEAT, Event::Checked(true)), None, "nobody asked");
    }

    #[test]
    fn a_failure_counts_once_the_lease_is_over_and_a_refusal_at_once() {
        let mut l = lease();
        assert_eq!(l.step(LEASE, Event::Failed), None);
        assert_eq!(l.step(LEASE + BEAT, Event::Failed), Some(Action::Withdraw(Loss::Silent)));
        assert!(l.is_lost() && !l.lasts(Time::ZERO));
        assert_eq!(l.step(LEASE + BEAT, Event::Written(LEASE)), None, "for good");
        let mut l = lease();
        assert_eq!(l.step(BEAT, Event::Refused), Some(Action::Withdraw(Loss::Fenced)));
        assert_eq!(l.step(BEAT, Event::Refused), None, "once");
    }

    #[test]
    fn what_is_said_follows_the_clock_and_is_said_once() {
        let mut n = Notice::default();
        assert_eq!((n.look(BEAT, LEASE, false), n.next(LEASE)), (None, Some(LEASE)));
        assert_eq!(n.look(LEASE, LEASE, false), Some(Tell::Over));
        assert_eq!((n.look(LEASE, LEASE, false), n.next(LEASE), n.is_over()), (None, None, true));
        assert_eq!(n.look(LEASE, LEASE + BEAT, false), Some(Tell::Regained));
        assert_eq!(n.look(LEASE, LEASE + BEAT, true), Some(Tell::Withdrawn));
        assert_eq!((n.look(LEASE, LEASE + BEAT, true), n.is_final()), (None, true));
    }
}
