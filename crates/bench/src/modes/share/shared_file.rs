//! Names and files that all nodes see.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::args::Args;

/// A name that is used by one round of one run.
pub(super) fn name(what: &str, round: usize) -> String {
    format!("braid-bench-{}-{what}-{round}", std::process::id())
}

/// The file of a round, as each node sees it; removed at the end.
pub(super) struct SharedFile(pub(super) Vec<PathBuf>);
impl SharedFile {
    pub(super) fn new(args: &Args, what: &str, round: usize) -> Result<Self> {
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
    pub(super) fn open(&self, options: &OpenOptions) -> Result<Vec<File>> {
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
pub(super) fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}
