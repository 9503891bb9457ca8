//! What is free in groups goes back to the devices.
//!
//! Only what a group itself calls `Free` is touched, under the group's exclusive lock and after a
//! commit. So:
//! * what is free stays free: a node that frees blocks commits before the group's bitmap says so
//!   (the free log and the windows are drained after a commit), and gives the lock up only with the
//!   bitmap in place;
//! * nobody has it: what is in a window, claimed, reserved, or freed and not durable, is `Data` here;
//! * it was never metadata: slots stay slots, and lock records and journals lie in none of it. So no
//!   journal has an image for it.
//!
//! It is what a node might do that takes a window there, writes zeros into it, and gives it back. What
//! is under way when a node dies, or is fenced, is a write as any other.

use std::time::Instant;

use braid_format::rgrp::BlockState;
use braid_format::{BlockNo, Bytes, Generation, LockNo};
use braid_lock::{Local, Mode};

use super::bits;
use super::group::Group;
use super::inner::{Alloc, Inner};
use super::trimmed::{HOLD, Trimmed};
use crate::error::Result;

/// Bytes discarded at a time.
const PIECE: Bytes = Bytes(256 << 20);

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// First block of the pool, and one past the last.
    pub from: u64,
    pub to: u64,
    /// Runs of fewer blocks are left alone.
    pub least: u64,
}

/// How far a group is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    /// Bytes that went back to the devices.
    pub given: u64,
    /// Where to go on: blocks from the group's first, and the group's state there.
    next: Option<(u64, Option<Trimmed>)>,
}

impl Step {
    /// Nothing is left to do.
    pub fn is_last(self) -> bool {
        self.next.is_none()
    }
    /// Where to go on: blocks from the group's first.
    pub(super) fn goes_on_at(self) -> Option<u64> {
        self.next.map(|(at, _)| at)
    }
}

impl Alloc {
    /// Lets the groups have all that this node need not keep: what is free in its windows, and in its
    /// free log.
    ///
    /// # Errors
    /// As [`Alloc::maintain`].
    pub fn give_up_unused(&self) -> Result<()> {
        // Blocks whose free is not durable yet keep their window.
        self.inner.meta.commit()?;
        match self.shrink() {
            Err(e) if e.is_of_one_group() => tracing::warn!("not all can be discarded: {e}"),
            done => done?,
        }
        Ok(())
    }

    /// Discards what is free of `span` in group `index`, from where `before` has ended, for a while.
    /// Groups that are closed, and those that nothing was changed in since the last time, are passed by.
    ///
    /// # Errors
    /// Those of the lock and of the devices.
    pub fn trim(
        &self,
        index: u64,
        span: Span,
        before: Step,
        stop: &dyn Fn() -> bool,
    ) -> Result<Step> {
        let inner = &self.inner;
        let groups = &inner.volume.groups;
        let Some(shape) = inner.volume.group_shape(index).filter(|_| groups.is_open(index)) else {
            return Ok(Step::default());
        };
        let first = shape.first_block;
        let from = span.from.saturating_sub(first);
        let to = span.to.saturating_sub(first).min(shape.block_count);
        if from >= to {
            return Ok(Step::default());
        }
        let lock = LockNo::from(inner.volume.rgrp(index));
        let _guard = inner.locks.acquire(lock, Mode::Exclusive, Local::Exclusive)?;
        // A node that empties a part looks at each group, with its lock, after all nodes know that
        // it is closed.
        if !groups.is_open(index) {
            return Ok(Step::default());
        }
        inner.meta.commit()?;
        let group = Group::load(&inner.volume, &inner.meta, index)?;
        let now = Trimmed {
            generation: Generation(group.raw.header.generation.get()),
            epoch: inner.volume.pool.info().epoch,
            least: span.least,
        };
        let (at, since) = before.next.unwrap_or((from, Some(now)));
        let known = inner.trimmed.lock().get(&index).copied();
        if known.is_some_and(|k| now == Trimmed { least: now.least, ..k } && k.least <= now.least) {
            return Ok(Step::default());
        }
        let since = since.filter(|s| *s == now);
        // What is gone on with may be the end of a longer run.
        let least = (span.least, before.next.map(|_| at));
        let step = inner.discard(&group, (at, to), least, stop)?;
        let whole = from == 0 && to == shape.block_count;
        if let (None, Some(since), true) = (step.next, since, whole) {
            inner.trimmed.lock().insert(index, since);
        }
        Ok(Step { next: step.next.map(|(at, _)| (at, since)), ..step })
    }
}

impl Inner {
    /// Discards free runs of a group, whose lock is held, until it has taken its time; those of at
    /// `least` so many blocks, `but` that which begins there.
    pub(super) fn discard(
        &self,
        group: &Group,
        (from, to): (u64, u64),
        (least, but): (u64, Option<u64>),
        stop: &dyn Fn() -> bool,
    ) -> Result<Step> {
        let begin = Instant::now();
        let size = self.volume.geo.block_size;
        let piece = size.blocks_for(PIECE).get();
        let mut step = Step::default();
        for (start, len) in bits::runs(&group.bits, from, to, BlockState::Free) {
            if len < least && but != Some(start) {
                continue;
            }
            let (mut at, end) = (start, start + len);
            while at < end {
                if stop() || begin.elapsed() > HOLD {
                    step.next = Some((at, None));
                    return Ok(step);
                }
                let next = self.cut(group, at, end.min(at + piece), end);
                let place = size.offset_of(BlockNo(group.block(at)));
                let bytes = Bytes((next - at) << size.shift());
                step.given += self.volume.pool.discard(place, bytes)?.get();
                at = next;
            }
        }
        Ok(step)
    }

    /// Where a piece of a run ends: between rows, which are discarded whole or not at all.
    pub(super) fn cut(&self, group: &Group, at: u64, wanted: u64, end: u64) -> u64 {
        if wanted == end {
            return end;
        }
        let (rows, row) = self.volume.rows_at(group.index, group.block(at));
        let whole = group.block(wanted).checked_sub(rows);
        let aligned = whole.map(|n| wanted - n % row.max(1));
        aligned.filter(|cut| *cut > at).unwrap_or(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_tells_where_to_go_on() {
        let last = Step { given: 5, next: None };
        assert_eq!((last.is_last(), last.goes_on_at()), (true, None));
        let other = Step { next: Some((7, None)), ..last };
        assert_eq!((other.is_last(), other.goes_on_at()), (false, Some(7)));
    }
}
