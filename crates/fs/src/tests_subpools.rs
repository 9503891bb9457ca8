//! Whole file systems on pools with subpools: metadata mirrored, file data on parity. Every device
//! notes what it must never see.

use std::sync::Arc;

use braid_format::dinode::RawDinode;
use braid_format::label::{Label, SubpoolKind};
use braid_format::meta::MetaHeader;
use braid_format::rgrp::BlockState;
use braid_format::superblock::RawSuperblock;
use braid_format::tree::RawExtent;
use braid_format::{BlockNo, ByteOffset, Bytes, InodeNo, MemberIndex};
use braid_pool::device::{
    AlignedBuf, Command, CommandKind, Device, MemoryDevice, RecordingDevice, Rule, ScriptedDevice,
};
use braid_pool::layout::LayoutFile;
use braid_pool::{CreateOptions, Pool};
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::alloc::bits;
use crate::attr::{Cred, Fh, NoKernelCache, SetAttr, WriteFlags};
use crate::check::{CheckOptions, Report, check};
use crate::groups::takes_slots;
use crate::make::{MakeOptions, make};
use crate::test_volume::pattern;
use crate::volume::Volume;
use crate::{Error, Fs, MountOptions};

const MIB: u64 = 1 << 20;
/// Bytes on one column of the parity group before the next.
const UNIT: u64 = 64 << 10;
const O_RDWR: i32 = 2;
/// What lock records, bodies, slot records, heartbeats and journal records begin with.
const MAGICS: [&[u8; 4]; 5] = [b"BRLK", b"BRMB", b"BRSL", b"BRHB", b"BRTX"];

/// What a device takes note of: where compare-and-writes and metadata go.
#[derive(Debug)]
struct Witness {
    compared: Arc<Rule>,
    /// Places to which something that begins like metadata was written.
    sealed: Arc<Mutex<Vec<ByteOffset>>>,
}

/// A memory device, and what it takes note of.
fn witnessed(name: &str, size: Bytes) -> (Arc<dyn Device>, Witness) {
    let device = ScriptedDevice::over(MemoryDevice::new(name, size, Bytes(512)));
    let compared = device.add(Rule::on(&[CommandKind::CompareAndWrite]).notes());
    let sealed = Arc::new(Mutex::new(Vec::new()));
    let witness = Witness { compared, sealed: sealed.clone() };
    device.add(Rule::on(&[CommandKind::Write]).calls(move |at, command| {
        let Command::Write(buf) = command else { return };
        let sectors = (at.get()..).step_by(512).zip(buf.chunks(512));
        let found = sectors.filter(|(_, s)| MAGICS.iter().any(|m| s.starts_with(&m[..])));
        sealed.lock().extend(found.map(|(at, _)| ByteOffset(at)));
    }));
    (device, witness)
}

/// Mebibytes of each of three members: for metadata, for journals (0: not apart), for data.
#[derive(Debug, Clone, Copy)]
struct Layout {
    meta: u64,
    journal: u64,
    data: u64,
    /// Mirrors, and parity for data; else stripes.
    redundant: bool,
}

impl Layout {
    /// Columns of a row of data.
    fn columns(self) -> u64 {
        if self.redundant { 2 } else { 3 }
    }
}

/// Mirrors of all members, then a parity group of all; or stripes.
fn shape(layout: Layout) -> LayoutFile {
    let (small, large) =
        if layout.redundant { ("mirror", "parity+1/64K") } else { ("stripe/64K", "stripe/64K") };
    let slices = |mib| format!("\"{small}(0[{mib}M],1[{mib}M],2[{mib}M])\"");
    let mut lines = vec!["[subpools]".to_owned(), format!("metadata = {}", slices(layout.meta))];
    if layout.journal > 0 {
        lines.push(format!("journal = {}", slices(layout.journal)));
    }
    lines.push(format!("data = \"{large}(all)\""));
    LayoutFile::parse(&lines.join("\n")).unwrap()
}

/// A file system on such a pool, mounted by one node.
struct Fixture {
    witnesses: Vec<Witness>,
    recorders: Vec<Arc<RecordingDevice>>,
    pool: Pool,
    fs: Fs,
}

fn mount(pool: &Pool) -> Fs {
    // Nothing happens in the background.
    let commit_interval = std::time::Duration::from_hours(1);
    let dirty_max = Bytes(4 << 20);
    let options = MountOptions { dirty_max, commit_interval, ..MountOptions::default() };
    Fs::mount(pool.clone(), options, Arc::new(NoKernelCache)).unwrap()
}

fn checked(pool: &Pool, repair: bool) -> Report {
    check(pool.clone(), CheckOptions { repair }, &mut |_, _| {}).unwrap()
}

impl Fixture {
    fn new(layout: Layout) -> Self {
        Self::with(layout, false)
    }
    /// `record`: what is written can be taken back.
    fn with(layout: Layout, record: bool) -> Self {
        let mib = layout.meta + layout.journal + layout.data;
        let size = Bytes(Label::DATA_AT.get() + mib * MIB + Label::TAIL.get());
        let (mut devices, witnesses): (Vec<_>, Vec<_>) =
            (0..3).map(|i| witnessed(&format!("m{i}"), size)).unzip();
        let mut create = CreateOptions::new("subpools");
        create.layout = Some(shape(layout).layout);
        create.lock_sector = Some(Bytes(512));
        let pool = Pool::create(devices.clone(), &create).unwrap();
        let options = MakeOptions {
            nodes: Some(if layout.redundant { 1 } else { 2 }),
            journal_size: Some(2 << 20),
            ..MakeOptions::default()
        };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let mut recorders = Vec::new();
        if record {
            recorders = devices.drain(..).map(|d| RecordingDevice::new(d).unwrap()).collect();
            devices = recorders.iter().map(|r| r.clone() as Arc<dyn Device>).collect();
        }
        let pool = Pool::assemble(devices).unwrap();
        let fs = mount(&pool);
        Self { witnesses, recorders, pool, fs }
    }
    fn create(&self, name: &str) -> crate::error::Result<(InodeNo, Fh)> {
        let root = self.fs.root();
        let (attr, fh) = self.fs.create(root, name.as_bytes(), 0o644, O_RDWR, &Cred::default())?;
        Ok((attr.ino, fh))
    }
    fn write(&self, fh: Fh, at: u64, seed: u64, len: usize) -> crate::error::Result<()> {
        self.fs.write(fh, at, &pattern(seed, len), WriteFlags::default()).map(drop)
    }
    fn holds(&self, fh: Fh, at: u64, seed: u64, len: usize) {
        let mut buf = AlignedBuf::zeroed(len);
        assert_eq!(self.fs.read(fh, at, &mut buf).unwrap(), len);
        assert!(buf[..] == pattern(seed, len)[..], "contents at {at}, seed {seed}");
    }
    /// No lock record, no body and nothing that is compared and written is where file data is.
    fn obeys(&self) {
        let map = self.pool.map();
        let on_data = |member: u16, at: &ByteOffset| {
            let logical = map.inverse(MemberIndex(member), *at);
            logical.is_some_and(|at| {
                self.pool.info().kind_of(at, Bytes(512)) == Some(SubpoolKind::Data)
            })
        };
        let mut seen = 0;
        for (member, w) in (0..).zip(&self.witnesses) {
            let compared = w.compared.noted();
            assert!(
                !compared.iter().any(|noted| on_data(member, &noted.at)),
                "compared and written"
            );
            assert!(!w.sealed.lock().iter().any(|at| on_data(member, at)), "metadata among data");
            seen += compared.len();
        }
        assert!(seen > 0, "no compare-and-write at all");
    }
    /// Unmounts and checks.
    fn verify(self) -> Report {
        self.fs.unmount().unwrap();
        self.obeys();
        let report = checked(&self.pool, false);
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        self.obeys();
        report
    }
}

/// The extents in a dinode's tail.
fn extents(volume: &Volume, ino: InodeNo) -> Vec<(u64, u64, u64)> {
    let body = volume.read_body(BlockNo::from(ino)).unwrap().0;
    let (raw, _) = RawDinode::read_from_prefix(&body).unwrap();
    assert_eq!(raw.tree_height.get(), 0);
    let tail = &body[RawDinode::TAIL_AT..];
    let all = tail.chunks(size_of::<RawExtent>()).take(raw.tail_count.get().into());
    all.map(|b| {
        let e = RawExtent::read_from_bytes(b).unwrap();
        (e.logical.get(), e.physical.get(), e.len.get().into())
    })
    .collect()
}

const TWO: Layout = Layout { meta: 24, journal: 0, data: 24, redundant: true };
const THREE: Layout = Layout { meta: 16, journal: 8, data: 24, redundant: true };
const STRIPES: Layout = Layout { redundant: false, ..THREE };

/// Something of everything. `step` is called now and then, with nothing under way.
fn workload(fixture: &Fixture, step: &mut dyn FnMut()) {
    let (fs, cred) = (&fixture.fs, Cred::default());
    let dir = fs.mkdir(fs.root(), b"dir", 0o755, &cred).unwrap().ino;
    for i in 0..400_u64 {
        let name = format!("a file with a rather long name {i}");
        let (_, fh) = fs.create(dir, name.as_bytes(), 0o644, O_RDWR, &cred).unwrap();
        let len = [0, 100, 5_000, 70_000][usize::try_from(i % 4).unwrap()];
        fixture.write(fh, 0, i, len).unwrap();
        fs.release(fh).unwrap();
        if i % 50 == 0 {
            step();
        }
    }
    fs.symlink(dir, b"long", &[b'x'; 4_000], &cred).unwrap();
    assert_eq!(fs.readlink(fs.lookup(dir, b"long").unwrap().ino).unwrap(), [b'x'; 4_000]);
    let (ino, fh) = fixture.create("big").unwrap();
    for i in 0..12 {
        fixture.write(fh, i * MIB, i, 1 << 20).unwrap();
        step();
    }
    fs.fallocate(fh, 0, 16 * MIB, 4 * MIB).unwrap();
    // Keep the size, punch a hole.
    fs.fallocate(fh, 3, 3 * MIB + 4096, 70_000).unwrap();
    fs.setxattr(ino, b"user.note", &[7; 900], 0).unwrap();
    fixture.write(fh, 30 * MIB, 77, 10_000).unwrap();
    fs.fsync(fh, false).unwrap();
    fixture.holds(fh, 5 * MIB, 5, 1 << 20);
    let size = SetAttr { size: Some(9 * MIB + 5), ..SetAttr::default() };
    fs.setattr(ino, &size, None).unwrap();
    step();
    fixture.holds(fh, 5 * MIB, 5, 1 << 20);
    for i in (0..400).step_by(3) {
        fs.unlink(dir, format!("a file with a rather long name {i}").as_bytes()).unwrap();
        if i % 50 == 0 {
            step();
        }
    }
    fs.sync().unwrap();
    step();
    let (_, gone) = fixture.create("unlinked and open").unwrap();
    fixture.write(gone, 0, 3, 300_000).unwrap();
    fs.unlink(fs.root(), b"unlinked and open").unwrap();
    fixture.holds(gone, 0, 3, 300_000);
    fs.release(gone).unwrap();
    fs.release(fh).unwrap();
}

#[test]
fn a_whole_workload_keeps_metadata_and_data_apart() {
    for layout in [TWO, THREE, STRIPES] {
        let fixture = Fixture::new(layout);
        let before = fixture.fs.statfs().unwrap();
        assert_eq!(before.blocks, fixture.pool.info().subpools.last().unwrap().len.get() / 4096);
        assert_eq!(before.free, before.blocks, "metadata takes nothing of it");
        assert!(before.files_free * 4096 < 3 * layout.meta * MIB);
        workload(&fixture, &mut || {});
        fixture.fs.sync().unwrap();
        let after = fixture.fs.statfs().unwrap();
        let report = fixture.verify();
        assert_eq!(report.directories, 2);
        // What df says is what there is.
        assert_eq!(before.free - after.free, report.data_blocks);
        assert_eq!(after.files - after.files_free, report.inodes);
    }
}

#[test]
fn large_files_stand_on_whole_rows() {
    for layout in [TWO, STRIPES] {
        let fixture = Fixture::new(layout);
        let volume = Volume::open(fixture.pool.clone()).unwrap();
        let (_, small) = fixture.create("small").unwrap();
        fixture.write(small, 0, 1, 20_000).unwrap();
        fixture.fs.fsync(small, false).unwrap();
        fixture.fs.release(small).unwrap();
        let (ino, fh) = fixture.create("stream").unwrap();
        for step in 0..30 {
            fixture.write(fh, step * MIB, step, 1 << 20).unwrap();
        }
        fixture.fs.release(fh).unwrap();
        fixture.fs.unmount().unwrap();
        let data = volume.groups.made().data;
        let row = layout.columns() * UNIT / 4096;
        let extents = extents(&volume, ino);
        assert!(extents.len() < 20, "{extents:?}");
        for (logical, physical, len) in extents {
            assert!(physical >= data.start && physical + len <= data.end);
            let place = (physical - data.start) % row;
            assert_eq!(place, logical % row, "extent of {len} at {physical}");
        }
        assert!(checked(&fixture.pool, false).problems.is_empty());
    }
}

#[test]
fn an_extent_may_go_on_from_group_to_group() {
    let fixture = Fixture::new(TWO);
    let (ino, fh) = fixture.create("file").unwrap();
    fixture.write(fh, 0, 1, 80 << 10).unwrap();
    fixture.fs.fsync(fh, false).unwrap();
    fixture.fs.release(fh).unwrap();
    fixture.fs.unmount().unwrap();
    let volume = Volume::open(fixture.pool.clone()).unwrap();
    // Moved to lie in three groups; a repair makes the bitmaps say so.
    let data = volume.groups.made().data;
    let (start, len) = (data.start + 2 * data.stride - 3, data.stride + 10);
    edit(&volume, BlockNo::from(ino), |body| {
        let (raw, _) = RawExtent::mut_from_prefix(&mut body[RawDinode::TAIL_AT..]).unwrap();
        raw.physical.set(start);
        raw.len.set(u32::try_from(len).unwrap());
    });
    assert!(checked(&fixture.pool, true).repaired > 0);
    let report = checked(&fixture.pool, false);
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    assert_eq!(report.data_blocks, len);
    let fs = mount(&fixture.pool);
    let s = fs.statfs().unwrap();
    assert_eq!(s.blocks - s.free, len);
    fs.unlink(fs.root(), b"file").unwrap();
    let s = fs.statfs().unwrap();
    assert_eq!(s.free, s.blocks);
    let fixture = Fixture { fs, ..fixture };
    assert_eq!(fixture.verify().data_blocks, 0);
}

#[test]
fn when_data_is_full_files_can_still_be_made_and_nothing_is_lost() {
    let fixture = Fixture::new(TWO);
    let mut files = Vec::new();
    let full = |e: &Error| matches!(e, Error::NoSpace);
    'fill: for i in 0.. {
        let (_, fh) = fixture.create(&format!("f{i}")).unwrap();
        let len = if i % 2 == 0 { 1 << 20 } else { 50_000 };
        let mut written = 0;
        for step in 0..4 {
            match fixture.write(fh, step * len, i * 4 + step, usize::try_from(len).unwrap()) {
                Ok(()) => written += 1,
                Err(e) if full(&e) => {
                    files.push((fh, i, len, written));
                    break 'fill;
                }
                Err(e) => panic!("{e}"),
            }
        }
        files.push((fh, i, len, written));
    }
    fixture.fs.sync().unwrap();
    let (_, fh) = fixture.create("large").unwrap();
    let mut at = 0;
    while fixture.write(fh, at, 9, 4096).is_ok() {
        at += 4096;
    }
    fixture.fs.sync().unwrap();
    assert_eq!(fixture.fs.statfs().unwrap().free, 0, "to the last block");
    let error = fixture.write(fh, at, 9, 1 << 20).unwrap_err();
    assert!(full(&error), "{error}");
    // Names, and what fits into a dinode, are metadata.
    for i in 0..100 {
        let (_, fh) = fixture.create(&format!("small{i}")).unwrap();
        fixture.write(fh, 0, i, 500).unwrap();
        fixture.holds(fh, 0, i, 500);
        fixture.fs.release(fh).unwrap();
    }
    for &(fh, i, len, written) in &files {
        for step in 0..written {
            fixture.holds(fh, step * len, i * 4 + step, usize::try_from(len).unwrap());
        }
    }
    for (fh, i, ..) in files {
        fixture.fs.release(fh).unwrap();
        fixture.fs.unlink(fixture.fs.root(), format!("f{i}").as_bytes()).unwrap();
    }
    fixture.fs.release(fh).unwrap();
    fixture.fs.unlink(fixture.fs.root(), b"large").unwrap();
    let s = fixture.fs.statfs().unwrap();
    assert_eq!(s.free, s.blocks);
    assert_eq!(fixture.verify().inodes, 101);
}

#[test]
fn when_metadata_is_full_data_can_still_be_written_and_nothing_is_lost() {
    let fixture = Fixture::new(Layout { meta: 11, ..TWO });
    let (_, fh) = fixture.create("data").unwrap();
    fixture.write(fh, 0, 0, 1 << 20).unwrap();
    fixture.fs.sync().unwrap();
    let mut made = Vec::new();
    let error = loop {
        match fixture.create(&format!("n{}", made.len())) {
            Ok((_, fh)) => {
                let n = made.len() as u64;
                fixture.write(fh, 0, n, 300).unwrap();
                made.push(fh);
            }
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    let s = fixture.fs.statfs().unwrap();
    assert!(made.len() > 300 && s.files_free < 64, "{} made, {} free", made.len(), s.files_free);
    assert!(fixture.create(&format!("n{}", made.len())).is_err(), "it stays so");
    // What is there can be overwritten, and a file can grow as long as that needs no tree node,
    // even if no two of its blocks are adjacent.
    fixture.write(fh, 0, 5, 1 << 20).unwrap();
    for step in 0..8 {
        fixture.write(fh, MIB + step * 65_536, step, 65_536).unwrap();
    }
    fixture.fs.sync().unwrap();
    fixture.holds(fh, 0, 5, 1 << 20);
    for step in 0..8 {
        fixture.holds(fh, MIB + step * 65_536, step, 65_536);
    }
    for (n, fh) in (0..).zip(&made) {
        fixture.holds(*fh, 0, n, 300);
    }
    let count = made.len();
    for (n, fh) in made.into_iter().enumerate() {
        fixture.fs.release(fh).unwrap();
        fixture.fs.unlink(fixture.fs.root(), format!("n{n}").as_bytes()).unwrap();
    }
    fixture.fs.sync().unwrap();
    // Slots that were freed count as room, and are. (The directory's tree takes some, more or less.)
    assert!(fixture.fs.statfs().unwrap().files_free >= count as u64);
    let count = count * 3 / 4;
    for n in 0..count {
        let (_, fh) = fixture.create(&format!("again{n}")).unwrap();
        fixture.fs.release(fh).unwrap();
    }
    fixture.fs.release(fh).unwrap();
    assert_eq!(fixture.verify().inodes, 2 + count as u64);
}

/// What a power cut leaves is sound after the journal's replay, whatever of the writes that were
/// not flushed is there.
#[test]
fn what_a_power_cut_leaves_is_replayed() {
    let fixture = Fixture::with(THREE, true);
    let (_, kept) = fixture.create("kept").unwrap();
    fixture.write(kept, 0, 42, 1 << 20).unwrap();
    fixture.fs.fsync(kept, false).unwrap();
    let mut moments: Vec<Vec<usize>> = Vec::new();
    workload(&fixture, &mut || moments.push(fixture.recorders.iter().map(|r| r.len()).collect()));
    let mut replayed = 0;
    for (seed, moment) in (0..).zip(moments).step_by(4) {
        let devices = fixture.recorders.iter().zip(moment);
        let crashed = devices.map(|(r, n)| r.crash_after(n, seed) as Arc<dyn Device>);
        let pool = Pool::assemble(crashed.collect()).unwrap();
        let report = checked(&pool, false);
        assert!(report.problems.is_empty(), "moment {seed}: {:#?}", report.problems);
        replayed += report.replayed;
        // A node that mounts it recovers the dead one: its windows, its log, its orphans.
        let fs = mount(&pool);
        let ino = fs.lookup(fs.root(), b"kept").unwrap().ino;
        let fh = fs.open(ino, O_RDWR).unwrap();
        let mut buf = AlignedBuf::zeroed(1 << 20);
        assert_eq!(fs.read(fh, 0, &mut buf).unwrap(), 1 << 20);
        assert!(buf[..] == pattern(42, 1 << 20)[..]);
        fs.write(fh, 0, &pattern(43, 1 << 20), WriteFlags::default()).unwrap();
        fs.release(fh).unwrap();
        fs.unmount().unwrap();
        let report = checked(&pool, false);
        assert!(report.problems.is_empty(), "moment {seed}, after: {:#?}", report.problems);
    }
    assert!(replayed > 0);
    fixture.fs.release(kept).unwrap();
    fixture.verify();
}

/// Changes a body and seals it again.
fn edit(volume: &Volume, block: BlockNo, f: impl FnOnce(&mut [u8])) {
    let mut body = volume.read_body(block).unwrap().0;
    f(&mut body);
    MetaHeader::seal(&mut body);
    volume.write_bodies(&[(block, &body)]).unwrap();
}

#[test]
fn what_stands_in_the_wrong_subpool_is_found() {
    let fixture = Fixture::new(TWO);
    let (ino, fh) = fixture.create("file").unwrap();
    fixture.write(fh, 0, 1, 300_000).unwrap();
    fixture.fs.fsync(fh, false).unwrap();
    fixture.fs.release(fh).unwrap();
    fixture.fs.unmount().unwrap();
    let volume = Volume::open(fixture.pool.clone()).unwrap();
    let groups = &volume.groups;
    let finds = |what: &str| {
        let report = checked(&fixture.pool, false);
        assert!(report.problems.iter().any(|p| p.contains(what)), "{what}: {:#?}", report.problems);
    };
    // Blocks of file data that the bitmap calls metadata: mended.
    let shape = groups.shape(groups.count() - 1).unwrap();
    let bitmap = BlockNo(shape.start.get() + 1);
    edit(&volume, bitmap, |body| {
        bits::fill(&mut body[MetaHeader::LEN..], 8, 4, BlockState::MetaFree);
    });
    finds("4 block(s) of file data called metadata");
    assert!(checked(&fixture.pool, true).repaired > 0);
    assert!(checked(&fixture.pool, false).problems.is_empty());

    // An extent among metadata: found by the check, refused by a mount.
    let at = RawDinode::TAIL_AT;
    let physical = |block: u64| {
        move |body: &mut [u8]| {
            let (raw, _) = RawExtent::mut_from_prefix(&mut body[at..]).unwrap();
            raw.physical.set(block);
        }
    };
    let good = extents(&volume, ino)[0].1;
    let metadata = groups.shape(1).unwrap();
    assert!(takes_slots(metadata.kind));
    edit(&volume, BlockNo::from(ino), physical(metadata.first_block));
    finds("in a group for metadata only");
    let fs = mount(&fixture.pool);
    let fh = fs.open(ino, O_RDWR).unwrap();
    let error = fs.read(fh, 0, &mut AlignedBuf::zeroed(4096)).unwrap_err();
    assert!(matches!(error, Error::Inconsistent { .. }), "{error}");
    // It has withdrawn.
    let _ = fs.unmount();
    drop(fs);
    edit(&volume, BlockNo::from(ino), physical(good));

    // A slot among data: an attribute block.
    let attributes = groups.made().data.start + 100;
    edit(&volume, BlockNo::from(ino), |body| {
        RawDinode::mut_from_prefix(body).unwrap().0.xattr_block.set(attributes);
    });
    finds("in a group for file data only");
    fixture.obeys();
}

#[test]
fn numbers_of_blocks_of_data_are_no_inodes() {
    let fixture = Fixture::new(TWO);
    let volume = Volume::open(fixture.pool.clone()).unwrap();
    for block in [
        volume.groups.made().data.start,
        volume.groups.made().data.end - 1,
        volume.groups.made().heads,
    ] {
        let error = fixture.fs.getattr(InodeNo(block)).unwrap_err();
        assert!(matches!(error, Error::Stale(_)), "{error}");
    }
    fixture.verify();
}

type Change = fn(&mut RawSuperblock);

#[test]
fn superblocks_and_pools_that_do_not_fit_are_refused() {
    let fixture = Fixture::new(TWO);
    fixture.fs.unmount().unwrap();
    let sb = Volume::open(fixture.pool.clone()).unwrap().sb;
    let changes: [Change; 14] = [
        |sb| sb.meta_blocks.set(0),
        |sb| sb.meta_blocks.set(sb.meta_blocks.get() + 1),
        |sb| sb.meta_blocks.set(u64::MAX),
        |sb| sb.data_start.set(sb.data_start.get() - 1),
        |sb| sb.data_start.set(u64::MAX),
        |sb| sb.data_end.set(sb.data_end.get() + 1),
        |sb| sb.data_blocks.set(0),
        |sb| sb.data_count.set(u64::MAX),
        |sb| sb.data_count.set(0),
        |sb| sb.data_heads.set(sb.data_start.get()),
        |sb| sb.data_head_slots.set(1),
        |sb| sb.data_head_slots.set(u64::MAX),
        |sb| sb.journal_area.set(sb.data_start.get()),
        |sb| sb.features_incompat.set(2),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut bad = sb;
        change(&mut bad);
        let volume = Volume::open(fixture.pool.clone()).unwrap();
        for block in [BlockNo(0), volume.copy()] {
            edit(&volume, block, |body| {
                let header = MetaHeader::read_from_prefix(body).unwrap().0;
                let (to, _) = RawSuperblock::mut_from_prefix(body).unwrap();
                *to = bad;
                to.header = header;
            });
        }
        let opened = Volume::open(fixture.pool.clone());
        assert!(matches!(opened, Err(Error::Superblock(_))), "change {n}");
        for block in [BlockNo(0), volume.copy()] {
            edit(&volume, block, |body| {
                let header = MetaHeader::read_from_prefix(body).unwrap().0;
                let (to, _) = RawSuperblock::mut_from_prefix(body).unwrap();
                *to = sb;
                to.header = header;
            });
        }
    }
    // The first superblock lost: the copy is at the metadata subpool's end.
    let volume = Volume::open(fixture.pool.clone()).unwrap();
    fixture.pool.write(volume.body_at(BlockNo(0)), &[0; 512]).unwrap();
    assert!(Volume::open(fixture.pool.clone()).is_ok());
    assert!(checked(&fixture.pool, true).repaired > 0);
    assert!(checked(&fixture.pool, false).problems.is_empty());
    fixture.obeys();
}

#[test]
fn two_nodes_share_both_subpools() {
    let fixture = Fixture::new(STRIPES);
    let other = mount(&Pool::assemble(fixture.pool.devices()).unwrap());
    let root = other.root();
    for i in 0..40_u64 {
        let (_, fh) = fixture.create(&format!("a{i}")).unwrap();
        fixture.write(fh, 0, i, 200_000).unwrap();
        fixture.fs.release(fh).unwrap();
        let name = format!("b{i}");
        let (_, fh) = other.create(root, name.as_bytes(), 0o644, O_RDWR, &Cred::default()).unwrap();
        other.write(fh, 0, &pattern(100 + i, 200_000), WriteFlags::default()).unwrap();
        other.release(fh).unwrap();
    }
    // Each erases what the other made.
    for i in 0..40 {
        if i % 2 == 0 {
            fixture.fs.unlink(root, format!("b{i}").as_bytes()).unwrap();
            other.unlink(root, format!("a{i}").as_bytes()).unwrap();
        } else {
            let ino = other.lookup(root, format!("a{i}").as_bytes()).unwrap().ino;
            let fh = other.open(ino, 0).unwrap();
            let mut buf = AlignedBuf::zeroed(200_000);
            assert_eq!(other.read(fh, 0, &mut buf).unwrap(), 200_000);
            assert!(buf[..] == pattern(i, 200_000)[..]);
            other.release(fh).unwrap();
        }
    }
    other.unmount().unwrap();
    let report = fixture.verify();
    assert_eq!((report.inodes, report.data_blocks), (41, 40 * 49));
}
