//! This node's place in the cluster: joining, beating, watching, leaving.

mod heartbeat;
mod heartbeat_hints;
mod lease;
mod look;
mod messages;
mod peers;
mod view;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_device::Moment;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_format::{LockNo, MemberIndex, NodeId};
use braid_pool::EpochTag;
use parking_lot::{Condvar, Mutex, RwLock};

pub use lease::OnLease;

use super::cached::Cached;
use super::claim::{Claim, Claimed, sweep};
use super::fence::Fencer;
use super::fencing::Means;
use super::join_watcher::JoinWatcher;
use super::leave::{self, Leave};
use super::life::is_over;
use super::observation::{Heartbeats, tag_of};
use super::slot_write::Outcome;
use super::slots::{Unreadable, log_damage, write_slot};
use super::waits::WaitLog;
use super::watch::{Recovery, Watch, WatchAction, WatchEvent};
use super::wishes::{Wish, Wishes};
use super::{
    Deltas, FenceMethod, HostIdentity, JoinOptions, Liveness, NodeStore, NodeView, NodeWait,
    NotFenced, NotRecovered, Recover, Timing,
};
use crate::Life;
use crate::dlock::{Hint, Time};
use crate::error::LockError;
use crate::glock::LockManager;
use crate::hints::{Hints, RECEIVERS};
use crate::runtime::join_all;

/// Name of the thread that fences silent nodes before there is a watcher.
const JOIN_WATCHER: &str = "join_watcher";
/// Name of the watcher's thread.
const WATCHER: &str = "watcher";
/// Pause between two looks at whether the recoveries of a leaving node have ended.
const RECOVERY_LOOK: Duration = Duration::from_millis(5);

/// This node's place in the cluster. Only [`Membership::leave`] frees the slot; one that is
/// dropped or abandoned is recovered by others.
pub struct Membership {
    pub(super) inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    life: Mutex<Option<Box<dyn Send + Sync>>>,
}

pub(super) struct Inner {
    me: Life,
    store: Arc<dyn NodeStore>,
    options: JoinOptions,
    identity: HostIdentity,
    recover: Arc<dyn Recover>,
    pub(super) hints: Hints,
    heartbeat_hints: heartbeat_hints::HeartbeatHints,
    /// Lives of which it was said that messages for them go through the devices, one for each slot.
    slow_ways: Mutex<HashMap<NodeId, Life>>,
    /// Threads that receive hints and are not receiving just now.
    busy_receivers: AtomicUsize,
    /// This node's slot, as it wrote it last. Held while it writes it.
    mine: Mutex<SlotRecord>,
    /// Its key, registered with every member; 0: with none.
    key: u64,
    origin: Instant,
    nonces: AtomicU64,
    manager: OnceLock<Weak<LockManager>>,
    /// Locks of regions of the pool have a manager of their own.
    regions: OnceLock<(Range<LockNo>, Weak<LockManager>)>,
    slots: RwLock<Vec<Cached>>,
    beats: Mutex<Heartbeats>,
    deltas: Mutex<Deltas>,
    /// The member that this node could not fill or move, and in which epoch.
    stuck: Mutex<Option<(MemberIndex, EpochTag)>>,
    stop: (Mutex<bool>, Condvar),
    /// The next heartbeat has news.
    hurry: AtomicBool,
    /// Why this node has withdrawn, if it has.
    withdrawn: OnceLock<Arc<str>>,
    /// The watcher is at work on a dead node's slot.
    has_claimed: AtomicBool,
    /// Until when this node may act.
    lease: Mutex<Moment>,
    /// Its end was said.
    lapsed: AtomicBool,
    alarm: lease::Alarm,
    /// Slots that could not be read at the last look.
    unreadable: Mutex<Vec<Unreadable>>,
    /// The pool's epoch in use here, as the watcher saw it, and since when.
    epoch_since: Mutex<(EpochTag, Instant)>,
    /// The watcher looks from now on, or none ever will.
    is_watched: AtomicBool,
    /// Wakes the watcher: `None` to end.
    watcher: Mutex<Option<Sender<Option<WatchEvent>>>>,
    /// What the watcher has started.
    errands: Mutex<Vec<JoinHandle<()>>>,
    /// One of these follows a change of the pool.
    following: AtomicBool,
    /// One of these says where the liveness lock is now.
    placing: AtomicBool,
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
        let Claimed { mine, begun, hints, life } = claim.run()?;
        store.pool().flush().map_err(LockError::NodeStore)?;
        // The pool may have been changed by others who did not see this node yet.
        store.pool().follow().map_err(LockError::NodeStore)?;
        let me = mine.life;
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let inner = Arc::new(Inner {
            me,
            lease: Mutex::new(begun + options.timing.lease()),
            lapsed: AtomicBool::new(false),
            alarm: lease::Alarm::new()?,
            options,
            identity,
            recover,
            hints,
            heartbeat_hints: heartbeat_hints::HeartbeatHints::default(),
            slow_ways: Mutex::default(),
            busy_receivers: AtomicUsize::new(0),
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
            stop: (Mutex::new(false), Condvar::new()),
            hurry: AtomicBool::new(false),
            withdrawn: OnceLock::new(),
            has_claimed: AtomicBool::new(false),
            unreadable: Mutex::default(),
            epoch_since: Mutex::new((store.pool().epoch(), Instant::now())),
            is_watched: AtomicBool::new(false),
            watcher: Mutex::new(None),
            errands: Mutex::default(),
            following: AtomicBool::new(false),
            placing: AtomicBool::new(false),
            store,
        });
        *inner.slots.write() =
            (0..inner.store.slots()).map(|n| Cached::unknown(NodeId(n))).collect();
        inner.read_slots()?;
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
            for n in 0..RECEIVERS {
                let inner = self.inner.clone();
                self.spawn(&format!("hints-{n}"), move || inner.receive_hints())?;
            }
        }
        if let Some(tcp) = self.inner.hints.tcp().cloned() {
            for n in 0..RECEIVERS {
                let (inner, tcp) = (self.inner.clone(), tcp.clone());
                self.spawn(&format!("hints-tcp-{n}"), move || {
                    tcp.run(&|hint, may_wait| inner.heard(hint, may_wait));
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
        self.inner.hurry.store(true, Ordering::Release);
        let _stop = self.inner.stop.0.lock();
        self.inner.stop.1.notify_all();
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
    pub fn end_errands(&self) {
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
        join_all(std::mem::take(&mut *self.inner.errands.lock()));
    }
    /// The operator's word that the host of the node in `slot` is off. It is recovered at the next
    /// look.
    ///
    /// # Errors
    /// [`LockError::NotDead`]: it shows signs of life, or the kernel knows better.
    pub fn vouch(&self, slot: NodeId) -> Result<Life, LockError> {
        let inner = &self.inner;
        let refuse = |why: &str| Err(LockError::NotDead { slot, why: why.into() });
        if inner.unreadable.lock().iter().any(|u| u.slot == slot) {
            return refuse(super::waits::UNREADABLE);
        }
        let slots = inner.slots.read();
        let cached = slots.get(usize::from(slot.0)).map(|s| &s.record);
        let Some(record) = cached.filter(|r| r.state != SlotState::Free) else {
            return refuse("nobody has it");
        };
        let seen = inner.sees_lock_of(record);
        super::vouch::refuse_if_it_lives_here(&*inner.store, &inner.identity, record)?;
        let life = record.acting();
        if inner.silence(record).0 < Timing::of_slot(record.io_timeout).suspect_after() {
            return refuse(
                "it has shown heartbeats of late: turn its host off and wait until it is silent",
            );
        }
        super::vouch::settle(&*inner.store, record, seen)?;
        tracing::warn!(?life, host = record.host, "dead, by the operator's word");
        inner.options.proofs.add(record, FenceMethod::Operator);
        Ok(life)
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
                    leave::Event::Stopped
                }
                leave::Action::EndLease => {
                    self.inner.lease(Moment::now());
                    leave::Event::LeaseEnded(Box::new(self.inner.mine.lock().clone()))
                }
                leave::Action::Write { expected, new } => {
                    let outcome = match self.inner.write_slot(&expected, &new) {
                        Ok(true) => Outcome::Stands,
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
                leave::Action::End(Outcome::Stands) => return Ok(()),
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
        join_all(std::mem::take(&mut *self.inner.errands.lock()));
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
}

impl Inner {
    fn nonce(&self) -> u64 {
        self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
    fn stopped(&self) -> bool {
        *self.stop.0.lock()
    }
    fn manager(&self) -> Option<Arc<LockManager>> {
        self.manager.get()?.upgrade()
    }
    fn managers(&self) -> impl Iterator<Item = Arc<LockManager>> {
        let regions = self.regions.get().and_then(|r| r.1.upgrade());
        self.manager().into_iter().chain(regions)
    }
    /// Whose lock it is.
    fn manager_of(&self, lock: LockNo) -> Option<Arc<LockManager>> {
        match self.regions.get() {
            Some((range, manager)) if range.contains(&lock) => manager.upgrade(),
            _ => self.manager(),
        }
    }
    fn liveness(&self, life: Life) -> Liveness {
        let at = usize::from(life.slot.0);
        match self.slots.read().get(at).map(|s| s.is_over(life)) {
            None | Some(Some(false)) => return Liveness::Alive,
            Some(Some(true)) => return Liveness::Dead,
            Some(None) => {}
        }
        let Some(cached) = Cached::read(&*self.store, life.slot) else { return Liveness::Alive };
        let dead = is_over(&cached.record, life);
        if let Some(slot) = self.slots.write().get_mut(at) {
            *slot = cached;
        }
        if dead { Liveness::Dead } else { Liveness::Alive }
    }

    /// Writes a slot record; an unknown outcome is settled by reading.
    fn write_slot(&self, expected: &SlotRecord, new: &SlotRecord) -> Result<bool, LockError> {
        write_slot(&*self.store, expected, new)
    }

    /// Withdraws, for others have fenced this node: nothing of it that is under way can land, and
    /// perhaps nobody will answer it.
    fn expelled(&self, why: &str) {
        self.withdraw(why);
        self.store.pool().sever();
    }

    fn withdraw(&self, why: &str) {
        // Before anything fails because of it: whoever meets that can say why.
        let first = self.withdrawn.set(why.into()).is_ok();
        self.store.pool().refuse();
        if !first {
            return;
        }
        tracing::error!(node = ?self.me, "this node withdraws: {why}");
        self.alarm.ring();
        for manager in self.managers() {
            manager.withdraw();
        }
    }

    /// Fences silent nodes until the watcher does so.
    fn watch_while_joining(&self) {
        let mine = self.mine.lock().clone();
        let fit = || self.may_fence();
        let (store, options, identity) = (&*self.store, &self.options, &self.identity);
        JoinWatcher { store, options, identity, mine: &mine, fit: &fit }.run(&self.is_watched);
    }

    /// Whether this node may act: it has not withdrawn, and its lease lasts.
    fn may_fence(&self) -> bool {
        self.withdrawn.get().is_none() && Moment::now() < *self.lease.lock()
    }

    /// The watcher's life.
    fn watch(self: &Arc<Self>, inbox: &Receiver<Option<WatchEvent>>) {
        let mut watch = Watch::new(self.me, self.identity.clone(), self.options.timing.beat());
        let (mut wishes, mut wait_log) = (Wishes::default(), WaitLog::default());
        let beat = self.options.timing.beat();
        let mut look = Instant::now() + beat;
        loop {
            let now = Instant::now();
            let next = self.heartbeat_hints.next(now, look);
            let event = match inbox.recv_timeout(next.saturating_duration_since(now)) {
                Ok(Some(answer)) => answer,
                Err(RecvTimeoutError::Timeout) if next < look => {
                    if let Err(e) = self.read_mail() {
                        tracing::debug!("mail: {e}");
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => match self.observe() {
                    Ok(observed) => WatchEvent::Observed(observed),
                    Err(e) => {
                        tracing::warn!("cannot look at the other nodes: {e}");
                        // What they say may be on members that this node takes for incomplete still.
                        self.follow_aside(false);
                        look = Instant::now() + beat;
                        continue;
                    }
                },
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let looked = matches!(event, WatchEvent::Observed(_));
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                for action in watch.step(self.origin.elapsed(), self.nonce(), event) {
                    events.extend(self.perform(action));
                }
            }
            self.has_claimed.store(watch.has_claimed(), Ordering::Release);
            if looked {
                look = Instant::now() + beat;
                self.expect_mail(Instant::now());
                self.note_epoch();
                self.heed_epoch();
                self.heed_slot();
                self.heed_wishes(&mut wishes);
                wait_log.log(self.waits());
            }
        }
    }

    fn perform(self: &Arc<Self>, action: WatchAction) -> Option<WatchEvent> {
        match action {
            WatchAction::Write { expected, new } => {
                if new.recoverer == Some(self.me) && self.options.proofs.of(&expected).is_none() {
                    // For who waits for this node's word, or else this write could wait for that.
                    self.options.proofs.add(&expected, FenceMethod::Kernel);
                }
                // Not by the watcher itself: while an epoch of the pool is not settled nobody
                // compares and writes, and that may need the watcher's eyes.
                let (this, slot) = (self.clone(), new.life.slot);
                let run = move || WatchEvent::Wrote(slot, this.change_slot(&expected, *new));
                self.send_out("slot", run, WatchEvent::Wrote(slot, false))
            }
            WatchAction::Fence(record) => {
                let this = self.clone();
                let slot = record.life.slot;
                let name = format!("fence-{slot}");
                let run = move || WatchEvent::Fenced(slot, this.fence(&record));
                self.send_out(&name, run, WatchEvent::Fenced(slot, false))
            }
            WatchAction::Recover(record) => {
                let dead = record.life;
                tracing::info!(?dead, "recovering a dead node");
                let this = self.clone();
                let run = move || {
                    this.fencer().forget(&record);
                    let done = outcome(dead, this.recover.recover(dead, this.me));
                    WatchEvent::Recovered(dead.slot, done)
                };
                let name = format!("recover-{}", dead.slot);
                self.send_out(&name, run, WatchEvent::Recovered(dead.slot, Recovery::Failed))
            }
            WatchAction::Finish(record) => {
                let dead = record.life;
                let this = self.clone();
                let run =
                    move || WatchEvent::Finished(outcome(dead, this.recover.finish(dead, this.me)));
                let name = format!("finish-{}", dead.slot);
                self.send_out(&name, run, WatchEvent::Finished(Recovery::Failed))
            }
            WatchAction::Suspect(life) => {
                super::log_suspect(life);
                None
            }
            WatchAction::Evicted => {
                self.expelled("others have fenced it: its slot was taken from it");
                None
            }
            WatchAction::Distrust(life) => {
                tracing::warn!(
                    "node {} beats, but its liveness lock is not seen here: it will not be taken for dead unless it is fenced, or `braid fence {} --confirm` says so",
                    life.slot,
                    life.slot
                );
                None
            }
            WatchAction::ForeignLocks(life) => {
                self.withdraw(&format!(
                    "node {} changes the pool under kernel locks that exclude nobody here: it is on another host, or uses other device nodes of the same disks",
                    life.slot
                ));
                None
            }
            WatchAction::Gone(life) => {
                tracing::debug!(?life, "gone");
                for manager in self.managers() {
                    manager.node_gone();
                }
                None
            }
        }
    }

    fn fencer(&self) -> Fencer<'_> {
        self.options.fencer(&*self.store, self.key, &self.identity)
    }

    /// For how long who acts by a slot has shown no heartbeat here, and the last one, if there is one.
    fn silence(&self, record: &SlotRecord) -> (Duration, Option<Heartbeat>) {
        let beats = self.beats.lock();
        let last = beats.of(record.acting());
        // Nobody was watched before this node was there.
        let since = last.map_or(Time::ZERO, |(_, seen)| seen);
        (self.origin.elapsed().saturating_sub(since), last.map(|(beat, _)| beat.clone()))
    }

    /// How the node of a slot is, or would be, known to be dead.
    fn method(&self, record: &SlotRecord, means: &Means) -> FenceMethod {
        if self.sees_lock_of(record) {
            return FenceMethod::Kernel;
        }
        self.options.proofs.of(record).unwrap_or_else(|| means.first_for(record))
    }

    /// Fences the node of a slot, which is silent.
    fn fence(&self, record: &SlotRecord) -> bool {
        let (life, began) = (record.acting(), Instant::now());
        let fit = || self.may_fence();
        if !fit() {
            return false;
        }
        tracing::warn!(?life, host = record.host, "silent for too long: it is fenced");
        match self.fencer().fence(record, &fit) {
            Ok(method) => {
                let took = began.elapsed();
                tracing::warn!(?life, method = method.name(), ?took, "fenced");
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(?life, "not fenced: {e}");
                if let NotFenced::Reservation(e) = &e
                    && e.is_fenced()
                {
                    self.expelled(&format!("it has been fenced: {e}"));
                }
                false
            }
        }
    }

    /// Does what takes time in a thread of its own; the answer comes to the watcher. `failed`: what
    /// is answered when there is no thread.
    fn send_out(
        self: &Arc<Self>,
        name: &str,
        errand: impl FnOnce() -> WatchEvent + Send + 'static,
        failed: WatchEvent,
    ) -> Option<WatchEvent> {
        let this = self.clone();
        let run = move || {
            let answer = errand();
            if let Some(watcher) = &*this.watcher.lock() {
                let _ = watcher.send(Some(answer));
            }
        };
        match std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            Ok(thread) => {
                self.keep(thread);
                None
            }
            Err(e) => {
                tracing::error!("cannot start a thread: {e}");
                Some(failed)
            }
        }
    }

    fn change_slot(&self, expected: &SlotRecord, new: SlotRecord) -> bool {
        let written = self.write_slot(expected, &new).unwrap_or_else(|e| {
            tracing::warn!("slot {}: {e}", new.life.slot);
            false
        });
        if written && new.damage != expected.damage {
            log_damage(&new);
        }
        if written && let Some(slot) = self.slots.write().get_mut(usize::from(new.life.slot.0)) {
            *slot = Cached::now(new);
        }
        written
    }

    /// Another node may have changed the pool. Whoever follows waits for the requests under way: not
    /// the watcher, which others may need the eyes of.
    fn heed_epoch(self: &Arc<Self>) {
        let mine = self.store.pool().epoch();
        let other = {
            let (slots, beats) = (self.slots.read(), self.beats.lock());
            let mut lives = slots.iter().filter(|s| s.record.state != SlotState::Free);
            lives.any(|s| beats.of_slot(s.record.life.slot).is_some_and(|b| tag_of(b) != mine))
        };
        if other {
            self.follow_aside(true);
        }
    }

    /// Follows a change of the pool, if there is one; `must`: there is, so this node does not go on
    /// without.
    fn follow_aside(self: &Arc<Self>, must: bool) {
        if self.following.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let run = move || {
            if let Err(e) = this.store.pool().follow()
                && must
            {
                this.withdraw(&format!("it cannot follow a change of the pool: {e}"));
            }
            this.following.store(false, Ordering::Release);
        };
        match std::thread::Builder::new().name("epoch".to_owned()).spawn(run) {
            Ok(thread) => self.keep(thread),
            Err(e) => {
                self.following.store(false, Ordering::Release);
                tracing::error!("cannot start a thread: {e}");
            }
        }
    }

    /// Keeps an errand, to be waited for at the end.
    fn keep(&self, errand: JoinHandle<()>) {
        let mut errands = self.errands.lock();
        errands.retain(|e| !e.is_finished());
        errands.push(errand);
    }

    fn heed_wishes(&self, wishes: &mut Wishes) {
        let news = {
            let beats = self.beats.lock();
            wishes.look(beats.iter().filter(|b| b.life != self.me))
        };
        for Wish { lock, mode, stubborn } in news {
            let Some(manager) = self.manager_of(lock) else { continue };
            if stubborn {
                manager.hint(lock, &Hint::Wanted(mode));
            } else {
                manager.wish(lock, mode);
            }
        }
    }
}

/// How a recovery ended, for the watcher; said.
fn outcome(dead: Life, done: Result<(), NotRecovered>) -> Recovery {
    match done {
        Ok(()) => Recovery::Done,
        Err(NotRecovered::Damaged { damage, source }) => {
            tracing::info!(?dead, "recovery is stopped: {source}");
            Recovery::Damaged(damage)
        }
        Err(e @ NotRecovered::Failed(_)) => {
            tracing::error!(?dead, "recovery failed: {e}");
            Recovery::Failed
        }
    }
}
