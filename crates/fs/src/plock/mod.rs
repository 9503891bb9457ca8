//! Locks of programs, fcntl and flock, across nodes. Buckets of them are metadata like any other,
//! each under its own cluster lock ([`bucket`]).
//!
//! A wait is a record ([`waits`]): a lock that becomes free on this node is granted by whoever frees it;
//! locks that other nodes hold are looked at by a thread of the bucket ([`poll`]). Requests that wait
//! are served in the order in which they were made, on whatever node. A request that must not block may pass them, as fcntl(2) says. Locks of
//! dead nodes count for nothing and are dropped on sight.
//!
//! Waits are recorded in the bucket when other nodes look at it, so circles of them are
//! found: those in one bucket at once, those through several when a wait has lasted a while, by a look
//! at all buckets at the same time. Each of a circle is recorded before it looks, so the last one
//! sees all of it.

mod bucket;
mod chain;
mod circle;
mod poll;
mod table;
#[cfg(test)]
mod tests;
mod users;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use braid_format::{Bytes, InodeNo, LockNo};
use braid_lock::Mode;
use braid_lock::interrupt::Held;
use parking_lot::Mutex;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::volume::Volume;
pub(crate) use bucket::BLOCKS_MAX;
use bucket::{Bucket, Served};
use table::{Growth, Lock, Owner};
use users::Users;
use waits::{Ended, Outcome, Wait, tell};
pub use waits::{LockDone, WaitId};

/// The block of a bucket that follows this one, for the checker.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn next_block(
    body: &[u8],
) -> std::result::Result<Option<braid_format::BlockNo>, &'static str> {
    chain::Block::decode(body).map(|block| block.next)
}

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
    /// User to whom the lock counts.
    pub uid: u32,
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

/// How long a close waits for the bucket of the locks that it gives up.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// How soon a thread that waits itself hears that it is cancelled.
const CANCEL_LOOK: Duration = Duration::from_millis(50);

/// Locks that programs of this node have, or wait for.
#[derive(Debug)]
pub(crate) struct Plocks {
    buckets: BTreeMap<LockNo, Arc<Bucket>>,
    users: Users,
    circles: Mutex<poll::Circles>,
}

impl Plocks {
    /// None. `metadata_cache` bounds their memory, see [`users`].
    pub fn new(volume: &Volume, metadata_cache: Bytes) -> Self {
        let buckets = volume.plock_buckets().map(|n| (n, Arc::new(Bucket::new(n)))).collect();
        let users = Users::new(metadata_cache);
        Self { buckets, users, circles: Mutex::default() }
    }
    fn in_order(&self) -> impl Iterator<Item = &Arc<Bucket>> {
        self.buckets.values()
    }
    /// A bucket's exclusive cluster lock is about to be given up.
    ///
    /// # Errors
    /// The node must withdraw.
    pub fn store(&self, core: &Core, lock: LockNo) -> Result<()> {
        self.buckets.get(&lock).map_or(Ok(()), |bucket| bucket.store(core))
    }
    /// A cluster lock, maybe a bucket's, was given up.
    pub fn forget(&self, lock: LockNo) {
        if let Some(bucket) = self.buckets.get(&lock) {
            bucket.forget();
        }
    }
    /// Ends all waits: the node leaves.
    pub fn end_waits(&self, how: &dyn Fn() -> Result<()>) {
        for bucket in self.in_order() {
            end_waits(&self.users, bucket, how);
        }
    }
}

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

fn bucket_of(core: &Core, ino: InodeNo) -> Result<&Arc<Bucket>> {
    let bucket = core.plocks.buckets.get(&core.volume.plock_bucket(ino));
    bucket.ok_or(Error::Invalid("bucket of program locks"))
}

/// The first lock that stands in the way of `asked`, or `None`. Of fcntl locks.
pub(crate) fn getlk(core: &Arc<Core>, ino: InodeNo, asked: &Plock) -> Result<Option<Plock>> {
    let lock = asked.as_lock(core, ino, false)?;
    let bucket = bucket_of(core, ino)?;
    let _guard = bucket.open(core, Mode::Shared)?;
    let mut state = bucket.state();
    state.judge(core);
    let far = state.seen.as_ref().and_then(|seen| seen.others.conflict(&lock));
    let first = state.mine.conflict(&lock).into_iter().chain(far).min_by_key(|l| l.start);
    Ok(first.map(|l| Plock {
        start: l.start,
        end: l.end,
        kind: if l.exclusive { PlockKind::Exclusive } else { PlockKind::Shared },
        owner: l.owner.id,
        pid: if l.owner.node == core.me { l.pid } else { 0 },
        uid: 0,
    }))
}

/// Takes, changes or gives up an fcntl lock. `wait`: this thread waits until it is free or cancelled.
///
/// # Errors
/// `WouldBlock` without `wait`; `Interrupted`, `Deadlock` with it; `NoLocks` when the user, or the
/// node, has as many locks as are allowed, or the pool has no space for another.
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
/// Gives up all fcntl locks that `owner` of this node has on the file (a close). If the bucket's
/// cluster lock does not come within [`CLOSE_PATIENCE`], the locks are gone for this node, and the bucket's
/// thread tells the others later: a program that ends cannot be interrupted here.
pub(crate) fn drop_owner(core: &Arc<Core>, ino: InodeNo, owner: u64) -> Result<()> {
    let all = Plock { start: 0, end: u64::MAX, kind: PlockKind::Unlock, owner, pid: 0, uid: 0 };
    let lock = all.as_lock(core, ino, false)?;
    let bucket = bucket_of(core, ino)?;
    if !bucket.state().mine.has(lock.ino, lock.owner) {
        return Ok(());
    }
    let mut ended = Vec::new();
    let done = match bucket.open_within(core, CLOSE_PATIENCE) {
        Ok(Some(_guard)) => give_up(core, bucket, &lock, &mut ended),
        Ok(None) => {
            let mut state = bucket.state();
            state.take(&core.plocks.users, &lock);
            state.poll.stale = true;
            state.poll.news = true;
            Ok(())
        }
        Err(e) => Err(e),
    };
    settle(core, bucket, ended);
    done
}

/// Tells those whose waits have ended, and calls the bucket's thread if there is something for it. No
/// lock held.
fn settle(core: &Arc<Core>, bucket: &Arc<Bucket>, ended: Vec<Ended>) {
    tell(ended);
    let news = std::mem::take(&mut bucket.state().poll.news);
    if news {
        poll::call(core, bucket);
    }
}

fn change(
    core: &Arc<Core>,
    ino: InodeNo,
    asked: &Plock,
    wait: Option<&Canceller>,
    flock: bool,
) -> Result<()> {
    let Some(canceller) = wait else { return ask(core, ino, asked, flock, None).map(drop) };
    let (tell, told) = sync_channel(1);
    let done = Box::new(move |result| drop(tell.send(result)));
    let Some(id) = ask(core, ino, asked, flock, Some(done))? else { return Ok(()) };
    loop {
        match told.recv_timeout(CANCEL_LOOK) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Interrupted),
            Err(RecvTimeoutError::Timeout) if canceller.is_cancelled() => {
                end_wait(core, id, Err(Error::Interrupted));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Takes, changes or gives up a lock. `None`: that is done. Where it has to be waited for and `done` is
/// given, that is called when the wait ends, maybe before this returns and on any thread, which it
/// must not hold up; otherwise it is not called.
///
/// # Errors
/// As [`setlk`].
pub(crate) fn ask(
    core: &Arc<Core>,
    ino: InodeNo,
    asked: &Plock,
    flock: bool,
    done: Option<LockDone>,
) -> Result<Option<WaitId>> {
    let lock = asked.as_lock(core, ino, flock)?;
    let bucket = bucket_of(core, ino)?;
    let mut ended = Vec::new();
    let outcome = if asked.kind == PlockKind::Unlock {
        unlock(core, bucket, &lock, &mut ended).map(|()| None)
    } else {
        attempt(core, bucket, (lock, asked.uid), done, &mut ended)
    };
    settle(core, bucket, ended);
    let id = outcome?;
    if id.is_some() && !flock {
        poll::watch_for_circles(core);
    }
    Ok(id)
}

/// Grants the lock if nothing stands in its way; otherwise, if `done` is given, records the wait.
fn attempt(
    core: &Arc<Core>,
    bucket: &Bucket,
    (lock, uid): (Lock, u32),
    done: Option<LockDone>,
    ended: &mut Vec<Ended>,
) -> Result<Option<WaitId>> {
    let users = &core.plocks.users;
    let _guard = bucket.open(core, Mode::Exclusive)?;
    // Once somebody's lock has changed, those that wait for it have to hear of it.
    let _held = Held::begin();
    let outcome = {
        let mut state = bucket.state();
        // Who must not block passes those who wait.
        let order = if done.is_some() { u64::MAX } else { 0 };
        let outcome = state.outcome(&lock, order);
        if outcome == Outcome::Far {
            state.judge(core);
            state.outcome(&lock, order)
        } else {
            outcome
        }
    };
    if outcome == Outcome::Free {
        let room = users.room(uid).min(room_for(core, bucket, 2)?);
        let (granted, gave_up) = {
            let mut state = bucket.state();
            let held = state.mine.has(lock.ino, lock.owner);
            (state.grant(users, &lock, uid, room), held && !lock.exclusive)
        };
        if granted && gave_up {
            // It may have been exclusive: others can read beside it now.
            serve(core, bucket, &lock, ended)?;
        }
        return granted.then_some(None).ok_or(Error::NoLocks);
    }
    if lock.owner.flock && bucket.state().mine.has(lock.ino, lock.owner) {
        bucket.state().take(users, &lock);
        serve(core, bucket, &lock, ended)?;
    }
    let Some(done) = done else { return Err(Error::WouldBlock) };
    if users.room(uid) < 1 {
        return Err(Error::NoLocks);
    }
    if !lock.owner.flock && bucket.state().would_close_circle(&lock) {
        return Err(Error::Deadlock);
    }
    // Without space the wait goes on unrecorded: its turn, and circles through it, stay unseen elsewhere.
    room_for(core, bucket, 1)?;
    users.count(uid, 1);
    let order = bucket.state().wait((lock, uid), done);
    Ok(Some(WaitId { bucket: bucket.lock, ino: lock.ino, order }))
}

/// By how many entries the bucket may grow: any number, if there is space for `more`.
fn room_for(core: &Core, bucket: &Bucket, more: usize) -> Result<Growth> {
    match bucket.make_room(core, more) {
        Ok(()) => Ok(Growth::MAX),
        Err(Error::NoLocks) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Never fails for want of memory, space or entries.
fn unlock(core: &Core, bucket: &Bucket, lock: &Lock, ended: &mut Vec<Ended>) -> Result<()> {
    if !bucket.state().mine.has(lock.ino, lock.owner) {
        return Ok(());
    }
    let _guard = bucket.open(core, Mode::Exclusive)?;
    give_up(core, bucket, lock, ended)
}

/// Takes a lock off its owner. The bucket's lock is held exclusively.
fn give_up(core: &Core, bucket: &Bucket, lock: &Lock, ended: &mut Vec<Ended>) -> Result<()> {
    let _held = Held::begin();
    room_for(core, bucket, 1)?;
    bucket.state().take(&core.plocks.users, lock);
    serve(core, bucket, lock, ended)?;
    bucket.shrink(core)
}

/// Grants what is free of the locks on a file that are waited for, after somebody gave up some of
/// `freed`. The bucket's lock is held exclusively.
fn serve(core: &Core, bucket: &Bucket, freed: &Lock, ended: &mut Vec<Ended>) -> Result<()> {
    let keys = bucket.state().waits.touched(freed);
    serve_these(core, bucket, keys, ended)
}

/// Grants what is free of these.
fn serve_these(
    core: &Core,
    bucket: &Bucket,
    keys: Vec<waits::Key>,
    ended: &mut Vec<Ended>,
) -> Result<()> {
    let users = &core.plocks.users;
    for key in keys {
        let room = bucket.room(core);
        let mut served = bucket.state().serve(users, key, room, false);
        if matches!(served, Served::NeedsRoom) {
            let room = room_for(core, bucket, 2)?;
            served = bucket.state().serve(users, key, room, true);
        }
        if let Served::Ended(how) = served {
            ended.push(how);
        }
    }
    Ok(())
}

/// Ends a wait, if it still stands.
pub(crate) fn end_wait(core: &Arc<Core>, id: WaitId, how: Result<()>) {
    let Some(bucket) = core.plocks.buckets.get(&id.bucket) else { return };
    let (wait, stale) = {
        let mut state = bucket.state();
        let wait = state.waits.remove((id.ino, id.order));
        let stale = wait.as_ref().is_some_and(Wait::is_recorded);
        state.changed |= stale;
        state.poll.stale |= stale;
        (wait, stale)
    };
    let Some(wait) = wait else { return };
    core.plocks.users.count(wait.uid, -1);
    tell(vec![wait.ends(how)]);
    // Those behind it may be free now.
    if stale || bucket.state().poll.far {
        poll::call(core, bucket);
    }
}

/// Ends all waits in a bucket.
fn end_waits(users: &Users, bucket: &Bucket, how: &dyn Fn() -> Result<()>) {
    let waits = bucket.state().take_waits();
    for wait in &waits {
        users.count(wait.uid, -1);
    }
    tell(waits.into_iter().map(|wait| wait.ends(how())).collect());
}
