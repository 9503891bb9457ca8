//! Nodes: slots, heartbeats, the watcher, the liveness lock, recovery.
//!
//! What a node decides stands in pure steps, without I/O, threads or clocks: [`join`], [`lease`],
//! [`watch`], [`fencing`], [`freeze`], [`leave`], [`slot_write`], with what they make of what is read, [`observation`],
//! [`life`], [`wishes`]. Everything else here carries out what they say.
//!
//! ```text
//!  join: liveness lock, key registered with the members, then slot Free -> Active
//!        (compare-and-write); heartbeats begin, and with each the lease
//!  every beat:   write own heartbeat (plain write, own thread)
//!                read all slots and heartbeats, ask for liveness locks (watcher's thread)
//!  a death:      lock that would be seen gone at two looks -> Recovering(by us) -> Recover -> Free
//!  anybody else: silent -> fenced ([`fence`]) -> Recovering(by us) -> ...
//!  damage met:   Recovering(by us, damage), tried again less and less often
//!  leave:        slot Active -> Free, then the key, then the liveness lock
//! ```
//!
//! Invariants:
//! * a slot is `Active` only while its node holds the liveness lock (taken before, let go after);
//! * heartbeats wait for nothing but their own write;
//! * a node that cannot write its heartbeat, or finds its slot taken, withdraws by itself.
//!
//! One pool handle serves one node: liveness locks of the same open device do not exclude.

mod await_thaw;
mod cached;
mod claim;
mod company;
mod fencer;
pub mod fencing;
pub mod freeze;
mod host;
pub mod join;
mod join_watcher;
pub mod lease;
pub mod leave;
pub mod life;
mod member;
mod memory;
pub mod observation;
mod peer_observer;
mod pool_side;
mod silent_slots;
pub mod slot_write;
mod slots;
mod store;
mod timing;
mod vouch;
mod waits;
pub mod watch;
pub mod wishes;

use std::path::PathBuf;
use std::time::Duration;

use braid_format::features::Features;
use braid_format::node::{LockPlace, SlotDamage, SlotRecord, SlotState};
use braid_format::{FormatError, LockNo, MemberIndex, NodeId};

use thiserror::Error;

use crate::glock::AskStats;
use crate::hints::{HintsBy, MessageWay};
use crate::peers::Liveness;
use crate::{Life, Mode};

pub use await_thaw::await_thaw;
pub use company::Company;
pub use fencer::{FenceOptions, NotFenced, Proofs, key_of};
pub use fencing::FenceMethod;
pub use member::{Membership, NotFrozen, OnFreeze, OnLease};
pub use memory::MemoryNodes;
pub use peer_observer::PeerObserver;
pub use pool_side::PoolSide;
pub use silent_slots::SilentSlots;
pub use store::{NodeAreas, NodeStore, PoolNodes};
pub use timing::Timing;
pub use vouch::{plan_vouch, vouch};
pub use waits::{Awaited, NodeWait};
pub use watch::HostIdentity;

/// WaitLog once of each node that is silent, and that nothing here can fence.
fn log_suspect(life: Life) {
    let slot = life.slot;
    tracing::warn!(
        %life,
        "no heartbeat for too long, and nothing here can fence it: what it holds stays locked. If its host is off, say so: `braid fence POOL {slot} --confirm`"
    );
}

/// A node's change of the cluster's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deltas {
    /// Free blocks for file data.
    pub free: i64,
    /// Inodes in use.
    pub inodes: i64,
    /// Blocks of free metadata slots, and free blocks of groups for metadata alone.
    pub meta: i64,
}
impl std::ops::Add for Deltas {
    type Output = Self;
    /// Published by other nodes: whatever they are, no overflow.
    fn add(self, other: Self) -> Self {
        Self {
            free: self.free.wrapping_add(other.free),
            inodes: self.inodes.wrapping_add(other.inodes),
            meta: self.meta.wrapping_add(other.meta),
        }
    }
}
impl std::ops::AddAssign for Deltas {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// A fixed slot, or any free one.
    pub slot: Option<NodeId>,
    /// For people: where it is mounted.
    pub mount_point: PathBuf,
    /// Its timers.
    pub timing: Timing,
    /// Who this host is; `None`: asked of the system.
    pub identity: Option<HostIdentity>,
    /// How it fences others.
    pub fence: FenceOptions,
    /// By which ways it hears hints.
    pub hints: HintsBy,
    /// It serves clients that rely for [`SERVED_WAIT`] at most on what it has told them.
    pub serves: bool,
    /// What it says that it knows of the format: others give the pool no feature beyond that.
    pub knows: Features,
    /// Who is fenced: one for all of this process's that asks who is dead.
    pub proofs: Proofs,
    /// Since when slots that cannot be read are silent: likewise.
    pub silent_slots: SilentSlots,
}
impl JoinOptions {
    /// What fences other nodes for the life that is registered by `key`, on the host `identity`.
    fn fencer<'a>(
        &'a self,
        store: &'a dyn NodeStore,
        key: u64,
        identity: &'a HostIdentity,
    ) -> fencer::Fencer<'a> {
        fencer::Fencer { store, options: &self.fence, timing: self.timing, key, identity }
    }
}
impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            slot: None,
            mount_point: PathBuf::new(),
            timing: Timing::default(),
            identity: None,
            fence: FenceOptions::default(),
            hints: HintsBy::default(),
            serves: false,
            knows: Features::KNOWN,
            proofs: Proofs::default(),
            silent_slots: SilentSlots::default(),
        }
    }
}

/// For so long clients may rely on what a node has told them that serves them and is dead: its locks are not broken
/// before.
pub const SERVED_WAIT: Duration = Duration::from_millis(2400);

/// Before a dead node is recovered.
fn await_clients(dead: &SlotRecord) {
    if dead.serves {
        std::thread::sleep(SERVED_WAIT);
    }
}

/// What the file system does for a dead node, after its fence: replays its journal, clears its
/// orphans, returns its windows. Idempotent: the recoverer may die at any step.
pub trait Recover: Send + Sync {
    /// What `dead` had acknowledged is in place and stable on `Ok`, so that its locks may be broken.
    /// Waits for no lock that a dead node may hold: several may have died together, each holding what
    /// the end of another's recovery needs. `by` is this node; while it joins its slot does not say so
    /// yet, but names it as the recoverer.
    ///
    /// # Errors
    /// The slot stays `Recovering`; it is tried again, less and less often.
    fn recover(&self, dead: Life, by: Life) -> Result<(), NotRecovered>;
    /// What else `dead` had begun is ended, after [`Recover::recover`] and once its slot says so. May
    /// take locks, also those that dead nodes hold, which are recovered meanwhile.
    ///
    /// # Errors
    /// As [`Recover::recover`].
    fn finish(&self, dead: Life, by: Life) -> Result<(), NotRecovered> {
        let _ = (dead, by);
        Ok(())
    }
    /// Locks that the recovery waits for, while this node is joining and nobody else says so.
    fn wishes(&self) -> Vec<(LockNo, Mode)> {
        Vec::new()
    }
    /// Another node waits for a lock that this one may have, while this one is joining. `overdue`: it has
    /// waited for long. Does not wait.
    fn wished(&self, lock: LockNo, mode: Mode, overdue: bool) {
        let _ = (lock, mode, overdue);
    }
    /// Called once the liveness lock of a slot is held and before the slot is changed: whoever
    /// makes a file system holds those locks meanwhile, so what is there now stays.
    ///
    /// # Errors
    /// It is not the file system that this node has looked at before.
    fn confirm(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// Why a dead node is not recovered.
#[derive(Debug, Error)]
pub enum NotRecovered {
    /// What it left behind is damaged. Recorded in its slot, for everybody to see.
    #[error("{source}")]
    Damaged {
        /// Where.
        damage: SlotDamage,
        /// What was found.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Anything else: perhaps it works next time.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// A slot, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Who.
    pub life: Life,
    /// Slot state.
    pub state: SlotState,
    /// Who recovers it, if it is being recovered.
    pub recoverer: Option<Life>,
    /// Host name.
    pub host: String,
    /// It runs, or ran, on this host in its present boot.
    pub of_this_host: bool,
    /// Process id.
    pub pid: u32,
    /// Mount point.
    pub mount_point: String,
    /// Since when, Unix seconds.
    pub since: u64,
    /// Heartbeats seen lately, or itself.
    pub beating: bool,
    /// What stopped its recovery.
    pub damage: Option<SlotDamage>,
    /// Why its slot cannot be read: nothing else is known of it then.
    pub unreadable: Option<FormatError>,
    /// Its last heartbeat was seen so long ago; `None`: none was, or this node is not joined.
    pub last_beat: Option<Duration>,
    /// The low bits of the pool's epoch that it says it uses.
    pub epoch: Option<u32>,
    /// The member of the pool that it could not fill or move, in the epoch in use here.
    pub stuck: Option<MemberIndex>,
    /// How it is, or would be, known to be dead.
    pub fence: FenceMethod,
    /// Its key, registered with every member; 0: none.
    pub key: u64,
    /// Its timers.
    pub timing: Timing,
    /// By which way this node tells it which locks are wanted; `None`: it is this node, or this one is not joined.
    pub messages: Option<MessageWay>,
    /// Locks that this node asked it for by messages.
    pub asks: AskStats,
}

impl NodeView {
    /// Of a slot that cannot be read: somebody may live there.
    pub fn unreadable(slot: NodeId, why: FormatError) -> Self {
        let record = SlotRecord { state: SlotState::Active, ..SlotRecord::free(slot) };
        Self { unreadable: Some(why), ..Self::of_slot(&record, false, &[]) }
    }
    /// Of a slot that is looked at from outside the cluster: `locked` is whether a process of this
    /// host holds its liveness lock, as far as that is seen at `places`.
    pub fn of_slot(record: &SlotRecord, locked: bool, places: &[LockPlace]) -> Self {
        let this = watch::this_host();
        let here = this.sees_lock_of(record, places);
        let fence = match record.fence_key {
            _ if here => FenceMethod::Kernel,
            0 => FenceMethod::Operator,
            _ => FenceMethod::Reservation,
        };
        Self {
            life: record.life,
            state: record.state,
            recoverer: record.recoverer,
            host: record.host.clone(),
            of_this_host: this.is_boot_of(record),
            pid: record.pid,
            mount_point: record.mount_point.clone(),
            since: record.since,
            beating: locked,
            damage: record.damage,
            unreadable: None,
            last_beat: None,
            epoch: None,
            stuck: None,
            fence,
            key: record.fence_key,
            timing: Timing::of_slot(record.io_timeout),
            messages: None,
            asks: AskStats::default(),
        }
    }
}

#[cfg(test)]
mod tests;
