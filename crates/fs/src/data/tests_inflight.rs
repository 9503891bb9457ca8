//! Writes that were answered before the devices had them.

use std::sync::Arc;
use std::thread::{ScopedJoinHandle, sleep};
use std::time::Duration;

use braid_format::{Bytes, InodeNo};
use braid_pool::device::{
    AlignedBuf, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Rule, ScriptedDevice,
};
use braid_pool::{CreateOptions, Pool};

use crate::ReadRange;
use crate::attr::{Cred, Durable, EarlyReply, Fh, NoKernelCache, SetAttr, Write, WriteFlags};
use crate::check::{CheckOptions, check};
use crate::make::{MakeOptions, make};
use crate::{Error, Fs, MountOptions, UnseenWrite};

const O_RDWR: i32 = 2;
const O_DSYNC: i32 = 0o10_000;
const LEN: usize = 512 << 10;
const END: u64 = LEN as u64;

/// Answers early, by this.
pub(super) struct Early<F>(pub F);
impl<F: FnMut()> EarlyReply for Early<F> {
    fn may(&mut self) -> bool {
        true
    }
    fn send(&mut self) {
        (self.0)();
    }
}

/// Does this when it is asked, and says no.
struct Not<F>(F);
impl<F: FnMut()> EarlyReply for Not<F> {
    fn may(&mut self) -> bool {
        (self.0)();
        false
    }
    fn send(&mut self) {
        panic!("answered though it may not be");
    }
}

struct Fixture {
    /// Over `device`.
    scripted: Arc<ScriptedDevice>,
    /// Refuses contents: writes of one byte over and over, and nothing else. Nodes' own writes are never
    /// so.
    refuses: Arc<Rule>,
    device: Arc<FaultyDevice>,
    fs: Fs,
    ino: InodeNo,
    fh: Fh,
}

impl Fixture {
    /// A file of `END` old bytes, on one disk.
    fn new() -> Self {
        Self::bounded(MountOptions::default())
    }
    fn bounded(how: MountOptions) -> Self {
        let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
        let device = FaultyDevice::new(inner, FaultPlan::default());
        let scripted = ScriptedDevice::over(device.clone());
        let content = |bytes: &[u8]| bytes[0] != 0 && bytes.iter().all(|b| *b == bytes[0]);
        let refuses = scripted.add(Rule::all().writing(content).fails().disabled());
        let devices = vec![scripted.clone() as Arc<dyn Device>];
        let pool = Pool::create(devices, &CreateOptions::new("fixture")).unwrap();
        let options = MakeOptions { nodes: Some(2), ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let fs = Fs::mount(pool, how, Arc::new(NoKernelCache)).unwrap();
        let made = fs.create(fs.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
        let fixture = Self { scripted, refuses, device, fs, ino: made.0.ino, fh: made.1 };
        fixture.write(0, &filled(1), || ());
        fixture.fs.fsync(fixture.fh, false).unwrap();
        fixture
    }
    fn write(&self, at: u64, data: &[u8], answer: impl FnMut()) {
        let done = self.try_write(at, data, WriteFlags::default(), &mut Early(answer));
        assert_eq!(done.unwrap(), data.len());
    }
    fn try_write(
        &self,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        reply: &mut dyn EarlyReply,
    ) -> Result<usize, Error> {
        self.fs.write_behind(self.fh, Write { offset, bytes, flags }, reply)
    }
    /// Another node on the same disk.
    fn other(&self) -> Fs {
        let pool = Pool::assemble(vec![self.scripted.clone() as Arc<dyn Device>]).unwrap();
        Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
    }
    /// From here on contents are refused, or no longer.
    fn refuse(&self, refuses: bool) {
        self.refuses.enable(refuses);
    }
    fn read(&self, at: u64) -> Vec<u8> {
        let len = u32::try_from(LEN).unwrap();
        self.fs
            .read_reply(self.fh, ReadRange { offset: at, len, fill: false }, <[u8]>::to_vec)
            .unwrap()
    }
    /// Opens the pool anew; what the file holds at `at` then.
    fn after_remount(self, at: u64) -> Vec<u8> {
        let Self { device, fs, ino, fh, .. } = self;
        fs.release(fh).unwrap();
        fs.unmount().unwrap();
        let pool = || Pool::assemble(vec![device.clone() as Arc<dyn Device>]).unwrap();
        let report = check(pool(), CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let fs = Fs::mount(pool(), MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
        let fh = fs.open(ino, O_RDWR).unwrap();
        let len = u32::try_from(LEN).unwrap();
        let bytes =
            fs.read_reply(fh, ReadRange { offset: at, len, fill: false }, <[u8]>::to_vec).unwrap();
        fs.release(fh).unwrap();
        fs.unmount().unwrap();
        bytes
    }
}

fn filled(with: u8) -> AlignedBuf {
    let mut data = AlignedBuf::zeroed(LEN);
    data.fill(with);
    data
}

/// All of them wait, which is looked at for a moment.
fn wait<T>(threads: &[ScopedJoinHandle<'_, T>]) -> bool {
    sleep(Duration::from_millis(100));
    threads.iter().all(|t| !t.is_finished())
}

#[test]
fn who_comes_after_the_answer_sees_the_bytes() {
    for at in [0, END / 2, END, 3 * END] {
        let fixture = Fixture::new();
        let data = filled(2);
        std::thread::scope(|scope| {
            let (mut readers, mut others) = (Vec::new(), Vec::new());
            fixture.write(at, &data, || {
                let attr = fixture.fs.getattr(fixture.ino).unwrap();
                assert_eq!(attr.size, END.max(at + END), "a file is as long as it was answered");
                readers.push(scope.spawn(|| fixture.read(at)));
                others.push(scope.spawn(|| fixture.fs.fsync(fixture.fh, true).unwrap()));
                others.push(scope.spawn(|| fixture.fs.sync().unwrap()));
                assert!(wait(&readers) && wait(&others), "{at}: something overtook the write");
            });
            for reader in readers {
                assert!(reader.join().unwrap() == data[..], "{at}: old bytes were read");
            }
        });
        let elsewhere = if at >= END { 0 } else { at + END };
        let beside = fixture.read(elsewhere);
        assert!(beside.iter().all(|b| *b == 1), "{at}: what lies beside it has changed");
        assert!(fixture.after_remount(at) == data[..]);
    }
}

#[test]
fn attributes_seen_after_the_answer_stay_as_they_are() {
    let fixture = Fixture::new();
    let data = filled(2);
    let see = || fixture.fs.getattr(fixture.ino).unwrap();
    let before = see();
    for n in 1..4 {
        let mut seen = None;
        fixture.write(n * END, &data, || {
            sleep(Duration::from_millis(20));
            seen = Some(see());
        });
        let seen = seen.unwrap();
        assert!(seen.mtime > before.mtime && seen.blocks512 == (n + 1) * END / 512, "{seen:?}");
        assert_eq!(see(), seen);
    }
    // What is overwritten is there already, whatever is missing elsewhere.
    let set = SetAttr { size: Some(9 * END), ..SetAttr::default() };
    fixture.fs.setattr(fixture.ino, &set, None).unwrap();
    let linked = see().blocks512;
    fixture.write(0, &data, || assert_eq!(see().blocks512, linked));
}

#[test]
fn a_later_write_stays_the_later_one() {
    let fixture = Fixture::new();
    let (second, third) = (filled(2), filled(3));
    std::thread::scope(|scope| {
        let mut later = Vec::new();
        fixture.write(END / 2, &second, || {
            let direct = WriteFlags { direct: true, ..WriteFlags::default() };
            let mapped = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            let write =
                |at, flags| fixture.fs.write(fixture.fh, at, &third[..4096], flags).unwrap();
            later.push(scope.spawn(move || write(END / 2, direct)));
            let (fs, fh) = (&fixture.fs, fixture.fh);
            later.push(scope.spawn(move || {
                // The kernel has filled a page before a program stores into it.
                let page = ReadRange { offset: END / 2 + 8192, len: 4096, fill: true };
                fs.read_reply(fh, page, |_| ()).unwrap();
                write(END / 2 + 8192, mapped)
            }));
            later.push(scope.spawn(move || write(END / 2 + 16384, WriteFlags::default())));
            assert!(wait(&later), "something overtook the write");
        });
    });
    let read = fixture.read(END / 2);
    let blocks: Vec<u8> = read.chunks(4096).map(|b| b[0]).collect();
    assert_eq!(blocks[..6], [3, 2, 3, 2, 3, 2]);
    assert!(fixture.after_remount(END / 2) == read);
}

#[test]
fn writes_elsewhere_in_the_file_go_on() {
    let fixture = Fixture::new();
    let data = filled(2);
    let mut inner = 0;
    fixture.write(2 * END, &data, || {
        fixture.write(END, &data, || {
            inner += 1;
        });
        assert!(fixture.read(END) == data[..] && fixture.read(0) == filled(1)[..]);
    });
    assert_eq!(inner, 1);
    assert!(fixture.after_remount(2 * END) == data[..]);
}

#[test]
fn what_is_to_be_durable_or_small_is_not_answered_first() {
    let fixture = Fixture::new();
    let data = filled(2);
    let never = &mut Early(|| panic!("answered before it was done"));
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    fixture.try_write(0, &data, direct, never).unwrap();
    fixture.try_write(0, &data[..4096], WriteFlags::default(), never).unwrap();
    for durable in [Durable::Contents, Durable::All] {
        let flushes = fixture.device.counts().flushes;
        fixture
            .try_write(0, &data, WriteFlags { durable, ..WriteFlags::default() }, never)
            .unwrap();
        assert!(fixture.device.counts().flushes > flushes, "{durable:?}");
    }
    let synced = fixture.fs.open(fixture.ino, O_RDWR | O_DSYNC).unwrap();
    let what = Write { offset: 0, bytes: &data, flags: WriteFlags::default() };
    fixture.fs.write_behind(synced, what, never).unwrap();
    fixture.fs.release(synced).unwrap();
    // A write for which there is no room is not accepted either: its program gets the error.
    let left = fixture.fs.statfs().unwrap().free << 12;
    fixture.fs.fallocate(fixture.fh, 0, END, left - (8 << 20)).unwrap();
    let mut told = false;
    for n in 0..64 {
        let mut answered = false;
        let mut early = Early(|| answered = true);
        let done = fixture.try_write(left + n * END, &data, WriteFlags::default(), &mut early);
        told |= matches!(done, Err(Error::NoSpace)) && !answered;
        assert!(done.is_ok() || !answered, "{done:?}");
    }
    assert!(told, "there was room for all");
    assert!(fixture.after_remount(0) == data[..]);
}

/// Heartbeats write too, and may meet the fault instead.
#[test]
fn what_a_device_refuses_after_the_answer_is_kept_and_told() {
    let fixture = Fixture::new();
    let data = filled(2);
    let fail_next = || fixture.device.arm(On::Write, 0, FaultKind::Fails);
    for at in [0, END] {
        let refused = (0..50).any(|_| {
            fixture.write(at, &data, || {
                fail_next();
            });
            fixture.fs.core().dirty.bytes() > 0
        });
        assert!(refused && fixture.read(at) == data[..], "{at}");
        let told = (0..50).any(|_| {
            fail_next();
            matches!(fixture.fs.fsync(fixture.fh, true), Err(Error::Contents(_))) || {
                // It met a heartbeat: once more from the start.
                fixture.fs.write(fixture.fh, at, &data[..4096], WriteFlags::default()).unwrap();
                false
            }
        });
        assert!(told, "{at}: nobody heard of it");
        fixture.device.heal();
        fixture.fs.fsync(fixture.fh, true).unwrap();
    }
    assert!(fixture.read(0) == data[..] && fixture.after_remount(END) == data[..]);
}

#[test]
fn what_is_not_answered_takes_no_part_of_the_bound() {
    let fixture = Fixture::new();
    let mut long = AlignedBuf::zeroed(24 << 20);
    long.fill(2);
    let data = filled(3);
    let mut inner = false;
    let mut beside = Not(|| fixture.write(0, &data, || inner = true));
    fixture.try_write(END, &long, WriteFlags::default(), &mut beside).unwrap();
    assert!(inner, "the bound was used up by a write that nobody was answered");
    assert!(fixture.read(0) == data[..] && fixture.read(END) == long[..LEN]);
}

#[test]
fn a_write_that_fails_unanswered_leaves_the_file_as_long_as_it_was() {
    let fixture = Fixture::new();
    let data = filled(2);
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    for flags in [WriteFlags::default(), direct] {
        fixture.refuse(true);
        let failed = fixture.try_write(END, &data, flags, &mut Not(|| ()));
        fixture.refuse(false);
        assert!(matches!(failed, Err(Error::Contents(_))), "{failed:?}");
        assert_eq!(fixture.fs.getattr(fixture.ino).unwrap().size, END);
    }
    assert!(fixture.after_remount(0) == filled(1)[..]);
}

#[test]
fn what_a_device_refuses_stays_below_the_bound_of_dirty_memory() {
    let dirty_max = Bytes(4 << 20);
    let fixture = Fixture::bounded(MountOptions { dirty_max, ..MountOptions::default() });
    let (old, data) = (filled(1), filled(2));
    for n in 1..16 {
        fixture.write(n * END, &old, || ());
    }
    fixture.fs.fsync(fixture.fh, false).unwrap();
    fixture.refuse(true);
    let mut answered = Vec::new();
    let mut told = 0;
    for n in 0..16 {
        let at = n * END;
        let mut early = false;
        match fixture.try_write(at, &data, WriteFlags::default(), &mut Early(|| early = true)) {
            Ok(_) => answered.push(at),
            Err(Error::Contents(_)) => told += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(early, answered.last() == Some(&at), "who was answered hears no more");
        assert!(fixture.fs.core().dirty.bytes() <= dirty_max.get(), "{n}");
    }
    assert!(answered.len() > 2 && told > 2, "{answered:?}");
    fixture.refuse(false);
    fixture.fs.fsync(fixture.fh, false).unwrap();
    for at in answered {
        assert!(fixture.read(at) == data[..], "{at}");
    }
    assert!(fixture.after_remount(0) == data[..]);
}

/// Writes at `at`, and begins `then` once it is answered: that must wait until the write is done.
fn beside<T: Send>(fixture: &Fixture, at: u64, then: impl FnOnce() -> T + Send) -> T {
    let data = filled(2);
    let mut then = Some(then);
    std::thread::scope(|scope| {
        let mut begun = Vec::new();
        fixture.write(at, &data, || {
            begun.push(scope.spawn(then.take().unwrap()));
            assert!(wait(&begun), "{at}: something overtook the write");
        });
        begun.pop().unwrap().join().unwrap()
    })
}

#[test]
fn another_node_gets_the_file_with_what_was_answered() {
    for at in [0, END] {
        let fixture = Fixture::new();
        let other = fixture.other();
        let read = beside(&fixture, at, || {
            let fh = other.open(fixture.ino, 0).unwrap();
            let len = u32::try_from(LEN).unwrap();
            let bytes = other
                .read_reply(fh, ReadRange { offset: at, len, fill: false }, <[u8]>::to_vec)
                .unwrap();
            other.release(fh).unwrap();
            bytes
        });
        assert!(read == filled(2)[..], "{at}");
        other.unmount().unwrap();
        assert!(fixture.after_remount(at) == read);
    }
}

#[test]
fn a_truncation_comes_after_what_was_answered() {
    for size in [0, END, END + 5000] {
        let fixture = Fixture::new();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let attr = beside(&fixture, END, || fixture.fs.setattr(fixture.ino, &set, None).unwrap());
        assert_eq!((attr.size, fixture.fs.getattr(fixture.ino).unwrap().size), (size, size));
        let left = usize::try_from(size.saturating_sub(END)).unwrap();
        assert!(fixture.after_remount(END) == filled(2)[..left]);
    }
}

#[test]
fn a_file_that_is_removed_and_closed_goes_after_what_was_answered() {
    let fixture = Fixture::new();
    beside(&fixture, END, || {
        fixture.fs.unlink(fixture.fs.root(), b"f").unwrap();
        fixture.fs.release(fixture.fh).unwrap();
    });
    let gone = fixture.fs.getattr(fixture.ino);
    assert!(matches!(gone, Err(Error::Stale(_))), "{gone:?}");
    fixture.fs.unmount().unwrap();
    let pool = Pool::assemble(vec![fixture.device.clone() as Arc<dyn Device>]).unwrap();
    let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.data_blocks, 0);
}

#[test]
fn a_node_leaves_after_what_was_answered() {
    let fixture = Fixture::new();
    beside(&fixture, END, || fixture.fs.unmount().unwrap());
    let fs = fixture.other();
    let fh = fs.open(fixture.ino, 0).unwrap();
    let len = u32::try_from(LEN).unwrap();
    assert!(
        fs.read_reply(fh, ReadRange { offset: END, len, fill: false }, <[u8]>::to_vec).unwrap()
            == filled(2)[..]
    );
    fs.release(fh).unwrap();
    fs.unmount().unwrap();
    let pool = Pool::assemble(vec![fixture.device.clone() as Arc<dyn Device>]).unwrap();
    let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_node_that_withdraws_says_so_of_what_was_answered() {
    for at in [0, END] {
        let fixture = Fixture::new();
        let other = fixture.other();
        fixture.write(at, &filled(2), || fixture.fs.core().withdraw(&Error::NotPermitted));
        assert!(matches!(fixture.fs.fsync(fixture.fh, true), Err(Error::Withdrawn { .. })));
        assert!(fixture.fs.unmount().is_err());
        // A reader gets the old contents or the new ones.
        let fh = other.open(fixture.ino, 0).unwrap();
        let len = u32::try_from(LEN).unwrap();
        let read = other
            .read_reply(fh, ReadRange { offset: at, len, fill: false }, <[u8]>::to_vec)
            .unwrap();
        let old = if at == 0 { filled(1)[..].to_vec() } else { Vec::new() };
        assert!(read == old || read == filled(2)[..], "{at}");
        other.release(fh).unwrap();
        other.unmount().unwrap();
    }
}

/// What is wanted of a file whose writers never pause is waited for no longer than what had begun.
#[test]
fn who_waits_waits_for_no_later_write() {
    let fixture = Fixture::new();
    let behind = &fixture.fs.core().inflight;
    let old = behind.begin(fixture.ino, 0..1);
    std::thread::scope(|scope| {
        let waits = [scope.spawn(|| behind.wait_for(fixture.ino, &(0..10)))];
        assert!(wait(&waits));
        let _later = behind.begin(fixture.ino, 1..2);
        drop(old);
        let [waits] = waits;
        waits.join().unwrap();
    });
}

/// Calls a function while its write is under way, and keeps the note of it.
struct Keeps<F> {
    under_way: F,
    early: bool,
    kept: Vec<UnseenWrite>,
}
impl<F: FnMut()> EarlyReply for Keeps<F> {
    fn may(&mut self) -> bool {
        (self.under_way)();
        self.early
    }
    fn send(&mut self) {}
    fn unseen(&mut self, write: UnseenWrite) {
        self.kept.push(write);
    }
}

#[test]
fn a_page_that_waited_for_a_write_has_it_and_comes_back_as_a_whole() {
    for early in [true, false] {
        let fixture = Fixture::new();
        let data = filled(2);
        let page = |fill| {
            let range = ReadRange { offset: 0, len: 4096, fill };
            fixture.fs.read_reply(fixture.fh, range, <[u8]>::to_vec).unwrap()
        };
        let write_back = |page: &[u8]| {
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            fixture.fs.write(fixture.fh, 0, page, flags).unwrap();
        };
        let mut older = page(true);
        std::thread::scope(|scope| {
            let (mut fill, mut read) = (None, None);
            let under_way = || fill = Some(scope.spawn(|| page(true)));
            let mut keeps = Keeps { under_way, early, kept: Vec::new() };
            fixture.try_write(0, &data, WriteFlags::default(), &mut keeps).unwrap();
            let kept = std::mem::take(&mut keeps.kept);
            assert_eq!(kept.len(), 1);
            // A program that only reads takes no page.
            read.replace(page(false));
            let mut filled = fill.take().unwrap().join().unwrap();
            assert!(filled == data[..4096] && read == Some(filled.clone()));
            // What a program stores there because of what it saw is not older than the write.
            filled[7] = 9;
            write_back(&filled);
            assert_eq!(page(false)[7], 9, "a store is lost (early: {early})");
            drop(kept);
        });
        // Without a fill since, the page is older.
        let mut keeps = Keeps { under_way: || (), early, kept: Vec::new() };
        fixture.try_write(0, &filled(3), WriteFlags::default(), &mut keeps).unwrap();
        assert_eq!(page(false)[7], 3);
        older[7] = 8;
        write_back(&older);
        assert_eq!(page(false)[7], 3, "older bytes came back (early: {early})");
    }
}

#[test]
fn zeros_are_not_gone_over_by_an_older_page() {
    const PUNCH: i32 = 3;
    const ZERO: i32 = 0x10;
    for mode in [PUNCH, ZERO] {
        let fixture = Fixture::new();
        let page = |fill| {
            let range = ReadRange { offset: 0, len: 4096, fill };
            fixture.fs.read_reply(fixture.fh, range, <[u8]>::to_vec).unwrap()
        };
        let mut older = page(true);
        older[0] = 9;
        let mut keeps = Keeps { under_way: || (), early: false, kept: Vec::new() };
        fixture.fs.fallocate_beside_pages(fixture.fh, mode, 100, 50, &mut keeps).unwrap();
        assert_eq!(keeps.kept.len(), 1);
        let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
        fixture.fs.write(fixture.fh, 0, &older, flags).unwrap();
        let now = page(false);
        assert_eq!((now[0], now[99], now[150]), (9, 1, 1));
        assert!(now[100..150].iter().all(|b| *b == 0), "{mode}");
    }
}
