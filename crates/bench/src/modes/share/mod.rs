//! Several mounts of one file system, each of another node, meet: in one file, one lock, one directory. For each
//! way in which they meet the mode measures rate and latency, and counts what an operation costs: requests to the
//! devices, compare-and-writes, messages. What one node has written, the others must read.

mod args;
mod blocks;
mod contended;
mod counts;
mod names;
mod shared_file;
mod turns;

use anyhow::{Result, ensure};

use super::{Measure, RoundPlan, RunOptions};
use crate::report::Report;

pub(crate) use args::Args;

impl Measure for Args {
    fn how(&self) -> &RunOptions {
        &self.how
    }
    fn begin(&self) -> Report {
        let mut report = Report::new("share").against("", "per s");
        report.fact("job", format!("{} nodes, blocks of {} bytes", self.nodes.len(), self.block));
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        let nodes = self.nodes.len() as u64;
        ensure!(nodes >= 2, "at least two mounts share something");
        ensure!(self.turns > 0, "--turns: at least 1");
        ensure!((1..=1 << 26).contains(&self.block), "--block: 1 byte to 64 MiB");
        ensure!(self.size / self.block >= nodes, "--size: at least one block for each node");
        ensure!((1..=1_000_000).contains(&self.files), "--files: 1 to 1000000");
        ensure!(self.seconds > 0.0 && self.seconds <= 3600.0, "--seconds: an hour at most");
        self.how.rounds(report, RoundPlan::new(1, ROWS), |report, round, _| {
            turns::measure(self, round, report)?;
            contended::measure(self, round, report)?;
            names::measure(self, round, report)?;
            blocks::measure(self, round, report)
        })
    }
}

/// Of all parts.
const ROWS: usize = 14;
