//! A member is filled beside other nodes.

use braid_format::lock_record::RawLockRecord;
use braid_format::node::{RawHeartbeat, RawSlot};

use super::*;

/// What is as good as a record to the pool.
pub(super) fn record(n: u64, sector: usize) -> Vec<u8> {
    let mut bytes = vec![0; sector];
    bytes[..4].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// A mirror of two with data everywhere, of which the second is to be filled from the first.
fn to_be_filled() -> (Arc<Node>, Arc<ScriptedDevice>, Arc<FaultyDevice>) {
    let memory =
        |name: &str| -> Arc<dyn Device> { MemoryDevice::new(name, Bytes(24 << 20), Bytes(512)) };
    let first = ScriptedDevice::over(memory("m0"));
    let second = FaultyDevice::new(memory("m1"), FaultPlan::default());
    let of = || vec![first.clone() as Arc<dyn Device>, second.clone()];
    let node = nodes_on(1, Redundancy::Mirror(2), &of).remove(0);
    let pool = &node.pool;
    let size = pool.info().size.0;
    for at in (0..size).step_by(1 << 20) {
        let len = Bytes((size - at).min(1 << 20)).to_usize();
        pool.write(ByteOffset(at), &vec![7; len]).unwrap();
    }
    let target = fresh("new", &second);
    (node, first, target)
}

#[test]
fn what_holds_no_record_is_read_once() {
    let (node, first, target) = to_be_filled();
    let pool = &node.pool;
    // Three kinds of records in one chunk, one in another. What only looks like a record is not at
    // the start of a sector.
    let at = |n: u64| ByteOffset((1 << 20) + n * 4096);
    pool.write(at(3), &record(1, 512)).unwrap();
    for (n, magic) in [(4, RawSlot::MAGIC), (6, RawHeartbeat::MAGIC)] {
        let mut bytes = vec![0; 512];
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        pool.write(at(n), &bytes).unwrap();
    }
    pool.write(ByteOffset(5 << 20), &record(2, 512)).unwrap();
    let mut like = vec![0; 4096];
    like[100..104].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    pool.write(ByteOffset(7 << 20), &like).unwrap();
    pool.replace(MemberIndex(1), target, false).unwrap();
    // The pool's bytes, without the labels at both ends.
    let start = pool.label().members[0].data_start.0;
    let label = first.info().size.0 - braid_format::label::Label::TAIL.0;
    let data = Rule::on(&[CommandKind::Read]).when(move |at, _| (start..label).contains(&at.0));
    let read = first.add(data);
    assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    assert_eq!(read.bytes().0, pool.info().size.0 + 3 * 4096 + 512 + 512);
    let found = pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
    assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(0)));
}

#[test]
fn only_records_are_compared_while_a_copy_is_filled() {
    let (node, _, target) = to_be_filled();
    let pool = &node.pool;
    let (at, sector) = (ByteOffset(1 << 20), 512);
    let exchange = |old: &[u8], new: &[u8]| pool.compare_and_write(at, old, new);
    let plain = vec![7; sector];
    assert_eq!(exchange(&plain, &[8; 512]).unwrap(), CawOutcome::Written);
    pool.replace(MemberIndex(1), target, false).unwrap();
    for new in [plain.clone(), record(1, sector)] {
        let refused = exchange(&[8; 512], &new);
        assert!(matches!(refused, Err(PoolError::NoRecord { at: ByteOffset(0x10_0000) })));
    }
    pool.write(at, &record(1, sector)).unwrap();
    // Damaged, but for its beginning.
    let mut damaged = record(1, sector);
    damaged[99] = 1;
    assert_eq!(exchange(&record(1, sector), &damaged).unwrap(), CawOutcome::Written);
    assert_eq!(exchange(&damaged, &plain).unwrap(), CawOutcome::Written);
    assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    assert_eq!(exchange(&plain, &record(1, sector)).unwrap(), CawOutcome::Written);
}

/// While one is written the next is read: though all stand in one region.
#[test]
fn chunks_of_one_region_are_filled_side_by_side() {
    let (node, _, target) = to_be_filled();
    let slow = ScriptedDevice::over(target);
    let writes = Rule::on(&[CommandKind::Write]).when(|_, write| write.len() == Bytes(1 << 20));
    let chunks = slow.add(writes.delays(Duration::from_millis(20)));
    node.pool.replace(MemberIndex(1), slow, false).unwrap();
    assert!(node.pool.rebuild(MemberIndex(1), &|_| true).unwrap());
    let most = chunks.most_at_once();
    assert!(most > 1, "{most} at once");
}

/// The first copy, with which locks are compared, has bad places, of which one is a lock's, while
/// another node changes locks beside it.
#[test]
fn what_the_first_copy_cannot_read_comes_from_another_beside_other_nodes() {
    let all: Vec<Arc<FaultyDevice>> = (0..3)
        .map(|i| {
            let memory = MemoryDevice::new(&format!("m{i}"), Bytes(24 << 20), Bytes(512));
            FaultyDevice::new(memory as Arc<dyn Device>, FaultPlan::default())
        })
        .collect();
    let of = || all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    for how in ["filled", "moved", "scrubbed"] {
        let spare = fresh("new", &all[0]);
        let with: Vec<Arc<dyn Device>> = of();
        let options = CreateOptions {
            redundancy: Redundancy::Mirror(3),
            log_slots: 1,
            force: true,
            ..CreateOptions::new("p")
        };
        Pool::create(with, &options).unwrap();
        let node = nodes_of(1, &of).remove(0);
        let pool = &node.pool;
        let start = pool.label().members[0].data_start.0;
        let bytes = vec![9; 3 << 20];
        pool.write(ByteOffset(0), &bytes).unwrap();
        for n in 0..4 {
            pool.write(ByteOffset((1 << 20) + n * 4096), &record(n, 512)).unwrap();
        }
        let mut now: Vec<Arc<FaultyDevice>> = all.clone();
        match how {
            "filled" => pool.replace(MemberIndex(2), spare.clone(), false).unwrap(),
            "moved" => {
                let to = crate::Destination::Device { device: spare.clone(), force: false };
                pool.begin_evacuation(MemberIndex(0), to).map(drop).unwrap();
            }
            _ => {}
        }
        // A lock's, one of data in the same chunk, and one in a chunk without locks.
        for at in [(1 << 20) + 4096, (1 << 20) + (64 << 10), 2 << 20] {
            all[0].spoil(ByteOffset(start + at), Bytes(512));
            all[1].spoil(ByteOffset(start + at + 8192), Bytes(512));
        }
        match how {
            "filled" => {
                assert!(pool.rebuild(MemberIndex(2), &|_| true).unwrap());
                now[2] = spare;
            }
            "moved" => {
                assert!(pool.evacuate(&|_| true).unwrap());
                now[0] = spare;
            }
            _ => {}
        }
        let found = pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap();
        assert_eq!(found.undecided, Bytes(0), "{how}");
        assert!(pool.member_states().iter().take(3).all(|s| s.1 == MemberState::Active), "{how}");
        for device in &now {
            let mut there = vec![0; bytes.len()];
            device.read(ByteOffset(start), &mut there).unwrap();
            for n in 0..4 {
                let at = (1 << 20) + usize::try_from(n).unwrap() * 4096;
                assert!(there[at..at + 512] == record(n, 512), "{how}");
                there[at..at + 512].fill(9);
            }
            assert!(there == bytes, "{how}");
        }
    }
}

/// The worst moment: another node's compare-and-write has landed on the first copy, and not on the
/// second, when that has just been read for what the first cannot read.
#[test]
fn what_lands_beside_a_bad_place_is_not_written_over() {
    for how in ["scrubbed", "moved", "filled"] {
        let memory = |name: &str| -> Arc<dyn Device> {
            MemoryDevice::new(name, Bytes(24 << 20), Bytes(512))
        };
        let first = FaultyDevice::new(memory("m0"), FaultPlan::default());
        let second = ScriptedDevice::over(memory("m1"));
        let third = FaultyDevice::new(memory("m2"), FaultPlan::default());
        let of = || vec![first.clone() as Arc<dyn Device>, second.clone(), third.clone()];
        let node = nodes_on(1, Redundancy::Mirror(3), &of).remove(0);
        let pool = &node.pool;
        let start = pool.label().members[0].data_start.0;
        pool.write(ByteOffset(0), &vec![9; 1 << 20]).unwrap();
        let (old, new) = (record(1, 512), record(2, 512));
        pool.write(ByteOffset(8192), &old).unwrap();
        let target = fresh("new", &third);
        match how {
            "moved" => {
                let to = crate::Destination::Device { device: target.clone(), force: false };
                pool.begin_evacuation(MemberIndex(0), to).map(drop).unwrap();
            }
            "filled" => pool.replace(MemberIndex(2), target.clone(), false).unwrap(),
            _ => {}
        }
        first.spoil(ByteOffset(start + 4096), Bytes(512));
        let lands = {
            let (first, old, new) = (first.clone(), old.clone(), new.clone());
            move || {
                let at = ByteOffset(start + 8192);
                assert_eq!(first.compare_and_write(at, &old, &new).unwrap(), CawOutcome::Written);
            }
        };
        let reads = Rule::on(&[CommandKind::Read]).covering(ByteOffset(start + 4096)).once();
        let read = second.add(reads.then_calls(move |_, _, _| lands()));
        match how {
            "moved" => assert!(pool.evacuate(&|_| true).unwrap()),
            "filled" => assert!(pool.rebuild(MemberIndex(2), &|_| true).unwrap()),
            _ => drop(pool.scrub(&crate::NoChecksums, &mut |_, _| true).unwrap()),
        }
        assert_eq!(read.hits(), 1, "{how}: it came to it");
        let mut there = vec![0; 512];
        for device in [&first, &target].iter().take(if how == "scrubbed" { 1 } else { 2 }) {
            device.read(ByteOffset(start + 8192), &mut there).unwrap();
            assert!(there == new, "{how}: {}", device.info().name);
        }
    }
}

/// A compare-and-write of another node has landed on the first of three copies, and its node is slow.
#[test]
fn a_scrub_takes_back_no_compare_and_write_that_is_under_way() {
    struct Damaged(bool);
    impl crate::ChecksumVerifier for Damaged {
        fn verify(&self, _: ByteOffset, _: &[u8]) -> Option<bool> {
            None
        }
        fn has_damaged_record(&self, _: ByteOffset, _: &[u8]) -> bool {
            self.0
        }
    }
    let memory = |i| MemoryDevice::new(&format!("m{i}"), Bytes(24 << 20), Bytes(512));
    let all: Vec<Arc<dyn Device>> = (0..3).map(|i| memory(i) as Arc<dyn Device>).collect();
    let node = nodes_on(1, Redundancy::Mirror(3), &|| all.clone()).remove(0);
    let pool = &node.pool;
    let start = pool.label().members[0].data_start.0;
    let (old, new) = (record(1, 512), record(2, 512));
    pool.write(ByteOffset(4096), &old).unwrap();
    pool.write(ByteOffset(8192), &[5; 512]).unwrap();
    all[0].compare_and_write(ByteOffset(start + 4096), &old, &new).unwrap();
    // Nothing that is compared with: the majority knows.
    all[0].write(ByteOffset(start + 8192), &[6; 512]).unwrap();
    let scrub = |damaged| pool.scrub(&Damaged(damaged), &mut |_, _| true).unwrap();
    let stands = |at: u64| {
        let mut there = vec![0; 512];
        all[0].read(ByteOffset(start + at), &mut there).unwrap();
        there
    };
    let found = scrub(false);
    assert_eq!((found.undecided, found.healed), (Bytes(512), Bytes(512)));
    assert!(stands(4096) == new && stands(8192) == [5; 512]);
    // What is known to be rot is none.
    assert_eq!(scrub(true).undecided, Bytes(0));
    assert!(stands(4096) == old);
}
