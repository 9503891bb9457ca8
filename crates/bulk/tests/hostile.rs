//! Servers that say what no server should: the client refuses it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::error::Error;
use braid_bulk::link::{Buffer, Link};
use braid_bulk::wire::{DATA_MAX, Reply, Request, VERSION, Welcome};
use braid_format::InodeNo;
use braid_fs::{Attr, Time};

use common::client_options;

/// What a hostile server says must not make a client take all memory, spin, or write where it should not.
#[test]
fn a_server_that_says_nonsense_is_refused() {
    let sound = Welcome {
        life: None,
        version: VERSION,
        session: [7; 16],
        slots: 4,
        data_max: 1 << 20,
        session_ms: 30_000,
        verifier: 1,
        root: InodeNo(2),
    };
    let client = |welcome: Welcome| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || liar(stream, welcome));
            }
        };
        std::thread::spawn(server);
        let patience = Duration::from_millis(300);
        Client::connect(ClientOptions { patience, ..client_options(address) })
    };
    for data_max in [0, 4097 << 10, u32::MAX] {
        let refused = client(Welcome { data_max, ..sound });
        assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    }
    let refused = client(Welcome { session_ms: 0, ..sound });
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    let client = client(sound).unwrap();
    let file = client.create(client.root(), b"file", 0o600, false).unwrap();
    let long = file.read(1, (0, 10), <[u8]>::len);
    assert!(matches!(long, Err(Error::Answer(_))), "{long:?}");
    let short = file.write(1, (0, b"ten bytes."), false);
    assert!(matches!(short, Err(Error::Answer(_))), "{short:?}");
}

/// Answers reads with a byte too many, and writes a byte too few.
fn liar(stream: TcpStream, welcome: Welcome) {
    let mut link = Link::new(stream).unwrap();
    let mut buffer = Buffer::new(DATA_MAX);
    while let Ok(received) = link.receive(&mut buffer, || true) {
        let asked = received.header;
        let (mut reply, mut data) = (Reply::Done, Vec::new());
        match Request::decode(&asked, &received.args).unwrap() {
            Request::Hello(_) => reply = Reply::Welcome(welcome),
            Request::Create { .. } => reply = Reply::Opened { handle: 1, attr: attr() },
            Request::Read { length, .. } => data.resize(length as usize + 1, 0),
            Request::Write { .. } => {
                reply = Reply::Written { length: asked.data_len - 1, verifier: 1 };
            }
            _ => {}
        }
        let (header, args) = reply.encode(&asked);
        if link.send(header, &args, &data).is_err() {
            return;
        }
    }
}

fn attr() -> Attr {
    let time = Time { sec: 0, nsec: 0 };
    let (ino, mode) = (InodeNo(3), 0o100_600);
    let (generation, size, blocks512, rdev) = (1, 0, 0, 0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    let (nlink, uid, gid, blksize, flags) = (1, 0, 0, 4096, 0);
    Attr {
        ino,
        generation,
        size,
        blocks512,
        atime,
        mtime,
        ctime,
        btime,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        blksize,
        flags,
    }
}
