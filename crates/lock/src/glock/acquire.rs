//! Taking a lock: the cached path, and the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use parking_lot::{Mutex, MutexGuard};

use super::state::{Admission, Glock, Request, State, Waiter, Wish};
use super::{Core, Guard, Local, SHUT_DOWN, WITHDRAWN};
use crate::Mode;
use crate::dlock::Event;
use crate::error::LockError;
use crate::interrupt;

/// How often who waits asks whether it waits in vain.
const VAIN: Duration = Duration::from_millis(50);

/// Has the waiter look again when its thread is interrupted.
fn wake_when_interrupted(glock: &Arc<Glock>, waiter: &Arc<Waiter>) -> Option<interrupt::Waking> {
    interrupt::wake_by(|| {
        let (glock, waiter) = (glock.clone(), waiter.clone());
        Arc::new(move || {
            // Either it has not looked yet, or it sleeps.
            drop(glock.state.lock());
            waiter.condition.notify_one();
        })
    })
}

impl Core {
    /// Why nothing is acquired any more.
    pub(super) fn stopped(&self) -> Option<LockError> {
        match self.stop.load(Ordering::Relaxed) {
            SHUT_DOWN => Some(LockError::ShutDown),
            WITHDRAWN => Some(LockError::Withdrawn),
            _ => None,
        }
    }
    pub(super) fn glock(self: &Arc<Self>, lock: LockNo) -> Arc<Glock> {
        self.table.get_or_insert(lock, || {
            let core = Arc::downgrade(self);
            Arc::new(Glock { lock, core, state: Mutex::new(State::new(lock)) })
        })
    }

    pub(super) fn acquire(
        self: &Arc<Self>,
        lock: LockNo,
        wish: Wish,
        local: Local,
        patience: Option<Duration>,
        vain: Option<&dyn Fn() -> bool>,
    ) -> Result<Guard, LockError> {
        assert!(wish.mode > Mode::Unlocked, "a lock is taken in a mode");
        loop {
            if let Some(error) = self.stopped() {
                return Err(error);
            }
            let glock = self.glock(lock);
            let mut state = glock.state.lock();
            if state.gone {
                continue;
            }
            state.used = self.tick.load(Ordering::Relaxed);
            let cluster = state.mode_for(wish, self.me);
            let admission = if state.queue.is_empty() && state.admits(cluster, local) {
                state.admit(cluster, local)
            } else {
                let began = Instant::now();
                let fill = patience.map(|patience| began + patience);
                let request = Request { cluster, local, fill };
                let admission = self.queue_up(&glock, &mut state, request, vain)?;
                self.counters.waited.note(began.elapsed());
                admission
            };
            drop(state);
            return Ok(Guard { glock, admission });
        }
    }

    pub(super) fn try_acquire(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
    ) -> Option<Guard> {
        if self.stopped().is_some() {
            return None;
        }
        let glock = self.table.get(lock)?;
        let mut state = glock.state.lock();
        if state.gone || !state.queue.is_empty() || !state.admits(cluster, local) {
            return None;
        }
        state.used = self.tick.load(Ordering::Relaxed);
        let admission = state.admit(cluster, local);
        drop(state);
        Some(Guard { glock, admission })
    }

    #[cold]
    fn queue_up(
        &self,
        glock: &Arc<Glock>,
        state: &mut MutexGuard<'_, State>,
        request: Request,
        vain: Option<&dyn Fn() -> bool>,
    ) -> Result<Admission, LockError> {
        self.counters.slow.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter::new(request);
        state.queue.push_back(waiter.clone());
        let interruptible = self.options.interruptible;
        let _counted = interrupt::counted_wait();
        let _waking = interruptible.then(|| wake_when_interrupted(glock, &waiter)).flatten();
        let mut asked = Instant::now();
        loop {
            // Read again under the mutex: whoever stops the manager then takes the mutex to wake
            // us, so either we see it here or we are woken.
            if let Some(error) = self.stopped() {
                state.leave_queue(&waiter);
                if let Some(Ok(admission)) = waiter.answer.lock().take() {
                    state.end(admission.mode, admission.local);
                }
                return Err(error);
            }
            if let Some(answer) = waiter.answer.lock().take() {
                return answer;
            }
            if interruptible && interrupt::is_interrupted() {
                return self.give_up(glock, state, &waiter, LockError::Interrupted);
            }
            let now = Instant::now();
            if request.fill.is_some_and(|at| at <= now)
                && state.admits_fill(request.cluster, request.local)
            {
                state.leave_queue(&waiter);
                let admission = state.admit_fill(request.cluster, request.local);
                self.settle(glock, state);
                return Ok(admission);
            }
            let head = state.queue.front().is_some_and(|w| Arc::ptr_eq(w, &waiter));
            if head && let Some(event) = self.event_for_head(glock.lock, state, request.cluster) {
                self.drive(glock, state, event);
                continue;
            }
            if let Some(vain) = vain
                && now.saturating_duration_since(asked) >= VAIN
            {
                if MutexGuard::unlocked(state, vain) {
                    return self.give_up(glock, state, &waiter, LockError::GivenUp);
                }
                asked = Instant::now();
                continue;
            }
            let until = self.wait_until(state, &request, head);
            let ask = vain.map(|_| asked + VAIN);
            match until.into_iter().chain(ask).min() {
                Some(at) => {
                    waiter.condition.wait_until(state, at);
                }
                None => waiter.condition.wait(state),
            }
        }
    }

    /// Leaves the queue, unless the lock has just come.
    fn give_up(
        &self,
        glock: &Arc<Glock>,
        state: &mut MutexGuard<'_, State>,
        waiter: &Arc<Waiter>,
        why: LockError,
    ) -> Result<Admission, LockError> {
        if let Some(answer) = waiter.answer.lock().take() {
            return answer;
        }
        state.leave_queue(waiter);
        // The next in the queue, or a demoter, goes on with the record.
        self.settle(glock, state);
        Err(why)
    }

    /// What the head of the queue does about the record.
    fn event_for_head(&self, lock: LockNo, state: &mut State, cluster: Mode) -> Option<Event> {
        if state.io || state.dlock.held().covers(cluster) {
            return None;
        }
        if !state.dlock.want().covers(cluster) {
            state.hold.wanted(Instant::now());
            if state.dlock.known().is_none()
                && let Some(nonce) = self.options.fresh_nonce
                && self.guesses.is_worth_it()
            {
                state.dlock.guess(LockRecord::unlocked(lock, nonce));
            }
            return Some(Event::Want(cluster));
        }
        if state.look {
            state.look = false;
            return Some(Event::Look);
        }
        let due = state.dlock.timer().is_some_and(|at| at <= self.now());
        due.then(|| {
            self.counters.polls.fetch_add(1, Ordering::Relaxed);
            Event::Timer
        })
    }

    /// When the waiting thread must look by itself, if nobody wakes it before.
    fn wait_until(&self, state: &State, request: &Request, head: bool) -> Option<Instant> {
        let fill = request.fill.filter(|_| state.admits_fill(request.cluster, request.local));
        let pursues = head && !state.io && !state.dlock.held().covers(request.cluster);
        let timer = state.dlock.timer().filter(|_| pursues).map(|at| self.origin + at);
        match (fill, timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
