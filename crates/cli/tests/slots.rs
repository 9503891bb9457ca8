//! Node slots come free again by themselves, however a node ended, and who waits for one is told.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use common::san::San;
use common::{Cluster, Disks, braid, can_mount, fails, ok, pid_of, sh, unmount_idle, wait_until};
use rustix::process::{Signal, kill_process};

fn log(dir: &str) -> String {
    std::fs::read_to_string(format!("{dir}.log")).unwrap_or_default()
}

/// The slots that are taken, as the slots on the devices say.
fn taken(names: &[&str]) -> Vec<serde_json::Value> {
    let all: serde_json::Value = serde_json::from_str(&ok(names)).unwrap();
    all["nodes"].as_array().unwrap().clone()
}

/// A node withdraws because of these faults of a device, and the device is well again.
fn withdrawn(fault: &[&str], options: &[&str]) -> Option<(San, String)> {
    if !can_mount() {
        return None;
    }
    let san = San::new(&["memory:192M", "memory:192M"], &[]);
    ok(&san.with(&["create", "withdraws"], options));
    let dir = san.mount_as("host-a", "a", "io_timeout=3");
    sh(&format!("echo kept > {dir}/file; sync {dir}/file"));
    san.tell(&[&["add"], fault].concat());
    wait_until("it has withdrawn", || {
        Command::new("sh")
            .args(["-c", &format!("echo new > {dir}/new; sync {dir}/new")])
            .output()
            .unwrap();
        log(&dir).contains("withdraw")
    });
    san.tell(&["clear"]);
    Some((san, dir))
}

fn is_whole(san: &San) {
    assert!(taken(&san.with(&["nodes", "--json"], &[])).is_empty());
    let dir = san.mount_as("host-a", "again", "io_timeout=3");
    assert_eq!(sh(&format!("cat {dir}/file")), "kept\n");
    unmount_idle(Path::new(&dir));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

fn gives_its_slot_back(fault: &[&str], options: &[&str]) {
    let Some((san, dir)) = withdrawn(fault, options) else { return };
    let said = fails(&["unmount", &dir]);
    assert!(said.contains("withdrawn") && said.contains("its slot is free"), "{said}");
    assert!(said.contains("may be lost") && said.lines().count() == 1, "{said}");
    assert!(log(&dir).contains("its slot is free again"), "{}", log(&dir));
    is_whole(&san);
}

#[test]
fn a_node_that_withdrew_because_of_failed_writes_gives_its_slot_back_when_it_is_unmounted() {
    gives_its_slot_back(&["write", "fail"], &[]);
}

#[test]
fn so_it_does_in_a_pool_of_one_slot_on_a_mirror() {
    gives_its_slot_back(&["any", "fail"], &["--nodes", "1", "--mirror", "2"]);
}

#[test]
fn a_node_that_lost_its_lease_because_devices_hung_does_so_too() {
    gives_its_slot_back(&["any", "mute"], &[]);
}

/// Whoever mounts next, here or elsewhere, recovers it.
#[test]
fn the_slot_of_a_withdrawn_node_that_is_killed_is_free_after_the_next_mount() {
    let Some((san, dir)) = withdrawn(&["write", "fail"], &[]) else { return };
    kill_process(pid_of(&dir), Signal::KILL).unwrap();
    braid(&["unmount", "--lazy", &dir]);
    let next = san.mount_as("host-a", "next", "io_timeout=3");
    let names = ["nodes", "--json", &next];
    wait_until("the slot is free", || taken(&names).len() == 1);
    unmount_idle(Path::new(&next));
    is_whole(&san);
}

/// `braid status` of a node that has withdrawn says where it is mounted, also when its slot is free again.
#[test]
fn a_withdrawn_node_whose_slot_others_have_freed_is_named_by_its_directory() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:192M", "memory:192M"], &[]);
    ok(&san.with(&["create", "withdraws"], &[]));
    let dir = san.mount_as("host-a", "a", "io_timeout=2");
    let other = san.mount_as("host-b", "b", "io_timeout=2");
    kill_process(pid_of(&dir), Signal::STOP).unwrap();
    let names = ["nodes", "--json", &other];
    wait_until("the slot is free", || taken(&names).len() == 1);
    kill_process(pid_of(&dir), Signal::CONT).unwrap();
    let said = || String::from_utf8(braid(&["status", &dir]).stdout).unwrap();
    wait_until("it has withdrawn", || said().contains("WITHDRAWN"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(said().contains(&format!("the node on {dir} has withdrawn")), "{}", said());
    unmount_idle(Path::new(&dir));
    unmount_idle(Path::new(&other));
}

/// Devices that stay dead keep nobody: the node's process ends, and the slot waits for the next mount.
#[test]
fn an_unmount_ends_though_the_devices_stay_dead() {
    let Some((san, dir)) = withdrawn(&["write", "fail"], &[]) else { return };
    san.tell(&["add", "any", "fail"]);
    let said = fails(&["unmount", &dir]);
    assert!(said.contains("stays taken until another node, or the next mount"), "{said}");
    assert!(log(&dir).contains("stays taken until"), "{}", log(&dir));
    san.tell(&["clear"]);
    assert_eq!(taken(&san.with(&["nodes", "--json"], &[])).len(), 1);
    let next = san.mount_as("host-a", "next", "io_timeout=3");
    let names = ["nodes", "--json", &next];
    wait_until("the slot is free", || taken(&names).len() == 1);
    unmount_idle(Path::new(&next));
    is_whole(&san);
}

/// All slots are taken by the dead: one, two and three come back.
#[test]
fn all_nodes_of_a_full_pool_that_are_killed_at_once_can_be_mounted_again() {
    if !can_mount() {
        return;
    }
    for options in [&["--nodes", "3"][..], &["--nodes", "3", "--mirror", "2"]] {
        let mut c = Cluster::of(Disks::new(2, 300), 3, options);
        for round in 1..=3 {
            let all: Vec<usize> = (c.nodes.len() - c.nodes.len().min(3)..c.nodes.len()).collect();
            for n in &all {
                let dir = c.node(*n).display();
                sh(&format!("for i in 1 2 3; do echo x > {dir}/$i; sync {dir}/$i; done"));
            }
            all.iter().for_each(|n| c.kill(*n));
            all.iter().for_each(|n| c.detach(*n));
            c.nodes.clear();
            for n in 0..round {
                let dir = c.disks.path(&format!("round{round}node{n}"));
                std::fs::create_dir(&dir).unwrap();
                ok(&c.disks.with(&["mount"], &[&dir, "-o", &format!("log={dir}.log")]));
                assert_eq!(sh(&format!("cat {dir}/1 {dir}/2 {dir}/3")), "x\nx\nx\n");
                c.nodes.push(dir.into());
            }
            let first = c.node(0).to_str().unwrap().to_owned();
            let names = ["nodes", "--json", &first];
            wait_until("the others are recovered", || taken(&names).len() == round);
        }
        c.finish();
    }
}

/// The mount says what it waits for, and it goes on when that has come.
#[test]
fn a_mount_that_waits_for_a_slot_says_what_ends_the_wait() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"], &[]);
    ok(&san.with(&["create", "waits", "--nodes", "2"], &[]));
    let a = san.mount_as("host-a", "a", "");
    let b = san.mount_as("host-a", "b", "");
    sh(&format!("for i in $(seq 50); do echo $i > {a}/$i; done; sync {a}/1"));
    // What the other writes takes long, so its recovery does.
    san.tell(&["add", "write", "delay=1500", "from=iqn.2026-11.org.braid:host-a"]);
    kill_process(pid_of(&a), Signal::KILL).unwrap();
    let recovering = || {
        let all = taken(&san.with(&["nodes", "--json"], &[]));
        all.iter().any(|n| n["state"] == "being recovered")
    };
    wait_until("the other recovers it", recovering);
    let c = san.path("c");
    std::fs::create_dir(&c).unwrap();
    let mut mount = Command::new(env!("CARGO_BIN_EXE_braid"));
    mount.args(san.with(&["mount"], &[&c, "-o", &format!("log={c}.log")]));
    mount.env("BRAID_INITIATOR", "iqn.2026-11.org.braid:host-c");
    let mut mounting = mount.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    mounting.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(mounting.wait().unwrap().success(), "{said}");
    let ends = "is free when node 1 has recovered the dead node that had it";
    let lines: Vec<&str> = said.lines().filter(|l| l.contains(ends)).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(
        lines[0].starts_with("braid: all 2 node slots are taken; waiting for slot 0"),
        "{said}"
    );
    san.tell(&["clear"]);
    assert_eq!(sh(&format!("cat {c}/1")), "1\n");
    braid(&["unmount", "--lazy", &a]);
    unmount_idle(Path::new(&c));
    unmount_idle(Path::new(&b));
    assert!(ok(&san.with(&["check"], &[])).contains("clean"));
}
