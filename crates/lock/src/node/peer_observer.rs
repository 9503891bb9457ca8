//! Whether other nodes may still use the pool, read directly from slots, heartbeats and liveness locks:
//! for callers that must not wait for the watcher.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use braid_format::features::Features;
use braid_format::node::{Heartbeat, SlotRecord};
use braid_format::{Incarnation, NodeId};
use braid_pool::{EpochTag, Reservable};
use parking_lot::Mutex;

use super::cached::Cached;
use super::life::{is_over, user_of};
use super::observation::tag_of;
use super::slots::{Unreadable, decode_slot, read_slots};
use super::watch::Watch;
use super::{HostIdentity, JoinOptions, NodeStore, Proofs, SilentSlots, Timing};
use crate::Life;
use crate::error::LockError;
use crate::simulation;

/// Looks at slots, heartbeats and liveness locks when asked.
pub struct PeerObserver {
    store: Arc<dyn NodeStore>,
    me: Life,
    identity: HostIdentity,
    proofs: Proofs,
    silent_slots: SilentSlots,
    seen: Mutex<HashMap<NodeId, Seen>>,
    slots: Mutex<HashMap<NodeId, Cached>>,
    unreadable: Mutex<Vec<Unreadable>>,
    timing: Timing,
}

/// What a slot showed last, and since when it shows nothing else.
#[derive(PartialEq, Eq)]
struct Seen {
    life: Life,
    sequence: Option<u64>,
    locked: bool,
    since: Instant,
    /// New beats since the lock was first not seen.
    beats_unlocked: u32,
}

/// Heartbeats as they stand.
struct Beats {
    sectors: Vec<u8>,
    len: usize,
}

impl Beats {
    fn of(&self, slot: NodeId) -> Option<Heartbeat> {
        let sector = self.sectors.chunks_exact(self.len).nth(usize::from(slot.0))?;
        Heartbeat::decode(sector, slot).ok()
    }
}

impl PeerObserver {
    /// The eyes of `me`, which may still be joining.
    pub fn new(store: Arc<dyn NodeStore>, me: Life, options: &JoinOptions) -> Self {
        let identity = options.identity.clone().unwrap_or_else(super::watch::this_host);
        let (proofs, silent_slots) = (options.proofs.clone(), options.silent_slots.clone());
        let (seen, slots, unreadable) = (Mutex::default(), Mutex::default(), Mutex::default());
        let timing = options.timing;
        Self { store, me, identity, proofs, silent_slots, seen, slots, unreadable, timing }
    }

    /// Whether every other node that lives, or may, has said in a heartbeat that it uses the
    /// pool's epoch `tag`. In doubt not.
    pub fn all_use(&self, tag: EpochTag) -> bool {
        self.late(tag).is_some_and(|late| late.is_empty())
    }

    /// The other nodes that live, or may, and have not said so; `None`: that cannot be seen now. The
    /// incarnation of a node whose slot cannot be read is 0.
    pub fn late(&self, tag: EpochTag) -> Option<Vec<Life>> {
        let late = self.try_late(tag);
        late.inspect_err(|e| tracing::warn!("cannot look at the other nodes: {e}")).ok()
    }

    /// The other nodes that say in their heartbeats that they do not know all of these features of the format: they
    /// could not go on if the pool had them. One that has not said yet that it lives looks at the pool's features once
    /// it has; one that is proven dead does not count. Waits for no lock and for no epoch.
    ///
    /// # Errors
    /// [`LockError::NodeStore`].
    pub fn who_lacks(&self, features: Features) -> Result<Vec<NodeId>, LockError> {
        let known = self.unreadable.lock().clone();
        let slots = read_slots(&*self.store, &known)?;
        let beats = self.beats()?;
        let lacks = |slot: NodeId, is_it: &dyn Fn(Life) -> bool| {
            let beat = beats.of(slot).filter(|b| is_it(b.life));
            beat.is_some_and(|b| !features.without(b.knows).is_empty()).then_some(slot)
        };
        let mut who = Vec::new();
        for slot in slots.unreadable.iter().map(|u| u.slot) {
            if !self.is_deserted(slot, beats.of(slot).map(|b| b.sequence))? {
                who.extend(lacks(slot, &|_| true));
            }
        }
        let others = slots.records.iter().filter(|r| self.proofs.of(r).is_none());
        let others = others.filter_map(|r| {
            let life = user_of(r).filter(|l| *l != self.me)?;
            lacks(life.slot, &|said| said == life)
        });
        who.extend(others);
        Ok(who)
    }

    fn beats(&self) -> Result<Beats, LockError> {
        let sectors = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        Ok(Beats { sectors, len: self.store.sector_len() })
    }

    fn try_late(&self, tag: EpochTag) -> Result<Vec<Life>, LockError> {
        // In this order: a node that is not in the slots yet looks at the labels once it is.
        let known = self.unreadable.lock().clone();
        let slots = read_slots(&*self.store, &known)?;
        let beats = self.beats()?;
        let mut late = Vec::new();
        for Unreadable { slot, .. } in &slots.unreadable {
            let beat = beats.of(*slot);
            let says = beat.as_ref().is_some_and(|b| tag_of(b) == tag);
            if !self.is_deserted(*slot, beat.map(|b| b.sequence))? && !says {
                late.push(Life { slot: *slot, incarnation: Incarnation(0) });
            }
        }
        *self.unreadable.lock() = slots.unreadable;
        for record in &slots.records {
            let Some(life) = user_of(record).filter(|l| *l != self.me) else { continue };
            let beat = beats.of(life.slot).filter(|b| b.life == life);
            let says = beat.as_ref().is_some_and(|b| tag_of(b) == tag);
            // All are looked at, since when matters.
            if !self.is_fenced(record, life, beat.map(|b| b.sequence))? && !says {
                late.push(life);
            }
        }
        Ok(late)
    }

    /// Whether whoever may have a slot that cannot be read uses the pool no more: a node that lives
    /// writes its slot anew, and one that is silent for so long issues nothing. Whether it is dead
    /// is another question: what it held stands.
    fn is_deserted(&self, slot: NodeId, sequence: Option<u64>) -> Result<bool, LockError> {
        let locked = self.store.life_locked(slot).map_err(LockError::NodeStore)?;
        Ok(self.silent_slots.note(slot, sequence, locked) > self.timing.fence_after())
    }

    /// Whether what `life` held may be broken, by its slot ([`is_over`]). In doubt not.
    pub fn is_over(&self, life: Life) -> bool {
        let known = self.slots.lock().get(&life.slot).and_then(|s| s.is_over(life));
        known.unwrap_or_else(|| {
            let Some(cached) = Cached::read(&*self.store, life.slot) else { return false };
            let over = is_over(&cached.record, life);
            self.slots.lock().insert(life.slot, cached);
            over
        })
    }

    /// Whether `life` issues nothing any more and nothing of it is in flight: it left, was
    /// recovered, or is fenced. In doubt not.
    pub fn is_gone(&self, life: Life) -> bool {
        self.try_is_gone(life).unwrap_or(false)
    }

    fn try_is_gone(&self, life: Life) -> Result<bool, LockError> {
        let slot = life.slot;
        let sector = self.store.read_slot(slot).map_err(LockError::NodeStore)?;
        let record = decode_slot(&*self.store, slot, &sector)?;
        if user_of(&record) != Some(life) {
            return Ok(true);
        }
        let beat = self.beats()?.of(slot);
        let sequence = beat.filter(|b| b.life == life).map(|b| b.sequence);
        self.is_fenced(&record, life, sequence)
    }

    /// By the same proofs as the watcher's: it was fenced from here; its process's lock would be seen
    /// here, is gone, and it did not beat for two beats; or it is of an earlier boot of this machine,
    /// has no key by which it could be fenced, and is silent.
    fn is_fenced(
        &self,
        record: &SlotRecord,
        life: Life,
        sequence: Option<u64>,
    ) -> Result<bool, LockError> {
        if self.proofs.of(record).is_some() {
            return Ok(true);
        }
        let locked = self.store.life_locked(life.slot).map_err(LockError::NodeStore)?;
        let mut seen = self.seen.lock();
        let before = seen.get(&life.slot).filter(|s| s.life == life);
        let Some(before) = before.filter(|s| (s.sequence, s.locked) == (sequence, locked)) else {
            let was = before.filter(|s| !s.locked && !locked && s.sequence != sequence);
            let beats_unlocked = match (was, before) {
                (Some(s), _) => s.beats_unlocked.saturating_add(1),
                (None, Some(s)) if s.beats_unlocked >= Watch::BEATS_DISTRUSTED => s.beats_unlocked,
                _ => 0,
            };
            let since = simulation::now();
            seen.insert(life.slot, Seen { life, sequence, locked, since, beats_unlocked });
            return Ok(false);
        };
        let (silent, timing) =
            (simulation::since(before.since), Timing::of_slot(record.io_timeout));
        let fenceable = record.fence_key != 0 && self.store.pool().reservable() == Reservable::All;
        let trusted = before.beats_unlocked < Watch::BEATS_DISTRUSTED;
        let enough = if trusted && self.identity.sees_lock_of(record, &self.store.lock_places()) {
            timing.beat() * Watch::LOOKS
        } else if self.identity.is_earlier_boot_of(record) && !fenceable {
            timing.fence_after()
        } else {
            return Ok(false);
        };
        Ok(!locked && silent > enough)
    }
}
