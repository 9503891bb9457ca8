//! How hand-overs that began with a message went, with each other node.

use std::collections::HashMap;
use std::time::Duration;

use braid_format::NodeId;
use braid_format::lock_record::Life;
use parking_lot::Mutex;

/// Locks that one other node was asked for by a message, in its present life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AskStats {
    /// Messages sent that ask for a lock.
    pub asks: u64,
    /// Of these, answered by a message with the lock. The others were granted by the record.
    pub given: u64,
    /// From an ask to the grant, by whatever way it came: the mean of about the last eight.
    pub mean: Option<Duration>,
}

/// Of each slot, the life there.
#[derive(Debug, Default)]
pub(super) struct PeerAsks(Mutex<HashMap<NodeId, (Life, AskStats)>>);

impl PeerAsks {
    /// With `peer`; nothing is known of a life that was never asked.
    pub(super) fn of(&self, peer: Life) -> AskStats {
        let all = self.0.lock();
        all.get(&peer.slot)
            .filter(|(life, _)| *life == peer)
            .map_or_else(AskStats::default, |p| p.1)
    }
    /// `peer` is asked.
    pub(super) fn asked(&self, peer: Life) {
        self.change(peer, |with| with.asks += 1);
    }
    /// The lock came so long after `peer` was asked for it; `given`: by its answer.
    pub(super) fn granted(&self, peer: Life, took: Duration, given: bool) {
        self.change(peer, |with| {
            with.given += u64::from(given);
            let mean = with.mean.unwrap_or(took);
            with.mean = Some((mean * 7 + took) / 8);
        });
    }
    fn change(&self, peer: Life, change: impl FnOnce(&mut AskStats)) {
        let mut all = self.0.lock();
        let with = all.entry(peer.slot).or_insert((peer, AskStats::default()));
        if with.0 != peer {
            *with = (peer, AskStats::default());
        }
        change(&mut with.1);
    }
}

#[cfg(test)]
mod tests {
    use braid_format::Incarnation;

    use super::*;

    #[test]
    fn each_life_of_a_slot_is_counted_anew() {
        let all = PeerAsks::default();
        let life = |n| Life { slot: NodeId(3), incarnation: Incarnation(n) };
        all.asked(life(1));
        all.asked(life(1));
        all.granted(life(1), Duration::from_micros(80), true);
        all.granted(life(1), Duration::from_micros(160), false);
        let with = AskStats { asks: 2, given: 1, mean: Some(Duration::from_micros(90)) };
        assert_eq!(all.of(life(1)), with);
        assert_eq!(all.of(life(2)), AskStats::default());
        all.asked(life(2));
        assert_eq!((all.of(life(2)).asks, all.of(life(1)).asks), (1, 0));
    }
}
