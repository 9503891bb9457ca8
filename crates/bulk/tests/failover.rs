//! Several servers of a pool: a client goes on with another one when nothing of the former can happen any more, and not
//! before.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::copy::{CopyOptions, Upload, upload};
use braid_bulk::error::Error;
use braid_bulk::link::{Buffer, Link};
use braid_bulk::remote::RemoteFs;
use braid_bulk::server::{References, Server, ServerOptions};
use braid_bulk::wire::{
    Begin, Hello, NEWEST_VERSION, Reply, Request, ServerLife, Status, VERSION, Welcome,
};
use braid_format::InodeNo;
use braid_format::lock_record::Life;
use braid_fs::{Cred, Errno, FileSystem, Fs, Plock, PlockKind, SetAttr, Write, WriteFlags};
use braid_testkit::wait_until;

use common::{Host, Proxy, client_options, noise};

const O_RDWR: i32 = 2;
const O_TRUNC: i32 = 0o1000;
const ROOT: Cred = Cred { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Served until it leaves the pool.
struct Node {
    host: Host,
    server: Server<Fs>,
}

impl Node {
    fn of(host: Host) -> Self {
        Self::with_grace(host, Host::options().grace)
    }
    /// One that gives locks to those who had them for so long.
    fn with_grace(host: Host, grace: Duration) -> Self {
        let session_time = Duration::from_secs(20);
        let server = host.serve_with(ServerOptions { session_time, grace, ..Host::options() });
        Self { host, server }
    }
    fn clients(&self) -> usize {
        self.server.observer().clients().len()
    }
    /// It is over.
    fn leave(self) {
        drop(self.server);
        self.host.leave();
    }
    /// As the last one.
    fn finish(self) {
        drop(self.server);
        self.host.finish();
    }
}

fn nodes() -> [Node; 2] {
    let first = Host::new(256);
    let second = first.beside();
    [Node::of(first), Node::of(second)]
}

fn of_servers(servers: &[SocketAddr]) -> ClientOptions {
    let servers = servers.iter().map(ToString::to_string).collect();
    ClientOptions { servers, ..client_options(SocketAddr::from(([127, 0, 0, 1], 1))) }
}

fn mount(servers: &[SocketAddr]) -> RemoteFs {
    RemoteFs::connect(of_servers(servers), &[], Arc::<References>::default(), true).unwrap()
}

fn write(fs: &RemoteFs, fh: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    fs.write(fh, Write { offset, bytes, flags: WriteFlags::default() }, &mut ())
}

fn read(fs: &impl FileSystem, fh: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = vec![0; len];
    let (n, _) = fs.read_into(fh, 0, u32::try_from(len).unwrap(), false, &mut memory)?;
    memory.truncate(n);
    Ok(memory)
}

/// What a file in the root directory holds.
fn contents(fs: &RemoteFs, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let attr = fs.lookup(fs.root(), name)?;
    let fh = fs.open(attr.ino, 0)?;
    let found = read(fs, fh, 1 << 20);
    fs.release(fh)?;
    found
}

fn lock(kind: PlockKind) -> Plock {
    Plock { start: 0, end: u64::MAX, kind, owner: 1, pid: 7, uid: 0 }
}

/// The first server lives and is cut off: no other one does anything for its client, which goes back. When the server
/// has left the pool, the client goes on with the other: what was written is there, what was locked is lost.
#[test]
fn a_client_goes_on_elsewhere_only_when_its_server_is_over() {
    let [first, second] = nodes();
    let proxy = Proxy::to(first.server.address());
    let fs = mount(&[proxy.address, second.server.address()]);
    assert_eq!(fs.status().server, proxy.address.to_string());
    let root = fs.root();
    let make = |name: &[u8]| fs.create(root, name, 0o600, O_RDWR, &ROOT).unwrap();
    let (_, fh) = make(b"file");
    let (locked, locked_fh) = make(b"locked");
    let (_, removed) = make(b"removed");
    fs.unlink(root, b"removed").unwrap();
    for fh in [fh, locked_fh] {
        write(&fs, fh, 0, b"old").unwrap();
        fs.fsync(fh, false).unwrap();
    }
    fs.flock(locked.ino, &lock(PlockKind::Exclusive)).unwrap();
    // A request is under way, and the way is cut.
    proxy.lose_replies();
    let there = fs.clone();
    let writes = std::thread::spawn(move || write(&there, fh, 0, b"new"));
    let arrived = || {
        let attr = first.host.fs.lookup(root, b"file").unwrap();
        let fh = FileSystem::open(&first.host.fs, attr.ino, 0).unwrap();
        let found = read(&first.host.fs, fh, 9).unwrap();
        FileSystem::release(&first.host.fs, fh).unwrap();
        first.host.fs.forget(attr.ino).unwrap();
        found == b"new"
    };
    wait_until("it is done", arrived);
    proxy.close();
    wait_until("that is noticed", || !fs.status().is_connected);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!writes.is_finished(), "nobody may have answered it");
    assert_eq!((second.clients(), fs.status().moves), (0, 0));
    proxy.no_cut();
    proxy.open_to(first.server.address());
    assert_eq!(writes.join().unwrap(), Ok(3));
    // It is the former session, with all that it had.
    assert_eq!(read(&fs, removed, 9), Ok(vec![]));
    write(&fs, locked_fh, 0, b"new").unwrap();
    fs.fsync(locked_fh, false).unwrap();
    assert_eq!((second.clients(), fs.status().moves), (0, 0));
    // From now on it is over; what was not durable is written once more.
    fs.flock(locked.ino, &lock(PlockKind::Unlock)).unwrap();
    write(&fs, fh, 3, b"er").unwrap();
    proxy.close();
    first.leave();
    wait_until("the other server is used", || fs.status().moves == 1);
    assert_eq!(fs.status().server, second.server.address().to_string());
    assert_eq!(read(&fs, removed, 9), Err(Errno::STALE));
    fs.release(removed).unwrap();
    assert_eq!(contents(&fs, b"locked"), Ok(b"new".to_vec()));
    assert_eq!(read(&fs, fh, 9), Ok(b"newer".to_vec()));
    fs.fsync(fh, false).unwrap();
    fs.finish().ok();
    second.finish();
}

/// Program locks are not taken again elsewhere, since others may have had them; and what was not durable then is told
/// to be lost.
#[test]
fn locks_are_lost_at_another_server() {
    let first = Node::of(Host::new(256));
    // It would take the client's word for them.
    let second = Node::with_grace(first.host.beside(), Duration::from_mins(1));
    let (one, two) = (first.server.address(), second.server.address());
    let fs = mount(&[one, two]);
    let root = fs.root();
    let (locked, locked_fh) = fs.create(root, b"locked", 0o600, O_RDWR, &ROOT).unwrap();
    let (_, fh) = fs.create(root, b"data", 0o600, O_RDWR, &ROOT).unwrap();
    fs.flock(locked.ino, &lock(PlockKind::Exclusive)).unwrap();
    for (fh, bytes) in [(fh, &b"1"[..]), (locked_fh, b"2")] {
        write(&fs, fh, 0, bytes).unwrap();
        fs.fsync(fh, false).unwrap();
    }
    write(&fs, fh, 0, b"3").unwrap();
    first.leave();
    wait_until("the other server is used", || fs.status().moves == 1);
    assert_eq!(read(&fs, locked_fh, 9), Err(Errno::IO));
    assert_eq!(fs.fsync(fh, false), Err(Errno::IO), "it is not said that something may be lost");
    assert_eq!(fs.fsync(fh, false), Ok(()));
    // Whoever wants it gets it; the file can be used again once it was closed.
    let attr = second.host.fs.lookup(root, b"locked").unwrap();
    FileSystem::flock(&second.host.fs, attr.ino, &lock(PlockKind::Exclusive)).unwrap();
    FileSystem::flock(&second.host.fs, attr.ino, &lock(PlockKind::Unlock)).unwrap();
    second.host.fs.forget(attr.ino).unwrap();
    fs.release(locked_fh).unwrap();
    fs.release(fh).unwrap();
    assert_eq!(contents(&fs, b"locked"), Ok(b"2".to_vec()));
    fs.finish().ok();
    second.finish();
}

/// Makes a file durable under a temporary name, gives it its name, removes others: what is acknowledged.
fn work(fs: &RemoteFs, round: usize) {
    let root = fs.root();
    let text = format!("text of {round}").into_bytes();
    let (_, fh) = fs.create(root, b"temporary", 0o600, O_RDWR | O_TRUNC, &ROOT).unwrap();
    write(fs, fh, 0, &text).unwrap();
    fs.fsync(fh, false).unwrap();
    let name = format!("file{}", round % 3).into_bytes();
    fs.rename((root, b"temporary"), (root, &name), 0).unwrap();
    assert_eq!(contents(fs, &name), Ok(text.clone()), "{round}");
    write(fs, fh, 0, b"TEXT").unwrap();
    assert_eq!(read(fs, fh, 4), Ok(b"TEXT".to_vec()), "{round}");
    fs.release(fh).unwrap();
    let (_, fh) = fs.create(root, b"removed", 0o600, O_RDWR, &ROOT).unwrap();
    fs.release(fh).unwrap();
    fs.unlink(root, b"removed").unwrap();
    assert_eq!(fs.lookup(root, b"removed").err(), Some(Errno::NOENT), "{round}");
    let attr = fs.lookup(root, &name).unwrap();
    let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    assert_eq!(fs.setattr(attr.ino, &set, None).unwrap().mode, 0o100_640, "{round}");
}

/// The connections break after any number of bytes in either direction, and the server is over: the program sees
/// nothing of it.
#[test]
fn a_server_that_is_over_at_any_byte_takes_nothing_along() {
    let [mut used, mut other] = nodes();
    let proxies = [Proxy::to(used.server.address()), Proxy::to(other.server.address())];
    let fs = mount(&[proxies[0].address, proxies[1].address]);
    let mut cuts = 0;
    for round in 0..24 {
        let proxy = &proxies[round % 2];
        let bytes = i64::try_from(round / 2 * 127).unwrap();
        proxy.close_after(usize::from(round % 4 < 2), bytes);
        let there = fs.clone();
        let works = std::thread::spawn(move || work(&there, round));
        let is_cut = || proxy.has_cut(0) && proxy.has_cut(1);
        wait_until("it is cut, or done", || is_cut() || works.is_finished());
        cuts += u32::from(!works.is_finished());
        proxy.close();
        used.leave();
        works.join().unwrap();
        let moves = round as u64 + 1;
        wait_until("the other server is used", || fs.status().moves == moves);
        assert_eq!(contents(&fs, format!("file{}", round % 3).as_bytes()).unwrap()[..4], *b"TEXT");
        let again = Node::of(other.host.beside());
        proxy.no_cut();
        proxy.open_to(again.server.address());
        used = std::mem::replace(&mut other, again);
    }
    assert!(cuts > 12, "{cuts} rounds were cut in the middle");
    fs.finish().ok();
    other.leave();
    used.finish();
}

/// As a host that is cut off: its connections stay as they are, and nothing comes by them. Whoever waits for an answer
/// gets it from the other server.
#[test]
fn a_server_that_is_over_without_a_word_keeps_nobody_waiting() {
    let [first, second] = nodes();
    let proxy = Proxy::to(first.server.address());
    let fs = mount(&[proxy.address, second.server.address()]);
    let (_, fh) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    proxy.silence();
    let there = fs.clone();
    let writes = std::thread::spawn(move || {
        write(&there, fh, 0, b"text").unwrap();
        there.fsync(fh, false).unwrap();
    });
    wait_until("it is noticed", || !fs.status().is_connected);
    assert!(!writes.is_finished() && fs.status().moves == 0);
    first.leave();
    let begun = Instant::now();
    writes.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((fs.status().moves, contents(&fs, b"file")), (1, Ok(b"text".to_vec())));
    proxy.close();
    fs.finish().ok();
    second.finish();
}

/// The address leads to another server for a while, which does not know the session and may not begin one: it is the
/// same session afterwards, with its locks and its open files, and what was under way is done once.
#[test]
fn a_session_that_is_found_again_is_the_same() {
    let [first, second] = nodes();
    let proxy = Proxy::to(first.server.address());
    let fs = mount(&[proxy.address, second.server.address()]);
    let root = fs.root();
    let (file, fh) = fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    let (_, removed) = fs.create(root, b"removed", 0o600, O_RDWR, &ROOT).unwrap();
    fs.unlink(root, b"removed").unwrap();
    fs.flock(file.ino, &lock(PlockKind::Exclusive)).unwrap();
    write(&fs, fh, 0, b"text").unwrap();
    let number = first.server.observer().clients()[0].number;
    for _ in 0..2 {
        proxy.close();
        proxy.open_to(second.server.address());
        wait_until("that is noticed", || !fs.status().is_connected);
        std::thread::sleep(Duration::from_millis(500));
        proxy.close();
        proxy.open_to(first.server.address());
        write(&fs, fh, 4, b"more").unwrap();
        fs.fsync(fh, false).unwrap();
        let clients = first.server.observer().clients();
        assert_eq!((clients.len(), clients[0].number, clients[0].locks), (1, number, 1));
    }
    assert_eq!(read(&fs, removed, 9), Ok(vec![]), "it was another session");
    assert_eq!(read(&fs, fh, 9), Ok(b"textmore".to_vec()));
    assert_eq!((fs.status().moves, second.clients()), (0, 0));
    fs.finish().ok();
    second.leave();
    first.finish();
}

/// Something else answers at the server's address, and refuses: that is no answer of the server. What was written is
/// kept, and brought to the other one. If all refuse, it is said.
#[test]
fn a_refusal_at_the_address_of_a_server_that_is_over_loses_nothing() {
    let [first, second] = nodes();
    let other = Host::new(64);
    let foreign = other.serve_with(ServerOptions::new("other"));
    let proxies = [Proxy::to(first.server.address()), Proxy::to(second.server.address())];
    let fs = mount(&[proxies[0].address, proxies[1].address]);
    let (_, fh) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    fs.fsync(fh, false).unwrap();
    write(&fs, fh, 0, b"text").unwrap();
    proxies[0].close();
    proxies[0].open_to(foreign.address());
    let there = fs.clone();
    let writes = std::thread::spawn(move || {
        write(&there, fh, 4, b"more").unwrap();
        there.fsync(fh, false).unwrap();
    });
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!writes.is_finished() && fs.status().moves == 0);
    first.leave();
    writes.join().unwrap();
    assert_eq!(fs.status().moves, 1);
    assert_eq!(contents(&fs, b"file"), Ok(b"textmore".to_vec()));
    proxies[1].close();
    proxies[1].open_to(foreign.address());
    assert_eq!(fs.mkdir(fs.root(), b"dir", 0o700, &ROOT).err(), Some(Errno::IO));
    proxies[1].close();
    proxies[1].open_to(second.server.address());
    fs.mkdir(fs.root(), b"dir", 0o700, &ROOT).unwrap();
    fs.finish().ok();
    drop(foreign);
    other.finish();
    second.finish();
}

/// One that sends its answer byte by byte does not keep the client from the server after it.
#[test]
fn a_server_that_answers_byte_by_byte_is_passed_over() {
    let [first, second] = nodes();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                while std::io::Write::write_all(&mut stream, &[0]).is_ok() {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
    });
    let fs = mount(&[first.server.address(), slow, second.server.address()]);
    first.leave();
    let begun = Instant::now();
    fs.mkdir(fs.root(), b"dir", 0o700, &ROOT).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    fs.finish().ok();
    second.finish();
}

/// Two addresses of one server: the session goes on by the other one.
#[test]
fn another_address_of_the_same_server_leads_to_the_same_session() {
    let [first, second] = nodes();
    let proxies = [Proxy::to(first.server.address()), Proxy::to(first.server.address())];
    let fs = mount(&[proxies[0].address, proxies[1].address]);
    let (file, fh) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    fs.flock(file.ino, &lock(PlockKind::Exclusive)).unwrap();
    let number = first.server.observer().clients()[0].number;
    proxies[0].close();
    write(&fs, fh, 0, b"text").unwrap();
    fs.fsync(fh, false).unwrap();
    let status = fs.status();
    assert_eq!((status.moves, status.server), (0, proxies[1].address.to_string()));
    let clients = first.server.observer().clients();
    assert_eq!((clients.len(), clients[0].number, clients[0].locks), (1, number, 1));
    fs.finish().ok();
    second.leave();
    first.finish();
}

/// The first that answers is used, whatever the others are.
#[test]
fn servers_that_do_not_answer_or_refuse_are_passed_over() {
    let [first, second] = nodes();
    let other = Node::of(Host::new(64));
    let names = [
        "does-not-exist.invalid:1".to_owned(),
        "127.0.0.1:1".to_owned(),
        other.server.address().to_string(),
        first.server.address().to_string(),
        second.server.address().to_string(),
    ];
    let options = |n: usize| ClientOptions { servers: names[n..].to_vec(), ..of_servers(&[]) };
    let patience = Duration::from_millis(300);
    let servers = names[..2].to_vec();
    let none = Client::connect(ClientOptions { servers, patience, ..of_servers(&[]) });
    assert!(matches!(none, Err(Error::Unreachable { .. })), "{none:?}");
    let client =
        Client::connect(ClientOptions { servers: names[3..].to_vec(), ..options(3) }).unwrap();
    let root = client.root();
    client.mkdir(root, b"dir", 0o700).unwrap();
    drop(client);
    // Another pool of the same name is no place to go on.
    let servers = [&names[3..4], &names[..3], &names[4..]].concat();
    let fs = RemoteFs::connect(
        ClientOptions { servers, ..of_servers(&[]) },
        &[],
        Arc::<References>::default(),
        false,
    );
    let fs = fs.unwrap();
    fs.rmdir(root, b"dir").unwrap();
    first.leave();
    fs.mkdir(root, b"dir", 0o700, &ROOT).unwrap();
    assert_eq!(fs.status().server, names[4]);
    assert_eq!(other.clients(), 0);
    fs.finish().ok();
    other.finish();
    second.finish();
}

/// Says HELLO; what the server says to that.
fn hello(server: SocketAddr, version: u32, begin: Begin) -> Result<Welcome, Status> {
    let mut link = Link::new(TcpStream::connect(server).unwrap()).unwrap();
    let (pool, client) = (b"test".to_vec(), b"raw".to_vec());
    let (header, args) = Request::Hello(Hello { version, begin, slot: 0, pool, client }).encode();
    link.send(header, &args, &[]).unwrap();
    let received = link.receive(&mut Buffer::new(0), || true).unwrap();
    if received.header.status != 0 {
        return Err(Status(received.header.status));
    }
    match Reply::decode(&received.header, &received.args).unwrap() {
        Reply::Welcome(welcome) => Ok(welcome),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn what_a_server_says_to_who_comes_from_another() {
    let [first, second] = nodes();
    let (one, two) = (first.server.address(), second.server.address());
    assert_eq!(hello(one, VERSION, Begin::Session).unwrap().life, None, "of version 4");
    let welcome = hello(one, NEWEST_VERSION, Begin::Session).unwrap();
    let life = welcome.life.unwrap();
    let after = |server, session, life| hello(server, NEWEST_VERSION, Begin::After(session, life));
    let of = |slot: u16, more: u32| {
        let Life { slot: own, incarnation } = life.life;
        let slot = braid_format::NodeId(own.0 + slot);
        let incarnation = braid_format::Incarnation(incarnation.0 + more);
        ServerLife { life: Life { slot, incarnation }, ..life }
    };
    assert_eq!(after(two, welcome.session, life), Err(Status::FORMER_LIVES));
    for unknown in [of(0, 1), of(0, u32::MAX / 2), of(77, 0), of(60_000, 0)] {
        assert_eq!(after(two, welcome.session, unknown), Err(Status::FORMER_LIVES), "{unknown:?}");
    }
    let elsewhere = ServerLife { pool: [1; 16], ..life };
    assert_eq!(after(two, welcome.session, elsewhere), Err(Status::POOL));
    // Its own: the session stands, or another one begins.
    assert_eq!(after(one, welcome.session, life).unwrap().session, welcome.session);
    let another = after(one, [9; 16], life).unwrap();
    assert_ne!(another.session, welcome.session);
    first.leave();
    assert_eq!(after(two, welcome.session, of(0, 1)), Err(Status::FORMER_LIVES), "is to come");
    let next = after(two, welcome.session, life).unwrap();
    assert!(next.life.is_some_and(|now| now != life) && next.session != welcome.session);
    second.finish();
}

/// A server that knows the protocol up to version 3.
fn old_server(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            let mut link = Link::new(stream).unwrap();
            while let Ok(received) = link.receive(&mut Buffer::new(0), || true) {
                let (mut reply, mut status) = (Reply::Done, Status::OK);
                match Request::decode(&received.header, &received.args).unwrap() {
                    Request::Hello(hello) => {
                        if matches!(hello.begin, Begin::After(..)) {
                            status = Status::REQUEST;
                        } else if hello.version > 3 {
                            status = Status::VERSION;
                        }
                        reply = Reply::Welcome(Welcome {
                            version: 3,
                            session: [7; 16],
                            slots: 32,
                            data_max: 1 << 20,
                            session_ms: 30_000,
                            verifier: 1,
                            root: InodeNo(2),
                            life: None,
                        });
                    }
                    Request::Bye => return,
                    _ => {}
                }
                let (mut header, args) = reply.encode(&received.header);
                header.status = status.0;
                if link.send(header, &args, &[]).is_err() {
                    return;
                }
            }
        });
    }
}

/// Nobody goes on with a server that does not know how, nor after one that did not say who it is.
#[test]
fn with_servers_of_older_versions_nothing_else_is_done_than_before() {
    let [first, second] = nodes();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = listener.local_addr().unwrap();
    std::thread::spawn(move || old_server(&listener));
    let patience = Duration::from_secs(2);
    let proxy = Proxy::to(old);
    let servers = of_servers(&[proxy.address, second.server.address()]).servers;
    let client = Client::connect(ClientOptions { servers, patience, ..of_servers(&[]) }).unwrap();
    client.sync_dir(client.root()).unwrap();
    proxy.close();
    let silent = client.sync_dir(client.root());
    assert!(matches!(silent, Err(Error::Unreachable { .. })), "{silent:?}");
    assert_eq!(second.clients(), 0);
    proxy.open_to(old);
    client.sync_dir(client.root()).unwrap();
    drop(client);
    let servers = of_servers(&[first.server.address(), old]).servers;
    let client = Client::connect(ClientOptions { servers, patience, ..of_servers(&[]) }).unwrap();
    client.sync_dir(client.root()).unwrap();
    first.leave();
    let silent = client.sync_dir(client.root());
    assert!(matches!(silent, Err(Error::Unreachable { .. })), "{silent:?}");
    drop(client);
    second.finish();
}

/// The address of the server leads to an older one: it cannot know what is under way at the former, so it is not used,
/// and the former one is when it is there again.
#[test]
fn an_older_server_is_not_used_in_the_place_of_one_that_lives() {
    let [first, second] = nodes();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = listener.local_addr().unwrap();
    std::thread::spawn(move || old_server(&listener));
    for servers in [1, 2] {
        let proxy = Proxy::to(first.server.address());
        let servers = &[proxy.address, second.server.address()][..servers];
        let patience = Duration::from_secs(1);
        let client = Client::connect(ClientOptions { patience, ..of_servers(servers) }).unwrap();
        client.sync_dir(client.root()).unwrap();
        let number = first.server.observer().clients()[0].number;
        proxy.close();
        proxy.open_to(old);
        for _ in 0..2 {
            let refused = client.sync_dir(client.root());
            assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
        }
        proxy.close();
        proxy.open_to(first.server.address());
        client.sync_dir(client.root()).unwrap();
        assert_eq!(first.server.observer().clients()[0].number, number);
        drop(client);
        wait_until("it has gone", || first.clients() == 0);
    }
    second.leave();
    first.finish();
}

/// A copy goes on with another server from what is there.
#[test]
fn a_copy_goes_on_with_another_server() {
    let [first, second] = nodes();
    let (one, two) = (first.server.address(), second.server.address());
    let proxy = Proxy::to(one);
    let client = Client::connect(of_servers(&[proxy.address, two])).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(24 << 20, 7);
    std::fs::write(dir.path().join("source"), &bytes).unwrap();
    let source = std::fs::File::open(dir.path().join("source")).unwrap();
    let options = CopyOptions { chunk: 128 << 10, verify: true, progress: Arc::default() };
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let what = Upload { source: &source, dir: client.root(), name: b"copy", set };
    let copied = std::thread::scope(|scope| {
        proxy.close_after(0, 6 << 20);
        let copies = scope.spawn(|| upload(&client, &what, &options));
        wait_until("a part is done", || proxy.has_cut(0));
        first.leave();
        copies.join().unwrap().unwrap()
    });
    assert_eq!(copied.size, 24 << 20);
    assert_eq!(second.clients(), 1);
    let attr = second.host.fs.lookup(client.root(), b"copy").unwrap();
    let fh = FileSystem::open(&second.host.fs, attr.ino, 0).unwrap();
    let mut found = braid_device::AlignedBuf::zeroed(bytes.len());
    second.host.fs.read(fh, 0, &mut found).unwrap();
    assert!(*found == bytes[..], "other bytes");
    FileSystem::release(&second.host.fs, fh).unwrap();
    second.host.fs.forget(attr.ino).unwrap();
    drop(client);
    second.finish();
}

/// A part file that another has locked meanwhile is not written any more.
#[test]
fn a_locked_file_is_gone_at_another_server() {
    let [first, second] = nodes();
    let (one, two) = (first.server.address(), second.server.address());
    let client = Client::connect(of_servers(&[one, two])).unwrap();
    let (locked, plain) = (b"locked", b"plain");
    let locked_file = client.create(client.root(), locked, 0o600, true).unwrap();
    let plain_file = client.create(client.root(), plain, 0o600, false).unwrap();
    client.sync_dir(client.root()).unwrap();
    first.leave();
    let begun = Instant::now();
    plain_file.write(1, (0, b"text"), true).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    let gone = locked_file.write(1, (0, b"text"), true).unwrap_err();
    assert!(matches!(gone, Error::Gone), "{gone}");
    // Another client may copy to it by now.
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let gone = locked_file.set_attr(cut).unwrap_err();
    assert!(matches!(gone, Error::Gone), "{gone}");
    plain_file.set_attr(cut).unwrap();
    let root = client.root();
    let gone = locked_file.rename((root, locked), (root, b"other")).unwrap_err();
    assert!(matches!(gone, Error::Gone), "{gone}");
    plain_file.rename((root, plain), (root, b"other")).unwrap();
    client.lookup(root, locked).unwrap();
    drop((locked_file, plain_file, client));
    second.finish();
}
