//! Messages of other nodes about locks: [`crate::hints`].

use braid_format::lock_record::Life;
use braid_format::node::SlotState;

use super::Inner;
use crate::hints::Received;

impl Inner {
    /// A message came. One of a life that the slots do not show says nothing.
    pub(super) fn heard(&self, Received { from, lock, hint }: &Received) {
        let slots = self.slots.read();
        let slot = slots.get(usize::from(from.slot.0)).map(|s| &s.record);
        let shown = slot.is_some_and(|r| r.life == *from && r.state != SlotState::Free);
        drop(slots);
        if shown && let Some(manager) = self.manager_of(*lock) {
            manager.message(*from, *lock, hint);
        }
    }

    /// Says, once of each life, that messages for it go through the devices, and why.
    pub(super) fn say_slow_way(&self, to: Life) {
        if self.store.carries_hints() || self.slow_ways.lock().get(&to.slot) == Some(&to) {
            return;
        }
        let slots = self.slots.read();
        let slot = slots.get(usize::from(to.slot.0)).map(|s| &s.record);
        let Some(record) = slot.filter(|r| r.life == to) else { return };
        let Some(why) = self.hints.why_devices(record) else { return };
        tracing::info!(
            "node {} on {} learns from the devices which locks are wanted, which takes 10 ms and more: {why}; \
             -o hints=tcp:ADDRESS makes a node listen",
            to.slot,
            record.host
        );
        drop(slots);
        self.slow_ways.lock().insert(to.slot, to);
    }

    /// The hint receiver's life.
    pub(super) fn receive_hints(&self) {
        let Some(socket) = self.hints.unix() else { return };
        loop {
            let received = socket.receive();
            if self.stopped() {
                return;
            }
            match received {
                Ok(Some(hint)) => self.heard(&hint),
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!("no hints any more, locks are polled: {e}");
                    return;
                }
            }
        }
    }
}
