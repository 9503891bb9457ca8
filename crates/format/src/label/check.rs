//! What must hold in every label, whether it was read or is about to be written.

use super::contents::{Label, Member, MemberState, NodeKind, WHAT};
use super::properties;
use crate::FormatError;
use crate::units::{BlockSize, Bytes, StripeUnit};

fn bad(at: u64, field: &'static str, value: u64) -> FormatError {
    FormatError::BadField { what: WHAT, at, field, value }
}

fn ensure(ok: bool, at: u64, field: &'static str, value: u64) -> Result<(), FormatError> {
    if ok { Ok(()) } else { Err(bad(at, field, value)) }
}

/// The tables' sizes.
pub(super) fn limits(label: &Label, edges: usize, at: u64) -> Result<(), FormatError> {
    let members = label.members.len();
    ensure((1..=Label::MEMBERS_MAX).contains(&members), at, "member count", members as u64)?;
    let nodes = label.nodes.len();
    ensure((1..=Label::NODES_MAX).contains(&nodes), at, "node count", nodes as u64)?;
    ensure(edges <= Label::EDGES_MAX, at, "edge count", edges as u64)?;
    let segments = label.segments.len();
    ensure((1..=Label::SEGMENTS_MAX).contains(&segments), at, "segment count", segments as u64)
}

/// All invariants of [`Label`] but the tables' sizes.
pub(super) fn check(label: &Label, at: u64) -> Result<(), FormatError> {
    let name_ok = !label.name.is_empty()
        && label.name.len() <= Label::NAME_MAX
        && !label.name.contains(|c: char| c == '/' || c.is_control());
    ensure(name_ok, at, "name", 0)?;
    ensure(matches!(label.lock_sector.0, 512 | 4096), at, "lock sector", label.lock_sector.0)?;
    let block = label.block_size;
    ensure(block.0 == 0 || BlockSize::new(block).is_some(), at, "block size", block.0)?;
    let unit = label.stripe_unit;
    ensure(StripeUnit::new(unit).is_some(), at, "stripe unit", unit.0)?;
    ensure(label.epoch.0 != 0, at, "epoch", 0)?;
    ensure(properties::fit(&label.properties), at, "properties", 0)?;
    members(label, at)?;
    let has_parent = nodes(label, at)?;
    if !label.reshaping {
        slices(label, at)?;
    }
    segments(label, &has_parent, at)
}

fn members(label: &Label, at: u64) -> Result<(), FormatError> {
    for (i, m) in label.members.iter().enumerate() {
        let i64 = i as u64;
        let end = m.data_start.0.checked_add(m.data_len.0);
        let fits = m.data_start >= Label::DATA_AT && end.is_some_and(|e| e <= m.device_size.0);
        ensure(fits, at, "data area of member", i64)?;
        let twice = label.members.iter().take(i).any(|o| o.uuid == m.uuid);
        ensure(!twice, at, "identity, used twice, of member", i64)?;
        let out = matches!(m.state, MemberState::Failed | MemberState::Rebuilding);
        ensure(out || !m.offline, at, "mark of member", i64)?;
        let Some(successor) = m.successor else { continue };
        ensure(succeeds(label, i, m), at, "successor of member", successor.0.into())?;
    }
    Ok(())
}

/// Whether the successor of member `i`, `m`, can be that.
fn succeeds(label: &Label, i: usize, m: &Member) -> bool {
    let successor = m.successor.and_then(|s| label.members.get(usize::from(s.0)));
    let others = || label.members.iter().enumerate().filter(|(j, _)| *j != i);
    m.state == MemberState::Leaving
        && others().all(|(_, o)| o.successor != m.successor)
        && successor.is_some_and(|h| {
            h.state == MemberState::Spare
                && (h.data_start, h.data_len) == (m.data_start, m.data_len)
        })
}

/// Checks the nodes; says of each whether it has a parent.
fn nodes(label: &Label, at: u64) -> Result<Vec<bool>, FormatError> {
    let mut has_parent = vec![false; label.nodes.len()];
    for (i, node) in label.nodes.iter().enumerate() {
        let mut lens = Vec::with_capacity(node.kind.children().len());
        let mut row = 0;
        for child in node.kind.children() {
            let c = usize::from(child.node);
            let seen = has_parent.get_mut(c).filter(|_| c < i);
            let fresh = seen.is_some_and(|s| !core::mem::replace(s, true));
            ensure(fresh, at, "child of a node", child.node.into())?;
            let weighs = matches!(node.kind, NodeKind::Stripe { .. });
            let fits = child.weight == 1 || (weighs && child.weight != 0);
            ensure(fits, at, "weight", child.weight.into())?;
            row += u64::from(child.weight);
            let len = label.nodes.get(c).map_or(0, |n| n.len.0);
            lens.push((len, u64::from(child.weight)));
        }
        ensure(row <= Label::ROW_MAX, at, "units in a row", row)?;
        node_len(label, i, &lens, at)?;
    }
    Ok(has_parent)
}

/// A node's length is what its children give.
fn node_len(label: &Label, i: usize, lens: &[(u64, u64)], at: u64) -> Result<(), FormatError> {
    let Some(node) = label.nodes.get(i) else { return Ok(()) };
    let len = node.len.0;
    let total = lens.iter().try_fold(0_u64, |sum, (l, _)| sum.checked_add(*l));
    let unit_ok = |unit: Bytes| ensure(StripeUnit::new(unit).is_some(), at, "unit", unit.0);
    let ok = match &node.kind {
        NodeKind::Slice { member, start } => label
            .members
            .get(usize::from(member.0))
            .is_some_and(|m| start.0.checked_add(len).is_some_and(|end| end <= m.data_len.0)),
        NodeKind::Stripe { unit, .. } => {
            unit_ok(*unit)?;
            // A unit is at most 2^30 and a weight below 2^16: the product fits.
            let used = |(l, w): &(u64, u64)| l / (unit.0 * w) * (unit.0 * w);
            total.is_some() && lens.iter().map(used).sum::<u64>() == len
        }
        NodeKind::Mirror { .. } => {
            (2..=4).contains(&lens.len()) && lens.iter().map(|(l, _)| *l).min() == Some(len)
        }
        NodeKind::Parity { unit, parity, code, .. } => {
            unit_ok(*unit)?;
            ensure(*code == Label::CODE, at, "parity code", (*code).into())?;
            parity_len(lens, *parity, unit.0) == Some(len)
        }
        NodeKind::Concat { .. } => total == Some(len),
    };
    ensure(ok && len != 0, at, "length of topology node", i as u64)
}

/// Bytes of data in a parity group: whole rows of all children but the `parity` of each row.
/// `None` when its children are not equal, or fewer than that.
fn parity_len(lens: &[(u64, u64)], parity: u16, unit: u64) -> Option<u64> {
    let (child, _) = lens.first()?;
    let equal = lens.iter().all(|(l, _)| l == child);
    let data = (lens.len() as u64).checked_sub(parity.into())?;
    let known = matches!(parity, 1 | 2);
    (equal && known).then_some(child / unit * unit)?.checked_mul(data)
}

/// No two slices of a member overlap.
fn slices(label: &Label, at: u64) -> Result<(), FormatError> {
    let all: Vec<(u16, u64, u64)> = label
        .nodes
        .iter()
        .filter_map(|n| match n.kind {
            NodeKind::Slice { member, start } => Some((member.0, start.0, n.len.0)),
            _ => None,
        })
        .collect();
    no_overlap(all, at, "overlapping slice of member")
}

/// Of runs `(owner, start, len)`, no two of one owner share a byte.
fn no_overlap(
    mut runs: Vec<(u16, u64, u64)>,
    at: u64,
    field: &'static str,
) -> Result<(), FormatError> {
    runs.sort_unstable();
    for pair in runs.windows(2) {
        if let [(m, start, len), (n, next, _)] = *pair {
            ensure(m != n || start + len <= next, at, field, m.into())?;
        }
    }
    Ok(())
}

fn segments(label: &Label, has_parent: &[bool], at: u64) -> Result<(), FormatError> {
    let (mut expected, mut gone) = (0_u64, 0_u64);
    let mut shown = Vec::with_capacity(label.segments.len());
    for s in &label.segments {
        ensure(s.start.0 == expected && s.len.0 != 0, at, "segment start", s.start.0)?;
        let end = expected.checked_add(s.len.0).filter(|e| i64::try_from(*e).is_ok());
        expected = end.ok_or_else(|| bad(at, "segment length", s.len.0))?;
        if s.is_hole() {
            ensure(s.start.0 != 0 && s.node_start.0 == 0, at, "hole", s.start.0)?;
            gone += u64::from(s.node);
            ensure(gone <= Label::GONE_GROUPS_MAX, at, "groups of holes", gone)?;
            continue;
        }
        let inside = label
            .nodes
            .get(usize::from(s.node))
            .is_some_and(|n| s.node_start.0.checked_add(s.len.0).is_some_and(|end| end <= n.len.0));
        let root = has_parent.get(usize::from(s.node)).is_some_and(|p| !p);
        ensure(inside && root, at, "segment of node", s.node.into())?;
        shown.push((s.node, s.node_start.0, s.len.0));
    }
    no_overlap(shown, at, "part shown twice of node")
}
