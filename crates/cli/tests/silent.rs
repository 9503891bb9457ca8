//! Disks and nodes that answer nothing: no command waits for them without a bound.

#![allow(clippy::unwrap_used, clippy::large_stack_arrays, reason = "tests")]

mod common;

use std::io::Write;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use common::device::Loop;
use common::mute::Group;
use common::{Cluster, Disks, can_mount, is_mounted, ok, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// So long no command of a test would live: who still says that a device is silent was told by another.
const NEVER: &str = "3000";

fn said(out: &Output) -> String {
    let said = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(!said.concat().contains("panicked"), "{said:?}");
    said.concat()
}

/// A directory on which nothing is mounted any more when this is dropped.
struct Unmounted<'a>(&'a str);
impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0.as_ref()) {
            common::braid(&["unmount", self.0]);
        }
    }
}

/// Runs a command until it does not say this any more.
fn until_unsaid(what: &str, command: impl Fn() -> Output) {
    let begun = Instant::now();
    while said(&command()).contains(what) {
        assert!(begun.elapsed() < Duration::from_mins(2), "still said: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_disk_that_answers_nothing_holds_up_no_command() {
    if !can_mount() {
        return;
    }
    let Some(group) = Group::new() else { return };
    let disks = Disks::new(2, 64);
    let [Some(well), Some(mute)] = [0, 1].map(|n| Loop::new(&disks.paths[n])) else {
        return braid_testkit::skip("there are no loop devices");
    };
    let name = format!("silent{}", std::process::id());
    ok(&["create", &name, &well.0]);
    let silent = format!("{}: has not answered for", mute.0);

    let muted = group.mute(&mute.0);
    let scan = group.braid(&["scan", "--timeout", "1"]);
    assert!(said(&scan).contains(&silent) && said(&scan).contains(&name), "{}", said(&scan));
    // The first command's asker still waits, and nobody else does.
    let node = disks.path("node");
    std::fs::create_dir(&node).unwrap();
    let _mounted = Unmounted(&node);
    let patient = format!("device_timeout={NEVER}");
    for command in [
        &["scan", "--timeout", NEVER][..],
        &["status", &name, "--timeout", NEVER],
        &["nodes", &name, "--timeout", NEVER],
        &["check", &name, "--timeout", NEVER],
        &["mount", &name, &node, "-o", &patient],
    ] {
        let out = group.braid(command);
        assert!(
            out.status.success() && said(&out).contains(&silent),
            "{command:?}: {}",
            said(&out)
        );
    }
    ok(&["unmount", &node]);
    for command in [
        &["status", &mute.0, "--timeout", NEVER][..],
        &["create", "other", &mute.0],
        &["mount", &well.0, &mute.0, &node, "-o", &patient],
    ] {
        let out = group.braid(command);
        assert!(
            !out.status.success() && said(&out).contains(&silent),
            "{command:?}: {}",
            said(&out)
        );
    }

    drop(muted);
    until_unsaid(&silent, || group.braid(&["scan", "--timeout", "30"]));
    let out = group.braid(&["create", "other", &mute.0]);
    assert!(out.status.success(), "{}", said(&out));
}

/// A pool on two loop devices, mounted by a node for which the second can be muted.
struct Pool {
    group: Group,
    loops: [Loop; 2],
    disks: Disks,
}

impl Pool {
    /// `None`, which counts as skipped: not on this machine.
    fn new(create: &[&str], options: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let group = Group::new()?;
        let disks = Disks::new(2, 256);
        let [Some(first), Some(second)] = [0, 1].map(|n| Loop::new(&disks.paths[n])) else {
            braid_testkit::skip("there are no loop devices");
            return None;
        };
        let pool = Self { group, loops: [first, second], disks };
        std::fs::create_dir(pool.node()).unwrap();
        ok(&[&["create", "test", &pool.loops[0].0, &pool.loops[1].0], create].concat());
        pool.mount(options);
        Some(pool)
    }
    fn node(&self) -> String {
        self.disks.path("node")
    }
    fn mount(&self, options: &str) {
        let options = format!("log={},{options}", self.log());
        let words = ["mount", &self.loops[0].0, &self.loops[1].0, &self.node(), "-o", &options];
        let out = self.group.braid(&words);
        assert!(out.status.success(), "{}", said(&out));
    }
    fn log(&self) -> String {
        self.disks.path("log")
    }
    fn logged(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }
    /// What `braid status` says, which no device is muted for.
    fn status(&self) -> String {
        said(&common::braid(&["status", &self.node()]))
    }
    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.node())
    }
    /// Writes a file and makes it durable.
    fn write(&self, name: &str) -> std::io::Result<()> {
        let file = std::fs::File::create(self.file(name))?;
        (&file).write_all(&[name.as_bytes()[0]; 1 << 20])?;
        file.sync_all()
    }
    /// The same by another process.
    fn write_apart(&self, name: &str) -> Child {
        let script = "head -c 1M /dev/zero | tr '\\0' \"$1\" | dd of=\"$2\" bs=1M iflag=fullblock conv=fsync status=none";
        let file = self.file(name);
        Command::new("sh").args(["-c", script, "sh", name, &file]).spawn().unwrap()
    }
    fn holds(&self, name: &str) -> bool {
        std::fs::read(self.file(name)).is_ok_and(|bytes| bytes == [name.as_bytes()[0]; 1 << 20])
    }
    /// The node's process ends only when no request of it is under way any more.
    fn unmount(&self) {
        let out = common::braid(&["unmount", &self.node()]);
        let process = || std::fs::read_dir("/run/braid").unwrap().flatten();
        let noted = |note: std::fs::DirEntry| {
            let text = std::fs::read_to_string(note.path()).unwrap_or_default();
            text.contains(&format!("\"{}\"", self.node()))
        };
        wait_until("the node has ended", || !process().any(noted));
        assert!(!is_mounted(self.node().as_ref()), "{}", said(&out));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(Unmounted(&self.node()));
    }
}

#[test]
fn a_member_that_answers_nothing_is_named_and_waited_for() {
    let Some(pool) = Pool::new(&["--mirror", "2"], "commit=1") else { return };
    pool.write("a").unwrap();
    let silent = format!("({}) has not answered for", pool.loops[1].0);
    let muted = pool.group.mute(&pool.loops[1].0);
    // By a process of its own: every process that this one starts closes its copies of the files that are
    // open here, and a close waits, too.
    let mut writer = pool.write_apart("b");
    wait_until("it is named", || pool.logged().contains("what needs it waits"));
    // By the node, which asks no device for that.
    let said = format!("health: MEMBER SILENT: member 1 {silent} ");
    wait_until("status says so", || pool.status().contains(&said));
    let status = pool.status();
    assert!(status.contains("waits until it answers"), "{status}");
    assert!(status.contains("does not answer") && !status.contains("(missing)"), "{status}");
    drop(muted);
    assert!(writer.wait().unwrap().success());
    wait_until("it answers again", || pool.logged().contains("answers again"));
    until_unsaid("has not answered", || common::braid(&["status", &pool.node()]));
    let (status, log) = (pool.status(), pool.logged());
    assert!(!status.contains("failed") && !log.contains("member 0"), "{status}{log}");
    assert!(pool.holds("a") && pool.holds("b"));
    pool.unmount();
    ok(&["check", &pool.loops[0].0, &pool.loops[1].0]);
}

#[test]
fn a_node_tells_of_a_member_that_it_needs_without_asking_it() {
    let Some(pool) = Pool::new(&[], "commit=1") else { return };
    pool.write("a").unwrap();
    let muted = pool.group.mute(&pool.loops[0].0);
    let mut writer = pool.write_apart("b");
    wait_until("it is named", || pool.logged().contains("what needs it waits"));
    // Also what is read anew now and then, as the counters of free space, is on that member.
    let said =
        format!("health: MEMBER SILENT: member 0 ({}) has not answered for ", pool.loops[0].0);
    let begun = Instant::now();
    let status = pool.status();
    assert!(status.contains(&said), "{status}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(muted);
    assert!(writer.wait().unwrap().success());
    assert!(pool.holds("a") && pool.holds("b"));
    pool.unmount();
}

#[test]
fn a_mirror_goes_on_without_a_member_that_is_given_up() {
    let Some(pool) = Pool::new(&["--mirror", "2"], "io_timeout=2") else { return };
    pool.write("a").unwrap();
    let muted = pool.group.mute(&pool.loops[1].0);
    pool.write("b").unwrap();
    wait_until("it has failed", || pool.status().contains("has failed"));
    let status = pool.status();
    assert!(
        status.contains("health: DEGRADED: member 1 ") && status.contains(" failed "),
        "{status}"
    );
    assert!(pool.logged().contains("nothing is asked of it any more"), "{}", pool.logged());
    pool.write("c").unwrap();
    assert!(["a", "b", "c"].into_iter().all(|name| pool.holds(name)));
    drop(muted);
    pool.unmount();
    // What was asked of the second member may have landed there since: nobody looks at it.
    pool.mount("degraded");
    assert!(["a", "b", "c"].into_iter().all(|name| pool.holds(name)));
    pool.unmount();
}

#[test]
fn a_node_withdraws_from_a_member_that_it_needs_and_that_is_given_up() {
    let Some(pool) = Pool::new(&[], "io_timeout=2") else { return };
    pool.write("a").unwrap();
    let muted = pool.group.mute(&pool.loops[1].0);
    pool.write("b").unwrap_err();
    wait_until("it withdraws", || pool.logged().contains("withdrawing: "));
    assert!(pool.logged().contains("has not answered for"), "{}", pool.logged());
    wait_until("all ends", || pool.write("c").is_err());
    let said = said(&common::braid(&["nodes", &pool.node()]));
    assert!(
        said.contains(" withdrawn ") && said.contains("unmount it and mount it again"),
        "{said}"
    );
    let status = pool.status();
    assert!(status.starts_with("health: WITHDRAWN: "), "{status}");
    drop(muted);
    pool.unmount();
    pool.mount("commit=1");
    assert!(pool.holds("a"));
    pool.unmount();
    ok(&["check", &pool.loops[0].0, &pool.loops[1].0]);
}

#[test]
fn a_stopped_node_does_not_keep_its_pool_from_being_looked_at() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new(1, 256, 1);
    let node = cluster.node(0).to_str().unwrap();
    let mounts: serde_json::Value = serde_json::from_str(&ok(&["status", "--json"])).unwrap();
    let mounts = mounts["mounts"].as_array().unwrap();
    let own = mounts.iter().find(|m| m["mount_point"] == node).unwrap();
    let process = Pid::from_raw(own["pid"].as_i64().unwrap().try_into().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let seen = ["nodes", "status"].map(|command| common::braid(&[command, node]));
    let io = common::braid(&["status", "--io", node]);
    let history = common::braid(&["history", node]);
    kill_process(process, Signal::CONT).unwrap();
    for seen in &seen {
        assert!(seen.status.success() && said(seen).contains(node), "{}", said(seen));
    }
    assert!(history.status.success() && said(&history).contains("create"), "{}", said(&history));
    let health = format!("health: NODE SILENT: the node on {node} (process {})", own["pid"]);
    assert!(said(&seen[1]).contains(&health), "{}", said(&seen[1]));
    assert!(said(&io).contains("does not answer"), "{}", said(&io));
    cluster.finish();
}
