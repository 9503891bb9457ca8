//! Nodes: slot records, heartbeats, private counters, orphan lists. docs/FORMAT.md section 6.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// State of a node slot. Changed only by compare-and-write.
///
/// ```text
///            mount                unmount
///   Free ------------> Active ---------------> Free
///                        | death noticed, fenced
///                        v
///                   Recovering(by) --replayed--> Free
///                        |  ^ recoverer died: another takes over
///                        +--+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum SlotState {
    /// Nobody's; its journal is clean.
    Free = 0,
    /// A node lives here.
    Active = 1,
    /// Its node is dead and fenced; `recoverer` replays its journal.
    Recovering = 2,
}

/// A node slot: one lock sector.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSlot {
    /// "BRSL".
    pub magic: U32,
    /// Revision, 1.
    pub revision: U16,
    /// A [`SlotState`].
    pub state: U16,
    /// Which slot.
    pub slot: U16,
    /// Recoverer's slot while `Recovering`.
    pub recoverer: U16,
    /// Current incarnation: counted up each time the slot is taken.
    pub incarnation: U32,
    /// Recoverer's incarnation.
    pub recoverer_incarnation: U32,
    /// Process id of the node, for people.
    pub pid: U32,
    /// Fresh in every write.
    pub nonce: U64,
    /// When it was taken, Unix seconds, for people.
    pub since: U64,
    /// Identity of the node (made at mount).
    pub node_uuid: [u8; 16],
    /// Identity of the running host (its boot id): same value, same kernel, exact death detection.
    pub boot_id: [u8; 16],
    /// Host name, UTF-8, padded with zero.
    pub host: [u8; 64],
    /// Where hints are sent, `unix:PATH`, padded with zero.
    pub address: [u8; 128],
    /// Mount point, cut to fit, for people.
    pub mount_point: [u8; 128],
    /// Zero.
    pub reserved: [u8; 116],
    /// CRC-32C of the 512 bytes with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawSlot>() == 512);

impl RawSlot {
    /// "BRSL".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRSL");
}

/// A wish in a heartbeat: a lock this node waits for. Others that hold it take it as a hint.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawWish {
    /// The lock.
    pub lock: U64,
    /// 1 shared, 2 exclusive; 0 = no wish.
    pub mode: U64,
}

/// A node's heartbeat: one lock sector, written by that node alone.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeartbeat {
    /// "BRHB".
    pub magic: U32,
    /// Revision, 1.
    pub revision: U16,
    /// Which slot.
    pub slot: U16,
    /// Incarnation.
    pub incarnation: U32,
    /// Pool epoch this node uses.
    pub pool_epoch: U32,
    /// Counted up with each beat.
    pub sequence: U64,
    /// This node's change of the free block count, not yet in the counters (two's complement).
    pub free_delta: U64,
    /// This node's change of the inode count.
    pub inode_delta: U64,
    /// Locks waited for longest.
    pub wishes: [RawWish; 24],
    /// Zero.
    pub reserved: [u8; 84],
    /// CRC-32C of the 512 bytes with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawHeartbeat>() == 512);

impl RawHeartbeat {
    /// "BRHB".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRHB");
}

/// A node's private counters (kind `NodeInfo`), or the cluster's (kind `Counters`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawCounters {
    /// Kind `NodeInfo` or `Counters`.
    pub header: MetaHeader,
    /// Free blocks (a delta, two's complement, in `NodeInfo`).
    pub free_blocks: U64,
    /// Inodes in use (a delta in `NodeInfo`).
    pub inodes: U64,
}

/// A list of orphans (kind `Orphans`): header, count, then inode numbers as `U64`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawOrphans {
    /// Kind `Orphans`.
    pub header: MetaHeader,
    /// Inode numbers that follow.
    pub count: U64,
}
