//! Records of a journal on mirrors, of which a copy is damaged.
//!
//! A record is long: it may be whole on no copy and yet be there, some of its images good on one copy and some
//! on another. What is sealed is what was written, wherever its parts were read.

use std::collections::{HashMap, HashSet};

use braid_format::Bytes;
use braid_format::crc::crc32c;
use braid_format::journal::{RawTxBlock, RawTxHeader};
use braid_format::meta::MetaHeader;
use braid_format::{BlockNo, NodeId};
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use super::records::{Scan, read_record};
use crate::error::Result;
use crate::journal::{Header, RecordHead, Ring, record_is_sealed};
use crate::volume::Volume;

/// The record that continues the journal, if there is one in the `left` bytes. Where only another copy
/// has it than is read, it is written to all before it counts.
pub(super) fn next_record(
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
    let Some((head, record)) = gather(volume, ring, header, scan, left) else {
        return Ok(None);
    };
    let (node, record_no) = (ring.node, head.sequence);
    tracing::warn!(of_node = %node, record_no, "damaged in a journal; read from another member");
    // A node that keeps no log only looks.
    if volume.pool.is_attached() {
        volume.pool.write(ring.at + Bytes(scan.offset), &record)?;
    }
    Ok(Some((head, record)))
}

/// The record that continues the journal in the `left` bytes, from whatever copies have it. Waits for nobody who
/// changes the pool.
pub(super) fn gather(
    volume: &Volume,
    ring: &Ring,
    header: &Header,
    scan: &Scan,
    left: u64,
) -> Option<(RecordHead, AlignedBuf)> {
    let room = (ring.len - scan.offset).min(left);
    if room < ring.sector {
        return None;
    }
    let mut heads: Vec<RecordHead> = Vec::new();
    for sector in looks(volume, ring, scan.offset, ring.sector) {
        let head = RecordHead::decode(ring, &sector, room).filter(|h| h.continues(header, scan));
        heads.extend(head.filter(|h| !heads.contains(h)));
    }
    heads.into_iter().find_map(|head| {
        let mut versions = Vec::new();
        for record in looks(volume, ring, scan.offset, head.stored_len(ring)) {
            if record_is_sealed(&record) {
                return Some((head, record));
            }
            versions.push(record);
        }
        versions.iter().find_map(|first| together(ring, head, first, &versions)).map(|r| (head, r))
    })
}

/// What each copy has of a ring, as far as it can be read.
pub(super) fn looks<'a>(
    volume: &'a Volume,
    ring: &'a Ring,
    offset: u64,
    len: u64,
) -> impl Iterator<Item = AlignedBuf> + 'a {
    (0..volume.pool.copies()).filter_map(move |copy| {
        let mut buf = AlignedBuf::zeroed(Bytes(len).to_usize());
        volume.pool.look(ring.at + Bytes(offset), &mut buf, copy).ok()?;
        Some(buf)
    })
}

/// A record with the head that `first` has, and each image from a version in which it is good.
fn together(
    ring: &Ring,
    head: RecordHead,
    first: &AlignedBuf,
    versions: &[AlignedBuf],
) -> Option<AlignedBuf> {
    let mut record = AlignedBuf::zeroed(first.len());
    record.copy_from_slice(first);
    let (head_len, len) =
        (Bytes(ring.head_len(head.count)).to_usize(), Bytes(ring.image).to_usize());
    let names = first.get(RawTxHeader::LEN..head_len)?.chunks_exact(size_of::<RawTxBlock>());
    let places = record.get_mut(head_len..)?.chunks_exact_mut(len);
    for (n, (name, to)) in names.zip(places).enumerate() {
        let block = BlockNo(RawTxBlock::read_from_prefix(name).ok()?.0.block.get());
        let start = head_len + n * len;
        let mut images = versions.iter().filter_map(|v| v.get(start..start + len));
        if let Some(good) = images.find(|image| MetaHeader::decode(image, block).is_ok()) {
            to.copy_from_slice(good);
        }
    }
    record_is_sealed(&record).then_some(record)
}

/// What is done with a record: its ring, its head, its place in the ring, its bytes.
type EachRecord<'e> = dyn FnMut(&Ring, &RecordHead, u64, &[u8]) + 'e;

/// Calls `each` with the records that are to be replayed of `node`'s journal, whose header is `header`, and their
/// places in the ring. Waits for nobody who changes the pool.
fn each_record(volume: &Volume, node: NodeId, header: &Header, each: &mut EachRecord<'_>) {
    let Ok(ring) = Ring::of(volume, node) else { return };
    if header.clean {
        return;
    }
    let mut scan =
        Scan { offset: header.tail_offset, sequence: header.tail_sequence, ..Scan::default() };
    let mut left = ring.len;
    while let Some((head, record)) = gather(volume, &ring, header, &scan, left) {
        each(&ring, &head, scan.offset, &record);
        left -= head.len;
        scan.offset = (scan.offset + head.len) % ring.len;
        scan.sequence += 1;
    }
}

/// The checksums of all sectors of the records that are to be replayed of `node`'s journal, whose header
/// is `header`, by their place in the ring. Waits for nobody who changes the pool.
pub(crate) fn sectors(volume: &Volume, node: NodeId, header: &Header) -> HashMap<u64, u32> {
    let mut known = HashMap::new();
    each_record(volume, node, header, &mut |ring, _, offset, record| {
        let sectors = record.chunks(Bytes(ring.sector).to_usize());
        known.extend((0_u64..).zip(sectors).map(|(n, s)| (offset + n * ring.sector, crc32c(s))));
    });
    known
}

/// The blocks that are to be replayed of `node`'s journal, whose header is `header`: what stands in their places
/// may be old, or half new. Waits for nobody who changes the pool.
pub(crate) fn blocks(volume: &Volume, node: NodeId, header: &Header) -> HashSet<BlockNo> {
    let mut known = HashSet::new();
    each_record(volume, node, header, &mut |ring, head, _, record| {
        let names = record.get(RawTxHeader::LEN..Bytes(ring.head_len(head.count)).to_usize());
        let names = names.unwrap_or_default().chunks_exact(size_of::<RawTxBlock>());
        // Zeros follow the names, up to the sector's end.
        let names = names.take(usize::try_from(head.count).unwrap_or(usize::MAX));
        let blocks = names.filter_map(|name| RawTxBlock::read_from_prefix(name).ok());
        known.extend(blocks.map(|(name, _)| BlockNo(name.block.get())));
    });
    known
}
