//! How a pool may be named when it is mounted, and what is mounted over.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::device::Loop;
use common::{Disks, braid, can_mount, fails, ok, pool, sh, unmount_idle, wait_until};

#[test]
fn a_dead_mount_is_cleared_by_the_next_mount_there() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 128);
    ok(&disks.with(&["create", "again"], &[]));
    let dir = disks.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    ok(&disks.with(&["mount"], &[&dir]));
    std::fs::write(format!("{dir}/file"), "kept").unwrap();
    std::fs::File::open(&dir).unwrap().sync_all().unwrap();
    // One that lives is refused.
    let said = fails(&disks.with(&["mount"], &[&dir]));
    assert!(said.contains("mounted there already"), "{said}");
    pool::kill(&dir);
    let is_dead = || rustix::fs::statfs(&dir).err() == Some(rustix::io::Errno::NOTCONN);
    wait_until("nobody answers", is_dead);
    let said = ok(&disks.with(&["mount", "-n"], &[&dir]));
    assert!(
        said.contains("would be unmounted first") && said.contains("would be mounted"),
        "{said}"
    );
    assert!(is_dead(), "a dry run changes nothing");
    ok(&disks.with(&["mount"], &[&dir]));
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert_eq!(mounts.matches(&format!(" {dir} ")).count(), 1, "{mounts}");
    unmount_idle(dir.as_ref());
    assert!(ok(&disks.with(&["check"], &[])).contains("clean"));
}

/// Other users walk there while it is mounted: they see what was there before, or the pool, and are never refused.
#[test]
fn nobody_is_refused_while_a_pool_is_being_mounted() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 128);
    ok(&disks.with(&["create", "walked"], &[]));
    let [dir, said, end] = ["mnt", "said", "end"].map(|name| disks.path(name));
    std::fs::create_dir(&dir).unwrap();
    sh(&format!("chmod 755 {} {dir}", disks.dir.path().display()));
    ok(&disks.with(&["mount"], &[&dir]));
    std::fs::write(format!("{dir}/file"), "a line\n").unwrap();
    sh(&format!("chmod 644 {dir}/file"));
    unmount_idle(dir.as_ref());
    let walk = format!("while [ ! -e {end} ]; do read -r line <{dir}/file; done");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let as_user = [&user[..], &["timeout", "60", "sh", "-c", &walk]].concat();
    for _ in 0..4 {
        let errors = std::fs::File::create(&said).unwrap();
        let mut user = Command::new("setpriv").args(&as_user).stderr(errors).spawn().unwrap();
        let walks = || std::fs::read_to_string(&said).unwrap().contains("No such file");
        wait_until("it walks there", walks);
        ok(&disks.with(&["mount"], &[&dir]));
        std::fs::write(&end, "").unwrap();
        user.wait().unwrap();
        std::fs::remove_file(&end).unwrap();
        unmount_idle(dir.as_ref());
        let said = std::fs::read_to_string(&said).unwrap();
        let refused: Vec<_> = said.lines().filter(|line| line.contains("denied")).collect();
        assert_eq!(refused, Vec::<&str>::new());
    }
}

#[test]
fn a_pool_is_named_as_in_an_fstab() {
    let disks = Disks::new(2, 128);
    ok(&disks.with(&["create", "named"], &[]));
    let scanned = ok(&disks.with(&["scan"], &[]));
    let uuid = scanned.split_whitespace().nth(1).unwrap();
    let check = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let out = command.args(["check", name]).env("BRAID_DEVICES", disks.dir.path()).output();
        out.unwrap().status.code()
    };
    for name in [&format!("UUID={uuid}"), &format!("UUID=\"{uuid}\""), "LABEL=named", "named", uuid]
    {
        assert_eq!(check(name), Some(0), "{name}");
    }
    // Each word is looked for where it belongs.
    for name in [&format!("LABEL={uuid}"), "UUID=named", "LABEL=other"] {
        assert_eq!(check(name), Some(8), "{name}");
    }
}

#[test]
fn one_block_device_of_a_pool_stands_for_all() {
    let disks = Disks::new(2, 128);
    let loops: Option<Vec<Loop>> = disks.paths.iter().map(|p| Loop::new(p)).collect();
    let Some(loops) = loops else { return braid_testkit::skip("no loop devices") };
    ok(&["create", "standing", &loops[0].0, &loops[1].0]);
    assert!(ok(&["check", &loops[1].0]).contains("clean"));
    // A file stands for itself.
    let said = fails(&["check", disks.names()[1]]);
    assert!(said.contains("missing"), "{said}");
}

/// In a PID namespace each first process has number 1, and another number outside.
#[test]
fn mounts_of_two_pid_namespaces_are_told_apart() {
    if !can_mount() {
        return;
    }
    let program = env!("CARGO_BIN_EXE_braid");
    let mut mounts = ["one", "two"].map(|name| {
        let disks = Disks::new(1, 128);
        ok(&disks.with(&["create", name], &[]));
        let dir = disks.path("mnt");
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", program]);
        let served = command.args(disks.with(&["mount", "-f"], &[&dir])).spawn().unwrap();
        wait_until("it serves", || braid(&["nodes", &dir]).status.success());
        (name, disks, dir, served)
    });
    for (_, _, dir, _) in &mounts {
        let said = ok(&["nodes", dir]);
        assert_eq!(said.matches("/mnt").count(), 1, "{said}");
        assert!(said.contains(dir.as_str()), "{said}");
    }
    for at in 0..2 {
        let (_, disks, dir, served) = &mut mounts[at];
        unmount_idle(dir.as_ref());
        assert!(served.wait().unwrap().success());
        assert!(ok(&disks.with(&["check"], &[])).contains("clean"));
        assert!(mounts[at + 1..].iter_mut().all(|m| m.3.try_wait().unwrap().is_none()));
    }
}

#[test]
fn a_mounted_pool_of_files_is_found_by_its_name() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(2, 128);
    ok(&disks.with(&["create", "by-name"], &[]));
    let dir = disks.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    ok(&disks.with(&["mount"], &[&dir]));
    let said = fails(&["check", "by-name"]);
    assert!(said.contains("has the file system mounted"), "{said}");
    unmount_idle(dir.as_ref());
    assert!(fails(&["check", "by-name"]).contains("no pool called 'by-name'"));
}

#[test]
fn two_mounted_pools_of_one_name_are_named_by_their_directories() {
    if !can_mount() {
        return;
    }
    let pools = [0, 1].map(|_| {
        let disks = Disks::new(1, 128);
        ok(&disks.with(&["create", "twice"], &[]));
        let dir = disks.path("mnt");
        std::fs::create_dir(&dir).unwrap();
        ok(&disks.with(&["mount"], &[&dir]));
        (disks, dir)
    });
    for command in [&["nodes", "twice"][..], &["status", "twice"], &["scrub", "twice"]] {
        let said = fails(command);
        assert!(said.contains("two pools: give the directory of one"), "{command:?}: {said}");
        assert!(pools.iter().all(|(_, dir)| said.contains(dir.as_str())), "{command:?}: {said}");
    }
    assert!(fails(&["check", "twice"]).contains("name the devices"));
    for (_, dir) in &pools {
        assert!(ok(&["nodes", dir]).contains(dir.as_str()));
        unmount_idle(dir.as_ref());
    }
}

/// The mount table has the directory itself, and so has everything that is said of the mount.
#[test]
fn a_directory_is_named_by_a_link_or_with_dots() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 128);
    ok(&disks.with(&["create", "linked"], &[]));
    let (dir, link) = (disks.path("mnt"), disks.path("link"));
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("mnt", &link).unwrap();
    let said = fails(&disks.with(&["mount"], &[&link, "-o", &format!("log={dir}/own.log")]));
    assert!(said.contains("inside of the mount"), "{said}");
    for (named, other) in [(&link, &dir), (&dir, &link), (&format!("{dir}/../mnt"), &link)] {
        let log = format!("{dir}.log");
        ok(&disks.with(&["mount"], &[named, "-o", &format!("log={log}")]));
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(!said.contains("guard"), "{said}");
        let said = fails(&disks.with(&["mount"], &[other]));
        assert!(said.contains("mounted there already"), "{said}");
        for name in [named, other] {
            assert!(ok(&["nodes", name]).contains(&dir), "{name}");
            assert!(ok(&["status", name]).contains(&dir), "{name}");
        }
        // The node has left when that returns.
        ok(&["unmount", other]);
        assert!(ok(&disks.with(&["status"], &[])).contains("no node has it mounted"));
    }
    assert!(ok(&disks.with(&["check"], &[])).contains("clean"));
}

/// Copies of all members, of a pool that was not mounted then or was, beside the mounted original: two file
/// systems of one identity. Nor is a node of this host taken for dead by what a copy says of it.
#[test]
fn copies_of_all_members_are_refused_beside_the_original() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let copies = |kind: &str| ["d0", "d1"].map(|name| path(&format!("{name}-{kind}")));
    let copy = |kind: &str| {
        for (from, to) in ["d0", "d1"].iter().zip(copies(kind)) {
            sh(&format!("cp --sparse=always {} {to}", path(from)));
        }
    };
    for name in ["d0", "d1"] {
        std::fs::File::create(path(name)).unwrap().set_len(256 << 20).unwrap();
    }
    let (node, other) = (path("node"), path("other"));
    std::fs::create_dir(&node).unwrap();
    std::fs::create_dir(&other).unwrap();
    ok(&["create", "copied", &path("d0"), &path("d1")]);
    copy("before");
    ok(&["mount", &path("d0"), &path("d1"), &node, "-o", "io_timeout=2"]);
    sh(&format!("echo one > {node}/f; sync {node}/f"));
    copy("during");
    let process = common::pid_of(&node).as_raw_nonzero();
    let [before, during] = ["before", "during"].map(copies);
    for [one, two] in [&before, &during] {
        let said = fails(&["mount", one, two, &other, "-o", "io_timeout=2"]);
        assert!(said.contains(one) && said.contains("copies of the members"), "{said}");
        assert!(said.contains(&format!("mounted on {node} (process {process})")), "{said}");
        assert!(said.contains(&format!("braid unmount {node}")), "{said}");
    }
    let said = fails(&["fence", "--confirm", &during[0], &during[1], "0"]);
    assert!(said.contains(&format!("unmount {node}, or end process {process}")), "{said}");
    // One that does not answer, too.
    let stopped = common::pid_of(&node);
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let out = braid(&["mount", &during[0], &during[1], &other, "-o", "io_timeout=2"]);
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("copies of the members"), "{said}");
    // The pool itself is mounted twice, and copies are once it is not mounted any more.
    ok(&["mount", &path("d0"), &path("d1"), &other, "-o", "io_timeout=2"]);
    assert_eq!(sh(&format!("cat {other}/f")), "one\n");
    unmount_idle(Path::new(&other));
    unmount_idle(Path::new(&node));
    ok(&["mount", &before[0], &before[1], &other, "-o", "io_timeout=2"]);
    let said = fails(&["mount", &path("d0"), &path("d1"), &node, "-o", "io_timeout=2"]);
    assert!(said.contains(&format!("mounted on {other}")), "{said}");
    unmount_idle(Path::new(&other));
    // In a copy made meanwhile, that node is there for ever. It was of this host, which nobody need turn off.
    for look in ["status", "nodes"] {
        let said = ok(&[look, &during[0], &during[1]]);
        assert!(said.contains(&format!("see that its process {process} has ended")), "{said}");
        assert!(!said.contains("turn its host off"), "{said}");
    }
    ok(&["fence", "--confirm", &during[0], &during[1], "0"]);
    ok(&["mount", &during[0], &during[1], &other, "-o", "io_timeout=2"]);
    assert_eq!(sh(&format!("cat {other}/f")), "one\n");
    unmount_idle(Path::new(&other));
}

#[test]
fn a_dry_run_says_what_a_mount_would_be_refused_for() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "one"], &["--nodes", "1"]));
    let (first, second) = (disks.path("first"), disks.path("second"));
    std::fs::create_dir(&first).unwrap();
    std::fs::create_dir(&second).unwrap();
    let dry = |tail: &[&str]| disks.with(&["mount", "-n"], tail).join(" ");
    let program = env!("CARGO_BIN_EXE_braid");
    let limited = format!("ulimit -n 100; if {program} {} 2>&1; then exit 1; fi", dry(&[&second]));
    let said = sh(&limited);
    assert!(said.contains("the limit of open files"), "{said}");
    let said = fails(&disks.with(&["mount", "-n"], &[&second, "-o", "slot=1"]));
    assert!(said.contains("node slots 0 to 0"), "{said}");
    ok(&disks.with(&["mount"], &[&first]));
    let said = fails(&disks.with(&["mount", "-n"], &[&second]));
    assert!(said.contains("all 1 node slots are taken by nodes that live"), "{said}");
    let said = fails(&disks.with(&["mount", "-n"], &[&second, "-o", "slot=0"]));
    assert!(said.contains("node 0 on") && said.contains(&first), "{said}");
    // That of a dead node is free for the mount.
    pool::kill(&first);
    ok(&disks.with(&["mount", "-n"], &[&second]));
    ok(&disks.with(&["mount"], &[&second]));
    unmount_idle(second.as_ref());
    braid(&["unmount", "--lazy", &first]);
}
