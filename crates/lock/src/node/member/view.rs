//! What a node knows of the others, for people.

use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};
use braid_pool::EpochTag;

use super::super::life::user_of;
use super::super::observation::tag_of;
use super::super::waits::{Awaited, LONG};
use super::super::{FenceMethod, NodeView, NodeWait, Timing};
use super::state::NodeState;
use crate::Life;

impl NodeState {
    /// See [`Membership::nodes`].
    pub(super) fn nodes(&self) -> Vec<NodeView> {
        let means = self.fencer().means();
        let here = self.store.pool().epoch();
        let unreadable = self.unreadable.lock().clone();
        let slots = self.slots.read();
        let known = |r: &&SlotRecord| {
            r.state != SlotState::Free && unreadable.iter().all(|u| u.slot != r.life.slot)
        };
        let taken = slots.iter().map(|s| &s.record).filter(known);
        let unknown = unreadable.iter().map(|u| NodeView::unreadable(u.slot, u.why.clone()));
        unknown.chain(taken.map(|r| self.view(r, here, self.method(r, &means)))).collect()
    }

    /// What people want to know of the node of a slot. `here`: the epoch in use.
    pub(super) fn view(&self, r: &SlotRecord, here: EpochTag, fence: FenceMethod) -> NodeView {
        let timing = Timing::of_slot(r.io_timeout);
        let (silent, beat) = self.silence(r);
        let fresh = r.life == self.me || silent < timing.suspect_after();
        let stuck = beat.as_ref().filter(|b| tag_of(b) == here).and_then(|b| b.stuck);
        NodeView {
            life: r.life,
            state: r.state,
            recoverer: r.recoverer,
            host: r.host.clone(),
            of_this_host: self.identity.is_boot_of(r),
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
            messages: (r.life != self.me).then(|| self.hints.way(r)),
            asks: self.manager().map(|m| m.asks_of(r.life)).unwrap_or_default(),
        }
    }

    /// See [`Membership::waits`].
    pub(super) fn waits(&self) -> Vec<NodeWait> {
        let locks: Vec<_> = self.managers().flat_map(|m| m.waits(LONG)).collect();
        let behind = self.behind();
        if locks.is_empty() && behind.is_empty() {
            return Vec::new();
        }
        let mut waits = Vec::new();
        for node in self.nodes().into_iter().filter(|n| n.life != self.me) {
            // Which life it was is not known of a slot that cannot be read.
            let unreadable = node.unreadable.is_some();
            let is_it =
                |life: &Life| *life == node.life || unreadable && life.slot == node.life.slot;
            let of: Vec<_> = locks.iter().filter(|held| held.2.iter().any(is_it)).collect();
            let longest = of.iter().map(|w| w.1).max();
            let of_locks = longest.map(|longest| (Awaited::Locks(of.len()), longest));
            let of_epoch = behind.iter().find(|b| b.0 == node.life.slot);
            let of_epoch = of_epoch.map(|(_, epoch, since)| (Awaited::Epoch(*epoch), *since));
            for (awaited, longest) in of_epoch.into_iter().chain(of_locks) {
                let seen = node.fence == FenceMethod::Kernel;
                let stopped = seen && self.store.is_life_stopped(node.life.slot, node.pid);
                waits.push(NodeWait { node: node.clone(), stopped, awaited, longest });
            }
        }
        waits
    }

    /// The nodes that have not said for long that they use the pool's epoch in use here, with that epoch's
    /// number, and for how long.
    fn behind(&self) -> Vec<(NodeId, u32, Duration)> {
        let tag = self.store.pool().epoch();
        let (said, at) = *self.epoch_since.lock();
        let since = at.elapsed();
        if said != tag || since < LONG {
            return Vec::new();
        }
        let behind = self.lagging(tag, |_| true).into_iter();
        behind.map(|slot| (slot, tag.epoch, since)).collect()
    }

    /// Whether the other nodes, as far as they were seen, look for this node's heartbeats where they are written. If a
    /// member has failed, one that does not use that epoch may look for them there, because what has failed is this
    /// node's way to that member. Then it fences this node, recovers it, and changes what this node has read. (What
    /// this node writes waits for the epoch to be settled.)
    pub(super) fn is_followed(&self) -> bool {
        self.not_following().is_empty()
    }
    /// The nodes for whose sake it is not.
    pub(super) fn not_following(&self) -> Vec<NodeId> {
        let Some(tag) = self.store.pool().epoch_without_members() else { return Vec::new() };
        // Nobody waits for whoever is proven to be dead.
        self.lagging(tag, |r| self.options.proofs.of(r).is_none())
    }

    /// The nodes that have not said that they use the epoch `tag`, of those that count. Nothing is known of one
    /// whose slot cannot be read.
    fn lagging(&self, tag: EpochTag, counts: impl Fn(&SlotRecord) -> bool) -> Vec<NodeId> {
        let unreadable = self.unreadable.lock().clone();
        let (slots, beats) = (self.slots.read(), self.beats.lock());
        let is_known = |slot| unreadable.iter().all(|u| u.slot != slot);
        let uses = |life: Life| life != self.me && is_known(life.slot);
        let users = slots.iter().map(|s| &s.record).filter(|r| user_of(r).is_some_and(uses));
        let lags = |r: &&SlotRecord| {
            counts(r) && beats.of(r.acting()).is_none_or(|(beat, _)| is_behind(tag_of(beat), tag))
        };
        users.filter(lags).map(|r| r.life.slot).collect()
    }

    /// Since when the pool's epoch is the one in use here.
    pub(super) fn note_epoch(&self) {
        let tag = self.store.pool().epoch();
        let mut since = self.epoch_since.lock();
        if since.0 != tag {
            *since = (tag, Instant::now());
        }
    }
}

/// Whether a node that says `theirs` has not taken note of `here`. One that uses a later epoch has made
/// it, or seen it, and it is this node that has not taken note.
fn is_behind(theirs: EpochTag, here: EpochTag) -> bool {
    let ahead = theirs.epoch.wrapping_sub(here.epoch);
    theirs != here && (ahead == 0 || ahead > u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_a_later_epoch_is_not_behind() {
        let tag = |epoch, change| EpochTag { epoch, change };
        assert!(!is_behind(tag(4, 1), tag(4, 1)));
        assert!(is_behind(tag(3, 1), tag(4, 1)) && !is_behind(tag(4, 1), tag(3, 1)));
        assert!(is_behind(tag(4, 2), tag(4, 1)), "another change");
        assert!(!is_behind(tag(1, 1), tag(u32::MAX, 1)) && is_behind(tag(u32::MAX, 1), tag(1, 1)));
    }
}
