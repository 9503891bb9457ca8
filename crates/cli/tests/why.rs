//! `braid why`: what programs, files and pools wait for.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::{Child, Command};

use common::mute::Group;
use common::remote::Remote;
use common::served::Served;
use common::{Cluster, Disks, can_mount, fails, ok, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A Python program on a node's directory; killed when this is dropped.
struct Program(Child);
impl Program {
    fn new(text: &str, dir: &str) -> Self {
        let program = format!("import fcntl, os, sys, time\nd = sys.argv[1]\n{text}");
        Self(Command::new("python3").args(["-c", &program, dir]).spawn().unwrap())
    }
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}
impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A process that goes on when this is dropped.
struct Stopped(Pid);
impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

/// Says what `why` says of `what` until it says all of `words`.
fn says(what: &str, words: &[&str]) -> String {
    let mut said = String::new();
    wait_until(&format!("why says {words:?}"), || {
        said = ok(&["why", what]);
        words.iter().all(|word| said.contains(word))
    });
    said
}

#[test]
fn who_waits_for_a_node_that_is_stopped_is_told_so() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::of(Disks::new(2, 256), 0, &["--nodes", "4"]);
    // It may be silent for longer than this takes.
    let dirs = [0, 1].map(|_| c.mount(&["io_timeout=60"]).to_str().unwrap().to_owned());
    let [here, there] = &dirs;
    common::sh(&format!("dd if=/dev/zero of={there}/file bs=1k count=1 conv=fsync status=none"));
    common::sh(&format!("sync {there}"));
    let stopped = Pid::from_raw(c.pid(1)).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    let stopped = Stopped(stopped);

    let reader = Program::new("os.open(d + '/file', os.O_RDONLY); time.sleep(100)", here);
    let said = says(&reader.pid(), &["waits for the lock of inode", "node 1 on ", "has it"]);
    assert!(said.contains(&format!("python3 ({})", reader.pid())), "{said}");
    // The path cannot be looked up either, and the pool says the same of everybody.
    says(&format!("{here}/file"), &["/file up waits, too", "waits for the lock of inode"]);
    says(here, &["python3", "waits for the lock of inode"]);
    let json = ok(&["why", "--json", &reader.pid()]);
    assert!(json.contains(r#""kind":"lock""#), "{json}");

    drop(stopped);
    wait_until("it is over", || ok(&["why", &reader.pid()]).contains("sleeps"));
    drop(reader);
    c.finish();
}

#[test]
fn who_waits_for_a_lock_of_another_program_is_told_so() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let dir = c.node(0).to_str().unwrap();
    let take = "f = open(d + '/file', 'w'); fcntl.flock(f, fcntl.LOCK_EX)\nopen(d + '/has', 'w')\ntime.sleep(100)";
    let holder = Program::new(take, dir);
    wait_until("it has the lock", || c.node(0).join("has").exists());
    let waiter = Program::new(take, dir);
    let words = ["waits for a lock (fcntl or flock) that another program has on inode"];
    says(&waiter.pid(), &words);
    says(&format!("{dir}/file"), &words);
    says("test", &words);
    let said = ok(&["why", &holder.pid()]);
    assert!(
        said.contains("asked no mounted pool for anything") && said.contains("sleeps"),
        "{said}"
    );
    assert!(ok(&["why", &format!("{dir}/has")]).contains("no request is under way"));
    // What makes no sense is named.
    assert!(fails(&["why", "4194305"]).contains("there is no process 4194305"));
    assert!(fails(&["why", "/nowhere/at/all"]).contains("/nowhere/at/all: no process, no path"));
    assert!(fails(&["why", &format!("{dir}/no")]).contains("No such file"));
    drop((holder, waiter));
    c.finish();
}

#[test]
fn what_the_last_second_went_to_is_said() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 1);
    let dir = c.node(0).to_str().unwrap();
    let busy = "f = os.open(d + '/file', os.O_RDWR | os.O_CREAT)\n\
                while True: os.pwrite(f, b'x' * 65536, 0); os.fsync(f)";
    let busy = Program::new(busy, dir);
    let said = says(&busy.pid(), &["in the last second: ", "device "]);
    let shares = said.lines().find_map(|line| line.trim().strip_prefix("of that: ")).unwrap();
    let percent = |part: &str| part.split(' ').nth(1)?.parse::<u32>().ok();
    let sum: u32 = shares.split(", ").filter_map(percent).sum();
    assert!((95..=105).contains(&sum), "{said}");
    drop(busy);
    c.finish();
}

#[test]
fn who_waits_for_a_member_that_answers_nothing_is_told_which() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::new() else { return };
    let disks = Disks::new(1, 256);
    let Some(disk) = common::device::Loop::new(&disks.paths[0]) else {
        return braid_testkit::skip("there are no loop devices");
    };
    ok(&["create", "why", &disk.0]);
    let dir = disks.path("node");
    std::fs::create_dir(&dir).unwrap();
    let mounted = group.braid(&["mount", &disk.0, &dir, "-o", "io_timeout=60"]);
    assert!(mounted.status.success(), "{mounted:?}");
    let writer = Program::new(
        "f = os.open(d + '/file', os.O_WRONLY | os.O_CREAT)\n\
         while True: os.pwrite(f, b'x' * 4096, 0); os.fsync(f)",
        &dir,
    );
    wait_until("it writes", || std::fs::metadata(format!("{dir}/file")).is_ok());
    let muted = group.mute(&disk.0);
    says(&writer.pid(), &["waits for member 0", &disk.0]);
    drop(muted);
    drop(writer);
    common::unmount_idle(dir.as_ref());
}

/// The client of a server knows which request it has sent, where, since when, and whether the server is heard of.
#[test]
fn who_waits_for_the_server_of_a_mount_is_told_which_and_whether_it_answers() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(2, 256);
    ok(&disks.with(&["create", "served", "--nodes", "4"], &[]));
    let served = Served::new(&disks, &["--insecure", "--listen", "127.0.0.1:0"]);
    let remote = Remote::plain(&disks, "remote", &served);
    let dir = remote.dir.clone();
    std::fs::write(format!("{dir}/file"), vec![7; 4 << 20]).unwrap();
    std::fs::write(format!("{dir}/large"), vec![7; 40 << 20]).unwrap();
    // Nobody waits: it says where the mount comes from.
    let said = ok(&["why", &dir]);
    assert!(said.contains(served.address()) && said.contains("it answers"), "{said}");
    assert!(said.contains("no request has been under way"), "{said}");

    served.signal(Signal::STOP);
    let writer = Program::new(
        "f = os.open(d + '/file', os.O_WRONLY)\n\
         while True: os.pwrite(f, b'x' * 4096, 0); os.fsync(f)",
        &dir,
    );
    let silent = format!("waits for {}, which does not answer", served.address());
    let said = says(&writer.pid(), &[&silent, "NO ANSWER for"]);
    assert!(said.contains(&format!("python3 ({})", writer.pid())), "{said}");
    assert!(said.contains("pool served, from a server, "), "{said}");
    says("served", &["python3", &silent]);
    says(&format!("{dir}/nothing"), &["/nothing up waits, too", &silent]);
    let json = ok(&["why", "--json", &writer.pid()]);
    // Every mount of this host has a line.
    let lines = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let json = lines.into_iter().find(|line| line["mount_point"] == dir.as_str()).unwrap();
    let server = &json["server"];
    assert_eq!(server["name"].as_str(), Some(served.address()), "{json}");
    assert!(server["silent_s"].as_f64().unwrap() > 3.0 && server["since"].is_u64(), "{json}");
    assert_eq!(json["requests"][0]["awaits"]["kind"], "server", "{json}");
    assert!(json["node"].is_null(), "{json}");

    served.signal(Signal::CONT);
    says(&dir, &["it answers"]);
    drop(writer);
    // A lock of another program is not waited for in that way.
    let take = "f = open(d + '/lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX)\nopen(d + '/has', 'w')\ntime.sleep(100)";
    let holder = Program::new(take, &dir);
    wait_until("it has the lock", || std::fs::metadata(format!("{dir}/has")).is_ok());
    let waiter = Program::new(take, &dir);
    says(&waiter.pid(), &["waits for a lock (fcntl or flock) that another program has on inode"]);
    drop((holder, waiter));
    remote.unmount();
    served.end();
    let said = ok(&disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}
