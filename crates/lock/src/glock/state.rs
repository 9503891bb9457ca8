//! One cluster lock at one node: who uses it, who waits, what is being done about it.
//!
//! ```text
//!   users, sticky hold --- somebody else wants it ---> demand
//!        ^                                               | minimum hold over
//!        |                                               v
//!        |     +--------- fills left something ------ Draining  (no new users)
//!        |     |                                         | incompatible users gone
//!        |     +------------------------------------- Calling   (Action::Demote, no mutex held; only fills begin)
//!        |                                               | all users gone, and what fills brought
//!        |                                               v
//!        +---------- the record shows it ------------ Releasing (belief lowered)
//! ```
//!
//! Here is what the lock is and who may use it; [`super::step`] says what becomes of it. Both do no
//! I/O, read no clock and wake nobody: the lock manager and the simulator run the same code.
//!
//! Invariants:
//! * users are admitted only under a belief at least as strong as they rely on, and only while no
//!   demotion would take it from them, except fills (only while `Calling`);
//! * the queue is served in order; every waiter that could go on has been woken;
//! * one driver at a time talks to the record, one demoter works on the lock (`working`).

use std::collections::VecDeque;

use braid_format::LockNo;
use braid_format::lock_record::{LockRecord, Waiter as LockWaiter};

use super::fills::{Fill, Fills, Held, ToDrop};
use super::hold::Hold;
use super::ops::Demoted;
use crate::dlock::{Dlock, Time};
use crate::error::LockError;
use crate::{Life, Mode};

/// In which mode a thread wants the lock among nodes.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// The mode.
    pub mode: Mode,
    /// [`Mode::Concurrent`] will do if other nodes change the contents, too.
    pub concurrent: bool,
}
impl From<Mode> for Wish {
    fn from(mode: Mode) -> Self {
        Self { mode, concurrent: false }
    }
}

/// Exclusion among the threads of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Local {
    /// Beside other shared users.
    Shared,
    /// Alone on this node.
    Exclusive,
}

/// What a thread asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The mode among nodes.
    pub cluster: Mode,
    /// Exclusion among the threads of this node.
    pub local: Local,
    /// For a page fill, or the like: it may be admitted during a demotion.
    pub fill: Option<Fill>,
    /// The thread wants the lock to be here, and does not use it: it is told so, and is no user then.
    pub passes: bool,
}

/// What a thread got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Admission {
    /// The mode that it may rely on.
    pub mode: Mode,
    /// As it was asked for.
    pub local: Local,
    /// The first use since the lock was taken.
    pub first: bool,
    /// Counts the times this node took the lock from nothing.
    pub tenure: u64,
    /// It was let in while the lock is being given up.
    pub fill: Option<Held>,
}

/// Who talks to the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Driver {
    /// The head of the queue.
    Waiter,
    Demoter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Draining,
    Calling,
    /// Called; nothing stands in the way unless a fill came, and left or changed something.
    Ready,
    Releasing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Demotion {
    /// What was held when the file system was called: a thread that waits may take more meanwhile.
    pub(super) from: Mode,
    pub(super) to: Mode,
    pub(super) phase: Phase,
    /// What the last call left behind.
    pub(super) left: Demoted,
}

impl Demotion {
    /// It has only kept users out until now.
    pub(super) fn may_be_put_off(&self) -> bool {
        self.phase == Phase::Draining
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
    #[inline]
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

/// A thread in the queue.
#[derive(Debug, Clone)]
pub(super) struct Queued<W> {
    pub(super) waiter: W,
    pub(super) request: Request,
}

/// One cluster lock at one node. `W` is how the caller knows a waiting thread.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub struct Glock<W> {
    pub(super) dlock: Dlock,
    /// Local shared users.
    shared: u32,
    /// All users, by the mode that they rely on.
    relied: Relied,
    exclusive: bool,
    pub(super) queue: VecDeque<Queued<W>>,
    /// Others want it: keep no more than this.
    pub(super) demand: Option<Mode>,
    pub(super) demotion: Option<Demotion>,
    /// Page fills during the demotion.
    pub(super) fills: Fills,
    /// What the kernel drops now.
    drops: Option<ToDrop>,
    /// To be released because it is idle.
    pub(super) releasing_idle: bool,
    /// Whoever waits for that has been told that it may take for ever.
    pub(super) release_told: bool,
    /// Who talks to the record now; also set while the cache is being forgotten.
    pub(super) driver: Option<Driver>,
    /// Somebody said that the record has changed.
    pub(super) look: bool,
    /// Messages of other nodes that the protocol has not taken yet.
    pub(super) mail: VecDeque<crate::dlock::Event>,
    /// The node that was asked for the lock, and when.
    pub(super) asked: Option<(Life, Time)>,
    /// In the demoters' queue; in their hands.
    pub(super) queued: bool,
    pub(super) working: bool,
    /// A timed visit of the demoters is due then.
    pub(super) visit: Option<Time>,
    /// Published as a wish.
    pub(super) wished: bool,
    /// Nobody has used the lock since it was taken.
    fresh: bool,
    tenure: u64,
    pub(super) uses: u32,
    pub(super) hold: Hold,
    /// Why the record was out of reach the last time.
    pub(super) error: Option<LockError>,
    /// The record is damaged: it is not read again before.
    pub(super) rests_until: Time,
}

impl<W: Clone + PartialEq> Glock<W> {
    /// A lock of which this node knows nothing.
    pub fn new(lock: LockNo) -> Self {
        Self {
            dlock: Dlock::new(lock),
            shared: 0,
            relied: Relied::default(),
            exclusive: false,
            queue: VecDeque::new(),
            demand: None,
            demotion: None,
            fills: Fills::default(),
            drops: None,
            releasing_idle: false,
            release_told: false,
            driver: None,
            look: false,
            mail: VecDeque::new(),
            asked: None,
            queued: false,
            working: false,
            visit: None,
            wished: false,
            fresh: false,
            tenure: 0,
            uses: 0,
            hold: Hold::default(),
            error: None,
            rests_until: Time::ZERO,
        }
    }
    /// Takes the lock as held exclusively: this node wrote its record so, with `nonce`. Only if idle.
    pub(super) fn adopt(&mut self, lock: LockNo, nonce: u64, tenure: u64) {
        self.dlock = Dlock::born(lock, nonce);
        self.note_grant(Mode::Unlocked, tenure);
    }

    // What it is.

    /// The protocol's state.
    pub fn dlock(&self) -> &Dlock {
        &self.dlock
    }
    /// Threads that use it.
    pub fn users(&self) -> u32 {
        self.shared + u32::from(self.exclusive)
    }
    /// Threads that wait for it, the first of the queue first.
    pub fn waiters(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|queued| &queued.waiter)
    }
    /// To which mode it is being demoted.
    pub fn demoting(&self) -> Option<Mode> {
        self.demotion.map(|demotion| demotion.to)
    }
    /// When it was last taken, or taken stronger.
    pub fn held_since(&self) -> Option<Time> {
        self.hold.since().filter(|_| self.dlock.held() > Mode::Unlocked)
    }
    /// The lock is wanted from other nodes by the head of the queue.
    pub fn pursuing(&self) -> bool {
        !self.dlock.held().covers(self.dlock.want())
    }
    /// Nothing happens to it and nobody needs it: it may be forgotten.
    pub fn is_idle(&self) -> bool {
        self.dlock.is_idle()
            && self.users() == 0
            && self.queue.is_empty()
            && self.demotion.is_none()
            && self.driver.is_none()
            && !self.look
            && self.mail.is_empty()
            && !self.queued
            && !self.working
            && !self.releasing_idle
    }
    /// It may be released: nobody uses it, or waits for it here or elsewhere.
    pub fn may_be_released(&self) -> bool {
        self.users() == 0 && !self.concerns_others()
    }
    /// Somebody reads or writes its record, or works on its demotion, now.
    pub fn is_worked_on(&self) -> bool {
        self.driver.is_some() || self.working
    }
    /// Whether anybody waits for it, here or elsewhere.
    fn concerns_others(&self) -> bool {
        !self.queue.is_empty()
            || self.demand.is_some()
            || self.demotion.is_some()
            || self.releasing_idle
    }
    /// Whether another node has it or wants it, as far as `me` knows its record, or it is being demoted.
    pub fn concerns_nodes(&self, me: Life) -> bool {
        let others_hold = || {
            let known = self.dlock.known();
            known.is_some_and(|known| known.holders.iter().any(|life| *life != me))
        };
        self.demand.is_some() || self.demotion.is_some() || others_hold()
    }
    /// No user relies on more than `to`.
    pub fn drained(&self, to: Mode) -> bool {
        self.relied.none_beyond(to)
    }
    /// `waiter` is first in the queue.
    pub(super) fn is_head(&self, waiter: &W) -> bool {
        self.queue.front().is_some_and(|head| head.waiter == *waiter)
    }
    /// The head of the queue needs more than is held: it takes care of the record.
    pub(super) fn attended(&self) -> bool {
        self.queue.front().is_some_and(|head| !self.dlock.held().covers(head.request.cluster))
    }

    // Who may use it.

    #[inline]
    fn local_free(&self, local: Local) -> bool {
        !self.exclusive && (local == Local::Shared || self.shared == 0)
    }
    /// The mode that serves a wish with the least waiting, as far as `me` knows the record.
    #[inline]
    pub fn mode_for(&self, wish: Wish, me: Life) -> Mode {
        let kept = self.demotion.map_or(self.dlock.held(), |d| d.to);
        if !wish.concurrent || kept.covers(wish.mode) {
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
    #[inline]
    fn admits(&self, cluster: Mode, local: Local) -> bool {
        self.dlock.held().covers(cluster)
            && self.local_free(local)
            && self.demotion.is_none_or(|d| d.to.covers(cluster))
    }
    /// When a fill may begin during the demotion under way, if nothing changes until then. One that must be alone gets
    /// nothing weaker than it asks for.
    pub(super) fn admits_fill_at(&self, request: &Request) -> Option<Time> {
        self.admits_fill_beside(request, self.is_cut_waiting())
    }
    /// The same, if it is known whether a truncation waits.
    pub(super) fn admits_fill_beside(
        &self,
        request: &Request,
        is_cut_waiting: bool,
    ) -> Option<Time> {
        let least = match request.local {
            Local::Shared => Mode::Shared,
            Local::Exclusive => request.cluster,
        };
        let fill = request.fill.as_ref()?;
        let at = self.fills.admits_at(fill)?;
        if matches!(fill.held, Held::Filled(..)) && is_cut_waiting {
            return None;
        }
        let may = self.demotion.is_some_and(|d| d.phase == Phase::Calling)
            && self.dlock.held().covers(least)
            && self.local_free(request.local);
        may.then_some(at)
    }
    /// What the kernel is to drop: the answer to [`super::step::Event::Drops`].
    pub fn drops(&self) -> Option<ToDrop> {
        self.drops
    }
    /// Finds out what the kernel is to drop next. `unbegun`: the bytes of pages whose fills wait elsewhere.
    pub(super) fn next_drop(&mut self, now: Time, unbegun: Vec<(u64, u64)>) {
        let held = self.queue.iter().filter_map(|queued| Some(queued.request.fill?.held));
        let filled = held.filter_map(|held| match held {
            Held::Filled(from, to) => Some((from, to)),
            Held::Written(..) | Held::Cut => None,
        });
        let waiting = filled.chain(unbegun).collect();
        self.drops = self.fills.next(now, waiting);
    }
    /// A truncation needs the lock alone: fills that came later would keep it out. One that needs more than is held
    /// waits for another node, and keeps nobody out.
    pub(super) fn is_cut_waiting(&self) -> bool {
        let is_cut = |request: &Request| request.fill.is_some_and(|fill| fill.held == Held::Cut);
        let may = |request: &Request| self.dlock.held().covers(request.cluster);
        self.queue.iter().any(|queued| is_cut(&queued.request) && may(&queued.request))
    }
    /// Begins a use, if that needs neither I/O nor waiting.
    #[inline]
    pub fn try_admit(&mut self, cluster: Mode, local: Local) -> Option<Admission> {
        let free = self.queue.is_empty() && self.admits(cluster, local);
        free.then(|| self.admit(cluster, local))
    }
    /// Begins a use.
    #[inline]
    pub(super) fn admit(&mut self, mode: Mode, local: Local) -> Admission {
        match local {
            Local::Shared => self.shared += 1,
            Local::Exclusive => self.exclusive = true,
        }
        *self.relied.on(mode) += 1;
        self.uses = self.uses.wrapping_add(1);
        let first = std::mem::replace(&mut self.fresh, false);
        Admission { mode, local, first, tenure: self.tenure, fill: None }
    }
    /// Begins a use of a fill during a demotion. Returns, too, whether more fills than before are let in for that.
    pub(super) fn admit_fill(&mut self, request: &Request, now: Time) -> (Admission, bool) {
        let widens = request.fill.is_some_and(|fill| self.fills.admitted(&fill, now));
        let admission = self.admit(request.cluster.meet(self.dlock.held()), request.local);
        (Admission { fill: request.fill.map(|fill| fill.held), ..admission }, widens)
    }
    /// Ends a use. Whether somebody can go on for that: then the step [`super::step::Event::Ended`]
    /// follows.
    #[inline]
    pub fn end(&mut self, admission: &Admission) -> bool {
        match admission.local {
            Local::Shared => self.shared -= 1,
            Local::Exclusive => self.exclusive = false,
        }
        *self.relied.on(admission.mode) -= 1;
        if let Some(held) = admission.fill {
            self.fills.ended(held);
        }
        let demoter_comes = self.queued || self.working || self.visit.is_some();
        !self.queue.is_empty()
            || self.demotion.is_some()
            || (self.demand.is_some() || self.releasing_idle) && !demoter_comes
    }
    /// Puts a thread at the end of the queue; then it has a turn. Those that only pass stay behind the others: they may
    /// be busy with other locks.
    pub fn queue_up(&mut self, waiter: W, request: Request) {
        let passing = self.queue.iter().rev().take_while(|queued| queued.request.passes);
        let behind = if request.passes { 0 } else { passing.count() };
        self.queue.insert(self.queue.len() - behind, Queued { waiter, request });
    }
    /// The first of the queue, if it may begin now. One that only passes begins nothing: no [`Self::end`] follows.
    pub(super) fn admit_head(&mut self) -> Option<(W, Admission)> {
        let Request { cluster, local, passes, .. } = self.queue.front()?.request;
        if passes {
            if !self.dlock.held().covers(cluster) {
                return None;
            }
            let head = self.queue.pop_front()?;
            let admission =
                Admission { mode: cluster, local, first: false, tenure: self.tenure, fill: None };
            return Some((head.waiter, admission));
        }
        if !self.admits(cluster, local) {
            return None;
        }
        let head = self.queue.pop_front()?;
        Some((head.waiter, self.admit(cluster, local)))
    }
    pub(super) fn leave_queue(&mut self, waiter: &W) {
        self.queue.retain(|queued| queued.waiter != *waiter);
    }

    // What is known of the record.

    /// The lock was taken, or taken stronger.
    pub(super) fn note_grant(&mut self, from: Mode, tenure: u64) {
        if from == Mode::Unlocked {
            self.tenure = tenure;
            self.fresh = true;
        }
    }
    /// `waiter` is about to ask for a lock of which nothing is known: a guess may save the read.
    pub(super) fn may_guess(&self, waiter: &W) -> bool {
        self.dlock.known().is_none()
            && self.driver.is_none()
            && !self.pursuing()
            && self.attended()
            && self.is_head(waiter)
    }
    pub(super) fn guess(&mut self, record: LockRecord) {
        self.dlock.guess(record);
    }
}

#[cfg(test)]
mod tests;
