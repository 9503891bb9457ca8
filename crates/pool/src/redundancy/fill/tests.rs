use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice};
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, pool};
use crate::reshape::tests::{Content, fresh};
use crate::{ChecksumVerifier, NoChecksums, Progress, Scrubbed, Verification};

const GO: &(dyn Fn(Progress) -> bool + Sync) = &|_| true;
/// Where rot is, in each member's data: in two chunks of what is filled, in the first and last sectors of
/// pieces.
const ROTTEN: [u64; 3] = [0, (1 << 20) + 4096 * 5 + 3584, (1 << 20) + 4096 * 9];

/// Knows what has not been flipped by [`rot`].
struct Checksums;
impl ChecksumVerifier for Checksums {
    fn verify(&self, _: ByteOffset, bytes: &[u8]) -> Option<bool> {
        Some(!bytes.chunks(512).any(|s| s[7] != s[8]))
    }
}

/// Flips bits of what `member` holds.
fn rot(all: &[Arc<FaultyDevice>], pool: &Pool, member: usize) {
    let start = pool.label().members[member].data_start.0;
    for at in ROTTEN {
        let mut sector = [0; 512];
        all[member].read(ByteOffset(start + at), &mut sector).unwrap();
        sector[7] ^= 0x20;
        all[member].write(ByteOffset(start + at), &sector).unwrap();
    }
}

/// A pool of which the last member is filled while others have rotted, and what was found.
fn filled(
    n: usize,
    layout: Layout,
    rotten: &[usize],
    verifier: &dyn ChecksumVerifier,
) -> (Vec<Arc<FaultyDevice>>, Pool, Content, Scrubbed) {
    let mut all = devices(n, |_| FaultPlan::default());
    let pool = pool(&all, layout);
    pool.attach(0).unwrap();
    let content = Content::fill(&pool, 17);
    let new = fresh("new", &all[n - 1]);
    let last = MemberIndex(u16::try_from(n - 1).unwrap());
    pool.replace(last, new.clone(), false).unwrap();
    all[n - 1] = new;
    rotten.iter().for_each(|member| rot(&all, &pool, *member));
    let verification = Verification::by(verifier);
    assert!(pool.rebuild_with(last, &verification, GO).unwrap());
    (all, pool, content, verification.found())
}

#[test]
fn rot_on_a_source_is_healed_by_the_majority_and_not_copied() {
    for rotten in 0..3 {
        let (all, pool, content, found) = filled(4, Layout::Mirror, &[rotten], &NoChecksums);
        assert!(found.healed.0 >= 3 * 512 && found.undecided == Bytes(0), "{found:?}");
        content.check(&pool);
        consistent(&pool, &all);
    }
}

#[test]
fn what_a_checksum_knows_decides_between_two_sources() {
    for rotten in 0..2 {
        let (all, pool, content, found) = filled(3, Layout::Mirror, &[rotten], &Checksums);
        assert!(found.healed.0 >= 3 * 512 && found.undecided == Bytes(0), "{found:?}");
        content.check(&pool);
        consistent(&pool, &all);
    }
}

#[test]
fn what_nobody_can_decide_is_counted_and_named() {
    for rotten in 0..2 {
        let (_, pool, _, found) = filled(3, Layout::Mirror, &[rotten], &NoChecksums);
        assert_eq!((found.healed, found.undecided), (Bytes(0), Bytes(3 * 4096)), "{rotten}");
        let places: Vec<u64> = found.places.iter().map(|p| p.0 / 4096 * 4096).collect();
        let mut wanted: Vec<u64> = ROTTEN.iter().map(|at| at / 4096 * 4096).collect();
        wanted.sort_unstable();
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, wanted);
        assert!(pool.rebuilding().is_none());
    }
}

/// One copy has it from the other: there is nothing to be compared with.
#[test]
fn the_last_copy_is_believed() {
    let (all, pool, _, found) = filled(2, Layout::Mirror, &[0], &Checksums);
    assert_eq!(found, Scrubbed::default());
    consistent(&pool, &all);
}

#[test]
fn rot_in_a_row_of_two_parities_is_counted_whatever_column_is_filled() {
    for rotten in 0..4 {
        let (_, pool, content, found) = filled(5, Layout::Parity(2), &[rotten], &NoChecksums);
        // Each row by itself; three units of one column have rotted.
        assert_eq!((found.healed, found.places.len()), (Bytes(0), 3), "{rotten}: {found:?}");
        assert!(found.places.iter().all(|at| at.0.is_multiple_of(3 * 4096)));
        drop((pool, content));
    }
    let (all, pool, content, found) = filled(5, Layout::Parity(2), &[], &NoChecksums);
    assert_eq!(found, Scrubbed::default());
    content.check(&pool);
    consistent(&pool, &all);
}

/// The pool's bytes are not those of the group where mirrors are striped.
#[test]
fn places_are_the_pools() {
    let mut all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::StripedMirrors);
    for group in [0, 1] {
        for (from, to) in [(0, 1 << 20), (70_000, 70_001), ((4 << 20) - 512, 4 << 20)] {
            let mut runs = pool.map().runs_on(group, from, to);
            runs.sort_unstable();
            let mut at = from;
            for (logical, a, b) in runs {
                let piece = pool.map().pieces(ByteOffset(logical), Bytes(b - a)).next().unwrap();
                assert_eq!((piece.at.0, piece.len.0, a), (a, b - a, at));
                assert_eq!(piece.place, crate::Place::Group(group));
                at = b;
            }
            assert_eq!(at, to);
        }
    }
    all.clear();
}
