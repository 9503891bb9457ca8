//! The allocator's memory. No I/O; held for moments.
//!
//! A block of a window is *takeable* until it is *claimed*: it has been given to a transaction, whose commit will set
//! its bits in the bitmap. *Reserved* are numbers of blocks without a place: so many takeable ones are kept for dirty
//! data, which claims them when it is written.

use std::collections::VecDeque;

use braid_format::label::SubpoolKind;
use braid_format::rgrp::BlockState;
use braid_lock::Deltas;

use super::log::FreeLog;
use super::share::ReturnedPart;
use super::window::{Extent, Window};
use crate::groups::takes_data;

/// From this many blocks a claim is a stream's: it gets a long run to itself.
const STREAM_BLOCKS: u64 = 64;
/// Ends of streams that are remembered.
const TAILS: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    pub windows: Vec<Window>,
    pub log: FreeLog,
    pub data_reserved: u64,
    pub slots_reserved: u64,
    pub frees_reserved: u64,
    /// Where the latest streams would go on.
    tails: VecDeque<u64>,
    /// Window that the last small claim came from.
    current: usize,
    /// Claims so far: tells whether the node allocates.
    pub claims: u64,
    /// This node's change of the cluster's counters.
    pub deltas: Deltas,
}

impl State {
    /// `windows` unused windows.
    pub fn new(windows: u64, log: FreeLog) -> Self {
        Self {
            windows: (0..windows).map(|_| Window::default()).collect(),
            log,
            data_reserved: 0,
            slots_reserved: 0,
            frees_reserved: 0,
            tails: VecDeque::new(),
            current: 0,
            claims: 0,
            deltas: Deltas::default(),
        }
    }
    /// The change of the counters with what dirty data has reserved: space that nobody else can have.
    pub fn shown_deltas(&self) -> Deltas {
        let reserved = i64::try_from(self.data_reserved).unwrap_or(i64::MAX);
        Deltas { free: self.deltas.free.saturating_sub(reserved), ..self.deltas }
    }
    fn slots(&self) -> u64 {
        self.windows.iter().filter(|w| w.gives_slots()).map(|w| w.slots.count()).sum()
    }
    /// Takeable data blocks that nobody has reserved.
    pub fn data_free(&self) -> u64 {
        let data = self.windows.iter().filter(|w| w.gives_data()).map(|w| w.data.count());
        data.sum::<u64>().saturating_sub(self.data_reserved)
    }
    /// Blocks that may become slots. If they may also become data: what is not reserved.
    pub fn chunks_free(&self) -> u64 {
        let apart = self.windows.iter().filter(|w| w.gives_slots() && !w.gives_data());
        let shared = self.windows.iter().any(|w| w.gives_slots() && w.gives_data());
        let apart: u64 = apart.map(|w| w.data.count()).sum();
        apart + if shared { self.data_free() } else { 0 }
    }
    /// Takeable slots that nobody has reserved.
    pub fn slots_free(&self) -> u64 {
        self.slots().saturating_sub(self.slots_reserved)
    }
    /// Places of the log that nobody has reserved.
    pub fn log_free(&self) -> u64 {
        self.log.room().saturating_sub(self.frees_reserved)
    }
    /// Reserves all, or nothing. These are the node's counts of reserved space.
    pub fn reserve(&mut self, data: u64, slots: u64, frees: u64) -> bool {
        let fits = (data == 0 || self.data_free() >= data)
            && (slots == 0 || self.slots_free() >= slots)
            && (frees == 0 || self.log_free() >= frees);
        if fits {
            self.data_reserved += data;
            self.slots_reserved += slots;
            self.frees_reserved += frees;
        }
        fits
    }
    /// Takes reservations back, or turns them into claims.
    pub fn unreserve(&mut self, data: u64, slots: u64, frees: u64) {
        self.data_reserved -= data;
        self.slots_reserved -= slots;
        self.frees_reserved -= frees;
    }

    /// Puts window `place` into use, with nothing takeable.
    pub fn open_window(&mut self, place: u64, extent: Extent) {
        if let Some(w) = self.window(place) {
            w.reset(extent);
        }
    }
    /// Makes takeable what a window block's bits say.
    pub fn absorb(&mut self, place: u64, bits: &[u8], from: u64, to: u64, slot_blocks: u64) {
        if let Some(w) = self.window(place) {
            w.absorb(bits, from, to, slot_blocks);
        }
    }
    /// Window `place`.
    pub fn window(&mut self, place: u64) -> Option<&mut Window> {
        usize::try_from(place).ok().and_then(|i| self.windows.get_mut(i))
    }
    fn holder(&mut self, block: u64) -> Option<&mut Window> {
        self.windows.iter_mut().find(|w| w.holds(block))
    }
    /// The open window that holds `block`, and where in it.
    pub fn place_of(&self, block: u64) -> Option<(u64, u64)> {
        (0..).zip(&self.windows).find(|(_, w)| w.holds(block)).map(|(i, w)| (i, block - w.start))
    }

    /// Makes takeable what a group gave, or a drained log entry frees: `n` blocks of window
    /// `place`, from `at`.
    pub fn add_free(&mut self, place: u64, at: u64, n: u64, kind: BlockState, slot_blocks: u64) {
        let Some(w) = self.window(place) else { return };
        if kind == BlockState::Free {
            w.data.add(at, n);
        } else {
            let step = usize::try_from(slot_blocks).unwrap_or(1);
            for i in (at..at + n).step_by(step) {
                w.slots.add(i, 1);
            }
        }
    }
    /// A slot was carved out of claimed blocks.
    pub fn add_slot(&mut self, slot: u64) {
        if let Some(w) = self.holder(slot) {
            w.slots.add(slot - w.start, 1);
        }
    }
    /// Claims `blocks` for metadata on a multiple of `align`, as far from streams as may be, in a window
    /// for which `fits` holds.
    pub fn claim_aligned(
        &mut self,
        blocks: u64,
        align: u64,
        fits: impl Fn(&Window) -> bool,
    ) -> Option<u64> {
        let n = self.windows.len().max(1);
        let fit = |w: &&mut Window| w.gives_slots() && fits(w);
        for i in (0..n).map(|k| (self.current + k) % n) {
            let Some(w) = self.windows.get_mut(i).filter(fit) else { continue };
            if let Some(at) = w.last_aligned(blocks, align) {
                w.data.remove(at, blocks);
                w.busy += blocks;
                return Some(w.start + at);
            }
        }
        None
    }
    /// Parts of a run that lie in open windows: (window, offset there, offset in the run, length).
    pub fn overlaps(&self, start: u64, len: u64) -> Vec<(u64, u64, u64, u64)> {
        (0..)
            .zip(&self.windows)
            .filter(|(_, w)| w.is_open())
            .filter_map(|(place, w)| {
                let from = start.max(w.start);
                let to = (start + len).min(w.start + w.len);
                (from < to).then(|| (place, from - w.start, from - start, to - from))
            })
            .collect()
    }
    /// Closes idle windows of groups for which `f` holds, as long as the reservations can do without.
    pub fn close_of(&mut self, f: impl Fn(u64) -> bool) -> Vec<u64> {
        std::iter::from_fn(|| self.close_poorest(|w| f(w.group))).collect()
    }
    /// Closes the idle windows that `f` chooses.
    pub fn close_windows(&mut self, f: impl Fn(&Window) -> bool) -> Vec<u64> {
        let mut out = Vec::new();
        for (place, w) in (0..).zip(&mut self.windows) {
            if w.is_open() && w.busy == 0 && f(w) {
                w.closing = true;
                out.push(place);
            }
        }
        out
    }
    /// Closes the idle window with the least free space, if the reservations can do without it: of
    /// all windows, or of those for which `f` holds.
    pub fn close_poorest(&mut self, f: impl Fn(&Window) -> bool) -> Option<u64> {
        let (data, slots) = (self.data_free(), self.slots_free());
        let idle = self.windows.iter_mut().zip(0..);
        let idle = idle.filter(|(w, _)| w.is_open() && w.busy == 0 && f(w));
        let (w, place) = idle.min_by_key(|(w, _)| w.data.count() + w.slots.count())?;
        if w.gives_data() && w.data.count() > data || w.slots.count() > slots {
            return None;
        }
        w.closing = true;
        Some(place)
    }
    /// Closes a window to make room for one that gives slots, or for one that gives data: the two
    /// sorts share the places, and the one that has more of them gives one up first.
    pub fn close_for(&mut self, slots: bool) -> Option<u64> {
        let like = |w: &Window| if slots { w.gives_slots() } else { w.gives_data() };
        let alike = self.windows.iter().filter(|w| like(w)).count();
        let first = 2 * alike > self.windows.len();
        self.close_poorest(|w| like(w) == first)
            .or_else(|| self.close_poorest(|w| like(w) != first))
    }
    /// Closes idle windows as long as the reservations can do without.
    pub fn close_idle(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.close_poorest(|_| true)).collect()
    }

    /// Whether something can be taken that is not reserved, or is in the free log.
    pub fn has_takeable(&self) -> bool {
        let apart = |w: &Window| w.is_open() && !w.gives_data() && w.data.count() > 0;
        self.data_free() > 0
            || self.slots_free() > 0
            || self.log.room() < self.log.capacity()
            || self.windows.iter().any(apart)
    }
    /// Takes out of all windows what nobody has reserved. [`State::end_return`] follows.
    pub fn begin_return(&mut self, slot_blocks: u64) -> Vec<ReturnedPart> {
        let (mut data, mut slots) = (self.data_free(), self.slots_free());
        let mut out = Vec::new();
        for (place, w) in (0..).zip(&mut self.windows).filter(|(_, w)| w.is_open()) {
            let (group, first) = (w.group, w.start);
            let part =
                |at, len, state| ReturnedPart { group, place, at, start: first + at, len, state };
            let mut free = if takes_data(w.kind) { data } else { u64::MAX };
            let runs: Vec<(u64, u64)> = w.data.runs().collect();
            for (at, n) in runs {
                let n = n.min(free);
                if n > 0 {
                    w.data.remove(at, n);
                    w.busy += n;
                    out.push(part(at, n, BlockState::Free));
                }
                free -= n;
            }
            if takes_data(w.kind) {
                data = free;
            }
            let ready: Vec<u64> = w.slots.runs().flat_map(|(at, n)| at..at + n).collect();
            for at in ready.into_iter().take(usize::try_from(slots).unwrap_or(usize::MAX)) {
                w.slots.remove(at, 1);
                w.busy += 1;
                slots -= 1;
                out.push(part(at, slot_blocks, BlockState::MetaFree));
            }
        }
        out
    }
    /// What was taken out is with its group now, or else takeable again.
    pub fn end_return(&mut self, parts: &[ReturnedPart], given: bool) {
        for part in parts {
            let Some(w) = self.window(part.place) else { continue };
            let slot = part.state == BlockState::MetaFree;
            w.busy -= if slot { 1 } else { part.len };
            if !given && slot {
                w.slots.add(part.at, 1);
            } else if !given {
                w.data.add(part.at, part.len);
            }
        }
    }

    /// Takes up to `want` blocks in one run: (start, length). `None` only when nothing at all is
    /// takeable.
    pub fn claim(&mut self, want: u64, goal: Option<u64>) -> Option<(u64, u64)> {
        let (i, at, len) = self
            .after_goal(want, goal)
            .or_else(|| if want >= STREAM_BLOCKS { self.stream(want) } else { None })
            .or_else(|| self.small(want))
            .or_else(|| self.longest().map(|(i, at, n)| (i, at, n.min(want))))?;
        let w = self.windows.get_mut(i)?;
        w.data.remove(at, len);
        w.busy += len;
        w.data_cursor = at + len;
        let start = w.start + at;
        self.current = i;
        self.claims += 1;
        let goes_on = goal == Some(start);
        if goes_on {
            self.tails.retain(|t| *t != start);
        }
        if goes_on || want >= STREAM_BLOCKS {
            if self.tails.len() >= TAILS {
                self.tails.pop_front();
            }
            self.tails.push_back(start + len);
        }
        Some((start, len))
    }
    /// Takes up to `want` blocks in one run, in a window of a group for which `wanted` holds.
    pub fn claim_where(&mut self, want: u64, wanted: &dyn Fn(u64) -> bool) -> Option<(u64, u64)> {
        let open = self.windows.iter_mut().filter(|w| w.gives_data() && wanted(w.group));
        let runs = open.filter_map(|w| Some((w.data.longest()?, w)));
        let ((at, n), w) = runs.max_by_key(|((_, n), _)| *n)?;
        let len = n.min(want);
        w.data.remove(at, len);
        w.busy += len;
        self.claims += 1;
        Some((w.start + at, len))
    }
    /// Right at the goal, or a run that fits behind it in its window.
    fn after_goal(&self, want: u64, goal: Option<u64>) -> Option<(usize, u64, u64)> {
        let goal = goal?;
        let mut windows = self.windows.iter().enumerate();
        let (i, w) = windows.find(|(_, w)| w.holds(goal) && w.gives_data())?;
        let at = goal - w.start;
        if w.data.has(at) {
            let (_, n) = w.data.run_from(at)?;
            return Some((i, at, n.min(want)));
        }
        let (at, _) = w.data.run_of(at, want)?;
        (!self.is_tail(w.start + at)).then_some((i, at, want))
    }
    fn is_tail(&self, block: u64) -> bool {
        self.tails.contains(&block)
    }
    /// A new stream: in the longest run; in its middle when another stream grows into it.
    fn stream(&self, want: u64) -> Option<(usize, u64, u64)> {
        let (i, at, n) = self.longest()?;
        let w = self.windows.get(i)?;
        let (base, (rows, row)) = (w.start, w.rows);
        // Only what is as long as a row gains by it. If there may be parity: what begins with half
        // a row may go on as a stream, and a row that is written in parts costs reads each time.
        let least = if w.kind == SubpoolKind::Data { row / 2 } else { row };
        let worth = row > 0 && want >= least;
        let aligned = |from: u64| {
            let block = base + from;
            if worth { (block - rows).next_multiple_of(row) + rows - base } else { from }
        };
        let first = if self.is_tail(base + at) && n >= 2 * want { at + n / 2 } else { at };
        [aligned(first), first, at]
            .into_iter()
            .find(|&from| from + want <= at + n)
            .map(|from| (i, from, want))
    }
    /// The next run that fits; from its end when a stream grows into it.
    fn small(&self, want: u64) -> Option<(usize, u64, u64)> {
        let n = self.windows.len().max(1);
        let order = (0..n).map(|k| (self.current + k) % n);
        for i in order {
            let Some(w) = self.windows.get(i).filter(|w| w.gives_data()) else { continue };
            let found = w.data.run_of(w.data_cursor, want).or_else(|| w.data.run_of(0, want));
            if let Some((at, len)) = found {
                let from = if self.is_tail(w.start + at) { at + len - want } else { at };
                return Some((i, from, want));
            }
        }
        None
    }
    fn longest(&self) -> Option<(usize, u64, u64)> {
        let runs = self.windows.iter().enumerate().filter(|(_, w)| w.gives_data());
        runs.filter_map(|(i, w)| w.data.longest().map(|(at, n)| (i, at, n))).fold(
            None,
            |best: Option<(usize, u64, u64)>, run| match best {
                Some(b) if b.2 >= run.2 => best,
                _ => Some(run),
            },
        )
    }
    /// Claimed blocks (or freed ones that are durable) are takeable again.
    pub fn unclaim(&mut self, start: u64, len: u64) {
        if len > 0
            && let Some(w) = self.holder(start)
        {
            w.data.add(start - w.start, len);
            w.busy -= len;
        }
    }
    /// Claimed blocks, or a claimed slot (`len` 1), are used.
    pub fn settle(&mut self, start: u64, len: u64) {
        if len > 0
            && let Some(w) = self.holder(start)
        {
            w.busy -= len;
        }
    }

    /// Claims the next slot, near the last one.
    pub fn next_slot(&mut self) -> Option<u64> {
        let n = self.windows.len().max(1);
        let mut order = (0..n).map(|k| (self.current + k) % n).filter(|&i| {
            self.windows.get(i).is_some_and(|w| w.gives_slots() && w.slots.count() > 0)
        });
        // What was added may leave again, while there is nothing but file data in it.
        let added = |i: &usize| self.windows.get(*i).is_some_and(|w| w.added);
        let first = order.next()?;
        let i = if added(&first) { order.find(|i| !added(i)).unwrap_or(first) } else { first };
        let w = self.windows.get_mut(i)?;
        let (at, _) = w.slots.run_from(w.slot_cursor).or_else(|| w.slots.run_from(0))?;
        w.slots.remove(at, 1);
        w.busy += 1;
        w.slot_cursor = at + 1;
        let slot = w.start + at;
        self.claims += 1;
        Some(slot)
    }
    /// Claims another slot beside one that is covered by a reservation, if that leaves enough for all
    /// reservations.
    pub fn takeable_slot(&mut self) -> Option<u64> {
        if self.slots() >= self.slots_reserved { self.next_slot() } else { None }
    }
    /// A claimed slot is takeable again.
    pub fn put_slot(&mut self, slot: u64) {
        self.put_freed_slot(slot, 1);
    }
    /// A freed slot's transaction is durable; `busy` was counted up by `n`.
    pub fn put_freed_slot(&mut self, slot: u64, n: u64) {
        if let Some(w) = self.holder(slot) {
            w.slots.add(slot - w.start, 1);
            w.busy -= n;
        }
    }
    /// A run is about to be freed: if it lies wholly in an open window, the window stays until the
    /// free is durable, and (place, offset) is given.
    pub fn begin_free(&mut self, start: u64, len: u64) -> Option<(u64, u64)> {
        let found = self.place_of(start)?;
        let w = self.holder(start)?;
        if start + len > w.start + w.len {
            return None;
        }
        w.busy += len;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of 400 blocks from 1000 and from 5000, of these kinds, in which these runs are takeable.
    fn two_windows(kinds: [SubpoolKind; 2], runs: [(u64, u64); 2]) -> State {
        let mut state = State::new(2, FreeLog::new(1, 16));
        for ((place, start), (kind, (at, n))) in
            [(0, 1000), (1, 5000)].into_iter().zip(kinds.into_iter().zip(runs))
        {
            state.open_window(place, Extent { kind, start, len: 400, ..Extent::default() });
            state.add_free(place, at, n, BlockState::Free, 1);
        }
        state
    }
    const ALIKE: [SubpoolKind; 2] = [SubpoolKind::General; 2];

    #[test]
    fn a_stream_gets_the_longest_run_and_the_first_of_equals() {
        let claimed = |runs| two_windows(ALIKE, runs).claim(STREAM_BLOCKS, None);
        assert_eq!(claimed([(10, 100), (20, 200)]), Some((5020, 64)));
        assert_eq!(claimed([(10, 200), (20, 100)]), Some((1010, 64)));
        assert_eq!(claimed([(10, 100), (20, 100)]), Some((1010, 64)));
    }

    #[test]
    fn a_goal_leads_to_no_place_where_a_stream_goes_on() {
        let mut state = two_windows(ALIKE, [(100, 200), (0, 0)]);
        assert_eq!(state.claim(STREAM_BLOCKS, None), Some((1100, 64)));
        // Behind the goal the run begins that the stream grows into: the other end is taken.
        assert_eq!(state.claim(1, Some(1050)), Some((1299, 1)));
        assert_eq!(state.claim(1, Some(1164)), Some((1164, 1)), "the stream itself");
    }

    #[test]
    fn aligned_blocks_are_looked_for_in_all_windows() {
        let mut state = two_windows(ALIKE, [(0, 0), (0, 200)]);
        assert_eq!(state.claim_aligned(64, 64, |_| true), Some(5120));
        assert_eq!(state.claim_aligned(64, 64, |w| w.start == 1000), None);
    }

    #[test]
    fn blocks_for_data_only_become_no_slots() {
        let apart = [SubpoolKind::Metadata, SubpoolKind::Data];
        assert_eq!(two_windows(apart, [(0, 100), (0, 50)]).chunks_free(), 100);
        let mut shared = two_windows(ALIKE, [(0, 100), (0, 50)]);
        assert!(shared.reserve(30, 0, 0));
        assert_eq!(shared.chunks_free(), 120);
    }
}
