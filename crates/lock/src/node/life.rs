//! What a slot's record says of the lives that are named in it.

use braid_format::Incarnation;
use braid_format::node::{LockPlace, SlotRecord, SlotState};

use super::fencer::key_of;
use super::host::shares_lock;
use crate::Life;

/// Whether `life` is over by its slot's `record`, and what it held may be broken: the slot is free or
/// a later life's, or the life's journal is replayed. In doubt not: a later life may be joining, or
/// taking the slot over, and this record be of before.
pub fn is_over(record: &SlotRecord, life: Life) -> bool {
    let now = record.life.incarnation;
    let over = record.state == SlotState::Free || record.is_replayed();
    now > life.incarnation || (now == life.incarnation && over)
}

/// Whether nothing of `life` can reach the devices any more, by its slot's `record`: it has left, or it is proven dead,
/// and fenced, which comes before its slot says that it is recovered. What it held may still stand. In doubt not.
pub fn has_ended(record: &SlotRecord, life: Life) -> bool {
    let now = record.life.incarnation;
    now > life.incarnation || (now == life.incarnation && record.state != SlotState::Active)
}

/// Who may use the pool by this slot: its node, or who takes the slot over and recovers it first.
pub(super) fn user_of(record: &SlotRecord) -> Option<Life> {
    match record.state {
        SlotState::Free => None,
        SlotState::Active => Some(record.life),
        SlotState::Recovering => record.recoverer.filter(|by| by.slot == record.life.slot),
    }
}

/// Nothing is left in the journal of the node that this record names: it has left, was recovered,
/// or its journal was replayed.
pub(super) fn has_no_journal(record: &SlotRecord) -> bool {
    match record.state {
        SlotState::Free => true,
        SlotState::Active => false,
        SlotState::Recovering => record.is_replayed(),
    }
}

/// Whether a node that has a slot of its own recovers the slot's dead node, and will free the slot.
pub(super) fn is_recovered_by_other(record: &SlotRecord) -> bool {
    record.recoverer.is_some_and(|by| by.slot != record.life.slot)
}

/// Whether the slot's node and one that holds its locks at `places` do not exclude each other's compare-and-writes: one
/// of the two makes them under kernel locks (this one if `by_lock`), and they have no lock in common.
pub(super) fn uses_foreign_locks(record: &SlotRecord, places: &[LockPlace], by_lock: bool) -> bool {
    (by_lock || record.emulates_compare_and_write)
        && record.state != SlotState::Free
        && !shares_lock(record, places)
}

/// The life that comes after the slot's last one. Nodes that died while they took the slot over had
/// named their own lives already.
pub(super) fn next_life(record: &SlotRecord) -> Life {
    nth_life(record, 1)
}

fn nth_life(record: &SlotRecord, n: u32) -> Life {
    let last = record.last_named();
    Life { slot: record.life.slot, incarnation: Incarnation(last.0.wrapping_add(n)) }
}

/// Whether `key` is of who acts by a slot, or of who may be joining there: that one registers before
/// the slot says so.
pub(super) fn names_key(fs: uuid::Uuid, record: &SlotRecord, key: u64) -> bool {
    let joins = (1..=2).any(|n| key_of(fs, nth_life(record, n)) == key);
    joins || (record.state != SlotState::Free && record.fence_key == key)
}

/// The record of a slot whose life is over and recovered, or has left.
pub fn freed(record: &SlotRecord, nonce: u64) -> SlotRecord {
    SlotRecord {
        state: SlotState::Free,
        recoverer: None,
        replayed: false,
        damage: None,
        vouched: false,
        serves: false,
        emulates_compare_and_write: false,
        nonce,
        pid: 0,
        address: String::new(),
        fence_key: 0,
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use braid_format::NodeId;

    use super::*;

    #[test]
    fn a_life_has_ended_when_its_slot_says_so_and_not_before_it_began() {
        let life = |incarnation| Life { slot: NodeId(3), incarnation: Incarnation(incarnation) };
        let record = |state| SlotRecord { life: life(7), state, ..SlotRecord::free(NodeId(3)) };
        let ended = |state, incarnation| has_ended(&record(state), life(incarnation));
        for state in [SlotState::Free, SlotState::Active, SlotState::Recovering] {
            assert!(ended(state, 6) && !ended(state, 8), "{state:?}");
        }
        assert!(!ended(SlotState::Active, 7));
        // It is fenced, and what it held stands.
        assert!(
            ended(SlotState::Recovering, 7) && !is_over(&record(SlotState::Recovering), life(7))
        );
        assert!(ended(SlotState::Free, 7));
    }
}
