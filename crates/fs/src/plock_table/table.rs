//! Locks of byte ranges, and the arithmetic of ranges. Pure.
//!
//! A range is a first and a last byte, both inclusive, so that "to the end" needs no special case.
//! Locks of one owner on one file never overlap and are joined where they touch and agree. fcntl
//! and flock locks do not see each other, as on Linux.

use std::collections::BTreeMap;

use braid_format::{Incarnation, InodeNo, NodeId};
use braid_lock::Life;

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    /// The node it lives on.
    pub node: Life,
    /// The kernel's lock owner there.
    pub id: u64,
    /// flock rather than fcntl.
    pub flock: bool,
}

impl Owner {
    /// Before all others.
    pub const LEAST: Self =
        Self { node: Life { slot: NodeId(0), incarnation: Incarnation(0) }, id: 0, flock: false };
}

/// A lock held, or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lock {
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
    /// Whether the two cannot be held at the same time.
    pub fn excludes(&self, other: &Self) -> bool {
        self.ino == other.ino
            && self.start <= other.end
            && other.start <= self.end
            && self.owner != other.owner
            && self.owner.flock == other.owner.flock
            && (self.exclusive || other.exclusive)
    }
}

/// A stretch of bytes that one owner has locked; its first byte is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    end: u64,
    exclusive: bool,
    pid: u32,
}

/// What one owner holds on one file.
type Spans = BTreeMap<u64, Span>;

/// Locks held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    files: BTreeMap<InodeNo, BTreeMap<Owner, Spans>>,
    len: usize,
}

/// How many entries a change adds (or takes, negative).
pub(crate) type Growth = isize;

impl Table {
    /// Locks in it.
    pub fn len(&self) -> usize {
        self.len
    }
    /// All locks.
    pub fn iter(&self) -> impl Iterator<Item = Lock> + '_ {
        self.files.iter().flat_map(|(ino, owners)| {
            owners.iter().flat_map(|(owner, spans)| {
                spans.iter().map(|(start, span)| lock_of(*ino, *owner, *start, *span))
            })
        })
    }
    /// Owners of locks on a file.
    pub fn owners(&self, ino: InodeNo) -> usize {
        self.files.get(&ino).map_or(0, BTreeMap::len)
    }
    /// Whether `owner` holds anything on the file.
    pub fn has(&self, ino: InodeNo, owner: Owner) -> bool {
        self.files.get(&ino).is_some_and(|owners| owners.contains_key(&owner))
    }
    /// Adds a lock as it was read, without joining it.
    pub fn insert(&mut self, lock: Lock) {
        let spans = self.files.entry(lock.ino).or_default().entry(lock.owner).or_default();
        let span = Span { end: lock.end, exclusive: lock.exclusive, pid: lock.pid };
        self.len += usize::from(spans.insert(lock.start, span).is_none());
    }
    /// Held locks that keep `want` from being granted.
    fn in_the_way<'a>(&'a self, want: &'a Lock) -> impl Iterator<Item = Lock> + 'a {
        let owners = self.files.get(&want.ino).into_iter().flatten();
        owners.filter_map(move |(owner, spans)| {
            let same = *owner == want.owner || owner.flock != want.owner.flock;
            if same {
                return None;
            }
            // Spans of an owner do not overlap, so only the last of those that begin before `want`
            // can reach it.
            let before = spans.range(..want.start).next_back();
            let reach = before.into_iter().chain(spans.range(want.start..=want.end));
            let mut locks = reach.map(|(start, span)| lock_of(want.ino, *owner, *start, *span));
            locks.find(|lock| lock.excludes(want))
        })
    }
    /// Whether a held lock keeps `want` from being granted.
    pub fn excludes(&self, want: &Lock) -> bool {
        self.in_the_way(want).next().is_some()
    }
    /// The first such lock (lowest start).
    pub fn conflict(&self, want: &Lock) -> Option<Lock> {
        self.in_the_way(want).min_by_key(|l| l.start)
    }
    /// The owners of such locks.
    pub fn blockers<'a>(&'a self, want: &'a Lock) -> impl Iterator<Item = Owner> + 'a {
        self.in_the_way(want).map(|l| l.owner)
    }
    /// Gives `want.owner` the range in `mode` (`true`: exclusive), or takes it off him (`None`), in
    /// place of what he held there: splits what reaches over the range's ends, joins what touches.
    /// Returns how many locks there are more, if that is at most `room`; else `None`, and nothing is
    /// changed.
    pub fn change(&mut self, want: &Lock, mode: Option<bool>, room: Growth) -> Option<Growth> {
        let owners = self.files.entry(want.ino).or_default();
        let spans = owners.entry(want.owner).or_default();
        let (old, new) = plan(spans, want, mode);
        let count = |n: usize| Growth::try_from(n).unwrap_or(Growth::MAX);
        let growth = count(new.len()) - count(old.len());
        let fits = growth <= room;
        if fits {
            for start in old {
                spans.remove(&start);
            }
            spans.extend(new);
            self.len = self.len.saturating_add_signed(growth);
        }
        if spans.is_empty() {
            owners.remove(&want.owner);
        }
        if owners.is_empty() {
            self.files.remove(&want.ino);
        }
        fits.then_some(growth)
    }
    /// Replaces an owner's locks on a file by one that covers them all, if that saves entries: the
    /// owner with the most first. Returns whether it did.
    pub fn cover_one(&mut self) -> bool {
        let all = self.files.iter_mut().flat_map(|(_, owners)| owners.values_mut());
        let Some(spans) = all.max_by_key(|spans| spans.len()).filter(|spans| spans.len() > 1)
        else {
            return false;
        };
        let (Some((&start, first)), Some(end)) =
            (spans.first_key_value(), spans.values().map(|s| s.end).max())
        else {
            return false;
        };
        let cover = Span { end, exclusive: spans.values().any(|s| s.exclusive), pid: first.pid };
        self.len -= spans.len() - 1;
        *spans = BTreeMap::from([(start, cover)]);
        true
    }
}

fn lock_of(ino: InodeNo, owner: Owner, start: u64, span: Span) -> Lock {
    Lock { ino, start, end: span.end, owner, pid: span.pid, exclusive: span.exclusive }
}

/// Which spans (by their first bytes) a change replaces, and by which.
fn plan(spans: &Spans, want: &Lock, mode: Option<bool>) -> (Vec<u64>, Vec<(u64, Span)>) {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let (mut start, mut end) = (want.start, want.end);
    if let Some((&at, span)) = spans.range(..want.start).next_back() {
        let (overlaps, joins) = (span.end >= want.start, mode == Some(span.exclusive));
        if overlaps || joins && span.end + 1 == want.start {
            old.push(at);
            if joins {
                (start, end) = (at, end.max(span.end));
            } else {
                new.push((at, Span { end: want.start - 1, ..*span }));
                if span.end > want.end {
                    new.push((want.end + 1, *span));
                }
            }
        }
    }
    for (&at, span) in spans.range(want.start..=want.end) {
        old.push(at);
        if mode == Some(span.exclusive) {
            end = end.max(span.end);
        } else if span.end > want.end {
            new.push((want.end + 1, *span));
        }
    }
    if let Some(next) = end.checked_add(1)
        && let Some(span) = spans.get(&next).filter(|span| mode == Some(span.exclusive))
    {
        old.push(next);
        end = span.end;
    }
    if let Some(exclusive) = mode {
        new.push((start, Span { end, exclusive, pid: want.pid }));
    }
    (old, new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Table {
        fn grant(&mut self, want: Lock) {
            self.change(&want, Some(want.exclusive), Growth::MAX).unwrap();
        }
        fn clear(&mut self, ino: InodeNo, owner: Owner, start: u64, end: u64) {
            let range = Lock { ino, start, end, owner, pid: 0, exclusive: false };
            self.change(&range, None, Growth::MAX).unwrap();
        }
    }

    fn owner(id: u64) -> Owner {
        let node = Life { slot: NodeId(1), incarnation: Incarnation(1) };
        Owner { node, id, flock: false }
    }
    fn lock(id: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { ino: InodeNo(5), start, end, owner: owner(id), pid: 1, exclusive }
    }
    fn ranges(table: &Table, id: u64) -> Vec<(u64, u64, bool)> {
        assert_eq!(table.iter().count(), table.len());
        let mut out: Vec<_> = table
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
        assert_eq!((t.len(), t.files.len()), (0, 0));
        // Ends of the number range.
        t.grant(lock(1, max, max, true));
        t.grant(lock(1, 0, 0, true));
        assert_eq!(ranges(&t, 1), [(0, 0, true), (max, max, true)]);
        // Another file, another owner: untouched.
        t.clear(InodeNo(6), owner(1), 0, max);
        t.clear(InodeNo(5), owner(2), 0, max);
        assert_eq!(t.len(), 2);
        // What would take too much room is not done.
        let split = lock(1, 0, max, false);
        assert_eq!(t.change(&lock(1, 7, 9, true), Some(true), 0), None);
        assert_eq!(ranges(&t, 1).len(), 2);
        assert_eq!(t.change(&split, Some(false), 0), Some(-1));
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
            assert_eq!(t.excludes(&want), !free);
        }
        assert_eq!(t.conflict(&lock(3, 0, 100, true)).unwrap().start, 10);
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
