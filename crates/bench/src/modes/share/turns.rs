//! Nodes that take turns: one writes, the next one reads or writes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::args::Args;
use super::counts::Counts;
use super::shared_file::{SharedFile, read_write};
use crate::engine::{Content, Latency};
use crate::modes::at;
use crate::report::Report;
use crate::statistics::float;

/// Bytes of a small file, which stands in its inode.
const SMALL: usize = 100;

pub(super) fn measure(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    let block = usize::try_from(args.block)?;
    for (what, len) in [("write here, read there", block), (SMALL_FILE, SMALL)] {
        if args.wants(what) {
            read_what_was_written(args, (what, len), round, report)?;
        }
    }
    by_turns(args, ("both write one block by turns", "block"), round, report)?;
    by_turns(args, (APPEND, "append"), round, report)
}

const SMALL_FILE: &str = "small file, write here, read there";
const APPEND: &str = "append by turns";

/// Each turn another node writes, and the one after it reads.
fn read_what_was_written(
    args: &Args,
    (what, len): (&str, usize),
    round: usize,
    report: &mut Report,
) -> Result<()> {
    let seen = SharedFile::new(args, &format!("turns{len}"), round)?;
    let files = seen.open(&read_write())?;
    let (mut out, mut back) = (vec![0; len], vec![0; len]);
    turns(args, what, report, |turn| {
        let content = Content::Verified { run: 0x5ea, generation: turn };
        content.fill(0, &mut out);
        let (writer, from) = of_turn(&files, turn)?;
        let (reader, to) = of_turn(&files, turn + 1)?;
        from.write_all_at(&out, 0)?;
        to.read_exact_at(&mut back, 0)?;
        if back != out {
            bail!("turn {turn}: node {reader} does not see what node {writer} has written");
        }
        Ok(())
    })
}

/// Each turn another node writes: over the same block, or at the end.
fn by_turns(
    args: &Args,
    (what, name): (&str, &str),
    round: usize,
    report: &mut Report,
) -> Result<()> {
    if !args.wants(what) {
        return Ok(());
    }
    let seen = SharedFile::new(args, name, round)?;
    let mut options = read_write();
    let files = seen.open(options.append(what == APPEND))?;
    let bytes = [b'x'; SMALL];
    turns(args, what, report, |turn| {
        let (_, mut file) = of_turn(&files, turn)?;
        match what {
            APPEND => std::io::Write::write_all(&mut file, &bytes)?,
            _ => file.write_all_at(&bytes, 0)?,
        }
        Ok(())
    })?;
    let len = if what == APPEND { args.turns * bytes.len() as u64 } else { bytes.len() as u64 };
    for (node, file) in files.iter().enumerate() {
        let found = file.metadata()?.len();
        anyhow::ensure!(found == len, "{what}: node {node} sees {found} bytes of {len}");
    }
    Ok(())
}

/// Whose turn it is.
fn of_turn(files: &[File], turn: u64) -> Result<(usize, &File)> {
    let node = usize::try_from(turn % (files.len() as u64).max(1))?;
    Ok((node, files.get(node).context("no nodes")?))
}

/// Times all turns.
fn turns(
    args: &Args,
    what: &str,
    report: &mut Report,
    mut turn: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    crate::progress::row(what.to_owned());
    let before = Counts::of(&args.dirs());
    let mut latency = Latency::default();
    let began = Instant::now();
    for n in 0..args.turns {
        let turned = Instant::now();
        turn(n)?;
        latency.add(turned.elapsed());
        crate::progress::check_interrupted()?;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    crate::progress::row_done();
    let row = report.sample("nodes", what, &at(&[]), float(args.turns) / seconds);
    row.took(&latency);
    before.show(&args.dirs(), args.turns, row);
    Ok(())
}
