//! Which bytes are good, as the file system knows by its checksums: for scrubs, for the filling of
//! members, and for making copies equal after a crash.

use std::collections::{BTreeMap, HashMap, HashSet};

use braid_format::crc::crc32c;
use braid_format::lock_record::LockRecord;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::node::{Heartbeat, SlotRecord};
use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, ByteOffset, Bytes, LockNo, NodeId};
use braid_lock::NodeAreas;
use braid_pool::ChecksumVerifier;
use braid_pool::device::AlignedBuf;
use parking_lot::Mutex;

use crate::groups::{PER_BYTE, blocks_per_bitmap};
use crate::journal::{Header, Ring};
use crate::replay::is_slot;
use crate::volume::Volume;

/// Knows metadata by its checksum and the address in it, and records of locks and nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metadata {
    geo: Geometry,
    areas: Option<NodeAreas>,
}

impl Metadata {
    /// The geometry of this file system.
    pub fn of(volume: &Volume) -> Self {
        // If slots are elsewhere, the areas on the pool are not used.
        let here = volume.external_store.is_none();
        let areas = NodeAreas::from_superblock(&volume.sb).filter(|_| here);
        Self { geo: volume.geo, areas }
    }
    /// The node whose sector, of the packed area that begins at `area`, is at `at`.
    fn node_at(&self, area: BlockNo, at: ByteOffset) -> Option<NodeId> {
        let areas = self.areas?;
        let within = at.0.checked_sub(self.geo.block_size.offset_of(area).0)?;
        let n = u16::try_from(within / areas.lock_sector.0).ok()?;
        let fits = n < areas.node_slots && within.is_multiple_of(areas.lock_sector.0);
        fits.then_some(NodeId(n))
    }
}

impl ChecksumVerifier for Metadata {
    fn grain(&self) -> usize {
        Bytes(self.geo.slot_bytes()).to_usize()
    }
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool> {
        // The lock record before it is part of what is copied: a damaged one must not win.
        let whole = !self.has_damaged_record(at, bytes);
        (whole && self.verify_body(at, bytes)).then_some(true)
    }
    fn has_damaged_record(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        let record = bytes.get(..self.geo.body_at().to_usize()).unwrap_or_default();
        record.iter().any(|b| *b != 0) && !self.verify_sector(at, record)
    }
    fn verify_body(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        self.version(at, bytes).is_some()
    }
    fn version(&self, at: ByteOffset, bytes: &[u8]) -> Option<u64> {
        let start = self.geo.body_at().to_usize();
        let block = self.geo.block_size.block_of(at);
        let aligned = self.geo.block_size.offset_of(block) == at;
        let body = bytes.get(start..start + self.geo.body_len()).filter(|_| aligned)?;
        let (header, _) = MetaHeader::decode(body, block).ok()?;
        Some(header.generation().get())
    }
    fn verify_sector(&self, at: ByteOffset, sector: &[u8]) -> bool {
        if let Some(areas) = self.areas {
            if let Some(slot) = self.node_at(areas.slot_area, at) {
                return SlotRecord::decode(sector, slot).is_ok();
            }
            if let Some(slot) = self.node_at(areas.heartbeat_area, at) {
                return Heartbeat::decode(sector, slot).is_ok();
            }
        }
        let block = self.geo.block_size.block_of(at);
        let aligned = self.geo.block_size.offset_of(block) == at;
        aligned && LockRecord::decode(sector, LockNo::from(block)).is_ok()
    }
}

/// The checksums of sectors of a ring, by their place there, and what its header said then.
#[derive(Default)]
struct Known {
    header: Option<Header>,
    sectors: HashMap<u64, u32>,
}

/// What stands in its place as it has for long, as it was when this was first asked for.
#[derive(Default)]
struct InPlace {
    /// Blocks whose newest version may stand in a journal alone; `None`: a journal cannot be read.
    journaled: Option<HashSet<BlockNo>>,
    /// Bitmaps that were looked at.
    bitmaps: HashMap<BlockNo, Option<AlignedBuf>>,
}

impl InPlace {
    /// Journals first, bitmaps later: what a journal has given up stands in the bitmap then.
    fn of(volume: &Volume) -> Self {
        let mut journaled = Some(HashSet::new());
        for node in (0..volume.sb.node_slots.get()).map(NodeId) {
            let header = Ring::of(volume, node).ok().and_then(|r| Header::look(volume, &r));
            let blocks = header.map(|h| crate::replay::blocks(volume, node, &h));
            match (&mut journaled, blocks) {
                (Some(all), Some(blocks)) => all.extend(blocks),
                _ => journaled = None,
            }
        }
        Self { journaled, bitmaps: HashMap::new() }
    }
    fn is_journaled(&self, block: BlockNo) -> bool {
        self.journaled.as_ref().is_none_or(|all| all.contains(&block))
    }
    /// Whether a slot has been metadata in use since before all that the journals tell of. What is in the
    /// window of a node is not known.
    fn is_metadata(&mut self, volume: &Volume, block: BlockNo) -> bool {
        if self.is_journaled(block) {
            return false;
        }
        let Some(index) = volume.rgrp_of(block) else { return is_slot(volume, block) };
        let Some(shape) = volume.group_shape(index) else { return false };
        let slot = volume.geo.slot_blocks();
        let Some(at) = shape.local(block.get(), slot) else {
            return is_slot(volume, block);
        };
        let per = blocks_per_bitmap(volume.geo);
        let bitmap = BlockNo(shape.start.get() + (1 + at / per) * slot);
        if self.is_journaled(bitmap) {
            return false;
        }
        let look = || volume.look_at_body(bitmap).ok();
        let body = self.bitmaps.entry(bitmap).or_insert_with(look);
        let bits = body.as_ref().and_then(|body| body.get(MetaHeader::LEN..));
        let (byte, n) = (Bytes(at % per / PER_BYTE).to_usize(), at % per % PER_BYTE);
        let state =
            bits.and_then(|bits| bits.get(byte)).map(|b| BlockState::from_bits(b >> (2 * n)));
        state == Some(BlockState::MetaUsed)
    }
}

/// Knows besides what is whole of journals that are still to be replayed. Asked while the bytes in
/// question are held against all writers.
///
/// A ring is read when it is first asked for. While nobody writes the journal, that is enough. The
/// journal of a living node is read again once its header has changed. Between, the records that
/// were found stand as they were: the ring's space is used again only after a header that is
/// durable ([`crate::journal`]). What has been replayed, or is not durable yet, it does not know: a
/// copy of that may differ, and nobody decides.
pub(crate) struct VolumeVerifier<'a> {
    volume: &'a Volume,
    metadata: Metadata,
    rings: Mutex<BTreeMap<NodeId, Known>>,
    in_place: Mutex<Option<InPlace>>,
    living: bool,
}

impl<'a> VolumeVerifier<'a> {
    /// Of this file system, as it is now. For a recovery: nobody writes the journals that it is
    /// asked about.
    pub fn of(volume: &'a Volume) -> Self {
        let metadata = Metadata::of(volume);
        let (rings, in_place) = (Mutex::default(), Mutex::default());
        Self { volume, metadata, rings, in_place, living: false }
    }
    /// For scrubs, fills and moves: the same while nodes use the file system.
    pub fn of_mounted(volume: &'a Volume) -> Self {
        Self { living: true, ..Self::of(volume) }
    }
    fn is_in_ring(&self, at: ByteOffset, sector: &[u8]) -> bool {
        let volume = self.volume;
        let (first, len) = volume.journal(NodeId(0));
        let Some(within) = at.0.checked_sub(first.0) else { return false };
        let node = within.checked_div(len.0).and_then(|n| u16::try_from(n).ok()).map(NodeId);
        let Some(node) = node.filter(|n| n.get() < volume.sb.node_slots.get()) else {
            return false;
        };
        let mut rings = self.rings.lock();
        let fresh = !rings.contains_key(&node);
        let known = rings.entry(node).or_default();
        if fresh || self.living {
            let header = Ring::of(volume, node).ok().and_then(|r| Header::look(volume, &r));
            if fresh || known.header != header {
                let sectors = header.map(|h| crate::replay::sectors(volume, node, &h));
                *known = Known { header, sectors: sectors.unwrap_or_default() };
            }
        }
        known.sectors.get(&(within % len.0)).is_some_and(|crc| *crc == crc32c(sector))
    }
}

impl ChecksumVerifier for VolumeVerifier<'_> {
    fn grain(&self) -> usize {
        self.metadata.grain()
    }
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool> {
        self.metadata.verify(at, bytes)
    }
    fn has_damaged_record(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        self.metadata.has_damaged_record(at, bytes)
    }
    fn verify_body(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        self.metadata.verify_body(at, bytes)
    }
    fn version(&self, at: ByteOffset, bytes: &[u8]) -> Option<u64> {
        self.metadata.version(at, bytes)
    }
    fn is_settled(&self, at: ByteOffset, good: &[u8]) -> bool {
        let geo = self.metadata.geo;
        let block = geo.block_size.block_of(at);
        let body = good.get(geo.body_at().to_usize()..).unwrap_or_default();
        // These are written without a journal.
        let alone = |k| matches!(k, MetaKind::JournalHeader | MetaKind::Superblock);
        if !MetaHeader::decode(body.get(..geo.body_len()).unwrap_or_default(), block)
            .is_ok_and(|(_, kind)| !alone(kind))
        {
            return false;
        }
        let mut in_place = self.in_place.lock();
        let in_place = in_place.get_or_insert_with(|| InPlace::of(self.volume));
        in_place.is_metadata(self.volume, block)
    }
    fn verify_sector(&self, at: ByteOffset, sector: &[u8]) -> bool {
        self.metadata.verify_sector(at, sector) || self.is_in_ring(at, sector)
    }
}
