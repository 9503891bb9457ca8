//! The watcher of this node: looks at all slots once a beat, and does what [`Watch`] says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_device::Moment;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};

use super::state::NodeState;
use crate::Life;
use crate::dlock::Time;
use crate::node::cached::Cached;
use crate::node::fencer::Fencer;
use crate::node::fencing::Means;
use crate::node::join_watcher::JoinWatcher;
use crate::node::observation::tag_of;
use crate::node::slots::log_damage;
use crate::node::waits::WaitLog;
use crate::node::watch::{Recovery, Watch, WatchAction, WatchEvent};
use crate::node::wishes::{Wish, Wishes};
use crate::node::{FenceMethod, NotFenced, NotRecovered};

impl NodeState {
    /// Fences silent nodes, and gives up what others want, until the watcher does so.
    pub(super) fn watch_while_joining(&self) {
        let mine = self.mine.lock().clone();
        let may_act = || self.may_fence();
        let (store, options, identity) = (&*self.store, &self.options, &self.identity);
        let recover = &*self.recover;
        JoinWatcher { store, options, identity, recover, mine: &mine, may_act: &may_act }
            .run(&self.is_watched);
    }

    /// Whether this node may act: it has not withdrawn, and its lease lasts.
    pub(super) fn may_fence(&self) -> bool {
        self.withdrawn.get().is_none() && Moment::now() < *self.lease.lock()
    }

    /// The watcher's life.
    pub(super) fn watch(self: &Arc<Self>, inbox: &Receiver<Option<WatchEvent>>) {
        let mut watch = Watch::new(self.me, self.identity.clone(), self.options.timing.beat());
        let (mut wishes, mut wait_log) = (Wishes::default(), WaitLog::default());
        let beat = self.options.timing.beat();
        let mut last = Instant::now();
        let mut look = last + beat;
        loop {
            let now = Instant::now();
            let glance = self.pace.glance();
            if now >= last + glance && (self.pace.take_call() || self.loses_a_lock(&watch)) {
                look = now;
            }
            let next = self.heartbeat_hints.next(now, look.min(now + glance));
            let event = match inbox.recv_timeout(next.saturating_duration_since(now)) {
                Ok(Some(answer)) => answer,
                Err(RecvTimeoutError::Timeout) if next < look => {
                    if self.heartbeat_hints.awaits(now)
                        && let Err(e) = self.read_mail()
                    {
                        tracing::debug!("mail: {e}");
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => match self.observe() {
                    Ok(observed) => WatchEvent::Observed(observed),
                    Err(e) => {
                        tracing::warn!("cannot look at the other nodes: {e}");
                        // What they say may be on members that this node takes for incomplete still.
                        self.follow_in_background(false);
                        look = Instant::now() + beat;
                        continue;
                    }
                },
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let looked = matches!(event, WatchEvent::Observed(_));
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                for action in watch.step(self.origin.elapsed(), self.nonce(), event) {
                    events.extend(self.perform(action));
                }
            }
            self.has_claimed.store(watch.has_claimed(), Ordering::Release);
            if looked {
                self.expect_mail(Instant::now());
                self.note_epoch();
                self.see_to_freezes();
                if self.follow_epochs() || self.is_cut_off() || self.lapsed.load(Ordering::SeqCst) {
                    self.pace.stir();
                }
                last = Instant::now();
                look = last + self.pace.look(watch.rest());
                self.check_own_slot();
                self.pass_on_wishes(&mut wishes);
                wait_log.log(self.waits());
            }
        }
    }

    /// Whether a liveness lock is gone that was held at the last look. Asks the kernel alone.
    fn loses_a_lock(&self, watch: &Watch) -> bool {
        watch.locked().iter().any(|slot| !self.store.life_locked(*slot).is_ok_and(|held| held))
    }

    fn perform(self: &Arc<Self>, action: WatchAction) -> Option<WatchEvent> {
        match action {
            WatchAction::Write { expected, new } => {
                if new.recoverer == Some(self.me) && self.options.proofs.of(&expected).is_none() {
                    // For who waits for this node's word, or else this write could wait for that.
                    self.options.proofs.add(&expected, FenceMethod::Kernel);
                }
                // Not by the watcher itself: while an epoch of the pool is not settled nobody
                // compares and writes, and that may need the watcher's eyes.
                let (this, slot) = (self.clone(), new.life.slot);
                let run = move || WatchEvent::Wrote(slot, this.change_slot(&expected, *new));
                self.send_out("slot", run, WatchEvent::Wrote(slot, false))
            }
            WatchAction::Fence(record) => {
                let this = self.clone();
                let slot = record.life.slot;
                let name = format!("fence-{slot}");
                let run = move || WatchEvent::Fenced(slot, this.fence(&record));
                self.send_out(&name, run, WatchEvent::Fenced(slot, false))
            }
            WatchAction::Recover(record) => self.recover(*record),
            WatchAction::Finish(record) => self.finish(&record),
            WatchAction::Suspect(life) => {
                crate::node::log_suspect(life);
                None
            }
            WatchAction::Evicted => {
                self.expelled("others have fenced it: its slot was taken from it");
                None
            }
            WatchAction::Distrust(life) => {
                tracing::warn!(
                    "node {} beats, but its liveness lock is not seen here: it will not be taken for dead unless it is fenced, or `braid fence {} --confirm` says so",
                    life.slot,
                    life.slot
                );
                None
            }
            WatchAction::ForeignLocks(life) => {
                self.withdraw(&format!(
                    "node {} changes the pool under kernel locks that exclude nobody here: it is on another host, or uses other device nodes of the same disks",
                    life.slot
                ));
                None
            }
            WatchAction::Gone(life) => {
                tracing::debug!(%life, "gone");
                for manager in self.managers() {
                    manager.node_gone();
                }
                None
            }
        }
    }

    /// Begins the recovery of a dead node, on a thread of its own.
    fn recover(self: &Arc<Self>, record: SlotRecord) -> Option<WatchEvent> {
        let dead = record.life;
        tracing::info!(%dead, "recovering a dead node");
        let this = self.clone();
        let run = move || {
            this.fencer().forget(&record);
            crate::node::await_clients(&record);
            let done = outcome(dead, this.recover.recover(dead, this.me));
            WatchEvent::Recovered(dead.slot, done)
        };
        let name = format!("recover-{}", dead.slot);
        self.send_out(&name, run, WatchEvent::Recovered(dead.slot, Recovery::Failed))
    }

    /// Ends the recovery of a dead node, on a thread of its own.
    fn finish(self: &Arc<Self>, record: &SlotRecord) -> Option<WatchEvent> {
        let dead = record.life;
        let this = self.clone();
        let run = move || {
            let done = this.recover.finish(dead, this.me);
            if done.is_ok() {
                this.recovered.lock().push(dead);
            }
            WatchEvent::Finished(outcome(dead, done))
        };
        let name = format!("finish-{}", dead.slot);
        self.send_out(&name, run, WatchEvent::Finished(Recovery::Failed))
    }

    pub(super) fn fencer(&self) -> Fencer<'_> {
        self.options.fencer(&*self.store, self.key, &self.identity)
    }

    /// For how long who acts by a slot has shown no heartbeat here, and the last one, if there is one.
    pub(super) fn silence(&self, record: &SlotRecord) -> (Duration, Option<Heartbeat>) {
        let beats = self.beats.lock();
        let last = beats.of(record.acting());
        // Nobody was watched before this node was there.
        let since = last.map_or(Time::ZERO, |(_, seen)| seen);
        (self.origin.elapsed().saturating_sub(since), last.map(|(beat, _)| beat.clone()))
    }

    /// How the node of a slot is, or would be, known to be dead.
    pub(super) fn method(&self, record: &SlotRecord, means: &Means) -> FenceMethod {
        if self.sees_lock_of(record) {
            return FenceMethod::Kernel;
        }
        self.options.proofs.of(record).unwrap_or_else(|| means.first_for(record))
    }

    /// Fences the node of a slot, which is silent.
    fn fence(&self, record: &SlotRecord) -> bool {
        let (life, began) = (record.acting(), Instant::now());
        let may_act = || self.may_fence();
        if !may_act() {
            return false;
        }
        tracing::warn!(%life, host = record.host, "silent for too long: it is fenced");
        match self.fencer().fence(record, &may_act) {
            Ok(method) => {
                let took = began.elapsed();
                tracing::warn!(%life, method = method.name(), ?took, "fenced");
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(%life, "not fenced: {e}");
                if let NotFenced::Reservation(e) = &e
                    && e.is_fenced()
                {
                    self.expelled(&format!("it has been fenced: {e}"));
                }
                false
            }
        }
    }

    /// Does what takes time in a thread of its own; the answer comes to the watcher. `failed`: what
    /// is answered when there is no thread.
    pub(super) fn send_out(
        self: &Arc<Self>,
        name: &str,
        task: impl FnOnce() -> WatchEvent + Send + 'static,
        failed: WatchEvent,
    ) -> Option<WatchEvent> {
        let this = self.clone();
        let run = move || {
            let answer = task();
            if let Some(watcher) = &*this.watcher.lock() {
                let _ = watcher.send(Some(answer));
            }
        };
        match std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            Ok(thread) => {
                self.keep(thread);
                None
            }
            Err(e) => {
                tracing::error!("cannot start a thread: {e}");
                Some(failed)
            }
        }
    }

    pub(super) fn change_slot(&self, expected: &SlotRecord, new: SlotRecord) -> bool {
        let written = self.write_slot(expected, &new).unwrap_or_else(|e| {
            tracing::warn!("slot {}: {e}", new.life.slot);
            false
        });
        if written && new.damage != expected.damage {
            log_damage(&new);
        }
        if written && let Some(slot) = self.slots.write().get_mut(usize::from(new.life.slot.0)) {
            *slot = Cached::now(new);
        }
        written
    }

    /// Another node may have changed the pool. Whoever follows waits for the requests under way: not
    /// the watcher, which others may need the eyes of.
    /// Whether there is one.
    fn follow_epochs(self: &Arc<Self>) -> bool {
        let mine = self.store.pool().epoch();
        let other = {
            let (slots, beats) = (self.slots.read(), self.beats.lock());
            let mut lives = slots.iter().filter(|s| s.record.state != SlotState::Free);
            lives.any(|s| beats.of_slot(s.record.life.slot).is_some_and(|b| tag_of(b) != mine))
        };
        if other {
            self.follow_in_background(true);
        }
        other
    }

    /// Follows a change of the pool, if there is one; `must`: there is, so this node does not go on
    /// without.
    pub(super) fn follow_in_background(self: &Arc<Self>, must: bool) {
        if self.following.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let run = move || {
            if let Err(e) = this.store.pool().follow()
                && must
            {
                this.withdraw(&format!("it cannot follow a change of the pool: {e}"));
            }
            this.following.store(false, Ordering::Release);
        };
        match std::thread::Builder::new().name("epoch".to_owned()).spawn(run) {
            Ok(thread) => self.keep(thread),
            Err(e) => {
                self.following.store(false, Ordering::Release);
                tracing::error!("cannot start a thread: {e}");
            }
        }
    }

    /// Keeps a task, to be waited for at the end.
    pub(super) fn keep(&self, task: JoinHandle<()>) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|e| !e.is_finished());
        tasks.push(task);
    }

    fn pass_on_wishes(&self, wishes: &mut Wishes) {
        let news = {
            let beats = self.beats.lock();
            wishes.look(beats.iter().filter(|b| b.life != self.me))
        };
        for Wish { lock, mode, overdue } in news {
            if let Some(manager) = self.manager_of(lock) {
                manager.heartbeat_wish(lock, mode, overdue);
            }
        }
    }
}

/// How a recovery ended, for the watcher; said.
fn outcome(dead: Life, done: Result<(), NotRecovered>) -> Recovery {
    match done {
        Ok(()) => Recovery::Done,
        Err(NotRecovered::Damaged { damage, source }) => {
            tracing::info!(%dead, "recovery is stopped: {source}");
            Recovery::Damaged(damage)
        }
        Err(e @ NotRecovered::Failed(_)) => {
            tracing::error!(%dead, "recovery failed: {e}");
            Recovery::Failed
        }
    }
}
