//! Dinodes: one metadata slot each. docs/FORMAT.md section 7.
//!
//! ```text
//!  body: | RawDinode (256) | tail .......................... | inline attributes |
//! ```
//! The tail holds, by `layout`: the file's bytes (stuffed), directory entries (stuffed), a
//! symlink's target, extents (`tree_height` 0), or a tree root (`tree_height` > 0). Inline
//! attributes grow down from the end: their length is `xattr_len`.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// A point in time: seconds and nanoseconds since 1970, as POSIX has it.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawTime {
    /// Seconds, may be negative.
    pub sec: I64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: U32,
}
const _: () = assert!(size_of::<RawTime>() == 12);

/// How the tail is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Layout {
    /// Special file: the tail is not used.
    None = 0,
    /// File bytes or a symlink's target.
    Stuffed = 1,
    /// Extents in the tail (`tree_height` 0) or a tree of them.
    Extents = 2,
    /// Directory entries in the tail.
    DirStuffed = 3,
    /// A tree of directory leaves, keyed by the hash of the name.
    DirHashed = 4,
}
impl Layout {
    /// From the number on disk.
    pub fn from_u16(v: u16) -> Option<Self> {
        Some(match v {
            0 => Self::None,
            1 => Self::Stuffed,
            2 => Self::Extents,
            3 => Self::DirStuffed,
            4 => Self::DirHashed,
            _ => return None,
        })
    }
}

/// The fixed part of a dinode.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDinode {
    /// Kind `Dinode`, owner itself.
    pub header: MetaHeader,
    /// Type and permissions, as `st_mode`.
    pub mode: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Links; for a directory 2 + subdirectories.
    pub nlink: U32,
    /// Bytes. For a directory, entries times their size, for people.
    pub size: U64,
    /// Blocks held, data and metadata, the dinode's own slot not counted.
    pub blocks: U64,
    /// Last access.
    pub atime: RawTime,
    /// Last change of contents.
    pub mtime: RawTime,
    /// Last change of anything.
    pub ctime: RawTime,
    /// Birth.
    pub btime: RawTime,
    /// Device number of a special file.
    pub rdev: U64,
    /// A [`Layout`].
    pub layout: U16,
    /// Levels of index nodes above the leaves; 0 = leaves' contents are in the tail.
    pub tree_height: U16,
    /// Entries in the tail (extents, index entries or directory entries).
    pub tail_count: U16,
    /// Bytes of inline attributes at the end of the body.
    pub xattr_len: U16,
    /// Attribute block, or 0.
    pub xattr_block: U64,
    /// Tells apart two inodes that had the same number one after the other.
    pub inode_generation: U64,
    /// Directory: the parent. Otherwise a hint: where it was created.
    pub parent: U64,
    /// Directory: number of entries, "." and ".." not counted.
    pub entries: U64,
    /// [`RawDinode::FLAG_IMMUTABLE`] and its like.
    pub flags: U32,
    /// Project, for quotas.
    pub project: U32,
    /// Zero.
    pub reserved: [u8; 80],
}
const _: () = assert!(size_of::<RawDinode>() == 256);
const _: () = assert!(core::mem::offset_of!(RawDinode, size) == 56);
const _: () = assert!(core::mem::offset_of!(RawDinode, layout) == 128);

impl RawDinode {
    /// Where the tail begins.
    pub const TAIL_AT: usize = size_of::<Self>();
    /// May not be changed.
    pub const FLAG_IMMUTABLE: u32 = 1;
    /// May only be appended to.
    pub const FLAG_APPEND: u32 = 2;
    /// Made without a name: may get its first one (`O_TMPFILE`). Cleared when it does.
    pub const FLAG_TMPFILE: u32 = 1 << 16;

    /// Bytes of the tail in a body of `body_len`: what inline attributes leave.
    pub fn tail_capacity(&self, body_len: usize) -> usize {
        body_len.saturating_sub(Self::TAIL_AT + usize::from(self.xattr_len.get()))
    }
    /// The most that inline attributes may take of a body of `body_len`, so that a tail of useful
    /// size remains whatever the file becomes.
    pub const fn xattr_inline_max(body_len: usize) -> usize {
        body_len.saturating_sub(Self::TAIL_AT) / 2 / 8 * 8
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn every_layout_is_read_from_its_number() {
        use Layout::{DirHashed, DirStuffed, Extents, None as Special, Stuffed};
        for layout in [Special, Stuffed, Extents, DirStuffed, DirHashed] {
            assert_eq!(Layout::from_u16(layout as u16), Some(layout));
        }
        assert_eq!(Layout::from_u16(5), None);
    }

    #[test]
    fn attributes_take_their_bytes_from_the_tail_and_never_all() {
        let mut dinode = RawDinode::new_zeroed();
        assert_eq!(dinode.tail_capacity(3584), 3328);
        dinode.xattr_len.set(328);
        assert_eq!(dinode.tail_capacity(3584), 3000);
        assert_eq!(dinode.tail_capacity(100), 0, "what is damaged has no tail");
        // Half of the tail, whole multiples of 8 bytes.
        assert_eq!(RawDinode::xattr_inline_max(3584), 1664);
        assert_eq!(RawDinode::xattr_inline_max(256 + 2 * 31), 24);
        assert_eq!(RawDinode::xattr_inline_max(100), 0);
    }
}
