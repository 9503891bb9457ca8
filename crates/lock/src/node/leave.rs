//! How a node gives its slot back.
//!
//! ```text
//!  Begin -> Stop (threads, and with them the heartbeats) -> EndLease -> Write Active -> Free
//!                                                                          |          |
//!                                            GiveKeyBack <- it stands -----+          | it does not
//!                                                 |                                   |
//!                                                 +---------> LetLifeGo <-------------+
//!                                                                 |
//!                                                                End: left, or others recover it
//! ```
//!
//! The liveness lock is let go last: until then nobody takes the slot, or takes this node for dead.

use braid_format::node::SlotRecord;

use super::life::freed;
use super::slot_write::Outcome;

/// A node that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leave {
    nonce: u64,
    outcome: Outcome,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Everything dirty is in place; the node is to leave.
    Begin,
    /// Answer to [`Action::Stop`].
    Stopped,
    /// Answer to [`Action::EndLease`]: what the slot says, as this node wrote it last.
    LeaseEnded(Box<SlotRecord>),
    /// Answer to [`Action::Write`].
    Wrote(Outcome),
    /// Answer to [`Action::GiveKeyBack`].
    KeyGivenBack,
    /// Answer to [`Action::LetLifeGo`].
    LifeLetGo,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// End all threads of this node.
    Stop,
    /// The lease begins once more: nobody extends it any longer, and what is left to change says by
    /// itself whether the slot is still this node's.
    EndLease,
    /// Compare and write the slot.
    Write {
        /// What stands.
        expected: Box<SlotRecord>,
        /// What shall stand.
        new: Box<SlotRecord>,
    },
    /// Give the key back to every member.
    GiveKeyBack,
    /// Let the liveness lock go.
    LetLifeGo,
    /// The node has left if the slot's new record stands; else others recover it.
    End(Outcome),
}

impl Leave {
    /// `nonce` was never used before in this slot.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, outcome: Outcome::Failed }
    }
    /// Takes an event, says what to do.
    pub fn step(&mut self, event: Event) -> Action {
        match event {
            Event::Begin => Action::Stop,
            Event::Stopped => Action::EndLease,
            Event::LeaseEnded(expected) => {
                let new = Box::new(freed(&expected, self.nonce));
                Action::Write { expected, new }
            }
            Event::Wrote(outcome) => {
                self.outcome = outcome;
                if outcome == Outcome::Committed { Action::GiveKeyBack } else { Action::LetLifeGo }
            }
            Event::KeyGivenBack => Action::LetLifeGo,
            Event::LifeLetGo => Action::End(self.outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::NodeId;
    use braid_format::node::SlotState;

    use super::*;

    #[test]
    fn the_key_goes_only_with_the_slot_and_the_liveness_lock_last() {
        let mine = SlotRecord { state: SlotState::Active, ..SlotRecord::free(NodeId(3)) };
        for outcome in [Outcome::Committed, Outcome::Lost, Outcome::Failed] {
            let mut leave = Leave::new(77);
            assert_eq!(leave.step(Event::Begin), Action::Stop);
            assert_eq!(leave.step(Event::Stopped), Action::EndLease);
            let Action::Write { expected, new } =
                leave.step(Event::LeaseEnded(Box::new(mine.clone())))
            else {
                panic!("the slot is written next")
            };
            assert_eq!((*expected, new.state, new.nonce), (mine.clone(), SlotState::Free, 77));
            let mut next = leave.step(Event::Wrote(outcome));
            if outcome == Outcome::Committed {
                assert_eq!(next, Action::GiveKeyBack);
                next = leave.step(Event::KeyGivenBack);
            }
            assert_eq!(next, Action::LetLifeGo);
            assert_eq!(leave.step(Event::LifeLetGo), Action::End(outcome));
        }
    }
}
