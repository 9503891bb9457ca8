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
//! Invariants (property-tested): zones cover the logical space without gap; every logical byte
//! has exactly one place, every place at most one logical byte; [`Map::inverse`] undoes
//! [`Map::pieces`].

use braid_format::label::{Label, NodeKind};
use braid_format::{ByteOffset, Bytes, MemberIndex, StripeUnit};
use thiserror::Error;

/// Why a topology cannot be mapped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// A kind of node that this version does not serve.
    #[error(
        "the pool's topology has a {what}; this version of braid cannot serve it, use a newer one"
    )]
    Unsupported {
        /// What it is.
        what: &'static str,
    },
    /// A node that is not in the table (a label that was not verified).
    #[error("topology node {node} does not exist")]
    NoSuchNode {
        /// Its index.
        node: u16,
    },
}

/// A run of one member's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The member.
    pub member: MemberIndex,
    /// Byte offset on the device.
    pub at: ByteOffset,
    /// Bytes.
    pub len: Bytes,
}

/// Where a column of a zone lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    member: u16,
    /// Device offset of row 0.
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
}

/// A compiled topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Sorted, adjacent, the first from 0.
    zones: Box<[Zone]>,
    size: u64,
}

impl Map {
    /// Compiles the topology of a verified label.
    ///
    /// # Errors
    /// [`MapError::Unsupported`] for mirrors, parity, changes of shape under way and stripes of
    /// stripes.
    pub fn new(label: &Label) -> Result<Self, MapError> {
        if label.reshaping {
            return Err(MapError::Unsupported { what: "change of shape under way" });
        }
        let mut zones = Vec::new();
        for s in &label.segments {
            let node = flatten(label, s.node)?;
            let (from, to) = (s.node_start.0, s.node_start.0 + s.len.0);
            for zone in node {
                push_part(&mut zones, &zone, from, to, s.start.0)?;
            }
        }
        let size = zones.last().map_or(0, |z: &Zone| z.end);
        Ok(Self { zones: zones.into(), size })
    }

    /// A stripe over `members`, each `(device offset of its data, bytes)`, whose index is its
    /// place in the slice.
    pub fn stripe(members: &[(ByteOffset, Bytes)], unit: StripeUnit) -> Self {
        let children = (0_u16..)
            .zip(members)
            .map(|(member, (at, len))| Linear {
                runs: vec![Run { member, at: at.0, len: len.0 }],
                weight: 1,
            })
            .collect::<Vec<_>>();
        let zones = stripe_zones(&children, unit.bytes().0);
        Self { size: zones.last().map_or(0, |z| z.end), zones: zones.into() }
    }

    /// Logical bytes.
    pub const fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// The zones.
    pub fn zones(&self) -> Vec<ZoneInfo> {
        let info = |z: &Zone| {
            let mut members: Vec<MemberIndex> = Vec::new();
            for c in &z.columns {
                let m = MemberIndex(c.member);
                if !members.contains(&m) {
                    members.push(m);
                }
            }
            ZoneInfo {
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
    /// the pool has no place: the pieces' lengths then add up to less than `len`.
    pub fn pieces(&self, at: ByteOffset, len: Bytes) -> Pieces<'_> {
        let end = at.0.saturating_add(len.0).min(self.size);
        let first =
            if self.zones.len() > 1 { self.zones.partition_point(|z| z.end <= at.0) } else { 0 };
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

    /// The logical address of byte `at` of `member`'s device, or `None` when it has none (labels,
    /// reserved space, rests smaller than a unit).
    pub fn inverse(&self, member: MemberIndex, at: ByteOffset) -> Option<ByteOffset> {
        for z in &self.zones {
            let rows = (z.end - z.start).div_ceil(z.row_len());
            for (i, c) in z.columns.iter().enumerate() {
                if c.member != member.0 || at.0 < c.base {
                    continue;
                }
                let (row, within) = ((at.0 - c.base) / c.step, (at.0 - c.base) % c.step);
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
            member: MemberIndex(column.member),
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

/// A run of one member.
#[derive(Debug, Clone, Copy)]
struct Run {
    member: u16,
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
                return Some(Run { member: run.member, at: run.at + skip, len: run.len - skip });
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
fn flatten(label: &Label, index: u16) -> Result<Vec<Zone>, MapError> {
    let no_such = MapError::NoSuchNode { node: index };
    let node = label.nodes.get(usize::from(index)).ok_or(no_such)?;
    match &node.kind {
        NodeKind::Slice { member, start } => {
            let owner = label
                .members
                .get(usize::from(member.0))
                .ok_or(MapError::NoSuchNode { node: index })?;
            let base = owner.data_start.0 + start.0;
            let run = Run { member: member.0, at: base, len: node.len.0 };
            Ok(vec![linear_zone(run, 0)])
        }
        NodeKind::Concat { children } => {
            let mut zones = Vec::new();
            let mut start = 0;
            for child in children {
                for zone in flatten(label, child.node)? {
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
                let zones = flatten(label, child.node)?;
                let last = zones.len().saturating_sub(1);
                for (i, zone) in zones.iter().enumerate() {
                    let c = zone.linear();
                    let c = c.ok_or(MapError::Unsupported { what: "stripe of stripes" })?;
                    let len = zone.end - zone.start;
                    if i != last && !len.is_multiple_of(row) {
                        let what = "stripe whose unit straddles a concat's seam";
                        return Err(MapError::Unsupported { what });
                    }
                    runs.push(Run { member: c.member, at: c.base, len });
                }
                linear.push(Linear { runs, weight: child.weight.into() });
            }
            Ok(stripe_zones(&linear, unit.0))
        }
        NodeKind::Mirror { .. } => Err(MapError::Unsupported { what: "mirror" }),
        NodeKind::Parity { .. } => Err(MapError::Unsupported { what: "parity group" }),
    }
}

fn linear_zone(run: Run, start: u64) -> Zone {
    // One row of one unit: the step is never used.
    let column = Column { member: run.member, base: run.at, step: run.len };
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
        let run = Run { member: c.member, at: c.base + skip, len: b - a };
        part = linear_zone(run, part.start);
        if let Some(before) = zones.last_mut()
            && let Some(prev) = before.linear().copied()
            && (prev.member, prev.base + (before.end - before.start)) == (run.member, run.at)
        {
            let len = before.end - before.start + run.len;
            *before = linear_zone(Run { member: prev.member, at: prev.base, len }, before.start);
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
            zones.push(linear_zone(Run { member: only.member, at: only.base, len }, start));
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
                columns.push(Column { member: run.member, base: run.at + round * unit, step });
            }
        }
    }
    columns
}

#[cfg(test)]
mod tests;
