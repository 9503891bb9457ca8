//! A resource group that cannot be used, or a space lock that is lost, keeps no other space from use;
//! what ends everything is told as that.

use braid_lock::LockError;
use braid_lock::interrupt::Interrupt;

use super::*;

/// What `dead` holds of locks is lost until a repair.
fn lose(c: &Cluster, dead: &Node) {
    dead.locks.withdraw();
    c.net.lost.lock().insert(dead.me);
}

/// What stands at the place of the lock of `block` is no record.
fn spoil_lock(c: &Cluster, block: BlockNo) {
    let mut sector = AlignedBuf::zeroed(c.volume.geo.lock_sector.to_usize());
    sector.fill(0x5a);
    c.pool.write(c.volume.slot_at(block), &sector).unwrap();
}

fn has_withdrawn<T>(result: Result<T>) -> bool {
    result.err().is_some_and(|e| matches!(e, Error::Lock(LockError::Withdrawn)))
}

/// What is takeable in this node's open windows of a group.
fn takeable(node: &Node, index: u64) -> u64 {
    let state = node.alloc.inner.state.lock();
    let open = state.windows.iter().filter(|w| w.is_open() && w.group == index);
    open.map(|w| w.data.count()).sum()
}

/// Takes a window in each of these groups.
fn take_windows(node: &Node, groups: impl IntoIterator<Item = u64>) {
    for index in groups {
        let mut r = node.alloc.reserve(1, 0, 0).unwrap();
        drop(node.alloc.claim_in(&mut r, 1, &|group| group == index).unwrap().unwrap());
        assert!(takeable(node, index) > 0);
    }
}

#[test]
fn a_space_lock_that_is_lost_keeps_no_space_from_use() {
    let c = Cluster::new(64);
    let (node, dead) = (c.node(0, 1), c.node(1, 1));
    drop(dead.alloc.inner.share(Mode::Exclusive).unwrap());
    lose(&c, &dead);
    let share = &node.alloc.inner.share;
    let runs = node.write(10).unwrap();
    node.alloc.keep_share().unwrap();
    node.erase(&runs).unwrap();
    assert!(!share.is_held());
    let all = node.alloc.totals().free;
    assert!(matches!(node.alloc.reserve(all + 1, 0, 0), Err(Error::NoSpace)));
    node.write(all).unwrap();
    node.leave();
}

#[test]
fn a_node_that_has_withdrawn_is_told_so_and_not_that_there_is_no_space() {
    for c in [Cluster::new(64), Cluster::for_one(64)] {
        let node = c.node(0, 1);
        node.write(10).unwrap();
        node.alloc.inner.share.note(false);
        let all = node.alloc.totals().free;
        node.locks.withdraw();
        assert!(has_withdrawn(node.alloc.reserve(all, 0, 0)));
        if node.alloc.inner.share.is_common() {
            assert!(has_withdrawn(node.alloc.reserve(0, 0, 1)));
            assert!(has_withdrawn(node.alloc.keep_share()));
        }
    }
}

#[test]
fn a_node_that_has_withdrawn_hands_nothing_out_and_says_so() {
    for parts in [false, true] {
        let c = Cluster::new(64);
        let (node, other) = (c.node(0, 1), c.node(1, 1));
        let start = other.write_in(0, 10);
        let kept = if parts {
            // Its windows stay, and go back in parts.
            let mut r = node.alloc.reserve(20, 0, 0).unwrap();
            [0, 1].map(|index| node.alloc.claim_in(&mut r, 10, &|group| group == index).unwrap())
        } else {
            node.erase(&[(start, 10)]).unwrap();
            node.meta.commit().unwrap();
            [None, None]
        };
        let has = || (takeable(&node, 0), takeable(&node, 1), node.alloc.reserved());
        let had = has();
        node.locks.withdraw();
        assert!(has_withdrawn(node.alloc.hand_out()));
        assert_eq!(has(), had);
        drop(kept);
    }
}

#[test]
fn what_a_damaged_group_cannot_take_stays_with_the_node_and_the_others_get_theirs() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    let mut r = node.alloc.reserve(20, 0, 0).unwrap();
    let mut claim = |index| {
        let run = node.alloc.claim_in(&mut r, 10, &|group| group == index).unwrap();
        run.unwrap()
    };
    let (first, second) = (claim(0), claim(1));
    let had = takeable(&node, 0);
    assert!(had > 0 && takeable(&node, 1) > 0);
    node.spoil(&c, 0);
    node.alloc.hand_out().unwrap();
    assert_eq!((takeable(&node, 0), takeable(&node, 1)), (had, 0));
    let Use { data, .. } = node.alloc.look_at(1).unwrap();
    assert_eq!(data, 10, "what is claimed");
    // It is used, without its group.
    let mut rest = node.alloc.reserve(had, 0, 0).unwrap();
    let run = node.alloc.claim_in(&mut rest, had, &|group| group == 0).unwrap().unwrap();
    node.alloc.commit_run(&mut node.meta.begin().unwrap(), run, had).unwrap();
    drop((first, second));
}

#[test]
fn windows_of_other_groups_go_back_beside_those_of_a_damaged_one() {
    type Step = fn(&Alloc) -> Result<()>;
    // What is done, and whether it tells of the damage.
    let steps: [(Step, bool); 4] = [
        (Alloc::hand_out, false),
        (Alloc::shrink, true),
        (Alloc::maintain, true),
        (Alloc::close, true),
    ];
    for (n, (step, tells)) in (0..).zip(steps) {
        let c = Cluster::new(64);
        let (node, other) = (c.node(0, 1), c.node(1, 1));
        let start = other.write_in(1, 10);
        other.alloc.shrink().unwrap();
        take_windows(&node, [0, 1, 2]);
        // Freed runs, too, are for that group.
        node.erase(&[(start, 10)]).unwrap();
        node.meta.commit().unwrap();
        node.spoil(&c, 1);
        // Space is short, and the node idle.
        let later = Instant::now() + Duration::from_hours(1);
        let short = Counters { free: 100, inodes: 1, meta: 100 };
        *node.alloc.inner.counters.lock() = (later, short);
        node.alloc.inner.refill.lock().claims = node.alloc.inner.state.lock().claims;
        let done = step(&node.alloc);
        let told = done.inspect_err(|e| assert!(e.is_of_one_group(), "step {n}: {e}")).is_err();
        assert_eq!(told, tells, "step {n}");
        assert_eq!(node.open_windows(), 0, "step {n}");
        for index in [0, 2] {
            let Use { data, .. } = node.alloc.look_at(index).unwrap();
            assert_eq!(data, 0, "step {n}, group {index}");
        }
        if node.alloc.inner.share.closed.load(Ordering::Relaxed) {
            assert_eq!(
                node.alloc.deltas(),
                Deltas::default(),
                "they are in the cluster's counters"
            );
        } else {
            drop(node.alloc.reserve(100, 1, 0).unwrap());
        }
    }
}

#[test]
fn a_damaged_lock_record_keeps_no_other_group_from_getting_its_windows_back() {
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    take_windows(&node, [0, 1, 2]);
    node.locks.drop_idle(0);
    spoil_lock(&c, c.volume.rgrp(1));
    let told = node.alloc.close().unwrap_err();
    assert!(told.is_of_one_group() && told.is_lost_lock(), "{told}");
    // Its window stays with the slot.
    let private = node.alloc.inner.private();
    let windows = (0..RawSuperblock::WINDOWS).filter_map(|n| private.read_window(n).unwrap());
    assert_eq!(windows.map(|w| w.group).collect::<Vec<_>>(), [1]);
    for index in [0, 2] {
        assert_eq!(node.alloc.look_at(index).unwrap().data, 0, "group {index}");
    }
    assert_eq!(node.alloc.deltas(), Deltas::default(), "they are in the cluster's counters");
    // That of the counters: what is to be counted stays with the slot.
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    node.write(10).unwrap();
    let had = node.alloc.deltas();
    let counters = BlockNo::from(c.volume.named(RawSuperblock::NAMED_COUNTERS));
    spoil_lock(&c, counters);
    let told = node.alloc.close().unwrap_err();
    assert!(told.is_lost_lock(), "{told}");
    assert!(had.free < 0 && node.alloc.deltas() == had, "{had:?}");
    assert_eq!(node.alloc.inner.private().read_counts().unwrap(), had);
}

#[test]
fn freed_blocks_are_found_beside_frees_of_a_damaged_group() {
    let c = Cluster::new(64);
    let (node, other) = (c.node(0, 1), c.node(1, 1));
    let runs = [0, 1].map(|index| (other.write_in(index, 10), 10));
    other.write(other.alloc.totals().free).unwrap();
    other.meta.commit().unwrap();
    node.erase(&runs).unwrap();
    other.spoil(&c, 0);
    assert_eq!(node.write(10).unwrap(), runs[1..]);
    let refused = node.alloc.reserve(1, 0, 0);
    assert!(matches!(refused, Err(Error::NoSpace)), "it is not told of damage: {refused:?}");
}

#[test]
fn places_of_the_free_log_are_found_beside_frees_of_a_damaged_group() {
    let c = Cluster::new(64);
    let (node, other) = (c.node(0, 1), c.node(1, 1));
    let runs = [0, 1].map(|index| (other.write_in(index, 10), 10));
    let more = other.write_in(1, 10);
    other.alloc.shrink().unwrap();
    node.erase(&runs).unwrap();
    other.spoil(&c, 0);
    let all = node.alloc.inner.state.lock().log.capacity();
    let half = node.alloc.reserve(0, 0, all / 2).unwrap();
    let rest = node.alloc.reserve(0, 0, all - all / 2 - 2).unwrap();
    drop(node.alloc.reserve(0, 0, 1).unwrap());
    drop((half, rest));
    // What could be applied was.
    let inner = &node.alloc.inner;
    let drained = || inner.drain_usable(&mut inner.refill.lock()).unwrap().applied;
    assert!(!drained());
    node.erase(&[(more, 10)]).unwrap();
    assert_eq!([drained(), drained()], [true, false]);
    // Where nobody has reserved a place, none will be free: that is said at once.
    let (mut waits, began) = (0, std::time::Instant::now());
    let places = inner.state.lock().log.capacity() / 2;
    let room = inner.room_in_log(&mut inner.refill.lock(), places, &mut waits);
    assert!(matches!(&room, Err(e) if e.is_of_one_group()), "{room:?}");
    assert!(waits == 0 && began.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn whoever_is_interrupted_is_told_so_whatever_else_is_damaged() {
    let c = Cluster::new(64);
    let (node, other) = (c.node(0, 1), c.node(1, 1));
    let runs = [0, 1].map(|index| (other.write_in(index, 10), 10));
    node.erase(&runs).unwrap();
    node.meta.commit().unwrap();
    other.spoil(&c, 1);
    // The other has the first group's lock; that of the second, which is damaged, is here.
    let heads = [0, 1].map(|index| LockNo::from(c.volume.rgrp(index)));
    let take = |by: &Node, lock| by.locks.acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap();
    drop(take(&node, heads[1]));
    let guard = take(&other, heads[0]);
    let interrupt = Interrupt::of_steps();
    interrupt.trip_current();
    {
        let _scope = interrupt.scope();
        let drained = node.alloc.drain_frees();
        assert!(matches!(drained, Err(Error::Lock(LockError::Interrupted))), "{drained:?}");
    }
    drop(guard);
    assert!(node.alloc.drain_frees().unwrap_err().is_of_one_group());
    assert_eq!(node.alloc.inner.state.lock().log.entries().len(), 1);
}

#[test]
fn slots_are_made_in_another_group_if_one_is_damaged() {
    for c in [Cluster::new(64), Cluster::with_long_slots(64)] {
        let (node, chunk) = (c.node(0, 1), c.volume.geo.chunk_blocks());
        let inner = &node.alloc.inner;
        take_windows(&node, [0, 1]);
        let had = [0, 1].map(|index| takeable(&node, index));
        let has = || [0, 1].map(|index| takeable(&node, index));
        let carve = || inner.carve(&mut inner.refill.lock(), 0, (true, false));
        let busy = || inner.state.lock().windows.iter().map(|w| w.busy).sum::<u64>();
        node.spoil(&c, 0);
        assert!(carve().unwrap());
        assert_eq!((has(), inner.state.lock().slots_free()), ([had[0], had[1] - chunk], 64));
        node.spoil(&c, 1);
        assert!(!carve().unwrap(), "no group is left");
        assert_eq!((has(), busy()), ([had[0], had[1] - chunk], 0));
        // In the middle of a change damage ends it all.
        take_windows(&node, [2]);
        inner.state.lock().close_windows(|w| w.group < 2);
        let place = inner.state.lock().windows.iter().position(window::Window::is_open).unwrap();
        let block = inner.private().window_block(place as u64);
        node.meta.sync_owner(LockNo::from(block)).unwrap();
        node.meta.drop_owner(LockNo::from(block));
        let zeros = AlignedBuf::zeroed(c.volume.geo.body_len());
        c.pool.write(c.volume.body_at(block), &zeros).unwrap();
        assert_eq!(carve().unwrap_err().damaged_block(), Some(block));
        assert!(node.meta.check().is_err());
    }
    // So does a node's end.
    let c = Cluster::new(64);
    let node = c.node(0, 1);
    take_windows(&node, [2]);
    let had = takeable(&node, 2);
    node.locks.withdraw();
    let inner = &node.alloc.inner;
    assert!(has_withdrawn(inner.carve(&mut inner.refill.lock(), 0, (true, false))));
    assert_eq!(takeable(&node, 2), had);
}
