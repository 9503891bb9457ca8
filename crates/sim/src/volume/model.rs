//! What every sector may hold.

use std::collections::BTreeMap;

use crate::contents::{Overlapping, Value};

/// A write of a sector.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Which write it is: no two have the same number.
    id: u64,
    value: Value,
    began: u64,
    /// With everything that its parity is computed from: past the redo log, as a whole row goes.
    whole: bool,
    /// `None`: it has not ended, or failed.
    acknowledged: Option<u64>,
}

#[derive(Debug, Default)]
struct Sector {
    /// What was there at the last flush.
    stable: Vec<Value>,
    /// What was written since, in order.
    fresh: Vec<Entry>,
    /// What it held before, and when that was over for reads that began later: a read may be under
    /// way while what it has read is written over and flushed.
    past: Vec<(Value, u64)>,
    /// It may hold anything: see [`Model::loosen`].
    loose: bool,
    /// When zeros were last written over zeros here with the whole row, if no flush has come since.
    rewritten: Option<u64>,
}

/// Values of the past that are kept.
const PAST: usize = 16;

impl Sector {
    /// What it may hold at some moment from `from` to `to`.
    fn during(&self, from: u64, to: u64) -> Vec<Value> {
        let settled = |e: &Entry| e.acknowledged.is_some_and(|at| at <= from);
        let base = self.fresh.iter().rposition(settled);
        let mut all = if base.is_some() { Vec::new() } else { self.stable.clone() };
        let later = self.fresh.iter().skip(base.unwrap_or(0));
        all.extend(later.filter(|e| e.began <= to).map(|e| e.value));
        all
    }
}

/// The reference.
#[derive(Debug, Default)]
pub(super) struct Model {
    clock: u64,
    sectors: BTreeMap<u64, Sector>,
    /// Those that several nodes write at once.
    pub shared: Overlapping,
}

impl Model {
    /// The time; no two are the same.
    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write begins; `whole`: which of its sectors are written with all that stand beside them in
    /// their row. Its number is `value`.
    pub fn begin(&mut self, at: u64, len: u64, value: Value, whole: impl Fn(u64) -> bool) {
        self.begin_as((value, value), at, len, whole);
    }

    /// The same of write `id`, which gives all its sectors `value`.
    pub fn begin_as(
        &mut self,
        (id, value): (u64, Value),
        at: u64,
        len: u64,
        whole: impl Fn(u64) -> bool,
    ) {
        let began = self.now();
        for s in at..at + len {
            let sector = self
                .sectors
                .entry(s)
                .or_insert_with(|| Sector { stable: vec![0], ..Sector::default() });
            let whole = whole(s);
            sector.fresh.push(Entry { id, value, began, whole, acknowledged: None });
        }
    }

    /// It has changed nothing: it has not happened, or gave each sector the value that this had. A whole
    /// row may then be new in part until the next flush.
    pub fn withdraw(&mut self, at: u64, len: u64, id: u64) {
        let now = self.now();
        for (_, sector) in self.sectors.range_mut(at..at + len) {
            if sector.fresh.iter().any(|e| e.id == id && e.whole) {
                sector.rewritten = Some(now);
            }
            sector.fresh.retain(|e| e.id != id);
        }
    }

    /// Whether it may hold `value` now, if write `id` has not happened.
    pub fn may_be_without(&mut self, sector: u64, id: u64, value: Value) -> bool {
        let now = self.now();
        self.sectors.get(&sector).is_none_or(|s| {
            let fresh = s.fresh.iter().filter(|e| e.id != id).copied().collect();
            let rest = Sector { stable: s.stable.clone(), fresh, ..Sector::default() };
            rest.during(now, now).contains(&value)
        })
    }

    /// It has succeeded.
    pub fn acknowledge(&mut self, at: u64, len: u64, id: u64) {
        let now = self.now();
        for (_, sector) in self.sectors.range_mut(at..at + len) {
            for e in sector.fresh.iter_mut().filter(|e| e.id == id) {
                e.acknowledged = Some(now);
                sector.loose = false;
            }
        }
    }

    /// A flush that began at `from` has succeeded.
    pub fn flushed(&mut self, from: u64) {
        self.shared.flushed(from, |_| true);
        for sector in self.sectors.values_mut() {
            sector.rewritten = sector.rewritten.filter(|at| *at > from);
        }
        for sector in self.sectors.values_mut().filter(|s| !s.fresh.is_empty()) {
            // What may have stood there then, and what has come since.
            let stable = sector.during(from, from);
            let settled = |e: &Entry| e.acknowledged.is_some_and(|at| at <= from);
            if let Some(last) = sector.fresh.iter().rposition(settled) {
                // Each is over when a later one has succeeded.
                let over = |of: usize| {
                    let later = sector.fresh.iter().take(last + 1).skip(of);
                    later.filter_map(|e| e.acknowledged).min().unwrap_or(from)
                };
                let before = sector.stable.iter().map(|value| (*value, over(0)));
                let entries = sector.fresh.iter().take(last).enumerate();
                let past = before.chain(entries.map(|(i, e)| (e.value, over(i + 1))));
                let past: Vec<(Value, u64)> = past.collect();
                sector.past.extend(past);
                sector.past.drain(..sector.past.len().saturating_sub(PAST));
                sector.fresh.drain(..=last);
            }
            if !stable.is_empty() {
                sector.stable = stable;
            }
        }
    }

    /// Whether `sector` may be read as `value` by a read that began at `from` and ends now.
    pub fn may_read(&self, sector: u64, value: Value, from: u64) -> bool {
        self.sectors.get(&sector).map_or(value == 0, |s| {
            s.during(from, self.clock).contains(&value)
                || s.past.iter().any(|(was, over)| *was == value && from < *over)
        })
    }

    /// It stands on a member that is away, and write `id` did not end well. Where that wrote whole
    /// rows, past the redo log, what the member would have is then computed from a row that is new in
    /// part, and may be anything, also when a device is filled with it later. (Nothing else than the bytes
    /// of that write; and of a partial row not even these: it is in the log before.)
    pub fn loosen(&mut self, sector: u64, id: u64) {
        if let Some(s) = self.sectors.get_mut(&sector) {
            s.loose |= s.fresh.iter().any(|e| e.id == id && e.whole);
        }
    }

    /// Whether it may hold anything.
    pub fn is_loose(&self, sector: u64) -> bool {
        self.sectors.get(&sector).is_some_and(|s| s.loose)
    }

    /// Whether a write of it with its whole row is under way, or has not ended well.
    pub fn is_open(&self, sector: u64) -> bool {
        let open = |s: &Sector| s.fresh.iter().any(|e| e.whole && e.acknowledged.is_none());
        self.sectors.get(&sector).is_some_and(open)
    }

    /// Whether `sector` may hold `value` after a power cut.
    pub fn may_survive(&self, sector: u64, value: Value) -> bool {
        self.sectors.get(&sector).map_or(value == 0, |s| {
            s.stable.contains(&value) || s.fresh.iter().any(|e| e.value == value)
        })
    }

    /// Whether it was written with its whole row since the last flush.
    pub fn is_fresh(&self, sector: u64) -> bool {
        let whole = |s: &Sector| s.rewritten.is_some() || s.fresh.iter().any(|e| e.whole);
        self.sectors.get(&sector).is_some_and(whole)
    }

    /// It holds `value`, for good.
    pub fn settle(&mut self, sector: u64, value: Value) {
        if let Some(s) = self.sectors.get_mut(&sector) {
            *s = Sector { stable: vec![value], ..Sector::default() };
        }
    }

    /// What is known of it, for messages.
    pub fn say(&self, sector: u64) -> String {
        format!("{:?}", self.sectors.get(&sector))
    }

    /// The `n`th sector that was written, in a circle.
    pub fn nth(&self, n: u64) -> Option<u64> {
        let count = self.sectors.len() as u64;
        let n = usize::try_from(n.checked_rem(count)?).unwrap_or(0);
        self.sectors.keys().nth(n).copied()
    }

    /// Runs of sectors that were written, no longer than `most`.
    pub fn runs(&self, most: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for s in self.sectors.keys() {
            match runs.last_mut() {
                Some((at, len)) if *at + *len == *s && *len < most => *len += 1,
                _ => runs.push((*s, 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_over_and_flushed_under_a_read_may_still_be_read() {
        let mut model = Model::default();
        for value in [1, 2] {
            model.begin(7, 1, value, |_| false);
            model.acknowledge(7, 1, value);
        }
        let during = model.now();
        model.begin(7, 1, 3, |_| false);
        model.acknowledge(7, 1, 3);
        let flushed = model.now();
        model.flushed(flushed);
        let after = model.now();
        let may = |from| [0, 1, 2, 3].map(|value| model.may_read(7, value, from));
        assert_eq!(may(during), [false, false, true, true]);
        assert_eq!(may(after), [false, false, false, true]);
        assert!(!model.may_survive(7, 2) && model.may_survive(7, 3));
    }

    #[test]
    fn only_what_went_past_the_log_is_loose() {
        let mut model = Model::default();
        model.begin(0, 2, 5, |sector| sector == 1);
        (0..2).for_each(|sector| model.loosen(sector, 5));
        assert!(!model.is_loose(0) && model.is_loose(1) && !model.is_open(0) && model.is_open(1));
        assert!(!model.is_fresh(0) && model.is_fresh(1));
        // Written anew it is what was written.
        model.begin(1, 1, 6, |_| false);
        model.acknowledge(1, 1, 6);
        assert!(!model.is_loose(1));
    }

    #[test]
    fn zeros_that_were_given_back_with_their_row_are_at_risk_until_a_flush() {
        let mut model = Model::default();
        let before = model.now();
        model.begin_as((5, 0), 0, 2, |sector| sector == 1);
        model.withdraw(0, 2, 5);
        assert!(!model.is_fresh(0) && model.is_fresh(1) && !model.is_open(1));
        // One that began earlier is none of it.
        model.flushed(before);
        assert!(model.is_fresh(1));
        let later = model.now();
        model.flushed(later);
        assert!(!model.is_fresh(1));
    }
}
