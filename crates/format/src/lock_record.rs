//! The device lock's record: one sector, changed only by compare-and-write. docs/FORMAT.md
//! section 3, docs/LOCKING.md.
//!
//! A record is a head and an entry for each node that has to do with the lock: holder, waiter and
//! opener are roles of one entry. A node enters a record only without older lives of its slot
//! ([`LockRecord::check`]), so there are never more entries than the pool has node slots, and a
//! sector has room for all of them ([`nodes_max`]): nobody is ever turned away.
//!
//! Invariants (checked by `decode` and asserted before `encode`):
//! * `Exclusive` has exactly one holder, `Shared` and `Concurrent` at least one, `Unlocked` none;
//! * a node stands at most once among the holders, waiters and openers each, and everywhere in the
//!   same life;
//! * a waiter may also be a holder only when it asks to go from shared or concurrent to exclusive;
//! * a slot is below [`nodes_max`] of the sector.

use core::cmp::Ordering;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::crc::crc32c_with_hole;
use crate::units::{Incarnation, LockNo, NodeId};

/// The record's head as it stands on disk; `lives` entries ([`RawLockLife`]) follow it, then zeros to
/// the end of the sector.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawLockRecord {
    /// Always [`RawLockRecord::MAGIC`].
    pub magic: U32,
    /// Revision, 2.
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
    /// When contents were last changed under a concurrent hold, where the dinode does not say so yet:
    /// nanoseconds since 1970; 0: never.
    pub written: U64,
    /// Entries: first the waiters, first come first, then the others by slot.
    pub lives: U16,
    /// Waiters among them.
    pub waiters: U16,
    /// CRC-32C of the sector with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawLockRecord>() == 48);
const _: () = assert!(core::mem::offset_of!(RawLockRecord, crc) == 44);

/// What a node, in one of its lives, has to do with a lock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawLockLife {
    /// Bits 0 to 9: slot. Bit 10: it holds the lock. Bit 11: it gave the lock up while a program of
    /// its had the file open. Bits 12 and 13: the mode it waits for (1 shared, 2 exclusive, 3
    /// concurrent), or 0. Bits 14 and 15: zero.
    pub roles: U16,
    /// Incarnation of the slot.
    pub incarnation: U32,
}
const _: () = assert!(size_of::<RawLockLife>() == 6);

impl RawLockRecord {
    /// "BRLK".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRLK");
    /// Of the head and the entries' layout.
    pub const REVISION: u16 = 2;
    const CRC_AT: usize = core::mem::offset_of!(Self, crc);
}
impl RawLockLife {
    const SLOT: u16 = (1 << 10) - 1;
    const HOLDS: u16 = 1 << 10;
    const OPENER: u16 = 1 << 11;
    const WANTS: u32 = 12;
    const LEN: usize = size_of::<Self>();

    fn life(self) -> Life {
        Life {
            slot: NodeId(self.roles.get() & Self::SLOT),
            incarnation: Incarnation(self.incarnation.get()),
        }
    }
    /// The mode that it waits for, if the number is one.
    fn wants(self) -> Option<Mode> {
        Mode::from_u16(self.roles.get() >> Self::WANTS)
    }
    fn has(self, role: u16) -> bool {
        self.roles.get() & role != 0
    }
}

/// How many nodes a pool may have whose lock sectors have `sector` bytes: each of them fits in one
/// record. 77 for 512 bytes, 674 for 4,096.
pub const fn nodes_max(sector: usize) -> usize {
    let most = sector.saturating_sub(size_of::<RawLockRecord>()) / RawLockLife::LEN;
    if most > RawLockLife::SLOT as usize { RawLockLife::SLOT as usize } else { most }
}
const _: () = assert!(nodes_max(512) == 77 && nodes_max(4096) == 674);
const _: () = assert!(nodes_max(1 << 20) == RawLockLife::SLOT as usize);

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

/// For the log: slot and life with a point between, as `1.3`.
impl core::fmt::Display for Life {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.slot, self.incarnation.0)
    }
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
    /// Who holds it, by slot.
    pub holders: Vec<Life>,
    /// Who waits, first come first.
    pub waiters: Vec<Waiter>,
    /// Who gave it up with the file open, by slot.
    pub openers: Vec<Life>,
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
    /// The one holder other than `me`; `None`: there is none, or there are several.
    pub fn sole_other_holder(&self, me: Life) -> Option<Life> {
        let mut others = self.holders.iter().copied().filter(|life| *life != me);
        others.next().filter(|_| others.next().is_none())
    }
    /// Adds a holder. The mode is the caller's business.
    pub fn add_holder(&mut self, life: Life) {
        insert(&mut self.holders, life);
    }
    /// Adds an opener.
    pub fn add_opener(&mut self, life: Life) {
        insert(&mut self.openers, life);
    }
    /// Verifies the whole lock sector read from `lock`'s place. Only the one encoding that `encode`
    /// makes is accepted (unused bytes zero), so that an encoded record can stand for the bytes
    /// it was decoded from in a compare-and-write.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn decode(sector: &[u8], lock: LockNo) -> Result<Self, FormatError> {
        let at = lock.0;
        let bad = |field, value: u64| FormatError::BadField { what: Self::WHAT, at, field, value };
        let (raw, rest) = RawLockRecord::read_from_prefix(sector)
            .map_err(|_| FormatError::TooShort { what: Self::WHAT, len: sector.len() })?;
        if raw.magic.get() != RawLockRecord::MAGIC {
            let found = u64::from(raw.magic.get());
            return Err(FormatError::BadMagic { what: Self::WHAT, at, found });
        }
        let expected = crc32c_with_hole(sector, RawLockRecord::CRC_AT);
        let found = raw.crc.get();
        if found != expected {
            return Err(FormatError::ChecksumMismatch { what: Self::WHAT, at, expected, found });
        }
        if raw.lock.get() != at {
            let found = raw.lock.get();
            return Err(FormatError::WrongAddress { what: Self::WHAT, at, found });
        }
        if raw.revision.get() != RawLockRecord::REVISION {
            let (found, known) = (raw.revision.get().into(), RawLockRecord::REVISION.into());
            return Err(FormatError::OtherRevision { what: Self::WHAT, at, found, known });
        }
        let mode =
            Mode::from_u16(raw.mode.get()).ok_or_else(|| bad("mode", u64::from(raw.mode.get())))?;
        let (lives, tail) = usize::from(raw.lives.get())
            .checked_mul(RawLockLife::LEN)
            .and_then(|len| rest.split_at_checked(len))
            .ok_or_else(|| bad("lives", u64::from(raw.lives.get())))?;
        if tail.iter().any(|b| *b != 0) {
            return Err(bad("reserved", 1));
        }
        let lives = <[RawLockLife]>::ref_from_bytes(lives)
            .map_err(|_| bad("lives", u64::from(raw.lives.get())))?;
        let mut record = Self {
            mode,
            version: raw.version.get(),
            written: raw.written.get(),
            ..Self::unlocked(lock, raw.nonce.get())
        };
        record
            .take(lives, usize::from(raw.waiters.get()), nodes_max(sector.len()))
            .and_then(|()| record.check())
            .map_err(|field| bad(field, 0))?;
        Ok(record)
    }
    /// Takes in the entries of a record in a sector for `nodes` nodes.
    fn take(
        &mut self,
        lives: &[RawLockLife],
        waiters: usize,
        nodes: usize,
    ) -> Result<(), &'static str> {
        let (waiting, others) = lives.split_at_checked(waiters).ok_or("waiters")?;
        if !others.is_sorted_by(|a, b| a.life().slot < b.life().slot) {
            return Err("lives");
        }
        for raw in lives {
            let life = raw.life();
            if usize::from(life.slot.0) >= nodes {
                return Err("slot");
            }
            if raw.has(RawLockLife::HOLDS) {
                self.holders.push(life);
            }
            if raw.has(RawLockLife::OPENER) {
                self.openers.push(life);
            }
        }
        let waits = |raw: &RawLockLife| waiting.iter().any(|w| w.life().slot == raw.life().slot);
        if others.iter().any(waits) {
            return Err("lives");
        }
        for raw in waiting {
            let mode = raw.wants().ok_or("waiters")?;
            self.waiters.push(Waiter { life: raw.life(), mode });
        }
        let plain = |raw: &RawLockLife| raw.wants() == Some(Mode::Unlocked);
        let idle = |raw: &RawLockLife| raw.roles.get() & !RawLockLife::SLOT == 0;
        if !others.iter().all(|raw| plain(raw) && !idle(raw)) {
            return Err("lives");
        }
        self.holders.sort_unstable();
        self.openers.sort_unstable();
        Ok(())
    }
    /// Fills a whole lock sector with the record.
    ///
    /// # Panics
    /// If the record breaks an invariant of the module, or the sector is too short for it: our own
    /// mistakes, which must not reach the disk.
    pub fn encode(&self, sector: &mut [u8]) {
        assert_eq!(self.check(), Ok(()), "invalid lock record {self:?}");
        let mut raw = RawLockRecord::new_zeroed();
        raw.magic = U32::new(RawLockRecord::MAGIC);
        raw.revision = U16::new(RawLockRecord::REVISION);
        raw.mode = U16::new(self.mode as u16);
        raw.lock = U64::new(self.lock.0);
        raw.version = U64::new(self.version);
        raw.nonce = U64::new(self.nonce);
        raw.written = U64::new(self.written);
        let nodes = nodes_max(sector.len());
        let (head, rest) = sector.split_at_mut(size_of::<RawLockRecord>());
        rest.fill(0);
        let (mut lives, mut places) = (0, rest.chunks_exact_mut(RawLockLife::LEN));
        for entry in self.entries() {
            let slot = usize::from(entry.life().slot.0);
            let place = places.next().filter(|_| slot < nodes);
            place.expect("a sector has room for all nodes").copy_from_slice(entry.as_bytes());
            lives += 1;
        }
        raw.lives = U16::new(lives);
        raw.waiters = U16::new(u16::try_from(self.waiters.len()).unwrap_or(u16::MAX));
        head.copy_from_slice(raw.as_bytes());
        raw.crc = U32::new(crc32c_with_hole(sector, RawLockRecord::CRC_AT));
        let crc = RawLockRecord::CRC_AT..RawLockRecord::CRC_AT + size_of::<U32>();
        sector.get_mut(crc).unwrap_or_default().copy_from_slice(raw.crc.as_bytes());
    }
    /// The entries as they stand on disk.
    fn entries(&self) -> impl Iterator<Item = RawLockLife> + '_ {
        let entry = |life: Life, wants: u16| {
            let role = |list: &[Life], bit| if find(list, life.slot).is_some() { bit } else { 0 };
            let roles = role(&self.holders, RawLockLife::HOLDS)
                | role(&self.openers, RawLockLife::OPENER)
                | wants << RawLockLife::WANTS;
            RawLockLife {
                roles: U16::new(life.slot.0 | roles),
                incarnation: U32::new(life.incarnation.0),
            }
        };
        let waits = self.waiters.iter().map(move |w| entry(w.life, w.mode as u16));
        let mut waiting: Vec<Life> = self.waiters.iter().map(|w| w.life).collect();
        waiting.sort_unstable();
        let mut others: Vec<Life> = [&self.holders[..], &self.openers[..]].concat();
        others.retain(|l| find(&waiting, l.slot).is_none());
        others.sort_unstable();
        others.dedup();
        waits.chain(others.into_iter().map(move |life| entry(life, 0)))
    }
    /// Whether the invariants of the module hold, but for the sector's size.
    ///
    /// # Errors
    /// The field that breaks one.
    pub fn check(&self) -> Result<(), &'static str> {
        let holders_fit = match self.mode {
            Mode::Unlocked => self.holders.is_empty(),
            Mode::Shared | Mode::Concurrent => !self.holders.is_empty(),
            Mode::Exclusive => self.holders.len() == 1,
        };
        let by_slot = |list: &[Life]| list.is_sorted_by(|a, b| a.slot < b.slot);
        let same_life =
            |list: &[Life], life: Life| find(list, life.slot).is_none_or(|found| found == life);
        if !holders_fit || !by_slot(&self.holders) {
            return Err("holders");
        }
        if !by_slot(&self.openers) || !self.openers.iter().all(|l| same_life(&self.holders, *l)) {
            return Err("openers");
        }
        let mut waiting: Vec<Life> = self.waiters.iter().map(|w| w.life).collect();
        waiting.sort_unstable();
        let upgrade = |w: &Waiter| self.mode != Mode::Exclusive && w.mode == Mode::Exclusive;
        let waits = |w: &Waiter| {
            w.mode != Mode::Unlocked
                && same_life(&self.openers, w.life)
                && same_life(&self.holders, w.life)
                && (find(&self.holders, w.life.slot).is_none() || upgrade(w))
        };
        if !by_slot(&waiting) || !self.waiters.iter().all(waits) {
            return Err("waiters");
        }
        Ok(())
    }
}

/// The life of `slot` in a list that is sorted by slot.
fn find(list: &[Life], slot: NodeId) -> Option<Life> {
    let at = list.binary_search_by_key(&slot, |l| l.slot).ok()?;
    list.get(at).copied()
}

/// Puts `life` in its place in a list that is sorted by slot, unless it is there.
fn insert(list: &mut Vec<Life>, life: Life) {
    if let Err(at) = list.binary_search(&life) {
        list.insert(at, life);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden;

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
                Waiter { life: life(5, 1), mode: Mode::Shared },
                Waiter { life: life(1, 3), mode: Mode::Exclusive },
            ],
            openers: vec![life(2, 9), life(4, 4)],
            written: 0x0123_4567_89ab_cdef,
        }
    }
    /// All nodes that a sector has room for, in every role at once.
    fn crowd(sector: usize) -> LockRecord {
        let nodes = u16::try_from(nodes_max(sector)).unwrap();
        let lives = || (0..nodes).map(|n| life(n, u32::MAX - u32::from(n)));
        LockRecord {
            mode: Mode::Shared,
            holders: lives().collect(),
            waiters: lives().rev().map(|life| Waiter { life, mode: Mode::Exclusive }).collect(),
            openers: lives().collect(),
            ..LockRecord::unlocked(LockNo(9), 1)
        }
    }
    fn sealed(sector: &[u8]) -> Vec<u8> {
        let mut sector = sector.to_vec();
        let crc = crc32c_with_hole(&sector, RawLockRecord::CRC_AT);
        sector[RawLockRecord::CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
        sector
    }

    #[test]
    fn golden_bytes() {
        let mut sector = vec![0x5a; 512];
        sample().encode(&mut sector);
        golden::check("lock_record", &sector);
        let mut expected = vec![0_u8; 512];
        let mut put =
            |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"BRLK\x02\0\x01\0");
        put(8, &[0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0]);
        put(16, &[7]);
        put(24, &[0xef, 0xbe, 0xed, 0xfe]);
        put(32, &[0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
        put(40, &[4, 0, 2, 0]);
        put(48, &[5, 0x10, 1, 0, 0, 0, 1, 0x24, 3, 0, 0, 0]);
        put(60, &[2, 0x0c, 9, 0, 0, 0, 4, 0x08, 4, 0, 0, 0]);
        assert_eq!(sector, sealed(&expected));
        let mut crowded = vec![0x5a; 4096];
        crowd(4096).encode(&mut crowded);
        golden::check("lock_record_of_all_nodes", &crowded);
    }

    #[test]
    fn round_trip_in_both_sector_sizes() {
        for (len, record) in
            [(512, sample()), (4096, sample()), (512, crowd(512)), (4096, crowd(4096))]
        {
            let mut sector = vec![0x5a; len];
            record.encode(&mut sector);
            assert_eq!(LockRecord::decode(&sector, record.lock).as_ref(), Ok(&record));
            for at in 0..len {
                sector[at] ^= 1 << (at % 8);
                assert!(LockRecord::decode(&sector, record.lock).is_err(), "flip at {at}");
                sector[at] ^= 1 << (at % 8);
            }
        }
    }

    #[test]
    fn a_torn_record_is_known_by_its_checksum() {
        let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
        crowd(4096).encode(&mut old);
        LockRecord::unlocked(LockNo(9), 2).encode(&mut new);
        for cut in (512..4096).step_by(512) {
            let torn = [&new[..cut], &old[cut..]].concat();
            let found = LockRecord::decode(&torn, LockNo(9));
            assert!(matches!(found, Err(FormatError::ChecksumMismatch { .. })), "{cut}: {found:?}");
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
        assert_eq!(all.map(Mode::changes), [false, false, true, true]);
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
        let mut good = vec![0; 512];
        sample().encode(&mut good);
        // The entries: 0 waits, 1 waits and holds, 2 holds and is an opener, 3 is an opener.
        let roles = |nth: usize| 48 + nth * 6;
        let cases: [(&str, usize, u16); 15] = [
            ("mode", 6, 4),
            ("holders", 6, 2),
            ("lives", 40, 78),
            ("lives", 40, u16::MAX),
            ("reserved", 40, 3),
            ("lives", 40, 5),
            ("waiters", 42, 5),
            ("waiters", 42, 3),
            ("lives", 42, 1),
            ("waiters", roles(0), 5),
            ("waiters", roles(1), 0x1401),
            ("slot", roles(3), 0x084d),
            ("lives", roles(3), 0x0802),
            ("lives", roles(3), 4),
            ("lives", roles(3), 0x4804),
        ];
        let mut other = good.clone();
        other[4] = 1;
        let refused = LockRecord::decode(&sealed(&other), sample().lock);
        assert!(matches!(refused, Err(FormatError::OtherRevision { found: 1, .. })), "{refused:?}");
        for (field, at, value) in cases {
            let mut bytes = good.clone();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            match LockRecord::decode(&sealed(&bytes), sample().lock) {
                Err(FormatError::BadField { field: found, .. }) => assert_eq!(found, field, "{at}"),
                other => panic!("{field} at {at}: {other:?}"),
            }
        }
        // One slot in two lives.
        let mut bytes = good.clone();
        bytes[roles(0)..roles(0) + 2].copy_from_slice(&0x1004_u16.to_le_bytes());
        let found = LockRecord::decode(&sealed(&bytes), sample().lock);
        assert!(matches!(found, Err(FormatError::BadField { field: "lives", .. })), "{found:?}");
    }

    /// A life that waits and holds has one entry: what another encoding of a record says would never be
    /// equal to its bytes.
    #[test]
    fn one_slot_in_two_entries_is_refused() {
        let mut sector = vec![0; 512];
        LockRecord::unlocked(LockNo(9), 5).encode(&mut sector);
        let shared_two_lives_one_waiter = [(6, 1_u16), (40, 2), (42, 1)];
        let slot_4_twice = [(48, 4 | 9 << 10), (50, 1), (54, 4 | 2 << 10), (56, 1)];
        for (at, value) in shared_two_lives_one_waiter.into_iter().chain(slot_4_twice) {
            sector[at..at + 2].copy_from_slice(&u16::to_le_bytes(value));
        }
        let found = LockRecord::decode(&sealed(&sector), LockNo(9));
        assert!(matches!(found, Err(FormatError::BadField { field: "lives", .. })), "{found:?}");
    }

    proptest! {
        /// No bytes make it panic, and what it accepts it writes again byte for byte.
        #[test]
        fn whatever_is_accepted_has_one_encoding(
            lives in 0_u16..12,
            waiters in 0_u16..6,
            mode in 0_u16..4,
            entries in proptest::collection::vec((0_u16..8, 0_u16..16, 1_u32..3), 12),
        ) {
            let mut sector = vec![0; 512];
            LockRecord::unlocked(LockNo(9), 5).encode(&mut sector);
            for (at, value) in [(6, mode), (40, lives), (42, waiters)] {
                sector[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
            for (n, (slot, roles, life)) in entries.into_iter().take(lives.into()).enumerate() {
                let at = 48 + n * 6;
                sector[at..at + 2].copy_from_slice(&(slot | roles << 10).to_le_bytes());
                sector[at + 2..at + 6].copy_from_slice(&life.to_le_bytes());
            }
            let sector = sealed(&sector);
            if let Ok(record) = LockRecord::decode(&sector, LockNo(9)) {
                let mut again = vec![0x5a; 512];
                record.encode(&mut again);
                prop_assert_eq!(sector, again);
            }
        }
    }

    #[test]
    fn a_record_says_who_has_what() {
        let born = LockRecord::born(LockNo(9), life(1, 3), 5);
        assert_eq!(born.mode_of(life(1, 3)), Mode::Exclusive);
        assert_eq!(born.mode_of(life(1, 2)), Mode::Unlocked, "another life of the slot");
        assert_eq!(born.sole_other_holder(life(1, 3)), None);
        assert_eq!(born.sole_other_holder(life(2, 9)), Some(life(1, 3)));
        assert_eq!(sample().sole_other_holder(life(2, 9)), Some(life(1, 3)));
        assert_eq!(sample().sole_other_holder(life(5, 1)), None, "there are two");
        let mut record = sample();
        for again in [life(1, 3), life(0, 1), life(0, 1)] {
            record.add_holder(again);
        }
        assert_eq!(record.holders, [life(0, 1), life(1, 3), life(2, 9)]);
        record.openers.clear();
        for again in [life(4, 1), life(3, 2), life(4, 1)] {
            record.add_opener(again);
        }
        assert_eq!(record.openers, [life(3, 2), life(4, 1)]);
    }

    #[test]
    #[should_panic(expected = "a sector has room for all nodes")]
    fn a_slot_that_has_no_place_in_the_sector_is_not_written() {
        let slot = u16::try_from(nodes_max(512)).unwrap();
        LockRecord::born(LockNo(9), life(slot, 1), 5).encode(&mut [0; 512]);
    }

    #[test]
    fn openers_stand_in_the_order_of_their_slots() {
        let mut record = LockRecord::unlocked(LockNo(9), 5);
        record.openers = vec![life(2, 1), life(1, 1)];
        assert_eq!(record.check(), Err("openers"));
        record.openers.sort_unstable();
        assert_eq!(record.check(), Ok(()));
    }

    #[test]
    fn who_waits_for_nothing_is_refused() {
        let mut sector = vec![0; 512];
        sample().encode(&mut sector);
        // The first entry waits for SH: now for nothing.
        sector[48..50].copy_from_slice(&5_u16.to_le_bytes());
        let found = LockRecord::decode(&sealed(&sector), sample().lock);
        assert!(matches!(found, Err(FormatError::BadField { field: "waiters", .. })), "{found:?}");
    }
}
