//! The name space against a model in memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::fixture::Node;
use super::*;

/// Directories and files have small numbers here; slot 0 is the root.
#[derive(Debug, Clone)]
enum Op {
    Create(usize, u8),
    Mkdir(usize, u8),
    Link(usize, usize, u8),
    Unlink(usize, u8),
    Rmdir(usize, u8),
    Rename(usize, u8, usize, u8, u32),
    Open(usize, u8),
    CloseOldest,
    Commit,
}

fn op() -> impl Strategy<Value = Op> {
    let (d, n) = (0..6_usize, 0..12_u8);
    prop_oneof![
        4 => (d.clone(), n.clone()).prop_map(|(d, n)| Op::Create(d, n)),
        3 => (d.clone(), n.clone()).prop_map(|(d, n)| Op::Mkdir(d, n)),
        2 => (0..20_usize, d.clone(), n.clone()).prop_map(|(i, d, n)| Op::Link(i, d, n)),
        2 => (d.clone(), n.clone()).prop_map(|(d, n)| Op::Unlink(d, n)),
        2 => (d.clone(), n.clone()).prop_map(|(d, n)| Op::Rmdir(d, n)),
        5 => (d.clone(), n.clone(), d.clone(), n.clone(), 0..3_u32)
            .prop_map(|(a, b, c, d, f)| Op::Rename(a, b, c, d, f)),
        1 => (d, n).prop_map(|(d, n)| Op::Open(d, n)),
        1 => Just(Op::CloseOldest),
        1 => Just(Op::Commit),
    ]
}

#[derive(Debug, Clone, Default)]
struct Inode {
    /// `Some` for a directory.
    entries: Option<BTreeMap<String, InodeNo>>,
    parent: InodeNo,
    links: u32,
}

struct Model {
    inodes: BTreeMap<InodeNo, Inode>,
    root: InodeNo,
}

fn name(n: u8) -> String {
    format!("{n}{}", "-long".repeat(usize::from(n) * 3))
}

impl Model {
    fn dirs(&self) -> Vec<InodeNo> {
        self.inodes.iter().filter(|(_, i)| i.entries.is_some()).map(|(n, _)| *n).collect()
    }
    fn entries(&mut self, dir: InodeNo) -> &mut BTreeMap<String, InodeNo> {
        self.inodes.get_mut(&dir).unwrap().entries.as_mut().unwrap()
    }
    fn get(&self, dir: InodeNo, name: &str) -> Option<InodeNo> {
        self.inodes[&dir].entries.as_ref().unwrap().get(name).copied()
    }
    fn is_dir(&self, ino: InodeNo) -> bool {
        self.inodes[&ino].entries.is_some()
    }
    fn is_empty(&self, ino: InodeNo) -> bool {
        self.inodes[&ino].entries.as_ref().is_none_or(BTreeMap::is_empty)
    }
    fn below(&self, mut at: InodeNo, above: InodeNo) -> bool {
        loop {
            if at == above {
                return true;
            }
            if at == self.root {
                return false;
            }
            at = self.inodes[&at].parent;
        }
    }
    /// Removes a name; forgets an inode without names.
    fn drop_name(&mut self, dir: InodeNo, name: &str) {
        let ino = self.entries(dir).remove(name).unwrap();
        self.drop_link(dir, ino);
    }
    fn drop_link(&mut self, dir: InodeNo, ino: InodeNo) {
        if self.is_dir(ino) {
            self.inodes.get_mut(&dir).unwrap().links -= 1;
            self.inodes.remove(&ino);
            return;
        }
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.links -= 1;
        if inode.links == 0 {
            self.inodes.remove(&ino);
        }
    }
    fn put(&mut self, dir: InodeNo, name: String, ino: InodeNo) {
        self.entries(dir).insert(name, ino);
        if self.is_dir(ino) {
            self.inodes.get_mut(&ino).unwrap().parent = dir;
            self.inodes.get_mut(&dir).unwrap().links += 1;
        }
    }
    /// What rename must answer: an errno, or `Ok(true)` when something is to change.
    fn may_rename(&self, (d1, n1): (InodeNo, &str), (d2, n2): (InodeNo, &str), flags: u32) -> bool {
        let Some(src) = self.get(d1, n1) else { return false };
        let dst = self.get(d2, n2);
        match (flags, dst) {
            (1, Some(_)) | (2, None) => return false,
            _ => {}
        }
        if self.is_dir(src) && d1 != d2 && self.below(d2, src) {
            return false;
        }
        let Some(dst) = dst else { return true };
        if dst == src {
            return true;
        }
        if flags == 2 {
            return !(self.is_dir(dst) && d1 != d2 && self.below(d1, dst));
        }
        self.is_dir(src) == self.is_dir(dst) && self.is_empty(dst)
    }
    fn rename(&mut self, (d1, n1): (InodeNo, &str), (d2, n2): (InodeNo, &str), flags: u32) {
        let src = self.get(d1, n1).unwrap();
        let dst = self.get(d2, n2);
        if dst == Some(src) {
            return;
        }
        let lift = |m: &mut Self, d: InodeNo, n: &str, ino: InodeNo| {
            m.entries(d).remove(n);
            if m.is_dir(ino) {
                m.inodes.get_mut(&d).unwrap().links -= 1;
            }
        };
        lift(self, d1, n1, src);
        if let Some(dst) = dst {
            if flags == 2 {
                lift(self, d2, n2, dst);
                self.put(d1, n1.into(), dst);
            } else {
                self.entries(d2).remove(n2);
                self.drop_link(d2, dst);
            }
        }
        self.put(d2, n2.into(), src);
    }
}

/// The whole tree as the file system shows it.
fn seen(node: &Node, dir: InodeNo, out: &mut BTreeMap<InodeNo, Inode>, parent: InodeNo) {
    let mut entries = BTreeMap::new();
    readdir(node, dir, 0, WithAttrs::Yes, &mut |e| {
        let name = String::from_utf8(e.name.to_vec()).unwrap();
        match name.as_str() {
            "." => assert_eq!(e.ino, dir),
            ".." => assert_eq!(e.ino, parent),
            _ => {
                let attr = e.attr.unwrap();
                assert_eq!(kind_of(attr.mode), e.kind);
                entries.insert(name, (e.ino, attr));
            }
        }
        false
    })
    .unwrap();
    let attr = getattr(node, dir).unwrap();
    let bytes: usize =
        entries.keys().map(|n| braid_format::dirent::RawDirent::len_for(n.len())).sum();
    assert_eq!(attr.size, bytes as u64);
    for (ino, attr) in entries.values() {
        if kind_of(attr.mode) == 4 {
            seen(node, *ino, out, dir);
        } else {
            out.insert(*ino, Inode { entries: None, parent: InodeNo(0), links: attr.nlink });
        }
    }
    let entries = entries.into_iter().map(|(n, (ino, _))| (n, ino)).collect();
    out.insert(dir, Inode { entries: Some(entries), parent, links: attr.nlink });
}

fn same(node: &Node, model: &Model) {
    let mut out = BTreeMap::new();
    seen(node, model.root, &mut out, model.root);
    let brief = |m: &BTreeMap<InodeNo, Inode>| -> Vec<_> {
        m.iter().map(|(n, i)| (*n, i.links, i.entries.clone())).collect()
    };
    assert_eq!(brief(&out), brief(&model.inodes));
}

fn step(node: &Node, model: &mut Model, open_files: &mut Vec<u64>, op: &Op) {
    let dirs = model.dirs();
    let dir = |d: usize| dirs[d % dirs.len()];
    match *op {
        Op::Create(d, n) | Op::Mkdir(d, n) => {
            let (d, n, mk) = (dir(d), name(n), matches!(op, Op::Mkdir(..)));
            let made = if mk {
                mkdir(node, d, n.as_bytes(), 0o755, &CRED).map(|a| a.ino)
            } else {
                create(node, d, n.as_bytes(), 0o644, &CRED, true).map(|l| l.ino())
            };
            assert_eq!(made.is_err(), model.get(d, &n).is_some(), "{op:?} {made:?}");
            if let Ok(ino) = made {
                let entries = mk.then(BTreeMap::new);
                let new = Inode { entries, parent: d, links: if mk { 2 } else { 1 } };
                assert!(model.inodes.insert(ino, new).is_none(), "number in use");
                model.put(d, n, ino);
            }
        }
        Op::Link(i, d, n) => {
            let files: Vec<_> =
                model.inodes.keys().copied().filter(|i| !model.is_dir(*i)).collect();
            if files.is_empty() {
                return;
            }
            let (ino, d, n) = (files[i % files.len()], dir(d), name(n));
            let linked = link(node, ino, d, n.as_bytes());
            assert_eq!(linked.is_err(), model.get(d, &n).is_some());
            if linked.is_ok() {
                model.inodes.get_mut(&ino).unwrap().links += 1;
                model.put(d, n, ino);
            }
        }
        Op::Unlink(d, n) | Op::Rmdir(d, n) => {
            let (d, n, rm) = (dir(d), name(n), matches!(op, Op::Rmdir(..)));
            let may = model
                .get(d, &n)
                .is_some_and(|i| model.is_dir(i) == rm && (!rm || model.is_empty(i)));
            let done =
                if rm { rmdir(node, d, n.as_bytes()) } else { unlink(node, d, n.as_bytes()) };
            assert_eq!(done.is_ok(), may, "{op:?} {done:?}");
            if may {
                model.drop_name(d, &n);
            }
        }
        Op::Rename(d1, n1, d2, n2, flags) => {
            let (d1, n1, d2, n2) = (dir(d1), name(n1), dir(d2), name(n2));
            let may = model.may_rename((d1, &n1), (d2, &n2), flags);
            let done = rename(node, d1, n1.as_bytes(), d2, n2.as_bytes(), flags);
            assert_eq!(done.is_ok(), may, "{op:?} {done:?}");
            if may {
                model.rename((d1, &n1), (d2, &n2), flags);
            }
        }
        Op::Open(d, n) => {
            if let Ok(attr) = lookup(node, dir(d), name(n).as_bytes()) {
                open_files.push(open(node, attr.ino));
            }
        }
        Op::CloseOldest => {
            if !open_files.is_empty() {
                close(node, open_files.remove(0));
            }
        }
        Op::Commit => node.meta.commit().unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn behaves_like_the_model(ops in prop::collection::vec(op(), 1..250)) {
        let pool = pool();
        let node = mount(&pool, 0);
        let root = node.volume.root();
        let top = Inode { entries: Some(BTreeMap::new()), parent: root, links: 2 };
        let mut model = Model { inodes: BTreeMap::from([(root, top)]), root };
        let mut open_files = Vec::new();
        let before = node.alloc.totals();
        for op in &ops {
            step(&node, &mut model, &mut open_files, op);
        }
        same(&node, &model);
        for fh in open_files {
            close(&node, fh);
        }
        prop_assert_eq!(orphan::reap(&node).unwrap(), 0);
        let live: BTreeSet<_> = model.inodes.keys().collect();
        prop_assert_eq!(node.alloc.totals().inodes - before.inodes, live.len() as u64 - 1);
        node.unmount();
        // Another node reads it from the devices.
        let node = mount(&pool, 1);
        same(&node, &model);
        node.unmount_clean();
    }
}
