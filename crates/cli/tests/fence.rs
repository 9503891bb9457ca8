//! Nodes that take each other for nodes of other hosts: silence, fences, and what a fenced node may
//! still do. All of them run on this host and pretend.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use common::san::San;
use common::{Disks, braid, can_mount, fails, ok, pid_of, sh, unmount_idle, wait_until};
use rustix::process::{Signal, kill_process};

/// What `braid nodes` says of the node in a slot, asked of the mount on `dir`.
fn node(dir: &str, slot: u64) -> Option<serde_json::Value> {
    let all: serde_json::Value = serde_json::from_str(&ok(&["nodes", "--json", dir])).unwrap();
    all["nodes"].as_array().unwrap().iter().find(|n| n["slot"] == slot).cloned()
}

/// Appends lines to `dir/log` as fast as each is durable, and counts those that are in `acked`.
fn writer(dir: &str, acked: &str) -> Child {
    let script = format!(
        "n=0; while echo line $n >> {dir}/log && sync {dir}/log; do n=$((n+1)); echo $n > {acked}.new; mv {acked}.new {acked}; done"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn number(path: &str) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn a_stopped_node_is_fenced_by_reservation_and_its_late_writes_do_not_land() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M", "memory:256M"], &[]);
    ok(&san.with(&["create", "san"], &[]));
    let a = san.mount_as("host-a", "a", "io_timeout=3");
    let b = san.mount_as("host-b", "b", "io_timeout=3");
    for slot in [0, 1] {
        let n = node(&b, slot).unwrap();
        assert!(n["key"].is_string(), "{n}");
        assert_eq!(n["fence"], if slot == 0 { "reservation" } else { "kernel" }, "{n}");
    }
    let acked = san.path("acked");
    let writing = writer(&a, &acked);
    wait_until("lines are durable", || number(&acked) > 5);
    // From now on everything that it writes comes much later.
    san.tell(&["add", "write", "late=600000", "from=iqn.2026-11.org.braid:host-a"]);
    let late = || san.tell(&["list"]).contains("(0 commands met it)");
    wait_until("a write that will be late is under way", || !late());
    let stopped = pid_of(&a);
    kill_process(stopped, Signal::STOP).unwrap();
    let began = Instant::now();
    // Waits for the file's lock, so for the fence and the recovery.
    let log = sh(&format!("timeout 60 cat {b}/log"));
    println!("served {:?} after it was stopped, by an io_timeout of 3 s", began.elapsed());
    let lines = number(&acked);
    let kept = log.lines().take_while(|l| !l.is_empty()).count();
    assert!(u64::try_from(kept).unwrap() >= lines, "{kept} of {lines} lines");
    sh(&format!("echo b was here > {b}/log; sync {b}/log"));
    // What was to be late is not under way any more; what it says from now on is refused.
    san.tell(&["clear"]);
    kill_process(stopped, Signal::CONT).unwrap();
    let writing = std::cell::RefCell::new(writing);
    let ended = || writing.borrow_mut().try_wait().unwrap().is_some();
    wait_until("the writer has an error", ended);
    wait_until("the stopped node refuses everything", || {
        let out = Command::new("bash").args(["-c", &format!("echo x > {a}/new")]).output().unwrap();
        !out.status.success()
    });
    let said = std::fs::read_to_string(format!("{a}.log")).unwrap();
    assert!(said.contains("fenced") && !said.contains("panicked"), "{said}");
    wait_until("its slot is free", || node(&b, 0).is_none());
    assert_eq!(sh(&format!("cat {b}/log; ls {b}")), "b was here\nlog\n");
    braid(&["unmount", "--lazy", &a]);
    wait_until("its process has ended", || rustix::process::test_kill_process(stopped).is_err());
    // It comes back with another key, in another life.
    let a = san.mount_as("host-a", "again", "io_timeout=3");
    sh(&format!("test \"$(cat {a}/log)\" = 'b was here'; echo a too >> {a}/log; sync {a}/log"));
    unmount_idle(Path::new(&a));
    unmount_idle(Path::new(&b));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// Members that come while nodes use the pool get the keys of all, before anything is on them.
#[test]
fn members_that_come_later_get_the_keys_of_all() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"; 5], &[]);
    let [u0, u1, u2, u3, u4] = &san.units[..] else { panic!("{:?}", san.units) };
    ok(&["create", "mirrored", u0, u1, "--mirror", "2", "--nodes", "4"]);
    let mount = |host: &str| {
        let (dir, of) = (san.path(host), [u0.as_str(), u1.as_str()]);
        San::mount_these_as(host, &of, &dir, "io_timeout=10")
    };
    let (a, b) = (mount("host-a"), mount("host-b"));
    let both = san.keys(0);
    assert_eq!((both.len(), san.keys(1) == both, san.keys(2).len()), (2, true, 0));
    sh(&format!("head -c 20000000 /dev/urandom > {a}/old; sync {a}/old"));
    // Told to the one, and the other's keys come too.
    let said = ok(&["replace", &b, "1", u2]);
    assert!(said.contains("in use"), "{said}");
    ok(&["add", &a, u3, u4, "--mirror", "2"]);
    wait_until("all keys are everywhere", || [0, 2, 3, 4].iter().all(|n| san.keys(*n) == both));
    wait_until("nobody is registered with what left", || san.keys(1).is_empty());
    sh(&format!("test $(sha256sum < {a}/old | cut -c1-64) = $(sha256sum < {b}/old | cut -c1-64)"));
    // A fence reaches what came later.
    let stopped = pid_of(&b);
    kill_process(stopped, Signal::STOP).unwrap();
    wait_until("its keys are taken everywhere", || {
        [0, 2, 3, 4].iter().all(|n| san.keys(*n).len() == 1)
    });
    kill_process(stopped, Signal::CONT).unwrap();
    wait_until("it learns that", || {
        std::fs::read_to_string(format!("{b}.log")).unwrap().contains("withdraw")
    });
    assert!([0, 2, 3, 4].iter().all(|n| san.keys(*n).len() == 1), "it does not come back");
    braid(&["unmount", "--lazy", &b]);
    let b = San::mount_these_as("host-c", &[u0, u2, u3, u4], &san.path("host-c"), "io_timeout=3");
    wait_until("another's keys are there", || [0, 2, 3, 4].iter().all(|n| san.keys(*n).len() == 2));
    unmount_idle(Path::new(&a));
    wait_until("what leaves is gone everywhere", || {
        [0, 2, 3, 4].iter().all(|n| san.keys(*n).len() == 1)
    });
    unmount_idle(Path::new(&b));
    assert!([0, 2, 3, 4].iter().all(|n| san.keys(*n).is_empty()));
    let said = ok(&["check", u0, u2, u3, u4]);
    assert!(said.contains("clean"), "{said}");
}

/// Nodes that died all at once leave their keys, and with them the reservation.
#[test]
fn what_dead_nodes_had_registered_keeps_nobody_out_for_ever() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"], &[]);
    ok(&san.with(&["create", "san"], &[]));
    for round in 0..2 {
        let dirs = [san.mount(&format!("a{round}")), san.mount(&format!("b{round}"))];
        sh(&format!("echo {round} > {}/file; sync {}/file", dirs[0], dirs[0]));
        let said = fails(&san.with(&["create", "--force", "other"], &[]));
        assert!(said.contains("in use"), "{said}");
        for dir in &dirs {
            kill_process(pid_of(dir), Signal::KILL).unwrap();
            braid(&["unmount", "--lazy", dir]);
        }
        if round == 0 {
            wait_until("the check can begin", || {
                braid(&san.with(&["check"], &[])).status.success()
            });
        }
    }
    let said = fails(&san.with(&["create", "other"], &[]));
    assert!(said.contains("--force"), "{said}");
    ok(&san.with(&["create", "--force", "other"], &[]));
    let dir = san.mount("new");
    assert_eq!(sh(&format!("ls {dir}; echo new > {dir}/file; cat {dir}/file")), "new\n");
    unmount_idle(Path::new(&dir));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// On files there are no reservations.
fn mount_on_files(disks: &Disks, host: &str, options: &str) -> String {
    common::mount_as(host, &disks.names(), &disks.path(host), options)
}

#[test]
fn without_reservations_a_command_or_a_person_says_that_a_node_is_dead() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "shared"], &[]));
    let (called, script) = (disks.path("called"), disks.path("off"));
    std::fs::write(&script, format!("#!/bin/sh\necho \"$@\" >> {called}\nexit 0\n")).unwrap();
    sh(&format!("chmod +x {script}"));
    let said =
        fails(&disks.with(
            &["mount"],
            &[disks.dir.path().to_str().unwrap(), "-o", "fence_command=/nowhere"],
        ));
    assert!(said.contains("fence_command"), "{said}");
    let a = mount_on_files(&disks, "host-a", "io_timeout=4");
    let b = mount_on_files(&disks, "host-b", "io_timeout=4");
    assert_eq!(node(&b, 0).unwrap()["fence"], "operator");
    // A healthy node of another host is not called silent, by whom ever.
    assert_eq!(node(&b, 0).unwrap()["state"], "alive");
    for said in [ok(&["status", &b]), ok(&["nodes", &b]), ok(&disks.with(&["nodes"], &[]))] {
        assert!(!said.to_lowercase().contains("silent"), "{said}");
    }
    assert_eq!(ok(&["nodes", &b]).matches("alive").count(), 2);
    let said = fails(&["fence", &b, "0"]);
    assert!(said.contains("--confirm"), "{said}");
    let said = fails(&["fence", &b, "0", "--confirm"]);
    assert!(said.contains("heartbeats of late"), "{said}");
    let said = fails(&["fence", &b, "1", "--confirm"]);
    assert!(said.contains("this host"), "{said}");
    sh(&format!("echo kept > {a}/file; sync {a}/file; cat {a}/file > /dev/null"));
    kill_process(pid_of(&a), Signal::KILL).unwrap();
    wait_until("it is silent", || node(&b, 0).is_some_and(|n| n["state"] == "silent"));
    assert_eq!(node(&b, 0).unwrap()["fence"], "operator");
    let said = ok(&["status", &b]);
    let silent = "health: NODE SILENT: node 0 on host-a has shown no life";
    assert!(said.starts_with(silent), "{said}");
    assert!(said.contains("turn its host off, then `braid fence shared 0 --confirm`"), "{said}");
    ok(&["fence", &b, "0", "--confirm"]);
    wait_until("it is recovered", || node(&b, 0).is_none());
    assert_eq!(sh(&format!("timeout 60 cat {b}/file")), "kept\n");
    braid(&["unmount", "--lazy", &a]);
    // The same with a command, which nobody has to give.
    let c = mount_on_files(&disks, "host-c", &format!("io_timeout=4,fence_command={script}"));
    kill_process(pid_of(&b), Signal::KILL).unwrap();
    wait_until("it is recovered", || node(&c, 1).is_none());
    let said = std::fs::read_to_string(&called).unwrap();
    assert!(said.starts_with("host-b 1 "), "{said}");
    assert_eq!(sh(&format!("timeout 60 cat {c}/file")), "kept\n");
    braid(&["unmount", "--lazy", &b]);
    unmount_idle(Path::new(&c));
    let said = ok(&disks.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// Its socket takes calls all the same: they go to the kernel.
#[test]
fn a_stopped_node_does_not_keep_whoever_asks_it_waiting_for_ever() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 256);
    ok(&disks.with(&["create", "stopped-node"], &[]));
    let dir = disks.path("node");
    std::fs::create_dir_all(&dir).unwrap();
    ok(&disks.with(&["mount"], &[&dir]));
    let stopped = pid_of(&dir);
    kill_process(stopped, Signal::STOP).unwrap();
    let ask = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["120", env!("CARGO_BIN_EXE_braid")]).args(args).stderr(Stdio::piped());
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    // What the devices say may be shown without the node.
    let shown = [
        ask(&["nodes", "stopped-node"]),
        ask(&["locks", "stopped-node"]),
        ask(&["status", "--io", "stopped-node"]),
    ];
    let refused =
        [ask(&["fence", "stopped-node", "1", "--confirm"]), ask(&["fail", "stopped-node", "0"])];
    let ended = |child: Child| child.wait_with_output().unwrap();
    let (shown, refused) = (shown.map(ended), refused.map(ended));
    kill_process(stopped, Signal::CONT).unwrap();
    let said = |out: &Output| String::from_utf8_lossy(&out.stderr).into_owned();
    for out in &shown {
        assert!(out.status.success() || said(out).contains("does not answer"), "{}", said(out));
    }
    for out in &refused {
        assert!(!out.status.success() && said(out).contains("does not answer"), "{}", said(out));
    }
    ok(&["nodes", "stopped-node"]);
    unmount_idle(Path::new(&dir));
}

#[test]
fn locks_and_nodes_are_shown() {
    if !can_mount() {
        return;
    }
    let mut cluster = common::Cluster::new(1, 256, 2);
    let dirs: Vec<String> = cluster.nodes.iter().map(|d| d.to_str().unwrap().to_owned()).collect();
    for n in 0..20 {
        sh(&format!("echo {n} > {}/file; test $(cat {}/file) = {n}", dirs[0], dirs[1]));
    }
    let hot: serde_json::Value =
        serde_json::from_str(&ok(&["locks", "--hot", "--json", &dirs[0]])).unwrap();
    let first = &hot["locks"][0];
    assert!(first["of"].as_str().unwrap().starts_with("inode"), "{hot}");
    assert!(first["hand_overs"].as_u64().unwrap() >= 10, "{hot}");
    assert!(hot["counts"]["waited"]["count"].as_u64().unwrap() > 0, "{hot}");
    let said = ok(&["locks", &dirs[1]]);
    assert!(said.contains("handed over") && said.contains("waited"), "{said}");
    let said = ok(&["nodes", &dirs[0]]);
    assert!(
        said.contains("0 (this)") && said.contains("kernel") && said.contains("alive"),
        "{said}"
    );
    let names = cluster.disks.with(&["nodes"], &[]);
    let said = ok(&names);
    assert!(said.contains(&dirs[1]), "{said}");
    cluster.unmount_all();
    let said = ok(&cluster.disks.with(&["nodes"], &[]));
    assert!(said.contains("no node"), "{said}");
}
