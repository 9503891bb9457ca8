//! The first write of a file, its rewrite, and reading it, as phases of their own (S3.6 to S3.9):
//! what allocation costs. The flush stands inside the measured time of buffered writes.

use anyhow::{Result, ensure};

use super::surface::word;
use super::{How, Subject, System, at, configuration};
use crate::cli::{Sizes, size};
use crate::engine::{Content, Limits, Pattern, Stream, run as go};
use crate::report::Report;
use crate::run::cache::{Cache, prepare};

/// First write, rewrite and read of a file
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories (or names of new files); the others are compared with the first
    #[arg(value_name = "[NAME=]DIR", required = true)]
    systems: Vec<System>,
    /// Request sizes
    #[arg(long, default_value = "64K,256K,1M,4M")]
    requests: Sizes,
    /// Bytes of the file
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Past the page cache, or cold
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct")]
    cache: Vec<Cache>,
    /// Requests at a time
    #[arg(long, default_value_t = 1)]
    depth: usize,
    #[command(flatten)]
    how: How,
}

impl Args {
    /// A short one, on these.
    pub fn of(systems: &[System], size: u64, how: &How) -> Self {
        Self {
            systems: systems.to_vec(),
            requests: Sizes::of(&[64 << 10, 1 << 20]),
            size,
            cache: vec![Cache::Direct],
            depth: 1,
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
    let mut report = Report::new("first-write").against(base, "MB/s");
    report.configuration = configuration(args);
    report.fact("job", format!("{} MiB, depth {}", args.size >> 20, args.depth));
    report
}

fn measure(args: &Args, report: &mut Report) -> Result<()> {
    ensure!((1..=4096).contains(&args.depth), "--depth: 1 to 4096");
    args.how.rounds(report, args.systems.len(), |report, _, system| {
        let Some(system) = args.systems.get(system) else { return Ok(()) };
        for cache in &args.cache {
            for request in args.requests.iter().copied() {
                // A new file each time: it is removed with the subject.
                let subject = Subject::new(system, 1, args.size, args.how.force_destroy)?;
                phases(args, &subject, (*cache, request), report)?;
            }
        }
        Ok(())
    })?;
    for (name, phase, ratio) in firsts(report) {
        report.note(format!("{name}, {phase}: first write over rewrite {ratio:.2}"));
    }
    Ok(())
}

fn phases(
    args: &Args,
    subject: &Subject,
    (cache, request): (Cache, u64),
    report: &mut Report,
) -> Result<()> {
    let direct = cache == Cache::Direct;
    for (phase, read) in [("first write", false), ("rewrite", false), ("read", true)] {
        let target = subject.target(0, !read, direct)?;
        ensure!(
            phase != "first write" || target.len() == 0,
            "{}: has been written before; name a new file",
            target.path.display()
        );
        target.check(request, 0, args.size, read)?;
        let prepared =
            if phase == "first write" { "new file" } else { prepare(&target.path, cache) };
        let stream = Stream {
            target,
            pattern: Pattern::sequential(0, args.size, request, read),
            depth: args.depth,
            pace: None,
            content: Content::Random,
            flush: !read,
        };
        let outcome = go(&[stream], &Limits::default())?.ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a size")]
        let place = at(&[("request", request as f64)]);
        let name = format!("{phase} {}", word(cache));
        let row = report.add_outcome(&subject.name, &name, &place, &outcome);
        row.cache = Some(prepared.to_owned());
    }
    Ok(())
}

/// First write over rewrite: system, at what, median ratio.
fn firsts(report: &Report) -> Vec<(String, String, f64)> {
    let first = |r: &crate::report::Row| {
        let cache = r.phase.strip_prefix("first write ")?;
        let again = format!("rewrite {cache}");
        let same = |b: &&crate::report::Row| {
            b.name == r.name && b.phase == again && b.parameters == r.parameters
        };
        let ratio = r.rate.ratio_to(&report.rows.iter().find(same)?.rate).median();
        Some((r.name.clone(), format!("{cache}, {}", r.at()), ratio))
    };
    report.rows.iter().filter_map(first).collect()
}
