//! Tests of replay against journals that lie.

use braid_format::journal::{RawJournalHeader, RawTxBlock, RawTxHeader};
use braid_format::lock_record::{Life, LockRecord};
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::node::{SlotRecord, SlotState};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, Incarnation, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use zerocopy::{FromBytes, IntoBytes};

use super::put_back::may_mend;
use super::records::is_slot;
use super::*;
use crate::error::{Error, Result};
use crate::journal::{self, Header, RecordHead, Ring};
use crate::meta::Meta;
use crate::test_volume::{Rng, Shape, TestVolume};
use crate::volume::Volume;

mod lost_headers;
mod mirrors;

const NODE: NodeId = NodeId(1);
const KIND: MetaKind = MetaKind::Index;

/// Records of any life.
pub(crate) fn replay(volume: &Volume, node: NodeId) -> Result<Replayed> {
    super::replay(volume, node, Writer::Any)
}
fn salvage(volume: &Volume, node: NodeId) -> Result<(Replayed, Option<Error>)> {
    super::salvage(volume, node, Writer::Any)
}

fn open(t: &TestVolume, incarnation: u32) -> Meta {
    Meta::open(t.volume.clone(), NODE, Incarnation(incarnation), 1 << 20).unwrap()
}
/// One transaction that sets `count` slots to `value`, committed.
fn put(t: &TestVolume, meta: &Meta, count: u64, value: u8) {
    let mut tx = meta.begin().unwrap();
    for n in 0..count {
        let block = t.slot(n);
        let owner = LockNo::from(block);
        if meta.read(block, owner, KIND).is_err() {
            tx.create(block, owner, KIND, |b| b[64..].fill(value)).unwrap();
        } else {
            tx.modify(block, owner, KIND, |b| b[64..].fill(value)).unwrap();
        }
    }
    drop(tx);
    meta.commit().unwrap();
}
fn value(t: &TestVolume, n: u64) -> Option<u8> {
    t.volume.read_body(t.slot(n)).ok().map(|(b, ..)| b[100])
}
/// Reads the ring.
fn ring_bytes(t: &TestVolume) -> (Ring, Vec<u8>) {
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let mut bytes = vec![0; Bytes(ring.len).to_usize()];
    t.volume.pool.read(ring.at, &mut bytes).unwrap();
    (ring, bytes)
}
fn usize_of(n: u64) -> usize {
    Bytes(n).to_usize()
}
fn reseal(record: &mut [u8]) {
    let crc = braid_format::crc::crc32c_with_hole(record, RawTxHeader::CRC_AT);
    record[RawTxHeader::CRC_AT..RawTxHeader::CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_torn_record_ends_the_journal() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for v in 1..=3 {
        put(&t, &meta, 3, v);
    }
    let (ring, bytes) = ring_bytes(&t);
    let len = usize_of(ring.record_len(3));
    for sector in 0..len / 512 {
        let after = t.crash();
        let mut damaged = bytes.clone();
        damaged[2 * len + sector * 512 + 13] ^= 0x10;
        after.volume.pool.write(ring.at, &damaged).unwrap();
        let done = replay(&after.volume, NODE).unwrap();
        assert_eq!(done.transactions, 2, "sector {sector}");
        assert_eq!(value(&after, 0), Some(2));
        assert_eq!(value(&after, 2), Some(2));
    }
}

/// A recoverer, or the node itself, had marked its journal clean and died before its flush.
#[test]
fn a_journal_found_clean_is_clean_after_a_power_cut() {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 3, 1);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let by_check = |volume: &Volume| salvage(volume, NODE).map(|(done, _)| done);
    let by_recoverer = |volume: &Volume| replay(volume, NODE);
    #[expect(clippy::type_complexity, reason = "used once")]
    let ways: [&dyn Fn(&Volume) -> Result<Replayed>; 2] = [&by_recoverer, &by_check];
    for done_again in ways {
        let after = t.crash();
        let mut header = Header::read(&after.volume, &ring).unwrap();
        header.clean = true;
        header.tail_sequence += 1;
        header.tail_offset += ring.record_len(3);
        header.write(&after.volume, NODE).unwrap();
        assert!(!Header::read(&after.crash().volume, &ring).unwrap().clean);
        assert_eq!(done_again(&after.volume).unwrap(), Replayed::default());
        assert!(Header::read(&after.crash().volume, &ring).unwrap().clean);
    }
}

#[test]
fn a_damaged_record_before_a_later_one_is_damage_and_nothing_is_written() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for v in 1..=3 {
        put(&t, &meta, 3, v);
    }
    let (ring, bytes) = ring_bytes(&t);
    let len = usize_of(ring.record_len(3));
    for (torn, left) in [(0, None), (1, Some(1))] {
        for sector in 0..len / 512 {
            let after = t.crash();
            let mut damaged = bytes.clone();
            damaged[torn * len + sector * 512 + 13] ^= 0x10;
            after.volume.pool.write(ring.at, &damaged).unwrap();
            let events = after.tape.len();
            let block = after.volume.geo.block_size.block_of(ring.at + Bytes((torn * len) as u64));
            let refused = replay(&after.volume, NODE);
            assert!(
                matches!(refused, Err(Error::Journal { block: b, node: NODE, .. }) if b == block),
                "{refused:?}"
            );
            assert_eq!(after.tape.len(), events, "written to");
            // A repair keeps what came before, and the rest never comes back.
            let (done, damage) = salvage(&after.volume, NODE).unwrap();
            assert!(matches!(damage, Some(Error::Journal { .. })));
            assert_eq!(done.transactions, torn as u64);
            assert_eq!(value(&after, 0), left);
            let header = Header::read(&after.volume, &ring).unwrap();
            assert!(header.clean && header.tail_sequence == 1003, "{header:?}");
            assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
        }
    }
}

#[test]
fn what_a_power_cut_leaves_of_the_last_write_is_no_damage() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    // Until the last record is at the start of the ring, after a skip record at its end.
    let mut written = 0;
    let skip = loop {
        written += 1;
        put(&t, &meta, 3, u8::try_from(written % 250 + 1).unwrap());
        let (_, bytes) = ring_bytes(&t);
        let sectors = bytes.chunks_exact(512).zip(0_u64..);
        let mut heads = sectors
            .filter_map(|(s, n)| RecordHead::decode(&ring, s, ring.len - n * 512).map(|h| (h, n)));
        let skip = heads.find(|(h, _)| h.count == 0);
        if let Some((_, n)) = skip {
            break n * 512;
        }
    };
    let whole = replay(&t.crash().volume, NODE).unwrap();
    let after = t.crash();
    // The skip record did not reach the devices, what was written with it did.
    after.volume.pool.write(ring.at + Bytes(skip), &[0x5a; 512]).unwrap();
    let done = replay(&after.volume, NODE).unwrap();
    assert_eq!(done.transactions + 1, whole.transactions);
    // One record more, and the skip record was durable.
    put(&t, &meta, 3, 251);
    let after = t.crash();
    assert_eq!(replay(&t.crash().volume, NODE).unwrap().transactions, whole.transactions + 1);
    after.volume.pool.write(ring.at + Bytes(skip), &[0x5a; 512]).unwrap();
    assert!(matches!(replay(&after.volume, NODE), Err(Error::Journal { .. })));
}

#[test]
fn a_journal_without_headers_is_begun_anew_above_all_it_holds() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for v in 1..=3 {
        put(&t, &meta, 3, v);
    }
    drop(meta);
    for copy in 0..2 {
        let block = t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
        t.volume.pool.write(t.volume.body_at(block), &[7; 512]).unwrap();
    }
    assert!(replay(&t.volume, NODE).is_err());
    let (_, damage) = salvage(&t.volume, NODE).unwrap();
    assert!(matches!(damage, Some(Error::Journal { .. })), "{damage:?}");
    for n in 0..3 {
        assert_eq!(value(&t, n), Some(3), "the records lead to themselves");
    }
    for copy in 0..2 {
        let block = t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
        t.volume.read_private(block, MetaKind::JournalHeader).unwrap();
    }
    let header = Header::read(&t.volume, &Ring::of(&t.volume, NODE).unwrap()).unwrap();
    assert!(header.clean && header.tail_sequence == 1003, "{header:?}");
    let meta = open(&t, 2);
    put(&t, &meta, 3, 9);
    assert_eq!(replay(&t.crash().volume, NODE).unwrap().transactions, 1);
}

#[test]
fn what_is_in_place_and_newer_stays_and_what_is_torn_is_mended() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    let after = t.crash();
    // Another node has written slot 0 since, and lost half of its write of slot 1.
    let body = |block, generation: u64, value| {
        let mut body = vec![value; t.volume.geo.body_len()];
        let mut header = MetaHeader::new(KIND, block, LockNo::from(block));
        header.generation.set(generation);
        header.write_to_prefix(&mut body).unwrap();
        MetaHeader::seal(&mut body);
        body
    };
    let newer = body(after.slot(0), 2, 7);
    after.volume.write_bodies(&[(after.slot(0), &newer)]).unwrap();
    let torn = body(after.slot(1), 2, 7);
    after.volume.pool.write(after.volume.body_at(after.slot(1)), &torn[..1024]).unwrap();
    let done = replay(&after.volume, NODE).unwrap();
    assert_eq!(done, Replayed { transactions: 1, written: 2, skipped: 1 });
    assert_eq!([0, 1, 2].map(|n| value(&after, n)), [Some(7), Some(1), Some(1)]);
    assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
}

#[test]
fn what_is_torn_is_mended_only_under_a_lock_that_the_dead_node_held() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    drop(meta);
    let life = |slot, incarnation| Life { slot, incarnation: Incarnation(incarnation) };
    // Handed over to another node, which is writing it; held to the end; held by an earlier life.
    let holders = [life(NodeId(0), 1), life(NODE, 1), life(NODE, 2)];
    for (n, holder) in (0..).zip(holders) {
        let block = t.slot(n);
        let mut sector = vec![0; t.volume.geo.lock_sector.to_usize()];
        LockRecord::born(LockNo::from(block), holder, 7).encode(&mut sector);
        t.volume.pool.write(t.volume.slot_at(block), &sector).unwrap();
        t.volume.pool.write(t.volume.body_at(block), &[0x5a; 1024]).unwrap();
    }
    let done = replay(&t.volume, NODE).unwrap();
    assert_eq!(done, Replayed { transactions: 1, written: 1, skipped: 2 });
    assert_eq!([0, 1, 2].map(|n| value(&t, n)), [None, Some(1), None]);
}

#[test]
fn what_was_being_written_at_the_first_look_is_looked_at_again() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    meta.close().unwrap();
    let dead = Life { slot: NODE, incarnation: Incarnation(1) };
    let block = t.slot(0);
    let mut sector = vec![0; t.volume.geo.lock_sector.to_usize()];
    LockRecord::born(LockNo::from(block), dead, 7).encode(&mut sector);
    t.volume.pool.write(t.volume.slot_at(block), &sector).unwrap();
    let image = |generation: u64| {
        let mut header = MetaHeader::new(KIND, block, LockNo::from(block));
        header.generation.set(generation);
        header
    };
    // Its writer has handed the lock to the dead node, which had been waiting, since.
    assert!(!may_mend(&t.volume, dead, block, &image(1)).unwrap());
    assert!(may_mend(&t.volume, dead, block, &image(2)).unwrap());
    t.volume.pool.write(t.volume.body_at(block), &[0x5a; 512]).unwrap();
    assert!(may_mend(&t.volume, dead, block, &image(1)).unwrap());
}

#[test]
fn nothing_is_put_in_place_before_its_record_is_durable() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    // The node dies between writing a record and flushing it; the devices still have it.
    let from = t.tape.len();
    put(&t, &meta, 3, 2);
    assert_eq!(t.tape.letters(from), "wf");
    drop(meta);
    let from = t.tape.len();
    assert_eq!(replay(&t.volume, NODE).unwrap().written, 3);
    assert_eq!(t.tape.letters(from), "fwwwfwf", "records, bodies, header");
}

#[test]
fn records_of_another_incarnation_are_not_replayed() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    // As if the next life had begun at the same place, and died before its first record.
    let after = t.crash();
    let ring = Ring::of(&after.volume, NODE).unwrap();
    let mut header = Header::read(&after.volume, &ring).unwrap();
    header.incarnation = Incarnation(2);
    header.write(&after.volume, NODE).unwrap();
    assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
    assert_eq!(value(&after, 0), None);
}

#[test]
fn records_of_an_earlier_file_system_are_not_replayed() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for v in 1..=6 {
        put(&t, &meta, 3, v);
    }
    drop(meta);
    // mkfs again: the same places, another first sequence, a ring that is not wiped.
    journal::format(&t.volume, NODE, 77_000_000).unwrap();
    let again = t;
    let meta = open(&again, 1);
    put(&again, &meta, 3, 9);
    let done = replay(&again.volume, NODE).unwrap();
    assert_eq!(done.transactions, 1, "the second record in the ring is an old one");
    assert_eq!(value(&again, 0), Some(9));
}

#[test]
fn a_torn_header_write_is_survived_and_a_lost_one_noticed() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    // Wraps several times, so the tail moves.
    for v in 1..=200 {
        put(&t, &meta, 5, v);
    }
    let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let newest = Header::read(&t.volume, &ring).unwrap();
    assert!(newest.generation > 4);
    // The older copy is damaged: nothing is lost.
    let after = t.crash();
    let at = after.volume.body_at(block(1 - newest.copy));
    after.volume.pool.write(at, &[7; 512]).unwrap();
    assert!(replay(&after.volume, NODE).unwrap().transactions > 0);
    assert_eq!(value(&after, 0), Some(200));
    // The newer header is damaged: the one before it leads to where the ring has been used again.
    let after = t.crash();
    let at = after.volume.body_at(block(newest.copy));
    after.volume.pool.write(at, &[7; 512]).unwrap();
    let outcome = replay(&after.volume, NODE);
    assert!(
        matches!(outcome, Err(Error::Journal { .. })) || value(&after, 0) == Some(200),
        "{outcome:?} lost {:?}",
        value(&after, 0)
    );
    // Both are.
    let at = after.volume.body_at(block(1 - newest.copy));
    after.volume.pool.write(at, &[7; 512]).unwrap();
    assert!(matches!(replay(&after.volume, NODE), Err(Error::Damaged { .. })));
}

/// Headers of an empty journal that was in use before, and what a life writes after them.
fn used_again(first_puts: u8) -> (TestVolume, Ring) {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    for v in 1..=first_puts {
        put(&t, &meta, 3, v);
    }
    meta.close().unwrap();
    drop(meta);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    assert!(Header::read(&t.volume, &ring).unwrap().clean);
    (t, ring)
}

fn spoil_copy(t: &TestVolume, copy: u64) {
    let block = t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    t.volume.pool.write(t.volume.body_at(block), &[7; 512]).unwrap();
}

#[test]
fn a_clean_header_is_not_believed_when_records_were_written_after_it() {
    for first_puts in [0, 1, 4] {
        let (t, ring) = used_again(first_puts);
        let before = Header::read(&t.volume, &ring).unwrap();
        let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
        let (older, _, _) = t.volume.read_body(block(1 - before.copy)).unwrap();
        let meta = open(&t, 2);
        for v in 11..=15 {
            put(&t, &meta, 3, v);
        }
        let newest = Header::read(&t.volume, &ring).unwrap();
        assert!(!newest.clean && newest.copy != before.copy);
        // Rotten, or never written though the device said so.
        let rotten = t.crash();
        spoil_copy(&rotten, newest.copy);
        let unwritten = t.crash();
        unwritten.volume.write_bodies(&[(block(newest.copy), &older)]).unwrap();
        for (how, after) in [("rotten", rotten), ("not written", unwritten)] {
            let again = after.crash();
            let done = replay(&after.volume, NODE).unwrap();
            assert_eq!(done.transactions, 5, "{how} after {first_puts}");
            assert_eq!(value(&after, 0), Some(15), "{how}");
            assert!(Header::read(&after.volume, &ring).unwrap().clean);
            assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
            // And so for a repair, which has nothing to say about it.
            let (done, damage) = salvage(&again.volume, NODE).unwrap();
            assert!(done.transactions == 5 && damage.is_none(), "{how}: {damage:?}");
        }
        // The first of the records is damaged besides: said, and not taken for the end.
        let after = t.crash();
        spoil_copy(&after, newest.copy);
        let at = ring.at + Bytes(newest.tail_offset + 512 + 13);
        let mut sector = [0; 512];
        let sector_at = ByteOffset(at.get() / 512 * 512);
        after.volume.pool.read(sector_at, &mut sector).unwrap();
        sector[13] ^= 1;
        after.volume.pool.write(sector_at, &sector).unwrap();
        let outcome = replay(&after.volume, NODE);
        assert!(matches!(outcome, Err(Error::Journal { .. })), "{outcome:?}");
    }
}

/// Blocks that life 1 changed become file data.
fn become_data(t: &TestVolume) {
    let block = vec![0x5a; Bytes(t.volume.geo.slot_bytes()).to_usize()];
    for n in 0..3 {
        t.volume.pool.write(t.volume.slot_at(t.slot(n)), &block).unwrap();
    }
}
fn are_data(t: &TestVolume) -> bool {
    let mut block = vec![0; Bytes(t.volume.geo.slot_bytes()).to_usize()];
    (0..3).all(|n| {
        t.volume.pool.read(t.volume.slot_at(t.slot(n)), &mut block).unwrap();
        block.iter().all(|b| *b == 0x5a)
    })
}

/// One header is lost, and a device brought the other one back as it was in the life before.
#[test]
fn records_of_the_life_in_the_slot_are_not_dropped_for_a_header_of_the_one_before() {
    let (t, ring) = used_again(4);
    let clean = Header::read(&t.volume, &ring).unwrap().copy;
    let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    let (running, _, _) = t.volume.read_body(block(1 - clean)).unwrap();
    put(&t, &open(&t, 2), 3, 9);
    let after = t.crash();
    after.volume.write_bodies(&[(block(1 - clean), &running)]).unwrap();
    spoil_copy(&after, clean);
    let former = Header::read(&after.volume, &ring).unwrap();
    assert!(!former.clean && former.incarnation == Incarnation(1));
    let life = Writer::Life(Incarnation(2));
    let refused = super::replay(&after.volume, NODE, life).unwrap_err();
    assert!(refused.to_string().contains("know nothing of the life"), "{refused}");
    let (done, damage) = super::salvage(&after.volume, NODE, life).unwrap();
    assert!(damage.is_some());
    assert_eq!((done.transactions, value(&after, 0)), (1, Some(9)));
}

#[test]
fn records_of_a_life_that_has_left_are_not_put_in_place_whatever_headers_are_lost() {
    let (t, ring) = used_again(4);
    let newest = Header::read(&t.volume, &ring).unwrap();
    become_data(&t);
    for (both, writer) in [false, true]
        .into_iter()
        .flat_map(|both| [Writer::Nobody, Writer::Life(Incarnation(2))].map(|w| (both, w)))
    {
        let spoiled = || {
            let after = TestVolume::from_image(&t.tape.bytes());
            spoil_copy(&after, newest.copy);
            if both {
                spoil_copy(&after, 1 - newest.copy);
            }
            after
        };
        // So it would be if nobody knew whose the records are.
        let after = spoiled();
        salvage(&after.volume, NODE).unwrap();
        assert_eq!(are_data(&after), !both);
        let after = spoiled();
        if !both {
            let done = super::replay(&after.volume, NODE, writer).unwrap();
            assert_eq!(done, Replayed::default());
            assert!(are_data(&after));
        }
        let after = if both { after } else { spoiled() };
        let (done, _) = super::salvage(&after.volume, NODE, writer).unwrap();
        assert_eq!(done, Replayed::default());
        assert!(are_data(&after), "both {both}, {writer:?}");
        // The next life's records are found, and only those.
        let meta = open(&after, 2);
        let mut tx = meta.begin().unwrap();
        let block = after.slot(9);
        tx.create(block, LockNo::from(block), KIND, |b| b[64..].fill(8)).unwrap();
        drop(tx);
        meta.commit().unwrap();
        let life = Writer::Life(Incarnation(2));
        for spoil in [0, 1, 2] {
            let after = after.crash();
            (0..spoil).for_each(|copy| spoil_copy(&after, copy));
            let (done, _) = super::salvage(&after.volume, NODE, life).unwrap();
            assert_eq!((done.transactions, value(&after, 9)), (1, Some(8)), "{spoil} lost");
            assert!(are_data(&after));
        }
    }
}

#[test]
fn where_the_slot_is_damaged_too_nothing_is_written_over_what_is_no_metadata() {
    let (t, _) = used_again(4);
    become_data(&t);
    (0..2).for_each(|copy| spoil_copy(&t, copy));
    super::salvage(&t.volume, NODE, Writer::Unknown).unwrap();
    assert!(are_data(&t));
}

#[test]
fn what_is_left_of_a_record_that_nobody_acknowledged_does_not_unmake_a_clean_header() {
    let (t, ring) = used_again(2);
    let header = Header::read(&t.volume, &ring).unwrap();
    let meta = open(&t, 2);
    put(&t, &meta, 3, 9);
    let after = t.crash();
    // The header's write never landed, and of the record only the first sector.
    spoil_copy(&after, 1 - header.copy);
    let len = ring.record_len(3);
    let rest = vec![0; usize_of(len - 512)];
    let at = ring.at + Bytes(header.tail_offset + 512);
    after.volume.pool.write(at, &rest).unwrap();
    assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default());
    assert_eq!(value(&after, 0), Some(2));
}

#[test]
fn a_header_that_leads_to_where_the_ring_was_used_again_loses_nothing_in_a_repair() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    // Wraps several times, so the tail moves.
    for v in 1..=200 {
        put(&t, &meta, 5, v);
    }
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let newest = Header::read(&t.volume, &ring).unwrap();
    for both in [false, true] {
        let after = t.crash();
        spoil_copy(&after, newest.copy);
        if both {
            spoil_copy(&after, 1 - newest.copy);
        }
        let (done, _) = salvage(&after.volume, NODE).unwrap();
        assert!(done.transactions > 0);
        for n in 0..5 {
            assert_eq!(value(&after, n), Some(200), "block {n}, both {both}");
        }
        assert!(Header::read(&after.volume, &ring).unwrap().clean);
        let meta = open(&after, 2);
        put(&after, &meta, 3, 9);
        assert_eq!(replay(&after.crash().volume, NODE).unwrap().transactions, 1);
    }
}

#[test]
fn sealed_nonsense_is_refused_before_anything_is_written() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 3, 1);
    let (ring, bytes) = ring_bytes(&t);
    let sb = &t.volume.sb;
    let wrong = [
        sb.slot_area.get(),
        sb.heartbeat_area.get(),
        sb.journal_area.get(),
        sb.journal_area.get() + 2 * sb.journal_blocks.get() - 1,
        sb.total_blocks.get(),
        u64::MAX,
        u64::MAX >> 12,
    ];
    for place in wrong {
        let mut record = bytes[..usize_of(ring.record_len(3))].to_vec();
        // The second image, sealed for that place.
        let name = RawTxHeader::LEN + size_of::<RawTxBlock>();
        record[name..name + 8].copy_from_slice(&place.to_le_bytes());
        let image = usize_of(ring.head_len(3) + ring.image);
        record[image + 8..image + 16].copy_from_slice(&place.to_le_bytes());
        MetaHeader::seal(&mut record[image..image + usize_of(ring.image)]);
        reseal(&mut record);
        let after = t.crash();
        after.volume.pool.write(ring.at, &record).unwrap();
        let len = after.tape.len();
        assert!(replay(&after.volume, NODE).is_err(), "block {place}");
        assert_eq!(after.tape.len(), len, "block {place}");
        // A repair drops it for good.
        assert!(salvage(&after.volume, NODE).unwrap().1.is_some(), "block {place}");
        assert_eq!(replay(&after.volume, NODE).unwrap(), Replayed::default(), "block {place}");
        assert!(salvage(&after.volume, NODE).unwrap().1.is_none(), "block {place}");
    }
}

/// Bytes of the volume that replay may change: bodies of slots, and headers.
fn may_change(t: &TestVolume) -> Vec<bool> {
    let volume = &t.volume;
    let mut map = vec![false; usize_of(volume.pool.info().size.get())];
    for block in 0..volume.sb.total_blocks.get() {
        if is_slot(volume, BlockNo(block)) {
            let at = usize_of(volume.body_at(BlockNo(block)).get());
            map[at..at + volume.geo.body_len()].fill(true);
        }
    }
    map
}

#[test]
fn hostile_journals_never_panic_or_reach_a_lock_sector() {
    let four_k = Geometry { block_size: BlockSize::DEFAULT, lock_sector: Bytes(4096) };
    for geo in [Geometry::DEFAULT, four_k] {
        let t = TestVolume::new(Shape { geo, journal_blocks: 140, ..Shape::default() });
        let meta = open(&t, 1);
        for v in 1..=4 {
            put(&t, &meta, 4, v);
        }
        drop(meta);
        let (ring, bytes) = ring_bytes(&t);
        let allowed = may_change(&t);
        let start = t.crash();
        let image = start.tape.bytes();
        let mut replayed = 0;
        for seed in 0..100 {
            let mut rng = Rng(seed);
            let t = TestVolume::from_image(&image);
            let record = usize_of(ring.record_len(4));
            let mut ring_now = bytes.clone();
            for _ in 0..=rng.below(3) {
                spoil(&mut rng, &ring, &mut ring_now, record);
            }
            t.volume.pool.write(ring.at, &ring_now).unwrap();
            if rng.below(4) == 0 {
                spoil_header(&mut rng, &t);
            }
            let mut before = vec![0; allowed.len()];
            t.volume.pool.read(ByteOffset(0), &mut before).unwrap();
            replayed += u64::from(replay(&t.volume, NODE).is_ok());
            let mut after = vec![0; allowed.len()];
            t.volume.pool.read(ByteOffset(0), &mut after).unwrap();
            for ((before, after), allowed) in
                before.chunks(512).zip(after.chunks(512)).zip(allowed.chunks(512))
            {
                assert!(before == after || allowed.iter().all(|a| *a), "seed {seed}");
            }
        }
        assert!((10..100).contains(&replayed), "{replayed}");
    }
}

/// Changes something in a record and seals it again, as far as it can be.
fn spoil(rng: &mut Rng, ring: &Ring, bytes: &mut [u8], len: usize) {
    let record = &mut bytes[usize::try_from(rng.below(4)).unwrap() * len..][..len];
    let numbers = [0, 1, 3, 5, 512, 1 << 20, 1 << 40, u64::MAX, u64::MAX >> 12, rng.next()];
    let number = numbers[usize::try_from(rng.below(10)).unwrap()];
    // A field of the head, a name, or a header of an image.
    let image = usize_of(ring.head_len(4));
    let (at, width) = match rng.below(4) {
        0 => (8 * usize::try_from(1 + rng.below(4)).unwrap(), 8),
        1 => (16 + 4 * usize::try_from(rng.below(6)).unwrap(), 4),
        2 => (RawTxHeader::LEN + 8 * usize::try_from(rng.below(8)).unwrap(), 8),
        _ => (image + 8 * usize::try_from(rng.below(4)).unwrap(), 8),
    };
    record[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
    MetaHeader::seal(&mut record[image..image + usize_of(ring.image)]);
    reseal(record);
}

fn spoil_header(rng: &mut Rng, t: &TestVolume) {
    for copy in 0..2 {
        let block = t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
        let (mut body, ..) = t.volume.read_body(block).unwrap();
        let (mut raw, _) = RawJournalHeader::read_from_prefix(&body).unwrap();
        let number =
            [0, 512, 1 << 30, u64::MAX, rng.next()][usize::try_from(rng.below(5)).unwrap()];
        match rng.below(3) {
            0 => raw.tail_offset.set(number),
            1 => raw.tail_sequence.set(number),
            _ => raw.header.generation.set(number),
        }
        raw.write_to_prefix(&mut body).unwrap();
        MetaHeader::seal(&mut body);
        t.volume.write_bodies(&[(block, &body)]).unwrap();
    }
}

#[test]
fn every_geometry_replays() {
    for shift in [12, 16] {
        for lock_sector in [512, 4096] {
            let block_size = BlockSize::new(Bytes(1 << shift)).unwrap();
            let geo = Geometry { block_size, lock_sector: Bytes(lock_sector) };
            let shape = Shape { geo, size: Bytes(40 << 20), nodes: 2, journal_blocks: 160 };
            let t = TestVolume::new(shape);
            let meta = open(&t, 1);
            for v in 1..=60 {
                put(&t, &meta, 7, v);
            }
            let after = t.crash();
            replay(&after.volume, NODE).unwrap();
            for n in 0..7 {
                assert_eq!(value(&after, n), Some(60), "{geo:?}");
            }
            assert_eq!(value(&after, 7), None);
        }
    }
}

/// Compare-and-writes go to the first copy of a mirror first: what another says may be older.
#[test]
fn whose_a_damaged_block_is_says_the_copy_that_decides() {
    use braid_pool::device::{Device, MemoryDevice};
    let disks = [0, 1].map(|i| MemoryDevice::new(&format!("m{i}"), Bytes(192 << 20), Bytes(512)));
    let options = braid_pool::CreateOptions {
        redundancy: braid_pool::layout::Redundancy::Mirror(2),
        ..braid_pool::CreateOptions::new("mirror")
    };
    let devices = disks.iter().map(|d| d.clone() as std::sync::Arc<dyn Device>).collect();
    let pool = braid_pool::Pool::create(devices, &options).unwrap();
    crate::make::make(&pool, &crate::make::MakeOptions::default(), &mut |_, _| {}).unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    let dead = Life { slot: NODE, incarnation: Incarnation(1) };
    let len = volume.geo.lock_sector.to_usize();
    // All over the places where reads turn from one copy to the other.
    let first = volume.rgrp(0).get() + 16 * volume.geo.slot_blocks();
    for n in 0..128 {
        let block = BlockNo(first + n * 16 * volume.geo.slot_blocks());
        let lock = LockNo::from(block);
        let at = volume.slot_at(block);
        let mut sector = AlignedBuf::zeroed(len);
        LockRecord::born(lock, dead, 7).encode(&mut sector);
        pool.write(at, &sector).unwrap();
        let (member, place) = pool.locate(at).unwrap();
        assert_eq!(member.index.0, 0);
        LockRecord::unlocked(lock, 6).encode(&mut sector);
        disks[1].write(place, &sector).unwrap();
        let mut image: MetaHeader = zerocopy::FromZeros::new_zeroed();
        image.owner.set(lock.get());
        volume.pool.write(volume.body_at(block), &AlignedBuf::zeroed(len)).unwrap();
        assert!(may_mend(&volume, dead, block, &image).unwrap(), "block {block}");
    }
}

/// An image may name any block as its owner: one where no lock can be says nothing of whose it is.
#[test]
fn a_damaged_block_whose_owner_is_no_lock_is_mended() {
    use braid_pool::device::{Device, MemoryDevice};
    let layout =
        "[subpools]\nmetadata = \"mirror(0[96M],1[96M],2[96M])\"\ndata = \"parity+1/64K(all)\"";
    let devices = (0..3).map(|i| {
        let size = Bytes(192 << 20);
        MemoryDevice::new(&format!("m{i}"), size, Bytes(512)) as std::sync::Arc<dyn Device>
    });
    let mut options = braid_pool::CreateOptions::new("parity");
    options.layout = Some(braid_pool::layout::LayoutFile::parse(layout).unwrap().layout);
    let pool = braid_pool::Pool::create(devices.collect(), &options).unwrap();
    crate::make::make(&pool, &crate::make::MakeOptions::default(), &mut |_, _| {}).unwrap();
    let volume = Volume::open(pool).unwrap();
    let dead = Life { slot: NODE, incarnation: Incarnation(1) };
    let block = volume.rgrp(0);
    let data = BlockNo(volume.total_blocks() - 16);
    assert!(volume.holds(data) && volume.is_data_only(data));
    let mut image: MetaHeader = zerocopy::FromZeros::new_zeroed();
    image.owner.set(data.get());
    assert!(may_mend(&volume, dead, block, &image).unwrap());
}

#[test]
fn a_ring_lies_in_the_pool_and_holds_the_largest_transaction() {
    let mut t = TestVolume::new(Shape::default());
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let end = (ring.at + Bytes(ring.len)).get() / Geometry::DEFAULT.block_size.bytes().get();
    let volume = std::sync::Arc::get_mut(&mut t.volume).unwrap();
    volume.sb.total_blocks.set(end);
    assert_eq!(Ring::of(volume, NODE).unwrap(), ring);
    volume.sb.total_blocks.set(end - 1);
    assert!(matches!(Ring::of(volume, NODE), Err(Error::Superblock(_))));
    volume.sb.total_blocks.set(end);
    volume.sb.journal_blocks.set(111);
    assert!(matches!(Ring::of(volume, NODE), Err(Error::Superblock(_))), "too few images");
    volume.sb.journal_blocks.set(112);
    assert!(matches!(Ring::of(volume, NodeId(2)), Err(Error::Superblock(_))), "no such node");
    // The names of images begin behind the head, 16 bytes each, and images at the next sector.
    let in_first = (512 - RawTxHeader::LEN as u64) / 16;
    assert_eq!([1, in_first, in_first + 1].map(|n| ring.head_len(n)), [512, 512, 1024]);
    assert_eq!(ring.record_len(in_first + 1), 1024 + (in_first + 1) * ring.image);
}

#[test]
fn a_record_that_would_be_cut_by_the_end_of_the_ring_needs_the_rest_of_it_besides() {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 9, 1);
    replay(&t.volume, NODE).unwrap();
    let mut journal = journal::Journal::open(&t.volume, NODE, Incarnation(2)).unwrap();
    let ring = *journal.ring();
    let left = ring.len - ring.record_len(9);
    let fitting = (1..128).rev().find(|n| ring.record_len(*n) <= left).unwrap();
    assert!(journal.used() == 0 && journal.fits(fitting));
    assert!(!journal.fits(fitting + 1), "the ring is empty, but not from here on");
    let start = journal::Placed { sequence: 1000, position: 0 };
    assert_eq!(journal.used_from(start), ring.record_len(9));
    let events = t.tape.len();
    journal.move_tail(&t.volume, journal.end()).unwrap();
    assert_eq!(t.tape.len(), events, "nothing to say of a clean journal");
}

#[test]
fn a_head_with_any_wrong_field_is_no_record() {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 3, 1);
    let (ring, bytes) = ring_bytes(&t);
    let raw = RawTxHeader::read_from_prefix(&bytes).unwrap().0;
    let len = ring.record_len(3);
    let decode = |room, change: &dyn Fn(&mut RawTxHeader)| {
        let mut raw = raw;
        change(&mut raw);
        RecordHead::decode(&ring, raw.as_bytes(), room)
    };
    assert_eq!(decode(len, &|_| {}).unwrap().len, len);
    assert_eq!(decode(len - 512, &|_| {}), None);
    let wrong: [&dyn Fn(&mut RawTxHeader); 5] = [
        &|raw| raw.magic.set(7),
        &|raw| raw.slot.set(0),
        &|raw| raw.reserved.set(1),
        &|raw| raw.count.set(2),
        &|raw| raw.len.set(len + 512),
    ];
    for (n, change) in wrong.into_iter().enumerate() {
        assert_eq!(decode(ring.len, change), None, "{n}");
    }
    // A skip record ends with the ring.
    let skip = |raw: &mut RawTxHeader| raw.count.set(0);
    assert!(decode(len, &skip).is_some() && decode(len + 512, &skip).is_none());
}

#[test]
fn a_header_with_a_number_that_was_never_written_is_damaged() {
    let t = TestVolume::new(Shape::default());
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let most = Header::SEQUENCE_MAX;
    for (tail_sequence, generation, sound) in
        [(most - 1, 10, true), (most, 10, false), (7, most - 2, true), (7, most - 1, false)]
    {
        let after = t.crash();
        let mut header = Header { generation, tail_sequence, ..Header::anew(0) };
        // Both copies: counted up by each write.
        header.write(&after.volume, NODE).unwrap();
        header.generation -= 1;
        header.write(&after.volume, NODE).unwrap();
        let read = Header::read(&after.volume, &ring);
        assert_eq!(read.is_ok(), sound, "{tail_sequence} {generation}: {read:?}");
    }
}

/// Gives the record at `at` another number.
fn renumber(t: &TestVolume, ring: &Ring, (at, len): (u64, u64), sequence: u64) {
    let mut record = vec![0; usize_of(len)];
    t.volume.pool.read(ring.at + Bytes(at), &mut record).unwrap();
    let mut raw = RawTxHeader::read_from_prefix(&record).unwrap().0;
    raw.sequence.set(sequence);
    raw.write_to_prefix(&mut record).unwrap();
    reseal(&mut record);
    t.volume.pool.write(ring.at + Bytes(at), &record).unwrap();
}
fn spoil_image(t: &TestVolume, ring: &Ring, at: u64) {
    t.volume.pool.write(ring.at + Bytes(at + 512), &[0x5a; 512]).unwrap();
}
/// Number, place and life of the first record of the newest chain.
fn chain(t: &TestVolume, ring: &Ring) -> Option<(u64, u64, u32)> {
    let found = super::proof::newest_chain(&t.volume, ring, &|_| true).unwrap()?;
    assert!(!found.clean);
    Some((found.tail_sequence, found.tail_offset, found.incarnation.get()))
}

#[test]
fn the_newest_chain_of_records_ends_at_a_gap_in_numbers_places_or_lives() {
    let t = TestVolume::new(Shape::default());
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let highest = |t: &TestVolume| super::proof::highest(&t.volume, &ring).unwrap();
    assert_eq!((chain(&t, &ring), highest(&t)), (None, 0));
    let meta = open(&t, 1);
    (1..=3).for_each(|v| put(&t, &meta, 3, v));
    let len = ring.record_len(3);
    assert_eq!((chain(&t, &ring), highest(&t)), (Some((1000, 0, 1)), 1002));
    let after = t.crash();
    spoil_image(&after, &ring, len);
    assert_eq!((chain(&after, &ring), highest(&after)), (Some((1002, 2 * len, 1)), 1002));
    let after = t.crash();
    spoil_image(&after, &ring, 2 * len);
    assert_eq!((chain(&after, &ring), highest(&after)), (Some((1000, 0, 1)), 1001));
    // The second one stands elsewhere.
    let after = t.crash();
    let mut record = vec![0; usize_of(len)];
    after.volume.pool.read(ring.at + Bytes(len), &mut record).unwrap();
    after.volume.pool.write(ring.at + Bytes(5 * len), &record).unwrap();
    spoil_image(&after, &ring, len);
    assert_eq!(chain(&after, &ring), Some((1002, 2 * len, 1)));
    // Numbers that were never written count for nothing.
    let after = t.crash();
    renumber(&after, &ring, (2 * len, len), Header::SEQUENCE_MAX / 2);
    assert_eq!((chain(&after, &ring), highest(&after)), (Some((1000, 0, 1)), 1001));
    // The next life continues numbers and places.
    meta.close().unwrap();
    let meta = open(&t, 2);
    (4..=5).for_each(|v| put(&t, &meta, 3, v));
    assert_eq!((chain(&t, &ring), highest(&t)), (Some((1003, 3 * len, 2)), 1004));
}

#[test]
fn the_newest_chain_of_records_goes_on_over_the_end_of_the_ring() {
    // Fourteen records of nine images fill it.
    let t = TestVolume::new(Shape::default());
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let len = ring.record_len(9);
    assert_eq!(14 * len, ring.len);
    let meta = open(&t, 1);
    (1..=15).for_each(|v| put(&t, &meta, 9, v));
    assert_eq!(chain(&t, &ring), Some((1001, len, 1)));
    // Nothing can have been skipped between the two.
    renumber(&t, &ring, (0, len), 1015);
    assert_eq!(chain(&t, &ring), Some((1015, 0, 1)));
    // Of three images there is a rest, which a record with a number of its own skips.
    let t = TestVolume::new(Shape::default());
    let len = ring.record_len(3);
    let in_ring = ring.len / len;
    let meta = open(&t, 1);
    (0..=in_ring).for_each(|v| put(&t, &meta, 3, u8::try_from(v + 1).unwrap()));
    assert_eq!(super::proof::highest(&t.volume, &ring).unwrap(), 1000 + in_ring + 1);
    assert_eq!(chain(&t, &ring), Some((1001, len, 1)));
}

#[test]
fn a_repair_continues_above_all_numbers_that_may_stand_in_the_ring() {
    let scan = super::records::Scan { sequence: 10, ..Default::default() };
    assert_eq!(super::run::beyond(&scan, 3), 12, "a record and a skip record may follow");
    assert_eq!(super::run::beyond(&scan, 11), 12);
    assert_eq!(super::run::beyond(&scan, 50), 51);
}

#[test]
fn a_slot_says_whose_records_may_count() {
    let mut record = SlotRecord::free(NODE);
    assert_eq!(Writer::of_record(Some(&record)), Writer::Nobody);
    record.state = SlotState::Active;
    assert_eq!(Writer::of_record(Some(&record)), Writer::Life(record.life.incarnation));
    assert_eq!(Writer::of_record(None), Writer::Unknown);
}

/// What is known of the ring by its records is what stands there.
fn knows_its_ring(t: &TestVolume, transactions: u64) {
    let (ring, bytes) = ring_bytes(t);
    let header = Header::read(&t.volume, &ring).unwrap();
    let known = sectors(&t.volume, NODE, &header);
    for (at, crc) in &known {
        let at = usize_of(*at);
        assert_eq!(braid_format::crc::crc32c(&bytes[at..at + 512]), *crc, "{at}");
    }
    let written = |at: &usize| RawTxHeader::read_from_prefix(&bytes[*at..]).unwrap().0;
    let mut at = usize_of(header.tail_offset);
    let (mut sequence, mut found, mut len) = (header.tail_sequence, 0, 0);
    while written(&at).magic.get() == RawTxHeader::MAGIC && written(&at).sequence.get() == sequence
    {
        let raw = written(&at);
        found += u64::from(raw.count.get() > 0);
        len += if raw.count.get() > 0 { raw.len.get() } else { 512 };
        at = (at + usize_of(raw.len.get())) % bytes.len();
        sequence += 1;
    }
    assert_eq!((known.len() as u64, found), (len / 512, transactions));
    assert_eq!(replay(&t.crash().volume, NODE).unwrap().transactions, transactions);
}

#[test]
fn the_sectors_and_blocks_of_a_journal_in_use_are_known() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    (1..=3).for_each(|v| put(&t, &meta, 3, v));
    knows_its_ring(&t, 3);
    let header = Header::read(&t.volume, &Ring::of(&t.volume, NODE).unwrap()).unwrap();
    let named = (0..3).map(|n| t.slot(n)).collect();
    assert_eq!(blocks(&t.volume, NODE, &header), named);
    // A skip record, and the records behind it at the start of the ring; then the next lap.
    meta.close().unwrap();
    let meta = open(&t, 2);
    (1..=39).for_each(|v| put(&t, &meta, 3, v));
    knows_its_ring(&t, 39);
}

#[test]
fn a_skip_record_of_a_single_sector_is_followed() {
    let t = TestVolume::new(Shape::default());
    let ring = Ring::of(&t.volume, NODE).unwrap();
    assert_eq!(5 * ring.record_len(21) + ring.record_len(22) + 512, ring.len);
    let meta = open(&t, 1);
    for count in [21, 21, 21, 21, 21, 22] {
        put(&t, &meta, count, 1);
    }
    put(&t, &meta, 3, 2);
    knows_its_ring(&t, 2);
}

#[test]
fn a_record_after_the_end_of_the_ring_proves_those_before_it() {
    let large = Shape { size: Bytes(16 << 20), journal_blocks: 600, ..Shape::default() };
    for shape in [Shape::default(), large] {
        let t = TestVolume::new(shape);
        let (ring, meta) = (Ring::of(&t.volume, NODE).unwrap(), open(&t, 1));
        let (len, fit) = (ring.record_len(9), ring.len / ring.record_len(9));
        (2..fit).for_each(|_| put(&t, &meta, 9, 1));
        meta.close().unwrap();
        let meta = open(&t, 2);
        (1..=4).for_each(|v| put(&t, &meta, 9, v));
        assert_eq!(replay(&t.crash().volume, NODE).unwrap().transactions, 4);
        for n in [fit - 2, fit - 1] {
            spoil_image(&t, &ring, n * len);
        }
        let refused = replay(&t.volume, NODE);
        assert!(matches!(refused, Err(Error::Journal { .. })), "{refused:?}");
    }
}

#[test]
fn a_number_that_the_ring_has_no_room_for_proves_nothing() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    (1..=3).for_each(|v| put(&t, &meta, 3, v));
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let (len, most) = (ring.record_len(3), ring.len / 512);
    spoil_image(&t, &ring, len);
    for (sequence, proves) in [(1001 + most, true), (1002 + most, false)] {
        let after = TestVolume::from_image(&t.tape.bytes());
        renumber(&after, &ring, (2 * len, len), sequence);
        assert_eq!(replay(&after.volume, NODE).is_err(), proves, "{sequence}");
    }
}

#[test]
fn a_journal_that_was_rewound_is_followed_though_that_header_is_lost() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    put(&t, &meta, 9, 1);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let first = Header::read(&t.volume, &ring).unwrap();
    let block = t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + first.copy);
    let (body, _, _) = t.volume.read_body(block).unwrap();
    put(&t, &meta, 120, 2);
    let rewound = Header::read(&t.volume, &ring).unwrap();
    assert_eq!((rewound.tail_sequence, rewound.tail_offset), (1001, 0));
    assert_eq!(rewound.copy, first.copy);
    let rotten = t.crash();
    spoil_copy(&rotten, rewound.copy);
    // The device said that it was written.
    let unwritten = t.crash();
    unwritten.volume.write_bodies(&[(block, &body)]).unwrap();
    for after in [rotten, unwritten] {
        let former = Header::read(&after.volume, &ring).unwrap();
        assert_eq!((former.tail_sequence, former.tail_offset), (1001, ring.record_len(9)));
        assert_eq!(replay(&after.volume, NODE).unwrap().transactions, 1);
        assert_eq!(value(&after, 119), Some(2));
    }
}

#[test]
fn a_journal_whose_records_do_not_count_continues_above_them() {
    let next = |t: &TestVolume, ring| {
        let header = Header::read(&t.volume, ring).unwrap();
        assert!(header.clean);
        header.tail_sequence
    };
    let (t, ring) = used_again(4);
    let newest = Header::read(&t.volume, &ring).unwrap();
    spoil_copy(&t, newest.copy);
    super::replay(&t.volume, NODE, Writer::Nobody).unwrap();
    assert_eq!(next(&t, &ring), 1004);
    let (t, ring) = used_again(3);
    let meta = open(&t, 2);
    (1..=2).for_each(|v| put(&t, &meta, 3, v));
    for (writer, transactions) in [(Writer::Nobody, 0), (Writer::Life(Incarnation(1)), 3)] {
        let after = t.crash();
        (0..2).for_each(|copy| spoil_copy(&after, copy));
        let (done, _) = super::salvage(&after.volume, NODE, writer).unwrap();
        assert_eq!((done.transactions, next(&after, &ring)), (transactions, 1005));
    }
}

#[test]
fn what_is_in_place_already_is_not_written_again() {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 3, 1);
    let blocks = [0, 1].map(|n| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + n));
    let headers = blocks.map(|block| t.volume.read_body(block).unwrap().0);
    assert_eq!(replay(&t.volume, NODE).unwrap().written, 3);
    // The header that said so is lost.
    for (block, body) in blocks.iter().zip(&headers) {
        t.volume.write_bodies(&[(*block, body)]).unwrap();
    }
    let done = replay(&t.volume, NODE).unwrap();
    assert_eq!(done, Replayed { transactions: 1, written: 0, skipped: 3 });
}

#[test]
fn a_damaged_header_is_told_of_while_the_other_one_is_sound() {
    let (t, ring) = used_again(1);
    assert!(Header::damaged_copy(&t.volume, &ring).unwrap().is_none());
    spoil_copy(&t, 0);
    let damage = Header::damaged_copy(&t.volume, &ring).unwrap();
    assert!(matches!(damage, Some(Error::Damaged { .. })), "{damage:?}");
    spoil_copy(&t, 1);
    assert!(Header::damaged_copy(&t.volume, &ring).unwrap().is_none());
}
