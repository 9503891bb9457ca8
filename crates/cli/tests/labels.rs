//! Labels kept in a file and written again: what was on the pool is there afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use braid_format::Bytes;
use braid_format::label::Label;
use common::{Cluster, Disks, can_mount, fails, ok};

fn wipe(disk: &Path) {
    let file = OpenOptions::new().write(true).open(disk).unwrap();
    let second = Label::copy1_at(Bytes(file.metadata().unwrap().len())).unwrap();
    for at in [Label::COPY0_AT, second] {
        file.write_all_at(&vec![0; Label::LEN_MAX], at.0).unwrap();
    }
}
fn bytes(d: &Disks) -> Vec<Vec<u8>> {
    d.paths.iter().map(|p| fs::read(p).unwrap()).collect()
}

#[test]
fn a_pool_comes_back_from_its_members_and_from_a_dump() {
    let d = Disks::new(3, 256);
    ok(&d.with(&["create", "p"], &[]));
    let dump = d.path("p.label");
    let said = ok(&d.with(&["label", "dump"], &["-o", &dump]));
    assert!(said.contains("3 members") && !Path::new(&d.path("p.label.part")).exists(), "{said}");
    let made = bytes(&d);
    let names = d.names();

    wipe(&d.paths[1]);
    let said = fails(&d.with(&["status"], &[]));
    assert!(said.contains(names[1]), "{said}");
    let member = format!("1={}", names[1]);
    let restore = ["label", "restore", names[0], names[2], "--member", &member];
    let said = ok(&restore);
    assert!(said.contains("nothing was written") && said.contains("labels at 65536"), "{said}");
    fails(&d.with(&["status"], &[]));
    // What contradicts is refused: another member's place, a member that is there.
    let wrong = format!("0={}", names[1]);
    let said = fails(&["label", "restore", names[0], names[2], "--member", &wrong, "--yes"]);
    assert!(said.contains("not missing"), "{said}");
    let wrong = format!("9={}", names[1]);
    let said = fails(&["label", "restore", names[0], names[2], "--member", &wrong]);
    assert!(said.contains("no member 9"), "{said}");
    ok(&[&restore[..], &["--yes"]].concat());
    assert!(bytes(&d) == made, "not byte for byte what was there");
    let said = fails(&[&restore[..], &["--yes"]].concat());
    assert!(said.contains("nothing to restore"), "{said}");

    d.paths.iter().for_each(|p| wipe(p));
    let members: Vec<String> = (0..).zip(&names).map(|(i, n)| format!("{i}={n}")).collect();
    let mut restore = vec!["label", "restore", "--from", &dump];
    members.iter().for_each(|m| restore.extend(["--member", m]));
    ok(&restore);
    assert!(fails(&d.with(&["status"], &[])).contains("not a member"));
    ok(&[&restore[..], &["--yes"]].concat());
    assert!(bytes(&d) == made, "not byte for byte what was there");
    ok(&d.with(&["check"], &[]));
}

#[test]
fn a_damaged_dump_is_refused() {
    let d = Disks::new(1, 256);
    ok(&d.with(&["create", "p"], &[]));
    let dump = ok(&d.with(&["label", "dump"], &[]));
    wipe(&d.paths[0]);
    let before = bytes(&d);
    let (file, member) = (d.path("dump"), format!("0={}", d.names()[0]));
    let restore = ["label", "restore", "--from", &file, "--member", &member, "--yes"];
    let named = dump.replacen("\"name\": \"p\"", "\"name\": \"q\"", 1);
    let bit = dump.replacen("4252414944504c", "4252414944504d", 1);
    assert!(named != dump && bit != dump);
    for damaged in [&named, &bit, &dump[..dump.len() / 2], "{}", ""] {
        fs::write(&file, damaged).unwrap();
        let said = fails(&restore);
        assert!(said.contains("label dump") && said.contains(&file), "{said}");
    }
    assert!(bytes(&d) == before);
    fs::write(&file, &dump).unwrap();
    ok(&restore);
    ok(&d.with(&["check"], &[]));
}

#[test]
fn files_are_whole_after_a_members_labels_came_back() {
    if !can_mount() {
        return;
    }
    let mut c = Cluster::new(3, 256, 1);
    let data: Vec<u8> = (0..20_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(c.node(0).join("file"), &data).unwrap();
    c.unmount_all();
    wipe(&c.disks.paths[2]);
    let names = c.disks.names().iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let member = format!("2={}", names[2]);
    ok(&["label", "restore", &names[0], &names[1], "--member", &member, "--yes"]);
    let node = c.mount(&[]);
    assert!(fs::read(node.join("file")).unwrap() == data);
    c.finish();
}
