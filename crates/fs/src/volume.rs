//! The pool as the file system sees it: geometry, superblock, metadata slots by number.

use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, FormatError, InodeNo, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use braid_pool::{Pool, PoolRequest};
use zerocopy::FromBytes;

use crate::error::{Error, Result};

/// A pool with the file system on it. Cheap to share; immutable.
#[derive(Debug)]
pub(crate) struct Volume {
    pub pool: Pool,
    pub geo: Geometry,
    pub sb: RawSuperblock,
}

impl Volume {
    /// Reads and verifies the superblock of `pool` (the copy in the last slot if the first is
    /// damaged).
    pub fn open(pool: Pool) -> Result<Self> {
        let first = Self::read_superblock(&pool, ByteOffset(0));
        let sb = match first {
            Ok(sb) => sb,
            Err(e) => {
                let copy = Self::copy_offset(&pool);
                match Self::read_superblock(&pool, copy) {
                    Ok(sb) => {
                        tracing::warn!("first superblock unusable ({e}), using the copy");
                        sb
                    }
                    Err(_) => return Err(e),
                }
            }
        };
        let block_size = BlockSize::new(Bytes(1_u64 << sb.block_shift.get().min(63))).ok_or(
            Error::Superblock(FormatError::BadField {
                what: "superblock",
                at: 0,
                field: "block_shift",
                value: u64::from(sb.block_shift.get()),
            }),
        )?;
        let lock_sector = Bytes(1_u64 << sb.lock_sector_shift.get().min(63));
        let geo = Geometry { block_size, lock_sector };
        let volume = Self { pool, geo, sb };
        volume.validate()?;
        Ok(volume)
    }

    /// Looks again, with a liveness lock held: whoever makes a pool or a file system holds them all
    /// meanwhile, and may have done so since this was opened.
    ///
    /// # Errors
    /// [`Error::Replaced`], or a device failed.
    pub fn confirm(&self) -> Result<()> {
        if !self.pool.is_current() {
            return Err(Error::Replaced);
        }
        let now = Self::open(self.pool.clone())?;
        let same = now.sb.fs_uuid == self.sb.fs_uuid && now.geo == self.geo;
        if same { Ok(()) } else { Err(Error::Replaced) }
    }
    /// Where the copy of the superblock stands: the last 128 KiB boundary (the largest slot).
    pub fn copy_offset(pool: &Pool) -> ByteOffset {
        let size = pool.info().size.get();
        ByteOffset((size.saturating_sub(1)) / (128 << 10) * (128 << 10))
    }

    /// The body's place and length depend on the geometry that the superblock itself holds: try
    /// the few there are.
    fn read_superblock(pool: &Pool, at: ByteOffset) -> Result<RawSuperblock> {
        let mut slot = AlignedBuf::zeroed(128 << 10);
        let want = (pool.info().size.get() - at.get()).min(128 << 10);
        let want = usize::try_from(want / 4096 * 4096).unwrap_or(0);
        pool.read(at, &mut slot[..want])?;
        let mut last = FormatError::TooShort { what: "superblock", len: want };
        for lock_shift in [9_u16, 12] {
            for block_shift in 12..=16_u16 {
                let geo = Geometry {
                    block_size: BlockSize::new(Bytes(1 << block_shift))
                        .unwrap_or(BlockSize::DEFAULT),
                    lock_sector: Bytes(1 << lock_shift),
                };
                let start = geo.body_at().to_usize();
                let Some(body) = slot.get(start..start + geo.body_len()) else { continue };
                let Ok((sb, _)) = RawSuperblock::read_from_prefix(body) else { continue };
                if sb.fs_magic != RawSuperblock::FS_MAGIC
                    || sb.block_shift.get() != block_shift
                    || sb.lock_sector_shift.get() != lock_shift
                {
                    continue;
                }
                let block = geo.block_size.block_of(at);
                match MetaHeader::decode_kind(body, block, MetaKind::Superblock) {
                    Ok(_) => return Ok(sb),
                    Err(e) => last = e,
                }
            }
        }
        Err(Error::Superblock(last))
    }

    /// Refuses a sealed superblock whose areas cannot be.
    fn validate(&self) -> Result<()> {
        let sb = &self.sb;
        let bad = |field, value| {
            Err(Error::Superblock(FormatError::BadField {
                what: "superblock",
                at: 0,
                field,
                value,
            }))
        };
        if sb.version.get() != RawSuperblock::VERSION {
            return bad("version", u64::from(sb.version.get()));
        }
        if sb.features_incompat.get() != 0 {
            let bits = sb.features_incompat.get();
            return Err(Error::Superblock(FormatError::UnknownFeature {
                what: "superblock",
                bits,
            }));
        }
        // Of another pool that these devices belonged to: a create that was broken off.
        if sb.pool_uuid != *self.pool.info().uuid.as_bytes() {
            return bad("pool_uuid", 0);
        }
        let total = sb.total_blocks.get();
        if total > self.pool.info().size.get() >> self.geo.block_size.shift() {
            return bad("total_blocks", total);
        }
        if sb.node_slots.get() == 0 || sb.node_slots.get() > RawSuperblock::NODE_SLOTS_MAX {
            return bad("node_slots", u64::from(sb.node_slots.get()));
        }
        if sb.rgrp_count.get() == 0 || sb.rgrp_blocks.get() == 0 {
            return bad("rgrp_count", sb.rgrp_count.get());
        }
        for (field, value) in [
            ("named_start", sb.named_start.get()),
            ("plock_start", sb.plock_start.get()),
            ("slot_area", sb.slot_area.get()),
            ("heartbeat_area", sb.heartbeat_area.get()),
            ("node_area", sb.node_area.get()),
            ("journal_area", sb.journal_area.get()),
            ("journal_blocks", sb.journal_blocks.get()),
            ("rgrp_start", sb.rgrp_start.get()),
            ("root_inode", sb.root_inode.get()),
        ] {
            if value == 0 || value >= total {
                return bad(field, value);
            }
        }
        self.validate_areas(bad)
    }

    /// Every area lies in the pool, so that no number made of these overflows or asks for memory
    /// beyond all bounds.
    fn validate_areas(&self, bad: impl Fn(&'static str, u64) -> Result<()>) -> Result<()> {
        let (sb, slot) = (&self.sb, self.geo.slot_blocks());
        let total = sb.total_blocks.get();
        let nodes = u64::from(sb.node_slots.get());
        let area_slots = u64::from(sb.node_area_slots.get());
        let records =
            self.geo.block_size.blocks_for(Bytes(nodes * self.geo.lock_sector.get())).get();
        for (field, start, blocks) in [
            ("named_count", sb.named_start.get(), Some(u64::from(sb.named_count.get()) * slot)),
            ("plock_count", sb.plock_start.get(), Some(u64::from(sb.plock_count.get()) * slot)),
            ("slot_area", sb.slot_area.get(), Some(records)),
            ("heartbeat_area", sb.heartbeat_area.get(), Some(records)),
            ("node_area_slots", sb.node_area.get(), Some(nodes * area_slots * slot)),
            ("journal_blocks", sb.journal_area.get(), nodes.checked_mul(sb.journal_blocks.get())),
        ] {
            let end = blocks.and_then(|n| start.checked_add(n));
            if end.is_none_or(|end| end > total) {
                return bad(field, blocks.unwrap_or(u64::MAX));
            }
        }
        if sb.named_count.get() < RawSuperblock::NAMED_COUNT {
            return bad("named_count", u64::from(sb.named_count.get()));
        }
        if area_slots < u64::from(RawSuperblock::AREA_SLOTS) {
            return bad("node_area_slots", area_slots);
        }
        // A header, a bitmap, and something to give out.
        if sb.rgrp_blocks.get() < 3 * slot {
            return bad("rgrp_blocks", sb.rgrp_blocks.get());
        }
        // The last group may be shorter.
        let last = (sb.rgrp_count.get() - 1).checked_mul(sb.rgrp_blocks.get());
        let last = last.and_then(|n| n.checked_add(sb.rgrp_start.get()));
        if last.is_none_or(|last| last >= total) {
            return bad("rgrp_count", sb.rgrp_count.get());
        }
        Ok(())
    }

    /// Where slot `block` begins in the pool.
    pub fn slot_at(&self, block: BlockNo) -> ByteOffset {
        self.geo.block_size.offset_of(block)
    }
    /// Where the body of slot `block` begins.
    pub fn body_at(&self, block: BlockNo) -> ByteOffset {
        self.slot_at(block) + self.geo.body_at()
    }
    /// Whether `block` can be a slot at all: hostile block numbers stop here.
    pub fn holds(&self, block: BlockNo) -> bool {
        block.get() < self.sb.total_blocks.get()
            && block.get() + self.geo.slot_blocks() <= self.sb.total_blocks.get()
    }
    /// Reads slot `block`'s body from the devices and verifies it.
    pub fn read_body(&self, block: BlockNo) -> Result<(AlignedBuf, MetaHeader, MetaKind)> {
        if !self.holds(block) {
            return Err(Error::Inconsistent { block, what: "address beyond the file system" });
        }
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        self.pool.read(self.body_at(block), &mut body)?;
        match MetaHeader::decode(&body, block) {
            Ok((header, kind)) => Ok((body, header, kind)),
            Err(source) => self.other_copy(block).ok_or(Error::Damaged { block, source }),
        }
    }
    /// A body whose checksum is right from another copy, or from parity; the damaged one is healed.
    fn other_copy(&self, block: BlockNo) -> Option<(AlignedBuf, MetaHeader, MetaKind)> {
        let at = self.body_at(block);
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        for nth in 0.. {
            match self.pool.read_otherwise(at, &mut body, nth) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => tracing::warn!(%block, %error, "a copy of a damaged block"),
            }
            let Ok((header, kind)) = MetaHeader::decode(&body, block) else { continue };
            tracing::warn!(%block, "was damaged; read from another member, and healed");
            if let Err(error) = self.pool.heal(at, &body) {
                tracing::warn!(%block, %error, "could not be healed");
            }
            return Some((body, header, kind));
        }
        None
    }
    /// Reads and verifies a block that belongs to one node alone.
    pub fn read_private(&self, block: BlockNo, kind: MetaKind) -> Result<AlignedBuf> {
        let (body, header, found) = self.read_body(block)?;
        if found != kind {
            let (expected, at, found) = (kind.name(), block.get(), found as u16);
            let source = FormatError::WrongKind { expected, at, found };
            return Err(Error::Damaged { block, source });
        }
        if header.owner.get() != block.get() {
            return Err(Error::Inconsistent { block, what: "owner of a private block" });
        }
        Ok(body)
    }
    /// Runs requests on the pool, all at once; the first failure, if any, when all have ended.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        self.pool.run(requests);
        for request in requests {
            std::mem::replace(&mut request.result, Ok(()))?;
        }
        Ok(())
    }
    /// Writes bodies (sealed by the caller) in place, many at once. Complete, not durable.
    pub fn write_bodies(&self, bodies: &[(BlockNo, &[u8])]) -> Result<()> {
        for chunk in bodies.chunks(256) {
            let mut requests: Vec<PoolRequest<'_>> = chunk
                .iter()
                .map(|(block, body)| PoolRequest::write(self.body_at(*block), body))
                .collect();
            self.run(&mut requests)?;
        }
        Ok(())
    }
    /// The root directory.
    pub fn root(&self) -> InodeNo {
        InodeNo(self.sb.root_inode.get())
    }
    /// The `n`-th named lock.
    pub fn named(&self, n: u64) -> LockNo {
        LockNo(self.sb.named_start.get() + n * self.geo.slot_blocks())
    }
    /// The bucket of program locks for `ino`.
    pub fn plock_bucket(&self, ino: InodeNo) -> LockNo {
        let n = (ino.get() / self.geo.slot_blocks()) % u64::from(self.sb.plock_count.get().max(1));
        LockNo(self.sb.plock_start.get() + n * self.geo.slot_blocks())
    }
    /// The `n`-th slot of `node`'s private area ([`RawSuperblock::AREA_INFO`] and its like).
    pub fn node_area(&self, node: NodeId, n: u64) -> BlockNo {
        let per_node = u64::from(self.sb.node_area_slots.get());
        let slot = u64::from(node.get()) * per_node + n;
        BlockNo(self.sb.node_area.get() + slot * self.geo.slot_blocks())
    }
    /// First byte and length of `node`'s journal ring.
    pub fn journal(&self, node: NodeId) -> (ByteOffset, Bytes) {
        let blocks = self.sb.journal_blocks.get();
        let start = BlockNo(self.sb.journal_area.get() + u64::from(node.get()) * blocks);
        (self.geo.block_size.offset_of(start), Bytes(blocks << self.geo.block_size.shift()))
    }
    /// First block of resource group `index`.
    pub fn rgrp(&self, index: u64) -> BlockNo {
        BlockNo(self.sb.rgrp_start.get() + index * self.sb.rgrp_blocks.get())
    }
    /// The resource group that block lies in, if it lies in one.
    pub fn rgrp_of(&self, block: BlockNo) -> Option<u64> {
        let index = block.get().checked_sub(self.sb.rgrp_start.get())? / self.sb.rgrp_blocks.get();
        (index < self.sb.rgrp_count.get()).then_some(index)
    }
}
