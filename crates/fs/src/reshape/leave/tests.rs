use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use braid_format::label::Label;
use braid_format::{Bytes, MemberIndex};
use braid_pool::device::{
    CommandKind, Device, FaultKind, FaultPlan, MemoryDevice, On, Rule, ScriptedDevice,
};
use braid_pool::layout::Redundancy;
use braid_pool::{AddOptions, CreateOptions, Pool};

use super::*;
use crate::growth::tests::{
    Disk, MIB, after_power_cut, all, clean, disks, expect, free, made, mount, write,
};
use crate::make::{MakeOptions, make};
use crate::{Cred, MountOptions, NoKernelCache};

const CLASSES: [Redundancy; 3] = [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)];

/// Takes out of the pool all that `member` came with.
fn take_out(fs: &Fs, member: u16) -> Left {
    let left = fs.leave(MemberIndex(member)).unwrap();
    assert!(left.finished);
    for _ in &left.members {
        // They stand side by side, and those after one that goes move up.
        fs.remove_member(left.members[0]).unwrap();
    }
    left
}

fn unmounted(fs: &Fs) -> Pool {
    let pool = fs.pool().clone();
    fs.unmount().unwrap();
    pool
}

#[test]
fn what_was_added_leaves_with_its_members_and_may_come_again() {
    let none = FaultPlan::default();
    for redundancy in CLASSES {
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let fs = mount(made(all(&disks("old", &[48; 4], &none)), &options));
        let (had, room) = (fs.statfs().unwrap(), free(&fs) / 256);
        let first = write(&fs, "first", room / 3);
        fs.add_devices(&all(&disks("one", &[48; 4], &none)), &AddOptions::default()).unwrap();
        fs.add_devices(&all(&disks("two", &[48; 4], &none)), &AddOptions::default()).unwrap();
        let wide = fs.statfs().unwrap();
        // All parts have something; then there is room for it in one.
        let long = write(&fs, "long", 2 * room);
        for i in 0..100 {
            write(&fs, &format!("small{i}"), 0);
        }
        let last = write(&fs, "last", room / 4);
        fs.unlink(fs.root(), b"long").unwrap();
        assert!(long > room && first == room / 3 && last == room / 4, "{redundancy:?}");
        let plan = fs.plan_leaving(MemberIndex(5)).unwrap();
        assert_eq!((plan.parts, plan.members), (vec![1], [4, 5, 6, 7].map(MemberIndex).to_vec()));
        let left = take_out(&fs, 5);
        assert_eq!(left.members.len(), 4);
        let less = fs.statfs().unwrap();
        assert_eq!(wide.blocks - less.blocks, (wide.blocks - had.blocks) / 2, "{redundancy:?}");
        expect(&fs, "first", first);
        expect(&fs, "last", last);
        let pool = unmounted(&fs);
        assert_eq!(pool.info().members.len(), 8);
        clean(Pool::assemble(pool.devices()).unwrap());
        let fs = mount(Pool::assemble(pool.devices()).unwrap());
        assert_eq!(fs.statfs().unwrap().blocks, less.blocks);
        take_out(&fs, 4);
        assert_eq!(fs.statfs().unwrap().blocks, had.blocks);
        assert!(fs.statfs().unwrap().files <= had.files);
        fs.add_devices(&all(&disks("three", &[48; 4], &none)), &AddOptions::default()).unwrap();
        assert_eq!(fs.statfs().unwrap().blocks, less.blocks);
        let again = write(&fs, "again", room);
        assert_eq!(again, room);
        for (name, mib) in [("first", first), ("last", last), ("again", again)] {
            expect(&fs, name, mib);
        }
        let pool = unmounted(&fs);
        assert_eq!(pool.info().members.len(), 8);
        clean(Pool::assemble(pool.devices()).unwrap());
    }
}

#[test]
fn what_cannot_leave_is_said_with_figures_and_nothing_changes() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64; 2], &none)), &CreateOptions::new("p")));
    let room = free(&fs) / 256;
    fs.add_devices(&all(&disks("new", &[64; 2], &none)), &AddOptions::default()).unwrap();
    let epoch = fs.pool().info().epoch;
    let e = fs.leave(MemberIndex(1)).unwrap_err();
    assert!(
        matches!(e, Error::Founding { member: 1, bytes, .. } if bytes > Bytes(50 * MIB)),
        "{e}"
    );
    assert!(fs.leave(MemberIndex(9)).is_err());
    // More than the first two can hold.
    let full = write(&fs, "full", room + 20);
    let e = fs.leave(MemberIndex(3)).unwrap_err();
    let Error::NoRoomElsewhere { need, room: left } = e else { panic!("{e}") };
    assert!(need > left && need > Bytes(15 * MIB), "{need} {left}");
    assert_eq!(fs.pool().info().epoch, epoch);
    assert!(fs.core().volume.groups.leaving() == RawLeaving::default());
    expect(&fs, "full", full);
    clean(unmounted_pool(&fs));
}

/// What the pool was made with stays, on other members.
#[test]
fn who_holds_what_never_leaves_gives_its_place_to_another() {
    let none = FaultPlan::default();
    let old = disks("old", &[64; 2], &none);
    let fs = mount(made(all(&old), &CreateOptions::new("p")));
    let e = fs.plan_successor(MemberIndex(0)).unwrap_err();
    assert!(matches!(&e, Error::NoSuccessor { why } if why.contains("nothing was added")), "{e}");
    let room = free(&fs) / 256;
    fs.add_devices(&all(&disks("small", &[48; 2], &none)), &AddOptions::default()).unwrap();
    let e = fs.plan_successor(MemberIndex(0)).unwrap_err();
    assert!(
        matches!(&e, Error::NoSuccessor { why } if why.contains("part 1 is large enough")),
        "{e}"
    );
    fs.add_devices(&all(&disks("large", &[80, 64], &none)), &AddOptions::default()).unwrap();
    let full = write(&fs, "full", room + 100);
    let e = fs.plan_successor(MemberIndex(0)).unwrap_err();
    assert!(matches!(&e, Error::NoSuccessor { why } if why.contains("part 2 cannot leave")), "{e}");
    fs.unlink(fs.root(), b"full").unwrap();
    let kept = write(&fs, "kept", full / 2);
    // The smaller of the two that fit; the part that has only too small ones stays.
    let planned = fs.plan_successor(MemberIndex(0)).unwrap();
    assert_eq!(planned.member, MemberIndex(5));
    assert_eq!(planned.leaving.as_ref().unwrap().parts, [2]);
    let (successor, _) = fs.make_successor(MemberIndex(0)).unwrap().unwrap();
    assert_eq!(successor.uuid, planned.uuid);
    let uuid = |i: usize| fs.pool().label().members[i].uuid;
    let (leaves, spare) = (uuid(0), uuid(4));
    fs.evacuate_member(MemberIndex(0), braid_pool::Destination::Member(successor.uuid.into()))
        .unwrap();
    while fs.pool().moving().is_some() {
        std::thread::sleep(PAUSE / 10);
    }
    fs.remove_member(leaves).unwrap();
    // The other one that came with the part is a successor at once.
    let next = fs.plan_successor(MemberIndex(1)).unwrap();
    assert_eq!((next.uuid, next.leaving), (spare, None));
    expect(&fs, "kept", kept);
    let pool = unmounted(&fs);
    assert!(pool.label().members.iter().all(|m| m.uuid != leaves));
    clean(Pool::assemble(pool.devices()).unwrap());
}

fn unmounted_pool(fs: &Fs) -> Pool {
    Pool::assemble(unmounted(fs).devices()).unwrap()
}

#[test]
fn metadata_keeps_a_part_in_the_pool_and_is_named() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64; 2], &none)), &CreateOptions::new("p")));
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
    // Blocks that a directory came to have stay with it when its names go: this one goes too.
    let many = fs.mkdir(fs.root(), b"many", 0o700, &cred).unwrap().ino;
    // No room for any.
    let full = write(&fs, "full", 10_000);
    fs.add_devices(&all(&disks("new", &[64; 2], &none)), &AddOptions::default()).unwrap();
    let made: Vec<_> = (0..200)
        .map(|i| fs.mkdir(many, format!("d{i}").as_bytes(), 0o700, &cred).unwrap().ino)
        .collect();
    let groups = &fs.core().volume.groups;
    let added = |ino: &braid_format::InodeNo| {
        groups.of_block((*ino).into()).is_some_and(|g| groups.is_added(g))
    };
    assert!(made.iter().any(added));
    let e = fs.leave(MemberIndex(2)).unwrap_err();
    let Error::Immovable { blocks, inodes } = &e else { panic!("{e}") };
    assert!(*blocks > 10 && inodes.contains(", "), "{e}");
    assert!(!fs.core().volume.groups.any_closed());
    // Without them it leaves.
    for i in 0..made.len() {
        fs.rmdir(many, format!("d{i}").as_bytes()).unwrap();
    }
    fs.rmdir(fs.root(), b"many").unwrap();
    take_out(&fs, 2);
    expect(&fs, "full", full);
    // What this node holds of locks there comes to nothing.
    fs.core().locks.drop_idle(0);
    let pool = unmounted_pool(&fs);
    assert_eq!(pool.info().members.len(), 2);
    clean(pool);
}

#[test]
fn metadata_and_room_for_it_stay_in_what_was_there_at_first() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64; 2], &none)), &CreateOptions::new("p")));
    let room = free(&fs) / 256;
    fs.add_devices(&all(&disks("new", &[64; 2], &none)), &AddOptions::default()).unwrap();
    write(&fs, "long", room + 30);
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
    for i in 0..500 {
        let ino = fs.mkdir(fs.root(), format!("d{i}").as_bytes(), 0o700, &cred).unwrap().ino;
        let groups = &fs.core().volume.groups;
        assert!(groups.of_block(ino.into()).is_some_and(|g| !groups.is_added(g)), "{i}");
    }
    clean(unmounted_pool(&fs));
}

#[test]
fn it_may_be_ended_and_what_it_left_is_in_use_again() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[96], &none)), &CreateOptions::new("p")));
    let room = free(&fs) / 256;
    assert!(write(&fs, "pad", room * 9 / 10) > 60);
    fs.add_devices(&all(&disks("new", &[96], &none)), &AddOptions::default()).unwrap();
    let had = fs.statfs().unwrap().blocks;
    // Files that are open and have no name do not move.
    let mut open = Vec::new();
    for i in 0..5 {
        let name = format!("f{i}");
        assert_eq!(write(&fs, &name, 8), 8);
        let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
        open.push(fs.open(ino, 2).unwrap());
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
    }
    fs.unlink(fs.root(), b"pad").unwrap();
    std::thread::scope(|s| {
        let leaving = s.spawn(|| fs.leave(MemberIndex(1)));
        while !fs.core().volume.groups.any_closed() && !leaving.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(matches!(fs.rebalance(), Err(Error::UnderWay)));
        fs.stop_leaving().unwrap();
        let left = leaving.join().unwrap().unwrap();
        assert!(!left.finished);
    });
    assert!(!fs.core().volume.groups.any_closed());
    assert_eq!(fs.statfs().unwrap().blocks, had);
    for fh in open {
        fs.release(fh).unwrap();
    }
    assert!(fs.leave(MemberIndex(1)).unwrap().finished);
    assert!(fs.statfs().unwrap().blocks < had * 2 / 3);
    clean(unmounted_pool(&fs));
}

/// A node dies in the middle: the part stays closed, over mounts, until somebody goes on or ends it.
#[test]
fn a_part_stays_closed_until_somebody_goes_on() {
    let none = FaultPlan::default();
    for goes_on in [true, false] {
        let old = disks("old", &[64], &none);
        let new = disks("new", &[64], &none);
        let fs = mount(made(all(&old), &CreateOptions::new("p")));
        fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
        let had = fs.statfs().unwrap().blocks;
        write(&fs, "first", 20);
        change(fs.core(), |l| l.closed = 1).unwrap();
        let less = fs.statfs().unwrap();
        assert!(less.blocks < had * 2 / 3 && less.free <= less.blocks);
        fs.sync().unwrap();
        fs.pool().close();
        std::mem::forget(fs);
        let copies = || {
            let both = old.iter().chain(&new);
            both.map(|(d, memory)| memory.fork(&d.info().name) as Arc<dyn Device>)
                .collect::<Vec<_>>()
        };
        clean(Pool::assemble(copies()).unwrap());
        let fs = mount(Pool::assemble(copies()).unwrap());
        assert_eq!(fs.statfs().unwrap().blocks, less.blocks);
        assert!(matches!(fs.rebalance(), Err(Error::Leaving)));
        let small = write(&fs, "more", 10_000);
        assert!(small < 64);
        fs.unlink(fs.root(), b"more").unwrap();
        if goes_on {
            assert_eq!(take_out(&fs, 1).members, [MemberIndex(1)]);
        } else {
            fs.stop_leaving().unwrap();
            assert_eq!(fs.statfs().unwrap().blocks, had);
            let sb = fs.core().volume.read_body(HERE).unwrap().0;
            let (sb, _) = RawSuperblock::read_from_prefix(&sb).unwrap();
            assert_eq!(sb.features_incompat.get() & RawSuperblock::LEAVING, 0);
        }
        expect(&fs, "first", 20);
        clean(unmounted_pool(&fs));
    }
}

/// Power is cut at every write of an old device, or of the one that leaves: all files are there, the
/// check finds nothing, and it can be gone on with.
#[test]
fn power_may_be_cut_at_any_write_while_a_part_leaves() {
    let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    let mut finished = [false; 2];
    let mut seen = std::collections::BTreeSet::new();
    for (cut, victim) in braid_testkit::places(4).flat_map(|cut| [(cut, 0), (cut, 1)]) {
        let old = disks("old", &[64], &volatile);
        let new = disks("new", &[64], &volatile);
        let fs = mount(made(all(&old), &CreateOptions::new("p")));
        fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
        // Some of it is where it has to go from.
        let goes = |g: u64| fs.core().volume.groups.is_added(g);
        assert_eq!(write(&fs, "long", 40), 40);
        assert_eq!(write(&fs, "more", 16), 16);
        fs.unlink(fs.root(), b"long").unwrap();
        assert_eq!(write(&fs, "last", 6), 6);
        fs.sync().unwrap();
        let there: u64 = (0..fs.core().volume.groups.count())
            .filter(|g| goes(*g))
            .map(|g| fs.core().alloc.look_at(g).unwrap().data)
            .sum();
        assert!(there > 0, "nothing has to move");
        let each: Vec<Disk> = old.iter().chain(&new).cloned().collect();
        each[victim].0.arm(On::Write, cut, FaultKind::Gone);
        let before = each[victim].0.counts().writes;
        let done = fs.leave(MemberIndex(1)).is_ok_and(|l| l.finished);
        let writes = each[victim].0.counts().writes - before;
        fs.pool().close();
        std::mem::forget(fs);
        let copies = after_power_cut(&each, cut * 31);
        clean(Pool::assemble(copies.clone()).unwrap());
        let fs = mount(Pool::assemble(copies).unwrap());
        expect(&fs, "more", 16);
        expect(&fs, "last", 6);
        let info = fs.pool().info();
        let volume = &fs.core().volume;
        seen.insert((volume.groups.any_closed(), info.holes.get() > 0));
        assert!(info.holes.get() > 0 || !done);
        assert!(fs.leave(MemberIndex(1)).unwrap().finished, "cut at {cut}");
        expect(&fs, "more", 16);
        fs.remove_member(MemberIndex(1)).unwrap();
        let pool = unmounted_pool(&fs);
        assert_eq!(pool.info().members.len(), 1);
        clean(pool);
        finished[victim] |= done && writes <= cut;
        if finished == [true; 2] {
            assert!(cut > 5);
            break;
        }
    }
    let all = [(false, false), (false, true), (true, false)];
    assert!(seen.iter().all(|state| all.contains(state)), "{seen:?}");
    assert!(seen.len() > 1, "{seen:?}");
}

/// Two nodes: one writes and reads all the while, also in what leaves.
#[test]
fn another_node_goes_on_meanwhile() {
    let none = FaultPlan::default();
    let (old, new) = (disks("old", &[96, 96], &none), disks("new", &[96, 96], &none));
    let options = CreateOptions { redundancy: Redundancy::Mirror(2), ..CreateOptions::new("p") };
    let options = CreateOptions { log_slots: 4, ..options };
    let pool = Pool::create(all(&old), &options).unwrap();
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    drop(pool);
    let opener = |devices: Vec<Arc<dyn Device>>| {
        let pool = Pool::assemble(devices).unwrap();
        Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
    };
    let one = opener(all(&old));
    one.add_devices(&all(&new), &AddOptions::default()).unwrap();
    let other = opener(all(&old).into_iter().chain(all(&new)).collect());
    let had = one.statfs().unwrap().blocks;
    // Both have windows in what was added.
    let room = free(&one) / 256;
    assert_eq!(write(&one, "long", room / 2), room / 2);
    let wide = room / 5;
    assert_eq!(write(&other, "wide", wide), wide);
    one.unlink(one.root(), b"long").unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        let busy = s.spawn(|| {
            let mut i = 0;
            while !end.load(std::sync::atomic::Ordering::Acquire) || i < 3 {
                let name = format!("busy{}", i % 4);
                let _ = other.unlink(other.root(), name.as_bytes());
                assert_eq!(write(&other, &name, 3), 3);
                expect(&other, &name, 3);
                i += 1;
            }
        });
        let left = one.leave(MemberIndex(2));
        end.store(true, std::sync::atomic::Ordering::Release);
        busy.join().unwrap();
        assert!(left.unwrap().finished);
    });
    for fs in [&one, &other] {
        expect(fs, "wide", wide);
        assert!(fs.statfs().unwrap().blocks < had * 2 / 3);
        fs.core().locks.drop_idle(0);
    }
    other.remove_member(MemberIndex(2)).unwrap();
    other.remove_member(MemberIndex(2)).unwrap();
    expect(&one, "wide", wide);
    write(&one, "after", 3);
    expect(&other, "after", 3);
    one.unmount().unwrap();
    let pool = unmounted_pool(&other);
    assert_eq!(pool.info().members.len(), 2);
    clean(pool);
}

/// A file system on a pool with which one device was made, and to which another was added.
fn of_two_parts() -> Fs {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64], &none)), &CreateOptions::new("p")));
    fs.add_devices(&all(&disks("new", &[64], &none)), &AddOptions::default()).unwrap();
    fs
}

/// What `member` came with, which holds no file, is gone; the pool's labels do not say so.
fn gone_and_not_cut(fs: &Fs, member: u16) {
    let whole = fs.whole(MemberIndex(member).into()).unwrap();
    fs.core().alloc.shrink().unwrap();
    change(fs.core(), |l| l.closed = bits_of(&whole)).unwrap();
    fs.core().alloc.leave().unwrap();
    let_go(fs.core(), &whole, &groups_of(fs.core(), &whole)).unwrap();
}

/// The end of one that was broken off is not taken for the leaving of what was asked for.
#[test]
fn what_never_leaves_is_refused_although_another_part_was_to_be_taken_out_first() {
    let fs = of_two_parts();
    gone_and_not_cut(&fs, 1);
    let e = fs.leave(MemberIndex(0)).unwrap_err();
    assert!(matches!(e, Error::Founding { member: 0, .. }), "{e}");
    assert!(fs.pool().info().holes > Bytes(0), "what was gone is out");
    clean(unmounted_pool(&fs));
}

/// A caller that asks for a part that was gone, and is taken out only now, succeeds.
#[test]
fn what_was_gone_is_taken_out_by_who_asks_for_it_again() {
    let fs = of_two_parts();
    gone_and_not_cut(&fs, 1);
    let left = fs.leave(MemberIndex(1)).unwrap();
    assert_eq!((left.members, left.finished), (vec![MemberIndex(1)], true));
    clean(unmounted_pool(&fs));
}

#[test]
fn what_is_gone_is_counted_once_however_often_the_pool_does_not_let_it_go() {
    let none = FaultPlan::default();
    let old = all(&disks("old", &[64], &none)).remove(0);
    let old = ScriptedDevice::over(old);
    let fs = mount(made(vec![old.clone()], &CreateOptions::new("p")));
    let had = fs.statfs().unwrap();
    fs.add_devices(&all(&disks("new", &[64], &none)), &AddOptions::default()).unwrap();
    gone_and_not_cut(&fs, 1);
    let label = Rule::on(&[CommandKind::Write]).beginning(Label::COPY0_AT);
    let fails = old.add(label.once().fails());
    let left = fs.leave(MemberIndex(1)).unwrap();
    assert_eq!(fails.hits(), 1, "the label was written at once");
    assert_eq!((left.members, left.finished), (vec![MemberIndex(1)], true));
    let has = fs.statfs().unwrap();
    assert_eq!((has.blocks, has.free), (had.blocks, had.free));
    clean(unmounted_pool(&fs));
}

/// The pool would refuse the last step: so the first is not taken.
#[test]
fn a_part_stays_open_while_a_member_of_it_is_being_moved() {
    let none = FaultPlan::default();
    let fs = of_two_parts();
    let whole = fs.whole(MemberIndex(1).into()).unwrap();
    // The pool's call, which wakes no thread that would end the move at once.
    let spare = all(&disks("spare", &[64], &none)).remove(0);
    let to = braid_pool::Destination::Device { device: spare, force: false };
    fs.mounted.maintenance.stop();
    fs.pool().begin_evacuation(MemberIndex(1), to).unwrap();
    let moving = |e: &Error| e.to_string().contains("being moved");
    for refused in [
        fs.plan_leaving(MemberIndex(1)).map(drop),
        fs.leave(MemberIndex(1)).map(drop),
        // It was begun since.
        change(fs.core(), |l| l.closed = 1).and_then(|()| fs.empty(&whole).map(drop)),
    ] {
        let e = refused.unwrap_err();
        assert!(moving(&e), "{e}");
        assert_eq!(fs.core().volume.groups.leaving().gone.get(), 0);
    }
    fs.pool().cancel_evacuation(MemberIndex(1)).unwrap();
    assert!(fs.leave(MemberIndex(1)).unwrap().finished);
    clean(unmounted_pool(&fs));
}

/// How long a walk through all files takes is no measure.
#[test]
fn patience_ends_some_time_after_the_first_walk_in_vain() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let mut patience = Patience::default();
    assert!(!patience.ends(9, 3, at(1000)));
    // That walk took long, and so does the next.
    assert!(!patience.ends(6, 0, at(2000)));
    assert!(!patience.ends(6, 0, at(2000) + PATIENCE));
    // Fewer all the same: others have let them go.
    assert!(!patience.ends(5, 0, at(3000)));
    // A walk that moves something starts the time again.
    assert!(!patience.ends(5, 1, at(4000)));
    assert!(!patience.ends(5, 0, at(5000)));
    assert!(!patience.ends(5, 0, at(5000) + PATIENCE));
    assert!(patience.ends(5, 0, at(5001) + PATIENCE));
}

/// Each order to end something ends only that.
#[test]
fn what_is_ended_is_what_was_meant() {
    use crate::jobs::JobSlot;
    let slot = JobSlot::default();
    assert!(!slot.stop(Job::Leave), "none is under way");
    for (job, other) in [(Job::Leave, Job::Rebalance), (Job::Rebalance, Job::Leave)] {
        let running = slot.begin(job).unwrap();
        assert!(slot.begin(other).is_err());
        assert!(!slot.stop(other) && !slot.stops());
        assert!(slot.stop(job) && slot.stops());
        drop(running);
        assert!(!slot.stop(job));
    }
}

/// The node that did it died when everything was out but the pool's labels did not say so.
#[test]
fn the_next_mount_takes_out_what_has_left() {
    let none = FaultPlan::default();
    let (old, new) = (disks("old", &[64], &none), disks("new", &[64], &none));
    let fs = mount(made(all(&old), &CreateOptions::new("p")));
    fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
    write(&fs, "first", 5);
    gone_and_not_cut(&fs, 1);
    fs.pool().close();
    std::mem::forget(fs);
    let both = old.iter().chain(&new);
    let copies: Vec<Arc<dyn Device>> = both
        .map(|(d, memory): &Disk| -> Arc<dyn Device> {
            let fork: Arc<MemoryDevice> = memory.fork(&d.info().name);
            fork
        })
        .collect();
    let pool = Pool::assemble(copies.clone()).unwrap();
    assert_eq!(pool.info().holes, Bytes(0));
    clean(pool);
    let fs = mount(Pool::assemble(copies).unwrap());
    assert!(fs.pool().info().holes > Bytes(0));
    assert!(fs.leave(MemberIndex(1)).unwrap().members.is_empty());
    fs.remove_member(MemberIndex(1)).unwrap();
    expect(&fs, "first", 5);
    clean(unmounted_pool(&fs));
}

#[test]
fn what_was_reserved_in_a_part_that_closes_comes_from_the_rest() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64], &none)), &CreateOptions::new("p")));
    for name in ["one", "two"] {
        fs.add_devices(&all(&disks(name, &[64], &none)), &AddOptions::default()).unwrap();
    }
    let core = fs.core();
    let (alloc, groups) = (&core.alloc, &core.volume.groups);
    assert!(alloc.leave().unwrap(), "nothing is closed");
    let first = groups.of_part(1);
    let mut r = alloc.reserve(10, 0, 0).unwrap();
    assert!(alloc.claim_in(&mut r, 1, &|_| false).unwrap().is_none());
    let mut claim = |len, part: usize| {
        let wanted = |group: u64| groups.of_part(part).contains(&group);
        let run = alloc.claim_in(&mut r, len, &wanted).unwrap().unwrap();
        assert!(core.volume.rgrp_of(run.start).is_some_and(wanted));
        run
    };
    // Here or there a window has to be taken first.
    drop((claim(1, 0), claim(2, 2)));
    let run = claim(4, 1);
    assert_eq!((run.len, r.data), (4, 3));
    change(core, |l| l.closed = 1).unwrap();
    assert!(!alloc.leave().unwrap(), "what is claimed is about to be used");
    drop(run);
    drop(r);
    let all_here = alloc.reserve_all_here();
    let had = all_here.data;
    assert!(had > 0 && alloc.leave().unwrap());
    assert_eq!(alloc.reserved().0, had);
    for group in first {
        assert_eq!(alloc.look_at(group).unwrap().data, 0, "group {group}");
    }
    drop(all_here);
    // What is closed counts as none.
    alloc.shrink().unwrap();
    let open = |part: usize| {
        let shapes = groups.of_part(part).filter_map(|index| groups.shape(index));
        shapes.map(|shape| shape.block_count).sum::<u64>()
    };
    let told = || (alloc.totals().blocks, alloc.totals_soon().blocks);
    assert_eq!(told(), (open(0) + open(2), open(0) + open(2)));
    for (closed, blocks) in [(3, open(0)), (1, open(0) + open(2)), (0, open(0) + 2 * open(1))] {
        change(core, |l| l.closed = closed).unwrap();
        assert_eq!(told(), (blocks, blocks));
        assert_eq!(alloc.totals().free, alloc.room().unwrap());
    }
    clean(unmounted_pool(&fs));
}

#[test]
fn who_has_metadata_in_a_group_is_named() {
    let none = FaultPlan::default();
    let fs = mount(made(all(&disks("old", &[64], &none)), &CreateOptions::new("p")));
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
    let mut made: Vec<_> = (0..5)
        .map(|i| fs.mkdir(fs.root(), format!("d{i}").as_bytes(), 0o700, &cred).unwrap().ino)
        .collect();
    made.push(fs.root());
    made.sort_unstable();
    fs.sync().unwrap();
    fs.core().meta.checkpoint().unwrap();
    let owners = |most| {
        let of = |index| fs.core().alloc.owners_in(index, most).unwrap();
        (0..fs.core().volume.groups.count()).map(of).collect::<Vec<_>>()
    };
    let mut all = owners(100).concat();
    all.sort_unstable();
    assert_eq!(all, made);
    assert!(owners(2).iter().all(|some| some.len() <= 2) && owners(2).concat().len() >= 2);
    clean(unmounted_pool(&fs));
}
