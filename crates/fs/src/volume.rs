//! The pool as the file system sees it: geometry, superblock, metadata slots by number.

mod lock_stores;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::label::SubpoolKind;
use braid_format::lock_record::{LockRecord, nodes_max};
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::{RawLeaving, RawRegions, RawSuperblock};
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, FormatError, InodeNo, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use braid_pool::{Instead, Pool, PoolRequest};
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros};

use crate::error::{Error, Result};
use crate::groups::{
    GroupShape, Groups, Part, Span, blocks_per_bitmap, copy_block, copy_offset, takes_data,
};
use crate::lock_stores::Elsewhere;

/// Slots on each side of a damaged one that tell whether its copy stands where it should.
const AROUND: u64 = 4;

/// A metadata body, shared and immutable.
pub(crate) type Body = Arc<AlignedBuf>;

/// A pool with the file system on it. Cheap to share; it only ever gets larger.
#[derive(Debug)]
pub(crate) struct Volume {
    pub pool: Pool,
    pub geo: Geometry,
    /// As it was read when this was opened.
    pub sb: RawSuperblock,
    /// The same.
    pub regions: Box<RawRegions>,
    /// Where locks are, if not on the pool.
    pub elsewhere: Option<Elsewhere>,
    pub groups: Arc<Groups>,
    /// Blocks of the file system now.
    total: AtomicU64,
    /// Held by who reads the superblock again.
    learning: Mutex<()>,
}

impl Volume {
    /// Reads and verifies the superblock of `pool` (the copy if the first is damaged).
    pub fn open(pool: Pool) -> Result<Self> {
        let first = Self::read_superblock(&pool, ByteOffset(0));
        let (sb, regions, leaving, elsewhere) = match first {
            Ok(found) => found,
            Err(e) => {
                let copy = Self::copy_offset(&pool);
                match Self::read_superblock(&pool, copy) {
                    Ok(found) => {
                        tracing::warn!("first superblock unusable ({e}), using the copy");
                        found
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
        let base = base_blocks(&sb, &regions);
        let groups = Arc::new(Groups::new(Part::of(geo, &sb, base)));
        let total = AtomicU64::new(base);
        let learning = Mutex::default();
        let volume = Self { pool, geo, sb, regions, elsewhere, groups, total, learning };
        volume.validate()?;
        volume.learn(&volume.sb, &volume.regions, leaving)?;
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
        if now.sb.fs_uuid != self.sb.fs_uuid || now.geo != self.geo {
            return Err(Error::Replaced);
        }
        match &self.elsewhere {
            Some(store) => Ok(store.etcd.confirm()?),
            None => Ok(()),
        }
    }
    /// Where the copy of the superblock stands: at the end of the pool, or of the metadata subpool.
    pub fn copy_offset(pool: &Pool) -> ByteOffset {
        let info = pool.info();
        // What was added since does not move it.
        copy_offset(info.segments.first().map_or(info.size, |s| s.len))
    }
    /// The block of that copy.
    pub fn copy(&self) -> BlockNo {
        copy_block(self.geo, &self.sb, base_blocks(&self.sb, &self.regions))
    }

    /// The body's place and length depend on the geometry that the superblock itself holds: try
    /// the few there are.
    fn read_superblock(pool: &Pool, at: ByteOffset) -> Result<Found> {
        let mut slot = AlignedBuf::zeroed(128 << 10);
        let want = (pool.info().size.get() - at.get()).min(128 << 10);
        let want = usize::try_from(want / 4096 * 4096).unwrap_or(0);
        pool.read(at, &mut slot[..want])?;
        let first = Self::superblock_in(&slot, at);
        if first.is_ok() {
            return first;
        }
        for nth in 0.. {
            match pool.read_otherwise(Instead::OfRead, at, &mut slot[..want], nth) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "a copy of a damaged superblock");
                    continue;
                }
            }
            if let found @ Ok(_) = Self::superblock_in(&slot, at) {
                tracing::warn!("a superblock was damaged; read from another member");
                return found;
            }
        }
        first
    }

    /// The superblock in the bytes from `at`.
    fn superblock_in(slot: &[u8], at: ByteOffset) -> Result<Found> {
        let mut last = FormatError::TooShort { what: "superblock", len: slot.len() };
        for lock_shift in [9_u16, 12] {
            for block_shift in 12..=16_u16 {
                let geo = Geometry {
                    block_size: BlockSize::new(Bytes(1 << block_shift))
                        .unwrap_or(BlockSize::DEFAULT),
                    lock_sector: Bytes(1 << lock_shift),
                };
                let start = geo.body_at().to_usize();
                let Some(body) = slot.get(start..start + geo.body_len()) else { continue };
                let Ok((sb, regions, leaving)) = split_body(body) else { continue };
                if sb.fs_magic != RawSuperblock::FS_MAGIC
                    || sb.block_shift.get() != block_shift
                    || sb.lock_sector_shift.get() != lock_shift
                {
                    continue;
                }
                let block = geo.block_size.block_of(at);
                match MetaHeader::decode_kind(body, block, MetaKind::Superblock) {
                    Ok(_) => return Ok((sb, regions, leaving, Elsewhere::read(&sb, body)?)),
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
        require_known(sb)?;
        // Of another pool that these devices belonged to: a create that was broken off.
        if sb.pool_uuid != *self.pool.info().uuid.as_bytes() {
            return bad("pool_uuid", 0);
        }
        let total = base_blocks(sb, &self.regions);
        if total.max(sb.total_blocks.get())
            > self.pool.info().size.get() >> self.geo.block_size.shift()
        {
            return bad("total_blocks", sb.total_blocks.get());
        }
        // Every node fits in a lock's record.
        let nodes_max = nodes_max(self.geo.lock_sector.to_usize());
        if !(1..=nodes_max).contains(&usize::from(sb.node_slots.get())) {
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
        let total = base_blocks(sb, &self.regions);
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
            // With subpools, only journals may stand behind the groups' beginning.
            let apart = sb.meta_blocks.get() != 0 && field != "journal_blocks";
            let limit = if apart { sb.rgrp_start.get() } else { total };
            if end.is_none_or(|end| end > limit) {
                return bad(field, blocks.unwrap_or(u64::MAX));
            }
        }
        if sb.named_count.get() < RawSuperblock::NAMED_COUNT {
            return bad("named_count", u64::from(sb.named_count.get()));
        }
        if area_slots < u64::from(RawSuperblock::AREA_SLOTS) {
            return bad("node_area_slots", area_slots);
        }
        self.validate_groups(bad)
    }

    /// Every group lies where the superblock's own part of the pool is.
    fn validate_groups(&self, bad: impl Fn(&'static str, u64) -> Result<()>) -> Result<()> {
        let (sb, slot) = (&self.sb, self.geo.slot_blocks());
        let total = base_blocks(sb, &self.regions);
        // A header, a bitmap, and something to give out.
        if sb.rgrp_blocks.get() < 3 * slot {
            return bad("rgrp_blocks", sb.rgrp_blocks.get());
        }
        // The last group may be shorter.
        let last = |start: u64, stride: u64, count: u64| {
            (count - 1).checked_mul(stride).and_then(|n| n.checked_add(start))
        };
        let end = last(sb.rgrp_start.get(), sb.rgrp_blocks.get(), sb.rgrp_count.get());
        let home = match sb.meta_blocks.get() {
            0 => total,
            n if n > total => return bad("meta_blocks", n),
            _ => self.copy().get(),
        };
        if end.is_none_or(|last| last >= home) {
            return bad("rgrp_count", sb.rgrp_count.get());
        }
        let split = sb.features_incompat.get() & RawSuperblock::SUBPOOLS != 0;
        if split != (sb.meta_blocks.get() != 0) || split != (sb.data_count.get() != 0) {
            return bad("meta_blocks", sb.meta_blocks.get());
        }
        if !split {
            return self.validate_kinds(bad);
        }
        let (start, end) = (sb.data_start.get(), sb.data_end.get());
        if start < sb.meta_blocks.get() || end > total {
            return bad("data_start", start);
        }
        let (stride, count) = (sb.data_blocks.get(), sb.data_count.get());
        if stride < slot || last(start, stride, count).is_none_or(|last| last >= end) {
            return bad("data_count", count);
        }
        let head = 1 + stride.div_ceil(blocks_per_bitmap(self.geo));
        let heads = sb.data_head_slots.get().checked_mul(slot).and_then(|n| n.checked_mul(count));
        let heads = heads.and_then(|n| n.checked_add(sb.data_heads.get()));
        if sb.data_head_slots.get() < head || heads.is_none_or(|end| end > sb.rgrp_start.get()) {
            return bad("data_heads", sb.data_heads.get());
        }
        self.validate_kinds(bad)
    }

    /// The pool's subpools are for what the superblock puts there: else a lock record might stand
    /// on parity.
    fn validate_kinds(&self, bad: impl Fn(&'static str, u64) -> Result<()>) -> Result<()> {
        use SubpoolKind as K;
        let sb = &self.sb;
        let kind = |start: u64, end: u64| {
            let at = self.geo.block_size.offset_of(BlockNo(start));
            let len = Bytes(end.saturating_sub(start) << self.geo.block_size.shift());
            self.pool.info().kind_of(at, len)
        };
        if sb.meta_blocks.get() == 0 {
            let general = kind(0, base_blocks(sb, &self.regions)) == Some(K::General);
            return if general { Ok(()) } else { bad("meta_blocks", 0) };
        }
        if kind(0, sb.meta_blocks.get()) != Some(K::Metadata) {
            return bad("meta_blocks", sb.meta_blocks.get());
        }
        if kind(sb.data_start.get(), sb.data_end.get()) != Some(K::Data) {
            return bad("data_start", sb.data_start.get());
        }
        let journals = u64::from(sb.node_slots.get()).saturating_mul(sb.journal_blocks.get());
        let end = sb.journal_area.get().saturating_add(journals);
        match kind(sb.journal_area.get(), end) {
            Some(K::Metadata | K::Journal) => Ok(()),
            _ => bad("journal_area", sb.journal_area.get()),
        }
    }

    /// Takes over regions of a sound superblock that are not known yet, and which of them leave;
    /// whether anything is new.
    fn learn(&self, sb: &RawSuperblock, regions: &RawRegions, leaving: RawLeaving) -> Result<bool> {
        let count = regions.count.get();
        let bad = |field, value| {
            let source = FormatError::BadField { what: "superblock", at: 0, field, value };
            Err(Error::Superblock(source))
        };
        let Some(all) = usize::try_from(count).ok().and_then(|n| regions.regions.get(..n)) else {
            return bad("regions", count);
        };
        let before = (self.groups.added(), self.groups.version());
        if count < before.0 as u64 {
            return Ok(false);
        }
        // Of parts that are new here.
        let bits = leaving.closed.get() | leaving.gone.get();
        if u64::from(bits) >> count != 0 || leaving.closed.get() & leaving.gone.get() != 0 {
            return bad("leaving", bits.into());
        }
        self.groups.set_leaving(leaving);
        for (i, raw) in (0_u32..).zip(all).skip(before.0) {
            let part = Part::added(self.geo, raw);
            let (from, end) = (self.total_blocks(), raw.end.get());
            let gone = leaving.gone.get() >> i & 1 == 1;
            if !self.holds_part(&part, (from, end), gone) || !self.groups.push(part) {
                return bad("region", i.into());
            }
            self.total.store(end, Ordering::Release);
        }
        if self.total_blocks() != sb.total_blocks.get() {
            return bad("total_blocks", sb.total_blocks.get());
        }
        Ok(self.groups.version() != before.1)
    }
    /// Whether a part that was added lies in the blocks `from..end`, on what is for it; or on
    /// nothing, if it has left.
    fn holds_part(&self, part: &Part, (from, end): (u64, u64), gone: bool) -> bool {
        use SubpoolKind as K;
        let (bs, slot) = (self.geo.block_size, self.geo.slot_blocks());
        let is = |kind, start: u64, end: u64| {
            let len = Bytes(end.saturating_sub(start) << bs.shift());
            gone || self.pool.info().kind_of(bs.offset_of(BlockNo(start)), len) == Some(kind)
        };
        let in_span = |s: &Span, least: u64| {
            let last = s.count.checked_sub(1).and_then(|n| n.checked_mul(s.stride));
            let last = last.and_then(|n| n.checked_add(s.start));
            s.start >= from && s.end <= end && s.stride >= least && last.is_some_and(|l| l < s.end)
        };
        if end > self.pool.info().size.get() >> bs.shift() || end <= from {
            return false;
        }
        let (first, data) = (&part.first, &part.data);
        let own = if part.split() { K::Metadata } else { K::General };
        let sound = first.count == 0 && part.split()
            || in_span(first, 3 * slot)
                && first.start.is_multiple_of(slot)
                && is(own, first.start, first.end);
        if !part.split() {
            return sound && !self.groups.split();
        }
        let slots = data.count.checked_mul(part.head_slots).and_then(|n| n.checked_mul(slot));
        let heads_end = slots.and_then(|n| n.checked_add(part.heads));
        let least = 1 + data.stride.div_ceil(blocks_per_bitmap(self.geo));
        let heads = heads_end.is_some_and(|e| {
            part.heads >= from
                && e <= end
                && is(K::Metadata, part.heads, e)
                && (first.count == 0 || e <= first.start)
        });
        sound
            && self.groups.split()
            && in_span(data, slot)
            && is(K::Data, data.start, data.end)
            && part.head_slots >= least
            && part.heads.is_multiple_of(slot)
            && heads
    }
    /// Reads the superblock again: it may say of more space, or of less. Whether it does. Waits for no epoch and
    /// no region: others may wait until this node has done so.
    ///
    /// # Errors
    /// It is damaged, or says of space that cannot be.
    pub fn refresh(&self) -> Result<bool> {
        // An epoch and a change of this node may both read it: what was read later counts.
        let _one = self.learning.lock();
        let body = match self.look_at_body(BlockNo(0)) {
            Err(Error::Damaged { .. }) => self.look_at_body(self.copy())?,
            found => found?,
        };
        let (sb, regions, leaving) = split_body(&body)?;
        // A newer version may have begun to use what this one does not know.
        require_known(&sb)?;
        if self.may_change().is_ok() {
            require_known_to_change(&sb)?;
        }
        if sb.fs_uuid != self.sb.fs_uuid {
            let field = "fs_uuid";
            let source = FormatError::BadField { what: "superblock", at: 0, field, value: 0 };
            return Err(Error::Superblock(source));
        }
        self.learn(&sb, &regions, leaving)
    }
    /// Refuses a file system that this version may only read: before anything of it is changed.
    ///
    /// # Errors
    /// [`FormatError::UnknownChange`].
    pub fn may_change(&self) -> Result<()> {
        require_known_to_change(&self.sb)
    }
    /// What was added, as the superblock says now.
    pub fn regions_now(&self) -> Result<Box<RawRegions>> {
        Ok(split_body(&self.look_at_body(BlockNo(0))?)?.1)
    }
    /// A body from the first copy that is sound.
    fn look_at_body(&self, block: BlockNo) -> Result<AlignedBuf> {
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        let mut found = Ok(());
        for nth in 0..self.pool.copies() {
            self.pool.look(self.body_at(block), &mut body, nth)?;
            found = MetaHeader::decode(&body, block).map(drop);
            if found.is_ok() {
                break;
            }
        }
        found.map_err(|source| Error::Damaged { block, source })?;
        Ok(body)
    }
    /// Blocks of the file system.
    pub fn total_blocks(&self) -> u64 {
        self.total.load(Ordering::Acquire)
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
        let total = self.total_blocks();
        block.get() < total && block.get() + self.geo.slot_blocks() <= total
    }
    /// Reads slot `block`'s body from the devices and verifies it.
    pub fn read_body(&self, block: BlockNo) -> Result<(AlignedBuf, MetaHeader, MetaKind)> {
        if !self.holds(block) {
            return Err(Error::Inconsistent { block, what: "address beyond the file system" });
        }
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        self.pool.read(self.body_at(block), &mut body).map_err(|source| {
            if source.is_of_one_place() {
                Error::Unreadable { block, source }
            } else {
                source.into()
            }
        })?;
        match MetaHeader::decode(&body, block) {
            Ok((header, kind)) => Ok((body, header, kind)),
            Err(source) => self.other_copy(block).ok_or(Error::Damaged { block, source }),
        }
    }
    /// A body whose checksum is right from another copy, or from parity; the damaged one is healed.
    pub fn other_copy(&self, block: BlockNo) -> Option<(AlignedBuf, MetaHeader, MetaKind)> {
        let at = self.body_at(block);
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        for nth in 0.. {
            match self.pool.read_otherwise(Instead::OfRead, at, &mut body, nth) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%block, %error, "a copy of a damaged block");
                    continue;
                }
            }
            let Ok((header, kind)) = MetaHeader::decode(&body, block) else { continue };
            tracing::warn!(%block, "was damaged; read from another member");
            let good = |b: &[u8]| MetaHeader::decode(b, block).is_ok();
            self.pool.blame(at, body.len(), &good);
            // Who keeps no log only looks: another may have the pool in use.
            if self.pool.is_attached()
                && (self.elsewhere.is_some() || !self.is_misplaced(block))
                && let Err(error) = self
                    .pool
                    .heal(at, Bytes::from(body.len()), &|b| MetaHeader::decode(b, block).is_ok())
            {
                tracing::warn!(%block, %error, "could not be healed");
            }
            return Some((body, header, kind));
        }
        None
    }
    /// Whether a copy of a slot without a good body has no lock record of that place either, nor have
    /// the slots around it: as if a member stood in another one's place. To mend it would be to write
    /// over what is good there. Where records are in a store nothing tells.
    fn is_misplaced(&self, block: BlockNo) -> bool {
        let mut slot = AlignedBuf::zeroed(Bytes(self.geo.slot_bytes()).to_usize());
        let mut good = |block: BlockNo, nth, part: fn(&[u8], &[u8], BlockNo) -> bool| {
            let read = self.pool.look(self.slot_at(block), &mut slot, nth);
            let (record, body) = slot.split_at(self.geo.body_at().to_usize());
            read.is_ok() && part(record, body, block)
        };
        let far = AROUND * self.geo.slot_blocks();
        let around = (block.get().saturating_sub(far)..=block.get().saturating_add(far))
            .step_by(Bytes(self.geo.slot_blocks()).to_usize());
        let misplaced = (0..self.pool.copies()).any(|nth| {
            !good(block, nth, |_, body, block| MetaHeader::decode(body, block).is_ok())
                && !around.clone().map(BlockNo).filter(|b| self.holds(*b)).any(|b| {
                    good(b, nth, |record, _, b| LockRecord::decode(record, LockNo::from(b)).is_ok())
                })
        });
        if misplaced {
            tracing::error!(
                %block,
                "not healed: nothing around that copy is of this place, as if a member stood in the place of another one; were labels restored onto the wrong devices?"
            );
        }
        misplaced
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
        debug_assert!(
            bodies.iter().all(|(block, _)| !self.is_data_only(*block)),
            "a body on a data subpool"
        );
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
    /// What a lock protects, for people.
    pub fn name_of(&self, lock: LockNo) -> String {
        let stride = self.geo.slot_blocks();
        let within = |start: u64, count: u64| {
            let n = lock.get().checked_sub(start)? / stride;
            (n < count).then_some(n)
        };
        let block = BlockNo(lock.get());
        if let Some(n) = within(self.sb.named_start.get(), self.sb.named_count.get().into()) {
            format!("named lock {n}")
        } else if let Some(n) = within(self.sb.plock_start.get(), self.sb.plock_count.get().into())
        {
            format!("program locks {n}")
        } else if self.is_group_lock(lock) {
            let n = self.rgrp_of(block).unwrap_or_default();
            format!("resource group {n}")
        } else {
            format!("inode {lock}")
        }
    }
    /// The lock of who may have free space that no resource group knows of.
    pub fn space_lock(&self) -> LockNo {
        self.named(RawSuperblock::NAMED_SPACE)
    }
    /// Whether it is the lock of a resource group.
    pub fn is_group_lock(&self, lock: LockNo) -> bool {
        let block = BlockNo(lock.get());
        self.rgrp_of(block).is_some_and(|n| self.rgrp(n) == block)
    }
    /// The bucket of program locks for `ino`.
    pub fn plock_bucket(&self, ino: InodeNo) -> LockNo {
        let n = (ino.get() / self.geo.slot_blocks()) % u64::from(self.sb.plock_count.get().max(1));
        self.nth_plock_bucket(n)
    }
    /// All buckets of program locks, in the order in which several are locked.
    pub fn plock_buckets(&self) -> impl Iterator<Item = LockNo> {
        (0..u64::from(self.sb.plock_count.get())).map(|n| self.nth_plock_bucket(n))
    }
    fn nth_plock_bucket(&self, n: u64) -> LockNo {
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
    /// Header slot of resource group `index`; its lock is the group's.
    pub fn rgrp(&self, index: u64) -> BlockNo {
        self.groups.head(index)
    }
    /// The parts of group `index`, if there is one.
    pub fn group_shape(&self, index: u64) -> Option<GroupShape> {
        self.groups.shape(index)
    }
    /// The resource group that block lies in, if it lies in one.
    pub fn rgrp_of(&self, block: BlockNo) -> Option<u64> {
        self.groups.of_block(block)
    }
    /// Whether `block` lies where nothing but file data may be.
    pub fn is_data_only(&self, block: BlockNo) -> bool {
        let at = self.slot_at(block);
        let kind = self.pool.info().kind_of(at, self.geo.block_size.bytes());
        kind == Some(SubpoolKind::Data)
    }
    /// First, and one past the last block that file data may lie in.
    pub fn data_bounds(&self) -> (u64, u64) {
        self.groups.data_bounds(self.total_blocks())
    }
    /// The rows that a large file in group `index` is best aligned to, from the group's block
    /// `block` on: (first block of all rows, blocks in a row; 0: none).
    pub fn rows_at(&self, index: u64, block: u64) -> (u64, u64) {
        let shift = self.geo.block_size.shift();
        let info = self.pool.info();
        let whole = |n: u64| n.is_multiple_of(self.geo.block_size.bytes().get());
        if !self.groups.split() && !self.groups.is_added(index) {
            return (0, self.sb.stripe_width.get() >> shift);
        }
        if !takes_data(self.groups.kind(index)) {
            return (0, 0);
        }
        let at = block << shift;
        let zone = info.zones.iter().find(|z| z.start.get() + z.len.get() > at);
        let (start, width) = match zone {
            Some(z) if z.width != Bytes(0) => (z.start.get(), z.width.get()),
            _ => (0, info.stripe_unit.get()),
        };
        if whole(start) && whole(width) { (start >> shift, width >> shift) } else { (0, 0) }
    }
}

/// Refuses another version, and features that this one does not know and may not ignore.
fn require_known(sb: &RawSuperblock) -> Result<()> {
    let (what, known) = ("superblock", RawSuperblock::VERSION);
    if sb.version.get() != known {
        let found = sb.version.get();
        return Err(Error::Superblock(FormatError::OtherVersion { what, found, known }));
    }
    match sb.features_incompat.get() & !RawSuperblock::KNOWN {
        0 => Ok(()),
        bits => Err(Error::Superblock(FormatError::UnknownFeature { what, bits })),
    }
}

/// Refuses features that this version does not know and may ignore only if it changes nothing.
fn require_known_to_change(sb: &RawSuperblock) -> Result<()> {
    match sb.features_ro_compat.get() & !RawSuperblock::KNOWN_RO {
        0 => Ok(()),
        bits => Err(Error::Superblock(FormatError::UnknownChange { what: "superblock", bits })),
    }
}

/// The superblock in a body, what was added, and what of that leaves.
fn split_body(body: &[u8]) -> Result<(RawSuperblock, Box<RawRegions>, RawLeaving)> {
    let short = || Error::Superblock(FormatError::TooShort { what: "superblock", len: body.len() });
    let (sb, rest) = RawSuperblock::read_from_prefix(body).map_err(|_| short())?;
    let mut regions = Box::new(RawRegions::new_zeroed());
    if sb.features_incompat.get() & RawSuperblock::REGIONS != 0 {
        *regions = RawRegions::read_from_prefix(rest).map_err(|_| short())?.0;
    }
    let mut leaving = RawLeaving::default();
    if sb.features_incompat.get() & RawSuperblock::LEAVING != 0 {
        let rest = body.get(RawLeaving::AT..).ok_or_else(short)?;
        leaving = RawLeaving::read_from_prefix(rest).map_err(|_| short())?.0;
    }
    Ok((sb, regions, leaving))
}

/// What a superblock's body holds.
type Found = (RawSuperblock, Box<RawRegions>, RawLeaving, Option<Elsewhere>);

/// Blocks in the pool when the file system was made.
fn base_blocks(sb: &RawSuperblock, regions: &RawRegions) -> u64 {
    match regions.count.get() {
        0 => sb.total_blocks.get(),
        _ => regions.base_blocks.get(),
    }
}
