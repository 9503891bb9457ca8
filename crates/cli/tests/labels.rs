//! Labels kept in a file and written again: what was on the pool is there afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use braid_format::label::Label;
use braid_format::{Bytes, Epoch};
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
    let said = fails(&restore);
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
    fails(&restore);
    ok(&[&restore[..], &["-n"]].concat());
    assert!(fails(&d.with(&["status"], &[])).contains("not a member"));
    ok(&[&restore[..], &["--yes"]].concat());
    assert!(bytes(&d) == made, "not byte for byte what was there");
    ok(&d.with(&["check"], &[]));
}

#[test]
fn a_destroyed_pool_is_gone_until_its_kept_label_is_restored() {
    if !can_mount() {
        return;
    }
    let (mut c, dump) = used(2, 256, &[]);
    let node = c.mount(&[]);
    for name in [&c.disks.names()[..], &[node.to_str().unwrap()]] {
        let said = fails(&[&["destroy"][..], name, &["--yes"]].concat());
        assert!(said.contains("mounted"), "{said}");
    }
    c.unmount_all();
    let d = &c.disks;
    let before = bytes(d);
    let said = fails(&d.with(&["destroy"], &[]));
    assert!(said.contains("give --yes") && said.contains("nothing was changed"), "{said}");
    assert!(bytes(d) == before, "something was written");
    let said = ok(&d.with(&["destroy"], &["--yes"]));
    assert!(said.contains("2 devices can be used"), "{said}");
    fails(&d.with(&["status"], &[]));
    assert!(!ok(&[&["scan"][..], &d.names()].concat()).contains("test"));
    let members: Vec<String> = (0..).zip(d.names()).map(|(i, n)| format!("{i}={n}")).collect();
    let mut restore = vec!["label", "restore", "--from", &dump, "--yes"];
    members.iter().for_each(|m| restore.extend(["--member", m]));
    ok(&restore);
    assert!(bytes(d) == before, "not byte for byte what was there");
    ok(&d.with(&["check"], &[]));
    ok(&d.with(&["destroy"], &["--yes"]));
    // The devices are nobody's: no --force.
    ok(&d.with(&["create", "another"], &[]));
}

/// Half of the members are wiped, the others say that the pool has ended.
#[test]
fn a_destruction_that_was_broken_off_can_be_finished() {
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p"], &[]));
    let dump = ok(&d.with(&["label", "dump"], &[]));
    let mut disk = fs::read(&d.paths[0]).unwrap();
    for (copy, at) in [(0, Label::COPY0_AT), (1, Label::copy1_at(Bytes(256 << 20)).unwrap())] {
        let place = &mut disk[usize::try_from(at.0).unwrap()..][..Label::LEN_MAX];
        let label = Label::decode(place, at).unwrap().0;
        let ended = Label { ended: true, epoch: Epoch(label.epoch.0 + 1), ..label };
        ended.encode(copy, at, place).unwrap();
    }
    fs::write(&d.paths[0], disk).unwrap();
    wipe(&d.paths[1]);
    assert!(ok(&[&["scan"][..], &d.names()].concat()).contains("being destroyed"));
    let before = bytes(&d);
    for command in ["status", "check", "destroy"] {
        let said = fails(&d.with(&[command], &[]));
        assert!(said.contains("being destroyed") || said.contains("give --yes"), "{said}");
    }
    assert!(bytes(&d) == before, "something was written");
    let said = ok(&d.with(&["destroy"], &["--yes"]));
    assert!(said.contains("pool \"p\" is no more: 1 devices"), "{said}");
    assert!(!ok(&[&["scan"][..], &d.names()].concat()).contains("destroyed"));
    let file = d.path("dump");
    fs::write(&file, dump).unwrap();
    let members: Vec<String> = (0..).zip(d.names()).map(|(i, n)| format!("{i}={n}")).collect();
    let mut restore = vec!["label", "restore", "--from", &file, "--yes"];
    members.iter().for_each(|m| restore.extend(["--member", m]));
    ok(&restore);
    ok(&d.with(&["check"], &[]));
}

/// The device of a failed member is there: it is found by its label, and keeps none.
#[test]
fn a_failed_member_is_destroyed_with_its_pool() {
    let d = Disks::new(3, 256);
    ok(&d.with(&["create", "p"], &["--mirror", "3"]));
    let mut fail = d.with(&["fail"], &[]);
    let devices = d.names().join(":");
    fail.splice(1.., [devices.as_str(), "1"]);
    ok(&fail);
    let said = ok(&d.with(&["destroy"], &["--yes"]));
    assert!(said.contains("pool \"p\" is no more: 3 devices"), "{said}");
    assert!(ok(&[&["scan"][..], &d.names()].concat()).starts_with("no pools found"));
}

#[test]
fn a_pool_gets_another_name_while_nobody_has_it() {
    let d = Disks::new(2, 256);
    ok(&d.with(&["create", "p"], &["--mirror", "2"]));
    let devices = d.names().join(":");
    for bad in ["", "a/b"] {
        assert!(fails(&["rename", &devices, bad]).contains("name"), "{bad:?}");
    }
    assert!(ok(&["rename", &devices, "q"]).contains("pool 'p' is called 'q' now"));
    assert!(ok(&[&["scan"][..], &d.names()].concat()).starts_with("q  "));
    ok(&d.with(&["check"], &[]));
    if can_mount() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        ok(&["mount", &devices, dir]);
        assert!(fails(&["rename", &devices, "r"]).contains("mounted"));
        assert!(fails(&["rename", dir, "r"]).contains("braid unmount"));
        ok(&["unmount", dir]);
    }
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

/// A pool of these options with files on it, unmounted; and a dump of its label.
fn used(disks: usize, mib: u64, options: &[&str]) -> (Cluster, String) {
    let mut c = Cluster::of(Disks::new(disks, mib), 1, options);
    common::pool::fill(c.node(0));
    c.unmount_all();
    let dump = c.disks.path("label");
    ok(&c.disks.with(&["label", "dump"], &["-o", &dump]));
    (c, dump)
}

/// `label restore` of these members from these disks, whose labels are wiped, beside the others.
fn restore(c: &Cluster, pairs: &[(usize, usize)], more: &[&str]) -> (bool, String) {
    let names = c.disks.names();
    pairs.iter().for_each(|(_, disk)| wipe(&c.disks.paths[*disk]));
    let others = (0..names.len()).filter(|n| !pairs.iter().any(|(_, disk)| disk == n));
    let mut words: Vec<String> = vec!["label".into(), "restore".into()];
    words.extend(others.map(|n| names[n].to_owned()));
    words.extend(more.iter().map(|w| (*w).to_owned()));
    if !more.contains(&"--yes") {
        words.push("--dry-run".into());
    }
    for (member, disk) in pairs {
        words.extend(["--member".into(), format!("{member}={}", names[*disk])]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = common::braid(&words);
    let said = [out.stdout, out.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
    eprintln!("{words:?}: {said}");
    (out.status.success(), said)
}

/// Members that have changed places are refused, by name; in their own places they are taken.
#[track_caller]
fn told_apart(c: &Cluster, dump: &str, (a, b): (usize, usize)) {
    for force in [&["--yes"][..], &["--yes", "--force"]] {
        let start = std::time::Instant::now();
        let (done, said) = restore(c, &[(a, b), (b, a)], force);
        assert!(!done && said.contains("contradict it"), "{said}");
        let named = |n: usize, m: usize| {
            said.contains(&format!("disk{m} is not member {n}"))
                && said.contains("looks like member")
        };
        assert!(named(a, b) || named(b, a), "{said}");
        assert!(start.elapsed().as_secs() < 20, "{said}");
    }
    // All of them, from a dump, of which two are confused.
    let mut pairs: Vec<(usize, usize)> = (0..c.disks.paths.len()).map(|n| (n, n)).collect();
    pairs.swap(a, b);
    (pairs[a].0, pairs[b].0) = (a, b);
    let (done, said) = restore(c, &pairs, &["--from", dump, "--yes"]);
    assert!(!done && said.contains("looks like member"), "{said}");
    pairs = (0..c.disks.paths.len()).map(|n| (n, n)).collect();
    let (done, said) = restore(c, &pairs, &["--from", dump]);
    assert!(done && said.contains("its contents agree") && !said.contains("nothing but"), "{said}");
    let (done, said) = restore(c, &pairs, &["--from", dump, "--yes"]);
    assert!(done, "{said}");
    let (done, said) = restore(c, &[(a, a), (b, b)], &["--yes"]);
    assert!(done && said.contains("its contents agree"), "{said}");
    ok(&c.disks.with(&["check"], &[]));
}

#[test]
fn members_in_each_others_places_are_told_apart() {
    if !can_mount() {
        return;
    }
    // Two that are not copies of each other.
    for (disks, options, two) in [
        (3, &[][..], (1, 2)),
        (4, &["--mirror", "2", "--keep-order"], (1, 2)),
        (3, &["--parity", "1", "--keep-order"], (0, 2)),
        (4, &["--parity", "2", "--keep-order"], (1, 3)),
    ] {
        let (mut c, dump) = used(disks, 256, options);
        told_apart(&c, &dump, two);
        let node = c.mount(&[]);
        assert_eq!(fs::read_dir(node.join("tree")).unwrap().count(), 61);
        c.finish();
    }
}

#[test]
fn a_device_of_another_pool_or_an_empty_one_is_no_member() {
    for options in [&[][..], &["--mirror", "2"]] {
        let c = Cluster::of(Disks::new(4, 192), 0, options);
        let other = Cluster::of(Disks::new(4, 192), 0, options);
        let foreign = fs::read(&other.disks.paths[1]).unwrap();
        let own = fs::read(&c.disks.paths[1]).unwrap();
        fs::write(&c.disks.paths[1], foreign).unwrap();
        let (done, said) = restore(&c, &[(1, 1)], &[]);
        assert!(!done && said.contains("disk1 is not member 1"), "{said}");
        assert!(said.contains("another pool") && said.contains("--force"), "{said}");
        // Never written: where there are copies they say that it is not.
        let size = own.len();
        fs::write(&c.disks.paths[1], vec![0; size]).unwrap();
        let (done, said) = restore(&c, &[(1, 1)], &[]);
        assert_eq!(done, options.is_empty(), "{said}");
        assert!(
            said.contains("WARNING") == done && said.contains("is not member") != done,
            "{said}"
        );
        let (done, said) = restore(&c, &[(1, 1)], &["--force"]);
        assert!(done && said.contains("nothing was written"), "{said}");
        fs::write(&c.disks.paths[1], own).unwrap();
        let (done, said) = restore(&c, &[(1, 1)], &["--yes"]);
        assert!(done && said.contains("its contents agree"), "{said}");
        ok(&c.disks.with(&["check"], &[]));
    }
}

/// A device that has lost its labels, among all of the pool's: the command that is advised works as it stands.
#[test]
fn lost_labels_are_told_from_another_device() {
    let d = Disks::new(3, 192);
    let strange = d.path("a disk, not b's");
    fs::rename(&d.paths[1], &strange).unwrap();
    let names = [d.names()[0], &strange, d.names()[2]].map(str::to_owned);
    let with = |command: &'static str| {
        [vec![command], names.iter().map(String::as_str).collect()].concat()
    };
    ok(&[&["create", "p"][..], &with("--force")[1..]].concat());
    let own = fs::read(&strange).unwrap();
    wipe(Path::new(&strange));
    for command in ["status", "check", "scrub"] {
        // A scrub has nothing to do here, and needs the pool all the same.
        let said = fails(&with(command));
        if command != "scrub" {
            assert!(said.contains("lost or damaged") && said.contains("member 1 of"), "{said}");
            assert!(!said.contains("leave it out"), "{said}");
        }
    }
    let said = fails(&with("status"));
    let advised = said.split('`').find(|word| word.starts_with("braid label restore")).unwrap();
    let script = format!("braid() {{ {} \"$@\"; }}; {advised}", env!("CARGO_BIN_EXE_braid"));
    let shown = common::sh(&format!("{script} -n"));
    assert!(shown.contains("its contents agree"), "{shown}");
    common::sh(&format!("{script} --yes"));
    assert!(fs::read(&strange).unwrap() == own, "not byte for byte what was there");
    ok(&with("check"));
    // Both labels damaged, by a few bits.
    let file = OpenOptions::new().write(true).open(&strange).unwrap();
    let second = Label::copy1_at(Bytes(own.len() as u64)).unwrap();
    for at in [Label::COPY0_AT, second] {
        file.write_all_at(b"rot", at.0 + 300).unwrap();
    }
    assert!(fails(&with("status")).contains("label restore --member 1='"));
    // Another file system, an empty disk of the same size, a member of another pool that has lost its labels, too: it is
    // never offered to write labels on these.
    let mut xfs = vec![0; own.len()];
    xfs[..4].copy_from_slice(b"XFSB");
    let other = Disks::new(3, 192);
    ok(&other.with(&["create", "q"], &[]));
    wipe(&other.paths[1]);
    for (what, bytes) in [
        ("XFS", xfs),
        ("not a member", vec![0; own.len()]),
        ("not a member", fs::read(&other.paths[1]).unwrap()),
    ] {
        fs::write(&strange, bytes).unwrap();
        let said = fails(&with("status"));
        assert!(said.contains(what) && !said.contains("label restore"), "{said}");
    }
}
