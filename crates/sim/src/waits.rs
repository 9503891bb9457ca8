//! No wait goes on for ever, in the middle of a history either: while nothing is wrong, each ends in time.
//!
//! A wait may last as long as what it waits for is dead and not recovered, stopped, cut off or broken. So only the time
//! counts in which everything was well: no node is dead and unrecovered, none is stopped or cut off, every device
//! answers, and nobody has died of late (a node that dies while it takes a slot over is known to nobody before).

use std::time::Duration;

use braid_lock::dlock::Time;
use braid_lock::node::lease::Lease;

use super::work::Work;
use crate::node::{Process, State};
use crate::world::{Pid, World};

/// Nobody has died for so long.
const SINCE_DEATH: Duration = Duration::from_secs(2);
/// How long a wait may last while everything is well.
const BOUND: Duration = Duration::from_millis(2500);

impl World {
    /// Somebody has died.
    pub(crate) fn note_death(&mut self) {
        self.well_since = None;
        self.last_death = self.now;
    }
    /// Looks at all waits, once in each heartbeat.
    pub(crate) fn check_waits(&mut self) {
        if !self.is_well() {
            self.well_since = None;
            return;
        }
        let well = *self.well_since.get_or_insert(self.now.max(self.last_death + SINCE_DEATH));
        let all = self.processes.iter().enumerate();
        let waits = all.filter(|(_, p)| p.state != State::Gone).find_map(|(pid, p)| {
            let too_long = |since: Time| self.now > since.max(well) + BOUND;
            let what = longest_wait(pid, p, &too_long)?;
            Some(format!("{what}, and everything is well since {well:?}"))
        });
        if let Some(what) = waits {
            self.fail(what);
        }
    }
    fn is_well(&self) -> bool {
        let now = self.now;
        let lasts = |lease: &Lease| lease.lasts(now);
        let well = |p: &Process| match p.state {
            State::Gone => p.me.is_none() || p.recovered || p.left,
            _ => {
                p.stalled_until <= now
                    && p.cut_off_until <= now
                    && p.member.lease().is_none_or(lasts)
            }
        };
        let readable = self.bad_slots.is_empty() || !self.faulty();
        readable && !self.members.is_broken() && self.processes.iter().all(well)
    }
}

/// What a process has waited for too long.
fn longest_wait(pid: Pid, process: &Process, too_long: &dyn Fn(Time) -> bool) -> Option<String> {
    let mut threads = process.waits.iter().flatten();
    if let Some(since) = threads.find(|since| too_long(**since)) {
        return Some(format!("a thread of process {pid} waits since {since:?}"));
    }
    let mut tasks = process.work.iter().flat_map(Work::under_way);
    if let Some((task, since)) = tasks.find(|(_, since)| too_long(*since)) {
        return Some(format!("process {pid} is at {task:?} since {since:?}"));
    }
    let since = process.started;
    let joins = process.state == State::Joining && too_long(since);
    joins.then(|| format!("process {pid} joins since {since:?}"))
}
