//! Reading parity rows around lost columns.

use braid_device::{AlignedBuf, DeviceError, Op, Request, run};
use braid_format::{Bytes, MemberIndex};

use super::parity;
use super::sectors::sectors;
use crate::devices::range_locks::Range;
use crate::error::PoolError;
use crate::layout::group::{Group, Shape, Unit};
use crate::topology::Topology;

/// From which members bytes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sources {
    /// From those that are suspected to return garbage, too, if the others do not give them: for bytes that have a
    /// checksum, or that nobody else has.
    All,
    /// Not from those whose bytes the group's others should have.
    NotSuspected,
}

impl Sources {
    /// Whether a member of the group is asked.
    pub fn include(self, topology: &Topology, group: &Group, member: MemberIndex) -> bool {
        self == Self::All || !topology.is_avoided(group, member)
    }
}

/// Fills `buf`, a run of a parity group's bytes, unit by unit from the other columns.
pub(crate) fn decode_run(
    topology: &Topology,
    group: &Group,
    at: u64,
    buf: &mut [u8],
    (bad, sources): (Option<MemberIndex>, Sources),
) -> Result<(), PoolError> {
    let units: Vec<Unit> = group.units(at, buf.len() as u64).collect();
    let mut rest = buf;
    for u in units {
        let (now, later) = rest.split_at_mut(Bytes(u.len).to_usize());
        let columns =
            decode_row(topology, group, u.row, (u.within, u.within + u.len), (bad, sources))?;
        if let Some(column) = columns.get(u.place) {
            now.copy_from_slice(column);
        }
        rest = later;
    }
    Ok(())
}

/// Bytes `range` of every unit of a row, by place, with those of lost columns (and of `bad`)
/// computed from the others: sector by sector, where more columns than may be lost have bad places.
/// Columns of suspected members are computed, too, if enough others can be read; if not, `sources` says whether they are
/// read.
///
/// # Errors
/// A sector for which too much cannot be read.
pub(crate) fn decode_row(
    topology: &Topology,
    group: &Group,
    row: u64,
    range: Range,
    (bad, sources): (Option<MemberIndex>, Sources),
) -> Result<Vec<AlignedBuf>, PoolError> {
    let sector = topology.label.lock_sector;
    let len = Bytes(range.1 - range.0);
    if topology.suspicion.any() {
        let sound = |m: MemberIndex| Some(m) != bad && !topology.is_avoided(group, m);
        if let Ok(columns) = decode_range(topology, group, row, range, &sound) {
            return Ok(columns);
        }
    }
    let not_bad = |m: MemberIndex| Some(m) != bad && sources.include(topology, group, m);
    let error = match decode_range(topology, group, row, range, &not_bad) {
        Err(error) if len > sector => error,
        done => return done,
    };
    let lost = group.members().filter(|m| !topology.readable(*m) || Some(*m) == bad);
    if lost.count() > group.tolerance() {
        return Err(error);
    }
    let mut all: Vec<AlignedBuf> =
        group.columns.iter().map(|_| AlignedBuf::zeroed(len.to_usize())).collect();
    for (from, part) in sectors(range.0, len.to_usize(), sector.to_usize()) {
        let to = from + part as u64;
        let columns = decode_range(topology, group, row, (from, to), &not_bad)?;
        let start = Bytes(from - range.0).to_usize();
        for (all, column) in all.iter_mut().zip(&columns) {
            if let Some(all) = all.get_mut(start..start + part) {
                all.copy_from_slice(column);
            }
        }
    }
    Ok(all)
}

/// [`decode_row`] in one piece, from members that are `wanted`.
fn decode_range(
    topology: &Topology,
    group: &Group,
    row: u64,
    range: Range,
    wanted: &dyn Fn(MemberIndex) -> bool,
) -> Result<Vec<AlignedBuf>, PoolError> {
    let n = group.columns.len();
    let data = n - group.tolerance();
    let usable = |place: usize| {
        let member = group.columns.get(group.column_of(row, place)).map(|c| c.member);
        member.is_some_and(|m| topology.readable(m) && wanted(m))
    };
    let mut readable: Vec<bool> = (0..n).map(usable).collect();
    loop {
        let places: Vec<usize> = (0..n).filter(|p| readable.get(*p) == Some(&true)).collect();
        let mut columns = read_places(topology, group, &[(row, range, places)]);
        let Some(columns) = columns.pop() else { return Err(topology.too_many_lost(group)) };
        let failed: Vec<usize> =
            columns.iter().filter(|(_, c)| c.is_err()).map(|(place, _)| *place).collect();
        if !failed.is_empty() {
            for place in failed {
                if let Some(readable) = readable.get_mut(place) {
                    *readable = false;
                }
            }
            if readable.iter().filter(|r| !**r).count() <= n - data {
                continue;
            }
            let error = columns.into_iter().find_map(|(_, c)| c.err());
            return Err(error.map_or_else(|| topology.too_many_lost(group), PoolError::from));
        }
        let len = Bytes(range.1 - range.0).to_usize();
        let mut all: Vec<AlignedBuf> = (0..n).map(|_| AlignedBuf::zeroed(0)).collect();
        for (place, buf) in columns {
            if let (Some(to), Ok(buf)) = (all.get_mut(place), buf) {
                *to = buf;
            }
        }
        let lost: Vec<usize> = (0..n).filter(|p| readable.get(*p) != Some(&true)).collect();
        for place in &lost {
            if let Some(b) = all.get_mut(*place) {
                *b = AlignedBuf::zeroed(len);
            }
        }
        let mut slices: Vec<&mut [u8]> = all.iter_mut().map(|b| &mut b[..]).collect();
        if !parity::recover(data, &mut slices, &lost) {
            return Err(topology.too_many_lost(group));
        }
        return Ok(all);
    }
}

/// Places of a row, each with its bytes or why there are none.
pub(crate) type Places = Vec<(usize, Result<AlignedBuf, DeviceError>)>;

/// Reads, all at once, bytes `range` of some places of some rows.
pub(crate) fn read_places(
    topology: &Topology,
    group: &Group,
    wanted: &[(u64, Range, Vec<usize>)],
) -> Vec<Places> {
    let Shape::Parity { unit, .. } = group.shape else { return Vec::new() };
    let mut buffers: Vec<AlignedBuf> = Vec::new();
    for (_, range, places) in wanted {
        buffers
            .extend(places.iter().map(|_| AlignedBuf::zeroed(Bytes(range.1 - range.0).to_usize())));
    }
    let whither = wanted.iter().flat_map(|(row, range, places)| {
        places.iter().map(|p| group.at(group.column_of(*row, *p), *row * unit + range.0))
    });
    let mut requests: Vec<Request<'_>> = buffers
        .iter_mut()
        .zip(whither)
        .map(|(buf, (member, at))| Request::new(&**topology.device(member), at, Op::Read(buf)))
        .collect();
    run(&mut requests);
    let mut results: std::vec::IntoIter<Result<(), DeviceError>> =
        requests.into_iter().map(|r| r.result).collect::<Vec<_>>().into_iter();
    let mut buffers = buffers.into_iter();
    let mut next = || {
        let buf = buffers.next()?;
        Some(results.next()?.map(|()| buf))
    };
    wanted
        .iter()
        .map(|(_, _, places)| places.iter().filter_map(|p| Some((*p, next()?))).collect())
        .collect()
}
