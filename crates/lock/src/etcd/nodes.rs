//! Node slots in etcd, heartbeats on the pool, liveness by both.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::LockHolder;
use braid_format::NodeId;
use braid_format::node::{Heartbeat, LockPlace, RawSlot, SlotRecord, SlotState};
use parking_lot::Mutex;

use super::beats::{Beat, Behind, Remembered, first_behind};
use super::client::{Act, Pair};
use super::keys::{Etcd, slot_name};
use super::lives::{Leased, LockDomain, TTL, Who, slots};
use crate::error::{EtcdError, StoreError};
use crate::node::{NodeStore, PoolNodes, PoolSide, Timing};
use crate::store::{CawOutcome, Sector};
use crate::{HostIdentity, Life};

/// What was seen of the lives may be so old.
const LIVES_FRESH: Duration = Duration::from_millis(100);

/// The node areas of a file system whose slots are in etcd. Heartbeats stay on the pool: they are
/// plain writes, and say that their node reaches the devices.
pub struct EtcdNodes {
    etcd: Arc<Etcd>,
    pool: PoolNodes,
    identity: HostIdentity,
    lives: Mutex<Option<(Instant, HashMap<NodeId, Who>)>>,
    /// This node's heartbeat that was written last.
    written: Mutex<Option<(NodeId, Beat)>>,
}

type Beats = HashMap<Life, u64>;

/// A lease ends so long after its process, and etcd takes its time to see it.
const LEASE_ENDS: Duration = TTL.saturating_add(Duration::from_secs(2));

/// A new heartbeat is waited for so long, before the one that is known is remembered: more than the usual time
/// between two.
const NEW_BEAT: Duration = Duration::from_secs(2);

/// A wait is told of once it is longer.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// The kernel's lock, and the lease: let go in this order, so that the lease never ends while this
/// host could still be asked.
struct LifeGuard {
    _lease: Leased,
    _kernel: Box<dyn Send + Sync>,
}

impl EtcdNodes {
    /// Slots at `etcd`, the rest on `pool`.
    pub fn new(etcd: Arc<Etcd>, pool: PoolNodes) -> Self {
        let identity = crate::node::watch::this_host();
        Self { etcd, pool, identity, lives: Mutex::new(None), written: Mutex::new(None) }
    }
    /// What a slot has that was never taken.
    fn untaken(slot: NodeId) -> Sector {
        let mut sector = vec![0; RawSlot::LEN];
        SlotRecord::free(slot).encode(&mut sector);
        sector
    }
    /// Values are records; what is handed out has the length of the pool's sectors.
    fn padded(&self, mut record: Sector) -> Sector {
        record.resize(self.sector_len(), 0);
        record
    }
    fn cut(bytes: &[u8]) -> &[u8] {
        bytes.get(..RawSlot::LEN).unwrap_or(bytes)
    }
    fn note_lives(&self, lives: &[Pair]) -> HashMap<NodeId, Who> {
        let lives = slots(lives);
        *self.lives.lock() = Some((Instant::now(), lives.clone()));
        lives
    }
    fn domain(&self) -> LockDomain {
        LockDomain::new(&self.identity, &self.pool.lock_places())
    }
    /// The sequence number of the heartbeat in each slot's place, by whose it is.
    fn beats(&self) -> Result<Beats, StoreError> {
        let sectors = self.pool.read_heartbeats()?;
        let beats = sectors.chunks_exact(self.sector_len()).zip(0..);
        let beats = beats.filter_map(|(sector, n)| Heartbeat::decode(sector, NodeId(n)).ok());
        Ok(beats.map(|beat| (beat.life, beat.sequence)).collect())
    }
    /// The nodes that have a lease, are not seen by the kernel's locks, and whose heartbeats are as they were before.
    fn lives_without_beat(&self, before: &Beats) -> Result<Vec<(SlotRecord, Who)>, StoreError> {
        let (now, slots) = (self.beats()?, self.read_slots()?);
        let lives = self.lives.lock().as_ref().map(|l| l.1.clone()).unwrap_or_default();
        let silent = |(sector, n): (&[u8], u16)| {
            let record = SlotRecord::decode(sector, NodeId(n)).ok()?;
            let who = lives.get(&record.life.slot).filter(|who| who.domain != self.domain())?;
            let is_silent = record.state == SlotState::Active
                && before.get(&record.life) == now.get(&record.life);
            is_silent.then(|| (record, who.clone()))
        };
        Ok(slots.chunks_exact(self.sector_len()).zip(0..).filter_map(silent).collect())
    }
    /// Refuses devices that are behind etcd, and the other way round.
    fn check_age(&self) -> Result<(), StoreError> {
        let all = self.etcd.key("beats/");
        let remembered =
            self.etcd.ask(&[Act::GetAll(&all)])?.into_iter().next().unwrap_or_default();
        // The slots last: one that is still free then had no heartbeat since it became free.
        let beats = self.beats()?;
        let slots = self.read_slots()?;
        let slots = slots.chunks_exact(self.sector_len()).zip(0..);
        let slots: Vec<SlotRecord> =
            slots.filter_map(|(sector, n)| SlotRecord::decode(sector, NodeId(n)).ok()).collect();
        let lives: Vec<Life> = beats.keys().copied().collect();
        let found = first_behind(&remembered, &slots, &lives, &|life| beats.get(&life).copied());
        let Some((slot, behind)) = found else { return Ok(()) };
        let address = self.etcd.address().to_string();
        let error = match behind {
            Behind::Devices => EtcdError::OldDevices { slot, address },
            Behind::Etcd => EtcdError::OldKeys { slot, address },
        };
        Err(error.into())
    }
    /// The heartbeat of this node that was written last, once it is another than the one before it is `asked` for.
    fn new_beat(&self, ask: &dyn Fn()) -> Option<(NodeId, Beat)> {
        let (before, begun) = (*self.written.lock(), Instant::now());
        ask();
        loop {
            let written = *self.written.lock();
            if written != before || begun.elapsed() > NEW_BEAT {
                return written;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fn lives_elsewhere(&self, slot: NodeId) -> Result<bool, StoreError> {
        let known = {
            let lives = self.lives.lock();
            lives.as_ref().filter(|l| l.0.elapsed() < LIVES_FRESH).map(|l| l.1.get(&slot).cloned())
        };
        let who = if let Some(who) = known {
            who
        } else {
            let all = self.etcd.key("lives/");
            let found = self.etcd.ask(&[Act::GetAll(&all)])?;
            self.note_lives(found.first().map_or(&[][..], Vec::as_slice)).get(&slot).cloned()
        };
        Ok(who.is_some_and(|who| who.domain != self.domain()))
    }
}

impl NodeStore for EtcdNodes {
    fn slots(&self) -> u16 {
        self.pool.slots()
    }
    fn sector_len(&self) -> usize {
        self.pool.sector_len()
    }
    fn fs_uuid(&self) -> uuid::Uuid {
        self.pool.fs_uuid()
    }
    fn carries_hints(&self) -> bool {
        true
    }
    fn read_slots(&self) -> Result<Vec<u8>, StoreError> {
        let (all, lives) = (self.etcd.key("slots/"), self.etcd.key("lives/"));
        let found = self.etcd.ask(&[Act::GetAll(&all), Act::GetAll(&lives)])?;
        let [taken, lives] = &found[..] else { return Ok(Vec::new()) };
        self.note_lives(lives);
        let taken: HashMap<&str, &Sector> = taken.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let mut packed = Vec::with_capacity(usize::from(self.slots()) * self.sector_len());
        for slot in (0..self.slots()).map(NodeId) {
            let key = self.etcd.key(&slot_name("slots", slot));
            let record = taken.get(key.as_str()).map(|v| (*v).clone());
            packed.extend(self.padded(record.unwrap_or_else(|| Self::untaken(slot))));
        }
        Ok(packed)
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        let key = self.etcd.key(&slot_name("slots", slot));
        let found = self.etcd.ask(&[Act::Get(&key)])?;
        let record = found.into_iter().flatten().next().map(|p| p.1);
        Ok(self.padded(record.unwrap_or_else(|| Self::untaken(slot))))
    }
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let key = self.etcd.key(&slot_name("slots", slot));
        let values = (Self::cut(expected), Self::cut(new));
        let untaken = || Ok(Self::untaken(slot));
        Ok(match self.etcd.compare_and_write(&key, values, &[], &untaken)? {
            CawOutcome::Mismatch(stands) => CawOutcome::Mismatch(self.padded(stands)),
            CawOutcome::Written => CawOutcome::Written,
        })
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        self.pool.read_heartbeats()
    }
    fn check_not_copies(&self) -> Result<(), StoreError> {
        let (before, mut since) = (self.beats()?, HashMap::new());
        loop {
            let silent = self.lives_without_beat(&before)?;
            since.retain(|life, _| silent.iter().any(|(record, _)| record.life == *life));
            for (record, who) in &silent {
                let (life, timing) = (record.life, Timing::of_slot(record.io_timeout));
                let (begun, said) = since.entry(life).or_insert_with(|| (Instant::now(), false));
                if begun.elapsed() > SAID_AFTER && !std::mem::replace(said, true) {
                    tracing::info!(of_node = %life.slot, host = who.host, "waits until it beats, or its lease ends");
                }
                // Who has died has a lease for so long.
                if begun.elapsed() > timing.suspect_after().max(LEASE_ENDS) {
                    let (slot, host) = (life.slot, who.host.clone());
                    let copies = EtcdError::Copies { slot, host, pid: who.pid };
                    return Err(StoreError::Etcd(Arc::new(copies)));
                }
            }
            if silent.is_empty() {
                return self.check_age();
            }
            std::thread::sleep(LIVES_FRESH);
        }
    }
    fn remember_heartbeat(&self, ask_for_new: Option<&dyn Fn()>) -> Result<(), StoreError> {
        let written = ask_for_new.map_or_else(|| *self.written.lock(), |ask| self.new_beat(ask));
        let Some((slot, beat)) = written else { return Ok(()) };
        // It must not be lost where it is, once it is known elsewhere.
        self.pool.pool().flush()?;
        let key = self.etcd.key(&slot_name("beats", slot));
        let value = Remembered { beat, last: ask_for_new.is_none() }.encode();
        self.etcd.ask(&[Act::Put(&key, value.as_bytes())])?;
        Ok(())
    }
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
        if self.etcd.is_lost() {
            // A node that cannot know what it holds falls silent, and ends.
            self.etcd.confirm()?;
            let gone = std::io::Error::other("etcd went back to an older state");
            return Err(StoreError::Device(Arc::new(gone)));
        }
        self.pool.write_heartbeat(slot, bytes)?;
        if let Ok(Heartbeat { life, sequence, .. }) = Heartbeat::decode(bytes, slot) {
            *self.written.lock() = Some((slot, Beat { incarnation: life.incarnation, sequence }));
        }
        Ok(())
    }
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let Some(kernel) = self.pool.lock_life(slot)? else { return Ok(None) };
        let lease = self.etcd.live(slot, &self.identity, self.domain())?;
        let Some(lease) = lease else { return Ok(None) };
        Ok(Some(Box::new(LifeGuard { _lease: lease, _kernel: kernel })))
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.life_locked(slot)? || self.lives_elsewhere(slot)?)
    }
    fn life_held(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.life_held(slot)? || self.lives_elsewhere(slot)?)
    }
    fn settle_life(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.settle_life(slot)? && !self.lives_elsewhere(slot)?)
    }
    fn life_partly_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        self.pool.life_partly_locked(slot)
    }
    fn life_holder(&self, slot: NodeId, pid: u32) -> Option<LockHolder> {
        self.pool.life_holder(slot, pid)
    }
    fn is_life_stopped(&self, slot: NodeId, pid: u32) -> bool {
        self.pool.is_life_stopped(slot, pid)
    }
    fn holds_life(&self, holder: &LockHolder, slot: NodeId) -> bool {
        self.pool.holds_life(holder, slot)
    }
    fn heartbeat_copies(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        self.pool.heartbeat_copies()
    }
    fn lock_places(&self) -> Vec<LockPlace> {
        self.pool.lock_places()
    }
    fn held_places(&self, slot: NodeId) -> Vec<LockPlace> {
        self.pool.held_places(slot)
    }
    /// Etcd compares.
    fn emulates_compare_and_write(&self) -> bool {
        false
    }
    fn pool(&self) -> &dyn PoolSide {
        self.pool.pool()
    }
}
