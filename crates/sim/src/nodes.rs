//! What the locks on regions ask about other nodes, answered by the simulation: slots and heartbeats as they stand
//! on the devices, liveness locks, and the pool.

use std::sync::Arc;
use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::LockPlace;
use braid_lock::{CawOutcome, NodeStore, PoolSide, Sector, StoreError};
use braid_pool::device::Moment;
use braid_pool::{EpochTag, FenceHow, Pool, Reservable};

use crate::disk::LEN;
use crate::lane::{Request, ask};

/// The node areas as one node sees them.
pub(crate) struct Nodes {
    pub side: Side,
    pub slots: u16,
    pub places: Vec<LockPlace>,
}

/// The pool as a node's place in the cluster sees it.
pub(crate) struct Side {
    pub pool: Pool,
    /// Nodes are fenced by keys.
    pub keys: bool,
}

fn failed(what: &'static str) -> StoreError {
    StoreError::Device(Arc::new(std::io::Error::other(what)))
}
fn read(request: Request) -> Result<Vec<u8>, StoreError> {
    match ask(request) {
        Some(Ok(bytes)) => Ok(bytes),
        _ => Err(failed("the device failed")),
    }
}

impl Nodes {
    /// Slots, then heartbeats.
    fn read_all(&self) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        let mut slots = read(Request::Slots)?;
        let beats = slots.split_off(usize::from(self.slots) * LEN);
        Ok((slots, beats))
    }
}

impl NodeStore for Nodes {
    fn slots(&self) -> u16 {
        self.slots
    }
    fn sector_len(&self) -> usize {
        LEN
    }
    fn fs_uuid(&self) -> uuid::Uuid {
        uuid::Uuid::nil()
    }
    fn read_slots(&self) -> Result<Vec<u8>, StoreError> {
        Ok(self.read_all()?.0)
    }
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError> {
        read(Request::Slot(slot.get()))
    }
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError> {
        Ok(self.read_all()?.1)
    }
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError> {
        Ok(read(Request::IsLifeLocked(slot.get()))? == [1])
    }
    fn lock_places(&self) -> Vec<LockPlace> {
        self.places.clone()
    }
    fn held_places(&self, _: NodeId) -> Vec<LockPlace> {
        self.places.clone()
    }
    fn emulates_compare_and_write(&self) -> bool {
        false
    }
    fn pool(&self) -> &dyn PoolSide {
        &self.side
    }
    // The world does these for a node.
    fn compare_and_write_slot(
        &self,
        _: NodeId,
        _: &[u8],
        _: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        Err(failed("the world changes slots"))
    }
    fn write_heartbeat(&self, _: NodeId, _: &[u8]) -> Result<(), StoreError> {
        Err(failed("the world writes heartbeats"))
    }
    fn lock_life(&self, _: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError> {
        Err(failed("the world takes liveness locks"))
    }
}

impl PoolSide for Side {
    fn epoch_without_members(&self) -> Option<EpochTag> {
        self.pool.epoch_without_members()
    }
    fn epoch(&self) -> EpochTag {
        self.pool.epoch_tag()
    }
    fn follow(&self) -> Result<bool, StoreError> {
        PoolSide::follow(&self.pool)
    }
    fn flush(&self) -> Result<(), StoreError> {
        PoolSide::flush(&self.pool)
    }
    fn reservable(&self) -> Reservable {
        if self.keys { Reservable::All } else { PoolSide::reservable(&self.pool) }
    }
    // The world fences.
    fn register(&self, key: u64) -> Result<u64, StoreError> {
        Ok(key)
    }
    fn unregister(&self) {}
    fn uphold(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn fence(&self, _: u64, _: FenceHow) -> Result<(), StoreError> {
        Err(failed("the world fences"))
    }
    fn sweep(&self, _: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        Ok(())
    }
    fn lease(&self, _: Moment) {}
    fn answers_within(&self, _: Duration) {}
    fn refuse(&self) {}
    fn sever(&self) {}
}
