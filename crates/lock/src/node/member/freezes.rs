//! The freezes that this node knows of: its own, and the one of another node that it follows.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use braid_format::NodeId;
use braid_format::node::{FreezeAnswer, FreezeOrder};
use parking_lot::Mutex;
use thiserror::Error;

use super::super::freeze::Follower;

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
pub(super) struct Own {
    pub order: FreezeOrder,
    /// When its time is over; `None`: not all have followed yet.
    pub until: Option<Instant>,
}

/// The freezes that this node knows of.
#[derive(Default)]
pub(super) struct Freezes {
    pub on: OnceLock<Arc<dyn OnFreeze>>,
    pub state: Mutex<FreezeState>,
}

#[derive(Default)]
pub(super) struct FreezeState {
    pub own: Option<Own>,
    pub follower: Follower,
}

impl Freezes {
    /// What the heartbeat says.
    pub fn words(&self) -> (Option<FreezeOrder>, Option<FreezeAnswer>) {
        let state = self.state.lock();
        (state.own.map(|own| own.order), state.follower.answer())
    }
}
