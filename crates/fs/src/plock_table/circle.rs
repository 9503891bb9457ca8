//! Circles of waiters: owners of fcntl locks each of whom waits for the next. Pure.

use std::collections::{HashMap, HashSet};

use super::table::{Lock, Owner, Table};

/// Owners that are followed from one waiter. A circle through more of them is not found, as on Linux
/// (where it is 10).
const OWNERS_MAX: usize = 4096;

/// What a search may cost: so many owners of locks are looked at, each time that one of them is. Whoever can make
/// others search (by many waits on many locks of one file) must not make them wait. A circle that it does not
/// come to is not found.
#[derive(Debug)]
pub(crate) struct Budget(usize);

impl Budget {
    /// For a request that is being served: about a millisecond.
    pub const fn of_request() -> Self {
        Self(20_000)
    }
    /// For a search that nobody waits for: about 0.2 s.
    pub const fn of_search() -> Self {
        Self(4_000_000)
    }
    /// Whether there is so much left; it is then spent.
    pub fn spend(&mut self, owners: usize) -> bool {
        let left = self.0.checked_sub(owners);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

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
pub(crate) fn would_close(
    held: &[&Table],
    waiting: &[&Waiting],
    want: &Lock,
    budget: &mut Budget,
) -> bool {
    waits_for(held, waiting, want, want.owner, budget)
}

/// Whether the owner that asks for `want` waits for `whom`: for a lock that `whom` holds, or for
/// another owner who waits for `whom`.
pub(crate) fn waits_for(
    held: &[&Table],
    waiting: &[&Waiting],
    want: &Lock,
    whom: Owner,
    budget: &mut Budget,
) -> bool {
    let mut blockers = |want: &Lock, todo: &mut Vec<Owner>| {
        for table in held {
            if !budget.spend(1 + table.owners(want.ino)) {
                return false;
            }
            todo.extend(table.blockers(want).take(OWNERS_MAX));
        }
        true
    };
    let mut seen = HashSet::new();
    let mut todo = Vec::new();
    if !blockers(want, &mut todo) {
        return false;
    }
    while let Some(owner) = todo.pop() {
        if owner == whom {
            return true;
        }
        if seen.len() == OWNERS_MAX || todo.len() > 4 * OWNERS_MAX {
            return false;
        }
        if seen.insert(owner) {
            let mut waits = waiting.iter().flat_map(|w| w.of(owner));
            if !waits.all(|waits| blockers(waits, &mut todo)) {
                return false;
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
        let closes = |waits: [&Waiting; 2], want| {
            would_close(&tables, &waits, &want, &mut Budget::of_request())
        };
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

    #[test]
    fn a_search_costs_no_more_than_its_budget() {
        // Layers of owners, each of whom waits for all of the layer below.
        let (layers, each) = (30, 110);
        let (mut held, mut waiting) = (Table::default(), Waiting::default());
        for layer in 0..layers {
            for n in 0..each {
                let id = layer * 1000 + n;
                held.insert(lock(id, layer, layer, false));
                if layer > 0 {
                    waiting.add(lock(id, layer - 1, layer - 1, true));
                }
            }
        }
        let want = lock(99_999, layers - 1, layers - 1, true);
        let mut budget = Budget(usize::MAX);
        assert!(!would_close(&[&held], &[&waiting], &want, &mut budget));
        let owners = usize::try_from(layers * each).unwrap();
        assert!(usize::MAX - budget.0 > owners * owners / 2, "it is what it is to bound");
        let mut budget = Budget::of_request();
        let whom = held.iter().next().unwrap().owner;
        assert!(!waits_for(&[&held], &[&waiting], &want, whom, &mut budget));
        assert_eq!(budget.0, 0);
    }
}
