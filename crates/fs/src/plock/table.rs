//! The locks in one bucket, and the arithmetic of byte ranges. Pure.
//!
//! A range is a first and a last byte, both inclusive, so that "to the end" needs no special case.
//! Locks of one owner on one file never overlap and are joined where they touch and agree. fcntl
//! and flock locks do not see each other, as on Linux.

use braid_format::plock::{RawPlock, RawPlockBucket};
use braid_format::{Incarnation, InodeNo, NodeId};
use braid_lock::Me;
use zerocopy::{FromBytes, IntoBytes};

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    /// The node it lives on.
    pub node: Me,
    /// The kernel's lock owner there.
    pub id: u64,
    /// flock rather than fcntl.
    pub flock: bool,
}

/// A lock held, or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lock {
    pub ino: InodeNo,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    pub owner: Owner,
    pub pid: u32,
    pub exclusive: bool,
}

impl Lock {
    fn overlaps(&self, other: &Self) -> bool {
        self.ino == other.ino && self.start <= other.end && other.start <= self.end
    }
    /// Whether a holder of `self` keeps `other` from being granted.
    fn blocks(&self, other: &Self) -> bool {
        self.overlaps(other)
            && self.owner != other.owner
            && self.owner.flock == other.owner.flock
            && (self.exclusive || other.exclusive)
    }
}

/// A bucket's contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub held: Vec<Lock>,
    pub waiting: Vec<Lock>,
}

const FLOCK: u32 = 1;
const WAITING: u32 = 2;
const HEAD: usize = size_of::<RawPlockBucket>();
const ENTRY: usize = size_of::<RawPlock>();

impl Table {
    /// How many entries a bucket of `body_len` bytes holds.
    pub fn capacity(body_len: usize) -> usize {
        body_len.saturating_sub(HEAD) / ENTRY
    }
    /// Entries in use.
    pub fn len(&self) -> usize {
        self.held.len() + self.waiting.len()
    }

    /// From a bucket's body; locks of nodes that are not `live` are left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8], live: &dyn Fn(Me) -> bool) -> Result<Self, &'static str> {
        let (head, rest) = RawPlockBucket::ref_from_prefix(body).map_err(|_| "bucket too short")?;
        let count = usize::try_from(head.count.get()).map_err(|_| "count of program locks")?;
        let bytes = count
            .checked_mul(ENTRY)
            .and_then(|len| rest.get(..len))
            .ok_or("count of program locks")?;
        let raws = <[RawPlock]>::ref_from_bytes(bytes).map_err(|_| "count of program locks")?;
        let mut table = Self::default();
        for raw in raws {
            let exclusive = match raw.mode.get() {
                1 => false,
                2 => true,
                _ => return Err("mode of a program lock"),
            };
            let (start, end) = (raw.start.get(), raw.end.get());
            if start > end {
                return Err("range of a program lock");
            }
            let node = Me {
                slot: NodeId(raw.slot.get()),
                incarnation: Incarnation(raw.incarnation.get()),
            };
            if !live(node) {
                continue;
            }
            let flock = raw.flags.get() & FLOCK != 0;
            let owner = Owner { node, id: raw.owner.get(), flock };
            let ino = InodeNo(raw.inode.get());
            let lock = Lock { ino, start, end, owner, pid: raw.pid.get(), exclusive };
            if raw.flags.get() & WAITING != 0 {
                table.waiting.push(lock);
            } else {
                table.held.push(lock);
            }
        }
        Ok(table)
    }
    /// Into a bucket's body. The entries fit.
    pub fn encode(&self, body: &mut [u8]) {
        let Some((head, rest)) = body.split_at_mut_checked(HEAD) else { return };
        if let Some(count) = head.get_mut(HEAD - size_of::<u64>()..) {
            count.copy_from_slice(&(self.len() as u64).to_le_bytes());
        }
        rest.fill(0);
        let all = self.held.iter().map(|l| (l, 0)).chain(self.waiting.iter().map(|l| (l, WAITING)));
        for (to, (lock, waiting)) in rest.chunks_exact_mut(ENTRY).zip(all) {
            let raw = RawPlock {
                inode: lock.ino.get().into(),
                start: lock.start.into(),
                end: lock.end.into(),
                owner: lock.owner.id.into(),
                pid: lock.pid.into(),
                incarnation: lock.owner.node.incarnation.get().into(),
                slot: lock.owner.node.slot.get().into(),
                mode: if lock.exclusive { 2 } else { 1 }.into(),
                flags: (waiting | if lock.owner.flock { FLOCK } else { 0 }).into(),
            };
            to.copy_from_slice(raw.as_bytes());
        }
    }

    /// The first held lock (lowest start) that keeps `want` from being granted.
    pub fn conflict(&self, want: &Lock) -> Option<&Lock> {
        self.held.iter().filter(|l| l.blocks(want)).min_by_key(|l| l.start)
    }
    /// Takes `owner`'s locks off a range of a file, splitting what reaches over its ends.
    pub fn clear(&mut self, ino: InodeNo, owner: Owner, start: u64, end: u64) {
        let mut kept = Vec::with_capacity(self.held.len() + 1);
        for lock in self.held.drain(..) {
            let apart = lock.end < start || lock.start > end;
            if lock.ino != ino || lock.owner != owner || apart {
                kept.push(lock);
                continue;
            }
            if lock.start < start {
                kept.push(Lock { end: start - 1, ..lock });
            }
            if lock.end > end {
                kept.push(Lock { start: end + 1, ..lock });
            }
        }
        self.held = kept;
    }
    /// Grants `want`, in place of what its owner held there; joins it with its neighbours.
    pub fn grant(&mut self, want: Lock) {
        self.clear(want.ino, want.owner, want.start, want.end);
        let mut joined = want;
        self.held.retain(|l| {
            let same = l.ino == want.ino && l.owner == want.owner && l.exclusive == want.exclusive;
            let touches = l.end.checked_add(1) == Some(want.start)
                || want.end.checked_add(1) == Some(l.start);
            if same && touches {
                joined.start = joined.start.min(l.start);
                joined.end = joined.end.max(l.end);
            }
            !(same && touches)
        });
        self.held.push(joined);
    }
    /// Forgets that `owner` waits for a lock on `ino`.
    pub fn stop_waiting(&mut self, ino: InodeNo, owner: Owner) {
        self.waiting.retain(|l| l.ino != ino || l.owner != owner);
    }
    /// Whether waiting for `want` would close a circle of owners each waiting for the next, as far
    /// as this table shows.
    pub fn would_deadlock(&self, want: &Lock) -> bool {
        let mut seen: Vec<Owner> = Vec::new();
        let mut todo: Vec<Owner> = self.blockers(want).collect();
        while let Some(owner) = todo.pop() {
            if owner == want.owner {
                return true;
            }
            if seen.contains(&owner) {
                continue;
            }
            seen.push(owner);
            for waits in self.waiting.iter().filter(|w| w.owner == owner) {
                todo.extend(self.blockers(waits));
            }
        }
        false
    }
    /// The first waiting request recorded before `want`'s (before all that come, if it is not recorded)
    /// that cannot be granted beside it, leaving out those that wait for `want.owner`: they cannot be
    /// served before it.
    pub fn ahead(&self, want: &Lock) -> Option<&Lock> {
        self.before(*want).find(|w| !self.waits_for(w, want.owner))
    }
    /// Waiting requests recorded before `want`'s that cannot be granted beside it.
    fn before(&self, want: Lock) -> impl Iterator<Item = &Lock> + '_ {
        let earlier = move |w: &&Lock| w.owner != want.owner || w.ino != want.ino;
        self.waiting.iter().take_while(earlier).filter(move |w| w.blocks(&want))
    }
    /// Whether `waiter` waits for `owner`: for a lock that it holds, or in turn for another that does.
    fn waits_for(&self, waiter: &Lock, owner: Owner) -> bool {
        let mut seen: Vec<Owner> = vec![waiter.owner];
        let mut todo = vec![waiter];
        while let Some(w) = todo.pop() {
            let next = self.blockers(w).chain(self.before(*w).map(|l| l.owner));
            for other in next.collect::<Vec<_>>() {
                if other == owner {
                    return true;
                }
                if !seen.contains(&other) {
                    seen.push(other);
                    todo.extend(self.waiting.iter().filter(|w| w.owner == other));
                }
            }
        }
        false
    }
    fn blockers<'a>(&'a self, want: &'a Lock) -> impl Iterator<Item = Owner> + 'a {
        self.held.iter().filter(|l| l.blocks(want)).map(|l| l.owner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(id: u64) -> Owner {
        let node = Me { slot: NodeId(1), incarnation: Incarnation(1) };
        Owner { node, id, flock: false }
    }
    fn lock(id: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { ino: InodeNo(5), start, end, owner: owner(id), pid: 1, exclusive }
    }
    fn ranges(table: &Table, id: u64) -> Vec<(u64, u64, bool)> {
        let mut out: Vec<_> = table
            .held
            .iter()
            .filter(|l| l.owner.id == id)
            .map(|l| (l.start, l.end, l.exclusive))
            .collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn splits_and_joins() {
        let max = u64::MAX;
        let mut t = Table::default();
        t.grant(lock(1, 0, max, true));
        t.clear(InodeNo(5), owner(1), 10, 19);
        assert_eq!(ranges(&t, 1), [(0, 9, true), (20, max, true)]);
        t.grant(lock(1, 10, 19, true));
        assert_eq!(ranges(&t, 1), [(0, max, true)]);
        t.grant(lock(1, 5, 6, false));
        assert_eq!(ranges(&t, 1), [(0, 4, true), (5, 6, false), (7, max, true)]);
        t.clear(InodeNo(5), owner(1), 0, max);
        assert!(t.held.is_empty());
        // Ends of the number range.
        t.grant(lock(1, max, max, true));
        t.grant(lock(1, 0, 0, true));
        assert_eq!(ranges(&t, 1), [(0, 0, true), (max, max, true)]);
        // Another file, another owner: untouched.
        t.clear(InodeNo(6), owner(1), 0, max);
        t.clear(InodeNo(5), owner(2), 0, max);
        assert_eq!(t.held.len(), 2);
    }

    #[test]
    fn requests_wait_for_those_before_them_unless_these_wait_for_them() {
        let mut t = Table::default();
        t.grant(lock(1, 0, 9, true));
        t.waiting.push(lock(2, 0, 9, true));
        t.waiting.push(lock(3, 5, 20, false));
        // The holder asks for more: who waits for it cannot be served first.
        assert_eq!(t.ahead(&lock(1, 5, 12, true)), None);
        t.clear(InodeNo(5), owner(1), 0, 9);
        // Now it comes last; each of the others waits for those recorded before it alone.
        assert_eq!(t.ahead(&lock(1, 0, 9, true)), Some(&lock(2, 0, 9, true)));
        assert_eq!(t.ahead(&lock(2, 0, 9, true)), None);
        assert_eq!(t.ahead(&lock(3, 5, 20, false)), Some(&lock(2, 0, 9, true)));
        // Readers stand beside readers, and apart from what does not touch them.
        assert_eq!(t.ahead(&lock(4, 10, 20, false)), None);
        assert_eq!(t.ahead(&lock(4, 30, 40, true)), None);
        // Nobody waits for who waits for him through a third.
        t.grant(lock(4, 30, 40, true));
        t.grant(lock(5, 50, 60, true));
        t.waiting.push(lock(6, 30, 35, true));
        t.waiting.push(lock(4, 50, 55, true));
        assert_eq!(t.ahead(&lock(5, 35, 35, false)), None);
    }

    #[test]
    fn conflicts() {
        let mut t = Table::default();
        t.grant(lock(1, 10, 20, false));
        t.grant(lock(2, 15, 30, false));
        for (want, free) in [
            (lock(3, 0, 9, true), true),
            (lock(3, 0, 10, true), false),
            (lock(3, 0, 100, false), true),
            (lock(1, 10, 14, true), true),
            (lock(1, 10, 15, true), false),
            (lock(3, 31, u64::MAX, true), true),
            (Lock { ino: InodeNo(6), ..lock(3, 0, 100, true) }, true),
            (Lock { owner: Owner { flock: true, ..owner(3) }, ..lock(3, 0, 100, true) }, true),
        ] {
            assert_eq!(t.conflict(&want).is_none(), free, "{want:?}");
        }
        assert_eq!(t.conflict(&lock(3, 0, 100, true)).unwrap().start, 10);
    }

    #[test]
    fn circles_of_waiters_are_seen() {
        let mut t = Table::default();
        t.grant(lock(1, 1, 1, true));
        t.grant(lock(2, 2, 2, true));
        t.grant(lock(3, 3, 3, true));
        assert!(!t.would_deadlock(&lock(1, 2, 2, true)));
        t.waiting.push(lock(1, 2, 2, true));
        assert!(t.would_deadlock(&lock(2, 1, 1, true)));
        assert!(!t.would_deadlock(&lock(2, 3, 3, true)));
        t.waiting.push(lock(2, 3, 3, true));
        assert!(t.would_deadlock(&lock(3, 1, 1, false)));
        assert!(!t.would_deadlock(&lock(4, 1, 3, true)));
        t.stop_waiting(InodeNo(5), owner(2));
        assert!(!t.would_deadlock(&lock(3, 1, 1, false)));
    }

    #[test]
    fn buckets_forget_the_dead_and_refuse_nonsense() {
        let mut t = Table::default();
        t.grant(lock(1, 1, 1, true));
        let dead = Me { slot: NodeId(2), incarnation: Incarnation(9) };
        let mut other = lock(1, 5, 5, true);
        other.owner.node = dead;
        t.grant(other);
        t.waiting.push(lock(7, 5, 5, false));
        let mut body = vec![0_u8; 512];
        t.encode(&mut body);
        assert_eq!(Table::decode(&body, &|_| true).unwrap(), t);
        let alive = Table::decode(&body, &|n| n != dead).unwrap();
        assert_eq!(alive.held, [lock(1, 1, 1, true)]);
        assert_eq!(alive.waiting.len(), 1);
        for at in 40..body.len() {
            let mut broken = body.clone();
            broken[at] ^= 0xff;
            let _ = Table::decode(&broken, &|_| true);
        }
        body[40..48].fill(0xff);
        assert!(Table::decode(&body, &|_| true).is_err());
        assert_eq!(Table::capacity(3584), 73);
    }

    #[derive(Debug, Clone)]
    struct Step {
        id: u64,
        start: u64,
        len: u64,
        /// 0 unlock, 1 shared, 2 exclusive.
        mode: u8,
    }

    proptest! {
        /// Against one cell per byte; ranges of an owner stay apart and joined.
        #[test]
        fn behaves_like_bytes(steps in prop::collection::vec(
            (0..3_u64, 0..24_u64, 1..9_u64, 0..3_u8)
                .prop_map(|(id, start, len, mode)| Step { id, start, len, mode }),
            1..60,
        )) {
            let mut t = Table::default();
            let mut model = [[0_u8; 32]; 3];
            for s in steps {
                let end = s.start + s.len - 1;
                let cells = usize::try_from(s.start).unwrap()..=usize::try_from(end).unwrap();
                let id = usize::try_from(s.id).unwrap();
                if s.mode == 0 {
                    t.clear(InodeNo(5), owner(s.id), s.start, end);
                    model[id][cells].fill(0);
                } else {
                    let want = lock(s.id, s.start, end, s.mode == 2);
                    let free = (0..3).filter(|&o| o != id).all(|o| {
                        model[o][cells.clone()].iter().all(|&m| m + s.mode < 3)
                    });
                    prop_assert_eq!(t.conflict(&want).is_none(), free);
                    if free {
                        t.grant(want);
                        model[id][cells].fill(s.mode);
                    }
                }
                for id in 0..3_u64 {
                    let mut cells = [0_u8; 32];
                    let mut last: Option<(u64, bool)> = None;
                    for (start, end, exclusive) in ranges(&t, id) {
                        if let Some((e, x)) = last {
                            prop_assert!(e < start, "overlap");
                            prop_assert!(e + 1 < start || x != exclusive, "not joined");
                        }
                        last = Some((end, exclusive));
                        let range = usize::try_from(start).unwrap()..=usize::try_from(end).unwrap();
                        cells[range].fill(if exclusive { 2 } else { 1 });
                    }
                    prop_assert_eq!(cells, model[usize::try_from(id).unwrap()]);
                }
            }
        }
    }
}
