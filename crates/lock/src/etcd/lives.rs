//! Keys that last as long as a lease: who lives, and who keeps others away.
//!
//! On one host kernel locks tell exactly who lives. A lease tells other hosts, which see no such
//! lock: as long as it lasts its node may live, and nobody takes its slot, checks or makes anew what
//! it uses. That a lease has run out proves nothing: no node is recovered for that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::LockPlace;
use parking_lot::{Condvar, Mutex};

use super::client::{Act, Compare, Pair};
use super::keys::{Etcd, slot_name, slot_number};
use crate::HostIdentity;
use crate::error::EtcdError;

/// How long a lease lasts without its holder.
pub(super) const TTL: Duration = Duration::from_secs(10);

/// Those who see each other's liveness locks: processes under one kernel that look for them at the same
/// place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockDomain(uuid::Uuid);

impl LockDomain {
    /// Of this process, which looks for liveness locks at `places`. One that looks nowhere is alone.
    pub fn new(identity: &HostIdentity, places: &[LockPlace]) -> Self {
        let Some(place) = places.first() else { return Self(uuid::Uuid::new_v4()) };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&identity.boot_id);
        hasher.update(&place.kernel.to_le_bytes());
        hasher.update(&place.device.to_le_bytes());
        hasher.update(&place.inode.to_le_bytes());
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self(uuid::Uuid::from_bytes(id))
    }
}

/// Who put a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub domain: LockDomain,
    pub pid: u32,
    pub host: String,
    /// Tells apart two that one process puts.
    pub nonce: u64,
}

impl Who {
    pub fn this(identity: &HostIdentity, domain: LockDomain) -> Self {
        Self {
            domain,
            pid: std::process::id(),
            host: identity.host.clone(),
            nonce: uuid::Uuid::new_v4().as_u64_pair().0,
        }
    }
    fn encode(&self) -> String {
        format!("{} {} {:016x} {}", self.domain.0, self.pid, self.nonce, self.host)
    }
    /// What cannot be read is somebody else's.
    pub fn decode(value: &[u8]) -> Self {
        let text = String::from_utf8_lossy(value);
        let mut words = text.splitn(4, ' ');
        let domain = words.next().and_then(|w| w.parse().ok());
        let pid = words.next().and_then(|w| w.parse().ok());
        let nonce = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
        Self {
            domain: LockDomain(domain.unwrap_or_default()),
            pid: pid.unwrap_or_default(),
            nonce: nonce.unwrap_or_default(),
            host: words.next().unwrap_or("unknown").to_owned(),
        }
    }
}

/// The slots in keys of lives.
pub(super) fn slots(lives: &[Pair]) -> HashMap<NodeId, Who> {
    lives.iter().filter_map(|(k, v)| Some((slot_number(k)?, Who::decode(v)))).collect()
}

/// Refuses where anybody lives, or keeps others away.
pub(super) fn refuse(lives: &[Pair], claim: &[Pair]) -> Result<(), EtcdError> {
    if let Some((slot, who)) = slots(lives).into_iter().min_by_key(|l| l.0) {
        return Err(EtcdError::Mounted { slot, host: who.host, pid: who.pid });
    }
    match claim.first() {
        None => Ok(()),
        Some((_, value)) => {
            let who = Who::decode(value);
            Err(EtcdError::Claimed { host: who.host, pid: who.pid })
        }
    }
}

/// How long the end of a life waits for its lease to be given back.
const ENDING: Duration = Duration::from_secs(1);

/// A key that this process keeps alive until this is dropped.
pub(super) struct Leased {
    shared: Arc<Shared>,
}

struct Shared {
    etcd: Arc<Etcd>,
    key: String,
    value: String,
    lease: Mutex<u64>,
    stop: Mutex<bool>,
    ended: Condvar,
}

impl Leased {
    /// Puts `key` if `conditions` hold and what stands there, if anything, is `instead`; `None` if
    /// not.
    pub fn put(
        etcd: &Arc<Etcd>,
        key: String,
        who: &Who,
        conditions: &[Compare<'_>],
    ) -> Result<Option<Self>, EtcdError> {
        let value = who.encode();
        let lease = etcd.client.grant(TTL)?;
        let put = [Act::PutLeased(&key, value.as_bytes(), lease)];
        let done = etcd.client.txn(conditions, &put, &[Act::Get(&key)])?;
        let stands = done.found.first().and_then(|p| p.first());
        let landed = done.resent && stands.is_some_and(|p| p.1 == value.as_bytes());
        if !done.succeeded && !landed {
            etcd.client.revoke(lease);
            return Ok(None);
        }
        let shared = Arc::new(Shared {
            etcd: etcd.clone(),
            key,
            value,
            lease: Mutex::new(lease),
            stop: Mutex::new(false),
            ended: Condvar::new(),
        });
        let keeper = shared.clone();
        let thread = std::thread::Builder::new().name("etcd-lease".into());
        if let Err(e) = thread.spawn(move || keeper.keep()) {
            // It runs out, and counts for nothing then.
            tracing::error!("cannot start a thread: {e}");
        }
        Ok(Some(Self { shared }))
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.ended.notify_all();
        // The keeper may be ending it just now, and a process that ends does not wait for it; or it may
        // wait for an etcd that is away.
        if let Some(mut lease) = self.shared.lease.try_lock_for(ENDING) {
            self.shared.end(&mut lease);
        }
    }
}

impl Shared {
    fn keep(&self) {
        loop {
            let stopped = {
                let mut stop = self.stop.lock();
                if !*stop {
                    self.ended.wait_for(&mut stop, TTL / 4);
                }
                *stop
            };
            let mut lease = self.lease.lock();
            if stopped {
                return self.end(&mut lease);
            }
            match self.etcd.client.keep_alive(*lease) {
                Ok(true) => {}
                Ok(false) | Err(EtcdError::Refused { .. }) => self.renew(&mut lease),
                Err(e) => tracing::warn!("lease: {e}"),
            }
        }
    }

    /// Once, whoever comes first.
    fn end(&self, lease: &mut u64) {
        match std::mem::take(lease) {
            0 => {}
            lease => self.etcd.client.revoke(lease),
        }
    }

    /// The lease ran out: this process stood still, or etcd was away for long.
    fn renew(&self, lease: &mut u64) {
        let client = &self.etcd.client;
        let renewed = client.grant(TTL).and_then(|new| {
            let put = self.put_under(new);
            // A lease without its key is not kept alive: nobody would ever miss the key.
            if matches!(put, Ok(true)) {
                *lease = new;
            } else {
                client.revoke(new);
            }
            put
        });
        match renewed {
            Ok(true) => tracing::warn!("the lease of {} had run out: taken anew", self.key),
            // Whether the slot is still this node's the slot's record says.
            Ok(false) => tracing::error!("{} is another's now", self.key),
            Err(e) => tracing::warn!("lease: {e}"),
        }
    }

    /// Whether the key is this one's, from now on as long as `lease` lasts.
    fn put_under(&self, lease: u64) -> Result<bool, EtcdError> {
        let client = &self.etcd.client;
        let put = [Act::PutLeased(&self.key, self.value.as_bytes(), lease)];
        let absent = [Compare::Absent(&self.key)];
        let mine = [Compare::Equals(&self.key, self.value.as_bytes())];
        Ok(client.txn(&absent, &put, &[])?.succeeded || client.txn(&mine, &put, &[])?.succeeded)
    }
}

/// Keeps nodes of all hosts away, while a check or create runs.
pub struct EtcdClaim {
    _key: Leased,
}

impl Etcd {
    /// Keeps nodes away until the answer is dropped. Those whose kernel locks are seen in `domain` are
    /// not asked for: their locks say more.
    ///
    /// # Errors
    /// [`EtcdError::Mounted`] by a node of another host, [`EtcdError::Claimed`]; etcd's.
    pub fn claim(self: &Arc<Self>, domain: LockDomain) -> Result<EtcdClaim, EtcdError> {
        let identity = crate::node::watch::this_host();
        let who = Who::this(&identity, domain);
        let (key, lives) = (self.key("claim"), self.key("lives/"));
        let put = Leased::put(self, key.clone(), &who, &[Compare::Absent(&key)])?;
        let found = self.ask(&[Act::GetAll(&lives), Act::Get(&key)])?;
        let [lives, claim] = &found[..] else { return Err(self.not_this(None)) };
        let Some(put) = put else {
            refuse(&[], claim)?;
            return Err(EtcdError::Claimed { host: "unknown".into(), pid: 0 });
        };
        let others: Vec<Pair> =
            lives.iter().filter(|l| Who::decode(&l.1).domain != domain).cloned().collect();
        refuse(&others, &[])?;
        Ok(EtcdClaim { _key: put })
    }

    /// Says that this process lives in `slot`; `None` where a node of another domain does, or a check
    /// keeps nodes away. Who put the key in `domain` is dead: the caller has its kernel lock.
    pub(super) fn live(
        self: &Arc<Self>,
        slot: NodeId,
        identity: &HostIdentity,
        domain: LockDomain,
    ) -> Result<Option<Leased>, EtcdError> {
        let (key, claim) = (self.key(&slot_name("lives", slot)), self.key("claim"));
        let found = self.ask(&[Act::Get(&key)])?;
        let stands = found.into_iter().flatten().next().map(|p| p.1);
        let conditions = match &stands {
            None => vec![Compare::Absent(&key), Compare::Absent(&claim)],
            Some(value) if Who::decode(value).domain == domain => {
                vec![Compare::Equals(&key, value), Compare::Absent(&claim)]
            }
            Some(_) => return Ok(None),
        };
        Leased::put(self, key.clone(), &Who::this(identity, domain), &conditions)
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::Script;
    use super::*;

    /// A lease is kept alive only once its key hangs on it: else the key would be gone for good.
    #[test]
    fn a_lease_that_got_no_key_is_given_back_and_the_key_put_again() {
        let server = Script::run(|path, times| match (path, times) {
            ("/v3/lease/grant", n) => (200, format!(r#"{{"ID": "{}"}}"#, 10 + n)),
            ("/v3/kv/txn", 0) => (400, r#"{"code": 3, "message": "no"}"#.to_owned()),
            ("/v3/kv/txn", _) => {
                let done = r#"{"header": {"revision": "1"}, "succeeded": true, "responses": [{}]}"#;
                (200, done.to_owned())
            }
            _ => (200, "{}".to_owned()),
        });
        let address = format!("etcd://{}/p", server.at).parse().unwrap();
        let shared = Shared {
            etcd: Etcd::new(address, uuid::Uuid::new_v4()),
            key: "lives/0".into(),
            value: "this".into(),
            lease: Mutex::new(7),
            stop: Mutex::new(false),
            ended: Condvar::new(),
        };
        let mut lease = shared.lease.lock();
        shared.renew(&mut lease);
        assert_eq!(*lease, 7);
        shared.renew(&mut lease);
        assert_eq!(*lease, 11);
        shared.end(&mut lease);
        shared.end(&mut lease);
        assert_eq!(server.bodies("/v3/lease/revoke"), [r#"{"ID":"10"}"#, r#"{"ID":"11"}"#]);
    }

    #[test]
    fn who_is_read_as_it_was_put() {
        let domain = LockDomain(uuid::Uuid::new_v4());
        let who = Who { domain, pid: 7, host: "a host".into(), nonce: 9 };
        assert_eq!(Who::decode(who.encode().as_bytes()), who);
        for odd in [&b""[..], b"x", b"\xff 1 2", b"a b c d e"] {
            assert_eq!(Who::decode(odd).domain.0, uuid::Uuid::nil());
        }
    }
}
