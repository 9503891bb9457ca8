//! Locks kept by the disks, and who is alive to hold them. docs/LOCKING.md.
//!
//! From the bottom up:
//! * [`dlock`]: the protocol of one device lock at one node, a pure `step(now, event) -> actions`;
//! * [`store`]: where lock records stand and how they are compared and written; [`etcd`]: there;
//! * [`glock`]: the cluster lock, what this node holds and caches: blocking, sticky, demoted on
//!   demand by a pipeline;
//! * [`hints`]: messages that say "look at this lock", over Unix sockets and TCP: for speed only;
//! * [`node`]: slots, heartbeats, the watcher, the liveness lock, recovery.
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
pub mod runtime;
pub mod store;

pub use braid_format::lock_record::{Life as Me, Mode};
pub use dlock::Hint;
pub use error::{LockError, StoreError};
pub use etcd::{Etcd, EtcdAddress, EtcdNodes, EtcdStore};
pub use glock::{
    DemoteFailed, Demoted, GlockOps, GlockView, Guard, Local, LockManager, LockStats,
    ManagerOptions, Times,
};
pub use hints::HintsBy;
pub use node::{
    Deltas, FenceMethod, FenceOptions, HostIdentity, JoinOptions, Liveness, Membership,
    MemoryNodes, NodeAreas, NodeStore, NodeView, NodeWait, NotRecovered, Onlooker, Peers,
    PoolNodes, PoolSide, Proofs, Recover, Timing, vouch,
};
pub use store::{CawOutcome, DeviceStore, LockStore, MemoryStore, Sector, Unsure};
