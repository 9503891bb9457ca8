//! Page fills, and the like, that come while a lock is being given up.
//!
//! Before a lock is given up, the kernel drops its pages under it. That waits for each page that the kernel has
//! locked until a request of its is answered: a *fill*. So the fill must be let in although the lock is being given
//! up. Whatever it has brought into the kernel must be dropped again. Programs may fill pages without a pause; and yet
//! this has to end. So
//! * a fill is let in only while pages are being dropped that it may hold up, and only after a while: dropping what
//!   nobody holds up takes less than that (what is written back brings nothing into the kernel, and need not wait);
//! * first all pages are dropped, then, in small pieces, only what was filled meanwhile;
//! * a page whose fill waits here has no contents in the kernel. It need not be dropped. So each thread of a program
//!   ends up waiting here, unless its fill comes in the moment in which that very piece is being dropped.
//!
//! If a piece is not dropped after a longer while, every fill is let in. The kernel may have locked more than
//! the page that a fill is about.

use std::time::Duration;

use crate::dlock::Time;

/// What the kernel holds pages for until it is answered. Bytes are (from, to).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Held {
    /// Pages get their contents.
    Filled(u64, u64),
    /// What programs have stored to pages is written.
    Written(u64, u64),
    /// The file is cut, or made longer: nothing is written back until that is done.
    Cut,
}

impl Held {
    fn bytes(self) -> (u64, u64) {
        match self {
            Self::Filled(from, to) | Self::Written(from, to) => (from, to),
            Self::Cut => ALL,
        }
    }
}

/// A request for which the kernel holds pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fill {
    /// When it came.
    pub since: Time,
    /// It is let in when pages have been dropped for so long, and it has waited for so long.
    pub patience: Duration,
    /// What for.
    pub held: Held,
}

/// What the kernel is to drop next. Bytes are (from, to).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToDrop {
    /// All pages and attributes.
    All,
    /// The pages of these bytes, and attributes.
    Pages(u64, u64),
    /// Attributes.
    Attributes,
}

const ALL: (u64, u64) = (0, u64::MAX);
/// Bytes that are dropped at a time, after the first time, ...
const PIECE: u64 = 256 << 10;
/// ... but of a long run this part (divisor): it may be mostly holes.
const PIECES: u64 = 16;
/// The kernel's pages are at least so large.
const PAGE: u64 = 4096;
/// Runs of bytes that are kept apart, at most.
const RUNS_MAX: usize = 1024;
/// After so many times its patience a fill is let in that is about something else.
const LONG: u32 = 32;

/// What the kernel may have of a lock that is being given up, and which fills are let in.
#[derive(Debug, Default)]
pub(super) struct Fills {
    /// What is to be dropped has been asked for: pages are dropped at all.
    asked: bool,
    /// What was filled and not dropped since.
    runs: Vec<(u64, u64)>,
    /// Attributes may have been sent since they were dropped.
    attributes: bool,
    /// What is being dropped, and since when.
    open: Option<((u64, u64), Time)>,
}

impl Fills {
    /// A demotion begins, or goes farther than before: the kernel may have anything.
    pub(super) fn begin() -> Self {
        Self { runs: vec![ALL], ..Self::default() }
    }
    /// Something is left to be dropped, if pages are dropped at all.
    pub(super) fn are_left(&self) -> bool {
        self.asked && (self.attributes || !self.runs.is_empty())
    }
    /// What is to be dropped now; fills that hold that up are let in until this is called again. `waiting`: the fills
    /// that wait.
    pub(super) fn next(
        &mut self,
        now: Time,
        waiting: impl Iterator<Item = Fill>,
    ) -> Option<ToDrop> {
        self.asked = true;
        self.open = None;
        let mut without: Vec<(u64, u64)> = waiting
            .filter_map(|fill| match fill.held {
                Held::Filled(from, to) => Some((from, to)),
                Held::Written(..) | Held::Cut => None,
            })
            .collect();
        merge(&mut without);
        while let Some(run) = self.runs.pop() {
            if run == ALL {
                self.runs.clear();
                self.attributes = false;
                self.open = Some((ALL, now));
                return Some(ToDrop::All);
            }
            if let Some((from, to)) = self.first_piece(run, &without) {
                self.attributes = false;
                self.open = Some(((from, to), now));
                return Some(ToDrop::Pages(from, to));
            }
        }
        std::mem::take(&mut self.attributes).then(|| {
            self.open = Some(((0, 0), now));
            ToDrop::Attributes
        })
    }
    /// The first piece of a run that is not in `without`; what is behind it stays.
    fn first_piece(
        &mut self,
        (mut from, to): (u64, u64),
        without: &[(u64, u64)],
    ) -> Option<(u64, u64)> {
        let first = without.partition_point(|w| w.1 <= from);
        let mut next = without.get(first..).unwrap_or_default().iter();
        let mut end = to;
        // They do not touch one another.
        if let Some(w) = next.next() {
            if w.0 <= from {
                from = w.1;
                end = next.next().map_or(to, |w| w.0.min(to));
            } else {
                end = w.0.min(to);
            }
        }
        if from >= to {
            return None;
        }
        let end = end.min(from.saturating_add(PIECE.max((to - from) / PIECES)));
        if end < to {
            self.runs.push((end, to));
        }
        Some((from, end))
    }
    /// All fills are let in from now on, or none until [`Self::next`].
    pub(super) fn open_all(&mut self, now: Option<Time>) {
        self.open = now.map(|now| (ALL, now));
    }
    /// Whether a fill may hold up what is being dropped.
    pub(super) fn is_in_the_way(&self, fill: &Fill) -> bool {
        let (from, to) = fill.held.bytes();
        self.open.is_some_and(|(open, _)| from < open.1 && open.0 < to)
    }
    /// When a fill is let in, if nothing changes until then.
    pub(super) fn admits_at(&self, fill: &Fill) -> Option<Time> {
        let (_, since) = self.open?;
        let times = match fill.held {
            _ if !self.is_in_the_way(fill) => LONG,
            Held::Written(..) => 0,
            Held::Filled(..) | Held::Cut => 1,
        };
        Some(fill.since.max(since) + fill.patience * times)
    }
    /// A fill was let in.
    pub(super) fn admitted(&mut self, fill: &Fill) {
        match fill.held {
            Held::Filled(from, to) => {
                let to = to.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
                self.runs.push((from / PAGE * PAGE, to));
                if self.runs.len() > RUNS_MAX {
                    merge(&mut self.runs);
                    halve(&mut self.runs);
                }
            }
            // What was written is in pages that were filled.
            Held::Written(..) => {}
            Held::Cut => self.attributes = true,
        }
    }
}

/// Makes fewer of many runs, in order: larger ones.
fn halve(runs: &mut Vec<(u64, u64)>) {
    if runs.len() > RUNS_MAX / 2 {
        let pairs = runs.chunks(2).filter_map(|pair| Some((pair.first()?.0, pair.last()?.1)));
        *runs = pairs.collect();
    }
}

/// Puts runs in order, those that touch together.
fn merge(runs: &mut Vec<(u64, u64)>) {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let touches = next.0 <= run.1;
        if touches {
            run.1 = run.1.max(next.1);
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn fill(from: u64, to: u64) -> Fill {
        Fill { since: Time::ZERO, patience: MS, held: Held::Filled(from, to) }
    }
    fn at(n: u32) -> Time {
        Time::ZERO + MS * n
    }
    fn nothing() -> impl Iterator<Item = Fill> {
        std::iter::empty()
    }

    #[test]
    fn all_is_dropped_first_and_then_what_was_filled_meanwhile_in_pieces() {
        let mut fills = Fills::begin();
        assert!(!fills.are_left(), "of a directory, say, no pages are dropped");
        assert_eq!(fills.admits_at(&fill(0, PAGE)), None);
        assert_eq!(fills.next(at(5), nothing()), Some(ToDrop::All));
        assert_eq!(fills.admits_at(&fill(0, PAGE)), Some(at(6)));
        for one in
            [fill(10 * PIECE + 1, 12 * PIECE), fill(0, PAGE), fill(12 * PIECE, 12 * PIECE + 1)]
        {
            fills.admitted(&one);
        }
        assert!(fills.are_left());
        let mut dropped = Vec::new();
        while let Some(ToDrop::Pages(from, to)) = fills.next(at(7), nothing()) {
            assert!(to - from <= PIECE);
            assert_eq!(fills.admits_at(&fill(to - 1, to + PAGE)), Some(at(8)));
            assert_eq!(fills.admits_at(&fill(to, to + PAGE)), Some(at(7 + LONG)));
            dropped.push((from, to));
        }
        merge(&mut dropped);
        assert_eq!(dropped, [(0, PAGE), (10 * PIECE, 12 * PIECE + PAGE)]);
        assert!(!fills.are_left() && fills.admits_at(&fill(0, PAGE)).is_none());
    }

    #[test]
    fn what_is_about_to_be_filled_is_not_dropped() {
        let mut fills = Fills::begin();
        fills.next(at(0), nothing());
        fills.admitted(&fill(0, 10 * PAGE));
        let waiting =
            || [fill(2 * PAGE, 3 * PAGE), fill(0, PAGE), fill(9 * PAGE, 20 * PAGE)].into_iter();
        assert_eq!(fills.next(at(1), waiting()), Some(ToDrop::Pages(PAGE, 2 * PAGE)));
        assert_eq!(fills.next(at(1), waiting()), Some(ToDrop::Pages(3 * PAGE, 9 * PAGE)));
        assert_eq!(fills.next(at(1), waiting()), None);
        // What is written back has contents.
        fills.admitted(&fill(0, PAGE));
        let written = Fill { held: Held::Written(0, PAGE), ..fill(0, PAGE) };
        assert_eq!(fills.next(at(1), [written].into_iter()), Some(ToDrop::Pages(0, PAGE)));
        assert_eq!(fills.admits_at(&written), Some(at(1)));
    }

    #[test]
    fn a_file_that_was_cut_has_new_attributes_but_no_pages() {
        let mut fills = Fills::begin();
        fills.next(at(0), nothing());
        let cut = Fill { held: Held::Cut, ..fill(0, 0) };
        assert_eq!(fills.admits_at(&cut), Some(at(1)));
        fills.admitted(&cut);
        assert!(fills.are_left());
        assert_eq!(fills.next(at(1), [cut].into_iter()), Some(ToDrop::Attributes));
        assert_eq!(fills.next(at(1), nothing()), None);
    }

    #[test]
    fn many_runs_are_kept_as_fewer_larger_ones() {
        let mut fills = Fills::begin();
        fills.next(at(0), nothing());
        let filled = |n: u64| (n * 7 % 9001 * 2 * PAGE, (n * 7 % 9001 * 2 + 1) * PAGE);
        for (from, to) in (0..9001).map(filled) {
            fills.admitted(&fill(from, to));
            assert!(fills.runs.len() <= RUNS_MAX);
        }
        for (from, to) in (0..9001).map(filled) {
            assert!(fills.runs.iter().any(|run| run.0 <= from && to <= run.1), "{from}");
        }
    }

    #[test]
    fn a_run_over_holes_of_any_size_is_dropped_in_few_pieces() {
        let mut fills = Fills::begin();
        fills.next(at(0), nothing());
        let far = |n: u64| n << 48;
        for n in 0..5000 {
            fills.admitted(&fill(far(n), far(n) + PAGE));
        }
        let dropped = std::iter::from_fn(|| fills.next(at(1), nothing())).count();
        assert!(dropped < 300_000, "{dropped}");
    }

    #[test]
    fn while_an_inode_is_let_go_every_fill_is_let_in() {
        let mut fills = Fills::begin();
        fills.open_all(Some(at(3)));
        assert!(!fills.are_left());
        assert_eq!(fills.admits_at(&fill(8 * PAGE, 9 * PAGE)), Some(at(4)));
        fills.open_all(None);
        assert_eq!(fills.admits_at(&fill(8 * PAGE, 9 * PAGE)), None);
    }
}
