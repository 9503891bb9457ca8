use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use braid_pool::device::AlignedBuf;
use proptest::prelude::*;

use super::*;
use crate::tree::Root;

/// A directory's nodes in memory.
struct Memory {
    body_len: usize,
    tail_len: usize,
    height: u16,
    count: u16,
    root: Body,
    nodes: HashMap<u64, (MetaKind, Body)>,
    next: u64,
}

const TAIL_AT: usize = 256;

impl Memory {
    fn new(body_len: usize) -> Self {
        Self {
            body_len,
            tail_len: body_len - TAIL_AT,
            height: 0,
            count: 0,
            root: Arc::new(AlignedBuf::zeroed(body_len)),
            nodes: HashMap::new(),
            next: 100,
        }
    }
}

impl Nodes for Memory {
    fn root(&mut self) -> Result<(Root, Body)> {
        let root = Root {
            block: BlockNo(1),
            height: self.height,
            count: self.count,
            tail_at: TAIL_AT,
            capacity: self.tail_len,
        };
        Ok((root, self.root.clone()))
    }
    fn read(&mut self, block: BlockNo, kind: MetaKind) -> Result<Body> {
        let (found, body) = self.nodes.get(&block.0).expect("node exists");
        assert_eq!(*found, kind);
        Ok(body.clone())
    }
}

impl NodesMut for Memory {
    fn body_len(&self) -> usize {
        self.body_len
    }
    fn modify(
        &mut self,
        block: BlockNo,
        kind: MetaKind,
        f: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let (found, body) = self.nodes.get_mut(&block.0).expect("node exists");
        assert_eq!(*found, kind);
        let body: &mut AlignedBuf = Arc::make_mut(body);
        f(body);
        Ok(())
    }
    fn create(&mut self, kind: MetaKind, f: &mut dyn FnMut(&mut [u8])) -> Result<BlockNo> {
        let mut body = AlignedBuf::zeroed(self.body_len);
        f(&mut body);
        self.next += 1;
        self.nodes.insert(self.next, (kind, Arc::new(body)));
        Ok(BlockNo(self.next))
    }
    fn free(&mut self, block: BlockNo) -> Result<()> {
        assert!(self.nodes.remove(&block.0).is_some(), "freed twice");
        Ok(())
    }
    fn set_tail(&mut self, height: u16, count: u16, contents: &[u8]) -> Result<()> {
        assert!(contents.len() <= self.tail_len);
        (self.height, self.count) = (height, count);
        let root: &mut AlignedBuf = Arc::make_mut(&mut self.root);
        let tail = &mut root[TAIL_AT..][..self.tail_len];
        tail.fill(0);
        tail[..contents.len()].copy_from_slice(contents);
        Ok(())
    }
}

fn add(dir: &mut Memory, hash: u64, name: &[u8], ino: u64) -> bool {
    match probe(dir, hash, name).unwrap() {
        Probe::Found(_) => false,
        Probe::Absent(place) => {
            let before = dir.nodes.len();
            insert(dir, place.cookie, (InodeNo(ino), 8), name).unwrap();
            assert!((dir.nodes.len() - before) as u64 <= place.slots, "more slots than reserved");
            true
        }
    }
}

fn del(dir: &mut Memory, hash: u64, name: &[u8]) -> bool {
    let Some(found) = find(dir, hash, name).unwrap() else { return false };
    let frees = frees_for_remove(dir, found.cookie).unwrap();
    let before = dir.nodes.len();
    remove(dir, found.cookie, frees > 0).unwrap();
    assert!((before - dir.nodes.len()) as u64 <= frees, "more frees than reserved");
    true
}

fn all(dir: &mut Memory) -> Vec<Listed> {
    let mut out = Vec::new();
    assert!(!list_after(dir, DOT_DOT, usize::MAX, &mut out).unwrap());
    out
}

#[test]
fn names() {
    assert!(check_name(b"a").is_ok());
    assert!(check_name(&[b'x'; 255]).is_ok());
    assert!(matches!(check_name(&[b'x'; 256]), Err(Error::NameTooLong)));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert!(matches!(check_name(bad), Err(Error::Invalid(_))), "{bad:?}");
    }
}

#[test]
fn hashes_lie_in_range_and_depend_on_the_seed() {
    for i in 0..1000_u32 {
        let h = hash(7, &i.to_le_bytes());
        assert!(h > DOT_DOT && h + WINDOW <= COOKIE_END);
    }
    assert_ne!(hash(7, b"name"), hash(8, b"name"));
}

#[test]
fn colliding_names_are_found_whatever_was_removed_between_them() {
    let mut dir = Memory::new(1024);
    let names: Vec<Vec<u8>> = (0..WINDOW).map(|i| format!("name{i}").into_bytes()).collect();
    for (i, name) in names.iter().enumerate() {
        assert!(add(&mut dir, 1000, name, i as u64));
        assert!(!add(&mut dir, 1000, name, 999));
    }
    assert!(matches!(probe(&mut dir, 1000, b"one more"), Err(Error::NoSpace)));
    for name in names.iter().step_by(2) {
        assert!(del(&mut dir, 1000, name));
    }
    for (i, name) in names.iter().enumerate() {
        let found = find(&mut dir, 1000, name).unwrap();
        assert_eq!(found.map(|f| f.ino), (i % 2 == 1).then_some(InodeNo(i as u64)));
    }
    // The first gap is used again.
    assert!(add(&mut dir, 1000, b"again", 77));
    assert_eq!(find(&mut dir, 1000, b"again").unwrap().unwrap().cookie, 1000);
}

#[test]
fn fifty_thousand_entries_and_back_to_nothing() {
    let mut dir = Memory::new(3584);
    let name = |i: u64| format!("file-{i:08}").into_bytes();
    for i in 0..50_000 {
        assert!(add(&mut dir, hash(1, &name(i)), &name(i), i));
    }
    assert!(dir.height >= 2, "height {}", dir.height);
    for i in (0..50_000).step_by(37) {
        assert_eq!(find(&mut dir, hash(1, &name(i)), &name(i)).unwrap().unwrap().ino.0, i);
    }
    let listed = all(&mut dir);
    assert_eq!(listed.len(), 50_000);
    assert!(listed.is_sorted_by_key(|l| l.cookie));
    let full = dir.nodes.len();
    for i in 0..45_000 {
        assert!(del(&mut dir, hash(1, &name(i)), &name(i)));
    }
    assert!(dir.nodes.len() < full / 2, "sparse leaves are joined: {} of {full}", dir.nodes.len());
    for i in 45_000..50_000 {
        assert!(del(&mut dir, hash(1, &name(i)), &name(i)));
    }
    assert_eq!((dir.height, dir.count, dir.nodes.len()), (0, 0, 0));
}

#[test]
fn a_garbled_leaf_is_an_error_that_names_it() {
    let mut dir = Memory::new(1024);
    for i in 0..200_u64 {
        add(&mut dir, i * 1_000_003 + 5, format!("n{i}").as_bytes(), i);
    }
    let page = page_of(&mut dir, 1).unwrap();
    let block = page.block;
    dir.modify(block, MetaKind::DirLeaf, &mut |b| b[48..].fill(0x5a)).unwrap();
    let mut out = Vec::new();
    match list_after(&mut dir, DOT_DOT, usize::MAX, &mut out) {
        Err(Error::Inconsistent { block: named, .. }) => assert_eq!(named, block),
        other => panic!("{other:?}"),
    }
}

/// One step of the comparison with the model.
#[derive(Debug, Clone)]
enum Op {
    Add(u16),
    Remove(u16),
    Replace(u16),
    Find(u16),
    /// Reads on from where it last stopped, this many entries.
    Read(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..400_u16).prop_map(Op::Add),
        3 => (0..400_u16).prop_map(Op::Remove),
        1 => (0..400_u16).prop_map(Op::Replace),
        1 => (0..400_u16).prop_map(Op::Find),
        2 => (1..20_u8).prop_map(Op::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a map; names collide often (few hash values), leaves are tiny (deep trees), and a
    /// reader that goes on across all changes sees every lasting entry exactly once.
    #[test]
    fn behaves_like_a_map(ops in prop::collection::vec(op(), 1..600)) {
        let mut dir = Memory::new(640);
        let mut model: BTreeMap<u16, u64> = BTreeMap::new();
        let name = |n: u16| format!("{n}-{}", "x".repeat(usize::from(n) % 23)).into_bytes();
        let h = |n: u16| 3 + u64::from(n % 97) * 7;
        let mut inos = 0;
        let (mut cookie, mut seen, mut lasting) = (DOT_DOT, Vec::new(), Vec::<u16>::new());
        for op in ops {
            inos += 1;
            match op {
                Op::Add(n) => {
                    prop_assert_eq!(add(&mut dir, h(n), &name(n), inos), !model.contains_key(&n));
                    model.entry(n).or_insert(inos);
                }
                Op::Remove(n) => {
                    prop_assert_eq!(del(&mut dir, h(n), &name(n)), model.remove(&n).is_some());
                    lasting.retain(|&l| l != n);
                }
                Op::Replace(n) => {
                    if let Some(found) = find(&mut dir, h(n), &name(n)).unwrap() {
                        replace(&mut dir, found.cookie, InodeNo(inos), 8).unwrap();
                        model.insert(n, inos);
                    }
                }
                Op::Find(n) => {
                    let found = find(&mut dir, h(n), &name(n)).unwrap().map(|f| f.ino.0);
                    prop_assert_eq!(found, model.get(&n).copied());
                }
                Op::Read(n) => {
                    if cookie == DOT_DOT {
                        lasting = model.keys().copied().collect();
                    }
                    let mut out = Vec::new();
                    let more = list_after(&mut dir, cookie, usize::from(n), &mut out).unwrap();
                    seen.extend(out.iter().map(|l| l.name.clone()));
                    if let Some(last) = out.last() {
                        cookie = last.cookie;
                    }
                    if !more {
                        for l in &lasting {
                            let times = seen.iter().filter(|s| ***s == *name(*l)).count();
                            prop_assert_eq!(times, 1, "entry {}", l);
                        }
                        (cookie, seen) = (DOT_DOT, Vec::new());
                    }
                }
            }
            prop_assert_eq!(all(&mut dir).len(), model.len());
        }
        for (n, ino) in &model {
            prop_assert_eq!(find(&mut dir, h(*n), &name(*n)).unwrap().unwrap().ino.0, *ino);
        }
    }
}
