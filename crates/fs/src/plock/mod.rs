//! Locks of programs, fcntl and flock, across nodes. Buckets of them are metadata like any other,
//! each under its own cluster lock.
//!
//! A blocked program waits on a condition of this node. It looks at the bucket when this node changes
//! it, and when another node is about to: a waiter's look leaves this node with a shared hold of the
//! bucket's lock, so whoever changes the bucket takes that hold away, and [`Plocks::bucket_taken`] wakes
//! the waiters. The look is shared, so waiters of several nodes do not take the bucket from one another.
//! Pauses of 1 to 50 ms between looks are for what has no such sign: a node that died.
//!
//! Blocked requests are served in the order in which the bucket records them: [`Table::ahead`]. A
//! request that must not block may pass them, as fcntl(2) says. Locks of dead nodes count for nothing
//! and are dropped on sight.
//!
//! Waiters are recorded in the bucket, so circles of them are found: those in one bucket at once, those
//! through several when a wait has lasted a while, by a look at all buckets at the same time. Each of
//! a circle is recorded before it looks, so the last one sees all of it.

mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::meta::MetaKind;
use braid_format::{InodeNo, LockNo};
use braid_lock::{Guard, Local, Me, Mode};
use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::error::{Error, Result};
use table::{Lock, Owner, Table};

/// What a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlockKind {
    /// Beside other readers.
    Shared,
    /// Alone.
    Exclusive,
    /// Give up.
    Unlock,
}

/// A byte-range lock of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX`: to the end of the file, wherever that will be.
    pub end: u64,
    /// What is asked for, or held.
    pub kind: PlockKind,
    /// The kernel's lock owner on this node.
    pub owner: u64,
    /// Process, for `F_GETLK` (0 when it lives on another node).
    pub pid: u32,
}

/// Breaks off a wait from another thread. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Canceller {
    cancelled: Arc<AtomicBool>,
}

impl Canceller {
    /// Not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// The wait ends with `Interrupted`, soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// Waiters of this node, and what its programs may hold.
#[derive(Debug, Default)]
pub(crate) struct Plocks {
    /// Counts changes made by this node; waiters look again when it moves.
    changes: Mutex<u64>,
    changed: Condvar,
    /// Files and owners of this node that may have locks: an unlock or close of anyone else is
    /// free of cost.
    mine: Mutex<HashSet<(InodeNo, u64, bool)>>,
}

impl Plocks {
    fn count(&self) -> u64 {
        *self.changes.lock()
    }
    fn notify(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }
    /// Another node takes a bucket's lock to change the bucket: waiters look at it afterwards, since
    /// their look waits for that node. Does not block.
    pub fn bucket_taken(&self) {
        self.notify();
    }
    /// Waits until something changed here since `seen`, at most `patience`.
    fn wait(&self, seen: u64, patience: Duration) {
        let mut count = self.changes.lock();
        if *count == seen {
            self.changed.wait_for(&mut count, patience);
        }
    }
}

/// Pauses between two looks at a lock held on another node.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Longest time that a request gives way to one recorded before it although no held lock blocks it.
/// Then it is served out of turn: the two may wait for each other through locks of another bucket,
/// which one bucket does not show.
const GIVES_WAY: Duration = Duration::from_millis(500);
/// How long a wait lasts before circles through other buckets are looked for: most end earlier, and
/// the look takes every bucket's lock.
const CIRCLE_AFTER: Duration = Duration::from_millis(200);
/// And again.
const CIRCLE_AGAIN: Duration = Duration::from_secs(2);

impl Plock {
    fn as_lock(&self, core: &Core, ino: InodeNo, flock: bool) -> Result<Lock> {
        let (start, end) = if flock { (0, u64::MAX) } else { (self.start, self.end) };
        if start > end {
            return Err(Error::Invalid("range of a lock"));
        }
        let owner = Owner { node: core.me, id: self.owner, flock };
        let exclusive = self.kind == PlockKind::Exclusive;
        Ok(Lock { ino, start, end, owner, pid: self.pid, exclusive })
    }
}

/// A bucket under its cluster lock.
struct Bucket<'a> {
    core: &'a Core,
    guard: Guard,
    table: Table,
    /// Entries on disk, dead ones included.
    on_disk: Table,
}

impl<'a> Bucket<'a> {
    /// That of an inode.
    fn open(core: &'a Core, ino: InodeNo, mode: Mode) -> Result<Self> {
        Self::at(core, core.volume.plock_bucket(ino), mode)
    }
    fn at(core: &'a Core, bucket: LockNo, mode: Mode) -> Result<Self> {
        let local = if mode == Mode::Exclusive { Local::Exclusive } else { Local::Shared };
        let guard = core.guard(bucket, mode, local)?;
        let body = core.read_owned(guard.lock(), MetaKind::Plock)?;
        let bad = |what| Error::Inconsistent { block: guard.lock().into(), what };
        let on_disk = Table::decode(&body, &|_| true).map_err(bad)?;
        let mut table = on_disk.clone();
        let mut verdicts: HashMap<Me, bool> = HashMap::new();
        let mut live =
            |l: &Lock| *verdicts.entry(l.owner.node).or_insert_with(|| core.is_live(l.owner.node));
        table.held.retain(&mut live);
        table.waiting.retain(&mut live);
        Ok(Self { core, guard, table, on_disk })
    }
    /// Whether the table's entries fit.
    fn fits(&self) -> bool {
        self.table.len() <= Table::capacity(self.core.volume.geo.body_len())
    }
    /// Writes the table back if it changed.
    fn close(self) -> Result<()> {
        if self.table == self.on_disk {
            return Ok(());
        }
        let lock = self.guard.lock();
        let mut tx = self.core.meta.begin()?;
        let done = tx.modify(lock.into(), lock, MetaKind::Plock, |body| self.table.encode(body));
        drop(tx);
        self.core.watch(done)
    }
}

/// The first lock that stands in the way of `asked`, or `None`. Of fcntl locks.
pub(crate) fn getlk(core: &Arc<Core>, ino: InodeNo, asked: &Plock) -> Result<Option<Plock>> {
    let lock = asked.as_lock(core, ino, false)?;
    let bucket = Bucket::open(core, ino, Mode::Shared)?;
    Ok(bucket.table.conflict(&lock).map(|l| Plock {
        start: l.start,
        end: l.end,
        kind: if l.exclusive { PlockKind::Exclusive } else { PlockKind::Shared },
        owner: l.owner.id,
        pid: if l.owner.node == core.me { l.pid } else { 0 },
    }))
}
/// Takes, changes or gives up an fcntl lock. `wait`: blocks until it is free or cancelled.
///
/// # Errors
/// `WouldBlock` without `wait`; `Interrupted`, `Deadlock` with it; `NoLocks` when the table of
/// program locks is full.
pub(crate) fn setlk(
    core: &Arc<Core>,
    ino: InodeNo,
    asked: &Plock,
    wait: Option<&Canceller>,
) -> Result<()> {
    change(core, ino, asked, wait, false)
}
/// The same for flock: `start` and `end` do not count; circles of waiters are not looked for. A
/// lock that is to be converted is given up first, as flock(2) says.
pub(crate) fn flock(
    core: &Arc<Core>,
    ino: InodeNo,
    asked: &Plock,
    wait: Option<&Canceller>,
) -> Result<()> {
    change(core, ino, asked, wait, true)
}
/// Gives up all fcntl locks that `owner` of this node has on the file (a close).
pub(crate) fn drop_owner(core: &Arc<Core>, ino: InodeNo, owner: u64) -> Result<()> {
    let all = Plock { start: 0, end: u64::MAX, kind: PlockKind::Unlock, owner, pid: 0 };
    change(core, ino, &all, None, false)
}

fn change(
    core: &Arc<Core>,
    ino: InodeNo,
    asked: &Plock,
    wait: Option<&Canceller>,
    flock: bool,
) -> Result<()> {
    let lock = asked.as_lock(core, ino, flock)?;
    let key = (ino, asked.owner, flock);
    if asked.kind == PlockKind::Unlock {
        if !core.plocks.mine.lock().contains(&key) {
            return Ok(());
        }
        return unlock(core, &lock, key);
    }
    let mut pause = PAUSE_MIN;
    let mut turn = if wait.is_some() { Turn::Kept } else { Turn::Passed };
    let mut recorded = false;
    let mut gives_way: Option<Instant> = None;
    let mut look = Instant::now() + CIRCLE_AFTER;
    loop {
        match attempt(core, &lock, (wait.is_some(), turn), recorded)? {
            Outcome::Granted => {
                core.plocks.notify();
                return Ok(());
            }
            Outcome::Busy => gives_way = None,
            Outcome::NotYet => _ = gives_way.get_or_insert_with(Instant::now),
        }
        let Some(canceller) = wait else { return Err(Error::WouldBlock) };
        recorded = true;
        loop {
            let seen = core.plocks.count();
            if gives_way.is_some_and(|since| since.elapsed() >= GIVES_WAY) {
                turn = Turn::Passed;
            }
            match standing(core, &lock, turn)? {
                Outcome::Granted => break,
                Outcome::Busy => (gives_way, turn) = (None, Turn::Kept),
                Outcome::NotYet => _ = gives_way.get_or_insert_with(Instant::now),
            }
            if canceller.is_cancelled() {
                return give_up_waiting(core, &lock, Error::Interrupted);
            }
            if !flock && Instant::now() >= look {
                if is_in_circle(core, &lock)? {
                    return give_up_waiting(core, &lock, Error::Deadlock);
                }
                look = Instant::now() + CIRCLE_AGAIN;
            }
            core.plocks.wait(seen, pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Whether a request waits for those recorded before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It does.
    Kept,
    /// It does not: it must not block, or has given way for long enough.
    Passed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing stands in its way.
    Granted,
    /// A lock that is held does.
    Busy,
    /// Only one that was asked for before does.
    NotYet,
}

impl Outcome {
    fn of(table: &Table, lock: &Lock, turn: Turn) -> Self {
        if table.conflict(lock).is_some() {
            Self::Busy
        } else if turn == Turn::Kept && table.ahead(lock).is_some() {
            Self::NotYet
        } else {
            Self::Granted
        }
    }
}

/// Grants the lock if nothing stands in its way; otherwise, if it `waits`, records that.
fn attempt(
    core: &Core,
    lock: &Lock,
    (waits, turn): (bool, Turn),
    recorded: bool,
) -> Result<Outcome> {
    let mut bucket = Bucket::open(core, lock.ino, Mode::Exclusive)?;
    let outcome = Outcome::of(&bucket.table, lock, turn);
    if outcome == Outcome::Granted {
        bucket.table.stop_waiting(lock.ino, lock.owner);
        bucket.table.grant(*lock);
        if !bucket.fits() {
            return Err(Error::NoLocks);
        }
        // Under the bucket's lock, as `unlock` removes it.
        core.plocks.mine.lock().insert((lock.ino, lock.owner.id, lock.owner.flock));
        bucket.close()?;
        return Ok(Outcome::Granted);
    }
    if lock.owner.flock {
        bucket.table.clear(lock.ino, lock.owner, 0, u64::MAX);
    } else if waits && bucket.table.would_deadlock(lock) {
        bucket.table.stop_waiting(lock.ino, lock.owner);
        bucket.close()?;
        return Err(Error::Deadlock);
    }
    if waits && !recorded {
        bucket.table.waiting.push(*lock);
        // Without room the wait goes on unrecorded: only circles through it stay unseen.
        if !bucket.fits() {
            bucket.table.waiting.pop();
        }
    }
    let gave_up = bucket.table.held.len() < bucket.on_disk.held.len();
    bucket.close()?;
    if gave_up {
        core.plocks.notify();
    }
    Ok(outcome)
}

/// What [`attempt`] would say, without changing anything.
fn standing(core: &Core, lock: &Lock, turn: Turn) -> Result<Outcome> {
    Ok(Outcome::of(&Bucket::open(core, lock.ino, Mode::Shared)?.table, lock, turn))
}

/// Whether who waits for `lock` waits for himself, by all buckets as they are at one moment: pieces of
/// several moments could show a circle that never was. A bucket that cannot be read shows nothing; who
/// uses it hears of that.
fn is_in_circle(core: &Core, lock: &Lock) -> Result<bool> {
    core.check_alive()?;
    let opened = core.volume.plock_buckets().map(|n| Bucket::at(core, n, Mode::Shared));
    let buckets: Vec<Bucket<'_>> = opened.filter_map(Result::ok).collect();
    let mut all = Table::default();
    for bucket in &buckets {
        all.held.extend_from_slice(&bucket.table.held);
        all.waiting.extend_from_slice(&bucket.table.waiting);
    }
    Ok(all.would_deadlock(lock))
}

/// The wait ends with `why`.
fn give_up_waiting(core: &Core, lock: &Lock, why: Error) -> Result<()> {
    let mut bucket = Bucket::open(core, lock.ino, Mode::Exclusive)?;
    bucket.table.stop_waiting(lock.ino, lock.owner);
    bucket.close()?;
    Err(why)
}

fn unlock(core: &Core, lock: &Lock, key: (InodeNo, u64, bool)) -> Result<()> {
    let mut bucket = Bucket::open(core, lock.ino, Mode::Exclusive)?;
    bucket.table.clear(lock.ino, lock.owner, lock.start, lock.end);
    if !bucket.fits() {
        return Err(Error::NoLocks);
    }
    let has = |l: &Lock| l.ino == lock.ino && l.owner == lock.owner;
    let none = !bucket.table.held.iter().any(has) && !bucket.table.waiting.iter().any(has);
    if none {
        core.plocks.mine.lock().remove(&key);
    }
    bucket.close()?;
    core.plocks.notify();
    Ok(())
}
