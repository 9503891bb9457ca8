//! All nodes work in one directory: they create files, look at each other's, list them, and remove them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::args::Args;
use super::contended::show_fairness;
use super::counts::Counts;
use super::shared_file::name;
use crate::modes::at_once::{ThreadResult, all_at_once, sum};
use crate::modes::{RemoveOnDrop, at};
use crate::report::Report;
use crate::statistics::float;

/// One operation on one file.
type Operation = fn(&Path) -> std::io::Result<()>;

/// What each node does with files: a row, whose files they are, and the operation. Files are looked at by another
/// node only after those that are removed: removing a file that nobody else knows costs less.
const OPERATIONS: [(&str, Files, Operation); 4] = [
    ("create in one directory", Files::Own, |file| File::create_new(file).map(drop)),
    ("unlink in one directory", Files::Own, |file| std::fs::remove_file(file)),
    ("", Files::Own, |file| File::create_new(file).map(drop)),
    ("stat of another node's files", Files::Others, |file| file.symlink_metadata().map(drop)),
];

/// Whose files a node works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Own,
    /// Those that the next node has made.
    Others,
}
const LIST: &str = "list and stat another node's files";

pub(super) fn measure(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    if !args.wants(LIST) && !OPERATIONS.iter().any(|(what, ..)| args.wants(what)) {
        return Ok(());
    }
    let name = name("names", round);
    let dirs: Vec<PathBuf> = args.nodes.iter().map(|node| node.path.join(&name)).collect();
    let first = dirs.first().context("no nodes")?;
    std::fs::create_dir(first).with_context(|| first.display().to_string())?;
    let _removed = RemoveOnDrop(vec![first.clone()]);
    for (what, whose, operation) in OPERATIONS {
        crate::progress::row(what.to_owned());
        let before = Counts::of(&args.dirs());
        let done = on_files(args.files, &dirs, whose, operation)?;
        crate::progress::row_done();
        let (operations, latency, seconds) = sum(&done).context("no nodes")?;
        let operations = operations as u64;
        if args.wants(what) && !what.is_empty() {
            let row = report.sample("nodes", what, &at(&[]), float(operations) / seconds);
            row.took(&latency);
            before.show(&args.dirs(), operations, row);
            show_fairness(&done, row);
        }
    }
    if args.wants(LIST) { list(args, &dirs, report) } else { Ok(()) }
}

/// The file of a node's own.
fn file(dir: &Path, node: usize, n: usize) -> PathBuf {
    dir.join(format!("f{node}-{n:06}"))
}

/// All nodes at once, each on `files` files.
fn on_files(
    files: usize,
    dirs: &[PathBuf],
    whose: Files,
    operation: Operation,
) -> Result<Vec<ThreadResult>> {
    let (_, stop) = crate::progress::hooks();
    let nodes: Vec<(usize, &PathBuf)> = dirs.iter().enumerate().collect();
    all_at_once(&nodes, |(node, dir), latency| {
        let whose = if whose == Files::Own { *node } else { (node + 1) % dirs.len() };
        for n in 0..files {
            let file = file(dir, whose, n);
            let began = Instant::now();
            operation(&file).with_context(|| file.display().to_string())?;
            latency.add(began.elapsed());
            crate::progress::check_stop(stop.as_deref())?;
        }
        Ok(files)
    })
}

/// As `ls -l` of a directory of files that the first node alone has just made; the second one lists them.
fn list(args: &Args, dirs: &[PathBuf], report: &mut Report) -> Result<()> {
    let (Some(made), Some(listed)) = (dirs.first(), dirs.get(1)) else { return Ok(()) };
    let (made, listed) = (made.join("list"), listed.join("list"));
    std::fs::create_dir(&made)?;
    for n in 0..args.files {
        File::create_new(file(&made, 0, n))?;
        crate::progress::check_interrupted()?;
    }
    let before = Counts::of(&args.dirs());
    crate::progress::row(LIST.to_owned());
    let began = Instant::now();
    let mut found = 0;
    for entry in std::fs::read_dir(&listed)? {
        entry?.metadata()?;
        found += 1;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    crate::progress::row_done();
    anyhow::ensure!(found == args.files, "{found} of {} files are listed", args.files);
    let row = report.sample("nodes", LIST, &at(&[]), float(found as u64) / seconds);
    before.show(&args.dirs(), found as u64, row);
    Ok(())
}
