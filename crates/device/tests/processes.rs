//! Several processes on one device: compare-and-write counts exactly, and a process that dies lets
//! go of its liveness byte.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use braid_device::{CawOutcome, Device, FileDevice, Op, OpenOptions, Request, run};
use braid_format::{ByteOffset, Bytes};

const ROLE: &str = "BRAID_TEST_ROLE";
const DEVICE: &str = "BRAID_TEST_DEVICE";
const PROCESSES: u64 = 4;
const THREADS: u64 = 2;
const ROUNDS: u64 = 250;
/// Counters on neighbouring sectors, so that locks of ranges split and merge.
const COUNTERS: u64 = 2;

/// Runs this test binary again as `role`.
fn child(role: &str, device: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DEVICE, device)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
fn device(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("device");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    path
}

/// Not a test of its own: what the children do.
#[test]
fn role() {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(DEVICE)) else { return };
    let path = Path::new(&path);
    match role.as_str() {
        "count" => {
            // Two threads on one handle, and each also on a handle of its own.
            let shared = FileDevice::open(path, OpenOptions::default()).unwrap();
            std::thread::scope(|s| {
                for _ in 0..THREADS {
                    s.spawn(|| {
                        let own = FileDevice::open(path, OpenOptions::default()).unwrap();
                        for n in 0..ROUNDS {
                            count(if n % 2 == 0 { &shared } else { &own }, n % COUNTERS);
                        }
                    });
                }
            });
        }
        "hold" => {
            let d = FileDevice::open(path, OpenOptions::default()).unwrap();
            let _held = d.abilities().locks.lock_byte(7).unwrap().unwrap();
            println!("holding");
            std::thread::sleep(std::time::Duration::from_mins(1));
        }
        "fork" => {
            // Rings and threads made before a fork must hurt neither side.
            let d = FileDevice::open(path, OpenOptions::default()).unwrap();
            batch(&d);
            // SAFETY: the forked process does its batch and ends without running anything else.
            match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => {
                    let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| batch(&d)))
                        .is_ok();
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(i32::from(!fine)) }
                }
                nix::unistd::ForkResult::Parent { child } => {
                    batch(&d);
                    let status = nix::sys::wait::waitpid(child, None).unwrap();
                    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
                    batch(&d);
                }
            }
        }
        other => panic!("role {other}"),
    }
}

fn count(d: &Arc<FileDevice>, counter: u64) {
    let sector = d.info().sector;
    let at = ByteOffset(4096 + counter * sector.get());
    let mut now = vec![0; sector.to_usize()];
    d.read(at, &mut now).unwrap();
    loop {
        let value = u64::from_le_bytes(*now.first_chunk().unwrap());
        // The whole sector carries the number, so that a torn one would be seen.
        let next: Vec<u8> = (value + 1).to_le_bytes().repeat(sector.to_usize() / 8);
        match d.compare_and_write(at, &now, &next).unwrap() {
            CawOutcome::Written => return,
            CawOutcome::Mismatch(stands) => {
                assert!(stands.chunks(8).all(|c| c == &stands[..8]), "torn");
                now = stands;
            }
        }
    }
}

fn batch(d: &Arc<FileDevice>) {
    let (mut a, mut b) = ([0; 4096], [0; 4096]);
    let mut requests = [
        Request { device: &**d, at: ByteOffset(0), op: Op::Read(&mut a), result: Ok(()) },
        Request { device: &**d, at: ByteOffset(4096), op: Op::Read(&mut b), result: Ok(()) },
    ];
    run(&mut requests);
    assert!(requests.iter().all(|r| r.result.is_ok()));
}

#[test]
fn compare_and_write_is_an_exact_counter() {
    for place in ["/var/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = device(&dir);
        let children: Vec<Child> = (0..PROCESSES).map(|_| child("count", &path)).collect();
        for mut c in children {
            assert!(c.wait().unwrap().success());
        }
        let d = FileDevice::open(&path, OpenOptions::default()).unwrap();
        for counter in 0..COUNTERS {
            let mut now = vec![0; d.info().sector.to_usize()];
            d.read(ByteOffset(4096 + counter * d.info().sector.get()), &mut now).unwrap();
            let value = u64::from_le_bytes(*now.first_chunk().unwrap());
            assert_eq!(value, PROCESSES * THREADS * ROUNDS / COUNTERS, "{place}");
        }
    }
}

#[test]
fn a_killed_process_lets_go_of_its_liveness_byte_at_once() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = device(&dir);
    let d = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mut c = child("hold", &path);
    let out = BufReader::new(c.stdout.take().unwrap());
    assert!(out.lines().map_while(Result::ok).any(|l| l.contains("holding")));
    assert!(d.abilities().locks.byte_locked(7).unwrap());
    assert!(d.abilities().locks.lock_byte(7).unwrap().is_none());
    c.kill().unwrap();
    c.wait().unwrap();
    assert!(!d.abilities().locks.byte_locked(7).unwrap());
    assert!(d.abilities().locks.lock_byte(7).unwrap().is_some());
}

#[test]
fn a_forked_process_has_engines_of_its_own() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = device(&dir);
    for no_uring in ["", "1"] {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--test-threads=1"])
            .env(ROLE, "fork")
            .env(DEVICE, &path)
            .env("BRAID_NO_URING", no_uring)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(Bytes(std::fs::metadata(&path).unwrap().len()), Bytes(1 << 20));
}
