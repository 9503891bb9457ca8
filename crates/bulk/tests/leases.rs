//! Leases: what a mount keeps, and that it never tells what is old.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_bulk::link::{Buffer, Link};
use braid_bulk::remote::RemoteFs;
use braid_bulk::server::{References, Server, ServerOptions};
use braid_bulk::wire::{
    Begin, DATA_MAX, Hello, LeaseNote, MOUNT_VERSION, NEWEST_VERSION, Recalls, Reply, Request,
    Status,
};
use braid_format::InodeNo;
use braid_fs::{Attr, Cred, Errno, FileSystem, Fs, KernelCache, SetAttr, Write, WriteFlags};
use braid_testkit::wait_until;

use common::{Host, Proxy, client_options};

const O_RDWR: i32 = 2;
const ROOT: Cred = Cred { uid: 0, gid: 0, pid: 0, umask: 0 };
/// The longest that a client is waited for.
const BOUND: Duration = Duration::from_millis(2400);

fn mount(address: std::net::SocketAddr, keeps: bool) -> RemoteFs {
    let fs = RemoteFs::connect(client_options(address), &[], Arc::<References>::default(), keeps);
    let fs = fs.unwrap();
    if keeps {
        await_leases(&fs);
    }
    fs
}

/// A pool with two nodes. One of them serves two clients, of which both keep what they ask for.
struct TwoClients {
    host: Host,
    server: Server<Fs>,
    node: Fs,
    a: RemoteFs,
    b: RemoteFs,
    /// Between client `b` and the server.
    proxy: Proxy,
}

impl TwoClients {
    fn new(mib: u64) -> Self {
        let host = Host::new(mib);
        let server = host.serve();
        let node = host.second();
        let proxy = Proxy::to(server.address());
        let (a, b) = (mount(server.address(), true), mount(proxy.address, true));
        Self { host, server, node, a, b, proxy }
    }
    fn finish(self) {
        self.proxy.no_cut();
        [self.a, self.b].iter().for_each(|fs| fs.finish().unwrap());
        drop(self.server);
        self.node.unmount().unwrap();
        self.host.finish();
    }
}

/// Waits until what is asked for is kept.
fn await_leases(fs: &RemoteFs) {
    wait_until("leases are granted", || {
        fs.getattr(fs.root()).unwrap();
        !fs.attr_timeout().unwrap().is_zero()
    });
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn write(fs: &impl FileSystem, fh: u64, offset: u64, bytes: &[u8]) {
    let flags = WriteFlags::default();
    assert_eq!(fs.write(fh, Write { offset, bytes, flags }, &mut ()).unwrap(), bytes.len());
}

fn read(fs: &impl FileSystem, fh: u64, offset: u64, len: u32) -> Vec<u8> {
    fs.read_reply(fh, offset, len, false, <[u8]>::to_vec).unwrap()
}

/// What is looked up, and not referred to.
fn seen(fs: &impl FileSystem, dir: InodeNo, name: &[u8]) -> Result<Attr, Errno> {
    let found = fs.lookup(dir, name);
    if let Ok(attr) = &found {
        fs.forget(attr.ino).unwrap();
    }
    found
}

/// How many requests `work` sends.
fn requests(fs: &RemoteFs, work: impl FnOnce()) -> u64 {
    let before = fs.status().requests;
    work();
    fs.status().requests - before
}

#[test]
fn what_was_asked_once_is_no_second_request() {
    let host = Host::new(256);
    let server = host.serve();
    let fs = mount(server.address(), true);
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", 0o755, &ROOT).unwrap().ino;
    for n in 0..300 {
        let (_, fh) = fs.create(dir, format!("f{n}").as_bytes(), 0o600, O_RDWR, &ROOT).unwrap();
        fs.release(fh).unwrap();
    }
    let file = fs.lookup(dir, b"f7").unwrap();
    fs.setxattr(file.ino, b"user.a", b"value", 0).unwrap();
    let ask = || {
        assert_eq!(fs.lookup(root, b"dir").unwrap().ino, dir);
        assert_eq!(fs.lookup(dir, b"f7").unwrap().ino, file.ino);
        assert_eq!(fs.lookup(dir, b"no").unwrap_err(), Errno::NOENT);
        assert_eq!(fs.getattr(file.ino).unwrap().mode, 0o100_600);
        assert_eq!(fs.getxattr(file.ino, b"user.a").unwrap(), b"value");
        assert_eq!(fs.getxattr(file.ino, b"user.b").unwrap_err(), Errno::NODATA);
        assert_eq!(fs.listxattr(file.ino).unwrap(), b"user.a\0");
    };
    wait_until("it is kept", || {
        ask();
        requests(&fs, ask) == 0
    });
    // A listing tells of all that is in a directory.
    let list = || {
        let mut all = Vec::new();
        let mut emit = |entry: braid_fs::DirEntry<'_>| {
            all.extend(entry.attr.map(|attr| (entry.name.to_vec(), attr.ino)));
            false
        };
        fs.readdir(dir, 0, true, &mut emit).unwrap();
        all
    };
    let all = list();
    assert_eq!(all.len(), 300);
    wait_until("it is kept", || {
        list();
        requests(&fs, || {
            for (name, ino) in &all {
                assert_eq!(fs.lookup(dir, name).unwrap().ino, *ino);
                fs.getattr(*ino).unwrap();
            }
        }) == 0
    });
    // What this mount changes itself it knows.
    fs.setattr(file.ino, &mode(0o640), None).unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().mode, 0o100_640);
    fs.unlink(dir, b"f7").unwrap();
    assert_eq!(fs.lookup(dir, b"f7").unwrap_err(), Errno::NOENT);
    // One that keeps nothing asks each time.
    let plain = mount(server.address(), false);
    plain.getattr(root).unwrap();
    assert_eq!(requests(&plain, || assert!(plain.getattr(root).is_ok())), 1);
    assert!(plain.attr_timeout().unwrap().is_zero() && plain.status().leases == 0);
    plain.finish().unwrap();
    fs.finish().unwrap();
    wait_until("leases go with their client", || host.references().lease_counts().held == 0);
    drop(server);
    host.finish();
}

/// Every change by anybody is in everybody's next answer.
fn everybody_sees(clients: &[&RemoteFs], node: &Fs, rounds: u32) {
    let root = node.root();
    let dir = node.mkdir(root, b"dir", 0o755, &ROOT).unwrap().ino;
    let check = |name: &[u8], expected: Result<(u64, u32), Errno>, round: u32| {
        for (n, fs) in clients.iter().enumerate() {
            let found = seen(*fs, dir, name).map(|attr| (attr.size, attr.mode & 0o777));
            assert_eq!(found, expected, "{round}: client {n}: {}", name.escape_ascii());
        }
        let found = seen(node, dir, name).map(|attr| (attr.size, attr.mode & 0o777));
        assert_eq!(found, expected, "{round}: node");
    };
    let change =
        |round: u32, work: &dyn Fn(&dyn Changes)| match round as usize % (clients.len() + 1) {
            0 => work(node),
            n => work(clients[n - 1]),
        };
    for round in 0..rounds {
        check(b"a", Err(Errno::NOENT), round);
        change(round, &|fs| fs.make(dir, b"a", b"one"));
        check(b"a", Ok((3, 0o600)), round);
        change(round + 1, &|fs| fs.mode(dir, b"a", 0o640));
        check(b"a", Ok((3, 0o640)), round);
        change(round + 2, &|fs| fs.append(dir, b"a", b"two and three"));
        check(b"a", Ok((16, 0o640)), round);
        change(round / 2, &|fs| fs.renamed(dir, b"a", b"b"));
        check(b"a", Err(Errno::NOENT), round);
        check(b"b", Ok((16, 0o640)), round);
        change(round / 3, &|fs| fs.make(dir, b"c", b""));
        change(round, &|fs| fs.renamed(dir, b"c", b"b"));
        check(b"b", Ok((0, 0o600)), round);
        change(round + 1, &|fs| fs.gone(dir, b"b"));
        check(b"b", Err(Errno::NOENT), round);
    }
    node.rmdir(root, b"dir").unwrap();
    for fs in clients {
        assert_eq!(seen(*fs, root, b"dir").unwrap_err(), Errno::NOENT);
    }
}

/// Changes, by whatever file system.
trait Changes {
    fn make(&self, dir: InodeNo, name: &[u8], bytes: &[u8]);
    fn mode(&self, dir: InodeNo, name: &[u8], bits: u32);
    fn append(&self, dir: InodeNo, name: &[u8], bytes: &[u8]);
    fn renamed(&self, dir: InodeNo, name: &[u8], to: &[u8]);
    fn gone(&self, dir: InodeNo, name: &[u8]);
}

impl<F: FileSystem> Changes for F {
    fn make(&self, dir: InodeNo, name: &[u8], bytes: &[u8]) {
        let (attr, fh) = self.create(dir, name, 0o600, O_RDWR, &ROOT).unwrap();
        if !bytes.is_empty() {
            write(self, fh, 0, bytes);
        }
        self.release(fh).unwrap();
        self.forget(attr.ino).unwrap();
    }
    fn mode(&self, dir: InodeNo, name: &[u8], bits: u32) {
        let attr = self.lookup(dir, name).unwrap();
        self.setattr(attr.ino, &mode(bits), None).unwrap();
        self.forget(attr.ino).unwrap();
    }
    fn append(&self, dir: InodeNo, name: &[u8], bytes: &[u8]) {
        let attr = self.lookup(dir, name).unwrap();
        let fh = self.open(attr.ino, O_RDWR).unwrap();
        write(self, fh, attr.size, bytes);
        assert_eq!(read(self, fh, attr.size, 100), bytes);
        self.release(fh).unwrap();
        self.forget(attr.ino).unwrap();
    }
    fn renamed(&self, dir: InodeNo, name: &[u8], to: &[u8]) {
        self.rename((dir, name), (dir, to), 0).unwrap();
    }
    fn gone(&self, dir: InodeNo, name: &[u8]) {
        self.unlink(dir, name).unwrap();
    }
}

#[test]
fn what_a_node_or_another_client_changes_is_in_the_next_answer() {
    let fixture = TwoClients::new(256);
    let plain = mount(fixture.server.address(), false);
    everybody_sees(&[&fixture.a, &fixture.b, &plain], &fixture.node, 24);
    assert!(fixture.host.references().lease_counts().recalled > 100);
    plain.finish().unwrap();
    fixture.finish();
}

/// Ends a thread, when this is dropped.
struct Stops<'a>(&'a AtomicBool);
impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same while connections are cut all the time.
#[test]
fn cut_connections_leave_nothing_old() {
    let fixture = TwoClients::new(256);
    let TwoClients { node, a, b, proxy, .. } = &fixture;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            let mut n = 0_i64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                proxy.cut_after(usize::from(n % 2 == 0), n * 531 % 9000);
                std::thread::sleep(Duration::from_millis(50));
            }
            proxy.no_cut();
        });
        everybody_sees(&[b, a], node, 12);
    });
    fixture.finish();
}

/// A client that says what it likes.
struct Mute {
    link: Link,
    buffer: Buffer,
    sequence: u64,
}

impl Mute {
    fn new(server: &Server<Fs>, version: u32) -> Result<Self, Status> {
        let link = Link::new(TcpStream::connect(server.address()).unwrap()).unwrap();
        let mut mute = Self { link, buffer: Buffer::new(DATA_MAX), sequence: 0 };
        let (pool, client) = (b"test".to_vec(), b"mute".to_vec());
        let hello = Hello { version, begin: Begin::Session, slot: 0, pool, client };
        mute.ask(&Request::Hello(hello))?;
        mute.sequence = 0;
        Ok(mute)
    }
    fn ask(&mut self, request: &Request) -> Result<(LeaseNote, Vec<u8>), Status> {
        let (mut header, args) = request.encode();
        self.sequence += 1;
        header.sequence = self.sequence;
        self.link.send(header, &args, &[]).unwrap();
        let begun = Instant::now();
        let patience = || begun.elapsed() < Duration::from_secs(20);
        let received = self.link.receive(&mut self.buffer, patience).unwrap();
        let (note, args) = LeaseNote::split(&received.header, &received.args).unwrap();
        match received.header.status {
            0 => {
                Reply::decode(&received.header, args).unwrap();
                let len = usize::try_from(received.header.data_len).unwrap();
                Ok((note, self.buffer.take(len).to_vec()))
            }
            status => Err(Status(status)),
        }
    }
    fn recalls(&mut self, done: u64, patience_ms: u32) -> Recalls {
        let (_, data) = self.ask(&Request::Leases { done, patience_ms }).unwrap();
        Recalls::read(&data).unwrap()
    }
    fn gets(&mut self, ino: InodeNo) -> bool {
        self.ask(&Request::GetAttr { ino }).unwrap().0.granted
    }
}

#[test]
fn a_client_that_does_not_answer_holds_others_up_once_and_not_for_long() {
    let host = Host::new(256);
    let session_time = Duration::from_secs(30);
    let server = host.serve_with(ServerOptions { session_time, ..Host::options() });
    let node = host.second();
    let root = node.root();
    let file = node.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap().0;
    let mut mute = Mute::new(&server, MOUNT_VERSION).unwrap();
    assert!(!mute.gets(file.ino), "it has not asked for recalls");
    assert_eq!(mute.recalls(0, 0).term_ms, 2000);
    assert!(mute.gets(file.ino) && mute.gets(root));
    let begun = Instant::now();
    node.setattr(file.ino, &mode(0o640), None).unwrap();
    let first = begun.elapsed();
    assert!(first > BOUND / 2 && first < BOUND * 3, "{first:?}");
    assert_eq!(host.references().lease_counts().late, 1);
    // It has nothing any more.
    let begun = Instant::now();
    node.create(root, b"other", 0o600, O_RDWR, &ROOT).unwrap();
    assert!(begun.elapsed() < BOUND / 2, "{:?}", begun.elapsed());
    let told = mute.recalls(0, 0);
    assert!(told.all && told.term_ms == 0);
    mute.recalls(told.number, 0);
    assert!(!mute.gets(file.ino), "for a while it gets none");
    // Nor under another name for the same client.
    let mut again = Mute::new(&server, MOUNT_VERSION).unwrap();
    assert_eq!(again.recalls(0, 0).term_ms, 0);
    wait_until("it is forgiven", || mute.recalls(told.number, 0).term_ms == 2000);
    assert!(mute.gets(file.ino));
    // One that is gone without a word is waited for, too, and only once.
    drop(mute);
    let begun = Instant::now();
    node.setattr(file.ino, &mode(0o600), None).unwrap();
    assert!(begun.elapsed() < BOUND * 3, "{:?}", begun.elapsed());
    drop(again);
    drop(server);
    node.unmount().unwrap();
    host.finish();
}

#[test]
fn a_hostile_client_may_say_what_it_likes_of_leases() {
    let host = Host::new(256);
    let server = host.serve();
    let root = host.fs.root();
    let mut hostile = Mute::new(&server, MOUNT_VERSION).unwrap();
    for done in [0, 1, u64::MAX] {
        assert!(hostile.recalls(done, 0).inodes.is_empty());
    }
    let begun = Instant::now();
    hostile.recalls(u64::MAX, u32::MAX);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(hostile.gets(root));
    host.fs.setattr(root, &mode(0o700), None).unwrap();
    let told = hostile.recalls(0, 1000);
    assert_eq!((told.number, &told.inodes[..]), (1, &[root][..]));
    assert_eq!(hostile.recalls(0, 0), told, "told until it says that it is done");
    assert!(hostile.recalls(1, 0).inodes.is_empty());
    // An older client works, without leases; a newer one is told what is spoken here.
    let mut older = Mute::new(&server, 2).unwrap();
    assert!(!older.gets(root));
    let refused = older.ask(&Request::Leases { done: 0, patience_ms: 0 }).unwrap_err();
    assert_eq!(refused, Status::REQUEST);
    assert_eq!(Mute::new(&server, NEWEST_VERSION + 1).err(), Some(Status::VERSION));
    drop((hostile, older));
    drop(server);
    host.finish();
}

#[test]
fn a_server_that_is_gone_leaves_nothing_that_is_kept() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(proxy.address, true);
    let root = fs.root();
    assert_eq!(seen(&fs, root, b"file").unwrap_err(), Errno::NOENT);
    assert!(fs.status().leases > 0);
    proxy.close();
    let begun = Instant::now();
    wait_until("it is dropped", || fs.status().leases == 0);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(server);
    let server = host.serve();
    host.fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    proxy.open_to(server.address());
    seen(&fs, root, b"file").unwrap();
    await_leases(&fs);
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// All of an open file, in requests of `step` bytes.
fn read_through(fs: &impl FileSystem, fh: u64, step: u32) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = read(fs, fh, all.len() as u64, step);
        all.extend_from_slice(&bytes);
        if bytes.len() < step as usize {
            return all;
        }
    }
}

#[test]
fn contents_are_read_ahead_and_kept() {
    let host = Host::new(512);
    let server = host.serve();
    let node = host.second();
    let root = node.root();
    let fs = mount(server.address(), true);
    let bytes = common::noise(20 << 20, 3);
    let (attr, node_fh) = node.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    write(&node, node_fh, 0, &bytes);
    fs.lookup(root, b"file").unwrap();
    let fh = fs.open(attr.ino, 0).unwrap();
    let sent = requests(&fs, || assert!(read_through(&fs, fh, 64 << 10) == bytes));
    assert!(sent < 60, "{sent} requests for 320 reads");
    wait_until("all of it is kept", || {
        requests(&fs, || assert!(read_through(&fs, fh, 1 << 20) == bytes)) == 0
    });
    // Here and there it is asked for what is wanted.
    let direct = fs.open(attr.ino, 0o40_000).unwrap();
    assert_eq!(requests(&fs, || assert!(read(&fs, direct, 4096, 4096) == bytes[4096..8192])), 1);
    // A change by a node is in the next read.
    write(&node, node_fh, 5 << 20, b"other");
    assert_eq!(read(&fs, fh, 5 << 20, 5), b"other");
    assert!(read_through(&fs, fh, 1 << 20)[..5 << 20] == bytes[..5 << 20]);
    // A small file is read whole, and then kept.
    let (small, small_fh) = node.create(root, b"small", 0o600, O_RDWR, &ROOT).unwrap();
    write(&node, small_fh, 0, b"contents");
    fs.lookup(root, b"small").unwrap();
    let fh = fs.open(small.ino, 0).unwrap();
    wait_until("it is kept", || {
        requests(&fs, || assert_eq!(read_through(&fs, fh, 4096), b"contents")) == 0
    });
    write(&node, small_fh, 8, b" and more");
    assert_eq!(read_through(&fs, fh, 4096), b"contents and more");
    for fh in [node_fh, small_fh] {
        node.release(fh).unwrap();
    }
    fs.finish().unwrap();
    drop(server);
    node.unmount().unwrap();
    host.finish();
}

#[test]
fn whoever_writes_everybody_reads_it() {
    let fixture = TwoClients::new(512);
    let TwoClients { node, a, b, proxy, .. } = &fixture;
    let root = node.root();
    let ino = node.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap().0.ino;
    a.lookup(root, b"file").unwrap();
    b.lookup(root, b"file").unwrap();
    let at_node = node.open(ino, O_RDWR).unwrap();
    let (at_a, at_b) = (a.open(ino, O_RDWR).unwrap(), b.open(ino, O_RDWR).unwrap());
    let mut model: Vec<u8> = Vec::new();
    for round in 0..60_u64 {
        let random = |n: u64| u64::from(common::noise(8, round * 3 + n)[3]);
        let offset = random(0) * 20_000;
        let len = if random(1) % 3 == 0 { 300_000 } else { 5000 };
        let bytes = common::noise(len, round);
        let end = usize::try_from(offset).unwrap() + len;
        model.resize(model.len().max(end), 0);
        model[end - len..end].copy_from_slice(&bytes);
        match round % 4 {
            0 => write(node, at_node, offset, &bytes),
            1 => write(a, at_a, offset, &bytes),
            2 => write(b, at_b, offset, &bytes),
            _ => {
                write(b, at_b, offset, &bytes);
                let size = model.len() as u64 * 3 / 4;
                model.truncate(usize::try_from(size).unwrap());
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                a.setattr(ino, &set, None).unwrap();
            }
        }
        if round % 5 == 0 {
            proxy.cut_after(1, i64::try_from(random(2)).unwrap() * 10_000);
        }
        let step = if round % 2 == 0 { 1 << 20 } else { 100_000 };
        let readers: [(&str, Vec<u8>); 3] = [
            ("node", read_through(node, at_node, step)),
            ("a", read_through(a, at_a, step)),
            ("b", read_through(b, at_b, step)),
        ];
        for (who, found) in readers {
            assert_eq!(found.len(), model.len(), "{round}: {who}");
            let differs = found.iter().zip(&model).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{round}: {who}");
        }
    }
    node.release(at_node).unwrap();
    fixture.finish();
}

/// Readers run beside writers: whoever begins to read after a write has ended reads it, whatever overtakes what.
#[test]
fn readers_beside_writers_read_nothing_older_than_what_was_written_before() {
    let fixture = TwoClients::new(256);
    let TwoClients { node, a, b, .. } = &fixture;
    let root = node.root();
    let ino = node.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap().0.ino;
    let at_node = node.open(ino, O_RDWR).unwrap();
    write(node, at_node, 0, &[0; 8192]);
    for fs in [a, b] {
        fs.lookup(root, b"file").unwrap();
    }
    let (at_a, at_b) = (a.open(ino, O_RDWR).unwrap(), b.open(ino, O_RDWR).unwrap());
    let (written, owned, reads) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let sent = a.status().requests + b.status().requests;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for (fs, fh) in [(a, at_a), (a, at_a), (b, at_b), (b, at_b)] {
            let (stop, written, owned, reads) = (&stop, &written, &owned, &reads);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let (least, least_uid) =
                        (written.load(Ordering::SeqCst), owned.load(Ordering::SeqCst));
                    let block = read(fs, fh, 0, 4096);
                    let found = u64::from_le_bytes(block[4088..].try_into().unwrap());
                    assert!(found >= least, "{found} after {least}");
                    let found = u64::from(fs.getattr(ino).unwrap().uid);
                    assert!(found >= least_uid, "{found} after {least_uid}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (begun, mut n) = (Instant::now(), 0_u32);
        while begun.elapsed() < Duration::from_secs(4) {
            n += 1;
            let mut block = [7; 4096];
            block[4088..].copy_from_slice(&u64::from(n).to_le_bytes());
            let set = SetAttr { uid: Some(n), ..SetAttr::default() };
            match n % 3 {
                0 => write(node, at_node, 0, &block),
                1 => write(a, at_a, 0, &block),
                _ => write(b, at_b, 0, &block),
            }
            written.store(n.into(), Ordering::SeqCst);
            match n / 3 % 2 {
                0 => drop(node.setattr(ino, &set, None).unwrap()),
                _ => drop(b.setattr(ino, &set, None).unwrap()),
            }
            owned.store(n.into(), Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(u64::from(n % 4) * 3));
        }
        assert!(n > 50, "{n} changes");
    });
    let (sent, reads) = (a.status().requests + b.status().requests - sent, reads.into_inner());
    assert!(sent < reads, "{sent} requests for {reads} reads: nothing is kept");
    node.release(at_node).unwrap();
    fixture.finish();
}

#[test]
fn a_node_that_may_not_act_answers_nothing_and_lets_nobody_keep_anything() {
    let host = Host::new(256);
    let server = host.serve();
    let fs = mount(server.address(), true);
    let root = fs.root();
    seen(&fs, root, b"file").unwrap_err();
    host.references().suspend(false, Duration::from_secs(2), Duration::from_secs(1));
    wait_until("it is dropped", || fs.status().leases == 0);
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs.getattr(root).unwrap();
            answered.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!answered.load(Ordering::SeqCst));
        host.references().resume();
    });
    await_leases(&fs);
    fs.finish().unwrap();
    drop(server);
    host.finish();
}
