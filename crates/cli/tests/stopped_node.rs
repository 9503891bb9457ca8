//! A node whose process is stopped while the pool is changed: it cannot take note of that, and nobody may
//! change anything before it has. The other nodes of its host wait for as long as a node may be silent, and
//! then end its process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{Cluster, Disks, braid, can_mount, is_mounted, ok, sh, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A mirror of two of three disks under two nodes; the first has this `io_timeout`.
fn cluster(io_timeout: &str) -> Cluster {
    let disks = Disks::new(3, 300);
    let [one, two, _] = &disks.names()[..] else { panic!("three disks") };
    ok(&["create", "stopped", one, two, "--mirror", "2", "--nodes", "4"]);
    let mut cluster = Cluster { disks, nodes: Vec::new() };
    for options in [&[io_timeout][..], &["io_timeout=5"]] {
        let dir = cluster.disks.path(&format!("node{}", cluster.nodes.len()));
        std::fs::create_dir(&dir).unwrap();
        let options = format!("log={dir}.log,{}", options.join(","));
        let names = cluster.disks.names();
        ok(&["mount", names[0], names[1], &dir, "-o", &options]);
        cluster.nodes.push(dir.into());
    }
    cluster
}

/// A process that is killed, or goes on, when this is dropped.
struct Stopped(Pid);
impl Stopped {
    fn stop(c: &Cluster, n: usize) -> Self {
        let pid = Pid::from_raw(c.pid(n)).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
    /// Whether its process has not ended.
    fn is_there(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z"))
    }
}
impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

/// A shell that runs a script; killed when this is dropped.
struct Program(Child);
impl Program {
    fn new(script: &str) -> Self {
        let mut command = Command::new("env");
        command.args(["--default-signal", "bash", "-c", script]).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
    fn lasts(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
    /// How it ends, which it must.
    fn ends(&mut self, what: &str) -> ExitStatus {
        let begun = Instant::now();
        while self.lasts() {
            assert!(begun.elapsed() < Duration::from_mins(1), "{what} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.wait().unwrap()
    }
}
impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn logged(dir: &Path) -> String {
    std::fs::read_to_string(format!("{}.log", dir.display())).unwrap()
}

/// A pool whose members changed is not what [`Cluster::finish`] expects.
fn whole(mut c: Cluster, members: &[usize]) {
    c.unmount_all();
    let names = c.disks.names();
    let members: Vec<_> = members.iter().map(|n| names[*n]).collect();
    let said = ok(&[&["check"], &members[..]].concat());
    assert!(said.contains("clean"), "{said}");
}

/// Names are of the directory: who lists them does not wait for a node that holds a file there.
#[test]
fn names_are_listed_while_a_node_that_holds_a_file_is_stopped() {
    if !can_mount() {
        return;
    }
    // Long enough that nobody takes it for dead meanwhile.
    let c = cluster("io_timeout=30");
    let [here, there] = &c.nodes[..] else { panic!("two nodes") };
    std::fs::create_dir(here.join("d")).unwrap();
    for n in 0..40 {
        std::fs::write(here.join(format!("d/{n}")), "x").unwrap();
    }
    // The other node gives these up when it goes on.
    for n in [3, 17, 30] {
        std::fs::write(there.join(format!("d/{n}")), "changed").unwrap();
    }
    std::fs::read_dir(here.join("d")).unwrap().for_each(drop);
    for n in [3, 17, 30] {
        std::fs::write(there.join(format!("d/{n}")), "changed again").unwrap();
    }
    let stopped = Stopped::stop(&c, 1);
    let begun = Instant::now();
    let names = std::fs::read_dir(here.join("d")).unwrap().count();
    let took = begun.elapsed();
    drop(stopped);
    assert_eq!(names, 40);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(std::fs::read_to_string(here.join("d/17")).unwrap(), "changed again");
}

#[test]
fn a_node_that_is_stopped_while_the_pool_changes_is_ended_and_recovered() {
    if !can_mount() {
        return;
    }
    let mut c = cluster("io_timeout=5");
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    sh(&format!("echo of-a > {0}/f; sync {0}/f; ls {1} > /dev/null", a.display(), b.display()));
    let stopped = Stopped::stop(&c, 0);
    // A change that the stopped node does not take note of; whoever asks for it waits for that, too.
    let third = c.disks.names()[2].to_owned();
    let (node, command) = (b.display().to_string(), env!("CARGO_BIN_EXE_braid"));
    let mut replaced =
        Program::new(&format!("{command} fail {node} 1 && {command} replace {node} 1 {third}"));
    wait_until("the change is there", || ok(&["status", &node]).contains("failed"));
    let mut synced = Program::new(&format!("echo of-b > {node}/g && sync {node}/g"));
    assert!(synced.ends("an fsync").success());
    assert!(!stopped.is_there(), "its process must have ended before");
    assert!(replaced.ends("the changes").success());
    assert_eq!(sh(&format!("cat {node}/f {node}/g")), "of-a\nof-b\n");
    let said = logged(&b);
    assert!(said.contains("its process is killed"), "{said}");
    c.detach(0);
    wait_until("its mount is gone", || !is_mounted(&a));
    c.nodes.remove(0);
    whole(c, &[0, 2]);
}

/// Its liveness lock is not on the new members yet: they look like copies of members, and are none.
#[test]
fn a_mount_waits_for_a_stopped_node_and_takes_no_new_member_for_a_copy() {
    if !can_mount() {
        return;
    }
    for (io_timeout, ends) in [("io_timeout=5", true), ("io_timeout=300", false)] {
        let mut c = cluster(io_timeout);
        let b = c.node(1).display().to_string();
        let new = [3, 4].map(|n| c.disks.path(&format!("disk{n}")));
        for path in &new {
            std::fs::File::create(path).unwrap().set_len(300 << 20).unwrap();
        }
        let stopped = Stopped::stop(&c, 0);
        let command = env!("CARGO_BIN_EXE_braid");
        let mut added =
            Program::new(&format!("{command} add {b} {} {} --mirror 2", new[0], new[1]));
        // A command that meets the change half written may find labels of two epochs.
        wait_until("the change is there", || {
            let out = braid(&["status", &b]);
            !out.status.success() || String::from_utf8_lossy(&out.stdout).contains(&new[1])
        });
        let dir = c.disks.path("third");
        std::fs::create_dir(&dir).unwrap();
        let (names, log) = (c.disks.names(), format!("log={dir}.log"));
        let mount = ["mount", names[0], names[1], &new[0], &new[1], &dir, "-o", &log];
        if ends {
            let said = ok(&mount);
            assert!(!said.contains("copy"), "{said}");
            assert!(!stopped.is_there());
            c.detach(0);
            wait_until("its mount is gone", || !is_mounted(&c.nodes[0]));
            c.nodes.remove(0);
            c.nodes.push(dir.into());
        } else {
            let mut mounted = Program::new(&format!("{command} {}", mount.join(" ")));
            // Longer than a look at copies takes.
            std::thread::sleep(Duration::from_secs(4));
            assert!(mounted.lasts() && stopped.is_there());
            drop(stopped);
            assert!(mounted.ends("the mount").success());
            c.nodes.push(dir.into());
        }
        assert!(added.ends("the change").success());
        c.unmount_all();
        let names = c.disks.names();
        let said = ok(&["check", names[0], names[1], &new[0], &new[1]]);
        assert!(said.contains("clean"), "{said}");
    }
}

#[test]
fn whoever_waits_until_a_stopped_node_takes_note_of_a_change_can_be_killed() {
    if !can_mount() {
        return;
    }
    // It may be silent for so long that nobody ends it here.
    let c = cluster("io_timeout=300");
    let b = c.node(1).to_owned();
    let node = b.display().to_string();
    sh(&format!(
        "mkdir {node}/d {node}/e; for n in 1 2 3; do echo old > {node}/d/$n; done
        echo old > {node}/e/1; sync -f {node}"
    ));
    let stopped = Stopped::stop(&c, 0);
    let mut failed = Program::new(&format!("{} fail {node} 1", env!("CARGO_BIN_EXE_braid")));
    wait_until("the change is there", || ok(&["status", &node]).contains("failed"));
    let mut waiting = [
        format!("echo new > {node}/d/1; exec sync {node}/d/1"),
        format!("exec dd if=/dev/zero of={node}/d/2 bs=4096 count=1 oflag=direct conv=notrunc"),
        format!("exec dd if=/dev/zero of={node}/d/3 bs=4096 count=1 oflag=sync conv=notrunc"),
    ]
    .map(|script| Program::new(&script));
    // What needs no change goes on.
    assert_eq!(sh(&format!("timeout 60 cat {node}/e/1; timeout 60 ls {node}/e")), "old\n1\n");
    let pid = stopped.0.as_raw_nonzero();
    wait_until("it is said for whom all wait", || {
        let said = ok(&["status", &node]);
        said.contains("all changes wait until node 0")
            && said.contains(&format!("its process ({pid}) is stopped"))
    });
    for program in &mut waiting {
        assert!(program.lasts(), "it must wait for the stopped node");
        program.0.kill().unwrap();
    }
    for program in &mut waiting {
        assert!(!program.ends("a program that was killed").success());
    }
    assert!(failed.lasts() && stopped.is_there());
    drop(stopped);
    assert!(failed.ends("the change").success());
    sh(&format!("echo newer > {node}/d/1; sync {node}/d/1"));
    assert_eq!(sh(&format!("cat {}/d/1", c.node(0).display())), "newer\n");
    whole(c, &[0]);
}

/// Opens 100 files of directory B by handles that directory A gave, all at once: in threads, as a user who
/// may do nothing else. Handles are made before that user's part.
const BY_HANDLE: &str = r"
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
part, a, b, kept = sys.argv[1:]
def handle(path):
    room = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
    if libc.name_to_handle_at(-100, path.encode(), room, ctypes.byref(ctypes.c_int()), 0): raise OSError(ctypes.get_errno())
    return room.raw
if part == 'make':
    os.mkdir(a + '/h')
    for n in range(100): open(f'{a}/h/{n}', 'w').write(str(n))
    open(kept, 'wb').write(b''.join(handle(f'{a}/h/{n}') for n in range(100)))
    sys.exit()
all, size, at, wrong = open(kept, 'rb').read(), 8 + 128 + 1, os.open(b, os.O_RDONLY), []
def open_one(n):
    fd = libc.open_by_handle_at(at, ctypes.create_string_buffer(all[n * size:(n + 1) * size]), os.O_RDONLY)
    if fd < 0 or os.read(fd, 9) != str(n).encode(): wrong.append((n, fd, ctypes.get_errno()))
threads = [threading.Thread(target=open_one, args=[n]) for n in range(100)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(repr(wrong) if wrong else 0)
";

/// How many threads of a process are in this system call.
fn in_call(pid: u32, call: libc::c_long) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let now = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("syscall")).ok());
    now.filter(|now| now.split(' ').next() == Some(&call.to_string())).count()
}

/// Two nodes and their directories: the first may be silent for long, the second has 64 threads.
fn with_few_threads() -> (Cluster, String, String) {
    let mut c = Cluster::new(1, 256, 0);
    let a = c.mount(&["io_timeout=300"]).display().to_string();
    let b = c.mount(&["workers_max=64"]).display().to_string();
    (c, a, b)
}

/// Opens a file, and once there is the second file asks for the first one's size by a hundred threads.
const STAT_BY_THREADS: &str = "import ctypes, os, sys, threading, time
libc, path, go = ctypes.CDLL(None, use_errno=True), sys.argv[1], sys.argv[2]
os.setgroups([]); os.setgid(1000); os.setuid(1000)
EMPTY_PATH, FORCE_SYNC, SIZE = 0x1000, 0x2000, 0x200
fd, sizes = os.open(path, os.O_RDONLY), []
def ask():
    out = ctypes.create_string_buffer(256)
    done = libc.statx(fd, b'', EMPTY_PATH | FORCE_SYNC, SIZE, out)
    sizes.append(int.from_bytes(out.raw[40:48], 'little') if done == 0 else -ctypes.get_errno())
open(go + '.open', 'w').close()
while not os.path.exists(go): time.sleep(0.02)
threads = [threading.Thread(target=ask) for n in range(100)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(0 if sizes == [9] * 100 else repr(sizes))
";

/// One user's calls all wait for a stopped node, and there are more of them than threads. Half of the threads are
/// left to others.
#[test]
fn calls_of_a_user_leave_threads_for_others() {
    if !can_mount() {
        return;
    }
    let (c, a, b) = with_few_threads();
    let (program, go) = (c.disks.path("stat.py"), c.disks.path("go"));
    std::fs::write(&program, STAT_BY_THREADS).unwrap();
    sh(&format!(
        "chmod 777 {}; chmod 755 {program} {a} {b}; echo own > {b}/own; echo held > {a}/held; ls -l {b} {b}/own",
        c.disks.path("")
    ));
    let mut asking = Program::new(&format!("exec python3 {program} {b}/held {go}"));
    let pid = asking.0.id();
    wait_until("it is open", || Path::new(&format!("{go}.open")).exists());
    sh(&format!("echo new >> {a}/held"));
    let stopped = Stopped::stop(&c, 0);
    std::fs::write(&go, "").unwrap();
    wait_until("all wait", || in_call(pid, libc::SYS_statx) == 100);
    for uid in [0, 1001] {
        let user = format!("setpriv --reuid={uid} --regid={uid} --clear-groups");
        let calls = format!("timeout 60 cat {b}/own; timeout 60 stat -c %s {b}/own");
        assert_eq!(sh(&format!("{user} bash -c '{calls}'")), "own\n4\n");
    }
    assert!(asking.lasts());
    drop(stopped);
    assert!(asking.ends("the calls").success());
    c.finish();
}

/// Has a lock of the file, and once there is the second file unlocks other ranges by a hundred threads. A child closes
/// fifty open files then that have a lock each.
const UNLOCK_BY_THREADS: &str = "import fcntl, os, struct, sys, threading, time
path, go = sys.argv[1:]
os.setgroups([]); os.setgid(1000); os.setuid(1000)
SETLK, OFD_SETLK, me = fcntl.F_SETLK, 37, os.getpid()
def ask(fd, how, kind, start): fcntl.fcntl(fd, how, struct.pack('hhqqi4x', kind, 0, start, 1, 0))
def wait_with(name):
    open(f'{go}.{name}', 'w').close()
    while not os.path.exists(go): time.sleep(0.02)
child = os.fork()
if child == 0:
    files = [os.open(path, os.O_RDWR) for n in range(50)]
    for n, f in enumerate(files): ask(f, OFD_SETLK, fcntl.F_WRLCK, 10 ** 9 + me * 100 + n)
    wait_with(f'{me}.child')
    for f in files: os.close(f)
    os._exit(0)
fd = os.open(path, os.O_RDWR)
ask(fd, SETLK, fcntl.F_WRLCK, 10 ** 6 + me)
done = []
def unlock(n):
    ask(fd, SETLK, fcntl.F_UNLCK, n * 10)
    done.append(n)
wait_with(me)
threads = [threading.Thread(target=unlock, args=[n]) for n in range(100)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(0 if len(done) == 100 and os.waitpid(child, 0)[1] == 0 else repr(done))
";

/// Locks one byte of a file that nobody else has, and all of it, and unlocks that.
const LOCK_ONE: &str =
    "python3 -c 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], \"r+\"), fcntl.LOCK_EX, 1, 1)'";
const LOCK_ALL: &str =
    "python3 -c 'import fcntl, sys; fcntl.lockf(open(sys.argv[1], \"r+\"), fcntl.LOCK_EX)'";

/// Unlocks and closes of a user wait for a stopped node, more of them than there are threads. Calls of others do not
/// wait for them. A program that is killed need not wait.
#[test]
fn unlocks_of_a_user_leave_threads_for_others() {
    if !can_mount() {
        return;
    }
    let (c, a, b) = with_few_threads();
    let (program, go) = (c.disks.path("unlock.py"), c.disks.path("go"));
    std::fs::write(&program, UNLOCK_BY_THREADS).unwrap();
    sh(&format!(
        "chmod 777 {}; chmod 755 {program} {a} {b}; echo own > {b}/own; echo > {a}/locked; chmod 666 {a}/locked
        ls -l {b} {b}/own {b}/locked",
        c.disks.path("")
    ));
    let run = || Program::new(&format!("exec python3 {program} {b}/locked {go}"));
    let (mut killed, mut asking) = (run(), run());
    let pids = [killed.0.id(), asking.0.id()];
    let names = pids.iter().flat_map(|pid| [format!("{go}.{pid}"), format!("{go}.{pid}.child")]);
    let names = names.collect::<Vec<_>>();
    wait_until("they have their locks", || names.iter().all(|name| Path::new(name).exists()));
    // The first node has the locks of this file from now on.
    sh(&format!("{LOCK_ONE} {a}/locked"));
    let stopped = Stopped::stop(&c, 0);
    std::fs::write(&go, "").unwrap();
    let waiting = || pids.map(|pid| in_call(pid, libc::SYS_fcntl)) == [100; 2];
    wait_until("all wait", waiting);
    for uid in [0, 1001] {
        let user = format!("setpriv --reuid={uid} --regid={uid} --clear-groups");
        let calls = format!("timeout 60 cat {b}/own; timeout 60 stat -c %s {b}/own");
        assert_eq!(sh(&format!("{user} bash -c '{calls}'")), "own\n4\n");
    }
    assert!(killed.lasts() && asking.lasts());
    killed.0.kill().unwrap();
    assert!(!killed.ends("a program that was killed").success());
    drop(stopped);
    assert!(asking.ends("the unlocks").success());
    // Nothing is locked any more, for the other node either.
    sh(&format!("timeout 60 {LOCK_ALL} {a}/locked"));
    c.finish();
}

/// They wait for a stopped node, and would have all threads of the other one.
#[test]
fn lookups_by_handle_of_a_user_leave_threads_for_others() {
    if !can_mount() {
        return;
    }
    let (c, a, b) = with_few_threads();
    let (program, kept) = (c.disks.path("by_handle.py"), c.disks.path("handles"));
    std::fs::write(&program, BY_HANDLE).unwrap();
    sh(&format!(
        "chmod 755 {} {a} {b}; echo own > {b}/own
        python3 {program} make {a} {b} {kept}; chmod 644 {kept}; sync -f {a}; ls -l {b} {b}/own",
        c.disks.path("")
    ));
    let stopped = Stopped::stop(&c, 0);
    let as_user = "setpriv --reuid=1000 --regid=1000 --clear-groups \
        --inh-caps=+dac_read_search --ambient-caps=+dac_read_search";
    let mut opening =
        Program::new(&format!("exec {as_user} python3 {program} open {a} {b} {kept}"));
    let pid = opening.0.id();
    wait_until("all wait", || in_call(pid, libc::SYS_open_by_handle_at) == 100);
    assert_eq!(sh(&format!("timeout 60 cat {b}/own; timeout 60 stat -c %s {b}/own")), "own\n4\n");
    assert!(opening.lasts());
    drop(stopped);
    assert!(opening.ends("the lookups").success());
    c.finish();
}
