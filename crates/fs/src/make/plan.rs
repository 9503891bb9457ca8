//! Where everything goes: a pure function of the pool's size and the options.

use braid_format::meta::Geometry;
use braid_format::rgrp::RawRgrp;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, ByteOffset, Bytes};

use super::MakeOptions;
use crate::alloc::bits::PER_BYTE;
use crate::error::{Error, Result};

/// Smallest pool.
const POOL_MIN: Bytes = Bytes(48 << 20);
/// Smallest journal.
pub(super) const JOURNAL_MIN: Bytes = Bytes(1 << 20);
/// Largest resource group of a pool that needs no more than [`GROUPS_MAX`] of them.
const GROUP_TARGET: Bytes = Bytes(1 << 30);
/// Smallest resource group made on purpose.
const GROUP_MIN: Bytes = Bytes(8 << 20);
/// Groups per node slot, where that leaves them large enough.
const GROUPS_PER_NODE: u64 = 4;
/// Fewest groups.
const GROUPS_MIN: u64 = 4;
/// Most groups.
const GROUPS_MAX: u64 = 16_384;
/// Chunks of metadata that the shortest last group must hold.
const LAST_GROUP_CHUNKS: u64 = 4;

/// What of a pool matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub size: Bytes,
    pub stripe_width: Bytes,
    pub lock_sector: Bytes,
}

/// Places, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub geo: Geometry,
    pub nodes: u16,
    pub total_blocks: u64,
    pub named_start: u64,
    pub plock_start: u64,
    pub slot_area: u64,
    pub heartbeat_area: u64,
    pub node_area: u64,
    pub journal_area: u64,
    pub journal_blocks: u64,
    pub rgrp_start: u64,
    pub rgrp_blocks: u64,
    pub rgrp_count: u64,
    /// The superblock's copy; groups end here.
    pub copy: BlockNo,
}

/// A resource group's parts, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupShape {
    /// Header slot.
    pub start: BlockNo,
    pub bitmap_slots: u64,
    pub first_block: u64,
    pub block_count: u64,
}

/// Blocks that one bitmap slot speaks of.
pub(crate) fn blocks_per_bitmap(geo: Geometry) -> u64 {
    (geo.body_len() - braid_format::meta::MetaHeader::LEN) as u64 * PER_BYTE
}

impl GroupShape {
    /// A group in `len` blocks from `start`; `None` when nothing fits behind its header.
    pub fn new(geo: Geometry, start: u64, len: u64) -> Option<Self> {
        let slot = geo.slot_blocks();
        let per_bitmap = blocks_per_bitmap(geo);
        let bitmap_slots = len.div_ceil(per_bitmap + slot);
        let head = (1 + bitmap_slots) * slot;
        let block_count = len.checked_sub(head).filter(|&n| n > 0)?;
        Some(Self {
            start: BlockNo(start),
            bitmap_slots,
            first_block: start + head,
            // A last odd block of two-block slots would be of no use to metadata: data takes it.
            block_count,
        })
    }
    /// The header's fields.
    pub fn raw(&self, index: u64) -> RawRgrp {
        use zerocopy::FromZeros;
        let mut raw = RawRgrp::new_zeroed();
        raw.index.set(index);
        raw.bitmap_slots.set(u32::try_from(self.bitmap_slots).unwrap_or(u32::MAX));
        raw.first_block.set(self.first_block);
        raw.block_count.set(self.block_count);
        raw.free_blocks.set(self.block_count);
        raw
    }
}

/// The geometry of group `index` of a made file system, from the superblock alone.
pub(crate) fn group_shape(
    geo: Geometry,
    sb: &RawSuperblock,
    copy: BlockNo,
    index: u64,
) -> Option<GroupShape> {
    let start = sb.rgrp_start.get() + index * sb.rgrp_blocks.get();
    let end = (start + sb.rgrp_blocks.get()).min(copy.get());
    GroupShape::new(geo, start, end.checked_sub(start)?)
}

fn default_nodes(size: Bytes) -> u16 {
    match size.get() >> 30 {
        0..4 => 4,
        4..64 => 8,
        _ => 16,
    }
}

/// At most an eighth of the pool for all journals; 2 MiB to 128 MiB each.
fn default_journal(size: Bytes, nodes: u16) -> Bytes {
    let max = if size.get() >> 40 == 0 { Bytes(64 << 20) } else { Bytes(128 << 20) };
    let share = size.get() / 8 / u64::from(nodes);
    Bytes((share >> 20 << 20).clamp(2 << 20, max.get()))
}

/// What a mount needs to begin: [`crate::journal::RING_IMAGES_MIN`] bodies, in whole blocks.
fn journal_min(geo: Geometry) -> Bytes {
    let images = crate::journal::RING_IMAGES_MIN * geo.body_len() as u64;
    let block = geo.block_size.bytes().get();
    JOURNAL_MIN.max(Bytes(images.next_multiple_of(block)))
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

impl Plan {
    pub fn new(space: Space, options: &MakeOptions) -> Result<Self> {
        if space.size < POOL_MIN {
            let (have, need) = (space.size.get(), POOL_MIN.get());
            return Err(Error::PoolTooSmall { have, need });
        }
        let geo = Geometry { block_size: options.block_size, lock_sector: space.lock_sector };
        let nodes = options.nodes.unwrap_or_else(|| default_nodes(space.size));
        if nodes == 0 || nodes > RawSuperblock::NODE_SLOTS_MAX {
            return Err(Error::Invalid("number of node slots (1 to 1024)"));
        }
        let least = journal_min(geo);
        let journal = options
            .journal_size
            .map_or_else(|| default_journal(space.size, nodes).max(least), Bytes);
        if journal < least {
            return Err(Error::JournalTooSmall { size: journal, need: least });
        }
        let mut plan = Self::fixed_area(geo, nodes, journal);
        plan.copy = geo.block_size.block_of(copy_offset(space.size));
        plan.total_blocks = space.size.get() >> geo.block_size.shift();
        plan.groups(space)?;
        Ok(plan)
    }

    fn fixed_area(geo: Geometry, nodes: u16, journal: Bytes) -> Self {
        let slot = geo.slot_blocks();
        let bs = geo.block_size;
        let records = Bytes(u64::from(nodes) * geo.lock_sector.get());
        // Kept even, so that everything after a packed area stands on a slot boundary.
        let record_blocks = bs.blocks_for(records).get().next_multiple_of(slot);
        let named_start = slot;
        let plock_start = named_start + u64::from(RawSuperblock::NAMED_COUNT) * slot;
        let slot_area = plock_start + u64::from(RawSuperblock::PLOCK_COUNT) * slot;
        let heartbeat_area = slot_area + record_blocks;
        let node_area = heartbeat_area + record_blocks;
        let node_slots = u64::from(nodes) * u64::from(RawSuperblock::AREA_SLOTS);
        let grain = bs.blocks_for(Bytes::MIB).get().next_multiple_of(slot);
        let journal_area = (node_area + node_slots * slot).next_multiple_of(grain);
        Self {
            geo,
            nodes,
            total_blocks: 0,
            named_start,
            plock_start,
            slot_area,
            heartbeat_area,
            node_area,
            journal_area,
            journal_blocks: bs.blocks_for(journal).get(),
            rgrp_start: 0,
            rgrp_blocks: 0,
            rgrp_count: 0,
            copy: BlockNo(0),
        }
    }

    /// Groups begin on stripe-width boundaries, unless that would waste much of a small pool.
    fn groups(&mut self, space: Space) -> Result<()> {
        let bs = self.geo.block_size;
        let slot = self.geo.slot_blocks();
        let journals = self.journal_area + u64::from(self.nodes) * self.journal_blocks;
        let chunk = self.geo.chunk_blocks();
        let group_min = bs.blocks_for(GROUP_MIN).get().max(4 * chunk);
        let need = (journals + 2 * group_min) << bs.shift();
        let too_small =
            Error::PoolTooSmall { have: space.size.get(), need: need.max(POOL_MIN.get()) };
        let Some(room) = self.copy.get().checked_sub(journals).filter(|&n| n >= 2 * group_min)
        else {
            return Err(too_small);
        };
        let width = space.stripe_width.get();
        let whole = width != 0 && width.is_multiple_of(bs.bytes().get());
        let mut align = lcm(if whole { width >> bs.shift() } else { 1 }, slot);
        if align > group_min / 2 || align > room / 16 {
            align = slot;
        }
        self.rgrp_start = journals.next_multiple_of(align);
        let room = self.copy.get() - self.rgrp_start;
        let wanted = (u64::from(self.nodes) * GROUPS_PER_NODE).max(GROUPS_MIN);
        let largest = (room / GROUPS_MIN).min(bs.blocks_for(GROUP_TARGET).get());
        let blocks = (room / wanted).clamp(group_min.min(largest), largest.max(group_min));
        let blocks = blocks.max(room.div_ceil(GROUPS_MAX));
        self.rgrp_blocks = blocks.next_multiple_of(align);
        let (count, rest) = (room / self.rgrp_blocks, room % self.rgrp_blocks);
        let last = GroupShape::new(self.geo, 0, rest)
            .is_some_and(|g| g.block_count >= LAST_GROUP_CHUNKS * chunk);
        self.rgrp_count = count + u64::from(last);
        if self.rgrp_count == 0 { Err(too_small) } else { Ok(()) }
    }

    /// Group `index`.
    pub fn group(&self, index: u64) -> Option<GroupShape> {
        let start = self.rgrp_start + index * self.rgrp_blocks;
        let end = (start + self.rgrp_blocks).min(self.copy.get());
        GroupShape::new(self.geo, start, end.checked_sub(start)?)
    }
}

/// Where the superblock's copy stands (as `Volume::copy_offset`).
fn copy_offset(size: Bytes) -> ByteOffset {
    const GRAIN: u64 = 128 << 10;
    ByteOffset((size.get().saturating_sub(1)) / GRAIN * GRAIN)
}

#[cfg(test)]
mod tests {
    use braid_format::BlockSize;

    use super::*;

    fn plan(size: u64, f: impl FnOnce(&mut MakeOptions)) -> Result<Plan> {
        let mut options = MakeOptions::default();
        f(&mut options);
        let space =
            Space { size: Bytes(size), stripe_width: Bytes(1 << 20), lock_sector: Bytes(512) };
        Plan::new(space, &options)
    }
    fn check(p: &Plan) {
        let slot = p.geo.slot_blocks();
        for at in [p.named_start, p.plock_start, p.node_area, p.rgrp_start, p.rgrp_blocks] {
            assert_eq!(at % slot, 0);
        }
        let mut end = p.rgrp_start;
        assert!(end >= p.journal_area + u64::from(p.nodes) * p.journal_blocks);
        for i in 0..p.rgrp_count {
            let g = p.group(i).unwrap();
            assert_eq!(g.start.get(), end);
            assert!(g.bitmap_slots * blocks_per_bitmap(p.geo) >= g.block_count);
            assert!(g.block_count >= 4 * p.geo.chunk_blocks());
            end = g.first_block + g.block_count;
            assert!(end <= p.copy.get() && p.copy.get() < p.total_blocks);
        }
        // Little is left over.
        assert!(p.copy.get() - end < 8 * p.geo.chunk_blocks());
    }

    #[test]
    fn sizes_from_tiny_to_huge_fit() {
        for shift in 26..=52 {
            for extra in [0, 1 << 20, 777 << 20] {
                let p = plan((1_u64 << shift) + extra, |_| {}).unwrap();
                check(&p);
                assert!(p.rgrp_count >= 4, "{p:?}");
                assert!(p.rgrp_count <= GROUPS_MAX + 1);
                let journals = u64::from(p.nodes) * p.journal_blocks;
                assert!(journals <= p.total_blocks / 8 + 64, "{p:?}");
                if shift >= 30 {
                    assert_eq!(p.rgrp_start % 256, 0, "stripe width");
                    assert_eq!(p.rgrp_blocks % 256, 0, "stripe width");
                }
            }
        }
    }
    #[test]
    fn large_blocks_and_sectors_fit() {
        for (block, sector) in [(4096, 4096), (65536, 4096), (65536, 512), (8192, 4096)] {
            let mut o = MakeOptions::default();
            o.block_size = BlockSize::new(Bytes(block)).unwrap();
            for size in [256 << 20, 1 << 30, 1 << 41_u64] {
                let space = Space {
                    size: Bytes(size),
                    stripe_width: Bytes(768 << 10),
                    lock_sector: Bytes(sector),
                };
                check(&Plan::new(space, &o).unwrap());
            }
        }
    }
    #[test]
    fn too_small_is_refused_with_the_need() {
        assert!(matches!(plan(10 << 20, |_| {}), Err(Error::PoolTooSmall { .. })));
        let e = plan(64 << 20, |o| o.journal_size = Some(64 << 20)).unwrap_err();
        let Error::PoolTooSmall { need, .. } = e else { panic!("{e}") };
        assert!(need > 256 << 20);
        plan(need + (8 << 20), |o| o.journal_size = Some(64 << 20)).unwrap();
        assert!(plan(64 << 20, |o| o.nodes = Some(0)).is_err());
    }
    #[test]
    fn a_journal_that_no_mount_would_take_is_not_made() {
        for block in [4096, 16 << 10, 64 << 10] {
            let with = |journal| {
                plan(1 << 30, |o| {
                    o.block_size = BlockSize::new(Bytes(block)).unwrap();
                    o.journal_size = journal;
                })
            };
            let Error::JournalTooSmall { need, .. } = with(Some(4096)).unwrap_err() else {
                panic!()
            };
            assert!(with(Some(need.get() - 1)).is_err());
            for journal in [Some(need.get()), None] {
                let p = with(journal).unwrap();
                let images = p.journal_blocks * block / p.geo.body_len() as u64;
                assert!(images >= crate::journal::RING_IMAGES_MIN, "{p:?}");
            }
        }
    }
}
