//! What people want to know of locks: which go to and fro.

use std::collections::HashMap;

use braid_format::LockNo;
use parking_lot::Mutex;

/// Locks whose hand-overs are counted; beyond it all counts are halved, and those that are 0 go.
const HOT_MAX: usize = 4096;

/// How often locks were given up because other nodes wanted them.
#[derive(Debug, Default)]
pub(super) struct HandOvers(Mutex<HashMap<LockNo, u64>>);

impl HandOvers {
    pub(super) fn note(&self, lock: LockNo) {
        let mut all = self.0.lock();
        if all.len() >= HOT_MAX && !all.contains_key(&lock) {
            all.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        *all.entry(lock).or_insert(0) += 1;
    }
    pub(super) fn of(&self, lock: LockNo) -> u64 {
        self.0.lock().get(&lock).copied().unwrap_or(0)
    }
    /// The locks with the most, most first.
    pub(super) fn hottest(&self, most: usize) -> Vec<(LockNo, u64)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(lock, count)| (*lock, *count)).collect();
        all.sort_unstable_by_key(|(lock, count)| (std::cmp::Reverse(*count), *lock));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_locks_outlast_many_others() {
        let all = HandOvers::default();
        for n in 0..10_000 {
            all.note(LockNo(7));
            all.note(LockNo(1000 + n));
        }
        assert_eq!(all.hottest(1)[0].0, LockNo(7));
        assert!(all.of(LockNo(7)) > 100 && all.hottest(usize::MAX).len() <= HOT_MAX);
    }
}
