//! From the journal to their places: write-back, checkpoint, the journal's tail.

use std::collections::HashSet;

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, LockNo};
use braid_pool::device::AlignedBuf;

use super::cache::Logged;
use super::ledger::Record;
use super::metadata::Meta;
use crate::error::{Error, Result};
use crate::journal::{Appended, Image, Journal, Placed};
use crate::volume::Body;

/// Bytes of sealed copies in memory at once during write-back.
const COPY_MAX: usize = 4 << 20;

/// A logged image on its way to its place.
struct Leaving {
    block: BlockNo,
    body: Body,
    sequence: u64,
}

impl Meta {
    /// For demotion: on return everything under `owner` is in place and stable. Writes other
    /// logged blocks along with it (bounded batch), so that the next demotions find them clean.
    /// Nothing of the owner's is dirty: no I/O.
    pub fn sync_owner(&self, owner: LockNo) -> Result<()> {
        self.sync(&self.cache.owners.blocks(owner))
    }
    /// Commits everything, then writes these blocks in place, if one is not there, and flushes.
    pub fn sync_blocks(&self, blocks: &[BlockNo]) -> Result<()> {
        self.commit()?;
        self.sync(blocks)
    }
    fn sync(&self, blocks: &[BlockNo]) -> Result<()> {
        self.assert_no_tx_here();
        self.check()?;
        let mut dirty = false;
        let mut committed = true;
        for &block in blocks {
            if let Some(entry) = self.cache.shard(block).get(block) {
                dirty |= !entry.is_clean();
                committed &= !entry.running && entry.committing.is_none();
            }
        }
        if !committed {
            self.commit()?;
        }
        if dirty {
            self.write_back(blocks, self.along_max)?;
        }
        Ok(())
    }
    /// Writes all logged blocks in place, flushes, and moves the journal's tail. Does not commit.
    pub fn checkpoint(&self) -> Result<()> {
        self.assert_no_tx_here();
        self.check()?;
        self.write_back(&[], usize::MAX)?;
        let mut journal = self.journal.lock();
        let tail = self.tail(&journal);
        self.fatal(journal.move_tail(&self.volume, tail))
    }
    /// For a thread in the background: checkpoints when more than half of the ring, or of the memory
    /// for logged bodies, is in use, so that commits need not wait for it. Else nothing.
    pub fn relieve(&self) -> Result<()> {
        let journal = self.journal.lock();
        let used = journal.used();
        let half = journal.ring().len / 2;
        drop(journal);
        let crowded = self.ledger.lock().blocks.len() > self.logged_max / 2;
        if used > half || crowded { self.checkpoint() } else { Ok(()) }
    }
    /// Commits, checkpoints, and marks the journal clean. Transactions after it open it again.
    pub fn close(&self) -> Result<()> {
        loop {
            self.commit()?;
            self.checkpoint()?;
            let mut journal = self.journal.lock();
            let tail = self.tail(&journal);
            if tail == journal.end() {
                self.fatal(journal.move_tail(&self.volume, tail))?;
                return self.fatal(journal.mark_clean(&self.volume));
            }
        }
    }

    /// A record is durable: its images are logged now.
    pub(super) fn publish(&self, appended: Appended, images: &[Image]) {
        let Appended { sequence, from } = appended;
        let record = Record { sequence, from, pending: images.len() };
        self.ledger.lock().records.push_back(record);
        for image in images {
            self.cache.shard(image.block).change(image.block, |entry| {
                entry.committing = None;
                let now = Logged { body: image.body.clone(), sequence };
                let before = entry.logged.replace(now);
                let mut ledger = self.ledger.lock();
                ledger.blocks.insert(image.block);
                if let Some(before) = before {
                    ledger.release(before.sequence);
                }
            });
        }
    }
    /// Before a commit of `count` images: makes the ring, and the bound of memory, hold them.
    pub(super) fn make_room(&self, journal: &mut Journal, count: u64) -> Result<()> {
        let logged = self.ledger.lock().blocks.len() as u64;
        if logged > 0 && logged + count > self.logged_max as u64 {
            self.write_back(&[], usize::MAX)?;
        }
        if journal.fits(count) {
            return Ok(());
        }
        // Demotions may have done the work already; but a header write for a little space, at
        // every commit, would cost more than to write all back once.
        let tail = self.tail(journal);
        if journal.used_from(tail) <= journal.ring().len / 2 {
            journal.move_tail(&self.volume, tail)?;
        }
        if journal.fits(count) {
            return Ok(());
        }
        self.write_back(&[], usize::MAX)?;
        journal.move_tail(&self.volume, self.tail(journal))?;
        if !journal.fits(count) {
            journal.rewind(&self.volume)?;
        }
        if !journal.fits(count) {
            let block = self.volume.geo.block_size.block_of(journal.ring().at);
            return Err(Error::Inconsistent { block, what: "transaction larger than the journal" });
        }
        Ok(())
    }
    fn tail(&self, journal: &Journal) -> Placed {
        self.ledger.lock().tail().unwrap_or_else(|| journal.end())
    }
    /// Writes the logged ones of `must`, and up to `along` others, in place; flushes; marks them
    /// clean. One at a time: an older image never lands after a newer one.
    fn write_back(&self, must: &[BlockNo], along: usize) -> Result<()> {
        let _turn = self.write_back.lock();
        self.check()?;
        let leaving = self.collect(must, along);
        if leaving.is_empty() {
            return Ok(());
        }
        self.fatal(self.put_in_place(&leaving).and_then(|()| self.flush_devices()))?;
        for image in &leaving {
            self.mark_in_place(image);
        }
        Ok(())
    }
    /// Nothing when none of `must` needs it (and there are some).
    fn collect(&self, must: &[BlockNo], along: usize) -> Vec<Leaving> {
        let mut leaving: Vec<Leaving> = must.iter().filter_map(|b| self.leaving(*b)).collect();
        if leaving.is_empty() && !must.is_empty() {
            return leaving;
        }
        let taken: HashSet<BlockNo> = leaving.iter().map(|l| l.block).collect();
        let others: Vec<BlockNo> = {
            let ledger = self.ledger.lock();
            ledger.blocks.iter().filter(|b| !taken.contains(b)).take(along).copied().collect()
        };
        leaving.extend(others.into_iter().filter_map(|b| self.leaving(b)));
        leaving.sort_unstable_by_key(|l| l.block);
        leaving
    }
    fn leaving(&self, block: BlockNo) -> Option<Leaving> {
        let mut shard = self.cache.shard(block);
        let Logged { body, sequence } = shard.get(block)?.logged.clone()?;
        Some(Leaving { block, body, sequence })
    }
    /// Complete, not durable.
    fn put_in_place(&self, leaving: &[Leaving]) -> Result<()> {
        let len = self.volume.geo.body_len();
        let at_once = (COPY_MAX / len).max(1);
        let mut copies = AlignedBuf::zeroed(len * at_once.min(leaving.len()));
        for batch in leaving.chunks(at_once) {
            self.check()?;
            for (image, copy) in batch.iter().zip(copies.chunks_exact_mut(len)) {
                copy.copy_from_slice(&image.body);
                MetaHeader::seal(copy);
            }
            let bodies: Vec<(BlockNo, &[u8])> =
                batch.iter().map(|i| i.block).zip(copies.chunks_exact(len)).collect();
            self.volume.write_bodies(&bodies)?;
        }
        let written = leaving.len() as u64;
        self.counters.in_place.fetch_add(written, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
    /// Unless a newer image was logged meanwhile.
    fn mark_in_place(&self, image: &Leaving) {
        let mut shard = self.cache.shard(image.block);
        let state = shard.change(image.block, |entry| {
            if entry.logged.as_ref().is_none_or(|l| l.sequence != image.sequence) {
                return None;
            }
            entry.logged = None;
            let mut ledger = self.ledger.lock();
            ledger.blocks.remove(&image.block);
            ledger.release(image.sequence);
            Some((entry.is_clean(), entry.kind))
        });
        match state.flatten() {
            Some((true, MetaKind::Free)) => shard.remove(&self.cache.owners, image.block),
            Some((true, _)) => shard.trim(&self.cache.owners, None),
            _ => {}
        }
    }
}
