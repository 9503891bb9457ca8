//! A file system that another host serves: cut connections, servers that begin anew, and clients that mean harm.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_bulk::client::ClientOptions;
use braid_bulk::link::{Buffer, Link};
use braid_bulk::remote::RemoteFs;
use braid_bulk::server::{References, Server, ServerOptions, Squash};
use braid_bulk::wire::{
    Begin, Caller, DATA_MAX, Hello, LeaseNote, LockRequest, MOUNT_VERSION, MountRequest, Reply,
    Request, Status,
};
use braid_format::InodeNo;
use braid_fs::{Cred, Errno, FileSystem, Fs, Plock, PlockKind, SetAttr, Write, WriteFlags};
use braid_testkit::wait_until;

use common::{Host, Proxy, client_options, noise};

const O_RDWR: i32 = 2;
const O_EXCL: i32 = 0o200;
const ROOT: Cred = Cred { uid: 0, gid: 0, pid: 0, umask: 0 };
const USER: Cred = Cred { uid: 1000, gid: 1000, pid: 0, umask: 0 };

fn mount(options: ClientOptions) -> RemoteFs {
    RemoteFs::connect(options, &[], Arc::<References>::default(), true).unwrap()
}

fn write(fs: &RemoteFs, fh: u64, offset: u64, bytes: &[u8]) -> usize {
    fs.write(fh, Write { offset, bytes, flags: WriteFlags::default() }, &mut ()).unwrap()
}

fn append(fs: &RemoteFs, fh: u64, bytes: &[u8]) {
    let flags = WriteFlags { append: true, ..WriteFlags::default() };
    fs.write(fh, Write { offset: 0, bytes, flags }, &mut ()).unwrap();
}

fn read(fs: &RemoteFs, fh: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut memory = vec![0; len];
    let (n, ()) =
        fs.read_into(fh, offset, u32::try_from(len).unwrap(), false, &mut memory).unwrap();
    memory.truncate(n);
    memory
}

fn lock(kind: PlockKind, owner: u64) -> Plock {
    Plock { start: 0, end: u64::MAX, kind, owner, pid: 7, uid: 0 }
}

/// Each of many changes is made once, wherever a connection is cut.
#[test]
fn changes_are_made_once_whatever_is_cut() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    for round in 0..60_i64 {
        proxy.cut_after(usize::from(round % 2 == 0), round * 37);
        let name = |word: &str| format!("{word}{round}").into_bytes();
        let dir = fs.mkdir(root, &name("dir"), 0o755, &ROOT).unwrap();
        let (file, fh) = fs.create(dir.ino, b"a", 0o600, O_RDWR | O_EXCL, &ROOT).unwrap();
        for word in [&b"one "[..], b"two ", b"three"] {
            append(&fs, fh, word);
        }
        fs.link(file.ino, dir.ino, b"b").unwrap();
        fs.rename((dir.ino, b"a"), (root, &name("moved")), 0).unwrap();
        fs.symlink(dir.ino, b"s", b"target", &ROOT).unwrap();
        fs.setxattr(file.ino, b"user.x", b"value", 1).unwrap();
        fs.unlink(dir.ino, b"b").unwrap();
        assert_eq!(read(&fs, fh, 0, 100), b"one two three", "{round}");
        assert_eq!(fs.getattr(file.ino).unwrap().nlink, 1);
        assert_eq!(fs.getxattr(file.ino, b"user.x").unwrap(), b"value");
        fs.fsync(fh, false).unwrap();
        fs.release(fh).unwrap();
        fs.unlink(dir.ino, b"s").unwrap();
        fs.rmdir(root, &name("dir")).unwrap();
    }
    proxy.no_cut();
    let mut names = 0;
    fs.readdir(root, 0, false, &mut |_| {
        names += 1;
        false
    })
    .unwrap();
    assert_eq!(names, 62);
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// Files stay open, locks held and waits waited for; what was removed is gone.
#[test]
fn a_server_that_begins_anew_finds_everything_as_it_was() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let (fs, other) = (mount(client_options(proxy.address)), mount(client_options(proxy.address)));
    let root = fs.root();
    let (file, fh) = fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    let (_, removed) = fs.create(root, b"removed", 0o600, O_RDWR, &ROOT).unwrap();
    fs.unlink(root, b"removed").unwrap();
    fs.fsync(fh, false).unwrap();
    let bytes = noise(3 << 20, 5);
    assert_eq!(write(&fs, fh, 0, &bytes), bytes.len());
    assert_eq!(fs.status().pending, bytes.len());
    fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    let theirs = other.lookup(root, b"file").unwrap();
    let their_fh = other.open(theirs.ino, O_RDWR).unwrap();
    let (told, hears) = channel();
    let done = Box::new(move |how| told.send(how).unwrap());
    let wait = other.lock_later(theirs.ino, &lock(PlockKind::Exclusive, 1), true, done).unwrap();
    assert!(wait.is_some());
    for _ in 0..2 {
        assert_eq!(write(&fs, fh, 0, &bytes), bytes.len());
        proxy.close();
        drop(server);
        server = host.serve();
        // As if what was not durable had been lost.
        let attr = host.fs.lookup(root, b"file").unwrap();
        host.fs.setattr(attr.ino, &SetAttr { size: Some(10), ..SetAttr::default() }, None).unwrap();
        host.fs.forget(attr.ino).unwrap();
        proxy.open_to(server.address());
        assert!(read(&fs, fh, 0, bytes.len()) == bytes);
        assert_eq!(read_errno(&fs, removed), Errno::STALE);
        assert_eq!(other.flock(theirs.ino, &lock(PlockKind::Exclusive, 9)), Err(Errno::AGAIN));
    }
    assert!(hears.try_recv().is_err(), "it waits still");
    fs.flock(file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    hears.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    wait_until("it is durable before anybody asks for it", || fs.status().pending == 0);
    // Appended, and not durable: whoever asks hears that it may be lost.
    append(&fs, fh, b"more");
    server = host.restart(server, &proxy);
    assert_eq!(fs.fsync(fh, false), Err(Errno::IO));
    fs.fsync(fh, false).unwrap();
    other.release(their_fh).unwrap();
    other.finish().unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

fn read_errno(fs: &RemoteFs, fh: u64) -> Errno {
    fs.read_into(fh, 0, 10, false, &mut [0; 10]).unwrap_err()
}

/// A session that ends, for whatever reason, gives up what its programs have locked.
#[test]
fn locks_end_with_their_session() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let gone = mount(client_options(proxy.address));
    let fs = mount(client_options(server.address()));
    let root = fs.root();
    let (file, fh) = fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    let theirs = gone.lookup(root, b"file").unwrap().ino;
    gone.open(theirs, O_RDWR).unwrap();
    gone.setlk(theirs, &Plock { end: 9, ..lock(PlockKind::Exclusive, 3) }).unwrap();
    gone.flock(theirs, &lock(PlockKind::Exclusive, 4)).unwrap();
    // Another client's owner of the same number is another owner.
    assert_eq!(fs.setlk(file.ino, &lock(PlockKind::Shared, 3)), Err(Errno::AGAIN));
    let found = fs.getlk(file.ino, &lock(PlockKind::Shared, 3)).unwrap().unwrap();
    assert_eq!((found.start, found.end, found.pid), (0, 9, 0));
    let (told, hears) = channel();
    let done = Box::new(move |how| told.send(how).unwrap());
    assert!(fs.lock_later(file.ino, &lock(PlockKind::Exclusive, 1), true, done).unwrap().is_some());
    proxy.close();
    hears.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
    fs.setlk(file.ino, &lock(PlockKind::Exclusive, 3)).unwrap();
    // A wait that is broken off.
    let second = mount(client_options(server.address()));
    let ino = second.lookup(root, b"file").unwrap().ino;
    second.open(ino, O_RDWR).unwrap();
    let (told, hears) = channel();
    let done = Box::new(move |how| told.send(how).unwrap());
    let wait = second.lock_later(ino, &lock(PlockKind::Exclusive, 1), false, done).unwrap();
    second.end_lock_wait(wait.unwrap());
    assert_eq!(hears.recv_timeout(Duration::from_secs(10)).unwrap(), Err(Errno::INTR));
    fs.release(fh).unwrap();
    second.setlk(ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    gone.closing();
    second.finish().unwrap();
    fs.finish().unwrap();
    drop((gone, server));
    host.finish();
}

/// What a program wrote under a lock is durable before another has the lock: it is not written once more, over what
/// the other wrote, when the server begins anew.
#[test]
fn what_was_written_under_a_lock_is_not_written_again_over_what_came_after_it() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    let (file, fh) = fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    let theirs = FileSystem::open(&host.fs, file.ino, O_RDWR).unwrap();
    for (round, late) in [false, true].into_iter().enumerate() {
        let (old, new) = (format!("old {round}").into_bytes(), format!("new {round}").into_bytes());
        fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
        write(&fs, fh, 0, &old);
        if late {
            proxy.close();
            wait_until("it is noticed", || !fs.status().is_connected);
        }
        fs.flock(file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
        if late {
            // It is still ours, at the server that comes.
            assert_eq!(
                FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Exclusive, 1)),
                Err(Errno::AGAIN)
            );
            proxy.open_to(server.address());
        }
        wait_until("the lock is free", || {
            FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Exclusive, 1)).is_ok()
        });
        let what = Write { offset: 0, bytes: &new, flags: WriteFlags::default() };
        FileSystem::write(&host.fs, theirs, what, &mut ()).unwrap();
        FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
        server = host.restart(server, &proxy);
        assert_eq!(read(&fs, fh, 0, 100), new);
    }
    FileSystem::release(&host.fs, theirs).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// The lock may be on another file than what is written under it.
#[test]
fn what_was_written_under_the_lock_of_another_file_is_not_written_again_either() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    let (guard, _) = fs.create(root, b"lock", 0o600, O_RDWR, &ROOT).unwrap();
    let (data, fh) = fs.create(root, b"data", 0o600, O_RDWR, &ROOT).unwrap();
    let theirs = FileSystem::open(&host.fs, data.ino, O_RDWR).unwrap();
    fs.flock(guard.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    write(&fs, fh, 0, b"old");
    fs.flock(guard.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    FileSystem::flock(&host.fs, guard.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    let what = Write { offset: 0, bytes: b"new", flags: WriteFlags::default() };
    FileSystem::write(&host.fs, theirs, what, &mut ()).unwrap();
    FileSystem::fsync(&host.fs, theirs, false).unwrap();
    FileSystem::flock(&host.fs, guard.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    server = host.restart(server, &proxy);
    assert_eq!(read(&fs, fh, 0, 100), b"new");
    fs.fsync(fh, false).unwrap();
    FileSystem::release(&host.fs, theirs).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// A program of another node may have had the lock before the client could take it again, and have changed what it
/// protects: the lock is lost, and what was not durable is not written over that.
#[test]
fn a_lock_is_not_taken_again_beside_another_node() {
    let host = Host::new(256);
    let other = host.second();
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let (file, fh) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    write(&fs, fh, 0, b"old");
    let attr = FileSystem::lookup(&other, fs.root(), b"file").unwrap();
    let theirs = FileSystem::open(&other, attr.ino, O_RDWR).unwrap();
    proxy.close();
    drop(server);
    wait_until("the lock is free", || {
        FileSystem::flock(&other, attr.ino, &lock(PlockKind::Exclusive, 1)).is_ok()
    });
    let what = Write { offset: 0, bytes: b"new", flags: WriteFlags::default() };
    FileSystem::write(&other, theirs, what, &mut ()).unwrap();
    FileSystem::fsync(&other, theirs, false).unwrap();
    FileSystem::flock(&other, attr.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    server = host.serve();
    proxy.open_to(server.address());
    wait_until("the lock is lost", || {
        matches!(fs.read_into(fh, 0, 10, false, &mut [0; 10]), Err(Errno::IO))
    });
    fs.release(fh).ok();
    let mut found = [0; 10];
    let (n, _) = FileSystem::read_into(&other, theirs, 0, 10, false, &mut found).unwrap();
    assert_eq!(&found[..n], b"new");
    FileSystem::release(&other, theirs).unwrap();
    fs.finish().ok();
    drop(server);
    other.unmount().unwrap();
    host.finish();
}

/// One program's close does not give up what another has locked, also at a server that has begun anew.
#[test]
fn a_close_leaves_the_locks_of_others_alone_after_a_restart() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let (file, mut first) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    fs.fsync(first, false).unwrap();
    for before in [true, false] {
        let second = fs.open(file.ino, O_RDWR).unwrap();
        if before {
            fs.setlk(file.ino, &lock(PlockKind::Exclusive, 2)).unwrap();
        }
        server = host.restart(server, &proxy);
        fs.getattr(file.ino).unwrap();
        if !before {
            // The server gives nobody new locks for a while.
            let locks = || fs.setlk(file.ino, &lock(PlockKind::Exclusive, 2));
            wait_until("it is locked", || locks().is_ok());
        }
        fs.release(first).unwrap();
        assert_eq!(
            FileSystem::setlk(&host.fs, file.ino, &lock(PlockKind::Exclusive, 1)),
            Err(Errno::AGAIN),
            "{before}"
        );
        fs.setlk(file.ino, &lock(PlockKind::Unlock, 2)).unwrap();
        first = second;
    }
    fs.release(first).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// A lock that is given up while the network is cut, and taken again, stays.
#[test]
fn a_late_unlock_does_not_take_the_next_lock_with_it() {
    let host = Host::new(256);
    let server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let (file, fh) = fs.create(fs.root(), b"file", 0o600, O_RDWR, &ROOT).unwrap();
    fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    proxy.close();
    wait_until("it is noticed", || !fs.status().is_connected);
    fs.flock(file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    let again = fs.clone();
    let locks = std::thread::spawn(move || again.flock(file.ino, &lock(PlockKind::Exclusive, 1)));
    std::thread::sleep(Duration::from_millis(300));
    proxy.open_to(server.address());
    locks.join().unwrap().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        assert_eq!(
            FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Exclusive, 1)),
            Err(Errno::AGAIN)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    fs.release(fh).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// Has a name in the root directory renamed to "moved", or removed. That is done at the server, but its reply does not
/// come; the network is cut then. What comes of it for the program.
fn take_unanswered(
    (host, proxy): (&Host, &Proxy),
    fs: &RemoteFs,
    name: &'static [u8],
    renames: bool,
) -> JoinHandle<Result<(), Errno>> {
    let (there, root) = (fs.clone(), fs.root());
    proxy.lose_replies();
    let takes = std::thread::spawn(move || {
        if renames {
            there.rename((root, name), (root, b"moved"), 0)
        } else {
            there.unlink(root, name)
        }
    });
    wait_until("it is done", || {
        matches!(FileSystem::lookup(&host.fs, root, name), Err(Errno::NOENT))
    });
    proxy.close();
    takes
}

/// What a server has removed or renamed without an answer is not removed or renamed once more: another may have made
/// something of that name since.
#[test]
fn a_name_is_taken_once_whatever_others_make_of_it() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    for renames in [false, true] {
        fs.mknod(root, b"lock", 0o100_600, 0, &ROOT).unwrap();
        fs.lookup(root, b"lock").unwrap();
        let takes = take_unanswered((&host, &proxy), &fs, b"lock", renames);
        let anew = FileSystem::mknod(&host.fs, root, b"lock", 0o100_600, 0, &ROOT).unwrap();
        drop(server);
        server = host.serve();
        proxy.no_cut();
        proxy.open_to(server.address());
        takes.join().unwrap().unwrap();
        let found = FileSystem::lookup(&host.fs, root, b"lock").unwrap();
        assert_eq!((found.ino, found.generation), (anew.ino, anew.generation), "{renames}");
        // As the kernel does before it has a name removed.
        fs.lookup(root, b"lock").unwrap();
        fs.unlink(root, b"lock").unwrap();
        for ino in [found.ino; 2] {
            FileSystem::forget(&host.fs, ino).unwrap();
        }
    }
    fs.unlink(root, b"moved").unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// The same, if another has made the name lead to the same inode again, or something of the name that it was to become:
/// nobody knows then what was done.
#[test]
fn a_name_that_another_has_made_again_is_not_taken() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    for renames in [false, true] {
        let file = fs.mknod(root, b"one", 0o100_600, 0, &ROOT).unwrap();
        fs.link(file.ino, root, b"two").unwrap();
        fs.lookup(root, b"one").unwrap();
        assert_eq!(fs.lookup(root, b"moved").unwrap_err(), Errno::NOENT);
        let takes = take_unanswered((&host, &proxy), &fs, b"one", renames);
        if renames {
            FileSystem::rename(&host.fs, (root, b"moved"), (root, b"one"), 0).unwrap();
            FileSystem::mknod(&host.fs, root, b"moved", 0o100_600, 0, &ROOT).unwrap();
        } else {
            FileSystem::link(&host.fs, file.ino, root, b"one").unwrap();
        }
        drop(server);
        server = host.serve();
        proxy.no_cut();
        proxy.open_to(server.address());
        assert_eq!(takes.join().unwrap(), Err(Errno::IO), "{renames}");
        for name in [&b"one"[..], b"two"] {
            assert_eq!(fs.lookup(root, name).unwrap().ino, file.ino);
            fs.unlink(root, name).unwrap();
        }
    }
    fs.unlink(root, b"moved").unwrap();
    assert_eq!(fs.lookup(root, &[b'n'; 256]).unwrap_err(), Errno::NAMETOOLONG);
    assert_eq!(fs.lookup(root, &[b'n'; 255]).unwrap_err(), Errno::NOENT);
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// What a program wrote before it closed a file is not written once more over what another wrote that opened it then.
#[test]
fn what_was_written_to_a_closed_file_is_not_written_again() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    let root = fs.root();
    let (file, fh) = fs.create(root, b"file", 0o600, O_RDWR, &ROOT).unwrap();
    write(&fs, fh, 0, b"old");
    // Another descriptor of the open file stays.
    fs.flush(fh, 0).unwrap();
    let theirs = FileSystem::open(&host.fs, file.ino, O_RDWR).unwrap();
    let what = Write { offset: 0, bytes: b"new", flags: WriteFlags::default() };
    FileSystem::write(&host.fs, theirs, what, &mut ()).unwrap();
    server = host.restart(server, &proxy);
    assert_eq!(read(&fs, fh, 0, 100), b"new");
    FileSystem::release(&host.fs, theirs).unwrap();
    fs.release(fh).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// Locks that a server which lives has given up are lost, and so are those that are asked for again too late.
#[test]
fn a_lock_that_others_may_have_had_is_lost_with_its_file() {
    let host = Host::new(256);
    let mut server = host.serve();
    let proxy = Proxy::to(server.address());
    let fs = mount(client_options(proxy.address));
    for restarts in [false, true] {
        let (file, fh) =
            fs.create(fs.root(), &[u8::from(restarts) + b'a'], 0o600, O_RDWR, &ROOT).unwrap();
        fs.fsync(fh, false).unwrap();
        let (data, data_fh) = fs.create(fs.root(), b"data", 0o600, O_RDWR, &ROOT).unwrap();
        fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
        write(&fs, data_fh, 0, b"old");
        proxy.close();
        if restarts {
            drop(server);
            server = host.serve();
        }
        // Somebody has it for a moment.
        wait_until("it is free", || {
            FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Exclusive, 1)).is_ok()
        });
        let theirs = FileSystem::open(&host.fs, data.ino, O_RDWR).unwrap();
        let what = Write { offset: 0, bytes: b"new", flags: WriteFlags::default() };
        FileSystem::write(&host.fs, theirs, what, &mut ()).unwrap();
        FileSystem::release(&host.fs, theirs).unwrap();
        FileSystem::flock(&host.fs, file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
        std::thread::sleep(Host::options().grace);
        proxy.open_to(server.address());
        assert_eq!(read_errno(&fs, fh), Errno::IO, "{restarts}");
        // What was written under the lock to another file is not written once more, and that is told.
        assert_eq!(read(&fs, data_fh, 0, 9), b"new");
        assert_eq!(fs.fsync(data_fh, false), if restarts { Err(Errno::IO) } else { Ok(()) });
        fs.unlink(fs.root(), b"data").unwrap();
        fs.release(data_fh).unwrap();
        fs.release(fh).unwrap();
    }
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

/// A client that says what it likes, one message after the other.
struct Hostile {
    link: Link,
    buffer: Buffer,
    sequence: u64,
}

impl Hostile {
    fn new(server: &Server<Fs>) -> Self {
        let link = Link::new(TcpStream::connect(server.address()).unwrap()).unwrap();
        let mut hostile = Self { link, buffer: Buffer::new(DATA_MAX), sequence: 0 };
        let (pool, client) = (b"test".to_vec(), b"hostile".to_vec());
        let hello = Hello { version: MOUNT_VERSION, begin: Begin::Session, slot: 0, pool, client };
        assert!(hostile.ask(None, &Request::Hello(hello), b"").is_ok());
        hostile.sequence = 0;
        hostile
    }
    fn ask(
        &mut self,
        caller: Option<&Caller>,
        request: &Request,
        data: &[u8],
    ) -> Result<Reply, Status> {
        let (mut header, mut args) = request.encode();
        self.sequence += 1;
        header.sequence = self.sequence;
        if let Some(caller) = caller {
            header.prefixed = true;
            args.splice(..0, caller.encode());
        }
        self.link.send(header, &args, data).unwrap();
        let begun = Instant::now();
        let patience = || begun.elapsed() < Duration::from_secs(20);
        let received = self.link.receive(&mut self.buffer, patience).unwrap();
        match received.header.status {
            0 => {
                let (_, args) = LeaseNote::split(&received.header, &received.args).unwrap();
                Ok(Reply::decode(&received.header, args).unwrap())
            }
            status => Err(Status(status)),
        }
    }
}

/// What somebody who neither owns a file nor may write it may not set, and what he is told.
fn for_owners_only() -> [(SetAttr, Errno); 7] {
    let nothing = SetAttr::default();
    [
        (SetAttr { mode: Some(0o777), ..nothing }, Errno::PERM),
        (SetAttr { uid: Some(1000), ..nothing }, Errno::PERM),
        (SetAttr { gid: Some(1000), ..nothing }, Errno::PERM),
        // What it has already: that would take the set-user-ID bit away.
        (SetAttr { uid: Some(0), ..nothing }, Errno::PERM),
        (SetAttr { gid: Some(0), ..nothing }, Errno::PERM),
        (SetAttr { kill_privileges: true, ..nothing }, Errno::ACCESS),
        (nothing, Errno::PERM),
    ]
}

#[test]
fn a_hostile_client_reaches_nothing_that_its_users_may_not() {
    let host = Host::new(256);
    let server = host.serve();
    let fs = mount(client_options(server.address()));
    let root = fs.root();
    let dir = fs.mkdir(root, b"private", 0o700, &ROOT).unwrap();
    let (file, fh) = fs.create(dir.ino, b"file", 0o644, O_RDWR, &ROOT).unwrap();
    let mut hostile = Hostile::new(&server);
    let user = |generations| Caller { generations, uid: 1000, gid: 1000, groups: vec![] };
    let errno = |result: Result<Reply, Status>| result.unwrap_err().errno().unwrap();
    let name = b"file".to_vec();
    let mut ask =
        |generations, request: &Request| errno(hostile.ask(Some(&user(generations)), request, b""));
    let here = [dir.generation, 0];
    // Numbers that it has guessed, with no generation or another.
    for generation in [0, file.generation ^ 1] {
        assert_eq!(ask([generation, 0], &Request::GetAttr { ino: file.ino }), Errno::STALE);
    }
    assert_eq!(ask(here, &Request::Lookup { dir: dir.ino, name: name.clone() }), Errno::ACCESS);
    assert_eq!(ask(here, &Request::Unlink { dir: dir.ino, name: name.clone() }), Errno::ACCESS);
    let list = Request::ReadDir { dir: dir.ino, cookie: 0, length: 4096, handle: 99 };
    assert_eq!(ask(here, &list), Errno::ACCESS);
    let open = |flags| MountRequest::OpenAs { ino: dir.ino, flags, again: true };
    assert_eq!(ask(here, &Request::Mount(open(0))), Errno::ACCESS);
    let known = [file.generation, 0];
    let write = MountRequest::OpenAs { ino: file.ino, flags: 1, again: true };
    assert_eq!(ask(known, &Request::Mount(write)), Errno::ACCESS);
    let cut = MountRequest::OpenAs { ino: file.ino, flags: 0o1000, again: false };
    assert_eq!(ask(known, &Request::Mount(cut)), Errno::ACCESS);
    let privileged = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    fs.setattr(file.ino, &privileged, None).unwrap();
    for (set, error) in for_owners_only() {
        let asked = Request::SetAttr { ino: file.ino, set, handle: 1 };
        assert_eq!(ask(known, &asked), error, "{set:?}");
    }
    assert_eq!(host.fs.getattr(file.ino).unwrap().mode, 0o106_755);
    let folders = [b"one", b"two"].map(|name| {
        let folder = fs.mkdir(root, name, 0o755, &ROOT).unwrap();
        let set = SetAttr { uid: Some(1000), ..SetAttr::default() };
        fs.setattr(folder.ino, &set, None).unwrap()
    });
    for (folder, uid) in folders.iter().zip([1000, 0]) {
        let inside = fs.mkdir(folder.ino, b"inside", 0o755, &ROOT).unwrap();
        fs.setattr(inside.ino, &SetAttr { uid: Some(uid), ..SetAttr::default() }, None).unwrap();
    }
    let both = folders.each_ref().map(|folder| folder.generation);
    let [from, to] = folders.each_ref().map(|folder| (folder.ino, b"inside".to_vec()));
    let exchange = MountRequest::RenameAs { from, to, flags: 2 };
    assert_eq!(ask(both, &Request::Mount(exchange)), Errno::ACCESS);
    let acl =
        MountRequest::RemoveXattr { ino: file.ino, name: b"system.posix_acl_access".to_vec() };
    assert_eq!(ask(known, &Request::Mount(acl)), Errno::PERM);
    let into_open = [file.generation, dir.generation];
    let link = MountRequest::Link { ino: file.ino, dir: dir.ino, name: b"link".to_vec() };
    assert_eq!(ask(into_open, &Request::Mount(link)), Errno::ACCESS);
    let (name, mode) = (b"dev".to_vec(), 0o020_666);
    let device = MountRequest::MakeNode { dir: root, name, mode, umask: 0, rdev: 1 };
    fs.setattr(root, &SetAttr { mode: Some(0o777), ..SetAttr::default() }, None).unwrap();
    assert_eq!(ask([0, 0], &Request::Mount(device)), Errno::PERM);
    let nobody = InodeNo(u64::MAX);
    assert_eq!(ask([1, 0], &Request::GetAttr { ino: nobody }), Errno::STALE);
    // A umask that would take the type away.
    let (mode, umask) = (0o100_644, u32::MAX);
    let plain = MountRequest::MakeNode { dir: root, name: b"plain".to_vec(), mode, umask, rdev: 0 };
    let made = hostile.ask(Some(&user([0, 0])), &Request::Mount(plain), b"").unwrap();
    assert!(matches!(made, Reply::Attr(attr) if attr.mode == 0o100_000), "{made:?}");
    fs.release(fh).unwrap();
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

#[test]
fn a_hostile_client_holds_up_nobody() {
    let host = Host::new(256);
    let server = host.serve();
    let fs = mount(client_options(server.address()));
    let (file, _) = fs.create(fs.root(), b"file", 0o666, O_RDWR, &ROOT).unwrap();
    fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).unwrap();
    let mut hostile = Hostile::new(&server);
    let caller = Caller { generations: [file.generation, 0], ..Caller::default() };
    let open = Request::Mount(MountRequest::OpenAs { ino: file.ino, flags: 2, again: false });
    let Ok(Reply::Opened { handle, .. }) = hostile.ask(Some(&caller), &open, b"") else { panic!() };
    let wait = |wait, owner| {
        let lock = lock(PlockKind::Exclusive, owner);
        Request::Lock(LockRequest::LockWait { handle, whole: true, lock, wait })
    };
    assert_eq!(hostile.ask(None, &wait(1, 1), b""), Ok(Reply::Number(0)));
    // The same number twice; more waits than there may be.
    assert_eq!(hostile.ask(None, &wait(1, 2), b"").unwrap_err().errno(), Some(Errno::NOLCK));
    let refused = (2..6000).find(|n| hostile.ask(None, &wait(*n, *n), b"").is_err());
    assert!(refused.is_some());
    // A wait for events ends.
    let begun = Instant::now();
    let events = Request::Lock(LockRequest::Events { seen: u64::MAX, patience_ms: u32::MAX });
    assert_eq!(hostile.ask(None, &events, b""), Ok(Reply::Done));
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    let unknown = Request::Lock(LockRequest::EndWait { wait: 777_777 });
    assert_eq!(hostile.ask(None, &unknown, b""), Ok(Reply::Done));
    let copy = MountRequest::Copy { handle, offset: 0, to: 4711, to_offset: 0, len: u64::MAX };
    assert_eq!(hostile.ask(None, &Request::Mount(copy), b""), Err(Status::HANDLE));
    let name = b"user.x".to_vec();
    let long = Request::Mount(MountRequest::SetXattr { ino: file.ino, name, flags: 0 });
    let asked = hostile.ask(Some(&caller), &long, &vec![0; 100_000]);
    assert_eq!(asked.unwrap_err().errno(), Some(Errno::TOOBIG));
    let link = Request::Mount(MountRequest::SymLink { dir: fs.root(), name: b"l".to_vec() });
    let asked = hostile.ask(Some(&Caller::default()), &link, &[b'x'; 5000]);
    assert_eq!(asked.unwrap_err().errno(), Some(Errno::NAMETOOLONG));
    drop(hostile);
    // All of that is gone with it.
    fs.flock(file.ino, &lock(PlockKind::Unlock, 1)).unwrap();
    wait_until("its waits have ended", || {
        fs.flock(file.ino, &lock(PlockKind::Exclusive, 1)).is_ok()
    });
    fs.finish().unwrap();
    drop(server);
    host.finish();
}

#[test]
fn whose_word_does_not_count_is_somebody_else() {
    let host = Host::new(256);
    let options = ServerOptions { squash: Squash::All, owner: (500, 600), ..Host::options() };
    let root = host.fs.root();
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    host.fs.setattr(root, &set, None).unwrap();
    let server = host.serve_with(options);
    let fs = mount(client_options(server.address()));
    for cred in [ROOT, USER] {
        fs.set_caller(&cred);
        let name = format!("of{}", cred.uid).into_bytes();
        let (attr, fh) = fs.create(root, &name, 0o600, O_RDWR, &cred).unwrap();
        assert_eq!((attr.uid, attr.gid), (500, 600));
        fs.release(fh).unwrap();
        assert_eq!(fs.setattr(attr.ino, &SetAttr { uid: Some(0), ..set }, None), Err(Errno::PERM));
    }
    fs.set_caller(&ROOT);
    fs.finish().unwrap();
    drop(server);
    host.finish();
}
