//! A populated file system, damaged in known ways. Each damage must be named, and repaired if it
//! can be.

use std::sync::Arc;

use braid_format::dinode::RawDinode;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::RawCounters;
use braid_format::rgrp::{BlockState, RawRgrp};
use braid_format::superblock::RawSuperblock;
use braid_format::tree::{RawExtent, RawNode};
use braid_format::{BlockNo, ByteOffset, Bytes, FormatError, InodeNo, NodeId};
use braid_pool::Pool;
use braid_pool::device::{AlignedBuf, Device, MemoryDevice};
use zerocopy::FromBytes;

use super::*;
use crate::alloc::bits;
use crate::attr::{Cred, NoKernelCache, WriteFlags};
use crate::error::Error;
use crate::exclusive_use::{claim, enter, refuse_beating};
use crate::make::{MakeOptions, make};
use crate::options::MountOptions;
use crate::volume::Volume;
use crate::{Attr, Fs};

const CRED: Cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const RDWR: i32 = 2;

fn mount(pool: &Pool) -> Fs {
    // Nothing happens in the background: a copy of the devices is then one moment's.
    let commit_interval = std::time::Duration::from_hours(1);
    let options = MountOptions { commit_interval, ..MountOptions::default() };
    Fs::mount(pool.clone(), options, Arc::new(NoKernelCache)).unwrap()
}
fn file(fs: &Fs, dir: InodeNo, name: &str, pieces: &[(u64, usize)]) -> Attr {
    let (attr, fh) = fs.create(dir, name.as_bytes(), 0o644, RDWR, &CRED).unwrap();
    for &(at, len) in pieces {
        fs.write(fh, at, &vec![0x42; len], WriteFlags::default()).unwrap();
    }
    fs.fsync(fh, false).unwrap();
    fs.release(fh).unwrap();
    attr
}

/// What [`populated`] made.
struct Made {
    pool: Pool,
    volume: Volume,
    /// A file with blocks; another one.
    big: BlockNo,
    other: BlockNo,
    /// A directory in a tree of leaves, and how many names it has.
    dir: BlockNo,
    names: u64,
    /// A directory in a directory.
    sub: BlockNo,
}

fn populate(fs: &Fs) -> [InodeNo; 4] {
    let root = fs.root();
    let dir = fs.mkdir(root, b"dir", 0o755, &CRED).unwrap().ino;
    for i in 0..300 {
        file(fs, dir, &format!("a file with a rather long name {i}"), &[]);
    }
    let sub = fs.mkdir(dir, b"sub", 0o755, &CRED).unwrap().ino;
    let big = file(fs, sub, "big", &[(0, 1 << 20), (8 << 20, 100_000)]).ino;
    let other = file(fs, root, "other", &[(0, 300_000)]).ino;
    file(fs, root, "small", &[(0, 100)]);
    fs.link(other, dir, b"another name").unwrap();
    fs.symlink(sub, b"way", b"../../other", &CRED).unwrap();
    fs.setxattr(big, b"user.note", &[7; 900], 0).unwrap();
    fs.unlink(dir, b"a file with a rather long name 7").unwrap();
    [big, other, dir, sub]
}
fn populated() -> Made {
    let pool = Pool::for_tests(2, Bytes(26 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = mount(&pool);
    let [big, other, dir, sub] = populate(&fs).map(BlockNo::from);
    fs.unmount().unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    Made { pool, volume, big, other, dir, names: 301, sub }
}
fn run(pool: &Pool, repair: bool) -> Report {
    check(pool.clone(), CheckOptions { repair }, &mut |_, _| {}).unwrap()
}
fn assert_clean(pool: &Pool) -> Report {
    let report = run(pool, false);
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    report
}

impl Made {
    fn body(&self, block: BlockNo) -> Vec<u8> {
        self.volume.read_body(block).unwrap().0.to_vec()
    }
    /// Changes a body and seals it again.
    fn edit<T>(&self, block: BlockNo, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut body = self.body(block);
        let t = f(&mut body);
        MetaHeader::seal(&mut body);
        self.volume.write_bodies(&[(block, &body)]).unwrap();
        t
    }
    fn dinode<T>(&self, block: BlockNo, f: impl FnOnce(&mut RawDinode) -> T) -> T {
        self.edit(block, |body| f(RawDinode::mut_from_prefix(body).unwrap().0))
    }
    /// Breaks a body without sealing it.
    fn smash(&self, block: BlockNo) {
        let mut body = self.body(block);
        body[100] ^= 0xff;
        self.volume.write_bodies(&[(block, &body)]).unwrap();
    }
    /// Sets the bits of a run in its group's bitmap.
    fn set_bits(&self, block: u64, len: u64, state: BlockState) {
        let index = self.volume.rgrp_of(BlockNo(block)).unwrap();
        let shape = self.volume.group_shape(index).unwrap();
        let per = crate::groups::blocks_per_bitmap(self.volume.geo);
        let at = block - shape.first_block;
        assert!(at / per == (at + len - 1) / per);
        let bitmap = BlockNo(shape.start.get() + 1 + at / per);
        self.edit(bitmap, |body| bits::fill(&mut body[MetaHeader::LEN..], at % per, len, state));
    }
    fn state_of(&self, block: u64) -> BlockState {
        let index = self.volume.rgrp_of(BlockNo(block)).unwrap();
        let shape = self.volume.group_shape(index).unwrap();
        let per = crate::groups::blocks_per_bitmap(self.volume.geo);
        let at = block - shape.first_block;
        let bitmap = BlockNo(shape.start.get() + 1 + at / per);
        bits::get(&self.body(bitmap)[MetaHeader::LEN..], at % per)
    }
    fn first_extent(&self, ino: BlockNo) -> RawExtent {
        let body = self.body(ino);
        assert_eq!(RawDinode::read_from_prefix(&body).unwrap().0.tree_height.get(), 0);
        RawExtent::read_from_prefix(&body[RawDinode::TAIL_AT..]).unwrap().0
    }
    /// A problem that names `block` and says `what`; one repair leaves nothing.
    fn expect(&self, block: BlockNo, what: &str) {
        let before = self.image();
        let report = run(&self.pool, false);
        let name = format!("block {block}:");
        let named = report.problems.iter().any(|p| p.starts_with(&name) && p.contains(what));
        assert!(named, "no {name} .. {what} in {:#?}", report.problems);
        assert!(self.image() == before, "a check without repair wrote");
        let repaired = run(&self.pool, true);
        assert!(repaired.repaired > 0);
        assert!(repaired.left.is_empty(), "{:#?}", repaired.left);
        assert_clean(&self.pool);
    }
    fn image(&self) -> Vec<Vec<u8>> {
        image(&self.pool)
    }
}

pub(super) fn image(pool: &Pool) -> Vec<Vec<u8>> {
    let read = |d: &Arc<dyn Device>| {
        let mut bytes = vec![0; d.info().size.to_usize()];
        d.read(ByteOffset(0), &mut bytes).unwrap();
        bytes
    };
    pool.devices().iter().map(read).collect()
}
/// What all nodes leave that die now.
pub(super) fn copy(pool: &Pool) -> Pool {
    let devices = pool.devices();
    let device = |(old, bytes): (&Arc<dyn Device>, Vec<u8>)| {
        let d = MemoryDevice::in_place_of(old.info());
        d.write(ByteOffset(0), &bytes).unwrap();
        d as Arc<dyn Device>
    };
    Pool::assemble(devices.iter().zip(image(pool)).map(device).collect()).unwrap()
}

#[test]
fn what_mkfs_makes_is_clean() {
    for n in [1, 3] {
        let pool = Pool::for_tests(n, Bytes(64 << 20));
        let mut seen = (0, 0);
        make(&pool, &MakeOptions::default(), &mut |done, total| seen = (done, total)).unwrap();
        assert!(seen.0 == seen.1 && seen.1 >= 4);
        let report = assert_clean(&pool);
        assert_eq!((report.inodes, report.directories, report.data_blocks), (1, 1, 0));
    }
}

#[test]
fn what_operations_leave_is_clean() {
    let made = populated();
    let report = assert_clean(&made.pool);
    // Root, dir, sub; 299 files, big, other, small, way.
    assert_eq!((report.inodes, report.directories), (306, 3));
    assert!(report.data_blocks >= (1 << 20) / 4096 + 25 + 74);
    assert_eq!(report.replayed, 0);
}

#[test]
fn journal_of_a_dead_node_is_replayed_first_and_its_windows_count() {
    // One device, copied from its start: journal headers come before the blocks that a checkpoint,
    // which may be under way, puts in place.
    let pool = Pool::for_tests(1, Bytes(52 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = mount(&pool);
    populate(&fs);
    fs.sync().unwrap();
    let left = copy(&pool);
    let refused = check(pool.clone(), CheckOptions::default(), &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Mounted { .. })), "{refused:?}");
    let report = assert_clean(&left);
    assert_eq!((report.inodes, report.replayed), (306, 1));
    fs.unmount().unwrap();
}

#[test]
fn bitmap_and_counters() {
    let m = populated();
    let extent = m.first_extent(m.other);
    let at = extent.physical.get();
    m.set_bits(at + 1, 2, BlockState::Free);
    m.expect(BlockNo(at + 1), "2 block(s): file data that the bitmap");

    let shape = m.volume.group_shape(3).unwrap();
    let free = shape.first_block + shape.block_count - 100;
    assert_eq!(m.state_of(free), BlockState::Free);
    m.set_bits(free, 5, BlockState::Data);
    m.expect(BlockNo(free), "5 block(s): data blocks that nothing refers to");
    m.set_bits(free, 1, BlockState::MetaUsed);
    m.expect(BlockNo(free), "metadata blocks that nothing refers to");

    m.set_bits(m.big.get(), 1, BlockState::MetaFree);
    m.expect(m.big, "metadata in use");

    m.edit(shape.start, |b| RawRgrp::mut_from_prefix(b).unwrap().0.free_blocks.set(3));
    m.expect(shape.start, "counts 3 free blocks");

    let counters = BlockNo::from(m.volume.named(RawSuperblock::NAMED_COUNTERS));
    m.edit(counters, |b| RawCounters::mut_from_prefix(b).unwrap().0.inodes.set(3));
    m.expect(counters, "3 inodes, there are 306");

    m.smash(BlockNo(shape.start.get() + 1));
    m.expect(BlockNo(shape.start.get() + 1), "allocation bitmap: ");
}

#[test]
fn superblock_copies() {
    let m = populated();
    m.smash(BlockNo(0));
    m.expect(BlockNo(0), "superblock: ");
    let copy = m.volume.copy();
    m.edit(copy, |b| RawSuperblock::mut_from_prefix(b).unwrap().0.hash_seed.set(1));
    m.expect(copy, "copies differ");
}

#[test]
fn links_parents_and_counts() {
    let m = populated();
    m.dinode(m.other, |raw| raw.nlink.set(5));
    m.expect(m.other, "inode has 2 links, its dinode says 5");
    m.dinode(m.big, |raw| raw.blocks.set(1));
    m.expect(m.big, "its dinode says 1");
    m.dinode(m.dir, |raw| raw.entries.set(2));
    m.expect(m.dir, &format!("directory has {} entries", m.names));
    m.dinode(m.sub, |raw| raw.parent.set(m.volume.sb.root_inode.get()));
    m.expect(m.sub, "directory is in");
    m.dinode(m.dir, |raw| raw.nlink.set(2));
    m.expect(m.dir, "inode has 3 links");
}

#[test]
fn entries_that_lead_nowhere() {
    let m = populated();
    // The root's tail: turn the first entry's inode into a number that cannot be one.
    let root = BlockNo::from(m.volume.root());
    m.edit(root, |b| b[RawDinode::TAIL_AT + 8..][..8].copy_from_slice(&7_u64.to_le_bytes()));
    m.expect(root, "names 7, which cannot be an inode");

    let m = populated();
    m.smash(m.big);
    m.expect(m.big, "dinode: ");
    let fs = mount(&m.pool);
    let gone = fs.lookup(InodeNo::from(m.sub), b"big");
    assert!(matches!(gone, Err(Error::NotFound)), "the entry was dropped: {gone:?}");
    fs.unmount().unwrap();
}

#[test]
fn damaged_trees() {
    let m = populated();
    // Two files, the same blocks.
    let extent = m.first_extent(m.other);
    m.edit(m.big, |b| {
        let e = RawExtent::mut_from_prefix(&mut b[RawDinode::TAIL_AT..]).unwrap().0;
        e.physical = extent.physical;
    });
    m.expect(BlockNo(extent.physical.get()), "and so does another");

    let m = populated();
    m.edit(m.other, |b| {
        let e = RawExtent::mut_from_prefix(&mut b[RawDinode::TAIL_AT..]).unwrap().0;
        e.physical.set(5);
    });
    m.expect(BlockNo(5), "outside all groups");

    let m = populated();
    m.edit(m.other, |b| {
        let e = RawExtent::mut_from_prefix(&mut b[RawDinode::TAIL_AT..]).unwrap().0;
        e.len.set(0);
    });
    m.expect(m.other, "order of extents");

    // A leaf of the large directory: with entries out of order; with another owner; with another
    // kind.
    type Spoil = fn(&mut [u8]);
    let spoils: [(&str, Spoil); 3] = [
        ("order of entries", |b| b[size_of::<RawNode>()..][..8].fill(0xff)),
        ("belongs to 9", |b| MetaHeader::mut_from_prefix(b).unwrap().0.owner.set(9)),
        ("attribute block instead of directory leaf", |b| {
            MetaHeader::mut_from_prefix(b).unwrap().0.set_kind(MetaKind::Xattr);
        }),
    ];
    for (what, spoil) in spoils {
        let m = populated();
        let body = m.body(m.dir);
        let raw = RawDinode::read_from_prefix(&body).unwrap().0;
        assert_eq!(raw.tree_height.get(), 1, "a leaf or two below the root");
        let at = RawDinode::TAIL_AT + 8;
        let leaf = BlockNo(u64::from_le_bytes(body[at..at + 8].try_into().unwrap()));
        m.edit(leaf, spoil);
        m.expect(leaf, what);
    }
}

#[test]
fn inodes_without_a_name_and_slots_in_disguise() {
    let m = populated();
    // The only entries of `sub` go.
    m.edit(m.sub, |b| {
        let raw = RawDinode::mut_from_prefix(b).unwrap().0;
        raw.tail_count.set(0);
        raw.entries.set(0);
    });
    m.expect(m.big, "inode without a name");
    let fs = mount(&m.pool);
    let lost = fs.lookup(fs.root(), b"lost+found").unwrap();
    let big = fs.lookup(lost.ino, format!("#{}", m.big).as_bytes()).unwrap();
    assert_eq!((big.ino, big.nlink, big.size), (InodeNo::from(m.big), 1, (8 << 20) + 100_000));
    let fh = fs.open(big.ino, RDWR).unwrap();
    let mut piece = AlignedBuf::zeroed(100);
    fs.read(fh, 8 << 20, &mut piece).unwrap();
    assert_eq!(*piece, [0x42; 100]);
    fs.release(fh).unwrap();
    fs.unmount().unwrap();

    // All names in the root go: a whole tree is found again by its top, with what is in it.
    let m = populated();
    let root = BlockNo::from(m.volume.root());
    m.dinode(root, |raw| {
        raw.tail_count.set(0);
        raw.entries.set(0);
    });
    m.expect(m.dir, "inode without a name");
    let fs = mount(&m.pool);
    let lost = fs.lookup(fs.root(), b"lost+found").unwrap();
    let dir = fs.lookup(lost.ino, format!("#{}", m.dir).as_bytes()).unwrap();
    assert_eq!(dir.nlink, 3);
    let sub = fs.lookup(dir.ino, b"sub").unwrap();
    assert_eq!(fs.lookup(sub.ino, b"big").unwrap().ino, InodeNo::from(m.big));
    assert_eq!(fs.lookup(dir.ino, b"..").map(|a| a.ino).ok(), Some(lost.ino));
    fs.unmount().unwrap();
    assert_clean(&m.pool);

    let m = populated();
    let shape = m.volume.group_shape(0).unwrap();
    let slot = (0..shape.block_count)
        .map(|i| shape.first_block + i)
        .find(|&b| m.state_of(b) == BlockState::MetaFree)
        .unwrap();
    m.edit(BlockNo(slot), |b| {
        MetaHeader::mut_from_prefix(b).unwrap().0.set_kind(MetaKind::Dinode);
    });
    m.expect(BlockNo(slot), "free metadata block holds a dinode");
    m.smash(BlockNo(slot));
    m.expect(BlockNo(slot), "free metadata block: ");
    assert_clean(&m.pool);
}

/// A lock record that cannot be read makes what it protects give EIO to every node.
#[test]
fn damaged_lock_records_are_found_and_unlocked() {
    let m = populated();
    let group = m.volume.group_shape(0).unwrap().start;
    let named = BlockNo(m.volume.named(RawSuperblock::NAMED_COUNTERS).0);
    for block in [m.big, m.dir, BlockNo::from(m.volume.root()), group, named] {
        let at = m.volume.geo.block_size.offset_of(block);
        let mut sector = vec![0; m.volume.geo.body_at().to_usize()];
        m.pool.read(at, &mut sector).unwrap();
        sector[20] ^= 4;
        m.pool.write(at, &sector).unwrap();
        m.expect(block, "lock record");
        let fs = mount(&m.pool);
        fs.lookup(fs.root(), b"dir").unwrap();
        fs.unmount().unwrap();
    }
}

/// A journal does with one of its two headers; the next damage would take it away.
#[test]
fn a_damaged_header_of_a_journal_is_found_and_made_anew() {
    let m = populated();
    for copy in 0..2 {
        let area = RawSuperblock::AREA_JOURNAL_HEADERS + copy;
        let block = m.volume.node_area(NodeId(1), area);
        m.smash(block);
        m.expect(block, "journal of node 1");
        // And its lock record.
        let slot = vec![0; Bytes(m.volume.geo.slot_bytes()).to_usize()];
        m.pool.write(m.volume.geo.block_size.offset_of(block), &slot).unwrap();
        m.expect(block, "journal of node 1");
    }
}

/// A populated pool of two copies, unmounted.
fn mirrored() -> Pool {
    let device = |i| {
        let memory = MemoryDevice::new(&format!("m{i}"), Bytes(96 << 20), Bytes(512));
        memory as Arc<dyn Device>
    };
    let redundancy = braid_pool::layout::Redundancy::Mirror(2);
    let options =
        braid_pool::CreateOptions { redundancy, ..braid_pool::CreateOptions::new("mirrored") };
    let pool = Pool::create((0..2).map(device).collect(), &options).unwrap();
    let options = MakeOptions { journal_size: Some(2 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    let fs = mount(&pool);
    populate(&fs);
    fs.unmount().unwrap();
    pool
}
/// Flips a bit of one copy of the pool's byte `at`.
fn rot(pool: &Pool, copy: usize, at: ByteOffset) {
    let start = pool.label().members[copy].data_start;
    let place = ByteOffset((start.get() + at.get()) / 512 * 512);
    let mut sector = [0; 512];
    pool.devices()[copy].read(place, &mut sector).unwrap();
    sector[Bytes(at.get() % 512).to_usize()] ^= 4;
    pool.devices()[copy].write(place, &sector).unwrap();
}

#[test]
fn a_damaged_copy_of_a_nodes_slot_is_found_and_mended_and_keeps_nobody_out() {
    for copy in 0..2 {
        let pool = mirrored();
        let volume = Volume::open(pool.clone()).unwrap();
        let area = volume.geo.block_size.offset_of(BlockNo(volume.sb.slot_area.get()));
        rot(&pool, copy, area + Bytes(40));
        let found = run(&pool, false).problems;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a copy of the slot of node 0"), "{found:?}");
        mount(&pool).unmount().unwrap();
        rot(&pool, copy, area + Bytes(40));
        assert_eq!(run(&pool, true).repaired, 1);
        assert_clean(&pool);
        mount(&pool).unmount().unwrap();
    }
}

/// Not for a whole pool, nor if a journal is to be replayed or a copy to be healed.
#[test]
fn without_repair_no_byte_of_a_device_changes() {
    let pool = mirrored();
    let unchanged = |pool: &Pool| {
        let before = image(pool);
        let report = assert_clean(pool);
        assert!(image(pool) == before);
        report
    };
    assert_eq!(unchanged(&pool).replayed, 0);
    let fs = mount(&pool);
    file(&fs, fs.root(), "in the journal", &[(0, 5000)]);
    assert_eq!(unchanged(&copy(&pool)).replayed, 1);
    fs.unmount().unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    let named = BlockNo(volume.named(RawSuperblock::NAMED_COUNTERS).get());
    for block in [named, BlockNo::from(volume.root()), BlockNo(0), volume.copy()] {
        rot(&pool, 0, volume.body_at(block) + Bytes(100));
    }
    unchanged(&pool);
    let before = image(&pool);
    assert!(run(&pool, true).problems.is_empty());
    assert!(image(&pool) != before);
}

#[test]
fn one_sound_superblock_of_any_copy_is_enough() {
    let pool = mirrored();
    let volume = Volume::open(pool.clone()).unwrap();
    let copy = volume.body_at(volume.copy());
    for (member, at) in [(0, volume.body_at(BlockNo(0))), (0, copy), (1, copy)] {
        rot(&pool, member, at + Bytes(100));
    }
    mount(&pool).unmount().unwrap();
}

#[test]
fn no_bytes_make_it_panic_or_run_for_ever() {
    let m = populated();
    let before = m.image();
    let mut rng = crate::test_volume::Rng(5);
    let targets = [m.big, m.other, m.dir, m.sub, BlockNo::from(m.volume.root())];
    for round in 0..60 {
        let block = targets[round % targets.len()];
        // Sealed nonsense: only the checks behind the checksum can notice.
        m.edit(block, |b| {
            for _ in 0..=rng.below(6) {
                let at = MetaHeader::LEN + usize::try_from(rng.below(400)).unwrap();
                b[at] = u8::try_from(rng.below(256)).unwrap();
            }
        });
        let report = run(&m.pool, round % 2 == 1);
        if round % 2 == 1 {
            assert!(report.left.is_empty(), "round {round}: {:#?}", report.left);
            assert_clean(&m.pool);
        }
        for (d, bytes) in m.pool.devices().iter().zip(&before) {
            d.write(ByteOffset(0), bytes).unwrap();
        }
    }
}

#[test]
fn nobody_mounts_makes_or_checks_beside_a_check() {
    let pool = Pool::for_tests(1, Bytes(64 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    let claimed = claim(&volume).unwrap();
    let again = check(pool.clone(), CheckOptions { repair: true }, &mut |_, _| {});
    assert!(matches!(again, Err(Error::SlotBusy(_))), "{again:?}");
    let made = make(&pool, &MakeOptions::default(), &mut |_, _| {});
    assert!(matches!(made, Err(Error::SlotBusy(_))), "{made:?}");
    let joined = Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache));
    assert!(matches!(joined.err(), Some(Error::Lock(_))));
    drop(claimed);
    mount(&pool).unmount().unwrap();
    let fs = mount(&pool);
    assert!(matches!(claim(&volume), Err(Error::Mounted { .. })));
    assert!(make(&pool, &MakeOptions::default(), &mut |_, _| {}).is_err());
    fs.unmount().unwrap();
    assert!(claim(&volume).is_ok());
}

/// What a lost store of the locks would say of nodes is asked of their heartbeats.
#[test]
fn nodes_that_beat_are_seen_without_their_slots() {
    let pool = Pool::for_tests(1, Bytes(64 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    let nodes = volume.node_store(volume.node_areas().unwrap());
    let fs = mount(&pool);
    let slots: Vec<_> = (0..nodes.slots()).map(|n| (NodeId(n), "h".to_owned())).collect();
    let beating = refuse_beating(&*nodes, &slots, braid_lock::Timing::default().beat() * 12);
    assert!(matches!(beating, Err(Error::Mounted { .. })), "{beating:?}");
    fs.unmount().unwrap();
    refuse_beating(&*nodes, &slots, braid_lock::Timing::default().beat() * 3).unwrap();
}

/// The store of the locks is not as much as asked while a node of this host lives.
#[test]
fn a_lost_store_is_not_begun_anew_beside_a_node() {
    let pool = Pool::for_tests(1, Bytes(64 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let mut volume = Volume::open(pool.clone()).unwrap();
    // Nobody answers there.
    let address = "etcd://127.0.0.1:1/pool".parse().unwrap();
    let fs_uuid = uuid::Uuid::from_bytes(volume.sb.fs_uuid);
    volume.external_store =
        Some(crate::external_store::ExternalStore::new(&address, fs_uuid).unwrap());
    let fs = mount(&pool);
    assert!(matches!(enter(&volume, true), Err(Error::SlotBusy(_))));
    fs.unmount().unwrap();
    assert!(!matches!(enter(&volume, true), Err(Error::SlotBusy(_))));
}

/// A node that has looked at a file system joins it only if it is there still.
#[test]
fn what_was_made_anew_is_not_joined_as_what_it_was() {
    use braid_lock::{JoinOptions, LockError, Membership, NodeAreas, PoolNodes};

    let device: Arc<dyn Device> = MemoryDevice::new("old", Bytes(64 << 20), Bytes(512));
    let options = braid_pool::CreateOptions::new("old");
    let old = Pool::create(vec![device.clone()], &options).unwrap();
    make(&old, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let join = |volume: &Arc<Volume>| {
        let areas = NodeAreas::from_superblock(&volume.sb).unwrap();
        let nodes = Arc::new(PoolNodes::new(volume.pool.clone(), areas));
        let core = Arc::default();
        let recoverer = Arc::new(crate::recovery::Recoverer {
            volume: volume.clone(),
            core,
            nodes: nodes.clone(),
            join: JoinOptions::default(),
            cluster: parking_lot::Mutex::default(),
            bounds: crate::cluster::Bounds::default(),
            leaving: parking_lot::RwLock::default(),
            finishing: parking_lot::Mutex::default(),
            recovered: std::sync::atomic::AtomicU64::default(),
        });
        Membership::join(nodes, JoinOptions::default(), recoverer)
    };
    let image = || {
        let mut bytes = vec![0; 64 << 20];
        device.read(ByteOffset(0), &mut bytes).unwrap();
        bytes
    };
    // The file system alone.
    let looked = Arc::new(Volume::open(old.clone()).unwrap());
    make(&old, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let before = image();
    assert!(matches!(join(&looked).err(), Some(LockError::Replaced { .. })));
    assert!(matches!(looked.confirm(), Err(Error::Replaced)));
    assert!(before == image());
    // In other places.
    make(&old, &MakeOptions { nodes: Some(2), ..MakeOptions::default() }, &mut |_, _| {}).unwrap();
    let before = image();
    assert!(join(&looked).is_err());
    // The pool too, and no file system on it yet.
    assert!(before == image());
    let looked = Arc::new(Volume::open(old.clone()).unwrap());
    let options = braid_pool::CreateOptions { force: true, ..options };
    let new = Pool::create(vec![device.clone()], &options).unwrap();
    let before = image();
    assert!(matches!(join(&looked).err(), Some(LockError::Replaced { .. })));
    let made = make(&old, &MakeOptions::default(), &mut |_, _| {});
    assert!(matches!(made, Err(Error::Replaced)), "{made:?}");
    let destroyed = crate::mount::destroy_of(&looked);
    assert!(matches!(destroyed, Err(Error::Replaced)), "{destroyed:?}");
    let accepted = crate::mount::accept_members_of(&looked);
    assert!(matches!(accepted, Err(Error::Replaced)), "{accepted:?}");
    assert!(before == image(), "written to what is somebody else's now");
    make(&new, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    assert!(matches!(join(&looked).err(), Some(LockError::Replaced { .. })));
    let looked = Arc::new(Volume::open(new).unwrap());
    join(&looked).unwrap().leave().unwrap();
}

/// Whoever looked at half of a mirror, to use it without the other half, finds it in another pool.
#[test]
fn members_of_another_pool_are_not_counted_as_lost() {
    let devices: Vec<Arc<dyn Device>> = (0..3)
        .map(|n| MemoryDevice::new(&format!("d{n}"), Bytes(64 << 20), Bytes(512)) as _)
        .collect();
    let redundancy = braid_pool::layout::Redundancy::Mirror(2);
    let options = |name| braid_pool::CreateOptions {
        redundancy,
        force: true,
        ..braid_pool::CreateOptions::new(name)
    };
    let old = Pool::create(devices[..2].to_vec(), &options("old")).unwrap();
    make(&old, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    drop(old);
    let looked = Volume::open(Pool::assemble_degraded(devices[..1].to_vec()).unwrap()).unwrap();
    assert!(looked.pool.is_provisional());
    let both = vec![devices[0].clone(), devices[2].clone()];
    let new = Pool::create(both.clone(), &options("new")).unwrap();
    make(&new, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    drop(new);
    let lost = crate::mount::count_as_lost(&looked);
    assert!(matches!(lost, Err(Error::Replaced)), "{lost:?}");
    assert_eq!(Pool::assemble(both).unwrap().info().name, "new");
}

/// Other nodes change its members between a look at a pool and the join, or the check.
#[test]
fn a_pool_whose_members_were_changed_meanwhile_is_still_the_same() {
    let pool = crate::test_pool::TestPool::new(2, 64, 2);
    let looked = Volume::open(pool.pool()).unwrap();
    let before = looked.pool.epoch_tag();
    pool.pool().fail_member(braid_format::MemberIndex(1)).unwrap();
    looked.confirm().unwrap();
    assert_ne!(looked.pool.epoch_tag(), before, "it uses what stands now");
    looked.confirm().unwrap();
}

/// Changes a superblock, whose checksum is right again.
fn lie(volume: &Volume, block: BlockNo, f: impl FnOnce(&mut RawSuperblock)) {
    let mut body = AlignedBuf::zeroed(volume.geo.body_len());
    volume.pool.read(volume.body_at(block), &mut body).unwrap();
    f(RawSuperblock::mut_from_prefix(&mut body).unwrap().0);
    MetaHeader::seal(&mut body);
    volume.pool.write(volume.body_at(block), &body).unwrap();
}

#[test]
fn of_two_sealed_superblocks_that_counts_which_can_be() {
    let pool = Pool::for_tests(1, Bytes(64 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let volume = Volume::open(pool.clone()).unwrap();
    let lies: [fn(&mut RawSuperblock); 10] = [
        |sb| sb.rgrp_count.set(u64::MAX),
        |sb| sb.rgrp_count.set(1 << 40),
        |sb| sb.rgrp_blocks.set(1 << 63),
        |sb| sb.rgrp_blocks.set(1),
        |sb| sb.journal_blocks.set(sb.total_blocks.get() - 1),
        |sb| sb.node_area_slots.set(u16::MAX),
        |sb| sb.named_count.set(1),
        |sb| sb.plock_start.set(sb.total_blocks.get() - 1),
        |sb| sb.pool_uuid[3] ^= 1,
        |sb| sb.total_blocks.set(u64::MAX),
    ];
    let places = [BlockNo(0), volume.copy()];
    let bodies = || places.map(|block| volume.read_body(block).unwrap().0.to_vec());
    let original = bodies();
    for (n, f) in lies.into_iter().enumerate() {
        lie(&volume, places[0], f);
        let report = run(&pool, false);
        assert_eq!(report.problems.len(), 1, "lie {n}: {:?}", report.problems);
        assert!(bodies() != original, "only looked at");
        mount(&pool).unmount().unwrap();
        assert!(bodies() == original, "lie {n}: the mount has mended it");
        lie(&volume, places[0], f);
        run(&pool, true);
        assert_eq!(run(&pool, false).problems, Vec::<String>::new(), "lie {n}");
        for block in places {
            lie(&volume, block, f);
        }
        let joined = Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache));
        assert!(matches!(joined.err(), Some(Error::Superblock(_))), "lie {n}");
        for (block, body) in places.iter().zip(&original) {
            volume.write_bodies(&[(*block, body)]).unwrap();
        }
    }
    // What another version has written is no lie, and is not gone around.
    lie(&volume, places[0], |sb| sb.version.set(99));
    let joined = Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache));
    let other = |e| matches!(e, Error::Superblock(FormatError::OtherVersion { found: 99, .. }));
    assert!(joined.err().is_some_and(other));
}
