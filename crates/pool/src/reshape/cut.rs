//! Removing a part of the pool's bytes: it becomes a hole, and members that hold nothing else
//! become spares.
//!
//! Addresses behind the hole stay. The numbers of redundancy groups stay too, because log records
//! name groups by number. The addresses of a hole are never used again: so what is written to space
//! that is added later cannot be taken for what was there before.

use braid_format::label::{Label, MemberState, NodeKind, Segment, SubpoolKind};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::error::{ChangeError, PoolError};
use crate::labels::{moving, next_epoch};
use crate::membership::selector::MemberSelector;
use crate::pool::Pool;
use crate::topology::{SubpoolInfo, Topology};

/// Whether a node, or one below it, stands on `member`.
fn stands_on(label: &Label, node: u16, member: MemberIndex) -> bool {
    let Some(n) = label.nodes.get(usize::from(node)) else { return false };
    match &n.kind {
        NodeKind::Slice { member: m, .. } => *m == member,
        // Children stand before their parents: this ends.
        kind => kind.children().iter().any(|c| c.node < node && stands_on(label, c.node, member)),
    }
}

/// Marks a node and all below it.
fn mark(label: &Label, node: u16, marked: &mut [bool]) {
    if let Some(m) = marked.get_mut(usize::from(node)) {
        *m = true;
    }
    let Some(n) = label.nodes.get(usize::from(node)) else { return };
    for c in n.kind.children().iter().filter(|c| c.node < node) {
        mark(label, c.node, marked);
    }
}

/// Takes marked nodes out of the table; those after them move up.
fn remove_nodes(label: &mut Label, gone: &[bool]) {
    let is_gone = |i: usize| gone.get(i).copied().unwrap_or(false);
    let place = |node: u16| {
        let before = (0..usize::from(node)).filter(|i| is_gone(*i)).count();
        node - u16::try_from(before).unwrap_or(node)
    };
    for node in &mut label.nodes {
        if let NodeKind::Stripe { children, .. }
        | NodeKind::Mirror { children }
        | NodeKind::Parity { children, .. }
        | NodeKind::Concat { children } = &mut node.kind
        {
            for c in children {
                c.node = place(c.node);
            }
        }
    }
    for s in label.segments.iter_mut().filter(|s| !s.is_hole()) {
        s.node = place(s.node);
    }
    let mut i = 0;
    label.nodes.retain(|_| {
        i += 1;
        !is_gone(i - 1)
    });
}

/// Redundancy groups of marked nodes.
fn groups_in(label: &Label, marked: &[bool]) -> u16 {
    let group = |k: &NodeKind| matches!(k, NodeKind::Mirror { .. } | NodeKind::Parity { .. });
    let all = label.nodes.iter().zip(marked).filter(|(n, m)| **m && group(&n.kind));
    u16::try_from(all.count()).unwrap_or(u16::MAX)
}

/// `label` with a hole at `from..to`, and the members that hold nothing any more because of it.
/// `None`: the hole is there.
fn with_hole(
    label: &Label,
    (from, to): (ByteOffset, ByteOffset),
) -> Result<Option<(Label, Vec<MemberIndex>)>, ChangeError> {
    let inside = |s: &Segment| s.start >= from && s.start.0 + s.len.0 <= to.0;
    let touches = |s: &Segment| s.start < to && s.start.0 + s.len.0 > from.0;
    let astray = |s: &Segment| !inside(s) && touches(s);
    if from.0 == 0 || label.segments.iter().any(astray) || !label.segments.iter().any(inside) {
        return Err(ChangeError::NotAPart { from, to });
    }
    if label.segments.iter().filter(|s| inside(s)).all(Segment::is_hole) {
        return Ok(None);
    }
    let mut next = next_epoch(label);
    let mut gone = vec![false; label.nodes.len()];
    for s in next.segments.iter_mut().filter(|s| inside(s) && !s.is_hole()) {
        let mut own = vec![false; label.nodes.len()];
        mark(label, s.node, &mut own);
        let groups = groups_in(label, &own);
        gone.iter_mut().zip(&own).for_each(|(g, o)| *g |= o);
        (s.subpool, s.node, s.node_start) = (SubpoolKind::Hole, groups, ByteOffset(0));
    }
    let shown = |s: &Segment| gone.get(usize::from(s.node)).copied().unwrap_or(true);
    if next.segments.iter().any(|s| !s.is_hole() && shown(s)) {
        return Err(ChangeError::NotAPart { from, to });
    }
    next.segments = joined(&next.segments);
    remove_nodes(&mut next, &gone);
    let mut idle = Vec::new();
    for (i, m) in (0_u16..).map(MemberIndex).zip(label.members.iter()) {
        if label.bytes_on(i) == Bytes(0) || next.bytes_on(i) != Bytes(0) {
            continue;
        }
        idle.push(i);
        if m.state != MemberState::Failed
            && let Some(m) = next.members.get_mut(usize::from(i.0))
        {
            (m.state, m.state_epoch) = (MemberState::Spare, next.epoch);
        }
    }
    Ok(Some((next, idle)))
}

/// Neighbouring holes are one.
fn joined(segments: &[Segment]) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::new();
    for s in segments {
        match out.last_mut() {
            Some(last) if last.is_hole() && s.is_hole() => {
                last.len.0 += s.len.0;
                last.node = last.node.saturating_add(s.node);
            }
            _ => out.push(*s),
        }
    }
    out
}

/// Whether parts may leave now, of which the members in `idle` hold nothing any more.
fn may_cut(topology: &Topology, idle: &[MemberIndex]) -> Result<(), PoolError> {
    topology.may_change()?;
    match moving(&topology.label) {
        Some(m) if idle.contains(&m.leaving) => {
            let (leaving, successor) = (topology.name(m.leaving), topology.name(m.successor));
            Err(ChangeError::Moving { leaving, successor }.into())
        }
        _ => Ok(()),
    }
}

impl Pool {
    /// The segments that stand, wholly or in part, on a member.
    ///
    /// # Errors
    /// There is no such member.
    pub fn segments_of(
        &self,
        member: impl Into<MemberSelector>,
    ) -> Result<Vec<SubpoolInfo>, PoolError> {
        let resolved = self.0.resolve_member(member.into())?;
        let topology = self.0.epochs.read();
        let member = topology.place_of(&resolved)?;
        let label = &topology.label;
        let on =
            |(s, _): &(&Segment, &SubpoolInfo)| !s.is_hole() && stands_on(label, s.node, member);
        let all = label.segments.iter().zip(&topology.info.segments);
        Ok(all.filter(on).map(|(_, info)| *info).collect())
    }

    /// Members on which nothing would stand if these bytes left, one part after the other: first byte
    /// of each, and one past its last.
    ///
    /// # Errors
    /// As [`Pool::cut`]; nothing is written.
    pub fn plan_cut(
        &self,
        parts: &[(ByteOffset, ByteOffset)],
    ) -> Result<Vec<MemberIndex>, PoolError> {
        let topology = self.0.epochs.read();
        let (mut label, mut idle) = (topology.label.clone(), Vec::new());
        for part in parts {
            if let Some((next, more)) = with_hole(&label, *part)? {
                label = next;
                idle.extend(more);
            }
        }
        idle.sort_unstable();
        may_cut(&topology, &idle)?;
        Ok(idle)
    }

    /// Takes the bytes `from..to` out of the pool: nobody reads or writes there any more. They are
    /// whole segments after the first. Members on which nothing else stands become spares; which.
    /// Nothing happens if they are out already.
    ///
    /// # Errors
    /// [`ChangeError::NotAPart`], [`ChangeError::Moving`]; [`PoolError::Device`] of a member.
    pub fn cut(&self, from: ByteOffset, to: ByteOffset) -> Result<Vec<MemberIndex>, PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| self.try_cut(from, to))
    }

    fn try_cut(&self, from: ByteOffset, to: ByteOffset) -> Result<Vec<MemberIndex>, PoolError> {
        let topology = self.0.epochs.write();
        let Some((next, idle)) = with_hole(&topology.label, (from, to))? else {
            return Ok(Vec::new());
        };
        may_cut(&topology, &idle)?;
        let devices = topology.devices.clone();
        self.0.change(topology, next, devices)?;
        Ok(idle)
    }
}

#[cfg(test)]
mod tests;
