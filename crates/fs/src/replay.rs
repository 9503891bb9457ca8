//! Replays a journal: for a dead node (after its fence), or this slot's own after a power cut.
//!
//! Idempotent: the recoverer may die at any step and another starts over. A body is written only if
//! what is in its place is older or damaged, so replay never makes a block older; and only after
//! the record that it comes from is durable. A damaged block is repaired only under a lock that the
//! dead node held to its end. Nothing is written before the whole journal has been read and found
//! sound, but a record to the copies of its own place that lack it: what the ring holds is hostile
//! until proven otherwise.
//!
//! The journal ends at the first record that is not valid. But if [`proof`] finds a later record
//! that shows that this one was durable once, the journal is damaged: that is reported, and nothing
//! is written.

use std::collections::BTreeMap;

use braid_format::journal::{RawTxBlock, RawTxHeader};
use braid_format::lock_record::{Life, LockRecord, Mode};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::{SlotRecord, SlotState};
use braid_format::{BlockNo, Bytes, FormatError, Generation, Incarnation, LockNo, NodeId};
use braid_lock::LockError;
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::journal::{Header, RecordHead, Ring, record_is_sealed};
use crate::volume::Volume;

/// Bodies compared and written at once; bounds memory.
const BATCH: usize = 256;

/// Reads of a lock record that is not sound before it is taken for damaged. A block that is being
/// written is sound again after one or two.
const RECORD_READS: usize = 32;

/// Whose records may have to be replayed. The slot says it: a life is in its slot, durably, before
/// its first record, and a slot is free only when all that was in its journal is in place. Records
/// of earlier lives stay in the ring. A block of one of their images may have become file data
/// since, so none of them may be put in place, whatever is lost of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// The records of this life.
    Life(Incarnation),
    /// No records: the slot is free.
    Nobody,
    /// The slot cannot be read.
    Unknown,
    /// Slots are in a store that may have lost them, where metadata stays metadata.
    Any,
}

impl Writer {
    /// The life that writes, or wrote last, by a slot, as its record says.
    ///
    /// # Errors
    /// When a device fails.
    pub fn of_slot(volume: &Volume, slot: NodeId) -> Result<Self> {
        if volume.elsewhere.is_some() {
            return Ok(Self::Any);
        }
        let store = volume.node_store(volume.node_areas()?);
        let bytes = store.read_slot(slot).map_err(LockError::NodeStore)?;
        Ok(match SlotRecord::decode(&bytes, slot) {
            Ok(record) if record.state == SlotState::Free => Self::Nobody,
            Ok(record) => Self::Life(record.life.incarnation),
            Err(_) => Self::Unknown,
        })
    }
    /// Whether records of this incarnation may have to be replayed.
    fn may_be(self, incarnation: Incarnation) -> bool {
        match self {
            Self::Life(life) => life == incarnation,
            Self::Nobody => false,
            Self::Unknown | Self::Any => true,
        }
    }
    /// Whether a block that does not verify for this reason may be one that the writer changed. If it does
    /// not even look like metadata, it may be file data by now.
    fn may_have_changed(self, damage: &FormatError) -> bool {
        self != Self::Unknown || matches!(damage, FormatError::ChecksumMismatch { .. })
    }
}

/// What a replay did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Transactions found valid.
    pub transactions: u64,
    /// Bodies written in place.
    pub written: u64,
    /// Bodies skipped: newer in place.
    pub skipped: u64,
}

/// Replays `node`'s journal onto the devices, flushes, and marks the journal clean. For a clean
/// journal only its headers and what is at its tail are read, nothing is written, and the headers
/// are made stable. A header that says clean is believed only if no record was written after it:
/// the header after it may be lost.
///
/// # Errors
/// When a device fails, no header is readable, a sealed record names what cannot be, or a record
/// is damaged that was durable once. Nothing has been written then, or it may be done again.
pub(crate) fn replay(volume: &Volume, node: NodeId, writer: Writer) -> Result<Replayed> {
    let ring = Ring::of(volume, node)?;
    let header = proof::believed(volume, &ring, Header::read(volume, &ring)?)?;
    if header.clean {
        // The node that wrote the header may have died before its flush. The slot must not be
        // durably free while a power cut can still take the header away.
        volume.pool.flush()?;
        return Ok(Replayed::default());
    }
    if !writer.may_be(header.incarnation) {
        return finish_former(volume, &ring, header, writer);
    }
    let (scan, damage) = scan(volume, &ring, &header)?;
    damage.map_or(Ok(()), Err)?;
    let next = (scan.sequence, scan.offset);
    finish(volume, &ring, header, (scan, writer), next)
}

/// The header is of a life whose journal is in place: the one that said so is lost. Nothing is replayed.
///
/// # Errors
/// When a device fails, or the ring holds records of the writer: then a header of its own is lost, too.
fn finish_former(volume: &Volume, ring: &Ring, header: Header, writer: Writer) -> Result<Replayed> {
    proof::holds_none(volume, ring, &|of| writer.may_be(of))?;
    let (node, incarnation) = (ring.node, header.incarnation);
    tracing::warn!(%node, ?incarnation, "a journal's newest header is lost: it said that the journal of that life was empty");
    let next = header.tail_sequence.max(proof::highest(volume, ring)? + 1);
    let none = (Scan::default(), Writer::Nobody);
    finish(volume, ring, header, none, (next, header.tail_offset))
}

/// For a repair: replays what stands before the damage, drops the rest, and marks the journal clean.
/// Where no header leads to records that are there, the newest of these are replayed that follow one
/// another without a gap. Gives the damage, if any.
///
/// # Errors
/// When a device fails.
pub(crate) fn salvage(
    volume: &Volume,
    node: NodeId,
    writer: Writer,
) -> Result<(Replayed, Option<Error>)> {
    let ring = Ring::of(volume, node)?;
    let read = Header::read(volume, &ring).and_then(|h| proof::believed(volume, &ring, h));
    let header = match read {
        Ok(mut header) if header.clean => {
            if header.alone {
                header.write(volume, node)?;
            }
            volume.pool.flush()?;
            return Ok((Replayed::default(), None));
        }
        Ok(header) if !writer.may_be(header.incarnation) => {
            return match finish_former(volume, &ring, header, writer) {
                Err(e) if e.is_damage() => salvage_ring(volume, &ring, writer, &e),
                done => Ok((done?, None)),
            };
        }
        Ok(header) => header,
        Err(e) if e.is_damage() => return salvage_ring(volume, &ring, writer, &e),
        Err(e) => return Err(e),
    };
    let (scan, damage) = scan(volume, &ring, &header)?;
    let (next, damage) = match damage {
        None => (scan.sequence, None),
        // The ring was used again where this header says that it begins: a newer one is lost.
        Some(e) if scan.transactions == 0 && header.alone => {
            return salvage_ring(volume, &ring, writer, &e);
        }
        Some(e) => (beyond(&scan, proof::highest(volume, &ring)?), Some(e)),
    };
    let next = (next, scan.offset);
    Ok((finish(volume, &ring, header, (scan, writer), next)?, damage))
}

/// The number of the next record, so that what is dropped here never comes back. It is above all
/// whole records (`highest` is the last), and above a record in the place of the next one that has
/// a right checksum and makes no sense, and a skip record before that.
fn beyond(scan: &Scan, highest: u64) -> u64 {
    (scan.sequence + 2).max(highest + 1)
}

/// [`salvage`] of a journal whose headers do not say where it begins, because of this error.
fn salvage_ring(
    volume: &Volume,
    ring: &Ring,
    writer: Writer,
    why: &Error,
) -> Result<(Replayed, Option<Error>)> {
    let highest = proof::highest(volume, ring)?;
    let found = proof::newest_chain(volume, ring, &|of| writer.may_be(of))?;
    let header = found.unwrap_or_else(|| Header::anew(highest + 1));
    let (scan, unsound) = match found {
        Some(header) => scan(volume, ring, &header)?,
        None => (Scan { sequence: highest + 1, ..Scan::default() }, None),
    };
    let records = scan.transactions;
    let next = match unsound {
        Some(_) => beyond(&scan, highest),
        None => scan.sequence.max(highest + 1),
    };
    let next = (next, scan.offset);
    let done = finish(volume, ring, header, (scan, writer), next)?;
    // The other copy too.
    let mut header = Header::read(volume, ring)?;
    header.write(volume, ring.node)?;
    volume.pool.flush()?;
    let what = format!(
        "{why}; the {records} newest records that follow one another were replayed: changes before these may be lost"
    );
    Ok((done, Some(in_ring(volume, ring, header.tail_offset, &what))))
}

/// Puts what was found in place, durably, and marks the journal clean; its next record is to have
/// the number and place `next`.
fn finish(
    volume: &Volume,
    ring: &Ring,
    mut header: Header,
    (scan, writer): (Scan, Writer),
    next: (u64, u64),
) -> Result<Replayed> {
    let mut done = Replayed { transactions: scan.transactions, ..Replayed::default() };
    let images: Vec<(BlockNo, Found)> = scan.images.into_iter().collect();
    if !images.is_empty() {
        // The last records may be unflushed writes of a process that died: write-ahead holds here
        // too, or a power cut now keeps some bodies of a transaction whose record it loses.
        volume.pool.flush()?;
    }
    let dead = Life { slot: ring.node, incarnation: header.incarnation };
    for batch in images.chunks(BATCH) {
        let written = put_back(volume, ring, (dead, writer), batch)?;
        done.written += written;
        done.skipped += batch.len() as u64 - written;
    }
    // What was found in place may itself be unflushed writes of a process that died.
    volume.pool.flush()?;
    (header.tail_sequence, header.tail_offset) = next;
    header.clean = true;
    header.write(volume, ring.node)?;
    volume.pool.flush()?;
    Ok(done)
}

/// The newest image of a block.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// Its place in the ring.
    offset: u64,
    generation: Generation,
}

/// What the ring holds.
#[derive(Debug, Default)]
struct Scan {
    images: BTreeMap<BlockNo, Found>,
    transactions: u64,
    /// Where the next record would go, and its number.
    offset: u64,
    sequence: u64,
}

/// Follows the records from the tail to the first that is not valid. Ends: every record is at
/// least a sector long and together they are no longer than the ring. Also says what shows that
/// the journal did not end there, but is damaged.
fn scan(volume: &Volume, ring: &Ring, header: &Header) -> Result<(Scan, Option<Error>)> {
    let mut scan =
        Scan { offset: header.tail_offset, sequence: header.tail_sequence, ..Scan::default() };
    let mut left = ring.len;
    loop {
        let Some((head, record)) = next_record(volume, ring, header, &scan, left)? else {
            if begins_anew(volume, ring, header, &scan, left)? {
                left -= ring.len - scan.offset;
                scan.offset = 0;
                continue;
            }
            break;
        };
        if head.count > 0 {
            let images = match collect(volume, ring, &record, head, scan.offset) {
                Ok(images) => images,
                Err(e) => {
                    let damage = in_ring(volume, ring, scan.offset, &e.to_string());
                    return Ok((scan, Some(damage)));
                }
            };
            for (block, found) in images {
                let newest = scan.images.entry(block).or_insert(found);
                if newest.generation < found.generation {
                    *newest = found;
                }
            }
            scan.transactions += 1;
        }
        left -= head.len;
        scan.offset = (scan.offset + head.len) % ring.len;
        scan.sequence += 1;
    }
    let later = proof::later_record(volume, ring, header, &scan, left)?;
    let damage = later.map(|sequence| {
        let what = format!(
            "record {} cannot be read, although record {sequence} was written after it was durable",
            scan.sequence
        );
        in_ring(volume, ring, scan.offset, &what)
    });
    Ok((scan, damage))
}

/// Whether the journal goes on at the start of the ring, because it was empty: a header said so, which
/// is lost.
fn begins_anew(
    volume: &Volume,
    ring: &Ring,
    header: &Header,
    scan: &Scan,
    left: u64,
) -> Result<bool> {
    let to_end = ring.len - scan.offset;
    if !header.alone || scan.offset == 0 || left <= to_end {
        return Ok(false);
    }
    let first = Scan { sequence: scan.sequence, ..Scan::default() };
    Ok(next_record(volume, ring, header, &first, left - to_end)?.is_some())
}

impl RecordHead {
    /// Whether it is of the journal's writer, and has the number that comes next.
    fn continues(&self, header: &Header, scan: &Scan) -> bool {
        self.incarnation == header.incarnation && self.sequence == scan.sequence
    }
}

/// The record that continues the journal, if there is one in the `left` bytes. Where only another copy
/// has it than is read, it is written to all before it counts.
fn next_record(
    volume: &Volume,
    ring: &Ring,
    header: &Header,
    scan: &Scan,
    left: u64,
) -> Result<Option<(RecordHead, AlignedBuf)>> {
    if let Some(found) = read_record(volume, ring, header, scan, left)? {
        return Ok(Some(found));
    }
    if volume.pool.copies() < 2 {
        return Ok(None);
    }
    let Some((head, record)) = copies::gather(volume, ring, header, scan, left) else {
        return Ok(None);
    };
    let (node, record_no) = (ring.node, head.sequence);
    tracing::warn!(%node, record_no, "damaged in a journal; read from another member");
    // A node that keeps no log only looks.
    if volume.pool.is_attached() {
        volume.pool.write(ring.at + Bytes(scan.offset), &record)?;
    }
    Ok(Some((head, record)))
}

/// [`next_record`], if it is read first.
fn read_record(
    volume: &Volume,
    ring: &Ring,
    header: &Header,
    scan: &Scan,
    left: u64,
) -> Result<Option<(RecordHead, AlignedBuf)>> {
    let room = (ring.len - scan.offset).min(left);
    if room < ring.sector {
        return Ok(None);
    }
    let mut sector = AlignedBuf::zeroed(Bytes(ring.sector).to_usize());
    volume.pool.read(ring.at + Bytes(scan.offset), &mut sector)?;
    let Some(head) = RecordHead::decode(ring, &sector, room) else { return Ok(None) };
    if !head.continues(header, scan) {
        return Ok(None);
    }
    let mut record = AlignedBuf::zeroed(Bytes(head.stored_len(ring)).to_usize());
    volume.pool.read(ring.at + Bytes(scan.offset), &mut record)?;
    Ok(record_is_sealed(&record).then_some((head, record)))
}

/// Damage of the record at `offset`.
fn in_ring(volume: &Volume, ring: &Ring, offset: u64, what: &str) -> Error {
    let block = volume.geo.block_size.block_of(ring.at + Bytes(offset));
    Error::Journal { node: ring.node, block, what: what.into() }
}

/// Verifies every image of a sealed record at `at`.
fn collect(
    volume: &Volume,
    ring: &Ring,
    record: &[u8],
    head: RecordHead,
    at: u64,
) -> Result<Vec<(BlockNo, Found)>> {
    let head_len = ring.head_len(head.count);
    let (names, images) = record.split_at(Bytes(head_len).to_usize().min(record.len()));
    let names = names.get(RawTxHeader::LEN..).unwrap_or(&[]);
    let names = names.chunks_exact(size_of::<RawTxBlock>());
    let images = images.chunks_exact(Bytes(ring.image).to_usize());
    let count = usize::try_from(head.count).unwrap_or(usize::MAX);
    let mut offset = at + head_len;
    let mut found = Vec::with_capacity(count);
    for (name, image) in names.zip(images).take(count) {
        let (name, _) = RawTxBlock::read_from_prefix(name)
            .map_err(|_| Error::Inconsistent { block: BlockNo(0), what: "journal record" })?;
        let block = BlockNo(name.block.get());
        let (header, kind) =
            MetaHeader::decode(image, block).map_err(|source| Error::Damaged { block, source })?;
        if header.generation.get() != name.generation.get() {
            return Err(Error::Inconsistent { block, what: "generation in the journal" });
        }
        if kind == MetaKind::JournalHeader || !is_slot(volume, block) {
            return Err(Error::Inconsistent { block, what: "journal names what is no slot" });
        }
        // What has left the pool is not written any more, and its addresses are never used again.
        if !volume.groups.has_left(block) {
            found.push((block, Found { offset, generation: header.generation() }));
        }
        offset += ring.image;
    }
    Ok(found)
}

/// Whether a body may be written to `block`: only if slots are there, and one begins there.
/// Anywhere else a body could lie over data, a ring, or a lock sector.
fn is_slot(volume: &Volume, block: BlockNo) -> bool {
    let sb = &volume.sb;
    let slot = volume.geo.slot_blocks();
    let nodes = u64::from(sb.node_slots.get());
    let fixed = [
        (0, 1),
        (sb.named_start.get(), u64::from(sb.named_count.get())),
        (sb.plock_start.get(), u64::from(sb.plock_count.get())),
        (sb.node_area.get(), nodes * u64::from(sb.node_area_slots.get())),
    ];
    let mut areas = fixed.into_iter().chain(volume.groups.slot_areas());
    volume.holds(block)
        && !volume.is_data_only(block)
        && areas.any(|(start, slots)| {
            let from_start = block.get().checked_sub(start);
            from_start.is_some_and(|n| n.is_multiple_of(slot) && n / slot < slots)
        })
}

/// Writes those of `batch` in place that are newer than what stands there. Returns how many.
/// Complete, not durable.
fn put_back(
    volume: &Volume,
    ring: &Ring,
    (dead, writer): (Life, Writer),
    batch: &[(BlockNo, Found)],
) -> Result<u64> {
    let len = Bytes(ring.image).to_usize();
    let mut images = AlignedBuf::zeroed(batch.len() * len);
    let mut places = AlignedBuf::zeroed(batch.len() * len);
    let mut requests: Vec<PoolRequest<'_>> = Vec::with_capacity(batch.len() * 2);
    for ((_, found), to) in batch.iter().zip(images.chunks_exact_mut(len)) {
        requests.push(PoolRequest::read(ring.at + Bytes(found.offset), to));
    }
    for ((block, _), to) in batch.iter().zip(places.chunks_exact_mut(len)) {
        requests.push(PoolRequest::read(volume.body_at(*block), to));
    }
    volume.run(&mut requests)?;
    drop(requests);
    let mut newer: Vec<(BlockNo, &[u8])> = Vec::with_capacity(batch.len());
    let both = images.chunks_exact(len).zip(places.chunks_exact(len));
    for ((block, found), (image, place)) in batch.iter().zip(both) {
        let (header, _) = MetaHeader::decode(image, *block)
            .map_err(|source| Error::Damaged { block: *block, source })?;
        let older = match MetaHeader::decode(place, *block) {
            Ok((in_place, _)) => in_place.generation() < found.generation,
            Err(damage) => {
                writer.may_have_changed(&damage) && may_mend(volume, dead, *block, &header)?
            }
        };
        if older {
            newer.push((*block, image));
        }
    }
    volume.write_bodies(&newer)?;
    Ok(newer.len() as u64)
}

/// Whether a block that reads as damaged belongs to the dead node, so that the image with header
/// `image` may repair it. If the lock that covers it says otherwise, it is not: a lock is given up
/// only when the block is in place and stable, so somebody else was granted it since, and either
/// writes the block just now, or died doing so and has a newer image in its own journal, which
/// another node may be replaying. If the lock is the dead node's, nobody writes the block any more;
/// but somebody may have while it was read the first time, and have handed the lock to the dead one
/// since.
fn may_mend(volume: &Volume, dead: Life, block: BlockNo, image: &MetaHeader) -> Result<bool> {
    let owner = LockNo(image.owner.get());
    let lock_at = BlockNo(owner.get());
    // What belongs to one node slot is changed only by its node, or by the node that recovers it.
    let end = NodeId(volume.sb.node_slots.get());
    let private = volume.node_area(NodeId(0), 0)..volume.node_area(end, 0);
    // And nobody locks what can be no lock.
    if !volume.holds(lock_at) || volume.is_data_only(lock_at) || private.contains(&lock_at) {
        return Ok(true);
    }
    let store = volume.elsewhere.as_ref().map(|_| volume.lock_store(None));
    let mut sector = AlignedBuf::zeroed(volume.geo.lock_sector.to_usize());
    for _ in 0..RECORD_READS {
        if let Some(store) = &store {
            let record =
                store.read(owner).map_err(|source| LockError::Store { lock: owner, source })?;
            sector.fill(0);
            sector.iter_mut().zip(&record).for_each(|(to, from)| *to = *from);
        } else {
            volume.pool.read_lock(volume.slot_at(lock_at), &mut sector)?;
        }
        match LockRecord::decode(&sector, owner) {
            Ok(record) if record.mode_of(dead) == Mode::Exclusive => break,
            Ok(_) => return Ok(false),
            // Being written just now, or damaged for good: then it is granted to nobody.
            Err(_) => {}
        }
    }
    match volume.read_body(block) {
        Ok((_, in_place, _)) => Ok(in_place.generation() < image.generation()),
        Err(Error::Damaged { .. }) => Ok(true),
        Err(e) => Err(e),
    }
}

mod copies;
mod proof;
pub(crate) use copies::sectors;
#[cfg(test)]
pub(crate) mod tests;
