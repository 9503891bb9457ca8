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
        if let Some(w) = self.holder(start) {
            w.data.add(start - w.start, len);
            w.busy -= len;
        }
    }
    /// Claimed blocks, or a claimed slot (`len` 1), are used.
    pub fn settle(&mut self, start: u64, len: u64) {
        if let Some(w) = self.holder(start) {
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
    use super::super::log::Freed;
    use super::*;

    /// Windows of 400 blocks from 1000, 5000, 9000 and so on, of these kinds, each of a group of its
    /// own (0, 1, ...), in which these runs are takeable.
    fn windows_of(windows: &[(SubpoolKind, (u64, u64))]) -> State {
        let mut state = State::new(windows.len() as u64, FreeLog::new(1, 16));
        for (place, &(kind, (at, n))) in (0..).zip(windows) {
            let start = 1000 + 4000 * place;
            let extent = Extent { group: place, kind, start, len: 400, ..Extent::default() };
            state.open_window(place, extent);
            state.add_free(place, at, n, BlockState::Free, 1);
        }
        state
    }
    fn two_windows(kinds: [SubpoolKind; 2], runs: [(u64, u64); 2]) -> State {
        windows_of(&[(kinds[0], runs[0]), (kinds[1], runs[1])])
    }
    /// One window of 400 blocks from 1000; its rows, and what is takeable in it.
    fn window_with_rows(kind: SubpoolKind, rows: (u64, u64), (at, n): (u64, u64)) -> State {
        let mut state = State::new(1, FreeLog::new(1, 16));
        let extent = Extent { kind, start: 1000, len: 400, rows, ..Extent::default() };
        state.open_window(0, extent);
        state.add_free(0, at, n, BlockState::Free, 1);
        state
    }
    fn add_slots(state: &mut State, place: u64, at: u64, n: u64) {
        state.add_free(place, at, n, BlockState::MetaFree, 1);
    }
    /// Data blocks, slots and places of the log that may be reserved.
    fn free(state: &State) -> (u64, u64, u64) {
        (state.data_free(), state.slots_free(), state.log_free())
    }
    fn busy(state: &State) -> Vec<u64> {
        state.windows.iter().map(|w| w.busy).collect()
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
        assert_eq!(busy(&state), [0, 64]);
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

    #[test]
    fn all_is_reserved_or_nothing() {
        let mut state = two_windows(ALIKE, [(0, 100), (0, 50)]);
        add_slots(&mut state, 1, 60, 3);
        assert_eq!(free(&state), (150, 3, 16));
        for (data, slots, frees) in [(151, 3, 16), (150, 4, 16), (150, 3, 17)] {
            assert!(!state.reserve(data, slots, frees));
            assert_eq!(free(&state), (150, 3, 16));
        }
        assert!(state.reserve(150, 3, 16));
        assert_eq!(free(&state), (0, 0, 0));
        assert!(state.reserve(0, 0, 0));
        state.unreserve(40, 2, 5);
        assert_eq!(free(&state), (40, 2, 5));
    }

    #[test]
    fn what_dirty_data_has_reserved_is_counted_as_used() {
        let mut state = two_windows(ALIKE, [(0, 100), (0, 50)]);
        state.deltas = Deltas { free: -5, inodes: 2, meta: 3 };
        assert!(state.reserve(30, 0, 0));
        assert_eq!(state.shown_deltas(), Deltas { free: -35, inodes: 2, meta: 3 });
    }

    #[test]
    fn parts_of_a_run_are_found_in_each_open_window() {
        let mut state = two_windows(ALIKE, [(0, 0), (0, 0)]);
        assert_eq!(state.overlaps(900, 200), [(0, 0, 100, 100)]);
        assert_eq!(state.overlaps(1100, 50), [(0, 100, 0, 50)]);
        assert_eq!(state.overlaps(1390, 4000), [(0, 390, 0, 10), (1, 0, 3610, 390)]);
        assert!(state.overlaps(1400, 3600).is_empty() && state.overlaps(990, 10).is_empty());
        state.windows[0].closing = true;
        assert_eq!(state.overlaps(1390, 4000), [(1, 0, 3610, 390)]);
    }

    #[test]
    fn a_run_is_freed_into_the_window_that_holds_all_of_it() {
        let mut state = two_windows(ALIKE, [(0, 0), (0, 0)]);
        assert_eq!(state.begin_free(1390, 11), None);
        assert_eq!(state.begin_free(999, 2), None);
        assert_eq!(busy(&state), [0, 0]);
        assert_eq!(state.begin_free(1390, 10), Some((0, 390)));
        assert_eq!(state.begin_free(5000, 400), Some((1, 0)));
        assert_eq!(busy(&state), [10, 400], "the windows stay until the frees are durable");
    }

    #[test]
    fn busy_windows_do_not_close() {
        let mut state = two_windows(ALIKE, [(0, 100), (0, 50)]);
        assert_eq!(state.claim(1, Some(1000)), Some((1000, 1)));
        assert!(state.close_windows(|_| false).is_empty());
        assert_eq!(state.close_windows(|_| true), [1]);
        assert!(state.close_windows(|_| true).is_empty(), "one closes already, and one is busy");
        assert!(state.close_idle().is_empty());
        state.settle(1000, 1);
        assert_eq!(state.close_idle(), [0]);
    }

    #[test]
    fn windows_close_only_while_others_hold_what_is_reserved() {
        for (data, closed) in [(100, vec![1]), (101, vec![])] {
            let mut state = two_windows(ALIKE, [(0, 100), (0, 50)]);
            assert!(state.reserve(data, 0, 0));
            assert_eq!(state.close_of(|group| group == 1), closed);
        }
        for (slots, closed) in [(3, Some(1)), (4, None)] {
            let mut state = two_windows(ALIKE, [(0, 100), (0, 50)]);
            add_slots(&mut state, 0, 200, 3);
            add_slots(&mut state, 1, 200, 4);
            assert!(state.reserve(0, slots, 0));
            assert_eq!(state.close_poorest(|_| true), closed);
        }
        // What is for metadata is not reserved as data.
        let mut apart =
            two_windows([SubpoolKind::Metadata, SubpoolKind::Data], [(0, 100), (0, 200)]);
        assert!(apart.reserve(200, 0, 0));
        assert_eq!(apart.close_idle(), [0]);
        let mut all = two_windows(ALIKE, [(0, 100), (0, 50)]);
        assert_eq!(all.close_idle(), [1, 0], "with nothing reserved all close");
    }

    #[test]
    fn the_window_with_the_least_data_and_slots_closes_first() {
        let poorest = |data: [u64; 2], slots: [u64; 2]| {
            let mut state = two_windows(ALIKE, data.map(|n| (0, n)));
            add_slots(&mut state, 0, 200, slots[0]);
            add_slots(&mut state, 1, 200, slots[1]);
            state.close_poorest(|_| true)
        };
        assert_eq!(poorest([10, 12], [5, 0]), Some(1));
        assert_eq!(poorest([3, 8], [3, 1]), Some(0));
    }

    #[test]
    fn the_sort_that_has_more_windows_gives_one_up() {
        const M: (SubpoolKind, (u64, u64)) = (SubpoolKind::Metadata, (0, 10));
        const D: (SubpoolKind, (u64, u64)) = (SubpoolKind::Data, (0, 20));
        let closed = |windows: &[_], slots| windows_of(windows).close_for(slots);
        assert_eq!(closed(&[D, M, M, M], true), Some(1));
        assert_eq!(closed(&[D, M, M, M], false), Some(1));
        assert_eq!(closed(&[M, D, D, D], false), Some(1));
        assert_eq!(closed(&[M, D, D, D], true), Some(1));
        // Half of them is not more.
        assert_eq!(closed(&[D, D, M, M], true), Some(0));
        assert_eq!(closed(&[D, D, M, M], false), Some(2));
        assert_eq!(closed(&[D, M], true), Some(0));
        // None of the sort that has more can go.
        let mut reserved = windows_of(&[D, M, D, D]);
        assert!(reserved.reserve(60, 0, 0));
        assert_eq!(reserved.close_for(false), Some(1));
        // Windows for both are all alike.
        const BOTH: (SubpoolKind, (u64, u64)) = (SubpoolKind::General, (0, 30));
        assert_eq!(closed(&[BOTH, BOTH], true), Some(0));
        assert_eq!(closed(&[BOTH, BOTH], false), Some(0));
    }

    #[test]
    fn a_node_has_something_to_give_while_anything_is_not_reserved() {
        let nothing = || two_windows(ALIKE, [(0, 0), (0, 0)]);
        assert!(!nothing().has_takeable());
        let mut data = two_windows(ALIKE, [(0, 1), (0, 0)]);
        assert!(data.has_takeable());
        assert!(data.reserve(1, 0, 0));
        assert!(!data.has_takeable());
        let mut slots = nothing();
        add_slots(&mut slots, 0, 0, 1);
        assert!(slots.has_takeable());
        assert!(slots.reserve(0, 1, 0));
        assert!(!slots.has_takeable());
        let mut freed = nothing();
        freed.log.add(Freed { start: 1, len: 1, state: BlockState::Free });
        assert!(freed.has_takeable());
        let for_metadata = |n| windows_of(&[(SubpoolKind::Metadata, (0, n))]);
        assert!(for_metadata(1).has_takeable());
        assert!(!for_metadata(0).has_takeable());
    }

    /// (window, offset there, first block, blocks, state)
    fn told(parts: &[ReturnedPart]) -> Vec<(u64, u64, u64, u64, BlockState)> {
        parts.iter().map(|p| (p.place, p.at, p.start, p.len, p.state)).collect()
    }

    #[test]
    fn what_nobody_has_reserved_is_taken_out_and_may_come_back() {
        let mut state = two_windows(ALIKE, [(10, 100), (20, 50)]);
        state.add_free(1, 100, 5, BlockState::Free, 2);
        state.add_free(0, 200, 4, BlockState::MetaFree, 2);
        state.add_free(1, 300, 2, BlockState::MetaFree, 2);
        assert!(state.reserve(35, 1, 0));
        let parts = state.begin_return(2);
        let expected = [
            (0, 10, 1010, 100, BlockState::Free),
            (0, 200, 1200, 2, BlockState::MetaFree),
            (0, 202, 1202, 2, BlockState::MetaFree),
            (1, 20, 5020, 20, BlockState::Free),
        ];
        assert_eq!(told(&parts), expected);
        assert_eq!((free(&state), busy(&state)), ((0, 0, 16), vec![102, 20]));
        state.end_return(&parts, false);
        assert_eq!((free(&state), busy(&state)), ((120, 2, 16), vec![0, 0]));
        let parts = state.begin_return(2);
        assert_eq!(told(&parts), expected);
        state.end_return(&parts, true);
        assert_eq!((free(&state), busy(&state)), ((0, 0, 16), vec![0, 0]));
        state.unreserve(35, 1, 0);
        assert_eq!(free(&state), (35, 1, 16), "what was reserved has stayed");
    }

    #[test]
    fn blocks_for_metadata_are_given_whatever_data_is_reserved() {
        let apart = [SubpoolKind::Metadata, SubpoolKind::Data];
        let mut state = two_windows(apart, [(0, 100), (0, 50)]);
        assert!(state.reserve(20, 0, 0));
        let expected = [(0, 0, 1000, 100, BlockState::Free), (1, 0, 5000, 30, BlockState::Free)];
        assert_eq!(told(&state.begin_return(1)), expected);
    }

    #[test]
    fn a_claim_in_certain_groups_gets_their_longest_run_and_nothing_elsewhere() {
        let mut state = two_windows(ALIKE, [(10, 100), (20, 50)]);
        state.add_free(0, 200, 150, BlockState::Free, 1);
        assert_eq!(state.claim_where(5, &|group| group == 0), Some((1200, 5)));
        assert_eq!(state.claim_where(30, &|group| group == 1), Some((5020, 30)));
        assert_eq!(state.claim_where(30, &|group| group == 1), Some((5050, 20)));
        assert_eq!(state.claim_where(30, &|group| group == 1), None);
        assert_eq!((busy(&state), state.claims), (vec![5, 50], 3));
        let mut metadata = windows_of(&[(SubpoolKind::Metadata, (0, 10))]);
        assert_eq!(metadata.claim_where(1, &|_| true), None);
    }

    #[test]
    fn small_claims_go_on_in_the_window_and_at_the_place_of_the_last() {
        let mut state = two_windows(ALIKE, [(0, 20), (0, 50)]);
        assert_eq!(state.claim(30, None), Some((5000, 30)));
        assert_eq!(state.claim(5, None), Some((5030, 5)));
        assert_eq!((free(&state).0, busy(&state)), (35, vec![0, 35]));
        state.unclaim(5000, 30);
        assert_eq!((free(&state).0, busy(&state)), (65, vec![0, 5]));
        assert_eq!(state.windows[1].data.runs().collect::<Vec<_>>(), [(0, 30), (35, 15)]);
        assert_eq!(state.claim(5, None), Some((5035, 5)));
        assert_eq!(state.claim(1, Some(1000)), Some((1000, 1)));
        assert_eq!(state.claim(1, Some(5000)), Some((5000, 1)), "in the goal's window");
        assert_eq!(state.claims, 5);
    }

    #[test]
    fn ends_of_streams_are_remembered_up_to_a_bound() {
        let mut state = two_windows(ALIKE, [(0, 400), (0, 0)]);
        assert_eq!(state.claim(STREAM_BLOCKS, None), Some((1000, 64)));
        assert_eq!(state.claim(1, Some(1064)), Some((1064, 1)));
        assert_eq!(state.tails, [1065], "a stream has one end");
        // In the middle of what is left.
        assert_eq!(state.claim(STREAM_BLOCKS, None), Some((1232, 64)));
        assert_eq!(state.tails, [1065, 1296]);
        let mut many = windows_of(&[(SubpoolKind::General, (0, 64)); TAILS + 2]);
        for _ in 0..TAILS + 2 {
            many.claim(STREAM_BLOCKS, None).unwrap();
        }
        assert_eq!(many.tails.len(), TAILS);
        assert!(!many.tails.contains(&1064) && !many.tails.contains(&5064), "the oldest go");
    }

    #[test]
    fn a_second_stream_begins_where_both_have_room() {
        let second = |n: u64| {
            let mut state = two_windows(ALIKE, [(100, 64 + n), (0, 0)]);
            assert_eq!(state.claim(STREAM_BLOCKS, None), Some((1100, 64)));
            state.claim(STREAM_BLOCKS, None)
        };
        assert_eq!(second(128), Some((1228, 64)));
        assert_eq!(second(127), Some((1164, 64)));
    }

    #[test]
    fn what_is_as_long_as_a_row_begins_with_one() {
        let claimed =
            |kind, row, want| window_with_rows(kind, (900, row), (30, 370)).claim(want, None);
        // Rows begin at 900, 1028, 1156 and so on.
        assert_eq!(claimed(SubpoolKind::General, 128, 127), Some((1030, 127)));
        assert_eq!(claimed(SubpoolKind::General, 128, 128), Some((1156, 128)));
        // Where parity may be, half a row is enough.
        assert_eq!(claimed(SubpoolKind::Data, 254, 126), Some((1030, 126)));
        assert_eq!(claimed(SubpoolKind::Data, 254, 127), Some((1154, 127)));
        assert_eq!(claimed(SubpoolKind::Data, 0, 100), Some((1030, 100)), "there are no rows");
        // No whole row is left.
        assert_eq!(claimed(SubpoolKind::General, 300, 300), Some((1030, 300)));
    }

    #[test]
    fn slots_go_on_behind_the_last_and_stay_out_of_what_was_added() {
        let mut state = two_windows(ALIKE, [(0, 10), (0, 100)]);
        add_slots(&mut state, 0, 300, 2);
        add_slots(&mut state, 1, 300, 3);
        assert_eq!(state.claim(STREAM_BLOCKS, None), Some((5000, 64)));
        assert_eq!(state.next_slot(), Some(5300), "in the window of the last claim");
        state.put_slot(5300);
        assert_eq!(state.next_slot(), Some(5301));
        assert_eq!((busy(&state), state.claims), (vec![0, 65], 3));
        state.windows[1].added = true;
        assert_eq!(state.next_slot(), Some(1300));
        assert_eq!(state.next_slot(), Some(1301));
        assert_eq!(state.next_slot(), Some(5302), "there are no others");
        assert_eq!(state.next_slot(), Some(5300));
        assert_eq!(state.next_slot(), None);
        let mut only = two_windows(ALIKE, [(0, 0), (0, 0)]);
        add_slots(&mut only, 1, 7, 1);
        assert_eq!(only.next_slot(), Some(5007), "in whichever window they are");
    }

    #[test]
    fn a_slot_that_another_has_reserved_is_not_tried() {
        let mut state = two_windows(ALIKE, [(0, 0), (0, 0)]);
        add_slots(&mut state, 0, 0, 3);
        assert!(state.reserve(0, 2, 0));
        assert_eq!(state.next_slot(), Some(1000));
        assert_eq!(state.takeable_slot(), Some(1001), "one is left for the other");
        assert_eq!(state.takeable_slot(), None);
    }
}
