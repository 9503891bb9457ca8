//! A client and a server over loopback: what works, and what a client may not do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::error::Error;
use braid_bulk::server::ServerOptions;
use braid_bulk::wire::{
    Begin, Header, Hello, NEWEST_VERSION, OpenFlags, RawHeader, Request, Status, VERSION,
};
use braid_format::InodeNo;
use braid_fs::{Errno, SetAttr};
use braid_testkit::wait_until;

use common::{Host, Proxy, client_options, connect, noise};

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Errno {
    result.unwrap_err().errno().expect("an error of the file system")
}

#[test]
fn names_and_contents_are_those_of_the_file_system() {
    let host = Host::new(256);
    let server = host.serve();
    let client = connect(server.address());
    let root = client.root();
    let dir = client.mkdir(root, b"dir", 0o755).unwrap();
    assert_eq!(errno(client.mkdir(root, b"dir", 0o755)), Errno::EXIST);
    assert_eq!(client.lookup(root, b"dir").unwrap().ino, dir.ino);
    let file = client.create(dir.ino, b"file", 0o640, false).unwrap();
    let bytes = noise(3 << 20, 1);
    for (n, piece) in bytes.chunks(1 << 20).enumerate() {
        let at = (n as u64) << 20;
        let written = file.write(1, (at, piece), false).unwrap();
        assert_eq!((written.length, written.verifier), (1 << 20, client.verifier()));
    }
    file.write(2, (3 << 20, b"tail"), true).unwrap();
    assert_eq!(file.append(1, b" end").unwrap().length, 4);
    assert_eq!(file.commit().unwrap(), client.verifier());
    let read = |at, len| file.read(3, (at, len), <[u8]>::to_vec).unwrap();
    assert_eq!(read(0, 1 << 20), bytes[..1 << 20]);
    assert_eq!(read(3 << 20, 100), b"tail end");
    assert_eq!(read(9 << 20, 100), b"");
    let sum = xxhash_rust::xxh3::xxh3_128(&bytes);
    assert_eq!(file.checksum(1, 0, 3 << 20).unwrap(), (sum, 3 << 20));
    assert_eq!(file.checksum(1, 3 << 20, 1 << 20).unwrap().1, 8);
    // The node itself sees it.
    let attr = host.fs.lookup(dir.ino, b"file").unwrap();
    host.fs.forget(attr.ino).unwrap();
    assert_eq!((attr.size, attr.mode), ((3 << 20) + 8, 0o100_640));
    let set = SetAttr { size: Some(5), mode: Some(0o600), ..SetAttr::default() };
    let attr = client.setattr(attr.ino, set).unwrap();
    assert_eq!((attr.size, attr.mode), (5, 0o100_600));
    assert_eq!(errno(client.unlink(root, b"dir")), Errno::ISDIR);
    assert_eq!(errno(client.rmdir(root, b"dir")), Errno::NOTEMPTY);
    client.create(dir.ino, b"other", 0o600, false).unwrap().close().unwrap();
    assert_eq!(errno(client.rename((dir.ino, b"file"), (dir.ino, b"other"), true)), Errno::EXIST);
    client.rename((dir.ino, b"file"), (dir.ino, b"other"), false).unwrap();
    let names: Vec<_> = client.readdir(dir.ino).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, [&b"."[..], b"..", b"other"]);
    // Unlinked, and open still.
    client.unlink(dir.ino, b"other").unwrap();
    assert_eq!(file.read(1, (0, 10), <[u8]>::to_vec).unwrap(), bytes[..5]);
    file.close().unwrap();
    client.rmdir(root, b"dir").unwrap();
    client.sync_dir(root).unwrap();
    assert!(client.statfs().unwrap().free > 0);
    drop((client, server));
    host.finish();
}

#[test]
fn a_large_directory_is_listed_whole() {
    let host = Host::new(128);
    let server = host.serve();
    let client = connect(server.address());
    let count = 3000;
    for n in 0..count {
        let name = format!("{n:0100}");
        client.create(client.root(), name.as_bytes(), 0o600, false).unwrap().close().unwrap();
    }
    let mut names: Vec<_> =
        client.readdir(client.root()).unwrap().into_iter().map(|e| e.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count + 2);
    drop((client, server));
    host.finish();
}

#[test]
fn numbers_that_a_client_makes_up_harm_nothing() {
    let host = Host::new(128);
    let server = host.serve();
    let client = connect(server.address());
    let file = client.create(client.root(), b"file", 0o600, false).unwrap();
    file.write(1, (0, &vec![0x5a; 1 << 20]), true).unwrap();
    let gone = client.create(client.root(), b"gone", 0o600, false).unwrap();
    let gone_attr = *gone.attr();
    gone.close().unwrap();
    client.unlink(client.root(), b"gone").unwrap();
    let numbers = (0..400).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX, gone_attr.ino.0]);
    for ino in numbers.map(InodeNo) {
        if [client.root(), file.attr().ino].contains(&ino) {
            continue;
        }
        let refused = [
            client.getattr(ino).err(),
            client.lookup(ino, b"x").err(),
            client.mkdir(ino, b"x", 0o700).err(),
            client.setattr(ino, SetAttr { size: Some(0), ..SetAttr::default() }).err(),
            client.rename((ino, b"x"), (client.root(), b"y"), false).err(),
        ];
        for error in refused {
            let errno = error.expect("refused").errno();
            assert_eq!(errno, Some(Errno::STALE), "{ino}");
        }
    }
    assert_eq!(errno(client.open(&gone_attr, OpenFlags::default())), Errno::STALE);
    assert!(host.fs.withdrawn().is_none());
    drop((file, client, server));
    host.finish();
}

/// A message from somebody who counts bytes.
fn raw(stream: &mut TcpStream, request: &Request, sequence: u64, data: &[u8]) {
    let (mut header, args) = request.encode();
    header.sequence = sequence;
    let head = header.seal(&args, data);
    stream.write_all(&[&head[..], &args, data].concat()).unwrap();
}

fn status(stream: &mut TcpStream) -> Option<Status> {
    let mut head = [0; RawHeader::LEN];
    stream.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).unwrap();
    let mut rest = vec![0; (header.args_len + header.data_len) as usize];
    stream.read_exact(&mut rest).unwrap();
    Some(Status(header.status))
}

fn hello(version: u32, pool: &str) -> Request {
    let (begin, slot, client) = (Begin::Session, 0, Vec::new());
    Request::Hello(Hello { version, begin, slot, pool: pool.into(), client })
}

#[test]
fn strangers_are_turned_away() {
    let host = Host::new(64);
    let server = host.serve();
    let ask = |request: &Request| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        raw(&mut stream, request, 1, b"");
        let status = status(&mut stream).unwrap();
        (status, stream.read(&mut [0]).unwrap())
    };
    assert_eq!(ask(&hello(NEWEST_VERSION + 1, "test")), (Status::VERSION, 0));
    assert_eq!(ask(&hello(VERSION, "other")), (Status::POOL, 0));
    assert_eq!(ask(&Request::StatFs), (Status::REQUEST, 0));
    let begin = Begin::Join([7; 16]);
    let (pool, client) = (b"test".to_vec(), Vec::new());
    let join = Hello { version: VERSION, begin, slot: 0, pool, client };
    assert_eq!(ask(&Request::Hello(join)), (Status::NO_SESSION, 0));
    let options = ClientOptions::new(&server.address().to_string(), "other");
    let refused = Client::connect(options).unwrap_err();
    assert!(matches!(refused, Error::Refused(Status::POOL)), "{refused}");
    drop(server);
    host.finish();
}

#[test]
fn bytes_that_are_no_messages_end_their_connection_only() {
    let host = Host::new(64);
    let server = host.serve();
    let client = connect(server.address());
    for seed in 0..200 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        if seed % 2 == 0 {
            raw(&mut stream, &hello(VERSION, "test"), 0, b"");
            status(&mut stream).unwrap();
        }
        // A good header that promises what does not come, or noise.
        let mut bytes = noise(300, seed);
        if seed % 3 == 0 {
            let header = Header::request(u8::try_from(seed).unwrap()).seal(b"12345678", &[0; 99]);
            bytes[..RawHeader::LEN].copy_from_slice(&header);
        }
        stream.write_all(&bytes).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        // It is closed: nothing comes, or a reset.
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{seed}: {closed:?} {rest:?}");
        client.getattr(client.root()).unwrap();
    }
    drop((client, server));
    host.finish();
}

#[test]
fn requests_out_of_order_or_without_sense_are_refused() {
    let host = Host::new(64);
    let server = host.serve();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    raw(&mut stream, &hello(VERSION, "test"), 0, b"");
    assert_eq!(status(&mut stream), Some(Status::OK));
    let mut ask = |request: &Request, sequence, data: &[u8]| {
        raw(&mut stream, request, sequence, data);
        status(&mut stream).unwrap()
    };
    assert_eq!(ask(&Request::Ping, 2, b""), Status::SEQUENCE);
    assert_eq!(ask(&Request::Ping, 1, b""), Status::OK);
    assert_eq!(ask(&Request::Ping, 1, b""), Status::OK);
    // The same number, another request.
    assert_eq!(ask(&Request::StatFs, 1, b""), Status::SEQUENCE);
    assert_eq!(ask(&hello(VERSION, "test"), 2, b""), Status::REQUEST);
    let write = Request::Write { handle: 77, offset: 0, how: 0 };
    assert_eq!(ask(&write, 3, b"data"), Status::HANDLE);
    assert_eq!(ask(&Request::Close { handle: 77 }, 4, b""), Status::HANDLE);
    let read = Request::Read { handle: 77, offset: 0, length: u32::MAX, keep: false };
    assert_eq!(ask(&read, 5, b""), Status::TOO_LONG);
    let sum = Request::Checksum { handle: 77, offset: 0, length: u32::MAX };
    assert_eq!(ask(&sum, 6, b""), Status::TOO_LONG);
    drop((stream, server));
    host.finish();
}

#[test]
fn slow_clients_and_too_many_connections_keep_nobody_waiting() {
    let host = Host::new(64);
    let options = ServerOptions {
        connections_max: 40,
        connections_from_one: 30,
        sessions_max: 6,
        files_max: 2,
        ..Host::options()
    };
    let server = host.serve_with(options);
    let client = connect(server.address());
    client.create(client.root(), b"a", 0o600, false).unwrap();
    // They begin a message and stop, or say nothing at all.
    let slow: Vec<_> = (0..20)
        .map(|n| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            let (mut header, args) = hello(VERSION, "test").encode();
            let head = header.seal(&args, b"");
            stream.write_all(&head[..n * 3]).unwrap();
            stream
        })
        .collect();
    let begun = Instant::now();
    for n in 0..200_u32 {
        let name = format!("{n}");
        client.mkdir(client.root(), name.as_bytes(), 0o700).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // As many as one address may have: the next are closed, what is there goes on.
    let more: Vec<_> = (0..40).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let is_closed = |mut s: &TcpStream| {
        s.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        matches!(s.read(&mut [0]), Ok(0))
    };
    wait_until("some are closed", || more.iter().filter(|s| is_closed(s)).count() >= 30);
    client.getattr(client.root()).unwrap();
    drop((slow, more));
    // Clients, and files of each, are bounded, too.
    let second = connect(server.address());
    let third = connect(server.address());
    let patience = Duration::from_millis(300);
    let fourth = Client::connect(ClientOptions { patience, ..client_options(server.address()) });
    assert!(matches!(fourth, Err(Error::Unreachable { .. })), "{fourth:?}");
    let files: Vec<_> = (0..3)
        .map(|n| third.create(third.root(), format!("f{n}").as_bytes(), 0o600, false))
        .collect();
    let refused = files[2].as_ref().unwrap_err();
    assert!(matches!(refused, Error::Refused(Status::LIMIT)), "{refused}");
    drop((files, second, third, client, server));
    host.finish();
}

#[test]
fn files_and_locks_of_a_client_that_is_gone_are_given_back() {
    let host = Host::new(64);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let first = connect(proxy.address);
    let file = first.create(first.root(), b"file", 0o600, true).unwrap();
    let second = connect(server.address());
    let flags = OpenFlags { write: true, lock: true, ..OpenFlags::default() };
    assert_eq!(errno(second.open(file.attr(), flags)), Errno::AGAIN);
    first.unlink(first.root(), b"file").unwrap();
    // Clients that do nothing stay.
    std::thread::sleep(2 * Host::options().session_time + Duration::from_millis(500));
    assert_eq!(server.observer().clients().len(), 2);
    assert_eq!(errno(second.open(file.attr(), flags)), Errno::AGAIN);
    proxy.close();
    wait_until("the client is forgotten", || server.observer().clients().len() == 1);
    let is_gone = |e: Error| e.errno() == Some(Errno::STALE);
    wait_until("its file is gone", || second.open(file.attr(), flags).is_err_and(is_gone));
    proxy.open_to(server.address());
    assert!(matches!(file.commit(), Err(Error::Gone)));
    drop((file, first));
    drop((second, server));
    host.finish();
}
