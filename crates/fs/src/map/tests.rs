use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::tree::memory::Memory;

/// Leaves of four extents, a tail of two.
const BODY: usize = size_of::<RawNode>() + 4 * EXTENT;
const TAIL: usize = 2 * EXTENT;
const BOUNDS: Bounds = Bounds { start: 1_000, end: 1 << 40 };

/// File block -> (pool block, unwritten).
type Model = BTreeMap<u64, (u64, bool)>;

fn all(nodes: &mut Memory) -> Vec<Extent> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < LOGICAL_END {
        let part = part(nodes, BOUNDS, at).unwrap();
        assert!(part.low <= at && at < part.high);
        if nodes.root.0 > 0 {
            assert!(!part.extents.is_empty(), "leaves are never empty");
        }
        out.extend(part.extents);
        at = part.high;
    }
    out
}

fn flat(extents: &[Extent]) -> Model {
    extents
        .iter()
        .flat_map(|e| (0..e.len).map(move |i| (e.logical + i, (e.physical.get() + i, e.unwritten))))
        .collect()
}

fn extent(logical: u64, physical: u64, len: u64, unwritten: bool) -> Extent {
    Extent { logical, physical: BlockNo(physical), len, unwritten, shared: false }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn splice_behaves_as_a_map_of_blocks(
        ops in prop::collection::vec((0..120_u64, 1..20_u64, 0..4_u8, 0..1_000_u64), 1..150)
    ) {
        let mut nodes = Memory::sized(BODY, TAIL);
        let mut model = Model::new();
        for (at, len, what, place) in ops {
            let range = at..at + len;
            let new = match what {
                0 => vec![],
                // In step with the file, so that neighbours merge.
                1 => vec![extent(at, 10_000 + at, len, false)],
                2 => vec![extent(at, 20_000 + at, len, true)],
                _ => vec![extent(at + len / 2, 30_000 + place, len - len / 2, false)],
            };
            let (root, _) = nodes.root().unwrap();
            let before = nodes.nodes.len();
            let bound = slots_bound(&root, BODY, Load { blocks: len, places: len });
            let removed = splice(&mut nodes, BOUNDS, range.clone(), &new).unwrap();
            prop_assert!((nodes.nodes.len().saturating_sub(before)) as u64 <= bound);
            let mut gone = Model::new();
            for block in range {
                if let Some(old) = model.remove(&block) {
                    gone.insert(block, old);
                }
            }
            prop_assert_eq!(flat(&removed), gone);
            model.extend(flat(&new));
            prop_assert_eq!(flat(&all(&mut nodes)), model.clone());
        }
        splice(&mut nodes, BOUNDS, 0..LOGICAL_END, &[]).unwrap();
        prop_assert!(nodes.nodes.is_empty() && nodes.root.0 == 0 && nodes.root.1 == 0);
    }

    #[test]
    fn garbage_is_an_error(at in 0..TAIL, value: u8, count in 0..5_u16, key: u64) {
        let mut nodes = Memory::sized(BODY, TAIL);
        let two = [extent(3, 5_000, 4, false), extent(10, 6_000, 1, true)];
        splice(&mut nodes, BOUNDS, 0..20, &two).unwrap();
        nodes.root.2[at] = value;
        nodes.root.1 = count;
        match part(&mut nodes, BOUNDS, key) {
            Ok(part) => {
                let mut end = 0;
                for e in part.extents {
                    prop_assert!(e.logical >= end && e.len > 0);
                    prop_assert!(e.physical.get() >= BOUNDS.start);
                    prop_assert!(e.physical.get() + e.len <= BOUNDS.end);
                    end = e.end();
                }
            }
            Err(Error::Inconsistent { .. }) => {}
            Err(e) => prop_assert!(false, "{e}"),
        }
    }
}

#[test]
fn twenty_thousand_alternate_blocks_and_back() {
    let mut nodes = Memory::sized(3_584, 3_328);
    for i in 0..20_000 {
        splice(&mut nodes, BOUNDS, i * 2..i * 2 + 1, &[extent(i * 2, 5_000 + i * 3, 1, false)])
            .unwrap();
    }
    let leaves = nodes.count(MetaKind::ExtentLeaf);
    assert_eq!(leaves, 20_000_usize.div_ceil(leaf_capacity(3_584)), "appending fills leaves");
    assert_eq!(all(&mut nodes).len(), 20_000);
    let removed = splice(&mut nodes, BOUNDS, 100..LOGICAL_END, &[]).unwrap();
    assert_eq!(removed.len(), 20_000 - 50);
    assert!(nodes.nodes.is_empty(), "fifty extents fit in the tail again");
    assert_eq!(all(&mut nodes).len(), 50);
}

#[test]
fn appended_runs_are_one_extent() {
    let mut nodes = Memory::sized(BODY, TAIL);
    for i in 0..100 {
        splice(&mut nodes, BOUNDS, i * 7..i * 7 + 7, &[extent(i * 7, 5_000 + i * 7, 7, false)])
            .unwrap();
    }
    assert_eq!(all(&mut nodes), [extent(0, 5_000, 700, false)]);
}
