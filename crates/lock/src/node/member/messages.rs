//! Messages of other nodes about locks, by [`crate::hints`] and by heartbeats, and what is said so to them.

use std::time::Instant;

use braid_format::node::SlotState;
use braid_format::{LockNo, NodeId};

use super::state::NodeState;
use crate::dlock::Hint;
use crate::error::LockError;
use crate::hints::Received;
use crate::{Life, Mode};

impl NodeState {
    /// Messages came together. One of a life that the slots do not show says nothing. `may_visit` as in
    /// [`LockManager::message`](crate::LockManager::message).
    pub(super) fn heard(&self, received: &[Received], may_visit: bool) {
        let mut rest = received;
        while let Some(first) = rest.first() {
            let of_region = self.is_of_region(first.lock);
            let alike =
                |r: &&Received| r.from == first.from && self.is_of_region(r.lock) == of_region;
            let (some, others) = rest.split_at(rest.iter().take_while(alike).count());
            // One that waits does not keep those after it from being heard.
            self.heard_of(first.from, some, may_visit && others.is_empty());
            rest = others;
        }
    }
    /// The same, from one life and about locks of one manager.
    fn heard_of(&self, from: Life, received: &[Received], may_visit: bool) {
        let Some(first) = received.first() else { return };
        let slots = self.slots.read();
        let slot = slots.get(usize::from(from.slot.0)).map(|s| &s.record);
        let shown = slot.is_some_and(|r| r.life == from && r.state != SlotState::Free);
        drop(slots);
        if !shown || received.iter().any(|r| r.hint == Hint::Look) {
            // It has just come, or says that there is something to be seen.
            self.pace.call();
        }
        if shown && let Some(manager) = self.manager_of(first.lock) {
            let messages: Vec<_> = received.iter().map(|r| (r.lock, &r.hint)).collect();
            manager.messages(from, &messages, may_visit);
        }
    }

    /// Has the others look: this node's heartbeat says something that they wait for.
    pub(super) fn call_for_looks(&self) {
        let slots = self.slots.read();
        let others = slots.iter().map(|s| &s.record);
        for other in others.filter(|r| r.state != SlotState::Free && r.life != self.me) {
            self.hints.send(other, LockNo(0), &Hint::Look);
        }
    }

    /// Whether there is another node that learns of wanted locks from heartbeats alone, or lets this node learn so.
    pub(super) fn is_cut_off(&self) -> bool {
        let slots = self.slots.read();
        let others = slots.iter().map(|s| &s.record);
        let mut others = others.filter(|r| r.state != SlotState::Free && r.life != self.me);
        others.any(|r| !self.hints.joins(r))
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

    /// The life of each of the [`Receivers`](crate::hints::Receivers) by the Unix socket. The kernel gives each
    /// message to one of them.
    pub(super) fn receive_hints(&self) {
        let Some(socket) = self.hints.unix() else { return };
        loop {
            let received = socket.receive();
            if self.stopped() {
                return;
            }
            match received {
                Ok(hints) if hints.is_empty() => {}
                Ok(hints) => {
                    self.receivers.busy_with(|may_visit| self.heard(&hints, may_visit));
                }
                Err(e) => {
                    tracing::warn!("no hints any more, locks are polled: {e}");
                    return;
                }
            }
        }
    }

    /// Says by way of the devices that a lock is wanted.
    pub(super) fn post(&self, lock: LockNo, mode: Mode) {
        if self.store.carries_hints() || !self.heartbeat_hints.post(lock, mode) {
            return;
        }
        let _stop = self.stop.0.lock();
        self.stop.1.notify_all();
    }

    /// Lives whose hints do not come here.
    fn unheard(&self) -> Vec<Life> {
        let slots = self.slots.read();
        let others = slots.iter().map(|s| &s.record);
        let others = others.filter(|r| r.state != SlotState::Free && r.life != self.me);
        others.filter(|r| !self.hints.hears(r)).map(|r| r.life).collect()
    }

    /// After a usual look: whether there was mail in it.
    pub(super) fn expect_mail(&self, now: Instant) {
        if self.store.carries_hints() {
            return;
        }
        let unheard = self.unheard();
        let beats = self.beats.lock();
        if unheard.iter().any(|l| beats.of(*l).is_some_and(|(beat, _)| !beat.wishes.is_empty())) {
            self.heartbeat_hints.came(now);
        }
    }

    /// Looks for mail, and nothing else.
    pub(super) fn read_mail(&self) -> Result<(), LockError> {
        let len = self.store.sector_len();
        let bytes = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let now = Instant::now();
        let mut mail = Vec::new();
        {
            let (unheard, seen) = (self.unheard(), self.origin.elapsed());
            let mut beats = self.beats.lock();
            for (slot, sector) in (0_u16..).map(NodeId).zip(bytes.chunks_exact(len)) {
                if let Some(beat) = beats.note(seen, slot, sector)
                    && unheard.contains(&beat.life)
                {
                    mail.extend_from_slice(&beat.wishes);
                }
            }
        }
        if !mail.is_empty() {
            self.heartbeat_hints.came(now);
        }
        for (lock, mode) in mail {
            if let Some(manager) = self.manager_of(lock) {
                manager.wish(lock, mode);
            }
        }
        Ok(())
    }
}
