//! What the kernels of nodes cache, and how it is taken back: seen through two mounts of one pool.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, can_mount, sh};

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

/// One of the many programs of a storm: makes, looks at, lists and removes files of one directory.
fn storm(dir: &Path, seed: u64, until: Instant) -> Duration {
    let (mut random, mut longest) = (seed, Duration::ZERO);
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
                }))
            }
        }
        longest = longest.max(start.elapsed());
    }
    longest
}

#[test]
fn a_storm_of_creations_on_two_nodes_waits_for_no_answer_to_be_taken() {
    const LENGTH: Duration = Duration::from_secs(8);
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
                    let mut child = sh.args(["-c", script]).current_dir(dir).spawn().unwrap();
                    std::thread::sleep(Duration::from_millis(150));
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
            });
        }
        let longest = storms.into_iter().map(|s| s.join().unwrap()).max();
        over.store(true, Ordering::Relaxed);
        eprintln!("the longest call took {longest:?}");
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
