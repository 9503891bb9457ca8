//! The device lock's record: one sector, changed only by compare-and-write. docs/FORMAT.md
//! section 3, docs/LOCKING.md.
//!
//! Invariants (checked by `decode` and asserted before `encode`):
//! * `Exclusive` has exactly one holder, `Shared` at least one, `Unlocked` none;
//! * a node stands at most once among the holders and at most once among the waiters;
//! * a waiter that does not yet hold the lock may also be a holder only when it asks to go from
//!   shared to exclusive.

use crate::units::{Incarnation, LockNo, NodeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A node, in one of its lives.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawHolder {
    /// Slot.
    pub slot: U16,
    /// For a waiter, the mode wanted (1 shared, 2 exclusive); else zero.
    pub mode: U16,
    /// Incarnation of the slot.
    pub incarnation: U32,
}
const _: () = assert!(size_of::<RawHolder>() == 8);

/// The record as it stands on disk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawLockRecord {
    /// Always [`RawLockRecord::MAGIC`].
    pub magic: U32,
    /// Revision, 1.
    pub revision: U16,
    /// 0 unlocked, 1 shared, 2 exclusive.
    pub mode: U16,
    /// The lock's number: own slot's first block.
    pub lock: U64,
    /// Counts the releases of an exclusive hold: a cache kept from the last hold is good while it
    /// has not changed (GFS's lock counter).
    pub version: U64,
    /// Fresh in every write: settles whether a compare-and-write whose answer was lost landed.
    pub nonce: U64,
    /// Holders in use.
    pub holder_count: U16,
    /// Waiters in use.
    pub waiter_count: U16,
    /// Openers in use.
    pub opener_count: U16,
    /// Bit 0: more nodes had the file open than `openers` can hold.
    pub flags: U16,
    /// Who holds it.
    pub holders: [RawHolder; RawLockRecord::HOLDERS],
    /// Who waits, first come first.
    pub waiters: [RawHolder; RawLockRecord::WAITERS],
    /// Nodes that gave up the lock while a program of theirs had the file open.
    pub openers: [RawHolder; RawLockRecord::OPENERS],
    /// Zero.
    pub reserved: [u8; 20],
    /// CRC-32C of the 512 bytes with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawLockRecord>() == 512);
const _: () = assert!(core::mem::offset_of!(RawLockRecord, holders) == 40);
const _: () = assert!(core::mem::offset_of!(RawLockRecord, crc) == 508);

impl RawLockRecord {
    /// "BRLK".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRLK");
    /// Most shared holders; a further reader waits in the queue.
    pub const HOLDERS: usize = 28;
    /// Most waiters; a further one tries again later.
    pub const WAITERS: usize = 12;
    /// Most openers remembered.
    pub const OPENERS: usize = 16;
    /// Bytes used at the start of the lock sector; the rest of a larger sector is zero.
    pub const LEN: usize = size_of::<Self>();
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u16)]
pub enum Mode {
    /// Not held.
    #[default]
    Unlocked = 0,
    /// Held beside other shared holders: to read.
    Shared = 1,
    /// Held alone: to change.
    Exclusive = 2,
}
impl Mode {
    /// From the number on disk.
    pub const fn from_u16(v: u16) -> Option<Self> {
        match v {
            0 => Some(Self::Unlocked),
            1 => Some(Self::Shared),
            2 => Some(Self::Exclusive),
            _ => None,
        }
    }
}

/// A node in one of its lives: a slot, and how often it had been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The slot.
    pub slot: NodeId,
    /// Which life of the slot.
    pub incarnation: Incarnation,
}

/// A node that waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// Who.
    pub life: Life,
    /// What it wants: never [`Mode::Unlocked`].
    pub mode: Mode,
}

/// A verified lock record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockRecord {
    /// The lock's number.
    pub lock: LockNo,
    /// How it is held.
    pub mode: Mode,
    /// Counts the releases of an exclusive hold.
    pub version: u64,
    /// Fresh in every write.
    pub nonce: u64,
    /// Who holds it, longest first.
    pub holders: Vec<Life>,
    /// Who waits, first come first.
    pub waiters: Vec<Waiter>,
    /// Who gave it up with the file open.
    pub openers: Vec<Life>,
    /// There were more openers than fit.
    pub openers_overflowed: bool,
}

impl LockRecord {
    /// A lock nobody holds.
    pub fn unlocked(lock: LockNo, nonce: u64) -> Self {
        Self {
            lock,
            mode: Mode::Unlocked,
            version: 0,
            nonce,
            holders: Vec::new(),
            waiters: Vec::new(),
            openers: Vec::new(),
            openers_overflowed: false,
        }
    }
    /// A lock held exclusive from birth by `life`.
    pub fn born(lock: LockNo, life: Life, nonce: u64) -> Self {
        Self { mode: Mode::Exclusive, holders: vec![life], ..Self::unlocked(lock, nonce) }
    }
}
