//! Locks kept by the disks, and who is alive to hold them. docs/LOCKING.md.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  simulation  what the simulator decides: time, pauses, nonces
//!  runtime     how threads end
//!  interrupt   waits of a thread are ended from outside
//!  dlock       the protocol of one device lock at one node, a pure `step(now, event) -> actions`
//!  error       why a lock operation failed
//!  hints       messages that say "look at this lock", over Unix sockets and TCP: for speed only
//!  peers       what a lock manager asks about other nodes
//!  store       where lock records are, and how they are compared and written
//!  glock       cluster locks: what this node holds and caches; demoted on demand by a pipeline
//!  node        slots, heartbeats, the watcher, the liveness lock, recovery
//!  etcd        lock records and node slots in etcd
//! ```
//!
//! Invariants (the exhaustive search and the simulator check the first four at every step):
//! 1. never an exclusive holder beside anything;
//! 2. a node believes in no more than its record gives it: belief is lowered before the record,
//!    raised after it;
//! 3. a record is changed only by compare-and-write against bytes seen before, and every write
//!    carries a fresh nonce, so that an unknown outcome is settled by reading;
//! 4. waiters are served first come first;
//! 5. a dead node's hold is broken only after its slot shows that it was recovered, or that its
//!    journal was replayed;
//! 6. losing every hint costs time, never safety.

#![forbid(unsafe_code)]

pub mod dlock;
pub mod error;
pub mod etcd;
pub mod glock;
pub mod hints;
pub mod interrupt;
pub mod node;
pub mod peers;
mod runtime;
pub mod simulation;
pub mod store;

pub use braid_format::lock_record::{Life, Mode};
pub use dlock::Hint;
pub use error::{LockError, StoreError};
pub use etcd::{Etcd, EtcdAddress, EtcdNodes, EtcdStore};
pub use glock::{
    AskStats, DemoteFailed, Demoted, Demoting, DemotionWaits, GlockOps, GlockView, Guard, Held,
    Keep, Local, LockManager, LockStats, ManagerOptions, PageDrops, ToDrop, may_be_locked_together,
    overlap,
};
pub use hints::{HintsBy, MessageWay, TcpHints};
pub use node::{
    Company, Deltas, FenceMethod, FenceOptions, HostIdentity, JoinOptions, Membership, MemoryNodes,
    NodeAreas, NodeStore, NodeView, NodeWait, NotFrozen, NotRecovered, OnFreeze, OnLease,
    PeerObserver, PoolNodes, PoolSide, Proofs, Recover, SERVED_WAIT, SilentSlots, Timing,
    await_thaw, plan_vouch, vouch,
};
pub use peers::{Liveness, Peers};
pub use runtime::AbortOnPanic;
pub use store::{CawOutcome, DeviceStore, LockStore, MemoryStore, Sector, Unsure};
