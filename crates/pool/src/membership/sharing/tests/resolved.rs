//! A change applies to the member that was named, though another node changes the members' places
//! meanwhile.

use super::*;

/// The devices of a pool by number, in their places.
fn places(pool: &Pool) -> Vec<char> {
    let last = |m: &crate::topology::MemberInfo| m.path.chars().last().unwrap();
    pool.info().members.iter().map(last).collect()
}

/// A pool of two members and three spares, which two nodes have open, and one more device.
fn with_spares() -> (tempfile::TempDir, Vec<Arc<Node>>, Arc<dyn Device>) {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("d{i}"));
    for i in 0..6 {
        std::fs::File::create(path(i)).unwrap().set_len(12 << 20).unwrap();
    }
    let open = |i: usize| -> Arc<dyn Device> {
        FileDevice::open(&path(i), OpenOptions::default()).unwrap()
    };
    let nodes = nodes_on(2, Redundancy::Mirror(2), &|| (0..2).map(open).collect());
    while_all_follow(&nodes[1..], || {
        for i in 2..5 {
            nodes[0].pool.add_spare(open(i), false).unwrap();
        }
    });
    assert_eq!(places(&nodes[0].pool), ['0', '1', '2', '3', '4']);
    let device = open(5);
    (dir, nodes, device)
}

#[test]
fn who_was_named_is_meant_whatever_its_place_is_now() {
    type Act<'a> = &'a (dyn Fn(&Pool, Arc<dyn Device>) + Sync);
    const NAMED: MemberIndex = MemberIndex(3);
    let ways: [(&str, Act<'_>, &[char]); 4] = [
        ("remove", &|pool, _| drop(pool.remove_member(NAMED).unwrap()), &['0', '1', '4']),
        ("fail", &|pool, _| pool.fail_member(NAMED).unwrap(), &['0', '1', '3', '4']),
        (
            "replace",
            &|pool, device| pool.replace(NAMED, device, false).unwrap(),
            &['0', '1', '5', '4'],
        ),
        (
            "move",
            &|pool, _| {
                let to = crate::Destination::Member(NAMED.into());
                let moving = pool.begin_evacuation(MemberIndex(0), to).unwrap();
                assert_eq!(moving.successor, MemberIndex(2));
            },
            &['0', '1', '3', '4'],
        ),
    ];
    for (way, act, then) in ways {
        let (_dir, nodes, device) = with_spares();
        let (a, b) = (nodes[0].clone(), nodes[1].clone());
        std::thread::scope(|s| {
            // It has changed the pool, and waits until this node follows.
            let removed = s.spawn(|| b.pool.remove_member(MemberIndex(2)).unwrap());
            while b.pool.info().members.len() == 5 {
                std::thread::yield_now();
            }
            assert_eq!(a.pool.info().members.len(), 5);
            while_all_follow(std::slice::from_ref(&b), || act(&a.pool, device));
            removed.join().unwrap();
        });
        assert_eq!(places(&a.pool), then, "{way}");
        let failed: Vec<MemberState> = a.pool.member_states().into_iter().map(|m| m.1).collect();
        if way == "fail" {
            assert_eq!(failed[2], MemberState::Failed);
        } else {
            assert!(!failed.contains(&MemberState::Failed), "{way}");
        }
    }
}

#[test]
fn who_has_left_is_not_taken_for_its_successor_in_the_place() {
    let (_dir, nodes, device) = with_spares();
    let (a, b) = (nodes[0].clone(), nodes[1].clone());
    let third = a.pool.info().members[2].uuid;
    while_all_follow(&nodes[..1], || b.pool.remove_member(third).unwrap());
    let overtaken =
        |e: PoolError| matches!(e, PoolError::Change(crate::ChangeError::Overtaken { .. }));
    assert!(a.pool.remove_member(third).is_err_and(overtaken));
    assert!(a.pool.fail_member(third).is_err_and(overtaken));
    assert!(a.pool.replace(third, device, false).is_err_and(overtaken));
    assert!(a.pool.cancel_evacuation(third).is_err_and(overtaken));
    let to = crate::Destination::Member(third.into());
    assert!(a.pool.begin_evacuation(MemberIndex(0), to).is_err_and(overtaken));
    assert_eq!(places(&a.pool), ['0', '1', '3', '4']);
}

/// Two commands replace one member at the same time: the later one hears which device is there.
#[test]
fn of_two_that_replace_one_member_the_later_is_told_what_the_other_did() {
    let (dir, nodes, device) = with_spares();
    let (a, b) = (&nodes[0], &nodes[1]);
    let path = dir.path().join("d6");
    std::fs::File::create(&path).unwrap().set_len(12 << 20).unwrap();
    let other: Arc<dyn Device> = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let place = MemberIndex(2);
    let said = std::thread::scope(|s| {
        let first = s.spawn(|| b.pool.replace(place, device, false).unwrap());
        // It is taken out first, which the other one notes.
        while b.state(2) != MemberState::Failed {
            std::thread::yield_now();
        }
        a.pool.follow().unwrap();
        while places(&b.pool)[2] != '5' {
            std::thread::yield_now();
        }
        let said = while_all_follow(std::slice::from_ref(b), || {
            a.pool.replace(place, other, false).unwrap_err().to_string()
        });
        first.join().unwrap();
        said
    });
    assert!(
        said.contains("another command has put /") && said.contains("d5 in its place"),
        "{said}"
    );
    assert_eq!(places(&a.pool), ['0', '1', '5', '3', '4']);
}
