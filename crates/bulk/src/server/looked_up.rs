//! Inodes that clients have looked up a moment ago.
//!
//! If a program opens a file, its kernel has the client look the name up, and then open by number what that has led to.
//! If the file is replaced in between, its inode must still be there, as on a node, where the kernel refers to it. So a
//! file that a lookup has found is referred to until the client has opened it, for a moment at most. Not if the client
//! itself takes the name away: then its kernel knows, and the inode would be freed later than it has to be.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use parking_lot::Mutex;

use crate::wire::SessionId;

/// So long they stay. A program that is stopped for longer may get ESTALE.
const STAY: Duration = Duration::from_secs(1);
/// Most of them; those that came first go first.
const MOST: usize = 4096;

/// Inodes, each with one reference.
#[derive(Debug, Default)]
pub struct LookedUp {
    hasher: RandomState,
    /// In the order of their times.
    all: Mutex<VecDeque<One>>,
}

#[derive(Debug)]
struct One {
    ino: InodeNo,
    since: Instant,
    session: SessionId,
    /// Directory and name, hashed.
    name: u64,
}

impl LookedUp {
    /// Takes over a reference. Gives back one that is too many.
    pub fn keep(
        &self,
        ino: InodeNo,
        session: SessionId,
        (dir, name): (InodeNo, &[u8]),
    ) -> Option<InodeNo> {
        let name = self.hasher.hash_one((dir, name));
        let mut all = self.all.lock();
        all.push_back(One { ino, since: Instant::now(), session, name });
        let first = (all.len() > MOST).then(|| all.pop_front());
        first.flatten().map(|one| one.ino)
    }
    /// Gives back those whose time is over at `now`.
    pub fn take_old(&self, now: Instant) -> Vec<InodeNo> {
        let mut all = self.all.lock();
        let old = all.partition_point(|one| now.saturating_duration_since(one.since) >= STAY);
        all.drain(..old).map(|one| one.ino).collect()
    }
    /// Gives back those that a client has found by a name that it is about to take away.
    pub fn take_named(&self, session: SessionId, (dir, name): (InodeNo, &[u8])) -> Vec<InodeNo> {
        let name = self.hasher.hash_one((dir, name));
        self.take_if(|one| one.name == name && one.session == session)
    }
    fn take_if(&self, is_it: impl Fn(&One) -> bool) -> Vec<InodeNo> {
        let mut found = Vec::new();
        self.all.lock().retain(|one| {
            let is_it = is_it(one);
            found.extend(is_it.then_some(one.ino));
            !is_it
        });
        found
    }
    /// Gives those back that a client has opened: the open file keeps the inode.
    pub fn take_opened(&self, session: SessionId, ino: InodeNo) -> Vec<InodeNo> {
        self.take_if(|one| one.ino == ino && one.session == session)
    }
    /// Whether a client is about to open it, as far as is known.
    pub fn holds(&self, ino: InodeNo) -> bool {
        self.all.lock().iter().any(|one| one.ino == ino)
    }
    /// Gives all back.
    pub fn take_all(&self) -> Vec<InodeNo> {
        std::mem::take(&mut *self.all.lock()).into_iter().map(|one| one.ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_up_stays_for_a_while_or_until_the_client_takes_its_name_away() {
        let looked_up = LookedUp::default();
        let (dir, a, b) = (InodeNo(1), [0; 16], [1; 16]);
        for (ino, session, name) in [(5, a, b"x"), (5, b, b"x"), (6, a, b"y")] {
            assert_eq!(looked_up.keep(InodeNo(ino), session, (dir, name)), None);
        }
        let now = Instant::now();
        assert_eq!(looked_up.take_old(now), []);
        assert_eq!(looked_up.take_named(a, (InodeNo(2), b"x")), []);
        assert_eq!(looked_up.take_named(a, (dir, b"x")), [InodeNo(5)]);
        assert_eq!(looked_up.take_opened(a, InodeNo(5)), []);
        assert!(looked_up.holds(InodeNo(5)));
        assert_eq!(looked_up.take_old(now + STAY), [InodeNo(5), InodeNo(6)]);
        assert!(!looked_up.holds(InodeNo(5)));
        for n in 0..MOST as u64 {
            assert_eq!(looked_up.keep(InodeNo(n), a, (dir, b"z")), None);
        }
        assert_eq!(looked_up.keep(InodeNo(7), a, (dir, b"z")), Some(InodeNo(0)));
        assert_eq!(looked_up.take_all().len(), MOST);
    }
}
