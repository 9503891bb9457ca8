//! Which regions of the pool are being written, or were while a member was offline.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_device::AlignedBuf;
use braid_format::crc::crc32c_with_hole;
use braid_format::redundancy::{LogPlace, RawIntents};
use braid_format::{ByteOffset, Bytes};
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::replicas::{NUMBERS, Reach, Sector, store};
use crate::error::PoolError;
use crate::identity::has_small_regions;
use crate::topology::{Lost, Topology};

/// Bits, one for each region.
#[derive(Debug)]
struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new(regions: u64) -> Self {
        let words = Bytes(regions.div_ceil(64)).to_usize();
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
    fn word(&self, region: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(Bytes(region / 64).to_usize())?, 1 << (region % 64)))
    }
    fn get(&self, region: u64) -> bool {
        self.word(region).is_some_and(|(w, bit)| w.load(Ordering::Acquire) & bit != 0)
    }
    fn set(&self, region: u64) {
        if let Some((w, bit)) = self.word(region)
            && w.load(Ordering::Relaxed) & bit == 0
        {
            w.fetch_or(bit, Ordering::AcqRel);
        }
    }
}

/// log2 of the bytes of a small region, in simulations.
const SIMULATED_SHIFT: u32 = 16;

/// What regions are noted for, and so where in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They are being written: a crash may leave them unequal.
    Intent,
    /// They were written while a member was offline, which lacks that.
    Missed,
}

impl Kind {
    const fn magic(self) -> u32 {
        match self {
            Self::Intent => RawIntents::MAGIC,
            Self::Missed => RawIntents::MISSED_MAGIC,
        }
    }
    /// Sectors in a log.
    pub const fn sectors(self) -> u16 {
        match self {
            Self::Intent => RawIntents::SECTORS,
            Self::Missed => RawIntents::MISSED_SECTORS,
        }
    }
    /// log2 of a region's bytes in a pool of `size` bytes.
    pub fn shift(self, size: Bytes) -> u32 {
        if has_small_regions() {
            return SIMULATED_SHIFT;
        }
        RawIntents::shift_for(size, self.sectors())
    }
    /// Where sector `n` is.
    pub const fn at(self, place: LogPlace, n: u16) -> ByteOffset {
        match self {
            Self::Intent => place.intents(n),
            Self::Missed => place.missed(n),
        }
    }
}

/// The noted regions of this node.
///
/// [`Intents::note`] runs under the topology's read lock, [`Intents::clean`] under its write lock:
/// no region is forgotten while a write to it is under way.
#[derive(Debug)]
pub(crate) struct Intents {
    kind: Kind,
    shift: u32,
    /// Noted on the devices.
    noted: Bits,
    /// Written since the last cleaning.
    touched: Bits,
    /// Sequence number of each sector's last write.
    sectors: Mutex<Vec<u64>>,
    /// On the devices regions still go by the numbers that they had in a smaller pool.
    renumbered: AtomicBool,
    /// What is noted here may not stand on all devices where it should: nothing counts as noted before it does.
    unwritten: AtomicBool,
}

impl Intents {
    /// None noted, in a pool of `size` bytes. `sequence`: higher than in any sector on the devices,
    /// of which the first `used` are not empty.
    pub fn new(kind: Kind, size: Bytes, sequence: u64, used: u16) -> Self {
        let shift = kind.shift(size);
        let regions = (size.0 >> shift) + 1;
        let sectors = Bytes(regions.div_ceil(RawIntents::BITS)).to_usize().max(used.into());
        Self {
            kind,
            shift,
            noted: Bits::new(regions),
            touched: Bits::new(regions),
            sectors: Mutex::new(vec![sequence; sectors]),
            renumbered: AtomicBool::new(false),
            unwritten: AtomicBool::new(false),
        }
    }

    /// The same regions noted, as regions of a pool of `size` bytes, which is larger. No request is
    /// under way.
    pub fn resized(&self, size: Bytes) -> Self {
        let sequences = self.sectors.lock();
        let used = u16::try_from(sequences.len()).unwrap_or(self.kind.sectors());
        // Sectors that were written are not left as they stand.
        let new = Self::new(self.kind, size, sequences.iter().max().copied().unwrap_or(0), used);
        for (from, to) in [(&self.noted, &new.noted), (&self.touched, &new.touched)] {
            let regions = (0..from.0.len() as u64 * 64).filter(|r| from.get(*r));
            regions.for_each(|r| to.set(r << self.shift >> new.shift));
        }
        let still = self.renumbered.load(Ordering::Acquire);
        new.renumbered.store(still || new.shift != self.shift, Ordering::Release);
        new.unwritten.store(true, Ordering::Release);
        new
    }

    /// Notes, durably, that the pool's bytes of `ranges` (from, to) are about to be written. No I/O when
    /// they are noted already.
    ///
    /// # Errors
    /// The log cannot be written anywhere: nothing may be written.
    pub fn note(
        &self,
        topology: &Topology,
        slot: u16,
        ranges: &[(u64, u64)],
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let reach = match self.kind {
            Kind::Intent => Reach::Replicas,
            // It may be read after years, when its replicas of now have all been replaced but one.
            Kind::Missed => Reach::Everywhere,
        };
        let regions =
            || ranges.iter().flat_map(|(from, to)| from >> self.shift..=(to - 1) >> self.shift);
        for region in regions() {
            self.touched.set(region);
        }
        // In this order: what was not written everywhere is called so before it counts as noted.
        let is_noted = || regions().all(|r| self.noted.get(r));
        if is_noted() && !self.unwritten.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut sequences = self.sectors.lock();
        // Another thread may have written it meanwhile.
        if self.unwritten.load(Ordering::Acquire) {
            self.rewrite_all(topology, slot, &mut sequences, reach, lost)?;
        }
        let new: Vec<u64> = regions().filter(|r| !self.noted.get(*r)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut sectors: Vec<u64> = new.iter().map(|r| r / RawIntents::BITS).collect();
        sectors.dedup();
        let failed = lost.len();
        self.write(topology, slot, &mut sequences, &sectors, &new, reach, lost)?;
        if lost.len() != failed {
            self.unwritten.store(true, Ordering::Release);
        }
        for region in new {
            self.noted.set(region);
        }
        Ok(())
    }

    /// Takes over what `other` has noted, in memory: [`Intents::rewrite`] makes it durable.
    pub fn absorb(&self, other: &Self) {
        self.unwritten.store(true, Ordering::Release);
        let words = other.noted.0.iter().enumerate();
        let words = words.filter(|(_, word)| word.load(Ordering::Acquire) != 0);
        for region in words.flat_map(|(i, _)| i as u64 * 64..(i as u64 + 1) * 64) {
            if other.noted.get(region) {
                self.add(region << other.shift, (region + 1) << other.shift);
            }
        }
    }

    /// Notes the pool's bytes `from..to`, in memory.
    pub fn add(&self, from: u64, to: u64) {
        (from >> self.shift..=(to.max(from + 1) - 1) >> self.shift).for_each(|r| self.noted.set(r));
    }

    /// Whether nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.noted.0.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Forgets the regions that no write has touched since the call before. A flush has succeeded
    /// since then, and no request is under way.
    pub fn clean(&self, topology: &Topology, slot: u16, lost: &mut Lost) {
        let mut changed = false;
        for (noted, touched) in self.noted.0.iter().zip(&self.touched.0) {
            let keep = touched.swap(0, Ordering::AcqRel);
            changed |= noted.fetch_and(keep, Ordering::AcqRel) & !keep != 0;
        }
        if changed {
            // A note that stays a while longer costs nothing but time after a crash.
            if let Err(error) = self.rewrite(topology, slot, Reach::Lazy, lost) {
                tracing::warn!(%error, "cannot clear the notes of regions that are no longer written");
            }
        }
    }

    /// Forgets every region: all members hold the same, durably.
    pub fn forget(&self, topology: &Topology, slot: u16, lost: &mut Lost) -> Result<(), PoolError> {
        for bits in [&self.noted, &self.touched] {
            bits.0.iter().for_each(|w| w.store(0, Ordering::Release));
        }
        self.rewrite(topology, slot, Reach::Everywhere, lost)
    }

    /// Writes every sector anew: the log has new replicas, or less to say.
    ///
    /// Where regions have new numbers, these become durable one sector after the other: what a sector
    /// said before stands, by its new number, in one before it, or in itself. So at every moment each noted
    /// region is noted somewhere.
    pub fn rewrite(
        &self,
        topology: &Topology,
        slot: u16,
        reach: Reach,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let mut sequences = self.sectors.lock();
        // What is not written yet is not left so.
        let unwritten = self.unwritten.load(Ordering::Acquire);
        let reach = if unwritten { reach.durable() } else { reach };
        self.rewrite_all(topology, slot, &mut sequences, reach, lost)
    }

    /// As [`Intents::rewrite`], under the lock of the sectors.
    fn rewrite_all(
        &self,
        topology: &Topology,
        slot: u16,
        sequences: &mut [u64],
        reach: Reach,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let all: Vec<u64> = (0..sequences.len() as u64).collect();
        let failed = lost.len();
        let written = if self.renumbered.load(Ordering::Acquire) {
            let mut each = all.iter();
            each.try_for_each(|n| {
                self.write(topology, slot, sequences, &[*n], &[], reach.durable(), lost)
            })
        } else {
            self.write(topology, slot, sequences, &all, &[], reach, lost)
        };
        if written.is_ok() {
            self.renumbered.store(false, Ordering::Release);
        }
        // A member that did not take it may stay in use for a while.
        self.unwritten.store(written.is_err() || lost.len() != failed, Ordering::Release);
        written
    }

    #[expect(clippy::too_many_arguments, reason = "one caller's locals, another's constants")]
    fn write(
        &self,
        topology: &Topology,
        slot: u16,
        sequences: &mut [u64],
        which: &[u64],
        new: &[u64],
        reach: Reach,
        lost: &mut Lost,
    ) -> Result<(), PoolError> {
        let mut images = Vec::with_capacity(which.len());
        for n in which {
            let Some(sequence) = sequences.get_mut(Bytes(*n).to_usize()) else { continue };
            *sequence += 1;
            images.push((*n, self.image(topology, slot, *n, *sequence, new)));
        }
        let at = match self.kind {
            Kind::Intent => |place: &LogPlace, n| Kind::Intent.at(*place, number(n)),
            Kind::Missed => |place: &LogPlace, n| Kind::Missed.at(*place, number(n)),
        };
        let sectors: Vec<Sector<'_>> =
            images.iter().map(|(n, bytes)| Sector { at, index: *n, bytes }).collect();
        store(topology, slot, &sectors, reach, lost)
    }

    fn image(
        &self,
        topology: &Topology,
        slot: u16,
        n: u64,
        sequence: u64,
        new: &[u64],
    ) -> AlignedBuf {
        let mut raw = RawIntents::new_zeroed();
        raw.magic.set(self.kind.magic());
        raw.pool_uuid = topology.label.pool.into_bytes();
        raw.sector.set(number(n));
        raw.slot.set(slot);
        raw.region_shift.set(self.shift);
        raw.sequence.set(sequence);
        let first = n * RawIntents::BITS;
        // A sector's bits begin at a word: BITS is a multiple of 64.
        for (word, bytes) in raw.bits.chunks_exact_mut(8).enumerate() {
            let index = Bytes(first / 64).to_usize() + word;
            let bits: u64 = self.noted.0.get(index).map_or(0, |w| w.load(Ordering::Acquire));
            bytes.copy_from_slice(&bits.to_le_bytes());
        }
        for region in new {
            if let Some(bit) = region.checked_sub(first).filter(|b| *b < RawIntents::BITS)
                && let Some(byte) = raw.bits.get_mut(Bytes(bit / 8).to_usize())
            {
                *byte |= 1 << (bit % 8);
            }
        }
        let crc = crc32c_with_hole(raw.as_bytes(), RawIntents::CRC_AT);
        raw.crc.set(crc);
        let mut bytes = AlignedBuf::zeroed(LogPlace::SECTOR);
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

/// A sector's number, as it is stored.
fn number(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(0)
}

/// What a sector read from a device says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Read {
    /// Never written by this pool.
    Empty,
    /// Torn or damaged.
    Damaged,
    /// Its sequence number, log2 of a region's bytes, and the regions noted.
    Good(u64, u32, Vec<u64>),
}

/// Decodes sector `n` of `slot`.
pub(crate) fn decode(kind: Kind, bytes: &[u8], pool: &[u8; 16], slot: u16, n: u16) -> Read {
    let Ok((raw, _)) = RawIntents::read_from_prefix(bytes) else { return Read::Damaged };
    let crc = crc32c_with_hole(raw.as_bytes(), RawIntents::CRC_AT);
    let (is_kind, is_pool) = (raw.magic.get() == kind.magic(), raw.pool_uuid == *pool);
    if !is_kind || !is_pool {
        // One that was the pool's once and has rotted there is not taken for none.
        let was_ours = kind == Kind::Missed && (is_kind || is_pool) && crc != raw.crc.get();
        return if was_ours { Read::Damaged } else { Read::Empty };
    }
    let shift = raw.region_shift.get();
    let named = (raw.slot.get(), raw.sector.get()) == (slot, n);
    if crc != raw.crc.get() || !named || shift > 62 || raw.sequence.get() >= NUMBERS {
        return Read::Damaged;
    }
    let first = u64::from(n) * RawIntents::BITS;
    let regions = (0_u64..)
        .zip(raw.bits)
        .filter(|(_, byte)| *byte != 0)
        .flat_map(|(i, byte)| (0..8).filter(move |b| byte >> b & 1 == 1).map(move |b| i * 8 + b))
        .map(|bit| first + bit)
        .collect();
    Read::Good(raw.sequence.get(), shift, regions)
}
