//! What happens to nodes, hosts, slots and power: see the permitted faults at the top of the crate.

use std::time::Duration;

use braid_format::Incarnation;
use braid_format::node::SlotState;
use braid_lock::{Life, Mode};

use crate::disk::{Address, Late, Op, blocks_of};
use crate::node::State;
use crate::work::Work;
use crate::world::{Event, Pid, World};
use crate::{Mirrors, Sabotage};

/// A slot record that became unreadable is readable again after so long at most, if it ever is.
const BAD_MAX: Duration = Duration::from_millis(300);

impl World {
    pub(crate) fn next_trouble(&mut self) {
        let every = self.cluster.faults.trouble_every;
        if !every.is_zero() {
            let pause = self.random.time(every * 2);
            self.after(pause, Event::Trouble);
        }
    }

    pub(crate) fn trouble(&mut self) {
        if !self.faulty() {
            return;
        }
        self.next_trouble();
        let running: Vec<Pid> = (0..self.processes.len())
            .filter(|pid| self.processes.get(*pid).is_some_and(|p| p.state != State::Gone))
            .collect();
        if running.is_empty() {
            return;
        }
        let pid = *self.random.pick(&running);
        match self.random.below(16) {
            0..=4 => self.crash(pid),
            5 => self.power_cut(),
            6 | 7 => self.stall(pid, false),
            8 => self.stall(pid, true),
            9 | 10 => self.leave(pid),
            11 | 12 => self.cut_off(pid),
            13 => self.reset_host(pid),
            _ if self.cluster.etcd => self.etcd_goes_away(),
            _ => self.spoil_slot(),
        }
    }

    /// etcd has lost its leader, or is started anew: nobody is answered for a while.
    fn etcd_goes_away(&mut self) {
        let until = self.now + self.random.time(self.cluster.faults.stall_max * 2);
        self.note(|| format!("etcd answers nobody until {until:?}"));
        self.report.etcd_away += 1;
        self.etcd_away_until = self.etcd_away_until.max(until);
    }
    /// How much longer a request takes that goes to etcd: to the disks of several servers, and if it is away until it is
    /// back. Now and then what it asks is done at once, before etcd is gone, and only the answer comes late.
    pub(crate) fn etcd_takes(&mut self) -> Duration {
        let usual = self.random.time(Duration::from_millis(5));
        let away = self.etcd_away_until.saturating_sub(self.now);
        if away.is_zero() || self.random.below(8) == 0 { usual } else { away + usual }
    }

    /// As SIGSTOP; or its host is `suspended`, and with it the clock that rests meanwhile.
    fn stall(&mut self, pid: Pid, suspended: bool) {
        let pause = self.random.time(self.cluster.faults.stall_max);
        let until = self.now + pause;
        self.note(|| format!("process {pid} is stopped until {until:?}, suspended: {suspended}"));
        let Some(process) = self.processes.get_mut(pid) else { return };
        if suspended {
            process.suspended += until.saturating_sub(process.stalled_until.max(self.now));
        }
        process.stalled_until = process.stalled_until.max(until);
        let lease = process.member.lease_until();
        process.kernel.stopped_until(process.stalled_until, lease);
        self.wake_all(pid, until);
    }

    /// Its host does not reach the devices: what it asks of them takes that much longer.
    fn cut_off(&mut self, pid: Pid) {
        let until = self.now + self.random.time(self.cluster.faults.stall_max);
        self.note(|| format!("process {pid} is cut off until {until:?}"));
        self.report.cut_offs += 1;
        if let Some(process) = self.processes.get_mut(pid) {
            process.cut_off_until = until;
        }
    }

    /// Its host starts anew, with another boot; what it has under way may land all the same.
    fn reset_host(&mut self, pid: Pid) {
        if self.cluster.hosts && !self.cluster.containers {
            let host = self.processes.get(pid).map_or(0, |p| usize::from(p.node));
            if let Some(boots) = self.host_boots.get_mut(host) {
                *boots = boots.wrapping_add(1);
            }
            self.note(|| format!("the host of process {pid} starts anew"));
            self.report.resets += 1;
            self.lives.retain(|_, holder| *holder != pid);
        }
        self.crash(pid);
    }

    /// A bit of a slot's record flips: of one that was never used for good, of another for a while. (What
    /// lives of a slot held that cannot be read stands for all who have not seen them to be over.)
    fn spoil_slot(&mut self) {
        let slot = self.random.below(u64::from(self.cluster.slots));
        let slot = u16::try_from(slot).unwrap_or(0);
        let Ok(record) = self.disk.slot(slot) else { return };
        let spare = self.cluster.slots > self.cluster.nodes && self.bad_slots.is_empty();
        let unused = record.state == SlotState::Free && record.life.incarnation == Incarnation(0);
        let for_good = spare && unused;
        if !for_good && !self.processes.iter().any(|p| p.me == Some(record.life)) {
            return;
        }
        self.note(|| format!("slot {slot} cannot be read, for good: {for_good}"));
        self.report.bad_slots += 1;
        let good = self.disk.spoil_slot(slot);
        if !for_good {
            let pause = self.random.time(BAD_MAX);
            self.after(pause, Event::Heal { slot });
        }
        self.bad_slots.insert(slot, good);
        self.spoilt.insert(slot);
    }
    /// What stood in a slot that could not be read stands there again.
    pub(crate) fn heal_slot(&mut self, slot: u16) {
        let Some(good) = self.bad_slots.remove(&slot) else { return };
        // Its node may have written it anew.
        if self.disk.slot(slot).is_err() {
            self.disk.land(Pid::MAX, Address::Slot(slot), &Op::Write(good));
            self.changed(Address::Slot(slot));
        }
    }

    /// As SIGKILL.
    pub(crate) fn crash(&mut self, pid: Pid) {
        let late_max = self.cluster.faults.late_max;
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.state == State::Gone {
            return;
        }
        let (node, me) = (process.node, process.me);
        process.state = State::Gone;
        self.peers.ended(pid);
        process.work.iter_mut().for_each(Work::die);
        self.report.crashes += 1;
        self.note_death();
        self.note(|| format!("process {pid} {me:?} dies"));
        let (late, fates) = self.disk.crash(pid, &mut self.random);
        self.report.fates(fates);
        for Late { place, bytes } in late {
            let pause = self.random.time(late_max);
            let torn = self.random.below(4) == 0;
            self.after(pause, Event::Late { pid, place, bytes, torn });
            if let Some(process) = self.processes.get_mut(pid) {
                process.in_flight += 1;
            }
        }
        let copied = self.cluster.mirrors.is_some_and(Mirrors::mirrors_metadata);
        if let Some(me) = me.filter(|_| !copied) {
            self.rot_journal(me);
        }
        self.fence_if_quiet(pid);
        let pause = self.stays_away();
        self.after(pause, Event::Start(node));
    }
    /// For how long a node does not come back: long enough, now and then, for the others of one on a host
    /// of its own to act; and sometimes until nothing goes wrong any more.
    fn stays_away(&mut self) -> Duration {
        let away = self.cluster.hosts && self.random.below(2) == 0;
        let pause = self.random.time(Duration::from_millis(if away { 3000 } else { 600 }));
        if self.faulty() && self.random.below(16) == 0 {
            return self.cluster.faults.until.saturating_sub(self.now) + pause;
        }
        pause
    }

    /// Power is cut everywhere at once, and comes back.
    pub(crate) fn power_cut(&mut self) {
        self.note(|| "power is cut".to_owned());
        self.report.power_cuts += 1;
        self.boot = self.boot.wrapping_add(1);
        self.land_in_caches();
        let fates = self.disk.power_cut(&mut self.random);
        self.report.fates(fates);
        for pid in 0..self.processes.len() {
            self.crash(pid);
            if let Some(process) = self.processes.get_mut(pid) {
                process.cut = true;
                process.in_flight = 0;
                process.locks.clear();
            }
            self.fence_if_quiet(pid);
        }
        self.check_contents_left();
        self.peers.forget_epochs();
        self.revoke_locks();
    }
    /// The power cut may have taken locks from the dead.
    fn revoke_locks(&mut self) {
        let dead: Vec<Life> =
            self.processes.iter().filter(|p| !p.recovered).filter_map(|p| p.me).collect();
        for lock in 0..usize::from(self.cluster.locks) {
            let record = match self.disk.record(lock) {
                Ok(record) => record,
                Err(e) => return self.fail(e),
            };
            for me in dead.iter().filter(|me| record.mode_of(**me) != Mode::Exclusive) {
                self.model.revoked(*me, &blocks_of(lock));
            }
        }
    }

    /// The descriptors of a dead process close once nothing of it is in flight.
    pub(crate) fn fence_if_quiet(&mut self, pid: Pid) {
        let early = self.cluster.sabotage == Some(Sabotage::FenceEarly);
        let quiet = self.processes.get(pid).is_some_and(|p| (p.in_flight == 0 || early) && !p.left);
        if quiet {
            self.lives.retain(|_, holder| *holder != pid);
            if let Some(process) = self.processes.get_mut(pid) {
                process.fenced = true;
                self.peers.gone(pid);
            }
        }
    }
}
