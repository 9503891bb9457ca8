#![allow(clippy::large_stack_arrays, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes, MemberIndex};
use braid_pool::device::{AlignedBuf, Device, FaultKind, FaultPlan, MemoryDevice, On};
use braid_pool::layout::Redundancy;
use braid_pool::{AddOptions, CreateOptions, NoChecksums, Pool};

use super::{TrimRange, Trimmed};
use crate::error::Error;
use crate::growth::tests::{
    Disk, MIB, after_power_cut, all, clean, disks, expect, made, mount, write,
};
use crate::make::{MakeOptions, make};
use crate::plock::Canceller;
use crate::test_volume::Rng;
use crate::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};

const CLASSES: [Redundancy; 3] = [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)];

fn trim(fs: &Fs) -> u64 {
    let done = fs.trim(TrimRange::ALL, &Canceller::new()).unwrap();
    assert!(done.finished);
    done.given.get()
}

fn there(fs: &Fs, name: &str) -> bool {
    fs.lookup(fs.root(), name.as_bytes()).is_ok()
}

/// Sectors that are not zeros, in MiB.
fn mib_used(disks: &[Disk]) -> u64 {
    let mut sectors = 0;
    for (_, memory) in disks {
        let mut bytes = vec![0; memory.info().size.to_usize()];
        memory.read(ByteOffset(0), &mut bytes).unwrap();
        sectors += bytes.chunks(512).filter(|s| s.iter().any(|b| *b != 0)).count();
    }
    sectors as u64 * 512 / MIB
}

#[test]
fn what_was_deleted_goes_back_and_all_else_stays() {
    for redundancy in CLASSES {
        let devices = disks("d", &[48; 4], &FaultPlan::default());
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let fs = mount(made(all(&devices), &options));
        for name in ["first", "gone", "last"] {
            assert_eq!(write(&fs, name, 20), 20);
        }
        for i in 0..50 {
            write(&fs, &format!("small{i}"), 0);
        }
        let before = mib_used(&devices);
        fs.unlink(fs.root(), b"gone").unwrap();
        let given = trim(&fs);
        let after = mib_used(&devices);
        // Two copies; three columns of data and one of parity, less the edges of rows.
        let freed = match redundancy {
            Redundancy::None => 20,
            Redundancy::Mirror(_) => 40,
            Redundancy::Parity(_) => 24,
        };
        assert!(before - after >= freed, "{redundancy:?}: {before} to {after}");
        assert!(given >= 19 * MIB, "{given}");
        // Nothing has changed: nothing to do.
        assert_eq!(trim(&fs), 0, "{redundancy:?}");
        for name in ["first", "last"] {
            expect(&fs, name, 20);
        }
        assert_eq!(write(&fs, "again", 30), 30);
        expect(&fs, "again", 30);
        assert!(trim(&fs) > 0, "windows were taken, and go back");
        expect(&fs, "again", 30);
        let pool = fs.pool().clone();
        if redundancy != Redundancy::None {
            let scrubbed = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)));
        }
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
        let fs = mount(Pool::assemble(pool.devices()).unwrap());
        for (name, mib) in [("first", 20), ("last", 20), ("again", 30)] {
            expect(&fs, name, mib);
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn ranges_lengths_and_orders_to_stop_are_heeded() {
    let devices = disks("d", &[96], &FaultPlan::default());
    let fs = mount(made(all(&devices), &CreateOptions::new("p")));
    let size = fs.pool().info().size;
    let ask = |start, len, least| {
        let range = TrimRange { start: ByteOffset(start), len: Bytes(len), least: Bytes(least) };
        fs.trim(range, &Canceller::new())
    };
    for (start, len) in [(size.get(), 4096), (0, 0), (0, 4095), (u64::MAX, u64::MAX)] {
        assert!(matches!(ask(start, len, 0), Err(Error::Invalid(_))), "{start} {len}");
    }
    let half = ask(0, size.get() / 2, 0).unwrap().given;
    assert!(half.get() > 0 && half.get() <= size.get() / 2, "{half}");
    // No run is so long.
    assert_eq!(ask(0, u64::MAX, size.get()).unwrap().given, Bytes(0));
    let rest = ask(size.get() / 2, size.get(), 0).unwrap().given;
    assert!(rest.get() > 0 && rest.get() <= size.get() / 2, "{rest}");
    // Most groups were seen whole already.
    let all_of_it = ask(0, u64::MAX, 1 << 20).unwrap().given;
    assert!(all_of_it.get() < half.get() + rest.get(), "{all_of_it} of {half} and {rest}");
    assert_eq!(ask(0, u64::MAX, 1 << 20).unwrap().given, Bytes(0));
    write(&fs, "file", 3);
    assert!(ask(0, u64::MAX, 0).unwrap().given.get() > 0);
    let cancelled = Canceller::new();
    cancelled.cancel();
    let stopped = fs.trim(TrimRange::ALL, &cancelled).unwrap();
    assert_eq!(stopped, Trimmed { given: Bytes(0), finished: false });
    fs.unmount().unwrap();
    assert!(fs.trim(TrimRange::ALL, &Canceller::new()).is_err());
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let pool = Pool::assemble(all(&devices)).unwrap();
    let fs = Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap();
    assert!(matches!(fs.trim(TrimRange::ALL, &Canceller::new()), Err(Error::ReadOnly)));
    fs.unmount().unwrap();
}

#[test]
fn what_is_open_or_not_yet_written_out_is_not_free() {
    let fs = mount(made(all(&disks("d", &[96], &FaultPlan::default())), &CreateOptions::new("p")));
    write(&fs, "open", 8);
    let ino = fs.lookup(fs.root(), b"open").unwrap().ino;
    let open = fs.open(ino, 0).unwrap();
    fs.unlink(fs.root(), b"open").unwrap();
    let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
    let (_, fh) = fs.create(fs.root(), b"dirty", 0o600, 2, &cred).unwrap();
    // Some in memory, some on its way, some preallocated.
    fs.write(fh, 0, &[5; 70_000], WriteFlags::default()).unwrap();
    fs.fallocate(fh, 0, 1 << 20, 4 << 20).unwrap();
    fs.write(fh, 1 << 20, &vec![6; 1 << 20], WriteFlags::default()).unwrap();
    trim(&fs);
    fs.write(fh, 2 << 20, &vec![7; 1 << 20], WriteFlags::default()).unwrap();
    trim(&fs);
    fs.fsync(fh, false).unwrap();
    trim(&fs);
    let mut back = AlignedBuf::zeroed(1 << 20);
    for (at, byte) in [(1, 6), (2, 7), (3, 0)] {
        assert_eq!(fs.read(fh, at << 20, &mut back).unwrap(), 1 << 20);
        assert!(back.iter().all(|b| *b == byte), "{at}");
    }
    assert_eq!(fs.read(fh, 0, &mut back).unwrap(), 1 << 20);
    assert!(back[..70_000].iter().all(|b| *b == 5));
    let mut piece = AlignedBuf::zeroed(1 << 20);
    for n in 0..8 {
        assert_eq!(fs.read(open, n << 20, &mut piece).unwrap(), 1 << 20);
        assert!(piece.iter().any(|b| *b != 0), "piece {n} of a file that is open");
    }
    fs.release(open).unwrap();
    assert!(trim(&fs) >= 8 << 20);
    fs.release(fh).unwrap();
    let pool = fs.pool().clone();
    fs.unmount().unwrap();
    clean(Pool::assemble(pool.devices()).unwrap());
}

/// Power is cut at every write and discard: what was acknowledged is there, and a file whose removal
/// was not is whole.
#[test]
fn power_may_be_cut_at_any_write_around_a_trim() {
    let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    let mut came_back = 0;
    for (n, redundancy) in [(1, Redundancy::None), (2, Redundancy::Mirror(2))] {
        for cut in braid_testkit::places(4) {
            let devices = disks("d", &vec![64; n], &volatile);
            let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
            let fs = mount(made(all(&devices), &options));
            write(&fs, "keep", 3);
            write(&fs, "gone", 3);
            write(&fs, "before", 2);
            fs.unlink(fs.root(), b"before").unwrap();
            fs.sync().unwrap();
            let writes = || devices[0].0.counts().writes;
            let begin = writes();
            devices.iter().for_each(|d| d.0.arm(On::Write, cut, FaultKind::Gone));
            let removed = fs.unlink(fs.root(), b"gone").is_ok();
            let trimmed = fs.trim(TrimRange::ALL, &Canceller::new()).is_ok();
            let created = trimmed && fs.withdrawn().is_none() && {
                let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
                let made = fs.create(fs.root(), b"new", 0o600, 2, &cred);
                made.is_ok_and(|(_, fh)| {
                    fs.write(fh, 0, &[9; 100_000], WriteFlags::default()).is_ok()
                        && fs.fsync(fh, false).is_ok()
                })
            };
            let over = writes() - begin <= cut;
            fs.pool().close();
            std::mem::forget(fs);
            let copies = after_power_cut(&devices, cut * 31);
            clean(Pool::assemble(copies.clone()).unwrap());
            let fs = mount(Pool::assemble(copies.clone()).unwrap());
            expect(&fs, "keep", 3);
            assert!(!there(&fs, "before"));
            if there(&fs, "gone") {
                came_back += 1;
                expect(&fs, "gone", 3);
                assert!(!(removed && created), "cut at {cut}");
            }
            if created {
                let ino = fs.lookup(fs.root(), b"new").unwrap().ino;
                let fh = fs.open(ino, 0).unwrap();
                let mut back = AlignedBuf::zeroed(100_000);
                assert_eq!(fs.read(fh, 0, &mut back).unwrap(), 100_000);
                assert!(back.iter().all(|b| *b == 9), "cut at {cut}");
                fs.release(fh).unwrap();
            }
            trim(&fs);
            expect(&fs, "keep", 3);
            if redundancy != Redundancy::None {
                let scrubbed = fs.pool().scrub(&NoChecksums, &mut |_, _| true).unwrap();
                assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)));
            }
            fs.unmount().unwrap();
            clean(Pool::assemble(copies).unwrap());
            if over {
                assert!(cut > 5, "{redundancy:?}");
                break;
            }
        }
    }
    assert!(came_back > 0);
}

/// Ends trims, also when a test fails.
#[derive(Default)]
struct Ended(AtomicBool);

struct Ending<'a>(&'a Ended);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

/// Nodes of one process, each with the pool opened for itself.
fn nodes(devices: &[Arc<dyn Device>], redundancy: Redundancy) -> [Fs; 2] {
    let options = CreateOptions { redundancy, log_slots: 4, ..CreateOptions::new("p") };
    let pool = Pool::create(devices.to_vec(), &options).unwrap();
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    drop(pool);
    [(); 2].map(|()| mount(Pool::assemble(devices.to_vec()).unwrap()))
}

fn memory(n: usize, mib: u64) -> Vec<Arc<dyn Device>> {
    (0..n).map(|i| MemoryDevice::new(&format!("m{i}"), Bytes(mib << 20), Bytes(512)) as _).collect()
}

/// Files come and go on two nodes, in an order that a seed says, and both trim now and then.
#[test]
fn random_schedules_of_two_nodes_lose_nothing() {
    for (seed, redundancy) in (0..).zip(CLASSES) {
        let devices = memory(4, 192);
        let both = nodes(&devices, redundancy);
        let mut rng = Rng(seed + 77);
        let mut files: Vec<(String, u64)> = Vec::new();
        let mut given = 0;
        for i in 0..120 {
            let fs = &both[rng.below(2) as usize];
            match rng.below(8) {
                0 | 1 if files.len() > 3 => {
                    let (name, _) = files.swap_remove(rng.below(files.len() as u64) as usize);
                    fs.unlink(fs.root(), name.as_bytes()).unwrap();
                }
                2 => given += trim(fs),
                3 if !files.is_empty() => {
                    let (name, mib) = &files[rng.below(files.len() as u64) as usize];
                    expect(fs, name, *mib);
                }
                _ => {
                    let (name, mib) = (format!("f{i}"), rng.below(4));
                    assert_eq!(write(fs, &name, mib), mib);
                    files.push((name, mib));
                }
            }
        }
        let [a, b] = both;
        given += trim(&a) + trim(&b);
        assert!(given > 0);
        for (name, mib) in &files {
            expect(&a, name, *mib);
        }
        b.unmount().unwrap();
        for (name, mib) in &files {
            expect(&a, name, *mib);
        }
        a.unmount().unwrap();
        let pool = Pool::assemble(devices.clone()).unwrap();
        clean(pool.clone());
        if redundancy != Redundancy::None {
            let scrubbed = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)));
        }
    }
}

/// Both nodes write and delete, and trim all the while.
#[test]
fn trims_beside_writers_of_two_nodes_lose_nothing() {
    for redundancy in CLASSES {
        let devices = memory(4, 192);
        let both = nodes(&devices, redundancy);
        let ended = Ended::default();
        std::thread::scope(|s| {
            for fs in &both {
                s.spawn(|| {
                    while !ended.0.load(Ordering::Acquire) {
                        trim(fs);
                    }
                });
            }
            let guard = Ending(&ended);
            let writers: Vec<_> = (0..4)
                .map(|w| {
                    let fs = &both[w % 2];
                    s.spawn(move || {
                        for i in 0..12 {
                            let name = format!("w{w}-{i}");
                            assert_eq!(write(fs, &name, 2), 2);
                            expect(fs, &name, 2);
                            if i % 3 != 0 {
                                fs.unlink(fs.root(), name.as_bytes()).unwrap();
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            drop(guard);
        });
        let [a, b] = both;
        for fs in [&a, &b] {
            for w in 0..4 {
                (0..12).step_by(3).for_each(|i| expect(fs, &format!("w{w}-{i}"), 2));
            }
        }
        a.unmount().unwrap();
        b.unmount().unwrap();
        clean(Pool::assemble(devices).unwrap());
    }
}

#[test]
fn a_pool_may_become_smaller_and_larger_beside_trims() {
    for redundancy in [Redundancy::None, Redundancy::Mirror(2)] {
        let none = FaultPlan::default();
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let fs = mount(made(all(&disks("old", &[64; 2], &none)), &options));
        let first = write(&fs, "first", 10);
        let ended = Ended::default();
        std::thread::scope(|s| {
            s.spawn(|| {
                while !ended.0.load(Ordering::Acquire) {
                    trim(&fs);
                }
            });
            let guard = Ending(&ended);
            let new = disks("new", &[64; 2], &none);
            fs.add_devices(&all(&new), &AddOptions::default()).unwrap();
            let long = write(&fs, "long", 25);
            let left = fs.leave(MemberIndex(2)).unwrap();
            assert!(left.finished);
            expect(&fs, "long", long);
            drop(guard);
        });
        expect(&fs, "first", first);
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
    }
}

/// A mount that discards by itself, often.
fn mount_discarding(pool: Pool) -> Fs {
    let commit_interval = Duration::from_millis(20);
    let options = MountOptions { discard: true, commit_interval, ..MountOptions::default() };
    Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap()
}

#[test]
fn what_is_deleted_goes_back_by_itself_and_all_else_stays() {
    for redundancy in CLASSES {
        let devices = disks("d", &[96; 4], &FaultPlan::default());
        let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
        let pool = made(all(&devices), &options);
        let fs = mount_discarding(pool);
        for name in ["first", "gone", "last"] {
            assert_eq!(write(&fs, name, 20), 20);
        }
        let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
        let (_, open) = fs.create(fs.root(), b"open", 0o600, 2, &cred).unwrap();
        fs.write(open, 0, &vec![8; 1 << 20], WriteFlags::default()).unwrap();
        fs.sync().unwrap();
        fs.unlink(fs.root(), b"open").unwrap();
        let before = mib_used(&devices);
        fs.unlink(fs.root(), b"gone").unwrap();
        let freed = match redundancy {
            Redundancy::None => 19,
            Redundancy::Mirror(_) => 38,
            Redundancy::Parity(_) => 23,
        };
        // It takes as long as it takes.
        while mib_used(&devices) + freed > before {
            assert!(fs.withdrawn().is_none());
            std::thread::sleep(Duration::from_millis(20));
        }
        for name in ["first", "last"] {
            expect(&fs, name, 20);
        }
        let mut back = AlignedBuf::zeroed(1 << 20);
        assert_eq!(fs.read(open, 0, &mut back).unwrap(), 1 << 20);
        assert!(back.iter().all(|b| *b == 8), "a file that is open");
        fs.release(open).unwrap();
        // What holds something again is not touched.
        assert_eq!(write(&fs, "again", 30), 30);
        std::thread::sleep(Duration::from_millis(200));
        expect(&fs, "again", 30);
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        clean(Pool::assemble(pool.devices()).unwrap());
    }
}

/// Two nodes write and delete, in the same groups, while both discard by themselves.
#[test]
fn discards_beside_writers_of_two_nodes_lose_nothing() {
    for redundancy in CLASSES {
        let devices = memory(4, 192);
        for fs in nodes(&devices, redundancy) {
            fs.unmount().unwrap();
        }
        let both = [(); 2].map(|()| mount_discarding(Pool::assemble(devices.clone()).unwrap()));
        std::thread::scope(|s| {
            for w in 0..4 {
                let (own, other) = (&both[w % 2], &both[(w + 1) % 2]);
                s.spawn(move || {
                    for i in 0..24 {
                        let name = format!("w{w}-{i}");
                        assert_eq!(write(own, &name, 2), 2);
                        if i % 3 != 0 {
                            // By the other node: space of whose windows it is not.
                            let by = if i % 2 == 0 { own } else { other };
                            by.unlink(by.root(), name.as_bytes()).unwrap();
                        }
                        std::thread::sleep(Duration::from_millis(5));
                        expect(own, &format!("w{w}-{}", i / 3 * 3), 2);
                    }
                });
            }
        });
        let [a, b] = both;
        for fs in [&a, &b] {
            for w in 0..4 {
                (0..24).step_by(3).for_each(|i| expect(fs, &format!("w{w}-{i}"), 2));
            }
        }
        a.unmount().unwrap();
        b.unmount().unwrap();
        let pool = Pool::assemble(devices).unwrap();
        clean(pool.clone());
        if redundancy != Redundancy::None {
            let scrubbed = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
            assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)));
        }
    }
}

/// Power is cut at every write and discard of a node that discards by itself.
#[test]
fn power_may_be_cut_while_what_was_deleted_goes_back() {
    let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    for cut in (0..90).step_by(3) {
        let devices = disks("d", &[64], &volatile);
        let fs = mount_discarding(made(all(&devices), &CreateOptions::new("p")));
        write(&fs, "keep", 3);
        write(&fs, "gone", 3);
        fs.sync().unwrap();
        devices[0].0.arm(On::Write, cut, FaultKind::Gone);
        let removed = fs.unlink(fs.root(), b"gone").is_ok() && fs.sync().is_ok();
        let until = Instant::now() + Duration::from_millis(150);
        let mut made = Vec::new();
        for n in 0..20 {
            let name = format!("new{n}");
            let cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0 };
            let Ok((_, fh)) = fs.create(fs.root(), name.as_bytes(), 0o600, 2, &cred) else { break };
            let data = [n + 1; 100_000];
            if fs.write(fh, 0, &data, WriteFlags::default()).is_err()
                || fs.fsync(fh, false).is_err()
            {
                break;
            }
            made.push((name, n + 1));
            if Instant::now() < until {
                std::thread::sleep(Duration::from_millis(8));
            }
        }
        fs.pool().close();
        std::mem::forget(fs);
        let copies = after_power_cut(&devices, cut * 31);
        clean(Pool::assemble(copies.clone()).unwrap());
        let fs = mount(Pool::assemble(copies).unwrap());
        expect(&fs, "keep", 3);
        if there(&fs, "gone") {
            assert!(!removed, "cut at {cut}");
            expect(&fs, "gone", 3);
        }
        for (name, byte) in made {
            let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
            let fh = fs.open(ino, 0).unwrap();
            let mut back = AlignedBuf::zeroed(100_000);
            assert_eq!(fs.read(fh, 0, &mut back).unwrap(), 100_000);
            assert!(back.iter().all(|b| *b == byte), "{name}, cut at {cut}");
            fs.release(fh).unwrap();
        }
        fs.unmount().unwrap();
    }
}

/// What an earlier mount wrote is in no window of this one.
#[test]
fn what_stood_in_no_window_goes_back_as_soon_as_it_is_freed() {
    for redundancy in CLASSES {
        let devices = disks("d", &[96; 4], &FaultPlan::default());
        let fs =
            mount(made(all(&devices), &CreateOptions { redundancy, ..CreateOptions::new("p") }));
        assert_eq!(write(&fs, "old", 20), 20);
        assert_eq!(write(&fs, "stays", 5), 5);
        let pool = fs.pool().clone();
        fs.unmount().unwrap();
        let fs = mount(Pool::assemble(pool.devices()).unwrap());
        let alloc = &fs.core().alloc;
        alloc.remember_freed();
        fs.unlink(fs.root(), b"old").unwrap();
        let given = alloc.discard_freed(&|| false).unwrap();
        assert!(given >= 19 * MIB, "{redundancy:?}: {given}");
        assert_eq!(alloc.discard_freed(&|| false).unwrap(), 0);
        expect(&fs, "stays", 5);
        fs.unmount().unwrap();
    }
}

/// What was freed may have been taken again, by this node or another, before its turn comes.
#[test]
fn what_was_freed_and_taken_again_is_not_discarded() {
    for (redundancy, taker) in CLASSES.into_iter().flat_map(|r| [(r, 0), (r, 1)]) {
        let devices = memory(4, 64);
        let both = nodes(&devices, redundancy);
        let alloc = &both[0].core().alloc;
        alloc.remember_freed();
        assert_eq!(write(&both[0], "gone", 20), 20);
        both[0].unlink(both[0].root(), b"gone").unwrap();
        // So that any node may have it.
        alloc.give_up_unused().unwrap();
        // All that there is.
        let long = write(&both[taker], "new", 1000);
        assert!(long > 30, "{long}");
        both[taker].sync().unwrap();
        alloc.discard_freed(&|| false).unwrap();
        for fs in &both {
            expect(fs, "new", long);
        }
        // It was not forgotten, and is free now.
        both[0].unlink(both[0].root(), b"new").unwrap();
        for fs in &both {
            fs.core().alloc.give_up_unused().unwrap();
        }
        assert!(alloc.discard_freed(&|| false).unwrap() >= 20 * MIB);
        assert_eq!(alloc.discard_freed(&|| false).unwrap(), 0);
        for fs in both {
            fs.unmount().unwrap();
        }
        clean(Pool::assemble(devices).unwrap());
    }
}
