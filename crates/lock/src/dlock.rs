//! The protocol of one device lock at one node: a pure state machine. It does no I/O, reads no
//! clock and starts nothing; the blocking manager, the exhaustive search and the simulator all
//! run this same `step`.
//!
//! ```text
//!                     Want                        record gives it
//!   held = UN ----------------> queue up / wait ------------------> held = SH | CW | EX
//!       ^                          poll, hint                            |
//!       |                                                  somebody waits: Action::Demote
//!       |   record no longer                                             |
//!       +---- names us ------- giving (belief already lowered) <----- Released
//! ```
//!
//! Where messages reach the node that holds a lock, the lock changes hands by one compare-and-write and no read:
//!
//! ```text
//!   asker                        holder
//!     |---- Ask(mode, ticket) ---->|  gives up what it has, then writes the asker into the record
//!     |<-- Give(ticket, record) ---|  once that write is confirmed
//! ```
//!
//! An ask that is not answered in time is followed by the way above. A [`Hint::Give`] is believed only if it has the
//! ticket of the ask that is outstanding, and nothing is in flight. A ticket ends with a grant, with the wish, and with
//! any write of ours, and we leave the holders only by a write of ours: so whatever we believe the record gives us.
//!
//! Invariants:
//! * `held <= mode given by the record`, always: it is lowered before a write that gives up is
//!   issued, and raised only after a record was seen that grants it;
//! * once giving up has begun it is carried through: a write whose outcome is unknown may land at
//!   any time, until a different nonce is seen in the record (nonces never return, so a late
//!   write against the old one can then never land);
//! * every write hands the lock to the first waiters in the same compare-and-write, drops the
//!   dead, and moves nobody past a living waiter;
//! * at most one read or write is in flight.

use std::sync::Arc;
use std::time::Duration;

use braid_format::LockNo;
use braid_format::lock_record::{LockRecord, Mode, Waiter};

use crate::Life;

/// A moment: time since an origin that the caller chose.
pub type Time = Duration;

/// A message about a lock. For speed only: each may be lost, doubled or late, and all but [`Hint::Give`] may be
/// forged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Hint {
    /// The sender waits for the lock in this mode.
    Wanted(Mode),
    /// The sender has handed the lock to the receiver, or knows that the receiver's view of the record is old:
    /// the receiver is to read the record.
    Granted,
    /// The sender wants the lock in this mode and is not in the record's queue. The receiver, who has the lock, is to
    /// write the sender into the record when it gives the lock up.
    Ask {
        /// What is wanted.
        mode: Mode,
        /// A number that the answer repeats. Never used before.
        ticket: u64,
    },
    /// A write of the sender, which is confirmed, made the receiver a holder.
    Give {
        /// Of the ask.
        ticket: u64,
        /// What was written.
        record: Arc<LockRecord>,
    },
    /// Nothing about the lock itself: the sender changed what stands under it, and something that the receiver
    /// waits for there is free, or will soon be.
    YourTurn,
    /// Nothing about a lock: the sender's heartbeat says something new, and the receiver is to read it.
    Look,
}

/// A record as it was seen, and which of the lives in it are dead and recovered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The record.
    pub record: Arc<LockRecord>,
    /// Lives named in it whose holds may be broken.
    pub dead: Vec<Life>,
}

/// What the caller knows at a step.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// This node.
    pub me: Life,
    /// Now.
    pub now: Time,
    /// A number never used before in any record: for the write that this step may issue.
    pub nonce: u64,
    /// Shortest and longest pause between two looks at a record that is waited for.
    pub poll: (Duration, Duration),
    /// Messages reach the other holder of the lock, if there is one alone: how long the answer to an ask is waited
    /// for. `None`: nobody is asked.
    pub ask: Option<Duration>,
    /// Nothing is known of the lock, and this node probably holds it: it is asked at once, as `ask` says.
    pub presumed: Option<Life>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Threads of this node want at least this mode.
    Want(Mode),
    /// Nobody here waits any more.
    Unwant,
    /// The layer above has given up what exceeds `to`: all of it is in place and stable.
    /// Only below what is held, and not while giving up.
    Released {
        /// What is kept.
        to: Mode,
        /// A program here has the file open.
        opened: bool,
        /// What the record is to say of the last change under a concurrent hold: nanoseconds since
        /// 1970. From an exclusive hold it stands as it is given, from a concurrent one if it is later
        /// than what stands; `None`: stays.
        written: Option<u64>,
    },
    /// Somebody says that the record has changed.
    Look,
    /// [`Hint::Ask`] came, from a life that was never known to be dead.
    Asked {
        /// From whom.
        from: Life,
        /// What is wanted.
        mode: Mode,
        /// Its ticket.
        ticket: u64,
    },
    /// [`Hint::Give`] came.
    Given {
        /// Of the ask.
        ticket: u64,
        /// The record that stood.
        seen: Seen,
    },
    /// The moment of [`Dlock::timer`] has come.
    Timer,
    /// Answer to [`Action::Read`].
    Read(Seen),
    /// Answer to [`Action::CompareAndWrite`]: it stands.
    Written,
    /// Answer to [`Action::CompareAndWrite`]: this stood there instead.
    Mismatch(Seen),
    /// The read failed, or the outcome of the write is unknown.
    Failed,
}

/// What to do. At most one of `Read` and `CompareAndWrite` in an answer, and no further one until
/// it was answered by an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the record.
    Read,
    /// Write `new` if `expected` stands.
    CompareAndWrite {
        /// What was seen last.
        expected: Arc<LockRecord>,
        /// What shall stand.
        new: Arc<LockRecord>,
    },
    /// Send a hint.
    Hint {
        /// To whom.
        to: Life,
        /// Which.
        hint: Hint,
    },
    /// The lock is now held in this mode.
    Granted(Mode),
    /// Others wait: give up what exceeds this, then say `Released`.
    Demote(Mode),
}

/// What was released and is not yet in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Giving {
    to: Mode,
    opened: bool,
    written: Option<u64>,
}

/// Another node's [`Hint::Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ask {
    life: Life,
    mode: Mode,
    ticket: u64,
    /// The write in flight puts it into the record.
    in_write: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Io {
    Reading,
    Writing { expected: Arc<LockRecord>, new: Arc<LockRecord> },
}

/// One device lock at one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub struct Dlock {
    lock: LockNo,
    /// The record last seen or written, and the dead in it. Never forgotten again: who holds the lock knows it, or
    /// has made it (`born`).
    known: Option<Seen>,
    /// What is known was only guessed.
    guessed: bool,
    /// This node wrote the record with this nonce, and has heard nothing of it since.
    born: Option<u64>,
    held: Mode,
    want: Mode,
    giving: Option<Giving>,
    /// What was asked of the layer above: [`Action::Demote`].
    demanded: Option<Mode>,
    io: Option<Io>,
    /// The node that we have asked, and the ticket, as long as that is outstanding.
    asked: Option<(Life, u64)>,
    /// An ask was not answered since the lock was last granted: the record is the way.
    unanswered: bool,
    /// Other nodes' asks that no write of ours has put into the record, the oldest first; one for each slot.
    asks: Vec<Ask>,
    /// The record must be read before anything is decided.
    look: bool,
    /// Holders in the way are to be told.
    hint_due: bool,
    /// Next look while waiting, or next try after a failure; and the pause that led to it.
    timer: Option<Time>,
    pause: Duration,
    /// Nothing is tried before `timer`.
    paused: bool,
    failures: u32,
}

impl Dlock {
    /// A lock this node knows nothing about.
    pub fn new(lock: LockNo) -> Self {
        Self {
            lock,
            known: None,
            guessed: false,
            born: None,
            held: Mode::Unlocked,
            want: Mode::Unlocked,
            giving: None,
            demanded: None,
            io: None,
            asked: None,
            unanswered: false,
            asks: Vec::new(),
            look: false,
            hint_due: false,
            timer: None,
            pause: Duration::ZERO,
            paused: false,
            failures: 0,
        }
    }
    /// A lock whose record this node wrote as held exclusive by itself, with this nonce ([`LockRecord::born`]).
    pub fn born(lock: LockNo, nonce: u64) -> Self {
        Self { held: Mode::Exclusive, born: Some(nonce), ..Self::new(lock) }
    }
    /// Takes `record`, of a lock that nobody holds or waits for, for what stands, if nothing is known
    /// of it. If it does not stand, the first write fails and says what does: it serves as the read.
    /// Nothing is relied upon before: a guess gives nobody the lock, and what is written against it
    /// lands only if it is true. Its nonce is one that never returns, like that of any record seen.
    ///
    /// # Panics
    /// If the record is of a lock that somebody holds.
    pub fn guess(&mut self, record: LockRecord) {
        assert!(record.holders.is_empty() && record.waiters.is_empty(), "a guess gives nothing");
        if self.known.is_none() && self.is_idle() && !self.look && !self.paused {
            self.known = Some(Seen { record: Arc::new(record), dead: Vec::new() });
            self.guessed = true;
        }
    }
    /// What is known has not been confirmed by any answer.
    pub fn is_guess(&self) -> bool {
        self.guessed
    }
    /// What this node may rely on.
    pub fn held(&self) -> Mode {
        self.held
    }
    /// What it is trying to get; unlocked when it has what it wanted.
    pub fn want(&self) -> Mode {
        self.want
    }
    /// Giving up has begun and is not yet in the record.
    pub fn is_giving(&self) -> bool {
        self.giving.is_some()
    }
    /// A read or write has not been answered.
    pub fn is_busy(&self) -> bool {
        self.io.is_some()
    }
    /// What has not been answered is a read.
    pub fn is_reading(&self) -> bool {
        self.io == Some(Io::Reading)
    }
    /// When [`Event::Timer`] is due.
    pub fn timer(&self) -> Option<Time> {
        self.timer
    }
    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
    /// The record last seen.
    pub fn known(&self) -> Option<&LockRecord> {
        self.known.as_ref().map(|s| &*s.record)
    }
    /// Nothing held, wanted or in flight: it may be forgotten.
    pub fn is_idle(&self) -> bool {
        self.held == Mode::Unlocked
            && self.want == Mode::Unlocked
            && self.giving.is_none()
            && self.io.is_none()
    }

    /// Takes an event, says what to do.
    ///
    /// # Panics
    /// If the caller breaks the protocol of [`Event`]: an answer to nothing, a release of what is
    /// not held.
    pub fn step(&mut self, cx: &Context, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.take(cx, event, &mut out);
        if self.io.is_none() && !self.paused {
            self.decide(cx, &mut out);
        }
        out
    }

    fn take(&mut self, cx: &Context, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Want(mode) => {
                if !self.want.covers(mode) {
                    self.want = self.want.join(mode);
                    self.pause = Duration::ZERO;
                    self.end_ask();
                }
            }
            Event::Unwant => {
                self.want = Mode::Unlocked;
                self.end_ask();
                if self.paused && self.is_idle() {
                    // Nobody needs the record any more that could not be read.
                    (self.paused, self.look, self.timer) = (false, false, None);
                }
            }
            Event::Released { to, opened, written } => {
                assert!(to < self.held && self.giving.is_none(), "release of what is not held");
                self.held = to;
                self.demanded = None;
                self.giving = Some(Giving { to, opened, written });
            }
            Event::Look => {
                self.look = true;
                // Perhaps the node that we asked had nothing to give yet: it is asked again after the read.
                self.end_ask();
            }
            Event::Asked { from, mode, ticket } => {
                self.asks.retain(|ask| ask.life.slot != from.slot);
                self.asks.push(Ask { life: from, mode, ticket, in_write: false });
            }
            Event::Given { ticket, seen } => self.given(cx.me, ticket, seen),
            Event::Timer => {
                if self.timer.is_some_and(|at| at <= cx.now) {
                    self.timer = None;
                    self.unanswered |= self.asked.take().is_some();
                    self.paused = false;
                    self.look = true;
                    self.hint_due = true;
                }
            }
            Event::Read(seen) => {
                assert_eq!(self.io.take(), Some(Io::Reading), "answer to no read");
                self.succeeded();
                self.learn(seen);
            }
            Event::Written => match self.io.take() {
                Some(Io::Writing { expected, new }) => {
                    self.succeeded();
                    Self::tell_granted(cx.me, &expected, &new, out);
                    self.answer_asks(&new, out);
                    self.hint_due = true;
                    self.learn(Seen { record: new, dead: Vec::new() });
                }
                other => panic!("answer to no write: {other:?}"),
            },
            Event::Mismatch(seen) => {
                assert!(matches!(self.io.take(), Some(Io::Writing { .. })), "answer to no write");
                self.succeeded();
                self.learn(seen);
            }
            Event::Failed => self.failed(cx),
        }
    }

    fn given(&mut self, me: Life, ticket: u64, seen: Seen) {
        let ours = self.asked.is_some_and(|(_, outstanding)| outstanding == ticket);
        let usable = ours && self.io.is_none() && !self.paused;
        if usable && seen.record.mode_of(me) > self.held {
            self.learn(seen);
        } else {
            self.look = true;
        }
    }

    fn failed(&mut self, cx: &Context) {
        assert!(self.io.take().is_some(), "failure of nothing");
        self.failures += 1;
        self.look = true;
        self.end_ask();
        // The first failure is settled by reading at once; then not in a tight loop.
        if self.failures > 1 {
            self.paused = true;
            self.timer = Some(cx.now + self.next_pause(cx));
        }
    }

    fn learn(&mut self, seen: Seen) {
        self.asks.retain(|ask| !seen.dead.contains(&ask.life));
        self.known = Some(seen);
        self.guessed = false;
        self.born = None;
    }

    fn succeeded(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.pause = Duration::ZERO;
        }
    }

    /// Our ask counts no more.
    fn end_ask(&mut self) {
        if self.asked.take().is_some() {
            self.timer = None;
        }
    }

    /// After a write: those who asked and whom it made holders are told so. Who waits in the record now is told
    /// when it is granted.
    fn answer_asks(&mut self, new: &Arc<LockRecord>, out: &mut Vec<Action>) {
        // What came after the write was issued may be newer than what it says.
        for ask in self.asks.extract_if(.., |ask| ask.in_write) {
            if new.mode_of(ask.life).covers(ask.mode) {
                let hint = Hint::Give { ticket: ask.ticket, record: new.clone() };
                out.push(Action::Hint { to: ask.life, hint });
            }
        }
    }

    /// Drops the asks of those who stand in the record, or whom what is held here does not keep out, and all if there
    /// is nothing to give: who asked is to read the record.
    fn drop_asks(&mut self, out: &mut Vec<Action>) {
        self.asks.iter_mut().for_each(|ask| ask.in_write = false);
        let nothing = self.held == Mode::Unlocked && self.giving.is_none();
        let known = self.known.as_ref().map(|seen| &*seen.record);
        let stands = |ask: &Ask| {
            known.is_some_and(|record| {
                let waits = record.waiters.iter().any(|w| w.life == ask.life);
                waits || record.mode_of(ask.life).covers(ask.mode)
            })
        };
        let (held, gives) = (self.held, self.giving.is_some());
        let beside = |ask: &Ask| !gives && held.meet(ask.mode.beside()) == held;
        let dropped = self.asks.extract_if(.., |ask| nothing || stands(ask) || beside(ask));
        out.extend(dropped.map(|ask| Action::Hint { to: ask.life, hint: Hint::Granted }));
    }

    fn next_pause(&mut self, cx: &Context) -> Duration {
        self.pause = (self.pause * 2).clamp(cx.poll.0, cx.poll.1);
        self.pause
    }

    /// With nothing in flight: the next read or write, if one is called for.
    fn decide(&mut self, cx: &Context, out: &mut Vec<Action>) {
        self.drop_asks(out);
        let goal = self.giving.is_some() || !self.held.covers(self.want);
        if self.known.is_none()
            && (goal || !self.asks.is_empty())
            && let Some(nonce) = self.born.take()
        {
            let record = Arc::new(LockRecord::born(self.lock, cx.me, nonce));
            self.known = Some(Seen { record, dead: Vec::new() });
        }
        if self.look || (goal && self.known.is_none()) {
            if !self.look && self.asks_presumed(cx, out) {
                return;
            }
            self.look = false;
            self.io = Some(Io::Reading);
            out.push(Action::Read);
            return;
        }
        let Some(Seen { record, dead }) = self.known.clone() else { return };
        if let Some(giving) = self.giving {
            if record.mode_of(cx.me) > giving.to {
                let new = released(&record, &dead, cx, giving, &self.asks);
                self.write(record, new, out);
                return;
            }
            self.giving = None;
        }
        let given = record.mode_of(cx.me);
        if given > self.held {
            self.held = given;
            self.demanded = None;
            self.end_ask();
            self.unanswered = false;
            out.push(Action::Granted(given));
        }
        if self.held.covers(self.want) {
            self.want = Mode::Unlocked;
        }
        self.answer_demand(cx, &record, &dead, out);
        if self.held.covers(self.want) {
            self.timer = None;
            self.hint_due = false;
            self.end_ask();
            if let Some(new) = left_queue(&record, cx, &self.asks) {
                self.write(record, new, out);
            }
        } else {
            self.pursue(cx, record, &dead, out);
        }
    }

    fn answer_demand(
        &mut self,
        cx: &Context,
        record: &LockRecord,
        dead: &[Life],
        out: &mut Vec<Action>,
    ) {
        if self.held == Mode::Unlocked {
            return;
        }
        let may_keep = if dead.is_empty() {
            allowed(record, cx.me)
        } else {
            let mut living = record.clone();
            purge(&mut living, dead, cx.me);
            allowed(&living, cx.me)
        }
        .meet(self.held);
        let may_keep = if record.waiters.iter().any(|w| w.life == cx.me) {
            // It stands in the queue before those who ask.
            may_keep
        } else {
            self.asks.iter().fold(may_keep, |keep, ask| keep.meet(ask.mode.beside()))
        };
        if may_keep < self.held && self.demanded.is_none_or(|demanded| may_keep < demanded) {
            self.demanded = Some(may_keep);
            out.push(Action::Demote(may_keep));
        }
    }

    fn pursue(
        &mut self,
        cx: &Context,
        record: Arc<LockRecord>,
        dead: &[Life],
        out: &mut Vec<Action>,
    ) {
        let mut new = (*record).clone();
        purge(&mut new, dead, cx.me);
        let all_alive = new == *record;
        // What stands beside the mode that is held, neither above the other, takes what is above both.
        let want = self.want.join(new.mode_of(cx.me));
        enqueue(&mut new, cx.me, want);
        advance(&mut new);
        let waits = new.waiters.iter().any(|w| w.life == cx.me);
        if waits && all_alive && self.asks(cx, &record, want, out) {
            return;
        }
        self.end_ask();
        append_asks(&mut new, &self.asks, cx.me);
        if new != *record {
            new.nonce = cx.nonce;
            self.write(record, new, out);
            return;
        }
        if self.hint_due {
            self.hint_due = false;
            let wanted = |to| Action::Hint { to, hint: Hint::Wanted(want) };
            out.extend(in_the_way(&record, cx.me).map(wanted));
        }
        if self.timer.is_none() {
            self.timer = Some(cx.now + self.next_pause(cx));
        }
    }

    /// Asks the one other holder for the lock, if that is the way; whether its answer is waited for.
    fn asks(
        &mut self,
        cx: &Context,
        record: &LockRecord,
        mode: Mode,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(to) = record.sole_other_holder(cx.me) else { return false };
        if !record.waiters.is_empty() || self.unanswered {
            return false;
        }
        if self.asked.is_some_and(|(asked, _)| asked == to) {
            return true;
        }
        let Some(patience) = cx.ask else { return false };
        self.asked = Some((to, cx.nonce));
        self.timer = Some(cx.now + patience);
        self.hint_due = false;
        out.push(Action::Hint { to, hint: Hint::Ask { mode, ticket: cx.nonce } });
        true
    }

    /// Asks the node that probably holds a lock of which nothing is known, so that nothing of it is held here either;
    /// whether its answer is waited for.
    fn asks_presumed(&mut self, cx: &Context, out: &mut Vec<Action>) -> bool {
        if self.unanswered {
            return false;
        }
        if self.asked.is_none() {
            let (Some(to), Some(patience)) = (cx.presumed, cx.ask) else { return false };
            self.asked = Some((to, cx.nonce));
            self.timer = Some(cx.now + patience);
            out.push(Action::Hint { to, hint: Hint::Ask { mode: self.want, ticket: cx.nonce } });
        }
        true
    }

    fn write(&mut self, expected: Arc<LockRecord>, new: LockRecord, out: &mut Vec<Action>) {
        self.end_ask();
        for ask in &mut self.asks {
            let waits = new.waiters.iter().any(|w| w.life == ask.life);
            ask.in_write = waits || new.mode_of(ask.life).covers(ask.mode);
        }
        let new = Arc::new(new);
        self.io = Some(Io::Writing { expected: expected.clone(), new: new.clone() });
        out.push(Action::CompareAndWrite { expected, new });
    }

    /// Tells those whom our write has made holders.
    fn tell_granted(me: Life, old: &LockRecord, new: &LockRecord, out: &mut Vec<Action>) {
        let granted = old.waiters.iter().map(|w| w.life).filter(|life| {
            *life != me
                && new.holders.contains(life)
                && !new.waiters.iter().any(|w| w.life == *life)
        });
        out.extend(granted.map(|to| Action::Hint { to, hint: Hint::Granted }));
    }
}

/// Drops the dead, and older lives of our own slot.
fn purge(record: &mut LockRecord, dead: &[Life], me: Life) {
    let gone =
        |l: &Life| (l.slot == me.slot && l.incarnation != me.incarnation) || dead.contains(l);
    let held = record.holders.len();
    record.holders.retain(|l| !gone(l));
    record.waiters.retain(|w| !gone(&w.life));
    record.openers.retain(|l| !gone(l));
    if record.holders.len() < held && record.mode.changes() {
        // What it changed was put in place by its recovery, or by itself.
        record.version += 1;
    }
    if record.holders.is_empty() {
        record.mode = Mode::Unlocked;
    }
}

/// Puts `me` at the end of the queue, if it is not in it. A record has room for all nodes of a pool.
fn enqueue(record: &mut LockRecord, me: Life, mode: Mode) {
    if let Some(mine) = record.waiters.iter_mut().find(|w| w.life == me) {
        mine.mode = mine.mode.join(mode);
    } else {
        record.waiters.push(Waiter { life: me, mode });
    }
}

/// Hands the lock to the first waiters, as many as it may have at once.
fn advance(record: &mut LockRecord) {
    while let Some(head) = record.waiters.first().copied() {
        let alone = record.holders.iter().all(|l| *l == head.life);
        match head.mode {
            Mode::Exclusive if alone => {
                record.mode = Mode::Exclusive;
                record.holders = vec![head.life];
            }
            mode if record.mode.beside().covers(mode) => {
                record.mode = mode;
                record.add_holder(head.life);
            }
            _ => return,
        }
        record.waiters.remove(0);
    }
}

/// Puts those who asked at the end of the queue, and hands the lock to the first of it.
fn append_asks(record: &mut LockRecord, asks: &[Ask], me: Life) {
    for ask in asks {
        let waiters = record.waiters.iter().map(|w| &w.life);
        let mut named = record.holders.iter().chain(waiters).chain(&record.openers);
        // An earlier life of its slot must be dropped first, by whoever knows that it is dead.
        let earlier = named.any(|l| l.slot == ask.life.slot && *l != ask.life);
        if earlier || ask.life.slot == me.slot {
            continue;
        }
        enqueue(record, ask.life, ask.mode.join(record.mode_of(ask.life)));
    }
    advance(record);
}

/// `record` with `me` no more than `giving.to`, and the lock handed on, at last to those who asked.
fn released(
    record: &LockRecord,
    dead: &[Life],
    cx: &Context,
    giving: Giving,
    asks: &[Ask],
) -> LockRecord {
    let Giving { to, opened, written } = giving;
    let mut new = record.clone();
    new.version += u64::from(new.mode.changes());
    new.written = match (new.mode, written) {
        (Mode::Exclusive, Some(written)) => written,
        (Mode::Concurrent, Some(written)) => written.max(new.written),
        _ => new.written,
    };
    if to == Mode::Unlocked {
        new.holders.retain(|l| *l != cx.me);
        new.openers.retain(|l| *l != cx.me);
        new.mode = if new.holders.is_empty() { Mode::Unlocked } else { new.mode };
    } else {
        new.mode = to;
    }
    purge(&mut new, dead, cx.me);
    if opened && to == Mode::Unlocked {
        new.add_opener(cx.me);
    }
    advance(&mut new);
    append_asks(&mut new, asks, cx.me);
    new.nonce = cx.nonce;
    new
}

/// `record` without `me` among the waiters, if it is one.
fn left_queue(record: &LockRecord, cx: &Context, asks: &[Ask]) -> Option<LockRecord> {
    let at = record.waiters.iter().position(|w| w.life == cx.me)?;
    let mut new = record.clone();
    new.waiters.remove(at);
    advance(&mut new);
    append_asks(&mut new, asks, cx.me);
    new.nonce = cx.nonce;
    Some(new)
}

/// The most that holder `me` may keep, given who waits before it (everyone, if it does not wait).
fn allowed(record: &LockRecord, me: Life) -> Mode {
    let ahead = record.waiters.iter().take_while(|w| w.life != me);
    ahead.fold(Mode::Exclusive, |keep, waiter| keep.meet(waiter.mode.beside()))
}

/// The holders that a hint of `me` should reach.
fn in_the_way(record: &LockRecord, me: Life) -> impl Iterator<Item = Life> + '_ {
    let waits = record.waiters.iter().any(|w| w.life == me);
    record
        .holders
        .iter()
        .copied()
        .filter(move |l| waits && *l != me && !allowed(record, *l).covers(record.mode))
}

#[cfg(test)]
mod search;
#[cfg(test)]
mod tests;
