//! Pools on files whose blocks are shared with copies of them (`cp --reflink`): a file system that writes
//! such blocks elsewhere takes only whole blocks by direct I/O.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::device::{Loop, Mounted};
use common::pool::{fill, sums};
use common::{Cluster, Disks, can_mount, fails, ok, sh};

/// A file system of the kernel's in a file, mounted on a loop device.
struct Beneath {
    _mounted: Mounted,
    _device: Loop,
    dir: tempfile::TempDir,
}

impl Beneath {
    /// `None`, said loudly, where it cannot be made.
    fn new(mkfs: &[&str], gib: u64) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (file, at) = (dir.path().join("image"), dir.path().join("at"));
        std::fs::File::create(&file).unwrap().set_len(gib << 30).unwrap();
        std::fs::create_dir(&at).unwrap();
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(&file).output();
        if !made.as_ref().is_ok_and(|o| o.status.success()) {
            braid_testkit::skip(&format!("{mkfs:?}: {made:?}"));
            return None;
        }
        let device = Loop::new(&file);
        if device.is_none() {
            braid_testkit::skip("no loop devices here");
        }
        let device = device?;
        let mounted = Mounted::new(&[&device.0], &at)?;
        Some(Self { _mounted: mounted, _device: device, dir })
    }
    fn xfs() -> Option<Self> {
        Self::new(&["mkfs.xfs", "-q", "-m", "reflink=1"], 4)
    }
    fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }
    /// Sparse files on it.
    fn disks(&self, count: usize) -> Disks {
        let dir = tempfile::tempdir_in(self.at()).unwrap();
        let paths: Vec<_> = (0..count).map(|n| dir.path().join(format!("disk{n}"))).collect();
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(512 << 20).unwrap();
        }
        Disks { dir, paths }
    }
}

/// Copies all disks by reference into a directory beside them: theirs share their blocks from now on.
fn copy(disks: &Disks, name: &str) -> Vec<String> {
    let to = disks.path(name);
    std::fs::create_dir(&to).unwrap();
    let copied = |path: &&str| {
        sh(&format!("cp --reflink=always {path} {to}"));
        format!("{to}/{}", Path::new(path).file_name().unwrap().to_str().unwrap())
    };
    disks.names().iter().map(copied).collect()
}

/// The direct I/O that a pool with sectors of 512 bytes asks of its files is refused, or done otherwise, once
/// they share blocks: while nodes use it, when nodes join, and when one is recovered.
fn nothing_is_lost(beneath: &Beneath, count: usize, options: &[&str]) {
    let mut c = Cluster::of(beneath.disks(count), 1, options);
    let before = fill(c.node(0));
    copy(&c.disks, "in-use");
    std::fs::rename(c.node(0).join("tree"), c.node(0).join("first")).unwrap();
    let during = fill(c.node(0));
    assert_eq!(sums(&c.node(0).join("first")), before);
    c.unmount_all();
    let image = copy(&c.disks, "idle");

    // Two nodes of a host share the files; one ends without a word, and the other goes on.
    c.mount(&[]);
    c.mount(&[]);
    assert_eq!((sums(&c.node(1).join("first")), sums(&c.node(1).join("tree"))), (before, during));
    let (one, two) = (c.node(0).to_owned(), c.node(1).to_owned());
    for (dir, name) in [(&one, "one"), (&two, "two")] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let (of_one, of_two) = (fill(&one.join("one")), fill(&two.join("two")));
    copy(&c.disks, "in-use-by-two");
    sh(&format!(
        "for i in $(seq 40); do for f in {}/one/$i {}/two/$i; do echo $i > $f; sync $f; done; done",
        one.display(),
        two.display()
    ));
    c.kill(0);
    sh(&format!(
        "cd {}; for i in $(seq 40); do test $(cat one/$i two/$i | grep -cx $i) = 2; done",
        two.display()
    ));
    assert_eq!(sums(&two.join("one/tree")), of_one);
    assert_eq!(sums(&two.join("two/tree")), of_two);
    c.detach(0);
    c.unmount_all();
    let clean = |words: &[&str]| {
        let said = ok(&[&["check"], words].concat());
        assert!(said.contains("clean"), "{words:?}: {said}");
    };
    clean(&c.disks.names());
    // What was copied while nobody used it is a pool as it was then.
    let words: Vec<&str> = image.iter().map(String::as_str).collect();
    clean(&words);
}

#[test]
fn a_plain_pool_goes_on_on_files_that_were_copied_by_reference() {
    let Some(beneath) = Beneath::xfs() else { return };
    nothing_is_lost(&beneath, 2, &["--nodes", "4"]);
}

#[test]
fn a_redundant_pool_goes_on_on_files_that_were_copied_by_reference() {
    let Some(beneath) = Beneath::xfs() else { return };
    nothing_is_lost(&beneath, 2, &["--mirror", "2"]);
    nothing_is_lost(&beneath, 3, &["--parity", "1"]);
}

#[test]
fn a_pool_on_btrfs_goes_on_after_a_snapshot() {
    let Some(beneath) = Beneath::new(&["mkfs.btrfs", "-q"], 4) else { return };
    nothing_is_lost(&beneath, 2, &[]);
}

#[test]
fn a_pool_made_on_such_files_has_large_sectors() {
    let Some(beneath) = Beneath::xfs() else { return };
    let disks = beneath.disks(2);
    for path in disks.names() {
        sh(&format!("head -c 1M /dev/urandom | dd of={path} conv=notrunc status=none"));
    }
    copy(&disks, "aside");
    ok(&disks.with(&["create", "shared"], &[]));
    let label = ok(&["dump-label", disks.names()[0]]);
    let label: String = label.split_whitespace().collect();
    assert!(label.contains("lock_sector:Bytes(4096"), "{label}");
}

/// A disk with large sectors takes nothing less, however it is asked.
#[test]
fn a_disk_with_large_sectors_is_no_member_of_a_pool_with_small_ones() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(3, 256);
    let [a, b, spare] = disks.names()[..] else { panic!("three disks") };
    ok(&["create", "small", a, b, "--mirror", "2"]);
    let whole = Loop::of_large_sectors(Path::new(b));
    let large = Loop::of_large_sectors(Path::new(spare));
    let (Some(whole), Some(large)) = (whole, large) else {
        braid_testkit::skip("no loop devices with sectors of 4096 bytes here");
        return;
    };
    let dir = disks.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    let refused = |words: &[&str], device: &str| {
        let said = fails(words);
        let names = ["\"small\"", device, "sectors of 512 bytes", "dd"];
        assert!(names.iter().all(|name| said.contains(name)), "{words:?}: {said}");
    };
    refused(&["mount", a, &whole.0, &dir], &whole.0);
    refused(&["check", a, &whole.0], &whole.0);
    drop(whole);
    ok(&["mount", a, b, &dir]);
    refused(&["spare", &dir, &large.0], &large.0);
    ok(&["unmount", &dir]);
}
