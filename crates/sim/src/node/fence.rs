//! Fences of nodes on hosts of their own, device by device: does what the steps of
//! `braid_lock::node::fencing` say.

use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::SlotRecord;
use braid_lock::node::fencing::{Action, Event, Fencing, Means};

use super::State;
use crate::Sabotage;
use crate::disk::{Address, Answer, Op};
use crate::world::{Event as WorldEvent, Pid, Tells, World};

/// The part of a fence at one device: of who has this key, which the slot names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fence {
    slot: NodeId,
    key: u64,
    device: u16,
}

impl World {
    /// For the watcher, or while it joins.
    pub(super) fn begin_fence(&mut self, pid: Pid, record: Box<SlotRecord>) {
        let (host, slot) = (self.identity_of(pid).host, record.life.slot);
        let here = self.is_life_locked(pid, slot);
        if !self.cluster.hosts && !here {
            return self.fail(format!("{:?} is fenced on its own host", record.life));
        }
        self.note(|| format!("process {pid} fences {:?}", record.acting()));
        let Some(member) = self.member(pid) else { return };
        let means = Means { key: member.key, command: false, host };
        member.fencings.retain(|f| f.record().life.slot != slot);
        member.fencings.push(Fencing::new(means, record, here));
        let may_act = self.may_act(pid);
        self.fence_step(pid, slot, Event::Begin { may_act });
    }
    fn fence_step(&mut self, pid: Pid, slot: NodeId, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let Some(member) = self.member(pid) else { return };
            let mut fencings = member.fencings.iter_mut();
            let Some(fencing) = fencings.find(|f| f.record().life.slot == slot) else { return };
            let (action, record) = (fencing.step(event), fencing.record().clone());
            match action {
                Action::EndProcess => next = Some(self.end_process(pid, slot)),
                Action::Preempt => {
                    let fence = Fence { slot, key: record.fence_key, device: 0 };
                    return self.next_device(pid, fence);
                }
                // There is none.
                Action::Call => next = Some(Event::Called(false)),
                Action::TakeKey => next = Some(Event::KeyTaken),
                Action::Fenced(method) => {
                    member.proofs.add(&record, method);
                    return self.fence_ended(pid, slot, true);
                }
                Action::NotFenced(why) => {
                    self.note(|| format!("process {pid} has not fenced {slot}: {why:?}"));
                    return self.fence_ended(pid, slot, false);
                }
            }
        }
    }
    /// As SIGKILL. What the process has under way may keep its liveness lock for a while.
    fn end_process(&mut self, pid: Pid, slot: NodeId) -> Event {
        let holder = self.lives.get(&(self.place_of(pid), slot.0)).copied();
        if let Some(holder) = holder {
            self.crash(holder);
        }
        let may_act = self.may_act(pid);
        if self.is_life_locked(pid, slot) {
            Event::ProcessStays { may_act }
        } else {
            Event::ProcessEnded
        }
    }
    fn fence_ended(&mut self, pid: Pid, slot: NodeId, fenced: bool) {
        let Some(member) = self.member(pid) else { return };
        member.fencings.retain(|f| f.record().life.slot != slot);
        if member.join.is_some() && member.watch.is_none() {
            self.fenced_to_join(pid, fenced);
        } else {
            self.fenced_by_watcher(pid, slot, fenced);
        }
    }
    fn next_device(&mut self, pid: Pid, fence: Fence) {
        let late = self.faulty() && self.random.permille(100);
        let late_max = self.cluster.faults.late_max;
        let pause = self.random.time(if late { late_max } else { Duration::from_millis(5) });
        self.after(pause, WorldEvent::Fence { pid, fence });
    }

    /// PREEMPT AND ABORT at one device: what is under way there lands now or never.
    pub(crate) fn fence_device(&mut self, pid: Pid, fence: Fence) {
        let Fence { slot, key, device } = fence;
        if self.processes.get(pid).is_some_and(|p| p.barred.iter().any(|b| b.0 == device)) {
            let may_act = self.may_act(pid);
            let event = Event::NotPreempted { self_fenced: true, may_act };
            self.fence_step(pid, slot, event);
            return self.gives_up(pid, &"it has been fenced");
        }
        if self.faulty() && self.random.permille(50) {
            let may_act = self.may_act(pid);
            return self.fence_step(pid, slot, Event::NotPreempted { self_fenced: false, may_act });
        }
        let last = self.cluster.devices - 1;
        let skipped = device == last && self.cluster.sabotage == Some(Sabotage::FencePartly);
        for other in self.registered(key) {
            if skipped {
                continue;
            }
            if self.cluster.sabotage != Some(Sabotage::FenceWithoutDrain) {
                self.drain(other, device);
                self.disk.settle(other, device);
            }
            self.bar(other, device);
        }
        if device < last {
            return self.next_device(pid, Fence { device: device + 1, ..fence });
        }
        self.note(|| format!("process {pid} has fenced slot {slot}"));
        self.report.fences += 1;
        for other in self.registered(key) {
            if let Some(process) = self.processes.get_mut(other) {
                process.fenced = true;
                self.peers.gone(other);
            }
        }
        self.fence_step(pid, slot, Event::Preempted);
    }
    /// The processes that have registered by a key, and have not given it back.
    fn registered(&self, key: u64) -> Vec<Pid> {
        let has = |pid: &Pid| {
            self.processes.get(*pid).is_some_and(|p| key != 0 && p.member.key == key && !p.left)
        };
        (0..self.processes.len()).filter(has).collect()
    }
    fn bar(&mut self, pid: Pid, device: u16) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.barred.iter().all(|b| b.0 != device) {
            process.barred.push((device, process.tokens));
        }
    }
    /// The key of a dead node is taken, unless it is this one's.
    pub(super) fn take_key(&mut self, pid: Pid, record: &SlotRecord) {
        let own = self.member(pid).map_or(0, |m| m.key);
        if own == 0 || record.fence_key == own {
            return;
        }
        for other in self.registered(record.fence_key) {
            for device in 0..self.cluster.devices {
                self.bar(other, device);
            }
        }
    }
    /// Lands what is under way, or lets it be forgotten.
    fn drain(&mut self, victim: Pid, device: u16) {
        // The power has taken it already.
        if self.processes.get(victim).is_none_or(|p| p.cut) {
            return;
        }
        let under_way: Vec<_> = self.under_way(victim, device);
        for key in under_way {
            let Some(event) = self.take(key) else { continue };
            let lands = self.random.below(2) == 0;
            match event {
                WorldEvent::Land { pid, token, address, op, tells } if lands => {
                    self.land(pid, token, address, &op, tells);
                }
                WorldEvent::Land { pid, token, tells, .. } => {
                    if let Some(process) = self.processes.get_mut(pid) {
                        process.in_flight -= 1;
                    }
                    self.refuse(pid, token, tells);
                }
                WorldEvent::Late { pid, place, bytes, torn } if lands => {
                    self.land_late(pid, place, &bytes, torn);
                }
                WorldEvent::Late { pid, .. } => {
                    if let Some(process) = self.processes.get_mut(pid) {
                        process.in_flight -= 1;
                    }
                    self.fence_if_quiet(pid);
                }
                _ => {}
            }
        }
    }
    /// Whether a device refuses this.
    pub(crate) fn refused(&self, pid: Pid, token: Option<u64>, address: Address, op: &Op) -> bool {
        let Some(process) = self.processes.get(pid) else { return false };
        let device = self.disk.device_of(address);
        let Some((_, before)) = process.barred.iter().find(|b| b.0 == device) else { return false };
        let drained = self.cluster.sabotage != Some(Sabotage::FenceWithoutDrain);
        *op != Op::Read && (drained || token.is_some_and(|t| t > *before))
    }
    /// A request of a fenced node is answered by a conflict.
    pub(crate) fn refuse(&mut self, pid: Pid, token: u64, tells: Tells) {
        self.report.refused += 1;
        let alive = self.processes.get(pid).is_some_and(|p| p.state != State::Gone);
        if !alive {
            self.fence_if_quiet(pid);
        } else if tells != Tells::Nothing {
            let back = self.random.time(Duration::from_micros(50));
            self.after(back, WorldEvent::Answer { pid, token, answer: Answer::Fenced });
        }
    }
}
