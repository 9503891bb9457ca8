//! What becomes of a lock: `step(context, event) -> actions`.
//!
//! Threads that wait for the lock take care of its record (they *drive* it) one after the other,
//! each while it is the head of the queue; what no waiting thread takes care of is done in a *visit*
//! by a demoter. Events that come from anywhere else ([`Event::Ended`], [`Event::Look`],
//! [`Event::Wished`], [`Event::Keep`], [`Event::Release`], [`Event::Drops`], [`Event::LetsIn`], [`Event::Stopped`]) ask
//! for nothing that blocks.

use std::time::Duration;

use super::fills::Fill;
use super::hold::Keep;
use super::ops::Demoted;
use super::state::{Admission, Demotion, Driver, Glock, Phase, Queued};
use crate::dlock::{self, Hint, Time};
use crate::error::LockError;
use crate::{Life, Mode};

/// After so many failures in a row waiting threads get the error.
const FAILURES_MAX: u32 = 8;

/// A damaged record is read again after this time, doubled with each failure, ...
const REST_MIN: Duration = Duration::from_millis(100);
/// ... at most after this.
const REST_MAX: Duration = Duration::from_mins(1);

/// Most messages about a lock that are kept.
const MAIL_MAX: usize = 64;

/// What the caller knows at a step.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// For the protocol's steps. Its nonce serves one write: a step asks for no more.
    pub record: dlock::Context,
    /// A number never used before for this lock.
    pub tenure: u64,
    /// Longest time a demanded lock is kept for local users that follow one another.
    pub hold_max: Duration,
    /// The node takes no more locks: it leaves, or has withdrawn.
    pub stopped: bool,
}

/// What happened.
#[derive(Debug)]
pub enum Event<W> {
    /// A thread in the queue looks what it can do: after [`Glock::queue_up`], when it was woken, and
    /// at the time of [`Glock::wait_until`]. Repeat it until it asks for nothing.
    Turn(W),
    /// A thread waits no longer.
    GaveUp(W),
    /// A use has ended, and [`Glock::end`] says that somebody can go on.
    Ended,
    /// Somebody says that the record has changed.
    Look,
    /// A message of another node: [`dlock::Event::Asked`] or [`dlock::Event::Given`].
    Message(dlock::Event),
    /// Another node wishes to have the lock, as its heartbeat says.
    Wished(Mode),
    /// Users of the lock know when they come back.
    Keep(Keep),
    /// Nobody here is likely to need the lock soon. Only if [`Glock::may_be_released`].
    Release,
    /// A demoter visits, as [`Action::Visit`] or [`Action::VisitAt`] asked for.
    Visit,
    /// Answer to [`Action::Record`].
    Record(dlock::Event),
    /// Answer to [`Action::Record`]: no answer, and why.
    RecordFailed(LockError),
    /// Answer to [`Action::Demote`]: what is left behind; `None`: the caches could not be made stable.
    Demoted(Option<Demoted>),
    /// Answer to [`Action::Forget`].
    Forgotten,
    /// Whoever carries out [`Action::Demote`] asks what the kernel is to drop next: [`Glock::drops`] says it then. With
    /// the bytes of pages whose fills wait for a thread.
    Drops(Vec<(u64, u64)>),
    /// It is about to do, or has done, what any fill may hold up.
    LetsIn(bool),
    /// Nobody here can get the lock before a repair.
    Hopeless(LockError),
    /// The manager stops: see [`Context::stopped`].
    Stopped,
}

/// What to do, in this order. At most one of [`Action::Record`], [`Action::Demote`] and
/// [`Action::Forget`] in an answer, always the last that matters to the lock.
#[derive(Debug)]
pub enum Action<W> {
    /// More of the lock is held than before: tell the caches, before anybody is let in.
    Granted(Mode),
    /// The thread has the lock.
    Admit(W, Admission),
    /// The thread does not get the lock.
    Refuse(W, LockError),
    /// The thread has a turn.
    Wake(W),
    /// A demoter is to visit, as soon as one can.
    Visit,
    /// A demoter is to visit then.
    VisitAt(Time),
    /// The other nodes are to be told that this one waits for the lock in this mode, or no longer.
    Wish(Option<Mode>),
    /// Send a hint.
    Hint(Life, Hint),
    /// A read or compare-and-write of the record. The answer is an event.
    Record(dlock::Action),
    /// Make stable what is cached under the lock, as far as `to` does not cover it. The answer is an
    /// event. Only in answer to a demoter.
    Demote {
        /// What is held.
        from: Mode,
        /// What is kept.
        to: Mode,
    },
    /// Forget what is cached under the lock. The answer is an event. Only in answer to a demoter.
    Forget,
    /// A demotion that other nodes had asked for is complete (`false`: one of an idle lock).
    HandedOver(bool),
    /// The lock came after another node had been asked for it.
    HandOverTook {
        /// The node that was asked.
        from: Life,
        /// From the ask to the grant.
        took: Duration,
        /// That node's answer brought it; otherwise the record says it.
        given: bool,
    },
    /// What [`Event::Release`] asked for is over, done or not, or the record is out of reach: nobody is to wait for it.
    Released,
    /// The record stays out of reach, and somebody needs it.
    Unreachable(LockError),
    /// The caches could not be made stable: the node must withdraw.
    Withdraw,
}

/// What a visit does next.
enum Next {
    /// Nothing, or nothing yet: whoever changes that asks for another visit.
    Leave,
    /// Look again.
    Again,
    /// Call the file system.
    Call { from: Mode, to: Mode },
    /// Write the record.
    Release,
}

type Out<W> = Vec<Action<W>>;

impl<W: Clone + PartialEq> Glock<W> {
    /// Takes an event, says what to do.
    ///
    /// # Panics
    /// If the caller breaks the protocol of [`Event`]: an answer to what was not asked.
    pub fn step(&mut self, cx: &Context, event: Event<W>) -> Vec<Action<W>> {
        let mut out = Vec::new();
        match event {
            Event::Turn(waiter) => self.turn(cx, &waiter, &mut out),
            Event::GaveUp(waiter) => {
                self.leave_queue(&waiter);
                // It may have been a truncation, which kept fills out.
                self.wake_fills_in_the_way(&mut out);
                // The next in the queue, or a demoter, goes on with the record.
                self.settle(cx, &mut out);
            }
            Event::Ended => {
                if self.fills.note_end(cx.record.now) {
                    self.wake_fills_in_the_way(&mut out);
                }
                self.settle(cx, &mut out);
            }
            Event::Look => {
                self.look = true;
                self.settle(cx, &mut out);
            }
            Event::Message(message) => {
                // What is lost costs time only.
                if self.mail.len() < MAIL_MAX {
                    self.mail.push_back(message);
                    self.settle(cx, &mut out);
                }
            }
            Event::Wished(mode) => {
                let in_the_way = !mode.beside().covers(self.dlock.held());
                if (in_the_way || self.pursuing()) && self.demotion.is_none() {
                    self.look = true;
                    self.settle(cx, &mut out);
                }
            }
            Event::Keep(keep) => {
                let sooner = self.hold.keep(keep);
                let kept = self.hold.kept_until(cx.record.now, cx.hold_max).is_some();
                if kept && self.demotion.is_some_and(|d| d.may_be_put_off()) {
                    self.demotion = None;
                    self.settle(cx, &mut out);
                } else if sooner && self.demand.is_some() {
                    // Not only at the time that was agreed upon.
                    self.visit = None;
                    self.settle(cx, &mut out);
                }
            }
            Event::Release => {
                self.releasing_idle = true;
                self.settle(cx, &mut out);
            }
            Event::Visit => self.begin_visit(cx, &mut out),
            Event::Record(answer) => self.answered(cx, answer, &mut out),
            Event::RecordFailed(error) => {
                self.error = Some(error);
                self.answered(cx, dlock::Event::Failed, &mut out);
            }
            Event::Demoted(left) => self.demoted(cx, left, &mut out),
            Event::Forgotten => self.forgotten(cx, &mut out),
            Event::Drops(unbegun) => self.drops_next(cx, unbegun, &mut out),
            Event::LetsIn(all) => self.lets_in(cx, all, &mut out),
            Event::Hopeless(error) => {
                self.refuse_all(&error, &mut out);
                self.settle(cx, &mut out);
            }
            Event::Stopped => {
                self.end_release(&mut out);
                out.extend(self.queue.iter().map(|queued| Action::Wake(queued.waiter.clone())));
            }
        }
        out
    }

    // A thread that waits.

    fn turn(&mut self, cx: &Context, waiter: &W, out: &mut Out<W>) {
        let Some(queued) = self.queue.iter().find(|q| q.waiter == *waiter) else { return };
        let request = queued.request;
        if self.admits_fill_at(&request).is_some_and(|at| at <= cx.record.now) {
            self.leave_queue(waiter);
            let (admission, widens) = self.admit_fill(&request, cx.record.now);
            out.push(Action::Admit(waiter.clone(), admission));
            if widens {
                self.wake_fills(out, |_, _, _| true);
            }
            self.settle(cx, out);
        } else if self.is_head(waiter)
            && let Some(event) = self.event_for_head(cx, request.cluster)
        {
            self.drive(cx, event, Driver::Waiter, out);
        } else {
            self.serve_queue(out);
        }
    }

    /// What the head of the queue does about the record.
    fn event_for_head(&mut self, cx: &Context, cluster: Mode) -> Option<dlock::Event> {
        if self.driver.is_some() || self.dlock.held().covers(cluster) {
            return None;
        }
        if !self.dlock.want().covers(cluster) {
            self.hold.wanted(cx.record.now);
            return Some(dlock::Event::Want(cluster));
        }
        self.news().or_else(|| self.timer_is_due(cx).then_some(dlock::Event::Timer))
    }

    /// What came from other nodes about the record.
    fn news(&mut self) -> Option<dlock::Event> {
        let look = |glock: &mut Self| std::mem::take(&mut glock.look).then_some(dlock::Event::Look);
        self.mail.pop_front().or_else(|| look(self))
    }

    /// The protocol asked to be called again by now.
    pub fn timer_is_due(&self, cx: &Context) -> bool {
        self.timer().is_some_and(|at| at <= cx.record.now)
    }
    /// When the protocol is to be called again.
    fn timer(&self) -> Option<Time> {
        self.dlock.timer().map(|at| at.max(self.rests_until))
    }

    /// When a waiting thread must look by itself, if nobody wakes it before.
    pub fn wait_until(&self, waiter: &W) -> Option<Time> {
        let request = self.queue.iter().find(|q| q.waiter == *waiter)?.request;
        let fill = self.admits_fill_at(&request);
        let pursues = self.is_head(waiter)
            && self.driver.is_none()
            && !self.dlock.held().covers(request.cluster);
        let timer = self.timer().filter(|_| pursues);
        fill.into_iter().chain(timer).min()
    }

    // The record.

    /// Feeds `event` to the protocol. Whether the answer of the record is waited for.
    fn drive(
        &mut self,
        cx: &Context,
        event: dlock::Event,
        driver: Driver,
        out: &mut Out<W>,
    ) -> bool {
        assert!(self.driver.is_none(), "two drivers of one record");
        self.driver = Some(driver);
        self.go_on(cx, event, out)
    }

    /// Goes on until the protocol has nothing to read or write.
    fn go_on(&mut self, cx: &Context, event: dlock::Event, out: &mut Out<W>) -> bool {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let before = self.dlock.held();
            let given = matches!(event, dlock::Event::Given { .. });
            let mut io = None;
            for action in self.dlock.step(&cx.record, event) {
                match action {
                    dlock::Action::Granted(mode) => {
                        out.push(Action::Granted(mode));
                        self.note_grant(before, cx.tenure);
                        self.hold.granted(cx.record.now);
                        out.extend(self.asked.take().map(|(from, at)| {
                            let took = cx.record.now.saturating_sub(at);
                            Action::HandOverTook { from, took, given }
                        }));
                    }
                    dlock::Action::Demote(to) => {
                        self.demand = Some(self.demand.map_or(to, |d| d.meet(to)));
                    }
                    dlock::Action::Hint { to, hint } => {
                        if matches!(hint, Hint::Ask { .. }) {
                            self.asked = Some((to, cx.record.now));
                        }
                        out.push(Action::Hint(to, hint));
                    }
                    io_action => io = Some(Action::Record(io_action)),
                }
            }
            // Those who waited come before those who ask for it back.
            self.serve_queue(out);
            if let Some(io) = io {
                out.push(io);
                return true;
            }
            next = self.news();
        }
        self.driver = None;
        self.report_failures(cx, out);
        self.publish_wish(out);
        self.settle(cx, out);
        false
    }

    fn answered(&mut self, cx: &Context, answer: dlock::Event, out: &mut Out<W>) {
        let driver = self.driver;
        assert!(driver.is_some(), "an answer to no question");
        let waiting = self.go_on(cx, answer, out);
        if !waiting && driver == Some(Driver::Demoter) {
            self.go_on_visiting(cx, out);
        }
    }

    /// A record stays out of reach: waiting threads get the error, and so does whoever waits until the idle lock is given
    /// up.
    fn report_failures(&mut self, cx: &Context, out: &mut Out<W>) {
        let failures = self.dlock.failures();
        if failures == 0 {
            (self.error, self.rests_until) = (None, Time::ZERO);
            return;
        }
        let Some(error) = self.error.clone() else { return };
        if error.is_lasting() {
            // To read what is damaged takes a demoter some time, and there may be many such records.
            let rest = REST_MIN.saturating_mul(1 << failures.min(10));
            self.rests_until = cx.record.now + rest.min(REST_MAX);
        }
        if error.is_lasting() || failures >= FAILURES_MAX {
            // It is tried again for ever. Not each failure is logged.
            let is_told = failures.is_power_of_two();
            if is_told && (!self.queue.is_empty() || self.demotion.is_some()) {
                out.push(Action::Unreachable(error.clone()));
            }
            self.refuse_all(&error, out);
            if self.releasing_idle && !std::mem::replace(&mut self.release_told, true) {
                out.push(Action::Released);
            }
        }
    }

    fn publish_wish(&mut self, out: &mut Out<W>) {
        let waits = self.pursuing() && self.dlock.timer().is_some();
        if waits != self.wished {
            self.wished = waits;
            out.push(Action::Wish(waits.then(|| self.dlock.want())));
        }
    }

    // What follows from every change.

    /// Lets in from the head of the queue all who may begin.
    fn serve_queue(&mut self, out: &mut Out<W>) {
        while let Some((waiter, admission)) = self.admit_head() {
            out.push(Action::Admit(waiter, admission));
        }
    }

    /// Ends all waiting with an error.
    fn refuse_all(&mut self, error: &LockError, out: &mut Out<W>) {
        out.extend(self.queue.drain(..).map(|q| Action::Refuse(q.waiter, error.clone())));
    }

    /// Wakes or calls everybody who can now go on.
    fn settle(&mut self, cx: &Context, out: &mut Out<W>) {
        self.serve_queue(out);
        if self.fills.are_under_way() {
            self.wake_fills(out, |n, _, at| n == 0 || at <= cx.record.now);
        } else {
            self.wake_fills_in_the_way(out);
        }
        if cx.stopped {
            self.end_release(out);
            return;
        }
        if !self.queued && !self.working {
            if self.has_work(cx) {
                self.queued = true;
                out.push(Action::Visit);
            } else if self.visit.is_none()
                && self.driver.is_none()
                && !self.attended()
                && let Some(at) = self.timer()
            {
                self.visit = Some(at);
                out.push(Action::VisitAt(at));
            }
        }
        if self.driver.is_none()
            && self.attended()
            && let Some(head) = self.queue.front()
        {
            out.push(Action::Wake(head.waiter.clone()));
        }
    }

    fn drops_next(&mut self, cx: &Context, unbegun: Vec<(u64, u64)>, out: &mut Out<W>) {
        self.next_drop(cx.record.now, unbegun);
        self.wake_fills_in_the_way(out);
    }

    fn lets_in(&mut self, cx: &Context, all: bool, out: &mut Out<W>) {
        self.fills.open_all(all.then_some(cx.record.now));
        self.wake_fills_in_the_way(out);
    }

    /// Those that may hold up what is being dropped are let in after some time, and nobody else would wake them. The
    /// first of all tells when the others are.
    fn wake_fills_in_the_way(&self, out: &mut Out<W>) {
        self.wake_fills(out, |n, fill, _| n == 0 || self.fills.may_be_in_the_way(fill));
    }

    /// Wakes those fills in the queue that may be let in at some time, and that are `wanted`: by their number, what they
    /// are, and when that is.
    fn wake_fills(&self, out: &mut Out<W>, wanted: impl Fn(usize, &Fill, Time) -> bool) {
        if !self.fills.are_let_in() {
            return;
        }
        let is_cut_waiting = self.is_cut_waiting();
        let fills = self.queue.iter().filter_map(|Queued { waiter, request }| {
            let at = self.admits_fill_beside(request, is_cut_waiting)?;
            Some((waiter, request.fill.as_ref()?, at))
        });
        let wanted = fills.enumerate().filter(|(n, (_, fill, at))| wanted(*n, fill, *at));
        out.extend(wanted.map(|(_, (waiter, ..))| Action::Wake(waiter.clone())));
    }

    /// Whether a demoter could do something about the lock now.
    fn has_work(&self, cx: &Context) -> bool {
        let unattended = self.driver.is_none()
            && !self.attended()
            && (self.look || !self.mail.is_empty() || self.pursuing() || self.timer_is_due(cx));
        let demotion = match self.demotion {
            None => self.visit.is_none() && (self.demand.is_some() || self.releasing_idle),
            Some(d) => match d.phase {
                Phase::Calling => false,
                Phase::Draining => self.drained(d.to),
                Phase::Ready => self.driver.is_none(),
                Phase::Releasing => self.driver.is_none() && !self.dlock.is_giving(),
            },
        };
        unattended || demotion
    }

    fn end_release(&mut self, out: &mut Out<W>) {
        let told = std::mem::take(&mut self.release_told);
        if std::mem::take(&mut self.releasing_idle) && !told {
            out.push(Action::Released);
        }
    }

    // A demoter's visit.

    fn begin_visit(&mut self, cx: &Context, out: &mut Out<W>) {
        self.queued = false;
        self.visit = None;
        if !self.working {
            self.working = true;
            self.go_on_visiting(cx, out);
        }
    }

    /// Goes on until there is nothing to do, or something must be answered first.
    fn go_on_visiting(&mut self, cx: &Context, out: &mut Out<W>) {
        if self.work_on(cx, out) {
            return;
        }
        self.working = false;
        if self.demotion.is_none() && self.dlock.held() == Mode::Unlocked {
            self.end_release(out);
        }
        self.settle(cx, out);
    }

    /// Carries the lock as far as it goes now; whether an answer is waited for.
    fn work_on(&mut self, cx: &Context, out: &mut Out<W>) -> bool {
        if !cx.stopped
            && let Some(event) = self.unattended_event(cx)
            && self.drive(cx, event, Driver::Demoter, out)
        {
            return true;
        }
        loop {
            if cx.stopped {
                self.end_release(out);
                return false;
            }
            match self.next_of_demotion(cx, out) {
                Next::Leave => return false,
                Next::Again => {}
                Next::Call { from, to } => {
                    out.push(Action::Demote { from, to });
                    return true;
                }
                Next::Release => {
                    if self.release(cx, out) {
                        return true;
                    }
                }
            }
        }
    }

    /// An event for the record that no waiting thread takes care of.
    fn unattended_event(&mut self, cx: &Context) -> Option<dlock::Event> {
        if self.driver.is_some() || self.attended() {
            return None;
        }
        if let Some(news) = self.news() {
            return Some(news);
        }
        if self.pursuing() {
            return Some(dlock::Event::Unwant);
        }
        self.timer_is_due(cx).then_some(dlock::Event::Timer)
    }

    fn next_of_demotion(&mut self, cx: &Context, out: &mut Out<W>) -> Next {
        let Some(demotion) = self.demotion else { return self.begin_demotion(cx, out) };
        let held = self.dlock.held();
        let to = self.demand.map_or(demotion.to, |d| d.meet(demotion.to));
        let drained = self.drained(to);
        if to < demotion.to {
            // Users may have begun until now under what was to be kept.
            self.fills.begin();
        }
        let set = |glock: &mut Self, phase| {
            glock.demotion = Some(Demotion { to, phase, ..demotion });
        };
        match demotion.phase {
            Phase::Calling => Next::Leave,
            Phase::Releasing => {
                if self.dlock.is_giving() || self.driver.is_some() {
                    return Next::Leave;
                }
                self.end_demotion(cx, out);
                Next::Again
            }
            Phase::Draining if !drained => {
                set(self, Phase::Draining);
                Next::Leave
            }
            Phase::Draining => {
                self.fills.call_begins();
                self.demotion =
                    Some(Demotion { from: held, to, phase: Phase::Calling, ..demotion });
                Next::Call { from: held, to }
            }
            Phase::Ready if !demotion.from.covers(held) => {
                // More is held than the file system was told, and a fill may have changed something under that.
                self.fills.begin();
                set(self, Phase::Draining);
                Next::Again
            }
            Phase::Ready if self.fills.are_left() || to < demotion.to || !drained => {
                set(self, Phase::Draining);
                Next::Again
            }
            Phase::Ready if self.driver.is_some() => Next::Leave,
            Phase::Ready => {
                set(self, Phase::Releasing);
                self.demand = None;
                Next::Release
            }
        }
    }

    fn begin_demotion(&mut self, cx: &Context, out: &mut Out<W>) -> Next {
        let held = self.dlock.held();
        let to = match self.demand {
            Some(to) if to < held => {
                if let Some(until) = self.hold.until(cx.record.now, self.uses, cx.hold_max) {
                    self.visit = Some(until);
                    out.push(Action::VisitAt(until));
                    return Next::Leave;
                }
                to
            }
            Some(_) => {
                self.demand = None;
                return Next::Again;
            }
            None if self.releasing_idle => {
                if held == Mode::Unlocked {
                    return Next::Leave;
                }
                if self.users() > 0 || !self.queue.is_empty() || self.driver.is_some() {
                    self.end_release(out);
                    return Next::Leave;
                }
                Mode::Unlocked
            }
            None => return Next::Leave,
        };
        let left = Demoted::default();
        self.demotion = Some(Demotion { from: held, to, phase: Phase::Draining, left });
        self.fills.begin();
        Next::Again
    }

    fn demoted(&mut self, cx: &Context, left: Option<Demoted>, out: &mut Out<W>) {
        let Some(demotion) = self.demotion.as_mut() else { return };
        assert_eq!(demotion.phase, Phase::Calling, "an answer to no call");
        self.fills.open_all(None);
        if let Some(left) = left {
            demotion.left = left;
            demotion.phase = Phase::Ready;
            self.go_on_visiting(cx, out);
        } else {
            // The lock stays held for ever: others must not see what is not stable. The visit does not
            // end, so nobody begins another before the node has withdrawn.
            self.end_release(out);
            out.push(Action::Withdraw);
        }
    }

    /// Begins to give the lock up; whether an answer is waited for.
    fn release(&mut self, cx: &Context, out: &mut Out<W>) -> bool {
        match self.demotion {
            Some(Demotion { to: Mode::Unlocked, .. }) => {
                // Nobody else drives meanwhile: the record is about to be written.
                self.driver = Some(Driver::Demoter);
                out.push(Action::Forget);
                true
            }
            _ => self.write_release(cx, out),
        }
    }
    fn forgotten(&mut self, cx: &Context, out: &mut Out<W>) {
        assert_eq!(self.driver.take(), Some(Driver::Demoter), "an answer to no call");
        if !self.write_release(cx, out) {
            self.go_on_visiting(cx, out);
        }
    }
    fn write_release(&mut self, cx: &Context, out: &mut Out<W>) -> bool {
        let Some(Demotion { to, left: Demoted { opened, written }, .. }) = self.demotion else {
            return false;
        };
        let event = dlock::Event::Released { to, opened, written };
        self.drive(cx, event, Driver::Demoter, out)
    }

    fn end_demotion(&mut self, cx: &Context, out: &mut Out<W>) {
        self.demotion = None;
        self.hold.released(cx.record.now);
        out.push(Action::HandedOver(!self.releasing_idle));
    }
}

#[cfg(test)]
mod tests;
