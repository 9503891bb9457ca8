//! The demoters: threads that look at records others ask about and give locks up.
//!
//! A demoter never waits for users: the last user to leave puts the lock back into the queue.
//! `GlockOps::demote` runs without any mutex of this crate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_format::LockNo;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::state::{Demotion, Glock, Phase, State};
use super::{Core, Demoted, DemotionWaits, Local};
use crate::Mode;
use crate::dlock::Event;

/// Locks to visit.
#[derive(Default)]
pub(super) struct Work {
    queue: Mutex<Queue>,
    condition: Condvar,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Glock>>,
    timed: BinaryHeap<Reverse<Timed>>,
    stop: bool,
}

struct Timed(Instant, Arc<Glock>);
impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl Work {
    pub(super) fn push(&self, glock: Arc<Glock>) {
        self.queue.lock().ready.push_back(glock);
        self.condition.notify_one();
    }
    pub(super) fn push_at(&self, at: Instant, glock: Arc<Glock>) {
        self.queue.lock().timed.push(Reverse(Timed(at, glock)));
        self.condition.notify_one();
    }
    pub(super) fn len(&self) -> usize {
        self.queue.lock().ready.len()
    }
    pub(super) fn stop(&self) {
        self.queue.lock().stop = true;
        self.condition.notify_all();
    }
    /// The next lock to visit; waits. `None`: stop.
    fn next(&self) -> Option<Arc<Glock>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(Reverse(Timed(at, _))) = queue.timed.peek() {
                let at = *at;
                if at <= Instant::now()
                    && let Some(Reverse(Timed(_, glock))) = queue.timed.pop()
                {
                    return Some(glock);
                }
                if let Some(glock) = queue.ready.pop_front() {
                    return Some(glock);
                }
                self.condition.wait_until(&mut queue, at);
            } else if let Some(glock) = queue.ready.pop_front() {
                return Some(glock);
            } else {
                self.condition.wait(&mut queue);
            }
        }
    }
}

/// What a visit does next.
enum Next {
    /// Nothing, or nothing yet: whoever changes that puts the lock into the queue again.
    Leave,
    /// Look again.
    Again,
    /// Call the file system.
    Call { from: Mode, to: Mode },
    /// Write the record.
    Release { to: Mode, left: Demoted },
}

impl Core {
    /// A demoter's life.
    pub(super) fn demoter(&self, work: &Work) {
        while let Some(glock) = work.next() {
            self.visit(&glock);
        }
    }

    /// The queue of the demoters that serve a lock.
    pub(super) fn work_for(&self, lock: LockNo) -> &Work {
        self.work_of(self.ops.demotion_waits(lock))
    }
    pub(super) fn work_of(&self, kind: DemotionWaits) -> &Work {
        let [mapped, anything, locks, devices] = &self.work;
        match kind {
            DemotionWaits::MappedPages => mapped,
            DemotionWaits::Anything => anything,
            DemotionWaits::Locks => locks,
            DemotionWaits::Devices => devices,
        }
    }

    fn visit(&self, glock: &Arc<Glock>) {
        let mut state = glock.state.lock();
        state.queued = false;
        state.visit = None;
        if state.working {
            state.again = true;
            return;
        }
        state.working = true;
        loop {
            state.again = false;
            self.work_on(glock, &mut state);
            if !state.again {
                break;
            }
        }
        state.working = false;
        let shrunk = state.shrink
            && state.demotion.is_none()
            && state.dlock.held() == Mode::Unlocked
            && std::mem::take(&mut state.shrink);
        self.settle(glock, &mut state);
        let leaves = state.is_idle() && (shrunk || self.table.count() > self.options.locks_max / 2);
        drop(state);
        if leaves {
            self.table.remove_idle(glock);
        }
        if shrunk {
            self.shrinks.done();
        }
    }

    /// Carries the lock as far as it goes now.
    fn work_on(&self, glock: &Arc<Glock>, state: &mut MutexGuard<'_, State>) {
        if let Some(event) = self.unattended_event(state)
            && self.stopped().is_none()
        {
            self.drive(glock, state, event);
        }
        loop {
            if self.stopped().is_some() {
                self.end_shrink(state);
                return;
            }
            match self.next_of_demotion(glock, state) {
                Next::Leave => return,
                Next::Again => {}
                Next::Call { from, to } => self.call_ops(glock, state, from, to),
                Next::Release { to, left: Demoted { opened, written } } => {
                    if to == Mode::Unlocked {
                        // Nobody else drives meanwhile: the record is about to be written.
                        state.io = true;
                        MutexGuard::unlocked(state, || self.ops.forget(glock.lock));
                        state.io = false;
                    }
                    self.drive(glock, state, Event::Released { to, opened, written });
                }
            }
        }
    }

    /// An event for the record that no waiting thread takes care of.
    fn unattended_event(&self, state: &mut State) -> Option<Event> {
        if state.io {
            return None;
        }
        let attended = state.attended();
        if state.look && !attended {
            state.look = false;
            return Some(Event::Look);
        }
        if state.pursuing() && !attended {
            return Some(Event::Unwant);
        }
        let due = state.dlock.timer().is_some_and(|at| at <= self.now());
        (due && !attended).then_some(Event::Timer)
    }

    fn next_of_demotion(&self, glock: &Arc<Glock>, state: &mut State) -> Next {
        let Some(demotion) = state.demotion else { return self.begin_demotion(glock, state) };
        let held = state.dlock.held();
        let to = state.demand.map_or(demotion.to, |d| d.meet(demotion.to));
        let drained = state.drained(to);
        let set = |state: &mut State, phase, admitted| {
            state.demotion = Some(Demotion { to, phase, admitted, ..demotion });
        };
        match demotion.phase {
            Phase::Calling => Next::Leave,
            Phase::Releasing => {
                if state.dlock.is_giving() {
                    return Next::Leave;
                }
                self.end_demotion(glock, state);
                Next::Again
            }
            Phase::Draining if !drained => {
                set(state, Phase::Draining, demotion.admitted);
                Next::Leave
            }
            Phase::Draining => {
                set(state, Phase::Calling, false);
                Next::Call { from: held, to }
            }
            Phase::Ready if demotion.admitted || to < demotion.to || !drained => {
                set(state, Phase::Draining, false);
                Next::Again
            }
            Phase::Ready if state.io => Next::Leave,
            Phase::Ready => {
                set(state, Phase::Releasing, false);
                state.demand = None;
                Next::Release { to, left: demotion.left }
            }
        }
    }

    fn begin_demotion(&self, glock: &Arc<Glock>, state: &mut State) -> Next {
        let held = state.dlock.held();
        let to = match state.demand {
            Some(to) if to < held => {
                let now = Instant::now();
                let until = state.hold.until(now, state.uses, self.options.hold_max);
                if let Some(until) = until {
                    state.visit = Some(until);
                    self.work_for(glock.lock).push_at(until, glock.clone());
                    return Next::Leave;
                }
                to
            }
            Some(_) => {
                state.demand = None;
                return Next::Again;
            }
            None if state.shrink => {
                if held == Mode::Unlocked {
                    return Next::Leave;
                }
                if state.users() > 0 || !state.queue.is_empty() || state.io {
                    self.end_shrink(state);
                    return Next::Leave;
                }
                Mode::Unlocked
            }
            None => return Next::Leave,
        };
        state.demotion = Some(Demotion {
            to,
            phase: Phase::Draining,
            admitted: false,
            left: Demoted::default(),
        });
        state.wake_fills();
        Next::Again
    }

    fn end_demotion(&self, glock: &Glock, state: &mut State) {
        state.demotion = None;
        state.hold.released(Instant::now());
        self.counters.demotions.fetch_add(1, Ordering::Relaxed);
        if !state.shrink {
            self.counters.hand_overs.note(glock.lock);
        }
    }

    pub(super) fn end_shrink(&self, state: &mut State) {
        if std::mem::replace(&mut state.shrink, false) {
            self.shrinks.done();
        }
    }

    fn call_ops(
        &self,
        glock: &Arc<Glock>,
        state: &mut MutexGuard<'_, State>,
        from: Mode,
        to: Mode,
    ) {
        let done = MutexGuard::unlocked(state, || self.ops.demote(glock.lock, from, to));
        let Some(demotion) = state.demotion.as_mut() else { return };
        if let Ok(done) = done {
            demotion.left = done;
            demotion.phase = Phase::Ready;
        } else {
            // The lock stays held for ever: others must not see what is not stable.
            tracing::error!(lock = %glock.lock, "demotion failed: this node withdraws");
            demotion.phase = Phase::Draining;
            MutexGuard::unlocked(state, || self.withdraw());
        }
    }

    /// Whether a demoter could do something about the lock now.
    pub(super) fn has_work(&self, state: &State) -> bool {
        let attended = state.attended();
        let unattended = !state.io
            && !attended
            && (state.look
                || state.pursuing()
                || state.dlock.timer().is_some_and(|at| at <= self.now()));
        let demotion = match state.demotion {
            None => state.visit.is_none() && (state.demand.is_some() || state.shrink),
            Some(d) => match d.phase {
                Phase::Calling => false,
                Phase::Draining => state.drained(d.to),
                Phase::Ready => !state.io,
                Phase::Releasing => !state.io && !state.dlock.is_giving(),
            },
        };
        unattended || demotion
    }

    /// All that is dirty made stable, for the end; several threads share the locks.
    pub(super) fn demote_share(&self, all: &Mutex<Vec<Arc<Glock>>>) -> bool {
        loop {
            let Some(glock) = all.lock().pop() else { return true };
            let mut state = glock.state.lock();
            let held = state.dlock.held();
            if held == Mode::Unlocked {
                continue;
            }
            // Keeps everybody out, fills included, until the process has gone.
            state.admit(held, Local::Exclusive);
            let done = MutexGuard::unlocked(&mut state, || {
                self.ops.demote(glock.lock, held, Mode::Unlocked)
            });
            if done.is_ok() {
                MutexGuard::unlocked(&mut state, || self.ops.forget(glock.lock));
            }
            state.end(held, Local::Exclusive);
            if done.is_err() {
                return false;
            }
        }
    }
}
