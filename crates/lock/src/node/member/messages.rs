//! Messages of other nodes about locks: [`crate::hints`].

use braid_format::lock_record::Life;
use braid_format::node::SlotState;

use std::sync::atomic::Ordering;

use super::Inner;
use crate::hints::{RECEIVERS, Received};

impl Inner {
    /// A message came. One of a life that the slots do not show says nothing. `may_visit` as in
    /// [`LockManager::message`](crate::LockManager::message).
    pub(super) fn heard(&self, Received { from, lock, hint }: &Received, may_visit: bool) {
        let slots = self.slots.read();
        let slot = slots.get(usize::from(from.slot.0)).map(|s| &s.record);
        let shown = slot.is_some_and(|r| r.life == *from && r.state != SlotState::Free);
        drop(slots);
        if shown && let Some(manager) = self.manager_of(*lock) {
            manager.message(*from, *lock, hint, may_visit);
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

    /// The life of one of the threads that receive hints, [`RECEIVERS`] in all. The kernel gives each message to one
    /// of them, which does what it calls for; one is always left to receive.
    pub(super) fn receive_hints(&self) {
        let Some(socket) = self.hints.unix() else { return };
        loop {
            let received = socket.receive();
            if self.stopped() {
                return;
            }
            match received {
                Ok(Some(hint)) => {
                    let busy = self.busy_receivers.fetch_add(1, Ordering::AcqRel) + 1;
                    self.heard(&hint, busy < RECEIVERS);
                    self.busy_receivers.fetch_sub(1, Ordering::AcqRel);
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!("no hints any more, locks are polled: {e}");
                    return;
                }
            }
        }
    }
}
