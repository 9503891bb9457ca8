//! This node freezes the pool for all nodes, and follows the freezes of others (`super::super::freeze`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{FreezeOrder, FreezeStage};

use super::super::freeze::{Action, missing, orders};
use super::freezes::{NotFrozen, OnFreeze, Own};
use super::state::NodeState;
use crate::Life;

/// Between two looks at whether the others have answered.
const LOOK: Duration = Duration::from_millis(10);

impl NodeState {
    /// After each look: what others freeze is followed, and what has been frozen for long enough is thawed.
    pub(super) fn see_to_freezes(self: &Arc<Self>) {
        let Some(on) = self.freezes.on.get() else { return };
        let orders = self.freeze_orders();
        let mut state = self.freezes.state.lock();
        if state.own.is_some_and(|own| own.until.is_some_and(|until| Instant::now() >= until)) {
            state.own = None;
            on.thaw();
            tracing::warn!("the time of the freeze is over: the pool is thawed");
            drop(state);
            return self.announce();
        }
        if state.own.is_some() {
            return;
        }
        let action = state.follower.look(self.origin.elapsed(), &orders);
        match action {
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
                drop(state);
                let (this, on) = (self.clone(), on.clone());
                let run = move || this.follow(&*on, by, order);
                match std::thread::Builder::new().name("freeze".to_owned()).spawn(run) {
                    Ok(thread) => self.keep(thread),
                    Err(e) => tracing::error!("cannot start a thread to follow a freeze: {e}"),
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

    /// See [`super::Membership::freeze`].
    pub(super) fn freeze(&self, time: Duration, patience: Duration) -> Result<(), NotFrozen> {
                let on = self.freezes.on.get().ok_or(NotFrozen::UnderWay)?;
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let id = u32::try_from(random & u64::from(u32::MAX)).unwrap_or(0);
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let order = FreezeOrder { stage: FreezeStage::Prepared, id, seconds };
        {
            let mut state = self.freezes.state.lock();
            let by = state.own.map(|_| self.me.slot).or(state.follower.by().map(|by| by.0.slot));
            if let Some(by) = by {
                return Err(NotFrozen::Already(by));
            }
            state.own = Some(Own { order, until: None });
        }
        let done = self.freeze_all(&**on, order, time, Instant::now() + patience);
        if done.is_err() {
            self.freezes.state.lock().own = None;
            on.thaw();
            self.announce();
        }
        done
    }

    fn freeze_all(
        &self,
        on: &dyn OnFreeze,
        order: FreezeOrder,
        time: Duration,
        deadline: Instant,
    ) -> Result<(), NotFrozen> {
                self.announce();
        on.prepare().map_err(NotFrozen::NotStable)?;
        self.await_followers(&order, deadline)?;
        let order = FreezeOrder { stage: FreezeStage::Frozen, ..order };
        // From before the others are asked, whose time begins when they see it.
        self.freezes.state.lock().own = Some(Own { order, until: None });
        self.announce();
        if !on.freeze(deadline) {
            return Err(NotFrozen::UnderWay);
        }
        self.await_followers(&order, deadline)?;
        let until = Some(Instant::now() + time);
        self.freezes.state.lock().own = Some(Own { order, until });
        Ok(())
    }

    fn await_followers(&self, order: &FreezeOrder, deadline: Instant) -> Result<(), NotFrozen> {
        loop {
            if let Some(slot) = self.unreadable.lock().first().map(|u| u.slot) {
                return Err(NotFrozen::Unreadable(slot));
            }
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
            if Instant::now() >= deadline || self.stopped() {
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
        let own = {
            let mut state = self.freezes.state.lock();
            let own = state.own.filter(|own| own.until.is_some()).ok_or(NotFrozen::NotHere)?;
            state.own = None;
            own
        };
        // What others say is older than this: they waited until now.
        let missing = self.missing(&own.order);
        on.thaw();
        self.announce();
        if missing.is_empty() { Ok(()) } else { Err(NotFrozen::Broken(missing)) }
    }

    /// See [`super::Membership::frozen_by`].
    pub(super) fn frozen_by(&self) -> Option<NodeId> {
        let state = self.freezes.state.lock();
        let own = state.own.filter(|own| own.until.is_some()).map(|_| self.me.slot);
        own.or(state.follower.by().filter(|(_, waits)| *waits).map(|(by, _)| by.slot))
    }
}
