//! A round: what is asked for, the files that all nodes see, and how a row of it is measured.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::counts::Counts;
use crate::arguments::size;
use crate::modes::at_once::{self, ThreadResult, fairness};
use crate::modes::{System, at};
use crate::report::Report;

/// Several mounts meet in one file, one lock, one directory
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories: the same one, through the mount of each node
    #[arg(value_name = "[NAME=]DIR", required = true)]
    pub(super) nodes: Vec<System>,
    /// Number of writes that another node reads, of appends, and of writes by turns
    #[arg(long, default_value_t = 1000)]
    pub(super) turns: u64,
    /// Block size
    #[arg(long, default_value = "64K", value_parser = size)]
    pub(super) block: u64,
    /// Size of the file that all nodes write
    #[arg(long, default_value = "64M", value_parser = size)]
    pub(super) size: u64,
    /// Number of files that each node creates, looks at, and removes
    #[arg(long, default_value_t = 1000)]
    pub(super) files: usize,
    /// Seconds for which all nodes want one lock
    #[arg(long, default_value_t = 1.0)]
    pub(super) seconds: f64,
    /// Only rows that have one of these words in their name
    #[arg(long, value_delimiter = ',')]
    pub(super) only: Vec<String>,
}

impl Args {
    pub(super) fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| row.contains(word.as_str()))
    }
}

/// A round, and where its rows go.
pub(super) struct Round<'a> {
    pub args: &'a Args,
    pub number: usize,
    pub report: &'a mut Report,
}

impl Round<'_> {
    /// The paths of a name that this round alone uses, as each node sees it.
    pub fn paths(&self, what: &str) -> Vec<PathBuf> {
        let name = format!("braid-bench-{}-{what}-{}", std::process::id(), self.number);
        self.args.nodes.iter().map(|node| node.path.join(&name)).collect()
    }
    pub fn file(&self, what: &str) -> Result<SharedFile> {
        let seen = SharedFile(self.paths(what));
        for (n, path) in seen.0.iter().enumerate() {
            let made = if n == 0 { File::create_new(path) } else { File::open(path) };
            made.with_context(|| format!("{} (the nodes do not share it?)", path.display()))?;
        }
        Ok(seen)
    }
    /// What the nodes have been asked for until now.
    pub fn counts(&self) -> Counts {
        Counts::of(self.args.nodes.iter().map(|node| node.path.clone()).collect())
    }
    /// One more repeat of a row: what each node at work did, and what that cost all of them. The rate
    /// is that of all nodes together; beside it stands how the slowest did beside the fastest.
    pub fn row(
        &mut self,
        what: &str,
        work: impl FnOnce() -> Result<Vec<ThreadResult>>,
    ) -> Result<()> {
        let before = self.counts();
        let (row, done) = at_once::row(self.report, ("nodes", what), &at(&[]), work)?;
        before.show(done.iter().map(|node| node.0 as u64).sum(), row);
        if done.len() > 1 {
            let fair = fairness(&done);
            row.add("slowest over fastest", fair);
            let said = format!("slowest node over fastest {fair:.2}");
            row.issued =
                Some(row.issued.take().map_or_else(|| said.clone(), |i| format!("{i}; {said}")));
        }
        Ok(())
    }
}

/// A file as each node sees it; removed at the end.
pub(super) struct SharedFile(pub(super) Vec<PathBuf>);
impl SharedFile {
    /// Open on each node, to read and write, and perhaps to append.
    pub(super) fn open(&self, append: bool) -> Result<Vec<File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).append(append);
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
