//! Many devices, one striped address space.
//!
//! A [`Pool`] is made once by [`Pool::create`] and afterwards put together from its members by
//! [`Pool::assemble`], in whatever order and under whatever names they are found ([`discover`]).
//! All its offsets are logical; [`Map`] says where they lie.
//!
//! Invariants:
//! * nothing is written before every check has passed;
//! * at every moment each member has one whole label ([`labels`]);
//! * a pool is opened only with its current members: no stale, foreign, truncated or duplicated one, and
//!   without missing ones only if the operator says so and the others hold everything.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  clock, pace, background_io  what time it is; when maintenance goes on; I/O that does not count as use
//!  identity     new identities, by chance or as a simulation says
//!  layout       from what a user asks for to the topology in a label, and from the pool's bytes to its
//!               members' bytes: pure functions
//!  error        why a pool cannot be made, put together, changed or used
//!  labels       labels on devices: reading, which is in force, writing; finding pools by them
//!  simulation   what a simulation decides in place of pauses and of the host's devices
//!  devices      what stands in for a member's device: absent, not seen in full, being moved
//!  health       members that are slow, or return garbage
//!  topology     one epoch of a pool: its label, the map that it compiles to, the members' devices
//!  cluster      the other nodes: who they are, regions, the write gate, reservations, liveness bytes
//!  history      what happened to the pool, kept on its members
//!  redundancy   mirrors and parity: requests on them, the redundancy log, resync, comparing, filling
//!  pool         an open pool: its handle, and the objects that it is made of
//!  membership   which devices and nodes take part, agreed by all nodes: changes of the epoch
//!  io           requests on a pool
//!  maintenance  replacing and rebuilding members, spares, scrubs
//!  assembly     making a pool, putting one together, bringing lost labels back
//!  reshape      members that come, go and change places
//!  modelled     pools of modelled disks
//!  advise       advice on a pool's shape, from measurement
//! ```

#![forbid(unsafe_code)]

pub use braid_device as device;

pub mod advise;
mod assembly;
mod background_io;
mod clock;
mod cluster;
mod devices;
pub mod error;
mod health;
mod history;
mod identity;
mod io;
pub mod labels;
pub mod layout;
mod maintenance;
mod membership;
pub mod modelled;
mod pace;
mod pool;
pub mod redundancy;
pub mod reshape;
#[doc(hidden)]
pub mod simulation;
mod topology;

pub use assembly::create::{CreateOptions, Plan};
pub use assembly::{member_verify, restore};
pub use background_io::BackgroundIo;
pub use cluster::reservations::TakenOver;
pub use cluster::{
    BreakOff, BreakOffScope, HeldRegions, Others, OthersWait, RegionHold, RegionLocks,
};
pub use error::{ChangeError, LostMember, MissingMember, PoolError};
pub use health::silent::{NoticedSilence, SilentMember};
pub use health::slow::Noticed;
pub use io::PoolRequest;
pub use io::queue::{Completion, PoolOp, PoolQueue};
pub use labels::discover::{
    DEVICES_VARIABLE, FoundMember, FoundPool, MemberCondition, discover, split_names,
};
pub use labels::{Hint, LABEL_LOCK_BYTE, Moving};
pub use layout::map::{Map, MapError, Piece, Place, ZoneInfo};
pub use maintenance::scrub::ReadPath;
pub use membership::fencing::{FenceHow, Reservable};
pub use membership::liveness::PoolByteLock;
pub use membership::selector::MemberSelector;
pub use pace::{Pace, Progress};
pub use pool::Pool;
pub use redundancy::compare::Scrubbed;
pub use redundancy::log_recovery::Recovered;
pub use redundancy::missed::CatchUp;
pub use redundancy::verification::Verification;
pub use redundancy::verifier::{ChecksumVerifier, NoChecksums};
pub use reshape::{
    AddOptions, Added, Destination, Destroyed, PropertyChange, Removed, finish_destroy,
    is_being_destroyed,
};
pub use topology::{EpochTag, MemberInfo, PoolInfo, SubpoolInfo};
