//! What tells one store of lock records and node slots from another: the address in the superblock, if
//! they are not on the pool; the liveness bytes on the pool; the nonce of new records.

use std::sync::Arc;

use braid_format::superblock::{RawLockStore, RawSuperblock};
use braid_format::{FormatError, NodeId};
use braid_lock::{Etcd, EtcdAddress};
use braid_pool::{Pool, PoolByteLock};
use zerocopy::FromBytes;

use crate::error::{Error, Result};

/// A store that is not the pool.
#[derive(Debug, Clone)]
pub(crate) struct ExternalStore {
    /// As it is in the superblock.
    pub raw: Box<RawLockStore>,
    /// The store.
    pub etcd: Arc<Etcd>,
}

impl ExternalStore {
    /// The store of a new file system.
    ///
    /// # Errors
    /// The address does not fit.
    pub fn new(address: &EtcdAddress, fs: uuid::Uuid) -> Result<Self> {
        let raw = RawLockStore::new(RawLockStore::ETCD, &address.to_string());
        let raw = raw.ok_or(Error::Invalid("the address of the lock store is too long"))?;
        Ok(Self { raw: Box::new(raw), etcd: Etcd::new(address.clone(), fs) })
    }

    /// What a superblock's body says; `None` if all are on the pool.
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

/// Byte lock of node slot 0 on the pool's first member; the next slot's is one higher.
const LIFE_BYTE: u64 = 1;

/// Takes the liveness locks of `slots` slots: those that are to be had, and the slots whose are not.
///
/// # Errors
/// Those of the pool.
pub(crate) fn lock_lives(pool: &Pool, slots: u16) -> Result<(Vec<PoolByteLock>, Vec<NodeId>)> {
    let (mut taken, mut busy) = (Vec::new(), Vec::new());
    for slot in 0..slots {
        match pool.lock_byte(LIFE_BYTE + u64::from(slot))? {
            Some(lock) => taken.push(lock),
            None => busy.push(NodeId(slot)),
        }
    }
    Ok((taken, busy))
}

/// The nonce of all lock records that a new file system is made with. It differs for each file
/// system, so a late write of a node of an older one meets none of them. All its nodes know it, so
/// they need not read a record that was never used (`ManagerOptions::fresh_nonce`).
pub(crate) fn fresh_nonce(fs: uuid::Uuid) -> u64 {
    fs.as_u64_pair().0
}
