//! A node's redundancy log: what a crash may have left unequal, and how to make it whole.
//! docs/FORMAT.md section 1.5.
//!
//! It lies on the members of pools with mirrors or parity, between the labels and the data area:
//! ```text
//!  member:  1 MiB                    + 2 MiB                     data_start
//!           | log of slot 0          | log of slot 1 | ...       | data area ...
//!  log:     | 16 intent sectors | 2 redo headers | 14 missed sectors | redo ring |
//!           0                   64 KiB           72 KiB              128 KiB     2 MiB
//! ```
//! *Intents*: one bit for each region of the pool's logical bytes that is being written: set,
//! durably, before the first write, cleared some time after the last one is durable. *Redo*: the new
//! bytes, parity included, of every write that changes a part of a parity row, durable before any
//! of them is written in place. *Missed*: one bit for each region that was written while a member was
//! offline; kept until none is. Intents and redo are written alike to as many members as the pool can
//! lose, and one more; missed sectors to every member in sync. All are read from every member in sync.
//!
//! All sectors are 4 KiB, checked whole.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::crc32c_with_hole;
use crate::units::{ByteOffset, Bytes, Incarnation, NodeId};

/// Regions that are being written, or, in a missed sector, that were written while a member was offline.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawIntents {
    /// "BRWI"; in a missed sector "BRWM".
    pub magic: U32,
    /// CRC-32C of the sector with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// Which of the slot's intent, or missed, sectors.
    pub sector: U16,
    /// The writer's slot.
    pub slot: U16,
    /// log2 of a region's bytes.
    pub region_shift: U32,
    /// Counted up with every write of the sector.
    pub sequence: U64,
    /// Zero.
    pub reserved: [u8; 24],
    /// Bit `b` of byte `i`: region `sector * BITS + 8 i + b`.
    pub bits: [u8; 4032],
}
const _: () = assert!(size_of::<RawIntents>() == 4096);
const _: () = assert!(core::mem::offset_of!(RawIntents, bits) == 64);

impl RawIntents {
    /// "BRWI".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRWI");
    /// Where the checksum stands.
    pub const CRC_AT: usize = core::mem::offset_of!(Self, crc);
    /// Regions in one sector.
    pub const BITS: u64 = 4032 * 8;
    /// Sectors in a log.
    pub const SECTORS: u16 = 16;
    /// Smallest region.
    pub const REGION_MIN: Bytes = Bytes(16 << 20);

    /// "BRWM": the regions of a missed sector were written while a member was offline.
    pub const MISSED_MAGIC: u32 = u32::from_le_bytes(*b"BRWM");
    /// Missed sectors in a log.
    pub const MISSED_SECTORS: u16 = 14;

    /// log2 of a region's bytes in a pool of `size` bytes if `sectors` have a bit for each region: as small as the bits
    /// allow.
    pub const fn shift_for(size: Bytes, sectors: u16) -> u32 {
        let mut shift = Self::REGION_MIN.0.trailing_zeros();
        while size.0 >> shift >= Self::BITS * sectors as u64 {
            shift += 1;
        }
        shift
    }
}

/// Where a redo ring begins (two copies, written in turn; the higher generation wins).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRedoHeader {
    /// "BRRH".
    pub magic: U32,
    /// CRC-32C of the 4 KiB sector with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// Counted up with every write.
    pub generation: U64,
    /// Sequence number of the oldest record that must be repeated.
    pub tail_sequence: U64,
    /// Its place: byte offset in the ring.
    pub tail_offset: U64,
    /// The writer's slot.
    pub slot: U16,
    /// Zero.
    pub reserved: [u8; 14],
}
const _: () = assert!(size_of::<RawRedoHeader>() == 64);

impl RawRedoHeader {
    /// "BRRH".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRRH");
    /// Where the checksum stands.
    pub const CRC_AT: usize = core::mem::offset_of!(Self, crc);
}

/// Head of a redo record: then `parts` [`RawRedoPart`]s, then their bytes, one after the other,
/// then zeros to a multiple of 4 KiB. A record never wraps; one with no parts sends the reader to
/// the start of the ring.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRedoRecord {
    /// "BRRR".
    pub magic: U32,
    /// CRC-32C of the record with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// One more than the record before.
    pub sequence: U64,
    /// Bytes in the record, a multiple of 4 KiB.
    pub len: U32,
    /// Parts.
    pub parts: U32,
    /// The writer's slot.
    pub slot: U16,
    /// Zero.
    pub reserved: [u8; 22],
}
const _: () = assert!(size_of::<RawRedoRecord>() == 64);

impl RawRedoRecord {
    /// "BRRR".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRRR");
    /// Where the checksum stands.
    pub const CRC_AT: usize = core::mem::offset_of!(Self, crc);
}

/// Bytes that go to a column of a group.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRedoPart {
    /// The group: mirror and parity nodes, counted in the order in which the segments reach them.
    pub group: U16,
    /// The column.
    pub column: U16,
    /// Bytes.
    pub len: U32,
    /// Offset in the column.
    pub offset: U64,
}
const _: () = assert!(size_of::<RawRedoPart>() == 16);

/// Who changes the labels just now, while several nodes use the pool. One lock sector on each
/// member, at [`RawClaim::AT`], changed by compare-and-write only; zero behind this. What does not
/// verify, or is another pool's, claims nothing.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawClaim {
    /// "BRCL".
    pub magic: U32,
    /// CRC-32C of the 64 bytes with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// The highest number that an epoch was given, in force or only tried, as its writer knew.
    pub epoch: U64,
    /// Fresh in every write.
    pub nonce: U64,
    /// The claimer's incarnation.
    pub incarnation: U32,
    /// The claimer's slot.
    pub slot: U16,
    /// 0 free, 1 claimed.
    pub state: U16,
    /// Zero.
    pub reserved: [u8; 16],
}
const _: () = assert!(size_of::<RawClaim>() == 64);

impl RawClaim {
    /// "BRCL".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRCL");
    /// Where it stands on a member.
    pub const AT: ByteOffset = ByteOffset(192 << 10);

    /// The sector of `len` bytes that says that `life` claims a change; `None`: nobody does. `epoch`:
    /// the highest number that an epoch was given.
    pub fn sector(
        pool: [u8; 16],
        epoch: u64,
        life: Option<crate::lock_record::Life>,
        nonce: u64,
        len: usize,
    ) -> Vec<u8> {
        let mut raw = Self::new_zeroed();
        raw.magic.set(Self::MAGIC);
        raw.pool_uuid = pool;
        raw.epoch.set(epoch);
        raw.nonce.set(nonce);
        if let Some(life) = life {
            raw.state.set(1);
            raw.slot.set(life.slot.0);
            raw.incarnation.set(life.incarnation.0);
        }
        raw.crc.set(crc32c_with_hole(raw.as_bytes(), core::mem::offset_of!(Self, crc)));
        let mut sector = vec![0; len.max(size_of::<Self>())];
        if let Some(to) = sector.get_mut(..size_of::<Self>()) {
            to.copy_from_slice(raw.as_bytes());
        }
        sector
    }

    /// Who claims the change of `pool`, by a sector that was read.
    pub fn claimer(sector: &[u8], pool: [u8; 16]) -> Option<crate::lock_record::Life> {
        let raw = Self::of(sector, pool).filter(|raw| raw.state.get() == 1)?;
        Some(crate::lock_record::Life {
            slot: NodeId(raw.slot.get()),
            incarnation: Incarnation(raw.incarnation.get()),
        })
    }

    /// The highest number that an epoch of `pool` was given, by a sector that was read; 0: it says
    /// nothing of it.
    pub fn highest(sector: &[u8], pool: [u8; 16]) -> u64 {
        Self::of(sector, pool).map_or(0, |raw| raw.epoch.get())
    }

    fn of(sector: &[u8], pool: [u8; 16]) -> Option<Self> {
        let (raw, _) = Self::read_from_prefix(sector).ok()?;
        let crc = crc32c_with_hole(raw.as_bytes(), core::mem::offset_of!(Self, crc));
        (raw.magic.get() == Self::MAGIC && raw.crc.get() == crc && raw.pool_uuid == pool)
            .then_some(raw)
    }
}

/// How often a node slot has counted what its nodes did: one on each member for each slot, in a sector
/// of 4 KiB at [`RawEventCount::at`], zero behind this. Only the node that has the slot writes it. What
/// is of another pool, member or state says nothing.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawEventCount {
    /// "BREV".
    pub magic: U32,
    /// CRC-32C of the 64 bytes with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// The member.
    pub member_uuid: [u8; 16],
    /// The member's `state_epoch`: what was counted before the member got its state says nothing.
    pub state_epoch: U64,
    /// The count.
    pub count: U64,
    /// The writer's incarnation, for people.
    pub incarnation: U32,
    /// The writer's slot.
    pub slot: U16,
    /// Zero.
    pub reserved: [u8; 2],
}
const _: () = assert!(size_of::<RawEventCount>() == 64);

impl RawEventCount {
    /// "BREV".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BREV");
    /// Where slot 0's stands on a member.
    pub const AT: ByteOffset = ByteOffset(256 << 10);
    /// Bytes for each slot: the largest sector there is.
    pub const SECTOR: usize = 4096;
    /// Slots that have one: as many as fit before the data area. Later slots are not counted.
    pub const SLOTS: u16 = 192;
    /// No node counts this far: a higher number is damage.
    pub const HIGHEST: u64 = 1 << 62;

    /// Where a slot's stands on a member; `None`: the slot has none.
    pub fn at(slot: u16) -> Option<ByteOffset> {
        (slot < Self::SLOTS).then(|| ByteOffset(Self::AT.0 + u64::from(slot) * 4096))
    }

    /// The count of `life`'s slot for the member `uuid` of `pool`, which has its state since
    /// `state_epoch`.
    pub fn new(
        (pool, uuid, state_epoch): ([u8; 16], [u8; 16], u64),
        life: crate::lock_record::Life,
        count: u64,
    ) -> Self {
        let mut raw = Self::new_zeroed();
        raw.magic.set(Self::MAGIC);
        raw.pool_uuid = pool;
        raw.member_uuid = uuid;
        raw.state_epoch.set(state_epoch);
        raw.count.set(count);
        raw.incarnation.set(life.incarnation.0);
        raw.slot.set(life.slot.0);
        raw.crc.set(crc32c_with_hole(raw.as_bytes(), core::mem::offset_of!(Self, crc)));
        raw
    }

    /// What a sector says of that slot and member.
    pub fn said(
        sector: &[u8],
        (pool, uuid, state_epoch): ([u8; 16], [u8; 16], u64),
        slot: u16,
    ) -> EventCount {
        let Ok((raw, _)) = Self::read_from_prefix(sector) else { return EventCount::Damaged };
        if raw.as_bytes().iter().all(|b| *b == 0) {
            return EventCount::Nothing;
        }
        let crc = crc32c_with_hole(raw.as_bytes(), core::mem::offset_of!(Self, crc));
        let good = raw.magic.get() == Self::MAGIC && raw.crc.get() == crc;
        if !good || raw.slot.get() != slot || raw.count.get() > Self::HIGHEST {
            return EventCount::Damaged;
        }
        let of = (raw.pool_uuid, raw.member_uuid, raw.state_epoch.get());
        if of == (pool, uuid, state_epoch) {
            EventCount::Count(raw.count.get())
        } else {
            EventCount::Nothing
        }
    }
}

/// What stands in a node slot's place for its event count, on one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventCount {
    /// The slot has not counted since the member got its state.
    Nothing,
    /// What the slot has counted cannot be known.
    Damaged,
    /// The count.
    Count(u64),
}

/// Where the parts of a slot's log lie on a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// Device offset of the log.
    pub at: ByteOffset,
}

impl LogPlace {
    /// Bytes of one slot's log.
    pub const LEN: Bytes = Bytes(2 << 20);
    /// Bytes in a sector.
    pub const SECTOR: usize = 4096;
    /// Bytes of the ring.
    pub const RING: u64 = Self::LEN.0 - (128 << 10);

    /// The log of `slot`, which has one if `data_start` leaves room.
    pub const fn of_slot(slot: u16, data_start: ByteOffset) -> Option<Self> {
        let at = crate::label::Label::DATA_AT.0 + slot as u64 * Self::LEN.0;
        if at + Self::LEN.0 > data_start.0 {
            return None;
        }
        Some(Self { at: ByteOffset(at) })
    }

    /// Slots that have a log where the data area begins at `data_start`.
    pub const fn slots(data_start: ByteOffset) -> u64 {
        (data_start.0 - crate::label::Label::DATA_AT.0) / Self::LEN.0
    }

    /// Intent sector `n`.
    pub const fn intents(&self, n: u16) -> ByteOffset {
        ByteOffset(self.at.0 + n as u64 * Self::SECTOR as u64)
    }

    /// Missed sector `n`.
    pub const fn missed(&self, n: u16) -> ByteOffset {
        ByteOffset(self.at.0 + (72 << 10) + n as u64 * Self::SECTOR as u64)
    }

    /// Redo header `copy`, 0 or 1.
    pub const fn redo_header(&self, copy: u64) -> ByteOffset {
        ByteOffset(self.at.0 + (64 << 10) + copy % 2 * Self::SECTOR as u64)
    }

    /// Byte `offset` of the ring.
    pub const fn ring(&self, offset: u64) -> ByteOffset {
        ByteOffset(self.at.0 + (128 << 10) + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_grow_with_the_pool() {
        let shift = |size| RawIntents::shift_for(Bytes(size), RawIntents::SECTORS);
        let count = |size: u64| size >> shift(size);
        assert_eq!(shift(1 << 40), 24);
        for shift in 24..63 {
            assert!(count((1 << shift) + 12345) < RawIntents::BITS * 16);
        }
    }

    #[test]
    fn a_claim_names_its_life_and_its_pool() {
        let life = crate::lock_record::Life { slot: NodeId(3), incarnation: Incarnation(9) };
        let mut sector = RawClaim::sector([7; 16], 4, Some(life), 1, 512);
        assert_eq!(RawClaim::claimer(&sector, [7; 16]), Some(life));
        assert_eq!(RawClaim::claimer(&sector, [8; 16]), None);
        assert_eq!(RawClaim::claimer(&RawClaim::sector([7; 16], 4, None, 2, 512), [7; 16]), None);
        sector[40] ^= 1;
        assert_eq!(RawClaim::claimer(&sector, [7; 16]), None);
        assert_eq!(RawClaim::claimer(&[], [7; 16]), None);
        let free = RawClaim::sector([7; 16], 4, None, 2, 512);
        assert_eq!(RawClaim::highest(&free, [7; 16]), 4);
        assert_eq!((RawClaim::highest(&free, [8; 16]), RawClaim::highest(&[], [7; 16])), (0, 0));
    }

    #[test]
    fn logs_fit_before_the_data() {
        let mib = |n: u64| ByteOffset(n << 20);
        assert_eq!(LogPlace::of_slot(0, mib(1)), None);
        assert_eq!(LogPlace::of_slot(0, mib(2)), None);
        assert_eq!(LogPlace::of_slot(3, mib(9)).map(|p| p.at), Some(mib(7)));
        assert_eq!(LogPlace::of_slot(4, mib(9)), None);
        assert_eq!(LogPlace::slots(mib(9)), 4);
        let place = LogPlace::of_slot(1, mib(9)).expect("it fits");
        assert_eq!(place.missed(0), place.redo_header(1) + Bytes::from(LogPlace::SECTOR));
        assert_eq!(place.missed(RawIntents::MISSED_SECTORS), place.ring(0));
        assert_eq!(place.ring(LogPlace::RING), mib(5));
        let kib = |n: u64| ByteOffset((3 << 20) + (n << 10));
        assert_eq!((place.intents(0), place.intents(15)), (kib(0), kib(60)));
        assert_eq!([0, 1, 2, 3].map(|n| place.redo_header(n)), [64, 68, 64, 68].map(kib));
        assert_eq!(place.ring(0), kib(128));
    }

    #[test]
    fn an_event_count_speaks_of_its_own_member_state_and_slot_only() {
        let life = crate::lock_record::Life { slot: NodeId(3), incarnation: Incarnation(9) };
        let of = ([7; 16], [8; 16], 5);
        let mut sector = vec![0; RawEventCount::SECTOR];
        assert_eq!(RawEventCount::said(&sector, of, 3), EventCount::Nothing);
        sector[..64].copy_from_slice(RawEventCount::new(of, life, 12).as_bytes());
        assert_eq!(RawEventCount::said(&sector, of, 3), EventCount::Count(12));
        assert_eq!(RawEventCount::said(&sector, of, 2), EventCount::Damaged);
        for other in [([6; 16], [8; 16], 5), ([7; 16], [6; 16], 5), ([7; 16], [8; 16], 6)] {
            assert_eq!(RawEventCount::said(&sector, other, 3), EventCount::Nothing);
        }
        for bit in 0..64 * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RawEventCount::said(&sector, of, 3), EventCount::Damaged, "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(RawEventCount::said(&[], of, 3), EventCount::Damaged);
        for (count, said) in [
            (RawEventCount::HIGHEST, EventCount::Count(RawEventCount::HIGHEST)),
            (RawEventCount::HIGHEST + 1, EventCount::Damaged),
            (u64::MAX, EventCount::Damaged),
        ] {
            sector[..64].copy_from_slice(RawEventCount::new(of, life, count).as_bytes());
            assert_eq!(RawEventCount::said(&sector, of, 3), said);
        }
        assert_eq!(RawEventCount::at(0), Some(ByteOffset(256 << 10)));
        let last = RawEventCount::at(RawEventCount::SLOTS - 1).unwrap();
        assert_eq!(last.0 + 4096, crate::label::Label::DATA_AT.0);
        assert_eq!(RawEventCount::at(RawEventCount::SLOTS), None);
    }
}
