//! What all threads of this node share: its slot, what it has seen of the others, its lease, whether it
//! has withdrawn.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use braid_device::Moment;
use braid_format::node::SlotRecord;
use braid_format::{LockNo, MemberIndex, NodeId};
use braid_pool::EpochTag;
use parking_lot::{Condvar, Mutex, RwLock};

use super::alarm::Alarm;
use super::freezes::Freezes;
use super::heartbeat_hints::HeartbeatHints;
use super::pace::Pace;
use crate::Life;
use crate::error::LockError;
use crate::glock::LockManager;
use crate::hints::{Hints, Receivers};
use crate::node::cached::Cached;
use crate::node::company::{Company, Since};
use crate::node::life::{has_ended, is_over};
use crate::node::observation::Heartbeats;
use crate::node::slots::{Unreadable, write_slot};
use crate::node::watch::WatchEvent;
use crate::node::{Deltas, HostIdentity, JoinOptions, NodeStore, Recover};
use crate::peers::Liveness;

pub(in crate::node) struct NodeState {
    pub(super) me: Life,
    pub(super) store: Arc<dyn NodeStore>,
    pub(super) options: JoinOptions,
    pub(super) identity: HostIdentity,
    pub(super) recover: Arc<dyn Recover>,
    pub(in crate::node) hints: Hints,
    pub(super) heartbeat_hints: HeartbeatHints,
    pub(super) pace: Pace,
    /// Lives of which it was said that messages for them go through the devices, one for each slot.
    pub(super) slow_ways: Mutex<HashMap<NodeId, Life>>,
    /// The threads that receive hints by the Unix socket.
    pub(super) receivers: Receivers,
    /// This node's slot, as it wrote it last. Held while it writes it.
    pub(super) mine: Mutex<SlotRecord>,
    /// Its key, registered with every member; 0: with none.
    pub(super) key: u64,
    pub(super) origin: Instant,
    pub(super) nonces: AtomicU64,
    pub(super) manager: OnceLock<Weak<LockManager>>,
    /// Locks of regions of the pool have a manager of their own.
    pub(super) regions: OnceLock<(Range<LockNo>, Weak<LockManager>)>,
    pub(super) slots: RwLock<Vec<Cached>>,
    pub(super) beats: Mutex<Heartbeats>,
    pub(super) deltas: Mutex<Deltas>,
    /// The member that this node could not fill or move, and in which epoch.
    pub(super) stuck: Mutex<Option<(MemberIndex, EpochTag)>>,
    /// The freeze of this node or of another one, if there is one.
    pub(super) freezes: Freezes,
    pub(super) stop: (Mutex<bool>, Condvar),
    /// The slots as they were when this node had joined.
    pub(super) at_join: OnceLock<Vec<SlotRecord>>,
    /// The lives that this node has recovered.
    pub(super) recovered: Mutex<Vec<Life>>,
    /// The next heartbeat has news.
    pub(super) hurry: AtomicBool,
    /// Why this node has withdrawn, if it has.
    pub(super) withdrawn: OnceLock<Arc<str>>,
    /// The watcher is at work on a dead node's slot.
    pub(super) has_claimed: AtomicBool,
    /// Until when this node may act.
    pub(super) lease: Mutex<Moment>,
    /// Until when what it has read is still true: as the lease, but only heartbeats count that others were sure to
    /// look for ([`NodeState::is_followed`]).
    pub(super) seen_until: Mutex<Moment>,
    /// Its end was said.
    pub(super) lapsed: AtomicBool,
    pub(super) alarm: Alarm,
    /// Slots that could not be read at the last look.
    pub(super) unreadable: Mutex<Vec<Unreadable>>,
    /// The pool's epoch in use here, as the watcher saw it, and since when.
    pub(super) epoch_since: Mutex<(EpochTag, Instant)>,
    /// The watcher looks from now on, or none ever will.
    pub(super) is_watched: AtomicBool,
    /// Wakes the watcher: `None` to end.
    pub(super) watcher: Mutex<Option<Sender<Option<WatchEvent>>>>,
    /// What the watcher has started.
    pub(super) tasks: Mutex<Vec<JoinHandle<()>>>,
    /// One of these follows a change of the pool.
    pub(super) following: AtomicBool,
    /// One of these says where the liveness lock is now.
    pub(super) placing: AtomicBool,
}

impl NodeState {
    pub(super) fn nonce(&self) -> u64 {
        self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
    /// The next heartbeat is written at once.
    pub(super) fn announce(&self) {
        self.pace.stir();
        self.hurry.store(true, Ordering::Release);
        let _stop = self.stop.0.lock();
        self.stop.1.notify_all();
    }
    pub(super) fn stopped(&self) -> bool {
        *self.stop.0.lock()
    }
    pub(super) fn manager(&self) -> Option<Arc<LockManager>> {
        self.manager.get()?.upgrade()
    }
    pub(super) fn managers(&self) -> impl Iterator<Item = Arc<LockManager>> {
        let regions = self.regions.get().and_then(|r| r.1.upgrade());
        self.manager().into_iter().chain(regions)
    }
    /// Whose lock it is.
    pub(super) fn is_of_region(&self, lock: LockNo) -> bool {
        self.regions.get().is_some_and(|(range, _)| range.contains(&lock))
    }
    pub(super) fn manager_of(&self, lock: LockNo) -> Option<Arc<LockManager>> {
        match self.regions.get() {
            Some((range, manager)) if range.contains(&lock) => manager.upgrade(),
            _ => self.manager(),
        }
    }
    pub(super) fn liveness(&self, life: Life) -> Liveness {
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

    /// Reads the slot: what is kept of it may be of before.
    pub(super) fn life_has_ended(&self, life: Life) -> bool {
        let is_slot = usize::from(life.slot.0) < self.slots.read().len();
        let read = is_slot.then(|| Cached::read(&*self.store, life.slot)).flatten();
        read.is_some_and(|cached| has_ended(&cached.record, life))
    }

    /// Reads all slots. One that cannot be read is left out.
    pub(super) fn all_slots(&self) -> Vec<SlotRecord> {
        let slots = (0..self.store.slots()).map(NodeId);
        slots.filter_map(|slot| Cached::read(&*self.store, slot)).map(|c| c.record).collect()
    }
    /// Who else can have used the pool since `life` ended. Reads the slots.
    pub(super) fn company_since(&self, life: Life) -> Company {
        let at_join = self.at_join.get().map_or(&[][..], Vec::as_slice);
        if at_join.len() < usize::from(self.store.slots()) {
            return Company::Others;
        }
        let (now, recovered) = (self.all_slots(), self.recovered.lock().clone());
        Since { me: self.me, at_join, now: &now, recovered: &recovered }.company(life)
    }

    /// Writes a slot record; an unknown outcome is settled by reading.
    pub(super) fn write_slot(
        &self,
        expected: &SlotRecord,
        new: &SlotRecord,
    ) -> Result<bool, LockError> {
        write_slot(&*self.store, expected, new)
    }

    /// Withdraws, for others have fenced this node: nothing of it that is under way can land, and
    /// perhaps nobody will answer it.
    pub(super) fn expelled(&self, why: &str) {
        self.withdraw(why);
        self.store.pool().sever();
    }

    pub(super) fn withdraw(&self, why: &str) {
        // Before anything fails because of it: whoever meets that can say why.
        let first = self.withdrawn.set(why.into()).is_ok();
        self.store.pool().refuse();
        if !first {
            return;
        }
        tracing::error!(life = %self.me, "this node withdraws: {why}");
        self.alarm.ring();
        for manager in self.managers() {
            manager.withdraw();
        }
    }
}
