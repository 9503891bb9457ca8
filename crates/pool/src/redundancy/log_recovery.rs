//! After a crash: a slot's log is read from all members, its redo records are written again, and
//! the regions it notes are made equal.
//!
//! Every step may be repeated: the log is emptied only when all of it is durable.

use std::collections::BTreeSet;

use braid_device::AlignedBuf;
use braid_format::redundancy::{LogPlace, RawIntents};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use parking_lot::RwLockReadGuard;

use super::copy_damage::CopyDamage;
use super::log::Log;
use super::log::intents::{self, Intents, Kind};
use super::log::redo::{self, Redo, flush_all};
use super::log::replicas::candidates;
use super::verifier::ChecksumVerifier;
use super::{EpochInUse, resync};
use crate::cluster::{Locks, RegionHold, add_locks};
use crate::error::PoolError;
use crate::layout::group::Shape;
use crate::layout::stretch::spans;
use crate::topology::{FailedMembers, Lost, Topology};

/// Times that regions are read that somebody may be writing.
const READS_MAX: u32 = 4;

/// What a recovery has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Redo records written again.
    pub records: u64,
    /// Regions compared.
    pub regions: u64,
    /// Bytes that differed and were made equal.
    pub repaired: Bytes,
}

/// What the members say of a slot's log.
pub(crate) struct Found {
    slot: u16,
    /// Highest generation, and its tail's number and place.
    header: Option<(u64, u64, u64)>,
    intents: FoundRegions,
    missed: FoundRegions,
}

/// The regions that a slot's log has noted for one reason.
pub(crate) struct FoundRegions {
    kind: Kind,
    /// Highest sequence of a sector.
    sequence: u64,
    /// How many sectors, from the first, may say something.
    sectors: u16,
    /// log2 of a region's bytes.
    shift: u32,
    noted: BTreeSet<u64>,
    /// Some copy could not be read, or is damaged.
    pub doubtful: bool,
    /// Members that have a sound copy of some sector.
    pub holders: BTreeSet<MemberIndex>,
}

fn read(topology: &Topology, member: MemberIndex, at: ByteOffset, len: u64) -> Option<AlignedBuf> {
    let mut buf = AlignedBuf::zeroed(Bytes(len).to_usize());
    topology.device(member).read(at, &mut buf).ok()?;
    Some(buf)
}

impl Found {
    pub fn read(topology: &Topology, slot: u16) -> Self {
        let pool = topology.label.pool.into_bytes();
        let mut header = None;
        for (member, place) in &candidates(topology, slot) {
            for copy in 0..2 {
                let at = place.redo_header(copy);
                let sector = read(topology, *member, at, LogPlace::SECTOR as u64);
                header = header.max(sector.and_then(|s| redo::decode_header(&s, &pool, slot)));
            }
        }
        let regions = |kind| FoundRegions::read(topology, slot, kind);
        Self { slot, header, intents: regions(Kind::Intent), missed: regions(Kind::Missed) }
    }
}

impl FoundRegions {
    pub fn read(topology: &Topology, slot: u16, kind: Kind) -> Self {
        let pool = topology.label.pool.into_bytes();
        let shift = kind.shift(topology.map.size());
        let (noted, holders) = (BTreeSet::new(), BTreeSet::new());
        let mut found =
            Self { kind, sequence: 0, sectors: 0, shift, noted, doubtful: false, holders };
        let replicas = candidates(topology, slot);
        let regions = (topology.map.size().0 >> shift) + 1;
        let len = u64::from(kind.sectors()) * LogPlace::SECTOR as u64;
        // All of them: a pool that was smaller may have had more regions. In one piece, if that can be read.
        let copies: Vec<_> = replicas
            .iter()
            .map(|(m, place)| (*m, *place, read(topology, *m, kind.at(*place, 0), len)))
            .collect();
        for n in 0..kind.sectors() {
            let said = copies.iter().filter_map(|(member, place, all)| {
                let from = usize::from(n) * LogPlace::SECTOR;
                let whole = all.as_ref().and_then(|a| a.get(from..from + LogPlace::SECTOR));
                if let Some(bytes) = whole {
                    return Some((*member, intents::decode(kind, bytes, &pool, slot, n)));
                }
                let bytes = read(topology, *member, kind.at(*place, n), LogPlace::SECTOR as u64)?;
                Some((*member, intents::decode(kind, &bytes, &pool, slot, n)))
            });
            let said: Vec<(MemberIndex, intents::Read)> = said.collect();
            let is_good = |s: &&(_, _)| matches!(s.1, intents::Read::Good(..));
            found.holders.extend(said.iter().filter(is_good).map(|s| s.0));
            let said: Vec<intents::Read> = said.into_iter().map(|s| s.1).collect();
            found.doubtful |= said.len() < copies.len() || said.contains(&intents::Read::Damaged);
            found.add(&said, n, regions);
        }
        if kind == Kind::Missed && found.doubtful {
            // A region that was missed and counts as not missed would be lost.
            found.sectors = kind.sectors();
            found.noted.extend(0..regions);
        }
        found
    }

    /// Adds what the copies of one sector say. Older copies only note too much.
    fn add(&mut self, said: &[intents::Read], n: u16, regions: u64) {
        let mut good = false;
        for copy in said {
            if let intents::Read::Good(sequence, shift, noted) = copy {
                good = true;
                self.sequence = self.sequence.max(*sequence);
                if !noted.is_empty() {
                    self.sectors = self.sectors.max(n + 1);
                }
                for region in noted {
                    // Noted when the pool was smaller: in larger numbers of smaller regions.
                    let up = self.shift.saturating_sub(*shift);
                    let down = shift.saturating_sub(self.shift);
                    let (from, to) = (region >> up << down, ((region >> up) + 1) << down);
                    self.noted.extend(from..to.min(regions));
                }
            }
        }
        // No copy survived whole: any region may have been noted, by its number of any time.
        if self.kind == Kind::Intent && !good && said.contains(&intents::Read::Damaged) {
            self.sectors = self.sectors.max(n + 1);
            let first = u64::from(n) * RawIntents::BITS;
            for up in 0..=self.shift.saturating_sub(RawIntents::REGION_MIN.0.trailing_zeros()) {
                let to = ((first + RawIntents::BITS - 1) >> up) + 1;
                self.noted.extend(first >> up..to.min(regions));
            }
        }
    }

    /// As [`FoundRegions::read`], while others may be writing there: what is only half written is read again.
    pub fn read_settled(topology: &Topology, slot: u16, kind: Kind) -> Self {
        let mut found = Self::read(topology, slot, kind);
        for _ in 1..READS_MAX {
            if !found.doubtful {
                break;
            }
            found = Self::read(topology, slot, kind);
        }
        found
    }

    /// The pool's bytes of each noted region, from and to.
    pub fn bytes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.noted.iter().map(|region| (region << self.shift, (region + 1) << self.shift))
    }

    /// The same regions, noted in memory, in a log that goes on from what was found.
    fn noted(&self, topology: &Topology) -> Intents {
        let noted = Intents::new(self.kind, topology.map.size(), self.sequence, self.sectors);
        self.bytes().for_each(|(from, to)| noted.add(from, to));
        noted
    }
}

/// The slots that have logs.
pub(crate) fn slots(topology: &Topology) -> std::ops::Range<u16> {
    0..u16::try_from(topology.info.log_slots.unwrap_or(0)).unwrap_or(u16::MAX)
}

/// Whether all members that logs are written to are among the `holders`.
pub(crate) fn all_hold(topology: &Topology, holders: &BTreeSet<MemberIndex>) -> bool {
    candidates(topology, 0).iter().all(|(member, _)| holders.contains(member))
}

/// Whether each member in use has a record of some slot of what was missed, as each has since a member went offline.
/// Without it what was noted is lost.
fn is_recorded(topology: &Topology) -> bool {
    let mut holders = BTreeSet::new();
    // Mostly the first slot's are enough: others wait for this.
    slots(topology).any(|slot| {
        holders.extend(FoundRegions::read_settled(topology, slot, Kind::Missed).holders);
        all_hold(topology, &holders)
    })
}

impl Found {
    /// The pool's bytes of a noted region.
    fn region(&self, region: u64, topology: &Topology) -> (u64, u64) {
        let to = ((region + 1) << self.intents.shift).min(topology.map.size().0);
        ((region << self.intents.shift).min(to), to)
    }

    /// Whether a recovery by it would write nothing but the log itself.
    ///
    /// # Errors
    /// Never, as it is read.
    pub fn is_empty(&self, topology: &Topology) -> Result<bool, PoolError> {
        let Some((_, sequence, offset)) = self.header else {
            return Ok(self.intents.noted.is_empty());
        };
        let (records, _) = each_record(topology, self.slot, sequence, offset, &mut |_| Ok(()))?;
        Ok(records == 0 && self.intents.noted.is_empty())
    }

    /// The locks of all that [`Found::make_whole`] may change.
    pub fn locks(&self, topology: &Topology, count: u64) -> Locks {
        let mut locks = Locks::new();
        for region in &self.intents.noted {
            let (from, to) = self.region(*region, topology);
            for (index, from, to) in spans(&topology.map, from, to) {
                let group = topology.map.group(index);
                add_locks(&mut locks, (index, group), (from, to), RegionHold::Alone, count);
            }
        }
        let Some((_, sequence, offset)) = self.header else { return locks };
        each_record(topology, self.slot, sequence, offset, &mut |part| {
            let group = topology.map.groups().get(usize::from(part.group));
            let unit = group.and_then(|g| match g.shape {
                Shape::Parity { unit, .. } => Some(unit),
                Shape::Mirror => None,
            });
            if let (Some(group), Some(unit)) = (group, unit)
                && let Some(row) = group.row_len()
            {
                // Hostile offsets end in some lock, and are not written.
                let from = (part.offset / unit).saturating_mul(row).min(group.len().0);
                add_locks(&mut locks, (part.group, group), (from, from), RegionHold::Alone, count);
            }
            Ok(())
        })
        .ok();
        locks
    }

    /// Reads what [`Found::make_whole`] makes equal, and finds out whose metadata is damaged.
    ///
    /// # Errors
    /// This node has withdrawn.
    pub fn judge<'a>(
        &self,
        enter: impl Fn() -> Result<RwLockReadGuard<'a, EpochInUse>, PoolError>,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<CopyDamage, PoolError> {
        let mut copy_damage = CopyDamage::default();
        for region in &self.intents.noted {
            let topology = enter()?;
            let region = self.region(*region, &topology);
            copy_damage.look(&topology, region, verifier);
        }
        Ok(copy_damage)
    }

    /// Repeats and repairs what the log says, and empties it, each step in the epoch that `enter`
    /// gives. The slot's node is dead, or not yet alive; the caller alone recovers it. The log is
    /// returned ready for use; `None`: members failed on the way, and all must be done again
    /// without them.
    ///
    /// # Errors
    /// Too many members fail. It may be tried again.
    pub fn make_whole<'a>(
        &self,
        enter: impl Fn() -> Result<RwLockReadGuard<'a, EpochInUse>, PoolError>,
        how: (&dyn ChecksumVerifier, &CopyDamage),
        named: &mut FailedMembers,
    ) -> Result<Option<(Recovered, Log)>, PoolError> {
        let slot = self.slot;
        let mut recovered = Recovered::default();
        let (generation, mut sequence, offset) = self.header.unwrap_or((0, 1, 0));
        if self.header.is_some() {
            let topology = enter()?;
            let mut lost = Lost::new();
            let repeat = &mut |part: &redo::Part<'_>| put(&topology, part, &mut lost);
            (recovered.records, sequence) = each_record(&topology, slot, sequence, offset, repeat)?;
            flush_all(&topology, &mut lost)?;
            named.extend(topology.named(&lost));
        }
        for region in &self.intents.noted {
            let topology = enter()?;
            let region = self.region(*region, &topology);
            recovered.regions += 1;
            let mut lost = Lost::new();
            recovered.repaired.0 += resync::resync(&topology, region, how, &mut lost)?.0;
            named.extend(topology.named(&lost));
            if !named.is_empty() {
                return Ok(None);
            }
        }
        let topology = enter()?;
        let mut lost = Lost::new();
        if !self.intents.noted.is_empty() {
            flush_all(&topology, &mut lost)?;
        }
        named.extend(topology.named(&lost));
        if !named.is_empty() {
            return Ok(None);
        }
        let log = Log {
            slot,
            intents: self.intents.noted(&topology),
            missed: self.missed.noted(&topology),
            redo: Redo::new(sequence, generation + 1).into(),
        };
        if topology.notes_missed && !is_recorded(&topology) {
            log.missed.add(0, topology.map.size().0);
        }
        // What is made whole here, a member that is offline lacks: the intents count as missed before they are forgotten.
        log.renew_missed(&topology, &mut lost)?;
        log.end_missed(&topology, &mut lost)?;
        redo::store_header(&topology, slot, generation + 1, (0, sequence), &mut lost)?;
        log.intents.forget(&topology, slot, &mut lost)?;
        named.extend(topology.named(&lost));
        Ok(Some((recovered, log)))
    }
}

/// Calls `each` with the parts of every record from number `sequence` at `offset` on; how many records
/// there were, and the next number.
fn each_record(
    topology: &Topology,
    slot: u16,
    mut sequence: u64,
    mut offset: u64,
    each: &mut dyn FnMut(&redo::Part<'_>) -> Result<(), PoolError>,
) -> Result<(u64, u64), PoolError> {
    let pool = topology.label.pool.into_bytes();
    let replicas = candidates(topology, slot);
    let mut records = 0;
    while offset < LogPlace::RING {
        let copies = replicas.iter().filter_map(|(m, place)| {
            let head = read(topology, *m, place.ring(offset), LogPlace::SECTOR as u64)?;
            // Most places hold no record: the rest is read only where the head is one's.
            let len = redo::claims(&head, &pool, slot, sequence)?;
            let inside = len <= LogPlace::RING - offset;
            read(topology, *m, place.ring(offset), len).filter(|_| inside)
        });
        let mut good = None;
        for bytes in copies {
            if let Some(record) = redo::decode(&bytes, &pool, slot, sequence) {
                for part in &record.parts {
                    each(part)?;
                }
                good = Some((record.len, record.parts.len()));
                break;
            }
        }
        let Some((len, parts)) = good else { break };
        sequence += 1;
        if parts == 0 {
            offset = 0;
        } else {
            records += 1;
            offset += len;
        }
    }
    // Records after a torn one may be whole. They were never acknowledged, and a later recovery
    // must not take them for the records after its own. So the next number is above theirs.
    Ok((records, sequence + LogPlace::RING / LogPlace::SECTOR as u64 + 1))
}

/// Writes a part of a record in place, if its column is in use.
fn put(topology: &Topology, part: &redo::Part<'_>, lost: &mut Lost) -> Result<(), PoolError> {
    let Some(group) = topology.map.groups().get(usize::from(part.group)) else { return Ok(()) };
    let column = usize::from(part.column);
    let end = part.offset.checked_add(part.bytes.len() as u64);
    if column >= group.columns.len() || end.is_none_or(|e| e > group.column_len()) {
        return Ok(());
    }
    let (member, at) = group.at(column, part.offset);
    let device = topology.device(member);
    // A place that no writer logs would look like a failure of the member.
    let odd = device.info().check(at, Bytes::from(part.bytes.len())).is_err();
    if odd || !topology.writable(member) {
        return Ok(());
    }
    match device.write(at, part.bytes) {
        Ok(()) => Ok(()),
        Err(error) => topology.do_without(member, error, lost),
    }
}
