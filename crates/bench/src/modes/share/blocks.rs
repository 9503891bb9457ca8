//! All nodes write one file, each every n-th block.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::args::Args;
use super::counts::Counts;
use super::shared_file::SharedFile;
use crate::engine::{Content, Limits, OpenMode, Pattern, Stream, Target, run as go};
use crate::modes::{Cell, at};
use crate::report::Report;
use crate::run::cache::left;

/// Every node writes every n-th block of a new file, then all of them again, then one node alone does
/// what they did together; after each, every node reads every block.
pub(super) fn measure(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    if !args.wants(NEW) && !args.wants(AGAIN) {
        return Ok(());
    }
    let seen = SharedFile::new(args, "strided", round)?;
    let nodes = seen.0.len() as u64;
    let each = args.size / args.block.max(1) / nodes;
    let all = |read| Pattern::sequential(0, each * nodes * args.block, args.block, read);
    let stream = |path: &PathBuf, pattern: Pattern, generation: u64| -> Result<Stream> {
        let read = pattern.reads > 0;
        let target =
            Target::keep(path, OpenMode { write: !read, overwrite: true, ..OpenMode::default() })?;
        target.check(args.block, 0, each * nodes * args.block, read)?;
        let content = Content::Verified { run: 0x5eb, generation };
        Ok(Stream { content, flush: !read, ..Stream::plain(target, pattern) })
    };
    let phases = [("nodes", NEW), ("nodes", AGAIN), ("one node", AGAIN)];
    for (generation, (name, phase)) in (3 * round as u64..).zip(phases) {
        let writers: Result<Vec<Stream>> = match name {
            "nodes" => {
                let part = |node| all(false).every(nodes, node, each);
                (0..).zip(&seen.0).map(|(n, path)| stream(path, part(n), generation)).collect()
            }
            _ => seen.0.iter().take(1).map(|path| stream(path, all(false), generation)).collect(),
        };
        let before = Counts::of(&args.dirs());
        let (row, outcome) =
            Cell { name, phase, at: at(&[]) }.run(report, &writers?, &Limits::default())?;
        "MB/s".clone_into(&mut row.unit);
        row.cache = Some(left(false).to_owned());
        before.show(&args.dirs(), outcome.all.bytes / args.block.max(1), row);
        for (node, path) in seen.0.iter().enumerate() {
            go(&[stream(path, all(true), generation)?], &Limits::default())?
                .ok()
                .with_context(|| format!("node {node} reads what was written"))?;
        }
    }
    report.note("every node read every block as it was written");
    Ok(())
}

const NEW: &str = "new file, every n-th block";
const AGAIN: &str = "all blocks again";
