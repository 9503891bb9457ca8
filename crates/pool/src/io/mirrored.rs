//! Compare-and-write of a sector that stands on a mirror: the first copy decides, the others
//! follow.

use braid_device::{CawOutcome, DeviceError};
use braid_format::{ByteOffset, Bytes};

use crate::devices::copy_sector::{Side, UNKNOWN_MAX, follow};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::map::Place;
use crate::pool::PoolState;
use crate::redundancy::atomic_records::is_record;
use crate::topology::{Lost, Topology};

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
            if let Some(log) = &topology.log {
                log.intents.note(&topology, log.slot, &[(at.0, at.0 + len.0)], &mut lost)?;
            }
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
        topology: &Topology,
        group: &Group,
        again: bool,
        lost: &mut Lost,
    ) -> Option<CawOutcome> {
        let first = topology.copies(group).next()?;
        let (arbiter, place) = group.at(first, self.at);
        let device = topology.device(arbiter);
        let mut unknown = 0;
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
            match follow(&**device, place, follower, there, self.new.len()) {
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
}
