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

/// As [`Words`], of what had stood there long before the crash.
struct Settled;
impl ChecksumVerifier for Settled {
    fn verify(&self, _: ByteOffset, _: &[u8]) -> Option<bool> {
        None
    }
    fn verify_body(&self, at: ByteOffset, bytes: &[u8]) -> bool {
        Words.verify_body(at, bytes)
    }
    fn verify_sector(&self, at: ByteOffset, sector: &[u8]) -> bool {
        Words.verify_sector(at, sector)
    }
    fn is_settled(&self, _: ByteOffset, _: &[u8]) -> bool {
        true
    }
}

/// A pool that is written everywhere: so many pieces of metadata from the `at`th piece on, and file data. One
/// member returns garbage for all of it when the node dies. What was written.
fn with_garbage(
    layout: Layout,
    n: usize,
    (at, pieces): (usize, usize),
    sick: usize,
) -> (Vec<Arc<FaultyDevice>>, Pool, Vec<u8>) {
    let all = devices(n, |_| FaultPlan::default());
    let pool = pool(&all, layout);
    pool.attach(0).unwrap();
    let size = Bytes(pool.info().size.get()).to_usize();
    let mut bytes: Vec<u8> = (0..size).map(|i| u8::try_from(i * 7 % 253).unwrap()).collect();
    let parts = bytes.chunks_exact_mut(4096).skip(at).take(pieces);
    parts.for_each(|part| part.copy_from_slice(&piece((7, true), (2, true))));
    pool.write(ByteOffset(0), &bytes).unwrap();
    let start = pool.label().members[sick].data_start;
    all[sick].inner().write(start, &vec![0xee; 4 << 20]).unwrap();
    (all, pool, bytes)
}

/// A node dies before it has met the damage of a member that returns garbage: its file data, which has no
/// checksum, is not brought over that of the sound copy, and the labels say of which member it was.
#[test]
fn garbage_is_not_brought_over_a_sound_copy_that_its_metadata_tells_apart() {
    for (n, pieces) in [(2, 1), (2, 7), (2, 8), (2, 40), (3, 9)] {
        for sick in 0..n {
            let (all, pool, bytes) = with_garbage(Layout::Mirror, n, (900, pieces), sick);
            pool.recover_log_with(0, &Settled).unwrap();
            consistent(&pool, &all);
            let mut back = vec![0; bytes.len()];
            pool.read(ByteOffset(0), &mut back).unwrap();
            assert!(back == bytes, "{n} copies, {pieces} pieces, member {sick}");
            let label = pool.label();
            for (i, member) in label.members.iter().enumerate() {
                assert_eq!(member.suspected, i == sick && pieces >= 8, "{pieces} pieces, {sick}");
            }
        }
    }
}

/// The same with file data on parity: it is not computed anew from garbage.
#[test]
fn parity_is_not_computed_from_the_garbage_of_a_suspected_member() {
    for (n, parities) in [(4, 1), (4, 2)] {
        for sick in 0..n {
            let layout = Layout::MirrorThenParity(parities);
            let (all, pool, bytes) = with_garbage(layout, n, (0, 20), sick);
            pool.recover_log_with(0, &Settled).unwrap();
            consistent(&pool, &all);
            let mut back = vec![0; bytes.len()];
            pool.read(ByteOffset(0), &mut back).unwrap();
            assert!(back == bytes, "{parities} parities, member {sick}");
            let gone = MemberIndex(u16::try_from((sick + 1) % n).unwrap());
            pool.fail_member_by_force(gone).unwrap();
            pool.read(ByteOffset(0), &mut back).unwrap();
            assert!(back == bytes, "{parities} parities, member {sick}, then without {gone}");
        }
    }
}

/// What may have been under way when the node died shows no damage: nobody is suspected.
#[test]
fn a_copy_that_lags_behind_is_not_suspected() {
    let (all, pool, bytes) = with_garbage(Layout::Mirror, 2, (900, 40), 0);
    pool.recover_log_with(0, &Words).unwrap();
    consistent(&pool, &all);
    let mut back = vec![0; bytes.len()];
    pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(pool.suspects(), []);
    assert!(pool.label().members.iter().all(|m| !m.suspected));
}
