//! What can be measured: one file per mode.

pub(crate) mod buffered;
pub(crate) mod copy;
pub(crate) mod curve;
pub(crate) mod first_write;
pub(crate) mod ladder;
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod scale;
pub(crate) mod seeds;
pub(crate) mod share;
pub(crate) mod stream;
pub(crate) mod stripe;
mod subject;
pub(crate) mod surface;
pub(crate) mod sweep;
pub(crate) mod verify;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::report::{Gate, Report};
use crate::run::repeat::{Budget, Rounds, rounds};

pub(crate) use subject::{Subject, System};

/// How often, and what becomes of the result.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct How {
    /// Rounds at most; all systems are measured in turn in each
    #[arg(long, default_value_t = 15)]
    pub repeats: usize,
    /// Rounds at least
    #[arg(long, default_value_t = 3)]
    pub least: usize,
    /// No round is begun after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub budget: f64,
    /// Enough when the 95 % interval of every ratio's median is no wider than this part of it
    #[arg(long, value_name = "PART", default_value_t = 0.03)]
    pub width: f64,
    /// Look for other programs' load so long before each round, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub look: u64,
    /// Fail when a ratio's median is below this; WORD=RATIO for rows with that word in their name
    #[arg(long, value_name = "[WORD=]RATIO")]
    pub accept: Vec<Gate>,
    /// Print the result as JSON, all samples
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file, whatever happens
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write on devices that are mounted or in a pool, and on files and devices that hold something
    #[arg(long)]
    pub force_destroy: bool,
}

impl How {
    fn budget(&self) -> Result<Budget> {
        anyhow::ensure!(self.repeats >= 1, "--repeats: at least 1");
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
        systems: usize,
        measure: impl Fn(&mut Report, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let budget = self.budget()?;
        let mut noted = Rounds { done: 0, ended: None, seconds: 0.0, foreign: Vec::new() };
        let shared = RefCell::new(&mut *report);
        let one = |round, system| {
            if system == 0 && round > 0 {
                tracing::info!("round {}", round + 1);
            }
            measure(&mut shared.borrow_mut(), round, system)
        };
        let result = rounds(&budget, systems, &mut noted, one, || shared.borrow().intervals());
        let others = noted.foreign.iter().copied().fold(0.0, f64::max);
        report.rounds = Some(noted);
        if others > 0.25 {
            report.note(format!("other programs used up to {others:.1} processors meanwhile"));
        }
        result
    }
    /// Writes and prints the result; fails with what failed, or with what fell short.
    ///
    /// # Errors
    /// See above.
    pub fn finish(&self, mut report: Report, result: Result<()>) -> Result<()> {
        report.failed = result.as_ref().err().map(|e| format!("{e:#}"));
        if !self.accept.is_empty() {
            report.verdicts.extend(crate::report::gate::judge(&report, &self.accept));
        }
        if let Some(path) = &self.out {
            report.save(path)?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else if result.is_ok() || !report.rows.is_empty() {
            report.print();
        }
        result?;
        if self.accept.is_empty() {
            return Ok(());
        }
        crate::report::gate::pass(&report.verdicts)
    }
}

/// The configuration of a mode, for the result.
pub(crate) fn configuration(args: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(args).unwrap_or_default()
}

/// Parameters from pairs.
pub(crate) fn at(pairs: &[(&str, f64)]) -> crate::report::Parameters {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
}
