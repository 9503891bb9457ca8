//! The layouts that need no words: a stripe, mirrors, or parity groups over all devices.

use braid_format::label::{Member, SubpoolKind};

use super::bus::interleave;
use super::{Layout, LayoutError, LayoutFault, Part, Subpool, Tree, Which};

/// What may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redundancy {
    /// Nothing.
    #[default]
    None,
    /// Each byte stands on so many members, 2 to 4.
    Mirror(u16),
    /// So many members of each parity group, 1 or 2.
    Parity(u16),
}

/// Widest parity group: a wider one is longer at risk while it is rebuilt, and its rows are longer
/// than most writes.
const fn widest(parity: u16) -> usize {
    if parity == 1 { 9 } else { 12 }
}

/// The layout of a pool of all `members` that survives what `redundancy` says. Parity groups are
/// made of members of like size, spread over the buses (unless `keep_order`).
///
/// # Errors
/// [`LayoutError`]: too few members, or a redundancy that there is not.
pub fn usual(
    members: &[Member],
    redundancy: Redundancy,
    keep_order: bool,
) -> Result<Layout, LayoutError> {
    let all = vec![Tree::new(Part::Devices { which: Which::All, size: None })];
    let part = over(members, (all, (0..members.len()).collect()), redundancy, keep_order)?;
    Ok(Layout { subpools: vec![Subpool { kind: SubpoolKind::General, tree: Tree::new(part) }] })
}

/// The same over some of the members: `of`, which are those at `places`.
///
/// # Errors
/// As [`usual`].
pub(super) fn over(
    members: &[Member],
    (of, places): (Vec<Tree>, Vec<usize>),
    redundancy: Redundancy,
    keep_order: bool,
) -> Result<Part, LayoutError> {
    let count = places.len();
    Ok(match redundancy {
        Redundancy::None => Part::Stripe { unit: None, of },
        Redundancy::Mirror(copies) => {
            if !(2..=4).contains(&copies) {
                return Err(LayoutFault::Copies { copies }.into());
            }
            if count < usize::from(copies) {
                return Err(LayoutFault::FewForMirror { copies, count }.into());
            }
            Part::Mirrors { copies, unit: None, of }
        }
        Redundancy::Parity(parity) => {
            if !matches!(parity, 1 | 2) {
                return Err(LayoutFault::Parities { parity }.into());
            }
            let least = least_for_parity(parity);
            if count < least {
                let mirror = parity + 1;
                return Err(LayoutFault::FewForParity { parity, count, least, mirror }.into());
            }
            parity_groups(members, places, parity, keep_order)
        }
    })
}

/// Fewest members of which parity groups are made.
pub(crate) const fn least_for_parity(parity: u16) -> usize {
    parity as usize + 2
}

fn parity_groups(members: &[Member], places: Vec<usize>, parity: u16, keep_order: bool) -> Part {
    let places = if keep_order { places } else { by_size_and_bus(members, places) };
    let count = places.len();
    let groups = group_count(count, parity);
    let mut rest = places.as_slice();
    let mut of = Vec::with_capacity(groups);
    for g in 0..groups {
        let (own, others) = rest.split_at(rest.len() / (groups - g));
        rest = others;
        let one = |i: &usize| Tree::device(u16::try_from(*i).unwrap_or(u16::MAX));
        let devices = own.iter().map(one).collect();
        of.push(Tree::new(Part::Parity { parity, unit: None, of: devices }));
    }
    match of.pop() {
        Some(only) if of.is_empty() => only.part,
        Some(last) => {
            of.push(last);
            Part::Stripe { unit: None, of }
        }
        None => Part::Stripe { unit: None, of },
    }
}

/// As few groups as the widest allows; rather a few more when they are then all of one width.
fn group_count(count: usize, parity: u16) -> usize {
    let least = count.div_ceil(widest(parity));
    let narrow = usize::from(parity) * 4;
    let most = (count / narrow).max(least);
    (least..=most).find(|g| count.is_multiple_of(*g)).unwrap_or(least)
}

/// Places, largest member first; among those of one size, neighbours are on different buses.
fn by_size_and_bus(members: &[Member], mut places: Vec<usize>) -> Vec<usize> {
    let size = |i: &usize| members.get(*i).map_or(0, |m| m.data_len.0);
    places.sort_by_key(|i| core::cmp::Reverse(size(i)));
    let spread = |run: &[usize]| {
        let buses: Vec<u16> = run.iter().map(|i| members.get(*i).map_or(0, |m| m.bus)).collect();
        interleave(&buses).into_iter().filter_map(|i| run.get(i).copied()).collect::<Vec<_>>()
    };
    places.chunk_by(|a, b| size(a) == size(b)).flat_map(spread).collect()
}
