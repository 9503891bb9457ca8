//! Unlinked but open inodes: the node that removed the last link lists the inode in its orphan
//! blocks (same transaction) until it is deleted.

use std::sync::Arc;

use braid_format::{InodeNo, NodeId};

use crate::core::Core;
use crate::error::Result;

/// This node's orphan lists in memory.
#[derive(Debug, Default)]
pub(crate) struct Orphans {}

/// Deletes an inode without links that nobody has open: contents, attributes, slot. Crash-safe
/// and idempotent; does nothing while someone has it open.
pub(crate) fn delete(core: &Arc<Core>, ino: InodeNo) -> Result<()> {
    let _ = (core, ino);
    todo!()
}
/// Deletes what can be deleted of this node's own list. Returns how many inodes remain listed.
pub(crate) fn reap(core: &Arc<Core>) -> Result<usize> {
    let _ = core;
    todo!()
}
/// After replay of dead `node`'s journal: moves its list into this node's. Takes no inode lock (the
/// dead may still hold them); call [`reap`] once its slot is free. What does not fit stays for the
/// slot's next owner.
pub(crate) fn recover(core: &Arc<Core>, node: NodeId) -> Result<()> {
    let _ = (core, node);
    todo!()
}

/// This node's last close of an inode that is unlinked, or whose lock was given up while it was
/// open: deletes it if nobody refers to it any more.
pub(crate) fn last_close(core: &Arc<Core>, ino: InodeNo) -> Result<()> {
    let _ = (core, ino);
    todo!()
}
