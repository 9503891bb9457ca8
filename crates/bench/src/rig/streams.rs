//! Sequential streams over ordinary files, one thread each: what programs do.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::engine::{Content, Direction, Limits, Outcome, Pattern, Stream, Target, Use, run as go};
use crate::report::Figure;

/// A phase: every stream moves `bytes` of its own file in requests of `request`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    pub direction: Direction,
    pub streams: usize,
    /// Per stream.
    pub bytes: u64,
    pub request: usize,
    pub direct: bool,
    /// fsync at the end, inside the measured time.
    pub sync: bool,
}

/// Names of the streams' files under `dir`.
pub(crate) fn files(dir: &Path, streams: usize) -> Vec<PathBuf> {
    (0..streams).map(|n| dir.join(format!("stream{n}"))).collect()
}

/// Runs a phase; all streams start together.
pub(crate) fn run(files: &[PathBuf], phase: Phase) -> Result<Figure> {
    let outcome = outcome(files, phase)?;
    Ok(Figure { mb_per_s: outcome.mb_per_s(), cpu_per_gib: outcome.cpu_per_gib() })
}

fn outcome(files: &[PathBuf], phase: Phase) -> Result<Outcome> {
    let write = phase.direction == Direction::Write;
    let how = Use { write, direct: phase.direct, overwrite: true, force: false };
    let request = phase.request as u64;
    let streams = files
        .iter()
        .take(phase.streams)
        .map(|path| {
            let pattern = Pattern::sequential(0, phase.bytes / request * request, request, !write);
            Ok(Stream {
                target: Target::keep(path, how)?,
                pattern,
                depth: 1,
                pace: None,
                content: Content::Byte(0x5a),
                flush: phase.sync,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    go(&streams, &Limits { ordinary_pages: true, ..Limits::default() })?.ok()
}
