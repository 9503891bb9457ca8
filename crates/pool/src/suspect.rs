//! Members that return garbage: told from bytes whose checksum is wrong on one member and right on
//! others.
//!
//! ```text
//!  sound --8 places--> suspected (named in the log and in `status`) --32 places--> failed by rule
//! ```
//! Places are counted once, and only if the member returns garbage there when it is asked again: a
//! block that is read while it is written may look damaged. A member that others cannot do without
//! stays in use. File data has no checksums: a member that returns garbage for metadata returns it for
//! file data too, so it is better done without.

use std::collections::{BTreeSet, HashMap};

use braid_device::AlignedBuf;
use braid_format::label::MemberState;
use braid_format::{ByteOffset, MemberIndex};
use uuid::Uuid;

use crate::Pool;
use crate::error::PoolError;
use crate::group::{Group, Shape};
use crate::map::Place;

/// Damaged places from which on a member is suspected.
pub const SUSPECT_AT: usize = 8;
/// Damaged places from which on a member is failed; as many are remembered.
pub const FAIL_AT: usize = 32;

/// Damaged places of each member, by its identity: numbers are given again.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    places: HashMap<Uuid, BTreeSet<u64>>,
}

impl Suspicion {
    /// Notes a place; whether the member has become suspected by it.
    fn note(&mut self, member: Uuid, at: ByteOffset) -> bool {
        let places = self.places.entry(member).or_default();
        places.len() < FAIL_AT && places.insert(at.0) && places.len() == SUSPECT_AT
    }
    fn count(&self, member: Uuid) -> usize {
        self.places.get(&member).map_or(0, BTreeSet::len)
    }
}

impl Pool {
    /// What [`Pool::read`] gave for the pool's bytes at `at` is damaged, and some other way to read them
    /// gave what is `good`: the member is asked again, and its damage counted if it is still there.
    pub fn blame(&self, at: ByteOffset, len: usize, good: &dyn Fn(&[u8]) -> bool) {
        let topology = self.0.topology.read();
        let Some(piece) = topology.map.pieces(at, braid_format::Bytes::from(len)).next() else {
            return;
        };
        let Place::Group(index) = piece.place else { return };
        let group = topology.map.group(index);
        let offset = piece.at.0;
        let column = match group.shape {
            Shape::Mirror => {
                let live: Vec<usize> = topology.copies(group).collect();
                live.get(Group::turn(offset, live.len())).map(|column| (*column, offset))
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
            let topology = self.0.topology.read();
            let Some(uuid) = topology.uuid(member) else { return };
            (uuid, topology.name(member).clone())
        };
        if self.0.suspicion.lock().note(uuid, at) {
            tracing::error!(
                %member,
                device = name,
                "{SUSPECT_AT} blocks of metadata are damaged on this member and sound on others: it is suspected to return garbage, for file data too; after {FAIL_AT} it is failed; `braid fail` does so now"
            );
        }
    }
    /// Members in use that are suspected, and how many damaged places each has ([`FAIL_AT`]: or more).
    pub fn suspects(&self) -> Vec<(MemberIndex, usize)> {
        let topology = self.0.topology.read();
        let suspicion = self.0.suspicion.lock();
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
            if !self.0.topology.read().can_lose(member) {
                continue;
            }
            self.fail_member(member)?;
            failed.push(member);
        }
        Ok(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_device::{Device, MemoryDevice};
    use braid_format::Bytes;

    use super::*;
    use crate::CreateOptions;
    use crate::layout::Redundancy;

    #[test]
    fn a_member_of_garbage_is_suspected_then_failed_and_one_that_is_needed_stays() {
        for redundancy in [Redundancy::Mirror(2), Redundancy::Parity(1)] {
            let device = |n| {
                MemoryDevice::new(&format!("m{n}"), Bytes(64 << 20), Bytes(512)) as Arc<dyn Device>
            };
            let options = CreateOptions { redundancy, ..CreateOptions::new("garbage") };
            let pool = Pool::create(
                (0..3 - usize::from(redundancy == Redundancy::Mirror(2))).map(device).collect(),
                &options,
            )
            .unwrap();
            let at = |n: u64| ByteOffset(n * 4096);
            for n in 0..FAIL_AT as u64 * 8 {
                pool.write(at(n), &[7; 4096]).unwrap();
            }
            let sick = MemberIndex(0);
            let label = pool.label();
            let start = label.members[0].data_start;
            for n in 0..FAIL_AT as u64 * 8 {
                pool.devices()[0].write(start + Bytes(n * 4096), &[0xee; 4096]).unwrap();
            }
            let good = |bytes: &[u8]| bytes.iter().all(|b| *b == 7);
            let mut steps = Vec::new();
            for n in 0..FAIL_AT as u64 * 8 {
                pool.blame(at(n), 4096, &good);
                // The same place twice is one.
                pool.blame(at(n), 4096, &good);
                let count = pool.suspects().first().map_or(0, |s| s.1);
                if steps.last() != Some(&count) {
                    steps.push(count);
                }
                if count < FAIL_AT {
                    assert_eq!(pool.fail_suspects().unwrap(), []);
                }
            }
            assert_eq!(steps[..2], [0, SUSPECT_AT], "{redundancy:?}");
            assert_eq!(pool.suspects(), [(sick, FAIL_AT)]);
            assert_eq!(pool.fail_suspects().unwrap(), [sick]);
            assert_eq!(pool.suspects(), []);
            let mut read = [0; 4096];
            for n in 0..FAIL_AT as u64 * 8 {
                pool.read(at(n), &mut read).unwrap();
                assert!(good(&read), "{redundancy:?}, block {n}");
            }
            // Another, which nobody can do without any more.
            for n in 0..FAIL_AT as u64 {
                pool.accuse(MemberIndex(1), at(n));
            }
            assert_eq!(pool.suspects(), [(MemberIndex(1), FAIL_AT)]);
            assert_eq!(pool.fail_suspects().unwrap(), []);
        }
    }
}
