//! One sealed image of every structure that has no typed encoder of its own, with a different
//! value in every field.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use crate::crc::crc32c_with_hole;
use crate::dinode::{Layout, RawDinode, RawTime};
use crate::dirent::RawDirent;
use crate::journal::{RawJournalHeader, RawTxBlock, RawTxHeader};
use crate::meta::{Geometry, MetaHeader, MetaKind};
use crate::node::{RawCounters, RawOrphans};
use crate::plock::{RawPlock, RawPlockBucket};
use crate::redundancy::{LogPlace, RawIntents, RawRedoHeader, RawRedoPart, RawRedoRecord};
use crate::rgrp::{BlockState, RawFreeLog, RawFreed, RawRgrp, RawWindow};
use crate::superblock::{RawLeaving, RawSuperblock};
use crate::tree::{RawExtent, RawIndexEntry, RawNode};
use crate::units::{BlockNo, LockNo};
use crate::xattr::{RawXattr, RawXattrBlock, RawXattrValue};

const BLOCK: BlockNo = BlockNo(0x0102_0304);

fn header(kind: MetaKind) -> MetaHeader {
    let mut header = MetaHeader::new(kind, BLOCK, LockNo(0x0506_0708));
    header.generation = U64::new(0x1112_1314_1516_1718);
    header
}

/// A body of these parts, one after the other.
fn body(parts: &[&[u8]]) -> Vec<u8> {
    let mut body = parts.concat();
    body.resize(Geometry::DEFAULT.body_len(), 0);
    body
}

/// Seals, decodes and compares with the golden image.
fn check(name: &str, kind: MetaKind, mut body: Vec<u8>) {
    MetaHeader::seal(&mut body);
    assert!(MetaHeader::decode_kind(&body, BLOCK, kind).is_ok(), "{name}");
    super::check(name, &body);
}

fn bytes<T: IntoBytes + Immutable>(value: &T) -> Vec<u8> {
    value.as_bytes().to_vec()
}

fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    out[..text.len()].copy_from_slice(text.as_bytes());
    out
}

#[test]
fn superblock() {
    let raw = RawSuperblock {
        header: header(MetaKind::Superblock),
        fs_magic: RawSuperblock::FS_MAGIC,
        version: U32::new(RawSuperblock::VERSION),
        block_shift: U16::new(12),
        lock_sector_shift: U16::new(9),
        pool_uuid: *b"pool-identity-01",
        fs_uuid: *b"file-system-id-1",
        features_compat: U64::new(0x21),
        features_ro_compat: U64::new(0x22),
        features_incompat: U64::new(0x23),
        total_blocks: U64::new(0x24),
        node_slots: U16::new(0x25),
        named_count: U16::new(RawSuperblock::NAMED_COUNT),
        plock_count: U16::new(RawSuperblock::PLOCK_COUNT),
        node_area_slots: U16::new(RawSuperblock::AREA_SLOTS),
        named_start: U64::new(0x26),
        plock_start: U64::new(0x27),
        slot_area: U64::new(0x28),
        heartbeat_area: U64::new(0x29),
        node_area: U64::new(0x2a),
        journal_area: U64::new(0x2b),
        journal_blocks: U64::new(0x2c),
        rgrp_start: U64::new(0x2d),
        rgrp_blocks: U64::new(0x2e),
        rgrp_count: U64::new(0x2f),
        root_inode: U64::new(0x30),
        hash_seed: U64::new(0x31),
        stripe_unit: U64::new(0x40000),
        stripe_width: U64::new(0x10_0000),
        name: text("scratch"),
        meta_blocks: U64::new(0x32),
        data_start: U64::new(0x33),
        data_blocks: U64::new(0x34),
        data_count: U64::new(0x35),
        data_end: U64::new(0x36),
        data_heads: U64::new(0x37),
        data_head_slots: U64::new(0x38),
    };
    check("superblock", MetaKind::Superblock, body(&[&bytes(&raw)]));
}

#[test]
fn leaving() {
    let raw = RawLeaving { closed: U32::new(0x0102_0304), gone: U32::new(0x8040_2010) };
    let mut all = bytes(&header(MetaKind::Superblock));
    all.resize(RawLeaving::AT, 0);
    all.extend(bytes(&raw));
    check("superblock_leaving", MetaKind::Superblock, body(&[&all]));
}

#[test]
fn resource_group() {
    let raw = RawRgrp {
        header: header(MetaKind::Rgrp),
        index: U64::new(0x21),
        bitmap_slots: U32::new(0x22),
        subpool: U32::new(0x23),
        first_block: U64::new(0x24),
        block_count: U64::new(0x25),
        free_blocks: U64::new(0x26),
        free_meta: U64::new(0x27),
        dinodes: U64::new(0x28),
    };
    check("rgrp", MetaKind::Rgrp, body(&[&bytes(&raw)]));
}

#[test]
fn window_and_free_log() {
    let raw = RawWindow {
        header: header(MetaKind::Window),
        rgrp: U64::new(0x21),
        start: U64::new(0x22),
        blocks: U64::new(4),
        incarnation: U32::new(0x23),
        reserved: U32::ZERO,
    };
    check("window", MetaKind::Window, body(&[&bytes(&raw), &[0b1110_0100]]));
    let log = RawFreeLog { header: header(MetaKind::FreeLog), count: U64::new(2) };
    let data = RawFreed {
        start: U64::new(0x31),
        len: U32::new(0x32),
        state: U32::new(BlockState::Free as u32),
    };
    let meta = RawFreed {
        start: U64::new(0x41),
        len: U32::new(1),
        state: U32::new(BlockState::MetaFree as u32),
    };
    let parts = [bytes(&log), bytes(&data), bytes(&meta)];
    check("free_log", MetaKind::FreeLog, body(&[&parts[0], &parts[1], &parts[2]]));
}

#[test]
fn counters_and_orphans() {
    let raw = RawCounters {
        header: header(MetaKind::NodeInfo),
        free_blocks: U64::new((-3_i64).cast_unsigned()),
        inodes: U64::new(5),
        free_meta: U64::new((-7_i64).cast_unsigned()),
    };
    check("counters", MetaKind::NodeInfo, body(&[&bytes(&raw)]));
    let raw = RawOrphans { header: header(MetaKind::Orphans), count: U64::new(2) };
    let list = [U64::new(0x21), U64::new(0x22)];
    check("orphans", MetaKind::Orphans, body(&[&bytes(&raw), list.as_bytes()]));
}

fn time(sec: i64) -> RawTime {
    RawTime { sec: sec.into(), nsec: U32::new(999_999_999) }
}

#[test]
fn dinode() {
    let raw = RawDinode {
        header: header(MetaKind::Dinode),
        mode: U32::new(0o100_644),
        uid: U32::new(1000),
        gid: U32::new(1001),
        nlink: U32::new(2),
        size: U64::new(5),
        blocks: U64::new(0x21),
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        rdev: U64::new(0x22),
        layout: U16::new(Layout::Stuffed as u16),
        tree_height: U16::new(0x23),
        tail_count: U16::new(0x24),
        xattr_len: U16::new(0x25),
        xattr_block: U64::new(0x26),
        inode_generation: U64::new(0x27),
        parent: U64::new(0x28),
        entries: U64::new(0x29),
        flags: U32::new(RawDinode::FLAG_APPEND | RawDinode::FLAG_TMPFILE),
        project: U32::new(0x2a),
        reserved: [0; 80],
    };
    check("dinode", MetaKind::Dinode, body(&[&bytes(&raw), b"hello"]));
}

#[test]
fn tree_nodes() {
    let node = |kind, level: u16, count: u16, used: u32| {
        bytes(&RawNode {
            header: header(kind),
            level: level.into(),
            count: count.into(),
            used: used.into(),
        })
    };
    let entry = |n: u64| bytes(&RawIndexEntry { key: n.into(), child: (n + 1).into() });
    let index = [node(MetaKind::Index, 1, 2, 0), entry(0x21), entry(0x31)];
    check("index", MetaKind::Index, index.concat().sized());
    let extent = |n: u64, flags: u32| {
        bytes(&RawExtent {
            logical: n.into(),
            physical: (n + 1).into(),
            len: U32::new(0x44),
            flags: flags.into(),
        })
    };
    let leaf = [
        node(MetaKind::ExtentLeaf, 0, 2, 0),
        extent(0x21, RawExtent::UNWRITTEN),
        extent(0x31, RawExtent::SHARED),
    ];
    check("extent_leaf", MetaKind::ExtentLeaf, leaf.concat().sized());
    let dirent = RawDirent {
        cookie: U64::new(0x1234_5678_9abc_def0),
        inode: U64::new(0x21),
        record_len: U16::new(u16::try_from(RawDirent::len_for(5)).unwrap()),
        name_len: U16::new(5),
        file_type: U32::new(8),
    };
    let leaf = [node(MetaKind::DirLeaf, 0, 1, 32), bytes(&dirent), b"hello\0\0\0".to_vec()];
    check("directory_leaf", MetaKind::DirLeaf, leaf.concat().sized());
}

trait Sized4K {
    fn sized(self) -> Vec<u8>;
}
impl Sized4K for Vec<u8> {
    fn sized(self) -> Vec<u8> {
        body(&[&self])
    }
}

#[test]
fn attributes() {
    let short =
        RawXattr { record_len: U16::new(24), name_len: 6, flags: 0, value_len: U32::new(5) };
    let long = RawXattr {
        record_len: U16::new(32),
        name_len: 6,
        flags: RawXattr::LONG,
        value_len: U32::new(4000),
    };
    let head = RawXattrBlock {
        header: header(MetaKind::Xattr),
        used: U32::new(56),
        reserved: U32::ZERO,
        next: U64::new(0x31),
    };
    let blocks = [U64::new(0x41), U64::new(0x42)];
    let parts = [
        bytes(&head),
        bytes(&short),
        b"user.xvalue\0\0\0\0\0".to_vec(),
        bytes(&long),
        b"user.y".to_vec(),
        bytes(&blocks),
        vec![0; 2],
    ];
    check("attributes", MetaKind::Xattr, parts.concat().sized());
    let value =
        RawXattrValue { header: header(MetaKind::XattrValue), part: U32::new(1), len: U32::new(5) };
    let body = [bytes(&value), b"value".to_vec()].concat().sized();
    check("attribute_value", MetaKind::XattrValue, body);
}

#[test]
fn program_locks() {
    let raw = RawPlockBucket {
        header: header(MetaKind::Plock),
        count: U64::new(1),
        next: U64::new(0x36),
    };
    let lock = RawPlock {
        inode: U64::new(0x21),
        start: U64::new(0x22),
        end: U64::new(u64::MAX),
        owner: U64::new(0x23),
        pid: U32::new(0x24),
        incarnation: U32::new(0x25),
        slot: U16::new(0x26),
        mode: U16::new(2),
        flags: U32::new(3),
        order: U64::new(0x27),
    };
    check("program_locks", MetaKind::Plock, body(&[&bytes(&raw), &bytes(&lock)]));
}

#[test]
fn journal() {
    let raw = RawJournalHeader {
        header: header(MetaKind::JournalHeader),
        tail_sequence: U64::new(0x21),
        tail_offset: U64::new(0x22),
        incarnation: U32::new(0x23),
        clean: U32::new(1),
    };
    check("journal_header", MetaKind::JournalHeader, body(&[&bytes(&raw)]));
    let head = RawTxHeader {
        magic: U32::new(RawTxHeader::MAGIC),
        crc: U32::ZERO,
        sequence: U64::new(0x31),
        len: U64::new(512 + 3584),
        incarnation: U32::new(0x32),
        count: U32::new(1),
        slot: U32::new(0x33),
        reserved: U32::ZERO,
    };
    let name = RawTxBlock { block: U64::new(BLOCK.0), generation: U64::new(0x34) };
    let mut record = [bytes(&head), bytes(&name)].concat();
    record.resize(512, 0);
    let mut image = body(&[&bytes(&header(MetaKind::Free))]);
    MetaHeader::seal(&mut image);
    record.extend(image);
    let crc = crc32c_with_hole(&record, RawTxHeader::CRC_AT);
    record[RawTxHeader::CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
    super::check("journal_record", &record);
}

/// Fills in the checksum at `at`.
fn sum(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let crc = crc32c_with_hole(&bytes, at);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn redundancy_log() {
    let pool_uuid = *b"pool-identity-01";
    let mut bits = [0; 4032];
    (bits[0], bits[1], bits[4031]) = (0x81, 0x42, 0x24);
    let intents = RawIntents {
        magic: U32::new(RawIntents::MAGIC),
        crc: U32::ZERO,
        pool_uuid,
        sector: U16::new(0x41),
        slot: U16::new(0x42),
        region_shift: U32::new(24),
        sequence: U64::new(0x43),
        reserved: [0; 24],
        bits,
    };
    super::check("intents", &sum(bytes(&intents), RawIntents::CRC_AT));
    let header = RawRedoHeader {
        magic: U32::new(RawRedoHeader::MAGIC),
        crc: U32::ZERO,
        pool_uuid,
        generation: U64::new(0x51),
        tail_sequence: U64::new(0x52),
        tail_offset: U64::new(0x5000),
        slot: U16::new(0x54),
        reserved: [0; 14],
    };
    let mut sector = bytes(&header);
    sector.resize(LogPlace::SECTOR, 0);
    super::check("redo_header", &sum(sector, RawRedoHeader::CRC_AT));
    let record = RawRedoRecord {
        magic: U32::new(RawRedoRecord::MAGIC),
        crc: U32::ZERO,
        pool_uuid,
        sequence: U64::new(0x61),
        len: U32::new(4096),
        parts: U32::new(1),
        slot: U16::new(0x64),
        reserved: [0; 22],
    };
    let part = RawRedoPart {
        group: U16::new(0x71),
        column: U16::new(0x72),
        len: U32::new(512),
        offset: U64::new(0x7400),
    };
    let mut record = [bytes(&record), bytes(&part), vec![0x77; 512]].concat();
    record.resize(4096, 0);
    super::check("redo_record", &sum(record, RawRedoRecord::CRC_AT));
}

#[test]
fn history() {
    use crate::history::{Event, EventKind, HistoryPage};
    let (host, text) = ("node-a".to_owned(), "member 1 (/dev/sdb) has failed".to_owned());
    let event = Event {
        time: 0x0102_0304_0506,
        id: 0x1112_1314_1516_1718,
        kind: EventKind::Member,
        slot: Some(crate::NodeId(0x21)),
        user: None,
        host,
        text,
    };
    let page = HistoryPage::new(0x31).with(&event, 512).expect("it fits");
    super::check("history", &page.encode(*b"pool-identity-01", 512));
}
