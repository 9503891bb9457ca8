//! A look at a file system from outside: nothing is joined, locked or changed.

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::RawCounters;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Bytes};
use braid_lock::NodeView;
use braid_pool::Pool;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::volume::Volume;

/// What a look shows. Figures of a running cluster are those last written.
#[derive(Debug, Clone)]
pub struct ClusterView {
    /// File-system block.
    pub block_size: Bytes,
    /// Bytes in resource groups that may hold file data.
    pub size: Bytes,
    /// Of those, free.
    pub free: Bytes,
    /// Inodes in use.
    pub inodes: u64,
    /// Nodes that may mount at once.
    pub node_slots: u16,
    /// Incompatible features of the file system.
    pub features_incompat: u64,
    /// The store that the locks are in, if that is not the pool.
    pub locks: Option<String>,
    /// Slots that are not free.
    pub nodes: Vec<NodeView>,
}

/// Looks at the file system on `pool`.
///
/// # Errors
/// No usable file system, or a device failed.
pub fn inspect(pool: Pool) -> Result<ClusterView> {
    let volume = Volume::open(pool)?;
    let block = BlockNo::from(volume.named(RawSuperblock::NAMED_COUNTERS));
    let (body, _, kind) = volume.read_body(block)?;
    let counters = RawCounters::read_from_prefix(&body).map(|(c, _)| c).ok();
    let Some(counters) = counters.filter(|_| kind == MetaKind::Counters) else {
        return Err(Error::Inconsistent { block, what: "counters" });
    };
    debug_assert!(body.len() >= MetaHeader::LEN);
    let nodes = crate::mount::nodes(&volume)?;
    let unit = volume.geo.block_size.bytes().get();
    let (blocks, _) = volume.groups.totals();
    Ok(ClusterView {
        block_size: Bytes(unit),
        size: Bytes(blocks.saturating_mul(unit)),
        free: Bytes(counters.free_blocks.get().saturating_mul(unit)),
        inodes: counters.inodes.get(),
        node_slots: volume.sb.node_slots.get(),
        features_incompat: volume.sb.features_incompat.get(),
        locks: volume.external_store.as_ref().map(|store| store.etcd.address().to_string()),
        nodes,
    })
}
