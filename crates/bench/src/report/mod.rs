//! A result: one structure for all modes. It is written as JSON, printed as a table, drawn as HTML.

pub(crate) mod acceptance;
mod axis;
mod colours;
mod grid;
mod lines;
mod page;
mod plots;
pub(crate) mod published;
mod svg;
pub(crate) mod table;
mod units;
pub(crate) mod write;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use braid_pool::device::Issued;
use itertools::Itertools as _;
use serde::{Deserialize, Serialize};

use crate::engine::{Latencies, Latency, Opened, Outcome, Percentiles, Series};
use crate::progress::Standing;
use crate::run::environment::{Facts, facts};
use crate::run::repeat::Rounds;
use crate::statistics::{Interval, Samples, float, rate};

pub(crate) use acceptance::{Acceptance, Goal, Verdict};
#[cfg(test)]
pub(crate) use lines::Line;
pub(crate) use lines::{lines, numbers};

/// Of the layout of result files.
pub(crate) const VERSION: u32 = 1;

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// 10^6 bytes per second.
    pub mb_per_s: f64,
    /// CPU seconds of the whole machine per GiB.
    pub cpu_per_gib: f64,
}

impl Figure {
    /// From bytes moved in `seconds` with `cpu` seconds of CPU.
    pub fn new(bytes: u64, seconds: f64, cpu: f64) -> Self {
        let bytes = float(bytes);
        Self { mb_per_s: bytes / 1e6 / seconds, cpu_per_gib: cpu / (bytes / f64::from(1 << 30)) }
    }
}

/// What a row is measured at, by name: `request`, `transfer`, `streams` ...
pub(crate) type Parameters = BTreeMap<String, f64>;

pub(crate) fn at(pairs: &[(&str, f64)]) -> Parameters {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

/// A row of a table: one layer or system, one phase, one set of parameters, all repeats.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    /// Layer or system.
    pub name: String,
    /// What was done.
    pub phase: String,
    /// The row's name that it is compared with, if it is not the report's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base: String,
    /// At what.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: Parameters,
    /// Of `rate`, if it is not the mode's usual one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Less is better.
    #[serde(skip_serializing_if = "is_false")]
    pub less: bool,
    /// MB/s (or operations per second) per repeat.
    pub rate: Samples,
    /// CPU seconds per GiB per repeat (empty for operation rates).
    pub cpu: Samples,
    /// Other quantities by name, per repeat.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<String, Samples>,
    /// Latencies per repeat, microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<Percentiles>,
    /// Those of all repeats together, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_of_all: Option<Percentiles>,
    /// What it is made of.
    #[serde(skip)]
    latencies: Latencies,
    /// Bytes over time, of the last repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// How the phase found the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// What the devices were really asked for, in the last repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issued: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(b: &bool) -> bool {
    !b
}

impl Row {
    /// Quotients with the base's row, repeat by repeat, so that more is better.
    pub fn ratio_to(&self, base: &Self) -> Samples {
        if self.less { base.rate.ratio_to(&self.rate) } else { self.rate.ratio_to(&base.rate) }
    }
    fn is(&self, name: &str, phase: &str, at: &Parameters) -> bool {
        self.name == name && self.phase == phase && self.parameters == *at
    }
    /// Adds one repeat of another quantity.
    pub fn add(&mut self, quantity: &str, value: f64) {
        self.more.entry(quantity.to_owned()).or_default().0.push(value);
    }
    /// Takes another figure for the rate of the last repeat.
    pub fn replace_rate(&mut self, value: f64) {
        if let Some(rate) = self.rate.0.last_mut() {
            *rate = value;
        }
    }
    /// Phase and parameters, as tables have them.
    pub fn phase_and_place(&self) -> String {
        [self.phase.clone(), self.at()].iter().filter(|part| !part.is_empty()).join(", ")
    }
    /// The least and the highest rate.
    pub fn range(&self) -> String {
        let (low, high) = self.rate.spread();
        format!("{}..{}", rate(low), rate(high))
    }
    /// Adds the latencies of one more repeat.
    pub fn took(&mut self, latency: &Latency) {
        self.latency.push(latency.percentiles());
        self.latencies.add(latency);
        self.latency_of_all = Some(self.latencies.percentiles());
    }
    /// Latencies of all repeats; of the last one, where a result has no others.
    pub fn tail(&self) -> Option<&Percentiles> {
        self.latency_of_all.as_ref().or_else(|| self.latency.last())
    }
    /// Its parameters in words.
    pub fn at(&self) -> String {
        said(&self.parameters)
    }
    /// Name, phase and parameters.
    pub fn title(&self) -> String {
        let parts = [self.name.clone(), self.phase.clone(), self.at()];
        parts.iter().filter(|part| !part.is_empty()).join(" ")
    }
}

/// Parameters in words.
pub(crate) fn said(parameters: &Parameters) -> String {
    parameters.iter().map(|(key, v)| format!("{key} {}", table::number(key, *v))).join(", ")
}

/// Cells of a surface, taken together: how their median ratios to the base are spread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub name: String,
    /// What it is compared with, if it is not the report's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base: String,
    pub phase: String,
    pub cells: usize,
    pub mean: f64,
    pub deviation: f64,
    pub min: f64,
    pub max: f64,
}

impl Summary {
    /// The name of what it is compared with.
    pub fn base<'r>(&'r self, report: &'r Report) -> &'r str {
        if self.base.is_empty() { &report.base } else { &self.base }
    }
    /// Mean, deviation, least, most.
    pub fn parts(&self) -> [f64; 4] {
        [self.mean, self.deviation, self.min, self.max]
    }
}

/// Collects figures by (layer, phase, parameters), in order of first appearance.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// The mode.
    pub kind: String,
    pub version: u32,
    /// What was measured on what.
    pub setup: Vec<(String, String)>,
    /// The machine and the program.
    pub environment: Facts,
    /// Every option, as it was used.
    pub configuration: serde_json::Value,
    /// Files and devices, as they were opened.
    pub targets: Vec<Opened>,
    /// How many rounds, and why no more.
    pub rounds: Option<Rounds>,
    /// The row's name that others are compared with.
    pub base: String,
    /// Of the rates.
    pub unit: String,
    pub rows: Vec<Row>,
    /// What the members were really asked for, by layer and phase.
    pub issued: Vec<(String, String)>,
    /// Of a surface.
    pub summaries: Vec<Summary>,
    /// What `--accept` said.
    pub verdicts: Vec<Verdict>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// Why it ended early.
    pub failed: Option<String>,
    /// Of the verdicts a line for each experiment is printed, and no rows.
    #[serde(skip)]
    pub brief: bool,
}

impl Report {
    /// An empty one of a mode.
    pub fn new(kind: &str) -> Self {
        let environment = facts();
        Self { kind: kind.to_owned(), version: VERSION, environment, ..Self::default() }
    }
    /// Compared with the rows of `base`; rates in `unit`.
    pub fn against(mut self, base: &str, unit: &str) -> Self {
        base.clone_into(&mut self.base);
        unit.clone_into(&mut self.unit);
        self
    }
    /// A fact of the setup.
    pub fn fact(&mut self, key: &str, value: impl Into<String>) {
        self.setup.push((key.to_owned(), value.into()));
    }
    /// What a reader must know; once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
    /// Adds one repeat of a bandwidth.
    pub fn add(&mut self, name: &str, phase: &str, figure: Figure) {
        let row = self.row(name, phase, &Parameters::new());
        row.rate.0.push(figure.mb_per_s);
        row.cpu.0.push(figure.cpu_per_gib);
    }
    /// Adds one repeat of what the engine did; the row, for what else there is to say.
    pub fn add_outcome(
        &mut self,
        name: &str,
        phase: &str,
        at: &Parameters,
        outcome: &Outcome,
    ) -> &mut Row {
        let row = self.row(name, phase, at);
        row.rate.0.push(outcome.mb_per_s());
        row.cpu.0.push(outcome.cpu_per_gib());
        row.took(&outcome.all.latency());
        row.series = Some(outcome.all.series.clone());
        row.issued.clone_from(&outcome.issued);
        row.add("seconds", outcome.seconds);
        row.add("iops", outcome.iops());
        if let (true, Some(rate)) = (outcome.streams.len() > 1, outcome.mb_per_s_together()) {
            row.add("MB/s while all streams worked", rate);
        }
        row.add("own CPU seconds", outcome.meter.cpu_own);
        row.add("stolen CPU seconds", outcome.meter.steal);
        row.add("context switches", float(outcome.meter.switches));
        row
    }
    /// Adds one repeat of another rate than bandwidth.
    pub fn sample(&mut self, name: &str, phase: &str, at: &Parameters, rate: f64) -> &mut Row {
        let row = self.row(name, phase, at);
        row.rate.0.push(rate);
        row
    }
    /// Judges a figure: what, beside which original, in which cell.
    pub fn verdict(
        &mut self,
        (what, original, cell): (&str, &str, &str),
        goal: Goal,
        of: &Samples,
    ) {
        self.verdicts.push(Verdict::of(what, goal, of).original(original).cell(cell));
    }
    /// What a layer issued to the members, in one repeat of a phase (the last one is kept).
    pub fn add_issued(&mut self, name: &str, phase: &str, before: &[Issued], after: &[Issued]) {
        let none = Issued::default();
        let since = after.iter().zip(before).map(|(a, b)| a.since(b));
        let all = since.fold(none, |sum, one| sum.plus(&one));
        let said = format!("reads: {}; writes: {}; {} flushes", all.reads, all.writes, all.flushes);
        let key = format!("{name} {phase}");
        self.issued.retain(|(k, _)| *k != key);
        self.issued.push((key, said));
    }
    /// The row, made if it is not there.
    pub fn row(&mut self, name: &str, phase: &str, at: &Parameters) -> &mut Row {
        let same = |r: &Row| r.is(name, phase, at);
        let index = self.rows.iter().position(same).unwrap_or_else(|| {
            let (name, phase) = (name.to_owned(), phase.to_owned());
            self.rows.push(Row { name, phase, parameters: at.clone(), ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }
    /// What a row is compared with.
    pub fn base_of(&self, row: &Row) -> Option<&Row> {
        self.find(self.base_name(row), &row.phase, &row.parameters)
    }
    /// The row of a name, a phase and parameters.
    pub fn find(&self, name: &str, phase: &str, at: &Parameters) -> Option<&Row> {
        self.rows.iter().find(|r| r.is(name, phase, at))
    }
    /// The name of what a row is compared with.
    pub fn base_name<'r>(&'r self, row: &'r Row) -> &'r str {
        if row.base.is_empty() { &self.base } else { &row.base }
    }
    /// Whether others are compared with a row.
    pub fn is_base(&self, row: &Row) -> bool {
        row.name == self.base_name(row)
    }
    /// How sure each ratio is; without anything to compare with, each rate.
    pub fn intervals(&self) -> Vec<Option<Interval>> {
        self.standings().into_iter().map(|s| s.interval).collect()
    }
    /// Every ratio so far; without anything to compare with, every rate.
    pub fn standings(&self) -> Vec<Standing> {
        let standing = |row: &Row, samples: &Samples| Standing {
            what: row.title(),
            ratio: samples.median(),
            interval: Interval::of(samples),
        };
        let others = self.rows.iter().filter(|r| r.name != self.base);
        let ratios: Vec<_> =
            others.filter_map(|r| Some(standing(r, &r.ratio_to(self.base_of(r)?)))).collect();
        if ratios.is_empty() {
            return self.rows.iter().map(|r| standing(r, &r.rate)).collect();
        }
        ratios
    }
    /// Prints the table: ratios are to the row `base` of the same phase.
    pub fn print(&self) {
        print!("{}", table::text(self));
    }
    /// Writes it as a file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())
    }
    /// Reads a file.
    ///
    /// # Errors
    /// It is no result, or of a later version.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let no_result = || format!("{}: not a result of braid bench", path.display());
        let report: Self = serde_json::from_str(&text).with_context(no_result)?;
        anyhow::ensure!(!report.kind.is_empty() || !report.rows.is_empty(), no_result());
        anyhow::ensure!(
            report.version <= VERSION,
            "{}: a result of version {}; this program knows {VERSION}",
            path.display(),
            report.version
        );
        Ok(report)
    }
}
