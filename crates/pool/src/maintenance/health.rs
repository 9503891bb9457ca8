//! Naming members that are slow, and failing members that return garbage.

use std::time::Duration;

use braid_device::AlignedBuf;
use braid_format::label::MemberState;
use braid_format::{ByteOffset, MemberIndex};

use crate::error::PoolError;
use crate::health::slow::Noticed;
use crate::health::suspect::{FAIL_AT, SUSPECT_AT};
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::pool::Pool;

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
    /// gave what is `good`: the member is asked again, and its damage counted if it is still there.
    pub fn blame(&self, at: ByteOffset, len: usize, good: &dyn Fn(&[u8]) -> bool) {
        let topology = self.0.epochs.read();
        let Some(piece) = topology.map.pieces(at, braid_format::Bytes::from(len)).next() else {
            return;
        };
        let Place::Group(index) = piece.place else { return };
        let group = topology.map.group(index);
        let offset = piece.at.0;
        let column = match group.shape {
            Shape::Mirror => {
                let live: Vec<usize> = topology.copies(group).collect();
                live.get(Group::read_copy_at(offset, live.len())).map(|column| (*column, offset))
            }
            Shape::Parity { unit, .. } => {
                let mut units = group.units(offset, len as u64);
                let only = units.next().filter(|u| u.len >= len as u64);
                only.map(|u| (group.column_of(u.row, u.place), u.row * unit + u.within))
            }
        };
        let Some((member, place)) = column.map(|(column, at)| group.at(column, at)) else { return };
        let mut bytes = AlignedBuf::zeroed(len);
        let damaged = topology.device(member).read(place, &mut bytes).is_ok() && !good(&bytes);
        drop(topology);
        if damaged {
            self.accuse(member, at);
        }
    }
    /// A member has something else at the pool's byte `at` than what a checksum says is right.
    pub(crate) fn accuse(&self, member: MemberIndex, at: ByteOffset) {
        let (uuid, name) = {
            let topology = self.0.epochs.read();
            let Some(uuid) = topology.uuid(member) else { return };
            (uuid, topology.name(member).clone())
        };
        if self.0.health.suspicion.lock().note(uuid, at) {
            tracing::error!(
                %member,
                device = name,
                "{SUSPECT_AT} blocks of metadata are damaged on this member and sound on others: it is suspected to return garbage, for file data too; after {FAIL_AT} it is failed; `braid fail` does so now"
            );
        }
    }
    /// Members in use that are suspected, and how many damaged places each has ([`FAIL_AT`]: or more).
    pub fn suspects(&self) -> Vec<(MemberIndex, usize)> {
        let topology = self.0.epochs.snapshot();
        let suspicion = self.0.health.suspicion.lock();
        let in_use = |m: &MemberIndex| topology.state(*m) != MemberState::Failed;
        let count = |m| Some((m, topology.uuid(m).map_or(0, |uuid| suspicion.count(uuid))));
        topology.members().filter(in_use).filter_map(count).filter(|s| s.1 >= SUSPECT_AT).collect()
    }
    /// Fails the members that have too many damaged places, if the others can do without them; those
    /// that it did.
    ///
    /// # Errors
    /// As [`Pool::fail_member`], but for a member that cannot be spared: that one stays.
    pub fn fail_suspects(&self) -> Result<Vec<MemberIndex>, PoolError> {
        let mut failed = Vec::new();
        for (member, _) in self.suspects().into_iter().filter(|s| s.1 >= FAIL_AT) {
            if !self.0.epochs.read().can_lose(member) {
                continue;
            }
            self.fail_member(member)?;
            failed.push(member);
        }
        Ok(failed)
    }
}

#[cfg(test)]
mod tests;
