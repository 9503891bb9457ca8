//! Sequential streams over ordinary files, one thread each: what programs do.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use braid_pool::device::AlignedBuf;

use crate::report::Figure;

/// Direction of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    Read,
    Write,
}

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
    let start = Barrier::new(phase.streams + 1);
    let handles = files.iter().map(|f| open(f, phase)).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = handles
            .iter()
            .map(|file| {
                let start = &start;
                scope.spawn(move || {
                    let mut buffer = AlignedBuf::zeroed(phase.request);
                    buffer.fill(0x5a);
                    start.wait();
                    stream(file, phase, &mut buffer)
                })
            })
            .collect();
        start.wait();
        let cpu = crate::cpu::busy_seconds()?;
        let began = Instant::now();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a stream panicked"))??;
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu = crate::cpu::busy_seconds()? - cpu;
        Ok(Figure::new(phase.bytes * phase.streams as u64, seconds, cpu))
    })
}

fn open(path: &Path, phase: Phase) -> Result<File> {
    let mut options = OpenOptions::new();
    match phase.direction {
        Direction::Read => options.read(true),
        Direction::Write => options.write(true).create(true),
    };
    if phase.direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options.open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn stream(file: &File, phase: Phase, buffer: &mut AlignedBuf) -> Result<()> {
    let mut at = 0;
    while at < phase.bytes {
        match phase.direction {
            Direction::Write => file.write_all_at(buffer, at)?,
            Direction::Read => {
                let n = file.read_at(buffer, at)?;
                if n != phase.request {
                    bail!("short read of {n} bytes at {at}");
                }
            }
        }
        at += phase.request as u64;
    }
    if phase.sync {
        file.sync_data()?;
    }
    Ok(())
}
