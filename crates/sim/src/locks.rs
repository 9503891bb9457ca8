//! A node's cluster locks in virtual time: the real `Glock` with the real `Dlock` in it. What the
//! threads of `braid_lock`'s manager do is done by events: a waiting thread's turn, a demoter's
//! visit, an answer of the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use braid_lock::dlock::{self, Hint, Seen, Time};
use braid_lock::glock::{
    Action, Admission, Context, Event as LockEvent, Fill, Glock, Request, Wish,
};
use braid_lock::{Held, Life, Local, LockError, Mode, StoreError};

use crate::Sabotage;
use crate::disk::{Address, Answer, LEN, Op};
use crate::files::Then;
use crate::lane::text_of;
use crate::node::{Purpose, State};
use crate::world::{Event, Pid, World};

/// As the manager's options have it.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// As the manager has it at first.
const ASK: Duration = Duration::from_millis(2);
/// What a thread fills: a page of its own.
const PAGE: u64 = 4096;
const HOLD_MAX: Duration = Duration::from_millis(2);
/// How long the kernel takes to drop pages, at most.
const DROPS: Duration = Duration::from_millis(10);
/// How long a woken thread takes to run.
const WAKES: Duration = Duration::from_micros(20);

/// The locks that a thread takes, one after the other, and those that it has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    locks: Vec<usize>,
    mode: Mode,
    alone: bool,
    /// As a page fill, or a truncation if it is alone: it does not wait for a demotion for longer than this.
    patience: Option<Duration>,
    got: Vec<Admission>,
    then: Then,
}
impl Plan {
    /// One lock, for something with its file.
    pub(crate) fn of(lock: usize, mode: Mode, then: Then) -> Self {
        let alone = matches!(then, Then::Unlink | Then::Reap);
        Self { locks: vec![lock], mode, alone, patience: None, got: Vec::new(), then }
    }
    fn local(&self) -> Local {
        if self.alone { Local::Exclusive } else { Local::Shared }
    }
}

/// The node leaves: what is cached is put in place, the record stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    Begun,
    Done,
}

pub(crate) struct Lock {
    glock: Glock<usize>,
    number: LockNo,
    /// What heartbeats say that this node waits for.
    wish: Option<Mode>,
    /// The waiting thread that talks to the record.
    driving: Option<usize>,
    keeping: Option<Keeping>,
    /// What it covers is being put in place for a demotion to this mode.
    called: Option<Mode>,
    /// What was held when that began the first time.
    called_from: Option<Mode>,
    /// A program had the file open when that began.
    pub(crate) opened_before: bool,
    /// When a waiting thread looks by itself, by its number.
    alarms: Vec<Option<Time>>,
}

impl Lock {
    pub(crate) fn new(number: LockNo, threads: usize) -> Self {
        Self {
            glock: Glock::new(number),
            number,
            wish: None,
            driving: None,
            keeping: None,
            called: None,
            called_from: None,
            opened_before: false,
            alarms: vec![None; threads],
        }
    }
    pub(crate) fn held(&self) -> Mode {
        self.glock.dlock().held()
    }
    pub(crate) fn wish(&self) -> Option<(LockNo, Mode)> {
        self.wish.map(|mode| (self.number, mode))
    }
    pub(crate) fn number(&self) -> LockNo {
        self.number
    }
    pub(crate) fn known(&self) -> Option<&LockRecord> {
        self.glock.dlock().known()
    }
    /// As which mode a wish is taken.
    pub(crate) fn mode_for(&self, wish: Wish, me: Life) -> Mode {
        self.glock.mode_for(wish, me)
    }
    /// Used, waited for, or being given up.
    pub(crate) fn in_use(&self) -> bool {
        self.glock.users() > 0
            || self.glock.waiters().next().is_some()
            || self.glock.is_worked_on()
            || self.keeping == Some(Keeping::Begun)
    }
    /// Nothing under it is dirty, for good.
    pub(crate) fn settled(&self) -> bool {
        self.held() == Mode::Unlocked || self.keeping == Some(Keeping::Done)
    }
    /// A user relies on more than is held.
    pub(crate) fn is_overused(&self) -> bool {
        !self.glock.drained(self.held())
    }
}

impl World {
    pub(crate) fn lock_mut(&mut self, pid: Pid, lock: usize) -> Option<&mut Lock> {
        self.processes.get_mut(pid)?.locks.get_mut(lock)
    }
    pub(crate) fn lock_waits(&self, pid: Pid, lock: usize) -> bool {
        let lock = self.processes.get(pid).and_then(|p| p.locks.get(lock));
        lock.is_some_and(|l| l.wish.is_some())
    }

    // What threads do.

    /// A thread wants some locks, and takes them in the order of their numbers.
    pub(crate) fn thread_wants(&mut self, pid: Pid, thread: usize) {
        if self.processes.get(pid).is_none_or(|p| p.state != State::Running) {
            return;
        }
        self.release_idle(pid);
        if let Some(file_plan) = self.file_plan(pid) {
            if let Some(plan) = self.plan_mut(pid, thread) {
                *plan = file_plan;
            }
            return self.wants_next(pid, thread);
        }
        let share = 1 + self.random.below(3);
        let mut locks: Vec<usize> =
            (0..usize::from(self.cluster.locks)).filter(|_| self.random.below(6) < share).collect();
        if locks.is_empty() {
            let lock = self.random.below(u64::from(self.cluster.locks));
            locks.push(usize::try_from(lock).unwrap_or(0));
        }
        let mode = *self.random.pick(&[Mode::Shared, Mode::Exclusive]);
        let alone = mode == Mode::Exclusive || self.random.below(4) == 0;
        // A fill has no other lock, nor has a truncation.
        let fill = locks.len() == 1 && self.random.below(2) == 0;
        let patience = fill.then(|| self.random.time(Duration::from_millis(2)));
        let Some(process) = self.processes.get_mut(pid) else { return };
        if let Some(plan) = process.plans.get_mut(thread) {
            *plan = Plan { locks, mode, alone, patience, got: Vec::new(), then: Then::Use };
        }
        self.wants_next(pid, thread);
    }
    fn plan_mut(&mut self, pid: Pid, thread: usize) -> Option<&mut Plan> {
        self.processes.get_mut(pid)?.plans.get_mut(thread)
    }
    /// As the bound of locks in memory does.
    fn release_idle(&mut self, pid: Pid) {
        if self.random.below(32) != 0 {
            return;
        }
        let lock = self.random.below(u64::from(self.cluster.locks));
        let lock = usize::try_from(lock).unwrap_or(0);
        if self.lock_mut(pid, lock).is_some_and(|l| l.glock.may_be_released()) {
            self.step(pid, lock, LockEvent::Release);
        }
    }

    /// Takes the next locks of the plan, queues up for one that is not to be had at once, or begins
    /// when it has them all.
    pub(crate) fn wants_next(&mut self, pid: Pid, thread: usize) {
        loop {
            let (now, clock) = (self.now, self.clock(pid));
            let Some(process) = self.processes.get_mut(pid) else { return };
            let Some(plan) = process.plans.get_mut(thread) else { return };
            let next = plan.locks.get(plan.got.len()).copied();
            if let Some(wait) = process.waits.get_mut(thread) {
                *wait = next.map(|_| now);
            }
            let Some(next) = next else {
                let (locks, mode, then) = (plan.locks.clone(), plan.mode, plan.then);
                if let (Some(lock), false) = (locks.first(), then == Then::Use) {
                    return self.file_use_begins(pid, thread, (*lock, then));
                }
                return self.use_begins(pid, thread, locks, mode);
            };
            let Some(lock) = process.locks.get_mut(next) else { return };
            let (cluster, local) = (plan.mode, plan.local());
            if let Some(admission) = lock.glock.try_admit(cluster, local) {
                plan.got.push(admission);
                continue;
            }
            let page = thread as u64 * PAGE;
            let held = match cluster {
                Mode::Exclusive => Held::Cut,
                _ => Held::Filled(page, page + PAGE),
            };
            let fill = plan.patience.map(|patience| Fill { since: clock, patience, held });
            lock.glock.queue_up(thread, Request { cluster, local, fill, passes: false });
            return self.step(pid, next, LockEvent::Turn(thread));
        }
    }

    pub(crate) fn end_use(&mut self, pid: Pid, thread: usize) {
        self.report.uses += 1;
        // Once nothing goes wrong any more, little is to be seen.
        let pause = if self.faulty() { 40 } else { 300 };
        let pause = self.random.time(Duration::from_millis(pause));
        self.after(pause, Event::Thread { pid, thread });
        self.let_go(pid, thread);
    }
    /// A thread gives up what it has.
    pub(crate) fn let_go(&mut self, pid: Pid, thread: usize) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(plan) = process.plans.get_mut(thread).map(std::mem::take) else { return };
        for (lock, admission) in plan.locks.into_iter().zip(plan.got) {
            if self.lock_mut(pid, lock).is_some_and(|l| l.glock.end(&admission)) {
                self.step(pid, lock, LockEvent::Ended);
            }
        }
        self.leave_if_done(pid);
    }
    /// A thread does without the locks of its plan.
    fn gives_up_plan(&mut self, pid: Pid, thread: usize) {
        if self.is_reaper(thread) {
            self.waits_no_more(pid, thread);
            return self.cannot_reap(pid);
        }
        if thread >= usize::from(self.cluster.threads) {
            return self.cannot_lock_to_recover(pid, thread);
        }
        self.waits_no_more(pid, thread);
        let pause = self.random.time(Duration::from_millis(40));
        self.after(pause, Event::Thread { pid, thread });
        self.let_go(pid, thread);
    }

    fn waits_no_more(&mut self, pid: Pid, thread: usize) {
        if let Some(wait) = self.processes.get_mut(pid).and_then(|p| p.waits.get_mut(thread)) {
            *wait = None;
        }
    }

    /// A waiting thread was woken, or looks by itself; now and then it waits no longer.
    pub(crate) fn turn(&mut self, pid: Pid, lock: usize, thread: usize) {
        let recovers = thread >= usize::from(self.cluster.threads);
        let interrupted = !recovers && self.faulty() && self.random.permille(5);
        let now = self.clock(pid);
        let Some(l) = self.lock_mut(pid, lock) else { return };
        if let Some(alarm) = l.alarms.get_mut(thread).filter(|alarm| **alarm == Some(now)) {
            *alarm = None;
        }
        let waits = l.glock.waiters().any(|waiter| *waiter == thread);
        if !waits || l.driving == Some(thread) {
            return;
        }
        if interrupted {
            self.step(pid, lock, LockEvent::GaveUp(thread));
            self.gives_up_plan(pid, thread);
        } else {
            self.step(pid, lock, LockEvent::Turn(thread));
        }
    }
    fn set_alarm(&mut self, pid: Pid, lock: usize, thread: usize) {
        let Some(l) = self.lock_mut(pid, lock) else { return };
        let Some(at) = l.glock.wait_until(&thread) else { return };
        let Some(alarm) = l.alarms.get_mut(thread).filter(|alarm| **alarm != Some(at)) else {
            return;
        };
        *alarm = Some(at);
        let at = at + self.suspended(pid);
        self.at(at, Event::Turn { pid, lock, thread });
    }
    /// Whatever was waited for by the clock may come at another time: everybody looks again then.
    pub(crate) fn wake_all(&mut self, pid: Pid, at: Time) {
        for lock in 0..usize::from(self.cluster.locks) {
            let Some(l) = self.lock_mut(pid, lock) else { continue };
            l.alarms.fill(None);
            let waiters: Vec<usize> = l.glock.waiters().copied().collect();
            for thread in waiters {
                self.at(at, Event::Turn { pid, lock, thread });
            }
            self.at(at, Event::Visit { pid, lock });
        }
    }

    /// Now and then a node presumes that a lock of which it knows nothing is held by some other one, dead or alive.
    fn presumed(&self, pid: Pid, nonce: u64) -> Option<Life> {
        let others = self.processes.len() as u64;
        let other = usize::try_from((nonce / 3) % others.max(1)).ok()?;
        let life = self.processes.get(other)?.me?;
        (nonce.is_multiple_of(3) && other != pid).then_some(life)
    }

    // What the step says.

    /// One step of a lock, and what it asks for.
    pub(crate) fn step(&mut self, pid: Pid, lock: usize, event: LockEvent<usize>) {
        let (now, nonce) = (self.clock(pid), self.nonce());
        let presumed = self.presumed(pid, nonce);
        let Some(process) = self.processes.get_mut(pid) else { return };
        let (Some(me), Some(l)) = (process.me, process.locks.get_mut(lock)) else { return };
        let turn = if let LockEvent::Turn(thread) = event { Some(thread) } else { None };
        let cx = Context {
            record: dlock::Context { me, now, nonce, poll: POLL, ask: Some(ASK), presumed },
            tenure: nonce,
            hold_max: HOLD_MAX,
            stopped: process.stopped,
        };
        let mut call = None;
        for action in l.glock.step(&cx, event) {
            if let Some(asked) = self.follow(pid, lock, action) {
                call = Some(asked);
            }
        }
        self.check_lock(lock);
        let records = matches!(call, Some(Action::Record(_)));
        if let Some(l) = self.lock_mut(pid, lock) {
            l.driving = if records { l.driving.or(turn) } else { l.driving };
            if !records && let Some(thread) = l.driving.take() {
                self.wake(pid, lock, thread);
            }
        }
        if let Some(thread) = turn.filter(|_| !records) {
            self.set_alarm(pid, lock, thread);
        }
        if let Some(call) = call {
            self.call(pid, lock, call);
        }
        self.leave_if_done(pid);
    }
    fn wake(&mut self, pid: Pid, lock: usize, thread: usize) {
        let pause = self.random.time(WAKES);
        self.after(pause, Event::Turn { pid, lock, thread });
    }

    /// Does what is done at once; gives back what is answered later.
    fn follow(&mut self, pid: Pid, lock: usize, action: Action<usize>) -> Option<Action<usize>> {
        match action {
            Action::Granted(mode) => self.granted(pid, mode),
            Action::Admit(thread, admission) => {
                if let Some(plan) =
                    self.processes.get_mut(pid).and_then(|p| p.plans.get_mut(thread))
                {
                    plan.got.push(admission);
                }
                let pause = self.random.time(WAKES);
                self.after(pause, Event::Admitted { pid, thread });
            }
            Action::Refuse(thread, _) => self.after(WAKES, Event::Refused { pid, thread }),
            Action::Wake(thread) => self.wake(pid, lock, thread),
            Action::Visit => {
                let busy = self.faulty() && self.random.permille(50);
                let most = if busy { Duration::from_millis(5) } else { WAKES };
                let pause = self.random.time(most);
                self.after(pause, Event::Visit { pid, lock });
            }
            Action::VisitAt(at) => {
                let at = at + self.suspended(pid);
                self.at(at, Event::Visit { pid, lock });
            }
            Action::Wish(mode) => {
                if let Some(l) = self.lock_mut(pid, lock) {
                    l.wish = mode;
                }
            }
            Action::Hint(to, hint) => self.send_hint(pid, to, lock, &hint),
            Action::Withdraw => self.gives_up(pid, &"what is cached cannot be put in place"),
            Action::HandedOver(_) => {
                if let Some(l) = self.lock_mut(pid, lock) {
                    l.called_from = None;
                }
            }
            Action::HandOverTook { .. } | Action::Released | Action::Unreachable(_) => {}
            call @ (Action::Record(_) | Action::Demote { .. } | Action::Forget) => {
                return Some(call);
            }
        }
        None
    }

    fn call(&mut self, pid: Pid, lock: usize, call: Action<usize>) {
        match call {
            Action::Record(dlock::Action::CompareAndWrite { expected, new }) => {
                let encode = |record: &LockRecord| {
                    let mut bytes = vec![0; LEN];
                    record.encode(&mut bytes);
                    bytes
                };
                let op = Op::CompareAndWrite { expected: encode(&expected), new: encode(&new) };
                self.submit(pid, Address::Lock(lock), op, Purpose::Lock(lock));
            }
            Action::Record(_) => {
                self.submit(pid, Address::Lock(lock), Op::Read, Purpose::Lock(lock));
            }
            Action::Demote { from, to } => {
                self.begins_to_give_up(pid, lock);
                let trusts = self.cluster.sabotage == Some(Sabotage::TrustFirstHold);
                let Some(l) = self.lock_mut(pid, lock) else { return };
                l.called = Some(to);
                let first = *l.called_from.get_or_insert(from);
                let from = if trusts { first } else { from };
                self.step(pid, lock, LockEvent::Drops(Vec::new()));
                let pause = self.random.time(DROPS);
                self.after(pause, Event::Dropped { pid, lock, from });
            }
            Action::Forget => {
                self.forget(pid, lock);
                self.step(pid, lock, LockEvent::Forgotten);
            }
            _ => {}
        }
    }
    /// Nothing is cached any more under a lock.
    fn forget(&mut self, pid: Pid, lock: usize) {
        let owner = self.disk.image.lock_no(lock);
        let work = self.processes.get(pid).and_then(|p| p.work.as_ref());
        let Some(metadata) = work.and_then(|work| work.metadata.as_ref()) else { return };
        // It checks for itself that nothing is lost.
        let dropped = catch_unwind(AssertUnwindSafe(|| metadata.drop_owner(owner)));
        if let Err(panic) = dropped {
            self.fail(format!("process {pid} forgets lock {lock}: {}", text_of(&*panic)));
        }
    }

    /// The kernel has dropped what it had under a lock of which `from` is held, and drops what was filled meanwhile. A
    /// page whose fill is not answered yet keeps it from that: the rest is left to the next call. Then what is dirty is
    /// written.
    pub(crate) fn dropped(&mut self, pid: Pid, lock: usize, from: Mode) {
        while self.lock_mut(pid, lock).is_some_and(|l| l.glock.users() == 0) {
            self.drop_pages_of(pid, lock);
            self.step(pid, lock, LockEvent::Drops(Vec::new()));
            if self.lock_mut(pid, lock).is_none_or(|l| l.glock.drops().is_none()) {
                break;
            }
        }
        // Under less nothing is.
        if from == Mode::Exclusive {
            self.demote_work(pid, lock);
        } else {
            self.demoted(pid, lock);
        }
    }

    fn drop_pages_of(&mut self, pid: Pid, lock: usize) {
        if let Some(process) = self.processes.get_mut(pid) {
            process.kernel.drop_lock(lock);
        }
    }

    // Recoveries take locks, too: at their end only.

    /// Threads that use locks, the one that ends recoveries, one for each slot that is recovered, and where
    /// there are files the one that deletes them.
    pub(crate) fn all_threads(&self) -> usize {
        let usual = usize::from(self.cluster.threads) + 1 + usize::from(self.cluster.slots);
        usual + usize::from(self.cluster.files)
    }
    fn is_reaper(&self, thread: usize) -> bool {
        self.cluster.files && thread == self.reaper()
    }
    /// What a dead node had begun is ended under a lock.
    pub(crate) fn finish_recovery(&mut self, pid: Pid) {
        let thread = usize::from(self.cluster.threads);
        self.lock_for_recovery(pid, thread);
    }
    /// As it once was: what a recovery begins with is a lock.
    pub(crate) fn lock_to_recover(&mut self, pid: Pid, dead: Life) {
        let thread = usize::from(self.cluster.threads) + 1 + usize::from(dead.slot.0);
        if let Some(process) = self.processes.get_mut(pid) {
            process.locking_for.retain(|life| life.slot != dead.slot);
            process.locking_for.push(dead);
        }
        self.lock_for_recovery(pid, thread);
    }
    fn lock_for_recovery(&mut self, pid: Pid, thread: usize) {
        let lock = self.random.below(u64::from(self.cluster.locks));
        let locks = vec![usize::try_from(lock).unwrap_or(0)];
        let Some(process) = self.processes.get_mut(pid) else { return };
        // Later ones only replay.
        if process.state != State::Running {
            return self.cannot_lock_to_recover(pid, thread);
        }
        if let Some(plan) = process.plans.get_mut(thread) {
            *plan = Plan { locks, mode: Mode::Exclusive, alone: true, ..Plan::default() };
        }
        self.wants_next(pid, thread);
    }
    pub(crate) fn has_locked_to_recover(&mut self, pid: Pid, thread: usize) {
        self.let_go(pid, thread);
        match self.dead_of(pid, thread) {
            None => self.recovery_finished(pid, true),
            Some(dead) => self.begin_recovery(pid, dead),
        }
    }
    fn cannot_lock_to_recover(&mut self, pid: Pid, thread: usize) {
        self.waits_no_more(pid, thread);
        self.let_go(pid, thread);
        match self.dead_of(pid, thread) {
            None => self.recovery_finished(pid, false),
            Some(dead) => self.recovered_by(pid, dead, false),
        }
    }
    /// The dead node that a thread recovers, other than the thread that ends recoveries.
    fn dead_of(&self, pid: Pid, thread: usize) -> Option<Life> {
        let slot = thread.checked_sub(usize::from(self.cluster.threads) + 1)?;
        let mut all = self.processes.get(pid)?.locking_for.iter();
        all.find(|life| usize::from(life.slot.0) == slot).copied()
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

    fn send_hint(&mut self, sender: Pid, to: Life, lock: usize, hint: &Hint) {
        let Some(pid) = self.process_of(to) else { return };
        let Some(from) = self.processes.get(sender).and_then(|p| p.me) else { return };
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
                let hint = if self.random.permille(500) {
                    Hint::Wanted(Mode::Exclusive)
                } else {
                    Hint::Ask { mode: Mode::Exclusive, ticket: stray }
                };
                self.after(Duration::ZERO, Event::Hint { pid, from, lock, hint });
            }
        }
        for _ in 0..copies {
            let pause = self.random.time(slow);
            self.after(pause, Event::Hint { pid, from, lock, hint: hint.clone() });
        }
    }
    /// A message arrives, as `Membership` takes it.
    pub(crate) fn heard(&mut self, pid: Pid, from: Life, lock: usize, hint: Hint) {
        let Some(process) = self.processes.get(pid) else { return };
        if process.says_dead(from) {
            return;
        }
        let event = match hint {
            Hint::Wanted(_) | Hint::Granted => LockEvent::Look,
            // There are no program locks here.
            Hint::YourTurn | Hint::Look => return,
            Hint::Ask { mode, ticket } => {
                LockEvent::Message(dlock::Event::Asked { from, mode, ticket })
            }
            Hint::Give { ticket, record } => {
                let Some(dead) = self.dead_in(pid, &record) else { return };
                let seen = Seen { record, dead };
                LockEvent::Message(dlock::Event::Given { ticket, seen })
            }
        };
        self.step(pid, lock, event);
    }

    // Answers.

    pub(crate) fn lock_answered(&mut self, pid: Pid, lock: usize, answer: Answer) {
        let Some(l) = self.lock_mut(pid, lock) else { return };
        let (reading, number) = (l.glock.dlock().is_reading(), l.number);
        let event = match answer {
            Answer::Failed | Answer::Fenced => {
                let why = std::io::Error::other("the device failed");
                let source = StoreError::Device(Arc::new(why));
                LockEvent::RecordFailed(LockError::Store { lock: number, source })
            }
            Answer::Done(_) if !reading => LockEvent::Record(dlock::Event::Written),
            Answer::Done(bytes) => match self.seen(pid, lock, &bytes) {
                Some(seen) => LockEvent::Record(dlock::Event::Read(seen)),
                None => return,
            },
            Answer::Mismatch(bytes) => match self.seen(pid, lock, &bytes) {
                Some(seen) => LockEvent::Record(dlock::Event::Mismatch(seen)),
                None => return,
            },
        };
        self.step(pid, lock, event);
    }

    fn seen(&mut self, pid: Pid, lock: usize, bytes: &[u8]) -> Option<Seen> {
        match LockRecord::decode(bytes, self.disk.image.lock_no(lock)) {
            Err(e) => {
                self.fail(e.to_string());
                None
            }
            Ok(record) => {
                let dead = self.dead_in(pid, &record)?;
                Some(Seen { record: Arc::new(record), dead })
            }
        }
    }
    /// The lives in a record that a process knows to be dead.
    fn dead_in(&self, pid: Pid, record: &LockRecord) -> Option<Vec<Life>> {
        let process = self.processes.get(pid)?;
        let waiters = record.waiters.iter().map(|w| &w.life);
        let named = record.holders.iter().chain(waiters).chain(&record.openers);
        let wrong = self.cluster.sabotage == Some(Sabotage::BreakLiving);
        let mut dead: Vec<Life> = named
            .copied()
            .filter(|l| Some(*l) != process.me && (wrong || process.says_dead(*l)))
            .collect();
        dead.dedup();
        Some(dead)
    }

    /// A thread that the lock was refused to tries again later.
    pub(crate) fn refused_lock(&mut self, pid: Pid, thread: usize) {
        self.gives_up_plan(pid, thread);
    }

    /// A leaving node puts everything in place and keeps the record as it is.
    pub(crate) fn settle_for_leave(&mut self, pid: Pid, lock: usize) {
        if let Some(l) = self.lock_mut(pid, lock) {
            l.keeping = Some(Keeping::Begun);
            self.demote_work(pid, lock);
        }
    }

    /// What the lock covers is in place.
    pub(crate) fn demoted(&mut self, pid: Pid, lock: usize) {
        let Some(l) = self.lock_mut(pid, lock) else { return };
        if l.keeping == Some(Keeping::Begun) {
            l.keeping = Some(Keeping::Done);
            self.drop_pages_of(pid, lock);
            self.forget(pid, lock);
            self.leave_if_done(pid);
        } else if let Some(to) = l.called.take() {
            let left = self.left_behind(pid, lock, to);
            self.step(pid, lock, LockEvent::Demoted(Some(left)));
        }
    }
}
