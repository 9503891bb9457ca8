//! Space: resource groups, this node's windows, reservations, deferred frees.
//!
//! A window is a run of one group's blocks from which only this node allocates; taking and
//! returning one needs the group's lock, allocating from it needs none. The group's bitmap shows a
//! window's takeable blocks as `Data`; the window block (private, journaled) says what they are.
//! When a window goes back, for each of its blocks: window `Free` -> group `Free`; window
//! `MetaUsed`/`MetaFree` -> the same in the group, if the group still says `Data`; window `Data` ->
//! the group is left alone (it says `Data`, or another node freed the block meanwhile).
//!
//! Freeing a block inside a window of this node changes the window (reusable once the transaction
//! is durable). Freeing any other block appends it to this node's free log (private, journaled) in
//! the same transaction; the log is drained later under the groups' locks: first the `Free` bodies
//! of metadata slots are put in place, then the bits change and the entries go, in one transaction.

use std::sync::Arc;

use braid_format::{BlockNo, Incarnation, NodeId};
use braid_lock::{Guard, LockManager};

use crate::error::Result;
use crate::meta::{Meta, Tx};
use crate::volume::Volume;

/// This node's allocator.
pub(crate) struct Alloc {
    _volume: Arc<Volume>,
}

/// A promise of space, made before the transaction (or when data is dirtied). Dropping it returns
/// what was not used.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Data blocks still promised.
    pub data: u64,
    /// Metadata slots still promised.
    pub slots: u64,
    /// Free-log entries still promised.
    pub frees: u64,
}

/// A contiguous run of blocks taken out of a window in memory: data may be written there before
/// any transaction refers to it. Dropped without [`Alloc::commit_run`], it goes back.
#[derive(Debug)]
pub(crate) struct Run {
    /// First block.
    pub start: BlockNo,
    /// Blocks.
    pub len: u64,
}

impl Alloc {
    /// Opens the windows and the free log of `node` (returned ones are empty).
    pub fn open(
        volume: Arc<Volume>,
        meta: Arc<Meta>,
        locks: Arc<LockManager>,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<Self> {
        let _ = (meta, locks, node, incarnation);
        Ok(Self { _volume: volume })
    }
    /// Promises space, taking windows (group locks, I/O, a transaction of its own) and draining
    /// the free log where needed. Call with inode locks held and no transaction open.
    ///
    /// # Errors
    /// `NoSpace`, with everything as before.
    pub fn reserve(&self, data: u64, slots: u64, frees: u64) -> Result<Reservation> {
        let _ = (data, slots, frees);
        todo!()
    }
    /// Moves `from`'s promise into `into`.
    pub fn merge(&self, into: &mut Reservation, from: Reservation) {
        let _ = (into, from);
        todo!()
    }
    /// Takes up to `want` blocks in one run, near or right after `goal` if possible, in memory.
    /// Never fails while the reservation covers it.
    pub fn claim(&self, r: &mut Reservation, want: u64, goal: Option<BlockNo>) -> Result<Run> {
        let _ = (r, want, goal);
        todo!()
    }
    /// Makes the first `len` blocks of a run used, in `tx`; the rest goes back.
    pub fn commit_run(&self, tx: &mut Tx<'_>, run: Run, len: u64) -> Result<()> {
        let _ = (tx, run, len);
        todo!()
    }
    /// A metadata slot for a tree node, attribute block or the like: used from `tx` on. The caller
    /// follows with [`Tx::create`].
    pub fn take_slot(&self, tx: &mut Tx<'_>, r: &mut Reservation) -> Result<BlockNo> {
        let _ = (tx, r);
        todo!()
    }
    /// A metadata slot for a dinode, with its lock held exclusively. Before the transaction.
    pub fn claim_dinode(&self, r: &mut Reservation) -> Result<(BlockNo, Guard)> {
        let _ = r;
        todo!()
    }
    /// Makes a claimed dinode slot used. (`unclaim_dinode` gives it back instead.)
    pub fn commit_dinode(&self, tx: &mut Tx<'_>, slot: BlockNo) -> Result<()> {
        let _ = (tx, slot);
        todo!()
    }
    /// Gives a claimed dinode slot back.
    pub fn unclaim_dinode(&self, slot: BlockNo) {
        let _ = slot;
        todo!()
    }
    /// Frees data blocks. One free-log entry of the reservation at most, per resource group touched.
    pub fn free_data(
        &self,
        tx: &mut Tx<'_>,
        r: &mut Reservation,
        start: BlockNo,
        len: u64,
    ) -> Result<()> {
        let _ = (tx, r, start, len);
        todo!()
    }
    /// Frees a metadata slot (after [`Tx::free`]). One free-log entry at most.
    /// `dinode`: counts one inode less.
    pub fn free_slot(
        &self,
        tx: &mut Tx<'_>,
        r: &mut Reservation,
        slot: BlockNo,
        dinode: bool,
    ) -> Result<()> {
        let _ = (tx, r, slot, dinode);
        todo!()
    }
    /// Applies the free log to the groups. No transaction open.
    pub fn drain_frees(&self) -> Result<()> {
        todo!()
    }
    /// This node's change of (free blocks, inodes) since the cluster's counters were last updated.
    pub fn deltas(&self) -> (i64, i64) {
        todo!()
    }
    /// Totals of the resource groups: (blocks, free blocks in groups and all known windows, inodes).
    pub fn totals(&self) -> (u64, u64, u64) {
        todo!()
    }
    /// Unmount: drains the log, returns the windows, folds the deltas into the counters.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}

/// After replay of dead `node`'s journal, on the recoverer: returns its windows, applies its free
/// log, folds in its counters. Idempotent.
pub(crate) fn reclaim(
    volume: &Arc<Volume>,
    meta: &Meta,
    locks: &Arc<LockManager>,
    node: NodeId,
) -> Result<()> {
    let _ = (volume, meta, locks, node);
    todo!()
}
