//! Mounts whose requests come by io_uring, and mounts that were to be so and are not.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{Cluster, Disks, SWITCH, Switch, can_mount, is_mounted, python};
use std::sync::Mutex;

/// The switch is the host's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn switch() -> Option<Switch> {
    if !can_mount() {
        return None;
    }
    let was = Switch::now();
    if was.is_none() {
        braid_testkit::skip("FUSE by io_uring needs Linux 6.14");
    }
    was
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(format!("{}.log", dir.display())).unwrap_or_default()
}

/// How many threads of a process answer by io_uring, and how often they waited.
fn ring_threads(pid: i32) -> (usize, u64) {
    let (mut count, mut waits) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        // One that has ended meanwhile is none.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        if field("Name:") == "fuse-ring" {
            count += 1;
            waits += field("voluntary_ctxt_switches:").parse::<u64>().unwrap();
        }
    }
    (count, waits)
}

/// Names, contents small and large, through both ends.
const EVERYDAY: &str = r#"
import mmap
a, b = A, B
def same(name, what):
    for d in (b, a, b):
        with open(f"{d}/{name}", "rb") as f: assert f.read() == what, (d, name, len(what))
for n in (0, 1, 100, 4095, 4096, 5000, 70000, 1 << 20, (3 << 20) + 17):
    what = os.urandom(n)
    with open(f"{a}/f", "wb", buffering=0) as f:
        left = what
        while left: left = left[f.write(left):]
    same("f", what)
os.mkdir(f"{a}/d")
for n in range(300): open(f"{a}/d/{n:03}" + "x" * 100, "w").close()
assert sorted(os.listdir(f"{b}/d")) == [f"{n:03}" + "x" * 100 for n in range(300)]
for e in os.scandir(f"{b}/d"): assert e.stat().st_size == 0
os.symlink("target" * 50, f"{a}/l"); assert os.readlink(f"{b}/l") == "target" * 50
os.setxattr(f"{a}/f", "user.k", b"v" * 3000); assert os.getxattr(f"{b}/f", "user.k") == b"v" * 3000
assert os.listxattr(f"{b}/f") == ["user.k"]
os.rename(f"{b}/d/000" + "x" * 100, f"{b}/moved"); assert os.path.exists(f"{a}/moved")
os.link(f"{a}/f", f"{a}/g"); assert os.stat(f"{b}/g").st_nlink == 2
for refused in (lambda: os.stat(f"{a}/none"), lambda: os.open(f"{b}/none", os.O_RDONLY)):
    try: refused(); assert False
    except FileNotFoundError: pass
# Direct, a mebibyte at a time, whole and cut at the end of the file.
m = mmap.mmap(-1, 1 << 20)
want = b""
w = os.open(f"{a}/direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
for n in range(24):
    m[:] = os.urandom(1 << 20); want += m[:]
    assert os.pwrite(w, m, n << 20) == 1 << 20
r = os.open(f"{b}/direct", os.O_RDONLY | os.O_DIRECT)
for n in range(24):
    assert os.preadv(r, [m], n << 20) == 1 << 20 and m[:] == want[n << 20:(n + 1) << 20], n
os.ftruncate(w, (23 << 20) + 777)
assert os.preadv(r, [m], 23 << 20) == 777 and m[:777] == want[23 << 20:][:777]
assert os.preadv(r, [m], 24 << 20) == 0
same("direct", want[:(23 << 20) + 777])
# Mapped, and written by others on this node while pages are held.
with open(f"{b}/direct", "rb") as f:
    pages = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    assert pages[:4096] == want[:4096]
    d = os.open(f"{b}/direct", os.O_RDWR)
    os.pwrite(d, b"new" * 10000, 0)
    assert pages[:30000] == b"new" * 10000
os.sync(); os.fsync(w)
"#;

/// More programs wait than there are threads at the start, all on one processor; a signal ends one
/// wait; others go on meanwhile; then all get their turn.
const WAITS: &str = r#"
a, b = A, B
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
f = open(f"{a}/lock", "w"); fcntl.lockf(f, fcntl.LOCK_EX)
def waiter(path, seconds, code):
    pid = os.fork()
    if pid: return pid
    def ring(*_): raise InterruptedError
    signal.signal(signal.SIGALRM, ring)
    if seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with open(path, "r+") as g: fcntl.lockf(g, fcntl.LOCK_EX)
        os._exit(0)
    except InterruptedError: os._exit(code)
    except BaseException: os._exit(99)
def ended(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert ended(waiter(f"{a}/lock", 0.3, 7)) == 7, "a signal ends a wait"
assert ended(waiter(f"{b}/lock", 0.3, 7)) == 7, "on the other node too"
many = [waiter(f"{(a, b)[n % 2]}/lock", 0, 7) for n in range(40)]
for d in (a, b):
    for n in range(50):
        with open(f"{d}/among{n}", "w") as g: g.write("x" * n)
        os.unlink(f"{d}/among{n}")
assert all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in many), "they still wait"
killed = many.pop(); os.kill(killed, signal.SIGKILL); assert ended(killed) == -9
fcntl.lockf(f, fcntl.LOCK_UN)
assert [ended(pid) for pid in many] == [0] * 39
"#;

#[test]
fn everyday_use_of_two_mounts_by_io_uring() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_switch) = switch() else { return };
    std::fs::write(SWITCH, "N").unwrap();
    let mut cluster = Cluster::of(Disks::new(4, 256), 0, &[]);
    for _ in 0..2 {
        cluster.mount(&["uring"]);
    }
    assert_eq!(std::fs::read_to_string(SWITCH).unwrap().trim(), "Y");
    let (a, b) = (cluster.node(0).to_owned(), cluster.node(1).to_owned());
    let pid = cluster.pid(0);
    let said = log(&a);
    assert!(said.contains("for this whole host") && !log(&b).contains("whole host"), "{said}");
    let (count, before) = ring_threads(pid);
    if count == 0 {
        // A kernel that refuses rings, for example.
        return braid_testkit::skip(&format!("no FUSE by io_uring here: {}", log(&a)));
    }
    python(&cluster, EVERYDAY);
    assert!(ring_threads(pid).1 > before + 500, "the requests went another way");
    python(&cluster, WAITS);
    assert!(ring_threads(pid).0 > count, "threads were added");

    // A daemon dies: the other goes on, and takes over what it held. Its programs get an error.
    std::fs::write(a.join("kept"), "kept").unwrap();
    for path in [a.join("kept"), a.clone()] {
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    }
    cluster.kill(0);
    assert!(std::fs::read(a.join("kept")).is_err());
    assert_eq!(std::fs::read(b.join("kept")).unwrap(), b"kept");
    std::fs::write(b.join("after"), "after").unwrap();
    cluster.detach(0);
    let again = cluster.mount(&["uring"]);
    assert_eq!(std::fs::read(again.join("after")).unwrap(), b"after");
    let last = cluster.pid(2);
    cluster.unmount(2);
    common::wait_until("the daemon ends", || !Path::new(&format!("/proc/{last}")).exists());
    assert!(!is_mounted(&again) && is_mounted(&b));
    cluster.unmount(1);
    assert!(!is_mounted(&b));
    cluster.finish();
}

/// Of 32 threads an eighth may wait for locks of one user, half for all: what is beyond that is refused, and the
/// rest of the threads serve others.
const REFUSED: &str = r#"
os.chmod(A, 0o777)
with open(A + "/held", "w") as f: f.write("x")
os.chmod(A + "/held", 0o666)
holder = os.open(A + "/held", os.O_RDWR); fcntl.flock(holder, fcntl.LOCK_EX)
def crowd(told):
    state = {"refused": 0, "had": 0}; guard = threading.Lock()
    def one():
        fd = os.open(A + "/held", os.O_RDWR)
        try: fcntl.flock(fd, fcntl.LOCK_EX); how = "had"
        except OSError as e: assert e.errno == errno.ENOLCK, e; how = "refused"
        with guard: state[how] += 1
        os.close(fd)
    all = [threading.Thread(target=one) for _ in range(40)]
    for t in all: t.start()
    until("all but an eighth are refused", lambda: state["refused"] >= 36)
    time.sleep(0.2); assert state == {"refused": 36, "had": 0}, state
    os.write(told, b"r")
    for t in all: t.join()
    assert state == {"refused": 36, "had": 4}, state
users = []
for uid in (1000, 1001):
    r, w = os.pipe(); users.append(as_user(uid, lambda: crowd(w)))
    assert os.read(r, 1) == b"r"
def other():
    for where in (A, B):
        assert os.stat(where + "/held").st_size == 1 and "held" in os.listdir(where)
        open(where + "/new", "w").close(); os.unlink(where + "/new")
assert ended(as_user(1002, other)) == 0
fcntl.flock(holder, fcntl.LOCK_UN)
for pid in users: assert ended(pid) == 0
"#;

#[test]
fn waits_for_locks_leave_threads_of_a_mount_by_io_uring_for_others() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_switch) = switch() else { return };
    let mut cluster = Cluster::of(Disks::new(2, 192), 0, &[]);
    let a = cluster.mount(&["uring", "workers_max=32"]);
    cluster.mount(&[]);
    if ring_threads(cluster.pid(0)).0 == 0 {
        return braid_testkit::skip(&format!("no FUSE by io_uring here: {}", log(&a)));
    }
    python(&cluster, REFUSED);
    cluster.finish();
}

#[test]
fn where_there_is_none_the_mount_says_so_and_serves_all_the_same() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_switch) = switch() else { return };
    let disks = Disks::new(2, 64);
    common::ok(&disks.with(&["create", "test"], &[]));
    let dir = disks.dir.path().join("node");
    std::fs::create_dir(&dir).unwrap();
    let shown = dir.to_str().unwrap();
    // Fewer threads than two for each processor.
    let options = format!("log={shown}.log,uring,workers_max=2");
    common::ok(&disks.with(&["mount"], &[shown, "-o", &options]));
    std::fs::write(dir.join("file"), "contents").unwrap();
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"contents");
    let said = log(&dir);
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert!(said.contains("not by io_uring"), "{said}");
        assert!(said.contains("workers_max="), "{said}");
    }
    common::unmount_idle(&dir);
}
