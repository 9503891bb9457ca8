//! What is asked for on the command line.

use std::path::PathBuf;

use crate::arguments::size;
use crate::modes::{RunOptions, System};

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
    #[command(flatten)]
    pub(super) how: RunOptions,
}

impl Args {
    pub(super) fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| row.contains(word.as_str()))
    }
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.path.clone()).collect()
    }
}
