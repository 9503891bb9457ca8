//! The space of deleted files goes back to the devices, by the real commands.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::MetadataExt;

use common::pool::{Pool, fill, sums};
use common::{can_mount, fails, ok, sh, unmount_idle, wait_until};

/// MiB that the backing files take.
fn taken(pool: &Pool, disks: usize) -> u64 {
    let blocks = |n: usize| std::fs::metadata(pool.disk(n)).unwrap().blocks();
    (0..disks).map(blocks).sum::<u64>() * 512 / (1 << 20)
}

fn large(pool: &Pool) {
    sh(&format!("head -c 200M /dev/urandom > {0}/large; sync {0}/large", pool.dir()));
}

#[test]
fn fstrim_and_trim_give_deleted_files_back_and_keep_the_others() {
    if !can_mount() {
        return;
    }
    for (disks, options) in [(2, ["--mirror", "2"]), (3, ["--parity", "1"])] {
        let pool = Pool::new((disks, 360), disks, &options);
        let all: Vec<usize> = (0..disks).collect();
        pool.mount(&all, &[]);
        let written = fill(&pool.dir);
        large(&pool);
        let before = taken(&pool, disks);
        sh(&format!("rm {}/large", pool.dir()));
        // As root, but not allowed to.
        let refused =
            sh(&format!("setpriv --bounding-set=-sys_admin fstrim {} 2>&1 || true", pool.dir()));
        assert!(refused.contains("not permitted"), "{refused}");
        assert!(taken(&pool, disks) + 20 > before);
        let said = sh(&format!("fstrim -v {}", pool.dir()));
        assert!(said.contains("trimmed"), "{said}");
        let after = taken(&pool, disks);
        // Two copies; or two columns and parity, less the edges of rows.
        let gone = if disks == 2 { 380 } else { 280 };
        assert!(after + gone < before, "{options:?}: {before} MiB, then {after}: {said}");
        assert_eq!(sums(&pool.dir.join("tree")), written);
        // Others than FITRIM are not there.
        let other = sh(&format!("fsfreeze -f {} 2>&1 || true", pool.dir()));
        assert!(other.contains("not supported"), "{other}");
        large(&pool);
        sh(&format!("rm {}/large", pool.dir()));
        let said = ok(&["trim", pool.dir()]);
        assert!(said.contains("given back to the devices"), "{said}");
        assert!(taken(&pool, disks) < after + 20, "{} {after}", taken(&pool, disks));
        let said = ok(&["trim", &pool.name]);
        assert!(said.contains("nothing was given back"), "{said}");
        ok(&["trim", &pool.name, "--stop"]);
        let said = ok(&["scrub", pool.dir()]);
        assert!(!said.contains("disagree"), "{said}");
        unmount_idle(&pool.dir);
        pool.clean(&all);
        // Without a mount, and from what mounts it next.
        let said = ok(&["trim", &pool.together(&all)]);
        assert!(said.contains("given back"), "{said}");
        pool.mount(&all, &[]);
        assert_eq!(sums(&pool.dir.join("tree")), written);
        unmount_idle(&pool.dir);
        let options = ["-o", "ro"];
        pool.mount(&all, &options);
        let said = fails(&["trim", pool.dir()]);
        assert!(said.contains("read-only"), "{said}");
        unmount_idle(&pool.dir);
    }
}

#[test]
fn a_mount_that_discards_gives_deleted_files_back_by_itself() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 360), 2, &[]);
    pool.mount(&[0, 1], &["-o", "discard,commit=1"]);
    let written = fill(&pool.dir);
    large(&pool);
    let before = taken(&pool, 2);
    sh(&format!("rm {}/large", pool.dir()));
    wait_until("the space goes back", || taken(&pool, 2) + 190 < before);
    assert_eq!(sums(&pool.dir.join("tree")), written);
    unmount_idle(&pool.dir);
    pool.clean(&[0, 1]);
}
