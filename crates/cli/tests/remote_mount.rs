//! `braid mount braid://...`: a mount from a server, as users have it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::remote::Remote;
use common::served::Served;
use common::{Cluster, Disks, can_mount, fails, ok, sh, wait_until};

fn serve(disks: &Disks, listen: &str) -> Served {
    Served::new(disks, &["--insecure", "--listen", listen])
}

fn pool() -> Disks {
    let disks = Disks::new(2, 700);
    ok(&disks.with(&["create", "test", "--nodes", "4"], &[]));
    disks
}

fn clean(disks: &Disks) {
    let said = ok(&disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// What every file system does.
const BASICS: &str = r#"
os.chdir(A); os.umask(0o022)
os.mkdir("d"); open("d/f", "wb").write(b"x" * 3_000_000)
assert os.stat("d/f").st_size == 3_000_000 and open("d/f", "rb").read() == b"x" * 3_000_000
f = os.open("d/f", os.O_RDWR)
os.pwrite(f, b"yy", 2_999_999); os.fsync(f); assert os.fstat(f).st_size == 3_000_001
os.ftruncate(f, 10); assert os.pread(f, 100, 0) == b"x" * 10
os.posix_fallocate(f, 0, 1 << 20); assert os.fstat(f).st_size == 1 << 20
os.ftruncate(f, 1 << 24); assert os.lseek(f, 2 << 20, os.SEEK_HOLE) == 2 << 20
os.pwrite(f, b"data", 8 << 20); assert os.lseek(f, 2 << 20, os.SEEK_DATA) == 8 << 20
g = os.open("d/g", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
assert stat.S_IMODE(os.stat("d/g").st_mode) == 0o640
refused(errno.EEXIST, os.open, "d/g", os.O_CREAT | os.O_EXCL)
n = os.copy_file_range(f, g, 1 << 20, 8 << 20, 0); assert n > 0 and os.pread(g, 4, 0) == b"data", n
a = os.open("d/a", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for word in (b"one ", b"two "): os.write(a, word)
assert open("d/a", "rb").read() == b"one two "
os.symlink("../" + "t" * 3000, "l"); assert os.readlink("l") == "../" + "t" * 3000
os.link("d/g", "hard"); assert os.stat("hard").st_ino == os.stat("d/g").st_ino and os.stat("hard").st_nlink == 2
os.rename("hard", "d/g2"); refused(errno.ENOENT, os.stat, "hard")
os.mkfifo("p"); os.mknod("null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
assert os.stat("null").st_rdev == os.makedev(1, 3) and open("null").read() == ""
os.setxattr("d/f", "user.name", b"v" * 40_000); assert os.getxattr("d/f", "user.name") == b"v" * 40_000
assert os.listxattr("d/f") == ["user.name"]; os.removexattr("d/f", "user.name"); assert not os.listxattr("d/f")
os.utime("d/f", ns=(5, 1_000_000_007)); assert os.stat("d/f").st_mtime_ns == 1_000_000_007
os.chmod("d/f", 0o4711); os.chown("d/f", 7, 8); s = os.stat("d/f"); assert (s.st_uid, s.st_gid) == (7, 8)
assert os.statvfs(".").f_blocks > 1000
# Removed while it is open.
os.unlink("d/f"); os.pwrite(f, b"still", 0); assert os.pread(f, 5, 0) == b"still" and os.fstat(f).st_nlink == 0
for n in range(700): open(f"d/file{n}", "w").close()
assert len(os.listdir("d")) == 703, len(os.listdir("d"))
refused(errno.ENOTEMPTY, os.rmdir, "d"); refused(errno.ENOTDIR, os.listdir, "d/g"); refused(errno.EISDIR, os.unlink, "d")
t = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(t, b"t"); AT_FDCWD, FOLLOW = -100, 0x400
assert ctypes.CDLL(None).linkat(AT_FDCWD, f"/proc/self/fd/{t}".encode(), AT_FDCWD, b"named", FOLLOW) == 0
assert open("named").read() == "t"
d = os.open(".", os.O_RDONLY); os.fsync(d); os.sync()
import mmap
with open("map", "w+b") as m:
    m.write(b"a" * 8192); m.flush()
    with mmap.mmap(m.fileno(), 8192) as area:
        assert area[:4] == b"aaaa"; area[4096:4100] = b"mmap"; area.flush()
assert open("map", "rb").read()[4096:4100] == b"mmap"
script = open("run", "w"); script.write('#!/bin/sh\necho ran\n'); script.close(); os.chmod("run", 0o755)
assert subprocess.check_output(["./run"]) == b"ran\n"
"#;

#[test]
fn a_remote_mount_does_what_a_file_system_does() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let served = serve(&disks, "127.0.0.1:0");
    let remote = Remote::plain(&disks, "remote", &served);
    remote.python(&disks, &remote.dir, BASICS);
    // A directory of it is mounted by itself.
    let dir = format!("{}/d", served.url);
    let part = Remote::new(&disks, "part", &dir, &["--insecure", "-o", "ro"]);
    sh(&format!("test $(cat {}/a | wc -c) = 8 && ! touch {}/b", part.dir, part.dir));
    part.unmount();
    let said =
        fails(&["mount", &format!("{}/no", served.url), &disks.path("remote2"), "--insecure"]);
    assert!(said.contains("remote2"), "{said}");
    std::fs::create_dir(disks.path("remote2")).unwrap();
    let said =
        fails(&["mount", &format!("{}/no", served.url), &disks.path("remote2"), "--insecure"]);
    assert!(said.contains("No such file"), "{said}");
    let said = ok(&["status", &remote.dir]);
    assert!(said.contains(&served.url) && said.contains("no node of the pool"), "{said}");
    assert!(ok(&["status"]).contains(&served.url));
    remote.unmount();
    served.end();
    clean(&disks);
}

/// Runs a Python program on `dirs`: two remote mounts of a pool (`A`, `C`) and a node (`B`). The pool is clean
/// afterwards.
fn on_two_remote_mounts_and_a_node(program: &str) {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::of(Disks::new(2, 500), 1, &["--nodes", "4"]);
    let served = serve(&c.disks, "127.0.0.1:0");
    let (a, b) = (Remote::plain(&c.disks, "a", &served), Remote::plain(&c.disks, "b", &served));
    let node = c.node(0).to_str().unwrap().to_owned();
    let dirs = "C = os.path.dirname(A) + \"/b\"\ndirs = [A, B, C]\n";
    a.python(&c.disks, &node, &format!("\n{dirs}{program}"));
    a.unmount();
    b.unmount();
    served.end();
    c.unmount_all();
    clean(&c.disks);
}

/// Two mounts from a server, and a node.
#[test]
fn remote_mounts_and_a_node_see_what_each_other_writes() {
    on_two_remote_mounts_and_a_node(
        r#"
for n in range(30):
    here, there, third = random.sample(dirs, 3)
    name, text = f"f{n % 3}", os.urandom(random.choice([10, 5000, 300_000]))
    with open(f"{here}/{name}", "wb") as f: f.write(text)
    for other in dirs:
        assert open(f"{other}/{name}", "rb").read() == text, (n, here, other)
        assert os.stat(f"{other}/{name}").st_size == len(text)
    os.rename(f"{there}/{name}", f"{there}/r{n}")
    assert f"r{n}" in os.listdir(third) and not os.path.exists(f"{third}/{name}")
    os.unlink(f"{third}/r{n}")
    refused(errno.ENOENT, os.open, f"{here}/r{n}", 0)
# Open files, too; and one that another has removed.
fds = [os.open(f"{d}/open", os.O_RDWR | os.O_CREAT) for d in dirs]
for n in range(60):
    i, j = random.sample(range(3), 2)
    os.pwrite(fds[i], b"%08d" % n, 4 * n)
    assert os.pread(fds[j], 8, 4 * n) == b"%08d" % n and os.fstat(fds[j]).st_size == 4 * n + 8
logs = [os.open(f"{d}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for d in dirs]
for n in range(30): os.write(logs[n % 3], b"%04d\n" % n)
assert open(f"{A}/log").read().split() == ["%04d" % n for n in range(30)]
os.unlink(f"{B}/open")
assert os.pread(fds[0], 8, 0) == os.pread(fds[2], 8, 0) != b""
"#,
    );
}

#[test]
fn locks_hold_between_remote_mounts_and_nodes() {
    on_two_remote_mounts_and_a_node(
        r#"
fds = [os.open(f"{d}/lock", os.O_RDWR | os.O_CREAT) for d in dirs]
def child(call):
    pid = os.fork()
    if pid == 0:
        try: call(); os._exit(0)
        except BaseException as e: print(repr(e), file=sys.stderr); os._exit(1)
    return pid
for i in range(3):
    for j in range(3):
        if i == j: continue
        fcntl.flock(fds[i], fcntl.LOCK_EX)
        refused(errno.EAGAIN, fcntl.flock, fds[j], fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = child(lambda: fcntl.flock(os.open(f"{dirs[j]}/lock", os.O_RDWR), fcntl.LOCK_EX))
        time.sleep(0.1)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it waits"
        fcntl.flock(fds[i], fcntl.LOCK_UN)
        assert ended(pid) == 0
        fcntl.lockf(fds[i], fcntl.LOCK_EX, 100, 50)
        def other():
            fd = os.open(f"{dirs[j]}/lock", os.O_RDWR)
            refused(errno.EAGAIN, fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 60)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            assert found[0] == fcntl.F_WRLCK and found[2:4] == (50, 100), found
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, 149)
        pid = child(other)
        time.sleep(0.2)
        fcntl.lockf(fds[i], fcntl.LOCK_UN, 100, 50)
        assert ended(pid) == 0
# A wait is broken off by a signal, and a killed holder lets go.
fcntl.flock(fds[0], fcntl.LOCK_EX)
def waits(): fcntl.flock(os.open(f"{C}/lock", os.O_RDWR), fcntl.LOCK_EX)
pid = child(waits); time.sleep(0.2); os.kill(pid, signal.SIGKILL); assert ended(pid) == 9
fcntl.flock(fds[0], fcntl.LOCK_UN)
def holds(): fcntl.flock(os.open(f"{C}/lock", os.O_RDWR), fcntl.LOCK_EX); time.sleep(60)
pid = child(holds); time.sleep(0.5); os.kill(pid, signal.SIGKILL); ended(pid)
fcntl.flock(fds[1], fcntl.LOCK_EX)
fcntl.flock(fds[1], fcntl.LOCK_UN)
# A circle of two mounts.
fcntl.lockf(fds[0], fcntl.LOCK_EX, 1, 0)
def crosses():
    fd = os.open(f"{C}/lock", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1); fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)
pid = child(crosses); time.sleep(0.5)
refused(errno.EDEADLK, fcntl.lockf, fds[0], fcntl.LOCK_EX, 1, 1)
fcntl.lockf(fds[0], fcntl.LOCK_UN); assert ended(pid) == 0
"#,
    );
}

/// The server checks permissions by the user that a client names, and squashes those that it does not believe.
#[test]
fn users_may_do_what_they_may_on_a_node() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let mut served = serve(&disks, "127.0.0.1:0");
    let program = r#"
os.chdir(A); os.chmod(".", 0o755)
os.mkdir("open"); os.chmod("open", 0o1777); os.mkdir("group"); os.chown("group", 0, 3000); os.chmod("group", 0o2770)
open("secret", "w").write("s"); os.chmod("secret", 0o600); open("open/roots", "w").close()
def in_group():
    os.setgroups([3000]); os.setgid(1000); os.setuid(1000)
    open("group/mine", "w").write("m"); assert os.stat("group/mine").st_gid == 3000
    os._exit(0)
def alone():
    refused(errno.EACCES, open, "secret"); refused(errno.EACCES, os.mkdir, "no"); refused(errno.EACCES, os.listdir, "group")
    refused(errno.EPERM, os.unlink, "open/roots"); refused(errno.EPERM, os.chown, "open/roots", 1000, -1)
    refused(errno.EPERM, os.chmod, "open", 0o777); refused(errno.EACCES, os.truncate, "secret", 0)
    open("open/mine", "w").write("m"); s = os.stat("open/mine"); assert (s.st_uid, s.st_gid) == (1000, 1000)
    f = os.open("open/once", os.O_RDWR | os.O_CREAT, 0o400); os.write(f, b"once"); os.ftruncate(f, 2)
    refused(errno.EACCES, open, "open/once", "w"); os.unlink("open/mine")
pid = os.fork()
if pid == 0: in_group()
assert ended(pid) == 0
unprivileged(alone)
# An ACL lets one user in.
if subprocess.call("command -v setfacl >/dev/null", shell=True) == 0:
    subprocess.check_call(["setfacl", "-m", "u:1000:r", "secret"])
    unprivileged(lambda: open("secret").read())
"#;
    let remote = Remote::plain(&disks, "remote", &served);
    remote.python(&disks, &remote.dir, program);
    remote.unmount();
    // Root of a client is somebody else to a server that says so; copies are made by him, too.
    let address = served.address().to_owned();
    served.end();
    served = Served::new(&disks, &["--insecure", "--listen", &address, "--squash", "root"]);
    let remote = Remote::plain(&disks, "remote", &served);
    remote.python(
        &disks,
        &remote.dir,
        r#"
os.chdir(A)
refused(errno.EACCES, open, "secret"); refused(errno.EACCES, os.mkdir, "no"); refused(errno.EPERM, os.chmod, ".", 0o777)
open("open/as-nobody", "w").close(); assert os.stat("open/as-nobody").st_uid == 65534
unprivileged(lambda: open("open/as-user", "w").close()); assert os.stat("open/as-user").st_uid == 1000
"#,
    );
    let said = fails(&["cp", &format!("{}/secret", served.url), &disks.path("copy"), "--insecure"]);
    assert!(said.contains("Permission denied"), "{said}");
    remote.unmount();
    served.end();
    clean(&disks);
}

/// Users have other numbers at clients than in the pool: what a client sees, sets, may do, and what the pool then has.
#[test]
fn users_of_clients_have_numbers_of_their_own() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let served = serve(&disks, "127.0.0.1:0");
    let program = r#"
os.chdir(A); os.chmod(".", 0o755)
os.mkdir("open"); os.chmod("open", 0o1777); os.mkdir("group"); os.chown("group", 0, 3000); os.chmod("group", 0o2770)
open("secret", "w").write("s"); os.chmod("secret", 0o600); open("open/roots", "w").close()
unprivileged(lambda: open("open/as-user", "w").close())
if subprocess.call("command -v setfacl >/dev/null", shell=True) == 0:
    subprocess.check_call(["setfacl", "-m", "u:1000:r", "secret"])
"#;
    let remote = Remote::plain(&disks, "remote", &served);
    remote.python(&disks, &remote.dir, program);
    remote.unmount();
    served.end();
    // The pool's user 1000 is 2000 at clients.
    let map = ["--insecure", "--listen", "127.0.0.1:0", "--map", "u2000-2009:1000,g77:3000"];
    let served = Served::new(&disks, &map);
    let remote = Remote::plain(&disks, "remote", &served);
    remote.python(
        &disks,
        &remote.dir,
        r#"
os.chdir(A)
listed = {e.name: e.stat() for e in os.scandir("open")}
assert listed["as-user"].st_uid == 2000 and listed["as-user"].st_gid == 1000 and listed["roots"].st_uid == 0
assert os.stat("group").st_gid == 77
refused(errno.EINVAL, os.chown, "open/roots", 1000, -1); os.chown("open/roots", 2001, 77)
assert (os.stat("open/roots").st_uid, os.stat("open/roots").st_gid) == (2001, 77)
def owner():
    os.setgroups([77]); os.setgid(1000); os.setuid(2000)
    os.chmod("open/as-user", 0o600); open("open/as-user", "w").write("mine"); open("group/more", "w").close()
    os._exit(0)
def other():
    os.setgroups([]); os.setgid(1000); os.setuid(1000)
    refused(errno.EACCES, open, "open/as-user"); refused(errno.EPERM, os.chmod, "open/as-user", 0o666)
    os._exit(0)
for who in owner, other:
    pid = os.fork()
    if pid == 0: who()
    assert ended(pid) == 0
if subprocess.call("command -v setfacl >/dev/null", shell=True) == 0:
    said = subprocess.check_output(["getfacl", "-n", "secret"], text=True); assert "user:2000:r--" in said, said
    subprocess.check_call(["setfacl", "-m", "u:2003:rw", "secret"])
    assert subprocess.call(["setfacl", "-m", "u:1003:rw", "secret"], stderr=subprocess.DEVNULL) != 0
"#,
    );
    remote.unmount();
    served.end();
    let dir = disks.path("node");
    fs::create_dir(&dir).unwrap();
    ok(&disks.with(&["mount"], &[&dir]));
    let owner = fs::metadata(Path::new(&dir).join("open/roots")).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (1001, 3000));
    ok(&["unmount", &dir]);
    clean(&disks);
}

/// Writes blocks that are made durable one by one, each with its number; a file says how many are. Killed servers lose
/// none of them, and the program notices nothing but a wait.
#[test]
fn what_was_made_durable_outlives_killed_servers() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let mut served = serve(&disks, "127.0.0.1:0");
    let address = served.address().to_owned();
    let remote = Remote::plain(&disks, "remote", &served);
    let count = disks.path("count");
    let writer = format!(
        r#"
import os, fcntl
f = os.open("{dir}/file", os.O_RDWR | os.O_CREAT); os.fsync(f)
log = os.open("{dir}/synced", os.O_WRONLY | os.O_CREAT | os.O_DSYNC); os.fsync(log)
fcntl.flock(f, fcntl.LOCK_EX)
n = 0
while not os.path.exists("{count}.stop"):
    for block in range(8): os.pwrite(f, b"%015d\n" % (8 * n + block) * 256, (8 * n + block) * 4096)
    # Not durable yet, and read all the same.
    assert os.pread(f, 16, (8 * n + 7) * 4096) == b"%015d\n" % (8 * n + 7)
    if n % 2: os.fsync(f); os.pwrite(log, b"%d" % n, 0)
    n += 1
    open("{count}.new", "w").write(str(n)); os.rename("{count}.new", "{count}")
os.close(f)
"#,
        dir = remote.dir
    );
    std::fs::write(disks.path("writer.py"), writer).unwrap();
    let child = Command::new("python3")
        .arg(disks.path("writer.py"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let written =
        || std::fs::read_to_string(&count).ok().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let mut reached = 0;
    let sized = format!("{}/sized", remote.dir);
    std::fs::write(&sized, [7; 5000]).unwrap();
    for (round, by_path) in [(1, false), (2, true), (3, false)] {
        wait_until("blocks are written", || written() >= reached + 20 || child_ended(&child));
        let size = 5000 + round * 5066;
        set_size(&sized, size, by_path);
        served.kill();
        let before = written();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let said = ok(&["status", &remote.dir]);
        assert!(said.contains("NO ANSWER"), "{said}");
        served = serve(&disks, &address);
        reached = before + 2;
        // The lock is had again.
        wait_until("it goes on", || written() > reached || child_ended(&child));
        assert_eq!(std::fs::metadata(&sized).unwrap().len(), size);
        let other = Remote::plain(&disks, "other", &served);
        sh(&format!("! flock -n {}/file true", other.dir));
        other.unmount();
    }
    std::fs::write(format!("{count}.stop"), "").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?} {}", remote.log());
    let blocks = 8 * written();
    let bytes = std::fs::read(format!("{}/file", remote.dir)).unwrap();
    assert_eq!(bytes.len() as u64, blocks * 4096);
    for (n, block) in bytes.chunks(4096).enumerate() {
        assert_eq!(block, format!("{n:015}\n").repeat(256).as_bytes(), "block {n}");
    }
    assert!(remote.log().contains("answers again"), "{}", remote.log());
    remote.unmount();
    served.end();
    clean(&disks);
}

fn set_size(path: &str, size: u64, by_path: bool) {
    if by_path {
        sh(&format!("python3 -c 'import os; os.truncate(\"{path}\", {size})'"));
    } else {
        std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    }
}

fn child_ended(child: &std::process::Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z")
}

/// While a server is dead, a program that waits can be killed, and the mount taken away.
#[test]
fn a_dead_server_keeps_nobody() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let served = serve(&disks, "127.0.0.1:0");
    let remote = Remote::plain(&disks, "remote", &served);
    sh(&format!("echo old > {}/file", remote.dir));
    let read = format!("exec 9< {}/file; flock 9; exec cat {}/file", remote.dir, remote.dir);
    assert_eq!(sh(&read), "old\n");
    // One has written what is not durable, and the close at its end waits for that.
    let writes = format!("exec 8> {}/new; echo new >&8; echo; exec sleep 1000", remote.dir);
    let mut writer =
        Command::new("sh").args(["-c", &writes]).stdout(Stdio::piped()).spawn().unwrap();
    writer.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    served.kill();
    let reader = Command::new("cat").arg(format!("{}/file", remote.dir)).spawn().unwrap();
    for (mut child, name) in [(reader, "reader"), (writer, "writer")] {
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert!(child.try_wait().unwrap().is_none(), "the {name} waits");
        child.kill().unwrap();
        let begun = std::time::Instant::now();
        child.wait().unwrap();
        assert!(begun.elapsed().as_secs() < 10, "{name}: {:?}", begun.elapsed());
    }
    let begun = std::time::Instant::now();
    remote.unmount();
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    clean_after_death(&disks);
}

/// A node that died is recovered by the next one.
fn clean_after_death(disks: &Disks) {
    serve(disks, "127.0.0.1:0").end();
    clean(disks);
}

#[test]
fn mistakes_are_named() {
    if !can_mount() {
        return;
    }
    let disks = pool();
    let dir = disks.path("remote");
    std::fs::create_dir(&dir).unwrap();
    let said = fails(&["mount", "braid://host", &dir]);
    assert!(said.contains("braid://HOST[:PORT][,HOST[:PORT]...]/POOL"), "{said}");
    let said = fails(&["mount", "braid://host/p", "braid://host/q", &dir]);
    assert!(said.contains("one place"), "{said}");
    let said = fails(&["mount", "braid://host/p", &dir, "--insecure", "-o", "cache=16M"]);
    assert!(said.contains("cache=16M") && said.contains("server"), "{said}");
    let said = fails(&["mount", "test", &dir, "--insecure"]);
    assert!(said.contains("--insecure"), "{said}");
    let said = fails(&["mount", "braid://127.0.0.1:1/p", &dir, "--insecure", "-o", "retry=1"]);
    assert!(said.contains("no answer from 127.0.0.1:1"), "{said}");
    assert!(!common::is_mounted(std::path::Path::new(&dir)));
}
