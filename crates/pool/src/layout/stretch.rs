//! Runs of the pool's bytes on the groups that they stand on.

use braid_format::{ByteOffset, Bytes};

use super::map::{Map, Place};

/// A run of the pool's bytes that stands on one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    pub group: u16,
    /// In the group's bytes.
    pub from: u64,
    pub to: u64,
    /// The pool's byte at `from`.
    pub logical: u64,
}

impl Stretch {
    /// Its parts between multiples of `grain` of the pool's bytes.
    pub fn cut(self, grain: u64) -> Vec<Self> {
        let (mut parts, mut rest) = (Vec::new(), self);
        while rest.from < rest.to {
            let len = (grain - rest.logical % grain).min(rest.to - rest.from);
            parts.push(Self { to: rest.from + len, ..rest });
            (rest.from, rest.logical) = (rest.from + len, rest.logical + len);
        }
        parts
    }
}

/// The stretches that a group's bytes `from..to` are of.
pub(crate) fn stretches_of(map: &Map, group: u16, from: u64, to: u64) -> Vec<Stretch> {
    let runs = map.runs_on(group, from, to).into_iter();
    runs.map(|(logical, from, to)| Stretch { group, from, to, logical }).collect()
}

/// The stretches of the pool's bytes `from..to`; of parity, the rows that begin in them.
pub(crate) fn stretches(map: &Map, from: u64, to: u64) -> Vec<Stretch> {
    let runs = map.solid(from, to).into_iter();
    runs.flat_map(|(from, to)| solid(map, from, to)).collect()
}

/// The same of bytes without a hole.
fn solid(map: &Map, from: u64, to: u64) -> Vec<Stretch> {
    let mut all = Vec::new();
    let mut logical = from;
    for p in map.pieces(ByteOffset(from), Bytes(to - from)) {
        if let Place::Group(group) = p.place {
            let (mut a, mut b) = (p.at.0, p.at.0 + p.len.0);
            if let Some(row) = map.group(group).row_len() {
                (a, b) = (a.next_multiple_of(row), b.next_multiple_of(row));
            }
            if a < b {
                let logical = logical + (a - p.at.0);
                all.push(Stretch { group, from: a, to: b, logical });
            }
        }
        logical += p.len.0;
    }
    all
}

/// A run of a group's bytes: the group's place, from, to. Whole rows where there is parity.
pub(crate) type Span = (u16, u64, u64);

/// The runs of groups that the pool's bytes `from..to` stand on.
pub(crate) fn spans(map: &Map, from: u64, to: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for p in map.pieces(ByteOffset(from), Bytes(to - from)) {
        let Place::Group(index) = p.place else { continue };
        let group = map.group(index);
        let (a, b) = group.affected(p.at.0, p.len.0);
        // The runs of one group are seen in order, though not one after the other.
        match spans.iter_mut().rev().find(|s| s.0 == index) {
            Some(last) if last.2 >= a => last.2 = last.2.max(b),
            _ => spans.push((index, a, b)),
        }
    }
    spans
}
