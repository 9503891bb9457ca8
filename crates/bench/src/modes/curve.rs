//! Latency against load: requests are issued at fixed times, whatever happened to those before, at
//! rising parts of what the first system can do. Latency counts from when a request was due, so
//! that a stall is seen by all requests that it held up.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{How, Subject, System, at, configuration};
use crate::cli::size;
use crate::engine::{
    Content, Direction, Limits, Order, Pace, Pattern, Stream, in_turns, run as go,
};
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

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(base) = args.systems.first() else { return Ok(()) };
    let mut report = Report::new("curve").against(&base.name, "IOPS");
    report.configuration = configuration(args);
    report.fact("job", format!("{} of {} bytes at fixed times", args.op.word(), args.request));
    let result = measure(args, &mut report);
    args.how.finish(report, result)
}

fn measure(args: &Args, report: &mut Report) -> Result<()> {
    ensure!((1..=1024).contains(&args.depth), "--depth: 1 to 1024");
    ensure!(args.time > 0.0 && args.time <= 86_400.0, "--time: above 0, at most a day");
    let given = args.loads.iter().chain(&args.iops);
    ensure!(given.clone().all(|l| l.is_finite() && *l > 0.0), "loads are above 0");
    let subjects = args
        .systems
        .iter()
        .map(|s| Subject::new(s, 1, args.size, args.how.force_destroy))
        .collect::<Result<Vec<_>>>()?;
    for subject in &subjects {
        subject.target(0, args.op == Direction::Write, !args.buffered)?;
        subject.fill()?;
        report.targets.push(subject.target(0, false, false)?.describe());
    }
    let Some(first) = subjects.first() else { return Ok(()) };
    let limits = Limits { time: Some(Duration::from_secs_f64(args.time)), ..Limits::default() };
    let most = go(&[stream(args, first)?], &limits)?.ok()?.iops();
    report.fact("most", format!("{most:.0} requests per second, depth {}", args.depth));
    let loads: Vec<(f64, f64)> = if args.iops.is_empty() {
        args.loads.iter().map(|l| (*l, most * l / 100.0)).collect()
    } else {
        args.iops.iter().map(|l| (*l, *l)).collect()
    };
    let key = if args.iops.is_empty() { "load" } else { "offered" };
    args.how.rounds(report, subjects.len(), |report, _, system| {
        let Some(subject) = subjects.get(system) else { return Ok(()) };
        for (load, iops) in &loads {
            let paced = Stream {
                pace: Some(Pace {
                    interval: Duration::from_secs_f64(1.0 / iops.max(1e-3)),
                    first: Duration::ZERO,
                }),
                ..stream(args, subject)?
            };
            let outcome = go(&in_turns(&paced, args.depth), &limits)?.ok()?;
            let place = at(&[(key, *load)]);
            let row = report.add_outcome(&subject.name, args.op.word(), &place, &outcome);
            if let Some(rate) = row.rate.0.last_mut() {
                *rate = outcome.iops();
            }
            row.more.entry("offered".to_owned()).or_default().0.push(*iops);
            row.series = None;
        }
        Ok(())
    })
}

fn stream(args: &Args, subject: &Subject) -> Result<Stream> {
    let read = args.op == Direction::Read;
    let target = subject.target(0, !read, !args.buffered)?;
    target.check(args.request, 0, args.size, read)?;
    let order = if args.sequential { Order::Sequential } else { Order::Random };
    let mut pattern = Pattern::sequential(0, args.size, args.request, read).ordered(order);
    pattern.count = u64::MAX / 2 / args.request;
    Ok(Stream {
        target,
        pattern,
        depth: args.depth,
        pace: None,
        content: Content::Random,
        flush: false,
    })
}
