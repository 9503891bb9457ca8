//! This node freezes the pool for all nodes, and follows the freezes of others (`super::super::freeze`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{FreezeOrder, FreezeStage, SlotState};
use parking_lot::MutexGuard;

use super::super::await_thaw::FreezeLook;
use super::super::freeze::{Action, missing, orders};
use super::freezes::{FreezeState, NotFrozen, OnFreeze, Own, list};
use super::state::NodeState;
use crate::Life;
use crate::error::LockError;

/// Between two looks at whether the others have answered.
const LOOK: Duration = Duration::from_millis(10);
/// Changes wait for so long, at most, before the pool is frozen. If it is not by then they go on for a moment, and it
/// is tried again: one may wait for another that waits.
const ATTEMPT: Duration = Duration::from_secs(5);

impl NodeState {
    /// After each look: what others freeze is followed, and what has been frozen for long enough is thawed.
    pub(super) fn see_to_freezes(self: &Arc<Self>) {
        let Some(on) = self.freezes.on.get() else { return };
        let orders = self.freeze_orders();
        let mut state = self.freezes.state.lock();
        if let Some(own) = state.own {
            if own.until.is_some_and(|until| Instant::now() >= until) {
                self.end_own(&**on, state, own.order.id);
                tracing::warn!("the time of the freeze is over: the pool is thawed");
            }
            return;
        }
        if state.leaves || (state.busy && state.follower.by().is_none()) {
            return;
        }
        match state.follower.look(self.origin.elapsed(), &orders) {
            None => {}
            Some(Action::Thaw { by, late }) => {
                on.thaw();
                drop(state);
                let why =
                    if late { "its time is over" } else { "it was thawed, or that node is gone" };
                tracing::info!("the pool is not frozen by node {} any more: {why}", by.slot);
                self.announce();
            }
            Some(Action::Follow(by, order)) => {
                state.busy = true;
                drop(state);
                let (this, of_thread) = (self.clone(), on.clone());
                let run = move || this.follow(&*of_thread, by, order);
                match std::thread::Builder::new().name("freeze".to_owned()).spawn(run) {
                    Ok(thread) => self.keep(thread),
                    Err(e) => {
                        self.freezes.state.lock().busy = false;
                        tracing::error!("cannot start a thread to follow a freeze: {e}");
                    }
                }
            }
        }
    }

    fn freeze_orders(&self) -> Vec<(Life, FreezeOrder)> {
        let (slots, beats) = (self.slots.read(), self.beats.lock());
        orders(Some(self.me), slots.iter().map(|s| &s.record), &beats)
    }

    fn follow(&self, on: &dyn OnFreeze, by: Life, order: FreezeOrder) {
        let deadline = Instant::now() + Duration::from_secs(u64::from(order.seconds));
        let done = match order.stage {
            FreezeStage::Prepared => on.prepare().map_err(|e| e.to_string()),
            FreezeStage::Frozen if on.freeze(deadline) => Ok(()),
            FreezeStage::Frozen => Err("changes under way did not end".to_owned()),
        };
        let mut state = self.freezes.state.lock();
        state.busy = false;
        match done {
            Ok(()) if state.follower.reached(by, &order) => {
                drop(state);
                if order.stage == FreezeStage::Frozen {
                    tracing::info!("node {} has frozen the pool: changes wait", by.slot);
                }
                self.announce();
            }
            // It was thawed meanwhile, perhaps before changes began to wait.
            Ok(()) if order.stage == FreezeStage::Frozen => on.thaw(),
            Ok(()) => {}
            Err(e) => tracing::warn!("node {} cannot freeze the pool: {e}", by.slot),
        }
    }

    /// Ends this node's freeze, if it is that one.
    fn end_own(&self, on: &dyn OnFreeze, mut state: MutexGuard<'_, FreezeState>, id: u32) {
        if state.own.is_none_or(|own| own.order.id != id) {
            return;
        }
        state.own = None;
        on.thaw();
        drop(state);
        self.announce();
    }

    /// See [`super::Membership::freeze`].
    pub(super) fn freeze(
        &self,
        (time, patience): (Duration, Duration),
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), NotFrozen> {
        let on = self.freezes.on.get().ok_or(NotFrozen::Busy)?;
        let deadline = Instant::now() + patience;
        loop {
            let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
            let id = u32::try_from(random & u64::from(u32::MAX)).unwrap_or(0);
            let done = self.try_freeze(&**on, (id, time), deadline, given_up);
            let done = if given_up() { done.and(Err(NotFrozen::GivenUp)) } else { done };
            if done.is_err() {
                self.end_own(&**on, self.freezes.state.lock(), id);
            }
            let again = matches!(done, Err(NotFrozen::NoAnswer(_) | NotFrozen::UnderWay));
            if !again
                || given_up()
                || Instant::now() >= deadline
                || self.freezes.state.lock().leaves
            {
                return done;
            }
        }
    }

    /// Once.
    fn try_freeze(
        &self,
        on: &dyn OnFreeze,
        (id, time): (u32, Duration),
        deadline: Instant,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), NotFrozen> {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let patience = deadline.saturating_duration_since(Instant::now());
        let prepared =
            FreezeOrder { stage: FreezeStage::Prepared, id, seconds: seconds(patience) + 1 };
        self.say_own(prepared, None)?;
        unless(given_up)?;
        on.prepare().map_err(NotFrozen::NotStable)?;
        unless(given_up)?;
        self.await_followers(&prepared, deadline, given_up)?;
        let frozen = FreezeOrder { stage: FreezeStage::Frozen, seconds: seconds(time), ..prepared };
        let deadline = deadline.min(Instant::now() + ATTEMPT);
        // From before the others are asked, whose time begins when they see it.
        let until = Instant::now() + time;
        self.say_own(frozen, None)?;
        if !on.freeze(deadline) {
            return Err(NotFrozen::UnderWay);
        }
        self.await_followers(&frozen, deadline, given_up)?;
        self.say_own(frozen, Some(until))
    }

    /// The heartbeat says from now on that this node freezes the pool.
    fn say_own(&self, order: FreezeOrder, until: Option<Instant>) -> Result<(), NotFrozen> {
        let epoch = self.store.pool().epoch();
        let mut state = self.freezes.state.lock();
        self.may_freeze(&state, Some(order.id))?;
        state.own = Some(Own { order, epoch, until });
        drop(state);
        self.announce();
        Ok(())
    }

    /// Whether this node may freeze the pool, as far as it knows, or go on with its freeze `id`.
    fn may_freeze(&self, state: &FreezeState, id: Option<u32>) -> Result<(), NotFrozen> {
        let other = state.own.filter(|own| Some(own.order.id) != id).map(|_| self.me.slot);
        if let Some(by) = other.or(state.follower.by().map(|by| by.0.slot)) {
            return Err(NotFrozen::Already(by));
        }
        if state.busy || state.leaves { Err(NotFrozen::Busy) } else { Ok(()) }
    }

    /// See [`super::Membership::plan_freeze`].
    pub(super) fn plan_freeze(&self) -> Result<(), NotFrozen> {
        self.freezes.on.get().ok_or(NotFrozen::Busy)?;
        self.may_freeze(&self.freezes.state.lock(), None)?;
        self.may_see_all()
    }

    /// Whether each slot can be read, as far as is known: nobody can tell whether a node follows that may be there.
    fn may_see_all(&self) -> Result<(), NotFrozen> {
        let first = self.unreadable.lock().first().map(|u| u.slot);
        first.map_or(Ok(()), |slot| Err(NotFrozen::Unreadable(slot)))
    }

    fn await_followers(
        &self,
        order: &FreezeOrder,
        deadline: Instant,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), NotFrozen> {
        // Who joins takes its slot, and then looks for a freeze. Here it is the other way round: one sees the other.
        while *self.freezes.said.lock() != Some(*order) && Instant::now() < deadline {
            unless(given_up)?;
            std::thread::sleep(LOOK);
        }
        self.read_slots().map_err(|e| NotFrozen::NotSeen(e.to_string()))?;
        loop {
            self.may_see_all()?;
            let first = |(by, other): &&(Life, FreezeOrder)| {
                by.slot < self.me.slot || other.stage == FreezeStage::Frozen
            };
            let others = self.freeze_orders();
            if let Some((by, _)) = others.iter().find(first)
                && order.stage == FreezeStage::Prepared
            {
                return Err(NotFrozen::Already(by.slot));
            }
            let missing = self.missing(order);
            if missing.is_empty() {
                return Ok(());
            }
            unless(given_up)?;
            let leaves = self.stopped() || self.freezes.state.lock().leaves;
            if Instant::now() >= deadline || leaves {
                return Err(NotFrozen::NoAnswer(missing));
            }
            self.pace.stir();
            std::thread::sleep(LOOK);
        }
    }

    fn missing(&self, order: &FreezeOrder) -> Vec<NodeId> {
        let (slots, beats) = (self.slots.read(), self.beats.lock());
        missing(self.me, order, slots.iter().map(|s| &s.record), &beats)
    }

    /// See [`super::Membership::thaw`].
    pub(super) fn thaw(&self) -> Result<(), NotFrozen> {
        let on = self.freezes.on.get().ok_or(NotFrozen::NotHere)?;
        let frozen = |own: &Own| own.until.is_some();
        let own = self.freezes.state.lock().own.filter(frozen).ok_or(NotFrozen::NotHere)?;
        let lasted = self.lasted(&own);
        self.end_own(&**on, self.freezes.state.lock(), own.order.id);
        lasted.map_err(NotFrozen::Broken)
    }

    /// Whether the pool has been frozen until this call: each other node must still say so in a heartbeat that it has
    /// written since.
    fn lasted(&self, own: &Own) -> Result<(), String> {
        let before: BTreeMap<Life, u64> =
            self.beats.lock().iter().map(|beat| (beat.life, beat.sequence)).collect();
        let deadline = Instant::now() + self.options.timing.suspect_after();
        loop {
            if own.until.is_none_or(|until| Instant::now() >= until) {
                return Err("its time is over".to_owned());
            }
            if self.store.pool().epoch() != own.epoch {
                return Err("the pool has been changed, because a member failed".to_owned());
            }
            let missing = self.missing(&own.order);
            if !missing.is_empty() {
                return Err(format!("these nodes do not follow any more: {}", list(&missing)));
            }
            let silent = self.unheard_since(&before);
            if silent.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("these nodes are silent: {}", list(&silent)));
            }
            self.pace.stir();
            std::thread::sleep(LOOK);
        }
    }

    /// The other nodes of which no heartbeat is newer than these.
    fn unheard_since(&self, before: &BTreeMap<Life, u64>) -> Vec<NodeId> {
        let (slots, beats) = (self.slots.read(), self.beats.lock());
        let others = slots.iter().map(|s| &s.record);
        let others = others.filter(|r| r.state != SlotState::Free && r.life != self.me);
        let heard = |life: Life| {
            beats.of(life).is_some_and(|(beat, _)| Some(&beat.sequence) > before.get(&life))
        };
        others.filter(|r| !heard(r.life)).map(|r| r.life.slot).collect()
    }

    /// See [`super::Membership::frozen_by`].
    pub(super) fn frozen_by(&self) -> Option<NodeId> {
        let state = self.freezes.state.lock();
        let waits = |own: &Own| own.order.stage == FreezeStage::Frozen;
        let own = state.own.filter(waits).map(|_| self.me.slot);
        own.or(state.follower.by().filter(|(_, waits)| *waits).map(|(by, _)| by.slot))
    }

    /// See [`super::Membership::leave_freezes`].
    pub(super) fn leave_freezes(&self) {
        let Some(on) = self.freezes.on.get() else { return };
        let mut told = false;
        loop {
            let mut state = self.freezes.state.lock();
            if let Some(own) = state.own {
                self.end_own(&**on, state, own.order.id);
                continue;
            }
            let by = state.follower.by().map(|by| by.0.slot);
            if by.is_none() && !state.busy || self.stopped() || self.withdrawn.get().is_some() {
                state.leaves = true;
                return;
            }
            drop(state);
            if let (Some(by), false) = (by, told) {
                told = true;
                tracing::info!("the pool is frozen by node {by}: this node leaves after the thaw");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// See [`super::Membership::await_thaw`].
    pub(super) fn await_thaw(&self) -> Result<(), LockError> {
        let mut look = FreezeLook::default();
        loop {
            let orders = look.orders(&*self.store, Some(self.me))?;
            let mut state = self.freezes.state.lock();
            let action = state.follower.look(self.origin.elapsed(), &orders);
            if let Some(Action::Follow(by, order)) = &action {
                // It changes nothing yet.
                state.follower.reached(*by, order);
            }
            drop(state);
            if action.is_some() {
                self.announce();
            } else if orders.is_empty() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether somebody still waits for the freeze.
fn unless(given_up: &dyn Fn() -> bool) -> Result<(), NotFrozen> {
    if given_up() { Err(NotFrozen::GivenUp) } else { Ok(()) }
}
