//! How a process leaves in good order.

use std::time::Duration;

use braid_lock::node::lease::Lease;
use braid_lock::node::leave::{Action, Event, Leave};
use braid_lock::node::slot_write::Outcome;
use braid_lock::node::watch::Watch;

use super::State;
use super::slots::For;
use crate::locks::Lock;
use crate::work::Task;
use crate::world::{Event as WorldEvent, Pid, World};

impl World {
    pub(crate) fn leave(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(pid)
            && process.state == State::Running
        {
            process.state = State::Leaving;
            self.close_all(pid);
            self.note(|| format!("process {pid} leaves"));
            self.leave_if_done(pid);
        }
    }

    /// Once nothing is used, waited for or dirty, the slot is freed. What the watcher has under way, a
    /// fence or a recovery, is waited for as well.
    pub(crate) fn leave_if_done(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let recovering = process.member.watch.as_ref().is_some_and(Watch::is_recovering);
        if process.state != State::Leaving || recovering {
            return;
        }
        if std::mem::take(&mut process.closed) {
            return self.begin_leave(pid);
        }
        if process.locks.iter().any(Lock::in_use) {
            return;
        }
        process.stopped = true;
        if let Some(lock) = process.locks.iter().position(|l| !l.settled()) {
            self.settle_for_leave(pid, lock);
        } else if !std::mem::replace(&mut process.closing, true) {
            self.work(pid, Task::Close);
        }
    }
    /// The journal is clean. What the watcher has begun meanwhile ends before the slot is freed: it may write.
    pub(crate) fn closed(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(pid) {
            process.closed = true;
        }
        self.leave_if_done(pid);
    }
    fn begin_leave(&mut self, pid: Pid) {
        let nonce = self.nonce();
        if let Some(member) = self.member(pid) {
            member.leave = Some(Leave::new(nonce));
        }
        self.leave_step(pid, Event::Begin);
    }
    pub(super) fn leave_wrote(&mut self, pid: Pid, outcome: Outcome) {
        self.leave_step(pid, Event::Wrote(outcome));
    }

    fn leave_step(&mut self, pid: Pid, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let (now, timing) = (self.now, self.timing());
            let Some(member) = self.member(pid) else { return };
            let Some(leave) = &mut member.leave else { return };
            next = Some(match leave.step(event) {
                Action::Stop => {
                    (member.series, member.watch) = (0, None);
                    Event::Stopped
                }
                Action::EndLease => {
                    member.lease = Some(Lease::new(timing, now));
                    let Some(mine) = member.mine.clone() else { return };
                    Event::LeaseEnded(mine)
                }
                Action::Write { expected, new } => {
                    return self.write_slot(pid, &expected, &new, For::Leave);
                }
                Action::GiveKeyBack => {
                    member.key = 0;
                    Event::KeyGivenBack
                }
                Action::LetLifeGo => {
                    self.lives.retain(|_, holder| *holder != pid);
                    Event::LifeLetGo
                }
                Action::End(_) => return self.has_left(pid),
            });
        }
    }

    /// Whether or not the slot was freed: nothing dirty is left, so others may recover it.
    fn has_left(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        process.state = State::Gone;
        process.left = true;
        process.work = None;
        let node = process.node;
        self.peers.left(pid);
        self.note(|| format!("process {pid} has left"));
        let pause = self.random.time(Duration::from_millis(300));
        self.after(pause, WorldEvent::Start(node));
    }
}
