//! One to n nodes: each directory is a mount of the same file system on another node (or another
//! process); all begin together, and what counts is the rate while all were at work (S4.3, S4.4).

use anyhow::Result;

use super::stripe::{Job, Words, judge};
use super::{Measure, RunOptions, System};
use crate::report::{Report, Verdict};

/// Speed-up on 1, 2 ... n mounts of one file system, begun together
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories, one on each node's mount
    #[arg(value_name = "[NAME=]DIR", required = true)]
    nodes: Vec<System>,
    #[command(flatten)]
    job: Job,
}

impl Measure for Args {
    fn how(&self) -> &RunOptions {
        self.job.how()
    }
    fn begin(&self) -> Report {
        self.job.begin(&WORDS)
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        self.job.measure(&self.nodes, &WORDS, report)
    }
    fn judge(&self, report: &Report) -> Vec<Verdict> {
        judge(report, &self.job.how().accept)
    }
}

const WORDS: Words = Words { kind: "scale", one: "1 node", many: "nodes", together: true };
