//! Cluster locks: what this node holds, and the users and caches under it. What becomes of a lock is a
//! pure [`Glock::step`] over [`crate::dlock`]; here are the threads that carry out what it says.
//!
//! A lock once taken stays until another node asks for it (sticky), so taking it again costs a
//! shard's mutex and the lock's own, no I/O and no allocation. The thread at the head of a lock's
//! queue talks to the record itself; demoter threads answer the wishes of other nodes.
//!
//! Lock order inside: shard, then entry, then (leaves) the demoters' queue, the wishes, a waiter's
//! answer. No mutex is held during I/O, while a hint is sent, or during [`GlockOps::demote`].

mod acquire;
mod asks;
mod census;
mod demote;
mod drive;
mod guess;
mod hold;
mod presumed;
mod state;
mod step;
mod table;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_device::{TimeCounters, Times};
use braid_format::LockNo;
use census::HandOvers;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::dlock::Hint;
use crate::error::LockError;
use crate::peers::Peers;
use crate::runtime::join_all;
use crate::store::LockStore;
use crate::{Life, Mode};

pub use asks::AskStats;
pub use state::{Admission, Glock, Request, Wish};
pub use step::{Action, Context, Event};
use table::Entry;

/// Exclusion among the threads of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Local {
    /// Beside other shared users.
    Shared,
    /// Alone on this node.
    Exclusive,
}

/// What a demotion left behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Demoted {
    /// A program here has the file open: recorded in the lock as an opener.
    pub opened: bool,
    /// When contents were last changed under concurrent holds as far as the dinode does not say so,
    /// nanoseconds since 1970 (0: it says all). Kept in the record: from an exclusive hold as it is,
    /// from a concurrent one if it is the latest. `None`: nothing is known here, what stands stays.
    pub written: Option<u64>,
}

/// The caches under a lock could not be made stable: the node must withdraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoteFailed;

/// What giving a lock up may wait for. Each kind has demoters of its own: what another lock's demotion
/// waits for (the kernel's pages, which may need space) may in turn need one of a later kind from a
/// node whose demoters of the earlier kinds all wait likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemotionWaits {
    /// Pages that a program has stored to through a mapping, and that the kernel must write back: as long as
    /// the kernel, and programs that go on storing, take. One program's many files do not hold up the rest.
    MappedPages,
    /// The kernel, and through it any lock of the kinds below.
    Anything,
    /// Locks of which giving up waits for devices only.
    Locks,
    /// Nothing but devices.
    Devices,
}

impl DemotionWaits {
    const ALL: [Self; 4] = [Self::MappedPages, Self::Anything, Self::Locks, Self::Devices];

    /// Threads for this kind, where there are `many` for those that wait for the kernel.
    fn demoters(self, many: usize) -> usize {
        match self {
            Self::MappedPages | Self::Anything => many,
            Self::Locks | Self::Devices => 1,
        }
    }
    /// In its threads' names, which have 15 characters.
    fn letter(self) -> char {
        match self {
            Self::MappedPages => 'm',
            Self::Anything => 'a',
            Self::Locks => 'l',
            Self::Devices => 'd',
        }
    }
}

/// What the file system does when a lock is given up.
pub trait GlockOps: Send + Sync {
    /// Called when a record was read, or written, that gives this node more of the lock than it
    /// had, before anybody is let in. The record is not durable yet. Does not block: the lock's
    /// mutex is held.
    fn granted(&self, lock: LockNo, mode: Mode) {
        let _ = (lock, mode);
    }
    /// Called on a demotion thread, after users incompatible with `to` have drained. On return
    /// `Ok`: nothing dirty remains under the lock, all of it is stable; if `to` is
    /// [`Mode::Unlocked`] nothing is cached. It may be called again for the same demotion when
    /// page fills were admitted meanwhile.
    ///
    /// # Errors
    /// The lock is then kept and the manager withdraws.
    fn demote(&self, lock: LockNo, from: Mode, to: Mode) -> Result<Demoted, DemoteFailed>;
    /// What giving this lock up may wait for.
    fn demotion_waits(&self, lock: LockNo) -> DemotionWaits {
        let _ = lock;
        DemotionWaits::Anything
    }
    /// Called after the last [`Self::demote`] to [`Mode::Unlocked`], when nobody uses the lock and
    /// nobody, fills included, is let in any more: forgets what was cached under it. Does not block.
    fn forget(&self, lock: LockNo) {
        let _ = lock;
    }
}

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
            hold_max: Duration::from_millis(10),
            interruptible: true,
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
    /// Of these, asked for by another node.
    pub hand_overs: u64,
    /// Locks that were asked of their holder by a message.
    pub asks: u64,
    /// Asks of other nodes that were answered by a message with the record.
    pub gives: u64,
    /// Looks at a record because a timer ran out.
    pub polls: u64,
    /// How long threads waited for locks that were not here, or were in use.
    pub waited: Times,
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
    /// Holders in the record when it was last seen.
    pub holders: Vec<Life>,
    /// Waiters in the record when it was last seen.
    pub waiters: Vec<(Life, Mode)>,
    /// Since when this node has it.
    pub held_for: Option<Duration>,
    /// How often it was given up because other nodes wanted it (rare ones are forgotten).
    pub hand_overs: u64,
}

impl GlockView {
    /// A lock that is not in memory any more.
    pub fn gone(lock: LockNo, hand_overs: u64) -> Self {
        Self {
            lock,
            held: Mode::Unlocked,
            wanted: Mode::Unlocked,
            users: 0,
            waiting: 0,
            demoting: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            held_for: None,
            hand_overs,
        }
    }
}

/// This node's cluster locks. Dropping it ends its threads without giving anything up.
pub struct LockManager {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) struct Core {
    me: Life,
    store: Arc<dyn LockStore>,
    peers: Arc<dyn Peers>,
    ops: Arc<dyn GlockOps>,
    options: ManagerOptions,
    origin: Instant,
    table: table::Table,
    /// By what their demotion waits for: each kind has demoters of its own.
    work: [demote::Work; DemotionWaits::ALL.len()],
    stop: AtomicU8,
    /// Coarse time for "least recently used".
    tick: AtomicU32,
    ticker: (Mutex<()>, Condvar),
    nonces: AtomicU64,
    tenures: AtomicU64,
    counters: Counters,
    shrinks: Shrinks,
    guesses: guess::Guesses,
    presumed: presumed::PresumedHolders,
    /// Held shared by threads that are no demoters while they do what these do.
    visiting: RwLock<()>,
    /// How long a hand-over takes from the ask on, nanoseconds.
    asks: asks::PeerAsks,
    /// Locks waited for, since when.
    wishes: Mutex<HashMap<LockNo, (Instant, Mode)>>,
}

#[derive(Default)]
struct Counters {
    slow: AtomicU64,
    caws: AtomicU64,
    reads: AtomicU64,
    hints_sent: AtomicU64,
    hints_received: AtomicU64,
    demotions: AtomicU64,
    handed_over: AtomicU64,
    asks: AtomicU64,
    gives: AtomicU64,
    polls: AtomicU64,
    waited: TimeCounters,
    hand_overs: HandOvers,
}

/// Releases of idle locks under way.
#[derive(Default)]
struct Shrinks {
    pending: Mutex<usize>,
    done: Condvar,
}
impl Shrinks {
    fn begin(&self) {
        *self.pending.lock() += 1;
    }
    fn done(&self) {
        let mut pending = self.pending.lock();
        *pending = pending.saturating_sub(1);
        if *pending == 0 {
            self.done.notify_all();
        }
    }
    fn wait(&self) {
        let mut pending = self.pending.lock();
        while *pending > 0 {
            self.done.wait(&mut pending);
        }
    }
}

const RUNNING: u8 = 0;
const SHUT_DOWN: u8 = 1;
const WITHDRAWN: u8 = 2;

impl LockManager {
    /// A manager for node `me`; starts its threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn new(
        me: Life,
        store: Arc<dyn LockStore>,
        peers: Arc<dyn Peers>,
        ops: Arc<dyn GlockOps>,
        options: ManagerOptions,
    ) -> Result<Arc<Self>, LockError> {
        // A life of a slot starts where no earlier one can have been.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let demoters = options.demoters.max(1);
        let core = Arc::new(Core {
            me,
            store,
            peers,
            ops,
            options,
            origin: Instant::now(),
            table: table::Table::new(),
            work: Default::default(),
            stop: AtomicU8::new(RUNNING),
            tick: AtomicU32::new(0),
            ticker: (Mutex::new(()), Condvar::new()),
            nonces: AtomicU64::new(random),
            tenures: AtomicU64::new(1),
            counters: Counters::default(),
            shrinks: Shrinks::default(),
            guesses: guess::Guesses::default(),
            presumed: presumed::PresumedHolders::default(),
            visiting: RwLock::new(()),
            asks: asks::PeerAsks::default(),
            wishes: Mutex::new(HashMap::new()),
        });
        let manager = Arc::new(Self { core: core.clone(), threads: Mutex::new(Vec::new()) });
        for kind in DemotionWaits::ALL {
            for n in 0..kind.demoters(demoters) {
                let core = core.clone();
                let name = format!("demote-{}{n}", kind.letter());
                manager.spawn(&name, move || core.demoter(core.work_of(kind)))?;
            }
        }
        manager.spawn("lock-tick", move || core.ticker())?;
        Ok(manager)
    }
    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), LockError> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|e| LockError::Os { what: "cannot start a thread", source: Arc::new(e) })?;
        self.threads.lock().push(thread);
        Ok(())
    }
    /// Who this node is.
    pub fn me(&self) -> Life {
        self.core.me
    }
    /// Takes `lock`: at least `cluster` among nodes, `local` among this node's threads. Blocks.
    /// Cached: no I/O. A thread must not take a lock that it has.
    ///
    /// # Errors
    /// Withdrawn or shut down, or the record cannot be read or is damaged.
    pub fn acquire(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
    ) -> Result<Guard, LockError> {
        self.core.acquire(lock, cluster.into(), local, None, None)
    }
    /// As [`Self::acquire`] with `alone`; but where other nodes change the contents under the lock at
    /// the same time, [`Mode::Concurrent`] is taken instead, and nobody waits for anybody: see
    /// [`Guard::mode`]. What this node knows of the others may be old; then the lock moves once more
    /// than it had to.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_concurrent(
        self: &Arc<Self>,
        lock: LockNo,
        alone: Mode,
        local: Local,
    ) -> Result<Guard, LockError> {
        self.core.acquire(lock, Wish { mode: alone, concurrent: true }, local, None, None)
    }
    /// For operations that the kernel waits for while it holds what a demotion may need (the lock
    /// of a page that is being filled; its own writes held back during a truncation): when a
    /// demotion is under way waits `patience`, then is admitted under the still-held lock; the
    /// demotion then makes another pass before it releases. With [`Local::Shared`] the mode may be
    /// weaker than asked for (see [`Guard::mode`]), with [`Local::Exclusive`] never.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_fill(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
        patience: Duration,
    ) -> Result<Guard, LockError> {
        self.core.acquire(lock, cluster.into(), local, Some(patience), None)
    }
    /// As [`Self::acquire`]; `cancelled` is asked now and then, with no mutex held, whether the wait
    /// is to end: `None` then.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_unless(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Guard>, LockError> {
        match self.core.acquire(lock, cluster.into(), local, None, Some(cancelled)) {
            Err(LockError::GivenUp) => Ok(None),
            guard => guard.map(Some),
        }
    }
    /// Takes `lock` if that needs neither I/O nor waiting.
    pub fn try_acquire(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
    ) -> Option<Guard> {
        self.core.try_acquire(lock, cluster, local)
    }
    /// Records that this node has written as held exclusive by itself (the birth of a metadata
    /// chunk, `LockRecord::born` with `nonce`): held from now on without a compare-and-write each.
    pub fn adopt(&self, locks: impl Iterator<Item = LockNo>, nonce: u64) {
        for lock in locks {
            let entry = self.core.entry(lock);
            let mut state = entry.state.lock();
            if state.is_idle() {
                state.adopt(lock, nonce, self.core.next_tenure());
                state.used = self.core.tick.load(Ordering::Relaxed);
            } else {
                tracing::error!(%lock, "born although it is in use");
            }
        }
    }
    /// Releases least recently used idle locks until at most `keep` remain in memory. Blocks
    /// until the demotions are done: the caller has no guard.
    pub fn drop_idle(&self, keep: usize) {
        self.core.shrink(keep);
        if self.core.stopped().is_none() {
            self.core.shrinks.wait();
        }
    }
    /// Begins to give `lock` up, as if another node had asked for it, once nobody here uses it or waits
    /// for it: it is not to be found held if this node dies. Does not wait.
    pub fn release(&self, lock: LockNo) {
        self.core.release(lock);
    }
    /// What this node holds of `lock` now.
    pub fn held(&self, lock: LockNo) -> Mode {
        let entry = self.core.table.get(lock);
        entry.map_or(Mode::Unlocked, |entry| entry.state.lock().dlock().held())
    }
    /// Locks in memory.
    pub fn count(&self) -> usize {
        self.core.table.count()
    }
    /// Locks that `peer` was asked for by messages.
    pub fn asks_of(&self, peer: Life) -> AskStats {
        self.core.asks.of(peer)
    }
    /// Counters.
    pub fn stats(&self) -> LockStats {
        let c = &self.core.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let acquires = self.core.table.acquires();
        LockStats {
            acquires,
            cached: acquires.saturating_sub(get(&c.slow)),
            caws: get(&c.caws),
            reads: get(&c.reads),
            hints_sent: get(&c.hints_sent),
            hints_received: get(&c.hints_received),
            demotions: get(&c.demotions),
            hand_overs: get(&c.handed_over),
            asks: get(&c.asks),
            gives: get(&c.gives),
            polls: get(&c.polls),
            waited: c.waited.now(),
        }
    }
    /// Every lock in memory, for status.
    pub fn snapshot(&self) -> Vec<GlockView> {
        let mut all = Vec::with_capacity(self.count());
        self.core.table.for_each(|entry| {
            let state = entry.state.lock();
            let known = state.dlock().known();
            let held_since = state.held_since();
            all.push(GlockView {
                lock: entry.lock,
                held: state.dlock().held(),
                wanted: state.dlock().want(),
                users: state.users(),
                waiting: u32::try_from(state.waiters().count()).unwrap_or(u32::MAX),
                demoting: state.demoting(),
                holders: known.map_or_else(Vec::new, |k| k.holders.clone()),
                waiters: known.map_or_else(Vec::new, |k| {
                    k.waiters.iter().map(|w| (w.life, w.mode)).collect()
                }),
                held_for: held_since.map(|since| self.core.now().saturating_sub(since)),
                hand_overs: self.core.counters.hand_overs.of(entry.lock),
            });
        });
        all.sort_by_key(|view| view.lock);
        all
    }
    /// The locks that went to other nodes most often, and how often; at most `most`.
    pub fn hottest(&self, most: usize) -> Vec<(LockNo, u64)> {
        self.core.counters.hand_overs.hottest(most)
    }
    /// Locks that threads of this node have waited for longest, at most `most`.
    pub fn wishes(&self, most: usize) -> Vec<(LockNo, Mode)> {
        let mut all: Vec<_> = self
            .core
            .wishes
            .lock()
            .iter()
            .map(|(lock, (since, mode))| (*since, *lock, *mode))
            .collect();
        all.sort_unstable_by_key(|wish| wish.0);
        all.into_iter().take(most).map(|(_, lock, mode)| (lock, mode)).collect()
    }
    /// Locks that threads of this node have waited for longer than `time`, for how long, and who held
    /// them when they were last looked at.
    pub fn waits(&self, time: Duration) -> Vec<(LockNo, Duration, Vec<Life>)> {
        let long: Vec<_> = {
            let wishes = self.core.wishes.lock();
            let ages = wishes.iter().map(|(lock, (since, _))| (*lock, since.elapsed()));
            ages.filter(|(_, age)| *age > time).collect()
        };
        let holders = |lock| {
            let entry = self.core.table.get(lock)?;
            let state = entry.state.lock();
            state.dlock().known().map(|known| known.holders.clone())
        };
        long.into_iter().map(|(lock, age)| (lock, age, holders(lock).unwrap_or_default())).collect()
    }
    /// A hint from another node: the record of `lock` is looked at.
    pub fn hint(&self, lock: LockNo, hint: &Hint) {
        self.core.counters.hints_received.fetch_add(1, Ordering::Relaxed);
        self.core.on_look(lock, matches!(hint, Hint::Granted | Hint::Give { .. }));
    }
    /// A message from a node that is not known to be dead: [`Hint::Ask`] and [`Hint::Give`] are heeded as what they
    /// are. `may_visit`: the caller's thread may do what the message calls for, which saves waking another one; that
    /// may wait for devices, for programs and for other messages. Otherwise this call does not block.
    pub fn message(&self, from: Life, lock: LockNo, hint: &Hint, may_visit: bool) {
        self.core.counters.hints_received.fetch_add(1, Ordering::Relaxed);
        self.core.on_message(from, lock, hint, may_visit);
    }
    /// A wish in another node's heartbeat: as a hint, for locks this node holds or waits for.
    pub fn wish(&self, lock: LockNo, mode: Mode) {
        self.core.on_wish(lock, mode);
    }
    /// A node was recovered, or left: whoever waits looks again.
    pub fn node_gone(&self) {
        let waited: Vec<LockNo> = self.core.wishes.lock().keys().copied().collect();
        for lock in waited {
            self.core.on_look(lock, true);
        }
    }
    /// Stops: demotes everything dirty through the ops and ends the threads; the slot may then be
    /// freed: records that still name this life are broken lazily by whoever wants them. Waits
    /// for guards that are still out.
    ///
    /// # Errors
    /// A demotion failed: the slot must not be freed, others will replay the journal.
    pub fn shutdown(&self) -> Result<(), LockError> {
        let withdrawn = self.core.halt(SHUT_DOWN);
        self.join();
        if withdrawn {
            return Err(LockError::Withdrawn);
        }
        let mut all = Vec::new();
        self.core.table.for_each(|entry| all.push(entry.clone()));
        for entry in &all {
            while entry.state.lock().users() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let all = Mutex::new(all);
        let threads = self.core.options.demoters.max(1);
        let stable = std::thread::scope(|scope| {
            let share = || self.core.demote_share(&all);
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, share).ok();
            let threads: Vec<_> = (0..threads).filter_map(start).collect();
            // Where no thread can be started this one does it.
            let here = !threads.is_empty() || share();
            threads.into_iter().all(|t| t.join().unwrap_or(false)) && here
        });
        if stable && self.core.stop.load(Ordering::Acquire) == SHUT_DOWN {
            Ok(())
        } else {
            self.core.withdraw();
            Err(LockError::Withdrawn)
        }
    }
    /// From now on every acquire fails and no record is read or written. Does not block.
    pub fn withdraw(&self) {
        self.core.withdraw();
    }
    /// Whether it has withdrawn, of itself or told to.
    pub fn has_withdrawn(&self) -> bool {
        self.core.stop.load(Ordering::Acquire) == WITHDRAWN
    }
    /// Waits until nobody gives up locks any more. The manager has been halted.
    fn join(&self) {
        join_all(std::mem::take(&mut *self.threads.lock()));
        drop(self.core.visiting.write());
    }
}

impl Drop for LockManager {
    fn drop(&mut self) {
        self.core.halt(SHUT_DOWN);
        self.join();
    }
}

/// A lock in use. Dropping it ends the use; the node keeps the lock until it is asked for.
pub struct Guard {
    entry: Arc<Entry>,
    admission: Admission,
}

impl Guard {
    /// The lock.
    pub fn lock(&self) -> LockNo {
        self.entry.lock
    }
    /// The mode this use may rely on: the one asked for, or for a fill admitted during a demotion
    /// the one still held.
    pub fn mode(&self) -> Mode {
        self.admission.mode
    }
    /// First use since the cluster lock was taken or taken again. Others may use it at the same
    /// time: a cache knows by itself whether it is loaded (a demotion to unlocked has emptied it).
    pub fn first(&self) -> bool {
        self.admission.first
    }
    /// Counts the times this node took this lock from nothing: a cache loaded under one value is
    /// void under another.
    pub fn tenure(&self) -> u64 {
        self.admission.tenure
    }
    /// Living nodes that gave the lock up while a program of theirs had the file open, without
    /// this one. Complete only under an exclusive guard.
    pub fn openers(&self) -> Vec<Life> {
        let named = match self.entry.state.lock().dlock().known() {
            Some(known) => known.openers.clone(),
            None => Vec::new(),
        };
        let lock = self.lock();
        match self.entry.core.upgrade() {
            Some(core) => {
                named.into_iter().filter(|l| *l != core.me && !core.is_dead(lock, *l)).collect()
            }
            None => named,
        }
    }
    /// When contents were last changed under concurrent holds as far as the dinode does not say so
    /// yet: nanoseconds since 1970, 0: it says all. Stays as it is under a shared or exclusive guard.
    pub fn written(&self) -> u64 {
        self.entry.state.lock().dlock().known().map_or(0, |known| known.written)
    }
    /// The record's version: counts releases of exclusive and concurrent holds.
    pub fn version(&self) -> u64 {
        self.entry.state.lock().dlock().known().map_or(0, |known| known.version)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.entry.state.lock();
        if state.end(&self.admission)
            && let Some(core) = self.entry.core.upgrade()
        {
            core.tell(&self.entry, &mut state, Event::Ended);
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guard").field(&self.entry.lock).field(&self.admission).finish()
    }
}

#[cfg(test)]
mod tests;
