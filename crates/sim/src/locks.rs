//! A node's cluster locks in virtual time: users, queue, demotion; what `braid_lock::glock` does
//! with threads. The protocol itself is the real `Dlock`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use braid_lock::dlock::{Action, Context, Dlock, Event as LockEvent, Seen, Time};
use braid_lock::{Me, Mode};

use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op};
use crate::node::{Purpose, State};
use crate::world::{Event, Pid, World};

/// The locks that a thread takes, one after the other, and how many it has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    locks: Vec<usize>,
    mode: Mode,
    got: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Draining,
    Calling,
    Ready,
    Releasing,
    /// The node leaves: the work is called, the record stays as it is.
    Keeping,
    Kept,
}

pub(crate) struct Lock {
    pub(crate) dlock: Dlock,
    number: LockNo,
    users: u32,
    writer: bool,
    queue: VecDeque<(usize, Mode)>,
    demand: Option<Mode>,
    demotion: Option<(Mode, Phase)>,
    timer: Option<Time>,
}

impl Lock {
    pub(crate) fn new(number: LockNo) -> Self {
        Self {
            dlock: Dlock::new(number),
            number,
            users: 0,
            writer: false,
            queue: VecDeque::new(),
            demand: None,
            demotion: None,
            timer: None,
        }
    }
    pub(crate) fn dlock_no(&self) -> LockNo {
        self.number
    }
    pub(crate) fn waits(&self) -> bool {
        self.dlock.want() > self.dlock.held()
    }
    /// Used, waited for, or being given up.
    pub(crate) fn in_use(&self) -> bool {
        let kept = self.demotion.is_none_or(|d| d.1 == Phase::Kept);
        self.users > 0 || !self.queue.is_empty() || !kept
    }
    /// Nothing under it is dirty, for good.
    pub(crate) fn settled(&self) -> bool {
        self.dlock.held() == Mode::Unlocked || self.demotion.is_some_and(|d| d.1 == Phase::Kept)
    }
    /// The most that a user relies on.
    pub(crate) fn used(&self) -> Mode {
        match (self.users, self.writer) {
            (0, _) => Mode::Unlocked,
            (_, false) => Mode::Shared,
            (_, true) => Mode::Exclusive,
        }
    }
    fn drained(&self, to: Mode) -> bool {
        self.used() <= to
    }
}

impl World {
    fn lock_mut(&mut self, pid: Pid, lock: usize) -> Option<&mut Lock> {
        self.processes.get_mut(pid)?.locks.get_mut(lock)
    }
    pub(crate) fn lock_waits(&self, pid: Pid, lock: usize) -> bool {
        self.processes.get(pid).and_then(|p| p.locks.get(lock)).is_some_and(Lock::waits)
    }

    /// A thread wants some locks, and takes them in the order of their numbers.
    pub(crate) fn thread_wants(&mut self, pid: Pid, thread: usize) {
        if self.processes.get(pid).is_none_or(|p| p.state != State::Running) {
            return;
        }
        let share = 1 + self.random.below(3);
        let mut locks: Vec<usize> =
            (0..usize::from(self.cluster.locks)).filter(|_| self.random.below(6) < share).collect();
        if locks.is_empty() {
            let lock = self.random.below(u64::from(self.cluster.locks));
            locks.push(usize::try_from(lock).unwrap_or(0));
        }
        let mode = *self.random.pick(&[Mode::Shared, Mode::Exclusive]);
        let Some(process) = self.processes.get_mut(pid) else { return };
        if let Some(plan) = process.plans.get_mut(thread) {
            *plan = Plan { locks, mode, got: 0 };
        }
        self.wants_next(pid, thread);
    }
    /// Queues up for the next lock of the plan, or begins when it has them all.
    fn wants_next(&mut self, pid: Pid, thread: usize) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(plan) = process.plans.get(thread).cloned() else { return };
        let next = plan.locks.get(plan.got).copied();
        if let Some(wait) = process.waits.get_mut(thread) {
            *wait = next.map(|_| now);
        }
        let Some(next) = next else {
            return self.use_begins(pid, thread, plan.locks, plan.mode);
        };
        if let Some(lock) = process.locks.get_mut(next) {
            lock.queue.push_back((thread, plan.mode));
        }
        self.pump(pid, next);
    }

    pub(crate) fn end_use(&mut self, pid: Pid, thread: usize) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(plan) = process.plans.get_mut(thread).map(std::mem::take) else { return };
        for lock in &plan.locks {
            if let Some(l) = process.locks.get_mut(*lock) {
                l.users -= 1;
                l.writer &= l.users > 0;
            }
        }
        self.report.uses += 1;
        // Once nothing goes wrong any more, little is to be seen.
        let pause = if self.faulty() { 40 } else { 300 };
        let pause = self.random.time(Duration::from_millis(pause));
        self.after(pause, Event::Thread { pid, thread });
        for lock in plan.locks {
            self.pump(pid, lock);
        }
    }

    pub(crate) fn lock_timer(&mut self, pid: Pid, lock: usize) {
        if let Some(l) = self.lock_mut(pid, lock) {
            l.timer = None;
        }
        self.dlock(pid, lock, LockEvent::Timer);
    }

    pub(crate) fn lock_hint(&mut self, pid: Pid, lock: usize) {
        self.lock_look(pid, lock);
    }

    pub(crate) fn lock_answered(&mut self, pid: Pid, lock: usize, answer: Answer) {
        let reading =
            self.lock_mut(pid, lock).is_some_and(|l| l.dlock.is_busy() && l.dlock.is_reading());
        let event = match answer {
            Answer::Failed | Answer::Fenced => LockEvent::Failed,
            Answer::Done(_) if !reading => LockEvent::Written,
            Answer::Done(bytes) => match self.seen(pid, lock, &bytes) {
                Some(seen) => LockEvent::Read(seen),
                None => return,
            },
            Answer::Mismatch(bytes) => match self.seen(pid, lock, &bytes) {
                Some(seen) => LockEvent::Mismatch(seen),
                None => return,
            },
        };
        self.dlock(pid, lock, event);
    }

    fn seen(&mut self, pid: Pid, lock: usize, bytes: &[u8]) -> Option<Seen> {
        match LockRecord::decode(bytes, self.disk.image.lock_no(lock)) {
            Err(e) => {
                self.fail(e.to_string());
                None
            }
            Ok(record) => {
                let process = self.processes.get(pid)?;
                let waiters = record.waiters.iter().map(|w| &w.life);
                let named = record.holders.iter().chain(waiters).chain(&record.openers);
                let wrong = self.cluster.sabotage == Some(Sabotage::BreakLiving);
                let mut dead: Vec<Me> = named
                    .copied()
                    .filter(|l| Some(*l) != process.me && (wrong || process.says_dead(*l)))
                    .collect();
                dead.dedup();
                Some(Seen { record: Arc::new(record), dead })
            }
        }
    }

    /// One step of the protocol, and what it asks for.
    pub(crate) fn dlock(&mut self, pid: Pid, lock: usize, event: LockEvent) {
        let (now, nonce) = (self.now, self.nonce());
        let Some(process) = self.processes.get_mut(pid) else { return };
        let (Some(me), Some(l)) = (process.me, process.locks.get_mut(lock)) else { return };
        let poll = (Duration::from_millis(1), Duration::from_millis(100));
        let actions = l.dlock.step(&Context { me, now, nonce, poll }, event);
        for action in actions {
            match action {
                Action::Read => {
                    self.submit(pid, Address::Lock(lock), Op::Read, Purpose::Lock(lock));
                }
                Action::CompareAndWrite { expected, new } => {
                    let encode = |record: &LockRecord| {
                        let mut bytes = vec![0; LEN];
                        record.encode(&mut bytes);
                        bytes
                    };
                    let op = Op::CompareAndWrite { expected: encode(&expected), new: encode(&new) };
                    self.submit(pid, Address::Lock(lock), op, Purpose::Lock(lock));
                }
                Action::Hint { to, .. } => self.send_hint(to, lock),
                Action::Granted(mode) => self.granted(pid, mode),
                Action::Demote(to) => {
                    if let Some(l) = self.lock_mut(pid, lock) {
                        l.demand = Some(l.demand.map_or(to, |d| d.meet(to)));
                    }
                }
            }
        }
        self.check_lock(lock);
        self.set_timer(pid, lock);
        self.pump(pid, lock);
    }

    fn granted(&mut self, pid: Pid, mode: Mode) {
        let work = self.processes.get(pid).and_then(|p| p.work.as_ref());
        if mode == Mode::Exclusive
            && self.cluster.sabotage != Some(Sabotage::ForgetGrants)
            && let Some(metadata) = work.and_then(|work| work.metadata.as_ref())
        {
            metadata.note_granted();
        }
    }

    fn set_timer(&mut self, pid: Pid, lock: usize) {
        let Some(l) = self.lock_mut(pid, lock) else { return };
        if let Some(at) = l.dlock.timer()
            && l.timer != Some(at)
        {
            l.timer = Some(at);
            self.at(at, Event::Timer { pid, lock });
        }
    }

    fn send_hint(&mut self, to: Me, lock: usize) {
        let Some(pid) = self.process_of(to) else { return };
        let mut copies = 1;
        let mut slow = Duration::from_micros(100);
        if self.faulty() {
            let lost = self.random.permille(self.cluster.faults.hints_lost);
            copies = if lost { 0 } else { 1 + u32::from(self.random.permille(100)) };
            if self.random.permille(100) {
                slow = self.cluster.faults.late_max;
            }
            // One that nobody sent.
            if self.random.permille(20) {
                let stray = self.random.below(u64::from(self.cluster.locks));
                let lock = usize::try_from(stray).unwrap_or(0);
                self.after(Duration::ZERO, Event::Hint { pid, lock });
            }
        }
        for _ in 0..copies {
            let pause = self.random.time(slow);
            self.after(pause, Event::Hint { pid, lock });
        }
    }

    /// Carries a lock as far as it goes now.
    pub(crate) fn pump(&mut self, pid: Pid, lock: usize) {
        while self.broken.is_none() && (self.serve(pid, lock) || self.demote(pid, lock)) {}
        self.pursue(pid, lock);
        self.leave_if_done(pid);
    }

    fn serve(&mut self, pid: Pid, lock: usize) -> bool {
        let Some(l) = self.lock_mut(pid, lock) else { return false };
        let Some((thread, mode)) = l.queue.front().copied() else { return false };
        let free = if mode == Mode::Exclusive { l.users == 0 } else { !l.writer };
        let admits = mode <= l.dlock.held() && l.demotion.is_none_or(|d| mode <= d.0);
        if !free || !admits {
            return false;
        }
        l.queue.pop_front();
        l.users += 1;
        l.writer = mode == Mode::Exclusive;
        if let Some(plan) = self.processes.get_mut(pid).and_then(|p| p.plans.get_mut(thread)) {
            plan.got += 1;
        }
        self.wants_next(pid, thread);
        true
    }

    fn demote(&mut self, pid: Pid, lock: usize) -> bool {
        let Some(l) = self.lock_mut(pid, lock) else { return false };
        let held = l.dlock.held();
        match l.demotion {
            None => match l.demand.take() {
                Some(to) if to < held => {
                    l.demotion = Some((to, Phase::Draining));
                    true
                }
                _ => false,
            },
            Some((to, Phase::Draining)) if l.drained(to) => {
                l.demotion = Some((to, Phase::Calling));
                self.demote_work(pid, lock, to);
                true
            }
            Some((to, Phase::Ready)) if !l.dlock.is_busy() => {
                l.demotion = Some((to, Phase::Releasing));
                self.dlock(pid, lock, LockEvent::Released { to, opened: false, written: None });
                true
            }
            Some((_, Phase::Releasing)) if !l.dlock.is_giving() => {
                l.demotion = None;
                true
            }
            _ => false,
        }
    }

    fn pursue(&mut self, pid: Pid, lock: usize) {
        let Some(l) = self.lock_mut(pid, lock) else { return };
        let (held, want) = (l.dlock.held(), l.dlock.want());
        let wanted = l.queue.front().map_or(Mode::Unlocked, |w| w.1);
        if wanted > held && wanted > want {
            self.dlock(pid, lock, LockEvent::Want(wanted));
        } else if want > held && wanted <= held {
            self.dlock(pid, lock, LockEvent::Unwant);
        }
    }

    /// A leaving node puts everything in place and keeps the record as it is.
    pub(crate) fn settle_for_leave(&mut self, pid: Pid, lock: usize) {
        if let Some(l) = self.lock_mut(pid, lock) {
            l.demotion = Some((Mode::Unlocked, Phase::Keeping));
            self.demote_work(pid, lock, Mode::Unlocked);
        }
    }

    /// What the lock covers is in place.
    pub(crate) fn demoted(&mut self, pid: Pid, lock: usize) {
        if let Some(l) = self.lock_mut(pid, lock)
            && let Some((to, phase @ (Phase::Calling | Phase::Keeping))) = l.demotion
        {
            let keep = phase == Phase::Keeping;
            l.demotion = Some((to, if keep { Phase::Kept } else { Phase::Ready }));
            self.pump(pid, lock);
        }
    }
}
