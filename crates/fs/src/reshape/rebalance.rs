//! File data moves from fuller parts of the pool to emptier ones, until all are equally full.
//!
//! A part is what was there when the file system was made, or what was added at one time. Only as much moves as
//! must; metadata stays where it is. Half of the time is left to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_format::superblock::RawSuperblock;
use braid_lock::{Guard, Local, Mode};

use crate::core::Core;
use crate::data::relocate::{Places, relocate};
use crate::error::{Error, Result};
use crate::groups::takes_data;
use crate::jobs::{Job, JobProgress, JobSlot};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::{DirEntry, Fs, WithAttrs};

/// A part is left alone if it is fuller, or emptier, than the average by no more than this part of
/// its blocks (a divisor).
const CLOSE: u64 = 100;
/// Longest pause after a move.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Entries of a directory that are looked at together.
const CHILDREN: usize = 256;
/// So long it is waited for another node to let the lock go that it may still have of an earlier time.
const PATIENCE: Duration = Duration::from_secs(3);

/// How full a part of the pool is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fill {
    /// Blocks that may hold file data.
    pub blocks: u64,
    /// Those of them that are not free.
    pub used: u64,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Rebalanced {
    /// How full the parts were, in the order in which they came.
    pub before: Vec<Fill>,
    /// How full they are now.
    pub after: Vec<Fill>,
    /// Blocks moved.
    pub moved: u64,
    /// `false`: it was told to stop.
    pub finished: bool,
}

/// How full each part is, while blocks move.
struct Parts<'a> {
    core: &'a Core,
    used: Vec<AtomicU64>,
    blocks: Vec<u64>,
}

impl<'a> Parts<'a> {
    fn read(core: &'a Core) -> Result<Self> {
        let groups = &core.volume.groups;
        let free = core.alloc.free_by_group()?;
        let mut fills = vec![Fill::default(); groups.added() + 1];
        for (index, free) in
            (0_u64..).zip(free).filter(|(i, _)| takes_data(groups.kind(*i)) && !groups.is_gone(*i))
        {
            let (Some(shape), Some(fill)) =
                (groups.shape(index), fills.get_mut(groups.number_of_part(index)))
            else {
                continue;
            };
            fill.blocks += shape.block_count;
            fill.used += shape.block_count.saturating_sub(free);
        }
        let used = fills.iter().map(|f| AtomicU64::new(f.used)).collect();
        Ok(Self { core, used, blocks: fills.iter().map(|f| f.blocks).collect() })
    }
    fn fills(&self) -> Vec<Fill> {
        let used = self.used.iter().map(|u| u.load(Ordering::Relaxed));
        used.zip(&self.blocks).map(|(used, blocks)| Fill { blocks: *blocks, used }).collect()
    }
    /// The part of a group.
    fn of(&self, group: u64) -> usize {
        self.core.volume.groups.number_of_part(group)
    }
    /// Blocks that have to move, about.
    fn to_move(&self) -> u64 {
        let off = |which: fn((u64, u64)) -> u64| -> u64 {
            (0..self.blocks.len()).map(|place| which(self.off(place))).sum()
        };
        off(|o| o.0).min(off(|o| o.1))
    }
    /// What a part has more than its share, and what it has less, in blocks.
    fn off(&self, place: usize) -> (u64, u64) {
        let all: u128 = self.blocks.iter().map(|b| u128::from(*b)).sum();
        let used: u128 = self.used.iter().map(|u| u128::from(u.load(Ordering::Relaxed))).sum();
        let (Some(blocks), Some(own)) = (self.blocks.get(place), self.used.get(place)) else {
            return (0, 0);
        };
        let share = u64::try_from(used * u128::from(*blocks) / all.max(1)).unwrap_or(u64::MAX);
        let (own, slack) = (own.load(Ordering::Relaxed), blocks / CLOSE);
        (own.saturating_sub(share + slack), (share).saturating_sub(own + slack / 2))
    }
}

impl Mover for Parts<'_> {
    fn moved(&self, from: u64, to: u64, blocks: u64) {
        let part = |group| self.used.get(self.of(group));
        if let (Some(from), Some(to)) = (part(from), part(to)) {
            from.fetch_sub(blocks.min(from.load(Ordering::Relaxed)), Ordering::Relaxed);
            to.fetch_add(blocks, Ordering::Relaxed);
        }
    }
    fn done(&self) -> bool {
        let all = || (0..self.used.len()).map(|place| self.off(place));
        all().all(|o| o.0 == 0) || all().all(|o| o.1 == 0)
    }
}

/// Which file data moves where, as long as some has to.
pub(super) trait Mover: Places {
    /// Blocks were moved from one group to another.
    fn moved(&self, from: u64, to: u64, blocks: u64);
    /// No more has to.
    fn done(&self) -> bool;
}

impl Places for Parts<'_> {
    fn leaves(&self, group: u64) -> bool {
        self.off(self.of(group)).0 > 0
    }
    fn takes(&self, group: u64) -> bool {
        self.off(self.of(group)).1 > 0
    }
}

/// Some entries of a directory.
#[derive(Debug, Default)]
struct Children {
    /// Inodes and their modes; one that goes meanwhile is left out.
    some: Vec<(InodeNo, u32)>,
    /// Where to go on, if there are more.
    next: Option<u64>,
}

impl Fs {
    /// Moves file data from the fuller parts of the pool to the emptier ones until all are equally
    /// full, but for a few percent. Files may be in use. [`Fs::stop_rebalance`] ends it.
    ///
    /// # Errors
    /// Another is under way, here or on another node ([`Error::UnderWay`]); those of reading and
    /// writing.
    pub fn rebalance(&self) -> Result<Rebalanced> {
        let (core, switch) = (self.core(), &self.mounted.rebalance);
        if core.options.read_only {
            return Err(Error::ReadOnly);
        }
        let _running = switch.begin(Job::Rebalance)?;
        let _alone = alone(core)?;
        let done = self.spread(core, switch);
        core.watch(done)
    }

    /// What [`Fs::rebalance`] would refuse, and how full the parts of the pool are; bytes that would move, about.
    ///
    /// # Errors
    /// As there.
    pub fn plan_rebalance(&self) -> Result<(Vec<Fill>, u64)> {
        let core = self.core();
        if core.options.read_only {
            return Err(Error::ReadOnly);
        }
        let _running = self.mounted.rebalance.begin(Job::Rebalance)?;
        let _alone = alone(core)?;
        if core.volume.groups.any_closed() {
            return Err(Error::Leaving);
        }
        let parts = Parts::read(core)?;
        Ok((parts.fills(), parts.to_move() << core.volume.geo.block_size.shift()))
    }

    /// How far a rebalancing of this node is.
    pub fn rebalancing(&self) -> Option<JobProgress> {
        self.mounted.progress.rebalancing.told(self.core().volume.geo.block_size.shift())
    }

    /// Ends a rebalancing that is under way, soon.
    pub fn stop_rebalance(&self) {
        self.mounted.rebalance.stop(Job::Rebalance);
    }

    fn spread(&self, core: &Arc<Core>, switch: &JobSlot) -> Result<Rebalanced> {
        self.sync()?;
        core.alloc.shrink()?;
        if core.volume.groups.any_closed() {
            return Err(Error::Leaving);
        }
        let parts = Parts::read(core)?;
        let mut result = Rebalanced { before: parts.fills(), ..Rebalanced::default() };
        let progress = &self.mounted.progress.rebalancing;
        let stopped = || {
            progress.set(parts.to_move());
            switch.stops() || core.withdrawn.get().is_some()
        };
        let moved = self.move_out(&parts, &stopped);
        progress.end();
        result.moved = moved?;
        result.finished = !stopped();
        self.sync()?;
        core.alloc.shrink()?;
        result.after = Parts::read(core)?.fills();
        Ok(result)
    }

    /// Goes through all files and moves what `mover` says; blocks moved.
    pub(super) fn move_out(&self, mover: &dyn Mover, stopped: &dyn Fn() -> bool) -> Result<u64> {
        let mut moved = 0;
        let mut dirs = vec![self.root()];
        while let Some(dir) = dirs.pop() {
            let mut cookie = Some(0);
            while let Some(from) = cookie.filter(|_| !stopped() && !mover.done()) {
                let children = self.children(dir, from)?;
                for (ino, mode) in children.some {
                    match mode & S_IFMT {
                        S_IFDIR => dirs.push(ino),
                        S_IFREG => moved += spread_file(self.core(), ino, mover, stopped)?,
                        _ => {}
                    }
                }
                cookie = children.next;
            }
        }
        Ok(moved)
    }

    /// Some of a directory from a cookie on.
    fn children(&self, dir: InodeNo, from: u64) -> Result<Children> {
        let (mut some, mut at, mut more) = (Vec::new(), from, false);
        let listed = self.readdir(dir, from, WithAttrs::Yes, &mut |entry: DirEntry<'_>| {
            more = some.len() >= CHILDREN;
            if more {
                return true;
            }
            if entry.name != b"." && entry.name != b".." {
                some.extend(entry.attr.map(|a| (a.ino, a.mode)));
            }
            at = entry.next;
            false
        });
        match listed {
            Err(Error::Stale(_) | Error::NotFound | Error::NotDirectory) => Ok(Children::default()),
            done => done.map(|()| Children { some, next: more.then_some(at) }),
        }
    }
}

/// No other node moves file data while this is held: two would each make up for what the other has
/// left, and more.
pub(super) fn alone(core: &Arc<Core>) -> Result<Guard> {
    core.check_alive()?;
    let begin = Instant::now();
    let is_cancelled = || begin.elapsed() > PATIENCE;
    let lock = core.volume.named(RawSuperblock::NAMED_REBALANCE);
    let guard =
        core.locks.acquire_unless(lock, Mode::Exclusive, Local::Exclusive, &is_cancelled)?;
    guard.ok_or(Error::UnderWay)
}

/// Moves what of a file is to go; blocks moved.
fn spread_file(
    core: &Arc<Core>,
    ino: InodeNo,
    mover: &dyn Mover,
    stopped: &dyn Fn() -> bool,
) -> Result<u64> {
    let (mut at, mut blocks) = (0, 0);
    while !stopped() && !mover.done() {
        let begin = Instant::now();
        match relocate(core, ino, at, mover) {
            Ok(Some(moved)) => {
                mover.moved(moved.from, moved.to, moved.blocks);
                (at, blocks) = (moved.next, blocks + moved.blocks);
            }
            Ok(None) | Err(Error::Stale(_) | Error::NoSpace) => break,
            Err(error) if matches!(error, Error::Contents(_)) || error.is_lost_lock() => {
                tracing::warn!(%ino, %error, "the rest of this file stays where it is");
                break;
            }
            Err(e) => return Err(e),
        }
        std::thread::sleep(begin.elapsed().min(PAUSE_MAX));
    }
    Ok(blocks)
}
