//! A node's private blocks (windows, free log, counters) and their way back into groups and
//! cluster counters. Used by the node itself, and for a dead one by its recoverer.
//!
//! Every step is one transaction that changes both sides, so it is done wholly or not at all, and
//! doing it again finds nothing left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::meta::MetaKind;
use braid_format::node::RawCounters;
use braid_format::rgrp::{BlockState, RawFreeLog, RawWindow};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Incarnation, LockNo, NodeId};
use braid_lock::{Deltas, Local, LockManager, Mode};
use zerocopy::FromBytes;

use super::bits;
use super::group::{Edits, Group, fits};
use super::log::{self, Freed, Place};
use crate::error::{Error, Result};
use crate::groups::PER_BYTE;
use crate::meta::{Body, Meta, Tx};
use crate::volume::Volume;

/// An entry of the free log, and where it is.
pub(super) type Entry = (Place, Freed);
/// A part of a run that lies in a window: (window, offset there, offset in the run, length).
pub(super) type Part = (u64, u64, u64, u64);

/// Bits of a window block begin here.
const WINDOW_BITS: usize = size_of::<RawWindow>();

/// Where private blocks live and what changes them.
#[derive(Clone, Copy)]
pub(super) struct Private<'a> {
    pub volume: &'a Volume,
    pub meta: &'a Meta,
    pub locks: &'a Arc<LockManager>,
    /// Whose blocks.
    pub node: NodeId,
}

/// A window block as read.
#[derive(Debug)]
pub(super) struct WindowBlock {
    /// Which of the node's windows.
    pub place: u64,
    pub group: u64,
    pub start: u64,
    pub len: u64,
    body: Body,
}

impl WindowBlock {
    /// Two bits a block.
    pub fn bits(&self) -> &[u8] {
        self.body.get(WINDOW_BITS..).unwrap_or(&[])
    }
}

/// Group, first block and blocks of the window that `body` holds; `None` when it is not in use.
pub(crate) fn window_head(
    volume: &Volume,
    block: BlockNo,
    body: &[u8],
) -> Result<Option<(u64, u64, u64)>> {
    let bad = |what| Error::Inconsistent { block, what };
    let (raw, _) = RawWindow::read_from_prefix(body).map_err(|_| bad("window block too short"))?;
    let (start, len) = (raw.start.get(), raw.blocks.get());
    if len == 0 {
        return Ok(None);
    }
    let group = volume.rgrp_of(BlockNo(start)).ok_or(bad("window outside all groups"))?;
    let shape = volume.group_shape(group).ok_or(bad("window outside all groups"))?;
    let inside = shape.local(start, len).is_some();
    if raw.rgrp.get() != shape.start.get() || !inside || len > window_capacity(volume) {
        return Err(bad("window bounds"));
    }
    Ok(Some((group, start, len)))
}

/// Blocks that a window block can speak of, a multiple of the metadata chunk.
pub(crate) fn window_capacity(volume: &Volume) -> u64 {
    let bits = volume.geo.body_len().saturating_sub(WINDOW_BITS) as u64 * PER_BYTE;
    bits / volume.geo.chunk_blocks() * volume.geo.chunk_blocks()
}

impl Private<'_> {
    fn area(&self, n: u64) -> BlockNo {
        self.volume.node_area(self.node, n)
    }
    /// Block of window `place`.
    pub fn window_block(&self, place: u64) -> BlockNo {
        self.area(RawSuperblock::AREA_WINDOWS + place)
    }
    /// Block `n` of the free log.
    pub fn log_block(&self, n: u64) -> BlockNo {
        self.area(RawSuperblock::AREA_FREELOG + n)
    }
    fn info_block(&self) -> BlockNo {
        self.area(RawSuperblock::AREA_INFO)
    }
    /// All blocks that this module changes.
    pub fn all_blocks(&self) -> Vec<BlockNo> {
        let windows = (0..RawSuperblock::WINDOWS).map(|n| self.window_block(n));
        let logs = (0..RawSuperblock::FREELOG_BLOCKS).map(|n| self.log_block(n));
        windows.chain(logs).chain([self.info_block()]).collect()
    }

    /// Reads window `place`; `None` when it is not in use.
    pub fn read_window(&self, place: u64) -> Result<Option<WindowBlock>> {
        let block = self.window_block(place);
        let body = self.meta.read(block, LockNo::from(block), MetaKind::Window)?;
        let head = window_head(self.volume, block, &body)?;
        let Some((group, start, len)) = head else { return Ok(None) };
        let window = WindowBlock { place, group, start, len, body };
        let kind = self.volume.groups.kind(group);
        let slots = [BlockState::MetaFree, BlockState::MetaUsed];
        let has = |state| bits::runs(window.bits(), 0, len, state).next().is_some();
        if slots.into_iter().any(|state| !fits(kind, state) && has(state)) {
            return Err(Error::Inconsistent { block, what: "metadata in a window for file data" });
        }
        Ok(Some(window))
    }
    /// Sets bits of window `place`, in `tx`.
    pub fn set_window_bits(
        &self,
        tx: &mut Tx<'_>,
        place: u64,
        runs: &[(u64, u64, BlockState)],
    ) -> Result<()> {
        let block = self.window_block(place);
        tx.modify(block, LockNo::from(block), MetaKind::Window, |body| {
            let Some(bits) = body.get_mut(WINDOW_BITS..) else { return };
            for &(start, len, state) in runs {
                bits::fill(bits, start, len, state);
            }
        })
    }
    /// Makes window `place` one of `len` blocks from `start`, all of them `Data` but `runs`; if both
    /// are 0, unused.
    pub fn write_window(
        &self,
        tx: &mut Tx<'_>,
        place: u64,
        start: u64,
        len: u64,
        incarnation: Incarnation,
        runs: &[(u64, u64, BlockState)],
    ) -> Result<()> {
        let block = self.window_block(place);
        let index = self.volume.rgrp_of(BlockNo(start));
        let rgrp = index.map_or(0, |index| self.volume.rgrp(index).get());
        tx.modify(block, LockNo::from(block), MetaKind::Window, |body| {
            if let Ok((raw, bits)) = RawWindow::mut_from_prefix(body) {
                raw.rgrp.set(rgrp);
                raw.start.set(start);
                raw.blocks.set(len);
                raw.incarnation.set(incarnation.get());
                bits.fill(0);
                if len != 0 {
                    bits::fill(bits, 0, bits.len() as u64 * PER_BYTE, BlockState::Data);
                }
                for &(start, len, state) in runs {
                    bits::fill(bits, start, len, state);
                }
            }
        })
    }

    /// Gives windows of group `index` back to it. Nobody takes from them or frees into them now.
    ///
    /// There is one rule: what a window calls free is free, whatever the group says. A used
    /// metadata slot is entered in the group only while the group has nothing newer.
    pub fn return_windows(&self, index: u64, windows: &[WindowBlock]) -> Result<()> {
        let slots: Vec<BlockNo> = windows.iter().flat_map(|w| self.free_slots(w)).collect();
        // Their bodies become visible to other nodes: they must be in place first.
        if !slots.is_empty() {
            self.meta.sync_blocks(&slots)?;
        }
        let lock = LockNo::from(self.volume.rgrp(index));
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        let mut group = Group::load(self.volume, self.meta, index)?;
        let mut edits = Edits::default();
        for w in windows {
            plan_return(&group, w, &mut edits)?;
        }
        let mut tx = self.meta.begin()?;
        let done = group.apply(&mut tx, &edits).and_then(|()| {
            let mut empty = windows.iter().map(|w| w.place);
            empty.try_for_each(|n| self.write_window(&mut tx, n, 0, 0, Incarnation(0), &[]))
        });
        drop(tx);
        // Half of a transaction must not be committed.
        self.meta.fatal(done)?;
        self.forget(&slots);
        drop(guard);
        Ok(())
    }
    /// Other nodes may use these slots from now on: nothing of them stays cached.
    pub fn forget(&self, slots: &[BlockNo]) {
        for slot in slots {
            self.meta.forget_free(*slot);
        }
    }
    fn free_slots(&self, w: &WindowBlock) -> Vec<BlockNo> {
        let step = usize::try_from(self.volume.geo.slot_blocks()).unwrap_or(1);
        bits::runs(w.bits(), 0, w.len, BlockState::MetaFree)
            .flat_map(|(start, n)| (start..start + n).step_by(step))
            .map(|i| BlockNo(w.start + i))
            .collect()
    }

    /// Reads the free log.
    pub fn read_log(&self) -> Result<Vec<(Place, Freed)>> {
        let mut out = Vec::new();
        for n in 0..RawSuperblock::FREELOG_BLOCKS {
            let block = self.log_block(n);
            let body = self.meta.read(block, LockNo::from(block), MetaKind::FreeLog)?;
            let entries =
                log::decode(&body, block).map_err(|source| Error::Damaged { block, source })?;
            out.extend(entries.into_iter().map(|(index, f)| (Place { block: n, index }, f)));
        }
        Ok(out)
    }
    /// Writes (or clears) a place of the free log, in `tx`.
    pub fn write_log(&self, tx: &mut Tx<'_>, place: Place, freed: Option<Freed>) -> Result<()> {
        let block = self.log_block(place.block);
        let raw = log::encode(freed, block).map_err(|source| Error::Damaged { block, source })?;
        tx.modify(block, LockNo::from(block), MetaKind::FreeLog, |body| {
            log::write(body, place.index, &raw);
        })
    }
    /// Places in a block of the log.
    pub fn log_places(&self) -> usize {
        RawFreeLog::capacity(self.volume.geo.body_len())
    }
    /// Applies durable entries of the free log. `own` says which parts of a run lie in windows of
    /// this node: those go there. `done` gets each group's entries after their transaction. Entries
    /// of a group whose lock is lost stay.
    pub fn drain(
        &self,
        entries: &[Entry],
        own: &dyn Fn(Freed) -> Vec<Part>,
        done: &mut dyn FnMut(&[Entry]),
    ) -> Result<()> {
        for (_, f) in entries {
            let block = BlockNo(f.start);
            let what = "freed run outside all groups for such blocks";
            let group = self.volume.rgrp_of(block).map(|index| self.volume.groups.kind(index));
            if !group.is_some_and(|kind| fits(kind, f.state)) {
                return Err(Error::Inconsistent { block, what });
            }
        }
        let slots: Vec<BlockNo> = entries
            .iter()
            .filter(|(_, f)| f.state == BlockState::MetaFree)
            .map(|(_, f)| BlockNo(f.start))
            .collect();
        // Commits too: what was freed may be given out only once that is durable.
        if slots.is_empty() {
            self.meta.commit()?;
        } else {
            self.meta.sync_blocks(&slots)?;
        }
        let mut groups: BTreeMap<u64, Vec<(Place, Freed)>> = BTreeMap::new();
        for (place, freed) in entries {
            let block = BlockNo(freed.start);
            let what = "freed run outside all groups";
            let index = self.volume.rgrp_of(block).ok_or(Error::Inconsistent { block, what })?;
            groups.entry(index).or_default().push((*place, *freed));
        }
        let mut lost = Ok(());
        for (index, mut entries) in groups {
            entries.sort_unstable_by_key(|(_, f)| f.start);
            match self.drain_group(index, &entries, own) {
                Ok(()) => done(&entries),
                Err(e) if e.is_of_one_group() => lost = Err(e),
                Err(e) => return Err(e),
            }
        }
        lost
    }
    fn drain_group(
        &self,
        index: u64,
        entries: &[Entry],
        own: &dyn Fn(Freed) -> Vec<Part>,
    ) -> Result<()> {
        let lock = LockNo::from(self.volume.rgrp(index));
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        let mut group = Group::load(self.volume, self.meta, index)?;
        let mut edits = Edits::default();
        let mut shown = Vec::new();
        let mut inside: Vec<(u64, u64, u64, BlockState)> = Vec::new();
        for (_, freed) in entries {
            let parts = own(*freed);
            inside.extend(parts.iter().map(|&(w, at, _, n)| (w, at, n, freed.state)));
            if parts.is_empty() && freed.state == BlockState::MetaFree {
                shown.push(BlockNo(freed.start));
            }
            plan_free(&group, *freed, self.volume.geo.slot_blocks(), &parts, &mut edits)?;
        }
        let mut tx = self.meta.begin()?;
        let done = self.write_drained(&mut tx, &mut group, &edits, &inside).and_then(|()| {
            entries.iter().try_for_each(|(place, _)| self.write_log(&mut tx, *place, None))
        });
        drop(tx);
        self.meta.fatal(done)?;
        self.forget(&shown);
        drop(guard);
        Ok(())
    }
    fn write_drained(
        &self,
        tx: &mut Tx<'_>,
        group: &mut Group,
        edits: &Edits,
        inside: &[(u64, u64, u64, BlockState)],
    ) -> Result<()> {
        group.apply(tx, edits)?;
        let slot_blocks = self.volume.geo.slot_blocks();
        for &(place, at, n, state) in inside {
            let n = if state == BlockState::MetaFree { slot_blocks } else { n };
            self.set_window_bits(tx, place, &[(at, n, state)])?;
        }
        Ok(())
    }

    /// Adds to this node's change of the counters, in `tx`.
    pub fn count(&self, tx: &mut Tx<'_>, change: Deltas) -> Result<()> {
        let block = self.info_block();
        tx.modify(block, LockNo::from(block), MetaKind::NodeInfo, |body| {
            if let Ok((raw, _)) = RawCounters::mut_from_prefix(body) {
                add(raw, change);
            }
        })
    }
    /// This node's change of the counters.
    pub fn read_counts(&self) -> Result<Deltas> {
        let block = self.info_block();
        let body = self.meta.read(block, LockNo::from(block), MetaKind::NodeInfo)?;
        let (raw, _) = RawCounters::read_from_prefix(&body)
            .map_err(|_| Error::Inconsistent { block, what: "node information too short" })?;
        Ok(change_in(&raw))
    }
    /// Moves this node's change into the cluster's counters; in place on return. Gives what was
    /// moved.
    pub fn fold(&self) -> Result<Deltas> {
        let lock = self.volume.named(RawSuperblock::NAMED_COUNTERS);
        let guard = self.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        let (block, info) = (BlockNo::from(lock), self.info_block());
        // Both bodies are sound before the first change.
        self.meta.read(block, lock, MetaKind::Counters)?;
        self.read_counts()?;
        let mut tx = self.meta.begin()?;
        let taken = tx.modify(info, LockNo::from(info), MetaKind::NodeInfo, |body| {
            let Ok((raw, _)) = RawCounters::mut_from_prefix(body) else {
                return Deltas::default();
            };
            let old = change_in(raw);
            for counter in [&mut raw.free_blocks, &mut raw.inodes, &mut raw.free_meta] {
                counter.set(0);
            }
            old
        })?;
        tx.modify(block, lock, MetaKind::Counters, |body| {
            if let Ok((raw, _)) = RawCounters::mut_from_prefix(body) {
                add(raw, taken);
            }
        })?;
        drop(tx);
        self.meta.sync_owner(lock)?;
        drop(guard);
        Ok(taken)
    }
}

/// Counters after a change.
fn add(raw: &mut RawCounters, change: Deltas) {
    raw.free_blocks.set(raw.free_blocks.get().wrapping_add_signed(change.free));
    raw.inodes.set(raw.inodes.get().wrapping_add_signed(change.inodes));
    raw.free_meta.set(raw.free_meta.get().wrapping_add_signed(change.meta));
}
/// A node's change, as it is in its block.
fn change_in(raw: &RawCounters) -> Deltas {
    Deltas {
        free: raw.free_blocks.get().cast_signed(),
        inodes: raw.inodes.get().cast_signed(),
        meta: raw.free_meta.get().cast_signed(),
    }
}

/// What returning `w` changes in its group.
fn plan_return(group: &Group, w: &WindowBlock, edits: &mut Edits) -> Result<()> {
    let base = group.local_run(w.start, w.len)?;
    for state in [BlockState::Free, BlockState::MetaFree, BlockState::MetaUsed] {
        for (start, len) in bits::runs(w.bits(), 0, w.len, state) {
            plan_runs(group, base + start..base + start + len, state, edits)?;
        }
    }
    Ok(())
}

/// What changes in a group when a window calls `range` of its blocks `state`.
pub(super) fn plan_runs(
    group: &Group,
    range: std::ops::Range<u64>,
    state: BlockState,
    edits: &mut Edits,
) -> Result<()> {
    for i in range {
        let old = bits::get(&group.bits, i);
        match (state, old) {
            (BlockState::MetaUsed | BlockState::Free | BlockState::MetaFree, BlockState::Data)
            | (BlockState::MetaFree, BlockState::MetaUsed) => edits.push(i, 1, old, state),
            (BlockState::MetaUsed, _) => {}
            _ => {
                let block = BlockNo(group.block(i));
                return Err(Error::Inconsistent { block, what: "free in two places" });
            }
        }
    }
    Ok(())
}

/// What applying `freed` changes in its group, without the `parts` that go to a window.
fn plan_free(
    group: &Group,
    freed: Freed,
    slot_blocks: u64,
    parts: &[Part],
    edits: &mut Edits,
) -> Result<()> {
    let slot = freed.state == BlockState::MetaFree;
    let len = if slot { slot_blocks } else { freed.len };
    let base = group.local_run(freed.start, len)?;
    for i in 0..len {
        if parts.iter().any(|&(_, _, from, n)| i >= from && (slot || i < from + n)) {
            continue;
        }
        let old = bits::get(&group.bits, base + i);
        let fits = match old {
            BlockState::Data => true,
            BlockState::MetaUsed => slot,
            BlockState::Free | BlockState::MetaFree => false,
        };
        if !fits {
            let block = BlockNo(group.block(base + i));
            return Err(Error::Inconsistent { block, what: "freed, but not in use" });
        }
        edits.push(base + i, 1, old, freed.state);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use braid_format::label::SubpoolKind;
    use braid_format::rgrp::BlockState::{Free, MetaFree, MetaUsed};
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::groups::{Part as Groups, Span};
    use crate::test_volume::{Shape, TestVolume};

    #[test]
    fn what_a_window_calls_free_goes_into_the_group_and_used_slots_where_nothing_newer_is() {
        let group = Group::for_tests(
            SubpoolKind::General,
            &[(1, 1, Free), (2, 1, MetaFree), (3, 1, MetaUsed)],
        );
        // The group says of blocks 0 to 3: data, free, free slot, used slot.
        let planned = |at: u64, state| {
            let mut edits = Edits::default();
            let done = plan_runs(&group, at..at + 1, state, &mut edits);
            let (runs, free, meta) = edits.told();
            done.ok().map(|()| (runs.to_vec(), free, meta))
        };
        let nothing = || Some((vec![], 0, 0));
        assert_eq!(planned(0, Free), Some((vec![(0, 1, Free)], 1, 0)));
        assert_eq!([1, 2, 3].map(|at| planned(at, Free)), [None, None, None]);
        assert_eq!(planned(0, MetaFree), Some((vec![(0, 1, MetaFree)], 0, 1)));
        assert_eq!([1, 2].map(|at| planned(at, MetaFree)), [None, None]);
        assert_eq!(planned(3, MetaFree), Some((vec![(3, 1, MetaFree)], 0, 1)));
        assert_eq!(planned(0, MetaUsed), Some((vec![(0, 1, MetaUsed)], 0, 0)));
        assert_eq!([1, 2, 3].map(|at| planned(at, MetaUsed)), [(); 3].map(|()| nothing()));
    }

    #[test]
    fn what_is_freed_goes_into_the_group_but_for_parts_that_go_to_windows() {
        let group = Group::for_tests(SubpoolKind::General, &[(20, 4, MetaUsed), (30, 2, Free)]);
        let planned = |start, len, state, parts: &[Part]| {
            let mut edits = Edits::default();
            let done = plan_free(&group, Freed { start, len, state }, 2, parts, &mut edits);
            done.map(|()| edits.told().0.to_vec())
        };
        assert_eq!(planned(1005, 10, Free, &[]).unwrap(), [(5, 10, Free)]);
        let parts = [(0, 0, 2, 3), (1, 7, 8, 2)];
        assert_eq!(planned(1005, 10, Free, &parts).unwrap(), [(5, 2, Free), (10, 3, Free)]);
        // A slot goes there wholly.
        assert_eq!(planned(1020, 1, MetaFree, &[]).unwrap(), [(20, 2, MetaFree)]);
        assert_eq!(planned(1020, 1, MetaFree, &[(0, 0, 0, 1)]).unwrap(), []);
        let refused = |start, state| match planned(start, 2, state, &[]) {
            Err(Error::Inconsistent { block, .. }) => block.get(),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(1029, Free), 1030, "free already");
        assert_eq!(refused(1021, Free), 1021, "a slot is no data");
        assert_eq!(refused(1030, MetaFree), 1030);
        assert!(planned(1399, 2, Free, &[]).is_err(), "outside");
    }

    #[test]
    fn a_window_that_is_not_within_its_group_is_refused() {
        let volume = TestVolume::new(Shape::default()).volume;
        let most = window_capacity(&volume);
        assert_eq!(most, 14_016, "two bits for each, in whole chunks");
        // A group that is larger than a window.
        let first = volume.groups.made();
        let span = Span { start: 100_000, stride: 20_000, count: 1, end: 120_000 };
        assert!(volume.groups.push(Groups { first: span, ..first }));
        let shape = volume.group_shape(1).unwrap();
        let (block, end) = (volume.node_area(0.into(), 5), 120_000);
        let read = |rgrp: u64, start: u64, len: u64| {
            let mut raw = RawWindow::new_zeroed();
            raw.rgrp.set(rgrp);
            raw.start.set(start);
            raw.blocks.set(len);
            window_head(&volume, block, raw.as_bytes()).ok()
        };
        let (head, at) = (shape.start.get(), shape.first_block);
        assert_eq!(read(head, at, 10), Some(Some((1, at, 10))));
        assert_eq!(read(head, at + 64, most), Some(Some((1, at + 64, most))));
        assert_eq!(read(head, at, 0), Some(None), "not in use");
        assert_eq!(read(head, at, most + 1), None);
        assert_eq!(read(head + 1, at, 10), None);
        assert_eq!(read(head, at - 1, 10), None, "its header is no part of it");
        assert_eq!(read(head, end - 5, 10), None);
        assert_eq!(read(head, end, 10), None, "outside all groups");
    }
}
