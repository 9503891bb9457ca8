//! Pools on sparse files, mounted as several nodes by the real command.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(missing_docs, reason = "test support")]

pub mod browser;
pub mod device;
pub mod mute;
pub mod net;
pub mod pool;
pub mod remote;
pub mod san;
pub mod served;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test file uses its own part")]
pub use braid_testkit::wait_until;

/// Whether the host's kernel offers FUSE by io_uring; `-o uring` switches it on.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Puts the switch back as it was.
pub struct Switch(String);
impl Switch {
    /// `None`: there is none.
    pub fn now() -> Option<Self> {
        std::fs::read_to_string(SWITCH).ok().map(Self)
    }
}
impl Drop for Switch {
    fn drop(&mut self) {
        std::fs::write(SWITCH, self.0.trim()).ok();
    }
}

/// The command under test.
pub fn braid(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid")).args(args).output().expect("braid starts")
}

/// Runs a command that must succeed; returns its output.
pub fn ok(args: &[&str]) -> String {
    let out = braid(args);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "braid {args:?}: {stdout}{stderr}");
    stdout
}

/// Runs a command that must fail; returns what it says.
pub fn fails(args: &[&str]) -> String {
    let out = braid(args);
    let said = text(&out.stderr) + &text(&out.stdout);
    assert!(!out.status.success(), "braid {args:?} succeeded: {said}");
    assert!(!said.contains("panicked"), "braid {args:?} panicked: {said}");
    said
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a shell script; returns its output; fails the test if the script fails.
pub fn sh(script: &str) -> String {
    let out = Command::new("bash").args(["-euo", "pipefail", "-c", script]).output().expect("bash");
    assert!(out.status.success(), "{script}\n{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// What each Python program begins with. `A` and `B` are the directories of the first and the last node.
pub const PYTHON: &str = r#"
import ctypes, errno, faulthandler, fcntl, os, random, resource, signal, stat, struct, subprocess, sys, threading, time
A, B = sys.argv[1:3]
faulthandler.dump_traceback_later(110, exit=True)
def refused(number, call, *args):
    try: call(*args)
    except OSError as e: assert e.errno == number, (call, args, e)
    else: raise AssertionError((call, args))
def as_user(uid, call):
    "Runs call in a process of another user; gives its number."
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([]); os.setgid(uid); os.setuid(uid); call(); os._exit(0)
        except BaseException as e:
            print(repr(e), file=sys.stderr); os._exit(1)
    return pid
def ended(pid): return os.waitpid(pid, 0)[1]
def unprivileged(call): assert ended(as_user(1000, call)) == 0
def until(what, done):
    for _ in range(3000):
        if done(): return
        time.sleep(0.01)
    raise AssertionError(what)
"#;

/// Runs a Python program that begins with [`PYTHON`]. Programs of other users reach the nodes.
pub fn python(c: &Cluster, program: &str) {
    let path = c.disks.path("program.py");
    std::fs::write(&path, format!("{PYTHON}{program}")).expect("a script");
    let (a, b) = (c.node(0).display(), c.node(c.nodes.len() - 1).display());
    sh(&format!("chmod 755 {} && timeout 120 python3 {path} {a} {b}", c.disks.path("")));
}

/// Runs a Python program on two nodes of a new pool, in which a check finds nothing afterwards.
pub fn python_on_two_nodes(program: &str) {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    python(&c, program);
    c.finish();
}

/// Unmounts `dir`, on which this test has nothing open. A program that another test's thread starts
/// holds copies of all descriptors between its fork and its exec, so "in use" may last for a moment.
pub fn unmount_idle(dir: &Path) {
    let start = Instant::now();
    loop {
        let out = braid(&["unmount", dir.to_str().expect("UTF-8")]);
        let said = text(&out.stderr);
        if out.status.success() {
            return;
        }
        // That was before: the test knows.
        if said.contains("this node has withdrawn") && !is_mounted(dir) {
            return;
        }
        let patient = said.contains("in use") && start.elapsed() < Duration::from_mins(1);
        assert!(patient, "unmount {}: {said}", dir.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Mounting needs /dev/fuse and root (or fusermount3). Says so where it is skipped.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let able = Path::new("/dev/fuse").exists() && root;
    if !able {
        braid_testkit::skip("mounting needs /dev/fuse and root");
    }
    able
}

/// Device files in a directory of their own.
pub struct Disks {
    pub dir: tempfile::TempDir,
    pub paths: Vec<PathBuf>,
}

impl Disks {
    pub fn new(count: usize, mib: u64) -> Self {
        Self::below(&std::env::temp_dir(), count, mib)
    }
    /// As [`Disks::new`], in memory if the machine has `/dev/shm`: its disks may be busy with other work.
    pub fn in_memory(count: usize, mib: u64) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory, count, mib) } else { Self::new(count, mib) }
    }
    fn below(dir: &Path, count: usize, mib: u64) -> Self {
        let dir = tempfile::tempdir_in(dir).expect("temporary directory");
        let paths = (0..count)
            .map(|n| {
                let path = dir.path().join(format!("disk{n}"));
                std::fs::File::create(&path)
                    .and_then(|f| f.set_len(mib << 20))
                    .expect("device file");
                path
            })
            .collect();
        Self { dir, paths }
    }
    pub fn names(&self) -> Vec<&str> {
        self.paths.iter().map(|p| p.to_str().expect("UTF-8")).collect()
    }
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }
    /// `command NAME? devices... rest`
    pub fn with<'a>(&'a self, head: &[&'a str], tail: &[&'a str]) -> Vec<&'a str> {
        let mut args = head.to_vec();
        args.extend(self.names());
        args.extend(tail);
        args
    }
}

/// A pool, mounted by one or more nodes; unmounted when dropped.
pub struct Cluster {
    pub disks: Disks,
    pub nodes: Vec<PathBuf>,
}

impl Cluster {
    /// `disks` sparse files of `mib` MiB each, striped, mounted `nodes` times.
    pub fn new(disks: usize, mib: u64, nodes: usize) -> Self {
        Self::of(Disks::new(disks, mib), nodes, &[])
    }
    /// As [`Cluster::new`], over these disks and with these options of `create`.
    pub fn of(disks: Disks, nodes: usize, options: &[&str]) -> Self {
        ok(&disks.with(&["create", "test"], options));
        let mut cluster = Self { disks, nodes: Vec::new() };
        for _ in 0..nodes {
            cluster.mount(&[]);
        }
        cluster
    }
    /// One more node; returns where.
    pub fn mount(&mut self, options: &[&str]) -> PathBuf {
        let dir = self.disks.dir.path().join(format!("node{}", self.nodes.len()));
        std::fs::create_dir_all(&dir).expect("mount point");
        let log = format!("log={}.log", dir.display());
        let mut tail = vec![dir.to_str().expect("UTF-8"), "-o", &log];
        for option in options {
            tail.extend(["-o", option]);
        }
        ok(&self.disks.with(&["mount"], &tail));
        self.nodes.push(dir.clone());
        dir
    }
    pub fn node(&self, n: usize) -> &Path {
        &self.nodes[n]
    }
    /// Process that serves node `n`.
    pub fn pid(&self, n: usize) -> i32 {
        let pid = pid_of(self.nodes[n].to_str().expect("UTF-8"));
        pid.as_raw_nonzero().get()
    }
    /// SIGKILL to node `n`'s process: as if its machine lost power, but for the page cache.
    pub fn kill(&self, n: usize) {
        pool::kill(self.nodes[n].to_str().expect("UTF-8"));
    }
    pub fn unmount(&self, n: usize) {
        unmount_idle(&self.nodes[n]);
    }
    pub fn detach(&self, n: usize) {
        braid(&["unmount", "--lazy", self.nodes[n].to_str().expect("UTF-8")]);
    }
    pub fn unmount_all(&mut self) {
        for dir in std::mem::take(&mut self.nodes) {
            if is_mounted(&dir) {
                unmount_idle(&dir);
            }
        }
    }
    /// Unmounts everywhere; the check must find nothing.
    pub fn finish(mut self) {
        self.unmount_all();
        let said = ok(&self.disks.with(&["check"], &[]));
        assert!(said.contains("clean"), "{said}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for dir in &self.nodes {
            if is_mounted(dir) {
                if std::thread::panicking() {
                    let log = std::fs::read_to_string(format!("{}.log", dir.display()));
                    eprintln!("{}: {}", dir.display(), log.unwrap_or_default());
                    braid(&["unmount", "--lazy", dir.to_str().expect("UTF-8")]);
                } else {
                    braid(&["unmount", dir.to_str().expect("UTF-8")]);
                }
            }
        }
    }
}

pub fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|l| l.split(' ').nth(1) == dir.to_str())
}

/// The process that serves the mount on `dir`.
pub fn pid_of(dir: &str) -> rustix::process::Pid {
    let status: serde_json::Value = serde_json::from_str(&ok(&["status", "--json"])).expect("JSON");
    let mounts = status["mounts"].as_array().expect("mounts");
    let mount = mounts.iter().find(|m| m["mount_point"] == dir);
    let mount = mount.unwrap_or_else(|| panic!("{dir} is not among {status}"));
    let pid = i32::try_from(mount["pid"].as_i64().expect("pid")).expect("pid");
    rustix::process::Pid::from_raw(pid).expect("pid")
}

/// Mounts as if on another host, with an initiator's name of its own; the log is beside the directory.
pub fn mount_as(host: &str, devices: &[&str], dir: &str, options: &str) -> String {
    std::fs::create_dir_all(dir).expect("mount point");
    let options = format!("log={dir}.log,{options}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("mount").args(devices).args([dir, "-o", &options]);
    command.env("BRAID_INITIATOR", format!("iqn.2026-11.org.braid:{host}"));
    let out = command.env("BRAID_PRETENDED_HOST", host).output().expect("braid starts");
    assert!(out.status.success(), "{out:?}");
    dir.to_owned()
}
