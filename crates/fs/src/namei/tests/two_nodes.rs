//! Two nodes on one pool.

use braid_format::Bytes;
use braid_pool::device::{CommandKind, MemoryDevice, Rule, ScriptedDevice};
use braid_pool::{CreateOptions, Pool};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::fixture::{Node, make_in, mount_under};
use super::*;
use crate::attr::{KernelCache, WithAttrs};
use crate::make::{MakeOptions, make};

#[test]
fn a_name_made_on_one_node_is_seen_on_the_other_at_once() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let dir = make_dir(&a, root, "dir");
    for i in 0..20 {
        let (one, other) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let made = touch_file(one, dir, &format!("f{i}"));
        assert_eq!(lookup(other, dir, format!("f{i}").as_bytes()).unwrap(), made);
    }
    assert_eq!(names(&b, dir), names(&a, dir));
    rename(&b, dir, b"f0", root, b"moved", 0).unwrap();
    assert!(matches!(lookup(&a, dir, b"f0"), Err(Error::NotFound)));
    unlink(&a, root, b"moved").unwrap();
    assert!(matches!(unlink(&b, root, b"moved"), Err(Error::NotFound)));
    a.unmount();
    b.unmount();
}

#[test]
fn an_inode_unlinked_here_and_open_there_goes_with_the_last_close() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = touch_file(&a, root, "f").ino;
    let fh = open(&b, ino);
    unlink(&a, root, b"f").unwrap();
    // It lives, without a name, for both.
    assert_eq!(getattr(&b, ino).unwrap().nlink, 0);
    assert_eq!(orphan::reap(&a).unwrap(), 1);
    assert_eq!(getattr(&b, ino).unwrap().nlink, 0);
    close(&b, fh);
    assert!(gone(&b, ino));
    assert!(gone(&a, ino));
    a.unmount();
    b.unmount();
}

/// A kernel under which a program closes its file just when the lock is being given up.
#[derive(Default)]
struct ClosesInDemotion(Mutex<Option<(Arc<Core>, u64)>>);
impl KernelCache for ClosesInDemotion {
    fn invalidate_inode(&self, _: InodeNo, _: bool) {
        if let Some((core, fh)) = self.0.lock().take() {
            close(&core, fh);
        }
    }
    fn invalidate_entries(&self, _: InodeNo) {}
}

#[test]
fn a_file_closed_while_its_lock_is_given_up_is_deleted_by_its_unlink() {
    let pool = pool();
    let kernel = Arc::new(ClosesInDemotion::default());
    let (a, b) = (mount(&pool, 0), mount_under(&pool, 1, kernel.clone()));
    let root = a.volume.root();
    let ino = touch_file(&a, root, "f").ino;
    let fh = open(&b, ino);
    *kernel.0.lock() = Some((Arc::clone(&b), fh));
    unlink(&a, root, b"f").unwrap();
    assert!(kernel.0.lock().is_none(), "b was not asked for the lock");
    assert!(gone(&a, ino));
    assert_eq!(orphan::reap(&a).unwrap(), 0);
    a.unmount();
    b.unmount();
}

/// Closes and unlinks that meet at any moment: the last one deletes.
#[test]
fn a_close_and_an_unlink_elsewhere_at_the_same_time_leave_nothing() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    for round in 0..200_u32 {
        let name = format!("f{round}");
        let ino = touch_file(&a, root, &name).ino;
        let fh = open(&b, ino);
        std::thread::scope(|s| {
            s.spawn(|| unlink(&a, root, name.as_bytes()).unwrap());
            // From well before to well after the demotion.
            let pause = std::time::Duration::from_micros(u64::from(round % 50) * 10);
            std::thread::sleep(pause);
            close(&b, fh);
        });
        assert!(gone(&a, ino), "round {round}");
    }
    assert_eq!(orphan::reap(&a).unwrap(), 0);
    a.unmount();
    b.unmount();
}

#[test]
fn a_list_full_of_what_others_had_open_is_cleared_when_room_is_wanted() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    orphan::load(&a).unwrap();
    let room = orphan::shrink(&a, 2);
    let names: Vec<String> = (0..=room).map(|n| format!("f{n}")).collect();
    let mut open_files = Vec::new();
    for name in &names {
        let made = create(&a, root, name.as_bytes(), 0o666, &ROOT, true).unwrap();
        let ino = made.ino();
        drop(made);
        open_files.push(open(&b, ino));
    }
    let last = names.last().unwrap();
    for name in &names[..room] {
        unlink(&a, root, name.as_bytes()).unwrap();
    }
    // They are open there, as far as is known here.
    assert_eq!(orphan::reap(&a).unwrap(), room);
    let full = unlink(&a, root, last.as_bytes());
    assert!(matches!(full, Err(Error::TooManyOrphans)), "{full:?}");
    for fh in open_files.drain(..room) {
        close(&b, fh);
    }
    unlink(&a, root, last.as_bytes()).unwrap();
    close(&b, open_files[0]);
    a.unmount();
    b.unmount();
}

#[test]
fn the_lists_of_a_dead_node_are_taken_over() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = touch_file(&a, root, "f").ino;
    let held = open(&a, ino);
    unlink(&a, root, b"f").unwrap();
    a.meta.commit().unwrap();
    // Dies with the file open; b fences, replays, takes the list over, then the locks.
    a.handles.remove(held).unwrap();
    a.withdraw(&Error::NotPermitted);
    a.membership.abandon();
    assert_eq!(getattr(&b, ino).unwrap().nlink, 0);
    // The locks are free once the journal is replayed, the list is taken over right after.
    let mut tries = 0;
    while !gone(&b, ino) {
        tries += 1;
        assert!(tries < 500, "not taken over");
        std::thread::sleep(std::time::Duration::from_millis(10));
        orphan::reap(&b).unwrap();
    }
    assert_eq!(orphan::reap(&b).unwrap(), 0);
    assert!(matches!(lookup(&b, root, b"f"), Err(Error::NotFound)));
    b.unmount();
    // Nothing is left on the slot's own list either.
    let c = mount(&pool, 0);
    assert_eq!(orphan::reap(&c).unwrap(), 0);
    c.unmount_clean();
}

#[test]
fn lists_full_of_open_orphans_refuse_more_and_recover() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let entries = (node.volume.geo.body_len() - 48) / 8 * 4;
    let mut open_files = Vec::new();
    for _ in 0..entries - entries / 32 {
        let tmp = tmpfile(&node, root, 0o600, &ROOT).unwrap();
        open_files.push(node.handles.insert(tmp.inode.clone(), 2));
    }
    assert!(matches!(tmpfile(&node, root, 0o600, &ROOT), Err(Error::TooManyOrphans)));
    drop(create(&node, root, b"f", 0o666, &ROOT, true).unwrap());
    let fh = open(&node, lookup(&node, root, b"f").unwrap().ino);
    assert!(matches!(unlink(&node, root, b"f"), Err(Error::TooManyOrphans)));
    assert_eq!(lookup(&node, root, b"f").unwrap().nlink, 1);
    close(&node, open_files.pop().unwrap());
    unlink(&node, root, b"f").unwrap();
    close(&node, fh);
    for fh in open_files {
        close(&node, fh);
    }
    assert_eq!(orphan::reap(&node).unwrap(), 0);
    node.unmount();
}

/// One user's files without a name leave room for those of others, and all users' leave some for root.
#[test]
fn unnamed_files_of_one_user_leave_others_room_to_remove_theirs() {
    let node = mount(&pool(), 0);
    let root = node.volume.root();
    let all = (node.volume.geo.body_len() - 48) / 8 * 4;
    let mut open_files = Vec::new();
    let mut fill = |uid: u32| {
        let cred = Cred { uid, ..CRED };
        let mut made = 0;
        while let Ok(tmp) = tmpfile(&node, root, 0o600, &cred) {
            open_files.push(node.handles.insert(tmp.inode.clone(), 2));
            made += 1;
        }
        made
    };
    assert_eq!(fill(7), all / 2);
    let others = fill(8);
    let kept = all / 8 + all / 32;
    assert_eq!(
        others,
        all - kept - all / 2,
        "what is kept for root, and for what is closed, is kept"
    );
    assert_eq!(fill(9), 0);
    drop(create(&node, root, b"f", 0o666, &ROOT, true).unwrap());
    let fh = open(&node, lookup(&node, root, b"f").unwrap().ino);
    unlink(&node, root, b"f").unwrap();
    close(&node, fh);
    // A place that becomes free is available again to its user.
    close(&node, open_files.remove(0));
    assert!(tmpfile(&node, root, 0o600, &Cred { uid: 7, ..CRED }).is_ok());
    for fh in open_files {
        close(&node, fh);
    }
    orphan::reap(&node).unwrap();
    node.unmount();
}

/// A kernel that refers to all inodes, until it says that it does not.
#[derive(Default)]
struct Refers(AtomicBool);
impl KernelCache for Refers {
    fn invalidate_inode(&self, _: InodeNo, _: bool) {}
    fn invalidate_entries(&self, _: InodeNo) {}
    fn refers(&self, _: InodeNo) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Whoever fills the lists with open files keeps nobody from removing files that are closed. What the kernel does not give
/// back takes a few places of its user.
#[test]
fn lists_full_of_open_files_leave_room_to_remove_closed_ones() {
    let kernel = Arc::new(Refers::default());
    let node = mount_under(&pool(), 0, kernel.clone());
    let root = node.volume.root();
    let all = (node.volume.geo.body_len() - 48) / 8 * 4;
    let mut open_files = Vec::new();
    for uid in [7, 8, 0] {
        while let Ok(tmp) = tmpfile(&node, root, 0o600, &Cred { uid, ..CRED }) {
            open_files.push(node.handles.insert(tmp.inode.clone(), 2));
        }
    }
    assert_eq!(open_files.len(), all - all / 32);
    let remove = |uid: u32, n: usize| {
        let name = format!("{uid}-{n}");
        let made = create(&node, root, name.as_bytes(), 0o600, &Cred { uid, ..CRED }, true);
        let ino = made.unwrap().ino();
        kernel.0.store(true, Ordering::Release);
        let removed = unlink(&node, root, name.as_bytes());
        kernel.0.store(false, Ordering::Release);
        removed.map(|()| ino)
    };
    for n in 0..20 {
        for uid in [9, 7, 0] {
            let ino = remove(uid, n).unwrap();
            orphan::forget(&node, ino).unwrap();
            braid_testkit::wait_until("it is deleted", || gone(&node, ino));
        }
    }
    // A program stands in what it has removed.
    let most = (all / 32).div_ceil(8);
    let held: Vec<_> = (20..20 + most).map(|n| remove(9, n).unwrap()).collect();
    assert!(matches!(remove(9, 99), Err(Error::TooManyOrphans)));
    let ino = remove(10, 99).unwrap();
    for ino in held.into_iter().chain([ino]) {
        orphan::forget(&node, ino).unwrap();
        braid_testkit::wait_until("it is deleted", || gone(&node, ino));
    }
    for fh in open_files {
        close(&node, fh);
    }
    orphan::reap(&node).unwrap();
    node.unmount();
}

#[test]
fn two_nodes_at_the_same_names_never_disagree() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let (d1, d2) = (make_dir(&a, root, "d1"), make_dir(&a, root, "d2"));
    std::thread::scope(|s| {
        for (n, node) in [(0_u32, &a), (1, &b)] {
            s.spawn(move || {
                for i in 0..40 {
                    let name = format!("n{}", (i * 7 + n) % 5);
                    let (from, to) = if i % 2 == 0 { (d1, d2) } else { (d2, d1) };
                    let result = match (i + n) % 4 {
                        0 => create(node, from, name.as_bytes(), 0o600, &CRED, false).map(drop),
                        1 => rename(node, from, name.as_bytes(), to, b"n0", 0),
                        2 => unlink(node, to, name.as_bytes()),
                        _ => mkdir(node, to, format!("s{n}{i}").as_bytes(), 0o700, &CRED).map(drop),
                    };
                    match result {
                        Ok(()) | Err(Error::NotFound | Error::Exists) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    for dir in [d1, d2] {
        assert_eq!(names(&a, dir), names(&b, dir));
        let subdirs = names(&a, dir).iter().filter(|n| n.starts_with('s')).count();
        assert_eq!(getattr(&b, dir).unwrap().nlink as usize, 2 + subdirs);
    }
    a.unmount();
    b.unmount_clean();
}

#[test]
fn listing_with_attributes_takes_the_locks_of_children_side_by_side() {
    let device = ScriptedDevice::over(MemoryDevice::new("slow", Bytes(512 << 20), Bytes(512)));
    let pool = Pool::create(vec![device.clone()], &CreateOptions::new("slow")).unwrap();
    make_in(&pool);
    let a = mount(&pool, 0);
    let dir = make_dir(&a, a.volume.root(), "dir");
    let made: Vec<_> = (0..60).map(|i| touch_file(&a, dir, &format!("f{i}")).ino).collect();
    a.unmount();
    let b = mount(&pool, 1);
    let compares = Rule::on(&[CommandKind::CompareAndWrite]);
    let slow = device.add(compares.delays(std::time::Duration::from_millis(5)));
    let mut seen = Vec::new();
    readdir(&b, dir, 0, WithAttrs::Yes, &mut |entry| {
        seen.extend(entry.attr.map(|a| a.ino));
        false
    })
    .unwrap();
    let most = slow.most_at_once();
    assert!(most > 3, "{most} together");
    assert!(made.iter().all(|ino| seen.contains(ino)), "{} of {}", seen.len(), made.len());
    b.unmount();
}

/// How many messages `core` has sent about locks, and for how many locks it has asked.
fn messages(core: &Core) -> (u64, u64) {
    let stats = core.locks.stats();
    (stats.hints_sent, stats.asks)
}

#[test]
fn many_files_of_another_node_are_asked_for_by_few_messages() {
    const FILES: u64 = 256;
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let name = |n| format!("f{n:04}");
    for how in ["one by one", "as a list"] {
        let dir = make_dir(&a, root, how);
        let made: Vec<_> = (0..FILES).map(|n| touch_file(&a, dir, &name(n))).collect();
        let before = messages(&b);
        if how == "one by one" {
            for (n, made) in (0..).zip(&made) {
                assert_eq!(lookup(&b, dir, name(n).as_bytes()).unwrap(), *made);
            }
        } else {
            let mut found = Vec::new();
            readdir(&b, dir, 0, WithAttrs::Yes, &mut |entry| {
                found.extend(entry.attr);
                false
            })
            .unwrap();
            let mut expected = made.clone();
            for all in [&mut found, &mut expected] {
                all.sort_by_key(|attr| attr.ino);
            }
            assert_eq!(found, expected);
        }
        let after = messages(&b);
        let (sent, asks) = (after.0 - before.0, after.1 - before.1);
        // Some were not presumed to be held by the other node, or their answers came late.
        assert!(asks > FILES / 2, "{how}: {asks} asked for");
        assert!(sent < FILES / 4, "{how}: {sent} messages");
        // The locks are shared from now on, and a change ends that.
        set_mode(&a, made[7].ino, 0o600);
        assert_eq!(lookup(&b, dir, name(7).as_bytes()).unwrap().mode & 0o777, 0o600);
    }
    a.unmount();
    b.unmount();
}

fn set_mode(core: &Arc<Core>, ino: InodeNo, mode: u32) {
    setattr(core, ino, &crate::attr::SetAttr { mode: Some(mode), ..Default::default() }).unwrap();
}

/// More nodes than a lock's record had places for openers once: all at the same time, and lives that came and went.
#[test]
fn a_file_that_thirty_nodes_had_open_is_freed_with_the_last_close() {
    let device = MemoryDevice::new("test", Bytes(512 << 20), Bytes(512));
    let pool = Pool::create(vec![device], &CreateOptions::new("test")).unwrap();
    let of_nodes = MakeOptions::default();
    let options = MakeOptions { nodes: Some(31), journal_size: Some(2 << 20), ..of_nodes };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    let nodes: Vec<_> = (0..30).map(|slot| mount(&pool, slot)).collect();
    let root = nodes[0].volume.root();
    let ino = touch_file(&nodes[0], root, "f").ino;
    let files: Vec<u64> = nodes.iter().map(|node| open(node, ino)).collect();
    unlink(&nodes[17], root, b"f").unwrap();
    for (node, fh) in nodes.iter().zip(files) {
        assert!(!gone(&nodes[29], ino));
        close(node, fh);
    }
    assert!(nodes.iter().all(|node| gone(node, ino)));
    assert_eq!(orphan::reap(&nodes[17]).unwrap(), 0);
    // Some leave with the file open, some are killed.
    let ino = touch_file(&nodes[0], root, "g").ino;
    for life in 0..30 {
        let node = mount(&pool, 30);
        open(&node, ino);
        if life % 5 == 4 {
            node.withdraw(&Error::NotPermitted);
            node.membership.abandon();
        } else {
            node.unmount();
        }
    }
    unlink(&nodes[3], root, b"g").unwrap();
    assert!(gone(&nodes[4], ino));
    assert_eq!(orphan::reap(&nodes[3]).unwrap(), 0);
    let mut nodes = nodes.into_iter();
    let last = nodes.next_back().unwrap();
    nodes.for_each(Node::unmount);
    last.unmount_clean();
}
