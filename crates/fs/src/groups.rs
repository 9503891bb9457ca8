//! Where resource groups are: pure functions of the superblock.
//!
//! ```text
//!  one subpool        | fixed area | head blocks | head blocks | ...       | copy |
//!  with subpools      | fixed area | heads of data groups | head blocks | ... | copy |   metadata
//!                     | blocks | blocks | blocks | ...                                   data
//! ```
//! The groups of the first subpool come first, each behind its head (header slot, bitmap slots). A
//! data subpool's are nothing but blocks of file data, so that no lock record and no body stands
//! there. A group's lock is its header's, wherever that is.
//!
//! A file system that grows gets such a part for each region of the pool that was added: groups
//! behind their heads; or heads of data groups and groups for metadata, and blocks. Its groups are
//! counted after all others.
//!
//! A part that was added may leave again: it is *closed* (nothing more is put there), and when it is
//! empty *gone*. The numbers of its groups and its addresses are never used again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::label::SubpoolKind;
use braid_format::meta::{Geometry, MetaHeader};
use braid_format::rgrp::RawRgrp;
use braid_format::superblock::{RawLeaving, RawRegion, RawRegions, RawSuperblock};
use braid_format::{BlockNo, ByteOffset, Bytes};
use zerocopy::FromZeros;

/// Blocks that one byte of a bitmap describes: two bits each.
pub(crate) const PER_BYTE: u64 = 4;

/// Whether blocks of such a group may hold file data.
pub(crate) fn takes_data(kind: SubpoolKind) -> bool {
    matches!(kind, SubpoolKind::General | SubpoolKind::Data)
}
/// Whether blocks of such a group may be metadata slots.
pub(crate) fn takes_slots(kind: SubpoolKind) -> bool {
    matches!(kind, SubpoolKind::General | SubpoolKind::Metadata)
}

/// Where the superblock's copy is in a (sub)pool of `size` bytes: at the last 128 KiB boundary (the
/// largest slot).
pub(crate) fn copy_offset(size: Bytes) -> ByteOffset {
    const GRAIN: u64 = 128 << 10;
    ByteOffset(size.get().saturating_sub(1) / GRAIN * GRAIN)
}

/// Blocks that one bitmap slot speaks of.
pub(crate) fn blocks_per_bitmap(geo: Geometry) -> u64 {
    (geo.body_len() - MetaHeader::LEN) as u64 * PER_BYTE
}

/// A resource group's parts, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupShape {
    /// What its blocks may hold.
    pub kind: SubpoolKind,
    /// Header slot.
    pub start: BlockNo,
    pub bitmap_slots: u64,
    pub first_block: u64,
    pub block_count: u64,
}

impl GroupShape {
    /// A group in `len` blocks from `start`; `None` when nothing fits behind its header.
    pub fn new(geo: Geometry, kind: SubpoolKind, start: u64, len: u64) -> Option<Self> {
        let slot = geo.slot_blocks();
        let per_bitmap = blocks_per_bitmap(geo);
        let bitmap_slots = len.div_ceil(per_bitmap + slot);
        let head = (1 + bitmap_slots) * slot;
        // A last odd block of two-block slots would be of no use to metadata: data takes it.
        let block_count = len.checked_sub(head).filter(|&n| n > 0)?;
        Some(Self {
            kind,
            start: BlockNo(start),
            bitmap_slots,
            first_block: start + head,
            block_count,
        })
    }
    /// A data group of `len` blocks from `first_block`, its head at `head`.
    fn apart(geo: Geometry, head: u64, first_block: u64, len: u64) -> Option<Self> {
        let bitmap_slots = len.div_ceil(blocks_per_bitmap(geo));
        let kind = SubpoolKind::Data;
        let shape =
            Self { kind, start: BlockNo(head), bitmap_slots, first_block, block_count: len };
        (len > 0).then_some(shape)
    }
    /// The header's fields.
    pub fn raw(&self, index: u64) -> RawRgrp {
        let mut raw = RawRgrp::new_zeroed();
        raw.index.set(index);
        raw.bitmap_slots.set(u32::try_from(self.bitmap_slots).unwrap_or(u32::MAX));
        raw.subpool.set(u32::from(self.kind as u16));
        raw.first_block.set(self.first_block);
        raw.block_count.set(self.block_count);
        raw.free_blocks.set(self.block_count);
        raw
    }
    /// Place in the group of a run, if all of it is among the group's blocks.
    pub fn local(&self, start: u64, len: u64) -> Option<u64> {
        let at = start.checked_sub(self.first_block)?;
        (len <= self.block_count && at <= self.block_count - len).then_some(at)
    }
}

/// Groups side by side, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// First block of the first one.
    pub start: u64,
    /// From one to the next.
    pub stride: u64,
    pub count: u64,
    /// The last one ends here at the latest.
    pub end: u64,
}

impl Span {
    /// First block and blocks of group `index`.
    fn range(&self, index: u64) -> Option<(u64, u64)> {
        if index >= self.count {
            return None;
        }
        let start = self.start.checked_add(index.checked_mul(self.stride)?)?;
        let end = start.checked_add(self.stride)?.min(self.end);
        Some((start, end.checked_sub(start)?))
    }
    fn index_of(&self, block: u64) -> Option<u64> {
        let index = block.checked_sub(self.start)?.checked_div(self.stride)?;
        (index < self.count && block < self.end).then_some(index)
    }
}

/// The groups of a file system that were made together, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub geo: Geometry,
    /// In the first subpool, each behind its head.
    pub first: Span,
    /// In the data subpool; none in a pool of one subpool.
    pub data: Span,
    /// Head of the first data group.
    pub heads: u64,
    /// Slots from one head to the next.
    pub head_slots: u64,
}

impl Part {
    /// As a verified superblock says. `base`: blocks in the pool when it was made.
    pub fn of(geo: Geometry, sb: &RawSuperblock, base: u64) -> Self {
        let (start, stride) = (sb.rgrp_start.get(), sb.rgrp_blocks.get());
        let count = sb.rgrp_count.get();
        Self {
            geo,
            first: Span { start, stride, count, end: copy_block(geo, sb, base).get() },
            data: Span {
                start: sb.data_start.get(),
                stride: sb.data_blocks.get(),
                count: sb.data_count.get(),
                end: sb.data_end.get(),
            },
            heads: sb.data_heads.get(),
            head_slots: sb.data_head_slots.get(),
        }
    }
    /// What was added, as a verified superblock says.
    pub fn added(geo: Geometry, raw: &RawRegion) -> Self {
        let first = Span {
            start: raw.rgrp_start.get(),
            stride: raw.rgrp_blocks.get(),
            count: raw.rgrp_count.get(),
            end: raw.rgrp_end.get(),
        };
        let data = Span {
            start: raw.data_start.get(),
            stride: raw.data_blocks.get(),
            count: raw.data_count.get(),
            end: raw.data_end.get(),
        };
        let (heads, head_slots) = (raw.data_heads.get(), raw.data_head_slots.get());
        Self { geo, first, data, heads, head_slots }
    }
    /// The same for the superblock; `end`: blocks in the pool with it.
    pub fn raw(&self, end: u64) -> RawRegion {
        let mut raw = RawRegion::default();
        for (to, from) in [
            (&mut raw.rgrp_start, self.first.start),
            (&mut raw.rgrp_blocks, self.first.stride),
            (&mut raw.rgrp_count, self.first.count),
            (&mut raw.rgrp_end, self.first.end),
            (&mut raw.data_start, self.data.start),
            (&mut raw.data_blocks, self.data.stride),
            (&mut raw.data_count, self.data.count),
            (&mut raw.data_end, self.data.end),
            (&mut raw.data_heads, self.heads),
            (&mut raw.data_head_slots, self.head_slots),
            (&mut raw.end, end),
        ] {
            to.set(from);
        }
        raw
    }
    /// Whether metadata and file data stand in groups of their own.
    pub fn split(&self) -> bool {
        self.data.count > 0
    }
    /// All groups.
    pub fn count(&self) -> u64 {
        self.first.count + self.data.count
    }
    /// What group `index` may hold.
    pub fn kind(&self, index: u64) -> SubpoolKind {
        match (self.split(), index < self.first.count) {
            (false, _) => SubpoolKind::General,
            (true, true) => SubpoolKind::Metadata,
            (true, false) => SubpoolKind::Data,
        }
    }
    /// Header slot of group `index`.
    pub fn head(&self, index: u64) -> BlockNo {
        match index.checked_sub(self.first.count) {
            None => BlockNo(self.first.start + index * self.first.stride),
            Some(n) => BlockNo(self.heads + n * self.head_slots * self.geo.slot_blocks()),
        }
    }
    /// The parts of group `index`, if there is one.
    pub fn shape(&self, index: u64) -> Option<GroupShape> {
        match index.checked_sub(self.first.count) {
            None => {
                let (start, len) = self.first.range(index)?;
                GroupShape::new(self.geo, self.kind(index), start, len)
            }
            Some(n) => {
                let (start, len) = self.data.range(n)?;
                GroupShape::apart(self.geo, self.head(index).get(), start, len)
            }
        }
    }
    /// The group that `block` lies in, if it lies in one: in the first subpool also among the
    /// slots of its head.
    pub fn of_block(&self, block: BlockNo) -> Option<u64> {
        let first = self.first.index_of(block.get());
        first.or_else(|| self.data.index_of(block.get()).map(|n| n + self.first.count))
    }
    /// Whether a metadata slot may stand at `block`, as far as groups go.
    pub fn may_hold_slot(&self, block: BlockNo) -> bool {
        self.first.index_of(block.get()).is_some()
    }
    /// First and one past the last block that may be file data.
    pub fn data_bounds(&self, total: u64) -> (u64, u64) {
        if self.split() { (self.data.start, self.data.end) } else { (self.first.start, total) }
    }
    /// The longest part of a run from its start on that lies in one group. Data groups stand side
    /// by side, so a file's blocks may go on from one to the next.
    pub fn part(&self, start: u64, len: u64) -> u64 {
        let Some(n) = self.data.index_of(start) else { return len };
        self.data.range(n).map_or(len, |(first, blocks)| len.min(first + blocks - start))
    }
    /// Most groups that `len` blocks of a file touch.
    pub fn touched(&self, len: u64) -> u64 {
        let span = if self.split() { &self.data } else { &self.first };
        len / span.stride.max(1) + 2
    }
    /// Blocks that may hold file data, and blocks of groups for metadata alone.
    pub fn totals(&self) -> (u64, u64) {
        let shapes = (0..self.count()).filter_map(|i| self.shape(i));
        shapes.fold((0, 0), |(data, meta), g| {
            if takes_data(g.kind) {
                (data + g.block_count, meta)
            } else {
                (data, meta + g.block_count)
            }
        })
    }
    /// Blocks that may hold file data.
    #[cfg(test)]
    pub fn data_total(&self) -> u64 {
        let from = if self.split() { self.first.count } else { 0 };
        (from..self.count()).filter_map(|i| self.shape(i)).map(|g| g.block_count).sum()
    }
}

/// All groups of a file system: those that were made with it, and those that were added since. A
/// group that was added keeps its number, also when it is gone.
#[derive(Debug)]
pub(crate) struct Groups {
    /// The number of its first group, and the part.
    parts: Box<[OnceLock<(u64, Part)>]>,
    /// Which parts that were added leave, and which have left.
    leaving: AtomicU64,
}

/// Both words in one, so that they change together.
fn packed(leaving: RawLeaving) -> u64 {
    u64::from(leaving.gone.get()) << 32 | u64::from(leaving.closed.get())
}

impl Groups {
    /// With nothing added.
    pub fn new(first: Part) -> Self {
        let parts: Box<[_]> = (0..=RawRegions::MAX).map(|_| OnceLock::new()).collect();
        let groups = Self { parts, leaving: AtomicU64::new(0) };
        groups.push(first);
        groups
    }
    /// Takes note of which parts leave, and which have left.
    pub fn set_leaving(&self, leaving: RawLeaving) {
        self.leaving.store(packed(leaving), Ordering::Release);
    }
    /// Which parts leave, and which have left.
    pub fn leaving(&self) -> RawLeaving {
        let word = self.leaving.load(Ordering::Acquire);
        let half = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0).into();
        RawLeaving { closed: half(word), gone: half(word >> 32) }
    }
    /// Changes with every part that comes, closes, opens or leaves.
    pub fn version(&self) -> (u64, u64) {
        (self.count(), self.leaving.load(Ordering::Acquire))
    }
    /// Whether part `number` is closed, and whether it is gone.
    fn state(&self, number: usize) -> (bool, bool) {
        let word = self.leaving.load(Ordering::Acquire);
        // What was made with the file system stays.
        let bit = number.checked_sub(1).filter(|n| *n < RawRegions::MAX);
        bit.map_or((false, false), |n| (word >> n & 1 == 1, word >> (32 + n) & 1 == 1))
    }
    /// Whether some part is closed.
    pub fn any_closed(&self) -> bool {
        self.leaving.load(Ordering::Acquire) & u64::from(u32::MAX) != 0
    }
    /// Whether group `index` may give out space.
    pub fn is_open(&self, index: u64) -> bool {
        self.state(self.number_of_part(index)) == (false, false)
    }
    /// Whether group `index` is to be emptied.
    pub fn is_closed(&self, index: u64) -> bool {
        self.state(self.number_of_part(index)).0
    }
    /// Whether group `index` has left.
    pub fn is_gone(&self, index: u64) -> bool {
        self.state(self.number_of_part(index)).1
    }
    /// Parts that have not left.
    fn present(&self) -> impl Iterator<Item = &(u64, Part)> {
        self.parts().enumerate().filter(|(i, _)| !self.state(*i).1).map(|(_, p)| p)
    }
    /// Whether `block` lies in the groups of a part that has left.
    pub fn has_left(&self, block: BlockNo) -> bool {
        let within = |s: &Span| s.index_of(block.get()).is_some();
        let gone = self.parts().enumerate().filter(|(i, _)| self.state(*i).1);
        gone.map(|(_, (_, p))| p).any(|p| {
            let heads = p.data.count.saturating_mul(p.head_slots);
            let heads = heads.saturating_mul(p.geo.slot_blocks());
            let in_heads = block.get().checked_sub(p.heads).is_some_and(|n| n < heads);
            within(&p.first) || within(&p.data) || in_heads
        })
    }
    /// Adds a part; whether there was room for it.
    pub fn push(&self, part: Part) -> bool {
        let base = self.count();
        self.parts.iter().any(|place| place.set((base, part)).is_ok())
    }
    fn parts(&self) -> impl Iterator<Item = &(u64, Part)> {
        self.parts.iter().map_while(OnceLock::get)
    }
    /// Those that were made with the file system.
    #[cfg(test)]
    pub fn made(&self) -> Part {
        self.parts().next().expect("there is always the first").1
    }
    /// How many parts were added.
    pub fn added(&self) -> usize {
        self.parts().count() - 1
    }
    /// The part that group `index` is in, and its number there.
    fn part_of(&self, index: u64) -> Option<(&Part, u64)> {
        let mut parts = self.parts();
        parts.find_map(|(base, p)| {
            let n = index.checked_sub(*base)?;
            (n < p.count()).then_some((p, n))
        })
    }
    /// The part that group `index` is in, counted from 0.
    pub fn number_of_part(&self, index: u64) -> usize {
        let past = self.parts().filter(|(base, _)| *base <= index).count();
        past.saturating_sub(1)
    }
    /// Whether group `index` was added.
    pub fn is_added(&self, index: u64) -> bool {
        self.parts().next().is_some_and(|(_, p)| index >= p.count())
    }
    /// Whether metadata and file data stand in groups of their own.
    pub fn split(&self) -> bool {
        self.parts().next().is_some_and(|(_, p)| p.split())
    }
    /// All groups.
    pub fn count(&self) -> u64 {
        self.parts().last().map_or(0, |(base, p)| base + p.count())
    }
    /// What group `index` may hold.
    pub fn kind(&self, index: u64) -> SubpoolKind {
        self.part_of(index).map_or(SubpoolKind::General, |(p, n)| p.kind(n))
    }
    /// Header slot of group `index`, which there is.
    pub fn head(&self, index: u64) -> BlockNo {
        self.part_of(index).map_or(BlockNo(u64::MAX), |(p, n)| p.head(n))
    }
    /// The parts of group `index`, if there is one.
    pub fn shape(&self, index: u64) -> Option<GroupShape> {
        self.part_of(index).and_then(|(p, n)| p.shape(n))
    }
    /// As [`Part::of_block`].
    pub fn of_block(&self, block: BlockNo) -> Option<u64> {
        self.present().find_map(|(base, p)| Some(base + p.of_block(block)?))
    }
    /// The group among whose blocks all of a run is, and the run's place there.
    pub fn locate(&self, start: u64, len: u64) -> Option<(u64, GroupShape, u64)> {
        let index = self.of_block(BlockNo(start))?;
        let shape = self.shape(index)?;
        Some((index, shape, shape.local(start, len)?))
    }
    /// Whether a metadata slot may stand at `block`, as far as groups go.
    pub fn may_hold_slot(&self, block: BlockNo) -> bool {
        self.present().any(|(_, p)| p.may_hold_slot(block))
    }
    /// Runs of slots that groups' heads, or metadata, may be: first block, and slots.
    pub fn slot_areas(&self) -> impl Iterator<Item = (u64, u64)> {
        self.parts().flat_map(|(_, p)| {
            let slot = p.geo.slot_blocks();
            [
                (p.first.start, p.first.count.saturating_mul(p.first.stride) / slot),
                (p.heads, p.data.count.saturating_mul(p.head_slots)),
            ]
        })
    }
    /// First and one past the last block that may be file data.
    pub fn data_bounds(&self, total: u64) -> (u64, u64) {
        let mut parts = self.parts().map(|(_, p)| p.data_bounds(total));
        let first = parts.next().unwrap_or((0, 0));
        parts.fold(first, |(start, end), (_, other)| (start, end.max(other)))
    }
    /// The longest part of a run from its start on that lies in one group. Data groups stand side
    /// by side, so a file's blocks may go on from one to the next.
    pub fn part(&self, start: u64, len: u64) -> u64 {
        self.parts().map(|(_, p)| p.part(start, len)).min().unwrap_or(len)
    }
    /// Most groups that `len` blocks of a file touch.
    pub fn touched(&self, len: u64) -> u64 {
        self.parts().map(|(_, p)| p.touched(len)).max().unwrap_or(2)
    }
    /// Blocks that may hold file data, and blocks of groups for metadata alone.
    pub fn totals(&self) -> (u64, u64) {
        let totals = self.present().map(|(_, p)| p.totals());
        totals.fold((0, 0), |sum, t| (sum.0 + t.0, sum.1 + t.1))
    }
    /// The numbers of all groups for file data, or of all for metadata, that give out space.
    pub fn numbers(&self, slots: bool) -> Vec<u64> {
        let of_use =
            |i: &u64| if slots { takes_slots(self.kind(*i)) } else { takes_data(self.kind(*i)) };
        (0..self.count()).filter(|i| of_use(i) && self.is_open(*i)).collect()
    }
    /// The numbers of the groups of part `number`.
    pub fn of_part(&self, number: usize) -> std::ops::Range<u64> {
        self.parts().nth(number).map_or(0..0, |(base, p)| *base..base + p.count())
    }
}

/// Block of the superblock's copy. `base`: blocks in the pool when it was made.
pub(crate) fn copy_block(geo: Geometry, sb: &RawSuperblock, base: u64) -> BlockNo {
    let blocks = match sb.meta_blocks.get() {
        0 => base,
        n => n,
    };
    geo.block_size.block_of(copy_offset(Bytes(blocks << geo.block_size.shift())))
}
