//! Mirrors and parity under two nodes at once, by the real command: a member is lost and replaced
//! while both write; a node is killed while it writes, or while it fills a member.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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

/// A writer's rounds, counted as it goes, and the word to stop.
#[derive(Default)]
struct Rounds {
    done: AtomicU64,
    stop: AtomicBool,
}

impl Rounds {
    /// Waits until `more` further rounds are done: the writer is under way, however slow the disk.
    fn wait_for(&self, who: &str, more: u64) {
        let want = self.done.load(Ordering::Relaxed) + more;
        wait_until(who, || self.done.load(Ordering::Relaxed) >= want);
    }

    /// Stops the writer when this goes, also where a test fails: a scope waits for its threads.
    fn stop_at_end(&self) -> StopAtEnd<'_> {
        StopAtEnd(self)
    }
}

struct StopAtEnd<'a>(&'a Rounds);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Writes files of many sizes, and small pieces all over a large one, until told to stop; all of
/// it is verified as it goes.
fn load(dir: &Path, name: &str, rounds: &Rounds) {
    let large = std::fs::File::create_new(dir.join(format!("{name}-large"))).unwrap();
    large.set_len(24 << 20).unwrap();
    let mut n = 0_u32;
    while !rounds.stop.load(Ordering::Relaxed) {
        n += 1;
        let byte = u8::try_from(n % 251).unwrap();
        let at = u64::from(n) * 7_654_321 % (23 << 20);
        let piece = vec![byte; 3000 + usize::try_from(n % 7).unwrap() * 40_000];
        large.write_all_at(&piece, at).unwrap();
        if n.is_multiple_of(8) {
            large.sync_data().unwrap();
        }
        std::fs::write(dir.join(format!("{name}-{}", n % 40)), &piece).unwrap();
        let mut back = vec![0; piece.len()];
        large.read_exact_at(&mut back, at).unwrap();
        assert_eq!(back, piece);
        rounds.done.fetch_add(1, Ordering::Relaxed);
    }
    large.sync_all().unwrap();
}

/// Programs write on both nodes while `change` runs; it gets what waits until both have gone on.
fn while_both_write(a: &Path, b: &Path, change: impl FnOnce(&dyn Fn())) {
    let rounds = [Rounds::default(), Rounds::default()];
    std::thread::scope(|s| {
        for (dir, name, rounds) in [(a, "a", &rounds[0]), (b, "b", &rounds[1])] {
            s.spawn(move || load(dir, name, rounds));
        }
        let _stop = rounds.each_ref().map(Rounds::stop_at_end);
        let both_go_on = || rounds.iter().for_each(|x| x.wait_for("both nodes write", 4));
        both_go_on();
        change(&both_go_on);
    });
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
        while_both_write(&a, &b, |both_go_on| {
            // Told to the one, and done by both.
            ok(&["fail", b.to_str().unwrap(), "1"]);
            let said = ok(&["replace", a.to_str().unwrap(), "1", &new]);
            assert!(said.contains("filled and in use"), "{said}");
            both_go_on();
        });
        assert_eq!(sums(&a), sums(&b), "{layout:?}");
        whole(&b);
        c.disks.paths[1] = new.into();
        c.finish();
    }
}

/// How the node at `dir` says that its pool is, by what it knows without looking at the labels.
fn health(dir: &Path) -> String {
    let said: serde_json::Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    let mounts = said["mounts"].as_array().unwrap();
    let of = mounts.iter().find(|m| m["mount_point"] == dir.to_str().unwrap()).unwrap();
    of["health"].to_string()
}

/// It has failed, and is back with its old label and old contents.
#[test]
fn a_failed_members_own_device_comes_back_beside_two_nodes() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let c = cluster(layout);
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        while_both_write(&a, &b, |both_go_on| {
            let device = c.disks.names()[1].to_owned();
            ok(&["fail", b.to_str().unwrap(), "1"]);
            both_go_on();
            let said = ok(&["replace", a.to_str().unwrap(), "1", &device, "--force"]);
            assert!(said.contains("filled and in use"), "{said}");
            both_go_on();
        });
        assert_eq!(sums(&a), sums(&b), "{layout:?}");
        whole(&b);
        c.finish();
    }
}

/// When the command returns any other member may fail, on any node.
#[test]
fn when_a_member_is_replaced_all_nodes_have_taken_note() {
    if !can_mount() {
        return;
    }
    let c = cluster(LAYOUTS[0]);
    let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
    for round in 0..5 {
        let device = c.disks.names()[1].to_owned();
        ok(&["fail", a.to_str().unwrap(), "1"]);
        ok(&["replace", a.to_str().unwrap(), "1", &device, "--force"]);
        let healths = [health(&a), health(&b)];
        assert!(!healths.iter().any(|h| h.contains("degraded")), "{round}: {healths:?}");
    }
    c.finish();
}

#[test]
fn a_node_killed_while_it_writes_leaves_everything_whole() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let mut c = cluster(layout);
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        let (survivor, synced) = (Rounds::default(), AtomicU64::new(0));
        std::thread::scope(|s| {
            let _stop = survivor.stop_at_end();
            s.spawn(|| load(&b, "b", &survivor));
            let victim = s.spawn(|| {
                let large = std::fs::File::create_new(a.join("a-large")).unwrap();
                let piece = vec![7_u8; 50_000];
                for n in (0..).take_while(|_| !survivor.stop.load(Ordering::Relaxed)) {
                    let written = large.write_all_at(&piece, n * 60_000 % (24 << 20));
                    if written.and_then(|()| large.sync_data()).is_err() {
                        break;
                    }
                    synced.store(n, Ordering::Relaxed);
                }
            });
            wait_until("the victim writes", || synced.load(Ordering::Relaxed) > 8);
            survivor.wait_for("the survivor writes", 8);
            c.kill(0);
            victim.join().unwrap();
            let synced = synced.load(Ordering::Relaxed);
            c.detach(0);
            // What was synced is there, once the other has recovered it.
            let large = std::fs::File::open(b.join("a-large")).unwrap();
            for n in 0..=synced.min(400) {
                let mut back = vec![0; 50_000];
                large.read_exact_at(&mut back, n * 60_000 % (24 << 20)).unwrap();
                assert!(back.iter().all(|x| *x == 7), "piece {n} of {synced}");
            }
            survivor.wait_for("the survivor goes on", 8);
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

/// A member is offline while two nodes write, one is killed over it, and the other is killed while the
/// member catches up.
#[test]
fn a_member_that_was_offline_lacks_nothing_though_nodes_are_killed() {
    if !can_mount() {
        return;
    }
    for layout in LAYOUTS {
        let mut c = cluster(layout);
        let (a, b) = (c.node(0).to_owned(), c.node(1).to_owned());
        while_both_write(&a, &b, |both_go_on| {
            let said = ok(&["offline", b.to_str().unwrap(), "1"]);
            assert!(said.contains("catches up by what it has missed"), "{said}");
            both_go_on();
        });
        sh(&format!("head -c 30000000 /dev/urandom > {0}/big && sync {0}/big", a.display()));
        let written = sums(&b);
        // Its name is there in any case.
        sh(&format!("touch {0}/lost && sync {0}/lost {0}", a.display()));
        sh(&format!("head -c 30000000 /dev/urandom > {}/lost", a.display()));
        c.kill(0);
        c.detach(0);
        c.nodes.remove(0);
        // Whatever of it is there is the same when the member is back.
        wait_until("the dead node is recovered", || b.join("lost").metadata().is_ok());
        // What is not durable may go with the other node, too.
        sh(&format!("rm {0}/lost && sync {0}/* {0}", b.display()));
        let said = ok(&["online", b.to_str().unwrap(), "1", "--background"]);
        assert!(said.contains("brought up to date"), "{said}");
        c.kill(0);
        c.detach(0);
        c.nodes.remove(0);
        let b = c.mount(&[]);
        let filled = || ok(&["status", b.to_str().unwrap()]).contains("active");
        wait_until("the pool is there", filled);
        let view = || ok(&["spare", b.to_str().unwrap(), "--list"]);
        wait_until("the member is filled", || !view().contains("rebuilding"));
        assert_eq!(sums(&b), written, "{layout:?}");
        whole(&b);
        // From it, in place of another one.
        ok(&["fail", b.to_str().unwrap(), "0"]);
        assert_eq!(sums(&b), written, "{layout:?}");
        c.unmount_all();
    }
}

/// Calls on a node, as a program makes them one after the other; the longest that ended since it was last asked.
fn calls(dir: &Path, name: &str, longest: &Mutex<Duration>, stop: &AtomicBool) {
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let begun = Instant::now();
        // In a directory of all nodes, so that what one holds is asked for all the time. The killed node's fail.
        let shared = dir.join("shared");
        let file = shared.join(format!("{name}{}", n % 20));
        let _ = match n % 4 {
            0 => std::fs::write(&file, vec![7; 9_000]),
            1 => std::fs::read_dir(&shared).map(|all| all.for_each(drop)),
            2 => std::fs::rename(&file, shared.join(format!("{name}x"))),
            _ => std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(shared.join("log"))
                .and_then(|log| log.write_all_at(&[b'x'; 100], n % 50 * 100)),
        };
        let mut longest = longest.lock().unwrap();
        *longest = begun.elapsed().max(*longest);
    }
}

/// How long the longest call on the other two nodes takes when the first of `nodes` is killed.
fn stall(c: &Cluster, nodes: [usize; 3]) -> Duration {
    let stop = AtomicBool::new(false);
    let longest = nodes.map(|_| Mutex::new(Duration::ZERO));
    std::thread::scope(|s| {
        for (node, longest) in nodes.iter().zip(&longest) {
            let stop = &stop;
            s.spawn(move || calls(c.node(*node), &format!("n{node}-"), longest, stop));
        }
        std::thread::sleep(Duration::from_millis(700));
        for longest in &longest {
            *longest.lock().unwrap() = Duration::ZERO;
        }
        c.kill(nodes[0]);
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
    });
    longest[1..].iter().map(|l| *l.lock().unwrap()).max().unwrap()
}

/// On a machine that does little else it is less than 2 s; much else is done here.
#[test]
fn three_nodes_on_a_mirror_stand_still_for_a_moment_when_one_is_killed() {
    const LONGEST: Duration = Duration::from_secs(8);
    if !can_mount() {
        return;
    }
    let options = ["--mirror", "2", "--nodes", "4"];
    let mut c = Cluster::of(Disks::in_memory(4, 300), 3, &options);
    std::fs::create_dir(c.node(0).join("shared")).unwrap();
    let mut killed = 0;
    let mut stalls = Vec::new();
    for _ in 0..3 {
        stalls.push(stall(&c, [killed, 1, 2]));
        c.detach(killed);
        c.mount(&[]);
        killed = c.nodes.len() - 1;
    }
    stalls.sort();
    println!("the longest call after a kill, of three kills: {stalls:?}; median {:?}", stalls[1]);
    assert!(stalls[2] < LONGEST && stalls[0] < LONGEST / 2, "{stalls:?}");
    c.finish();
}
