//! What is under way: what threads of a run tell, and what is drawn of it.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::statistics::Interval;

/// Between two looks at what is done.
pub(super) const TICK: Duration = Duration::from_millis(200);
/// Looks that the screen draws.
const LOOKS: usize = 240;

/// How a row stands against the base.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Standing {
    pub what: String,
    pub ratio: f64,
    pub interval: Option<Interval>,
}

/// Several runs, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct RunOfRuns {
    /// Which one, from 1, and how many.
    pub number: usize,
    pub count: usize,
    /// What it is called.
    pub name: String,
    /// When all of them will be over, about.
    pub ends: Instant,
}
impl RunOfRuns {
    /// How long all of them will take.
    pub fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

/// What is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Now {
    /// What this is a part of.
    pub whole: Option<RunOfRuns>,
    /// The mode.
    pub mode: String,
    /// What is counted, if not bytes.
    pub counted: &'static str,
    /// What is measured at the moment: system, phase, parameters.
    pub row: String,
    /// Rounds: which one, at most, and rows of one round (0: not known).
    pub round: usize,
    pub rounds: usize,
    pub rows: usize,
    /// Rows measured so far, in all rounds.
    pub done: usize,
    /// When the rounds began.
    pub began: Option<Instant>,
    /// No round is begun after so much time.
    pub budget: Duration,
    /// Enough when all intervals are this narrow.
    pub width: f64,
    pub base: String,
    pub standings: Vec<Standing>,
}

impl Now {
    /// Rows of all rounds.
    fn all(&self) -> usize {
        self.rows * self.rounds
    }
    /// 0 to 1.
    pub fn part(&self) -> f64 {
        let float = |n: usize| crate::statistics::float(n as u64);
        if self.all() == 0 { 0.0 } else { (float(self.done) / float(self.all())).min(1.0) }
    }
    /// How long it will take at most, if rows take as long as those before. Narrow intervals may
    /// end it earlier.
    pub fn left(&self) -> Option<Duration> {
        let elapsed = self.began?.elapsed();
        if self.done == 0 || self.rows == 0 {
            return None;
        }
        let row = elapsed / u32::try_from(self.done).unwrap_or(u32::MAX);
        let rows = |n: usize| row.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        let by_rounds = rows(self.all().saturating_sub(self.done));
        // The round that is under way when the budget ends is finished.
        let in_round = self.done % self.rows;
        let rest = if in_round == 0 { 0 } else { self.rows - in_round };
        let by_budget = self.budget.saturating_sub(elapsed).saturating_add(rows(self.rows / 2));
        Some(by_rounds.min(by_budget.max(rows(rest))))
    }
    /// The widest of all intervals, as a part of its ratio; `None`: one is not known yet.
    pub fn widest(&self) -> Option<f64> {
        let width = |s: &Standing| s.interval.map(|i| i.width());
        let all: Option<Vec<f64>> = self.standings.iter().map(width).collect();
        all.filter(|a| !a.is_empty()).map(|a| a.into_iter().fold(0.0, f64::max))
    }
}

/// What the threads have in common.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) now: Mutex<Now>,
    pub(super) moved: Arc<AtomicU64>,
    pub(super) stop: Arc<AtomicBool>,
}
impl State {
    pub(super) fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rates at the last looks, per second.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(super) last: Option<(Instant, u64)>,
    pub looks: Vec<f64>,
}
impl Rates {
    pub(super) fn look(&mut self, moved: u64) {
        let now = Instant::now();
        if let Some((when, before)) = self.last {
            let seconds = now.saturating_duration_since(when).as_secs_f64().max(1e-6);
            let rate = crate::statistics::float(moved.saturating_sub(before)) / seconds;
            self.looks.push(rate);
            if self.looks.len() > LOOKS {
                self.looks.remove(0);
            }
        }
        self.last = Some((now, moved));
    }
    /// Over the last second.
    pub fn latest(&self) -> f64 {
        let last = self.looks.iter().rev().take(5);
        let count = crate::statistics::float(last.clone().count().max(1) as u64);
        last.sum::<f64>() / count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_the_rows_before_and_from_the_budget() {
        let began = Instant::now().checked_sub(Duration::from_secs(10));
        let budget = Duration::from_secs(1000);
        let mut now = Now { rounds: 4, rows: 5, done: 10, began, budget, ..Now::default() };
        // Ten rows in ten seconds; ten more.
        let left = now.left().unwrap().as_secs_f64();
        assert!((9.9..15.0).contains(&left), "{left}");
        assert!((now.part() - 0.5).abs() < 1e-9);
        // The budget ends before them.
        now.budget = Duration::from_secs(11);
        let left = now.left().unwrap().as_secs_f64();
        assert!(left < 5.0, "{left}");
        now.done = 0;
        assert_eq!(now.left(), None);
    }
}
