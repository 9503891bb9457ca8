//! What this node sees of all slots, its own too, and keeps right in that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::NodeId;
use braid_format::node::{Heartbeat, LockPlace, SlotRecord};

use super::super::cached::Cached;
use super::super::observation::{Observer, SlotObservation};
use super::super::slots::{Slots, decode_slot, decode_slots, first_places, log_new};
use super::pace::has_news;
use super::state::NodeState;
use crate::dlock::Time;
use crate::error::LockError;
use crate::store::CawOutcome;

impl NodeState {
    /// All slots that can be read; what else was known before of the others stays so.
    pub(super) fn read_slots(&self) -> Result<Vec<SlotRecord>, LockError> {
        let bytes = self.store.read_slots().map_err(LockError::NodeStore)?;
        self.note_slots(&bytes)
    }
    fn note_slots(&self, bytes: &[u8]) -> Result<Vec<SlotRecord>, LockError> {
        let known = self.unreadable.lock().clone();
        let Slots { records, unreadable } = decode_slots(&*self.store, bytes, &known)?;
        log_new(&unreadable, &known);
        if !unreadable.is_empty() {
            self.pace.stir();
        }
        *self.unreadable.lock() = unreadable;
        let mut slots = self.slots.write();
        for record in &records {
            if let Some(slot) = slots.get_mut(usize::from(record.life.slot.0)) {
                if slot.record != *record {
                    self.pace.stir();
                }
                *slot = Cached::now(record.clone());
            }
        }
        Ok(records)
    }

    pub(super) fn observe(&self) -> Result<Vec<SlotObservation>, LockError> {
        let read = self.store.read_slots_and_heartbeats();
        let (slots, bytes) = read.map_err(LockError::NodeStore)?;
        let records = self.note_slots(&slots)?;
        let observer = Observer {
            me: self.me,
            identity: &self.identity,
            places: self.store.lock_places(),
            by_lock: self.store.emulates_compare_and_write(),
            means: self.fencer().means(),
            epoch: self.store.pool().epoch(),
        };
        let now = self.origin.elapsed();
        let asks = self.note_beats(now, &observer, &records, &bytes);
        self.note_silent_slots(&bytes)?;
        let mut observed = Vec::with_capacity(records.len());
        for (record, asks) in records.into_iter().zip(asks) {
            let slot = record.life.slot;
            // No device is waited for while the heartbeats are locked: who does anything else with them
            // would wait too.
            let locked = !asks || self.store.life_locked(slot).map_err(LockError::NodeStore)?;
            let proven = self.options.proofs.of(&record).is_some();
            observed.push(observer.observe(record, &self.beats.lock(), locked, proven));
        }
        Ok(observed)
    }

    /// Notes what the slots that cannot be read show.
    fn note_silent_slots(&self, heartbeats: &[u8]) -> Result<(), LockError> {
        let unreadable: Vec<NodeId> = self.unreadable.lock().iter().map(|u| u.slot).collect();
        let silent_slots = &self.options.silent_slots;
        silent_slots.retain(&unreadable);
        for slot in unreadable {
            let sector = heartbeats.chunks_exact(self.store.sector_len()).nth(usize::from(slot.0));
            let sequence = sector.and_then(|s| Heartbeat::decode(s, slot).ok()).map(|b| b.sequence);
            let locked = self.store.life_locked(slot).map_err(LockError::NodeStore)?;
            silent_slots.note(slot, sequence, locked);
        }
        Ok(())
    }

    /// Keeps the heartbeats that were read; whether each slot's liveness lock is to be asked for.
    fn note_beats(
        &self,
        now: Time,
        observer: &Observer<'_>,
        records: &[SlotRecord],
        bytes: &[u8],
    ) -> Vec<bool> {
        let mut beats = self.beats.lock();
        let len = self.store.sector_len();
        let note = |record: &SlotRecord| {
            let slot = record.life.slot;
            let sector = bytes.chunks_exact(len).nth(usize::from(slot.0)).unwrap_or_default();
            let before = beats.of_slot(slot).cloned();
            if let Some(beat) = beats.note(now, slot, sector)
                && beat.life != self.me
                && has_news(before.as_ref(), beat)
            {
                self.pace.stir();
            }
            observer.asks_for_lock(now, record, &beats)
        };
        records.iter().map(note).collect()
    }

    /// Where it holds its liveness lock, as its slot says it.
    pub(super) fn places(&self) -> Vec<LockPlace> {
        first_places(self.store.held_places(self.me.slot))
    }
    pub(super) fn sees_lock_of(&self, record: &SlotRecord) -> bool {
        self.identity.sees_lock_of(record, &self.store.lock_places())
    }

    /// Whether the slot says where this node's liveness lock is, and how it compares.
    fn says_how(&self, mine: &SlotRecord) -> bool {
        let by_lock = self.store.emulates_compare_and_write();
        mine.lock_places == self.places() && mine.emulates_compare_and_write == by_lock
    }

    /// The members that carry the liveness lock may have changed: the slot says so, or others of this
    /// host could not tell this node's death. Nor could they if the slot cannot be read.
    pub(super) fn check_own_slot(self: &Arc<Self>) {
        let mine = self.mine.try_lock();
        let same = self.places().is_empty() || mine.is_none_or(|mine| self.says_how(&mine));
        let readable = self.unreadable.lock().iter().all(|u| u.slot != self.me.slot);
        if (same && readable) || self.placing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let run = move || {
            let mut mine = this.mine.lock();
            let written = match this.mend_slot(&mine) {
                Ok(()) if this.says_how(&mine) => Ok(true),
                Ok(()) => {
                    let (nonce, lock_places) = (this.nonce(), this.places());
                    let emulates_compare_and_write = this.store.emulates_compare_and_write();
                    let new = SlotRecord {
                        nonce,
                        lock_places,
                        emulates_compare_and_write,
                        ..mine.clone()
                    };
                    let written = this.write_slot(&mine, &new);
                    if matches!(written, Ok(true)) {
                        *mine = new;
                    }
                    written
                }
                Err(e) => Err(e),
            };
            match written {
                Ok(true) => {}
                Ok(false) => tracing::warn!("this node's slot has been changed by others"),
                Err(e) => tracing::warn!("this node's slot: {e}"),
            }
            drop(mine);
            this.placing.store(false, Ordering::Release);
        };
        match std::thread::Builder::new().name("places".to_owned()).spawn(run) {
            Ok(thread) => self.keep(thread),
            Err(e) => {
                self.placing.store(false, Ordering::Release);
                tracing::error!("cannot start a thread: {e}");
            }
        }
    }

    /// Writes this node's slot anew if it cannot be read: while this node lives nobody else changes it
    /// then.
    pub(super) fn mend_slot(&self, mine: &SlotRecord) -> Result<(), LockError> {
        let slot = self.me.slot;
        let stands = self.store.read_slot(slot).map_err(LockError::NodeStore)?;
        if !matches!(decode_slot(&*self.store, slot, &stands), Err(LockError::Slot { .. })) {
            return Ok(());
        }
        let mut bytes = vec![0; self.store.sector_len()];
        mine.encode(&mut bytes);
        let written = self.store.compare_and_write_slot(slot, &stands, &bytes);
        if written.map_err(LockError::NodeStore)? == CawOutcome::Written {
            tracing::warn!("this node's slot could not be read, and was written anew");
        }
        Ok(())
    }
}
