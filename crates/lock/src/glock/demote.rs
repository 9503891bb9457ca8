//! The demoters: threads that look at records others ask about and give locks up.
//!
//! A demoter never waits for users: the last user to leave puts the lock back into the queue.
//! `GlockOps::demote` runs without any mutex of this crate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use braid_format::LockNo;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::step::Event;
use super::table::Entry;
use super::{Core, DemotionWaits, Local};
use crate::Mode;

/// Locks to visit.
#[derive(Default)]
pub(super) struct Work {
    queue: Mutex<Queue>,
    condition: Condvar,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Entry>>,
    timed: BinaryHeap<Reverse<Timed>>,
    stop: bool,
}

struct Timed(Instant, Arc<Entry>);
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
    pub(super) fn push(&self, entry: Arc<Entry>) {
        self.queue.lock().ready.push_back(entry);
        self.condition.notify_one();
    }
    pub(super) fn push_at(&self, at: Instant, entry: Arc<Entry>) {
        self.queue.lock().timed.push(Reverse(Timed(at, entry)));
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
    fn next(&self) -> Option<Arc<Entry>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(Reverse(Timed(at, _))) = queue.timed.peek() {
                let at = *at;
                if at <= Instant::now()
                    && let Some(Reverse(Timed(_, entry))) = queue.timed.pop()
                {
                    return Some(entry);
                }
                if let Some(entry) = queue.ready.pop_front() {
                    return Some(entry);
                }
                self.condition.wait_until(&mut queue, at);
            } else if let Some(entry) = queue.ready.pop_front() {
                return Some(entry);
            } else {
                self.condition.wait(&mut queue);
            }
        }
    }
}

impl Core {
    /// A demoter's life.
    pub(super) fn demoter(&self, work: &Work) {
        while let Some(entry) = work.next() {
            self.visit(&entry);
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

    pub(super) fn visit(&self, entry: &Arc<Entry>) {
        let mut state = entry.state.lock();
        let ran = self.run(entry, &mut state, Event::Visit);
        let many = self.table.count() > self.options.locks_max / 2;
        let leaves = state.is_idle() && (ran.released || many);
        drop(state);
        if leaves {
            self.table.remove_idle(entry);
        }
        if ran.released {
            self.shrinks.done();
        }
    }

    /// All that is dirty made stable, for the end; several threads share the locks.
    pub(super) fn demote_share(&self, all: &Mutex<Vec<Arc<Entry>>>) -> bool {
        loop {
            let Some(entry) = all.lock().pop() else { return true };
            let mut state = entry.state.lock();
            let held = state.dlock().held();
            if held == Mode::Unlocked {
                continue;
            }
            // Keeps everybody out, fills included, until the process has gone.
            let alone = state.admit(held, Local::Exclusive);
            let done = MutexGuard::unlocked(&mut state, || {
                self.ops.demote(entry.lock, held, Mode::Unlocked)
            });
            if done.is_ok() {
                MutexGuard::unlocked(&mut state, || self.ops.forget(entry.lock));
            }
            state.end(&alone);
            if done.is_err() {
                return false;
            }
        }
    }
}
