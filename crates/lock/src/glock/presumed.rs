//! Which node probably holds a lock of which nothing is known here.
//!
//! Locks that follow one another are mostly of files that one node has made. So where one of them was found held by
//! one other node alone, exclusively, the next ones are asked of that node at once, without reading their record. If
//! it does not hold them, it says so, and the record is read: that costs a message each way.

use std::collections::HashMap;

use braid_format::LockNo;
use braid_format::lock_record::{Life, LockRecord, Mode};
use parking_lot::Mutex;

/// Locks that are taken for alike: so many that follow one another, as a power of two.
const ALIKE_BITS: u32 = 6;
/// Remembered at most; with more all are forgotten.
const ALIKE_MAX: usize = 4096;

/// By the number of the first of them.
#[derive(Debug, Default)]
pub(super) struct PresumedHolders(Mutex<HashMap<u64, Life>>);

impl PresumedHolders {
    pub(super) fn of(&self, lock: LockNo) -> Option<Life> {
        self.0.lock().get(&(lock.0 >> ALIKE_BITS)).copied()
    }
    /// A record was read by `me`: what it says is presumed of the locks beside it.
    pub(super) fn learn(&self, me: Life, record: &LockRecord) {
        let alone = record.sole_other_holder(me).filter(|_| record.mode == Mode::Exclusive);
        let mut all = self.0.lock();
        let key = record.lock.0 >> ALIKE_BITS;
        let Some(holder) = alone else {
            all.remove(&key);
            return;
        };
        if all.len() >= ALIKE_MAX && !all.contains_key(&key) {
            all.clear();
        }
        all.insert(key, holder);
    }
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
        all.learn(life(0), &held(650, Mode::Shared, &[life(1)]));
        assert_eq!(all.of(LockNo(641)), None, "whoever wants to read takes that without asking");
        all.learn(life(0), &held(640, Mode::Exclusive, &[life(0)]));
        assert_eq!(all.of(LockNo(641)), None);
        for n in 0..=ALIKE_MAX as u64 {
            all.learn(life(0), &held(n << ALIKE_BITS, Mode::Exclusive, &[life(1)]));
        }
        assert!(all.0.lock().len() <= ALIKE_MAX);
        let all = PresumedHolders::default();
        let learn = |n| all.learn(life(0), &held(n << ALIKE_BITS, Mode::Exclusive, &[life(1)]));
        (0..ALIKE_MAX as u64).for_each(learn);
        learn(0);
        assert_eq!(all.0.lock().len(), ALIKE_MAX, "as many as fit are remembered");
    }
}
