//! Runs the protocol's step against the store, and what follows from each change of a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use parking_lot::MutexGuard;

use super::demote::Work;
use super::state::{Glock, State};
use super::{Core, RUNNING, WITHDRAWN};
use crate::dlock::{Action, Context, Event, Hint, Seen, Time};
use crate::error::LockError;
use crate::peers::Liveness;
use crate::store::{CawOutcome, change, read_record};
use crate::{Me, Mode};

/// After so many failures in a row waiting threads get the error.
const FAILURES_MAX: u32 = 8;
/// A hint about a lock that is not in memory is heeded only while the demoters keep up.
const STRAY_HINTS_MAX: usize = 10_000;
const TICK: Duration = Duration::from_millis(100);

impl Core {
    pub(super) fn now(&self) -> Time {
        self.origin.elapsed()
    }
    pub(super) fn next_tenure(&self) -> u64 {
        self.tenures.fetch_add(1, Ordering::Relaxed)
    }
    pub(super) fn is_dead(&self, lock: LockNo, life: Me) -> bool {
        if life.slot == self.me.slot {
            return life.incarnation != self.me.incarnation;
        }
        self.peers.liveness(lock, life) == Liveness::Dead
    }
    fn context(&self) -> Context {
        // A counter from a random start, spread: no two lives write the same sequence.
        let n = self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let nonce = (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let poll = (self.options.poll_min, self.options.poll_max);
        Context { me: self.me, now: self.now(), nonce: nonce ^ (nonce >> 29), poll }
    }

    /// Feeds `event` to the protocol and does what it says, until it has nothing to read or write.
    /// The mutex is released during I/O. The caller has seen that nobody else drives.
    pub(super) fn drive(
        &self,
        glock: &Arc<Glock>,
        state: &mut MutexGuard<'_, State>,
        event: Event,
    ) {
        assert!(!state.io, "two threads at one record");
        state.io = true;
        let mut next = Some(event);
        while let Some(event) = next.take() {
            if state.dlock.is_guess() {
                self.guesses.heed(&event);
            }
            let before = state.dlock.held();
            let mut io = None;
            let mut hints = Vec::new();
            for action in state.dlock.step(&self.context(), event) {
                match action {
                    Action::Granted(mode) => {
                        self.ops.granted(glock.lock, mode);
                        state.note_grant(before, || self.next_tenure());
                        state.hold.granted(Instant::now());
                    }
                    Action::Demote(to) => {
                        state.demand = Some(state.demand.map_or(to, |d| d.meet(to)));
                    }
                    Action::Hint { to, hint } => hints.push((to, hint)),
                    io_action => io = Some(io_action),
                }
            }
            // Those who waited come before those who ask for it back.
            state.serve_queue();
            if io.is_none() && hints.is_empty() {
                if std::mem::take(&mut state.look) {
                    next = Some(Event::Look);
                }
                continue;
            }
            let (answer, error) = MutexGuard::unlocked(state, || {
                self.send(glock.lock, &hints);
                io.map_or((None, None), |io| self.perform(glock.lock, &io))
            });
            if error.is_some() {
                state.error = error;
            }
            next = answer;
        }
        state.io = false;
        Self::report_failures(state);
        self.report_lost(glock.lock, state);
        self.publish_wish(glock.lock, state);
        self.settle(glock, state);
    }

    fn send(&self, lock: LockNo, hints: &[(Me, Hint)]) {
        if self.stopped().is_some() {
            return;
        }
        for (to, hint) in hints {
            self.counters.hints_sent.fetch_add(1, Ordering::Relaxed);
            self.peers.hint(*to, lock, *hint);
        }
    }

    /// One read or write of the record, and its answer.
    fn perform(&self, lock: LockNo, io: &Action) -> (Option<Event>, Option<LockError>) {
        let answer = match (self.stopped(), io) {
            (Some(error), _) => Err(error),
            (None, Action::CompareAndWrite { expected, new }) => {
                self.counters.caws.fetch_add(1, Ordering::Relaxed);
                self.compare_and_write(lock, expected, new)
            }
            (None, _) => {
                self.counters.reads.fetch_add(1, Ordering::Relaxed);
                self.read(lock).map(Event::Read)
            }
        };
        match answer {
            Ok(event) => (Some(event), None),
            Err(error) => (Some(Event::Failed), Some(error)),
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
    ) -> Result<Event, LockError> {
        let len = self.store.sector_len();
        let mut bytes = vec![0; 2 * len];
        let (old_bytes, new_bytes) = bytes.split_at_mut(len);
        expected.encode(old_bytes);
        new.encode(new_bytes);
        let outcome = change(&*self.store, lock, old_bytes, new_bytes)
            .map_err(|source| LockError::Store { lock, source })?;
        match outcome {
            CawOutcome::Written => Ok(Event::Written),
            CawOutcome::Mismatch(stands) => match LockRecord::decode(&stands, lock) {
                Ok(record) => Ok(Event::Mismatch(self.seen(lock, record))),
                // Torn, or damaged: read again.
                Err(_) => self.read(lock).map(Event::Mismatch),
            },
        }
    }

    fn seen(&self, lock: LockNo, record: LockRecord) -> Seen {
        let named = record.holders.iter().chain(record.waiters.iter().map(|w| &w.life));
        // One that is lost, and holds nothing, left nothing under this lock.
        let waits = |l: Me| !record.holders.contains(&l) && self.peers.lost(l).is_some();
        let mut dead: Vec<Me> = named
            .chain(&record.openers)
            .copied()
            .filter(|l| *l != self.me && (self.is_dead(lock, *l) || waits(*l)))
            .collect();
        dead.dedup();
        Seen { record: Arc::new(record), dead }
    }

    /// Waiting threads learn of a record that stays out of reach.
    fn report_failures(state: &mut State) {
        let failures = state.dlock.failures();
        if failures == 0 {
            state.error = None;
            return;
        }
        let Some(error) = state.error.clone() else { return };
        let hopeless = matches!(error, LockError::Record { .. })
            || matches!(&error, LockError::Store { source: crate::StoreError::Outside { .. }, .. });
        if hopeless || failures >= FAILURES_MAX {
            if !state.queue.is_empty() || state.demotion.is_some() {
                tracing::error!("{error}");
            }
            state.fail_queue(&error);
        }
    }

    /// Waiting threads learn that only a repair can give them the lock.
    fn report_lost(&self, lock: LockNo, state: &mut State) {
        if !state.pursuing() || state.queue.is_empty() {
            return;
        }
        let Some(known) = state.dlock.known() else { return };
        let mut holders = known.holders.iter().filter(|l| **l != self.me);
        let lost = holders.find_map(|l| self.peers.lost(*l).map(|d| (l.slot, d)));
        if let Some((node, damage)) = lost {
            let (part, block) = (damage.part.name(), damage.block);
            state.fail_queue(&LockError::Lost { lock, node, part, block });
        }
    }

    fn publish_wish(&self, lock: LockNo, state: &mut State) {
        let waits = state.pursuing() && state.dlock.timer().is_some();
        if waits != state.wished {
            state.wished = waits;
            let mut wishes = self.wishes.lock();
            if waits {
                wishes.insert(lock, (Instant::now(), state.dlock.want()));
            } else {
                wishes.remove(&lock);
            }
        }
    }

    /// Wakes or calls everybody who can now go on. Call after every change.
    pub(super) fn settle(&self, glock: &Arc<Glock>, state: &mut State) {
        state.serve_queue();
        if state.demotion.is_some() {
            state.wake_fills();
        }
        if self.stopped().is_some() {
            self.end_shrink(state);
            return;
        }
        if !state.queued && !state.working {
            if self.has_work(state) {
                state.queued = true;
                self.work_for(glock.lock).push(glock.clone());
            } else if state.visit.is_none()
                && !state.io
                && !state.attended()
                && let Some(at) = state.dlock.timer()
            {
                let at = self.origin + at;
                state.visit = Some(at);
                self.work_for(glock.lock).push_at(at, glock.clone());
            }
        }
        if !state.io
            && let Some(head) = state.queue.front()
            && !state.dlock.held().covers(head.request.cluster)
        {
            head.condition.notify_one();
        }
    }

    pub(super) fn heed_hint(self: &Arc<Self>, lock: LockNo, hint: Hint) {
        let known = self.table.get(lock);
        let stray = known.is_none();
        if stray && (hint == Hint::Granted || self.work_for(lock).len() > STRAY_HINTS_MAX) {
            return;
        }
        let glock = known.unwrap_or_else(|| self.glock(lock));
        let mut state = glock.state.lock();
        if !state.gone {
            state.look = true;
            self.settle(&glock, &mut state);
        }
    }

    pub(super) fn heed_wish(self: &Arc<Self>, lock: LockNo, mode: Mode) {
        let Some(glock) = self.table.get(lock) else { return };
        let mut state = glock.state.lock();
        let in_the_way = !mode.beside().covers(state.dlock.held());
        if !state.gone && (in_the_way || state.pursuing()) && state.demotion.is_none() {
            state.look = true;
            self.settle(&glock, &mut state);
        }
    }

    /// Ends acquiring and the demoters; whether the manager had withdrawn before.
    pub(super) fn halt(&self, how: u8) -> bool {
        let before = self.stop.fetch_max(how, Ordering::AcqRel);
        self.work.iter().for_each(Work::stop);
        let (mutex, condition) = &self.ticker;
        drop(mutex.lock());
        condition.notify_all();
        if before == RUNNING || before < how {
            self.table.for_each(|glock| {
                let mut state = glock.state.lock();
                self.end_shrink(&mut state);
                for waiter in &state.queue {
                    waiter.condition.notify_one();
                }
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
        self.table.for_each(|glock| {
            let state = glock.state.lock();
            if !state.concerns_others() && state.users() == 0 && !state.io {
                idle.push((state.used, glock.clone()));
            }
        });
        if excess < idle.len() {
            idle.select_nth_unstable_by_key(excess, |(used, _)| *used);
            idle.truncate(excess);
        }
        for (_, glock) in idle {
            let mut state = glock.state.lock();
            if state.is_idle() {
                drop(state);
                self.table.remove_idle(&glock);
            } else if self.stopped().is_none() && !state.concerns_others() {
                state.shrink = true;
                self.shrinks.begin();
                self.settle(&glock, &mut state);
            }
        }
    }

    pub(super) fn release(&self, lock: LockNo) {
        let Some(glock) = self.table.get(lock) else { return };
        let mut state = glock.state.lock();
        let in_use = state.users() > 0 || !state.queue.is_empty();
        if self.stopped().is_none() && !in_use && !state.gone && !state.concerns_others() {
            state.shrink = true;
            self.shrinks.begin();
            self.settle(&glock, &mut state);
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
