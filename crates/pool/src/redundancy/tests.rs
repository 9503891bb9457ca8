use std::sync::Arc;

use braid_device::{
    Device, DeviceError, Fault, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On,
};
use braid_format::label::{Child, Label, MemberState, NodeKind, Segment, SubpoolKind, TreeNode};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, MemberIndex};
use proptest::prelude::*;

use super::parity;
use crate::assembly::create::CreateOptions;
use crate::error::PoolError;
use crate::io::PoolRequest;
use crate::layout::group::Shape;
use crate::pool::Pool;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;
const UNIT: u64 = 4096;
/// Room for the logs of two slots.
const LOGS: u64 = 2 * LogPlace::LEN.0;

/// What stands on the members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A mirror of all.
    Mirror,
    /// A stripe of mirrors of two.
    StripedMirrors,
    /// One parity group.
    Parity(u16),
    /// A mirror of all on the first quarter, parity on the rest.
    MirrorThenParity(u16),
}

/// Members of 4 MiB of data under a plan of faults each.
pub(crate) fn devices(
    n: usize,
    mut plan: impl FnMut(usize) -> FaultPlan,
) -> Vec<Arc<FaultyDevice>> {
    let size = Bytes(Label::DATA_AT.0 + LOGS + 4 * MIB + Label::TAIL.0);
    (0..n)
        .map(|i| {
            let memory = MemoryDevice::new(&format!("m{i}"), size, Bytes(SECTOR));
            FaultyDevice::new(memory as Arc<dyn Device>, plan(i))
        })
        .collect()
}

pub(crate) fn dynamic(devices: &[Arc<FaultyDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

/// Puts `layout` on a plain pool's label, and opens that.
pub(crate) fn pool(devices: &[Arc<FaultyDevice>], layout: Layout) -> Pool {
    let plain = Pool::create(
        devices.iter().map(|d| d.inner().clone()).collect(),
        &CreateOptions::new("test"),
    )
    .unwrap();
    let mut label = plain.label();
    let n = u16::try_from(devices.len()).unwrap();
    label.nodes.clear();
    label.segments.clear();
    for m in &mut label.members {
        m.data_start = ByteOffset(Label::DATA_AT.0 + LOGS);
        m.data_len = Bytes(4 * MIB);
    }
    let mut roots = Vec::new();
    match layout {
        Layout::Mirror => roots.push((mirror(&mut label, 0..n, 0, 4 * MIB), 4 * MIB)),
        Layout::Parity(p) => roots.push(parity(&mut label, n, p, 0, 4 * MIB)),
        Layout::MirrorThenParity(p) => {
            roots.push((mirror(&mut label, 0..n, 0, MIB), MIB));
            roots.push(parity(&mut label, n, p, MIB, 3 * MIB));
        }
        Layout::StripedMirrors => {
            let pairs: Vec<u16> =
                (0..n / 2).map(|i| mirror(&mut label, 2 * i..2 * i + 2, 0, 4 * MIB)).collect();
            let len = 4 * MIB * pairs.len() as u64;
            let children = pairs.into_iter().map(|node| Child { node, weight: 1 }).collect();
            let kind = NodeKind::Stripe { unit: Bytes(16 * UNIT), children };
            roots.push((push(&mut label, len, kind), len));
        }
    }
    let mut start = 0;
    for (node, len) in roots {
        label.segments.push(Segment {
            start: ByteOffset(start),
            len: Bytes(len),
            node,
            node_start: ByteOffset(0),
            subpool: SubpoolKind::General,
        });
        start += len;
    }
    let opened = Pool::open(dynamic(devices), label.clone()).unwrap();
    crate::labels::write_epoch(plain.devices().as_slice(), &label).unwrap();
    opened
}

fn push(label: &mut Label, len: u64, kind: NodeKind) -> u16 {
    label.nodes.push(TreeNode { len: Bytes(len), kind });
    u16::try_from(label.nodes.len() - 1).unwrap()
}

fn slices(label: &mut Label, of: std::ops::Range<u16>, start: u64, len: u64) -> Vec<Child> {
    of.map(|m| {
        let kind = NodeKind::Slice { member: MemberIndex(m), start: ByteOffset(start) };
        Child { node: push(label, len, kind), weight: 1 }
    })
    .collect()
}

fn mirror(label: &mut Label, of: std::ops::Range<u16>, start: u64, len: u64) -> u16 {
    let children = slices(label, of, start, len);
    push(label, len, NodeKind::Mirror { children })
}

fn parity(label: &mut Label, n: u16, parity: u16, start: u64, len: u64) -> (u16, u64) {
    let children = slices(label, 0..n, start, len);
    let len = len / UNIT * UNIT * u64::from(n - parity);
    (push(label, len, NodeKind::Parity { unit: Bytes(UNIT), parity, code: 1, children }), len)
}

/// Every mirror's copies in sync are equal, every row's parity is right.
pub(crate) fn consistent(pool: &Pool, devices: &[Arc<FaultyDevice>]) {
    let topology = pool.0.epochs.read();
    for group in topology.map.groups() {
        let columns: Vec<(bool, Vec<u8>)> = group
            .columns
            .iter()
            .map(|c| {
                let mut bytes = vec![0; Bytes(group.column_len()).to_usize()];
                let device = devices[usize::from(c.member.0)].inner();
                device.read(ByteOffset(c.base), &mut bytes).unwrap();
                (topology.readable(c.member), bytes)
            })
            .collect();
        match group.shape {
            Shape::Mirror => {
                let live: Vec<_> = columns.iter().filter(|c| c.0).map(|c| &c.1).collect();
                assert!(live.windows(2).all(|w| w[0] == w[1]), "copies differ");
            }
            Shape::Parity { unit, parity } => {
                let data = columns.len() - parity;
                for row in 0..group.column_len() / unit {
                    let range = Bytes(row * unit).to_usize()..Bytes((row + 1) * unit).to_usize();
                    let of = |place: usize| &columns[group.column_of(row, place)];
                    let mut all: Vec<Vec<u8>> =
                        (0..columns.len()).map(|p| of(p).1[range.clone()].to_vec()).collect();
                    let lost: Vec<usize> = (0..columns.len()).filter(|p| !of(*p).0).collect();
                    let mut slices: Vec<&mut [u8]> = all.iter_mut().map(|b| &mut b[..]).collect();
                    assert!(parity::recover(data, &mut slices, &lost));
                    let refs: Vec<&[u8]> = all[..data].iter().map(|b| &b[..]).collect();
                    let (mut p, mut q) = (all[data].clone(), vec![0; range.len()]);
                    parity::encode(&refs, &mut p, Some(&mut q));
                    assert!(p == all[data], "P of row {row}");
                    assert!(parity == 1 || q == all[data + 1], "Q of row {row}");
                }
            }
        }
    }
}

#[test]
fn places_and_columns_are_inverse_and_parity_turns() {
    for (n, parity) in [(3, 1), (4, 1), (5, 2), (7, 2)] {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, Layout::Parity(parity));
        let map = pool.map();
        let group = &map.groups()[0];
        let mut on_column = vec![0; n];
        for row in 0..u64::try_from(n).unwrap() * 2 {
            for place in 0..n {
                assert_eq!(group.place_of(row, group.column_of(row, place)), place);
            }
            on_column[group.column_of(row, n - 1)] += 1;
        }
        assert!(on_column.iter().all(|c| *c == 2), "{on_column:?}");
    }
}

/// The drawing in the module's documentation.
#[test]
fn drawing_of_rows_is_true() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    let map = pool.map();
    let group = &map.groups()[0];
    let rows: Vec<Vec<usize>> =
        (0..3).map(|row| (0..4).map(|column| group.place_of(row, column)).collect()).collect();
    assert_eq!(rows, [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]);
}

#[test]
fn every_data_byte_has_one_place_and_the_inverse_finds_it() {
    for layout in [Layout::Parity(1), Layout::Parity(2), Layout::MirrorThenParity(1)] {
        let all = devices(4, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        let map = pool.map();
        let mut seen = std::collections::HashSet::new();
        for at in (0..map.size().0).step_by(4096) {
            let (member, place) = map.locate(ByteOffset(at)).unwrap();
            assert!(seen.insert((member, place)));
            assert_eq!(map.inverse(member, place), Some(ByteOffset(at)));
        }
    }
}

/// One step of a test: bytes written or read in one batch, in sectors.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Write(Vec<(u64, u64)>),
    Read(u64, u64),
    Discard(u64, u64),
    Flush,
}

pub(crate) fn steps(sectors: u64) -> impl Strategy<Value = Vec<Step>> {
    let run = (0..sectors, prop_oneof![1_u64..4, 1_u64..64, 60_u64..200])
        .prop_map(move |(at, len)| (at, len.min(sectors - at)));
    let step = prop_oneof![
        4 => prop::collection::vec(run.clone(), 1..5).prop_map(Step::Write),
        3 => run.clone().prop_map(|(at, len)| Step::Read(at, len)),
        2 => run.prop_map(|(at, len)| Step::Discard(at, len)),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..40)
}

pub(crate) fn layouts() -> impl Strategy<Value = (usize, Layout)> {
    prop_oneof![
        Just((2, Layout::Mirror)),
        Just((3, Layout::Mirror)),
        Just((4, Layout::StripedMirrors)),
        Just((3, Layout::Parity(1))),
        Just((5, Layout::Parity(1))),
        Just((4, Layout::Parity(2))),
        Just((6, Layout::Parity(2))),
        Just((4, Layout::MirrorThenParity(1))),
    ]
}

/// What goes wrong with a member, and when.
fn fault() -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        Just(FaultKind::Gone),
        Just(FaultKind::Fails),
        Just(FaultKind::FailsTorn(Bytes(SECTOR)))
    ];
    (prop_oneof![Just(On::Read), Just(On::Write), Just(On::Flush)], 0_u64..60, kind)
        .prop_map(|(on, nth, kind)| Fault { on, nth, kind })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]
    /// As many members fail as the layout can spare; every read gives what was written last, and
    /// in the end what redundancy is left is right.
    #[test]
    fn what_was_written_is_read_whatever_members_fail(
        (n, layout) in layouts(),
        steps in steps(3000),
        first in (any::<prop::sample::Index>(), fault()),
        second in prop::option::of((any::<prop::sample::Index>(), fault())),
    ) {
        let spare = match layout {
            Layout::Mirror => n - 1,
            Layout::Parity(p) | Layout::MirrorThenParity(p) => usize::from(p),
            Layout::StripedMirrors => 1,
        };
        let mut plans = vec![FaultPlan::default(); n];
        for (which, fault) in [Some(first), second].into_iter().flatten().take(spare) {
            plans[which.index(n)].faults.push(fault);
        }
        let all = devices(n, |i| plans[i].clone());
        let pool = pool(&all, layout);
        let size = usize::try_from(3000 * SECTOR).unwrap();
        let mut model = vec![0; size];
        for (i, step) in (1_u32..).zip(&steps) {
            let bytes = |at: u64, len: u64| {
                usize::try_from(at * SECTOR).unwrap()..usize::try_from((at + len) * SECTOR).unwrap()
            };
            match step {
                Step::Write(runs) => {
                    let buffers: Vec<Vec<u8>> = (0_u8..)
                        .zip(runs)
                        .map(|(j, (_, len))| {
                            (0..bytes(0, *len).len())
                                .map(|b| u8::try_from((b / 7 + i as usize * 31 + usize::from(j) * 13) % 251).unwrap())
                                .collect()
                        })
                        .collect();
                    let mut batch: Vec<PoolRequest<'_>> = runs
                        .iter()
                        .zip(&buffers)
                        .map(|((at, _), b)| PoolRequest::write(ByteOffset(at * SECTOR), b))
                        .collect();
                    pool.run(&mut batch);
                    for r in batch {
                        prop_assert!(r.result.is_ok(), "{:?}", r.result);
                    }
                    for ((at, len), b) in runs.iter().zip(&buffers) {
                        model[bytes(*at, *len)].copy_from_slice(b);
                    }
                }
                Step::Read(at, len) => {
                    let mut back = vec![0xEE; bytes(*at, *len).len()];
                    let read = pool.read(ByteOffset(at * SECTOR), &mut back);
                    prop_assert!(read.is_ok(), "{:?}", read);
                    prop_assert!(back == model[bytes(*at, *len)], "step {i}: {step:?}");
                }
                Step::Discard(at, len) => {
                    let given = pool.discard(ByteOffset(at * SECTOR), Bytes(len * SECTOR));
                    prop_assert!(given.is_ok(), "{:?}", given);
                    let range = bytes(*at, *len);
                    let mut back = vec![0xEE; range.len()];
                    pool.read(ByteOffset(at * SECTOR), &mut back).unwrap();
                    // Whole sectors: as they were, or zeros.
                    for (now, before) in back.chunks(512).zip(model[range].chunks_mut(512)) {
                        if now.iter().all(|b| *b == 0) {
                            before.fill(0);
                        }
                        prop_assert!(now == before, "step {i}: {step:?}");
                    }
                }
                Step::Flush => prop_assert!(pool.flush().is_ok()),
            }
        }
        let mut back = vec![0xEE; size];
        pool.read(ByteOffset(0), &mut back).unwrap();
        prop_assert!(back == model);
        consistent(&pool, &all);
    }
}

pub(crate) fn fails(on: On, nth: u64, kind: FaultKind) -> FaultPlan {
    FaultPlan { faults: vec![Fault { on, nth, kind }], volatile_cache: false }
}

pub(crate) fn failed(pool: &Pool) -> Vec<u16> {
    let states = pool.member_states().into_iter();
    states.filter(|(_, s)| *s == MemberState::Failed).map(|(m, _)| m.0).collect()
}

#[test]
fn a_member_that_fails_a_write_is_taken_out_in_a_new_epoch() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let all = devices(3, |i| {
            if i == 1 { fails(On::Write, 2, FaultKind::Gone) } else { FaultPlan::default() }
        });
        let pool = pool(&all, layout);
        let before = pool.label().epoch;
        for i in 0..8 {
            pool.write(ByteOffset(i * 8 * UNIT), &vec![7; 8 * 4096]).unwrap();
        }
        assert_eq!(failed(&pool), [1], "{layout:?}");
        assert_eq!(pool.label().epoch.0, before.0 + 1);
        // The others' labels say so, both copies of each.
        for i in [0, 2] {
            let found = crate::labels::Found::read(all[i].inner().clone());
            for copy in &found.copies {
                let label = copy.as_ref().unwrap();
                assert_eq!(label.epoch.0, before.0 + 1);
                assert_eq!(label.members[1].state, MemberState::Failed);
            }
        }
        consistent(&pool, &all);
    }
}

#[test]
fn what_cannot_be_read_is_read_elsewhere_and_written_anew() {
    for layout in [Layout::Mirror, Layout::Parity(1), Layout::Parity(2)] {
        let all = devices(4, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let bytes: Vec<u8> = (0..64 * 1024_u32).map(|i| u8::try_from(i % 253).unwrap()).collect();
        pool.write(ByteOffset(0), &bytes).unwrap();
        // Spoiled under the pool's feet: only a rewrite makes it whole.
        let (member, at) = pool.map().locate(ByteOffset(0)).unwrap();
        let bad = &all[usize::from(member.0)];
        bad.inner().write(at, &[0xBB; 512]).unwrap();
        bad.arm(On::Read, 0, FaultKind::Fails);
        // Only what cannot be read again of a copy, after both labels were read, is rewritten.
        bad.arm(On::Read, 3, FaultKind::Fails);
        let mut back = vec![0; 4096];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert_eq!(back, bytes[..4096]);
        assert_eq!(failed(&pool), [0; 0]);
        let mut sector = [0; 512];
        bad.inner().read(at, &mut sector).unwrap();
        assert_eq!(sector, bytes[..512], "{layout:?}: written anew");
    }
}

/// Another process may have the pool in use: nothing is mended, and nobody taken out.
#[test]
fn who_keeps_no_log_reads_around_a_member_and_changes_nothing() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let all = devices(3, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        let bytes = vec![7; 64 << 10];
        pool.write(ByteOffset(0), &bytes).unwrap();
        let (member, at) = pool.map().locate(ByteOffset(0)).unwrap();
        let bad = &all[usize::from(member.0)];
        let label = pool.label();
        bad.inner().write(at, &[0xBB; 512]).unwrap();
        bad.arm(On::Read, 0, FaultKind::Gone);
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "{layout:?}");
        assert_eq!(pool.label(), label);
        let mut sector = [0; 512];
        bad.inner().read(at, &mut sector).unwrap();
        assert_eq!(sector, [0xBB; 512]);
    }
}

#[test]
fn one_failure_too_many_is_an_error_and_changes_no_label() {
    let gone = |on| fails(on, 4, FaultKind::Gone);
    let all = devices(3, |i| if i < 2 { gone(On::Write) } else { FaultPlan::default() });
    let pool = pool(&all, Layout::Parity(1));
    let before = pool.label().epoch;
    let error = (0..64)
        .find_map(|i| pool.write(ByteOffset(i * 2 * UNIT), &vec![1; 2 * 4096]).err())
        .expect("two of three members are gone");
    assert!(matches!(error, PoolError::Device { .. } | PoolError::TooManyLost { .. }), "{error}");
    assert!(pool.label().epoch.0 <= before.0 + 1);
    assert!(failed(&pool).len() <= 1);
}

#[test]
fn locks_stand_on_mirrors_and_follow_when_the_first_copy_fails() {
    use braid_device::CawOutcome;
    let at = ByteOffset(24 * SECTOR);
    let value = |n: u8| vec![n; 512];
    let all = devices(3, |i| {
        if i == 0 {
            fails(On::CompareAndWrite, 2, FaultKind::FailsDone)
        } else {
            FaultPlan::default()
        }
    });
    let pool = pool(&all, Layout::Mirror);
    for n in 0..6 {
        assert_eq!(
            pool.compare_and_write(at, &value(n), &value(n + 1)).unwrap(),
            CawOutcome::Written
        );
    }
    assert_eq!(failed(&pool), [0]);
    let other = pool.compare_and_write(at, &value(1), &value(9)).unwrap();
    assert_eq!(other, CawOutcome::Mismatch(value(6)));
    consistent(&pool, &all);
    let all = devices(3, |_| FaultPlan::default());
    let pool = self::pool(&all, Layout::Parity(1));
    let refused = pool.compare_and_write(at, &value(0), &value(1));
    assert!(matches!(refused, Err(PoolError::LockOnParity { .. })));
}

/// A pool may be made of devices that held something else: parity of what nobody has written is of nothing.
#[test]
fn what_is_written_survives_on_devices_that_were_not_blank() {
    for (parities, n) in [(1, 4), (1, 6), (2, 6)] {
        let devices = devices(n, |_| FaultPlan::default());
        for (i, device) in devices.iter().enumerate() {
            let seed = i as u64 + 3;
            let byte = |at: u64| (at.wrapping_mul(seed * 0x9e37_79b9) >> 13).to_le_bytes()[0];
            let old: Vec<u8> = (0..device.info().size.0).map(byte).collect();
            device.inner().write(ByteOffset(0), &old).unwrap();
        }
        let pool = pool(&devices, Layout::Parity(parities));
        let size = pool.info().size.0;
        let mut held = vec![None; Bytes(size / SECTOR).to_usize()];
        // Sectors, pieces that straddle units, and rows, some of them twice.
        let write = |held: &mut [Option<u8>], numbers: std::ops::Range<u8>| {
            for i in numbers {
                let n = u64::from(i);
                let (first, sectors) = (n * 7919 % (size / SECTOR / 64), 1 + n * 5 % 40);
                let bytes = vec![i; Bytes(sectors * SECTOR).to_usize()];
                pool.write(ByteOffset(first * SECTOR), &bytes).unwrap();
                let first = Bytes(first).to_usize();
                held[first..first + Bytes(sectors).to_usize()].fill(Some(i));
            }
        };
        let expect = |held: &[Option<u8>], when: &str| {
            for (sector, byte) in (0..).zip(held) {
                let Some(byte) = byte else { continue };
                let mut there = vec![0; Bytes(SECTOR).to_usize()];
                pool.read(ByteOffset(sector * SECTOR), &mut there).unwrap();
                assert!(there.iter().all(|b| b == byte), "{parities} of {n}, {when}: {sector}");
            }
        };
        write(&mut held, 1..40);
        expect(&held, "whole");
        for (turn, m) in (0..u8::try_from(parities).unwrap()).zip([1, 4]) {
            let lost = {
                let topology = pool.0.epochs.read();
                let device = topology.name(MemberIndex(m)).into();
                topology.named(&vec![(MemberIndex(m), DeviceError::ReadOnly { device })])
            };
            pool.0.fail_members(&lost).unwrap();
            expect(&held, "without one more");
            write(&mut held, 40 * (turn + 1)..40 * (turn + 2));
            expect(&held, "written without it");
        }
    }
}

#[test]
fn concurrent_partial_writes_of_one_row_keep_its_parity() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    std::thread::scope(|s| {
        for t in 0..6_u8 {
            let pool = &pool;
            s.spawn(move || {
                for i in 0..200 {
                    let at = ByteOffset((u64::from(t) * 4 + i % 4) * SECTOR);
                    pool.write(
                        at,
                        &[t.wrapping_mul(40).wrapping_add(u8::try_from(i).unwrap()); 512],
                    )
                    .unwrap();
                }
            });
        }
    });
    consistent(&pool, &all);
}

/// A file that was cut, or a disk that was exchanged, fails some reads and gives zeros for others.
#[test]
fn a_member_that_lost_its_labels_is_not_mended_but_taken_out() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let all = devices(3, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let bytes = vec![7; 64 << 10];
        pool.write(ByteOffset(0), &bytes).unwrap();
        let (member, _) = pool.map().locate(ByteOffset(0)).unwrap();
        let bad = &all[usize::from(member.0)];
        let zeros = vec![0; usize::try_from(bad.info().size.0).unwrap()];
        bad.inner().write(ByteOffset(0), &zeros).unwrap();
        bad.arm(On::Read, 0, FaultKind::Fails);
        let mut back = vec![0; 512];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert_eq!(failed(&pool), [member.0], "{layout:?}");
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "{layout:?}");
    }
}

/// The same, met on the way of a write that needs what stood there.
#[test]
fn a_member_that_lost_its_labels_is_taken_out_by_a_write_as_well() {
    let all = devices(5, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    let mut bytes = vec![7; 64 << 10];
    pool.write(ByteOffset(0), &bytes).unwrap();
    let (member, _) = pool.map().locate(ByteOffset(0)).unwrap();
    let bad = &all[usize::from(member.0)];
    let zeros = vec![0; usize::try_from(bad.info().size.0).unwrap()];
    bad.inner().write(ByteOffset(0), &zeros).unwrap();
    bad.arm(On::Read, 0, FaultKind::Fails);
    // Another unit of the row.
    let at = Bytes(UNIT + 512).to_usize();
    bytes[at..at + 512].fill(9);
    pool.write(ByteOffset(UNIT + 512), &bytes[at..at + 512]).unwrap();
    assert_eq!(failed(&pool), [member.0]);
    let mut back = vec![0; bytes.len()];
    pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back == bytes);
    consistent(&pool, &all);
}
