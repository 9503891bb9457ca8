//! What a mounted node does by itself: commits, tells others of free space, watches the devices; and how it ends for the
//! others when it withdraws.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_lock::interrupt::Interrupt;
use braid_lock::{LockError, Membership};
use braid_pool::device::answers;
use braid_pool::{BackgroundIo, PoolError};

use crate::cluster::Cluster;
use crate::core::Core;
use crate::error::Result;
use crate::stop_flag::StopFlag;
use crate::volume::Volume;
use crate::writeback::flush_all;

/// The threads that do so.
pub(crate) struct Housekeeper {
    stop: Arc<StopFlag>,
    /// What the first of the threads waits for.
    interrupt: Interrupt,
    threads: [std::thread::JoinHandle<()>; 2],
}

/// Dies for the others as [`abandon`] says, after programs here can read nothing any more that the
/// others are about to change.
pub(crate) fn withdraw_from(core: &Core, membership: &Membership) {
    core.kernel.suspend(true, membership.grace(), Duration::ZERO);
    abandon(&core.volume, membership, core.cluster.as_deref());
}

/// Dies for the others: they take over as soon as the liveness lock is gone, and a write of this
/// node that landed after that would undo what they did.
pub(crate) fn abandon(volume: &Volume, membership: &Membership, cluster: Option<&Cluster>) {
    if let Some(cluster) = cluster {
        cluster.withdraw();
    }
    volume.pool.close();
    membership.abandon();
    if let Some(cluster) = cluster {
        cluster.end();
    }
}

impl Housekeeper {
    pub fn start(core: &Arc<Core>, membership: &Arc<Membership>) -> Self {
        let stop = Arc::<StopFlag>::default();
        let (weak, signal) = (Arc::downgrade(core), stop.clone());
        let wake = stop.clone();
        core.meta.on_filling(Box::new(move || wake.wake()));
        let (membership, interval) = (membership.clone(), core.options.commit_interval);
        let interrupt = Interrupt::of_steps();
        let of_thread = interrupt.clone();
        let thread = std::thread::Builder::new()
            .name("braid-keeper".into())
            .spawn(move || {
                let _scope = of_thread.scope();
                keep_house(&weak, &membership, &signal, interval);
            })
            .expect("a thread at mount time");
        let (weak, signal) = (Arc::downgrade(core), stop.clone());
        let watch = std::thread::Builder::new()
            .name("braid-watch".into())
            .spawn(move || watch_disks(&weak, &signal))
            .expect("a thread at mount time");
        Self { stop, interrupt, threads: [thread, watch] }
    }
    /// Ends them, soon: what they wait for other nodes for is left.
    pub fn stop(self) {
        self.stop.request();
        self.interrupt.trip_current();
        for thread in self.threads {
            thread.join().ok();
        }
    }
}

/// Between two looks at what members have been asked.
const DISK_BEAT: Duration = Duration::from_secs(1);

/// Names members that answer nothing. If they have been given up the node goes on without them, or
/// withdraws. Waits for no member that has not been given up.
fn watch_disks(core: &Weak<Core>, stop: &StopFlag) {
    let begun = Instant::now();
    let mut refused = String::new();
    while !stop.is_requested() {
        let next = Instant::now() + DISK_BEAT;
        let Some(core) = core.upgrade() else { return };
        let pool = &core.volume.pool;
        let is_silent = |path: &std::path::Path| !answers::silent([path]).is_empty();
        for noticed in pool.watch_silent(begun.elapsed(), &is_silent) {
            let member = noticed.member;
            if noticed.silent {
                tracing::warn!("{member} has not answered for 10 s and more; what needs it waits");
            } else {
                tracing::warn!("{member} answers again");
            }
        }
        if core.withdrawn.get().is_none()
            && let Err(error) = pool.fail_silent()
        {
            let why = error.to_string();
            let needed =
                matches!(error, PoolError::SilentMember { .. } | PoolError::GivenUpMember { .. });
            if needed {
                core.withdraw(&error.into());
            } else if refused != why {
                tracing::error!("a member that answers nothing cannot be failed: {why}");
                refused = why;
            }
        }
        drop(core);
        while Instant::now() < next && !stop.sleep_until(next) {}
    }
}

/// How often the counters are published.
const HOUSE_BEAT: Duration = Duration::from_millis(250);

/// When a transaction begins to be large: commits it, so that nobody has to wait for that. Every
/// beat: publishes counters, gives space to other nodes. Every commit interval: makes what is
/// dirty durable, applies deferred frees, looks after orphans.
fn keep_house(core: &Weak<Core>, membership: &Membership, stop: &StopFlag, interval: Duration) {
    let mut committed = Instant::now();
    let mut beat = Instant::now() + HOUSE_BEAT;
    while !stop.sleep_until(beat) {
        let Some(core) = core.upgrade() else { return };
        let cluster_ended = core.cluster.as_ref().is_some_and(|c| c.has_withdrawn());
        if core.locks.has_withdrawn() || cluster_ended {
            // The lock layer may have begun it: its slot is lost, or no heartbeat can be written.
            core.withdraw(&LockError::Withdrawn.into());
        }
        if core.withdrawn.get().is_some() {
            withdraw_from(&core, membership);
            return;
        }
        if core.meta.is_filling() {
            log("commit", core.watch(core.meta.commit()));
        }
        if Instant::now() < beat {
            continue;
        }
        beat = Instant::now() + HOUSE_BEAT;
        let Some(_change) = core.freeze.try_enter() else { continue };
        membership.publish(core.alloc.deltas());
        crate::orphan::look_later(&core);
        log("telling others of free space", core.watch(core.alloc.keep_share()));
        log("giving windows back", core.watch(core.alloc.leave().map(drop)));
        log("checkpoint", core.watch(core.meta.relieve()));
        if committed.elapsed() >= interval {
            committed = Instant::now();
            let flushed = flush_all(&core, false);
            // Nobody asked for the rest, so the filling of members does not give way to it.
            let _own = BackgroundIo::begin();
            // Contents overwritten in place may be in no transaction: without one it only flushes.
            let done = core.meta.commit_and_flush().and_then(|()| {
                let maintained = core.alloc.maintain();
                crate::orphan::reap(&core).map(drop).and(maintained)
            });
            log("housekeeping", core.watch(flushed));
            log("housekeeping", core.watch(done));
        }
    }
}

/// A node that leaves ends what this thread waits for: that is no error.
fn log(what: &str, done: Result<()>) {
    if let Err(e) = done
        && !e.is_interrupted()
    {
        tracing::error!("{what}: {e}");
    }
}
