//! Members that come back, and news that a node has not heard.

use braid_device::{FaultKind, On};

use super::filled::record;
use super::*;

const ONE: MemberIndex = MemberIndex(1);

/// Another node has filled a member; before this node hears of it, the member's last other copy fails, and with
/// it all by which this node could hear of it.
#[test]
fn a_node_that_has_not_heard_that_a_member_is_full_rereads_the_labels_before_it_gives_up() {
    type Ask<'a> = (&'a str, &'a (dyn Fn(&Pool) + Sync));
    let asks: [Ask<'_>; 4] = [
        ("read", &|pool| pool.read(ByteOffset(0), &mut [0; 4096]).unwrap()),
        ("read of a lock", &|pool| pool.read_lock(ByteOffset(4096), &mut [0; 512]).unwrap()),
        ("write", &|pool| pool.write(ByteOffset(8192), &[3; 4096]).unwrap()),
        ("compare-and-write", &|pool| {
            let done = pool.compare_and_write(ByteOffset(4096), &record(1, 512), &record(2, 512));
            assert_eq!(done.unwrap(), CawOutcome::Written);
        }),
    ];
    for (what, ask) in asks {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["m0", "m1", "new"] {
            std::fs::File::create(path(name)).unwrap().set_len(24 << 20).unwrap();
        }
        let open = |name: &str| -> Arc<dyn Device> {
            FileDevice::open(&path(name), OpenOptions::default()).unwrap()
        };
        let first = FaultyDevice::new(open("m0"), FaultPlan::default());
        let of = || vec![first.clone() as Arc<dyn Device>, open("m1")];
        let nodes = nodes_on(2, Redundancy::Mirror(2), &of);
        let (a, b) = (&nodes[0], &nodes[1]);
        a.pool.write(ByteOffset(0), &[7; 8192]).unwrap();
        a.pool.write(ByteOffset(4096), &record(1, 512)).unwrap();
        while_all_follow(&nodes[1..], || a.pool.replace(ONE, open("new"), false)).unwrap();
        assert_eq!(b.state(1), MemberState::Rebuilding);
        // It is at work in that epoch.
        b.pool.write(ByteOffset(16384), &[1; 4096]).unwrap();
        let filled = waits_for(
            || a.pool.rebuild(ONE, &|_| true),
            || {
                wait_until("it is full for the one", || a.state(1) == MemberState::Active);
                assert_eq!(b.state(1), MemberState::Rebuilding, "{what}");
                for on in [On::Read, On::Write, On::Flush, On::CompareAndWrite] {
                    first.arm(on, 0, FaultKind::Gone);
                }
                std::fs::remove_file(path("m0")).unwrap();
                let asked = std::thread::scope(|s| {
                    let asked = s.spawn(|| ask(&b.pool));
                    while !asked.is_finished() {
                        a.pool.follow().unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    asked.join().is_ok()
                });
                if !asked {
                    // Nobody waits for it then.
                    b.dies();
                }
                assert!(asked, "{what}");
                assert_eq!(b.state(1), MemberState::Active, "{what}");
            },
        );
        assert!(filled.unwrap());
    }
}

/// All copies fail under many requests at once: the labels are read again for all of them together.
#[test]
fn of_many_requests_that_meet_the_end_of_a_pool_few_reread_the_labels() {
    const REQUESTS: u64 = 24;
    let memory: Vec<_> = (0..2)
        .map(|i| MemoryDevice::new(&format!("m{i}"), Bytes(24 << 20), Bytes(512)))
        .map(|device| ScriptedDevice::over(device))
        .collect();
    let of = || memory.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let nodes = nodes_on(2, Redundancy::Mirror(2), &of);
    let node = &nodes[1];
    node.pool.write(ByteOffset(0), &[7; 4096]).unwrap();
    let label = node.pool.label();
    let data = label.members[0].data_start.0;
    let kinds = [CommandKind::Read, CommandKind::Write, CommandKind::Flush];
    let mut labels = Vec::new();
    for device in &memory {
        device.add(Rule::on(&kinds).fails());
        // Slow enough that all requests are there before the first is done with it.
        let slow = Rule::on(&kinds).overlapping(0..data).delays(Duration::from_millis(30));
        labels.push(device.add(slow.notes().fails()));
    }
    std::thread::scope(|s| {
        for n in 0..REQUESTS {
            let pool = &node.pool;
            s.spawn(move || match n % 2 {
                0 => assert!(pool.read(ByteOffset(0), &mut [0; 4096]).is_err()),
                _ => assert!(pool.write(ByteOffset(n * 4096), &[1; 4096]).is_err()),
            });
        }
    });
    let rereads = node.pool.0.epochs.rereads.load(std::sync::atomic::Ordering::Relaxed);
    let reads: u64 = labels.iter().map(|rule| rule.hits()).sum();
    assert!(rereads <= REQUESTS / 3, "{rereads} times, {reads} reads");
}

/// On files, as processes have them: the device is opened once more by all of them, and all show on it that they
/// live.
#[test]
fn a_device_that_comes_back_bears_the_liveness_bytes_of_all_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..2).map(|i| dir.path().join(format!("m{i}"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(24 << 20).unwrap();
    }
    let open = |path: &std::path::PathBuf| -> Arc<dyn Device> {
        FileDevice::open(path, OpenOptions::default()).unwrap()
    };
    let of = || paths.iter().map(open).collect();
    let nodes = nodes_on(2, Redundancy::Mirror(2), &of);
    let (a, b) = (&nodes[0], &nodes[1]);
    let _bytes = [a.pool.lock_byte(1).unwrap().unwrap(), b.pool.lock_byte(2).unwrap().unwrap()];
    let held = || {
        let device = open(&paths[1]);
        [1, 2, 3].map(|byte| device.abilities().locks.byte_locked(byte).unwrap())
    };
    for way in ["replace", "spare"] {
        while_all_follow(&nodes[1..], || a.pool.fail_member(ONE)).unwrap();
        a.pool.write(ByteOffset(0), &[5; 4096]).unwrap();
        while_all_follow(&nodes[1..], || {
            if way == "replace" {
                return a.pool.replace(ONE, open(&paths[1]), true);
            }
            a.pool.add_spare(open(&paths[1]), true)?;
            a.pool.use_spare().map(|used| assert_eq!(used, Some(ONE)))
        })
        .unwrap();
        assert_eq!(held(), [true, true, false], "{way}");
        assert!(while_all_follow(&nodes[1..], || a.pool.rebuild(ONE, &|_| true)).unwrap());
        assert_eq!(b.state(1), MemberState::Active);
        b.pool.write(ByteOffset(0), &[6; 4096]).unwrap();
    }
    assert_eq!(held(), [true, true, false]);
    let found = a.pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(0)));
}

/// Who waits for all nodes to take note waits as long as it says.
#[test]
fn a_node_that_does_not_take_note_is_not_waited_for_for_ever() {
    let (nodes, _) = nodes(2, Redundancy::Mirror(2));
    let (a, b) = (&nodes[0], &nodes[1]);
    assert_eq!(a.pool.await_all_nodes(Duration::ZERO).unwrap(), None);
    let failed = waits_for(
        || a.pool.fail_member(ONE),
        || {
            assert_eq!(a.pool.await_all_nodes(BRIEFLY).unwrap(), Some(vec![b.me]));
            b.pool.follow().unwrap();
        },
    );
    failed.unwrap();
    assert_eq!(a.pool.await_all_nodes(Duration::from_mins(1)).unwrap(), None);
}
