//! What should stand where on the members, from the file system's superblock and bitmaps: metadata
//! slots, each of which names its own place, and file data, on which copies and parity agree. Only
//! space in use is sampled: free space may hold anything, also former pools.

use std::sync::Arc;
use std::time::Instant;

use braid_device::{AlignedBuf, Device};
use braid_format::label::Label;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::rgrp::{BlockState, RawRgrp};
use braid_format::superblock::{RawRegions, RawSuperblock};
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, MemberIndex};
use zerocopy::FromBytes;

use crate::layout::group::Shape;
use crate::layout::map::{Map, Place};

/// Bytes looked at in one place: no unit and no slot is smaller.
pub(super) const LOOK: Bytes = Bytes(4096);
/// Bitmaps read: those of so many groups, all over the pool.
const GROUPS_MAX: usize = 64;
/// Places of one kind that a superblock tells of, at most: what it says is not believed beyond.
const TOLD_MAX: u64 = 1 << 20;
/// Places of one kind kept of each group.
const PER_GROUP: usize = 512;
/// File data is looked for at multiples of this.
const DATA_STEP: u64 = 64 << 10;
/// Most bytes of a group's head that are read.
const HEAD_MAX: u64 = 4 << 20;

/// The devices of the members at hand, by their places.
pub(super) type Table = Vec<Option<Arc<dyn Device>>>;

/// A place of the pool at which something known stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// A metadata slot; whether it has been there since the file system was made.
    Slot(bool),
    /// File data, or space that a node keeps for it.
    Data,
}

/// What is known of the pool's file system.
#[derive(Debug)]
pub(super) struct SamplePlan {
    pub geo: Geometry,
    /// What lock records begin with that nobody has used yet.
    pub nonce: u64,
    pub known: Vec<(ByteOffset, Known)>,
    /// Blocks of the pool.
    blocks: u64,
}

impl SamplePlan {
    /// Looks on the members at hand, and for the superblock on `more` too: one of them may stand in a
    /// wrong place. `None`: no file system of this pool is found.
    pub fn new(
        label: &Label,
        map: &Map,
        table: &Table,
        more: &[Arc<dyn Device>],
        until: Instant,
    ) -> Option<Self> {
        let (sb, regions, geo) = superblock(label, map, table, more)?;
        let nonce = u64::from_be_bytes(*sb.fs_uuid.first_chunk()?);
        let blocks = map.size().0 / geo.block_size.bytes().0;
        let mut this = Self { geo, nonce, known: Vec::new(), blocks };
        this.fixed(&sb);
        let mut heads = this.heads(&sb, true);
        heads.extend(regions.iter().flat_map(|r| this.heads(r, false)));
        let step = heads.len().div_ceil(GROUPS_MAX).max(1);
        for head in heads.into_iter().step_by(step) {
            if Instant::now() >= until {
                break;
            }
            this.group(map, table, head);
        }
        Some(this)
    }

    fn at(&self, block: u64) -> ByteOffset {
        ByteOffset(block.saturating_mul(self.geo.block_size.bytes().0))
    }
    fn slots(&mut self, first: u64, count: u64) {
        let all = spread(first, self.geo.slot_blocks(), count, self.blocks);
        let all: Vec<_> = all.map(|block| (self.at(block), Known::Slot(true))).collect();
        self.known.extend(all);
    }
    fn fixed(&mut self, sb: &RawSuperblock) {
        self.slots(0, 1);
        self.slots(sb.named_start.get(), sb.named_count.get().into());
        self.slots(sb.plock_start.get(), sb.plock_count.get().into());
        let area = u64::from(sb.node_slots.get()) * u64::from(sb.node_area_slots.get());
        self.slots(sb.node_area.get(), area);
    }
    /// Heads of the groups that a superblock, or one of its regions, tells of.
    fn heads(&mut self, of: &impl Spans, fixed: bool) -> Vec<u64> {
        let slot = self.geo.slot_blocks();
        let mut heads = Vec::new();
        for (start, step, count) in of.spans(slot) {
            heads.extend(spread(start, step, count, self.blocks));
        }
        let known = heads.iter().map(|h| (self.at(*h), Known::Slot(fixed)));
        let known: Vec<_> = known.collect();
        self.known.extend(known);
        heads
    }

    /// What a group's bitmaps say is in use.
    fn group(&mut self, map: &Map, table: &Table, head: u64) {
        let slot = self.geo.slot_bytes();
        let Some(first) = read(map, table, self.at(head), Bytes(slot)) else { return };
        let Some(raw) = self.body::<RawRgrp>(&first, head, MetaKind::Rgrp) else { return };
        let bitmaps = u64::from(raw.bitmap_slots.get());
        let len = Bytes(bitmaps.saturating_mul(slot).min(HEAD_MAX / slot * slot));
        let behind = head + self.geo.slot_blocks();
        let Some(all) = read(map, table, self.at(behind), len) else { return };
        let (mut block, last) = (raw.first_block.get(), raw.block_count.get());
        let last = block.saturating_add(last);
        let (mut slots, mut data) = (Vec::new(), Vec::new());
        let step = DATA_STEP / self.geo.block_size.bytes().0;
        for (i, bytes) in (0..).zip(all.chunks_exact(Bytes(slot).to_usize())) {
            let at = behind + i * self.geo.slot_blocks();
            let body = bytes.get(self.geo.body_at().to_usize()..).unwrap_or_default();
            let whole = MetaHeader::decode_kind(body, BlockNo(at), MetaKind::Bitmap).is_ok();
            let bits = body.get(MetaHeader::LEN..).unwrap_or_default();
            if !whole {
                block = block.saturating_add(bits.len() as u64 * 4);
                continue;
            }
            for state in
                bits.iter().flat_map(|b| [0, 2, 4, 6].map(|s| BlockState::from_bits(b >> s)))
            {
                match state {
                    _ if block >= last => break,
                    // If a slot takes two blocks, a bit does not say which of the two it stands
                    // for.
                    BlockState::MetaFree | BlockState::MetaUsed if self.geo.slot_blocks() == 1 => {
                        slots.push((self.at(block), Known::Slot(false)));
                    }
                    BlockState::Data if block.is_multiple_of(step) => {
                        data.push((self.at(block), Known::Data));
                    }
                    _ => {}
                }
                block += 1;
            }
        }
        self.known.extend(thin(&slots, PER_GROUP));
        self.known.extend(thin(&data, PER_GROUP));
    }

    fn body<T: FromBytes>(&self, slot: &[u8], block: u64, kind: MetaKind) -> Option<T> {
        let body = slot.get(self.geo.body_at().to_usize()..)?;
        MetaHeader::decode_kind(body, BlockNo(block), kind).ok()?;
        T::read_from_prefix(body).ok().map(|(t, _)| t)
    }
}

/// Where heads of groups stand: first, blocks to the next, how many.
trait Spans {
    fn spans(&self, slot: u64) -> [(u64, u64, u64); 2];
}
macro_rules! spans {
    ($of:ty) => {
        impl Spans for $of {
            fn spans(&self, slot: u64) -> [(u64, u64, u64); 2] {
                let heads = (self.rgrp_start.get(), self.rgrp_blocks.get(), self.rgrp_count.get());
                let step = self.data_head_slots.get().saturating_mul(slot);
                [heads, (self.data_heads.get(), step, self.data_count.get())]
            }
        }
    };
}
spans!(RawSuperblock);
spans!(braid_format::superblock::RawRegion);

/// `count` blocks, `step` apart, from `start` on, as far as they are among the `blocks` of the
/// pool. If these are too many, some of them, spread evenly.
fn spread(start: u64, step: u64, count: u64, blocks: u64) -> impl Iterator<Item = u64> {
    let stride = usize::try_from(count.div_ceil(TOLD_MAX).max(1)).unwrap_or(usize::MAX);
    let block = move |i: u64| start.checked_add(i.checked_mul(step)?).filter(|b| *b < blocks);
    (0..count).step_by(stride).filter_map(block)
}

/// At most `most` of `all`, spread evenly.
pub(super) fn thin<T: Copy>(all: &[T], most: usize) -> impl Iterator<Item = T> + '_ {
    all.iter().step_by(all.len().div_ceil(most).max(1)).copied()
}

/// Where the bytes of a place stand: on one member, on all copies of a mirror, or as data of a parity
/// group (then with the group's number).
pub(super) struct Placement {
    pub copies: Vec<(MemberIndex, ByteOffset)>,
    pub parity: Option<(u16, u64)>,
}

pub(super) fn placement(map: &Map, at: ByteOffset) -> Option<Placement> {
    let piece = map.pieces(at, Bytes(1)).next().filter(|_| !map.is_holed(at, Bytes(1)))?;
    let index = match piece.place {
        Place::Member(m) => return Some(Placement { copies: vec![(m, piece.at)], parity: None }),
        Place::Group(index) => index,
    };
    let group = map.group(index);
    Some(match group.shape {
        Shape::Mirror => {
            let all = (0..group.columns.len()).map(|c| group.at(c, piece.at.0));
            Placement { copies: all.collect(), parity: None }
        }
        Shape::Parity { .. } => Placement {
            copies: group.locate(piece.at).into_iter().collect(),
            parity: Some((index, piece.at.0)),
        },
    })
}

/// Bytes of a device; `None`: they cannot be read.
pub(super) fn look(device: &dyn Device, at: ByteOffset, len: Bytes) -> Option<AlignedBuf> {
    let end = at.0.checked_add(len.0)?;
    if end > device.info().size.0 {
        return None;
    }
    let mut buf = AlignedBuf::zeroed(len.to_usize());
    device.read(at, &mut buf).ok().map(|()| buf)
}

/// Bytes of the pool from whichever member at hand has them.
fn read(map: &Map, table: &Table, at: ByteOffset, len: Bytes) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len.to_usize());
    for piece in map.pieces(at, len) {
        let from = ByteOffset(at.0 + bytes.len() as u64);
        let places = placement(map, from).filter(|s| s.parity.is_none())?.copies;
        let device = |m: MemberIndex| table.get(usize::from(m.0))?.as_deref();
        let found = places.iter().find_map(|(m, place)| look(device(*m)?, *place, piece.len))?;
        bytes.extend_from_slice(&found);
    }
    (bytes.len() == len.to_usize()).then_some(bytes)
}

type Found = (RawSuperblock, Vec<braid_format::superblock::RawRegion>, Geometry);

/// The superblock or its copy.
fn superblock(label: &Label, map: &Map, table: &Table, more: &[Arc<dyn Device>]) -> Option<Found> {
    let first = label.segments.first()?.len.0;
    let copy = first.saturating_sub(1) / (128 << 10) * (128 << 10);
    // The largest slot.
    let len = Bytes(128 << 10);
    for (at, len) in
        [(0, len.0), (copy, (first - copy).min(len.0))].map(|(a, l)| (ByteOffset(a), Bytes(l)))
    {
        let lens = [len, Bytes(8192), LOOK];
        let read = lens.iter().find_map(|l| read(map, table, at, (*l).min(len)));
        if let Some(found) = read.and_then(|bytes| superblock_in(&bytes, label, at)) {
            return Some(found);
        }
        for (_, place) in placement(map, at).map(|s| s.copies).unwrap_or_default() {
            let looked = more.iter().filter_map(|d| look(&**d, place, len.min(label.stripe_unit)));
            if let Some(found) = looked.into_iter().find_map(|b| superblock_in(&b, label, at)) {
                return Some(found);
            }
        }
    }
    None
}

/// The superblock at the pool's byte `at`, if it is one, and of this pool.
fn superblock_in(bytes: &[u8], label: &Label, at: ByteOffset) -> Option<Found> {
    let lock_sector = label.lock_sector;
    let rest = bytes.get(lock_sector.to_usize()..)?;
    let (sb, behind) = RawSuperblock::read_from_prefix(rest).ok()?;
    let block_size = 1_u64.checked_shl(sb.block_shift.get().into()).map(Bytes)?;
    let geo = Geometry { block_size: BlockSize::new(block_size)?, lock_sector };
    let body = rest.get(..geo.body_len())?;
    let block = geo.block_size.block_of(at);
    MetaHeader::decode_kind(body, block, MetaKind::Superblock).ok()?;
    if sb.fs_magic != RawSuperblock::FS_MAGIC || sb.pool_uuid != *label.pool.as_bytes() {
        return None;
    }
    let added = sb.features_incompat.get() & RawSuperblock::REGIONS != 0;
    let regions = RawRegions::read_from_prefix(behind).ok().filter(|_| added).map(|(r, _)| r);
    let count = regions.as_ref().map_or(0, |r| r.count.get());
    let regions = regions.map(|r| r.regions.to_vec()).unwrap_or_default().into_iter();
    let regions = regions.take(usize::try_from(count).unwrap_or(RawRegions::MAX)).collect();
    Some((sb, regions, geo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_forged_superblock_counts_is_bounded() {
        assert_eq!(spread(7, 5, 3, 100).collect::<Vec<_>>(), [7, 12, 17]);
        assert_eq!(spread(7, 5, 3, 17).collect::<Vec<_>>(), [7, 12]);
        for (start, step) in [(0, 0), (1, 1), (u64::MAX, u64::MAX), (9, 1 << 40)] {
            assert!(spread(start, step, u64::MAX, 1 << 30).count() as u64 <= TOLD_MAX);
        }
    }
}
