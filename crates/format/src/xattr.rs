//! Extended attributes: in the dinode's end, or in attribute blocks. docs/FORMAT.md section 10.
//!
//! Attributes stand one after the other, each [`RawXattr`], the full name ("user.x"), the value,
//! zeros to a multiple of 8. In an attribute block (kind `Xattr`) they follow [`RawXattrBlock`].
//! In place of a long value stand the addresses of its blocks (kind `XattrValue`), 8 bytes each;
//! each such block is [`RawXattrValue`] and then its part of the value.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// Head of an attribute.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattr {
    /// Bytes in all, padding included.
    pub record_len: U16,
    /// Bytes in the name, 1 to 255.
    pub name_len: u8,
    /// [`RawXattr::LONG`] or 0.
    pub flags: u8,
    /// Bytes in the value.
    pub value_len: U32,
}
const _: () = assert!(size_of::<RawXattr>() == 8);

impl RawXattr {
    /// Addresses of the value's blocks stand where the value would.
    pub const LONG: u8 = 1;
}

/// Head of an attribute block.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattrBlock {
    /// Kind `Xattr`, owned by the inode.
    pub header: MetaHeader,
    /// Bytes of attributes that follow.
    pub used: U32,
    /// Zero.
    pub reserved: U32,
    /// The inode's next attribute block, or 0.
    pub next: U64,
}
const _: () = assert!(size_of::<RawXattrBlock>() == 56);

/// Head of a block with a part of a long value.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattrValue {
    /// Kind `XattrValue`, owned by the inode.
    pub header: MetaHeader,
    /// Which part it is, from 0. All but the last fill their blocks.
    pub part: U32,
    /// Bytes of the value that follow.
    pub len: U32,
}
const _: () = assert!(size_of::<RawXattrValue>() == 48);

impl RawXattrValue {
    /// Bytes of a value that a block with a body of `body_len` holds.
    pub const fn capacity(body_len: usize) -> usize {
        body_len.saturating_sub(size_of::<Self>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_long_value_fills_its_block_behind_the_head() {
        assert_eq!([0, 48, 3584].map(RawXattrValue::capacity), [0, 0, 3536]);
    }
}
