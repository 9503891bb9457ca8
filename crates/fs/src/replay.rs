//! Replays a journal: for a dead node (after its fence), or this slot's own after a power cut.
//!
//! Idempotent: the recoverer may die at any step and another starts over. A body is written only
//! when what stands in its place is older or damaged, so replay never makes a block older, and
//! only after the record that it comes from is durable. What is damaged is mended only under a lock
//! that the dead node held to its end. Nothing is written before the whole journal has been read
//! and found sound: what the ring holds is hostile until proven otherwise.

use std::collections::BTreeMap;

use braid_format::journal::{RawTxBlock, RawTxHeader};
use braid_format::lock_record::{Life, LockRecord, Mode};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, Bytes, Generation, LockNo, NodeId};
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::journal::{Header, RecordHead, Ring, record_is_sealed};
use crate::volume::Volume;

/// Bodies compared and written at once; bounds memory.
const BATCH: usize = 256;

/// Reads of a lock record that is not sound before it is taken for damaged. One that is being
/// written is sound again after one or two.
const RECORD_READS: usize = 32;

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

/// Replays `node`'s journal onto the devices, flushes, and marks the journal clean. A clean
/// journal: nothing is read but its headers, nothing is written.
///
/// # Errors
/// When a device fails, no header is readable, or a sealed record names what cannot be. Nothing
/// has been written then, or it may be done again.
pub(crate) fn replay(volume: &Volume, node: NodeId) -> Result<Replayed> {
    let ring = Ring::of(volume, node)?;
    let mut header = Header::read(volume, &ring)?;
    let mut done = Replayed::default();
    if header.clean {
        return Ok(done);
    }
    let scan = scan(volume, &ring, &header)?;
    done.transactions = scan.transactions;
    let images: Vec<(BlockNo, Found)> = scan.images.into_iter().collect();
    if !images.is_empty() {
        // The last records may be unflushed writes of a process that died: write-ahead holds here
        // too, or a power cut now keeps some bodies of a transaction whose record it loses.
        volume.pool.flush()?;
    }
    let dead = Life { slot: node, incarnation: header.incarnation };
    for batch in images.chunks(BATCH) {
        let written = put_back(volume, &ring, dead, batch)?;
        done.written += written;
        done.skipped += batch.len() as u64 - written;
    }
    // What was found in place may itself be unflushed writes of a process that died.
    volume.pool.flush()?;
    header.tail_sequence = scan.sequence;
    header.tail_offset = scan.offset;
    header.clean = true;
    header.write(volume, node)?;
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
/// least a sector long and together they are no longer than the ring.
fn scan(volume: &Volume, ring: &Ring, header: &Header) -> Result<Scan> {
    let mut scan =
        Scan { offset: header.tail_offset, sequence: header.tail_sequence, ..Scan::default() };
    let mut left = ring.len;
    let mut sector = AlignedBuf::zeroed(Bytes(ring.sector).to_usize());
    loop {
        let room = (ring.len - scan.offset).min(left);
        if room < ring.sector {
            return Ok(scan);
        }
        volume.pool.read(ring.at + Bytes(scan.offset), &mut sector)?;
        let Some(head) = RecordHead::decode(ring, &sector, room) else { return Ok(scan) };
        if head.incarnation != header.incarnation || head.sequence < scan.sequence {
            return Ok(scan);
        }
        let mut record = AlignedBuf::zeroed(Bytes(head.stored_len(ring)).to_usize());
        volume.pool.read(ring.at + Bytes(scan.offset), &mut record)?;
        if !record_is_sealed(&record) {
            return Ok(scan);
        }
        match head.sequence - scan.sequence {
            0 => {}
            // The ring has been reused past this tail: a newer header is lost, and what it would
            // have led to with it.
            ahead if ahead <= ring.len / ring.sector => {
                let block = volume.geo.block_size.block_of(ring.at);
                return Err(Error::Inconsistent {
                    block,
                    what: "journal header older than the ring",
                });
            }
            // Of an earlier file system.
            _ => return Ok(scan),
        }
        if head.count > 0 {
            collect(volume, ring, &record, head, &mut scan)?;
            scan.transactions += 1;
        }
        left -= head.len;
        scan.offset = (scan.offset + head.len) % ring.len;
        scan.sequence += 1;
    }
}

/// Verifies every image of a sealed record and notes the newest of each block.
fn collect(
    volume: &Volume,
    ring: &Ring,
    record: &[u8],
    head: RecordHead,
    scan: &mut Scan,
) -> Result<()> {
    let head_len = ring.head_len(head.count);
    let (names, images) = record.split_at(Bytes(head_len).to_usize().min(record.len()));
    let names = names.get(RawTxHeader::LEN..).unwrap_or(&[]);
    let names = names.chunks_exact(size_of::<RawTxBlock>());
    let images = images.chunks_exact(Bytes(ring.image).to_usize());
    let count = usize::try_from(head.count).unwrap_or(usize::MAX);
    let mut offset = scan.offset + head_len;
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
        let found = Found { offset, generation: header.generation() };
        let newest = scan.images.entry(block).or_insert(found);
        if newest.generation < found.generation {
            *newest = found;
        }
        offset += ring.image;
    }
    Ok(())
}

/// Whether a body may be written to `block`: only where slots are, and where one begins. Anywhere
/// else a body could lie over data, a ring, or a lock sector.
fn is_slot(volume: &Volume, block: BlockNo) -> bool {
    let sb = &volume.sb;
    let slot = volume.geo.slot_blocks();
    let nodes = u64::from(sb.node_slots.get());
    let areas = [
        (0, 1),
        (sb.named_start.get(), u64::from(sb.named_count.get())),
        (sb.plock_start.get(), u64::from(sb.plock_count.get())),
        (sb.node_area.get(), nodes * u64::from(sb.node_area_slots.get())),
        (sb.rgrp_start.get(), sb.rgrp_count.get().saturating_mul(sb.rgrp_blocks.get()) / slot),
    ];
    volume.holds(block)
        && areas.iter().any(|(start, slots)| {
            let from_start = block.get().checked_sub(*start);
            from_start.is_some_and(|n| n.is_multiple_of(slot) && n / slot < *slots)
        })
}

/// Writes those of `batch` in place that are newer than what stands there. Returns how many.
/// Complete, not durable.
fn put_back(volume: &Volume, ring: &Ring, dead: Life, batch: &[(BlockNo, Found)]) -> Result<u64> {
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
            Err(_) => may_mend(volume, dead, *block, &header)?,
        };
        if older {
            newer.push((*block, image));
        }
    }
    volume.write_bodies(&newer)?;
    Ok(newer.len() as u64)
}

/// Whether a block that reads as damaged is the dead node's to mend with the image that `image` is
/// the header of. If the lock that covers it says otherwise, it is not: a lock is given up only when
/// the block is in place and stable, so somebody else was granted it since, and either writes the
/// block just now, or died doing so and has a newer image in its own journal, which another node may
/// be replaying. If the lock is the dead node's, nobody writes the block any more; but somebody may
/// have while it was read the first time, and have handed the lock to the dead one since.
fn may_mend(volume: &Volume, dead: Life, block: BlockNo, image: &MetaHeader) -> Result<bool> {
    let owner = LockNo(image.owner.get());
    let lock_at = BlockNo(owner.get());
    // What belongs to one node slot is changed by its node, or by whoever recovers it, alone.
    let end = NodeId(volume.sb.node_slots.get());
    let private = volume.node_area(NodeId(0), 0)..volume.node_area(end, 0);
    if !volume.holds(lock_at) || private.contains(&lock_at) {
        return Ok(true);
    }
    let mut sector = AlignedBuf::zeroed(volume.geo.lock_sector.to_usize());
    for _ in 0..RECORD_READS {
        volume.pool.read(volume.slot_at(lock_at), &mut sector)?;
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

#[cfg(test)]
mod tests;
