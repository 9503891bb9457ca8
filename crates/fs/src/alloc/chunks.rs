//! Free blocks of this node's windows become metadata slots, a chunk at a time.

use braid_format::meta::{Geometry, MetaKind};
use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, Bytes, LockNo};
use braid_lock::{Deltas, Guard, Local, Mode};
use braid_pool::device::AlignedBuf;

use super::group::{Edits, Group};
use super::image::{Birth, Fresh};
use super::inner::Inner;
use super::private::plan_runs;
use super::refill::Refill;
use super::window::Window;
use crate::error::{Error, Result};
use crate::meta::Tx;

/// Metadata chunks carved at once, when a node keeps creating.
const CHUNKS_MAX: u64 = 4;

impl Inner {
    /// Turns free blocks of a window into metadata slots whose locks this node holds from birth.
    /// Keeps `data` blocks free. `whole`: in chunks, or not at all; `home`: in windows of groups that
    /// were made with the file system.
    pub(super) fn carve(&self, refill: &mut Refill, data: u64, how: (bool, bool)) -> Result<bool> {
        let mut out_of_reach = Vec::new();
        loop {
            let claimed = self.claim_chunk(refill, data, how, &out_of_reach);
            let Some((start, slots)) = claimed else { return Ok(false) };
            let blocks = slots * self.slot_blocks();
            let group = self.group_of(start);
            let made = group.and_then(|group| self.carve_at(refill, group, (start, slots)));
            let Err(error) = made else { return Ok(true) };
            self.state.lock().unclaim(start, blocks);
            if !error.is_of_one_group() || self.meta.check().is_err() {
                return Err(error);
            }
            // Until a repair: windows in other groups will do.
            self.meta.note_damage(&error);
            out_of_reach.extend(self.volume.rgrp_of(BlockNo(start)));
        }
    }
    /// The group of a block, under its exclusive lock.
    fn group_of(&self, block: u64) -> Result<(Guard, Group)> {
        let outside =
            Error::Inconsistent { block: BlockNo(block), what: "block outside all groups" };
        let index = self.volume.rgrp_of(BlockNo(block)).ok_or(outside)?;
        let lock = LockNo::from(self.volume.rgrp(index));
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        Ok((guard, Group::load(&self.volume, &self.meta, index)?))
    }
    /// Makes slots of claimed blocks. The group shows them as slots from now on, so that every
    /// holder of its lock can tell them from file data.
    fn carve_at(
        &self,
        refill: &mut Refill,
        (_guard, mut group): (Guard, Group),
        (start, slots): (u64, u64),
    ) -> Result<()> {
        let per_slot = self.slot_blocks();
        let blocks = slots * per_slot;
        let (place, at) = self.place_of(start)?;
        let shown = group.local_run(start, blocks)?;
        let mut edits = Edits::default();
        plan_runs(&group, shown..shown + blocks, BlockState::MetaUsed, &mut edits)?;
        let birth = Birth::now(self.chunk_nonce());
        self.write_chunk(&mut refill.carved, (start, slots), birth)?;
        // The commit flushes the chunk before the record that makes it metadata.
        self.meta.note_data_written();
        let mut tx = self.meta.begin()?;
        let runs = [(at, blocks, BlockState::MetaFree)];
        let done = group
            .apply(&mut tx, &edits)
            .and_then(|()| self.private().set_window_bits(&mut tx, place, &runs))
            .and_then(|()| self.count_carved(&mut tx, blocks));
        drop(tx);
        self.meta.sealed(done)?;
        let all = (0..slots).map(|i| start + i * per_slot);
        self.locks.adopt(all.clone().map(LockNo), birth.nonce);
        for slot in all.clone() {
            self.meta.adopt_free(BlockNo(slot), birth.generation);
        }
        let mut state = self.state.lock();
        state.settle(start, blocks);
        for slot in all {
            state.add_slot(slot);
        }
        refill.chunks = (refill.chunks * 2).min(CHUNKS_MAX);
        Ok(())
    }
    /// Where blocks are for both uses, what becomes slots is no longer free for data.
    fn count_carved(&self, tx: &mut Tx<'_>, blocks: u64) -> Result<()> {
        if self.volume.groups.split() {
            return Ok(());
        }
        let blocks = Self::signed(blocks);
        self.count(tx, Deltas { free: -blocks, meta: blocks, ..Deltas::default() })
    }
    /// Blocks for a chunk (or several, or a part), claimed, in no group of `but`: (first block, slots).
    fn claim_chunk(
        &self,
        refill: &Refill,
        data: u64,
        (whole, home): (bool, bool),
        but: &[u64],
    ) -> Option<(u64, u64)> {
        let per_slot = self.slot_blocks();
        let chunk = Geometry::SLOTS_PER_CHUNK;
        let mut state = self.state.lock();
        let free = state.chunks_free().checked_sub(data)?;
        let fits = |w: &Window| !(but.contains(&w.group) || home && w.added);
        if whole {
            let mut n = refill.chunks;
            while n > 0 {
                let blocks = n * chunk * per_slot;
                if free >= blocks
                    && let Some(start) = state.claim_aligned(blocks, chunk * per_slot, fits)
                {
                    return Some((start, n * chunk));
                }
                n /= 2;
            }
            return None;
        }
        let mut slots = chunk / 2;
        while slots > 0 {
            let blocks = slots * per_slot;
            if free >= blocks
                && let Some(start) = state.claim_aligned(blocks, per_slot, fits)
            {
                return Some((start, slots));
            }
            slots /= 2;
        }
        None
    }
    /// One large write: lock records held by this node, `Free` bodies.
    fn write_chunk(
        &self,
        buf: &mut AlignedBuf,
        (start, slots): (u64, u64),
        birth: Birth,
    ) -> Result<()> {
        let geo = self.volume.geo;
        let bytes = Bytes(geo.slot_bytes());
        let len = Bytes(slots * bytes.get()).to_usize();
        if buf.len() < len {
            *buf = AlignedBuf::zeroed(len);
        }
        let buf = buf.get_mut(..len).unwrap_or_default();
        for (i, slot) in (0..slots).zip(buf.chunks_exact_mut(bytes.to_usize())) {
            let block = BlockNo(start + i * geo.slot_blocks());
            let fresh =
                Fresh { holder: Some(self.life()), ..Fresh::own(block, MetaKind::Free, birth) };
            fresh.write(geo, slot, |_| {});
        }
        debug_assert!(!self.volume.is_data_only(BlockNo(start)), "slots on a data subpool");
        Ok(self.volume.pool.write(self.volume.slot_at(BlockNo(start)), buf)?)
    }

    /// Of the lock records in a new chunk. No living node has compared with a record there, so any nonce is fresh.
    fn chunk_nonce(&self) -> u64 {
        u64::from(self.incarnation.get()) << 32 | u64::from(self.node.get())
    }
}
