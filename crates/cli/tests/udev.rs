//! The rule for udev, as udev itself reads it: what it says of members, and that it leaves other devices alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::device::Loop;
use common::{Disks, can_mount, ok, sh};

/// What udev would do for a device by its own rules and ours, in a mount namespace where ours calls the program that is
/// tested. Nothing is done on this host. `None`: udev cannot be asked here.
fn asked(d: &Disks, device: &str) -> Option<String> {
    let rule = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/udev/61-braid.rules");
    let rule = std::fs::read_to_string(rule).unwrap();
    let own = rule.replace("/usr/bin/braid ", &format!("{} ", env!("CARGO_BIN_EXE_braid")));
    assert_ne!(rule, own, "the rule calls no program");
    let rules = d.path("61-braid.rules");
    std::fs::write(&rules, own).unwrap();
    let name = Path::new(device).file_name().unwrap().to_str().unwrap();
    let script = format!(
        "mount -t tmpfs none /etc/udev; mkdir /etc/udev/rules.d; cp {rules} /etc/udev/rules.d/
         mkdir -p /run/udev; mount -t tmpfs none /run/udev
         timeout 60 udevadm test --action=add /sys/class/block/{name} 2>&1"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-euc", &script]);
    let out = command.output().ok().filter(|out| out.status.success())?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    said.contains("DEVNAME=").then_some(said)
}

/// The value that udev would keep.
fn property<'a>(said: &'a str, key: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn udev_knows_members_by_the_rule_and_nothing_else() {
    if !can_mount() {
        return;
    }
    if Command::new("udevadm").arg("--version").output().is_err() {
        return braid_testkit::skip("udev is not installed");
    }
    let d = Disks::new(3, 128);
    let loops: Option<Vec<Loop>> = d.paths.iter().map(|path| Loop::new(path)).collect();
    let Some(loops) = loops else { return braid_testkit::skip("no loop devices") };
    let [member, ext4, blank] = [0, 1, 2].map(|n| loops[n].0.as_str());
    ok(&["create", "a safe", member]);
    sh(&format!("mkfs.ext4 -qF {ext4}; dd if=/dev/zero of={blank} bs=1M count=2 status=none"));
    let Some(said) = asked(&d, member) else {
        return braid_testkit::skip("udevadm test says nothing of a device here");
    };
    let label: serde_json::Value =
        serde_json::from_str(&ok(&["status", "--json", member])).unwrap();
    let uuid = label["pool"]["uuid"].as_str().unwrap_or_else(|| panic!("{label}"));
    let of_member = |key| property(&said, key);
    assert_eq!(of_member("ID_FS_TYPE"), Some("braid_member"), "{said}");
    assert_eq!(of_member("ID_FS_USAGE"), Some("raid"), "{said}");
    assert_eq!(of_member("ID_FS_LABEL"), Some("a_safe"), "{said}");
    assert_eq!(of_member("ID_FS_UUID"), Some(uuid), "{said}");
    let links = of_member("DEVLINKS").unwrap();
    for link in ["/dev/disk/by-label/a\\x20safe".to_owned(), format!("/dev/disk/by-uuid/{uuid}")] {
        assert!(links.split(' ').any(|own| own == link), "{link} is not among {links}");
    }
    let of_ext4 = asked(&d, ext4).unwrap();
    assert_eq!(property(&of_ext4, "ID_FS_TYPE"), Some("ext4"), "{of_ext4}");
    let of_blank = asked(&d, blank).unwrap();
    assert_eq!(property(&of_blank, "ID_FS_TYPE"), None, "{of_blank}");
}
