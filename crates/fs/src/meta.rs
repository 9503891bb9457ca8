//! The metadata cache and transactions.
//!
//! A cached block is an `Arc` of its body. A transaction changes a block by copy-on-write, so a
//! commit takes its snapshot by cloning `Arc`s, and an in-place write never sees a half-done
//! change. Life of a block:
//! ```text
//!            modify                 commit                  written in place
//!  clean ------------> running ---------------> logged ------------------------> clean
//!                         ^                        | modify
//!                         +------------------------+   (both: newer image running, older logged)
//! ```
//! Invariants:
//! * a body reaches its place only after the commit that holds it is durable (write-ahead);
//! * the generation in a body's header grows by one with each commit that holds it;
//! * bodies in memory are not sealed: the checksum is computed when one leaves for a device;
//! * the cache is bounded; only clean blocks are dropped;
//! * no cluster lock is taken while a transaction is open.

use std::sync::Arc;

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, Incarnation, LockNo, NodeId};
use braid_pool::device::AlignedBuf;

use crate::error::Result;
use crate::volume::Volume;

/// A metadata body, shared and immutable.
pub(crate) type Body = Arc<AlignedBuf>;

/// The cache, the running transaction, and this node's journal.
#[derive(Debug)]
pub(crate) struct Meta {
    volume: Arc<Volume>,
}

impl Meta {
    /// Takes over the journal of `node` (clean: replay has been done), and starts with an empty
    /// cache of at most `cache_bytes` clean bodies.
    pub fn open(
        volume: Arc<Volume>,
        node: NodeId,
        incarnation: Incarnation,
        cache_bytes: u64,
    ) -> Result<Self> {
        let _ = (node, incarnation, cache_bytes);
        Ok(Self { volume })
    }
    /// The body of `block`, from the cache or the devices, verified to be of `kind` and covered
    /// by `owner`. The caller holds `owner`, at least shared (or the block is private to this node).
    pub fn read(&self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        let _ = (block, owner, kind, &self.volume);
        todo!()
    }
    /// Joins the running transaction. Waits while a commit takes its snapshot, and starts a commit
    /// when the running transaction has grown large. Never nest.
    pub fn begin(&self) -> Result<Tx<'_>> {
        todo!()
    }
    /// Makes every transaction closed before this call durable (group commit: one journal write
    /// for all who ask at the same time). Flushes the devices first when data was written since
    /// the last flush, so data that a transaction makes visible is durable before it.
    pub fn commit(&self) -> Result<()> {
        todo!()
    }
    /// Tells that file data was written (complete, not flushed).
    pub fn note_data_written(&self) {
        todo!()
    }
    /// Data and metadata durable: `commit`, or only a flush where nothing runs.
    pub fn barrier(&self) -> Result<()> {
        todo!()
    }
    /// For demotion: on return everything under `owner` is in place and stable. Writes other
    /// logged blocks along with it (bounded batch), so that the next demotions find them clean.
    pub fn sync_owner(&self, owner: LockNo) -> Result<()> {
        let _ = owner;
        todo!()
    }
    /// Commits, then writes these blocks in place and flushes.
    pub fn sync_blocks(&self, blocks: &[BlockNo]) -> Result<()> {
        let _ = blocks;
        todo!()
    }
    /// Forgets all cached blocks under `owner`.
    ///
    /// # Panics
    /// If one of them is not clean.
    pub fn drop_owner(&self, owner: LockNo) {
        let _ = owner;
        todo!()
    }
    /// Writes all logged blocks in place, flushes, and moves the journal's tail.
    pub fn checkpoint(&self) -> Result<()> {
        todo!()
    }
    /// Commits, checkpoints, and marks the journal clean.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
    /// After a withdrawal: nothing is written any more.
    pub fn poison(&self, reason: Arc<str>) {
        let _ = reason;
        todo!()
    }
}

/// An open transaction. Dropping it closes it: its changes are then part of the running
/// transaction and become durable together with it. There is no roll-back: check everything
/// before the first change; an error after it makes the node withdraw.
pub(crate) struct Tx<'a> {
    meta: &'a Meta,
}

impl Tx<'_> {
    /// As [`Meta::read`]; sees this transaction's changes.
    pub fn read(&mut self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        self.meta.read(block, owner, kind)
    }
    /// Changes a body. `owner` held exclusively. `f` gets the whole body; it must not touch the header.
    pub fn modify<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let _ = (block, owner, kind, f);
        todo!()
    }
    /// Gives a free slot a new content: zeros, a header of `kind` and `owner`, then `f`. The old
    /// body is read (or cached) for its generation.
    pub fn create<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let _ = (block, owner, kind, f);
        todo!()
    }
    /// Turns a slot into kind `Free` (still under `owner`). The allocator is told separately.
    pub fn free(&mut self, block: BlockNo, owner: LockNo) -> Result<()> {
        let _ = (block, owner);
        todo!()
    }
    /// Runs `f` once the running transaction is durable (on the committing thread; short).
    pub fn on_commit(&mut self, f: Box<dyn FnOnce() + Send>) {
        let _ = f;
        todo!()
    }
}
