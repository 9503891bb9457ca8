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
//!      |                                                 ^
//!      +--- another has changed one, or one has not      | not recovered, and no other slot:
//!           been tried yet ------------------------------+ looks again
//! ```
//!
//! Invariants:
//! * the liveness lock is held, and the key registered, before the slot names this node;
//! * a dead node's slot is taken only after its proof of death (`search`), and after its fence if it
//!   can be fenced by reservation and this kernel does not show its lock (`take`);
//! * of slots that it could not recover a join tries none again before another node has changed a slot:
//!   what was in its way is the same before that;
//! * a join that ends without a slot has let its liveness lock go and given its key back.
//!
//! Parts, bottom up:
//! ```text
//!  actions                what a join asks to be done, and what it is told
//!  silence                whether nodes have been silent for long enough
//!  foreign_locks, copies  why a join is refused
//!  take, search           one slot is taken; which one
//! ```

mod actions;
mod copies;
mod foreign_locks;
mod search;
mod silence;
mod take;

use std::time::Duration;

use braid_format::node::{SlotRecord, SlotState};

use super::Timing;
use super::life::is_recovered_by_other;
use crate::Life;
use crate::dlock::Time;
use crate::error::LockError;
use actions::{Flow, Step, act, unasked};
use copies::CopyCheck;
use foreign_locks::ForeignLockCheck;
use search::Search;

pub use actions::{Action, Event, Joined, Joiner, Look};

/// A join under way.
pub struct Join {
    joiner: Joiner,
    /// When it began.
    begun: Time,
    /// Somebody was told that it waits.
    told: bool,
    /// Who recovers the dead node of the slot that it waits for, the heartbeat seen of that life last, and
    /// when it was new.
    recoverer: Option<(Life, Vec<u8>, Time)>,
    /// Random names under which it has tried to take slots.
    names: Vec<[u8; 16]>,
    /// How many of them it had when it last began to search.
    names_before: usize,
    /// So many beats it pauses before it looks again, by chance: two that are in each other's way do so at
    /// different times.
    pause: u32,
    state: State,
}

/// A join waits for a slot for so many times [`Timing::fence_after`] at most, while whoever makes it free
/// shows heartbeats.
const WAITS_MAX: u32 = 20;

/// The longest pause before a join looks again at slots that it could not recover.
const PAUSE_BEATS: u64 = 4;

/// The longest that a join with these timers waits for a slot that another node makes free.
pub(super) fn longest_wait(timing: Timing) -> Duration {
    timing.fence_after() * WAITS_MAX
}

/// What is under way, with the slots from which one is chosen.
enum State {
    Choosing,
    ForeignLocks(Vec<SlotRecord>, ForeignLockCheck),
    Copies(Vec<SlotRecord>, CopyCheck),
    Searching(Vec<SlotRecord>, Search),
    /// None of these could be had.
    ChoosingAgain(Vec<SlotRecord>),
    /// None of these could be had, and one was not recovered: for a while nothing is done.
    Pausing(Vec<SlotRecord>, LockError),
    /// The same, then: whether that may be another now.
    LookingAgain(Vec<SlotRecord>, LockError),
    /// For a slot that this life makes free.
    Waiting(Option<Life>),
    /// Whether that life shows heartbeats.
    Looking(Life),
    Over,
}

impl Join {
    /// A join of `joiner`. Begins with [`Event::Begin`].
    pub fn new(joiner: Joiner) -> Self {
        let (begun, told, recoverer, names) = (Time::ZERO, false, None, Vec::new());
        let (names_before, pause, state) = (0, 1, State::Choosing);
        Self { joiner, begun, told, recoverer, names, names_before, pause, state }
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
        if let Event::Prepared(mine) = &event {
            self.names.push(mine.node_uuid);
            self.pause = 1 + u32::try_from(mine.nonce % PAUSE_BEATS).unwrap_or_default();
        }
        match (std::mem::replace(&mut self.state, State::Over), event) {
            (State::Choosing, Event::Begin) => {
                self.begun = now;
                self.choose(State::Choosing)
            }
            (State::Waiting(None), Event::Done) => self.choose(State::Choosing),
            (State::Waiting(Some(by)), Event::Done) => {
                self.state = State::Looking(by);
                act(Action::ReadHeartbeats)
            }
            (State::Looking(by), Event::Heartbeats(beats)) => {
                self.note_beat(now, by, &beats);
                self.choose(State::Choosing)
            }
            (State::Looking(_), Event::Failed(e)) => Err(e),
            (State::Choosing, event) => {
                let records = event.slots()?.records;
                let check = ForeignLockCheck::new(&self.joiner);
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
            (State::Pausing(before, why), event) => {
                event.done()?;
                self.choose(State::LookingAgain(before, why))
            }
            (State::LookingAgain(before, why), event) => {
                let look = event.slots()?;
                self.search_again(&before, why, look, now)
            }
            (State::Waiting(_) | State::Looking(_) | State::Over, event) => unasked(&event),
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
                self.names_before = self.names.len();
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
        match search.step(now, event) {
            Ok(Step::Do(action)) => {
                self.state = State::Searching(choice, search);
                act(action)
            }
            Ok(Step::End(Some(joined))) => Ok(Step::End(joined)),
            Ok(Step::End(None)) => self.choose(State::ChoosingAgain(choice)),
            Err(e @ (LockError::Damaged { .. } | LockError::Recovery { .. })) => {
                self.state = State::Pausing(choice, e);
                act(Action::Sleep(self.joiner.timing.beat() * self.pause))
            }
            Err(e) => Err(e),
        }
    }

    /// None of the slots that stood so as in `before` could be had, one of them because of `why`. What was in
    /// the way there may be recovered by now, or be to be recovered with a slot that could not be had before.
    fn search_again(
        &mut self,
        before: &[SlotRecord],
        why: LockError,
        Look { mut records, places, .. }: Look,
        now: Time,
    ) -> Flow<Joined> {
        let is_own = |r: &SlotRecord| self.names.contains(&r.node_uuid);
        let stands = |r: &SlotRecord| before.iter().any(|b| b == r);
        let changed = records.iter().any(|r| !is_own(r) && !stands(r));
        if !changed {
            records.retain(|r| !is_own(r));
        }
        let tried = self.names.len() > self.names_before;
        let lasts = now.saturating_sub(self.begun) < longest_wait(self.joiner.timing);
        if records.is_empty() || !lasts || !(changed || tried) {
            return Err(why);
        }
        self.names_before = self.names.len();
        let search = Search::new(&self.joiner, records.clone(), places).after(why);
        self.search(records, search, now, None)
    }

    /// Notes the heartbeat of `by`, which recovers the dead node of a slot.
    fn note_beat(&mut self, now: Time, by: Life, beats: &[u8]) {
        let at = usize::from(by.slot.0) * self.joiner.sector_len;
        let Some(beat) = beats.get(at..at + self.joiner.sector_len) else { return };
        let is_known = |(life, known, _): &(Life, Vec<u8>, Time)| *life == by && known == beat;
        if !self.recoverer.as_ref().is_some_and(is_known) {
            self.recoverer = Some((by, beat.to_vec(), now));
        }
    }

    /// None of the slots that stood so as in `before` could be had. Waits if one of them comes free, as long
    /// as its recoverer has shown a new heartbeat within [`Timing::fence_after`], up to [`WAITS_MAX`] times
    /// that.
    fn wait_or_refuse(
        &mut self,
        now: Time,
        before: &[SlotRecord],
        records: &[SlotRecord],
    ) -> Flow<Joined> {
        let timing = self.joiner.timing;
        let waits = |coming: &&SlotRecord| {
            let shown = self.recoverer.as_ref().filter(|seen| Some(seen.0) == coming.recoverer);
            let since = shown.map_or(self.begun, |seen| seen.2);
            now.saturating_sub(since) < timing.fence_after()
                && now.saturating_sub(self.begun) < longest_wait(timing)
        };
        let coming = records.iter().find(|r| comes_free(r, before)).filter(waits);
        if let Some(coming) = coming {
            self.state = State::Waiting(coming.recoverer);
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
