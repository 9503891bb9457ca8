//! Tests of the metadata cache, group commit, journal and replay together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_format::meta::MetaKind;
use braid_format::{BlockNo, Bytes, FormatError, Generation, Incarnation, LockNo, NodeId};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::metadata::LOGGED_MIN;
use super::*;
use crate::error::{Error, Result};
use crate::journal::GENERATION_AFTER_LOSS;
use crate::replay::Replayed;
use crate::replay::tests::replay;
use crate::test_volume::{Fate, Rng, Shape, TestVolume};

const NODE: NodeId = NodeId(0);
const KIND: MetaKind = MetaKind::DirLeaf;
/// Where the tests keep a value in a body.
const AT: usize = 64;

fn open(t: &TestVolume, incarnation: u32) -> Meta {
    Meta::open(t.volume.clone(), NODE, Incarnation(incarnation), 8 << 20).unwrap()
}
fn owner_of(t: &TestVolume, slot: u64) -> LockNo {
    LockNo::from(t.slot(slot / 3 * 3))
}
/// Writes a value all over the body.
fn fill(body: &mut [u8], value: u64) {
    for word in body[AT..].chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}
fn value_in(body: &[u8]) -> u64 {
    let words: Vec<u64> =
        body[AT..].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    assert!(words.iter().all(|w| *w == words[0]), "a body holds two values");
    words[0]
}
/// Sets slot `n`, creating it at its first use.
fn set(t: &TestVolume, tx: &mut Tx<'_>, n: u64, value: u64, fresh: bool) {
    let (block, owner) = (t.slot(n), owner_of(t, n));
    if fresh {
        tx.create(block, owner, KIND, |b| fill(b, value)).unwrap();
    } else {
        tx.modify(block, owner, KIND, |b| fill(b, value)).unwrap();
    }
}
/// What is in place: value and generation. Zeros: nothing yet.
fn in_place(t: &TestVolume, n: u64) -> Option<(u64, u64)> {
    match t.volume.read_body(t.slot(n)) {
        Ok((body, header, _)) => Some((value_in(&body), header.generation().get())),
        Err(_) => None,
    }
}
fn values(t: &TestVolume, slots: u64) -> Vec<u64> {
    (0..slots).map(|n| in_place(t, n).map_or(0, |(v, _)| v)).collect()
}

#[test]
fn readers_keep_their_snapshot_and_headers_cannot_be_spoilt() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let (block, owner) = (t.slot(0), owner_of(&t, 0));
    let mut tx = meta.begin().unwrap();
    tx.create(block, owner, KIND, |b| fill(b, 1)).unwrap();
    let before = tx.read(block, owner, KIND).unwrap();
    tx.modify(block, owner, KIND, |b| {
        b[..40].fill(0xff);
        fill(b, 2);
    })
    .unwrap();
    let after = tx.read(block, owner, KIND).unwrap();
    drop(tx);
    assert_eq!((value_in(&before), value_in(&after)), (1, 2));
    meta.sync_owner(owner).unwrap();
    let (_, header, kind) = t.volume.read_body(block).unwrap();
    assert_eq!((kind, header.owner.get(), header.generation().get()), (KIND, owner.get(), 1));
}

#[test]
fn a_commit_is_one_write_and_one_flush() {
    let t =
        TestVolume::new(Shape { journal_blocks: 512, size: Bytes(8 << 20), ..Shape::default() });
    let meta = open(&t, 1);
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 1, true);
    drop(tx);
    meta.commit().unwrap();
    // The first record of a life also updates the header, which names the writer.
    assert_eq!(t.tape.letters(0), "wfwf");
    let from = t.tape.len();
    let mut tx = meta.begin().unwrap();
    for n in 1..101 {
        set(&t, &mut tx, n, 7, true);
    }
    drop(tx);
    meta.commit().unwrap();
    assert_eq!(t.tape.letters(from), "wf");
    let from = t.tape.len();
    meta.commit().unwrap();
    meta.commit_and_flush().unwrap();
    assert_eq!(t.tape.letters(from), "", "nothing to commit");
}

#[test]
fn data_is_flushed_before_the_record_that_shows_it() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    meta.note_data_written();
    meta.commit_and_flush().unwrap();
    assert_eq!(t.tape.letters(0), "f", "data alone");
    meta.commit_and_flush().unwrap();
    assert_eq!(t.tape.letters(0), "f", "flushed already");
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 1, true);
    meta.note_data_written();
    drop(tx);
    meta.commit_and_flush().unwrap();
    // Data; header of the first commit; record.
    assert_eq!(t.tape.letters(1), "fwfwf");
}

#[test]
fn locks_are_durably_held_before_the_record_of_what_was_done_under_them() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    meta.commit().unwrap();
    let from = t.tape.len();
    meta.note_granted();
    set(&t, &mut meta.begin().unwrap(), 0, 2, false);
    meta.commit().unwrap();
    set(&t, &mut meta.begin().unwrap(), 0, 3, false);
    meta.commit().unwrap();
    assert_eq!(t.tape.letters(from), "fwfwf", "once for each grant");
    // What is only held, not used, costs nothing.
    let from = t.tape.len();
    meta.note_granted();
    meta.commit_and_flush().unwrap();
    assert_eq!(t.tape.letters(from), "");
}

#[test]
fn syncing_an_owner_writes_once_and_takes_others_along() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let mut tx = meta.begin().unwrap();
    for n in 0..6 {
        set(&t, &mut tx, n, 5, true);
    }
    drop(tx);
    let idle = LockNo::from(t.slot(60));
    meta.sync_owner(idle).unwrap();
    assert_eq!(t.tape.letters(0), "", "nothing of its own");
    meta.sync_owner(owner_of(&t, 0)).unwrap();
    assert_eq!(t.tape.letters(0), "wfwfwwwwwwf");
    assert_eq!(values(&t, 6), vec![5; 6]);
    meta.sync_owner(owner_of(&t, 3)).unwrap();
    assert_eq!(t.tape.len(), 11, "the other owner's went along");
    meta.drop_owner(owner_of(&t, 0));
    assert_eq!(meta.stats().cached, 3);
    assert_eq!(meta.stats().dirty, 0);
}

#[test]
fn blocks_changed_again_stay_running() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 1, true);
    set(&t, &mut tx, 3, 1, true);
    drop(tx);
    meta.commit().unwrap();
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 2, false);
    drop(tx);
    // Only the durable image of slot 0 may go to its place.
    meta.sync_owner(owner_of(&t, 3)).unwrap();
    assert_eq!(in_place(&t, 0), Some((1, 1)));
    let block = t.slot(0);
    assert_eq!(value_in(&meta.read(block, owner_of(&t, 0), KIND).unwrap()), 2);
    meta.sync_blocks(&[block]).unwrap();
    assert_eq!(in_place(&t, 0), Some((2, 2)));
}

#[test]
#[should_panic(expected = "not in place")]
fn a_dirty_owner_cannot_be_dropped() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    meta.drop_owner(owner_of(&t, 0));
}

#[test]
#[should_panic(expected = "a transaction is open")]
fn transactions_do_not_nest() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let _tx = meta.begin().unwrap();
    let _ = meta.commit();
}

#[test]
fn a_free_slot_is_another_kind_and_continues_its_generation() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let (block, owner) = (t.slot(0), owner_of(&t, 0));
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    let used = meta.begin().unwrap().create(block, LockNo(9), KIND, |_| ());
    assert!(matches!(used, Err(Error::Inconsistent { .. })), "{used:?}");
    meta.commit().unwrap();
    meta.begin().unwrap().free(block, owner).unwrap();
    let read = meta.read(block, owner, KIND);
    let free = MetaKind::Free as u16;
    assert!(
        matches!(read, Err(Error::Damaged { source: FormatError::WrongKind { found, .. }, .. }) if found == free)
    );
    meta.sync_owner(owner).unwrap();
    assert_eq!(meta.stats().cached, 0, "what a free slot holds is not known for long");
    let read = meta.read(block, owner, KIND);
    assert!(
        matches!(read, Err(Error::Damaged { source: FormatError::WrongKind { found, .. }, .. }) if found == free)
    );
    // Under another owner now.
    let other = LockNo::from(t.slot(30));
    meta.begin().unwrap().create(block, other, KIND, |b| fill(b, 3)).unwrap();
    assert!(matches!(meta.read(block, owner, KIND), Err(Error::Inconsistent { .. })));
    meta.sync_owner(owner).unwrap();
    assert_eq!(meta.stats().dirty, 1, "no longer the old owner's");
    meta.sync_owner(other).unwrap();
    assert_eq!(in_place(&t, 0), Some((3, 3)));
    meta.drop_owner(other);
    assert_eq!(meta.stats().cached, 0);
}

#[test]
fn a_slot_freed_and_used_again_before_any_commit() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let (block, owner, other) = (t.slot(0), owner_of(&t, 0), owner_of(&t, 30));
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 1, true);
    tx.free(block, owner).unwrap();
    tx.create(block, other, MetaKind::Index, |b| fill(b, 4)).unwrap();
    drop(tx);
    meta.drop_owner(owner);
    meta.sync_owner(other).unwrap();
    assert_eq!(in_place(&t, 0), Some((4, 1)));
}

#[test]
fn a_slot_freed_here_is_used_again_without_being_read() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let (block, owner) = (t.slot(0), owner_of(&t, 0));
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    meta.commit().unwrap();
    meta.begin().unwrap().free(block, owner).unwrap();
    meta.sync_owner(owner).unwrap();
    meta.drop_owner(owner);
    assert_eq!(meta.stats().cached, 0);
    let misses = meta.stats().misses;
    meta.begin().unwrap().create(block, owner, KIND, |b| fill(b, 7)).unwrap();
    assert_eq!(meta.stats().misses, misses);
    meta.sync_owner(owner).unwrap();
    assert_eq!(in_place(&t, 0), Some((7, 3)));
    // Others may have used it since.
    meta.begin().unwrap().free(block, owner).unwrap();
    meta.sync_owner(owner).unwrap();
    meta.drop_owner(owner);
    meta.forget_free(block);
    meta.begin().unwrap().create(block, owner, KIND, |b| fill(b, 8)).unwrap();
    assert_eq!(meta.stats().misses, misses + 1);
}

#[test]
fn an_unreadable_free_slot_begins_anew_beyond_all_generations() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let (block, owner) = (t.slot(0), owner_of(&t, 0));
    let at = t.volume.body_at(block);
    t.volume.pool.write(at, &[0x5a; 512]).unwrap();
    meta.begin().unwrap().create(block, owner, KIND, |b| fill(b, 1)).unwrap();
    meta.sync_owner(owner).unwrap();
    assert_eq!(in_place(&t, 0), Some((1, GENERATION_AFTER_LOSS.0 + 1)));
    // The allocator knows what stands there.
    let (block, owner) = (t.slot(1), owner_of(&t, 1));
    t.volume.pool.write(t.volume.body_at(block), &[0x5a; 512]).unwrap();
    meta.adopt_free(block, Generation(41));
    meta.forget_free(block);
    meta.adopt_free(block, Generation(42));
    meta.begin().unwrap().create(block, owner, KIND, |b| fill(b, 1)).unwrap();
    meta.sync_owner(owner).unwrap();
    assert_eq!(in_place(&t, 1), Some((1, 43)));
    let beyond = BlockNo(t.volume.sb.total_blocks.get());
    assert!(meta.begin().unwrap().create(beyond, owner, KIND, |_| ()).is_err());
    assert!(meta.read(BlockNo(u64::MAX), owner, KIND).is_err());
}

#[test]
fn hooks_run_once_durable() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let ran = Arc::new(AtomicUsize::new(0));
    let mut tx = meta.begin().unwrap();
    set(&t, &mut tx, 0, 1, true);
    let seen = ran.clone();
    tx.on_commit(Box::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
    }));
    drop(tx);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    meta.commit().unwrap();
    meta.commit().unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    let seen = ran.clone();
    meta.begin().unwrap().on_commit(Box::new(move || {
        seen.fetch_add(1, Ordering::SeqCst);
    }));
    let from = t.tape.len();
    meta.commit().unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), t.tape.len()), (2, from), "no record for a hook alone");
}

#[test]
fn eight_threads_share_flushes() {
    const EACH: u64 = 25;
    let t = TestVolume::new(Shape { journal_blocks: 400, ..Shape::default() });
    let meta = open(&t, 1);
    t.tape.slow_flush(Duration::from_millis(2));
    std::thread::scope(|s| {
        for thread in 0..8 {
            let (t, meta) = (&t, &meta);
            s.spawn(move || {
                for i in 0..EACH {
                    set(t, &mut meta.begin().unwrap(), thread * 3, i + 1, i == 0);
                    meta.commit().unwrap();
                }
            });
        }
    });
    let flushes = t.tape.letters(0).matches('f').count() as u64;
    assert!(flushes <= 8 * EACH / 3, "{flushes} flushes for {} commits", 8 * EACH);
    let after = t.crash();
    replay(&after.volume, NODE).unwrap();
    for thread in 0..8 {
        assert_eq!(in_place(&after, thread * 3).map(|(v, _)| v), Some(EACH));
    }
}

#[test]
fn a_failed_write_or_flush_poisons() {
    for fuse in 0..12 {
        let t = TestVolume::new(Shape::default());
        let meta = open(&t, 1);
        let run = || -> Result<()> {
            for n in 0..6 {
                set(&t, &mut meta.begin()?, n, 1, true);
            }
            t.tape.fail_after(fuse);
            meta.commit()?;
            meta.checkpoint()
        };
        // Header, record; six bodies, tail: thirteen steps with the flushes.
        assert!(matches!(run(), Err(Error::Pool(_))), "fuse {fuse}");
        t.tape.fail_after(u64::MAX);
        let from = t.tape.len();
        assert!(matches!(meta.begin().map(drop), Err(Error::Withdrawn { .. })));
        assert!(matches!(meta.commit(), Err(Error::Withdrawn { .. })));
        assert!(matches!(meta.commit_and_flush(), Err(Error::Withdrawn { .. })));
        assert!(matches!(meta.checkpoint(), Err(Error::Withdrawn { .. })));
        assert!(matches!(meta.close(), Err(Error::Withdrawn { .. })));
        assert!(matches!(meta.sync_owner(owner_of(&t, 0)), Err(Error::Withdrawn { .. })));
        assert!(matches!(
            meta.read(t.slot(0), owner_of(&t, 0), KIND),
            Err(Error::Withdrawn { .. })
        ));
        meta.drop_owner(owner_of(&t, 0));
        assert_eq!(t.tape.len(), from, "nothing is written any more");
    }
}

#[test]
fn the_cache_is_bounded() {
    let t = TestVolume::new(Shape { size: Bytes(12 << 20), ..Shape::default() });
    let meta = Meta::open(t.volume.clone(), NODE, Incarnation(1), 1 << 20).unwrap();
    for n in 0..1500 {
        set(&t, &mut meta.begin().unwrap(), n, n + 1, true);
    }
    meta.commit().unwrap();
    meta.checkpoint().unwrap();
    let stats = meta.stats();
    assert_eq!(stats.dirty, 0);
    assert!(stats.cached * t.volume.geo.body_len() as u64 <= 1 << 20, "{stats:?}");
    for n in 0..1500 {
        let body = meta.read(t.slot(n), owner_of(&t, n), KIND).unwrap();
        assert_eq!(value_in(&body), n + 1);
    }
    let stats = meta.stats();
    assert!(stats.cached * t.volume.geo.body_len() as u64 <= 1 << 20, "{stats:?}");
    for n in 0..1500 {
        meta.drop_owner(owner_of(&t, n));
    }
    assert_eq!(meta.stats().cached, 0, "the owners' index knows every block");
}

#[test]
fn bodies_in_the_journal_are_bounded_whatever_the_ring_holds() {
    let dirty_max = |bound: Option<u64>| {
        let shape = Shape { size: Bytes(32 << 20), journal_blocks: 2000, ..Shape::default() };
        let t = TestVolume::new(shape);
        let mut meta = open(&t, 1);
        if let Some(bytes) = bound {
            meta.bound_logged(bytes);
        }
        let mut most = 0;
        for n in 0..1500 {
            set(&t, &mut meta.begin().unwrap(), n, n + 1, true);
            if n % 50 == 49 {
                meta.commit().unwrap();
            }
            most = most.max(meta.stats().dirty);
        }
        meta.close().unwrap();
        most
    };
    // The least bound: LOGGED_MIN, and what runs beside it.
    let most = dirty_max(Some(0));
    assert!(most <= (LOGGED_MIN + 50) as _, "{most}");
    assert!(dirty_max(None) > most, "the ring alone would hold more");
}

#[test]
fn the_ring_wraps_and_never_overflows() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let mut rng = Rng(5);
    let mut model = vec![0; 90];
    for i in 1..1500 {
        let mut tx = meta.begin().unwrap();
        for _ in 0..=rng.below(12) {
            let n = rng.below(90);
            let slot = &mut model[usize::try_from(n).unwrap()];
            set(&t, &mut tx, n, i, *slot == 0);
            *slot = i;
        }
        drop(tx);
        if rng.below(3) == 0 {
            meta.commit().unwrap();
        }
        if rng.below(40) == 0 {
            meta.checkpoint().unwrap();
        }
    }
    meta.commit().unwrap();
    let after = t.crash();
    let done = replay(&after.volume, NODE).unwrap();
    assert!(done.transactions > 0, "{done:?}");
    assert_eq!(values(&after, 90), model);
}

#[test]
fn a_transaction_beyond_its_credit_fits_up_to_the_whole_ring() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    // Somewhere in the middle of the ring.
    for i in 0..40 {
        set(&t, &mut meta.begin().unwrap(), 0, i + 1, i == 0);
        meta.commit().unwrap();
    }
    let mut tx = meta.begin().unwrap();
    for n in 0..120 {
        set(&t, &mut tx, n, 77, n > 0);
    }
    drop(tx);
    meta.commit().unwrap();
    let after = t.crash();
    replay(&after.volume, NODE).unwrap();
    assert_eq!(values(&after, 120), vec![77; 120]);
    // One more than that is refused, and nothing of it is ever seen.
    let mut tx = meta.begin().unwrap();
    for n in 0..130 {
        set(&t, &mut tx, n, 78, n >= 120);
    }
    drop(tx);
    assert!(matches!(meta.commit(), Err(Error::Inconsistent { .. })));
    let after = t.crash();
    replay(&after.volume, NODE).unwrap();
    assert_eq!(values(&after, 120), vec![77; 120]);
}

#[test]
fn a_large_running_transaction_is_committed_by_the_next() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for n in 0..40 {
        set(&t, &mut meta.begin().unwrap(), n, 1, true);
    }
    assert!(meta.stats().commits >= 1, "a quarter of the ring holds fewer");
}

#[test]
fn the_background_keeps_half_the_ring_free() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let mut relieved = 0;
    for i in 0..60 {
        set(&t, &mut meta.begin().unwrap(), i % 7, i, i < 7);
        meta.commit().unwrap();
        let from = t.tape.len();
        meta.relieve().unwrap();
        relieved += usize::from(t.tape.len() > from);
    }
    assert_eq!((relieved, meta.stats().dirty), (1, 3), "60 records of 4 KiB in a ring of 448 KiB");
}

#[test]
fn closing_leaves_a_clean_journal_and_everything_in_place() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    assert!(Meta::open(t.volume.clone(), NODE, Incarnation(2), 0).is_ok(), "nothing was written");
    meta.commit().unwrap();
    assert!(Meta::open(t.volume.clone(), NODE, Incarnation(2), 0).is_err(), "not clean");
    meta.close().unwrap();
    let after = t.crash();
    assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
    assert_eq!(after.tape.letters(0), "f");
    assert_eq!(in_place(&after, 0), Some((1, 1)));
    // The next life goes on.
    let meta = open(&after, 2);
    set(&after, &mut meta.begin().unwrap(), 0, 2, false);
    meta.commit().unwrap();
    let again = after.crash();
    assert_eq!(replay(&again.volume, NODE).unwrap().written, 1);
    assert_eq!(in_place(&again, 0), Some((2, 2)));
}

#[test]
fn a_poisoned_commit_wakes_its_waiters() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    t.tape.slow_flush(Duration::from_millis(20));
    std::thread::scope(|s| {
        for n in 0..4 {
            let (t, meta) = (&t, &meta);
            s.spawn(move || {
                for i in 0.. {
                    let Ok(mut tx) = meta.begin() else { break };
                    if tx.create(t.slot(n * 3 + i * 12), owner_of(t, n * 3), KIND, |_| ()).is_err()
                    {
                        break;
                    }
                    drop(tx);
                    if meta.commit().is_err() {
                        break;
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        meta.poison("told to".into());
    });
    assert!(matches!(meta.commit(), Err(Error::Withdrawn { reason }) if &*reason == "told to"));
}

/// A random schedule on one thread, and what every power cut in it may leave.
struct Story {
    t: TestVolume,
    slots: u64,
    /// Values after each transaction, from none.
    states: Vec<Vec<u64>>,
    /// (events at that time, transactions acknowledged durable)
    acks: Vec<(usize, usize)>,
}

fn story(seed: u64, steps: u64) -> Story {
    let slots = 24;
    let t = TestVolume::new(Shape::default());
    let mut meta = open(&t, 1);
    let mut rng = Rng(seed);
    // Few go along, so that the journal's tail often moves only a part of the way.
    meta.along_max = usize::try_from(rng.below(6)).unwrap();
    let mut states = vec![vec![0; 24]];
    let mut acks = vec![(0, 0)];
    for _ in 0..steps {
        match rng.below(20) {
            0..=11 => {
                let mut state = states.last().unwrap().clone();
                let value = states.len() as u64;
                let mut tx = meta.begin().unwrap();
                for _ in 0..=rng.below(6) {
                    let n = rng.below(slots);
                    let slot = &mut state[usize::try_from(n).unwrap()];
                    set(&t, &mut tx, n, value, *slot == 0);
                    *slot = value;
                }
                drop(tx);
                states.push(state);
            }
            12..=16 => {
                meta.commit().unwrap();
                acks.push((t.tape.len(), states.len() - 1));
            }
            17 => meta.note_data_written(),
            18 => meta.sync_owner(owner_of(&t, rng.below(slots))).unwrap(),
            _ => meta.checkpoint().unwrap(),
        }
    }
    drop(meta);
    Story { t, slots, states, acks }
}

impl Story {
    /// Replays the journal on what a cut after `n` events has left, and verifies it.
    fn check_cut(&self, n: usize, fate: Fate, image: &[u8]) {
        let t = TestVolume::from_image(image);
        let before: Vec<_> = (0..self.slots).map(|n| in_place(&t, n)).collect();
        replay(&t.volume, NODE).unwrap();
        let found = values(&t, self.slots);
        let acked = self.acks.iter().filter(|(at, _)| *at <= n).map(|(_, s)| *s).max().unwrap();
        let state = self.states.iter().skip(acked).position(|s| *s == found);
        assert!(state.is_some(), "cut after {n} events, {fate:?}: {found:?} after {acked} acked");
        for (n, before) in before.iter().enumerate() {
            let after = in_place(&t, n as u64).map(|(_, g)| g);
            assert!(before.map(|(_, g)| g) <= after, "generation of slot {n} went back");
        }
        let len = t.tape.len();
        assert_eq!(replay(&t.volume, NODE).unwrap(), Replayed::default());
        assert_eq!(t.tape.letters(len), "f", "a second replay wrote");
        // A recoverer that dies anywhere is followed by another, with the same end.
        if n.is_multiple_of(9) {
            t.tape.each_cut(&[Fate::Torn(1)], |_, _, image| {
                let again = TestVolume::from_image(image);
                replay(&again.volume, NODE).unwrap();
                assert_eq!(values(&again, self.slots), found);
            });
        }
        // And the next life writes where this one ended.
        let meta = open(&t, 2);
        set(&t, &mut meta.begin().unwrap(), 50, 9, true);
        meta.commit().unwrap();
        drop(meta);
        replay(&t.volume, NODE).unwrap();
        assert_eq!(in_place(&t, 50), Some((9, 1)));
        assert_eq!(values(&t, self.slots), found);
    }
}

#[test]
fn every_cut_leaves_all_that_was_acknowledged_and_nothing_half() {
    let story = story(1, 140);
    story
        .t
        .tape
        .each_cut(&[Fate::Lost, Fate::Kept, Fate::Torn(7)], |n, f, i| story.check_cut(n, f, i));
}

#[test]
fn space_is_reused_only_behind_a_durable_tail() {
    let t = TestVolume::new(Shape::default());
    let mut meta = open(&t, 1);
    meta.along_max = 0;
    let mut acks: Vec<(usize, u64, u64)> = Vec::new();
    let mut put = |owner: u64, value: u64, fresh: bool| {
        let mut tx = meta.begin().unwrap();
        (0..3).for_each(|n| set(&t, &mut tx, owner * 3 + n, value, fresh));
        drop(tx);
        meta.commit().unwrap();
        acks.push((t.tape.len(), owner, value));
    };
    // Old records that nothing depends on once their owner is in place; then some that are needed.
    (1..=25).for_each(|value| put(0, value, value == 1));
    (1..=12).for_each(|owner| put(owner, 1, true));
    meta.sync_owner(owner_of(&t, 0)).unwrap();
    // These wrap.
    (13..=18).for_each(|owner| put(owner, 1, true));
    let in_place = meta.stats().in_place;
    assert_eq!(in_place, 3, "the tail moved over what was in place already");
    t.tape.each_cut(&[Fate::Lost, Fate::Kept, Fate::Torn(1), Fate::Torn(2)], |at, fate, image| {
        let t = TestVolume::from_image(image);
        replay(&t.volume, NODE).unwrap();
        for (_, owner, value) in acks.iter().filter(|(n, ..)| *n <= at) {
            let found = in_place_value(&t, owner * 3);
            assert!(found >= *value, "cut after {at}, {fate:?}: owner {owner} has {found}");
        }
    });
}
fn in_place_value(t: &TestVolume, n: u64) -> u64 {
    in_place(t, n).map_or(0, |(v, _)| v)
}

/// Writers with slots of their own, others that sync and checkpoint, all at once.
#[test]
fn threads_lose_nothing_acknowledged_and_show_nothing_half() {
    const WRITERS: u64 = 4;
    const SLOTS: u64 = 5;
    let t = TestVolume::new(Shape::default());
    let mut meta = open(&t, 1);
    meta.along_max = 3;
    t.tape.slow_flush(Duration::from_micros(50));
    let acks: Vec<Mutex<Vec<(usize, u64)>>> = (0..WRITERS).map(|_| Mutex::default()).collect();
    let writing = AtomicUsize::new(4);
    std::thread::scope(|s| {
        for w in 0..WRITERS {
            let (t, meta, acks, writing) = (&t, &meta, &acks, &writing);
            s.spawn(move || {
                let mut rng = Rng(w);
                for value in 1..=60 {
                    let mut tx = meta.begin().unwrap();
                    for n in 0..SLOTS {
                        set(t, &mut tx, w * 6 + n, value, value == 1);
                    }
                    drop(tx);
                    if rng.below(3) > 0 {
                        meta.commit().unwrap();
                        acks[usize::try_from(w).unwrap()].lock().push((t.tape.len(), value));
                    }
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            let (t, meta, writing) = (&t, &meta, &writing);
            s.spawn(move || {
                let mut rng = Rng(99);
                while writing.load(Ordering::SeqCst) > 0 {
                    meta.sync_owner(owner_of(t, rng.below(WRITERS * 6))).unwrap();
                    if rng.below(10) == 0 {
                        meta.checkpoint().unwrap();
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
    });
    let mut rng = Rng(3);
    t.tape.each_cut(&[Fate::Torn(3)], |at, _, image| {
        if rng.below(12) > 0 {
            return;
        }
        let t = TestVolume::from_image(image);
        replay(&t.volume, NODE).unwrap();
        for w in 0..WRITERS {
            let found: Vec<u64> =
                (0..SLOTS).map(|n| in_place(&t, w * 6 + n).map_or(0, |(v, _)| v)).collect();
            let acks = acks[usize::try_from(w).unwrap()].lock();
            let acked = acks.iter().filter(|(n, _)| *n <= at).map(|(_, v)| *v).max().unwrap_or(0);
            assert!(found.iter().all(|v| *v == found[0]), "half a transaction: {found:?}");
            assert!(found[0] >= acked, "cut after {at}: {} of {acked}", found[0]);
        }
    });
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_transaction_on_a_cached_block() {
    let t =
        TestVolume::new(Shape { journal_blocks: 512, size: Bytes(8 << 20), ..Shape::default() });
    let meta = open(&t, 1);
    set(&t, &mut meta.begin().unwrap(), 0, 1, true);
    let (block, owner) = (t.slot(0), owner_of(&t, 0));
    let rounds = 1_000_000;
    let time = |what: &str, f: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        (0..rounds).for_each(|_| f());
        println!("{what}: {:?}", start.elapsed() / rounds);
    };
    time("read", &mut || drop(meta.read(block, owner, KIND).unwrap()));
    time("begin, modify, close", &mut || {
        meta.begin().unwrap().modify(block, owner, KIND, |b| b[64] = 1).unwrap();
    });
    let start = std::time::Instant::now();
    for i in 0..1000 {
        let mut tx = meta.begin().unwrap();
        (0..100).for_each(|n| set(&t, &mut tx, n, i, n > 0 && i == 0));
        drop(tx);
        meta.commit().unwrap();
    }
    println!("commit of 100 blocks in memory: {:?}; {:?}", start.elapsed() / 1000, meta.stats());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn random_schedules_survive_random_cuts(seed: u64, fate: u64, steps in 20_u64..200) {
        let story = story(seed, steps);
        let mut rng = Rng(fate);
        story.t.tape.each_cut(&[Fate::Torn(fate)], |n, f, i| {
            if rng.below(12) == 0 {
                story.check_cut(n, f, i);
            }
        });
    }
}
