//! Cluster locks: what this node holds, and the users and caches under it.

use std::sync::Arc;
use std::time::Duration;

use braid_format::LockNo;

use crate::error::LockError;
use crate::node::Peers;
use crate::store::LockStore;
use crate::{Me, Mode};

/// Exclusion among the threads of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Local {
    /// Beside other shared users.
    Shared,
    /// Alone on this node.
    Exclusive,
}

/// What a demotion left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demoted {
    /// A program here has the file open: recorded in the lock as an opener.
    pub opened: bool,
}

/// The caches under a lock could not be made stable: the node must withdraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoteFailed;

/// What the file system does when a lock is given up.
pub trait GlockOps: Send + Sync {
    /// Called on a demotion thread, after users incompatible with `to` have drained. On return
    /// `Ok`: nothing dirty remains under the lock, all of it is stable; if `to` is
    /// [`Mode::Unlocked`] nothing is cached. It may be called again for the same demotion when
    /// page fills were admitted meanwhile.
    ///
    /// # Errors
    /// The lock is then kept and the manager withdraws.
    fn demote(&self, lock: LockNo, from: Mode, to: Mode) -> Result<Demoted, DemoteFailed>;
}

/// Bounds and times of a manager.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// Demotion threads.
    pub demoters: usize,
    /// Most cluster locks kept while idle; beyond it the least recently used are released.
    pub locks_max: usize,
    /// First and longest pause between two looks at a record that is waited for.
    pub poll_min: Duration,
    /// See `poll_min`.
    pub poll_max: Duration,
    /// Longest time a demanded lock is kept for local users that follow one another.
    pub hold_max: Duration,
}
impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            demoters: 4,
            locks_max: 200_000,
            poll_min: Duration::from_millis(1),
            poll_max: Duration::from_millis(100),
            hold_max: Duration::from_millis(10),
        }
    }
}

/// Counters since the manager began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Acquisitions asked for.
    pub acquires: u64,
    /// Of these, served without I/O or waiting.
    pub cached: u64,
    /// Compare-and-writes issued.
    pub caws: u64,
    /// Records read.
    pub reads: u64,
    /// Hints sent.
    pub hints_sent: u64,
    /// Hints received.
    pub hints_received: u64,
    /// Demotions completed.
    pub demotions: u64,
    /// Looks at a record because a timer ran out.
    pub polls: u64,
}

/// One cluster lock as it is now, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlockView {
    /// The lock.
    pub lock: LockNo,
    /// Held by this node.
    pub held: Mode,
    /// Wanted by threads of this node.
    pub wanted: Mode,
    /// Threads that use it now.
    pub users: u32,
    /// Threads that wait for it.
    pub waiting: u32,
    /// A demotion to this mode is under way.
    pub demoting: Option<Mode>,
}

/// This node's cluster locks.
pub struct LockManager {
    _private: (),
}

impl LockManager {
    /// A manager for node `me`; starts its threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn new(
        me: Me,
        store: Arc<dyn LockStore>,
        peers: Arc<dyn Peers>,
        ops: Arc<dyn GlockOps>,
        options: ManagerOptions,
    ) -> Result<Arc<Self>, LockError> {
        let _ = (me, store, peers, ops, options);
        todo!()
    }
    /// Takes `lock`: at least `cluster` among nodes, `local` among this node's threads. Blocks.
    /// Cached: no I/O.
    ///
    /// # Errors
    /// Withdrawn or shut down, or the record is unreadable.
    pub fn acquire(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
    ) -> Result<Guard, LockError> {
        let _ = (lock, cluster, local);
        todo!()
    }
    /// For kernel page fills (always [`Local::Shared`]): during a demotion waits `patience`, then
    /// is admitted under the still-held lock, whose mode may be weaker than asked for (see
    /// [`Guard::mode`]); the demotion then makes another pass before it releases.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_fill(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        patience: Duration,
    ) -> Result<Guard, LockError> {
        let _ = (lock, cluster, patience);
        todo!()
    }
    /// Takes `lock` if that needs neither I/O nor waiting.
    pub fn try_acquire(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
    ) -> Option<Guard> {
        let _ = (lock, cluster, local);
        todo!()
    }
    /// Records that this node has written as held exclusive by itself (the birth of a metadata
    /// chunk): held from now on without a compare-and-write each.
    pub fn adopt(&self, locks: impl Iterator<Item = LockNo>) {
        let _ = locks.count();
        todo!()
    }
    /// Releases least recently used idle locks until at most `keep` remain in memory. Blocks
    /// until the demotions are done.
    pub fn drop_idle(&self, keep: usize) {
        let _ = keep;
        todo!()
    }
    /// What this node holds of `lock` now.
    pub fn held(&self, lock: LockNo) -> Mode {
        let _ = lock;
        todo!()
    }
    /// Locks in memory.
    pub fn count(&self) -> usize {
        todo!()
    }
    /// Counters.
    pub fn stats(&self) -> LockStats {
        todo!()
    }
    /// Every lock in memory, for status.
    pub fn snapshot(&self) -> Vec<GlockView> {
        todo!()
    }
    /// Stops: demotes everything dirty through the ops and ends the threads; the slot may then be
    /// freed: records that still name this life are broken lazily by whoever wants them.
    ///
    /// # Errors
    /// A demotion failed: the slot must not be freed, others will replay the journal.
    pub fn shutdown(&self) -> Result<(), LockError> {
        todo!()
    }
    /// From now on every acquire fails and no record is read or written. Does not block.
    pub fn withdraw(&self) {
        todo!()
    }
}

/// A lock in use. Dropping it ends the use; the node keeps the lock until it is asked for.
pub struct Guard {
    _private: (),
}

impl Guard {
    /// The lock.
    pub fn lock(&self) -> LockNo {
        todo!()
    }
    /// The mode this use may rely on: the one asked for, or for a fill admitted during a demotion
    /// the one still held.
    pub fn mode(&self) -> Mode {
        todo!()
    }
    /// First use since the cluster lock was taken or taken again. Others may use it at the same
    /// time: a cache knows by itself whether it is loaded (a demotion to unlocked has emptied it).
    pub fn first(&self) -> bool {
        todo!()
    }
    /// Counts the times this node took this lock from nothing: a cache loaded under one value is
    /// void under another.
    pub fn tenure(&self) -> u64 {
        todo!()
    }
    /// Living nodes that gave the lock up while a program of theirs had the file open, without
    /// this one. Complete only under an exclusive guard, and unless `openers_overflowed`.
    pub fn openers(&self) -> Vec<Me> {
        todo!()
    }
    /// More nodes had it open than the record can name.
    pub fn openers_overflowed(&self) -> bool {
        todo!()
    }
    /// The record's version: counts releases of exclusive holds.
    pub fn version(&self) -> u64 {
        todo!()
    }
}
