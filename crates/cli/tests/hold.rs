//! Members of a mounted pool are held against programs that write whole devices.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use common::device::Loop;
use common::{Disks, braid, can_mount, fails, ok, unmount_idle, wait_until};

/// Programs that open a device exclusively before they write it, whatever is on it.
const WRITERS: [&[&str]; 4] =
    [&["mkfs.ext4", "-qF"], &["mkfs.xfs", "-qf"], &["wipefs", "-a"], &["blkdiscard"]];

/// Whether some program could claim the device now. Changes nothing.
fn is_free(device: &str) -> bool {
    let flags = libc::O_EXCL;
    File::options().read(true).custom_flags(flags).open(device).is_ok()
}

/// No program writes any of them.
fn refused(loops: &[Loop]) {
    for Loop(device) in loops {
        for words in WRITERS {
            let out = Command::new(words[0]).args(&words[1..]).arg(device).output().unwrap();
            assert!(!out.status.success(), "{words:?} {device} wrote a member: {out:?}");
        }
    }
}

#[test]
fn other_programs_are_kept_from_members_whichever_node_of_the_host_dies() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(4, 320);
    let loops: Option<Vec<Loop>> = disks.paths.iter().map(|p| Loop::new(p)).collect();
    let Some(mut loops) = loops else { return braid_testkit::skip("no loop devices") };
    let [spare, new] = [loops.pop().unwrap(), loops.pop().unwrap()];
    let names = [loops[0].0.as_str(), &loops[1].0];
    ok(&["create", "held", "--mirror", "2", names[0], names[1]]);
    let dirs = ["a", "b"].map(|n| disks.path(n));
    for dir in &dirs {
        std::fs::create_dir(dir).unwrap();
        ok(&["mount", names[0], names[1], dir, "-o", &format!("log={dir}.log")]);
    }
    let mut file = File::create(format!("{}/file", dirs[0])).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    drop(file);
    refused(&loops);
    // Braid's own commands name who has them, or go on as before.
    let said = fails(&["create", "other", names[0], "--force"]);
    assert!(said.contains("in use: node") && said.contains("Braid pool"), "{said}");
    let said = braid(&["check", names[0], names[1]]);
    assert_eq!(said.status.code(), Some(8), "{said:?}");
    ok(&["spare", &dirs[0], &spare.0]);
    wait_until("a new member is held", || !is_free(&spare.0));
    ok(&["remove", &dirs[0], &spare.0]);
    wait_until("what is no member is let go", || is_free(&spare.0));
    ok(&["replace", &dirs[1], names[1], &new.0]);
    wait_until("what took a member's place is held", || !is_free(&new.0));

    // The first node was mounted first: it holds them.
    let first = common::pid_of(&dirs[0]);
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    wait_until("the node is dead", || std::fs::read(format!("{}/file", dirs[0])).is_err());
    let held = [loops[0].0.as_str(), &new.0];
    wait_until("the other node holds them", || held.iter().all(|device| !is_free(device)));
    loops.remove(1);
    loops.push(new);
    refused(&loops);
    braid(&["unmount", "--lazy", &dirs[0]]);
    assert_eq!(std::fs::read_to_string(format!("{}/file", dirs[1])).unwrap(), "kept");
    unmount_idle(dirs[1].as_ref());
    for Loop(device) in &loops {
        assert!(is_free(device), "{device} is held and nothing is mounted");
    }
    assert!(ok(&["check", &loops[0].0, &loops[1].0]).contains("clean"));
}
