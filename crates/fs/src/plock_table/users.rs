//! How many locks each user of this node may have, held and waited for together: one user's loop
//! must not take the memory, or the time, of the others.

use std::collections::HashMap;

use braid_format::Bytes;
use parking_lot::Mutex;

use super::table::Growth;

/// Memory of a lock, with its share of the tables around it.
const LOCK_BYTES: u64 = 256;
/// The part (divisor) of a node's metadata cache that locks may take beside it.
const MEMORY_PART: u64 = 4;
/// The part (divisor) of all locks that one user other than root may have.
const USER_PART: usize = 8;
/// Most locks of one user other than root, however large the memory: when another node wants one of a bucket's
/// locks, all of the bucket go to the devices and are read from there.
const USER_MOST: usize = 1 << 15;
/// By unlocks that split locks a user may come to so many times his bound.
const SPLIT: usize = 2;
/// The part (divisor) of all locks that is kept for root's.
const ROOT_PART: usize = 8;
/// However small the memory, a node takes so many locks.
const LOCKS_MIN: usize = 4096;

/// Locks by user.
#[derive(Debug)]
pub(crate) struct Users {
    /// Locks of this node.
    all_max: usize,
    /// Locks of one user, root excepted.
    user_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Locks of all users. What unlocks of one user have split beyond his bound does not count: it must not take
    /// the place of other users' locks.
    all: usize,
    by_uid: HashMap<u32, usize>,
}

impl Users {
    /// Bounds that follow from the size of the metadata cache.
    pub fn new(metadata_cache: Bytes) -> Self {
        let all = metadata_cache.get() / MEMORY_PART / LOCK_BYTES;
        let all_max = usize::try_from(all).unwrap_or(usize::MAX).max(LOCKS_MIN);
        let user_max = (all_max / USER_PART).min(USER_MOST);
        Self { all_max, user_max, counts: Mutex::default() }
    }
    /// Most locks of one user.
    #[cfg(test)]
    pub fn user_max(&self) -> usize {
        self.user_max
    }
    /// How many more locks `uid` may have.
    pub fn room(&self, uid: u32) -> Growth {
        let counts = self.counts.lock();
        let all = self.all_max.saturating_sub(counts.all);
        let own = counts.by_uid.get(&uid).copied().unwrap_or(0);
        let room = if uid == 0 {
            all
        } else {
            let users = all.saturating_sub(self.all_max / ROOT_PART);
            self.user_max.saturating_sub(own).min(users)
        };
        Growth::try_from(room).unwrap_or(Growth::MAX)
    }
    /// How many more locks an unlock of `uid` may leave than there were, by splitting one. That goes beyond the bound,
    /// so that who has reached it can still give up a part of what he has, but not without end.
    pub fn room_to_split(&self, uid: u32) -> Growth {
        let own = self.counts.lock().by_uid.get(&uid).copied().unwrap_or(0);
        let bound = if uid == 0 { self.all_max } else { self.user_max };
        let room = bound.saturating_mul(SPLIT).saturating_sub(own);
        Growth::try_from(room).unwrap_or(Growth::MAX)
    }
    /// `uid` has so many more locks, or fewer.
    pub fn count(&self, uid: u32, change: Growth) {
        if change == 0 {
            return;
        }
        let mut counts = self.counts.lock();
        let before = counts.by_uid.get(&uid).copied().unwrap_or(0);
        let own = before.saturating_add_signed(change);
        if own == 0 {
            counts.by_uid.remove(&uid);
        } else {
            counts.by_uid.insert(uid, own);
        }
        let max = if uid == 0 { usize::MAX } else { self.user_max };
        counts.all = (counts.all + own.min(max)).saturating_sub(before.min(max));
    }
    /// Locks of this node.
    #[cfg(test)]
    pub fn all(&self) -> usize {
        self.counts.lock().all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_room_for_others() {
        let users = Users::new(Bytes(0));
        let each = Growth::try_from(users.user_max).unwrap();
        assert_eq!((users.room(5), users.room(0)), (each, each * 8));
        users.count(5, each);
        assert_eq!((users.room(5), users.room(6)), (0, each));
        // What unlocks split takes nothing from others, however much it is.
        users.count(5, each * 20);
        assert_eq!((users.room(5), users.room(6), users.room(0)), (0, each, each * 7));
        users.count(0, each * 6 - 3);
        assert_eq!((users.room(5), users.room(6), users.room(0)), (0, 3, each + 3));
        users.count(5, -each * 20 - 1);
        assert_eq!((users.room(5), users.room(6)), (1, 4));
        users.count(5, 1 - each);
        users.count(0, 3 - each * 6);
        assert_eq!((users.all(), users.counts.lock().by_uid.len()), (0, 0));
    }

    #[test]
    fn all_users_together_leave_room_for_root() {
        let users = Users::new(Bytes(0));
        let each = Growth::try_from(users.user_max).unwrap();
        for uid in 1..=8 {
            users.count(uid, users.room(uid));
        }
        assert_eq!((users.room(9), users.room(0)), (0, each));
        assert!(Users::new(Bytes(96 << 20)).user_max >= 8192);
    }

    #[test]
    fn unlocks_may_split_up_to_twice_the_bound() {
        let users = Users::new(Bytes(0));
        let each = Growth::try_from(users.user_max).unwrap();
        assert_eq!((users.room_to_split(5), users.room_to_split(0)), (each * 2, each * 16));
        users.count(5, each);
        assert_eq!((users.room(5), users.room_to_split(5)), (0, each));
        users.count(5, each);
        assert_eq!((users.room_to_split(5), users.room_to_split(6)), (0, each * 2));
        // A node with much memory.
        let large = Users::new(Bytes(1 << 40));
        assert_eq!(large.room(5), Growth::try_from(USER_MOST).unwrap());
        assert!(large.room(0) > large.room_to_split(5));
    }
}
