//! Several mounts of one file system, each of another node, meet: in one file, one lock, one directory. For each
//! way in which they meet the mode measures rate and latency, and counts what an operation costs: requests to the
//! devices, compare-and-writes, messages. What one node has written, the others must read.

mod blocks;
mod counts;
mod locks;
mod names;
mod round;
mod turns;

use anyhow::{Result, ensure};

use super::{Measure, RoundPlan, RunOptions};
use crate::report::Report;
use round::Round;

pub(crate) use round::Args;

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("share").against("", "per s");
        report.fact("job", format!("{} nodes, blocks of {} bytes", self.nodes.len(), self.block));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        let nodes = self.nodes.len() as u64;
        ensure!(nodes >= 2, "at least two mounts share something");
        ensure!(self.turns > 0, "--turns: at least 1");
        ensure!((1..=1 << 26).contains(&self.block), "--block: 1 byte to 64 MiB");
        ensure!(self.size / self.block >= nodes, "--size: at least one block for each node");
        ensure!((1..=1_000_000).contains(&self.files), "--files: 1 to 1000000");
        ensure!(self.seconds > 0.0 && self.seconds <= 3600.0, "--seconds: an hour at most");
        how.rounds(report, RoundPlan::new(1, ROWS), |report, number, _| {
            let round = &mut Round { args: self, number, report };
            turns::measure(round)?;
            locks::measure(round)?;
            names::measure(round)?;
            blocks::measure(round)
        })
    }
}

/// Of all parts.
const ROWS: usize = 14;
