//! Damaged metadata that this node has met, for the log and `status`.
//!
//! Damage is an error of what the damaged block belongs to (one inode, one resource group): the
//! operation that met it fails with EIO, and everything else goes on. The node withdraws only if a
//! transaction had changed something before it met the damage, because half of a transaction must not
//! be committed (see `Core::sealed`).

use std::collections::BTreeMap;

use braid_format::{BlockNo, InodeNo, LockNo};
use parking_lot::Mutex;

use crate::error::Error;

/// Blocks that are remembered; more are only logged.
const KNOWN_MAX: usize = 1024;

/// A damaged block of metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedBlock {
    /// Where.
    pub block: BlockNo,
    /// The inode that it belongs to, if that is known.
    pub inode: Option<InodeNo>,
    /// What is wrong.
    pub what: String,
}

/// What this node has met since it was mounted.
#[derive(Debug, Default)]
pub(crate) struct Damages {
    inner: Mutex<Inner>,
}
/// Each map is bounded by [`KNOWN_MAX`].
#[derive(Debug, Default)]
struct Inner {
    known: BTreeMap<BlockNo, DamagedBlock>,
    /// The lock under which a block that could not be read was asked for.
    owners: BTreeMap<BlockNo, LockNo>,
}

impl Damages {
    /// Keeps whose `block` is, if it is what `error` is about: it may turn out to be damaged.
    pub fn suspect(&self, block: BlockNo, owner: LockNo, error: &Error) {
        let owners = &mut self.inner.lock().owners;
        if error.damaged_block() == Some(block) && owners.len() < KNOWN_MAX {
            owners.insert(block, owner);
        }
    }
    /// Whose a block is that could not be read.
    pub fn owner_of(&self, block: BlockNo) -> Option<LockNo> {
        self.inner.lock().owners.get(&block).copied()
    }
    /// Notes an error that is damage; the first time it is logged.
    pub fn note(&self, error: &Error, inode: Option<InodeNo>) {
        let Some(block) = error.damaged_block() else { return };
        let known = &mut self.inner.lock().known;
        if known.contains_key(&block) {
            return;
        }
        let whose = inode.map_or_else(String::new, |ino| format!(" of inode {ino}"));
        tracing::error!(
            "metadata{whose} is damaged, operations that need it fail with EIO: {error}; unmount all nodes and run `braid check --repair`"
        );
        if known.len() < KNOWN_MAX {
            known.insert(block, DamagedBlock { block, inode, what: error.to_string() });
        }
    }
    /// Forgets what was noted, until it is met again; how many blocks.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.inner.lock().known).len()
    }
    /// What was noted.
    pub fn all(&self) -> Vec<DamagedBlock> {
        self.inner.lock().known.values().cloned().collect()
    }
}
