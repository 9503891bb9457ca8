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
    for bad in [&b"user."[..], b"other.x", b"system.other", b"plain", b"system.posix_acl_access"] {
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
