//! Several mounts of one file system, each of another node, meet: in one file, one lock, one directory. For each
//! way in which they meet the mode measures rate and latency, and counts what an operation costs: requests to the
//! devices, compare-and-writes, messages. What one node has written, the others must read.

mod blocks;
mod contended;
mod counts;
mod names;
mod turns;

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::{Measure, RoundPlan, RunOptions, System};
use crate::arguments::size;
use crate::report::Report;

/// Several mounts meet in one file, one lock, one directory
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories: the same one, through the mount of each node
    #[arg(value_name = "[NAME=]DIR", required = true)]
    nodes: Vec<System>,
    /// Number of writes that another node reads, of appends, and of writes by turns
    #[arg(long, default_value_t = 1000)]
    turns: u64,
    /// Block size
    #[arg(long, default_value = "64K", value_parser = size)]
    block: u64,
    /// Size of the file that all nodes write
    #[arg(long, default_value = "64M", value_parser = size)]
    size: u64,
    /// Number of files that each node creates, looks at, and removes
    #[arg(long, default_value_t = 1000)]
    files: usize,
    /// Seconds for which all nodes want one lock
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only rows that have one of these words in their name
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    how: RunOptions,
}

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

impl Args {
    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| row.contains(word.as_str()))
    }
    fn dirs(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.path.clone()).collect()
    }
}

/// A name that is used by one round of one run.
fn name(what: &str, round: usize) -> String {
    format!("braid-bench-{}-{what}-{round}", std::process::id())
}

/// The file of a round, as each node sees it; removed at the end.
struct SharedFile(Vec<PathBuf>);
impl SharedFile {
    fn new(args: &Args, what: &str, round: usize) -> Result<Self> {
        let name = name(what, round);
        let paths: Vec<_> = args.nodes.iter().map(|n| n.path.join(&name)).collect();
        let seen = Self(paths);
        for (n, path) in seen.0.iter().enumerate() {
            let made = if n == 0 { File::create_new(path) } else { File::open(path) };
            made.with_context(|| format!("{} (the nodes do not share it?)", path.display()))?;
        }
        Ok(seen)
    }
    /// Open on each node.
    fn open(&self, options: &OpenOptions) -> Result<Vec<File>> {
        let open = |p: &PathBuf| options.open(p).with_context(|| p.display().to_string());
        self.0.iter().map(open).collect()
    }
}
impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(path) = self.0.first() {
            std::fs::remove_file(path).ok();
        }
    }
}

/// To read and write.
fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}
