use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};

use braid_device::{FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Power, ScriptedDevice};
use braid_format::label::MemberState;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::redundancy::tests::{Layout, consistent, devices, failed, pool};
use crate::reshape::tests::{Content, fresh, states};

const GO: &(dyn Fn(Progress) -> bool + Sync) = &|_| true;

/// A pool with or without redundancy.
fn made(all: &[Arc<FaultyDevice>], layout: Option<Layout>) -> Pool {
    let made = if let Some(layout) = layout {
        pool(all, layout)
    } else {
        let devices = all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        Pool::create(devices, &CreateOptions::new("plain")).unwrap()
    };
    made.attach(0).unwrap();
    made
}

const LAYOUTS: [Option<Layout>; 5] = [
    None,
    Some(Layout::Mirror),
    Some(Layout::StripedMirrors),
    Some(Layout::Parity(1)),
    Some(Layout::MirrorThenParity(2)),
];

#[test]
fn a_member_is_moved_under_load_and_nothing_is_ever_less_safe() {
    for layout in LAYOUTS {
        let mut all = devices(4, |_| FaultPlan::default());
        let pool = made(&all, layout);
        let mut content = Content::fill(&pool, 1);
        let new = fresh("new", &all[1]);
        let to = Destination::Device { device: new.clone(), force: false };
        let moving = pool.begin_evacuation(MemberIndex(1), to).unwrap();
        assert_eq!(moving, Moving { leaving: MemberIndex(1), successor: MemberIndex(4) });
        assert_eq!(states(&pool)[1], MemberState::Leaving);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let load = s.spawn(|| {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) || i < 100 {
                    content.write(&pool, i);
                    i += 1;
                }
            });
            let seen = AtomicU64::new(0);
            let pace = |p: Progress| {
                seen.fetch_max(p.done.0, Ordering::Relaxed);
                assert!(p.done.0 <= p.total.0);
                true
            };
            assert!(pool.evacuate(&pace).unwrap());
            assert!(seen.into_inner() > 0);
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap();
        });
        assert_eq!(pool.moving(), None);
        let old = std::mem::replace(&mut all[1], new);
        content.check(&pool);
        if layout.is_some() {
            consistent(&pool, &all);
        }
        // Nothing depends on the old one.
        let asked = old.counts();
        content.write(&pool, 7);
        pool.flush().unwrap();
        content.check(&pool);
        assert_eq!((old.counts().writes, old.counts().reads), (asked.writes, asked.reads));
        let said = pool.remove_member(MemberIndex(4)).unwrap();
        assert!(said.unwiped.is_none() && said.path == "m1", "{said:?}");
        pool.detach().unwrap();
        let again = Pool::assemble(pool.devices()).unwrap();
        assert_eq!(again.info().members.len(), 4);
        content.check(&again);
        if layout.is_some() {
            pool.fail_member(MemberIndex(0)).unwrap();
            content.check(&pool);
        }
    }
}

#[test]
fn lock_records_are_moved_with_their_changes() {
    let all = devices(2, |_| FaultPlan::default());
    let pool = made(&all, None);
    let sector = pool.info().lock_sector.to_usize();
    pool.write(ByteOffset(0), &vec![0; sector * 4]).unwrap();
    let new = fresh("new", &all[0]);
    let to = Destination::Device { device: new, force: false };
    pool.begin_evacuation(MemberIndex(0), to).unwrap();
    let record = |n: u64| {
        let mut bytes = vec![0; sector];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    };
    let stop = AtomicBool::new(false);
    let counted: u64 = std::thread::scope(|s| {
        let count = || {
            let (mut mine, mut seen) = (0, record(0));
            while !stop.load(Ordering::Relaxed) || mine < 50 {
                let now = u64::from_le_bytes(seen[..8].try_into().unwrap());
                match pool.compare_and_write(ByteOffset(0), &seen, &record(now + 1)).unwrap() {
                    braid_device::CawOutcome::Written => {
                        mine += 1;
                        seen = record(now + 1);
                    }
                    braid_device::CawOutcome::Mismatch(found) => seen = found,
                }
            }
            mine
        };
        let counters: Vec<_> = (0..3).map(|_| s.spawn(count)).collect();
        assert!(pool.evacuate(GO).unwrap());
        stop.store(true, Ordering::Relaxed);
        counters.into_iter().map(|c| c.join().unwrap()).sum()
    });
    let mut now = vec![0; sector];
    pool.read(ByteOffset(0), &mut now).unwrap();
    assert_eq!(now, record(counted));
}

#[test]
fn a_move_that_is_broken_off_begins_again_and_one_that_is_cancelled_leaves_a_spare() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = made(&all, None);
    let mut content = Content::fill(&pool, 2);
    let to = || Destination::Device { device: fresh("new", &all[3]), force: false };
    pool.begin_evacuation(MemberIndex(3), to()).unwrap();
    let calls = AtomicU64::new(0);
    let some = |_| calls.fetch_add(1, Ordering::Relaxed) < 2;
    assert!(!pool.evacuate(&some).unwrap());
    content.write(&pool, 3);
    let e = pool.begin_evacuation(MemberIndex(2), to()).unwrap_err();
    assert!(matches!(e, PoolError::Change(ChangeError::Moving { .. })), "{e}");
    assert!(
        pool.remove_member(MemberIndex(4)).is_err() && pool.remove_member(MemberIndex(3)).is_err()
    );
    // Another process, later.
    let again = Pool::assemble(pool.devices()).unwrap();
    assert_eq!(again.moving(), pool.moving());
    content.write(&again, 4);
    again.cancel_evacuation(MemberIndex(3)).unwrap();
    assert!(matches!(
        again.cancel_evacuation(MemberIndex(3)),
        Err(PoolError::Change(ChangeError::NotMoving { .. }))
    ));
    use MemberState::{Active, Spare};
    assert_eq!(states(&again), [Active, Active, Active, Active, Spare]);
    content.write(&again, 5);
    content.check(&again);
    // The spare may be named by its place.
    again.begin_evacuation(MemberIndex(0), Destination::Member(MemberIndex(4).into())).unwrap();
    assert!(again.evacuate(GO).unwrap());
    content.check(&again);
    assert_eq!(states(&again), [Active, Active, Active, Active, MemberState::Leaving]);
    // And the one that has left, too.
    again.begin_evacuation(MemberIndex(1), Destination::Member(MemberIndex(4).into())).unwrap();
    assert!(again.evacuate(GO).unwrap());
    content.check(&again);
}

/// This is not a failure, after which the node that moves would pause before it does anything else.
#[test]
fn a_move_that_is_cancelled_while_it_is_made_ends_well() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = made(&all, None);
    let content = Content::fill(&pool, 2);
    let to = Destination::Device { device: fresh("new", &all[3]), force: false };
    pool.begin_evacuation(MemberIndex(3), to).unwrap();
    let cancel = |_| {
        pool.cancel_evacuation(MemberIndex(3)).ok();
        true
    };
    assert!(!pool.evacuate(&cancel).unwrap());
    assert_eq!(states(&pool)[4], MemberState::Spare);
    content.check(&pool);
}

#[test]
fn what_cannot_be_moved_is_said() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = made(&all, Some(Layout::StripedMirrors));
    let say = |member, to| pool.begin_evacuation(MemberIndex(member), to).unwrap_err();
    let device = |name: &str, mib: u64| Destination::Device {
        device: MemoryDevice::new(name, Bytes(mib << 20), Bytes(512)),
        force: false,
    };
    assert!(matches!(say(9, device("x", 20)), PoolError::NoSuchMember { .. }));
    assert!(matches!(say(0, device("x", 4)), PoolError::TooSmall { .. }));
    let same = Destination::Device { device: pool.devices()[0].clone(), force: true };
    assert!(matches!(say(0, same), PoolError::Change(ChangeError::AlreadyMember { .. })));
    let itself = say(0, Destination::Member(MemberIndex(0).into()));
    assert!(matches!(itself, PoolError::Change(ChangeError::ToItself { .. })), "{itself}");
    let used = say(0, Destination::Member(MemberIndex(2).into()));
    assert!(matches!(used, PoolError::Change(ChangeError::NotFree { .. })), "{used}");
    let foreign = MemoryDevice::new("foreign", all[0].info().size, Bytes(512));
    Pool::create(vec![foreign.clone()], &CreateOptions::new("other")).unwrap();
    let to = Destination::Device { device: foreign, force: false };
    assert!(matches!(say(0, to), PoolError::BelongsToPool { .. }));
    let spare = pool.add_spare(fresh("spare", &all[0]), false).unwrap();
    let unused = say(spare.0, device("x", 20));
    assert!(matches!(unused, PoolError::Change(ChangeError::HoldsNothing { .. })), "{unused}");
    let epoch = pool.info().epoch;
    pool.fail_member(MemberIndex(3)).unwrap();
    let lost = say(3, device("x", 20));
    assert!(matches!(lost, PoolError::Change(ChangeError::NotWhole { .. })), "{lost}");
    assert_eq!(pool.info().epoch.0, epoch.0 + 1, "nothing else was changed");
}

#[test]
fn a_new_device_that_fails_leaves_the_old_one_in_its_place() {
    for layout in LAYOUTS {
        for nth in [0, 3, 9] {
            let all = devices(4, |_| FaultPlan::default());
            let pool = made(&all, layout);
            let mut content = Content::fill(&pool, 3);
            let new = fresh("new", &all[2]);
            let to = Destination::Device { device: new.clone(), force: false };
            pool.begin_evacuation(MemberIndex(2), to).unwrap();
            new.arm(On::Write, nth, FaultKind::Gone);
            assert!(pool.evacuate(GO).is_err());
            use MemberState::{Active, Failed};
            assert_eq!(states(&pool), [Active, Active, Active, Active, Failed], "{layout:?}");
            content.write(&pool, 1);
            pool.flush().unwrap();
            content.check(&pool);
            let left = pool.devices().into_iter().take(4).collect();
            content.check(&Pool::assemble(left).unwrap());
            pool.remove_member(MemberIndex(4)).unwrap();
        }
    }
}

#[test]
fn an_old_device_that_fails_is_lost_where_that_can_be_spared() {
    for layout in LAYOUTS.into_iter().flatten() {
        let all = devices(4, |_| FaultPlan::default());
        let pool = made(&all, Some(layout));
        let mut content = Content::fill(&pool, 4);
        let new = fresh("new", &all[2]);
        let to = Destination::Device { device: new.clone(), force: false };
        pool.begin_evacuation(MemberIndex(2), to).unwrap();
        all[2].arm(On::Write, 1, FaultKind::Gone);
        all[2].arm(On::Read, 2, FaultKind::Gone);
        (0..20).for_each(|i| content.write(&pool, i));
        let _ = pool.evacuate(GO);
        assert_eq!((failed(&pool), pool.moving()), (vec![2], None), "{layout:?}");
        content.check(&pool);
        // What was to succeed it is a spare, and does.
        assert_eq!(pool.use_spare().unwrap(), Some(MemberIndex(2)));
        assert!(pool.rebuild(MemberIndex(2), GO).unwrap());
        content.check(&pool);
    }
}

#[test]
fn bad_sectors_of_the_old_device_come_from_the_others() {
    for layout in LAYOUTS.into_iter().flatten() {
        let mut all = devices(4, |_| FaultPlan::default());
        let pool = made(&all, Some(layout));
        let content = Content::fill(&pool, 5);
        let new = fresh("new", &all[1]);
        let to = Destination::Device { device: new.clone(), force: false };
        pool.begin_evacuation(MemberIndex(1), to).unwrap();
        for n in 0..6 {
            all[1].arm(On::Read, n, FaultKind::Fails);
        }
        assert!(pool.evacuate(GO).unwrap());
        all[1] = new;
        content.check(&pool);
        consistent(&pool, &all);
        assert!(failed(&pool).is_empty());
    }
}

#[test]
fn what_a_suspected_member_returns_is_not_brought_to_another_device() {
    for layout in LAYOUTS.into_iter().flatten() {
        for when in ["before", "while it is copied", "at the end"] {
            let all = devices(5, |_| FaultPlan::default());
            let pool = made(&all[..4], Some(layout));
            let content = Content::fill(&pool, 5);
            let accuse = || {
                for place in 0..8 {
                    pool.accuse(MemberIndex(1), ByteOffset(place * 4096));
                }
            };
            let to = || Destination::Device { device: all[4].clone(), force: true };
            if when == "before" {
                accuse();
            }
            let begun = pool.begin_evacuation(MemberIndex(1), to());
            let ended = match (when, begun) {
                ("before", begun) => begun.map(drop),
                (_, begun) => {
                    begun.unwrap();
                    pool.evacuate(&|progress: Progress| {
                        if when != "at the end" || progress.done == progress.total {
                            accuse();
                        }
                        true
                    })
                    .map(drop)
                }
            };
            let suspected = ChangeError::Suspected {
                member: pool.0.epochs.read().name(MemberIndex(1)),
                index: MemberIndex(1),
            };
            assert!(
                matches!(&ended, Err(PoolError::Change(e)) if *e == suspected),
                "{layout:?} {when}: {ended:?}"
            );
            assert!(pool.moving().is_none());
            assert_eq!(states(&pool)[1], MemberState::Active);
            // A new device is filled from the others.
            pool.replace(MemberIndex(1), fresh("new", &all[1]), false).unwrap();
            content.check(&pool);
        }
    }
}

#[test]
fn an_old_device_that_takes_no_label_any_more_is_left_out() {
    let mut all = devices(3, |_| FaultPlan::default());
    let pool = made(&all, None);
    let content = Content::fill(&pool, 6);
    let new = fresh("new", &all[0]);
    let to = Destination::Device { device: new.clone(), force: false };
    pool.begin_evacuation(MemberIndex(0), to).unwrap();
    all[0].arm(On::Write, 0, FaultKind::Gone);
    assert!(pool.evacuate(GO).unwrap());
    use MemberState::{Active, Failed};
    assert_eq!(states(&pool), [Active, Active, Active, Failed]);
    content.check(&pool);
    // Whether the old one is there or not.
    let old = std::mem::replace(&mut all[0], new);
    old.heal();
    for with in [false, true] {
        let mut found: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
        found.extend(with.then(|| old.clone() as Arc<dyn Device>));
        content.check(&Pool::assemble(found).unwrap());
    }
}

/// It is neither the old device nor the new that takes no label: neither of them has failed.
#[test]
fn another_member_that_takes_no_label_is_lost_itself() {
    use MemberState::{Active, Failed, Leaving};
    for layout in [Some(Layout::StripedMirrors), None] {
        let mut all = devices(4, |_| FaultPlan::default());
        let pool = made(&all, layout);
        let content = Content::fill(&pool, 7);
        let new = fresh("new", &all[2]);
        let to = Destination::Device { device: new.clone(), force: false };
        pool.begin_evacuation(MemberIndex(2), to).unwrap();
        all[0].arm(On::Write, 0, FaultKind::Fails);
        let first = if layout.is_some() {
            assert!(pool.evacuate(GO).unwrap());
            Failed
        } else {
            // It cannot be spared: the move stays under way.
            let error = pool.evacuate(GO).unwrap_err().to_string();
            assert!(error.contains(&all[0].info().name) && pool.moving().is_some(), "{error}");
            assert!(pool.evacuate(GO).unwrap());
            Active
        };
        assert_eq!(states(&pool), [first, Active, Active, Active, Leaving], "{layout:?}");
        all[2] = new;
        content.check(&pool);
    }
}

/// Power is cut at every write and flush of a move: the old pool, or the new one, or the move
/// still under way; all data always.
#[test]
fn power_may_be_cut_at_any_write_of_a_move() {
    let mut seen: BTreeMap<(usize, bool), u32> = BTreeMap::new();
    for layout in [None, Some(Layout::Mirror), Some(Layout::Parity(1))] {
        for cut in 0.. {
            let volatile = || FaultPlan { volatile_cache: true, ..FaultPlan::default() };
            let all = devices(3, |_| volatile());
            let first = made(&all, layout);
            let content = Content::fill(&first, 8);
            first.flush().unwrap();
            first.detach().unwrap();
            let memory = MemoryDevice::new("new", all[0].info().size, Bytes(512));
            let new = FaultyDevice::new(memory, volatile());
            let power = Power::on();
            let powered = |d: &Arc<FaultyDevice>| {
                ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
            };
            let live = Pool::assemble(all.iter().map(powered).collect()).unwrap();
            live.attach(0).unwrap();
            power.cut_after(cut);
            let to = Destination::Device { device: powered(&new), force: false };
            let begun = live.begin_evacuation(MemberIndex(1), to).is_ok();
            let done = begun && live.evacuate(GO).is_ok_and(|done| done);
            let over = power.is_on() || done;
            drop(live);
            for (d, salt) in all.iter().chain([&new]).zip(0..) {
                d.crash(cut * 31 + salt).unwrap();
            }
            let mut found: Vec<Arc<dyn Device>> = all.iter().map(|d| d.clone() as _).collect();
            // If the change did not get that far, the new device is not in the pool.
            let pool = Pool::assemble(found.clone()).or_else(|_| {
                found.push(new.clone());
                Pool::assemble(found.clone())
            });
            let pool = pool.unwrap();
            pool.attach(0).unwrap();
            content.check(&pool);
            let known = pool.info().members.len();
            *seen.entry((known, pool.moving().is_some())).or_default() += 1;
            assert!(known == 4 || !begun, "cut at {cut}");
            if pool.moving().is_some() {
                assert!(pool.evacuate(GO).unwrap());
                content.check(&pool);
            }
            if over {
                assert!(done && cut > 20);
                break;
            }
        }
    }
    // Before, under way, after.
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [(3, false), (4, false), (4, true)]);
}
