//! Making the columns of a group agree after a crash: mirrors by `resync`, parity by computing it
//! again.

use braid_device::{AlignedBuf, DeviceError};
use braid_format::Bytes;

use super::copy_damage::{CHUNK, CopyDamage};
use super::decode::read_places;
use super::mirror_resync::Mirror;
use super::reconstruct::{say_mended, still_a_member};
use super::sectors::{differing, sectors};
use super::verifier::ChecksumVerifier;
use super::{EpochInUse, parity};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::stretch::{Stretch, spans, stretches};
use crate::topology::{Lost, Topology};

/// Makes all columns in use agree on the pool's bytes `from..to`: the copies of a mirror on what is
/// right, as far as the verifier or most of them know, else on what the first holds; and parity is
/// computed from the data. How many bytes had to change. `copy_damage` has seen all of it.
///
/// # Errors
/// A member that cannot be spared fails; others that fail are added to `lost`.
pub(crate) fn resync(
    topology: &EpochInUse,
    (from, to): (u64, u64),
    (verifier, copy_damage): (&dyn ChecksumVerifier, &CopyDamage),
    lost: &mut Lost,
) -> Result<Bytes, PoolError> {
    let mut changed = 0;
    let all = stretches(&topology.map, from, to);
    for (index, from, to) in spans(&topology.map, from, to) {
        let group = topology.map.group(index);
        let own: Vec<Stretch> = all.iter().copied().filter(|s| s.group == index).collect();
        let mirror = Mirror { topology, group, stretches: &own, verifier, copy_damage };
        let step = group.row_len().unwrap_or(CHUNK);
        let mut at = from;
        while at < to {
            if group.members().any(|m| lost.iter().any(|l| l.0 == m)) {
                // All of it is done again without that one.
                break;
            }
            let end = to.min(at / step * step + step);
            let _held = topology.lock(index, vec![(at, end)]);
            changed += match group.shape {
                Shape::Mirror if copy_damage.is_same(topology, index, at) => 0,
                Shape::Mirror => mirror.resync((at, end), lost)?,
                Shape::Parity { .. } => recompute(topology, group, at / step, lost)?,
            };
            at = end;
        }
    }
    Ok(Bytes(changed))
}

/// Computes a row's parity from its data, and returns how many bytes differed. A lost data column
/// is computed from P (or from Q, if P is lost, too), and the rest of the parity must agree with
/// that. What cannot be read of a column counts as lost, and is rewritten if the rest of the row
/// gives it. The same is done with what stands on a suspected member: garbage is not to get into the parity.
/// (Of a row that was being written as a whole it may get what is neither old nor new.)
///
/// If there are two parities and all columns, this does not ask [`parity::locate`] which column has
/// rotted. A whole row may have been in the middle of being written, and only its region is known,
/// not the row. Such a row is old in some columns and new in others, and `locate` may name the
/// wrong column. For example: the first two data columns change by c0 and c1, the third stays as it
/// was, and 5 c0 = 6 c1 over the field. If the data are new and both parities old, `locate` names
/// the third column, and would put there what nobody ever wrote. No checksum shows which rows these
/// are, since only file data has parity. A scrub does ask it, because nothing is being written
/// then.
fn recompute(
    topology: &Topology,
    group: &Group,
    row: u64,
    lost: &mut Lost,
) -> Result<u64, PoolError> {
    let Shape::Parity { unit, .. } = group.shape else { return Ok(0) };
    let read = Row::read(topology, group, row, (0, unit));
    if read.unread.is_empty() {
        return read.recompute(topology, group, lost);
    }
    for (place, error) in read.unread {
        let member = group.at(group.column_of(row, place), 0).0;
        if !still_a_member(topology, member) {
            topology.do_without(member, error, lost)?;
            return Ok(0);
        }
    }
    // Each may have other sectors that cannot be read.
    let mut changed = 0;
    let sector = topology.label.lock_sector.to_usize();
    for (from, len) in sectors(0, Bytes(unit).to_usize(), sector) {
        let part = Row::read(topology, group, row, (from, from + len as u64));
        changed += part.recompute(topology, group, lost)?;
    }
    Ok(changed)
}

/// Bytes of each unit of a parity row, by place: data, then P, then Q.
struct Row {
    index: u64,
    /// Where they begin in a unit.
    from: u64,
    places: Vec<AlignedBuf>,
    /// Places on members that are not in sync.
    away: Vec<usize>,
    /// Others that could not be read, and why.
    unread: Vec<(usize, DeviceError)>,
    /// Places of suspected members that the others give, too.
    avoided: Vec<usize>,
}

impl Row {
    fn read(topology: &Topology, group: &Group, index: u64, range: (u64, u64)) -> Self {
        let n = group.columns.len();
        let there =
            |place: &usize| topology.readable(group.at(group.column_of(index, *place), 0).0);
        let (wanted, away): (Vec<usize>, Vec<usize>) = (0..n).partition(there);
        let len = Bytes(range.1 - range.0).to_usize();
        let mut places: Vec<AlignedBuf> = (0..n).map(|_| AlignedBuf::zeroed(len)).collect();
        let mut unread = Vec::new();
        let read = read_places(topology, group, &[(index, range, wanted)]).pop();
        for (place, bytes) in read.into_iter().flatten() {
            match (bytes, places.get_mut(place)) {
                (Ok(bytes), Some(to)) => *to = bytes,
                (Err(error), _) => unread.push((place, error)),
                _ => {}
            }
        }
        let is_unread = |p: usize| unread.iter().any(|u: &(usize, DeviceError)| u.0 == p);
        let is_avoided = |p: &usize| {
            let member = group.at(group.column_of(index, *p), 0).0;
            topology.suspicion.any() && topology.is_avoided(group, member)
        };
        let gone = |p: &usize| away.contains(p) || is_unread(*p);
        let mut avoided: Vec<usize> = (0..n).filter(|p| !gone(p) && is_avoided(p)).collect();
        if (0..n).filter(gone).count() + avoided.len() > group.tolerance() {
            avoided.clear();
        }
        Self { index, from: range.0, places, away, unread, avoided }
    }

    /// [`recompute`] of these bytes.
    fn recompute(
        &self,
        topology: &Topology,
        group: &Group,
        lost: &mut Lost,
    ) -> Result<u64, PoolError> {
        let Shape::Parity { unit, parity } = group.shape else { return Ok(0) };
        let (n, data) = (group.columns.len(), group.columns.len() - parity);
        let is_unread = |place: usize| self.unread.iter().any(|u| u.0 == place);
        let unknown = |p: &usize| self.away.contains(p) || is_unread(*p);
        let missing = |p: &usize| unknown(p) || self.avoided.contains(p);
        let gone = (0..n).filter(missing).count();
        let data_gone = (0..data).any(|p| missing(&p));
        // If data is gone, the last parity that is there is computed again; otherwise all of them
        // are. If every parity that is left is needed for the data, none is.
        let first = match (data_gone, gone < parity) {
            (true, true) => n - 1,
            (true, false) => n,
            (false, _) => data,
        };
        // What is filled just now is not filled again.
        let is_filled =
            |p: &usize| topology.writable(group.at(group.column_of(self.index, *p), 0).0);
        let fills = self.away.iter().any(is_filled);
        if first == n && self.unread.is_empty() && self.avoided.is_empty() && !fills {
            return Ok(0);
        }
        let anew: Vec<usize> = (0..n).filter(|p| *p >= first || missing(p)).collect();
        let mut new: Vec<Vec<u8>> = self.places.iter().map(|b| b.to_vec()).collect();
        let mut slices: Vec<&mut [u8]> = new.iter_mut().map(|b| &mut b[..]).collect();
        if !parity::recover(data, &mut slices, &anew) {
            self.say_left(topology, group);
            return Ok(0);
        }
        let mut changed = 0;
        for (place, (old, new)) in self.places.iter().zip(&new).enumerate() {
            let (member, at) =
                group.at(group.column_of(self.index, place), self.index * unit + self.from);
            let same = !unknown(&place) && old[..] == new[..];
            if same || !topology.writable(member) {
                continue;
            }
            changed += match place {
                _ if is_unread(place) => new.len() as u64,
                _ if place < data && self.away.contains(&place) => 0,
                _ => differing(old, new),
            };
            match topology.device(member).write(at, new) {
                Ok(()) => {
                    let unread = self.unread.iter().find(|u| u.0 == place);
                    unread.inspect(|u| say_mended(topology, member, &u.1));
                }
                Err(error) => topology.do_without(member, error, lost)?,
            }
        }
        Ok(changed)
    }

    /// More cannot be read than the group can lose. A read fails, too, until the place is written.
    fn say_left(&self, topology: &Topology, group: &Group) {
        for (place, error) in &self.unread {
            let member = topology.name(group.at(group.column_of(self.index, *place), 0).0);
            tracing::error!(member, %error, "cannot be read, nor computed from the other members");
        }
    }
}
