//! What all threads of a lock manager share: the locks in memory, its options, its counters, whether it
//! still runs. Other parts add what is done with it: [`super::acquire`], [`super::demote`], [`super::drive`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_device::TimeCounters;
use braid_format::LockNo;
use parking_lot::{Condvar, Mutex, RwLock};

use super::asks::PeerAsks;
use super::census::HandOvers;
use super::guess::Guesses;
use super::ops::{DemotionWaits, GlockOps};
use super::presumed::PresumedHolders;
use super::table::{self, Table};
use super::work_queue::WorkQueue;
use crate::dlock::Time;
use crate::error::LockError;
use crate::peers::{Liveness, Peers};
use crate::simulation;
use crate::store::LockStore;
use crate::{Life, Mode};

/// Bounds and times of a manager.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// Demotion threads for locks whose demotion waits for mapped pages, and as many for those whose waits for
    /// anything else; besides one for each of the other kinds.
    pub demoters: usize,
    /// Most cluster locks kept while idle; beyond it the least recently used are released.
    pub locks_max: usize,
    /// First and longest pause between two looks at a record that is waited for.
    pub poll_min: Duration,
    /// See `poll_min`.
    pub poll_max: Duration,
    /// Nonce of records that were never used: a lock of which nothing is known is then taken by a
    /// compare-and-write against such a record, without reading it first.
    pub fresh_nonce: Option<u64>,
    /// Longest time a demanded lock is kept for local users that follow one another.
    pub hold_max: Duration,
    /// Waits end when their thread is interrupted ([`crate::interrupt`]).
    pub interruptible: bool,
}
impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            demoters: 4,
            locks_max: 200_000,
            poll_min: Duration::from_millis(1),
            poll_max: Duration::from_millis(100),
            fresh_nonce: None,
            hold_max: Duration::from_millis(2),
            interruptible: true,
        }
    }
}

/// Values of [`Core::stop`], which only grows.
pub(super) const RUNNING: u8 = 0;
pub(super) const SHUT_DOWN: u8 = 1;
pub(super) const WITHDRAWN: u8 = 2;

/// A lock in memory.
pub(super) type Entry = table::Entry<Core>;

pub(super) struct Core {
    pub(super) me: Life,
    pub(super) store: Arc<dyn LockStore>,
    pub(super) peers: Arc<dyn Peers>,
    pub(super) ops: Arc<dyn GlockOps>,
    pub(super) options: ManagerOptions,
    pub(super) origin: Instant,
    pub(super) table: Table<Core>,
    /// By what their demotion waits for: each kind has demoters of its own.
    pub(super) work: [WorkQueue<Entry>; DemotionWaits::ALL.len()],
    pub(super) stop: AtomicU8,
    /// Coarse time for "least recently used".
    pub(super) tick: AtomicU32,
    pub(super) ticker: (Mutex<()>, Condvar),
    pub(super) nonces: AtomicU64,
    pub(super) tenures: AtomicU64,
    pub(super) counters: Counters,
    pub(super) shrinks: Shrinks,
    pub(super) guesses: Guesses,
    pub(super) presumed: PresumedHolders,
    /// Held shared by threads that are no demoters while they do what these do.
    pub(super) visiting: RwLock<()>,
    /// How hand-overs that began with a message went, with each other node.
    pub(super) asks: PeerAsks,
    /// Locks waited for, since when.
    pub(super) wishes: Mutex<HashMap<LockNo, (Instant, Mode)>>,
}

impl Core {
    pub(super) fn new(
        me: Life,
        store: Arc<dyn LockStore>,
        peers: Arc<dyn Peers>,
        ops: Arc<dyn GlockOps>,
        options: ManagerOptions,
    ) -> Self {
        Self {
            me,
            store,
            peers,
            ops,
            options,
            origin: simulation::now(),
            table: Table::new(),
            work: std::array::from_fn(|_| WorkQueue::new()),
            stop: AtomicU8::new(RUNNING),
            tick: AtomicU32::new(0),
            ticker: (Mutex::new(()), Condvar::new()),
            // A life of a slot starts where no earlier one can have been.
            nonces: AtomicU64::new(simulation::draw()),
            tenures: AtomicU64::new(1),
            counters: Counters::default(),
            shrinks: Shrinks::default(),
            guesses: Guesses::default(),
            presumed: PresumedHolders::default(),
            visiting: RwLock::new(()),
            asks: PeerAsks::default(),
            wishes: Mutex::new(HashMap::new()),
        }
    }
    /// Why nothing is acquired any more.
    pub(super) fn stopped(&self) -> Option<LockError> {
        match self.stop.load(Ordering::Relaxed) {
            SHUT_DOWN => Some(LockError::ShutDown),
            WITHDRAWN => Some(LockError::Withdrawn),
            _ => None,
        }
    }
    pub(super) fn entry(self: &Arc<Self>, lock: LockNo) -> Arc<Entry> {
        self.table.get_or_insert(lock, || Arc::new(Entry::new(lock, Arc::downgrade(self))))
    }

    pub(super) fn now(&self) -> Time {
        simulation::since(self.origin)
    }
    pub(super) fn next_tenure(&self) -> u64 {
        self.tenures.fetch_add(1, Ordering::Relaxed)
    }
    pub(super) fn is_dead(&self, lock: LockNo, life: Life) -> bool {
        if life.slot == self.me.slot {
            return life.incarnation != self.me.incarnation;
        }
        self.peers.liveness(lock, life) == Liveness::Dead
    }
    /// The queue of the demoters that serve a lock.
    pub(super) fn work_for(&self, lock: LockNo) -> &WorkQueue<Entry> {
        self.work_of(self.ops.demotion_waits(lock))
    }
    pub(super) fn work_of(&self, kind: DemotionWaits) -> &WorkQueue<Entry> {
        let [mapped, anything, locks, devices] = &self.work;
        match kind {
            DemotionWaits::MappedPages => mapped,
            DemotionWaits::Anything => anything,
            DemotionWaits::Locks => locks,
            DemotionWaits::Devices => devices,
        }
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) slow: AtomicU64,
    pub(super) caws: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) hints_sent: AtomicU64,
    pub(super) hints_received: AtomicU64,
    pub(super) demotions: AtomicU64,
    pub(super) handed_over: AtomicU64,
    pub(super) asks: AtomicU64,
    pub(super) gives: AtomicU64,
    pub(super) polls: AtomicU64,
    pub(super) waited: TimeCounters,
    pub(super) hand_overs: HandOvers,
}

/// Releases of idle locks under way.
#[derive(Default)]
pub(super) struct Shrinks {
    pending: Mutex<usize>,
    done: Condvar,
}
impl Shrinks {
    pub(super) fn begin(&self) {
        *self.pending.lock() += 1;
    }
    pub(super) fn done(&self) {
        let mut pending = self.pending.lock();
        *pending = pending.saturating_sub(1);
        if *pending == 0 {
            self.done.notify_all();
        }
    }
    pub(super) fn are_pending(&self) -> bool {
        *self.pending.lock() > 0
    }
    pub(super) fn wait(&self) {
        let mut pending = self.pending.lock();
        while *pending > 0 {
            self.done.wait(&mut pending);
        }
    }
}
