//! Replay of journals on mirrors, with copies that are damaged in different places.

use std::sync::Arc;

use braid_format::journal::RawTxHeader;
use braid_format::meta::MetaKind;
use braid_format::{BlockNo, ByteOffset, Bytes, Incarnation, LockNo, NodeId};
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};

use super::super::{Writer, replay};
use super::{KIND, usize_of};
use crate::journal::{Header, Ring};
use crate::make::{MakeOptions, make};
use crate::meta::Meta;
use crate::volume::Volume;

/// A file system on a mirror of so many disks, on which a node died after a transaction of [`IMAGES`] blocks.
struct Mirror {
    disks: Vec<Arc<MemoryDevice>>,
    volume: Arc<Volume>,
    ring: Ring,
    blocks: Vec<BlockNo>,
}

const NODE: NodeId = NodeId(0);
const IMAGES: usize = 4;

impl Mirror {
    fn new(copies: u16) -> Self {
        let size = Bytes(192 << 20);
        let disks: Vec<_> =
            (0..copies).map(|i| MemoryDevice::new(&format!("m{i}"), size, Bytes(512))).collect();
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options = CreateOptions {
            redundancy: Redundancy::Mirror(copies),
            ..CreateOptions::new("mirror")
        };
        let pool = Pool::create(devices, &options).unwrap();
        make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let volume = Arc::new(Volume::open(pool).unwrap());
        volume.pool.attach(NODE.get()).unwrap();
        let ring = Ring::of(&volume, NODE).unwrap();
        let slot = volume.geo.slot_blocks();
        let first = volume.rgrp(0).get() + 16 * slot;
        let blocks: Vec<_> = (0..IMAGES as u64).map(|n| BlockNo(first + n * slot)).collect();
        let meta = Meta::open(volume.clone(), NODE, Incarnation(1), 1 << 20).unwrap();
        let mut tx = meta.begin().unwrap();
        for block in &blocks {
            tx.create(*block, LockNo::from(*block), KIND, |b| b[64..].fill(5)).unwrap();
        }
        drop(tx);
        meta.commit().unwrap();
        Self { disks, volume, ring, blocks }
    }
    /// Damages the sector at this place of the ring on one disk.
    fn spoil(&self, disk: usize, at: u64) {
        let (_, place) = self.volume.pool.locate(self.ring.at + Bytes(at)).unwrap();
        self.disks[disk].write(place, &[0x5a; 512]).unwrap();
    }
    /// A place in the `n`-th image of the record, which is at the ring's start.
    fn in_image(&self, n: u64) -> u64 {
        self.ring.head_len(IMAGES as u64) + n * self.ring.image + 512
    }
    fn record(&self, disk: usize) -> Vec<u8> {
        let (_, place) = self.volume.pool.locate(self.ring.at).unwrap();
        let mut bytes = vec![0; usize_of(self.ring.record_len(IMAGES as u64))];
        self.disks[disk].read(place, &mut bytes).unwrap();
        bytes
    }
    fn values(&self) -> Vec<Option<u8>> {
        let value = |block| self.volume.read_body(block).ok().map(|(b, ..)| b[100]);
        self.blocks.iter().map(|block| value(*block)).collect()
    }
}

#[test]
fn a_record_that_is_whole_on_no_copy_is_replayed_from_what_is_good_on_each() {
    for copies in [2, 3] {
        let disks = usize::from(copies);
        let mirror = Mirror::new(copies);
        (0..IMAGES as u64).zip((0..disks).cycle()).for_each(|(n, disk)| {
            mirror.spoil(disk, mirror.in_image(n));
        });
        assert_eq!(mirror.values(), [None; IMAGES]);
        let done = replay(&mirror.volume, NODE, Writer::Any).unwrap();
        assert_eq!((done.transactions, done.written), (1, IMAGES as u64), "{copies} copies");
        assert_eq!(mirror.values(), [Some(5); IMAGES]);
        // The head is damaged on all disks but one, on which an image is.
        let mirror = Mirror::new(copies);
        (1..disks).for_each(|disk| mirror.spoil(disk, 0));
        mirror.spoil(0, mirror.in_image(IMAGES as u64 - 1));
        let done = replay(&mirror.volume, NODE, Writer::Any).unwrap();
        assert_eq!((done.transactions, done.written), (1, IMAGES as u64), "{copies} copies");
        assert_eq!(mirror.values(), [Some(5); IMAGES]);
    }
}

#[test]
fn a_record_with_an_image_that_is_good_on_no_copy_is_not_replayed() {
    let mirror = Mirror::new(2);
    mirror.spoil(0, mirror.in_image(1));
    mirror.spoil(1, mirror.in_image(1));
    let done = replay(&mirror.volume, NODE, Writer::Any).unwrap();
    assert_eq!(done.transactions, 0, "the last record may be torn");
    assert_eq!(mirror.values(), [None; IMAGES]);
}

#[test]
fn a_record_that_the_copy_which_is_read_lacks_is_written_to_it_from_the_other() {
    let mended = [0, 1].map(|damaged| {
        let mirror = Mirror::new(2);
        let whole = mirror.record(damaged);
        assert!(whole.starts_with(&RawTxHeader::MAGIC.to_le_bytes()));
        mirror.spoil(damaged, 0);
        mirror.spoil(damaged, mirror.in_image(2));
        replay(&mirror.volume, NODE, Writer::Any).unwrap();
        assert_eq!(mirror.values(), [Some(5); IMAGES]);
        mirror.record(damaged) == whole
    });
    assert_ne!(mended, [false; 2]);
}

#[test]
fn a_header_that_one_copy_has_is_seen() {
    let mirror = Mirror::new(2);
    let newest = Header::read(&mirror.volume, &mirror.ring).unwrap();
    assert_eq!(Header::look(&mirror.volume, &mirror.ring), Some(newest));
    let at = |copy| {
        let area = braid_format::superblock::RawSuperblock::AREA_JOURNAL_HEADERS;
        let block = mirror.volume.node_area(NODE, area + copy);
        mirror.volume.read_private(block, MetaKind::JournalHeader).unwrap();
        mirror.volume.pool.locate(mirror.volume.body_at(block)).unwrap().1
    };
    let places: [ByteOffset; 2] = [at(0), at(1)];
    // The newest one is damaged on one disk, the older one on the other.
    let newer = usize::try_from(newest.copy).unwrap();
    mirror.disks[0].write(places[newer], &[7; 512]).unwrap();
    mirror.disks[1].write(places[1 - newer], &[7; 512]).unwrap();
    assert_eq!(Header::look(&mirror.volume, &mirror.ring), Some(newest));
    mirror.disks[1].write(places[newer], &[7; 512]).unwrap();
    let older = Header::look(&mirror.volume, &mirror.ring).unwrap();
    assert_eq!((older.generation, older.copy), (newest.generation - 1, 1 - newest.copy));
    mirror.disks[0].write(places[1 - newer], &[7; 512]).unwrap();
    assert_eq!(Header::look(&mirror.volume, &mirror.ring), None);
}
