//! What a node that gives a lock up must do, and must not wait for.

#![allow(clippy::large_stack_arrays, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use braid_format::{Bytes, InodeNo, LockNo};
use braid_lock::{Local, ManagerOptions, Mode, Timing};
use braid_pool::device::{
    BoundedDevice, Device, FaultKind, FaultPlan, FaultyDevice, FileDevice, MemoryDevice, On,
    OpenOptions, Rule, ScriptedDevice,
};
use braid_pool::layout::LayoutFile;
use braid_pool::{CreateOptions, Pool};

use crate::ReadRange;
use crate::attr::{Cred, Fh, KernelCache, NoKernelCache, SetAttr, WriteFlags};
use crate::make::{MakeOptions, make};
use crate::{Error, Fs, MountOptions};

const O_RDWR: i32 = 2;
const O_SYNC: i32 = 0o4_010_000;

fn made(device: Arc<dyn Device>) -> Pool {
    let pool = Pool::create(vec![device], &CreateOptions::new("test")).unwrap();
    let options =
        MakeOptions { nodes: Some(2), journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    pool
}

/// A kernel that sends a mapped page back when it is told to drop the file, and waits for the answer.
#[derive(Default)]
struct Mapped {
    file: Mutex<Option<(Fs, Fh)>>,
    answered: AtomicBool,
}
impl KernelCache for Mapped {
    fn invalidate_inode(&self, _: InodeNo, data: bool) {
        let Some((fs, fh)) = self.file.lock().unwrap().take_if(|_| data) else { return };
        let (done, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            done.send(fs.write(fh, 0, &[7; 4096], flags).is_ok()).ok();
        });
        let answer = answer.recv_timeout(Duration::from_secs(20));
        self.answered.store(answer == Ok(true), Ordering::Release);
    }
    fn invalidate_entries(&self, _: InodeNo) {}
}

#[test]
fn a_page_of_a_synchronous_file_that_comes_back_waits_for_no_lock() {
    let pool = made(MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512)));
    let kernel = Arc::new(Mapped::default());
    let a = Fs::mount(pool.clone(), MountOptions::default(), kernel.clone()).unwrap();
    let b = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR | O_SYNC, &Cred::default()).unwrap();
    a.write(fa, 0, &[1; 8192], WriteFlags::default()).unwrap();
    *kernel.file.lock().unwrap() = Some((a.clone(), fa));
    let fb = b.open(attr.ino, 0).unwrap();
    let read =
        b.read_reply(fb, ReadRange { offset: 0, len: 8192, fill: false }, <[u8]>::to_vec).unwrap();
    assert!(kernel.answered.load(Ordering::Acquire), "the page's write waited for the lock");
    assert!(read == [[7; 4096], [1; 4096]].concat());
    a.release(fa).unwrap();
    b.release(fb).unwrap();
    a.unmount().unwrap();
    b.unmount().unwrap();
}

#[test]
fn a_node_that_cannot_write_what_another_waits_for_dies_for_it() {
    let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let device = FaultyDevice::new(inner, FaultPlan::default());
    let pool = made(device.clone());
    let mount = || Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache));
    let (a, b) = (mount().unwrap(), mount().unwrap());
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    a.write(fa, 0, &[1; 8192], WriteFlags::default()).unwrap();
    a.fsync(fa, false).unwrap();
    // Heartbeats write too, and may take the blow: until it hits the contents.
    let (done, answer) = mpsc::channel();
    let reader = {
        let b = b.clone();
        move || {
            let fb = b.open(attr.ino, 0).unwrap();
            done.send(
                b.read_reply(fb, ReadRange { offset: 0, len: 8192, fill: false }, <[u8]>::to_vec)
                    .unwrap(),
            )
            .unwrap();
        }
    };
    a.write(fa, 0, &[2; 8192], WriteFlags::default()).unwrap();
    for nth in 0..2 {
        device.arm(On::Write, nth, FaultKind::Fails);
    }
    std::thread::spawn(reader);
    let read = answer.recv_timeout(Duration::from_mins(1)).expect("waits for ever");
    device.heal();
    // If the contents were hit, the node has gone, and what it had made durable is there.
    if a.withdrawn().is_some() {
        assert!(read == [1; 8192] || read == [2; 8192]);
        assert!(matches!(a.fsync(fa, false), Err(Error::Withdrawn { .. })));
        assert!(a.unmount().is_err());
    } else {
        assert!(read == [2; 8192]);
        a.unmount().unwrap();
    }
    b.unmount().unwrap();
}

/// A kernel whose pages come back, when it is told to drop a file, only once something else is done.
struct Busy {
    files: Mutex<Vec<InodeNo>>,
    begun: Mutex<usize>,
    over: Mutex<bool>,
    changed: Condvar,
}
impl KernelCache for Busy {
    fn invalidate_inode(&self, ino: InodeNo, data: bool) {
        if !data || !self.files.lock().unwrap().contains(&ino) {
            return;
        }
        *self.begun.lock().unwrap() += 1;
        self.changed.notify_all();
        let over = self.over.lock().unwrap();
        drop(self.changed.wait_timeout_while(over, PATIENCE, |over| !*over).unwrap());
    }
    fn invalidate_entries(&self, _: InodeNo) {}
}

/// For what never happens if it does not happen soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// One program's mapped files, however many the other node asks for, do not hold up other files.
#[test]
fn demotions_that_wait_for_mapped_pages_hold_up_no_others() {
    const FILES: usize = 12;
    let pool = made(MemoryDevice::new("disk", Bytes(96 << 20), Bytes(512)));
    let kernel = Arc::new(Busy {
        files: Mutex::default(),
        begun: Mutex::new(0),
        over: Mutex::new(false),
        changed: Condvar::new(),
    });
    let a = Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let b = Fs::mount(pool, MountOptions::default(), kernel.clone()).unwrap();
    let file = |name: &str| {
        let made = b.create(b.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default());
        let (attr, fh) = made.unwrap();
        b.write(fh, 0, &[1; 8192], WriteFlags::default()).unwrap();
        (attr.ino, fh)
    };
    let mapped: Vec<InodeNo> = (0..FILES)
        .map(|n| {
            let (ino, fh) = file(&format!("mapped{n}"));
            let page = ReadRange { offset: 0, len: 4096, fill: true };
            b.read_reply(fh, page, |_| ()).unwrap();
            ino
        })
        .collect();
    let (other, _) = file("other");
    *kernel.files.lock().unwrap() = mapped.clone();
    let size_of = |ino: InodeNo| {
        let (a, (done, size)) = (a.clone(), mpsc::channel());
        let reader = std::thread::spawn(move || {
            done.send(a.getattr(ino).unwrap().size).ok();
        });
        (reader, size)
    };
    let readers: Vec<_> = mapped.into_iter().map(size_of).collect();
    let begun = kernel.begun.lock().unwrap();
    let demoters = ManagerOptions::default().demoters;
    let (begun, late) =
        kernel.changed.wait_timeout_while(begun, PATIENCE, |n| *n < demoters).unwrap();
    assert!(!late.timed_out(), "only {} demoters wait", *begun);
    drop(begun);
    let (reader, size) = size_of(other);
    let answer = size.recv_timeout(PATIENCE / 2);
    *kernel.over.lock().unwrap() = true;
    kernel.changed.notify_all();
    reader.join().unwrap();
    assert_eq!(answer, Ok(8192), "it waits for demoters that wait for mapped pages");
    for (reader, size) in readers {
        assert_eq!(size.recv_timeout(PATIENCE), Ok(8192));
        reader.join().unwrap();
    }
    a.unmount().unwrap();
    b.unmount().unwrap();
}

#[test]
fn space_for_a_mapped_page_comes_though_all_demoters_of_the_other_node_wait() {
    const FILES: usize = 8;
    let pool = made(MemoryDevice::new("disk", Bytes(96 << 20), Bytes(512)));
    let kernel = Arc::new(Busy {
        files: Mutex::default(),
        begun: Mutex::new(0),
        over: Mutex::new(false),
        changed: Condvar::new(),
    });
    let a = Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let b = Fs::mount(pool, MountOptions::default(), kernel.clone()).unwrap();
    // Files of B whose kernel has pages that wait for A.
    let held: Vec<InodeNo> = (0..FILES)
        .map(|n| {
            let name = format!("b{n}");
            let (attr, fh) =
                b.create(b.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default()).unwrap();
            b.write(fh, 0, &[1; 8192], WriteFlags::default()).unwrap();
            attr.ino
        })
        .collect();
    *kernel.files.lock().unwrap() = held.clone();
    let (attr, fh) = a.create(a.root(), b"a", 0o644, O_RDWR, &Cred::default()).unwrap();
    let size = SetAttr { size: Some(1 << 20), ..SetAttr::default() };
    a.setattr(attr.ino, &size, None).unwrap();
    a.write(fh, 0, &[1; 8192], WriteFlags::default()).unwrap();
    a.fsync(fh, false).unwrap();
    // A has no space left in its windows, and B has the locks of all groups.
    let taken = a.core().alloc.reserve_all_here();
    let volume = &b.core().volume;
    for n in 0..volume.groups.count() {
        drop(b.core().guard(LockNo::from(volume.rgrp(n)), Mode::Exclusive, Local::Shared).unwrap());
    }
    let readers: Vec<_> = held
        .iter()
        .map(|ino| {
            let (a, ino) = (a.clone(), *ino);
            std::thread::spawn(move || {
                let fh = a.open(ino, 0).unwrap();
                let read = a
                    .read_reply(fh, ReadRange { offset: 0, len: 8192, fill: false }, <[u8]>::to_vec)
                    .unwrap();
                a.release(fh).unwrap();
                assert!(read == [1; 8192]);
            })
        })
        .collect();
    let begun = kernel.begun.lock().unwrap();
    let demoters = ManagerOptions::default().demoters;
    let (begun, late) =
        kernel.changed.wait_timeout_while(begun, PATIENCE, |n| *n < demoters).unwrap();
    assert!(!late.timed_out(), "only {} demoters wait", *begun);
    drop(begun);
    let (done, answer) = mpsc::channel();
    {
        let a = a.clone();
        std::thread::spawn(move || {
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            done.send(a.write(fh, 64 << 10, &[7; 4096], flags).is_ok()).ok();
        });
    }
    let answer = answer.recv_timeout(PATIENCE / 2);
    *kernel.over.lock().unwrap() = true;
    kernel.changed.notify_all();
    assert_eq!(answer, Ok(true), "space waits for demoters that wait for space");
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    drop(taken);
    a.release(fh).unwrap();
    a.unmount().unwrap();
    b.unmount().unwrap();
}

/// A write that has ended in an error lands after its file is gone and all space was given out again.
#[test]
fn a_failed_write_that_lands_late_changes_nothing_that_came_after_it() {
    for direct in [false, true] {
        let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
        let device = ScriptedDevice::over(inner);
        let content =
            |bytes: &[u8]| bytes.len().is_multiple_of(4096) && bytes.iter().all(|b| *b == 9);
        let fails = device.add(Rule::all().writing(content).keeps().disabled());
        let pool = made(device.clone());
        let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
        let create =
            |name: &[u8]| fs.create(fs.root(), name, 0o644, O_RDWR, &Cred::default()).unwrap().1;
        let flags = WriteFlags { direct, ..WriteFlags::default() };
        let fh = create(b"fails");
        fails.enable(true);
        let written = fs.write(fh, 0, &[9; 64 << 10], flags);
        assert!(written.is_err() || fs.fsync(fh, false).is_err(), "direct {direct}");
        fails.enable(false);
        fs.setattr(
            fs.lookup(fs.root(), b"fails").unwrap().ino,
            &SetAttr { size: Some(0), ..SetAttr::default() },
            None,
        )
        .unwrap();
        fs.release(fh).unwrap();
        // All the space there is.
        let fh = create(b"fills");
        let mut len = 0_u64;
        loop {
            match fs.write(fh, len, &[5; 64 << 10], WriteFlags::default()) {
                Ok(n) => len += n as u64,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        fs.fsync(fh, false).unwrap();
        assert!(fails.land_kept().unwrap() > 0);
        for at in (0..len).step_by(64 << 10) {
            let read = fs
                .read_reply(
                    fh,
                    ReadRange { offset: at, len: 64 << 10, fill: false },
                    <[u8]>::to_vec,
                )
                .unwrap();
            assert!(read.iter().all(|b| *b == 5), "direct {direct}: changed at {at}");
        }
        fs.release(fh).unwrap();
        fs.unmount().unwrap();
    }
}

/// A disk never answers a write of the contents of a file, and is given up. The write lands when others have been told
/// that the node which sent it is gone, and not after another one has written there.
#[test]
fn a_file_that_a_device_was_given_up_over_goes_to_nobody() {
    const LEN: usize = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = |n: u32| dir.path().join(format!("disk{n}"));
    let opened = |n| FileDevice::open(&path(n), OpenOptions::default()).unwrap() as Arc<dyn Device>;
    for n in 0..2 {
        std::fs::File::create(path(n)).unwrap().set_len(256 << 20).unwrap();
    }
    let layout = LayoutFile::parse("[subpools]\nmetadata = \"0\"\ndata = \"1\"").unwrap().layout;
    let create = CreateOptions { layout: Some(layout), ..CreateOptions::new("test") };
    let pool = Pool::create(vec![opened(0), opened(1)], &create).unwrap();
    let options = MakeOptions { nodes: Some(2), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    drop(pool);

    let scripted = ScriptedDevice::over(opened(1));
    let content = |bytes: &[u8]| bytes.len() >= 4096 && bytes.iter().all(|b| *b == 7);
    let stuck = scripted.add(Rule::all().writing(content).holds());
    let bounded = BoundedDevice::over(scripted, Duration::from_secs(10));
    let mount = |devices| {
        let timing = Timing::of(Duration::from_secs(5));
        let options = MountOptions { timing, ..MountOptions::default() };
        Fs::mount(Pool::assemble(devices).unwrap(), options, Arc::new(NoKernelCache)).unwrap()
    };
    let (a, b) = (mount(vec![opened(0), bounded]), mount(vec![opened(0), opened(1)]));
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    a.write(fa, 0, &[1; LEN], direct).unwrap();
    a.fsync(fa, false).unwrap();
    let fb = b.open(attr.ino, O_RDWR).unwrap();

    let others = std::thread::scope(|threads| {
        let writer = threads.spawn(|| a.write(fa, 0, &[7; LEN], direct));
        std::thread::sleep(Duration::from_secs(1));
        // The file becomes longer, so this needs the exclusive lock. Without that both would write at the same
        // moment, under concurrent holds, and either might be the last.
        let other = threads.spawn(|| {
            b.write(fb, 0, &[8; LEN + 4096], WriteFlags::default()).and_then(|_| b.fsync(fb, false))
        });
        assert!(writer.join().unwrap().is_err());
        std::thread::sleep(Duration::from_secs(3));
        let (early, withdrawn) = (other.is_finished(), a.withdrawn());
        stuck.release();
        assert!(withdrawn.is_some_and(|why| why.contains("has not answered")));
        assert!(!early, "another node has got what a write may land on");
        other.join().unwrap()
    });
    others.unwrap();
    let range = ReadRange { offset: 0, len: 64 << 10, fill: false };
    let read = b.read_reply(fb, range, <[u8]>::to_vec).unwrap();
    assert!(read.iter().all(|byte| *byte == 8), "a write landed late");
    b.release(fb).unwrap();
    b.unmount().unwrap();
    assert!(a.unmount().is_err());
}
