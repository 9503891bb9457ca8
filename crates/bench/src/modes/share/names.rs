//! All nodes work in one directory: they create files, look at each other's, list them, and remove them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::args::Args;
use super::counts::Counts;
use super::shared_file::name;
use crate::engine::{Latency, StartBarrier, on_threads};
use crate::modes::at;
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

/// The directory of a round, removed with what is left in it.
struct SharedDirectory(PathBuf);
impl Drop for SharedDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub(super) fn measure(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    if !args.wants(LIST) && !OPERATIONS.iter().any(|(what, ..)| args.wants(what)) {
        return Ok(());
    }
    let name = name("names", round);
    let dirs: Vec<PathBuf> = args.nodes.iter().map(|node| node.path.join(&name)).collect();
    let first = dirs.first().context("no nodes")?;
    std::fs::create_dir(first).with_context(|| first.display().to_string())?;
    let _removed = SharedDirectory(first.clone());
    for (what, whose, operation) in OPERATIONS {
        crate::progress::row(what.to_owned());
        let before = Counts::of(&args.dirs());
        let (latency, seconds) = all_at_once(args.files, &dirs, whose, operation)?;
        crate::progress::row_done();
        let operations = (args.files * dirs.len()) as u64;
        if args.wants(what) && !what.is_empty() {
            let row = report.sample("nodes", what, &at(&[]), float(operations) / seconds);
            row.took(&latency);
            before.show(&args.dirs(), operations, row);
        }
    }
    if args.wants(LIST) { list(args, &dirs, report) } else { Ok(()) }
}

/// The file of a node's own.
fn file(dir: &Path, node: usize, n: usize) -> PathBuf {
    dir.join(format!("f{node}-{n:06}"))
}

fn all_at_once(
    files: usize,
    dirs: &[PathBuf],
    whose: Files,
    operation: Operation,
) -> Result<(Latency, f64)> {
    let (_, stop) = crate::progress::hooks();
    let stop = stop.as_deref();
    let start = &StartBarrier::of(dirs.len() + 1);
    let works = dirs.iter().enumerate().map(|(node, dir)| {
        let whose = if whose == Files::Own { node } else { (node + 1) % dirs.len() };
        move || {
            let _guard = start.cancel_on_panic();
            let mut latency = Latency::default();
            let all = start.wait();
            for n in (0..files).filter(|_| all) {
                let file = file(dir, whose, n);
                let began = Instant::now();
                operation(&file).with_context(|| file.display().to_string())?;
                latency.add(began.elapsed());
                crate::progress::check_stop(stop)?;
            }
            Ok(latency)
        }
    });
    let (began, done) = on_threads(start, works, || (start.wait(), Instant::now()))?;
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    let mut all = Latency::default();
    for latency in &done {
        all.merge(latency);
    }
    Ok((all, seconds))
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
