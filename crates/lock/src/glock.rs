//! Cluster locks: what this node holds, and the users and caches under it. What becomes of a lock is a
//! pure [`Glock::step`] over [`crate::dlock`]; here are the threads that carry out what it says.
//!
//! A lock once taken stays until another node asks for it (sticky), so taking it again costs a
//! shard's mutex and the lock's own, no I/O and no allocation. The thread at the head of a lock's
//! queue talks to the record itself; demoter threads answer the wishes of other nodes.
//!
//! Lock order inside: shard, then entry, then (leaves) the demoters' queue, the wishes, a waiter's
//! answer. No mutex is held during I/O, while a hint is sent, or during [`GlockOps::demote`].
//!
//! Parts, bottom up:
//! ```text
//!  ops, hold           what the file system does when a lock is given up; keeping it a little longer
//!  state, step         a lock at this node; what becomes of it
//!  table, work_queue   the locks in memory; those that demoters visit
//!  guess, presumed     never used locks are guessed, holders of others presumed
//!  asks, census        hand-overs, by node and by lock
//!  post                messages to other nodes, one by one or many together
//!  core                what all threads share
//!  guard               a lock in use
//!  drive, demote, acquire  threads that do what a step says, give a lock up, take one
//!  together            many locks asked of other nodes by one message
//! ```

mod acquire;
mod asks;
mod census;
mod core;
mod demote;
mod drive;
mod fills;
mod guard;
mod guess;
mod hold;
mod ops;
mod post;
mod presumed;
mod state;
mod step;
mod table;
mod together;
mod work_queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use braid_device::Times;
use braid_format::LockNo;
use parking_lot::Mutex;

use crate::dlock::Hint;
use crate::error::LockError;
use crate::peers::Peers;
use crate::runtime::join_all;
use crate::simulation;
use crate::store::LockStore;
use crate::{Life, Mode};

pub use self::asks::AskStats;
pub use self::core::ManagerOptions;
use self::core::{Core, Entry, SHUT_DOWN, WITHDRAWN};
pub use self::fills::{Fill, Held, ToDrop, may_be_locked_together, overlap};
pub use self::guard::Guard;
pub use self::hold::Keep;
pub use self::ops::{DemoteFailed, Demoted, Demoting, DemotionWaits, GlockOps, NoFills, PageDrops};
use self::post::Post;
pub use self::state::{Admission, Glock, Local, Request, Wish};
pub use self::step::{Action, Context, Event};
use self::work_queue::WorkQueue;

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
        let demoters = options.demoters.max(1);
        let core = Arc::new(Core::new(me, store, peers, ops, options));
        let manager = Arc::new(Self { core: core.clone(), threads: Mutex::new(Vec::new()) });
        if simulation::is_simulated() {
            return Ok(manager);
        }
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
    /// of a page that is being filled; its own writes held back during a truncation). While a
    /// demotion drops what the kernel holds for it, it is admitted under the still-held lock, after
    /// `patience`; what it brings into the kernel is dropped again before the lock is released. With
    /// [`Local::Shared`] the mode may be weaker than asked for (see [`Guard::mode`]), with
    /// [`Local::Exclusive`] never.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub fn acquire_fill(
        self: &Arc<Self>,
        lock: LockNo,
        cluster: Mode,
        local: Local,
        (held, patience): (Held, Duration),
    ) -> Result<Guard, LockError> {
        self.core.acquire(lock, cluster.into(), local, Some((held, patience)), None)
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
    /// Has those of `locks` come here, in `mode`, that other nodes hold and would be asked for by a message: many by
    /// one message. Waits until they are here, or until that has taken as long as usual, or `is_over`. Takes none of
    /// them, so the caller may hold any. Returns how many were asked for. Failures are met again by whoever takes a lock.
    pub fn fetch_together(
        &self,
        locks: &[LockNo],
        mode: Mode,
        is_over: &dyn Fn() -> bool,
    ) -> usize {
        self.core.fetch_together(locks, mode, is_over)
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
    /// Since when `lock` is held, if it is held shared: it has not been stronger since. On the manager's own clock.
    pub fn shared_since(&self, lock: LockNo) -> Option<Duration> {
        let entry = self.core.table.get(lock)?;
        let state = entry.state.lock();
        state.held_since().filter(|_| state.dlock().held() == Mode::Shared)
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
    /// Releases least recently used idle locks until at most `keep` remain in memory. Blocks until the demotions are
    /// done, or the record of a lock is out of reach (then that one stays): the caller has no guard.
    pub fn drop_idle(&self, keep: usize) {
        self.core.shrink(keep);
        if simulation::is_simulated() {
            while self.core.shrinks.are_pending() && !simulation::has_ended() {
                self.demote_due();
                simulation::pause(Duration::from_millis(1));
            }
            return;
        }
        if self.core.stopped().is_none() {
            self.core.shrinks.wait();
        }
    }
    /// Begins to give `lock` up, as if another node had asked for it, once nobody here uses it or waits
    /// for it: it is not to be found held if this node dies. Does not wait.
    pub fn release(&self, lock: LockNo) {
        self.core.release(lock);
    }
    /// What users of `lock` know of their next uses, for the case that another node asks for it. Holds until
    /// the lock is taken anew, and says nothing about one that is not here. Does not wait.
    pub fn keep(&self, lock: LockNo, keep: Keep) {
        self.core.keep(lock, keep);
    }
    /// Says to another node that something that it waits for under `lock` is free: its [`GlockOps::your_turn`]
    /// is called, unless the message is lost. Does not wait.
    pub fn your_turn(&self, to: Life, lock: LockNo) {
        self.core.your_turn(to, lock);
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
        self.core.table.for_each(|entry| all.push(self.view_of(entry)));
        all.sort_by_key(|view| view.lock);
        all
    }
    /// One lock, if it is in memory, for status.
    pub fn view(&self, lock: LockNo) -> Option<GlockView> {
        Some(self.view_of(&*self.core.table.get(lock)?))
    }
    fn view_of(&self, entry: &Entry) -> GlockView {
        let state = entry.state.lock();
        let known = state.dlock().known();
        let waiters = known.into_iter().flat_map(|known| known.waiters.iter());
        GlockView {
            lock: entry.lock,
            held: state.dlock().held(),
            wanted: state.dlock().want(),
            users: state.users(),
            waiting: u32::try_from(state.waiters().count()).unwrap_or(u32::MAX),
            demoting: state.demoting(),
            holders: known.map_or_else(Vec::new, |known| known.holders.clone()),
            waiters: waiters.map(|waiter| (waiter.life, waiter.mode)).collect(),
            held_for: state.held_since().map(|since| self.core.now().saturating_sub(since)),
            hand_overs: self.core.counters.hand_overs.of(entry.lock),
        }
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
            let ages = wishes.iter().map(|(lock, (since, _))| (*lock, simulation::since(*since)));
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
        match hint {
            Hint::YourTurn => return self.core.ops.your_turn(lock),
            Hint::Look => return,
            _ => {}
        }
        self.core.on_look(lock, matches!(hint, Hint::Granted | Hint::Give { .. }));
    }
    /// A message from a node that is not known to be dead: [`Hint::Ask`] and [`Hint::Give`] are heeded as what they
    /// are. `may_visit`: the caller's thread may do what the message calls for, which saves waking another one; that
    /// may wait for devices, for programs and for other messages. Otherwise this call does not block.
    pub fn message(&self, from: Life, lock: LockNo, hint: &Hint, may_visit: bool) {
        self.messages(from, &[(lock, hint)], may_visit);
    }
    /// Several that came together; otherwise as [`Self::message`].
    pub fn messages(&self, from: Life, messages: &[(LockNo, &Hint)], may_visit: bool) {
        self.core.counters.hints_received.fetch_add(1, Ordering::Relaxed);
        self.core.on_messages(from, messages, may_visit);
    }
    /// A wish in another node's heartbeat: as a hint, for locks this node holds or waits for.
    pub fn wish(&self, lock: LockNo, mode: Mode) {
        self.core.on_wish(lock, mode);
    }
    /// As [`Self::wish`]. `overdue`: the wish has stood for long, so the record is looked at even if this node knows
    /// nothing of the lock.
    pub fn heartbeat_wish(&self, lock: LockNo, mode: Mode, overdue: bool) {
        if overdue {
            self.hint(lock, &Hint::Wanted(mode));
        } else {
            self.wish(lock, mode);
        }
    }
    /// A node was recovered, or left: whoever waits looks again.
    pub fn node_gone(&self) {
        let mut waited: Vec<LockNo> = self.core.wishes.lock().keys().copied().collect();
        waited.sort_unstable();
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
                if simulation::has_ended() {
                    return Err(LockError::Withdrawn);
                }
                simulation::pause(Duration::from_millis(1));
            }
        }
        let all = Mutex::new(all);
        if simulation::is_simulated() {
            let stable = self.core.demote_share(&all);
            return if stable { Ok(()) } else { Err(LockError::Withdrawn) };
        }
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
    /// In a simulation, where no demoters run: does what they would do now.
    pub fn demote_due(&self) {
        while let Some(entry) = self.core.work.iter().find_map(WorkQueue::next_due) {
            self.core.visit(&entry, &mut Post::at_once());
        }
    }
    /// In a simulation: how long from now demoters would have something to do.
    pub fn demotion_due_in(&self) -> Option<Duration> {
        let due = self.core.work.iter().filter_map(WorkQueue::due_at).min()?;
        Some(due.saturating_duration_since(simulation::now()))
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

#[cfg(test)]
mod tests;
