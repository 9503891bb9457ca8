//! Locks of programs through real mounts: many that wait, many that are held, and one user's loop.

mod common;

use common::{Cluster, Disks, can_mount};

/// As root; programs that hold many files.
fn python(c: &Cluster, program: &str) {
    common::python(c, &format!("{HEAD}{program}"));
}
fn on_two_nodes(program: &str) {
    common::python_on_two_nodes(&format!("{HEAD}{program}"));
}
const HEAD: &str = r#"
def open_(where, name, flags=os.O_RDWR): return os.open(where + "/" + name, flags)
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
os.chmod(A, 0o777)
"#;

#[test]
fn two_thousand_waits_of_one_user_hold_up_nobody() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 256, 0);
    c.mount(&["workers_max=32"]);
    c.mount(&[]);
    python(
        &c,
        r#"
for name in ("held", "hold", "other", "data"):
    with open(A + "/" + name, "w") as f: f.write(name)
    os.chmod(A + "/" + name, 0o666)
def ofd(fd, kind):
    "F_SETLKW of an open file description: each of a program's threads waits for itself."
    fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))
KINDS = {
    "held": (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX), lambda fd: fcntl.flock(fd, fcntl.LOCK_UN)),
    "hold": (lambda fd: ofd(fd, fcntl.F_WRLCK), lambda fd: ofd(fd, fcntl.F_UNLCK)),
}
holders = {name: open_(A, name) for name in KINDS}
for name, fd in holders.items(): KINDS[name][0](fd)
EACH = 1000
def wait_in_threads(name, count):
    take, give = KINDS[name]
    threading.stack_size(1 << 16)
    state = {"begun": 0, "had": 0, "busy": 0}; guard = threading.Lock()
    def one():
        fd = open_(A, name)
        with guard: state["begun"] += 1
        take(fd)
        with guard:
            state["busy"] += 1; assert state["busy"] == 1; state["had"] += 1; state["busy"] -= 1
        give(fd)
        os.close(fd)
    all = [threading.Thread(target=one) for _ in range(EACH)]
    for t in all: t.start()
    until("all wait", lambda: state["begun"] == EACH)
    os.write(count, b"w"); os.close(count)
    for t in all: t.join()
    assert state["had"] == EACH
pipes = [os.pipe() for _ in KINDS]
crowds = [as_user(1000, lambda n=n, w=w: wait_in_threads(n, w)) for n, (_, w) in zip(KINDS, pipes)]
for r, _ in pipes: assert os.read(r, 1) == b"w"
time.sleep(0.3)
def others():
    for where in (A, B):
        assert os.stat(where + "/held").st_size == 4
        fd = open_(where, "data")
        os.pwrite(fd, b"x" * 5000, 0); os.fsync(fd)
        assert os.pread(fd, 9, 0) == b"x" * 9
        fcntl.flock(fd, fcntl.LOCK_EX); fcntl.flock(fd, fcntl.LOCK_UN); os.close(fd)
        lock = open_(where, "other")
        fcntl.lockf(lock, fcntl.LOCK_EX, 10); fcntl.lockf(lock, fcntl.LOCK_UN, 10); os.close(lock)
        open(where + "/new", "w").close(); os.unlink(where + "/new")
assert ended(as_user(1001, others)) == 0
refused(errno.EAGAIN, fcntl.flock, open_(B, "held"), fcntl.LOCK_SH | fcntl.LOCK_NB)
refused(errno.EAGAIN, fcntl.lockf, open_(B, "hold"), fcntl.LOCK_EX | fcntl.LOCK_NB)
# One crowd dies, the other is served.
os.kill(crowds[0], signal.SIGKILL); assert ended(crowds[0]) == signal.SIGKILL
for name, fd in holders.items(): KINDS[name][1](fd)
assert ended(crowds[1]) == 0
fcntl.flock(open_(B, "held"), fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(open_(B, "hold"), fcntl.LOCK_EX | fcntl.LOCK_NB)
"#,
    );
    c.finish();
}

#[test]
fn one_user_who_takes_all_he_can_leaves_locks_for_others() {
    on_two_nodes(
        r#"
for name in ("a", "b"):
    open(A + "/" + name, "w").close(); os.chmod(A + "/" + name, 0o666)
go, went = os.pipe(), os.pipe()
def greedy():
    fd, n = open_(A, "a"), 0
    try:
        while n < 1 << 20:
            fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * n); n += 1
    except OSError as e: assert e.errno == errno.ENOLCK, e
    assert 4_000 < n < 1 << 20, n
    os.write(go[1], b"g"); os.read(went[0], 1)
    # Who has as many as he may can still give up parts.
    fcntl.lockf(fd, fcntl.LOCK_EX, 1 << 40, 0)
    for i in range(1000): fcntl.lockf(fd, fcntl.LOCK_UN, 1, 3 * i + 1)
    os.close(fd)
pid = as_user(1000, greedy)
assert os.read(go[0], 1) == b"g"
def other():
    for where in (A, B):
        fd = open_(where, "b")
        fcntl.flock(fd, fcntl.LOCK_EX); fcntl.lockf(fd, fcntl.LOCK_EX, 5)
        os.close(fd)
    refused(errno.EAGAIN, fcntl.lockf, open_(B, "a"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2)
assert ended(as_user(1001, other)) == 0
os.write(went[1], b"w")
assert ended(pid) == 0
fcntl.lockf(open_(B, "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
"#,
    );
}

#[test]
fn random_locks_of_several_processes_agree_with_the_host() {
    on_two_nodes(
        r#"
# Each process does the same on a file here and on one of the host's, in turns: the answers agree.
import tempfile
HOST = tempfile.mkdtemp(); os.chmod(HOST, 0o777)
OFD_GET, OFD_SET = 36, 37
for where in (A, HOST): open(where + "/f", "w").close()
def serve(inbox, outbox, braid):
    fds = [[os.open(where + "/f", os.O_RDWR) for _ in range(2)] for where in (braid, HOST)]
    def do(fd, what):
        kind, op, start, length = what
        try:
            if kind == "flock": fcntl.flock(fd, op | fcntl.LOCK_NB); return 0
            packed = struct.pack("hhqqi4x", op, 0, start, length, 0)
            if kind == "get":
                found = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, packed))
                # Of several in the way any may be named.
                return found[0] == fcntl.F_UNLCK
            fcntl.fcntl(fd, OFD_SET if kind == "ofd" else fcntl.F_SETLK, packed)
            return 0
        except OSError as e: return errno.EAGAIN if e.errno == errno.EACCES else e.errno
    while True:
        line = inbox.readline()
        if not line: os._exit(0)
        lately, which, what = eval(line)
        if what[0] == "close":
            for files, where in zip(fds, (braid, HOST)):
                os.close(files[which]); files[which] = os.open(where + "/f", os.O_RDWR)
            answer = (0, 0)
        else: answer = tuple(do(files[which], what) for files in fds)
        # Locks of open files go soon after the close: the kernel does not wait for that answer.
        end = time.monotonic() + 10
        while lately and answer[0] != answer[1] and time.monotonic() < end:
            time.sleep(0.01); answer = (do(fds[which][0], what), answer[1])
        outbox.write(repr(answer) + "\n"); outbox.flush()
workers = []
for braid in (A, A, B):
    (r1, w1), (r2, w2) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(w1)
        for other in workers: other[0].close()
        serve(os.fdopen(r1), os.fdopen(w2, "w"), braid)
    workers.append((os.fdopen(w1, "w"), os.fdopen(r2)))
seed = 20_26; rng = random.Random(seed); closed = -100
for step in range(1500):
    n, which = rng.randrange(3), rng.randrange(2)
    kind = rng.choice(["flock", "posix", "posix", "ofd", "ofd", "get", "close"] if rng.random() < .5 else ["posix", "ofd"])
    if kind == "flock": what = (kind, rng.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN]), 0, 0)
    else: what = (kind, rng.choice([fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK] if kind != "get" else [fcntl.F_RDLCK, fcntl.F_WRLCK]), rng.randrange(20), rng.choice([0, 1, 2, 5, 30]))
    to, back = workers[n]
    closed = step if kind == "close" else closed
    to.write(repr((step - closed < 100, which, what)) + "\n"); to.flush()
    here, there = eval(back.readline())
    assert here == there, (seed, step, n, which, what, here, there)
for to, _ in workers: to.close()
for _ in workers: assert os.wait()[1] == 0
import shutil; shutil.rmtree(HOST)
"#,
    );
}

/// Of three tries one must be good: the machine may do much else.
#[test]
fn a_greedy_loop_on_another_node_starves_nobody() {
    if !can_mount() {
        return;
    }
    let c = Cluster::of(Disks::in_memory(2, 192), 2, &[]);
    python(
        &c,
        r#"
open(A + "/greedy", "w").close()
LENGTH, PAUSE = 4, 0.01
def greedy(lock):
    fd = open_(B, "greedy")
    while True: lock(fd, fcntl.LOCK_EX); lock(fd, fcntl.LOCK_UN)
def attempt(lock):
    fd = open_(A, "greedy")
    pid = as_user(0, lambda: greedy(lock))
    waits, end = [], time.monotonic() + LENGTH
    while time.monotonic() < end:
        begun = time.monotonic()
        lock(fd, fcntl.LOCK_EX)
        waits.append(time.monotonic() - begun)
        lock(fd, fcntl.LOCK_UN)
        time.sleep(PAUSE)
    os.kill(pid, signal.SIGKILL); ended(pid); os.close(fd)
    return max(waits), len(waits)
for lock in (fcntl.flock, fcntl.lockf):
    seen = []
    for _ in range(3):
        seen.append(attempt(lock)); print(lock.__name__, *seen[-1], file=sys.stderr)
        if seen[-1][0] < 1 and seen[-1][1] >= 50: break
    else: raise AssertionError((lock.__name__, seen))
"#,
    );
    c.finish();
}
