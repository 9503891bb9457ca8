//! Which node probably holds a lock of which nothing is known here.
//!
//! Locks that follow one another are mostly of files that one node has made. So where one of them was found held by
//! one other node alone, exclusively, the next ones are asked of that node at once, without reading their record. If
//! it does not hold them, it says so, and the record is read: that costs a message each way. Where many locks are
//! asked for together that costs hardly anything, and locks farther away are presumed likewise.

use std::collections::HashMap;

use braid_format::LockNo;
use braid_format::lock_record::{Life, LockRecord, Mode};
use parking_lot::Mutex;

/// Locks that are taken for alike: so many that follow one another, as a power of two.
const ALIKE_BITS: u32 = 6;
/// The same where many are asked for together.
const ROUGHLY_ALIKE_BITS: u32 = 14;
/// Remembered at most; with more all are forgotten.
const ALIKE_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct PresumedHolders(Mutex<Presumed>);

/// By the number of the first lock of those that are alike, and roughly alike.
#[derive(Debug, Default)]
struct Presumed {
    alike: HashMap<u64, Life>,
    roughly: HashMap<u64, Life>,
}

impl PresumedHolders {
    pub(super) fn of(&self, lock: LockNo) -> Option<Life> {
        self.0.lock().alike.get(&(lock.0 >> ALIKE_BITS)).copied()
    }
    /// `lock` is asked for together with many: what is known of locks farther away is presumed of those beside it, if
    /// nothing nearer is known.
    pub(super) fn presume(&self, lock: LockNo) {
        let mut all = self.0.lock();
        if !all.alike.contains_key(&(lock.0 >> ALIKE_BITS))
            && let Some(holder) = all.roughly.get(&(lock.0 >> ROUGHLY_ALIKE_BITS)).copied()
        {
            insert(&mut all.alike, lock.0 >> ALIKE_BITS, holder);
        }
    }
    /// A record was read by `me`: what it says is presumed of the locks beside it.
    pub(super) fn learn(&self, me: Life, record: &LockRecord) {
        if record.mode_of(me) == Mode::Shared {
            // It may have been given to this node just now.
            return;
        }
        let alone = record.sole_other_holder(me).filter(|_| record.mode == Mode::Exclusive);
        let mut all = self.0.lock();
        let (near, far) = (record.lock.0 >> ALIKE_BITS, record.lock.0 >> ROUGHLY_ALIKE_BITS);
        let Some(holder) = alone else {
            all.alike.remove(&near);
            all.roughly.remove(&far);
            return;
        };
        insert(&mut all.alike, near, holder);
        insert(&mut all.roughly, far, holder);
    }
}

fn insert(all: &mut HashMap<u64, Life>, key: u64, holder: Life) {
    if all.len() >= ALIKE_MAX && !all.contains_key(&key) {
        all.clear();
    }
    all.insert(key, holder);
}

#[cfg(test)]
mod tests {
    use braid_format::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn neighbours_of_a_lock_held_alone_are_presumed_held_by_the_same_node() {
        let life = |slot| Life { slot: NodeId(slot), incarnation: Incarnation(1) };
        let all = PresumedHolders::default();
        let held = |lock, mode, holders: &[Life]| LockRecord {
            mode,
            holders: holders.to_vec(),
            ..LockRecord::unlocked(LockNo(lock), 0)
        };
        all.learn(life(0), &held(640, Mode::Exclusive, &[life(1)]));
        assert_eq!((all.of(LockNo(641)), all.of(LockNo(703))), (Some(life(1)), Some(life(1))));
        assert_eq!((all.of(LockNo(639)), all.of(LockNo(704))), (None, None));
        all.learn(life(0), &held(650, Mode::Shared, &[life(0), life(1)]));
        assert_eq!(all.of(LockNo(641)), Some(life(1)), "it was given by that node, perhaps");
        all.learn(life(0), &held(650, Mode::Shared, &[life(1)]));
        assert_eq!(all.of(LockNo(641)), None, "whoever wants to read takes that without asking");
        all.learn(life(0), &held(640, Mode::Exclusive, &[life(0)]));
        assert_eq!(all.of(LockNo(641)), None);
        for n in 0..=ALIKE_MAX as u64 {
            all.learn(life(0), &held(n << ALIKE_BITS, Mode::Exclusive, &[life(1)]));
        }
        assert!(all.0.lock().alike.len() <= ALIKE_MAX);
        let all = PresumedHolders::default();
        let learn = |n| all.learn(life(0), &held(n << ALIKE_BITS, Mode::Exclusive, &[life(1)]));
        (0..ALIKE_MAX as u64).for_each(learn);
        learn(0);
        assert_eq!(all.0.lock().alike.len(), ALIKE_MAX, "as many as fit are remembered");
    }

    #[test]
    fn locks_farther_away_are_presumed_only_where_many_are_asked_for() {
        let life = |slot| Life { slot: NodeId(slot), incarnation: Incarnation(1) };
        let all = PresumedHolders::default();
        let held = |lock, slot| LockRecord {
            mode: Mode::Exclusive,
            holders: vec![life(slot)],
            ..LockRecord::unlocked(LockNo(lock), 0)
        };
        all.learn(life(0), &held(640, 1));
        all.presume(LockNo(1 << ROUGHLY_ALIKE_BITS));
        assert_eq!((all.of(LockNo(1000)), all.of(LockNo(1 << ROUGHLY_ALIKE_BITS))), (None, None));
        all.presume(LockNo(1000));
        assert_eq!((all.of(LockNo(1000)), all.of(LockNo(2000))), (Some(life(1)), None));
        // What is known of those beside it stands.
        all.learn(life(0), &held(5000, 2));
        all.presume(LockNo(1000));
        assert_eq!(all.of(LockNo(1000)), Some(life(1)));
        // A lock that nobody holds alone ends what is presumed around it.
        all.learn(life(0), &LockRecord::unlocked(LockNo(3000), 0));
        all.presume(LockNo(4000));
        assert_eq!(all.of(LockNo(4000)), None);
    }
}
