//! Whether any other node can have used the pool since a life ended that this node came after.
//!
//! What a dead node held, locks of programs too, is free for all others as soon as its slot says that it is recovered. So
//! whoever wants to have again what was held before must know that nobody else was there: no node when this one joined,
//! none since, and none in between. The last is known of a life that this node has recovered itself, since its locks
//! stood until then; and of one that left in order, if no other slot was ever used.

use braid_format::node::{SlotRecord, SlotState};
use braid_format::{Incarnation, NodeId};

use crate::Life;

/// Who else can have used the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Nobody.
    Nobody,
    /// Nobody so far, and what the life held stands: its slot is not recovered yet.
    NotYet,
    /// Others, or it is not known.
    Others,
}

/// Who else can have used the pool since `life` ended, as this node knows.
pub(super) struct Since<'a> {
    pub me: Life,
    /// The slots as they were when this node had joined, and as they are; all of them.
    pub at_join: &'a [SlotRecord],
    pub now: &'a [SlotRecord],
    /// The lives that this node has recovered.
    pub recovered: &'a [Life],
}

impl Since<'_> {
    pub fn company(&self, life: Life) -> Company {
        let found = |records: &[SlotRecord], slot: NodeId| {
            records.iter().find(|r| r.life.slot == slot).map(|r| (r.life, r.state))
        };
        let others = || self.at_join.iter().filter(|r| r.life.slot != self.me.slot);
        let was_alone = others().all(|r| r.state == SlotState::Free || r.life == life);
        let is_as_then = |r: &SlotRecord| match found(self.now, r.life.slot) {
            Some((other, state)) => other == r.life && (state == SlotState::Free || other == life),
            None => false,
        };
        if !was_alone || !others().all(is_as_then) {
            return Company::Others;
        }
        let slot = found(self.now, life.slot).filter(|_| life.slot != self.me.slot);
        if slot.is_some_and(|(_, state)| state != SlotState::Free) {
            Company::NotYet
        } else if life == self.me || self.recovered.contains(&life) || self.left_alone(life) {
            Company::Nobody
        } else {
            Company::Others
        }
    }

    /// Whether `life` left in order just before this one, and no other slot was ever used.
    fn left_alone(&self, life: Life) -> bool {
        let Incarnation(before) = life.incarnation;
        let is_next =
            self.me == Life { slot: life.slot, incarnation: Incarnation(before.wrapping_add(1)) };
        let has_left = |r: &SlotRecord| r.life == life && r.state == SlotState::Free;
        let unused = |r: &SlotRecord| r.life.incarnation == Incarnation(0);
        let of_life = |r: &SlotRecord| r.life.slot == life.slot;
        (is_next || self.me.incarnation == Incarnation(1) && self.at_join.iter().any(has_left))
            && self.at_join.iter().all(|r| r.life == self.me || of_life(r) || unused(r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMER: Life = life(0, 4);

    const fn life(slot: u16, incarnation: u32) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) }
    }
    fn slot(life: Life, state: SlotState) -> SlotRecord {
        SlotRecord { life, state, ..SlotRecord::free(life.slot) }
    }
    fn company(
        me: Life,
        at_join: &[SlotRecord],
        now: &[SlotRecord],
        recovered: &[Life],
    ) -> Company {
        Since { me, at_join, now, recovered }.company(FORMER)
    }

    #[test]
    fn who_recovered_it_alone_has_had_no_company() {
        use SlotState::{Active, Free};
        // In its slot: it was recovered to have that.
        let me = life(0, 5);
        let alone = [slot(me, Active), slot(life(1, 9), Free)];
        assert_eq!(company(me, &alone, &alone, &[FORMER]), Company::Nobody);
        // Else it left, or somebody else has recovered it.
        assert_eq!(company(me, &alone, &alone, &[]), Company::Others);
        let with_other = [slot(me, Active), slot(life(1, 9), Active)];
        assert_eq!(company(me, &with_other, &alone, &[FORMER]), Company::Others);
        assert_eq!(company(me, &alone, &with_other, &[FORMER]), Company::Others);
        // One came, and is gone again.
        let used_since = [slot(me, Active), slot(life(1, 10), Free)];
        assert_eq!(company(me, &alone, &used_since, &[FORMER]), Company::Others);
    }

    #[test]
    fn what_a_dead_node_held_stands_until_its_slot_is_recovered() {
        use SlotState::{Active, Free, Recovering};
        let me = life(1, 10);
        let at_join = [slot(FORMER, Active), slot(me, Active)];
        let recovering = [slot(FORMER, Recovering), slot(me, Active)];
        let free = [slot(FORMER, Free), slot(me, Active)];
        assert_eq!(company(me, &at_join, &at_join, &[]), Company::NotYet);
        assert_eq!(company(me, &at_join, &recovering, &[]), Company::NotYet);
        assert_eq!(company(me, &at_join, &free, &[FORMER]), Company::Nobody);
        assert_eq!(company(me, &at_join, &free, &[]), Company::Others);
        let again = [slot(life(0, 5), Active), slot(me, Active)];
        assert_eq!(company(me, &at_join, &again, &[FORMER]), Company::Others);
    }

    #[test]
    fn after_one_that_left_only_slots_that_were_never_used_are_nobody() {
        use SlotState::{Active, Free};
        let me = life(0, 5);
        let (unused, used) = (slot(life(1, 0), Free), slot(life(1, 1), Free));
        let of = |other: &SlotRecord| [slot(me, Active), other.clone()];
        assert_eq!(company(me, &of(&unused), &of(&unused), &[]), Company::Nobody);
        assert_eq!(company(me, &of(&used), &of(&used), &[]), Company::Others);
        // It is not the next one in that slot.
        let me = life(0, 6);
        let slots = [slot(me, Active), unused.clone()];
        assert_eq!(company(me, &slots, &slots, &[]), Company::Others);
        // Another slot, which has its first life.
        let me = life(1, 1);
        let slots = [slot(FORMER, Free), slot(me, Active)];
        assert_eq!(company(me, &slots, &slots, &[]), Company::Nobody);
    }

    #[test]
    fn a_slot_that_cannot_be_read_is_company() {
        let me = life(0, 5);
        let (mine, other) = (slot(me, SlotState::Active), slot(life(1, 0), SlotState::Free));
        assert_eq!(company(me, &[mine.clone(), other], &[mine], &[FORMER]), Company::Others);
    }
}
