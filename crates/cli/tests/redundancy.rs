//! Mirrors, by the real command: a member is lost, replaced, filled and scrubbed under a mounted
//! pool; a killed node's pool is mounted without one of its disks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use braid_device::{Device, FileDevice, OpenOptions};
use common::{Disks, can_mount, fails, ok, sh, unmount_idle};

/// A pool of `create`'s options over the first `used` of its disks, mounted.
struct Mounted {
    disks: Disks,
    dir: PathBuf,
}

impl Mounted {
    fn new(disks: usize, used: usize, options: &[&str]) -> Self {
        let disks = Disks::new(disks, 160);
        let dir = disks.dir.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let mut args = vec!["create", "red"];
        args.extend(disks.names().into_iter().take(used));
        args.extend(options);
        ok(&args);
        let mounted = Self { disks, dir };
        let all: Vec<&str> = mounted.disks.names().into_iter().take(used).collect();
        mounted.mount(&all, &[]);
        mounted
    }
    fn dir(&self) -> &str {
        self.dir.to_str().unwrap()
    }
    fn mount(&self, disks: &[&str], options: &[&str]) {
        let log = format!("log={}.log", self.dir());
        ok(&[&["mount"], disks, &[self.dir(), "-o", &log], options].concat());
    }
    fn disk(&self, n: usize) -> &str {
        self.disks.names()[n]
    }
    fn states(&self, disks: &[&str]) -> Vec<String> {
        let out = ok(&[&["status"], disks, &["--json"]].concat());
        let status: serde_json::Value = serde_json::from_str(&out).unwrap();
        let members = status["pool"]["topology"]["members"].as_array().unwrap();
        members.iter().map(|m| m["state"].as_str().unwrap().to_owned()).collect()
    }
    fn kill(&self) {
        let out = ok(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&out).unwrap();
        let mounts = status["mounts"].as_array().unwrap();
        let own = mounts.iter().find(|m| m["mount_point"] == self.dir()).unwrap();
        let pid =
            rustix::process::Pid::from_raw(i32::try_from(own["pid"].as_i64().unwrap()).unwrap());
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
        common::wait_until("the mount is gone", || std::fs::read_dir(&self.dir).is_err());
        sh(&format!("umount -l {}", self.dir()));
        // The kernel lets its locks go when the last of its requests has ended.
        let locked = |disk: &&PathBuf| {
            let device = FileDevice::open(disk, OpenOptions::default()).unwrap();
            (0..8).any(|byte| device.byte_locked(byte).unwrap())
        };
        common::wait_until("its locks are gone", || !self.disks.paths.iter().any(|d| locked(&d)));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = common::braid(&["unmount", self.dir()]);
        let _ = std::process::Command::new("umount").args(["-l", self.dir()]).output();
    }
}

fn fill(dir: &Path) -> String {
    let dir = dir.display();
    sh(&format!(
        "mkdir -p {dir}/tree && for i in $(seq 60); do head -c $((i * 3000)) /dev/urandom > {dir}/tree/$i; done
         head -c 30000000 /dev/urandom > {dir}/big; cd {dir} && find . -type f | xargs sync && find . -type f | sort | xargs sha256sum"
    ))
}

fn sums(dir: &Path) -> String {
    sh(&format!("cd {} && find . -type f | sort | xargs sha256sum", dir.display()))
}

#[test]
fn files_on_parity_outlive_a_member() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(4, 4, &["--parity", "1"]);
    let written = fill(&m.dir);
    ok(&["fail", m.dir(), "1"]);
    assert_eq!(sums(&m.dir), written);
    sh(&format!("cp -r {0}/tree {0}/copy && rm -r {0}/tree {0}/big", m.dir()));
    let written = sums(&m.dir);
    unmount_idle(&m.dir);
    let left = [m.disk(0), m.disk(2), m.disk(3)];
    m.mount(&m.disks.names(), &[]);
    assert_eq!(sums(&m.dir), written);
    unmount_idle(&m.dir);
    let check = ok(&[&["check"], &left[..]].concat());
    assert!(check.contains("clean"), "{check}");
}

#[test]
fn a_member_is_failed_replaced_and_scrubbed_while_mounted() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(4, 2, &["--mirror", "2"]);
    let written = fill(&m.dir);
    let said = fails(&["fail", m.dir(), "7"]);
    assert!(said.contains("no member 7") && said.contains("disk0"), "{said}");
    ok(&["fail", m.dir(), "1"]);
    assert_eq!(sums(&m.dir), written);
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
    assert_eq!(sums(&m.dir), written);
    let said = ok(&["scrub", m.dir()]);
    assert!(said.contains("0 B healed"), "{said}");
    unmount_idle(&m.dir);
    let said = fails(&["scrub", m.dir()]);
    assert!(said.contains("not mounted"), "{said}");
    let check = ok(&["check", m.disk(2), m.disk(3)]);
    assert!(check.contains("clean"), "{check}");
}

#[test]
fn a_killed_nodes_pool_is_mounted_without_one_of_its_disks() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(4, 4, &["--mirror", "2"]);
    let written = fill(&m.dir);
    let dir = m.dir.clone();
    let writer = std::thread::spawn(move || {
        (0..10_000).all(|i| std::fs::write(dir.join(format!("late{i}")), vec![7; 200_000]).is_ok())
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    m.kill();
    assert!(!writer.join().unwrap(), "it was killed in the middle");
    std::fs::remove_file(m.disk(1)).unwrap();
    let rest = [m.disk(0), m.disk(2), m.disk(3)];
    let said = fails(&[&["mount"], &rest[..], &[m.dir()]].concat());
    assert!(said.contains("disk1") && said.contains("degraded"), "{said}");
    m.mount(&rest, &["-o", "degraded"]);
    let now = sums(&m.dir);
    for line in written.lines() {
        assert!(now.contains(line), "lost: {line}");
    }
    assert_eq!(m.states(&rest), ["active", "failed", "active", "active"]);
    unmount_idle(&m.dir);
    let check = ok(&[&["check"], &rest[..]].concat());
    assert!(check.contains("clean"), "{check}");
    // From now on the labels know.
    m.mount(&rest, &[]);
}

#[test]
fn devices_without_room_for_the_nodes_logs_are_refused() {
    let disks = Disks::new(2, 160);
    let said = fails(&disks.with(&["create", "red"], &["--mirror", "2", "--nodes", "100"]));
    assert!(said.contains("disk0") && said.contains("too small"), "{said}");
}
