//! Looking at locks that other nodes hold, and for circles of waiters.
//!
//! A bucket in which a program waits for locks of other nodes has a thread. It looks at the bucket when
//! another node says that it is this one's turn ([`Bucket::your_turn`]); when another node takes the
//! bucket's lock to change it, if a request here was the next in order ([`Bucket::forget`]); and, for what has
//! no such sign (a node that died, a message that was lost), with growing pauses. Then the look is shared, so
//! that several nodes do not take the bucket from one another. The thread ends when there is nothing more to
//! look for: at most one for each bucket, however many wait. One further thread looks for circles that go
//! through several buckets.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_lock::Mode;

use super::grant::serve_these;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::plock_table::bucket::Bucket;
use crate::plock_table::circle::{Budget, Waiting, would_close};
use crate::plock_table::table::{Lock, Table};
use crate::plock_table::waits::{Ended, WaitId, tell};

/// Pauses between two looks at a lock held on another node.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The shortest one while another node has the bucket: a look takes it away from that node, and whose turn it is
/// hears of it.
const PAUSE_AWAY: Duration = Duration::from_millis(20);
/// How long a thread stays that has nothing to look for.
const LINGER: Duration = Duration::from_secs(1);
/// How long a wait lasts before circles through other buckets are looked for: most end earlier, and
/// the look takes every bucket's lock.
pub(super) const CIRCLE_AFTER: Duration = Duration::from_millis(200);
/// And again.
const CIRCLE_AGAIN: Duration = Duration::from_secs(2);
/// How long such a look waits for buckets in all. It keeps those that it has from everybody, so one that a node
/// does not give up (it is stopped, or silent) is left out.
const CIRCLE_PATIENCE: Duration = Duration::from_millis(100);

/// Ends a wait, if it still stands. Of an fcntl lock for which other nodes can see it, the program hears of that once
/// they no longer can, after twice [`CIRCLE_AFTER`] at the latest: what it does next must not look like a circle.
pub(crate) fn end_wait(core: &Arc<Core>, id: WaitId, how: Result<()>) {
    let Some(bucket) = core.plocks.buckets.get(&id.bucket) else { return };
    let (uid, stale, ended) = {
        let mut state = bucket.state();
        let Some(wait) = state.waits.remove((id.ino, id.order)) else { return };
        let (uid, stale) = (wait.uid, wait.is_recorded());
        state.changed |= stale;
        state.poll.stale |= stale;
        if stale && !wait.lock.owner.flock {
            state.parting.add(wait.ends(how));
            (uid, stale, None)
        } else {
            (uid, stale, Some(wait.ends(how)))
        }
    };
    core.plocks.users.count(uid, -1);
    match ended {
        Some(ended) => tell(vec![ended]),
        None => watch(core, false),
    }
    // Those behind it may be free now.
    if stale || bucket.state().poll.far {
        call(core, bucket);
    }
}

/// Has a bucket's thread look, and starts it if need be.
pub(super) fn call(core: &Arc<Core>, bucket: &Arc<Bucket>) {
    let need = &mut bucket.state().poll;
    need.called = true;
    if need.running {
        bucket.called.notify_one();
        return;
    }
    let (weak, own) = (Arc::downgrade(core), Arc::clone(bucket));
    match std::thread::Builder::new().name("plock-poll".into()).spawn(move || poll(&weak, &own)) {
        Ok(_) => need.running = true,
        Err(error) => {
            tracing::error!(%error, "cannot start a thread that waits for other nodes' locks");
        }
    }
}

fn poll(core: &Weak<Core>, bucket: &Arc<Bucket>) {
    let mut pause = PAUSE_MIN;
    loop {
        let mut state = bucket.state();
        let since = Instant::now();
        while !state.poll.called {
            let idle = !state.poll.far && !state.poll.stale;
            let timeout = match state.seen {
                _ if idle => LINGER,
                Some(_) => pause,
                None => pause.max(PAUSE_AWAY),
            };
            if Instant::now() >= since + timeout {
                if idle {
                    state.poll.running = false;
                    return;
                }
                break;
            }
            bucket.called.wait_until(&mut state, since + timeout);
        }
        if std::mem::take(&mut state.poll.called) {
            pause = PAUSE_MIN;
        }
        if !state.poll.stale && state.waits.len() == 0 {
            // Those who waited have been served since.
            state.poll.far = false;
            continue;
        }
        drop(state);
        let Some(core) = core.upgrade() else { return };
        let stale = bucket.state().poll.stale;
        if let Err(error) = core.watch(look(&core, bucket)) {
            // What the others are to be told has not been told.
            bucket.state().poll.stale |= stale;
            crate::plock_table::end_waits(&core.plocks.users, bucket, &|| Err(again(&error)));
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The result for each of many waiters. Other failures than of the lock itself end this node's
/// work.
fn again(error: &Error) -> Error {
    match error {
        Error::Lock(error) => Error::Lock(error.clone()),
        error => Error::Withdrawn { reason: error.reason() },
    }
}

/// Looks at a bucket, and grants what is free.
fn look(core: &Arc<Core>, bucket: &Arc<Bucket>) -> Result<()> {
    let to_change = {
        let poll = &mut bucket.state().poll;
        // Most likely it can be granted now: a shared look first would be a hand-over more.
        std::mem::take(&mut poll.stale) | std::mem::take(&mut poll.next)
    };
    if !to_change {
        let _guard = bucket.open(core, Mode::Shared)?;
        let mut state = bucket.state();
        state.forget_dead(core.as_ref());
        if !state.any_free() {
            return Ok(());
        }
    }
    let mut ended = Vec::new();
    let done = grant_all(core, bucket, &mut ended);
    tell(ended);
    done
}

fn grant_all(core: &Arc<Core>, bucket: &Arc<Bucket>, ended: &mut Vec<Ended>) -> Result<()> {
    let _guard = bucket.open(core, Mode::Exclusive)?;
    let keys = {
        let mut state = bucket.state();
        ended.extend(state.parting.take(Duration::ZERO));
        state.forget_dead(core.as_ref());
        // Whatever stood there of this node is looked at when the lock goes.
        state.changed = true;
        state.waits.keys()
    };
    serve_these(core, bucket, keys, ended)?;
    bucket.state().any_free();
    Ok(())
}

/// An fcntl lock is waited for.
pub(super) fn watch_for_circles(core: &Arc<Core>) {
    watch(core, true);
}

/// Starts the thread that looks for circles, if need be. `called`: there may be one.
fn watch(core: &Arc<Core>, called: bool) {
    let circles = &mut *core.plocks.circles.lock();
    circles.called |= called;
    if circles.running {
        return;
    }
    let weak = Arc::downgrade(core);
    match std::thread::Builder::new().name("plock-circles".into()).spawn(move || circle(&weak)) {
        Ok(_) => circles.running = true,
        Err(error) => {
            tracing::error!(%error, "cannot start the thread that looks for deadlocks among waiters");
        }
    }
}

fn circle(core: &Weak<Core>) {
    let mut again = Instant::now();
    loop {
        std::thread::sleep(CIRCLE_AFTER);
        let Some(core) = core.upgrade() else { return };
        let (called, any) = {
            let mut circles = core.plocks.circles.lock();
            let any = core.plocks.in_order().any(|bucket| bucket.state().any_fcntl());
            circles.running = any;
            (std::mem::take(&mut circles.called), any)
        };
        if !any {
            return;
        }
        for bucket in core.plocks.in_order() {
            // Another node does not give the bucket up; this cannot wait for it.
            let late = bucket.state().parting.take(CIRCLE_AFTER);
            tell(late);
        }
        if (called || Instant::now() >= again) && core.check_alive().is_ok() {
            again = Instant::now() + CIRCLE_AGAIN;
            // Those that began a moment ago have their look next time.
            let too_early = refuse_circles(&core);
            core.plocks.circles.lock().called |= too_early;
        }
    }
}

/// What all buckets hold at one moment: pieces of several moments could show a circle that never was.
#[derive(Default)]
struct Everything {
    held: Vec<Table>,
    waiting: Vec<Waiting>,
    /// Waits of this node that may be ended, the latest first.
    own: Vec<(Instant, WaitId, Lock)>,
}

fn everything<'a>(core: &'a Core) -> Everything {
    let until = Instant::now() + CIRCLE_PATIENCE;
    // A bucket that cannot be read shows nothing here; its users get the error.
    let opened = |bucket: &'a Arc<Bucket>| {
        let guard = bucket.open_until(core, Mode::Shared, until);
        Some((guard.ok().flatten()?, bucket))
    };
    let guards: Vec<_> = core.plocks.in_order().filter_map(opened).collect();
    let mut all = Everything::default();
    for (_, bucket) in &guards {
        let mut state = bucket.state();
        state.forget_dead(core);
        all.held.push(state.mine.clone());
        all.waiting.push(state.waits.waiting.clone());
        let waits = state.waits.iter().filter(|(_, w)| !w.lock.owner.flock);
        all.own.extend(waits.map(|(&(ino, order), wait)| {
            let id = WaitId { bucket: bucket.lock, ino, order };
            (wait.since, id, wait.lock)
        }));
        if let Some(seen) = &state.seen {
            all.held.push(seen.others.clone());
            all.waiting.push(seen.waiting.clone());
        }
    }
    all.own.sort_by_key(|(since, ..)| std::cmp::Reverse(*since));
    all
}

/// Ends a wait of each circle. Returns whether some waits were too young to be looked at.
fn refuse_circles(core: &Arc<Core>) -> bool {
    let mut all = everything(core);
    let (mut too_early, mut budget) = (false, Budget::of_search());
    for (since, id, lock) in std::mem::take(&mut all.own) {
        if since.elapsed() < CIRCLE_AFTER {
            too_early = true;
            continue;
        }
        let held: Vec<&Table> = all.held.iter().collect();
        let waiting: Vec<&Waiting> = all.waiting.iter().collect();
        if would_close(&held, &waiting, &lock, &mut budget) {
            end_wait(core, id, Err(Error::Deadlock));
            all.waiting.iter_mut().for_each(|w| w.remove(&lock));
        }
    }
    too_early
}
