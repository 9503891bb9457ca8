//! What this node sees of all slots, its own too, and keeps right in that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_format::node::{Heartbeat, LockPlace, SlotRecord, SlotState};

use super::super::cached::Cached;
use super::super::claim::{Slots, decode_slot, first_places, is_stranger, read_slots, say_new};
use super::super::watch::SlotSight;
use super::super::{FenceMethod, Timing};
use super::{Inner, tag_of};
use crate::error::LockError;
use crate::store::CawOutcome;

impl Inner {
    /// All slots that can be read; what else was known before of the others stays so.
    pub(super) fn read_slots(&self) -> Result<Vec<SlotRecord>, LockError> {
        let known = self.unreadable.lock().clone();
        let Slots { records, unreadable } = read_slots(&*self.store, &known)?;
        say_new(&unreadable, &known);
        *self.unreadable.lock() = unreadable;
        let mut slots = self.slots.write();
        for record in &records {
            if let Some(slot) = slots.get_mut(usize::from(record.life.slot.0)) {
                *slot = Cached::now(record.clone());
            }
        }
        Ok(records)
    }

    pub(super) fn sight(&self) -> Result<Vec<SlotSight>, LockError> {
        let records = self.read_slots()?;
        let bytes = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let beats = self.note_beats(&records, &bytes);
        let methods = self.fencer().methods();
        let (places, by_lock) = (self.store.lock_places(), self.store.compares_by_lock());
        let mut sight = Vec::with_capacity(records.len());
        for (record, NotedBeat { sequence, moving }) in records.into_iter().zip(beats) {
            let life = record.life;
            let life_locked = record.state == SlotState::Free
                || life == self.me
                || moving
                || self.store.life_locked(life.slot).map_err(LockError::NodeStore)?;
            let witnessed = self.identity.sees_lock_of(&record, &places);
            let stranger = life != self.me && is_stranger(&record, &places, by_lock);
            let proven = self.options.proofs.of(&record).is_some();
            let fenceable =
                record.state != SlotState::Free && methods(&record) != FenceMethod::Operator;
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

    /// Keeps the heartbeats that were read; what each slot's says that stands. Waits for no device: who
    /// does anything else with them would wait too.
    fn note_beats(&self, records: &[SlotRecord], bytes: &[u8]) -> Vec<NotedBeat> {
        let (now, epoch) = (Instant::now(), self.store.pool().epoch());
        let mut beats = self.beats.lock();
        let len = self.store.sector_len();
        let note = |record: &SlotRecord| {
            let slot = record.life.slot;
            let sector = bytes.chunks_exact(len).nth(usize::from(slot.0)).unwrap_or_default();
            // Torn by its own write, or never written: the last one stands.
            if let Ok(beat) = Heartbeat::decode(sector, slot)
                && beats.get(&slot).is_none_or(|b| b.0 != beat)
            {
                beats.insert(slot, (beat, now));
            }
            let beat = beats.get(&slot).filter(|b| b.0.life == record.acting());
            let recent = Timing::of_slot(record.io_timeout).beat() * 2;
            let is_recent = |at: Instant| now.saturating_duration_since(at) < recent;
            NotedBeat {
                sequence: beat.map(|b| b.0.sequence),
                moving: beat.is_some_and(|b| tag_of(&b.0) != epoch && is_recent(b.1)),
            }
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

    /// The members that carry the liveness lock may have changed: the slot says so, or others of this
    /// host could not tell this node's death. Nor could they if the slot cannot be read.
    pub(super) fn heed_slot(self: &Arc<Self>) {
        let places = self.places();
        let mine = self.mine.try_lock();
        let same = places.is_empty() || mine.is_none_or(|mine| mine.lock_places == places);
        let readable = self.unreadable.lock().iter().all(|u| u.slot != self.me.slot);
        if (same && readable) || self.placing.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let run = move || {
            let mut mine = this.mine.lock();
            let written = match this.mend_slot(&mine) {
                Ok(()) if mine.lock_places == this.places() => Ok(true),
                Ok(()) => {
                    let (nonce, lock_places) = (this.nonce(), this.places());
                    let new = SlotRecord { nonce, lock_places, ..mine.clone() };
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

/// What a look shows of a slot's heartbeats.
struct NotedBeat {
    /// Of the last one of who acts by it.
    sequence: Option<u64>,
    /// It came of late, of who uses another epoch of the pool: its liveness lock may be on members that
    /// are not known here.
    moving: bool,
}
