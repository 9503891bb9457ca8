//! Refuses a join while a node lives whose compare-and-writes are under *foreign locks*: kernel locks
//! that this process does not see.

use braid_format::node::SlotRecord;

use super::actions::{Action, Event, Flow, Joiner, Look, Step, act};
use super::silence::Silence;
use crate::dlock::Time;
use crate::error::LockError;
use crate::node::life::uses_foreign_locks;

/// Beats for which a node is looked at that could not live beside this one.
pub(super) const FOREIGN_LOCK_BEATS: u32 = 8;

/// Where records are compared and written under kernel locks, a living node that locks another place
/// (another host, or another device node of the same disk) would change them at the same time.
pub(super) struct ForeignLockCheck {
    joiner: Joiner,
    state: State,
}

enum State {
    Reading,
    /// Are they silent?
    Watching(Vec<SlotRecord>, Silence),
    /// These were not. A node whose members have just changed has said meanwhile where its locks are now.
    ReadingAgain(Vec<SlotRecord>),
}

impl ForeignLockCheck {
    /// Nothing is known of the slots.
    pub fn new(joiner: &Joiner) -> Self {
        Self { joiner: joiner.clone(), state: State::Reading }
    }
    /// # Errors
    /// [`LockError::ForeignLocks`].
    pub fn step(&mut self, now: Time, event: Option<Event>) -> Flow<()> {
        let Some(event) = event else { return act(Action::ReadSlots) };
        match std::mem::replace(&mut self.state, State::Reading) {
            State::Reading => {
                let Look { records, places, by_lock } = event.slots()?;
                let is_foreign = |r: &SlotRecord| uses_foreign_locks(r, &places, by_lock);
                let foreign: Vec<_> = records.into_iter().filter(is_foreign).collect();
                let len = self.joiner.sector_len;
                let silence = Silence::of(&foreign, len, |t| t.beat() * FOREIGN_LOCK_BEATS);
                self.watch(foreign, silence, now, None)
            }
            State::Watching(foreign, silence) => self.watch(foreign, silence, now, Some(event)),
            State::ReadingAgain(beating) => self.refuse(&beating, &event.slots()?),
        }
    }
    fn watch(
        &mut self,
        mut foreign: Vec<SlotRecord>,
        mut silence: Silence,
        now: Time,
        event: Option<Event>,
    ) -> Flow<()> {
        match silence.step(now, event)? {
            Step::Do(action) => {
                self.state = State::Watching(foreign, silence);
                act(action)
            }
            Step::End(quiet) => {
                foreign.retain(|r| !quiet.contains(&r.life.slot));
                if foreign.is_empty() {
                    return Ok(Step::End(()));
                }
                self.state = State::ReadingAgain(foreign);
                act(Action::ReadSlots)
            }
        }
    }
    fn refuse(&self, beating: &[SlotRecord], look: &Look) -> Flow<()> {
        let same = |r: &&SlotRecord| beating.iter().any(|b| b.life == r.life);
        let mut same = look.records.iter().filter(same);
        match same.find(|r| uses_foreign_locks(r, &look.places, look.by_lock)) {
            None => Ok(Step::End(())),
            Some(r) => Err(LockError::ForeignLocks {
                node: r.life,
                host: r.host.as_str().into(),
                here: self.joiner.identity.is_boot_of(r),
            }),
        }
    }
}
