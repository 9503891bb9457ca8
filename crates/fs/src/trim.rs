//! Free space goes back to the devices: what thin units, solid-state disks and sparse files make use of.
//!
//! Each resource group's turn comes by itself, and its lock is held for moments
//! ([`crate::alloc`], `trim`). What other nodes have in their windows is left to them.

use braid_format::{ByteOffset, Bytes};

use crate::Fs;
use crate::alloc::trim::{Span, Step};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::jobs::{Job, JobProgress, Progress};
use crate::plock::Canceller;

/// Which free space goes back: as `struct fstrim_range` of linux/fs.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimRange {
    /// First byte of the pool.
    pub start: ByteOffset,
    /// Bytes; what lies beyond the pool's end counts for nothing.
    pub len: Bytes,
    /// Shorter runs are left alone.
    pub least: Bytes,
}

impl TrimRange {
    /// All of the pool.
    pub const ALL: Self = Self { start: ByteOffset(0), len: Bytes(u64::MAX), least: Bytes(0) };
}

/// What went back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes of the pool, as far as the devices say.
    pub given: Bytes,
    /// `false`: it was told to stop.
    pub finished: bool,
}

impl Fs {
    /// Gives the space of free blocks back to the devices. What was free and was given back before, and
    /// has not changed since, is not counted again while the file system is mounted. `canceller`, or
    /// [`Fs::stop_trim`], ends it.
    ///
    /// # Errors
    /// [`Error::Trimming`], [`Error::ReadOnly`], [`Error::Invalid`]: the range is none of the pool;
    /// those of devices.
    pub fn trim(&self, range: TrimRange, canceller: &Canceller) -> Result<Trimmed> {
        let core = self.core();
        core.check_alive()?;
        if core.options.read_only {
            return Err(Error::ReadOnly);
        }
        let span = span(core, range)?;
        let switch = &self.mounted.trim;
        let _running = switch.begin(Job::Trim).map_err(|_| Error::Trimming)?;
        let stop = || switch.stops() || canceller.is_cancelled() || core.withdrawn.get().is_some();
        let progress = &self.mounted.progress.trimming;
        let trimmed = core.watch(trim(core, span, progress, &stop));
        progress.end();
        trimmed
    }

    /// How far a trim of this node is: what it has looked at.
    pub fn trimming(&self) -> Option<JobProgress> {
        self.mounted.progress.trimming.told(self.core().volume.geo.block_size.shift())
    }

    /// Ends a trim that is under way, soon.
    pub fn stop_trim(&self) {
        self.mounted.trim.stop(Job::Trim);
    }
}

/// In whole blocks.
fn span(core: &Core, range: TrimRange) -> Result<Span> {
    let (size, total) = (core.volume.geo.block_size, core.volume.total_blocks());
    let end = range.start.get().saturating_add(range.len.get());
    let from = range.start.get().div_ceil(size.bytes().get());
    let to = (end >> size.shift()).min(total);
    if from >= total || range.len < size.bytes() {
        return Err(Error::Invalid("the range to be trimmed is not in the pool"));
    }
    Ok(Span { from, to, least: range.least.get().div_ceil(size.bytes().get()).max(1) })
}

fn trim(core: &Core, span: Span, progress: &Progress, stop: &dyn Fn() -> bool) -> Result<Trimmed> {
    core.alloc.give_up_unused()?;
    let mut given = 0;
    let groups = &core.volume.groups;
    let blocks = |index| groups.shape(index).map_or(0, |shape| shape.block_count);
    let mut left: u64 = (0..groups.count()).map(blocks).sum();
    for index in 0..groups.count() {
        progress.set(left);
        left = left.saturating_sub(blocks(index));
        let mut step = Step::default();
        loop {
            if stop() {
                return Ok(Trimmed { given: Bytes(given), finished: false });
            }
            step = match core.alloc.trim(index, span, step, stop) {
                // Until a repair: the other groups are sound.
                Err(e) if e.is_of_one_group() => {
                    tracing::warn!("group {index} is not trimmed: {e}");
                    Step::default()
                }
                step => step?,
            };
            given += step.given;
            if step.is_last() {
                break;
            }
        }
    }
    Ok(Trimmed { given: Bytes(given), finished: true })
}

#[cfg(test)]
mod tests;
