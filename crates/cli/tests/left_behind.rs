//! A node that is killed together with its guard, while the kernel waits for pages that nobody will
//! write any more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Cluster, can_mount, is_mounted, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Most time until the other node goes on. Without an end it would wait for good.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds: not in each of them the kernel waits just then.
const ROUNDS: usize = 3;

/// A node in the foreground, and a program that changes mapped pages on it.
struct Victim {
    command: Child,
    program: Child,
    dir: PathBuf,
    connection: u32,
}

impl Victim {
    /// `before`: what the command is to be run by.
    fn new(c: &Cluster, name: &str, before: &[&str]) -> Self {
        let dir = c.disks.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let braid = env!("CARGO_BIN_EXE_braid");
        let log = format!("log={}.log,io_timeout=3", dir.display());
        let mount = c.disks.with(&[braid, "mount", "-f"], &[dir.to_str().unwrap(), "-o", &log]);
        let words = [before, &mount[..]].concat();
        let (quiet, none) = (Stdio::null(), Stdio::null());
        let command = Command::new(words[0]).args(&words[1..]).stdout(quiet).stderr(none).spawn();
        let command = command.unwrap();
        wait_until("it is mounted", || is_mounted(&dir));
        let program = "import mmap, os, sys\n\
            def new(k):\n    f = os.open(sys.argv[1] + '/m%d' % k, os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8 << 20); os.fsync(f)\n    return mmap.mmap(f, 8 << 20)\n\
            maps = [new(k) for k in range(4)]\n\
            open(sys.argv[1] + '/ready', 'w').close()\n\
            n = 0\n\
            while True:\n    n += 1\n    for m in maps:\n        for at in range(0, 8 << 20, 4096): m[at] = n & 255";
        let program =
            Command::new("python3").args(["-c", program]).arg(&dir).stderr(Stdio::null()).spawn();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).unwrap();
        let device = line.split(' ').nth(2).unwrap();
        let connection = device.rsplit(':').next().unwrap().parse().unwrap();
        let this = Self { command, program: program.unwrap(), dir, connection };
        wait_until("pages are mapped", || this.dir.join("ready").exists());
        this
    }
    /// SIGKILL to all processes of the node at once.
    fn kill(&self, in_namespace: bool) {
        let first = i32::try_from(self.command.id()).unwrap();
        let node = if in_namespace { children(first)[0] } else { first };
        let guard = children(node);
        assert_eq!(guard.len(), 1, "its guard");
        // The end of a PID namespace's first process kills all others of it.
        let all = if in_namespace { vec![node] } else { vec![guard[0], node] };
        for pid in all {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.program.kill().ok();
        self.command.kill().ok();
        Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status().ok();
        if std::thread::panicking() {
            // Where nobody else has: a process that is stuck would stay for good.
            let kinds =
                Command::new("mount").args(["-t", "fusectl", "none"]).arg(&self.dir).status();
            let abort = self.dir.join(format!("{}/abort", self.connection));
            if kinds.is_ok_and(|s| s.success()) && abort.exists() {
                std::fs::write(abort, "1").ok();
            }
            Command::new("umount").arg(&self.dir).status().ok();
        } else {
            self.program.wait().ok();
            self.command.wait().ok();
        }
    }
}

/// Processes that any thread of this one has started.
fn children(pid: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of_thread = |thread: std::fs::DirEntry| {
        let all = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<i32>>()
    };
    threads.flat_map(of_thread).collect()
}

/// A program that reads the victim's files by another node. It is ended when it is dropped.
struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        // One that hangs in the kernel is not waited for.
        self.0.kill().ok();
    }
}

/// Reads them all, in a program of its own.
fn reader(dir: &Path, forever: bool) -> Reader {
    let each = "for k in 0 1 2 3; do head -c 4096 \"$1/m$k\" >/dev/null; done";
    let script = if forever { format!("while true; do {each}; done") } else { each.to_owned() };
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
    Reader(command.spawn().unwrap())
}

fn ends_within(Reader(program): &mut Reader, patience: Duration) -> bool {
    let begun = Instant::now();
    while program.try_wait().unwrap().is_none() {
        if begun.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn kill_with_guard(before: &[&str]) {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    for round in 0..ROUNDS {
        let victim = Victim::new(&c, &format!("victim{round}"), before);
        let mut wanting = reader(c.node(0), true);
        std::thread::sleep(Duration::from_millis(500 + 150 * round as u64));
        victim.kill(!before.is_empty());
        let begun = Instant::now();
        let mut one = reader(c.node(0), false);
        let answered = ends_within(&mut one, PATIENCE);
        println!("round {round}: answered after {:?}", begun.elapsed());
        wanting.0.kill().unwrap();
        assert!(answered, "the other node waits for a dead one");
        wanting.0.wait().unwrap();
        drop(victim);
    }
    let log = std::fs::read_to_string(format!("{}.log", c.node(0).display())).unwrap_or_default();
    println!("{} connections ended", log.matches("and its guard is gone").count());
    c.finish();
}

#[test]
fn a_node_that_is_killed_with_its_guard_is_recovered() {
    kill_with_guard(&[]);
}

#[test]
fn a_node_that_ends_with_its_pid_namespace_is_recovered() {
    kill_with_guard(&["unshare", "--pid", "--fork", "--kill-child"]);
}

/// Who comes when nobody lives ends it, too: the pool is not in use for ever.
#[test]
fn a_pool_whose_only_node_was_killed_with_its_guard_can_be_checked() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 256, 1);
    let victim = Victim::new(&c, "victim", &[]);
    let mut wanting = reader(c.node(0), true);
    std::thread::sleep(Duration::from_millis(700));
    let first = c.pid(0);
    let guards = children(first);
    // The other node dies, too, first: nobody looks.
    for pid in guards.into_iter().chain([first]) {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
    victim.kill(false);
    wanting.0.kill().unwrap();
    wanting.0.wait().unwrap();
    c.detach(0);
    c.nodes.clear();
    let check = || common::braid(&c.disks.with(&["check"], &[])).status.success();
    wait_until("nobody has it mounted", check);
    drop(victim);
}

/// The kernel tells a guard of the end of one thread of its node after the other.
#[test]
fn a_guard_outlives_every_thread_of_its_node_but_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let connection = dir.path().join("abort");
    std::fs::write(&connection, "").unwrap();
    // The first thread ends with no word to the others, as threads of a killed process do: two end soon, one stays.
    let node = "import ctypes, os, subprocess, sys, threading, time\n\
        subprocess.Popen([sys.argv[1], 'guard', str(os.getpid())], stdin=open(sys.argv[2], 'w'))\n\
        time.sleep(0.5)\n\
        for stays in (0.1, 0.15, 5): threading.Thread(target=time.sleep, args=(stays,)).start()\n\
        ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)";
    let node = Command::new("python3")
        .args(["-c", node, env!("CARGO_BIN_EXE_braid")])
        .arg(&connection)
        .spawn();
    let mut node = node.unwrap();
    let ended = || std::fs::read(&connection).unwrap() == b"1";
    wait_until("the guard ends the connection of a node with a thread that is stuck", ended);
    assert!(node.try_wait().unwrap().is_none(), "the last thread had ended");
    node.kill().ok();
    node.wait().unwrap();
}
