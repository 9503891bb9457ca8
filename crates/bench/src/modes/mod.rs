//! The modes: one file for each kind of measurement, and the rounds that all of them have.

mod at_once;
pub(crate) mod buffered;
pub(crate) mod bulk;
pub(crate) mod copy;
pub(crate) mod curve;
pub(crate) mod first_write;
pub(crate) mod ladder;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod seeds;
pub(crate) mod share;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod stripe;
pub(crate) mod surface;
pub(crate) mod sweep;
mod test_area;
pub(crate) mod verify;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::engine::{Limits, Outcome, Stream};
use crate::progress::Now;
pub(crate) use crate::report::at;
use crate::report::{Acceptance, Report, Row, Verdict};
use crate::run::cache::{Cache, label, prepare};
use crate::run::repeat::{Budget, Ended, Rounds, rounds};

pub(crate) use test_area::{
    RemoveOnDrop, SpaceNeeds, System, TestArea, distinct, stream_on, test_areas,
};

// Options of all modes: how often to measure, and what to do with the result.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct RunOptions {
    /// Most rounds; each measures all systems in turn
    #[arg(long, default_value_t = 15)]
    pub repeats: usize,
    /// Fewest rounds
    #[arg(long, default_value_t = 3)]
    pub least: usize,
    /// Warm-up rounds before those; they do not count
    #[arg(long, value_name = "ROUNDS", default_value_t = 0)]
    pub warm_up: usize,
    /// No round begins after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub budget: f64,
    /// Stop if the 95 % interval of every median ratio is no wider than this part of the ratio
    #[arg(long, value_name = "PART", default_value_t = 0.03)]
    pub width: f64,
    /// Measure the load of other programs for this many milliseconds before each round
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub look: u64,
    /// Fail if a median ratio is below this; WORD=RATIO: only for rows with that word in their name
    #[arg(long, value_name = "[WORD=]RATIO")]
    pub accept: Vec<Acceptance>,
    /// Print the result as JSON, with all samples
    #[arg(long)]
    pub json: bool,
    /// Write the result as JSON to this file, even after a failure
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Overwrite devices that are mounted or in a pool, and files and devices that hold data
    #[arg(long)]
    pub force_destroy: bool,
    /// Show a full screen while it runs: row, rates, ratios so far. Lines if there is no terminal
    #[arg(long)]
    #[serde(skip)]
    pub tui: bool,
    /// Seconds between two lines of progress; 0: none. Without this option: a bar on a terminal, a
    /// line every 10 seconds elsewhere
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip)]
    pub heartbeat: Option<f64>,
}

/// Processors of others that are said.
const FOREIGN: f64 = 0.25;
/// What is said of them.
const OTHERS: &str = "other programs used up to";

const ROUNDS_MAX: usize = 1_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundPlan {
    /// That take turns.
    pub systems: usize,
    /// That each of them adds to.
    pub rows: usize,
    /// What is counted while it runs, if not bytes.
    pub counted: &'static str,
}
impl RoundPlan {
    /// Each adds to so many rows of bytes.
    pub fn new(systems: usize, rows: usize) -> Self {
        Self { systems, rows, counted: "" }
    }
}

/// A mode: what it compares, and how it goes about a run.
pub(crate) trait Measure: clap::Args + serde::Serialize {
    /// The result without rows.
    fn begin(&self) -> Report;
    /// Fills it.
    ///
    /// # Errors
    /// What was measured before stands.
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()>;
    /// What is known when all is measured.
    fn conclude(&self, _report: &mut Report) {}
    /// How it did against what `--accept` asks.
    fn judge(&self, report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
        crate::report::acceptance::judge(report, accepted)
    }
}

// A mode with the options of all modes. Document comments here and on the options would be the help of every mode.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Run<M: Measure> {
    #[command(flatten)]
    #[serde(flatten)]
    pub mode: M,
    #[command(flatten)]
    pub how: RunOptions,
}

impl<M: Measure> Run<M> {
    /// Measures it, and writes and prints the result.
    pub fn run(&self) -> Result<()> {
        self.how.budget()?;
        let _shown = self.how.show()?;
        let (report, result) = self.result();
        self.how.finish(report, result)
    }
    /// The result, whatever happened.
    pub fn result(&self) -> (Report, Result<()>) {
        let mut report = self.mode.begin();
        report.configuration = configuration(self);
        let result = self.mode.measure(&self.how, &mut report);
        self.mode.conclude(&mut report);
        report.verdicts.extend(self.mode.judge(&report, &self.how.accept));
        (report, result)
    }
}

pub(crate) struct Cell<'a> {
    pub name: &'a str,
    pub phase: &'a str,
    pub at: crate::report::Parameters,
}
impl Cell<'_> {
    /// One more repeat of it.
    ///
    /// # Errors
    /// It could not be measured: the row has no sample of it.
    pub fn run<'r>(
        &self,
        report: &'r mut Report,
        streams: &[Stream],
        limits: &Limits,
    ) -> Result<(&'r mut Row, Outcome)> {
        let what = [self.name, self.phase, &crate::report::said(&self.at)].join(" ");
        crate::progress::row(what.trim_end().to_owned());
        let outcome = crate::engine::run(streams, limits)?.ok()?;
        // Nothing in no time is no figure.
        anyhow::ensure!(outcome.all.bytes > 0, "{what}: nothing was moved");
        crate::progress::row_done();
        Ok((report.add_outcome(self.name, self.phase, &self.at, &outcome), outcome))
    }
    /// The same, with the page cache as it is to be; a row that does without it may say why.
    pub fn run_cached<'r>(
        &self,
        report: &'r mut Report,
        streams: &[Stream],
        limits: &Limits,
        (cache, instead): (Cache, Option<&str>),
    ) -> Result<&'r mut Row> {
        let range = |s: &Stream| (s.pattern.from, s.pattern.span);
        let one = |s: &Stream| match instead {
            Some(why) => why.to_owned(),
            None => prepare(&s.target.path, cache, range(s)),
        };
        let mut prepared: Vec<_> = streams.iter().map(one).collect();
        prepared.dedup();
        let bytes = streams.iter().fold(0_u64, |sum, s| sum.saturating_add(s.pattern.span));
        let memory = crate::run::environment::memory();
        let (row, _) = self.run(report, streams, limits)?;
        row.cache = Some(label(&prepared.join("; "), cache, bytes, memory));
        Ok(row)
    }
}

impl RunOptions {
    /// Shows what this thread measures, until that is dropped.
    pub fn show(&self) -> Result<crate::progress::Shown> {
        let sane = self.heartbeat.is_none_or(|h| h.is_finite() && h >= 0.0);
        anyhow::ensure!(sane, "--heartbeat: a number of seconds");
        Ok(crate::progress::begin(self.tui, self.heartbeat))
    }
    fn budget(&self) -> Result<Budget> {
        anyhow::ensure!((1..=ROUNDS_MAX).contains(&self.repeats), "--repeats: 1 to {ROUNDS_MAX}");
        anyhow::ensure!(self.warm_up <= ROUNDS_MAX, "--warm-up: {ROUNDS_MAX} at most");
        anyhow::ensure!(self.look <= 60_000, "--look: a minute (60000) at most");
        anyhow::ensure!(
            self.budget.is_finite() && self.budget >= 0.0,
            "--budget: a number of seconds"
        );
        anyhow::ensure!(self.width > 0.0, "--width: a part above 0");
        Ok(Budget {
            least: self.least.clamp(1, self.repeats),
            most: self.repeats,
            time: Duration::from_secs_f64(self.budget.min(1e9)),
            width: self.width,
            look: Duration::from_millis(self.look),
        })
    }
    /// Measures in rounds: `measure(report, round, system)`. What was measured before a failure
    /// stands in the report.
    pub fn rounds(
        &self,
        report: &mut Report,
        turns: RoundPlan,
        measure: impl Fn(&mut Report, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let budget = self.budget()?;
        let now = Now {
            mode: report.kind.clone(),
            counted: turns.counted,
            rounds: budget.most,
            rows: turns.systems * turns.rows,
            budget: budget.time,
            width: budget.width,
            base: report.base.clone(),
            ..Now::default()
        };
        let mut noted = Rounds::default();
        if let Err(e) = self.warm(report, &now, turns.systems, &measure) {
            let interrupted = e.is::<crate::progress::Interrupted>();
            noted.ended = Some(if interrupted { Ended::Interrupted } else { Ended::Failed });
            report.rounds = Some(noted);
            return Err(e);
        }
        crate::progress::rounds(now);
        let shared = RefCell::new(&mut *report);
        let one = |round, system| {
            crate::progress::round(round, || shared.borrow().standings());
            measure(&mut shared.borrow_mut(), round, system)
        };
        let result =
            rounds(&budget, turns.systems, &mut noted, one, || shared.borrow().intervals());
        report.rounds = Some(noted);
        Self::note_others(report);
        result
    }
    /// Measures each of several systems in its turn.
    pub fn compare<T>(
        &self,
        report: &mut Report,
        systems: &[T],
        rows: usize,
        measure: impl Fn(&mut Report, &T) -> Result<()>,
    ) -> Result<()> {
        self.rounds(report, RoundPlan::new(systems.len(), rows), |report, _, system| {
            systems.get(system).map_or(Ok(()), |system| measure(report, system))
        })
    }
    /// Rounds that do not count.
    fn warm(
        &self,
        report: &Report,
        now: &Now,
        systems: usize,
        measure: impl Fn(&mut Report, usize, usize) -> Result<()>,
    ) -> Result<()> {
        if self.warm_up == 0 {
            return Ok(());
        }
        let mode = format!("{}, warming up", now.mode);
        let budget = Duration::MAX;
        crate::progress::rounds(Now { mode, rounds: self.warm_up, budget, ..now.clone() });
        let mut scratch = report.clone();
        for round in 0..self.warm_up {
            crate::progress::round(round, Vec::new);
            for system in 0..systems {
                crate::progress::check_interrupted()?;
                measure(&mut scratch, round, system)?;
            }
        }
        Ok(())
    }
    /// Notes the load of other programs, once: each of several modes may have noted its own.
    pub fn note_others(report: &mut Report) {
        report.notes.retain(|n| !n.contains(OTHERS));
        let foreign = report.rounds.as_ref().map(|r| r.foreign.as_slice());
        let others = foreign.unwrap_or_default().iter().copied().fold(0.0, f64::max);
        if others > FOREIGN {
            report.note(format!("{OTHERS} {others:.1} processors meanwhile"));
        }
    }
    /// Writes and prints the result; fails with what failed, or with what fell short.
    pub fn finish(&self, mut report: Report, result: Result<()>) -> Result<()> {
        crate::progress::hide();
        report.failed = result.as_ref().err().map(|e| format!("{e:#}"));
        let saved = self.out.as_ref().map_or(Ok(()), |path| report.save(path));
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else if result.is_ok() || !report.rows.is_empty() {
            report.print();
        }
        if let (Err(e), Err(_)) = (&saved, &result) {
            eprintln!("braid bench: --out: {e:#}");
        }
        result?;
        saved.context("--out")?;
        if self.accept.is_empty() {
            return Ok(());
        }
        crate::report::acceptance::pass(&report.verdicts)
    }
}

/// Refuses a range that does not hold the largest of some requests.
pub(crate) fn holds(size: u64, requests: &[u64]) -> Result<()> {
    let most = requests.iter().copied().max().unwrap_or(0);
    anyhow::ensure!(size >= most, "--size: {size} bytes are less than a request of {most}");
    Ok(())
}

/// The configuration of a mode, for the result.
pub(crate) fn configuration(args: &(impl serde::Serialize + ?Sized)) -> serde_json::Value {
    serde_json::to_value(args).unwrap_or_default()
}

/// The name of the system that others are compared with.
pub(crate) fn base(systems: &[System]) -> &str {
    systems.first().map_or("", |s| &s.name)
}

/// Arguments as if typed behind a command's name.
#[cfg(test)]
pub(crate) fn typed<A: clap::Args>(words: &[&str]) -> A {
    #[derive(clap::Parser)]
    #[command(args_override_self = true)]
    struct Typed<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }
    let words = std::iter::once(&"mode").chain(words);
    <Typed<A> as clap::Parser>::parse_from(words).args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_warm_up_are_measured_and_do_not_count() {
        let how: RunOptions = typed(&["--warm-up", "2", "--repeats", "3", "--look", "0"]);
        let seen = RefCell::new(Vec::new());
        let mut report = Report::new("mode").against("a", "MB/s");
        let measure = |report: &mut Report, round, system| {
            seen.borrow_mut().push((round, system));
            // The first of all is slow.
            let rate = if seen.borrow().len() == 1 { 1.0 } else { 100.0 };
            report.row(["a", "b"][system], "write", &at(&[])).rate.0.push(rate);
            Ok(())
        };
        how.rounds(&mut report, RoundPlan::new(2, 1), measure).unwrap();
        assert_eq!(seen.borrow().len(), (2 + 3) * 2);
        assert_eq!(seen.borrow()[..4], [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(report.rounds.as_ref().unwrap().done, 3);
        assert!(report.rows.iter().all(|r| r.rate.0 == [100.0; 3]), "{:?}", report.rows);
        // What fails while it warms up has no rows, and says that it failed.
        let mut report = Report::new("mode");
        let fails = |_: &mut Report, _, _| anyhow::bail!("full");
        assert!(how.rounds(&mut report, RoundPlan::new(1, 1), fails).is_err());
        assert_eq!(report.rounds.unwrap().ended, Some(Ended::Failed));
    }
}
