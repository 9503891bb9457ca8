//! A frozen pool: `braid freeze`, `braid thaw` (SEMANTICS, *A frozen pool*).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, Disks, can_mount, fails, ok, sh, wait_until};

/// What is certainly longer than a write takes.
const A_WHILE: Duration = Duration::from_millis(700);

/// A program on a node: round after round it makes a file durable, then a name, and notes the round.
struct Writer<'a> {
    dir: &'a Path,
    done: AtomicU64,
}

impl<'a> Writer<'a> {
    const FILES: u64 = 16;
    const LEN: usize = 20_000;

    fn new(dir: &'a Path) -> Self {
        fs::create_dir(dir).unwrap();
        Self { dir, done: AtomicU64::new(0) }
    }
    fn content(round: u64) -> Vec<u8> {
        round.to_le_bytes().repeat(Self::LEN / 8)
    }
    fn run(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let round = self.done.load(Ordering::Relaxed) + 1;
            let (new, name) =
                (self.dir.join("new"), self.dir.join(format!("f{}", round % Self::FILES)));
            let mut file = File::create(&new).unwrap();
            file.write_all(&Self::content(round)).unwrap();
            file.sync_all().unwrap();
            fs::rename(&new, name).unwrap();
            File::open(self.dir).unwrap().sync_all().unwrap();
            self.done.store(round, Ordering::SeqCst);
        }
    }
    /// In an image of the pool: each file is whole, of the last round that was acknowledged, or of the one after it.
    fn verify(dir: &Path, acknowledged: u64) {
        for file in 0..Self::FILES {
            let last =
                (0..=acknowledged).rev().find(|round| round % Self::FILES == file && *round > 0);
            let Some(last) = last else { continue };
            let found = fs::read(dir.join(format!("f{file}"))).unwrap();
            let next = acknowledged + 1;
            let good = found == Self::content(last)
                || next % Self::FILES == file && found == Self::content(next);
            assert!(good, "f{file}: not round {last} of {acknowledged}, but {:?}", found.get(..8));
        }
    }
}

/// Copies the members one after the other, with other work between them.
fn images(c: &Cluster, to: &Path, between: impl Fn()) -> Vec<String> {
    fs::create_dir(to).unwrap();
    let copy = |path: &std::path::PathBuf| {
        between();
        let image = to.join(path.file_name().unwrap());
        sh(&format!("cp --sparse=always {} {}", path.display(), image.display()));
        image.to_str().unwrap().to_owned()
    };
    c.disks.paths.iter().map(copy).collect()
}

#[test]
fn images_made_one_after_the_other_are_of_one_moment() {
    if !can_mount() {
        return;
    }
    // With free slots a node joins first, and recovers the others later.
    for options in [&["--mirror", "2", "--nodes", "4"][..], &[]] {
        images_fit_together(options);
    }
}

fn images_fit_together(options: &[&str]) {
    let mut c = Cluster::of(Disks::in_memory(4, 128), 0, options);
    for _ in 0..2 {
        // So that the silence of its image is not watched for long.
        c.mount(&["io_timeout=2"]);
    }
    let (a, b) = (c.node(0).join("a"), c.node(1).join("b"));
    let writers = [Writer::new(&a), Writer::new(&b)];
    // Neither is ever synced: it is there all the same.
    fs::write(c.node(1).join("buffered"), "in the node's memory").unwrap();
    let held_open = File::create_new(c.node(0).join("open")).unwrap();
    held_open.write_all_at(&[7; 8192], 0).unwrap();
    let stop = AtomicBool::new(false);
    let to = c.disks.dir.path().join("images");
    // By its directory: tests beside this one have pools of the same name.
    let (name, other) = [0, 1].map(|n| c.node(n).to_str().unwrap()).into();
    let (images, acknowledged, lengths) = std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        writers.iter().for_each(|w| drop(scope.spawn(|| w.run(&stop))));
        scope.spawn(|| change_lengths(c.node(1), &stop));
        let done = || [&writers[0], &writers[1]].map(|w| w.done.load(Ordering::SeqCst));
        wait_until("the writers' first rounds", || done().iter().all(|n| *n > 2 * Writer::FILES));
        ok(&["freeze", name, "--for", "300"]);
        std::thread::sleep(A_WHILE);
        let acknowledged = done();
        let lengths = lengths_of(c.node(0));
        let said = ok(&["status", other]);
        assert!(said.starts_with("health: FROZEN: node 0 has frozen it"), "{said}");
        let images = images(&c, &to, || {
            // Reads go on, on each node of what the other one has written.
            assert!(fs::read_dir(c.node(0).join("b")).unwrap().count() >= 2);
            fs::read(c.node(1).join("a/f1")).unwrap();
            // Heartbeats go on: the images of two copies have different ones.
            std::thread::sleep(Duration::from_millis(250));
        });
        assert_eq!(done(), acknowledged, "changes wait");
        assert_eq!(lengths_of(c.node(0)), lengths, "changes wait");
        let said = ok(&["thaw", name]);
        assert!(said.contains("is thawed: it was frozen until now"), "{said}");
        wait_until("writes after the thaw", || {
            done().iter().zip(acknowledged).all(|(n, before)| *n > before + 5)
        });
        (images, acknowledged, lengths)
    });
    drop(held_open);
    c.unmount_all();
    let dir = c.disks.dir.path().join("of-images");
    fs::create_dir(&dir).unwrap();
    let images: Vec<&str> = images.iter().map(String::as_str).collect();
    // Of a pool that nodes have mounted; that they do not use these disks nobody can see.
    ok(&[&["fence", "--confirm"], &images[..], &["all"]].concat());
    ok(&[&["mount"], &images[..], &[dir.to_str().unwrap()]].concat());
    Writer::verify(&dir.join("a"), acknowledged[0]);
    Writer::verify(&dir.join("b"), acknowledged[1]);
    assert_eq!(lengths_of(&dir), lengths);
    let nodes = || -> serde_json::Value {
        serde_json::from_str(&ok(&["nodes", "--json", dir.to_str().unwrap()])).unwrap()
    };
    wait_until("the others are recovered", || nodes()["nodes"].as_array().unwrap().len() == 1);
    fs::write(dir.join("after"), "it goes on").unwrap();
    assert_eq!(fs::read(dir.join("buffered")).unwrap(), b"in the node's memory");
    assert_eq!(fs::read(dir.join("open")).unwrap(), [7; 8192]);
    common::unmount_idle(&dir);
    let said = ok(&[&["check"], &images[..]].concat());
    assert!(said.contains("clean") && said.contains("0 journals replayed"), "{said}");
    c.finish();
}

/// Has the programs stop, also when a test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Files that are cut and grow again, by both ways that programs have.
const LENGTHS: u64 = 8;

fn change_lengths(dir: &Path, stop: &AtomicBool) {
    let mut round = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let path = dir.join(format!("length{}", round % LENGTHS));
        let file = File::create(path).unwrap();
        if !round.is_multiple_of(3) {
            file.set_len(round * 4096).unwrap();
        }
    }
}

fn lengths_of(dir: &Path) -> Vec<u64> {
    let path = |n| dir.join(format!("length{n}"));
    (0..LENGTHS).map(|n| fs::metadata(path(n)).unwrap().len()).collect()
}

/// Whether a program on a node can make a file durable within [`A_WHILE`]; it goes on until it has.
fn writes_wait(dir: &Path, name: &str) -> bool {
    let path = dir.join(name);
    let writes = std::thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
    });
    std::thread::sleep(A_WHILE);
    !writes.is_finished()
}

#[test]
fn a_freeze_ends_by_itself_by_a_word_and_with_its_node() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 128, 3);
    let dirs = [0, 1, 2].map(|n| c.node(n).to_str().unwrap());
    let frozen = |n: usize, name: &str| writes_wait(c.node(n), name);
    let said = fails(&["thaw", dirs[0]]);
    assert!(said.contains("is not frozen"), "{said}");
    // Its time.
    ok(&["freeze", dirs[0], "--for", "3"]);
    assert!([0, 1, 2].iter().all(|n| frozen(*n, &format!("time{n}"))));
    for n in [0, 1, 2] {
        wait_until("the thaw", || !frozen(n, "after"));
    }
    assert!(fails(&["thaw", dirs[0]]).contains("is not frozen"));
    // A word, of whoever froze it; nobody else does meanwhile.
    ok(&["freeze", dirs[1]]);
    assert!(frozen(2, "word"));
    let said = fails(&["freeze", dirs[2]]);
    assert!(said.contains("frozen already, or about to be, by node 1"), "{said}");
    let said = fails(&["freeze", dirs[1]]);
    assert!(said.contains("frozen already, or about to be, by node 1"), "{said}");
    for n in [0, 1, 2] {
        assert!(frozen(n, &format!("refused{n}")), "a freeze that is refused ends none");
    }
    let said = fails(&["thaw", dirs[2]]);
    assert!(
        said.contains("is frozen by node 1: run `braid thaw` on the host of that node"),
        "{said}"
    );
    ok(&["thaw", dirs[1]]);
    wait_until("the thaw", || !frozen(2, "after"));
    // The end of its node.
    ok(&["freeze", dirs[1]]);
    assert!(frozen(0, "end"));
    c.kill(1);
    for n in [0, 2] {
        wait_until("the thaw", || !frozen(n, "after"));
    }
    c.detach(1);
    ok(&["freeze", dirs[2]]);
    c.unmount(2);
    wait_until("the thaw", || !frozen(0, "after"));
    c.finish();
}

#[test]
fn a_command_runs_while_the_pool_is_frozen() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 128, 2);
    let probe = format!(
        "timeout 1 dd if=/dev/zero of={}/probe bs=1k count=1 conv=fsync 2>/dev/null; [ $? = 124 ] && exit 7",
        c.node(1).display()
    );
    let run = |words: &[&str]| {
        let dir = c.node(0).to_str().unwrap();
        let said = common::braid(&[&["freeze", dir], words].concat());
        (said.status.code(), String::from_utf8(said.stderr).unwrap())
    };
    let (status, said) = run(&["--", "sh", "-c", &probe]);
    assert_eq!(status, Some(7), "the write waited: {said}");
    wait_until("the thaw", || !writes_wait(c.node(1), "after"));
    let (status, said) = run(&["--", "no-such-program"]);
    assert!(status == Some(1) && said.contains("no-such-program"), "{said}");
    wait_until("the thaw", || !writes_wait(c.node(0), "after"));
    let (status, said) = run(&["--for", "1", "--", "sleep", "3"]);
    assert!(status == Some(1) && said.contains("this node has not frozen the pool"), "{said}");
    c.finish();
}

#[test]
fn a_node_that_does_not_follow_is_named_and_one_that_joins_waits() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 128, 2);
    let stopped = rustix::process::Pid::from_raw(c.pid(1)).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    // It is killed while it waits for that node.
    for signal in ["INT", "KILL"] {
        let line = format!(
            "timeout -s {signal} 0.5 {} freeze {} --timeout 30 2>&1 || true",
            env!("CARGO_BIN_EXE_braid"),
            c.node(0).display()
        );
        let (begun, said) = (Instant::now(), sh(&line));
        assert!(begun.elapsed() < Duration::from_secs(10), "{said}");
        assert!(signal == "KILL" || said.contains("will not be frozen"), "{said}");
        // Long before its time is over, and before changes wait.
        let is_free =
            || common::braid(&["freeze", c.node(0).to_str().unwrap(), "-n"]).status.success();
        wait_until("the end of what was begun", is_free);
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(!writes_wait(c.node(0), signal));
    }
    let begun = Instant::now();
    let said = fails(&["freeze", c.node(0).to_str().unwrap(), "--timeout", "1"]);
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    assert!(said.contains("these nodes did not follow in time: 1"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    wait_until("the thaw", || !writes_wait(c.node(0), "after"));
    // Of the stopped node nothing is left to do: it may have been fenced meanwhile.
    c.detach(1);
    let name = c.node(0).to_str().unwrap().to_owned();
    let dir = c.disks.dir.path().join("late");
    fs::create_dir(&dir).unwrap();
    wait_until("a freeze without the dead node", || {
        common::braid(&["freeze", &name, "--timeout", "1"]).status.success()
    });
    let words = c.disks.with(&["mount"], &[dir.to_str().unwrap()]);
    let mut joins = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(words)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(A_WHILE);
    assert!(joins.try_wait().unwrap().is_none(), "it waits");
    ok(&["thaw", &name]);
    assert!(joins.wait().unwrap().success());
    c.nodes.push(dir);
    c.finish();
}
