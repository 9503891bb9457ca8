//! Messages of other nodes about locks: [`crate::hints`].

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
