//! The keys of one file system in etcd: reading, comparing and writing them under its identity.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::NodeId;

use super::address::EtcdAddress;
use super::client::{Act, Client, Compare, Done, Pair};
use crate::error::{EtcdError, StoreError};
use crate::store::CawOutcome;

impl From<EtcdError> for StoreError {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(Arc::new(error))
    }
}

/// The keys of one file system in etcd.
pub struct Etcd {
    pub(super) client: Client,
    pub(super) address: EtcdAddress,
    fs: uuid::Uuid,
    pub(super) identity: String,
    pub(super) mark: String,
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

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.address.prefix())
    }

    /// What `acts` find, under the file system's own identity.
    pub(super) fn ask(&self, acts: &[Act<'_>]) -> Result<Vec<Vec<Pair>>, EtcdError> {
        let mine = Compare::Equals(&self.mark, self.identity.as_bytes());
        let done = self.watched(self.client.txn(&[mine], acts, &[Act::Get(&self.mark)]))?;
        if done.succeeded { Ok(done.found) } else { Err(self.not_this(done.found.first())) }
    }

    /// Compares and writes the value of `key`, which is as `unborn` says while it is not there;
    /// `beside`: what is put together with it.
    pub(super) fn compare_and_write(
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

    pub(super) fn not_this(&self, mark: Option<&Vec<Pair>>) -> EtcdError {
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
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Whose keys these are, for people.
pub(super) fn shown(mark: &[Pair]) -> String {
    let value = mark.first().map(|p| String::from_utf8_lossy(&p.1).into_owned());
    value.unwrap_or_else(|| "something that does not belong to Braid".into())
}

pub(super) fn slot_name(kind: &str, slot: NodeId) -> String {
    format!("{kind}/{:04x}", slot.0)
}

/// Of which slot a key is that [`slot_name`] made.
pub(super) fn slot_number(key: &str) -> Option<NodeId> {
    u16::from_str_radix(key.rsplit('/').next()?, 16).ok().map(NodeId)
}
