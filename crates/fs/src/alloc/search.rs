//! More space for this node: windows from groups, slots from windows, and back.

use std::time::{Duration, Instant};

use braid_format::rgrp::BlockState;
use braid_format::{Bytes, LockNo};
use braid_lock::interrupt::is_interrupted;
use braid_lock::{Local, Mode};
use braid_pool::device::tasks::{self, Awaited};
use parking_lot::MutexGuard;

use super::bits;
use super::group::{Edits, Group, headers};
use super::inner::Inner;
use super::log::Freed;
use super::private::{WindowBlock, window_capacity};
use super::refill::{Need, Refill, blocks};
use super::window::{Extent, Window};
use super::window_placement::{WindowRequest, choose};
use crate::error::{Error, Result};
use crate::groups::takes_slots;

/// Smallest window taken for want of more space.
const WINDOW_MIN: Bytes = Bytes(1 << 20);

/// A window takes at most this part (divisor) of a node's share of what is free.
const SHARE: u64 = 4;

/// Windows given up for better ones in one call.
const TRADES_MAX: u32 = 64;

/// How long a reservation waits for places in the free log that others have reserved.
const LOG_WAIT: Duration = Duration::from_millis(100);

/// How often a thread that waits until another has refilled looks whether it is interrupted.
const TURN_LOOK: Duration = Duration::from_millis(50);

/// How often.
const LOG_WAITS: u32 = 100;

/// Slots are made only while those that are free are less than this part (divisor) of the free space.
const FREE_SLOTS: u64 = 8;

/// Hints are read again for metadata that has no room in what was there at first, at most so often.
const HINT_AGE: Duration = Duration::from_secs(5);

impl Inner {
    /// Waits until no other thread of this node refills: one that does may be waiting for another
    /// node's lock.
    ///
    /// # Errors
    /// `Interrupted`.
    fn turn_to_refill(&self) -> Result<MutexGuard<'_, Refill>> {
        loop {
            if let Some(refill) = self.refill.try_lock_for(TURN_LOOK) {
                return Ok(refill);
            }
            if is_interrupted() {
                return Err(Error::Interrupted);
            }
        }
    }
    /// Gets what a reservation wants, and reserves it. If there is nothing, other nodes are asked for what
    /// they have.
    pub(super) fn refill_for(&self, data: u64, slots: u64, frees: u64) -> Result<()> {
        if self.is_known_full(data, slots) {
            return Err(Error::NoSpace);
        }
        let before = self.before_search();
        let found = {
            let _with_others = self.share(Mode::Shared)?;
            self.refill_from_groups(data, slots, frees)
        };
        if !matches!(found, Err(Error::NoSpace)) {
            return found;
        }
        // Places in the free log are short for a moment only, and nothing is known of space then.
        let was_for_space = || data + slots > 0 && self.state.lock().log_free() >= frees;
        if !self.share.is_common() {
            if was_for_space() {
                self.note_full(data, slots, None, before);
            }
            return found;
        }
        let Some(alone) = self.share(Mode::Exclusive)? else { return found };
        let before = self.before_search();
        let found = self.refill_from_groups(data, slots, frees);
        if matches!(found, Err(Error::NoSpace)) && was_for_space() {
            self.note_full(data, slots, Some(alone.tenure()), before);
        }
        found
    }
    fn refill_from_groups(&self, data: u64, slots: u64, frees: u64) -> Result<()> {
        let mut refill = self.turn_to_refill()?;
        refill.follow(&self.volume);
        let mut settled = false;
        let mut waits = 0;
        let mut trades = 0;
        loop {
            let (data_free, slots_free, log_free) = {
                let mut state = self.state.lock();
                if state.reserve(data, slots, frees) {
                    return Ok(());
                }
                (state.data_free(), state.slots_free(), state.log_free())
            };
            if log_free < frees {
                self.room_in_log(&mut refill, frees, &mut waits)?;
                continue;
            }
            let progress = if slots_free < slots {
                self.more_slots(&mut refill, data, slots - slots_free, &mut trades)?
            } else {
                let need = Need {
                    data: data - data_free.min(data),
                    slots: false,
                    home: false,
                    existing: false,
                };
                self.extend(&mut refill, need, &mut trades)?
            };
            if progress {
                settled = false;
                continue;
            }
            if settled {
                return Err(Error::NoSpace);
            }
            // Blocks whose free is not durable yet, and those in the log, may be all there is.
            self.meta.commit()?;
            self.drain_usable(&mut refill)?;
            settled = true;
        }
    }
    pub(super) fn room_in_log(
        &self,
        refill: &mut MutexGuard<'_, Refill>,
        frees: u64,
        waits: &mut u32,
    ) -> Result<()> {
        if frees > self.state.lock().log.capacity() / 2 {
            return Err(Error::Invalid("too many frees in one transaction"));
        }
        let drained = self.drain_usable(refill)?;
        if drained.applied {
            return Ok(());
        }
        if let Some(error) = drained.left
            && self.state.lock().frees_reserved == 0
        {
            // Nobody is about to end: all places stay taken until a repair.
            return Err(error);
        }
        // All places are reserved, and the operations that reserved them are about to end.
        *waits += 1;
        if *waits > LOG_WAITS {
            return Err(Error::NoSpace);
        }
        let mut state = self.state.lock();
        if state.log_free() < frees {
            let _waits = tasks::wait(Awaited::Space);
            self.released.wait_for(&mut state, LOG_WAIT);
        }
        Ok(())
    }
    /// Metadata slots: a whole chunk if there is room for one beside the data asked for; else slots
    /// or room from a group; else whatever there is, down to a single slot.
    pub(super) fn more_slots(
        &self,
        refill: &mut Refill,
        data: u64,
        slots: u64,
        trades: &mut u32,
    ) -> Result<bool> {
        let chunk = self.volume.geo.chunk_blocks();
        // File data from elsewhere leaves nothing to be kept for it here.
        let data = if refill.data.is_some() { 0 } else { data };
        let want = chunk.max(slots * self.slot_blocks()) + data;
        let grown = self.volume.groups.added() > 0;
        let need = Need { data: want, slots: true, home: grown, existing: false };
        if self.existing_slots(refill, need, trades)? {
            return Ok(true);
        }
        if self.carve(refill, data, (true, grown))? || self.extend(refill, need, trades)? {
            return Ok(true);
        }
        let anywhere = Need { home: false, ..need };
        if grown
            && (self.carve(refill, data, (true, false))?
                || self.extend(refill, anywhere, trades)?)
        {
            return Ok(true);
        }
        self.carve(refill, 0, (false, false))
    }

    /// Slots that groups have, before others are made: what has become one never holds file data again.
    /// Making them anew is faster, so this is done where it matters.
    fn existing_slots(&self, refill: &mut Refill, need: Need, trades: &mut u32) -> Result<bool> {
        let short = self.is_short();
        if short && refill.read.elapsed() > HINT_AGE {
            self.read_hints(refill)?;
        }
        let side = refill.side(need);
        let there: u64 = side.groups.iter().map(|g| refill.hint(*g).free_meta).sum();
        let free: u64 = side.groups.iter().map(|g| refill.hint(*g).free).sum();
        if there == 0 || !short && there < free / FREE_SLOTS {
            return Ok(false);
        }
        let near = |g: &u64| !(need.home && self.volume.groups.is_added(*g));
        let has = |g: &u64| near(g) && refill.hint(*g).free_meta > 0;
        let mut groups: Vec<u64> = side.groups.iter().copied().filter(has).collect();
        groups.sort_by_key(|g| std::cmp::Reverse(refill.hint(*g).free_meta));
        let need = Need { data: 0, existing: true, ..need };
        let found = self.take_first(refill, groups.into_iter(), need, trades)?;
        Ok(found.is_some())
    }

    /// Takes a window, or adds to one. False when no group has anything for it.
    pub(super) fn extend(&self, refill: &mut Refill, need: Need, trades: &mut u32) -> Result<bool> {
        if !refill.hinted {
            self.read_hints(refill)?;
        }
        let mut tried = vec![false; refill.hints.len()];
        // Elsewhere there may be enough: not all headers are read again for each chunk of metadata.
        let passes = if need.home { 1 } else { 3 };
        for pass in 0..passes {
            let order = match pass {
                0 => {
                    let order = refill.order(need, &self.volume);
                    if need.home && order.is_empty() && refill.read.elapsed() > HINT_AGE {
                        self.read_hints(refill)?;
                    }
                    refill.order(need, &self.volume)
                }
                1 => {
                    self.read_hints(refill)?;
                    refill.order(need, &self.volume)
                }
                // What is on disk may be older than what a node holds under its lock.
                _ => refill.side(need).groups.clone(),
            };
            let fresh = order.into_iter().filter(|index| {
                let tried = usize::try_from(*index).ok().and_then(|i| tried.get_mut(i));
                tried.is_some_and(|tried| !std::mem::replace(tried, true))
            });
            if let Some(index) = self.take_first(refill, fresh, need, trades)? {
                refill.side_mut(need).current = index;
                return Ok(true);
            }
        }
        Ok(false)
    }
    /// Takes a window in the first of `groups` that has one to give: which.
    fn take_first(
        &self,
        refill: &mut Refill,
        groups: impl Iterator<Item = u64>,
        need: Need,
        trades: &mut u32,
    ) -> Result<Option<u64>> {
        for index in groups {
            match self.take(refill, index, need, trades) {
                Ok(true) => return Ok(Some(index)),
                Ok(false) => {}
                // Until a repair: other groups will do.
                Err(e) if e.is_of_one_group() => {
                    tracing::debug!("group {index}: {e}");
                    self.meta.note_damage(&e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
    /// Takes a window in a group for which `wanted` holds. False when none has anything.
    pub(super) fn extend_in(&self, data: u64, wanted: &dyn Fn(u64) -> bool) -> Result<bool> {
        let mut refill = self.refill.lock();
        refill.follow(&self.volume);
        self.read_hints(&mut refill)?;
        let need = Need { data, slots: false, home: false, existing: false };
        let has_any = |g: &u64| wanted(*g) && refill.hint(*g).free > 0;
        let mut order: Vec<u64> =
            refill.side(need).groups.iter().copied().filter(has_any).collect();
        order.sort_by_key(|g| std::cmp::Reverse(refill.hint(*g).free));
        Ok(self.take_first(&mut refill, order.into_iter(), need, &mut 0)?.is_some())
    }
    /// What each group has that is free and in no window.
    pub(super) fn free_by_group(&self) -> Result<Vec<u64>> {
        let free = |index| {
            let lock = LockNo::from(self.volume.rgrp(index));
            let _guard = self.locks.acquire(lock, Mode::Shared, Local::Shared)?;
            Ok(Group::load(&self.volume, &self.meta, index)?.raw.free_blocks.get())
        };
        let there = |index| if self.volume.groups.is_gone(index) { Ok(0) } else { free(index) };
        (0..self.volume.groups.count()).map(there).collect()
    }
    /// Reads all groups' headers without their locks.
    fn read_hints(&self, refill: &mut Refill) -> Result<()> {
        let volume = &self.volume;
        let count = refill.hints.len() as u64;
        let (open, closed): (Vec<u64>, Vec<u64>) =
            (0..count).partition(|index| volume.groups.is_open(*index));
        for index in closed {
            refill.set_hint(index, |h| (h.free, h.free_meta) = (0, 0));
        }
        headers(volume, &open, &mut |index, header| {
            // A header that is being written may look torn. It is read again under its lock.
            let (free, free_meta) =
                header?.map_or((1, 1), |raw| (raw.free_blocks.get(), raw.free_meta.get()));
            refill.set_hint(index, |h| (h.free, h.free_meta) = (free, free_meta));
            Ok(())
        })?;
        refill.hinted = true;
        refill.read = Instant::now();
        Ok(())
    }
    /// Takes what group `index` has: into this node's windows that lie there, and a new one.
    fn take(&self, refill: &mut Refill, index: u64, need: Need, trades: &mut u32) -> Result<bool> {
        let place = self.empty_place(need, trades)?;
        let lock = LockNo::from(self.volume.rgrp(index));
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        // The node that has closed it may have checked under the lock that it is empty.
        if !self.volume.groups.is_open(index) {
            return Ok(false);
        }
        let mut group = Group::load(&self.volume, &self.meta, index)?;
        let note = |refill: &mut Refill, group: &Group| {
            refill.set_hint(index, |h| {
                h.free = group.raw.free_blocks.get();
                h.free_meta = group.raw.free_meta.get();
            });
        };
        note(refill, &group);
        if need.existing && group.raw.free_meta.get() == 0 {
            return Ok(false);
        }
        if group.raw.free_blocks.get() == 0 && !(need.slots && group.raw.free_meta.get() > 0) {
            return Ok(false);
        }
        let mut ranges = self.own_ranges(&group);
        let fresh = place.and_then(|place| {
            let taken: Vec<(u64, u64)> = ranges.iter().map(|r| (r.1, r.2)).collect();
            self.choose_range(refill, &group, need, &taken).map(|(at, n)| (place, at, n))
        });
        ranges.extend(fresh);
        let mut edits = Edits::default();
        let moved: Vec<Moved> =
            ranges.iter().map(|&range| move_free(&group, range, &mut edits)).collect();
        if edits.is_empty() {
            return Ok(false);
        }
        let fresh = fresh.map(|(place, _, _)| place);
        self.write_take(&mut group, &edits, &moved, fresh)?;
        note(refill, &group);
        if let Some(m) = moved.iter().find(|m| Some(m.place) == fresh) {
            refill.set_hint(index, |h| h.near = Some(m.at + m.len));
            let cap = window_capacity(&self.volume);
            let side = refill.side_mut(need);
            side.target = (side.target * 2).min(cap);
        }
        drop(guard);
        Ok(true)
    }
    /// The transaction of [`Inner::take`], then the same in memory.
    fn write_take(
        &self,
        group: &mut Group,
        edits: &Edits,
        moved: &[Moved],
        fresh: Option<u64>,
    ) -> Result<()> {
        let private = self.private();
        let mut tx = self.meta.begin()?;
        let done = group.apply(&mut tx, edits).and_then(|()| {
            moved.iter().try_for_each(|m| {
                if Some(m.place) == fresh {
                    let start = group.block(m.at);
                    private.write_window(&mut tx, m.place, start, m.len, self.incarnation, &m.runs)
                } else if m.runs.is_empty() {
                    Ok(())
                } else {
                    private.set_window_bits(&mut tx, m.place, &m.runs)
                }
            })
        });
        drop(tx);
        self.meta.sealed(done)?;
        let mut state = self.state.lock();
        for m in moved {
            if Some(m.place) == fresh {
                let start = group.block(m.at);
                state.open_window(m.place, Extent::of(&self.volume, group.index, start, m.len));
            }
            for &(at, n, kind) in &m.runs {
                state.add_free(m.place, at, n, kind, self.slot_blocks());
            }
        }
        Ok(())
    }
    /// This node's open windows in a group: (place, start in the group, length).
    fn own_ranges(&self, group: &Group) -> Vec<(u64, u64, u64)> {
        let state = self.state.lock();
        (0..)
            .zip(&state.windows)
            .filter(|(_, w)| w.is_open())
            .filter_map(|(place, w)| Some((place, group.local(w.start)?, w.len)))
            .collect()
    }
    fn choose_range(
        &self,
        refill: &Refill,
        group: &Group,
        need: Need,
        taken: &[(u64, u64)],
    ) -> Option<(u64, u64)> {
        let size = self.volume.geo.block_size;
        let nodes = u64::from(self.volume.sb.node_slots.get()).max(1);
        let side = refill.side(need);
        let free: u64 = side.groups.iter().map(|index| refill.hint(*index).free).sum();
        let share = (free / (SHARE * nodes)).max(blocks(size, WINDOW_MIN));
        let grain = self.window_grain(group);
        let cap = window_capacity(&self.volume) / grain * grain;
        let len = side.target.min(share).max(need.data).min(cap);
        let request = WindowRequest {
            count: group.shape.block_count,
            taken,
            near: refill.hint(group.index).near,
            len: len.next_multiple_of(grain).min(cap),
            grain,
            state: BlockState::Free,
        };
        let of_slots =
            || choose(&group.bits, &WindowRequest { state: BlockState::MetaFree, ..request });
        let first = if need.existing { of_slots() } else { None };
        first
            .or_else(|| choose(&group.bits, &request))
            .or_else(|| need.slots.then(of_slots).flatten())
    }

    /// Windows for file data are made of whole rows, where these are not too large.
    pub(super) fn window_grain(&self, group: &Group) -> u64 {
        let slot = self.slot_blocks();
        if takes_slots(group.shape.kind) {
            return slot;
        }
        let first = group.shape.first_block;
        let (start, row) = self.volume.rows_at(group.index, first);
        // Of 0, where there are no rows, only 0 is a multiple.
        let fits = (first - start).is_multiple_of(row) && row <= window_capacity(&self.volume) / 4;
        if fits { row } else { slot }
    }

    /// A window that is not in use: one that never was, else one that is used up, else the one with
    /// the least free space that no operation needs.
    fn empty_place(&self, need: Need, trades: &mut u32) -> Result<Option<u64>> {
        let unused =
            || (0..).zip(&self.state.lock().windows).find(|(_, w)| w.len == 0).map(|(i, _)| i);
        if let Some(place) = unused() {
            return Ok(Some(place));
        }
        let used_up = self.state.lock().close_windows(Window::exhausted);
        self.give_back(used_up)?;
        if let Some(place) = unused() {
            return Ok(Some(place));
        }
        if *trades >= TRADES_MAX {
            return Ok(None);
        }
        *trades += 1;
        let closed = self.state.lock().close_for(need.slots);
        self.give_back(closed.into_iter().collect())?;
        Ok(unused())
    }
    /// Returns every window that is not busy. `all`: every one must go.
    pub(super) fn give_back_idle(&self, _refill: &mut Refill, all: bool) -> Result<()> {
        let closing = {
            let mut state = self.state.lock();
            if all { state.close_windows(|_| true) } else { state.close_idle() }
        };
        self.give_back(closing)
    }
    /// Returns windows that are closing. Those of a group that cannot be used keep closing until a repair;
    /// all others are returned.
    ///
    /// # Errors
    /// The last one of such a group, after the others' turn.
    pub(super) fn give_back(&self, places: Vec<u64>) -> Result<()> {
        let private = self.private();
        let mut windows: Vec<WindowBlock> = Vec::new();
        for place in places {
            windows.extend(private.read_window(place)?);
        }
        windows.sort_by_key(|w| w.group);
        let mut kept = Ok(());
        while let Some(last) = windows.last() {
            let index = last.group;
            let from = windows.partition_point(|w| w.group < index);
            let of_group = windows.split_off(from);
            let returned = Error::of_one_group(private.return_windows(index, &of_group))?;
            if returned.is_err() {
                kept = returned;
                continue;
            }
            let mut state = self.state.lock();
            for w in &of_group {
                state.open_window(w.place, Extent::default());
            }
        }
        kept
    }

    /// Applies the free log. False when it was empty.
    pub(super) fn drain(&self, _refill: &mut Refill) -> Result<bool> {
        let entries = self.state.lock().log.entries();
        if entries.is_empty() {
            return Ok(false);
        }
        // Windows neither come nor go: the caller holds the refill lock.
        let own = |freed: Freed| self.state.lock().overlaps(freed.start, freed.len);
        let per_slot = self.slot_blocks();
        self.private().drain(&entries, &own, &mut |done| {
            let mut state = self.state.lock();
            for (place, freed) in done {
                for (window, at, _, n) in state.overlaps(freed.start, freed.len) {
                    state.add_free(window, at, n, freed.state, per_slot);
                }
                state.log.remove(*place);
            }
        })?;
        Ok(true)
    }
    /// As [`Inner::drain`]; what is of a group that cannot be used stays in the log until a repair.
    pub(super) fn drain_usable(&self, refill: &mut Refill) -> Result<Drained> {
        let room = || self.state.lock().log.room();
        let before = room();
        let left = Error::of_one_group(self.drain(refill))?.err();
        if let Some(e) = &left {
            tracing::debug!("frees that stay in the log: {e}");
            self.meta.note_damage(e);
        }
        Ok(Drained { applied: room() > before, left })
    }
}

/// What became of the entries of the free log.
#[derive(Debug)]
pub(super) struct Drained {
    /// Some were applied.
    pub applied: bool,
    /// Some stay, because their group cannot be used.
    pub left: Option<Error>,
}

/// What goes from a group into one window.
#[derive(Debug)]
struct Moved {
    place: u64,
    /// The window, from the group's first block.
    at: u64,
    len: u64,
    /// Takeable runs, from the window's start.
    runs: Vec<(u64, u64, BlockState)>,
}

fn move_free(group: &Group, range: (u64, u64, u64), edits: &mut Edits) -> Moved {
    let (place, at, len) = range;
    let mut runs = Vec::new();
    let in_window =
        [(BlockState::Free, BlockState::Data), (BlockState::MetaFree, BlockState::MetaUsed)];
    for (state, shown) in in_window {
        for (start, n) in bits::runs(&group.bits, at, at + len, state) {
            edits.push(start, n, state, shown);
            runs.push((start - at, n, state));
        }
    }
    Moved { place, at, len, runs }
}
