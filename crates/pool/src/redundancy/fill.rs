//! Filling a member with what the other columns of its groups hold.
//!
//! A member must not be filled from a copy that has rotted: of three copies two would then have the
//! rot. File data has no checksums, so its rot shows only if copies are compared. So all copies in
//! sync are read at once, each from its own device, and compared in memory. That takes no longer
//! than to read one copy, because the device that is filled is the slowest part; reads of other
//! requests on those copies become slower meanwhile. If copies differ, they are compared and healed
//! as in a scrub. If nothing says which copy is right, the member gets what the first copy holds,
//! and those bytes are counted ([`Verification`]). A mirror with one copy left has nothing to
//! compare, and a checksum would change nothing.
//!
//! In rows of two parities of which one column is away, the parity that is not needed is compared
//! with the rest of the row: a difference is counted. Two parities cannot tell which column is
//! wrong while another is away.
//!
//! Nothing is in the middle of a write while it is filled: its regions are held, and what a dead
//! node was writing has been repaired. So bytes that differ have rotted, or belong to a record that
//! is being changed.

use std::ops::Range;

use braid_device::{AlignedBuf, DeviceError, Op, Request, run};
use braid_format::{Bytes, MemberIndex};

use super::atomic_records::record_span;
use super::catch_up::catch_up;
use super::compare::{Concurrent, Scrubbed, check_mirror, undecided};
use super::decode::{Sources, decode_row};
use super::reconstruct::{mend_unit, read_mending};
use super::verification::Verification;
use super::{EpochInUse, parity};
use crate::devices::copy_sector::Side;
use crate::error::PoolError;
use crate::layout::group::{Group, Shape};
use crate::layout::stretch::{Span, Stretch, stretches_of};
use crate::topology::{Lost, Topology};

/// By what a member is filled.
#[derive(Clone, Copy)]
pub(crate) struct Filling<'a> {
    pub verification: &'a Verification<'a>,
    /// Other nodes may compare-and-write meanwhile.
    pub concurrent: Concurrent<'a>,
}

/// Fills what `member` holds of a group's bytes `from..to` (whole rows where there is parity) from
/// the other columns. What one of these cannot read comes from the rest, and is rewritten there.
///
/// How writing it ended is the inner result. Its regions are held against other nodes. Others that fail
/// over it are added to `lost`: the span is then to be filled again without them.
///
/// # Errors
/// The others do not have it.
pub(crate) fn fill(
    topology: &EpochInUse,
    span: Span,
    member: MemberIndex,
    filling: Filling<'_>,
    lost: &mut Lost,
) -> Result<Result<(), DeviceError>, PoolError> {
    let (index, from, to) = span;
    let group = topology.map.group(index);
    let Some(column) = group.members().position(|m| m == member) else {
        return Err(PoolError::NoSuchMember { member });
    };
    let mut found = Scrubbed::default();
    let _held = topology.lock(index, vec![(from, to)]);
    let filled = match group.shape {
        Shape::Mirror => Copy { topology, group, span, column, filling }.fill(&mut found, lost)?,
        Shape::Parity { unit, .. } => {
            let row_len = group.row_len().unwrap_or(unit);
            let rows = from / row_len..to / row_len;
            let (bytes, unlike) = match decode_column(topology, group, rows.clone(), column) {
                Some(decoded) => decoded,
                None => (
                    decode_column_by_rows(topology, group, rows.clone(), column, lost)?,
                    Vec::new(),
                ),
            };
            for row in unlike {
                let row = stretches_of(&topology.map, index, row * row_len, row * row_len + 1);
                for stretch in row {
                    undecided(&mut found, stretch.logical, Bytes(unit).to_usize());
                }
            }
            topology.device(member).write(group.at(column, rows.start * unit).1, &bytes)
        }
    };
    if lost.is_empty() && filled.is_ok() {
        filling.verification.add(&found);
    }
    Ok(filled)
}

/// Times that a chunk is filled again because the copy it is read from had a bad place more.
const AGAIN: u32 = 3;

/// A copy of a mirror that is filled: `column`.
struct Copy<'a> {
    topology: &'a Topology,
    group: &'a Group,
    span: Span,
    column: usize,
    filling: Filling<'a>,
}

impl Copy<'_> {
    /// [`fill`] from the first copy. Only what other nodes may have changed while it was copied is looked at
    /// once more.
    fn fill(
        &self,
        found: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<Result<(), DeviceError>, PoolError> {
        let (topology, group, (_, from, to)) = (self.topology, self.group, self.span);
        let (member, at) = group.at(self.column, from);
        let source = topology.copies(group).next().ok_or_else(|| topology.too_many_lost(group))?;
        let mut bytes = AlignedBuf::zeroed(Bytes(to - from).to_usize());
        let mut agreed = self.compare(source, &mut bytes, found, lost)?;
        let mut tries = 0;
        loop {
            if !lost.is_empty() {
                return Ok(Ok(()));
            }
            if !agreed && !read_mending(topology, group, source, (from, &mut bytes), lost)? {
                return Ok(Ok(()));
            }
            agreed = false;
            let written = topology.device(member).write(at, &bytes);
            if self.filling.concurrent.is_none() || written.is_err() {
                return Ok(written);
            }
            // Compare-and-writes keep to records only while somebody is being filled, and what they
            // compare with stands on the first copy.
            let sector = topology.label.lock_sector.to_usize();
            let all = || Some(0..bytes.len());
            let again = if topology.is_filled(group) { record_span(&bytes, sector) } else { all() };
            let Some((start, copied)) = again.and_then(|r| Some((r.start, bytes.get(r)?))) else {
                return Ok(Ok(()));
            };
            match catch_up(topology, group, (source, self.column), from + start as u64, copied) {
                Ok(()) => return Ok(Ok(())),
                Err(Side::Follower(error)) => return Ok(Err(error)),
                // It may have a bad place more than it had.
                Err(Side::Arbiter(_)) if tries < AGAIN => tries += 1,
                Err(Side::Arbiter(error)) => {
                    topology.do_without(group.at(source, from).0, error, lost)?;
                    return Ok(Ok(()));
                }
            }
        }
    }

    /// Reads all copies in sync at once. Where they differ, or cannot be read, it decides what is
    /// right. Whether they are alike: `bytes` are theirs then. Not, if there is only one: that is
    /// for the caller to read.
    fn compare(
        &self,
        source: usize,
        bytes: &mut AlignedBuf,
        found: &mut Scrubbed,
        lost: &mut Lost,
    ) -> Result<bool, PoolError> {
        let (topology, group, (index, from, to)) = (self.topology, self.group, self.span);
        let others: Vec<usize> = topology.copies(group).filter(|c| *c != source).collect();
        if others.is_empty() {
            return Ok(false);
        }
        let len = bytes.len();
        let mut copies: Vec<AlignedBuf> = others.iter().map(|_| AlignedBuf::zeroed(len)).collect();
        let columns = std::iter::once(source).chain(others);
        let buffers = std::iter::once(&mut *bytes).chain(&mut copies);
        let mut requests: Vec<Request<'_>> = Vec::with_capacity(group.columns.len());
        for (column, buf) in columns.zip(buffers) {
            let (member, at) = group.at(column, from);
            requests.push(Request::new(&**topology.device(member), at, Op::Read(buf)));
        }
        run(&mut requests);
        let whole = requests.iter().all(|r| r.result.is_ok());
        drop(requests);
        if whole && copies.iter().all(|copy| copy[..] == bytes[..]) {
            return Ok(true);
        }
        let differs = |s: &Stretch| {
            let range = Bytes(s.from - from).to_usize()..Bytes(s.to - from).to_usize();
            !whole || copies.iter().any(|copy| copy.get(range.clone()) != bytes.get(range.clone()))
        };
        let grain = self.filling.verification.verifier.grain() as u64;
        let pieces = stretches_of(&topology.map, index, from, to);
        let pieces = pieces.into_iter().flat_map(|s| if whole { s.cut(grain) } else { vec![s] });
        for piece in pieces.filter(differs) {
            let how = (self.filling.verification.verifier, self.filling.concurrent);
            check_mirror(topology, group, (piece.from, piece.to, piece.logical), how, found, lost)?;
        }
        Ok(false)
    }
}

/// What `column` holds of some rows, computed from all others, of which each is read in one piece:
/// on disks that turn, single units of rows that several threads are at cost a seek each. And the rows of
/// which a parity is not needed for that, and does not agree. `None`: something could not be read.
fn decode_column(
    topology: &Topology,
    group: &Group,
    rows: Range<u64>,
    column: usize,
) -> Option<(AlignedBuf, Vec<u64>)> {
    let Shape::Parity { unit, parity } = group.shape else { return None };
    let n = group.columns.len();
    let len = Bytes((rows.end - rows.start) * unit).to_usize();
    let mut columns: Vec<AlignedBuf> = (0..n).map(|_| AlignedBuf::zeroed(len)).collect();
    let sound = |m| topology.readable(m) && !topology.is_avoided(group, m);
    let usable = |c: usize| c != column && sound(group.at(c, 0).0);
    let mut requests: Vec<Request<'_>> = Vec::with_capacity(n);
    for (c, buf) in columns.iter_mut().enumerate().filter(|(c, _)| usable(*c)) {
        let (member, at) = group.at(c, rows.start * unit);
        requests.push(Request::new(&**topology.device(member), at, Op::Read(buf)));
    }
    run(&mut requests);
    if requests.iter().any(|r| r.result.is_err()) {
        return None;
    }
    let mut units: Vec<_> =
        columns.iter_mut().map(|c| c.chunks_exact_mut(Bytes(unit).to_usize())).collect();
    let mut unlike = Vec::new();
    for row in rows {
        let mut row_units: Vec<(usize, &mut [u8])> = units
            .iter_mut()
            .enumerate()
            .filter_map(|(c, units)| Some((group.place_of(row, c), units.next()?)))
            .collect();
        row_units.sort_by_key(|(place, _)| *place);
        let mut slices: Vec<&mut [u8]> = row_units.into_iter().map(|(_, unit)| unit).collect();
        let lost: Vec<usize> = (0..n).filter(|p| !usable(group.column_of(row, *p))).collect();
        if !parity::recover(n - parity, &mut slices, &lost) {
            return None;
        }
        if lost.len() < parity && !parity::agrees(n - parity, &slices) {
            unlike.push(row);
        }
    }
    drop(units);
    (column < n).then(|| (columns.swap_remove(column), unlike))
}

/// As [`decode_column`], row by row, around what cannot be read, which is written anew.
fn decode_column_by_rows(
    topology: &Topology,
    group: &Group,
    rows: Range<u64>,
    column: usize,
    lost: &mut Lost,
) -> Result<AlignedBuf, PoolError> {
    let Shape::Parity { unit, .. } = group.shape else { return Ok(AlignedBuf::zeroed(0)) };
    let member = group.at(column, 0).0;
    let mut bytes = AlignedBuf::zeroed(Bytes((rows.end - rows.start) * unit).to_usize());
    for (row, to) in rows.zip(bytes.chunks_exact_mut(Bytes(unit).to_usize())) {
        let columns = decode_row(topology, group, row, (0, unit), (Some(member), Sources::All))?;
        for (place, found) in columns.iter().enumerate() {
            let (other, at) = group.at(group.column_of(row, place), row * unit);
            if other == member {
                to.copy_from_slice(found);
            } else if topology.readable(other) && !lost.iter().any(|l| l.0 == other) {
                let mut there = AlignedBuf::zeroed(found.len());
                if topology.device(other).read(at, &mut there).is_err() {
                    mend_unit(topology, (other, at), found, lost)?;
                }
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
