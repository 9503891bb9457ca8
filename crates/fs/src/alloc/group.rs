//! A resource group under its lock, held exclusive by the caller throughout.

use braid_format::label::SubpoolKind;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::rgrp::{BlockState, RawRgrp};
use braid_format::{BlockNo, LockNo};
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use super::bits;
use crate::error::{Error, Result};
use crate::groups::{GroupShape, blocks_per_bitmap, takes_data, takes_slots};
use crate::meta::{Meta, Tx};
use crate::volume::Volume;

/// Headers read at once.
const BATCH: usize = 256;

/// A group: its shape, its header, all of its bits (a copy).
#[derive(Debug)]
pub(super) struct Group {
    pub index: u64,
    pub lock: LockNo,
    pub shape: GroupShape,
    pub raw: RawRgrp,
    pub bits: Vec<u8>,
    slot_blocks: u64,
    per_bitmap: u64,
}

/// A change of some bits of a group, and what it does to the header's counters.
#[derive(Debug, Default)]
pub(super) struct Edits {
    runs: Vec<(u64, u64, BlockState)>,
    free: i64,
    meta: i64,
}

impl Edits {
    /// `len` blocks from `start` go from one state to another.
    pub fn push(&mut self, start: u64, len: u64, from: BlockState, to: BlockState) {
        let n = i64::try_from(len).unwrap_or(0);
        for (state, sign) in [(from, -1), (to, 1)] {
            match state {
                BlockState::Free => self.free += sign * n,
                BlockState::MetaFree => self.meta += sign * n,
                BlockState::Data | BlockState::MetaUsed => {}
            }
        }
        match self.runs.last_mut() {
            Some((s, l, state)) if *state == to && *s + *l == start => *l += len,
            _ => self.runs.push((start, len, to)),
        }
    }
    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Bounds and counters of a group's header as its place demands them.
pub(crate) fn check_header(
    block: BlockNo,
    index: u64,
    shape: &GroupShape,
    body: &[u8],
) -> Result<RawRgrp> {
    let bad = |what| Error::Inconsistent { block, what };
    let (raw, _) = RawRgrp::read_from_prefix(body).map_err(|_| bad("group header too short"))?;
    if raw.index.get() != index {
        return Err(bad("group index"));
    }
    if u64::from(raw.bitmap_slots.get()) != shape.bitmap_slots
        || raw.first_block.get() != shape.first_block
        || raw.block_count.get() != shape.block_count
        || raw.subpool.get() != u32::from(shape.kind as u16)
    {
        return Err(bad("group bounds"));
    }
    if raw.free_blocks.get() > shape.block_count || raw.free_meta.get() > shape.block_count {
        return Err(bad("group counters"));
    }
    Ok(raw)
}

/// Reads the headers of groups, many at once and without their locks: `found` hears what each says;
/// `None`: it is being written, or damaged.
///
/// # Errors
/// That of `found`, which is given what could not be read.
pub(super) fn headers(
    volume: &Volume,
    groups: &[u64],
    found: &mut dyn FnMut(u64, Result<Option<RawRgrp>>) -> Result<()>,
) -> Result<()> {
    for batch in groups.chunks(BATCH) {
        let mut bodies: Vec<AlignedBuf> =
            batch.iter().map(|_| AlignedBuf::zeroed(volume.geo.body_len())).collect();
        let mut requests: Vec<PoolRequest<'_>> = batch
            .iter()
            .zip(&mut bodies)
            .map(|(i, body)| PoolRequest::read(volume.body_at(volume.rgrp(*i)), body))
            .collect();
        volume.pool.run(&mut requests);
        let read: Vec<_> = requests.into_iter().map(|r| r.result).collect();
        for ((index, body), read) in batch.iter().zip(&bodies).zip(read) {
            let block = volume.rgrp(*index);
            let sound = MetaHeader::decode_kind(body, block, MetaKind::Rgrp).is_ok();
            let shape = volume.group_shape(*index).filter(|_| sound);
            let header = shape.and_then(|s| check_header(block, *index, &s, body).ok());
            found(*index, read.map(|()| header).map_err(Error::from))?;
        }
    }
    Ok(())
}

/// What the bitmap of group `index` says of `block`, which begins a slot of the group, or else `None`. One
/// bitmap slot is read, if it is not in memory. The group's lock is held, shared at least.
pub(super) fn state_of(
    volume: &Volume,
    meta: &Meta,
    index: u64,
    block: BlockNo,
) -> Result<Option<BlockState>> {
    let slot = volume.geo.slot_blocks();
    let shape = volume.group_shape(index).filter(|_| block.get().is_multiple_of(slot));
    let place = shape.and_then(|shape| Some((shape, shape.local(block.get(), slot)?)));
    let Some((shape, at)) = place else { return Ok(None) };
    let per_bitmap = blocks_per_bitmap(volume.geo);
    let bitmap = BlockNo(shape.start.get() + (1 + at / per_bitmap) * slot);
    let body = meta.read(bitmap, LockNo::from(shape.start), MetaKind::Bitmap)?;
    Ok(Some(bits::get(body.get(MetaHeader::LEN..).unwrap_or(&[]), at % per_bitmap)))
}

impl Group {
    /// Reads header and bitmaps.
    pub fn load(volume: &Volume, meta: &Meta, index: u64) -> Result<Self> {
        let block = volume.rgrp(index);
        let lock = LockNo::from(block);
        let shape = volume
            .group_shape(index)
            .ok_or(Error::Inconsistent { block, what: "group outside the file system" })?;
        let body = meta.read(block, lock, MetaKind::Rgrp)?;
        let raw = check_header(block, index, &shape, &body)?;
        let slot_blocks = volume.geo.slot_blocks();
        let per_bitmap = blocks_per_bitmap(volume.geo);
        let mut group = Self { index, lock, shape, raw, bits: Vec::new(), slot_blocks, per_bitmap };
        for n in 0..shape.bitmap_slots {
            let body = meta.read(group.bitmap(n), lock, MetaKind::Bitmap)?;
            group.bits.extend_from_slice(body.get(MetaHeader::LEN..).unwrap_or(&[]));
        }
        Ok(group)
    }
    fn bitmap(&self, n: u64) -> BlockNo {
        BlockNo(self.shape.start.get() + (1 + n) * self.slot_blocks)
    }
    /// Index in the group of a block, if it lies among those the bitmap speaks of.
    pub fn local(&self, block: u64) -> Option<u64> {
        block.checked_sub(self.shape.first_block).filter(|&i| i < self.shape.block_count)
    }
    /// Index in the group of the first of `len` blocks that all lie in it.
    pub fn local_run(&self, start: u64, len: u64) -> Result<u64> {
        let local = self.local(start).filter(|i| len <= self.shape.block_count - i);
        local.ok_or(Error::Inconsistent { block: BlockNo(start), what: "run outside its group" })
    }
    /// Blocks that one bitmap speaks of.
    pub fn blocks_of_bitmap(&self) -> u64 {
        self.per_bitmap
    }
    /// Block number of the `i`-th block.
    pub fn block(&self, i: u64) -> u64 {
        self.shape.first_block + i
    }
    /// Writes changed bits and the header, in `tx`.
    pub fn apply(&mut self, tx: &mut Tx<'_>, edits: &Edits) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        for &(start, len, state) in &edits.runs {
            bits::fill(&mut self.bits, start, len, state);
        }
        for n in 0..self.shape.bitmap_slots {
            let (from, to) = (n * self.per_bitmap, (n + 1) * self.per_bitmap);
            let inner: Vec<(u64, u64, BlockState)> = edits
                .runs
                .iter()
                .filter_map(|&(start, len, state)| {
                    let (a, b) = (start.max(from), (start + len).min(to));
                    (a < b).then(|| (a - from, b - a, state))
                })
                .collect();
            if inner.is_empty() {
                continue;
            }
            tx.modify(self.bitmap(n), self.lock, MetaKind::Bitmap, |body| {
                let Some(bits) = body.get_mut(MetaHeader::LEN..) else { return };
                for (start, len, state) in inner {
                    bits::fill(bits, start, len, state);
                }
            })?;
        }
        let free = self.raw.free_blocks.get().saturating_add_signed(edits.free);
        let meta = self.raw.free_meta.get().saturating_add_signed(edits.meta);
        self.raw.free_blocks.set(free);
        self.raw.free_meta.set(meta);
        tx.modify(self.shape.start, self.lock, MetaKind::Rgrp, |body| {
            if let Ok((raw, _)) = RawRgrp::mut_from_prefix(body) {
                raw.free_blocks.set(free);
                raw.free_meta.set(meta);
            }
        })
    }
}

/// Whether blocks of a group of this kind may be freed as `state` says.
pub(crate) fn fits(kind: SubpoolKind, state: BlockState) -> bool {
    match state {
        BlockState::Free | BlockState::Data => takes_data(kind),
        BlockState::MetaFree | BlockState::MetaUsed => takes_slots(kind),
    }
}
