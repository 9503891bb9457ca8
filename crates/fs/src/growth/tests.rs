use std::sync::Arc;

use braid_format::meta::MetaHeader;
use braid_format::superblock::RawSuperblock;
use braid_format::{ByteOffset, Bytes};
use braid_pool::device::{
    AlignedBuf, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On,
};
use braid_pool::layout::{Redundancy, parse};
use braid_pool::{AddOptions, CreateOptions, Pool};
use zerocopy::FromBytes;

use crate::check::{CheckOptions, check};
use crate::jobs::Job;
use crate::make::{MakeOptions, make};
use crate::volume::Volume;
use crate::{Cred, Error, Fs, MountOptions, NoKernelCache};

use super::{HERE, same_copy};

pub(crate) const MIB: u64 = 1 << 20;
const PIECE: usize = 1 << 20;

/// A device that fails as planned, and what is under it.
pub(crate) type Disk = (Arc<FaultyDevice>, Arc<MemoryDevice>);

pub(crate) fn disks(name: &str, sizes: &[u64], plan: &FaultPlan) -> Vec<Disk> {
    let disk = |(i, mib): (usize, &u64)| {
        let memory = MemoryDevice::new(&format!("{name}{i}"), Bytes(mib * MIB), Bytes(512));
        (FaultyDevice::new(memory.clone(), plan.clone()), memory)
    };
    sizes.iter().enumerate().map(disk).collect()
}

pub(crate) fn all(disks: &[Disk]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|d| d.0.clone() as _).collect()
}

/// What the disks hold after the power was cut: the same of what was not flushed for the same salt.
pub(crate) fn after_power_cut(disks: &[Disk], salt: u64) -> Vec<Arc<dyn Device>> {
    let cut = |((disk, memory), n): (&Disk, u64)| -> Arc<dyn Device> {
        disk.crash(salt + n).unwrap();
        memory.fork(&disk.info().name)
    };
    disks.iter().zip(0..).map(cut).collect()
}

pub(crate) fn made(devices: Vec<Arc<dyn Device>>, options: &CreateOptions) -> Pool {
    let pool = Pool::create(devices, options).unwrap();
    let options = MakeOptions { nodes: Some(1), journal_size: Some(MIB), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    pool
}

pub(crate) fn mount(pool: Pool) -> Fs {
    Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
}

pub(crate) fn free(fs: &Fs) -> u64 {
    fs.statfs().unwrap().free
}

fn content(name: &str, piece: u64) -> Vec<u8> {
    let salt = name.bytes().map(u64::from).sum::<u64>() + piece;
    (0..PIECE as u64).map(|i| ((i * 7 + salt) % 253).to_le_bytes()[0]).collect()
}

/// A file of so many MiB, or as many as there is room for; how many.
pub(crate) fn write(fs: &Fs, name: &str, mib: u64) -> u64 {
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
    let (_, fh) = fs.create(fs.root(), name.as_bytes(), 0o600, 2, &cred).unwrap();
    let mut done = 0;
    while done < mib {
        let bytes = content(name, done);
        match fs.write(fh, done * PIECE as u64, &bytes, crate::WriteFlags::default()) {
            Ok(n) if n == bytes.len() => done += 1,
            other => {
                eprintln!("{name}, piece {done}: {other:?}");
                break;
            }
        }
    }
    fs.fsync(fh, false).ok();
    fs.release(fh).unwrap();
    done
}

pub(crate) fn expect(fs: &Fs, name: &str, mib: u64) {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
    let fh = fs.open(ino, 0).unwrap();
    let mut buf = AlignedBuf::zeroed(PIECE);
    for piece in 0..mib {
        assert_eq!(fs.read(fh, piece * PIECE as u64, &mut buf).unwrap(), PIECE);
        assert!(buf[..] == content(name, piece)[..], "{name}, piece {piece}");
    }
    fs.release(fh).unwrap();
}

pub(crate) fn clean(pool: Pool) {
    let report = check(pool, CheckOptions { repair: false }, &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

#[test]
fn the_file_system_uses_what_is_added_while_it_is_mounted() {
    let none = FaultPlan::default();
    let classes = [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)];
    for redundancy in classes {
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let pool = made(all(&disks("old", &[48; 4], &none)), &options);
        let fs = mount(pool.clone());
        let had = free(&fs);
        let first = write(&fs, "first", 20);
        let before = free(&fs);
        let more = disks("new", &[48, 48, 60, 48], &none);
        let added = fs.add_devices(&all(&more), &AddOptions::default()).unwrap();
        assert!(free(&fs) > before + had * 3 / 4, "{redundancy:?}: {} {before}", free(&fs));
        let blocks = fs.statfs().unwrap().blocks;
        assert!(blocks > had * 7 / 4 && blocks * 4096 < added.info.size.0);
        // More than there was room for.
        let long = write(&fs, "long", had / 256 + 10);
        assert_eq!(long, had / 256 + 10, "{redundancy:?}");
        for i in 0..300 {
            write(&fs, &format!("small{i}"), 0);
        }
        expect(&fs, "first", first);
        expect(&fs, "long", long);
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
        let fs = mount(Pool::assemble(pool.devices()).unwrap());
        assert_eq!(fs.statfs().unwrap().blocks, blocks);
        expect(&fs, "long", long);
        // Again, by one device if that is possible.
        if redundancy == Redundancy::None {
            fs.add_devices(&all(&disks("one", &[40], &none)), &AddOptions::default()).unwrap();
            let rest = write(&fs, "rest", 10_000);
            assert!(rest > 30);
            expect(&fs, "rest", rest);
        }
        fs.unlink(fs.root(), b"long").unwrap();
        expect(&fs, "first", first);
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
    }
}

#[test]
fn what_is_added_may_have_another_shape() {
    let none = FaultPlan::default();
    let layout =
        |text: &str| Some(parse::layout(text, &std::collections::BTreeMap::new()).unwrap());
    let shape = layout("metadata = mirror(0[24M], 1[24M]); data = stripe(rest, 0, 1)");
    let options = CreateOptions { layout: shape, ..CreateOptions::new("p") };
    let pool = made(all(&disks("old", &[64; 4], &none)), &options);
    let fs = mount(pool);
    let had = fs.statfs().unwrap();
    // One cannot hold the two copies that metadata has here.
    let e = fs.add_devices(&all(&disks("one", &[64], &none)), &AddOptions::default()).unwrap_err();
    assert!(e.to_string().contains("copies"), "{e}");
    fs.add_devices(&all(&disks("two", &[64; 2], &none)), &AddOptions::default()).unwrap();
    let now = fs.statfs().unwrap();
    assert!(now.blocks > had.blocks * 5 / 4 && now.files > had.files, "{had:?} {now:?}");
    let long = write(&fs, "long", had.blocks / 256 + 5);
    expect(&fs, "long", had.blocks / 256 + 5);
    assert_eq!(long, had.blocks / 256 + 5);
    // Too small for a group: nothing is added.
    let members = fs.pool().info().members.len();
    let small = disks("small", &[6, 6], &none);
    let e = fs.add_devices(&all(&small), &AddOptions::default()).unwrap_err();
    assert!(e.to_string().contains("too small"), "{e}");
    assert_eq!(fs.pool().info().members.len(), members);
    let pool = fs.pool().clone();
    fs.unmount().unwrap();
    clean(Pool::assemble(pool.devices()).unwrap());
}

/// Power is cut at every write of an old device, or of a new one, of an addition: all files are
/// there, the check finds nothing, and the next mount has all the space.
#[test]
fn power_may_be_cut_at_any_write_of_a_growth() {
    let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    for victim in [0, 2] {
        for cut in braid_testkit::places(3) {
            let old = disks("old", &[64; 2], &volatile);
            let new = disks("new", &[64; 2], &volatile);
            let pool = made(all(&old), &CreateOptions::new("p"));
            let fs = mount(pool);
            let first = write(&fs, "first", 5);
            fs.sync().unwrap();
            let had = fs.statfs().unwrap().blocks;
            let each: Vec<Disk> = old.iter().chain(&new).cloned().collect();
            each[victim].0.arm(On::Write, cut, FaultKind::Gone);
            let before = each[victim].0.counts().writes;
            let done = fs.add_devices(&all(&new), &AddOptions::default()).is_ok();
            let writes = each[victim].0.counts().writes - before;
            // Nothing more comes of this node; what it holds is left behind with its devices.
            fs.pool().close();
            std::mem::forget(fs);
            let mut copies: Vec<Arc<dyn Device>> = Vec::new();
            for ((d, memory), salt) in each.iter().zip(0..) {
                d.crash(cut * 31 + salt).unwrap();
                copies.push(memory.fork(&d.info().name));
            }
            if Pool::assemble(copies[..2].to_vec()).is_ok() {
                copies.truncate(2);
            }
            let grown = copies.len() == 4;
            assert!(grown || !done, "cut at {cut}");
            clean(Pool::assemble(copies.clone()).unwrap());
            let fs = mount(Pool::assemble(copies).unwrap());
            expect(&fs, "first", first);
            let blocks = fs.statfs().unwrap().blocks;
            assert_eq!(blocks > had * 3 / 2, grown, "cut at {cut}: {had} {blocks}");
            if grown {
                assert_eq!(write(&fs, "long", had / 256 + 5), had / 256 + 5);
                expect(&fs, "long", had / 256 + 5);
            }
            let pool = fs.pool().clone();
            fs.unmount().unwrap();
            clean(Pool::assemble(pool.devices()).unwrap());
            if done && writes <= cut {
                break;
            }
        }
    }
}

#[test]
fn files_move_until_all_parts_are_equally_full_and_no_more() {
    let none = FaultPlan::default();
    for redundancy in [Redundancy::None, Redundancy::Parity(1)] {
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let pool = made(all(&disks("old", &[64; 3], &none)), &options);
        let fs = mount(pool);
        let room = free(&fs) / 256;
        for i in 0..8 {
            assert_eq!(write(&fs, &format!("file{i}"), room / 10), room / 10);
        }
        fs.add_devices(&all(&disks("new", &[64; 3], &none)), &AddOptions::default()).unwrap();
        let fills = |f: &crate::Fill| f.used * 1000 / f.blocks;
        let done = fs.rebalance().unwrap();
        let (before, after): (Vec<_>, Vec<_>) =
            (done.before.iter().map(fills).collect(), done.after.iter().map(fills).collect());
        assert!(done.finished && before[0] > 700 && before[1] < 100, "{before:?}");
        assert!(after[0].abs_diff(after[1]) < 80, "{redundancy:?}: {before:?} {after:?}");
        // A half of what there is, about.
        let all_of_it = room / 10 * 8 * 256;
        assert!(done.moved > all_of_it / 3 && done.moved < all_of_it * 3 / 5, "{}", done.moved);
        for i in 0..8 {
            expect(&fs, &format!("file{i}"), room / 10);
        }
        let again = fs.rebalance().unwrap();
        assert!(again.moved * 20 < all_of_it, "{} again", again.moved);
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
        let fs = mount(Pool::assemble(pool.devices()).unwrap());
        for i in 0..8 {
            expect(&fs, &format!("file{i}"), room / 10);
        }
        fs.unmount().unwrap();
    }
}

/// One of three copies has rotted, from which some of the file would be read: the others know better, and are
/// given up.
#[test]
fn rot_is_healed_before_a_file_moves() {
    let none = FaultPlan::default();
    let options = CreateOptions { redundancy: Redundancy::Mirror(3), ..CreateOptions::new("p") };
    let old = disks("old", &[64; 3], &none);
    for rotten in 0..3 {
        let fs = mount(made(all(&old), &CreateOptions { force: true, ..options.clone() }));
        assert_eq!(write(&fs, "file", 20), 20);
        fs.add_devices(&all(&disks("new", &[64; 3], &none)), &AddOptions::default()).unwrap();
        let mut spoiled = 0;
        let magic = braid_format::meta::MetaHeader::MAGIC.to_le_bytes();
        for at in (16 * MIB..60 * MIB).step_by(4096) {
            let (at, mut bytes) = (ByteOffset(at), vec![0; 4096]);
            old[rotten].1.read(at, &mut bytes).unwrap();
            let plain = bytes.windows(4).all(|w| w != magic);
            if plain && bytes.windows(2).take(300).all(|w| w[0] != w[1]) {
                bytes[1000] ^= 0x55;
                old[rotten].1.write(at, &bytes).unwrap();
                spoiled += 1;
            }
        }
        assert!(spoiled > 10 * 256, "{spoiled}");
        assert!(fs.rebalance().unwrap().moved > 5 * 256);
        let left = fs.pool().scrub(&braid_pool::NoChecksums, &mut |_, _| true).unwrap();
        assert!(left.undecided == Bytes(0), "{left:?}");
        expect(&fs, "file", 20);
        fs.unmount().unwrap();
    }
}

/// Power is cut while files move: each is whole, the check finds nothing.
#[test]
fn power_may_be_cut_while_files_move() {
    let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    let mut finished = [false; 2];
    for n in 0.. {
        let (cut, victim) = (n / 2, usize::from(n % 2 == 1));
        let old = disks("old", &[64], &volatile);
        let new = disks("new", &[64], &volatile);
        let fs = mount(made(all(&old), &CreateOptions::new("p")));
        for i in 0..5 {
            assert_eq!(write(&fs, &format!("file{i}"), 6), 6);
        }
        fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
        let each: Vec<Disk> = old.iter().chain(&new).cloned().collect();
        each[victim].0.arm(On::Write, cut, FaultKind::Gone);
        finished[victim] |= fs.rebalance().is_ok();
        fs.pool().close();
        std::mem::forget(fs);
        let copies = after_power_cut(&each, cut * 31);
        clean(Pool::assemble(copies.clone()).unwrap());
        let fs = mount(Pool::assemble(copies).unwrap());
        for i in 0..5 {
            expect(&fs, &format!("file{i}"), 6);
        }
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
        if finished == [true; 2] {
            assert!(n > 10);
            break;
        }
    }
}

/// An epoch and a growth, each on a thread of its own, read of the same region.
#[test]
fn what_two_threads_learn_at_once_is_there_once() {
    let none = FaultPlan::default();
    let pool = made(all(&disks("old", &[64], &none)), &CreateOptions::new("p"));
    let before: Vec<_> = (0..64).map(|_| Volume::open(pool.clone()).unwrap()).collect();
    let fs = mount(pool.clone());
    fs.add_devices(&all(&disks("new", &[64], &none)), &AddOptions::default()).unwrap();
    for volume in before {
        let begin = std::sync::Barrier::new(4);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    begin.wait();
                    volume.refresh().unwrap();
                });
            }
        });
        assert_eq!(volume.groups.added(), 1);
        assert_eq!(volume.total_blocks(), fs.core().volume.total_blocks());
    }
    fs.unmount().unwrap();
}

/// The node that added space died before the superblock's copy said so, while other nodes use the
/// file system.
#[test]
fn the_copy_of_the_superblock_is_made_to_follow_beside_others() {
    let disks = disks("old", &[96, 96], &FaultPlan::default());
    let pool = Pool::create(all(&disks), &CreateOptions::new("p")).unwrap();
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let one = mount(Pool::assemble(all(&disks)).unwrap());
    let volume = one.core().volume.clone();
    let (at, mut old) = (volume.body_at(volume.copy()), AlignedBuf::zeroed(volume.geo.body_len()));
    volume.pool.read(at, &mut old).unwrap();
    let more = self::disks("new", &[96], &FaultPlan::default());
    one.add_devices(&all(&more), &AddOptions::default()).unwrap();
    assert!(same_copy(&volume).unwrap());
    volume.pool.write(at, &old).unwrap();
    assert!(!same_copy(&volume).unwrap());
    let found = Pool::assemble(all(&disks).into_iter().chain(all(&more)).collect()).unwrap();
    let other = mount(found);
    assert!(same_copy(&volume).unwrap());
    other.unmount().unwrap();
    one.unmount().unwrap();
}

/// The first superblock is lost while its copy is from before the last growth: whoever believed the copy
/// would take files in the new space for damage, or grow over them.
#[test]
fn a_superblocks_copy_from_before_a_growth_is_not_used() {
    let none = FaultPlan::default();
    let (old, new) = (disks("old", &[96], &none), disks("new", &[96], &none));
    let fs = mount(made(all(&old), &CreateOptions::new("p")));
    let volume = fs.core().volume.clone();
    let both = || Pool::assemble(all(&old).into_iter().chain(all(&new)).collect()).unwrap();
    let read = |block| {
        let mut body = AlignedBuf::zeroed(volume.geo.body_len());
        volume.pool.read(volume.body_at(block), &mut body).unwrap();
        body.to_vec()
    };
    let write_to = |block, body: &[u8]| volume.pool.write(volume.body_at(block), body).unwrap();
    let before = read(volume.copy());
    fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
    let mib = write(&fs, "long", 100);
    fs.unmount().unwrap();
    let (first, copy) = (read(HERE), read(volume.copy()));
    let mut hostile = first.clone();
    RawSuperblock::mut_from_prefix(&mut hostile).unwrap().0.rgrp_count.set(u64::MAX);
    MetaHeader::seal(&mut hostile);
    let damaged = vec![0x5a; hostile.len()];
    for lost in [&hostile[..], &damaged] {
        write_to(HERE, lost);
        write_to(volume.copy(), &before);
        let mounted = Fs::mount(both(), MountOptions::default(), Arc::new(NoKernelCache));
        assert!(matches!(mounted.err(), Some(Error::OldSuperblock { .. })));
        let checked = check(both(), CheckOptions { repair: true }, &mut |_, _| {});
        assert!(matches!(checked, Err(Error::OldSuperblock { .. })));
        assert!(read(volume.copy()) == before && read(HERE) == lost, "nothing was changed");
        // The copy of now is used, and goes to the first one's place.
        write_to(volume.copy(), &copy);
        let fs = mount(both());
        expect(&fs, "long", mib);
        fs.unmount().unwrap();
        assert!(same_copy(&volume).unwrap());
        clean(both());
    }
}

#[test]
fn a_node_that_leaves_waits_for_its_rebalancing() {
    let none = FaultPlan::default();
    let pool = made(all(&disks("old", &[96], &none)), &CreateOptions::new("p"));
    let fs = mount(pool);
    let mib = write(&fs, "long", 70);
    fs.add_devices(&all(&disks("new", &[96], &none)), &AddOptions::default()).unwrap();
    std::thread::scope(|s| {
        let moving = s.spawn(|| fs.rebalance());
        while !fs.mounted.rebalance.is_running(Job::Rebalance) && !moving.is_finished() {
            std::thread::yield_now();
        }
        fs.unmount().unwrap();
        assert!(
            !fs.mounted.rebalance.is_running(Job::Rebalance),
            "it goes on after the node has left"
        );
        moving.join().unwrap().unwrap();
    });
    assert!(mib > 60);
    assert!(matches!(fs.rebalance(), Err(crate::Error::UnderWay)));
}
