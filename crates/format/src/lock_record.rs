//! The device lock's record: one sector, changed only by compare-and-write. docs/FORMAT.md
//! section 3, docs/LOCKING.md.
//!
//! Invariants (checked by `decode` and asserted before `encode`):
//! * `Exclusive` has exactly one holder, `Shared` and `Concurrent` at least one, `Unlocked` none;
//! * a node stands at most once among the holders and at most once among the waiters;
//! * a waiter may also be a holder only when it asks to go from shared or concurrent to exclusive.

use core::cmp::Ordering;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::crc::crc32c_with_hole;
use crate::units::{Incarnation, LockNo, NodeId};

/// A node, in one of its lives.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawHolder {
    /// Slot.
    pub slot: U16,
    /// For a waiter, the mode wanted (1 shared, 2 exclusive, 3 concurrent); else zero.
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
    /// 0 unlocked, 1 shared, 2 exclusive, 3 concurrent.
    pub mode: U16,
    /// The lock's number: own slot's first block.
    pub lock: U64,
    /// Counts the releases of a hold that changes what the lock protects (exclusive, concurrent): a
    /// cache kept from the last hold is good while it has not changed (GFS's lock counter).
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
    /// When contents were last changed under a concurrent hold, where the dinode does not say so yet:
    /// nanoseconds since 1970; 0: never.
    pub written: U64,
    /// Zero.
    pub reserved: [u8; 12],
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
    const CRC_AT: usize = core::mem::offset_of!(Self, crc);
}
impl RawHolder {
    fn life(self) -> Life {
        Life { slot: NodeId(self.slot.get()), incarnation: Incarnation(self.incarnation.get()) }
    }
}

/// How a lock is held. The order says which covers which: a hold serves for everything that is at
/// most it. `Shared` and `Concurrent` do not cover each other.
///
/// ```text
///            Exclusive
///            /       \
///        Shared   Concurrent
///            \       /
///            Unlocked
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u16)]
pub enum Mode {
    /// Not held.
    #[default]
    Unlocked = 0,
    /// Held beside other shared holders: to read, and to keep what was read.
    Shared = 1,
    /// Held alone: to change.
    Exclusive = 2,
    /// Held beside other concurrent holders: to read and overwrite contents where they stand, keeping
    /// none of them; metadata stay as they are. (Concurrent write of the VMS lock manager, deferred
    /// of GFS.)
    Concurrent = 3,
}
impl Mode {
    /// From the number on disk.
    pub const fn from_u16(v: u16) -> Option<Self> {
        match v {
            0 => Some(Self::Unlocked),
            1 => Some(Self::Shared),
            2 => Some(Self::Exclusive),
            3 => Some(Self::Concurrent),
            _ => None,
        }
    }
    /// A hold of this mode serves for `wanted`.
    pub fn covers(self, wanted: Self) -> bool {
        self >= wanted
    }
    /// The weakest mode that covers both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        match self.partial_cmp(&other) {
            Some(Ordering::Less) => other,
            Some(_) => self,
            None => Self::Exclusive,
        }
    }
    /// The strongest mode that both cover.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        match self.partial_cmp(&other) {
            Some(Ordering::Greater) => other,
            Some(_) => self,
            None => Self::Unlocked,
        }
    }
    /// The strongest mode in which another node may hold the lock beside this one.
    #[must_use]
    pub const fn beside(self) -> Self {
        match self {
            Self::Unlocked => Self::Exclusive,
            Self::Exclusive => Self::Unlocked,
            alike => alike,
        }
    }
    /// Whether its holders change what the lock protects.
    pub const fn changes(self) -> bool {
        matches!(self, Self::Exclusive | Self::Concurrent)
    }
}
impl PartialOrd for Mode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (a, b) if a == b => Some(Ordering::Equal),
            (Self::Unlocked, _) | (_, Self::Exclusive) => Some(Ordering::Less),
            (_, Self::Unlocked) | (Self::Exclusive, _) => Some(Ordering::Greater),
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
    /// Counts the releases of exclusive and concurrent holds.
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
    /// When contents were last changed under a concurrent hold, where the dinode does not say so yet:
    /// nanoseconds since 1970; 0: never.
    pub written: u64,
}

impl LockRecord {
    const WHAT: &str = "lock record";

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
            written: 0,
        }
    }
    /// A lock held exclusive from birth by `life`.
    pub fn born(lock: LockNo, life: Life, nonce: u64) -> Self {
        Self { mode: Mode::Exclusive, holders: vec![life], ..Self::unlocked(lock, nonce) }
    }
    /// What the record gives `life`.
    pub fn mode_of(&self, life: Life) -> Mode {
        if self.holders.contains(&life) { self.mode } else { Mode::Unlocked }
    }
    /// Verifies the lock sector read from `lock`'s place. Only the one encoding that `encode`
    /// makes is accepted (unused bytes zero), so that an encoded record can stand for the bytes
    /// it was decoded from in a compare-and-write.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn decode(sector: &[u8], lock: LockNo) -> Result<Self, FormatError> {
        let at = lock.0;
        let bad = |field, value: u64| FormatError::BadField { what: Self::WHAT, at, field, value };
        let (raw, tail) = RawLockRecord::read_from_prefix(sector)
            .map_err(|_| FormatError::TooShort { what: Self::WHAT, len: sector.len() })?;
        if raw.magic.get() != RawLockRecord::MAGIC {
            let found = u64::from(raw.magic.get());
            return Err(FormatError::BadMagic { what: Self::WHAT, at, found });
        }
        let expected = crc32c_with_hole(raw.as_bytes(), RawLockRecord::CRC_AT);
        let found = raw.crc.get();
        if found != expected {
            return Err(FormatError::ChecksumMismatch { what: Self::WHAT, at, expected, found });
        }
        if raw.lock.get() != at {
            let found = raw.lock.get();
            return Err(FormatError::WrongAddress { what: Self::WHAT, at, found });
        }
        if raw.revision.get() != 1 {
            return Err(bad("revision", u64::from(raw.revision.get())));
        }
        if raw.reserved != [0; 12] || tail.iter().any(|b| *b != 0) {
            return Err(bad("reserved", 1));
        }
        let mode =
            Mode::from_u16(raw.mode.get()).ok_or_else(|| bad("mode", u64::from(raw.mode.get())))?;
        let flags = raw.flags.get();
        if flags > 1 {
            return Err(bad("flags", u64::from(flags)));
        }
        let plain = |list: &[RawHolder], count: U16, field| {
            let used = used(list, count).ok_or_else(|| bad(field, u64::from(count.get())))?;
            if used.iter().any(|h| h.mode.get() != 0) {
                return Err(bad(field, 0));
            }
            Ok(used.iter().copied().map(RawHolder::life).collect::<Vec<_>>())
        };
        let waiting = used(&raw.waiters, raw.waiter_count)
            .ok_or_else(|| bad("waiters", u64::from(raw.waiter_count.get())))?;
        let waiters = waiting
            .iter()
            .map(|w| Some(Waiter { life: w.life(), mode: Mode::from_u16(w.mode.get())? }))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| bad("waiters", 0))?;
        let record = Self {
            lock,
            mode,
            version: raw.version.get(),
            nonce: raw.nonce.get(),
            holders: plain(&raw.holders, raw.holder_count, "holders")?,
            waiters,
            openers: plain(&raw.openers, raw.opener_count, "openers")?,
            openers_overflowed: flags & 1 != 0,
            written: raw.written.get(),
        };
        record.check().map_err(|field| bad(field, 0))?;
        Ok(record)
    }
    /// Fills a whole lock sector with the record.
    ///
    /// # Panics
    /// If the record breaks an invariant of the module, or the sector is shorter than
    /// [`RawLockRecord::LEN`]: our own mistakes, which must not reach the disk.
    pub fn encode(&self, sector: &mut [u8]) {
        assert_eq!(self.check(), Ok(()), "invalid lock record {self:?}");
        let mut raw = RawLockRecord::new_zeroed();
        raw.magic = U32::new(RawLockRecord::MAGIC);
        raw.revision = U16::new(1);
        raw.mode = U16::new(self.mode as u16);
        raw.lock = U64::new(self.lock.0);
        raw.version = U64::new(self.version);
        raw.nonce = U64::new(self.nonce);
        raw.holder_count = put(&mut raw.holders, self.holders.iter().map(|l| (*l, Mode::Unlocked)));
        raw.waiter_count = put(&mut raw.waiters, self.waiters.iter().map(|w| (w.life, w.mode)));
        raw.opener_count = put(&mut raw.openers, self.openers.iter().map(|l| (*l, Mode::Unlocked)));
        raw.flags = U16::new(u16::from(self.openers_overflowed));
        raw.written = U64::new(self.written);
        raw.crc = U32::new(crc32c_with_hole(raw.as_bytes(), RawLockRecord::CRC_AT));
        let (head, tail) = sector.split_at_mut(RawLockRecord::LEN);
        head.copy_from_slice(raw.as_bytes());
        tail.fill(0);
    }
    /// Whether the invariants of the module hold.
    ///
    /// # Errors
    /// The field that breaks one.
    pub fn check(&self) -> Result<(), &'static str> {
        let holders_fit = match self.mode {
            Mode::Unlocked => self.holders.is_empty(),
            Mode::Shared | Mode::Concurrent => {
                (1..=RawLockRecord::HOLDERS).contains(&self.holders.len())
            }
            Mode::Exclusive => self.holders.len() == 1,
        };
        if !holders_fit || !distinct(&self.holders) {
            return Err("holders");
        }
        if self.openers.len() > RawLockRecord::OPENERS || !distinct(&self.openers) {
            return Err("openers");
        }
        let upgrade = |w: &Waiter| self.mode != Mode::Exclusive && w.mode == Mode::Exclusive;
        let waits = |w: &Waiter| {
            w.mode != Mode::Unlocked && (!self.holders.contains(&w.life) || upgrade(w))
        };
        let lives: Vec<Life> = self.waiters.iter().map(|w| w.life).collect();
        if lives.len() > RawLockRecord::WAITERS
            || !distinct(&lives)
            || !self.waiters.iter().all(waits)
        {
            return Err("waiters");
        }
        Ok(())
    }
}

/// No slot stands twice: a new life removes the older ones of its slot when it enters.
fn distinct(lives: &[Life]) -> bool {
    lives.iter().enumerate().all(|(i, a)| !lives.iter().skip(i + 1).any(|b| a.slot == b.slot))
}

/// The entries in use, if there are as many as `count` says and the others are zero.
fn used(list: &[RawHolder], count: U16) -> Option<&[RawHolder]> {
    let (used, rest) = list.split_at_checked(usize::from(count.get()))?;
    rest.iter().all(|h| *h == RawHolder::new_zeroed()).then_some(used)
}

/// Fills the first entries of `list`; how many.
fn put(list: &mut [RawHolder], lives: impl Iterator<Item = (Life, Mode)>) -> U16 {
    let mut count = 0;
    for (place, (life, mode)) in list.iter_mut().zip(lives) {
        *place = RawHolder {
            slot: U16::new(life.slot.0),
            mode: U16::new(mode as u16),
            incarnation: U32::new(life.incarnation.0),
        };
        count += 1;
    }
    U16::new(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(slot: u16, incarnation: u32) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) }
    }
    fn sample() -> LockRecord {
        LockRecord {
            lock: LockNo(0x1122_3344_5566),
            mode: Mode::Shared,
            version: 7,
            nonce: 0xfeed_beef,
            holders: vec![life(1, 3), life(2, 9)],
            waiters: vec![
                Waiter { life: life(1, 3), mode: Mode::Exclusive },
                Waiter { life: life(5, 1), mode: Mode::Shared },
            ],
            openers: vec![life(4, 4)],
            openers_overflowed: true,
            written: 0x0123_4567_89ab_cdef,
        }
    }
    fn sealed(mut raw: RawLockRecord) -> Vec<u8> {
        raw.crc = U32::new(crc32c_with_hole(raw.as_bytes(), RawLockRecord::CRC_AT));
        raw.as_bytes().to_vec()
    }

    #[test]
    fn golden_bytes() {
        let mut sector = vec![0x5a; 512];
        sample().encode(&mut sector);
        let mut golden = vec![0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| golden[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"BRLK\x01\0\x01\0");
        put(8, &[0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0]);
        put(16, &[7]);
        put(24, &[0xef, 0xbe, 0xed, 0xfe]);
        put(32, &[2, 0, 2, 0, 1, 0, 1, 0]);
        put(40, &[1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0]);
        put(264, &[1, 0, 2, 0, 3, 0, 0, 0, 5, 0, 1, 0, 1, 0, 0, 0]);
        put(360, &[4, 0, 0, 0, 4, 0, 0, 0]);
        put(488, &[0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
        put(508, &0x2f50_31ef_u32.to_le_bytes());
        assert_eq!(sector, golden);
    }

    #[test]
    fn round_trip_in_both_sector_sizes() {
        for len in [512, 4096] {
            let mut sector = vec![0x5a; len];
            sample().encode(&mut sector);
            assert_eq!(LockRecord::decode(&sector, sample().lock), Ok(sample()));
            for at in 0..len {
                sector[at] ^= 1 << (at % 8);
                assert!(LockRecord::decode(&sector, sample().lock).is_err(), "flip at {at}");
                sector[at] ^= 1 << (at % 8);
            }
        }
    }

    #[test]
    fn modes_are_a_lattice() {
        use Mode::{Concurrent as C, Exclusive as E, Shared as S, Unlocked as U};
        let all = [U, S, C, E];
        for a in all {
            assert!(E.covers(a) && a.covers(U) && a.covers(a));
            assert_eq!(Mode::from_u16(a as u16), Some(a));
            for b in all {
                assert_eq!((a.join(b), a.meet(b)), (b.join(a), b.meet(a)));
                assert!(a.join(b).covers(a) && a.covers(a.meet(b)));
                assert_eq!(a.covers(b), a.join(b) == a);
                assert_eq!(a.covers(b), a.meet(b) == b);
                // Who may stand beside `a` may have `a` beside it.
                assert_eq!(a.beside().covers(b), b.beside().covers(a), "{a:?} {b:?}");
            }
        }
        assert!(!S.covers(C) && !C.covers(S));
        assert_eq!((S.join(C), S.meet(C)), (E, U));
    }

    #[test]
    fn short_and_misplaced_records_are_refused() {
        let mut sector = vec![0; 512];
        sample().encode(&mut sector);
        for len in 0..512 {
            assert!(LockRecord::decode(&sector[..len], sample().lock).is_err());
        }
        assert!(matches!(
            LockRecord::decode(&sector, LockNo(1)),
            Err(FormatError::WrongAddress { .. })
        ));
    }

    #[test]
    fn sealed_nonsense_is_refused_by_field() {
        let mut sector = vec![0; 512];
        sample().encode(&mut sector);
        let good = RawLockRecord::read_from_bytes(&sector).unwrap();
        let cases: [(&str, fn(&mut RawLockRecord)); 12] = [
            ("revision", |r| r.revision = U16::new(2)),
            ("mode", |r| r.mode = U16::new(4)),
            ("holders", |r| r.mode = U16::new(2)),
            ("holders", |r| r.holder_count = U16::new(29)),
            ("holders", |r| r.holders[0].mode = U16::new(1)),
            ("holders", |r| r.holders[1].slot = U16::new(1)),
            ("holders", |r| r.holder_count = U16::new(1)),
            ("waiters", |r| r.waiters[1].mode = U16::new(0)),
            ("waiters", |r| r.waiters[0].mode = U16::new(1)),
            ("waiters", |r| r.waiter_count = U16::new(u16::MAX)),
            ("openers", |r| r.opener_count = U16::new(17)),
            ("flags", |r| r.flags = U16::new(2)),
        ];
        for (field, spoil) in cases {
            let mut raw = good;
            spoil(&mut raw);
            match LockRecord::decode(&sealed(raw), sample().lock) {
                Err(FormatError::BadField { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{field}: {other:?}"),
            }
        }
    }
}
