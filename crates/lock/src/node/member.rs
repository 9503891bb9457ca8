//! This node's place in the cluster: joining, beating, watching, leaving.
//!
//! Parts, bottom up:
//! ```text
//!  alarm, heartbeat_hints  a thread waits for a moment; hints that wait for a heartbeat
//!  pace                    how often it beats and looks
//!  freezes                 whose freeze of the pool it follows, or its own
//!  state                   what all threads of this node share
//!  heartbeat, lease        that this node lives; that it may act no more
//!  look, view              what is seen of the slots; what of that is shown to people
//!  freeze                  no node changes anything for a while
//!  messages, watcher       what other nodes say; what is done about those that die
//! ```
//! Above this file: `peers`, the other nodes as a lock manager sees them.

mod alarm;
mod freeze;
mod freezes;
mod heartbeat;
mod heartbeat_hints;
mod lease;
mod look;
mod messages;
mod pace;
mod peers;
mod state;
mod view;
mod watcher;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_device::Moment;
use braid_format::node::{SlotRecord, SlotState};
use braid_format::{LockNo, MemberIndex, NodeId};
use braid_pool::EpochTag;
use parking_lot::{Condvar, Mutex, RwLock};

use super::cached::Cached;
use super::claim::{Claim, Claimed, sweep};
use super::company::Company;
use super::leave::{self, Leave};
use super::slot_write::Outcome;
use super::{
    Deltas, FenceMethod, JoinOptions, Liveness, NodeStore, NodeView, NodeWait, Recover, Timing,
};
use crate::Life;
use crate::dlock::Hint;
use crate::error::LockError;
use crate::glock::LockManager;
use crate::hints::Receivers;
use crate::runtime::{AbortOnPanic, join_all};
use alarm::Alarm;
use heartbeat_hints::HeartbeatHints;
use pace::Pace;
use state::NodeState;

pub use freezes::{NotFrozen, OnFreeze};
pub use lease::OnLease;

/// Name of the thread that fences silent nodes before there is a watcher.
const JOIN_WATCHER: &str = "join_watcher";
/// Name of the watcher's thread.
const WATCHER: &str = "watcher";
/// Pause between two looks at whether the recoveries of a leaving node have ended.
const RECOVERY_LOOK: Duration = Duration::from_millis(5);

/// This node's place in the cluster. Only [`Membership::leave`] frees the slot; one that is
/// dropped or abandoned is recovered by others.
pub struct Membership {
    pub(super) inner: Arc<NodeState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    life: Mutex<Option<Box<dyn Send + Sync>>>,
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
        let identity = options.identity.clone().unwrap_or_else(super::watch::this_host);
        let claim = Claim::new(&*store, &options, &identity, &*recover);
        let Claimed { mine, begun, hints, life, recovered } = claim.run()?;
        store.pool().flush().map_err(LockError::NodeStore)?;
        // The pool may have been changed by others who did not see this node yet.
        store.pool().follow().map_err(LockError::NodeStore)?;
        let me = mine.life;
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let inner = Arc::new(NodeState {
            me,
            lease: Mutex::new(begun + options.timing.lease()),
            seen_until: Mutex::new(begun + options.timing.lease()),
            lapsed: AtomicBool::new(false),
            alarm: Alarm::new()?,
            pace: Pace::new(options.timing),
            options,
            identity,
            recover,
            hints,
            heartbeat_hints: HeartbeatHints::default(),
            slow_ways: Mutex::default(),
            receivers: Receivers::default(),
            key: mine.fence_key,
            mine: Mutex::new(mine),
            origin: Instant::now(),
            nonces: AtomicU64::new(random),
            manager: OnceLock::new(),
            regions: OnceLock::new(),
            slots: RwLock::new(Vec::new()),
            beats: Mutex::default(),
            deltas: Mutex::default(),
            stuck: Mutex::default(),
            freezes: freezes::Freezes::default(),
            stop: (Mutex::new(false), Condvar::new()),
            at_join: OnceLock::new(),
            recovered: Mutex::new(recovered),
            hurry: AtomicBool::new(false),
            withdrawn: OnceLock::new(),
            has_claimed: AtomicBool::new(false),
            unreadable: Mutex::default(),
            epoch_since: Mutex::new((store.pool().epoch(), Instant::now())),
            is_watched: AtomicBool::new(false),
            watcher: Mutex::new(None),
            tasks: Mutex::default(),
            following: AtomicBool::new(false),
            placing: AtomicBool::new(false),
            store,
        });
        *inner.slots.write() =
            (0..inner.store.slots()).map(|n| Cached::unknown(NodeId(n))).collect();
        inner.read_slots()?;
        inner.at_join.set(inner.all_slots()).ok();
        let this =
            Arc::new(Self { inner, threads: Mutex::new(Vec::new()), life: Mutex::new(Some(life)) });
        let inner = this.inner.clone();
        this.spawn("heartbeat", move || inner.beat(begun))?;
        let inner = this.inner.clone();
        this.spawn(JOIN_WATCHER, move || inner.watch_while_joining())?;
        // This may take long: others hear of this node meanwhile.
        sweep(&*this.inner.store, this.inner.key);
        Ok(this)
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
        self.inner.me
    }
    /// Starts the watcher and the hint receiver; hints and wishes of others go to `manager`, which
    /// also says what this node wishes. Once.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn attach(self: &Arc<Self>, manager: &Arc<LockManager>) -> Result<(), LockError> {
        if self.inner.manager.set(Arc::downgrade(manager)).is_err() {
            return Ok(());
        }
        let (sender, receiver) = mpsc::channel();
        *self.inner.watcher.lock() = Some(sender);
        self.inner.is_watched.store(true, Ordering::Release);
        let inner = self.inner.clone();
        self.spawn(WATCHER, move || inner.watch(&receiver))?;
        if self.inner.hints.unix().is_some() {
            for n in 0..Receivers::THREADS {
                let inner = self.inner.clone();
                self.spawn(&format!("hints-{n}"), move || {
                    let _abort = AbortOnPanic;
                    inner.receive_hints();
                })?;
            }
        }
        if let Some(tcp) = self.inner.hints.tcp().cloned() {
            for n in 0..Receivers::THREADS {
                let (inner, tcp) = (self.inner.clone(), tcp.clone());
                self.spawn(&format!("hints-tcp-{n}"), move || {
                    let _abort = AbortOnPanic;
                    tcp.run(&|hints, may_wait| inner.heard(hints, may_wait));
                })?;
            }
        }
        Ok(())
    }
    /// Waits for the recoveries that this node has begun, unless it has withdrawn.
    pub fn end_recoveries(&self) {
        let under_way = || self.inner.has_claimed.load(Ordering::Acquire);
        while under_way() && self.inner.withdrawn.get().is_none() {
            std::thread::sleep(RECOVERY_LOOK);
        }
    }
    /// A hint that came another way than by the socket.
    pub fn hint_came(&self, lock: LockNo, hint: &Hint) {
        if let Some(manager) = self.inner.manager_of(lock) {
            manager.hint(lock, hint);
        }
    }
    /// Hints and wishes about the locks in `range`, which are of regions of the pool, go to
    /// `manager`. Once, before [`Self::attach`].
    pub fn attach_regions(&self, range: Range<LockNo>, manager: &Arc<LockManager>) {
        self.inner.regions.set((range, Arc::downgrade(manager))).ok();
    }
    /// The next heartbeat is written at once.
    pub fn announce(&self) {
        self.inner.announce();
    }
    /// Notes this node's heartbeat beside slots that are not on the devices, so that older images of them are known.
    /// Where the slots are on the devices it does nothing.
    pub fn remember_heartbeat(&self) {
        self.inner.remember_heartbeat(Some(&|| self.announce()));
    }
    /// What a freeze asks of this node. Once.
    pub fn on_freeze(&self, on: Arc<dyn OnFreeze>) {
        self.inner.freezes.on.set(on).ok();
    }
    /// Freezes the pool: on return what programs of all nodes had written before is stable, and no node changes
    /// anything but lock records, slots and heartbeats, until [`Membership::thaw`], or for `time` at most.
    /// The others have `patience` to follow, unless it is `given_up` before. No lock may be held.
    ///
    /// # Errors
    /// [`NotFrozen`]; nothing is frozen then.
    pub fn freeze(
        &self,
        time: Duration,
        patience: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), NotFrozen> {
        self.inner.freeze((time, patience), given_up)
    }
    /// What [`Membership::freeze`] would refuse before it asks the others; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_freeze(&self) -> Result<(), NotFrozen> {
        self.inner.plan_freeze()
    }
    /// Waits as long as another node has the pool frozen, and says that this one changes nothing. Before
    /// [`Membership::on_freeze`].
    ///
    /// # Errors
    /// The slots cannot be read.
    pub fn await_thaw(&self) -> Result<(), LockError> {
        self.inner.await_thaw()
    }
    /// Before this node leaves: ends its freeze, waits for the end of another one's, and follows none any more.
    pub fn leave_freezes(&self) {
        self.inner.leave_freezes();
    }
    /// Ends this node's freeze.
    ///
    /// # Errors
    /// [`NotFrozen::NotHere`]; [`NotFrozen::Broken`]: it is thawed, but some nodes may not have waited all the time.
    pub fn thaw(&self) -> Result<(), NotFrozen> {
        let thawed = self.inner.thaw();
        if !matches!(thawed, Err(NotFrozen::NotHere)) {
            // Images that were made meanwhile do not have the next heartbeat.
            self.remember_heartbeat();
        }
        thawed
    }
    /// Which node has frozen the pool, if changes of this node wait for that.
    pub fn frozen_by(&self) -> Option<NodeId> {
        self.inner.frozen_by()
    }
    /// Starts the thread that watches over the lease and tells `on`. Once.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn watch_lease(&self, on: Arc<dyn OnLease>) -> Result<(), LockError> {
        let inner = self.inner.clone();
        self.spawn("lease", move || inner.keep_lease(&*on))
    }
    /// From the end of this node's lease until others may act.
    pub fn grace(&self) -> Duration {
        self.inner.options.timing.grace()
    }
    /// Whether this node was stopped, or has withdrawn.
    pub fn has_ended(&self) -> bool {
        self.inner.stopped() || self.inner.managers().any(|m| m.has_withdrawn())
    }
    /// Publishes this node's change of the counters with the next heartbeat.
    pub fn publish(&self, deltas: Deltas) {
        *self.inner.deltas.lock() = deltas;
    }
    /// Says with the next heartbeats, while the pool's epoch is that one, that this node could not fill
    /// or move a member; `None`: there is none.
    pub fn publish_stuck(&self, stuck: Option<(MemberIndex, EpochTag)>) {
        *self.inner.stuck.lock() = stuck;
    }
    /// Sum of the changes that the other living nodes published.
    pub fn others_deltas(&self) -> Deltas {
        let slots = self.inner.slots.read();
        let beats = self.inner.beats.lock();
        let lives = slots.iter().filter(|s| s.record.state != SlotState::Free);
        let beats = lives.filter_map(|s| beats.of_slot(s.record.life.slot));
        beats.filter(|b| b.life != self.inner.me).fold(Deltas::default(), |sum, b| {
            sum + Deltas { free: b.free_delta, inodes: b.inode_delta, meta: b.meta_delta }
        })
    }
    /// Whether no other slot is in use.
    pub fn is_alone(&self) -> bool {
        let me = self.inner.me.slot;
        let slots = self.inner.slots.read();
        !slots.iter().any(|s| s.record.state != SlotState::Free && s.record.life.slot != me)
    }
    /// All slots that are not free.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.inner.nodes()
    }
    /// Other nodes that have kept threads of this one waiting for longer than is usual.
    pub fn waits(&self) -> Vec<NodeWait> {
        self.inner.waits()
    }
    /// Ends the watcher and what it has started: on return this node recovers nobody, and recovers
    /// nobody any more. Its heartbeat goes on, and follows changes of the pool.
    pub fn end_tasks(&self) {
        let watcher = self.inner.watcher.lock().take();
        if let Some(watcher) = watcher {
            let _ = watcher.send(None);
        }
        let is_watcher = |t: &JoinHandle<()>| t.thread().name() == Some(WATCHER);
        let mut threads = self.threads.lock();
        let (ends, goes_on) = std::mem::take(&mut *threads).into_iter().partition(is_watcher);
        *threads = goes_on;
        drop(threads);
        join_all(ends);
        join_all(std::mem::take(&mut *self.inner.tasks.lock()));
    }
    /// The operator vouches that the host of the node in `slot` is off. That node is recovered at the
    /// next look.
    ///
    /// # Errors
    /// [`LockError::NotDead`]: it shows signs of life, or the kernel knows better.
    pub fn vouch(&self, slot: NodeId) -> Result<Life, LockError> {
        let inner = &self.inner;
        let slots = inner.slots.read();
        let record = self.may_vouch(&slots, slot)?;
        let seen = inner.sees_lock_of(record);
        super::vouch::settle(&*inner.store, record, seen)?;
        let life = record.acting();
        tracing::warn!(%life, host = record.host, "dead, by the operator's word");
        inner.options.proofs.add(record, FenceMethod::Operator);
        Ok(life)
    }
    /// What [`Membership::vouch`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_vouch(&self, slot: NodeId) -> Result<(), LockError> {
        self.may_vouch(&self.inner.slots.read(), slot).map(drop)
    }
    /// The slot, if a person's word for it counts.
    fn may_vouch<'a>(
        &self,
        slots: &'a [Cached],
        slot: NodeId,
    ) -> Result<&'a SlotRecord, LockError> {
        let inner = &self.inner;
        let refuse = |why: &str| Err(LockError::NotDead { slot, why: why.into() });
        if inner.unreadable.lock().iter().any(|u| u.slot == slot) {
            return refuse(super::waits::UNREADABLE);
        }
        let cached = slots.get(usize::from(slot.0)).map(|s| &s.record);
        let Some(record) = cached.filter(|r| r.state != SlotState::Free) else {
            return refuse("nobody has it");
        };
        super::vouch::refuse_if_it_lives_here(&*inner.store, &inner.identity, record)?;
        if inner.silence(record).0 < Timing::of_slot(record.io_timeout).suspect_after() {
            return refuse(
                "it has shown heartbeats of late: turn its host off and wait until it is silent",
            );
        }
        let seen = inner.sees_lock_of(record);
        super::vouch::refuse_if_it_lives_elsewhere(&*inner.store, record, seen)?;
        Ok(record)
    }
    /// Why this node has withdrawn, if it did so itself: its heartbeat could not be written, it was fenced,
    /// it could not follow a change of the pool.
    pub fn withdrawn(&self) -> Option<Arc<str>> {
        self.inner.withdrawn.get().cloned()
    }
    /// Frees the slot and ends the threads. Call after the manager was shut down cleanly.
    ///
    /// # Errors
    /// The slot could not be freed: others will recover it.
    pub fn leave(&self) -> Result<(), LockError> {
        let mut leave = Leave::new(self.inner.nonce());
        let (mut event, mut failed) = (leave::Event::Begin, LockError::Withdrawn);
        loop {
            event = match leave.step(event) {
                leave::Action::Stop => {
                    self.stop();
                    if self.life.lock().is_none() {
                        return Ok(());
                    }
                    self.inner.remember_heartbeat(None);
                    leave::Event::Stopped
                }
                leave::Action::EndLease => {
                    self.inner.lease(Moment::now(), true);
                    leave::Event::LeaseEnded(Box::new(self.inner.mine.lock().clone()))
                }
                leave::Action::Write { expected, new } => {
                    let outcome = match self.inner.write_slot(&expected, &new) {
                        Ok(true) => Outcome::Committed,
                        Ok(false) => Outcome::Lost,
                        Err(e) => {
                            failed = e;
                            Outcome::Failed
                        }
                    };
                    leave::Event::Wrote(outcome)
                }
                leave::Action::GiveKeyBack => {
                    self.inner.store.pool().unregister();
                    leave::Event::KeyGivenBack
                }
                leave::Action::LetLifeGo => {
                    drop(self.life.lock().take());
                    leave::Event::LifeLetGo
                }
                leave::Action::End(Outcome::Committed) => return Ok(()),
                leave::Action::End(_) => return Err(failed),
            };
        }
    }
    /// Ends the threads and drops the liveness lock without freeing the slot: others recover it.
    /// Every write of this node must have ended.
    pub fn abandon(&self) {
        self.stop();
        drop(self.life.lock().take());
    }
    fn stop(&self) {
        let (stopped, condition) = &self.inner.stop;
        *stopped.lock() = true;
        condition.notify_all();
        self.inner.is_watched.store(true, Ordering::Release);
        self.inner.alarm.ring();
        if let Some(watcher) = &*self.inner.watcher.lock() {
            let _ = watcher.send(None);
        }
        self.inner.hints.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        // The watcher first, then what it has started.
        join_all(threads);
        join_all(std::mem::take(&mut *self.inner.tasks.lock()));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Membership {
    /// Whether `life`'s holds may be broken: its slot is free or another's, or its journal is
    /// replayed. In doubt: alive.
    pub fn liveness(&self, life: Life) -> Liveness {
        self.inner.liveness(life)
    }
    /// Whether nothing of `life` can reach the devices any more: it has left, or is dead and fenced, as its slot says.
    /// What it held may not be recovered yet. In doubt not. Reads the slot.
    pub fn life_has_ended(&self, life: Life) -> bool {
        self.inner.life_has_ended(life)
    }
    /// Who else can have used the pool since `life` ended, this node's own or one that it came after. Reads the slots.
    pub fn company_since(&self, life: Life) -> Company {
        self.inner.company_since(life)
    }
}
