//! A directory entry that the walk has met.

use braid_format::{BlockNo, InodeNo};

/// Where a directory entry is, and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub dir: InodeNo,
    /// The dinode or leaf that has the entry.
    pub block: BlockNo,
    pub cookie: u64,
    /// The inode that it leads to.
    pub to: u64,
    /// `DT_*`.
    pub kind: u32,
}
