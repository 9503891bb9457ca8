//! What the heartbeats of the others say that they wait for.
//!
//! A wish is passed on to the lock once for each heartbeat that has it. One that stands for long is
//! looked at even by nodes that know nothing of the lock: a late write may have made one of them a holder
//! without its knowledge.

use std::collections::HashMap;

use braid_format::LockNo;
use braid_format::node::Heartbeat;

use crate::{Life, Mode};

/// A wish that stands for so many beats is looked at by everybody.
pub const OVERDUE_BEATS: u32 = 8;

/// Wishes that stand, each with the heartbeats in which it stood and the last one's sequence.
#[derive(Debug, Clone, Default)]
pub struct Wishes(HashMap<(Life, LockNo), (u32, u64)>);

/// Another node waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Which.
    pub lock: LockNo,
    /// How it wants it.
    pub mode: Mode,
    /// It has waited for long: who knows nothing of the lock looks, too.
    pub overdue: bool,
}

impl Wishes {
    /// The wishes in the heartbeats of the others that are news.
    pub fn look<'a>(&mut self, others: impl Iterator<Item = &'a Heartbeat>) -> Vec<Wish> {
        let flat = |b: &'a Heartbeat| {
            b.wishes.iter().map(move |(lock, mode)| (b.life, b.sequence, *lock, *mode))
        };
        let wishes: Vec<(Life, u64, LockNo, Mode)> = others.flat_map(flat).collect();
        self.0.retain(|key, _| wishes.iter().any(|w| (w.0, w.2) == *key));
        let mut news = Vec::new();
        for (from, sequence, lock, mode) in wishes {
            let (count, last) = self.0.entry((from, lock)).or_insert((0, 0));
            if *last != sequence {
                (*count, *last) = (*count + 1, sequence);
                news.push(Wish { lock, mode, overdue: *count % OVERDUE_BEATS == 0 });
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use braid_format::features::Features;
    use braid_format::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_wish_is_passed_on_once_a_beat_and_to_everybody_each_eighth() {
        let life = Life { slot: NodeId(1), incarnation: Incarnation(1) };
        let beat = |sequence, wishes| Heartbeat {
            life,
            pool_epoch: 0,
            pool_change: 0,
            sequence,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: Features::KNOWN,
            wishes,
        };
        let mut wishes = Wishes::default();
        let wanted = || vec![(LockNo(5), Mode::Exclusive)];
        for sequence in 1..=16 {
            let overdue = sequence % 8 == 0;
            let wish = Wish { lock: LockNo(5), mode: Mode::Exclusive, overdue };
            let now = beat(sequence, wanted());
            assert_eq!(wishes.look([&now].into_iter()), [wish], "{sequence}");
            assert_eq!(wishes.look([&now].into_iter()), [], "the same heartbeat");
        }
        // It was served meanwhile: the next one is not overdue before its time.
        assert_eq!(wishes.look([&beat(17, Vec::new())].into_iter()), []);
        for sequence in 18..25 {
            assert!(
                wishes.look([&beat(sequence, wanted())].into_iter()).iter().all(|w| !w.overdue)
            );
        }
    }
}
