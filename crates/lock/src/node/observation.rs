//! What a look shows of each slot, and the last heartbeat of each node. Pure: the caller reads, and asks
//! the kernel for locks.

use std::collections::BTreeMap;

use braid_format::NodeId;
use braid_format::node::{Heartbeat, LockPlace, SlotRecord, SlotState};
use braid_pool::EpochTag;

use super::fencing::Means;
use super::life::uses_foreign_locks;
use super::{FenceMethod, HostIdentity, Timing};
use crate::Life;
use crate::dlock::Time;

/// One slot at one look.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, seen at one look")]
pub struct SlotObservation {
    /// Its record.
    pub record: SlotRecord,
    /// Sequence of the last heartbeat of who acts by it (its node, or who takes it over), if there is
    /// one.
    pub sequence: Option<u64>,
    /// Whether a process of this host holds its liveness lock.
    pub life_locked: bool,
    /// Whether that would be seen here ([`HostIdentity::sees_lock_of`]).
    pub lock_visible: bool,
    /// It compares and writes under locks that this node does not see: only one of the two may live.
    pub foreign_locks: bool,
    /// Whether it is known to be fenced.
    pub proven: bool,
    /// Whether there is a way to fence it from here.
    pub fenceable: bool,
}

/// The pool's epoch that a heartbeat says its node uses.
pub fn tag_of(beat: &Heartbeat) -> EpochTag {
    EpochTag { epoch: beat.pool_epoch, change: beat.pool_change }
}

/// The last heartbeat of each slot, and when it was seen first.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats(BTreeMap<NodeId, (Heartbeat, Time)>);

/// No heartbeat of a life is older than another by more beats than this: one of the two is nonsense, and believed no
/// longer than until the next one.
const OLDER: u64 = 1 << 33;

impl Heartbeats {
    /// Takes what was read of a slot's heartbeat; gives it back if it is news. One that is torn by its own
    /// write, or was never written, leaves the last one as it is. So does an older one of the same life: one copy has
    /// been brought over another.
    pub fn note(&mut self, now: Time, slot: NodeId, sector: &[u8]) -> Option<&Heartbeat> {
        let beat = Heartbeat::decode(sector, slot).ok()?;
        let is_older = |last: &Heartbeat| {
            let by = last.sequence.saturating_sub(beat.sequence);
            last.life == beat.life && (1..OLDER).contains(&by)
        };
        let is_no_news = |last: &Heartbeat| *last == beat || is_older(last);
        if self.of_slot(slot).is_some_and(is_no_news) {
            return None;
        }
        self.0.insert(slot, (beat, now));
        self.of_slot(slot)
    }
    /// Of a slot: who wrote it may be over.
    pub fn of_slot(&self, slot: NodeId) -> Option<&Heartbeat> {
        self.0.get(&slot).map(|beat| &beat.0)
    }
    /// Of a life, and when it was seen first.
    pub fn of(&self, life: Life) -> Option<(&Heartbeat, Time)> {
        let last = self.0.get(&life.slot).filter(|last| last.0.life == life)?;
        Some((&last.0, last.1))
    }
    /// All, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Heartbeat> {
        self.0.values().map(|last| &last.0)
    }
}

/// What a node knows at a look besides what it reads.
#[derive(Debug, Clone)]
pub struct Observer<'a> {
    /// Who looks.
    pub me: Life,
    /// Its host.
    pub identity: &'a HostIdentity,
    /// Where it looks for liveness locks.
    pub places: Vec<LockPlace>,
    /// Records are compared and written under kernel locks at these places.
    pub by_lock: bool,
    /// What it has to fence others with.
    pub means: Means,
    /// The pool's epoch that it uses.
    pub epoch: EpochTag,
}

impl Observer<'_> {
    /// Whether it matters if the slot's liveness lock is held. Of who came of late with a heartbeat that
    /// says another epoch it does not: its lock may be on members that are not known here.
    pub fn asks_for_lock(&self, now: Time, record: &SlotRecord, beats: &Heartbeats) -> bool {
        let recent = Timing::of_slot(record.io_timeout).beat() * 2;
        let moving = beats.of(record.acting()).is_some_and(|(beat, seen)| {
            tag_of(beat) != self.epoch && now.saturating_sub(seen) < recent
        });
        record.state != SlotState::Free && record.life != self.me && !moving
    }
    /// What a look shows of a slot. `proven`: who acts by it is known to be fenced.
    pub fn observe(
        &self,
        record: SlotRecord,
        beats: &Heartbeats,
        life_locked: bool,
        proven: bool,
    ) -> SlotObservation {
        let method = self.means.first_for(&record);
        let lock_visible = self.identity.sees_lock_of(&record, &self.places);
        // What is seen to hold its lock is a process that can be ended.
        let fenceable = lock_visible && life_locked || method != FenceMethod::Operator;
        SlotObservation {
            sequence: beats.of(record.acting()).map(|(beat, _)| beat.sequence),
            life_locked,
            lock_visible,
            // Of two that have met, the one that compares under kernel locks leaves. Whoever a person has called dead
            // is not met.
            foreign_locks: record.life != self.me
                && !record.vouched
                && self.by_lock
                && uses_foreign_locks(&record, &self.places, self.by_lock),
            proven,
            fenceable: record.state != SlotState::Free && fenceable,
            record,
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::features::Features;
    use std::time::Duration;

    use braid_format::Incarnation;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn life(slot: u16, incarnation: u32) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) }
    }
    fn sector(life: Life, sequence: u64, epoch: u32) -> Vec<u8> {
        let beat = Heartbeat {
            life,
            pool_epoch: epoch,
            pool_change: 0,
            sequence,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: Features::KNOWN,
            wishes: Vec::new(),
        };
        let mut bytes = vec![0; 512];
        beat.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_heartbeat_is_news_once_and_a_torn_one_never() {
        let mut beats = Heartbeats::default();
        let (slot, first) = (NodeId(1), sector(life(1, 1), 5, 0));
        assert!(beats.note(MS, slot, &first).is_some_and(|b| b.sequence == 5));
        assert!(beats.note(MS * 2, slot, &first).is_none());
        let mut torn = sector(life(1, 1), 6, 0);
        torn[40] ^= 1;
        assert!(beats.note(MS * 3, slot, &torn).is_none());
        let (last, seen) = beats.of(life(1, 1)).unwrap();
        assert_eq!((last.sequence, seen), (5, MS));
        assert!(beats.note(MS * 3, slot, &sector(life(1, 1), 4, 0)).is_none(), "an older copy");
        // Nonsense with a good checksum does not silence a node for ever.
        assert!(beats.note(MS * 3, slot, &sector(life(1, 1), u64::MAX, 0)).is_some());
        assert!(beats.note(MS * 3, slot, &sector(life(1, 1), 6, 0)).is_some());
        // The next life's is not this one's.
        assert!(beats.note(MS * 4, slot, &sector(life(1, 2), 1, 0)).is_some());
        assert!(beats.of(life(1, 1)).is_none());
        assert_eq!(beats.of_slot(slot).map(|b| b.life), Some(life(1, 2)));
    }

    #[test]
    fn whose_lock_may_be_on_other_members_is_not_asked_for_it() {
        let identity = HostIdentity { boot_id: [1; 16], machine_id: [2; 16], host: "h".to_owned() };
        let observer = Observer {
            me: life(0, 1),
            identity: &identity,
            places: Vec::new(),
            by_lock: true,
            means: Means { key: 0, command: false, host: "h".to_owned() },
            epoch: EpochTag { epoch: 7, change: 0 },
        };
        let active = |slot| SlotRecord {
            life: life(slot, 1),
            state: SlotState::Active,
            ..SlotRecord::free(NodeId(slot))
        };
        let mut beats = Heartbeats::default();
        beats.note(MS, NodeId(1), &sector(life(1, 1), 1, 7));
        beats.note(MS, NodeId(2), &sector(life(2, 1), 1, 8));
        let asks = |now, record: &SlotRecord| observer.asks_for_lock(now, record, &beats);
        assert!(!asks(MS, &active(0)) && !asks(MS, &SlotRecord::free(NodeId(3))));
        assert!(asks(MS, &active(1)) && !asks(MS, &active(2)));
        assert!(asks(MS * 501, &active(2)), "that was long ago");
        let seen = |slot| observer.observe(active(slot), &beats, true, false);
        assert!(seen(1).foreign_locks && !seen(0).foreign_locks, "its own locks are never foreign");
        let vouched = SlotRecord { vouched: true, ..active(1) };
        assert!(!observer.observe(vouched, &beats, true, false).foreign_locks, "it is dead");
        assert_eq!((seen(1).sequence, seen(3).sequence), (Some(1), None));
        assert!(!seen(1).fenceable && !seen(1).lock_visible);
    }
}
