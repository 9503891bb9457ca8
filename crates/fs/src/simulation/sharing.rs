//! A node among others that use a pool: locks on regions, epochs, recovery of the dead.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use braid_format::LockNo;
use braid_lock::{Hint, JoinOptions, Life, LockManager, Mode, NodeStore, NotRecovered};
use parking_lot::{Mutex, RwLock};

use super::{Places, Replayed};
use crate::cluster::{Bounds, Cluster, Joined};
use crate::deferred_ops::DeferredOps;
use crate::error::Result;
use crate::recovery::{Finishing, Recoverer};
use crate::verifier::VolumeVerifier;

/// What a node's membership does for the locks of regions once it has joined.
pub trait Link: Send + Sync {
    /// The other nodes should learn soon which epoch this one uses.
    fn announce(&self);
    /// It is over.
    fn has_ended(&self) -> bool;
    /// Sends a hint about a region.
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint);
    /// Whether hints reach that node.
    fn reaches(&self, life: Life) -> bool;
}

struct Linked(Box<dyn Link>);

impl Joined for Linked {
    fn announce(&self) {
        self.0.announce();
    }
    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint) {
        self.0.hint(to, lock, hint);
    }
    fn reaches(&self, life: Life) -> bool {
        self.0.reaches(life)
    }
}

/// What a simulation wants other than usual; some of it is defects that were mended once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Most regions that have locks of their own: few meet often.
    pub regions: u64,
    /// Once not so: what the nodes were writing that a dead node was recovering is made whole before that one's
    /// journal is replayed.
    pub its_dead_first: bool,
    /// Once not so: a node that joins does not wait without an end for what a dead one holds.
    pub waits_end: bool,
}

/// See `Cluster` and `Recoverer`.
pub struct Sharing {
    recoverer: Recoverer,
    terms: Terms,
}

impl std::fmt::Debug for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharing").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Sharing {
    /// Of a node that is to join.
    pub fn new(
        places: &Places,
        nodes: Arc<dyn NodeStore>,
        join: JoinOptions,
        terms: Terms,
    ) -> Self {
        let usual = Bounds::default();
        let unclaimed_for = usual.unclaimed_for.filter(|_| terms.waits_end);
        let recoverer = Recoverer {
            volume: places.0.clone(),
            core: Arc::new(DeferredOps::default()),
            nodes,
            join,
            cluster: Mutex::default(),
            bounds: Bounds { regions: terms.regions, unclaimed_for },
            leaving: RwLock::default(),
            finishing: Mutex::new(Finishing::default()),
            recovered: AtomicU64::new(0),
        };
        Self { recoverer, terms }
    }

    fn cluster(&self) -> Option<Arc<Cluster>> {
        self.recoverer.cluster.try_lock().and_then(|c| c.clone())
    }

    fn manager(&self) -> Option<Arc<LockManager>> {
        self.cluster()?.manager().ok()
    }

    /// It has joined as `me`, and takes over what was left of the life before in its slot: as a mount.
    ///
    /// # Errors
    /// A device's.
    pub fn start(&self, me: Life, link: Box<dyn Link>) -> Result<()> {
        let volume = &self.recoverer.volume;
        if let Some(cluster) = self.recoverer.cluster(me)? {
            cluster.has_joined(Box::new(Linked(link)));
            volume.pool.follow()?;
        }
        volume.pool.heal_labels()?;
        volume.pool.attach_with(me.slot.get(), &VolumeVerifier::of(volume))?;
        Ok(())
    }

    /// As whoever recovers a dead node, and may not have joined yet.
    ///
    /// # Errors
    /// As those of the recoverer.
    pub fn recover(&self, dead: Life, by: Life) -> std::result::Result<Replayed, NotRecovered> {
        let done = self.recoverer.recover_journal(dead, by, self.terms.its_dead_first)?;
        let crate::replay::Replayed { transactions, written, skipped } = done;
        Ok(Replayed { transactions, written, skipped })
    }

    /// It leaves: everything is equal and durable, and it uses no region any more.
    ///
    /// # Errors
    /// A device's.
    pub fn leave(&self) -> Result<()> {
        self.recoverer.volume.pool.detach()?;
        self.cluster().map_or(Ok(()), |cluster| cluster.leave())
    }

    /// A message about a region.
    pub fn heard(&self, from: Life, lock: LockNo, hint: &Hint) {
        if let Some(manager) = self.manager() {
            manager.message(from, lock, hint, false);
        }
    }

    /// A wish for a region in another node's heartbeat.
    pub fn wished(&self, lock: LockNo, mode: Mode) {
        if let Some(manager) = self.manager() {
            manager.wish(lock, mode);
        }
    }

    /// For which regions its threads wait.
    pub fn wishes(&self) -> Vec<(LockNo, Mode)> {
        self.cluster().map_or_else(Vec::new, |cluster| cluster.wishes())
    }

    /// A node was recovered, or left.
    pub fn node_gone(&self) {
        if let Some(manager) = self.manager() {
            manager.node_gone();
        }
    }

    /// How long from now regions are to be given up.
    pub fn demotion_due_in(&self) -> Option<Duration> {
        self.manager()?.demotion_due_in()
    }

    /// Gives them up.
    pub fn demote_due(&self) {
        if let Some(manager) = self.manager() {
            manager.demote_due();
        }
    }

    /// Its process has ended.
    pub fn end(&self) {
        if let Some(cluster) = self.recoverer.cluster.lock().take() {
            cluster.withdraw();
            cluster.end();
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.end();
    }
}
