//! The locks in memory, by number, in shards.
//!
//! Lock order: a shard's mutex, then a glock's. Nobody takes a shard's mutex with a glock's held.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_format::LockNo;
use parking_lot::Mutex;

use super::state::Glock;

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

type Map = HashMap<LockNo, Arc<Glock>, BuildHasherDefault<LockHasher>>;

#[derive(Default)]
struct Shard {
    map: Map,
    acquires: u64,
}

/// Its own cache line, so that threads on different locks do not meet.
#[repr(align(128))]
#[derive(Default)]
struct Aligned(Mutex<Shard>);

pub(super) struct Table {
    shards: Box<[Aligned]>,
    count: AtomicUsize,
}

impl Table {
    const SHARDS: usize = 256;

    pub(super) fn new() -> Self {
        Self {
            shards: (0..Self::SHARDS).map(|_| Aligned::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }
    fn shard(&self, lock: LockNo) -> &Mutex<Shard> {
        let mut hasher = LockHasher::default();
        hasher.write_u64(lock.0);
        let at = (hasher.finish() >> 7) as usize % Self::SHARDS;
        &self.shards.get(at).unwrap_or_else(|| unreachable!("modulo the number of shards")).0
    }
    /// The lock, for an acquisition; `make` makes it if it is not there.
    pub(super) fn get_or_insert(
        &self,
        lock: LockNo,
        make: impl FnOnce() -> Arc<Glock>,
    ) -> Arc<Glock> {
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
    pub(super) fn get(&self, lock: LockNo) -> Option<Arc<Glock>> {
        self.shard(lock).lock().map.get(&lock).cloned()
    }
    /// Takes `glock` out if it is idle.
    pub(super) fn remove_idle(&self, glock: &Arc<Glock>) {
        let mut shard = self.shard(glock.lock).lock();
        let mut state = glock.state.lock();
        let present = shard.map.get(&glock.lock).is_some_and(|found| Arc::ptr_eq(found, glock));
        if present && state.is_idle() {
            state.gone = true;
            shard.map.remove(&glock.lock);
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
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Glock>)) {
        for shard in &self.shards {
            let all: Vec<Arc<Glock>> = shard.0.lock().map.values().cloned().collect();
            all.iter().for_each(&mut visit);
        }
    }
}
