//! Connections: each does one request at a time, so a request takes one as long as it is under way.

use std::time::Duration;

use braid_fs::lock::interrupt;
use braid_fs::{Answer, Errno};
use parking_lot::{Condvar, Mutex};

/// Between two looks at whether whoever waits is interrupted.
pub const LOOK: Duration = Duration::from_millis(20);

/// Those that no request has. Those of low numbers are taken first, so that few are made for few requests.
#[derive(Debug)]
pub struct Slots {
    free: Mutex<Vec<u16>>,
    changed: Condvar,
    events: u16,
    recalls: Option<u16>,
}

/// A slot for one request; given back when it is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    slots: &'a Slots,
    /// Its number.
    pub number: u16,
}

impl Slots {
    /// Numbers from 1 to `last`. The last is for the wait for events, and the one before for recalls, if there are
    /// others.
    pub fn new(last: u16) -> Self {
        let recalls = (last > 2).then(|| last - 1);
        let others = if recalls.is_some() { 2 } else { 1 };
        let requests = last.saturating_sub(others).max(1).min(last);
        let free = Mutex::new((1..=requests).rev().collect());
        Self { free, changed: Condvar::new(), events: last, recalls }
    }
    /// The slot by which recalls are waited for.
    pub fn recalls(&self) -> Option<u16> {
        self.recalls
    }
    /// The slot by which events are waited for.
    pub fn events(&self) -> u16 {
        self.events
    }
    /// One that is free; waits for it.
    pub fn take(&self) -> Taken<'_> {
        loop {
            if let Some(taken) = self.take_within(LOOK) {
                return taken;
            }
        }
    }
    /// The same, unless the program that asks is interrupted: all may be taken by requests that a silent server does
    /// not answer.
    ///
    /// # Errors
    /// It is.
    pub fn take_unless_interrupted(&self) -> Answer<Taken<'_>> {
        loop {
            if let Some(taken) = self.take_within(LOOK) {
                return Ok(taken);
            }
            if interrupt::is_interrupted() {
                return Err(Errno::INTR);
            }
        }
    }
    fn take_within(&self, time: Duration) -> Option<Taken<'_>> {
        let mut free = self.free.lock();
        if free.is_empty() {
            self.changed.wait_for(&mut free, time);
        }
        free.pop().map(|number| Taken { slots: self, number })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.slots.free.lock();
        let at = free.partition_point(|other| *other > self.number);
        free.insert(at, self.number);
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use braid_fs::lock::interrupt::Interrupt;

    use super::*;

    #[test]
    fn low_numbers_are_taken_first_and_the_last_is_kept() {
        let slots = Slots::new(5);
        let (a, b, c) = (slots.take(), slots.take(), slots.take());
        assert_eq!([a.number, b.number, c.number], [1, 2, 3]);
        drop((c, a));
        assert_eq!(slots.take().number, 1);
        assert_eq!((slots.events(), slots.recalls()), (5, Some(4)));
        assert_eq!(Slots::new(1).take().number, 1);
        assert_eq!(Slots::new(2).recalls(), None);
    }

    #[test]
    fn who_is_interrupted_waits_for_none() {
        let (slots, program) = (Slots::new(1), Interrupt::of_steps());
        let _scope = program.scope();
        let taken = slots.take();
        program.trip_current();
        assert_eq!(slots.take_unless_interrupted().err(), Some(Errno::INTR));
        drop(taken);
        assert!(slots.take_unless_interrupted().is_ok());
    }
}
