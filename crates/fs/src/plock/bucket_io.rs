//! Buckets of program locks on the devices: each is a chain of blocks under a cluster lock of its own, read
//! when the lock is taken and written when an exclusive hold ends.

use std::time::Instant;

use braid_format::BlockNo;
use braid_format::meta::MetaKind;
use braid_lock::{Guard, Local, Mode};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::meta::Tx;
use crate::plock_table::bucket::{BLOCKS_MAX, Bucket, Seen};
use crate::plock_table::chain::{self, Block};
use crate::plock_table::table::Growth;

/// Blocks that one transaction changes.
const TX_BLOCKS: usize = 16;
/// Blocks that are freed after one unlock, each by a transaction. The next unlocks free the rest.
const SHRINK_MOST: usize = 32;

/// A lock that is taken to change a bucket is exclusive among the threads of this node, too.
fn local(mode: Mode) -> Local {
    if mode == Mode::Exclusive { Local::Exclusive } else { Local::Shared }
}

impl Bucket {
    /// Takes the cluster lock; what is on the devices is then known.
    pub fn open(&self, core: &Core, mode: Mode) -> Result<Guard> {
        let guard = core.guard(self.lock, mode, local(mode))?;
        self.learn(core)?;
        Ok(guard)
    }
    /// The same. `None`: it did not come until then. What is here is had at any time.
    pub fn open_until(&self, core: &Core, mode: Mode, until: Instant) -> Result<Option<Guard>> {
        core.check_alive()?;
        let local = local(mode);
        let cancelled = || Instant::now() >= until;
        let guard = if cancelled() {
            core.locks.try_acquire(self.lock, mode, local)
        } else {
            core.locks.acquire_unless(self.lock, mode, local, &cancelled)?
        };
        guard.map(|guard| self.learn(core).map(|()| guard)).transpose()
    }
    /// Reads what is on the devices, unless that is known. The cluster lock is held.
    fn learn(&self, core: &Core) -> Result<()> {
        if self.state().seen.is_none() {
            let mut seen = Seen::new(self.read(core)?);
            seen.forget_dead(core);
            self.state().learn(seen);
        }
        Ok(())
    }
    fn read(&self, core: &Core) -> Result<Vec<(BlockNo, Block)>> {
        let mut blocks = Vec::new();
        let mut next = Some(BlockNo::from(self.lock));
        while let Some(at) = next {
            let bad = |what| Error::Inconsistent { block: at, what };
            if blocks.len() == BLOCKS_MAX {
                return Err(bad("chain of program locks without an end"));
            }
            let body = core.meta.read(at, self.lock, MetaKind::Plock)?;
            let block = Block::decode(&body).map_err(bad)?;
            next = block.next;
            blocks.push((at, block));
        }
        Ok(blocks)
    }
    /// Brings what this node's programs hold to the metadata cache. The exclusive hold is about to
    /// end, and nobody uses it.
    ///
    /// # Errors
    /// The node must withdraw.
    pub fn store(&self, core: &Core) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        let Some(changes) = self.state().placed(core, capacity) else { return Ok(()) };
        for part in changes.chunks(TX_BLOCKS) {
            let mut tx = core.meta.begin()?;
            for (at, block) in part {
                tx.modify(*at, self.lock, MetaKind::Plock, |body| block.encode(body))?;
            }
        }
        Ok(())
    }
    /// Entries for which there is room without another block.
    pub fn room(&self, core: &Core) -> Growth {
        self.state().room(chain::capacity(core.volume.geo.body_len()))
    }
    /// Allocates blocks until so many entries more find room. The exclusive lock is held.
    ///
    /// # Errors
    /// `NoLocks`: the pool is full.
    pub fn make_room(&self, core: &Core, more: usize) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        loop {
            let last = {
                let state = self.state();
                let Some(seen) = &state.seen else { return Err(Error::NoLocks) };
                let need = seen.others_len + state.needed() + more;
                if need <= seen.blocks.len() * capacity {
                    return Ok(());
                }
                if seen.blocks.len() == BLOCKS_MAX {
                    return Err(Error::NoLocks);
                }
                seen.blocks.last().cloned()
            };
            let Some((at, mut block)) = last else { return Err(Error::NoLocks) };
            let slot = match self.add(core, (at, &mut block)) {
                Err(Error::NoSpace) => return Err(Error::NoLocks),
                slot => slot?,
            };
            if let Some(seen) = &mut self.state().seen {
                if let Some(last) = seen.blocks.last_mut() {
                    last.1 = block;
                }
                seen.blocks.push((slot, Block::default()));
            }
        }
    }
    /// Adds a block behind the last one.
    fn add(&self, core: &Core, (at, last): (BlockNo, &mut Block)) -> Result<BlockNo> {
        let mut r = core.alloc.reserve(0, 1, 0)?;
        let mut tx = core.meta.begin()?;
        let mut change = |tx: &mut Tx<'_>| {
            let slot = core.alloc.take_slot(tx, &mut r)?;
            last.next = Some(slot);
            tx.create(slot, self.lock, MetaKind::Plock, |body| Block::default().encode(body))?;
            tx.modify(at, self.lock, MetaKind::Plock, |body| last.encode(body))?;
            Ok(slot)
        };
        let done = change(&mut tx);
        drop(tx);
        if let Err(e) = &done {
            core.withdraw(e);
        }
        done
    }
    /// Frees blocks that are no longer needed, [`SHRINK_MOST`] at a time: others wait for the bucket meanwhile. The
    /// exclusive lock is held.
    pub fn shrink(&self, core: &Core) -> Result<()> {
        let capacity = chain::capacity(core.volume.geo.body_len());
        let superfluous = self.state().superfluous(core, capacity, SHRINK_MOST);
        superfluous.into_iter().try_for_each(|n| self.remove(core, n))
    }
    /// Takes the `n`-th block out of the chain. Only entries of this node, and of dead ones, are in it.
    fn remove(&self, core: &Core, n: usize) -> Result<()> {
        let mut r = core.alloc.reserve(0, 0, 1)?;
        let (before, (at, block)) = {
            let state = self.state();
            let Some(seen) = &state.seen else { return Ok(()) };
            match (n.checked_sub(1).and_then(|n| seen.blocks.get(n)), seen.blocks.get(n)) {
                (Some(before), Some(this)) => (before.clone(), this.clone()),
                _ => return Ok(()),
            }
        };
        let (before_at, mut before) = before;
        before.next = block.next;
        let mut tx = core.meta.begin()?;
        let mut change = |tx: &mut Tx<'_>| {
            tx.modify(before_at, self.lock, MetaKind::Plock, |body| before.encode(body))?;
            tx.free(at, self.lock)?;
            core.alloc.free_slot(tx, &mut r, at, false)
        };
        let done = change(&mut tx);
        drop(tx);
        if let Err(e) = done {
            core.withdraw(&e);
            return Err(e);
        }
        let mut state = self.state();
        state.changed = true;
        if let Some(seen) = &mut state.seen {
            seen.blocks.remove(n);
            if let Some(to) = seen.blocks.get_mut(n - 1) {
                to.1 = before;
            }
        }
        Ok(())
    }
}
