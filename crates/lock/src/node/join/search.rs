//! Which slot is taken: a free one; else that of a dead node, first of those whose lock this kernel
//! shows, then of those that silence must speak for.
//!
//! A node counts as dead here if one of these is so (the table in docs/LOCKING.md, section 8):
//! * this kernel would show its liveness lock, the lock is gone, and no heartbeat comes for one beat
//!   more than the watcher looks;
//! * a person has said so in its slot;
//! * it is of an earlier boot of this machine, and silent for as long as a fence may take. If it can be
//!   fenced by reservation it is, before anything of it is touched ([`super::take`]);
//! * this node has fenced it while it recovered the dead node of another slot, which it could not for
//!   what this one holds.

use std::collections::VecDeque;

use braid_format::node::{LockPlace, SlotRecord, SlotState};

use super::actions::{Action, Event, Flow, Joined, Joiner, Step, act, unasked};
use super::silence::Silence;
use super::take::{Take, damaged};
use crate::dlock::Time;
use crate::error::LockError;
use crate::node::Timing;
use crate::node::life::is_recovered_by_other;
use crate::node::watch::Watch;

pub(super) struct Search {
    joiner: Joiner,
    places: Vec<LockPlace>,
    /// Slots that are not free.
    taken: Vec<SlotRecord>,
    /// Those of them whose lock would be seen here and is gone.
    unlocked: Vec<SlotRecord>,
    state: State,
    /// Why a dead node could not be recovered: another slot will do.
    unrecovered: Option<LockError>,
}

/// A slot that may be had.
struct Candidate {
    record: SlotRecord,
    /// Nobody is there, or who was there is dead.
    deserted: bool,
}
impl Candidate {
    /// If another node recovers a dead one its slot will be free soon, unless that node is dead too.
    fn can_be_taken(&self) -> bool {
        self.deserted && !is_recovered_by_other(&self.record)
    }
}

type Candidates = VecDeque<Candidate>;

enum State {
    /// Tries slots one after the other.
    Trying {
        under_way: Option<Take>,
        rest: Candidates,
        then: Then,
    },
    /// Asks which locks are gone, of those that would be seen here.
    Looking {
        asked: SlotRecord,
        rest: VecDeque<SlotRecord>,
    },
    /// Are those nodes silent?
    Unlocked(Silence),
    /// Is the node of this slot fenced, which nothing else shows to be dead?
    Asking {
        candidate: Candidate,
        rest: Candidates,
        then: Then,
    },
    /// Are those of earlier boots silent?
    Earlier {
        silence: Silence,
        others: Vec<SlotRecord>,
    },
    Over,
}

/// What comes when none of the slots that are tried can be had.
enum Then {
    /// The slots of the dead.
    Dead,
    /// Of these, the slots of the dead that silence must speak for.
    Earlier(Vec<SlotRecord>),
    /// Nothing.
    End,
}

impl Search {
    /// Among the slots of `choice`. `places`: where this process looks for liveness locks.
    pub fn new(joiner: &Joiner, choice: Vec<SlotRecord>, places: Vec<LockPlace>) -> Self {
        let (free, taken): (Vec<_>, Vec<_>) =
            choice.into_iter().partition(|r| r.state == SlotState::Free);
        let candidate = |record| Candidate { record, deserted: true };
        let rest = free.into_iter().map(candidate).collect();
        let state = State::Trying { under_way: None, rest, then: Then::Dead };
        let joiner = joiner.clone();
        Self { joiner, places, taken, unlocked: Vec::new(), state, unrecovered: None }
    }

    /// The same, for a node that could not recover a dead one before, because of `why`.
    pub fn after(self, why: LockError) -> Self {
        Self { unrecovered: Some(why), ..self }
    }

    /// Ends without a slot if none can be had.
    pub fn step(&mut self, now: Time, event: Option<Event>) -> Flow<Option<Joined>> {
        match (std::mem::replace(&mut self.state, State::Over), event) {
            (State::Trying { under_way: None, rest, then }, None) => self.try_next(rest, then, now),
            (State::Trying { under_way: Some(take), rest, then }, Some(event)) => {
                self.go_on(take, rest, then, now, Some(event))
            }
            (State::Looking { asked, rest }, Some(event)) => {
                if !event.is()? {
                    self.unlocked.push(asked);
                }
                self.look(rest, now)
            }
            (State::Unlocked(silence), event) => self.await_unlocked(silence, now, event),
            (State::Earlier { silence, others }, event) => {
                self.await_earlier(silence, others, now, event)
            }
            (State::Asking { candidate, rest, then }, Some(event)) => {
                if event.is()? {
                    return self.take(candidate.record, rest, then, now);
                }
                self.leave(&candidate);
                self.try_next(rest, then, now)
            }
            (_, event) => unasked(&event.unwrap_or(Event::Begin)),
        }
    }

    // Trying one slot after the other.

    fn try_next(&mut self, mut rest: Candidates, then: Then, now: Time) -> Flow<Option<Joined>> {
        while let Some(candidate) = rest.pop_front() {
            if candidate.can_be_taken() {
                return self.take(candidate.record, rest, then, now);
            }
            if !is_recovered_by_other(&candidate.record) {
                let record = Box::new(candidate.record.clone());
                self.state = State::Asking { candidate, rest, then };
                return act(Action::IsFenced(record));
            }
            self.leave(&candidate);
        }
        self.none_left(then, now)
    }
    fn take(
        &mut self,
        record: SlotRecord,
        rest: Candidates,
        then: Then,
        now: Time,
    ) -> Flow<Option<Joined>> {
        let seen = self.joiner.identity.sees_lock_of(&record, &self.places);
        self.go_on(Take::new(&self.joiner, record, seen), rest, then, now, None)
    }
    /// Its node may live yet, or its dead node is another's to recover. Damage was found by one that may
    /// live yet, or has left since.
    fn leave(&mut self, candidate: &Candidate) {
        let life = candidate.record.life;
        let found = candidate.record.damage.map(|damage| damaged(life, damage));
        self.unrecovered = self.unrecovered.take().or(found);
    }
    fn go_on(
        &mut self,
        mut take: Take,
        rest: Candidates,
        then: Then,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Option<Joined>> {
        match take.step(event) {
            Ok(Step::Do(action)) => {
                self.state = State::Trying { under_way: Some(take), rest, then };
                act(action)
            }
            Ok(Step::End(Some(joined))) => Ok(Step::End(Some(joined))),
            Ok(Step::End(None)) => self.try_next(rest, then, now),
            // It may have to wait for what another dead one holds, which is recovered with that one's slot.
            Err(e @ (LockError::Damaged { .. } | LockError::Recovery { .. })) => {
                self.unrecovered = self.unrecovered.take().or(Some(e));
                self.try_next(rest, then, now)
            }
            Err(e) => Err(e),
        }
    }
    fn none_left(&mut self, then: Then, now: Time) -> Flow<Option<Joined>> {
        match then {
            Then::Dead => {
                let seen = |r: &&SlotRecord| self.joiner.identity.sees_lock_of(r, &self.places);
                self.look(self.taken.iter().filter(seen).cloned().collect(), now)
            }
            Then::Earlier(others) => {
                let earlier = |r: &&SlotRecord| self.joiner.identity.is_earlier_boot_of(r);
                let earlier: Vec<_> = others.iter().filter(earlier).cloned().collect();
                let silence = Silence::of(&earlier, self.joiner.sector_len, Timing::fence_after);
                self.await_earlier(silence, others, now, None)
            }
            Then::End => match self.unrecovered.take() {
                Some(e) => Err(e),
                None => Ok(Step::End(None)),
            },
        }
    }

    // Who is dead.

    fn look(&mut self, mut rest: VecDeque<SlotRecord>, now: Time) -> Flow<Option<Joined>> {
        if let Some(asked) = rest.pop_front() {
            let slot = asked.life.slot;
            self.state = State::Looking { asked, rest };
            return act(Action::IsLifeLocked(slot));
        }
        let time = |t: Timing| t.beat() * (Watch::LOOKS + 1);
        let silence = Silence::of(&self.unlocked, self.joiner.sector_len, time);
        self.await_unlocked(silence, now, None)
    }
    fn await_unlocked(
        &mut self,
        mut silence: Silence,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Option<Joined>> {
        match silence.step(now, event)? {
            Step::Do(action) => {
                self.state = State::Unlocked(silence);
                act(action)
            }
            Step::End(quiet) => {
                let dead = |r: &SlotRecord| r.vouched || quiet.contains(&r.life.slot);
                let taken = std::mem::take(&mut self.taken);
                let (first, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(dead);
                let dead = |record| Candidate { record, deserted: true };
                let rest = first.into_iter().map(dead).collect();
                self.try_next(rest, Then::Earlier(others), now)
            }
        }
    }
    fn await_earlier(
        &mut self,
        mut silence: Silence,
        others: Vec<SlotRecord>,
        now: Time,
        event: Option<Event>,
    ) -> Flow<Option<Joined>> {
        match silence.step(now, event)? {
            Step::Do(action) => {
                self.state = State::Earlier { silence, others };
                act(action)
            }
            Step::End(quiet) => {
                let candidate = |record: SlotRecord| Candidate {
                    deserted: quiet.contains(&record.life.slot),
                    record,
                };
                let rest = others.into_iter().map(candidate).collect();
                self.try_next(rest, Then::End, now)
            }
        }
    }
}
