//! The lines and columns of xdd's output.

use itertools::Itertools as _;

use super::options::{Job, Options, request};
use crate::engine::{Outcome, StreamResult};
use crate::statistics::float;

#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    /// Target's number, or how many.
    target: usize,
    depth: usize,
    bytes: u64,
    ops: u64,
    seconds: f64,
    /// Mean, milliseconds.
    latency: f64,
    /// Processors' worth of the process's work, percent.
    cpu: f64,
    op: &'static str,
    request: u64,
}

/// A column of the table and of the CSV.
struct Column {
    /// Its name and its unit.
    heads: [&'static str; 2],
    /// Its name as CSV.
    name: &'static str,
    /// Characters; words begin two further on and stand to the left.
    width: usize,
    /// Behind the point, in the table and as CSV.
    digits: (usize, usize),
    /// What stands in it, with so many digits behind the point.
    value: fn(&Line, usize) -> String,
}

impl Column {
    fn padded(&self, text: &str) -> String {
        let width = self.width;
        if self.name == OP { format!("  {text:<width$}") } else { format!("{text:>width$}") }
    }
}

/// The column of words.
const OP: &str = "op";

const fn column(
    heads: [&'static str; 2],
    name: &'static str,
    (width, digits): (usize, (usize, usize)),
    value: fn(&Line, usize) -> String,
) -> Column {
    Column { heads, name, width, digits, value }
}

fn fixed(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

const COLUMNS: [Column; 11] = [
    column(["T", ""], "target", (4, (0, 0)), |l, _| l.target.to_string()),
    column(["Q", ""], "queue", (5, (0, 0)), |l, _| l.depth.to_string()),
    column(["Bytes", ""], "bytes", (15, (0, 0)), |l, _| l.bytes.to_string()),
    column(["Ops", ""], "ops", (10, (0, 0)), |l, _| l.ops.to_string()),
    column(["Time", "secs"], "seconds", (10, (3, 6)), |l, digits| fixed(l.seconds, digits)),
    column(["Rate", "MBytes/s"], "MB/s", (11, (3, 3)), |l, digits| fixed(l.rate(), digits)),
    column(["IOPS", "Ops/s"], "iops", (12, (3, 3)), |l, digits| fixed(l.iops(), digits)),
    column(["Latency", "millisec"], "latency_ms", (10, (4, 6)), |l, n| fixed(l.latency, n)),
    column(["%CPU", ""], "cpu_percent", (8, (2, 2)), |l, digits| fixed(l.cpu, digits)),
    column(["OP", ""], OP, (6, (0, 0)), |l, _| l.op.to_owned()),
    column(["ReqSize", "bytes"], "request", (9, (0, 0)), |l, _| l.request.to_string()),
];

fn word(reads: u8) -> &'static str {
    match reads {
        0 => "write",
        100 => "read",
        _ => "mixed",
    }
}

impl Line {
    /// Of a target's streams in a pass.
    pub fn of(target: usize, job: &Job, streams: &[StreamResult], outcome: &Outcome) -> Self {
        let all = StreamResult::sum(streams);
        Self {
            target,
            depth: job.depth,
            bytes: all.bytes,
            ops: all.ops,
            seconds: all.seconds(),
            latency: all.latency().percentiles().mean / 1e3,
            cpu: 100.0 * outcome.meter.cpu_own / outcome.seconds,
            op: word(job.reads),
            request: request(job),
        }
    }
    fn rate(&self) -> f64 {
        float(self.bytes) / 1e6 / self.seconds.max(1e-9)
    }
    fn iops(&self) -> f64 {
        float(self.ops) / self.seconds.max(1e-9)
    }
    /// As xdd prints it.
    pub fn text(&self, what: &str) -> String {
        let who = if what == "Combined" { "COMBINED" } else { "TARGET" };
        let cells = |c: &Column| c.padded(&(c.value)(self, c.digits.0));
        format!("{who:<9}{what:<9}{}\n", COLUMNS.iter().map(cells).collect::<String>())
    }
    fn csv(&self, what: &str) -> String {
        let cells = COLUMNS.iter().map(|c| (c.value)(self, c.digits.1));
        std::iter::once(what.to_owned()).chain(cells).join(",") + "\n"
    }
    /// Bytes, requests and seconds of several passes added up.
    fn sum<'a>(lines: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let mut passes = 1;
        let mut all = lines.cloned().reduce(|mut sum, line| {
            let ops = float((sum.ops + line.ops).max(1));
            sum.latency = (sum.latency * float(sum.ops) + line.latency * float(line.ops)) / ops;
            sum.bytes += line.bytes;
            sum.ops += line.ops;
            sum.seconds += line.seconds;
            sum.cpu += line.cpu;
            passes += 1;
            sum
        })?;
        all.cpu /= float(passes);
        Some(all)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    lines: Vec<(usize, Line)>,
    seconds: f64,
    bytes_together: u64,
    seconds_together: f64,
    cpu: f64,
    passes: u64,
}

impl Table {
    pub fn header() -> String {
        let line = |n: usize| {
            let cell = |c: &Column| c.padded(c.heads.get(n).copied().unwrap_or_default());
            format!("{:<18}{}\n", "", COLUMNS.iter().map(cell).collect::<String>())
        };
        line(0) + &line(1)
    }
    pub fn add(&mut self, target: usize, line: Line) {
        self.lines.push((target, line));
    }
    pub fn passed(&mut self, outcome: &Outcome) {
        self.seconds += outcome.seconds;
        if outcome.mb_per_s_together().is_some() {
            self.bytes_together += outcome.all.bytes_together;
            self.seconds_together += outcome.seconds_together;
        }
        self.cpu += 100.0 * outcome.meter.cpu_own / outcome.seconds;
        self.passes += 1;
    }
    pub fn average(&self, target: usize) -> Option<Line> {
        Line::sum(self.lines.iter().filter(|(t, _)| *t == target).map(|(_, l)| l))
    }
    /// All targets, which worked side by side.
    pub fn combined(&self, options: &Options) -> Line {
        let mut all = Line::sum(self.lines.iter().map(|(_, l)| l)).unwrap_or_default();
        all.target = options.jobs.len();
        all.seconds = self.seconds.max(1e-9);
        all.cpu = self.cpu / float(self.passes.max(1));
        let mut words = options.jobs.iter().map(|j| word(j.reads));
        let first = words.next().unwrap_or("");
        all.op = if words.all(|w| w == first) { first } else { "mixed" };
        all
    }
    /// The rate while all targets were at work.
    pub fn deskewed(&self) -> String {
        if self.bytes_together == 0 {
            return "the targets were hardly at work at the same time".to_owned();
        }
        let rate = float(self.bytes_together) / 1e6 / self.seconds_together.max(1e-9);
        format!(
            "{} bytes in {:.3} secs while all targets were at work, {rate:.3} MBytes/s",
            self.bytes_together, self.seconds_together
        )
    }
    /// Comma-separated: passes, averages, combined.
    pub fn csv(&self, options: &Options) -> String {
        let names = std::iter::once("what").chain(COLUMNS.iter().map(|c| c.name));
        let mut text = names.into_iter().join(",") + "\n";
        let mut passes = vec![0_u32; options.jobs.len()];
        for (target, line) in &self.lines {
            let Some(pass) = passes.get_mut(*target) else { continue };
            *pass += 1;
            text += &line.csv(&format!("pass {pass}"));
        }
        let averages = (0..options.jobs.len()).filter_map(|target| self.average(target));
        text.extend(averages.map(|line| line.csv("average")));
        text + &self.combined(options).csv("combined")
    }
}
