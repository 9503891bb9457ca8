//! A mounted node that is told to end by a signal: it leaves as if unmounted.

#![allow(clippy::unwrap_used, clippy::large_stack_arrays, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::pool::Pool;
use common::{Cluster, Switch, can_mount, is_mounted, ok, pid_of, sh, unmount_idle, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Sends it to the node, and waits until its process is gone.
fn end(pool: &Pool, signal: Signal) -> Duration {
    let pid = pid_of(pool.dir());
    let start = Instant::now();
    kill_process(pid, signal).unwrap();
    wait_until("the process ends", || is_gone(pid));
    start.elapsed()
}
fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_err() || test_kill_process(pid).is_err() || stat.unwrap().contains(") Z")
}
fn log(pool: &Pool) -> String {
    fs::read_to_string(format!("{}.log", pool.dir())).unwrap()
}
/// Two files, of which one is durable.
fn write(dir: &Path) {
    let mut file = File::create(dir.join("synced")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    fs::write(dir.join("not synced"), vec![2; 3_000_000]).unwrap();
}
/// It was left cleanly, and holds what was written.
fn whole(pool: &Pool) {
    assert!(!is_mounted(&pool.dir));
    pool.clean(&[0, 1]);
    fs::remove_file(format!("{}.log", pool.dir())).unwrap();
    pool.mount(&[0, 1], &[]);
    assert!(!log(pool).contains("recover"), "{}", log(pool));
    assert!(fs::read(pool.dir.join("synced")).unwrap() == [1; 100_000]);
    assert!(fs::read(pool.dir.join("not synced")).unwrap() == vec![2; 3_000_000]);
}

#[test]
fn a_node_in_the_background_ends_by_signals() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 160), 2, &[]);
    pool.mount(&[0, 1], &[]);
    for signal in [Signal::TERM, Signal::INT] {
        write(&pool.dir);
        // Of a terminal that it has left.
        kill_process(pid_of(pool.dir()), Signal::HUP).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(is_mounted(&pool.dir));
        end(&pool, signal);
        whole(&pool);
    }
    unmount_idle(&pool.dir);
}

#[test]
fn a_node_in_use_ends_by_a_signal_too() {
    if !can_mount() {
        return;
    }
    let _switch = Switch::now();
    let pool = Pool::new((2, 160), 2, &[]);
    for uring in [false, true] {
        if !is_mounted(&pool.dir) {
            pool.mount(&[0, 1], if uring { &["-o", "uring"] } else { &[] });
        }
        write(&pool.dir);
        let mut open = File::create(pool.dir.join("open")).unwrap();
        open.write_all(&[3; 500_000]).unwrap();
        // Changed in memory only.
        let mapped = pool.dir.join("mapped");
        fs::write(&mapped, [0; 8192]).unwrap();
        let script = "import mmap,sys
f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:5] = b'hello'
print('changed', flush=True); sys.stdin.read()";
        let mut python = Command::new("python3");
        let python = python.args(["-c", script, mapped.to_str().unwrap()]);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "changed\n");
        let took = end(&pool, Signal::TERM);
        assert!(took < Duration::from_secs(30), "{took:?}");
        open.write_all(&[4; 10]).unwrap_err();
        drop(open);
        drop(child.stdin.take());
        child.wait().unwrap();
        whole(&pool);
        assert!(fs::read(pool.dir.join("open")).unwrap() == [3; 500_000]);
        assert_eq!(&fs::read(&mapped).unwrap()[..6], b"hello\0");
        unmount_idle(&pool.dir);
    }
}

#[test]
fn a_node_in_the_foreground_ends_with_its_terminal() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 160), 2, &[]);
    let log = format!("log={}.log", pool.dir());
    for signal in [Signal::INT, Signal::HUP, Signal::TERM] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["mount", "-f"]).args(pool.names(&[0, 1])).arg(pool.dir());
        // With a log file SIGHUP is about that.
        command.args(["-o", &log].iter().filter(|_| signal != Signal::HUP));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it serves", || is_mounted(&pool.dir) && fs::read_dir(&pool.dir).is_ok());
        write(&pool.dir);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let done = child.wait().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(done.success(), "{done:?}: {said}");
        whole(&pool);
        unmount_idle(&pool.dir);
    }
}

/// What stands on the directory now is not this node's.
#[test]
fn another_mount_in_its_place_is_left_alone() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 160), 2, &[]);
    pool.mount(&[0, 1], &[]);
    write(&pool.dir);
    let open = File::open(pool.dir.join("synced")).unwrap();
    let pid = pid_of(pool.dir());
    sh(&format!("umount -l {0} && mount -t tmpfs -o size=1M none {0}", pool.dir()));
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("the process ends", || is_gone(pid));
    assert!(is_mounted(&pool.dir));
    sh(&format!("umount {0}", pool.dir()));
    drop(open);
    whole(&pool);
    unmount_idle(&pool.dir);
}

/// How the kernel says that a process is, and where it waits.
fn state_of(pid: u32) -> String {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let status = read("status");
    let kept = ["Name", "State", "SigPnd", "ShdPnd"];
    let lines = status.lines().filter(|l| kept.iter().any(|k| l.starts_with(k)));
    format!("{}\n{}", lines.collect::<Vec<_>>().join(", "), read("stack"))
}

/// A process that is waited for, and must not last.
fn ends(child: &mut Child, what: &str) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        let late = start.elapsed() > Duration::from_mins(1);
        assert!(!late, "{what} does not end: {}", state_of(child.id()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A node that is stopped, and goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

/// A shell that runs a script; killed when this is dropped, since the test runner waits until its output
/// is closed.
struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    fn new(script: &str) -> Self {
        // A shell or nohup(1) may have had this process ignore signals, which a program inherits.
        let mut command = Command::new("env");
        command.args(["--default-signal", "bash", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }
    /// One that reads a line of `file`, and catches SIGUSR1.
    fn catching(file: &str) -> Self {
        let trap = "trap 'echo caught' USR1; echo ready";
        let mut program = Self::new(&format!("{trap}; read x < {file}; echo $x"));
        let mut line = String::new();
        program.out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        program
    }
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
    fn lasts(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
    }
}

/// `status` waits 1.5 s for a node that does not answer, once. So it is quick in the median, and the worst is
/// that of a machine that does much else. Of three tries one has to be so.
fn status_is_quick(dir: &Path) {
    const USUAL: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(6);
    // In every try: quicker than the usual 20 s.
    const WORST: Duration = Duration::from_secs(18);
    let tries: Vec<_> = (0..3)
        .map(|_| {
            let mut took = ["status", "nodes", "status", "nodes", "status"].map(|command| {
                let start = Instant::now();
                ok(&[command, dir.to_str().unwrap()]);
                let took = start.elapsed();
                assert!(took < WORST, "{command}: {took:?}");
                took
            });
            took.sort();
            took
        })
        .take_while(|took| took[2] > USUAL || took[4] > LONGEST)
        .collect();
    println!("status, nodes {}: tries that were slow: {tries:?}", dir.display());
    assert!(tries.len() < 3, "status {}: {tries:?}", dir.display());
}

/// A node that is stopped holds locks, and is neither dead nor answers. Programs of other nodes wait for
/// it; they can be killed, and a signal that they catch costs them nothing. Each has a directory of its
/// own: in one that another program looks a name up in, the kernel may let it wait for that one.
#[test]
fn a_program_that_waits_for_a_stopped_node_can_be_killed() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::new(1, 256, 0);
    // The first one may be silent for longer than this test takes: nobody ends it.
    let a = cluster.mount(&["io_timeout=300"]);
    let b = cluster.mount(&[]);
    // Everything is the first node's, down to the root.
    sh(&format!(
        "cd {}; for n in 1 2 3 4 5 6 7; do mkdir d$n; echo old > d$n/file; done
        chmod 750 .; chmod 755 .; for n in 1 2 3 4 5 6 7; do echo new > d$n/file; done",
        a.display()
    ));
    let stopped = Stopped::new(cluster.pid(0));
    let dir = b.display();
    let mut waiting = [
        format!("exec df {dir}"),
        format!("exec ls -l {dir}/d1"),
        format!("exec cat {dir}/d2/file"),
        format!("exec touch {dir}/d3/new"),
        format!("echo x >> {dir}/d4/file"),
    ]
    .map(|script| Program::new(&script));
    // This one catches its signal, and goes on.
    let mut patient = Program::catching(&format!("{dir}/d5/file"));
    std::thread::sleep(Duration::from_millis(500));
    for program in waiting.iter_mut().chain([&mut patient]) {
        assert!(program.lasts(), "it does not wait for the stopped node");
    }
    patient.signal(Signal::USR1);
    let signals = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL];
    for (program, signal) in waiting.iter_mut().zip(signals) {
        program.signal(signal);
        assert!(!ends(&mut program.child, "a program that was killed").success());
    }
    // What one catches first does not keep it from being killed later.
    let mut late = Program::catching(&format!("{dir}/d6/file"));
    std::thread::sleep(Duration::from_millis(300));
    late.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(late.lasts());
    late.signal(Signal::KILL);
    ends(&mut late.child, "a program that had caught a signal before");
    // Those that the kernel has wait for one another end once all are killed, in any order.
    let mut queue = [
        format!("exec cat {dir}/d7/file"),
        format!("exec ls -l {dir}/d7"),
        format!("exec touch {dir}/d7/new"),
        format!("exec rm {dir}/d7/file"),
        format!("echo x >> {dir}/d7/file"),
    ]
    .map(|script| Program::new(&script));
    std::thread::sleep(Duration::from_millis(300));
    queue.iter().rev().for_each(|program| program.signal(Signal::KILL));
    for program in &mut queue {
        assert!(!ends(&mut program.child, "one of many programs that were killed").success());
    }
    for dir in [&a, &b] {
        status_is_quick(dir);
    }
    assert!(patient.lasts(), "a signal that it catches ended its wait");
    drop(stopped);
    let mut said = String::new();
    patient.out.read_to_string(&mut said).unwrap();
    assert_eq!(said, "caught\nnew\n");
    assert!(patient.child.wait().unwrap().success());
    cluster.finish();
}

/// The kernel says once of a request that a signal has come, and many requests stand in line here.
#[test]
fn programs_that_wait_for_locks_in_a_storm_of_signals_can_be_killed() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 1);
    let program = "import fcntl, os, signal, struct, sys, threading, time\n\
        signal.signal(signal.SIGUSR1, lambda *_: None)\n\
        threading.stack_size(1 << 17)\n\
        lock = lambda kind: struct.pack('hhqqi4x', kind, 0, 0, 1, 0)\n\
        def wait(n):\n    \
            f = os.open('%s/lock%d' % (sys.argv[1], n % 8), os.O_RDWR | os.O_CREAT)\n    \
            while True:\n        \
                fcntl.fcntl(f, fcntl.F_OFD_SETLKW, lock(fcntl.F_WRLCK)); time.sleep(0.1)\n        \
                fcntl.fcntl(f, fcntl.F_OFD_SETLK, lock(fcntl.F_UNLCK))\n\
        all = [threading.Thread(target=wait, args=(n,), daemon=True) for n in range(600)]\n\
        for t in all: t.start()\n\
        print('begun', flush=True)\n\
        while True:\n    \
            for t in all: signal.pthread_kill(t.ident, signal.SIGUSR1)\n";
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(c.node(0)).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut storm = command.spawn().unwrap();
    let mut begun = [0; 6];
    storm.stdout.take().unwrap().read_exact(&mut begun).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    storm.kill().unwrap();
    assert!(!ends(&mut storm, "a program that was killed").success());
    c.finish();
}
