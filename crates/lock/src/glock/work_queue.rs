//! The queue of what demoters visit: at once, in turn, or when its time has come.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::simulation;

/// Locks to visit.
pub(super) struct WorkQueue<E> {
    queue: Mutex<Queue<E>>,
    condition: Condvar,
}

struct Queue<E> {
    ready: VecDeque<Arc<E>>,
    timed: BinaryHeap<Reverse<Timed<E>>>,
    stop: bool,
}

struct Timed<E>(Instant, Arc<E>);
impl<E> PartialEq for Timed<E> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<E> Eq for Timed<E> {}
impl<E> PartialOrd for Timed<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Timed<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<E> WorkQueue<E> {
    pub(super) fn new() -> Self {
        let queue = Queue { ready: VecDeque::new(), timed: BinaryHeap::new(), stop: false };
        Self { queue: Mutex::new(queue), condition: Condvar::new() }
    }
    pub(super) fn push(&self, entry: Arc<E>) {
        self.queue.lock().ready.push_back(entry);
        self.condition.notify_one();
    }
    pub(super) fn push_at(&self, at: Instant, entry: Arc<E>) {
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
    /// The next lock to visit, if there is one now.
    pub(super) fn next_due(&self) -> Option<Arc<E>> {
        let mut queue = self.queue.lock();
        if queue.stop {
            return None;
        }
        let due = queue.timed.peek().is_some_and(|Reverse(timed)| timed.0 <= simulation::now());
        let timed = if due { queue.timed.pop() } else { None };
        timed.map(|Reverse(timed)| timed.1).or_else(|| queue.ready.pop_front())
    }
    /// When there is one to visit, as far as is known.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let queue = self.queue.lock();
        if queue.stop {
            return None;
        }
        let timed = queue.timed.peek().map(|Reverse(timed)| timed.0);
        if queue.ready.is_empty() { timed } else { Some(simulation::now()) }
    }
    /// The next lock to visit; waits. `None`: stop.
    pub(super) fn next(&self) -> Option<Arc<E>> {
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
