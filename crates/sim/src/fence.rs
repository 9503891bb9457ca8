//! Nodes on hosts of their own: who sees what of whom, leases, and fences device by device.

use braid_format::node::{SlotRecord, SlotState};
use braid_lock::node::watch::WatchEvent;
use braid_lock::{HostIdentity, Me, Timing};

use crate::Sabotage;
use crate::disk::{Address, Answer, Op};
use crate::node::{BEAT, BEAT_OF_HOSTS, Purpose, State};
use crate::world::{Event, Pid, Tells, World};

impl World {
    pub(crate) fn beat_len(&self) -> std::time::Duration {
        if self.cluster.hosts { BEAT_OF_HOSTS } else { BEAT }
    }
    fn host_of(&self, pid: Pid) -> u16 {
        match self.processes.get(pid) {
            Some(process) if self.cluster.hosts => 1 + process.node,
            _ => 0,
        }
    }
    pub(crate) fn identity_of(&self, pid: Pid) -> HostIdentity {
        let host = self.host_of(pid);
        let [low, _] = host.to_le_bytes();
        let mut boot_id = [self.boot; 16];
        boot_id[0] = low;
        HostIdentity { boot_id, machine_id: [2 + low; 16], host: format!("host{host}") }
    }
    /// A slot's liveness lock as a process sees it.
    pub(crate) fn life_key(&self, pid: Pid, slot: u16) -> (u16, u16) {
        (self.host_of(pid), slot)
    }
    pub(crate) fn sees_alive(&self, pid: Pid, record: &SlotRecord) -> bool {
        self.lives.contains_key(&self.life_key(pid, record.life.slot.0))
    }
    pub(crate) fn has_proven(&self, pid: Pid, record: &SlotRecord) -> bool {
        let who = (record.acting(), record.node_uuid);
        self.processes.get(pid).is_some_and(|p| p.proofs.contains(&who))
    }

    /// Its lease is over: nothing but the heartbeat goes on.
    pub(crate) fn must_wait(&self, pid: Pid, event: &Event) -> bool {
        let Some(process) = self.processes.get(pid) else { return false };
        let on = self.cluster.hosts && self.cluster.sabotage != Some(Sabotage::IgnoreLease);
        if !on || process.state == State::Joining || self.now < process.lease {
            return false;
        }
        match event {
            Event::Beat { .. } => false,
            Event::Answer { token, .. } => {
                let purpose = process.requests.get(token);
                !matches!(purpose, Some(Purpose::Beat(_) | Purpose::Renew(_)))
            }
            _ => true,
        }
    }
    /// A heartbeat was written: with it the lease begins anew, unless it was over.
    pub(crate) fn beat_answered(
        &mut self,
        pid: Pid,
        issued: braid_lock::dlock::Time,
        answer: &Answer,
    ) {
        if !self.cluster.hosts || *answer == Answer::Failed {
            return;
        }
        let lease = Timing::of_beat(self.beat_len()).lease();
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.state == State::Joining && !process.has_slot() {
            return;
        }
        if issued < process.lease {
            process.lease = process.lease.max(issued + lease);
            return;
        }
        let Some(life) = process.life else { return };
        self.submit(pid, Address::Slot(life.slot.0), Op::Read, Purpose::Renew(issued));
    }
    /// The slot as it stands after the lease was over.
    pub(crate) fn renewed(&mut self, pid: Pid, issued: braid_lock::dlock::Time, answer: &Answer) {
        let lease = Timing::of_beat(self.beat_len()).lease();
        let Answer::Done(bytes) = answer else { return };
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(life) = process.life else { return };
        let ours = SlotRecord::decode(bytes, life.slot)
            .is_ok_and(|r| r.life == life && r.state == SlotState::Active);
        // And its keys, which are asked for with it.
        if ours && process.barred.is_empty() {
            process.lease = process.lease.max(issued + lease);
            self.report.resumed += 1;
        } else {
            self.gives_up(pid, &"others have fenced it");
        }
    }

    pub(crate) fn begin_fence(&mut self, pid: Pid, record: &SlotRecord) {
        if !self.cluster.hosts {
            return self.fail(format!("{:?} is fenced on its own host", record.life));
        }
        let victim = (record.acting(), record.node_uuid);
        self.note(|| format!("process {pid} fences {victim:?}"));
        self.next_device(pid, victim, 0);
    }
    fn next_device(&mut self, pid: Pid, victim: (Me, [u8; 16]), device: u16) {
        let pause = self.random.time(std::time::Duration::from_millis(5));
        self.after(pause, Event::Fence { pid, victim, device });
    }
    /// PREEMPT AND ABORT at one device: what is under way there lands now or never.
    pub(crate) fn fence_device(&mut self, pid: Pid, named: (Me, [u8; 16]), device: u16) {
        let (victim, node) = named;
        let last = self.cluster.devices - 1;
        let skipped = device == last && self.cluster.sabotage == Some(Sabotage::FencePartly);
        for other in 0..self.processes.len() {
            let Some(process) = self.processes.get_mut(other) else { continue };
            if process.life != Some(victim) || process.left || skipped {
                continue;
            }
            if self.cluster.sabotage != Some(Sabotage::FenceWithoutDrain) {
                self.drain(other, device);
                self.disk.settle(other, device);
            }
            let Some(process) = self.processes.get_mut(other) else { continue };
            if process.barred.iter().all(|b| b.0 != device) {
                process.barred.push((device, process.tokens));
            }
        }
        if device < last {
            return self.next_device(pid, named, device + 1);
        }
        self.note(|| format!("process {pid} has fenced {victim:?}"));
        self.report.fences += 1;
        for process in self.processes.iter_mut().filter(|p| p.life == Some(victim)) {
            process.fenced = true;
        }
        if let Some(process) = self.processes.get_mut(pid) {
            process.proofs.push((victim, node));
        }
        self.watch(pid, WatchEvent::Fenced(victim.slot, true));
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
                Event::Land { pid, token, address, op, tells } if lands => {
                    self.land(pid, token, address, &op, tells);
                }
                Event::Land { pid, token, tells, .. } => {
                    if let Some(process) = self.processes.get_mut(pid) {
                        process.in_flight -= 1;
                    }
                    self.refuse(pid, token, tells);
                }
                Event::Late { pid, place, bytes, torn } if lands => {
                    self.land_late(pid, place, &bytes, torn);
                }
                Event::Late { pid, .. } => {
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
            let back = self.random.time(std::time::Duration::from_micros(50));
            self.after(back, Event::Answer { pid, token, answer: Answer::Fenced });
        }
    }
}
