//! A node is killed, and what it left behind is damaged: the others go on, say what it is, and a
//! repair makes the pool whole.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use braid_format::journal::RawTxHeader;
use braid_format::node::RawSlot;
use braid_format::superblock::RawSuperblock;
use common::{Cluster, Disks, braid, can_mount, ok, wait_until};
use zerocopy::FromBytes;

/// Where a pool's data begins on its only member.
const DATA: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const LOCK_SECTOR: u64 = 512;

fn read(disk: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fs::File::open(disk).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}
fn flip(disk: &Path, at: u64) {
    let byte = read(disk, at, 1)[0] ^ 0x10;
    OpenOptions::new().write(true).open(disk).unwrap().write_all_at(&[byte], at).unwrap();
}
fn superblock(disk: &Path) -> RawSuperblock {
    let bytes = read(disk, DATA + LOCK_SECTOR, size_of::<RawSuperblock>());
    RawSuperblock::read_from_bytes(&bytes).unwrap()
}
/// Flips a bit in block `n` of node 0's private blocks.
fn flip_private(disk: &Path, n: u64) {
    let block = superblock(disk).node_area.get() + n;
    flip(disk, DATA + block * BLOCK + LOCK_SECTOR + 100);
}
/// Flips a bit in the first record of node 0's journal.
fn flip_record(disk: &Path) {
    let sb = superblock(disk);
    let ring = DATA + sb.journal_area.get() * BLOCK;
    let len = usize::try_from(sb.journal_blocks.get() * BLOCK).unwrap();
    let bytes = read(disk, ring, len);
    let magic = RawTxHeader::MAGIC.to_le_bytes();
    let first = bytes.chunks(512).zip(0_u64..).find(|(s, _)| s.starts_with(&magic)).unwrap().1;
    flip(disk, ring + first * 512 + 1000);
}
/// Flips a bit in the record of a slot.
fn flip_slot(disk: &Path, number: u16) {
    let all = fs::read(disk).unwrap();
    let magic = RawSlot::MAGIC.to_le_bytes();
    let is_it = |sector: &&[u8]| {
        let slot = RawSlot::read_from_prefix(sector).ok().filter(|_| sector.starts_with(&magic));
        slot.is_some_and(|(slot, _)| slot.slot.get() == number)
    };
    let at = all.chunks(512).zip(0_u64..).find(|(s, _)| is_it(s)).unwrap().1 * 512;
    flip(disk, at + 200);
}

fn pool_status(c: &Cluster) -> serde_json::Value {
    serde_json::from_str(&ok(&c.disks.with(&["status", "--json"], &[]))).unwrap()
}
/// What the status says of slot 0's damage.
fn damage(c: &Cluster) -> Option<serde_json::Value> {
    let status = pool_status(c);
    let node = status["pool"]["nodes"].as_array().unwrap().iter().find(|n| n["slot"] == 0)?;
    (!node["damage"].is_null()).then(|| node["damage"].clone())
}

/// Kills node 0 with `spoil` done to what it has on the device; node 1 must go on.
fn killed_and_spoiled(spoil: fn(&Path), structure: &str, lost: bool) {
    let mut c = Cluster::new(1, 512, 2);
    let [a, b] = [0, 1].map(|n| c.node(n).to_owned());
    fs::create_dir(a.join("dir")).unwrap();
    for n in 0..5 {
        let file = fs::File::create(a.join(format!("dir/{n}"))).unwrap();
        file.write_all_at(b"kept", 0).unwrap();
        file.sync_all().unwrap();
    }
    fs::write(b.join("other"), "x").unwrap();
    spoil(&c.disks.paths[0]);
    c.kill(0);
    wait_until("the damage is known", || damage(&c).is_some_and(|d| d["structure"] == structure));
    let said = ok(&c.disks.with(&["status"], &[]));
    assert!(said.contains(structure) && said.contains("braid check --repair"), "{said}");

    // The other node lives and goes on, with what the dead one held as promised.
    fs::write(b.join("other"), "y").unwrap();
    fs::create_dir(b.join("new")).unwrap();
    fs::write(b.join("new/file"), vec![7; 100_000]).unwrap();
    let held = fs::read_to_string(b.join("dir/3"));
    match held {
        Ok(text) => assert!(!lost && text == "kept"),
        Err(e) => assert!(lost && e.raw_os_error() == Some(libc::EIO), "{e}"),
    }
    // So does one that comes now, in another slot.
    let third = c.mount(&[]);
    assert_eq!(fs::read_to_string(third.join("other")).unwrap(), "y");
    assert!(damage(&c).is_some(), "its slot was given away");
    let log = fs::read_to_string(format!("{}.log", b.display())).unwrap();
    assert_eq!(log.matches("a dead node cannot be recovered").count(), 1, "{log}");
    assert!(!log.contains("withdraw"), "{log}");

    c.detach(0);
    c.unmount_all();
    let named = braid(&c.disks.with(&["check"], &[]));
    assert_eq!(named.status.code(), Some(4), "{named:?}");
    braid(&c.disks.with(&["check"], &["--repair"]));
    let said = ok(&c.disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
    assert_eq!(damage(&c), None);
    let again = c.mount(&["slot=0"]);
    assert_eq!(fs::read_to_string(again.join("other")).unwrap(), "y");
    assert_eq!(fs::read(again.join("new/file")).unwrap(), vec![7; 100_000]);
    if !lost {
        assert_eq!(fs::read_to_string(again.join("dir/3")).unwrap(), "kept");
    }
    fs::write(again.join("after"), "z").unwrap();
    c.finish();
}

#[test]
fn a_window() {
    if can_mount() {
        let spoil = |disk: &Path| flip_private(disk, RawSuperblock::AREA_WINDOWS + 15);
        killed_and_spoiled(spoil, "allocation window", false);
    }
}

#[test]
fn a_free_log() {
    if can_mount() {
        let spoil = |disk: &Path| flip_private(disk, RawSuperblock::AREA_FREELOG + 15);
        killed_and_spoiled(spoil, "free log", false);
    }
}

#[test]
fn an_orphan_list() {
    if can_mount() {
        let spoil = |disk: &Path| flip_private(disk, RawSuperblock::AREA_ORPHANS + 3);
        killed_and_spoiled(spoil, "orphan list", false);
    }
}

#[test]
fn both_journal_headers() {
    if can_mount() {
        let spoil = |disk: &Path| {
            for copy in 0..2 {
                flip_private(disk, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
            }
        };
        killed_and_spoiled(spoil, "journal header", true);
    }
}

#[test]
fn a_record_in_the_middle_of_the_journal() {
    if can_mount() {
        killed_and_spoiled(flip_record, "journal", true);
    }
}

/// The slot of a node that has left cleanly: locks still name that node, and nothing says any more that it
/// is over.
#[test]
fn a_slot_that_cannot_be_read_is_named_as_what_is_waited_for() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 512, 2);
    fs::create_dir(c.node(1).join("dir")).unwrap();
    fs::write(c.node(1).join("dir/file"), "kept").unwrap();
    c.unmount_all();
    let disk = c.disks.paths[0].clone();
    flip_slot(&disk, 1);

    let node = c.mount(&[]);
    let dir = node.to_str().unwrap();
    let mut waiting = Command::new("cat").arg(node.join("dir/file")).spawn().unwrap();
    let repair = "run `braid check --repair` after unmounting all nodes";
    wait_until("it is named", || {
        let said = ok(&["status", dir]);
        said.contains("of node 1 have been waited for") && said.contains(repair)
    });
    let said = ok(&["status", dir]);
    assert!(!said.contains("takes note") && !said.contains("()"), "{said}");
    let refused = common::fails(&["fence", dir, "1", "--confirm"]);
    assert!(refused.contains("cannot be read") && refused.contains(repair), "{refused}");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    c.unmount_all();
    braid(&c.disks.with(&["check"], &["--repair"]));
    let again = c.mount(&[]);
    assert_eq!(fs::read_to_string(again.join("dir/file")).unwrap(), "kept");
    c.finish();
}

/// The record of a lock that no node has just now, with the counters below it.
fn flip_counters_lock(disk: &Path) {
    let named = superblock(disk).named_start.get() + RawSuperblock::NAMED_COUNTERS;
    flip(disk, DATA + named * BLOCK + 40);
}

#[test]
fn a_node_leaves_in_order_though_the_lock_of_the_counters_is_damaged_and_says_what_it_leaves() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 512, 1);
    let (node, disk) = (c.node(0).to_owned(), c.disks.paths[0].clone());
    for n in 0..20 {
        fs::write(node.join(format!("file{n}")), vec![7; 50_000]).unwrap();
    }
    flip_counters_lock(&disk);
    let out = braid(&["unmount", node.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    for word in ["left for later", "record of lock", "braid check --repair"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
    let log = fs::read_to_string(format!("{}.log", node.display())).unwrap();
    assert!(!log.contains("withdraw"), "{log}");
    let status = pool_status(&c);
    assert_eq!(status["pool"]["nodes"].as_array().unwrap().len(), 0, "{status}");
    c.nodes.clear();

    // A pool in this state can be used, and what is to be counted comes with the slot.
    let again = c.mount(&["slot=0"]);
    assert_eq!(fs::read(again.join("file7")).unwrap().len(), 50_000);
    fs::write(again.join("more"), "x").unwrap();
    let out = braid(&["unmount", "--json", again.to_str().unwrap()]);
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let left = answer["left_for_later"].as_array().unwrap();
    assert!(out.status.success() && left.len() == 1, "{answer}");
    c.nodes.clear();
    braid(&c.disks.with(&["check"], &["--repair"]));
    let said = ok(&c.disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
    let again = c.mount(&[]);
    assert_eq!(fs::read_to_string(again.join("more")).unwrap(), "x");
    let out = braid(&["unmount", again.to_str().unwrap()]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    c.nodes.clear();
    c.finish();
}

/// What such a node leaves, another one finds at its recovery.
#[test]
fn a_node_that_died_is_recovered_though_the_lock_of_the_counters_is_damaged() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(1, 512, 2);
    let [a, b] = [0, 1].map(|n| c.node(n).to_owned());
    fs::write(a.join("file"), vec![7; 50_000]).unwrap();
    fs::File::open(a.join("file")).unwrap().sync_all().unwrap();
    flip_counters_lock(&c.disks.paths[0]);
    c.kill(0);
    wait_until("its file is there", || fs::read(b.join("file")).is_ok_and(|f| f.len() == 50_000));
    fs::write(b.join("other"), "y").unwrap();
    c.detach(0);
    c.unmount_all();
    let third = c.mount(&[]);
    assert_eq!(fs::read(third.join("file")).unwrap().len(), 50_000);
    c.unmount_all();
    braid(&c.disks.with(&["check"], &["--repair"]));
    let said = ok(&c.disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
    let again = c.mount(&[]);
    assert_eq!(fs::read_to_string(again.join("other")).unwrap(), "y");
    c.finish();
}

/// A slot that nobody has ever used: its damage keeps no dead node from being recovered.
#[test]
fn damage_of_an_unused_slot_is_no_obstacle() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::of(Disks::new(1, 300), 2, &["--nodes", "4"]);
    let [a, b] = [0, 1].map(|n| c.node(n).to_owned());
    fs::write(a.join("file"), "kept").unwrap();
    fs::File::open(a.join("file")).unwrap().sync_all().unwrap();
    flip_slot(&c.disks.paths[0], 3);
    wait_until("the damage is seen", || {
        ok(&["status", b.to_str().unwrap()]).contains("check --repair")
    });
    c.kill(0);
    let read = Command::new("timeout").arg("60").arg("cat").arg(b.join("file")).output().unwrap();
    assert_eq!(read.stdout, b"kept", "{read:?}");
    fs::write(b.join("file"), "new").unwrap();
    c.detach(0);
    c.unmount_all();
    braid(&c.disks.with(&["check"], &["--repair"]));
    c.finish();
}
