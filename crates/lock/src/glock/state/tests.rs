use std::sync::Arc;
use std::time::Duration;

use braid_format::{Incarnation, NodeId};

use super::*;
use crate::dlock::{self, Event, Seen};
use crate::glock::fills::Held;

const LOCK: LockNo = LockNo(64);
const EX: Mode = Mode::Exclusive;
const SH: Mode = Mode::Shared;
const CW: Mode = Mode::Concurrent;

fn node(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}
const fn request(cluster: Mode, local: Local) -> Request {
    Request { cluster, local, fill: None, passes: false }
}
fn demotion(to: Mode, phase: Phase) -> Demotion {
    Demotion { from: Mode::Exclusive, to, phase, left: Demoted::default() }
}
/// As node 0 sees the lock after it has read a record with these holders and waiters.
fn seen(mode: Mode, holders: &[u16], waiters: &[(u16, Mode)]) -> Glock<u8> {
    let mut glock = Glock::new(LOCK);
    let record = LockRecord {
        mode,
        holders: holders.iter().map(|n| node(*n)).collect(),
        waiters: waiters
            .iter()
            .map(|(n, mode)| LockWaiter { life: node(*n), mode: *mode })
            .collect(),
        ..LockRecord::unlocked(LOCK, 1)
    };
    step(&mut glock, Event::Look);
    step(&mut glock, Event::Read(Seen { record: Arc::new(record), dead: Vec::new() }));
    glock
}
fn step(glock: &mut Glock<u8>, event: Event) {
    let cx = dlock::Context {
        me: node(0),
        now: Time::from_secs(1),
        nonce: 7,
        poll: (Duration::from_millis(1), Duration::from_millis(1)),
        ask: None,
        presumed: None,
    };
    glock.dlock.step(&cx, event);
}

/// A change of a lock.
type Change<'c> = &'c dyn Fn(&mut Glock<u8>);

/// What concerns threads or nodes that want the lock.
const CONCERNS: [Change<'static>; 4] = [
    &|g| g.queue_up(1, request(EX, Local::Shared)),
    &|g| g.demand = Some(SH),
    &|g| g.demotion = Some(demotion(SH, Phase::Draining)),
    &|g| g.releasing_idle = true,
];
const USES: [Change<'static>; 2] = [&|g| g.shared = 1, &|g| g.exclusive = true];

#[test]
fn a_lock_is_forgotten_only_if_nothing_happens_to_it() {
    let reasons: [Change<'_>; 11] = [
        USES[0],
        USES[1],
        CONCERNS[0],
        CONCERNS[2],
        CONCERNS[3],
        &|g| g.dlock = Dlock::born(LOCK, 1),
        &|g| g.driver = Some(Driver::Waiter),
        &|g| g.look = true,
        &|g| g.mail.push_back(Event::Look),
        &|g| g.queued = true,
        &|g| g.working = true,
    ];
    for (n, change) in reasons.into_iter().enumerate() {
        let mut glock = Glock::new(LOCK);
        assert!(glock.is_idle());
        change(&mut glock);
        assert!(!glock.is_idle(), "{n}");
    }
}

#[test]
fn a_lock_is_released_only_if_it_concerns_nobody() {
    for (n, change) in USES.into_iter().chain(CONCERNS).enumerate() {
        let mut glock = seen(EX, &[0], &[]);
        assert!(glock.may_be_released());
        change(&mut glock);
        assert!(!glock.may_be_released(), "{n}");
    }
}

#[test]
fn a_lock_is_worked_on_while_its_record_or_its_demotion_is_in_hand() {
    let mut glock: Glock<u8> = Glock::new(LOCK);
    assert!(!glock.is_worked_on());
    glock.working = true;
    assert!(glock.is_worked_on());
    (glock.working, glock.driver) = (false, Some(Driver::Waiter));
    assert!(glock.is_worked_on());
}

#[test]
fn a_lock_concerns_nodes_if_another_has_it_or_wants_it() {
    let concerns = |glock: &Glock<u8>| glock.concerns_nodes(node(0));
    assert!(!concerns(&Glock::new(LOCK)) && !concerns(&seen(SH, &[0], &[])));
    assert!(concerns(&seen(SH, &[0, 1], &[])));
    for (change, does) in CONCERNS.into_iter().zip([false, true, true, false]) {
        let mut glock = seen(EX, &[0], &[]);
        change(&mut glock);
        assert_eq!(concerns(&glock), does);
    }
}

#[test]
fn a_lock_is_held_since_it_was_taken_until_it_is_given_up() {
    let taken = Time::from_secs(3);
    let mut glock = seen(SH, &[0], &[]);
    assert_eq!(glock.held_since(), None);
    glock.hold.granted(taken);
    assert_eq!(glock.held_since(), Some(taken));
    let mut glock = seen(SH, &[1], &[]);
    glock.hold.granted(taken);
    assert_eq!(glock.held_since(), None);
}

#[test]
fn users_of_a_node_are_alone_or_share() {
    let mut glock = seen(EX, &[0], &[]);
    let first = glock.try_admit(EX, Local::Shared).unwrap();
    glock.try_admit(SH, Local::Shared).unwrap();
    assert_eq!(glock.users(), 2);
    assert!(glock.try_admit(SH, Local::Exclusive).is_none());
    glock.end(&first);
    glock.end(&Admission { mode: SH, ..first });
    let alone = glock.try_admit(SH, Local::Exclusive).unwrap();
    assert_eq!(glock.users(), 1);
    assert!(glock.try_admit(SH, Local::Shared).is_none());
    assert!(glock.try_admit(SH, Local::Exclusive).is_none());
    glock.end(&alone);
    assert_eq!(glock.users(), 0);
}

#[test]
fn an_adopted_lock_is_held_and_its_first_use_is_the_first() {
    let mut glock: Glock<u8> = Glock::new(LOCK);
    glock.adopt(LOCK, 5, 9);
    let admission = glock.try_admit(EX, Local::Shared).unwrap();
    assert!(admission.first && admission.tenure == 9);
    // Taken stronger, it is still the same tenure.
    glock.note_grant(SH, 10);
    let admission = glock.try_admit(EX, Local::Shared).unwrap();
    assert!(!admission.first && admission.tenure == 9);
}

#[test]
fn the_first_of_the_queue_is_its_head() {
    let mut glock: Glock<u8> = Glock::new(LOCK);
    assert!(!glock.is_head(&1));
    glock.queue_up(1, request(SH, Local::Shared));
    glock.queue_up(2, request(SH, Local::Shared));
    assert!(glock.is_head(&1) && !glock.is_head(&2));
    assert!(glock.waiters().eq(&[1, 2]));
}

/// Mode, holders and waiters of the record; what is wished, and what serves it.
type WishCase<'c> = (Mode, &'c [u16], &'c [(u16, Mode)], Mode, Mode);

#[test]
fn a_wish_is_served_concurrently_if_that_saves_waiting_for_another_node() {
    let concurrent = |mode| Wish { mode, concurrent: true };
    let cases: [WishCase<'_>; 11] = [
        (Mode::Unlocked, &[], &[], EX, EX),
        (EX, &[0], &[], EX, EX),
        (CW, &[0], &[], EX, CW),
        (CW, &[0], &[], CW, CW),
        (CW, &[1], &[], EX, CW),
        (EX, &[1], &[], EX, CW),
        (SH, &[1], &[], EX, EX),
        // Readers of another node are no reason, nor are readers here one to ask a writer for less.
        (SH, &[1], &[], SH, SH),
        (EX, &[1], &[], SH, SH),
        (SH, &[0], &[(1, CW)], EX, CW),
        (SH, &[0], &[(1, EX), (0, CW)], EX, EX),
    ];
    for (n, (mode, holders, waiters, wish, served)) in cases.into_iter().enumerate() {
        let glock = seen(mode, holders, waiters);
        assert_eq!(glock.mode_for(concurrent(wish), node(0)), served, "{n}");
        assert_eq!(glock.mode_for(wish.into(), node(0)), wish, "{n}");
    }
    assert_eq!(Glock::<u8>::new(LOCK).mode_for(concurrent(EX), node(0)), EX, "nothing is known");
    // What is left after the demotion under way counts.
    let mut glock = seen(EX, &[0], &[]);
    glock.demotion = Some(demotion(SH, Phase::Draining));
    assert_eq!(glock.mode_for(concurrent(EX), node(0)), EX);
    glock.demotion = Some(demotion(CW, Phase::Draining));
    assert_eq!(glock.mode_for(concurrent(EX), node(0)), CW);
}

#[test]
fn a_fill_begins_while_pages_are_dropped_if_something_is_held_and_nobody_is_in_its_way() {
    let fill = |cluster, local| {
        let held = Held::Filled(0, 1);
        let fill = Fill { since: Time::ZERO, patience: Duration::ZERO, held };
        Request { fill: Some(fill), ..request(cluster, local) }
    };
    let dropping = |mode, holders: &[u16]| {
        let mut glock = seen(mode, holders, &[]);
        glock.demotion = Some(demotion(Mode::Unlocked, Phase::Calling));
        glock.fills.begin();
        glock.next_drop(Time::ZERO, Vec::new());
        glock
    };
    let shared = fill(SH, Local::Shared);
    let mut glock = dropping(EX, &[0]);
    for (phase, may) in [
        (Phase::Draining, false),
        (Phase::Ready, false),
        (Phase::Releasing, false),
        (Phase::Calling, true),
    ] {
        glock.demotion = Some(demotion(Mode::Unlocked, phase));
        assert_eq!(glock.admits_fill_at(&shared).is_some(), may, "{phase:?}");
    }
    assert!(glock.admits_fill_at(&request(SH, Local::Shared)).is_none(), "not a fill");
    glock.exclusive = true;
    assert!(glock.admits_fill_at(&shared).is_none(), "somebody is alone");
    let glock = dropping(SH, &[0]);
    let gets = |cluster, local| glock.admits_fill_at(&fill(cluster, local)).is_some();
    assert!(gets(EX, Local::Shared), "gets what there is");
    assert!(!gets(EX, Local::Exclusive) && gets(SH, Local::Exclusive));
    assert!(dropping(SH, &[1]).admits_fill_at(&shared).is_none(), "nothing is held");
    // A truncation comes before fills, if it can come at all.
    let cut = Fill { since: Time::ZERO, patience: Duration::ZERO, held: Held::Cut };
    for (mode, keeps_out) in [(EX, true), (SH, false)] {
        let mut glock = dropping(mode, &[0]);
        glock.queue_up(1, Request { fill: Some(cut), ..request(EX, Local::Exclusive) });
        assert_eq!(glock.admits_fill_at(&shared).is_none(), keeps_out, "{mode:?}");
    }
}

#[test]
fn the_end_of_a_use_is_told_if_somebody_can_go_on_and_no_demoter_comes_anyway() {
    let told = |changes: &[Change<'_>]| {
        let mut glock = seen(EX, &[0], &[]);
        let admission = glock.try_admit(EX, Local::Shared).unwrap();
        changes.iter().for_each(|change| change(&mut glock));
        glock.end(&admission)
    };
    assert!(!told(&[]));
    let [queue, demand, demotion, releasing] = CONCERNS;
    for somebody in [queue, demand, demotion, releasing] {
        assert!(told(&[somebody]));
    }
    let comes: [Change<'_>; 3] =
        [&|g| g.queued = true, &|g| g.working = true, &|g| g.visit = Some(Time::ZERO)];
    for come in comes {
        assert!(!told(&[come]) && !told(&[demand, come]) && !told(&[releasing, come]));
        assert!(told(&[queue, come]) && told(&[demotion, come]));
    }
}

#[test]
fn only_the_first_who_asks_for_a_lock_of_which_nothing_is_known_may_guess() {
    let asking = |mut glock: Glock<u8>| {
        glock.queue_up(1, request(SH, Local::Shared));
        glock.queue_up(2, request(SH, Local::Shared));
        glock
    };
    let mut glock = asking(Glock::new(LOCK));
    assert!(glock.may_guess(&1) && !glock.may_guess(&2));
    glock.guess(LockRecord::unlocked(LOCK, 3));
    assert!(glock.dlock.is_guess() && !glock.may_guess(&1), "once");
    assert!(!asking(seen(SH, &[1], &[])).may_guess(&1), "the record is known");
    let mut glock = asking(Glock::new(LOCK));
    glock.driver = Some(Driver::Demoter);
    assert!(!glock.may_guess(&1));
    let mut glock = asking(Glock::new(LOCK));
    step(&mut glock, Event::Want(SH));
    assert!(!glock.may_guess(&1), "it has been asked for");
    let mut glock = Glock::new(LOCK);
    glock.adopt(LOCK, 5, 9);
    assert!(!asking(glock).may_guess(&1), "it is held");
}
