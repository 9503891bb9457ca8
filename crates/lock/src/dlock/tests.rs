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
