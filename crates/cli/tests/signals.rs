//! A mounted node that is told to end by a signal: it leaves as if unmounted.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::pool::Pool;
use common::{Switch, can_mount, is_mounted, pid_of, sh, unmount_idle, wait_until};
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
        command.args(["mount", "-f"]).args(pool.names(&[0, 1])).args([pool.dir(), "-o", &log]);
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
