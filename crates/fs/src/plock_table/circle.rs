//! Circles of waiters: owners of fcntl locks each of whom waits for the next. Pure.

use std::collections::{HashMap, HashSet};

use super::table::{Lock, Owner, Table};

/// Owners that are followed from one waiter. A circle through more of them is not found, as on Linux
/// (where it is 10).
const OWNERS_MAX: usize = 4096;

/// An owner, and the lock that it waits for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(HashMap<Owner, Vec<Lock>>);

impl Waiting {
    pub fn add(&mut self, lock: Lock) {
        self.0.entry(lock.owner).or_default().push(lock);
    }
    pub fn remove(&mut self, lock: &Lock) {
        let Some(locks) = self.0.get_mut(&lock.owner) else { return };
        if let Some(at) = locks.iter().position(|l| l == lock) {
            locks.swap_remove(at);
        }
        if locks.is_empty() {
            self.0.remove(&lock.owner);
        }
    }
    pub fn of(&self, owner: Owner) -> &[Lock] {
        self.0.get(&owner).map_or(&[], Vec::as_slice)
    }
}

/// Whether waiting for `want` would close a circle, as far as these tables and waits show.
pub(crate) fn would_close(held: &[&Table], waiting: &[&Waiting], want: &Lock) -> bool {
    waits_for(held, waiting, want, want.owner)
}

/// Whether the owner that asks for `want` waits for `whom`: for a lock that `whom` holds, or for
/// another owner who waits for `whom`.
pub(crate) fn waits_for(held: &[&Table], waiting: &[&Waiting], want: &Lock, whom: Owner) -> bool {
    let blockers = |want: &Lock, todo: &mut Vec<Owner>| {
        for table in held {
            todo.extend(table.blockers(want).take(OWNERS_MAX));
        }
    };
    let mut seen = HashSet::new();
    let mut todo = Vec::new();
    blockers(want, &mut todo);
    while let Some(owner) = todo.pop() {
        if owner == whom {
            return true;
        }
        if seen.len() == OWNERS_MAX || todo.len() > 4 * OWNERS_MAX {
            return false;
        }
        if seen.insert(owner) {
            for waits in waiting.iter().flat_map(|w| w.of(owner)) {
                blockers(waits, &mut todo);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use braid_format::{Incarnation, InodeNo, NodeId};
    use braid_lock::Life;

    use super::*;

    fn lock(id: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        let node = Life { slot: NodeId(1), incarnation: Incarnation(1) };
        let owner = Owner { node, id, flock: false };
        Lock { ino: InodeNo(5), start, end, owner, pid: 1, exclusive }
    }

    #[test]
    fn circles_of_waiters_are_seen() {
        let (mut mine, mut others) = (Table::default(), Table::default());
        mine.insert(lock(1, 1, 1, true));
        others.insert(lock(2, 2, 2, true));
        others.insert(lock(3, 3, 3, true));
        let (mut here, mut there) = (Waiting::default(), Waiting::default());
        let tables = [&mine, &others];
        let closes = |waits: [&Waiting; 2], want| would_close(&tables, &waits, &want);
        assert!(!closes([&here, &there], lock(1, 2, 2, true)));
        here.add(lock(1, 2, 2, true));
        assert!(closes([&here, &there], lock(2, 1, 1, true)));
        assert!(!closes([&here, &there], lock(2, 3, 3, true)));
        there.add(lock(2, 3, 3, true));
        assert!(closes([&here, &there], lock(3, 1, 1, false)));
        assert!(!closes([&here, &there], lock(4, 1, 3, true)));
        there.remove(&lock(2, 3, 3, true));
        assert!(!closes([&here, &there], lock(3, 1, 1, false)));
    }
}
