//! Who else may use the pool, seen without the watcher: for those who must not wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_pool::EpochTag;
use parking_lot::Mutex;

use super::cached::{Cached, is_over};
use super::claim::{decode_slot, read_slots};
use super::member::tag_of;
use super::watch::Watch;
use super::{HostIdentity, JoinOptions, NodeStore, Proofs, Timing};
use crate::Me;
use crate::error::LockError;

/// Looks at slots, heartbeats and liveness locks when asked.
pub struct Onlooker {
    store: Arc<dyn NodeStore>,
    me: Me,
    identity: HostIdentity,
    proofs: Proofs,
    seen: Mutex<HashMap<NodeId, Seen>>,
    slots: Mutex<HashMap<NodeId, Cached>>,
}

/// What a slot showed last, and since when it shows nothing else.
#[derive(PartialEq, Eq)]
struct Seen {
    life: Me,
    sequence: Option<u64>,
    locked: bool,
    since: Instant,
}

/// Who may use the pool by this slot: its node, or who takes the slot over and recovers it first.
fn user_of(record: &SlotRecord) -> Option<Me> {
    match record.state {
        SlotState::Free => None,
        SlotState::Active => Some(record.life),
        SlotState::Recovering => record.recoverer.filter(|by| by.slot == record.life.slot),
    }
}

impl Onlooker {
    /// The eyes of `me`, which may still be joining.
    pub fn new(store: Arc<dyn NodeStore>, me: Me, options: &JoinOptions) -> Self {
        let identity = options.identity.clone().unwrap_or_else(super::watch::this_host);
        let proofs = options.proofs.clone();
        Self { store, me, identity, proofs, seen: Mutex::default(), slots: Mutex::default() }
    }

    /// Whether every other node that lives, or may, has said in a heartbeat that it uses the
    /// pool's epoch `tag`. In doubt not.
    pub fn all_use(&self, tag: EpochTag) -> bool {
        self.try_all_use(tag).unwrap_or_else(|e| {
            tracing::warn!("cannot look at the other nodes: {e}");
            false
        })
    }

    fn try_all_use(&self, tag: EpochTag) -> Result<bool, LockError> {
        // In this order: a node that is not in the slots yet looks at the labels once it is.
        let records = read_slots(&*self.store)?;
        let beats = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let mut all = true;
        for (record, sector) in records.iter().zip(beats.chunks_exact(self.store.sector_len())) {
            let Some(life) = user_of(record).filter(|l| *l != self.me) else { continue };
            let beat = Heartbeat::decode(sector, life.slot).ok().filter(|b| b.life == life);
            let says = beat.as_ref().is_some_and(|b| tag_of(b) == tag);
            // All are looked at, since when matters.
            all &= self.is_fenced(record, life, beat.map(|b| b.sequence))? || says;
        }
        Ok(all)
    }

    /// Whether what `life` held may be broken, by its slot ([`is_over`]). In doubt not.
    pub fn is_over(&self, life: Me) -> bool {
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
    pub fn is_gone(&self, life: Me) -> bool {
        self.try_is_gone(life).unwrap_or(false)
    }

    fn try_is_gone(&self, life: Me) -> Result<bool, LockError> {
        let slot = life.slot;
        let sector = self.store.read_slot(slot).map_err(LockError::NodeStore)?;
        let record = decode_slot(&*self.store, slot, &sector)?;
        if user_of(&record) != Some(life) {
            return Ok(true);
        }
        let beats = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let sector = beats.chunks_exact(self.store.sector_len()).nth(usize::from(slot.0));
        let beat = sector.and_then(|s| Heartbeat::decode(s, slot).ok());
        let sequence = beat.filter(|b| b.life == life).map(|b| b.sequence);
        self.is_fenced(&record, life, sequence)
    }

    /// By the same proofs as the watcher's: it was fenced from here, its process's lock is gone and it
    /// did not beat for two beats, or it is of an earlier boot of this host and is silent.
    fn is_fenced(
        &self,
        record: &SlotRecord,
        life: Me,
        sequence: Option<u64>,
    ) -> Result<bool, LockError> {
        if self.proofs.of(record).is_some() {
            return Ok(true);
        }
        let locked = self.store.life_locked(life.slot).map_err(LockError::NodeStore)?;
        let now = Seen { life, sequence, locked, since: Instant::now() };
        let mut seen = self.seen.lock();
        let same = seen.get(&life.slot).is_some_and(|s| {
            (s.life, s.sequence, s.locked) == (now.life, now.sequence, now.locked)
        });
        if !same {
            seen.insert(life.slot, now);
            return Ok(false);
        }
        let silent = seen.get(&life.slot).map_or(Duration::ZERO, |s| s.since.elapsed());
        let beats = if self.identity.is_boot_of(record) {
            Watch::LOOKS
        } else if self.identity.is_earlier_boot_of(record) {
            Watch::EARLIER_BOOT_BEATS
        } else {
            return Ok(false);
        };
        Ok(!locked && silent > Timing::of_slot(record.io_timeout).beat() * beats)
    }
}
