//! A pool on units of an iSCSI target: `braid target` in a process of its own, everything else by
//! `iscsi://` names.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;

use std::path::Path;
use std::process::Command;

use common::san::San;
use common::{braid, can_mount, fails, ok, sh, unmount_idle, wait_until};

#[test]
fn a_pool_on_a_target_is_used_like_any_other() {
    let san = San::new(&["memory:256M", "memory:256M"], &[]);
    assert_eq!(san.units.len(), 2);
    let said = ok(&san.with(&["create", "onetarget"], &[]));
    assert!(said.contains("created pool 'onetarget'") && said.contains(&san.units[0]), "{said}");
    let said = ok(&san.with(&["scan"], &[]));
    assert!(said.contains("onetarget") && said.contains(&san.units[1]), "{said}");
    let by_name = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(["status", "onetarget"])
        .env("BRAID_DEVICES", san.units.join(":"))
        .output()
        .unwrap();
    assert!(by_name.status.success(), "{by_name:?}");
    let said = fails(&san.with(&["create", "other"], &[]));
    assert!(said.contains("belongs"), "{said}");
    if !can_mount() {
        return;
    }
    let dir = san.mount("mnt");
    let said = fails(&san.with(&["check"], &[]));
    assert!(said.contains("in use") || said.contains("mounted"), "{said}");
    let said = fails(&san.with(&["create", "--force", "other"], &[]));
    assert!(said.contains("in use"), "{said}");
    sh(&format!(
        "cp -r {src} {dir}/src; dd if=/dev/urandom of={dir}/large bs=1M count=64 status=none; sync {dir}/large
         (cd {src} && find . -type f -exec sha256sum {{}} +) > {sums}; (cd {dir}/src && sha256sum --quiet -c {sums})
         sha256sum {dir}/large > {sums}.large",
        src = concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
        sums = san.path("sums"),
    ));
    // A second node, on the same units.
    let other = san.mount("other");
    sh(&format!("(cd {other}/src && sha256sum --quiet -c {})", san.path("sums")));
    sh(&format!(
        "echo one > {dir}/said; test $(cat {other}/said) = one; echo two > {other}/said; test $(cat {dir}/said) = two"
    ));
    let said = ok(&san.with(&["status"], &[]));
    assert!(said.contains("alive"), "{said}");
    assert!(san.tell(&["sessions"]).lines().count() >= 4);
    unmount_idle(Path::new(&other));
    unmount_idle(Path::new(&dir));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
    let dir = san.mount("mnt");
    sh(&format!("sha256sum --quiet -c {}.large", san.path("sums")));
    unmount_idle(Path::new(&dir));
}

/// Three of four units are slow, as disks are beside what has no moving parts. (So slow that the fourth
/// answers clearly sooner on a machine with much to do, too.)
#[test]
fn metadata_gets_the_unit_that_answers_sooner() {
    let san = San::new(&["memory:400M", "memory:400M", "memory:300M", "memory:400M"], &[]);
    for unit in [0, 1, 3] {
        san.tell(&["add", "read", "delay=200", &format!("lun={unit}")]);
    }
    let said = ok(&san.with(&["create", "p", "--subpools", "auto", "--dry-run"], &[]));
    assert!(said.contains("subpools: metadata and journals on 1 device that answers"), "{said}");
    let (metadata, data) = said.split_once("\ndata").unwrap();
    assert!(metadata.contains(&san.units[2]) && !metadata.contains(&san.units[1]), "{said}");
    assert!(data.contains(&san.units[1]) && !data.contains(&san.units[2]), "{said}");
    let how = ["create", "p", "--subpools", "auto", "--dry-run", "--mirror", "2"];
    let said = ok(&san.with(&how, &[]));
    assert!(said.contains("subpools: one for everything") && said.contains("take 2"), "{said}");
    san.tell(&["clear"]);
}

/// The node's process is gone, its sessions are taken over, its journal is replayed: by the next
/// one on this host.
#[test]
fn a_killed_node_on_a_target_is_recovered() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"], &[]);
    ok(&san.with(&["create", "san"], &[]));
    let (dir, other) = (san.mount("a"), san.mount("b"));
    sh(&format!("echo kept > {dir}/file; sync {dir}/file; exec 9>{dir}/open"));
    common::pool::kill(&dir);
    let read = format!("timeout 30 cat {other}/file; echo more >> {other}/file; cat {other}/file");
    assert_eq!(sh(&read), "kept\nkept\nmore\n");
    wait_until("the dead node's slot is free", || {
        let said = ok(&san.with(&["status"], &[]));
        !said.contains("silent") && !said.contains("recovered")
    });
    braid(&["unmount", "--lazy", &dir]);
    unmount_idle(Path::new(&other));
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

#[test]
fn names_that_lead_nowhere_are_said() {
    let nowhere = "iscsi://127.0.0.1:1/iqn.2026-11.org.braid:none/0";
    for command in ["create", "mount", "check", "status"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let said = match command {
            "create" => fails(&["create", "none", nowhere]),
            "mount" => fails(&["mount", nowhere, dir]),
            _ => fails(&[command, nowhere]),
        };
        assert!(said.contains(nowhere), "{command}: {said}");
    }
    let said = fails(&["create", "none", "iscsi://host/only"]);
    assert!(said.contains("iscsi://"), "{said}");
    let said = fails(&["target", "memory:1M", "--fault", "write sometimes"]);
    assert!(said.contains("delay"), "{said}");
    let said = fails(&["target", "memory:1000", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("sectors"), "{said}");
}

#[test]
fn secrets_are_asked_for_and_not_shown() {
    let san = San::new(&["memory:256M"], &["--chap", "braid%longersecret"]);
    let unit = san.units[0].replace("iscsi://", "iscsi://braid%longersecret@");
    let said = fails(&["create", "san", &san.units[0]]);
    assert!(said.contains("log in"), "{said}");
    let said = ok(&["create", "san", &unit]);
    assert!(!said.contains("longer"), "{said}");
    if !can_mount() {
        return;
    }
    let dir = san.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    ok(&["mount", &unit, &dir]);
    let shown = sh("cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' || true");
    let node = shown.contains(&dir) && !shown.contains("longersecret");
    unmount_idle(Path::new(&dir));
    assert!(node, "{shown}");
}

/// One of two units runs commands and answers none, then not even logins. With copies the pool goes
/// on without it; nothing that was acknowledged is lost, and nobody waits longer than the bounds say.
#[test]
fn a_mirror_goes_on_without_a_unit_that_answers_nothing() {
    goes_on_without_a_silent_unit(&["memory:256M"; 2], &["--mirror", "2"]);
}

#[test]
fn parity_goes_on_without_a_unit_that_answers_nothing() {
    goes_on_without_a_silent_unit(&["memory:192M"; 3], &["--parity", "1"]);
}

fn goes_on_without_a_silent_unit(units: &[&str], layout: &[&str]) {
    if !can_mount() {
        return;
    }
    let san = San::new(units, &[]);
    ok(&san.with(&["create", "silent"], layout));
    let dir = san.mount_as("host-a", "a", "io_timeout=2");
    let other = san.mount_as("host-b", "b", "io_timeout=2");
    sh(&format!("echo before > {dir}/file; sync {dir}/file; test $(cat {other}/file) = before"));
    san.tell(&["add", "any", "mute", "lun=1"]);
    for node in [&dir, &other] {
        sh(&format!("echo {node} | timeout 60 dd of={node}/file conv=fsync status=none"));
    }
    for node in [&other, &dir] {
        assert_eq!(sh(&format!("timeout 60 cat {node}/file")).trim(), other);
    }
    let said = ok(&["status", &dir]);
    assert!(said.contains("failed"), "{said}");
    // Why its session was ended is in the log.
    let log = std::fs::read_to_string(format!("{dir}.log")).unwrap();
    let ended = |l: &&str| l.contains("does not answer: a command was under way for more than");
    let line = log.lines().find(ended);
    assert!(line.is_some_and(|l| l.contains(&san.units[1])), "{log}");
    unmount_idle(Path::new(&other));
    unmount_idle(Path::new(&dir));
    if layout[0] == "--parity" {
        return;
    }
    // Without a node, too: what cannot be opened is named, and the others tell.
    let said = ok(&san.with(&["status"], &[]));
    assert!(said.contains("braid replace silent 1 DEVICE"), "{said}");
}

/// Heartbeats are answered, so the lease goes on: only the bound of each command ends the wait.
#[test]
fn a_node_that_needs_a_unit_that_answers_no_write_withdraws_and_names_it() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:192M", "memory:192M"], &[]);
    ok(&san.with(&["create", "plain"], &[]));
    let dir = san.mount_as("host-a", "a", "io_timeout=2");
    sh(&format!("echo before > {dir}/file; sync {dir}/file"));
    san.tell(&["add", "write", "mute", "lun=1"]);
    let begun = std::time::Instant::now();
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", &format!("of={dir}/large"), "bs=1M", "count=8", "conv=fsync"]);
    let mut dd = dd.stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("the write ends", || dd.try_wait().unwrap().is_some());
    println!("it ended after {:?}", begun.elapsed());
    let wrote = String::from_utf8(dd.wait_with_output().unwrap().stderr).unwrap();
    assert!(wrote.contains("Input/output error"), "{wrote}");
    wait_until("it has withdrawn", || ok(&["status", &dir]).contains("WITHDRAWN"));
    let log = std::fs::read_to_string(format!("{dir}.log")).unwrap();
    let ended = |l: &&str| l.contains("does not answer: a command was under way for more than");
    let line = log.lines().find(ended);
    assert!(line.is_some_and(|l| l.contains(&san.units[1])), "{log}");
    let withdraws = log.lines().find(|l| l.contains("withdrawing"));
    assert!(withdraws.is_some_and(|l| !l.contains("lease")), "{log}");
    san.tell(&["clear"]);
    unmount_idle(Path::new(&dir));
    let dir = san.mount_as("host-a", "again", "io_timeout=2");
    assert_eq!(sh(&format!("cat {dir}/file")), "before\n");
    unmount_idle(Path::new(&dir));
    assert!(ok(&san.with(&["check"], &[])).contains("clean"));
}

/// Programs that keep the places of a target for logins full: silent ones, ones that send half a request, and ones
/// that name an initiator which the target knows, from one address and from many.
const STRANGERS: &str = r#"
import random, select, socket, sys, time
host, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
text = f"InitiatorName={name}\0SessionType=Normal\0TargetName=iqn.none\0".encode()
text += bytes(-len(text) % 4)
head = bytes([0x43, 0, 0, 0]) + len(text).to_bytes(4, "big") + bytes(40)
said, taken, until = [b"", head, head[:20], head + text], 0, time.monotonic() + 60
here = {}
while time.monotonic() < until:
    while len(here) < 200:
        s = socket.socket()
        s.bind((random.choice(["127.0.0.1", f"127.0.0.{random.randrange(2, 12)}"]), 0)); s.settimeout(1)
        try: s.connect((host, port)); s.sendall(random.choice(said)); taken += 1
        except OSError: s.close(); break
        here[s.fileno()] = s
    for s in select.select(list(here.values()), [], [], 0.02)[0]:
        try: gone = not s.recv(4096)
        except OSError: gone = True
        if gone: del here[s.fileno()]; s.close()
    if taken >= 200: print(taken, flush=True); taken = 0
"#;

/// Ends a program of this test.
struct Ends(std::process::Child);
impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_node_whose_session_is_cut_is_back_within_its_lease_among_strangers() {
    use std::io::{BufRead, BufReader};
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"], &[]);
    ok(&san.with(&["create", "crowd"], &[]));
    let dir = san.mount_as("host-a", "a", "io_timeout=3");
    let log = || std::fs::read_to_string(format!("{dir}.log")).unwrap();
    let portal = san.units[0].strip_prefix("iscsi://").unwrap().split('/').next().unwrap();
    let (host, port) = portal.rsplit_once(':').unwrap();
    let name = "iqn.2026-11.org.braid:host-a";
    let mut python = Command::new("python3");
    python.args(["-c", STRANGERS, host, port, name]).stdout(std::process::Stdio::piped());
    let mut strangers = Ends(python.spawn().unwrap());
    let mut said = BufReader::new(strangers.0.stdout.take().unwrap()).lines();
    said.next().unwrap().unwrap();
    for round in 1..=5 {
        let begun = std::time::Instant::now();
        let cut = san.tell(&["cut", name]);
        assert!(!cut.starts_with('0'), "{cut}");
        sh(&format!("timeout 20 dd of={dir}/{round} conv=fsync status=none <<< {round}"));
        println!("round {round}: written after {:?}", begun.elapsed());
        wait_until("it is logged in again", || log().matches("logged in again").count() >= round);
    }
    drop(strangers);
    assert!(!log().contains("withdraw"), "{}", log());
    unmount_idle(Path::new(&dir));
    assert!(ok(&san.with(&["check"], &[])).contains("clean"));
}

/// A unit answers errors, is sound again and is put back, on two hosts; as soon as the command says so the other
/// unit answers errors. Each time what was read and written before is there.
#[test]
fn a_unit_that_is_back_takes_its_own_place_and_then_the_other_one_may_fail() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M", "memory:256M"], &[]);
    ok(&san.with(&["create", "back", "--mirror", "2"], &[]));
    let dirs = [
        san.mount_as("host-a", "a", "io_timeout=10"),
        san.mount_as("host-b", "b", "io_timeout=10"),
    ];
    for round in 0..4_usize {
        let unit = round % 2;
        san.tell(&["add", "any", "fail", &format!("lun={unit}")]);
        for dir in &dirs {
            sh(&format!("echo {round} {dir} | timeout 60 dd of={dir}/file conv=fsync status=none"));
        }
        wait_until("the member has failed", || ok(&["status", &dirs[1]]).contains("failed"));
        for dir in &dirs {
            assert_eq!(sh(&format!("timeout 60 cat {dir}/file")), format!("{round} {}\n", dirs[1]));
        }
        san.tell(&["clear"]);
        let member = unit.to_string();
        let name = &san.units[unit];
        let said = fails(&["replace", &dirs[0], &member, name]);
        assert!(
            said.contains(&format!("was member {unit} of this pool until it failed")),
            "{said}"
        );
        let said = ok(&["replace", &dirs[0], &member, name, "--force"]);
        assert!(said.contains("filled and in use"), "{said}");
    }
    for dir in &dirs {
        unmount_idle(Path::new(dir));
    }
    let said = ok(&san.with(&["check"], &[]));
    assert!(said.contains("clean"), "{said}");
}

/// A program that appends numbers to a file, each durable, and notes those that are acknowledged.
fn appender(dir: &str, acknowledged: &str) -> std::process::Child {
    let program = "import os,sys
f=os.open(sys.argv[1]+'/'+os.path.basename(sys.argv[1]),os.O_WRONLY|os.O_CREAT|os.O_APPEND)
a=os.open(sys.argv[2],os.O_WRONLY|os.O_CREAT|os.O_APPEND)
for n in range(10**9):
    line=b'%d\\n'%n
    os.write(f,line);os.fsync(f);os.write(a,line)";
    Command::new("python3").args(["-c", program, dir, acknowledged]).spawn().unwrap()
}

/// Each of two hosts loses the path to the copy that the other one has left. One of them may fence the
/// other and go on, the other acknowledges nothing more: whatever was acknowledged is on one copy.
#[test]
fn two_hosts_that_have_lost_each_others_copy_do_not_both_go_on() {
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M", "memory:256M"], &[]);
    ok(&san.with(&["create", "split", "--mirror", "2"], &[]));
    let a = san.mount_as("host-a", "a", "io_timeout=2");
    let b = san.mount_as("host-b", "b", "io_timeout=2");
    let logs = [san.path("acknowledged-a"), san.path("acknowledged-b")];
    let mut programs = [appender(&a, &logs[0]), appender(&b, &logs[1])];
    let count = |log: &str| std::fs::read_to_string(log).map_or(0, |text| text.lines().count());
    wait_until("both write", || logs.iter().all(|log| count(log) > 5));
    sh(&format!("printf old > {a}/read; sync {a}/read; cat {b}/read"));
    // At once: who still sees the other's copy follows it, and is left with none.
    let fails = [("host-a", 1), ("host-b", 0)]
        .map(|(host, unit)| format!("any fail lun={unit} from=iqn.2026-11.org.braid:{host}"));
    san.tell(&["add", &fails.join(";")]);
    // It goes on once it has fenced the other one.
    let log_of = |dir: &str| std::fs::read_to_string(format!("{dir}.log")).unwrap_or_default();
    wait_until("one has fenced the other", || log_of(&a).contains("method=\"reservation\""));
    let before = count(&logs[0]);
    wait_until("it goes on", || count(&logs[0]) > before + 5);
    sh(&format!("printf new > {a}/read; sync {a}/read"));
    for _ in 0..2 {
        let buffered = sh(&format!("timeout 20 cat {b}/read 2>/dev/null || true"));
        assert_ne!(
            [buffered, direct(&b)],
            ["old", "old"],
            "the fenced node serves what was before"
        );
    }
    // The time in which the other one would have fenced it.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(!log_of(&b).contains("method=\"reservation\""), "{}", log_of(&b));
    assert!(log_of(&b).contains("failed after that node was last heard"), "{}", log_of(&b));
    for program in &mut programs {
        program.kill().unwrap();
    }
    for dir in [&a, &b] {
        common::pool::kill(dir);
        braid(&["unmount", "--lazy", dir]);
    }
    for program in &mut programs {
        program.wait().unwrap();
    }
    san.tell(&["clear"]);
    let back =
        San::mount_these_as("host-a", &[&san.units[0]], &san.path("back"), "io_timeout=2,degraded");
    for (dir, log) in [&a, &b].into_iter().zip(&logs) {
        let name = Path::new(dir).file_name().unwrap().to_str().unwrap();
        let there = sh(&format!("timeout 60 cat {back}/{name}"));
        let acknowledged = std::fs::read_to_string(log).unwrap();
        assert!(there.starts_with(&acknowledged), "{name}: {} there", there.lines().count());
    }
    unmount_idle(Path::new(&back));
}

/// What a program reads past the page cache, if anything.
fn direct(dir: &str) -> String {
    sh(&format!("timeout 20 dd if={dir}/read iflag=direct bs=4096 status=none 2>/dev/null || true"))
}

fn copy_is_refused_on_one_host(path: &dyn Fn(&str) -> String, create: &[&str]) {
    ok(create);
    let (node, other) = (path("node"), path("other"));
    std::fs::create_dir_all(&node).unwrap();
    std::fs::create_dir_all(&other).unwrap();
    ok(&["mount", &path("d0"), &path("d1"), &node]);
    sh(&format!("echo one > {node}/f; sync {node}/f; cp --sparse=always {0} {0}-copy", path("d1")));
    let said = fails(&["mount", &path("d0"), &path("d1-copy"), &other]);
    assert!(said.contains("copy of a member"), "{said}");
    ok(&["mount", &path("d0"), &path("d1"), &other]);
    unmount_idle(Path::new(&other));
    unmount_idle(Path::new(&node));
}

/// A copy of a member, as `cp` or a snapshot makes it, is not taken for the member while a node lives on
/// the original: on its host, or on another one.
#[test]
fn a_copy_of_a_member_is_refused_while_a_node_uses_the_original() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for name in ["d0", "d1"] {
        let file = std::fs::File::create(path(name)).unwrap();
        file.set_len(256 << 20).unwrap();
    }
    // On one host.
    copy_is_refused_on_one_host(&path, &["create", "striped", &path("d0"), &path("d1")]);
    let mirror = ["create", "--force", "copied", "--mirror", "2", &path("d0"), &path("d1")];
    copy_is_refused_on_one_host(&path, &mirror);
    // On two.
    let other = path("other");
    let original = San::new(&[&path("d0"), &path("d1")], &[]);
    let node = original.mount_as("host-a", "a", "io_timeout=2");
    sh(&format!(
        "echo two > {node}/f; sync {node}/f; cp --sparse=always {0} {0}-later",
        path("d1")
    ));
    let copy = San::new(&[&path("d1-later")], &["--name", "iqn.2026-11.org.braid:copy"]);
    let mut mount = Command::new(env!("CARGO_BIN_EXE_braid"));
    mount.args(["mount", &original.units[0], &copy.units[0], &other, "-o", "io_timeout=2"]);
    mount.env("BRAID_PRETENDED_HOST", "host-b");
    let out = mount.env("BRAID_INITIATOR", "iqn.2026-11.org.braid:host-b").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("copy of a member"), "{said}");
    assert_eq!(sh(&format!("cat {node}/f")), "two\n");
    unmount_idle(Path::new(&node));
}

/// Of a mirror on a target for each of its units: a node that dies with one of the targets.
struct DiesWithTarget {
    units: [San; 2],
    disks: tempfile::TempDir,
}

impl DiesWithTarget {
    /// `beside`: with another node of this host, which lives on, and where it is mounted.
    fn new(beside: bool) -> (Self, String) {
        let disks = tempfile::tempdir().unwrap();
        let units = [0, 1].map(|n| Self::target(&disks, n));
        let (one, other) = (&units[0].units[0], &units[1].units[0]);
        ok(&["create", "moved", "--mirror", "2", "--nodes", "4", one, other]);
        let node = disks.path().join("node").to_str().unwrap().to_owned();
        std::fs::create_dir(&node).unwrap();
        ok(&["mount", one, other, &node, "-o", "io_timeout=2"]);
        sh(&format!("echo kept > {node}/file; sync {node}/file"));
        let process = common::pid_of(&node);
        let mut dead = Self { units, disks };
        let other = if beside { dead.mount("other", "io_timeout=2") } else { String::new() };
        dead.units[1].kill();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        let ended = || rustix::process::test_kill_process(process).is_err();
        wait_until("its process has ended", ended);
        sh(&format!("umount -l {node}"));
        (dead, other)
    }
    fn target(disks: &tempfile::TempDir, n: usize) -> San {
        let disk = disks.path().join(format!("d{n}"));
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(&disk);
        file.unwrap().set_len(256 << 20).unwrap();
        San::new(&[disk.to_str().unwrap()], &[])
    }
    fn mount(&self, name: &str, options: &str) -> String {
        let dir = self.disks.path().join(name).to_str().unwrap().to_owned();
        let all: &[&str] = &[&self.units[0].units[0], &self.units[1].units[0]];
        let units = if options.contains("degraded") { &all[..1] } else { all };
        std::fs::create_dir(&dir).unwrap();
        ok(&[&["mount"], units, &[&dir, "-o", &format!("log={dir}.log,{options}")]].concat());
        dir
    }
    /// What the dead node wrote is there.
    fn is_served(dir: &str) {
        let script = format!("timeout -s KILL 30 cat {dir}/file && echo more >> {dir}/file");
        let out = Command::new("bash").args(["-c", &script]).output().unwrap();
        if out.stdout != b"kept\n" {
            let log = std::fs::read_to_string(format!("{dir}.log"));
            sh(&format!("umount -l {dir}"));
            panic!("{out:?} {log:?}");
        }
        unmount_idle(Path::new(dir));
    }
}

/// A node and a target die, and the target comes back at another address: the unit is the same, so what
/// the dead process had under way is ended there, and the pool is not closed to this host.
#[test]
fn a_node_is_recovered_whose_target_has_another_address_now() {
    if !can_mount() {
        return;
    }
    let (mut dead, _) = DiesWithTarget::new(false);
    let (was, is) = (dead.units[1].units.clone(), DiesWithTarget::target(&dead.disks, 1));
    dead.units[1] = is;
    assert_ne!(was, dead.units[1].units);
    DiesWithTarget::is_served(&dead.mount("after", "io_timeout=2"));
    let [one, other] = dead.units.each_ref().map(|t| t.units[0].as_str());
    let said = ok(&["check", one, other]);
    assert!(said.contains("clean"), "{said}");
}

/// A node and a target die, and the target does not come back: nothing says that what was sent to it has
/// ended, but for a person, whose word is taken once the node is silent.
#[test]
fn a_persons_word_is_taken_for_a_dead_node_of_this_host_whose_target_is_gone() {
    if !can_mount() {
        return;
    }
    let (dead, _) = DiesWithTarget::new(false);
    let unit = &*dead.units[0].units[0];
    let said = fails(&["check", "--degraded", unit]);
    assert!(said.contains("unmount it first"), "{said}");
    let said = fails(&["fence", "--degraded", unit, "0"]);
    assert!(said.contains("--confirm"), "{said}");
    let said = ok(&["fence", "--confirm", "--degraded", unit, "0"]);
    assert!(said.contains("counts as dead"), "{said}");
    DiesWithTarget::is_served(&dead.mount("after", "io_timeout=2,degraded"));
    let said = ok(&["check", "--degraded", unit]);
    assert!(said.contains("clean"), "{said}");
}

/// The same, by the word that is given to a node of this host that is mounted.
#[test]
fn a_mounted_node_takes_a_persons_word_for_a_dead_one_of_its_host() {
    if !can_mount() {
        return;
    }
    let (_dead, other) = DiesWithTarget::new(true);
    let refused = std::cell::RefCell::new(String::new());
    wait_until("the word is taken, or refused for good", || {
        let out = braid(&["fence", "--confirm", &other, "0"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let soon = said.contains("heartbeats of late");
        *refused.borrow_mut() = if out.status.success() { String::new() } else { said };
        !soon
    });
    if !refused.borrow().is_empty() {
        sh(&format!("umount -l {other}"));
    }
    assert_eq!(*refused.borrow(), "");
    DiesWithTarget::is_served(&other);
}

/// A node of this host whose process lives, and does nothing, is not taken for dead by anybody's word.
#[test]
fn a_stopped_node_of_this_host_is_never_taken_for_dead() {
    use rustix::process::{Signal, kill_process};
    if !can_mount() {
        return;
    }
    let san = San::new(&["memory:256M"], &[]);
    ok(&san.with(&["create", "stopped"], &[]));
    let dir = san.path("a");
    std::fs::create_dir(&dir).unwrap();
    ok(&san.with(&["mount"], &[&dir, "-o", "io_timeout=2"]));
    sh(&format!("echo kept > {dir}/file; sync {dir}/file"));
    let process = common::pid_of(&dir);
    kill_process(process, Signal::STOP).unwrap();
    // Longer than it may be silent while it lives.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let said = fails(&san.with(&["fence", "--confirm"], &["0"]));
    kill_process(process, Signal::CONT).unwrap();
    let number = process.as_raw_nonzero();
    assert!(said.contains(&format!("unmount {dir}, or end process {number}")), "{said}");
    sh(&format!("echo more >> {dir}/file; sync {dir}/file"));
    unmount_idle(Path::new(&dir));
    assert!(said.contains("its process holds its lock"), "{said}");
}

/// A pool on units with a volatile cache, that says when it was flushed to rest.
fn on_files(names: &[&str], create: &[&str]) -> (tempfile::TempDir, San) {
    let disks = tempfile::tempdir().unwrap();
    let paths: Vec<String> = names
        .iter()
        .map(|name| {
            let path = disks.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let san = San::new(&paths.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    ok(&san.with(create, &[]));
    (disks, san)
}

/// An idle node writes heartbeats, which are not flushed: that they may be lost harms nothing, as the next
/// one follows.
#[test]
fn an_idle_node_outlives_a_loss_of_power_of_its_units() {
    if !can_mount() {
        return;
    }
    for create in [&["create", "plain"][..], &["create", "mirrored", "--mirror", "2"]] {
        let (_disks, san) = on_files(&["d0", "d1"], create);
        let dir = san.mount_as("host-a", "a", "io_timeout=2,commit=1");
        let log = || std::fs::read_to_string(format!("{dir}.log")).unwrap();
        sh(&format!("echo before > {dir}/file; sync {dir}/file"));
        for blink in 1..=2 {
            std::thread::sleep(std::time::Duration::from_secs(4));
            san.tell(&["power"]);
            wait_until("its sessions are begun anew", || {
                log().matches("logged in again").count() >= 2 * blink || log().contains("given up")
            });
            assert!(!log().contains("given up"), "{create:?}: {}", log());
            sh(&format!("timeout 30 dd of={dir}/{blink} conv=fsync status=none <<< {blink}"));
        }
        let said = ok(&["status", &dir]);
        // On a busy machine one of two units may look slow.
        let is_well = ["health: OK", "health: SLOW"].iter().any(|state| said.contains(state));
        assert!(is_well, "{said}");
        assert_eq!(sh(&format!("cat {dir}/file {dir}/1 {dir}/2")), "before\n1\n2\n");
        unmount_idle(Path::new(&dir));
        let said = ok(&san.with(&["check"], &[]));
        assert!(said.contains("clean"), "{said}");
    }
}

/// What was written and not flushed may be lost with the cache, and a later flush would claim that it is
/// durable: the unit is given up. That is named at once, with its cause, as is the cause for which the node
/// withdraws.
#[test]
fn a_unit_that_may_have_lost_what_was_not_flushed_is_given_up_and_named_with_its_cause() {
    if !can_mount() {
        return;
    }
    let (_disks, san) = on_files(&["d0"], &["create", "plain"]);
    let dir = san.mount_as("host-a", "a", "io_timeout=2,commit=60");
    sh(&format!("echo before > {dir}/file; sync {dir}/file"));
    sh(&format!("dd if=/dev/zero of={dir}/large bs=1M count=4 status=none"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    san.tell(&["power"]);
    let cause = "its write cache, and in it what was not flushed, may be lost";
    let log = || std::fs::read_to_string(format!("{dir}.log")).unwrap();
    wait_until("the unit is given up", || log().contains("given up"));
    assert!(log().contains(cause), "{}", log());
    let said = ok(&["status", &dir]);
    assert!(said.contains("health: ") && !said.contains("health: OK"), "{said}");
    let health = said.split("health: ").nth(1).unwrap();
    assert!(health.contains(&san.units[0]) && health.contains(cause), "{said}");
    assert!(!said.contains("evacuate"), "{said}");
    // It needs the unit.
    sh(&format!("echo more | timeout 30 dd of={dir}/more conv=fsync 2>&1 || true"));
    wait_until("it has withdrawn", || ok(&["status", &dir]).contains("WITHDRAWN"));
    let said = ok(&["status", &dir]);
    let withdrawn = said.lines().find(|line| line.contains("WITHDRAWN")).unwrap();
    assert!(withdrawn.contains(cause), "{said}");
    let json: serde_json::Value = serde_json::from_str(&ok(&["status", &dir, "--json"])).unwrap();
    let health = json["pool"]["health"].to_string();
    assert!(health.contains("withdrawn") && health.contains(cause), "{json}");
    assert!(json["pool"]["withdrawn"].as_str().unwrap().contains(cause), "{json}");
    // Calls fail, and the log does not say it each time.
    let before = log().lines().count();
    sh(&format!(
        "for n in $(seq 300); do cat {dir}/file {dir}/$n; : > {dir}/new$n; done >/dev/null 2>&1 || true"
    ));
    let after = log();
    assert!(after.lines().count() < before + 40, "{after}");
    assert!(
        after.contains(cause) && !after.contains("this node has withdrawn: this node"),
        "{after}"
    );
    common::pool::kill(&dir);
    braid(&["unmount", "--lazy", &dir]);
}

/// With copies the pool goes on without such a unit; its cause stays in sight.
#[test]
fn a_mirror_goes_on_without_a_unit_that_may_have_lost_what_was_not_flushed() {
    if !can_mount() {
        return;
    }
    let disks = tempfile::tempdir().unwrap();
    let sans = [0, 1].map(|n| DiesWithTarget::target(&disks, n));
    let units = [&*sans[0].units[0], &*sans[1].units[0]];
    ok(&[&["create", "mirrored", "--mirror", "2"][..], &units].concat());
    let dir = disks.path().join("a").to_str().unwrap().to_owned();
    common::mount_as("host-a", &units, &dir, "io_timeout=2,commit=60");
    sh(&format!("echo before > {dir}/file; sync {dir}/file"));
    sh(&format!("dd if=/dev/zero of={dir}/large bs=1M count=4 status=none"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    sans[1].tell(&["power"]);
    let cause = "its write cache, and in it what was not flushed, may be lost";
    wait_until("the pool goes on without it", || {
        let said = ok(&["status", &dir]);
        assert!(!said.contains("SLOW") && !said.contains("WITHDRAWN"), "{said}");
        said.contains("DEGRADED")
    });
    let said = ok(&["status", &dir]);
    let health = said.lines().next().unwrap();
    assert!(health.contains(units[1]) && health.contains(cause), "{said}");
    sh(&format!("echo more | timeout 30 dd of={dir}/file conv=fsync status=none"));
    assert_eq!(sh(&format!("cat {dir}/file")), "more\n");
    unmount_idle(Path::new(&dir));
}

/// The targets of a portal, their units, and which of them are members of which pool.
#[test]
fn a_portal_is_asked_for_its_targets_and_units() {
    let san =
        San::new(&["memory:256M", "memory:200M", "memory:300M"], &["--chap", "braid%portalsecret"]);
    let place = san.units[0].strip_prefix("iscsi://").unwrap().split('/').next().unwrap();
    let (portal, by_user) =
        (format!("iscsi://{place}"), format!("iscsi://braid%portalsecret@{place}"));
    let login = |unit: &str| unit.replace("iscsi://", "iscsi://braid%portalsecret@");
    ok(&["create", "offered", &login(&san.units[0]), &login(&san.units[2])]);
    let said = ok(&["scan", &by_user]);
    assert!(said.contains("1 target, 3 units") && !said.contains("portalsecret"), "{said}");
    let line = |unit: usize| {
        let shown = san.units[unit].replace("iscsi://", "iscsi://braid@");
        said.lines().find(|l| l.trim().starts_with(&format!("{shown}  "))).unwrap_or_default()
    };
    assert!(line(0).contains("256 MiB  member 0 of 'offered'"), "{said}");
    assert!(line(2).contains("300 MiB  member 1 of 'offered'"), "{said}");
    assert!(line(1).contains("200 MiB  no member of a pool"), "{said}");
    assert!(said.contains("epoch 1  complete"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&ok(&["scan", &by_user, "--json"])).unwrap();
    let units = json["portals"][0]["targets"][0]["units"].as_array().unwrap();
    let pools: Vec<_> = units.iter().map(|u| u["pool"].as_str()).collect();
    assert_eq!(pools, [Some("offered"), None, Some("offered")]);
    assert_eq!(json["pools"][0]["members"][1]["path"].as_str(), units[2]["path"].as_str());
    // Without the secret, and by a name of nothing.
    for wrong in [&portal, "iscsi://127.0.0.1:1"] {
        let said = fails(&["scan", wrong]);
        assert!(said.contains(wrong), "{said}");
    }
    assert!(fails(&["scan", "iscsi://127.0.0.1:1"]).contains("refused"));
}

/// A portal that takes the connection and says nothing, and a unit of it: `--timeout` is all that anybody waits.
#[test]
fn a_portal_that_answers_nothing_keeps_nobody_waiting() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let portal = format!("iscsi://{}", silent.local_addr().unwrap());
    let began = std::time::Instant::now();
    let said = fails(&["scan", &portal, "--timeout", "1"]);
    assert!(said.contains(&portal) && said.contains("within 1s"), "{said}");
    let said = fails(&["scan", &format!("{portal}/iqn.x/0"), "--timeout", "1"]);
    assert!(said.contains(&portal) && said.contains("within 1s"), "{said}");
    // Of several each has its time, all at once.
    let units = ["0", "1", "2", "3"].map(|unit| format!("{portal}/iqn.x/{unit}"));
    let [a, b, c, d] = units.each_ref().map(String::as_str);
    let said = fails(&["scan", &portal, a, b, c, d, "--timeout", "2"]);
    assert!(said.contains(d) && said.contains("within 2s"), "{said}");
    assert!(began.elapsed().as_secs() < 9, "{:?}", began.elapsed());
}
