//! A node's journal: a ring of sealed transactions. docs/FORMAT.md section 12.
//!
//! ```text
//!  record = | RawTxHeader | count x RawTxBlock | pad to sector | count x body image, each padded
//!           to sector |      (one CRC over all of it; a record never wraps: a short end of the
//!           ring is skipped by a header with count 0 and `skip`)
//! ```
//! Physical redo: an image is a whole body, with its new generation already in it. A record is
//! valid when its magic, sequence, incarnation and CRC are; replay stops at the first that is not.

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
    /// CRC-32C of the record with this field zero.
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
