//! Shapes of pools on the command line: what is asked for is shown and made; what cannot be is
//! refused with the place and the way out, and nothing is written.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use common::{Disks, fails, ok};
use serde_json::Value;

/// The drawing without what differs from run to run: the tree's lines, paths cut to their last part.
fn tree(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|l| l.contains("─ "));
    lines
        .map(|l| {
            let (lines, text) = l.split_once("─ ").unwrap();
            let name = text.split("  ").next().unwrap();
            let last = name.rsplit('/').next().unwrap();
            format!("{lines}─ {}", if name.starts_with('/') { last } else { text })
        })
        .collect()
}

fn scanned(d: &Disks) -> String {
    ok(&d.with(&["scan"], &[]))
}

#[test]
fn layouts_are_drawn_made_and_shown() {
    let d = Disks::new(4, 256);
    let layout = "stripe(mirror(disk0,disk1), mirror(disk2,disk3))";
    let expected = [
        "└─ stripe of 2, 500 MiB, unit 64 KiB, width 128 KiB",
        "   ├─ mirror of 2, 250 MiB",
        "   │  ├─ disk0",
        "   │  └─ disk1",
        "   └─ mirror of 2, 250 MiB",
        "      ├─ disk2",
        "      └─ disk3",
    ];
    let how = ["create", "p", "--layout", layout, "--stripe-unit", "64K", "--dry-run"];
    let said = ok(&d.with(&how, &[]));
    assert_eq!(tree(&said), expected, "{said}");
    assert!(said.contains("500 MiB usable") && said.contains("any one member may be lost"));
    assert!(said.contains("nothing was written") && !scanned(&d).contains("epoch"));

    // The same in a file, with names for its parts, the unit, and the devices.
    let file = d.path("pool.toml");
    let devices: Vec<String> = d.names().iter().map(|n| format!("{n:?}")).collect();
    let text = format!(
        "devices = [{}]\nunit = \"64K\"\nlayout = \"stripe(left, right)\"\n[groups]\n\
         left = \"mirror(disk0,disk1)\"\nright = \"mirror(disk2,disk3)\"\n",
        devices.join(", ")
    );
    fs::write(&file, text).unwrap();
    assert_eq!(tree(&ok(&["create", "p", "--layout", &file, "--dry-run"])), expected);

    // Paths in the layout are devices enough.
    let [a, b] = [d.names()[0], d.names()[1]];
    ok(&["create", "p", "--layout", &format!("concat({a}, {b})")]);
    let said = ok(&["status", "--topology", b, a]);
    let expected = ["└─ concat of 2, 508 MiB", "   ├─ disk0", "   └─ disk1"];
    assert_eq!(tree(&said), expected, "{said}");
    let json: Value = serde_json::from_str(&ok(&["status", "--json", a, b])).unwrap();
    let tree = &json["pool"]["topology"]["subpools"][0]["tree"];
    assert_eq!(tree["kind"], "concat");
    assert_eq!(tree["children"][1]["path"], b);
    assert_eq!(tree["children"][1]["state"], "active");
    ok(&["check", a, b]);
}

#[test]
fn weights_buses_and_order_are_told() {
    let d = Disks::new(4, 256);
    let said = ok(&d.with(&["create", "p", "--dry-run", "--weights", "2,1,1,1"], &[]));
    assert!(said.contains("unit 256 KiB, width 1280 KiB") && said.contains("weight 2"), "{said}");
    let buses = ["disk0=1", "disk1=1", "disk2=2", "disk3=2"];
    let mut how = vec!["create", "p", "--dry-run"];
    how.extend(buses.iter().flat_map(|b| ["--bus", b]));
    let order = |said: &str| {
        tree(said)[1..].iter().map(|l| l[l.len() - 1..].to_owned()).collect::<String>()
    };
    assert_eq!(order(&ok(&d.with(&how, &[]))), "0213");
    how.push("--keep-order");
    assert_eq!(order(&ok(&d.with(&how, &[]))), "0123");
    let said = ok(&d.with(&["create", "p", "--weights", "auto"], &[]));
    assert!(said.contains("expected for large files"), "{said}");
    let json: Value = serde_json::from_str(&ok(&d.with(&["status", "--json"], &[]))).unwrap();
    let member = &json["pool"]["topology"]["subpools"][0]["tree"]["children"][0];
    assert!(member["bytes_per_second"].as_u64().unwrap() > 0, "{member}");
}

#[test]
fn a_plan_can_be_read_by_programs() {
    let d = Disks::new(3, 256);
    let how = ["create", "p", "--mirror", "2", "--dry-run", "--json"];
    let json: Value = serde_json::from_str(&ok(&d.with(&how, &[]))).unwrap();
    assert_eq!(json["usable"], 375 << 20);
    assert_eq!(json["members_that_may_be_lost"], 1);
    assert_eq!(json["expected_read"], Value::Null, "files are not measured unasked");
    let tree = &json["subpools"][0]["tree"];
    assert_eq!(tree["children"].as_array().unwrap().len(), 3);
    assert_eq!(tree["unit"], 256 << 10);
    assert!(!scanned(&d).contains("epoch"), "nothing was written");
}

#[test]
fn unused_bytes_are_said() {
    let d = Disks::new(2, 256);
    fs::File::options().write(true).open(&d.paths[1]).unwrap().set_len(300 << 20).unwrap();
    let said = ok(&d.with(&["create", "p", "--dry-run", "--mirror", "2"], &[]));
    assert!(said.contains(&format!("{} bytes of", 44 << 20)) && said.contains("disk1"), "{said}");
}

#[test]
fn bad_layouts_are_refused() {
    let d = Disks::new(4, 256);
    for (how, parts) in [
        (vec!["--layout", "stripe(disk0, disk1"], vec!["',' or ')'", "^"]),
        (vec!["--layout", "strip(all)"], vec!["'strip'", "stripe, mirror"]),
        (vec!["--layout", "stripe(disk0-9, rest)"], vec!["'disk0-9'", "disk3"]),
        (vec!["--layout", "stripe(0-2)"], vec!["disk3", "leave it out"]),
        (vec!["--layout", "mirror(stripe(0,1),stripe(2,3))"], vec!["the other way", "^"]),
        (vec!["--layout", "missing.toml"], vec!["missing.toml", "No such file"]),
        (vec!["--layout", "stripe(all)", "--mirror", "2"], vec!["cannot be used with"]),
        (vec!["--mirror", "5"], vec!["--mirror 5", "2, 3 or 4"]),
        (vec!["--parity", "3"], vec!["--parity 3", "1 or 2"]),
        (vec!["--weights", "1,2"], vec!["2 weights for 4 devices"]),
        (vec!["--weights", "fast"], vec!["--weights fast", "auto, none"]),
        (vec!["--bus", "disk0"], vec!["--bus disk0", "DEVICE=N"]),
        (vec!["--bus", "disk9=1"], vec!["disk9", "not among"]),
        (vec!["--stripe-unit", "5000"], vec!["stripe unit", "4 KiB"]),
    ] {
        let mut args = d.with(&["create", "p"], &[]);
        args.extend(&how);
        let said = fails(&args);
        for part in parts {
            assert!(said.contains(part), "{how:?}: {part:?} is not in: {said}");
        }
    }
    assert!(fails(&["create", "p", "--layout", "stripe(all)"]).contains("no device given"));
    assert!(!scanned(&d).contains("epoch"), "nothing was written");
}

#[test]
fn parity_gets_a_subpool_for_metadata() {
    let d = Disks::new(4, 256);
    let said = ok(&d.with(&["create", "p", "--parity", "1"], &[]));
    assert!(said.contains("parity 3+1") && said.contains("metadata"), "{said}");
    let checked = ok(&d.with(&["check"], &[]));
    assert!(checked.contains("clean"), "{checked}");
    let status: Value = serde_json::from_str(&ok(&d.with(&["status"], &["--json"]))).unwrap();
    // Space for files is that of the data subpool.
    let pool = &status["pool"];
    let (free, size) = (&pool["fs_free"], &pool["fs_size"]);
    assert_eq!(free, size, "{pool}");
    assert!(size.as_u64().unwrap() < pool["size"].as_u64().unwrap());
}

#[test]
fn subpools_without_redundancy_are_for_as_many_nodes_as_any() {
    let d = Disks::new(3, 128);
    let layout = "metadata=stripe(0[32M],1[32M]); journal=stripe(2[32M]); data=stripe(all)";
    let said = ok(&d.with(&["create", "p", "--layout", layout], &[]));
    for kind in ["metadata", "journal", "data"] {
        assert!(said.contains(kind), "{said}");
    }
    assert!(ok(&d.with(&["check"], &[])).contains("clean"));
    let small = "metadata=stripe(0[2M]); data=stripe(all)";
    let said = fails(&d.with(&["create", "p", "--force", "--layout", small], &[]));
    assert!(said.contains("the subpool for metadata has"), "{said}");
}

#[test]
fn metadata_gets_devices_of_its_own_as_told() {
    let d = Disks::new(5, 512);
    let how = ["create", "p", "--mirror", "2", "--subpools", "metadata=disk1,disk3"];
    let said = ok(&d.with(&[&how[..], &["--dry-run"]].concat(), &[]));
    let (metadata, data) = said.split_once("\ndata").unwrap();
    for (part, disks) in [(metadata, [1, 3].as_slice()), (data, &[0, 2, 4])] {
        for disk in 0..5 {
            assert_eq!(part.contains(&format!("/disk{disk} ")), disks.contains(&disk), "{said}");
        }
    }
    ok(&d.with(&how, &[]));
    ok(&d.with(&["check"], &[]));
    for (spec, why) in [
        ("metadata=disk1", "take at least 2"),
        ("metadata=disk9,disk1", "no device 'disk9'"),
        ("metdata=disk1,disk2", "not a kind of subpool"),
    ] {
        let how = ["create", "p", "--force", "--mirror", "2", "--subpools", spec];
        let said = fails(&d.with(&how, &[]));
        assert!(said.contains(why), "{spec}: {said}");
    }
    let how = ["create", "p", "--force", "--subpools", "auto", "--layout", "stripe(all)"];
    assert!(fails(&d.with(&how, &[])).contains("cannot be used with"));
}

/// Files in one directory are too much alike, unless the machine is so busy that one seems slow: then
/// what was chosen is made, and said all the same.
#[test]
fn what_is_chosen_by_measurement_is_said_and_made() {
    let d = Disks::new(4, 512);
    let how = ["create", "p", "--subpools", "auto"];
    let said = ok(&d.with(&[&how[..], &["--dry-run"]].concat(), &[]));
    assert!(said.contains("small reads"), "{said}");
    assert!(said.lines().any(|l| l.starts_with("subpools: ")) && !scanned(&d).contains("epoch"));
    let json = ok(&d.with(&[&how[..], &["--dry-run", "--json"]].concat(), &[]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["subpools_chosen"].as_str().unwrap().contains("small reads"), "{json}");
    ok(&d.with(&how, &[]));
    ok(&d.with(&["check"], &[]));
    // Nobody asked: files are not measured.
    let said = ok(&d.with(&["create", "p", "--force", "--dry-run"], &[]));
    assert!(!said.contains("small reads"), "{said}");
}
