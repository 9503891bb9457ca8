//! Claims of changes that fail.

use braid_device::{FaultKind, On};
use braid_format::label::{Label, Member};

use super::moved::Shelf;
use super::*;
use crate::labels::write_copies;

/// A claim's compare-and-write is reported as failed, and has landed all the same. Nobody waits for
/// the node that made it, which is alive and may never change anything again.
#[test]
fn a_claim_that_failed_and_stands_is_let_go() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    all[3].arm(On::CompareAndWrite, 0, FaultKind::FailsDone);
    let refused = a.pool.add_spare(fresh("one", &all[0]), false).unwrap_err();
    assert!(refused.to_string().contains("m3"), "{refused}");
    let pool = *a.pool.label().pool.as_bytes();
    for device in &all {
        let mut stands = vec![0; a.pool.info().lock_sector.to_usize()];
        device.read(RawClaim::AT, &mut stands).unwrap();
        assert_eq!(RawClaim::claimer(&stands, pool), None, "{}", device.info().name);
    }
    while_all_follow(&nodes[..1], || b.pool.add_spare(fresh("two", &all[0]), false).unwrap());
}

/// A change claims the members that stay. Nodes that take out one each of the last two would not meet each other's
/// claim, and each would go on without the other's member.
#[test]
fn who_takes_a_member_offline_meets_who_is_about_to_do_without_another() {
    let (nodes, all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let label = a.pool.label();
    let sector = a.pool.info().lock_sector.to_usize();
    let claim = RawClaim::sector(*label.pool.as_bytes(), 1, Some(b.me), 5, sector);
    all[0].write(RawClaim::AT, &claim).unwrap();
    let taken = waits_for(
        || a.pool.take_offline(MemberIndex(0)),
        || {
            assert_eq!(a.state(0), MemberState::Active);
            b.dies();
        },
    );
    assert!(taken.unwrap());
    let mut stands = vec![0; sector];
    all[0].read(RawClaim::AT, &mut stands).unwrap();
    assert_eq!(RawClaim::claimer(&stands, *label.pool.as_bytes()), None);
}

/// A node that added a member died when all members had the first label, and opens the pool again.
/// The others have not got that member: until they see a second label the epoch is none for them,
/// and it could not be written.
#[test]
fn an_epoch_that_only_who_joins_could_see_is_shown_to_all() {
    // With a log to attach, and without.
    for redundancy in [Redundancy::Mirror(2), Redundancy::None] {
        is_shown_to_all(redundancy);
    }
}

fn is_shown_to_all(redundancy: Redundancy) {
    let (_dir, file) = files();
    let nodes = nodes_on(2, redundancy, &|| (0..3).map(&file).collect());
    let (a, b) = (&nodes[0], nodes[1].clone());
    let mut next = crate::labels::next_epoch(&a.pool.label());
    next.members.push(Member {
        uuid: uuid::Uuid::new_v4(),
        path: file(3).info().name.clone(),
        state: MemberState::Spare,
        state_epoch: next.epoch,
        ..next.members[0].clone()
    });
    let faulty = FaultyDevice::new(file(2), FaultPlan::default());
    let all: Vec<Arc<dyn Device>> = vec![file(0), file(1), faulty.clone(), file(3)];
    write_copies(&all, &next, 0, &[0, 1, 2, 3]).unwrap();
    a.dies();
    let pool = Pool::assemble(all).unwrap();
    assert_eq!(pool.info().epoch, next.epoch);
    let (world, ended) = (b.world.clone(), AtomicBool::new(false));
    let again = Arc::new(Node { me: life(0), pool: pool.clone(), world, ended });
    pool.share(again.clone(), again.clone());
    again.say();
    (0..2).for_each(|n| faulty.arm(On::Flush, n, FaultKind::Fails));
    pool.heal_labels().unwrap();
    assert!(!b.pool.follow().unwrap(), "nobody else can see it");
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(again.pool.attach(0).is_ok()));
    for _ in 0..6000 {
        b.pool.follow().unwrap();
        if let Ok(attached) = ends.recv_timeout(Duration::from_millis(5)) {
            assert!(attached);
            assert_eq!(b.pool.epoch_tag(), pool.epoch_tag());
            return;
        }
    }
    panic!("it waits for those who do not see what it sees");
}

/// Another node opens the pool while members are added, which then fails: nobody else ever sees the
/// epoch that it uses, and nobody waits for that.
#[test]
fn who_has_seen_an_epoch_that_is_taken_back_goes_back() {
    for is_gone in [false, true] {
        let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
        let a = &nodes[0];
        let (next, devices) = begun(a, &mut all);
        let pool = Pool::assemble(devices).unwrap();
        assert_eq!(pool.info().epoch, next.epoch);
        if is_gone {
            all[4].arm(On::Read, 0, FaultKind::Gone);
        } else {
            let wiped = vec![0; 4096];
            all[4].write(Label::COPY0_AT, &wiped).unwrap();
        }
        let b = joins(a, &pool, &all);
        assert!(b.pool.follow().unwrap(), "it is none any more");
        assert_eq!(b.pool.epoch_tag(), a.pool.epoch_tag());
        b.pool.attach(1).unwrap();
        b.pool.write(ByteOffset(0), &[7; 4096]).unwrap();
        while_all_follow(&nodes[..1], || b.pool.fail_member(MemberIndex(1)).unwrap());
        assert_eq!(a.pool.epoch_tag(), b.pool.epoch_tag());
        assert!(a.pool.info().epoch > next.epoch);
    }
}

/// The same, but the node waits already, and nobody wakes it to look again.
#[test]
fn who_waits_in_an_epoch_that_is_taken_back_goes_on() {
    let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
    let a = &nodes[0];
    let (_, devices) = begun(a, &mut all);
    let b = joins(a, &Pool::assemble(devices).unwrap(), &all);
    all[4].arm(On::Read, 0, FaultKind::Gone);
    all[4].read(Label::COPY0_AT, &mut [0; 512]).unwrap_err();
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(b.pool.attach(1).is_ok().then_some(b)));
    let b = ends.recv_timeout(Duration::from_secs(30)).expect("it waits for ever").unwrap();
    assert_eq!(b.pool.epoch_tag(), a.pool.epoch_tag());
}

/// The node that goes back does not reach the device that has the second label, but the node that
/// looks for the label does: the epoch is in force.
#[test]
fn who_goes_back_looks_at_new_members_before() {
    let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
    let a = &nodes[0];
    let (next, mut devices) = begun(a, &mut all);
    write_copies(&devices, &next, 1, &[4]).unwrap();
    let way = FaultyDevice::new(all[4].clone(), FaultPlan::default());
    devices[4] = way.clone();
    let b = joins(a, &Pool::assemble(devices).unwrap(), &all);
    way.arm(On::Read, 0, FaultKind::Gone);
    assert!(!b.pool.follow().unwrap());
    assert_eq!(b.pool.info().epoch, next.epoch);
    assert!(a.pool.follow().unwrap(), "it is shown to all");
    assert_eq!(a.pool.epoch_tag(), b.pool.epoch_tag());
}

/// A node that used the pool before has followed; its writer, which lives, writes the labels of before
/// again. The number is not given to another change.
#[test]
fn who_has_followed_an_epoch_that_is_taken_back_goes_back() {
    // Also if a member is gone by then and nobody knows it yet; but not if that means that
    // something is lost.
    for gone in [vec![], vec![1], vec![0, 1]] {
        let (nodes, all) = nodes(2, Redundancy::Mirror(2));
        let (a, b) = (&nodes[0], &nodes[1]);
        let next = with_spares(a, &[]);
        let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
        write_copies(&devices, &next, 0, &[0, 1, 2, 3]).unwrap();
        assert!(b.pool.follow().unwrap());
        write_copies(&devices, &a.pool.label(), 0, &[0, 1, 2, 3]).unwrap();
        for member in &gone {
            let device: &Arc<FaultyDevice> = &all[*member];
            device.arm(On::CompareAndWrite, 0, FaultKind::Gone);
        }
        let goes_back = b.pool.follow().unwrap();
        assert_eq!(goes_back, gone != [0, 1], "{gone:?}");
        if !goes_back {
            continue;
        }
        assert_eq!(b.pool.epoch_tag(), a.pool.epoch_tag());
        while_all_follow(&nodes[..1], || b.pool.fail_member(MemberIndex(1)).unwrap());
        assert_eq!(a.pool.epoch_tag(), b.pool.epoch_tag());
        assert!(a.pool.info().epoch > next.epoch);
    }
}

/// A change that lets a spare join, of which only the first labels stand: on all of `all` and on the
/// spare, which is put last among them.
fn begun(node: &Node, all: &mut Vec<Arc<FaultyDevice>>) -> (Label, Vec<Arc<dyn Device>>) {
    all.push(fresh("one", &all[0]));
    let next = with_spares(node, &["one"]);
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
    write_copies(&devices, &next, 0, &[0, 1, 2, 3, 4]).unwrap();
    (next, devices)
}

/// The epoch after that of `node`, with such spares.
fn with_spares(node: &Node, names: &[&str]) -> Label {
    let mut next = crate::labels::next_epoch(&node.pool.label());
    for name in names {
        next.members.push(Member {
            uuid: uuid::Uuid::new_v4(),
            path: (*name).to_owned(),
            state: MemberState::Spare,
            state_epoch: next.epoch,
            ..next.members[0].clone()
        });
    }
    next
}

/// A second node, which uses `pool` beside `node`.
fn joins(node: &Arc<Node>, pool: &Pool, all: &[Arc<FaultyDevice>]) -> Arc<Node> {
    for pool in [&node.pool, pool] {
        pool.simulate(Arc::new(Shelf(all.to_vec())));
    }
    let (world, ended) = (node.world.clone(), AtomicBool::new(false));
    let other = Arc::new(Node { me: life(1), pool: pool.clone(), world, ended });
    pool.share(other.clone(), other.clone());
    other.say();
    other
}

/// A node that added members died when one of those had its second label. The epoch is in force for
/// a node that opens the pool later, and also for a node that uses it already, before that node
/// changes anything.
#[test]
fn a_change_in_force_by_new_members_alone_is_not_undone() {
    let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let next = with_spares(a, &["one", "two"]);
    ["one", "two"].iter().for_each(|name| all.push(fresh(name, &all[0])));
    nodes.iter().for_each(|n| n.pool.simulate(Arc::new(Shelf(all.clone()))));
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
    write_copies(&devices, &next, 0, &[0, 1, 2, 3, 4, 5]).unwrap();
    write_copies(&devices, &next, 1, &[4]).unwrap();
    a.dies();
    assert!(!b.pool.follow().unwrap(), "it cannot be seen without the new devices");
    b.pool.fail_member(MemberIndex(1)).unwrap();
    assert_eq!(b.pool.info().members.len(), 6);
    let now = b.pool.info().epoch;
    assert!(now > next.epoch);
    // And no node finds the change that was broken off.
    for gone in [0, 2, 3] {
        let mut left = devices.clone();
        left.remove(gone);
        let pool = Pool::assemble_degraded(left);
        match pool {
            Ok(pool) => assert_eq!(pool.info().epoch, now, "without {gone}"),
            Err(error) => assert!(matches!(error, PoolError::TooManyLost { .. }), "{error}"),
        }
    }
}
