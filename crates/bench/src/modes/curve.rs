//! Latency over load (an open loop): requests are issued at fixed times, whatever happened to earlier ones,
//! at rising percentages of what the first system can do.
//!
//! Latency counts from the time when a request was due. So a stall counts for all requests that it held
//! up, even for those that were not issued before the time was up. Latency includes how late the kernel
//! wakes a thread for its next request; the result says how much that is on average.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Cell, Measure, RunOptions, SpaceNeeds, System, TestArea};
use super::{at, base, distinct, holds, test_areas};
use crate::arguments::size;
use crate::engine::{Direction, Limits, Order, Pace, Pattern, Stream, in_turns};
use crate::report::Report;
use crate::run::cache::left;
use crate::statistics::float;

/// Latency (p50 to p99.99) over load
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Loads, in percent of the highest rate of the first system
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,70,80,90,95")]
    loads: Vec<f64>,
    /// Loads in requests per second, instead of --loads
    #[arg(long, value_delimiter = ',', conflicts_with = "loads")]
    iops: Vec<f64>,
    /// Request size
    #[arg(long, default_value = "4K", value_parser = size)]
    request: u64,
    /// Size of the range
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Read or write
    #[arg(long, value_enum, default_value = "read")]
    op: Direction,
    /// Sequential order, not random
    #[arg(long)]
    sequential: bool,
    /// Queue depth, at most
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Seconds for each load
    #[arg(long, default_value_t = 2.0)]
    time: f64,
    /// Through the page cache (no direct I/O)
    #[arg(long)]
    buffered: bool,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("curve").against(base(&self.systems), "IOPS");
        report.fact("job", format!("{} of {} bytes at fixed times", self.op.word(), self.request));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        ensure!((1..=1024).contains(&self.depth), "--depth: 1 to 1024");
        ensure!(self.time > 0.0 && self.time <= 86_400.0, "--time: above 0, at most a day");
        let within = |given: &[f64], most: f64| given.iter().all(|l| *l > 0.0 && *l <= most);
        ensure!(within(&self.loads, LOAD_MAX), "--loads: above 0, at most {LOAD_MAX} percent");
        ensure!(within(&self.iops, IOPS_MAX), "--iops: above 0, at most {IOPS_MAX}");
        holds(self.size, &[self.request])?;
        let (bytes, write) = (self.size, self.op == Direction::Write);
        let room = SpaceNeeds { streams: 1, bytes, write, force: how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        let Some(first) = areas.first() else { return Ok(()) };
        let time = Some(Duration::from_secs_f64(self.time));
        let limits = Limits { time, ..Limits::default() };
        let most = crate::engine::run(&[self.stream(first)?], &limits)?.ok()?.iops();
        report.fact("most", format!("{most:.0} requests per second, depth {}", self.depth));
        let rates: Vec<f64> = if self.iops.is_empty() {
            self.loads.iter().map(|l| most * l / 100.0).collect()
        } else {
            self.iops.clone()
        };
        how.compare(report, &areas, rates.len(), |report, area| {
            rates.iter().try_for_each(|iops| self.load(area, *iops, &limits, report))
        })
    }
    fn conclude(&self, report: &mut Report) {
        let most = |key| {
            let all = report.rows.iter().filter_map(|r| r.more.get(key));
            all.flat_map(|s| s.0.iter().copied()).fold(0.0, f64::max)
        };
        let (late, held) = (most(WOKEN), most(HELD));
        report.note(format!(
            "threads ask to be woken within a nanosecond; the latencies have in them how late they \
             were, {late:.1} us on average in the worst row"
        ));
        if held > 0.0 {
            report.note(format!(
                "requests that were due and not begun when the time was up, {held:.0} in the worst \
                 round, count with how late they were by then"
            ));
        }
    }
}

/// Percent of what the first system can do.
const LOAD_MAX: f64 = 1000.0;
const IOPS_MAX: f64 = 1e8;
/// Quantities of a row.
const HELD: &str = "held up, not begun";
const WOKEN: &str = "woken late, us on average";

impl Args {
    /// One more repeat at one rate. The axis is the rate at which requests are due: the one asked for,
    /// in whole nanoseconds between two of them.
    fn load(&self, area: &TestArea, iops: f64, limits: &Limits, report: &mut Report) -> Result<()> {
        let interval = Duration::from_secs_f64(1.0 / iops.max(1e-3)).max(Duration::from_nanos(1));
        let offered = 1.0 / interval.as_secs_f64();
        let at = at(&[("offered", offered.round().max(1.0))]);
        let cell = Cell { name: &area.name, phase: self.op.word(), at };
        let pace = Some(Pace { interval, first: Duration::ZERO });
        let paced = Stream { pace, ..self.stream(area)? };
        let (row, outcome) = cell.run(report, &in_turns(&paced, self.depth), limits)?;
        row.replace_rate(outcome.iops());
        let all = &outcome.all;
        let late = all.slack.as_secs_f64() * 1e6 / float(all.waited.max(1));
        for (key, value) in [("offered", offered), (HELD, float(all.held)), (WOKEN, late)] {
            row.add(key, value);
        }
        row.cache = Some(left(!self.buffered).to_owned());
        row.series = None;
        Ok(())
    }
    fn stream(&self, area: &TestArea) -> Result<Stream> {
        let order = if self.sequential { Order::Sequential } else { Order::Random };
        let read = self.op == Direction::Read;
        let pattern = Pattern::sequential(0, self.size, self.request, read).ordered(order);
        let pattern = Pattern { count: u64::MAX / 2 / self.request, ..pattern };
        area.stream(0, pattern, !self.buffered, self.depth)
    }
}
