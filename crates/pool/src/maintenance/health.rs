//! Naming members that are slow, and failing members that return garbage.

use std::time::Duration;

use braid_device::AlignedBuf;
use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes, MemberIndex};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;
use uuid::Uuid;

use crate::error::{ChangeError, PoolError};
use crate::health::slow::Noticed;
use crate::health::suspect::{FAIL_AT, SUSPECT_AT};
use crate::labels::{next_epoch, state_word};
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::membership::selector::MemberSelector;
use crate::pool::{Pool, PoolState};
use crate::redundancy::EpochInUse;
use crate::topology::Topology;

impl Pool {
    /// Compares the members' times, every ten seconds by `now` (from any beginning). The members
    /// that have become slow since the last call, or are no longer slow.
    pub fn watch(&self, now: Duration) -> Vec<Noticed> {
        if !self.0.health.slow.lock().due(now) {
            return Vec::new();
        }
        let peers: Vec<Vec<MemberIndex>> = {
            let topology = self.0.epochs.read();
            let active = |m: &MemberIndex| topology.state(*m) == MemberState::Active;
            let groups = topology.map.groups();
            let of = |member: MemberIndex| -> Vec<MemberIndex> {
                if !active(&member) {
                    return Vec::new();
                }
                let mut peers: Vec<MemberIndex> = groups
                    .iter()
                    .filter(|g| g.members().any(|m| m == member))
                    .flat_map(Group::members)
                    .collect();
                if topology.bare.contains(&member) {
                    peers.extend(&topology.bare);
                }
                peers.retain(|m| *m != member && active(m));
                peers.sort_unstable();
                peers.dedup();
                peers
            };
            topology.members().map(of).collect()
        };
        let issued = self.issued();
        self.0.health.slow.lock().look(now, issued, &peers)
    }

    /// The members that were slow when their times were last compared ([`Pool::watch`]).
    pub fn slow(&self) -> Vec<MemberIndex> {
        self.0.health.slow.lock().slow.clone()
    }
}

impl Pool {
    /// What [`Pool::read`] gave for the pool's bytes at `at` is damaged, and some other way to read them
    /// gave what is `good`: each member that should have them is asked again, and its damage counted if
    /// it is still there. So it does not matter which of them served the read.
    pub fn blame(&self, at: ByteOffset, len: usize, good: &dyn Fn(&[u8]) -> bool) {
        self.ask(at, len, good, |_, _| true);
    }
    /// Reads the pool's bytes at `at` from the suspected members that should have them, too, and counts
    /// what is not `good`: these members are read last, so nothing else would find their damage any
    /// more. Whether there was some. It costs nothing while none is suspected.
    pub fn ask_suspects(&self, at: ByteOffset, len: usize, good: &dyn Fn(&[u8]) -> bool) -> bool {
        let asked = |topology: &Topology, member| {
            topology.is_suspected(member) && topology.damaged(member) < FAIL_AT
        };
        self.0.health.suspicion.any() && self.ask(at, len, good, asked)
    }
    /// Counts the damage of the members that should have the pool's bytes at `at`, of those that are
    /// `asked`. Whether there was some.
    fn ask(
        &self,
        at: ByteOffset,
        len: usize,
        good: &dyn Fn(&[u8]) -> bool,
        asked: impl Fn(&Topology, MemberIndex) -> bool,
    ) -> bool {
        let topology = self.0.epochs.read();
        let Some(piece) = topology.map.pieces(at, Bytes::from(len)).next() else { return false };
        let Place::Group(index) = piece.place else { return false };
        let group = topology.map.group(index);
        let offset = piece.at.0;
        let columns: SmallVec<[(usize, u64); 4]> = match group.shape {
            Shape::Mirror => topology.copies(group).map(|column| (column, offset)).collect(),
            Shape::Parity { unit, .. } => {
                let units = group.units(offset, len as u64).take(1).filter(|u| u.len >= len as u64);
                units.map(|u| (group.column_of(u.row, u.place), u.row * unit + u.within)).collect()
            }
        };
        let mut bytes = AlignedBuf::zeroed(len);
        let mut damaged: SmallVec<[MemberIndex; 4]> = SmallVec::new();
        for (column, offset) in columns {
            let (member, place) = group.at(column, offset);
            if !topology.readable(member) || !asked(&topology, member) {
                continue;
            }
            // It may just be being written: it counts if it is damaged twice.
            let mut is_damaged =
                || topology.device(member).read(place, &mut bytes).is_ok() && !good(&bytes);
            if is_damaged() && is_damaged() {
                damaged.push(member);
            }
        }
        drop(topology);
        damaged.iter().for_each(|member| self.accuse(*member, at));
        !damaged.is_empty()
    }
    /// A member has something else at the pool's byte `at` than what a checksum says is right.
    pub(crate) fn accuse(&self, member: MemberIndex, at: ByteOffset) {
        self.0.accuse(member, at);
    }
    /// From now on `told` is called when this node has met so much damage that a member is suspected: then
    /// [`Pool::mark_suspects`] is due. It may be called by any thread, and must not use the pool.
    pub fn on_suspicion(&self, told: impl Fn() + Send + Sync + 'static) {
        self.0.health.suspected.set(Box::new(told));
    }
    /// Members in use that are suspected, and how many damaged places this node has met on each
    /// (`FAIL_AT`: or more; 0: others have met them, or this node before it mounted the pool).
    pub fn suspects(&self) -> Vec<(MemberIndex, usize)> {
        let topology = self.0.epochs.snapshot();
        let in_use = |m: &MemberIndex| topology.state(*m) != MemberState::Failed;
        let suspected = topology.members().filter(in_use).filter(|m| topology.is_suspected(*m));
        suspected.map(|m| (m, topology.damaged(m))).collect()
    }
    /// Writes into the labels which members this node suspects, if they do not say so yet: a new epoch.
    /// Those that were marked. It costs nothing while none is suspected.
    ///
    /// # Errors
    /// [`PoolError::Device`] when the labels cannot be written.
    pub fn mark_suspects(&self) -> Result<Vec<MemberIndex>, PoolError> {
        if !self.0.health.suspicion.any() {
            return Ok(Vec::new());
        }
        let _pass = self.1.pass()?;
        self.0.mark_suspects()
    }
    /// The suspected members that a scrub may clear: all, if none is lost that it would compare them with;
    /// but not those that are to be failed after it, and can be.
    pub(crate) fn suspects_to_clear(&self) -> Vec<Uuid> {
        let topology = self.0.epochs.snapshot();
        if topology.lost().next().is_some() {
            return Vec::new();
        }
        let suspected = |m| topology.is_suspected(m);
        let failing = |m: MemberIndex| {
            topology.damaged(m) >= FAIL_AT && topology.can_lose_without(&[m], suspected)
        };
        let suspects = topology.members().filter(|m| suspected(*m) && !failing(*m));
        suspects.filter_map(|m| topology.uuid(m)).collect()
    }
    /// Ends the suspicion of `members`: a scrub that began when they were suspected has read everything and
    /// found nothing wrong. Those that the labels called suspected.
    ///
    /// # Errors
    /// [`ChangeError::ClearWhileOut`]: nothing would stand in for one that returns garbage after all;
    /// [`PoolError::Device`] when the labels cannot be written. What this node has met of them counts as before.
    pub(crate) fn trust(&self, members: &[Uuid]) -> Result<Vec<MemberIndex>, PoolError> {
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let _pass = self.1.pass()?;
        let meant = |t: &Topology, m| t.uuid(m).is_some_and(|uuid| members.contains(&uuid));
        self.0.changing(|| {
            // A member may have failed since it was asked for.
            let topology = self.0.epochs.write();
            none_is_out(&topology)?;
            let forget = || members.iter().for_each(|m| self.0.health.suspicion.forget(*m));
            if to_mark(&topology, false, &meant).is_empty() {
                forget();
                return Ok(Vec::new());
            }
            let trusted = self.0.set_marks_of(topology, false, &meant)?;
            forget();
            Ok(trusted)
        })
    }
    /// Ends the suspicion of a member, or of all, by an operator's word: its cable, say, was changed. Those that were
    /// suspected; what is damaged on them is still there, and a scrub finds it. New damage counts from zero on.
    ///
    /// # Errors
    /// [`ChangeError::ClearWhileOut`]; [`PoolError::Device`] when the labels cannot be written.
    pub fn clear_suspicion(
        &self,
        member: Option<MemberSelector>,
    ) -> Result<Vec<MemberIndex>, PoolError> {
        let suspects = self.suspects_named(member)?;
        let uuids: Vec<Uuid> = suspects.iter().map(|(_, uuid)| *uuid).collect();
        self.trust(&uuids)?;
        Ok(suspects.into_iter().map(|(member, _)| member).collect())
    }
    /// What [`Pool::clear_suspicion`] would refuse; nothing is changed. Those that are suspected.
    ///
    /// # Errors
    /// As there.
    pub fn plan_clear(
        &self,
        member: Option<MemberSelector>,
    ) -> Result<Vec<MemberIndex>, PoolError> {
        Ok(self.suspects_named(member)?.into_iter().map(|(member, _)| member).collect())
    }
    fn suspects_named(
        &self,
        member: Option<MemberSelector>,
    ) -> Result<Vec<(MemberIndex, Uuid)>, PoolError> {
        let resolved = member.map(|member| self.0.resolve_member(member)).transpose()?;
        let topology = self.0.epochs.snapshot();
        let named = resolved.map(|resolved| topology.place_of(&resolved)).transpose()?;
        let is_meant = |m: &MemberIndex| named.is_none_or(|named| named == *m);
        let members = topology.members().filter(is_meant).filter(|m| topology.is_suspected(*m));
        let suspects: Vec<_> = members.filter_map(|m| Some((m, topology.uuid(m)?))).collect();
        let is_out = |m: MemberIndex| {
            matches!(topology.state(m), MemberState::Failed | MemberState::Rebuilding)
        };
        let named_is_out = named.filter(|m| is_out(*m));
        if let Some(out) = named_is_out {
            return Err(clear_while_out(&topology, out));
        }
        if !suspects.is_empty() {
            none_is_out(&topology)?;
        }
        Ok(suspects)
    }
    /// The identities of the members that have so many damaged places that they are to be failed.
    pub fn to_be_failed(&self) -> Vec<Uuid> {
        let topology = self.0.epochs.snapshot();
        let many = self.suspects().into_iter().filter(|s| s.1 >= FAIL_AT);
        many.filter_map(|(member, _)| topology.uuid(member)).collect()
    }
    /// Fails the members that have too many damaged places, if others hold everything that are not
    /// suspected; those that it did. Damage that nobody has met yet is not known. So only members of which
    /// `scrubbed` says that everything was read, and mended, since they were to be failed: until then, of two
    /// copies that are damaged in different places each has what the other lacks.
    ///
    /// # Errors
    /// As [`Pool::fail_member`], but for a member that cannot be spared: that one stays.
    pub fn fail_suspects(
        &self,
        scrubbed: &dyn Fn(Uuid) -> bool,
    ) -> Result<Vec<MemberIndex>, PoolError> {
        let mut failed = Vec::new();
        for (member, _) in self.suspects().into_iter().filter(|s| s.1 >= FAIL_AT) {
            if !self.0.epochs.read().uuid(member).is_some_and(scrubbed) {
                continue;
            }
            {
                let topology = self.0.epochs.read();
                let suspected = |m| topology.is_suspected(m);
                if !topology.can_lose_without(&[member], suspected) {
                    continue;
                }
            }
            self.fail_member(member)?;
            failed.push(member);
        }
        Ok(failed)
    }
}

impl PoolState {
    /// A member has something else at the pool's byte `at` than what a checksum says is right.
    pub fn accuse(&self, member: MemberIndex, at: ByteOffset) {
        let topology = self.epochs.snapshot();
        let Some(uuid) = topology.uuid(member) else { return };
        let name = topology.name(member);
        if topology.suspicion.note(uuid, at) {
            tracing::error!(
                %member,
                device = name,
                "{SUSPECT_AT} blocks of metadata are damaged on this member and sound on others: it is suspected to return garbage, for file data too, and read only for what no other member has; after {FAIL_AT} the pool is scrubbed and it is failed"
            );
            self.health.suspected.tell();
        }
    }
    /// As [`Pool::mark_suspects`], while nothing is asked of this node's leave to write.
    pub fn mark_suspects(&self) -> Result<Vec<MemberIndex>, PoolError> {
        if !self.health.suspicion.any() {
            return Ok(Vec::new());
        }
        let in_use = |t: &Topology, m| t.state(m) != MemberState::Failed;
        self.set_marks(true, &|t, m| in_use(t, m) && t.damaged(m) >= SUSPECT_AT)
    }
    /// Marks, or no longer marks, the members that are `meant`; those that were changed.
    fn set_marks(
        &self,
        suspected: bool,
        meant: &dyn Fn(&Topology, MemberIndex) -> bool,
    ) -> Result<Vec<MemberIndex>, PoolError> {
        if to_mark(&self.epochs.snapshot(), suspected, meant).is_empty() {
            return Ok(Vec::new());
        }
        self.changing(|| self.set_marks_of(self.epochs.write(), suspected, meant))
    }
    /// The same, once, by this topology.
    fn set_marks_of(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        suspected: bool,
        meant: &dyn Fn(&Topology, MemberIndex) -> bool,
    ) -> Result<Vec<MemberIndex>, PoolError> {
        let members = to_mark(&topology, suspected, meant);
        if members.is_empty() {
            return Ok(members);
        }
        let mut next = next_epoch(&topology.label);
        for member in &members {
            if let Some(member) = next.members.get_mut(usize::from(member.0)) {
                member.suspected = suspected;
            }
        }
        let devices = topology.devices.clone();
        self.change(topology, next, devices)?;
        Ok(members)
    }
}

/// Those that are `meant` and are not marked so yet.
fn to_mark(
    topology: &Topology,
    suspected: bool,
    meant: &dyn Fn(&Topology, MemberIndex) -> bool,
) -> Vec<MemberIndex> {
    let members = topology.members();
    members.filter(|m| topology.is_marked(*m) != suspected && meant(topology, *m)).collect()
}

/// While a member is out, nothing would stand in for one that returns garbage after all.
fn none_is_out(topology: &Topology) -> Result<(), PoolError> {
    topology.lost().next().map_or(Ok(()), |out| Err(clear_while_out(topology, out)))
}

fn clear_while_out(topology: &Topology, out: MemberIndex) -> PoolError {
    let (member, state) = (topology.name(out), state_word(topology.state(out)));
    ChangeError::ClearWhileOut { member, state }.into()
}

#[cfg(test)]
mod tests;
