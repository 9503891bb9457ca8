//! Locks that programs have, and what they wait for: a server that was started anew is asked for them once more. Pure.

use std::collections::HashMap;

use braid_format::InodeNo;
use braid_fs::{LockAnswer, Plock, PlockKind};

/// Whose locks, on which file, and whether by flock(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Whose {
    /// The file.
    pub ino: InodeNo,
    /// The kernel's owner.
    pub owner: u64,
    /// By flock(2).
    pub whole: bool,
}

/// A program's wait.
pub struct ProgramWait {
    /// For this.
    pub whose: Whose,
    /// This one.
    pub lock: Plock,
    /// What hears of it.
    pub done: LockAnswer,
    /// The session in which the server knows of it; 0: it is just asked for.
    pub session: u64,
}

/// All of them.
#[derive(Default)]
pub struct Held {
    locks: HashMap<Whose, Vec<Plock>>,
    waits: HashMap<u64, ProgramWait>,
    last: u64,
    /// Locks to be given up when the server answers again. Until then they are held.
    late: Vec<(Whose, Plock)>,
    /// The last event of the session's that was heard of, behind the number of that session.
    pub seen: (u64, u64),
}

impl Held {
    /// Whether an owner has locks on a file.
    pub fn has(&self, whose: &Whose) -> bool {
        self.locks.contains_key(whose)
    }
    /// A lock is granted, or given up.
    pub fn set(&mut self, whose: Whose, lock: &Plock) {
        let lock = if whose.whole { Plock { start: 0, end: u64::MAX, ..*lock } } else { *lock };
        let locks = self.locks.entry(whose).or_default();
        let mut rest = Vec::with_capacity(locks.len() + 2);
        for old in locks.drain(..) {
            if old.end < lock.start || lock.end < old.start {
                rest.push(old);
                continue;
            }
            if old.start < lock.start {
                rest.push(Plock { end: lock.start - 1, ..old });
            }
            if old.end > lock.end {
                rest.push(Plock { start: lock.end + 1, ..old });
            }
        }
        if lock.kind != PlockKind::Unlock {
            rest.push(lock);
        }
        if rest.is_empty() {
            self.locks.remove(&whose);
        } else {
            *locks = rest;
        }
    }
    /// All locks of an owner on a file are gone.
    pub fn drop_all(&mut self, whose: &Whose) {
        self.locks.remove(whose);
    }
    /// All locks.
    pub fn all(&self) -> Vec<(Whose, Plock)> {
        let each = |(whose, locks): (&Whose, &Vec<Plock>)| {
            locks.iter().map(|lock| (*whose, *lock)).collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(each).collect()
    }

    /// An owner has given up what the server has to be told of later.
    pub fn give_up_later(&mut self, whose: Whose, lock: Plock) {
        if !self.late.contains(&(whose, lock)) {
            self.late.push((whose, lock));
        }
    }
    /// The first of what the server has to be told of; of one owner, if only he counts.
    pub fn first_late(&self, of: Option<&Whose>) -> Option<(Whose, Plock)> {
        self.late.iter().find(|(whose, _)| of.is_none_or(|of| of == whose)).copied()
    }
    /// The server knows that this was given up.
    pub fn is_given_up(&mut self, late: &(Whose, Plock)) {
        self.late.retain(|other| other != late);
    }

    /// A program is about to wait: the number of its wait.
    pub fn begin_wait(&mut self, wait: ProgramWait) -> u64 {
        self.last += 1;
        self.waits.insert(self.last, wait);
        self.last
    }
    /// A wait is over. `None`: it was already.
    pub fn end_wait(&mut self, number: u64) -> Option<ProgramWait> {
        self.waits.remove(&number)
    }
    /// Whether a program waits still.
    pub fn is_waited_for(&self, number: u64) -> bool {
        self.waits.contains_key(&number)
    }
    /// The server knows of a wait in that session.
    pub fn asked(&mut self, number: u64, session: u64) {
        if let Some(wait) = self.waits.get_mut(&number) {
            wait.session = session;
        }
    }
    /// Whether the server knows of a wait in that session.
    pub fn is_known_in(&self, number: u64, session: u64) -> bool {
        self.waits.get(&number).is_some_and(|wait| wait.session == session)
    }
    /// Waits of which the server does not know in that session, because it did in another.
    pub fn unknown_in(&self, session: u64) -> Vec<(u64, Whose, Plock)> {
        let unknown = self.waits.iter().filter(|(_, w)| w.session != 0 && w.session != session);
        unknown.map(|(number, wait)| (*number, wait.whose, wait.lock)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_in_the_middle_is_given_up() {
        let mut held = Held::default();
        let whose = Whose { ino: InodeNo(7), owner: 1, whole: false };
        let lock = |start, end, kind| Plock { start, end, kind, owner: 1, pid: 0, uid: 0 };
        held.set(whose, &lock(0, 99, PlockKind::Exclusive));
        held.set(whose, &lock(10, 19, PlockKind::Unlock));
        held.set(whose, &lock(90, u64::MAX, PlockKind::Shared));
        let mut ranges: Vec<_> = held.all().iter().map(|(_, l)| (l.start, l.end, l.kind)).collect();
        ranges.sort_by_key(|range| range.0);
        let (mine, all) = (PlockKind::Exclusive, PlockKind::Shared);
        assert_eq!(ranges, [(0, 9, mine), (20, 89, mine), (90, u64::MAX, all)]);
        held.set(whose, &lock(0, u64::MAX, PlockKind::Unlock));
        assert!(!held.has(&whose));
    }
}
