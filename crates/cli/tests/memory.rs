//! The bound of a node's memory binds: more inodes, metadata and data than fit pass through it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use common::{Cluster, can_mount, fails};

/// The bound asked for, MiB; and what the process may have beside what the bound is about: its
/// program, its threads, and what they transfer at a time.
const BOUND: u64 = 64;
const BESIDE: u64 = 64;
/// With the usual bound (512 MiB) these need more than both: see `braid bench memory`.
const FILES: usize = 24_000;
const STREAM_MIB: usize = 256;

fn resident_mib(pid: i32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(field)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() / 1024
}

#[test]
fn a_bound_of_memory_binds() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(2, 512, 0);
    let dir = c.mount(&[&format!("memory={BOUND}M")]);
    let pid = c.pid(0);
    let within = |step: &str| {
        let peak = resident_mib(pid, "VmHWM:");
        assert!(peak <= BOUND + BESIDE, "{step}: {peak} MiB");
    };
    fs::create_dir(dir.join("many")).unwrap();
    for n in 0..FILES {
        File::create(dir.join(format!("many/{n}"))).unwrap();
    }
    within("files made");
    let mut file = File::create(dir.join("stream")).unwrap();
    let mut buffer = vec![0x5a; 1 << 20];
    for _ in 0..STREAM_MIB {
        file.write_all(&buffer).unwrap();
    }
    file.sync_all().unwrap();
    within("streamed in");
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).clone();
    for options in [direct, OpenOptions::new().read(true).clone()] {
        let mut file = options.open(dir.join("stream")).unwrap();
        let aligned = buffer.as_ptr().align_offset(4096).min(buffer.len());
        while file.read(&mut buffer[aligned..aligned + (1 << 19)]).unwrap() > 0 {}
    }
    within("streamed out");
    for entry in fs::read_dir(dir.join("many")).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
    within("looked at all");
    drop(file);
    c.finish();
}

#[test]
fn a_bound_that_is_too_small_is_refused() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(1, 256, 0);
    let dir = c.disks.path("mnt");
    fs::create_dir(&dir).unwrap();
    for word in ["memory=1M", "memory=", "memory", "memory=lots"] {
        let said = fails(&c.disks.with(&["mount"], &[&dir, "-o", word]));
        assert!(said.contains("memory"), "{said}");
    }
}
