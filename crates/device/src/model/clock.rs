//! The clock of modelled disks: virtual or real.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::bus::{Bus, BusStats};
use super::disk::DiskModel;
use super::machine::{DiskStats, Machine, Work};
use super::time::Time;

#[derive(Debug, Default)]
struct State {
    machine: Machine,
    /// Requests somebody waits for, or may; when they were complete.
    open: HashMap<u64, Option<Time>>,
}
impl State {
    fn collect(&mut self) {
        let now = self.machine.now();
        for request in self.machine.complete.drain(..) {
            if let Some(done) = self.open.get_mut(&request) {
                *done = Some(now);
            }
        }
    }
    fn step(&mut self) -> bool {
        let stepped = self.machine.step();
        self.collect();
        stepped
    }
    fn run_until(&mut self, until: Time) {
        while self.machine.next().is_some_and(|time| time <= until) {
            self.step();
        }
        self.machine.run_until(until);
    }
    /// The first complete one: the earliest, and of these the first in the list.
    fn first<'t>(&self, tickets: impl Iterator<Item = &'t Ticket>) -> Option<(usize, Time)> {
        let done = |(i, t): (usize, &Ticket)| Some((i, (*self.open.get(&t.request)?)?));
        tickets.enumerate().filter_map(done).min_by_key(|(i, time)| (*time, *i))
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Only for its time-out: sleeping without the lock.
    sleep: Condvar,
    /// When a real clock began.
    began: Option<Instant>,
}

/// The clock that modelled disks and their buses share, and with it their [machine](super).
///
/// In *virtual time* nothing sleeps. The clock stands while requests are submitted and moves to the
/// next completion when somebody waits for one. What one thread does is a pure function of what it
/// submits; threads that share a virtual clock meet in whatever order they run.
///
/// In *real time* a request that is waited for returns when it is due: the model's time is that
/// of the machine it runs on, and a caller that is late is late for its sector, too.
#[derive(Debug, Clone)]
pub struct ModelClock(Arc<Shared>);

/// A bus of a clock.
#[derive(Debug, Clone)]
pub struct ModelBus {
    clock: ModelClock,
    place: usize,
}
impl ModelBus {
    /// What it has done.
    pub fn stats(&self) -> BusStats {
        self.clock.0.state.lock().machine.bus_stats(self.place)
    }
}

/// A request under way.
#[derive(Debug)]
pub struct Ticket {
    clock: ModelClock,
    request: u64,
}
impl Ticket {
    pub(crate) const fn clock(&self) -> &ModelClock {
        &self.clock
    }
    /// Waits until the request is complete; returns when it was.
    pub fn wait(self) -> Time {
        let clock = self.clock.clone();
        clock.first_of(&[&self].into_iter()).1
    }
    /// Whether it is complete; does not move a virtual clock.
    pub fn is_complete(&self) -> bool {
        let mut state = self.clock.0.state.lock();
        self.clock.catch_up(&mut state);
        state.first([self].into_iter()).is_some()
    }
}
impl Drop for Ticket {
    fn drop(&mut self) {
        self.clock.0.state.lock().open.remove(&self.request);
    }
}

impl ModelClock {
    fn new(began: Option<Instant>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), sleep: Condvar::new(), began }))
    }
    /// A clock that moves only from event to event.
    pub fn virtual_time() -> Self {
        Self::new(None)
    }
    /// A clock that began now and moves by itself.
    pub fn real_time() -> Self {
        Self::new(Some(Instant::now()))
    }
    /// Whether it is virtual.
    pub fn is_virtual(&self) -> bool {
        self.0.began.is_none()
    }
    /// What time it is.
    pub fn now(&self) -> Time {
        let mut state = self.0.state.lock();
        self.catch_up(&mut state);
        state.machine.now()
    }
    /// Lets time pass: at once, or by sleeping.
    pub fn pass(&self, time: Duration) {
        let mut state = self.0.state.lock();
        self.catch_up(&mut state);
        let until = state.machine.now() + time;
        if self.is_virtual() {
            state.run_until(until);
        } else {
            drop(state);
            std::thread::sleep(time);
        }
    }
    /// Adds a bus.
    pub fn bus(&self, bus: Bus) -> ModelBus {
        let place = self.0.state.lock().machine.add_bus(bus);
        ModelBus { clock: self.clone(), place }
    }

    /// Whether both are the same clock.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Adds a disk that has passed its check; `None`: the bus is of another clock.
    pub(crate) fn disk(
        &self,
        model: DiskModel,
        size: u64,
        bus: Option<&ModelBus>,
    ) -> Option<usize> {
        if bus.is_some_and(|b| !b.clock.is(self)) {
            return None;
        }
        Some(self.0.state.lock().machine.add_disk(model, size, bus.map(|b| b.place)))
    }
    pub(crate) fn disk_stats(&self, disk: usize) -> DiskStats {
        self.0.state.lock().machine.disk_stats(disk)
    }
    /// Submits a request that comes to its disk at `at`, or now if that is past.
    pub(crate) fn submit(&self, at: Time, disk: usize, work: Work) -> Ticket {
        let mut state = self.0.state.lock();
        self.catch_up(&mut state);
        let request = state.machine.submit(at, disk, work);
        state.open.insert(request, None);
        Ticket { clock: self.clone(), request }
    }
    /// Waits until one of the requests is complete; which one, and when it was. Of several, the
    /// earliest; of these, the first.
    ///
    /// # Panics
    /// Without any ticket.
    pub(crate) fn first_of<'t>(
        &self,
        tickets: &(impl Iterator<Item = &'t Ticket> + Clone),
    ) -> (usize, Time) {
        let mut state = self.0.state.lock();
        loop {
            self.catch_up(&mut state);
            if let Some(first) = state.first(tickets.clone()) {
                return first;
            }
            match self.0.began {
                None => assert!(state.step(), "what is under way ends"),
                Some(began) => {
                    let next = state.machine.next().expect("what is under way ends");
                    let wake = began + Duration::from_nanos(next.0);
                    let _ = self.0.sleep.wait_until(&mut state, wake);
                }
            }
        }
    }
    /// Brings the machine to the real time.
    fn catch_up(&self, state: &mut State) {
        if let Some(began) = self.0.began {
            state.run_until(Time(0) + began.elapsed());
        }
    }
}
