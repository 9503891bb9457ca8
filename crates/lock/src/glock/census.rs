//! What people want to know of locks: how each of them is, which go to and fro.

use std::collections::HashMap;

use braid_format::LockNo;
use parking_lot::Mutex;

use super::GlockView;
use super::core::{Core, Entry};

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

impl Core {
    /// A lock as it is now.
    pub(super) fn view_of(&self, entry: &Entry) -> GlockView {
        let state = entry.state.lock();
        let known = state.dlock().known();
        let waiters = known.into_iter().flat_map(|known| known.waiters.iter());
        GlockView {
            lock: entry.lock,
            held: state.dlock().held(),
            wanted: state.dlock().want(),
            users: state.users(),
            waiting: u32::try_from(state.waiters().count()).unwrap_or(u32::MAX),
            demoting: state.demoting(),
            holders: known.map_or_else(Vec::new, |known| known.holders.clone()),
            waiters: waiters.map(|waiter| (waiter.life, waiter.mode)).collect(),
            held_for: state.held_since().map(|since| self.now().saturating_sub(since)),
            hand_overs: self.counters.hand_overs.of(entry.lock),
        }
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
