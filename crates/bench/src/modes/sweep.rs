//! Request size by number of streams, direct and buffered, reading, writing and both (NCAR's CXFS
//! tests, S2: their forty plots are rows of this one table).

use anyhow::{Result, ensure};

use super::surface::word;
use super::{How, Subject, System, at, configuration};
use crate::cli::{Sizes, size};
use crate::engine::{Content, Limits, Order, Pattern, Stream, run as go};
use crate::report::Report;
use crate::run::cache::{Cache, label, prepare};

/// Bandwidth over request size, streams, direct and buffered
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories; the others are compared with the first
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Request sizes
    #[arg(long, default_value = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M")]
    requests: Sizes,
    /// Streams, each on a file (or a part) of its own
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    streams: Vec<usize>,
    /// Bytes of each stream's file
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Shares of reads, percent: 100 reads, 0 writes, 70 both
    #[arg(long, value_delimiter = ',', default_value = "0,100")]
    reads: Vec<u8>,
    /// Past the page cache, cold, or warm
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct,cold")]
    cache: Vec<Cache>,
    /// In any order rather than one after the other
    #[arg(long)]
    random: bool,
    /// Requests at a time of each stream
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Each cell ends after so many seconds, if its bytes have not moved before
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    #[command(flatten)]
    how: How,
}

impl Args {
    /// A short one, on these.
    pub fn of(systems: &[System], size: u64, how: &How) -> Self {
        Self {
            systems: systems.to_vec(),
            requests: Sizes::of(&[4 << 10, 64 << 10, 256 << 10, 1 << 20]),
            streams: vec![1, 2],
            size,
            reads: vec![0, 100],
            cache: vec![Cache::Direct, Cache::Cold],
            random: false,
            depth: 1,
            time: None,
            how: How { accept: Vec::new(), ..how.clone() },
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut report = empty(args);
    let result = measure(args, &mut report);
    args.how.finish(report, result)
}

/// Only the result.
pub(crate) fn measured(args: &Args) -> Result<Report> {
    let mut report = empty(args);
    measure(args, &mut report)?;
    Ok(report)
}

fn empty(args: &Args) -> Report {
    let base = args.systems.first().map_or("", |s| &s.name);
    let mut report = Report::new("sweep").against(base, "MB/s");
    report.configuration = configuration(args);
    let order = if args.random { "random" } else { "sequential" };
    report.fact("job", format!("{order}, depth {}, {} MiB a stream", args.depth, args.size >> 20));
    report
}

fn measure(args: &Args, report: &mut Report) -> Result<()> {
    let most = args.streams.iter().copied().max().unwrap_or(0);
    ensure!((1..=1024).contains(&most), "--streams: 1 to 1024");
    ensure!(args.streams.iter().all(|s| *s > 0), "--streams: at least 1");
    ensure!(args.reads.iter().all(|r| *r <= 100), "--reads: 0 to 100 percent");
    ensure!((1..=4096).contains(&args.depth), "--depth: 1 to 4096");
    let subjects = args
        .systems
        .iter()
        .map(|s| Subject::new(s, most, args.size, args.how.force_destroy))
        .collect::<Result<Vec<_>>>()?;
    for subject in &subjects {
        if args.reads.iter().any(|r| *r < 100) {
            subject.target(0, true, false)?;
        }
        subject.fill()?;
        report.targets.push(subject.target(0, false, false)?.describe());
    }
    args.how.rounds(report, subjects.len(), |report, _, system| {
        let Some(subject) = subjects.get(system) else { return Ok(()) };
        for cache in &args.cache {
            for reads in &args.reads {
                for streams in &args.streams {
                    for request in args.requests.iter().copied() {
                        cell(args, subject, (*cache, *reads, *streams, request), report)?;
                    }
                }
            }
        }
        Ok(())
    })
}

fn cell(
    args: &Args,
    subject: &Subject,
    (cache, reads, count, request): (Cache, u8, usize, u64),
    report: &mut Report,
) -> Result<()> {
    let direct = cache == Cache::Direct;
    let mut prepared = "";
    let mut streams = Vec::with_capacity(count);
    for (n, (_, from)) in subject.places.iter().enumerate().take(count) {
        let target = subject.target(n, reads < 100, direct)?;
        target.check(request, *from, from + args.size, reads > 0)?;
        prepared = prepare(&target.path, cache);
        let mut pattern = Pattern::sequential(*from, args.size, request, true);
        pattern.reads = reads;
        if args.random {
            pattern = pattern.ordered(Order::Random);
        }
        streams.push(Stream {
            target,
            pattern,
            depth: args.depth,
            pace: None,
            content: Content::Random,
            flush: reads < 100 && !direct,
        });
    }
    let time = args.time.map(std::time::Duration::try_from_secs_f64).transpose()?;
    let outcome = go(&streams, &Limits { time, ..Limits::default() })?.ok()?;
    let what = match reads {
        0 => "write".to_owned(),
        100 => "read".to_owned(),
        part => format!("{part} % read"),
    };
    #[expect(clippy::cast_precision_loss, reason = "sizes and counts")]
    let place = at(&[("request", request as f64), ("streams", count as f64)]);
    let phase = format!("{what} {}", word(cache));
    let bytes = args.size.saturating_mul(count as u64);
    let said = label(prepared, cache, bytes, crate::run::environment::memory());
    let row = report.add_outcome(&subject.name, &phase, &place, &outcome);
    row.cache = Some(said);
    row.series = None;
    Ok(())
}
