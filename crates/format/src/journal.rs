//! A node's journal: a ring of sealed transactions. docs/FORMAT.md section 12.
//!
//! ```text
//!  record = | RawTxHeader | count x RawTxBlock | pad to sector | count x body image |
//! ```
//! All sizes are multiples of the lock sector, and so is a body. A record never wraps: a short end
//! of the ring is skipped by a record with count 0 that is one sector long on disk and whose `len`
//! reaches to the end of the ring; its checksum covers the sector alone.
//!
//! Physical redo: an image is a whole sealed body, with its new generation already in it. A record
//! is valid when its magic, sequence, incarnation, slot and checksum are; replay stops at the
//! first that is not. A file system's first sequence number is drawn at random when it is made, and
//! sequence numbers go on from one incarnation to the next, so no record of an earlier life, or of
//! an earlier file system on the same blocks, is ever taken for one of the present.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// Where a node's journal begins and ends (two copies, written in turn; the higher sequence wins).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawJournalHeader {
    /// Kind `JournalHeader`; its generation says which copy is newer.
    pub header: MetaHeader,
    /// Sequence number of the oldest record that must be replayed.
    pub tail_sequence: U64,
    /// Its place: byte offset in the ring.
    pub tail_offset: U64,
    /// Incarnation that writes this journal.
    pub incarnation: U32,
    /// 1: nothing to replay (clean unmount or recovered).
    pub clean: U32,
}
const _: () = assert!(size_of::<RawJournalHeader>() == 64);

/// Head of a transaction in the ring.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTxHeader {
    /// "BRTX".
    pub magic: U32,
    /// CRC-32C of the record (of its first sector in a skip record) with this field zero.
    pub crc: U32,
    /// One more than the record before.
    pub sequence: U64,
    /// Bytes in the record, a multiple of the sector.
    pub len: U64,
    /// Writer's incarnation.
    pub incarnation: U32,
    /// Images; 0 in a record that only skips to the start of the ring.
    pub count: U32,
    /// Writer's slot.
    pub slot: U32,
    /// Zero.
    pub reserved: U32,
}
const _: () = assert!(size_of::<RawTxHeader>() == 40);

impl RawTxHeader {
    /// "BRTX".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRTX");
    /// Where the checksum stands.
    pub const CRC_AT: usize = core::mem::offset_of!(Self, crc);
    /// Size in bytes.
    pub const LEN: usize = size_of::<Self>();
}

/// Names an image in a record.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTxBlock {
    /// Slot.
    pub block: U64,
    /// Generation in the image.
    pub generation: U64,
}
const _: () = assert!(size_of::<RawTxBlock>() == 16);
