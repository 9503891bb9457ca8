//! What the kernels of nodes cache, and how it is taken back: seen through two mounts of one pool.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group, test_kill_process_group};

use common::san::San;
use common::{Cluster, braid, can_mount, ok, sh, unmount_idle, wait_until};

/// Something mounted inside a pool's mount; taken away when dropped.
struct Inside(PathBuf);

impl Inside {
    fn mount(at: &Path, how: &str) -> Self {
        sh(&format!("mount {how} '{}'", at.display()));
        Self(at.to_owned())
    }
    /// Whether it is there: another file system, or another place of this one, than below.
    fn is_there(&self) -> bool {
        self.0.join("inside").exists()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
fn what_is_mounted_inside_stays_whatever_other_nodes_do_around_it() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::create_dir_all(a.join("top/middle/tmp")).unwrap();
    fs::create_dir_all(a.join("top/middle/bound")).unwrap();
    fs::create_dir_all(a.join("source")).unwrap();
    fs::write(a.join("source/inside"), "bound").unwrap();
    fs::write(a.join("top/middle/file"), "below").unwrap();
    fs::write(a.join("source/file"), "above").unwrap();
    let middle = a.join("top/middle");
    let tmp = Inside::mount(&middle.join("tmp"), "-t tmpfs caches-test");
    fs::write(tmp.0.join("inside"), "tmpfs").unwrap();
    let bound = format!("--bind '{}'", a.join("source").display());
    let bound = Inside::mount(&middle.join("bound"), &bound);
    let file = format!("--bind '{}'", a.join("source/file").display());
    let file = Inside::mount(&middle.join("file"), &file);
    let working = fs::canonicalize(&tmp.0).unwrap();
    for round in 0..30 {
        // In the directory itself, its parents, the root; names that come, move and go.
        for dir in ["top/middle", "top", ""] {
            let dir = b.join(dir);
            let (one, two) = (dir.join(format!("one{round}")), dir.join("two"));
            fs::write(&one, "x").unwrap();
            fs::rename(&one, &two).unwrap();
            fs::create_dir(&one).unwrap();
            fs::remove_file(&two).unwrap();
            fs::remove_dir(&one).unwrap();
            // Attributes, of what is mounted on too.
            sh(&format!("chmod {} '{}'", 700 + round % 2 * 55, dir.display()));
        }
        sh(&format!("touch '{0}/top/middle/tmp' '{0}/top/middle/file'", b.display()));
        // This node wants the locks back, and walks the paths.
        fs::write(middle.join("mine"), "x").unwrap();
        assert!(tmp.is_there(), "tmpfs, round {round}");
        assert!(bound.is_there(), "bound directory, round {round}");
        assert_eq!(fs::read_to_string(&file.0).unwrap(), "above", "bound file, round {round}");
        fs::write(working.join("inside"), "again").unwrap();
    }
    assert!(!b.join("top/middle/tmp/inside").exists(), "it is of one node only");
    assert_eq!(fs::read_to_string(b.join("top/middle/file")).unwrap(), "below");
    drop((tmp, bound, file));
    c.finish();
}

/// The exception that docs/SEMANTICS.md names: other nodes do not know of a mount, so they may take away
/// what it is mounted on. It goes with the first walk of the old path, and leaves nothing wrong behind.
#[test]
fn what_is_mounted_on_a_directory_that_another_node_removes_or_renames_goes_with_it() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    for how in ["removed", "renamed", "above"] {
        let place = a.join(how).join("mounted");
        fs::create_dir_all(&place).unwrap();
        let tmp = Inside::mount(&place, "-t tmpfs caches-test");
        fs::write(tmp.0.join("inside"), "tmpfs").unwrap();
        // Here it is refused.
        let said = fs::remove_dir(&place).unwrap_err();
        assert_eq!(said.raw_os_error(), Some(libc::EBUSY));
        let there = b.join(how);
        match how {
            "removed" => fs::remove_dir(there.join("mounted")).unwrap(),
            "renamed" => fs::rename(there.join("mounted"), there.join("new")).unwrap(),
            _ => fs::rename(&there, b.join("new")).unwrap(),
        }
        assert!(!tmp.is_there(), "{how}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&format!("{how}/mounted")), "{mounts}");
        drop(tmp);
    }
    // What was below is whole.
    for dir in ["renamed/new", "new/mounted"] {
        assert_eq!(fs::read_dir(a.join(dir)).unwrap().count(), 0);
    }
    assert!(!a.join("removed/mounted").exists());
    c.finish();
}

/// One of the many programs of a storm: makes, looks at, lists and removes files of one directory.
/// What its calls took, the longest and how many longer than [`STALL`].
fn storm(dir: &Path, seed: u64, until: Instant) -> (Duration, usize) {
    let (mut random, mut longest, mut stalls) = (seed, Duration::ZERO, 0);
    let mut next = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (random >> 33) % n
    };
    while Instant::now() < until {
        let file = dir.join(format!("f{}", next(400)));
        let start = Instant::now();
        match next(10) {
            0..5 => drop(OpenOptions::new().create(true).append(true).open(&file)),
            5..7 => drop(fs::metadata(&file)),
            7 => drop(fs::remove_file(&file)),
            8 => drop(fs::rename(&file, dir.join(format!("f{}", next(400))))),
            // With the attributes of each.
            _ => {
                drop(fs::read_dir(dir).map(|all| {
                    all.filter_map(Result::ok).filter_map(|e| e.metadata().ok()).count()
                }));
            }
        }
        let took = start.elapsed();
        longest = longest.max(took);
        stalls += usize::from(took > STALL);
    }
    (longest, stalls)
}

/// Just less than what a lost answer once cost each time.
const STALL: Duration = Duration::from_millis(900);

#[test]
fn a_storm_of_creations_on_two_nodes_waits_for_no_answer_to_be_taken() {
    const LENGTH: Duration = Duration::from_secs(8);
    // A machine with much to do may hold up a program now and then.
    const STALLS_MAX: usize = 5;
    // Less than it takes to give up waiting for an answer to be taken.
    const LONGEST: Duration = Duration::from_secs(5);
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    fs::create_dir(c.node(0).join("d")).unwrap();
    let dirs = [c.node(0).join("d"), c.node(1).join("d")];
    let until = Instant::now() + LENGTH;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storms: Vec<_> = (0..10)
            .map(|n| {
                scope.spawn({
                    let dir = &dirs[n % 2];
                    move || storm(dir, n as u64 + 1, until)
                })
            })
            .collect();
        // Programs that are killed amid a request.
        for dir in &dirs {
            let over = &over;
            scope.spawn(move || {
                let script = "while :; do for i in 1 2 3 4 5 6 7 8 9; do : > k$i; ls -l > /dev/null 2>&1; rm -f k$i; done; done";
                while !over.load(Ordering::Relaxed) {
                    let mut sh = Command::new("sh");
                    sh.args(["-c", script]).current_dir(dir).process_group(0);
                    let mut child = sh.spawn().unwrap();
                    std::thread::sleep(Duration::from_millis(150));
                    // What the shell had started is a process of its own, and may be amid a request.
                    let group = rustix::process::Pid::from_child(&child);
                    kill_process_group(group, Signal::KILL).unwrap();
                    child.wait().unwrap();
                    wait_until("the killed programs end", || {
                        test_kill_process_group(group) == Err(rustix::io::Errno::SRCH)
                    });
                }
            });
        }
        let each: Vec<_> = storms.into_iter().map(|s| s.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        let longest = each.iter().map(|(longest, _)| *longest).max().unwrap();
        let stalls: usize = each.iter().map(|(_, stalls)| stalls).sum();
        println!("the longest call took {longest:?}, {stalls} took more than {STALL:?}");
        assert!(longest < LONGEST && stalls <= STALLS_MAX, "{stalls} stalls, {longest:?}");
    });
    for node in &c.nodes {
        let log = fs::read_to_string(format!("{}.log", node.display())).unwrap();
        let stalls =
            log.lines().filter(|l| l.contains("in the kernel") || l.contains("were not taken"));
        assert_eq!(stalls.count(), 0, "{log}");
    }
    let listed = dirs.each_ref().map(|dir| {
        let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all.iter()
            .map(|p| (p.file_name().unwrap().to_owned(), fs::metadata(p).unwrap().ino()))
            .collect::<Vec<_>>()
    });
    assert_eq!(listed[0], listed[1]);
    c.finish();
}

/// A program that has mapped a file and read it; when told, it reads it again.
fn mapped(path: &Path) -> std::process::Child {
    let program = "
import mmap, sys
f = open(sys.argv[1])
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
for line in sys.stdin:
    print(m[:3].decode(), flush=True)";
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(path);
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// What it reads now; `None`: it died of that.
fn touch(child: &mut std::process::Child) -> Option<String> {
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut said = [0; 4];
    let read = child.stdout.as_mut().unwrap().read_exact(&mut said);
    read.ok().map(|()| String::from_utf8_lossy(&said[..3]).into_owned())
}

/// The ways by which a program on the first node of [`Watched`] reads the file.
const WAYS: [&str; 4] = ["pread", "fstat", "open and read", "stat"];

/// Two nodes as if on two hosts, and programs on the first that have read a file and mapped it.
struct Watched {
    san: San,
    a: String,
    b: String,
    open: fs::File,
    direct: fs::File,
    program: std::process::Child,
    /// Unmounts whatever is still mounted, after a test that failed.
    _mounts: Mounts,
}

struct Mounts([String; 2]);

impl Drop for Mounts {
    fn drop(&mut self) {
        for dir in self.0.iter().filter(|dir| common::is_mounted(Path::new(dir))) {
            braid(&["unmount", "--lazy", dir]);
        }
    }
}

impl Watched {
    fn new() -> Self {
        let san = San::new(&["memory:256M"], &[]);
        ok(&san.with(&["create", "san"], &[]));
        let a = san.mount_as("host-a", "a", "io_timeout=3");
        let mut mounts = Mounts([a.clone(), String::new()]);
        let b = san.mount_as("host-b", "b", "io_timeout=3");
        mounts.0[1].clone_from(&b);
        let path = PathBuf::from(format!("{a}/f"));
        fs::write(&path, "old").unwrap();
        let open = fs::File::open(&path).unwrap();
        open.sync_all().unwrap();
        let mut direct = OpenOptions::new();
        let direct = direct.read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut program = mapped(&path);
        assert_eq!(touch(&mut program).as_deref(), Some("old"));
        let watched = Self { san, a, b, open, direct, program, _mounts: mounts };
        for (way, name) in WAYS.iter().enumerate() {
            assert_eq!(watched.read(way), Ok(true), "{name}");
        }
        watched
    }
    /// Whether the file is as it was at first, asked in one of [`WAYS`]; or the error's number.
    fn read(&self, way: usize) -> Result<bool, i32> {
        let (mut bytes, path) = ([0; 3], format!("{}/f", self.a));
        let read = match way {
            0 => self.open.read_exact_at(&mut bytes, 0).map(|()| &bytes == b"old"),
            1 => self.open.metadata().map(|m| m.len() == 3),
            2 => fs::read(path).map(|said| said == b"old"),
            _ => fs::metadata(path).map(|m| m.len() == 3),
        };
        read.map_err(|e| e.raw_os_error().unwrap())
    }
    /// A fault of the target, for what the first node sends.
    fn fault(&self, what: &[&str]) {
        let add = ["add"].iter().chain(what).chain(&["from=iqn.2026-11.org.braid:host-a"]);
        self.san.tell(&add.copied().collect::<Vec<_>>());
    }
    /// The other node writes, which it can once it has fenced the first and recovered it. Meanwhile,
    /// and for a while after that, the first is asked in all ways: what it says after the write must
    /// not be from before.
    fn nothing_old_once_the_other_has_written(&self) {
        let (begun, written) = (Instant::now(), OnceLock::new());
        std::thread::scope(|s| {
            let (written, watched) = (&written, self);
            for (way, name) in WAYS.iter().enumerate() {
                s.spawn(move || {
                    let mut fails = None;
                    loop {
                        let (asked, may_be_old) = (Instant::now(), written.get().is_none());
                        let said = watched.read(way);
                        if said.is_err() {
                            fails.get_or_insert(asked);
                        }
                        if may_be_old {
                            std::thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        println!(
                            "{name}: fails from {:?} on; written after {:?}",
                            fails.map(|at| at - begun),
                            written.get().map(|at: &Instant| *at - begun)
                        );
                        assert_eq!(said, Err(libc::EIO), "{name}");
                        return;
                    }
                });
            }
            let wrote = fs::write(format!("{}/f", self.b), "newer");
            written.set(Instant::now()).unwrap();
            wrote.unwrap();
        });
    }
    /// The mapping is gone, and the nodes end.
    fn end(mut self) {
        assert_eq!(touch(&mut self.program), None, "a mapping");
        let died = self.program.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&died), Some(libc::SIGBUS));
        self.san.tell(&["clear"]);
        let process = common::pid_of(&self.a);
        drop((self.open, self.direct));
        braid(&["unmount", "--lazy", &self.a]);
        wait_until("its process has ended", || {
            rustix::process::test_kill_process(process).is_err()
        });
        assert_eq!(fs::read(format!("{}/f", self.b)).unwrap(), b"newer");
        unmount_idle(Path::new(&self.b));
        let said = ok(&self.san.with(&["check"], &[]));
        assert!(said.contains("clean"), "{said}");
    }
}

#[test]
fn a_node_that_withdrew_serves_nothing_that_others_have_changed_since() {
    if !can_mount() {
        return;
    }
    let watched = Watched::new();
    watched.fault(&["write", "fail"]);
    // Its journal cannot be written.
    let wrote = fs::write(format!("{}/g", watched.a), "y");
    let synced = wrote.and_then(|()| fs::File::open(format!("{}/g", watched.a))?.sync_all());
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(libc::EIO));
    watched.nothing_old_once_the_other_has_written();
    watched.end();
}

#[test]
fn a_node_whose_heartbeat_hangs_serves_nothing_that_others_have_changed_since() {
    if !can_mount() {
        return;
    }
    let watched = Watched::new();
    watched.fault(&["write", "late=600000"]);
    watched.nothing_old_once_the_other_has_written();
    watched.end();
}

/// While it is stopped its kernel has what it has; nothing that it answers itself is old.
#[test]
fn a_node_that_was_stopped_answers_nothing_old_and_drops_what_its_kernel_has_cached() {
    if !can_mount() {
        return;
    }
    let watched = Watched::new();
    let stopped = Stopped::stop(common::pid_of(&watched.a));
    fs::write(format!("{}/f", watched.b), "newer").unwrap();
    std::thread::scope(|s| {
        // In here, so that it goes on before the threads are waited for.
        let stopped = stopped;
        let (tell, told) = std::sync::mpsc::channel();
        let asked: Vec<_> = (0..4)
            .map(|_| {
                let (tell, direct) = (tell.clone(), &watched.direct);
                s.spawn(move || {
                    let mut page = braid_pool::device::AlignedBuf::zeroed(4096);
                    tell.send(rustix::thread::gettid()).unwrap();
                    direct.read_at(&mut page, 0).map_err(|e| e.raw_os_error().unwrap())
                })
            })
            .collect();
        for thread in told.iter().take(asked.len()) {
            wait_until("the request is sent", || sleeps(thread.as_raw_nonzero().get()));
        }
        let goes_on = Instant::now();
        drop(stopped);
        for (way, name) in WAYS.iter().enumerate() {
            wait_until(name, || watched.read(way) == Err(libc::EIO));
            println!("{name} fails {:?} after it goes on", goes_on.elapsed());
        }
        for one in asked {
            assert_eq!(one.join().unwrap(), Err(libc::EIO));
        }
    });
    watched.end();
}

/// A process that goes on when this is dropped.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn stop(process: rustix::process::Pid) -> Self {
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::CONT).ok();
    }
}

/// Whether a thread of this process waits in the kernel.
fn sleeps(thread: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status.lines().any(|l| l.starts_with("State:\tS") || l.starts_with("State:\tD"))
}

/// A directory that the kernel of node B has at its old place, since node A has moved it from `one/NAME`
/// to `two/NAME` and nobody has looked at that with B.
fn moved_by_another(a: &Path, b: &Path, name: &str) {
    let (one, two) = (Path::new("one").join(name), Path::new("two").join(name));
    fs::create_dir_all(a.join(&one).join("below")).unwrap();
    // Names of the kernel, of what is there and what is not.
    assert!(b.join(&one).join("below").exists() && !b.join(&one).join("nothing").exists());
    fs::rename(a.join(&one), a.join(&two)).unwrap();
}

#[test]
fn what_another_node_moved_can_be_moved_on() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    for dir in ["one", "two", "three"] {
        fs::create_dir(a.join(dir)).unwrap();
    }
    // To where the kernel still has it, and elsewhere; onto it; while a program stands in it.
    for (n, to) in ["one", "three"].iter().enumerate() {
        let name = format!("plain{n}");
        moved_by_another(a, b, &name);
        fs::rename(b.join("two").join(&name), b.join(to).join(&name)).unwrap();
        assert!(a.join(to).join(&name).join("below").is_dir());
    }
    moved_by_another(a, b, "target");
    fs::remove_dir(a.join("two/target/below")).unwrap();
    fs::create_dir(a.join("one/source")).unwrap();
    fs::rename(b.join("one/source"), b.join("two/target")).unwrap();

    fs::create_dir_all(a.join("one/used/below")).unwrap();
    let open = fs::File::open(b.join("one/used/below")).unwrap();
    fs::create_dir_all(a.join("one/used/mount")).unwrap();
    let tmp = Inside::mount(&b.join("one/used/mount"), "-t tmpfs caches-test");
    fs::write(tmp.0.join("inside"), "tmpfs").unwrap();
    fs::rename(a.join("one/used"), a.join("two/used")).unwrap();
    fs::rename(b.join("two/used"), b.join("three/used")).unwrap();
    let moved = Inside(b.join("three/used/mount"));
    assert!(moved.is_there(), "what is mounted inside moves along");
    assert_eq!(open.metadata().unwrap().nlink(), 2);
    drop((open, moved));
    std::mem::forget(tmp);
    c.finish();
}

#[test]
fn what_another_node_moved_is_found_while_its_old_directory_is_written_to() {
    const MOVES: usize = 60;
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0), c.node(1));
    fs::create_dir(a.join("one")).unwrap();
    fs::create_dir(a.join("two")).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        // Programs of node B that lock the old directory, and that rename across directories.
        for n in 0..3 {
            scope.spawn(move || {
                let (here, there) = (b.join(format!("one/f{n}")), b.join(format!("g{n}")));
                while !over.load(Ordering::Relaxed) {
                    fs::write(&here, "x").unwrap();
                    fs::rename(&here, &there).unwrap();
                }
            });
        }
        let mut failed = Vec::new();
        for n in 0..MOVES {
            let name = format!("moved{n}");
            moved_by_another(a, b, &name);
            let made = b.join("two").join(&name).join("made");
            failed.extend(fs::create_dir(&made).err().map(|e| (n, e)));
            let (from, to) = (b.join("two").join(&name), b.join(&name));
            failed.extend(fs::rename(from, to).err().map(|e| (n, e)));
        }
        over.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{failed:?}");
    });
    c.finish();
}
