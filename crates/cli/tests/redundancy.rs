//! Mirrors, by the real command: a member is lost, replaced, filled and scrubbed under a mounted
//! pool; a killed node's pool is mounted without one of its disks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use braid_device::{Device, FileDevice, OpenOptions};
use common::pool::{Pool, fill, sums};
use common::{Disks, braid, can_mount, fails, ok, sh, unmount_idle, wait_until};

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
    wait_until("the mount is gone", || std::fs::read_dir(&pool.dir).is_err());
    sh(&format!("umount -l {}", pool.dir()));
    // The kernel lets its locks go when the last of its requests has ended.
    let locked = |disk: &PathBuf| {
        let device = FileDevice::open(disk, OpenOptions::default()).unwrap();
        (0..8).any(|byte| device.abilities().locks.byte_locked(byte).unwrap())
    };
    wait_until("its locks are gone", || !pool.disks.paths.iter().any(locked));
}

fn mounted(disks: usize, used: usize, options: &[&str]) -> Pool {
    let pool = Pool::new((disks, 160), used, options);
    pool.mount(&(0..used).collect::<Vec<_>>(), &[]);
    pool
}

/// The copy stands after another mount, and a check that does without member 1 is clean.
fn outlives_a_remount(m: &Pool, written: &str) {
    unmount_idle(&m.dir);
    m.mount(&[0, 1, 2, 3], &[]);
    assert_eq!(sums(&m.dir.join("copy")), written);
    unmount_idle(&m.dir);
    m.clean(&[0, 2, 3]);
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
    outlives_a_remount(&m, &written);
}

#[test]
fn status_of_a_mount_says_how_full_it_is_now() {
    if !can_mount() {
        return;
    }
    let m = mounted(2, 2, &[]);
    let free = || -> u64 {
        let said = ok(&["status", m.dir(), "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said).unwrap();
        status["pool"]["fs_free"].as_u64().unwrap()
    };
    let before = free();
    std::fs::write(m.dir.join("file"), vec![1; 20 << 20]).unwrap();
    // As soon as it has a place, long before a device says so.
    wait_until("less is free", || free() + (20 << 20) <= before);
    unmount_idle(&m.dir);
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
    assert!(ok(&["status", m.dir()]).contains("any one member may be lost"));
    ok(&["fail", m.dir(), "1"]);
    let said = ok(&["status", m.dir()]);
    assert!(said.contains("no member may be lost"), "{said}");
    let advice = format!("`braid replace {} 1 DEVICE` puts another device in its place", m.name);
    assert!(said.contains(&advice), "{said}");
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
    wait_until("the spare is filled", || {
        let out = ok(&["spare", m.dir(), "--list"]);
        out.contains("disk3  active")
    });
    assert_eq!(sums(&m.dir.join("tree")), written);
    let said = ok(&["status", m.dir()]);
    assert!(said.contains("disk0) has failed and holds no data"), "{said}");
    let said = ok(&["scrub", m.dir()]);
    assert!(said.contains("0 B healed"), "{said}");
    unmount_idle(&m.dir);
    // What an operator asked for is no error of the node.
    let log = std::fs::read_to_string(format!("{}.log", m.dir())).unwrap();
    assert!(log.contains("mounted") && !log.contains("ERROR"), "{log}");
    let said = fails(&["scrub", m.dir(), "--stop"]);
    assert!(said.contains("not mounted"), "{said}");
    m.clean(&[2, 3]);
}

/// A disk is taken out for a while, by mounted nodes and by a command alone, and catches up on what it missed.
#[test]
fn a_member_goes_offline_comes_back_under_another_path_and_catches_up() {
    if !can_mount() {
        return;
    }
    let m = mounted(5, 4, &["--mirror", "2"]);
    let written = fill(&m.dir);
    ok(&["spare", m.dir(), m.disk(4)]);
    let said = ok(&["offline", m.dir(), "1", "--dry-run"]);
    assert!(said.contains("can go offline"), "{said}");
    assert_eq!(states(&[m.dir()])[1], "active");
    let said = ok(&["fail", m.dir(), "1", "-n"]);
    assert!(said.contains("would be taken out of use; a spare"), "{said}");
    assert!(said.ends_with("nothing was changed\n"), "{said}");
    assert_eq!(states(&[m.dir()])[1], "active");
    let said = ok(&["offline", m.dir(), "1"]);
    assert!(said.contains("catches up by what it has missed"), "{said}");
    let said = fails(&["offline", m.dir(), "0"]);
    assert!(said.contains("can spare") && said.contains("disk0"), "{said}");
    let said = ok(&["status", m.dir()]);
    assert!(said.contains("disk1) is offline; no member may be lost"), "{said}");
    assert!(said.contains(" offline since 20"), "{said}");
    assert!(said.contains(&format!("`braid online {} 1` brings it back", m.name)), "{said}");
    sh(&format!("cp -r {0}/tree {0}/copy", m.dir()));
    // No spare steps in, and another node, in the same slot, goes on noting.
    unmount_idle(&m.dir);
    m.mount(&[0, 1, 2, 3, 4], &[]);
    assert_eq!(states(&[m.dir()]), ["active", "offline", "active", "active", "spare"]);
    sh(&format!("cp -r {0}/tree {0}/second", m.dir()));
    let moved = m.disks.paths[1].with_file_name("elsewhere");
    std::fs::rename(&m.disks.paths[1], &moved).unwrap();
    let moved = moved.to_str().unwrap();
    let said = fails(&["online", m.dir(), "1", m.disk(4)]);
    assert!(said.contains("is not the device that was"), "{said}");
    let planned = ok(&["online", m.dir(), "1", moved, "--dry-run"]);
    assert!(planned.contains("would be brought up to date"), "{planned}");
    let said = ok(&["online", m.dir(), "1", moved]);
    assert!(said.contains("is brought up to date") && said.contains("filled and in use"), "{said}");
    let said = ok(&["scrub", m.dir()]);
    assert!(said.contains("0 B healed"), "{said}");
    let history = ok(&["history", m.dir()]);
    for command in ["offline: member 1", &format!("online: member 1, {moved}")] {
        assert_eq!(history.matches(command).count(), 1, "{history}");
    }
    // From it alone.
    ok(&["fail", m.dir(), "0"]);
    for copy in ["tree", "copy", "second"] {
        assert_eq!(sums(&m.dir.join(copy)), written, "{copy}");
    }
    wait_until("the spare is filled", || states(&[m.dir()])[0] == "active");
    unmount_idle(&m.dir);
    let devices = [m.disk(4), moved, m.disk(2), m.disk(3)].join(":");
    ok(&["offline", &devices, "2"]);
    // It is not among the open devices any more.
    ok(&["rename", &devices, &format!("{}-again", m.name)]);
    let said = ok(&["online", &devices, "2", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["pool"]["members"][2]["state"], "active", "{said}");
}

/// What was done and what happened is told by a mounted node, and by the devices when nobody has the pool mounted; a
/// stream shows what comes.
#[test]
fn the_history_of_a_pool_is_read_mounted_and_unmounted_and_followed() {
    if !can_mount() {
        return;
    }
    let m = mounted(3, 2, &["--mirror", "2"]);
    let mut stream = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
    stream.args(["events", "-f", "--json", m.dir()]).stdout(std::process::Stdio::piped());
    let mut stream = stream.spawn().unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    let mut next = |text: &str| loop {
        let line = lines.next().expect("the stream goes on").unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["text"].as_str().unwrap().contains(text) {
            return event;
        }
    };
    assert_eq!(next("create: 2 members")["user"], "root");
    let event = next("the node has joined");
    assert_eq!((&event["kind"], &event["node"]), (&"mount".into(), &0.into()), "{event}");
    ok(&["fail", m.dir(), "1"]);
    next("disk1) has failed");
    next("the pool is degraded");
    assert_eq!(next("fail: member 1")["kind"], "command");
    ok(&["replace", m.dir(), "1", m.disk(2)]);
    next("disk2) is filled and in use");
    ok(&["scrub", m.dir()]);
    next("the scrub has ended");
    stream.kill().unwrap();
    stream.wait().unwrap();
    end(&m);
    let devices = [m.disk(0), m.disk(2)].join(":");
    let before = ok(&["history", &devices]);
    m.mount(&[0, 2], &[]);
    wait_until("the dead node is recovered", || {
        ok(&["history", m.dir()]).contains("node 0 died: its journal is replayed")
    });
    let said = ok(&["history", "-n", "2", m.dir(), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let told = said["events"].as_array().unwrap();
    assert_eq!(told.len(), 2, "{said}");
    assert!(told.iter().any(|event| event["kind"] == "recovery"), "{said}");
    unmount_idle(&m.dir);
    let after = ok(&["history", &devices]);
    assert!(after.starts_with(&before) && after.trim_end().ends_with("the node leaves"), "{after}");
}

/// What it holds is of before it failed: it is filled like a new one, and only then believed.
#[test]
fn a_failed_members_own_device_takes_its_place_again_while_mounted() {
    if !can_mount() {
        return;
    }
    for options in [["--mirror", "2"], ["--parity", "1"]] {
        let m = mounted(4, 4, &options);
        fill(&m.dir);
        let force = |order: &str| fails(&[order, m.dir(), m.disk(1), "--force"]);
        for order in ["add", "spare"] {
            let said = force(order);
            assert!(said.contains("is member 1 of this pool already, and is active"), "{said}");
            assert!(said.contains("nothing was changed"), "{said}");
        }
        let said = fails(&["replace", m.dir(), "1", m.disk(1), "--force"]);
        assert!(said.contains("`braid fail POOL 1`"), "{said}");
        ok(&["fail", m.dir(), "1"]);
        // It misses this.
        sh(&format!("cp -r {0}/tree {0}/copy && rm -r {0}/tree", m.dir()));
        let written = sums(&m.dir.join("copy"));
        for order in [["replace", "1"].as_slice(), &["spare"], &["add"]] {
            let said = fails(&[&[order[0], m.dir()], &order[1..], &[m.disk(1)]].concat());
            assert!(said.contains("was member 1 of this pool until it failed"), "{said}");
            assert!(said.contains("--force"), "{said}");
        }
        let said = ok(&["replace", m.dir(), "1", m.disk(1), "--force"]);
        assert!(said.contains("filled and in use"), "{said}");
        let said = ok(&["scrub", m.dir()]);
        assert!(said.contains(" 0 B healed"), "{said}");
        ok(&["fail", m.dir(), "0"]);
        assert_eq!(sums(&m.dir.join("copy")), written);
        // As a spare it steps in at once.
        ok(&["spare", m.dir(), m.disk(0), "--force"]);
        wait_until("the spare is filled", || {
            ok(&["status", m.dir()]).contains("any one member may be lost")
        });
        let said = fails(&["spare", m.dir(), m.disk(0), "--force"]);
        assert!(said.contains("is member 0 of this pool already, and is active"), "{said}");
        ok(&["remove", m.dir(), "4"]);
        ok(&["fail", m.dir(), "1"]);
        assert_eq!(sums(&m.dir.join("copy")), written);
        outlives_a_remount(&m, &written);
    }
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

/// Every command joins a pool that nobody has mounted, and leaves it clean.
#[test]
fn members_are_failed_replaced_and_scrubbed_without_a_mount() {
    if !can_mount() {
        return;
    }
    let m = mounted(5, 2, &["--mirror", "2"]);
    let written = fill(&m.dir);
    unmount_idle(&m.dir);
    let all = m.together(&[0, 1]);
    let said = ok(&["scrub", &all]);
    assert!(said.contains("read, 0 B healed"), "{said}");
    let said = ok(&["fail", &all, m.disk(1)]);
    assert!(said.contains("member 1 is out of use") && said.contains("failed"), "{said}");
    assert_eq!(states(&m.names(&[0])), ["active", "failed"]);
    let said = fails(&["fail", m.disk(0), "0"]);
    assert!(said.contains("can spare"), "{said}");
    let said = ok(&["replace", m.disk(0), "1", m.disk(2)]);
    assert!(said.contains("filled and in use"), "{said}");
    let all = m.together(&[0, 2]);
    let said = ok(&["spare", &all, m.disk(3)]);
    assert!(said.contains("disk3  spare"), "{said}");
    let all = m.together(&[0, 2, 3]);
    let said = ok(&["spare", &all, "--list"]);
    assert!(said.contains("disk3  spare"), "{said}");
    let said = ok(&["fail", &all, "0", "-n"]);
    assert!(said.contains("nothing was changed, but that this command had joined"), "{said}");
    let said = fails(&["spare", &all, m.disk(4), m.disk(4), "-n"]);
    assert!(said.contains("is the same device as"), "{said}");
    // It steps in, and the command waits for that.
    let said = ok(&["fail", &all, "0"]);
    assert!(said.contains("member 0 is filled and in use"), "{said}");
    assert_eq!(states(&m.names(&[2, 3])), ["active", "active", "failed"]);
    // So does one that is given where one is needed.
    ok(&["fail", &m.together(&[2, 3]), m.disk(3)]);
    let said = ok(&["spare", m.disk(2), m.disk(4)]);
    assert!(said.contains("member 0 is filled and in use"), "{said}");
    m.clean(&[2, 4]);
    m.mount(&[2, 4], &[]);
    assert_eq!(sums(&m.dir.join("tree")), written);
    let log = std::fs::read_to_string(format!("{}.log", m.dir())).unwrap();
    assert!(!log.contains("recover"), "{log}");
}

#[test]
fn a_lost_disk_is_replaced_without_a_mount() {
    if !can_mount() {
        return;
    }
    let m = mounted(4, 3, &["--parity", "1"]);
    let written = fill(&m.dir);
    unmount_idle(&m.dir);
    std::fs::remove_file(m.disk(1)).unwrap();
    let rest = m.together(&[0, 2]);
    for command in
        [&["replace", &rest, "1", m.disk(3)][..], &["scrub", &rest], &["fail", &rest, "1"]]
    {
        let said = fails(command);
        assert!(said.contains("disk1") && said.contains("`--degraded`"), "{said}");
    }
    let said = ok(&["replace", &rest, "1", m.disk(3), "--degraded"]);
    assert!(said.contains("filled and in use"), "{said}");
    // Given once more it is not taken for one that is missing.
    let said = fails(&["replace", &rest, "1", m.disk(3), "--degraded"]);
    assert!(said.contains("disk3 is member 1 of pool"), "{said}");
    m.clean(&[0, 2, 3]);
    m.mount(&[0, 2, 3], &[]);
    assert_eq!(sums(&m.dir.join("tree")), written);
}

/// Whether a process has a handler for what Ctrl-C sends.
fn catches_interrupts(pid: rustix::process::Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask >> (libc::SIGINT - 1) & 1 == 1)
}

/// Ctrl-C, while a command is the node that does the work.
#[test]
fn an_interrupted_command_leaves_the_pool_clean() {
    if !can_mount() {
        return;
    }
    let m = Pool::new((3, 700), 2, &["--mirror", "2"]);
    m.mount(&[0, 1], &[]);
    let written = fill(&m.dir);
    sh(&format!("head -c 400M /dev/urandom > {}/much", m.dir()));
    unmount_idle(&m.dir);
    let all = m.together(&[0, 1]);
    let interrupted = |command: &[&str], begun: &str| {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
        let mut child = child.args(command).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        if begun.is_empty() {
            wait_until("it is a node", || catches_interrupts(pid));
        } else {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains(begun), "{line}");
        }
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let done = child.wait().unwrap();
        assert!(done.code().is_some(), "it was not heeded: {done:?}");
        done.success()
    };
    for command in ["scrub", "trim", "rebalance"] {
        interrupted(&[command, &all], "");
    }
    assert!(!interrupted(&["replace", &all, "1", m.disk(2)], "takes the place"));
    assert_eq!(states(&m.names(&[0, 2])), ["active", "rebuilding"]);
    m.mount(&[0, 2], &[]);
    let log = std::fs::read_to_string(format!("{}.log", m.dir())).unwrap();
    assert!(!log.contains("recover"), "{log}");
    wait_until("it is filled", || ok(&["spare", m.dir(), "--list"]).contains("disk2  active"));
    assert_eq!(sums(&m.dir.join("tree")), written);
}

#[test]
fn devices_without_room_for_the_nodes_logs_are_refused() {
    let disks = Disks::new(2, 160);
    let said = fails(&disks.with(&["create", "pool"], &["--mirror", "2", "--nodes", "100"]));
    assert!(said.contains("disk0") && said.contains("too small"), "{said}");
}

/// Of two copies of what is no metadata nothing says which is right: where both stand is said.
#[test]
fn a_scrub_names_the_devices_of_what_it_cannot_decide() {
    use std::os::unix::fs::FileExt;
    if !can_mount() {
        return;
    }
    let m = mounted(2, 2, &["--mirror", "2"]);
    unmount_idle(&m.dir);
    let at = 120 << 20;
    let disk = std::fs::OpenOptions::new().write(true).open(m.disk(0)).unwrap();
    disk.write_all_at(&[0x55; 512], at).unwrap();
    let said = fails(&["scrub", &m.together(&[0, 1])]);
    for disk in [0, 1] {
        assert!(said.contains(&format!("{} byte {at}", m.disk(disk))), "{said}");
    }
    let mut sector = [0; 512];
    let disk = std::fs::File::open(m.disk(0)).unwrap();
    disk.read_exact_at(&mut sector, at).unwrap();
    assert_eq!(sector, [0x55; 512], "it was a guess");
}

/// The first line of what a mounted node says of its pool's health, and those that go with it.
fn health(m: &Pool) -> String {
    ok(&["status", m.dir()]).split("\npool ").next().unwrap().to_owned()
}

/// A pool with files, of which most need blocks. All that member 1 holds is garbage then, but for its labels, and
/// somebody walks the tree.
fn with_a_member_of_garbage(disks: usize, layout: &[&str], files: usize) -> (Pool, String) {
    use std::os::unix::fs::FileExt;
    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 64;
    const CHUNK: usize = 4096;
    let m = Pool::new((disks + 1, SIZE), disks, layout);
    let members: Vec<usize> = (0..disks).collect();
    m.mount(&members, &[]);
    for n in 0..files {
        let dir = m.dir.join(format!("tree/{}", n % 6));
        std::fs::create_dir_all(&dir).unwrap();
        let text: Vec<u8> = (0..n % 20 * 4001).map(|at| (at * n / 7).to_le_bytes()[0]).collect();
        std::fs::write(dir.join(n.to_string()), text).unwrap();
    }
    // Some of it on each member.
    std::fs::write(m.dir.join("tree/large"), vec![7; 2 << 20]).unwrap();
    let written = sums(&m.dir.join("tree"));
    unmount_idle(&m.dir);
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(m.disk(1)).unwrap();
    let mut chunk = vec![0; CHUNK];
    for at in (8 * MIB..(SIZE - 1) * MIB).step_by(CHUNK) {
        disk.read_exact_at(&mut chunk, at).unwrap();
        // What was never written would only take the scrub time.
        if chunk.iter().any(|byte| *byte != 0) {
            disk.write_all_at(&[0xa5; CHUNK], at).unwrap();
        }
    }
    m.mount(&members, &[]);
    sh(&format!("ls -lR {}/tree > /dev/null", m.dir()));
    wait_until("the member is suspected or failed", || {
        let said = health(&m);
        said.contains("suspected to return garbage") || said.contains("has failed")
    });
    (m, written)
}

/// What nobody has touched is whole throughout, and with the new member nothing is left of it.
fn replaced(m: &Pool, members: &[usize], written: &str) {
    let new = m.disk(m.disks.paths.len() - 1);
    ok(&["replace", m.dir(), "1", new]);
    let said = ok(&["scrub", m.dir()]);
    assert!(said.contains(" 0 B healed") && health(m).contains("OK"), "{said}\n{}", health(m));
    assert_eq!(sums(&m.dir.join("tree")), written);
    unmount_idle(&m.dir);
    m.clean(members);
}

/// Few damaged blocks are met: that is said, a scrub says what it cannot decide, and a person's word takes it out.
#[test]
fn a_member_of_garbage_is_suspected_and_fails_on_a_word() {
    if !can_mount() {
        return;
    }
    let sets: [(&[&str], usize); 2] = [(&["--mirror", "2"], 2), (&["--parity", "1"], 3)];
    for (layout, disks) in sets {
        let (m, written) = with_a_member_of_garbage(disks, layout, 6);
        let said = health(&m);
        assert!(said.contains("DAMAGED: member 1") && said.contains(m.disk(1)), "{said}");
        assert!(said.contains(&format!("braid fail {} 1", m.name)), "{said}");
        assert_eq!(sums(&m.dir.join("tree")), written, "{layout:?}");
        let scrub = braid(&["scrub", m.dir()]);
        let said = String::from_utf8(scrub.stdout).unwrap();
        assert_eq!(scrub.status.code(), Some(1), "{layout:?}: {said}");
        assert!(said.contains("nothing says which is right"), "{said}");
        let said = health(&m);
        assert!(said.contains("DAMAGED: the last scrub found"), "{said}");
        // By then the node may have taken it out by itself.
        let told = braid(&["fail", m.dir(), "1"]);
        let said = health(&m);
        assert!(said.contains("member 1") && said.contains("has failed"), "{told:?}\n{said}");
        assert_eq!(sums(&m.dir.join("tree")), written, "{layout:?}");
        let members: Vec<usize> = [0].into_iter().chain(2..=disks).collect();
        replaced(&m, &members, &written);
    }
}

/// Many damaged blocks are met: it is failed without a word, and another device takes its place.
#[test]
fn a_member_of_garbage_is_failed_by_itself_where_much_is_read() {
    if !can_mount() {
        return;
    }
    for layout in [&["--mirror", "2"][..], &["--parity", "1"]] {
        let (m, written) = with_a_member_of_garbage(3, layout, 200);
        assert_eq!(sums(&m.dir.join("tree")), written, "{layout:?}");
        wait_until("it has failed", || health(&m).contains("has failed"));
        assert!(health(&m).contains("braid replace"), "{}", health(&m));
        replaced(&m, &[0, 2, 3], &written);
    }
}

/// Writes `text` to a file in a mounted session of its own.
fn say(m: &Pool, which: &[usize], text: &str) {
    m.mount(which, &[]);
    std::fs::write(m.dir.join("said"), text).unwrap();
    unmount_idle(&m.dir);
}

#[test]
fn a_half_put_back_from_an_old_image_is_refused_and_filled_anew() {
    if !can_mount() {
        return;
    }
    let m = Pool::new((3, 160), 2, &["--mirror", "2"]);
    say(&m, &[0, 1], "old");
    let image = m.disks.path("image");
    std::fs::copy(m.disk(0), &image).unwrap();
    say(&m, &[0, 1], "new");
    std::fs::copy(&image, m.disk(0)).unwrap();
    let refused = fails(&["mount", m.disk(0), m.disk(1), m.dir()]);
    assert!(refused.contains("member 0") && refused.contains("disk0"), "{refused}");
    assert!(refused.contains("old image") && refused.contains("-o degraded"), "{refused}");
    let seen = ok(&["scan", m.disk(0), m.disk(1)]);
    assert!(seen.contains("out of date") && seen.contains("INCOMPLETE"), "{seen}");
    m.mount(&[0, 1], &["-o", "degraded"]);
    assert_eq!(std::fs::read_to_string(m.dir.join("said")).unwrap(), "new");
    assert_eq!(states(&[m.dir()]), ["failed", "active"]);
    ok(&["replace", m.dir(), "0", m.disk(2)]);
    assert_eq!(states(&[m.dir()]), ["active", "active"]);
    unmount_idle(&m.dir);
    m.mount(&[1, 2], &[]);
    assert_eq!(std::fs::read_to_string(m.dir.join("said")).unwrap(), "new");
    unmount_idle(&m.dir);
    m.clean(&[1, 2]);
}

#[test]
fn a_stripe_with_an_old_image_is_refused_until_a_person_accepts_it() {
    if !can_mount() {
        return;
    }
    let m = Pool::new((2, 160), 2, &[]);
    let image = m.disks.path("image");
    // From before the first mount.
    std::fs::copy(m.disk(1), &image).unwrap();
    say(&m, &[0, 1], "new");
    let current = std::fs::read(m.disk(1)).unwrap();
    std::fs::copy(&image, m.disk(1)).unwrap();
    for options in ["rw", "ro", "degraded"] {
        let refused = fails(&["mount", m.disk(0), m.disk(1), m.dir(), "-o", options]);
        assert!(refused.contains("member 1") && refused.contains("disk1"), "{refused}");
        assert!(refused.contains("braid label accept"), "{refused}");
    }
    fails(&["label", "accept", m.disk(0), m.disk(1)]);
    fails(&["check", m.disk(0), m.disk(1)]);
    // The disk itself is as good as ever.
    std::fs::write(m.disk(1), current).unwrap();
    m.clean(&[0, 1]);
    std::fs::copy(&image, m.disk(1)).unwrap();
    let said = ok(&["label", "accept", "--yes", m.disk(0), m.disk(1)]);
    assert!(said.contains("check --repair"), "{said}");
    braid(&["check", "--repair", m.disk(0), m.disk(1)]);
    m.mount(&[0, 1], &[]);
    unmount_idle(&m.dir);
}
