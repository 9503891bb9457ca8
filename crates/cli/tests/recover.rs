//! Hosts that lose power together, of which one comes back: what stands in its way is fenced, or a
//! person's word is enough. Hosts are pretended, on units of a target.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::path::Path;
use std::process::Command;

use common::san::San;
use common::{Disks, braid, can_mount, mount_as, ok, pid_of, sh, unmount_idle, wait_until};
use rustix::process::{Signal, kill_process};

/// A command of a host.
fn on(host: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_braid")]).args(args);
    command.env("BRAID_INITIATOR", format!("iqn.2026-11.org.braid:{host}"));
    let out = command.env("BRAID_PRETENDED_HOST", host).output().unwrap();
    let said = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    (out.status.success(), said.concat())
}

/// Kills the node and takes its mount away.
fn dies(dir: &str) {
    kill_process(pid_of(dir), Signal::KILL).unwrap();
    braid(&["unmount", "--lazy", dir]);
}

fn write(dir: &str, name: &str) {
    sh(&format!("echo {name} > {dir}/{name}; timeout 60 sync {dir}/{name}"));
}

/// Both hosts die; `host-a` comes back alone, `host-b` stays away.
fn one_of_two_comes_back(options: &[&str]) {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M", "memory:256M"], &[]);
    ok(&san.with(&["create", "both-died"], options));
    let a = san.mount_as("host-a", "a", "io_timeout=2");
    let b = san.mount_as("host-b", "b", "io_timeout=2");
    write(&a, "one");
    write(&b, "two");
    // B recovers A's node, and so has had every lock that a recovery takes.
    dies(&a);
    wait_until("B has recovered A's node", || nodes_of(&b).len() == 1);
    let a = san.mount_as("host-a", "again", "io_timeout=2");
    write(&a, "three");
    write(&b, "four");
    for dir in [&a, &b] {
        kill_process(pid_of(dir), Signal::KILL).unwrap();
    }
    for dir in [&a, &b] {
        braid(&["unmount", "--lazy", dir]);
    }
    let back = san.mount_as("host-a", "back", "io_timeout=2");
    let said =
        sh(&format!("timeout -s KILL 60 cat {back}/one {back}/two {back}/three {back}/four"));
    assert_eq!(said, "one\ntwo\nthree\nfour\n");
    write(&back, "five");
    wait_until("the other's slot is free", || nodes_of(&back).len() == 1);
    unmount_idle(Path::new(&back));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

#[test]
fn the_host_that_comes_back_alone_fences_the_other_and_goes_on() {
    one_of_two_comes_back(&[]);
}

#[test]
fn so_it_does_on_mirrors() {
    one_of_two_comes_back(&["--mirror", "2"]);
}

/// All slots are taken by the dead: there is no slot to come back by but one that has to be recovered
/// first, on mirrors, where that may need what the other host's node holds.
#[test]
fn the_host_that_comes_back_to_a_full_pool_fences_the_other_and_goes_on() {
    one_of_two_comes_back(&["--mirror", "2", "--nodes", "2"]);
}

/// Nothing here can fence: a person can always say that a host is off, mounted or not.
#[test]
fn a_persons_word_opens_the_pool_mounted_or_not() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "word", "--nodes", "2"], &[]));
    let mount =
        |host: &str, dir: &str| mount_as(host, &disks.names(), &disks.path(dir), "io_timeout=2");
    let (a, b) = (mount("host-a", "a"), mount("host-b", "b"));
    write(&a, "one");
    write(&b, "two");
    let word = disks.with(&["fence", "--confirm"], &["1"]);
    let (done, said) = on("host-a", &word);
    assert!(!done && said.contains("heartbeats"), "a living node: {said}");
    dies(&b);
    dies(&a);
    // Every other command says how to go on.
    let (done, said) = on("host-c", &disks.with(&["check"], &[]));
    assert!(!done && said.contains("braid fence"), "{said}");
    let c = disks.path("c");
    std::fs::create_dir(&c).unwrap();
    let (done, said) = on("host-c", &disks.with(&["mount"], &[&c]));
    assert!(!done && said.contains("braid fence"), "{said}");
    let (done, said) = on("host-c", &word);
    assert!(done && said.contains("counts as dead"), "{said}");
    // Said of both, a check can run.
    let (done, said) = on("host-c", &disks.with(&["fence", "--confirm"], &["0"]));
    assert!(done, "{said}");
    let (done, said) = on("host-c", &disks.with(&["check"], &[]));
    assert!(done && said.contains("clean"), "{said}");
    let c = mount("host-c", "c");
    let said = sh(&format!("timeout -s KILL 60 cat {c}/one {c}/two"));
    assert_eq!(said, "one\ntwo\n");
    write(&c, "three");
    // Mounted: what is waited for is said, and the word ends it.
    let d = mount("host-d", "d");
    write(&d, "four");
    sh(&format!("rm {d}/three"));
    dies(&d);
    let mut waits = Command::new("timeout").args(["60", "ls", &c]).spawn().unwrap();
    wait_until("what is waited for is said", || {
        let (_, nodes) = on("host-c", &["nodes", &c]);
        let log = std::fs::read_to_string(format!("{c}.log")).unwrap_or_default();
        [&nodes, &log].iter().all(|said| said.contains("nothing here can fence it"))
    });
    assert!(waits.try_wait().unwrap().is_none(), "it did not wait");
    let slot = if node_is_on(&c, 0, "host-d") { "0" } else { "1" };
    let (done, said) = on("host-c", &["fence", "--confirm", &c, slot]);
    assert!(done, "{said}");
    assert!(waits.wait().unwrap().success());
    unmount_idle(Path::new(&c));
    let (done, said) = on("host-c", &disks.with(&["check"], &[]));
    assert!(done && said.contains("clean"), "{said}");
}

/// A silent node that nothing can fence keeps nobody from leaving, and after a person's word a repair runs.
#[test]
fn beside_a_silent_node_a_mount_is_left_and_after_the_word_a_repair_runs() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "left", "--nodes", "2"], &[]));
    let mount =
        |host: &str, dir: &str| mount_as(host, &disks.names(), &disks.path(dir), "io_timeout=2");
    let (a, b) = (mount("host-a", "a"), mount("host-b", "b"));
    sh(&format!("mkdir {b}/d; echo kept > {b}/d/file; sync {b}/d/file"));
    write(&a, "mine");
    // This one is to delete a file when its last program closes it, whose lock the other one has then.
    let here = std::fs::File::open(format!("{a}/mine")).unwrap();
    let mut there = std::fs::OpenOptions::new().append(true).open(format!("{b}/mine")).unwrap();
    std::fs::remove_file(format!("{a}/mine")).unwrap();
    there.write_all(b"more").unwrap();
    dies(&b);
    drop((here, there));
    // 3.25 `io_timeout` (docs/SEMANTICS.md), and what a busy machine needs.
    let begun = std::time::Instant::now();
    let (done, said) = on("host-a", &["unmount", &a]);
    let took = begun.elapsed();
    assert!(done, "{said}");
    println!("unmounted after {took:?}");
    assert!(took < std::time::Duration::from_secs(25), "{took:?}");
    let repair = disks.with(&["check", "--repair"], &[]);
    let (done, said) = on("host-a", &repair);
    assert!(!done && said.contains("braid fence"), "{said}");
    let (done, said) = on("host-a", &disks.with(&["fence", "--confirm"], &["1"]));
    assert!(done, "{said}");
    let (done, said) = on("host-a", &repair);
    assert!(done && said.contains("clean"), "{said}");
    let a = mount("host-a", "again");
    assert_eq!(sh(&format!("cat {a}/d/file")), "kept\n");
    assert!(!Path::new(&a).join("mine").exists());
    unmount_idle(Path::new(&a));
    let (done, said) = on("host-a", &disks.with(&["check"], &[]));
    assert!(done && said.contains("clean"), "{said}");
}

/// The slots that are taken, as the node on `dir` tells of them.
fn nodes_of(dir: &str) -> Vec<serde_json::Value> {
    let all: serde_json::Value = serde_json::from_str(&ok(&["nodes", "--json", dir])).unwrap();
    all["nodes"].as_array().unwrap().clone()
}

fn node_is_on(dir: &str, slot: u64, host: &str) -> bool {
    nodes_of(dir).iter().any(|n| n["slot"] == slot && n["host"] == host)
}
