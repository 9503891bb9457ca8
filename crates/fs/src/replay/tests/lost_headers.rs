//! Replay and repair of journals of which a header is lost, or cannot be read.

use super::super::Writer;
use super::*;

/// What life `life` has written after a clean journal of life 1, in one transaction of `count` blocks, and then the
/// same with the header lost that says so: rotten, or never written.
fn lost_after(life: u32, count: u64) -> [(TestVolume, &'static str); 2] {
    let (t, ring) = used_again(4);
    let before = Header::read(&t.volume, &ring).unwrap();
    let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    let (older, _, _) = t.volume.read_body(block(1 - before.copy)).unwrap();
    put(&t, &open(&t, life), count, 9);
    let newest = Header::read(&t.volume, &ring).unwrap();
    assert!(!newest.clean && newest.copy != before.copy && newest.tail_sequence == 1004);
    let rotten = t.crash();
    spoil_copy(&rotten, newest.copy);
    let unwritten = t.crash();
    unwritten.volume.write_bodies(&[(block(newest.copy), &older)]).unwrap();
    [(rotten, "rotten"), (unwritten, "not written")]
}

#[test]
fn a_single_record_after_a_clean_header_is_found_at_the_tail_or_the_start_of_the_ring() {
    // A large one stands at the start, for which the journal was rewound. A life may close its journal and go on.
    for (life, count) in [(2, 3), (2, 120), (1, 3)] {
        for (after, how) in lost_after(life, count) {
            let done = replay(&after.volume, NODE).unwrap();
            assert_eq!(done.transactions, 1, "{how}, life {life}, {count} blocks");
            assert_eq!(value(&after, count - 1), Some(9), "{how}, life {life}, {count} blocks");
        }
    }
}

#[test]
fn a_record_of_an_earlier_life_does_not_unmake_a_clean_header() {
    let (t, ring) = used_again(4);
    open(&t, 2).close().unwrap();
    put(&t, &open(&t, 2), 3, 9);
    replay(&t.volume, NODE).unwrap();
    let header = Header::read(&t.volume, &ring).unwrap();
    assert!(header.clean && (header.tail_sequence, header.incarnation) == (1005, Incarnation(2)));
    // The first record of life 1, with the number that comes next.
    let len = ring.record_len(3);
    let mut record = vec![0; usize_of(len)];
    t.volume.pool.read(ring.at, &mut record).unwrap();
    t.volume.pool.write(ring.at + Bytes(header.tail_offset), &record).unwrap();
    renumber(&t, &ring, (header.tail_offset, len), header.tail_sequence);
    assert_eq!(replay(&t.volume, NODE).unwrap(), Replayed::default());
    assert_eq!(value(&t, 0), Some(9));
}

#[test]
fn of_a_clean_journal_nothing_is_written_by_a_replay_or_a_repair() {
    for first_puts in [0, 1, 4] {
        let (t, ring) = used_again(first_puts);
        let newest = Header::read(&t.volume, &ring).unwrap();
        let from = t.tape.len();
        replay(&t.volume, NODE).unwrap();
        assert_eq!(t.tape.letters(from), "f", "{first_puts}");
        let (done, damage) = super::super::salvage(&t.volume, NODE, Writer::Nobody).unwrap();
        assert!(done == Replayed::default() && damage.is_none());
        assert_eq!(t.tape.letters(from), "ff", "{first_puts}");
        // A damaged header is written anew.
        spoil_copy(&t, 1 - newest.copy);
        let from = t.tape.len();
        salvage(&t.volume, NODE).unwrap();
        assert_eq!(t.tape.letters(from), "wf", "{first_puts}");
    }
}

/// Puts a copy of the first record there, with this number.
fn copy_first(t: &TestVolume, ring: &Ring, at: u64, sequence: u64) {
    let len = ring.record_len(3);
    let mut record = vec![0; usize_of(len)];
    t.volume.pool.read(ring.at, &mut record).unwrap();
    t.volume.pool.write(ring.at + Bytes(at), &record).unwrap();
    renumber(t, ring, (at, len), sequence);
}
/// Writes a sealed head without images there.
fn write_head(t: &TestVolume, ring: &Ring, at: u64, change: &dyn Fn(&mut RawTxHeader)) {
    let mut sector = [0; 512];
    t.volume.pool.read(ring.at, &mut sector).unwrap();
    let mut raw = RawTxHeader::read_from_prefix(&sector).unwrap().0;
    change(&mut raw);
    sector.fill(0);
    raw.write_to_prefix(&mut sector).unwrap();
    reseal(&mut sector);
    t.volume.pool.write(ring.at + Bytes(at), &sector).unwrap();
}

#[test]
fn a_damaged_record_at_which_a_rewound_journal_begins_is_named_though_that_header_is_lost() {
    let (t, ring) = used_again(4);
    let meta = open(&t, 2);
    put(&t, &meta, 120, 8);
    put(&t, &meta, 3, 9);
    let newest = Header::read(&t.volume, &ring).unwrap();
    assert_eq!((newest.tail_sequence, newest.tail_offset), (1004, 0));
    let after = t.crash();
    spoil_copy(&after, newest.copy);
    spoil_image(&after, &ring, 0);
    let first = after.volume.geo.block_size.block_of(ring.at);
    let refused = replay(&after.volume, NODE);
    assert!(matches!(refused, Err(Error::Journal { block, .. }) if block == first), "{refused:?}");
}

/// The header that is left is older than all records of its life.
#[test]
fn a_journal_that_is_in_place_continues_above_its_records_whatever_header_is_left() {
    let t = TestVolume::new(Shape::default());
    let meta = open(&t, 1);
    (1..=4).for_each(|v| put(&t, &meta, 3, v));
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let first = Header::read(&t.volume, &ring).unwrap();
    let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    let (body, _, _) = t.volume.read_body(block(first.copy)).unwrap();
    meta.close().unwrap();
    spoil_copy(&t, 1 - first.copy);
    t.volume.write_bodies(&[(block(first.copy), &body)]).unwrap();
    super::super::replay(&t.volume, NODE, Writer::Nobody).unwrap();
    let header = Header::read(&t.volume, &ring).unwrap();
    assert!(header.clean && header.tail_sequence == 1004, "{header:?}");
}

#[test]
fn a_head_of_a_record_that_the_ring_would_cut_does_not_unmake_a_clean_header() {
    let (t, ring) = used_again(4);
    let header = Header::read(&t.volume, &ring).unwrap();
    assert!(ring.record_len(125) > ring.len - header.tail_offset);
    write_head(&t, &ring, header.tail_offset, &|raw| {
        raw.sequence.set(header.tail_sequence);
        raw.count.set(125);
        raw.len.set(ring.record_len(125));
    });
    copy_first(&t, &ring, 8 * ring.record_len(3), header.tail_sequence + 2);
    assert_eq!(replay(&t.volume, NODE).unwrap(), Replayed::default());
}

#[test]
fn a_clean_header_beside_a_damaged_one_is_refused_when_newer_records_do_not_begin_where_they_should()
 {
    let (t, ring) = used_again(2);
    let meta = open(&t, 2);
    (8..=9).for_each(|v| put(&t, &meta, 3, v));
    let newest = Header::read(&t.volume, &ring).unwrap();
    let after = t.crash();
    spoil_copy(&after, newest.copy);
    after.volume.pool.write(ring.at + Bytes(newest.tail_offset), &[0; 512]).unwrap();
    let refused = replay(&after.volume, NODE).unwrap_err();
    assert!(refused.to_string().contains("the other says clean, but record 1003"), "{refused}");
    let (done, damage) = salvage(&after.volume, NODE).unwrap();
    assert!(done.transactions == 1 && damage.is_some());
    assert_eq!(value(&after, 0), Some(9));
}

/// A replay of one record, after which the journal ends, with something else further on in the ring.
fn ended_before(also: &dyn Fn(&TestVolume, &Ring)) -> Result<Replayed> {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 3, 1);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    also(&t, &ring);
    replay(&t.volume, NODE)
}

#[test]
fn only_a_record_of_images_within_the_ring_proves_those_before_it() {
    assert_eq!(ended_before(&|_, _| {}).unwrap().transactions, 1);
    let whole = ended_before(&|t, ring| copy_first(t, ring, ring.len - ring.record_len(3), 1003));
    assert!(matches!(whole, Err(Error::Journal { .. })), "{whole:?}");
    let cut = ended_before(&|t, ring| copy_first(t, ring, ring.len - 512, 1003));
    assert_eq!(cut.unwrap().transactions, 1);
    let skip = ended_before(&|t, ring| {
        write_head(t, ring, ring.len - 512, &|raw| {
            raw.sequence.set(1003);
            raw.count.set(0);
            raw.len.set(512);
        });
    });
    assert_eq!(skip.unwrap().transactions, 1, "contents of a file may look like that");
}

#[test]
fn a_search_in_a_hostile_ring_verifies_a_few_rings_of_records_at_most() {
    let t = TestVolume::new(Shape::default());
    put(&t, &open(&t, 1), 3, 1);
    let ring = Ring::of(&t.volume, NODE).unwrap();
    let long = ring.record_len(60);
    for sector in ring.record_len(3) / 512..(ring.len - long) / 512 {
        write_head(&t, &ring, sector * 512, &|raw| {
            raw.sequence.set(1005);
            raw.count.set(60);
            raw.len.set(long);
        });
    }
    let reads = t.tape.count_reads();
    assert_eq!(replay(&t.volume, NODE).unwrap().transactions, 1);
    let rings = reads.bytes().get() / ring.len;
    assert!((4..8).contains(&rings), "{rings}");
}

#[test]
fn damage_near_the_end_of_the_ring_is_noticed_by_the_records_behind_it() {
    let t = TestVolume::new(Shape::default());
    let (ring, meta) = (Ring::of(&t.volume, NODE).unwrap(), open(&t, 1));
    let len = ring.record_len(9);
    (1..=13).for_each(|v| put(&t, &meta, 9, v));
    assert_eq!(replay(&t.crash().volume, NODE).unwrap().transactions, 13);
    for (damaged, noticed) in [(10, true), (11, true), (12, false)] {
        let after = t.crash();
        spoil_image(&after, &ring, damaged * len);
        assert_eq!(replay(&after.volume, NODE).is_err(), noticed, "record {damaged}");
    }
}

fn is_unread<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::Pool(_) | Error::Unreadable { .. }))
}

#[test]
fn a_repair_that_cannot_read_a_header_or_the_ring_ends_without_a_change() {
    let (t, ring) = used_again(4);
    let newest = Header::read(&t.volume, &ring).unwrap();
    let block = |copy| t.volume.node_area(NODE, RawSuperblock::AREA_JOURNAL_HEADERS + copy);
    let place = |t: &TestVolume, at| t.volume.pool.locate(at).unwrap().1;
    for copy in 0..2 {
        let after = t.crash();
        let from = after.tape.len();
        after.tape.fail_a_read_of(place(&after, after.volume.body_at(block(copy))));
        let failed = salvage(&after.volume, NODE);
        assert!(is_unread(&failed), "header {copy}: {failed:?}");
        assert_eq!(after.tape.letters(from), "");
        let damaged = Header::damaged_copy(&after.volume, &ring);
        assert!(matches!(damaged, Ok(None)), "{damaged:?}");
        after.tape.fail_a_read_of(place(&after, after.volume.body_at(block(copy))));
        let damaged = Header::damaged_copy(&after.volume, &ring);
        assert!(is_unread(&damaged), "header {copy}: {damaged:?}");
    }
    // The header is of a life that has left, and the ring has to be searched.
    let after = t.crash();
    spoil_copy(&after, newest.copy);
    let from = after.tape.len();
    after.tape.fail_a_read_of(place(&after, ring.at));
    let failed = super::super::salvage(&after.volume, NODE, Writer::Nobody);
    assert!(is_unread(&failed), "{failed:?}");
    assert_eq!(after.tape.letters(from), "");
}
