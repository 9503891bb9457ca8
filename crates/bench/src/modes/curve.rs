//! Latency against load: requests are issued at fixed times, whatever happened to those before, at
//! rising parts of what the first system can do. Latency counts from when a request was due, so
//! that a stall is seen by all requests that it held up.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Cell, How, Measure, Room, Subject, System, Turns, at, base, subjects};
use crate::cli::size;
use crate::engine::{Direction, Limits, Order, Pace, Pattern, Stream, in_turns};
use crate::report::Report;

/// Latency (p50 to p99.99) over load
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Parts of what the first system can do, percent
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,70,80,90,95")]
    loads: Vec<f64>,
    /// Requests per second instead
    #[arg(long, value_delimiter = ',', conflicts_with = "loads")]
    iops: Vec<f64>,
    /// Bytes of a request
    #[arg(long, default_value = "4K", value_parser = size)]
    request: u64,
    /// Bytes of the range
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Which way
    #[arg(long, value_enum, default_value = "read")]
    op: Direction,
    /// One after the other rather than in any order
    #[arg(long)]
    sequential: bool,
    /// Requests at a time, at most
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Seconds for each load
    #[arg(long, default_value_t = 2.0)]
    time: f64,
    /// Through the page cache
    #[arg(long)]
    buffered: bool,
    #[command(flatten)]
    how: How,
}

impl Measure for Args {
    fn how(&self) -> &How {
        &self.how
    }
    fn begin(&self) -> Report {
        let mut report = Report::new("curve").against(base(&self.systems), "IOPS");
        report.fact("job", format!("{} of {} bytes at fixed times", self.op.word(), self.request));
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        ensure!((1..=1024).contains(&self.depth), "--depth: 1 to 1024");
        ensure!(self.time > 0.0 && self.time <= 86_400.0, "--time: above 0, at most a day");
        let given = self.loads.iter().chain(&self.iops);
        ensure!(given.clone().all(|l| l.is_finite() && *l > 0.0), "loads are above 0");
        let write = self.op == Direction::Write;
        let room = Room { streams: 1, bytes: self.size, write, force: self.how.force_destroy };
        let subjects = subjects(&self.systems, room, report)?;
        let Some(first) = subjects.first() else { return Ok(()) };
        let time = Some(Duration::from_secs_f64(self.time));
        let limits = Limits { time, ..Limits::default() };
        let most = crate::engine::run(&[self.stream(first)?], &limits)?.ok()?.iops();
        report.fact("most", format!("{most:.0} requests per second, depth {}", self.depth));
        let (key, loads): (_, Vec<(f64, f64)>) = if self.iops.is_empty() {
            ("load", self.loads.iter().map(|l| (*l, most * l / 100.0)).collect())
        } else {
            ("offered", self.iops.iter().map(|l| (*l, *l)).collect())
        };
        let turns = Turns::new(subjects.len(), loads.len());
        self.how.rounds(report, turns, |report, _, system| {
            let Some(subject) = subjects.get(system) else { return Ok(()) };
            for (load, iops) in &loads {
                let at = at(&[(key, *load)]);
                let cell = Cell { name: &subject.name, phase: self.op.word(), at };
                let interval = Duration::from_secs_f64(1.0 / iops.max(1e-3));
                let pace = Some(Pace { interval, first: Duration::ZERO });
                let paced = Stream { pace, ..self.stream(subject)? };
                let (row, outcome) = cell.run(report, &in_turns(&paced, self.depth), &limits)?;
                if let Some(rate) = row.rate.0.last_mut() {
                    *rate = outcome.iops();
                }
                row.more.entry("offered".to_owned()).or_default().0.push(*iops);
                row.series = None;
            }
            Ok(())
        })
    }
}

impl Args {
    fn stream(&self, subject: &Subject) -> Result<Stream> {
        let read = self.op == Direction::Read;
        let target = subject.target(0, !read, !self.buffered)?;
        target.check(self.request, 0, self.size, read)?;
        let order = if self.sequential { Order::Sequential } else { Order::Random };
        let mut pattern = Pattern::sequential(0, self.size, self.request, read).ordered(order);
        pattern.count = u64::MAX / 2 / self.request;
        Ok(Stream { depth: self.depth, ..Stream::plain(target, pattern) })
    }
}
