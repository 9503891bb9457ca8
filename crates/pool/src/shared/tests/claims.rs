//! Claims of changes that fail.

use braid_device::{FaultKind, On};
use braid_format::label::Member;

use super::moved::Shelf;
use super::*;
use crate::members::write_copies;
use crate::simulation::simulate;

/// A claim's compare-and-write is said to have failed, and stands all the same: nobody waits for who
/// made it, who lives, and may never change anything again.
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

/// Who added a member died when all had the first label, and opens the pool again. The others have not
/// got that member: until they see a second label the epoch is none for them, and it could not be
/// written.
#[test]
fn an_epoch_that_only_who_joins_could_see_is_shown_to_all() {
    let (_dir, file) = files();
    let nodes = nodes_on(2, Redundancy::Mirror(2), &|| (0..3).map(&file).collect());
    let (a, b) = (&nodes[0], nodes[1].clone());
    let mut next = crate::redundancy::next_epoch(&a.pool.label());
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

/// Who added members died when one of those had its second label: the epoch is in force for who opens
/// the pool anew, and for who uses it too, before he changes anything.
#[test]
fn a_change_in_force_by_new_members_alone_is_not_undone() {
    let (nodes, mut all) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    let mut next = crate::redundancy::next_epoch(&a.pool.label());
    for name in ["one", "two"] {
        all.push(fresh(name, &all[0]));
        next.members.push(Member {
            uuid: uuid::Uuid::new_v4(),
            path: name.to_owned(),
            state: MemberState::Spare,
            state_epoch: next.epoch,
            ..next.members[0].clone()
        });
    }
    nodes.iter().for_each(|n| simulate(&n.pool, Arc::new(Shelf(all.clone()))));
    let devices: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
    write_copies(&devices, &next, 0, &[0, 1, 2, 3, 4, 5]).unwrap();
    write_copies(&devices, &next, 1, &[4]).unwrap();
    a.dies();
    assert!(!b.pool.follow().unwrap(), "it cannot be seen without the new devices");
    b.pool.fail_member(MemberIndex(1)).unwrap();
    assert_eq!(b.pool.info().members.len(), 6);
    let now = b.pool.info().epoch;
    assert!(now > next.epoch);
    // Nor does anybody meet the one that was broken off.
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
