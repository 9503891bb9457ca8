//! Space: resource groups, this node's windows, reservations, deferred frees.
//!
//! A window is a run of one group's blocks from which only this node allocates; taking and
//! returning one needs the group's lock, and so does making slots of its blocks; allocating from it
//! needs none. The group's bitmap shows a window's takeable blocks as `Data`, its takeable slots as
//! `MetaUsed`; the window block (private, journaled) says what they are. So every holder of the
//! group's lock can tell metadata slots from file data, for all nodes ([`Alloc::is_slot`]). When a
//! window goes back, for each of its blocks: window `Free` or `MetaFree` -> the same in the group;
//! window `MetaUsed` or `Data` -> the group is left alone (it says so, or the block was never the
//! window's).
//!
//! Freeing a block inside a window of this node changes the window (reusable once the transaction
//! is durable). Freeing any other block appends it to this node's free log (private, journaled) in
//! the same transaction; the log is drained later under the groups' locks: first the `Free` bodies
//! of metadata slots are put in place, then the bits change and the entries go, in one transaction.
//!
//! If metadata and file data have subpools of their own, a group is for one of the two, and so is a
//! window of it. What is free in a window of a metadata group is for chunks only.
//!
//! Invariants:
//! * exactly one of (a group, a window, a free log) knows that a block is free; so windows of two
//!   nodes may overlap (a block of one, freed by another, taken by a third) and still agree;
//! * what is takeable in memory is free in a durable image of the window, or was never used;
//! * a metadata slot becomes nothing else while two nodes live ([`crate::unused_metadata`]), and its
//!   `Free` body is stable before its bit says `MetaFree` where another node may look;
//! * promises never exceed what is takeable.
//!
//! Lock order: the space lock ([`share`]), then [`Refill`] (held across I/O and group locks), then [`State`] (short, never across
//! a call into the cache or the locks).

pub(crate) mod bits;
mod choose;
mod chunks;
mod discard;
mod full;
mod group;
pub(crate) mod image;
mod leave;
mod log;
mod private;
mod refill;
mod set;
mod share;
mod slots;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod trim;
mod unused;
mod window;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use braid_format::label::SubpoolKind;
use braid_format::lock_record::Life;
use braid_format::meta::MetaKind;
use braid_format::node::RawCounters;
use braid_format::rgrp::BlockState;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Incarnation, LockNo, NodeId};
use braid_lock::{Deltas, Guard, Local, LockManager, Mode};
use braid_pool::BackgroundIo;
use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

pub(crate) use self::group::check_header as check_group_header;
pub(crate) use self::leave::{Use, is_empty};
use self::log::{FreeLog, Freed};
use self::private::Private;
pub(crate) use self::private::window_head;
use self::refill::Refill;
use self::share::Share;
use self::state::State;
pub(crate) use self::unused::PrivateRange;
use self::window::Extent;
use crate::error::{Error, Result};
use crate::groups::{takes_data, takes_slots};
use crate::meta::{Meta, Tx};
use crate::volume::Volume;

/// Slots looked at for one whose lock this node holds already, before it asks for one.
const DINODE_TRIES: usize = 32;
/// The cluster's counters on disk are read again after this.
const COUNTERS_AGE_MAX: Duration = Duration::from_millis(500);

/// Space is short when less than this part (divisor) of the pool is free.
const SHORT: u64 = 8;

/// What the other nodes have not yet added to the cluster's counters; `None`: there is none.
pub(crate) type OthersDeltas = Box<dyn Fn() -> Option<Deltas> + Send + Sync>;

/// The cluster's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Free blocks that may become file data.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Free slots, and free blocks of groups for metadata alone.
    pub meta: u64,
}

/// What there is in all, and of it free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    /// Blocks that may hold file data.
    pub blocks: u64,
    /// Of those, free.
    pub free: u64,
    /// Of those, what files may have beside their metadata.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that there is room for.
    pub files_free: u64,
}

/// This node's allocator.
#[derive(Clone)]
pub(crate) struct Alloc {
    inner: Arc<Inner>,
}

struct Inner {
    volume: Arc<Volume>,
    meta: Arc<Meta>,
    locks: Arc<LockManager>,
    node: NodeId,
    incarnation: Incarnation,
    state: Mutex<State>,
    refill: Mutex<Refill>,
    /// Whether other nodes ask this one for space.
    share: Share,
    /// What the last search for space did not find.
    full: full::Full,
    /// A reservation was dropped.
    released: Condvar,
    /// Which groups there are, blocks that may hold file data, and blocks of groups for metadata alone.
    total: Mutex<((u64, u64), (u64, u64))>,
    /// Blocks of runs that are kept back ([`Run::keep_back`]).
    kept_back: AtomicU64,
    /// What closed parts have.
    shut: Mutex<Option<leave::ClosedSpace>>,
    /// Groups all of whose free blocks have been discarded.
    trimmed: Mutex<HashMap<u64, trim::Trimmed>>,
    /// What was freed and is to be discarded; `None`: nothing is remembered. Before `state`.
    freed: Mutex<Option<discard::Remembered>>,
    /// The cluster's counters as last read, and when.
    counters: Mutex<(Instant, Counters)>,
    others: Mutex<Option<OthersDeltas>>,
    /// See [`Alloc::set_leaving`].
    leaving: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alloc").field("node", &self.node).finish_non_exhaustive()
    }
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
    home: Arc<Inner>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.data + self.slots + self.frees != 0 {
            self.home.state.lock().unpromise(self.data, self.slots, self.frees);
            if self.data + self.slots > 0 {
                self.home.note_space();
            }
            self.home.released.notify_all();
        }
    }
}

/// Blocks that a node keeps back because writing them failed, at most: beyond it the node withdraws,
/// and its fence ends what may still land. 4 GiB in blocks of 4 KiB: a device that fails for minutes.
const KEPT_BACK_MAX: u64 = 1 << 20;

/// A contiguous run of blocks taken out of a window in memory: data may be written there before
/// any transaction refers to it. Dropped without [`Alloc::commit_run`], it goes back.
#[derive(Debug)]
pub(crate) struct Run {
    /// First block.
    pub start: BlockNo,
    /// Blocks.
    pub len: u64,
    home: Option<Arc<Inner>>,
}

impl Run {
    /// Never gives the run back while this node lives: a write to it failed, and may land yet. Its
    /// window stays with the slot, whose next owner finds the blocks free. `false`: so many blocks
    /// are kept back that this node should not go on.
    pub fn keep_back(mut self) -> bool {
        let Some(home) = self.home.take() else { return true };
        let before = home.kept_back.fetch_add(self.len, Ordering::Relaxed);
        before.saturating_add(self.len) <= KEPT_BACK_MAX
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.state.lock().unclaim(self.start.get(), self.len);
            home.note_space();
        }
    }
}

impl Inner {
    fn private(&self) -> Private<'_> {
        Private { volume: &self.volume, meta: &self.meta, locks: &self.locks, node: self.node }
    }
    fn slot_blocks(&self) -> u64 {
        self.volume.geo.slot_blocks()
    }
    /// Adds to this node's change of the counters, on disk in `tx` and in memory.
    fn count(&self, tx: &mut Tx<'_>, change: Deltas) -> Result<()> {
        if change == Deltas::default() {
            return Ok(());
        }
        self.private().count(tx, change)?;
        self.state.lock().deltas += change;
        Ok(())
    }
    /// What taking so many slots changes.
    fn slots_taken(&self, slots: i64) -> Deltas {
        Deltas { meta: -slots * Self::signed(self.slot_blocks()), ..Deltas::default() }
    }
    /// Blocks as a change of a counter.
    fn signed(n: u64) -> i64 {
        i64::try_from(n).unwrap_or(i64::MAX)
    }
}

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
            full: full::Full::default(),
            released: Condvar::new(),
            total,
            kept_back: AtomicU64::new(0),
            shut: Mutex::default(),
            trimmed: Mutex::default(),
            freed: Mutex::default(),
            counters: Mutex::new((Instant::now(), counters)),
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
    /// Promises space, taking windows (group locks, I/O, a transaction of its own) and draining
    /// the free log where needed. Call with inode locks held and no transaction open.
    ///
    /// # Errors
    /// `NoSpace`, with everything as before. Windows are bounded in number: in a pool that is
    /// nearly full and badly fragmented they may not hold all that is asked for beside all that is
    /// promised; then write out what is dirty (which turns promises into used space) and ask again.
    pub fn reserve(&self, data: u64, slots: u64, frees: u64) -> Result<Reservation> {
        let home = &self.inner;
        if frees > 0 {
            home.share_frees()?;
        }
        let promised = home.state.lock().promise(data, slots, frees);
        if !promised {
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
        let promised = home.state.lock().promise(data, 0, 0);
        promised.then(|| Reservation { data, slots: 0, frees: 0, home: home.clone() })
    }
    /// Promises all blocks that this node's windows have.
    #[cfg(test)]
    pub fn reserve_all_here(&self) -> Reservation {
        let data = self.inner.state.lock().data_free();
        self.reserve_here(data).expect("as many as there are")
    }
    /// Moves `from`'s promise into `into`.
    #[expect(clippy::unused_self, reason = "both are promises of this allocator")]
    pub fn merge(&self, into: &mut Reservation, mut from: Reservation) {
        into.data += std::mem::take(&mut from.data);
        into.slots += std::mem::take(&mut from.slots);
        into.frees += std::mem::take(&mut from.frees);
    }
    /// Takes up to `want` blocks in one run, near or right after `goal` if possible, in memory.
    /// Never fails while the reservation covers it (at least one block is promised).
    ///
    /// # Panics
    /// If nothing is promised.
    pub fn claim(&self, r: &mut Reservation, want: u64, goal: Option<BlockNo>) -> Result<Run> {
        assert!(r.data > 0, "claim without a promise");
        let want = want.clamp(1, r.data);
        let mut state = self.inner.state.lock();
        let (start, len) = state
            .claim(want, goal.map(BlockNo::get))
            .ok_or(Error::Invalid("space promised and not there"))?;
        r.data -= len;
        state.unpromise(len, 0, 0);
        Ok(Run { start: BlockNo(start), len, home: Some(self.inner.clone()) })
    }
    /// As [`Alloc::claim`], in a group for which `wanted` holds; `None`: none has any room.
    ///
    /// # Panics
    /// If nothing is promised.
    pub fn claim_in(
        &self,
        r: &mut Reservation,
        want: u64,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Run>> {
        assert!(r.data > 0, "claim without a promise");
        let want = want.clamp(1, r.data);
        let _share = self.inner.share(Mode::Shared)?;
        loop {
            {
                let mut state = self.inner.state.lock();
                if let Some((start, len)) = state.claim_where(want, wanted) {
                    r.data -= len;
                    state.unpromise(len, 0, 0);
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
        // Used space needs no promise any more, and a window that is used up may be given away.
        self.inner.note_space();
        Ok(())
    }
    /// A metadata slot for a tree node, attribute block or the like: used from `tx` on. The caller
    /// follows with [`Tx::create`].
    ///
    /// # Panics
    /// If no slot is promised.
    pub fn take_slot(&self, tx: &mut Tx<'_>, r: &mut Reservation) -> Result<BlockNo> {
        let slot = self.inner.claim_slot(r)?;
        self.inner.use_slot(tx, slot, 0)?;
        Ok(BlockNo(slot))
    }
    /// A metadata slot for a dinode, with its lock held exclusively. Before the transaction.
    ///
    /// # Panics
    /// If no slot is promised.
    pub fn claim_dinode(&self, r: &mut Reservation) -> Result<(BlockNo, Guard)> {
        assert!(r.slots > 0, "slot without a promise");
        let mut passed = Vec::new();
        let mut found = None;
        while passed.len() < DINODE_TRIES {
            let next = {
                let mut state = self.inner.state.lock();
                if passed.is_empty() { state.next_slot() } else { state.spare_slot() }
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
            None if passed.is_empty() => Err(Error::Invalid("slot promised and not there")),
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
        state.unpromise(0, 1, 0);
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
    /// If an entry is needed and none is promised.
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
    /// If an entry is needed and none is promised.
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
    pub fn promised(&self) -> (u64, u64, u64) {
        let state = self.inner.state.lock();
        (state.data_promised, state.slots_promised, state.frees_promised)
    }
    /// This node's change of the cluster's counters since these were last updated, with what dirty data
    /// was promised.
    pub fn deltas(&self) -> Deltas {
        self.inner.state.lock().shown_deltas()
    }
    /// Totals of the resource groups, closed ones left out. What is in windows counts as free.
    pub fn totals(&self) -> Totals {
        let inner = &self.inner;
        let (counted, shut) = (inner.counted(), inner.shut());
        let (total, _) = inner.total();
        let total = total.saturating_sub(shut.blocks);
        let free = counted.free.saturating_sub(shut.free).min(total);
        let meta = counted.meta.saturating_sub(shut.meta);
        let split = inner.volume.groups.split();
        // Free blocks may become slots where groups are for both.
        let room = if split { meta } else { meta.saturating_add(free) };
        let files_free = room / inner.slot_blocks();
        let available = self.available(free, split.then_some(files_free));
        Totals { blocks: total, free, available, inodes: counted.inodes, files_free }
    }
    /// Counts what groups that are being added have, in the transaction that adds them.
    pub fn count_added(&self, tx: &mut Tx<'_>, data: u64, meta: u64) -> Result<()> {
        let (free, meta) = (Inner::signed(data), Inner::signed(meta));
        self.inner.count(tx, Deltas { free, meta, ..Deltas::default() })
    }
    /// Housekeeping, now and then: applies the free log; and when space is short and this node has
    /// not allocated since the last call, gives its idle windows back, so that other nodes may use
    /// what is in them.
    pub fn tend(&self) -> Result<()> {
        let short = self.inner.is_short();
        let mut refill = self.inner.refill.lock();
        self.inner.drain(&mut refill)?;
        let claims = self.inner.state.lock().claims;
        let idle = refill.is_idle(claims);
        if idle && (short || self.inner.withholds_freed()) {
            self.inner.give_back_idle(&mut refill, false)?;
        }
        Ok(())
    }
    /// Gives back every window that is idle, so that its group says what is free in it.
    pub fn shrink(&self) -> Result<()> {
        let mut refill = self.inner.refill.lock();
        self.inner.drain(&mut refill)?;
        self.inner.give_back_idle(&mut refill, false)
    }
    /// Unmount: drains the log, returns the windows, folds the deltas into the counters. Nothing
    /// is reserved or claimed any more, nobody uses the allocator afterwards.
    pub fn close(&self) -> Result<()> {
        let inner = &self.inner;
        inner.share.close();
        let mut refill = inner.refill.lock();
        // Frees become takeable, so that no window is busy.
        inner.meta.commit()?;
        inner.drain(&mut refill)?;
        inner.give_back_idle(&mut refill, true)?;
        let Deltas { free, inodes, meta } = inner.private().fold()?;
        inner.state.lock().deltas += Deltas { free: -free, inodes: -inodes, meta: -meta };
        *inner.counters.lock() = (Instant::now(), read_counters(&inner.volume)?);
        Ok(())
    }
}

impl Inner {
    /// The cluster's counters, with what the nodes have not added to them yet.
    fn counted(&self) -> Counters {
        let read = {
            let mut counters = self.counters.lock();
            if counters.0.elapsed() >= COUNTERS_AGE_MAX {
                // The filling of a member need not give way to commands that only look (`df`,
                // `braid status`).
                let _own = BackgroundIo::begin();
                // A read beside a write may be torn: then the old values stay.
                if let Ok(now) = read_counters(&self.volume) {
                    *counters = (Instant::now(), now);
                }
            }
            counters.1
        };
        let others = self.others.lock().as_ref().and_then(|f| f()).unwrap_or_default();
        let change = self.state.lock().shown_deltas() + others;
        Counters {
            free: read.free.saturating_add_signed(change.free),
            inodes: read.inodes.saturating_add_signed(change.inodes),
            meta: read.meta.saturating_add_signed(change.meta),
        }
    }
    /// Blocks that may hold file data, and blocks of groups for metadata alone: more, when the file
    /// system has grown.
    fn total(&self) -> (u64, u64) {
        let mut total = self.total.lock();
        let version = self.volume.groups.version();
        if total.0 != version {
            *total = (version, self.volume.groups.totals());
        }
        total.1
    }
    /// Whether so little is free that no node should keep windows it does not use.
    fn is_short(&self) -> bool {
        let (counted, shut) = (self.counted(), self.shut());
        let (data, meta) = self.total();
        let (free, data) =
            (counted.free.saturating_sub(shut.free), data.saturating_sub(shut.blocks));
        free < data / SHORT || counted.meta.saturating_sub(shut.meta) < meta / SHORT
    }
    /// Which window holds `block`, which is claimed from it, and where.
    fn place_of(&self, block: u64) -> Result<(u64, u64)> {
        let block_no = BlockNo(block);
        let what = "claimed block outside this node's windows";
        self.state.lock().place_of(block).ok_or(Error::Inconsistent { block: block_no, what })
    }
    /// A slot for which `r` holds a promise.
    fn claim_slot(&self, r: &mut Reservation) -> Result<u64> {
        assert!(r.slots > 0, "slot without a promise");
        let mut state = self.state.lock();
        let slot = state.next_slot().ok_or(Error::Invalid("slot promised and not there"))?;
        r.slots -= 1;
        state.unpromise(0, 1, 0);
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
        assert!(r.frees > 0, "free without a promise");
        let place = {
            let mut state = self.state.lock();
            r.frees -= 1;
            state.unpromise(0, 0, 1);
            state.log.add(freed)
        };
        private.write_log(tx, place, Some(freed))
    }
}

/// Whether blocks of a group of this kind may be freed as `state` says.
pub(crate) fn fits(kind: SubpoolKind, state: BlockState) -> bool {
    match state {
        BlockState::Free | BlockState::Data => takes_data(kind),
        BlockState::MetaFree | BlockState::MetaUsed => takes_slots(kind),
    }
}

/// The cluster's counters as they are on the devices.
fn read_counters(volume: &Volume) -> Result<Counters> {
    let block = BlockNo::from(volume.named(RawSuperblock::NAMED_COUNTERS));
    let (body, _, kind) = volume.read_body(block)?;
    let bad = Error::Inconsistent { block, what: "not the cluster's counters" };
    match RawCounters::read_from_prefix(&body) {
        Ok((raw, _)) if kind == MetaKind::Counters => Ok(Counters {
            free: raw.free_blocks.get(),
            inodes: raw.inodes.get(),
            // Negative if an older pool did not count the slots.
            meta: raw.free_meta.get().cast_signed().max(0).cast_unsigned(),
        }),
        _ => Err(bad),
    }
}

/// The runs in a free log's block, for the checker: (start, length, state).
pub(crate) fn free_log_entries(
    body: &[u8],
    block: BlockNo,
) -> std::result::Result<Vec<(u64, u64, BlockState)>, braid_format::FormatError> {
    let entries = log::decode(body, block)?;
    Ok(entries.into_iter().map(|(_, f)| (f.start, f.len, f.state)).collect())
}

/// After replay of dead `node`'s journal, on the recoverer: returns its windows, applies its free
/// log, folds in its counters. Idempotent. The recoverer's transactions change the dead node's
/// private blocks; they are in place on return, and no longer cached here.
///
/// # Errors
/// The slot must then stay in recovery; it is tried again.
pub(crate) fn reclaim(
    volume: &Arc<Volume>,
    meta: &Meta,
    locks: &Arc<LockManager>,
    node: NodeId,
) -> Result<()> {
    let private = Private { volume, meta, locks, node };
    for place in 0..RawSuperblock::WINDOWS {
        if let Some(window) = private.read_window(place)? {
            private.return_windows(window.group, &[window])?;
        }
    }
    let entries = private.read_log()?;
    if !entries.is_empty() {
        private.drain(&entries, &|_| Vec::new(), &mut |_| {})?;
    }
    private.fold()?;
    let blocks = private.all_blocks();
    meta.sync_blocks(&blocks)?;
    for block in blocks {
        meta.drop_owner(LockNo::from(block));
    }
    Ok(())
}

/// Reads what a node has of space in its private blocks, its journal being replayed, and changes
/// nothing.
///
/// # Errors
/// The first that is damaged.
pub(crate) fn inspect(volume: &Volume, node: NodeId) -> Result<()> {
    let at = |n| volume.node_area(node, n);
    for n in 0..RawSuperblock::WINDOWS {
        let block = at(RawSuperblock::AREA_WINDOWS + n);
        let body = volume.read_private(block, MetaKind::Window)?;
        private::window_head(volume, block, &body)?;
    }
    for n in 0..RawSuperblock::FREELOG_BLOCKS {
        let block = at(RawSuperblock::AREA_FREELOG + n);
        let body = volume.read_private(block, MetaKind::FreeLog)?;
        log::decode(&body, block).map_err(|source| Error::Damaged { block, source })?;
    }
    volume.read_private(at(RawSuperblock::AREA_INFO), MetaKind::NodeInfo).map(drop)
}

/// This node in this life.
fn life(inner: &Inner) -> Life {
    Life { slot: inner.node, incarnation: inner.incarnation }
}
