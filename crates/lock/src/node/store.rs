//! The node areas and liveness locks, on a pool.

use std::collections::HashMap;
use std::sync::Arc;

use braid_device::LockHolder;
use braid_format::lock_record::nodes_max;
use braid_format::node::{Heartbeat, LockPlace, SlotRecord};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, FormatError, NodeId};
use braid_pool::Pool;
use parking_lot::Mutex;

use super::PoolSide;
use crate::error::StoreError;
use crate::store::{CawOutcome, Sector, torn_pauses};

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
    /// That these are the devices of the nodes that use this store's slots, as far as it can be told: where slots are not
    /// on the devices, copies of these have the same slots. May wait for a heartbeat of each node.
    ///
    /// # Errors
    /// [`crate::error::EtcdError::Copies`], [`crate::error::EtcdError::OldDevices`],
    /// [`crate::error::EtcdError::OldKeys`]; the store's.
    fn check_not_copies(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Where slots are not on the devices: notes beside them the heartbeat that this node has written there, so that
    /// [`Self::check_not_copies`] knows older images of the devices. Asks for a new heartbeat and waits for that first;
    /// `None`: this node has written its last one. Flushes the devices.
    ///
    /// # Errors
    /// The device's, the store's: nothing may be noted.
    fn remember_heartbeat(&self, ask_for_new: Option<&dyn Fn()>) -> Result<(), StoreError> {
        let _ = ask_for_new;
        Ok(())
    }
    /// All slot records, and all heartbeats, packed, by one request where they are side by side.
    ///
    /// # Errors
    /// The device's.
    fn read_slots_and_heartbeats(&self) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        Ok((self.read_slots()?, self.read_heartbeats()?))
    }
    /// Writes one heartbeat: a plain write of its node alone.
    ///
    /// # Errors
    /// The device's.
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError>;
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
    /// Whether another process of this host that lives holds it: not one that died and of which
    /// something may still be under way.
    ///
    /// # Errors
    /// The device's.
    fn life_held(&self, slot: NodeId) -> Result<bool, StoreError> {
        self.life_locked(slot)
    }
    /// A person has seen to it that nothing can land any more of the process that held the liveness lock
    /// of `slot` and died. False if one that lives holds it.
    ///
    /// # Errors
    /// The device's.
    fn settle_life(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(!self.life_held(slot)?)
    }
    /// Whether another process of this host holds it on some members of this pool and not on others.
    ///
    /// # Errors
    /// The device's.
    fn life_partly_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        let _ = slot;
        Ok(false)
    }
    /// The process of this host that holds it and calls itself `pid`, if it is seen here and is not this
    /// one.
    fn life_holder(&self, slot: NodeId, pid: u32) -> Option<LockHolder> {
        let _ = (slot, pid);
        None
    }
    /// The process of this host that holds the lock of a slot's node where the slot's record says, whatever
    /// is seen of it on these devices; not if it is this one.
    fn life_elsewhere(&self, record: &SlotRecord) -> Option<LockHolder> {
        let _ = record;
        None
    }
    /// Whether that process is seen here and stopped, by a signal or a debugger. Looks at the process of
    /// this number alone.
    fn is_life_stopped(&self, slot: NodeId, pid: u32) -> bool {
        let _ = (slot, pid);
        false
    }
    /// Whether that process holds it now.
    fn holds_life(&self, holder: &LockHolder, slot: NodeId) -> bool {
        let _ = (holder, slot);
        false
    }
    /// All heartbeats, packed, as each copy of them says.
    ///
    /// # Errors
    /// The device's.
    fn heartbeat_copies(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        Ok(vec![self.read_heartbeats()?])
    }
    /// Where this process looks for liveness locks.
    fn lock_places(&self) -> Vec<LockPlace>;
    /// Where this process holds the liveness lock of `slot`.
    fn held_places(&self, slot: NodeId) -> Vec<LockPlace>;
    /// Whether records are compared and written under kernel locks at those places, so that processes
    /// which lock other places must not change them.
    fn emulates_compare_and_write(&self) -> bool;
    /// Whether hints reach all nodes by the store itself.
    fn carries_hints(&self) -> bool {
        false
    }
    /// What is below, whatever keeps the slots.
    fn pool(&self) -> &dyn PoolSide;
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
            || !(1..=nodes_max(1 << sector_shift)).contains(&usize::from(node_slots))
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
    /// What the copy that decides has of slots where it is damaged and another is sound.
    damaged: Arc<Mutex<HashMap<NodeId, Sector>>>,
}

impl PoolNodes {
    /// Byte 0 is not a slot's: kept for the pool.
    const FIRST_BYTE: u64 = 1;

    /// The areas `areas` of `pool`.
    pub fn new(pool: Pool, areas: NodeAreas) -> Self {
        Self { pool, areas, damaged: Arc::default() }
    }
    fn at(&self, area: BlockNo, slot: NodeId) -> ByteOffset {
        let within = Bytes(u64::from(slot.0) * self.areas.lock_sector.0);
        self.areas.block_size.offset_of(area) + within
    }
    /// Puts in place of slots that are damaged what another copy says.
    fn mend(&self, slots: &mut [u8]) -> Result<(), StoreError> {
        for (slot, sector) in (0..).map(NodeId).zip(slots.chunks_exact_mut(self.sector_len())) {
            if SlotRecord::decode(sector, slot).is_err() {
                sector.copy_from_slice(&self.sound_slot(slot)?);
            }
        }
        Ok(())
    }
    /// Takes over what other copies say of later heartbeats.
    fn take_later_of_copies(&self, beats: &mut [u8]) -> Result<(), StoreError> {
        for copy in 1..self.pool.copies() {
            let other = self.read_area(self.areas.heartbeat_area, copy)?;
            self.take_later(beats, &other);
        }
        Ok(())
    }
    fn read_area(&self, area: BlockNo, copy: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::from(self.areas.node_slots) * self.sector_len()];
        self.pool.look(self.at(area, NodeId(0)), &mut bytes, copy)?;
        Ok(bytes)
    }
    fn look_at_slot(&self, slot: NodeId, copy: usize) -> Result<Sector, StoreError> {
        let mut bytes = vec![0; self.sector_len()];
        self.pool.look(self.at(self.areas.slot_area, slot), &mut bytes, copy)?;
        Ok(bytes)
    }
    /// A slot's record: where the copy that decides is damaged, from another one that is sound.
    fn sound_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        let copies = self.pool.copies();
        let mut bytes = self.look_at_slot(slot, 0)?;
        if copies < 2 || SlotRecord::decode(&bytes, slot).is_ok() {
            return Ok(bytes);
        }
        let known = self.damaged.lock().get(&slot) == Some(&bytes);
        // Another copy may be older than one that is only being written.
        for pause in torn_pauses().filter(|_| !known) {
            std::thread::sleep(pause);
            bytes = self.look_at_slot(slot, 0)?;
            let decoded = SlotRecord::decode(&bytes, slot);
            if !matches!(decoded, Err(FormatError::ChecksumMismatch { .. })) {
                break;
            }
        }
        if SlotRecord::decode(&bytes, slot).is_ok() {
            return Ok(bytes);
        }
        for copy in 1..copies {
            // One that cannot be read is no better.
            let Ok(other) = self.look_at_slot(slot, copy) else { continue };
            if SlotRecord::decode(&other, slot).is_ok() {
                if !known {
                    tracing::warn!(%slot, "a copy of a node slot is damaged; another is read");
                    self.damaged.lock().insert(slot, bytes);
                }
                return Ok(other);
            }
        }
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
        let mut bytes = self.read_area(self.areas.slot_area, 0)?;
        self.mend(&mut bytes)?;
        Ok(bytes)
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        self.sound_slot(slot)
    }
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let at = self.at(self.areas.slot_area, slot);
        let outcome = self.pool.compare_and_write(at, expected, new)?;
        let CawOutcome::Mismatch(stands) = &outcome else { return Ok(outcome) };
        if SlotRecord::decode(stands, slot).is_ok() {
            return Ok(outcome);
        }
        let good = self.sound_slot(slot)?;
        if good == *stands || SlotRecord::decode(&good, slot).is_err() {
            return Ok(outcome);
        }
        // Without this, whoever believes what it reads would compare for ever.
        tracing::warn!(%slot, "a damaged copy of a node slot is mended from another");
        self.pool.compare_and_write(at, stands, &good)?;
        Ok(self.pool.compare_and_write(at, expected, new)?)
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = self.read_area(self.areas.heartbeat_area, 0)?;
        self.take_later_of_copies(&mut bytes)?;
        Ok(bytes)
    }
    fn read_slots_and_heartbeats(&self) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        let slots_at = self.at(self.areas.slot_area, NodeId(0));
        let beats_at = self.at(self.areas.heartbeat_area, NodeId(0));
        let len = usize::from(self.areas.node_slots) * self.sector_len();
        let apart = beats_at.0.checked_sub(slots_at.0).and_then(|n| usize::try_from(n).ok());
        // With room for a block's rest between them, no more.
        let beside = |n: &usize| (len..len + self.areas.block_size.bytes().to_usize()).contains(n);
        let Some(apart) = apart.filter(beside) else {
            return Ok((self.read_slots()?, self.read_heartbeats()?));
        };
        let mut slots = vec![0; apart + len];
        self.pool.look(slots_at, &mut slots, 0)?;
        let mut beats = slots.split_off(apart);
        slots.truncate(len);
        self.mend(&mut slots)?;
        self.take_later_of_copies(&mut beats)?;
        Ok((slots, beats))
    }
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError> {
        Ok(self.pool.say(self.at(self.areas.heartbeat_area, slot), bytes)?)
    }
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        let guard = self.pool.lock_byte(Self::byte(slot))?;
        Ok(guard.map(|g| Box::new(g) as Box<dyn Send + Sync>))
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.byte_locked(Self::byte(slot))?)
    }
    fn life_held(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.byte_held(Self::byte(slot))?)
    }
    fn settle_life(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.settle_byte(Self::byte(slot))?)
    }
    fn life_partly_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(self.pool.byte_partly_locked(Self::byte(slot))?)
    }
    fn life_holder(&self, slot: NodeId, pid: u32) -> Option<LockHolder> {
        LockHolder::find(Self::byte(slot), &self.pool.lock_places(), pid)
    }
    fn life_elsewhere(&self, record: &SlotRecord) -> Option<LockHolder> {
        LockHolder::find(Self::byte(record.life.slot), &record.lock_places, record.pid)
    }
    fn is_life_stopped(&self, slot: NodeId, pid: u32) -> bool {
        let holder = LockHolder::at(pid, Self::byte(slot), &self.pool.lock_places());
        holder.is_some_and(|holder| holder.is_stopped())
    }
    fn holds_life(&self, holder: &LockHolder, slot: NodeId) -> bool {
        holder.holds(Self::byte(slot), &self.pool.lock_places())
    }
    fn heartbeat_copies(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let copies = 0..self.pool.copies();
        copies.map(|copy| self.read_area(self.areas.heartbeat_area, copy)).collect()
    }
    fn lock_places(&self) -> Vec<LockPlace> {
        self.pool.lock_places()
    }
    fn held_places(&self, slot: NodeId) -> Vec<LockPlace> {
        self.pool.held_places(Self::byte(slot))
    }
    fn emulates_compare_and_write(&self) -> bool {
        self.pool.emulates_compare_and_write()
    }
    fn pool(&self) -> &dyn PoolSide {
        &self.pool
    }
}
