//! Speed-up on 1, 2 ... n nodes. Each directory is a mount of the same file system by another node (or another
//! process). All begin together; the rate counts while all are at work (S4.3, S4.4).

use anyhow::Result;

use super::stripe::{Job, Words, judge};
use super::{Measure, RunOptions, System};
use crate::report::{Report, Verdict};

/// Speed-up on 1, 2 ... n nodes: mounts of one file system
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
