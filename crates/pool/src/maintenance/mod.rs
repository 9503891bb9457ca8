//! Failing, replacing and rebuilding members, and spares, while the pool is in use.
//!
//! ```text
//!   Active --fails--> Failed --replaced by a device or a spare--> Rebuilding --filled--> Active
//! ```
//! Each arrow is a new epoch. A replacement takes the failed member's place in the table, so the
//! topology and every address stay what they are; a spare that steps in changes places with it.
//! A member that is being filled gets every write at once, and is read only when all of it is
//! current. A crash in the middle leaves it `Rebuilding`: it is filled from the start again.

mod health;
pub(crate) mod offline;
mod parallel;
pub(crate) mod scrub;
mod silent;

use std::sync::Arc;

use braid_device::{Device, DeviceError};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{Bytes, Epoch, MemberIndex};
use parking_lot::RwLockWriteGuard;
use uuid::Uuid;

use crate::cluster::RegionHold;
use crate::error::PoolError;
use crate::identity::has_small_regions;
use crate::labels::{Hint, fits, member_of, next_epoch};
use crate::layout::stretch::Span;
use crate::membership::joining::Joining;
use crate::membership::selector::{MemberSelector, ResolvedMember};
use crate::pace::Progress;
use crate::pool::Pool;
use crate::redundancy::EpochInUse;
use crate::redundancy::compare::{Concurrent, LOOK_PAUSE};
use crate::redundancy::fill::{Filling, fill};
use crate::redundancy::missed::Missed;
use crate::redundancy::verification::Verification;
use crate::redundancy::verifier::NoChecksums;
use crate::simulation::Pause;
use crate::topology::{Lost, Topology};

/// Bytes of a column filled at a time, about.
const CHUNK: u64 = 1 << 20;

/// Of a column of which only what was missed is filled.
fn chunk_missed() -> u64 {
    if has_small_regions() { CHUNK / 16 } else { CHUNK }
}

/// A device that is being filled, and since when: another may take its place meanwhile.
type Filled = (Uuid, Epoch);

fn filled(member: &Member) -> Filled {
    (member.uuid, member.state_epoch)
}

/// Whether a member has failed, and is not to come back.
fn is_gone(member: &Member) -> bool {
    member.state == MemberState::Failed && !member.offline
}

/// Whether the member is to be filled, and is the one that was.
fn still_filled(topology: &Topology, member: MemberIndex, who: Filled) -> Result<(), PoolError> {
    let now = topology.label.members.get(usize::from(member.0)).map(filled);
    if topology.state(member) == MemberState::Rebuilding && now == Some(who) {
        return Ok(());
    }
    if now == Some(who) {
        // There was nothing to fill when this began.
        return Err(PoolError::NoSuchMember { member });
    }
    Err(topology.overtaken(format!("member {member}"), (Some(member), who.0)))
}

impl Pool {
    /// Takes a member out of the pool, as if it had failed: an operator says so.
    ///
    /// # Errors
    /// [`PoolError::TooManyLost`] if the pool cannot spare it; [`PoolError::OthersSuspected`] if those that
    /// would stand in for it are suspected to return garbage.
    pub fn fail_member(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        {
            let topology = self.0.epochs.read();
            topology.check_can_take_out(topology.place_of(&resolved)?)?;
        }
        self.take_out(&resolved)
    }

    /// What [`Pool::fail_member`] would refuse, or with `force` [`Pool::fail_member_by_force`]; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_fail(
        &self,
        member: impl Into<MemberSelector>,
        force: bool,
    ) -> Result<(), PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        let member = topology.place_of(&resolved)?;
        if force { topology.check_can_lose(member) } else { topology.check_can_take_out(member) }
    }

    /// As [`Pool::fail_member`], whatever is suspected of other members.
    ///
    /// # Errors
    /// [`PoolError::TooManyLost`].
    pub fn fail_member_by_force(&self, member: impl Into<MemberSelector>) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.take_out(&self.0.resolve_member(member.into())?)
    }

    fn take_out(&self, resolved: &ResolvedMember) -> Result<(), PoolError> {
        let topology = self.0.epochs.read();
        let member = topology.place_of(resolved)?;
        topology.check_can_lose(member)?;
        let device = topology.device(member).info().name.as_str().into();
        let lost = topology.named(&vec![(member, DeviceError::TakenOut { device })]);
        drop(topology);
        self.0.fail_members(&lost)
    }

    /// Adds a device that will step in for the next member that fails.
    ///
    /// # Errors
    /// What [`Pool::create`] says of devices; [`PoolError::TooManyMembers`].
    pub fn add_spare(
        &self,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<MemberIndex, PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(move || self.try_add_spare(&device, force))
    }

    /// What [`Pool::add_spare`] would refuse; nothing is changed. The place that the device would get.
    ///
    /// # Errors
    /// As there.
    pub fn plan_spare(
        &self,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<MemberIndex, PoolError> {
        self.may_be_spare(&self.0.epochs.read(), device, force)
    }

    /// The place that a device gets as a spare.
    fn may_be_spare(
        &self,
        topology: &Topology,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<MemberIndex, PoolError> {
        self.0.check_joins(topology, device, force)?;
        let count = topology.label.members.len() + 1;
        let index = u16::try_from(count - 1).ok().filter(|_| count <= Label::MEMBERS_MAX);
        index.map(MemberIndex).ok_or(PoolError::TooManyMembers { count })
    }

    fn try_add_spare(
        &self,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<MemberIndex, PoolError> {
        let topology = self.0.epochs.write();
        let index = self.may_be_spare(&topology, device, force)?;
        let mut next = next_epoch(&topology.label);
        let mut member = member_of(device, &Hint::default())?;
        member.state = MemberState::Spare;
        member.state_epoch = next.epoch;
        next.members.push(member);
        let mut devices = topology.devices.clone();
        devices.push(device.clone());
        let joining = Joining::new(std::slice::from_ref(device), force);
        self.0.change_with(topology, next, devices, &joining)?;
        Ok(index)
    }

    /// Lets a spare step in for a failed member, if there is one that is large enough: the member
    /// that is now to be rebuilt.
    ///
    /// # Errors
    /// [`PoolError::Device`] when the labels cannot be written.
    pub fn use_spare(&self) -> Result<Option<MemberIndex>, PoolError> {
        let _pass = self.1.pass()?;
        let may = {
            let topology = self.0.epochs.read();
            let any = |is: fn(&Member) -> bool| topology.label.members.iter().any(is);
            any(is_gone) && any(|m| m.state == MemberState::Spare)
        };
        if !may {
            // This is asked often, and the answer is mostly no: requests under way need not end for
            // that.
            return Ok(None);
        }
        self.0.changing(|| self.try_use_spare())
    }

    fn try_use_spare(&self) -> Result<Option<MemberIndex>, PoolError> {
        let topology = self.0.epochs.write();
        let label = &topology.label;
        let with = |state| label.members.iter().enumerate().filter(move |(_, m)| m.state == state);
        let used = topology.map.members();
        let needs = |(i, _): &(usize, &Member)| used.iter().any(|m| usize::from(m.0) == *i);
        let gone = label.members.iter().enumerate().filter(|(_, m)| is_gone(m));
        let pair = gone.filter(needs).find_map(|(failed, old)| {
            let free = |(i, _): &(usize, &Member)| {
                let target = |m: &Member| m.successor.is_some_and(|s| usize::from(s.0) == *i);
                !label.members.iter().any(target)
            };
            let (spare, new) = with(MemberState::Spare).filter(free).find_map(|(spare, _)| {
                Some((spare, fits(topology.devices.get(spare)?, old).ok()?))
            })?;
            let uuid = label.members.get(spare)?.uuid;
            Some((failed, spare, Member { uuid, ..new }))
        });
        let Some((failed, spare, new)) = pair else { return Ok(None) };
        let mut next = next_epoch(label);
        next.members.swap(failed, spare);
        let Some(place) = next.members.get_mut(failed) else { return Ok(None) };
        *place = Member { state: MemberState::Rebuilding, state_epoch: next.epoch, ..new };
        let mut devices = topology.devices.clone();
        devices.swap(failed, spare);
        self.0.change(topology, next, devices)?;
        Ok(u16::try_from(failed).ok().map(MemberIndex))
    }

    /// Puts `device` in the place of `member`, which is taken out first if it is in use. It holds
    /// nothing yet: [`Pool::rebuild`].
    ///
    /// # Errors
    /// What [`Pool::create`] says of devices; [`PoolError::TooSmall`]; those of [`Pool::fail_member`].
    pub fn replace(
        &self,
        member: impl Into<MemberSelector>,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        // What others did to it is known before it is looked at.
        self.0.follow()?;
        self.may_replace(&resolved, &device, force)?;
        self.take_out(&resolved)?;
        self.0.changing(move || self.try_replace(&resolved, &device, force))
    }

    /// What [`Pool::replace`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_replace(
        &self,
        member: impl Into<MemberSelector>,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        // As for the change itself.
        self.0.follow()?;
        self.may_replace(&resolved, device, force)
    }

    fn may_replace(
        &self,
        resolved: &ResolvedMember,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        let topology = self.0.epochs.read();
        let member = topology.place_of(resolved)?;
        let old = topology.label.members.get(usize::from(member.0));
        let old = old.ok_or(PoolError::NoSuchMember { member })?;
        fits(device, old)?;
        topology.check_can_take_out(member)?;
        self.0.check_joins(&topology, device, force)
    }

    fn try_replace(
        &self,
        resolved: &ResolvedMember,
        device: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        let topology = self.0.epochs.write();
        let member = topology.place_of(resolved)?;
        // Another may have put it in use again.
        if topology.state(member) != MemberState::Failed {
            return Err(resolved.overtaken(&topology));
        }
        self.put_in_place(topology, member, device, (force, false))
    }

    /// Puts a device in the place of a failed member. `catches_up`: it is that member's own, and of what it holds only
    /// what it has missed is filled.
    fn put_in_place(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        member: MemberIndex,
        device: &Arc<dyn Device>,
        (force, catches_up): (bool, bool),
    ) -> Result<(), PoolError> {
        let mut next = next_epoch(&topology.label);
        let epoch = next.epoch;
        let Some(place) = next.members.get_mut(usize::from(member.0)) else {
            return Err(PoolError::NoSuchMember { member });
        };
        let new = fits(device, place)?;
        let used = topology.map.members().contains(&member);
        let state = if used { MemberState::Rebuilding } else { MemberState::Active };
        *place = Member { state, state_epoch: epoch, offline: used && catches_up, ..new };
        let mut devices = topology.devices.clone();
        if let Some(d) = devices.get_mut(usize::from(member.0)) {
            *d = device.clone();
        }
        let joining = if catches_up {
            Joining::returning(device, member)
        } else {
            Joining::new(std::slice::from_ref(device), force)
        };
        self.0.change_with(topology, next, devices, &joining)
    }

    /// The first member that is to be rebuilt.
    pub fn rebuilding(&self) -> Option<MemberIndex> {
        let states = self.member_states().into_iter();
        states.filter(|(_, s)| *s == MemberState::Rebuilding).map(|(m, _)| m).next()
    }

    /// As [`Pool::rebuild_with`], without checksums: if copies differ, the majority counts.
    ///
    /// # Errors
    /// As there.
    pub fn rebuild(
        &self,
        member: MemberIndex,
        pace: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<bool, PoolError> {
        self.rebuild_with(member, &Verification::by(&NoChecksums), pace)
    }

    /// Fills `member` from the other members while the pool is in use, and puts it in use. If the others
    /// do not agree, `verification` decides. `pace` is called after every chunk (by several threads): it
    /// may sleep to leave the disks to others, and ends the work by returning `false`.
    ///
    /// # Errors
    /// The member fails a write ([`PoolError::Device`]; it is then out again), or its bytes can be
    /// read on none of the others (it stays to be filled).
    pub fn rebuild_with(
        &self,
        member: MemberIndex,
        verification: &Verification<'_>,
        pace: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<bool, PoolError> {
        let (who, mut done, mut before) = (self.filled_in(member)?, Missed::default(), 0);
        loop {
            let spans = self.spans_of(member, who, &mut done)?;
            if spans.list.is_empty() {
                break;
            }
            let fill = |span: &Span| self.fill_span(*span, (member, who), verification);
            // One total for all that is known to be left, and what is done.
            let on = |p: Progress| {
                pace(Progress { done: Bytes(before + p.done.0), total: Bytes(before + p.total.0) })
            };
            if !self.0.in_parallel(&spans.list, |s| Bytes(s.2 - s.1), fill, &on)? {
                return Ok(false);
            }
            if !spans.may_grow {
                break;
            }
            before += spans.bytes();
        }
        self.finish_rebuild((member, who))?;
        Ok(true)
    }

    /// The device that is in `member`'s place.
    fn filled_in(&self, member: MemberIndex) -> Result<Filled, PoolError> {
        let topology = self.0.epochs.read();
        let entry = topology.label.members.get(usize::from(member.0));
        entry.map(filled).ok_or(PoolError::NoSuchMember { member })
    }

    fn fill_span(
        &self,
        span: Span,
        (member, who): (MemberIndex, Filled),
        verification: &Verification<'_>,
    ) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        // A writer holds the bytes that it changes, as this thread does. So several chunks of a region
        // may be under way: one is read while another is written.
        let _held = self.0.hold_spans(&[span], RegionHold::Write)?;
        loop {
            let topology = self.0.enter()?;
            still_filled(&topology, member, who)?;
            let mut lost = Lost::new();
            let rest = || self.0.pause(LOOK_PAUSE, Pause::Inside);
            let concurrent: Concurrent<'_> = self.is_shared().then_some(&rest as &dyn Fn());
            let filled =
                fill(&topology, span, member, Filling { verification, concurrent }, &mut lost);
            let lost = topology.named(&lost);
            drop(topology);
            let filled = if lost.is_empty() { filled? } else { Ok(()) };
            if let Err(error) = filled {
                self.0.fail_members(&vec![(who.0, error.clone())])?;
                return Err(error.into());
            }
            if lost.is_empty() {
                return Ok(());
            }
            // Members that it was to come from: it comes from the others then.
            self.0.fail_members(&lost)?;
        }
    }

    fn finish_rebuild(&self, selector: (MemberIndex, Filled)) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| self.try_finish_rebuild(selector))
    }

    fn try_finish_rebuild(&self, (member, who): (MemberIndex, Filled)) -> Result<(), PoolError> {
        let topology = self.0.epochs.write();
        still_filled(&topology, member, who)?;
        topology.device(member).flush()?;
        let mut next = next_epoch(&topology.label);
        if let Some(m) = next.members.get_mut(usize::from(member.0)) {
            m.state = MemberState::Active;
            m.state_epoch = next.epoch;
            m.offline = false;
        }
        let devices = topology.devices.clone();
        self.0.change(topology, next, devices)
    }
}

/// What `member` holds, in pieces of about `chunk` bytes of a column.
fn spans_in(
    topology: &Topology,
    member: MemberIndex,
    chunk: u64,
) -> impl Iterator<Item = Span> + '_ {
    let groups = (0_u16..).zip(topology.map.groups());
    let own = groups.filter(move |(_, group)| group.members().any(|m| m == member));
    own.flat_map(move |(index, group)| {
        // Whole rows, of about a chunk on each column.
        let step = group.row_len().map_or(chunk, |row| {
            let unit = row / (group.columns.len() - group.tolerance()) as u64;
            row * (chunk / unit).max(1)
        });
        let len = group.len().0;
        (0..len.div_ceil(step)).map(move |i| (index, i * step, ((i + 1) * step).min(len)))
    })
}

#[cfg(test)]
mod tests;
