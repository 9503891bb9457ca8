//! How a node follows another one's freeze of the pool. Pure: the caller looks at heartbeats, and does what comes out.
//!
//! ```text
//!  the node that freezes                       each other node
//!  heartbeat: "prepared"  ------------------>  makes stable what its programs have written
//!                         <------------------  heartbeat: "prepared"
//!  all have answered:
//!  heartbeat: "frozen"    ------------------>  its changes wait; those under way have ended
//!                         <------------------  heartbeat: "frozen"
//!  all have answered: nobody changes anything but lock records, slots and heartbeats
//!  no word of a freeze    ------------------>  its changes go on
//! ```
//!
//! Two steps, because what a node makes stable may need locks of another one, which must be able to write then. A
//! freeze ends, too, when its slot is not that node's any more, or when its time is over: each node counts that for
//! itself, from when it was asked, so that it ends nowhere before it ends where it was begun. Of two nodes that begin at
//! once the one in the lower slot goes on.

use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{
    FreezeAnswer, FreezeOrder, FreezeStage, Heartbeat, SlotRecord, SlotState,
};

use super::observation::Heartbeats;
use crate::Life;
use crate::dlock::Time;

/// The longest time of a freeze, seconds: whatever a heartbeat says that was read from disk.
const SECONDS_MAX: u32 = 86_400;

/// A freeze that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Followed {
    by: Life,
    id: u32,
    asked: FreezeStage,
    reached: Option<FreezeStage>,
    until: Time,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Follow this life's freeze so far, then say so ([`Follower::reached`]).
    Follow(Life, FreezeOrder),
    /// Let changes go on.
    Thaw {
        /// Whose freeze it was.
        by: Life,
        /// Its time is over.
        late: bool,
    },
}

/// The freezes of others, as a node follows them.
#[derive(Debug, Default)]
pub struct Follower {
    followed: Option<Followed>,
    /// One whose time is over.
    over: Option<(Life, u32)>,
}

impl Follower {
    /// `orders`: of other nodes, by slot.
    pub fn look(&mut self, now: Time, orders: &[(Life, FreezeOrder)]) -> Option<Action> {
        let Some(followed) = &mut self.followed else {
            let (by, order) =
                *orders.iter().find(|(by, order)| self.over != Some((*by, order.id)))?;
            let (id, asked) = (order.id, order.stage);
            let until = now + time_of(&order);
            self.followed = Some(Followed { by, id, asked, reached: None, until });
            return Some(Action::Follow(by, order));
        };
        let by = followed.by;
        let stands = orders.iter().find(|(of, order)| *of == by && order.id == followed.id);
        let late = now >= followed.until;
        match stands {
            Some((_, order)) if !late => (order.stage > followed.asked).then(|| {
                followed.asked = order.stage;
                followed.until = now + time_of(order);
                Action::Follow(by, *order)
            }),
            _ => {
                self.over = stands.map(|(_, order)| (by, order.id));
                self.followed = None;
                Some(Action::Thaw { by, late: stands.is_some() })
            }
        }
    }
    /// That freeze is followed so far; false: it is not to be followed any more.
    pub fn reached(&mut self, by: Life, order: &FreezeOrder) -> bool {
        let followed = self.followed.as_mut().filter(|f| f.by == by && f.id == order.id);
        followed.map(|f| f.reached = f.reached.max(Some(order.stage))).is_some()
    }
    /// What the heartbeat says of it.
    pub fn answer(&self) -> Option<FreezeAnswer> {
        let Followed { by, id, reached, .. } = self.followed?;
        reached.map(|stage| FreezeAnswer { slot: by.slot, id, stage })
    }
    /// Whose freeze is followed, and whether changes wait for it here.
    pub fn by(&self) -> Option<(Life, bool)> {
        self.followed.map(|f| (f.by, f.reached == Some(FreezeStage::Frozen)))
    }
}

fn time_of(order: &FreezeOrder) -> Duration {
    Duration::from_secs(u64::from(order.seconds))
}

/// What the nodes besides `me` whose slots are theirs ask of the others, by slot.
pub fn orders<'a>(
    me: Option<Life>,
    slots: impl Iterator<Item = &'a SlotRecord>,
    beats: &Heartbeats,
) -> Vec<(Life, FreezeOrder)> {
    let others = slots.filter(|r| r.state == SlotState::Active && Some(r.life) != me);
    others.filter_map(|r| Some((r.life, bounded(beats.of(r.life)?.0.freeze?)))).collect()
}

/// As it is followed.
fn bounded(order: FreezeOrder) -> FreezeOrder {
    FreezeOrder { seconds: order.seconds.min(SECONDS_MAX), ..order }
}

/// The nodes besides `me` that have not followed the freeze `order` of `me` so far, or cannot.
pub fn missing<'a>(
    me: Life,
    order: &FreezeOrder,
    slots: impl Iterator<Item = &'a SlotRecord>,
    beats: &Heartbeats,
) -> Vec<NodeId> {
    let follows = |beat: &Heartbeat| {
        let answer =
            |a: FreezeAnswer| (a.slot, a.id) == (me.slot, order.id) && a.stage >= order.stage;
        beat.followed.is_some_and(answer)
    };
    slots
        .filter(|r| r.state != SlotState::Free && r.life != me)
        .filter(|r| {
            r.state != SlotState::Active || !beats.of(r.life).is_some_and(|(b, _)| follows(b))
        })
        .map(|r| r.life.slot)
        .collect()
}

#[cfg(test)]
mod tests {
    use braid_format::Incarnation;

    use super::*;

    const NODE: Life = Life { slot: NodeId(1), incarnation: Incarnation(7) };

    fn order(id: u32, stage: FreezeStage) -> FreezeOrder {
        FreezeOrder { stage, id, seconds: 10 }
    }
    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn it_follows_step_by_step_and_says_so() {
        let mut follower = Follower::default();
        assert_eq!(follower.look(at(0), &[]), None);
        let prepare = order(5, FreezeStage::Prepared);
        let action = follower.look(at(1), &[(NODE, prepare)]);
        assert_eq!(action, Some(Action::Follow(NODE, prepare)));
        assert_eq!((follower.answer(), follower.look(at(2), &[(NODE, prepare)])), (None, None));
        assert!(follower.reached(NODE, &prepare));
        let answer = FreezeAnswer { slot: NODE.slot, id: 5, stage: FreezeStage::Prepared };
        assert_eq!((follower.answer(), follower.by()), (Some(answer), Some((NODE, false))));
        let freeze = order(5, FreezeStage::Frozen);
        let action = follower.look(at(10), &[(NODE, freeze)]);
        assert_eq!(action, Some(Action::Follow(NODE, freeze)), "its time begins anew");
        assert!(follower.reached(NODE, &freeze));
        assert_eq!(follower.by(), Some((NODE, true)));
        assert_eq!(follower.look(at(19), &[(NODE, freeze)]), None);
        let thaw = Action::Thaw { by: NODE, late: false };
        assert_eq!((follower.look(at(19), &[]), follower.answer()), (Some(thaw), None));
        assert!(!follower.reached(NODE, &freeze), "what comes late counts for nothing");
    }

    #[test]
    fn a_freeze_whose_time_is_over_is_followed_no_more() {
        let mut follower = Follower::default();
        let freeze = [(NODE, order(5, FreezeStage::Frozen))];
        assert!(follower.look(at(0), &freeze).is_some());
        assert_eq!(follower.look(at(9), &freeze), None);
        assert_eq!(follower.look(at(10), &freeze), Some(Action::Thaw { by: NODE, late: true }));
        assert_eq!(follower.look(at(11), &freeze), None);
        let next = [(NODE, order(6, FreezeStage::Prepared))];
        assert!(matches!(follower.look(at(12), &next), Some(Action::Follow(..))));
    }

    #[test]
    fn no_freeze_lasts_longer_than_a_day_whatever_a_heartbeat_says() {
        let hostile = FreezeOrder { seconds: u32::MAX, ..order(5, FreezeStage::Frozen) };
        assert_eq!(bounded(hostile), FreezeOrder { seconds: 86_400, ..hostile });
        let usual = order(5, FreezeStage::Frozen);
        assert_eq!(bounded(usual), usual);
    }

    #[test]
    fn another_freeze_waits_until_the_first_is_over() {
        let mut follower = Follower::default();
        let lower = Life { slot: NodeId(0), incarnation: Incarnation(1) };
        let (first, second) = (order(5, FreezeStage::Prepared), order(8, FreezeStage::Prepared));
        assert!(follower.look(at(0), &[(NODE, first)]).is_some());
        assert_eq!(follower.look(at(1), &[(lower, second), (NODE, first)]), None);
        let thaw = Action::Thaw { by: NODE, late: false };
        assert_eq!(follower.look(at(2), &[(lower, second)]), Some(thaw));
        let follow = Action::Follow(lower, second);
        assert_eq!(follower.look(at(3), &[(lower, second)]), Some(follow));
    }
}
