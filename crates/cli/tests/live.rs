//! What a run of `braid bench` shows while it is under way, and what it leaves behind when it is
//! ended: the terminal as it was, the result so far.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Takes the terminal for the screen, and gives it back.
const TAKEN: &str = "\u{1b}[?1049h";
const BACK: &str = "\u{1b}[?1049l";

fn braid(dir: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(line.split(' ')).current_dir(dir);
    command
}

/// Rounds without end.
const ENDLESS: &str = "bench sweep a --size 256K --requests 4K --cache warm --look 0 --repeats 1000000 --budget 600 \
     --width 0.000001 --out r.json";

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    dir
}

/// The same on a terminal of its own (`script`), which then says what state it is in.
fn on_a_terminal(dir: &Path, line: &str) -> Child {
    let line = format!(
        "stty rows 24 columns 100; {} {line}; echo status $?; stty -a",
        env!("CARGO_BIN_EXE_braid")
    );
    Command::new("script")
        .args(["-qec", &line, "typescript"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script (bsdutils)")
}

/// Reads until `what` is there; all that was read.
fn until(child: &mut Child, what: &str) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    let out = child.stdout.as_mut().unwrap();
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if text.contains(what) {
            return text;
        }
        let n = out.read(&mut piece).unwrap();
        assert!(n > 0, "it ended before '{what}': {text}");
        all.extend_from_slice(&piece[..n]);
    }
}

/// The rest, to the end.
fn rest(mut child: Child) -> String {
    let mut all = Vec::new();
    child.stdout.as_mut().unwrap().read_to_end(&mut all).unwrap();
    child.wait().unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

/// The terminal is as it was: off the other screen, and lines are edited and echoed again.
#[track_caller]
fn restored(said: &str) {
    let end = said.rfind(BACK).expect("the screen is given back");
    assert!(said.rfind(TAKEN).is_none_or(|taken| taken < end), "{said}");
    let state = said.get(end..).unwrap();
    for word in ["icanon", "echo", "isig"] {
        assert!(state.split_whitespace().any(|w| w == word), "'{word}' in {state}");
    }
}

fn ended(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("r.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(!result["rows"].as_array().unwrap().is_empty(), "{result}");
    result["rounds"]["ended"].as_str().unwrap().to_owned()
}

#[test]
fn the_screen_ends_with_the_run_and_with_ctrl_c_and_gives_the_terminal_back() {
    let dir = place();
    let short = "bench sweep a --size 256K --requests 4K --cache warm --look 300 --repeats 3 --tui";
    let said = rest(on_a_terminal(dir.path(), short));
    assert!(said.contains(TAKEN) && said.contains("status 0"), "{said}");
    restored(&said);
    // The table is on the terminal as it was, not on the screen that is gone.
    assert!(said.get(said.rfind(BACK).unwrap()..).unwrap().contains("write warm"), "{said}");

    // An error in the middle: the file that is read has become too short.
    let failing = "bench sweep a/x --size 1M --requests 4K,2G --cache warm --look 300 --tui";
    let said = rest(on_a_terminal(dir.path(), failing));
    assert!(said.contains(TAKEN) && said.contains("status 1"), "{said}");
    restored(&said);

    // Ctrl-C is a key there. What is left is known when a row is; blanks are not drawn again.
    let mut child = on_a_terminal(dir.path(), &format!("{ENDLESS} --tui"));
    let mut said = until(&mut child, "left");
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    said += &rest(child);
    assert!(said.contains("status 1") && said.contains("interrupted"), "{said}");
    restored(&said);
    assert_eq!(ended(dir.path()), "interrupted");
    assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_it_with_the_result_so_far() {
    let dir = place();
    let mut child = braid(dir.path(), &format!("{ENDLESS} --heartbeat 0.01"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut err = child.stderr.take().unwrap();
    let mut piece = [0; 1024];
    // Some rounds are over.
    while !said.contains("round 8") {
        let n = err.read(&mut piece).unwrap();
        assert!(n > 0, "{said}");
        said += &String::from_utf8_lossy(&piece[..n]);
    }
    assert!(said.contains("sweep: round") && said.contains("left"), "{said}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::io::copy(&mut err, &mut std::io::sink()).unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success() && status.signal().is_none(), "{status}");
    assert_eq!(ended(dir.path()), "interrupted");
}

#[test]
fn without_a_terminal_the_screen_is_lines() {
    let dir = place();
    let short = "bench sweep a --size 256K --requests 4K --cache warm --look 400 --repeats 2";
    let run = |options: &str| {
        let output = braid(dir.path(), &format!("{short} {options}")).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run("--tui --heartbeat 0.2");
    assert!(said.contains("sweep: round") && !said.contains('\u{1b}'), "{said}");
    assert_eq!(run("--heartbeat 0"), "");
    let output = braid(dir.path(), &format!("{short} --heartbeat -1")).output().unwrap();
    assert!(!output.status.success());
    // A line every ten seconds by itself: none in so short a run.
    assert_eq!(run("--json"), "");
}
