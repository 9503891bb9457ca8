//! Taking a lock: the cached path, and the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::tasks::{self, Awaited};
use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use parking_lot::MutexGuard;

use super::core::{Core, Entry};
use super::fills::{Fill, Held};
use super::guard::Guard;
use super::post::Post;
use super::state::{Admission, Local, Request, Wish};
use super::step::Event;
use super::table::{State, Thread};
use crate::Mode;
use crate::error::LockError;
use crate::interrupt;
use crate::simulation;

/// How often a waiting thread asks whether its wait is cancelled.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Has the waiter look again when its thread is interrupted.
fn wake_when_interrupted(entry: &Arc<Entry>, thread: &Thread) -> Option<interrupt::Waking> {
    interrupt::wake_by(|| {
        let (entry, thread) = (entry.clone(), thread.clone());
        Arc::new(move || {
            // Either it has not looked yet, or it sleeps.
            drop(entry.state.lock());
            thread.wake();
        })
    })
}

impl Core {
    pub(super) fn acquire(
        self: &Arc<Self>,
        lock: LockNo,
        wish: Wish,
        local: Local,
        held: Option<(Held, Duration)>,
        cancelled: Option<&dyn Fn() -> bool>,
    ) -> Result<Guard, LockError> {
        assert!(wish.mode > Mode::Unlocked, "a lock is taken in a mode");
        loop {
            if let Some(error) = self.stopped() {
                return Err(error);
            }
            let entry = self.entry(lock);
            let mut state = entry.state.lock();
            if state.gone {
                continue;
            }
            state.used = self.tick.load(Ordering::Relaxed);
            let cluster = state.mode_for(wish, self.me);
            let admission = if let Some(admission) = state.try_admit(cluster, local) {
                admission
            } else {
                let began = simulation::now();
                let since = self.now();
                let fill = held.map(|(held, patience)| Fill { since, patience, held });
                let request = Request { cluster, local, fill, passes: false };
                let admission = self.queue_up(&entry, &mut state, request, cancelled)?;
                self.counters.waited.note(simulation::since(began));
                admission
            };
            drop(state);
            return Ok(Guard { entry, admission });
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
        let entry = self.table.get(lock)?;
        let mut state = entry.state.lock();
        if state.gone {
            return None;
        }
        let admission = state.try_admit(cluster, local)?;
        state.used = self.tick.load(Ordering::Relaxed);
        drop(state);
        Some(Guard { entry, admission })
    }

    #[cold]
    fn queue_up(
        &self,
        entry: &Arc<Entry>,
        state: &mut MutexGuard<'_, State>,
        request: Request,
        cancelled: Option<&dyn Fn() -> bool>,
    ) -> Result<Admission, LockError> {
        self.counters.slow.fetch_add(1, Ordering::Relaxed);
        let _waits = tasks::wait(Awaited::Lock(entry.lock.get()));
        let thread = Thread::default();
        state.queue_up(thread.clone(), request);
        let interruptible = self.options.interruptible;
        let (counted, me) = (entry.clone(), self.me);
        let _counted = interrupt::counted_wait(move || counted.state.lock().concerns_nodes(me));
        let _waking = interruptible.then(|| wake_when_interrupted(entry, &thread)).flatten();
        let mut asked = simulation::now();
        loop {
            // Read again under the mutex: whoever stops the manager then takes the mutex to wake
            // us, so either we see it here or we are woken.
            if let Some(error) = self.stopped() {
                if let Some(Ok(admission)) = thread.answer() {
                    state.end(&admission);
                }
                return self.give_up(entry, state, &thread, error);
            }
            if let Some(answer) = thread.answer() {
                return answer;
            }
            if simulation::has_ended() {
                return self.give_up(entry, state, &thread, LockError::Withdrawn);
            }
            if interruptible && interrupt::is_interrupted() {
                return self.give_up(entry, state, &thread, LockError::Interrupted);
            }
            if self.take_turn(entry, state, &thread, &mut Post::at_once()) || thread.is_answered() {
                continue;
            }
            if let Some(cancelled) = cancelled
                && simulation::since(asked) >= ASK_EVERY
            {
                if MutexGuard::unlocked(state, cancelled) {
                    return self.give_up(entry, state, &thread, LockError::GivenUp);
                }
                asked = simulation::now();
                continue;
            }
            let until = state.wait_until(&thread).map(|at| self.origin + at);
            let ask = cancelled.map(|_| asked + ASK_EVERY);
            thread.sleep(state, until.into_iter().chain(ask).min());
        }
    }

    /// One turn of a waiting thread; whether the mutex was released meanwhile.
    pub(super) fn take_turn(
        &self,
        entry: &Arc<Entry>,
        state: &mut MutexGuard<'_, State>,
        thread: &Thread,
        post: &mut Post,
    ) -> bool {
        if let Some(nonce) = self.options.fresh_nonce
            && state.may_guess(thread)
            && !self.asks_presumed(entry.lock, state)
            && self.guesses.is_worth_it()
        {
            state.guess(LockRecord::unlocked(entry.lock, nonce));
        }
        let ran = self.run(entry, state, Event::Turn(thread.clone()), post);
        if ran.released {
            self.shrinks.done();
        }
        ran.unlocked
    }

    /// Leaves the queue, unless the lock has just come.
    fn give_up(
        &self,
        entry: &Arc<Entry>,
        state: &mut MutexGuard<'_, State>,
        thread: &Thread,
        why: LockError,
    ) -> Result<Admission, LockError> {
        if let Some(answer) = thread.answer() {
            return answer;
        }
        self.tell(entry, state, Event::GaveUp(thread.clone()));
        Err(why)
    }
}
