//! Why a lock operation failed.

use std::sync::Arc;

use braid_format::{BlockNo, FormatError, LockNo, NodeId};
use thiserror::Error;

use crate::Life;

/// The store of lock records could not be read or written.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The pool below failed; whether a write landed is unknown.
    #[error(transparent)]
    Pool(Arc<braid_pool::PoolError>),
    /// Member 0 failed.
    #[error(transparent)]
    Member(Arc<braid_device::DeviceError>),
    /// etcd did not do it; whether a write landed is unknown.
    #[error(transparent)]
    Etcd(Arc<EtcdError>),
    /// Another store failed.
    #[error("lock store: {0}")]
    Device(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// No node can be kept away from it.
    #[error("nobody can be fenced here by reservation")]
    Unfenceable,
    /// The lock number lies outside the store.
    #[error("lock {lock} lies outside the store")]
    Outside {
        /// The number.
        lock: LockNo,
    },
}

impl StoreError {
    /// Whether this node has been fenced.
    pub fn is_fenced(&self) -> bool {
        match self {
            Self::Pool(e) => e.is_fenced(),
            Self::Member(e) => e.is_fenced(),
            _ => false,
        }
    }
}

impl From<braid_pool::PoolError> for StoreError {
    fn from(e: braid_pool::PoolError) -> Self {
        Self::Pool(Arc::new(e))
    }
}
impl From<braid_device::DeviceError> for StoreError {
    fn from(e: braid_device::DeviceError) -> Self {
        Self::Member(Arc::new(e))
    }
}

/// A lock operation that failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LockError {
    /// This node has withdrawn: it takes no lock and writes nothing any more.
    #[error("this node has withdrawn")]
    Withdrawn,
    /// The wait was cancelled by the thread that waits: see [`crate::LockManager::acquire_unless`].
    #[error("waiting for a lock was given up")]
    GivenUp,
    /// Who waited was told to stop, from outside: see [`crate::interrupt`].
    #[error("waiting for a lock was interrupted")]
    Interrupted,
    /// The manager was shut down.
    #[error("the lock manager has been shut down")]
    ShutDown,
    /// The store failed, again and again.
    #[error("lock {lock}: {source}")]
    Store {
        /// The lock.
        lock: LockNo,
        /// What the store said.
        source: StoreError,
    },
    /// The bytes at the lock's place are no lock record.
    #[error(
        "the record of lock {lock} is damaged ({source}); run `braid check --repair` after unmounting all nodes"
    )]
    Record {
        /// The lock.
        lock: LockNo,
        /// What is wrong with them.
        source: FormatError,
    },
    /// A dead node holds it that cannot be recovered before its private metadata is repaired.
    #[error(
        "lock {lock} is held by the dead node {node}, whose {part} is damaged (block {block}); run `braid check --repair` after unmounting all nodes"
    )]
    Lost {
        /// The lock.
        lock: LockNo,
        /// The dead node's slot.
        node: NodeId,
        /// What is damaged.
        part: &'static str,
        /// The damaged block.
        block: BlockNo,
    },
    /// A dead node holds what the recovery of another needs, and no living node recovers it.
    #[error(
        "node {node} died too, and what it held has to be recovered first: mount without `-o slot=`, so that its slot can be taken; if it was of a host that is off, confirm that first (`braid fence POOL {node} --confirm`)"
    )]
    KeptByDead {
        /// The dead node's slot.
        node: NodeId,
    },
    /// A slot or heartbeat area could not be read or written.
    #[error("node area: {0}")]
    NodeStore(#[source] StoreError),
    /// The bytes in a slot are no slot record.
    #[error("node slot {slot}: {source}")]
    Slot {
        /// The slot.
        slot: NodeId,
        /// What is wrong with them.
        source: FormatError,
    },
    /// Every node slot is taken by a node that lives, or may live.
    #[error(
        "all {slots} node slots are taken: unmount one (`braid nodes` lists them), or wait for the check or create that runs on the pool; if the host of one is off, confirm that (`braid fence POOL NODE --confirm`); then its slot is free"
    )]
    NoFreeSlot {
        /// How many there are.
        slots: u16,
    },
    /// A living node changes the pool's records under kernel locks that this process does not see.
    #[error("{}", foreign_locks(*node, host, *here))]
    ForeignLocks {
        /// Who.
        node: Life,
        /// Its host.
        host: Arc<str>,
        /// It is of the same boot of the same host.
        here: bool,
    },
    /// A member that was named is not the one that a living node uses.
    #[error(
        "one of the devices is a copy of a member: it does not show that node {} ({host}) is alive, as the others do. Name the devices that this node uses (`braid status` lists them), and detach the copy",
        node.slot
    )]
    CopiedMember {
        /// Who.
        node: Life,
        /// Its host.
        host: Arc<str>,
    },
    /// A node of this host uses the pool as it was before a change, and does not take note of that.
    #[error(
        "node {} of this host (process {pid}) has not taken note of a change of the pool's members: if the process is stopped, let it go on (`kill -CONT {pid}`), else end it; then mount again",
        node.slot
    )]
    Behind {
        /// Who.
        node: Life,
        /// Its process, as its slot says.
        pid: u32,
    },
    /// The slot asked for is taken.
    #[error("node slot {slot} is taken by a node on host {host}: give another, or leave slot= out")]
    SlotTaken {
        /// The slot.
        slot: NodeId,
        /// Who lives there.
        holder: Life,
        /// Its host.
        host: Box<str>,
    },
    /// The slot asked for does not exist.
    #[error("node slot {slot} does not exist: there are {slots}")]
    NoSuchSlot {
        /// The slot.
        slot: NodeId,
        /// How many there are.
        slots: u16,
    },
    /// A node that is said to be dead is not taken for it.
    #[error("node {slot} is not taken for dead: {why}")]
    NotDead {
        /// Its slot.
        slot: NodeId,
        /// Why.
        why: Arc<str>,
    },
    /// Recovery of a dead node failed.
    #[error("recovery of node {node:?} failed: {source}")]
    Recovery {
        /// The dead node.
        node: Life,
        /// What the file system said.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The slots that may be had belong to dead nodes that cannot be recovered.
    #[error(
        "node {node:?} is dead and cannot be recovered: {source}; run `braid check --repair` after unmounting all nodes"
    )]
    Damaged {
        /// The dead node.
        node: Life,
        /// What was found.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// What is on the devices is no longer what this node is joining.
    #[error("{source}")]
    Replaced {
        /// What the file system said.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A thread could not be started, or a socket not be made.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
}

impl LockError {
    /// Trying again does not help: the bytes are no lock record, or there is no such lock.
    pub fn is_lasting(&self) -> bool {
        let outside = |source: &StoreError| matches!(source, StoreError::Outside { .. });
        matches!(self, Self::Record { .. })
            || matches!(self, Self::Store { source, .. } if outside(source))
    }
}

fn foreign_locks(node: Life, host: &str, here: bool) -> String {
    let slot = node.slot;
    if here {
        format!(
            "node {slot} on this host ({host}) uses the pool by other device nodes or files of the same disks, and some of the disks have no COMPARE AND WRITE: its locks and this process's do not exclude each other. Use the same device nodes or files as node {slot} does, or unmount it"
        )
    } else {
        format!(
            "node {slot} on {host} has the pool mounted, and some of its disks have no COMPARE AND WRITE: locks on them exclude only nodes of one host. Unmount it there first, or keep the locks in etcd (`braid create --locks`)"
        )
    }
}

/// What kept etcd from doing what was asked.
#[derive(Debug, Clone, Error)]
pub enum EtcdError {
    /// Not an address.
    #[error("{given}: {why} (etcd://HOST[:PORT][,HOST[:PORT]...]/PREFIX)")]
    Address {
        /// What was given.
        given: Box<str>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nobody answered in time.
    #[error(
        "no answer from etcd ({members}): {why}; start etcd, or make sure that this host can reach it: nodes wait, and keep what they hold"
    )]
    Unreachable {
        /// Who was asked.
        members: String,
        /// What the last one's connection said.
        why: String,
    },
    /// etcd understood, and does not do it.
    #[error("etcd refused: {why}")]
    Refused {
        /// Who, and what it said.
        why: Box<str>,
    },
    /// Its database has reached its bound.
    #[error(
        "etcd is full: {why}; compact and defragment it, then disarm the alarm, and let it compact by itself (--auto-compaction-retention)"
    )]
    Full {
        /// Who, and what it said.
        why: Box<str>,
    },
    /// Not what etcd answers.
    #[error("the answer of {members} lacks {what}: is that etcd, version 3.4 or later?")]
    Malformed {
        /// Who was asked.
        members: String,
        /// What is missing.
        what: &'static str,
    },
    /// The keys of the file system are not there, or are another's.
    #[error(
        "{address} holds {found} instead of the locks of file system {expected}: its etcd was emptied or replaced; restore it, or, with no node mounted, run `braid check --repair`"
    )]
    NotThis {
        /// Where.
        address: String,
        /// Whose they should be.
        expected: uuid::Uuid,
        /// What is there.
        found: String,
    },
    /// etcd forgot what it had said.
    #[error(
        "etcd ({members}) went back from revision {from} to {to}: it was restored from an older copy; unmount all nodes, then run `braid check --repair`"
    )]
    WentBack {
        /// Who was asked.
        members: String,
        /// What was seen.
        from: u64,
        /// What is said now.
        to: u64,
    },
    /// Another file system's keys stand where a new one's shall.
    #[error(
        "{address} is in use by file system {found}: take another prefix, or --force if that file system is gone"
    )]
    Used {
        /// Where.
        address: String,
        /// Whose.
        found: String,
    },
    /// A node lives whose heartbeats are not on these devices.
    #[error(
        "node {slot} on host {host} (process {pid}) is alive, and its heartbeats are not on these devices: if they are copies of the pool's (images, clones), they cannot be mounted here, because the locks of both would be the same keys in etcd (docs/GUIDE.md, \"Back up\"); if they are not, it has them mounted read-only and cannot write to them: unmount it, or end it"
    )]
    Copies {
        /// Its slot.
        slot: NodeId,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
    /// The devices were used since, after they were copied.
    #[error(
        "these devices are behind the locks in etcd ({address}): a later heartbeat of node slot {slot} is known there than they have. They are copies (images, clones) that were made before the pool was last used, or they were put back from such copies. Mount the pool's own devices. If those are gone, and these shall take their place: `braid check --repair` with these, then they have the locks, and the others are refused (docs/GUIDE.md, \"Back up\")"
    )]
    OldDevices {
        /// A slot whose heartbeats show it.
        slot: NodeId,
        /// Where the locks are.
        address: String,
    },
    /// A copy of etcd's data was put back.
    #[error(
        "the locks in etcd ({address}) are behind these devices: these have a later heartbeat of node slot {slot} than is known there. etcd was put back from an older copy, or these are images that were used with another etcd: unmount all nodes, then run `braid check --repair`"
    )]
    OldKeys {
        /// A slot whose heartbeats show it.
        slot: NodeId,
        /// Where the locks are.
        address: String,
    },
    /// A node lives, on this host or another.
    #[error("node {slot} has it mounted on host {host} (process {pid})")]
    Mounted {
        /// Its slot.
        slot: NodeId,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
    /// A check or create runs.
    #[error("a check or create runs on it, on host {host} (process {pid})")]
    Claimed {
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
    },
}
