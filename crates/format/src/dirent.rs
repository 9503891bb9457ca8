//! Directory entries. docs/FORMAT.md section 9.
//!
//! Entries stand one after the other, sorted by `cookie`, in a dinode's tail (stuffed) or in a
//! leaf (kind `DirLeaf`, after [`crate::tree::RawNode`]). An entry is [`RawDirent`], then the
//! name, then zeros to a multiple of 8. The cookie is the seeded 63-bit hash of the name, or, on
//! a collision, the next free value above: unique in the directory, and it never changes while
//! the entry exists, so a reader may stop and go on at any entry.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of an entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawDirent {
    /// Hash of the name or the next free value; below 2^63, never 0, 1 or 2 ("." and "..").
    pub cookie: U64,
    /// The inode.
    pub inode: U64,
    /// Bytes in this entry, padding included.
    pub record_len: U16,
    /// Bytes in the name, 1 to 255.
    pub name_len: U16,
    /// File type as `DT_*`.
    pub file_type: U32,
}
const _: () = assert!(size_of::<RawDirent>() == 24);

impl RawDirent {
    /// Longest name.
    pub const NAME_MAX: usize = 255;
    /// Bytes an entry with a name of `name_len` bytes takes.
    pub const fn len_for(name_len: usize) -> usize {
        (size_of::<Self>() + name_len).next_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_to_eight_bytes() {
        assert_eq!([1, 8, 9, 255].map(RawDirent::len_for), [32, 32, 40, 280]);
    }
}
