//! What a member has missed while it was offline.
//!
//! As long as the label says that a member is offline, each node notes a region, durably, before its first write
//! there ([`super::log::Log::note`]), on every member that is in use. It notes, too, what it was writing when it took
//! up the epoch: some of that may not be durable on the member. A node that recovers another one notes what
//! that one was writing, before it forgets it. So all that the member lacks is in a region that some slot's log
//! names, as missed or still as being written, but for what is written without a note: heartbeats, and what a node
//! writes before it has its log. These are before [`Topology::unnoted`], which is filled in any case; a write without a
//! note anywhere else is refused ([`super::EpochInUse::note`]).
//!
//! A region that is noted without need costs only time. So logs of slots that nobody has count too, whatever their
//! age. A record that cannot be read, or is damaged, on any member that should have it says that everything was missed.
//! So does a member in use without any record: the node that took the other one offline wrote one there.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use braid_format::Bytes;

use super::log::intents::Kind;
use super::log_recovery::{FoundRegions, all_hold, slots};
use crate::topology::Topology;

/// Runs of the pool's bytes, in order, none of which touches another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Missed(Vec<(u64, u64)>);

impl Missed {
    /// What all slots' logs say, in an epoch that all nodes use and in which the member gets every write: what is
    /// noted from now on, it has.
    pub fn read(topology: &Topology) -> Self {
        let mut missed = Self(vec![(0, topology.unnoted.load(Ordering::Acquire))]);
        let mut holders = BTreeSet::new();
        for slot in slots(topology) {
            // Who recovers a slot notes there as missed what it then takes out of the intents.
            for kind in [Kind::Intent, Kind::Missed] {
                let found = FoundRegions::read_settled(topology, slot, kind);
                if found.doubtful {
                    return Self(vec![(0, u64::MAX)]);
                }
                // At once: what many slots name is kept once.
                missed.add(Self::of(found.bytes().collect()));
                if kind == Kind::Missed {
                    holders.extend(found.holders);
                }
            }
        }
        if !all_hold(topology, &holders) {
            return Self(vec![(0, u64::MAX)]);
        }
        missed
    }

    /// Adds what `other` has.
    pub fn add(&mut self, mut other: Self) {
        other.0.append(&mut self.0);
        *self = Self::of(other.0);
    }

    fn of(mut runs: Vec<(u64, u64)>) -> Self {
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in runs {
            match merged.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// Whether some byte of `from..to` was missed.
    pub fn has(&self, from: u64, to: u64) -> bool {
        let behind = self.0.partition_point(|run| run.1 <= from);
        self.0.get(behind).is_some_and(|run| run.0 < to)
    }
}

/// How much of a member is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchUp {
    /// Bytes of the pool in what is filled, about.
    pub fill: Bytes,
    /// The same, if all of the member were filled.
    pub whole: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_one_and_ends_are_exclusive() {
        let missed = Missed::of(vec![(30, 40), (0, 10), (10, 20), (35, 50)]);
        assert_eq!(missed, Missed(vec![(0, 20), (30, 50)]));
        for (from, to, has) in [
            (0, 1, true),
            (19, 30, true),
            (20, 30, false),
            (29, 31, true),
            (49, 90, true),
            (50, 90, false),
        ] {
            assert_eq!(missed.has(from, to), has, "{from}..{to}");
        }
        let mut both = Missed::of(vec![(60, 70)]);
        both.add(missed);
        both.add(Missed::of(vec![(50, 55), (0, 20)]));
        assert_eq!(both, Missed(vec![(0, 20), (30, 55), (60, 70)]));
    }
}
