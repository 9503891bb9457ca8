//! A member is offline while nodes hear of it late, join and die.

use super::*;
use crate::redundancy::tests::consistent;

const ONE: MemberIndex = MemberIndex(1);
const MIB: u64 = 1 << 20;

/// Larger than what is filled in any case.
const SIZE: u64 = 240 * MIB;

fn large() -> Vec<Arc<FaultyDevice>> {
    let device = |i| {
        let memory = MemoryDevice::new(&format!("m{i}"), Bytes(SIZE), Bytes(512));
        FaultyDevice::new(memory as Arc<dyn Device>, FaultPlan::default())
    };
    (0..4).map(device).collect()
}

fn write(node: &Node, mib: u64, value: u8) {
    node.pool.write(ByteOffset(mib * MIB), &[value; 4096]).unwrap();
}

/// A node that has not heard of it writes to the member, or not to it, as before; nobody goes on before it has heard.
/// What it wrote until then the member has, or lacks by the record; also of a node that died over it and is not
/// recovered yet, and of one that came meanwhile.
#[test]
fn nodes_that_hear_late_join_or_die_while_a_member_is_offline_leave_nothing_out() {
    for redundancy in [Redundancy::Mirror(2), Redundancy::Mirror(4), Redundancy::Parity(1)] {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..4).map(|i| dir.path().join(format!("m{i}"))).collect();
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(SIZE).unwrap();
        }
        // Each node opens them for itself, also the one that comes back.
        let open = |path: &std::path::PathBuf| -> Arc<dyn Device> {
            FileDevice::open(path, OpenOptions::default()).unwrap()
        };
        let of = || paths.iter().map(open).collect::<Vec<_>>();
        let all: Vec<_> =
            paths.iter().map(|p| FaultyDevice::new(open(p), FaultPlan::default())).collect();
        let options = CreateOptions { redundancy, log_slots: 3, ..CreateOptions::new("p") };
        Pool::create(of(), &options).unwrap();
        let nodes = nodes_of(2, &of);
        let (a, b) = (&nodes[0], &nodes[1]);
        write(b, 100, 1);
        let gone = waits_for(
            || a.pool.take_offline(ONE),
            || {
                wait_until("it is out for the one", || a.state(1) == MemberState::Failed);
                write(b, 120, 1);
                assert_eq!(b.state(1), MemberState::Active);
                assert!(b.pool.follow().unwrap());
            },
        );
        assert!(gone.unwrap());
        write(b, 140, 1);
        let third = joined(&a.world, 2, of());
        write(&third, 160, 1);
        write(a, 180, 1);
        third.dies();
        let device = open(&paths[1]);
        let planned = a.pool.plan_online(ONE, &device).unwrap();
        assert!(planned.fill < planned.whole);
        let back = waits_for(
            || a.pool.bring_online(ONE, &device),
            || {
                wait_until("it is back for the one", || a.state(1) == MemberState::Rebuilding);
                // It does not go to the member, and is noted.
                write(b, 190, 1);
                assert_eq!(b.state(1), MemberState::Failed);
                assert!(b.pool.follow().unwrap());
            },
        );
        let caught = back.unwrap();
        assert!(caught.fill >= planned.fill && caught.fill < caught.whole, "{caught:?}");
        write(b, 195, 1);
        b.dies();
        assert!(a.pool.rebuild(ONE, &|_| true).unwrap());
        for slot in [1, 2] {
            a.pool.recover_log(slot).unwrap();
        }
        a.pool.flush().unwrap();
        consistent(&a.pool, &all);
        a.pool.fail_member(MemberIndex(0)).unwrap();
        for mib in [100, 120, 140, 160, 180, 190, 195] {
            let mut back = [0; 4096];
            a.pool.read(ByteOffset(mib * MIB), &mut back).unwrap();
            assert_eq!(back, [1; 4096], "{redundancy:?}: {mib}");
        }
    }
}

/// Whoever recovers a dead node's log while a member is offline takes over what that one has noted, before and after.
#[test]
fn what_a_dead_node_noted_is_kept_by_who_recovers_it_and_by_who_has_its_slot_next() {
    let all = large();
    let of = || all.iter().map(|d| d.clone() as Arc<dyn Device>).collect::<Vec<_>>();
    let nodes = nodes_on(2, Redundancy::Mirror(2), &of);
    let (a, b) = (&nodes[0], &nodes[1]);
    assert!(while_all_follow(&nodes[1..], || a.pool.take_offline(ONE)).unwrap());
    write(b, 100, 1);
    b.dies();
    a.pool.recover_log(1).unwrap();
    let again = joined(&a.world, 1, of());
    write(&again, 140, 1);
    again.pool.detach().unwrap();
    again.dies();
    let device: Arc<dyn Device> = all[1].clone();
    let caught = a.pool.bring_online(ONE, &device).unwrap();
    assert!(caught.fill < caught.whole);
    assert!(a.pool.rebuild(ONE, &|_| true).unwrap());
    consistent(&a.pool, &all);
    a.pool.fail_member(MemberIndex(0)).unwrap();
    for mib in [100, 140] {
        let mut back = [0; 4096];
        a.pool.read(ByteOffset(mib * MIB), &mut back).unwrap();
        assert_eq!(back, [1; 4096], "{mib}");
    }
}
