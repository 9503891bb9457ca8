//! This node's place in the cluster: joining, beating, watching, leaving.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use braid_format::node::{Heartbeat, RawHeartbeat, SlotDamage, SlotRecord, SlotState};
use braid_format::{FormatError, Incarnation, LockNo, NodeId};
use parking_lot::{Condvar, Mutex, RwLock};

use super::watch::{Recovery, SlotSight, Watch, WatchAction, WatchEvent, freed};
use super::{
    Deltas, HostIdentity, JoinOptions, Liveness, NodeStore, NodeView, NotRecovered, Peers, Recover,
};
use crate::dlock::Hint;
use crate::error::LockError;
use crate::glock::LockManager;
use crate::hints::HintSocket;
use crate::store::{CawOutcome, torn_pauses};
use crate::{Me, Mode};

/// A node that could not write its heartbeat for so many beats withdraws.
const BEATS_MISSED_MAX: u32 = 20;
/// A slot is read again when its life matters and the last look is older than this.
const SLOT_STALE: Duration = Duration::from_millis(20);
/// A wish that stands for so many beats is looked at even by nodes that know nothing of the lock:
/// a late write may have made one of them a holder without its knowledge.
const STUBBORN_BEATS: u32 = 8;

/// This node's place in the cluster. Only [`Membership::leave`] frees the slot; one that is
/// dropped or abandoned is recovered by others.
pub struct Membership {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    life: Mutex<Option<Box<dyn Send + Sync>>>,
}

struct Inner {
    me: Me,
    store: Arc<dyn NodeStore>,
    options: JoinOptions,
    identity: HostIdentity,
    recover: Arc<dyn Recover>,
    socket: HintSocket,
    mine: SlotRecord,
    origin: Instant,
    nonces: AtomicU64,
    manager: OnceLock<Weak<LockManager>>,
    slots: RwLock<Vec<Cached>>,
    beats: Mutex<HashMap<NodeId, (Heartbeat, Instant)>>,
    deltas: Mutex<Deltas>,
    stop: (Mutex<bool>, Condvar),
    /// Wakes the watcher: `None` to end.
    watcher: Mutex<Option<Sender<Option<Recovery>>>>,
    recovery: Mutex<Option<JoinHandle<()>>>,
    /// Dead lives that this node is recovering and whose journals it has replayed: their holds
    /// count for nothing here, although their slots are not free yet.
    replayed: RwLock<Vec<Me>>,
}

struct Cached {
    record: SlotRecord,
    read: Instant,
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
        let claim = Claim { store: &*store, options: &options, identity: &identity };
        let (mine, socket, life) = claim.any(&*recover)?;
        store.flush().map_err(LockError::NodeStore)?;
        let me = mine.life;
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let inner = Arc::new(Inner {
            me,
            options,
            identity,
            recover,
            socket,
            mine,
            origin: Instant::now(),
            nonces: AtomicU64::new(random),
            manager: OnceLock::new(),
            slots: RwLock::new(Vec::new()),
            beats: Mutex::new(HashMap::new()),
            deltas: Mutex::default(),
            stop: (Mutex::new(false), Condvar::new()),
            watcher: Mutex::new(None),
            recovery: Mutex::new(None),
            replayed: RwLock::default(),
            store,
        });
        let slots = inner.read_slots()?;
        *inner.slots.write() = slots.into_iter().map(Cached::now).collect();
        let this =
            Arc::new(Self { inner, threads: Mutex::new(Vec::new()), life: Mutex::new(Some(life)) });
        let inner = this.inner.clone();
        this.spawn("heartbeat", move || inner.beat())?;
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
    pub fn me(&self) -> Me {
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
        let inner = self.inner.clone();
        self.spawn("watcher", move || inner.watch(&receiver))?;
        let inner = self.inner.clone();
        self.spawn("hints", move || inner.receive_hints())
    }
    /// The recoverer has replayed `dead`'s journal: everything it held is in place and stable. From
    /// now on its holds may be broken here, although its slot stays `Recovering` until the rest
    /// (windows, orphans) is done, which itself needs locks that it held.
    pub fn mark_replayed(&self, dead: Me) {
        {
            let mut replayed = self.inner.replayed.write();
            if !replayed.contains(&dead) {
                replayed.push(dead);
            }
        }
        if let Some(manager) = self.inner.manager() {
            manager.node_gone();
        }
    }
    /// Publishes this node's change of the counters with the next heartbeat.
    pub fn publish(&self, deltas: Deltas) {
        *self.inner.deltas.lock() = deltas;
    }
    /// Sum of the changes that the other living nodes published.
    pub fn others_deltas(&self) -> Deltas {
        let slots = self.inner.slots.read();
        let beats = self.inner.beats.lock();
        let lives = slots.iter().filter(|s| s.record.state != SlotState::Free);
        let beats = lives.filter_map(|s| beats.get(&s.record.life.slot)).map(|b| &b.0);
        beats.filter(|b| b.life != self.inner.me).fold(Deltas::default(), |sum, b| {
            sum + Deltas { free: b.free_delta, inodes: b.inode_delta, meta: b.meta_delta }
        })
    }
    /// All slots that are not free.
    pub fn nodes(&self) -> Vec<NodeView> {
        let inner = &self.inner;
        let beats = inner.beats.lock();
        let fresh = |life: Me| {
            let silent = inner.options.beat * Watch::SUSPECT_BEATS;
            life == inner.me
                || beats.get(&life.slot).is_some_and(|b| b.0.life == life && b.1.elapsed() < silent)
        };
        let slots = inner.slots.read();
        let taken = slots.iter().map(|s| &s.record).filter(|r| r.state != SlotState::Free);
        taken
            .map(|r| NodeView {
                life: r.life,
                state: r.state,
                recoverer: r.recoverer,
                host: r.host.clone(),
                pid: r.pid,
                mount_point: r.mount_point.clone(),
                since: r.since,
                beating: fresh(r.life),
                damage: r.damage,
            })
            .collect()
    }
    /// Frees the slot and ends the threads. Call after the manager was shut down cleanly.
    ///
    /// # Errors
    /// The slot could not be freed: others will recover it.
    pub fn leave(&self) -> Result<(), LockError> {
        self.stop();
        if self.life.lock().is_none() {
            return Ok(());
        }
        let new = freed(&self.inner.mine, self.inner.nonce());
        let written = self.inner.write_slot(&self.inner.mine, &new);
        drop(self.life.lock().take());
        match written {
            Ok(true) => Ok(()),
            Ok(false) => Err(LockError::Withdrawn),
            Err(e) => Err(e),
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
        if let Some(watcher) = &*self.inner.watcher.lock() {
            let _ = watcher.send(None);
        }
        self.inner.socket.close();
        let here = std::thread::current().id();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        // The watcher first, which starts recoveries; then what it has started.
        threads.extend(self.inner.recovery.lock().take());
        for thread in threads {
            if thread.thread().id() != here && thread.join().is_err() {
                tracing::error!("a membership thread panicked");
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Peers for Membership {
    fn liveness(&self, life: Me) -> Liveness {
        self.inner.liveness(life)
    }
    fn lost(&self, life: Me) -> Option<SlotDamage> {
        let slots = self.inner.slots.read();
        let record = &slots.get(usize::from(life.slot.0))?.record;
        record.damage.filter(|d| record.life == life && !d.replayed)
    }
    fn hint(&self, to: Me, lock: LockNo, hint: Hint) {
        let slots = self.inner.slots.read();
        if let Some(slot) = slots.get(usize::from(to.slot.0))
            && slot.record.life == to
        {
            self.inner.socket.send(&slot.record.address, to, lock, hint);
        }
    }
}

impl Cached {
    fn now(record: SlotRecord) -> Self {
        Self { record, read: Instant::now() }
    }
    fn says_dead(&self, life: Me) -> bool {
        let now = self.record.life.incarnation;
        let over = self.record.state == SlotState::Free
            || self.record.damage.is_some_and(|damage| damage.replayed);
        now > life.incarnation || (now == life.incarnation && over)
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
    fn read_slots(&self) -> Result<Vec<SlotRecord>, LockError> {
        read_slots(&*self.store)
    }

    fn liveness(&self, life: Me) -> Liveness {
        let at = usize::from(life.slot.0);
        {
            if self.replayed.read().contains(&life) {
                return Liveness::Dead;
            }
            let slots = self.slots.read();
            match slots.get(at) {
                None => return Liveness::Alive,
                Some(slot) if slot.says_dead(life) => return Liveness::Dead,
                Some(slot) if slot.read.elapsed() < SLOT_STALE => return Liveness::Alive,
                Some(_) => {}
            }
        }
        let read = self.store.read_slot(life.slot);
        let Ok(Ok(record)) = read.map(|bytes| SlotRecord::decode(&bytes, life.slot)) else {
            return Liveness::Alive;
        };
        let cached = Cached::now(record);
        let dead = cached.says_dead(life);
        if let Some(slot) = self.slots.write().get_mut(at) {
            *slot = cached;
        }
        if dead { Liveness::Dead } else { Liveness::Alive }
    }

    /// Writes a slot record; an unknown outcome is settled by reading.
    fn write_slot(&self, expected: &SlotRecord, new: &SlotRecord) -> Result<bool, LockError> {
        write_slot(&*self.store, expected, new)
    }

    /// The heartbeat's life.
    fn beat(&self) {
        let mut beat = Heartbeat {
            life: self.me,
            pool_epoch: self.options.pool_epoch,
            sequence: 0,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            wishes: Vec::new(),
        };
        let mut sector = vec![0; self.store.sector_len()];
        let mut missed = 0;
        let (stopped, condition) = &self.stop;
        loop {
            beat.sequence += 1;
            let deltas = *self.deltas.lock();
            (beat.free_delta, beat.inode_delta) = (deltas.free, deltas.inodes);
            beat.meta_delta = deltas.meta;
            let manager = self.manager();
            beat.wishes = manager.map_or_else(Vec::new, |m| m.wishes(RawHeartbeat::WISHES));
            beat.encode(&mut sector);
            match self.store.write_heartbeat(self.me.slot, &sector) {
                Ok(()) => missed = 0,
                Err(e) => {
                    missed += 1;
                    tracing::warn!(missed, "heartbeat: {e}");
                    if missed == BEATS_MISSED_MAX {
                        self.withdraw("its heartbeat cannot be written");
                    }
                }
            }
            let mut stop = stopped.lock();
            if !*stop {
                condition.wait_for(&mut stop, self.options.beat);
            }
            if *stop {
                return;
            }
        }
    }

    fn withdraw(&self, why: &str) {
        tracing::error!(node = ?self.me, "this node withdraws: {why}");
        if let Some(manager) = self.manager() {
            manager.withdraw();
        }
    }

    /// The hint receiver's life.
    fn receive_hints(&self) {
        loop {
            let received = self.socket.receive();
            if self.stopped() {
                return;
            }
            match received {
                Ok(Some(hint)) => {
                    let Some(manager) = self.manager() else { return };
                    manager.hint(hint.lock, hint.hint);
                }
                Ok(None) => {}
                Err(e) => {
                    tracing::warn!("no hints any more, locks are polled: {e}");
                    return;
                }
            }
        }
    }

    /// The watcher's life.
    fn watch(self: &Arc<Self>, inbox: &Receiver<Option<Recovery>>) {
        let mut watch = Watch::new(self.me, self.identity.clone(), self.options.beat);
        let mut stubborn = HashMap::new();
        loop {
            let event = match inbox.recv_timeout(self.options.beat) {
                Ok(Some(outcome)) => WatchEvent::Recovered(outcome),
                Err(RecvTimeoutError::Timeout) => match self.sight() {
                    Ok(sight) => WatchEvent::Sight(sight),
                    Err(e) => {
                        tracing::warn!("cannot look at the other nodes: {e}");
                        continue;
                    }
                },
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let looked = matches!(event, WatchEvent::Sight(_));
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                for action in watch.step(self.origin.elapsed(), self.nonce(), event) {
                    events.extend(self.perform(action));
                }
            }
            if looked && let Some(manager) = self.manager() {
                self.heed_wishes(&manager, &mut stubborn);
            }
        }
    }

    fn sight(&self) -> Result<Vec<SlotSight>, LockError> {
        let records = self.read_slots()?;
        let len = self.store.sector_len();
        let bytes = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let now = Instant::now();
        let mut sight = Vec::with_capacity(records.len());
        let mut beats = self.beats.lock();
        for (record, sector) in records.into_iter().zip(bytes.chunks_exact(len)) {
            let life = record.life;
            // Torn by its own write, or never written: the last one stands.
            if let Ok(beat) = Heartbeat::decode(sector, life.slot)
                && beats.get(&life.slot).is_none_or(|b| b.0 != beat)
            {
                beats.insert(life.slot, (beat, now));
            }
            let beat = beats.get(&life.slot).filter(|b| b.0.life == life);
            let sequence = beat.map(|b| b.0.sequence);
            let life_locked = record.state == SlotState::Free
                || life == self.me
                || self.store.life_locked(life.slot).map_err(LockError::NodeStore)?;
            sight.push(SlotSight { record, sequence, life_locked });
        }
        drop(beats);
        *self.slots.write() = sight.iter().map(|s| Cached::now(s.record.clone())).collect();
        Ok(sight)
    }

    fn perform(self: &Arc<Self>, action: WatchAction) -> Option<WatchEvent> {
        match action {
            WatchAction::Write { expected, new } => {
                let written = self.write_slot(&expected, &new);
                let written = written.unwrap_or_else(|e| {
                    tracing::warn!("slot {}: {e}", new.life.slot);
                    false
                });
                if written && new.damage != expected.damage {
                    say_damage(&new);
                }
                if written
                    && let Some(slot) = self.slots.write().get_mut(usize::from(new.life.slot.0))
                {
                    *slot = Cached::now(*new);
                }
                Some(WatchEvent::Wrote(written))
            }
            WatchAction::Recover(dead) => {
                tracing::info!(?dead, "recovering a dead node");
                let this = self.clone();
                let run = move || {
                    let outcome = match this.recover.recover(dead) {
                        Ok(()) => Recovery::Done,
                        Err(NotRecovered::Damaged { damage, source }) => {
                            tracing::info!(?dead, "recovery is stopped: {source}");
                            Recovery::Damaged(damage)
                        }
                        Err(e @ NotRecovered::Failed(_)) => {
                            tracing::error!(?dead, "recovery failed: {e}");
                            Recovery::Failed
                        }
                    };
                    if let Some(watcher) = &*this.watcher.lock() {
                        let _ = watcher.send(Some(outcome));
                    }
                };
                let name = format!("recover-{}", dead.slot);
                match std::thread::Builder::new().name(name).spawn(run) {
                    Ok(thread) => {
                        *self.recovery.lock() = Some(thread);
                        None
                    }
                    Err(e) => {
                        tracing::error!("cannot start a thread: {e}");
                        Some(WatchEvent::Recovered(Recovery::Failed))
                    }
                }
            }
            WatchAction::Suspect(life) => {
                tracing::warn!(?life, "silent, perhaps dead: needs a fence before recovery");
                None
            }
            WatchAction::Evicted => {
                self.withdraw("its slot was taken from it");
                None
            }
            WatchAction::Gone(life) => {
                tracing::debug!(?life, "gone");
                if let Some(manager) = self.manager() {
                    manager.node_gone();
                }
                None
            }
        }
    }

    fn heed_wishes(
        &self,
        manager: &Arc<LockManager>,
        stubborn: &mut HashMap<(Me, LockNo), (u32, u64)>,
    ) {
        let wishes: Vec<(Me, u64, LockNo, Mode)> = {
            let beats = self.beats.lock();
            let others = beats.values().map(|b| &b.0).filter(|b| b.life != self.me);
            let flat = |b: &Heartbeat| {
                let (life, sequence) = (b.life, b.sequence);
                b.wishes.iter().map(move |w| (life, sequence, w.0, w.1)).collect::<Vec<_>>()
            };
            others.flat_map(flat).collect()
        };
        stubborn.retain(|key, _| wishes.iter().any(|w| (w.0, w.2) == *key));
        for (from, sequence, lock, mode) in wishes {
            let (count, last) = stubborn.entry((from, lock)).or_insert((0, 0));
            if *last == sequence {
                continue;
            }
            (*count, *last) = (*count + 1, sequence);
            if *count % STUBBORN_BEATS == 0 {
                manager.hint(lock, Hint::Wanted(mode));
            } else {
                manager.wish(lock, mode);
            }
        }
    }
}

fn read_slots(store: &dyn NodeStore) -> Result<Vec<SlotRecord>, LockError> {
    let bytes = store.read_slots().map_err(LockError::NodeStore)?;
    let sectors = bytes.chunks_exact(store.sector_len());
    (0..store.slots())
        .map(NodeId)
        .zip(sectors)
        .map(|(slot, s)| decode_slot(store, slot, s))
        .collect()
}

/// A record read in one piece with others may be torn; alone it is not for long.
fn decode_slot(store: &dyn NodeStore, slot: NodeId, bytes: &[u8]) -> Result<SlotRecord, LockError> {
    let mut decoded = SlotRecord::decode(bytes, slot);
    for pause in torn_pauses() {
        if !matches!(decoded, Err(FormatError::ChecksumMismatch { .. })) {
            break;
        }
        std::thread::sleep(pause);
        let again = store.read_slot(slot).map_err(LockError::NodeStore)?;
        decoded = SlotRecord::decode(&again, slot);
    }
    decoded.map_err(|source| LockError::Slot { slot, source })
}

fn write_slot(
    store: &dyn NodeStore,
    expected: &SlotRecord,
    new: &SlotRecord,
) -> Result<bool, LockError> {
    let slot = new.life.slot;
    let mut bytes = vec![0; 2 * store.sector_len()];
    let (old_bytes, new_bytes) = bytes.split_at_mut(store.sector_len());
    expected.encode(old_bytes);
    new.encode(new_bytes);
    match store.compare_and_write_slot(slot, old_bytes, new_bytes) {
        Ok(CawOutcome::Written) => Ok(true),
        // Our own earlier attempt, whose answer was lost, may be what stands.
        Ok(CawOutcome::Mismatch(stands)) => Ok(stands == new_bytes),
        Err(_) => {
            let stands = store.read_slot(slot).map_err(LockError::NodeStore)?;
            Ok(stands == new_bytes)
        }
    }
}

fn describe(damage: SlotDamage) -> String {
    format!("its {} is damaged (block {})", damage.part.name(), damage.block)
}

/// Once for each damage, by the node that met it.
fn say_damage(record: &SlotRecord) {
    let Some(damage) = record.damage else { return };
    let locks = if damage.replayed { "" } else { "; what it held locked gives EIO" };
    tracing::error!(
        node = ?record.life,
        "a dead node cannot be recovered: {}{locks}; run `braid check --repair` after unmounting all nodes",
        describe(damage),
    );
}

/// What is needed to claim a slot.
struct Claim<'a> {
    store: &'a dyn NodeStore,
    options: &'a JoinOptions,
    identity: &'a HostIdentity,
}

type Claimed = (SlotRecord, HintSocket, Box<dyn Send + Sync>);

impl Claim<'_> {
    fn any(&self, recover: &dyn Recover) -> Result<Claimed, LockError> {
        let slots = self.store.slots();
        let records = match self.options.slot {
            Some(slot) if slot.0 >= slots => return Err(LockError::NoSuchSlot { slot, slots }),
            Some(slot) => {
                let bytes = self.store.read_slot(slot).map_err(LockError::NodeStore)?;
                vec![decode_slot(self.store, slot, &bytes)?]
            }
            None => read_slots(self.store)?,
        };
        for record in records.iter().filter(|r| r.state == SlotState::Free) {
            if let Some(claimed) = self.free(record, recover)? {
                return Ok(claimed);
            }
        }
        let quiet = self.quiet(&records)?;
        let mut damaged = None;
        for record in records.iter().filter(|r| r.state != SlotState::Free) {
            match self.dead(record, &quiet, recover) {
                Ok(Some(claimed)) => return Ok(claimed),
                Ok(None) => {}
                // Another slot will do.
                Err(e @ LockError::Damaged { .. }) => damaged = damaged.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        if let Some(e) = damaged {
            return Err(e);
        }
        match (self.options.slot, records.first()) {
            (Some(slot), Some(r)) => {
                Err(LockError::SlotTaken { slot, holder: r.life, host: r.host.as_str().into() })
            }
            _ => Err(LockError::NoFreeSlot { slots }),
        }
    }

    /// Takes a free slot, unless another is faster.
    fn free(
        &self,
        record: &SlotRecord,
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        let slot = record.life.slot;
        let Some(life) = self.store.lock_life(slot).map_err(LockError::NodeStore)? else {
            return Ok(None);
        };
        recover.confirm().map_err(|e| LockError::Replaced { source: e.into() })?;
        let (mine, socket) = self.active(record)?;
        Ok(write_slot(self.store, record, &mine)?.then_some((mine, socket, life)))
    }

    /// Takes over the slot of a node of this host that is provably dead, after recovering it.
    fn dead(
        &self,
        record: &SlotRecord,
        quiet: &[NodeId],
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        let same_boot = record.boot_id == self.identity.boot_id;
        // While another recovers it, it will be free soon; that one may be dead too, though.
        let recovered_by_other = record.recoverer.is_some_and(|by| by.slot != record.life.slot);
        let fenced = (same_boot || quiet.contains(&record.life.slot)) && !recovered_by_other;
        if !fenced {
            // Found by a node that may live yet, or has left since.
            return record.damage.map_or(Ok(None), |d| {
                let source: Box<dyn std::error::Error + Send + Sync> = describe(d).into();
                Err(LockError::Damaged { node: record.life, source: source.into() })
            });
        }
        let slot = record.life.slot;
        let Some(life) = self.store.lock_life(slot).map_err(LockError::NodeStore)? else {
            return Ok(None);
        };
        recover.confirm().map_err(|e| LockError::Replaced { source: e.into() })?;
        let (mut mine, socket) = self.active(record)?;
        let mut taking = mine.clone();
        taking.state = SlotState::Recovering;
        taking.recoverer = Some(mine.life);
        taking.life = record.life;
        taking.damage = record.damage;
        if !write_slot(self.store, record, &taking)? {
            return Ok(None);
        }
        tracing::info!(dead = ?record.life, "recovering a dead node in order to take its slot");
        match recover.recover(record.life) {
            Ok(()) => {}
            Err(NotRecovered::Damaged { damage, source }) => {
                mine.nonce = mine.nonce.wrapping_add(1);
                let noted =
                    SlotRecord { damage: Some(damage), nonce: mine.nonce, ..taking.clone() };
                write_slot(self.store, &taking, &noted)?;
                say_damage(&noted);
                return Err(LockError::Damaged { node: record.life, source: source.into() });
            }
            Err(NotRecovered::Failed(e)) => {
                return Err(LockError::Recovery { node: record.life, source: e.into() });
            }
        }
        mine.nonce = mine.nonce.wrapping_add(1);
        Ok(write_slot(self.store, &taking, &mine)?.then_some((mine, socket, life)))
    }

    /// Slots of earlier boots of this host that stay silent for a while (see
    /// [`Watch::EARLIER_BOOT_BEATS`]).
    fn quiet(&self, records: &[SlotRecord]) -> Result<Vec<NodeId>, LockError> {
        let earlier = |r: &&SlotRecord| {
            r.state != SlotState::Free
                && r.boot_id != self.identity.boot_id
                && r.machine_id == self.identity.machine_id
                && r.machine_id != [0; 16]
                && r.host == self.identity.host
        };
        let slots: Vec<NodeId> = records.iter().filter(earlier).map(|r| r.life.slot).collect();
        if slots.is_empty() {
            return Ok(slots);
        }
        let before = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        std::thread::sleep(self.options.beat * (Watch::EARLIER_BOOT_BEATS + 1));
        let after = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let len = self.store.sector_len();
        let same = |slot: &NodeId| {
            let range = usize::from(slot.0) * len..(usize::from(slot.0) + 1) * len;
            before.get(range.clone()) == after.get(range)
        };
        Ok(slots.into_iter().filter(same).collect())
    }

    /// The record of the next life of a slot, and its socket.
    fn active(&self, record: &SlotRecord) -> Result<(SlotRecord, HintSocket), LockError> {
        let slot = record.life.slot;
        // A recoverer that died while it took the slot over had named its own life already.
        let last = record.recoverer.filter(|by| by.slot == slot).unwrap_or(record.life);
        let life = Me { slot, incarnation: Incarnation(last.incarnation.0.wrapping_add(1)) };
        let socket = HintSocket::bind(self.store.fs_uuid(), life).map_err(|e| LockError::Os {
            what: "cannot make the hint socket",
            source: Arc::new(e),
        })?;
        let uuid = uuid::Uuid::new_v4();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mine = SlotRecord {
            life,
            state: SlotState::Active,
            recoverer: None,
            pid: std::process::id(),
            nonce: uuid.as_u64_pair().0,
            since: since.map_or(0, |d| d.as_secs()),
            node_uuid: uuid.into_bytes(),
            boot_id: self.identity.boot_id,
            machine_id: self.identity.machine_id,
            host: self.identity.host.clone(),
            address: socket.address(),
            mount_point: self.options.mount_point.display().to_string(),
            damage: None,
        };
        Ok((mine, socket))
    }
}
