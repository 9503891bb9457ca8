//! The freezes that this node knows of: its own, and the one of another node that it follows.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use braid_format::NodeId;
use braid_format::node::{FreezeAnswer, FreezeOrder};
use braid_pool::EpochTag;
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
    #[error("these nodes did not follow in time: {}; they are dead, or have much to write, or are of an older version (`braid nodes`), or something went wrong there (their logs say what)", list(.0))]
    NoAnswer(Vec<NodeId>),
    /// Nobody waits for it any more.
    #[error("whoever asked for the freeze has ended: the pool is not frozen")]
    GivenUp,
    /// Somebody may live there.
    #[error("the slot of node {0} cannot be read, so nobody can tell whether that node follows")]
    Unreadable(NodeId),
    /// Who is there cannot be read.
    #[error("the slots of the nodes cannot be read: {0}")]
    NotSeen(String),
    /// What programs have written could not be made stable.
    #[error("what programs have written cannot be made stable: {0}")]
    NotStable(Box<dyn std::error::Error + Send + Sync>),
    /// Changes of this node did not end.
    #[error("changes of this node did not end in time")]
    UnderWay,
    /// It is leaving, or still ends what an earlier freeze began.
    #[error("this node is leaving, or has not ended yet what an earlier freeze began: try again")]
    Busy,
    /// It is not, by this node.
    #[error("this node has not frozen the pool")]
    NotHere,
    /// It was, but not all the time.
    #[error("the pool did not stay frozen until now, or nobody can tell: {0}")]
    Broken(String),
}

pub(super) fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A freeze by this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    pub order: FreezeOrder,
    /// The pool's epoch when it was frozen.
    pub epoch: EpochTag,
    /// When its time is over; `None`: not all have followed yet.
    pub until: Option<Instant>,
}

/// The freezes that this node knows of.
#[derive(Default)]
pub(super) struct Freezes {
    pub on: OnceLock<Arc<dyn OnFreeze>>,
    /// What the last heartbeat that was written asks of the others.
    pub said: Mutex<Option<FreezeOrder>>,
    pub state: Mutex<FreezeState>,
}

#[derive(Default)]
pub(super) struct FreezeState {
    pub own: Option<Own>,
    pub follower: Follower,
    /// A thread follows a freeze, perhaps one that is over: what it does last must not open a newer one.
    pub busy: bool,
    /// This node leaves, and follows no freeze any more.
    pub leaves: bool,
}

impl Freezes {
    /// What the heartbeat says.
    pub fn words(&self) -> (Option<FreezeOrder>, Option<FreezeAnswer>) {
        let state = self.state.lock();
        (state.own.map(|own| own.order), state.follower.answer())
    }
}
