use braid_format::lock_record::nodes_max;
use braid_format::{Incarnation, NodeId};
use proptest::prelude::*;

use super::*;

const LOCK: LockNo = LockNo(9);

fn me(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}
fn wants(slot: u16, mode: Mode) -> Waiter {
    Waiter { life: me(slot), mode }
}
fn record(mode: Mode, holders: &[u16], waiters: &[Waiter]) -> LockRecord {
    LockRecord {
        mode,
        holders: holders.iter().map(|h| me(*h)).collect(),
        waiters: waiters.to_vec(),
        ..LockRecord::unlocked(LOCK, 1)
    }
}
fn cx(slot: u16) -> Context {
    let poll = (Duration::from_millis(1), Duration::from_millis(8));
    Context { me: me(slot), now: Time::ZERO, nonce: 77, poll, ask: None, presumed: None }
}
fn seen(record: LockRecord) -> Seen {
    Seen { record: Arc::new(record), dead: Vec::new() }
}
/// A lock that waits, behind `record`.
fn waiting(slot: u16, mode: Mode, record: LockRecord) -> (Dlock, Vec<Action>) {
    let mut d = Dlock::new(LOCK);
    assert_eq!(d.step(&cx(slot), Event::Want(mode)), vec![Action::Read]);
    let actions = d.step(&cx(slot), Event::Read(seen(record)));
    (d, actions)
}
fn written(actions: &[Action]) -> &LockRecord {
    match actions {
        [.., Action::CompareAndWrite { new, .. }] => new,
        other => panic!("no write: {other:?}"),
    }
}
fn release(to: Mode, opened: bool) -> Event {
    Event::Released { to, opened, written: None }
}
fn giving(to: Mode, opened: bool) -> Giving {
    Giving { to, opened, written: None }
}
fn hints(actions: &[Action]) -> Vec<(u16, Hint)> {
    let hint = |a: &Action| match a {
        Action::Hint { to, hint } => Some((to.slot.0, hint.clone())),
        _ => None,
    };
    actions.iter().filter_map(hint).collect()
}

#[test]
fn a_free_lock_is_taken_by_one_write() {
    let (mut d, actions) = waiting(0, Mode::Exclusive, record(Mode::Unlocked, &[], &[]));
    let new = written(&actions);
    assert_eq!((new.mode, &new.holders, new.nonce), (Mode::Exclusive, &vec![me(0)], 77));
    assert_eq!(d.step(&cx(0), Event::Written), vec![Action::Granted(Mode::Exclusive)]);
    assert_eq!((d.held(), d.want(), d.timer()), (Mode::Exclusive, Mode::Unlocked, None));
}

#[test]
fn a_waiter_hints_those_in_the_way_and_polls_ever_more_rarely() {
    let (mut d, actions) = waiting(0, Mode::Exclusive, record(Mode::Shared, &[1, 2], &[]));
    assert_eq!(written(&actions).waiters, vec![wants(0, Mode::Exclusive)]);
    let actions = d.step(&cx(0), Event::Written);
    let wanted = |slot| (slot, Hint::Wanted(Mode::Exclusive));
    assert_eq!(hints(&actions), vec![wanted(1), wanted(2)]);
    let mut now = Time::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let at = d.timer().unwrap();
        pauses.push(at.saturating_sub(now).as_millis());
        now = at;
        let cx = Context { now, ..cx(0) };
        assert_eq!(d.step(&cx, Event::Timer), vec![Action::Read]);
        let r = record(Mode::Shared, &[1, 2], &[wants(0, Mode::Exclusive)]);
        let actions = d.step(&cx, Event::Read(seen(r)));
        assert_eq!(hints(&actions).len(), 2, "hints are sent again");
    }
    assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
}

#[test]
fn who_was_asked_before_it_had_the_lock_is_asked_again() {
    let there = record(Mode::Exclusive, &[1], &[]);
    let asking = Context { ask: Some(Duration::from_millis(5)), ..cx(0) };
    let mut d = Dlock::new(LOCK);
    d.step(&asking, Event::Want(Mode::Shared));
    let ask = |ticket| Hint::Ask { mode: Mode::Shared, ticket };
    assert_eq!(hints(&d.step(&asking, Event::Read(seen(there.clone())))), [(1, ask(77))]);
    // Node 1 hears the ask before the give that brings it the lock, and says: read the record.
    assert_eq!(d.step(&asking, Event::Look), [Action::Read]);
    let later = Context { nonce: 78, ..asking };
    assert_eq!(hints(&d.step(&later, Event::Read(seen(there)))), [(1, ask(78))]);
}

#[test]
fn a_release_hands_over_to_all_readers_at_the_head() {
    let r = record(
        Mode::Exclusive,
        &[0],
        &[wants(1, Mode::Shared), wants(2, Mode::Shared), wants(3, Mode::Exclusive)],
    );
    let mut d = Dlock::born(LOCK, 0);
    assert_eq!(d.step(&cx(0), Event::Look), vec![Action::Read]);
    assert_eq!(d.step(&cx(0), Event::Read(seen(r))), vec![Action::Demote(Mode::Unlocked)]);
    let actions = d.step(&cx(0), release(Mode::Unlocked, true));
    assert_eq!(d.held(), Mode::Unlocked, "belief goes first");
    let new = written(&actions);
    assert_eq!((new.mode, new.version), (Mode::Shared, 1));
    assert_eq!(new.holders, vec![me(1), me(2)]);
    assert_eq!(new.waiters, vec![wants(3, Mode::Exclusive)]);
    assert_eq!(new.openers, vec![me(0)]);
    let actions = d.step(&cx(0), Event::Written);
    assert_eq!(hints(&actions), vec![(1, Hint::Granted), (2, Hint::Granted)]);
    assert!(d.is_idle());
}

#[test]
fn only_readers_waiting_cost_a_writer_no_more_than_exclusiveness() {
    let r = record(Mode::Exclusive, &[0], &[wants(1, Mode::Shared)]);
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), Event::Look);
    assert_eq!(d.step(&cx(0), Event::Read(seen(r))), vec![Action::Demote(Mode::Shared)]);
    let actions = d.step(&cx(0), release(Mode::Shared, false));
    assert_eq!(written(&actions).holders, vec![me(0), me(1)]);
}

#[test]
fn writers_of_contents_stand_beside_one_another() {
    // The one that had it alone keeps what stands beside the wish.
    let r = record(Mode::Exclusive, &[0], &[wants(1, Mode::Concurrent)]);
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), Event::Look);
    assert_eq!(d.step(&cx(0), Event::Read(seen(r))), vec![Action::Demote(Mode::Concurrent)]);
    let left = Event::Released { to: Mode::Concurrent, opened: false, written: Some(0) };
    let actions = d.step(&cx(0), left);
    let both = written(&actions).clone();
    assert_eq!(
        (both.mode, &both.holders, both.version),
        (Mode::Concurrent, &vec![me(0), me(1)], 1)
    );
    // A reader that keeps what it read waits for both to leave; each leaves the time of its change.
    let (_, actions) = waiting(2, Mode::Shared, both.clone());
    let queued = written(&actions).clone();
    assert_eq!(queued.waiters, vec![wants(2, Mode::Shared)]);
    assert_eq!(allowed(&queued, me(0)).meet(Mode::Concurrent), Mode::Unlocked);
    let leave = |at| Giving { to: Mode::Unlocked, opened: false, written: Some(at) };
    let one = released(&queued, &[], &cx(0), leave(90), &[]);
    assert_eq!((one.mode, one.written, one.version), (Mode::Concurrent, 90, 2));
    let none = released(&one, &[], &cx(1), leave(70), &[]);
    assert_eq!((none.mode, none.written, &none.holders), (Mode::Shared, 90, &vec![me(2)]));
    assert_eq!(none.version, 3, "what was cached before is void");
}

#[test]
fn who_holds_one_of_two_modes_that_do_not_cover_each_other_asks_for_what_covers_both() {
    let (mut d, actions) = waiting(0, Mode::Concurrent, record(Mode::Concurrent, &[1], &[]));
    let r = written(&actions).clone();
    assert_eq!(d.step(&cx(0), Event::Written), vec![Action::Granted(Mode::Concurrent)]);
    let actions = d.step(&cx(0), Event::Want(Mode::Shared));
    assert_eq!(written(&actions).waiters, vec![wants(0, Mode::Exclusive)]);
    d.step(&cx(0), Event::Written);
    // Its hold is not turned into another under it; when the other one leaves, it has all.
    assert_eq!(d.held(), Mode::Concurrent);
    let giving = Giving { to: Mode::Unlocked, opened: false, written: None };
    let queued = LockRecord { waiters: vec![wants(0, Mode::Exclusive)], ..r };
    let alone = released(&queued, &[], &cx(1), giving, &[]);
    assert_eq!((alone.mode, &alone.holders), (Mode::Exclusive, &vec![me(0)]));
}

#[test]
fn the_time_of_changes_leaves_the_record_with_who_has_put_it_in_place() {
    let mut r = record(Mode::Exclusive, &[0], &[]);
    r.written = 90;
    let leave = |written| Giving { to: Mode::Unlocked, opened: false, written };
    assert_eq!(released(&r, &[], &cx(0), leave(None), &[]).written, 90);
    assert_eq!(released(&r, &[], &cx(0), leave(Some(0)), &[]).written, 0);
    // One that died before is not believed to have.
    let mut after = r.clone();
    purge(&mut after, &[me(0)], me(1));
    assert_eq!((after.mode, after.written), (Mode::Unlocked, 90));
}

#[test]
fn of_two_upgraders_the_second_gives_way() {
    let queue = [wants(0, Mode::Exclusive), wants(1, Mode::Exclusive)];
    let r = record(Mode::Shared, &[0, 1], &queue);
    assert_eq!(allowed(&r, me(0)), Mode::Exclusive);
    assert_eq!(allowed(&r, me(1)), Mode::Unlocked);
    let mut after = released(&r, &[], &cx(1), giving(Mode::Unlocked, false), &[]);
    assert_eq!((after.mode, &after.holders), (Mode::Exclusive, &vec![me(0)]));
    assert_eq!(after.waiters, vec![wants(1, Mode::Exclusive)]);
    after.mode = Mode::Exclusive;
    assert_eq!(after.check(), Ok(()));
}

#[test]
fn as_many_readers_as_nodes_stand_beside_one_another() {
    let nodes = u16::try_from(nodes_max(512)).unwrap();
    let mut r = record(Mode::Unlocked, &[], &[]);
    for slot in (0..nodes).rev() {
        let (_, actions) = waiting(slot, Mode::Shared, r);
        r = written(&actions).clone();
        assert_eq!(r.mode_of(me(slot)), Mode::Shared, "no reader waits for readers");
    }
    assert_eq!((r.holders.len(), allowed(&r, me(0))), (nodes.into(), Mode::Exclusive));
    // A writer waits for each of them, and each leaves with the file open.
    let (_, actions) = waiting(5, Mode::Exclusive, r);
    r = written(&actions).clone();
    assert_eq!(in_the_way(&r, me(5)).count(), usize::from(nodes) - 1);
    for slot in (0..nodes).filter(|n| *n != 5) {
        assert_eq!(allowed(&r, me(slot)), Mode::Unlocked);
        r = released(&r, &[], &cx(slot), giving(Mode::Unlocked, true), &[]);
    }
    assert_eq!((r.mode, &r.holders), (Mode::Exclusive, &vec![me(5)]));
    let all: Vec<Life> = (0..nodes).filter(|n| *n != 5).map(me).collect();
    assert_eq!(r.openers, all);
    let mut sector = vec![0; 512];
    r.encode(&mut sector);
    assert_eq!(LockRecord::decode(&sector, LOCK), Ok(r));
}

#[test]
fn every_node_gets_a_place_in_the_queue() {
    let nodes = u16::try_from(nodes_max(512)).unwrap();
    let mut r = record(Mode::Exclusive, &[0], &[]);
    for slot in 1..nodes {
        let (d, actions) = waiting(slot, Mode::Exclusive, r);
        r = written(&actions).clone();
        assert!(d.want() == Mode::Exclusive && r.waiters.len() == usize::from(slot));
    }
    for slot in 1..nodes {
        r = released(&r, &[], &cx(slot - 1), giving(Mode::Unlocked, false), &[]);
        assert_eq!(r.holders, vec![me(slot)], "first come, first served");
    }
}

#[test]
fn the_dead_are_dropped_and_count_as_a_release() {
    let mut r = record(Mode::Exclusive, &[1], &[wants(2, Mode::Shared)]);
    r.openers = vec![me(1), me(3)];
    let dead = vec![me(1), me(2)];
    let mut d = Dlock::new(LOCK);
    d.step(&cx(0), Event::Want(Mode::Shared));
    let seen = Seen { record: Arc::new(r), dead };
    let actions = d.step(&cx(0), Event::Read(seen));
    let new = written(&actions);
    assert_eq!((new.mode, &new.holders, new.version), (Mode::Shared, &vec![me(0)], 1));
    assert_eq!(new.openers, vec![me(3)]);
}

#[test]
fn an_older_life_of_the_own_slot_is_dead() {
    let mut r = record(Mode::Exclusive, &[0], &[]);
    r.holders[0].incarnation = Incarnation(0);
    let (_, actions) = waiting(0, Mode::Exclusive, r);
    assert_eq!(written(&actions).holders, vec![me(0)]);
}

/// However often slots are taken anew, a slot stands in a record in one life, so that there is room for
/// all.
#[test]
fn a_new_life_enters_a_record_without_the_older_ones() {
    let old = |slot, incarnation| Life { incarnation: Incarnation(incarnation), ..me(slot) };
    let mut r = record(Mode::Shared, &[1], &[]);
    r.add_holder(old(0, 7));
    r.add_opener(old(0, 7));
    r.waiters.push(Waiter { life: old(0, 7), mode: Mode::Exclusive });
    let (_, actions) = waiting(0, Mode::Shared, r.clone());
    let new = written(&actions);
    assert_eq!((&new.holders, &new.openers, &new.waiters), (&vec![me(0), me(1)], &vec![], &vec![]));
    // The same by a release that leaves an opener.
    r.add_holder(me(2));
    r.openers = vec![old(2, 9)];
    let after = released(&r, &[], &cx(2), giving(Mode::Unlocked, true), &[]);
    assert_eq!((after.openers, after.holders.len()), (vec![me(2)], 2));
}

#[test]
fn an_unknown_release_is_carried_through_whatever_is_wanted_meanwhile() {
    let r = record(Mode::Exclusive, &[0], &[wants(1, Mode::Exclusive)]);
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), Event::Look);
    d.step(&cx(0), Event::Read(seen(r.clone())));
    let first = d.step(&cx(0), release(Mode::Unlocked, false));
    assert_eq!(d.step(&cx(0), Event::Failed), vec![Action::Read], "settled by reading");
    assert_eq!(d.step(&cx(0), Event::Want(Mode::Shared)), vec![]);
    let again = d.step(&cx(0), Event::Read(seen(r)));
    assert_eq!(written(&first).holders, written(&again).holders, "it may still land: no way back");
    assert_eq!(d.held(), Mode::Unlocked);
}

#[test]
fn a_lock_says_how_it_stands() {
    let mut d = Dlock::new(LOCK);
    assert!(d.is_idle() && d.known().is_none());
    d.step(&cx(0), Event::Want(Mode::Exclusive));
    assert!(d.is_busy() && d.is_reading() && !d.is_idle());
    let free = record(Mode::Unlocked, &[], &[]);
    d.step(&cx(0), Event::Read(seen(free.clone())));
    assert!(d.is_busy() && !d.is_reading());
    assert_eq!(d.known(), Some(&free), "what is being written does not stand yet");
    d.step(&cx(0), Event::Written);
    assert!(!d.is_busy() && !d.is_giving() && !d.is_idle(), "held");
    d.step(&cx(0), release(Mode::Unlocked, false));
    assert!(d.is_giving() && !d.is_idle(), "held no more, and not yet in the record");
    d.step(&cx(0), Event::Written);
    assert!(d.is_idle() && !d.is_giving());
    // Neither held nor in flight, but wanted.
    let (mut d, _) = waiting(0, Mode::Exclusive, record(Mode::Exclusive, &[1], &[]));
    d.step(&cx(0), Event::Written);
    assert!(!d.is_busy() && !d.is_idle());
}

#[test]
fn a_guess_stands_for_the_first_read() {
    let guess = record(Mode::Unlocked, &[], &[]);
    let mut d = Dlock::new(LOCK);
    assert!(!d.is_guess());
    d.guess(guess.clone());
    assert!(d.is_guess() && d.held() == Mode::Unlocked);
    let actions = d.step(&cx(0), Event::Want(Mode::Shared));
    let [Action::CompareAndWrite { expected, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(**expected, guess);
    let there = LockRecord { nonce: 5, ..guess.clone() };
    let actions = d.step(&cx(0), Event::Mismatch(seen(there.clone())));
    assert!(!d.is_guess() && written(&actions).holders == [me(0)]);
    // Where a record is known, or on its way, there is nothing to guess.
    d.step(&cx(0), Event::Written);
    d.step(&cx(0), release(Mode::Unlocked, false));
    d.step(&cx(0), Event::Written);
    d.guess(guess.clone());
    assert!(!d.is_guess() && d.is_idle());
    let mut d = Dlock::new(LOCK);
    d.step(&cx(0), Event::Want(Mode::Shared));
    d.guess(guess);
    assert!(!d.is_guess() && d.known().is_none());
}

#[test]
fn what_fails_is_tried_ever_more_rarely_until_it_succeeds() {
    let mut d = Dlock::new(LOCK);
    d.step(&cx(0), Event::Want(Mode::Shared));
    assert_eq!(d.step(&cx(0), Event::Failed), [Action::Read], "the first is settled at once");
    let mut now = Time::ZERO;
    for (failures, pause) in [(2, 1), (3, 2), (4, 4), (5, 8), (6, 8)] {
        let cx = Context { now, ..cx(0) };
        assert_eq!(d.step(&cx, Event::Failed), []);
        assert_eq!((d.failures(), d.timer()), (failures, Some(now + Duration::from_millis(pause))));
        now = d.timer().unwrap();
        assert_eq!(d.step(&Context { now, ..cx }, Event::Timer), [Action::Read]);
    }
    let cx = Context { now, ..cx(0) };
    d.step(&cx, Event::Read(seen(record(Mode::Exclusive, &[1], &[]))));
    assert_eq!(d.failures(), 0);
    assert_eq!(d.step(&cx, Event::Failed), [Action::Read], "the first again");
}

#[test]
fn a_pause_after_failures_is_kept_while_something_is_to_be_given_up() {
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), release(Mode::Unlocked, false));
    d.step(&cx(0), Event::Failed);
    d.step(&cx(0), Event::Failed);
    assert_eq!(d.step(&cx(0), Event::Unwant), []);
    assert_eq!(d.timer(), Some(Duration::from_millis(1)));
    // Who needs nothing has nothing to try again.
    let mut d = Dlock::new(LOCK);
    d.step(&cx(0), Event::Want(Mode::Shared));
    d.step(&cx(0), Event::Failed);
    d.step(&cx(0), Event::Failed);
    assert_eq!(d.step(&cx(0), Event::Unwant), []);
    assert_eq!(d.timer(), None);
}

#[test]
fn who_wants_no_more_leaves_the_queue() {
    let (mut d, actions) = waiting(0, Mode::Exclusive, record(Mode::Exclusive, &[1], &[]));
    let queued = written(&actions).clone();
    d.step(&cx(0), Event::Written);
    let actions = d.step(&cx(0), Event::Unwant);
    assert_eq!(queued.waiters, [wants(0, Mode::Exclusive)]);
    assert_eq!((&written(&actions).waiters, &written(&actions).holders), (&vec![], &vec![me(1)]));
}

#[test]
fn more_is_demanded_only_if_others_want_more() {
    let read = |d: &mut Dlock, wish| {
        d.step(&cx(0), Event::Look);
        d.step(&cx(0), Event::Read(seen(record(Mode::Exclusive, &[0], &[wants(1, wish)]))))
    };
    let mut d = Dlock::born(LOCK, 0);
    assert_eq!(read(&mut d, Mode::Shared), [Action::Demote(Mode::Shared)]);
    assert_eq!(read(&mut d, Mode::Shared), []);
    assert_eq!(read(&mut d, Mode::Exclusive), [Action::Demote(Mode::Unlocked)]);
    assert_eq!(read(&mut d, Mode::Shared), []);
}

#[test]
fn only_who_can_make_room_is_hinted() {
    let queue = [wants(0, Mode::Exclusive), wants(1, Mode::Exclusive)];
    let r = record(Mode::Shared, &[0, 1], &queue);
    assert_eq!(in_the_way(&r, me(0)).collect::<Vec<_>>(), [me(1)]);
    assert_eq!(
        in_the_way(&r, me(1)).count(),
        0,
        "the first waits for the second, which knows that"
    );
    assert_eq!(in_the_way(&r, me(2)).count(), 0, "who does not wait has nobody in the way");
}

#[test]
fn a_waiter_that_takes_a_dead_holders_place_tells_nobody() {
    let queue = [wants(0, Mode::Exclusive), wants(2, Mode::Exclusive)];
    let r = record(Mode::Exclusive, &[1], &queue);
    let mut d = Dlock::new(LOCK);
    d.step(&cx(0), Event::Want(Mode::Exclusive));
    let dead = Seen { record: Arc::new(r), dead: vec![me(1)] };
    assert_eq!(written(&d.step(&cx(0), Event::Read(dead))).holders, [me(0)]);
    let actions = d.step(&cx(0), Event::Written);
    assert_eq!(hints(&actions), []);
    assert_eq!(actions, [Action::Granted(Mode::Exclusive), Action::Demote(Mode::Unlocked)]);
}

#[test]
fn an_opener_is_left_by_who_has_the_file_open_and_keeps_nothing() {
    let r = record(Mode::Exclusive, &[0], &[]);
    let openers = |to, opened| released(&r, &[], &cx(0), giving(to, opened), &[]).openers;
    assert_eq!(openers(Mode::Unlocked, true), [me(0)]);
    assert_eq!(openers(Mode::Unlocked, false), []);
    assert_eq!(openers(Mode::Shared, true), []);
}

fn asked(slot: u16, mode: Mode, ticket: u64) -> Event {
    Event::Asked { from: me(slot), mode, ticket }
}
fn granted(slot: u16) -> (u16, Hint) {
    (slot, Hint::Granted)
}

#[test]
fn who_asks_gets_the_lock_by_one_write_and_its_record() {
    let mut d = Dlock::born(LOCK, 0);
    assert_eq!(d.step(&cx(0), asked(1, Mode::Shared, 4)), [Action::Demote(Mode::Shared)]);
    // Of one node the newest ask counts.
    assert_eq!(d.step(&cx(0), asked(1, Mode::Exclusive, 5)), [Action::Demote(Mode::Unlocked)]);
    assert_eq!(d.step(&cx(0), asked(2, Mode::Exclusive, 6)), []);
    let actions = d.step(&cx(0), release(Mode::Unlocked, false));
    let new = written(&actions).clone();
    assert_eq!((&new.holders, &new.waiters), (&vec![me(1)], &vec![wants(2, Mode::Exclusive)]));
    // The second waits in the record now, and hears when its turn has come.
    let give = Hint::Give { ticket: 5, record: Arc::new(new) };
    assert_eq!(hints(&d.step(&cx(0), Event::Written)), [(1, give)]);
    assert!(d.is_idle());
}

#[test]
fn who_asks_one_that_is_not_in_the_way_is_told_to_read() {
    let mut nothing = Dlock::new(LOCK);
    assert_eq!(hints(&nothing.step(&cx(0), asked(1, Mode::Shared, 1))), [granted(1)]);
    let readers = record(Mode::Shared, &[0], &[wants(2, Mode::Exclusive)]);
    let (mut d, _) = waiting(0, Mode::Shared, readers);
    assert_eq!(d.held(), Mode::Shared);
    // Readers stand beside one another.
    assert_eq!(hints(&d.step(&cx(0), asked(1, Mode::Shared, 1))), [granted(1)]);
    assert_eq!(hints(&d.step(&cx(0), asked(1, Mode::Exclusive, 2))), []);
    // Who stands in the queue already has its way.
    assert_eq!(hints(&d.step(&cx(0), asked(2, Mode::Exclusive, 3))), [granted(2)]);
    let actions = d.step(&cx(0), release(Mode::Unlocked, false));
    let new = written(&actions);
    assert_eq!((&new.holders, &new.waiters), (&vec![me(2)], &vec![wants(1, Mode::Exclusive)]));
}

#[test]
fn asks_come_after_the_own_place_in_the_queue_and_besides_that_of_others() {
    let upgrade = record(Mode::Shared, &[0, 3], &[wants(0, Mode::Exclusive)]);
    let (mut d, _) = waiting(0, Mode::Exclusive, upgrade);
    assert_eq!(d.held(), Mode::Shared);
    let actions = d.step(&cx(0), asked(1, Mode::Exclusive, 1));
    assert_eq!(actions.len(), 1, "nothing is demanded");
    let queue = [wants(0, Mode::Exclusive), wants(1, Mode::Exclusive)];
    assert_eq!(written(&actions).waiters, queue);
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), Event::Look);
    let queued = record(Mode::Exclusive, &[0], &[wants(2, Mode::Shared)]);
    assert_eq!(d.step(&cx(0), Event::Read(seen(queued))), [Action::Demote(Mode::Shared)]);
    assert_eq!(d.step(&cx(0), asked(1, Mode::Exclusive, 1)), [Action::Demote(Mode::Unlocked)]);
}

#[test]
fn the_dead_get_nothing_that_they_asked_for() {
    let mut d = Dlock::born(LOCK, 0);
    d.step(&cx(0), asked(1, Mode::Exclusive, 1));
    d.step(&cx(0), asked(2, Mode::Exclusive, 2));
    d.step(&cx(0), Event::Look);
    let r = Arc::new(record(Mode::Exclusive, &[0], &[]));
    d.step(&cx(0), Event::Read(Seen { record: r, dead: vec![me(1)] }));
    let actions = d.step(&cx(0), release(Mode::Unlocked, false));
    let new = written(&actions);
    assert_eq!((&new.holders, &new.waiters), (&vec![me(2)], &vec![]));
}

#[test]
fn who_asks_enters_the_record_unless_an_older_life_of_its_slot_stands_there() {
    let young = Life { incarnation: Incarnation(2), ..me(1) };
    let by = |life| [Ask { life, mode: Mode::Exclusive, ticket: 1, in_write: false }];
    let leave = giving(Mode::Unlocked, false);
    let holders = |openers: &[Life], life| {
        let r = LockRecord { openers: openers.to_vec(), ..record(Mode::Exclusive, &[0], &[]) };
        released(&r, &[], &cx(0), leave, &by(life)).holders
    };
    assert_eq!(holders(&[me(1), me(3)], me(1)), [me(1)], "other slots, and itself, do not matter");
    assert_eq!(holders(&[me(3), me(1)], young), []);
    assert_eq!(holders(&[], me(0)), [], "nobody asks itself");
}

/// Asks for the lock, which node 1 holds, with ticket 77.
fn asking() -> (Dlock, Context) {
    let cx = Context { ask: Some(Duration::from_millis(5)), ..cx(0) };
    let mut d = Dlock::new(LOCK);
    d.step(&cx, Event::Want(Mode::Exclusive));
    let actions = d.step(&cx, Event::Read(seen(record(Mode::Exclusive, &[1], &[]))));
    let ask = Hint::Ask { mode: Mode::Exclusive, ticket: 77 };
    assert_eq!(hints(&actions), [(1, ask)]);
    (d, cx)
}

#[test]
fn a_give_is_believed_only_by_the_ticket_that_is_outstanding() {
    let given =
        |ticket, slot| Event::Given { ticket, seen: seen(record(Mode::Exclusive, &[slot], &[])) };
    let (mut d, cx) = asking();
    assert_eq!(d.step(&cx, given(77, 0)), [Action::Granted(Mode::Exclusive)]);
    // One that was overtaken, and one that gives nothing: the record is read.
    for event in [given(76, 0), given(77, 1)] {
        let (mut d, cx) = asking();
        assert_eq!(d.step(&cx, event), [Action::Read]);
        assert_eq!(d.held(), Mode::Unlocked);
        // While that is under way the record that comes with a give may be older.
        assert_eq!(d.step(&cx, given(77, 0)), []);
        assert_eq!(d.held(), Mode::Unlocked);
    }
}

#[test]
fn an_ask_without_an_answer_is_followed_by_the_queue() {
    let (mut d, cx) = asking();
    assert_eq!(d.step(&cx, Event::Want(Mode::Shared)), [], "asked once");
    let late = Context { now: d.timer().unwrap(), nonce: 78, ..cx };
    assert_eq!(late.now, Duration::from_millis(5));
    assert_eq!(d.step(&late, Event::Timer), [Action::Read]);
    let actions = d.step(&late, Event::Read(seen(record(Mode::Exclusive, &[1], &[]))));
    assert_eq!(written(&actions).waiters, [wants(0, Mode::Exclusive)]);
    // Where others wait nobody is asked to pass them by.
    let mut d = Dlock::new(LOCK);
    d.step(&cx, Event::Want(Mode::Exclusive));
    let queue = [wants(2, Mode::Shared)];
    let actions = d.step(&cx, Event::Read(seen(record(Mode::Exclusive, &[1], &queue))));
    assert_eq!(written(&actions).waiters, [queue[0], wants(0, Mode::Exclusive)]);
}

#[test]
fn who_probably_holds_the_lock_is_asked_before_anything_is_read() {
    let patience = Duration::from_millis(5);
    let cx = Context { ask: Some(patience), presumed: Some(me(1)), ..cx(0) };
    let mut d = Dlock::new(LOCK);
    let ask = Action::Hint { to: me(1), hint: Hint::Ask { mode: Mode::Shared, ticket: 77 } };
    assert_eq!(d.step(&cx, Event::Want(Mode::Shared)), [ask]);
    assert_eq!(d.timer(), Some(patience));
    assert_eq!(d.step(&cx, Event::Look), [Action::Read], "it has nothing to give");
    // Nor is it asked again after it has not answered.
    let mut d = Dlock::new(LOCK);
    d.step(&cx, Event::Want(Mode::Shared));
    let late = Context { now: patience, nonce: 78, ..cx };
    assert_eq!(d.step(&late, Event::Timer), [Action::Read]);
    assert_eq!(d.step(&late, Event::Failed), [Action::Read]);
}

proptest! {
    /// Whatever stands in a record, what this node makes of it keeps the record's invariants, and
    /// nobody living loses a hold or a place.
    #[test]
    fn every_change_keeps_the_record_valid(
        mode in 0_u16..4,
        holders in proptest::sample::subsequence((0_u16..30).collect::<Vec<_>>(), 0..29),
        queue in proptest::sample::subsequence((0_u16..40).collect::<Vec<_>>(), 0..13),
        modes in proptest::collection::vec(1_u16..4, 13),
        openers in proptest::sample::subsequence((0_u16..45).collect::<Vec<_>>(), 0..45),
        slot in 0_u16..45,
        want in 1_u16..4,
    ) {
        let mode = Mode::from_u16(mode).unwrap();
        let mut holders = holders;
        match mode {
            Mode::Unlocked => holders.clear(),
            Mode::Exclusive => holders.truncate(1),
            Mode::Shared | Mode::Concurrent => {}
        }
        let pick = |n: u16| Mode::from_u16(n).unwrap();
        let waiters: Vec<Waiter> = queue.iter().zip(modes).map(|(s, m)| wants(*s, pick(m))).collect();
        let mut old = record(mode, &holders, &waiters);
        old.openers = openers.into_iter().map(me).collect();
        prop_assume!(old.check().is_ok());
        let opened = |r: &LockRecord, but: u16| {
            r.openers.iter().copied().filter(|l| *l != me(but)).collect::<Vec<_>>()
        };
        let has = old.mode_of(me(slot));
        if !has.covers(pick(want)) {
            let mut new = old.clone();
            enqueue(&mut new, me(slot), has.join(pick(want)));
            advance(&mut new);
            prop_assert_eq!(new.check(), Ok(()));
            let kept = old.holders.iter().all(|l| new.holders.contains(l));
            prop_assert!(kept, "{:?} -> {:?}", old, new);
            prop_assert_eq!(&new.openers, &old.openers);
        }
        if has > Mode::Unlocked {
            for to in [Mode::Unlocked, Mode::Shared, Mode::Concurrent] {
                if to < old.mode {
                    let new = released(&old, &[], &cx(slot), giving(to, true), &[]);
                    prop_assert_eq!(new.check(), Ok(()));
                    prop_assert_eq!(opened(&new, slot), opened(&old, slot));
                    prop_assert!(to > Mode::Unlocked || new.openers.contains(&me(slot)));
                    prop_assert!(to.covers(new.mode_of(me(slot))) || old.waiters.first().is_some_and(|w| w.life == me(slot)));
                }
            }
        }
    }
}
