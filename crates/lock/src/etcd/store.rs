//! Lock records in etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::lock_record::{LockRecord, Mode};
use braid_format::{LockNo, NodeId};

use super::client::Act;
use super::hints;
use super::keys::{Etcd, slot_name};
use crate::Life;
use crate::dlock::Hint;
use crate::error::StoreError;
use crate::store::{CawOutcome, LockStore, Sector};

/// Lock records in etcd. One that etcd does not have stands where it was born: on the pool, whose
/// records nobody changes.
#[derive(Debug, Clone)]
pub struct EtcdStore<B> {
    etcd: Arc<Etcd>,
    births: B,
    me: Option<Life>,
}

impl<B: LockStore> EtcdStore<B> {
    /// The records at `etcd`; `births` is only read. `me` needs no hints of its own doing.
    pub fn new(etcd: Arc<Etcd>, births: B, me: Option<Life>) -> Self {
        Self { etcd, births, me }
    }
    fn key(&self, lock: LockNo) -> String {
        self.etcd.key(&format!("locks/{:016x}", lock.0))
    }
    fn born(&self, lock: LockNo) -> Result<Sector, StoreError> {
        self.births.read(lock)
    }

    /// Who should look at the lock when it changes from `old` to `new`: the holders when somebody
    /// waits, and who waited and now holds.
    fn told(&self, lock: LockNo, old: &[u8], new: &[u8]) -> Vec<(String, String)> {
        let decode = |bytes| LockRecord::decode(bytes, lock).ok();
        let (Some(old), Some(new)) = (decode(old), decode(new)) else { return Vec::new() };
        let mut told: BTreeMap<NodeId, (Life, Hint)> = BTreeMap::new();
        for life in new.holders.iter().filter(|l| Some(**l) != self.me) {
            let waited = old.waiters.iter().any(|w| w.life == *life);
            let granted = waited && !old.holders.contains(life);
            let hint = match new.waiters.iter().map(|w| w.mode).reduce(Mode::join) {
                _ if granted => Hint::Granted,
                Some(mode) => Hint::Wanted(mode),
                None => continue,
            };
            told.insert(life.slot, (*life, hint));
        }
        let text = |(to, hint)| hints::encode(to, lock, &hint);
        told.into_iter()
            .map(|(slot, told)| (self.etcd.key(&slot_name("hints", slot)), text(told)))
            .collect()
    }
}

impl<B: LockStore> LockStore for EtcdStore<B> {
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError> {
        let key = self.key(lock);
        let found = self.etcd.ask(&[Act::Get(&key)])?;
        match found.into_iter().flatten().next() {
            Some((_, record)) => Ok(record),
            None => self.born(lock),
        }
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let beside = self.told(lock, expected, new);
        let born = || self.born(lock);
        self.etcd.compare_and_write(&self.key(lock), (expected, new), &beside, &born)
    }
    fn sector_len(&self) -> usize {
        self.births.sector_len()
    }
}
