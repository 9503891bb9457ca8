use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice, Power, ScriptedDevice};

use super::*;
use crate::NoChecksums;
use crate::layout::Redundancy;
use crate::layout::map::Place;
use crate::reshape::AddOptions;
use crate::reshape::grow::tests::enlarged;
use crate::reshape::tests::{Content, MIB, disks, made, states};

/// First byte, and one past the last, of what is added.
fn add(pool: &Pool, devices: &[Arc<dyn Device>]) -> (ByteOffset, ByteOffset) {
    let from = pool.info().size;
    let added = pool.add(devices, &AddOptions::default()).unwrap();
    (ByteOffset(from.0), ByteOffset(added.info.size.0))
}

/// Bytes from `from` on, as they are told.
fn told((from, to): (ByteOffset, ByteOffset), salt: u64) -> Vec<u8> {
    (from.0..to.0).map(|i| ((i / 512 + salt) % 241).to_le_bytes()[0]).collect()
}

fn expect(pool: &Pool, part: (ByteOffset, ByteOffset), salt: u64) {
    let mut back = told(part, salt + 1);
    pool.read(part.0, &mut back).unwrap();
    assert!(back == told(part, salt));
}

const CLASSES: [Redundancy; 3] = [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)];

#[test]
fn what_came_first_or_last_leaves_and_the_rest_stays_where_it_is() {
    for redundancy in CLASSES {
        let pool = made(disks("old", &[24; 3]), redundancy);
        let content = Content::fill(&pool, 1);
        let (usable, one) = (pool.info().size, add(&pool, &disks("one", &[24; 3])));
        let two = add(&pool, &disks("two", &[24; 3]));
        pool.write(one.0, &told(one, 3)).unwrap();
        pool.write(two.0, &told(two, 5)).unwrap();
        let groups = pool.map().groups().len();
        let on: Vec<_> = pool.segments_of(MemberIndex(4)).unwrap();
        assert!(on.iter().all(|s| s.start >= one.0 && s.start < one.1), "{on:?}");
        assert_eq!(pool.plan_cut(&[one]).unwrap(), [3, 4, 5].map(MemberIndex));
        let epoch = pool.info().epoch;
        assert_eq!(pool.cut(one.0, one.1).unwrap(), [3, 4, 5].map(MemberIndex));
        assert!(pool.info().epoch > epoch);
        let check = |pool: &Pool| {
            content.check(pool);
            expect(pool, two, 5);
            let (info, map) = (pool.info(), pool.map());
            assert_eq!((info.size.0, info.holes.0), (two.1.0, one.1.0 - one.0.0));
            assert_eq!(map.groups().len(), groups, "those after it keep their numbers");
            let mut sector = [0; 512];
            for at in [one.0, ByteOffset(one.1.0 - 512)] {
                let e = pool.read(at, &mut sector).unwrap_err();
                assert!(matches!(e, PoolError::Hole { .. }), "{e}");
                assert!(matches!(pool.write(at, &sector), Err(PoolError::Hole { .. })));
                let e = pool.compare_and_write(at, &sector, &[1; 512]).unwrap_err();
                assert!(matches!(e, PoolError::Hole { .. }), "{e}");
                assert!(pool.locate(at).is_none());
            }
            let mut long = vec![0; 4096];
            let e = pool.read(ByteOffset(one.0.0 - 512), &mut long).unwrap_err();
            assert!(matches!(e, PoolError::Hole { .. }), "{e}");
        };
        check(&pool);
        assert_eq!(pool.cut(one.0, one.1).unwrap(), [], "it has left");
        assert_eq!(states(&pool)[3..6], [MemberState::Spare; 3]);
        let again = Pool::assemble(pool.devices()).unwrap();
        check(&again);
        if redundancy != Redundancy::None {
            let found = again.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert!(found.finished && found.healed.0 + found.undecided.0 == 0, "{found:?}");
            again.recover_log(0).unwrap();
            check(&again);
        }
        drop(again);
        for _ in 0..3 {
            pool.remove_member(MemberIndex(3)).unwrap();
        }
        assert_eq!(pool.info().members.len(), 6);
        check(&pool);
        // What is added next is behind all of it.
        let three = add(&pool, &disks("three", &[24; 3]));
        assert_eq!(three.0, two.1);
        pool.write(three.0, &told(three, 7)).unwrap();
        pool.cut(two.0, two.1).unwrap();
        content.check(&pool);
        expect(&pool, three, 7);
        let info = Pool::assemble(pool.devices()).unwrap().info();
        assert_eq!(info.holes.0, two.1.0 - one.0.0);
        pool.cut(three.0, three.1).unwrap();
        let info = Pool::assemble(pool.devices()).unwrap().info();
        assert_eq!(info.size.0 - info.holes.0, usable.0);
        content.check(&pool);
        if redundancy != Redundancy::None {
            pool.fail_member(MemberIndex(0)).unwrap();
            content.check(&pool);
        }
    }
}

#[test]
fn what_is_no_part_of_its_own_stays() {
    let pool = made(disks("old", &[24; 2]), Redundancy::None);
    let content = Content::fill(&pool, 1);
    let one = add(&pool, &disks("one", &[24; 2]));
    let epoch = pool.info().epoch;
    let half = ByteOffset(one.0.0 + MIB);
    for (from, to) in [
        (ByteOffset(0), one.0),
        (ByteOffset(0), one.1),
        (one.0, half),
        (half, one.1),
        (one.1, one.1),
    ] {
        let e = pool.cut(from, to).unwrap_err();
        assert!(matches!(e, PoolError::Change(ChangeError::NotAPart { .. })), "{e}");
    }
    // A member that is being moved stays until that is done.
    let spare = pool.add_spare(disks("spare", &[24]).remove(0), false).unwrap();
    pool.begin_evacuation(MemberIndex(2), crate::Destination::Member(spare.into())).unwrap();
    for e in [pool.plan_cut(&[one]).unwrap_err(), pool.cut(one.0, one.1).unwrap_err()] {
        assert!(matches!(e, PoolError::Change(ChangeError::Moving { .. })), "{e}");
    }
    pool.cancel_evacuation(MemberIndex(2)).unwrap();
    assert!(pool.info().epoch > epoch);
    pool.cut(one.0, one.1).unwrap();
    content.check(&pool);
}

/// Devices that grow stand in a part more.
#[test]
fn a_member_of_two_parts_is_idle_when_both_leave() {
    let (old, new) = (disks("old", &[24]), disks("new", &[24]));
    let pool = made(old.clone(), Redundancy::None);
    let one = add(&pool, &new);
    drop(pool);
    let large = enlarged(&new[0], 20);
    let pool = Pool::assemble(vec![old[0].clone(), large.clone()]).unwrap();
    let from = pool.info().size.0;
    let again = |name: &str| Ok(if name == "new0" { large.clone() } else { old[0].clone() });
    let grown = pool.grow(&again).unwrap();
    let two = (ByteOffset(from), ByteOffset(grown.info.size.0));
    assert_eq!(pool.plan_cut(&[one]).unwrap(), []);
    assert_eq!(pool.plan_cut(&[two]).unwrap(), []);
    let both = [MemberIndex(1)];
    assert_eq!(pool.plan_cut(&[one, two]).unwrap(), both);
    assert_eq!(pool.plan_cut(&[two, one]).unwrap(), both);
    assert_eq!(pool.cut(one.0, one.1).unwrap(), []);
    assert_eq!(pool.plan_cut(&[one, two]).unwrap(), both, "the one has left");
    assert_eq!(pool.cut(two.0, two.1).unwrap(), both);
}

#[test]
fn a_map_knows_its_holes() {
    let pool = made(disks("old", &[24; 2]), Redundancy::None);
    let one = add(&pool, &disks("one", &[24; 2]));
    let two = add(&pool, &disks("two", &[24; 2]));
    pool.cut(one.0, one.1).unwrap();
    let map = pool.map();
    assert_eq!(map.solid(0, two.1.0), [(0, one.0.0), (two.0.0, two.1.0)]);
    assert_eq!(map.solid(one.0.0 + 1, one.1.0 - 1), []);
    assert_eq!(map.solid(5, 9), [(5, 9)]);
    assert!(!map.is_holed(ByteOffset(0), Bytes(one.0.0)) && !map.is_holed(two.0, Bytes(1)));
    assert!(map.is_holed(one.0, Bytes(1)) && map.is_holed(ByteOffset(0), Bytes(one.0.0 + 1)));
    let all: u64 = map.pieces(ByteOffset(0), Bytes(two.1.0)).map(|p| p.len.0).sum();
    assert_eq!(all, two.1.0 - (one.1.0 - one.0.0));
    for p in map.pieces(two.0, Bytes(two.1.0 - two.0.0)) {
        let Place::Member(member) = p.place else { panic!("a stripe") };
        let logical = map.inverse(member, p.at).unwrap();
        assert!(logical >= two.0 && logical < two.1);
        assert_eq!(map.locate(logical), Some((member, p.at)));
    }
    // At the end there is nothing behind it.
    pool.cut(two.0, two.1).unwrap();
    let map = pool.map();
    assert_eq!(map.pieces(one.0, Bytes(two.1.0 - one.0.0)).count(), 0);
    assert_eq!(map.size().0, two.1.0);
}

#[test]
fn power_may_be_cut_at_any_write_of_it() {
    for redundancy in CLASSES {
        let mut seen = std::collections::BTreeSet::new();
        for cut in 0.. {
            let volatile = |d: &Arc<dyn Device>| {
                let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
                FaultyDevice::new(d.clone(), plan)
            };
            let all: Vec<_> = disks("d", &[14; 9]).iter().map(volatile).collect();
            let some = |range: std::ops::Range<usize>| -> Vec<Arc<dyn Device>> {
                all[range].iter().map(|d| d.clone() as _).collect()
            };
            let first = made(some(0..3), redundancy);
            let content = Content::fill(&first, 8);
            let one = add(&first, &some(3..6));
            let two = add(&first, &some(6..9));
            first.write(two.0, &told(two, 5)).unwrap();
            first.flush().unwrap();
            first.detach().unwrap();
            let power = Power::on();
            let powered = |d: &Arc<FaultyDevice>| {
                ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
            };
            let live = Pool::assemble(all.iter().map(powered).collect()).unwrap();
            live.attach(0).unwrap();
            power.cut_after(cut);
            let done = live.cut(one.0, one.1).is_ok();
            let over = power.is_on();
            drop(live);
            for (d, salt) in all.iter().zip(0..) {
                d.crash(cut * 31 + salt).unwrap();
            }
            let pool = Pool::assemble(some(0..9)).unwrap();
            let holes = pool.info().holes;
            assert!(holes.0 > 0 || !done, "cut at {cut}");
            seen.insert(holes.0 > 0);
            pool.attach(0).unwrap();
            content.check(&pool);
            expect(&pool, two, 5);
            pool.cut(one.0, one.1).unwrap();
            content.check(&pool);
            expect(&pool, two, 5);
            if over {
                assert!(done && cut > 20);
                break;
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [false, true]);
    }
}

/// A member that fails a write of the labels: the pool is the one before or the one after, and what is
/// not on that member is there.
#[test]
fn each_member_may_fail_at_each_write() {
    use braid_device::{FaultKind, On};
    for victim in 0..6 {
        for at in 0.. {
            let none = FaultPlan::default();
            let all: Vec<_> = disks("d", &[14; 6])
                .into_iter()
                .map(|d| FaultyDevice::new(d, none.clone()))
                .collect();
            let some = |range: std::ops::Range<usize>| -> Vec<Arc<dyn Device>> {
                all[range].iter().map(|d| d.clone() as _).collect()
            };
            let pool = made(some(0..3), Redundancy::Mirror(2));
            let content = Content::fill(&pool, 8);
            let one = add(&pool, &some(3..6));
            all[victim].arm(On::Write, at, FaultKind::Fails);
            let before = all[victim].counts().writes;
            let done = pool.cut(one.0, one.1);
            let writes = all[victim].counts().writes - before;
            content.check(&pool);
            let again = Pool::assemble(pool.devices()).unwrap();
            content.check(&again);
            assert!(again.info().holes.0 > 0 || done.is_err(), "{victim} at {at}");
            if writes <= at {
                assert!(done.is_ok());
                break;
            }
        }
    }
}
