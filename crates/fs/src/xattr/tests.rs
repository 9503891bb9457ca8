//! Attributes on a mounted node.

#![allow(clippy::large_stack_arrays, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::Arc;

use braid_format::{Bytes, InodeNo};
use braid_pool::device::{Device, MemoryDevice, RecordingDevice};
use braid_pool::{CreateOptions, Pool};

use super::attributes::{CREATE, REPLACE};
use super::*;
use crate::attr::{Cred, SetAttr, WithAttrs};
use crate::core::Core;
use crate::error::Error;
use crate::namei::fixture::{mount, pool};
use crate::namei::{create, getattr, mkdir, readdir, setattr, symlink, unlink};

fn file(core: &Arc<Core>, name: &str) -> InodeNo {
    let root = core.volume.root();
    create(core, root, name.as_bytes(), 0o644, &Cred::default(), true).unwrap().ino()
}
fn names(core: &Arc<Core>, ino: InodeNo) -> Vec<String> {
    let list = list(core, ino).unwrap();
    let mut names: Vec<String> = list
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .map(|n| String::from_utf8(n.to_vec()).unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn flags_names_and_errors() {
    let node = mount(&pool(), 0);
    let f = file(&node, "f");
    assert_eq!(list(&node, f).unwrap(), b"");
    assert!(matches!(get(&node, f, b"user.a"), Err(Error::NoAttribute)));
    assert!(matches!(remove(&node, f, b"user.a"), Err(Error::NoAttribute)));
    assert!(matches!(set(&node, f, b"user.a", b"1", REPLACE), Err(Error::NoAttribute)));
    set(&node, f, b"user.a", b"1", CREATE).unwrap();
    assert!(matches!(set(&node, f, b"user.a", b"2", CREATE), Err(Error::Exists)));
    set(&node, f, b"user.a", b"22", REPLACE).unwrap();
    assert_eq!(get(&node, f, b"user.a").unwrap(), b"22");
    set(&node, f, b"user.empty", b"", 0).unwrap();
    assert_eq!(get(&node, f, b"user.empty").unwrap(), b"");
    for name in ["trusted.t", "security.s"] {
        set(&node, f, name.as_bytes(), name.as_bytes(), 0).unwrap();
    }
    assert_eq!(names(&node, f).len(), 4);
    remove(&node, f, b"user.a").unwrap();
    assert_eq!(names(&node, f).len(), 3);
    for bad in [&b"user."[..], b"other.x", b"system.other", b"plain"] {
        assert!(matches!(set(&node, f, bad, b"", 0), Err(Error::NotSupported(_))));
    }
    let long = [b"user.".as_slice(), &[b'n'; 251]].concat();
    assert!(matches!(set(&node, f, &long, b"", 0), Err(Error::Range)));
    assert!(matches!(set(&node, f, b"user.x", b"", 3), Err(Error::Invalid(_))));
}

#[test]
fn grow_out_of_the_dinode_and_back() {
    let pool = pool();
    let node = mount(&pool, 0);
    let f = file(&node, "f");
    let before = getattr(&node, f).unwrap().blocks512;
    let small = vec![1; 100];
    set(&node, f, b"user.small", &small, 0).unwrap();
    assert_eq!(getattr(&node, f).unwrap().blocks512, before);
    let large = vec![2; 2_500];
    set(&node, f, b"user.large", &large, 0).unwrap();
    assert!(getattr(&node, f).unwrap().blocks512 > before, "an attribute block");
    assert_eq!(get(&node, f, b"user.small").unwrap(), small);
    assert_eq!(get(&node, f, b"user.large").unwrap(), large);
    assert!(matches!(set(&node, f, b"user.large", &[3; 65_537], 0), Err(Error::Range)));
    assert_eq!(get(&node, f, b"user.large").unwrap(), large);
    node.unmount();
    let node = mount(&pool, 1);
    assert_eq!(names(&node, f), ["user.large", "user.small"]);
    remove(&node, f, b"user.large").unwrap();
    remove(&node, f, b"user.small").unwrap();
    assert_eq!(list(&node, f).unwrap(), b"");
    assert_eq!(getattr(&node, f).unwrap().blocks512, before);
    // An inode with a block of attributes is freed with it.
    let totals = node.alloc.totals();
    set(&node, f, b"user.large", &large, 0).unwrap();
    unlink(&node, node.volume.root(), b"f").unwrap();
    node.meta.commit().unwrap();
    node.alloc.drain_frees().unwrap();
    assert_eq!(node.alloc.totals().inodes, totals.inodes - 1);
    node.unmount_clean();
}

#[test]
fn share_the_dinode_with_entries_and_targets() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let cred = Cred::default();
    let dir = mkdir(&node, root, b"dir", 0o755, &cred).unwrap().ino;
    let value = vec![7; 1_200];
    set(&node, dir, b"user.v", &value, 0).unwrap();
    for i in 0..300 {
        create(&node, dir, format!("file{i}").as_bytes(), 0o644, &cred, true).unwrap();
        assert_eq!(get(&node, dir, b"user.v").unwrap(), value, "after {i} entries");
    }
    let mut count = 0;
    readdir(&node, dir, 0, WithAttrs::No, &mut |_| {
        count += 1;
        false
    })
    .unwrap();
    assert_eq!(count, 302);
    // A tail that is nearly full keeps its room.
    let target = vec![b't'; 3_000];
    let link = symlink(&node, root, b"link", &target, &cred).unwrap().ino;
    set(&node, link, b"trusted.v", &value, 0).unwrap();
    assert_eq!(crate::namei::readlink(&node, link).unwrap(), target);
    assert_eq!(get(&node, link, b"trusted.v").unwrap(), value);
    node.unmount_clean();
}

#[test]
fn a_new_owner_loses_capabilities() {
    let node = mount(&pool(), 0);
    let f = file(&node, "f");
    set(&node, f, b"security.capability", b"x", 0).unwrap();
    set(&node, f, b"user.kept", b"y", 0).unwrap();
    setattr(&node, f, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    assert_eq!(names(&node, f).len(), 2);
    setattr(&node, f, &SetAttr { uid: Some(9), ..SetAttr::default() }).unwrap();
    assert_eq!(names(&node, f), ["user.kept"]);
}

#[test]
fn lists_and_modes_are_in_step() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let f = create(&node, root, b"f", 0o640, &Cred::default(), true).unwrap().ino();
    let entry = |tag: u16, permissions: u16, id: u32| {
        let (tag, permissions) = (tag.to_le_bytes(), permissions.to_le_bytes());
        [&tag[..], &permissions, &id.to_le_bytes()].concat()
    };
    let list = |entries: &[(u16, u16, u32)]| {
        let head = 2_u32.to_le_bytes().to_vec();
        entries.iter().fold(head, |all, &(t, p, id)| [all, entry(t, p, id)].concat())
    };
    let mode = |ino| getattr(&node, ino).unwrap().mode & 0o7777;
    let none = u32::MAX;
    let minimal = list(&[(1, 7, none), (4, 5, none), (0x20, 1, none)]);
    set(&node, f, acl::ACCESS, &minimal, 0).unwrap();
    assert_eq!(mode(f), 0o751);
    assert!(matches!(get(&node, f, acl::ACCESS), Err(Error::NoAttribute)), "the mode says it");
    let full = list(&[(1, 6, none), (2, 7, 1000), (4, 4, none), (0x10, 6, none), (0x20, 0, none)]);
    set(&node, f, acl::ACCESS, &full, 0).unwrap();
    assert_eq!(mode(f), 0o660);
    assert_eq!(get(&node, f, acl::ACCESS).unwrap(), full);
    assert_eq!(names(&node, f), ["system.posix_acl_access"]);
    let chmod = SetAttr { mode: Some(0o2704), ..SetAttr::default() };
    setattr(&node, f, &chmod).unwrap();
    let changed =
        list(&[(1, 7, none), (2, 7, 1000), (4, 4, none), (0x10, 0, none), (0x20, 4, none)]);
    assert_eq!(get(&node, f, acl::ACCESS).unwrap(), changed);
    set(&node, f, acl::ACCESS, &full, KILL_GROUP).unwrap();
    assert_eq!(mode(f), 0o660, "the set-group-ID bit went");
    remove(&node, f, acl::ACCESS).unwrap();
    remove(&node, f, acl::ACCESS).unwrap();
    assert_eq!((mode(f), names(&node, f).len()), (0o660, 0));
    assert!(matches!(set(&node, f, acl::DEFAULT, &full, 0), Err(Error::NotSupported(_))));
    assert!(matches!(set(&node, f, acl::ACCESS, &full[..20], 0), Err(Error::Invalid(_))));
    // As many entries as the kernel passes on, and not one more.
    let long = |named: u32| {
        let many: Vec<(u16, u16, u32)> = (0..named).map(|id| (2, 7, id)).collect();
        let ends = [&[(1, 7, none)][..], &many, &[(4, 7, none), (0x10, 7, none), (0x20, 7, none)]];
        list(&ends.concat())
    };
    assert!(matches!(set(&node, f, acl::ACCESS, &long(508), 0), Err(Error::AttributeSpace)));
    set(&node, f, acl::ACCESS, &long(507), 0).unwrap();
    assert_eq!(get(&node, f, acl::ACCESS).unwrap(), long(507));
    let dir = mkdir(&node, root, b"dir", 0o755, &Cred::default()).unwrap();
    set(&node, dir.ino, acl::DEFAULT, &long(507), 0).unwrap();
    let before = getattr(&node, dir.ino).unwrap().blocks512;
    let sub = mkdir(&node, dir.ino, b"sub", 0o777, &Cred::default()).unwrap();
    assert!(sub.blocks512 > before, "two lists in blocks of their own");
    for name in [acl::ACCESS, acl::DEFAULT] {
        assert_eq!(get(&node, sub.ino, name).unwrap(), long(507));
    }
    let tmp = crate::namei::tmpfile(&node, dir.ino, 0o600, &Cred::default()).unwrap();
    let ino = tmp.ino();
    drop(tmp);
    assert!(get(&node, ino, acl::ACCESS).unwrap().len() > 4000);
    crate::namei::rmdir(&node, dir.ino, b"sub").unwrap();
    crate::orphan::delete(&node, ino).unwrap();
    node.unmount_clean();
}

#[test]
fn what_is_made_in_a_directory_gets_its_default_list() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let cred = Cred { umask: 0o077, ..Cred::default() };
    let dir = mkdir(&node, root, b"d", 0o777, &cred).unwrap();
    assert_eq!(dir.mode & 0o777, 0o700, "no list: the umask counts");
    let entry = |bytes: [u8; 4], id: u32| [&bytes[..], &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let entries = [
        entry([1, 0, 7, 0], none),
        entry([2, 0, 7, 0], 1000),
        entry([4, 0, 5, 0], none),
        entry([0x10, 0, 7, 0], none),
        entry([0x20, 0, 5, 0], none),
    ];
    let list = [vec![2, 0, 0, 0], entries.concat()].concat();
    set(&node, dir.ino, acl::DEFAULT, &list, 0).unwrap();
    let f = create(&node, dir.ino, b"f", 0o666, &cred, true).unwrap();
    assert_eq!(f.st().raw.mode.get() & 0o777, 0o664);
    let ino = f.ino();
    drop(f);
    assert_eq!(names(&node, ino), ["system.posix_acl_access"]);
    let sub = mkdir(&node, dir.ino, b"s", 0o777, &cred).unwrap();
    assert_eq!(sub.mode & 0o777, 0o775);
    assert_eq!(get(&node, sub.ino, acl::DEFAULT).unwrap(), list);
    let fifo = crate::namei::mknod(&node, sub.ino, b"p", 0o010_600, 0, &cred).unwrap();
    assert_eq!(fifo.mode & 0o777, 0o600);
    let tmp = crate::namei::tmpfile(&node, sub.ino, 0o606, &cred).unwrap();
    assert_eq!(tmp.st().raw.mode.get() & 0o777, 0o604);
    drop(tmp);
    let link = symlink(&node, sub.ino, b"l", b"target", &cred).unwrap();
    assert_eq!(names(&node, link.ino).len(), 0);
    node.unmount_clean();
}

/// A value that says whose it is and which version.
fn value(of: usize, version: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 * 31 + of * 5 + version) as u8).collect()
}

#[test]
fn values_of_64_kib_are_kept_and_their_space_comes_back() {
    let pool = pool();
    let node = mount(&pool, 0);
    let f = file(&node, "f");
    node.meta.commit().unwrap();
    let before = getattr(&node, f).unwrap().blocks512;
    // All that one inode may have, in sizes that need one block more or less each time.
    let lens = [65_536, 1, 3_536, 3_537, 30_000, 0, 65_536, 1_700, 65_535];
    for version in 0..lens.len() {
        for of in 0..16 {
            let len = lens[(of + version) % lens.len()];
            set(&node, f, format!("user.{of}").as_bytes(), &value(of, version, len), 0).unwrap();
        }
        for of in 0..16 {
            let len = lens[(of + version) % lens.len()];
            let found = get(&node, f, format!("user.{of}").as_bytes()).unwrap();
            assert!(found == value(of, version, len), "attribute {of}, version {version}");
        }
    }
    node.unmount();
    let node = mount(&pool, 1);
    assert_eq!(names(&node, f).len(), 16);
    for of in 0..16 {
        let len = lens[(of + lens.len() - 1) % lens.len()];
        let found = get(&node, f, format!("user.{of}").as_bytes()).unwrap();
        assert!(found == value(of, lens.len() - 1, len), "attribute {of} after a mount");
    }
    for of in 0..16 {
        remove(&node, f, format!("user.{of}").as_bytes()).unwrap();
    }
    node.meta.commit().unwrap();
    node.alloc.drain_frees().unwrap();
    let after = getattr(&node, f).unwrap().blocks512;
    assert_eq!(after, before);
    // Removed with all its attributes, which are more than one transaction frees. Slots stay metadata,
    // and are taken many at a time; but those of one round serve the others.
    let before = node.alloc.totals().free;
    for round in 0..16 {
        let f = file(&node, "gone");
        for of in 0..16 {
            set(&node, f, format!("user.{of}").as_bytes(), &value(of, 0, 65_536), 0).unwrap();
        }
        let full = set(&node, f, b"user.one more", b"x", 0);
        assert!(matches!(full, Err(Error::AttributeSpace)), "{full:?}");
        unlink(&node, node.volume.root(), b"gone").unwrap();
        node.meta.commit().unwrap();
        node.alloc.drain_frees().unwrap();
        let lost = before - node.alloc.totals().free;
        assert!(lost < 8 * 304, "{lost} blocks are gone after round {round}");
    }
    node.unmount_clean();
}

#[test]
fn as_many_names_as_one_listing_holds() {
    let pool = pool();
    let node = mount(&pool, 0);
    let f = file(&node, "f");
    let before = getattr(&node, f).unwrap().blocks512;
    let mut count = 0;
    let name = |n: usize| format!("user.{n:0240}").into_bytes();
    loop {
        match set(&node, f, &name(count), &value(count, 0, count % 300), 0) {
            Ok(()) => count += 1,
            Err(Error::AttributeSpace) => break,
            other => panic!("{other:?}"),
        }
    }
    let listed = list(&node, f).unwrap();
    assert_eq!(count, 65_536 / 246);
    assert_eq!(listed.len(), count * 246);
    // Longer and shorter, in any order: an attribute that no longer fits in its place moves.
    for n in (0..count).rev().step_by(3) {
        set(&node, f, &name(n), &value(n, 1, 1_300 - n), 0).unwrap();
    }
    for n in (0..count).step_by(2) {
        remove(&node, f, &name(n)).unwrap();
    }
    node.unmount();
    let node = mount(&pool, 1);
    for n in 0..count {
        let longer = (count - 1 - n) % 3 == 0;
        let wanted = if longer { value(n, 1, 1_300 - n) } else { value(n, 0, n % 300) };
        match get(&node, f, &name(n)) {
            Ok(found) => assert!(n % 2 == 1 && found == wanted, "attribute {n}"),
            Err(Error::NoAttribute) => assert_eq!(n % 2, 0),
            other => panic!("{other:?}"),
        }
    }
    for n in (1..count).step_by(2) {
        remove(&node, f, &name(n)).unwrap();
    }
    assert_eq!(getattr(&node, f).unwrap().blocks512, before);
    node.unmount_clean();
}

/// At whatever moment the power fails, a value is one that was set, whole, and not older than the last
/// sync.
#[test]
fn a_power_cut_leaves_a_whole_value() {
    let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let device = RecordingDevice::new(inner).unwrap();
    let pool = Pool::create(vec![device.clone() as Arc<dyn Device>], &CreateOptions::new("cut"));
    let pool = pool.unwrap();
    crate::namei::fixture::make_small(&pool);
    let node = mount(&pool, 0);
    let f = file(&node, "f");
    let lens = [65_536, 100, 40_000, 1_800, 65_536, 7_000, 0];
    // For each sync: how long the record was, and the versions that may be found from then on.
    let mut synced = Vec::new();
    node.meta.commit().unwrap();
    let start = device.len();
    for version in 0..14 {
        let len = lens[version % lens.len()];
        set(&node, f, b"user.v", &value(1, version, len), 0).unwrap();
        set(&node, f, b"user.beside", &value(2, version, 1_500), 0).unwrap();
        if version % 2 == 1 {
            node.meta.commit().unwrap();
            synced.push((device.len(), version));
        }
    }
    let end = device.len();
    drop(node);
    let (mut replay, mut seen) = (device.replay(), 0);
    while replay.position() < end && replay.step().is_some() {
        let n = replay.position();
        if n < start {
            continue;
        }
        for seed in 0..2 {
            let image = replay.crash_image(seed) as Arc<dyn Device>;
            let node = mount(&Pool::assemble(vec![image]).unwrap(), 0);
            let least = synced.iter().rev().find(|(at, _)| *at <= n).map(|(_, v)| *v);
            let known = |found: &[u8], of, len: &dyn Fn(usize) -> usize| {
                (least.unwrap_or(0)..14).any(|v| found == value(of, v, len(v)))
            };
            match get(&node, f, b"user.v") {
                Ok(found) => assert!(known(&found, 1, &|v| lens[v % lens.len()]), "event {n}"),
                Err(Error::NoAttribute) => assert_eq!(least, None),
                other => panic!("event {n}: {other:?}"),
            }
            match get(&node, f, b"user.beside") {
                Ok(found) => assert!(known(&found, 2, &|_| 1_500), "event {n}"),
                Err(Error::NoAttribute) => assert_eq!(least, None),
                other => panic!("event {n}: {other:?}"),
            }
            node.unmount_clean();
            seen += 1;
        }
    }
    assert!(seen > 16, "{seen} cuts");
}
