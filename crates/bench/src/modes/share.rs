//! Several mounts of one file system use one file. The mode checks that a completed write on one node is seen
//! by a read on another, and measures how long that takes. It also measures what it costs if all nodes
//! write one file, each every n-th block.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{Cell, Measure, RoundPlan, RunOptions, System, at};
use crate::arguments::size;
use crate::engine::{Content, Latency, Limits, OpenMode, Pattern, Stream, Target, run as go};
use crate::report::Report;
use crate::run::cache::left;

/// Several mounts use one file: read after write, ping-pong, all write
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories: the same one, through the mount of each node
    #[arg(value_name = "[NAME=]DIR", required = true)]
    nodes: Vec<System>,
    /// Number of writes that another node reads
    #[arg(long, default_value_t = 1000)]
    turns: u64,
    /// Block size
    #[arg(long, default_value = "64K", value_parser = size)]
    block: u64,
    /// Size of the file that all nodes write
    #[arg(long, default_value = "64M", value_parser = size)]
    size: u64,
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
        self.how.rounds(report, RoundPlan::new(1, 2), |report, round, _| {
            crate::progress::row("write here, read there".to_owned());
            ping_pong(self, round, report)?;
            crate::progress::row_done();
            together(self, round, report)
        })
    }
}

/// The file of a round, as each node sees it; removed at the end.
struct SharedFile(Vec<PathBuf>);
impl SharedFile {
    fn new(args: &Args, what: &str, round: usize) -> Result<Self> {
        let name = format!("braid-bench-{}-{what}-{round}", std::process::id());
        let paths: Vec<_> = args.nodes.iter().map(|n| n.path.join(&name)).collect();
        let seen = Self(paths);
        for (n, path) in seen.0.iter().enumerate() {
            let made = if n == 0 { File::create_new(path) } else { File::open(path) };
            made.with_context(|| format!("{} (the nodes do not share it?)", path.display()))?;
        }
        Ok(seen)
    }
}
impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Some(path) = self.0.first() {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Nodes take turns to write; the next one must read what was written.
fn ping_pong(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    let seen = SharedFile::new(args, "turns", round)?;
    let open = |p: &PathBuf| OpenOptions::new().read(true).write(true).open(p);
    let files = seen.0.iter().map(open).collect::<std::io::Result<Vec<_>>>()?;
    let len = usize::try_from(args.block)?;
    let (mut out, mut back) = (vec![0; len], vec![0; len]);
    let mut latency = Latency::default();
    let began = Instant::now();
    for turn in 0..args.turns {
        let content = Content::Verified { run: 0x5ea, generation: turn };
        content.fill(0, &mut out);
        let writer = usize::try_from(turn)? % files.len();
        let reader = (writer + 1) % files.len();
        let (Some(from), Some(to)) = (files.get(writer), files.get(reader)) else { continue };
        let turned = Instant::now();
        from.write_all_at(&out, 0)?;
        to.read_exact_at(&mut back, 0)?;
        latency.add(turned.elapsed());
        crate::progress::check_interrupted()?;
        if back != out {
            bail!("turn {turn}: node {reader} does not see what node {writer} has written");
        }
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    let rate = crate::statistics::float(args.turns) / seconds;
    report.sample("nodes", "write here, read there", &at(&[]), rate).took(&latency);
    Ok(())
}

/// Every node writes every n-th block of a new file, then all of them again, then one node alone does
/// what they did together; after each, every node reads every block.
fn together(args: &Args, round: usize, report: &mut Report) -> Result<()> {
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
    let phases = [("nodes", "new file, every n-th block"), ("nodes", AGAIN), ("one node", AGAIN)];
    for (generation, (name, phase)) in (3 * round as u64..).zip(phases) {
        let writers: Result<Vec<Stream>> = match name {
            "nodes" => {
                let part = |node| all(false).every(nodes, node, each);
                (0..).zip(&seen.0).map(|(n, path)| stream(path, part(n), generation)).collect()
            }
            _ => seen.0.iter().take(1).map(|path| stream(path, all(false), generation)).collect(),
        };
        let (row, _) =
            Cell { name, phase, at: at(&[]) }.run(report, &writers?, &Limits::default())?;
        "MB/s".clone_into(&mut row.unit);
        row.cache = Some(left(false).to_owned());
        for (node, path) in seen.0.iter().enumerate() {
            go(&[stream(path, all(true), generation)?], &Limits::default())?
                .ok()
                .with_context(|| format!("node {node} reads what was written"))?;
        }
    }
    report.note("every node read every block as it was written");
    Ok(())
}

const AGAIN: &str = "all blocks again";
