//! The other nodes, as a lock manager of this node sees them.

use braid_format::LockNo;
use braid_format::node::SlotDamage;

use super::Membership;
use crate::Life;
use crate::dlock::Hint;
use crate::hints::MessageWay;
use crate::peers::{Liveness, Peers};

impl Peers for Membership {
    fn liveness(&self, _: LockNo, life: Life) -> Liveness {
        self.inner.liveness(life)
    }
    fn lost(&self, life: Life) -> Option<SlotDamage> {
        let slots = self.inner.slots.read();
        let record = &slots.get(usize::from(life.slot.0))?.record;
        record.damage.filter(|_| record.life == life && !record.is_replayed())
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint) {
        let sent = {
            let slots = self.inner.slots.read();
            let slot = slots.get(usize::from(to.slot.0)).filter(|s| s.record.life == to);
            slot.is_some_and(|s| self.inner.hints.send(&s.record, lock, hint))
        };
        if let Hint::Wanted(mode) = hint
            && !sent
        {
            self.inner.say_slow_way(to);
            self.inner.post(lock, *mode);
        }
    }
    fn hints(&self, to: Life, hints: &[(LockNo, Hint)]) {
        // Those that go through the devices if need be.
        if hints.iter().any(|(_, hint)| matches!(hint, Hint::Wanted(_))) {
            return hints.iter().for_each(|(lock, hint)| self.hint(to, *lock, hint));
        }
        let slots = self.inner.slots.read();
        if let Some(slot) = slots.get(usize::from(to.slot.0)).filter(|s| s.record.life == to) {
            self.inner.hints.send_together(&slot.record, hints);
        }
    }
    fn reaches(&self, life: Life) -> bool {
        let slots = self.inner.slots.read();
        let slot = slots.get(usize::from(life.slot.0)).filter(|s| s.record.life == life);
        slot.is_some_and(|s| {
            let way = self.inner.hints.way(&s.record);
            matches!(way, MessageWay::Unix | MessageWay::Tcp) && self.inner.hints.hears(&s.record)
        })
    }
}
