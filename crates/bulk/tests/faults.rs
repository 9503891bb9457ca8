//! Connections that are cut anywhere, servers that are started anew: nothing is lost, nothing is done twice.

#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, reason = "tests")]

mod common;

use std::fs::File as LocalFile;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::copy::{
    Copied, CopyError, CopyOptions, Download, Upload, download, part_name, upload,
};
use braid_bulk::error::Error;
use braid_bulk::wire::OpenFlags;
use braid_fs::{Errno, Fs, SetAttr};
use braid_testkit::wait_until;

use common::{Host, Proxy, client_options, connect, noise};

/// What a node reads of a file at the top.
fn contents(fs: &Fs, name: &[u8]) -> Option<Vec<u8>> {
    let attr = fs.lookup(fs.root(), name).ok()?;
    let fh = fs.open(attr.ino, 0).unwrap();
    let mut memory = braid_device::AlignedBuf::zeroed(usize::try_from(attr.size).unwrap());
    fs.read(fh, 0, &mut memory).unwrap();
    fs.release(fh).unwrap();
    fs.forget(attr.ino).unwrap();
    Some(memory.to_vec())
}

/// All kinds of requests that must not be done twice, each once; how the directory is then.
fn work(client: &Client, round: i64) {
    let root = client.root();
    let name = format!("file{round}");
    let file = client.create(root, name.as_bytes(), 0o600, false).unwrap();
    file.append(1, b"one ").unwrap();
    file.append(2, b"two ").unwrap();
    file.append(1, b"three").unwrap();
    client.mkdir(root, b"dir", 0o700).unwrap();
    client.rename((root, name.as_bytes()), (root, b"moved"), true).unwrap();
    client.rmdir(root, b"dir").unwrap();
    let read = file.read(2, (0, 100), <[u8]>::to_vec).unwrap();
    assert_eq!(read, b"one two three", "cut at {round}");
    file.commit().unwrap();
    file.close().unwrap();
    client.unlink(root, b"moved").unwrap();
    assert_eq!(client.readdir(root).unwrap().len(), 2, "cut at {round}");
}

/// Cuts after each of the first bytes of a direction: all headers, arguments and data of all requests.
#[test]
fn a_cut_at_any_byte_does_each_request_once() {
    let host = Host::new(128);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    for direction in [0, 1] {
        let mut cuts = 0;
        for bytes in (0..6000).step_by(101) {
            proxy.cut_after(direction, bytes);
            let client = connect(proxy.address);
            work(&client, bytes);
            cuts += u32::from(proxy.has_cut(direction));
            proxy.no_cut();
        }
        // Some were after the end.
        assert!(cuts > 12, "{cuts} cuts in direction {direction}");
    }
    drop(server);
    host.finish();
}

#[test]
fn a_request_that_a_new_server_cannot_know_of_is_not_sent_again() {
    let host = Host::new(64);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let client = connect(proxy.address);
    let file = client.create(client.root(), b"file", 0o600, false).unwrap();
    file.write(1, (0, b"kept"), true).unwrap();
    // The request arrives, the reply does not, and the server is another one afterwards.
    proxy.cut_after(1, 0);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.mkdir(client.root(), b"dir", 0o700));
        wait_until("the reply is lost", || proxy.has_cut(1));
        proxy.close();
        drop(server);
        let server = host.serve();
        proxy.open_to(server.address());
        let asked = asked.join().unwrap();
        assert!(matches!(asked, Err(Error::Ambiguous)), "{asked:?}");
        // What may be done again is, with files opened anew.
        assert_eq!(client.lookup(client.root(), b"dir").unwrap().nlink, 2);
        assert_eq!(file.read(1, (0, 10), <[u8]>::to_vec).unwrap(), b"kept");
        let verifier = file.write(2, (4, b" on"), false).unwrap().verifier;
        assert_eq!(verifier, file.commit().unwrap());
        client.unlink(client.root(), b"file").unwrap();
        // It was open: its contents stay as long as this server.
        assert_eq!(file.read(1, (0, 10), <[u8]>::to_vec).unwrap(), b"kept on");
        proxy.close();
        drop(server);
        let server = host.serve();
        proxy.open_to(server.address());
        let gone = file.read(1, (0, 10), <[u8]>::to_vec).unwrap_err();
        assert!(matches!(gone, Error::Gone), "{gone}");
        drop(file);
        drop(server);
    });
    drop(client);
    host.finish();
}

struct Local {
    dir: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Local {
    fn new(len: usize) -> Self {
        let local = Self { dir: tempfile::tempdir().unwrap(), bytes: noise(len, 9) };
        LocalFile::create(local.path()).unwrap().write_all(&local.bytes).unwrap();
        local
    }
    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("source")
    }
    fn put(&self, client: &Client, options: &CopyOptions) -> Result<Copied, CopyError> {
        let source = LocalFile::open(self.path()).unwrap();
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        upload(client, &Upload { source: &source, dir: client.root(), name: b"copy", set }, options)
    }
}

fn options(chunk: u32) -> CopyOptions {
    CopyOptions { chunk, verify: true, progress: Arc::default() }
}

fn impatient(proxy: &Proxy) -> ClientOptions {
    ClientOptions { patience: Duration::from_millis(200), ..client_options(proxy.address) }
}

fn get(client: &Client, dir: &Path, options: &CopyOptions) -> Result<Copied, CopyError> {
    let source = client.lookup(client.root(), b"copy")?;
    let what = Download { source: &source, dir, name: "back".as_ref() };
    download(client, &what, options, |_| Ok(()))
}

#[test]
fn copies_are_whole_whatever_is_cut() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    for len in [0, 1, 65_536, (5 << 20) + 777] {
        let local = Local::new(len);
        let client = connect(proxy.address);
        for round in 0..3 {
            proxy.cut_after(0, (len as i64 / 3) * round + 11);
            let copied = local.put(&client, &options(256 << 10)).unwrap();
            assert_eq!(copied.size, len as u64);
            assert_eq!(contents(&host.fs, b"copy").unwrap(), local.bytes);
            proxy.cut_after(1, (len as i64 / 3) * round + 11);
            get(&client, local.dir.path(), &options(300_001)).unwrap();
            assert_eq!(std::fs::read(local.dir.path().join("back")).unwrap(), local.bytes);
        }
        proxy.no_cut();
    }
    let client = connect(server.address());
    // Nothing else is left: the copy, and the two dots.
    assert_eq!(client.readdir(client.root()).unwrap().len(), 3);
    assert_eq!(client.lookup(client.root(), b"copy").unwrap().mode, 0o100_644);
    drop((client, server));
    host.finish();
}

#[test]
fn a_copy_that_was_broken_off_goes_on_from_what_is_there() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let local = Local::new(8 << 20);
    // In the middle the way is cut for good.
    let begin = |run: &dyn Fn(&Client, &CopyOptions) -> Result<Copied, CopyError>| {
        let options = CopyOptions { verify: false, ..options(256 << 10) };
        let client = Client::connect(impatient(&proxy)).unwrap();
        std::thread::scope(|scope| {
            let progress: &AtomicU64 = &options.progress;
            scope.spawn(|| {
                wait_until("a part is done", || progress.load(Ordering::Relaxed) >= 2 << 20);
                proxy.close();
            });
            let failed = run(&client, &options);
            progress.store(u64::MAX, Ordering::Relaxed);
            assert!(
                matches!(failed, Err(CopyError::Server(Error::Unreachable { .. }))),
                "{failed:?}"
            );
        });
        proxy.open_to(server.address());
    };
    begin(&|client, options| local.put(client, options));
    assert!(contents(&host.fs, b"copy").is_none(), "it has its name too early");
    // The lock of the client that is gone is waited for.
    let client = connect(proxy.address);
    let copied = local.put(&client, &options(256 << 10)).unwrap();
    assert!(copied.sent <= 6 << 20, "{copied:?}");
    assert_eq!(contents(&host.fs, b"copy").unwrap(), local.bytes);
    begin(&|client, options| get(client, local.dir.path(), options));
    assert!(!local.dir.path().join("back").exists());
    let copied = get(&client, local.dir.path(), &options(256 << 10)).unwrap();
    assert!(copied.sent <= 6 << 20, "{copied:?}");
    assert_eq!(std::fs::read(local.dir.path().join("back")).unwrap(), local.bytes);
    // A part file of something else, longer than this.
    let part = client.create(client.root(), &part_name(b"copy"), 0o600, false).unwrap();
    for n in 0..12 {
        part.write(1, (n << 20, &noise(1 << 20, n)), false).unwrap();
    }
    part.close().unwrap();
    let copied = local.put(&client, &options(0)).unwrap();
    assert_eq!((copied.sent, copied.size), (8 << 20, 8 << 20));
    assert_eq!(contents(&host.fs, b"copy").unwrap(), local.bytes);
    drop((client, server));
    host.finish();
}

/// Starts the server anew in the middle of a copy; `lose` takes away what it had not made durable.
fn copy_over_a_restart(lose: impl Fn(&Fs, &[u8])) {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let local = Local::new(16 << 20);
    let options = options(256 << 10);
    let client = connect(proxy.address);
    let copied = std::thread::scope(|scope| {
        let copy = scope.spawn(|| local.put(&client, &options));
        let done = || options.progress.load(Ordering::Relaxed);
        wait_until("a part is done", || done() >= 4 << 20);
        proxy.close();
        drop(server);
        lose(&host.fs, &part_name(b"copy"));
        let server = host.serve();
        proxy.open_to(server.address());
        let copied = copy.join().unwrap().unwrap();
        drop(server);
        copied
    });
    assert_eq!(contents(&host.fs, b"copy").unwrap(), local.bytes);
    assert!(copied.size == 16 << 20 && copied.sent >= 16 << 20, "{copied:?}");
    drop(client);
    host.finish();
}

#[test]
fn what_a_server_lost_is_sent_again() {
    copy_over_a_restart(|fs, part| {
        // The first bytes that it had acknowledged.
        let attr = fs.lookup(fs.root(), part).unwrap();
        let fh = fs.open(attr.ino, 2).unwrap();
        let punch_and_keep_size = 3;
        fs.fallocate(fh, punch_and_keep_size, 0, 1 << 20).unwrap();
        fs.release(fh).unwrap();
        fs.forget(attr.ino).unwrap();
    });
}

#[test]
fn a_part_file_that_a_server_lost_is_made_again() {
    copy_over_a_restart(|fs, part| fs.unlink(fs.root(), part).unwrap());
}

#[test]
fn two_copies_to_one_place_do_not_mix_and_changed_sources_are_noticed() {
    let host = Host::new(256);
    let server = host.serve();
    let local = Local::new(4 << 20);
    let client = connect(server.address());
    let part = client.create(client.root(), &part_name(b"copy"), 0o600, true).unwrap();
    let other = connect(server.address());
    std::thread::scope(|scope| {
        // As long as the first client shows signs of life, as it does by itself.
        let busy = scope.spawn(|| local.put(&other, &options(0)));
        assert!(matches!(busy.join().unwrap(), Err(CopyError::Busy)));
    });
    part.close().unwrap();
    local.put(&client, &options(0)).unwrap();
    // Somebody writes to the source while it is read.
    let attr = client.lookup(client.root(), b"copy").unwrap();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let writer = other.open(&attr, flags).unwrap();
    let what = Download { source: &attr, dir: local.dir.path(), name: "back".as_ref() };
    let progress = Arc::<AtomicU64>::default();
    let slow = CopyOptions { chunk: 4096, verify: false, progress: progress.clone() };
    let changed = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("it is read", || progress.load(Ordering::Relaxed) > 0);
            writer.write(1, (5, b"newer"), true).unwrap();
        });
        download(&client, &what, &slow, |_| Ok(()))
    });
    assert!(matches!(changed, Err(CopyError::Changed)), "{changed:?}");
    assert_eq!(
        other.lookup(other.root(), &part_name(b"copy")).unwrap_err().errno(),
        Some(Errno::NOENT)
    );
    drop((writer, client, other, server));
    host.finish();
}
