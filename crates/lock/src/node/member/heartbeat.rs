//! The heartbeat, and the lease that goes with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_device::Moment;
use braid_format::LockNo;
use braid_format::node::{FreezeOrder, Heartbeat, RawHeartbeat, SlotRecord, SlotState};
use braid_pool::EpochTag;

use super::super::lease::{Action, Event, Lease, Loss};
use super::super::slots::decode_slot;
use super::pace::has_news;
use super::state::NodeState;
use crate::Mode;
use crate::error::{LockError, StoreError};
use crate::glock::LockManager;

impl NodeState {
    /// The heartbeat's life. `begun`: when the slot's record was issued.
    pub(super) fn beat(&self, begun: Moment) {
        let mut beat = Heartbeat {
            life: self.me,
            pool_epoch: 0,
            pool_change: 0,
            // After all that it said while it took the slot over: a copy that is behind is older.
            sequence: 1 << 32,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: self.options.knows,
            wishes: Vec::new(),
        };
        let mut sector = vec![0; self.store.sector_len()];
        let mut lease = Lease::new(self.options.timing, begun.since_boot());
        self.lease(begun, true);
        // Who rests sees this node at once.
        self.call_for_looks();
        loop {
            let before = beat.clone();
            beat.sequence += 1;
            if self.watcher.lock().is_none()
                && let Err(e) = self.store.pool().follow()
            {
                // Until the watcher looks, nobody else here does.
                self.withdraw(&format!("it cannot follow a change of the pool: {e}"));
            }
            let tag = self.store.pool().epoch();
            EpochTag { epoch: beat.pool_epoch, change: beat.pool_change } = tag;
            // In another epoch it may be another member, or able to be filled.
            beat.stuck = self.stuck.lock().filter(|(_, at)| *at == tag).map(|(member, _)| member);
            let deltas = *self.deltas.lock();
            (beat.free_delta, beat.inode_delta) = (deltas.free, deltas.inodes);
            beat.meta_delta = deltas.meta;
            (beat.freeze, beat.followed) = self.freezes.words();
            beat.wishes = self.wishes();
            self.heartbeat_hints.take(&mut beat.wishes);
            beat.encode(&mut sector);
            let calls = has_news(Some(&before), &beat) && self.pace.stir();
            self.write(&sector, beat.freeze, &mut lease);
            if calls {
                self.call_for_looks();
            }
            if self.rest() {
                return;
            }
        }
    }

    /// See [`super::NodeStore::remember_heartbeat`]. Without it images are found less often, and nothing else is amiss.
    pub(super) fn remember_heartbeat(&self, ask_for_new: Option<&dyn Fn()>) {
        if let Err(e) = self.store.remember_heartbeat(ask_for_new) {
            tracing::warn!("older copies of the devices may not be found: {e}");
        }
    }

    /// Until the next heartbeat; true if there is none.
    fn rest(&self) -> bool {
        let since = Instant::now();
        let (stopped, condition) = &self.stop;
        let mut stop = stopped.lock();
        loop {
            if *stop {
                return true;
            }
            let rest = self.heartbeat_hints.rest(self.pace.heartbeat());
            let left = rest.saturating_sub(since.elapsed());
            if left.is_zero() || self.hurry.swap(false, Ordering::AcqRel) {
                return false;
            }
            condition.wait_for(&mut stop, left);
        }
    }

    /// Writes a heartbeat; with it the lease begins anew.
    fn write(&self, sector: &[u8], freeze: Option<FreezeOrder>, lease: &mut Lease) {
        if lease.is_lost() {
            return;
        }
        let (issued, followed) = (Moment::now(), self.is_followed());
        let written = self.store.write_heartbeat(self.me.slot, sector);
        if written.is_ok() {
            *self.freezes.said.lock() = freeze;
        }
        let mut event = match &written {
            Ok(()) => Event::Written(issued.since_boot()),
            Err(e) if e.is_fenced() => Event::Refused,
            Err(e) => {
                tracing::warn!("heartbeat: {e}");
                Event::Failed
            }
        };
        loop {
            match lease.step(Moment::now().since_boot(), event) {
                Some(Action::Check) => event = Event::Checked(self.is_still_ours()),
                Some(Action::Extend(_)) => return self.lease(issued, followed),
                Some(Action::Withdraw(loss)) => return self.lose(loss, written.err().as_ref()),
                None => return,
            }
        }
    }

    fn lose(&self, loss: Loss, why: Option<&StoreError>) {
        match (loss, why) {
            (Loss::Fenced, Some(e)) => self.expelled(&format!("it has been fenced: {e}")),
            (Loss::Fenced, None) => self.expelled("it has been fenced"),
            (Loss::Replaced, _) => {
                self.expelled("it could not say that it lives, and others have acted on that");
            }
            (Loss::Silent, Some(e)) => {
                self.withdraw(&format!("its heartbeat cannot be written: {e}"));
            }
            (Loss::Silent, None) => self.withdraw("its heartbeat cannot be written"),
        }
    }

    /// This node said at `since` that it lives, and may act for a while. `followed`: the others were sure to look for
    /// that where it was said.
    pub(super) fn lease(&self, since: Moment, followed: bool) {
        let until = since + self.options.timing.lease();
        *self.lease.lock() = until;
        if followed {
            *self.seen_until.lock() = until;
        }
        self.store.pool().lease(until);
        self.store.pool().answers_within(self.options.timing.io_timeout());
        if self.lapsed.load(Ordering::SeqCst) {
            self.alarm.ring();
        }
    }

    /// Asked after a lease was over: whether the slot is this node's, and so are its keys.
    fn is_still_ours(&self) -> bool {
        let slot = self.me.slot;
        let ours = |r: &SlotRecord| r.life == self.me && r.state == SlotState::Active;
        loop {
            let read = self.store.read_slot(slot).map_err(LockError::NodeStore);
            match read.and_then(|s| decode_slot(&*self.store, slot, &s)) {
                Ok(record) => {
                    let upheld = self.store.pool().uphold();
                    return ours(&record) && !upheld.is_err_and(|e| e.is_fenced());
                }
                Err(e) => tracing::warn!("its own slot: {e}"),
            }
            let mut stop = self.stop.0.lock();
            if *stop {
                return false;
            }
            self.stop.1.wait_for(&mut stop, self.options.timing.beat());
        }
    }

    /// What threads of this node have waited for longest, regions first: all else may wait for
    /// them.
    fn wishes(&self) -> Vec<(LockNo, Mode)> {
        let most = RawHeartbeat::WISHES;
        let of = |m: Option<Arc<LockManager>>| m.map_or_else(Vec::new, |m| m.wishes(most));
        let mut all = of(self.regions.get().and_then(|r| r.1.upgrade()));
        all.extend(of(self.manager()));
        all.truncate(most);
        all
    }
}
