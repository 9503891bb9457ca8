//! One cluster lock in memory: who uses it, who waits, what is being done about it.
//!
//! ```text
//!   users, sticky hold --- somebody else wants it ---> demand
//!        ^                                               | minimum hold over
//!        |                                               v
//!        |     +------------------ fills admitted --- Draining  (no new users but fills)
//!        |     |                                         | incompatible users gone
//!        |     +------------------------------------- Calling   (ops.demote, no lock held)
//!        |                                               | nobody was admitted meanwhile
//!        |                                               v
//!        +---------- the record shows it ------------ Releasing (belief lowered)
//! ```
//!
//! Invariants, under the mutex of [`Glock`]:
//! * users are admitted only under a belief at least as strong as they rely on, and only while no
//!   demotion would take it from them, except fills (never once `Releasing`);
//! * the queue is served in order; every waiter that could go on has been notified;
//! * one thread at a time talks to the record (`io`), one demoter works on the lock (`working`).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_format::LockNo;
use braid_format::lock_record::Waiter as LockWaiter;
use parking_lot::{Condvar, Mutex};

use super::{Core, Demoted, Local};
use crate::dlock::Dlock;
use crate::error::LockError;
use crate::{Me, Mode};

/// A lock in the table.
pub(crate) struct Glock {
    pub(super) lock: LockNo,
    pub(super) core: Weak<Core>,
    pub(super) state: Mutex<State>,
}

/// A thread in the queue. Its fields but the condition are guarded by the glock's mutex.
pub(super) struct Waiter {
    pub(super) condition: Condvar,
    pub(super) request: Request,
    pub(super) answer: Mutex<Option<Result<Admission, LockError>>>,
}

/// In which mode a thread wants the lock among nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) mode: Mode,
    /// [`Mode::Concurrent`] will do, where others change the contents too.
    pub(super) beside: bool,
}
impl From<Mode> for Wish {
    fn from(mode: Mode) -> Self {
        Self { mode, beside: false }
    }
}

/// What a thread asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) cluster: Mode,
    pub(super) local: Local,
    /// For a page fill: when it may be admitted during a demotion.
    pub(super) fill: Option<Instant>,
}

/// What a thread got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    pub(super) mode: Mode,
    pub(super) local: Local,
    pub(super) first: bool,
    pub(super) tenure: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Draining,
    Calling,
    /// Called; nothing stands in the way unless a fill came.
    Ready,
    Releasing,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Demotion {
    pub(super) to: Mode,
    pub(super) phase: Phase,
    /// A fill was admitted since the call began.
    pub(super) admitted: bool,
    /// What the last call left behind.
    pub(super) left: Demoted,
}

/// Keeps a lock a little longer where that saves moving it to and fro.
///
/// Sequential users at two nodes gain nothing from it, a thread that comes back at once gains a
/// lot; so it is tried after evidence (`eager`) and dropped for a while when it did not help.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hold {
    granted: Option<Instant>,
    released: Option<Instant>,
    /// Uses when the lingering began or went on.
    lingering: Option<u32>,
    eager: i8,
}

impl Hold {
    /// A return within this counts as "at once"; also how long an unused lock lingers.
    const SOON: Duration = Duration::from_micros(200);
    const ENOUGH: i8 = 3;
    const DISCOURAGED: i8 = -16;

    pub(super) fn granted(&mut self, now: Instant) {
        self.granted = Some(now);
        self.lingering = None;
    }
    pub(super) fn since(&self) -> Option<Instant> {
        self.granted
    }
    pub(super) fn released(&mut self, now: Instant) {
        self.released = Some(now);
    }
    /// A thread of this node wants the lock that was given away.
    pub(super) fn wanted(&mut self, now: Instant) {
        if let Some(released) = self.released.take() {
            let soon = now.saturating_duration_since(released) < Self::SOON;
            self.eager = if soon { (self.eager + 1).min(Self::ENOUGH) } else { self.eager.min(0) };
        }
    }
    /// Whether a demanded lock is kept, and until when to look again.
    pub(super) fn until(&mut self, now: Instant, uses: u32, longest: Duration) -> Option<Instant> {
        let granted = self.granted?;
        let over = now.saturating_duration_since(granted) >= longest;
        if self.eager < Self::ENOUGH || over {
            return None;
        }
        if self.lingering == Some(uses) {
            self.eager = Self::DISCOURAGED;
            return None;
        }
        self.lingering = Some(uses);
        Some(now + Self::SOON)
    }
}

/// How many users rely on a hold of each mode.
#[derive(Debug, Clone, Copy, Default)]
struct Relied {
    shared: u32,
    concurrent: u32,
    exclusive: u32,
}
impl Relied {
    fn on(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Concurrent => &mut self.concurrent,
            Mode::Exclusive => &mut self.exclusive,
            // Nobody relies on nothing: `acquire` refuses it.
            Mode::Shared | Mode::Unlocked => &mut self.shared,
        }
    }
    /// Nobody relies on what `to` does not cover.
    fn none_beyond(self, to: Mode) -> bool {
        [
            (self.shared, Mode::Shared),
            (self.concurrent, Mode::Concurrent),
            (self.exclusive, Mode::Exclusive),
        ]
        .into_iter()
        .all(|(users, mode)| users == 0 || to.covers(mode))
    }
}

/// What changes about a lock.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub(super) struct State {
    pub(super) dlock: Dlock,
    /// Local shared users.
    pub(super) shared: u32,
    /// All users, by the mode that they rely on.
    relied: Relied,
    pub(super) exclusive: bool,
    pub(super) queue: VecDeque<Arc<Waiter>>,
    /// Others want it: keep no more than this.
    pub(super) demand: Option<Mode>,
    pub(super) demotion: Option<Demotion>,
    /// To be released because it is idle; somebody waits for that.
    pub(super) shrink: bool,
    /// A thread talks to the record.
    pub(super) io: bool,
    /// Somebody said that the record has changed.
    pub(super) look: bool,
    /// In the demoters' queue; in their hands; came again meanwhile.
    pub(super) queued: bool,
    pub(super) working: bool,
    pub(super) again: bool,
    /// A timed visit of the demoters is due then.
    pub(super) visit: Option<Instant>,
    /// No longer in the table.
    pub(super) gone: bool,
    /// Published as a wish.
    pub(super) wished: bool,
    /// Nobody has used the lock since it was taken.
    pub(super) fresh: bool,
    pub(super) tenure: u64,
    pub(super) uses: u32,
    /// Tick of the last use.
    pub(super) used: u32,
    pub(super) hold: Hold,
    pub(super) error: Option<LockError>,
}

impl State {
    pub(super) fn new(lock: LockNo) -> Self {
        Self {
            dlock: Dlock::new(lock),
            shared: 0,
            relied: Relied::default(),
            exclusive: false,
            queue: VecDeque::new(),
            demand: None,
            demotion: None,
            shrink: false,
            io: false,
            look: false,
            queued: false,
            working: false,
            again: false,
            visit: None,
            gone: false,
            wished: false,
            fresh: false,
            tenure: 0,
            uses: 0,
            used: 0,
            hold: Hold::default(),
            error: None,
        }
    }
    pub(super) fn users(&self) -> u32 {
        self.shared + u32::from(self.exclusive)
    }
    fn local_free(&self, local: Local) -> bool {
        !self.exclusive && (local == Local::Shared || self.shared == 0)
    }
    /// The mode that serves a wish with the least waiting, as far as `me` knows the record.
    pub(super) fn mode_for(&self, wish: Wish, me: Me) -> Mode {
        let kept = self.demotion.map_or(self.dlock.held(), |d| d.to);
        if !wish.beside || kept.covers(wish.mode) {
            return wish.mode;
        }
        let others_change = || {
            let known = self.dlock.known()?;
            let held = known.holders.iter().any(|l| *l != me);
            let wanted = |w: &LockWaiter| w.life != me && w.mode == Mode::Concurrent;
            let mode = known.mode;
            let beside = mode == Mode::Concurrent || (mode == wish.mode && mode.changes());
            Some(held && beside || known.waiters.iter().any(wanted))
        };
        if kept.covers(Mode::Concurrent) || others_change().unwrap_or(false) {
            return Mode::Concurrent;
        }
        wish.mode
    }
    /// Whether a user may begin now, leaving the queue aside.
    pub(super) fn admits(&self, cluster: Mode, local: Local) -> bool {
        self.dlock.held().covers(cluster)
            && self.local_free(local)
            && self.demotion.is_none_or(|d| d.to.covers(cluster))
    }
    /// Whether a fill may begin during the demotion under way. One that must be alone gets nothing
    /// weaker than it asks for.
    pub(super) fn admits_fill(&self, cluster: Mode, local: Local) -> bool {
        let least = match local {
            Local::Shared => Mode::Shared,
            Local::Exclusive => cluster,
        };
        self.demotion.is_some_and(|d| d.phase != Phase::Releasing)
            && self.dlock.held().covers(least)
            && self.local_free(local)
    }
    /// Begins a use.
    pub(super) fn admit(&mut self, mode: Mode, local: Local) -> Admission {
        match local {
            Local::Shared => self.shared += 1,
            Local::Exclusive => self.exclusive = true,
        }
        *self.relied.on(mode) += 1;
        self.uses = self.uses.wrapping_add(1);
        let first = std::mem::replace(&mut self.fresh, false);
        Admission { mode, local, first, tenure: self.tenure }
    }
    /// Begins a use of a fill during a demotion.
    pub(super) fn admit_fill(&mut self, cluster: Mode, local: Local) -> Admission {
        if let Some(demotion) = &mut self.demotion {
            demotion.admitted = true;
        }
        self.admit(cluster.meet(self.dlock.held()), local)
    }
    /// Ends a use.
    pub(super) fn end(&mut self, mode: Mode, local: Local) {
        match local {
            Local::Shared => self.shared -= 1,
            Local::Exclusive => self.exclusive = false,
        }
        *self.relied.on(mode) -= 1;
    }
    /// Whether the end of a use, or anything else, can matter to somebody.
    pub(super) fn concerns_others(&self) -> bool {
        !self.queue.is_empty() || self.demand.is_some() || self.demotion.is_some() || self.shrink
    }
    /// No user relies on more than `to`.
    pub(super) fn drained(&self, to: Mode) -> bool {
        self.relied.none_beyond(to)
    }
    /// The lock is wanted from other nodes by the head of the queue.
    pub(super) fn pursuing(&self) -> bool {
        !self.dlock.held().covers(self.dlock.want())
    }
    /// A waiting thread takes care of the record: the head of the queue needs more than is held.
    pub(super) fn attended(&self) -> bool {
        self.queue.front().is_some_and(|head| !self.dlock.held().covers(head.request.cluster))
    }
    /// Nothing happens to it and nobody needs it: it may leave the table.
    pub(super) fn is_idle(&self) -> bool {
        self.dlock.is_idle()
            && self.users() == 0
            && self.queue.is_empty()
            && self.demotion.is_none()
            && !self.io
            && !self.look
            && !self.queued
            && !self.working
            && !self.shrink
    }
    /// The lock was taken, or taken stronger.
    pub(super) fn note_grant(&mut self, from: Mode, tenure: impl FnOnce() -> u64) {
        if from == Mode::Unlocked {
            self.tenure = tenure();
            self.fresh = true;
        }
    }
    /// Lets in from the head of the queue all who may begin.
    pub(super) fn serve_queue(&mut self) {
        while let Some(head) = self.queue.front() {
            let Request { cluster, local, .. } = head.request;
            if !self.admits(cluster, local) {
                return;
            }
            if let Some(head) = self.queue.pop_front() {
                let admission = self.admit(cluster, local);
                head.answer(Ok(admission));
            }
        }
    }
    /// Wakes the fills in the queue: a demotion begins, their patience counts.
    pub(super) fn wake_fills(&self) {
        for waiter in self.queue.iter().filter(|w| w.request.fill.is_some()) {
            waiter.condition.notify_one();
        }
    }
    /// Ends all waiting with an error.
    pub(super) fn fail_queue(&mut self, error: &LockError) {
        for waiter in self.queue.drain(..) {
            waiter.answer(Err(error.clone()));
        }
    }
    pub(super) fn leave_queue(&mut self, waiter: &Arc<Waiter>) {
        self.queue.retain(|w| !Arc::ptr_eq(w, waiter));
    }
}

impl Waiter {
    pub(super) fn new(request: Request) -> Arc<Self> {
        Arc::new(Self { condition: Condvar::new(), request, answer: Mutex::new(None) })
    }
    fn answer(&self, answer: Result<Admission, LockError>) {
        *self.answer.lock() = Some(answer);
        self.condition.notify_one();
    }
}
