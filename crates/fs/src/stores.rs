//! Where the file system's lock records and node slots are: on its pool, or in a store that the
//! superblock names.

use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::superblock::{RawLockStore, RawSuperblock};
use braid_format::{BlockNo, FormatError, LockNo};
use braid_lock::{
    CawOutcome, DeviceStore, Etcd, EtcdAddress, EtcdNodes, EtcdStore, LockStore, ManagerOptions,
    Me, NodeAreas, NodeStore, PoolNodes, Sector, StoreError,
};
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::volume::Volume;

/// A store that is not the pool.
#[derive(Debug, Clone)]
pub(crate) struct Elsewhere {
    /// As it stands in the superblock.
    pub raw: Box<RawLockStore>,
    /// The store.
    pub etcd: Arc<Etcd>,
}

impl Elsewhere {
    /// The store of a new file system.
    ///
    /// # Errors
    /// The address does not fit.
    pub fn new(address: &EtcdAddress, fs: uuid::Uuid) -> Result<Self> {
        let raw = RawLockStore::new(RawLockStore::ETCD, &address.to_string());
        let raw = raw.ok_or(Error::Invalid("the address of the lock store is too long"))?;
        Ok(Self { raw: Box::new(raw), etcd: Etcd::new(address.clone(), fs) })
    }

    /// What a superblock's body says; `None` where the pool has all.
    ///
    /// # Errors
    /// It says what this version does not know.
    pub fn read(sb: &RawSuperblock, body: &[u8]) -> Result<Option<Self>> {
        if sb.features_incompat.get() & RawSuperblock::LOCK_STORE == 0 {
            return Ok(None);
        }
        let what = "superblock";
        let bad =
            |field, value| Error::Superblock(FormatError::BadField { what, at: 0, field, value });
        let raw = body.get(RawLockStore::AT..).and_then(|b| RawLockStore::read_from_prefix(b).ok());
        let (raw, _) =
            raw.ok_or(Error::Superblock(FormatError::TooShort { what, len: body.len() }))?;
        if raw.kind.get() != RawLockStore::ETCD {
            return Err(bad("lock store's kind", u64::from(raw.kind.get())));
        }
        let address = raw.address().and_then(|a| a.parse::<EtcdAddress>().ok());
        let address = address.ok_or_else(|| bad("lock store's address", 0))?;
        let fs = uuid::Uuid::from_bytes(sb.fs_uuid);
        Ok(Some(Self { raw: Box::new(raw), etcd: Etcd::new(address, fs) }))
    }
}

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
        self.elsewhere.is_some()
    }
    /// The lock records, as `me` sees them.
    pub fn lock_store(&self, me: Option<Me>) -> Arc<dyn LockStore> {
        let on_pool =
            DeviceStore::new(self.pool.clone(), self.geo.block_size, self.geo.lock_sector);
        let store: Arc<dyn LockStore> = match &self.elsewhere {
            Some(store) => Arc::new(EtcdStore::new(store.etcd.clone(), on_pool, me)),
            None => Arc::new(on_pool),
        };
        Arc::new(Present { store, groups: self.groups.clone() })
    }

    /// What all managers of its locks are told.
    pub fn manager_options(&self) -> ManagerOptions {
        let fresh = crate::make::fresh_nonce(uuid::Uuid::from_bytes(self.sb.fs_uuid));
        ManagerOptions { fresh_nonce: Some(fresh), ..ManagerOptions::default() }
    }

    /// The node slots.
    pub fn node_store(&self, areas: NodeAreas) -> Arc<dyn NodeStore> {
        let on_pool = PoolNodes::new(self.pool.clone(), areas);
        match &self.elsewhere {
            Some(store) => Arc::new(EtcdNodes::new(store.etcd.clone(), on_pool)),
            None => Arc::new(on_pool),
        }
    }
}
