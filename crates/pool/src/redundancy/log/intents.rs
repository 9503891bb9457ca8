//! Which regions of the pool are being written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_device::AlignedBuf;
use braid_format::Bytes;
use braid_format::crc::crc32c_with_hole;
use braid_format::redundancy::{LogPlace, RawIntents};
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::replicas::{NUMBERS, Reach, Sector, store};
use crate::error::PoolError;
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

/// The noted regions of this node.
///
/// [`Intents::note`] runs under the topology's read lock, [`Intents::clean`] under its write lock:
/// no region is forgotten while a write to it is under way.
#[derive(Debug)]
pub(crate) struct Intents {
    shift: u32,
    /// Noted on the devices.
    noted: Bits,
    /// Written since the last cleaning.
    touched: Bits,
    /// Sequence number of each sector's last write.
    sectors: Mutex<Vec<u64>>,
    /// On the devices regions still go by the numbers that they had in a smaller pool.
    renumbered: AtomicBool,
}

impl Intents {
    /// None noted, in a pool of `size` bytes. `sequence`: higher than in any sector on the devices,
    /// of which the first `used` are not empty.
    pub fn new(size: Bytes, sequence: u64, used: u16) -> Self {
        let shift = RawIntents::region_shift(size);
        let regions = (size.0 >> shift) + 1;
        let sectors = Bytes(regions.div_ceil(RawIntents::BITS)).to_usize().max(used.into());
        Self {
            shift,
            noted: Bits::new(regions),
            touched: Bits::new(regions),
            sectors: Mutex::new(vec![sequence; sectors]),
            renumbered: AtomicBool::new(false),
        }
    }

    /// The same regions noted, as regions of a pool of `size` bytes, which is larger. No request is
    /// under way.
    pub fn resized(&self, size: Bytes) -> Self {
        let sequences = self.sectors.lock();
        let used = u16::try_from(sequences.len()).unwrap_or(RawIntents::SECTORS);
        // Sectors that were written are not left as they stand.
        let new = Self::new(size, sequences.iter().max().copied().unwrap_or(0), used);
        for (from, to) in [(&self.noted, &new.noted), (&self.touched, &new.touched)] {
            let regions = (0..from.0.len() as u64 * 64).filter(|r| from.get(*r));
            regions.for_each(|r| to.set(r << self.shift >> new.shift));
        }
        let still = self.renumbered.load(Ordering::Acquire);
        new.renumbered.store(still || new.shift != self.shift, Ordering::Release);
        new
    }

    /// Notes, durably, that the pool's bytes `at..at + len` are about to be written. No I/O when
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
        let regions =
            || ranges.iter().flat_map(|(from, to)| from >> self.shift..=(to - 1) >> self.shift);
        for region in regions() {
            self.touched.set(region);
        }
        if regions().all(|r| self.noted.get(r)) {
            return Ok(());
        }
        let mut sequences = self.sectors.lock();
        let new: Vec<u64> = regions().filter(|r| !self.noted.get(*r)).collect();
        let mut sectors: Vec<u64> = new.iter().map(|r| r / RawIntents::BITS).collect();
        sectors.dedup();
        self.write(topology, slot, &mut sequences, &sectors, &new, Reach::Replicas, lost)?;
        for region in new {
            self.noted.set(region);
        }
        Ok(())
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
        let all: Vec<u64> = (0..sequences.len() as u64).collect();
        if !self.renumbered.load(Ordering::Acquire) {
            return self.write(topology, slot, &mut sequences, &all, &[], reach, lost);
        }
        for n in all {
            self.write(topology, slot, &mut sequences, &[n], &[], reach.durable(), lost)?;
        }
        self.renumbered.store(false, Ordering::Release);
        Ok(())
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
        let at = |place: &LogPlace, n: u64| place.intents(u16::try_from(n).unwrap_or(0));
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
        raw.magic.set(RawIntents::MAGIC);
        raw.pool_uuid = topology.label.pool.into_bytes();
        raw.sector.set(u16::try_from(n).unwrap_or(0));
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

/// Decodes intent sector `n` of `slot`.
pub(crate) fn decode(bytes: &[u8], pool: &[u8; 16], slot: u16, n: u16) -> Read {
    let Ok((raw, _)) = RawIntents::read_from_prefix(bytes) else { return Read::Damaged };
    if raw.magic.get() != RawIntents::MAGIC || raw.pool_uuid != *pool {
        return Read::Empty;
    }
    let crc = crc32c_with_hole(raw.as_bytes(), RawIntents::CRC_AT);
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
