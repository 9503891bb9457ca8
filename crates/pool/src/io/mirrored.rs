//! Compare-and-write of a sector that stands on a mirror: the first copy decides, the others
//! follow.

use braid_device::{CawOutcome, DeviceError};
use braid_format::{ByteOffset, Bytes};

use crate::devices::copy_sector::{Side, UNKNOWN_MAX, follow};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::redundancy::atomic_records::is_record;
use crate::redundancy::reconstruct::{mend_copy, say_mended, still_a_member};
use crate::topology::Lost;

/// A compare-and-write on all copies of a mirror.
#[derive(Debug, Clone, Copy)]
struct Exchange<'a> {
    /// Offset in the group.
    at: u64,
    expected: &'a [u8],
    new: &'a [u8],
}

impl PoolState {
    /// [`crate::pool::Pool::compare_and_write`] where the sector stands on a mirror. The first copy in
    /// sync decides; the others follow before the call returns, each brought to what stands on the
    /// first, by compare-and-write, so that a slower follower never takes a newer one back. (Each
    /// value is written only once: a lock record carries a nonce.)
    pub fn compare_and_write_mirrored(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, PoolError> {
        let mut again = false;
        loop {
            let topology = self.enter()?;
            let len = Bytes::from(new.len());
            let past = PoolError::PastEnd { at, len, size: topology.map.size() };
            if topology.map.is_holed(at, len) {
                return Err(PoolError::Hole { at, len });
            }
            let piece = topology.map.pieces(at, len).next().filter(|p| p.len == len).ok_or(past)?;
            let index = match piece.place {
                Place::Group(index) => index,
                Place::Member(member) => {
                    let device = topology.device(member);
                    return Ok(device.compare_and_write(piece.at, expected, new)?);
                }
            };
            let group = topology.map.group(index);
            if group.shape != Shape::Mirror {
                return Err(PoolError::LockOnParity { at });
            }
            if topology.provisional {
                return Err(PoolError::Provisional { name: topology.label.name.clone() });
            }
            if topology.is_filled(group) && !is_record(expected) {
                return Err(PoolError::NoRecord { at });
            }
            let range = (piece.at.0, piece.at.0 + len.0);
            let held = topology.lock(index, vec![range]);
            let exchange = Exchange { at: piece.at.0, expected, new };
            let mut lost = Lost::new();
            // After a crash the copies may differ, as after any write.
            topology.note(&[(at.0, at.0 + len.0)], &mut lost)?;
            let outcome = exchange.run(&topology, group, again, &mut lost);
            drop(held);
            let lost = topology.named(&lost);
            drop(topology);
            if !lost.is_empty() {
                self.fail_members(&lost)?;
            }
            self.check_migration()?;
            match outcome {
                Some(outcome) => return Ok(outcome),
                None => again = true,
            }
        }
    }
}

impl Exchange<'_> {
    /// On the deciding copy, then on the others; `None` when the deciding copy failed. `again`: it
    /// did before, and this one may have got the new bytes then, though not all others have.
    fn run(
        &self,
        topology: &EpochInUse,
        group: &Group,
        again: bool,
        lost: &mut Lost,
    ) -> Option<CawOutcome> {
        let first = topology.copies(group).next()?;
        let (arbiter, place) = group.at(first, self.at);
        let device = topology.device(arbiter);
        let (mut unknown, mut mended) = (0, false);
        loop {
            match device.compare_and_write(place, self.expected, self.new) {
                Ok(CawOutcome::Written) => break,
                Ok(CawOutcome::Mismatch(found)) if (again || unknown != 0) && found == self.new => {
                    break;
                }
                Ok(mismatch) => return Some(mismatch),
                // If two compare with the same bytes, one of them lands, because no value is
                // written twice.
                Err(DeviceError::Unknown { .. }) if unknown < UNKNOWN_MAX => unknown += 1,
                Err(error) if !mended && self.mend(topology, group, first, &error) => mended = true,
                Err(error) => {
                    lost.push((arbiter, error));
                    return None;
                }
            }
        }
        for column in (0..group.columns.len()).filter(|c| *c != first) {
            let (member, there) = group.at(column, self.at);
            if !topology.writable(member) {
                continue;
            }
            let follower = &**topology.device(member);
            let bring = || follow(&**device, place, follower, there, self.new.len());
            let brought = match bring() {
                Err(Side::Follower(error)) if self.mend(topology, group, column, &error) => bring(),
                done => done,
            };
            match brought {
                Ok(()) => {}
                Err(Side::Arbiter(error)) => {
                    lost.push((arbiter, error));
                    return None;
                }
                Err(Side::Follower(error)) => lost.push((member, error)),
            }
        }
        Some(CawOutcome::Written)
    }

    /// If the sector cannot be read on one copy, but on another, writes it there. Whether it did: then the copy need
    /// not fail. As when a read meets such a sector, nothing is brought over from members of which one is suspected,
    /// and nothing is written in an epoch that may be taken back.
    fn mend(
        &self,
        topology: &EpochInUse,
        group: &Group,
        column: usize,
        error: &DeviceError,
    ) -> bool {
        let (member, place) = group.at(column, self.at);
        let mut bytes = vec![0; self.new.len()];
        let is_unreadable =
            error.is_of_one_place() && topology.device(member).read(place, &mut bytes).is_err();
        let may = topology.log.is_some()
            && topology.ready()
            && !group.members().any(|m| topology.is_suspected(m))
            && still_a_member(topology, member);
        if !is_unreadable || !may {
            return false;
        }
        let mut others = topology.copies(group).filter(|other| *other != column);
        let is_read = others.any(|other| {
            let (member, place) = group.at(other, self.at);
            topology.device(member).read(place, &mut bytes).is_ok()
        });
        let is_mended = is_read
            && mend_copy(topology, group, column, (self.at, &bytes)).is_ok_and(|n| n > Bytes(0));
        if is_mended {
            say_mended(topology, member, error);
        }
        is_mended
    }
}
