//! Nonsense where structures should be: every command says so; none panics, hangs, or dies of it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Command, Output};

use braid_format::superblock::RawSuperblock;
use common::{Disks, can_mount, is_mounted, ok};
use zerocopy::FromBytes;

/// The pool has one member: what stands at a pool address stands 1 MiB further on the device.
const DATA_AT: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// The lock record's sector comes first in a slot.
const BODY_AT: u64 = 4096;

/// A command that must come to an end, within a minute even on a loaded machine.
fn run(args: &[&str]) -> Output {
    let exe = env!("CARGO_BIN_EXE_braid");
    Command::new("timeout").args(["-s", "KILL", "60", exe]).args(args).output().unwrap()
}

fn sound(args: &[&str], what: &str) -> Output {
    let out = run(args);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code().is_some_and(|c| c < 100), "{what}: braid {args:?}: {said}");
    assert!(!said.contains("panicked"), "{what}: braid {args:?}: {said}");
    out
}

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Where the important structures are on the device: (name, place, length).
fn places(device: &fs::File, size: u64) -> Vec<(&'static str, u64, usize)> {
    let mut slot = vec![0; 2 * BLOCK as usize];
    device.read_exact_at(&mut slot, DATA_AT).unwrap();
    let body = (0..slot.len()).step_by(512).find_map(|at| {
        let (sb, _) = RawSuperblock::read_from_prefix(&slot[at..]).ok()?;
        (sb.version.get() == RawSuperblock::VERSION && sb.root_inode.get() > 0)
            .then_some((at as u64, sb))
    });
    let (body_at, sb) = body.expect("a superblock in its slot");
    assert!(body_at <= BODY_AT);
    let at = |block: u64| DATA_AT + block * BLOCK;
    vec![
        ("first label", 64 << 10, 4096),
        ("second label", size - (1 << 20), 4096),
        ("superblock", at(0), 2 * BLOCK as usize),
        ("named blocks", at(sb.named_start.get()), 8 * BLOCK as usize),
        ("slot records", at(sb.slot_area.get()), BLOCK as usize),
        ("heartbeats", at(sb.heartbeat_area.get()), BLOCK as usize),
        ("node areas", at(sb.node_area.get()), 8 * BLOCK as usize),
        ("journal header", at(sb.journal_area.get()), 2 * BLOCK as usize),
        ("first group", at(sb.rgrp_start.get()), 4 * BLOCK as usize),
        ("root directory", at(sb.root_inode.get()), BLOCK as usize),
    ]
}

#[test]
fn garbage_anywhere_is_survived_by_every_command() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(1, 64);
    ok(&d.with(&["create", "p"], &[]));
    let dir = d.path("mnt");
    fs::create_dir(&dir).unwrap();
    ok(&d.with(&["mount"], &[&dir]));
    fs::create_dir(format!("{dir}/sub")).unwrap();
    fs::write(format!("{dir}/sub/file"), vec![7; 100_000]).unwrap();
    common::unmount_idle(dir.as_ref());
    let whole = fs::read(&d.paths[0]).unwrap();
    let device = OpenOptions::new().read(true).write(true).open(&d.paths[0]).unwrap();
    let mut rng = Rng(20_261_121);
    for (what, at, len) in places(&device, whole.len() as u64) {
        // All of it; a few bytes of it; zeros.
        for round in 0..3 {
            match round {
                0 => device.write_all_at(&rng.bytes(len), at).unwrap(),
                1 => {
                    for _ in 0..8 {
                        let place = at + rng.next() % len as u64;
                        device.write_all_at(&rng.bytes(2), place).unwrap();
                    }
                }
                _ => device.write_all_at(&vec![0; len], at).unwrap(),
            }
            let what = format!("{what}, round {round}");
            everything(&d, &dir, &what);
            device.write_all_at(&whole, 0).unwrap();
        }
    }
}

fn everything(d: &Disks, dir: &str, what: &str) {
    sound(&d.with(&["scan"], &[]), what);
    sound(&d.with(&["dump-label"], &[]), what);
    sound(&d.with(&["status"], &[]), what);
    sound(&d.with(&["check"], &[]), what);
    let log = format!("log={}", d.path("log"));
    if sound(&d.with(&["mount"], &[dir, "-o", &log]), what).status.success() {
        // Errors are fine; a server that dies of it is not.
        let script = format!("ls -lR {dir}; cat {dir}/sub/file; echo x >{dir}/new; df {dir}");
        Command::new("timeout").args(["60", "bash", "-c", &script]).output().unwrap();
        let mut left = run(&["unmount", dir]);
        for _ in 0..100 {
            if left.status.success() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            left = run(&["unmount", dir]);
        }
        let said = fs::read_to_string(d.path("log")).unwrap_or_default();
        assert!(!said.contains("panicked"), "{what}: {said}");
        assert!(left.status.success() && !is_mounted(dir.as_ref()), "{what}: not unmounted");
    }
    sound(&d.with(&["check", "--repair"], &[]), what);
}
