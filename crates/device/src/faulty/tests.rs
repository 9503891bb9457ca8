#![expect(clippy::cast_possible_truncation, reason = "small numbers as test data")]

use std::collections::HashSet;

use super::*;
use crate::MemoryDevice;

const S: u64 = 512;

fn device(plan: FaultPlan) -> (Arc<MemoryDevice>, Arc<FaultyDevice>) {
    let memory = MemoryDevice::new("m", Bytes(1 << 20), Bytes(S));
    let faulty = FaultyDevice::new(memory.clone(), plan);
    (memory, faulty)
}
fn plan(on: On, nth: u64, kind: FaultKind) -> FaultPlan {
    FaultPlan { faults: vec![Fault { on, nth, kind }], volatile_cache: false }
}
fn fill(d: &dyn Device, sector: u64, sectors: u64, value: u8) -> Result<(), DeviceError> {
    d.write(ByteOffset(sector * S), &vec![value; (sectors * S) as usize])
}
fn at(d: &dyn Device, sector: u64) -> u8 {
    let mut buf = [0; S as usize];
    d.read(ByteOffset(sector * S), &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == buf[0]), "a sector is never torn");
    buf[0]
}

#[test]
fn the_nth_write_fails_and_no_other() {
    let (_, d) = device(plan(On::Write, 1, FaultKind::Fails));
    fill(&*d, 0, 1, 1).unwrap();
    assert!(matches!(fill(&*d, 0, 1, 2), Err(DeviceError::Injected { .. })));
    fill(&*d, 1, 1, 3).unwrap();
    assert_eq!((at(&*d, 0), at(&*d, 1)), (1, 3));
    assert_eq!(d.counts().writes, 3);
}
#[test]
fn what_is_spoilt_cannot_be_read_until_it_is_written() {
    for volatile_cache in [false, true] {
        let (_, d) = device(FaultPlan { volatile_cache, ..FaultPlan::default() });
        fill(&*d, 0, 8, 1).unwrap();
        d.spoil(ByteOffset(3 * S), Bytes(2 * S));
        let unread = |from: u64, n: u64| {
            d.read(ByteOffset(from * S), &mut vec![0; (n * S) as usize]).unwrap_err().to_string()
        };
        assert!(unread(0, 8).contains(&ByteOffset(3 * S).to_string()));
        unread(4, 1);
        let old = [1; S as usize];
        d.compare_and_write(ByteOffset(3 * S), &old, &[2; S as usize]).unwrap_err();
        assert_eq!((at(&*d, 2), at(&*d, 5)), (1, 1));
        fill(&*d, 3, 1, 2).unwrap();
        assert_eq!(at(&*d, 3), 2);
        d.heal();
        unread(4, 1);
    }
}
#[test]
fn torn_lost_misdirected() {
    let (_, d) = device(plan(On::Write, 0, FaultKind::Torn(Bytes(S + 100))));
    fill(&*d, 0, 3, 7).unwrap();
    assert_eq!([at(&*d, 0), at(&*d, 1), at(&*d, 2)], [7, 0, 0]);
    d.arm(On::Write, 0, FaultKind::FailsTorn(Bytes(2 * S)));
    fill(&*d, 10, 3, 8).unwrap_err();
    assert_eq!([at(&*d, 10), at(&*d, 11), at(&*d, 12)], [8, 8, 0]);
    d.arm(On::Write, 0, FaultKind::Lost);
    fill(&*d, 0, 1, 9).unwrap();
    assert_eq!(at(&*d, 0), 7);
    d.arm(On::Write, 1, FaultKind::Misdirected(ByteOffset(20 * S)));
    fill(&*d, 4, 1, 4).unwrap();
    fill(&*d, 5, 1, 5).unwrap();
    assert_eq!([at(&*d, 4), at(&*d, 5), at(&*d, 20)], [4, 0, 5]);
}
#[test]
fn a_late_write_overwrites_what_came_after_it() {
    let (_, d) = device(plan(On::Write, 0, FaultKind::Late(2)));
    fill(&*d, 0, 1, 1).unwrap();
    assert_eq!(at(&*d, 0), 0);
    fill(&*d, 0, 1, 2).unwrap();
    assert_eq!(at(&*d, 0), 2);
    fill(&*d, 9, 1, 3).unwrap();
    assert_eq!(at(&*d, 0), 1);
    d.arm(On::Write, 0, FaultKind::Late(u64::MAX));
    fill(&*d, 3, 1, 6).unwrap();
    fill(&*d, 3, 1, 5).unwrap();
    assert_eq!(at(&*d, 3), 5);
    d.land_late().unwrap();
    assert_eq!(at(&*d, 3), 6);
}
#[test]
fn gone_until_healed() {
    let (_, d) = device(plan(On::Flush, 0, FaultKind::Gone));
    fill(&*d, 0, 1, 1).unwrap();
    d.flush().unwrap_err();
    fill(&*d, 0, 1, 2).unwrap_err();
    d.read(ByteOffset(0), &mut [0; 512]).unwrap_err();
    d.compare_and_write(ByteOffset(0), &[1; 512], &[2; 512]).unwrap_err();
    d.heal();
    assert_eq!(at(&*d, 0), 1);
}
#[test]
fn a_compare_and_write_may_land_without_saying_so() {
    for volatile_cache in [false, true] {
        let (_, d) = device(FaultPlan { volatile_cache, ..FaultPlan::default() });
        d.arm(On::CompareAndWrite, 0, FaultKind::FailsDone);
        d.arm(On::CompareAndWrite, 1, FaultKind::Fails);
        d.compare_and_write(ByteOffset(0), &[0; 512], &[1; 512]).unwrap_err();
        d.compare_and_write(ByteOffset(0), &[1; 512], &[2; 512]).unwrap_err();
        let now = d.compare_and_write(ByteOffset(0), &[9; 512], &[3; 512]).unwrap();
        assert_eq!(now, CawOutcome::Mismatch(vec![1; 512]));
        let now = d.compare_and_write(ByteOffset(0), &[1; 512], &[4; 512]).unwrap();
        assert_eq!(now, CawOutcome::Written);
        assert_eq!(at(&*d, 0), 4);
    }
}
#[test]
fn the_cache_shows_writes_and_keeps_them_from_the_device() {
    let (memory, d) = device(FaultPlan { volatile_cache: true, ..FaultPlan::default() });
    fill(&*d, 0, 4, 1).unwrap();
    fill(&*d, 1, 1, 2).unwrap();
    assert_eq!([at(&*d, 0), at(&*d, 1), at(&*d, 2)], [1, 2, 1]);
    assert_eq!(at(&*memory, 0), 0);
    d.arm(On::Flush, 0, FaultKind::Lost);
    d.flush().unwrap();
    assert_eq!(at(&*memory, 0), 0);
    d.flush().unwrap();
    assert_eq!([at(&*memory, 0), at(&*memory, 1), at(&*memory, 3)], [1, 2, 1]);
}
#[test]
fn a_crash_keeps_the_flushed_and_any_subset_of_the_rest() {
    let mut outcomes = HashSet::new();
    for seed in 0..4096 {
        let (memory, d) = device(FaultPlan { volatile_cache: true, ..FaultPlan::default() });
        fill(&*d, 0, 1, 1).unwrap();
        d.flush().unwrap();
        fill(&*d, 1, 1, 2).unwrap();
        fill(&*d, 2, 2, 3).unwrap();
        fill(&*d, 1, 1, 4).unwrap();
        d.crash(seed).unwrap();
        assert_eq!(at(&*memory, 0), 1, "flushed writes survive");
        let seen = [at(&*memory, 1), at(&*memory, 2), at(&*memory, 3)];
        assert_eq!(seen, [at(&*d, 1), at(&*d, 2), at(&*d, 3)], "nothing is left in the cache");
        outcomes.insert(seen);
    }
    // Sector 1: old, first or second write; sectors 2 and 3: each by itself.
    assert_eq!(outcomes.len(), 3 * 2 * 2, "{outcomes:?}");
}
#[test]
fn the_same_seed_crashes_the_same_way() {
    let image = |seed| {
        let (memory, d) = device(FaultPlan { volatile_cache: true, ..FaultPlan::default() });
        for s in 0..64 {
            fill(&*d, s, 2, s as u8 + 1).unwrap();
        }
        d.crash(seed).unwrap();
        (0..65).map(|s| at(&*memory, s)).collect::<Vec<_>>()
    };
    assert_eq!(image(5), image(5));
    assert!((0..20).any(|seed| image(seed) != image(seed + 1)));
}
