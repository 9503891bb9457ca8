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
    /// What changes of bitmap `n`, by places in it; each bitmap speaks of `per_bitmap` blocks.
    fn in_bitmap(&self, n: u64, per_bitmap: u64) -> Vec<(u64, u64, BlockState)> {
        let (from, to) = (n * per_bitmap, (n + 1) * per_bitmap);
        let runs = self.runs.iter().filter_map(|&(start, len, state)| {
            let (a, b) = (start.max(from), (start + len).min(to));
            (a < b).then(|| (a - from, b - a, state))
        });
        runs.collect()
    }
}

/// The slot of bitmap `n` of a group.
fn bitmap_slot(shape: &GroupShape, n: u64, slot_blocks: u64) -> BlockNo {
    BlockNo(shape.start.get() + (1 + n) * slot_blocks)
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
    let bitmap = bitmap_slot(&shape, at / per_bitmap, slot);
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
        bitmap_slot(&self.shape, n, self.slot_blocks)
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
            let inner = edits.in_bitmap(n, self.per_bitmap);
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

#[cfg(test)]
impl Edits {
    /// The runs, and what is added to the free blocks and to the free slots.
    pub fn told(&self) -> (&[(u64, u64, BlockState)], i64, i64) {
        (&self.runs, self.free, self.meta)
    }
}

#[cfg(test)]
impl Group {
    /// 400 blocks from 1000, all of them `Data` but these runs.
    pub fn for_tests(kind: SubpoolKind, runs: &[(u64, u64, BlockState)]) -> Self {
        let (start, block_count) = (BlockNo(990), 400);
        let shape = GroupShape { kind, start, bitmap_slots: 1, first_block: 1000, block_count };
        let mut bits = vec![0x55; 100];
        for &(at, n, state) in runs {
            bits::fill(&mut bits, at, n, state);
        }
        let (index, lock, raw) = (3, LockNo::from(start), shape.raw(3));
        Self { index, lock, shape, raw, bits, slot_blocks: 1, per_bitmap: block_count }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::rgrp::BlockState::{Data, Free, MetaFree, MetaUsed};
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn changes_that_go_on_are_one_run_and_are_counted() {
        let mut edits = Edits::default();
        assert!(edits.is_empty());
        edits.push(10, 2, Free, Data);
        edits.push(12, 3, Free, Data);
        edits.push(15, 1, Free, MetaUsed);
        edits.push(20, 1, Data, MetaUsed);
        edits.push(21, 4, MetaUsed, MetaFree);
        edits.push(25, 2, Data, Free);
        let runs =
            [(10, 5, Data), (15, 1, MetaUsed), (20, 1, MetaUsed), (21, 4, MetaFree), (25, 2, Free)];
        assert_eq!(edits.told(), (&runs[..], -4, 4));
        assert!(!edits.is_empty());
    }

    #[test]
    fn each_bitmap_gets_its_part_of_a_change() {
        let mut edits = Edits::default();
        edits.push(90, 220, Free, Data);
        edits.push(400, 10, Data, Free);
        let parts: Vec<_> = (0..6).map(|n| edits.in_bitmap(n, 100)).collect();
        let expected = [
            vec![(90, 10, Data)],
            vec![(0, 100, Data)],
            vec![(0, 100, Data)],
            vec![(0, 10, Data)],
            vec![(0, 10, Free)],
            vec![],
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn bitmaps_stand_behind_their_header() {
        let shape = Group::for_tests(SubpoolKind::General, &[]).shape;
        assert_eq!([0, 2].map(|n| bitmap_slot(&shape, n, 1).get()), [991, 993]);
        assert_eq!([0, 2].map(|n| bitmap_slot(&shape, n, 2).get()), [992, 996]);
    }

    #[test]
    fn a_header_that_is_not_its_places_is_refused() {
        let Group { shape, raw, .. } = Group::for_tests(SubpoolKind::Data, &[]);
        let with = |spoil: &dyn Fn(&mut RawRgrp)| {
            let mut raw = raw;
            spoil(&mut raw);
            check_header(shape.start, 3, &shape, raw.as_bytes()).is_ok()
        };
        assert!(with(&|_| {}));
        assert!(with(&|raw| raw.free_meta.set(400)), "all may be free slots");
        assert!(!with(&|raw| raw.index.set(4)));
        assert!(!with(&|raw| raw.bitmap_slots.set(2)));
        assert!(!with(&|raw| raw.first_block.set(1001)));
        assert!(!with(&|raw| raw.block_count.set(399)));
        assert!(!with(&|raw| raw.subpool.set(0)));
        assert!(!with(&|raw| raw.free_blocks.set(401)));
        assert!(!with(&|raw| raw.free_meta.set(401)));
    }

    #[test]
    fn runs_outside_a_group_are_told() {
        let group = Group::for_tests(SubpoolKind::General, &[]);
        let locals = [999, 1000, 1399, 1400].map(|block| group.local(block));
        assert_eq!(locals, [None, Some(0), Some(399), None]);
        assert_eq!(group.local_run(1390, 10).unwrap(), 390);
        assert_eq!(group.local_run(1000, 400).unwrap(), 0);
        assert!(group.local_run(1390, 11).is_err() && group.local_run(999, 2).is_err());
        assert_eq!((group.block(5), group.blocks_of_bitmap()), (1005, 400));
    }

    #[test]
    fn what_is_freed_must_fit_its_group() {
        let kinds = [SubpoolKind::General, SubpoolKind::Data, SubpoolKind::Metadata];
        assert_eq!(kinds.map(|kind| fits(kind, Free)), [true, true, false]);
        assert_eq!(kinds.map(|kind| fits(kind, MetaFree)), [true, false, true]);
    }
}
