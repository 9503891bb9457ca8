use std::sync::Arc;

use braid_device::{
    CommandKind, Device, DeviceError, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Power,
    Rule, ScriptedDevice,
};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, dynamic, failed, pool};
use crate::{Destination, NoChecksums};

const ALL: [(usize, Layout); 6] = [
    (2, Layout::Mirror),
    (3, Layout::Mirror),
    (4, Layout::StripedMirrors),
    (4, Layout::Parity(1)),
    (5, Layout::Parity(2)),
    (4, Layout::MirrorThenParity(1)),
];

fn filled(pool: &Pool) -> Vec<u8> {
    let len = usize::try_from(pool.info().size.0).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap() | 1).collect();
    pool.write(ByteOffset(0), &bytes).unwrap();
    bytes
}

fn contents(pool: &Pool) -> Vec<u8> {
    let mut back = vec![0; usize::try_from(pool.info().size.0).unwrap()];
    pool.read(ByteOffset(0), &mut back).unwrap();
    back
}

/// How many bytes are zeros; the others must be as they were.
fn zeros(back: &[u8], before: &[u8], at: u64, len: u64) -> u64 {
    let range = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
    let mut zeros = 0;
    for (i, (now, before)) in back.iter().zip(before).enumerate() {
        if *now == 0 && range.contains(&i) {
            zeros += 1;
        } else {
            assert_eq!(now, before, "byte {i}");
        }
    }
    zeros
}

#[test]
fn all_copies_and_all_of_whole_rows_are_zeros_and_nothing_else_changes() {
    for (n, layout) in ALL {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let before = filled(&pool);
        let (at, len) = ((512 << 10) + 4096, (1 << 20) + 512);
        let given = pool.discard(ByteOffset(at), Bytes(len)).unwrap();
        let back = contents(&pool);
        assert_eq!(zeros(&back, &before, at, len), given.0, "{layout:?}");
        // Of rows of 12 KiB both edges are left.
        assert!(given.0 <= len && given.0 > len - 2 * 12288, "{layout:?}: {given}");
        if layout == Layout::Mirror {
            assert_eq!(given.0, len);
        }
        consistent(&pool, &all);
        let scrubbed = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
        assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)), "{layout:?}");
        // Less than a row is left alone, and so is nothing at all.
        assert_eq!(pool.discard(ByteOffset(at), Bytes(0)).unwrap(), Bytes(0));
        assert!(pool.discard(ByteOffset(512), pool.info().size).is_err());
    }
}

#[test]
fn less_than_a_row_of_parity_stays() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    let before = filled(&pool);
    assert_eq!(pool.discard(ByteOffset(4096), Bytes(2 * 12288 - 8192)).unwrap(), Bytes(0));
    assert!(contents(&pool) == before);
    assert_eq!(pool.discard(ByteOffset(4096), Bytes(2 * 12288 - 4096)).unwrap(), Bytes(12288));
    assert_eq!(zeros(&contents(&pool), &before, 12288, 12288), 12288);
    consistent(&pool, &all);
}

/// A record of the log that names a row is repeated after a crash: never over zeros.
#[test]
fn what_the_log_holds_of_a_row_does_not_come_back() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[7; 512]).unwrap();
    assert_eq!(pool.discard(ByteOffset(0), Bytes(12288)).unwrap(), Bytes(12288));
    // New contents of whole rows, which the log does not hold.
    let recovered = pool.recover_log(0).unwrap();
    assert_eq!((recovered.records, recovered.regions), (0, 1), "noted, and not to be repeated");
    assert!(contents(&pool).iter().all(|b| *b == 0));
    consistent(&pool, &all);
}

/// Power goes when some columns are zeros and some are not, of rows that were not written for long.
#[test]
fn a_power_cut_in_the_middle_is_made_whole() {
    for (n, layout) in ALL {
        let (at, len) = (12288 * 10, 12288 * 8);
        for cut in 0.. {
            let volatile = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
            let all = devices(n, |_| volatile.clone());
            let label = pool(&all, layout).label();
            let power = Power::on();
            let powered = |d: &Arc<FaultyDevice>| {
                ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
            };
            let pool = Pool::open(all.iter().map(powered).collect(), label.clone()).unwrap();
            pool.attach(0).unwrap();
            let before: Vec<u8> =
                (0..256 << 10).map(|i| u8::try_from(i % 251).unwrap() | 1).collect();
            pool.write(ByteOffset(0), &before).unwrap();
            // Nothing is noted any more.
            pool.detach().unwrap();
            pool.attach(0).unwrap();
            pool.flush().unwrap();
            power.cut_after(cut);
            let done = pool.discard(ByteOffset(at), Bytes(len)).is_ok();
            drop(pool);
            for (i, d) in (0..).zip(&all) {
                d.crash(cut * 31 + i).unwrap();
            }
            let pool = Pool::open(dynamic(&all), label).unwrap();
            pool.recover_log(0).unwrap();
            consistent(&pool, &all);
            let mut back = vec![0; before.len()];
            pool.read(ByteOffset(0), &mut back).unwrap();
            zeros(&back, &before, at, len);
            if done {
                assert!(cut > 2, "{layout:?}");
                break;
            }
        }
    }
}

#[test]
fn lost_columns_are_zeros_too_when_they_come_back() {
    for (n, layout) in [(3, Layout::Mirror), (4, Layout::Parity(1)), (5, Layout::Parity(2))] {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let before = filled(&pool);
        pool.fail_member(MemberIndex(1)).unwrap();
        let given = pool.discard(ByteOffset(0), Bytes(1 << 20)).unwrap();
        assert!(given.0 > 1_000_000, "{layout:?}");
        let after = contents(&pool);
        assert_eq!(zeros(&after, &before, 0, 1 << 20), given.0);
        let new = devices(1, |_| FaultPlan::default()).remove(0);
        pool.replace(MemberIndex(1), new.clone(), false).unwrap();
        // Also while it is being filled.
        let more = pool.discard(ByteOffset(2 << 20), Bytes(1 << 20)).unwrap();
        assert!(more.0 > 1_000_000, "{layout:?}");
        assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
        let mut all = all;
        all[1] = new;
        consistent(&pool, &all);
        let last = contents(&pool);
        assert_eq!(zeros(&last, &after, 2 << 20, 1 << 20), more.0);
    }
}

#[test]
fn a_member_that_fails_over_it_is_taken_out_and_one_that_only_cannot_is_not() {
    for (n, layout) in [(3, Layout::Mirror), (4, Layout::Parity(1))] {
        for (kind, gone) in [(FaultKind::Gone, true), (FaultKind::Fails, false)] {
            let all = devices(n, |_| FaultPlan::default());
            let pool = pool(&all, layout);
            pool.attach(0).unwrap();
            let before = filled(&pool);
            // The log's notes are written to the first members; this is the last.
            all[n - 1].arm(On::Write, 0, kind);
            let given = pool.discard(ByteOffset(0), Bytes(12288 * 20)).unwrap();
            assert_eq!(failed(&pool).len(), usize::from(gone), "{layout:?} {kind:?}");
            let back = contents(&pool);
            assert_eq!(zeros(&back, &before, 0, 12288 * 20), 12288 * 20);
            consistent(&pool, &all);
            if !gone {
                assert_eq!(given, Bytes(0), "not all gave it back");
                let more = pool.discard(ByteOffset(1 << 20), Bytes(12288 * 20)).unwrap();
                assert_eq!(more, Bytes(0), "it is not asked again");
                assert!(contents(&pool) == back);
            }
        }
    }
}

/// A device that does not know it, and says so before or only when it is asked.
fn unable(inner: Arc<dyn Device>, says: bool) -> (Arc<ScriptedDevice>, Arc<Rule>) {
    let device = ScriptedDevice::described(inner, |info| info.caps.deallocate = !says);
    let asked = device.add(Rule::on(&[CommandKind::Deallocate]).is_unsupported());
    (device, asked)
}

#[test]
fn where_one_member_cannot_nothing_changes_or_all_become_zeros() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        for says in [true, false] {
            let all = devices(n, |_| FaultPlan::default());
            let label = pool(&all, layout).label();
            let mut members = dynamic(&all);
            let (device, asked) = unable(members[1].clone(), says);
            let written = device.add(Rule::on(&[CommandKind::Write]));
            members[1] = device;
            let pool = Pool::open(members, label).unwrap();
            pool.attach(0).unwrap();
            let before = filled(&pool);
            let before_it = written.bytes();
            assert_eq!(pool.discard(ByteOffset(0), Bytes(12288 * 8)).unwrap(), Bytes(0));
            let back = contents(&pool);
            if says {
                assert!(back == before && asked.hits() == 0);
            } else {
                assert_eq!(zeros(&back, &before, 0, 12288 * 8), 12288 * 8, "{layout:?}");
                assert!(written.bytes() > before_it);
                let once = (written.bytes(), asked.hits());
                assert_eq!(pool.discard(ByteOffset(1 << 20), Bytes(1 << 20)).unwrap(), Bytes(0));
                assert!(contents(&pool) == back, "it is known now");
                assert_eq!((written.bytes(), asked.hits()), once);
            }
            consistent(&pool, &all);
        }
    }
}

/// What is moved goes to both devices, whatever the second can.
#[test]
fn a_member_that_is_being_moved_and_its_successor_are_zeroed_both() {
    for refuses in [false, true] {
        let all = devices(3, |_| FaultPlan::default());
        let pool = pool(&all, Layout::Mirror);
        pool.attach(0).unwrap();
        let before = filled(&pool);
        let target = devices(1, |_| FaultPlan::default()).remove(0);
        let device: Arc<dyn Device> =
            if refuses { unable(target.clone(), true).0 } else { target.clone() };
        pool.begin_evacuation(MemberIndex(1), Destination::Device { device, force: false })
            .unwrap();
        // Half is copied, then both halves lose something.
        let half = |p: crate::Progress| p.done.0 < p.total.0 / 2;
        assert!(!pool.evacuate(&|p| half(p)).unwrap_or(false));
        for at in [0, 3 << 20] {
            let given = pool.discard(ByteOffset(at), Bytes(1 << 20)).unwrap();
            assert_eq!(given, Bytes(1 << 20));
        }
        assert!(pool.evacuate(&|_| true).unwrap());
        let back = contents(&pool);
        assert_eq!(zeros(&back[..2 << 20], &before[..2 << 20], 0, 1 << 20), 1 << 20);
        assert!(back[3 << 20..].iter().all(|b| *b == 0));
        let scrubbed = pool.scrub(&NoChecksums, &mut |_, _| true).unwrap();
        assert_eq!((scrubbed.healed, scrubbed.undecided), (Bytes(0), Bytes(0)));
    }
}

#[test]
fn a_discard_that_may_still_land_is_no_refusal() {
    let io = |source| DeviceError::Io {
        device: "d".into(),
        operation: "discard",
        at: ByteOffset(0),
        source: Arc::new(source),
    };
    use std::io::{Error, ErrorKind};
    for refused in
        [Error::from_raw_os_error(5), Error::other("sense"), ErrorKind::ResourceBusy.into()]
    {
        assert!(super::is_refusal(&io(refused)));
    }
    assert!(!super::is_refusal(&io(ErrorKind::ConnectionAborted.into())));
    assert!(!super::is_refusal(&DeviceError::Fenced { device: "d".into() }));
}

/// A device whose session breaks while it gives space back.
fn breaks(inner: Arc<dyn Device>) -> Arc<ScriptedDevice> {
    let device = ScriptedDevice::over(inner);
    device.add(Rule::on(&[CommandKind::Deallocate]).fails_with(|at| DeviceError::Io {
        device: "d".into(),
        operation: "deallocate",
        at,
        source: Arc::new(std::io::ErrorKind::ConnectionAborted.into()),
    }));
    device
}

/// What may still land there must not do so on a member that is in use.
#[test]
fn a_member_of_a_group_over_which_it_may_still_land_is_taken_out() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        let all = devices(n, |_| FaultPlan::default());
        let label = pool(&all, layout).label();
        let mut members = dynamic(&all);
        members[n - 1] = breaks(members[n - 1].clone());
        let pool = Pool::open(members, label).unwrap();
        pool.attach(0).unwrap();
        let before = filled(&pool);
        pool.discard(ByteOffset(0), Bytes(12288 * 20)).unwrap();
        assert_eq!(failed(&pool).len(), 1, "{layout:?}");
        assert_eq!(zeros(&contents(&pool), &before, 0, 12288 * 20), 12288 * 20);
    }
}

/// Copies in memory take none for what was given back.
#[test]
fn bare_members_are_told() {
    let devices: Vec<Arc<dyn Device>> = (0..2)
        .map(|i| MemoryDevice::new(&format!("m{i}"), Bytes(64 << 20), Bytes(512)) as _)
        .collect();
    let pool = Pool::create(devices, &crate::assembly::create::CreateOptions::new("bare")).unwrap();
    let size = pool.info().size;
    pool.write(ByteOffset(0), &vec![3; 8 << 20]).unwrap();
    assert_eq!(pool.discard(ByteOffset(0), Bytes(4 << 20)).unwrap(), Bytes(4 << 20));
    let back = contents(&pool);
    assert!(back[..4 << 20].iter().all(|b| *b == 0));
    assert!(back[4 << 20..8 << 20].iter().all(|b| *b == 3));
    assert_eq!(pool.discard(ByteOffset(0), size).unwrap(), size);
    let asked: u64 = pool.issued().iter().map(|i| i.discards).sum();
    assert!(asked >= 4);
    pool.close();
    assert!(pool.discard(ByteOffset(0), Bytes(512)).is_err());
}

/// Writers and discards of neighbouring bytes at once: each byte is what its last user made it.
#[test]
fn discards_beside_writes_keep_copies_and_parity_right() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1)), (4, Layout::StripedMirrors)] {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        std::thread::scope(|s| {
            for t in 0..4_u64 {
                let pool = &pool;
                s.spawn(move || {
                    // Stripes of 20 KiB, which share rows with each other.
                    let at = |i: u64| ByteOffset((i * 4 + t) * 20480);
                    for round in 0..6_u8 {
                        for i in 0..12 {
                            if t % 2 == 0 && round % 2 == 1 {
                                pool.discard(at(i), Bytes(20480)).unwrap();
                            } else {
                                pool.write(at(i), &vec![round + 1; 20480]).unwrap();
                            }
                        }
                    }
                });
            }
        });
        consistent(&pool, &all);
        let back = contents(&pool);
        for i in 0..12_usize {
            for t in [1, 3] {
                let from = (i * 4 + t) * 20480;
                assert!(back[from..from + 20480].iter().all(|b| *b == 6), "{layout:?} {i} {t}");
            }
            for t in [0, 2] {
                let from = (i * 4 + t) * 20480;
                assert!(back[from..from + 20480].iter().all(|b| *b == 0 || *b == 5), "{layout:?}");
            }
        }
        let recovered = pool.recover_log(0).unwrap();
        assert_eq!(recovered.repaired, Bytes(0), "{layout:?}");
        assert!(contents(&pool) == back, "{layout:?}: the log brought something back");
    }
}
