//! Sequential streams over ordinary files, one thread each.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::engine::{Content, Direction, Limits, OpenMode, Outcome, Pattern, Stream, Target};
use crate::modes::{Cell, at};
use crate::report::Report;

/// A phase: every stream moves `bytes` of its own file in requests of `request`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    pub direction: Direction,
    /// Per stream.
    pub bytes: u64,
    pub request: u64,
    pub direct: bool,
    /// fsync at the end, inside the measured time.
    pub sync: bool,
}

/// Names of the streams' files under `dir`.
pub(crate) fn files(dir: &Path, streams: usize) -> Vec<PathBuf> {
    (0..streams).map(|n| dir.join(format!("stream{n}"))).collect()
}

impl Phase {
    /// As most programs write: through the page cache, 1 MiB at a time, with an fsync at the end.
    pub fn written(bytes: u64) -> Self {
        Self { direction: Direction::Write, bytes, request: 1 << 20, direct: false, sync: true }
    }
    /// What was written is read.
    pub fn read(self) -> Self {
        Self { direction: Direction::Read, sync: false, ..self }
    }
    /// Goes through it, in no row.
    pub fn outcome(self, files: &[PathBuf]) -> Result<Outcome> {
        crate::engine::run(&self.streams(files)?, &Limits::ordinary())?.ok()
    }
    /// Goes through it unmeasured.
    pub fn rehearse(self, files: &[PathBuf]) -> Result<()> {
        self.outcome(files).map(drop)
    }
    /// One more repeat of a row; all streams start together. `cache` is what was done before.
    pub fn measure(
        self,
        files: &[PathBuf],
        report: &mut Report,
        (name, phase, cache): (&str, &str, &str),
    ) -> Result<()> {
        let streams = self.streams(files)?;
        let (row, _) =
            Cell { name, phase, at: at(&[]) }.run(report, &streams, &Limits::ordinary())?;
        row.cache = Some(cache.to_owned());
        Ok(())
    }
    pub fn streams(self, files: &[PathBuf]) -> Result<Vec<Stream>> {
        let write = self.direction == Direction::Write;
        let how = OpenMode { write, direct: self.direct, overwrite: true, ..OpenMode::default() };
        let bytes = self.bytes / self.request * self.request;
        let pattern = Pattern::sequential(0, bytes, self.request, !write);
        let (content, flush) = (Content::Byte(0x5a), self.sync);
        let one = |path: &PathBuf| {
            Ok(Stream { content, flush, ..Stream::plain(Target::open(path, how)?, pattern) })
        };
        files.iter().map(one).collect()
    }
}
