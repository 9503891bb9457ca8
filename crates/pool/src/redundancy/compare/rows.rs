//! Rows of parity.

use braid_format::{ByteOffset, Bytes};

use super::report::{Scrubbed, put, undecided};
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::redundancy::decode::read_places;
use crate::redundancy::parity;
use crate::redundancy::sectors::sectors;
use crate::redundancy::verifier::{ChecksumVerifier, NoChecksums};
use crate::topology::{Lost, Topology};

/// Bytes of each unit of a parity row that are compared.
pub(super) struct Row {
    pub index: u64,
    /// From, to.
    pub range: (u64, u64),
    /// Where the row begins in the pool's bytes.
    pub logical: u64,
}

/// Compares a row with its parity, and heals what can be decided.
pub(super) fn check_row(
    topology: &Topology,
    group: &Group,
    row: &Row,
    verifier: &dyn ChecksumVerifier,
    report: &mut Scrubbed,
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let Shape::Parity { unit, parity } = group.shape else { return Ok(()) };
    let n = group.columns.len();
    let data = n - parity;
    let member = |place: usize| group.at(group.column_of(row.index, place), 0).0;
    let there: Vec<usize> = (0..n).filter(|p| topology.readable(member(*p))).collect();
    let mut away: Vec<usize> = (0..n).filter(|p| !there.contains(p)).collect();
    let len = Bytes(row.range.1 - row.range.0).to_usize();
    let mut columns: Vec<Vec<u8>> = vec![vec![0; len]; n];
    let mut unread = Vec::new();
    let read = read_places(topology, group, &[(row.index, row.range, there)]).pop();
    for (place, bytes) in read.into_iter().flatten() {
        match (bytes, columns.get_mut(place)) {
            (Ok(bytes), Some(to)) => to.copy_from_slice(&bytes),
            _ => unread.push(place),
        }
    }
    // Those of members that are suspected to return garbage.
    let read = |p: &usize| !away.contains(p) && !unread.contains(p);
    let avoided: Vec<usize> =
        (0..n).filter(|p| read(p) && topology.is_suspected(member(*p))).collect();
    let sector = topology.label.lock_sector.to_usize();
    let unknown = away.len() + unread.len() + avoided.len();
    if !unread.is_empty() && unknown > parity && len > sector {
        // Each may have other sectors that cannot be read.
        for (from, len) in sectors(row.range.0, len, sector) {
            let part = Row { range: (from, from + len as u64), ..*row };
            check_row(topology, group, &part, &NoChecksums, report, lost)?;
        }
        return Ok(());
    }
    let at = row.logical + row.range.0;
    away.extend(&unread);
    let mut wrong = unread.clone();
    if away.len() >= parity {
        if unread.is_empty() {
            // Nothing is left to compare with.
            return Ok(());
        }
        // What could not be read may still be had, but not from garbage.
        if !avoided.is_empty() || !recover(data, &mut columns, &away) {
            undecided(report, at, len * unread.len());
            return Ok(());
        }
    } else if let Some(found) = decide(data, &mut columns, (&away, &avoided), (at, unit), verifier)
    {
        wrong.extend(found);
    } else {
        undecided(report, at, len);
        return Ok(());
    }
    for place in wrong {
        let at = group.at(group.column_of(row.index, place), row.index * unit + row.range.0).1;
        if let Some(bytes) = columns.get(place) {
            put(topology, member(place), at, bytes, report, lost)?;
        }
    }
    Ok(())
}

/// Computes the `lost` columns of a row anew from the others. Whether they suffice.
fn recover(data: usize, columns: &mut [Vec<u8>], lost: &[usize]) -> bool {
    let mut slices: Vec<&mut [u8]> = columns.iter_mut().map(|b| &mut b[..]).collect();
    parity::recover(data, &mut slices, lost)
}

/// Finds the columns of a row that are wrong, and puts right what they hold. `None`: that cannot be decided. `away`
/// ones are not known, and `avoided` ones are of members that are suspected to return garbage: what these hold is no
/// part of what is right, as long as enough is left to compare. Otherwise only one of them may be found to be wrong.
fn decide(
    data: usize,
    columns: &mut [Vec<u8>],
    (away, avoided): (&[usize], &[usize]),
    at: (u64, u64),
    verifier: &dyn ChecksumVerifier,
) -> Option<Vec<usize>> {
    let doubted = [away, avoided].concat();
    let compares = doubted.len() < columns.len() - data;
    let left_out = if compares { &doubted[..] } else { away };
    let found = suspect(data, columns, left_out, at, verifier).ok()?;
    if !compares && !avoided.is_empty() && found.is_some_and(|place| !avoided.contains(&place)) {
        return None;
    }
    let mut lost: Vec<usize> = left_out.iter().copied().chain(found).collect();
    lost.sort_unstable();
    lost.dedup();
    let before = columns.to_vec();
    if !recover(data, columns, &lost) {
        return None;
    }
    let changed = |place: &usize| compares && columns.get(*place) != before.get(*place);
    let garbage = avoided.iter().copied().filter(changed);
    Some(found.into_iter().chain(garbage).collect())
}

/// The one column of a row that is wrong, if the row is not whole. `away` ones are not known.
fn suspect(
    data: usize,
    columns: &[Vec<u8>],
    away: &[usize],
    (logical, unit): (u64, u64),
    verifier: &dyn ChecksumVerifier,
) -> Result<Option<usize>, parity::Damaged> {
    let whole = |lost: &[usize]| {
        let mut again = columns.to_vec();
        let can = recover(data, &mut again, lost);
        (can, again)
    };
    // Compute the parity anew and compare with what stands there.
    let mut lost: Vec<usize> = away.to_vec();
    lost.extend((data..columns.len()).rev().filter(|p| !away.contains(p)).take(1));
    let (can, again) = whole(&lost);
    let parities = columns.len() - data;
    if !can || (parities == 1 || !away.is_empty()) && again == columns_with(columns, &again, away) {
        return Ok(None);
    }
    if parities == 2 && away.is_empty() {
        let refs: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        if let found @ Ok(_) = parity::locate(data, &refs) {
            return found;
        }
    }
    // By what the file system knows: a data column of which some block is known to be bad, and the
    // one computed from the others known to be good.
    for place in (0..data).filter(|p| !away.contains(p)) {
        let mut lost: Vec<usize> = away.to_vec();
        lost.push(place);
        let (can, again) = whole(&lost);
        let (Some(old), Some(new)) = (columns.get(place), again.get(place)) else { continue };
        let differing = old.chunks(verifier.grain()).zip(new.chunks(verifier.grain())).enumerate();
        let mut differing = differing.filter(|(_, (a, b))| a != b);
        let known = |(i, (old, new)): (usize, (&[u8], &[u8]))| {
            let at = ByteOffset(logical + place as u64 * unit + (i * verifier.grain()) as u64);
            verifier.verify(at, old) == Some(false) && verifier.verify(at, new) == Some(true)
        };
        if can && differing.any(known) {
            return Ok(Some(place));
        }
    }
    Err(parity::Damaged)
}

/// `columns` with those in `away` as in `again`: for comparing the others.
fn columns_with(columns: &[Vec<u8>], again: &[Vec<u8>], away: &[usize]) -> Vec<Vec<u8>> {
    let mut with = columns.to_vec();
    for place in away {
        if let (Some(to), Some(from)) = (with.get_mut(*place), again.get(*place)) {
            to.clone_from(from);
        }
    }
    with
}
