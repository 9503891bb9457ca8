//! /etc/fstab: mount(8) and umount(8) of this machine, a private fstab, and the helpers' names as
//! links to the binary. They look for helpers in /sbin only, so it all happens in a mount namespace
//! of its own, where a directory with those links stands in the place of /sbin.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use common::{Disks, can_mount, ok};

/// Links by all four names in `disks`' directory; a mount point; the devices' list in one word.
fn prepare(disks: &Disks) -> (String, String) {
    let sbin = disks.dir.path().join("sbin");
    fs::create_dir(&sbin).unwrap();
    for name in ["mount.braid", "mount.fuse.braid", "umount.braid", "umount.fuse.braid"] {
        symlink(env!("CARGO_BIN_EXE_braid"), sbin.join(name)).unwrap();
    }
    fs::create_dir(disks.dir.path().join("mnt")).unwrap();
    (disks.path("mnt"), disks.names().join(":"))
}

/// Runs a script in the namespace; `$fstab` and `$mnt` are set. What it leaves mounted is unmounted,
/// and so its server ends.
fn in_namespace(disks: &Disks, fstab: &str, script: &str) -> Output {
    fs::write(disks.path("fstab"), fstab).unwrap();
    let whole = format!(
        "mount --make-rprivate /; mount --bind '{0}/sbin' /sbin
         mnt='{0}/mnt' fstab='{0}/fstab'
         cleanup() {{ mountpoint -q \"$mnt\" && umount -l \"$mnt\" || true; }}
         trap cleanup EXIT
         times_mounted() {{ grep -c \" $mnt \" /proc/self/mounts || true; }}
         {script}",
        disks.dir.path().display()
    );
    Command::new("unshare")
        .args(["--mount", "bash", "-euo", "pipefail", "-c", &whole])
        .env("BRAID_DEVICES", disks.dir.path())
        .output()
        .unwrap()
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn succeeds(disks: &Disks, fstab: &str, script: &str) -> String {
    let out = in_namespace(disks, fstab, script);
    assert!(out.status.success(), "{}", said(&out));
    said(&out)
}

/// Servers of mounts on `dir`, whatever namespace they are in.
fn servers_of(dir: &str) -> usize {
    let status: serde_json::Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    status["mounts"].as_array().unwrap().iter().filter(|m| m["mount_point"] == dir).count()
}

#[test]
fn by_the_pools_name_with_the_options_that_fstabs_have() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "scratch"], &[]));
    let (mnt, _) = prepare(&d);
    let options = "rw,noauto,_netdev,nofail,x-systemd.automount,x-systemd.requires=network.target,\
                   user,nosuid,nodev,relatime,lazytime,comment=x,dirty=16M,slot=1";
    for kind in ["braid", "fuse.braid"] {
        let fstab = format!("scratch {mnt} {kind} {options} 0 0\n");
        let found = succeeds(
            &d,
            &fstab,
            r#"mount --fstab "$fstab" "$mnt"
               grep " $mnt " /proc/self/mounts
               [ "$(findmnt -no SOURCE "$mnt")" = scratch ]
               date >"$mnt/file-$(times_mounted)"
               umount "$mnt""#,
        );
        assert!(
            found.contains("fuse.braid") && found.contains("nosuid,nodev,noexec,noatime"),
            "{found}"
        );
        // umount(8) waited: the node has left, so the check may look.
        assert_eq!(servers_of(&mnt), 0);
        assert!(ok(&d.with(&["check"], &[])).contains("clean"));
    }
    succeeds(
        &d,
        &format!("scratch {mnt} braid defaults,ro 0 0\n"),
        r#"mount --fstab "$fstab" "$mnt"
           [ -s "$mnt/file-1" ]
           if touch "$mnt/no" 2>/dev/null; then exit 1; fi
           umount "$mnt""#,
    );
}

#[test]
fn by_a_list_of_devices_and_mount_a_only_once() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(3, 256);
    ok(&d.with(&["create", "scratch"], &[]));
    let (mnt, list) = prepare(&d);
    succeeds(
        &d,
        &format!("{list} {mnt} braid defaults,_netdev 0 0\n"),
        r#"mount --fstab "$fstab" -a
           [ "$(times_mounted)" = 1 ]
           mount --fstab "$fstab" -a
           [ "$(times_mounted)" = 1 ]
           echo kept >"$mnt/kept"
           umount "$mnt""#,
    );
    assert_eq!(servers_of(&mnt), 0);
    // The pool's name, where a directory has the same.
    succeeds(
        &d,
        "",
        r#"cd "$(dirname "$mnt")"; mkdir scratch
           /sbin/mount.braid scratch "$mnt"
           [ "$(cat "$mnt/kept")" = kept ]
           umount "$mnt""#,
    );
    // A name that is not there: said so; with nofail the boot goes on all the same.
    let line = |options: &str| format!("nowhere {mnt} braid {options} 0 0\n");
    let out = in_namespace(&d, &line("defaults"), r#"mount --fstab "$fstab" "$mnt""#);
    assert!(!out.status.success() && said(&out).contains("nowhere"), "{}", said(&out));
    // An option that nobody knows is refused, or with -s left out.
    let fstab = format!("scratch {mnt} braid defaults,sloth 0 0\n");
    let out = in_namespace(&d, &fstab, r#"mount --fstab "$fstab" "$mnt""#);
    assert!(!out.status.success() && said(&out).contains("sloth"), "{}", said(&out));
    succeeds(
        &d,
        &fstab,
        r#"mount -s --fstab "$fstab" "$mnt"
           [ "$(cat "$mnt/kept")" = kept ]
           umount "$mnt""#,
    );
    let out = in_namespace(&d, &fstab, r#"mount -f -s --fstab "$fstab" "$mnt"; times_mounted"#);
    assert_eq!(said(&out).trim(), "0");
}

/// By mount(8): nothing to change, what the kernel can change, and what nobody can.
#[test]
fn a_remount_changes_what_can_change_and_names_what_cannot() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 256);
    ok(&d.with(&["create", "scratch"], &[]));
    let (mnt, _) = prepare(&d);
    let fstab = format!("scratch {mnt} braid defaults,_netdev,commit=7 0 0\n");
    succeeds(
        &d,
        &fstab,
        r#"mount --fstab "$fstab" "$mnt"; echo one >"$mnt/f"
           options() { findmnt -n -o OPTIONS "$mnt"; }
           refused() { # WORD COMMAND...: it fails, and says that
               if why=$("${@:2}" 2>&1); then echo "$*: done"; exit 1; fi
               case $why in *"$1"*) ;; *) echo "$*: $why"; exit 1 ;; esac
           }
           before=$(options)
           mount --fstab "$fstab" -o remount "$mnt"
           mount --fstab "$fstab" -o remount,commit=7,rw "$mnt"
           mount -o remount "$mnt"
           [ "$(options)" = "$before" ]
           mount --fstab "$fstab" -o remount,ro,nosuid "$mnt"
           case $(options) in ro,nosuid*) ;; *) options; exit 1 ;; esac
           if echo two >"$mnt/f" 2>/dev/null; then exit 1; fi
           [ "$(cat "$mnt/f")" = one ]
           mount --fstab "$fstab" -o remount,rw,suid "$mnt"
           [ "$(options)" = "$before" ]
           echo two >"$mnt/f"
           refused "option commit=8 cannot change" mount --fstab "$fstab" -o remount,commit=8,ro "$mnt"
           refused "option cache=8M cannot change" /sbin/mount.braid scratch "$mnt" -o remount,cache=8M
           refused "unknown mount option 'sloth'" /sbin/mount.braid scratch "$mnt" -o remount,sloth
           /sbin/mount.braid scratch "$mnt" -s -o remount,sloth
           refused "not what other names" /sbin/mount.braid other "$mnt" -o remount,ro
           refused "not what" /sbin/mount.braid LABEL=other "$mnt" -o remount,ro
           [ "$(options)" = "$before" ]
           /sbin/mount.braid LABEL=scratch "$mnt" -o remount,ro -f
           [ "$(options)" = "$before" ]
           exec 8>"$mnt/g"
           refused "files open there for writing" mount --fstab "$fstab" -o remount,ro "$mnt"
           exec 8>&-
           umount "$mnt"
           refused "nothing can be remounted" /sbin/mount.braid scratch "$mnt" -o remount
           mount --fstab "$fstab" -o ro "$mnt"
           refused "option rw cannot change" mount --fstab "$fstab" -o remount,rw "$mnt"
           umount "$mnt""#,
    );
}

#[test]
fn umount_without_the_helper_ends_the_server_too() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 256);
    ok(&d.with(&["create", "scratch"], &[]));
    let (mnt, list) = prepare(&d);
    succeeds(
        &d,
        "",
        &format!(
            r#"/sbin/mount.braid '{list}' "$mnt" -o rw,nosuid
               [ "$(times_mounted)" = 1 ]
               echo kept >"$mnt/kept"
               umount -i "$mnt""#
        ),
    );
    common::wait_until("the server has left", || servers_of(&mnt) == 0);
    assert!(ok(&d.with(&["check"], &[])).contains("clean"));
    assert!(!Path::new(&mnt).join("kept").exists());
}
