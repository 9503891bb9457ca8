use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice};
use braid_format::lock_record::RawLockRecord;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, failed, pool};
use crate::{ChecksumVerifier, NoChecksums};

const SECTOR: usize = 512;

/// Knows pieces by a word: a record that ends with it, a body that ends with it.
struct Words;
const GOOD: &[u8] = b"good";
impl ChecksumVerifier for Words {
    fn verify(&self, _: ByteOffset, _: &[u8]) -> Option<bool> {
        None
    }
    fn verify_body(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        at.0.is_multiple_of(4096) && bytes.len() == 4096 && bytes.ends_with(GOOD)
    }
    fn verify_sector(&self, at: ByteOffset, sector: &[u8]) -> bool {
        at.0.is_multiple_of(4096) && sector.ends_with(GOOD)
    }
}

/// A record, and a body behind it.
fn piece(record: (u8, bool), body: (u8, bool)) -> Vec<u8> {
    let mut piece = vec![body.0; 4096];
    piece[..SECTOR].fill(record.0);
    piece[..4].copy_from_slice(&RawLockRecord::MAGIC.to_le_bytes());
    for (end, good) in [(SECTOR, record.1), (4096, body.1)] {
        if good {
            piece[end - GOOD.len()..end].copy_from_slice(GOOD);
        }
    }
    piece
}

/// Puts `copies` on the members behind a pool's back, after a write of these bytes.
fn crashed(copies: &[Vec<u8>], at: u64) -> (Vec<Arc<FaultyDevice>>, Pool) {
    let all = devices(copies.len(), |_| FaultPlan::default());
    let pool = pool(&all, Layout::Mirror);
    pool.attach(0).unwrap();
    pool.write(ByteOffset(at), &copies[0]).unwrap();
    let start = pool.label().members[0].data_start.0;
    for (device, bytes) in all.iter().zip(copies) {
        device.inner().write(ByteOffset(start + at), bytes).unwrap();
    }
    (all, pool)
}

fn recovered(copies: &[Vec<u8>], verifier: &dyn ChecksumVerifier) -> Vec<u8> {
    // In the last piece of one chunk and in the first of another.
    let found = [(1 << 20) - 4096, 1 << 20].map(|at| {
        let (all, pool) = crashed(copies, at);
        pool.recover_log_with(0, verifier).unwrap();
        consistent(&pool, &all);
        assert_eq!(pool.recover_log_with(0, verifier).unwrap().repaired, Bytes(0));
        let mut back = vec![0; copies[0].len()];
        pool.read(ByteOffset(at), &mut back).unwrap();
        back
    });
    assert!(found[0] == found[1]);
    found[0].clone()
}

#[test]
fn what_a_checksum_knows_counts_before_the_first_copy() {
    for bad in [0, 1] {
        let rotten = |copy| bad != copy;
        // The record is the first copy's in any case, since nothing says otherwise.
        let copies = [0, 1].map(|c| piece((7, true), (if rotten(c) { 3 } else { 4 }, rotten(c))));
        assert!(recovered(&copies, &Words) == copies[1 - bad], "body {bad}");
        let copies = [0, 1].map(|c| piece((if rotten(c) { 3 } else { 4 }, rotten(c)), (7, true)));
        assert!(recovered(&copies, &Words) == copies[1 - bad], "record {bad}");
    }
}

#[test]
fn a_record_and_what_stands_behind_it_are_right_on_different_copies() {
    // The record was changed on the first copy alone when the node died.
    let copies = [piece((9, true), (1, false)), piece((8, true), (2, true))];
    assert!(recovered(&copies, &Words) == piece((9, true), (2, true)));
    let copies = [piece((9, false), (1, true)), piece((8, true), (2, false))];
    assert!(recovered(&copies, &Words) == piece((8, true), (1, true)));
}

#[test]
fn where_both_or_none_is_good_the_first_counts() {
    for good in [true, false] {
        let copies = [piece((9, good), (1, good)), piece((8, good), (2, good))];
        assert!(recovered(&copies, &Words) == copies[0]);
        assert!(recovered(&copies, &NoChecksums) == copies[0]);
    }
}

#[test]
fn of_three_copies_two_count_but_not_for_records() {
    let odd = [piece((9, false), (1, false)), piece((8, false), (2, false))];
    for first in [0, 1] {
        let copies = [odd[first].clone(), odd[1 - first].clone(), odd[1 - first].clone()];
        let mut right = odd[1 - first].clone();
        right[..SECTOR].copy_from_slice(&odd[first][..SECTOR]);
        assert!(recovered(&copies, &NoChecksums) == right);
    }
    let copies = [odd[0].clone(), odd[0].clone(), odd[1].clone()];
    assert!(recovered(&copies, &NoChecksums) == odd[0]);
}

/// If one sector of a copy could not be read, all of the chunk was taken from the first copy.
#[test]
fn a_bad_sector_takes_nothing_of_a_good_copy_with_it() {
    let copies = [piece((7, true), (1, false)), piece((7, true), (2, true))];
    let (all, pool) = crashed(&copies, 8192);
    let start = pool.label().members[0].data_start.0;
    all[1].spoil(ByteOffset(start + 64 * 1024), Bytes(512));
    pool.recover_log_with(0, &Words).unwrap();
    assert!(failed(&pool).is_empty());
    consistent(&pool, &all);
    let mut back = vec![0; 4096];
    pool.read(ByteOffset(8192), &mut back).unwrap();
    assert!(back == copies[1]);
    assert!(all[1].read(ByteOffset(start + 64 * 1024), &mut back).is_ok());
}

/// After a crash a suspected first copy is not brought over another one, where nothing is known of the
/// bytes. Records are the first copy's in any case.
#[test]
fn a_suspected_copy_is_not_brought_over_a_sound_one() {
    let copies = [piece((7, true), (1, false)), piece((7, true), (2, false))];
    for sick in [0_u16, 1] {
        let (all, pool) = crashed(&copies, 8192);
        for place in 0..8 {
            pool.accuse(MemberIndex(sick), ByteOffset(place * 4096));
        }
        pool.recover_log_with(0, &NoChecksums).unwrap();
        consistent(&pool, &all);
        let mut back = vec![0; 4096];
        pool.read(ByteOffset(8192), &mut back).unwrap();
        assert!(back == copies[usize::from(1 - sick)], "{sick}");
    }
}
