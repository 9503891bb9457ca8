//! Mirrors and parity under two nodes at once, by the real command: a member is lost and replaced
//! while both write; a node is killed while it writes, or while it fills a member.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::pool::sums;
use common::{Cluster, Disks, can_mount, ok, sh, wait_until};

const LAYOUTS: [&[&str]; 2] = [&["--mirror", "2"], &["--parity", "1"]];

/// Two nodes on four disks.
fn cluster(layout: &[&str]) -> Cluster {
    Cluster::of(Disks::new(4, 300), 2, &[layout, &["--nodes", "3"]].concat())
}

/// Nothing that a scrub could find.
fn whole(dir: &Path) {
    let said = ok(&["scrub", dir.to_str().unwrap()]);
    assert!(said.contains(" 0 B healed") && !said.contains("disagree"), "{said}");
}

/// Writes files of many sizes, and small pieces all over a large one, until told to stop; all of
/// it is verified as it goes.
fn load(dir: &Path, name: &str, stop: &AtomicBool) -> u32 {
    let large = std::fs::File::create_new(dir.join(format!("{name}-large"))).unwrap();
    large.set_len(24 << 20).unwrap();
    let mut n = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let byte = u8::try_from(n % 251).unwrap();
        let at = u64::from(n) * 7_654_321 % (23 << 20);
        let piece = vec![byte; 3000 + usize::try_from(n % 7).unwrap() * 40_000];
        large.write_all_at(&piece, at).unwrap();
        if n % 8 == 0 {
            large.sync_data().unwrap();
        }
        std::fs::write(dir.join(format!("{name}-{}", n % 40)), &piece).unwrap();
        let mut back = vec![0; piece.len()];
        large.read_exact_at(&mut back, at).unwrap();
        assert_eq!(back, piece);
    }
    large.sync_all().unwrap();
    n
}

#[test]
fn both_nodes_write_while_a_member_fails_and_another_takes_its_place() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let mut c = cluster(layout);
        let new = c.disks.path("new");
        std::fs::File::create(&new).unwrap().set_len(300 << 20).unwrap();
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let writers = [(&a, "a"), (&b, "b")].map(|(dir, name)| {
                let stop = &stop;
                s.spawn(move || load(dir, name, stop))
            });
            std::thread::sleep(std::time::Duration::from_millis(300));
            // Told to the one, and done by both.
            ok(&["fail", b.to_str().unwrap(), "1"]);
            let said = ok(&["replace", a.to_str().unwrap(), "1", &new]);
            assert!(said.contains("filled and in use"), "{said}");
            std::thread::sleep(std::time::Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            for writer in writers {
                assert!(writer.join().unwrap() > 3);
            }
        });
        assert_eq!(sums(&a), sums(&b), "{layout:?}");
        whole(&b);
        c.disks.paths[1] = new.into();
        c.finish();
    }
}

#[test]
fn a_node_killed_while_it_writes_leaves_everything_whole() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let mut c = cluster(layout);
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let survivor = s.spawn(|| load(&b, "b", &stop));
            let victim = s.spawn(|| {
                let large = std::fs::File::create_new(a.join("a-large")).unwrap();
                let piece = vec![7_u8; 50_000];
                let mut synced = 0;
                for n in 0.. {
                    let written = large.write_all_at(&piece, n * 60_000 % (24 << 20));
                    if written.and_then(|()| large.sync_data()).is_err() {
                        break;
                    }
                    synced = n;
                }
                synced
            });
            std::thread::sleep(std::time::Duration::from_millis(500));
            c.kill(0);
            let synced = victim.join().unwrap();
            c.detach(0);
            // What was synced is there, once the other has recovered it.
            let large = std::fs::File::open(b.join("a-large")).unwrap();
            for n in 0..=synced.min(400) {
                let mut back = vec![0; 50_000];
                large.read_exact_at(&mut back, n * 60_000 % (24 << 20)).unwrap();
                assert!(back.iter().all(|x| *x == 7), "piece {n} of {synced}");
            }
            stop.store(true, Ordering::Relaxed);
            assert!(survivor.join().unwrap() > 3);
        });
        whole(&b);
        c.nodes.remove(0);
        c.finish();
    }
}

#[test]
fn another_node_goes_on_filling_a_member() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let mut c = cluster(layout);
        let new = c.disks.path("new");
        std::fs::File::create(&new).unwrap().set_len(300 << 20).unwrap();
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        sh(&format!("head -c 60000000 /dev/urandom > {}/big && sync {0}/big", a.display()));
        let written = sums(&b);
        ok(&["replace", b.to_str().unwrap(), "2", &new, "--background"]);
        c.kill(0);
        c.detach(0);
        let view = || ok(&["spare", b.to_str().unwrap(), "--list"]);
        wait_until("the member is filled", || view().contains("new  active"));
        // Without another one: all is read from what was filled.
        ok(&["fail", b.to_str().unwrap(), "3"]);
        assert_eq!(sums(&b), written, "{layout:?}");
        c.nodes.remove(0);
        c.unmount_all();
        let new = new.as_str();
        let said = ok(&[&["check"], &c.disks.names()[..2], &[new]].concat());
        assert!(said.contains("clean"), "{said}");
    }
}
