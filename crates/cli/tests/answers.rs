//! `--json`: what every command answers to programs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::{Cluster, Disks, braid, can_mount, ok};
use serde_json::Value;

/// What a command answers, and whether it succeeded.
fn answer(args: &[&str]) -> (Value, bool) {
    let output = braid(&[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let value: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"));
    assert_eq!(value["schema"], 1, "{value}");
    assert_eq!(value["error"].is_null(), output.status.success(), "{value}");
    (value, output.status.success())
}

/// The answer of a command that succeeds.
fn of(args: &[&str]) -> Value {
    let (value, succeeded) = answer(args);
    assert!(succeeded, "{value}");
    value
}

/// The names in the list of commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_it() {
    let help = |words: &[&str]| ok(&[words, &["--help"]].concat());
    let names = commands(&help(&[]));
    assert!(names.len() > 25, "{names:?}");
    // These take the options of other programs; and `bench` has modes, each with its own.
    let others = BTreeSet::from(["bench", "lmdd", "xdd"]);
    for name in names.iter().filter(|name| !others.contains(name.as_str())) {
        let below = commands(&help(&[name]));
        if below.is_empty() {
            assert!(help(&[name]).contains("--json"), "{name}");
        }
        for sub in &below {
            assert!(help(&[name, sub]).contains("--json"), "{name} {sub}");
        }
    }
}

#[test]
fn answers_say_what_was_done() {
    let disks = Disks::new(4, 128);
    let devices = disks.names();
    let made = of(&[&["create", "p", "--mirror", "2"], &devices[..3]].concat());
    assert_eq!(made["command"], "create");
    assert!(made["messages"][0].as_str().unwrap().starts_with("created pool 'p'"), "{made}");
    assert_eq!(made["members_that_may_be_lost"], 1);
    let found = of(&[&["scan"], &devices[..3]].concat());
    assert_eq!(found["pools"][0]["members"].as_array().unwrap().len(), 3);

    let checked = of(&[&["check"], &devices[..3]].concat());
    assert!(checked["clean"] == true && checked["problems"] == Value::from(Vec::<Value>::new()));
    let pool = devices[..3].join(":");
    let replaced = of(&["replace", &pool, "0", devices[3]]);
    assert_eq!(replaced["pool"]["members"][0]["path"], devices[3]);
    assert_eq!(replaced["pool"]["members"][0]["state"], "active");
    let now = [devices[3], devices[1], devices[2]];
    let pool = now.join(":");
    let scrubbed = of(&["scrub", &pool]);
    assert_eq!(scrubbed["pool"]["scrubbed"]["undecided"], 0, "{scrubbed}");
    let kept = of(&[&["label", "dump"], &now[..]].concat());
    assert!(kept["command"] == "label dump" && kept["label"].is_object(), "{kept}");

    // What fails says why, there and on standard error.
    let (refused, succeeded) = answer(&["destroy", now[0], now[1], now[2]]);
    assert!(!succeeded && refused["error"].as_str().unwrap().contains("--yes"), "{refused}");
    let ended = of(&["destroy", "--yes", now[0], now[1], now[2]]);
    assert_eq!(ended["wiped"].as_array().unwrap().len(), 3, "{ended}");
    let (gone, succeeded) = answer(&["check", now[0]]);
    assert!(!succeeded && gone["command"] == "check", "{gone}");
}

#[test]
fn a_mount_is_told_and_looked_at() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::of(Disks::new(1, 256), 1, &[]);
    let dir = cluster.node(0).to_str().unwrap();
    assert!(of(&["status", dir])["pool"]["health"].is_object());
    assert_eq!(of(&["nodes", dir])["nodes"][0]["state"], "alive");
    assert!(of(&["locks", dir])["locks"].is_array());
    let top = of(&["top", "-n", "1", "-d", "0.1", dir]);
    assert!(top["io"].is_object() && top["command"] == "top", "{top}");
    let other = tempfile::tempdir().unwrap();
    let second = other.path().to_str().unwrap();
    let mounted = of(&["mount", cluster.disks.names()[0], second]);
    assert_eq!(mounted["mount"]["mount_point"], second, "{mounted}");
    assert_eq!(of(&["unmount", second])["mount_point"], second);
    assert!(of(&["version"])["format"].is_u64());
}
