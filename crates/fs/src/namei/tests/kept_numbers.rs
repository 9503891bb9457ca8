//! Inodes by numbers that somebody has kept, as in a file handle, or has made up.

use braid_format::dinode::RawDinode;
use braid_format::lock_record::{Life, LockRecord};
use braid_format::meta::MetaKind;
use braid_format::tree::RawExtent;
use braid_format::{BlockNo, LockNo};
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use super::*;
use crate::Fs;
use crate::alloc::image::{Birth, Fresh};
use crate::attr::WriteFlags;
use crate::make::root_dinode;
use crate::test_pool::TestPool;

const BLOCK: usize = 4096;
const O_RDWR: i32 = 2;

fn write(fs: &Fs, fh: u64, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(fh, offset, bytes, WriteFlags::default()).unwrap(), bytes.len());
    fs.fsync(fh, false).unwrap();
}
/// First block of a file whose contents are in one extent.
fn first_block(fs: &Fs, ino: InodeNo) -> u64 {
    let locked = fs.core().lock_shared(ino).unwrap();
    let body = locked.body(&fs.core().meta).unwrap();
    let (extent, _) = RawExtent::read_from_prefix(&body[RawDinode::TAIL_AT..]).unwrap();
    extent.physical.get()
}
/// The bytes of an inode at `block` that belongs to root and is set-user-ID.
fn forged(fs: &Fs, block: BlockNo, holder: Option<Life>) -> Vec<u8> {
    let mut slot = vec![0; BLOCK];
    let fresh = Fresh { holder, ..Fresh::own(block, MetaKind::Dinode, Birth::now(0x1234_5678)) };
    fresh.write(fs.core().volume.geo, &mut slot, |body| {
        let (raw, _) = RawDinode::mut_from_prefix(body).unwrap();
        *raw = root_dinode(block, (0, 0));
        raw.mode.set(0o104_755);
        raw.nlink.set(1);
        raw.inode_generation.set(7);
    });
    slot
}
fn is_stale(fs: &Fs, ino: u64) -> bool {
    matches!(fs.lookup_number(InodeNo(ino)), Err(Error::Stale(_)))
}

#[test]
fn file_data_that_looks_like_an_inode_is_none() {
    let test = TestPool::new(1, 128, 2);
    let (a, b) = (test.mount(), test.mount());
    let (attr, fh) = a.create(a.root(), b"f", 0o644, O_RDWR, &CRED).unwrap();
    write(&a, fh, 0, &vec![0; 4 * BLOCK]);
    let first = first_block(&a, attr.ino);
    let life = Life { slot: a.core().me.slot, incarnation: a.core().me.incarnation };
    // A lock record that is free, one that a living node holds, and none.
    let none = |slot: &mut [u8]| slot[..512].fill(0);
    for n in 0..4_u64 {
        let mut slot = forged(&a, BlockNo(first + n), (n == 1).then_some(life));
        if n == 2 {
            none(&mut slot);
        }
        write(&a, fh, n * BLOCK as u64, &slot);
    }
    assert_eq!(first_block(&a, attr.ino), first, "overwritten where it was");
    for fs in [&b, &a] {
        for n in 0..4 {
            assert!(is_stale(fs, first + n), "block {n}");
        }
        assert!(is_stale(fs, fs.root().get() + 1), "a free slot");
        assert!(is_stale(fs, fs.core().volume.rgrp(0).get() + 1), "a bitmap");
        assert!(is_stale(fs, 0) && is_stale(fs, u64::MAX));
        assert!(fs.status().damaged.is_empty());
    }
    // Nobody took a lock there.
    let mut sector = AlignedBuf::zeroed(512);
    let volume = &b.core().volume;
    volume.pool.read_lock(volume.slot_at(BlockNo(first)), &mut sector).unwrap();
    let record = LockRecord::decode(&sector, LockNo(first)).unwrap();
    assert_eq!(record, LockRecord::unlocked(LockNo(first), 0x1234_5678));
    a.release(fh).unwrap();
    a.unmount().unwrap();
    b.unmount().unwrap();
    test.check(false);
}

#[test]
fn an_inode_is_found_by_its_number_on_every_node_as_long_as_it_is_there() {
    let test = TestPool::new(1, 128, 2);
    let (a, b) = (test.mount(), test.mount());
    let made: Vec<InodeNo> = (0..400)
        .map(|n| {
            let name = format!("f{n}");
            let (attr, fh) = a.create(a.root(), name.as_bytes(), 0o644, O_RDWR, &CRED).unwrap();
            a.release(fh).unwrap();
            // It is in a window of the other node, which has all of it only in memory.
            if n % 7 == 0 {
                assert_eq!(b.lookup_number(attr.ino).unwrap(), a.getattr(attr.ino).unwrap());
            }
            attr.ino
        })
        .collect();
    assert!(made.iter().all(|ino| b.lookup_number(*ino).unwrap().ino == *ino));
    for n in (0..400).step_by(2) {
        a.unlink(a.root(), format!("f{n}").as_bytes()).unwrap();
    }
    a.unmount().unwrap();
    let c = test.mount();
    for fs in [&b, &c] {
        for (n, ino) in made.iter().enumerate() {
            assert_eq!(is_stale(fs, ino.get()), n % 2 == 0, "{n} {ino}");
        }
    }
    b.unmount().unwrap();
    c.unmount().unwrap();
    test.check(false);
}
