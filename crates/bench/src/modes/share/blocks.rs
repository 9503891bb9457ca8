//! All nodes write one file, each every n-th block.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::round::Round;
use crate::engine::{Content, Limits, OpenMode, Pattern, Stream, Target, run as go};
use crate::modes::{Cell, at};
use crate::run::cache::left;

const NEW: &str = "new file, every n-th block";
const AGAIN: &str = "all blocks again";

/// Every node writes every n-th block of a new file, then all of them again, then one node alone does
/// what they did together; after each, every node reads every block.
pub(super) fn measure(round: &mut Round) -> Result<()> {
    let args = round.args;
    if !args.wants(NEW) && !args.wants(AGAIN) {
        return Ok(());
    }
    let seen = round.file("strided")?;
    let nodes = seen.0.len() as u64;
    let each = args.size / args.block.max(1) / nodes;
    let bytes = each * nodes * args.block;
    let all = |read| Pattern::sequential(0, bytes, args.block, read);
    let stream = |path: &PathBuf, pattern: Pattern, generation: u64| -> Result<Stream> {
        let read = pattern.reads > 0;
        let how = OpenMode { write: !read, overwrite: true, ..OpenMode::default() };
        let target = Target::open(path, how)?;
        target.check(args.block, 0, bytes, read)?;
        let content = Content::Verified { run: 0x5eb, generation };
        Ok(Stream { content, flush: !read, ..Stream::plain(target, pattern) })
    };
    let phases = [("nodes", NEW), ("nodes", AGAIN), ("one node", AGAIN)];
    for (generation, (name, phase)) in (3 * round.number as u64..).zip(phases) {
        let (writers, steps) = if name == "nodes" { (nodes, nodes) } else { (1, 1) };
        let part = |n| all(false).every(steps, n, each * nodes / steps);
        let writers = (0..writers).zip(&seen.0).map(|(n, path)| stream(path, part(n), generation));
        let writers = writers.collect::<Result<Vec<_>>>()?;
        let before = round.counts();
        let cell = Cell { name, phase, at: at(&[]) };
        let (row, outcome) = cell.run(round.report, &writers, &Limits::default())?;
        "MB/s".clone_into(&mut row.unit);
        row.cache = Some(left(false).to_owned());
        before.show(outcome.all.bytes / args.block.max(1), row);
        for (node, path) in seen.0.iter().enumerate() {
            go(&[stream(path, all(true), generation)?], &Limits::default())?
                .ok()
                .with_context(|| format!("node {node} reads what was written"))?;
        }
    }
    round.report.note("every node read every block as it was written");
    Ok(())
}
