//! How mounts begin and end.

#![allow(clippy::pedantic, clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use braid_fs::Errno;
use braid_fuse::{FuseError, FuseOptions, Session, unmount};
use braid_testkit::wait_until;
use common::memfs::{MemFs, Shared};
use common::{Mounted, PATIENCE, can_mount, sh, unmount_idle};

#[test]
fn busy_mounts_stay_until_detached() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new();
    let open = File::create(m.path("f")).unwrap();
    let refused = unmount(m.dir(), false).unwrap_err();
    assert!(matches!(refused, FuseError::Unmount { errno: Errno::BUSY, .. }), "{refused}");
    assert!(refused.to_string().contains("fuser"), "{refused}");
    assert!(m.path("f").exists());
    unmount(m.dir(), true).unwrap();
    assert!(!m.path("f").exists(), "the name is gone at once");
    std::os::unix::fs::FileExt::write_all_at(&open, b"still served", 0).unwrap();
    drop(open);
}

#[test]
fn a_killed_server_leaves_errors_and_an_unmountable_mount() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path());
    fs::write(dir.path().join("f"), "x").unwrap();
    let open = File::open(dir.path().join("f")).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let error = fs::read_dir(dir.path()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    assert!(open.sync_all().is_err());
    drop(open);
    unmount_idle(dir.path()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// This test program once more, as a server of its own.
fn start_server(dir: &Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "serve_until_killed"])
        .env("BRAID_FUSE_TEST_DIR", dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the child mounts", || {
        sh(Path::new("/"), "cat /proc/mounts").contains(dir.to_str().unwrap())
    });
    child
}

#[test]
#[ignore = "the server of another test"]
fn serve_until_killed() {
    let Some(dir) = std::env::var_os("BRAID_FUSE_TEST_DIR") else { return };
    let session = Session::mount("killed", FuseOptions::new(dir.into())).unwrap();
    session.serve(Shared(MemFs::new())).unwrap();
}

#[test]
fn by_fusermount() {
    if !can_mount() {
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        braid_testkit::skip("no fusermount3 (Debian package fuse3)");
        return;
    }
    let m = Mounted::with(|o| {
        o.use_helper = true;
        o.nosuid = true;
    });
    sh(m.dir(), "echo hello > f; grep -q hello f");
    let table = sh(Path::new("/"), "cat /proc/mounts");
    let line = table.lines().find(|l| l.contains(m.dir().to_str().unwrap())).unwrap();
    assert!(line.starts_with("test ") && line.contains(" fuse.braid "), "{line}");
    assert!(line.contains("nosuid") && line.contains("default_permissions"), "{line}");
    m.end().unwrap();
}

#[test]
fn the_mount_table_and_read_ahead() {
    if !can_mount() {
        return;
    }
    let m = Mounted::with(|o| o.read_only = true);
    let line = sh(Path::new("/"), &format!("grep {} /proc/mounts", m.dir().display()));
    assert!(line.starts_with("test ") && line.contains(" fuse.braid ro,"), "{line}");
    assert!(line.contains("allow_other"), "{line}");
    assert!(File::create(m.path("f")).is_err());
    let ahead = sh(m.dir(), "cat /sys/class/bdi/$(mountpoint -d .)/read_ahead_kb");
    assert_eq!(ahead.trim(), "8192");
    m.end().unwrap();
}

#[test]
fn sessions_given_up_leave_nothing() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = Session::mount("given up", FuseOptions::new(dir.path().into())).unwrap();
    session.abort();
    let start = Instant::now();
    fs::write(dir.path().join("f"), "below").unwrap();
    assert!(start.elapsed() < PATIENCE);
    let missing = Session::mount("x", FuseOptions::new(dir.path().join("missing")));
    assert!(matches!(missing, Err(FuseError::MountPoint { errno: Errno::NOENT, .. })));
}
