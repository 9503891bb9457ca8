//! The other nodes, as the pool sees them: who they are, which regions are held against them, whether
//! this node may write, and how the devices tell nodes apart.
//!
//! The layers above know who lives and what is locked; they say it through two traits, [`Others`] and
//! [`RegionLocks`]. A pool that one node uses alone has neither.

pub(crate) mod break_off;
pub(crate) mod liveness;
pub(crate) mod regions;
pub(crate) mod reservations;
pub(crate) mod write_gate;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use braid_format::NodeId;
use braid_format::features::Features;
use braid_format::lock_record::Life;
use parking_lot::{Mutex, RwLock};

pub use break_off::{BreakOff, BreakOffScope, OthersWait};
pub use regions::{HeldRegions, RegionHold, RegionLocks};
pub(crate) use regions::{Locks, add_locks, hold_of};

use self::break_off::Leave;
use self::liveness::HeldBytes;
use self::reservations::OwnKey;
use crate::error::PoolError;
use crate::topology::EpochTag;

/// The other nodes.
pub trait Others: Send + Sync {
    /// This node.
    fn me(&self) -> Life;
    /// Whether `life` issues nothing any more, and nothing of it is in flight.
    fn is_gone(&self, life: Life) -> bool;
    /// Whether every other node that lives, or may live, has said that it uses the epoch. In doubt
    /// not. It is asked again after a while.
    fn all_use(&self, tag: EpochTag) -> bool;
    /// The other nodes that live, or may live, and have not said that they use the epoch: for people. As
    /// long as [`Others::all_use`] says no there may be more that cannot be named.
    fn late(&self, _: EpochTag) -> Vec<Life> {
        Vec::new()
    }
    /// The other nodes that do not know all of these features of the format: they could not go on if the pool had
    /// them. Waits for no lock and for no epoch.
    ///
    /// # Errors
    /// That cannot be seen now.
    fn who_lacks(&self, features: Features) -> Result<Vec<NodeId>, PoolError>;
    /// This node uses another epoch, and has not said so: what must be done before it does. It waits
    /// for no lock and for no epoch.
    fn adopt(&self);
    /// This node uses another epoch, and says so from now on (`Pool::epoch_tag`). The other nodes
    /// should learn of it soon.
    fn announce(&self);
    /// This node has withdrawn: it waits for nobody any more.
    fn has_ended(&self) -> bool;
}

/// Both.
pub(crate) struct Shared {
    pub others: Arc<dyn Others>,
    pub regions: Arc<dyn RegionLocks>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("me", &self.others.me()).finish_non_exhaustive()
    }
}

/// What an open pool knows of the other nodes, and what it has that they can see.
#[derive(Debug, Default)]
pub(crate) struct ClusterView {
    /// The other nodes, where there can be any.
    pub shared: RwLock<Option<Arc<Shared>>>,
    /// Lives that claimed a change of the pool and are fenced.
    pub gone: Mutex<Vec<Life>>,
    /// Liveness bytes that this process holds.
    pub liveness: HeldBytes,
    /// So many exclusive locks of regions were granted when all members were last flushed for that.
    pub durable_grants: AtomicU64,
    /// The key that this node has registered with the members.
    pub key: OwnKey,
    /// Once this node leaves.
    pub leave: Leave,
}

impl ClusterView {
    /// That every node could go on if the pool had these features, too. What every version knows is not asked.
    ///
    /// # Errors
    /// [`PoolError::UnknownToNodes`], [`PoolError::NodesUnasked`].
    pub fn check_known(&self, features: Features) -> Result<(), PoolError> {
        let features = features.without(Features::UNSAID);
        let Some(shared) = self.shared().filter(|_| !features.is_empty()) else { return Ok(()) };
        let nodes = shared.others.who_lacks(features)?;
        if nodes.is_empty() {
            return Ok(());
        }
        Err(PoolError::UnknownToNodes { features: features.names(), nodes })
    }

    /// The other nodes and the locks among them, if there can be any.
    pub fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.read().clone()
    }
}
