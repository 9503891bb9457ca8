//! Lock records and node slots in etcd, for disks that do not compare and write themselves, or not
//! among hosts. docs/LOCKING.md section 14.
//!
//! ```text
//!  PREFIX/braid        identity of the file system; every transaction compares it
//!  PREFIX/pool         the pool's name, for people
//!  PREFIX/locks/NNNN   the record of a lock (16 hexadecimal digits), once it was changed
//!  PREFIX/slots/NNNN   the record of a node slot (4), once it was changed
//!  PREFIX/lives/NNNN   who lives in the slot, as long as its lease lasts
//!  PREFIX/beats/NNNN   a heartbeat of the slot that the devices have had: whether they belong to these keys
//!  PREFIX/hints/NNNN   the last hint to the slot: watched by its node
//!  PREFIX/claim        a check or create that keeps nodes away, as long as its lease lasts
//! ```
//!
//! Invariants:
//! * a record that etcd does not have is as it was born, on the pool; one that it has is never
//!   removed while the file system is in use;
//! * nothing is read or written under another identity than the file system's own.
//!
//! Parts, bottom up:
//! ```text
//!  address, client      where etcd is; how it is asked
//!  keys                 the keys of one file system, under its identity
//!  hints, lives         what is said to a slot's node; keys that last as long as a lease
//!  beats                whether the devices and etcd belong together
//!  store, nodes         lock records; node slots
//! ```

mod address;
mod beats;
mod client;
mod hints;
mod keys;
mod lives;
mod nodes;
mod store;

use std::time::SystemTime;

use braid_format::lock_record::LockRecord;
use braid_format::node::{RawSlot, SlotRecord};
use braid_format::{Bytes, Incarnation, LockNo, NodeId};

pub use crate::error::EtcdError;

pub use address::EtcdAddress;
pub use hints::HintWatch;
pub use keys::Etcd;
pub use lives::{EtcdClaim, LockDomain};
pub use nodes::EtcdNodes;
pub use store::EtcdStore;

use client::{Act, Compare, Pair};
use keys::{shown, slot_name};

impl Etcd {
    /// Whether a new file system could have its keys here: nothing is here, or `force` and nobody
    /// lives.
    ///
    /// # Errors
    /// [`EtcdError::Used`], [`EtcdError::Mounted`], [`EtcdError::Claimed`]; etcd's.
    pub fn may_begin(&self, force: bool) -> Result<(), EtcdError> {
        let all = self.key("");
        let claim = self.key("claim");
        let lives = self.key("lives/");
        let acts = [Act::Get(&self.mark), Act::GetAll(&lives), Act::Get(&claim), Act::GetAny(&all)];
        let done = self.client.txn(&[], &acts, &[])?;
        let [mark, lives, claim, all] = &done.found[..] else { return Ok(()) };
        lives::refuse(lives, claim)?;
        if !force && !all.is_empty() {
            let found = shown(mark);
            return Err(EtcdError::Used { address: self.address.to_string(), found });
        }
        Ok(())
    }

    /// Begins anew: whatever was here is gone, all records are as they stand on the pool.
    ///
    /// # Errors
    /// Those of [`Self::may_begin`].
    pub fn begin(&self, pool: &str, force: bool) -> Result<(), EtcdError> {
        self.may_begin(force)?;
        let (all, name) = (self.key(""), self.key("pool"));
        self.client.txn(&[], &[Act::DeleteAll(&all)], &[])?;
        let put =
            [Act::Put(&self.mark, self.identity.as_bytes()), Act::Put(&name, pool.as_bytes())];
        // Two that begin at once: one of them wins.
        let done =
            self.client.txn(&[Compare::Absent(&self.mark)], &put, &[Act::Get(&self.mark)])?;
        let mine = |found: &[Vec<Pair>]| {
            found.first().is_some_and(|p| p.iter().any(|p| p.1 == self.identity.as_bytes()))
        };
        if !done.succeeded && !mine(&done.found) {
            let found = done.found.first().map_or_else(String::new, |p| shown(p));
            return Err(EtcdError::Used { address: self.address.to_string(), found });
        }
        Ok(())
    }

    /// Whether the keys here are the file system's own.
    ///
    /// # Errors
    /// [`EtcdError::NotThis`]; etcd's.
    pub fn confirm(&self) -> Result<(), EtcdError> {
        self.ask(&[]).map(drop)
    }

    /// Shows `each` lock record that etcd has.
    ///
    /// # Errors
    /// As [`Self::confirm`].
    pub fn records(&self, each: &mut dyn FnMut(LockNo, &[u8])) -> Result<(), EtcdError> {
        let all = self.key("locks/");
        let mut from = all.clone();
        loop {
            let found = self.ask(&[Act::GetPage(&all, &from)])?;
            let Some(last) = found.iter().flatten().last() else { return Ok(()) };
            // The next key there can be.
            from = format!("{}\0", last.0);
            for (key, record) in found.iter().flatten() {
                let number = key.get(all.len()..).and_then(|n| u64::from_str_radix(n, 16).ok());
                if let Some(number) = number {
                    each(LockNo(number), record);
                }
            }
        }
    }

    /// Replaces a record, whatever it is: nobody lives. `sector` is the pool's lock sector.
    ///
    /// # Errors
    /// As [`Self::confirm`].
    pub fn replace(&self, record: &LockRecord, sector: Bytes) -> Result<(), EtcdError> {
        let mut bytes = vec![0; sector.to_usize()];
        record.encode(&mut bytes);
        let key = self.key(&format!("locks/{:016x}", record.lock.0));
        self.ask(&[Act::Put(&key, &bytes)]).map(drop)
    }

    /// Lets all locks begin anew, and all slots in lives that no earlier one can have had: nobody
    /// lives, and what was written under them is in place. Where the keys are another's they stay.
    ///
    /// # Errors
    /// [`EtcdError::NotThis`] where they are another's; etcd's.
    pub fn renew(&self, pool: &str, slots: u16) -> Result<(), EtcdError> {
        match self.confirm() {
            Err(EtcdError::NotThis { .. }) => {
                let found = self.client.txn(&[], &[Act::Get(&self.mark)], &[])?.found;
                if found.iter().flatten().next().is_some() {
                    return self.confirm();
                }
            }
            confirmed => confirmed?,
        }
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let incarnation = seconds.map_or(0, |s| u32::try_from(s.as_secs()).unwrap_or(0));
        let (locks, beats) = (self.key("locks/"), self.key("beats/"));
        self.client.txn(&[], &[Act::DeleteAll(&locks), Act::DeleteAll(&beats)], &[])?;
        let all: Vec<u16> = (0..slots).collect();
        for some in all.chunks(Self::PUTS_MAX) {
            let records: Vec<(String, Vec<u8>)> = some
                .iter()
                .map(|slot| {
                    let mut record = SlotRecord::free(NodeId(*slot));
                    record.life.incarnation = Incarnation(incarnation);
                    let mut bytes = vec![0; RawSlot::LEN];
                    record.encode(&mut bytes);
                    (self.key(&slot_name("slots", NodeId(*slot))), bytes)
                })
                .collect();
            let puts: Vec<Act<'_>> = records.iter().map(|(k, v)| Act::Put(k, v)).collect();
            self.client.txn(&[], &puts, &[])?;
        }
        let name = self.key("pool");
        let mark = Act::Put(&self.mark, self.identity.as_bytes());
        self.client.txn(&[], &[mark, Act::Put(&name, pool.as_bytes())], &[]).map(drop)
    }
    /// etcd takes 128 in one transaction.
    const PUTS_MAX: usize = 100;
}
