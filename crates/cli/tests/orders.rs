//! Orders: given to mounts of another user, to nodes that are killed meanwhile, in the background, and completed by a
//! shell.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Cluster, Disks, braid, can_mount, fails, ok, sh, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// A node whose process is stopped, as long as this lives.
struct Stopped(Pid);

impl Stopped {
    fn node(c: &Cluster, n: usize) -> Self {
        let pid = Pid::from_raw(c.pid(n)).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

fn text(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn node(c: &Cluster, n: usize) -> String {
    c.node(n).to_str().unwrap().to_owned()
}

/// A command as another user, who reaches the program by an open descriptor; it must end at once.
fn as_another_user(words: &str) -> Output {
    let begun = Instant::now();
    let script = format!(
        "exec 9<{}; exec timeout 30 setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/9 {words}",
        env!("CARGO_BIN_EXE_braid")
    );
    let out = Command::new("bash").args(["-euc", &script]).stdin(Stdio::null()).output().unwrap();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{words} took {took:?}: {out:?}");
    out
}

#[test]
fn a_mount_of_another_user_is_named_and_not_waited_for() {
    if !can_mount() || !common::device::can_be_root("another user is played") {
        return;
    }
    let mut c = Cluster::of(Disks::new(2, 128), 0, &[]);
    c.mount(&[]);
    let dir = node(&c, 0);
    sh(&format!("chmod 755 {}; ln -s {dir} {}", c.disks.path(""), c.disks.path("link")));
    let link = c.disks.path("link");
    let stopped = Stopped::node(&c, 0);
    for words in [
        format!("status {dir}"),
        format!("status {dir}/sub/file"),
        format!("status {link}"),
        format!("status --io {dir}"),
        format!("nodes {dir}"),
        format!("why {dir}/file"),
        format!("unmount {dir}"),
        format!("unmount {link}"),
        format!("scrub {dir}"),
        format!("remove {dir} 0"),
        format!("evacuate {link} 0"),
        format!("freeze {dir}"),
        format!("history {dir}"),
        format!("check {dir}"),
    ] {
        let out = as_another_user(&words);
        let said = text(&out);
        assert!(!out.status.success(), "{words}: {said}");
        let owner = format!("{dir} is mounted by another user, root (0)");
        assert!(said.contains(&owner) && said.contains("`sudo braid ...`"), "{words}: {said}");
    }
    let said = text(&as_another_user("status"));
    assert!(said.contains("by this user") && said.contains(&dir), "{said}");
    drop(stopped);
    c.finish();
}

#[test]
fn a_pool_of_another_user_is_told_by_its_name() {
    if !can_mount() || !common::device::can_be_root("another user is played") {
        return;
    }
    let d = Disks::new(1, 128);
    let (name, dir) = ("of-another-user", d.path("mnt"));
    fs::create_dir(&dir).unwrap();
    ok(&d.with(&["create", name], &[]));
    ok(&d.with(&["mount"], &[&dir]));
    for words in ["status", "scrub", "trim", "check", "label dump -o /dev/null"] {
        let said = text(&as_another_user(&format!("{words} {name}")));
        let wanted = format!("{dir} is mounted by another user, root (0)");
        assert!(said.contains(&wanted), "{words}: {said}");
    }
    common::unmount_idle(Path::new(&dir));
}

/// A command that is under way when its node, which is stopped, is killed.
fn cut(c: &Cluster, words: &[&str]) -> String {
    let pid = Pid::from_raw(c.pid(0)).unwrap();
    let stopped = Stopped::node(c, 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id();
    // It has called the node, which is stopped, and says what it wants.
    let sockets = || {
        let links = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        let mut links = links.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|link| link.to_string_lossy().starts_with("socket:"))
    };
    wait_until("it has called the node", sockets);
    std::thread::sleep(Duration::from_millis(300));
    kill_process(pid, Signal::KILL).unwrap();
    std::mem::forget(stopped);
    let out = child.wait_with_output().unwrap();
    let said = text(&out);
    assert!(!out.status.success(), "{words:?}: {said}");
    said
}

#[test]
fn a_node_that_is_killed_during_an_order_is_told_in_words() {
    if !can_mount() {
        return;
    }
    for (order, stands) in [
        (&["rebalance"][..], "what has moved stays moved"),
        (&["trim"], "what was given back stays given back"),
        (&["scrub"], "what was healed stays healed"),
        (&["freeze"], "braid thaw"),
        (&["set", "comment=x"], "never half of it"),
        (&["remove", "0"], "nothing was changed"),
    ] {
        let c = Cluster::of(Disks::new(2, 128), 1, &["--mirror", "2"]);
        let dir = node(&c, 0);
        let (command, rest) = order.split_first().unwrap();
        let said = cut(&c, &[&[*command, dir.as_str()], rest].concat());
        for wanted in
            [&format!("the node that serves {dir} has ended"), stands, "braid history test"]
        {
            assert!(said.contains(wanted), "{order:?}: {said}");
        }
        for bad in ["os error", "EOF", "panicked"] {
            assert!(!said.contains(bad), "{order:?}: {said}");
        }
        c.detach(0);
    }
}

/// A node, and its directory; the pool has a device of 512 MiB, and another one that came later.
fn of_two_parts() -> (Cluster, String) {
    let d = Disks::new(1, 512);
    let more = d.path("more");
    fs::File::create(&more).unwrap().set_len(512 << 20).unwrap();
    let c = Cluster::of(d, 1, &[]);
    let dir = node(&c, 0);
    ok(&["add", &dir, &more]);
    (c, dir)
}

/// A removal that moves data is followed when its node is killed.
#[test]
fn a_removal_whose_node_is_killed_says_how_to_go_on() {
    if !can_mount() {
        return;
    }
    let (c, dir) = of_two_parts();
    sh(&format!("head -c 600M /dev/urandom >{dir}/file && sync {dir}/file"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["remove", &dir, "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    sh(&format!("truncate -s 100M {dir}/file && sync {dir}/file"));
    let pid = Pid::from_raw(c.pid(0)).unwrap();
    let child = command.spawn().unwrap();
    let moves = || braid(&["status", &dir]).stdout.windows(7).any(|w| w == b"emptied");
    let begun = Instant::now();
    while !moves() && begun.elapsed() < Duration::from_secs(5) {}
    kill_process(pid, Signal::KILL).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = text(&out);
    // On a quick machine it was over before.
    if !out.status.success() {
        assert!(said.contains("has ended before it answered"), "{said}");
        assert!(said.contains("`braid remove POOL --cancel` ends it"), "{said}");
        assert!(!said.contains("os error") && !said.contains("EOF"), "{said}");
    }
    c.detach(0);
}

/// The texts of a pool's events.
fn history(pool: &str) -> Vec<String> {
    let said: serde_json::Value = serde_json::from_str(&ok(&["history", "--json", pool])).unwrap();
    let events = said["events"].as_array().unwrap_or_else(|| panic!("{said}"));
    events.iter().map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn work_in_the_background_is_begun_and_its_end_is_told() {
    if !can_mount() {
        return;
    }
    let d = Disks::new(2, 256);
    let more: Vec<String> = ["more0", "more1", "to"].iter().map(|name| d.path(name)).collect();
    for path in &more {
        fs::File::create(path).unwrap().set_len(256 << 20).unwrap();
    }
    let c = Cluster::of(d, 1, &[]);
    let dir = node(&c, 0);
    let ended = |order: &str| {
        let begun = format!("{order} --background");
        let told =
            |how: &str| history(&dir).iter().any(|e| e.starts_with(&format!("{begun} {how}")));
        wait_until(&format!("{order} has ended"), || told("has ended") || told("has failed"));
        told("has ended")
    };
    sh(&format!("head -c 100M /dev/urandom >{dir}/file && sync {dir}/file"));
    let before = sh(&format!("sha256sum <{dir}/file"));
    // What is refused is refused by the command.
    let said = fails(&["remove", &dir, "0", "--background", "--json"]);
    assert!(said.contains("made with"), "{said}");
    assert!(!history(&dir).iter().any(|e| e.starts_with("remove: member 0 --background")));
    ok(&["add", &dir, &more[0], &more[1]]);
    for words in [&["rebalance", "--background"][..], &["trim", "--background"]] {
        ok(&[words, &[dir.as_str()]].concat());
        assert!(ended(words[0]), "{:?}", history(&dir));
    }
    // Both words end it, and what is not under way may be ended.
    for word in ["--stop", "--cancel"] {
        for command in ["rebalance", "trim", "remove"] {
            ok(&[command, &dir, word]);
        }
        assert!(fails(&["scrub", &dir, word]).contains("mirrored or protected"));
        assert!(fails(&["replace", &dir, "0", word]).contains("not being moved"));
        assert!(fails(&["evacuate", &dir, "0", word]).contains("not being moved"));
    }
    ok(&["remove", &dir, "2", "--background"]);
    assert!(ended("remove: member 2"), "{:?}", history(&dir));
    let members = || ok(&["status", &dir]);
    wait_until("it is out of the pool", || !members().contains(&more[0]));
    // Without redundancy the old device leaves the pool when everything has moved.
    let first = c.disks.names()[0].to_owned();
    ok(&["replace", &dir, "0", &more[2], "--background"]);
    assert!(ended("evacuate: member 0"), "{:?}", history(&dir));
    let said = members();
    assert!(said.contains(&more[2]) && !said.contains(&first), "{said}");
    assert_eq!(sh(&format!("sha256sum <{dir}/file")), before);
    drop(c);
}

#[test]
fn an_error_in_the_background_is_in_the_history_and_in_the_log() {
    if !can_mount() {
        return;
    }
    let (c, dir) = of_two_parts();
    // Half of it goes to the emptier part, and has to come back.
    sh(&format!("head -c 300M /dev/urandom >{dir}/old; sync {dir}/old"));
    ok(&["rebalance", &dir]);
    let out = braid(&["remove", &dir, "1", "--background"]);
    let stopped = braid(&["remove", &dir, "--cancel"]);
    assert!(stopped.status.success(), "{stopped:?}");
    let told = |how: &str| {
        history(&dir)
            .into_iter()
            .find(|e| e.starts_with(&format!("remove: member 1 --background {how}")))
    };
    wait_until("it has ended", || told("has").is_some());
    if let Some(failed) = told("has failed") {
        assert!(failed.contains("told to stop"), "{failed}");
        let log = fs::read_to_string(format!("{dir}.log")).unwrap();
        let line = log.lines().find(|line| line.contains("--background has failed"));
        assert!(line.is_some_and(|line| line.contains("told to stop")), "{log}");
    } else {
        assert!(out.status.success(), "{out:?}");
        braid_testkit::skip("the removal was over before it was ended");
    }
    drop(c);
}

/// What a shell is offered in place of the last word of a line.
fn offered(shell: &str, line: &[&str]) -> String {
    let index = (line.len() - 1).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("--").args(line).env("BRAID_COMPLETE", shell);
    if shell != "fish" {
        command.env("_CLAP_COMPLETE_INDEX", index);
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{shell}: {out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn shells_complete_members_and_are_never_held_up() {
    if !can_mount() {
        return;
    }
    let c = Cluster::of(Disks::new(3, 128), 1, &["--mirror", "2"]);
    let dir = node(&c, 0);
    let disk = c.disks.names()[2].to_owned();
    for shell in ["bash", "zsh", "fish"] {
        let all = offered(shell, &["braid", "replace", &dir, ""]);
        // With bash only the words.
        let lines: Vec<&str> = all.split(['\n', '\u{b}']).collect();
        for member in ["0", "1", "2"] {
            assert!(lines.iter().any(|line| line.starts_with(member)), "{shell}: {all}");
        }
        if shell != "bash" {
            assert!(all.contains(&disk), "{shell}: {all}");
        }
        let begun = disk.strip_suffix('2').unwrap();
        assert!(offered(shell, &["braid", "fail", "--force", &dir, begun]).contains(&disk));
        assert!(!offered(shell, &["braid", "replace", "nowhere", ""]).contains(&disk));
    }
    in_shells(&dir);
    let stopped = Stopped::node(&c, 0);
    let begun = Instant::now();
    let all = offered("bash", &["braid", "replace", &dir, ""]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(!all.split(['\n', '\u{b}']).any(|word| word == "0"), "{all}");
    drop(stopped);
    c.finish();
}

/// The scripts as each shell runs them.
fn in_shells(dir: &str) {
    let made = tempfile::tempdir().unwrap();
    let braid = env!("CARGO_BIN_EXE_braid");
    let made = made.path().to_str().unwrap();
    ok(&["generate", made]);
    sh(&format!("mkdir {made}/bin; ln -s {braid} {made}/bin/braid"));
    let bash = format!(
        "PATH={made}/bin:$PATH; . {made}/completions/braid.bash
         COMP_WORDS=(braid replace {dir} '') COMP_CWORD=3 COMP_TYPE=9
         _clap_complete_braid braid '' {dir} 2>/dev/null; echo \"${{COMPREPLY[@]}}\""
    );
    let said = sh(&bash);
    assert!(said.starts_with("0 1 2"), "{said}");
    let runs = |shell: &str| Command::new(shell).args(["-c", "true"]).output().is_ok();
    if !runs("fish") || !runs("zsh") {
        return braid_testkit::skip("no fish, or no zsh");
    }
    let fish = format!(
        "set -x PATH {made}/bin $PATH; source {made}/completions/braid.fish; complete -C 'braid replace {dir} '"
    );
    let out = Command::new("fish").args(["--no-config", "-c", &fish]).output().unwrap();
    let said = text(&out);
    assert!(said.lines().any(|line| line.starts_with("0\t")), "{said}");
    // What the function would show goes to standard output.
    let zsh = format!(
        "PATH={made}/bin:$PATH; compdef() {{ }}; . {made}/completions/_braid
         _describe() {{ print -l -- \"${{(@P)2}}\" \"${{(@P)3}}\"; }}; compadd() {{ print -l -- \"$@\"; }}
         words=(braid replace {dir} '') CURRENT=4; _clap_dynamic_completer_braid"
    );
    let out = Command::new("zsh").args(["-fc", &zsh]).output().unwrap();
    let said = text(&out);
    assert!(said.lines().any(|line| line.starts_with("0:")), "{said}");
}
