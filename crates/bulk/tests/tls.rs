//! TLS: who is let in, who is not, and what strangers cannot do.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::error::{CertificateError, Error, LinkError};
use braid_bulk::link::{Buffer, Link};
use braid_bulk::server::{Server, ServerOptions};
use braid_bulk::tls::{Channel, Folder, Identity, ServerTls, Validity};
use braid_bulk::wire::{
    Begin, DATA_MAX, Header, Hello, OpenFlags, Reply, Request, Status, VERSION, Welcome,
};
use braid_fs::{Errno, Fs, SetAttr};
use braid_testkit::wait_until;
use uuid::Uuid;

use common::{Host, Proxy, client_options, noise};

/// Certificates of a pool.
struct Authority {
    dir: tempfile::TempDir,
    folder: Folder,
    uuid: Uuid,
}

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uuid = Uuid::new_v4();
        let servers = ["localhost:7420".to_owned()];
        let folder = Folder::init(dir.path(), ("test", uuid), ("one", &servers), false).unwrap();
        Self { dir, folder, uuid }
    }
    fn base(&self) -> &Path {
        self.dir.path()
    }
    fn invite(&self, name: &str) -> Arc<Identity> {
        Arc::new(self.folder.invite(name, false, Validity::days(1)).unwrap())
    }
    fn serve(&self, host: &Host) -> Server<Fs> {
        self.serve_with(host, Host::options())
    }
    fn serve_with(&self, host: &Host, options: ServerOptions) -> Server<Fs> {
        let tls = Some(Arc::new(ServerTls::open(self.folder.clone()).unwrap()));
        host.serve_with(ServerOptions { tls, ..options })
    }
}

fn with(address: std::net::SocketAddr, identity: &Arc<Identity>) -> ClientOptions {
    let patience = Duration::from_secs(5);
    ClientOptions { identity: Some(Arc::clone(identity)), patience, ..client_options(address) }
}

fn connect(server: &Server<Fs>, identity: &Arc<Identity>) -> Client {
    Client::connect(with(server.address(), identity)).unwrap()
}

/// Names of clients, and how many files each has open.
fn clients(server: &Server<Fs>) -> Vec<(String, usize)> {
    server.observer().clients().into_iter().map(|c| (c.name, c.open_files)).collect()
}

fn refused(server: &Server<Fs>, identity: &Arc<Identity>) -> String {
    let begun = Instant::now();
    let refused = Client::connect(with(server.address(), identity)).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(4), "it was tried again: {refused}");
    refused.to_string()
}

#[test]
fn bytes_go_through_whole_and_the_server_knows_whose_they_are() {
    let (host, authority) = (Host::new(256), Authority::new());
    let server = authority.serve(&host);
    let client = connect(&server, &authority.invite("alice"));
    assert_eq!(clients(&server), [("alice (test client)".to_owned(), 0)]);
    let file = client.create(client.root(), b"file", 0o600, false).unwrap();
    // Around the sizes of records, of pieces that are encrypted, and of buffers.
    let sizes = [1, 100, 16_383, 16_384, 16_385, 99_999, 262_144 - 64, 262_144, 262_145, 1 << 20];
    for (n, size) in sizes.into_iter().enumerate() {
        let bytes = noise(size, n as u64 + 1);
        file.write(1, (n as u64, &bytes), true).unwrap();
        let len = u32::try_from(size).unwrap();
        let back = file.read(2, (n as u64, len), <[u8]>::to_vec).unwrap();
        assert!(back == bytes, "{size}");
        let sum = xxhash_rust::xxh3::xxh3_128(&bytes);
        assert_eq!(file.checksum(3, n as u64, len).unwrap(), (sum, len));
    }
    drop((file, client));
    wait_until("the client has left", || clients(&server).is_empty());
    assert!(authority.folder.last_seen(&authority.folder.clients().unwrap()[0]).is_some());
    drop(server);
    host.finish();
}

/// Cuts after each of the first bytes of a direction, in the handshake and behind it.
#[test]
fn a_cut_anywhere_in_tls_does_each_request_once() {
    let (host, authority) = (Host::new(128), Authority::new());
    let server = authority.serve(&host);
    let identity = authority.invite("alice");
    let proxy = Proxy::to(server.address());
    for direction in [0, 1] {
        let mut cuts = 0;
        for bytes in (0..5000).step_by(167) {
            proxy.cut_after(direction, bytes);
            let client = Client::connect(with(proxy.address, &identity)).unwrap();
            let file = client.create(client.root(), b"file", 0o600, false).unwrap();
            file.append(1, b"one ").unwrap();
            file.append(2, b"two").unwrap();
            let read = file.read(2, (0, 100), <[u8]>::to_vec).unwrap();
            assert_eq!(read, b"one two", "cut at {bytes}");
            file.close().unwrap();
            client.unlink(client.root(), b"file").unwrap();
            cuts += u32::from(proxy.has_cut(direction));
            proxy.no_cut();
        }
        assert!(cuts > 10, "{cuts} cuts in direction {direction}");
    }
    drop(server);
    host.finish();
}

#[test]
fn who_is_not_of_the_pool_is_turned_away_and_told_why() {
    let (host, authority, other) = (Host::new(64), Authority::new(), Authority::new());
    let server = authority.serve(&host);
    let said = refused(&server, &other.invite("mallory"));
    assert!(said.contains("not of this pool's authority"), "{said}");
    // It trusts the server, and shows a certificate that another authority has made.
    let stranger = other.invite("mallory").to_text();
    let section = |text: &str, name: &str| {
        let at = text.find(&format!("{name} = ")).unwrap();
        let end = text[at..].find("-----END").unwrap();
        let end = at + end + text[at + end..].find("\"\"\"").unwrap();
        text[at..end].to_owned()
    };
    let own = authority.invite("alice");
    let mixed = own
        .to_text()
        .replace(&section(&own.to_text(), "certificate"), &section(&stranger, "certificate"))
        .replace(&section(&own.to_text(), "key"), &section(&stranger, "key"));
    let said = refused(&server, &Arc::new(Identity::parse(&mixed).unwrap()));
    assert!(said.contains("its certificate is not of its authority"), "{said}");
    // It was valid once, or will be.
    let now = Validity::days(0).until;
    let old = Validity { from: now - 9 * 86400, until: now - 2 * 86400 };
    let old = Arc::new(authority.folder.invite("old", false, old).unwrap());
    let said = refused(&server, &old);
    assert!(said.contains("certificate of old expired at 20") && said.contains("clock"), "{said}");
    let early = Validity { from: now + 86400, until: now + 9 * 86400 };
    let early = Arc::new(authority.folder.invite("early", false, early).unwrap());
    let said = refused(&server, &early);
    assert!(said.contains("is valid from 20") && said.contains("clock"), "{said}");
    // The server's clock has the last word: nobody asks the client's own.
    let why = handshake(&server, &old).unwrap_err();
    let said = why.to_string();
    assert!(said.contains("takes this certificate for expired") && why.is_final(), "{said}");
    // A server cannot be a client, nor a client a server.
    let second = Arc::new(authority.folder.invite_server("two").unwrap());
    assert!(refused(&server, &second).contains("for a server"));
    let base = tempfile::tempdir().unwrap();
    let wrong = Folder::install(base.path(), &own, false).unwrap_err();
    assert!(wrong.to_string().contains("a client's"), "{wrong}");
    drop(server);
    host.finish();
}

/// A connection by which a client has shown its certificate, and said what it has to say.
fn handshake(server: &Server<Fs>, identity: &Identity) -> Result<Link, LinkError> {
    let mut link = Link::new(TcpStream::connect(server.address())?)?;
    let (config, name) = identity.client().unwrap();
    link.secure(Channel::client(config, name)?)?;
    let (header, args) = Request::Ping.encode();
    link.send(header, &args, b"")?;
    link.receive(&mut Buffer::new(0), || true).map(|_| link)
}

fn hello(link: &mut Link, begin: Begin, slot: u16) -> (Status, Option<Welcome>) {
    let (pool, client) = (b"test".to_vec(), Vec::new());
    let hello = Request::Hello(Hello { version: VERSION, begin, slot, pool, client });
    let (header, args) = hello.encode();
    link.send(header, &args, b"").unwrap();
    let answer = link.receive(&mut Buffer::new(0), || true).unwrap();
    let welcome = match Reply::decode(&answer.header, &answer.args) {
        Ok(Reply::Welcome(welcome)) => Some(welcome),
        _ => None,
    };
    (Status(answer.header.status), welcome)
}

#[test]
fn a_session_belongs_to_the_certificate_that_began_it() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let link = |identity: &Identity| {
        let mut link = Link::new(TcpStream::connect(server.address()).unwrap()).unwrap();
        let (config, name) = identity.client().unwrap();
        link.secure(Channel::client(config, name).unwrap()).unwrap();
        link
    };
    let (alice, bob) = (authority.invite("alice"), authority.invite("bob"));
    let mut first = link(&alice);
    let (status, welcome) = hello(&mut first, Begin::Session, 0);
    assert_eq!(status, Status::OK);
    let join = Begin::Join(welcome.unwrap().session);
    assert_eq!(hello(&mut link(&bob), join, 1).0, Status::FOREIGN);
    // Of the same name, and another certificate.
    assert_eq!(hello(&mut link(&authority.invite("alice")), join, 1).0, Status::FOREIGN);
    assert_eq!(hello(&mut link(&alice), join, 1).0, Status::OK);
    // What was refused has cut nothing.
    let (mut header, args) = Request::Ping.encode();
    header.sequence = 1;
    first.send(header, &args, b"").unwrap();
    assert_eq!(first.receive(&mut Buffer::new(0), || true).unwrap().header.status, 0);
    drop((first, server));
    host.finish();
}

#[test]
fn a_revoked_client_is_cut_and_stays_out() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let (alice, bob) = (authority.invite("alice"), authority.invite("bob"));
    let (client, other) = (connect(&server, &alice), connect(&server, &bob));
    let file = client.create(client.root(), b"file", 0o600, true).unwrap();
    assert_eq!(authority.folder.revoke("alice").unwrap().len(), 1);
    let cut = || matches!(file.write(1, (0, b"x"), true), Err(Error::Refused(Status::REVOKED)));
    wait_until("it is cut", cut);
    wait_until("its files are closed", || {
        clients(&server) == [("bob (test client)".to_owned(), 0)]
    });
    assert!(refused(&server, &alice).contains("revoked"));
    // Its lock is free; others notice nothing.
    let flags = OpenFlags { write: true, lock: true, ..OpenFlags::default() };
    other.open(file.attr(), flags).unwrap().close().unwrap();
    // Another certificate of the same name.
    drop(connect(&server, &authority.invite("alice")));
    let serial = bob.peer().unwrap().serial;
    authority.folder.revoke_serial(&serial.to_uppercase()).unwrap();
    wait_until("it is cut, too", || clients(&server).is_empty());
    // A list that cannot be read, or a new one, lets nobody in again.
    let list = authority.folder.path().join("clients.toml");
    std::fs::write(&list, "nonsense").unwrap();
    assert!(refused(&server, &bob).contains("revoked"));
    std::fs::write(&list, "").unwrap();
    assert!(refused(&server, &bob).contains("revoked"));
    drop((file, client, other, server));
    host.finish();
}

#[test]
fn who_may_only_read_changes_nothing() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let writer = connect(&server, &authority.invite("alice"));
    let root = writer.root();
    let file = writer.create(root, b"file", 0o600, false).unwrap();
    file.write(1, (0, b"contents"), true).unwrap();
    let reader = authority.folder.invite("bob", true, Validity::days(1)).unwrap();
    let reader = connect(&server, &Arc::new(reader));
    let open = reader.open(file.attr(), OpenFlags::default()).unwrap();
    assert_eq!(open.read(1, (0, 99), <[u8]>::to_vec).unwrap(), b"contents");
    assert_eq!(open.checksum(1, 0, 99).unwrap().1, 8);
    assert_eq!(reader.readdir(root).unwrap().len(), 3);
    let flags = |write, truncate, lock| OpenFlags { write, truncate, lock };
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let errors = [
        open.write(1, (0, b"x"), true).err(),
        open.append(1, b"x").err(),
        reader.open(file.attr(), flags(true, false, false)).err(),
        reader.open(file.attr(), flags(true, true, false)).err(),
        reader.open(file.attr(), flags(false, false, true)).err(),
        reader.create(root, b"new", 0o600, false).err(),
        reader.mkdir(root, b"new", 0o700).err(),
        reader.setattr(file.attr().ino, set).err(),
        reader.unlink(root, b"file").err(),
        reader.rmdir(root, b"file").err(),
        reader.rename((root, b"file"), (root, b"other"), false).err(),
    ];
    for (n, error) in errors.into_iter().enumerate() {
        assert_eq!(error.unwrap().errno(), Some(Errno::ROFS), "{n}");
    }
    assert_eq!(file.read(1, (0, 99), <[u8]>::to_vec).unwrap(), b"contents");
    drop((open, file, reader, writer, server));
    host.finish();
}

#[test]
fn with_and_without_tls_do_not_mix_and_say_so() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let begun = Instant::now();
    let plain = Client::connect(client_options(server.address())).unwrap_err();
    assert!(matches!(plain, Error::Refused(Status::WANTS_TLS)), "{plain}");
    drop(server);
    let server = host.serve();
    let said = refused(&server, &authority.invite("alice"));
    assert!(said.contains("without TLS"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(server);
    host.finish();
}

/// As many strangers as there are places, and more, from the address of the good client.
#[test]
fn strangers_in_the_middle_of_handshakes_keep_nobody_out() {
    let (host, authority) = (Host::new(128), Authority::new());
    let options =
        ServerOptions { connections_max: 40, connections_from_one: 30, ..Host::options() };
    let server = authority.serve_with(&host, options);
    let identity = authority.invite("alice");
    let client = connect(&server, &identity);
    let file = client.create(client.root(), b"file", 0o600, false).unwrap();
    let mut unidentified = Vec::new();
    for round in 0..60_u32 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // Nothing, the begin of a record, or one that promises a long handshake message.
        let bytes: &[u8] = match round % 3 {
            0 => &[],
            1 => &[22, 3, 1],
            _ => &[22, 3, 1, 0, 5, 1, 0, 0xff, 0xff, 3],
        };
        stream.write_all(bytes).ok();
        unidentified.push(stream);
        file.write(1, (u64::from(round), b"x"), true).unwrap();
        if round % 10 == 9 {
            // Who comes now finds a place, too.
            let other = connect(&server, &authority.invite("bob"));
            other.getattr(other.root()).unwrap();
        }
    }
    // Whoever does not go on is gone in a while, without anybody in need of the place.
    let begun = Instant::now();
    for mut stranger in unidentified {
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        let ended = stranger.read_to_end(&mut rest);
        let timeout = ended.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timeout, "a stranger is still there");
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop((file, client, server));
    host.finish();
}

#[test]
fn bytes_that_are_no_tls_end_their_connection_only() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let identity = authority.invite("alice");
    let client = connect(&server, &identity);
    for seed in 0..200 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let mut bytes = noise(700, seed);
        // Records of all kinds, of a length that comes or does not.
        if seed % 4 > 0 {
            let kind = 20 + u8::try_from(seed % 5).unwrap();
            bytes[..5].copy_from_slice(&[kind, 3, 3, (seed % 3) as u8, seed as u8]);
        }
        stream.write_all(&bytes).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        stream.read_to_end(&mut Vec::new()).ok();
        client.getattr(client.root()).unwrap();
    }
    drop((client, server));
    host.finish();
}

/// Inside TLS as outside: what a client says there is not trusted.
#[test]
fn nonsense_of_a_known_client_ends_its_connection_only() {
    let (host, authority) = (Host::new(64), Authority::new());
    let server = authority.serve(&host);
    let (alice, bob) = (authority.invite("alice"), authority.invite("bob"));
    let client = connect(&server, &alice);
    for seed in 0..40 {
        let mut link = Link::new(TcpStream::connect(server.address()).unwrap()).unwrap();
        let (config, name) = bob.client().unwrap();
        link.secure(Channel::client(config, name).unwrap()).unwrap();
        if seed % 2 == 0 {
            let (status, _) = hello(&mut link, Begin::Session, 0);
            assert_eq!(status, Status::OK);
        }
        // Whole messages without sense; more than the server takes.
        let header = Header::request(u8::try_from(seed * 6).unwrap());
        let data = noise(if seed % 3 == 0 { DATA_MAX } else { 77 }, seed);
        link.send(header, &data[..50], &data).ok();
        link.receive(&mut Buffer::new(DATA_MAX), || true).ok();
        client.getattr(client.root()).unwrap();
    }
    drop((client, server));
    host.finish();
}

#[test]
fn secrets_are_in_files_that_only_their_owner_reads() {
    let authority = Authority::new();
    let folder = authority.folder.path();
    authority.invite("alice");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(folder), mode(&folder.join("seen"))), (0o700, 0o700));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        assert!(entry.path().is_dir() || mode(&entry.path()) == 0o600, "{entry:?}");
    }
    names.sort();
    let all = ["ca.crt", "ca.key", "clients.toml", "pool.toml", "seen", "server.crt", "server.key"];
    assert_eq!(names, all);
    // Nothing is made anew by mistake; by intent all of it.
    let servers = ["localhost:7420".to_owned()];
    let init =
        |force| Folder::init(authority.base(), ("test", authority.uuid), ("one", &servers), force);
    assert!(matches!(init(false), Err(CertificateError::Exists { .. })));
    let key = || std::fs::read(folder.join("ca.key")).unwrap();
    let old = key();
    authority.folder.renew().unwrap();
    assert!(key() == old);
    init(true).unwrap();
    assert!(key() != old && authority.folder.clients().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(authority.base()).unwrap().count(), 1);
    // By its name, and its number.
    for pool in ["test", &authority.uuid.to_string()] {
        assert_eq!(Folder::find(authority.base(), pool).unwrap().path(), folder);
    }
    assert!(Folder::find(authority.base(), "other").is_err());
}

#[test]
fn a_further_server_serves_the_same_clients() {
    let (host, authority) = (Host::new(64), Authority::new());
    let identity = authority.folder.invite_server("two").unwrap();
    let base = tempfile::tempdir().unwrap();
    let text = identity.to_token();
    let folder = Folder::install(base.path(), &Identity::parse(&text).unwrap(), false).unwrap();
    let tls = Some(Arc::new(ServerTls::open(folder.clone()).unwrap()));
    let server = host.serve_with(ServerOptions { tls, ..Host::options() });
    let alice = authority.invite("alice");
    drop(connect(&server, &alice));
    let refuses = folder.invite("bob", false, Validity::days(1)).unwrap_err();
    assert!(matches!(refuses, CertificateError::NoAuthority { .. }), "{refuses}");
    // It has not heard of the client, and needs its certificate's number.
    folder.revoke_serial(&alice.peer().unwrap().serial).unwrap();
    assert!(refused(&server, &alice).contains("revoked"));
    // The first server's certificate anew: clients notice nothing.
    drop(server);
    authority.folder.renew().unwrap();
    let server = authority.serve(&host);
    drop(connect(&server, &alice));
    drop(server);
    host.finish();
}

#[test]
fn damaged_identities_are_refused_without_showing_them() {
    let authority = Authority::new();
    let identity = authority.invite("alice");
    let (text, token) = (identity.to_text(), identity.to_token());
    for whole in [&text, &token, &format!("\n{token}\n")] {
        let parsed = Identity::parse(whole).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.peer()), ("alice", identity.peer()));
    }
    assert!(!format!("{identity:?}").contains("PRIVATE"));
    assert!(Identity::is_token(&token) && token.len() < 4096, "{}", token.len());
    let secret = text.lines().rev().find(|line| line.len() == 64).unwrap();
    for n in (0..token.len()).step_by(7) {
        for damaged in [
            &token[..n],
            &text[..n.min(text.len())],
            &format!("{}*{}", &token[..n], &token[n + 1..]),
        ] {
            if let Err(error) = Identity::parse(damaged) {
                assert!(!error.to_string().contains(&secret[..16]), "{error}");
            }
        }
    }
}
