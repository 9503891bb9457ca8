//! Settings that stay with a pool, on all nodes: `braid set`, `braid get`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Cluster, Disks, can_mount, fails, ok, unmount_idle};

#[test]
fn properties_stay_with_a_pool_that_nobody_has_mounted() {
    let disks = Disks::new(2, 128);
    ok(&disks.with(&["create", "settled"], &[]));
    let pool = disks.names().join(":");
    let said = ok(&["set", &pool, "comment=of the laboratory", "scrub.every=14"]);
    assert!(said.contains("comment=of the laboratory"), "{said}");
    for (word, why) in [
        ("rubbish=1", "there are comment, io_timeout, mount.options, scrub.every"),
        ("scrub.every=often", "scrub.every=often"),
        ("mount.options=rubbish", "rubbish"),
        ("mount.options=slot=1", "slot=1"),
        ("comment=evil\u{202e}txt", "\\u{202e}"),
        ("comment=zero\u{200b}width", "\\u{200b}"),
    ] {
        // Of several none is taken.
        let said = fails(&["set", &pool, "comment=no", word]);
        assert!(said.contains(why), "{word}: {said}");
    }
    assert!(fails(&["get", &pool, "rubbish"]).contains("there are comment"));
    assert_eq!(ok(&["get", &pool, "comment"]).trim(), "of the laboratory");
    assert_eq!(ok(&["get", &pool, "mount.options"]).trim(), "");
    let all = ok(&["get", &pool]);
    assert!(all.contains("14") && all.contains("mount.options"), "{all}");
    assert!(ok(&disks.with(&["status"], &[])).contains("comment: of the laboratory"));
    let json: serde_json::Value = serde_json::from_str(&ok(&["get", &pool, "--json"])).unwrap();
    assert_eq!(json["properties"]["scrub.every"], "14");
    // Nobody has scrubbed it yet; it has nothing to compare.
    assert!(fails(&["scrub", "--due", &pool]).contains("mirrored"));
    ok(&["set", &pool, "scrub.every=never"]);
    assert!(ok(&["scrub", "--due", &pool]).contains("never"));
    ok(&["set", &pool, "scrub.every=", "comment="]);
    assert_eq!(ok(&["get", &pool, "scrub.every"]).trim(), "30");
    let said = ok(&["history", &pool]);
    assert!(said.contains("set: comment=of the laboratory scrub.every=14"), "{said}");
    assert!(ok(&disks.with(&["check"], &[])).contains("clean"));
}

/// Such a name would look like another, or turn what stands beside it around.
#[test]
fn names_with_characters_that_are_not_seen_are_refused_and_those_that_exist_are_escaped() {
    let disks = Disks::new(1, 128);
    for name in ["sa\u{200b}fe", "\u{202e}efas", "safe\u{2066}", "\u{feff}safe", "sa\u{ad}fe"] {
        let said = fails(&disks.with(&["create", name], &[]));
        assert!(said.contains("cannot be a pool's name"), "{said}");
        assert!(!said.contains(name), "it is printed as it is: {said:?}");
    }
    ok(&disks.with(&["create", "sichér 🦀"], &[]));
    let said = fails(&["rename", &disks.names().join(":"), "sa\u{200d}fe"]);
    assert!(said.contains("cannot be a pool's name"), "{said}");
    // By a version that took it.
    let disk = &disks.paths[0];
    let odd = disk.with_file_name("d\u{202e}isk");
    std::fs::rename(disk, &odd).unwrap();
    let said = ok(&["scan", odd.to_str().unwrap()]);
    assert!(said.contains("d\\u{202e}isk") && !said.contains('\u{202e}'), "{said:?}");
    let json = ok(&["scan", "--json", odd.to_str().unwrap()]);
    assert!(!json.contains('\u{202e}'), "{json:?}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pools"][0]["members"][0]["path"].as_str(), odd.to_str());
}

#[test]
fn a_scrub_is_begun_only_if_it_is_due() {
    let disks = Disks::new(2, 128);
    ok(&disks.with(&["create", "twice", "--mirror", "2"], &[]));
    let pool = disks.names().join(":");
    assert!(ok(&["scrub", "--due", &pool]).contains("read, "));
    let said = ok(&["scrub", "--due", &pool]);
    assert!(said.contains("due every 30 days"), "{said}");
    assert!(ok(&["scrub", &pool]).contains("read, "));
}

/// Two nodes have the pool mounted: both have taken note when the command is done, and the next mount has the options.
#[test]
fn the_nodes_of_a_pool_take_note_and_the_next_mount_has_its_options() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.nodes[0].to_str().unwrap(), c.nodes[1].to_str().unwrap());
    ok(&["set", a, "mount.options=nosuid,commit=30", "comment=shared"]);
    assert_eq!(ok(&["get", b, "comment"]).trim(), "shared");
    ok(&["set", b, "comment=by the other one"]);
    assert_eq!(ok(&["get", a, "comment"]).trim(), "by the other one");
    std::fs::write(c.nodes[0].join("f"), "goes on").unwrap();
    assert_eq!(std::fs::read_to_string(c.nodes[1].join("f")).unwrap(), "goes on");
    let third = c.disks.path("third");
    std::fs::create_dir(&third).unwrap();
    let options = |dir: &str| {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(dir)).unwrap();
        line.split(' ').nth(3).unwrap().to_owned()
    };
    assert!(!options(a).contains("nosuid"), "{}", options(a));
    let io_timeout = || {
        let said: serde_json::Value =
            serde_json::from_str(&ok(&["nodes", &third, "--json"])).unwrap();
        let nodes = said["nodes"].as_array().unwrap();
        let own = nodes.iter().find(|n| n["slot"] == said["self"]).unwrap();
        own["io_timeout_s"].as_f64().unwrap()
    };
    ok(&["set", a, "io_timeout=7"]);
    ok(&c.disks.with(&["mount"], &[&third]));
    assert!(options(&third).contains("nosuid"), "{}", options(&third));
    assert!((io_timeout() - 7.0).abs() < 0.01, "{}", io_timeout());
    unmount_idle(third.as_ref());
    // What is given comes last.
    ok(&c.disks.with(&["mount"], &[&third, "-o", "suid,io_timeout=8"]));
    assert!(!options(&third).contains("nosuid"), "{}", options(&third));
    assert!((io_timeout() - 8.0).abs() < 0.01, "{}", io_timeout());
    unmount_idle(third.as_ref());
    c.finish();
}

#[test]
fn features_of_a_pool_are_named() {
    let known = ok(&["upgrade", "--list"]);
    assert!(known.contains("lock-store") && !known.contains(" yes "), "{known}");
    assert!(fails(&["upgrade"]).contains("--list"));
    let disks = Disks::new(2, 128);
    ok(&disks.with(&["create", "featured", "--mirror", "2"], &[]));
    let pool = disks.names().join(":");
    let used = || {
        let said = ok(&["upgrade", "--list", &pool, "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let all = said["features"].as_array().unwrap().iter();
        let used =
            all.filter(|f| f["used"] == true).map(|f| f["name"].as_str().unwrap().to_owned());
        used.collect::<Vec<_>>()
    };
    assert_eq!(used(), ["mirror"]);
    ok(&["set", &pool, "comment=x"]);
    assert_eq!(used(), ["mirror", "properties"]);
    // What an older version could use again.
    ok(&["set", &pool, "comment="]);
    assert_eq!(used(), ["mirror"]);
    if common::can_mount() {
        let dir = disks.path("mnt");
        std::fs::create_dir(&dir).unwrap();
        ok(&disks.with(&["mount"], &[&dir]));
        assert!(ok(&["upgrade", "--list", &dir]).contains("yes"));
        common::unmount_idle(dir.as_ref());
    }
}
