//! The parity rows that a batch writes: what each needs to read, and its new parity.

use std::collections::BTreeMap;

use braid_device::{AlignedBuf, DeviceError, Op, Request, run};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use smallvec::SmallVec;

use super::decode::{Places, Sources, decode_row, read_places};
use super::log::Log;
use super::log::redo::{Part, RECORD_MAX, record_len};
use super::reconstruct::still_a_member;
use super::row::{Cover, Plan, Way, plan};
use super::work::Write;
use super::{EpochInUse, parity};
use crate::devices::range_locks::Range;
use crate::error::PoolError;
use crate::layout::group::{Group, Shape, Unit};
use crate::topology::{Lost, Topology};

/// Bytes that go to a column.
pub(crate) struct ColumnWrite<'b> {
    pub member: MemberIndex,
    pub at: ByteOffset,
    pub bytes: &'b [u8],
}

/// The parity rows that a batch writes.
#[derive(Default)]
pub(crate) struct Rows<'a> {
    rows: Vec<Row<'a>>,
}

/// One of them.
struct Row<'a> {
    group: u16,
    index: u64,
    /// The parts of it that are written, in the order of the requests.
    parts: SmallVec<[(Unit, &'a [u8]); 4]>,
    owners: SmallVec<[u32; 2]>,
    /// Bytes of each unit that change: from, to.
    range: Range,
    /// New bytes `range` of the parities that are written, P first.
    parity: SmallVec<[AlignedBuf; 2]>,
    /// Places that could not be read, with their bytes: written back.
    healed: Vec<(usize, AlignedBuf)>,
    /// It depends on old bytes: a crash in the middle would leave parity of neither.
    logged: bool,
    /// Nothing of it may be written.
    failed: bool,
}

impl<'a> Rows<'a> {
    /// Sorts the writes on parity groups into rows.
    pub fn of(topology: &Topology, writes: &[Write<'a>]) -> Self {
        let mut rows: BTreeMap<(u16, u64), Row<'a>> = BTreeMap::new();
        for w in writes {
            let group = topology.map.group(w.group);
            if group.shape == Shape::Mirror {
                continue;
            }
            let mut rest = w.bytes;
            for u in group.units(w.at, w.bytes.len() as u64) {
                let (now, later) = rest.split_at(Bytes(u.len).to_usize());
                let row = rows.entry((w.group, u.row)).or_insert_with(|| Row {
                    group: w.group,
                    index: u.row,
                    parts: SmallVec::new(),
                    owners: SmallVec::new(),
                    range: (u64::MAX, 0),
                    parity: SmallVec::new(),
                    healed: Vec::new(),
                    logged: false,
                    failed: false,
                });
                row.parts.push((u, now));
                if !row.owners.contains(&w.owner) {
                    row.owners.push(w.owner);
                }
                row.range = (row.range.0.min(u.within), row.range.1.max(u.within + u.len));
                rest = later;
            }
        }
        let cut = |row: Row<'a>| {
            let group = topology.map.group(row.group);
            row.cut(group)
        };
        Self { rows: rows.into_values().flat_map(cut).collect() }
    }

    /// Computes every row's new parity, reading what that needs; what failed, by owner.
    /// A member that could not be read and is no member any more is added to `lost`.
    pub fn prepare(&mut self, topology: &Topology, lost: &mut Lost) -> Vec<(u32, PoolError)> {
        let mut failures = Vec::new();
        // Rows of one group are read together.
        for rows in self.rows.chunk_by_mut(|a, b| a.group == b.group) {
            let group = topology.map.group(rows.first().map_or(0, |r| r.group));
            let plans: Vec<Option<Plan>> = rows.iter().map(|r| r.plan(topology, group)).collect();
            let wanted: Vec<(u64, Range, Vec<usize>)> = rows
                .iter()
                .zip(&plans)
                .map(|(r, p)| {
                    (r.index, r.range, p.as_ref().map_or_else(Vec::new, |p| p.reads.clone()))
                })
                .collect();
            let read = read_places(topology, group, &wanted);
            for (row, places) in rows.iter().zip(&read) {
                row.suspect(topology, group, places, lost);
            }
            for ((row, plan), places) in rows.iter_mut().zip(plans).zip(read) {
                if let Err(error) = row.compute(topology, group, plan, places) {
                    row.failed = true;
                    failures.extend(row.owners.iter().map(|o| (*o, error.clone())));
                }
            }
        }
        failures
    }

    /// Writes the rows that are logged: to the log, then in place, as many at a time as the log has
    /// room for. What failed, by owner.
    pub fn write_logged(
        &mut self,
        topology: &EpochInUse,
        lost: &mut Lost,
    ) -> Vec<(u32, PoolError)> {
        let mut failures = Vec::new();
        let Some(log) = &topology.log else {
            self.rows.iter_mut().for_each(|r| r.logged = false);
            return failures;
        };
        for row in self.rows.iter_mut().filter(|r| !r.failed && !r.logged) {
            let group = topology.map.group(row.group);
            if !log.redo.holds(std::iter::once((row.group, row.index))) {
                continue;
            }
            // It must not be written past the ring.
            if row.record_len(group) <= RECORD_MAX {
                row.logged = true;
            } else if let Err(error) = log.redo.checkpoint(topology, log.slot, lost) {
                row.failed = true;
                failures.extend(row.owners.iter().map(|o| (*o, error.clone())));
            }
        }
        let mut logged: Vec<&mut Row<'a>> =
            self.rows.iter_mut().filter(|r| r.logged && !r.failed).collect();
        let mut from = 0;
        while from < logged.len() {
            let mut len = 0;
            let now = logged.iter().skip(from).take_while(|row| {
                len += row.record_len(topology.map.group(row.group));
                len <= RECORD_MAX
            });
            let to = from + now.count().max(1);
            let Some(chunk) = logged.get_mut(from..to) else { break };
            if let Err(error) = write_chunk(topology, log, chunk, lost) {
                for row in chunk {
                    row.failed = true;
                    failures.extend(row.owners.iter().map(|o| (*o, error.clone())));
                }
            }
            from = to;
        }
        failures
    }

    /// What goes to the columns, of the rows that are not logged.
    pub fn writes<'b>(
        &'b self,
        topology: &'b Topology,
    ) -> impl Iterator<Item = ColumnWrite<'b>> + 'b {
        self.rows.iter().filter(|r| !r.failed && !r.logged).flat_map(move |r| {
            let group = topology.map.group(r.group);
            r.writes(group).filter(move |w| topology.writable(w.member))
        })
    }
}

/// Logs some rows as one record, and writes them in place.
fn write_chunk(
    topology: &Topology,
    log: &Log,
    rows: &[&mut Row<'_>],
    lost: &mut Lost,
) -> Result<(), PoolError> {
    let writes = || {
        rows.iter().flat_map(|r| {
            let group = topology.map.group(r.group);
            r.writes(group).map(move |w| (r.group, group, w))
        })
    };
    let part = |(index, group, w): (u16, &Group, ColumnWrite<'_>)| {
        let column = group.members().position(|m| m == w.member)?;
        let offset = w.at.0 - group.at(column, 0).1.0;
        let column = u16::try_from(column).ok()?;
        Some((index, column, offset))
    };
    // What is lost gets nothing now, and must get nothing from the log when it is filled later.
    let parts: Vec<Part<'_>> = writes()
        .filter(|(_, _, w)| topology.writable(w.member))
        .filter_map(|w| {
            let bytes = w.2.bytes;
            let (group, column, offset) = part(w)?;
            Some(Part { group, column, offset, bytes })
        })
        .collect();
    let ids = rows.iter().map(|r| (r.group, r.index)).collect();
    let unfinished = log.redo.append(topology, log.slot, &parts, ids, lost)?;
    let mut owners = Vec::new();
    let mut requests = Vec::new();
    for (_, _, w) in writes().filter(|(_, _, w)| topology.writable(w.member)) {
        let device = &**topology.device(w.member);
        requests.push(Request::new(device, w.at, Op::Write(w.bytes)));
        owners.push(w.member);
    }
    run(&mut requests);
    for (member, request) in owners.into_iter().zip(requests) {
        if let Err(error) = request.result {
            lost.push((member, error));
        }
    }
    drop(unfinished);
    Ok(())
}

impl<'a> Row<'a> {
    /// Bytes of the record that holds it.
    fn record_len(&self, group: &Group) -> u64 {
        let n = group.columns.len();
        record_len(self.parts.len() + n, n as u64 * (self.range.1 - self.range.0))
    }

    /// A row that needs the log, in pieces of which each fits in a record. Parity is computed byte
    /// by byte, so a range of the row's columns is a row of its own.
    fn cut(self, group: &Group) -> Vec<Self> {
        let whole = self.cover(group).iter().all(|c| *c == Cover::Whole);
        if whole || self.record_len(group) <= RECORD_MAX {
            return vec![self];
        }
        let step = (RECORD_MAX / 2 / group.columns.len() as u64 / 4096).max(1) * 4096;
        let mut pieces = Vec::new();
        let mut from = self.range.0;
        while from < self.range.1 {
            let to = self.range.1.min((from / step + 1) * step);
            let inside = |(u, bytes): &(Unit, &'a [u8])| {
                let (a, b) = (u.within.max(from), (u.within + u.len).min(to));
                let bytes = bytes.get(Bytes(a.checked_sub(u.within)?).to_usize()..)?;
                let bytes = bytes.get(..Bytes(b.checked_sub(a)?).to_usize())?;
                let unit = Unit { within: a, len: b - a, ..*u };
                (a < b).then_some((unit, bytes))
            };
            let parts: SmallVec<[(Unit, &'a [u8]); 4]> =
                self.parts.iter().filter_map(inside).collect();
            let reach = |f: fn(&Unit) -> u64| parts.iter().map(move |(u, _)| f(u));
            let range = (
                reach(|u| u.within).min().unwrap_or(from),
                reach(|u| u.within + u.len).max().unwrap_or(from),
            );
            if !parts.is_empty() {
                pieces.push(Row {
                    group: self.group,
                    index: self.index,
                    parts,
                    owners: self.owners.clone(),
                    range,
                    parity: SmallVec::new(),
                    healed: Vec::new(),
                    logged: false,
                    failed: false,
                });
            }
            from = to;
        }
        pieces
    }

    fn cover(&self, group: &Group) -> Vec<Cover> {
        let data = group.columns.len() - group.tolerance();
        let mut cover = vec![Cover::None; data];
        for (place, cover) in cover.iter_mut().enumerate() {
            let mut parts: SmallVec<[Range; 4]> = self
                .parts
                .iter()
                .filter(|(u, _)| u.place == place)
                .map(|(u, _)| (u.within, u.within + u.len))
                .collect();
            parts.sort_unstable();
            if parts.is_empty() {
                continue;
            }
            let reach = parts.iter().fold(self.range.0, |reach, (from, to)| {
                if *from <= reach { reach.max(*to) } else { reach }
            });
            *cover = if reach >= self.range.1 { Cover::Whole } else { Cover::Part };
        }
        cover
    }

    fn plan(&self, topology: &Topology, group: &Group) -> Option<Plan> {
        let member =
            |place| group.columns.get(group.column_of(self.index, place)).map(|c| c.member);
        let of = |can: &dyn Fn(MemberIndex) -> bool| -> Vec<bool> {
            (0..group.columns.len()).map(|place| member(place).is_some_and(can)).collect()
        };
        let readable = of(&|m| topology.readable(m));
        let writable = of(&|m| topology.writable(m));
        plan(&self.cover(group), &readable, &writable)
    }

    fn len(&self) -> usize {
        Bytes(self.range.1 - self.range.0).to_usize()
    }

    /// Puts the new bytes of `place` over `to`, which holds its `range`.
    fn overlay(&self, place: usize, to: &mut [u8]) {
        for (u, bytes) in self.parts.iter().filter(|(u, _)| u.place == place) {
            let from = Bytes(u.within - self.range.0).to_usize();
            if let Some(to) = to.get_mut(from..from + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        }
    }

    /// The new bytes of `place` if one part gives them all.
    fn given(&self, place: usize) -> Option<&[u8]> {
        let whole = |u: &Unit| (u.within, u.within + u.len) == self.range;
        // The last one counts: it is written last over the others.
        let mut of = self.parts.iter().filter(|(u, _)| u.place == place);
        let last = of.next_back()?;
        whole(&last.0).then_some(last.1)
    }

    /// The new parity.
    fn compute(
        &mut self,
        topology: &Topology,
        group: &Group,
        plan: Option<Plan>,
        places: Places,
    ) -> Result<(), PoolError> {
        let parities = group.tolerance();
        let data = group.columns.len() - parities;
        let plan = plan.ok_or_else(|| topology.too_many_lost(group))?;
        let failed = places.iter().any(|p| !self.is_sound(topology, group, p));
        if plan.way == Way::Plain {
            return Ok(());
        }
        self.logged = plan.way != Way::Covered;
        if failed {
            return self.by_decoding(topology, group, &places);
        }
        let mut old: BTreeMap<usize, AlignedBuf> =
            places.into_iter().filter_map(|(p, b)| Some((p, b.ok()?))).collect();
        if plan.way == Way::Delta {
            self.by_change(data, parities, &mut old);
            return Ok(());
        }
        if plan.way == Way::Decode {
            let columns =
                decode_row(topology, group, self.index, self.range, (None, Sources::NotSuspected))?;
            self.encode(data, parities, columns.into_iter().enumerate().collect());
            return Ok(());
        }
        self.encode(data, parities, old);
        Ok(())
    }

    /// Adds members to `lost` that failed a read and do not carry the pool's labels any more.
    fn suspect(&self, topology: &Topology, group: &Group, places: &Places, lost: &mut Lost) {
        for (place, read) in places {
            let Err(error) = read else { continue };
            let (member, _) = group.at(group.column_of(self.index, *place), 0);
            let known = lost.iter().any(|(m, _)| *m == member);
            if !known && !still_a_member(topology, member) {
                lost.push((member, error.clone()));
            }
        }
    }

    /// Whether the bytes of a place could be read, and a member gave them that may be believed.
    fn is_sound(
        &self,
        topology: &Topology,
        group: &Group,
        (place, read): &(usize, Result<AlignedBuf, DeviceError>),
    ) -> bool {
        let (member, _) = group.at(group.column_of(self.index, *place), 0);
        read.is_ok() && !topology.is_avoided(group, member)
    }

    /// A column could not be read on the way, or is a suspected member's: everything is computed from
    /// the others, and such a column is written anew.
    fn by_decoding(
        &mut self,
        topology: &Topology,
        group: &Group,
        places: &Places,
    ) -> Result<(), PoolError> {
        let parities = group.tolerance();
        let data = group.columns.len() - parities;
        let bad: Vec<usize> = places
            .iter()
            .filter(|p| !self.is_sound(topology, group, p))
            .map(|(place, _)| *place)
            .collect();
        let mut unread = places.iter().filter(|(_, read)| read.is_err());
        let first = unread.next().map(|(p, _)| group.at(group.column_of(self.index, *p), 0).0);
        let columns =
            decode_row(topology, group, self.index, self.range, (first, Sources::NotSuspected))?;
        let columns: BTreeMap<usize, AlignedBuf> = columns.into_iter().enumerate().collect();
        for place in bad.into_iter().filter(|p| *p < data) {
            let Some(bytes) = columns.get(&place) else { continue };
            let mut new = AlignedBuf::zeroed(bytes.len());
            new.copy_from_slice(bytes);
            self.overlay(place, &mut new);
            self.healed.push((place, new));
        }
        self.encode(data, parities, columns);
        Ok(())
    }

    /// From the old bytes of the touched units and the old parity.
    fn by_change(&mut self, data: usize, parities: usize, old: &mut BTreeMap<usize, AlignedBuf>) {
        let mut parity: SmallVec<[AlignedBuf; 2]> = SmallVec::new();
        for p in 0..parities {
            // One that is lost is not written either: what stands in it does not matter.
            let had = old.remove(&(data + p));
            parity.push(had.unwrap_or_else(|| AlignedBuf::zeroed(self.len())));
        }
        for (place, before) in old.iter() {
            let mut change = AlignedBuf::zeroed(self.len());
            change.copy_from_slice(before);
            self.overlay(*place, &mut change);
            parity::xor(&mut change, before);
            if let Some(p) = parity.get_mut(0) {
                parity::update_p(p, &change);
            }
            if let Some(q) = parity.get_mut(1) {
                parity::update_q(q, &change, *place);
            }
        }
        self.parity = parity;
    }

    /// From all data: what is written, and `rest`.
    fn encode(&mut self, data: usize, parities: usize, mut rest: BTreeMap<usize, AlignedBuf>) {
        for place in 0..data {
            if self.given(place).is_none() {
                let mut new = rest.remove(&place).unwrap_or_else(|| AlignedBuf::zeroed(self.len()));
                self.overlay(place, &mut new);
                rest.insert(place, new);
            }
        }
        let mut parity: SmallVec<[AlignedBuf; 2]> =
            (0..parities).map(|_| AlignedBuf::zeroed(self.len())).collect();
        {
            let columns: Vec<&[u8]> = (0..data)
                .map(|place| self.given(place).or_else(|| rest.get(&place).map(|b| &b[..])))
                .map(Option::unwrap_or_default)
                .collect();
            let (p, q) = parity.split_at_mut(1);
            if let Some(p) = p.first_mut() {
                parity::encode(&columns, p, q.first_mut().map(|q| &mut q[..]));
            }
        }
        self.parity = parity;
    }

    /// Data, then parity, as they go to the columns.
    fn writes<'b>(&'b self, group: &'b Group) -> impl Iterator<Item = ColumnWrite<'b>> + 'b {
        let unit = match group.shape {
            Shape::Parity { unit, .. } => unit,
            Shape::Mirror => 0,
        };
        let data = group.columns.len() - group.tolerance();
        let put = move |place: usize, within: u64, bytes: &'b [u8]| {
            let (member, at) =
                group.at(group.column_of(self.index, place), self.index * unit + within);
            ColumnWrite { member, at, bytes }
        };
        let healed = self.healed.iter().map(move |(p, b)| put(*p, self.range.0, b));
        let fresh = self.parts.iter().map(move |(u, b)| put(u.place, u.within, b));
        let fresh = fresh.filter(|w| {
            // What is healed holds the new bytes already.
            !self
                .healed
                .iter()
                .any(|(p, _)| group.at(group.column_of(self.index, *p), 0).0 == w.member)
        });
        let parity =
            self.parity.iter().enumerate().map(move |(i, b)| put(data + i, self.range.0, b));
        healed.chain(fresh).chain(parity)
    }
}
