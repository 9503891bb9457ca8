//! Nodes that take turns: one writes, the next one reads or writes.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::round::Round;
use crate::engine::{Content, Latency};

/// Bytes of a small file, which stands in its inode.
const SMALL: usize = 100;
const APPEND: &str = "append by turns";

pub(super) fn measure(round: &mut Round) -> Result<()> {
    let block = usize::try_from(round.args.block)?;
    read_what_was_written(round, "write here, read there", block)?;
    read_what_was_written(round, "small file, write here, read there", SMALL)?;
    by_turns(round, "both write one block by turns", "block")?;
    by_turns(round, APPEND, "append")
}

/// Each turn another node writes, and the one after it reads.
fn read_what_was_written(round: &mut Round, what: &str, len: usize) -> Result<()> {
    if !round.args.wants(what) {
        return Ok(());
    }
    let seen = round.file(&format!("turns{len}"))?;
    let files = seen.open(false)?;
    let (mut out, mut back) = (vec![0; len], vec![0; len]);
    turns(round, what, |turn| {
        let content = Content::Verified { run: 0x5ea, generation: turn };
        content.fill(0, &mut out);
        let (writer, from) = of_turn(&files, turn)?;
        let (reader, to) = of_turn(&files, turn + 1)?;
        from.write_all_at(&out, 0)?;
        to.read_exact_at(&mut back, 0)?;
        ensure!(
            back == out,
            "turn {turn}: node {reader} does not see what node {writer} has written"
        );
        Ok(())
    })
}

/// Each turn another node writes: over the same block, or at the end.
fn by_turns(round: &mut Round, what: &str, name: &str) -> Result<()> {
    if !round.args.wants(what) {
        return Ok(());
    }
    let append = what == APPEND;
    let seen = round.file(name)?;
    let files = seen.open(append)?;
    let bytes = [b'x'; SMALL];
    turns(round, what, |turn| {
        let (_, mut file) = of_turn(&files, turn)?;
        let wrote = if append { file.write_all(&bytes) } else { file.write_all_at(&bytes, 0) };
        Ok(wrote?)
    })?;
    let len = if append { round.args.turns * bytes.len() as u64 } else { bytes.len() as u64 };
    for (node, file) in files.iter().enumerate() {
        let found = file.metadata()?.len();
        ensure!(found == len, "{what}: node {node} sees {found} bytes of {len}");
    }
    Ok(())
}

/// Whose turn it is.
fn of_turn(files: &[File], turn: u64) -> Result<(usize, &File)> {
    let node = usize::try_from(turn % (files.len() as u64).max(1))?;
    Ok((node, files.get(node).context("no nodes")?))
}

fn turns(round: &mut Round, what: &str, mut turn: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let turns = round.args.turns;
    round.row(what, || {
        let (mut latency, began) = (Latency::default(), Instant::now());
        for n in 0..turns {
            let turned = Instant::now();
            turn(n)?;
            latency.add(turned.elapsed());
            crate::progress::check_interrupted()?;
        }
        Ok(vec![(usize::try_from(turns)?, latency, began, Instant::now())])
    })
}
