//! Does what the steps of a lock say: reads and writes its record, calls the file system, wakes
//! threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use parking_lot::MutexGuard;

use super::core::{Core, Entry, RUNNING, WITHDRAWN};
use super::demote::Drops;
use super::hold::Keep;
use super::ops::Demoting;
use super::post::Post;
use super::step::{Action, Context, Event};
use super::table::{State, Thread};
use super::work_queue::WorkQueue;
use crate::dlock::{self, Hint, Seen};
use crate::error::LockError;
use crate::simulation;
use crate::store::{CawOutcome, change, read_record};
use crate::{Life, Mode};

/// A hint about a lock that is not in memory is heeded only while the demoters keep up.
const STRAY_HINTS_MAX: usize = 10_000;
/// Bounds of the time that an answer to an ask is waited for; within them it is twice the usual hand-over.
const ASK_MIN: Duration = Duration::from_millis(2);
const ASK_MAX: Duration = Duration::from_millis(100);
/// After a visit that took longer than this, the demoters go on with what a message asks for, side by side.
const SLOW_VISIT: Duration = Duration::from_micros(500);
const TICK: Duration = Duration::from_millis(100);

/// What a step asks for that is done without the lock's mutex.
#[derive(Default)]
struct Outside {
    hints: Vec<(Life, Hint)>,
    /// [`Action::Record`], [`Action::Demote`] or [`Action::Forget`]: it is answered.
    call: Option<Action<Thread>>,
    withdraw: bool,
}
impl Outside {
    fn is_nothing(&self) -> bool {
        self.hints.is_empty() && self.call.is_none() && !self.withdraw
    }
}

/// What happened while an event and all that followed from it were taken.
#[derive(Default)]
pub(super) struct Ran {
    /// Something was done without the lock's mutex: everything may have changed.
    pub(super) unlocked: bool,
    /// [`Action::Released`]: somebody may wait for that ([`Core::drop_idle`]).
    pub(super) released: bool,
    /// What becomes of [`Action::Visit`].
    visit: Visit,
}

/// Who does an [`Action::Visit`].
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// A demoter.
    #[default]
    Demoter,
    /// This thread, when it has let go of the lock's mutex.
    ThisThread,
    /// This thread, and it is asked for.
    Due,
}

impl Core {
    /// The node that may be asked for the lock, if messages reach it, and how long its answer is waited for: the one
    /// other holder; of a lock of which nothing is known, the one that is presumed.
    pub(super) fn may_ask(
        &self,
        lock: LockNo,
        known: Option<&LockRecord>,
    ) -> Option<(Life, Duration)> {
        let other = match known {
            Some(known) => known.sole_other_holder(self.me)?,
            None => self.presumed.of(lock)?,
        };
        if !self.peers.reaches(other) {
            return None;
        }
        let usual = self.asks.of(other).mean.unwrap_or(ASK_MIN);
        Some((other, (usual * 2).clamp(ASK_MIN, ASK_MAX)))
    }
    /// Whether a node is asked for a lock of which nothing is known.
    pub(super) fn asks_presumed(&self, lock: LockNo, state: &State) -> bool {
        state.dlock().known().is_none() && state.attended() && self.may_ask(lock, None).is_some()
    }
    fn context(&self, lock: LockNo, state: &State, event: &Event<Thread>) -> Context {
        // A counter from a random start, spread: no two lives write the same sequence.
        let n = self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let nonce = (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let nonce = nonce ^ (nonce >> 29);
        let poll = (self.options.poll_min, self.options.poll_max);
        // What is known when the event has been taken.
        let known = match event {
            Event::Record(dlock::Event::Read(seen) | dlock::Event::Mismatch(seen)) => {
                Some(&*seen.record)
            }
            _ => state.dlock().known(),
        };
        let may_ask = state.attended().then(|| self.may_ask(lock, known)).flatten();
        let (presumed, ask) = may_ask.unzip();
        Context {
            record: dlock::Context { me: self.me, now: self.now(), nonce, poll, ask, presumed },
            tenure: self.next_tenure(),
            hold_max: self.options.hold_max,
            stopped: self.stopped().is_some(),
        }
    }

    /// Takes `event` and does what follows from it, until nothing is left to do. The mutex is
    /// released during I/O and calls.
    pub(super) fn run(
        &self,
        entry: &Arc<Entry>,
        state: &mut MutexGuard<'_, State>,
        event: Event<Thread>,
        post: &mut Post,
    ) -> Ran {
        let (mut ran, mut answered) = (Ran::default(), false);
        let mut next = Some(event);
        while let Some(event) = next.take() {
            if let Event::Record(answer) = &event {
                answered = true;
                if state.dlock().is_guess() {
                    self.guesses.learn(answer);
                }
            }
            let outside = self.step(entry, state, event, &mut ran);
            if !outside.is_nothing() {
                ran.unlocked = true;
                next = MutexGuard::unlocked(state, || self.do_outside(entry, outside, post));
            }
        }
        if answered && let Some(error) = self.hopeless(entry.lock, state) {
            self.tell(entry, state, Event::Hopeless(error));
        }
        ran
    }

    /// Takes an event that asks for nothing outside the mutex.
    pub(super) fn tell(&self, entry: &Arc<Entry>, state: &mut State, event: Event<Thread>) {
        let mut ran = Ran::default();
        let outside = self.step(entry, state, event, &mut ran);
        debug_assert!(outside.is_nothing(), "nobody here would do it");
        if ran.released {
            self.shrinks.done();
        }
    }

    /// One step, and what follows from it at once.
    fn step(
        &self,
        entry: &Arc<Entry>,
        state: &mut State,
        event: Event<Thread>,
        ran: &mut Ran,
    ) -> Outside {
        let cx = self.context(entry.lock, state, &event);
        let due = state.timer_is_due(&cx);
        let mut outside = Outside::default();
        for action in state.step(&cx, event) {
            match action {
                Action::Granted(mode) => self.ops.granted(entry.lock, mode),
                Action::Admit(thread, admission) => thread.reply(Ok(admission)),
                Action::Refuse(thread, error) => thread.reply(Err(error)),
                Action::Wake(thread) => thread.wake(),
                Action::Visit if ran.visit == Visit::ThisThread => ran.visit = Visit::Due,
                Action::Visit if ran.visit == Visit::Due => {}
                Action::Visit => self.work_for(entry.lock).push(entry.clone()),
                Action::VisitAt(at) => {
                    self.work_for(entry.lock).push_at(self.origin + at, entry.clone());
                }
                Action::Wish(mode) => self.publish_wish(entry.lock, mode),
                Action::Hint(to, hint) => outside.hints.push((to, hint)),
                Action::HandedOver(asked_for) => {
                    self.counters.demotions.fetch_add(1, Ordering::Relaxed);
                    if asked_for {
                        self.counters.handed_over.fetch_add(1, Ordering::Relaxed);
                        self.counters.hand_overs.note(entry.lock);
                    }
                }
                Action::HandOverTook { from, took, given } => {
                    self.asks.granted(from, took, given);
                }
                Action::Released => ran.released = true,
                Action::Unreachable(error) => tracing::error!("{error}"),
                Action::Withdraw => {
                    tracing::error!(lock = %entry.lock, "demotion failed: this node withdraws");
                    outside.withdraw = true;
                }
                call @ (Action::Record(_) | Action::Demote { .. } | Action::Forget) => {
                    if due && matches!(call, Action::Record(dlock::Action::Read)) {
                        self.counters.polls.fetch_add(1, Ordering::Relaxed);
                    }
                    outside.call = Some(call);
                }
            }
        }
        outside
    }

    fn do_outside(
        &self,
        entry: &Arc<Entry>,
        outside: Outside,
        post: &mut Post,
    ) -> Option<Event<Thread>> {
        let lock = entry.lock;
        self.send(lock, outside.hints, post);
        if outside.withdraw {
            self.withdraw();
        }
        match outside.call? {
            Action::Record(io) => Some(match self.access(lock, &io) {
                Ok(answer) => Event::Record(answer),
                Err(error) => Event::RecordFailed(error),
            }),
            Action::Demote { from, to } => {
                let pages = &Drops { core: self, entry };
                Some(Event::Demoted(self.ops.demote(&Demoting { lock, from, to, pages }).ok()))
            }
            Action::Forget => {
                self.ops.forget(lock);
                Some(Event::Forgotten)
            }
            _ => None,
        }
    }

    fn send(&self, lock: LockNo, hints: Vec<(Life, Hint)>, post: &mut Post) {
        if self.stopped().is_some() {
            return;
        }
        for (to, hint) in hints {
            match &hint {
                Hint::Ask { .. } => {
                    self.asks.asked(to);
                    self.counters.asks.fetch_add(1, Ordering::Relaxed)
                }
                Hint::Give { .. } => self.counters.gives.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
            for (to, messages) in post.put(to, (lock, hint), simulation::now()) {
                self.post(to, &messages);
            }
        }
    }
    fn post(&self, to: Life, messages: &[(LockNo, Hint)]) {
        self.counters.hints_sent.fetch_add(1, Ordering::Relaxed);
        match messages {
            [(lock, hint)] => self.peers.hint(to, *lock, hint),
            _ => self.peers.hints(to, messages),
        }
    }
    /// Sends what is kept.
    pub(super) fn send_kept(&self, post: &mut Post) {
        if self.stopped().is_none() {
            for (to, messages) in post.take() {
                self.post(to, &messages);
            }
        }
    }

    /// One read or write of the record.
    fn access(&self, lock: LockNo, io: &dlock::Action) -> Result<dlock::Event, LockError> {
        match (self.stopped(), io) {
            (Some(error), _) => Err(error),
            (None, dlock::Action::CompareAndWrite { expected, new }) => {
                self.counters.caws.fetch_add(1, Ordering::Relaxed);
                self.compare_and_write(lock, expected, new)
            }
            (None, _) => {
                self.counters.reads.fetch_add(1, Ordering::Relaxed);
                self.read(lock).map(dlock::Event::Read)
            }
        }
    }

    fn read(&self, lock: LockNo) -> Result<Seen, LockError> {
        let record = read_record(&*self.store, lock)
            .map_err(|source| LockError::Store { lock, source })?
            .map_err(|source| LockError::Record { lock, source })?;
        Ok(self.seen(lock, record))
    }

    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &LockRecord,
        new: &LockRecord,
    ) -> Result<dlock::Event, LockError> {
        let len = self.store.sector_len();
        let mut bytes = vec![0; 2 * len];
        let (old_bytes, new_bytes) = bytes.split_at_mut(len);
        expected.encode(old_bytes);
        new.encode(new_bytes);
        let outcome = change(&*self.store, lock, old_bytes, new_bytes)
            .map_err(|source| LockError::Store { lock, source })?;
        match outcome {
            CawOutcome::Written => Ok(dlock::Event::Written),
            CawOutcome::Mismatch(stands) => match LockRecord::decode(&stands, lock) {
                Ok(record) => Ok(dlock::Event::Mismatch(self.seen(lock, record))),
                // Torn, or damaged: read again.
                Err(_) => self.read(lock).map(dlock::Event::Mismatch),
            },
        }
    }

    fn seen(&self, lock: LockNo, record: LockRecord) -> Seen {
        self.presumed.learn(self.me, &record);
        let dead = self.dead_of(lock, &record);
        Seen { record: Arc::new(record), dead }
    }
    /// Who of those named in a record is dead, and recovered or without anything to recover.
    fn dead_of(&self, lock: LockNo, record: &LockRecord) -> Vec<Life> {
        let named = record.holders.iter().chain(record.waiters.iter().map(|w| &w.life));
        // One that is lost, and holds nothing, left nothing under this lock.
        let waits = |l: Life| !record.holders.contains(&l) && self.peers.lost(l).is_some();
        let mut dead: Vec<Life> = named
            .chain(&record.openers)
            .copied()
            .filter(|l| *l != self.me && (self.is_dead(lock, *l) || waits(*l)))
            .collect();
        dead.dedup();
        dead
    }

    /// Why only a repair can give waiting threads the lock.
    fn hopeless(&self, lock: LockNo, state: &State) -> Option<LockError> {
        if !state.pursuing() || state.waiters().next().is_none() {
            return None;
        }
        let mut holders = state.dlock().known()?.holders.iter().filter(|l| **l != self.me);
        let (node, damage) = holders.find_map(|l| self.peers.lost(*l).map(|d| (l.slot, d)))?;
        Some(LockError::Lost { lock, node, part: damage.part.name(), block: damage.block })
    }

    fn publish_wish(&self, lock: LockNo, mode: Option<Mode>) {
        let mut wishes = self.wishes.lock();
        match mode {
            Some(mode) => drop(wishes.insert(lock, (simulation::now(), mode))),
            None => drop(wishes.remove(&lock)),
        }
    }

    /// The record of a lock is to be looked at. `granted`: that means nothing to a node that has forgotten the lock.
    pub(super) fn on_look(self: &Arc<Self>, lock: LockNo, granted: bool) {
        self.on_hint(lock, granted, None, || Event::Look);
    }
    /// What another node says about locks. `may_visit`: this thread may do what a demoter does, and wait for that.
    pub(super) fn on_messages(
        self: &Arc<Self>,
        from: Life,
        messages: &[(LockNo, &Hint)],
        may_visit: bool,
    ) {
        // Until the visits are over; whoever stops the node waits for that.
        let visiting = may_visit.then(|| self.visiting.try_read()).flatten();
        let mut due = Vec::new();
        let here = visiting.is_some() && self.stopped().is_none();
        for (lock, hint) in messages {
            // Others are not to wait behind one that takes long.
            let here = here && (messages.len() == 1 || self.ops.demotes_soon(*lock));
            self.on_message(from, *lock, hint, here.then_some(&mut due));
        }
        let mut post = if due.len() > 1 { Post::together() } else { Post::at_once() };
        let mut slow = false;
        for entry in due {
            // It may have become one that takes long.
            if slow || messages.len() > 1 && !self.ops.demotes_soon(entry.lock) {
                self.work_for(entry.lock).push(entry);
                continue;
            }
            let began = simulation::now();
            if post.is_due(began) {
                self.send_kept(&mut post);
            }
            self.visit(&entry, &mut post);
            slow = simulation::since(began) > SLOW_VISIT;
        }
        self.send_kept(&mut post);
    }
    fn on_message(
        self: &Arc<Self>,
        from: Life,
        lock: LockNo,
        hint: &Hint,
        due: Option<&mut Vec<Arc<Entry>>>,
    ) {
        match hint {
            Hint::YourTurn => return self.ops.your_turn(lock),
            Hint::Look => return,
            _ => {}
        }
        let granted = matches!(hint, Hint::Granted | Hint::Give { .. });
        self.on_hint(lock, granted, due, || match hint {
            Hint::Wanted(_) | Hint::Granted | Hint::YourTurn | Hint::Look => Event::Look,
            Hint::Ask { mode, ticket } => {
                Event::Message(dlock::Event::Asked { from, mode: *mode, ticket: *ticket })
            }
            Hint::Give { ticket, record } => {
                let seen = Seen { dead: self.dead_of(lock, record), record: record.clone() };
                Event::Message(dlock::Event::Given { ticket: *ticket, seen })
            }
        });
    }
    /// `due`: gets the lock if it is to be visited; the caller does that.
    fn on_hint(
        self: &Arc<Self>,
        lock: LockNo,
        granted: bool,
        due: Option<&mut Vec<Arc<Entry>>>,
        event: impl FnOnce() -> Event<Thread>,
    ) {
        let entry = self.table.get(lock);
        if entry.is_none() && (granted || self.work_for(lock).len() > STRAY_HINTS_MAX) {
            return;
        }
        let entry = entry.unwrap_or_else(|| self.entry(lock));
        let event = event();
        let mut state = entry.state.lock();
        if state.gone {
            return;
        }
        let visit = if due.is_some() { Visit::ThisThread } else { Visit::Demoter };
        let mut ran = Ran { visit, ..Ran::default() };
        let outside = self.step(&entry, &mut state, event, &mut ran);
        debug_assert!(outside.is_nothing(), "a message asks for a visit at most");
        drop(state);
        if ran.visit == Visit::Due
            && let Some(due) = due
        {
            due.push(entry);
        }
    }

    pub(super) fn on_wish(self: &Arc<Self>, lock: LockNo, mode: Mode) {
        let Some(entry) = self.table.get(lock) else { return };
        let mut state = entry.state.lock();
        if !state.gone {
            self.tell(&entry, &mut state, Event::Wished(mode));
        }
    }

    /// Ends acquiring and the demoters; whether the manager had withdrawn before.
    pub(super) fn halt(&self, how: u8) -> bool {
        let before = self.stop.fetch_max(how, Ordering::AcqRel);
        self.work.iter().for_each(WorkQueue::stop);
        let (mutex, condition) = &self.ticker;
        drop(mutex.lock());
        condition.notify_all();
        if before == RUNNING || before < how {
            self.table.for_each(|entry| {
                self.tell(entry, &mut entry.state.lock(), Event::Stopped);
            });
        }
        before == WITHDRAWN
    }

    pub(super) fn withdraw(&self) {
        self.halt(WITHDRAWN);
    }

    /// Begins to release least recently used idle locks beyond `keep`.
    pub(super) fn shrink(&self, keep: usize) {
        let excess = self.table.count().saturating_sub(keep);
        if excess == 0 {
            return;
        }
        let mut idle = Vec::new();
        self.table.for_each(|entry| {
            let state = entry.state.lock();
            if state.may_be_released() && !state.is_worked_on() {
                idle.push((state.used, entry.clone()));
            }
        });
        if excess < idle.len() {
            idle.select_nth_unstable_by_key(excess, |(used, _)| *used);
            idle.truncate(excess);
        }
        for (_, entry) in idle {
            let state = entry.state.lock();
            if state.is_idle() {
                drop(state);
                self.table.remove_idle(&entry);
            } else {
                self.begin_release(&entry, state);
            }
        }
    }

    /// Begins to give `lock` up, if nobody here uses it or waits for it.
    pub(super) fn release(&self, lock: LockNo) {
        if let Some(entry) = self.table.get(lock) {
            self.begin_release(&entry, entry.state.lock());
        }
    }

    /// What a node waits for under `lock` is free.
    pub(super) fn your_turn(&self, to: Life, lock: LockNo) {
        self.send(lock, vec![(to, Hint::YourTurn)], &mut Post::at_once());
    }

    /// What users of `lock` know of their next uses.
    pub(super) fn keep(&self, lock: LockNo, keep: Keep) {
        if let Some(entry) = self.table.get(lock) {
            let mut state = entry.state.lock();
            if self.stopped().is_none() && !state.gone {
                self.tell(&entry, &mut state, Event::Keep(keep));
            }
        }
    }

    fn begin_release(&self, entry: &Arc<Entry>, mut state: MutexGuard<'_, State>) {
        if self.stopped().is_none() && !state.gone && state.may_be_released() {
            self.shrinks.begin();
            self.tell(entry, &mut state, Event::Release);
        }
    }

    /// The ticker's life: coarse time, and the bound of locks in memory.
    pub(super) fn ticker(&self) {
        let (mutex, condition) = &self.ticker;
        let mut guard = mutex.lock();
        while self.stopped().is_none() {
            condition.wait_for(&mut guard, TICK);
            self.tick.fetch_add(1, Ordering::Relaxed);
            if self.table.count() > self.options.locks_max {
                self.shrink(self.options.locks_max - self.options.locks_max / 8);
            }
        }
    }
}
