//! What a node knows of the others, for people.

use std::time::Duration;

use braid_format::LockNo;
use braid_format::node::{SlotRecord, SlotState};
use braid_pool::EpochTag;

use super::super::waits::LONG;
use super::super::{FenceMethod, NodeView, NodeWait, Timing};
use super::{Inner, tag_of};
use crate::Me;

impl Inner {
    /// See [`Membership::nodes`].
    pub(super) fn nodes(&self) -> Vec<NodeView> {
        let methods = self.fencer().methods();
        let here = self.store.pool().epoch();
        let unreadable = self.unreadable.lock().clone();
        let slots = self.slots.read();
        let known = |r: &&SlotRecord| {
            r.state != SlotState::Free && unreadable.iter().all(|u| u.slot != r.life.slot)
        };
        let taken = slots.iter().map(|s| &s.record).filter(known);
        let unknown = unreadable.iter().map(|u| NodeView::unreadable(u.slot, u.why.clone()));
        unknown.chain(taken.map(|r| self.view(r, here, self.method(r, &methods)))).collect()
    }

    /// What people want to know of the node of a slot. `here`: the epoch in use.
    pub(super) fn view(&self, r: &SlotRecord, here: EpochTag, fence: FenceMethod) -> NodeView {
        let timing = Timing::of_slot(r.io_timeout);
        let (silent, beat) = self.silence(r);
        let fresh = r.life == self.me || silent < timing.suspect();
        let stuck = beat.as_ref().filter(|b| tag_of(b) == here).and_then(|b| b.stuck);
        NodeView {
            life: r.life,
            state: r.state,
            recoverer: r.recoverer,
            host: r.host.clone(),
            pid: r.pid,
            mount_point: r.mount_point.clone(),
            since: r.since,
            beating: fresh,
            damage: r.damage,
            unreadable: None,
            last_beat: beat.as_ref().map(|_| silent),
            stuck,
            epoch: beat.map(|b| b.pool_epoch),
            fence,
            key: r.fence_key,
            timing,
        }
    }

    /// See [`Membership::waits`].
    pub(super) fn waits(&self) -> Vec<NodeWait> {
        let all: Vec<_> = self.managers().flat_map(|m| m.waits(LONG)).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let nodes = self.nodes().into_iter().filter(|n| n.life != self.me);
        let waits = nodes.map(|node| {
            let of = |held: &&(LockNo, Duration, Vec<Me>)| held.2.contains(&node.life);
            let longest = all.iter().filter(of).map(|w| w.1).max().unwrap_or_default();
            NodeWait { locks: all.iter().filter(of).count(), longest, node }
        });
        waits.filter(|w| w.locks > 0).collect()
    }
}
