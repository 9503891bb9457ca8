//! Whether programs may be answered: not while this node's lease is over, and never after it has
//! withdrawn.
//!
//! ```text
//!          over                     withdrawn
//!  Open ---------> Over -------------------------> Ended
//!       <---------
//!        regained
//! ```
//!
//! A request that comes while the lease is over waits a little, then gets `EIO`: a machine that was
//! suspended goes on at once, and when a device answers again, the lease is regained with the next
//! heartbeat. Lookups wait longer: if a lookup fails, the kernel takes the name for gone, and unmounts
//! what is mounted there. Requests that hold pages wait from the end of the lease only, all together,
//! because the pages must be dropped before others may act.
//!
//! Dropping pages waits for those that are being filled or written. So another thread than the one
//! that has such a request can answer it ([`LeaseGate::fail_pages`]). The kernel takes the first
//! answer; the second one gets an error, because there is no such request any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::abi::op;
use crate::transport::reply::{Device, Reply, Way};

/// Lookups wait so many times as long as other requests.
const LOOKUP_PATIENCE: u32 = 20;
/// Spreads requests over locks.
const SHARDS: usize = 16;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The lease is over since then; requests wait so long.
    Over { since: Instant, patience: Duration },
    /// The node has withdrawn.
    Ended,
}

/// The state, and the requests under way that hold pages.
#[derive(Debug, Default)]
pub(crate) struct LeaseGate {
    /// Not open: all that an ordinary request looks at.
    closed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    pages: [Mutex<Vec<u64>>; SHARDS],
}

/// A request that holds pages is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct HoldsPages<'a> {
    gate: &'a LeaseGate,
    unique: u64,
}

impl Drop for HoldsPages<'_> {
    fn drop(&mut self) {
        self.gate.shard(self.unique).lock().retain(|u| *u != self.unique);
    }
}

impl LeaseGate {
    fn shard(&self, unique: u64) -> &Mutex<Vec<u64>> {
        // Numbers of requests are even.
        let at = usize::try_from(unique / 2 % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &self.pages;
        self.pages.get(at).unwrap_or(first)
    }
    /// A request that holds pages begins.
    pub fn holds_pages(&self, unique: u64) -> HoldsPages<'_> {
        self.shard(unique).lock().push(unique);
        HoldsPages { gate: self, unique }
    }
    /// From now on nothing is answered; returns whether that is new. Requests wait for `patience`.
    pub fn suspend(&self, for_good: bool, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let next = match (*state, for_good) {
            (State::Ended, _) | (State::Over { .. }, false) => return false,
            (_, true) => State::Ended,
            (State::Open, false) => State::Over { since: Instant::now(), patience },
        };
        *state = next;
        self.closed.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        true
    }
    /// Requests are answered again, unless the node has withdrawn.
    pub fn resume(&self) {
        let mut state = self.state.lock();
        if *state != State::Ended {
            *state = State::Open;
            self.closed.store(false, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }
    /// Whether a request may be answered; waits, within bounds, for the lease. `holds_pages`: the kernel
    /// cannot drop some pages before it is answered.
    ///
    /// # Errors
    /// `EIO`.
    pub fn admit(&self, opcode: u32, holds_pages: bool) -> Result<(), Errno> {
        if !self.closed.load(Ordering::SeqCst) || only_gives_back(opcode) {
            return Ok(());
        }
        let asked = Instant::now();
        let mut state = self.state.lock();
        loop {
            let (since, patience) = match *state {
                State::Open => return Ok(()),
                State::Ended => return Err(Errno::IO),
                State::Over { since, patience } => (since, patience),
            };
            let times = if opcode == op::LOOKUP { LOOKUP_PATIENCE } else { 1 };
            let mut until = since + patience * times;
            if !holds_pages {
                until = until.max(asked + patience);
            }
            if Instant::now() >= until {
                return Err(Errno::IO);
            }
            self.changed.wait_until(&mut state, until);
        }
    }
    /// Answers the requests that hold pages with `EIO`.
    pub fn fail_pages(&self, device: &Device) {
        for shard in &self.pages {
            let held: Vec<u64> = shard.lock().clone();
            for unique in held {
                Reply { way: Way::Device(device), unique }.error(Errno::IO);
            }
        }
    }
}

/// Requests by which the kernel gives something back: they need no lease. (A close gives up a program's
/// locks, and waits for nobody for longer than a second.)
fn only_gives_back(opcode: u32) -> bool {
    matches!(
        opcode,
        op::FORGET
            | op::BATCH_FORGET
            | op::INTERRUPT
            | op::FLUSH
            | op::RELEASE
            | op::RELEASEDIR
            | op::DESTROY
            | op::NOTIFY_REPLY
    )
}

/// Several threads go through one list.
#[derive(Debug)]
pub(crate) struct Rounds {
    list: Vec<u64>,
    progress: Mutex<Progress>,
    advanced: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Handed out, and one more for each thread that found nothing left.
    taken: usize,
    done: usize,
}

impl Rounds {
    pub fn new(list: Vec<u64>) -> Arc<Self> {
        Arc::new(Self { list, progress: Mutex::default(), advanced: Condvar::new() })
    }
    /// Works until the list has been handed out.
    pub fn work(&self, each: impl Fn(u64)) {
        loop {
            let at = {
                let mut progress = self.progress.lock();
                progress.taken += 1;
                progress.taken - 1
            };
            let Some(one) = self.list.get(at) else { return };
            each(*one);
            self.progress.lock().done += 1;
            self.advanced.notify_all();
        }
    }
    /// Waits until all are done, at most until then: how many are not.
    pub fn wait_until(&self, then: Instant) -> usize {
        let mut progress = self.progress.lock();
        while progress.done < self.list.len() {
            if self.advanced.wait_until(&mut progress, then).timed_out() {
                break;
            }
        }
        self.list.len() - progress.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_the_lease_and_then_fail() {
        let gate = LeaseGate::default();
        gate.admit(op::READ, false).unwrap();
        assert!(gate.suspend(false, Duration::from_millis(20)));
        assert!(!gate.suspend(false, Duration::ZERO), "known already");
        gate.admit(op::FORGET, false).unwrap();
        let begun = Instant::now();
        assert_eq!(gate.admit(op::WRITE, false), Err(Errno::IO));
        // Long after the end of the lease too, for it may be regained at any moment; but what holds
        // pages has waited enough.
        assert_eq!(gate.admit(op::WRITE, false), Err(Errno::IO));
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let begun = Instant::now();
        assert_eq!(gate.admit(op::READ, true), Err(Errno::IO));
        assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
        std::thread::scope(|s| {
            let waits = s.spawn(|| gate.admit(op::LOOKUP, false));
            gate.resume();
            waits.join().unwrap().unwrap();
        });
        gate.admit(op::READ, false).unwrap();
        assert!(gate.suspend(true, Duration::from_mins(1)));
        gate.resume();
        assert_eq!(gate.admit(op::LOOKUP, false), Err(Errno::IO));
        gate.admit(op::RELEASE, false).unwrap();
    }

    #[test]
    fn rounds_are_counted_by_what_is_done() {
        let rounds = Rounds::new((0..100).collect());
        let soon = || Instant::now() + Duration::from_millis(5);
        assert_eq!(rounds.wait_until(soon()), 100);
        rounds.work(|_| {});
        assert_eq!(rounds.wait_until(soon()), 0);
    }
}
