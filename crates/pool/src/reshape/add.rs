//! Adding space at the end of the pool's bytes: a topology tree of its own for new devices, or for
//! what members have gained.
//!
//! No byte of the pool moves, and no node of the old topology changes. If metadata has a subpool,
//! the new space has a metadata subpool too (mirrors of as many copies, over a slice of each new
//! device), so that new space is described by metadata beside it.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Label, Member, NodeKind, Segment, SubpoolKind};
use braid_format::{Bytes, MemberIndex, StripeUnit};

use crate::error::{ChangeError, PoolError};
use crate::labels::{Hint, member_of, next_epoch, same_device};
use crate::layout::build::{BuildOptions, Built, build};
use crate::layout::map::Map;
use crate::layout::{Layout, Redundancy, Subpool, Weights, metadata, usual};
use crate::membership::joining::Joining;
use crate::pool::Pool;
use crate::topology::{PoolInfo, Topology};

/// How new space is made.
#[derive(Debug, Clone, Default)]
pub struct AddOptions {
    /// Overwrite other pools and file systems (never a device in use).
    pub force: bool,
    /// The shape; `None`: what `redundancy` says, over all new devices.
    pub layout: Option<Layout>,
    /// What may be lost; `None`: as much as of the pool's newest data.
    pub redundancy: Option<Redundancy>,
    /// Unit of stripes that do not say their own; `None`: the pool's.
    pub unit: Option<StripeUnit>,
    /// Weights of stripes that do not say them.
    pub weights: Weights,
    /// Leave the order of devices as given.
    pub keep_order: bool,
    /// What is known of the devices, in their order.
    pub hints: Vec<Hint>,
}

/// A pool as it is, or would be, with new space.
#[derive(Debug, Clone)]
pub struct Added {
    /// The new members.
    pub members: Vec<MemberIndex>,
    /// What it is then.
    pub info: PoolInfo,
    /// Its label.
    pub label: Label,
    /// Bytes of new members, or of what members have more, that are not used.
    pub unused: Bytes,
}

/// What a tree is safe from.
fn class_of(label: &Label, node: u16) -> Redundancy {
    let Some(n) = label.nodes.get(usize::from(node)) else { return Redundancy::None };
    match &n.kind {
        NodeKind::Parity { parity, .. } => Redundancy::Parity(*parity),
        NodeKind::Mirror { children } => {
            Redundancy::Mirror(u16::try_from(children.len()).unwrap_or(u16::MAX))
        }
        kind => kind.children().first().map_or(Redundancy::None, |c| class_of(label, c.node)),
    }
}

/// What the newest segment of one of these kinds is safe from.
fn class(label: &Label, of: &[SubpoolKind]) -> Redundancy {
    let newest = label.segments.iter().rev().find(|s| of.contains(&s.subpool));
    newest.map_or(Redundancy::None, |s| class_of(label, s.node))
}

/// Whether metadata and file data have subpools of their own.
fn apart(label: &Label) -> bool {
    label.segments.iter().any(|s| s.subpool == SubpoolKind::Metadata)
}

/// The topology of new space on `members`, by itself.
pub(super) fn shape(
    label: &Label,
    members: &[Member],
    options: &AddOptions,
) -> Result<Built, PoolError> {
    use SubpoolKind::{Data, General, Journal, Metadata};
    let redundancy = options.redundancy.unwrap_or_else(|| class(label, &[Data, General]));
    let mut layout = match &options.layout {
        Some(layout) => layout.clone(),
        None => usual(members, redundancy, options.keep_order)?,
    };
    let has = |layout: &Layout, kind| layout.subpools.iter().any(|s| s.kind == kind);
    if has(&layout, Journal) {
        return Err(ChangeError::NoJournals.into());
    }
    if apart(label) && !has(&layout, Metadata) {
        for s in &mut layout.subpools {
            s.kind = Data;
        }
        let copies = match class(label, &[Metadata]) {
            Redundancy::Mirror(copies) => copies,
            _ => 1,
        };
        let tree = metadata::mirrored_for(&layout, members, copies)?;
        layout.subpools.push(Subpool { kind: Metadata, tree });
    }
    let how = BuildOptions {
        unit: options.unit.or(StripeUnit::new(label.stripe_unit)).unwrap_or(StripeUnit::DEFAULT),
        keep_order: options.keep_order,
        weights: options.weights.clone(),
    };
    let built = build(&layout, members, &how)?;
    if !apart(label) && built.segments.iter().any(|s| s.subpool != General) {
        return Err(ChangeError::OneSubpool.into());
    }
    let redundant = |n: &NodeKind| matches!(n, NodeKind::Mirror { .. } | NodeKind::Parity { .. });
    let is = |nodes: &[braid_format::label::TreeNode]| nodes.iter().any(|n| redundant(&n.kind));
    if is(&built.nodes) && !is(&label.nodes) {
        return Err(ChangeError::NoLogs.into());
    }
    Ok(built)
}

/// Shows `built` at the label's end; `member` says who its members are, and from which byte of
/// their data areas on the new space is.
pub(super) fn append(
    label: &mut Label,
    built: Built,
    member: impl Fn(MemberIndex) -> (MemberIndex, Bytes),
) {
    let base = u16::try_from(label.nodes.len()).unwrap_or(u16::MAX);
    let end = label.size().0;
    for mut node in built.nodes {
        match &mut node.kind {
            NodeKind::Slice { member: m, start } => {
                let (own, from) = member(*m);
                (*m, *start) = (own, *start + from);
            }
            NodeKind::Stripe { children, .. }
            | NodeKind::Mirror { children }
            | NodeKind::Parity { children, .. }
            | NodeKind::Concat { children } => {
                for c in children {
                    c.node = c.node.saturating_add(base);
                }
            }
        }
        label.nodes.push(node);
    }
    label.segments.extend(built.segments.into_iter().map(|s| Segment {
        start: s.start + Bytes(end),
        node: s.node.saturating_add(base),
        ..s
    }));
}

/// What a label has room for.
pub(super) fn limits(label: &Label) -> Result<(), ChangeError> {
    let edges = label.nodes.iter().map(|n| n.kind.children().len()).sum();
    for (what, count, max) in [
        ("topology nodes", label.nodes.len(), Label::NODES_MAX),
        ("edges of the topology", edges, Label::EDGES_MAX),
        ("segments", label.segments.len(), Label::SEGMENTS_MAX),
    ] {
        if count > max {
            return Err(ChangeError::LabelFull { what, count, max });
        }
    }
    Ok(())
}

/// Bytes of redundancy logs that the members of a pool keep.
fn logs(topology: &Topology) -> Bytes {
    let members = topology.map.members().into_iter();
    let starts = members.filter_map(|m| topology.label.members.get(usize::from(m.0)));
    starts.map(|m| m.data_start - Label::DATA_AT).min().unwrap_or(Bytes(0))
}

fn plan(
    topology: &Topology,
    new: &[Arc<dyn Device>],
    options: &AddOptions,
) -> Result<(Added, Vec<Arc<dyn Device>>), PoolError> {
    if new.is_empty() {
        return Err(PoolError::NoDevices);
    }
    let mut label = next_epoch(&topology.label);
    let first = label.members.len();
    let count = first + new.len();
    if count > Label::MEMBERS_MAX {
        return Err(PoolError::TooManyMembers { count });
    }
    let none = Hint::default();
    let hints = options.hints.iter().chain(std::iter::repeat(&none));
    let logs = logs(topology);
    let mut members = Vec::new();
    for (device, hint) in new.iter().zip(hints) {
        let mut m = member_of(device, hint)?;
        let needed = logs.0 + Label::ALIGN.0.max(label.stripe_unit.0);
        if m.data_len.0 < needed {
            let ends = Label::DATA_AT.0 + Label::TAIL.0;
            return Err(PoolError::TooSmall {
                path: device.info().name.clone(),
                size: device.info().size,
                needed: Bytes(ends + needed.next_multiple_of(Label::ALIGN.0)),
            });
        }
        m.data_start = m.data_start + logs;
        m.data_len.0 -= logs.0;
        m.state_epoch = label.epoch;
        members.push(m);
    }
    let built = shape(&label, &members, options)?;
    let unused = Bytes(built.unused.iter().map(|b| b.0).sum());
    label.members.extend(members);
    let place = |i: usize| MemberIndex(u16::try_from(i).unwrap_or(u16::MAX));
    append(&mut label, built, |m| (place(first + usize::from(m.0)), Bytes(0)));
    limits(&label)?;
    let mut devices = topology.devices.clone();
    devices.extend(new.iter().cloned());
    let info = PoolInfo::of(&label, &Map::new(&label)?, &devices);
    let members = (first..count).map(place).collect();
    Ok((Added { members, info, label, unused }, devices))
}

impl Topology {
    /// Whether the pool's shape may be changed just now.
    pub(super) fn may_change(&self) -> Result<(), PoolError> {
        if self.provisional {
            return Err(PoolError::Provisional { name: self.label.name.clone() });
        }
        Ok(())
    }
}

impl Pool {
    /// What [`Pool::add`] would make of these devices; nothing is written.
    ///
    /// # Errors
    /// As there.
    pub fn plan_add(
        &self,
        devices: &[Arc<dyn Device>],
        options: &AddOptions,
    ) -> Result<Added, PoolError> {
        let topology = self.0.epochs.read();
        self.examine(&topology, devices, options)?;
        Ok(plan(&topology, devices, options)?.0)
    }

    fn examine(
        &self,
        topology: &Topology,
        devices: &[Arc<dyn Device>],
        options: &AddOptions,
    ) -> Result<(), PoolError> {
        topology.may_change()?;
        for (i, device) in devices.iter().enumerate() {
            if let Some(other) = devices.iter().take(i).find(|o| same_device(o, device)) {
                let (path, other) = (device.info().name.clone(), other.info().name.clone());
                return Err(PoolError::GivenTwice { path, other });
            }
            self.0.check_joins(topology, device, options.force)?;
        }
        Ok(())
    }

    /// Adds devices, and their space at the end of the pool's bytes, which are from then on more.
    ///
    /// # Errors
    /// Before anything is written: what [`Pool::create`] says of devices and layouts; [`ChangeError`]. Later:
    /// [`PoolError::Device`]: the pool is as it was.
    pub fn add(&self, new: &[Arc<dyn Device>], options: &AddOptions) -> Result<Added, PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| self.try_add(new, options))
    }

    fn try_add(&self, new: &[Arc<dyn Device>], options: &AddOptions) -> Result<Added, PoolError> {
        let topology = self.0.epochs.write();
        self.examine(&topology, new, options)?;
        let (added, devices) = plan(&topology, new, options)?;
        let joining = Joining::new(new, options.force);
        self.0.change_with(topology, added.label.clone(), devices, &joining)?;
        Ok(added)
    }
}

#[cfg(test)]
mod tests;
