//! Making a group's columns agree again: after a crash, onto a new member, and in a scrub.

use std::ops::Range;

use braid_device::{AlignedBuf, DeviceError, Op, Request, run};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::around::{mend_unit, read_mending};
use super::decode::{decode_row, read_places};
use super::engine::Lost;
use super::{Group, Shape, code};
use crate::error::PoolError;
use crate::map::Place;
use crate::records::records;
use crate::redundancy::{Side, follow};
use crate::topology::Topology;

/// Bytes of a mirror compared at a time.
const CHUNK: u64 = 1 << 20;

/// A run of a group's bytes: the group's place, from, to. Whole rows where there is parity.
pub(crate) type Span = (u16, u64, u64);

/// The runs of groups that the pool's bytes `from..to` stand on.
pub(crate) fn spans(topology: &Topology, from: u64, to: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for p in topology.map.pieces(ByteOffset(from), Bytes(to - from)) {
        let Place::Group(index) = p.place else { continue };
        let group = topology.map.group(index);
        let (a, b) = group.affected(p.at.0, p.len.0);
        // The runs of one group are seen in order, though not one after the other.
        match spans.iter_mut().rev().find(|s| s.0 == index) {
            Some(last) if last.2 >= a => last.2 = last.2.max(b),
            _ => spans.push((index, a, b)),
        }
    }
    spans
}

/// Makes all columns in use agree on the pool's bytes `from..to`: the other copies of a mirror get
/// what reads of it are given, and parity is computed from the data. How many bytes had to change.
///
/// # Errors
/// A member that cannot be spared fails; others that fail are added to `lost`.
pub(crate) fn resync(
    topology: &Topology,
    from: u64,
    to: u64,
    lost: &mut Lost,
) -> Result<Bytes, PoolError> {
    let mut changed = 0;
    for (index, from, to) in spans(topology, from, to) {
        let group = topology.map.group(index);
        let step = group.row_len().unwrap_or(CHUNK);
        let mut at = from;
        while at < to {
            let end = to.min(at / step * step + step);
            let _held = topology.lock(index, vec![(at, end)]);
            changed += match group.shape {
                Shape::Mirror => equalize(topology, group, at, end, lost)?,
                Shape::Parity { .. } => recompute(topology, group, at / step, lost)?,
            };
            at = end;
        }
    }
    Ok(Bytes(changed))
}

/// Gives every copy of a mirror what the first holds, which compare-and-writes go by; bytes that
/// differed.
fn equalize(
    topology: &Topology,
    group: &Group,
    from: u64,
    to: u64,
    lost: &mut Lost,
) -> Result<u64, PoolError> {
    let Some(source) = topology.copies(group).next() else { return Ok(0) };
    let mut truth = AlignedBuf::zeroed(Bytes(to - from).to_usize());
    let mut other = AlignedBuf::zeroed(truth.len());
    if !read_mending(topology, group, source, (from, &mut truth), lost)? {
        return Ok(0);
    }
    let mut changed = 0;
    for column in (0..group.columns.len()).filter(|c| *c != source) {
        let (member, at) = group.at(column, from);
        if !topology.writable(member) {
            continue;
        }
        let device = topology.device(member);
        let same = device.read(at, &mut other).is_ok() && other[..] == truth[..];
        if same {
            continue;
        }
        changed += differing(&truth, &other);
        if let Err(error) = device.write(at, &truth) {
            topology.spare(member, error, lost)?;
            continue;
        }
        bring_after(topology, group, (source, column), (from, &truth), lost)?;
    }
    Ok(changed)
}

/// As [`catch_up`]; a member that fails over it is `lost`.
///
/// # Errors
/// The pool cannot spare it.
pub(crate) fn bring_after(
    topology: &Topology,
    group: &Group,
    (source, target): (usize, usize),
    (from, copied): (u64, &[u8]),
    lost: &mut Lost,
) -> Result<(), PoolError> {
    match catch_up(topology, group, (source, target), from, copied) {
        Ok(()) => Ok(()),
        Err(Side::Arbiter(error)) => topology.spare(group.at(source, from).0, error, lost),
        Err(Side::Follower(error)) => topology.spare(group.at(target, from).0, error, lost),
    }
}

/// Compare-and-writes wait for no region: what they changed on the copy `source` of a mirror while
/// `copied` went from there to the copy `target` is brought after it, sector by sector.
pub(crate) fn catch_up(
    topology: &Topology,
    group: &Group,
    (source, target): (usize, usize),
    from: u64,
    copied: &[u8],
) -> Result<(), Side> {
    let sector = topology.label.lock_sector.to_usize();
    let (arbiter, at) = group.at(source, from);
    let (follower, there) = group.at(target, from);
    let (arbiter, follower) = (topology.device(arbiter), topology.device(follower));
    let mut before = AlignedBuf::zeroed(copied.len());
    before.copy_from_slice(copied);
    let mut now = AlignedBuf::zeroed(copied.len());
    loop {
        arbiter.read(at, &mut now).map_err(Side::Arbiter)?;
        if now[..] == before[..] {
            return Ok(());
        }
        let sectors = now.chunks(sector).zip(before.chunks(sector)).enumerate();
        for (i, _) in sectors.filter(|(_, (now, before))| now != before) {
            let within = Bytes::from(i * sector);
            follow(&**arbiter, at + within, &**follower, there + within, sector)?;
        }
        std::mem::swap(&mut now, &mut before);
    }
}

/// Bytes in sectors that differ.
fn differing(a: &[u8], b: &[u8]) -> u64 {
    let sectors = a.chunks(512).zip(b.chunks(512));
    sectors.filter(|(a, b)| a != b).map(|(a, _)| a.len() as u64).sum()
}

/// Computes a row's parity from its data; bytes that differed. Where a data column is lost it is
/// what P says (or Q, where P is lost too), and what is left of the parity must agree with that.
fn recompute(
    topology: &Topology,
    group: &Group,
    row: u64,
    lost: &mut Lost,
) -> Result<u64, PoolError> {
    let Shape::Parity { unit, parity } = group.shape else { return Ok(0) };
    let n = group.columns.len();
    let data = n - parity;
    let member = |place: usize| group.at(group.column_of(row, place), 0).0;
    let away: Vec<usize> = (0..n).filter(|p| !topology.readable(member(*p))).collect();
    let data_away = away.iter().filter(|p| **p < data).count();
    if data_away > 0 && away.len() >= parity {
        // Every parity that is left is needed for the data.
        return Ok(0);
    }
    let wanted = (0..n).filter(|place| !away.contains(place)).collect();
    let read = read_places(topology, group, &[(row, (0, unit), wanted)]).pop();
    let len = Bytes(unit).to_usize();
    let mut old: Vec<AlignedBuf> = (0..n).map(|_| AlignedBuf::zeroed(len)).collect();
    for (place, bytes) in read.into_iter().flatten() {
        match bytes {
            Ok(bytes) => old.get_mut(place).map(|c| *c = bytes),
            Err(error) => {
                topology.spare(member(place), error, lost)?;
                return Ok(0);
            }
        };
    }
    // The last parity that is there is computed anew if data is away, all of them otherwise.
    let first = if data_away > 0 { n - 1 } else { data };
    let anew: Vec<usize> = (0..n).filter(|p| *p >= first || away.contains(p)).collect();
    let mut new: Vec<Vec<u8>> = old.iter().map(|b| b.to_vec()).collect();
    let mut slices: Vec<&mut [u8]> = new.iter_mut().map(|b| &mut b[..]).collect();
    if !code::recover(data, &mut slices, &anew) {
        return Ok(0);
    }
    let mut changed = 0;
    for (place, (old, new)) in old.iter().zip(&new).enumerate().skip(data) {
        let (member, at) = group.at(group.column_of(row, place), row * unit);
        let same = old[..] == new[..] && topology.readable(member);
        if same || !topology.writable(member) {
            continue;
        }
        changed += differing(old, new);
        if let Err(error) = topology.device(member).write(at, new) {
            topology.spare(member, error, lost)?;
        }
    }
    Ok(changed)
}

/// Fills what `member` holds of a group's bytes `from..to` (whole rows where there is parity) from
/// the other columns. What one of these cannot read is had from the rest, and written there anew.
///
/// How writing it ended is the inner result. `shared`: other nodes may compare-and-write meanwhile.
/// Its regions are held against them. Others that fail over it are added to `lost`: the span is then
/// to be filled again without them.
///
/// # Errors
/// The others do not have it.
pub(crate) fn fill(
    topology: &Topology,
    span: Span,
    member: MemberIndex,
    shared: bool,
    lost: &mut Lost,
) -> Result<Result<(), DeviceError>, PoolError> {
    let (index, from, to) = span;
    let group = topology.map.group(index);
    let Some(column) = group.members().position(|m| m == member) else {
        return Err(PoolError::NoSuchMember { member });
    };
    let _held = topology.lock(index, vec![(from, to)]);
    let Shape::Parity { unit, .. } = group.shape else {
        return fill_copy(topology, group, (from, to), column, (shared, lost));
    };
    let row_len = group.row_len().unwrap_or(unit);
    let rows = from / row_len..to / row_len;
    let bytes = match decode_column(topology, group, rows.clone(), column) {
        Some(bytes) => bytes,
        None => decode_column_by_rows(topology, group, rows.clone(), column, lost)?,
    };
    Ok(topology.device(member).write(group.at(column, rows.start * unit).1, &bytes))
}

/// Times that a chunk is filled again because the copy it is read from had a bad place more.
const AGAIN: u32 = 3;

/// [`fill`] of a mirror, from its first copy. Only what other nodes may have changed while it was
/// copied is looked at once more.
fn fill_copy(
    topology: &Topology,
    group: &Group,
    (from, to): (u64, u64),
    column: usize,
    (shared, lost): (bool, &mut Lost),
) -> Result<Result<(), DeviceError>, PoolError> {
    let (member, at) = group.at(column, from);
    let source = topology.copies(group).find(|c| *c != column);
    let source = source.ok_or_else(|| topology.too_many_lost(group))?;
    let mut bytes = AlignedBuf::zeroed(Bytes(to - from).to_usize());
    let mut tries = 0;
    loop {
        if !read_mending(topology, group, source, (from, &mut bytes), lost)? {
            return Ok(Ok(()));
        }
        let written = topology.device(member).write(at, &bytes);
        if !shared || written.is_err() {
            return Ok(written);
        }
        // Compare-and-writes keep to records only while somebody is being filled, and what they
        // compare with stands on the first copy.
        let sector = topology.label.lock_sector.to_usize();
        let all = || Some(0..bytes.len());
        let again = if topology.is_filled(group) { records(&bytes, sector) } else { all() };
        let Some((start, copied)) = again.and_then(|r| Some((r.start, bytes.get(r)?))) else {
            return Ok(Ok(()));
        };
        match catch_up(topology, group, (source, column), from + start as u64, copied) {
            Ok(()) => return Ok(Ok(())),
            Err(Side::Follower(error)) => return Ok(Err(error)),
            // It may have a bad place more than it had.
            Err(Side::Arbiter(_)) if tries < AGAIN => tries += 1,
            Err(Side::Arbiter(error)) => {
                topology.spare(group.at(source, from).0, error, lost)?;
                return Ok(Ok(()));
            }
        }
    }
}

/// What `column` holds of some rows, computed from all others, of which each is read in one piece:
/// on disks that turn, single units of rows that several threads are at cost a seek each. `None`:
/// something could not be read.
fn decode_column(
    topology: &Topology,
    group: &Group,
    rows: Range<u64>,
    column: usize,
) -> Option<AlignedBuf> {
    let Shape::Parity { unit, parity } = group.shape else { return None };
    let n = group.columns.len();
    let len = Bytes((rows.end - rows.start) * unit).to_usize();
    let mut columns: Vec<AlignedBuf> = (0..n).map(|_| AlignedBuf::zeroed(len)).collect();
    let usable = |c: usize| c != column && topology.readable(group.at(c, 0).0);
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
    for row in rows {
        let mut row_units: Vec<(usize, &mut [u8])> = units
            .iter_mut()
            .enumerate()
            .filter_map(|(c, units)| Some((group.place_of(row, c), units.next()?)))
            .collect();
        row_units.sort_by_key(|(place, _)| *place);
        let mut slices: Vec<&mut [u8]> = row_units.into_iter().map(|(_, unit)| unit).collect();
        let lost: Vec<usize> = (0..n).filter(|p| !usable(group.column_of(row, *p))).collect();
        if !code::recover(n - parity, &mut slices, &lost) {
            return None;
        }
    }
    drop(units);
    (column < n).then(|| columns.swap_remove(column))
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
        let columns = decode_row(topology, group, row, (0, unit), Some(member))?;
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
