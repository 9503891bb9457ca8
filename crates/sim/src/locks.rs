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
use crate::disk::{Address, Answer, LEN, Op, lock_no};
use crate::node::{Purpose, State};
use crate::work::{WorkAction, WorkEvent};
use crate::world::{Event, Pid, World};

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

    pub(crate) fn thread_wants(&mut self, pid: Pid, thread: usize) {
        let lock = usize::try_from(self.random.below(u64::from(self.cluster.locks))).unwrap_or(0);
        let mode = *self.random.pick(&[Mode::Shared, Mode::Exclusive]);
        let now = self.now;
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.state != State::Running {
            return;
        }
        if let Some(wait) = process.waits.get_mut(thread) {
            *wait = Some(now);
        }
        if let Some(lock) = process.locks.get_mut(lock) {
            lock.queue.push_back((thread, mode));
        }
        self.pump(pid, lock);
    }

    pub(crate) fn end_use(&mut self, pid: Pid, thread: usize, lock: usize) {
        if let Some(l) = self.lock_mut(pid, lock) {
            l.users -= 1;
            l.writer &= l.users > 0;
        }
        self.report.uses += 1;
        let pause = self.random.time(Duration::from_millis(60));
        self.after(pause, Event::Thread { pid, thread });
        self.pump(pid, lock);
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
            Answer::Failed => LockEvent::Failed,
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
        match LockRecord::decode(bytes, lock_no(lock)) {
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
                Action::Granted(_) => {}
                Action::Demote(to) => {
                    if let Some(l) = self.lock_mut(pid, lock) {
                        l.demand = Some(l.demand.map_or(to, |d| d.min(to)));
                    }
                }
            }
        }
        self.check_lock(lock);
        self.set_timer(pid, lock);
        self.pump(pid, lock);
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
        if let Some(wait) = self.processes.get_mut(pid).and_then(|p| p.waits.get_mut(thread)) {
            *wait = None;
        }
        self.work(pid, WorkEvent::Use { thread, lock, mode });
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
                self.work(pid, WorkEvent::Demote { lock, to });
                true
            }
            Some((to, Phase::Ready)) if !l.dlock.is_busy() => {
                l.demotion = Some((to, Phase::Releasing));
                self.dlock(pid, lock, LockEvent::Released { to, opened: false });
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
            self.work(pid, WorkEvent::Demote { lock, to: Mode::Unlocked });
        }
    }

    /// One step of the work, and what it asks for.
    pub(crate) fn work(&mut self, pid: Pid, event: WorkEvent) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(work) = &mut process.work else { return };
        for action in work.step(event) {
            match action {
                WorkAction::Io { token, place, io, .. } => self.work_io(pid, token, place, io),
                WorkAction::UseDone { thread, lock } => {
                    let pause = self.random.time(Duration::from_millis(2));
                    self.after(pause, Event::EndUse { pid, thread, lock });
                }
                WorkAction::Demoted { lock } => {
                    if let Some(l) = self.lock_mut(pid, lock)
                        && let Some((to, phase)) = l.demotion
                    {
                        let keep = phase == Phase::Keeping;
                        l.demotion = Some((to, if keep { Phase::Kept } else { Phase::Ready }));
                        self.pump(pid, lock);
                    }
                }
                WorkAction::Recovered { dead } => self.recovered_by(pid, dead),
                WorkAction::Broken(what) => self.fail(what),
            }
        }
    }
}
