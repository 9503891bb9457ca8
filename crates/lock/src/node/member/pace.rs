//! How often this node says that it lives and looks at the others: in each beat while anything happens, less often
//! while all is quiet.
//!
//! ```text
//!            something new                     8 beats without anything new
//!  quiet ------------------------> stirred --------------------------------> quiet
//!  heartbeat: 5/4 beats            1 beat
//!  look:      as the watch says    1 beat
//!  glance:    1/4 beat             none
//! ```
//!
//! A *glance* asks the kernel whether the liveness locks that were held at the last look still are; it reads nothing
//! from the devices. One that is gone calls for a look at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::node::Heartbeat;
use parking_lot::Mutex;

use crate::node::Timing;

/// Beats after the last news until all is quiet.
const STIRRED_BEATS: u32 = 8;
/// Beats without news after which others are told that there is some: fewer, for they need not have seen the last at
/// once.
const CALL_BEATS: u32 = STIRRED_BEATS / 2;
/// Glances in a beat.
const GLANCES: u32 = 4;

/// Whether anything has happened of late.
#[derive(Debug)]
pub(super) struct Pace {
    timing: Timing,
    stirred: Mutex<Instant>,
    /// A look is called for.
    is_due: AtomicBool,
}

impl Pace {
    pub fn new(timing: Timing) -> Self {
        Self { timing, stirred: Mutex::new(Instant::now()), is_due: AtomicBool::new(false) }
    }
    /// There is something new. Whether others may have become quiet since they heard of the last such thing.
    pub fn stir(&self) -> bool {
        let now = Instant::now();
        let before = std::mem::replace(&mut *self.stirred.lock(), now);
        now.saturating_duration_since(before) > self.timing.beat() * CALL_BEATS
    }
    /// There is something new that a look shows.
    pub fn call(&self) {
        self.stir();
        self.is_due.store(true, Ordering::Release);
    }
    /// Whether a look was called for; it is the caller's now.
    pub fn take_call(&self) -> bool {
        self.is_due.swap(false, Ordering::AcqRel)
    }
    fn is_quiet(&self) -> bool {
        self.stirred.lock().elapsed() > self.timing.beat() * STIRRED_BEATS
    }
    /// Between two heartbeats.
    pub fn heartbeat(&self) -> Duration {
        if self.is_quiet() { self.timing.quiet_beat() } else { self.timing.beat() }
    }
    /// Between two looks, where `quiet` is long enough if nothing happens.
    pub fn look(&self, quiet: Duration) -> Duration {
        let beat = self.timing.beat();
        if self.is_quiet() { quiet } else { beat.min(quiet) }
    }
    /// Between two glances.
    pub fn glance(&self) -> Duration {
        self.timing.beat() / GLANCES
    }
}

/// Whether a heartbeat says more than that its node lives still.
pub(super) fn has_news(before: Option<&Heartbeat>, now: &Heartbeat) -> bool {
    let sequence = now.sequence;
    !now.wishes.is_empty()
        || before.is_none_or(|before| Heartbeat { sequence, ..before.clone() } != *now)
}

#[cfg(test)]
mod tests {
    use braid_format::features::Features;
    use braid_format::{Incarnation, LockNo, NodeId};

    use super::*;
    use crate::{Life, Mode};

    #[test]
    fn quiet_begins_some_beats_after_the_last_news() {
        let timing = Timing::of_beat(Duration::from_millis(20));
        let (pace, quiet) = (Pace::new(timing), timing.beat() * 5);
        assert_eq!((pace.heartbeat(), pace.look(quiet)), (timing.beat(), timing.beat()));
        let before = Instant::now().checked_sub(timing.beat() * (STIRRED_BEATS + 1));
        *pace.stirred.lock() = before.unwrap();
        assert_eq!((pace.heartbeat(), pace.look(quiet)), (timing.quiet_beat(), quiet));
        assert!(pace.stir() && !pace.stir(), "others are told once");
        pace.call();
        assert_eq!((pace.look(quiet), pace.take_call()), (timing.beat(), true));
        assert!(!pace.take_call());
    }

    #[test]
    fn a_heartbeat_that_only_goes_on_is_no_news() {
        let life = Life { slot: NodeId(1), incarnation: Incarnation(1) };
        let beat = |sequence, free_delta| Heartbeat {
            life,
            pool_epoch: 0,
            pool_change: 0,
            sequence,
            free_delta,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: Features::KNOWN,
            wishes: Vec::new(),
        };
        assert!(has_news(None, &beat(1, 0)));
        assert!(!has_news(Some(&beat(1, 0)), &beat(2, 0)));
        assert!(has_news(Some(&beat(1, 0)), &beat(2, -1)));
        // A wish is, for as long as it stands.
        let wishes = Heartbeat { wishes: vec![(LockNo(1), Mode::Shared)], ..beat(2, 0) };
        assert!(has_news(Some(&wishes), &Heartbeat { sequence: 3, ..wishes.clone() }));
    }
}
