//! Work on the whole pool, of which a node does one piece at a time: how it begins and is ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::Bytes;
use braid_lock::interrupt::{Interrupt, Scope};
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Work that goes through the whole pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// [`crate::Fs::rebalance`].
    Rebalance,
    /// [`crate::Fs::leave`].
    Leave,
    /// [`crate::Fs::trim`], in a slot of its own.
    Trim,
}

/// How far a job of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobProgress {
    /// Bytes done.
    pub done: Bytes,
    /// Bytes in all.
    pub total: Bytes,
    /// Since it began.
    pub ran: Duration,
}

/// Room for one job at a time.
#[derive(Debug, Default)]
pub(crate) struct JobSlot {
    state: Mutex<State>,
    ended: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Job>,
    /// What its thread waits for other nodes for.
    interrupt: Option<Interrupt>,
    /// The node is leaving.
    closed: bool,
}

/// A job under way; dropping it frees the slot.
pub(crate) struct Running<'a> {
    slot: &'a JobSlot,
    _scope: Scope,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        (state.running, state.interrupt) = (None, None);
        drop(state);
        self.slot.ended.notify_all();
    }
}

impl JobSlot {
    /// Ends `job`, soon, if it is under way; whether it was.
    pub fn stop(&self, job: Job) -> bool {
        let state = self.state.lock();
        let ours = state.running == Some(job);
        if ours {
            self.stop.store(true, Ordering::Release);
        }
        ours
    }

    /// Ends what is under way, and waits for that; no other begins. If it waits for a lock that another node holds, it
    /// fails.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.stop.store(true, Ordering::Release);
        if let Some(interrupt) = &state.interrupt {
            interrupt.trip_current();
        }
        while state.running.is_some() {
            self.ended.wait(&mut state);
        }
    }

    /// Whether what is under way is to end.
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether the node is leaving.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether `job` is under way.
    pub fn is_running(&self, job: Job) -> bool {
        self.state.lock().running == Some(job)
    }

    /// Begins `job`, which is this thread's.
    ///
    /// # Errors
    /// [`Error::UnderWay`]: another one is under way, or the node is leaving.
    pub fn begin(&self, job: Job) -> Result<Running<'_>> {
        let mut state = self.state.lock();
        if state.running.is_some() || state.closed {
            return Err(Error::UnderWay);
        }
        state.running = Some(job);
        self.stop.store(false, Ordering::Release);
        let interrupt = Interrupt::within_current();
        let scope = interrupt.scope();
        state.interrupt = Some(interrupt);
        Ok(Running { slot: self, _scope: scope })
    }
}

/// How far each job is.
#[derive(Debug, Default)]
pub(crate) struct AllProgress {
    pub leaving: Progress,
    pub rebalancing: Progress,
    pub trimming: Progress,
}

/// Blocks still to be done, and all that had to be, for people.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    left: AtomicU64,
    total: AtomicU64,
    begun: Mutex<Option<Instant>>,
}

impl Progress {
    pub fn set(&self, left: u64) {
        self.begun.lock().get_or_insert_with(Instant::now);
        self.left.store(left, Ordering::Relaxed);
        self.total.fetch_max(left, Ordering::Relaxed);
    }
    /// Blocks still to be done, and all.
    pub fn get(&self) -> (u64, u64) {
        let total = self.total.load(Ordering::Relaxed);
        (self.left.load(Ordering::Relaxed).min(total), total)
    }
    /// Since when.
    pub fn begun(&self) -> Option<Instant> {
        *self.begun.lock()
    }
    /// The same for people; `shift`: of a block's size. `None`: nothing is under way.
    pub fn told(&self, shift: u32) -> Option<JobProgress> {
        let ((left, total), begun) = (self.get(), self.begun()?);
        let [done, total] = [total - left, total].map(|blocks| Bytes(blocks << shift));
        Some(JobProgress { done, total, ran: begun.elapsed() })
    }
    pub fn end(&self) {
        *self.begun.lock() = None;
        self.left.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }
}
