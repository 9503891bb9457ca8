use std::collections::HashMap;

use braid_format::Epoch;
use braid_format::label::properties::Properties;
use braid_format::label::{
    Child, DeviceClass, Member, MemberState, Segment, SubpoolKind, TreeNode,
};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const K4: u64 = 4096;

fn stripe(lens: &[u64], unit: u64) -> Map {
    let members: Vec<_> = lens.iter().map(|l| (Label::DATA_AT, Bytes(*l))).collect();
    Map::stripe(&members, StripeUnit::new(Bytes(unit)).unwrap())
}

/// The reference: deals units one by one as the rule in the format says, knows nothing of zones.
fn dealt(lens: &[u64], weights: &[u64], unit: u64) -> Vec<(u16, u64)> {
    let rows: Vec<u64> = lens.iter().zip(weights).map(|(l, w)| l / (unit * w)).collect();
    let mut out = Vec::new();
    for row in 0..rows.iter().copied().max().unwrap_or(0) {
        for round in 0..weights.iter().copied().max().unwrap_or(0) {
            for (m, w) in (0_u16..).zip(weights) {
                if round < *w && row < rows[usize::from(m)] {
                    out.push((m, Label::DATA_AT.0 + (row * w + round) * unit));
                }
            }
        }
    }
    out
}

/// A label of one stripe over whole members, weights and all.
fn label(lens: &[u64], weights: &[u64], unit: u64) -> Label {
    let members = (0_u8..).zip(lens).map(|(i, len)| Member {
        uuid: Uuid::from_bytes([i; 16]),
        data_start: Label::DATA_AT,
        data_len: Bytes(*len),
        device_size: Bytes(len + (2 << 20)),
        state: MemberState::Active,
        state_epoch: Epoch(1),
        suspected: false,
        offline: false,
        class: DeviceClass::Unknown,
        bytes_per_second: Bytes(0),
        bus: 0,
        successor: None,
        path: String::new(),
        serial: String::new(),
    });
    let mut nodes: Vec<TreeNode> = (0_u16..).zip(lens).map(|(m, len)| slice(m, 0, *len)).collect();
    let len = lens.iter().zip(weights).map(|(l, w)| l / (unit * w) * unit * w).sum();
    let children =
        (0_u16..).zip(weights).map(|(node, w)| Child { node, weight: u16::try_from(*w).unwrap() });
    let kind = NodeKind::Stripe { unit: Bytes(unit), children: children.collect() };
    nodes.push(TreeNode { len: Bytes(len), kind });
    Label {
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
        stripe_unit: Bytes(unit),
        created: 0,
        changed: 0,
        members: members.collect(),
        segments: vec![Segment {
            start: ByteOffset(0),
            len: Bytes(len),
            node: u16::try_from(nodes.len() - 1).unwrap(),
            node_start: ByteOffset(0),
            subpool: SubpoolKind::General,
        }],
        properties: Properties::new(),
        nodes,
    }
}

fn slice(member: u16, start: u64, len: u64) -> TreeNode {
    let kind = NodeKind::Slice { member: MemberIndex(member), start: ByteOffset(start) };
    TreeNode { len: Bytes(len), kind }
}

fn member(piece: &Piece) -> MemberIndex {
    let Place::Member(member) = piece.place else { panic!("on a group: {piece:?}") };
    member
}

/// Cuts pieces into single units of `grain` bytes.
fn places(map: &Map, at: u64, len: u64, grain: u64) -> Vec<(u16, u64)> {
    map.pieces(ByteOffset(at), Bytes(len))
        .flat_map(|p| (0..p.len.0 / grain).map(move |i| (member(&p).0, p.at.0 + i * grain)))
        .collect()
}

#[test]
fn drawing_in_the_module_is_true() {
    let map = stripe(&[3 * K4, 5 * K4, 5 * K4], K4);
    let zones: Vec<_> = map.zones().iter().map(|z| (z.start.0 / K4, z.members.len())).collect();
    assert_eq!(zones, [(0, 3), (9, 2)]);
    let base = Label::DATA_AT.0;
    assert_eq!(
        places(&map, 8 * K4, 5 * K4, K4),
        [
            (2, base + 2 * K4),
            (1, base + 3 * K4),
            (2, base + 3 * K4),
            (1, base + 4 * K4),
            (2, base + 4 * K4)
        ]
    );
}

#[test]
fn one_member_is_one_piece() {
    let map = stripe(&[1 << 30], 256 << 10);
    let pieces: Vec<_> = map.pieces(ByteOffset(12345 * 512), Bytes(100 << 20)).collect();
    assert_eq!(
        pieces,
        [Piece {
            place: Place::Member(MemberIndex(0)),
            at: ByteOffset((1 << 20) + 12345 * 512),
            len: Bytes(100 << 20)
        }]
    );
}

#[test]
fn a_mebibyte_on_four_members_is_four_pieces() {
    let map = stripe(&[1 << 30; 4], 256 << 10);
    let pieces: Vec<_> = map.pieces(ByteOffset(8 << 20), Bytes(1 << 20)).collect();
    assert_eq!(pieces.len(), 4);
    assert!(pieces.iter().all(|p| p.at.0 == (3 << 20) && p.len.0 == 256 << 10));
}

#[test]
fn nothing_lies_past_the_end() {
    let map = stripe(&[1 << 20, 2 << 20], 64 << 10);
    assert_eq!(map.size(), Bytes(3 << 20));
    let sum = |at: u64, len| map.pieces(ByteOffset(at), Bytes(len)).map(|p| p.len.0).sum::<u64>();
    assert_eq!(sum((3 << 20) - 4096, 8192), 4096);
    assert_eq!(sum(3 << 20, 4096), 0);
    assert_eq!(sum(u64::MAX - 5, u64::MAX), 0);
    assert_eq!(map.inverse(MemberIndex(0), ByteOffset(2 << 20)), None);
    assert_eq!(map.inverse(MemberIndex(0), ByteOffset(0)), None);
    assert_eq!(map.inverse(MemberIndex(9), ByteOffset(1 << 20)), None);
}

#[test]
fn concats_and_slices_of_members() {
    // Concat of (a stripe over the first halves) and (the rest of member 1), shown in segments
    // that cut both.
    let mut l = label(&[64 * K4, 64 * K4], &[1, 1], K4);
    l.nodes = vec![slice(0, 0, 32 * K4), slice(1, 0, 32 * K4), slice(1, 40 * K4, 20 * K4)];
    let child = |node| Child { node, weight: 1 };
    let kind = NodeKind::Stripe { unit: Bytes(K4), children: vec![child(0), child(1)] };
    l.nodes.push(TreeNode { len: Bytes(64 * K4), kind });
    let kind = NodeKind::Concat { children: vec![child(3), child(2)] };
    l.nodes.push(TreeNode { len: Bytes(84 * K4), kind });
    let segment = |start, len, node_start| Segment {
        start: ByteOffset(start),
        len: Bytes(len),
        node: 4,
        node_start: ByteOffset(node_start),
        subpool: SubpoolKind::General,
    };
    l.segments = vec![segment(0, 74 * K4, 10 * K4), segment(74 * K4, 10 * K4, 0)];
    l.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).unwrap();
    let map = Map::new(&l).unwrap();
    let base = Label::DATA_AT.0;
    assert_eq!(map.size(), Bytes(84 * K4));
    assert_eq!(places(&map, 0, 2 * K4, K4), [(0, base + 5 * K4), (1, base + 5 * K4)]);
    assert_eq!(places(&map, 53 * K4, 2 * K4, K4), [(1, base + 31 * K4), (1, base + 40 * K4)]);
    assert_eq!(places(&map, 73 * K4, 2 * K4, K4), [(1, base + 59 * K4), (0, base)]);
    bijection(&map, K4).unwrap();
}

#[test]
fn stripe_of_concats() {
    let mut l = label(&[64 * K4, 16 * K4, 16 * K4], &[1, 1, 1], K4);
    let child = |node| Child { node, weight: 1 };
    l.nodes = vec![slice(0, 0, 32 * K4), slice(1, 0, 16 * K4), slice(2, 0, 8 * K4)];
    l.nodes.push(slice(0, 48 * K4, 8 * K4));
    let kind = NodeKind::Concat { children: vec![child(1), child(2), child(3)] };
    l.nodes.push(TreeNode { len: Bytes(32 * K4), kind });
    let kind = NodeKind::Stripe { unit: Bytes(K4), children: vec![child(0), child(4)] };
    l.nodes.push(TreeNode { len: Bytes(64 * K4), kind });
    l.segments[0] = Segment { node: 5, len: Bytes(64 * K4), ..l.segments[0] };
    l.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).unwrap();
    let map = Map::new(&l).unwrap();
    let base = Label::DATA_AT.0;
    assert_eq!(places(&map, 32 * K4, 2 * K4, K4), [(0, base + 16 * K4), (2, base)]);
    assert_eq!(places(&map, 48 * K4, 2 * K4, K4), [(0, base + 24 * K4), (0, base + 48 * K4)]);
    assert_eq!(map.zones().len(), 3, "one for each part of the concat");
    bijection(&map, K4).unwrap();
}

#[test]
fn slices_that_follow_each_other_on_a_member_are_one_zone() {
    let mut l = label(&[64 * K4, 64 * K4], &[1, 1], K4);
    l.nodes = [(0, 0), (1, 4), (1, 12), (1, 30)].map(|(m, at)| slice(m, at * K4, 8 * K4)).to_vec();
    let children = (0..4).map(|node| Child { node, weight: 1 }).collect();
    l.nodes.push(TreeNode { len: Bytes(32 * K4), kind: NodeKind::Concat { children } });
    let mut shown = |from: u64, len: u64| {
        let (node_start, len) = (ByteOffset(from * K4), Bytes(len * K4));
        l.segments[0] = Segment { node: 4, node_start, len, ..l.segments[0] };
        Map::new(&l).unwrap()
    };
    let zones = |map: &Map| {
        let runs = map.zones().into_iter().map(|z| (z.start.0 / K4, z.len.0 / K4));
        runs.collect::<Vec<_>>()
    };
    let map = shown(0, 32);
    assert_eq!(zones(&map), [(0, 8), (8, 16), (24, 8)]);
    bijection(&map, K4).unwrap();
    // From inside the second slice.
    let map = shown(10, 22);
    let base = Label::DATA_AT.0;
    assert_eq!(zones(&map), [(0, 14), (14, 8)]);
    assert_eq!(places(&map, 0, K4, K4), [(1, base + 6 * K4)]);
    bijection(&map, K4).unwrap();
}

#[test]
fn what_a_segment_cuts_off_the_last_row_has_no_address() {
    let mut l = label(&[8 * K4, 8 * K4], &[1, 1], K4);
    l.segments[0].len = Bytes(15 * K4);
    let map = Map::new(&l).unwrap();
    let last = ByteOffset(Label::DATA_AT.0 + 7 * K4);
    assert_eq!(map.inverse(MemberIndex(0), last), Some(ByteOffset(14 * K4)));
    assert_eq!(map.inverse(MemberIndex(1), last), None);
}

#[test]
fn what_this_version_does_not_serve_is_refused() {
    let mut l = label(&[64 * K4, 64 * K4], &[1, 1], K4);
    l.reshaping = true;
    assert!(matches!(Map::new(&l), Err(MapError::Unsupported { .. })));
    l.reshaping = false;
    l.nodes[2].kind = NodeKind::Mirror {
        children: vec![Child { node: 0, weight: 1 }, Child { node: 1, weight: 1 }],
    };
    assert!(Map::new(&l).is_ok(), "a mirror of slices");
    let NodeKind::Mirror { children } = &l.nodes[2].kind else { panic!() };
    l.nodes[1].kind = NodeKind::Concat { children: vec![children[0]] };
    assert!(matches!(Map::new(&l), Err(MapError::Unsupported { .. })), "a mirror of concats");
}

/// A stripe in units of two blocks over a parity group on members 0 to 2 and a mirror on 3 and 4, which
/// is longer: 40 + 60 blocks. Behind it a hole of 10 blocks, with one group, and 8 plain blocks of member 3.
fn mixed_label() -> Label {
    let mut l = label(&[64 * K4; 5], &[1; 5], K4);
    let children = |nodes: &[u16]| {
        nodes.iter().map(|node| Child { node: *node, weight: 1 }).collect::<Vec<_>>()
    };
    let parity = NodeKind::Parity {
        unit: Bytes(K4),
        parity: 1,
        code: Label::CODE,
        children: children(&[0, 1, 2]),
    };
    let stripe = NodeKind::Stripe { unit: Bytes(2 * K4), children: children(&[5, 6]) };
    l.nodes = vec![
        slice(0, 0, 20 * K4),
        slice(1, 4 * K4, 20 * K4),
        slice(2, 0, 20 * K4),
        slice(3, 0, 60 * K4),
        slice(4, 2 * K4, 60 * K4),
        TreeNode { len: Bytes(40 * K4), kind: parity },
        TreeNode { len: Bytes(60 * K4), kind: NodeKind::Mirror { children: children(&[3, 4]) } },
        TreeNode { len: Bytes(100 * K4), kind: stripe },
        slice(3, 60 * K4, 4 * K4),
    ];
    let segment = |start: u64, len: u64, node, subpool| Segment {
        start: ByteOffset(start * K4),
        len: Bytes(len * K4),
        node,
        node_start: ByteOffset(0),
        subpool,
    };
    l.segments = vec![
        segment(0, 100, 7, SubpoolKind::General),
        segment(100, 10, 1, SubpoolKind::Hole),
        segment(110, 4, 8, SubpoolKind::General),
    ];
    l
}

fn mixed() -> Map {
    Map::new(&mixed_label()).unwrap()
}

#[test]
fn zones_say_where_they_are_and_what_to_align_to() {
    let found: Vec<_> = mixed()
        .zones()
        .iter()
        .map(|z| {
            let members: Vec<u16> = z.members.iter().map(|m| m.0).collect();
            let blocks = [z.start.0, z.len.0, z.unit.0, z.row.0, z.width.0].map(|n| n / K4);
            (blocks, members)
        })
        .collect();
    // Both groups, the rest of the mirror, the plain blocks.
    assert_eq!(
        found,
        [
            ([0, 80, 2, 4, 4], vec![0, 1, 2, 3, 4]),
            ([80, 20, 20, 20, 0], vec![3, 4]),
            ([110, 4, 4, 4, 0], vec![3]),
        ]
    );
    let map = mixed();
    assert_eq!(map.bare_members(), [MemberIndex(3)]);
    assert_eq!(map.members(), [3, 0, 1, 2, 4].map(MemberIndex));
}

#[test]
fn where_all_stands_on_parity_whole_rows_of_one_group_are_aligned_to() {
    let mut l = label(&[64 * K4; 3], &[1; 3], K4);
    let children = |first: u16| (first..first + 3).map(|node| Child { node, weight: 1 }).collect();
    let parity = |first| {
        let kind = NodeKind::Parity {
            unit: Bytes(K4),
            parity: 1,
            code: Label::CODE,
            children: children(first),
        };
        TreeNode { len: Bytes(40 * K4), kind }
    };
    l.nodes =
        [0, 20].iter().flat_map(|at| (0..3).map(move |m| slice(m, at * K4, 20 * K4))).collect();
    l.nodes.extend([parity(0), parity(3)]);
    let both = [6, 7].map(|node| Child { node, weight: 1 }).to_vec();
    let stripe = NodeKind::Stripe { unit: Bytes(8 * K4), children: both };
    l.nodes.push(TreeNode { len: Bytes(80 * K4), kind: stripe });
    let mut width = |node, len: u64| {
        l.segments[0] = Segment { node, len: Bytes(len * K4), ..l.segments[0] };
        Map::new(&l).unwrap().zones().iter().map(|z| z.width.0 / K4).collect::<Vec<_>>()
    };
    assert_eq!(width(8, 80), [8], "a unit of the stripe: four rows");
    assert_eq!(width(6, 40), [2], "a row of the group");
}

#[test]
fn a_hole_has_no_places_and_keeps_the_numbers_of_its_groups() {
    let map = mixed();
    assert_eq!((map.size(), map.groups().len()), (Bytes(114 * K4), 3));
    let holed = |at: u64, len: u64| map.is_holed(ByteOffset(at), Bytes(len));
    assert!(!holed(99 * K4, K4) && holed(99 * K4, K4 + 1) && holed(105 * K4, 1));
    assert!(holed(110 * K4 - 1, 1) && !holed(110 * K4, 4 * K4) && holed(0, 114 * K4));
    let solid = |from: u64, to: u64| {
        let runs = map.solid(from * K4, to * K4);
        runs.iter().map(|(a, b)| (a / K4, b / K4)).collect::<Vec<_>>()
    };
    assert_eq!(solid(0, 114), [(0, 100), (110, 114)]);
    assert_eq!(solid(10, 90), [(10, 90)]);
    assert_eq!(solid(90, 100), [(90, 100)]);
    assert_eq!(solid(90, 105), [(90, 100)]);
    assert_eq!(solid(100, 110), []);
    assert_eq!(solid(105, 112), [(110, 112)]);
    assert_eq!(solid(110, 112), [(110, 112)]);
    let lens = |at: u64, len| {
        map.pieces(ByteOffset(at * K4), Bytes(len * K4)).map(|p| p.len.0 / K4).sum::<u64>()
    };
    assert_eq!((lens(95, 10), lens(100, 10), lens(105, 9)), (5, 0, 4));
    assert_eq!(map.locate(ByteOffset(105 * K4)), None);
}

#[test]
fn the_place_of_every_byte_on_groups_is_found_both_ways() {
    let map = mixed();
    for i in (0..100).chain(110..114) {
        let at = ByteOffset(i * K4 + 7);
        let (member, place) = map.locate(at).unwrap();
        assert_eq!(map.inverse(member, place), Some(at), "block {i}");
    }
    assert_eq!(map.locate(ByteOffset(110 * K4)), {
        Some((MemberIndex(3), ByteOffset(Label::DATA_AT.0 + 60 * K4)))
    });
    // Parity has no address: of 20 rows each has one block of it.
    let has = |block: &u64| {
        let at = |m, slice: u64| {
            map.inverse(MemberIndex(m), ByteOffset(Label::DATA_AT.0 + (slice + block) * K4))
        };
        [at(0, 0), at(1, 4), at(2, 0)].iter().flatten().count() == 2
    };
    assert_eq!((0..20).filter(has).count(), 20);
}

#[test]
fn the_bytes_of_a_group_are_found_in_the_pool() {
    let map = mixed();
    for group in 0..2 {
        // What stands where, by asking for each block of the pool.
        let place = |i: &u64| {
            let piece = map.pieces(ByteOffset(i * K4), Bytes(K4)).next().unwrap();
            (piece.place == Place::Group(group)).then_some((i * K4, piece.at.0))
        };
        let blocks: Vec<(u64, u64)> = (0..100).filter_map(|i| place(&i)).collect();
        for (from, to) in [(0, 60), (1, 2), (3, 8), (39, 45), (40, 60), (0, 0), (70, 90)] {
            let (from, to) = (from * K4, to * K4);
            let mut found: Vec<(u64, u64)> = map
                .runs_on(group, from, to)
                .iter()
                .flat_map(|(logical, a, b)| {
                    (0..(b - a) / K4).map(move |n| (logical + n * K4, a + n * K4))
                })
                .collect();
            found.sort_unstable();
            let expected: Vec<_> =
                blocks.iter().copied().filter(|(_, at)| (from..to).contains(at)).collect();
            assert_eq!(found, expected, "group {group}, {from}..{to}");
        }
        assert_eq!(map.runs_on(group, 5, 6).len(), 1, "bytes as well as blocks");
        assert_eq!(map.runs_on(group, 5, 5), [], "no byte, no run");
    }
}

#[test]
fn a_run_on_a_group_ends_where_its_segment_ends() {
    let mut l = mixed_label();
    l.segments.truncate(1);
    // Twenty units of the parity group, and of the mirror all but the last block of the last.
    l.segments[0].len = Bytes(79 * K4);
    let map = Map::new(&l).unwrap();
    let blocks = |group| {
        let runs = map.runs_on(group, 0, 60 * K4);
        runs.iter().map(|(_, a, b)| b - a).sum::<u64>() / K4
    };
    assert_eq!([0, 1].map(blocks), [40, 39]);
}

/// Every grain of the logical space has one place, no two the same, and `inverse` finds it.
fn bijection(map: &Map, grain: u64) -> Result<(), TestCaseError> {
    let mut seen = HashMap::new();
    for i in 0..map.size().0 / grain {
        let at = ByteOffset(i * grain);
        let pieces: Vec<_> = map.pieces(at, Bytes(grain)).collect();
        prop_assert_eq!(pieces.len(), 1);
        let p = pieces[0];
        prop_assert_eq!(p.len, Bytes(grain));
        prop_assert_eq!(seen.insert((p.place, p.at), at), None, "two addresses of one place");
        prop_assert_eq!(map.inverse(member(&p), p.at), Some(at));
        let last = ByteOffset(p.at.0 + grain - 1);
        prop_assert_eq!(map.inverse(member(&p), last), Some(ByteOffset(at.0 + grain - 1)));
    }
    Ok(())
}

fn sizes() -> impl Strategy<Value = (Vec<u64>, Vec<u64>, u64)> {
    (1_usize..=17, 1_u64..=7, any::<bool>()).prop_flat_map(|(n, unit, weighted)| {
        let weight = if weighted { 1_u64..=4 } else { 1..=1 };
        (
            proptest::collection::vec((0_u64..60).prop_map(|b| b * K4), n),
            proptest::collection::vec(weight, n),
            Just(unit * K4),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn any_stripe_is_a_bijection_and_deals_as_the_rule_says((lens, weights, unit) in sizes()) {
        let l = label(&lens, &weights, unit);
        let map = Map::new(&l).unwrap();
        let reference = dealt(&lens, &weights, unit);
        prop_assert_eq!(map.size().0, reference.len() as u64 * unit, "space lost or invented");
        let found: Vec<_> = (0..reference.len() as u64)
            .map(|i| places(&map, i * unit, unit, unit)[0])
            .collect();
        prop_assert_eq!(found, reference);
        bijection(&map, K4)?;
        for m in 0..lens.len() {
            let m = u16::try_from(m).unwrap();
            prop_assert_eq!(map.inverse(MemberIndex(m), ByteOffset(Label::DATA_AT.0 + lens[usize::from(m)])), None);
        }
    }

    #[test]
    fn a_range_is_the_sum_of_its_parts(
        (lens, weights, unit) in sizes(), at in 0_u64..2000, len in 0_u64..2000,
    ) {
        let map = Map::new(&label(&lens, &weights, unit)).unwrap();
        let (at, len) = (at * 512, len * 512);
        let whole = places(&map, at, len, 512);
        let single: Vec<_> =
            (0..len / 512).flat_map(|i| places(&map, at + i * 512, 512, 512)).collect();
        prop_assert_eq!(whole, single);
    }

    #[test]
    fn unweighted_label_and_stripe_agree((lens, _, unit) in sizes()) {
        let ones = vec![1; lens.len()];
        prop_assert_eq!(Map::new(&label(&lens, &ones, unit)).unwrap(), stripe(&lens, unit));
    }
}
