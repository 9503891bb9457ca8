//! Rot in one copy of what a node was changing when it died: the other copy stays what it is.

use std::time::Duration;

use braid_format::journal::RawTxHeader;
use braid_format::label::Label;
use braid_format::lock_record::{LockRecord, RawLockRecord};
use braid_format::meta::MetaHeader;
use braid_format::node::{RawHeartbeat, RawSlot, SlotRecord};
use braid_format::{ByteOffset, Bytes};
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};

use super::*;
use crate::check::{CheckOptions, check};
use crate::make::{MakeOptions, make};
use crate::{Cred, Fs, MountOptions, NoKernelCache, WriteFlags};

const ROOT: Cred = Cred { uid: 0, gid: 0, umask: 0o022, pid: 1 };
const FILES: usize = 20;

/// What rots on one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rot {
    Bodies,
    LockRecords,
    SlotRecords,
    JournalImages,
    JournalHeads,
    All,
}

const KINDS: [Rot; 6] = [
    Rot::Bodies,
    Rot::LockRecords,
    Rot::SlotRecords,
    Rot::JournalImages,
    Rot::JournalHeads,
    Rot::All,
];

fn mount(pool: Pool) -> Fs {
    // What was made stays in the journal.
    let commit_interval = Duration::from_mins(10);
    let options = MountOptions { commit_interval, ..MountOptions::default() };
    Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap()
}

fn content(n: usize) -> Vec<u8> {
    (0..5000 + n * 1000).map(|i| u8::try_from((i * 13 + n * 7) % 251).unwrap()).collect()
}

fn write(fs: &Fs, n: usize) {
    let (_, fh) = fs.create(fs.root(), format!("file{n}").as_bytes(), 0o644, 2, &ROOT).unwrap();
    fs.write(fh, 0, &content(n), WriteFlags::default()).unwrap();
    fs.fsync(fh, false).unwrap();
    fs.release(fh).unwrap();
}

fn expect(fs: &Fs, n: usize) {
    let attr = fs.lookup(fs.root(), format!("file{n}").as_bytes()).unwrap();
    let fh = fs.open(attr.ino, 0).unwrap();
    let mut buf = braid_pool::device::AlignedBuf::zeroed(content(n).len().next_multiple_of(4096));
    assert_eq!(fs.read(fh, 0, &mut buf).unwrap(), content(n).len(), "file {n}");
    assert!(buf[..content(n).len()] == content(n)[..], "file {n}");
    fs.release(fh).unwrap();
}

/// Disks with a mirror, or a stripe of two, whose node died with files in its journal.
fn died(disks: usize) -> Vec<Arc<MemoryDevice>> {
    let size = Bytes(96 << 20);
    let disks: Vec<_> =
        (0..disks).map(|i| MemoryDevice::new(&format!("d{i}"), size, Bytes(512))).collect();
    let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let options = CreateOptions { redundancy: Redundancy::Mirror(2), ..CreateOptions::new("test") };
    let pool = Pool::create(devices, &options).unwrap();
    let options = MakeOptions { journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    let fs = mount(pool);
    (0..FILES).for_each(|n| write(&fs, n));
    fs.pool().close();
    let copies = disks.iter().zip(0..).map(|(d, i)| d.fork(&format!("d{i}"))).collect();
    std::mem::forget(fs);
    copies
}

fn bytes_of(disk: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; disk.info().size.to_usize()];
    disk.read(ByteOffset(0), &mut bytes).unwrap();
    bytes
}

/// Flips bits of one disk; how many places.
fn rot(disk: &MemoryDevice, kind: Rot) -> usize {
    let mut bytes = bytes_of(disk);
    let is = |sector: &[u8], magic: u32| sector.starts_with(&magic.to_le_bytes());
    let mut spoiled = 0;
    for (n, sector) in bytes.chunks_mut(512).enumerate() {
        // What the region holds that everything was written in.
        if !(Label::DATA_AT.0..10 << 20).contains(&(n as u64 * 512)) {
            continue;
        }
        // A body that stands behind its lock record; others are images in a journal.
        let in_slot = n % 8 == 1;
        let body = is(sector, MetaHeader::MAGIC);
        let hit = match kind {
            Rot::Bodies => body && in_slot,
            Rot::LockRecords => is(sector, RawLockRecord::MAGIC),
            Rot::SlotRecords => is(sector, RawSlot::MAGIC) || is(sector, RawHeartbeat::MAGIC),
            Rot::JournalImages => body && !in_slot,
            Rot::JournalHeads => is(sector, RawTxHeader::MAGIC),
            Rot::All => [
                MetaHeader::MAGIC,
                RawLockRecord::MAGIC,
                RawSlot::MAGIC,
                RawHeartbeat::MAGIC,
                RawTxHeader::MAGIC,
            ]
            .iter()
            .any(|magic| is(sector, *magic)),
        };
        if hit {
            sector[if n % 3 == 0 { 1 } else { 41 }] ^= 0x40;
            spoiled += 1;
        }
    }
    disk.write(ByteOffset(0), &bytes).unwrap();
    spoiled
}

fn assemble(disks: &[Arc<MemoryDevice>]) -> Pool {
    Pool::assemble(disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect()).unwrap()
}

fn clean(disks: &[Arc<MemoryDevice>], what: &str) {
    let report = check(assemble(disks), CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new(), "{what}");
}

/// How many sound bodies, lock records and slots are at a place on both copies, and on one.
fn sound(pool: &Pool) -> [usize; 2] {
    let sb = Volume::open(pool.clone()).unwrap().sb;
    let slots = BlockNo(sb.slot_area.get());
    let mut found = [0; 2];
    let mut slot = vec![0; 4096];
    for block in 0..pool.info().size.0 / 4096 {
        let mut each = [0; 3];
        for copy in 0..2 {
            pool.look(ByteOffset(block * 4096), &mut slot, copy).unwrap();
            each[0] += usize::from(MetaHeader::decode(&slot[512..], BlockNo(block)).is_ok());
            each[1] += usize::from(LockRecord::decode(&slot[..512], LockNo(block)).is_ok());
            let node = SlotRecord::decode(&slot[..512], NodeId(0));
            each[2] += usize::from(slots == BlockNo(block) && node.is_ok());
        }
        for n in each {
            match n {
                2 => found[0] += 1,
                1 => found[1] += 1,
                _ => {}
            }
        }
    }
    found
}

/// What rotted on one copy, in a region that is made equal after the crash, comes from the other.
#[test]
fn rot_is_not_copied_over_what_is_good_when_a_dead_node_is_recovered() {
    for n in [2, 4] {
        let disks = died(n);
        let was = sound(&assemble(&disks));
        for kind in KINDS {
            for rotten in [0, 1] {
                let what = format!("{kind:?} on copy {rotten} of {n}");
                let forks: Vec<_> = disks.iter().map(|d| d.fork(&d.info().name)).collect();
                let spoiled: usize = (rotten..n).step_by(2).map(|d| rot(&forks[d], kind)).sum();
                assert!(spoiled > 0, "{what}: nothing rots");
                clean_but_slots(&forks, kind, &what);
                let fs = mount(assemble(&forks));
                (0..FILES).for_each(|n| expect(&fs, n));
                let pool = fs.pool().clone();
                fs.unmount().unwrap();
                let [both, one] = sound(&pool);
                assert!(both >= was[0] && one == 0, "{what}: {both} and {one} of {was:?}");
                drop(pool);
                clean_but_slots(&forks, kind, &what);
                let report = check(assemble(&forks), CheckOptions { repair: true }, &mut |_, _| {});
                report.unwrap();
                clean(&forks, &what);
            }
        }
    }
}

/// Nothing is made equal there any more: the replay reads what another copy has.
#[test]
fn rot_in_a_journal_is_read_around_by_who_replays_it() {
    for n in [2, 4] {
        let disks = died(n);
        let pool = assemble(&disks);
        for slot in 0..pool.info().log_slots.unwrap() {
            pool.attach(u16::try_from(slot).unwrap()).unwrap();
            pool.detach().unwrap();
        }
        drop(pool);
        for kind in [Rot::JournalImages, Rot::JournalHeads, Rot::All] {
            for rotten in [0, 1] {
                let what = format!("{kind:?} on copy {rotten} of {n}");
                let forks: Vec<_> = disks.iter().map(|d| d.fork(&d.info().name)).collect();
                let spoiled: usize = (rotten..n).step_by(2).map(|d| rot(&forks[d], kind)).sum();
                assert!(spoiled > 0, "{what}: nothing rots");
                let fs = mount(assemble(&forks));
                (0..FILES).for_each(|n| expect(&fs, n));
                fs.unmount().unwrap();
                if kind != Rot::All {
                    clean(&forks, &what);
                }
            }
        }
    }
}

/// A check names slots of which a copy is damaged, and repairs nothing.
fn clean_but_slots(disks: &[Arc<MemoryDevice>], kind: Rot, what: &str) {
    let report = check(assemble(disks), CheckOptions::default(), &mut |_, _| {}).unwrap();
    let slots = |p: &String| p.contains("a copy of the slot of node");
    let may = matches!(kind, Rot::SlotRecords | Rot::All);
    let others: Vec<_> = report.problems.iter().filter(|p| !(may && slots(p))).collect();
    assert!(others.is_empty(), "{what}: {others:?}");
}
