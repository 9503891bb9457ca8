//! The locks in memory, by number, in shards.
//!
//! Lock order: a shard's mutex, then an entry's. Nobody takes a shard's mutex with an entry's held.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_format::LockNo;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::state::{Admission, Glock};
use crate::error::LockError;
use crate::simulation;

/// A lock in the table, with what it is a lock of (`C`: the manager's core).
pub(super) struct Entry<C> {
    pub(super) lock: LockNo,
    pub(super) core: Weak<C>,
    pub(super) state: Mutex<State>,
}
impl<C> Entry<C> {
    pub(super) fn new(lock: LockNo, core: Weak<C>) -> Self {
        let state = State { glock: Glock::new(lock), gone: false, used: 0 };
        Self { lock, core, state: Mutex::new(state) }
    }
}

/// The lock itself, and what the table keeps beside it.
pub(super) struct State {
    glock: Glock<Thread>,
    /// No longer in the table.
    pub(super) gone: bool,
    /// Tick of the last use.
    pub(super) used: u32,
}
impl Deref for State {
    type Target = Glock<Thread>;
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.glock
    }
}
impl DerefMut for State {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.glock
    }
}

/// A thread that waits for a lock. It sleeps under the mutex of that lock's [`Entry`].
#[derive(Clone, Default)]
pub(super) struct Thread(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    condition: Condvar,
    answer: Mutex<Option<Result<Admission, LockError>>>,
}

impl PartialEq for Thread {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Thread {
    /// Wakes it with its answer.
    pub(super) fn reply(&self, answer: Result<Admission, LockError>) {
        *self.0.answer.lock() = Some(answer);
        self.wake();
    }
    pub(super) fn wake(&self) {
        self.0.condition.notify_one();
    }
    /// Takes the answer, if there is one.
    pub(super) fn answer(&self) -> Option<Result<Admission, LockError>> {
        self.0.answer.lock().take()
    }
    pub(super) fn is_answered(&self) -> bool {
        self.0.answer.lock().is_some()
    }
    /// Sleeps until it is woken, at most until then.
    pub(super) fn sleep(&self, state: &mut MutexGuard<'_, State>, until: Option<Instant>) {
        if simulation::is_simulated() {
            // What it waits for is asked again, woken or not.
            return MutexGuard::unlocked(state, || simulation::pause(Duration::ZERO));
        }
        match until {
            Some(at) => drop(self.0.condition.wait_until(state, at)),
            None => self.0.condition.wait(state),
        }
    }
}

/// Lock numbers are block numbers: one multiplication spreads them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LockHasher(u64);
impl Hasher for LockHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

type Map<C> = HashMap<LockNo, Arc<Entry<C>>, BuildHasherDefault<LockHasher>>;

struct Shard<C> {
    map: Map<C>,
    acquires: u64,
}

/// Its own cache line, so that threads on different locks do not meet.
#[repr(align(128))]
struct Aligned<C>(Mutex<Shard<C>>);

pub(super) struct Table<C> {
    shards: Box<[Aligned<C>]>,
    count: AtomicUsize,
}

impl<C> Table<C> {
    const SHARDS: usize = 256;

    pub(super) fn new() -> Self {
        let shard = |_| Aligned(Mutex::new(Shard { map: Map::default(), acquires: 0 }));
        Self { shards: (0..Self::SHARDS).map(shard).collect(), count: AtomicUsize::new(0) }
    }
    fn shard(&self, lock: LockNo) -> &Mutex<Shard<C>> {
        let mut hasher = LockHasher::default();
        hasher.write_u64(lock.0);
        let at = (hasher.finish() >> 7) as usize % Self::SHARDS;
        &self.shards.get(at).unwrap_or_else(|| unreachable!("modulo the number of shards")).0
    }
    /// The lock, for an acquisition; `make` makes it if it is not there.
    pub(super) fn get_or_insert(
        &self,
        lock: LockNo,
        make: impl FnOnce() -> Arc<Entry<C>>,
    ) -> Arc<Entry<C>> {
        let mut shard = self.shard(lock).lock();
        shard.acquires += 1;
        if let Some(found) = shard.map.get(&lock) {
            return found.clone();
        }
        let new = make();
        shard.map.insert(lock, new.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        new
    }
    pub(super) fn get(&self, lock: LockNo) -> Option<Arc<Entry<C>>> {
        self.shard(lock).lock().map.get(&lock).cloned()
    }
    /// Takes `entry` out if it is idle.
    pub(super) fn remove_idle(&self, entry: &Arc<Entry<C>>) {
        let mut shard = self.shard(entry.lock).lock();
        let mut state = entry.state.lock();
        let present = shard.map.get(&entry.lock).is_some_and(|found| Arc::ptr_eq(found, entry));
        if present && state.is_idle() {
            state.gone = true;
            shard.map.remove(&entry.lock);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
    pub(super) fn acquires(&self) -> u64 {
        self.shards.iter().map(|s| s.0.lock().acquires).sum()
    }
    /// All locks, one shard at a time; `visit` runs without a shard's mutex.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Entry<C>>)) {
        for shard in &self.shards {
            let all: Vec<Arc<Entry<C>>> = shard.0.lock().map.values().cloned().collect();
            all.iter().for_each(&mut visit);
        }
    }
}
