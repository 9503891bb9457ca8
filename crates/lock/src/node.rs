//! Nodes: slots, heartbeats, the watcher, the liveness lock, recovery.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, Bytes, LockNo, NodeId};

use crate::Me;
use crate::dlock::Hint;
use crate::error::{LockError, StoreError};
use crate::glock::LockManager;
use crate::store::{CawOutcome, Sector};

/// Whether a life may still act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It lives, or may live, or is not yet recovered: what it holds stands.
    Alive,
    /// Its slot is free or another's: it was recovered or left; what it held may be broken.
    Dead,
}

/// The other nodes, as the lock manager sees them.
pub trait Peers: Send + Sync {
    /// Whether `life`'s holds may be broken. In doubt: alive.
    fn liveness(&self, life: Me) -> Liveness;
    /// Sends a hint; may be lost; never blocks.
    fn hint(&self, to: Me, lock: LockNo, hint: Hint);
}

/// Where slots and heartbeats stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAreas {
    /// File-system block.
    pub block_size: BlockSize,
    /// Unit of compare-and-write.
    pub lock_sector: Bytes,
    /// Number of slots.
    pub node_slots: u16,
    /// First block of the packed slot records.
    pub slot_area: BlockNo,
    /// First block of the packed heartbeats.
    pub heartbeat_area: BlockNo,
    /// Names the directory of the hint sockets.
    pub fs_uuid: uuid::Uuid,
}
impl NodeAreas {
    /// From a verified superblock; `None` if its sizes are impossible.
    pub fn from_superblock(sb: &RawSuperblock) -> Option<Self> {
        let _ = sb;
        todo!()
    }
}

/// The node areas and the liveness locks. `PoolNodes` is the real one.
pub trait NodeStore: Send + Sync {
    /// Number of slots.
    fn slots(&self) -> u16;
    /// Bytes in a slot's or heartbeat's sector.
    fn sector_len(&self) -> usize;
    /// Names the directory of the hint sockets.
    fn fs_uuid(&self) -> uuid::Uuid;
    /// All slot records, packed.
    ///
    /// # Errors
    /// The device's.
    fn read_slots(&self) -> Result<Vec<u8>, StoreError>;
    /// Changes one slot record.
    ///
    /// # Errors
    /// The device's: the outcome is then unknown.
    fn compare_and_write_slot(
        &self,
        slot: NodeId,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError>;
    /// One slot record.
    ///
    /// # Errors
    /// The device's.
    fn read_slot(&self, slot: NodeId) -> Result<Sector, StoreError>;
    /// All heartbeats, packed.
    ///
    /// # Errors
    /// The device's.
    fn read_heartbeats(&self) -> Result<Vec<u8>, StoreError>;
    /// Writes one heartbeat: a plain write of its node alone.
    ///
    /// # Errors
    /// The device's.
    fn write_heartbeat(&self, slot: NodeId, bytes: &[u8]) -> Result<(), StoreError>;
    /// Takes the liveness lock of `slot` (a kernel lock that ends with the process), or `None` if
    /// another process of this host holds it.
    ///
    /// # Errors
    /// The device's.
    fn lock_life(&self, slot: NodeId) -> Result<Option<Box<dyn Send + Sync>>, StoreError>;
    /// Whether a process of this host holds the liveness lock of `slot`.
    ///
    /// # Errors
    /// The device's.
    fn life_locked(&self, slot: NodeId) -> Result<bool, StoreError>;
}

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// A fixed slot, or any free one.
    pub slot: Option<NodeId>,
    /// For people: where it is mounted.
    pub mount_point: PathBuf,
    /// Pool epoch this node uses.
    pub pool_epoch: u32,
    /// Time between two heartbeats.
    pub beat: Duration,
}
impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            slot: None,
            mount_point: PathBuf::new(),
            pool_epoch: 0,
            beat: Duration::from_millis(250),
        }
    }
}

/// What the file system does for a dead node, after its fence: replays its journal, clears its
/// orphans, returns its windows. Idempotent: the recoverer may die at any step.
pub trait Recover: Send + Sync {
    /// Everything `dead` left behind is in place and stable on `Ok`.
    ///
    /// # Errors
    /// The slot stays `Recovering`; it is tried again.
    fn recover(&self, dead: Me) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// A slot, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Who.
    pub life: Me,
    /// Slot state.
    pub state: braid_format::node::SlotState,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Mount point.
    pub mount_point: String,
    /// Since when, Unix seconds.
    pub since: u64,
    /// Heartbeats seen lately.
    pub beating: bool,
}

/// This node's place in the cluster. Leaving (or dropping) frees the slot only through
/// [`Membership::leave`].
pub struct Membership {
    _private: (),
}

impl Membership {
    /// Claims a slot: a free one, or one whose node is provably dead, after recovering it with
    /// `recover`. Takes the liveness lock, starts the heartbeat.
    ///
    /// # Errors
    /// No slot to be had, or the devices failed.
    pub fn join(
        store: Arc<dyn NodeStore>,
        options: JoinOptions,
        recover: Arc<dyn Recover>,
    ) -> Result<Arc<Self>, LockError> {
        let _ = (store, options, recover);
        todo!()
    }
    /// Who this node is.
    pub fn me(&self) -> Me {
        todo!()
    }
    /// Starts the watcher and the hint receiver; hints and wishes of others go to `manager`.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn attach(self: &Arc<Self>, manager: &Arc<LockManager>) -> Result<(), LockError> {
        let _ = manager;
        todo!()
    }
    /// Publishes this node's change of the counters with the next heartbeat.
    pub fn publish(&self, free_delta: i64, inode_delta: i64) {
        let _ = (free_delta, inode_delta);
        todo!()
    }
    /// Sum of the changes that the other living nodes published.
    pub fn others_deltas(&self) -> (i64, i64) {
        todo!()
    }
    /// All slots that are not free.
    pub fn nodes(&self) -> Vec<NodeView> {
        todo!()
    }
    /// Frees the slot and ends the threads. Call after the manager was shut down cleanly.
    ///
    /// # Errors
    /// The slot could not be freed: others will recover it.
    pub fn leave(&self) -> Result<(), LockError> {
        todo!()
    }
    /// Ends the threads and drops the liveness lock without freeing the slot: others recover it.
    /// Every write of this node must have ended.
    pub fn abandon(&self) {
        todo!()
    }
}
impl Peers for Membership {
    fn liveness(&self, _life: Me) -> Liveness {
        todo!()
    }
    fn hint(&self, _to: Me, _lock: LockNo, _hint: Hint) {
        todo!()
    }
}
