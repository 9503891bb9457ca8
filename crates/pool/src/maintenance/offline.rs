//! Members that are taken offline for a while, and come back.
//!
//! ```text
//!   Active --> Failed, offline --its own device--> Rebuilding, offline --filled--> Active
//!                     |                                   |
//!                     +-- a failure, `fail`, a change of the members in use: not offline any more
//! ```
//! Each arrow is a new epoch. While a member is marked as offline, every node notes what it misses
//! ([`crate::redundancy::missed`]), from the epoch on in which it goes: what a node was writing when it took up
//! that epoch counts as missed, too. In every other respect a member that is offline counts as failed, except that no
//! spare steps in for it.
//!
//! When no node writes to it any more, and all that was written is durable on it, the command that takes it out writes
//! its last label, which says that it is offline. Whoever finds the device alone does not use it. Only a device with
//! that label catches up: it holds what the member held when it went, and no pool has used it since. Any other device
//! is filled whole, and so is a member that is suspected to return garbage. Nothing else writes such a label: `braid
//! label restore` refuses a member that is offline or catches up.
//!
//! The record of what it missed stands on every member in use, and is whole only on those that were in use when it
//! went. So the mark ends when another member comes into use: one that was filled, moved or added
//! ([`crate::labels`]: `end_marks`). It ends, too, when a node meets a write that failed on the member before it
//! went, when an operator fails it, and when it fails while it is filled.
//!
//! All this is decided under the lock, and the claim, of the change that it leads to.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Member, MemberState};
use braid_format::{Bytes, MemberIndex};

use super::{CHUNK, Filled, chunk_missed, filled, spans_in};
use crate::error::{ChangeError, PoolError};
use crate::labels::{Found, next_epoch, own_uuid, settle_move, state_word, write_copies};
use crate::layout::stretch::{Span, stretches_of};
use crate::membership::claims::moved;
use crate::membership::selector::{MemberSelector, ResolvedMember};
use crate::pool::Pool;
use crate::redundancy::missed::{CatchUp, Missed};
use crate::topology::{FailedMembers, Topology};

impl Pool {
    /// Takes a member offline: an operator wants to do without it for a while. On return no node uses it any more, and
    /// all that was written to it is durable on it. Whether it can catch up when it comes back: if it did not
    /// take its last label, or is suspected to return garbage, it is filled whole. Nothing is done if it is offline
    /// already: its device may be another one by now, so it gets no label that says that it went in good order.
    ///
    /// # Errors
    /// [`ChangeError::CannotGoOffline`], [`ChangeError::HoldsNothing`]; those of [`Pool::fail_member`]: then it stays
    /// in use. [`ChangeError::Overtaken`]: it went offline, and has been brought back or failed since.
    pub fn take_offline(&self, member: impl Into<MemberSelector>) -> Result<bool, PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let was_in_use = {
            let _pass = self.1.pass()?;
            self.0.changing(|| self.try_take_offline(&resolved))?
        };
        if !was_in_use {
            let topology = self.0.epochs.read().snapshot();
            let index = topology.place_of(&resolved)?;
            let found = Found::read(topology.device(index).clone());
            return Ok(check_comes_back(&topology, index, &found).unwrap_or(false));
        }
        match self.write_last_label(&resolved) {
            Ok(trusted) => Ok(trusted),
            Err(error @ PoolError::Change(_)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a member that goes offline does not take its last label: it is filled whole when it comes back");
                Ok(false)
            }
        }
    }

    /// Whether it was in use.
    fn try_take_offline(&self, resolved: &ResolvedMember) -> Result<bool, PoolError> {
        let topology = self.0.epochs.write();
        let index = topology.place_of(resolved)?;
        if may_go_offline(&topology, index)? == MemberState::Failed {
            return Ok(false);
        }
        // Another node may be about to do without another member. A change claims only the members that stay, so
        // neither would meet the other's claim, and each would go on without the other's member.
        let _claims = self.0.claim(&topology, &FailedMembers::new()).map_err(|e| e.1)?;
        let mut next = next_epoch(&topology.label);
        let epoch = next.epoch;
        if let Some(m) = next.members.get_mut(usize::from(index.0)) {
            (m.state, m.state_epoch, m.offline) = (MemberState::Failed, epoch, true);
        }
        settle_move(&mut next);
        let devices = topology.devices.clone();
        self.0.change(topology, next, devices)?;
        Ok(true)
    }

    /// What [`Pool::take_offline`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_offline(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        may_go_offline(&topology, topology.place_of(&resolved)?).map(drop)
    }

    /// Makes durable what a member that has gone offline holds, then writes both its labels, durably: no node uses it.
    /// Other nodes cannot bring it back meanwhile. Returns whether that label will count: not if the member is suspected.
    ///
    /// # Errors
    /// [`ChangeError::Overtaken`]: it is not offline any more. A device failed.
    fn write_last_label(&self, resolved: &ResolvedMember) -> Result<bool, PoolError> {
        let place_of = |topology: &Topology| {
            let index = topology.place_of(resolved)?;
            let member = topology.label.members.get(usize::from(index.0));
            let is_out = member.is_some_and(Member::is_offline);
            if is_out { Ok(index) } else { Err(resolved.overtaken(topology)) }
        };
        let device = {
            let topology = self.0.enter()?;
            topology.device(place_of(&topology)?).clone()
        };
        // All use an epoch without it. It may not answer: nobody waits for this, nor does a withdrawal. Its labels are
        // written below with the epoch held, by a device that has just answered.
        device.flush()?;
        let _pass = self.1.pass()?;
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            if !topology.ready() {
                return Err(moved(&topology));
            }
            let index = place_of(&topology)?;
            let _alone = self.0.hold_labels(&topology, &FailedMembers::new()).map_err(|e| e.1)?;
            for copy in [0, 1] {
                let own = [usize::from(index.0)];
                write_copies(&topology.devices, &topology.label, copy, &own)?;
            }
            Ok(!topology.is_suspected(index))
        })
    }

    /// Brings a member back that is offline, on its own device: it gets every write from now on, and
    /// [`Pool::rebuild`] fills what it has missed, or all of it if that is not known.
    ///
    /// # Errors
    /// [`ChangeError::NotItsDevice`], [`ChangeError::NotOffline`]; those of [`Pool::replace`].
    pub fn bring_online(
        &self,
        member: impl Into<MemberSelector>,
        device: &Arc<dyn Device>,
    ) -> Result<CatchUp, PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        self.0.follow()?;
        // Nobody waits for the device here; it has answered when it is labelled with the epoch held, as in any change.
        // If it is brought online, and taken offline again, after this, then its member
        // has been offline since another epoch than its label says here.
        let found = Found::read(device.clone());
        let topology = self.0.epochs.read().snapshot();
        let index = topology.place_of(&resolved)?;
        let planned = catch_up_of(&topology, index, check_comes_back(&topology, index, &found)?);
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            let index = topology.place_of(&resolved)?;
            let known = check_comes_back(&topology, index, &found)?;
            // It gets another identity, in the same place.
            self.put_in_place(topology, index, device, (true, known))?;
            let fill = if known { planned.fill } else { planned.whole };
            Ok(CatchUp { fill, ..planned })
        })
    }

    /// What [`Pool::bring_online`] would do; nothing is changed. Other nodes may change what is missed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_online(
        &self,
        member: impl Into<MemberSelector>,
        device: &Arc<dyn Device>,
    ) -> Result<CatchUp, PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read().snapshot();
        let index = topology.place_of(&resolved)?;
        let known = check_comes_back(&topology, index, &Found::read(device.clone()))?;
        Ok(catch_up_of(&topology, index, known))
    }

    /// What of the device `who` in `member`'s place is still to be filled, as far as is known now. `done`: what was
    /// given out before, if only a part is; it grows by what is given out now.
    pub(super) fn spans_of(
        &self,
        member: MemberIndex,
        who: Filled,
        done: &mut Missed,
    ) -> Result<ToFill, PoolError> {
        // All nodes write to it before it is read what it lacks. Nobody waits while that is read.
        let topology = self.0.enter()?.snapshot();
        let entry = topology.label.members.get(usize::from(member.0));
        let Some(entry) = entry.filter(|m| filled(m) == who) else {
            return Err(topology.overtaken(format!("member {member}"), (Some(member), who.0)));
        };
        // Another node may have ended the mark, and forgotten what it noted: the member then is another one to all who
        // fill it, which shows before it counts as filled.
        let may_grow = entry.offline;
        let all = spans_in(&topology, member, if may_grow { chunk_missed() } else { CHUNK });
        if !may_grow {
            return Ok(ToFill { list: all.collect(), may_grow });
        }
        let missed = Missed::read(&topology);
        let is_new = |s: &Span| is_in(&topology, &missed, s) && !is_in(&topology, done, s);
        let list = all.filter(is_new).collect();
        done.add(missed);
        Ok(ToFill { list, may_grow })
    }
}

/// What is to be filled of a member.
pub(super) struct ToFill {
    pub list: Vec<Span>,
    /// Who recovers a dead node may note more.
    pub may_grow: bool,
}

impl ToFill {
    pub fn bytes(&self) -> u64 {
        self.list.iter().map(|(_, from, to)| to - from).sum()
    }
}

/// What a member is that may go offline, or is.
fn may_go_offline(topology: &Topology, index: MemberIndex) -> Result<MemberState, PoolError> {
    let member = topology.label.members.get(usize::from(index.0));
    let member = member.ok_or(PoolError::NoSuchMember { member: index })?;
    if topology.provisional {
        return Err(PoolError::Provisional { name: topology.label.name.clone() });
    }
    let name = topology.name(index);
    if !topology.map.members().contains(&index) {
        return Err(ChangeError::HoldsNothing { member: name }.into());
    }
    if member.state != MemberState::Active && !member.is_offline() {
        let state = state_word(member.state);
        return Err(ChangeError::CannotGoOffline { member: name, index, state }.into());
    }
    topology.check_can_take_out(index)?;
    Ok(member.state)
}

/// Whether a member that is out, and is back on the device that was `found`, lacks only what is noted: it is offline,
/// and by its own label it went in good order. One that went so, and is not marked any more, may come back, too, and
/// one that was about to come back when a node died or power went: nothing on it is believed.
fn check_comes_back(
    topology: &Topology,
    index: MemberIndex,
    found: &Found,
) -> Result<bool, PoolError> {
    let member = topology.label.members.get(usize::from(index.0));
    let member = member.ok_or(PoolError::NoSuchMember { member: index })?;
    let own = found.newest().filter(|l| l.pool == topology.label.pool).and_then(own_uuid);
    let is_own = own == Some(member.uuid);
    let went_well = is_own && found.offline_epoch() == Some(member.state_epoch);
    let name = topology.name(index);
    if member.state != MemberState::Failed || !member.offline && !went_well {
        let state = state_word(member.state);
        return Err(ChangeError::NotOffline { member: name, index, state }.into());
    }
    if !is_own && !was_coming_back(topology, index, found) {
        let path = found.device.info().name.clone();
        return Err(ChangeError::NotItsDevice { member: name, index, path }.into());
    }
    Ok(member.offline && went_well && !topology.is_suspected(index))
}

/// Whether the device has labels of a change that was to bring `index` back, and came to nothing: they name another
/// identity in its place, being filled since the member went. The contents of such a device are those of the others.
fn was_coming_back(topology: &Topology, index: MemberIndex, found: &Found) -> bool {
    let label = &topology.label;
    let gone = label.members.get(usize::from(index.0));
    let newest = found.newest().filter(|l| l.pool == label.pool && l.member == index);
    let own = newest.and_then(|l| l.members.get(usize::from(index.0)));
    let (Some(gone), Some(own)) = (gone, own) else { return false };
    let is_new = label.members.iter().all(|m| m.uuid != own.uuid);
    own.state == MemberState::Rebuilding && own.state_epoch > gone.state_epoch && is_new
}

/// Whether some byte of a span was missed.
fn is_in(topology: &Topology, missed: &Missed, (group, from, to): &Span) -> bool {
    let mut runs = stretches_of(&topology.map, *group, *from, *to).into_iter();
    runs.any(|r| missed.has(r.logical, r.logical + (r.to - r.from)))
}

/// What is filled of a member that comes back: what was missed, if that is `known`.
fn catch_up_of(topology: &Topology, index: MemberIndex, known: bool) -> CatchUp {
    let chunk = if known { chunk_missed() } else { CHUNK };
    let missed = known.then(|| Missed::read(topology));
    let (mut fill, mut whole) = (0, 0);
    for span in spans_in(topology, index, chunk) {
        let len = span.2 - span.1;
        whole += len;
        fill += if missed.as_ref().is_none_or(|m| is_in(topology, m, &span)) { len } else { 0 };
    }
    CatchUp { fill: Bytes(fill), whole: Bytes(whole) }
}

#[cfg(test)]
mod tests;
