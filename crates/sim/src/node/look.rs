//! What a process sees of the others, and does about it: does what the watcher's steps say.

use braid_format::NodeId;
use braid_format::node::{SlotRecord, SlotState};
use braid_lock::dlock::Time;
use braid_lock::glock::Event as LockEvent;
use braid_lock::node::fencing::Means;
use braid_lock::node::observation::{Observer, SlotObservation, tag_of};
use braid_lock::node::slot_write::SlotWrite;
use braid_lock::node::watch::{Recovery, WatchAction, WatchEvent};
use braid_lock::{FenceMethod, Life};

use super::slots::For;
use super::{Process, State};
use crate::Sabotage;
use crate::disk::LEN;
use crate::work::Task;
use crate::world::{Pid, World};

impl World {
    pub(super) fn decode_slots(&mut self, bytes: &[u8]) -> Vec<SlotRecord> {
        let mut records = Vec::new();
        for (slot, sector) in (0..self.cluster.slots).zip(bytes.chunks_exact(LEN)) {
            match SlotRecord::decode(sector, NodeId(slot)) {
                Ok(record) => records.push(record),
                Err(_) if self.spoilt.contains(&slot) => {}
                Err(e) => self.fail(e.to_string()),
            }
        }
        records
    }
    /// Whether a look that has found these is no look at all.
    pub(super) fn fails_for_one(&self, records: &[SlotRecord]) -> bool {
        self.cluster.sabotage == Some(Sabotage::OneBadSlot)
            && records.len() < usize::from(self.cluster.slots)
    }

    pub(super) fn see(&mut self, pid: Pid, bytes: &[u8]) {
        let slots = self.decode_slots(bytes);
        if self.fails_for_one(&slots) {
            return;
        }
        let beats = bytes.chunks_exact(LEN).skip(usize::from(self.cluster.slots));
        let now = self.clock(pid);
        let Some(member) = self.member(pid) else { return };
        for (slot, sector) in (0..).map(NodeId).zip(beats) {
            member.beats.note(now, slot, sector);
        }
        member.slots.extend(slots.iter().map(|record| (record.life.slot, record.clone())));
        self.note_silent_slots(pid, &slots);
        self.mend_own_slot(pid, bytes);
        let observations = self.observations(pid, slots, now);
        self.follow_epochs(pid);
        self.watch(pid, WatchEvent::Observed(observations));
        self.pass_on_wishes(pid);
    }
    /// Notes what the slots that cannot be read show.
    fn note_silent_slots(&mut self, pid: Pid, read: &[SlotRecord]) {
        let readable = |slot: &NodeId| read.iter().any(|record| record.life.slot == *slot);
        let unreadable: Vec<NodeId> =
            (0..self.cluster.slots).map(NodeId).filter(|slot| !readable(slot)).collect();
        self.set_clock(pid);
        let Some(Process { member, .. }) = self.processes.get(pid) else { return };
        member.silent_slots.retain(&unreadable);
        for slot in unreadable {
            let sequence = member.beats.of_slot(slot).map(|beat| beat.sequence);
            member.silent_slots.note(slot, sequence, self.is_life_locked(pid, slot));
        }
    }
    /// While this node lives nobody else changes its slot if it cannot be read.
    fn mend_own_slot(&mut self, pid: Pid, bytes: &[u8]) {
        let Some(member) = self.member(pid) else { return };
        let Some(mine) = member.mine.clone().filter(|_| !member.mending) else { return };
        let slot = mine.life.slot;
        let Some(stands) = bytes.chunks_exact(LEN).nth(usize::from(slot.0)) else { return };
        if SlotRecord::decode(stands, slot).is_err() {
            member.mending = true;
            self.begin_slot_write(pid, SlotWrite::over(stands.to_vec(), &mine), For::Mend);
        }
    }
    fn observations(
        &mut self,
        pid: Pid,
        slots: Vec<SlotRecord>,
        now: Time,
    ) -> Vec<SlotObservation> {
        let blinks = self.blinks(pid, &slots);
        let Some(process) = self.processes.get(pid) else { return Vec::new() };
        let joins = process.me.is_none();
        let Some(me) = process.me.or(process.member.life) else { return Vec::new() };
        let identity = self.identity_of(pid);
        let means = Means { key: process.member.key, command: false, host: identity.host.clone() };
        let observer = Observer {
            me,
            identity: &identity,
            places: self.places_of(pid),
            by_lock: false,
            means,
            epoch: self.epoch_of(pid),
        };
        let observed = |record: SlotRecord| {
            let (beats, slot) = (&process.member.beats, record.life.slot);
            let asks = observer.asks_for_lock(now, &record, beats);
            let locked = !asks || (self.is_life_locked(pid, slot) && blinks != Some(slot));
            let proven = process.member.proofs.of(&record).is_some();
            let earlier = identity.is_earlier_boot_of(&record);
            let mut observed = observer.observe(record, beats, locked, proven);
            if earlier && self.cluster.sabotage == Some(Sabotage::TrustSilence) {
                observed.fenceable = false;
            }
            observed
        };
        let own = |record: &SlotRecord| joins && record.life.slot == me.slot;
        slots.into_iter().filter(|record| !own(record)).map(observed).collect()
    }
    /// The slot whose liveness lock is not seen at this look, though it is held: never at two in a row.
    fn blinks(&mut self, pid: Pid, slots: &[SlotRecord]) -> Option<NodeId> {
        let happens = self.faulty() && self.random.permille(20) && !slots.is_empty();
        let slot = happens.then(|| self.random.pick(slots).life.slot);
        let member = self.member(pid)?;
        let slot = slot.filter(|_| member.blinked.is_none());
        member.blinked = slot;
        slot
    }

    /// Nodes in the way look; now and then everybody does, for a late write may have made one a holder
    /// that does not know.
    fn pass_on_wishes(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let (me, member) = (process.me, &mut process.member);
        let others = member.beats.iter().filter(|beat| Some(beat.life) != me);
        for wish in member.wishes.look(others) {
            let Some(process) = self.processes.get(pid) else { return };
            let found = process.locks.iter().position(|l| l.number() == wish.lock);
            let Some(at) = found else {
                self.region_wished(pid, wish.lock, wish.mode);
                continue;
            };
            let event = if wish.overdue { LockEvent::Look } else { LockEvent::Wished(wish.mode) };
            self.step(pid, at, event);
        }
    }

    /// Another node may have changed the pool.
    fn follow_epochs(&mut self, pid: Pid) {
        if self.cluster.mirrors.is_none() {
            return;
        }
        let mine = self.epoch_of(pid);
        let Some(Process { member, .. }) = self.processes.get(pid) else { return };
        let mut used = member.slots.values().filter(|slot| slot.state != SlotState::Free);
        let said = |slot: &SlotRecord| member.beats.of_slot(slot.life.slot).map(tag_of);
        if used.any(|slot| said(slot).is_some_and(|tag| tag != mine)) {
            self.work_if_free(pid, Task::Follow { joins: false });
        }
    }

    fn watch(&mut self, pid: Pid, event: WatchEvent) {
        // The watcher of a node that leaves begins nothing new once the journal is clean.
        let closed = self.processes.get(pid).is_some_and(|process| process.closed);
        if closed && matches!(event, WatchEvent::Observed(_)) {
            return self.leave_if_done(pid);
        }
        let (now, nonce) = (self.clock(pid), self.nonce());
        let Some(watch) = self.member(pid).and_then(|m| m.watch.as_mut()) else { return };
        let actions = watch.step(now, nonce, event);
        if self.processes.get(pid).is_some_and(|process| process.state == State::Joining) {
            return self.watch_while_joining(pid, actions);
        }
        for action in actions {
            self.watch_action(pid, action);
        }
        // Whatever has ended, a fence as well as a recovery, may be the last that a leave waits for.
        self.leave_if_done(pid);
    }
    /// It recovers nobody but whose slot it takes.
    fn watch_while_joining(&mut self, pid: Pid, actions: Vec<WatchAction>) {
        for action in actions {
            match action {
                WatchAction::Fence(record) => self.begin_fence(pid, record),
                WatchAction::Write { new, .. } => {
                    self.watch(pid, WatchEvent::Wrote(new.life.slot, false));
                }
                _ => {}
            }
        }
    }
    fn watch_action(&mut self, pid: Pid, action: WatchAction) {
        match action {
            WatchAction::Write { expected, new } => {
                let Some(process) = self.processes.get_mut(pid) else { return };
                let proofs = &process.member.proofs;
                if new.recoverer == process.me && proofs.of(&expected).is_none() {
                    proofs.add(&expected, FenceMethod::Kernel);
                }
                self.write_slot(pid, &expected, &new, For::Watch(new.clone()));
            }
            WatchAction::Recover(record) => {
                self.take_key(pid, &record);
                if self.cluster.sabotage == Some(Sabotage::LockBeforeReplay) {
                    return self.lock_to_recover(pid, record.life);
                }
                self.begin_recovery(pid, record.life);
            }
            WatchAction::Finish(record) => {
                self.inherit_files(pid, record.life);
                self.finish_recovery(pid);
            }
            WatchAction::Fence(record) => self.begin_fence(pid, record),
            WatchAction::Distrust(_)
                if self.cluster.sabotage == Some(Sabotage::TrustUnseenLocks) => {}
            WatchAction::Suspect(life) => self.fail(format!("nobody can fence {life:?}")),
            WatchAction::Distrust(life) | WatchAction::ForeignLocks(life) => {
                self.fail(format!("{life:?} beats, and its liveness lock is not seen"));
            }
            WatchAction::Evicted if self.cluster.hosts => {
                self.gives_up(pid, &"its slot was taken from it");
            }
            WatchAction::Evicted => {
                self.fail(format!("process {pid} was evicted although it lives"));
            }
            WatchAction::Gone(_) => {
                self.region_holder_gone(pid);
                for lock in 0..usize::from(self.cluster.locks) {
                    if self.lock_waits(pid, lock) {
                        self.step(pid, lock, LockEvent::Look);
                    }
                }
            }
        }
    }

    pub(super) fn wrote_for_watcher(&mut self, pid: Pid, slot: NodeId, done: bool) {
        self.watch(pid, WatchEvent::Wrote(slot, done));
    }
    pub(super) fn fenced_by_watcher(&mut self, pid: Pid, slot: NodeId, fenced: bool) {
        self.watch(pid, WatchEvent::Fenced(slot, fenced));
    }
    pub(crate) fn recovery_finished(&mut self, pid: Pid, done: bool) {
        let outcome = if done { Recovery::Done } else { Recovery::Failed };
        self.watch(pid, WatchEvent::Finished(outcome));
    }
    pub(super) fn recovered_by_watcher(&mut self, pid: Pid, dead: Life, done: bool) {
        let outcome = if done { Recovery::Done } else { Recovery::Failed };
        self.watch(pid, WatchEvent::Recovered(dead.slot, outcome));
    }
}
