//! One flipped bit in each kind of metadata. What does not need the block goes on and can be
//! changed, the node never withdraws, one repair repairs or cuts off, and the check after it finds
//! nothing.

#![allow(clippy::large_stack_arrays, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, ByteOffset, Bytes, InodeNo};
use braid_pool::Pool;
use braid_pool::device::{AlignedBuf, Device, MemoryDevice};

use super::{CheckOptions, check};
use crate::attr::{Cred, KernelCache, NoKernelCache, SetAttr, WithAttrs, WriteFlags};
use crate::error::Error;
use crate::make::{MakeOptions, make};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::options::MountOptions;
use crate::volume::Volume;
use crate::{Attr, Fs};

const CRED: Cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const RDWR: i32 = 2;
/// Blocks of one kind that are flipped.
const EACH: usize = 3;
/// Kinds whose damage is an error of one inode, or of one resource group.
const GONE_AROUND: [MetaKind; 9] = [
    MetaKind::Free,
    MetaKind::Rgrp,
    MetaKind::Bitmap,
    MetaKind::Dinode,
    MetaKind::Index,
    MetaKind::ExtentLeaf,
    MetaKind::DirLeaf,
    MetaKind::Xattr,
    MetaKind::XattrValue,
];

pub(super) fn mount(pool: &Pool) -> Fs {
    // Nothing happens in the background: what is damaged is met by what the test does.
    let commit_interval = std::time::Duration::from_hours(1);
    let options = MountOptions { commit_interval, ..MountOptions::default() };
    Fs::mount(pool.clone(), options, Arc::new(NoKernelCache)).unwrap()
}
pub(super) fn write(
    fs: &Fs,
    dir: InodeNo,
    name: &[u8],
    pieces: &[(u64, usize)],
) -> Result<InodeNo, Error> {
    let (attr, fh) = fs.create(dir, name, 0o644, RDWR, &CRED)?;
    let done = (|| {
        for &(at, len) in pieces {
            fs.write(fh, at, &vec![0x42; len], WriteFlags::default())?;
        }
        fs.fsync(fh, false)
    })();
    fs.release(fh)?;
    done.map(|()| attr.ino)
}

/// All kinds of metadata that there are, in a pool of several groups.
fn populated() -> Pool {
    let pool = Pool::for_tests(2, Bytes(26 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    populate(&pool, 1100);
    pool
}
/// Of a directory with `names` names.
pub(super) fn populate(pool: &Pool, names: u32) {
    let fs = mount(pool);
    let root = fs.root();
    let sub = fs.mkdir(root, b"sub", 0o755, &CRED).unwrap().ino;
    // Extents in leaves: every other block.
    let holes: Vec<(u64, usize)> = (0..400).map(|n| (n * 8192, 4096)).collect();
    let holey = write(&fs, sub, b"holey", &holes).unwrap();
    fs.setxattr(holey, b"user.note", &[7; 30_000], 0).unwrap();
    // Three attribute blocks.
    for name in [&b"user.a"[..], b"user.b", b"user.c", b"user.d", b"user.e"] {
        fs.setxattr(holey, name, &[9; 1500], 0).unwrap();
    }
    write(&fs, sub, b"tail", &[(0, 100)]).unwrap();
    fs.symlink(sub, b"way", b"../other", &CRED).unwrap();
    let other = write(&fs, root, b"other", &[(0, 300_000)]).unwrap();
    fs.link(other, sub, b"other too").unwrap();
    // A directory in two levels of index nodes: its attributes leave little room for the root.
    let wide = fs.mkdir(root, b"wide", 0o755, &CRED).unwrap().ino;
    fs.setxattr(wide, b"user.note", &[7; 1600], 0).unwrap();
    for n in 0..names {
        let name = format!("{n:0250}");
        let (_, fh) = fs.create(wide, name.as_bytes(), 0o644, RDWR, &CRED).unwrap();
        fs.release(fh).unwrap();
    }
    fs.unmount().unwrap();
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// By path: inode, size, the sum of the bytes, the link, the attribute.
    pub sound: BTreeMap<Vec<u8>, (InodeNo, u64, u64, usize)>,
    /// Inodes that gave an error.
    pub failed: BTreeSet<InodeNo>,
}

pub(super) fn walk(fs: &Fs) -> Walked {
    let mut walked = Walked::default();
    let mut todo = vec![(Vec::new(), fs.root())];
    while let Some((path, dir)) = todo.pop() {
        let mut names = Vec::new();
        let listed = fs.readdir(dir, 0, WithAttrs::Yes, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push((entry.name.to_vec(), entry.ino));
            }
            false
        });
        if !is_eio(&listed) {
            walked.failed.insert(dir);
        }
        for (name, ino) in names {
            let path = [&path[..], b"/", &name].concat();
            let many = path.starts_with(b"/wide/");
            let read = |attr: Attr| Ok((if many { (0, 0) } else { contents(fs, &attr)? }, attr));
            match fs.lookup(dir, &name).and_then(read) {
                Ok((found, attr)) => {
                    if attr.mode & S_IFMT == S_IFDIR {
                        todo.push((path.clone(), ino));
                    }
                    walked.sound.insert(path, (ino, attr.size, found.0, found.1));
                }
                failed => {
                    is_eio(&failed);
                    walked.failed.insert(ino);
                }
            }
        }
    }
    walked
}
/// Whether it worked; any error must be EIO.
fn is_eio<T>(done: &Result<T, Error>) -> bool {
    if let Err(e) = done {
        assert_eq!(e.errno(), 5, "{e}");
    }
    done.is_ok()
}
/// The sum of a file's bytes, or its link's length, and its attribute's length.
fn contents(fs: &Fs, attr: &Attr) -> Result<(u64, usize), Error> {
    let note = match fs.getxattr(attr.ino, b"user.note") {
        Err(Error::NoAttribute) => 0,
        value => value?.len(),
    };
    if attr.mode & S_IFMT != S_IFREG {
        let link = attr.mode & S_IFMT != S_IFDIR;
        return Ok((if link { fs.readlink(attr.ino)?.len() as u64 } else { 0 }, note));
    }
    let fh = fs.open(attr.ino, 0)?;
    let mut bytes = AlignedBuf::zeroed(usize::try_from(attr.size).unwrap());
    let read = fs.read(fh, 0, &mut bytes);
    fs.release(fh)?;
    read?;
    Ok((bytes.iter().map(|b| u64::from(*b)).sum(), note))
}

/// What a program may do to a damaged file and beside it.
fn meddle(fs: &Fs, sound: &Walked) {
    let root = fs.root();
    for (path, (ino, ..)) in sound.sound.iter().filter(|(path, _)| !path.starts_with(b"/wide/")) {
        let cut = path.iter().rposition(|b| *b == b'/').unwrap();
        let dir = if cut == 0 { Some(root) } else { sound.sound.get(&path[..cut]).map(|d| d.0) };
        let (Some(dir), name) = (dir, &path[cut + 1..]) else { continue };
        let _ = fs.setxattr(*ino, b"user.more", &[1; 100], 0);
        let _ = fs.setattr(*ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None);
        if let Ok(fh) = fs.open(*ino, RDWR) {
            let _ = fs.write(fh, 4096, &[1; 5000], WriteFlags::default());
            let _ = fs.fsync(fh, false);
            let _ = fs.write(fh, 1 << 21, &[1; 5000], WriteFlags::default());
            let _ = fs.fsync(fh, false);
            let _ = fs.release(fh);
        }
        let _ = fs.rename(dir, name, dir, b"renamed", 0);
        let _ = fs.unlink(dir, b"renamed");
        let _ = fs.unlink(dir, name);
        assert_eq!(fs.withdrawn(), None, "{}", String::from_utf8_lossy(path));
    }
}

pub(super) fn flip(pool: &Pool, at: ByteOffset) {
    let place = ByteOffset(at.get() / 512 * 512);
    let mut sector = AlignedBuf::zeroed(512);
    pool.read(place, &mut sector).unwrap();
    sector[Bytes(at.get() % 512).to_usize()] ^= 4;
    pool.write(place, &sector).unwrap();
}
/// Some blocks of each kind, the first of them and others.
fn targets(volume: &Volume) -> Vec<(BlockNo, MetaKind, InodeNo)> {
    let mut kinds: BTreeMap<u16, Vec<(BlockNo, MetaKind, InodeNo)>> = BTreeMap::new();
    for block in (0..volume.total_blocks()).step_by(1).map(BlockNo).filter(|b| volume.holds(*b)) {
        let mut body = AlignedBuf::zeroed(volume.geo.body_len());
        volume.pool.read(volume.body_at(block), &mut body).unwrap();
        if let Ok((header, kind)) = MetaHeader::decode(&body, block) {
            let owner = InodeNo(header.owner.get());
            kinds.entry(kind as u16).or_default().push((block, kind, owner));
        }
    }
    let some = |all: Vec<_>| {
        let step = all.len().div_ceil(EACH);
        all.into_iter().step_by(step).collect::<Vec<_>>()
    };
    kinds.into_values().flat_map(some).collect()
}

#[test]
fn one_flipped_bit_is_one_inodes_error_and_one_repair_mends_it() {
    let pool = populated();
    let volume = Volume::open(pool.clone()).unwrap();
    let read = |d: &Arc<dyn Device>| {
        let mut bytes = vec![0; d.info().size.to_usize()];
        d.read(ByteOffset(0), &mut bytes).unwrap();
        bytes
    };
    let images: Vec<Vec<u8>> = pool.devices().iter().map(read).collect();
    let fs = mount(&pool);
    let whole = walk(&fs);
    fs.unmount().unwrap();
    assert!(whole.failed.is_empty());
    let mut targets = targets(&volume);
    let by_name = |path: &str| whole.sound[path.as_bytes()].0;
    let named = [volume.root(), by_name("/sub"), by_name("/sub/holey"), by_name("/wide")];
    targets.extend(named.map(|ino| (BlockNo::from(ino), MetaKind::Dinode, ino)));
    let kinds: BTreeSet<u16> = targets.iter().map(|t| t.1 as u16).collect();
    let made = GONE_AROUND.iter().filter(|k| !matches!(k, MetaKind::Free | MetaKind::Rgrp));
    for kind in made.copied() {
        assert!(kinds.contains(&(kind as u16)), "no {}", kind.name());
    }
    for (block, kind, owner) in targets {
        let what = format!("{} at block {block} of {owner}", kind.name());
        for (device, image) in pool.devices().iter().zip(&images) {
            device.write(ByteOffset(0), image).unwrap();
        }
        flip(&pool, volume.body_at(block) + Bytes(300));
        // A node may be refused over blocks of its own and of the cluster's until they are repaired.
        if GONE_AROUND.contains(&kind) {
            damaged(&pool, &volume, &whole, (owner, &what));
        }
        repaired(&pool, &volume, &whole, (owner, &what));
    }
}

/// Mounts, walks, and changes things.
fn damaged(pool: &Pool, volume: &Volume, whole: &Walked, (owner, what): (InodeNo, &str)) {
    let fs = mount(pool);
    let walked = walk(&fs);
    assert_eq!(fs.withdrawn(), None, "{what}");
    let others = walked.failed.iter().filter(|ino| **ino != owner).count();
    assert_eq!(others, 0, "{what}: {:?}", walked.failed);
    for (path, found) in &walked.sound {
        assert_eq!(Some(found), whole.sound.get(path), "{what}");
    }
    if !walked.failed.is_empty() {
        let known = fs.status().damaged;
        assert!(known.iter().any(|d| d.inode == Some(owner)), "{what}: {known:?}");
    }
    if !walked.failed.contains(&volume.root()) {
        write(&fs, fs.root(), b"new", &[(0, 100_000)]).expect(what);
        fs.unlink(fs.root(), b"new").expect(what);
    }
    meddle(&fs, whole);
    fs.sync().expect(what);
    assert_eq!(fs.withdrawn(), None, "{what}");
    fs.unmount().expect(what);
}

/// One repair, a clean check, and everything that was left alone and whole reads as before.
fn repaired(pool: &Pool, volume: &Volume, whole: &Walked, (owner, what): (InodeNo, &str)) {
    let repair = check(pool.clone(), CheckOptions { repair: true }, &mut |_, _| {}).expect(what);
    assert!(repair.left.is_empty(), "{what}: {:#?}", repair.left);
    let after = check(pool.clone(), CheckOptions::default(), &mut |_, _| {}).expect(what);
    assert!(after.problems.is_empty(), "{what}: {:#?} after {repair:#?}", after.problems);
    let fs = mount(pool);
    let walked = walk(&fs);
    assert!(walked.failed.is_empty(), "{what}");
    let inodes: BTreeSet<InodeNo> = walked.sound.values().map(|v| v.0).collect();
    let wide = whole.sound.iter().filter(|(path, _)| path.starts_with(b"/wide/"));
    for (path, (ino, ..)) in wide.filter(|(_, v)| v.0 != owner) {
        assert!(inodes.contains(ino), "{what}: {} is gone", String::from_utf8_lossy(path));
    }
    let root = fs.getattr(volume.root()).expect(what);
    assert_eq!(root.mode & S_IFMT, S_IFDIR);
    write(&fs, fs.root(), b"after", &[(0, 100_000)]).expect(what);
    fs.unmount().expect(what);
}

/// A mirror of two with 300 files; what a walk finds, and the member that serves the dinodes.
fn mirrored() -> (Pool, Walked, usize) {
    let device = |i| MemoryDevice::new(&format!("g{i}"), Bytes(96 << 20), Bytes(512));
    let redundancy = braid_pool::layout::Redundancy::Mirror(2);
    let options =
        braid_pool::CreateOptions { redundancy, ..braid_pool::CreateOptions::new("garbage") };
    let devices = (0..2).map(|i| device(i) as Arc<dyn Device>).collect();
    let pool = Pool::create(devices, &options).unwrap();
    let options = MakeOptions { journal_size: Some(2 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    let fs = mount(&pool);
    for n in 0..300 {
        write(&fs, fs.root(), format!("{n}").as_bytes(), &[(0, 5000)]).unwrap();
    }
    let whole = walk(&fs);
    fs.unmount().unwrap();
    // Reads turn to the other copy every 4 MiB.
    let ino = whole.sound.values().next().unwrap().0;
    let volume = Volume::open(pool.clone()).unwrap();
    let sick =
        usize::try_from(((ino.get() * volume.geo.block_size.bytes().get()) >> 22) & 1).unwrap();
    (pool, whole, sick)
}

/// Half of a mirror returns garbage, except its labels. It is failed automatically, and then
/// everything reads as it was written.
#[test]
fn a_mirrors_member_of_garbage_is_failed() {
    let (pool, whole, sick) = mirrored();
    // Not in the slots and heartbeats of nodes, without which nobody could join.
    let volume = Volume::open(pool.clone()).unwrap();
    let from = volume.geo.block_size.offset_of(BlockNo(volume.sb.rgrp_start.get()));
    let member = pool.label().members[sick].clone();
    let garbage = vec![0xa5; 1 << 20];
    for at in (from.get().next_multiple_of(1 << 20)..member.data_len.get()).step_by(1 << 20) {
        let len = usize::try_from((member.data_len.get() - at).min(1 << 20)).unwrap();
        pool.devices()[sick].write(member.data_start + Bytes(at), &garbage[..len]).unwrap();
    }
    let fs = mount(&pool);
    walk(&fs);
    let failed = || {
        let states = fs.pool().member_states();
        states[sick].1 == braid_format::label::MemberState::Failed
    };
    // By the node's own maintenance, which looks every second or so.
    let ends = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !failed() {
        assert!(std::time::Instant::now() < ends, "{:?}", fs.pool().suspects());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(walk(&fs).sound, whole.sound);
    assert_eq!(fs.withdrawn(), None);
    fs.unmount().unwrap();
}

/// Each of two copies has garbage where the other has none: nearly everywhere one, in a few places that nobody
/// reads at first the other. Before the first is failed everything is read, so nothing is lost.
#[test]
fn what_only_a_member_of_garbage_holds_is_not_lost_when_that_is_failed() {
    let (pool, whole, sick) = mirrored();
    let files: Vec<InodeNo> = whole.sound.values().map(|found| found.0).collect();
    let damage = |on: usize, files: &[InodeNo]| {
        let start = pool.label().members[on].data_start;
        for ino in files {
            let at = start + Bytes(ino.get() * 4096 + 512);
            pool.devices()[on].write(at, &[0xa5; 3584]).unwrap();
        }
    };
    damage(sick, &files[..100]);
    damage(1 - sick, &files[280..]);
    let fs = mount(&pool);
    for ino in &files[..100] {
        fs.getattr(*ino).unwrap();
    }
    assert_eq!(fs.pool().suspects().len(), 1);
    // By the node's own maintenance: a scrub, then it looks again.
    let ends = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while fs.maintenance().scrubs == 0 {
        assert!(std::time::Instant::now() < ends, "no scrub: {:?}", fs.pool().suspects());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(fs.pool().suspects().len(), 2);
    assert_eq!(walk(&fs).sound, whole.sound);
    fs.unmount().unwrap();
}

/// How often the kernel was to drop its pages.
#[derive(Default)]
struct Drops(AtomicUsize);
impl KernelCache for Drops {
    fn invalidate_inode(&self, _: InodeNo, _: bool) {}
    fn invalidate_entries(&self, _: InodeNo) {}
    fn drop_pages(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A member of a mirror has garbage for all contents of files, and for ten inodes. It is not failed for
/// that, but suspected, and then contents come from the other member.
#[test]
fn the_contents_of_files_come_from_a_suspected_member_last() {
    let (pool, whole, sick) = mirrored();
    let member = pool.label().members[sick].clone();
    let device = pool.devices()[sick].clone();
    let mut block = AlignedBuf::zeroed(4096);
    for at in (0..member.data_len.get()).step_by(4096) {
        device.read(member.data_start + Bytes(at), &mut block).unwrap();
        if block.iter().all(|b| *b == 0x42) || block.starts_with(&[0x42; 500]) {
            device.write(member.data_start + Bytes(at), &[0xa5; 4096]).unwrap();
        }
    }
    let files: Vec<InodeNo> = whole.sound.values().map(|found| found.0).collect();
    for ino in &files[..10] {
        device.write(member.data_start + Bytes(ino.get() * 4096 + 512), &[0xa5; 3584]).unwrap();
    }
    let kernel = Arc::new(Drops::default());
    let fs = Fs::mount(pool.clone(), MountOptions::default(), kernel.clone()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(kernel.0.load(Ordering::Relaxed), 0);
    for ino in &files[..10] {
        fs.getattr(*ino).unwrap();
    }
    assert_eq!(fs.pool().suspects().len(), 1);
    assert_eq!(walk(&fs).sound, whole.sound);
    // What it returned before may be in the kernel's pages: they are dropped, and once more for reads under way.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(kernel.0.load(Ordering::Relaxed), 2);
    let states = fs.pool().member_states();
    assert_eq!(states[sick].1, braid_format::label::MemberState::Active);
    fs.unmount().unwrap();
}
