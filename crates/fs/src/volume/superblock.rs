//! The superblock: which copy of it counts, what of it is refused, and what is new in it.
//!
//! It stands in slot 0, its copy at the end of the pool (FORMAT.md, section 4). The copy counts if what
//! stands in slot 0 cannot be used: if its checksum is wrong, or something that it says cannot be. A
//! growth writes the copy last, so a copy may lack the last region. It is not used if the pool has space
//! that it does not tell of and the head of a resource group stands there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::label::SubpoolKind;
use braid_format::lock_record::nodes_max;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::{RawLeaving, RawRegions, RawSuperblock};
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, FormatError};
use braid_pool::device::AlignedBuf;
use braid_pool::{Pool, ReadPath};
use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros};

use super::Volume;
use crate::error::{Error, Result};
use crate::external_store::ExternalStore;
use crate::groups::{Groups, Part, Span, blocks_per_bitmap, copy_block, copy_offset};

/// Where the superblock is.
const HERE: BlockNo = BlockNo(0);

/// What a superblock's body holds.
struct Found {
    sb: RawSuperblock,
    /// What was added.
    regions: Box<RawRegions>,
    /// What of that leaves.
    leaving: RawLeaving,
    external_store: Option<ExternalStore>,
}

impl Found {
    /// From a body whose checksum is right; where locks are is not looked at.
    fn read(body: &[u8], external_store: Option<ExternalStore>) -> Result<Self> {
        let short =
            || Error::Superblock(FormatError::TooShort { what: "superblock", len: body.len() });
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
        Ok(Self { sb, regions, leaving, external_store })
    }
}

impl Volume {
    /// Reads and verifies the superblock of `pool`: the copy, if the first cannot be used.
    ///
    /// # Errors
    /// Neither can be used; or the first cannot, and the copy may be from before the pool last grew
    /// ([`Error::OldSuperblock`]).
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the volume keeps the pool, which is a counted pointer"
    )]
    pub fn open(pool: Pool) -> Result<Self> {
        let at = |at| Self::read_superblock(&pool, at).and_then(|found| Self::of(&pool, found));
        let first = at(ByteOffset(0));
        Self::that_counts(first, || at(Self::copy_offset(&pool)))
    }
    /// The first superblock, or its copy.
    fn that_counts(first: Result<Self>, copy: impl FnOnce() -> Result<Self>) -> Result<Self> {
        let error = match first {
            Err(error) if !is_of_another_version(&error) => error,
            other => return other,
        };
        let Ok(volume) = copy() else { return Err(error) };
        if volume.may_lack_a_region()? {
            return Err(Error::OldSuperblock { first: Box::new(error) });
        }
        tracing::warn!("first superblock unusable ({error}), using the copy");
        Ok(volume)
    }
    /// Whether this superblock may be from before the last growth: there is space in the pool that it
    /// does not tell of, and the head of a resource group stands there.
    fn may_lack_a_region(&self) -> Result<bool> {
        let (size, slot) = (self.geo.block_size, self.geo.slot_blocks());
        let end = size.offset_of(BlockNo(self.total_blocks()));
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        for segment in self.pool.info().segments.iter().filter(|s| s.start >= end) {
            let first = size.blocks_for(Bytes(segment.start.get())).get().next_multiple_of(slot);
            let head = BlockNo(first);
            for nth in 0..self.pool.copies() {
                self.pool.look(self.body_at(head), &mut body, nth)?;
                if MetaHeader::decode_kind(&body, head, MetaKind::Rgrp).is_ok() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
    /// With a superblock whose checksum is right, if all that it says can be.
    fn of(pool: &Pool, found: Found) -> Result<Self> {
        let pool = pool.clone();
        let Found { sb, regions, leaving, external_store } = found;
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
        let volume = Self { pool, geo, sb, regions, external_store, groups, total, learning };
        volume.validate()?;
        volume.learn(&volume.sb, &volume.regions, leaving)?;
        Ok(volume)
    }

    /// The superblock that counts now. Waits for no epoch and no region: others may wait until this node
    /// has done so.
    fn now(&self) -> Result<Self> {
        Self::that_counts(self.now_at(HERE), || self.now_at(self.copy()))
    }
    fn now_at(&self, block: BlockNo) -> Result<Self> {
        let body = self.look_at_body(block)?;
        Self::of(&self.pool, Found::read(&body, self.external_store.clone())?)
    }
    /// Whether the superblock in slot 0 can be used.
    pub fn is_first_usable(&self) -> bool {
        self.now_at(HERE).is_ok()
    }
    /// What was added, as the superblock says now.
    pub fn regions_now(&self) -> Result<Box<RawRegions>> {
        Ok(self.now()?.regions)
    }
    /// Reads the superblock again: it may say of more space, or of less. Whether it does. Waits for no epoch and
    /// no region: others may wait until this node has done so.
    ///
    /// # Errors
    /// It is damaged, or says of space that cannot be.
    pub fn refresh(&self) -> Result<bool> {
        // An epoch and a change of this node may both read it: what was read later counts.
        let _one = self.learning.lock();
        // A newer version may have begun to use what this one does not know.
        let now = self.now()?;
        if self.may_change().is_ok() {
            now.may_change()?;
        }
        if now.sb.fs_uuid != self.sb.fs_uuid {
            let field = "fs_uuid";
            let source = FormatError::BadField { what: "superblock", at: 0, field, value: 0 };
            return Err(Error::Superblock(source));
        }
        self.learn(&now.sb, &now.regions, now.groups.leaving())
    }
    /// Refuses a file system that this version may only read: before anything of it is changed.
    ///
    /// # Errors
    /// [`FormatError::UnknownChange`].
    pub fn may_change(&self) -> Result<()> {
        require_known_to_change(&self.sb)
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
        let want = pool.info().size.get().saturating_sub(at.get()).min(128 << 10);
        let want = usize::try_from(want / 4096 * 4096).unwrap_or(0);
        pool.read(at, &mut slot[..want])?;
        let first = Self::superblock_in(&slot, at);
        if first.is_ok() {
            return first;
        }
        for nth in 0.. {
            match pool.read_otherwise(ReadPath::Read, at, &mut slot[..want], nth) {
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
                let Ok(sb) = RawSuperblock::ref_from_prefix(body).map(|(sb, _)| sb) else {
                    continue;
                };
                if sb.fs_magic != RawSuperblock::FS_MAGIC
                    || sb.block_shift.get() != block_shift
                    || sb.lock_sector_shift.get() != lock_shift
                {
                    continue;
                }
                let block = geo.block_size.block_of(at);
                match MetaHeader::decode_kind(body, block, MetaKind::Superblock) {
                    Ok(_) => return Found::read(body, ExternalStore::read(sb, body)?),
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
}

/// Whether another version of Braid has written it, and may know more than this one.
fn is_of_another_version(error: &Error) -> bool {
    use FormatError as F;
    matches!(error, Error::Superblock(F::OtherVersion { .. } | F::UnknownFeature { .. }))
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

/// Blocks in the pool when the file system was made.
fn base_blocks(sb: &RawSuperblock, regions: &RawRegions) -> u64 {
    match regions.count.get() {
        0 => sb.total_blocks.get(),
        _ => regions.base_blocks.get(),
    }
}
