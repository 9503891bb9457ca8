//! Pools whose locks are in etcd: what docs/LOCKING.md section 14 promises, by the real command.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;
#[path = "../../lock/tests/common/etcd.rs"]
#[allow(missing_docs, reason = "test support")]
mod server;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, Disks, can_mount, fails, ok, unmount_idle, wait_until};
use server::Server;

const LINES: u32 = 150;

fn append(dir: &Path, node: usize) {
    let mut file = OpenOptions::new().append(true).open(dir.join("log")).unwrap();
    for n in 0..LINES {
        file.write_all(format!("node {node} line {n:05}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Files of its own, durable one by one, until it is told to stop. How many.
fn create(dir: &Path, node: usize, stop: &AtomicBool) -> u32 {
    for n in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            return n;
        }
        let mut file = File::create(dir.join(format!("d/{node}-{n}"))).unwrap();
        file.write_all(&n.to_le_bytes().repeat(1 + n as usize % 3000)).unwrap();
        file.sync_all().unwrap();
        // Looked at from the other side too, by the names of both.
        let _ = fs::read_dir(dir.join("d")).unwrap().count();
    }
    0
}

#[test]
fn two_nodes_go_on_when_etcd_is_killed_and_comes_back() {
    if !can_mount() {
        return;
    }
    let Some(mut server) = Server::start() else { return };
    let address = server.address("pool");
    let c = Cluster::of(Disks::new(2, 256), 2, &["--locks", &address]);
    let (a, b) = (c.node(0), c.node(1));
    let status = ok(&c.disks.with(&["status"], &[]));
    assert!(status.contains(&format!("locks: {address}")), "{status}");
    fs::create_dir(a.join("d")).unwrap();
    File::create(b.join("log")).unwrap();
    let stop = AtomicBool::new(false);
    let counts = std::thread::scope(|s| {
        let lines = [a, b].into_iter().enumerate().map(|(n, dir)| s.spawn(move || append(dir, n)));
        let lines: Vec<_> = lines.collect();
        let stop = &stop;
        let files = [a, b].into_iter().enumerate();
        let files: Vec<_> = files.map(|(n, dir)| s.spawn(move || create(dir, n, stop))).collect();
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(400));
            server.kill();
            std::thread::sleep(Duration::from_millis(1500));
            assert!(server.run());
        }
        lines.into_iter().for_each(|t| t.join().unwrap());
        stop.store(true, Ordering::SeqCst);
        files.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    for dir in [a, b] {
        let text = fs::read_to_string(dir.join("log")).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!((lines.len(), text.lines().count()), (2 * LINES as usize, 2 * LINES as usize));
        for (node, count) in counts.iter().enumerate() {
            for n in 0..*count {
                let found = fs::read(dir.join(format!("d/{node}-{n}"))).unwrap();
                assert!(found == n.to_le_bytes().repeat(1 + n as usize % 3000), "{node}-{n}");
            }
        }
    }
    println!("files made by each node meanwhile: {counts:?}");
    c.finish();
}

/// The images' slots and locks are those of the pool in use.
#[test]
fn images_of_a_pool_in_use_are_refused_with_its_etcd() {
    if !can_mount() {
        return;
    }
    let Some(server) = Server::start() else { return };
    let address = server.address("pool");
    let mut c = Cluster::of(Disks::new(2, 128), 0, &["--nodes", "4", "--locks", &address]);
    c.mount(&["io_timeout=2"]);
    let at = |name: &str| c.disks.dir.path().join(name).to_str().unwrap().to_owned();
    let images: Vec<String> = (0..c.disks.paths.len()).map(|n| at(&format!("image{n}"))).collect();
    for (disk, image) in c.disks.paths.iter().zip(&images) {
        fs::copy(disk, image).unwrap();
    }
    let dir = at("of-images");
    fs::create_dir(&dir).unwrap();
    let refused = |before: &[&str], after: &str| {
        let words = before.iter().copied().chain(images.iter().map(String::as_str)).chain([after]);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
        let elsewhere = command.args(words).env("BRAID_PRETENDED_HOST", "other");
        let out = elsewhere.output().unwrap();
        assert!(!out.status.success(), "{before:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let said = refused(&["fence", "--confirm"], "all");
    assert!(said.contains("something else shows that it lives"), "{said}");
    let said = refused(&["mount"], &dir);
    assert!(said.contains("its heartbeats are not on these devices"), "{said}");
    fs::write(c.node(0).join("file"), "it goes on").unwrap();
    File::open(c.node(0).join("file")).unwrap().sync_all().unwrap();
    // A second node of the pool itself is let in.
    c.mount(&["io_timeout=2"]);
    assert_eq!(fs::read(c.node(1).join("file")).unwrap(), b"it goes on");
    c.unmount_all();
    // Nobody lives, and the images are older than what etcd knows of the devices.
    let before: Vec<Vec<u8>> = images.iter().map(|image| fs::read(image).unwrap()).collect();
    let said = refused(&["mount"], &dir);
    assert!(said.contains("behind the locks in etcd") && said.contains("check --repair"), "{said}");
    assert!(images.iter().zip(&before).all(|(image, bytes)| fs::read(image).unwrap() == *bytes));
    // By a person's word they take the place of the pool's own devices, which are refused then.
    let names: Vec<&str> = images.iter().map(String::as_str).collect();
    common::braid(&[&["check", "--repair"], &*names].concat());
    ok(&[&["mount"], &*names, &[&*dir]].concat());
    ok(&["unmount", &dir]);
    let own = fails(&c.disks.with(&["mount"], &[&dir]));
    assert!(own.contains("behind the locks in etcd"), "{own}");
}

/// A copy of etcd's data that is put back while nobody lives is older than the devices.
#[test]
fn an_older_copy_of_etcd_is_refused() {
    if !can_mount() {
        return;
    }
    let Some(mut server) = Server::start() else { return };
    let address = server.address("pool");
    let mut c = Cluster::of(Disks::new(2, 128), 1, &["--locks", &address]);
    fs::write(c.node(0).join("f"), "first").unwrap();
    c.unmount_all();
    server.keep();
    let dir = c.mount(&[]);
    fs::write(dir.join("f"), "second").unwrap();
    c.unmount_all();
    server.put_back();
    let dir = c.disks.path("mnt");
    fs::create_dir(&dir).unwrap();
    let said = fails(&c.disks.with(&["mount"], &[&dir]));
    assert!(said.contains("behind these devices") && said.contains("check --repair"), "{said}");
    common::braid(&c.disks.with(&["check", "--repair"], &[]));
    let dir = c.mount(&[]);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "second");
    c.finish();
}

#[test]
fn a_killed_node_is_recovered_although_its_locks_are_in_etcd() {
    if !can_mount() {
        return;
    }
    let Some(server) = Server::start() else { return };
    let address = server.address("pool");
    let c = Cluster::of(Disks::new(2, 256), 2, &["--locks", &address]);
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    fs::create_dir(a.join("d")).unwrap();
    let acknowledged = AtomicU32::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0_u32.. {
                let done = (|| -> std::io::Result<()> {
                    let mut file = File::create(a.join(format!("d/{n}")))?;
                    file.write_all(&n.to_le_bytes())?;
                    file.sync_all()
                })();
                if done.is_err() {
                    return;
                }
                acknowledged.store(n + 1, Ordering::SeqCst);
            }
        });
        wait_until("files are acknowledged", || acknowledged.load(Ordering::SeqCst) > 3);
        c.kill(0);
        let began = Instant::now();
        fs::write(b.join("d/after"), "alive").unwrap();
        println!("the other went on after {:?}", began.elapsed());
    });
    c.detach(0);
    let count = acknowledged.load(Ordering::SeqCst);
    assert!(count > 0);
    for n in 0..count {
        assert_eq!(fs::read(b.join(format!("d/{n}"))).unwrap(), n.to_le_bytes(), "of {count}");
    }
    c.finish();
}

#[test]
fn an_address_where_nobody_answers_is_named() {
    let disks = Disks::new(1, 64);
    let said = fails(&disks.with(&["create", "test"], &["--locks", "etcd://127.0.0.1:1/pool"]));
    assert!(said.contains("http://127.0.0.1:1") && said.contains("start etcd"), "{said}");
    for bad in ["http://a/b", "etcd://a", "etcd://a:x/b"] {
        let said = fails(&disks.with(&["create", "test"], &["--locks", bad]));
        assert!(said.contains("etcd://HOST"), "{said}");
    }
    // Nothing was written: not a pool.
    fails(&disks.with(&["status"], &[]));
}

#[test]
fn a_used_prefix_is_refused_and_one_in_use_never_taken() {
    let Some(server) = Server::start() else { return };
    let address = server.address("pools/one");
    let (first, second) = (Disks::new(1, 128), Disks::new(1, 128));
    ok(&first.with(&["create", "one"], &["--locks", &address]));
    let create = second.with(&["create", "two"], &["--locks", &address]);
    let said = fails(&create);
    assert!(said.contains("in use") && said.contains("--force"), "{said}");
    let forced = second.with(&["create", "two"], &["--locks", &address, "--force"]);
    if can_mount() {
        let dir = first.path("mnt");
        fs::create_dir(&dir).unwrap();
        ok(&first.with(&["mount"], &[&dir]));
        let said = fails(&forced);
        assert!(said.contains("has it mounted"), "{said}");
        fs::write(Path::new(&dir).join("f"), "1").unwrap();
        unmount_idle(Path::new(&dir));
    }
    let said = ok(&first.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
    ok(&forced);
    // The first has lost its locks to the second, and says so.
    let said = fails(&first.with(&["check", "--repair"], &[]));
    assert!(said.contains("instead of the locks"), "{said}");
    let said = ok(&second.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

#[test]
fn emptied_etcd_is_not_trusted_and_a_repair_begins_anew() {
    if !can_mount() {
        return;
    }
    let Some(mut server) = Server::start() else { return };
    let address = server.address("pool");
    let mut c = Cluster::of(Disks::new(2, 128), 1, &["--locks", &address]);
    fs::write(c.node(0).join("f"), "kept").unwrap();
    fs::create_dir(c.node(0).join("d")).unwrap();
    c.unmount_all();
    server.kill();
    let dir = c.disks.path("mnt");
    fs::create_dir(&dir).unwrap();
    for args in [c.disks.with(&["mount"], &[&dir]), c.disks.with(&["check"], &[])] {
        let said = fails(&args);
        assert!(said.contains("no answer from etcd") && said.contains("http://"), "{said}");
    }
    server.empty();
    for args in [c.disks.with(&["mount"], &[&dir]), c.disks.with(&["check"], &[])] {
        let said = fails(&args);
        assert!(said.contains("check --repair") && said.contains(&address), "{said}");
    }
    common::braid(&c.disks.with(&["check", "--repair"], &[]));
    let dir = c.mount(&[]);
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "kept");
    fs::write(dir.join("d/g"), "new").unwrap();
    c.finish();
}
