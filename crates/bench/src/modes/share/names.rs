//! All nodes work in one directory: they create files, look at each other's, list them, and remove them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::round::Round;
use crate::engine::Latency;
use crate::modes::RemoveOnDrop;
use crate::modes::at_once::all_at_once;

type Operation = fn(&Path) -> std::io::Result<()>;

/// What each node does with files: a row, whose files they are (its own, or those that the next node has made),
/// and the operation. Files are looked at by another node only after those that are removed: removing a file that
/// nobody else knows costs less.
const OPERATIONS: [(&str, usize, Operation); 4] = [
    ("create in one directory", OWN, |file| File::create_new(file).map(drop)),
    ("unlink in one directory", OWN, |file| std::fs::remove_file(file)),
    (UNTOLD, OWN, |file| File::create_new(file).map(drop)),
    ("stat of another node's files", NEXT, |file| file.symlink_metadata().map(drop)),
];
const OWN: usize = 0;
const NEXT: usize = 1;
/// No row of its own.
const UNTOLD: &str = "";
const LIST: &str = "list and stat another node's files";

pub(super) fn measure(round: &mut Round) -> Result<()> {
    let args = round.args;
    if !args.wants(LIST) && !OPERATIONS.iter().any(|(what, ..)| args.wants(what)) {
        return Ok(());
    }
    let dirs = round.paths("names");
    let nodes: Vec<(usize, &PathBuf)> = dirs.iter().enumerate().collect();
    let [first, second, ..] = dirs.as_slice() else { return Ok(()) };
    std::fs::create_dir(first).with_context(|| first.display().to_string())?;
    let _removed = RemoveOnDrop(vec![first.clone()]);
    let (_, stop) = crate::progress::hooks();
    for (what, whose, operation) in OPERATIONS {
        let on_all_nodes = || {
            all_at_once(&nodes, |(node, dir), latency| {
                for n in 0..args.files {
                    let file = file(dir, (node + whose) % nodes.len(), n);
                    let began = Instant::now();
                    operation(&file).with_context(|| file.display().to_string())?;
                    latency.add(began.elapsed());
                    crate::progress::check_stop(stop.as_deref())?;
                }
                Ok(args.files)
            })
        };
        if what != UNTOLD && args.wants(what) {
            round.row(what, on_all_nodes)?;
        } else {
            on_all_nodes()?;
        }
    }
    if args.wants(LIST) { list(round, first, second) } else { Ok(()) }
}

/// The file of a node's own.
fn file(dir: &Path, node: usize, n: usize) -> PathBuf {
    dir.join(format!("f{node}-{n:06}"))
}

/// As `ls -l` of a directory of files that the first node alone has just made; the second one lists them.
fn list(round: &mut Round, first: &Path, second: &Path) -> Result<()> {
    let (made, listed, files) = (first.join("list"), second.join("list"), round.args.files);
    std::fs::create_dir(&made)?;
    for n in 0..files {
        File::create_new(file(&made, 0, n))?;
        crate::progress::check_interrupted()?;
    }
    round.row(LIST, || {
        let began = Instant::now();
        let mut found = 0;
        for entry in std::fs::read_dir(&listed)? {
            entry?.metadata()?;
            found += 1;
        }
        ensure!(found == files, "{found} of {files} files are listed");
        Ok(vec![(found, Latency::default(), began, Instant::now())])
    })
}
