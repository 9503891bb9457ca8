//! Pools that change while they are in use, by the real command.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use common::device::Loop;
use common::pool::{Pool, fill, sums};
use common::{Cluster, Disks, can_mount, fails, ok, sh, unmount_idle};

/// Writes, reads back and deletes files until it is told to stop; how many.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Load {
    const FILES: u64 = 17;

    fn start(dir: &Path) -> Self {
        Self::named(dir, "load")
    }
    /// Makes its files, empty.
    fn prepare(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        for n in 0..Self::FILES {
            std::fs::write(dir.join(name).join(n.to_string()), []).unwrap();
        }
    }
    fn named(dir: &Path, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        Self::prepare(dir, name);
        let (dir, over) = (dir.join(name), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut n = 0_u64;
            while !over.load(Ordering::Relaxed) || n < 30 {
                let path = dir.join((n % Self::FILES).to_string());
                let len = usize::try_from(n * 7919 % 300_000).unwrap() + 1;
                let bytes: Vec<u8> =
                    (0..len as u64).map(|i| ((i * 31 + n) % 251).to_le_bytes()[0]).collect();
                std::fs::write(&path, &bytes).unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "file {n}");
                n += 1;
            }
            n
        });
        Self { stop, thread }
    }
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_member_of_a_plain_pool_is_moved_under_load_and_taken_out() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((4, 160), 2, &[]);
    pool.mount(&[0, 1], &[]);
    let written = fill(&pool.dir);
    let said = fails(&["remove", pool.dir(), "1"]);
    assert!(said.contains("braid evacuate POOL MEMBER --to"), "{said}");
    for (member, to, why) in [
        ("7", pool.disk(2), "no member 7"),
        ("0", "0", "cannot be moved to itself"),
        ("0", "1", "not an unused member"),
        ("0", "/nonexistent/disk", "/nonexistent/disk"),
    ] {
        let said = fails(&["evacuate", pool.dir(), member, "--to", to]);
        assert!(said.contains(why), "{said}");
    }
    let said = fails(&["evacuate", pool.dir(), "0"]);
    assert!(said.contains("made with"), "{said}");
    let load = Load::start(&pool.dir);
    let said = ok(&["evacuate", pool.dir(), "1", "--to", pool.disk(2)]);
    assert!(said.contains("disk2 now") && said.contains("remove POOL 2"), "{said}");
    let said = ok(&["remove", pool.dir(), pool.disk(1)]);
    assert!(!said.contains("member 2"), "{said}");
    // The first, whose liveness bytes say that the pool is in use; and back onto the one that left.
    ok(&["evacuate", pool.dir(), "0", "--to", pool.disk(1), "--remove"]);
    load.end();
    assert_eq!(sums(&pool.dir.join("tree")), written);
    let said = fails(&["check", pool.disk(1), pool.disk(2)]);
    assert!(said.contains("mounted"), "{said}");
    unmount_idle(&pool.dir);
    pool.clean(&[1, 2]);
    let said = fails(&["status", pool.disk(0)]);
    assert!(said.contains("not a member"), "{said}");
    // Without a mount.
    let both = pool.together(&[1, 2]);
    let said = ok(&["replace", &both, "1", pool.disk(3)]);
    assert!(said.contains("disk3 now") && said.contains("out of the pool"), "{said}");
    pool.mount(&[1, 3], &[]);
    assert_eq!(sums(&pool.dir.join("tree")), written);
    unmount_idle(&pool.dir);
    pool.clean(&[1, 3]);
}

#[test]
fn a_member_of_a_mirror_is_moved_onto_the_spare() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((4, 160), 2, &["--mirror", "2"]);
    pool.mount(&[0, 1], &[]);
    let written = fill(&pool.dir);
    ok(&["spare", pool.dir(), pool.disk(2)]);
    let load = Load::start(&pool.dir);
    let said = ok(&["evacuate", pool.dir(), pool.disk(0)]);
    assert!(said.contains("member 0 is on") && said.contains("disk2 now"), "{said}");
    load.end();
    ok(&["remove", pool.dir(), "2"]);
    ok(&["fail", pool.dir(), "1"]);
    assert_eq!(sums(&pool.dir.join("tree")), written);
    unmount_idle(&pool.dir);
    pool.clean(&[2]);
    let said = ok(&["replace", pool.disk(2), "1", pool.disk(3)]);
    assert!(said.contains("filled and in use"), "{said}");
    pool.mount(&[2, 3], &[]);
    let said = ok(&["scrub", pool.dir()]);
    assert!(said.contains("0 B healed"), "{said}");
    assert_eq!(sums(&pool.dir.join("tree")), written);
}

fn free(dir: &Path) -> u64 {
    sh(&format!("df -B1 --output=avail {} | tail -1", dir.display())).trim().parse().unwrap()
}

#[test]
fn devices_are_added_under_load_and_the_file_system_grows_over_them() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((5, 160), 2, &[]);
    pool.mount(&[0, 1], &[]);
    let written = fill(&pool.dir);
    let before = free(&pool.dir);
    let said = ok(&["add", pool.dir(), pool.disk(2), "--dry-run"]);
    assert!(said.contains("nothing was written"), "{said}");
    let said = fails(&["add", pool.dir(), pool.disk(0)]);
    assert!(said.contains("is member 0 of this pool already, and is active"), "{said}");
    let said = fails(&["add", pool.dir(), pool.disk(2), pool.disk(3), "--mirror", "2"]);
    assert!(said.contains("without mirrors or parity"), "{said}");
    sh(&format!(
        "truncate -s 2M {}/tiny && mkfs.ext4 -q {} 2>/dev/null",
        pool.disks.dir.path().display(),
        pool.disk(4)
    ));
    let tiny = pool.disks.path("tiny");
    let said = fails(&["add", pool.dir(), &tiny]);
    assert!(said.contains("too small"), "{said}");
    let said = fails(&["add", pool.dir(), pool.disk(4)]);
    assert!(said.contains("ext4") && said.contains("--force"), "{said}");
    let load = Load::start(&pool.dir);
    let said = ok(&["add", pool.dir(), pool.disk(2), pool.disk(3)]);
    assert!(said.contains("more"), "{said}");
    let after = free(&pool.dir);
    assert!(after > before + (280 << 20), "{before} {after}");
    // More than there was room for.
    sh(&format!("head -c 200M /dev/urandom > {}/tree/large", pool.dir()));
    let now = sums(&pool.dir.join("tree"));
    assert!(written.lines().all(|line| now.contains(line)));
    let said = ok(&["rebalance", pool.dir()]);
    assert!(said.contains("moved; parts of the pool were full by"), "{said}");
    load.end();
    assert_eq!(sums(&pool.dir.join("tree")), now);
    unmount_idle(&pool.dir);
    pool.clean(&[0, 1, 2, 3]);
    // Without a mount.
    let all = pool.together(&[0, 1, 2, 3]);
    ok(&["add", &all, pool.disk(4), "--force"]);
    pool.mount(&[0, 1, 2, 3, 4], &[]);
    assert_eq!(sums(&pool.dir.join("tree")), now);
    assert!(free(&pool.dir) > after - (300 << 20));
    unmount_idle(&pool.dir);
    pool.clean(&[0, 1, 2, 3, 4]);
}

/// The labels have names that lead nowhere, or lead somewhere only from one directory.
#[test]
fn devices_that_are_called_otherwise_now_grow_for_all_nodes() {
    if !can_mount() {
        return;
    }
    for moved in [false, true] {
        let disks = Disks::new(2, 96);
        let at = |name: &str| disks.path(name);
        let relative: Vec<_> = disks.paths.iter().map(|p| p.file_name().unwrap()).collect();
        let made = Command::new(env!("CARGO_BIN_EXE_braid"))
            .current_dir(&disks.dir)
            .args(["create", "p", "--nodes", "2"])
            .args(relative)
            .status();
        assert!(made.unwrap().success());
        if moved {
            sh(&format!(
                "mv {} {}; mv {} {}",
                disks.names()[0],
                at("x"),
                disks.names()[1],
                at("y")
            ));
        }
        let now = if moved { [at("x"), at("y")] } else { [0, 1].map(|n| disks.names()[n].into()) };
        let nodes = [at("n0"), at("n1")];
        for node in &nodes {
            std::fs::create_dir(node).unwrap();
            ok(&["mount", &now[0], &now[1], node]);
        }
        sh(&format!("truncate -s 160M {} {}", now[0], now[1]));
        ok(&["grow", &nodes[0]]);
        sh(&format!("dd if=/dev/zero of={}/f bs=1M count=220 conv=fsync 2>&1", nodes[1]));
        for node in &nodes {
            ok(&["unmount", node]);
        }
        ok(&["check", &now[0], &now[1]]);
    }
}

#[test]
fn parity_grows_by_parity() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((6, 160), 3, &["--parity", "1"]);
    pool.mount(&[0, 1, 2], &[]);
    let written = fill(&pool.dir);
    let said = fails(&["add", pool.dir(), pool.disk(3), pool.disk(4)]);
    assert!(said.contains("parity"), "{said}");
    ok(&["add", pool.dir(), pool.disk(3), pool.disk(4), pool.disk(5)]);
    sh(&format!("head -c 300M /dev/urandom > {}/tree/large", pool.dir()));
    let now = sums(&pool.dir.join("tree"));
    assert!(written.lines().all(|line| now.contains(line)));
    ok(&["fail", pool.dir(), "4"]);
    ok(&["fail", pool.dir(), "1"]);
    sh(&format!("cp {0}/tree/big {0}/copy && cmp {0}/tree/big {0}/copy", pool.dir()));
    assert_eq!(sums(&pool.dir.join("tree")), now);
    unmount_idle(&pool.dir);
    pool.clean(&[0, 2, 3, 5]);
}

#[test]
fn two_nodes_go_on_while_one_of_them_changes_the_pool() {
    if !can_mount() {
        return;
    }
    for layout in [&[][..], &["--mirror", "2"]] {
        let c = Cluster::of(Disks::new(3, 120), 2, &[layout, &["--nodes", "3"]].concat());
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        let new: Vec<String> = (0..4).map(|n| c.disks.path(&format!("new{n}"))).collect();
        for path in &new {
            std::fs::File::create(path).unwrap().set_len(120 << 20).unwrap();
        }
        let written = fill(&a);
        let before = free(&b);
        let load = [Load::named(&a, "a"), Load::named(&b, "b")];
        let said = ok(&["evacuate", a.to_str().unwrap(), "1", "--to", &new[0]]);
        assert!(said.contains("new0 now"), "{said}");
        ok(&["remove", b.to_str().unwrap(), "3"]);
        ok(&["add", a.to_str().unwrap(), &new[1], &new[2], &new[3]]);
        // More than there was room for, by the node that did not add it.
        let len = before / (1 << 20) + 20;
        sh(&format!("head -c {len}M /dev/urandom > {}/tree/large", b.display()));
        sh(&format!("cmp {}/tree/large {}/tree/large", a.display(), b.display()));
        load.into_iter().for_each(Load::end);
        let now = sums(&b.join("tree"));
        assert!(written.lines().all(|line| now.contains(line)), "{layout:?}");
        assert_eq!(now, sums(&a.join("tree")));
        let mut c = c;
        c.unmount_all();
        let left = [c.disks.names()[0], &new[0], c.disks.names()[2], &new[1], &new[2], &new[3]];
        let said = ok(&[&["check"], &left[..]].concat());
        assert!(said.contains("clean"), "{said}");
    }
}

#[test]
fn a_pool_becomes_smaller_while_two_nodes_go_on() {
    if !can_mount() {
        return;
    }
    for layout in [&[][..], &["--mirror", "2"]] {
        let c = Cluster::of(Disks::new(2, 300), 2, &[layout, &["--nodes", "3"]].concat());
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        let (dir, other) = (a.to_str().unwrap(), b.to_str().unwrap());
        let new: Vec<String> = (0..4).map(|n| c.disks.path(&format!("new{n}"))).collect();
        for path in &new {
            std::fs::File::create(path).unwrap().set_len(160 << 20).unwrap();
        }
        let written = fill(&a);
        // Inodes cannot be moved: theirs must not come to stand in what is added.
        Load::prepare(&a, "a");
        Load::prepare(&b, "b");
        let before = free(&b);
        ok(&["add", dir, &new[0], &new[1]]);
        ok(&["add", other, &new[2], &new[3]]);
        // Some of it is in what was added, by either node; then there is room for it elsewhere.
        let len = before / (1 << 20) + 40;
        sh(&format!("head -c {len}M /dev/zero > {dir}/large"));
        sh(&format!("head -c 30M /dev/urandom > {other}/tree/late && rm {dir}/large"));
        let wide = free(&a);
        let now = sums(&b.join("tree"));
        assert!(written.lines().all(|line| now.contains(line)), "{layout:?}");
        let load = [Load::named(&a, "a"), Load::named(&b, "b")];
        let said = fails(&["remove", dir, "0"]);
        assert!(said.contains("made with") && said.contains("large enough"), "{said}");
        let said = ok(&["remove", dir, "2", "--dry-run"]);
        assert!(said.contains("nothing was changed") && said.contains("2, 3"), "{said}");
        let said = ok(&["remove", other, &new[0]]);
        assert!(said.contains("nothing is left on member 2, 3"), "{said}");
        assert!(said.contains("new0 is out of the pool") && said.contains("spare"), "{said}");
        // The other one that came with it is a spare; then what came last, as a spare.
        ok(&["remove", other, &new[1]]);
        let said = ok(&["evacuate", dir, &new[2]]);
        assert!(said.contains("is a spare now"), "{said}");
        load.into_iter().for_each(Load::end);
        assert!(free(&a) < wide - (200 << 20), "{} {wide}", free(&a));
        assert_eq!((sums(&a.join("tree")), sums(&b.join("tree"))), (now.clone(), now.clone()));
        ok(&["remove", dir, &new[2]]);
        ok(&["remove", dir, &new[3]]);
        ok(&["remove", dir, "--cancel"]);
        let said = ok(&["add", dir, &new[0], &new[1]]);
        assert!(said.contains("more"), "{said}");
        assert_eq!(sums(&b.join("tree")), now);
        let mut c = c;
        c.unmount_all();
        let left = [c.disks.names()[0], c.disks.names()[1], &new[0], &new[1]];
        let said = ok(&[&["check"], &left[..]].concat());
        assert!(said.contains("clean"), "{said}");
    }
}

/// What the pool was made with moves to devices that were added later, one after the other.
#[test]
fn all_devices_of_a_pool_give_their_places_to_those_that_were_added() {
    if !can_mount() {
        return;
    }
    for layout in [&[][..], &["--mirror", "2"]] {
        let pool = Pool::new((5, 200), 2, layout);
        pool.mount(&[0, 1], &[]);
        let written = fill(&pool.dir);
        let said = fails(&["remove", pool.dir(), "0"]);
        assert!(said.contains("nothing was added") && said.contains("--to"), "{said}");
        ok(&["add", pool.dir(), pool.disk(2), pool.disk(3)]);
        let load = Load::start(&pool.dir);
        let said = ok(&["remove", pool.dir(), "0", "--dry-run"]);
        assert!(said.contains("member 2 take its place"), "{said}");
        assert!(said.contains("member 2, 3 would leave"), "{said}");
        let said = ok(&["remove", pool.dir(), pool.disk(0)]);
        assert!(said.contains("member 0 is on") && said.contains("disk2 now"), "{said}");
        assert!(said.contains("disk0 is out of the pool"), "{said}");
        // The other one that was added has nothing on it now.
        let said = ok(&["remove", pool.dir(), "1", "--dry-run"]);
        assert!(said.contains("which holds nothing"), "{said}");
        // As after a removal that was broken off: the number is the new device's by then.
        let said = ok(&["evacuate", pool.dir(), pool.disk(1)]);
        assert!(said.contains("member 1 is on") && said.contains("disk3 now"), "{said}");
        let said = fails(&["remove", pool.dir(), "1"]);
        assert!(said.contains("remove it first") && said.contains("disk3 now"), "{said}");
        ok(&["remove", pool.dir(), pool.disk(1)]);
        load.end();
        // None of the devices that it was mounted from.
        let said = ok(&["status", pool.dir()]);
        assert!(said.contains("disk2") && !said.contains("disk0"), "{said}");
        assert_eq!(sums(&pool.dir.join("tree")), written);
        unmount_idle(&pool.dir);
        pool.clean(&[2, 3]);
        let said = fails(&["status", pool.disk(0)]);
        assert!(said.contains("not a member"), "{said}");
    }
}

#[test]
fn devices_that_became_larger_are_used() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 160), 2, &["--mirror", "2"]);
    pool.mount(&[0, 1], &[]);
    let written = fill(&pool.dir);
    let said = fails(&["grow", pool.dir()]);
    assert!(said.contains("nothing to grow by"), "{said}");
    sh(&format!("truncate -s 400M {} {}", pool.disk(0), pool.disk(1)));
    let said = ok(&["status", pool.disk(0), pool.disk(1)]);
    assert!(said.contains("braid grow") && said.contains("240 MiB more"), "{said}");
    let before = free(&pool.dir);
    let load = Load::start(&pool.dir);
    let said = ok(&["grow", pool.dir(), "--dry-run"]);
    assert!(said.contains("nothing was written"), "{said}");
    ok(&["grow", pool.dir()]);
    assert!(free(&pool.dir) > before + (200 << 20));
    sh(&format!("head -c 250M /dev/urandom > {}/tree/large", pool.dir()));
    load.end();
    let now = sums(&pool.dir.join("tree"));
    assert!(written.lines().all(|line| now.contains(line)));
    ok(&["fail", pool.dir(), "0"]);
    assert_eq!(sums(&pool.dir.join("tree")), now);
    unmount_idle(&pool.dir);
    pool.clean(&[1]);
    let said = ok(&["status", pool.disk(1)]);
    assert!(!said.contains("braid grow"), "{said}");
}

/// The node would wait for itself.
#[test]
fn a_pool_is_not_made_of_its_own_files() {
    if !can_mount() {
        return;
    }
    let pool = Pool::new((2, 512), 1, &[]);
    pool.mount(&[0], &[]);
    let file = pool.dir.join("disk");
    sh(&format!("truncate -s 160M {}", file.display()));
    let Some(outer) = Loop::new(&file) else {
        return braid_testkit::skip("there are no loop devices");
    };
    // Through another loop device, too.
    let inner = Loop::new(outer.0.as_ref()).unwrap();
    let file = file.to_str().unwrap();
    for device in [file, &outer.0, &inner.0] {
        for command in [
            &["add", pool.dir(), device][..],
            &["add", pool.dir(), device, "--dry-run"],
            &["spare", pool.dir(), device],
            &["replace", pool.dir(), "0", device],
            &["evacuate", pool.dir(), "0", "--to", device],
        ] {
            let said = fails(command);
            assert!(said.contains("a pool cannot be its own member"), "{command:?}: {said}");
        }
    }
    drop((inner, outer));
    // Beside it, another pool's file is a device like any other.
    ok(&["add", pool.dir(), pool.names(&[1])[0]]);
    unmount_idle(&pool.dir);
}
