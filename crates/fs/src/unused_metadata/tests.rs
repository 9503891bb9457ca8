//! Space of removed inodes becomes space for data again.

#![allow(clippy::large_stack_arrays, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::rgrp::{BlockState, RawWindow};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, InodeNo, NodeId};
use braid_lock::Timing;
use braid_pool::device::{AlignedBuf, RecordingDevice};

use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::bits;
use crate::attr::{Cred, Fh, NoKernelCache, WriteFlags};
use crate::check::{CheckOptions, check};
use crate::groups::{PER_BYTE, blocks_per_bitmap};
use crate::orphan_list;
use crate::test_pool::TestPool;
use crate::volume::Volume;
use crate::{Error, Fs, MountOptions};

const O_RDWR: i32 = 2;
const BLOCK: u64 = 4096;

fn create(fs: &Fs, dir: InodeNo, name: &str) -> Result<(InodeNo, Fh), Error> {
    fs.create(dir, name.as_bytes(), 0o644, O_RDWR, &Cred::default()).map(|(a, fh)| (a.ino, fh))
}
/// Makes empty files until there is no space: how many.
fn fill_with_inodes(fs: &Fs, most: u64) -> u64 {
    let mut made = 0;
    while made < most {
        match create(fs, fs.root(), &format!("empty{made}")) {
            Ok((_, fh)) => fs.release(fh).unwrap(),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
        made += 1;
    }
    made
}
fn remove_all(fs: &Fs, made: u64) {
    for n in 0..made {
        fs.unlink(fs.root(), format!("empty{n}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
}
/// Blocks that can be written to a new file.
fn write(fs: &Fs, name: &str, most: u64) -> u64 {
    let (_, fh) = create(fs, fs.root(), name).unwrap();
    let data = [0x5a; 64 * BLOCK as usize];
    let mut done = 0;
    while done < most {
        let n = usize::try_from((most - done).min(64) * BLOCK).unwrap();
        match fs.write(fh, done * BLOCK, &data[..n], WriteFlags::default()) {
            Ok(n) => done += n as u64 / BLOCK,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    fs.fsync(fh, false).unwrap();
    fs.release(fh).unwrap();
    done
}
fn is_intact(fs: &Fs, name: &str, blocks: u64) {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino;
    let fh = fs.open(ino, 0).unwrap();
    let mut buf = AlignedBuf::zeroed(usize::try_from(BLOCK).unwrap());
    for n in 0..blocks {
        assert_eq!(fs.read(fh, n * BLOCK, &mut buf).unwrap() as u64, BLOCK);
        assert!(buf.iter().all(|b| *b == 0x5a), "block {n} of {name}");
    }
    fs.release(fh).unwrap();
}
/// A pool that was full of inodes and has none any more.
fn filled(copies: u16, mib: u64) -> (TestPool, u64) {
    let test = TestPool::new(copies, mib, 2);
    let fs = test.mount();
    let made = fill_with_inodes(&fs, u64::MAX);
    assert!(made > 1000, "{made}");
    remove_all(&fs, made);
    fs.unmount().unwrap();
    (test, made)
}

#[test]
fn a_mount_that_is_alone_makes_room_for_data_of_inodes_that_are_gone() {
    for copies in [1, 2] {
        let (test, made) = filled(copies, 56);
        let fs = test.mount();
        let room = write(&fs, "data", u64::MAX);
        assert!(room > made * 9 / 10, "{room} blocks for data after {made} inodes");
        fs.unmount().unwrap();
        test.check(false);
        let fs = test.mount();
        is_intact(&fs, "data", room);
        fs.unmount().unwrap();
    }
}

/// A pool's unused metadata: blocks of free slots that are in no window.
fn unused_in(fs: &Fs) -> u64 {
    fs.core().alloc.data_and_unused().unwrap().1
}

#[test]
fn slots_of_inodes_that_are_gone_are_room_for_inodes_on_every_node_and_none_for_data() {
    let test = TestPool::new(1, 52, 2);
    let (fs, other) = (test.mount(), test.mount());
    let first = fs.statfs().unwrap();
    assert!(first.files_free > first.free, "the root's chunk has free slots");
    let made = fill_with_inodes(&fs, u64::MAX);
    let full = fs.statfs().unwrap();
    assert!(full.files_free < 64, "{}", full.files_free);
    remove_all(&fs, made);
    for node in [&fs, &other] {
        // A heartbeat tells the other one.
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let stat = node.statfs().unwrap();
            if stat.files_free >= made && stat.available < 64 {
                break;
            }
            let (room, data) = (stat.files_free, stat.available);
            assert!(Instant::now() < until, "room for {room} of {made}, data {data}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(fill_with_inodes(&fs, made), made);
    assert!(fs.statfs().unwrap().files_free < 64);
    fs.unmount().unwrap();
    other.unmount().unwrap();
    test.check(false);
}

#[test]
fn a_mount_gives_nothing_back_unless_data_is_short_of_space_and_a_repair_does() {
    let test = TestPool::new(1, 256, 2);
    let fs = test.mount();
    let made = fill_with_inodes(&fs, 6000);
    remove_all(&fs, made);
    fs.unmount().unwrap();
    let fs = test.mount();
    let unused = unused_in(&fs);
    assert!(unused > 4000, "{unused}");
    fs.unmount().unwrap();
    assert_eq!(test.check(false).given_back, 0);
    let given = test.check(true).given_back / BLOCK;
    assert!(given > unused * 9 / 10, "{given} of {unused}");
    assert_eq!(test.check(true).given_back, 0);
    let fs = test.mount();
    assert!(unused_in(&fs) < 64 + unused / 10);
    assert_eq!(fill_with_inodes(&fs, 6000), 6000);
    fs.unmount().unwrap();
    test.check(false);
}

#[test]
fn what_is_in_use_stays() {
    let test = TestPool::new(1, 52, 2);
    let fs = test.mount();
    let made = fill_with_inodes(&fs, u64::MAX);
    let kept = |n: u64| n % 700 == 3;
    for n in (0..made).filter(|n| !kept(*n)) {
        fs.unlink(fs.root(), format!("empty{n}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    let fs = test.mount();
    let room = write(&fs, "data", u64::MAX);
    assert!(room > made / 2, "{room} blocks for data after {made} inodes");
    for n in (0..made).filter(|n| kept(*n)) {
        fs.lookup(fs.root(), format!("empty{n}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    test.check(false);
}

#[test]
fn nothing_is_given_back_beside_another_node() {
    let (test, _) = filled(1, 52);
    // It is alone, but has a read-only view of things, and changes nothing.
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let first = Fs::mount(test.pool(), options, Arc::new(NoKernelCache)).unwrap();
    let unused = unused_in(&first);
    let second = test.mount();
    assert_eq!(unused_in(&first), unused);
    assert_eq!(second.core().given_back.get(), None);
    second.unmount().unwrap();
    first.unmount().unwrap();
    let alone = test.mount();
    let given = *alone.core().given_back.get().unwrap();
    assert!(given > unused * 9 / 10, "{given} of {unused}");
    alone.unmount().unwrap();
}

#[test]
fn a_number_that_somebody_has_kept_leads_nowhere_and_changes_nothing() {
    let test = TestPool::new(1, 52, 2);
    let fs = test.mount();
    let made = fill_with_inodes(&fs, u64::MAX);
    let numbers: Vec<InodeNo> = (0..made)
        .step_by(97)
        .map(|n| fs.lookup(fs.root(), format!("empty{n}").as_bytes()).unwrap().ino)
        .collect();
    remove_all(&fs, made);
    fs.unmount().unwrap();
    let fs = test.mount();
    let all_stale = |fs: &Fs| {
        for ino in &numbers {
            let found = fs.getattr(*ino);
            assert!(matches!(found, Err(Error::Stale(_))), "{ino}: {found:?}");
        }
    };
    // A node that comes with an old number compares and writes nothing, because there is no record.
    let volume = &fs.core().volume;
    let chunk = volume.geo.chunk_blocks();
    // The root's chunk has slots that are in use.
    for ino in numbers.iter().filter(|ino| ino.get() > fs.root().get() + chunk) {
        let mut sector = AlignedBuf::zeroed(512);
        volume.pool.read_lock(volume.slot_at(BlockNo::from(*ino)), &mut sector).unwrap();
        assert!(sector.iter().all(|b| *b == 0));
    }
    // The blocks are free; then they are data.
    all_stale(&fs);
    let room = write(&fs, "data", u64::MAX);
    all_stale(&fs);
    fs.unmount().unwrap();
    let fs = test.mount();
    all_stale(&fs);
    is_intact(&fs, "data", room);
    assert!(fs.status().damaged.is_empty());
    fs.unmount().unwrap();
    test.check(false);
}

#[test]
fn journals_whose_headers_are_lost_bring_nothing_back() {
    let (test, _) = filled(1, 52);
    // By the other slot: the newest records in the first one's ring are of slots that are data now.
    let options = MountOptions { slot: Some(NodeId(1)), ..MountOptions::default() };
    let fs = Fs::mount(test.pool(), options, Arc::new(NoKernelCache)).unwrap();
    let room = write(&fs, "data", u64::MAX);
    fs.unmount().unwrap();
    let volume = Volume::open(test.pool()).unwrap();
    for node in [NodeId(0), NodeId(1)] {
        for copy in 0..2 {
            let block = volume.node_area(node, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
            volume.pool.write(volume.body_at(block), &[7; 512]).unwrap();
        }
    }
    let report = check(test.pool(), CheckOptions { repair: true }, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems.len(), 2, "{:?}", report.problems);
    assert_eq!(report.left, Vec::<String>::new());
    test.check(false);
    let fs = test.mount();
    is_intact(&fs, "data", room);
    fs.unmount().unwrap();
}

/// Writes a block that is private to `node`; `f` gets its body.
fn put(volume: &Volume, node: u16, place: u64, kind: MetaKind, f: impl FnOnce(&mut [u8])) {
    let block = volume.node_area(NodeId(node), place);
    let mut body = volume.read_private(block, kind).unwrap();
    let (mut header, _) = MetaHeader::decode(&body, block).unwrap();
    header.generation.set(header.generation.get() + 1);
    f(&mut body);
    header.write_to_prefix(&mut body).unwrap();
    MetaHeader::seal(&mut body);
    volume.write_bodies(&[(block, &body)]).unwrap();
}

#[test]
fn what_private_blocks_of_any_node_speak_of_stays() {
    let (test, _) = filled(1, 52);
    let volume = Volume::open(test.pool()).unwrap();
    let chunk = volume.geo.chunk_blocks();
    let shape = volume.group_shape(1).unwrap();
    let start = (shape.first_block + 2 * chunk).next_multiple_of(chunk);
    // It calls used what was freed since by way of another node's log.
    put(&volume, 1, RawSuperblock::AREA_WINDOWS + 3, MetaKind::Window, |body| {
        let (raw, map) = RawWindow::mut_from_prefix(body).unwrap();
        raw.rgrp.set(volume.rgrp(1).get());
        raw.start.set(start);
        raw.blocks.set(chunk);
        let all = map.len() as u64 * PER_BYTE;
        bits::fill(map, 0, all, BlockState::Data);
        bits::fill(map, 0, chunk, BlockState::MetaUsed);
    });
    let listed = InodeNo(start + 3 * chunk);
    put(&volume, 1, RawSuperblock::AREA_ORPHANS, MetaKind::Orphans, |body| {
        orphan_list::encode(body, &[listed]);
    });
    let state = |fs: &Fs, block: u64| {
        let per = blocks_per_bitmap(fs.core().volume.geo);
        let (n, at) = ((block - shape.first_block) / per, (block - shape.first_block) % per);
        let bitmap = BlockNo(shape.start.get() + (1 + n) * fs.core().volume.geo.slot_blocks());
        let (body, ..) = fs.core().volume.read_body(bitmap).unwrap();
        bits::get(&body[MetaHeader::LEN..], at)
    };
    let fs = test.mount();
    assert!(*fs.core().given_back.get().unwrap() > 10 * chunk);
    let room = write(&fs, "data", u64::MAX);
    fs.unmount().unwrap();
    // The slot's next owner returns the window, and looks at what is listed.
    let options = MountOptions { slot: Some(NodeId(1)), ..MountOptions::default() };
    let fs = Fs::mount(test.pool(), options, Arc::new(NoKernelCache)).unwrap();
    assert_eq!(state(&fs, listed.get()), BlockState::MetaFree);
    fs.unmount().unwrap();
    test.check(false);
    let fs = test.mount();
    is_intact(&fs, "data", room);
    fs.unmount().unwrap();
}

#[test]
fn power_may_be_cut_at_any_write_while_metadata_is_given_back() {
    let (test, made) = filled(1, 52);
    let device = RecordingDevice::new(test.devices[0].clone()).unwrap();
    let test = TestPool { devices: vec![device.clone()] };
    // What is found dead is looked at for some beats.
    let timing = Timing::of(Duration::from_secs(4));
    let options = MountOptions { slot: Some(NodeId(0)), timing, ..MountOptions::default() };
    let mount =
        |test: &TestPool| Fs::mount(test.pool(), options.clone(), Arc::new(NoKernelCache)).unwrap();
    let fs = mount(&test);
    let given = *fs.core().given_back.get().unwrap();
    let end = device.len();
    drop(fs);
    assert!(given > made * 9 / 10);
    let (mut replay, mut events, mut cuts) = (device.replay(), 0, 0);
    let mut places = braid_testkit::places(3);
    let mut next = places.next();
    while replay.position() < end && replay.step().is_some() {
        events += 1;
        if next != Some(events - 1) {
            continue;
        }
        next = places.next();
        let test = TestPool { devices: vec![replay.crash_image(events)] };
        cuts += 1;
        test.check(false);
        // The dead node's own slot: it is recovered before the mount is done.
        let fs = mount(&test);
        if cuts % 8 != 0 {
            fs.unmount().unwrap();
            test.check(false);
            continue;
        }
        let mut room = write(&fs, "data", u64::MAX);
        fs.unmount().unwrap();
        if room <= made * 9 / 10 {
            // What had been given back was enough for a while.
            let fs = test.mount();
            room += write(&fs, "more", u64::MAX);
            fs.unmount().unwrap();
        }
        assert!(room > made * 9 / 10, "event {}: {room}", replay.position());
        test.check(false);
    }
    eprintln!("{cuts} cuts");
    assert!(events > 20 && cuts > 6);
}

#[test]
fn inodes_made_again_take_the_slots_of_those_that_are_gone() {
    let test = TestPool::new(1, 128, 2);
    let fs = test.mount();
    let mut most = Vec::new();
    for _ in 0..6 {
        let made = fill_with_inodes(&fs, 8000);
        assert_eq!(made, 8000);
        remove_all(&fs, made);
        fs.core().alloc.maintain().unwrap();
        let free = fs.statfs().unwrap().free;
        most.push(free);
    }
    eprintln!("{most:?}");
    assert!(most[5] + most[5] / 8 >= most[0], "{most:?}");
    fs.unmount().unwrap();
    test.check(false);
}
