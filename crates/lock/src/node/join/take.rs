//! Takes one slot: a free one, or that of a node which is dead, after recovering it.
//!
//! ```text
//!  lock its life -> confirm -> prepare -> register -> free: write "Active", joined
//!                                            |
//!                                            | of a dead node
//!                                            v
//!        its lock is seen here, vouched for, or has no key ---+
//!                                            |                |
//!                                            +-> fence -------+-> write "Recovering(by us)"
//!                                                                         |
//!        joined <- write "Active" <- recover <- follow <- take its key <--+
//! ```
//!
//! Wherever that ends otherwise, the key is given back and the liveness lock let go.

use braid_format::node::{SlotDamage, SlotRecord, SlotState};

use super::actions::{Action, Event, Flow, Joined, Joiner, Step, act, unasked};
use crate::Life;
use crate::error::LockError;
use crate::node::NotRecovered;
use crate::node::fencer::key_of;
use crate::node::fencing::reserves;
use crate::node::life::next_life;
use crate::node::slot_write::Outcome;

pub(super) struct Take {
    fs: uuid::Uuid,
    /// As it stands.
    record: Box<SlotRecord>,
    /// Its node's liveness lock would be seen here.
    seen: bool,
    /// This node's key is registered, or may be.
    registered: bool,
    state: State,
}

enum State {
    Locking,
    Confirming,
    Preparing,
    Registering(Box<SlotRecord>),
    Fencing(Box<SlotRecord>),
    /// Writes that this node is at work on the slot.
    Claiming(Claimed),
    TakingKey(Claimed),
    Following(Claimed),
    Recovering(Claimed),
    /// Writes down what is damaged, then fails with this.
    Noting(LockError),
    /// Writes that this node lives there.
    Entering(Joined),
    /// Ends without the slot.
    LettingGo(Option<LockError>),
}

/// What stands while the dead node is recovered, and what shall stand then.
struct Claimed {
    taking: Box<SlotRecord>,
    mine: Box<SlotRecord>,
}

impl Take {
    /// The slot of `record`; if it is not free its node is dead. `seen`: its lock would be seen here.
    pub fn new(joiner: &Joiner, record: SlotRecord, seen: bool) -> Self {
        let (fs, record) = (joiner.fs, Box::new(record));
        Self { fs, record, seen, registered: false, state: State::Locking }
    }

    /// Ends without the slot if another was faster.
    pub fn step(&mut self, event: Option<Event>) -> Flow<Option<Joined>> {
        let slot = self.record.life.slot;
        let Some(event) = event else { return act(Action::LockLife(slot)) };
        let state = std::mem::replace(&mut self.state, State::Locking);
        match (state, event) {
            // The lock is not held yet.
            (State::Locking, event) => {
                if !event.is()? {
                    return Ok(Step::End(None));
                }
                self.goes_on(State::Confirming, Action::Confirm)
            }
            (State::LettingGo(why), event) => {
                event.done()?;
                why.map_or(Ok(Step::End(None)), Err)
            }
            (State::Noting(why), Event::Wrote(_)) => self.let_go(Some(why)),
            (_, Event::Failed(e)) => self.let_go(Some(e)),
            (State::Confirming, Event::Done) => {
                self.goes_on(State::Preparing, Action::Prepare(next_life(&self.record)))
            }
            (State::Preparing, Event::Prepared(mine)) => {
                let key = key_of(self.fs, mine.life);
                self.goes_on(State::Registering(mine), Action::Register(key))
            }
            (State::Registering(mut mine), Event::Registered(key)) => {
                self.registered = true;
                mine.fence_key = key;
                self.enter_or_fence(mine)
            }
            (State::Fencing(mine), Event::Is(true)) => self.claim(mine),
            (State::Entering(joined), Event::Wrote(Outcome::Committed)) => {
                Ok(Step::End(Some(joined)))
            }
            (State::Claiming(claimed), Event::Wrote(Outcome::Committed)) => {
                let action = Action::TakeKey(self.record.clone(), claimed.mine.fence_key);
                self.goes_on(State::TakingKey(claimed), action)
            }
            // Not fenced, or another was faster.
            (State::Fencing(_), Event::Is(false))
            | (State::Entering(_) | State::Claiming(_), Event::Wrote(_)) => self.let_go(None),
            (State::TakingKey(claimed), Event::Done) => {
                self.goes_on(State::Following(claimed), Action::Follow)
            }
            (State::Following(claimed), Event::Done) => {
                let (dead, mine) = (self.record.clone(), claimed.mine.clone());
                self.goes_on(State::Recovering(claimed), Action::Recover { dead, mine })
            }
            (State::Recovering(claimed), Event::Recovered(how)) => self.recovered(claimed, how),
            (_, event) => unasked(&event),
        }
    }

    fn goes_on(&mut self, state: State, action: Action) -> Flow<Option<Joined>> {
        self.state = state;
        act(action)
    }
    fn let_go(&mut self, why: Option<LockError>) -> Flow<Option<Joined>> {
        let registered = self.registered;
        self.goes_on(State::LettingGo(why), Action::LetGo { registered })
    }

    fn enter_or_fence(&mut self, mine: Box<SlotRecord>) -> Flow<Option<Joined>> {
        let record = &self.record;
        if record.state == SlotState::Free {
            return self.enter(record.clone(), mine);
        }
        // A node that is silent can do nothing any more if its lock is gone, if a person has said that its
        // host is off, or if nobody can shut it out: then it is of an earlier boot. Else it is shut out.
        let own = mine.fence_key;
        if self.seen || record.vouched || !reserves(own, record) {
            return self.claim(mine);
        }
        let action = Action::Fence(record.clone(), own);
        self.goes_on(State::Fencing(mine), action)
    }

    /// Says in the slot that this node is at work on it.
    fn claim(&mut self, mine: Box<SlotRecord>) -> Flow<Option<Joined>> {
        let record = &self.record;
        let taking = Box::new(SlotRecord {
            state: SlotState::Recovering,
            recoverer: Some(mine.life),
            life: record.life,
            named: Some(mine.life.incarnation).filter(|n| *n > record.life.incarnation),
            replayed: record.replayed,
            damage: record.damage,
            serves: record.serves,
            ..(*mine).clone()
        });
        let action = Action::Write { expected: record.clone(), new: taking.clone() };
        self.goes_on(State::Claiming(Claimed { taking, mine }), action)
    }

    fn recovered(
        &mut self,
        claimed: Claimed,
        how: Result<(), NotRecovered>,
    ) -> Flow<Option<Joined>> {
        let Claimed { taking, mut mine } = claimed;
        let node = self.record.life;
        mine.nonce = mine.nonce.wrapping_add(1);
        match how {
            Ok(()) => self.enter(taking, mine),
            Err(NotRecovered::Damaged { damage, source }) => {
                let noted =
                    SlotRecord { damage: Some(damage), nonce: mine.nonce, ..(*taking).clone() };
                let why = LockError::Damaged { node, source: source.into() };
                let action = Action::Write { expected: taking, new: Box::new(noted) };
                self.goes_on(State::Noting(why), action)
            }
            Err(NotRecovered::Failed(e)) => {
                self.let_go(Some(LockError::Recovery { node, source: e.into() }))
            }
        }
    }

    /// Says in the slot that this node lives there.
    fn enter(&mut self, expected: Box<SlotRecord>, mine: Box<SlotRecord>) -> Flow<Option<Joined>> {
        let action = Action::Write { expected, new: mine.clone() };
        self.goes_on(State::Entering(mine), action)
    }
}

/// A dead node cannot be recovered, as its slot says.
pub(super) fn damaged(node: Life, damage: SlotDamage) -> LockError {
    let source: Box<dyn std::error::Error + Send + Sync> =
        crate::node::slots::describe(damage).into();
    LockError::Damaged { node, source: source.into() }
}
