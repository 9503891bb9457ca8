#![allow(clippy::cast_precision_loss, reason = "tests")]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use braid_format::label::properties::Properties;
use braid_format::label::{DeviceClass, Label, Member, MemberState, NodeKind, SubpoolKind};
use braid_format::{Bytes, Epoch, MemberIndex, StripeUnit};
use proptest::prelude::*;
use uuid::Uuid;

use super::build::BuildOptions;
use super::bus::{Sysfs, interleave};
use super::map::Map;
use super::weights::by_speed;
use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Members `/dev/sda`, `/dev/sdb`, ... of these sizes.
pub(super) fn members(sizes: &[u64]) -> Vec<Member> {
    let one = |(i, size): (u16, &u64)| Member {
        uuid: Uuid::from_u128(u128::from(i) + 1),
        data_start: Label::DATA_AT,
        data_len: Bytes(*size),
        device_size: Bytes(size + 2 * MIB),
        state: MemberState::Active,
        state_epoch: Epoch(1),
        suspected: false,
        offline: false,
        class: DeviceClass::Unknown,
        bytes_per_second: Bytes(0),
        bus: 0,
        successor: None,
        path: match u8::try_from(i) {
            Ok(n) if n < 26 => format!("/dev/sd{}", char::from(b'a' + n)),
            _ => format!("/dev/disk{i}"),
        },
        serial: String::new(),
    };
    (0..).zip(sizes).map(one).collect()
}

fn options() -> BuildOptions {
    BuildOptions { unit: StripeUnit::DEFAULT, keep_order: false, weights: Weights::None }
}

fn parsed(text: &str) -> Layout {
    parse::layout(text, &BTreeMap::new()).unwrap()
}

/// The label of a pool of this shape, which passes all checks of the format and can be mapped.
fn label(layout: &Layout, members: &[Member], options: &BuildOptions) -> Label {
    let built = build(layout, members, options).unwrap();
    let label = Label {
        pool: Uuid::nil(),
        name: "p".into(),
        epoch: Epoch(1),
        change_id: Uuid::nil(),
        member: MemberIndex(0),
        features_compat: 0,
        features_ro_compat: 0,
        lock_sector: Bytes(512),
        block_size: Bytes(0),
        reshaping: false,
        ended: false,
        stripe_unit: options.unit.bytes(),
        created: 0,
        changed: 0,
        members: members.to_vec(),
        nodes: built.nodes,
        segments: built.segments,
        properties: Properties::new(),
    };
    label.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).unwrap();
    assert_eq!(Map::new(&label).unwrap().size(), label.size());
    let facts = Facts::of(&label);
    assert_eq!(facts.unused, built.unused);
    groups_are_sound(&label);
    label
}

fn built(text: &str, sizes: &[u64]) -> Label {
    label(&parsed(text), &members(sizes), &options())
}

/// No two columns of a group share a member, and columns are slices.
fn groups_are_sound(label: &Label) {
    for node in &label.nodes {
        if !matches!(node.kind, NodeKind::Mirror { .. } | NodeKind::Parity { .. }) {
            continue;
        }
        let mut seen = Vec::new();
        for child in node.kind.children() {
            match label.nodes[usize::from(child.node)].kind {
                NodeKind::Slice { member, .. } => {
                    assert!(!seen.contains(&member), "member {member} twice in a group");
                    seen.push(member);
                }
                ref other => panic!("a column is a {}", other.name()),
            }
        }
    }
}

/// The tree under a node, without the slices' offsets: `stripe(0, 1)`.
fn drawn(label: &Label, node: u16) -> String {
    let node = &label.nodes[usize::from(node)];
    let children = || {
        let one = |c: &braid_format::label::Child| {
            let weight = if c.weight == 1 { String::new() } else { format!("*{}", c.weight) };
            drawn(label, c.node) + &weight
        };
        node.kind.children().iter().map(one).collect::<Vec<_>>().join(",")
    };
    match &node.kind {
        NodeKind::Slice { member, .. } => member.to_string(),
        NodeKind::Parity { parity, .. } => format!("parity+{parity}({})", children()),
        kind => format!("{}({})", kind.name(), children()),
    }
}

fn root(label: &Label) -> String {
    drawn(label, label.segments.last().unwrap().node)
}

fn refused(text: &str, sizes: &[u64]) -> String {
    let layout = parse::layout(text, &BTreeMap::new());
    let built = layout.and_then(|l| build(&l, &members(sizes), &options()));
    built.unwrap_err().to_string()
}

#[test]
fn what_is_asked_for_is_built() {
    let ten = [10 * GIB; 6];
    let shape = |text, n: usize| root(&built(text, &ten[..n]));
    assert_eq!(shape("sda", 1), "0");
    assert_eq!(shape("stripe(all)", 3), "stripe(0,1,2)");
    assert_eq!(shape("stripe(2, 0-1)", 3), "stripe(2,0,1)");
    assert_eq!(shape("stripe(/dev/sdb*2, rest)", 3), "stripe(1*2,0,2)");
    assert_eq!(shape("concat(sda, stripe(sdb, sdc))", 3), "concat(0,stripe(1,2))");
    assert_eq!(shape("stripe(concat(0,1), concat(2,3))", 4), "stripe(concat(0,1),concat(2,3))");
    assert_eq!(shape("stripe(mirror(0,1),mirror(2,3))", 4), "stripe(mirror(0,1),mirror(2,3))");
    assert_eq!(shape("mirror+1(all)", 4), "stripe(mirror(0,1),mirror(2,3))");
    assert_eq!(shape("mirror+2(all)", 3), "mirror(0,1,2)");
    assert_eq!(shape("parity+1(all)", 5), "parity+1(0,1,2,3,4)");
    assert_eq!(
        shape("stripe(parity+1(0-2), parity+1(3-5))", 6),
        "stripe(parity+1(0,1,2),parity+1(3,4,5))"
    );
    // A mirror of concats is one mirror after the other; columns stay slices.
    let l = built("mirror(concat(0,1), 2)", &[4 * GIB, 4 * GIB, 8 * GIB]);
    assert_eq!(root(&l), "concat(mirror(0,2),mirror(1,2))");
    assert_eq!(l.size(), Bytes(8 * GIB));
    let two = built("metadata = mirror(0[1G],1[1G]); data = stripe(all)", &ten[..2]);
    assert_eq!(two.segments[0].len, Bytes(GIB));
    assert_eq!(two.segments[1].len, Bytes(18 * GIB));
    assert_eq!(two.segments[0].subpool, SubpoolKind::Metadata);
}

#[test]
fn a_row_of_a_stripe_is_a_row_of_each_group() {
    let l = built("stripe(parity+1(0-4), parity+1(5-8))", &[GIB; 9]);
    let NodeKind::Stripe { unit, children } = &l.nodes.last().unwrap().kind else { panic!() };
    // Four and three columns of data: one unit is the widest that both rows are a multiple of.
    assert_eq!(*unit, StripeUnit::DEFAULT.bytes());
    assert_eq!(children.iter().map(|c| c.weight).collect::<Vec<_>>(), [4, 3]);
    let l = built("stripe(parity+2/64K(0-5), parity+2/64K(6-11))", &[GIB; 12]);
    let NodeKind::Stripe { unit, children } = &l.nodes.last().unwrap().kind else { panic!() };
    assert_eq!(*unit, Bytes(256 << 10));
    assert!(children.iter().all(|c| c.weight == 1));
}

#[test]
fn unequal_members_are_used_up() {
    // A stripe: every byte.
    assert_eq!(built("stripe(all)", &[GIB, 3 * GIB, 7 * GIB]).size(), Bytes(11 * GIB));
    // Mirrors: as much as can be mirrored at all.
    let mirrored = |sizes: &[u64]| built("mirror+1(all)", sizes).size().0 / MIB;
    assert_eq!(mirrored(&[4 * MIB, 4 * MIB, 4 * MIB]), 6);
    assert_eq!(mirrored(&[10 * MIB, 10 * MIB, 4 * MIB, 4 * MIB]), 14);
    assert_eq!(mirrored(&[9 * MIB, 5 * MIB, 4 * MIB, 3 * MIB]), 10);
    assert_eq!(mirrored(&[100 * MIB, 5 * MIB, 4 * MIB]), 9);
    // Parity: zones over those that still have space.
    let sizes = [8 * GIB, 8 * GIB, 6 * GIB, 4 * GIB];
    let l = built("metadata=mirror(0[1G],1[1G]); data=parity+1(all)", &sizes);
    assert_eq!(root(&l), "concat(parity+1(0,1,2,3),parity+1(0,1,2),parity+1(0,1))");
    assert_eq!(l.segments[1].len, Bytes((4 * 3 + 2 * 2 + 1) * GIB));
    assert!(Facts::of(&l).notes.is_empty());
    let l = built("metadata=mirror(0[1G],1[1G]); data=parity+1(all)", &[9 * GIB, 5 * GIB, 3 * GIB]);
    let facts = Facts::of(&l);
    assert_eq!(facts.unused, [Bytes(4 * GIB), Bytes(0), Bytes(0)]);
    let said = facts.notes[0].to_string();
    assert!(said.contains("4294967296 bytes of /dev/sda cannot be used"), "{said}");
    assert_eq!(facts.tolerates, 1);
}

#[test]
fn members_out_of_sync_are_not_spared_again() {
    use braid_format::label::MemberState::{Active, Failed, Leaving, Rebuilding};
    for (text, count, states, expected) in [
        ("mirror(all)", 3, [(0, Active), (0, Leaving)], 2),
        ("mirror(all)", 3, [(0, Active), (0, Failed)], 1),
        ("mirror(all)", 3, [(0, Failed), (1, Rebuilding)], 0),
        ("stripe(mirror(0,1),mirror(2,3))", 4, [(0, Active), (0, Active)], 1),
        ("stripe(mirror(0,1),mirror(2,3))", 4, [(0, Active), (3, Failed)], 0),
        ("parity+2(all)", 6, [(0, Active), (0, Failed)], 1),
        ("parity+2(all)", 6, [(5, Failed), (0, Rebuilding)], 0),
    ] {
        let mut l = built(text, &vec![8 * GIB; count]);
        let notes = Facts::of(&l).notes;
        for (member, state) in states {
            l.members[member].state = state;
        }
        let facts = Facts::of(&l);
        assert_eq!(facts.tolerates, expected, "{text} {states:?}");
        assert_eq!(facts.notes, notes, "the shape is as it was");
    }
}

#[test]
fn parity_gets_mirrors_for_its_metadata() {
    let shape = |text: &str, sizes: &[u64]| {
        let l = built(text, sizes);
        assert_eq!(l.segments[0].subpool, SubpoolKind::Metadata);
        assert_eq!(l.segments[1].subpool, SubpoolKind::Data);
        (drawn(&l, l.segments[0].node), l.segments[0].len.0 / MIB, l.segments[1].len.0 / MIB)
    };
    // Two per cent of 400 GiB.
    let (tree, metadata, data) = shape("parity+1(all)", &[100 * GIB; 4]);
    assert_eq!(tree, "stripe(mirror(0,1),mirror(2,3))");
    assert_eq!(metadata, 8192);
    assert_eq!(data, 3 * (100 * 1024 - 4096));
    // 256 MiB at least, where a quarter allows it.
    assert_eq!(shape("parity+1(all)", &[2 * GIB; 4]).1, 256);
    assert_eq!(shape("parity+2(all)", &[400 * MIB; 4]).1, 4 * 100 / 3);
    // Three copies beside two parities.
    assert_eq!(shape("parity+2(all)", &[100 * GIB; 6]).0, "stripe(mirror(0,1,2),mirror(3,4,5))");
    // One large member must not take what the others cannot mirror.
    let l = built("parity+1(all)", &[4096 * GIB, 10 * GIB, 10 * GIB]);
    assert_eq!(Facts::of(&l).tolerates, 1);
    assert_eq!(l.segments[0].len, Bytes(5 * GIB));
    // Journals of their own.
    let l = built("journal = mirror(0[1G],1[1G]); data = parity+1(all)", &[100 * GIB; 4]);
    let kinds: Vec<_> = l.segments.iter().map(|s| s.subpool).collect();
    assert_eq!(kinds, [SubpoolKind::Metadata, SubpoolKind::Journal, SubpoolKind::Data]);
}

#[test]
fn what_cannot_be_is_refused_and_the_place_is_shown() {
    let four = [GIB; 4];
    for (text, part, column) in [
        ("", "a device", 0),
        ("stripe(", "a device", 7),
        ("stripe(sda,sdb", "',' or ')'", 14),
        ("stripe(sda sdb)", "',' or ')'", 11),
        ("stripe(all) x", "the end", 12),
        ("strip(all)", "'strip' is not a kind of node", 0),
        ("mirror+4(all)", "not a kind of node", 0),
        ("stripe/5000(all)", "a unit of '5000'", 0),
        ("mirror/64K(0,1)", "takes no unit", 0),
        ("stripe(sda*0, rest)", "a weight of '0'", 11),
        ("stripe(sda*17, rest)", "from 1 to 16", 11),
        ("stripe(sda[5x], rest)", "not a size", 11),
        ("stripe(sda[0], rest)", "zero", 11),
        ("stripe(sda, sdz)", "no device 'sdz' was given", 12),
        ("stripe(0-4)", "no device 4", 7),
        ("stripe(3-1)", "backwards", 7),
        ("stripe(all, rest, sda,sdb,sdc,sdd)", "nothing is left for 'rest'", 12),
        ("stripe(all, sda)", "elsewhere without a size", 12),
        ("stripe(sda[2G], rest)", "has no room", 7),
        ("stripe(stripe(0,1),stripe(2,3))", "one stripe over all", 7),
        ("mirror(stripe(0,1),stripe(2,3))", "nest the other way", 7),
        ("parity+1(mirror(0,1),2,3)", "parity+2", 9),
        ("stripe(mirror(0),1,2,3)", "a mirror of 1", 7),
        ("parity+2(mirror(0,1),2,3)", "parity+2", 9),
        ("stripe(parity+1(0),1-3)", "needs at least 2", 7),
        ("mirror(0*2,1,2,3)", "children of a stripe", 7),
        ("stripe()", "as in stripe(all)", 0),
        ("all", "several devices", 0),
        ("data=stripe(0,1); data=stripe(2,3)", "is there twice", 18),
        ("dat=stripe(all)", "'dat' is not a kind of subpool", 0),
        ("metadata=parity+1(0-2); data=sdd", "cannot be on parity", 9),
        ("mirror(concat(0[1M],1),concat(0,2),3)", "two columns of one mirror", 0),
        ("stripe(\"sda, rest)", "closing", 7),
    ] {
        let said = refused(text, &four);
        assert!(said.contains(part), "{text}: {said}");
        let mark = said.lines().last().unwrap();
        let (shown, at) = (said.lines().rev().nth(1).unwrap(), mark.len() - 3);
        assert_eq!((shown.trim_end(), at), (format!("  {text}").trim_end(), column), "{said}");
    }
    for (text, part) in [
        ("stripe(0-2)", "/dev/sdd is given but not used"),
        ("data=stripe(all)", "no subpool for metadata"),
        ("metadata=stripe(all)", "no subpool for data"),
    ] {
        let said = refused(text, &four);
        assert!(said.contains(part), "{text}: {said}");
    }
    let deep = "concat(".repeat(100) + &")".repeat(100);
    assert!(refused(&deep, &four).contains("levels"));
    let many = format!("stripe({})", vec!["sda[4K]"; 5000].join(","));
    assert!(refused(&many, &four).contains("parts"));
    let wide = format!("stripe({})", vec!["0-3[4K]*16"; 70].join(","));
    assert!(refused(&wide, &four).contains("a row of 4480 units"));
}

#[test]
fn shorthands() {
    let shape = |n: usize, redundancy| {
        let m = members(&vec![100 * GIB; n]);
        usual(&m, redundancy, false).map(|l| root(&label(&l, &m, &options())))
    };
    assert_eq!(shape(1, Redundancy::None).unwrap(), "stripe(0)");
    assert_eq!(shape(4, Redundancy::Mirror(2)).unwrap(), "stripe(mirror(0,1),mirror(2,3))");
    assert_eq!(shape(5, Redundancy::Parity(1)).unwrap(), "parity+1(0,1,2,3,4)");
    assert_eq!(
        shape(10, Redundancy::Parity(1)).unwrap(),
        "stripe(parity+1(0,1,2,3,4),parity+1(5,6,7,8,9))"
    );
    for n in 4..=256 {
        for parity in [1, 2] {
            let m = members(&vec![GIB; n]);
            let l = usual(&m, Redundancy::Parity(parity), false).unwrap();
            let text = l.to_string();
            let widths: Vec<usize> = match l.subpools[0].tree.children() {
                [first, ..] if !first.children().is_empty() => {
                    l.subpools[0].tree.children().iter().map(|g| g.children().len()).collect()
                }
                devices => vec![devices.len()],
            };
            let (least, most) = (widths.iter().min().unwrap(), widths.iter().max().unwrap());
            assert!(*most <= 12 && most - least <= 1, "{text}");
            assert!(n <= 12 || *least >= 4, "{text}");
        }
    }
    let said = |n, r| shape(n, r).unwrap_err().to_string();
    assert!(said(2, Redundancy::Parity(1)).contains("--mirror 2"));
    assert!(said(3, Redundancy::Parity(2)).contains("--mirror 3"));
    assert!(said(9, Redundancy::Parity(3)).contains("take 1 or 2"));
    assert!(said(2, Redundancy::Mirror(3)).contains("at least 3"));
    assert!(said(9, Redundancy::Mirror(5)).contains("2, 3 or 4"));
}

#[test]
fn the_largest_pools_fit_a_label() {
    let same = vec![GIB; 256];
    let odd: Vec<u64> = (0..256).map(|i| (1000 + i * 7) * MIB).collect();
    for sizes in [&same, &odd] {
        let m = members(sizes);
        for redundancy in [
            Redundancy::None,
            Redundancy::Mirror(2),
            Redundancy::Mirror(3),
            Redundancy::Mirror(4),
            Redundancy::Parity(1),
            Redundancy::Parity(2),
        ] {
            let layout = usual(&m, redundancy, false).unwrap();
            let facts = Facts::of(&label(&layout, &m, &options()));
            let unused: u64 = facts.unused.iter().map(|u| u.0).sum();
            assert!(unused * 50 < facts.raw.0, "{redundancy:?}: {unused} of {}", facts.raw);
        }
    }
}

#[test]
fn members_are_interleaved_over_buses() {
    let mut m = members(&[100 * GIB; 8]);
    for (i, m) in m.iter_mut().enumerate() {
        m.bus = if i < 4 { 1 } else { 2 };
    }
    let shape = |text: &str, keep_order| {
        root(&label(&parsed(text), &m, &BuildOptions { keep_order, ..options() }))
    };
    assert_eq!(shape("stripe(all)", false), "stripe(0,4,1,5,2,6,3,7)");
    assert_eq!(shape("stripe(all)", true), "stripe(0,1,2,3,4,5,6,7)");
    assert_eq!(
        shape("mirror+1(all)", false),
        "stripe(mirror(0,4),mirror(1,5),mirror(2,6),mirror(3,7))"
    );
    // Mirrors that were told keep their copies; the stripe over them takes turns.
    assert_eq!(
        shape("stripe(mirror(0,1),mirror(2,3),mirror(4,5),mirror(6,7))", false),
        "stripe(mirror(0,1),mirror(4,5),mirror(2,3),mirror(6,7))"
    );
    let l = label(&parsed("stripe(mirror(0,1),mirror(2,4),rest)"), &m, &options());
    let said: Vec<String> = Facts::of(&l).notes.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("a mirror with /dev/sda") && said[0].contains("bus 1"), "{said:?}");
    let groups = usual(&m, Redundancy::Parity(2), false).unwrap();
    let l = label(&groups, &m, &options());
    assert_eq!(root(&l), "parity+2(0,4,1,5,2,6,3,7)");
    // Ten on each of three: groups of ten have three or four on each.
    let mut m = members(&[100 * GIB; 30]);
    for (i, m) in m.iter_mut().enumerate() {
        m.bus = u16::try_from(i / 10).unwrap() + 1;
    }
    let l = label(&usual(&m, Redundancy::Parity(2), false).unwrap(), &m, &options());
    let groups = l.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Parity { .. }));
    let mut count = 0;
    for group in groups {
        count += 1;
        let mut on_bus = [0; 4];
        for c in group.kind.children() {
            let NodeKind::Slice { member, .. } = l.nodes[usize::from(c.node)].kind else {
                panic!()
            };
            on_bus[usize::from(m[usize::from(member.0)].bus)] += 1;
        }
        assert!(on_bus[1..].iter().all(|n| (3..=4).contains(n)), "{on_bus:?}");
    }
    assert_eq!(count, 3);
}

#[test]
fn slow_members_get_a_share_of_their_own() {
    assert_eq!(by_speed(&[200, 200, 100]), [2, 2, 1]);
    assert_eq!(by_speed(&[100, 90, 95]), [1, 1, 1]);
    assert_eq!(by_speed(&[100, 0, 300]), [1, 1, 1]);
    assert_eq!(by_speed(&[300, 200]), [3, 2]);
    assert_eq!(by_speed(&[3000, 100]), [16, 1]);
    assert_eq!(by_speed(&[]), Vec::<u16>::new());
    let mut m = members(&[100 * GIB; 3]);
    for (m, speed) in m.iter_mut().zip([200_000_000, 200_000_000, 100_000_000]) {
        m.bytes_per_second = Bytes(speed);
    }
    let of = |text: &str, weights| {
        let l = label(&parsed(text), &m, &BuildOptions { weights, ..options() });
        (root(&l), Facts::of(&l))
    };
    let (tree, facts) = of("stripe(all)", Weights::Speed);
    assert_eq!((tree.as_str(), facts.read), ("stripe(0*2,1*2,2)", Some(Bytes(500_000_000))));
    assert_eq!(facts.usable.0, 300 * GIB, "all space of unequal shares is used");
    assert!(facts.notes[0].to_string().contains("/dev/sdc is slow (100 MB/s"));
    let (tree, facts) = of("stripe(all)", Weights::None);
    assert_eq!((tree.as_str(), facts.read), ("stripe(0,1,2)", Some(Bytes(300_000_000))));
    assert!(facts.notes[0].to_string().contains("--weights auto"));
    let (tree, _) = of("stripe(all)", Weights::List(vec![1, 2, 3]));
    assert_eq!(tree, "stripe(0,1*2,2*3)");
    let (_, facts) = of("mirror(all)", Weights::Speed);
    let speeds = (facts.read, facts.write);
    assert_eq!(speeds, (Some(Bytes(500_000_000)), Some(Bytes(100_000_000))));
    let list = |text: &str, list: &[u16]| {
        let weights = Weights::List(list.to_vec());
        build(&parsed(text), &m, &BuildOptions { weights, ..options() }).unwrap_err().to_string()
    };
    assert!(list("stripe(all)", &[1, 2]).contains("2 weights for 3 devices"));
    assert!(list("stripe(all)", &[1, 2, 17]).contains("17"));
    assert!(list("stripe(mirror(0,1),2)", &[1, 2, 3]).contains("into the layout"));
}

/// A disk in a tree like that of `/sys`: `device` is its directory under `devices`.
fn add_disk(sys: &Path, device: &str, name: &str) {
    let dir = sys.join("devices").join(device).join("block").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::create_dir_all(sys.join("class/block")).unwrap();
    symlink(&dir, sys.join("class/block").join(name)).unwrap();
}

#[test]
fn controllers_are_read_from_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let sys = dir.path();
    add_disk(sys, "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", "sda");
    add_disk(sys, "pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0", "sdb");
    add_disk(sys, "pci0000:00/0000:00:03.0/0000:02:00.0/host6/target6:0:0/6:0:0:0", "sdc");
    add_disk(sys, "platform/host7/session1/target7:0:0/7:0:0:0", "sdd");
    add_disk(sys, "virtual", "loop0");
    add_disk(sys, "virtual", "dm-0");
    add_disk(sys, "virtual", "dm-1");
    for (dm, slaves) in [("dm-0", vec!["sda", "sdb"]), ("dm-1", vec!["sda", "sdc"])] {
        let of = sys.join("devices/virtual/block").join(dm).join("slaves");
        std::fs::create_dir(&of).unwrap();
        for slave in slaves {
            symlink(sys.join("class/block").join(slave), of.join(slave)).unwrap();
        }
    }
    // A namespace with a path of its own below a virtual subsystem.
    let subsystem = sys.join("devices/virtual/nvme-subsystem/nvme-subsys0");
    let controller = sys.join("devices/pci0000:00/0000:00:1d.0/0000:03:00.0/nvme/nvme0");
    std::fs::create_dir_all(&controller).unwrap();
    std::fs::create_dir_all(subsystem.join("nvme0n1")).unwrap();
    symlink(&controller, subsystem.join("nvme0")).unwrap();
    symlink(&subsystem, subsystem.join("nvme0n1/device")).unwrap();
    symlink(subsystem.join("nvme0n1"), sys.join("class/block/nvme0n1")).unwrap();
    std::fs::write(subsystem.join("nvme0n1/wwid"), "eui.0123\n").unwrap();

    let s = Sysfs::at(sys);
    for (name, controller) in [
        ("sda", Some("0000:00:1f.2")),
        ("sdb", Some("0000:00:1f.2")),
        ("sdc", Some("0000:02:00.0")),
        ("sdd", Some("host7")),
        ("loop0", None),
        ("dm-0", Some("0000:00:1f.2")),
        ("dm-1", None),
        ("nvme0n1", Some("0000:03:00.0")),
        ("gone", None),
    ] {
        assert_eq!(s.controller(name).as_deref(), controller, "{name}");
    }
    assert_eq!(s.serial("nvme0n1").as_deref(), Some("eui.0123"));
    assert_eq!(s.serial("sda"), None);
    let devices: Vec<_> =
        [("sda", None), ("sdc", None), ("sdb", None), ("sdd", Some(2)), ("loop0", None)]
            .map(|(name, told): (&str, Option<u16>)| (Some(name.to_owned()), told))
            .into();
    // 2 was given for another device, so the second controller is 3.
    assert_eq!(s.buses(&devices), [1, 3, 1, 2, 0]);
    let file = sys.join("plain");
    std::fs::write(&file, "").unwrap();
    assert_eq!(s.name_of(&file), None);
}

#[test]
fn files_describe_layouts() {
    let text = r#"
        devices = ["/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"]
        unit = "64K"
        layout = "stripe(left, right)"
        [groups]
        left = "mirror(sda, sdc)"
        right = "mirror(sdb, sdd)"
        [buses]
        "/dev/sda" = 1
    "#;
    let file = LayoutFile::parse(text).unwrap();
    assert_eq!(file.devices.len(), 4);
    assert_eq!(file.unit.map(StripeUnit::bytes), Some(Bytes(64 << 10)));
    assert_eq!(file.layout.to_string(), "stripe(mirror(sda, sdc), mirror(sdb, sdd))");
    assert_eq!(file.buses, [("/dev/sda".to_owned(), 1)]);
    let text = "[subpools]\nmetadata = \"mirror(0[1G],1[1G])\"\ndata = \"stripe(all)\"";
    let l = label(&LayoutFile::parse(text).unwrap().layout, &members(&[9 * GIB; 2]), &options());
    assert_eq!(l.segments.len(), 2);
    for (text, part) in [
        ("layout = ", "TOML parse error"),
        ("layout = 3", "layout must be a text"),
        ("lay = \"a\"", "'lay' is not known here"),
        ("unit = \"64K\"", "no layout in it"),
        ("unit = 5\nlayout=\"all\"", "a unit of '5'"),
        ("layout = \"stripe(all\"", "',' or ')'"),
        ("layout = \"a\"\n[subpools]\ndata = \"b\"", "not both"),
        ("[subpools]\nfast = \"b\"", "'fast' is not a kind of subpool"),
        ("layout = \"a\"\n[groups]\na = \"stripe(b)\"\nb = \"stripe(a)\"", "'a' is made of itself"),
        ("layout = \"a\"\n[groups]\nall = \"stripe(b)\"", "cannot be a group's name"),
        ("groups = 3", "must be a table"),
        ("layout = \"a\"\n[buses]\na = 0", "a number from 1"),
    ] {
        let said = LayoutFile::parse(text).unwrap_err().to_string();
        assert!(said.contains(part), "{text}: {said}");
    }
    // Groups of groups of groups: refused before they grow.
    let mut text = "layout = \"g30\"\n[groups]\ng0 = \"stripe(a,a)\"\n".to_owned();
    for i in 1..=30 {
        let below = i - 1;
        text = format!("{text}g{i} = \"stripe(g{below},g{below})\"\n");
    }
    let said = LayoutFile::parse(&text).unwrap_err().to_string();
    assert!(said.contains("levels") || said.contains("parts"), "{said}");
}

#[test]
fn a_device_is_measured() {
    let memory = |mib: u64| {
        braid_device::MemoryDevice::new("m", Bytes(mib * MIB), Bytes(512))
            as std::sync::Arc<dyn braid_device::Device>
    };
    let short = std::time::Duration::from_millis(1);
    assert!(measure(&*memory(64), short).unwrap() > 0);
    assert_eq!(measure(&*memory(8), short).unwrap(), 0, "too small to tell");
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z/][a-z0-9/:.+-]{0,12}",
        Just("all".to_owned()),
        Just("12".to_owned()),
        Just("1-2".to_owned()),
        "[ -~]{0,6}",
        any::<String>().prop_map(|s| s.chars().take(5).collect()),
    ]
}

fn any_tree() -> impl Strategy<Value = Tree> {
    let weight = || proptest::option::weighted(0.2, 1..=weights::MAX);
    let unit = || {
        let unit = (1_u64..9).prop_map(|n| StripeUnit::new(Bytes(n * 4096)).unwrap());
        proptest::option::weighted(0.3, unit)
    };
    let which = prop_oneof![
        Just(Which::All),
        Just(Which::Rest),
        any::<u16>().prop_map(Which::One),
        any::<(u16, u16)>().prop_map(|(a, b)| Which::Range(a, b)),
        any_name().prop_map(Which::Named),
    ];
    let size = proptest::option::weighted(0.3, 1..=u64::MAX);
    let leaf = (which, size).prop_map(|(which, size)| Part::Devices { which, size });
    let leaf = (leaf, weight()).prop_map(|(part, weight)| Tree { weight, ..Tree::new(part) });
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let of = || proptest::collection::vec(inner.clone(), 0..4);
        let part = prop_oneof![
            (unit(), of()).prop_map(|(unit, of)| Part::Stripe { unit, of }),
            of().prop_map(|of| Part::Mirror { of }),
            (unit(), of(), 2..=4_u16).prop_map(|(unit, of, copies)| Part::Mirrors {
                copies,
                unit,
                of
            }),
            (unit(), of(), 1..=2_u16).prop_map(|(unit, of, parity)| Part::Parity {
                parity,
                unit,
                of
            }),
            of().prop_map(|of| Part::Concat { of }),
        ];
        (part, weight()).prop_map(|(part, weight)| Tree { weight, ..Tree::new(part) })
    })
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let one = |kind| any_tree().prop_map(move |tree| Subpool { kind, tree });
    prop_oneof![
        one(SubpoolKind::General).prop_map(|s| Layout { subpools: vec![s] }),
        (one(SubpoolKind::Metadata), one(SubpoolKind::Data))
            .prop_map(|(a, b)| Layout { subpools: vec![a, b] }),
    ]
}

fn tree_of(text: &str) -> Tree {
    parse::tree(text, &BTreeMap::new()).unwrap()
}

/// Trees over parts of six devices: most can be built.
fn part_tree() -> impl Strategy<Value = Tree> {
    let unit = || {
        let unit = (1_u64..5).prop_map(|n| StripeUnit::new(Bytes(n * 65536)).unwrap());
        proptest::option::weighted(0.4, unit)
    };
    let leaf = |place: u16, size: u64| {
        Tree::new(Part::Devices { which: Which::One(place), size: Some(size * 4096) })
    };
    // Different devices, beginning anywhere.
    let leaves = move |n: core::ops::Range<usize>| {
        (0..6_u16, proptest::collection::vec(1..2000_u64, n)).prop_map(move |(first, sizes)| {
            (first..).zip(sizes).map(|(i, size)| leaf(i % 6, size)).collect::<Vec<_>>()
        })
    };
    let group =
        prop_oneof![
            leaves(1..2).prop_map(|mut of| of.remove(0)),
            leaves(2..4).prop_map(|of| Tree::new(Part::Concat { of })),
            leaves(2..5).prop_map(|of| Tree::new(Part::Mirror { of })),
            (leaves(2..6), 2..=3_u16, unit())
                .prop_map(|(of, copies, unit)| Tree::new(Part::Mirrors { copies, unit, of })),
            (leaves(2..6), 1..=2_u16, unit())
                .prop_map(|(of, parity, unit)| Tree::new(Part::Parity { parity, unit, of })),
        ];
    let weighted = (group.clone(), proptest::option::weighted(0.3, 1..=4_u16))
        .prop_map(|(tree, weight)| Tree { weight, ..tree });
    prop_oneof![
        group,
        (unit(), proptest::collection::vec(weighted, 1..5))
            .prop_map(|(unit, of)| Tree::new(Part::Stripe { unit, of })),
    ]
}

proptest! {
    #[test]
    fn what_is_printed_is_parsed(layout in any_layout()) {
        let text = layout.to_string();
        prop_assert_eq!(parse::layout(&text, &BTreeMap::new()).unwrap(), layout, "{}", text);
    }

    #[test]
    fn no_text_makes_it_panic(
        noise in any::<String>(),
        words in proptest::collection::vec(
            prop_oneof![
                Just("stripe("), Just("mirror("), Just("mirror+1("), Just("parity+1("),
                Just("concat("), Just(")"), Just(","), Just("*"), Just("2"), Just("["),
                Just("1M]"), Just("\""), Just("="), Just(";"), Just("data"), Just("metadata"),
                Just("/64K"), Just("all"), Just("rest"), Just("0-1"), Just("sda"), Just("é"),
            ],
            0..24,
        ),
    ) {
        for text in [noise, words.concat(), words.join(" ")] {
            match parse::layout(&text, &BTreeMap::new()) {
                Ok(layout) => {
                    let built = build(&layout, &members(&[GIB, GIB, 2 * GIB]), &options());
                    let _ = built.map_err(|e| e.to_string());
                }
                Err(e) => { let _ = e.to_string(); }
            }
            let _ = LayoutFile::parse(&text);
        }
    }

    /// Any tree over any parts of members: refused, or sound, and what is counted adds up.
    #[test]
    fn what_is_built_is_sound(
        trees in proptest::collection::vec(part_tree(), 1..4),
        sizes in proptest::collection::vec(30..200_u64, 6),
        buses in proptest::collection::vec(0..3_u16, 6),
        keep_order: bool,
        split: bool,
    ) {
        let mut m = members(&sizes.iter().map(|s| s * MIB).collect::<Vec<_>>());
        for (m, bus) in m.iter_mut().zip(buses) {
            m.bus = bus;
        }
        let how = BuildOptions { keep_order, ..options() };
        let of = trees.into_iter().chain([tree_of("concat(0-5[4K])")]).collect();
        let tree = Tree::new(Part::Concat { of });
        let mut subpools = vec![Subpool { kind: SubpoolKind::General, tree }];
        if split {
            subpools[0].kind = SubpoolKind::Data;
            let tree = tree_of("mirror+2(0-5[3M])");
            subpools.push(Subpool { kind: SubpoolKind::Metadata, tree });
        }
        let layout = Layout { subpools };
        match build(&layout, &m, &how) {
            Ok(_) => {
                let l = label(&layout, &m, &how);
                let used: u64 = Facts::of(&l).unused.iter().zip(&m).map(|(u, m)| m.data_len.0 - u.0).sum();
                prop_assert!(l.size().0 <= used);
            }
            Err(e) => {
                // What this tree can have wrong, and nothing else.
                let known = matches!(
                    *e.fault,
                    LayoutFault::NoRoom { .. }
                        | LayoutFault::Shared { .. }
                        | LayoutFault::StripeOfStripes
                        | LayoutFault::WrongWayRound { .. }
                        | LayoutFault::GroupOfGroups { .. }
                        | LayoutFault::MirrorWays { .. }
                        | LayoutFault::MirrorsWays { .. }
                        | LayoutFault::ParityWidth { .. }
                        | LayoutFault::NothingUsable
                );
                prop_assert!(known, "{layout}: {e}");
            }
        }
    }

    /// All space is used that can be.
    #[test]
    fn nothing_is_left_that_could_be_used(
        sizes in proptest::collection::vec((1..40_u64, 0..3_u16, 1..9_u64), 1..14),
        copies in 2..=4_u16,
        parity in 1..=2_u16,
        unit in prop_oneof![Just(16_u64), Just(256), Just(12), Just(1024), Just(3072)],
    ) {
        let unit = unit << 10;
        let mut m = members(&sizes.iter().map(|(s, _, _)| s * 8 * MIB).collect::<Vec<_>>());
        for (m, (_, bus, speed)) in m.iter_mut().zip(&sizes) {
            m.bus = *bus;
            m.bytes_per_second = Bytes(speed * 100_000_000);
        }
        let how = BuildOptions {
            unit: StripeUnit::new(Bytes(unit)).unwrap(),
            weights: Weights::Speed,
            ..options()
        };
        let grain = if MIB.is_multiple_of(unit) { MIB } else { unit };
        let n = m.len() as u64;
        // A stripe: less than a row's share of each.
        let l = label(&parsed("stripe(all)"), &m, &how);
        let facts = Facts::of(&l);
        let unused: u64 = facts.unused.iter().map(|u| u.0).sum();
        prop_assert_eq!(facts.usable.0 + unused, facts.raw.0);
        prop_assert!(facts.unused.iter().all(|u| u.0 < unit * u64::from(weights::MAX)));
        // Mirrors: the largest L with sum of min(size, L) >= k * L; less than a cut for each.
        let k = u64::from(copies);
        if n >= k {
            let whole: Vec<u64> = m.iter().map(|m| m.data_len.0 / grain).collect();
            let fits = |l: &u64| whole.iter().map(|s| s.min(l)).sum::<u64>() >= k * l;
            let best = (0..=whole.iter().sum::<u64>()).rev().find(fits).unwrap() * grain;
            if best > 0 {
                let text = format!("mirror+{}(all)", copies - 1);
                let l = label(&parsed(&text), &m, &BuildOptions { weights: Weights::None, ..how.clone() });
                prop_assert_eq!(l.size().0, best);
                prop_assert_eq!(Facts::of(&l).tolerates, copies - 1);
            }
        }
        // Parity: what is left is on no more members than may be lost, but for rests of units at
        // the end of two slices.
        let p = usize::from(parity);
        if m.len() > p {
            let l = label(&parsed(&format!("metadata=mirror(0[4M],1[4M]);data=parity+{parity}(all)")), &m, &how);
            let facts = Facts::of(&l);
            let left = facts.unused.iter().filter(|u| u.0 >= 2 * unit).count();
            prop_assert!(left <= p, "{:?}", facts.unused);
            prop_assert_eq!(facts.tolerates, 1);
        }
    }

    /// However many rows are cut off the front, no bus is ahead by more than its share.
    #[test]
    fn interleaving_is_even(buses in proptest::collection::vec(0..4_u16, 0..40)) {
        let order = interleave(&buses);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..buses.len()).collect::<Vec<_>>());
        for bus in 0..4 {
            let own: Vec<usize> = order.iter().copied().filter(|i| buses[*i] == bus).collect();
            prop_assert!(own.is_sorted());
            for (taken, i) in order.iter().enumerate().filter(|(_, i)| buses[**i] == bus) {
                let ahead = own.iter().position(|o| o == i).unwrap() * buses.len();
                prop_assert!(ahead.abs_diff(taken * own.len()) <= buses.len() * 4);
            }
        }
    }

    /// The weights are never worse than equal ones, and the row never exceeds what a label holds.
    #[test]
    fn weights_never_cost(speeds in proptest::collection::vec(1..2000_u64, 1..20)) {
        let rate = |weights: &[u16]| {
            let units: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let time = weights.iter().zip(&speeds).map(|(w, v)| f64::from(*w) / *v as f64);
            units / time.fold(0.0, f64::max)
        };
        let weights = by_speed(&speeds);
        prop_assert!(weights.iter().all(|w| (1..=weights::MAX).contains(w)));
        prop_assert!(rate(&weights) >= rate(&vec![1; speeds.len()]) * 0.999);
        if *speeds.iter().max().unwrap() <= 8 * speeds.iter().min().unwrap() {
            let all = speeds.iter().sum::<u64>() as f64;
            prop_assert!(rate(&weights) >= all * 0.80, "{weights:?} of {speeds:?}");
        }
    }
}
