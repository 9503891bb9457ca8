//! Looks whose heartbeats stand still for a time.

use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::SlotRecord;

use super::actions::{Action, Event, Flow, Step, act, unasked};
use crate::dlock::Time;
use crate::node::Timing;

/// Between two looks, in beats of the fastest node that is looked at.
const PAUSE_BEATS: u32 = 4;

/// Which of some slots show no new heartbeat. Ends early when none is left.
pub(super) struct Silence {
    /// Those that have shown none so far.
    slots: Vec<NodeId>,
    sector_len: usize,
    time: Duration,
    pause: Duration,
    /// All heartbeats at the first look, and until when is looked.
    before: Option<(Vec<u8>, Time)>,
}

impl Silence {
    /// Of the nodes of `records`, for a `time` that depends on their timers: the longest of all.
    pub fn of(
        records: &[SlotRecord],
        sector_len: usize,
        time: impl Fn(Timing) -> Duration,
    ) -> Self {
        let timings = || records.iter().map(|r| Timing::of_slot(r.io_timeout));
        Self {
            slots: records.iter().map(|r| r.life.slot).collect(),
            sector_len,
            time: timings().map(time).max().unwrap_or_default(),
            pause: timings().map(Timing::beat).min().unwrap_or_default() * PAUSE_BEATS,
            before: None,
        }
    }
    pub fn step(&mut self, now: Time, event: Option<Event>) -> Flow<Vec<NodeId>> {
        match event {
            None if self.slots.is_empty() => Ok(Step::End(Vec::new())),
            None | Some(Event::Done) => act(Action::ReadHeartbeats),
            Some(Event::Heartbeats(beats)) => Ok(self.look(now, &beats)),
            Some(Event::Failed(e)) => Err(e),
            Some(other) => unasked(&other),
        }
    }
    fn look(&mut self, now: Time, beats: &[u8]) -> Step<Vec<NodeId>> {
        let (before, until) = self.before.get_or_insert_with(|| (beats.to_vec(), now + self.time));
        let len = self.sector_len;
        self.slots.retain(|slot| {
            let range = usize::from(slot.0) * len..(usize::from(slot.0) + 1) * len;
            before.get(range.clone()) == beats.get(range)
        });
        let left = until.saturating_sub(now);
        if self.slots.is_empty() || left.is_zero() {
            return Step::End(std::mem::take(&mut self.slots));
        }
        Step::Do(Action::Sleep(left.min(self.pause)))
    }
}
