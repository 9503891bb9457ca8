use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn member(i: u8, mib: u64) -> Member {
    Member {
        uuid: Uuid::from_bytes([i + 0x10; 16]),
        data_start: Label::DATA_AT,
        data_len: Bytes(mib * MIB),
        device_size: Bytes((mib + 2) * MIB),
        state: MemberState::Active,
        state_epoch: Epoch(1),
        suspected: false,
        offline: false,
        class: DeviceClass::SolidState,
        bytes_per_second: Bytes(500_000_000),
        bus: u16::from(i) + 1,
        successor: None,
        path: format!("/dev/sd{}", char::from(b'b' + i)),
        serial: format!("SERIAL-{i}"),
    }
}

fn slice(member: u16, start: u64, len: u64) -> TreeNode {
    TreeNode {
        len: Bytes(len),
        kind: NodeKind::Slice { member: MemberIndex(member), start: ByteOffset(start) },
    }
}

fn children(nodes: impl IntoIterator<Item = u16>) -> Vec<Child> {
    nodes.into_iter().map(|node| Child { node, weight: 1 }).collect()
}

/// Two members of unequal size, one stripe.
fn sample() -> Label {
    let unit = Bytes(256 << 10);
    Label {
        pool: Uuid::from_bytes(*b"pool-identity-01"),
        name: "scratch".into(),
        epoch: Epoch(7),
        change_id: Uuid::from_bytes(*b"change-ident-007"),
        member: MemberIndex(1),
        features_compat: 0,
        features_ro_compat: 0,
        lock_sector: Bytes(512),
        block_size: Bytes(4096),
        reshaping: false,
        ended: false,
        stripe_unit: unit,
        created: 1_700_000_000,
        changed: 1_700_000_100,
        members: vec![member(0, 10), member(1, 16)],
        nodes: vec![
            slice(0, 0, 10 * MIB),
            slice(1, 0, 16 * MIB),
            TreeNode {
                len: Bytes(26 * MIB),
                kind: NodeKind::Stripe { unit, children: children([0, 1]) },
            },
        ],
        segments: vec![Segment {
            start: ByteOffset(0),
            len: Bytes(26 * MIB),
            node: 2,
            node_start: ByteOffset(0),
            subpool: SubpoolKind::General,
        }],
        properties: properties::Properties::new(),
    }
}

#[test]
fn properties_stand_behind_the_tables() {
    let mut label = sample();
    let plain = label.encoded_len();
    label.properties.insert("comment".into(), "of the laboratory".into());
    label.properties.insert("unknown.here".into(), "kept".into());
    assert_eq!(label.features_incompat() & features::PROPERTIES, features::PROPERTIES);
    assert_eq!(label.encoded_len(), plain);
    let mut buf = vec![0; Label::LEN_MAX];
    let len = label.encode(0, Label::COPY0_AT, &mut buf).unwrap();
    assert_eq!(Label::decode(&buf[..len], Label::COPY0_AT).unwrap(), (label.clone(), 0));
    label.properties.insert("Comment".into(), "no key".into());
    assert!(label.encode(0, Label::COPY0_AT, &mut buf).is_err());
    // Each table at its limit, and all properties: there is room.
    let tables = size_of::<RawLabel>()
        + Label::MEMBERS_MAX * size_of::<RawMember>()
        + Label::NODES_MAX * size_of::<RawTreeNode>()
        + Label::EDGES_MAX * size_of::<RawEdge>()
        + Label::SEGMENTS_MAX * size_of::<RawSegment>();
    assert!(tables + properties::ALL_MAX <= Label::LEN_MAX);
}

/// Every kind of node, weights, subpools: what later versions will write.
fn rich() -> Label {
    let unit = Bytes(64 << 10);
    let mut l = sample();
    l.members = (0..5).map(|i| member(i, 16)).collect();
    let mut nodes: Vec<TreeNode> = (0..5).map(|i| slice(i, 0, 8 * MIB)).collect();
    nodes.push(TreeNode {
        len: Bytes(8 * MIB),
        kind: NodeKind::Mirror { children: children([0, 1]) },
    });
    nodes.push(TreeNode {
        len: Bytes(16 * MIB),
        kind: NodeKind::Parity { unit, parity: 1, code: 1, children: children([2, 3, 4]) },
    });
    nodes.push(TreeNode {
        len: Bytes(24 * MIB),
        kind: NodeKind::Concat { children: children([5, 6]) },
    });
    nodes.push(slice(0, 8 * MIB, 6 * MIB));
    nodes.push(slice(1, 8 * MIB, 3 * MIB));
    nodes.push(TreeNode {
        len: Bytes(9 * MIB),
        kind: NodeKind::Stripe {
            unit,
            children: vec![Child { node: 8, weight: 2 }, Child { node: 9, weight: 1 }],
        },
    });
    l.nodes = nodes;
    l.segments = vec![
        Segment {
            start: ByteOffset(0),
            len: Bytes(24 * MIB),
            node: 7,
            node_start: ByteOffset(0),
            subpool: SubpoolKind::Data,
        },
        Segment {
            start: ByteOffset(24 * MIB),
            len: Bytes(9 * MIB),
            node: 10,
            node_start: ByteOffset(0),
            subpool: SubpoolKind::Metadata,
        },
    ];
    l.members[4].state = MemberState::Rebuilding;
    l
}

fn encoded(label: &Label) -> Vec<u8> {
    let mut buf = vec![0x5a; Label::LEN_MAX];
    let len = label.encode(0, Label::COPY0_AT, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

/// `bytes` with a valid checksum.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c_with_hole(&bytes, 8);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn golden_bytes() {
    crate::golden::check("label", &encoded(&sample()));
    crate::golden::check("label_all_kinds", &encoded(&rich()));
}

#[test]
fn what_is_encoded_is_decoded() {
    for label in [sample(), rich()] {
        let bytes = encoded(&label);
        assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap(), (label.clone(), 0));
        let mut padded = bytes.clone();
        padded.resize(Label::LEN_MAX, 0x5a);
        assert_eq!(Label::decode(&padded, Label::COPY0_AT).unwrap().0, label);
    }
    assert_eq!(
        rich().features_incompat(),
        features::MIRROR | features::PARITY | features::WEIGHTS | features::SUBPOOLS
    );
}

#[test]
fn a_suspected_member_is_marked_and_older_versions_refuse_the_pool() {
    let mut label = sample();
    label.members[1].suspected = true;
    let bytes = encoded(&label);
    assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap().0, label);
    assert_eq!(label.features_incompat(), features::SUSPECTED);
    let flags = size_of::<RawLabel>() + core::mem::offset_of!(RawMember, flags);
    let mut unknown = bytes;
    unknown[flags] = 4;
    match Label::decode(&resealed(unknown), Label::COPY0_AT) {
        Err(FormatError::BadField { field, value, .. }) => {
            assert_eq!((field, value), ("member flags", 4));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_a_member_that_is_out_is_marked_as_offline_and_older_versions_refuse_the_pool() {
    let mut label = sample();
    label.members[1].offline = true;
    let mut bytes = vec![0; label.encoded_len()];
    assert!(label.encode(0, Label::COPY0_AT, &mut bytes).is_err(), "it is in use");
    for state in [MemberState::Failed, MemberState::Rebuilding] {
        label.members[1].state = state;
        let bytes = encoded(&label);
        assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap().0, label);
        assert_eq!(label.features_incompat(), features::OFFLINE);
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut bytes = encoded(&sample());
    for at in 0..bytes.len() {
        bytes[at] ^= 1 << (at % 8);
        assert!(Label::decode(&bytes, Label::COPY0_AT).is_err(), "flip at {at}");
        bytes[at] ^= 1 << (at % 8);
    }
}

#[test]
fn wrong_place_unknown_feature_and_revision_are_named() {
    let bytes = encoded(&sample());
    assert!(matches!(
        Label::decode(&bytes, ByteOffset(0)),
        Err(FormatError::WrongAddress { found: 65536, .. })
    ));
    let mut newer = bytes.clone();
    newer[56 + 7] = 0x80;
    assert!(matches!(
        Label::decode(&resealed(newer), Label::COPY0_AT),
        Err(FormatError::UnknownFeature { .. })
    ));
    let mut newer = bytes.clone();
    newer[48 + 7] = 0x80;
    assert!(matches!(
        Label::decode(&resealed(newer), Label::COPY0_AT),
        Err(FormatError::UnknownChange { .. })
    ));
    let mut revision = bytes.clone();
    revision[16] = 9;
    assert!(matches!(
        Label::decode(&resealed(revision), Label::COPY0_AT),
        Err(FormatError::OtherRevision { found: 9, .. })
    ));
    assert!(matches!(
        Label::decode(&bytes[..100], Label::COPY0_AT),
        Err(FormatError::TooShort { .. })
    ));
    assert!(matches!(
        Label::decode(&bytes[..600], Label::COPY0_AT),
        Err(FormatError::TooShort { .. })
    ));
    assert!(matches!(
        Label::decode(&[0; 4096], Label::COPY0_AT),
        Err(FormatError::BadMagic { .. })
    ));
}

fn refused(field: &str, change: impl FnOnce(&mut Label)) {
    let mut label = sample();
    change(&mut label);
    match label.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]) {
        Err(FormatError::BadField { field: found, .. }) => assert_eq!(found, field),
        other => panic!("expected a bad {field}, got {other:?}"),
    }
}

#[test]
fn broken_invariants_are_refused() {
    refused("stripe unit", |l| l.stripe_unit = Bytes(1000));
    refused("lock sector", |l| l.lock_sector = Bytes(1024));
    refused("epoch", |l| l.epoch = Epoch(0));
    refused("name", |l| l.name = "a/b".into());
    refused("name length", |l| l.name = "x".repeat(64));
    refused("own member index", |l| l.member = MemberIndex(2));
    refused("member count", |l| {
        l.members = (0..=255).map(|_| member(0, 4)).chain([member(1, 4)]).collect();
    });
    refused("identity, used twice, of member", |l| l.members[1].uuid = l.members[0].uuid);
    refused("data area of member", |l| l.members[0].data_len = Bytes(u64::MAX));
    refused("child of a node", |l| l.nodes.swap(0, 2));
    refused("length of topology node", |l| l.nodes[1].len = Bytes(17 * MIB));
    refused("length of topology node", |l| l.nodes[2].len = Bytes(25 * MIB));
    refused("overlapping slice of member", |l| {
        l.nodes[1] = slice(0, 5 * MIB, 5 * MIB);
        l.nodes[2].len = Bytes(15 * MIB);
        l.segments[0].len = Bytes(15 * MIB);
    });
    refused("child of a node", |l| {
        if let NodeKind::Stripe { children, .. } = &mut l.nodes[2].kind {
            children[1].node = 2;
        }
    });
    refused("units in a row", |l| {
        if let NodeKind::Stripe { children, .. } = &mut l.nodes[2].kind {
            (children[0].weight, children[1].weight) = (4000, 97);
        }
    });
    refused("block size", |l| l.block_size = Bytes(1000));
    refused("segment of node", |l| l.segments[0].node = 0);
    refused("segment of node", |l| {
        (l.segments[0].node, l.segments[0].len) = (0, Bytes(10 * MIB));
    });
    refused("segment of node", |l| l.segments[0].len = Bytes(27 * MIB));
    refused("segment start", |l| l.segments[0].start = ByteOffset(1));
    refused("weight", |l| {
        if let NodeKind::Stripe { children, .. } = &mut l.nodes[2].kind {
            children[0].weight = 0;
        }
    });
}

#[test]
fn broken_groups_are_refused() {
    let refused = |field: &str, change: &dyn Fn(&mut Label)| {
        let mut label = rich();
        change(&mut label);
        match label.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]) {
            Err(FormatError::BadField { field: found, .. }) => assert_eq!(found, field),
            other => panic!("expected a bad {field}, got {other:?}"),
        }
    };
    let group = |l: &mut Label, of: Vec<Child>, p: u16, c: u16| {
        l.nodes[6].kind =
            NodeKind::Parity { unit: Bytes(64 << 10), parity: p, code: c, children: of };
    };
    let length = "length of topology node";
    refused(length, &|l| l.nodes[6].len = Bytes(15 * MIB));
    refused(length, &|l| l.nodes[6].len = Bytes(24 * MIB));
    refused(length, &|l| l.nodes[2].len = Bytes(7 * MIB));
    refused(length, &|l| group(l, children([2, 3, 4]), 2, 1));
    refused(length, &|l| group(l, children([2, 3, 4]), 3, 1));
    refused(length, &|l| group(l, children([2]), 1, 1));
    refused(length, &|l| {
        group(l, children([2]), 1, 1);
        l.nodes[6].len = Bytes(0);
    });
    // As long as equal children would make it, and as no parity would.
    refused(length, &|l| l.nodes[3].len = Bytes(7 * MIB));
    refused(length, &|l| {
        group(l, children([2, 3, 4]), 0, 1);
        l.nodes[6].len = Bytes(24 * MIB);
    });
    refused("parity code", &|l| group(l, children([2, 3, 4]), 1, 2));
    let heavy = || (2..5).map(|node| Child { node, weight: 2 }).collect();
    refused("weight", &|l| group(l, heavy(), 1, 1));
    // A mirror is as long as its shortest copy.
    refused(length, &|l| l.nodes[5].len = Bytes(7 * MIB));
    refused(length, &|l| l.nodes[0].len = Bytes(7 * MIB));
}

#[test]
fn a_leaving_member_names_its_successor() {
    let leaving = |state, taker: Member, successor| {
        let mut l = sample();
        l.members.push(taker);
        l.members[0].state = state;
        l.members[0].successor = Some(MemberIndex(successor));
        l
    };
    let spare = || Member { state: MemberState::Spare, ..member(2, 10) };
    let l = leaving(MemberState::Leaving, spare(), 2);
    let bytes = encoded(&l);
    assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap().0, l);
    assert_eq!(bytes[512 + 62..512 + 64], [3, 0]);
    assert_eq!(l.features_incompat(), features::SUCCESSION);
    assert!(l.to_string().contains("succeeded by 2"), "{l}");
    let mut twice = l.clone();
    twice.members[1].state = MemberState::Leaving;
    twice.members[1].successor = Some(MemberIndex(2));
    for l in [
        leaving(MemberState::Active, spare(), 2),
        leaving(MemberState::Leaving, spare(), 1),
        leaving(MemberState::Leaving, spare(), 0),
        leaving(MemberState::Leaving, spare(), 3),
        leaving(MemberState::Leaving, member(2, 10), 2),
        leaving(MemberState::Leaving, Member { state: MemberState::Spare, ..member(2, 9) }, 2),
        twice,
    ] {
        match l.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]) {
            Err(FormatError::BadField { field: "successor of member", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_second_parity_takes_a_second_column() {
    let mut l = rich();
    l.nodes[6] = TreeNode {
        len: Bytes(8 * MIB),
        kind: NodeKind::Parity {
            unit: Bytes(64 << 10),
            parity: 2,
            code: Label::CODE,
            children: children([2, 3, 4]),
        },
    };
    l.nodes[7].len = Bytes(16 * MIB);
    l.segments[0].len = Bytes(16 * MIB);
    l.segments[1].start = ByteOffset(16 * MIB);
    assert_eq!(Label::decode(&encoded(&l), Label::COPY0_AT).unwrap().0, l);
}

/// What stood on the fourth member has left: a hole is where it was, and two groups keep their numbers.
fn holed() -> Label {
    let mut l = sample();
    let hole = Segment {
        start: ByteOffset(26 * MIB),
        len: Bytes(5 * MIB),
        node: 2,
        node_start: ByteOffset(0),
        subpool: SubpoolKind::Hole,
    };
    l.members.push(member(2, 16));
    l.nodes.push(slice(2, 0, 4 * MIB));
    let after = Segment {
        start: ByteOffset(31 * MIB),
        len: Bytes(4 * MIB),
        node: 3,
        node_start: ByteOffset(0),
        subpool: SubpoolKind::General,
    };
    l.segments.extend([hole, after]);
    l
}

#[test]
fn a_hole_stands_on_nothing() {
    let l = holed();
    assert_eq!(l.features_incompat(), features::HOLES);
    assert_eq!((l.size(), l.holes()), (Bytes(35 * MIB), Bytes(5 * MIB)));
    let bytes = encoded(&l);
    crate::golden::check("label_hole", &bytes[..l.encoded_len()]);
    assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap().0, l);
    assert!(l.to_string().contains("27262976..32505856 hole, of 2 groups"), "{l}");
    let refused = |change: fn(&mut Segment)| {
        let mut l = holed();
        change(&mut l.segments[1]);
        l.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).unwrap_err()
    };
    refused(|s| s.node_start = ByteOffset(1));
    refused(|s| s.node = 32_769);
    refused(|s| s.start = ByteOffset(27 * MIB));
    let mut first = holed();
    first.segments[0].subpool = SubpoolKind::Hole;
    assert!(first.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).is_err());
}

#[test]
fn the_largest_label_fits() {
    let mut l = sample();
    l.members =
        (0..=255).map(|i| Member { uuid: Uuid::from_bytes([i; 16]), ..member(0, 300) }).collect();
    let slices = u16::try_from(Label::NODES_MAX - 1).unwrap();
    l.nodes = (0..slices).map(|i| slice(i % 256, u64::from(i / 256) * MIB, MIB)).collect();
    l.nodes.push(TreeNode {
        len: Bytes(u64::from(slices) * MIB),
        kind: NodeKind::Concat { children: children(0..slices) },
    });
    l.segments = (0..Label::SEGMENTS_MAX as u64)
        .map(|i| Segment {
            start: ByteOffset(i * 4096),
            len: Bytes(4096),
            node: slices,
            node_start: ByteOffset(i * 4096),
            subpool: SubpoolKind::General,
        })
        .collect();
    let bytes = encoded(&l);
    assert_eq!(Label::decode(&bytes, Label::COPY0_AT).unwrap().0, l);
    let full =
        512 + 256 * 256 + Label::NODES_MAX * 48 + Label::EDGES_MAX * 4 + Label::SEGMENTS_MAX * 32;
    assert!(full <= Label::LEN_MAX);
    l.nodes.push(slice(0, 200 * MIB, MIB));
    assert!(l.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).is_err());
}

#[test]
fn place_of_the_second_copy() {
    assert_eq!(Label::copy1_at(Bytes(3 * MIB)), Some(ByteOffset(2 * MIB)));
    assert_eq!(Label::copy1_at(Bytes(3 * MIB - 1)), None);
    assert_eq!(Label::copy1_at(Bytes(10 * MIB + 4096)), Some(ByteOffset(9 * MIB)));
    assert_eq!(Label::copy1_at(Bytes(u64::MAX)).map(|o| o.0 % MIB), Some(0));
}

proptest! {
    /// Bytes of any kind under a valid checksum: never a panic, and whatever is accepted holds
    /// the invariants (it can be encoded again).
    #[test]
    fn decode_never_panics(
        rich_one: bool,
        changes in proptest::collection::vec((12_usize..4096, any::<u8>()), 0..12),
    ) {
        let mut bytes = encoded(&if rich_one { rich() } else { sample() });
        for (at, value) in changes {
            if let Some(b) = bytes.get_mut(at) {
                *b = value;
            }
        }
        if let Ok((label, _)) = Label::decode(&resealed(bytes), Label::COPY0_AT) {
            prop_assert!(label.encode(0, Label::COPY0_AT, &mut vec![0; Label::LEN_MAX]).is_ok());
        }
    }

    #[test]
    fn decode_of_noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..9000)) {
        let mut noise = noise;
        if noise.len() >= 4096 {
            let len = u32::try_from(noise.len() / 4096 * 4096).unwrap();
            noise[..8].copy_from_slice(&RawLabel::MAGIC);
            noise[12..16].copy_from_slice(&len.to_le_bytes());
            noise[16..24].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
            noise[24..32].copy_from_slice(&65536_u64.to_le_bytes());
            noise[56..64].fill(0);
            noise.truncate(len as usize);
            noise = resealed(noise);
        }
        let _ = Label::decode(&noise, Label::COPY0_AT);
    }
}

#[test]
fn the_dump_shows_members_and_the_tree() {
    let text = rich().to_string();
    for part in ["scratch", "epoch        7", "/dev/sde", "Rebuilding", "Metadata", "weight 2"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let tree: Vec<&str> = text.lines().skip_while(|l| *l != "topology").collect();
    assert_eq!(
        tree[2..6],
        [
            "    concat 7, 25165824 bytes",
            "      mirror 5, 8388608 bytes",
            "        slice 0, 8388608 bytes, member 0 from 0",
            "        slice 1, 8388608 bytes, member 1 from 0",
        ]
    );
}

#[test]
fn states_classes_and_subpools_are_read_from_their_numbers() {
    let states: Vec<MemberState> = (0..=6).filter_map(MemberState::from_u16).collect();
    assert!(states.iter().map(|state| *state as u16).eq(1..=5));
    let classes: Vec<DeviceClass> = (0..=4).filter_map(DeviceClass::from_u8).collect();
    assert!(classes.iter().map(|class| *class as u8).eq(0..=3));
    let subpools: Vec<SubpoolKind> = (0..=5).filter_map(SubpoolKind::from_u16).collect();
    assert!(subpools.iter().map(|subpool| *subpool as u16).eq(0..=4));
}

#[test]
fn a_pool_that_is_reshaped_or_ended_is_marked() {
    let reshaping = Label { reshaping: true, ..sample() };
    let ended = Label { ended: true, ..sample() };
    let both = Label { reshaping: true, ..ended.clone() };
    for (label, bits) in [
        (reshaping, features::RESHAPE),
        (ended, features::ENDED),
        (both, features::RESHAPE | features::ENDED),
    ] {
        assert_eq!(label.features_incompat(), bits);
        assert_eq!(Label::decode(&encoded(&label), Label::COPY0_AT).unwrap().0, label);
    }
}

#[test]
fn the_slices_on_a_member_are_found() {
    let label = rich();
    let slices: Vec<_> = label.slices_on(MemberIndex(1)).collect();
    let expected = [(0, 8), (8, 3)].map(|(at, len)| (ByteOffset(at * MIB), Bytes(len * MIB)));
    assert_eq!(slices, expected);
    assert_eq!([1, 4, 5].map(|m| label.bytes_on(MemberIndex(m)).0 / MIB), [11, 8, 0]);
}

#[test]
fn a_pool_without_a_file_system_has_a_label() {
    let label = Label { block_size: Bytes(0), ..sample() };
    assert_eq!(Label::decode(&encoded(&label), Label::COPY0_AT).unwrap().0, label);
}

#[test]
fn the_longest_name_and_texts_cut_between_characters_are_kept() {
    let mut label = Label { name: "n".repeat(Label::NAME_MAX), ..sample() };
    label.members[0].path = "p".repeat(200);
    label.members[1].path = format!("p{}", "\u{e4}".repeat(100));
    let found = Label::decode(&encoded(&label), Label::COPY0_AT).unwrap().0;
    assert_eq!(found.name, label.name);
    assert_eq!(found.members[0].path, "p".repeat(127));
    assert_eq!(found.members[1].path, format!("p{}", "\u{e4}".repeat(63)));
    label.members[1].path = "\u{e4}".repeat(100);
    let found = Label::decode(&encoded(&label), Label::COPY0_AT).unwrap().0;
    assert_eq!(found.members[1].path, "\u{e4}".repeat(63));
}

/// `bytes` that say that the label has `len` bytes, with a valid checksum over so many.
fn said_to_have(len: usize) -> Vec<u8> {
    let mut bytes = encoded(&sample());
    bytes.resize(len.max(bytes.len()), 0);
    bytes[12..16].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
    let crc = crc32c_with_hole(&bytes[..len], 8);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn a_label_has_whole_grains_and_no_more_than_the_most() {
    for len in [Label::GRAIN, Label::LEN_MAX] {
        let found = Label::decode(&said_to_have(len), Label::COPY0_AT);
        assert_eq!(found.unwrap().0, sample(), "{len}");
    }
    for len in [12, Label::GRAIN - 1, Label::GRAIN + 1, Label::LEN_MAX + Label::GRAIN] {
        match Label::decode(&said_to_have(len), Label::COPY0_AT) {
            Err(FormatError::BadField { field: "length", value, .. }) => {
                assert_eq!(value, len as u64);
            }
            other => panic!("{len}: {other:?}"),
        }
    }
    let mut none = encoded(&sample());
    none[12..16].fill(0);
    let found = Label::decode(&none, Label::COPY0_AT);
    assert!(matches!(found, Err(FormatError::BadField { field: "length", .. })), "{found:?}");
}

#[test]
fn a_label_is_one_of_two_copies() {
    let mut bytes = vec![0; Label::LEN_MAX];
    let at = ByteOffset(9 * MIB);
    sample().encode(1, at, &mut bytes).unwrap();
    assert_eq!(Label::decode(&bytes, at).unwrap(), (sample(), 1));
    let len = sample().encode(2, at, &mut bytes).unwrap();
    match Label::decode(&bytes[..len], at) {
        Err(FormatError::BadField { field, value, .. }) => assert_eq!((field, value), ("copy", 2)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_is_its_own_child_is_shown_once() {
    let mut label = sample();
    label.nodes[2].kind = NodeKind::Concat { children: children([2, 0]) };
    let text = label.to_string();
    assert_eq!(text.matches("concat 2,").count(), 1, "{text}");
    assert_eq!(text.matches("slice 0,").count(), 1, "{text}");
}

/// Two members, 60 nodes and a segment take less than a grain, and with the edges more.
#[test]
fn edges_count_to_a_label_s_length() {
    let mut label = sample();
    label.nodes = (0..59).map(|i| slice(0, i * 4096, 4096)).collect();
    label.nodes.push(TreeNode {
        len: Bytes(59 * 4096),
        kind: NodeKind::Concat { children: children(0..59) },
    });
    label.segments[0] = Segment { len: Bytes(59 * 4096), node: 59, ..label.segments[0] };
    assert_eq!(label.encoded_len(), 2 * Label::GRAIN);
    assert_eq!(Label::decode(&encoded(&label), Label::COPY0_AT).unwrap().0, label);
}

#[test]
fn the_first_sector_is_an_empty_partition_table_that_says_what_the_device_is() {
    let (text, end) = Label::BOOT_SECTOR.split_at(446);
    let text = text.strip_prefix(&[0; 96]).expect("the text begins at byte 96");
    let text = text.split(|b| *b == 0).next().unwrap();
    assert!(text.starts_with(b"This device is a member of a Braid pool"));
    assert!(text.ends_with(b"see braid(7)."));
    assert!(Label::BOOT_SECTOR[96 + text.len()..446].iter().all(|b| *b == 0));
    assert_eq!(end, [&[0; 64][..], &[0x55, 0xaa]].concat());
}
