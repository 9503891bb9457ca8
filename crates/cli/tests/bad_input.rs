//! Wrong devices, damaged labels, nonsense arguments: each gets an error that names the thing, and
//! harms nothing.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use common::device::{Loop, Mounted};
use common::{Cluster, Disks, braid, can_mount, fails, ok, sh};

fn flip(path: &std::path::Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).unwrap();
}

/// Both labels of a device: 64 KiB from its start, 1 MiB from its end (docs/FORMAT.md).
fn labels(path: &std::path::Path) -> [u64; 2] {
    [64 << 10, fs::metadata(path).unwrap().len() - (1 << 20)]
}

#[test]
fn create_refuses_nonsense() {
    let d = Disks::new(2, 256);
    let said = fails(&d.with(&["create", "p", "--stripe-unit", "5000"], &[]));
    assert!(said.contains("stripe unit") && said.contains("4 KiB"), "{said}");
    let said = fails(&d.with(&["create", "p", "--block-size", "3K"], &[]));
    assert!(said.contains("block size"), "{said}");
    let said = fails(&d.with(&["create", "bad/name"], &[]));
    assert!(said.contains("name"), "{said}");
    let said = fails(&["create", "p", &d.path("nothing")]);
    assert!(said.contains("nothing"), "{said}");
    let journal = ["create", "p", "--journal-size", "4M", "--block-size", "64K"];
    let said = fails(&d.with(&journal, &[]));
    assert!(said.contains("--journal-size"), "{said}");
    let said = fails(&d.with(&["create", "p", "--journal-size", "1G"], &[]));
    assert!(said.contains("too small") && said.contains("--nodes"), "{said}");
    assert!(!said.contains("usable"), "{said}");
    let said = fails(&d.with(&["create", "p", "--mirror", "2", "--weights", "2,1"], &[]));
    assert!(said.contains("weights"), "{said}");
    let all = format!("metadata={}", d.names().join(","));
    let said = fails(&d.with(&["create", "p", "--subpools", &all], &[]));
    assert!(said.contains("left for data"), "{said}");
    let said = fails(&["create", "p", "--mirror", "2", d.names()[0]]);
    assert!(said.contains("1 device makes no 2 copies"), "{said}");
    assert!(fails(&d.with(&["create", "p", "--nodes", "675"], &[])).contains("1 to 674 nodes"));
    let same = d.names()[0];
    let said = fails(&["create", "p", same, same]);
    assert!(said.contains(same), "{said}");
    assert!(!ok(&d.with(&["scan"], &[])).contains("epoch"), "nothing was written");
}

/// A name of a unit that cannot be read as one stands in the message without its secret.
#[test]
fn a_malformed_name_of_a_unit_is_shown_without_its_secret() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    // The second one is the name of a portal, which `scan` asks.
    for (unit, shown) in [
        ("iscsi://me%longersecret@h/t/x", "me%***@h"),
        ("iscsi://me%longersecret@127.0.0.1:1", "@127.0.0.1:1"),
    ] {
        let portal = shown.starts_with('@');
        for words in [
            &["create", "p", unit][..],
            &["mount", unit, dir],
            &["mount", "p", dir, "-o", &format!("devices={unit}")],
            &["status", unit],
            &["check", unit],
            &["scan", unit],
            &["probe", unit],
            &["replace", unit, "0", unit],
        ] {
            let out = braid(words);
            let said = [out.stdout, out.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(out.status.success() == (words[0] == "scan" && !portal), "{words:?}: {said}");
            assert!(said.contains(shown) && !said.contains("secret"), "{words:?}: {said}");
        }
    }
}

#[test]
fn create_refuses_small_used_and_foreign_devices() {
    let small = Disks::new(1, 1);
    let said = fails(&small.with(&["create", "p"], &[]));
    assert!(said.contains(small.names()[0]) || said.contains("small"), "{said}");

    let d = Disks::new(2, 512);
    sh(&format!("mkfs.ext4 -q -F {}", d.names()[1]));
    let said = fails(&d.with(&["create", "p"], &[]));
    assert!(
        said.contains("ext4") && said.contains("--force") && said.contains(d.names()[1]),
        "{said}"
    );
    let said = ok(&d.with(&["create", "p", "--force", "--dry-run"], &[]));
    assert!(said.contains("nothing was written"), "{said}");
    let said = fails(&d.with(&["create", "p"], &[]));
    assert!(said.contains("ext4"), "{said}");
    ok(&d.with(&["create", "p", "--force"], &[]));

    let said = fails(&["create", "q", d.names()[0]]);
    assert!(said.contains("'p'") || said.contains("\"p\"") || said.contains("pool p"), "{said}");
}

#[test]
fn labels_heal_from_their_copies_and_wrong_members_are_named() {
    let d = Disks::new(3, 256);
    ok(&d.with(&["create", "p"], &[]));
    let other = Disks::new(1, 256);
    ok(&other.with(&["create", "other"], &[]));

    // Any order will do; a missing or foreign member will not.
    ok(&["status", d.names()[2], d.names()[0], d.names()[1]]);
    let said = fails(&["status", d.names()[0], d.names()[1]]);
    assert!(said.contains("missing") && said.contains("disk2"), "{said}");
    let said = fails(&["status", d.names()[0], &d.path("gone")]);
    assert!(said.contains("gone: no such device"), "{said}");
    let said = ok(&["scan", &d.path("gone")]);
    assert!(said.contains("gone: no such device"), "{said}");
    let said = fails(&["status", d.names()[0], d.names()[1], other.names()[0]]);
    assert!(said.contains(other.names()[0]), "{said}");

    // One damaged label is healed from the other; two are refused.
    let [first, second] = labels(&d.paths[0]);
    flip(&d.paths[0], first + 200);
    ok(&d.with(&["status"], &[]));
    ok(&d.with(&["check"], &[]));
    ok(&d.with(&["check", "--repair"], &[]));
    flip(&d.paths[0], second + 200);
    ok(&d.with(&["check", "--repair"], &[]));
    flip(&d.paths[0], first + 200);
    flip(&d.paths[0], second + 200);
    let said = fails(&d.with(&["status"], &[]));
    assert!(said.contains("disk0"), "{said}");
}

#[test]
fn truncated_and_copied_members_are_refused() {
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p"], &[]));
    let copy = d.path("copy");
    fs::copy(&d.paths[1], &copy).unwrap();
    let said = fails(&["status", d.names()[0], d.names()[1], &copy]);
    assert!(said.contains("copy"), "{said}");
    let said = ok(&["scan", d.names()[0], d.names()[1], &copy]);
    assert!(said.contains("COPIES") && !said.contains("INCOMPLETE"), "{said}");
    OpenOptions::new().write(true).open(&d.paths[1]).unwrap().set_len(200 << 20).unwrap();
    let said = fails(&d.with(&["status"], &[]));
    assert!(said.contains("truncated") && said.contains("disk1"), "{said}");
}

#[test]
fn two_nodes_cannot_have_one_slot() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 256, 0);
    c.mount(&["slot=1"]);
    let dir = c.disks.path("second");
    fs::create_dir(&dir).unwrap();
    let said = fails(&c.disks.with(&["mount"], &[&dir, "-o", "slot=1"]));
    assert!(said.contains("slot 1") && !said.contains("NodeId"), "{said}");
    let first = c.node(0).to_str().unwrap().to_owned();
    let said = fails(&c.disks.with(&["mount"], &[&first]));
    assert!(said.contains("mounted there already"), "{said}");
    let said = fails(&c.disks.with(&["mount"], &[&dir, "-o", "slot=900"]));
    assert!(said.contains("900"), "{said}");
    let said = fails(&c.disks.with(&["mount"], &[&dir, "-o", "sloth"]));
    assert!(said.contains("sloth"), "{said}");
    let said = fails(&c.disks.with(&["mount"], &[&c.disks.path("no-such-dir")]));
    assert!(said.contains("no-such-dir"), "{said}");
    c.finish();
}

#[test]
fn a_mounted_pool_is_neither_made_again_nor_checked() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 256, 1);
    fs::write(c.node(0).join("kept"), "kept").unwrap();
    let said = fails(&c.disks.with(&["create", "again", "--force"], &[]));
    assert!(said.contains("use"), "{said}");
    let said = fails(&c.disks.with(&["check"], &[]));
    assert!(said.contains("mounted"), "{said}");
    c.unmount_all();
    let dir = c.mount(&[]);
    assert_eq!(fs::read_to_string(dir.join("kept")).unwrap(), "kept");
    c.finish();
}

/// One damaged directory: it gives EIO, all else goes on, and one repair makes the pool whole.
#[test]
fn damaged_metadata_is_one_inodes_error_and_one_repair_ends_it() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 256, 1);
    fs::create_dir(c.node(0).join("dir")).unwrap();
    fs::write(c.node(0).join("dir/file"), "x").unwrap();
    fs::write(c.node(0).join("other"), "kept").unwrap();
    let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(c.node(0).join("dir")).unwrap());
    c.unmount_all();
    // The pool has one member: a block stands 1 MiB (label area) further on the device.
    flip(&c.disks.paths[0], (1 << 20) + ino * 4096 + 512 + 100);
    let said = fails(&c.disks.with(&["check"], &[]));
    assert!(said.contains(&ino.to_string()), "block {ino} is not named: {said}");
    let dir = c.mount(&[]);
    let error = fs::read_dir(dir.join("dir")).map(|_| ()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    // It is listed, and what does not need it goes on.
    let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().any(|n| n == "dir") && names.iter().any(|n| n == "other"), "{names:?}");
    sh(&format!("ls -l {0} >{0}/new 2>&1 || true", dir.display()));
    assert_eq!(fs::read_to_string(dir.join("other")).unwrap(), "kept");
    let log = fs::read_to_string(format!("{}.log", dir.display())).unwrap();
    assert!(log.contains(&format!("of inode {ino} is damaged")), "{log}");
    assert!(!log.contains("withdraw"), "{log}");
    let said = ok(&["status", dir.to_str().unwrap()]);
    assert!(said.contains(&format!("inode {ino}")) && said.contains("--repair"), "{said}");
    c.unmount_all();
    let repaired = braid(&c.disks.with(&["check"], &["--repair"]));
    let said = String::from_utf8_lossy(&repaired.stdout);
    assert_eq!(repaired.status.code(), Some(1), "{said}");
    assert!(said.contains("removed the name \"dir\""), "{said}");
    assert!(ok(&c.disks.with(&["check"], &[])).contains("clean"));
    let dir = c.mount(&[]);
    // An entry would keep the directory open.
    let lost = fs::read_dir(dir.join("lost+found")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(lost).unwrap(), "x", "the file of the lost directory");
    c.finish();
}

/// A device that the kernel lets nobody write is checked, and mounted for reading; no byte changes.
#[test]
fn write_protected_media_are_checked_and_read() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 128, 1);
    fs::write(c.node(0).join("file"), "kept").unwrap();
    c.unmount_all();
    let before = fs::read(&c.disks.paths[0]).unwrap();
    let Some(device) = Loop::read_only(&c.disks.paths[0]) else { return };
    let dir = c.disks.path("ro");
    fs::create_dir(&dir).unwrap();
    let said = ok(&["check", &device.0]);
    assert!(said.contains("clean"), "{said}");
    let refused = fails(&["mount", &device.0, &dir]);
    assert!(refused.contains("read-only"), "{refused}");
    ok(&["mount", &device.0, &dir, "-o", "ro"]);
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "kept");
    let refused = fs::write(format!("{dir}/new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    common::unmount_idle(dir.as_ref());
    assert!(fs::read(&c.disks.paths[0]).unwrap() == before, "bytes have changed");
    drop(device);
    c.finish();
}

#[test]
fn a_loop_device_with_a_mounted_file_system_is_in_use() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 64);
    let dir = d.path("mnt");
    fs::create_dir(&dir).unwrap();
    sh(&format!("mkfs.ext4 -q -F {}", d.names()[0]));
    let Some(device) = Loop::new(&d.paths[0]) else { return };
    let device = device.0.as_str();
    let Some(_mounted) = Mounted::new(&[device], std::path::Path::new(&dir)) else { return };
    let said = fails(&["create", "p", "--force", device]);
    assert!(said.contains("in use") && said.contains(device), "{said}");
}

#[test]
fn the_root_directory_belongs_to_who_made_the_pool() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 256);
    let tool = d.path("braid");
    fs::copy(env!("CARGO_BIN_EXE_braid"), &tool).unwrap();
    sh(&format!("chmod 755 {} {tool}; chown 1234:4321 {}", d.dir.path().display(), d.names()[0]));
    let made = std::process::Command::new(&tool)
        .args(d.with(&["create", "mine"], &[]))
        .uid(1234)
        .gid(4321)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut c = Cluster { disks: d, nodes: Vec::new() };
    let root = fs::metadata(c.mount(&[])).unwrap();
    assert_eq!((root.uid(), root.gid(), root.mode() & 0o7777), (1234, 4321, 0o755));
    c.finish();
}

#[test]
fn what_is_no_pools_mount_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 1);
    let dir = d.path("other");
    fs::create_dir(&dir).unwrap();
    sh(&format!("mount -t tmpfs other {dir}"));
    let link = d.path("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    for args in [&["unmount", &dir][..], &["unmount", "--lazy", &dir], &["unmount", &link]] {
        let said = fails(args);
        assert!(said.contains("no pool is mounted there"), "{said}");
    }
    // It fails if nothing is mounted there any more.
    sh(&format!("umount {dir}"));
}

#[test]
fn a_log_that_cannot_be_written_is_said_before_the_mount_counts() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 256);
    let dir = d.path("mnt");
    fs::create_dir(&dir).unwrap();
    ok(&d.with(&["create", "p"], &[]));
    for head in
        [&["mount", "-o", "log=/nowhere/at/all"][..], &["mount", "-f", "-o", "log=/nowhere/at/all"]]
    {
        let said = fails(&d.with(head, &[&dir]));
        assert!(said.contains("/nowhere/at/all"), "{said}");
        assert!(!common::is_mounted(std::path::Path::new(&dir)));
    }
}

/// Runs a command whose output nobody reads.
fn unread(args: &[&str]) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
    let out = command.args(args).stdout(writer).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.signal(), Some(libc::SIGPIPE), "braid {args:?}: {:?} {said}", out.status);
    assert!(!said.contains("print"), "braid {args:?}: {said}");
}

#[test]
fn output_that_nobody_reads_ends_a_command_quietly() {
    let d = Disks::new(2, 256);
    unread(&["version"]);
    unread(&d.with(&["create", "p", "--dry-run"], &[]));
    ok(&d.with(&["create", "p", "--mirror", "2"], &[]));
    unread(&d.with(&["status"], &[]));
    unread(&d.with(&["status", "--json"], &[]));
    unread(&d.with(&["label", "dump"], &[]));
    unread(&d.with(&["check"], &[]));
    // What only looks leaves a member's mode as it is.
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&d.paths[0], open.clone()).unwrap();
    ok(&d.with(&["check"], &[]));
    ok(&d.with(&["label", "accept", "-n"], &[]));
    let now = fs::metadata(&d.paths[0]).unwrap().permissions();
    assert_eq!(now.mode() & 0o777, open.mode());
    unread(&["remove", &d.names().join(":"), "--cancel", "--dry-run"]);
    // The node that did it has left.
    let said = ok(&d.with(&["status"], &[]));
    assert!(said.contains("no node has it mounted"), "{said}");
}

#[test]
fn work_is_finished_though_nobody_reads_what_is_said_of_it() {
    let d = Disks::new(2, 256);
    let finished = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let out = command.args(args).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "braid {args:?}: {said}");
        assert!(!said.contains("print"), "braid {args:?}: {said}");
    };
    finished(&d.with(&["create", "p", "--mirror", "2"], &[]));
    finished(&["set", &d.names().join(":"), "comment=kept"]);
    finished(&["remove", &d.names().join(":"), "--cancel", "--json"]);
    let said = ok(&d.with(&["status"], &[]));
    assert!(said.contains("kept") && said.contains("no node has it mounted"), "{said}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_that_says_so() {
    let d = Disks::new(2, 256);
    let full = |args: &[&str]| {
        let stdout = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let out = command.args(args).stdout(stdout).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot be written: No space left on device"), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    };
    full(&["version"]);
    full(&d.with(&["create", "p", "--mirror", "2", "--dry-run"], &[]));
    ok(&d.with(&["create", "p", "--mirror", "2"], &[]));
    full(&d.with(&["status"], &[]));
    full(&d.with(&["check"], &[]));
    full(&["scrub", &d.names().join(":")]);
    // The node that did it has left.
    let said = ok(&d.with(&["status"], &[]));
    assert!(said.contains("no node has it mounted"), "{said}");
}

#[test]
fn a_mounted_directory_is_a_name_of_its_pool() {
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p", "--mirror", "2"], &[]));
    if !can_mount() {
        return;
    }
    let mut c = Cluster { disks: d, nodes: Vec::new() };
    let dir = c.disks.path("here");
    fs::create_dir(&dir).unwrap();
    let said = fails(&["mount", &dir]);
    assert!(said.contains("and then the directory"), "{said}");
    // mount(8) has its options wherever they are.
    ok(&c.disks.with(&["mount"], &["-o", "noatime", &dir]));
    c.nodes.push(dir.clone().into());
    let said = ok(&["status", "--topology", &dir]);
    assert!(said.contains("mirror of 2"), "{said}");
    let said = ok(&["status", "--json", &dir]);
    assert!(said.contains("\"topology\""), "{said}");
    ok(&["fail", &dir, "1"]);
    let said = fails(&["remove", &dir, "1"]);
    assert!(said.contains("braid replace POOL 1 DEVICE") && said.contains("bytes of"), "{said}");
    c.finish();
}

/// A mirror would go on without it, as without one that has failed.
#[test]
fn a_member_that_nobody_can_write_is_refused_and_stays_one() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p", "--mirror", "2"], &[]));
    let dir = d.path("mnt");
    fs::create_dir(&dir).unwrap();
    {
        let Some(device) = Loop::read_only(&d.paths[1]) else { return };
        let both = format!("{}:{}", d.names()[0], device.0);
        for how in [vec!["mount", &both, &dir], vec!["scrub", &both]] {
            let said = fails(&how);
            assert!(said.contains(&device.0) && said.contains("read-only"), "{how:?}: {said}");
        }
        // To read, it serves as well as any.
        ok(&["mount", "-o", "ro", &both, &dir]);
        common::unmount_idle(dir.as_ref());
        assert!(!ok(&["status", &both]).contains("failed"));
    }
    ok(&["scrub", &d.names().join(":")]);
}

/// A node works in `/`, wherever it was mounted from.
#[test]
fn devices_that_were_named_from_where_somebody_stood_are_found_again() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster { disks: Disks::new(2, 256), nodes: Vec::new() };
    ok(&c.disks.with(&["create", "p", "--mirror", "2"], &[]));
    let dir = c.disks.path("mnt");
    fs::create_dir(&dir).unwrap();
    let names: Vec<_> = c.disks.paths.iter().map(|p| p.file_name().unwrap()).collect();
    let mut mount = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
    mount.current_dir(c.disks.paths[0].parent().unwrap());
    let out = mount.arg("mount").args(&names).arg(&dir).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    c.nodes.push(dir.clone().into());
    for path in &c.disks.paths {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(320 << 20).unwrap();
    }
    ok(&["grow", &dir]);
    c.finish();
}

#[test]
fn what_misses_members_is_no_change_that_was_refused() {
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p"], &[]));
    let said = fails(&["status", d.names()[0]]);
    assert!(said.contains("can spare none") && !said.contains("changed"), "{said}");
}

#[test]
fn unmount_names_what_keeps_the_mount() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 1);
    let dir = c.node(0).to_str().unwrap().to_owned();
    let served = common::pid_of(&dir);
    // A mount namespace with a copy of this mount, which later changes elsewhere do not reach. The copies of
    // other tests' mounts go at once.
    let script = "for m in $(awk '/ - fuse.braid /{ print $5 }' /proc/self/mountinfo); do
                      test $m = $0 || umount -l $m
                  done; echo ready; exec sleep 1000";
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, &dir])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]);
    let asked = std::time::Instant::now();
    let unmounted = braid(&["unmount", &dir]);
    let told_after = asked.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    ready.unwrap();
    assert!(!unmounted.status.success());
    let said = String::from_utf8(unmounted.stderr).unwrap();
    let named = format!("process {} (sleep) has it mounted on {dir}", child.id());
    assert!(said.contains(&named), "{said}");
    assert!(told_after < std::time::Duration::from_secs(20), "{told_after:?}");
    common::wait_until("the node has left", || rustix::process::test_kill_process(served).is_err());
    let said = ok(&c.disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// A loop device over a file on which a node lives is that file.
#[test]
fn loop_devices_over_parts_of_a_file_are_devices_unless_they_overlap() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    fs::File::create(&file).unwrap().set_len(256 << 20).unwrap();
    let half = 128 << 20;
    let parts = [(0, half), (half, half), (half - 4096, half)];
    let parts = parts.map(|(at, len)| Loop::part(&file, at, len));
    let [Some(a), Some(b), Some(across)] = &parts else {
        return braid_testkit::skip("no loop devices");
    };
    let said = fails(&["create", "halves", &a.0, &across.0]);
    assert!(said.contains("same device"), "{said}");
    ok(&["create", "halves", &a.0, &b.0]);
}

/// Whoever could open a member's file only for reading could take kernel locks on it, and hold nodes up.
#[test]
fn files_that_are_members_are_closed_to_other_users() {
    let open_to_all = fs::Permissions::from_mode(0o646);
    let modes = |disks: &Disks| {
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        disks.paths.iter().map(mode).collect::<Vec<_>>()
    };
    let disks = Disks::new(2, 128);
    for path in &disks.paths {
        fs::set_permissions(path, open_to_all.clone()).unwrap();
    }
    ok(&disks.with(&["scan"], &[]));
    assert_eq!(modes(&disks), [0o646; 2]);
    let made = braid(&disks.with(&["create", "closed"], &["--mirror", "2"]));
    let said = String::from_utf8(made.stderr).unwrap();
    assert!(made.status.success() && said.contains("0640"), "{said}");
    assert_eq!(modes(&disks), [0o640; 2]);
    if !can_mount() {
        return;
    }
    fs::set_permissions(&disks.paths[1], open_to_all).unwrap();
    let dir = disks.path("mnt");
    fs::create_dir(&dir).unwrap();
    ok(&disks.with(&["mount"], &[&dir]));
    assert_eq!(modes(&disks), [0o640; 2]);
    // Nor may they ask the node, or unmount it; they are told whose it is.
    common::sh(&format!("chmod 755 {}", disks.path("")));
    let other = |words: &str| {
        let said = common::sh(&format!(
            "exec 9<{}; setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/9 {words} 2>&1 || true",
            env!("CARGO_BIN_EXE_braid")
        ));
        assert!(said.contains("mounted by another user") && said.contains(&dir), "{said}");
    };
    other("status");
    other(&format!("unmount {dir}"));
    assert!(common::is_mounted(std::path::Path::new(&dir)));
    common::unmount_idle(std::path::Path::new(&dir));
}

#[test]
fn a_loop_device_over_a_file_that_a_node_uses_is_in_use() {
    if !can_mount() {
        return;
    }
    for layout in [&["--mirror", "2"][..], &[]] {
        let c = Cluster::of(Disks::new(2, 128), 1, layout);
        fs::write(c.node(0).join("kept"), "kept").unwrap();
        let node = c.node(0).to_str().unwrap();
        for file in &c.disks.paths {
            let Some(device) = Loop::new(file) else {
                return braid_testkit::skip("no loop devices");
            };
            let mut all = vec![
                vec!["create", "--force", "over", &device.0],
                vec!["add", "--force", node, &device.0],
            ];
            if !layout.is_empty() {
                all.push(vec!["spare", "--force", node, &device.0]);
            }
            for args in all {
                let said = fails(&args);
                assert!(said.contains(file.to_str().unwrap()), "{args:?}: {said}");
            }
        }
        assert_eq!(fs::read_to_string(c.node(0).join("kept")).unwrap(), "kept");
        c.finish();
    }
}

/// A shell with these limits mounts a pool of one disk: its exit status, and what is said.
fn mount_limited(limits: &str, disk: &str, dir: &str) -> (Option<i32>, String) {
    let braid = env!("CARGO_BIN_EXE_braid");
    let script = format!("ulimit {limits} && exec {braid} mount {disk} {dir}");
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn limits_of_a_shell_are_lifted_and_those_that_would_end_a_node_are_refused() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 256);
    ok(&d.with(&["create", "p"], &[]));
    let (disk, dir) = (d.names()[0], d.path("dir"));
    fs::create_dir(&dir).unwrap();
    for (limits, name) in [
        ("-v 400000", "-v"),
        ("-d 400000", "-d"),
        ("-t 3600", "-t"),
        ("-n 100", "-n"),
        ("-f 100000", "-f"),
    ] {
        let (code, said) = mount_limited(limits, disk, &dir);
        assert_eq!(code, Some(1), "{limits}: {said}");
        assert!(said.contains(&format!("(ulimit {name})")), "{limits}: {said}");
        assert!(!said.contains("panic"), "{limits}: {said}");
    }
    // What a process may lift itself, and a small stack that it may not.
    for limits in ["-S -v 400000 -d 400000 -t 3600 -n 100 -f 100000 -s 64", "-s 128"] {
        let (code, said) = mount_limited(limits, disk, &dir);
        assert_eq!(code, Some(0), "{limits}: {said}");
        fs::write(format!("{dir}/f"), vec![7; 120 << 20]).unwrap();
        fs::File::open(format!("{dir}/f")).unwrap().sync_all().unwrap();
        fs::remove_file(format!("{dir}/f")).unwrap();
        ok(&["unmount", &dir]);
    }
    assert!(ok(&d.with(&["check"], &[])).contains("clean"));
}
