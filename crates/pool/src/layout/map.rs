//! The mapping between the pool's logical bytes and its members' bytes: a pure function.
//!
//! A topology compiles to a sorted list of *zones*. In a zone, rows of `columns x unit` bytes
//! follow each other; a column is a place on a member and the step from one row to the next:
//! ```text
//!  members of 3, 5 and 5 units          zone 0: rows of 3        zone 1: rows of 2
//!    A: 0 3 6                             0 1 2                    9  10
//!    B: 1 4 7  9 11                       3 4 5                    11 12
//!    C: 2 5 8 10 12                       6 7 8
//! ```
//! A member of weight w has w columns whose step is w units. A zone of one column with a step
//! of one unit is *linear*: any range of it is one piece, however long.
//!
//! A column stands on a member, or on a redundancy group (mirror or parity), which has bytes of
//! its own and sees to their places on its members: [`crate::layout::group`].
//!
//! Where what stood in a part has left the pool there is a *hole*: no zone covers it, and its groups
//! are kept without columns, so that those after them keep their numbers.
//!
//! Invariants (property-tested): zones cover the logical space without gap but for holes; every
//! logical byte outside has exactly one place, every place at most one logical byte; [`Map::inverse`]
//! undoes [`Map::pieces`].

use braid_format::label::{Label, NodeKind};
use braid_format::{ByteOffset, Bytes, MemberIndex, StripeUnit};

use super::group::Group;
pub use super::map_error::MapError;

/// What a run of logical bytes stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A member's device.
    Member(MemberIndex),
    /// A redundancy group, by its place in [`Map::groups`].
    Group(u16),
}

/// A run of the bytes of one member or one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The member, or the group.
    pub place: Place,
    /// Byte offset on the device, or in the group's own bytes.
    pub at: ByteOffset,
    /// Bytes.
    pub len: Bytes,
}

/// Where a column of a zone lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    place: Place,
    /// Offset of row 0 there.
    base: u64,
    /// Bytes from one row to the next.
    step: u64,
}

/// A run of the logical space in which all rows have the same columns.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Zone {
    start: u64,
    end: u64,
    unit: u64,
    columns: Box<[Column]>,
}
impl Zone {
    fn linear(&self) -> Option<&Column> {
        match &*self.columns {
            [only] if only.step == self.unit => Some(only),
            _ => None,
        }
    }
    fn row_len(&self) -> u64 {
        self.unit * self.columns.len() as u64
    }
}

/// What a zone looks like, for people and for the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneInfo {
    /// First logical byte.
    pub start: ByteOffset,
    /// Bytes.
    pub len: Bytes,
    /// Bytes on one column before the next.
    pub unit: Bytes,
    /// Bytes in a full row.
    pub row: Bytes,
    /// Members that take part, each once, in column order.
    pub members: Vec<MemberIndex>,
    /// What the allocator best aligns large files to: a row, or whole rows of one group if there is
    /// parity; 0 if all places are equally good.
    pub width: Bytes,
}

/// A compiled topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Sorted, adjacent but for holes, the first from 0.
    zones: Box<[Zone]>,
    /// Start and end of each.
    holes: Box<[(u64, u64)]>,
    groups: Box<[Group]>,
    size: u64,
}

impl Map {
    /// Compiles the topology of a verified label.
    ///
    /// # Errors
    /// [`MapError::Unsupported`] for changes of shape under way, stripes of stripes, and groups of
    /// anything but slices.
    pub fn new(label: &Label) -> Result<Self, MapError> {
        if label.reshaping {
            return Err(MapError::Unsupported { what: "change of shape under way" });
        }
        let (mut zones, mut holes) = (Vec::new(), Vec::new());
        let mut groups = Vec::new();
        for s in &label.segments {
            if s.is_hole() {
                holes.push((s.start.0, s.start.0 + s.len.0));
                groups.extend((0..s.node).map(|_| Group::gone()));
                continue;
            }
            let node = flatten(label, s.node, &mut groups)?;
            let (from, to) = (s.node_start.0, s.node_start.0 + s.len.0);
            for zone in node {
                push_part(&mut zones, &zone, from, to, s.start.0)?;
            }
        }
        let size = label.size().0;
        Ok(Self { zones: zones.into(), holes: holes.into(), groups: groups.into(), size })
    }

    /// A stripe over `members`, each `(device offset of its data, bytes)`, whose index is its
    /// place in the slice.
    pub fn stripe(members: &[(ByteOffset, Bytes)], unit: StripeUnit) -> Self {
        let children = (0_u16..)
            .zip(members)
            .map(|(member, (at, len))| Linear {
                runs: vec![Run { place: Place::Member(MemberIndex(member)), at: at.0, len: len.0 }],
                weight: 1,
            })
            .collect::<Vec<_>>();
        let zones = stripe_zones(&children, unit.bytes().0);
        let size = zones.last().map_or(0, |z| z.end);
        Self { size, zones: zones.into(), holes: Box::new([]), groups: Box::new([]) }
    }

    /// The redundancy groups.
    pub const fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Logical bytes, holes included.
    pub const fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// Whether some of these bytes, which are inside the pool, are in a hole.
    pub fn is_holed(&self, at: ByteOffset, len: Bytes) -> bool {
        let end = at.0.saturating_add(len.0);
        self.holes.iter().any(|(from, to)| *from < end && at.0 < *to)
    }

    /// The zones.
    pub fn zones(&self) -> Vec<ZoneInfo> {
        let info = |z: &Zone| {
            let mut members: Vec<MemberIndex> = Vec::new();
            for m in z.columns.iter().flat_map(|c| self.members_of(c.place)) {
                if !members.contains(&m) {
                    members.push(m);
                }
            }
            let on_parity = |c: &Column| match c.place {
                Place::Member(_) => false,
                Place::Group(g) => self.group(g).row_len().is_some(),
            };
            let width = match z.linear().map(|c| c.place) {
                None if z.columns.iter().all(on_parity) => z.unit,
                None => z.row_len(),
                Some(Place::Member(_)) => 0,
                Some(Place::Group(g)) => self.group(g).row_len().unwrap_or(0),
            };
            ZoneInfo {
                width: Bytes(width),
                start: ByteOffset(z.start),
                len: Bytes(z.end - z.start),
                unit: Bytes(z.unit),
                row: Bytes(z.row_len()),
                members,
            }
        };
        self.zones.iter().map(info).collect()
    }

    /// The places of `len` logical bytes from `at`, in logical order. What lies past the end of
    /// the pool, or in a hole, has no place: the pieces' lengths then add up to less than `len`.
    pub fn pieces(&self, at: ByteOffset, len: Bytes) -> Pieces<'_> {
        let end = at.0.saturating_add(len.0).min(self.size);
        let plain = self.zones.len() <= 1 && self.holes.is_empty();
        let first = if plain { 0 } else { self.zones.partition_point(|z| z.end <= at.0) };
        let mut pieces = Pieces {
            zones: self.zones.get(first..).unwrap_or(&[]),
            at: at.0,
            end,
            row: 0,
            column: 0,
            within: 0,
        };
        pieces.enter();
        pieces
    }

    /// The runs of logical bytes `from..to` that are in no hole.
    pub fn solid(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (mut runs, mut at) = (Vec::new(), from);
        for (start, end) in self.holes.iter().filter(|h| h.0 < to && from < h.1) {
            runs.push((at, *start));
            at = *end;
        }
        runs.push((at, to));
        runs.retain(|(a, b)| a < b);
        runs
    }

    /// The member and device offset of a logical byte; of its first copy where it has several.
    pub fn locate(&self, at: ByteOffset) -> Option<(MemberIndex, ByteOffset)> {
        let piece = self.pieces(at, Bytes(1)).next().filter(|_| !self.is_holed(at, Bytes(1)))?;
        match piece.place {
            Place::Member(member) => Some((member, piece.at)),
            Place::Group(g) => self.group(g).locate(piece.at),
        }
    }

    /// A group that a column stands on.
    pub(crate) fn group(&self, index: u16) -> &Group {
        self.groups.get(usize::from(index)).expect("columns stand only on groups that exist")
    }

    /// Members that some byte of the pool stands on.
    pub fn members(&self) -> Vec<MemberIndex> {
        let mut members = self.bare_members();
        for m in self.groups.iter().flat_map(Group::members) {
            if !members.contains(&m) {
                members.push(m);
            }
        }
        members
    }

    /// Members of which some zone uses bytes that no group protects.
    pub fn bare_members(&self) -> Vec<MemberIndex> {
        let mut bare = Vec::new();
        for c in self.zones.iter().flat_map(|z| &*z.columns) {
            if let Place::Member(m) = c.place
                && !bare.contains(&m)
            {
                bare.push(m);
            }
        }
        bare
    }

    fn members_of(&self, place: Place) -> Vec<MemberIndex> {
        match place {
            Place::Member(m) => vec![m],
            Place::Group(g) => self.group(g).members().collect(),
        }
    }

    /// The runs of logical bytes that stand on a group's bytes `from..to`: the first logical byte of each,
    /// and from where to where it is in these. In no order.
    pub(crate) fn runs_on(&self, group: u16, from: u64, to: u64) -> Vec<(u64, u64, u64)> {
        let mut runs = Vec::new();
        for z in &self.zones {
            let on = |(_, c): &(usize, &Column)| c.place == Place::Group(group);
            for (i, c) in z.columns.iter().enumerate().filter(on) {
                let first = from.saturating_sub(c.base) / c.step.max(1);
                for row in first.. {
                    let begin = c.base + row * c.step;
                    let logical = z.start + row * z.row_len() + i as u64 * z.unit;
                    if begin >= to || logical >= z.end {
                        break;
                    }
                    let end = begin + z.unit.min(z.end - logical);
                    let (a, b) = (begin.max(from), end.min(to));
                    if a < b {
                        runs.push((logical + (a - begin), a, b));
                    }
                }
            }
        }
        runs
    }

    /// The logical address of byte `at` of `member`'s device, or `None` when it has none (labels,
    /// reserved space, parity, rests smaller than a unit).
    pub fn inverse(&self, member: MemberIndex, at: ByteOffset) -> Option<ByteOffset> {
        for z in &self.zones {
            let rows = (z.end - z.start).div_ceil(z.row_len());
            for (i, c) in z.columns.iter().enumerate() {
                let there = match c.place {
                    Place::Member(m) => (m == member).then_some(at.0),
                    Place::Group(g) => self.group(g).inverse(member, at).map(|o| o.0),
                };
                let Some(offset) = there.and_then(|a| a.checked_sub(c.base)) else { continue };
                let (row, within) = (offset / c.step, offset % c.step);
                if row >= rows || within >= z.unit {
                    continue;
                }
                let logical = z.start + row * z.row_len() + i as u64 * z.unit + within;
                if logical < z.end {
                    return Some(ByteOffset(logical));
                }
            }
        }
        None
    }
}

/// The pieces of a range, in logical order. One division per zone entered, none per piece.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    zones: &'a [Zone],
    at: u64,
    end: u64,
    row: u64,
    column: usize,
    within: u64,
}
impl Pieces<'_> {
    /// Finds the place of `at` in the first zone.
    fn enter(&mut self) {
        let Some(zone) = self.zones.first() else { return };
        // Past a hole.
        self.at = self.at.max(zone.start);
        if self.at >= self.end {
            return;
        }
        let offset = self.at - zone.start;
        if zone.linear().is_some() {
            (self.row, self.column, self.within) = (0, 0, offset);
            return;
        }
        let (unit_no, within) = if zone.unit.is_power_of_two() {
            (offset >> zone.unit.trailing_zeros(), offset & (zone.unit - 1))
        } else {
            (offset / zone.unit, offset % zone.unit)
        };
        let columns = zone.columns.len() as u64;
        self.row = unit_no / columns;
        self.column = usize::try_from(unit_no % columns).unwrap_or(0);
        self.within = within;
    }
}
impl Iterator for Pieces<'_> {
    type Item = Piece;
    fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let zone = self.zones.first()?;
        let column = zone.columns.get(self.column)?;
        let stop = self.end.min(zone.end);
        let len = if zone.linear().is_some() {
            stop - self.at
        } else {
            (zone.unit - self.within).min(stop - self.at)
        };
        let piece = Piece {
            place: column.place,
            at: ByteOffset(column.base + self.row * column.step + self.within),
            len: Bytes(len),
        };
        self.at += len;
        if self.at == zone.end {
            self.zones = self.zones.get(1..).unwrap_or(&[]);
            self.enter();
        } else {
            self.within = 0;
            self.column += 1;
            if self.column == zone.columns.len() {
                self.column = 0;
                self.row += 1;
            }
        }
        Some(piece)
    }
}

/// A run of one member, or of one group.
#[derive(Debug, Clone, Copy)]
struct Run {
    place: Place,
    at: u64,
    len: u64,
}

/// A stripe's child: one or more runs after each other.
struct Linear {
    runs: Vec<Run>,
    weight: u64,
}
impl Linear {
    /// The run that holds byte `offset`, with the runs before it cut away.
    fn locate(&self, offset: u64) -> Option<Run> {
        let mut start = 0;
        for run in &self.runs {
            if offset < start + run.len {
                let skip = offset - start;
                return Some(Run { place: run.place, at: run.at + skip, len: run.len - skip });
            }
            start += run.len;
        }
        None
    }
    /// Ends of its runs in rows.
    fn breaks(&self, unit: u64) -> impl Iterator<Item = u64> {
        let mut end = 0;
        let row = unit * self.weight;
        self.runs.iter().map(move |run| {
            end += run.len;
            end / row
        })
    }
}

/// The zones of one node, in the node's own logical space.
fn flatten(label: &Label, index: u16, groups: &mut Vec<Group>) -> Result<Vec<Zone>, MapError> {
    let no_such = MapError::NoSuchNode { node: index };
    let node = label.nodes.get(usize::from(index)).ok_or(no_such)?;
    match &node.kind {
        NodeKind::Slice { member, start } => {
            let owner = label
                .members
                .get(usize::from(member.0))
                .ok_or(MapError::NoSuchNode { node: index })?;
            let base = owner.data_start.0 + start.0;
            let run = Run { place: Place::Member(*member), at: base, len: node.len.0 };
            Ok(vec![linear_zone(run, 0)])
        }
        NodeKind::Concat { children } => {
            let mut zones = Vec::new();
            let mut start = 0;
            for child in children {
                for zone in flatten(label, child.node, groups)? {
                    push_part(&mut zones, &zone, 0, u64::MAX, start)?;
                }
                start = zones.last().map_or(0, |z: &Zone| z.end);
            }
            Ok(zones)
        }
        NodeKind::Stripe { unit, children } => {
            let mut linear = Vec::with_capacity(children.len());
            for child in children {
                let mut runs = Vec::new();
                let row = unit.0 * u64::from(child.weight);
                let zones = flatten(label, child.node, groups)?;
                let last = zones.len().saturating_sub(1);
                for (i, zone) in zones.iter().enumerate() {
                    let c = zone.linear();
                    let c = c.ok_or(MapError::Unsupported { what: "stripe of stripes" })?;
                    let len = zone.end - zone.start;
                    if i != last && !len.is_multiple_of(row) {
                        let what = "stripe whose unit straddles a concat's seam";
                        return Err(MapError::Unsupported { what });
                    }
                    runs.push(Run { place: c.place, at: c.base, len });
                }
                linear.push(Linear { runs, weight: child.weight.into() });
            }
            Ok(stripe_zones(&linear, unit.0))
        }
        NodeKind::Mirror { .. } | NodeKind::Parity { .. } => {
            let place = Place::Group(u16::try_from(groups.len()).unwrap_or(u16::MAX));
            groups.push(Group::new(label, node)?);
            Ok(vec![linear_zone(Run { place, at: 0, len: node.len.0 }, 0)])
        }
    }
}

fn linear_zone(run: Run, start: u64) -> Zone {
    // One row of one unit: the step is never used.
    let column = Column { place: run.place, base: run.at, step: run.len };
    Zone { start, end: start + run.len, unit: run.len, columns: Box::new([column]) }
}

/// Adds the part of `zone` in `from..to` to `zones`, moved so that `from` becomes `start`.
fn push_part(
    zones: &mut Vec<Zone>,
    zone: &Zone,
    from: u64,
    to: u64,
    start: u64,
) -> Result<(), MapError> {
    let (a, b) = (zone.start.max(from), zone.end.min(to));
    if a >= b {
        return Ok(());
    }
    let skip = a - zone.start;
    let mut part = zone.clone();
    (part.start, part.end) = (start + (a - from), start + (b - from));
    if let Some(c) = zone.linear() {
        let run = Run { place: c.place, at: c.base + skip, len: b - a };
        part = linear_zone(run, part.start);
        if let Some(before) = zones.last_mut()
            && let Some(prev) = before.linear().copied()
            && (prev.place, prev.base + (before.end - before.start)) == (run.place, run.at)
        {
            let len = before.end - before.start + run.len;
            *before = linear_zone(Run { place: prev.place, at: prev.base, len }, before.start);
            return Ok(());
        }
    } else if skip.is_multiple_of(zone.row_len()) {
        for c in &mut part.columns {
            c.base += skip / zone.row_len() * c.step;
        }
    } else {
        return Err(MapError::Unsupported { what: "segment that begins inside a row" });
    }
    zones.push(part);
    Ok(())
}

/// The zones of a stripe: a new one wherever a child ends, or passes from one run to the next.
fn stripe_zones(children: &[Linear], unit: u64) -> Vec<Zone> {
    let mut breaks: Vec<u64> = children.iter().flat_map(|c| c.breaks(unit)).collect();
    breaks.sort_unstable();
    breaks.dedup();
    let mut zones: Vec<Zone> = Vec::new();
    let mut row = 0;
    for end in breaks {
        if end == row {
            continue;
        }
        let columns = columns(children, unit, row, end);
        let start = zones.last().map_or(0, |z| z.end);
        let len = (end - row) * unit * columns.len() as u64;
        if let [only] = *columns
            && only.step == unit
        {
            zones.push(linear_zone(Run { place: only.place, at: only.base, len }, start));
        } else {
            zones.push(Zone { start, end: start + len, unit, columns: columns.into() });
        }
        row = end;
    }
    zones
}

/// Columns of the rows from `row` to `end`: in rounds, each child as often as its weight.
fn columns(children: &[Linear], unit: u64, row: u64, end: u64) -> Vec<Column> {
    let mut columns = Vec::new();
    let rounds = children.iter().map(|c| c.weight).max().unwrap_or(0);
    for round in 0..rounds {
        for child in children.iter().filter(|c| round < c.weight) {
            let step = unit * child.weight;
            let Some(run) = child.locate(row * step) else { continue };
            if run.len >= (end - row) * step {
                columns.push(Column { place: run.place, base: run.at + round * unit, step });
            }
        }
    }
    columns
}

#[cfg(test)]
mod tests;
