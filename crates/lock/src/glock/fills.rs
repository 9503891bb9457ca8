//! Page fills, and the like, that come while a lock is being given up.
//!
//! Before a lock is given up, the kernel drops its pages under it. It cannot drop a page that it has locked until a
//! request of its own for that page is answered: a *fill*. So the fill must be let in although the lock is being given
//! up, and what it has brought into the kernel must be dropped again. This has to end although programs may fill pages
//! without a pause. So
//! * a fill is let in only while pages are being dropped that it may hold up, and only after a while: dropping what
//!   nobody holds up takes less than that (what is written back brings nothing into the kernel, and need not wait);
//! * first all pages are dropped, then, in small pieces, only what was filled meanwhile, the oldest first;
//! * a page whose fill waits, here or for a thread, has no contents in the kernel. It need not be dropped. So each
//!   thread of a program ends up waiting, unless its fill comes in the moment in which that very piece is being
//!   dropped.
//!
//! The kernel may have locked more than the page that a fill is about. So if a piece is not dropped after a longer
//! while, although no fill of it is being answered, fills nearby are let in, too, and at last every fill.

use std::collections::VecDeque;
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
    /// It changes what is under the lock.
    fn changes(self) -> bool {
        matches!(self, Self::Written(..) | Self::Cut)
    }
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
/// ... and of all runs together this part.
const PIECES_ALL: u64 = 4096;
/// The kernel's pages are at least so large.
const PAGE: u64 = 4096;
/// Runs of bytes that are kept apart, at most.
const RUNS_MAX: usize = 1024;
/// The kernel locks so many bytes at a time, at most: the largest folio.
const LOCKED_MAX: u64 = 2 << 20;
/// After so many times its patience a fill is let in that is about other pages so near, ...
const LONG: u32 = 32;
/// ... or about any.
const VERY_LONG: u32 = 1000;

/// Whether some byte is in both; bytes are (from, to).
pub fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// Whether the kernel may have locked pages of both at once (bytes from, to): it locks a folio, which is at most 2 MiB
/// and stands at a multiple of its size.
pub fn may_be_locked_together(one: (u64, u64), other: (u64, u64)) -> bool {
    let folios = |(from, to): (u64, u64)| (from / LOCKED_MAX, to.div_ceil(LOCKED_MAX));
    overlap(folios(one), folios(other))
}

/// Which fills are let in that are of other pages than those that are being dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    None,
    Near,
    Any,
}

/// What is being dropped.
#[derive(Debug, Clone, Copy)]
struct Open {
    bytes: (u64, u64),
    since: Time,
    /// For so long, until `quiet_since`, no fill of that or near it was being answered ...
    quiet: Duration,
    /// ... and since then; `None`: one is.
    quiet_since: Option<Time>,
    others: Others,
}

impl Open {
    fn overlaps(&self, bytes: (u64, u64)) -> bool {
        overlap(self.bytes, bytes)
    }
    fn is_near(&self, bytes: (u64, u64)) -> bool {
        may_be_locked_together(self.bytes, bytes)
    }
    /// When a fill is let in, if nothing changes until then.
    fn admits_at(&self, fill: &Fill) -> Time {
        let (bytes, soon) = (fill.held.bytes(), fill.since.max(self.since));
        if matches!(fill.held, Held::Written(..)) {
            return soon;
        }
        let (near, patience) = (self.is_near(bytes), fill.patience);
        if self.overlaps(bytes) || self.others == Others::Any || near && self.others == Others::Near
        {
            return soon + patience;
        }
        let after_very_long = soon.max(self.since + patience * VERY_LONG);
        if !near {
            return after_very_long;
        }
        let left = (patience * LONG).saturating_sub(self.quiet);
        let after_long = self.quiet_since.map(|since| soon.max(since + left));
        after_long.map_or(after_very_long, |at| at.min(after_very_long))
    }
}

/// What the kernel may have of a lock that is being given up, and which fills are let in.
#[derive(Debug, Default)]
pub(super) struct Fills {
    /// What is to be dropped has been asked for: pages are dropped at all.
    asked: bool,
    /// What was filled and not dropped since, the oldest first.
    runs: VecDeque<(u64, u64)>,
    /// Attributes may have been sent since they were dropped.
    attributes: bool,
    open: Option<Open>,
    /// Fills that were let in and have not ended.
    under_way: Vec<Held>,
    /// One that was let in may have changed something after the call to the file system began to make all stable.
    changed: bool,
}

impl Fills {
    /// A demotion begins, or goes farther than before: the kernel may have anything.
    pub(super) fn begin(&mut self) {
        let under_way = std::mem::take(&mut self.under_way);
        *self = Self { runs: [ALL].into(), under_way, ..Self::default() };
    }
    /// The file system is called, and nobody uses the lock: it makes all stable that was changed until now.
    pub(super) fn call_begins(&mut self) {
        self.changed = false;
    }
    /// Something is left to be dropped, if pages are dropped at all, or to be made stable.
    pub(super) fn are_left(&self) -> bool {
        self.changed || self.asked && (self.attributes || !self.runs.is_empty())
    }
    /// What is to be dropped now; fills that hold that up are let in until this is called again. `waiting`: the bytes
    /// of pages whose fills wait.
    pub(super) fn next(&mut self, now: Time, mut waiting: Vec<(u64, u64)>) -> Option<ToDrop> {
        self.asked = true;
        self.open = None;
        for (from, to) in &mut waiting {
            (*from, *to) = (from.div_ceil(PAGE).saturating_mul(PAGE), *to / PAGE * PAGE);
        }
        waiting.retain(|(from, to)| from < to);
        merge(&mut waiting);
        while let Some(run) = self.runs.pop_front() {
            if run == ALL {
                self.runs.clear();
                self.attributes = false;
                self.open_for(ALL, now);
                return Some(ToDrop::All);
            }
            if let Some((from, to)) = self.first_piece(run, &waiting) {
                self.attributes = false;
                self.open_for((from, to), now);
                return Some(ToDrop::Pages(from, to));
            }
        }
        if std::mem::take(&mut self.attributes) {
            self.open_for((0, 0), now);
            return Some(ToDrop::Attributes);
        }
        // What has ended comes before what is made stable now.
        self.changed = self.under_way.iter().any(|held| held.changes());
        None
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
        let all = self.runs.iter().fold(to - from, |all, run| all.saturating_add(run.1 - run.0));
        let piece = PIECE.max((to - from) / PIECES).max(all / PIECES_ALL);
        let end = end.min(from.saturating_add(piece));
        if end < to {
            self.runs.push_front((end, to));
        }
        Some((from, end))
    }
    fn open_for(&mut self, bytes: (u64, u64), now: Time) {
        let (quiet, others) = (Duration::ZERO, Others::None);
        let mut open = Open { bytes, since: now, quiet, quiet_since: None, others };
        let is_quiet = self.under_way.iter().all(|held| !open.is_near(held.bytes()));
        open.quiet_since = is_quiet.then_some(now);
        self.open = Some(open);
    }
    /// All fills are let in from now on, or none until [`Self::next`]. None if no pages are dropped: then none is in
    /// the way of anything.
    pub(super) fn open_all(&mut self, now: Option<Time>) {
        self.open = None;
        if let Some(now) = now.filter(|_| self.asked) {
            self.open_for(ALL, now);
        }
    }
    /// Whether a fill may hold up what is being dropped, or be let in for that soon.
    pub(super) fn may_be_in_the_way(&self, fill: &Fill) -> bool {
        self.open.is_some_and(|open| open.is_near(fill.held.bytes()))
            || self.open.is_some() && matches!(fill.held, Held::Written(..))
    }
    /// When a fill is let in, if nothing changes until then.
    pub(super) fn admits_at(&self, fill: &Fill) -> Option<Time> {
        Some(self.open?.admits_at(fill))
    }
    /// A fill is let in. Returns whether more fills than before are let in for that.
    pub(super) fn admitted(&mut self, fill: &Fill, now: Time) -> bool {
        let bytes = fill.held.bytes();
        let mut widens = false;
        if let Some(open) = &mut self.open {
            let near = open.is_near(bytes);
            if let Some(since) = open.quiet_since.take_if(|_| near) {
                open.quiet += now.saturating_sub(since);
            }
            let others = match fill.held {
                Held::Written(..) => open.others,
                _ if open.overlaps(bytes) || open.others == Others::Any => open.others,
                _ if near => Others::Near,
                _ => Others::Any,
            };
            widens = others != open.others;
            open.others = others;
        }
        self.under_way.push(fill.held);
        self.changed |= fill.held.changes();
        match fill.held {
            Held::Filled(from, to) => {
                let to = to.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
                self.runs.push_back((from / PAGE * PAGE, to));
                if self.runs.len() > RUNS_MAX {
                    let mut runs = Vec::from(std::mem::take(&mut self.runs));
                    merge(&mut runs);
                    halve(&mut runs);
                    self.runs = runs.into();
                }
            }
            // What was written is in pages that were filled.
            Held::Written(..) => {}
            Held::Cut => self.attributes = true,
        }
        widens
    }
    /// Pages are being dropped: some fills are let in.
    pub(super) fn are_let_in(&self) -> bool {
        self.open.is_some()
    }
    /// Some that were let in have not ended.
    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }
    /// One that was let in has ended.
    pub(super) fn ended(&mut self, held: Held) {
        if let Some(at) = self.under_way.iter().position(|other| *other == held) {
            self.under_way.swap_remove(at);
        }
    }
    /// A use of the lock has ended. Returns whether since then no fill near what is being dropped is being answered.
    pub(super) fn note_end(&mut self, now: Time) -> bool {
        let Some(open) = &mut self.open else { return false };
        let is_quiet = self.under_way.iter().all(|held| !open.is_near(held.bytes()));
        let begins = is_quiet && open.quiet_since.is_none();
        if begins {
            open.quiet_since = Some(now);
        }
        begins
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
    fn begun() -> Fills {
        let mut fills = Fills::default();
        fills.begin();
        fills
    }

    #[test]
    fn all_is_dropped_first_and_then_what_was_filled_meanwhile_in_pieces() {
        let mut fills = begun();
        assert!(!fills.are_left(), "of a directory, say, no pages are dropped");
        assert_eq!(fills.admits_at(&fill(0, PAGE)), None);
        assert_eq!(fills.next(at(5), Vec::new()), Some(ToDrop::All));
        assert_eq!(fills.admits_at(&fill(0, PAGE)), Some(at(6)));
        for one in
            [fill(10 * PIECE + 1, 12 * PIECE), fill(0, PAGE), fill(12 * PIECE, 12 * PIECE + 1)]
        {
            fills.admitted(&one, at(5));
        }
        assert!(fills.are_left());
        let mut dropped = Vec::new();
        while let Some(ToDrop::Pages(from, to)) = fills.next(at(7), Vec::new()) {
            assert!(to - from <= PIECE);
            assert_eq!(fills.admits_at(&fill(to - 1, to + PAGE)), Some(at(8)));
            assert_eq!(fills.admits_at(&fill(to + LOCKED_MAX, u64::MAX)), Some(at(7 + VERY_LONG)));
            dropped.push((from, to));
        }
        merge(&mut dropped);
        assert_eq!(dropped, [(0, PAGE), (10 * PIECE, 12 * PIECE + PAGE)]);
        assert!(!fills.are_left() && fills.admits_at(&fill(0, PAGE)).is_none());
    }

    #[test]
    fn what_is_about_to_be_filled_is_not_dropped() {
        let mut fills = begun();
        fills.next(at(0), Vec::new());
        fills.admitted(&fill(0, 10 * PAGE), at(0));
        let waiting = || vec![(2 * PAGE, 3 * PAGE), (0, PAGE), (9 * PAGE, 20 * PAGE)];
        assert_eq!(fills.next(at(1), waiting()), Some(ToDrop::Pages(PAGE, 2 * PAGE)));
        assert_eq!(fills.next(at(1), waiting()), Some(ToDrop::Pages(3 * PAGE, 9 * PAGE)));
        assert_eq!(fills.next(at(1), waiting()), None);
        fills.admitted(&fill(0, PAGE), at(1));
        let written = Fill { held: Held::Written(0, PAGE), ..fill(0, PAGE) };
        assert_eq!(fills.next(at(1), Vec::new()), Some(ToDrop::Pages(0, PAGE)));
        assert_eq!(fills.admits_at(&written), Some(at(1)));
    }

    #[test]
    fn a_file_that_was_cut_has_new_attributes_but_no_pages() {
        let mut fills = begun();
        fills.next(at(0), Vec::new());
        let cut = Fill { held: Held::Cut, ..fill(0, 0) };
        assert_eq!(fills.admits_at(&cut), Some(at(1)));
        fills.admitted(&cut, at(1));
        assert!(fills.are_left());
        assert_eq!(fills.next(at(1), Vec::new()), Some(ToDrop::Attributes));
        assert_eq!(fills.next(at(1), Vec::new()), None);
    }

    #[test]
    fn what_one_that_was_let_in_changes_is_made_stable_by_another_call() {
        for held in [Held::Written(0, PAGE), Held::Cut] {
            let change = Fill { held, ..fill(0, 0) };
            let drop_all = |fills: &mut Fills| {
                fills.call_begins();
                while fills.next(at(0), Vec::new()).is_some() {}
            };
            // It ends before all is dropped: the same call makes it stable.
            let mut fills = begun();
            fills.call_begins();
            fills.next(at(0), Vec::new());
            fills.admitted(&change, at(0));
            fills.ended(held);
            while fills.next(at(0), Vec::new()).is_some() {}
            assert!(!fills.are_left(), "{held:?}");
            // It ends later.
            fills.begin();
            fills.call_begins();
            fills.next(at(0), Vec::new());
            fills.admitted(&change, at(0));
            while fills.next(at(0), Vec::new()).is_some() {}
            fills.ended(held);
            assert!(fills.are_left(), "{held:?}");
            drop_all(&mut fills);
            assert!(!fills.are_left(), "{held:?}");
            // It comes when all fills are let in, after everything was made stable.
            fills.open_all(Some(at(0)));
            fills.admitted(&change, at(0));
            fills.ended(held);
            fills.open_all(None);
            assert!(fills.are_left(), "{held:?}");
            drop_all(&mut fills);
            assert!(!fills.are_left(), "{held:?}");
        }
    }

    #[test]
    fn many_runs_are_kept_as_fewer_larger_ones() {
        let mut fills = begun();
        fills.next(at(0), Vec::new());
        let filled = |n: u64| (n * 7 % 9001 * 2 * PAGE, (n * 7 % 9001 * 2 + 1) * PAGE);
        for (from, to) in (0..9001).map(filled) {
            fills.admitted(&fill(from, to), at(0));
            assert!(fills.runs.len() <= RUNS_MAX);
        }
        for (from, to) in (0..9001).map(filled) {
            assert!(fills.runs.iter().any(|run| run.0 <= from && to <= run.1), "{from}");
        }
    }

    #[test]
    fn a_run_over_holes_of_any_size_is_dropped_in_few_pieces() {
        let mut fills = begun();
        fills.next(at(0), Vec::new());
        let far = |n: u64| n << 48;
        for n in 0..5000 {
            fills.admitted(&fill(far(n), far(n) + PAGE), at(0));
        }
        let dropped = std::iter::from_fn(|| fills.next(at(1), Vec::new())).count();
        assert!(dropped < 300_000, "{dropped}");
    }

    /// A device may take its time over a fill that was let in: others are not let in for that.
    #[test]
    fn whoever_waits_for_a_fill_lets_no_others_in() {
        let mut fills = begun();
        fills.next(at(0), Vec::new());
        let slow = fill(0, PAGE);
        assert!(!fills.admitted(&slow, at(0)), "it is in the way");
        assert_eq!(fills.next(at(1), Vec::new()), Some(ToDrop::Pages(0, PAGE)));
        let (near, far) = (fill(PAGE, 2 * PAGE), fill(LOCKED_MAX, 2 * LOCKED_MAX));
        let admits_at = |fills: &Fills| [near, far].map(|f| fills.admits_at(&f).unwrap());
        assert_eq!(admits_at(&fills), [at(1 + VERY_LONG); 2]);
        fills.ended(slow.held);
        assert!(fills.note_end(at(500)) && !fills.note_end(at(501)));
        assert_eq!(admits_at(&fills)[0], at(500 + LONG), "the kernel may have locked both");
        // Others that come and go put it off by the time for which they are answered, and no more.
        fills.admitted(&slow, at(510));
        fills.ended(slow.held);
        assert!(fills.note_end(at(520)));
        assert_eq!(admits_at(&fills), [at(510 + LONG), at(1 + VERY_LONG)]);
        // Once one is let in, all are that are no farther.
        assert!(fills.admitted(&near, at(510 + LONG)));
        assert_eq!(admits_at(&fills), [at(2), at(1 + VERY_LONG)]);
        assert!(fills.admitted(&far, at(1 + VERY_LONG)));
        assert_eq!(admits_at(&fills), [at(2); 2]);
    }

    #[test]
    fn while_an_inode_is_let_go_every_fill_is_let_in_if_pages_were_dropped() {
        let mut fills = begun();
        fills.open_all(Some(at(3)));
        assert!(!fills.are_left());
        assert_eq!(fills.admits_at(&fill(8 * PAGE, 9 * PAGE)), None);
        fills.next(at(3), Vec::new());
        fills.open_all(Some(at(3)));
        assert_eq!(fills.admits_at(&fill(8 * PAGE, 9 * PAGE)), Some(at(4)));
        fills.open_all(None);
        assert_eq!(fills.admits_at(&fill(8 * PAGE, 9 * PAGE)), None);
    }
}
