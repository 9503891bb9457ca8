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
/// Sequential users at two nodes gain nothing from it, a thread that comes back at once gains a
/// lot; so it is tried after evidence (`eager`) and dropped for a while when it did not help.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    granted: Option<Time>,
    released: Option<Time>,
    /// Uses when the lingering began or went on.
    lingering: Option<u32>,
    eager: i8,
    /// What users said.
    keep: Keep,
}

impl Hold {
    /// A return within this counts as "at once"; also how long an unused lock lingers.
    const SOON: Duration = Duration::from_micros(200);
    const ENOUGH: i8 = 3;
    const DISCOURAGED: i8 = -16;

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
            Keep::Perhaps | Keep::PerhapsFor(_) => before != keep && self.eager < Self::ENOUGH,
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
            let soon = now.saturating_sub(released) < Self::SOON;
            self.eager = if soon { (self.eager + 1).min(Self::ENOUGH) } else { self.eager.min(0) };
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
        let over = now.saturating_sub(granted) >= longest;
        if self.eager < Self::ENOUGH || over {
            return None;
        }
        if self.lingering == Some(uses) {
            self.eager = Self::DISCOURAGED;
            return None;
        }
        self.lingering = Some(uses);
        Some(now + Self::SOON)
    }
}
