//! What happens to devices under mirrors ([`Cluster::mirrors`]): writes and flushes fail, a device answers nothing
//! but errors, or loses its power, and with it what it had in its cache, while all hosts live. Of the mirrors'
//! members one at a time: the rest spare it. A member that has failed comes back, as another device would take its
//! place, and is filled.
//!
//! The layer of the devices refuses writes and flushes of a node after a flush of it has failed, and after a
//! device has lost its power that holds something which the node has not flushed: `refuses`.
//!
//! [`Cluster::mirrors`]: crate::Cluster::mirrors

use std::collections::BTreeSet;
use std::time::Duration;

use braid_format::MemberIndex;
use braid_format::label::MemberState;

use crate::disk::{Address, Op};
use crate::node::{Process, State};
use crate::random::Random;
use crate::work::Task;
use crate::world::{Event, Pid, Tells, World};
use crate::{Mirrors, Sabotage};

/// Between two looks at the members, at most.
const LOOKS: Duration = Duration::from_millis(120);

/// What is wrong with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The next write fails, once.
    Write,
    /// The next flush fails, and what is in the cache is lost.
    Flush,
    /// Everything fails until another device takes its place, or no node is left.
    Dead,
    /// It has lost its power; it works again.
    PowerLost,
    /// It is over, and somebody has been told of a failure.
    Met,
}

/// What happens to the devices.
pub(crate) struct Members {
    random: Random,
    fault: Option<(u16, Fault)>,
    /// Which processes have written to which devices what they have not flushed.
    unflushed: BTreeSet<(Pid, u16)>,
    /// Who has been told of a failed write.
    met: BTreeSet<(Pid, u16)>,
    /// Whose writes and flushes are refused.
    refused: BTreeSet<(Pid, u16)>,
}

impl Members {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x6d65_6d62_6572);
        Self {
            random,
            fault: None,
            unflushed: BTreeSet::new(),
            met: BTreeSet::new(),
            refused: BTreeSet::new(),
        }
    }
    /// A request of a process has landed.
    pub(crate) fn landed(&mut self, pid: Pid, device: u16, op: &Op) {
        match op {
            Op::Write(_) => _ = self.unflushed.insert((pid, device)),
            Op::Flush => _ = self.unflushed.remove(&(pid, device)),
            Op::Read | Op::CompareAndWrite { .. } => {}
        }
    }
    /// A device does not do what it should.
    pub(crate) fn is_broken(&self) -> bool {
        self.fault.is_some()
    }
    /// Copies may differ until somebody meets it.
    pub(crate) fn may_differ(&self) -> bool {
        matches!(self.fault, Some((_, Fault::PowerLost | Fault::Met)))
    }
    /// Another device has taken its place.
    fn renew(&mut self, device: u16) {
        self.fault = self.fault.filter(|(bad, _)| *bad != device);
        self.met.retain(|(_, met)| *met != device);
        self.refused.retain(|(_, refused)| *refused != device);
    }
}

impl World {
    pub(crate) fn look_at_members(&mut self) {
        if self.cluster.mirrors.is_none() {
            return;
        }
        let pause = self.members.random.time(LOOKS);
        self.after(pause, Event::Members);
        self.forget_fault();
        let members = self.peers.members();
        let bad = |state| members.iter().find(|m| m.1 == state).map(|m| m.0);
        if let Some(member) = bad(MemberState::Failed) {
            self.replace(member);
        } else if let Some(member) = bad(MemberState::Rebuilding) {
            self.rebuild(member);
        } else if self.faulty() && self.members.fault.is_none() && self.peers.agree() {
            self.break_device();
        }
    }
    /// A fault that nobody can meet any more is none.
    fn forget_fault(&mut self) {
        let Some((device, fault)) = self.members.fault else { return };
        // Who has died over it may have begun to take the member out.
        let concerned = |p: &Process| p.state != State::Gone || !p.recovered && !p.left;
        let alive = |pid: &Pid| self.processes.get(*pid).is_some_and(concerned);
        let concerns = |(pid, other): &(Pid, u16)| *other == device && alive(pid);
        let Members { refused, met, .. } = &self.members;
        let may_be_met = match fault {
            // Somebody sees to it where no node can do without it.
            Fault::Dead => !self.peers.are_gone(),
            Fault::PowerLost | Fault::Met => refused.union(met).any(concerns),
            Fault::Write | Fault::Flush => self.faulty(),
        };
        if !may_be_met {
            self.members.fault = None;
        }
    }
    fn break_device(&mut self) {
        let random = &mut self.members.random;
        let spared = self.cluster.mirrors.filter(|m| m.mirrors_metadata());
        let spared = spared.map_or(0, Mirrors::of_metadata);
        let count = u64::from(self.cluster.devices - spared);
        let device = spared + u16::try_from(random.below(count)).unwrap_or(0);
        let faults = [Fault::Write, Fault::Flush, Fault::Dead, Fault::PowerLost];
        let fault = *random.pick(&faults);
        // Without it nothing goes on.
        if random.below(3) == 0 || device == 0 && fault == Fault::Dead {
            return;
        }
        self.note(|| format!("device {device}: {fault:?}"));
        self.report.member_faults += 1;
        self.members.fault = Some((device, fault));
        if fault == Fault::PowerLost {
            self.lose_power(device);
        }
    }
    fn lose_power(&mut self, device: u16) {
        let fates = self.disk.lose_power(device, &mut self.members.random);
        self.report.fates(fates);
        self.files.contents.shake();
        let unflushed = self.members.unflushed.iter().filter(|u| u.1 == device);
        let refused: Vec<(Pid, u16)> = unflushed.copied().collect();
        self.members.refused.extend(refused);
    }

    /// What a request of a lane is told, if something is wrong with its device.
    pub(crate) fn member_fails(&mut self, pid: Pid, address: Address, op: &Op) -> Option<Tells> {
        let device = self.disk.device_of(address);
        let changes = matches!(op, Op::Write(_) | Op::Flush);
        let ignored = device != 0 && self.cluster.sabotage == Some(Sabotage::IgnoreFailedFlushes);
        if ignored && *op == Op::Flush && self.members.refused.contains(&(pid, device)) {
            return Some(Tells::Lie);
        }
        if changes && !ignored && self.members.refused.contains(&(pid, device)) {
            return Some(self.met_by(pid, device, Tells::NeverLands));
        }
        let (_, fault) = self.members.fault.filter(|(bad, _)| *bad == device)?;
        match (fault, op) {
            (Fault::Dead, _) => Some(Tells::NeverLands),
            (Fault::Write, Op::Write(_)) => {
                self.members.fault = Some((device, Fault::Met));
                self.members.met.insert((pid, device));
                let lands = self.members.random.below(2) == 0;
                let tells = if lands { Tells::Failure } else { Tells::NeverLands };
                Some(self.met_by(pid, device, tells))
            }
            (Fault::Flush, Op::Flush) => {
                self.members.fault = Some((device, Fault::Met));
                self.lose_power(device);
                self.members.refused.insert((pid, device));
                if ignored {
                    return Some(Tells::Lie);
                }
                Some(self.met_by(pid, device, Tells::NeverLands))
            }
            _ => None,
        }
    }
    /// Without the first device a node withdraws, at the latest when its heartbeats are refused, too.
    fn met_by(&mut self, pid: Pid, device: u16, tells: Tells) -> Tells {
        self.report.faults += 1;
        if let Some(process) = self.processes.get_mut(pid).filter(|_| device == 0) {
            process.withdraws = true;
            let pause = self.members.random.time(LOOKS);
            self.after(pause, Event::Crash { pid });
        }
        tells
    }

    /// Some node that runs.
    fn operator(&mut self) -> Option<Pid> {
        let runs = |pid: &Pid| self.processes.get(*pid).is_some_and(|p| p.state == State::Running);
        let running: Vec<Pid> = (0..self.processes.len()).filter(runs).collect();
        if running.is_empty() { None } else { Some(*self.members.random.pick(&running)) }
    }
    /// Somebody puts a device in the place of one that has failed: here the same one, forgotten by all.
    fn replace(&mut self, member: MemberIndex) {
        if self.members.random.below(4) != 0 && self.faulty() || self.is_maintained() {
            return;
        }
        let Some(pid) = self.operator() else { return };
        self.members.renew(member.0);
        self.work(pid, Task::Replace { member });
    }
    fn rebuild(&mut self, member: MemberIndex) {
        if self.is_maintained() {
            return;
        }
        if let Some(pid) = self.operator() {
            self.work(pid, Task::Rebuild { member });
        }
    }
    fn is_maintained(&self) -> bool {
        let all = self.processes.iter().filter(|p| p.state != State::Gone);
        all.filter_map(|p| p.work.as_ref()).any(crate::work::Work::maintains)
    }
}
