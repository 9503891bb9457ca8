//! Heartbeats, and the lease that goes with them.

use braid_format::features::Features;
use braid_format::node::{Heartbeat, RawHeartbeat, SlotRecord, SlotState};
use braid_lock::dlock::Time;
use braid_lock::node::lease::{Action, Event, Loss};

use super::{Purpose, State};
use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op};
use crate::locks::Lock;
use crate::work::Task;
use crate::world::{Event as WorldEvent, Pid, World};

impl World {
    /// It says that it lives from now on, in heartbeats after that of `sequence`.
    pub(super) fn begin_beats(&mut self, pid: Pid, sequence: u64) {
        let series = self.nonce();
        let Some(member) = self.member(pid) else { return };
        (member.series, member.sequence) = (series, sequence);
        self.at(self.now, WorldEvent::Beat { pid, series });
    }
    pub(super) fn end_beats(&mut self, pid: Pid) {
        if let Some(member) = self.member(pid) {
            member.series = 0;
        }
    }
    pub(crate) fn beat(&mut self, pid: Pid, series: u64) {
        let (tag, regions) = (self.epoch_of(pid), self.region_wishes(pid));
        let Some(process) = self.processes.get_mut(pid) else { return };
        let member = &mut process.member;
        let goes_on = series != 0 && member.series == series;
        let Some(life) = member.life.filter(|_| goes_on) else { return };
        member.sequence += 1;
        let wishes = process.locks.iter().filter_map(Lock::wish).chain(regions);
        let wishes = wishes.take(RawHeartbeat::WISHES).collect();
        let beat = Heartbeat {
            life,
            pool_epoch: tag.epoch,
            pool_change: tag.change,
            sequence: member.sequence,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: Features::KNOWN,
            wishes,
        };
        let mut bytes = vec![0; LEN];
        beat.encode(&mut bytes);
        let sequence = member.sequence;
        self.submit(pid, Address::Beat(life.slot.0), Op::Write(bytes), Purpose::Beat(self.now));
        // Work does not follow the beat of faster ones.
        self.keep_house(pid, sequence);
        self.tell_seconds();
        self.check_waits();
        if self.cluster.mirrors.is_some() && self.joins(pid) {
            self.work_if_free(pid, Task::Follow { joins: false });
        }
        let often = if self.cluster.hosts { 40 } else { 20 };
        match self.random.below(often) {
            0 => self.commit(pid),
            1 if self.cluster.checkpoints => self.checkpoint(pid),
            _ => {}
        }
    }
    /// It has no watcher yet that follows changes of the pool.
    fn joins(&self, pid: Pid) -> bool {
        let process = self.processes.get(pid);
        process.is_some_and(|p| p.state == State::Joining)
    }
    pub(super) fn beat_answered(&mut self, pid: Pid, issued: Time, answer: &Answer) {
        self.lease_step(
            pid,
            match answer {
                Answer::Done(_) | Answer::Mismatch(_) => Event::Written(issued),
                Answer::Failed => Event::Failed,
                Answer::Fenced => Event::Refused,
            },
        );
    }
    /// The slot as it stands after the lease was over.
    pub(super) fn lease_checked(&mut self, pid: Pid, answer: &Answer) {
        let Some(process) = self.processes.get(pid) else { return };
        let (Answer::Done(bytes), Some(life)) = (answer, process.me) else { return };
        let ours = SlotRecord::decode(bytes, life.slot)
            .is_ok_and(|r| r.life == life && r.state == SlotState::Active);
        // And its keys, which are asked for with it.
        let ours = ours && process.barred.is_empty();
        if ours {
            self.report.resumed += 1;
        }
        self.lease_step(pid, Event::Checked(ours));
    }
    fn lease_step(&mut self, pid: Pid, event: Event) {
        let (now, beat) = (self.now, self.beat_len());
        let Some(member) = self.member(pid) else { return };
        let series = member.series;
        let said = match &mut member.lease {
            Some(lease) => lease.step(now, event),
            // It takes a slot over, without a lease.
            None if event == Event::Refused => Some(Action::Withdraw(Loss::Fenced)),
            None => None,
        };
        match said {
            Some(Action::Check) => {
                let Some(life) = member.life else { return };
                self.submit(pid, Address::Slot(life.slot.0), Op::Read, Purpose::LeaseCheck);
            }
            Some(Action::Withdraw(loss)) => self.gives_up(pid, &format!("its lease: {loss:?}")),
            Some(Action::Extend(_)) | None => {
                self.after(beat, WorldEvent::Beat { pid, series });
                self.lease_extended(pid);
            }
        }
    }

    /// Its lease is over: nothing but the heartbeat goes on.
    pub(crate) fn must_wait(&self, pid: Pid, event: &WorldEvent) -> bool {
        let Some(process) = self.processes.get(pid) else { return false };
        let lapsed = process.member.lease.as_ref().is_some_and(|lease| !lease.lasts(self.now));
        if !lapsed || self.cluster.sabotage == Some(Sabotage::IgnoreLease) {
            return false;
        }
        match event {
            WorldEvent::Beat { .. }
            | WorldEvent::LeaseLook { .. }
            | WorldEvent::DropPages { .. }
            | WorldEvent::Answer { answer: Answer::Fenced, .. } => false,
            WorldEvent::Answer { token, .. } => {
                !process.requests.get(token).is_some_and(Purpose::needs_no_lease)
            }
            _ => true,
        }
    }
    /// Whether it may fence others.
    pub(super) fn may_act(&self, pid: Pid) -> bool {
        let Some(process) = self.processes.get(pid) else { return false };
        process.member.lease.as_ref().is_none_or(|lease| lease.lasts(self.now))
    }
}
