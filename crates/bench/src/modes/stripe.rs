//! Speed-up on 1, 2 ... n files or devices: one stream on each. The ratio is to one of them (S0.5, S3.2).
//!
//! `scale` does the same on nodes: each directory is a mount of the same file system by another node (or another
//! process). All begin together; the rate counts while all are at work (S4.3, S4.4).

use anyhow::{Result, ensure};

use super::{Cell, Measure, RoundPlan, RunOptions, SpaceNeeds, System, TestArea};
use super::{at, holds, test_areas};
use crate::arguments::size;
use crate::engine::{Direction, Limits, Pattern, Stream};
use crate::report::acceptance::judge_by;
use crate::report::{Acceptance, Report, Verdict};
use crate::run::cache::left;
use crate::statistics::Samples;

/// Speed-up on 1, 2 ... n files or devices at the same time
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories, in order
    #[arg(value_name = "[NAME=]PATH", required = true)]
    ways: Vec<System>,
    #[command(flatten)]
    job: Job,
}

/// What each way does.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Job {
    /// Bytes moved on each of them
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Request size
    #[arg(long, default_value = "1M", value_parser = size)]
    request: u64,
    /// Queue depth on each of them
    #[arg(long, default_value_t = 4)]
    depth: usize,
    /// Read or write
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read")]
    ops: Vec<Direction>,
    /// Through the page cache (no direct I/O)
    #[arg(long)]
    buffered: bool,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        self.job.begin(&WAYS)
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        self.job.measure(&self.ways, &WAYS, how, report)
    }
    fn judge(&self, report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
        judge(report, accepted)
    }
}

/// Speed-up on 1, 2 ... n nodes: mounts of one file system
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Nodes {
    /// Directories, one on each node's mount
    #[arg(value_name = "[NAME=]DIR", required = true)]
    nodes: Vec<System>,
    #[command(flatten)]
    job: Job,
}

impl Measure for Nodes {
    fn begin(&self) -> Report {
        self.job.begin(&NODES)
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        self.job.measure(&self.nodes, &NODES, how, report)
    }
    fn judge(&self, report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
        judge(report, accepted)
    }
}

/// What is said of rounds in which there is no rate while all were at work.
const LITTLE_OVERLAP: &str = "in some rounds the nodes hardly worked at the same time: their rate is that over all of the \
                              time; a larger --size gives more overlap";

/// How a mode calls its ways.
struct Words {
    kind: &'static str,
    one: &'static str,
    many: &'static str,
    /// What counts is the rate while all were at work.
    together: bool,
}
const WAYS: Words = Words { kind: "stripe", one: "1 way", many: "ways", together: false };
const NODES: Words = Words { kind: "scale", one: "1 node", many: "nodes", together: true };

/// An efficiency, not a speed-up, is what `--accept` judges.
fn judge(report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
    judge_by(report, accepted, |row, base| {
        let ways = row.more.get("ways").map_or(1.0, Samples::median);
        let mut ratio = row.ratio_to(base);
        ratio.0.iter_mut().for_each(|r| *r /= ways);
        (format!("{} {}, part of the sum of each alone", row.name, row.phase), ratio)
    })
}

impl Job {
    fn begin(&self, words: &Words) -> Report {
        let mut report = Report::new(words.kind).against(words.one, "MB/s");
        report.fact("job", format!("{} MiB each, depth {}", self.size >> 20, self.depth));
        report
    }
    /// One, then two, then all of the ways at the same time.
    fn measure(
        &self,
        ways: &[System],
        words: &Words,
        how: &RunOptions,
        report: &mut Report,
    ) -> Result<()> {
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        holds(self.size, &[self.request])?;
        let (bytes, write) = (self.size, self.ops.contains(&Direction::Write));
        let room = SpaceNeeds { streams: 1, bytes, write, force: how.force_destroy };
        let areas = test_areas(ways, room, report)?;
        how.rounds(report, RoundPlan::new(areas.len(), self.ops.len()), |report, _, system| {
            for op in self.ops.iter().copied() {
                let (read, direct) = (op == Direction::Read, !self.buffered);
                let pattern = Pattern::sequential(0, self.size, self.request, read);
                let stream = |area: &TestArea| {
                    Ok(Stream { flush: !read, ..area.stream(0, pattern, direct, self.depth)? })
                };
                let streams =
                    areas.iter().take(system + 1).map(stream).collect::<Result<Vec<_>>>()?;
                let ways = u32::try_from(system + 1).unwrap_or(u32::MAX);
                let many = format!("{ways} {}", words.many);
                let name = if ways == 1 { words.one } else { &many };
                let cell = Cell { name, phase: op.word(), at: at(&[]) };
                let (row, outcome) = cell.run(report, &streams, &Limits::default())?;
                let together = outcome.mb_per_s_together().filter(|_| words.together);
                if let Some(together) = together {
                    row.replace_rate(together);
                }
                row.cache = Some(left(direct).to_owned());
                row.add("ways", f64::from(ways));
                if words.together && together.is_none() {
                    report.note(LITTLE_OVERLAP);
                }
            }
            Ok(())
        })
    }
}
