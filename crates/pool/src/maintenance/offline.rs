//! Members that are taken offline for a while, and come back.
//!
//! ```text
//!   Active --> Active, offline --> Failed, offline --its own device--> Rebuilding, offline --filled--> Active
//! ```
//! Each arrow is a new epoch. While a member is marked as offline, every node notes what it misses
//! ([`crate::redundancy::missed`]); the mark comes first, so nothing is missed that is not noted. A member that is offline
//! is one that has failed in every other respect, but that no spare steps in for it. When nobody writes to it any
//! more, and all that was written is durable on it, it gets a label that says so. Only a device with that label catches
//! up: it holds what the member held when it went, and nothing else has used it. Any other one is filled whole, also
//! that of a member that failed by itself: nobody knows what it lost.
//!
//! The record stands on all other members. When one of these has been filled whole, it has no part of the record, and
//! others may follow. So the mark of members that are offline ends then, and they are filled whole when they come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::Device;
use braid_format::label::MemberState;
use braid_format::{Bytes, MemberIndex};

use super::{Filled, filled};
use crate::error::{ChangeError, PoolError};
use crate::labels::{Found, next_epoch, own_uuid, state_word, write_copies};
use crate::layout::stretch::{Span, stretches_of};
use crate::membership::selector::{MemberSelector, ResolvedMember};
use crate::pool::Pool;
use crate::redundancy::missed::{CatchUp, Missed};

impl Pool {
    /// Takes a member offline: an operator wants to do without it for a while. On return no node uses it any more, and
    /// all that was written to it is durable on it. Whether it can catch up when it comes back: if it did not
    /// take its last label, it is filled whole.
    ///
    /// # Errors
    /// [`ChangeError::NotWhole`], [`ChangeError::HoldsNothing`]; those of [`Pool::fail_member`]: then it stays in use.
    pub fn take_offline(&self, member: impl Into<MemberSelector>) -> Result<bool, PoolError> {
        let _pass = self.1.pass()?;
        let resolved = self.0.resolve_member(member.into())?;
        self.0.follow()?;
        let from = self.check_can_go_offline(&resolved)?;
        if from != MemberState::Failed {
            self.mark_offline(&resolved, true)?;
            if let Err(error) = self.take_out(&resolved) {
                self.mark_offline(&resolved, false)?;
                return Err(error);
            }
        }
        let said = self.say_farewell(&resolved);
        if let Err(error) = &said {
            tracing::warn!(%error, "a member that goes offline does not take its last label: it is filled whole when it comes back");
        }
        Ok(said.is_ok())
    }

    /// What [`Pool::take_offline`] would refuse; nothing is changed. What the member is now.
    ///
    /// # Errors
    /// As there.
    pub fn plan_offline(
        &self,
        member: impl Into<MemberSelector>,
    ) -> Result<MemberState, PoolError> {
        self.check_can_go_offline(&self.0.resolve_member(member.into())?)
    }

    fn check_can_go_offline(&self, resolved: &ResolvedMember) -> Result<MemberState, PoolError> {
        let topology = self.0.epochs.read();
        let index = topology.place_of(resolved)?;
        let member = topology.label.members.get(usize::from(index.0));
        let member = member.ok_or(PoolError::NoSuchMember { member: index })?;
        let name = topology.name(index);
        if !topology.map.members().contains(&index) {
            return Err(ChangeError::HoldsNothing { member: name }.into());
        }
        match member.state {
            MemberState::Active => topology.check_can_take_out(index)?,
            MemberState::Failed | MemberState::Rebuilding if member.offline => {}
            state => {
                let state = state_word(state);
                return Err(ChangeError::CannotGoOffline { member: name, index, state }.into());
            }
        }
        Ok(member.state)
    }

    /// Marks a member as offline, or no longer.
    pub(super) fn mark_offline(
        &self,
        resolved: &ResolvedMember,
        offline: bool,
    ) -> Result<(), PoolError> {
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            let index = topology.place_of(resolved)?;
            let mut next = next_epoch(&topology.label);
            let member = next.members.get_mut(usize::from(index.0));
            let member = member.ok_or(PoolError::NoSuchMember { member: index })?;
            if member.offline == offline {
                return Ok(());
            }
            member.offline = offline;
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }

    /// Makes durable what a member that has gone offline holds, then labels it so. No node uses it.
    fn say_farewell(&self, resolved: &ResolvedMember) -> Result<(), PoolError> {
        let topology = self.0.enter()?;
        let index = topology.place_of(resolved)?;
        let place = usize::from(index.0);
        let member = topology.label.members.get(place);
        if !member.is_some_and(|m| m.offline && m.state == MemberState::Failed) {
            return Err(resolved.overtaken(&topology));
        }
        topology.device(index).flush()?;
        [0, 1]
            .into_iter()
            .try_for_each(|copy| write_copies(&topology.devices, &topology.label, copy, &[place]))
    }

    /// Brings a member back that is offline, or that has failed, on its own device: it gets every write from now on, and
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
        let catches_up = self.check_can_come_back(&resolved, device)?;
        let index = self.0.changing(|| {
            // It gets another identity, in the same place.
            let index = self.0.epochs.read().place_of(&resolved)?;
            self.try_replace(&resolved, device, (true, catches_up))?;
            Ok(index)
        })?;
        self.catch_up_of(index)
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
        let catches_up = self.check_can_come_back(&resolved, device)?;
        let index = self.0.epochs.read().place_of(&resolved)?;
        let all = self.all_spans_of(index)?.1;
        let part = if catches_up { self.missed_of(&all) } else { all.clone() };
        Ok(CatchUp { fill: bytes_of(&part), whole: bytes_of(&all) })
    }

    /// How much of a member that is being filled is filled.
    fn catch_up_of(&self, member: MemberIndex) -> Result<CatchUp, PoolError> {
        let all = self.all_spans_of(member)?.1;
        let part = self.spans_of(member)?.1;
        Ok(CatchUp { fill: bytes_of(&part), whole: bytes_of(&all) })
    }

    /// Whether a member that is back on `device` has missed only what is noted.
    fn check_can_come_back(
        &self,
        resolved: &ResolvedMember,
        device: &Arc<dyn Device>,
    ) -> Result<bool, PoolError> {
        let topology = self.0.epochs.read();
        let index = topology.place_of(resolved)?;
        let member = topology.label.members.get(usize::from(index.0));
        let member = member.ok_or(PoolError::NoSuchMember { member: index })?;
        let name = topology.name(index);
        if member.state != MemberState::Failed {
            let state = state_word(member.state);
            return Err(ChangeError::NotOffline { member: name, state }.into());
        }
        let found = Found::read(device.clone());
        let own = found.newest().filter(|l| l.pool == topology.label.pool).and_then(own_uuid);
        if own != Some(member.uuid) {
            let path = device.info().name.clone();
            return Err(ChangeError::NotItsDevice { member: name, index, path }.into());
        }
        Ok(member.offline && found.offline_since() == Some(member.state_epoch))
    }

    /// The device that is in `member`'s place, and what of it is filled, in chunks.
    pub(super) fn spans_of(&self, member: MemberIndex) -> Result<(Filled, Vec<Span>), PoolError> {
        let (who, spans) = self.all_spans_of(member)?;
        let is_partial = {
            let topology = self.0.epochs.read();
            let member = topology.label.members.get(usize::from(member.0));
            member.is_some_and(|m| filled(m) == who && m.offline)
        };
        if !is_partial {
            return Ok((who, spans));
        }
        // All nodes write to it before it is read what it lacks.
        self.0.await_ready()?;
        Ok((who, self.missed_of(&spans)))
    }

    /// Those of `spans` of which some byte was missed.
    fn missed_of(&self, spans: &[Span]) -> Vec<Span> {
        let topology = self.0.epochs.read();
        let missed = Missed::read(&topology, self.0.redundancy.beats_end.load(Ordering::Acquire));
        let is_missed = |(group, from, to): &&Span| {
            let runs = stretches_of(&topology.map, *group, *from, *to).into_iter();
            runs.map(|r| (r.logical, r.logical + (r.to - r.from)))
                .any(|(from, to)| missed.has(from, to))
        };
        spans.iter().filter(is_missed).copied().collect()
    }
}

fn bytes_of(spans: &[Span]) -> Bytes {
    Bytes(spans.iter().map(|(_, from, to)| to - from).sum())
}

#[cfg(test)]
mod tests;
