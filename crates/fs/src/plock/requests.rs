//! Locks are asked for, waited for and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use braid_format::{InodeNo, LockNo};
use braid_lock::interrupt::Uninterruptible;
use braid_lock::{Keep, Mode};

use super::grant::{room_for, serve, tell_turns};
use super::poll::{self, end_wait};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::plock_table::bucket::{Bucket, TURN};
use crate::plock_table::table::{Lock, Owner};
use crate::plock_table::waits::{Ended, LockDone, Outcome, WaitId, tell};
use crate::plock_table::{Plock, PlockKind, Plocks};

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

impl Plocks {
    /// A bucket's exclusive cluster lock is about to be given up.
    ///
    /// # Errors
    /// The node must withdraw.
    pub fn store(&self, core: &Core, lock: LockNo) -> Result<()> {
        self.buckets.get(&lock).map_or(Ok(()), |bucket| bucket.store(core))
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

pub(super) fn bucket_of(core: &Core, ino: InodeNo) -> Result<&Arc<Bucket>> {
    let bucket = core.plocks.buckets.get(&core.volume.plock_bucket(ino));
    bucket.ok_or(Error::Invalid("bucket of program locks"))
}

/// The first lock that conflicts with `asked`, or `None`. Of fcntl locks.
pub(crate) fn getlk(core: &Arc<Core>, ino: InodeNo, asked: &Plock) -> Result<Option<Plock>> {
    let lock = asked.as_lock(core, ino, false)?;
    let bucket = bucket_of(core, ino)?;
    let _guard = bucket.open(core, Mode::Shared)?;
    let mut state = bucket.state();
    state.forget_dead(core.as_ref());
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
    let until = Instant::now() + CLOSE_PATIENCE;
    let done = match bucket.open_until(core, Mode::Exclusive, until) {
        Ok(Some(_guard)) => give_up(core, bucket, &lock, &mut ended),
        Ok(None) => give_up_unseen(core, bucket, &lock),
        Err(e) => unseen_at(e, core, bucket, &lock),
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

pub(super) fn change(
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

/// Takes, changes or gives up a lock. `None`: that is done. If the lock has to be waited for and
/// `done` is given, `done` is called when the wait ends. That may be before this returns, and on
/// any thread; `done` must not block it. Otherwise `done` is not called.
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

/// Grants the lock if nothing conflicts with it; otherwise, if `done` is given, records the wait.
fn attempt(
    core: &Arc<Core>,
    bucket: &Bucket,
    (lock, uid): (Lock, u32),
    done: Option<LockDone>,
    ended: &mut Vec<Ended>,
) -> Result<Option<WaitId>> {
    let users = &core.plocks.users;
    let _guard = bucket.open(core, Mode::Exclusive)?;
    // Once a lock has changed, threads that wait for it must be woken.
    let _held = Uninterruptible::begin();
    // A request that must not block passes those that wait.
    let order = if done.is_some() { u64::MAX } else { 0 };
    let outcome = {
        let mut state = bucket.state();
        let outcome = state.outcome(&lock, order);
        if outcome == Outcome::Far {
            state.forget_dead(core.as_ref());
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
            (state.grant(users, (&lock, order), uid, room), held && !lock.exclusive)
        };
        if granted && gave_up {
            // It may have been exclusive: others can read beside it now.
            serve(core, bucket, &lock, ended)?;
        }
        // The bucket will be needed for the unlock.
        core.locks.keep(bucket.lock, Keep::For(TURN));
        return granted.then_some(None).ok_or(Error::NoLocks);
    }
    if lock.owner.flock && bucket.state().mine.has(lock.ino, lock.owner) {
        // All of it: that splits nothing.
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
    if outcome != Outcome::Near {
        // What is waited for comes from another node, and that node needs the bucket for it.
        tell_turns(core, bucket);
        core.locks.keep(bucket.lock, Keep::NoLonger);
    }
    Ok(Some(WaitId { bucket: bucket.lock, ino: lock.ino, order }))
}

/// Never fails for want of memory or space, and for want of entries only if it splits a lock and its user has
/// twice as many as he may have.
///
/// # Errors
/// `NoLocks` then.
fn unlock(core: &Core, bucket: &Bucket, lock: &Lock, ended: &mut Vec<Ended>) -> Result<()> {
    if !bucket.state().mine.has(lock.ino, lock.owner) {
        return Ok(());
    }
    match bucket.open(core, Mode::Exclusive) {
        Ok(_guard) => give_up(core, bucket, lock, ended),
        Err(e) => unseen_at(e, core, bucket, lock),
    }
}

/// Takes a lock off its owner although the bucket's lock is not to be had: a file that is closed, or a program
/// that ends, asks only once. The bucket's thread tells the other nodes as soon as it can.
fn give_up_unseen(core: &Core, bucket: &Bucket, lock: &Lock) -> Result<()> {
    let mut state = bucket.state();
    if !state.take(&core.plocks.users, lock) {
        return Err(Error::NoLocks);
    }
    state.poll.stale = true;
    state.poll.news = true;
    Ok(())
}

/// The same after an error, unless it ends this node's work.
fn unseen_at(error: Error, core: &Core, bucket: &Bucket, lock: &Lock) -> Result<()> {
    if !matches!(error, Error::Lock(_)) || core.check_alive().is_err() {
        return Err(error);
    }
    tracing::debug!(%error, "a lock is given up here, and other nodes hear of it later");
    give_up_unseen(core, bucket, lock)
}

/// Takes a lock off its owner. The bucket's lock is held exclusively.
fn give_up(core: &Core, bucket: &Bucket, lock: &Lock, ended: &mut Vec<Ended>) -> Result<()> {
    let _held = Uninterruptible::begin();
    room_for(core, bucket, 1)?;
    let holds = {
        let mut state = bucket.state();
        if !state.take(&core.plocks.users, lock) {
            return Err(Error::NoLocks);
        }
        state.mine.len() > 0
    };
    if !holds {
        core.locks.keep(bucket.lock, Keep::PerhapsFor(TURN));
    }
    serve(core, bucket, lock, ended)?;
    bucket.shrink(core)
}
