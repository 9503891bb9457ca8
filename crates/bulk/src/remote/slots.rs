//! Connections: each does one request at a time, so a request takes one as long as it is under way.
//!
//! A request may wait at the server for another node, for as long as a program there likes. So one user other than root
//! leaves a part of the connections to others.

use std::collections::HashMap;
use std::time::Duration;

use braid_device::tasks::{self, Awaited};
use braid_fs::lock::interrupt;
use braid_fs::{Answer, Errno};
use parking_lot::{Condvar, Mutex};

/// Between two looks at whether whoever waits is interrupted.
pub const LOOK: Duration = Duration::from_millis(20);

/// The part (divisor) of the connections that one user leaves to others.
const OTHERS: usize = 4;

/// Those that no request has. Those of low numbers are taken first, so that few are made for few requests.
#[derive(Debug)]
pub struct Slots {
    state: Mutex<State>,
    /// Most of one user other than root.
    each: usize,
    changed: Condvar,
    events: u16,
    recalls: Option<u16>,
}

#[derive(Debug)]
struct State {
    free: Vec<u16>,
    /// Those that users other than root have.
    by_user: HashMap<u32, usize>,
    /// Threads that wait although one may be free: their users have as many as they may.
    bounded: usize,
}

/// A slot for one request; given back when it is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    slots: &'a Slots,
    /// Its number.
    pub number: u16,
    uid: u32,
}

impl Slots {
    /// Numbers from 1 to `last`. The last is for the wait for events, and the one before for recalls, if there are
    /// others.
    pub fn new(last: u16) -> Self {
        let recalls = (last > 2).then(|| last - 1);
        let others = if recalls.is_some() { 2 } else { 1 };
        let requests = last.saturating_sub(others).max(1).min(last);
        let free = (1..=requests).rev().collect();
        let state = Mutex::new(State { free, by_user: HashMap::new(), bounded: 0 });
        let requests = usize::from(requests);
        let each = (requests - requests.div_ceil(OTHERS)).max(1);
        Self { state, each, changed: Condvar::new(), events: last, recalls }
    }
    /// The slot by which recalls are waited for.
    pub fn recalls(&self) -> Option<u16> {
        self.recalls
    }
    /// The slot by which events are waited for.
    pub fn events(&self) -> u16 {
        self.events
    }
    /// One that is free, for this mount itself; waits for it.
    pub fn take(&self) -> Taken<'_> {
        loop {
            if let Some(taken) = self.take_within(0, LOOK) {
                return taken;
            }
        }
    }
    /// One for user `uid`, unless the program that asks is interrupted: all may be taken by requests that a silent
    /// server does not answer.
    ///
    /// # Errors
    /// It is.
    pub fn take_unless_interrupted(&self, uid: u32) -> Answer<Taken<'_>> {
        if let Some(taken) = self.take_within(uid, Duration::ZERO) {
            return Ok(taken);
        }
        let _waits = tasks::wait(Awaited::Request);
        loop {
            if let Some(taken) = self.take_within(uid, LOOK) {
                return Ok(taken);
            }
            if interrupt::is_interrupted() {
                return Err(Errno::INTR);
            }
        }
    }
    fn take_within(&self, uid: u32, time: Duration) -> Option<Taken<'_>> {
        let mut state = self.state.lock();
        if !self.may_take(&state, uid) {
            let is_bounded = usize::from(uid != 0 && self.is_bounded(&state, uid));
            state.bounded += is_bounded;
            self.changed.wait_for(&mut state, time);
            state.bounded -= is_bounded;
        }
        if !self.may_take(&state, uid) {
            return None;
        }
        let number = state.free.pop()?;
        if uid != 0 {
            *state.by_user.entry(uid).or_default() += 1;
        }
        Some(Taken { slots: self, number, uid })
    }
    fn may_take(&self, state: &State, uid: u32) -> bool {
        !state.free.is_empty() && (uid == 0 || !self.is_bounded(state, uid))
    }
    /// Whether a user other than root has as many as it may, or all such users have, which leave one to root and to the
    /// mount itself.
    fn is_bounded(&self, state: &State, uid: u32) -> bool {
        let has = state.by_user.get(&uid).copied().unwrap_or(0);
        has >= self.each || self.each >= OTHERS && state.free.len() <= 1
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.slots.state.lock();
        let at = state.free.partition_point(|other| *other > self.number);
        state.free.insert(at, self.number);
        if let Some(has) = state.by_user.get_mut(&self.uid) {
            *has -= 1;
            if *has == 0 {
                state.by_user.remove(&self.uid);
            }
        }
        if state.bounded > 0 {
            // Which of them may have it now, each finds out by itself.
            self.slots.changed.notify_all();
        } else {
            self.slots.changed.notify_one();
        }
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
        assert_eq!(slots.take_unless_interrupted(7).err(), Some(Errno::INTR));
        drop(taken);
        assert!(slots.take_unless_interrupted(7).is_ok());
    }

    #[test]
    fn one_user_leaves_some_to_others() {
        let slots = Slots::new(17);
        let at_once = |uid| slots.take_within(uid, Duration::ZERO);
        let mut taken: Vec<_> = std::iter::from_fn(|| at_once(7)).collect();
        assert_eq!(taken.len(), 11);
        taken.extend([8, 9, 8].map(|uid| at_once(uid).unwrap()));
        assert!(at_once(10).is_none(), "the last is root's");
        taken.push(at_once(0).unwrap());
        assert!(at_once(0).is_none(), "all are taken");
        taken.pop();
        assert!(at_once(7).is_none() && at_once(10).is_none());
        taken.remove(0);
        assert!(at_once(7).is_some());
        taken.clear();
        let state = slots.state.lock();
        assert_eq!((state.free.len(), state.by_user.len()), (15, 0));
    }
}
