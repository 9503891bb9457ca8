//! Locks of programs (fcntl and flock), kept in buckets. docs/FORMAT.md section 11.
//!
//! A bucket (kind `Plock`) is covered by its own device lock; inode number modulo the bucket
//! count chooses it. It is a chain of blocks: the first has a fixed place, further ones are
//! allocated when the entries no longer fit, and freed when they do. Entries of dead incarnations
//! count for nothing and are dropped on sight.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// Head of each block of a bucket.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawPlockBucket {
    /// Kind `Plock`, owner the bucket.
    pub header: MetaHeader,
    /// Entries that follow.
    pub count: U64,
    /// The chain's next block; 0: this is the last.
    pub next: U64,
}
const _: () = assert!(size_of::<RawPlockBucket>() == 56);

/// One lock held, or waited for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawPlock {
    /// The file.
    pub inode: U64,
    /// First byte.
    pub start: U64,
    /// Last byte, inclusive; `u64::MAX` for "to the end".
    pub end: U64,
    /// Who: the kernel's lock owner on that node.
    pub owner: U64,
    /// Process id, for F_GETLK.
    pub pid: U32,
    /// Node's incarnation.
    pub incarnation: U32,
    /// Node.
    pub slot: U16,
    /// 1 shared, 2 exclusive.
    pub mode: U16,
    /// Bit 0: flock (whole file) rather than fcntl. Bit 1: waiting.
    pub flags: U32,
    /// Waiting: its place among the bucket's requests; lower ones were made before. Else 0.
    pub order: U64,
}
const _: () = assert!(size_of::<RawPlock>() == 56);
