//! Mirrors, by the real command: a member is lost, replaced, filled and scrubbed under a mounted
//! pool; a killed node's pool is mounted without one of its disks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;

use braid_device::{Device, FileDevice, OpenOptions};
use common::pool::{Pool, fill, sums};
use common::{Disks, can_mount, fails, ok, sh, unmount_idle};

/// The state of each member, asked by these.
fn states(disks: &[&str]) -> Vec<String> {
    let out = ok(&[&["status"], disks, &["--json"]].concat());
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    let members = status["pool"]["topology"]["members"].as_array().unwrap();
    members.iter().map(|m| m["state"].as_str().unwrap().to_owned()).collect()
}

/// Kills the node, and waits until the kernel has nothing left of it.
fn end(pool: &Pool) {
    pool.kill();
    common::wait_until("the mount is gone", || std::fs::read_dir(&pool.dir).is_err());
    sh(&format!("umount -l {}", pool.dir()));
    // The kernel lets its locks go when the last of its requests has ended.
    let locked = |disk: &PathBuf| {
        let device = FileDevice::open(disk, OpenOptions::default()).unwrap();
        (0..8).any(|byte| device.byte_locked(byte).unwrap())
    };
    common::wait_until("its locks are gone", || !pool.disks.paths.iter().any(locked));
}

fn mounted(disks: usize, used: usize, options: &[&str]) -> Pool {
    let pool = Pool::new((disks, 160), used, options);
    pool.mount(&(0..used).collect::<Vec<_>>(), &[]);
    pool
}

#[test]
fn files_on_parity_outlive_a_member() {
    if !can_mount() {
        return;
    }
    let m = mounted(4, 4, &["--parity", "1"]);
    let written = fill(&m.dir);
    ok(&["fail", m.dir(), "1"]);
    assert_eq!(sums(&m.dir.join("tree")), written);
    sh(&format!("cp -r {0}/tree {0}/copy && rm -r {0}/tree", m.dir()));
    assert_eq!(sums(&m.dir.join("copy")), written);
    unmount_idle(&m.dir);
    m.mount(&[0, 1, 2, 3], &[]);
    assert_eq!(sums(&m.dir.join("copy")), written);
    unmount_idle(&m.dir);
    m.clean(&[0, 2, 3]);
}

#[test]
fn a_member_is_failed_replaced_and_scrubbed_while_mounted() {
    if !can_mount() {
        return;
    }
    let m = mounted(4, 2, &["--mirror", "2"]);
    let written = fill(&m.dir);
    let said = fails(&["fail", m.dir(), "7"]);
    assert!(said.contains("no member 7") && said.contains("disk0"), "{said}");
    ok(&["fail", m.dir(), "1"]);
    assert_eq!(sums(&m.dir.join("tree")), written);
    let said = fails(&["fail", m.dir(), "0"]);
    assert!(said.contains("can spare") && said.contains("disk0"), "{said}");
    // Under load.
    let load = m.dir.join("load");
    let writer = std::thread::spawn(move || {
        for i in 0..400_u32 {
            std::fs::write(&load, vec![u8::try_from(i % 251).unwrap(); 64 << 10]).unwrap();
        }
    });
    let said = ok(&["replace", m.dir(), "1", m.disk(2)]);
    assert!(said.contains("filled and in use"), "{said}");
    writer.join().unwrap();
    std::fs::remove_file(m.dir.join("load")).unwrap();
    let said = ok(&["spare", m.dir(), m.disk(3)]);
    assert!(said.contains("spare"), "{said}");
    ok(&["fail", m.dir(), m.disk(0)]);
    common::wait_until("the spare is filled", || {
        let out = ok(&["spare", m.dir(), "--list"]);
        out.contains("disk3  active")
    });
    assert_eq!(sums(&m.dir.join("tree")), written);
    let said = ok(&["scrub", m.dir()]);
    assert!(said.contains("0 B healed"), "{said}");
    unmount_idle(&m.dir);
    let said = fails(&["scrub", m.dir()]);
    assert!(said.contains("not mounted"), "{said}");
    m.clean(&[2, 3]);
}

#[test]
fn a_killed_nodes_pool_is_mounted_without_one_of_its_disks() {
    if !can_mount() {
        return;
    }
    let m = mounted(4, 4, &["--mirror", "2"]);
    let written = fill(&m.dir);
    let dir = m.dir.clone();
    let writer = std::thread::spawn(move || {
        (0..10_000).all(|i| std::fs::write(dir.join(format!("late{i}")), vec![7; 200_000]).is_ok())
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    end(&m);
    assert!(!writer.join().unwrap(), "it was killed in the middle");
    std::fs::remove_file(m.disk(1)).unwrap();
    let rest = [0, 2, 3];
    let said = fails(&[&["mount"], &m.names(&rest)[..], &[m.dir()]].concat());
    assert!(said.contains("disk1") && said.contains("degraded"), "{said}");
    m.mount(&rest, &["-o", "degraded"]);
    let now = sums(&m.dir.join("tree"));
    for line in written.lines() {
        assert!(now.contains(line), "lost: {line}");
    }
    assert_eq!(states(&m.names(&rest)), ["active", "failed", "active", "active"]);
    unmount_idle(&m.dir);
    m.clean(&rest);
    // From now on the labels know.
    m.mount(&rest, &[]);
}

#[test]
fn devices_without_room_for_the_nodes_logs_are_refused() {
    let disks = Disks::new(2, 160);
    let said = fails(&disks.with(&["create", "pool"], &["--mirror", "2", "--nodes", "100"]));
    assert!(said.contains("disk0") && said.contains("too small"), "{said}");
}
