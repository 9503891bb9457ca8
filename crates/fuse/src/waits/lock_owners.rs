//! Whose fcntl locks came through which open file.
//!
//! A process's locks go when it closes any descriptor of the file: the kernel says so with FLUSH,
//! which names the owner. Locks of an open file description (`F_OFD_SETLK`) have the description
//! itself for an owner, and nothing names that one when it goes. So owners are kept by open file.
//! An owner that is still there at RELEASE was an open file description, since every process has
//! flushed by then.
//!
//! The kernel's number of such an owner is made of the description's address. RELEASE comes after
//! that was freed, so another description may have the number by then, and locks on the same file.
//! Only what was locked through the file that is closed is unlocked, and nobody locks for that owner
//! meanwhile.
//!
//! RELEASE does not say either whose file it was, so the users who lock are kept by open file, too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_format::InodeNo;
use braid_fs::Fh;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

/// Bytes of a file, the last one included.
pub(crate) type Range = (u64, u64);

/// More ranges than these are kept as one that has them all.
const RANGES_MAX: usize = 64;

/// Owners by file and open file.
#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    state: Mutex<State>,
    /// An owner's locks have gone.
    unlocked: Condvar,
    /// Files in the map: most closes find none and take no lock.
    files: AtomicUsize,
    /// Users other than root who have asked for a lock, of whatever kind, by open file.
    users: RwLock<HashMap<Fh, u32>>,
}

#[derive(Debug, Default)]
struct State {
    by_file: HashMap<InodeNo, HashMap<Fh, Vec<Owner>>>,
    /// Those whose locks are being unlocked because a file is closed.
    unlocking: Vec<(InodeNo, u64)>,
}

/// What one owner has asked for through one open file.
#[derive(Debug)]
struct Owner {
    id: u64,
    /// In order, without overlaps. What was unlocked since is still there.
    ranges: Vec<Range>,
}

impl Owner {
    fn add(&mut self, (start, end): Range) {
        let apart = |r: &Range| r.1 < start || end < r.0;
        let (kept, joined): (Vec<Range>, Vec<Range>) = self.ranges.iter().partition(|r| apart(r));
        let start = joined.iter().map(|r| r.0).fold(start, u64::min);
        let end = joined.iter().map(|r| r.1).fold(end, u64::max);
        self.ranges = kept;
        self.ranges.push((start, end));
        self.ranges.sort_unstable();
        if self.ranges.len() > RANGES_MAX
            && let (Some(first), Some(last)) = (self.ranges.first(), self.ranges.last())
        {
            self.ranges = vec![(first.0, last.1)];
        }
    }
}

/// What is in `ranges` and not in `but`.
fn without(mut ranges: Vec<Range>, but: &[Range]) -> Vec<Range> {
    for (start, end) in but {
        ranges = ranges
            .into_iter()
            .flat_map(|(from, to)| {
                let before = (from < *start).then(|| (from, to.min(start.saturating_sub(1))));
                let after = (to > *end).then(|| (from.max(end.saturating_add(1)), to));
                [before, after]
            })
            .flatten()
            .collect();
    }
    ranges
}

impl LockOwners {
    /// `owner` is about to lock `range` of a file through `fh`.
    pub fn locking(&self, (ino, fh): (InodeNo, Fh), owner: u64, range: Range) {
        let mut state = self.state.lock();
        while state.unlocking.contains(&(ino, owner)) {
            self.unlocked.wait(&mut state);
        }
        let owners = state.by_file.entry(ino).or_default().entry(fh).or_default();
        match owners.iter_mut().find(|o| o.id == owner) {
            Some(known) => known.add(range),
            None => owners.push(Owner { id: owner, ranges: vec![range] }),
        }
        self.count(&state);
    }
    /// User `uid` is about to lock something through `fh`.
    pub fn locks_through(&self, fh: Fh, uid: u32) {
        if uid != 0 && self.user_of(fh) != uid {
            self.users.write().insert(fh, uid);
        }
    }
    /// The user other than root who has locked something through `fh`; 0 if there is none.
    pub fn user_of(&self, fh: Fh) -> u32 {
        self.users.read().get(&fh).copied().unwrap_or(0)
    }
    /// `owner`'s locks on the file have gone.
    pub fn flushed(&self, (ino, fh): (InodeNo, Fh), owner: u64) {
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if let Some(owners) = state.by_file.get_mut(&ino).and_then(|file| file.get_mut(&fh)) {
            owners.retain(|o| o.id != owner);
            if owners.is_empty() {
                take(&mut state, (ino, fh));
            }
        }
        self.count(&state);
    }
    /// `fh` is closed: `unlock` is called for what the owners that are left have locked through it.
    pub fn release(&self, (ino, fh): (InodeNo, Fh), mut unlock: impl FnMut(u64, Range)) {
        if self.user_of(fh) != 0 {
            self.users.write().remove(&fh);
        }
        if self.files.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let left = take(&mut state, (ino, fh));
        for Owner { id, ranges } in left {
            let others = state.by_file.get(&ino).into_iter().flat_map(HashMap::values).flatten();
            let mut others = others.filter(|o| o.id == id).peekable();
            let ranges = match others.peek() {
                None => vec![(0, u64::MAX)],
                Some(_) => others.fold(ranges, |ranges, other| without(ranges, &other.ranges)),
            };
            state.unlocking.push((ino, id));
            MutexGuard::unlocked(&mut state, || {
                for range in ranges {
                    unlock(id, range);
                }
            });
            let one = state.unlocking.iter().position(|who| *who == (ino, id));
            one.map(|at| state.unlocking.swap_remove(at));
            self.unlocked.notify_all();
        }
        self.count(&state);
    }
    fn count(&self, state: &State) {
        self.files.store(state.by_file.len(), Ordering::Release);
    }
}

/// Those of an open file, which is forgotten.
fn take(state: &mut State, (ino, fh): (InodeNo, Fh)) -> Vec<Owner> {
    let Some(file) = state.by_file.get_mut(&ino) else { return Vec::new() };
    let owners = file.remove(&fh).unwrap_or_default();
    if file.is_empty() {
        state.by_file.remove(&ino);
    }
    owners
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const FILE: InodeNo = InodeNo(5);
    const ALL: Range = (0, u64::MAX);

    fn unlocked(owners: &LockOwners, fh: Fh) -> Vec<(u64, Range)> {
        let mut all = Vec::new();
        owners.release((FILE, fh), |owner, range| all.push((owner, range)));
        all
    }

    #[test]
    fn only_who_never_flushed_is_left() {
        let owners = LockOwners::default();
        assert_eq!(unlocked(&owners, 1), []);
        for owner in [7, 8, 8] {
            owners.locking((FILE, 1), owner, ALL);
        }
        owners.locking((FILE, 2), 7, ALL);
        owners.locking((InodeNo(6), 3), 8, ALL);
        owners.flushed((FILE, 1), 7);
        assert_eq!(unlocked(&owners, 1), [(8, ALL)]);
        owners.flushed((FILE, 2), 7);
        assert_eq!(unlocked(&owners, 2), []);
        owners.flushed((InodeNo(6), 3), 8);
        assert_eq!(owners.files.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_locks_is_known_until_the_file_is_closed() {
        let owners = LockOwners::default();
        owners.locks_through(1, 1000);
        owners.locks_through(1, 0);
        owners.locks_through(2, 1000);
        owners.locks_through(2, 1001);
        owners.locks_through(3, 0);
        assert_eq!([1, 2, 3].map(|fh| owners.user_of(fh)), [1000, 1001, 0]);
        assert_eq!(unlocked(&owners, 1), []);
        assert_eq!([1, 2, 3].map(|fh| owners.user_of(fh)), [0, 1001, 0]);
        unlocked(&owners, 2);
        assert!(owners.users.read().is_empty());
    }

    /// A description was freed, and another has its number before the first one's RELEASE comes.
    #[test]
    fn what_another_of_the_same_number_has_locked_stays() {
        let owners = LockOwners::default();
        owners.locking((FILE, 1), 7, (0, 99));
        owners.locking((FILE, 1), 7, (200, 299));
        owners.locking((FILE, 2), 7, (50, 250));
        assert_eq!(unlocked(&owners, 1), [(7, (0, 49)), (7, (251, 299))]);
        assert_eq!(unlocked(&owners, 2), [(7, ALL)]);
        owners.locking((FILE, 3), 7, ALL);
        owners.locking((FILE, 4), 7, ALL);
        assert_eq!(unlocked(&owners, 3), []);
        assert_eq!(unlocked(&owners, 4), [(7, ALL)]);
    }

    #[test]
    fn nobody_locks_for_an_owner_while_it_is_unlocked() {
        let owners = LockOwners::default();
        owners.locking((FILE, 1), 7, ALL);
        std::thread::scope(|s| {
            let (tell, told) = mpsc::channel();
            owners.release((FILE, 1), |_, _| {
                let (owners, tell) = (&owners, tell.clone());
                s.spawn(move || {
                    owners.locking((FILE, 2), 7, ALL);
                    tell.send(()).unwrap();
                });
                owners.locking((FILE, 2), 8, ALL);
                assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
            });
            told.recv_timeout(Duration::from_secs(10)).unwrap();
        });
    }

    #[test]
    fn many_ranges_are_kept_as_one() {
        let owners = LockOwners::default();
        for n in 0..1000 {
            owners.locking((FILE, 1), 7, (n * 10, n * 10 + 1));
            owners.locking((FILE, 2), 7, (n, n));
        }
        let kept = |fh| owners.state.lock().by_file[&FILE][&fh][0].ranges.len();
        assert!(kept(1) <= RANGES_MAX, "{}", kept(1));
        let stale = unlocked(&owners, 1);
        assert!(stale.iter().all(|(_, range)| range.0 >= 1000), "{stale:?}");
        assert_eq!(stale.last().map(|(_, range)| range.1), Some(9991));
    }
}
