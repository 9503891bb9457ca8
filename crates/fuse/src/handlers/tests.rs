//! Messages of every kind, whole and mangled: nothing panics, and every request gets exactly one
//! answer.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::{Bytes, InodeNo};
use braid_fs::{
    Answer, Attr, Cred, DirEntry, Durable, EarlyReply, Errno, Fh, FileSystem, LockAnswer, Plock,
    SetAttr, StatFs, Time, Write,
};
use zerocopy::{FromBytes, IntoBytes};

use super::Server;
use crate::abi::{self, InHeader, LkIn, OutHeader, WriteIn, op};
use crate::caches::notify::KernelLink;
use crate::terms::Terms;
use crate::transport::reply::{Device, Way};

/// Says yes and no in turn. Keeps what the last write was to make durable.
#[derive(Debug, Default)]
struct Moody(AtomicU64, parking_lot::Mutex<Durable>, Arc<Waiters>);

/// The owner whose locks have to be waited for.
const WAITS: u64 = 0x77;

#[derive(Default)]
struct Waiters(parking_lot::Mutex<Vec<Option<LockAnswer>>>);
impl std::fmt::Debug for Waiters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiters")
    }
}

impl Moody {
    fn mood<T>(&self, value: T) -> Answer<T> {
        let turn = self.0.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(3) { Err(Errno::NOENT) } else { Ok(value) }
    }
    fn attr(&self) -> Answer<Attr> {
        let time = Time { sec: i64::MIN, nsec: u32::MAX };
        self.mood(Attr {
            ino: InodeNo(self.0.load(Ordering::Relaxed) % 7),
            generation: 1,
            size: u64::MAX,
            blocks512: u64::MAX,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            mode: u32::MAX,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: u64::MAX,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl FileSystem for Moody {
    fn root(&self) -> InodeNo {
        InodeNo(5)
    }
    fn lookup(&self, _: InodeNo, _: &[u8]) -> Answer<Attr> {
        self.attr()
    }
    fn lookup_number(&self, _: InodeNo) -> Answer<Attr> {
        self.attr()
    }
    fn forget(&self, _: InodeNo) -> Answer<()> {
        self.mood(())
    }
    fn getattr(&self, _: InodeNo) -> Answer<Attr> {
        self.attr()
    }
    fn setattr(&self, _: InodeNo, _: &SetAttr, _: Option<Fh>) -> Answer<Attr> {
        self.attr()
    }
    fn mknod(&self, _: InodeNo, _: &[u8], _: u32, _: u64, _: &Cred) -> Answer<Attr> {
        self.attr()
    }
    fn mkdir(&self, _: InodeNo, _: &[u8], _: u32, _: &Cred) -> Answer<Attr> {
        self.attr()
    }
    fn symlink(&self, _: InodeNo, _: &[u8], _: &[u8], _: &Cred) -> Answer<Attr> {
        self.attr()
    }
    fn readlink(&self, _: InodeNo) -> Answer<Vec<u8>> {
        self.mood(b"target".to_vec())
    }
    fn link(&self, _: InodeNo, _: InodeNo, _: &[u8]) -> Answer<Attr> {
        self.attr()
    }
    fn unlink(&self, _: InodeNo, _: &[u8]) -> Answer<()> {
        self.mood(())
    }
    fn rmdir(&self, _: InodeNo, _: &[u8]) -> Answer<()> {
        self.mood(())
    }
    fn rename(&self, _: (InodeNo, &[u8]), _: (InodeNo, &[u8]), _: u32) -> Answer<()> {
        self.mood(())
    }
    fn readdir(
        &self,
        _: InodeNo,
        _: u64,
        _: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        for next in 1..100 {
            let attr = self.attr().ok();
            if emit(DirEntry { ino: InodeNo(next), next, kind: 8, name: &[b'n'; 99], attr }) {
                break;
            }
        }
        self.mood(())
    }
    fn create(&self, _: InodeNo, _: &[u8], _: u32, _: i32, _: &Cred) -> Answer<(Attr, Fh)> {
        self.attr().map(|a| (a, u64::MAX))
    }
    fn tmpfile(&self, _: InodeNo, _: u32, _: i32, _: &Cred) -> Answer<(Attr, Fh)> {
        self.attr().map(|a| (a, 0))
    }
    fn open(&self, _: InodeNo, _: i32) -> Answer<Fh> {
        self.mood(3)
    }
    fn release(&self, _: Fh) -> Answer<()> {
        self.mood(())
    }
    fn flush(&self, _: Fh, _: u64) -> Answer<()> {
        self.mood(())
    }
    fn fsync(&self, _: Fh, _: bool) -> Answer<()> {
        self.mood(())
    }
    fn fsync_dir(&self, _: InodeNo) -> Answer<()> {
        self.mood(())
    }
    fn sync(&self) -> Answer<()> {
        self.mood(())
    }
    fn read_reply<R>(
        &self,
        _: Fh,
        _: u64,
        len: u32,
        _: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        self.mood(())?;
        Ok(reply(&vec![0; len.min(5000) as usize]))
    }
    type Hold = ();
    fn read_into(
        &self,
        _: Fh,
        _: u64,
        len: u32,
        _: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, ())> {
        let n = len.min(5000) as usize;
        memory[..n].fill(7);
        self.mood((n, ()))
    }
    fn write(&self, _: Fh, what: Write<'_>, reply: &mut dyn EarlyReply) -> Answer<usize> {
        *self.1.lock() = what.flags.durable;
        // Half of them are answered first, and nobody waits for what becomes of them later.
        if what.bytes.len().is_multiple_of(2) && reply.may() {
            reply.send();
        }
        self.mood(what.bytes.len())
    }
    fn fallocate(&self, _: Fh, _: i32, _: u64, _: u64, _: &mut dyn EarlyReply) -> Answer<()> {
        self.mood(())
    }
    fn lseek(&self, _: Fh, offset: u64, _: i32) -> Answer<u64> {
        self.mood(offset)
    }
    fn copy_file_range(
        &self,
        _: (Fh, u64),
        _: (Fh, u64),
        len: u64,
        _: &mut dyn EarlyReply,
    ) -> Answer<u64> {
        self.mood(len)
    }
    fn getxattr(&self, _: InodeNo, _: &[u8]) -> Answer<Vec<u8>> {
        self.mood(vec![1; 70])
    }
    fn setxattr(&self, _: InodeNo, _: &[u8], _: &[u8], _: i32) -> Answer<()> {
        self.mood(())
    }
    fn listxattr(&self, _: InodeNo) -> Answer<Vec<u8>> {
        self.mood(vec![1; 70])
    }
    fn removexattr(&self, _: InodeNo, _: &[u8]) -> Answer<()> {
        self.mood(())
    }
    fn statfs(&self) -> Answer<StatFs> {
        self.mood(StatFs {
            block_size: 1,
            blocks: u64::MAX,
            free: 0,
            available: 0,
            files: 0,
            files_free: 0,
            name_max: 255,
        })
    }
    fn getlk(&self, _: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        self.mood(Some(*lock))
    }
    fn setlk(&self, _: InodeNo, _: &Plock) -> Answer<()> {
        self.mood(())
    }
    fn flock(&self, _: InodeNo, _: &Plock) -> Answer<()> {
        self.mood(())
    }
    type Wait = usize;
    fn lock_later(
        &self,
        _: InodeNo,
        lock: &Plock,
        _: bool,
        done: LockAnswer,
    ) -> Answer<Option<usize>> {
        if lock.owner != WAITS {
            return self.mood(None);
        }
        let mut waits = self.2.0.lock();
        waits.push(Some(done));
        Ok(Some(waits.len() - 1))
    }
    fn end_lock_wait(&self, wait: usize) {
        let done = self.2.0.lock()[wait].take();
        if let Some(done) = done {
            done(Err(Errno::INTR));
        }
    }
}

/// The other end plays the kernel.
struct Fixture {
    server: Server<Moody>,
    device: Device,
    kernel: UnixDatagram,
    scratch: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let terms = Terms {
            minor: 45,
            flags: 0,
            max_write: Bytes::MIB,
            cache_attributes: true,
            cache_names: true,
            cache_data: true,
            keep_pages: true,
        };
        let device: Device = Arc::new(OwnedFd::from(ours));
        let link = KernelLink::new();
        let server = Server::new(Moody::default(), link, terms, 16);
        Self { server, device, kernel, scratch: Vec::new() }
    }
    /// Sends a message; returns the answers.
    fn ask(&mut self, message: &[u8]) -> Vec<(OutHeader, usize)> {
        self.server.answer(Way::Device(&self.device), message, &mut self.scratch);
        let mut buf = vec![0; 1 << 17];
        let mut answers = Vec::new();
        while let Ok(len) = self.kernel.recv(&mut buf) {
            let header = OutHeader::read_from_prefix(&buf[..len]).unwrap().0;
            // Not the notifications.
            if header.unique != 0 {
                answers.push((header, len));
            }
        }
        answers
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> usize {
        usize::try_from(self.next() % n).unwrap()
    }
}

fn message(opcode: u32, unique: u64, nodeid: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(size_of::<InHeader>() + body.len()).unwrap();
    let header = InHeader { len, opcode, unique, nodeid, ..InHeader::default() };
    [header.as_bytes(), body].concat()
}

/// Requests that get no answer.
const SILENT: [u32; 4] = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::NOTIFY_REPLY];

#[test]
fn every_request_gets_one_answer_whatever_it_holds() {
    let mut fixture = Fixture::new();
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut late = Vec::new();
    for unique in 1..60_000_u64 {
        let opcode = u32::try_from(random.below(60)).unwrap();
        let len = random.below(160);
        let mut body: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[4]).collect();
        // Often mostly zeroes, so that names end and numbers are small.
        for byte in &mut body {
            if random.below(3) > 0 {
                *byte = 0;
            }
        }
        let nodeid = [1, 5, 0, random.next()][random.below(4)];
        let mut answers = fixture.ask(&message(opcode, unique, nodeid, &body));
        answers.retain(|(header, _)| {
            let own = header.unique == unique;
            if !own {
                late.retain(|l| *l != header.unique);
            }
            own
        });
        if SILENT.contains(&opcode) {
            assert!(answers.is_empty(), "opcode {opcode}");
            continue;
        }
        if answers.is_empty() && opcode == op::WRITE {
            // The file has pages: another thread answers.
            late.push(unique);
            continue;
        }
        assert_eq!(answers.len(), 1, "opcode {opcode}, {len} bytes");
        let (header, len) = answers[0];
        assert_eq!(header.len as usize, len, "opcode {opcode}");
        assert_eq!(header.unique, unique);
        assert!((-4095..=0).contains(&header.error), "{}", header.error);
        assert!(header.error == 0 || len == 16);
    }
    let start = std::time::Instant::now();
    while !late.is_empty() && start.elapsed() < std::time::Duration::from_mins(1) {
        for (header, _) in fixture.ask(&[]) {
            late.retain(|l| *l != header.unique);
        }
    }
    assert_eq!(late, [] as [u64; 0]);
    fixture.server.close();
}

#[test]
fn mangled_headers_are_dropped() {
    let mut fixture = Fixture::new();
    let mut random = Random(99);
    let whole = message(op::GETATTR, 7, 1, &[0; 16]);
    for len in 0..whole.len() {
        assert!(fixture.ask(&whole[..len]).is_empty());
    }
    for _ in 0..20_000 {
        let mut message = whole.clone();
        let at = random.below(whole.len() as u64);
        message[at] ^= 1 << random.below(8);
        fixture.ask(&message);
    }
}

#[test]
fn a_write_that_lies_about_its_length_is_refused() {
    let mut fixture = Fixture::new();
    for size in [9, 4096, u32::MAX] {
        let head = WriteIn { size, ..WriteIn::default() };
        let body = [head.as_bytes(), &b"8 bytes."[..]].concat();
        let answers = fixture.ask(&message(op::WRITE, 3, 5, &body));
        assert_eq!(answers[0].0.error, -Errno::IO.raw_os_error());
    }
}

#[test]
fn a_write_says_what_is_to_be_durable() {
    let mut fixture = Fixture::new();
    let (data, all) = (libc::O_DSYNC.cast_unsigned(), libc::O_SYNC.cast_unsigned());
    for (flags, write_flags, durable) in [
        (0, 0, Durable::Nothing),
        (data, 0, Durable::Contents),
        (all, 0, Durable::All),
        (all, crate::abi::write::CACHE, Durable::Nothing),
    ] {
        let head = WriteIn { size: 8, flags, write_flags, ..WriteIn::default() };
        fixture.ask(&message(op::WRITE, 3, 5, &[head.as_bytes(), &b"8 bytes."[..]].concat()));
        assert_eq!(*fixture.server.files.1.lock(), durable);
    }
}

#[test]
fn unknown_requests_are_not_implemented() {
    let mut fixture = Fixture::new();
    for opcode in [op::ACCESS, 37, 40, 54, 4096, u32::MAX] {
        let answers = fixture.ask(&message(opcode, 3, 5, &[0; 64]));
        assert_eq!(answers[0].0.error, -Errno::NOSYS.raw_os_error(), "{opcode}");
    }
}

/// FITRIM with other sizes than its own, of a caller who may not, and of one who may.
#[test]
fn of_ioctls_there_is_one_and_for_root() {
    let ioctl = |cmd, size| {
        let what = abi::IoctlIn { cmd, in_size: size, out_size: size, ..abi::IoctlIn::default() };
        [what.as_bytes(), &[0; 24]].concat()
    };
    let mut fixture = Fixture::new();
    let mut ask = |uid: u32, pid: u32, body: &[u8]| {
        let mut asked = message(op::IOCTL, 3, 1, body);
        let header = InHeader {
            len: u32::try_from(asked.len()).unwrap(),
            opcode: op::IOCTL,
            unique: 3,
            nodeid: 1,
            uid,
            pid,
            ..InHeader::default()
        };
        asked[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        fixture.ask(&asked)[0]
    };
    let me = std::process::id();
    for (cmd, size) in [(abi::FITRIM, 16), (abi::FITRIM, 0), (0x8008_6601, 24), (0, 24)] {
        assert_eq!(ask(0, me, &ioctl(cmd, size)).0.error, -Errno::NOTTY.raw_os_error());
    }
    for (uid, pid) in [(1000, me), (0, 0), (0, u32::MAX)] {
        let answer = ask(uid, pid, &ioctl(abi::FITRIM, 24)).0;
        assert_eq!(answer.error, -Errno::PERM.raw_os_error(), "{uid} {pid}");
    }
    // What stands behind it is none of this test's: as of a file system that knows no such thing.
    let answer = ask(0, me, &ioctl(abi::FITRIM, 24)).0;
    let (may, not) = (Errno::NOTTY.raw_os_error(), Errno::PERM.raw_os_error());
    assert!([-may, -not].contains(&answer.error), "{}", answer.error);
}

fn lock_request(unique: u64, owner: u64) -> Vec<u8> {
    let mut lock = LkIn { owner, ..LkIn::default() };
    lock.lk.kind = libc::F_WRLCK.try_into().unwrap();
    message(op::SETLKW, unique, 5, lock.as_bytes())
}

#[test]
fn waits_for_locks_are_answered_once_by_whoever_ends_them() {
    let mut fixture = Fixture::new();
    let waiters = Arc::clone(&fixture.server.files.2);
    for unique in 0..2_000_u64 {
        assert!(fixture.ask(&lock_request(2 * unique, WAITS)).is_empty(), "no thread is kept");
    }
    assert_eq!(fixture.server.waits.all().len(), 2_000);
    // A signal, before and after the request it is for.
    let interrupt = |unique: u64| message(op::INTERRUPT, unique | 1, 0, unique.as_bytes());
    let code = |errno: Errno| -errno.raw_os_error();
    let answers = fixture.ask(&interrupt(40));
    assert_eq!(
        answers.iter().map(|a| (a.0.unique, a.0.error)).collect::<Vec<_>>(),
        [(40, code(Errno::INTR))]
    );
    assert!(fixture.ask(&interrupt(40)).is_empty(), "answered twice");
    assert!(fixture.ask(&interrupt(9_000)).is_empty());
    let answers = fixture.ask(&lock_request(9_000, WAITS));
    assert_eq!(
        answers.iter().map(|a| (a.0.unique, a.0.error)).collect::<Vec<_>>(),
        [(9_000, code(Errno::INTR))]
    );
    // A grant.
    let done = waiters.0.lock()[3].take().unwrap();
    done(Ok(()));
    let mut buf = [0; 64];
    let len = fixture.kernel.recv(&mut buf).unwrap();
    let header = OutHeader::read_from_prefix(&buf[..len]).unwrap().0;
    assert_eq!((header.unique, header.error, len), (6, 0, size_of::<OutHeader>()));
    assert!(fixture.ask(&interrupt(6)).is_empty(), "a granted lock is not interrupted");
    // The end of the mount.
    let reader = fixture.kernel.try_clone().unwrap();
    reader.set_nonblocking(false).unwrap();
    let count = std::thread::spawn(move || {
        (0..1_998).for_each(|_| assert!(reader.recv(&mut [0; 64]).is_ok()));
    });
    fixture.server.close();
    count.join().unwrap();
    assert!(fixture.server.waits.all().is_empty() && waiters.0.lock().iter().all(Option::is_none));
}
