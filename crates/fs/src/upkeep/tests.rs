use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::label::MemberState;
use braid_format::lock_record::LockRecord;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::{BlockNo, ByteOffset, Bytes, LockNo, MemberIndex};
use braid_pool::device::{
    Device, DeviceError, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, OpenOptions, pass_on,
};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Destination, EpochTag, Instead, Pool};
use parking_lot::Mutex;

use super::{Fellows, Upkeep};
use crate::check::{CheckOptions, check};
use crate::make::{MakeOptions, make};
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
    let end = Instant::now() + Duration::from_secs(60);
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
    wait("the scrub ends", || fs.upkeep().scrubbed.is_some());
    let found = fs.upkeep().scrubbed.unwrap();
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
                _ => assert!(pool.read_otherwise(Instead::OfRead, at, &mut slot, 0).unwrap()),
            }
            let body = MetaHeader::decode(&slot[512..], BlockNo(block)).is_ok();
            let record = LockRecord::decode(&slot[..512], LockNo(block));
            assert!(!body || record.is_ok(), "block {block}: {record:?}");
        }
    }
    let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
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
        // Of the superblock there is a second one instead.
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
#[derive(Debug)]
struct NoChunks(Arc<dyn Device>);

impl Device for NoChunks {
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        if buf.len() < 1 << 20 {
            return self.0.read(at, buf);
        }
        let device = self.info().name.as_str().into();
        Err(DeviceError::Injected { device, operation: "read", at })
    }
    pass_on!(0: info write flush compare_and_write discard write_zeroes lock_byte byte_locked);
}

/// Whose turn it is, and what was said to the others.
#[derive(Debug, Default)]
struct Alone {
    turn: AtomicBool,
    stuck: Mutex<Option<MemberIndex>>,
}

impl Fellows for Arc<Alone> {
    fn turn(&self) -> bool {
        self.turn.load(Ordering::Acquire)
    }
    fn say_stuck(&self, stuck: Option<(MemberIndex, EpochTag)>) {
        *self.stuck.lock() = stuck.map(|s| s.0);
    }
}

#[test]
fn who_loses_the_turn_takes_back_that_it_could_not_do_it() {
    let memory =
        |name: &str| MemoryDevice::new(name, Bytes(96 << 20), Bytes(512)) as Arc<dyn Device>;
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(NoChunks(memory("d0"))), memory("d1")];
    let pool = Pool::create(devices, &CreateOptions::new("test")).unwrap();
    pool.attach(0).unwrap();
    let to = Destination::Device { device: memory("to"), force: false };
    pool.begin_evacuation(MemberIndex(0), to).unwrap();
    let alone = Arc::new(Alone::default());
    let upkeep = Upkeep::start(&pool, Geometry::DEFAULT, Box::new(alone.clone()));
    let turns = |turn, said| {
        alone.turn.store(turn, Ordering::Release);
        upkeep.wake();
        wait("it is said", || *alone.stuck.lock() == said);
        wait("of itself too", || upkeep.status().error.is_some() == said.is_some());
        assert_eq!(upkeep.status().turn, turn);
    };
    turns(true, Some(MemberIndex(0)));
    turns(false, None);
    // At once, not when the time has come to try what failed.
    turns(true, Some(MemberIndex(0)));
    upkeep.stop();
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
    let keeper = mount(&Pool::assemble(vec![Arc::new(NoChunks(file(0))), file(1)]).unwrap());
    let asked = mount(&Pool::assemble(vec![file(0), file(1)]).unwrap());
    let stuck = |fs: &Fs| fs.stuck().iter().map(|n| (n.life.slot.0, n.stuck)).collect::<Vec<_>>();
    assert_eq!(stuck(&asked), []);
    let to = Destination::Device { device: file(2), force: false };
    asked.evacuate_member(MemberIndex(0), to).unwrap();
    wait("it hears so", || stuck(&asked) == [(0, Some(MemberIndex(0)))]);
    assert!(keeper.upkeep().error.unwrap().contains("disk0"));
    assert_eq!(stuck(&keeper), [], "it is said to the others");
    // Of a move that is over nothing is said.
    asked.cancel_evacuation(MemberIndex(0)).unwrap();
    wait("that is over", || stuck(&asked).is_empty());
    asked.unmount().unwrap();
    keeper.unmount().unwrap();
}
