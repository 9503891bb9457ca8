//! This node freezes the pool for all nodes, and follows the freezes of others (`super::super::freeze`).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{FreezeAnswer, FreezeOrder, FreezeStage};
use parking_lot::Mutex;
use thiserror::Error;

use super::super::freeze::{Action, Follower, missing, orders};
use super::Membership;
use super::state::NodeState;
use crate::Life;

/// Between two looks at whether the others have answered.
const LOOK: Duration = Duration::from_millis(10);

/// What a freeze asks of this node.
pub trait OnFreeze: Send + Sync {
    /// Makes stable what programs have written so far. May take long.
    ///
    /// # Errors
    /// What could not be made stable.
    fn prepare(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
    /// Changes wait from now on; on return none is under way, unless it is false: at `deadline` some still were, or
    /// [`OnFreeze::thaw`] was called, and they do not wait.
    fn freeze(&self, deadline: Instant) -> bool;
    /// Changes go on. Waits for nothing.
    fn thaw(&self);
}

/// Why the pool is not frozen.
#[derive(Debug, Error)]
pub enum NotFrozen {
    /// Another node, or this one, has frozen it, or is about to.
    #[error("the pool is frozen already, or about to be, by node {0}")]
    Already(NodeId),
    /// These nodes did not follow.
    #[error("these nodes did not follow in time: {}; they are dead, or have much to write, or are of an older version (`braid nodes`)", list(.0))]
    NoAnswer(Vec<NodeId>),
    /// Somebody may live there.
    #[error("the slot of node {0} cannot be read, so nobody can tell whether that node follows")]
    Unreadable(NodeId),
    /// What programs have written could not be made stable.
    #[error("what programs have written cannot be made stable: {0}")]
    NotStable(Box<dyn std::error::Error + Send + Sync>),
    /// Changes of this node did not end.
    #[error("changes of this node did not end in time")]
    UnderWay,
    /// It is not, by this node.
    #[error("this node has not frozen the pool")]
    NotHere,
    /// It was, but not all the time.
    #[error("the pool did not stay frozen: its time was over, or a node did not wait: {}", list(.0))]
    Broken(Vec<NodeId>),
}

fn list(nodes: &[NodeId]) -> String {
    if nodes.is_empty() {
        return "none".to_owned();
    }
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A freeze by this node.
#[derive(Debug, Clone, Copy)]
struct Own {
    order: FreezeOrder,
    /// When its time is over; `None`: not all have followed yet.
    until: Option<Instant>,
}

/// The freezes that this node knows of.
#[derive(Default)]
pub(super) struct Freezes {
    on: OnceLock<Arc<dyn OnFreeze>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    own: Option<Own>,
    follower: Follower,
}

impl Freezes {
    /// What the heartbeat says.
    pub fn words(&self) -> (Option<FreezeOrder>, Option<FreezeAnswer>) {
        let state = self.state.lock();
        (state.own.map(|own| own.order), state.follower.answer())
    }
}

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
}

impl Membership {
    /// What a freeze asks of this node. Once.
    pub fn on_freeze(&self, on: Arc<dyn OnFreeze>) {
        self.inner.freezes.on.set(on).ok();
    }

    /// Freezes the pool: on return what programs of all nodes had written before is stable, and no node changes
    /// anything but lock records, slots and heartbeats, until [`Membership::thaw`], or for `time` at most.
    /// The others have `patience` to follow. No lock may be held.
    ///
    /// # Errors
    /// [`NotFrozen`]; nothing is frozen then.
    pub fn freeze(&self, time: Duration, patience: Duration) -> Result<(), NotFrozen> {
        let inner = &self.inner;
        let on = inner.freezes.on.get().ok_or(NotFrozen::UnderWay)?;
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let id = u32::try_from(random & u64::from(u32::MAX)).unwrap_or(0);
        let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let order = FreezeOrder { stage: FreezeStage::Prepared, id, seconds };
        {
            let mut state = inner.freezes.state.lock();
            let by = state.own.map(|_| inner.me.slot).or(state.follower.by().map(|by| by.0.slot));
            if let Some(by) = by {
                return Err(NotFrozen::Already(by));
            }
            state.own = Some(Own { order, until: None });
        }
        let done = self.freeze_all(&**on, order, time, Instant::now() + patience);
        if done.is_err() {
            inner.freezes.state.lock().own = None;
            on.thaw();
            inner.announce();
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
        let inner = &self.inner;
        inner.announce();
        on.prepare().map_err(NotFrozen::NotStable)?;
        self.await_followers(&order, deadline)?;
        let order = FreezeOrder { stage: FreezeStage::Frozen, ..order };
        // From before the others are asked, whose time begins when they see it.
        inner.freezes.state.lock().own = Some(Own { order, until: None });
        inner.announce();
        if !on.freeze(deadline) {
            return Err(NotFrozen::UnderWay);
        }
        self.await_followers(&order, deadline)?;
        let until = Some(Instant::now() + time);
        inner.freezes.state.lock().own = Some(Own { order, until });
        Ok(())
    }

    fn await_followers(&self, order: &FreezeOrder, deadline: Instant) -> Result<(), NotFrozen> {
        loop {
            if let Some(slot) = self.inner.unreadable.lock().first().map(|u| u.slot) {
                return Err(NotFrozen::Unreadable(slot));
            }
            let first = |(by, other): &&(Life, FreezeOrder)| {
                by.slot < self.inner.me.slot || other.stage == FreezeStage::Frozen
            };
            let others = self.inner.freeze_orders();
            if let Some((by, _)) = others.iter().find(first)
                && order.stage == FreezeStage::Prepared
            {
                return Err(NotFrozen::Already(by.slot));
            }
            let missing = self.missing(order);
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline || self.inner.stopped() {
                return Err(NotFrozen::NoAnswer(missing));
            }
            self.inner.pace.stir();
            std::thread::sleep(LOOK);
        }
    }

    fn missing(&self, order: &FreezeOrder) -> Vec<NodeId> {
        let (slots, beats) = (self.inner.slots.read(), self.inner.beats.lock());
        missing(self.inner.me, order, slots.iter().map(|s| &s.record), &beats)
    }

    /// Ends this node's freeze.
    ///
    /// # Errors
    /// [`NotFrozen::NotHere`]; [`NotFrozen::Broken`]: it is thawed, but some nodes may not have waited all the time.
    pub fn thaw(&self) -> Result<(), NotFrozen> {
        let inner = &self.inner;
        let on = inner.freezes.on.get().ok_or(NotFrozen::NotHere)?;
        let own = {
            let mut state = inner.freezes.state.lock();
            let own = state.own.filter(|own| own.until.is_some()).ok_or(NotFrozen::NotHere)?;
            state.own = None;
            own
        };
        // What others say is older than this: they waited until now.
        let missing = self.missing(&own.order);
        on.thaw();
        inner.announce();
        if missing.is_empty() { Ok(()) } else { Err(NotFrozen::Broken(missing)) }
    }

    /// Which node has frozen the pool, if changes of this node wait for that.
    pub fn frozen_by(&self) -> Option<NodeId> {
        let state = self.inner.freezes.state.lock();
        let own = state.own.filter(|own| own.until.is_some()).map(|_| self.inner.me.slot);
        own.or(state.follower.by().filter(|(_, waits)| *waits).map(|(by, _)| by.slot))
    }
}
