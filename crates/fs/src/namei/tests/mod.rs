//! Operations on names against mounted nodes on a pool in memory.

mod damaged;
mod interrupts;
mod kept_numbers;
mod model;
mod moves;
mod two_nodes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, InodeNo, LockNo};

use super::fixture::{mount, pool, pool_of};
use super::*;
use crate::attr::{Attr, Cred, SetAttr, Time, TimeSet, WithAttrs};
use crate::orphan;

const CRED: Cred = Cred { uid: 1000, gid: 100, pid: 1, umask: 0o022 };
const ROOT: Cred = Cred { uid: 0, ..CRED };

fn touch_file(core: &Arc<Core>, dir: InodeNo, name: &str) -> Attr {
    create(core, dir, name.as_bytes(), 0o666, &CRED, true).unwrap().attr(core.volume.geo)
}
fn make_dir(core: &Arc<Core>, dir: InodeNo, name: &str) -> InodeNo {
    mkdir(core, dir, name.as_bytes(), 0o777, &CRED).unwrap().ino
}
fn names(core: &Arc<Core>, dir: InodeNo) -> Vec<String> {
    let mut out = Vec::new();
    readdir(core, dir, 0, WithAttrs::No, &mut |e| {
        out.push(String::from_utf8_lossy(e.name).into_owned());
        false
    })
    .unwrap();
    out
}
fn gone(core: &Arc<Core>, ino: InodeNo) -> bool {
    matches!(getattr(core, ino), Err(Error::Stale(_)))
}
fn open(core: &Arc<Core>, ino: InodeNo) -> u64 {
    let locked = core.lock_shared(ino).unwrap();
    core.handles.insert(locked.inode.clone(), 2)
}
fn close(core: &Arc<Core>, fh: u64) {
    let file = core.handles.remove(fh).unwrap();
    if file.inode.opens.load(Ordering::SeqCst) == 0 {
        orphan::last_close(core, &file.inode).unwrap();
    }
}

/// Damage that a transaction meets is an error of what is damaged, as long as it has changed nothing; later
/// half of it would be left behind, so the node withdraws.
#[test]
fn a_transaction_that_has_changed_something_and_meets_damage_withdraws_the_node() {
    for changes in [false, true] {
        let node = mount(&pool(), 0);
        let file = touch_file(&node, node.volume.root(), "file");
        // A place where no metadata stands.
        let last = node.volume.total_blocks() - node.volume.geo.slot_blocks();
        let locked = node.lock_exclusive(file.ino).unwrap();
        let mut tx = node.meta.begin().unwrap();
        let done = (|| {
            if changes {
                locked.update(&mut tx, |raw| raw.mode = (raw.mode.get() | 0o111).into())?;
            }
            tx.read(BlockNo(last), LockNo::from(file.ino), MetaKind::Dinode).map(drop)
        })();
        drop(tx);
        let done = node.sealed(done);
        assert!(matches!(done, Err(Error::Damaged { .. })), "{done:?}");
        drop(locked);
        assert_eq!(node.check_alive().is_err(), changes);
        assert_eq!(getattr(&node, node.volume.root()).is_err(), changes);
    }
}

#[test]
fn makes_and_finds_every_kind() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let file = touch_file(&node, root, "file");
    assert_eq!((file.mode, file.nlink, file.size), (0o100_644, 1, 0));
    assert_eq!((file.uid, file.gid), (1000, 100));
    let before = getattr(&node, root).unwrap();
    let dir = mkdir(&node, root, b"dir", 0o777, &CRED).unwrap();
    assert_eq!((dir.mode, dir.nlink), (0o040_755, 2));
    let after = getattr(&node, root).unwrap();
    assert_eq!(after.nlink, before.nlink + 1);
    assert!(after.mtime >= before.mtime && after.ctime >= before.ctime);
    let fifo = mknod(&node, root, b"fifo", 0o010_600, 0, &CRED).unwrap();
    assert_eq!(fifo.mode, 0o010_600);
    let dev = mknod(&node, root, b"dev", 0o020_600, 0x0103, &CRED).unwrap();
    assert_eq!(dev.rdev, 0x0103);
    for attr in [file, dir, fifo, dev] {
        assert_eq!(getattr(&node, attr.ino).unwrap().ino, attr.ino);
    }
    assert_eq!(lookup(&node, root, b"fifo").unwrap().ino, fifo.ino);
    assert!(matches!(lookup(&node, root, b"none"), Err(Error::NotFound)));
    assert!(matches!(lookup(&node, file.ino, b"x"), Err(Error::NotDirectory)));
    assert!(matches!(lookup(&node, root, &[b'x'; 256]), Err(Error::NameTooLong)));
    assert_eq!(lookup(&node, dir.ino, b"..").unwrap().ino, root);
    assert_eq!(lookup(&node, root, b"..").unwrap().ino, root);
    assert!(matches!(mkdir(&node, root, b"file", 0o777, &CRED), Err(Error::Exists)));
    assert!(matches!(mknod(&node, root, b"bad", 0o040_755, 0, &CRED), Err(Error::Invalid(_))));
    assert!(matches!(getattr(&node, InodeNo(1)), Err(Error::Stale(_))));
    let again = create(&node, root, b"file", 0o600, &CRED, false).unwrap();
    assert_eq!(again.ino(), file.ino);
    drop(again);
    assert!(matches!(create(&node, root, b"file", 0o600, &CRED, true), Err(Error::Exists)));
    assert!(matches!(create(&node, root, b"dir", 0o600, &CRED, false), Err(Error::IsDirectory)));
    node.unmount();
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let node = mount(&pool(), 0);
    let dir = make_dir(&node, node.volume.root(), "shared");
    let set = SetAttr { mode: Some(0o2775), gid: Some(500), ..SetAttr::default() };
    assert_eq!(setattr(&node, dir, &set).unwrap().mode, 0o042_775);
    assert_eq!(touch_file(&node, dir, "file").gid, 500);
    let sub = mkdir(&node, dir, b"sub", 0o777, &CRED).unwrap();
    assert_eq!((sub.gid, sub.mode), (500, 0o042_755));
}

#[test]
fn symbolic_links_of_every_length() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    for len in [1_usize, 100, 3_327, 3_328, 3_329, 4_000, 4_095] {
        let name = format!("link{len}");
        let target: Vec<u8> = b"abcdefgh".iter().copied().cycle().take(len).collect();
        let attr = symlink(&node, root, name.as_bytes(), &target, &CRED).unwrap();
        assert_eq!((attr.size, attr.mode), (len as u64, 0o120_777));
        assert_eq!(readlink(&node, attr.ino).unwrap(), target);
    }
    let long = vec![b'x'; 4_096];
    assert!(matches!(symlink(&node, root, b"l", &long, &CRED), Err(Error::NameTooLong)));
    assert!(matches!(symlink(&node, root, b"l", b"", &CRED), Err(Error::NotFound)));
    assert!(matches!(readlink(&node, root), Err(Error::Invalid(_))));
    unlink(&node, root, b"link4095").unwrap();
    unlink(&node, root, b"link100").unwrap();
    node.unmount_clean();
}

#[test]
fn attributes_are_set_as_posix_says() {
    let node = mount(&pool(), 0);
    let file = touch_file(&node, node.volume.root(), "file").ino;
    let set = |s: SetAttr| setattr(&node, file, &s).unwrap();
    assert_eq!(set(SetAttr { mode: Some(0o6755), ..SetAttr::default() }).mode, 0o106_755);
    // A new owner loses the privileges; without execution for the group the bit means locking.
    assert_eq!(set(SetAttr { uid: Some(7), ..SetAttr::default() }).mode, 0o100_755);
    set(SetAttr { mode: Some(0o6745), ..SetAttr::default() });
    assert_eq!(set(SetAttr { gid: Some(7), ..SetAttr::default() }).mode, 0o102_745);
    set(SetAttr { mode: Some(0o6755), ..SetAttr::default() });
    let size = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(set(size).mode, 0o106_755);
    assert_eq!(set(SetAttr { kill_privileges: true, ..size }).mode, 0o100_755);
    set(SetAttr { mode: Some(0o2745), ..SetAttr::default() });
    let old = Time { sec: -5, nsec: 999_999_999 };
    let attr = set(SetAttr {
        atime: Some(TimeSet::At(old)),
        mtime: Some(TimeSet::Now),
        ..SetAttr::default()
    });
    assert_eq!(attr.atime, old);
    assert!(attr.mtime.sec > 0 && attr.ctime >= attr.mtime);
    assert_eq!(getattr(&node, file).unwrap(), attr);
}

#[test]
fn links_and_their_limits() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let dir = make_dir(&node, root, "dir");
    let file = touch_file(&node, root, "a").ino;
    assert_eq!(link(&node, file, dir, b"b").unwrap().nlink, 2);
    assert!(matches!(link(&node, file, dir, b"b"), Err(Error::Exists)));
    assert!(matches!(link(&node, dir, root, b"x"), Err(Error::NotPermitted)));
    assert!(matches!(link(&node, dir, dir, b"x"), Err(Error::NotPermitted)));
    unlink(&node, root, b"a").unwrap();
    assert_eq!(lookup(&node, dir, b"b").unwrap().nlink, 1);
    let fh = open(&node, file);
    unlink(&node, dir, b"b").unwrap();
    assert!(matches!(link(&node, file, dir, b"b"), Err(Error::NotFound)));
    close(&node, fh);
    assert!(gone(&node, file));
    // Made without a name: may get one.
    let tmp = tmpfile(&node, dir, 0o600, &CRED).unwrap();
    let ino = tmp.ino();
    let fh = node.handles.insert(tmp.inode.clone(), 2);
    drop(tmp);
    assert_eq!(getattr(&node, ino).unwrap().nlink, 0);
    assert_eq!(link(&node, ino, dir, b"named").unwrap().nlink, 1);
    close(&node, fh);
    assert_eq!(orphan::reap(&node).unwrap(), 0);
    assert_eq!(lookup(&node, dir, b"named").unwrap().ino, ino);
    // ... and is no longer special.
    let fh = open(&node, ino);
    unlink(&node, dir, b"named").unwrap();
    assert!(matches!(link(&node, ino, dir, b"again"), Err(Error::NotFound)));
    close(&node, fh);
    assert!(gone(&node, ino));
}

#[test]
fn removal_checks_and_counts() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let before = getattr(&node, root).unwrap();
    let dir = make_dir(&node, root, "dir");
    touch_file(&node, dir, "file");
    assert!(matches!(rmdir(&node, root, b"dir"), Err(Error::NotEmpty)));
    assert!(matches!(unlink(&node, root, b"dir"), Err(Error::IsDirectory)));
    assert!(matches!(rmdir(&node, dir, b"file"), Err(Error::NotDirectory)));
    assert!(matches!(unlink(&node, dir, b"none"), Err(Error::NotFound)));
    assert!(matches!(rmdir(&node, root, b"."), Err(Error::Invalid(_))));
    unlink(&node, dir, b"file").unwrap();
    let fh = open(&node, dir);
    rmdir(&node, root, b"dir").unwrap();
    // Open, but nothing can be made in it any more.
    assert!(matches!(create(&node, dir, b"x", 0o600, &CRED, true), Err(Error::NotFound)));
    assert_eq!(getattr(&node, dir).unwrap().nlink, 0);
    close(&node, fh);
    assert!(gone(&node, dir));
    let after = getattr(&node, root).unwrap();
    assert_eq!((after.nlink, after.size), (before.nlink, before.size));
}

#[test]
fn slots_of_removed_inodes_are_used_again_with_another_generation() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let mut seen: BTreeMap<InodeNo, u64> = BTreeMap::new();
    let mut again = 0;
    for i in 0..300 {
        let attr = touch_file(&node, root, &format!("f{i}"));
        if let Some(old) = seen.insert(attr.ino, attr.generation) {
            assert_ne!(old, attr.generation);
            again += 1;
        }
        unlink(&node, root, format!("f{i}").as_bytes()).unwrap();
        if i % 20 == 19 {
            node.meta.commit().unwrap();
        }
    }
    assert!(again > 0, "no slot was used twice");
    node.unmount();
}

#[test]
fn fifty_thousand_files_in_one_directory() {
    let node = mount(&pool(), 0);
    let dir = make_dir(&node, node.volume.root(), "big");
    let count = 50_000;
    for i in 0..count {
        touch_file(&node, dir, &format!("file-{i:06}"));
    }
    let attr = getattr(&node, dir).unwrap();
    assert!(attr.blocks512 > 500, "blocks held: {}", attr.blocks512);
    let mut listed = names(&node, dir);
    assert_eq!(listed.len(), count + 2);
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), count + 2);
    for i in (0..count).step_by(101) {
        lookup(&node, dir, format!("file-{i:06}").as_bytes()).unwrap();
    }
    for i in 0..count {
        unlink(&node, dir, format!("file-{i:06}").as_bytes()).unwrap();
    }
    let attr = getattr(&node, dir).unwrap();
    assert_eq!((attr.size, attr.blocks512), (0, 0));
    for i in 0..100 {
        touch_file(&node, dir, &format!("again{i}"));
    }
    node.unmount_clean();
}

#[test]
fn a_reader_sees_every_lasting_entry_once_while_others_come_and_go() {
    let node = mount(&pool(), 0);
    let dir = make_dir(&node, node.volume.root(), "dir");
    for i in 0..2_000 {
        touch_file(&node, dir, &format!("stay{i}"));
        touch_file(&node, dir, &format!("go{i}"));
    }
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let mut left = 37;
        let mut full = false;
        readdir(
            &node,
            dir,
            cookie,
            if round % 2 == 1 { WithAttrs::Yes } else { WithAttrs::No },
            &mut |e| {
                if left == 0 {
                    full = true;
                    return true;
                }
                left -= 1;
                cookie = e.next;
                assert_eq!(e.attr.is_some(), round % 2 == 1);
                seen.push(String::from_utf8_lossy(e.name).into_owned());
                false
            },
        )
        .unwrap();
        if !full {
            break;
        }
        for i in 0..15 {
            let n = round * 15 + i;
            if n < 2_000 {
                unlink(&node, dir, format!("go{n}").as_bytes()).unwrap();
                touch_file(&node, dir, &format!("new{n}"));
            }
        }
        round += 1;
    }
    assert_eq!(&seen[..2], [".", ".."]);
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "an entry came twice");
    assert_eq!(seen.iter().filter(|n| n.starts_with("stay")).count(), 2_000);
}

#[test]
fn what_was_made_is_there_after_a_remount() {
    let pool = pool();
    let node = mount(&pool, 0);
    let root = node.volume.root();
    let dir = make_dir(&node, root, "dir");
    for i in 0..500 {
        touch_file(&node, dir, &format!("f{i}"));
    }
    symlink(&node, root, b"link", &[b't'; 4_000], &CRED).unwrap();
    let attr = getattr(&node, dir).unwrap();
    let listed = names(&node, dir);
    node.unmount();
    let node = mount(&pool, 1);
    assert_eq!(getattr(&node, dir).unwrap(), attr);
    assert_eq!(names(&node, dir), listed);
    let link = lookup(&node, root, b"link").unwrap();
    assert_eq!(readlink(&node, link.ino).unwrap(), [b't'; 4_000]);
    node.unmount();
}

#[test]
fn a_full_pool_refuses_new_names_and_is_emptied_again() {
    let node = mount(&pool_of(braid_format::Bytes(128 << 20)), 0);
    let root = node.volume.root();
    let dir = make_dir(&node, root, "dir");
    let mut made = 0_u32;
    let refused = loop {
        // An inode and a block each.
        match symlink(&node, dir, format!("link{made}").as_bytes(), &[b't'; 4_095], &CRED) {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
        assert!(made < 100_000, "never full");
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(made > 1_000, "full after {made}");
    let before = getattr(&node, dir).unwrap();
    assert!(matches!(symlink(&node, dir, b"one more", &[b't'; 4_095], &CRED), Err(Error::NoSpace)));
    assert!(matches!(lookup(&node, dir, b"one more"), Err(Error::NotFound)));
    assert_eq!(getattr(&node, dir).unwrap(), before);
    assert_eq!(names(&node, dir).len(), made as usize + 2);
    for i in 0..made {
        let name = format!("link{i}");
        if i % 100 == 0 {
            let ino = lookup(&node, dir, name.as_bytes()).unwrap().ino;
            assert_eq!(readlink(&node, ino).unwrap(), [b't'; 4_095]);
        }
        unlink(&node, dir, name.as_bytes()).unwrap();
    }
    assert_eq!(orphan::reap(&node).unwrap(), 0);
    node.meta.commit().unwrap();
    node.alloc.drain_frees().unwrap();
    symlink(&node, dir, b"again", &[b't'; 4_095], &CRED).unwrap();
    node.unmount_clean();
}
