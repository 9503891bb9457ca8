//! Hints by heartbeats, for nodes that no network reaches.
//!
//! A node that cannot send a hint writes its next heartbeat, which says what it waits for, soon instead of
//! in time. A node that finds there a wish of a node whose hints do not arrive reads all heartbeats at
//! that pace for a while. Each node writes its own sector alone: nothing is overwritten, nothing compared.
//! While no node is cut off, or none waits, this costs nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::LockNo;
use braid_format::node::RawHeartbeat;
use parking_lot::Mutex;

use crate::Mode;

/// Between two heartbeats of a node that has mail, and between two looks of one that gets some.
const PACE: Duration = Duration::from_millis(10);
/// So long after the last mail it is looked for at that pace.
const AFTERWARDS: Duration = Duration::from_secs(5);
/// A posted hint stands in heartbeats for so long; then, if it is waited for still, it is a wish.
const STANDS: Duration = Duration::from_millis(100);

/// What a node posts and how it looks for mail.
#[derive(Debug, Default)]
pub(super) struct HeartbeatHints {
    posted: Mutex<Vec<(LockNo, Mode, Instant)>>,
    is_new: AtomicBool,
    /// Until when it looks often.
    awaits: Mutex<Option<Instant>>,
}

impl HeartbeatHints {
    /// Posts a hint; true if the heartbeat must be told.
    pub fn post(&self, lock: LockNo, mode: Mode) -> bool {
        let mut posted = self.posted.lock();
        posted.retain(|p| p.0 != lock && p.2.elapsed() < STANDS);
        if posted.len() < RawHeartbeat::WISHES {
            posted.push((lock, mode, Instant::now()));
        }
        drop(posted);
        !self.is_new.swap(true, Ordering::AcqRel)
    }
    /// How long the heartbeat rests that usually rests for `beat`.
    pub fn rest(&self, beat: Duration) -> Duration {
        if self.is_new.load(Ordering::Acquire) { PACE.min(beat) } else { beat }
    }
    /// What is posted, before `wishes`; a heartbeat takes it.
    pub fn take(&self, wishes: &mut Vec<(LockNo, Mode)>) {
        self.is_new.store(false, Ordering::Release);
        let mut posted = self.posted.lock();
        posted.retain(|p| p.2.elapsed() < STANDS);
        if posted.is_empty() {
            return;
        }
        wishes.retain(|w| !posted.iter().any(|p| p.0 == w.0));
        wishes.splice(0..0, posted.iter().map(|p| (p.0, p.1)));
        wishes.truncate(RawHeartbeat::WISHES);
    }
    /// A wish has come by a heartbeat.
    pub fn came(&self, now: Instant) {
        *self.awaits.lock() = Some(now + AFTERWARDS);
    }
    /// When it is looked for next, at the latest at `look`.
    pub fn next(&self, now: Instant, look: Instant) -> Instant {
        if self.awaits(now) { look.min(now + PACE) } else { look }
    }
    /// Whether it is looked for at that pace.
    pub fn awaits(&self, now: Instant) -> bool {
        self.awaits.lock().is_some_and(|until| now < until)
    }
}
