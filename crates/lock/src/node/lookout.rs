//! Fences for a node that is still joining. Recovering the slot that it takes may wait for what a silent
//! node of another host holds, and there is no watcher yet that would fence that one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use braid_device::Moment;
use braid_format::NodeId;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use parking_lot::Mutex;

use super::claim::read_slots;
use super::fence::Fencer;
use super::watch::{SlotSight, Watch, WatchAction, WatchEvent};
use super::{FenceMethod, HostIdentity, JoinOptions, NodeStore};
use crate::error::LockError;

/// Looks at the other nodes, and fences those that are silent. It recovers nobody.
pub(super) struct Lookout<'a> {
    pub store: &'a dyn NodeStore,
    pub options: &'a JoinOptions,
    pub identity: &'a HostIdentity,
    /// The slot that is being taken.
    pub mine: &'a SlotRecord,
    /// When the last heartbeat that was written was issued: who cannot say that it lives fences nobody.
    pub said: &'a Mutex<Moment>,
}

impl Lookout<'_> {
    /// Looks once in a beat, until `done`. A fence that is under way then is waited for.
    pub fn run(&self, done: &AtomicBool) {
        let beat = self.options.timing.beat();
        let mut watch = Watch::new(self.mine.life, self.identity.clone(), beat);
        let (origin, mut sequences, mut nonce) = (Instant::now(), HashMap::new(), self.mine.nonce);
        while !done.load(Ordering::Acquire) {
            std::thread::park_timeout(beat);
            let mut events = match self.sight(&mut sequences) {
                Ok(sight) => vec![WatchEvent::Sight(sight)],
                Err(e) => {
                    tracing::warn!("cannot look at the other nodes: {e}");
                    continue;
                }
            };
            while let Some(event) = events.pop() {
                nonce = nonce.wrapping_add(1);
                for action in watch.step(origin.elapsed(), nonce, event) {
                    events.extend(self.perform(action));
                }
            }
        }
    }

    fn perform(&self, action: WatchAction) -> Option<WatchEvent> {
        match action {
            WatchAction::Fence(record) => {
                Some(WatchEvent::Fenced(record.life.slot, self.fence(&record)))
            }
            // Others are recovered once this node has its slot.
            WatchAction::Write { new, .. } => Some(WatchEvent::Wrote(new.life.slot, false)),
            WatchAction::Suspect(life) => {
                super::say_suspect(life);
                None
            }
            _ => None,
        }
    }

    fn fencer(&self) -> Fencer<'_> {
        self.options.fencer(self.store, self.mine.fence_key, &self.identity.host)
    }

    fn fence(&self, record: &SlotRecord) -> bool {
        let fit = || Moment::now().since(*self.said.lock()) < self.options.timing.lease();
        if !fit() {
            return false;
        }
        let life = record.acting();
        tracing::warn!(
            ?life,
            host = record.host,
            "no heartbeat for too long: fencing it, for a recovery may wait for what it holds"
        );
        match self.fencer().fence(record, &fit) {
            Ok(method) => {
                tracing::warn!(?life, method = method.name(), "fenced");
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(?life, "not fenced: {e}");
                false
            }
        }
    }

    fn sight(
        &self,
        sequences: &mut HashMap<NodeId, (super::Me, u64)>,
    ) -> Result<Vec<SlotSight>, LockError> {
        // One that cannot be read is nobody's that could be fenced.
        let records = read_slots(self.store, &[])?.records;
        let bytes = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let (methods, places) = (self.fencer().methods(), self.store.lock_places());
        let mut sight = Vec::with_capacity(records.len());
        for record in records {
            let (slot, life) = (record.life.slot, record.acting());
            let sector = bytes.chunks(self.store.sector_len()).nth(usize::from(slot.0));
            // Torn by its own write: the last one stands.
            if let Some(Ok(beat)) = sector.map(|s| Heartbeat::decode(s, slot)) {
                sequences.insert(slot, (beat.life, beat.sequence));
            }
            if slot == self.mine.life.slot {
                continue;
            }
            let sequence = sequences.get(&slot).filter(|s| s.0 == life).map(|s| s.1);
            let proven = self.options.proofs.of(&record).is_some();
            let fenceable =
                record.state != SlotState::Free && methods(&record) != FenceMethod::Operator;
            // Who of this host is dead is no matter here, and strangers were refused before.
            let witnessed = self.identity.sees_lock_of(&record, &places);
            let (life_locked, stranger) = (true, false);
            sight.push(SlotSight {
                record,
                sequence,
                life_locked,
                witnessed,
                stranger,
                proven,
                fenceable,
            });
        }
        Ok(sight)
    }
}
