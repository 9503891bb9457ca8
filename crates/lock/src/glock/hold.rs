//! When a lock that another node asks for is kept a little longer.

use std::time::Duration;

use crate::dlock::Time;

/// What users of a lock know of their next uses, for the case that another node asks for the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// They may come back: it is kept if they mostly do, and if they do so at once.
    #[default]
    Perhaps,
    /// The same, but only until it has been here for this long.
    PerhapsFor(Duration),
    /// They do come back, and it is kept for them, until it has been here for this long.
    For(Duration),
    /// They do not come back soon.
    NoLonger,
}

/// Keeps a lock a little longer if that saves moving it to and fro.
///
/// A thread that comes back at once gains a lot from it. Programs at two nodes that work by turns gain nothing, and
/// the one that has its turn waits longer. So an unused lock lingers only if a thread came back at once the last time;
/// after a time for which nobody came back that is not tried for some hand-overs, twice as many with each such time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    granted: Option<Time>,
    released: Option<Time>,
    /// Uses when the lingering began or went on.
    lingering: Option<u32>,
    /// A thread wanted the lock at once after it had been given away.
    came_back: bool,
    /// Times in succession that somebody came back while the lock lingered.
    helped: u8,
    /// Times that nobody did; each time that somebody does takes one away.
    unused: u8,
    /// Hand-overs for which lingering is not tried.
    discouraged: u8,
    /// What users said.
    keep: Keep,
}

impl Hold {
    /// A return within this counts as "at once"; also how long an unused lock lingers at first.
    const SOON: Duration = Duration::from_micros(200);
    /// How long it lingers if that has helped often: a thread that has lost its processor may come back, too.
    const PATIENT: Duration = Duration::from_millis(1);
    /// Lingers by `SOON` more after it has helped this many times in succession.
    const OFTEN: u8 = 8;
    /// Lingering is not tried for this many hand-overs at most.
    const DISCOURAGED_MAX: u8 = 32;

    pub(super) fn granted(&mut self, now: Time) {
        self.granted = Some(now);
        self.lingering = None;
        self.keep = Keep::Perhaps;
    }
    /// What users say of their next uses. Returns whether a lock that was kept may be given up now.
    pub(super) fn keep(&mut self, keep: Keep) -> bool {
        let before = std::mem::replace(&mut self.keep, keep);
        match keep {
            Keep::For(_) => false,
            Keep::Perhaps | Keep::PerhapsFor(_) => before != keep && !self.tries(),
            Keep::NoLonger => before != keep,
        }
    }
    pub(super) fn since(&self) -> Option<Time> {
        self.granted
    }
    pub(super) fn released(&mut self, now: Time) {
        self.released = Some(now);
    }
    /// A thread of this node wants the lock that was given away.
    pub(super) fn wanted(&mut self, now: Time) {
        if let Some(released) = self.released.take() {
            self.came_back = now.saturating_sub(released) < Self::SOON;
            self.discouraged = self.discouraged.saturating_sub(1);
        }
    }
    /// Until when the lock is kept for users who said that they come back, if that is still to come.
    pub(super) fn kept_until(&self, now: Time, longest: Duration) -> Option<Time> {
        let Keep::For(time) = self.keep else { return None };
        Some(self.granted? + time.min(longest)).filter(|until| now < *until)
    }
    /// Whether a demanded lock is kept, and until when to look again.
    pub(super) fn until(&mut self, now: Time, uses: u32, longest: Duration) -> Option<Time> {
        let granted = self.granted?;
        if let Some(until) = self.kept_until(now, longest) {
            return Some(until);
        }
        let longest = match self.keep {
            Keep::Perhaps => longest,
            Keep::PerhapsFor(time) | Keep::For(time) => time.min(longest),
            Keep::NoLonger => Duration::ZERO,
        };
        match self.lingering {
            Some(before) if before == uses => self.nobody_came(),
            Some(_) => self.somebody_came(),
            None => {}
        }
        if !self.tries() || now.saturating_sub(granted) >= longest {
            return None;
        }
        self.lingering = Some(uses);
        Some(now + self.patience())
    }

    fn tries(&self) -> bool {
        self.came_back && self.discouraged == 0
    }
    fn patience(&self) -> Duration {
        (Self::SOON * u32::from(1 + self.helped / Self::OFTEN)).min(Self::PATIENT)
    }
    fn somebody_came(&mut self) {
        self.helped = self.helped.saturating_add(1);
        self.unused = self.unused.saturating_sub(1);
    }
    fn nobody_came(&mut self) {
        self.helped = 0;
        self.discouraged = Self::DISCOURAGED_MAX.min(1 << self.unused.min(7));
        self.unused = self.unused.saturating_add(1).min(7);
    }
}

#[cfg(test)]
#[allow(clippy::unchecked_time_subtraction, reason = "tests")]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const LONGEST: Duration = Duration::from_millis(2);

    /// A lock that two nodes want all the time, as one of them sees it.
    struct Contended {
        hold: Hold,
        now: Time,
        uses: u32,
        /// How long it has lingered without a use, in all.
        idle: Duration,
    }

    impl Contended {
        fn new() -> Self {
            Self { hold: Hold::default(), now: Time::ZERO, uses: 0, idle: Duration::ZERO }
        }
        /// The lock comes, is used `uses` times with `pause` in between, is given up, and is wanted again after
        /// `away`. Returns how often it was used meanwhile.
        fn tenure(&mut self, uses: u32, pause: Duration, away: Duration) -> u32 {
            self.now += 100 * US;
            self.hold.granted(self.now);
            let (first, mut next) = (self.uses, self.now + pause);
            self.uses += 1;
            while let Some(until) = self.hold.until(self.now, self.uses, LONGEST) {
                let before = self.uses;
                while next <= until && self.uses - first < uses {
                    self.uses += 1;
                    next += pause;
                }
                self.idle += if before == self.uses { until - self.now } else { Duration::ZERO };
                self.now = until;
            }
            self.hold.released(self.now);
            self.now += away;
            self.hold.wanted(self.now);
            self.uses - first
        }
    }

    #[test]
    fn a_thread_that_comes_back_at_once_shares_a_hand_over_among_many_uses() {
        let mut lock = Contended::new();
        assert_eq!(lock.tenure(u32::MAX, 50 * US, 50 * US), 1, "nothing is known yet");
        for _ in 0..20 {
            let uses = lock.tenure(u32::MAX, 50 * US, 50 * US);
            assert!((40..70).contains(&uses), "{uses}");
        }
    }

    #[test]
    fn a_return_is_at_once_before_the_time_for_it_is_over() {
        for (away, at_once) in [(Hold::SOON - Duration::from_nanos(1), true), (Hold::SOON, false)] {
            let mut hold = Hold::default();
            hold.granted(3 * US);
            assert_eq!(hold.since(), Some(3 * US));
            hold.released(5 * US);
            hold.wanted(5 * US + away);
            assert_eq!(hold.came_back, at_once);
        }
    }

    #[test]
    fn a_lock_lingers_longer_the_more_often_that_has_helped() {
        let patience = |helped| Hold { helped, ..Hold::default() }.patience();
        assert_eq!([0, 7, 8, 15, 16].map(patience), [1, 1, 2, 2, 3].map(|n| n * Hold::SOON));
        assert_eq!(patience(u8::MAX), Hold::PATIENT);
    }

    #[test]
    fn what_users_say_ends_a_wait_for_them_unless_they_may_come_back_at_once() {
        let perhaps = Keep::PerhapsFor(LONGEST);
        for came_back in [false, true] {
            let mut hold = Hold { came_back, ..Hold::default() };
            assert!(!hold.keep(Keep::Perhaps) && !hold.keep(Keep::For(LONGEST)));
            assert_eq!(hold.keep(perhaps), !came_back);
            assert!(!hold.keep(perhaps), "said twice");
            assert!(hold.keep(Keep::NoLonger) && !hold.keep(Keep::NoLonger));
        }
    }

    #[test]
    fn work_by_turns_hardly_waits_for_nobody() {
        let mut lock = Contended::new();
        for _ in 0..330 {
            lock.tenure(1, Duration::MAX / 4, 150 * US);
        }
        // 1, 2, 4, 8, 16 and then 32 hand-overs in which it is not tried.
        assert!(lock.idle <= 16 * Hold::SOON, "{:?}", lock.idle);
    }

    #[test]
    fn a_thread_that_is_away_now_and_then_is_waited_for_again_soon() {
        let mut lock = Contended::new();
        let mut uses = 0;
        for round in 0..100 {
            let away_after = if round % 4 == 0 { 5 } else { u32::MAX };
            uses += lock.tenure(away_after, 50 * US, 50 * US);
        }
        assert!(uses > 100 * 15, "{uses}");
    }

    #[test]
    fn a_user_who_comes_back_late_is_not_waited_for() {
        let mut lock = Contended::new();
        for _ in 0..50 {
            assert_eq!(lock.tenure(u32::MAX, 50 * US, 3 * Hold::SOON), 1);
        }
        assert_eq!(lock.idle, Duration::ZERO);
    }
}
