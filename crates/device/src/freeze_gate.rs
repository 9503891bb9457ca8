//! A gate for changes that can be shut for a while: new ones wait, and those under way are waited for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::tasks::{self, Awaited};

/// How often it is checked whether changes are still under way.
const LOOK: Duration = Duration::from_millis(1);

/// Open at first.
#[derive(Debug, Default)]
pub struct FreezeGate {
    frozen: AtomicBool,
    under_way: AtomicUsize,
    waiting: Mutex<()>,
    thawed: Condvar,
}

/// A change is under way until this is dropped.
#[derive(Debug)]
pub struct Change<'a>(&'a FreezeGate);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FreezeGate {
    /// A change begins; `None` while it is frozen. One within another must not wait for the thaw: the freeze
    /// waits for the outer one.
    pub fn try_enter(&self) -> Option<Change<'_>> {
        // Counted first, then looked: `freeze` does it the other way round.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Some(Change(self)).filter(|_| !self.is_frozen())
    }
    /// Waits for the thaw, for `most` at most.
    pub fn wait(&self, most: Duration) {
        let _waits = tasks::wait(Awaited::Thaw);
        let mut waiting = self.waiting.lock();
        if self.is_frozen() {
            self.thawed.wait_for(&mut waiting, most);
        }
    }
    /// From now on no change begins; on return none is under way. False, and as before, if some still are at
    /// `deadline`, or [`FreezeGate::thaw`] is called meanwhile.
    pub fn freeze(&self, deadline: Instant) -> bool {
        self.frozen.store(true, Ordering::SeqCst);
        while self.under_way.load(Ordering::SeqCst) > 0 && self.is_frozen() {
            if Instant::now() >= deadline {
                self.thaw();
                return false;
            }
            std::thread::sleep(LOOK);
        }
        self.is_frozen()
    }
    /// Changes begin again.
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        let _waiting = self.waiting.lock();
        self.thawed.notify_all();
    }
    /// Whether changes wait.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn who_comes_later_waits_and_who_was_there_is_waited_for() {
        let gate = Arc::new(FreezeGate::default());
        let under_way = gate.try_enter().unwrap();
        assert!(!gate.freeze(Instant::now()), "a change is under way");
        drop((gate.try_enter().unwrap(), under_way));
        assert!(gate.freeze(Instant::now()) && gate.try_enter().is_none());
        let of_thread = gate.clone();
        let waits = std::thread::spawn(move || of_thread.wait(Duration::from_mins(1)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        gate.thaw();
        waits.join().unwrap();
        assert!(gate.try_enter().is_some());
        assert!(gate.freeze(Instant::now()), "nothing is left of those that were refused");
    }

    #[test]
    fn a_freeze_that_is_ended_while_it_waits_is_none() {
        let gate = Arc::new(FreezeGate::default());
        let under_way = gate.try_enter().unwrap();
        let of_thread = gate.clone();
        let later = Instant::now() + Duration::from_mins(1);
        let freezes = std::thread::spawn(move || of_thread.freeze(later));
        while !gate.is_frozen() {
            std::thread::yield_now();
        }
        gate.thaw();
        assert!(!freezes.join().unwrap() && !gate.is_frozen());
        drop(under_way);
    }
}
