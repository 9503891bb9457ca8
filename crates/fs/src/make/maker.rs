//! A new file system, or groups that are added to one, are written.

use braid_format::dinode::{Layout, RawDinode, RawTime};
use braid_format::journal::RawJournalHeader;
use braid_format::label::SubpoolKind;
use braid_format::lock_record::Life;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::node::{RawCounters, SlotRecord};
use braid_format::rgrp::BlockState;
use braid_format::superblock::{RawLockStore, RawSuperblock};
use braid_format::{BlockNo, ByteOffset, Bytes, Generation, Incarnation, LockNo, NodeId};
use braid_lock::etcd::LockDomain;
use braid_pool::device::AlignedBuf;
use braid_pool::{Pool, PoolByteLock, PoolInfo, PoolRequest, SubpoolInfo};
use zerocopy::{FromZeros, IntoBytes};

use super::options::MakeOptions;
use super::plan::{Plan, Space};
use crate::alloc::bits;
use crate::alloc::image::{Birth, Fresh};
use crate::error::{Error, Result};
use crate::external_store::{ExternalStore, fresh_nonce, lock_lives};
use crate::groups::{GroupShape, Part, blocks_per_bitmap, takes_data};

/// Bytes in one write of fixed metadata.
const PIECE: u64 = 1 << 20;

/// Bytes gathered before a batch of writes is issued.
const BATCH: u64 = 16 << 20;

/// Whether a file system could be made on a pool that is, or would be, like this.
///
/// # Errors
/// [`Error::PoolTooSmall`], [`Error::SubpoolTooSmall`], [`Error::JournalTooSmall`],
/// [`Error::Invalid`]; [`Error::LockStore`].
pub fn may_make(pool: &PoolInfo, options: &MakeOptions) -> Result<()> {
    plan(pool, options)?;
    match &options.locks {
        Some(address) => {
            let store = ExternalStore::new(address, uuid::Uuid::nil())?;
            Ok(store.etcd.may_begin(options.force)?)
        }
        None => Ok(()),
    }
}

fn plan(pool: &PoolInfo, options: &MakeOptions) -> Result<Plan> {
    Plan::new(&Space::of(pool)?, options)
}

/// Writes a new, empty file system: fixed area, resource groups, root directory. `progress` gets
/// (done, total) in resource groups. Durable on return; the superblock is written last.
///
/// # Errors
/// Those of [`may_make`], before anything is written; those of the pool.
pub fn make(pool: &Pool, options: &MakeOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let plan = plan(&pool.info(), options)?;
    let _claimed = claim(pool)?;
    if !pool.is_current() {
        return Err(Error::Replaced);
    }
    let (owner, fs) = (options.owner, uuid::Uuid::new_v4());
    let external_store = options.locks.as_ref().map(|a| ExternalStore::new(a, fs)).transpose()?;
    let maker = Maker {
        pool,
        plan,
        geo: plan.geo,
        birth: Birth::now(fresh_nonce(fs)),
        base: 0,
        owner,
        fs,
        external_store,
    };
    maker.wipe()?;
    blank(pool, ByteOffset(0), pool.info().size)?;
    let _away = match &maker.external_store {
        Some(store) => {
            store.etcd.begin(&pool.info().name, options.force)?;
            let this = braid_lock::node::watch::this_host();
            Some(store.etcd.claim(LockDomain::new(&this, &pool.lock_places()))?)
        }
        None => None,
    };
    maker.fixed_area()?;
    maker.groups(progress)?;
    maker.counters()?;
    maker.root()?;
    pool.flush()?;
    maker.superblocks()?;
    pool.flush()?;
    // An image of a member from before the first mount is known too.
    let life = Life { slot: NodeId(0), incarnation: Incarnation(0) };
    Ok(pool.count_up(life)?)
}

/// Makes zeros of what nobody has written yet, if the devices do that when space is given back.
/// Copies and parity then agree there. Elsewhere they need not: nothing that is written is lost by
/// that, but a scrub counts what differs.
fn blank(pool: &Pool, at: ByteOffset, len: Bytes) -> Result<()> {
    if pool.info().redundant {
        pool.discard(at, len)?;
    }
    Ok(())
}

/// Space that a pool has and its file system does not yet use, as it is to be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addition {
    plan: Plan,
    /// Where it is.
    first: SubpoolInfo,
    data: Option<SubpoolInfo>,
}

impl Addition {
    /// The groups.
    pub fn part(&self) -> Part {
        self.plan.groups
    }
    /// Blocks in the pool with it.
    pub fn end(&self) -> u64 {
        self.plan.total_blocks
    }
    /// Writes heads and bitmaps of its groups, the first of which gets the number `base`: all free.
    /// Complete, not durable. Nobody else uses that space yet.
    pub fn write(&self, pool: &Pool, base: u64) -> Result<()> {
        let (plan, geo) = (self.plan, self.plan.geo);
        for part in [Some(self.first), self.data].into_iter().flatten() {
            blank(pool, part.start, part.len)?;
        }
        let (owner, fs, external_store) = ((0, 0), uuid::Uuid::nil(), None);
        let maker =
            Maker { pool, plan, geo, birth: Birth::now(random()), base, owner, fs, external_store };
        maker.groups(&mut |_, _| {})
    }
}

/// The parts of `pool` from block `total` on, in which a file system of such blocks, for so many
/// nodes, grows.
///
/// # Errors
/// [`Error::PoolTooSmall`], [`Error::SubpoolTooSmall`]; [`Error::Invalid`].
pub(crate) fn additions(
    pool: &PoolInfo,
    geo: Geometry,
    nodes: u16,
    total: u64,
) -> Result<Vec<Addition>> {
    let from = total << geo.block_size.shift();
    let mut new = pool.segments.iter().filter(|s| s.start.get() >= from).copied();
    let mut all = Vec::new();
    while let Some(first) = new.next() {
        let data = match first.kind {
            SubpoolKind::General => None,
            SubpoolKind::Metadata => new.next().filter(|s| s.kind == SubpoolKind::Data),
            _ => return Err(Error::Invalid("what was added to the pool")),
        };
        if data.is_none() && first.kind != SubpoolKind::General {
            return Err(Error::Invalid("what was added to the pool"));
        }
        let (size, lock_sector) = (pool.size, geo.lock_sector);
        let log_slots = pool.log_slots;
        let space = Space { size, lock_sector, first, journal: None, data, log_slots };
        all.push(Addition { plan: Plan::addition(geo, nodes, &space)?, first, data });
    }
    Ok(all)
}

/// Takes the liveness locks of all slots that a file system here can have had: no node of it lives,
/// and none joins until the new one is whole.
pub(crate) fn claim(pool: &Pool) -> Result<Vec<PoolByteLock>> {
    let (taken, busy) = lock_lives(pool, RawSuperblock::NODE_SLOTS_MAX)?;
    busy.first().map_or(Ok(taken), |slot| Err(Error::SlotBusy(*slot)))
}

/// Sixty-four random bits (a version 4 UUID has a few fixed ones in the other half too).
pub(crate) fn random() -> u64 {
    let (a, b) = uuid::Uuid::new_v4().as_u64_pair();
    a ^ b.rotate_left(17)
}

struct Maker<'a> {
    pool: &'a Pool,
    plan: Plan,
    geo: Geometry,
    /// Generation of all bodies, nonce of all lock records.
    birth: Birth,
    /// The number of the first group: 0 where the root directory is.
    base: u64,
    /// Of the root directory.
    owner: (u32, u32),
    /// The file system's identity.
    fs: uuid::Uuid,
    /// Where locks are, if not on the pool.
    external_store: Option<ExternalStore>,
}

impl Maker<'_> {
    /// Writes buffers at their places, all at once.
    fn write_all(&self, buffers: &[(BlockNo, AlignedBuf)]) -> Result<()> {
        let bs = self.geo.block_size;
        let mut requests: Vec<PoolRequest<'_>> = buffers
            .iter()
            .map(|(block, buf)| PoolRequest::write(bs.offset_of(*block), buf))
            .collect();
        self.pool.run(&mut requests);
        requests.into_iter().try_for_each(|r| r.result.map_err(Error::from))
    }

    /// Writes `count` slots from `first`; `f` gets the slot's index and its bytes.
    fn slots(&self, first: BlockNo, count: u64, f: impl Fn(u64, &mut [u8])) -> Result<()> {
        let slot = self.geo.slot_bytes();
        let per_piece = (PIECE / slot).max(1);
        let mut batch = Vec::new();
        let mut done = 0;
        while done < count {
            let n = per_piece.min(count - done);
            let mut buf = AlignedBuf::zeroed(Bytes(n * slot).to_usize());
            for (i, bytes) in (done..).zip(buf.chunks_exact_mut(Bytes(slot).to_usize())) {
                f(i, bytes);
            }
            batch.push((BlockNo(first.get() + done * self.geo.slot_blocks()), buf));
            done += n;
            if batch.len() as u64 * PIECE >= BATCH {
                self.write_all(&batch)?;
                batch.clear();
            }
        }
        self.write_all(&batch)
    }
    /// Slots of one kind that are their own owners.
    fn plain_slots(&self, first: u64, count: u64, kind: impl Fn(u64) -> MetaKind) -> Result<()> {
        self.slots(BlockNo(first), count, |i, slot| {
            let block = BlockNo(first + i * self.geo.slot_blocks());
            Fresh::own(block, kind(i), self.birth).write(self.geo, slot, |_| {});
        })
    }

    fn wipe(&self) -> Result<()> {
        let slot = Bytes(self.geo.slot_bytes()).to_usize();
        let zero = |block| (block, AlignedBuf::zeroed(slot));
        self.write_all(&[zero(BlockNo(0)), zero(self.plan.copy)])?;
        self.pool.flush()?;
        Ok(())
    }

    fn fixed_area(&self) -> Result<()> {
        let p = &self.plan;
        self.plain_slots(p.named_start, u64::from(p.named), |_| MetaKind::Named)?;
        self.plain_slots(p.plock_start, u64::from(RawSuperblock::PLOCK_COUNT), |_| {
            MetaKind::Plock
        })?;
        self.node_records()?;
        let per_node = u64::from(RawSuperblock::AREA_SLOTS);
        let first_sequence = (random() >> 24).max(1);
        self.slots(BlockNo(p.node_area), u64::from(p.nodes) * per_node, |i, slot| {
            let block = BlockNo(p.node_area + i * self.geo.slot_blocks());
            let n = i % per_node;
            let fresh = Fresh::own(block, area_kind(n), self.birth);
            if fresh.kind == MetaKind::JournalHeader {
                self.journal_header(fresh, n, first_sequence, slot);
            } else {
                fresh.write(self.geo, slot, |_| {});
            }
        })
    }
    /// The ring keeps its former bytes: a first sequence drawn at random keeps a record of a
    /// former file system from being taken for one of this.
    fn journal_header(&self, fresh: Fresh, n: u64, first_sequence: u64, slot: &mut [u8]) {
        let copy = n - RawSuperblock::AREA_JOURNAL_HEADERS;
        let generation = Generation(fresh.birth.generation.get() + copy);
        Fresh { birth: Birth { generation, ..fresh.birth }, ..fresh }.write(
            self.geo,
            slot,
            |body| {
                let mut raw = RawJournalHeader::new_zeroed();
                raw.tail_sequence.set(first_sequence);
                raw.clean.set(1);
                let _ = raw.write_to_prefix(body);
            },
        );
    }
    /// Slot records, free; heartbeats, silent.
    fn node_records(&self) -> Result<()> {
        let p = &self.plan;
        let sector = self.geo.lock_sector.to_usize();
        let len = Bytes((p.node_area - p.slot_area) << self.geo.block_size.shift()).to_usize();
        let mut buf = AlignedBuf::zeroed(len);
        for (slot, record) in (0..p.nodes).zip(buf.chunks_exact_mut(sector)) {
            SlotRecord::free(NodeId(slot)).encode(record);
        }
        self.write_all(&[(BlockNo(p.slot_area), buf)])
    }

    fn groups(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let total = self.plan.groups.count();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for index in 0..total {
            let buf = self.group(index)?;
            bytes += buf.1.len() as u64;
            batch.push(buf);
            if bytes >= BATCH || index + 1 == total {
                self.write_all(&batch)?;
                batch.clear();
                bytes = 0;
                progress(index + 1, total);
            }
        }
        Ok(())
    }
    /// Header and bitmaps of one group, as they are on disk.
    fn group(&self, index: u64) -> Result<(BlockNo, AlignedBuf)> {
        let shape = self.shape(index)?;
        let slot = self.geo.slot_bytes();
        let mut buf = AlignedBuf::zeroed(Bytes((1 + shape.bitmap_slots) * slot).to_usize());
        let owner = LockNo::from(shape.start);
        let mut raw = shape.raw(self.base + index);
        if self.base + index == 0 {
            let chunk = self.geo.chunk_blocks();
            raw.free_blocks.set(shape.block_count - chunk);
            raw.free_meta.set(chunk - self.geo.slot_blocks());
            raw.dinodes.set(1);
        }
        for (i, bytes) in (0..).zip(buf.chunks_exact_mut(Bytes(slot).to_usize())) {
            let block = BlockNo(shape.start.get() + i * self.geo.slot_blocks());
            let kind = if i == 0 { MetaKind::Rgrp } else { MetaKind::Bitmap };
            let fresh = Fresh { owner, ..Fresh::own(block, kind, self.birth) };
            fresh.write(self.geo, bytes, |body| {
                if i == 0 {
                    let _ = raw.write_to_prefix(body);
                } else {
                    self.bitmap(index, &shape, i - 1, body);
                }
            });
        }
        Ok((shape.start, buf))
    }
    /// All free, except the first chunk in group 0. Blocks past the group's end read as data.
    fn bitmap(&self, index: u64, shape: &GroupShape, n: u64, body: &mut [u8]) {
        let per = blocks_per_bitmap(self.geo);
        let from = n * per;
        let Some(bits) = body.get_mut(MetaHeader::LEN..) else { return };
        let end = shape.block_count.saturating_sub(from).min(per);
        bits::fill(bits, end, per - end, BlockState::Data);
        if self.base + index == 0 {
            let chunk = self.root_block(shape).get() - shape.first_block;
            for i in 0..self.geo.chunk_blocks() {
                let used = i < self.geo.slot_blocks();
                let state = if used { BlockState::MetaUsed } else { BlockState::MetaFree };
                if (from..from + per).contains(&(chunk + i)) {
                    bits::set(bits, chunk + i - from, state);
                }
            }
        }
    }
    fn shape(&self, index: u64) -> Result<GroupShape> {
        self.plan.group(index).ok_or(Error::Invalid("resource group without room"))
    }
    /// The root's dinode: the first aligned chunk of group 0 begins with it.
    fn root_block(&self, shape: &GroupShape) -> BlockNo {
        BlockNo(shape.first_block.next_multiple_of(self.geo.chunk_blocks()))
    }

    fn counters(&self) -> Result<()> {
        let slot = self.geo.slot_blocks();
        let block = BlockNo(self.plan.named_start + RawSuperblock::NAMED_COUNTERS * slot);
        let (mut free, mut meta) = (0, 0);
        for index in 0..self.plan.groups.count() {
            let shape = self.shape(index)?;
            if takes_data(shape.kind) {
                free += shape.block_count;
            } else {
                meta += shape.block_count;
            }
        }
        if self.plan.groups.split() {
            meta -= slot;
        } else {
            free -= self.geo.chunk_blocks();
            meta += self.geo.chunk_blocks() - slot;
        }
        self.slots(block, 1, |_, bytes| {
            Fresh::own(block, MetaKind::Counters, self.birth).write(self.geo, bytes, |body| {
                let mut raw = RawCounters::new_zeroed();
                raw.free_blocks.set(free);
                raw.free_meta.set(meta);
                raw.inodes.set(1);
                let _ = raw.write_to_prefix(body);
            });
        })
    }
    /// The first chunk: the root directory, empty, and free slots behind it.
    fn root(&self) -> Result<()> {
        let first = self.root_block(&self.shape(0)?);
        let raw = root_dinode(first, self.owner);
        self.slots(first, Geometry::SLOTS_PER_CHUNK, |i, bytes| {
            let block = BlockNo(first.get() + i * self.geo.slot_blocks());
            let kind = if i == 0 { MetaKind::Dinode } else { MetaKind::Free };
            Fresh::own(block, kind, self.birth).write(self.geo, bytes, |body| {
                if i == 0 {
                    let _ = raw.write_to_prefix(body);
                }
            });
        })
    }

    fn superblocks(&self) -> Result<()> {
        let raw = self.superblock()?;
        for block in [self.plan.copy, BlockNo(0)] {
            self.slots(block, 1, |_, bytes| {
                let fresh = Fresh {
                    owner: LockNo(0),
                    ..Fresh::own(block, MetaKind::Superblock, self.birth)
                };
                fresh.write(self.geo, bytes, |body| {
                    let _ = raw.write_to_prefix(body);
                    let place = body.get_mut(RawLockStore::AT..);
                    if let (Some(store), Some(place)) = (&self.external_store, place) {
                        let _ = store.raw.write_to_prefix(place);
                    }
                });
            })?;
        }
        Ok(())
    }
    fn superblock(&self) -> Result<RawSuperblock> {
        let (p, info) = (&self.plan, self.pool.info());
        let mut sb = RawSuperblock::new_zeroed();
        sb.fs_magic = RawSuperblock::FS_MAGIC;
        sb.version.set(RawSuperblock::VERSION);
        sb.block_shift.set(u16::try_from(self.geo.block_size.shift()).unwrap_or(0));
        sb.lock_sector_shift
            .set(u16::try_from(self.geo.lock_sector.get().trailing_zeros()).unwrap_or(0));
        sb.pool_uuid = info.uuid.into_bytes();
        sb.fs_uuid = self.fs.into_bytes();
        sb.total_blocks.set(p.total_blocks);
        sb.node_slots.set(p.nodes);
        sb.named_count.set(p.named);
        sb.plock_count.set(RawSuperblock::PLOCK_COUNT);
        sb.node_area_slots.set(RawSuperblock::AREA_SLOTS);
        sb.named_start.set(p.named_start);
        sb.plock_start.set(p.plock_start);
        sb.slot_area.set(p.slot_area);
        sb.heartbeat_area.set(p.heartbeat_area);
        sb.node_area.set(p.node_area);
        sb.journal_area.set(p.journal_area);
        sb.journal_blocks.set(p.journal_blocks);
        sb.rgrp_start.set(p.groups.first.start);
        sb.rgrp_blocks.set(p.groups.first.stride);
        sb.rgrp_count.set(p.groups.first.count);
        sb.root_inode.set(self.root_block(&self.shape(0)?).get());
        sb.hash_seed.set(random());
        sb.stripe_unit.set(info.stripe_unit.get());
        sb.stripe_width.set(info.stripe_width.get());
        self.subpools(&mut sb);
        if self.external_store.is_some() {
            let features = sb.features_incompat.get() | RawSuperblock::LOCK_STORE;
            sb.features_incompat.set(features);
        }
        let mut cut = info.name.len().min(sb.name.len());
        while !info.name.is_char_boundary(cut) {
            cut -= 1;
        }
        for (to, from) in sb.name.iter_mut().zip(info.name.as_bytes().iter().take(cut)) {
            *to = *from;
        }
        Ok(sb)
    }
    /// What the superblock says about subpools; nothing if there is only one.
    fn subpools(&self, sb: &mut RawSuperblock) {
        let (p, data) = (&self.plan, &self.plan.groups.data);
        if !p.groups.split() {
            return;
        }
        sb.features_incompat.set(RawSuperblock::SUBPOOLS);
        sb.meta_blocks.set(p.meta_blocks);
        sb.data_start.set(data.start);
        sb.data_blocks.set(data.stride);
        sb.data_count.set(data.count);
        sb.data_end.set(data.end);
        sb.data_heads.set(p.groups.heads);
        sb.data_head_slots.set(p.groups.head_slots);
        let width = self.pool.info().subpools.last().map_or(0, |s| s.width.get());
        if width != 0 {
            sb.stripe_width.set(width);
        }
    }
}

/// What slot `n` of a node's area holds.
pub(crate) fn area_kind(n: u64) -> MetaKind {
    use RawSuperblock as S;
    match n {
        S::AREA_INFO => MetaKind::NodeInfo,
        n if (S::AREA_ORPHANS..S::AREA_ORPHANS + S::ORPHAN_BLOCKS).contains(&n) => {
            MetaKind::Orphans
        }
        n if (S::AREA_WINDOWS..S::AREA_WINDOWS + S::WINDOWS).contains(&n) => MetaKind::Window,
        n if (S::AREA_JOURNAL_HEADERS..S::AREA_JOURNAL_HEADERS + 2).contains(&n) => {
            MetaKind::JournalHeader
        }
        n if (S::AREA_FREELOG..S::AREA_FREELOG + S::FREELOG_BLOCKS).contains(&n) => {
            MetaKind::FreeLog
        }
        _ => MetaKind::Free,
    }
}

/// The dinode of an empty root directory.
pub(crate) fn root_dinode(block: BlockNo, owner: (u32, u32)) -> RawDinode {
    let now = crate::inode::raw_time(crate::inode::now());
    let mut raw = RawDinode::new_zeroed();
    raw.mode.set(0o040_755);
    raw.uid.set(owner.0);
    raw.gid.set(owner.1);
    raw.nlink.set(2);
    for time in [&mut raw.atime, &mut raw.mtime, &mut raw.ctime, &mut raw.btime] {
        *time = RawTime { ..now };
    }
    raw.layout.set(Layout::DirStuffed as u16);
    raw.inode_generation.set(1);
    raw.parent.set(block.get());
    raw
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use braid_pool::CreateOptions;
    use braid_pool::device::{Device, FileDevice, OpenOptions};

    use super::*;

    /// A tebibyte of holes: only headers and bitmaps are written.
    #[test]
    fn of_a_huge_sparse_pool_little_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = std::fs::File::create(&path).unwrap();
        if file.set_len(1 << 40).is_err() {
            return braid_testkit::skip("the directory for temporary files has no files of 1 TiB");
        }
        let device: Arc<dyn Device> = FileDevice::open(&path, OpenOptions::default()).unwrap();
        let pool = Pool::create(vec![device], &CreateOptions::new("huge")).unwrap();
        make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let written = std::fs::metadata(&path).unwrap().blocks() * 512;
        assert!(written < 1 << 30, "{written} bytes");
        let volume = crate::volume::Volume::open(pool).unwrap();
        assert!(volume.groups.count() >= 1000);
    }
}
