//! Redundant groups over members of unequal size: no space is left over that could have been
//! redundant.

use super::bus::interleave;
use super::shape::{Extent, Shape, Space, space_len, take};

/// How far all columns go without a seam.
fn level(columns: &[Space]) -> u64 {
    columns.iter().map(|c| c.first().map_or(0, |e| e.len)).min().unwrap_or(0)
}

/// Parity groups, one per zone: the first over all columns, as long as the shortest; the next over
/// those that still have space; and so on while there are more columns than parities. A zone ends
/// at a seam too: columns are slices.
///
/// ```text
///  a ##########......      zone 0: a b c d, as long as d
///  b ##########......      zone 1: a b c,   as long as c
///  c #######...            zone 2: a b,     as long as both
///  d ####
/// ```
/// Zones shorter than `least` are left out.
pub(super) fn parity_zones(
    mut columns: Vec<Space>,
    parity: u16,
    unit: u64,
    least: u64,
) -> Vec<Shape> {
    for extent in columns.iter_mut().flatten() {
        extent.len = extent.len / unit * unit;
    }
    let mut zones = Vec::new();
    loop {
        columns.retain_mut(|c| {
            c.retain(|e| e.len > 0);
            !c.is_empty()
        });
        if columns.len() <= usize::from(parity) {
            return zones;
        }
        let len = level(&columns);
        let taken = columns.iter_mut().map(|c| take(c, len)).collect();
        if len >= least {
            zones.push(Shape::Parity { unit, parity, columns: taken });
        }
    }
}

/// Mirrors of spaces, one after the other: as long as the shortest, a new one at each seam.
pub(super) fn mirror_zones(mut copies: Vec<Space>) -> Vec<Shape> {
    let mut zones = Vec::new();
    loop {
        let len = level(&copies);
        if len == 0 {
            return zones;
        }
        zones.push(Shape::Mirror(copies.iter_mut().map(|c| take(c, len)).collect()));
    }
}

/// A space and the bus it is on.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub space: Space,
    pub bus: u16,
}

/// Mirrors of `copies` (slices) that use all the space that can be mirrored: the most is the largest `L`
/// with `sum of min(size, L) >= copies * L`. Members of like size are paired whole; what does not
/// pair is laid in rows of `L` bytes, one row per copy, and cut where a member begins or ends:
///
/// ```text
///  3 members of 2, 2 copies, L = 3      row 0 | a a b |     mirrors: a-b, a-c, b-c
///                                       row 1 | b c c |
/// ```
/// A member is never longer than a row, so it never stands above itself. What is shorter than
/// `least` is left out rather than cut.
pub(super) fn mirrors(mut parts: Vec<Part>, copies: u16, grain: u64, least: u64) -> Vec<Shape> {
    for part in &mut parts {
        let whole = space_len(&part.space) / grain * grain;
        part.space = take(&mut part.space, whole);
    }
    parts.retain(|p| !p.space.is_empty());
    let mut parts = by_size_and_bus(parts);
    let k = usize::from(copies);
    let mut out = Vec::new();
    while parts.len() >= k {
        let rows = |parts: &[Part]| longest(parts, k, grain);
        let (chunk, rest) = parts.split_at(k);
        let len = chunk.iter().map(|p| space_len(&p.space)).min().unwrap_or(0);
        if rows(&parts) - (len + rows(rest)) > least {
            break;
        }
        let mut chunk: Vec<Part> = parts.drain(..k).collect();
        out.extend(mirror_zones(chunk.iter_mut().map(|p| take(&mut p.space, len)).collect()));
    }
    out.extend(wrapped(parts, k, grain, least));
    out
}

/// Largest first; among those of one size, neighbours are on different buses.
fn by_size_and_bus(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|p| core::cmp::Reverse(space_len(&p.space)));
    let runs = parts.chunk_by(|a, b| space_len(&a.space) == space_len(&b.space));
    let spread = |run: &[Part]| {
        let buses: Vec<u16> = run.iter().map(|p| p.bus).collect();
        interleave(&buses).into_iter().filter_map(|i| run.get(i).cloned()).collect::<Vec<_>>()
    };
    runs.flat_map(spread).collect()
}

/// The most bytes that can be held in `k` copies on different members.
fn longest(parts: &[Part], k: usize, grain: u64) -> u64 {
    let sizes: Vec<u64> = parts.iter().map(|p| space_len(&p.space) / grain).collect();
    let fits = |len: u64| {
        let sum: u128 = sizes.iter().map(|s| u128::from(*s.min(&len))).sum();
        sum >= u128::from(len) * k as u128
    };
    // A concave function that is zero at zero: what fits is a range that begins there.
    let (mut low, mut high) = (0, sizes.iter().sum::<u64>() / k.max(1) as u64);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low * grain
}

/// The rest, cut as the drawing at [`mirrors`] shows.
fn wrapped(mut parts: Vec<Part>, k: usize, grain: u64, least: u64) -> Vec<Shape> {
    let row = longest(&parts, k, grain);
    if row == 0 {
        return Vec::new();
    }
    // What each part covers of the rows laid end to end.
    let mut covers = Vec::new();
    let (mut at, end) = (0, row * k as u64);
    for part in &parts {
        let len = space_len(&part.space).min(row).min(end - at);
        covers.push((at, at + len));
        at += len;
    }
    let mut cuts: Vec<u64> = covers.iter().flat_map(|(a, b)| [a % row, b % row]).collect();
    cuts.push(row);
    cuts.sort_unstable();
    cuts.dedup();
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        let [from, to] = *pair else { continue };
        if to - from < least {
            continue;
        }
        let mut copies = Vec::with_capacity(k);
        for n in 0..k as u64 {
            let at = n * row + from;
            let owner = covers.iter().position(|(a, b)| *a <= at && at < *b);
            let part = owner.and_then(|i| parts.get_mut(i));
            copies.extend(part.map(|p| take(&mut p.space, to - from)));
        }
        out.extend(mirror_zones(copies));
    }
    out
}

/// A member with extents in more than one of these spaces, if there is one.
pub(super) fn shared(spaces: &[&Space]) -> Option<u16> {
    let mut seen = std::collections::HashSet::new();
    for space in spaces {
        let members: std::collections::HashSet<u16> =
            space.iter().map(|e: &Extent| e.member).collect();
        if let Some(twice) = members.iter().find(|m| seen.contains(*m)) {
            return Some(*twice);
        }
        seen.extend(members);
    }
    None
}
