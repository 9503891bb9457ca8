//! Liveness bytes of units of targets: held until nothing of their holder can land any more. In a
//! file of its own, because a process that has lost a session is held for unsettled to its end.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{ByteLockGuard, CHANGE_BYTE, Device, IscsiDevice, MemoryDevice, OpenOptions};
use braid_format::{ByteOffset, Bytes};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};
use braid_testkit::wait_until;

const NAME: &str = "iqn.2026-11.org.braid:alive-test";
const TASK: &str = "BRAID_ISCSI_TEST_TASK";
const UNIT: &str = "BRAID_ISCSI_TEST_UNIT";

fn serve() -> (Target, String, Arc<IscsiDevice>) {
    let lun = |name: &str| {
        let device = MemoryDevice::new(name, Bytes(16 << 20), Bytes(512));
        LunOptions { device, identity: None, reservations: None }
    };
    let luns = vec![lun("memory"), lun("other")];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
    let target = Target::start(listener, options).unwrap();
    let name = format!("iscsi://{}/{NAME}/0", target.address());
    let unit = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
    (target, name, unit)
}

/// A process that holds byte 5 and has a write under way; with `leave` it lets the byte go when its
/// session has broken, and lives on.
fn holder(task: &str, name: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_process", "--exact", "--nocapture"])
        .env(TASK, task)
        .env(UNIT, name)
        .env("BRAID_INITIATOR", "iqn.2026-11.org.braid:holder")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|l| l == "holding"));
    (child, lines)
}

/// Loses the session with its unit, does without that, and lives on by another one.
fn do_without(name: &str, unit: Arc<IscsiDevice>, held: ByteLockGuard) {
    let other = name.replace("/0", "/1");
    let other = IscsiDevice::open(&other, OpenOptions::default()).unwrap();
    let life = other.abilities().locks.lock_byte(5).unwrap().unwrap();
    unit.abilities().session.unwrap().lease(Instant::now());
    println!("\nboth");
    std::io::stdout().flush().unwrap();
    assert!(unit.write(ByteOffset(0), &[7; 512]).is_err());
    held.leave();
    // The life goes on by the other unit, with a session that logs in again where it can.
    other.read(ByteOffset(0), &mut [1; 512]).unwrap();
    println!("\nleft");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    other.read(ByteOffset(0), &mut [1; 512]).unwrap();
    assert!(other.abilities().locks.byte_held(5).unwrap());
    if line == "take\n" {
        drop(unit);
        let again = IscsiDevice::open(name, OpenOptions::default()).unwrap();
        drop(again.abilities().locks.lock_byte(5).unwrap().expect("the byte"));
    }
    drop(life);
    assert!(!other.abilities().locks.byte_locked(5).unwrap());
}

/// What a process is when the environment says so; otherwise nothing.
#[test]
fn child_process() {
    let (Ok(task), Ok(name)) = (std::env::var(TASK), std::env::var(UNIT)) else { return };
    let unit = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
    let held = unit.abilities().locks.lock_byte(5).unwrap().unwrap();
    println!("\nholding");
    std::io::stdout().flush().unwrap();
    if task == "add" {
        // The session of another breaks while that is asked what it is: it does not come to be here.
        let began = Instant::now();
        while IscsiDevice::open(&name, OpenOptions::default()).is_ok() {
            assert!(began.elapsed() < Duration::from_mins(1));
        }
        drop(held);
        assert!(unit.abilities().locks.lock_byte(5).unwrap().is_some(), "nothing could land");
        return;
    }
    if task == "go on" {
        let lost = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
        lost.abilities().session.unwrap().lease(Instant::now());
        println!("\nboth");
        std::io::stdout().flush().unwrap();
        assert!(lost.write(ByteOffset(0), &[7; 512]).is_err());
        // Bytes that are taken after that are let go as ever, and it logs in again where it can.
        for _ in 0..2 {
            drop(unit.abilities().locks.lock_byte(6).unwrap().unwrap());
        }
        unit.read(ByteOffset(0), &mut [1; 512]).unwrap();
        return;
    }
    if task == "do without" {
        return do_without(&name, unit, held);
    }
    if task == "change" {
        drop(held);
        let change = unit.abilities().locks.lock_byte(CHANGE_BYTE).unwrap().unwrap();
        let lost = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
        lost.abilities().session.unwrap().lease(Instant::now());
        println!("\nboth");
        std::io::stdout().flush().unwrap();
        assert!(lost.write(ByteOffset(0), &[7; 512]).is_err());
        drop(change);
        // It may be changed again, and it logs in again where it can.
        for _ in 0..2 {
            drop(unit.abilities().locks.lock_byte(CHANGE_BYTE).unwrap().expect("the byte"));
        }
        unit.read(ByteOffset(0), &mut [1; 512]).unwrap();
        return;
    }
    // It does not log in again.
    unit.abilities().session.unwrap().lease(Instant::now());
    assert!(unit.write(ByteOffset(0), &[7; 512]).is_err());
    if task == "leave" {
        drop(held);
        drop(unit);
        println!("\nleft");
        std::thread::sleep(Duration::from_mins(1));
    }
}

/// The write that was to land in ten minutes is under way no more, so it never lands.
fn never_landed(target: &Target, unit: &IscsiDevice) {
    // Those of who took over are in the table for a moment after their answers.
    wait_until("it was ended", || target.commands() == 0);
    let mut now = [0; 512];
    unit.read(ByteOffset(0), &mut now).unwrap();
    assert_eq!(now, [0; 512]);
}

#[test]
fn the_end_of_a_process_is_known_when_its_commands_have_ended() {
    let (target, name, unit) = serve();
    target.faults().add("write late=600000 times=1").unwrap();
    let (mut child, _lines) = holder("die", &name);
    wait_until("the write has come", || target.commands() != 0);
    assert!(
        unit.abilities().locks.byte_locked(5).unwrap()
            && unit.abilities().locks.lock_byte(5).unwrap().is_none()
    );
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("its session is taken over", || !unit.abilities().locks.byte_locked(5).unwrap());
    never_landed(&target, &unit);
    let held = unit.abilities().locks.lock_byte(5).unwrap();
    let other = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
    assert!(held.is_some() && other.abilities().locks.byte_locked(5).unwrap());
    drop(held);
    assert!(!other.abilities().locks.byte_locked(5).unwrap());
}

#[test]
fn who_lost_a_session_has_not_let_go_before_it_is_taken_over() {
    let (target, name, unit) = serve();
    target.faults().add("write late=600000 times=1").unwrap();
    let (mut child, _lines) = holder("leave", &name);
    wait_until("the write has come", || target.commands() != 0);
    assert_eq!(target.cut("holder"), 1);
    wait_until("its session is taken over", || !unit.abilities().locks.byte_locked(5).unwrap());
    never_landed(&target, &unit);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Ends well.
fn ends(mut child: Child) {
    wait_until("it ends", || child.try_wait().unwrap().is_some());
    assert!(child.wait().unwrap().success());
}

#[test]
fn who_lost_a_session_goes_on_with_the_others() {
    let (target, name, _unit) = serve();
    target.faults().add("write late=1000 times=1").unwrap();
    let (child, mut lines) = holder("go on", &name);
    // Before, a command that is under way may be one of the second session's login.
    assert!(lines.any(|l| l == "both"));
    wait_until("the write has come", || target.commands() != 0);
    assert_eq!(target.cut("holder"), 2);
    ends(child);
}

/// A unit that a pool does without is used again, by the process that left it or by another one. What was under way there
/// lands no more, and the process keeps its life and its sessions with other units.
#[test]
fn who_does_without_a_unit_lives_on_by_the_others() {
    for taken_by_itself in [true, false] {
        let (target, name, unit) = serve();
        target.faults().add("write late=600000 times=1").unwrap();
        let (mut child, mut lines) = holder("do without", &name);
        assert!(lines.any(|l| l == "both"));
        wait_until("the write has come", || target.commands() != 0);
        assert_eq!(target.cut("holder"), 2);
        assert!(lines.any(|l| l == "left"));
        let other = name.replace("/0", "/1");
        let other = IscsiDevice::open(&other, OpenOptions::default()).unwrap();
        assert!(other.abilities().locks.byte_held(5).unwrap());
        if !taken_by_itself {
            wait_until("what was under way has ended", || {
                unit.abilities().locks.lock_byte(5).unwrap().is_some()
            });
            never_landed(&target, &unit);
        }
        let told: &[u8] = if taken_by_itself { b"take\n" } else { b"go on\n" };
        child.stdin.take().unwrap().write_all(told).unwrap();
        ends(child);
        never_landed(&target, &unit);
        for device in [&unit, &other] {
            assert!(!device.abilities().locks.byte_locked(5).unwrap());
        }
    }
}

/// What it had under way when it made the change lands no more once another has the byte.
#[test]
fn who_lost_a_session_during_a_change_makes_the_next_one() {
    let (target, name, unit) = serve();
    target.faults().add("write late=600000 times=1").unwrap();
    let (child, mut lines) = holder("change", &name);
    assert!(lines.any(|l| l == "both"));
    wait_until("the write has come", || target.commands() != 0);
    assert_eq!(target.cut("holder"), 2);
    ends(child);
    wait_until("its session is taken over", || {
        unit.abilities().locks.lock_byte(CHANGE_BYTE).unwrap().is_some()
    });
    never_landed(&target, &unit);
}

#[test]
fn a_unit_that_could_not_be_opened_leaves_nothing_that_could_land() {
    let (target, name, unit) = serve();
    let (child, _lines) = holder("add", &name);
    // Not one of the first, which belong to the login.
    target.faults().add("any cut every=5 times=1").unwrap();
    ends(child);
    assert!(!unit.abilities().locks.byte_locked(5).unwrap());
}

#[test]
fn nobody_is_dead_while_its_target_cannot_be_asked() {
    let (target, name, unit) = serve();
    let (mut child, _lines) = {
        target.faults().add("write mute times=1").unwrap();
        holder("die", &name)
    };
    child.kill().unwrap();
    child.wait().unwrap();
    drop(target);
    assert!(unit.abilities().locks.byte_locked(5).unwrap());
    assert!(unit.abilities().locks.lock_byte(5).unwrap().is_none());
}
