//! How a thread that works now and then is told to end.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A word to end, for one thread that sleeps between its turns.
#[derive(Debug, Default)]
pub(crate) struct StopFlag {
    requested: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Asks the thread to end, and wakes it.
    pub fn request(&self) {
        *self.requested.lock() = true;
        self.changed.notify_all();
    }
    /// Wakes the thread for a turn before its time.
    pub fn wake(&self) {
        self.changed.notify_all();
    }
    /// Whether it was asked to end.
    pub fn is_requested(&self) -> bool {
        *self.requested.lock()
    }
    /// Sleeps until then, or until it is woken; whether it was asked to end.
    pub fn sleep_until(&self, then: Instant) -> bool {
        let mut requested = self.requested.lock();
        if !*requested {
            self.changed.wait_until(&mut requested, then);
        }
        *requested
    }
}
