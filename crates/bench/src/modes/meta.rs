//! Metadata operations on empty files: create and close, stat, open and close, readdir, rename, unlink. Any
//! number of threads work in private directories or in a shared one. Without directories the mode compares
//! a Braid mount with XFS, each on the same loop device.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::at_once::{all_at_once, row};
use super::{Measure, RemoveOnDrop, RoundPlan, RunOptions, System, at, distinct};
use crate::arguments::DeviceKind;
use crate::engine::{Latency, STREAMS_MAX};
use crate::report::Report;
use crate::statistics::float;
use crate::testbed::members::Members;

/// Create, look up, open, list, rename and remove empty files
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories; the others are compared with the first. Without any: a Braid mount and XFS, each
    /// on the same loop device
    #[arg(value_name = "[NAME=]DIR")]
    systems: Vec<System>,
    /// The directories are mounts of one file system on several nodes; all work at the same time
    #[arg(long)]
    nodes: bool,
    /// Threads (on each node)
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// All threads work in one directory
    #[arg(long)]
    shared: bool,
    /// Number of files, of all threads together
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// Directory for the backing file, if no directories are given
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let base = self.systems.first().map_or("xfs", |s| &s.name);
        let mut report = Report::new("meta").against(base, "files/s");
        let place = if self.shared { "one shared directory" } else { "private directories" };
        let job = format!("{} empty files, {} threads, {place}", self.files, self.threads);
        report.fact("job", job);
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        ensure!((1..=1024).contains(&self.threads), "--threads: 1 to 1024");
        let nodes = if self.nodes { self.systems.len().max(1) } else { 1 };
        let threads = self.threads * nodes;
        ensure!(threads <= STREAMS_MAX, "--threads: {STREAMS_MAX} on all nodes at most");
        ensure!(self.files >= threads, "--files: at least one for each thread");
        ensure!(self.files <= FILES_MAX, "--files: {FILES_MAX} at most");
        if self.systems.is_empty() {
            return made(self, how, report);
        }
        if self.nodes {
            let dirs: Vec<_> = self.systems.iter().map(|s| s.path.clone()).collect();
            let base = report.base.clone();
            return how.rounds(report, turns(1), |report, round, _| {
                phases(self, &dirs, (&base, round), report)
            });
        }
        distinct(&self.systems)?;
        how.rounds(report, turns(self.systems.len()), |report, round, n| {
            let Some(system) = self.systems.get(n) else { return Ok(()) };
            phases(self, std::slice::from_ref(&system.path), (&system.name, round), report)
        })
    }
}

/// Files, at most: the names of all are remembered.
pub(super) const FILES_MAX: usize = 10_000_000;

/// One row for each operation, and one for listing.
fn turns(systems: usize) -> RoundPlan {
    RoundPlan { counted: "files", ..RoundPlan::new(systems, OPERATIONS.len() + 1) }
}

/// XFS and a Braid mount, freshly made in each round.
fn made(args: &Args, how: &RunOptions, report: &mut Report) -> Result<()> {
    let testbed = Members::new(&args.dir, "meta", (1, 2 << 30), DeviceKind::Loop)?;
    how.rounds(report, turns(2), |report, round, system| {
        let (mount, name) = testbed.xfs_or_braid(system)?;
        phases(args, std::slice::from_ref(&mount.dir), (name, round), report)
    })
}

struct Share {
    dir: PathBuf,
    names: Vec<(PathBuf, PathBuf)>,
}

/// One operation of a phase on one file.
type Operation = fn(&(PathBuf, PathBuf)) -> std::io::Result<()>;

const OPERATIONS: [(&str, Operation); 5] = [
    ("create+close", |(a, _)| File::create_new(a).map(drop)),
    ("stat", |(a, _)| a.symlink_metadata().map(drop)),
    ("open+close", |(a, _)| File::open(a).map(drop)),
    ("rename", |(a, b)| std::fs::rename(a, b)),
    ("unlink", |(_, b)| std::fs::remove_file(b)),
];

fn phases(
    args: &Args,
    roots: &[PathBuf],
    (name, round): (&str, usize),
    report: &mut Report,
) -> Result<()> {
    let top = format!("braid-bench-{}-{round}", std::process::id());
    let threads = args.threads * roots.len();
    let mut shares = Vec::new();
    for thread in 0..threads {
        let Some(root) = roots.get(thread % roots.len()) else { continue };
        let mut dir = root.join(&top);
        if !args.shared {
            dir = dir.join(format!("private{thread}"));
        }
        let names = (0..args.files / threads)
            .map(|n| (dir.join(format!("f{thread}-{n:06}")), dir.join(format!("r{thread}-{n:06}"))))
            .collect();
        shares.push(Share { dir, names });
    }
    // Whatever fails, nothing stays behind.
    let _cleanup = RemoveOnDrop(roots.iter().map(|r| r.join(&top)).collect());
    for share in &shares {
        std::fs::create_dir_all(&share.dir).with_context(|| share.dir.display().to_string())?;
    }
    let place = if args.threads * roots.len() == 1 && !args.shared {
        at(&[])
    } else {
        at(&[("threads", float(threads as u64))])
    };
    let (progress, stop) = crate::progress::hooks();
    for (what, operation) in OPERATIONS {
        let on_all = |share: &Share, latency: &mut Latency| {
            for pair in &share.names {
                let began = Instant::now();
                operation(pair).with_context(|| format!("{what}: {}", pair.0.display()))?;
                latency.add(began.elapsed());
                if let Some(progress) = &progress {
                    progress.fetch_add(1, Ordering::Relaxed);
                }
                crate::progress::check_stop(stop.as_deref())?;
            }
            Ok(share.names.len())
        };
        row(report, (name, what), &place, || all_at_once(&shares, on_all))?;
        if what == "open+close" {
            let list = |share: &Share, _: &mut Latency| count(&share.dir);
            row(report, (name, "readdir"), &place, || all_at_once(&shares, list))?;
        }
    }
    Ok(())
}

fn count(dir: &Path) -> Result<usize> {
    let mut entries = 0;
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        entry?;
        entries += 1;
    }
    Ok(entries)
}
