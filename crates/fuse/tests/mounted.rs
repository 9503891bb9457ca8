//! What programs do, through a real mount of the file system in memory.

#![allow(clippy::pedantic, clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::{Bytes, InodeNo};
use braid_fs::KernelCache;
use braid_fuse::CacheNames;
use braid_testkit::wait_until;
use common::memfs::ROOT;
use common::{Mounted, PATIENCE, can_mount, python, sh};

#[test]
fn shell_commands() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    assert_eq!(fs::metadata(m.dir()).unwrap().ino(), ROOT);
    let listing = sh(
        m.dir(),
        "mkdir -p a/b; cp /bin/ls a/copy; cmp /bin/ls a/copy; mv a/copy a/b/moved; ln a/b/moved hard;
         ln -s a/b/moved soft; cmp soft hard; chmod 4711 hard; test -u a/b/moved; mkfifo fifo;
         mknod dev c 259 70000; touch -d '1965-01-02 03:04:05 UTC' old; rm -r a; cat hard | cmp - /bin/ls;
         echo one > text; echo two >> text; cat text; : > text; test ! -s text; ls -la",
    );
    assert!(listing.starts_with("one\ntwo\n"), "{listing}");
    assert!(listing.contains("259, 70000"), "{listing}");
    assert_eq!(fs::metadata(m.path("old")).unwrap().mtime(), -157_668_955);
    assert_eq!(fs::metadata(m.path("hard")).unwrap().nlink(), 1);
    assert!(fs::metadata(m.path("soft")).is_err());
    sh(m.dir(), "test $(stat -c %W hard) -gt 1000000000");
    sh(m.dir(), "df . | grep -q 4194304; touch x y; mv -n x y; test -e x; mv -T x z; test -e z");
    assert_eq!(m.terms.max_write, Bytes::MIB);
    m.end().unwrap();
}

#[test]
fn a_tree_by_tar() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    sh(m.dir(), &format!("tar -C {source} -cf - . | tar -xf -; diff -r {source} ."));
    assert!(m.path("lib.rs").exists() && m.path("abi/mod.rs").exists());
    sh(m.dir(), "find . -type f | xargs cat > /dev/null; rm -rf ./*; test -z \"$(ls)\"");
    wait_until("the kernel forgets", || {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        m.link.inodes_in_kernel() == 0
    });
    // Nobody waits for a release, and what forgets an inode may pass it.
    wait_until("released", || m.fs.open_files() == 0);
    m.end().unwrap();
}

#[test]
fn direct_requests_are_large_and_aligned() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    sh(
        m.dir(),
        "dd if=/dev/urandom of=/dev/shm/braid-fuse-$$ bs=1M count=8 status=none;
         dd if=/dev/shm/braid-fuse-$$ of=f bs=1M oflag=direct status=none;
         dd if=f of=/dev/shm/braid-fuse-$$.back bs=1M iflag=direct status=none;
         cmp f /dev/shm/braid-fuse-$$; cmp /dev/shm/braid-fuse-$$ /dev/shm/braid-fuse-$$.back;
         rm /dev/shm/braid-fuse-$$ /dev/shm/braid-fuse-$$.back",
    );
    let seen = &m.fs.seen;
    assert_eq!(seen.largest_write.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(seen.largest_read.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(seen.writes.load(Ordering::Relaxed), 8);
    assert_eq!(seen.misaligned.load(Ordering::Relaxed), 0);
    assert!(seen.direct_reads.load(Ordering::Relaxed) >= 8);
    m.end().unwrap();
}

#[test]
fn buffered_streams_keep_several_requests_under_way() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let contents: Vec<u8> = (0..32_u32 << 20).map(|i| (i / 4096) as u8).collect();
    fs::write(m.path("big"), &contents).unwrap();
    *m.fs.read_delay.lock() = Duration::from_millis(5);
    assert!(fs::read(m.path("big")).unwrap() == contents);
    let seen = &m.fs.seen;
    assert_eq!(seen.largest_read.load(Ordering::Relaxed), 1 << 20);
    let at_once = seen.reads_at_once.load(Ordering::Relaxed);
    assert!(at_once >= 4, "{at_once} reads at a time");
    // The second time it comes from the page cache.
    let fills = seen.fills.load(Ordering::Relaxed);
    assert!(fs::read(m.path("big")).unwrap() == contents);
    assert_eq!(seen.fills.load(Ordering::Relaxed), fills);
    m.end().unwrap();
}

#[test]
fn shared_mappings_and_programs() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), vec![b'a'; 10_000]).unwrap();
    python(
        m.dir(),
        "
import mmap, os
r = os.open('f', os.O_RDONLY)
w = os.open('f', os.O_RDWR)
shown = mmap.mmap(r, 0, prot=mmap.PROT_READ)
changed = mmap.mmap(w, 0)
assert shown[5000:5003] == b'aaa'
changed[5000:5003] = b'xyz'
changed.flush()
assert shown[5000:5003] == b'xyz'
assert os.pread(r, 3, 5000) == b'xyz'
assert os.pread(w, 3, 5000) == b'xyz'
# A write is seen by mappings when write(2) returns.
for i in range(200):
    text = b'%04d' % i
    assert os.pwrite(w, text, 4094) == 4
    assert shown[4094:4098] == text, (i, shown[4094:4098])
    assert changed[4094:4098] == text
    assert os.pread(r, 4, 4094) == text
assert changed[5000:5003] == b'xyz'
",
    );
    let ino = m.fs.ino_of("f");
    assert_eq!(&m.fs.contents(ino)[4094..4098], b"0199");
    assert_eq!(&m.fs.contents(ino)[5000..5003], b"xyz");
    assert!(m.fs.seen.page_writes.load(Ordering::Relaxed) > 0);
    let said = sh(m.dir(), "cp /bin/echo say; ./say from the mount; cp /bin/true t; ./t");
    assert_eq!(said, "from the mount\n");
    m.end().unwrap();
}

#[test]
fn readers_never_see_old_bytes_after_a_write() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let path = m.path("f");
    fs::write(&path, [0_u8; 65536]).unwrap();
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let reader = File::open(&path).unwrap();
                let mut page = [0_u8; 4096];
                while !stop.load(Ordering::Relaxed) {
                    reader.read_exact_at(&mut page, 8192).unwrap();
                }
            });
        }
        let reader = File::open(&path).unwrap();
        let mut page = [0_u8; 4096];
        *m.fs.write_delay.lock() = Duration::from_micros(100);
        for round in 0..1000_u32 {
            let fresh = [(round % 251) as u8; 4096];
            writer.write_all_at(&fresh, 8192).unwrap();
            reader.read_exact_at(&mut page, 8192).unwrap();
            assert!(page == fresh, "round {round}: {} instead of {}", page[0], fresh[0]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(writer);
    m.end().unwrap();
}

#[test]
fn appends_go_to_the_end() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    sh(
        m.dir(),
        "for i in 1 2 3 4; do (for j in $(seq 50); do echo line; done >> log) & done; wait",
    );
    assert_eq!(fs::read_to_string(m.path("log")).unwrap(), "line\n".repeat(200));
    m.end().unwrap();
}

#[test]
fn waiting_for_locks_and_signals() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), "x").unwrap();
    let said = python(
        m.dir(),
        "
import fcntl, os, signal, time
f = open('f', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    g = open('f', 'r+')
    try:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os._exit(1)
    except BlockingIOError:
        pass
    def ring(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        fcntl.lockf(g, fcntl.LOCK_EX)
        os._exit(2)
    except TimeoutError:
        pass
    # And a wait that ends well.
    fcntl.lockf(g, fcntl.LOCK_EX)
    os._exit(0)
time.sleep(0.6)
fcntl.lockf(f, fcntl.LOCK_UN)
assert os.waitpid(child, 0)[1] == 0
# A waiter that is killed goes at once, and its wait with it.
fcntl.lockf(f, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    fcntl.lockf(open('f', 'r+'), fcntl.LOCK_EX)
    os._exit(0)
time.sleep(0.2)
os.kill(child, signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
# Closing gives fcntl locks up; flock lives with the open file.
f.close()
f = open('f', 'r+')
fcntl.flock(f, fcntl.LOCK_EX)
g = open('f', 'r+')
fcntl.lockf(g, fcntl.LOCK_EX)
try:
    fcntl.flock(g, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert False
except BlockingIOError:
    pass
f.close()
fcntl.flock(g, fcntl.LOCK_EX)
print('done')
",
    );
    assert_eq!(said, "done\n");
    m.end().unwrap();
}

#[test]
fn ten_thousand_entries() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let dir = m.path("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..10_000 {
        File::create(dir.join(format!("file-{i:05}"))).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 10_000);
    assert!(names.iter().enumerate().all(|(i, n)| *n == format!("file-{i:05}")));
    assert_eq!(sh(&dir, "ls -l | wc -l").trim(), "10001");
    // Entries may go while they are listed.
    for entry in fs::read_dir(&dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir(&dir).unwrap();
    m.end().unwrap();
}

#[test]
fn extended_attributes_holes_and_copies() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), "contents").unwrap();
    python(
        m.dir(),
        "
import os
os.setxattr('f', 'user.a', b'1' * 60000)
os.setxattr('f', 'user.b', b'')
assert os.getxattr('f', 'user.a') == b'1' * 60000
assert sorted(os.listxattr('f')) == ['user.a', 'user.b']
for flag, name, want in ((os.XATTR_CREATE, 'user.a', 17), (os.XATTR_REPLACE, 'user.c', 61)):
    try:
        os.setxattr('f', name, b'2', flag)
        assert False
    except OSError as e:
        assert e.errno == want, e
os.removexattr('f', 'user.a')
assert os.listxattr('f') == ['user.b']
f = os.open('f', os.O_RDWR)
assert os.lseek(f, 0, os.SEEK_DATA) == 0
assert os.lseek(f, 2, os.SEEK_HOLE) == 8
os.posix_fallocate(f, 0, 5000)
assert os.fstat(f).st_size == 5000
g = os.open('g', os.O_RDWR | os.O_CREAT)
n = os.copy_file_range(f, g, 5000, 0, 0)
assert n == 5000, n
assert os.pread(g, 8, 0) == b'contents'
t = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.write(t, b'nameless')
assert os.pread(t, 20, 0) == b'nameless'
os.fsync(t)
os.truncate('g', 3)
assert open('g').read() == 'con'
",
    );
    m.end().unwrap();
}

#[test]
fn what_another_node_changes_is_seen() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), "before").unwrap();
    let ino = InodeNo(m.fs.ino_of("f"));
    let mut open = File::open(m.path("f")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before");
    // Under a held lock nothing is asked again.
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 6);
    let (lookups, getattrs) = (&m.fs.seen.lookups, &m.fs.seen.getattrs);
    let asked = (lookups.load(Ordering::Relaxed), getattrs.load(Ordering::Relaxed));
    for _ in 0..100 {
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 6);
        assert!(!m.path("new").exists());
    }
    let again = (lookups.load(Ordering::Relaxed), getattrs.load(Ordering::Relaxed));
    if m.terms.cache_names {
        assert!(again.0 <= asked.0 + 1 && again.1 <= asked.1 + 2, "{asked:?} {again:?}");
    }
    m.fs.write_elsewhere(ino.get(), b"afterwards");
    m.link.invalidate_inode(ino, true);
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 10);
    text.clear();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "afterwards");
    m.fs.create_elsewhere("new");
    m.link.invalidate_entries(InodeNo(ROOT));
    assert!(m.path("new").exists());
    m.fs.unlink_elsewhere("f");
    m.link.invalidate_entries(InodeNo(ROOT));
    assert!(!m.path("f").exists());
    assert_eq!(open.metadata().unwrap().len(), 10);
    drop(open);
    m.end().unwrap();
}

/// Attributes travel to the kernel while another node changes them and has them dropped: whichever
/// comes first, the old ones do not stay.
#[test]
fn a_drop_that_passes_its_answer_is_not_lost() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    for round in 0..1500_u64 {
        let name = format!("f{round}");
        m.fs.create_elsewhere(&name);
        let (ino, path) = (m.fs.ino_of(&name), m.path(&name));
        *m.fs.lookup_delay.lock() = Duration::from_micros(round % 3 * 20);
        std::thread::scope(|s| {
            // Not fs::metadata: that asks for the birth time too, in a request of its own.
            s.spawn(|| rustix::fs::access(&path, rustix::fs::Access::EXISTS).unwrap());
            std::thread::sleep(Duration::from_micros(round * 37 % 150));
            m.fs.write_elsewhere(ino, b"changed");
            m.link.invalidate_inode(InodeNo(ino), true);
        });
        assert_eq!(rustix::fs::stat(&path).unwrap().st_size, 7, "round {round}");
    }
    m.end().unwrap();
}

/// A program that has mapped a file, touches it when told, and says what it read.
fn mapped(path: &std::path::Path) -> std::process::Child {
    let program = "
import mmap, sys
f = open(sys.argv[1])
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
for line in sys.stdin:
    print(m[:3].decode(), flush=True)";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", program]).arg(path);
    python.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    python.spawn().unwrap()
}

/// What it reads now; `None`: it died of that.
fn touch(child: &mut std::process::Child) -> Option<String> {
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut said = [0; 4];
    let read = child.stdout.as_mut().unwrap().read_exact(&mut said);
    read.ok().map(|()| String::from_utf8_lossy(&said[..3]).into_owned())
}

#[test]
fn without_a_lease_nothing_old_is_served_and_with_it_again_all_goes_on() {
    const WITHIN: Duration = Duration::from_secs(2);
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), "old").unwrap();
    for n in 0..3000 {
        fs::write(m.path(&format!("other{n}")), "x").unwrap();
    }
    let open = File::open(m.path("f")).unwrap();
    let (mut first, mut second) = (mapped(&m.path("f")), mapped(&m.path("f")));
    assert_eq!(
        (touch(&mut first).unwrap(), touch(&mut second).unwrap()),
        ("old".into(), "old".into())
    );
    let read = |bytes: &mut [u8; 3]| open.read_exact_at(bytes, 0).map_err(|e| e.raw_os_error());
    let mut bytes = [0; 3];
    read(&mut bytes).unwrap();
    m.link.suspend(false, WITHIN, WITHIN / 2);
    m.fs.write_elsewhere(m.fs.ino_of("f"), b"new");
    assert_eq!(read(&mut bytes), Err(Some(libc::EIO)), "{bytes:?}");
    assert_eq!(open.metadata().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(touch(&mut first), None);
    let died = first.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&died), Some(libc::SIGBUS));
    m.link.resume();
    read(&mut bytes).unwrap();
    assert_eq!(&bytes, b"new");
    assert_eq!(open.metadata().unwrap().len(), 3);
    assert_eq!(touch(&mut second).as_deref(), Some("new"));
    assert_eq!(fs::read_to_string(m.path("f")).unwrap(), "new");
    m.link.suspend(true, WITHIN, WITHIN / 2);
    m.link.resume();
    assert_eq!(read(&mut bytes), Err(Some(libc::EIO)));
    assert_eq!(fs::metadata(m.path("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    second.kill().unwrap();
    second.wait().unwrap();
    drop(open);
    m.end().unwrap();
}

/// The file system says nothing of names that change meanwhile: nobody there hears it.
#[test]
fn names_that_the_kernel_keeps_are_dropped_when_the_lease_ends() {
    if !can_mount() {
        return;
    }
    let m = Mounted::with(|o| o.cache_names = CacheNames::Always);
    if !m.terms.cache_names {
        return braid_testkit::skip("this kernel cannot be told to drop all names (Linux 6.16)");
    }
    fs::write(m.path("gone"), "x").unwrap();
    let is_there = |name: &str| match rustix::fs::access(m.path(name), rustix::fs::Access::EXISTS) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.raw_os_error()),
    };
    let both = || (is_there("gone"), is_there("new"));
    assert_eq!(both(), (Ok(true), Ok(false)));
    let asked = m.fs.seen.lookups.load(Ordering::Relaxed);
    for _ in 0..100 {
        assert_eq!(both(), (Ok(true), Ok(false)));
    }
    assert_eq!(m.fs.seen.lookups.load(Ordering::Relaxed), asked, "the kernel keeps no names");
    m.link.suspend(false, Duration::from_secs(2), Duration::from_secs(1));
    m.fs.unlink_elsewhere("gone");
    m.fs.create_elsewhere("new");
    assert_eq!(both(), (Err(libc::EIO), Err(libc::EIO)));
    m.link.resume();
    assert_eq!(both(), (Ok(false), Ok(true)));
    m.end().unwrap();
}

#[test]
fn a_page_that_is_filled_or_written_back_does_not_keep_old_ones_when_the_lease_ends() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("f"), vec![b'o'; 1 << 20]).unwrap();
    fs::write(m.path("dirty"), "old").unwrap();
    let open = File::open(m.path("f")).unwrap();
    open.read_exact_at(&mut [0; 4096], 0).unwrap();
    let reads = |at: u64| open.read_at(&mut [0; 10], at).map_err(|e| e.raw_os_error());
    m.fs.hold_reads.store(true, Ordering::Relaxed);
    m.fs.hold_writes.store(true, Ordering::Relaxed);
    std::thread::scope(|s| {
        // Far behind what was read ahead.
        m.link.invalidate_inode(InodeNo(m.fs.ino_of("f")), true);
        let fills = m.fs.seen.fills.load(Ordering::Relaxed);
        let waits = s.spawn(|| reads(900 << 10));
        wait_until("a fill waits", || m.fs.seen.fills.load(Ordering::Relaxed) > fills);
        let start = Instant::now();
        m.link.suspend(false, Duration::from_secs(20), Duration::from_secs(10));
        let took = start.elapsed();
        // What waits is let go before anything is said of it: else a failed test would hang.
        let ended = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            waits.is_finished()
        });
        m.fs.hold_reads.store(false, Ordering::Relaxed);
        m.fs.hold_writes.store(false, Ordering::Relaxed);
        m.link.resume();
        let said = waits.join().unwrap();
        assert!(ended, "the fill was not failed");
        assert!(took < Duration::from_secs(19), "{took:?}");
        assert_eq!(said, Err(Some(libc::EIO)));
    });
    assert_eq!(reads(0), Ok(10));
    drop(open);
    m.end().unwrap();
}

/// Changes a limit of the machine (and puts it back).
#[test]
#[ignore = "changes fs.fuse.max_pages_limit"]
fn requests_of_four_mib() {
    if !can_mount() {
        return;
    }
    const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
    let before = fs::read_to_string(LIMIT).unwrap();
    let m = Mounted::with(|o| {
        o.max_write = Bytes(4 << 20);
        o.raise_page_limit = true;
    });
    fs::write(LIMIT, before).unwrap();
    sh(
        m.dir(),
        "dd if=/dev/zero of=f bs=4M count=4 oflag=direct status=none;
         dd if=f of=/dev/null bs=4M iflag=direct status=none",
    );
    let seen = &m.fs.seen;
    assert_eq!(m.terms.max_write, Bytes(4 << 20));
    assert_eq!(seen.largest_write.load(Ordering::Relaxed), 4 << 20);
    assert_eq!(seen.largest_read.load(Ordering::Relaxed), 4 << 20);
    assert_eq!(seen.misaligned.load(Ordering::Relaxed), 0);
    m.end().unwrap();
}

#[test]
fn a_blocked_request_holds_up_no_other() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    fs::write(m.path("quick"), "q").unwrap();
    m.fs.hold_writes.store(true, Ordering::Relaxed);
    std::thread::scope(|s| {
        for i in 0..40 {
            let path = m.path(&format!("slow-{i}"));
            s.spawn(move || fs::write(path, "w").unwrap());
        }
        wait_until("forty writes wait", || m.fs.seen.writes.load(Ordering::Relaxed) >= 41);
        let start = Instant::now();
        assert_eq!(fs::read_to_string(m.path("quick")).unwrap(), "q");
        assert!(start.elapsed() < PATIENCE);
        m.fs.hold_writes.store(false, Ordering::Relaxed);
    });
    m.end().unwrap();
}

/// A program that holds what others wait for, and gives it up when it is told to: a page that it has changed,
/// a descriptor, locks for which two of its children wait, and a third one that it interrupts.
const GIVES_UP: &str = "
import ctypes, fcntl, mmap, os, signal, sys
f, g, closed = open('f', 'r+b'), open('f', 'r+b'), open('closed')
m = mmap.mmap(f.fileno(), 0)
m[0] = 1
for byte in (0, 1): fcntl.lockf(f, fcntl.LOCK_EX, 1, byte)
fcntl.flock(g, fcntl.LOCK_EX)
def ring(*_): raise TimeoutError
signal.signal(signal.SIGUSR1, ring)
def child(wait):
    pid = os.fork()
    if pid: return pid
    try: wait(open('f', 'r+b'))
    except TimeoutError: os._exit(1)
    os._exit(0)
children = [
    child(lambda own: fcntl.lockf(own, fcntl.LOCK_EX, 1, 0)),
    child(lambda own: fcntl.flock(own, fcntl.LOCK_EX)),
    child(lambda own: fcntl.lockf(own, fcntl.LOCK_EX, 1, 1)),
]
sys.stdin.readline()
m[0] = 2
if ctypes.CDLL(None).sync_file_range(f.fileno(), ctypes.c_int64(0), ctypes.c_int64(0), 7) == 0:
    print('written', flush=True)
closed.close()
print('closed', flush=True)
fcntl.lockf(f, fcntl.LOCK_UN, 1, 0)
print('unlocked', os.waitpid(children[0], 0)[1], flush=True)
fcntl.flock(g, fcntl.LOCK_UN)
print('unlocked', os.waitpid(children[1], 0)[1], flush=True)
os.kill(children[2], signal.SIGUSR1)
print('interrupted', os.waitpid(children[2], 0)[1] >> 8, flush=True)
";

/// A few threads are kept for what others may wait for.
#[test]
fn what_frees_others_is_answered_while_every_thread_is_busy() {
    const BUSY: usize = 20;
    if !can_mount() {
        return;
    }
    let m = Mounted::with(|o| o.workers_max = 2);
    for name in ["f", "closed", "read"] {
        fs::write(m.path(name), [0; 4096]).unwrap();
    }
    let read = File::options().read(true).custom_flags(libc::O_DIRECT).open(m.path("read"));
    let read = read.unwrap();
    let mut program = Command::new("python3");
    program.args(["-c", GIVES_UP]).current_dir(m.dir());
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("its children wait", || m.fs.lock_waits() == 3);
    let seen = &m.fs.seen;
    wait_until("all is released", || m.fs.open_files() == 7);
    let released = seen.releases.load(Ordering::Relaxed);
    m.fs.hold_reads.store(true, Ordering::Relaxed);
    std::thread::scope(|s| {
        for _ in 0..BUSY {
            s.spawn(|| read.read_exact_at(&mut [0; 4096], 0).unwrap());
        }
        wait_until("every thread is busy", || seen.direct_reads.load(Ordering::Relaxed) == 2);
        std::thread::sleep(Duration::from_millis(300));
        program.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        // What waits is let go before anything is said of it: else a failed test would hang.
        let ended = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let released = seen.releases.load(Ordering::Relaxed) - released;
            released >= 4 && program.try_wait().unwrap().is_some()
        });
        let reads = seen.direct_reads.load(Ordering::Relaxed);
        m.fs.hold_reads.store(false, Ordering::Relaxed);
        let mut said = String::new();
        program.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "written\nclosed\nunlocked 0\nunlocked 0\ninterrupted 1\n");
        assert!(ended, "it went on only when a thread was free");
        assert_eq!(reads, 2, "the others stand in line");
        assert!(m.fs.contents(m.fs.ino_of("f"))[0] == 2);
    });
    assert_eq!(seen.direct_reads.load(Ordering::Relaxed), BUSY);
    program.wait().unwrap();
    drop(read);
    m.end().unwrap();
}

#[test]
fn unlinked_files_and_direct_flags() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let mut f = File::options().create_new(true).read(true).write(true).open(m.path("f")).unwrap();
    f.write_all(b"still here").unwrap();
    fs::remove_file(m.path("f")).unwrap();
    let mut text = String::new();
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(f);
    wait_until("released", || m.fs.open_files() == 0);
    let direct = File::options()
        .create(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(m.path("d"))
        .unwrap();
    direct.write_all_at(b"odd length", 3).unwrap();
    assert_eq!(fs::read(m.path("d")).unwrap(), b"\0\0\0odd length");
    drop(direct);
    m.end().unwrap();
}
