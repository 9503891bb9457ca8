//! What nodes with pools of their own say to each other about locks on regions, and give up for each other.

use std::time::Duration;

use braid_format::LockNo;
use braid_lock::dlock::Hint;
use braid_lock::{Life, Mode};

use crate::mirrors::Message;
use crate::work::{Task, Work};
use crate::world::{Event, Pid, World};

/// Until a thread that gives regions up runs.
const REGIONS: Duration = Duration::from_micros(50);

impl World {
    /// Messages about regions are sent, and regions that others want are given up.
    pub(crate) fn see_to_regions(&mut self, pid: Pid) {
        if self.cluster.mirrors.is_none() {
            return;
        }
        for message in self.peers.take_messages() {
            self.send_about_region(message);
        }
        self.set_clock(pid);
        let Some(process) = self.processes.get(pid) else { return };
        let Some(own) = process.work.as_ref().and_then(Work::own) else { return };
        let Some(due) = own.sharing.demotion_due_in() else { return };
        let at = self.now + due + REGIONS;
        if process.regions_at.is_none_or(|planned| planned > at) {
            self.at(at, Event::Regions { pid });
            if let Some(process) = self.processes.get_mut(pid) {
                process.regions_at = Some(at);
            }
        }
    }
    pub(crate) fn give_regions_up(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(pid) {
            process.regions_at = None;
        }
        self.work_if_free(pid, Task::GiveUp);
    }
    fn send_about_region(&mut self, message: Message) {
        let Message { from, to, lock, hint } = message;
        let Some(pid) = self.process_of(to) else { return };
        let Some(from) = self.processes.get(from).and_then(|p| p.me) else { return };
        let mut slow = Duration::from_micros(100);
        if self.faulty() {
            if self.random.permille(self.cluster.faults.hints_lost) {
                return;
            }
            if self.random.permille(100) {
                slow = self.cluster.faults.late_max;
            }
        }
        let pause = self.random.time(slow);
        self.after(pause, Event::AboutRegion { pid, from, lock, hint });
    }
    pub(crate) fn heard_about_region(&mut self, pid: Pid, from: Life, lock: LockNo, hint: Hint) {
        let dead = self.processes.get(pid).is_none_or(|p| p.says_dead(from) || p.closed);
        if !dead {
            self.work(pid, Task::Heard { from, lock, hint });
        }
    }
    /// What the threads of a node's pool have waited for longest.
    pub(crate) fn region_wishes(&self, pid: Pid) -> Vec<(LockNo, Mode)> {
        let own = self.processes.get(pid).and_then(|p| p.work.as_ref()).and_then(Work::own);
        own.map_or_else(Vec::new, |own| own.sharing.wishes())
    }
    /// Another node wishes a region.
    pub(crate) fn region_wished(&mut self, pid: Pid, lock: LockNo, mode: Mode) {
        let own = self.processes.get(pid).and_then(|p| p.work.as_ref()).and_then(Work::own);
        if let Some(own) = own {
            own.sharing.wished(lock, mode);
        }
        self.see_to_regions(pid);
    }
    /// Another node was recovered, or has left.
    pub(crate) fn region_holder_gone(&mut self, pid: Pid) {
        let own = self.processes.get(pid).and_then(|p| p.work.as_ref()).and_then(Work::own);
        if let Some(own) = own {
            own.sharing.node_gone();
        }
        self.see_to_regions(pid);
    }
}
