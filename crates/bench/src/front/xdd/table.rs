//! xdd's lines.

use std::fmt::Write as _;

use super::options::{Job, Options};
use crate::engine::{Done, Outcome, float};

/// A line of the table.
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

fn word(reads: u8) -> &'static str {
    match reads {
        0 => "write",
        100 => "read",
        _ => "mixed",
    }
}

impl Line {
    /// Of a target's streams in a pass.
    pub fn of(target: usize, job: &Job, streams: &[Done], outcome: &Outcome) -> Self {
        let from = streams.iter().map(|s| s.from).min().unwrap_or_default();
        let to = streams.iter().map(|s| s.to).max().unwrap_or_default();
        let (mut sum, mut ops) = (0.0, 0);
        for s in streams {
            for l in [&s.reads, &s.writes] {
                let p = l.percentiles();
                sum += p.mean * float(p.count);
                ops += p.count;
            }
        }
        Self {
            target,
            depth: job.depth,
            bytes: streams.iter().map(|s| s.bytes).sum(),
            ops: streams.iter().map(|s| s.ops).sum(),
            seconds: to.saturating_sub(from).as_secs_f64().max(1e-9),
            latency: sum / float(ops.max(1)) / 1e3,
            cpu: 100.0 * outcome.meter.cpu_own / outcome.seconds,
            op: word(job.reads),
            request: super::request(job),
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
        format!(
            "{who:<9}{what:<9}{:>4}{:>5}{:>15}{:>10}{:>10.3}{:>11.3}{:>12.3}{:>10.4}{:>8.2}  {:<6}{:>9}\n",
            self.target,
            self.depth,
            self.bytes,
            self.ops,
            self.seconds,
            self.rate(),
            self.iops(),
            self.latency,
            self.cpu,
            self.op,
            self.request
        )
    }
    fn csv(&self, what: &str) -> String {
        format!(
            "{what},{},{},{},{},{:.6},{:.3},{:.3},{:.6},{:.2},{},{}\n",
            self.target,
            self.depth,
            self.bytes,
            self.ops,
            self.seconds,
            self.rate(),
            self.iops(),
            self.latency,
            self.cpu,
            self.op,
            self.request
        )
    }
    /// Bytes, requests and seconds of several passes added up.
    fn sum<'a>(lines: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let mut all: Option<Self> = None;
        let mut passes = 0_u64;
        for line in lines {
            passes += 1;
            let Some(sum) = &mut all else {
                all = Some(line.clone());
                continue;
            };
            let ops = float((sum.ops + line.ops).max(1));
            sum.latency = (sum.latency * float(sum.ops) + line.latency * float(line.ops)) / ops;
            sum.bytes += line.bytes;
            sum.ops += line.ops;
            sum.seconds += line.seconds;
            sum.cpu += line.cpu;
        }
        let mut all = all?;
        all.cpu /= float(passes.max(1));
        Some(all)
    }
}

/// All lines of a run.
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
    /// The names of the columns.
    pub fn header() -> String {
        format!(
            "{:<18}{:>4}{:>5}{:>15}{:>10}{:>10}{:>11}{:>12}{:>10}{:>8}  {:<6}{:>9}\n{:<18}{:>4}{:>5}{:>15}{:>10}{:>10}{:>11}{:>12}{:>10}{:>8}  {:<6}{:>9}\n",
            "",
            "T",
            "Q",
            "Bytes",
            "Ops",
            "Time",
            "Rate",
            "IOPS",
            "Latency",
            "%CPU",
            "OP",
            "ReqSize",
            "",
            "",
            "",
            "",
            "",
            "secs",
            "MBytes/s",
            "Ops/s",
            "millisec",
            "",
            "",
            "bytes"
        )
    }
    /// One more line of a target.
    pub fn add(&mut self, target: usize, line: Line) {
        self.lines.push((target, line));
    }
    /// One more pass.
    pub fn passed(&mut self, outcome: &Outcome) {
        self.seconds += outcome.seconds;
        self.bytes_together += outcome.all.bytes_together;
        self.seconds_together += outcome.seconds_together;
        self.cpu += 100.0 * outcome.meter.cpu_own / outcome.seconds;
        self.passes += 1;
    }
    /// All passes of a target.
    pub fn average(&self, target: usize, _job: &Job) -> Option<Line> {
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
        let rate = float(self.bytes_together) / 1e6 / self.seconds_together.max(1e-9);
        format!(
            "{} bytes in {:.3} secs while all targets were at work, {rate:.3} MBytes/s",
            self.bytes_together, self.seconds_together
        )
    }
    /// Comma-separated: passes, averages, combined.
    pub fn csv(&self, options: &Options) -> String {
        let mut text = String::from(
            "what,target,queue,bytes,ops,seconds,MB/s,iops,latency_ms,cpu_percent,op,request\n",
        );
        let mut passes = vec![0_u32; options.jobs.len()];
        for (target, line) in &self.lines {
            let pass = passes.get_mut(*target).map_or(0, |p| {
                *p += 1;
                *p
            });
            let _ = write!(text, "{}", line.csv(&format!("pass {pass}")));
        }
        for (n, job) in options.jobs.iter().enumerate() {
            if let Some(line) = self.average(n, job) {
                let _ = write!(text, "{}", line.csv("average"));
            }
        }
        text + &self.combined(options).csv("combined")
    }
}
