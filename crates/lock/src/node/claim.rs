//! Claims a slot for a new life: does what the steps of a join say ([`super::join`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_device::Moment;
use braid_format::NodeId;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_pool::Reservable;
use parking_lot::Mutex;

use super::join::{Action, Event, Join, Joiner, Look, longest_wait};
use super::join_watcher::{JoinWatcher, PACE};
use super::life::names_key;
use super::observation::tag_of;
use super::slot_write::Outcome;
use super::slots::{
    Slots, Unreadable, decode_slot, first_places, log_damage, log_new, read_slots, write_slot,
};
use super::{HostIdentity, JoinOptions, NodeStore, NotRecovered, Recover};
use crate::Life;
use crate::error::LockError;
use crate::hints::Hints;

/// Takes away the keys of lives that are over, and those of others who have no business here.
pub(super) fn sweep(store: &dyn NodeStore, own: u64) {
    if own == 0 {
        return;
    }
    // Whose key a slot names that cannot be read nobody knows.
    let named = |slots: &Slots, key| {
        !slots.unreadable.is_empty()
            || slots.records.iter().any(|r| names_key(store.fs_uuid(), r, key))
    };
    let swept = read_slots(store, &[]).and_then(|slots| {
        // The slots may have changed hands since they were read; in doubt a key stays.
        let keep = |key| {
            named(&slots, key) || read_slots(store, &[]).map_or(true, |slots| named(&slots, key))
        };
        store.pool().sweep(&keep).map_err(LockError::NodeStore)
    });
    if let Err(e) = swept {
        tracing::warn!("old registrations stay: {e}");
    }
}

/// Until `next`, or until there is something to do.
fn rest(next: Instant, is_due: impl Fn() -> bool) {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        std::thread::park_timeout(left.min(PACE));
        if left <= PACE || is_due() {
            return;
        }
    }
}

fn sleep(pause: Duration) -> Event {
    std::thread::sleep(pause);
    Event::Done
}

fn await_behind(slot: NodeId, pid: Option<u32>, pause: Duration) -> Event {
    if let Some(pid) = pid {
        tracing::warn!(
            "node {slot} of this host (process {pid}) has not taken note of a change of the pool's members yet: waiting for it"
        );
    }
    sleep(pause)
}

/// A slot, claimed.
pub(super) struct Claimed {
    /// What it says.
    pub mine: SlotRecord,
    /// Before that was issued: until then nobody can have found this node silent.
    pub begun: Moment,
    /// Where it hears hints.
    pub hints: Hints,
    /// Its liveness lock.
    pub life: Box<dyn Send + Sync>,
    /// The dead nodes that were recovered for it.
    pub recovered: Vec<Life>,
}

/// Claims a slot.
pub(super) struct Claim<'a> {
    store: &'a dyn NodeStore,
    options: &'a JoinOptions,
    identity: &'a HostIdentity,
    recover: &'a dyn Recover,
    /// The liveness lock that it has for now.
    life: Option<Box<dyn Send + Sync>>,
    hints: Option<Hints>,
    /// Before the slot was written last.
    begun: Moment,
    /// Slots that could not be read at the last look; each is logged once.
    unreadable: Vec<Unreadable>,
    recovered: Vec<Life>,
}

impl<'a> Claim<'a> {
    /// For `options`, by the host `identity`; dead nodes are recovered by `recover`.
    pub fn new(
        store: &'a dyn NodeStore,
        options: &'a JoinOptions,
        identity: &'a HostIdentity,
        recover: &'a dyn Recover,
    ) -> Self {
        let (life, hints, begun, unreadable) = (None, None, Moment::now(), Vec::new());
        let recovered = Vec::new();
        Self { store, options, identity, recover, life, hints, begun, unreadable, recovered }
    }

    /// Claims the slot that was asked for, or any. If all are taken, but another node is recovering the
    /// dead node of one, waits until that slot is free, as long as that node shows heartbeats.
    ///
    /// # Errors
    /// `SlotTaken` or `NoFreeSlot` if no slot comes free; else what the store or a recovery says.
    pub fn run(mut self) -> Result<Claimed, LockError> {
        let mut join = Join::new(Joiner {
            identity: self.identity.clone(),
            timing: self.options.timing,
            slot: self.options.slot,
            slots: self.store.slots(),
            sector_len: self.store.sector_len(),
            fs: self.store.fs_uuid(),
        });
        let (mut event, begun) = (Event::Begin, Instant::now());
        loop {
            event = match join.step(begun.elapsed(), event) {
                Action::End(Ok(mine)) => return self.claimed(*mine),
                Action::End(Err(e)) => return Err(e),
                action => self.perform(action).unwrap_or_else(Event::Failed),
            };
        }
    }
    fn claimed(self, mine: SlotRecord) -> Result<Claimed, LockError> {
        let (Some(hints), Some(life)) = (self.hints, self.life) else {
            return Err(LockError::Withdrawn);
        };
        Ok(Claimed { mine, begun: self.begun, hints, life, recovered: self.recovered })
    }

    fn perform(&mut self, action: Action) -> Result<Event, LockError> {
        let store = self.store;
        Ok(match action {
            Action::ReadSlots => {
                let Slots { records, unreadable } = read_slots(store, &self.unreadable)?;
                log_new(&unreadable, &self.unreadable);
                self.unreadable = unreadable;
                self.look(records)
            }
            Action::ReadSlot(slot) => {
                let bytes = store.read_slot(slot).map_err(LockError::NodeStore)?;
                self.look(vec![decode_slot(store, slot, &bytes)?])
            }
            Action::ReadHeartbeats => {
                Event::Heartbeats(store.read_heartbeats().map_err(LockError::NodeStore)?)
            }
            Action::ReadHeartbeatCopies => {
                Event::Copies(store.heartbeat_copies().map_err(LockError::NodeStore)?)
            }
            Action::IsLifeLocked(slot) => {
                Event::Is(store.life_locked(slot).map_err(LockError::NodeStore)?)
            }
            Action::IsLifePartlyLocked(slot) => {
                Event::Is(store.life_partly_locked(slot).map_err(LockError::NodeStore)?)
            }
            Action::IsBehind(record) => Event::Is(self.is_behind(&record)?),
            Action::AwaitBehind { slot, pid, pause } => await_behind(slot, pid, pause),
            Action::Sleep(pause) => sleep(pause),
            Action::AwaitSlot { slot, by, pause } => self.await_slot(slot, by, pause),
            Action::LockLife(slot) => {
                self.life = store.lock_life(slot).map_err(LockError::NodeStore)?;
                Event::Is(self.life.is_some())
            }
            Action::Confirm => {
                let confirmed = self.recover.confirm();
                confirmed.map_err(|e| LockError::Replaced { source: e.into() })?;
                Event::Done
            }
            Action::Prepare(life) => Event::Prepared(Box::new(self.prepare(life)?)),
            Action::Register(key) => Event::Registered(self.register(key)?),
            Action::IsFenced(record) => Event::Is(self.options.proofs.of(&record).is_some()),
            Action::Fence(record, own) => Event::Is(self.fence(&record, own)),
            Action::Write { expected, new } => Event::Wrote(self.write(&expected, &new)?),
            Action::TakeKey(record, own) => {
                self.options.fencer(store, own, self.identity).forget(&record);
                Event::Done
            }
            Action::Follow => {
                store.pool().follow().map_err(LockError::NodeStore)?;
                Event::Done
            }
            Action::Recover { dead, mine } => Event::Recovered(self.recover(&dead, &mine)),
            Action::LetGo { registered } => {
                if registered {
                    store.pool().unregister();
                }
                (self.life, self.hints) = (None, None);
                Event::Done
            }
            Action::End(_) => Event::Done,
        })
    }

    /// Recovers a dead node while the own slot, which is `mine`, goes on beating.
    fn recover(&mut self, record: &SlotRecord, mine: &SlotRecord) -> Result<(), NotRecovered> {
        let (recover, dead, by) = (self.recover, record.life, mine.life);
        tracing::info!(%dead, "recovering a dead node in order to take its slot");
        let all = || {
            super::await_clients(record);
            recover.recover(dead, by).and_then(|()| recover.finish(dead, by))
        };
        let done = self.while_beating(mine, all);
        if done.is_ok() {
            self.recovered.push(dead);
        }
        done
    }

    fn look(&self, records: Vec<SlotRecord>) -> Event {
        let (places, by_lock) = (self.store.lock_places(), self.store.emulates_compare_and_write());
        Event::Slots(Look { records, places, by_lock })
    }

    fn await_slot(&self, slot: NodeId, by: Option<Life>, pause: Duration) -> Event {
        if let Some(by) = by {
            self.log_waits(slot, by);
        }
        sleep(pause)
    }

    /// Whether the node of a slot said last that it uses another epoch of the pool than this one does.
    fn is_behind(&self, record: &SlotRecord) -> Result<bool, LockError> {
        self.store.pool().follow().map_err(LockError::NodeStore)?;
        let beats = self.store.read_heartbeats().map_err(LockError::NodeStore)?;
        let slot = record.life.slot;
        let sector = beats.chunks_exact(self.store.sector_len()).nth(usize::from(slot.0));
        let beat = sector.and_then(|s| Heartbeat::decode(s, slot).ok());
        let of_it = beat.filter(|beat| beat.life == record.acting());
        Ok(of_it.is_some_and(|beat| tag_of(&beat) != self.store.pool().epoch()))
    }

    /// For who mounts: `braid mount` shows warnings.
    fn log_waits(&self, slot: NodeId, by: Life) {
        let taken = match self.options.slot {
            Some(_) => format!("node slot {slot} is taken"),
            None => format!("all {} node slots are taken", self.store.slots()),
        };
        tracing::warn!(
            "{taken}; waiting for slot {slot}: it is free when node {} has recovered the dead node that had it; the mount waits as long as that node shows heartbeats, for {} s at most",
            by.slot,
            longest_wait(self.options.timing).as_secs()
        );
    }

    /// Registers the key of a life with every member, before any slot names it.
    fn register(&self, key: u64) -> Result<u64, LockError> {
        match self.store.pool().reservable() {
            Reservable::None => Ok(0),
            Reservable::Some(others) => {
                let others = others.join(", ");
                tracing::warn!(
                    "reservations cannot be used for fencing, by this node or against it: not supported by {others}"
                );
                Ok(0)
            }
            Reservable::All => self.store.pool().register(key).map_err(LockError::NodeStore),
        }
    }

    /// Shuts a silent node out from the members, if that can be. `own`: this node's key.
    fn fence(&self, record: &SlotRecord, own: u64) -> bool {
        if self.options.proofs.of(record).is_some() {
            return true;
        }
        let fencer = self.options.fencer(self.store, own, self.identity);
        match fencer.fence(record, &|| true) {
            Ok(method) => {
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(of_node = %record.life, "cannot take its slot, it is not fenced: {e}");
                false
            }
        }
    }

    fn write(&mut self, expected: &SlotRecord, new: &SlotRecord) -> Result<Outcome, LockError> {
        self.begun = Moment::now();
        let stands = write_slot(self.store, expected, new)?;
        if new.damage != expected.damage && new.damage.is_some() {
            log_damage(new);
        }
        Ok(if stands { Outcome::Committed } else { Outcome::Lost })
    }

    /// Runs `work` of a life that is not in its slot yet: it says so in heartbeats all the same, and
    /// which epoch of the pool it uses, or nobody could change the pool meanwhile. Who is silent
    /// meanwhile is fenced: the work may wait for that.
    fn while_beating(
        &self,
        mine: &SlotRecord,
        work: impl FnOnce() -> Result<(), NotRecovered>,
    ) -> Result<(), NotRecovered> {
        let done = AtomicBool::new(false);
        let said = Mutex::new(Moment::now());
        let Self { store, options, identity, recover, .. } = *self;
        let may_act = || Moment::now().since(*said.lock()) < options.timing.lease();
        let join_watcher =
            JoinWatcher { store, options, identity, recover, mine, may_act: &may_act };
        std::thread::scope(|s| {
            let thread = || std::thread::Builder::new();
            let looking = thread().spawn_scoped(s, || join_watcher.run(&done));
            let beating = thread().spawn_scoped(s, || {
                let mut sector = vec![0; store.sector_len()];
                for sequence in 1.. {
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                    if let Err(e) = store.pool().follow() {
                        tracing::error!("the pool was changed: {e}");
                        return;
                    }
                    let tag = store.pool().epoch();
                    let wishes = recover.wishes();
                    let beat = Heartbeat {
                        life: mine.life,
                        pool_epoch: tag.epoch,
                        pool_change: tag.change,
                        sequence,
                        free_delta: 0,
                        inode_delta: 0,
                        meta_delta: 0,
                        stuck: None,
                        freeze: None,
                        followed: None,
                        knows: options.knows,
                        wishes,
                    };
                    beat.encode(&mut sector);
                    let issued = Moment::now();
                    match store.write_heartbeat(mine.life.slot, &sector) {
                        Ok(()) => *said.lock() = issued,
                        Err(e) => tracing::warn!("heartbeat: {e}"),
                    }
                    let next = Instant::now() + options.timing.beat();
                    rest(next, || done.load(Ordering::Acquire) || recover.wishes() != beat.wishes);
                }
            });
            let result = match (&looking, &beating) {
                (Ok(_), Ok(_)) => work(),
                (Err(e), _) | (_, Err(e)) => {
                    Err(NotRecovered::Failed(format!("cannot start a thread: {e}").into()))
                }
            };
            done.store(true, Ordering::Release);
            for thread in [looking, beating].into_iter().flatten() {
                thread.thread().unpark();
            }
            result
        })
    }

    /// What a slot says of this node as `life`. From now on it hears hints.
    fn prepare(&mut self, life: Life) -> Result<SlotRecord, LockError> {
        let uuid = uuid::Uuid::new_v4();
        let (fs, boot) = (self.store.fs_uuid(), self.identity.boot_id);
        let hints = Hints::bind(fs, life, uuid.into_bytes(), boot, self.options.hints)
            .map_err(|(what, e)| LockError::Os { what, source: Arc::new(e) })?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mine = SlotRecord {
            life,
            state: SlotState::Active,
            recoverer: None,
            pid: std::process::id(),
            nonce: uuid::Uuid::new_v4().as_u64_pair().0,
            since: since.map_or(0, |d| d.as_secs()),
            node_uuid: uuid.into_bytes(),
            boot_id: self.identity.boot_id,
            machine_id: self.identity.machine_id,
            host: self.identity.host.clone(),
            address: hints.address(),
            mount_point: self.options.mount_point.display().to_string(),
            replayed: false,
            damage: None,
            vouched: false,
            serves: self.options.serves,
            emulates_compare_and_write: self.store.emulates_compare_and_write(),
            io_timeout: self.options.timing.milliseconds(),
            fence_key: 0,
            named: None,
            lock_places: first_places(self.store.held_places(life.slot)),
        };
        self.hints = Some(hints);
        Ok(mine)
    }
}
