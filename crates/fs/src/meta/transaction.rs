//! Transactions: changes of several blocks that become durable together.

use std::sync::atomic::Ordering;

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, LockNo};
use braid_lock::interrupt::Uninterruptible;
use parking_lot::RwLockReadGuard;

use super::cache::{Entry, Shard};
use super::metadata::{Meta, lost, refuse_used};
use super::running::TX_CREDIT;
use super::thread_state::{CHANGED_HERE, Changing, OPEN_HERE};
use crate::error::Result;
use crate::volume::Body;

impl Meta {
    /// Joins the running transaction. Waits while a commit takes its snapshot, and starts a commit
    /// when the running transaction has grown large. Never nest.
    ///
    /// # Panics
    /// If this thread has one open already.
    pub fn begin(&self) -> Result<Tx<'_>> {
        self.assert_no_tx_here();
        loop {
            self.check()?;
            let barrier = self.barrier.read();
            let open = self.open.fetch_add(1, Ordering::AcqRel) + 1;
            let crowded = open > 1 && open * TX_CREDIT > self.quarter;
            if self.running_blocks.load(Ordering::Acquire) <= self.quarter && !crowded {
                let outer = OPEN_HERE.replace(self.address());
                CHANGED_HERE.set(false);
                return Ok(Tx {
                    meta: self,
                    outer,
                    _held: Uninterruptible::begin(),
                    _barrier: barrier,
                });
            }
            self.open.fetch_sub(1, Ordering::AcqRel);
            drop(barrier);
            if crowded {
                // Until all that are open have closed.
                drop(self.barrier.write());
            } else {
                self.commit()?;
            }
        }
    }
}

/// An open transaction. Dropping it closes it: its changes are then part of the running
/// transaction and become durable together with it. There is no roll-back: check everything
/// before the first change; an error after it makes the node withdraw, and so does a panic.
pub(crate) struct Tx<'a> {
    meta: &'a Meta,
    /// What this thread had open before (in another `Meta`).
    outer: usize,
    /// Nothing that it waits for is interrupted.
    _held: Uninterruptible,
    /// Dropped last.
    _barrier: RwLockReadGuard<'a, ()>,
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        OPEN_HERE.set(self.outer);
        if std::thread::panicking() {
            self.meta.poison("panic in a transaction".into());
        }
        self.meta.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tx<'_> {
    /// As [`Meta::read`]; sees this transaction's changes.
    pub fn read(&mut self, block: BlockNo, owner: LockNo, kind: MetaKind) -> Result<Body> {
        self.meta.read(block, owner, kind)
    }
    /// Changes a body. `owner` held exclusively. `f` gets the whole body; what it does to the
    /// header is undone. It must not use the metadata cache (a panic tells).
    pub fn modify<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.meta.check()?;
        let mut shard = self.meta.load(block, owner, Some(kind))?;
        self.change(&mut shard, block, |entry| {
            entry.check(block, owner, kind)?;
            entry.edit(block, f)
        })
    }
    /// Gives a free slot a new content: zeros, a header of `kind` and `owner`, then `f`. The old
    /// body is read (or cached, or told by [`Meta::adopt_free`]) for its generation.
    ///
    /// # Errors
    /// When the slot holds a dinode or a part of one, or what stands there is neither a sound body
    /// nor all zero.
    pub fn create<R>(
        &mut self,
        block: BlockNo,
        owner: LockNo,
        kind: MetaKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.meta.check()?;
        let mut shard = self.meta.load_free(block, owner)?;
        let owners = &self.meta.cache.owners;
        self.change(&mut shard, block, |entry| {
            refuse_used(block, entry.kind)?;
            owners.transfer(block, entry.owner, owner);
            entry.renew(block, owner, kind)?;
            entry.edit(block, f)
        })
    }
    /// Turns a slot into kind `Free` (still under `owner`). The allocator is told separately. The
    /// body's generation stays known, as by [`Meta::adopt_free`]: until [`Meta::forget_free`], no
    /// other node may use the slot.
    pub fn free(&mut self, block: BlockNo, owner: LockNo) -> Result<()> {
        self.meta.check()?;
        let mut shard = self.meta.load(block, owner, None)?;
        let generation = self.change(&mut shard, block, |entry| {
            entry.check_owner(block, owner)?;
            entry.renew(block, owner, MetaKind::Free)?;
            Ok(entry.generation())
        })?;
        shard.adopted.insert(block, generation);
        Ok(())
    }
    /// Runs `f` once the running transaction is durable (on the committing thread; short; it must
    /// not commit).
    pub fn on_commit(&mut self, f: Box<dyn FnOnce() + Send>) {
        self.meta.running.lock().hooks.push(f);
    }
    /// Applies `f` to a cached entry and takes the block into the running transaction.
    fn change<R>(
        &self,
        shard: &mut Shard,
        block: BlockNo,
        f: impl FnOnce(&mut Entry) -> Result<R>,
    ) -> Result<R> {
        let changing = Changing::enter();
        let done = shard.change(block, |entry| {
            let before = entry.running;
            let r = f(entry);
            (r, !before && entry.running)
        });
        drop(changing);
        let (r, joined) = done.ok_or_else(|| lost(block))?;
        if r.is_ok() {
            CHANGED_HERE.set(true);
        }
        if joined {
            self.meta.join_running(block);
        }
        r
    }
}
