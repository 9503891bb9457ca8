//! One to n ways: the same job on the first file or device, on the first two, and so on (S0.5,
//! S3.2). The streams are one per way; the ratio is the speed-up over one way.

use anyhow::{Result, ensure};

use super::{How, Subject, System, at, configuration};
use crate::cli::size;
use crate::engine::{Content, Direction, Limits, Pattern, Stream, run as go};
use crate::report::stats::Samples;
use crate::report::{Gate, Report, Verdict};
use crate::run::interval::Interval;

/// Speed-up on 1, 2 ... n files or devices side by side
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// The ways, in order
    #[arg(value_name = "[NAME=]PATH", required = true)]
    ways: Vec<System>,
    #[command(flatten)]
    job: Job,
}

/// What each way does.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Job {
    /// Bytes moved on each
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Bytes of a request
    #[arg(long, default_value = "1M", value_parser = size)]
    request: u64,
    /// Requests at a time on each
    #[arg(long, default_value_t = 4)]
    depth: usize,
    /// Which way
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read")]
    ops: Vec<Direction>,
    /// Through the page cache
    #[arg(long)]
    buffered: bool,
    #[command(flatten)]
    how: How,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let words = Words { kind: "stripe", one: "1 way", many: "ways", together: false };
    side_by_side(&args.ways, &args.job, &words, configuration(args))
}

/// How the mode calls its ways.
pub(crate) struct Words {
    pub kind: &'static str,
    pub one: &'static str,
    pub many: &'static str,
    /// What counts is the rate while all were at work.
    pub together: bool,
}

/// One, then two, then all of the ways at the same time.
pub(crate) fn side_by_side(
    ways: &[System],
    args: &Job,
    words: &Words,
    configuration: serde_json::Value,
) -> Result<()> {
    let mut report = Report::new(words.kind).against(words.one, "MB/s");
    report.configuration = configuration;
    let job = format!("{} MiB each, depth {}", args.size >> 20, args.depth);
    report.fact("job", job);
    let result = measure(ways, args, words, &mut report);
    // An efficiency, not a speed-up, is what a gate is for.
    let gates = &args.how.accept;
    let how = How { accept: Vec::new(), ..args.how.clone() };
    report.verdicts = judge(&report, gates);
    let verdicts = report.verdicts.clone();
    how.finish(report, result)?;
    if gates.is_empty() { Ok(()) } else { crate::report::gate::pass(&verdicts) }
}

fn judge(report: &Report, gates: &[Gate]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for row in report.rows.iter().filter(|r| r.name != report.base) {
        let Some(base) = report.base_of(row) else { continue };
        let ways = row.more.get("ways").map_or(1.0, Samples::median);
        let mut ratio = row.ratio_to(base);
        ratio.0.iter_mut().for_each(|r| *r /= ways);
        let names = |g: &&Gate| row.phase.contains(&g.word) || row.name == g.word;
        let Some(gate) = gates.iter().rev().find(names) else { continue };
        let measured = ratio.median();
        verdicts.push(Verdict {
            what: format!("{} {}, part of the sum of each alone", row.name, row.phase),
            original: String::new(),
            goal: gate.least,
            at_most: false,
            measured: Some(measured),
            interval: Interval::of(&ratio),
            met: measured >= gate.least,
            note: String::new(),
        });
    }
    verdicts
}

fn measure(ways: &[System], args: &Job, words: &Words, report: &mut Report) -> Result<()> {
    ensure!((1..=4096).contains(&args.depth), "--depth: 1 to 4096");
    let subjects = ways
        .iter()
        .map(|s| Subject::new(s, 1, args.size, args.how.force_destroy))
        .collect::<Result<Vec<_>>>()?;
    for subject in &subjects {
        if args.ops.contains(&Direction::Write) {
            subject.target(0, true, false)?;
        }
        subject.fill()?;
        report.targets.push(subject.target(0, false, false)?.describe());
    }
    args.how.rounds(report, subjects.len(), |report, _, system| {
        for op in &args.ops {
            let streams = subjects
                .iter()
                .take(system + 1)
                .map(|subject| {
                    let write = *op == Direction::Write;
                    let target = subject.target(0, write, !args.buffered)?;
                    target.check(args.request, 0, args.size, !write)?;
                    Ok(Stream {
                        target,
                        pattern: Pattern::sequential(0, args.size, args.request, !write),
                        depth: args.depth,
                        pace: None,
                        content: Content::Random,
                        flush: write,
                    })
                })
                .collect::<Result<Vec<_>>>()?;
            let outcome = go(&streams, &Limits::default())?.ok()?;
            let ways = u32::try_from(system + 1).unwrap_or(u32::MAX);
            let many = format!("{ways} {}", words.many);
            let name = if ways == 1 { words.one } else { &many };
            let row = report.add_outcome(name, op.word(), &at(&[]), &outcome);
            if let (true, Some(rate)) = (words.together, row.rate.0.last_mut()) {
                *rate = outcome.mb_per_s_together();
            }
            row.more.entry("ways".to_owned()).or_default().0.push(f64::from(ways));
        }
        Ok(())
    })
}
