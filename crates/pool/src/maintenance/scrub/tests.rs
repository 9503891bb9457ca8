use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::*;
use crate::health::suspect::SUSPECT_AT;
use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, pool};
use crate::redundancy::verifier::NoChecksums;

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 7 % 253).unwrap()).collect()
}

/// A pool with known bytes on its first 2 MiB.
fn known(n: usize, layout: Layout) -> (Vec<Arc<FaultyDevice>>, Pool, Vec<u8>) {
    let all = devices(n, |_| FaultPlan::default());
    let pool = pool(&all, layout);
    let bytes = content(2 << 20);
    pool.write(ByteOffset(0), &bytes).unwrap();
    (all, pool, bytes)
}

fn scrub(pool: &Pool, verifier: &dyn ChecksumVerifier) -> Scrubbed {
    pool.scrub(verifier, &mut |_, _| true).unwrap()
}

/// Knows the bytes that [`known`] wrote.
struct Knows(Vec<u8>);
impl ChecksumVerifier for Knows {
    fn verify(&self, at: ByteOffset, bytes: &[u8]) -> Option<bool> {
        let at = usize::try_from(at.0).unwrap();
        Some(self.0.get(at..at + bytes.len())? == bytes)
    }
}

/// Flips a bit of what `member` holds, `at` bytes into its data.
fn rot(all: &[Arc<FaultyDevice>], pool: &Pool, member: usize, at: u64) {
    let start = pool.label().members[member].data_start.0;
    let mut sector = [0; 512];
    let place = ByteOffset(start + at / 512 * 512);
    let device = all[member].inner();
    device.read(place, &mut sector).unwrap();
    sector[7] ^= 0x20;
    device.write(place, &sector).unwrap();
}

#[test]
fn a_whole_pool_has_nothing_to_heal() {
    for layout in [Layout::Mirror, Layout::StripedMirrors, Layout::Parity(1), Layout::Parity(2)] {
        let (_, pool, _) = known(4, layout);
        let report = scrub(&pool, &NoChecksums);
        assert_eq!((report.healed, report.undecided), (Bytes(0), Bytes(0)), "{layout:?}");
        assert!(report.finished && report.checked == pool.info().size);
    }
}

#[test]
fn rot_on_any_member_is_found_and_healed_where_redundancy_says_which() {
    for (n, layout) in [(3, Layout::Mirror), (5, Layout::Parity(2))] {
        for member in 0..n {
            let (all, pool, bytes) = known(n, layout);
            for at in [0, 70_000, 4096 * 31] {
                rot(&all, &pool, member, at);
            }
            let report = scrub(&pool, &NoChecksums);
            assert!(report.healed.0 >= 3 * 512, "{layout:?} {member}: {report:?}");
            assert_eq!(report.undecided, Bytes(0));
            consistent(&pool, &all);
            let mut back = vec![0; bytes.len()];
            pool.read(ByteOffset(0), &mut back).unwrap();
            assert!(back == bytes);
        }
    }
}

/// Two columns of each row are wrong: that of a member which is suspected, and another one that agrees with it by one
/// of two parities, as if it had been filled from the garbage. What the suspected member says does not make the other
/// parity the wrong one.
#[test]
fn a_suspected_member_does_not_decide_which_column_of_a_row_is_wrong() {
    let (all, pool, _) = known(5, Layout::Parity(2));
    let sick = 1;
    // Both change by the same, so the first parity, which is their sum, still agrees.
    let before = content(64 << 10);
    for member in [sick, 3] {
        let start = pool.label().members[member].data_start;
        let mut column = vec![0; 64 << 10];
        all[member].inner().read(start, &mut column).unwrap();
        column.iter_mut().zip(&before).for_each(|(byte, change)| *byte ^= change | 1);
        all[member].inner().write(start, &column).unwrap();
    }
    let columns = || -> Vec<Vec<u8>> {
        let label = pool.label();
        let read = |(device, start): (&Arc<FaultyDevice>, ByteOffset)| {
            let mut column = vec![0; 1 << 20];
            device.inner().read(start, &mut column).unwrap();
            column
        };
        all.iter().zip(label.members.iter().map(|m| m.data_start)).map(read).collect()
    };
    let wrong = columns();
    for n in 0..SUSPECT_AT as u64 {
        pool.accuse(MemberIndex(1), ByteOffset(n * 4096));
    }
    let report = scrub(&pool, &NoChecksums);
    assert!(report.undecided >= Bytes(64 << 10), "{report:?}");
    let now = columns();
    for member in [0, 2, 3, 4] {
        assert!(now[member] == wrong[member], "member {member} was changed: {report:?}");
    }
}

/// A suspected member's column is healed from the others, whatever it is.
#[test]
fn the_column_of_a_suspected_member_is_made_to_agree_with_the_others() {
    for sick in 0..5 {
        let (all, pool, bytes) = known(5, Layout::Parity(2));
        let start = pool.label().members[sick].data_start;
        all[sick].inner().write(start, &vec![0xee; 1 << 20]).unwrap();
        for n in 0..SUSPECT_AT as u64 {
            pool.accuse(MemberIndex(u16::try_from(sick).unwrap()), ByteOffset(n * 4096));
        }
        let report = scrub(&pool, &NoChecksums);
        assert!(report.healed > Bytes(512 << 10) && report.undecided == Bytes(0), "{report:?}");
        consistent(&pool, &all);
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes);
    }
}

/// A power cut right after it takes no healing back: then another copy of the same may rot.
#[test]
fn what_a_scrub_has_healed_is_durable() {
    let volatile = |_| FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    for seed in 0..8 {
        let all = devices(3, volatile);
        let pool = pool(&all, Layout::Mirror);
        let bytes = content(1 << 20);
        pool.write(ByteOffset(0), &bytes).unwrap();
        pool.flush().unwrap();
        rot(&all, &pool, 1, 70_000);
        assert_eq!(scrub(&pool, &NoChecksums).healed, Bytes(512));
        all.iter().for_each(|d| d.crash(seed).unwrap());
        assert_eq!(scrub(&pool, &NoChecksums).healed, Bytes(0), "{seed}");
    }
}

#[test]
fn rot_that_redundancy_cannot_place_is_healed_by_checksum_or_left_alone() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1))] {
        let (all, pool, bytes) = known(n, layout);
        let (member, place) = pool.map().locate(ByteOffset(8192)).unwrap();
        let member = usize::from(member.0);
        let start = pool.label().members[member].data_start.0;
        rot(&all, &pool, member, place.0 - start);
        let report = scrub(&pool, &NoChecksums);
        assert_eq!(report.healed, Bytes(0), "{layout:?}");
        assert!(report.undecided.0 > 0 && !report.places.is_empty());
        let report = scrub(&pool, &Knows(bytes.clone()));
        assert!(report.healed.0 > 0, "{layout:?}: {report:?}");
        assert_eq!(report.undecided, Bytes(0));
        consistent(&pool, &all);
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes);
    }
}

#[test]
fn sectors_that_cannot_be_read_are_written_anew() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1)), (5, Layout::Parity(2))] {
        let (all, pool, bytes) = known(n, layout);
        let start = pool.label().members[1].data_start.0;
        all[1].spoil(ByteOffset(start + 8192), Bytes(1024));
        let report = scrub(&pool, &NoChecksums);
        assert!(report.healed.0 > 0, "{layout:?}: {report:?}");
        assert_eq!(report.undecided, Bytes(0));
        consistent(&pool, &all);
        let mut back = vec![0; bytes.len()];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == bytes);
    }
}

#[test]
fn bad_bytes_are_read_otherwise_and_put_back() {
    for (n, layout) in [(2, Layout::Mirror), (4, Layout::Parity(1)), (5, Layout::Parity(2))] {
        let (all, pool, bytes) = known(n, layout);
        let (member, place) = pool.map().locate(ByteOffset(4096)).unwrap();
        let member = usize::from(member.0);
        let start = pool.label().members[member].data_start.0;
        rot(&all, &pool, member, place.0 - start);
        let (at, good) = (ByteOffset(4096), &bytes[4096..8192]);
        let mut back = vec![0; 4096];
        pool.read(at, &mut back).unwrap();
        assert_ne!(back, good);
        assert!(pool.read_otherwise(ReadPath::Read, at, &mut back, 0).unwrap());
        assert_eq!(back, good, "{layout:?}");
        assert!(!pool.read_otherwise(ReadPath::Read, at, &mut vec![0; 4096], 5).unwrap());
        assert!(pool.heal(at, Bytes::from(good.len()), &|b| b == good).unwrap());
        pool.read(at, &mut back).unwrap();
        assert_eq!(back, good);
        consistent(&pool, &all);
    }
}

/// A place that is reported can be found on the devices.
#[test]
fn a_place_of_the_pool_is_known_by_device() {
    for (n, layout, copies) in [
        (3, Layout::Mirror, 3),
        (4, Layout::StripedMirrors, 2),
        (4, Layout::Parity(1), 1),
        (5, Layout::Parity(2), 1),
    ] {
        let (all, pool, bytes) = known(n, layout);
        for at in [0, 512, 4096, 70_144, 1 << 20] {
            let replicas = pool.placements(ByteOffset(at));
            let columns = if copies == 1 { n } else { copies };
            assert_eq!(replicas.len(), columns, "{layout:?} at {at}");
            let there = |home: &&(MemberIndex, ByteOffset)| {
                let mut sector = vec![0; 512];
                all[usize::from(home.0.0)].read(home.1, &mut sector).unwrap();
                bytes[usize::try_from(at).unwrap()..].starts_with(&sector)
            };
            assert_eq!(replicas.iter().filter(there).count(), copies, "{layout:?} at {at}");
        }
        assert!(pool.placements(ByteOffset(pool.info().size.0)).is_empty());
    }
}
