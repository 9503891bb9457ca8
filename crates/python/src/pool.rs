//! `Pool`: what `braid status` knows, read from the members at one moment.

use braid_format::label::{Label, MemberState};
use braid_format::node::SlotState;
use braid_fs::ClusterView;
use braid_fs::lock::NodeView;
use braid_fs::pool::PoolInfo;
use pyo3::prelude::*;

use crate::errors;
use crate::node;
use crate::sources::{self, Source};

/// A member of a pool: a device or a file.
#[pyclass(frozen, get_all, module = "braid")]
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number in the pool.
    index: u16,
    /// Its identity.
    uuid: String,
    /// Where it is, or was seen last.
    path: String,
    /// Bytes of the device.
    size: u64,
    /// Bytes of it that hold contents of the pool.
    data_size: u64,
    /// "active", "failed", "offline", "rebuilding", "spare", "leaving" or "missing".
    state: &'static str,
}

/// A node that has the pool mounted.
#[pyclass(frozen, get_all, module = "braid")]
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// Its slot.
    slot: u16,
    /// The host that it runs on.
    host: String,
    /// Its process.
    pid: u32,
    /// Where it is mounted; of a native node, who it is.
    mount_point: String,
    /// Since when, Unix seconds.
    since: u64,
    /// "alive", "silent", "recovering" or "unreadable".
    state: &'static str,
}

/// What a pool was at the moment when this was made: `Pool(source)`, by its name or UUID, or by the paths of its members.
///
/// Nothing is joined, locked, written or kept open. Sizes are bytes; those of free space are as the nodes last wrote
/// them. Members may be missing if the others hold everything. Raises FileNotFoundError, PermissionError, or another
/// OSError that says what is wrong with a member.
#[pyclass(frozen, get_all, module = "braid")]
#[derive(Debug)]
pub struct Pool {
    /// Its name.
    name: String,
    /// Its identity.
    uuid: String,
    /// How often its shape has changed.
    epoch: u64,
    /// Bytes that it holds, redundancy not counted.
    size: u64,
    /// Bytes for file data.
    fs_size: u64,
    /// Of those, bytes that are free, as the nodes last wrote it.
    fs_free: u64,
    /// Files, directories and so on, as the nodes last wrote it.
    inodes: u64,
    /// Bytes: the file system's unit.
    block_size: u64,
    /// Bytes on one member before the next.
    stripe_unit: u64,
    /// Bytes in a full row: the length that a large request best is a multiple of.
    stripe_width: u64,
    /// Whether it has mirrors or parity.
    redundant: bool,
    /// How many nodes may have it mounted at once.
    node_slots: u16,
    /// Its members, in order.
    members: Vec<Member>,
    /// Nodes that have it mounted, or had when they died.
    nodes: Vec<NodeInfo>,
}

#[pymethods]
impl Pool {
    /// Looks at a pool by its name or UUID, or by the paths of its members.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]
    fn new(py: Python<'_>, source: Source) -> PyResult<Self> {
        node::uses_pools()?;
        py.detach(|| {
            let pool = sources::open_to_look(&source)?;
            let (info, label) = (pool.info().clone(), pool.label());
            let cluster = braid_fs::inspect(pool).map_err(|error| errors::of(&error))?;
            Ok(Self::of(&info, &label, &cluster))
        })
    }

    /// Paths of the members that are there.
    #[getter]
    pub fn paths(&self) -> Vec<String> {
        let there = self.members.iter().filter(|m| m.state != "missing" && m.state != "failed");
        there.map(|m| m.path.clone()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<braid.Pool '{}' ({}), {} members>", self.name, self.uuid, self.members.len())
    }
}

impl Pool {
    fn of(info: &PoolInfo, label: &Label, cluster: &ClusterView) -> Self {
        let members = info.members.iter().map(|member| Member {
            index: member.index.get(),
            uuid: member.uuid.to_string(),
            path: member.path.strip_suffix(" (missing)").unwrap_or(&member.path).to_owned(),
            size: member.size.get(),
            data_size: member.data_len.get(),
            state: state(label, member.index.get()),
        });
        Self {
            name: info.name.clone(),
            uuid: info.uuid.to_string(),
            epoch: info.epoch.get(),
            size: info.size.get().saturating_sub(info.holes.get()),
            fs_size: cluster.size.get(),
            fs_free: cluster.free.get(),
            inodes: cluster.inodes,
            block_size: cluster.block_size.get(),
            stripe_unit: info.stripe_unit.get(),
            stripe_width: info.stripe_width.get(),
            redundant: info.redundant,
            node_slots: cluster.node_slots,
            members: members.collect(),
            nodes: cluster.nodes.iter().map(node).collect(),
        }
    }
}

/// The words of `braid status`.
fn state(label: &Label, index: u16) -> &'static str {
    match label.members.get(usize::from(index)) {
        None => "missing",
        // No label says so yet: it was not found.
        Some(m) if m.state == MemberState::Failed && m.state_epoch > label.epoch => "missing",
        Some(m) if m.is_offline() => "offline",
        Some(m) => match m.state {
            MemberState::Active => "active",
            MemberState::Failed => "failed",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Spare => "spare",
            MemberState::Leaving => "leaving",
        },
    }
}

fn node(node: &NodeView) -> NodeInfo {
    let state = match (node.state, node.beating) {
        _ if node.unreadable.is_some() => "unreadable",
        (SlotState::Active, true) => "alive",
        (SlotState::Active, false) => "silent",
        _ => "recovering",
    };
    NodeInfo {
        slot: node.life.slot.get(),
        host: node.host.clone(),
        pid: node.pid,
        mount_point: node.mount_point.clone(),
        since: node.since,
        state,
    }
}
