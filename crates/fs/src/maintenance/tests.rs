use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::label::MemberState;
use braid_format::lock_record::{LockRecord, RawLockRecord};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::{RawSlot, SlotRecord};
use braid_format::{BlockNo, ByteOffset, Bytes, LockNo, MemberIndex, NodeId};
use braid_pool::device::{
    CommandKind, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, OpenOptions, Rule,
    ScriptedDevice,
};
use braid_pool::layout::Redundancy;
use braid_pool::{ChecksumVerifier, CreateOptions, Destination, EpochTag, Pool, ReadPath};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{Garbage, Maintenance, MaintenancePeers};
use crate::check::{CheckOptions, check};
use crate::files_at::FilesAt;
use crate::journal::{Header, Ring};
use crate::make::{MakeOptions, make};
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;
use crate::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};

const ROOT: Cred = Cred { uid: 0, gid: 0, umask: 0o022, pid: 1 };

const JOURNAL: u64 = 4 << 20;

fn disk(name: &str) -> Arc<FaultyDevice> {
    let memory = MemoryDevice::new(name, Bytes(96 << 20), Bytes(512)) as Arc<dyn Device>;
    FaultyDevice::new(memory, FaultPlan::default())
}

fn made(disks: &[Arc<FaultyDevice>], redundancy: Redundancy) -> Pool {
    let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let options = CreateOptions { redundancy, ..CreateOptions::new("test") };
    let pool = Pool::create(devices, &options).unwrap();
    let options = MakeOptions { journal_size: Some(JOURNAL), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    pool
}

/// Makes a file system on `pool` where another one was.
fn make_again(pool: &Pool) {
    let options =
        MakeOptions { journal_size: Some(JOURNAL), force: true, ..MakeOptions::default() };
    make(pool, &options, &mut |_, _| {}).unwrap();
}

fn mount(pool: &Pool) -> Fs {
    Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
}

fn content(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 13 + n * 7) % 251).unwrap()).collect()
}

fn write(fs: &Fs, n: usize) {
    let name = format!("file{n}");
    let (_, fh) = fs.create(fs.root(), name.as_bytes(), 0o644, 2, &ROOT).unwrap();
    fs.write(fh, 0, &content(n, 50_000 + n * 1000), WriteFlags::default()).unwrap();
    fs.fsync(fh, false).unwrap();
    fs.release(fh).unwrap();
}

fn expect(fs: &Fs, n: usize) {
    let attr = fs.lookup(fs.root(), format!("file{n}").as_bytes()).unwrap();
    let fh = fs.open(attr.ino, 0).unwrap();
    let len = 50_000 + n * 1000;
    let mut buf = braid_pool::device::AlignedBuf::zeroed(len.next_multiple_of(4096));
    assert_eq!(fs.read(fh, 0, &mut buf).unwrap(), len, "file {n}");
    assert!(buf[..len] == content(n, len)[..], "file {n}");
    fs.release(fh).unwrap();
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn states(pool: &Pool) -> Vec<MemberState> {
    pool.member_states().into_iter().map(|s| s.1).collect()
}

#[test]
fn a_member_fails_under_a_mounted_file_system_and_a_spare_steps_in() {
    use MemberState::{Active, Failed};
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    fs.add_spare(disk("spare"), false).unwrap();
    (0..10).for_each(|n| write(&fs, n));
    disks[1].arm(On::Write, 3, FaultKind::Gone);
    (10..20).for_each(|n| write(&fs, n));
    wait("the spare is in use", || states(&pool) == [Active, Active, Failed]);
    (20..30).for_each(|n| write(&fs, n));
    (0..30).for_each(|n| expect(&fs, n));
    // The first disk goes as well: everything is on the one that stepped in.
    disks[0].arm(On::Read, 0, FaultKind::Gone);
    disks[0].arm(On::Write, 0, FaultKind::Gone);
    (30..35).for_each(|n| write(&fs, n));
    (0..35).for_each(|n| expect(&fs, n));
    fs.unmount().unwrap();
    let devices = pool.devices();
    drop(pool);
    let pool = Pool::assemble(vec![devices[1].clone()]).unwrap();
    assert_eq!(states(&pool), [Failed, Active, Failed]);
    let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn a_node_that_only_plans_lets_no_spare_step_in() {
    use MemberState::{Active, Failed, Spare};
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let options = MountOptions { only_plans: true, ..MountOptions::default() };
    let fs = Fs::mount(pool.clone(), options, Arc::new(NoKernelCache)).unwrap();
    fs.add_spare(disk("spare"), false).unwrap();
    fs.fail_member(MemberIndex(1), false).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(states(&pool), [Active, Failed, Spare]);
    fs.unmount().unwrap();
}

#[test]
fn what_was_done_about_a_member_that_is_cleared_counts_no_more() {
    let [cleared, other] = [1, 2].map(Uuid::from_u128);
    let mut garbage = Garbage::default();
    for member in [cleared, other] {
        garbage.asked.insert(member);
        garbage.scrubbed.insert(member);
    }
    garbage.forget(&[cleared]);
    assert_eq!(garbage.asked, [other].into());
    assert_eq!(garbage.scrubbed, [other].into());
}

/// Another device comes in the place of one that is being filled: that is no failure, and it is filled.
#[test]
fn a_device_that_is_replaced_while_it_is_filled_leaves_no_error() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..20).for_each(|n| write(&fs, n));
    let slow = |name| {
        let device = ScriptedDevice::over(disk(name));
        let rule = Rule::on(&[CommandKind::Write]).delays(Duration::from_millis(20));
        let writes = device.add(rule);
        (device, writes)
    };
    let (device, writes) = slow("slow");
    fs.replace_member(MemberIndex(1), device, false).unwrap();
    wait("it is being filled", || fs.maintenance().rebuilding.is_some() && writes.hits() > 20);
    // As another node does it: this one does not know that it is to begin anew.
    fs.pool().replace(MemberIndex(1), slow("new").0, false).unwrap();
    wait("the other is filled", || {
        assert_eq!(fs.maintenance().error, None);
        pool.rebuilding().is_none()
    });
    assert_eq!(pool.devices()[1].info().name, "new");
    assert_eq!(fs.maintenance().error, None);
    (0..20).for_each(|n| expect(&fs, n));
    fs.unmount().unwrap();
}

/// Else filling would stop at every commit, though nobody uses the pool.
#[test]
fn what_a_node_does_by_itself_is_no_use_of_the_pool() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let commit_interval = Duration::from_millis(250);
    let options = MountOptions { commit_interval, ..MountOptions::default() };
    let fs = Fs::mount(pool.clone(), options, Arc::new(NoKernelCache)).unwrap();
    let written = || pool.issued().iter().map(|i| i.writes.bytes.0).sum::<u64>();
    for n in 0..3 {
        let before = written();
        fs.mkdir(fs.root(), format!("dir{n}").as_bytes(), 0o755, &ROOT).unwrap();
        let requests = pool.requests();
        wait("what was made is committed", || written() > before);
        std::thread::sleep(2 * commit_interval);
        assert_eq!(pool.requests(), requests, "commit {n} counts");
    }
    let requests = pool.requests();
    write(&fs, 1);
    assert!(pool.requests() > requests, "a program's writes do not count");
    fs.unmount().unwrap();
}

#[test]
fn a_member_is_replaced_by_order_and_metadata_that_rotted_is_healed() {
    let disks: Vec<_> = (0..4).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..20).for_each(|n| write(&fs, n));
    fs.replace_member(MemberIndex(2), disk("new"), false).unwrap();
    wait("the new member is filled", || pool.rebuilding().is_none());
    assert!(states(&pool).iter().all(|s| *s == MemberState::Active));
    (0..20).for_each(|n| expect(&fs, n));
    fs.unmount().unwrap();
    // Every metadata block on one disk of each mirror rots: its body, or its lock record.
    let mut spoiled = 0;
    for rotten in [&pool.devices()[0], &pool.devices()[2]] {
        let mut bytes = vec![0; 90 << 20];
        let start = braid_format::ByteOffset(3 << 20);
        rotten.read(start, &mut bytes).unwrap();
        for slot in bytes.chunks_mut(4096) {
            // The magic of a metadata body, behind its lock sector.
            if slot[512..516] == braid_format::meta::MetaHeader::MAGIC.to_le_bytes() {
                slot[if spoiled % 2 == 0 { 700 } else { 20 }] ^= 0x40;
                spoiled += 1;
            }
        }
        rotten.write(start, &bytes).unwrap();
    }
    assert!(spoiled > 20, "{spoiled}");
    let fs = mount(&pool);
    (0..20).for_each(|n| expect(&fs, n));
    fs.scrub(true);
    wait("the scrub ends", || fs.maintenance().scrubbed.is_some());
    let found = fs.maintenance().scrubbed.unwrap();
    // Old images in the journal know no address to be checked against, and matter to nobody.
    let journal = |p: &braid_format::ByteOffset| (1 << 20..(1 << 20) + JOURNAL).contains(&p.0);
    assert!(found.healed.0 > 0 && found.places.iter().all(journal), "{found:?}");
    fs.unmount().unwrap();
    // No damage was copied over what was good.
    for block in 0..pool.info().size.0 / 4096 {
        for nth in 0..2 {
            let at = braid_format::ByteOffset(block * 4096);
            let mut slot = vec![0; 4096];
            match nth {
                0 => pool.read(at, &mut slot).unwrap(),
                _ => assert!(pool.read_otherwise(ReadPath::Read, at, &mut slot, 0).unwrap()),
            }
            let body = MetaHeader::decode(&slot[512..], BlockNo(block)).is_ok();
            let record = LockRecord::decode(&slot[..512], LockNo(block));
            assert!(!body || record.is_ok(), "block {block}: {record:?}");
        }
    }
    let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// If two members have changed places, a read does not overwrite what is good on them. It does
/// overwrite a body that was misdirected.
#[test]
fn members_in_each_others_places_are_not_healed() {
    let disks: Vec<_> = (0..4).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..20).for_each(|n| write(&fs, n));
    let (start, mut contents) = (ByteOffset(3 << 20), vec![vec![0; 90 << 20]; 2]);
    let second = [pool.devices()[1].clone(), pool.devices()[3].clone()];
    for (device, bytes) in second.iter().zip(&mut contents) {
        device.read(start, bytes).unwrap();
    }
    let put = |contents: &[Vec<u8>]| {
        second.iter().zip(contents).for_each(|(d, b)| d.write(start, b).unwrap());
    };
    contents.swap(0, 1);
    put(&contents);
    let volume = &fs.core().volume;
    let slots = || (0..pool.info().size.0 / 4096).map(BlockNo);
    // Those of which the second copy is the one that is read.
    let read: Vec<BlockNo> = slots().filter(|b| volume.other_copy(*b).is_some()).collect();
    assert!(!read.is_empty());
    let mut now = vec![0; 90 << 20];
    for (device, bytes) in second.iter().zip(&contents) {
        device.read(start, &mut now).unwrap();
        let differ = now.chunks(4096).zip(bytes.chunks(4096)).enumerate().filter(|(_, (a, b))| {
            // Heartbeats and what the node does by itself go on.
            a != b && a[512..516] == MetaHeader::MAGIC.to_le_bytes() && a[512..] != b[512..]
        });
        let differ: Vec<_> = differ.map(|(i, (a, b))| (i, block_of(a), block_of(b))).collect();
        assert!(differ.is_empty(), "{differ:?} of {read:?}");
    }
    contents.swap(0, 1);
    put(&contents);
    let stray = contents[0].chunks(4096).position(|s| {
        let block = BlockNo(block_of(s));
        read.contains(&block) && MetaHeader::decode(&s[512..], block).is_ok()
    });
    let stray = stray.unwrap();
    let (at, good) =
        (start + Bytes::from(stray * 4096), contents[0][stray * 4096..][..4096].to_vec());
    let block = BlockNo(block_of(&good));
    let mut bad = good.clone();
    bad[512..].copy_from_slice(&other_body(&contents[0], block));
    second[0].write(at, &bad).unwrap();
    assert!(volume.other_copy(block).is_some());
    let mut now = vec![0; 4096];
    second[0].read(at, &mut now).unwrap();
    assert!(now[512..] == good[512..]);
    fs.unmount().unwrap();
}

/// The block that a slot says it is.
fn block_of(slot: &[u8]) -> u64 {
    u64::from_le_bytes(slot[512 + 8..512 + 16].try_into().unwrap())
}
/// The whole body of some other slot.
fn other_body(bytes: &[u8], than: BlockNo) -> Vec<u8> {
    let mut slots = bytes.chunks(4096).filter(|s| {
        let block = BlockNo(block_of(s));
        block != than && MetaHeader::decode(&s[512..], block).is_ok()
    });
    slots.next().unwrap()[512..].to_vec()
}

/// The copy with the right checksum counts, whether it is the copy that decides or the other one.
/// Slots that nobody uses are written by nobody else.
#[test]
fn a_scrub_mends_records_of_nodes() {
    for rotten in 0..2 {
        let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options = CreateOptions {
            redundancy: Redundancy::Mirror(2),
            log_slots: 4,
            ..CreateOptions::new("test")
        };
        let pool = Pool::create(devices, &options).unwrap();
        let options = MakeOptions { journal_size: Some(JOURNAL), ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let mut bytes = vec![0; 16 << 20];
        let start = ByteOffset(1 << 20);
        disks[rotten].read(start, &mut bytes).unwrap();
        let is_slot = |s: &&mut [u8]| s.starts_with(&RawSlot::MAGIC.to_le_bytes());
        let slots: Vec<&mut [u8]> = bytes.chunks_mut(512).filter(is_slot).collect();
        assert!(slots.len() > 2);
        // Its magic, or what is behind.
        slots.into_iter().zip([2, 77].into_iter().cycle()).for_each(|(slot, at)| slot[at] ^= 0x40);
        disks[rotten].write(start, &bytes).unwrap();
        let problems =
            |pool: Pool| check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap().problems;
        assert!(!problems(pool.clone()).is_empty());
        let fs = mount(&pool);
        fs.scrub(true);
        wait("the scrub ends", || fs.maintenance().scrubbed.is_some());
        let found = fs.maintenance().scrubbed.unwrap();
        assert!(found.healed.0 >= 1024 && found.undecided.0 == 0, "copy {rotten}: {found:?}");
        fs.unmount().unwrap();
        assert_eq!(problems(pool), Vec::<String>::new(), "copy {rotten}");
    }
}

/// A record of a lock that is gone from one copy (it reads as zeros) is written there anew from the other one, whichever
/// decides, and whichever has the better body. Nodes hold some of these locks.
#[test]
fn a_scrub_brings_back_records_of_locks() {
    const START: ByteOffset = ByteOffset(1 << 20);
    for (lost, rotten) in [(0, false), (1, false), (0, true), (1, true)] {
        let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let redundancy = Redundancy::Mirror(2);
        let options = CreateOptions { redundancy, log_slots: 4, ..CreateOptions::new("test") };
        let pool = Pool::create(devices, &options).unwrap();
        let options = MakeOptions { journal_size: Some(JOURNAL), ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let fs = mount(&pool);
        let made = fs.mkdir(fs.root(), b"dir", 0o755, &Cred::default()).unwrap();
        fs.fsync_dir(made.ino).unwrap();
        let mut copies = [vec![0; 16 << 20], vec![0; 16 << 20]];
        for (disk, copy) in disks.iter().zip(&mut copies) {
            disk.read(START, copy).unwrap();
        }
        let is_lock = |s: &[u8]| s.starts_with(&RawLockRecord::MAGIC.to_le_bytes());
        let has_body = |slot: &[u8]| slot[512..].starts_with(&MetaHeader::MAGIC.to_le_bytes());
        let slots: Vec<usize> = (0..16 << 20).step_by(4096).collect();
        let slots = slots.into_iter().filter(|at| {
            let slot = &copies[0][*at..at + 4096];
            is_lock(slot) && has_body(slot)
        });
        let slots: Vec<usize> = slots.collect();
        assert!(slots.len() > 10, "{}", slots.len());
        for (n, at) in slots.iter().enumerate() {
            copies[lost][*at..at + 512].fill(0);
            if rotten && n % 2 == 0 {
                copies[1 - lost][at + 2000] ^= 1;
            }
        }
        for (disk, copy) in disks.iter().zip(&copies) {
            disk.write(START, copy).unwrap();
        }
        fs.scrub(true);
        wait("the scrub ends", || fs.maintenance().scrubbed.is_some());
        let found = fs.maintenance().scrubbed.unwrap();
        assert_eq!(found.undecided.0, 0, "{lost} {rotten}: {found:?}");
        let mut healed = vec![0; 16 << 20];
        disks[lost].read(START, &mut healed).unwrap();
        let is_back = |at: &&usize| is_lock(&healed[**at..]);
        assert_eq!(slots.iter().filter(is_back).count(), slots.len(), "{lost} {rotten}");
        fs.mkdir(made.ino, b"below", 0o755, &Cred::default()).unwrap();
        fs.unmount().unwrap();
        let problems = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap().problems;
        assert_eq!(problems, Vec::<String>::new(), "{lost} {rotten}");
    }
}

/// One of two or three disks has lost writes that it acknowledged: what it has of metadata is sound, and old,
/// of this file system or of an earlier one.
#[test]
fn a_scrub_takes_the_newer_of_two_sound_versions() {
    const LEN: usize = 32 << 20;
    let cases = [(2, 0), (2, 1), (3, 0), (3, 2)].into_iter();
    for ((n, stale), anew) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let disks: Vec<_> = (0..n).map(|i| disk(&format!("d{i}"))).collect();
        let pool = made(&disks, Redundancy::Mirror(n));
        let read = |i: usize| {
            let mut bytes = vec![0; LEN];
            disks[i].read(ByteOffset(0), &mut bytes).unwrap();
            bytes
        };
        let fs = mount(&pool);
        (0..20).for_each(|i| write(&fs, i));
        fs.unmount().unwrap();
        let before = read(stale);
        if anew {
            make_again(&pool);
        }
        let fs = mount(&pool);
        (20..40).for_each(|i| write(&fs, i));
        fs.unlink(fs.root(), if anew { b"file23".as_slice() } else { b"file3" }).unwrap();
        fs.unmount().unwrap();
        let sound = read(stale);
        let mut bytes = sound.clone();
        // Not what stands in a journal.
        let is_lock = |slot: &[u8]| slot.starts_with(&RawLockRecord::MAGIC.to_le_bytes());
        let has_body = |slot: &[u8]| {
            is_lock(slot) && slot[512..].starts_with(&MetaHeader::MAGIC.to_le_bytes())
        };
        let mut lost = 0;
        for at in (1 << 20..LEN).step_by(4096).map(|at| at + 512..at + 4096) {
            let slot = at.start - 512..at.end;
            let both = has_body(&before[slot.clone()]) && has_body(&sound[slot]);
            if both && before[at.clone()] != sound[at.clone()] {
                bytes[at.clone()].copy_from_slice(&before[at]);
                lost += 1;
            }
        }
        assert!(lost > 10, "{lost}");
        disks[stale].write(ByteOffset(0), &bytes).unwrap();
        let volume = Volume::open(pool.clone()).unwrap();
        let report = pool.scrub(&VolumeVerifier::of(&volume), &mut |_, _| true).unwrap();
        assert_eq!(report.undecided.0, 0, "{n} {stale} {anew}: {report:?}");
        let bodies = |bytes: &[u8]| {
            let slots = bytes.chunks(4096).filter(|slot| has_body(slot));
            slots.map(|slot| slot[512..].to_vec()).collect::<Vec<_>>()
        };
        let wanted = bodies(&sound);
        (0..disks.len())
            .for_each(|i| assert!(bodies(&read(i)) == wanted, "{n} {stale} {anew}: {i}"));
        let problems = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap().problems;
        assert_eq!(problems, Vec::<String>::new(), "{n} {stale} {anew}");
    }
}

/// What a node has compared and written on the first of three copies of its record, and not yet on the
/// others, a scrub leaves there. What is damaged there nobody has written.
#[test]
fn a_scrub_takes_back_no_record_of_a_node_that_is_being_written() {
    const START: ByteOffset = ByteOffset(1 << 20);
    const SLOT: u16 = 3;
    let disks: Vec<_> = (0..3).map(|i| disk(&format!("d{i}"))).collect();
    let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let redundancy = Redundancy::Mirror(3);
    let options = CreateOptions { redundancy, log_slots: 4, ..CreateOptions::new("test") };
    let pool = Pool::create(devices, &options).unwrap();
    let options = MakeOptions { journal_size: Some(JOURNAL), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    let mut bytes = vec![0; 16 << 20];
    disks[0].read(START, &mut bytes).unwrap();
    let is_slot = |s: &[u8]| s.starts_with(&RawSlot::MAGIC.to_le_bytes());
    let first = bytes.chunks(512).position(is_slot).unwrap() as u64;
    let at = START + Bytes((first + u64::from(SLOT)) * 512);
    let stands = |disk: usize| {
        let mut there = vec![0; 512];
        disks[disk].read(at, &mut there).unwrap();
        there
    };
    let scrub = || {
        let fs = mount(&pool);
        fs.scrub(true);
        wait("the scrub ends", || fs.maintenance().scrubbed.is_some());
        let found = fs.maintenance().scrubbed.unwrap();
        fs.unmount().unwrap();
        found
    };
    let old = stands(1);
    let mut record = SlotRecord::decode(&old, NodeId(SLOT)).unwrap();
    record.pid += 1;
    let mut new = old.clone();
    record.encode(&mut new);
    disks[0].write(at, &new).unwrap();
    let found = scrub();
    assert_eq!((found.undecided, found.healed), (Bytes(512), Bytes(0)), "{found:?}");
    assert!(stands(0) == new && stands(1) == old);
    new[77] ^= 0x40;
    disks[0].write(at, &new).unwrap();
    let found = scrub();
    assert_eq!((found.undecided, found.healed), (Bytes(0), Bytes(512)), "{found:?}");
    assert!(stands(0) == old);
}

/// In a journal that is in use, the records that count are judged by their checksums.
#[test]
fn a_scrub_mends_the_journal_of_a_node_that_writes_it() {
    for rotten in 0..2 {
        let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
        let pool = made(&disks, Redundancy::Mirror(2));
        let fs = mount(&pool);
        (0..20).for_each(|n| write(&fs, n));
        let volume = fs.core().volume.clone();
        let ring = Ring::of(&volume, NodeId(0)).unwrap();
        let header = Header::look(&volume, &ring).unwrap();
        let sectors = crate::replay::sectors(&volume, NodeId(0), &header);
        assert!(sectors.len() > 20, "{header:?}");
        let places: Vec<ByteOffset> = sectors.keys().map(|n| ring.at + Bytes(*n)).collect();
        for at in places.iter().step_by(3) {
            let place = pool.map().locate(*at).unwrap().1;
            let mut sector = [0; 512];
            disks[rotten].read(place, &mut sector).unwrap();
            sector[99] ^= 0x40;
            disks[rotten].write(place, &sector).unwrap();
        }
        fs.scrub(true);
        wait("the scrub ends", || fs.maintenance().scrubbed.is_some());
        let found = fs.maintenance().scrubbed.unwrap();
        assert!(found.healed.0 > 0 && found.undecided.0 == 0, "copy {rotten}: {found:?}");
        assert_eq!(crate::replay::sectors(&volume, NodeId(0), &header), sectors);
        for at in &places {
            let place = pool.map().locate(*at).unwrap().1;
            let mut both = [[0; 512]; 2];
            disks.iter().zip(&mut both).for_each(|(d, sector)| d.read(place, sector).unwrap());
            assert!(both[0] == both[1]);
        }
        (0..20).for_each(|n| expect(&fs, n));
        fs.unmount().unwrap();
    }
}

/// What a member is filled with is judged by checksums, of two copies that are left.
#[test]
fn metadata_that_rotted_is_not_what_a_member_is_filled_with() {
    for rotten in 0..2 {
        let disks: Vec<_> = (0..3).map(|i| disk(&format!("d{i}"))).collect();
        let pool = made(&disks, Redundancy::Mirror(3));
        let fs = mount(&pool);
        (0..20).for_each(|n| write(&fs, n));
        fs.unmount().unwrap();
        let (start, mut bytes) = (ByteOffset(3 << 20), vec![0; 90 << 20]);
        disks[rotten].read(start, &mut bytes).unwrap();
        let good = bytes.clone();
        // Old images in the journal are nothing that is judged.
        let at = pool.map().locate(ByteOffset((1 << 20) + JOURNAL)).unwrap().1;
        let from = Bytes(at.0 - start.0).to_usize();
        let magic = MetaHeader::MAGIC.to_le_bytes();
        let slots = bytes[from..].chunks_mut(4096).filter(|s| s[512..516] == magic);
        let slots: Vec<_> = slots.collect();
        assert!(slots.len() > 20);
        slots.into_iter().for_each(|slot| slot[700] ^= 0x40);
        disks[rotten].write(start, &bytes).unwrap();
        pool.replace(MemberIndex(2), disk("new"), false).unwrap();
        let volume = Volume::open(pool.clone()).unwrap();
        let verifier = VolumeVerifier::of_mounted(&volume);
        let verification = braid_pool::Verification::by(&verifier);
        assert!(pool.rebuild_with(MemberIndex(2), &verification, &|_| true).unwrap());
        let found = verification.found();
        assert!(found.healed.0 > 0 && found.undecided.0 == 0, "{found:?}");
        for device in pool.devices() {
            let mut now = vec![0; good.len() - from];
            device.read(start + Bytes(from as u64), &mut now).unwrap();
            assert!(now == good[from..], "{}", device.info().name);
        }
    }
}

/// If two copies of file data differ, nothing says which is right, and the result of the filling
/// says so.
#[test]
fn file_data_that_differs_while_a_member_is_filled_is_told() {
    let disks: Vec<_> = (0..3).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(3));
    let fs = mount(&pool);
    (0..3).for_each(|n| write(&fs, n));
    let (start, mut bytes) = (ByteOffset(3 << 20), vec![0; 90 << 20]);
    disks[1].read(start, &mut bytes).unwrap();
    let data = content(2, 50_000);
    let at = bytes.windows(4096).position(|w| *w == data[8192..8192 + 4096]).unwrap();
    bytes[at + 5] ^= 1;
    let sector = at / 512 * 512;
    disks[1].write(start + Bytes(sector as u64), &bytes[sector..sector + 512]).unwrap();
    for (n, differs) in [true, false].into_iter().enumerate() {
        fs.replace_member(MemberIndex(2), disk(&format!("new{n}")), false).unwrap();
        wait("the new member is filled", || pool.rebuilding().is_none());
        wait("that is said", || fs.maintenance().rebuilding.is_none());
        wait("as it is", || fs.maintenance().differed.is_some() == differs);
        disks[1]
            .write(start + Bytes(sector as u64), &{
                let mut good = bytes[sector..sector + 512].to_vec();
                good[at % 512 + 5] ^= 1;
                good
            })
            .unwrap();
    }
    fs.unmount().unwrap();
}

/// A repair must not drop what the other copy still has.
#[test]
fn a_check_reads_around_damaged_copies() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..10).for_each(|n| write(&fs, n));
    fs.unmount().unwrap();
    for block in 0..pool.info().size.0 / 4096 {
        let at = braid_format::ByteOffset(block * 4096);
        let mut slot = vec![0; 4096];
        pool.read(at, &mut slot).unwrap();
        let kind = MetaHeader::decode(&slot[512..], BlockNo(block)).map(|(_, kind)| kind);
        // The superblock has a second one instead.
        if kind.is_ok_and(|k| k != MetaKind::Superblock) {
            let (_, at) = pool.map().locate(at).unwrap();
            slot[700] ^= 0x40;
            let copy = usize::from(block % 2 == 1);
            pool.devices()[copy].write(at, &slot).unwrap();
        }
    }
    check(pool.clone(), CheckOptions { repair: true }, &mut |_, _| {}).unwrap();
    let report = check(pool.clone(), CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    let fs = mount(&pool);
    (0..10).for_each(|n| expect(&fs, n));
    fs.unmount().unwrap();
}

/// A device that gives no whole chunk at once, as the copying asks for.
fn without_chunks(inner: Arc<dyn Device>) -> Arc<dyn Device> {
    let device = ScriptedDevice::over(inner);
    let reads = Rule::on(&[CommandKind::Read]);
    device.add(reads.when(|_, read| read.len() >= Bytes(1 << 20)).fails());
    device
}

/// Whose turn it is, and what was said to the others.
#[derive(Debug, Default)]
struct Alone {
    turn: AtomicBool,
    stuck: Mutex<Option<MemberIndex>>,
}

impl MaintenancePeers for Arc<Alone> {
    fn turn(&self) -> bool {
        self.turn.load(Ordering::Acquire)
    }
    fn publish_stuck(&self, stuck: Option<(MemberIndex, EpochTag)>) {
        *self.stuck.lock() = stuck.map(|s| s.0);
    }
}

fn memory(name: &str) -> Arc<dyn Device> {
    MemoryDevice::new(name, Bytes(96 << 20), Bytes(512))
}
fn to(name: &str) -> Destination {
    Destination::Device { device: memory(name), force: false }
}
/// A pool without redundancy of which member 0 is to be moved, and cannot be read.
fn with_a_move_that_fails() -> Pool {
    let devices: Vec<Arc<dyn Device>> = vec![without_chunks(memory("d0")), memory("d1")];
    let pool = Pool::create(devices, &CreateOptions::new("test")).unwrap();
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    pool.attach(0).unwrap();
    pool.begin_evacuation(MemberIndex(0), to("to")).unwrap();
    pool
}

/// Metadata in use of which no journal speaks has stood in its place: a copy without it is damaged. What a
/// dead node may have been writing shows nothing.
#[test]
fn what_no_journal_speaks_of_has_stood_in_its_place() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..5).for_each(|n| write(&fs, n));
    let inode = |n: usize| fs.lookup(fs.root(), format!("file{n}").as_bytes()).unwrap().ino;
    let inodes: Vec<BlockNo> = (0..5).map(|n| BlockNo(inode(n).get())).collect();
    let settled = |volume: &Volume| {
        let verifier = VolumeVerifier::of(volume);
        let of = |block: &BlockNo| {
            let mut slot = vec![0; Bytes(volume.geo.slot_bytes()).to_usize()];
            pool.read(volume.slot_at(*block), &mut slot).unwrap();
            verifier.is_settled(volume.slot_at(*block), &slot)
        };
        inodes.iter().filter(|block| of(block)).count()
    };
    assert_eq!(settled(&fs.core().volume), 0, "in a journal, or in a window");
    fs.unmount().unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    assert_eq!(settled(&volume), 5);
    // The same bytes elsewhere are nothing.
    let mut slot = vec![0; 4096];
    pool.read(volume.slot_at(inodes[0]), &mut slot).unwrap();
    assert!(!VolumeVerifier::of(&volume).is_settled(volume.slot_at(inodes[1]), &slot));
}

/// The device that a member is moved to has nothing yet of what a check looks at: that is no problem.
#[test]
fn a_check_beside_a_move_does_not_judge_what_the_successor_lacks() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    (0..3).for_each(|n| write(&fs, n));
    fs.unmount().unwrap();
    pool.begin_evacuation(MemberIndex(1), to("to")).unwrap();
    let report = check(pool.clone(), CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(pool.moving().is_some());
}

/// The maintenance of a node that is `alone`.
fn of_one_node(volume: &Arc<Volume>, alone: &Arc<Alone>) -> Maintenance {
    let no_files = Box::new(|_: &[_], _: &dyn Fn() -> bool| FilesAt::default());
    Maintenance::start(volume, Box::new(alone.clone()), no_files, Box::new(|| ()))
}

#[test]
fn who_loses_the_turn_takes_back_that_it_could_not_do_it() {
    let pool = with_a_move_that_fails();
    let alone = Arc::new(Alone::default());
    let volume = Arc::new(Volume::open(pool).unwrap());
    let maintenance = of_one_node(&volume, &alone);
    let turns = |turn, said| {
        alone.turn.store(turn, Ordering::Release);
        maintenance.wake();
        wait("it is said", || *alone.stuck.lock() == said);
        wait("of itself too", || maintenance.status().error.is_some() == said.is_some());
        assert_eq!(maintenance.status().turn, turn);
    };
    turns(true, Some(MemberIndex(0)));
    turns(false, None);
    // At once, not when the time has come to try what failed.
    turns(true, Some(MemberIndex(0)));
    maintenance.stop();
}

/// A member that could not be moved does not keep a spare from stepping in for another.
#[test]
fn what_could_not_be_done_is_tried_again_when_the_pool_has_changed() {
    let pool = with_a_move_that_fails();
    let alone = Arc::new(Alone::default());
    alone.turn.store(true, Ordering::Release);
    let volume = Arc::new(Volume::open(pool.clone()).unwrap());
    let maintenance = of_one_node(&volume, &alone);
    wait("it fails", || maintenance.status().error.is_some());
    let begun = Instant::now();
    pool.cancel_evacuation(MemberIndex(0)).unwrap();
    pool.begin_evacuation(MemberIndex(1), to("another")).unwrap();
    wait("the other one is moved", || pool.moving().is_none());
    assert!(begun.elapsed() < super::RETRY, "only when the time had come");
    maintenance.stop();
}

#[test]
fn who_asks_for_a_move_hears_that_another_node_cannot_do_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |n: usize| {
        let path = dir.path().join(format!("disk{n}"));
        let new = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        new.set_len(96 << 20).unwrap();
        braid_pool::device::open(&path, OpenOptions::default()).unwrap()
    };
    let pool = Pool::create(vec![file(0), file(1)], &CreateOptions::new("test")).unwrap();
    let options = MakeOptions { journal_size: Some(JOURNAL), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    drop(pool);
    let keeper = mount(&Pool::assemble(vec![without_chunks(file(0)), file(1)]).unwrap());
    let asked = mount(&Pool::assemble(vec![file(0), file(1)]).unwrap());
    let stuck = |fs: &Fs| fs.stuck().iter().map(|n| (n.life.slot.0, n.stuck)).collect::<Vec<_>>();
    assert_eq!(stuck(&asked), []);
    let to = Destination::Device { device: file(2), force: false };
    asked.evacuate_member(MemberIndex(0), to).unwrap();
    wait("it hears so", || stuck(&asked) == [(0, Some(MemberIndex(0)))]);
    assert!(keeper.maintenance().error.unwrap().contains("disk0"));
    assert_eq!(stuck(&keeper), [], "it is said to the others");
    // Nothing is said about a move that is over.
    asked.cancel_evacuation(MemberIndex(0)).unwrap();
    wait("that is over", || stuck(&asked).is_empty());
    asked.unmount().unwrap();
    keeper.unmount().unwrap();
}

/// Of two copies of file data nothing says which is right: the file is named, and where in it.
#[test]
fn a_scrub_names_the_files_that_have_what_it_cannot_decide() {
    let disks: Vec<_> = (0..2).map(|i| disk(&format!("d{i}"))).collect();
    let pool = made(&disks, Redundancy::Mirror(2));
    let fs = mount(&pool);
    write(&fs, 0);
    let dir = fs.mkdir(fs.root(), b"dir", 0o755, &ROOT).unwrap();
    // Each sector of both is like no other.
    let make = |dir, name: &[u8], first: u8| {
        let (attr, fh) = fs.create(dir, name, 0o644, 2, &ROOT).unwrap();
        let bytes: Vec<u8> = (first..first + 100).flat_map(|n| [n; 512]).collect();
        fs.write(fh, 0, &bytes, WriteFlags::default()).unwrap();
        fs.fsync(fh, false).unwrap();
        fs.release(fh).unwrap();
        attr
    };
    let attr = make(dir.ino, b"inside", 1);
    make(fs.root(), b"removed", 101);
    fs.link(attr.ino, fs.root(), b"linked").unwrap();
    let scrub = || {
        let before = fs.maintenance().scrubs;
        fs.scrub(true);
        wait("the scrub ends", || fs.maintenance().scrubs > before);
        fs.maintenance()
    };
    let told = scrub();
    assert!(told.files.complete && told.files.files.is_empty(), "{told:?}");
    // Sectors in two blocks of the file, and one of what is removed.
    let rotten = [41, 66, 110].map(|n| {
        let mut all = vec![0; 96 << 20];
        disks[0].read(ByteOffset(0), &mut all).unwrap();
        all.chunks(512).position(|s| s == [n; 512]).unwrap() as u64 * 512
    });
    fs.unlink(fs.root(), b"removed").unwrap();
    for at in rotten {
        disks[0].inner().write(ByteOffset(at), &[0xfe; 512]).unwrap();
    }
    let told = scrub();
    assert_eq!(told.scrubbed.unwrap().undecided, Bytes(3 * 4096));
    let mut files = told.files.files;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let named: Vec<_> = files.iter().map(|f| (f.path.to_str().unwrap(), f.ino)).collect();
    assert_eq!(named, [("/dir/inside", attr.ino), ("/linked", attr.ino)]);
    assert!(files.iter().all(|f| f.offsets == [20_480, 32_768]) && told.files.complete);
    fs.unmount().unwrap();
}
