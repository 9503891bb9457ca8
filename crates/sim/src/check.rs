//! The checkers: see the list at the top of the crate.

use braid_lock::Mode;

use crate::disk::{Address, Op};
use crate::node::State;
use crate::work::DATA;
use crate::world::{Pid, World};

impl World {
    /// Exclusion and belief.
    pub(crate) fn check_lock(&mut self, lock: usize) {
        let record = match self.disk.record(lock) {
            Ok(record) => record,
            Err(e) => return self.fail(e),
        };
        let mut holders = 0;
        let mut exclusive = false;
        let mut broken = None;
        for process in self.processes.iter().filter(|p| !p.recovered) {
            let (Some(me), Some(l)) = (process.me, process.locks.get(lock)) else { continue };
            let held = l.dlock.held();
            holders += u32::from(held > Mode::Unlocked);
            exclusive |= held == Mode::Exclusive;
            if held > record.mode_of(me) {
                broken = Some(format!("{me:?} believes in {held:?} of lock {lock}: {record:?}"));
            }
            if l.used() > held {
                broken = Some(format!("{me:?} uses lock {lock} beyond {held:?}"));
            }
        }
        if exclusive && holders > 1 {
            broken = Some(format!("lock {lock} is exclusive beside another: {record:?}"));
        }
        if let Some(what) = broken {
            self.fail(what);
        }
    }

    /// Protection: who writes data holds its lock, now.
    pub(crate) fn check_landing(&mut self, pid: Pid, address: Address, op: &Op) {
        let (Address::Data((_, sector)), Op::Write(_)) = (address, op) else { return };
        let lock = usize::try_from(sector - DATA).unwrap_or(usize::MAX);
        let me = self.processes.get(pid).and_then(|p| p.me);
        match (self.disk.record(lock), me) {
            (Ok(record), Some(me)) if record.mode_of(me) == Mode::Exclusive => {}
            (record, me) => {
                self.fail(format!("{me:?} writes under lock {lock} without it: {record:?}"));
            }
        }
    }

    /// Something on a device has changed.
    pub(crate) fn changed(&mut self, address: Address) {
        match address {
            Address::Lock(lock) => self.check_lock(lock),
            Address::Slot(slot) => {
                self.slot_changed(slot);
            }
            Address::Slots | Address::Beat(_) | Address::Data(_) => {}
        }
    }

    /// After all faults: everybody is served, the dead are recovered, all nodes are back.
    pub(crate) fn check_end(&mut self) {
        let early = self.now.saturating_sub(self.cluster.faults.patience / 4);
        let mut broken = None;
        let mut running = 0;
        for (pid, process) in self.processes.iter().enumerate() {
            match process.state {
                State::Running => running += 1,
                State::Gone => {
                    if process.me.is_some() && !process.recovered {
                        broken = Some(format!("process {pid} was never recovered"));
                    }
                    continue;
                }
                State::Joining | State::Leaving => continue,
            }
            if let Some(since) = process.waits.iter().flatten().find(|since| **since < early) {
                broken = Some(format!("a thread of process {pid} waits since {since:?}"));
            }
        }
        if running < usize::from(self.cluster.nodes) {
            broken.get_or_insert(format!("only {running} nodes run at the end"));
        }
        if let Some(what) = broken {
            self.fail(what);
        }
    }
}
