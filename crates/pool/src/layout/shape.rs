//! A topology under construction: runs of members' space, put together.

use braid_format::label::{Child, Label, Member, NodeKind, TreeNode};
use braid_format::{ByteOffset, Bytes, MemberIndex};

/// A run of one member's data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub member: u16,
    pub start: u64,
    pub len: u64,
}

/// Runs one after the other.
pub(super) type Space = Vec<Extent>;

pub(super) fn space_len(space: &[Extent]) -> u64 {
    space.iter().map(|e| e.len).sum()
}

/// Takes `len` bytes from the front.
pub(super) fn take(space: &mut Space, mut len: u64) -> Space {
    let mut out = Vec::new();
    for e in space.iter_mut() {
        let n = e.len.min(len);
        if n > 0 {
            out.push(Extent { len: n, ..*e });
        }
        e.start += n;
        e.len -= n;
        len -= n;
    }
    space.retain(|e| e.len > 0);
    out
}

/// A node to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// A slice, or slices one after the other.
    Space(Space),
    /// Copies, all of one length.
    Mirror(Vec<Space>),
    /// Columns, all of one length: whole units.
    Parity { unit: u64, parity: u16, columns: Vec<Space> },
    /// Of groups and stripes.
    Concat(Vec<Shape>),
    /// Not of stripes.
    Stripe { unit: u64, children: Vec<(Shape, u16)> },
}

impl Shape {
    pub fn len(&self) -> u64 {
        match self {
            Self::Space(space) => space_len(space),
            Self::Mirror(copies) => copies.first().map_or(0, |c| space_len(c)),
            Self::Parity { parity, columns, .. } => {
                let data = columns.len().saturating_sub((*parity).into()) as u64;
                columns.first().map_or(0, |c| space_len(c)) * data
            }
            Self::Concat(of) => of.iter().map(Self::len).sum(),
            Self::Stripe { children, .. } => children.iter().map(|(c, _)| c.len()).sum(),
        }
    }

    /// Of its first group: the unit and the columns of data.
    pub fn parity(&self) -> Option<(u64, u64)> {
        match self {
            Self::Parity { unit, parity, columns } => {
                Some((*unit, columns.len().saturating_sub((*parity).into()) as u64))
            }
            Self::Concat(of) => of.first()?.parity(),
            _ => None,
        }
    }

    /// The first member in it.
    pub fn member(&self) -> Option<u16> {
        match self {
            Self::Space(space) => space.first().map(|e| e.member),
            Self::Mirror(of) | Self::Parity { columns: of, .. } => {
                of.first()?.first().map(|e| e.member)
            }
            Self::Concat(of) => of.first()?.member(),
            Self::Stripe { children, .. } => children.first()?.0.member(),
        }
    }

    /// Bytes per second of writing, as far as the members' are known.
    pub fn speed(&self, members: &[Member]) -> u64 {
        let of = |s: &Space| {
            let first = s.first().and_then(|e| members.get(usize::from(e.member)));
            first.map_or(0, |m| m.bytes_per_second.0)
        };
        match self {
            Self::Space(space) => of(space),
            Self::Mirror(copies) => copies.iter().map(of).min().unwrap_or(0),
            Self::Parity { parity, columns, .. } => {
                let data = columns.len().saturating_sub((*parity).into()) as u64;
                columns.iter().map(of).min().unwrap_or(0).saturating_mul(data)
            }
            Self::Concat(of) => of.first().map_or(0, |s| s.speed(members)),
            Self::Stripe { .. } => 0,
        }
    }

    /// The word for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Space(_) => "slice",
            Self::Mirror(_) => "mirror",
            Self::Parity { .. } => "parity group",
            Self::Concat(_) => "concat",
            Self::Stripe { .. } => "stripe",
        }
    }

    pub fn has_stripe(&self) -> bool {
        match self {
            Self::Stripe { .. } => true,
            Self::Concat(of) => of.iter().any(Self::has_stripe),
            _ => false,
        }
    }

    /// Cuts it, and each part of it, to multiples of `grain`.
    pub fn trim(&mut self, grain: u64) {
        match self {
            Self::Space(space) => {
                for e in space.iter_mut() {
                    e.len = e.len / grain * grain;
                }
                space.retain(|e| e.len > 0);
            }
            Self::Mirror(copies) => {
                let len = copies.first().map_or(0, |c| space_len(c)) / grain * grain;
                for copy in copies {
                    *copy = take(copy, len);
                }
            }
            Self::Parity { unit, parity, columns } => {
                let data = columns.len().saturating_sub((*parity).into()).max(1) as u64;
                // So many rows are a multiple of the grain.
                let rows = grain / gcd(grain, *unit * data);
                let column = columns.first().map_or(0, |c| space_len(c));
                let len = column / (*unit * rows) * (*unit * rows);
                for column in columns {
                    *column = take(column, len);
                }
            }
            Self::Concat(of) => {
                for part in of.iter_mut() {
                    part.trim(grain);
                }
                of.retain(|part| part.len() > 0);
            }
            // It is never a part of what is trimmed.
            Self::Stripe { .. } => {}
        }
    }

    /// Adds its nodes, children first; returns its own index.
    pub fn emit(&self, nodes: &mut Vec<TreeNode>) -> u16 {
        let spaces = |of: &[Space], nodes: &mut Vec<TreeNode>| -> Vec<Child> {
            let one = |s: &Space| Child { node: Self::Space(s.clone()).emit(nodes), weight: 1 };
            of.iter().map(one).collect()
        };
        let kind = match self {
            Self::Space(space) => {
                if let [e] = **space {
                    let start = ByteOffset(e.start);
                    NodeKind::Slice { member: MemberIndex(e.member), start }
                } else {
                    let one = |e: &Extent| vec![*e];
                    let parts: Vec<Space> = space.iter().map(one).collect();
                    NodeKind::Concat { children: spaces(&parts, nodes) }
                }
            }
            Self::Mirror(copies) => NodeKind::Mirror { children: spaces(copies, nodes) },
            Self::Parity { unit, parity, columns } => NodeKind::Parity {
                unit: Bytes(*unit),
                parity: *parity,
                code: Label::CODE,
                children: spaces(columns, nodes),
            },
            Self::Concat(of) => {
                let one = |s: &Self| Child { node: s.emit(nodes), weight: 1 };
                NodeKind::Concat { children: of.iter().map(one).collect() }
            }
            Self::Stripe { unit, children } => {
                let one =
                    |(s, weight): &(Self, u16)| Child { node: s.emit(nodes), weight: *weight };
                let children = children.iter().map(one).collect();
                NodeKind::Stripe { unit: Bytes(*unit), children }
            }
        };
        nodes.push(TreeNode { len: Bytes(self.len()), kind });
        // Too many nodes are refused before anybody looks at the index.
        u16::try_from(nodes.len() - 1).unwrap_or(u16::MAX)
    }
}

pub(super) const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
