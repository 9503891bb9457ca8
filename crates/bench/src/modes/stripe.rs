//! Speed-up on 1, 2 ... n files or devices: one stream on each. The ratio is to one of them (S0.5, S3.2).

use anyhow::{Result, ensure};

use super::{Cell, Measure, RoundPlan, RunOptions, SpaceNeeds, System, TestArea, at, test_areas};
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
    #[command(flatten)]
    how: RunOptions,
}

impl Measure for Args {
    fn how(&self) -> &RunOptions {
        &self.job.how
    }
    fn begin(&self) -> Report {
        self.job.begin(&WORDS)
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        self.job.measure(&self.ways, &WORDS, report)
    }
    fn judge(&self, report: &Report) -> Vec<Verdict> {
        judge(report, &self.job.how.accept)
    }
}

/// What is said of rounds in which there is no rate while all were at work.
const LITTLE_OVERLAP: &str = "in some rounds the nodes hardly worked at the same time: their rate is that over all of the \
                              time; a larger --size gives more overlap";

const WORDS: Words = Words { kind: "stripe", one: "1 way", many: "ways", together: false };

/// How the mode calls its ways.
pub(crate) struct Words {
    pub kind: &'static str,
    pub one: &'static str,
    pub many: &'static str,
    /// What counts is the rate while all were at work.
    pub together: bool,
}

/// An efficiency, not a speed-up, is what `--accept` judges.
pub(crate) fn judge(report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
    judge_by(report, accepted, |row, base| {
        let ways = row.more.get("ways").map_or(1.0, Samples::median);
        let mut ratio = row.ratio_to(base);
        ratio.0.iter_mut().for_each(|r| *r /= ways);
        (format!("{} {}, part of the sum of each alone", row.name, row.phase), ratio)
    })
}

impl Job {
    /// How it is run.
    pub fn how(&self) -> &RunOptions {
        &self.how
    }
    /// The result without rows.
    pub fn begin(&self, words: &Words) -> Report {
        let mut report = Report::new(words.kind).against(words.one, "MB/s");
        report.fact("job", format!("{} MiB each, depth {}", self.size >> 20, self.depth));
        report
    }
    /// One, then two, then all of the ways at the same time.
    pub fn measure(&self, ways: &[System], words: &Words, report: &mut Report) -> Result<()> {
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        let (size, request) = (self.size, self.request);
        ensure!(size >= request, "--size: {size} bytes are less than a request of {request}");
        let write = self.ops.contains(&Direction::Write);
        let room =
            SpaceNeeds { streams: 1, bytes: self.size, write, force: self.how.force_destroy };
        let areas = test_areas(ways, room, report)?;
        let turns = RoundPlan::new(areas.len(), self.ops.len());
        self.how.rounds(report, turns, |report, _, system| {
            for op in &self.ops {
                let streams = areas.iter().take(system + 1).map(|s| self.stream(s, *op));
                let streams = streams.collect::<Result<Vec<_>>>()?;
                let ways = u32::try_from(system + 1).unwrap_or(u32::MAX);
                let many = format!("{ways} {}", words.many);
                let name = if ways == 1 { words.one } else { &many };
                let cell = Cell { name, phase: op.word(), at: at(&[]) };
                let (row, outcome) = cell.run(report, &streams, &Limits::default())?;
                let together = outcome.mb_per_s_together().filter(|_| words.together);
                if let Some(together) = together {
                    row.replace_rate(together);
                }
                row.cache = Some(left(!self.buffered).to_owned());
                row.add("ways", f64::from(ways));
                if words.together && together.is_none() {
                    report.note(LITTLE_OVERLAP);
                }
            }
            Ok(())
        })
    }
    fn stream(&self, area: &TestArea, op: Direction) -> Result<Stream> {
        let write = op == Direction::Write;
        let target = area.target(0, write, !self.buffered)?;
        target.check(self.request, 0, self.size, !write)?;
        let pattern = Pattern::sequential(0, self.size, self.request, !write);
        Ok(Stream { depth: self.depth, flush: write, ..Stream::plain(target, pattern) })
    }
}
