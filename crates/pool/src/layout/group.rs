//! Redundancy groups: columns of equal length on different members that hold the same bytes
//! (mirror), or data and parity (parity), so that lost columns can be had from the rest.
//!
//! A group has bytes of its own, from 0 to its length. Where they lie:
//! ```text
//!  mirror of 2        parity 3+1, columns A B C D: row r has its parity on column 3 - r mod 4,
//!                     the data follows it cyclically
//!    A: 0 1 2           row 0    d0 d1 d2 P
//!    B: 0 1 2           row 1    d1 d2 P  d0
//!                       row 2    d2 P  d0 d1
//! ```
//! With two parities, Q stands on the column after P. Rotation spreads the parity's load; data in
//! cyclic order lets a long read use all columns.

use braid_format::label::{Label, NodeKind, TreeNode};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::map_error::MapError;

/// Reads of a mirror change from copy to copy at multiples of this, so that a long read, or
/// several, use all copies. The choice depends only on the address, on which copies are in sync, and on
/// which of their members are suspected to return garbage. So what was read once is read again, even if
/// the copies of an unfinished write differ.
///
/// In a long read each disk skips what another disk reads. For a rotating disk, skipping is faster
/// than reading only from about this size on.
const READ_ROTATION: u64 = 4 << 20;

/// Where a column of a group lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    /// The member.
    pub member: MemberIndex,
    /// Device offset of its first byte.
    pub base: u64,
}

/// How the columns hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All hold the same.
    Mirror,
    /// Data and parity in rows.
    Parity {
        /// Bytes on one column before the next.
        unit: u64,
        /// Parity columns of a row, 1 or 2.
        parity: usize,
    },
}

/// A redundancy group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub(crate) shape: Shape,
    pub(crate) columns: Box<[Column]>,
    /// Its own bytes.
    pub(crate) len: u64,
}

impl Group {
    /// Compiles a mirror or parity node of a verified label.
    pub(crate) fn new(label: &Label, node: &TreeNode) -> Result<Self, MapError> {
        let shape = match node.kind {
            NodeKind::Parity { unit, parity, .. } => {
                Shape::Parity { unit: unit.0, parity: parity.into() }
            }
            _ => Shape::Mirror,
        };
        let mut columns = Vec::with_capacity(node.kind.children().len());
        for child in node.kind.children() {
            let no_such = MapError::NoSuchNode { node: child.node };
            let slice = label.nodes.get(usize::from(child.node)).ok_or(no_such.clone())?;
            let NodeKind::Slice { member, start } = slice.kind else {
                let what = "mirror or parity group of anything but slices";
                return Err(MapError::Unsupported { what });
            };
            let owner = label.members.get(usize::from(member.0)).ok_or(no_such)?;
            let base = owner.data_start.0 + start.0;
            if columns.iter().any(|c: &Column| c.member == member) {
                let what = "redundancy group with two columns on one member";
                return Err(MapError::Unsupported { what });
            }
            columns.push(Column { member, base });
        }
        Ok(Self { shape, columns: columns.into(), len: node.len.0 })
    }

    /// What is left of one that has left the pool: its number.
    pub(crate) fn gone() -> Self {
        Self { shape: Shape::Mirror, columns: Box::new([]), len: 0 }
    }

    /// Its own bytes.
    pub const fn len(&self) -> Bytes {
        Bytes(self.len)
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The members its columns stand on, in column order.
    pub fn members(&self) -> impl Iterator<Item = MemberIndex> {
        self.columns.iter().map(|c| c.member)
    }

    /// Columns that may be lost with nothing lost.
    pub fn tolerance(&self) -> usize {
        match self.shape {
            Shape::Mirror => self.columns.len().saturating_sub(1),
            Shape::Parity { parity, .. } => parity,
        }
    }

    /// Data bytes of a parity row; `None` for a mirror, where no write needs more than itself.
    pub fn row_len(&self) -> Option<u64> {
        match self.shape {
            Shape::Mirror => None,
            Shape::Parity { unit, parity } => Some(unit * (self.columns.len() - parity) as u64),
        }
    }

    /// The group's bytes that a change of `len` bytes at `at` concerns: whole rows where there is
    /// parity.
    pub(crate) fn affected(&self, at: u64, len: u64) -> (u64, u64) {
        match self.row_len() {
            None => (at, at + len),
            Some(row) => (at / row * row, (at + len).next_multiple_of(row)),
        }
    }

    /// Bytes used on each column.
    pub(crate) fn column_len(&self) -> u64 {
        match (self.shape, self.row_len()) {
            (Shape::Parity { unit, .. }, Some(row)) => self.len / row * unit,
            _ => self.len,
        }
    }

    /// The column that holds place `i` of row `row` of a parity group, where places count data
    /// first, then P, then Q.
    pub(crate) fn column_of(&self, row: u64, place: usize) -> usize {
        let n = self.columns.len();
        let Shape::Parity { parity, .. } = self.shape else { return place };
        let data = n - parity;
        let p = n - 1 - usize::try_from(row % n as u64).unwrap_or(0);
        let after_p = if place < data { parity + place } else { place - data };
        (p + after_p) % n
    }

    /// The inverse of [`Group::column_of`].
    pub(crate) fn place_of(&self, row: u64, column: usize) -> usize {
        let n = self.columns.len();
        let Shape::Parity { parity, .. } = self.shape else { return column };
        let p = n - 1 - usize::try_from(row % n as u64).unwrap_or(0);
        let after_p = (column + n - p) % n;
        if after_p < parity { n - parity + after_p } else { after_p - parity }
    }

    /// The copy of a mirror that serves reads of byte `at`, among `live` columns.
    pub(crate) fn read_copy_at(at: u64, live: usize) -> usize {
        usize::try_from(at / READ_ROTATION % live.max(1) as u64).unwrap_or(0)
    }

    /// Bytes from `at` to the next place where reads of a mirror turn to another copy.
    pub(crate) const fn rotation_left(at: u64) -> u64 {
        READ_ROTATION - at % READ_ROTATION
    }

    /// Where a byte of the group stands, on its first column that has it.
    pub fn locate(&self, at: ByteOffset) -> Option<(MemberIndex, ByteOffset)> {
        if at.0 >= self.len {
            return None;
        }
        let Shape::Parity { unit, .. } = self.shape else { return Some(self.at(0, at.0)) };
        let u = self.units(at.0, 1).next()?;
        Some(self.at(self.column_of(u.row, u.place), u.row * unit + u.within))
    }

    /// The group's byte that stands at byte `at` of `member`'s device, if data does.
    pub fn inverse(&self, member: MemberIndex, at: ByteOffset) -> Option<ByteOffset> {
        let column = self.columns.iter().position(|c| c.member == member)?;
        let offset = at.0.checked_sub(self.columns.get(column)?.base)?;
        if offset >= self.column_len() {
            return None;
        }
        let Shape::Parity { unit, parity } = self.shape else { return Some(ByteOffset(offset)) };
        let (row, within) = (offset / unit, offset % unit);
        let place = self.place_of(row, column);
        let data = self.columns.len() - parity;
        (place < data).then(|| ByteOffset(row * unit * data as u64 + place as u64 * unit + within))
    }

    /// The device offset of byte `offset` of `column`.
    pub(crate) fn at(&self, column: usize, offset: u64) -> (MemberIndex, ByteOffset) {
        let c = self.columns.get(column).expect("a column of this group");
        (c.member, ByteOffset(c.base + offset))
    }

    /// Cuts the group's bytes from `at` to `at + len` at unit and row bounds: `(row, place, offset
    /// in the column, length)`, in order. Parity groups only.
    pub(crate) fn units(&self, at: u64, len: u64) -> impl Iterator<Item = Unit> + '_ {
        let (unit, data) = match self.shape {
            Shape::Parity { unit, parity } => (unit, (self.columns.len() - parity) as u64),
            Shape::Mirror => (u64::MAX, 1),
        };
        let end = at + len;
        let mut at = at;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (index, within) = (at / unit, at % unit);
            let (row, place) = (index / data, index % data);
            let len = (unit - within).min(end - at);
            at += len;
            let place = usize::try_from(place).unwrap_or(0);
            Some(Unit { row, place, within, len })
        })
    }
}

/// A run of one unit of a parity row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The row.
    pub row: u64,
    /// Its data place.
    pub place: usize,
    /// First byte in the unit.
    pub within: u64,
    /// Bytes.
    pub len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(shape: Shape, columns: u16, len: u64) -> Group {
        let column =
            |n: u16| Column { member: MemberIndex(n), base: 1_000_000 * (u64::from(n) + 1) };
        Group { shape, columns: (0..columns).map(column).collect(), len }
    }
    /// Two parities for three units of four bytes; five rows.
    fn parity() -> Group {
        group(Shape::Parity { unit: 4, parity: 2 }, 5, 60)
    }

    #[test]
    fn a_group_loses_all_copies_but_one_or_as_many_columns_as_it_has_parities() {
        let mirror = group(Shape::Mirror, 4, 60);
        assert_eq!((mirror.tolerance(), parity().tolerance()), (3, 2));
        assert_eq!((mirror.row_len(), parity().row_len()), (None, Some(12)));
        assert_eq!((mirror.column_len(), parity().column_len()), (60, 20));
        assert_eq!((mirror.len(), mirror.is_empty()), (Bytes(60), false));
        assert!(Group::gone().is_empty());
        assert!(mirror.members().eq((0..4).map(MemberIndex)));
    }

    #[test]
    fn a_change_concerns_whole_rows_where_there_is_parity() {
        assert_eq!(group(Shape::Mirror, 2, 60).affected(13, 5), (13, 18));
        let affected = |at, len| parity().affected(at, len);
        assert_eq!(
            [affected(12, 12), affected(13, 1), affected(11, 2)],
            [(12, 24), (12, 24), (0, 24)]
        );
    }

    #[test]
    fn parity_takes_turns_on_all_columns_and_data_follows_it() {
        let group = parity();
        let columns = |row| [0, 1, 2, 3, 4].map(|place| group.column_of(row, place));
        // Data first, then P, then Q.
        let rows =
            [[1, 2, 3, 4, 0], [0, 1, 2, 3, 4], [4, 0, 1, 2, 3], [3, 4, 0, 1, 2], [2, 3, 4, 0, 1]];
        assert_eq!([0, 1, 2, 3, 4].map(columns), rows);
        assert_eq!(columns(7), rows[2]);
        for (row, places) in (5..).zip(rows) {
            assert_eq!(
                [0, 1, 2, 3, 4].map(|place| group.place_of(row, places[place])),
                [0, 1, 2, 3, 4]
            );
        }
        let mirror = super::tests::group(Shape::Mirror, 3, 60);
        assert_eq!((mirror.column_of(1, 2), mirror.place_of(1, 2)), (2, 2));
    }

    #[test]
    fn a_byte_stands_where_the_way_back_finds_it() {
        let group = parity();
        let mut places: Vec<_> = (0..60)
            .map(|at| {
                let (member, place) = group.locate(ByteOffset(at)).unwrap();
                assert_eq!(group.inverse(member, place), Some(ByteOffset(at)));
                (member, place)
            })
            .collect();
        assert_eq!(places[13], (MemberIndex(0), ByteOffset(1_000_005)), "row 1 begins on column 0");
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 60);
        assert_eq!(group.locate(ByteOffset(60)), None);
        let stands = |column, offset| group.inverse(MemberIndex(column), ByteOffset(offset));
        assert_eq!(stands(4, 5_000_000), None, "P of row 0");
        assert_eq!([stands(0, 999_999), stands(0, 1_000_020), stands(5, 1_000_000)], [None; 3]);
        let mirror = super::tests::group(Shape::Mirror, 2, 60);
        assert_eq!(mirror.locate(ByteOffset(59)), Some((MemberIndex(0), ByteOffset(1_000_059))));
        assert_eq!(mirror.locate(ByteOffset(60)), None);
        assert_eq!(mirror.inverse(MemberIndex(1), ByteOffset(2_000_059)), Some(ByteOffset(59)));
        assert_eq!(mirror.inverse(MemberIndex(1), ByteOffset(2_000_060)), None);
    }

    #[test]
    fn a_run_is_cut_at_the_bounds_of_units_and_rows() {
        let unit = |row, place, within, len| Unit { row, place, within, len };
        let cut = [unit(0, 0, 2, 2), unit(0, 1, 0, 4), unit(0, 2, 0, 4), unit(1, 0, 0, 3)];
        assert!(parity().units(2, 13).eq(cut));
        assert_eq!(parity().units(2, 0).count(), 0);
    }

    #[test]
    fn reads_of_a_mirror_take_turns_between_the_copies_that_are_there() {
        let copies = |at, live| Group::read_copy_at(at * READ_ROTATION, live);
        assert_eq!([0, 1, 2, 3].map(|at| copies(at, 3)), [0, 1, 2, 0]);
        assert_eq!(
            (copies(5, 1), copies(5, 0), Group::read_copy_at(READ_ROTATION - 1, 2)),
            (0, 0, 0)
        );
        let left = [0, 1, READ_ROTATION - 1, READ_ROTATION].map(Group::rotation_left);
        assert_eq!(left, [READ_ROTATION, READ_ROTATION - 1, 1, READ_ROTATION]);
    }
}
