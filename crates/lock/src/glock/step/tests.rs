use std::sync::Arc;

use braid_format::lock_record::{LockRecord, Waiter};
use braid_format::{Incarnation, LockNo, NodeId};

use super::*;
use crate::Local;
use crate::dlock::Seen;
use crate::glock::fills::{Fill, Held, ToDrop};
use crate::glock::state::Request;

const LOCK: LockNo = LockNo(64);
const MS: Duration = Duration::from_millis(1);

fn me(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}

/// One lock of node 0 over a record that answers at once, and what was asked for beside that.
struct Alone {
    glock: Glock<u8>,
    record: LockRecord,
    now: Time,
    nonce: u64,
    stopped: bool,
    /// The record is out of reach.
    failing: bool,
    /// Reads and writes of the record are not answered, but kept, too.
    silent: bool,
    seen: Vec<Action<u8>>,
}
impl Alone {
    fn new() -> Self {
        Self {
            glock: Glock::new(LOCK),
            record: LockRecord::unlocked(LOCK, 1),
            now: Time::from_secs(1),
            nonce: 1,
            stopped: false,
            failing: false,
            silent: false,
            seen: Vec::new(),
        }
    }
    /// Takes an event; reads and writes of the record are answered, the rest is kept.
    fn step(&mut self, event: Event<u8>) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.nonce += 1;
            let record = dlock::Context {
                me: me(0),
                now: self.now,
                nonce: self.nonce,
                poll: (MS, 100 * MS),
                ask: None,
                presumed: None,
            };
            let (tenure, stopped) = (self.nonce, self.stopped);
            let cx = Context { record, tenure, hold_max: 10 * MS, stopped };
            for action in self.glock.step(&cx, event) {
                match action {
                    Action::Record(_) if self.failing => {
                        next = Some(Event::RecordFailed(LockError::ShutDown));
                    }
                    Action::Record(io) if self.silent => self.seen.push(Action::Record(io)),
                    Action::Record(dlock::Action::CompareAndWrite { expected, new }) => {
                        assert_eq!(*expected, self.record);
                        self.record = (*new).clone();
                        next = Some(Event::Record(dlock::Event::Written));
                    }
                    Action::Record(_) => {
                        let record = Arc::new(self.record.clone());
                        let seen = Seen { record, dead: Vec::new() };
                        next = Some(Event::Record(dlock::Event::Read(seen)));
                    }
                    other => self.seen.push(other),
                }
            }
        }
    }
    /// What was asked for since the last time, in a word each.
    fn words(&mut self) -> Vec<&'static str> {
        let word = |action: &Action<u8>| match action {
            Action::Granted(_) => "granted",
            Action::Admit(..) => "admit",
            Action::Refuse(..) => "refuse",
            Action::Wake(_) => "wake",
            Action::Visit => "visit",
            Action::VisitAt(_) => "visit at",
            Action::Wish(_) => "wish",
            Action::Hint(..) => "hint",
            Action::Record(_) => "record",
            Action::Demote { .. } => "demote",
            Action::Forget => "forget",
            Action::HandedOver(true) => "handed over",
            Action::HandedOver(false) => "given up idle",
            Action::HandOverTook { .. } => "took",
            Action::Released => "released",
            Action::Unreachable(_) => "unreachable",
            Action::Withdraw => "withdraw",
        };
        std::mem::take(&mut self.seen).iter().map(word).collect()
    }
    fn queue_up(&mut self, waiter: u8, cluster: Mode, local: Local, fill: Option<Fill>) {
        self.glock.queue_up(waiter, Request { cluster, local, fill, passes: false });
        self.step(Event::Turn(waiter));
    }
    /// Has the lock exclusively, used by nobody.
    fn holding() -> Self {
        let mut alone = Self::new();
        alone.queue_up(1, Mode::Exclusive, Local::Exclusive, None);
        assert_eq!(alone.words(), ["granted", "admit"]);
        alone.end(Mode::Exclusive, Local::Exclusive);
        alone
    }
    fn end(&mut self, mode: Mode, local: Local) {
        if self.glock.end(&Admission { mode, local, first: false, tenure: 0, fill: None }) {
            self.step(Event::Ended);
        }
    }
    /// Node 1 queues up in the record, and this node is told.
    fn other_wants(&mut self, mode: Mode) {
        self.record.waiters.push(Waiter { life: me(1), mode });
        self.nonce += 1;
        self.record.nonce = self.nonce;
        self.step(Event::Look);
    }
}

/// Of one page, just now.
fn fill(patience: Duration) -> Fill {
    Fill { since: Alone::new().now, patience, held: Held::Filled(0, 4096) }
}

#[test]
fn a_demotion_makes_stable_forgets_and_hands_over() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Exclusive);
    assert_eq!(alone.words(), ["visit"]);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["demote"]);
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words(), ["forget"]);
    assert_eq!(alone.record.holders, [me(0)], "not before everything is forgotten");
    alone.step(Event::Forgotten);
    assert_eq!(alone.words(), ["hint", "handed over"]);
    assert_eq!(alone.record.holders, [me(1)]);
    assert!(alone.glock.is_idle());
}

#[test]
fn a_fill_gets_in_while_caches_are_made_stable_and_they_are_made_stable_again() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Exclusive);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["visit", "demote"]);
    alone.step(Event::Drops(Vec::new()));
    assert_eq!(alone.glock.drops(), Some(ToDrop::All));
    // Its patience is over; one that has more of it waits.
    alone.queue_up(1, Mode::Shared, Local::Shared, Some(fill(Duration::ZERO)));
    alone.queue_up(2, Mode::Shared, Local::Shared, Some(fill(MS)));
    let admitted = |a: &Action<u8>| matches!(a, Action::Admit(1, a) if a.mode == Mode::Shared);
    assert!(alone.seen.iter().any(admitted));
    assert!(!alone.seen.iter().any(|a| matches!(a, Action::Admit(2, _))));
    alone.words();
    // It is still in: nothing is given up, and it is not called again before it has gone.
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words().iter().filter(|w| **w == "demote").count(), 0);
    alone.end(Mode::Shared, Local::Shared);
    assert!(alone.words().contains(&"visit"));
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["demote"]);
    assert_eq!(alone.record.holders, [me(0)]);
    // Nothing is dropped yet: nobody is held up.
    alone.now += 100 * MS;
    alone.step(Event::Turn(2));
    alone.step(Event::Drops(Vec::new()));
    assert!(!alone.seen.iter().any(|a| matches!(a, Action::Admit(2, _))));
    // What 2 is about to fill need not be dropped.
    assert_eq!(alone.glock.drops(), None);
}

#[test]
fn what_is_said_of_the_record_while_it_is_read_or_written_is_looked_at_afterwards() {
    let mut glock: Glock<u8> = Glock::new(LOCK);
    let record =
        dlock::Context { me: me(0), now: MS, nonce: 7, poll: (MS, MS), ask: None, presumed: None };
    let cx = Context { record, tenure: 1, hold_max: MS, stopped: false };
    let held = LockRecord { mode: Mode::Exclusive, ..LockRecord::unlocked(LOCK, 1) };
    let held = Arc::new(LockRecord { holders: vec![me(1)], ..held });
    let seen = || Seen { record: held.clone(), dead: Vec::new() };
    let asks = |actions: Vec<Action<u8>>| {
        let mut io = actions.into_iter().filter_map(|action| match action {
            Action::Record(io) => Some(matches!(io, dlock::Action::Read)),
            _ => None,
        });
        (io.next(), io.next())
    };
    let request =
        Request { cluster: Mode::Shared, local: Local::Shared, fill: None, passes: false };
    glock.queue_up(1, request);
    assert_eq!(asks(glock.step(&cx, Event::Turn(1))), (Some(true), None));
    let read = Event::Record(dlock::Event::Read(seen()));
    assert_eq!(asks(glock.step(&cx, read)), (Some(false), None), "it queues up");
    assert_eq!(asks(glock.step(&cx, Event::Look)), (None, None), "one request at a time");
    let written = Event::Record(dlock::Event::Written);
    assert_eq!(asks(glock.step(&cx, written)), (Some(true), None));
}

/// What it brought into the kernel's cache would stay there.
#[test]
fn a_fill_that_has_gone_before_caches_are_stable_has_them_made_stable_again() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Exclusive);
    alone.step(Event::Visit);
    alone.step(Event::Drops(Vec::new()));
    alone.queue_up(1, Mode::Shared, Local::Shared, Some(fill(Duration::ZERO)));
    alone.end(Mode::Shared, Local::Shared);
    alone.words();
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words(), ["demote"]);
    for next in [Some(ToDrop::Pages(0, 4096)), None] {
        alone.step(Event::Drops(Vec::new()));
        assert_eq!(alone.glock.drops(), next);
    }
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words(), ["forget"]);
}

/// The lock is held shared, and given up: nothing can be unstable. Meanwhile a truncation takes it exclusively, and is
/// let in, because the kernel holds pages for it. What it changes is made stable by a call of its own.
#[test]
fn what_was_changed_under_more_than_the_call_was_told_is_made_stable_by_another() {
    let mut alone = Alone::new();
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    alone.end(Mode::Shared, Local::Shared);
    alone.other_wants(Mode::Exclusive);
    alone.step(Event::Visit);
    let call = |mode| move |a: &Action<u8>| matches!(a, Action::Demote { from, to: Mode::Unlocked } if *from == mode);
    assert!(alone.seen.iter().any(call(Mode::Shared)), "{:?}", alone.seen);
    alone.step(Event::Drops(Vec::new()));
    // The other node waits no longer when this one writes that it wants more.
    alone.record.waiters.clear();
    alone.nonce += 1;
    alone.record.nonce = alone.nonce;
    let cut = Fill { held: Held::Cut, ..fill(Duration::ZERO) };
    alone.silent = true;
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, Some(cut));
    alone.silent = false;
    let seen = Seen { record: Arc::new(alone.record.clone()), dead: Vec::new() };
    alone.step(Event::Record(dlock::Event::Mismatch(seen)));
    alone.step(Event::Turn(2));
    let words = alone.words();
    assert!(words.contains(&"granted") && words.contains(&"admit"), "{words:?}");
    let (mode, local) = (Mode::Exclusive, Local::Exclusive);
    let cut = Admission { mode, local, first: false, tenure: 0, fill: Some(Held::Cut) };
    assert!(alone.glock.end(&cut));
    alone.step(Event::Ended);
    for _ in 0..2 {
        alone.step(Event::Drops(Vec::new()));
    }
    assert_eq!(alone.glock.drops(), None);
    alone.words();
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert!(alone.seen.iter().any(call(Mode::Exclusive)), "{:?}", alone.seen);
    assert_eq!(alone.words(), ["demote"]);
    alone.step(Event::Drops(Vec::new()));
    assert_eq!(alone.glock.drops(), Some(ToDrop::All), "of what more is held, all is dropped");
    alone.step(Event::Drops(Vec::new()));
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words(), ["forget"]);
}

#[test]
fn a_stronger_demand_is_heeded_by_the_demotion_under_way() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Shared);
    alone.step(Event::Visit);
    let to = |mode| move |a: &Action<u8>| matches!(a, Action::Demote { to, .. } if *to == mode);
    assert!(alone.seen.drain(..).any(|a| to(Mode::Shared)(&a)));
    // Another one wants all of it.
    alone.record.waiters.push(Waiter { life: me(2), mode: Mode::Exclusive });
    alone.record.nonce = 1000;
    alone.step(Event::Look);
    alone.words();
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert!(alone.seen.drain(..).any(|a| to(Mode::Unlocked)(&a)), "at once, not one by one");
    alone.step(Event::Demoted(Some(Demoted::default())));
    alone.step(Event::Forgotten);
    assert_eq!(alone.words(), ["forget", "hint", "handed over"]);
    assert_eq!(alone.record.holders, [me(1)]);
}

#[test]
fn caches_that_cannot_be_made_stable_keep_the_lock_and_end_the_node() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Shared);
    alone.step(Event::Visit);
    alone.words();
    alone.step(Event::Demoted(None));
    assert_eq!(alone.words(), ["withdraw"]);
    // Before the manager knows.
    alone.step(Event::Visit);
    alone.step(Event::Look);
    assert_eq!(alone.words(), [""; 0]);
    alone.stopped = true;
    alone.step(Event::Stopped);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), [""; 0]);
    assert_eq!(alone.record.holders, [me(0)]);
}

#[test]
fn one_that_gives_up_leaves_its_turn_to_the_next() {
    let mut alone = Alone::new();
    alone.record.mode = Mode::Exclusive;
    alone.record.holders = vec![me(1)];
    alone.queue_up(1, Mode::Exclusive, Local::Exclusive, None);
    alone.queue_up(2, Mode::Shared, Local::Shared, None);
    assert_eq!(alone.words(), ["hint", "wish", "wake"]);
    alone.step(Event::GaveUp(1));
    assert_eq!(alone.words(), ["wake"]);
    // The other node lets go: the next one gets it.
    alone.record.holders.clear();
    alone.record.mode = Mode::Unlocked;
    alone.record.waiters.clear();
    alone.record.nonce = 1000;
    alone.step(Event::Look);
    alone.words();
    alone.step(Event::Turn(2));
    assert!(alone.words().contains(&"admit"));
    assert!(alone.record.holders.contains(&me(0)));
}

/// Has the lock, used by one thread; node 1 wants it.
fn wanted_in_use() -> Alone {
    let mut alone = Alone::holding();
    assert!(alone.glock.try_admit(Mode::Exclusive, Local::Exclusive).is_some());
    alone.other_wants(Mode::Exclusive);
    alone
}

#[test]
fn a_lock_is_kept_for_users_who_come_back_as_long_as_they_say() {
    let mut alone = wanted_in_use();
    alone.step(Event::Keep(Keep::For(2 * MS)));
    alone.words();
    alone.step(Event::Visit);
    let until = Time::from_secs(1) + 2 * MS;
    assert!(matches!(alone.seen[..], [Action::VisitAt(at)] if at == until));
    alone.words();
    alone.end(Mode::Exclusive, Local::Exclusive);
    // They come and go.
    let admission = alone.glock.try_admit(Mode::Exclusive, Local::Exclusive).unwrap();
    assert!(!alone.glock.end(&admission));
    alone.now = until;
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["demote"]);
}

#[test]
fn a_lock_is_given_up_once_its_users_need_it_no_longer() {
    for said in [Keep::NoLonger, Keep::PerhapsFor(2 * MS)] {
        let mut alone = wanted_in_use();
        alone.step(Event::Keep(Keep::For(2 * MS)));
        alone.step(Event::Visit);
        alone.end(Mode::Exclusive, Local::Exclusive);
        alone.words();
        alone.step(Event::Keep(said));
        assert_eq!(alone.words(), ["visit"]);
        alone.step(Event::Visit);
        assert_eq!(alone.words(), ["demote"]);
    }
}

#[test]
fn a_demotion_that_has_only_kept_users_out_is_put_off_for_those_who_come_back() {
    let mut alone = wanted_in_use();
    alone.step(Event::Visit);
    assert_eq!(alone.glock.demoting(), Some(Mode::Unlocked));
    assert!(alone.glock.try_admit(Mode::Shared, Local::Shared).is_none());
    alone.step(Event::Keep(Keep::For(2 * MS)));
    assert_eq!(alone.glock.demoting(), None);
    alone.end(Mode::Exclusive, Local::Exclusive);
    let admission = alone.glock.try_admit(Mode::Exclusive, Local::Exclusive).unwrap();
    alone.glock.end(&admission);
    alone.now += 2 * MS;
    alone.step(Event::Visit);
    assert!(alone.words().contains(&"demote"));
    // Once the file system is called it takes its course.
    alone.step(Event::Keep(Keep::For(4 * MS)));
    assert_eq!(alone.glock.demoting(), Some(Mode::Unlocked));
}

#[test]
fn a_demotion_is_not_put_off_for_longer_than_they_say() {
    let mut alone = wanted_in_use();
    alone.now += 2 * MS;
    alone.step(Event::Visit);
    alone.step(Event::Keep(Keep::For(2 * MS)));
    assert_eq!(alone.glock.demoting(), Some(Mode::Unlocked));
    alone.end(Mode::Exclusive, Local::Exclusive);
    assert!(alone.glock.try_admit(Mode::Shared, Local::Shared).is_none());
}

#[test]
fn an_idle_lock_is_given_up_unless_somebody_comes_first() {
    let mut alone = Alone::holding();
    alone.step(Event::Release);
    assert_eq!(alone.words(), ["visit"]);
    assert!(alone.glock.try_admit(Mode::Shared, Local::Shared).is_some());
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["released"]);
    assert_eq!(alone.record.holders, [me(0)]);
    alone.end(Mode::Shared, Local::Shared);
    alone.step(Event::Release);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["visit", "demote"]);
    alone.step(Event::Demoted(Some(Demoted::default())));
    alone.step(Event::Forgotten);
    assert_eq!(alone.words(), ["forget", "given up idle", "released"]);
    assert!(alone.record.holders.is_empty());
}

#[test]
fn a_record_out_of_reach_is_told_to_those_who_wait_after_eight_failures() {
    let mut alone = Alone::new();
    alone.glock.queue_up(
        1,
        Request { cluster: Mode::Shared, local: Local::Shared, fill: None, passes: false },
    );
    let mut tries = 0;
    while !alone.seen.iter().any(|a| matches!(a, Action::Refuse(1, _))) {
        alone.now += 200 * MS;
        let record = dlock::Context {
            me: me(0),
            now: alone.now,
            nonce: 7,
            poll: (MS, MS),
            ask: None,
            presumed: None,
        };
        let cx = Context { record, tenure: 1, hold_max: MS, stopped: false };
        let mut event = Some(Event::Turn(1));
        while let Some(now) = event.take() {
            for action in alone.glock.step(&cx, now) {
                if matches!(action, Action::Record(_)) {
                    tries += 1;
                    event = Some(Event::RecordFailed(LockError::ShutDown));
                } else {
                    alone.seen.push(action);
                }
            }
        }
        assert!(tries < 20);
    }
    assert_eq!(tries, 8);
    assert!(alone.seen.iter().any(|a| matches!(a, Action::Unreachable(_))));
}

/// Otherwise one damaged record would keep the node from whatever it does when idle locks are given up.
#[test]
fn who_waits_for_an_idle_lock_to_be_given_up_is_told_that_its_record_is_out_of_reach() {
    let mut alone = Alone::holding();
    alone.step(Event::Release);
    alone.step(Event::Visit);
    alone.step(Event::Demoted(Some(Demoted::default())));
    alone.words();
    alone.failing = true;
    alone.step(Event::Forgotten);
    let mut words = alone.words();
    for _ in 0..100 {
        alone.now += 200 * MS;
        alone.step(Event::Visit);
        words.extend(alone.words());
    }
    let count = |what| words.iter().filter(|word| **word == what).count();
    assert_eq!(count("released"), 1, "{words:?}");
    // The 8th failure, the 16th, the 32nd and the 64th.
    assert_eq!(count("unreachable"), 4, "{words:?}");
    // It goes on as soon as it can.
    alone.failing = false;
    alone.now += 200 * MS;
    alone.step(Event::Visit);
    assert!(alone.record.holders.is_empty());
    assert!(alone.glock.is_idle());
}

/// There may be many, and each is read for a while by a thread that others need.
#[test]
fn a_damaged_record_is_read_again_ever_more_rarely() {
    let mut alone = Alone::holding();
    alone.step(Event::Release);
    alone.step(Event::Visit);
    alone.step(Event::Demoted(Some(Demoted::default())));
    let damaged = || {
        let source = braid_format::FormatError::TooShort { what: "lock record", len: 0 };
        Event::RecordFailed(LockError::Record { lock: LOCK, source })
    };
    alone.silent = true;
    alone.step(Event::Forgotten);
    let (begun, mut tries) = (alone.now, 0);
    while alone.now < begun + Duration::from_mins(5) {
        // The first failure is settled by reading at once.
        while alone.words().contains(&"record") {
            tries += 1;
            alone.step(damaged());
        }
        alone.now += 50 * MS;
        alone.step(Event::Visit);
    }
    // Ten until the pauses are a minute long, then one each minute.
    assert!((10..=15).contains(&tries), "{tries}");
}

#[test]
fn of_messages_that_come_while_the_record_is_read_so_many_are_kept() {
    let mut alone = Alone::new();
    alone.silent = true;
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    assert_eq!(alone.words(), ["record"]);
    for (n, ticket) in (1..=MAIL_MAX + 1).zip(0..) {
        let asked = dlock::Event::Asked { from: me(1), mode: Mode::Shared, ticket };
        alone.step(Event::Message(asked));
        assert_eq!(alone.glock.mail.len(), MAIL_MAX.min(n));
    }
    // Nor does the thread begin anything before that is answered.
    alone.step(Event::Look);
    alone.step(Event::Turn(1));
    assert!(!alone.words().contains(&"record"));
}

#[test]
fn a_wish_of_another_node_is_looked_at_if_this_one_is_in_its_way_or_waits_itself() {
    let mut alone = Alone::holding();
    alone.step(Event::Wished(Mode::Shared));
    assert_eq!(alone.words(), ["visit"]);
    let mut alone = Alone::new();
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    assert_eq!(alone.words(), ["granted", "admit"]);
    alone.step(Event::Wished(Mode::Shared));
    assert_eq!(alone.words(), [""; 0], "both may read");
    let mut alone = waiting();
    alone.step(Event::Wished(Mode::Shared));
    assert_eq!(alone.words(), ["wake"]);
    assert!(alone.glock.look);
    // What gives the lock up already looks at the record anyway.
    let mut alone = wanted_in_use();
    alone.step(Event::Visit);
    alone.words();
    alone.step(Event::Wished(Mode::Exclusive));
    assert!(!alone.glock.look && alone.glock.demotion.is_some());
}

/// A thread waits in the record for the lock, which node 1 has.
fn waiting() -> Alone {
    let mut alone = Alone::new();
    alone.record.mode = Mode::Exclusive;
    alone.record.holders = vec![me(1)];
    alone.queue_up(1, Mode::Exclusive, Local::Exclusive, None);
    assert_eq!(alone.words(), ["hint", "wish", "wake"]);
    alone
}

#[test]
fn the_last_who_gives_up_leaves_it_to_a_demoter_to_take_the_wish_back() {
    let mut alone = waiting();
    alone.step(Event::Visit);
    assert!(alone.glock.pursuing(), "that is the waiting thread's");
    alone.words();
    alone.step(Event::GaveUp(1));
    assert_eq!(alone.words(), ["visit"]);
    alone.step(Event::Visit);
    assert!(matches!(alone.seen[..], [Action::Wish(None)]), "{:?}", alone.seen);
    assert!(!alone.glock.pursuing() && alone.record.waiters.is_empty());
}

#[test]
fn the_head_of_the_queue_alone_looks_by_itself_and_only_at_what_it_needs() {
    let mut alone = waiting();
    let timer = alone.glock.dlock().timer();
    assert!(timer.is_some());
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, None);
    assert_eq!([1, 2, 3].map(|w| alone.glock.wait_until(&w)), [timer, None, None]);
    alone.glock.driver = Some(Driver::Demoter);
    assert_eq!(alone.glock.wait_until(&1), None, "the answer wakes it");
    // A reader who waits for another thread of this node needs nothing of the record.
    let mut alone = Alone::new();
    alone.record.mode = Mode::Shared;
    alone.record.holders = vec![me(1)];
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, None);
    alone.queue_up(3, Mode::Shared, Local::Exclusive, None);
    let timer = alone.glock.dlock().timer();
    assert!(timer.is_some() && alone.glock.wait_until(&2) == timer);
    alone.glock.leave_queue(&2);
    assert_eq!(alone.glock.wait_until(&3), None);
}

#[test]
fn a_fill_looks_when_its_patience_is_over_and_is_woken_when_pages_are_dropped() {
    let mut alone = Alone::holding();
    let admission = alone.glock.try_admit(Mode::Exclusive, Local::Shared).unwrap();
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, None);
    alone.queue_up(3, Mode::Shared, Local::Shared, Some(fill(MS)));
    assert_eq!(alone.glock.wait_until(&3), None);
    alone.other_wants(Mode::Exclusive);
    assert_eq!(alone.words(), ["visit"]);
    alone.step(Event::Visit);
    alone.end(admission.mode, admission.local);
    alone.step(Event::Visit);
    assert!(alone.words().contains(&"demote"));
    assert_eq!(alone.glock.wait_until(&3), None);
    alone.step(Event::Drops(Vec::new()));
    assert!(alone.seen.iter().any(|a| matches!(a, Action::Wake(3))), "{:?}", alone.seen);
    assert!(!alone.seen.iter().any(|a| matches!(a, Action::Wake(2))));
    assert_eq!(alone.glock.wait_until(&3), Some(alone.now + MS));
}

#[test]
fn a_demoter_is_called_once_until_it_comes() {
    let mut alone = Alone::holding();
    alone.other_wants(Mode::Exclusive);
    assert_eq!(alone.words(), ["visit"]);
    alone.step(Event::Look);
    assert_eq!(alone.words(), [""; 0]);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["demote"]);
    alone.step(Event::Look);
    assert_eq!(alone.words(), [""; 0]);
}

#[test]
fn a_visit_without_a_reason_leaves_the_lock() {
    let mut alone = Alone::holding();
    alone.step(Event::Visit);
    assert_eq!(alone.words(), [""; 0]);
    // What is left of a demand that is fulfilled.
    alone.glock.demand = Some(Mode::Exclusive);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), [""; 0]);
    assert!(alone.glock.demand.is_none() && alone.glock.demotion.is_none());
}

#[test]
fn who_says_again_that_users_come_back_calls_no_demoter() {
    let mut alone = wanted_in_use();
    alone.step(Event::Keep(Keep::For(2 * MS)));
    alone.step(Event::Visit);
    alone.words();
    alone.step(Event::Keep(Keep::For(3 * MS)));
    assert_eq!(alone.words(), [""; 0]);
    // And nobody who does not want the lock elsewhere.
    let mut alone = Alone::holding();
    alone.glock.visit = Some(alone.now);
    alone.step(Event::Keep(Keep::NoLonger));
    assert_eq!((alone.words(), alone.glock.visit), (vec![], Some(alone.now)));
}

#[test]
fn a_lock_is_not_given_up_in_the_record_while_a_thread_writes_it() {
    let mut alone = Alone::new();
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    alone.end(Mode::Shared, Local::Shared);
    alone.other_wants(Mode::Exclusive);
    alone.words();
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["demote"]);
    alone.silent = true;
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, None);
    let Some(Action::Record(dlock::Action::CompareAndWrite { new, .. })) = alone.seen.pop() else {
        panic!("{:?}", alone.seen)
    };
    alone.step(Event::Demoted(Some(Demoted::default())));
    assert_eq!(alone.words(), [""; 0]);
    (alone.silent, alone.record) = (false, (*new).clone());
    alone.step(Event::Record(dlock::Event::Written));
    assert!(!alone.words().contains(&"forget"), "by a demoter");
    alone.step(Event::Visit);
    assert!(alone.words().contains(&"forget"));
}

#[test]
fn a_lock_is_handed_over_when_the_record_says_it_however_often_that_fails() {
    for idle in [false, true] {
        let mut alone = Alone::holding();
        if idle {
            alone.step(Event::Release);
        } else {
            alone.other_wants(Mode::Exclusive);
        }
        alone.step(Event::Visit);
        alone.step(Event::Demoted(Some(Demoted::default())));
        assert_eq!(alone.words(), ["visit", "demote", "forget"]);
        alone.failing = true;
        alone.step(Event::Forgotten);
        assert_eq!(alone.words(), ["visit at"], "{idle}");
        alone.step(Event::Visit);
        assert_eq!(alone.words(), ["visit at"], "{idle}: not yet");
        let next_try = |alone: &mut Alone| {
            alone.now = alone.glock.dlock().timer().unwrap();
            alone.step(Event::Visit);
            alone.words()
        };
        let mut tries = 2;
        while next_try(&mut alone) == ["visit at"] {
            tries += 1;
        }
        assert_eq!(tries + 1, FAILURES_MAX, "then it is told that the record is out of reach");
        alone.failing = false;
        alone.now = alone.glock.dlock().timer().unwrap();
        alone.step(Event::Visit);
        // That nobody is to wait for the idle one was said before.
        let last: &[&str] = if idle { &["given up idle"] } else { &["hint", "handed over"] };
        assert_eq!(alone.words(), last);
    }
}

#[test]
fn a_release_of_an_idle_lock_ends_with_the_demotion_that_another_node_asks_for() {
    let mut alone = Alone::holding();
    alone.step(Event::Keep(Keep::For(2 * MS)));
    alone.step(Event::Release);
    alone.other_wants(Mode::Exclusive);
    assert_eq!(alone.words(), ["visit"]);
    alone.step(Event::Visit);
    assert_eq!(alone.words(), ["visit at"], "it is kept for its users, not released");
    alone.now += 2 * MS;
    alone.step(Event::Visit);
    alone.step(Event::Demoted(Some(Demoted::default())));
    alone.step(Event::Forgotten);
    assert_eq!(alone.words(), ["demote", "forget", "hint", "given up idle", "released"]);
}

#[test]
fn an_idle_lock_for_which_a_thread_waits_is_not_given_up() {
    let mut alone = Alone::new();
    alone.record.mode = Mode::Shared;
    alone.record.holders = vec![me(1)];
    alone.queue_up(1, Mode::Shared, Local::Shared, None);
    alone.end(Mode::Shared, Local::Shared);
    alone.step(Event::Release);
    alone.words();
    alone.queue_up(2, Mode::Exclusive, Local::Exclusive, None);
    alone.words();
    alone.step(Event::Visit);
    assert!(alone.words().contains(&"released"));
    assert!(alone.glock.demotion.is_none() && alone.record.holders.contains(&me(0)));
}
