//! How a thread that works now and then is told to end.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A word to end, for one thread that sleeps between its turns.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    said: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Says it, and wakes the thread.
    pub fn say(&self) {
        *self.said.lock() = true;
        self.changed.notify_all();
    }
    /// Wakes the thread for a turn before its time.
    pub fn rouse(&self) {
        self.changed.notify_all();
    }
    /// Whether it was said.
    pub fn is_said(&self) -> bool {
        *self.said.lock()
    }
    /// Sleeps until then, or until it is roused; whether it is to end.
    pub fn sleep_until(&self, then: Instant) -> bool {
        let mut said = self.said.lock();
        if !*said {
            self.changed.wait_until(&mut said, then);
        }
        *said
    }
}
