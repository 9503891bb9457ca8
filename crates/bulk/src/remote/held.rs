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
    /// What hears of it; `None`: the program has gone on, and the server is to be told.
    pub done: Option<LockAnswer>,
    /// The session in which the server knows of it; 0: it is just asked for.
    pub session: u64,
    /// The session in which the server was told that nobody waits any more; 0: none.
    pub ended_in: u64,
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
    /// A wait is over, and the lock `granted`, or not. `None`: it was already. A lock that nobody takes any more is to be
    /// given up, unless its owner has got it, or asked for it, by now.
    pub fn end_wait(&mut self, number: u64, granted: bool) -> Option<ProgramWait> {
        let ended = self.waits.remove(&number)?;
        let (whose, lock) = (ended.whose, ended.lock);
        if granted && ended.done.is_some() {
            self.set(whose, &lock);
        } else if granted {
            let meets = |other: &Plock| other.start <= lock.end && lock.start <= other.end;
            let is_had = self.locks.get(&whose).is_some_and(|all| all.iter().any(meets));
            let mut waits = self.waits.values();
            if !is_had && !waits.any(|wait| wait.whose == whose && meets(&wait.lock)) {
                self.give_up_later(whose, Plock { kind: PlockKind::Unlock, ..lock });
            }
        }
        Some(ended)
    }
    /// A program waits no more: what hears of it.
    pub fn abandon(&mut self, number: u64) -> Option<LockAnswer> {
        self.waits.get_mut(&number)?.done.take()
    }
    /// Waits that the server knows of, and of which it does not know that they were abandoned.
    pub fn abandoned(&self) -> Vec<u64> {
        let is_new =
            |w: &ProgramWait| w.done.is_none() && w.session != 0 && w.ended_in != w.session;
        self.waits.iter().filter(|(_, wait)| is_new(wait)).map(|(number, _)| *number).collect()
    }
    /// The server was told in that session that a wait was abandoned. Whether it knows of that wait there.
    pub fn is_told(&mut self, number: u64, session: u64) -> bool {
        let wait = self.waits.get_mut(&number).filter(|wait| wait.session == session);
        wait.map(|wait| wait.ended_in = session).is_some()
    }
    /// The server knows of a wait in that session. Whether a program waits still.
    pub fn asked(&mut self, number: u64, session: u64) -> bool {
        let wait = self.waits.get_mut(&number);
        wait.is_none_or(|wait| {
            wait.session = session;
            wait.done.is_some()
        })
    }
    /// Waits of which the server does not know in that session, because it did in another. `None`: abandoned.
    pub fn unknown_in(&self, session: u64) -> Vec<(u64, Option<(Whose, Plock)>)> {
        let unknown = self.waits.iter().filter(|(_, w)| w.session != 0 && w.session != session);
        let what = |wait: &ProgramWait| wait.done.is_some().then_some((wait.whose, wait.lock));
        unknown.map(|(number, wait)| (*number, what(wait))).collect()
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

    #[test]
    fn a_lock_that_nobody_takes_any_more_is_given_up_unless_its_owner_wants_it_again() {
        let mut held = Held::default();
        let whose = Whose { ino: InodeNo(7), owner: 1, whole: false };
        let lock = Plock { start: 5, end: 9, kind: PlockKind::Exclusive, owner: 1, pid: 0, uid: 0 };
        let wait = |held: &mut Held| {
            let done: Option<LockAnswer> = Some(Box::new(|_| ()));
            let number =
                held.begin_wait(ProgramWait { whose, lock, done, session: 0, ended_in: 0 });
            assert!(held.asked(number, 3));
            number
        };
        let first = wait(&mut held);
        assert!(held.abandoned().is_empty() && held.abandon(first).is_some());
        assert_eq!(held.abandoned(), [first]);
        assert!(held.is_told(first, 3) && !held.is_told(first, 4) && held.abandoned().is_empty());
        assert!(held.end_wait(first, true).is_some_and(|ended| ended.done.is_none()));
        let late = held.first_late(None).unwrap();
        assert_eq!((late.1.kind, held.has(&whose)), (PlockKind::Unlock, false));
        held.is_given_up(&late);
        let (first, again) = (wait(&mut held), wait(&mut held));
        assert!(held.abandon(first).is_some() && held.end_wait(first, true).is_some());
        assert!(held.first_late(None).is_none(), "it waits again");
        assert!(held.end_wait(again, true).is_some() && held.has(&whose));
        let third = wait(&mut held);
        assert!(held.abandon(third).is_some() && held.end_wait(third, true).is_some());
        assert!(held.first_late(None).is_none() && held.has(&whose), "it has it");
        let fourth = wait(&mut held);
        assert!(held.abandon(fourth).is_some() && held.end_wait(fourth, false).is_some());
        assert_eq!(held.unknown_in(4).len(), 0);
    }
}
