//! Records of a journal, as they are read.

use std::collections::BTreeMap;

use braid_format::journal::{RawTxBlock, RawTxHeader};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, Bytes, Generation};
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::journal::{Header, RecordHead, Ring, record_is_sealed};
use crate::volume::Volume;

/// The newest image of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Its place in the ring.
    pub(super) offset: u64,
    pub(super) generation: Generation,
}

/// What the ring holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) images: BTreeMap<BlockNo, Found>,
    pub(super) transactions: u64,
    /// Where the next record would go, and its number.
    pub(super) offset: u64,
    pub(super) sequence: u64,
}

impl RecordHead {
    /// Whether it is of the journal's writer, and has the number that comes next.
    pub(super) fn continues(&self, header: &Header, scan: &Scan) -> bool {
        self.incarnation == header.incarnation && self.sequence == scan.sequence
    }
}

/// [`next_record`], if it is read first.
pub(super) fn read_record(
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
pub(super) fn in_ring(volume: &Volume, ring: &Ring, offset: u64, what: &str) -> Error {
    let block = volume.geo.block_size.block_of(ring.at + Bytes(offset));
    Error::Journal { node: ring.node, block, what: what.into() }
}

/// Verifies every image of a sealed record at `at`.
pub(super) fn collect(
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
pub(crate) fn is_slot(volume: &Volume, block: BlockNo) -> bool {
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
