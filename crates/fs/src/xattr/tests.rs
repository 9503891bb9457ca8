//! Attributes on a mounted node.

use std::sync::Arc;

use super::*;
use crate::attr::{Cred, SetAttr};
use crate::namei::rig::{mount, pool};
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
    // One block is all there is, and a refusal changes nothing.
    assert!(matches!(set(&node, f, b"user.more", &large, 0), Err(Error::AttributeSpace)));
    assert!(matches!(set(&node, f, b"user.large", &[3; 4_000], 0), Err(Error::AttributeSpace)));
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
    readdir(&node, dir, 0, false, &mut |_| {
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
    let many: Vec<(u16, u16, u32)> = (0..500).map(|id| (2, 7, id)).collect();
    let ends = [&[(1, 7, none)][..], &many, &[(4, 7, none), (0x10, 7, none), (0x20, 7, none)]];
    let long = list(&ends.concat());
    assert!(matches!(set(&node, f, acl::ACCESS, &long, 0), Err(Error::AttributeSpace)));
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
