#![allow(clippy::large_stack_arrays, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_device::{
    CommandKind, Device, FaultKind, FaultPlan, MemoryDevice, On, Rule, ScriptedDevice,
};
use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::health::slow::{LEAST, WINDOW};
use crate::health::suspect::{FAIL_AT, SUSPECT_AT};
use crate::layout::{Redundancy, parse};
use crate::redundancy::tests::{Layout, consistent, devices, pool};
use crate::redundancy::verifier::NoChecksums;
use crate::{ChecksumVerifier, CreateOptions, Destination, Pool, ReadPath};

#[test]
fn a_device_that_delays_is_named_stays_in_use_and_nothing_is_lost() {
    for layout in ["mirror(all)", "stripe(all)"] {
        for (delays, expected) in [([0, 20], &[1][..]), ([20, 20], &[])] {
            let device = |(i, ms): (usize, u64)| {
                let inner = MemoryDevice::new(&format!("m{i}"), Bytes(64 << 20), Bytes(512));
                let device = ScriptedDevice::over(inner);
                let delay = Duration::from_millis(ms);
                device.add(Rule::on(&[CommandKind::Write]).delays(delay));
                device as Arc<dyn Device>
            };
            let devices = delays.into_iter().enumerate().map(device).collect();
            let mut options = CreateOptions::new("slow");
            options.layout = Some(parse::layout(layout, &BTreeMap::new()).unwrap());
            let pool = Pool::create(devices, &options).unwrap();
            assert!(pool.watch(Duration::ZERO).is_empty());
            let block = |i: u64| vec![u8::try_from(i).unwrap(); 65536];
            let at = |i: u64| ByteOffset(i << 18);
            (0..LEAST * 2 + 2).for_each(|i| pool.write(at(i), &block(i)).unwrap());
            let noticed = pool.watch(WINDOW);
            let named: Vec<u16> = noticed.iter().filter(|n| n.slow).map(|n| n.member.0).collect();
            assert_eq!(named, expected, "{layout}: {noticed:?}");
            assert_eq!(pool.slow().len(), expected.len());
            for i in 0..LEAST * 2 + 2 {
                let mut back = vec![0; 65536];
                pool.read(at(i), &mut back).unwrap();
                assert!(back == block(i), "{layout}, block {i}");
            }
            let states = pool.member_states();
            assert!(states.iter().all(|(_, s)| *s == MemberState::Active), "{states:?}");
        }
    }
}

#[test]
fn a_member_of_garbage_is_suspected_then_failed_and_one_that_is_needed_stays() {
    for redundancy in [Redundancy::Mirror(2), Redundancy::Parity(1)] {
        let device =
            |n| MemoryDevice::new(&format!("m{n}"), Bytes(64 << 20), Bytes(512)) as Arc<dyn Device>;
        let options = CreateOptions { redundancy, ..CreateOptions::new("garbage") };
        let pool = Pool::create(
            (0..3 - usize::from(redundancy == Redundancy::Mirror(2))).map(device).collect(),
            &options,
        )
        .unwrap();
        let at = |n: u64| ByteOffset(n * 4096);
        for n in 0..FAIL_AT as u64 * 8 {
            pool.write(at(n), &[7; 4096]).unwrap();
        }
        let sick = MemberIndex(0);
        let label = pool.label();
        let start = label.members[0].data_start;
        for n in 0..FAIL_AT as u64 * 8 {
            pool.devices()[0].write(start + Bytes(n * 4096), &[0xee; 4096]).unwrap();
        }
        let good = |bytes: &[u8]| bytes.iter().all(|b| *b == 7);
        let mut steps = Vec::new();
        for n in 0..FAIL_AT as u64 * 8 {
            pool.blame(at(n), 4096, &good);
            // The same place twice is one.
            pool.blame(at(n), 4096, &good);
            let count = pool.suspects().first().map_or(0, |s| s.1);
            if steps.last() != Some(&count) {
                steps.push(count);
            }
            if count < FAIL_AT {
                assert_eq!(pool.fail_suspects(&|_| true).unwrap(), []);
            }
        }
        assert_eq!(steps[..2], [0, SUSPECT_AT], "{redundancy:?}");
        assert_eq!(pool.suspects(), [(sick, FAIL_AT)]);
        assert_eq!(pool.fail_suspects(&|_| true).unwrap(), [sick]);
        assert_eq!(pool.suspects(), []);
        let mut read = [0; 4096];
        for n in 0..FAIL_AT as u64 * 8 {
            pool.read(at(n), &mut read).unwrap();
            assert!(good(&read), "{redundancy:?}, block {n}");
        }
        // Another, which nobody can do without any more.
        for n in 0..FAIL_AT as u64 {
            pool.accuse(MemberIndex(1), at(n));
        }
        assert_eq!(pool.suspects(), [(MemberIndex(1), FAIL_AT)]);
        assert_eq!(pool.fail_suspects(&|_| true).unwrap(), []);
    }
}

/// A member has garbage in place of all file data, which has no checksum. Once it is suspected, what is
/// read is right, and parity is computed from what is right.
#[test]
fn a_suspected_member_is_read_last() {
    let layouts =
        [(2, Layout::Mirror), (3, Layout::Mirror), (4, Layout::Parity(1)), (5, Layout::Parity(2))];
    for (n, layout) in layouts {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let size = usize::try_from(pool.info().size.get()).unwrap();
        let mut bytes: Vec<u8> = (0..size).map(|i| u8::try_from(i * 7 % 253).unwrap()).collect();
        pool.write(ByteOffset(0), &bytes).unwrap();
        let (sick, start) = (MemberIndex(0), pool.label().members[0].data_start);
        let garbage = vec![0xee; 4 << 20];
        all[0].inner().write(start, &garbage).unwrap();
        for n in 0..SUSPECT_AT as u64 {
            pool.accuse(sick, ByteOffset(n * 4096));
        }
        assert_eq!(pool.suspects(), [(sick, SUSPECT_AT)]);
        let mut back = vec![0; size];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "{layout:?}");
        if layout == Layout::Mirror {
            // What no other member can read is not taken from it either, unless a checksum tells.
            let at = start + Bytes(4096 * 40);
            all.iter().skip(1).for_each(|device| device.spoil(at, Bytes(512)));
            let (place, mut piece) = (ByteOffset(4096 * 40), [0; 512]);
            assert!(pool.read(place, &mut piece).unwrap_err().is_of_one_place(), "{layout:?}");
            let mut other = |nth| pool.read_otherwise(ReadPath::Read, place, &mut piece, nth);
            assert!((0..n).any(|nth| matches!(other(nth), Ok(true))), "{layout:?}");
            assert_eq!(piece, [0xee; 512]);
            assert!(all[1].read(at, &mut back[..512]).is_err());
            pool.write(ByteOffset(4096 * 40), &bytes[4096 * 40..][..512]).unwrap();
        }
        // A small write into each row leaves the rest of the row right.
        let step = 16 * 1024;
        for at in (0..1 << 20).step_by(step) {
            bytes[at..at + 512].fill(9);
            pool.write(ByteOffset(at as u64), &[9; 512]).unwrap();
        }
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "{layout:?}");
        pool.fail_member(sick).unwrap();
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes, "{layout:?}");
        consistent(&pool, &all);
    }
}

/// Both copies are damaged, in different places: each has what the other lacks, so neither is failed by
/// itself, and a person is told.
#[test]
fn of_two_members_of_garbage_none_is_failed_while_the_other_stands_in_for_it() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        let pool = pool(&devices(n, |_| FaultPlan::default()), layout);
        pool.attach(0).unwrap();
        let block = |n: usize| ByteOffset(n as u64 * 4096);
        let (one, other) = (MemberIndex(0), MemberIndex(1));
        (0..FAIL_AT).for_each(|n| pool.accuse(one, block(n * 2)));
        (0..SUSPECT_AT).for_each(|n| pool.accuse(other, block(n * 2 + 1)));
        assert_eq!(pool.fail_suspects(&|_| true).unwrap(), [], "{layout:?}");
        assert!(pool.member_states().iter().all(|(_, state)| *state == MemberState::Active));
        (0..FAIL_AT).for_each(|n| pool.accuse(other, block(n * 2 + 1)));
        assert_eq!(pool.fail_suspects(&|_| true).unwrap(), [], "{layout:?}");
        let spare = || MemoryDevice::new("spare", Bytes(64 << 20), Bytes(512)) as Arc<dyn Device>;
        // A copy of what it returns would be trusted.
        let to = Destination::Device { device: spare(), force: false };
        let moved = pool.begin_evacuation(one, to).unwrap_err().to_string();
        assert!(moved.contains("is not copied"), "{moved}");
        for refused in [pool.fail_member(one), pool.replace(other, spare(), false)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("braid scrub") && said.contains("is suspected"), "{said}");
        }
        pool.fail_member_by_force(one).unwrap();
        assert_eq!(pool.member_states()[0].1, MemberState::Failed);
    }
}

/// The last member that is not suspected fails: the pool does not go on with garbage.
#[test]
fn the_last_member_that_is_not_suspected_is_not_failed_by_itself() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        let all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let bytes = vec![7; 1 << 20];
        pool.write(ByteOffset(0), &bytes).unwrap();
        (0..SUSPECT_AT as u64).for_each(|n| pool.accuse(MemberIndex(0), ByteOffset(n * 4096)));
        all[1].arm(On::Write, 0, FaultKind::Gone);
        assert!(pool.write(ByteOffset(0), &bytes).is_err(), "{layout:?}");
        assert!(pool.read(ByteOffset(0), &mut vec![0; 1 << 20]).is_err(), "{layout:?}");
        assert!(pool.member_states().iter().all(|(_, state)| *state == MemberState::Active));
        let said = pool.fail_member(MemberIndex(1)).unwrap_err().to_string();
        assert!(
            said.contains("`braid replace POOL 0 DEVICE`") && !said.contains("--force"),
            "{said}"
        );
        // It is back.
        all[1].heal();
        pool.write(ByteOffset(0), &bytes).unwrap();
        // The suspected one may go.
        all[0].arm(On::Write, 0, FaultKind::Gone);
        pool.write(ByteOffset(0), &bytes).unwrap();
        assert_eq!(pool.member_states()[0].1, MemberState::Failed, "{layout:?}");
    }
}

/// An operator has changed a cable.
#[test]
fn a_suspicion_is_cleared_by_an_operator_but_not_while_a_member_is_out() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Mirror);
    pool.attach(0).unwrap();
    let suspect = |member: u16, from: u64| {
        let places = from..from + SUSPECT_AT as u64;
        places.for_each(|n| pool.accuse(MemberIndex(member), ByteOffset(n * 4096)));
        pool.mark_suspects().unwrap();
    };
    let sick = MemberIndex(0);
    suspect(0, 0);
    let epoch = pool.info().epoch;
    assert_eq!(pool.plan_clear(None).unwrap(), [sick]);
    assert_eq!(pool.plan_clear(Some(MemberIndex(1).into())).unwrap(), []);
    assert_eq!((pool.info().epoch, pool.suspects().len()), (epoch, 1));
    assert_eq!(pool.clear_suspicion(Some(sick.into())).unwrap(), [sick]);
    assert!(pool.suspects().is_empty() && !pool.label().members[0].suspected);
    // It counts from zero on.
    pool.accuse(sick, ByteOffset(0));
    assert!(pool.suspects().is_empty());
    suspect(0, 1);
    let uuid = pool.label().members[0].uuid;
    pool.fail_member(MemberIndex(2)).unwrap();
    let met = pool.suspects();
    // It was asked for before that member was out.
    assert!(pool.trust(&[uuid]).unwrap_err().to_string().contains("member 2"));
    assert_eq!(pool.suspects(), met);
    for named in [None, Some(sick.into()), Some(MemberIndex(2).into())] {
        let said = pool.clear_suspicion(named).unwrap_err().to_string();
        assert!(said.contains("member 2") && said.contains("is failed"), "{said}");
    }
    assert_eq!(pool.suspects().len(), 1);
    assert_eq!(pool.member_states()[2].1, MemberState::Failed);
    // Where the labels cannot be told, what this node has met counts as before.
    pool.close();
    pool.trust(&[uuid]).unwrap_err();
    assert_eq!(pool.suspects(), met);
}

/// Of three copies two are damaged: the third has everything.
#[test]
fn two_members_of_garbage_are_failed_if_a_sound_one_has_everything() {
    let pool = pool(&devices(3, |_| FaultPlan::default()), Layout::Mirror);
    pool.attach(0).unwrap();
    for sick in [0, 2] {
        (0..FAIL_AT).for_each(|n| pool.accuse(MemberIndex(sick), ByteOffset(n as u64 * 4096)));
    }
    assert_eq!(pool.fail_suspects(&|_| false).unwrap(), [], "not scrubbed");
    assert_eq!(pool.to_be_failed().len(), 2);
    assert_eq!(pool.fail_suspects(&|_| true).unwrap(), [MemberIndex(0), MemberIndex(2)]);
}

/// What one node has seen is in the labels: who opens the pool after it does not trust the member either,
/// until a scrub has read everything and found nothing wrong.
#[test]
fn a_suspicion_outlasts_the_node_and_ends_with_a_clean_scrub() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        let all = devices(n, |_| FaultPlan::default());
        let made = pool(&all, layout);
        made.attach(0).unwrap();
        made.write(ByteOffset(0), &[7; 1 << 20]).unwrap();
        let (sick, other) = (MemberIndex(0), MemberIndex(1));
        (0..SUSPECT_AT).for_each(|n| made.accuse(sick, ByteOffset(n as u64 * 4096)));
        assert_eq!(made.mark_suspects().unwrap(), [sick], "{layout:?}");
        let epoch = made.info().epoch;
        assert_eq!(made.mark_suspects().unwrap(), [], "once");
        assert_eq!(made.info().epoch, epoch);
        drop(made);
        let open = || {
            let all = all.iter().map(|d| d.clone() as Arc<dyn Device>);
            let pool = Pool::assemble(all.collect()).unwrap();
            pool.attach(0).unwrap();
            pool
        };
        let later = open();
        assert_eq!(later.suspects(), [(sick, 0)], "{layout:?}");
        let said = later.fail_member(other).unwrap_err().to_string();
        assert!(said.contains("is suspected"), "{said}");
        // What it returns is wrong in a place: that is mended, and the member is not trusted yet.
        all[0].inner().write(later.label().members[0].data_start, &[0xee; 512]).unwrap();
        let good = |bytes: &[u8]| bytes.iter().all(|b| *b == 7);
        assert!(later.ask_suspects(ByteOffset(0), 4096, &good));
        assert_eq!(later.suspects(), [(sick, 1)], "{layout:?}");
        assert!(later.heal(ByteOffset(0), Bytes(4096), &good).unwrap());
        assert_eq!(later.suspects(), [(sick, 1)], "{layout:?}");
        let ended = later.scrub(&NoChecksums, &mut |_, _| false).unwrap();
        assert!(!ended.finished && !later.suspects().is_empty(), "{layout:?}");
        assert!(later.scrub(&NoChecksums, &mut |_, _| true).unwrap().is_clean(), "{layout:?}");
        assert_eq!(later.suspects(), [], "{layout:?}");
        drop(later);
        let last = open();
        assert_eq!(last.suspects(), [], "{layout:?}");
        last.fail_member(other).unwrap();
    }
}

/// A suspicion does not end because the member that it would be compared with is lost.
#[test]
fn a_scrub_without_the_other_copy_clears_nobody() {
    let pool = pool(&devices(3, |_| FaultPlan::default()), Layout::Mirror);
    pool.attach(0).unwrap();
    pool.fail_member(MemberIndex(2)).unwrap();
    (0..SUSPECT_AT).for_each(|n| pool.accuse(MemberIndex(0), ByteOffset(n as u64 * 4096)));
    assert_eq!(pool.mark_suspects().unwrap(), [MemberIndex(0)]);
    assert!(pool.scrub(&NoChecksums, &mut |_, _| true).unwrap().is_clean());
    assert_eq!(pool.suspects().len(), 1);
}

/// Knows pieces of sevens.
struct Sevens;
impl ChecksumVerifier for Sevens {
    fn verify(&self, _: ByteOffset, bytes: &[u8]) -> Option<bool> {
        bytes.iter().all(|b| *b == 7).then_some(true)
    }
}

/// What is healed shows nothing any more. So the labels say who is suspected before it is: a node that ends
/// in the middle of a scrub leaves a member that is suspected.
#[test]
fn a_member_is_marked_before_what_shows_that_it_returns_garbage_is_healed() {
    for how in ["scrub", "heal"] {
        let all = devices(2, |_| FaultPlan::default());
        let pool = pool(&all, Layout::Mirror);
        pool.attach(0).unwrap();
        pool.write(ByteOffset(0), &vec![7; 2 << 20]).unwrap();
        let start = pool.label().members[0].data_start;
        all[0].inner().write(start, &vec![0xee; 2 << 20]).unwrap();
        let labels = |pool: &Pool| pool.label().members[0].suspected;
        if how == "scrub" {
            let found = pool.scrub(&Sevens, &mut |_, found| {
                assert!(labels(&pool) && found.healed > Bytes(0), "after the first piece");
                false
            });
            assert!(!found.unwrap().finished);
        } else {
            (0..SUSPECT_AT).for_each(|n| pool.accuse(MemberIndex(0), ByteOffset(n as u64 * 4096)));
            let good = |bytes: &[u8]| bytes.iter().all(|b| *b == 7);
            assert!(pool.heal(ByteOffset(0), Bytes(4096), &good).unwrap());
            assert!(labels(&pool));
        }
    }
}
