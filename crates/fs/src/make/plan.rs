//! Where everything goes: a pure function of the pool's subpools and the options.

use braid_format::label::SubpoolKind;
use braid_format::lock_record::nodes_max;
use braid_format::meta::Geometry;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Bytes};
use braid_pool::{PoolInfo, SubpoolInfo};

use super::options::MakeOptions;
use crate::error::{Error, Result};
use crate::groups::{GroupShape, Part, Span, blocks_per_bitmap, copy_offset};

/// Smallest pool.
const POOL_MIN: Bytes = Bytes(48 << 20);
/// Smallest subpool for file data.
const DATA_MIN: Bytes = Bytes(16 << 20);
/// Smallest journal.
pub(super) const JOURNAL_MIN: Bytes = Bytes(1 << 20);
/// Smallest journal that nobody asked for.
const JOURNAL_LEAST: Bytes = Bytes(2 << 20);
/// Largest resource group of a pool that needs no more than [`GROUPS_MAX`] of them.
const GROUP_TARGET: Bytes = Bytes(1 << 30);
/// Smallest resource group made on purpose.
const GROUP_MIN: Bytes = Bytes(8 << 20);
/// The same where groups hold metadata only.
const META_GROUP_MIN: Bytes = Bytes(2 << 20);
/// Groups per node slot, where that leaves them large enough.
const GROUPS_PER_NODE: u64 = 4;
/// Fewest groups.
const GROUPS_MIN: u64 = 4;
/// Most groups.
const GROUPS_MAX: u64 = 16_384;
/// So much of a pool for one region lock.
const REGION: Bytes = Bytes(64 << 20);
const REGION_LOCKS_MIN: u64 = 16;
/// Chunks of metadata that the shortest last group must hold.
const LAST_GROUP_CHUNKS: u64 = 4;

/// What of a pool matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub size: Bytes,
    pub lock_sector: Bytes,
    /// Holds everything, or all but what has a subpool of its own.
    pub first: SubpoolInfo,
    pub journal: Option<SubpoolInfo>,
    pub data: Option<SubpoolInfo>,
    /// Nodes that have a redundancy log, where they need one.
    pub log_slots: Option<u64>,
}

impl Space {
    /// Of a pool.
    pub fn of(pool: &PoolInfo) -> Result<Self> {
        use SubpoolKind as K;
        let (first, journal, data) = match *pool.subpools {
            [all] => (SubpoolInfo { width: pool.stripe_width, ..all }, None, None),
            [meta, data] => (meta, None, Some(data)),
            [meta, journal, data] => (meta, Some(journal), Some(data)),
            _ => return Err(Error::Invalid(SUBPOOLS)),
        };
        let is = |s: Option<SubpoolInfo>, kind| s.is_none_or(|s| s.kind == kind);
        let known = match data {
            None => first.kind == K::General,
            Some(_) => first.kind == K::Metadata && is(data, K::Data) && is(journal, K::Journal),
        };
        let (size, lock_sector, log_slots) = (pool.size, pool.lock_sector, pool.log_slots);
        let space = Self { size, lock_sector, first, journal, data, log_slots };
        if known { Ok(space) } else { Err(Error::Invalid(SUBPOOLS)) }
    }
}

/// What subpools there may be.
const SUBPOOLS: &str = "the pool's subpools (one for everything; or one for metadata, optionally one for journals, and one for file data, in this order)";

/// Places, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub geo: Geometry,
    pub nodes: u16,
    /// Named locks, those of regions among them.
    pub named: u16,
    pub total_blocks: u64,
    /// Blocks of the metadata subpool; 0 in a pool of one subpool.
    pub meta_blocks: u64,
    pub named_start: u64,
    pub plock_start: u64,
    pub slot_area: u64,
    pub heartbeat_area: u64,
    pub node_area: u64,
    pub journal_area: u64,
    pub journal_blocks: u64,
    pub groups: Part,
    /// The superblock's copy; the first subpool's groups end here.
    pub copy: BlockNo,
}

/// By the pool's size, and no more than a subpool for journals has room for.
fn default_nodes(space: &Space) -> u16 {
    let nodes = match space.size.get() >> 30 {
        0..4 => 4,
        4..64 => 8,
        _ => 16,
    };
    let room = space.journal.map_or(u64::MAX, |own| own.len.get() / JOURNAL_LEAST.get());
    u16::try_from(room).map_or(nodes, |room| nodes.min(room.max(1)))
}

/// At most an eighth of the subpool for all journals, or all of their own; 2 MiB to 128 MiB each.
fn default_journal(space: &Space, nodes: u16) -> Bytes {
    let max = if space.size.get() >> 40 == 0 { Bytes(64 << 20) } else { Bytes(128 << 20) };
    let room = space.journal.map_or(space.first.len.get() / 8, |own| own.len.get());
    let share = room / u64::from(nodes);
    Bytes((share >> 20 << 20).clamp(JOURNAL_LEAST.get(), max.get()))
}

/// Named locks: those with a meaning, and, where several nodes may change one region of the pool,
/// those of regions. Many regions share a lock in a large pool.
fn named_locks(space: &Space, nodes: u16) -> u16 {
    if nodes < 2 {
        return RawSuperblock::NAMED_COUNT;
    }
    let regions = space.size.get() / REGION.get();
    let most = u64::from(RawSuperblock::REGION_LOCKS_MAX);
    let regions = u16::try_from(regions.clamp(REGION_LOCKS_MIN, most)).unwrap_or(u16::MAX);
    RawSuperblock::NAMED_COUNT + regions
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

/// How many blocks from one group to the next.
fn stride(geo: Geometry, nodes: u16, room: u64, align: u64, group_min: u64) -> u64 {
    let wanted = (u64::from(nodes) * GROUPS_PER_NODE).max(GROUPS_MIN);
    let largest = (room / GROUPS_MIN).min(geo.block_size.blocks_for(GROUP_TARGET).get());
    let blocks = (room / wanted).clamp(group_min.min(largest), largest.max(group_min));
    blocks.max(room.div_ceil(GROUPS_MAX)).next_multiple_of(align)
}

impl Plan {
    pub fn new(space: &Space, options: &MakeOptions) -> Result<Self> {
        if space.size < POOL_MIN {
            let (have, need) = (space.size.get(), POOL_MIN.get());
            return Err(Error::PoolTooSmall { have, need });
        }
        let geo = Geometry { block_size: options.block_size, lock_sector: space.lock_sector };
        let most = space.log_slots.unwrap_or(u64::MAX);
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        let nodes = options.nodes.unwrap_or_else(|| default_nodes(space).min(most));
        if nodes > most {
            return Err(Error::TooManyNodes { nodes, most });
        }
        let sector = space.lock_sector;
        let most = nodes_max(sector.to_usize());
        if !(1..=most).contains(&usize::from(nodes)) {
            return Err(Error::NodesPerSector { nodes, most, sector });
        }
        let least = journal_min(geo);
        let journal =
            options.journal_size.map_or_else(|| default_journal(space, nodes).max(least), Bytes);
        if journal < least {
            return Err(Error::JournalTooSmall { size: journal, need: least });
        }
        let mut plan = Self::fixed_area(geo, nodes, named_locks(space, nodes), journal);
        let shift = geo.block_size.shift();
        plan.copy = geo.block_size.block_of(copy_offset(space.first.len));
        plan.total_blocks = space.size.get() >> shift;
        let mut start = plan.journal_area + u64::from(nodes) * plan.journal_blocks;
        if let Some(own) = space.journal {
            start = plan.journal_area;
            plan.journals_apart(own)?;
        }
        if let Some(data) = space.data {
            plan.meta_blocks = space.first.len.get() >> shift;
            start = plan.data_groups(data, start)?;
        }
        plan.groups(space, start, 0)?;
        Ok(plan)
    }

    /// Places in space that was added: `first` for everything, or for metadata, with `data` beside
    /// it. Only the groups count.
    pub fn addition(geo: Geometry, nodes: u16, space: &Space) -> Result<Self> {
        let (bs, first) = (geo.block_size, space.first);
        let end = |s: SubpoolInfo| (s.start.get() + s.len.get()) >> bs.shift();
        let base = bs.blocks_for(Bytes(first.start.get())).get();
        let base = base.next_multiple_of(geo.slot_blocks());
        let mut plan = Self::fixed_area(geo, nodes, RawSuperblock::NAMED_COUNT, Bytes(0));
        plan.copy = BlockNo(end(first));
        plan.total_blocks = space.data.map_or(end(first), end);
        let mut start = base;
        if let Some(data) = space.data {
            start = plan.data_groups(data, base)?;
            if start > plan.copy.get() {
                let (have, need) = (first.len.get(), (start - base) << bs.shift());
                return Err(Error::SubpoolTooSmall { kind: "metadata", have, need });
            }
        }
        match plan.groups(space, start, base) {
            // Heads of data groups alone.
            Err(_) if space.data.is_some() => {
                plan.groups.first =
                    Span { start, stride: geo.chunk_blocks(), count: 0, end: start };
            }
            done => done?,
        }
        Ok(plan)
    }

    fn fixed_area(geo: Geometry, nodes: u16, named: u16, journal: Bytes) -> Self {
        let slot = geo.slot_blocks();
        let bs = geo.block_size;
        let records = Bytes(u64::from(nodes) * geo.lock_sector.get());
        // Kept even, so that everything after a packed area stands on a slot boundary.
        let record_blocks = bs.blocks_for(records).get().next_multiple_of(slot);
        let named_start = slot;
        let plock_start = named_start + u64::from(named) * slot;
        let slot_area = plock_start + u64::from(RawSuperblock::PLOCK_COUNT) * slot;
        let heartbeat_area = slot_area + record_blocks;
        let node_area = heartbeat_area + record_blocks;
        let node_slots = u64::from(nodes) * u64::from(RawSuperblock::AREA_SLOTS);
        let grain = bs.blocks_for(Bytes::MIB).get().next_multiple_of(slot);
        let journal_area = (node_area + node_slots * slot).next_multiple_of(grain);
        let none = Span::default();
        Self {
            geo,
            nodes,
            named,
            total_blocks: 0,
            meta_blocks: 0,
            named_start,
            plock_start,
            slot_area,
            heartbeat_area,
            node_area,
            journal_area,
            journal_blocks: bs.blocks_for(journal).get(),
            groups: Part { geo, first: none, data: none, heads: 0, head_slots: 0 },
            copy: BlockNo(0),
        }
    }

    /// The journals go to their own subpool.
    fn journals_apart(&mut self, own: SubpoolInfo) -> Result<()> {
        let bs = self.geo.block_size;
        let first = bs.blocks_for(Bytes(own.start.get())).get();
        self.journal_area = first.next_multiple_of(self.geo.slot_blocks());
        let end = self.journal_area + u64::from(self.nodes) * self.journal_blocks;
        let (end, have) = (end << bs.shift(), own.len.get());
        if end > own.start.get() + have {
            let (kind, need) = ("journals", end - own.start.get());
            return Err(Error::SubpoolTooSmall { kind, have, need });
        }
        Ok(())
    }

    /// Groups of nothing but blocks, each a number of whole rows; their heads from `heads` on, whose
    /// end is given.
    fn data_groups(&mut self, data: SubpoolInfo, heads: u64) -> Result<u64> {
        let (bs, geo) = (self.geo.block_size, self.geo);
        let (have, need) = (data.len.get(), DATA_MIN.get().max(data.width.get()));
        if have < need {
            return Err(Error::SubpoolTooSmall { kind: "file data", have, need });
        }
        let start = bs.blocks_for(Bytes(data.start.get())).get();
        let end = (data.start.get() + have) >> bs.shift();
        let room = end.saturating_sub(start);
        let row = row(geo, data);
        let group_min = bs.blocks_for(GROUP_MIN).get().max(row);
        let stride = stride(geo, self.nodes, room, row, group_min);
        let count = room.div_ceil(stride);
        self.groups.data = Span { start, stride, count, end };
        self.groups.heads = heads.next_multiple_of(geo.slot_blocks());
        self.groups.head_slots = 1 + stride.div_ceil(blocks_per_bitmap(geo));
        Ok(self.groups.heads + count * self.groups.head_slots * geo.slot_blocks())
    }

    /// Groups of the first subpool, whose first block is `base`, from `start` on. They begin on
    /// stripe-width boundaries, unless that would waste much of a small pool.
    fn groups(&mut self, space: &Space, start: u64, base: u64) -> Result<()> {
        let bs = self.geo.block_size;
        let slot = self.geo.slot_blocks();
        let chunk = self.geo.chunk_blocks();
        let apart = space.data.is_some();
        let (least, chunks) = if apart { (META_GROUP_MIN, 5) } else { (GROUP_MIN, 4) };
        let group_min = bs.blocks_for(least).get().max(chunks * chunk);
        let need = (start - base + 2 * group_min) << bs.shift();
        let have = space.first.len.get();
        let too_small = if apart {
            Error::SubpoolTooSmall { kind: "metadata", have, need }
        } else {
            Error::PoolTooSmall { have, need: need.max(POOL_MIN.get()) }
        };
        let room = self.copy.get().checked_sub(start).filter(|&n| n >= 2 * group_min);
        let Some(room) = room else {
            return Err(too_small);
        };
        let width = space.first.width.get();
        let whole = width != 0 && width.is_multiple_of(bs.bytes().get());
        let mut align = lcm(if whole { width >> bs.shift() } else { 1 }, slot);
        if align > group_min / 2 || align > room / 16 {
            align = slot;
        }
        let start = base + (start - base).next_multiple_of(align);
        let room = self.copy.get() - start;
        let stride = stride(self.geo, self.nodes, room, align, group_min);
        let (count, rest) = (room / stride, room % stride);
        let last = GroupShape::new(self.geo, SubpoolKind::General, 0, rest)
            .is_some_and(|g| g.block_count >= LAST_GROUP_CHUNKS * chunk);
        let count = count + u64::from(last);
        self.groups.first = Span { start, stride, count, end: self.copy.get() };
        if count == 0 { Err(too_small) } else { Ok(()) }
    }

    /// Group `index`.
    pub fn group(&self, index: u64) -> Option<GroupShape> {
        self.groups.shape(index)
    }
}

/// Blocks in a row of the data subpool; 1 where rows are not made of whole blocks.
fn row(geo: Geometry, data: SubpoolInfo) -> u64 {
    let block = geo.block_size.bytes().get();
    let (start, width) = (data.start.get(), data.width.get());
    let whole = width != 0 && start.is_multiple_of(block) && width.is_multiple_of(block);
    if whole { width / block } else { 1 }
}

#[cfg(test)]
mod tests {
    use braid_format::{BlockSize, ByteOffset};

    use super::*;

    fn subpool(kind: SubpoolKind, start: u64, len: u64, width: u64) -> SubpoolInfo {
        SubpoolInfo { kind, start: ByteOffset(start), len: Bytes(len), width: Bytes(width) }
    }
    fn one(size: u64, width: u64, sector: u64) -> Space {
        Space {
            log_slots: None,
            size: Bytes(size),
            lock_sector: Bytes(sector),
            first: subpool(SubpoolKind::General, 0, size, width),
            journal: None,
            data: None,
        }
    }
    fn plan(size: u64, f: impl FnOnce(&mut MakeOptions)) -> Result<Plan> {
        let mut options = MakeOptions::default();
        f(&mut options);
        Plan::new(&one(size, 1 << 20, 512), &options)
    }
    #[test]
    fn nodes_are_as_many_as_fit_in_a_lock_record() {
        for (sector, most) in [(512, 77), (4096, 674)] {
            let space = one(1 << 42, 1 << 20, sector);
            let with =
                |n| Plan::new(&space, &MakeOptions { nodes: Some(n), ..MakeOptions::default() });
            assert_eq!(with(most).unwrap().nodes, most);
            for n in [0, most + 1, u16::MAX] {
                let refused = with(n).unwrap_err();
                assert!(matches!(refused, Error::NodesPerSector { nodes, .. } if nodes == n));
                assert!(refused.to_string().contains("4096 bytes"), "{refused}");
            }
        }
    }
    /// Bytes of metadata, of journals (0: no subpool for them), of file data and of its rows.
    fn apart(meta: u64, journal: u64, data: u64, width: u64) -> Space {
        use SubpoolKind as K;
        Space {
            log_slots: None,
            size: Bytes(meta + journal + data),
            lock_sector: Bytes(512),
            first: subpool(K::Metadata, 0, meta, 0),
            journal: (journal > 0).then(|| subpool(K::Journal, meta, journal, 0)),
            data: Some(subpool(K::Data, meta + journal, data, width)),
        }
    }
    /// Everything is where it may be, and nothing overlaps.
    fn check_apart(p: &Plan, space: &Space) {
        let (g, shift) = (&p.groups, p.geo.block_size.shift());
        let meta_end = space.first.len.get() >> shift;
        let journals = p.journal_area..p.journal_area + u64::from(p.nodes) * p.journal_blocks;
        let own = space.journal.map_or((0, meta_end), |j| {
            (j.start.get() >> shift, (j.start.get() + j.len.get()) >> shift)
        });
        assert!(journals.start >= own.0 && journals.end <= own.1, "{p:?}");
        if space.journal.is_none() {
            assert!(journals.end <= g.heads);
        }
        let slot = p.geo.slot_blocks();
        let mut head_end = g.heads;
        let mut end = g.data.start;
        for i in g.first.count..g.count() {
            let shape = g.shape(i).unwrap();
            assert_eq!((shape.kind, shape.start.get()), (SubpoolKind::Data, head_end));
            assert!(shape.bitmap_slots < g.head_slots);
            assert!(shape.bitmap_slots * blocks_per_bitmap(p.geo) >= shape.block_count);
            head_end += g.head_slots * slot;
            assert_eq!(shape.first_block, end);
            end += shape.block_count;
            for block in [shape.first_block, end - 1] {
                assert_eq!(g.of_block(BlockNo(block)), Some(i));
                assert!(!g.may_hold_slot(BlockNo(block)));
            }
            assert_eq!(g.of_block(shape.start), None);
            let room = end - shape.first_block;
            assert_eq!(g.part(shape.first_block, room + 5), room);
        }
        let data = space.data.unwrap();
        assert_eq!((end, g.data.end), ((data.start.get() + data.len.get()) >> shift, end));
        assert_eq!(g.data.start << shift, data.start.get());
        assert_eq!((g.data.stride << shift) % data.width.get().max(1), 0, "whole rows");
        assert!(head_end <= g.first.start && g.first.end < meta_end);
        assert_eq!(g.data_total(), g.data.end - g.data.start);
        for i in 0..g.first.count {
            assert_eq!(g.shape(i).unwrap().kind, SubpoolKind::Metadata);
        }
    }
    fn check(p: &Plan) {
        let slot = p.geo.slot_blocks();
        let span = p.groups.first;
        for at in [p.named_start, p.plock_start, p.node_area, span.start, span.stride] {
            assert_eq!(at % slot, 0);
        }
        let mut end = span.start;
        assert!(p.meta_blocks > 0 || end >= p.journal_area + u64::from(p.nodes) * p.journal_blocks);
        for i in 0..span.count {
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
                assert!(p.groups.count() >= 4, "{p:?}");
                assert!(p.groups.count() <= GROUPS_MAX + 1);
                let journals = u64::from(p.nodes) * p.journal_blocks;
                assert!(journals <= p.total_blocks / 8 + 64, "{p:?}");
                if shift >= 30 {
                    assert_eq!(p.groups.first.start % 256, 0, "stripe width");
                    assert_eq!(p.groups.first.stride % 256, 0, "stripe width");
                }
            }
        }
    }
    #[test]
    fn subpools_from_tiny_to_huge_fit() {
        for shift in 26..=50 {
            for (part, journal) in [(2, 0), (8, 16 << 20), (100, 0), (100, 1 << 30)] {
                let data = 1_u64 << shift;
                let meta = (data / part).max(24 << 20).next_multiple_of(1 << 20);
                for width in [0, 768 << 10, 1 << 20, 5 << 20] {
                    let data = data - data.checked_rem(width).unwrap_or(0);
                    let space = apart(meta, journal, data, width);
                    let p = Plan::new(&space, &MakeOptions::default()).unwrap();
                    check(&p);
                    check_apart(&p, &space);
                    assert!(p.groups.count() <= 2 * GROUPS_MAX + 2);
                }
            }
        }
        for (block, sector) in [(4096, 4096), (65536, 4096), (65536, 512)] {
            let block_size = BlockSize::new(Bytes(block)).unwrap();
            let o = MakeOptions { block_size, ..MakeOptions::default() };
            for size in [1 << 30, 1 << 41_u64] {
                let space =
                    Space { lock_sector: Bytes(sector), ..apart(size / 8, 0, size, 1 << 20) };
                let p = Plan::new(&space, &o).unwrap();
                check(&p);
                check_apart(&p, &space);
            }
        }
    }
    #[test]
    fn too_small_subpools_are_refused_by_name() {
        let small = |space: Space| match Plan::new(&space, &MakeOptions::default()) {
            Err(Error::SubpoolTooSmall { kind, have, need }) => {
                assert!(have < need);
                (kind, need)
            }
            other => panic!("{other:?}"),
        };
        let (kind, need) = small(apart(4 << 20, 0, 1 << 30, 1 << 20));
        assert_eq!(kind, "metadata");
        let enough = (need + (1 << 20)).next_multiple_of(1 << 20);
        Plan::new(&apart(enough, 0, 1 << 30, 1 << 20), &MakeOptions::default()).unwrap();
        assert_eq!(small(apart(64 << 20, 1 << 20, 1 << 30, 1 << 20)).0, "journals");
        assert_eq!(small(apart(64 << 20, 0, 8 << 20, 1 << 20)).0, "file data");
    }
    #[test]
    fn large_blocks_and_sectors_fit() {
        for (block, sector) in [(4096, 4096), (65536, 4096), (65536, 512), (8192, 4096)] {
            let block_size = BlockSize::new(Bytes(block)).unwrap();
            let o = MakeOptions { block_size, ..MakeOptions::default() };
            for size in [256 << 20, 1 << 30, 1 << 41_u64] {
                check(&Plan::new(&one(size, 768 << 10, sector), &o).unwrap());
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
