//! How a node comes by a slot: which one it takes, what must be known first, and in which order.
//! A pure step; `claim.rs` carries out what it says.
//!
//! ```text
//!  read slots -> foreign locks? -> copies of members? -> a free slot ----------> lock its life
//!      ^                                    |            | none                        |
//!      |                                    |            v                     confirm, register
//!      |                                    |     a dead node's slot:                  |
//!      |                                    |       its lock is gone, silent for    [ fence, claim,
//!      |                                    |       3 beats; vouched for; or an       recover the dead
//!      |                                    |       earlier boot, silent for 9/4 T    node ]
//!      |                                    |            | none                        |
//!      |                                    v            v                             v
//!      +--- another node frees one soon --- no slot: the join is refused      slot: Active, joined
//! ```
//!
//! Invariants:
//! * the liveness lock is held, and the key registered, before the slot names this node;
//! * a dead node's slot is taken only after its proof of death ([`search`]), and after its fence if it
//!   can be fenced by reservation and this kernel does not show its lock ([`take`]);
//! * a join that ends without a slot has let its liveness lock go and given its key back.

mod copies;
mod foreign_locks;
mod search;
mod silence;
mod take;

use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{LockPlace, SlotRecord, SlotState};

use super::life::is_recovered_by_other;
use super::slot_write::Outcome;
use super::{HostIdentity, NotRecovered, Timing};
use crate::Life;
use crate::dlock::Time;
use crate::error::LockError;
use copies::CopyCheck;
use foreign_locks::ForeignLockCheck;
use search::Search;

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
    /// Fence the node that acts by this slot by reservation; the answer is whether it is fenced. The
    /// number is this node's own key.
    Fence(Box<SlotRecord>, u64),
    /// Compare and write a slot ([`super::slot_write`]).
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
        /// Who is dead.
        dead: Life,
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
enum Step<T> {
    Do(Action),
    End(T),
}
type Flow<T> = Result<Step<T>, LockError>;

#[expect(clippy::unnecessary_wraps, reason = "what every part of a join answers with")]
const fn act<T>(action: Action) -> Flow<T> {
    Ok(Step::Do(action))
}

/// An answer to what was not asked.
fn unasked(event: &Event) -> ! {
    panic!("an answer to no question: {event:?}")
}

impl Event {
    fn slots(self) -> Result<Look, LockError> {
        match self {
            Self::Slots(look) => Ok(look),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
    fn is(self) -> Result<bool, LockError> {
        match self {
            Self::Is(answer) => Ok(answer),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
    fn done(self) -> Result<(), LockError> {
        match self {
            Self::Done => Ok(()),
            Self::Failed(e) => Err(e),
            other => unasked(&other),
        }
    }
}

/// A join under way.
pub struct Join {
    joiner: Joiner,
    /// When it began.
    begun: Time,
    /// Somebody was told that it waits.
    told: bool,
    state: State,
}

/// What is under way, with the slots from which one is chosen.
enum State {
    Choosing,
    ForeignLocks(Vec<SlotRecord>, ForeignLockCheck),
    Copies(Vec<SlotRecord>, CopyCheck),
    Searching(Vec<SlotRecord>, Search),
    /// None of these could be had.
    ChoosingAgain(Vec<SlotRecord>),
    Waiting,
    Over,
}

impl Join {
    /// A join of `joiner`. Begins with [`Event::Begin`].
    pub fn new(joiner: Joiner) -> Self {
        Self { joiner, begun: Time::ZERO, told: false, state: State::Choosing }
    }

    /// Takes the answer to what was asked last, says what to do next.
    ///
    /// # Panics
    /// If that was not asked.
    pub fn step(&mut self, now: Time, event: Event) -> Action {
        match self.go_on(now, event) {
            Ok(Step::Do(action)) => action,
            Ok(Step::End(joined)) => self.end(Ok(joined)),
            Err(e) => self.end(Err(e)),
        }
    }
    fn end(&mut self, how: Result<Joined, LockError>) -> Action {
        self.state = State::Over;
        Action::End(how)
    }

    fn go_on(&mut self, now: Time, event: Event) -> Flow<Joined> {
        match (std::mem::replace(&mut self.state, State::Over), event) {
            (State::Choosing, Event::Begin) => {
                self.begun = now;
                self.choose(State::Choosing)
            }
            (State::Waiting, Event::Done) => self.choose(State::Choosing),
            (State::Choosing, event) => {
                let Look { records, by_lock, .. } = event.slots()?;
                let check = ForeignLockCheck::new(&self.joiner, by_lock);
                self.look_for_foreign_locks(records, check, now, None)
            }
            (State::ForeignLocks(choice, check), event) => {
                self.look_for_foreign_locks(choice, check, now, Some(event))
            }
            (State::Copies(choice, check), event) => {
                self.look_for_copies(choice, check, now, Some(event))
            }
            (State::Searching(choice, search), event) => {
                self.search(choice, search, now, Some(event))
            }
            (State::ChoosingAgain(before), event) => {
                let look = event.slots()?;
                self.wait_or_refuse(now, &before, &look.records)
            }
            (State::Waiting | State::Over, event) => unasked(&event),
        }
    }

    /// Reads the slots that this node may take.
    fn choose(&mut self, state: State) -> Flow<Joined> {
        self.state = state;
        let slots = self.joiner.slots;
        match self.joiner.slot {
            Some(slot) if slot.0 >= slots => Err(LockError::NoSuchSlot { slot, slots }),
            Some(slot) => act(Action::ReadSlot(slot)),
            None => act(Action::ReadSlots),
        }
    }

    fn look_for_foreign_locks(
        &mut self,
        choice: Vec<SlotRecord>,
        mut check: ForeignLockCheck,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Joined> {
        match check.step(now, event)? {
            Step::Do(action) => {
                self.state = State::ForeignLocks(choice, check);
                act(action)
            }
            Step::End(()) => self.look_for_copies(choice, CopyCheck::new(&self.joiner), now, None),
        }
    }

    fn look_for_copies(
        &mut self,
        choice: Vec<SlotRecord>,
        mut check: CopyCheck,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Joined> {
        match check.step(event)? {
            Step::Do(action) => {
                self.state = State::Copies(choice, check);
                act(action)
            }
            Step::End(look) => {
                let search = Search::new(&self.joiner, choice.clone(), look.places);
                self.search(choice, search, now, None)
            }
        }
    }

    fn search(
        &mut self,
        choice: Vec<SlotRecord>,
        mut search: Search,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Joined> {
        match search.step(now, event)? {
            Step::Do(action) => {
                self.state = State::Searching(choice, search);
                act(action)
            }
            Step::End(Some(joined)) => Ok(Step::End(joined)),
            Step::End(None) => self.choose(State::ChoosingAgain(choice)),
        }
    }

    /// None of the slots that stood so as in `before` could be had. Waits if one of them comes free, for
    /// [`Timing::fence_after`] at most.
    fn wait_or_refuse(
        &mut self,
        now: Time,
        before: &[SlotRecord],
        records: &[SlotRecord],
    ) -> Flow<Joined> {
        let waits = now.saturating_sub(self.begun) < self.joiner.timing.fence_after();
        let coming = records.iter().find(|r| comes_free(r, before)).filter(|_| waits);
        if let Some(coming) = coming {
            self.state = State::Waiting;
            let (slot, pause) = (coming.life.slot, self.joiner.timing.beat());
            let by = coming.recoverer.filter(|_| !self.told);
            self.told |= by.is_some();
            return act(Action::AwaitSlot { slot, by, pause });
        }
        Err(match (self.joiner.slot, before.first()) {
            (Some(slot), Some(r)) => {
                LockError::SlotTaken { slot, holder: r.life, host: r.host.as_str().into() }
            }
            _ => LockError::NoFreeSlot { slots: self.joiner.slots },
        })
    }
}

/// Whether a slot that could not be had just now, when it stood so as in `before`, will be free soon, or
/// is by now.
fn comes_free(now: &SlotRecord, before: &[SlotRecord]) -> bool {
    let was_free = |r: &SlotRecord| r.life.slot == now.life.slot && r.state == SlotState::Free;
    match now.state {
        SlotState::Free => !before.iter().any(was_free),
        _ => is_recovered_by_other(now) && now.damage.is_none(),
    }
}

#[cfg(test)]
mod tests;
