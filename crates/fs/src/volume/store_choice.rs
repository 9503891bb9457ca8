//! Where a volume's lock records and node slots are: on its pool, or in the store that its superblock
//! names.

use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::{BlockNo, FormatError, LockNo};
use braid_lock::{
    CawOutcome, DeviceStore, EtcdNodes, EtcdStore, Life, LockStore, ManagerOptions, NodeAreas,
    NodeStore, PoolNodes, Sector, StoreError,
};

use super::Volume;
use crate::error::{Error, Result};
use crate::external_store::fresh_nonce;
use crate::groups::Groups;

/// The locks of what is there. Those of parts that have left nobody takes; but who has one from
/// before gives it up some time, and that comes to nothing.
struct Present {
    store: Arc<dyn LockStore>,
    groups: Arc<Groups>,
}

impl LockStore for Present {
    fn read(&self, lock: LockNo) -> std::result::Result<Sector, StoreError> {
        if !self.groups.has_left(BlockNo(lock.get())) {
            return self.store.read(lock);
        }
        let mut sector = vec![0; self.store.sector_len()];
        LockRecord::unlocked(lock, 0).encode(&mut sector);
        Ok(sector)
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> std::result::Result<CawOutcome, StoreError> {
        if self.groups.has_left(BlockNo(lock.get())) {
            return Ok(CawOutcome::Written);
        }
        self.store.compare_and_write(lock, expected, new)
    }
    fn sector_len(&self) -> usize {
        self.store.sector_len()
    }
}

impl Volume {
    /// Whether lock records and slots are in etcd.
    pub fn in_etcd(&self) -> bool {
        self.external_store.is_some()
    }
    /// The lock records, as `me` sees them.
    pub fn lock_store(&self, me: Option<Life>) -> Arc<dyn LockStore> {
        let on_pool =
            DeviceStore::new(self.pool.clone(), self.geo.block_size, self.geo.lock_sector);
        let store: Arc<dyn LockStore> = match &self.external_store {
            Some(store) => Arc::new(EtcdStore::new(store.etcd.clone(), on_pool, me)),
            None => Arc::new(on_pool),
        };
        Arc::new(Present { store, groups: self.groups.clone() })
    }

    /// The options of all managers of its locks.
    pub fn manager_options(&self) -> ManagerOptions {
        let fresh = fresh_nonce(uuid::Uuid::from_bytes(self.sb.fs_uuid));
        ManagerOptions { fresh_nonce: Some(fresh), ..ManagerOptions::default() }
    }

    /// The node slots.
    pub fn node_store(&self, areas: NodeAreas) -> Arc<dyn NodeStore> {
        // A node writes its slot, locks and heartbeats before it has a log to note that in.
        self.pool.unnoted_to(self.slot_at(BlockNo(self.sb.node_area.get())));
        let on_pool = PoolNodes::new(self.pool.clone(), areas);
        match &self.external_store {
            Some(store) => Arc::new(EtcdNodes::new(store.etcd.clone(), on_pool)),
            None => Arc::new(on_pool),
        }
    }

    /// Where the areas of the nodes are.
    ///
    /// # Errors
    /// The superblock does not say.
    pub fn node_areas(&self) -> Result<NodeAreas> {
        NodeAreas::from_superblock(&self.sb).ok_or(Error::Superblock(FormatError::BadField {
            what: "superblock",
            at: 0,
            field: "node areas",
            value: 0,
        }))
    }
}
