use braid_device::{FaultKind, FaultPlan, FaultyDevice, On, Power, ScriptedDevice};
use braid_format::{ByteOffset, Epoch};

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::parse;
use crate::reshape::tests::{Content, MIB, disks, made};

const CLASSES: [Redundancy; 4] =
    [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1), Redundancy::Parity(2)];

#[test]
fn new_devices_bring_space_like_the_old_and_nothing_moves() {
    for redundancy in CLASSES {
        let pool = made(disks("old", &[24, 30, 24, 24]), redundancy);
        let content = Content::fill(&pool, 1);
        let (before, map) = (pool.info(), pool.map());
        let added = pool.add(&disks("new", &[24, 24, 40, 24]), &AddOptions::default()).unwrap();
        assert_eq!(added.members, [4, 5, 6, 7].map(MemberIndex));
        let now = pool.info();
        assert_eq!((now.epoch, now.size), (added.info.epoch, added.info.size));
        assert!(now.size.0 > before.size.0 * 3 / 2, "{redundancy:?}: {}", now.size);
        assert_eq!(
            pool.map().pieces(ByteOffset(0), before.size).count(),
            map.pieces(ByteOffset(0), before.size).count()
        );
        content.check(&pool);
        // Each byte of the new part reads as it was written, and survives what the old part
        // survives.
        let len = now.size.0 - before.size.0;
        let bytes: Vec<u8> = (0..len).map(|i: u64| (i / 512 % 241).to_le_bytes()[0]).collect();
        pool.write(ByteOffset(before.size.0), &bytes).unwrap();
        let expect = |pool: &Pool| {
            let mut back = vec![0; bytes.len()];
            pool.read(ByteOffset(before.size.0), &mut back).unwrap();
            assert!(back == bytes, "{redundancy:?}");
        };
        expect(&pool);
        content.check(&pool);
        let again = Pool::assemble(pool.devices()).unwrap();
        expect(&again);
        content.check(&again);
        if redundancy != Redundancy::None {
            // What was being written there when power went is compared.
            assert!(again.recover_log(0).unwrap().regions > 0);
            pool.fail_member(MemberIndex(5)).unwrap();
            pool.fail_member(MemberIndex(0)).unwrap();
            expect(&pool);
            content.check(&pool);
        }
        let kinds: Vec<_> = now.segments.iter().map(|s| s.kind).collect();
        let half = kinds.len() / 2;
        assert_eq!(kinds[..half], kinds[half..], "{redundancy:?}");
    }
}

#[test]
fn noted_regions_are_known_in_a_pool_that_has_grown() {
    let pool = made(disks("old", &[24, 24]), Redundancy::Mirror(2));
    let regions =
        |pool: &Pool| Pool::assemble(pool.devices()).unwrap().recover_log(0).unwrap().regions;
    pool.write(ByteOffset(0), &[1; 512]).unwrap();
    assert_eq!(regions(&pool), 1);
    pool.add(&disks("new", &[80, 80]), &AddOptions::default()).unwrap();
    pool.write(ByteOffset(60 * MIB), &[1; 512]).unwrap();
    assert_eq!(regions(&pool), 2);
}

#[test]
fn other_shapes_may_be_asked_for() {
    let pool = made(disks("old", &[24, 24, 24]), Redundancy::Mirror(2));
    let layout = |text: &str| parse::layout(text, &std::collections::BTreeMap::new()).unwrap();
    let options = AddOptions { layout: Some(layout("mirror(0, 1, 2)")), ..AddOptions::default() };
    let three = disks("three", &[24, 24, 24]);
    let plan = pool.plan_add(&three, &options).unwrap();
    assert_eq!(pool.info().members.len(), 3, "a plan changes nothing");
    let before = pool.info().size;
    assert_eq!(pool.add(&three, &options).unwrap().info.size, plan.info.size);
    pool.fail_member(MemberIndex(3)).unwrap();
    pool.fail_member(MemberIndex(4)).unwrap();
    pool.write(ByteOffset(before.0), &[7; 4096]).unwrap();
    // As the newest.
    let e = pool.add(&disks("two", &[24, 24]), &AddOptions::default()).unwrap_err();
    assert!(matches!(e, PoolError::Layout(_)), "{e}");
    assert!(e.to_string().contains('3'), "{e}");
    // A stripe beside mirrors is what was asked for.
    let plain = AddOptions { redundancy: Some(Redundancy::None), ..AddOptions::default() };
    pool.add(&disks("one", &[24]), &plain).unwrap();
}

#[test]
fn what_cannot_be_added_is_said_before_anything_is_written() {
    let pool = made(disks("old", &[24, 24, 24]), Redundancy::None);
    let say =
        |devices: &[Arc<dyn Device>], options: &AddOptions| pool.add(devices, options).unwrap_err();
    let usual = AddOptions::default();
    assert!(matches!(say(&[], &usual), PoolError::NoDevices));
    assert!(matches!(
        say(&pool.devices()[1..2], &usual),
        PoolError::Change(ChangeError::AlreadyMember { .. })
    ));
    let one = disks("one", &[24]);
    let twice = [one[0].clone(), one[0].clone()];
    assert!(matches!(say(&twice, &usual), PoolError::GivenTwice { .. }));
    assert!(matches!(say(&disks("small", &[2]), &usual), PoolError::TooSmall { .. }));
    let mirror = AddOptions { redundancy: Some(Redundancy::Mirror(2)), ..AddOptions::default() };
    let e = say(&disks("m", &[24, 24]), &mirror);
    assert!(matches!(e, PoolError::Change(ChangeError::NoLogs)), "{e}");
    let parity = AddOptions { redundancy: Some(Redundancy::Parity(1)), ..AddOptions::default() };
    let e = say(&disks("m", &[24, 24, 24]), &parity);
    assert!(matches!(e, PoolError::Change(ChangeError::OneSubpool)), "{e}");
    let foreign = disks("foreign", &[24]);
    Pool::create(foreign.clone(), &CreateOptions::new("other")).unwrap();
    assert!(matches!(say(&foreign, &usual), PoolError::BelongsToPool { .. }));
    assert_eq!(pool.info().epoch, Epoch(1));
    let force = AddOptions { force: true, ..AddOptions::default() };
    pool.add(&foreign, &force).unwrap();
    let parity = made(disks("p", &[24, 24, 24]), Redundancy::Parity(1));
    let e = parity.add(&disks("m", &[24, 24]), &usual).unwrap_err();
    assert!(matches!(e, PoolError::Layout(_)) && e.to_string().contains("parity"), "{e}");
}

#[test]
fn a_label_that_is_full_says_of_what() {
    let pool = made(disks("old", &[4]), Redundancy::None);
    let mut last = None;
    for i in 0..Label::SEGMENTS_MAX {
        match pool.add(&disks(&format!("d{i}-"), &[4]), &AddOptions::default()) {
            Ok(added) => assert_eq!(added.info.segments.len(), i + 2),
            Err(e) => last = Some((i, e)),
        }
    }
    let (i, e) = last.unwrap();
    assert_eq!(i + 1, Label::SEGMENTS_MAX);
    let full = ChangeError::LabelFull { what: "segments", count: 129, max: 128 };
    assert!(matches!(&e, PoolError::Change(c) if *c == full), "{e}");
    Pool::assemble(pool.devices()).unwrap();
}

#[test]
fn power_may_be_cut_at_any_write_of_an_addition() {
    let small = [8, 8, 8];
    for (redundancy, sizes) in [
        (Redundancy::None, small),
        (Redundancy::Mirror(2), small),
        (Redundancy::Parity(1), [14; 3]),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for cut in 0.. {
            let volatile = |d: &Arc<dyn Device>| {
                let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
                FaultyDevice::new(d.clone(), plan)
            };
            let all: Vec<_> = disks("old", &sizes).iter().map(volatile).collect();
            let new: Vec<_> = disks("new", &sizes).iter().map(volatile).collect();
            let first = made(all.iter().map(|d| d.clone() as _).collect(), redundancy);
            let content = Content::fill(&first, 8);
            first.flush().unwrap();
            first.detach().unwrap();
            let power = Power::on();
            let powered = |d: &Arc<FaultyDevice>| {
                ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
            };
            let live = Pool::assemble(all.iter().map(powered).collect()).unwrap();
            live.attach(0).unwrap();
            power.cut_after(cut);
            let adding: Vec<_> = new.iter().map(powered).collect();
            let done = live.add(&adding, &AddOptions::default()).is_ok();
            let over = power.is_on();
            drop(live);
            for (d, salt) in all.iter().chain(&new).zip(0..) {
                d.crash(cut * 31 + salt).unwrap();
            }
            let some: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
            let every = some.iter().cloned().chain(new.iter().map(|d| d.clone() as _)).collect();
            let pool = Pool::assemble(some).or_else(|_| Pool::assemble(every)).unwrap();
            let members = pool.info().members.len();
            assert!(members == 6 || !done, "cut at {cut}");
            seen.insert(members);
            pool.attach(0).unwrap();
            content.check(&pool);
            if members == 3 {
                // What was half written on them may be anybody's label.
                let new: Vec<_> = new.iter().map(|d| d.clone() as _).collect();
                pool.add(&new, &AddOptions { force: true, ..AddOptions::default() }).unwrap();
                content.check(&pool);
            }
            if over {
                assert!(done && cut > 20);
                break;
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 6]);
    }
}

/// A change that has failed lets go of what it had taken on the devices that were to join.
#[test]
fn who_lives_is_seen_on_a_device_that_joined_at_the_second_attempt() {
    let pool = made(disks("old", &[24, 24]), Redundancy::Mirror(2));
    let _alive = pool.lock_byte(1).unwrap().unwrap();
    let new: Vec<_> = disks("new", &[24, 24])
        .into_iter()
        .map(|d| FaultyDevice::new(d, FaultPlan::default()))
        .collect();
    let devices: Vec<Arc<dyn Device>> = new.iter().map(|d| d.clone() as _).collect();
    let add = || pool.add(&devices, &AddOptions::default());
    let shown =
        || devices.iter().map(|d| d.abilities().locks.byte_locked(1).unwrap()).collect::<Vec<_>>();
    // It is wiped at both ends, and then labelled.
    new[0].arm(On::Write, 2, FaultKind::Fails);
    assert!(matches!(add(), Err(PoolError::Device { .. })));
    assert_eq!(shown(), [false, false]);
    add().unwrap();
    assert_eq!(shown(), [true, true]);
}

/// The second of two new devices does not take its second label. The first must not keep its own:
/// with more new members than old ones that epoch would count, and the old ones be stale.
#[test]
fn of_an_addition_that_fails_nothing_stays_on_the_new_devices() {
    let old = disks("old", &[8]);
    let pool = made(old.clone(), Redundancy::None);
    let new: Vec<_> = disks("new", &[8, 8])
        .into_iter()
        .map(|d| FaultyDevice::new(d, FaultPlan::default()))
        .collect();
    let devices: Vec<Arc<dyn Device>> = new.iter().map(|d| d.clone() as _).collect();
    // It is wiped at both ends, and gets the first label.
    new[1].arm(On::Write, 3, FaultKind::Fails);
    let failed = pool.add(&devices, &AddOptions::default()).unwrap_err();
    assert!(matches!(failed, PoolError::Device { .. }), "{failed}");
    drop(pool);
    for device in &devices {
        let read = Pool::assemble(vec![device.clone()]).unwrap_err();
        assert!(matches!(read, PoolError::NotAMember { .. }), "{read}");
    }
    let pool = Pool::assemble(old).unwrap();
    assert_eq!(pool.info().epoch, Epoch(1));
    pool.add(&devices, &AddOptions::default()).unwrap();
}
