//! What the server calls an inode.

use braid_format::InodeNo;

/// An inode by its number and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Number.
    pub ino: InodeNo,
    /// Generation: which of the inodes that have had the number.
    pub generation: u64,
}
