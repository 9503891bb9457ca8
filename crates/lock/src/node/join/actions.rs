//! What a join asks to be done and what it is told then, and what its parts answer with.

use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{LockPlace, SlotRecord};

use crate::Life;
use crate::error::LockError;
use crate::node::slot_write::Outcome;
use crate::node::{HostIdentity, NotRecovered, Timing};

/// What a node that joins knows before it looks.
#[derive(Debug, Clone)]
pub struct Joiner {
    /// Its host.
    pub identity: HostIdentity,
    /// Its timers.
    pub timing: Timing,
    /// The slot that it was asked to take, or any.
    pub slot: Option<NodeId>,
    /// How many slots there are.
    pub slots: u16,
    /// Bytes in a slot's or heartbeat's sector.
    pub sector_len: usize,
    /// The file system.
    pub fs: uuid::Uuid,
}

/// What was seen at one look.
#[derive(Debug, Clone)]
pub struct Look {
    /// The slots that can be read, or the one that was asked for.
    pub records: Vec<SlotRecord>,
    /// Where this process looks for liveness locks.
    pub places: Vec<LockPlace>,
    /// Records are compared and written under kernel locks at these places.
    pub by_lock: bool,
}

/// What happened. Each answers the action before it; any may be answered by [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// The join begins.
    Begin,
    /// Answer to [`Action::ReadSlots`] and [`Action::ReadSlot`].
    Slots(Look),
    /// Answer to [`Action::ReadHeartbeats`]: all, packed.
    Heartbeats(Vec<u8>),
    /// Answer to [`Action::ReadHeartbeatCopies`]: all, packed, as each copy has them.
    Copies(Vec<Vec<u8>>),
    /// Answer to a question.
    Is(bool),
    /// It is done.
    Done,
    /// Answer to [`Action::Prepare`].
    Prepared(Box<SlotRecord>),
    /// Answer to [`Action::Register`]: the key by which every member knows this node; 0: none does.
    Registered(u64),
    /// Answer to [`Action::Write`]. [`Outcome::Failed`] comes as [`Event::Failed`], with the error.
    Wrote(Outcome),
    /// Answer to [`Action::Recover`].
    Recovered(Result<(), NotRecovered>),
    /// What was to be done failed.
    Failed(LockError),
}

/// What to do next.
#[derive(Debug)]
pub enum Action {
    /// Read all slots.
    ReadSlots,
    /// Read this one. If it cannot be decoded, that is a failure.
    ReadSlot(NodeId),
    /// Read all heartbeats.
    ReadHeartbeats,
    /// Read each copy of all heartbeats.
    ReadHeartbeatCopies,
    /// Does another process of this host hold the liveness lock of this slot?
    IsLifeLocked(NodeId),
    /// Does one hold it on some members of this pool, and not on others?
    IsLifePartlyLocked(NodeId),
    /// Use the newest epoch of the pool. Did the node of this slot say last that it uses another one?
    IsBehind(Box<SlotRecord>),
    /// Wait for so long: the node in `slot` has not taken note of a change of the pool's members. Its
    /// process, once, for people.
    AwaitBehind {
        /// The slot.
        slot: NodeId,
        /// Its process.
        pid: Option<u32>,
        /// For how long.
        pause: Duration,
    },
    /// Wait for so long.
    Sleep(Duration),
    /// Wait for so long: `slot` is free soon. `by`, once, for people: who recovers its dead node.
    AwaitSlot {
        /// The slot.
        slot: NodeId,
        /// Who recovers the dead node that had it.
        by: Option<Life>,
        /// For how long.
        pause: Duration,
    },
    /// Take the liveness lock of this slot; the answer is whether it could be had.
    LockLife(NodeId),
    /// See that the file system is still the one that this node has looked at.
    Confirm,
    /// Say what the slot says of this node if it lives there as this life, without a key.
    Prepare(Life),
    /// Register this key with every member, if every member has reservations.
    Register(u64),
    /// Is who acts by this slot known to be fenced? It may have been fenced while this node recovered
    /// another.
    IsFenced(Box<SlotRecord>),
    /// Fence the node that acts by this slot by reservation; the answer is whether it is fenced. The
    /// number is this node's own key.
    Fence(Box<SlotRecord>, u64),
    /// Compare and write a slot ([`crate::node::slot_write`]).
    Write {
        /// What was seen.
        expected: Box<SlotRecord>,
        /// What shall stand.
        new: Box<SlotRecord>,
    },
    /// Take the key of this slot's node, which is dead, from the members. The number is this node's own.
    TakeKey(Box<SlotRecord>, u64),
    /// Use the epoch that the pool's labels say: others that changed the pool did not see this node.
    Follow,
    /// Recover the dead node, from the beginning to the end, while `mine` beats.
    Recover {
        /// The slot of who is dead.
        dead: Box<SlotRecord>,
        /// What the slot is to say of this node.
        mine: Box<SlotRecord>,
    },
    /// Let the liveness lock go, and give the key back if it is `registered`.
    LetGo {
        /// The key is registered.
        registered: bool,
    },
    /// This node has a slot, or why not.
    End(Result<Joined, LockError>),
}

/// What the slot of a node that has joined says.
pub type Joined = Box<SlotRecord>;

/// What a part of a join does next, or how it ended.
pub(super) enum Step<T> {
    Do(Action),
    End(T),
}
pub(super) type Flow<T> = Result<Step<T>, LockError>;

#[expect(clippy::unnecessary_wraps, reason = "what every part of a join answers with")]
pub(super) const fn act<T>(action: Action) -> Flow<T> {
    Ok(Step::Do(action))
}

/// An answer to what was not asked.
pub(super) fn unasked(event: &Event) -> ! {
    panic!("an answer to no question: {event:?}")
}

impl Event {
    pub(super) fn slots(self) -> Result<Look, LockError> {
        match self {
            Self::Slots(look) => Ok(look),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
    pub(super) fn is(self) -> Result<bool, LockError> {
        match self {
            Self::Is(answer) => Ok(answer),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
    pub(super) fn done(self) -> Result<(), LockError> {
        match self {
            Self::Done => Ok(()),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
}
