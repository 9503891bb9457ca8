//! What etcd remembers of heartbeats. By that devices and etcd show whether they belong together: an image of the
//! devices is behind what etcd remembers, and a copy of etcd's data is behind the devices.
//!
//! A node has its heartbeat remembered when it joins, at the end of a freeze (after which images are complete), and when
//! it leaves. Before, the members have made it stable: what is remembered cannot be lost by a power cut.

use std::collections::HashMap;

use braid_format::node::{SlotRecord, SlotState};
use braid_format::{Incarnation, NodeId};

use super::client::Pair;
use super::keys::slot_number;
use crate::Life;

/// A heartbeat of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beat {
    pub incarnation: Incarnation,
    pub sequence: u64,
}

/// A heartbeat that etcd remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remembered {
    pub beat: Beat,
    /// Its node wrote none after it: it left.
    pub last: bool,
}

/// Which of the two is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Devices,
    Etcd,
}

impl Remembered {
    pub fn encode(&self) -> String {
        let Beat { incarnation, sequence } = self.beat;
        let last = if self.last { " last" } else { "" };
        format!("{} {sequence}{last}", incarnation.0)
    }

    /// `None`: it says nothing that this version understands.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut words = text.split(' ');
        let incarnation = Incarnation(words.next()?.parse().ok()?);
        let beat = Beat { incarnation, sequence: words.next()?.parse().ok()? };
        Some(Self { beat, last: words.next() == Some("last") })
    }

    /// What of a slot is behind the other, if anything is: what the slot's record says in etcd, and the heartbeat on
    /// the devices.
    fn behind(&self, slot: &SlotRecord, on_devices: Beat) -> Option<Behind> {
        let order = |beat: Beat| (beat.incarnation.0, beat.sequence);
        if order(on_devices) < order(self.beat) {
            return Some(Behind::Devices);
        }
        // As etcd has it nobody had the slot since. A slot that is taken has its heartbeat before it is remembered.
        let is_left =
            slot.state == SlotState::Free && slot.life.incarnation == self.beat.incarnation;
        let goes_on = order(on_devices) > order(self.beat);
        (self.last && is_left && goes_on).then_some(Behind::Etcd)
    }
}

/// The first slot whose heartbeat on the devices does not go with what is remembered of it. A slot whose heartbeat or
/// record cannot be read says nothing.
pub(super) fn first_behind(
    remembered: &[Pair],
    slots: &[SlotRecord],
    on_devices: &[Life],
    sequence: &dyn Fn(Life) -> Option<u64>,
) -> Option<(NodeId, Behind)> {
    let slots: HashMap<NodeId, &SlotRecord> = slots.iter().map(|s| (s.life.slot, s)).collect();
    let judged = remembered.iter().filter_map(|(key, value)| {
        let (slot, remembered) = (slot_number(key)?, Remembered::decode(value)?);
        let life = on_devices.iter().find(|life| life.slot == slot)?;
        let beat = Beat { incarnation: life.incarnation, sequence: sequence(*life)? };
        Some((slot, remembered.behind(slots.get(&slot)?, beat)?))
    });
    judged.min_by_key(|(slot, _)| *slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: NodeId = NodeId(3);

    fn record(state: SlotState, incarnation: u32) -> SlotRecord {
        let mut record = SlotRecord { state, ..SlotRecord::free(SLOT) };
        record.life.incarnation = Incarnation(incarnation);
        record
    }

    fn judge(
        remembered: &str,
        slot: &SlotRecord,
        (incarnation, sequence): (u32, u64),
    ) -> Option<Behind> {
        let pair = ("p/beats/0003".to_owned(), remembered.as_bytes().to_vec());
        let life = Life { slot: SLOT, incarnation: Incarnation(incarnation) };
        let found = first_behind(&[pair], std::slice::from_ref(slot), &[life], &|_| Some(sequence));
        found.map(|(slot, behind)| {
            assert_eq!(slot, SLOT);
            behind
        })
    }

    #[test]
    fn devices_that_lack_a_remembered_heartbeat_are_behind() {
        let (free, active) = (record(SlotState::Free, 7), record(SlotState::Active, 7));
        for slot in [&free, &active] {
            for remembered in ["7 100", "7 100 last"] {
                assert_eq!(judge(remembered, slot, (7, 99)), Some(Behind::Devices));
                assert_eq!(judge(remembered, slot, (6, 500)), Some(Behind::Devices));
                assert_eq!(judge(remembered, slot, (7, 100)), None);
            }
        }
    }

    #[test]
    fn etcd_is_behind_where_its_node_has_left_and_the_devices_have_more() {
        let left = record(SlotState::Free, 7);
        assert_eq!(judge("7 100 last", &left, (7, 101)), Some(Behind::Etcd));
        assert_eq!(judge("7 100 last", &left, (8, 1)), Some(Behind::Etcd));
        // It was recovered by another node, which does not know how far it came.
        assert_eq!(judge("7 100", &left, (7, 101)), None);
        // The next one has taken the slot, and died before etcd remembered it; it may be recovered by now.
        assert_eq!(judge("7 100 last", &record(SlotState::Active, 8), (8, 1)), None);
        assert_eq!(judge("7 100 last", &record(SlotState::Free, 8), (8, 1)), None);
    }

    #[test]
    fn what_is_not_understood_says_nothing() {
        let slot = record(SlotState::Free, 7);
        for odd in ["", "7", "x 1", "7 x last", "-1 5", "7 1 then 2"] {
            let decoded = Remembered::decode(odd.as_bytes());
            assert!(decoded.is_none_or(|r| !r.last), "{odd}");
            assert_eq!(judge(odd, &slot, (7, 1)), None, "{odd}");
        }
        assert_eq!(
            first_behind(&[("p/beats/zz".to_owned(), b"7 1".to_vec())], &[], &[], &|_| None),
            None
        );
        for last in [false, true] {
            let beat = Beat { incarnation: Incarnation(7), sequence: u64::MAX };
            let remembered = Remembered { beat, last };
            assert_eq!(Remembered::decode(remembered.encode().as_bytes()), Some(remembered));
        }
    }
}
