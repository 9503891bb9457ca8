//! Several nodes that die at one moment, each holding what the recovery of another needs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Cluster, Disks, can_mount, sh};

/// Longest time until all of them are recovered. Without an end it would hang for good.
const PATIENCE: Duration = Duration::from_mins(1);

/// Each node writes and syncs files and makes directories, all in one directory, until it is killed.
fn work(c: &Cluster, nodes: &[usize], round: usize) -> std::process::Child {
    let each = nodes.iter().map(|n| {
        let dir = c.node(*n).display();
        format!(
            "(for j in $(seq 400); do dd if=/dev/zero of={dir}/x/{n}$((j%20)) bs=64k count=8 conv=fsync; \
             mkdir {dir}/x/d{round}-{n}-$j; done) >/dev/null 2>&1 &"
        )
    });
    let script = each.collect::<String>() + "wait";
    std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap()
}

/// Runs a command in the directory that must end in time.
fn answers(dir: &Path) {
    let begun = Instant::now();
    let script = format!(
        "timeout -s KILL {} sh -c 'ls -l {d}/x | tail -1; mkdir {d}/x/after; rmdir {d}/x/after; df {d} | tail -1'",
        PATIENCE.as_secs(),
        d = dir.display()
    );
    sh(&script);
    println!("answers after {:?}", begun.elapsed());
}

fn kill_together(options: &[&str]) {
    if !can_mount() {
        return;
    }
    let options = [&["--nodes", "8"], options].concat();
    let mut c = Cluster::of(Disks::new(2, 600), 3, &options);
    std::fs::create_dir(c.node(0).join("x")).unwrap();
    for round in 0..3 {
        let last = c.nodes.len();
        let all: Vec<usize> = (last - 3..last).collect();
        let mut load = work(&c, &all, round);
        std::thread::sleep(Duration::from_millis(700));
        // Two of three, and one that lives recovers both; then all, and who mounts next does.
        let dying = if round == 1 { &all[..2] } else { &all[..] };
        dying.iter().for_each(|n| c.kill(*n));
        if round == 1 {
            answers(c.node(all[2]));
            c.kill(all[2]);
        }
        load.wait().unwrap();
        all.iter().for_each(|n| c.detach(*n));
        for _ in 0..3 {
            c.mount(&[]);
        }
        answers(c.node(last));
        let nodes = common::ok(&c.disks.with(&["nodes"], &[]));
        assert!(!nodes.contains("damaged"), "{nodes}");
    }
    c.nodes.drain(..c.nodes.len() - 3);
    c.finish();
}

#[test]
fn nodes_that_die_together_are_recovered_by_who_lives_and_by_who_comes() {
    kill_together(&[]);
}

#[test]
fn nodes_of_a_mirror_that_die_together_are_too() {
    kill_together(&["--mirror", "2"]);
}
