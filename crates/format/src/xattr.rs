//! Extended attributes: in the dinode's end, or in one attribute block. docs/FORMAT.md section 10.
//!
//! Attributes stand one after the other, each [`RawXattr`], the full name ("user.x"), the value,
//! zeros to a multiple of 8. In an attribute block (kind `Xattr`) they follow the header and a
//! `U64` with their byte count.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of an attribute.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawXattr {
    /// Bytes in all, padding included.
    pub record_len: U16,
    /// Bytes in the name, 1 to 255.
    pub name_len: U16,
    /// Bytes in the value.
    pub value_len: U16,
    /// Zero.
    pub flags: U16,
}
const _: () = assert!(size_of::<RawXattr>() == 8);
