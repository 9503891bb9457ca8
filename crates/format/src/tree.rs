//! B+trees: extents by file block, directory entries by hash. docs/FORMAT.md section 8.
//!
//! An index node (kind `Index`) and a tree root in a dinode hold [`RawIndexEntry`]s sorted by
//! key: entry i covers the keys from its own to the next entry's; the first covers all below too.
//! An extent leaf (kind `ExtentLeaf`) and a dinode's tail with `tree_height` 0 hold
//! [`RawExtent`]s sorted by `logical`, not overlapping. A directory leaf is in
//! [`crate::dirent`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// Head of an index node or a leaf.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawNode {
    /// Kind `Index`, `ExtentLeaf` or `DirLeaf`; owner the inode.
    pub header: MetaHeader,
    /// 0 for a leaf, else one more than its children.
    pub level: U16,
    /// Entries that follow.
    pub count: U16,
    /// Directory leaf: bytes of entries in use.
    pub used: U32,
}
const _: () = assert!(size_of::<RawNode>() == 48);

/// An entry of an index node.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawIndexEntry {
    /// Smallest key below `child`.
    pub key: U64,
    /// Slot of the child.
    pub child: U64,
}
const _: () = assert!(size_of::<RawIndexEntry>() == 16);

/// A run of a file's blocks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawExtent {
    /// First block of the file.
    pub logical: U64,
    /// First block of the pool.
    pub physical: U64,
    /// Blocks.
    pub len: U32,
    /// [`RawExtent::UNWRITTEN`], [`RawExtent::SHARED`].
    pub flags: U32,
}
const _: () = assert!(size_of::<RawExtent>() == 24);

impl RawExtent {
    /// Allocated, reads as zero.
    pub const UNWRITTEN: u32 = 1;
    /// Other files use these blocks too: copy before writing.
    pub const SHARED: u32 = 2;
}
