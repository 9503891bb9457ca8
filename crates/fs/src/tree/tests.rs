use std::collections::BTreeSet;

use proptest::prelude::*;

use super::memory::Memory;
use super::*;

const BODY: usize = size_of::<RawNode>() + 3 * ENTRY;
const TAIL: usize = 2 * ENTRY;
const LEAF_KEYS: usize = 3;

fn put_keys(body: &mut [u8], keys: &[u64]) {
    body[44..48].copy_from_slice(&u32::try_from(keys.len()).unwrap().to_le_bytes());
    for (i, k) in keys.iter().enumerate() {
        body[48 + 8 * i..56 + 8 * i].copy_from_slice(&k.to_le_bytes());
    }
}

impl Memory {
    fn new() -> Self {
        let mut m = Self::sized(BODY, TAIL);
        let leaf = m.leaf(&[]);
        root_one_child(&mut m, leaf).unwrap();
        m
    }
    fn leaf(&mut self, keys: &[u64]) -> BlockNo {
        self.create(MetaKind::ExtentLeaf, &mut |b| put_keys(b, keys)).unwrap()
    }
    fn keys(&mut self, leaf: BlockNo) -> Vec<u64> {
        let body = self.read(leaf, MetaKind::ExtentLeaf).unwrap();
        let n = u32::from_le_bytes(body[44..48].try_into().unwrap()) as usize;
        body[48..48 + 8 * n].chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }
    fn set_keys(&mut self, leaf: BlockNo, keys: &[u64]) {
        self.modify(leaf, MetaKind::ExtentLeaf, &mut |b| put_keys(b, keys)).unwrap();
    }
    fn insert(&mut self, key: u64) {
        if self.root.0 == 0 {
            let leaf = self.leaf(&[]);
            root_one_child(self, leaf).unwrap();
        }
        let path = descend(self, key).unwrap();
        assert!(path.low <= key && path.next.is_none_or(|n| key < n));
        let mut keys = self.keys(path.leaf);
        let Err(at) = keys.binary_search(&key) else { return };
        keys.insert(at, key);
        if keys.len() <= LEAF_KEYS {
            return self.set_keys(path.leaf, &keys);
        }
        let right = keys.split_off(2);
        self.set_keys(path.leaf, &keys);
        let before = self.nodes.len();
        let height = self.root.0;
        let new = self.leaf(&right);
        insert_after(self, path, right[0], new).unwrap();
        assert!((self.nodes.len() - before) as u64 <= slots_for_insert(height));
    }
    fn remove(&mut self, key: u64) {
        if self.root.0 == 0 {
            return;
        }
        let path = descend(self, key).unwrap();
        let mut keys = self.keys(path.leaf);
        let Ok(at) = keys.binary_search(&key) else { return };
        keys.remove(at);
        if keys.is_empty() {
            let (before, height) = (self.nodes.len(), self.root.0);
            let only = is_only_leaf(&path);
            remove_leaf(self, path).unwrap();
            assert_eq!(only, self.root.0 == 0);
            assert!((before - self.nodes.len()) as u64 <= frees_for_remove(height));
        } else {
            self.set_keys(path.leaf, &keys);
        }
    }
    fn all(&mut self) -> Vec<u64> {
        let mut out = Vec::new();
        let (mut at, mut leaves) = (Some(0), 0);
        while self.root.0 > 0
            && let Some(key) = at
        {
            let path = descend(self, key).unwrap();
            let keys = self.keys(path.leaf);
            assert!(
                keys.iter().all(|&k| path.low <= k && path.next.is_none_or(|n| k < n)),
                "{keys:?} {path:?}"
            );
            out.extend(keys);
            at = path.next;
            leaves += 1;
        }
        assert_eq!(
            leaves,
            self.nodes.values().filter(|n| n.0 == MetaKind::ExtentLeaf).count(),
            "every leaf is reachable once"
        );
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn behaves_as_a_sorted_set(ops in prop::collection::vec((any::<bool>(), 0..200_u64), 1..400)) {
        let mut tree = Memory::new();
        let mut model = BTreeSet::from([0]);
        // A tree that never held a key still has its first leaf.
        tree.insert(0);
        for (i, (add, key)) in ops.iter().enumerate() {
            // Long runs of one kind make the tree grow tall and shrink again.
            if (*add) ^ ((i / 100) % 2 == 1 && i % 3 != 0) {
                tree.insert(*key);
                model.insert(*key);
            } else {
                tree.remove(*key);
                model.remove(key);
            }
        }
        prop_assert_eq!(tree.all(), model.iter().copied().collect::<Vec<_>>());
        for key in 0..200 {
            tree.remove(key);
        }
        prop_assert_eq!(tree.root.0, 0);
        prop_assert!(tree.nodes.is_empty(), "all nodes were freed");
    }

    #[test]
    fn garbage_is_an_error_and_ends(
        bytes in prop::collection::vec(any::<(u8, u16, u8)>(), 1..12),
        keys in prop::collection::vec(any::<u64>(), 1..8),
    ) {
        let mut tree = Memory::new();
        for key in 0..60 {
            tree.insert(key * 7 % 60 * 1_000_000_007);
        }
        let blocks: Vec<BlockNo> = tree.nodes.keys().copied().collect();
        for (which, at, value) in bytes {
            let block = blocks[usize::from(which) % blocks.len()];
            let (kind, body) = tree.nodes.get_mut(&block).unwrap();
            if *kind == MetaKind::Index {
                let at = MetaHeader::LEN + usize::from(at) % (BODY - MetaHeader::LEN);
                body[at] ^= value;
            }
        }
        for key in keys {
            let _ = descend(&mut tree, key);
        }
        // A walk over all leaves ends, whatever the nodes say.
        let mut at = Some(0);
        while let Some(key) = at {
            let Ok(path) = descend(&mut tree, key) else { break };
            prop_assert!(path.next.is_none_or(|n| n > key));
            at = path.next;
        }
    }
}

#[test]
fn ascending_keys_fill_their_nodes() {
    let mut tree = Memory::new();
    for key in 0..1_000 {
        tree.insert(key);
    }
    assert_eq!(tree.all(), (0..1_000).collect::<Vec<_>>());
    let leaves = tree.nodes.values().filter(|n| n.0 == MetaKind::ExtentLeaf).count();
    let index = tree.nodes.len() - leaves;
    // Three entries a node: half the leaves below the level above them, and so on.
    assert!(index <= leaves * 6 / 10, "{index} index nodes for {leaves} leaves");
}

#[test]
fn hostile_roots_are_named() {
    let mut tree = Memory::new();
    tree.insert(5);
    let good = tree.root.clone();
    for (height, count) in [(0, 1), (HEIGHT_MAX + 1, 1), (u16::MAX, 1), (1, 0), (1, 3), (2, 1)] {
        tree.root = (height, count, good.2.clone());
        match descend(&mut tree, 5) {
            Err(Error::Inconsistent { .. }) => {}
            other => panic!("height {height}, count {count}: {other:?}"),
        }
    }
    // A node that names itself, and one whose level does not go down.
    let this = tree.create(MetaKind::Index, &mut |_| {}).unwrap();
    tree.modify(this, MetaKind::Index, &mut |b| fill_node(b, 1, &[entry(0, this)])).unwrap();
    tree.root = (2, 1, entry(0, this).as_bytes().to_vec());
    assert!(
        matches!(descend(&mut tree, 0), Err(Error::Inconsistent { block, .. }) if block == this)
    );
    let other = tree.create(MetaKind::Index, &mut |b| fill_node(b, 2, &[entry(0, this)])).unwrap();
    tree.modify(this, MetaKind::Index, &mut |b| fill_node(b, 2, &[entry(0, other)])).unwrap();
    tree.root = (3, 1, entry(0, this).as_bytes().to_vec());
    assert!(
        matches!(descend(&mut tree, 0), Err(Error::Inconsistent { block, .. }) if block == other)
    );
}
