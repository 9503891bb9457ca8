use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_device::{CommandKind, Device, MemoryDevice, Rule, ScriptedDevice};
use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::health::slow::{LEAST, WINDOW};
use crate::health::suspect::{FAIL_AT, SUSPECT_AT};
use crate::layout::{Redundancy, parse};
use crate::{CreateOptions, Pool};

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
                assert_eq!(pool.fail_suspects().unwrap(), []);
            }
        }
        assert_eq!(steps[..2], [0, SUSPECT_AT], "{redundancy:?}");
        assert_eq!(pool.suspects(), [(sick, FAIL_AT)]);
        assert_eq!(pool.fail_suspects().unwrap(), [sick]);
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
        assert_eq!(pool.fail_suspects().unwrap(), []);
    }
}
