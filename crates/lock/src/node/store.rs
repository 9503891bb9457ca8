//! The node areas and liveness locks: on a pool, and in memory for tests.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::DeviceError;
use braid_format::node::{Heartbeat, SlotRecord};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, NodeId};
use braid_pool::{EpochTag, FenceHow, Pool, PoolError, Reservable};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::store::{CawOutcome, Sector};

/// The node areas and the liveness locks. [`PoolNodes`] is the real one.
pub trait NodeStore: Send + Sync {
    /// Number of slots.
    fn slots(&self) -> u16;
    /// Bytes in a slot's or heartbeat's sector.
    fn sector_len(&self) -> usize;
    /// Names the directory of the hint sockets.
    fn fs_uuid(&self) -> uuid::Uuid;
    /// All slot records, packed.
    ///
    /// # Errors
    /// The device's.
    fn read_slots(&self) -> Result<Vec<u8>, StoreError>;
    /// One slot record.
    ///
    /// # Errors
    /// The device's.
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError>;
    /// Changes one slot record.
    ///
    /// # Errors
    /// The device's: the outcome is then unknown.
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError>;
    /// All heartbeats, packed.
    ///
    /// # Errors
    /// The device's.
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError>;
    /// Writes one heartbeat: a plain write of its node alone.
    ///
    /// # Errors
    /// The device's.
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError>;
    /// The epoch of the pool in use here.
    fn epoch(&self) -> EpochTag {
        EpochTag::default()
    }
    /// Uses the epoch that the pool's labels say; whether it is another than before.
    ///
    /// # Errors
    /// This node cannot go on.
    fn follow(&self) -> Result<bool, StoreError> {
        Ok(false)
    }
    /// Makes all completed writes durable. A slot must not turn back into a free one in a power
    /// cut once its node has written to its journal.
    ///
    /// # Errors
    /// The device's.
    fn flush(&self) -> Result<(), StoreError>;
    /// Takes the liveness lock of `slot` (a kernel lock that ends with the process), or `None` if
    /// another process of this host holds it.
    ///
    /// # Errors
    /// The device's.
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError>;
    /// Whether another process of this host holds the liveness lock of `slot`.
    ///
    /// # Errors
    /// The device's.
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError>;
    /// Which members have reservations.
    fn reservable(&self) -> Reservable {
        Reservable::None
    }
    /// Registers this node's key with every member: see [`Pool::register`].
    ///
    /// # Errors
    /// Nothing is registered then.
    fn register(&self, key: u64) -> Result<(), StoreError> {
        let _ = key;
        Ok(())
    }
    /// Ends that.
    fn unregister(&self) {}
    /// Whether the key still stands everywhere: see [`Pool::uphold`].
    ///
    /// # Errors
    /// [`StoreError::is_fenced`] if not; others where it cannot be asked.
    fn uphold(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Takes another node's key from every member: see [`Pool::fence`].
    ///
    /// # Errors
    /// The fence is not complete.
    fn fence(&self, key: u64, how: FenceHow) -> Result<(), StoreError> {
        let _ = (key, how);
        Err(StoreError::Unfenceable)
    }
    /// Takes away all keys but those that `keep` names.
    ///
    /// # Errors
    /// The device's.
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        let _ = keep;
        Ok(())
    }
    /// This node may issue changes until `until`.
    fn lease(&self, until: Instant) {
        let _ = until;
    }
    /// This node issues no changes any more.
    fn refuse(&self) {}
    /// This node was fenced: see [`Pool::sever`].
    fn sever(&self) {}
}

/// Where slots and heartbeats stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAreas {
    /// File-system block.
    pub block_size: BlockSize,
    /// Unit of compare-and-write.
    pub lock_sector: Bytes,
    /// Number of slots.
    pub node_slots: u16,
    /// First block of the packed slot records.
    pub slot_area: BlockNo,
    /// First block of the packed heartbeats.
    pub heartbeat_area: BlockNo,
    /// Names the directory of the hint sockets.
    pub fs_uuid: uuid::Uuid,
}

impl NodeAreas {
    /// From a verified superblock; `None` if its sizes are impossible.
    pub fn from_superblock(sb: &RawSuperblock) -> Option<Self> {
        let shift = u32::from(sb.block_shift.get());
        let sector_shift = sb.lock_sector_shift.get();
        let node_slots = sb.node_slots.get();
        if !(sector_shift == 9 || sector_shift == 12)
            || !(1..=RawSuperblock::NODE_SLOTS_MAX).contains(&node_slots)
        {
            return None;
        }
        Some(Self {
            block_size: BlockSize::new(Bytes(1_u64.checked_shl(shift)?))?,
            lock_sector: Bytes(1 << sector_shift),
            node_slots,
            slot_area: BlockNo(sb.slot_area.get()),
            heartbeat_area: BlockNo(sb.heartbeat_area.get()),
            fs_uuid: uuid::Uuid::from_bytes(sb.fs_uuid),
        })
    }
    /// Fills a buffer with free slot records for all slots, packed: what a new file system has.
    ///
    /// # Panics
    /// If the buffer does not have room.
    pub fn encode_free_slots(&self, area: &mut [u8]) {
        let sectors = area.chunks_exact_mut(self.lock_sector.to_usize());
        let mut count = 0;
        for (slot, sector) in (0..self.node_slots).zip(sectors) {
            SlotRecord::free(NodeId(slot)).encode(sector);
            count += 1;
        }
        assert_eq!(count, self.node_slots, "no room for the slots");
    }
}

/// The node areas of a file system on a pool, liveness locks on its member 0.
#[derive(Debug, Clone)]
pub struct PoolNodes {
    pool: Pool,
    areas: NodeAreas,
}

impl PoolNodes {
    /// Byte 0 is not a slot's: kept for the pool.
    const FIRST_BYTE: u64 = 1;

    /// The areas `areas` of `pool`.
    pub fn new(pool: Pool, areas: NodeAreas) -> Self {
        Self { pool, areas }
    }
    fn at(&self, area: BlockNo, slot: NodeId) -> ByteOffset {
        let within = Bytes(u64::from(slot.0) * self.areas.lock_sector.0);
        self.areas.block_size.offset_of(area) + within
    }
    fn read_area(&self, area: BlockNo, copy: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::from(self.areas.node_slots) * self.sector_len()];
        self.pool.look(self.at(area, NodeId(0)), &mut bytes, copy)?;
        Ok(bytes)
    }
    /// Takes over the sectors of `other` that hold later heartbeats.
    fn take_later(&self, bytes: &mut [u8], other: &[u8]) {
        let sectors = bytes.chunks_exact_mut(self.sector_len());
        let others = other.chunks_exact(self.sector_len());
        for (slot, (sector, other)) in (0_u16..).zip(sectors.zip(others)) {
            let when = |s: &[u8]| {
                Heartbeat::decode(s, NodeId(slot)).map(|b| (b.life.incarnation, b.sequence)).ok()
            };
            if sector != other && when(other) > when(sector) {
                sector.copy_from_slice(other);
            }
        }
    }
    fn byte(slot: NodeId) -> u64 {
        Self::FIRST_BYTE + u64::from(slot.0)
    }
}

impl NodeStore for PoolNodes {
    fn slots(&self) -> u16 {
        self.areas.node_slots
    }
    fn sector_len(&self) -> usize {
        self.areas.lock_sector.to_usize()
    }
    fn fs_uuid(&self) -> uuid::Uuid {
        self.areas.fs_uuid
    }
    fn read_slots(&self) -> Result<Vec<u8>, StoreError> {
        self.read_area(self.areas.slot_area, 0)
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        let mut bytes = vec![0; self.sector_len()];
        self.pool.look(self.at(self.areas.slot_area, slot), &mut bytes, 0)?;
        Ok(bytes)
    }
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let at = self.at(self.areas.slot_area, slot);
        Ok(self.pool.compare_and_write(at, expected, new)?)
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = self.read_area(self.areas.heartbeat_area, 0)?;
        for copy in 1..self.pool.copies() {
            let other = self.read_area(self.areas.heartbeat_area, copy)?;
            self.take_later(&mut bytes, &other);
        }
        Ok(bytes)
    }
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
        Ok(self.pool.say(self.at(self.areas.heartbeat_area, slot), bytes)?)
    }
    fn epoch(&self) -> EpochTag {
        self.pool.epoch_tag()
    }
    fn follow(&self) -> Result<bool, StoreError> {
        Ok(self.pool.follow()?)
    }
    fn flush(&self) -> Result<(), StoreError> {
        Ok(self.pool.flush()?)
    }
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let guard = self.pool.lock_byte(Self::byte(slot))?;
        Ok(guard.map(|g| Box::new(g) as Box<dyn Send + Sync>))
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.byte_locked(Self::byte(slot))?)
    }
    fn reservable(&self) -> Reservable {
        self.pool.reservable()
    }
    fn register(&self, key: u64) -> Result<(), StoreError> {
        Ok(self.pool.register(key)?)
    }
    fn unregister(&self) {
        self.pool.unregister();
    }
    fn uphold(&self) -> Result<(), StoreError> {
        Ok(self.pool.uphold()?)
    }
    fn fence(&self, key: u64, how: FenceHow) -> Result<(), StoreError> {
        Ok(self.pool.fence(key, how)?)
    }
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        Ok(self.pool.sweep(keep)?)
    }
    fn lease(&self, until: Instant) {
        self.pool.lease(until);
    }
    fn refuse(&self) {
        self.pool.refuse();
    }
    fn sever(&self) {
        self.pool.sever();
    }
}

/// How often is tried what waits.
const AGAIN: Duration = Duration::from_millis(5);

/// Node areas in memory, for tests: each handle stands for one process; [`Self::process`] makes
/// another on the same host.
#[derive(Debug, Clone)]
pub struct MemoryNodes {
    shared: Arc<Mutex<Shared>>,
    process: u64,
    uuid: uuid::Uuid,
}

#[derive(Debug, Default)]
struct Shared {
    slots: Vec<Sector>,
    beats: Vec<Sector>,
    /// Slot and process.
    lives: HashSet<(u16, u64)>,
    processes: u64,
    broken: HashSet<u64>,
    /// Registered keys, and whose they are; none where the areas have no reservations.
    keys: Option<Vec<(u64, u64)>>,
    /// Processes whose keys were taken.
    fenced: HashSet<u64>,
    /// Fences fail.
    deaf: bool,
    /// Processes whose heartbeats do not land.
    hushed: HashSet<u64>,
    /// Until when processes may change something, where that was said.
    leases: HashMap<u64, Instant>,
    /// Processes that change nothing any more.
    refused: HashSet<u64>,
}

struct Life {
    shared: Arc<Mutex<Shared>>,
    key: (u16, u64),
}
impl Drop for Life {
    fn drop(&mut self) {
        self.shared.lock().lives.remove(&self.key);
    }
}

impl MemoryNodes {
    const LEN: usize = 512;

    /// Areas of `slots` free slots.
    pub fn new(slots: u16) -> Self {
        let slot = |n| {
            let mut sector = vec![0; Self::LEN];
            SlotRecord::free(NodeId(n)).encode(&mut sector);
            sector
        };
        let shared = Shared {
            slots: (0..slots).map(slot).collect(),
            beats: vec![vec![0; Self::LEN]; usize::from(slots)],
            ..Shared::default()
        };
        let shared = Arc::new(Mutex::new(shared));
        Self { shared, process: 0, uuid: uuid::Uuid::new_v4() }
    }
    /// The areas have reservations from now on.
    pub fn with_reservations(&self) {
        self.shared.lock().keys = Some(Vec::new());
    }
    /// Registered keys.
    pub fn keys(&self) -> Vec<u64> {
        self.shared.lock().keys.iter().flatten().map(|k| k.0).collect()
    }
    /// Fences fail, or do so no more.
    pub fn deafen(&self, deaf: bool) {
        self.shared.lock().deaf = deaf;
    }
    /// This process's heartbeats do not land, nor fail, or do so again.
    pub fn hush(&self, hushed: bool) {
        let mut shared = self.shared.lock();
        if hushed {
            shared.hushed.insert(self.process);
        } else {
            shared.hushed.remove(&self.process);
        }
    }
    /// The same areas, seen by another process.
    #[must_use]
    pub fn process(&self) -> Self {
        let mut shared = self.shared.lock();
        shared.processes += 1;
        Self { process: shared.processes, shared: self.shared.clone(), uuid: self.uuid }
    }
    /// The process dies: its liveness locks are gone, its I/O fails.
    pub fn kill(&self) {
        let mut shared = self.shared.lock();
        shared.broken.insert(self.process);
        shared.lives.retain(|(_, process)| *process != self.process);
    }
    /// As [`Self::with`], for a change.
    fn change<T>(
        &self,
        slot: NodeId,
        f: impl FnOnce(&mut Shared, usize) -> T,
    ) -> Result<T, StoreError> {
        {
            let shared = self.shared.lock();
            if shared.refused.contains(&self.process) {
                return Err(PoolError::Closed.into());
            }
            if shared.fenced.contains(&self.process) {
                return Err(DeviceError::Fenced { device: "memory".into() }.into());
            }
        }
        self.with(slot, f)
    }
    fn with<T>(
        &self,
        slot: NodeId,
        f: impl FnOnce(&mut Shared, usize) -> T,
    ) -> Result<T, StoreError> {
        let mut shared = self.shared.lock();
        let at = usize::from(slot.0);
        if shared.broken.contains(&self.process) || at >= shared.slots.len() {
            return Err(StoreError::Device(Arc::new(std::io::Error::other("dead process"))));
        }
        Ok(f(&mut shared, at))
    }
}

impl NodeStore for MemoryNodes {
    fn slots(&self) -> u16 {
        u16::try_from(self.shared.lock().slots.len()).unwrap_or(u16::MAX)
    }
    fn sector_len(&self) -> usize {
        Self::LEN
    }
    fn fs_uuid(&self) -> uuid::Uuid {
        self.uuid
    }
    fn read_slots(&self) -> Result<Vec<u8>, StoreError> {
        self.with(NodeId(0), |s, _| s.slots.concat())
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        self.with(slot, |s, at| s.slots.get(at).cloned().unwrap_or_default())
    }
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let lapsed = |until: &Instant| Instant::now() >= *until;
        while self.change(slot, |s, _| s.leases.get(&self.process).is_some_and(lapsed))? {
            std::thread::sleep(AGAIN);
        }
        self.change(slot, |s, at| match s.slots.get_mut(at) {
            Some(stands) if stands.as_slice() == expected => {
                stands.copy_from_slice(new);
                CawOutcome::Written
            }
            other => CawOutcome::Mismatch(other.cloned().unwrap_or_default()),
        })
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        self.with(NodeId(0), |s, _| s.beats.concat())
    }
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
        while self.with(slot, |s, _| s.hushed.contains(&self.process))? {
            std::thread::sleep(AGAIN);
        }
        self.change(slot, |s, at| {
            if let Some(beat) = s.beats.get_mut(at) {
                beat.copy_from_slice(bytes);
            }
        })
    }
    fn flush(&self) -> Result<(), StoreError> {
        self.with(NodeId(0), |_, _| ())
    }
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let key = (slot.0, self.process);
        self.with(slot, |s, _| {
            if s.lives.iter().any(|l| l.0 == slot.0) {
                return None;
            }
            s.lives.insert(key);
            Some(Box::new(Life { shared: self.shared.clone(), key }) as Box<dyn Send + Sync>)
        })
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        self.with(slot, |s, _| s.lives.iter().any(|l| l.0 == slot.0 && l.1 != self.process))
    }
    fn reservable(&self) -> Reservable {
        let some = self.shared.lock().keys.is_some();
        if some { Reservable::All } else { Reservable::None }
    }
    fn register(&self, key: u64) -> Result<(), StoreError> {
        self.shared.lock().keys.get_or_insert_default().push((key, self.process));
        Ok(())
    }
    fn unregister(&self) {
        self.shared.lock().keys.get_or_insert_default().retain(|k| k.1 != self.process);
    }
    fn fence(&self, key: u64, _: FenceHow) -> Result<(), StoreError> {
        self.change(NodeId(0), |s, _| {
            if s.deaf {
                return Err(StoreError::Unfenceable);
            }
            let keys = s.keys.get_or_insert_default();
            s.fenced.extend(keys.iter().filter(|k| k.0 == key).map(|k| k.1));
            keys.retain(|k| k.0 != key);
            Ok(())
        })?
    }
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        let keys = self.keys();
        let over: Vec<u64> = keys.into_iter().filter(|k| !keep(*k)).collect();
        let own = |k: &(u64, u64)| k.1 == self.process;
        let mut shared = self.shared.lock();
        shared.keys.get_or_insert_default().retain(|k| own(k) || !over.contains(&k.0));
        Ok(())
    }
    fn lease(&self, until: Instant) {
        self.shared.lock().leases.insert(self.process, until);
    }
    fn refuse(&self) {
        self.shared.lock().refused.insert(self.process);
    }
}
