//! Lock records and node slots in etcd, for disks that do not compare and write themselves, or not
//! among hosts. docs/LOCKING.md section 14.
//!
//! ```text
//!  PREFIX/braid        identity of the file system; every transaction compares it
//!  PREFIX/pool         the pool's name, for people
//!  PREFIX/locks/NNNN   the record of a lock (16 hexadecimal digits), once it was changed
//!  PREFIX/slots/NNNN   the record of a node slot (4), once it was changed
//!  PREFIX/lives/NNNN   who lives in the slot, as long as its lease lasts
//!  PREFIX/hints/NNNN   the last hint to the slot: watched by its node
//!  PREFIX/claim        a check or create that keeps nodes away, as long as its lease lasts
//! ```
//!
//! Invariants:
//! * a record that etcd does not have is as it was born, on the pool; one that it has is never
//!   removed while the file system is in use;
//! * nothing is read or written under another identity than the file system's own.

mod address;
mod client;
mod hints;
mod lives;
mod nodes;
mod store;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use braid_format::lock_record::LockRecord;
use braid_format::node::{RawSlot, SlotRecord};
use braid_format::{Bytes, Incarnation, LockNo, NodeId};

pub use crate::error::EtcdError;
use crate::error::StoreError;
use crate::store::CawOutcome;

pub use address::EtcdAddress;
pub use hints::HintWatch;
pub use lives::{EtcdClaim, LockDomain};
pub use nodes::EtcdNodes;
pub use store::EtcdStore;

use client::{Act, Client, Compare, Done, Pair};

impl From<EtcdError> for StoreError {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(Arc::new(error))
    }
}

/// The keys of one file system in etcd.
pub struct Etcd {
    client: Client,
    address: EtcdAddress,
    fs: uuid::Uuid,
    identity: String,
    mark: String,
    /// Found to be emptied, or to have gone back: nothing held can be relied on.
    lost: AtomicBool,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("address", &self.address)
            .field("fs", &self.fs)
            .finish_non_exhaustive()
    }
}

impl Etcd {
    /// The keys of file system `fs` at `address`. Asks nobody yet.
    pub fn new(address: EtcdAddress, fs: uuid::Uuid) -> Arc<Self> {
        let mark = format!("{}/braid", address.prefix());
        let client = Client::new(&address);
        let identity = fs.to_string();
        Arc::new(Self { client, address, fs, identity, mark, lost: AtomicBool::new(false) })
    }
    /// Where they are.
    pub fn address(&self) -> &EtcdAddress {
        &self.address
    }

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
        let locks = self.key("locks/");
        self.client.txn(&[], &[Act::DeleteAll(&locks)], &[])?;
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

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.address.prefix())
    }

    /// What `acts` find, under the file system's own identity.
    fn ask(&self, acts: &[Act<'_>]) -> Result<Vec<Vec<Pair>>, EtcdError> {
        let mine = Compare::Equals(&self.mark, self.identity.as_bytes());
        let done = self.watched(self.client.txn(&[mine], acts, &[Act::Get(&self.mark)]))?;
        if done.succeeded { Ok(done.found) } else { Err(self.not_this(done.found.first())) }
    }

    /// Compares and writes the value of `key`, which is as `unborn` says while it is not there;
    /// `beside`: what is put together with it.
    fn compare_and_write(
        &self,
        key: &str,
        (expected, new): (&[u8], &[u8]),
        beside: &[(String, String)],
        unborn: &dyn Fn() -> Result<Vec<u8>, StoreError>,
    ) -> Result<CawOutcome, StoreError> {
        let mine = || Compare::Equals(&self.mark, self.identity.as_bytes());
        let mut put = vec![Act::Put(key, new)];
        put.extend(beside.iter().map(|(key, value)| Act::Put(key, value.as_bytes())));
        let look = [Act::Get(&self.mark), Act::Get(key)];
        let mut conditions = [mine(), Compare::Equals(key, expected)];
        let mut resent = false;
        // At most: found absent, then there after all.
        for _ in 0..2 {
            let done = self.watched(self.client.txn(&conditions, &put, &look))?;
            resent |= done.resent;
            if done.succeeded {
                return Ok(CawOutcome::Written);
            }
            let mut found = done.found.into_iter();
            let mark = found.next().unwrap_or_default();
            if mark.first().is_none_or(|m| m.1 != self.identity.as_bytes()) {
                return Err(self.not_this(Some(&mark)).into());
            }
            match found.next().and_then(|p| p.into_iter().next()) {
                // An earlier copy of this request did it.
                Some((_, stands)) if resent && stands == new => return Ok(CawOutcome::Written),
                Some((_, stands)) => return Ok(CawOutcome::Mismatch(stands)),
                None => {
                    let born = unborn()?;
                    if born != expected {
                        return Ok(CawOutcome::Mismatch(born));
                    }
                    conditions = [mine(), Compare::Absent(key)];
                }
            }
        }
        // Removed between: nobody does that.
        Err(self.not_this(None).into())
    }

    fn not_this(&self, mark: Option<&Vec<Pair>>) -> EtcdError {
        self.lost.store(true, Ordering::Release);
        EtcdError::NotThis {
            address: self.address.to_string(),
            expected: self.fs,
            found: mark.map_or_else(|| "nothing".into(), |p| shown(p)),
        }
    }

    /// Remembers that what etcd says cannot be relied on any more.
    fn watched(&self, done: Result<Done, EtcdError>) -> Result<Done, EtcdError> {
        if matches!(done, Err(EtcdError::WentBack { .. })) {
            self.lost.store(true, Ordering::Release);
        }
        done
    }

    /// Whether this node must end: others may hold what it holds.
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Whose keys these are, for people.
fn shown(mark: &[Pair]) -> String {
    let value = mark.first().map(|p| String::from_utf8_lossy(&p.1).into_owned());
    value.unwrap_or_else(|| "something that does not belong to Braid".into())
}

fn slot_name(kind: &str, slot: NodeId) -> String {
    format!("{kind}/{:04x}", slot.0)
}
