//! Where metadata goes when data lies on parity: a small write there costs four, and locks are
//! small writes. So it gets mirrors of its own, over a slice of each member.

use braid_format::label::{Member, SubpoolKind};

use super::{Layout, LayoutError, LayoutFault, Part, Subpool, Tree, Which, resolve, subpool_name};

const MIB: u64 = 1 << 20;
/// Metadata's part of the space.
const PERCENT: u128 = 2;
/// Bytes of metadata that a pool should have room for.
const LEAST: u64 = 256 * MIB;
/// The part of a member that metadata may take: one in so many.
const PART: u64 = 4;

/// Checks that the subpools of a layout (of single devices) go together, and gives one with parity
/// a subpool for its metadata.
pub(super) fn split(layout: Layout, members: &[Member]) -> Result<Layout, LayoutError> {
    let has = |kind| layout.subpools.iter().any(|s| s.kind == kind);
    for s in &layout.subpools {
        if matches!(s.kind, SubpoolKind::Metadata | SubpoolKind::Journal)
            && s.tree.parity().is_some()
        {
            let fault = LayoutFault::ParityHolds { name: subpool_name(s.kind) };
            return Err(LayoutError::at(&s.tree.place, fault));
        }
    }
    let general = layout.subpools.len() == 1 && has(SubpoolKind::General);
    if !general && !has(SubpoolKind::Data) {
        return Err(LayoutFault::SubpoolMissing { missing: "data" }.into());
    }
    if has(SubpoolKind::Metadata) {
        return Ok(layout);
    }
    let parity = layout.subpools.iter().filter_map(|s| s.tree.parity()).max();
    let Some(parity) = parity else {
        return if general {
            Ok(layout)
        } else {
            Err(LayoutFault::SubpoolMissing { missing: "metadata" }.into())
        };
    };
    let mut layout = layout;
    let tree = mirrors(&layout, members, parity + 1)?;
    for s in &mut layout.subpools {
        if s.kind == SubpoolKind::General {
            s.kind = SubpoolKind::Data;
        }
    }
    layout.subpools.push(Subpool { kind: SubpoolKind::Metadata, tree });
    Ok(layout)
}

/// For a layout of data alone: the tree of a metadata subpool beside it, of so many copies.
///
/// # Errors
/// Too few members for the copies.
pub(crate) fn mirrored_for(
    layout: &Layout,
    members: &[Member],
    copies: u16,
) -> Result<Tree, LayoutError> {
    let count = members.len();
    if count < usize::from(copies) {
        return Err(LayoutFault::FewForMirror { copies, count }.into());
    }
    let tree = mirrors(&resolve::resolve(layout, members)?, members, copies)?;
    Ok(match tree.part {
        Part::Mirrors { of, .. } if copies == 1 => Tree::new(Part::Stripe { unit: None, of }),
        _ => tree,
    })
}

/// Mirrors of `copies` over an equal slice of each member of the data (less of small ones).
fn mirrors(layout: &Layout, members: &[Member], copies: u16) -> Result<Tree, LayoutError> {
    let mut asked = vec![0_u64; members.len()];
    let mut used = vec![false; members.len()];
    for s in &layout.subpools {
        s.tree.each_device(&mut |place, size| {
            let i = usize::from(place);
            if let (Some(asked), Some(used)) = (asked.get_mut(i), used.get_mut(i)) {
                *asked = asked.saturating_add(size.unwrap_or(0));
                *used |= s.kind != SubpoolKind::Journal;
            }
        });
    }
    let limit = |(i, m): (usize, &Member)| {
        let free = m.data_len.0.saturating_sub(asked.get(i).copied().unwrap_or(0));
        let own = used.get(i).copied().unwrap_or(false);
        if own { free.min(m.data_len.0 / PART) / MIB * MIB } else { 0 }
    };
    let limits: Vec<u64> = members.iter().enumerate().map(limit).collect();
    let raw: u128 =
        members.iter().zip(&used).filter(|(_, u)| **u).map(|(m, _)| u128::from(m.data_len.0)).sum();
    let wanted = wanted(raw, copies);
    let each = slice(&limits, wanted, copies);
    let mut of = Vec::new();
    for (i, limit) in (0_u16..).zip(&limits) {
        let size = Some(each.min(*limit)).filter(|s| *s > 0);
        if size.is_some() {
            of.push(Tree::new(Part::Devices { which: Which::One(i), size }));
        }
    }
    if of.len() < usize::from(copies) {
        return Err(LayoutFault::NothingUsable.into());
    }
    Ok(Tree::new(Part::Mirrors { copies, unit: None, of }))
}

/// Bytes that metadata should have, all copies counted, where all members have `raw`.
pub(crate) fn wanted(raw: u128, copies: u16) -> u128 {
    (raw * PERCENT / 100).max(LEAST.into()) * u128::from(copies)
}

/// The size of slice, in whole MiB, with which slices of at most `limits` give `wanted` bytes, or
/// as many as they can, and none is larger than all others together can mirror.
fn slice(limits: &[u64], wanted: u128, copies: u16) -> u64 {
    let sum = |each: u64| limits.iter().map(|l| u128::from(*l.min(&each))).sum::<u128>();
    let fits = |each: u64| sum(each) >= u128::from(each) * u128::from(copies);
    let most = limits.iter().max().copied().unwrap_or(0) / MIB;
    // The smallest that is enough, or the largest there is.
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if sum(middle * MIB) >= wanted { high = middle } else { low = middle + 1 }
    }
    let enough = low;
    // The largest that can be mirrored: a range that begins at zero.
    let (mut low, mut high) = (0, enough);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle * MIB) { low = middle } else { high = middle - 1 }
    }
    low * MIB
}
