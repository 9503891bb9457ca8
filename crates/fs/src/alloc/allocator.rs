//! Space is reserved, taken, used and freed; the allocator is opened and closed.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use braid_format::rgrp::BlockState;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Incarnation, LockNo, NodeId};
use braid_lock::{Deltas, Guard, Local, LockManager, Mode};
use parking_lot::{Condvar, Mutex};

use super::counters::read_counters;
use super::failed_search::Full;
use super::group::fits;
use super::inner::{Alloc, Inner, OthersDeltas, Reservation, Run};
use super::log::{FreeLog, Freed};
use super::private::Private;
use super::refill::Refill;
use super::share::Share;
use super::state::State;
use super::window::Extent;
use crate::error::{Error, Result};
use crate::meta::{Meta, Tx};
use crate::volume::Volume;

/// Slots looked at for one whose lock this node holds already, before it asks for one.
const DINODE_TRIES: usize = 32;

impl Alloc {
    /// Opens the windows and the free log of `node` (returned ones are empty).
    ///
    /// # Errors
    /// When one of this node's private blocks is damaged, or a device fails.
    pub fn open(
        volume: Arc<Volume>,
        meta: Arc<Meta>,
        locks: Arc<LockManager>,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<Self> {
        let private = Private { volume: &volume, meta: &meta, locks: &locks, node };
        let log = FreeLog::new(RawSuperblock::FREELOG_BLOCKS, private.log_places());
        let mut state = State::new(RawSuperblock::WINDOWS, log);
        state.deltas = private.read_counts()?;
        for place in 0..RawSuperblock::WINDOWS {
            if let Some(w) = private.read_window(place)? {
                state.open_window(place, Extent::of(&volume, w.group, w.start, w.len));
                state.absorb(place, w.bits(), 0, w.len, volume.geo.slot_blocks());
            }
        }
        state.log.load(private.read_log()?);
        let total = Mutex::new((volume.groups.version(), volume.groups.totals()));
        let counters = read_counters(&volume)?;
        let refill = Refill::new(&volume, node);
        let share = Share::new(&volume);
        let inner = Inner {
            volume,
            meta,
            locks,
            node,
            incarnation,
            state: Mutex::new(state),
            refill: Mutex::new(refill),
            share,
            full: Full::default(),
            released: Condvar::new(),
            total,
            kept_back: AtomicU64::new(0),
            closed: Mutex::default(),
            trimmed: Mutex::default(),
            freed: Mutex::default(),
            counters: Mutex::new((Instant::now(), counters)),
            reading_counters: Mutex::default(),
            is_looking: AtomicBool::default(),
            others: Mutex::new(None),
            leaving: OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
    /// Sets how to learn what the other nodes have not yet added to the cluster's counters.
    pub fn set_others(&self, others: OthersDeltas) {
        *self.inner.others.lock() = Some(others);
    }
    /// Whether no other node uses the pool.
    pub fn is_alone(&self) -> bool {
        self.inner.others.lock().as_ref().is_none_or(|f| f().is_none())
    }
    /// Says how to wait a moment for inodes that are about to be deleted; returns whether any was.
    pub fn set_leaving(&self, wait: Box<dyn Fn() -> bool + Send + Sync>) {
        // A mount says it once.
        let _ = self.inner.leaving.set(wait);
    }
    /// Reserves space, taking windows (group locks, I/O, a transaction of its own) and draining
    /// the free log where needed. Call with inode locks held and no transaction open.
    ///
    /// # Errors
    /// `NoSpace`, with everything as before. Windows are bounded in number: in a pool that is
    /// nearly full and badly fragmented they may not hold all that is asked for beside all that is
    /// reserved; then write out what is dirty (which turns reservations into used space) and ask again.
    pub fn reserve(&self, data: u64, slots: u64, frees: u64) -> Result<Reservation> {
        let home = &self.inner;
        if frees > 0 {
            home.share_frees()?;
        }
        let reserved = home.state.lock().reserve(data, slots, frees);
        if !reserved {
            match home.refill_for(data, slots, frees) {
                // A program that removes a file and then writes another may rely on its space.
                Err(Error::NoSpace)
                    if data + slots > 0 && home.leaving.get().is_some_and(|wait| wait()) =>
                {
                    home.refill_for(data, slots, frees)?;
                }
                other => other?,
            }
        }
        Ok(Reservation { data, slots, frees, home: home.clone() })
    }
    /// As [`Alloc::reserve`] of data blocks, out of this node's windows as they are: waits for nothing.
    pub fn reserve_here(&self, data: u64) -> Option<Reservation> {
        let home = &self.inner;
        let reserved = home.state.lock().reserve(data, 0, 0);
        reserved.then(|| Reservation { data, slots: 0, frees: 0, home: home.clone() })
    }
    /// Reserves all blocks that this node's windows have.
    #[cfg(test)]
    pub fn reserve_all_here(&self) -> Reservation {
        let data = self.inner.state.lock().data_free();
        self.reserve_here(data).expect("as many as there are")
    }
    /// Moves `from`'s reservation into `into`.
    #[expect(clippy::unused_self, reason = "both are reservations of this allocator")]
    pub fn merge(&self, into: &mut Reservation, mut from: Reservation) {
        into.data += std::mem::take(&mut from.data);
        into.slots += std::mem::take(&mut from.slots);
        into.frees += std::mem::take(&mut from.frees);
    }
    /// Takes up to `want` blocks in one run, near or right after `goal` if possible, in memory.
    /// Never fails while the reservation covers it (at least one block is reserved).
    ///
    /// # Panics
    /// If nothing is reserved.
    pub fn claim(&self, r: &mut Reservation, want: u64, goal: Option<BlockNo>) -> Result<Run> {
        assert!(r.data > 0, "claim without a reservation");
        let want = want.clamp(1, r.data);
        let mut state = self.inner.state.lock();
        let (start, len) = state
            .claim(want, goal.map(BlockNo::get))
            .ok_or(Error::Invalid("space reserved and not there"))?;
        r.data -= len;
        state.unreserve(len, 0, 0);
        Ok(Run { start: BlockNo(start), len, home: Some(self.inner.clone()) })
    }
    /// As [`Alloc::claim`], in a group for which `wanted` holds; `None`: none has any room.
    ///
    /// # Panics
    /// If nothing is reserved.
    pub fn claim_in(
        &self,
        r: &mut Reservation,
        want: u64,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Run>> {
        assert!(r.data > 0, "claim without a reservation");
        let want = want.clamp(1, r.data);
        let _share = self.inner.share(Mode::Shared)?;
        loop {
            {
                let mut state = self.inner.state.lock();
                if let Some((start, len)) = state.claim_where(want, wanted) {
                    r.data -= len;
                    state.unreserve(len, 0, 0);
                    let home = Some(self.inner.clone());
                    return Ok(Some(Run { start: BlockNo(start), len, home }));
                }
            }
            if !self.inner.extend_in(want, wanted)? {
                return Ok(None);
            }
        }
    }
    /// What each group has that is free and in no window.
    pub fn free_by_group(&self) -> Result<Vec<u64>> {
        self.inner.free_by_group()
    }
    /// Makes the first `len` blocks of a run used, in `tx`; the rest goes back.
    ///
    /// # Panics
    /// If `len` is more than the run has.
    pub fn commit_run(&self, tx: &mut Tx<'_>, mut run: Run, len: u64) -> Result<()> {
        assert!(len <= run.len, "more than was claimed");
        let start = run.start.get();
        if len > 0 {
            let (place, at) = self.inner.place_of(start)?;
            let private = self.inner.private();
            private.set_window_bits(tx, place, &[(at, len, BlockState::Data)])?;
            let change = Deltas { free: -Inner::signed(len), ..Deltas::default() };
            self.inner.count(tx, change)?;
        }
        run.home = None;
        let mut state = self.inner.state.lock();
        state.settle(start, len);
        state.unclaim(start + len, run.len - len);
        drop(state);
        // Used space needs no reservation any more, and a window that is used up may be given away.
        self.inner.note_space();
        Ok(())
    }
    /// A metadata slot for a tree node, attribute block or the like: used from `tx` on. The caller
    /// follows with [`Tx::create`].
    ///
    /// # Panics
    /// If no slot is reserved.
    pub fn take_slot(&self, tx: &mut Tx<'_>, r: &mut Reservation) -> Result<BlockNo> {
        let slot = self.inner.claim_slot(r)?;
        self.inner.use_slot(tx, slot, 0)?;
        Ok(BlockNo(slot))
    }
    /// A metadata slot for a dinode, with its lock held exclusively. Before the transaction.
    ///
    /// # Panics
    /// If no slot is reserved.
    pub fn claim_dinode(&self, r: &mut Reservation) -> Result<(BlockNo, Guard)> {
        assert!(r.slots > 0, "slot without a reservation");
        let mut passed = Vec::new();
        let mut found = None;
        while passed.len() < DINODE_TRIES {
            let next = {
                let mut state = self.inner.state.lock();
                if passed.is_empty() { state.next_slot() } else { state.takeable_slot() }
            };
            let Some(slot) = next else { break };
            let lock = LockNo(slot);
            if let Some(guard) =
                self.inner.locks.try_acquire(lock, Mode::Exclusive, Local::Exclusive)
            {
                found = Some((slot, guard));
                break;
            }
            passed.push(slot);
        }
        // None of them is held: ask for one. A holder of the lock of a free slot gives it up
        // without waiting for another lock.
        let found = match found {
            Some(found) => Ok(found),
            None if passed.is_empty() => Err(Error::Invalid("slot reserved and not there")),
            None => {
                let slot = passed.swap_remove(0);
                let lock =
                    self.inner.locks.acquire(LockNo(slot), Mode::Exclusive, Local::Exclusive);
                lock.map(|guard| (slot, guard))
                    .inspect_err(|_| passed.push(slot))
                    .map_err(Error::from)
            }
        };
        let mut state = self.inner.state.lock();
        for slot in passed {
            state.put_slot(slot);
        }
        let (slot, guard) = found?;
        r.slots -= 1;
        state.unreserve(0, 1, 0);
        Ok((BlockNo(slot), guard))
    }
    /// Makes a claimed dinode slot used. (`unclaim_dinode` gives it back instead.)
    pub fn commit_dinode(&self, tx: &mut Tx<'_>, slot: BlockNo) -> Result<()> {
        self.inner.use_slot(tx, slot.get(), 1)
    }
    /// Gives a claimed dinode slot back.
    pub fn unclaim_dinode(&self, slot: BlockNo) {
        self.inner.state.lock().put_slot(slot.get());
        self.inner.note_space();
    }
    /// Frees data blocks. One free-log entry of the reservation at most, per resource group touched.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] when the run does not lie in groups for data (before any change).
    ///
    /// # Panics
    /// If an entry is needed and none is reserved.
    pub fn free_data(
        &self,
        tx: &mut Tx<'_>,
        r: &mut Reservation,
        start: BlockNo,
        len: u64,
    ) -> Result<()> {
        let end = start.get().saturating_add(len);
        let groups = &self.inner.volume.groups;
        let parts = || {
            let mut at = start.get();
            std::iter::from_fn(move || {
                let part = (at, groups.part(at, end - at));
                at += part.1;
                (part.1 > 0).then_some(part)
            })
        };
        parts().try_for_each(|(at, n)| self.inner.check_run(BlockNo(at), n, BlockState::Free))?;
        for (start, len) in parts() {
            self.inner.free(tx, r, Freed { start, len, state: BlockState::Free })?;
            self.inner.note_freed(start, len);
        }
        self.inner.count(tx, Deltas { free: Inner::signed(len), ..Deltas::default() })
    }
    /// Frees a metadata slot (after [`Tx::free`]). One free-log entry at most.
    /// `dinode`: counts one inode less.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] when the slot does not lie in a group (before any change).
    ///
    /// # Panics
    /// If an entry is needed and none is reserved.
    pub fn free_slot(
        &self,
        tx: &mut Tx<'_>,
        r: &mut Reservation,
        slot: BlockNo,
        dinode: bool,
    ) -> Result<()> {
        let len = self.inner.slot_blocks();
        self.inner.check_run(slot, len, BlockState::MetaFree)?;
        self.inner.free(tx, r, Freed { start: slot.get(), len, state: BlockState::MetaFree })?;
        let change = self.inner.slots_taken(-1);
        self.inner.count(tx, Deltas { inodes: -i64::from(dinode), ..change })
    }
    /// Applies the free log to the groups. No transaction open.
    #[cfg(test)]
    pub fn drain_frees(&self) -> Result<()> {
        let mut refill = self.inner.refill.lock();
        self.inner.drain(&mut refill).map(|_| ())
    }
    /// Promised and not used yet: data blocks, metadata slots, entries of the free log.
    #[cfg(test)]
    pub fn reserved(&self) -> (u64, u64, u64) {
        let state = self.inner.state.lock();
        (state.data_reserved, state.slots_reserved, state.frees_reserved)
    }
    /// Housekeeping, now and then: applies the free log; and when space is short and this node has
    /// not allocated since the last call, gives its idle windows back, so that other nodes may use
    /// what is in them.
    ///
    /// # Errors
    /// That of a group that cannot be used comes after the turn of all others.
    pub fn maintain(&self) -> Result<()> {
        let short = self.inner.is_short_at_rest();
        let mut refill = self.inner.refill.lock();
        let drained = Error::of_one_group(self.inner.drain(&mut refill))?;
        let claims = self.inner.state.lock().claims;
        let idle = refill.is_idle(claims);
        if idle && (short || self.inner.withholds_freed()) {
            self.inner.give_back_idle(&mut refill, false)?;
        }
        drained.map(drop)
    }
    /// Gives back every window that is idle, so that its group says what is free in it.
    ///
    /// # Errors
    /// As [`Alloc::maintain`].
    pub fn shrink(&self) -> Result<()> {
        let mut refill = self.inner.refill.lock();
        let drained = Error::of_one_group(self.inner.drain(&mut refill))?;
        self.inner.give_back_idle(&mut refill, false)?;
        drained.map(drop)
    }
    /// Unmount: drains the log, returns the windows, folds the deltas into the counters. Nothing
    /// is reserved or claimed any more, nobody uses the allocator afterwards.
    ///
    /// # Errors
    /// As [`Alloc::maintain`]: the slot's next owner inherits what could not be returned.
    pub fn close(&self) -> Result<()> {
        let inner = &self.inner;
        inner.share.close();
        let mut refill = inner.refill.lock();
        // Frees become takeable, so that no window is busy.
        inner.meta.commit()?;
        let drained = Error::of_one_group(inner.drain(&mut refill))?;
        let returned = Error::of_one_group(inner.give_back_idle(&mut refill, true))?;
        let Deltas { free, inodes, meta } = inner.private().fold()?;
        inner.state.lock().deltas += Deltas { free: -free, inodes: -inodes, meta: -meta };
        *inner.counters.lock() = (Instant::now(), read_counters(&inner.volume)?);
        drained.and(returned)
    }
}

impl Inner {
    /// Which window holds `block`, which is claimed from it, and where.
    pub(super) fn place_of(&self, block: u64) -> Result<(u64, u64)> {
        let block_no = BlockNo(block);
        let what = "claimed block outside this node's windows";
        self.state.lock().place_of(block).ok_or(Error::Inconsistent { block: block_no, what })
    }
    /// A slot for which `r` holds a reservation.
    fn claim_slot(&self, r: &mut Reservation) -> Result<u64> {
        assert!(r.slots > 0, "slot without a reservation");
        let mut state = self.state.lock();
        let slot = state.next_slot().ok_or(Error::Invalid("slot reserved and not there"))?;
        r.slots -= 1;
        state.unreserve(0, 1, 0);
        Ok(slot)
    }
    /// A claimed slot is used from `tx` on, by so many inodes.
    fn use_slot(&self, tx: &mut Tx<'_>, slot: u64, inodes: i64) -> Result<()> {
        let (place, at) = self.place_of(slot)?;
        let runs = [(at, self.slot_blocks(), BlockState::MetaUsed)];
        self.private().set_window_bits(tx, place, &runs)?;
        self.state.lock().settle(slot, 1);
        self.note_space();
        self.count(tx, Deltas { inodes, ..self.slots_taken(1) })
    }
    /// Refuses a run that does not lie in one group, or in one that is not for such blocks.
    fn check_run(&self, start: BlockNo, len: u64, state: BlockState) -> Result<()> {
        let place = self.volume.groups.locate(start.get(), len);
        let bad = Error::Inconsistent { block: start, what: "freed run outside its group" };
        let fits = place.is_some_and(|(_, shape, _)| fits(shape.kind, state));
        if fits { Ok(()) } else { Err(bad) }
    }
    /// Into a window of this node if it lies in one, else into the free log.
    fn free(self: &Arc<Self>, tx: &mut Tx<'_>, r: &mut Reservation, freed: Freed) -> Result<()> {
        // A search from now on commits first, and finds it.
        self.note_space();
        let private = self.private();
        let pending = self.state.lock().begin_free(freed.start, freed.len);
        if let Some((place, at)) = pending {
            private.set_window_bits(tx, place, &[(at, freed.len, freed.state)])?;
            let home = Arc::clone(self);
            let slot = freed.state == BlockState::MetaFree;
            tx.on_commit(Box::new(move || {
                let mut state = home.state.lock();
                if slot {
                    state.put_freed_slot(freed.start, freed.len);
                } else {
                    state.unclaim(freed.start, freed.len);
                }
                drop(state);
                home.note_space();
            }));
            return Ok(());
        }
        assert!(r.frees > 0, "free without a reservation");
        let place = {
            let mut state = self.state.lock();
            r.frees -= 1;
            state.unreserve(0, 0, 1);
            state.log.add(freed)
        };
        private.write_log(tx, place, Some(freed))
    }
}
