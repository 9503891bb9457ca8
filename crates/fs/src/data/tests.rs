use std::sync::Arc;

use braid_format::{BlockSize, Bytes, InodeNo, NodeId, StripeUnit};
use braid_pool::device::{
    AlignedBuf, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, RecordingDevice,
};
use braid_pool::{CreateOptions, Pool};
use proptest::prelude::*;

use crate::ReadRange;
use crate::attr::{Cred, Durable, Fh, NoKernelCache, SetAttr, Write, WriteFlags};
use crate::check::{CheckOptions, check};
use crate::make::{MakeOptions, make};
use crate::test_volume::pattern;
use crate::{Error, Fs, MountOptions};

const O_RDWR: i32 = 2;

/// A pool in memory with one file system, mounted by one node.
struct Fixture {
    devices: Vec<Arc<dyn Device>>,
    options: MountOptions,
    fs: Fs,
}

fn memory(members: usize, member_mib: u64, sector: u64) -> Vec<Arc<dyn Device>> {
    let size = Bytes(member_mib << 20);
    let device = |i| MemoryDevice::new(&format!("m{i}"), size, Bytes(sector)) as Arc<dyn Device>;
    (0..members).map(device).collect()
}

impl Fixture {
    fn new(members: usize, member_mib: u64, dirty_max: u64) -> Self {
        Self::on(memory(members, member_mib, 512), dirty_max)
    }
    fn on(devices: Vec<Arc<dyn Device>>, dirty_max: u64) -> Self {
        Self::shaped(devices, BlockSize::DEFAULT, dirty_max)
    }
    fn shaped(devices: Vec<Arc<dyn Device>>, block_size: BlockSize, dirty_max: u64) -> Self {
        let create = CreateOptions {
            stripe_unit: StripeUnit::new(Bytes(64 << 10)).unwrap(),
            ..CreateOptions::new("fixture")
        };
        let pool = Pool::create(devices.clone(), &create).unwrap();
        let options = MakeOptions {
            nodes: Some(2),
            journal_size: Some(1024 << block_size.shift()),
            block_size,
            ..MakeOptions::default()
        };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let options = MountOptions { dirty_max: Bytes(dirty_max), ..MountOptions::default() };
        let fs = Fs::mount(pool, options.clone(), Arc::new(NoKernelCache)).unwrap();
        Self { devices, options, fs }
    }
    fn remount(&mut self) {
        self.fs.unmount().unwrap();
        let pool = Pool::assemble(self.devices.clone()).unwrap();
        self.fs = Fs::mount(pool, self.options.clone(), Arc::new(NoKernelCache)).unwrap();
    }
    fn create(&self, name: &str) -> (InodeNo, Fh) {
        let (attr, fh) = self
            .fs
            .create(self.fs.root(), name.as_bytes(), 0o644, O_RDWR, &Cred::default())
            .unwrap();
        (attr.ino, fh)
    }
    fn write(&self, fh: Fh, offset: u64, data: &[u8]) -> crate::error::Result<usize> {
        // As programs write: answered as soon as that can be.
        let what = Write { offset, bytes: data, flags: WriteFlags::default() };
        self.fs.write_behind(fh, what, &mut super::tests_inflight::Early(|| ()))
    }
    fn read(&self, fh: Fh, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = AlignedBuf::zeroed(len);
        buf.fill(0xee);
        let n = self.fs.read(fh, offset, &mut buf).unwrap();
        let other = self
            .fs
            .read_reply(
                fh,
                ReadRange { offset, len: u32::try_from(len).unwrap(), fill: false },
                <[u8]>::to_vec,
            )
            .unwrap();
        assert!(buf[..n] == other[..], "both ways of reading agree");
        other
    }
    /// Unmounts and checks.
    fn verify(self) {
        self.fs.unmount().unwrap();
        let pool = Pool::assemble(self.devices.clone()).unwrap();
        let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// Bytes that differ by place and by `seed`.
#[derive(Debug, Clone)]
enum Op {
    Write { at: u64, len: usize, direct: bool },
    Aligned { block: u64, blocks: u64, direct: bool },
    Append { len: usize },
    Truncate { size: u64 },
    Fallocate { mode: i32, at: u64, len: u64 },
    Read { at: u64, len: usize },
    Sync { data_only: bool },
    Mapped { at: u64, len: usize },
    Remount,
}

const SPAN: u64 = 1_500_000;

fn op() -> impl Strategy<Value = Op> {
    let near = prop_oneof![3 => 0..12_000_u64, 2 => 0..SPAN];
    let len = prop_oneof![4 => 1..6_000_usize, 1 => 1..200_000_usize];
    prop_oneof![
        6 => (near.clone(), len.clone(), prop::bool::weighted(0.2))
            .prop_map(|(at, len, direct)| Op::Write { at, len, direct }),
        4 => (0..360_u64, 1..100_u64, any::<bool>())
            .prop_map(|(block, blocks, direct)| Op::Aligned { block, blocks, direct }),
        2 => len.clone().prop_map(|len| Op::Append { len }),
        3 => near.clone().prop_map(|size| Op::Truncate { size }),
        3 => (prop::sample::select(vec![0, 1, 3, 16, 17]), near.clone(), 1..300_000_u64)
            .prop_map(|(mode, at, len)| Op::Fallocate { mode, at, len }),
        4 => (near.clone(), len.clone()).prop_map(|(at, len)| Op::Read { at, len }),
        1 => any::<bool>().prop_map(|data_only| Op::Sync { data_only }),
        2 => (near, len).prop_map(|(at, len)| Op::Mapped { at, len }),
        1 => Just(Op::Remount),
    ]
}

/// What a file holds.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn grow(&mut self, size: u64) {
        let size = usize::try_from(size).unwrap();
        if self.0.len() < size {
            self.0.resize(size, 0);
        }
    }
    fn put(&mut self, at: u64, data: &[u8]) {
        self.grow(at + data.len() as u64);
        let at = usize::try_from(at).unwrap();
        self.0[at..at + data.len()].copy_from_slice(data);
    }
    fn slice(&self, at: u64, len: usize) -> &[u8] {
        let at = usize::try_from(at).unwrap().min(self.0.len());
        &self.0[at..(at + len).min(self.0.len())]
    }
}

fn apply(fixture: &mut Fixture, ino: InodeNo, fh: &mut Fh, model: &mut Model, i: u64, op: &Op) {
    let size = model.0.len() as u64;
    match *op {
        Op::Write { at, len, direct } => {
            let data = pattern(i, len);
            let flags = WriteFlags { direct, ..WriteFlags::default() };
            assert_eq!(fixture.fs.write(*fh, at, &data, flags).unwrap(), len);
            model.put(at, &data);
        }
        Op::Aligned { block, blocks, direct } => {
            let data = pattern(i, usize::try_from(blocks * 4096).unwrap());
            let flags = WriteFlags { direct, ..WriteFlags::default() };
            fixture.fs.write(*fh, block * 4096, &data, flags).unwrap();
            model.put(block * 4096, &data);
        }
        Op::Append { len } => {
            let data = pattern(i, len);
            let flags = WriteFlags { append: true, ..WriteFlags::default() };
            fixture.fs.write(*fh, 77, &data, flags).unwrap();
            model.put(size, &data);
        }
        Op::Truncate { size } => {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(fixture.fs.setattr(ino, &set, Some(*fh)).unwrap().size, size);
            model.grow(size);
            model.0.truncate(usize::try_from(size).unwrap());
        }
        Op::Fallocate { mode, at, len } => {
            fixture.fs.fallocate(*fh, mode, at, len).unwrap();
            if mode & 1 == 0 {
                model.grow(at + len);
            }
            if mode & !1 != 0 {
                let end = (at + len).min(model.0.len() as u64);
                if at < end {
                    model.put(at, &vec![0; usize::try_from(end - at).unwrap()]);
                }
            }
        }
        Op::Read { at, len } => {
            assert!(fixture.read(*fh, at, len) == model.slice(at, len), "read at {at}");
        }
        Op::Sync { data_only } => fixture.fs.fsync(*fh, data_only).unwrap(),
        Op::Mapped { at, len } => {
            let data = pattern(i, len);
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            fixture.fs.write(*fh, at, &data, flags).unwrap();
            let inside = usize::try_from(size.saturating_sub(at)).unwrap().min(len);
            if inside > 0 {
                model.put(at, &data[..inside]);
            }
        }
        Op::Remount => {
            fixture.fs.release(*fh).unwrap();
            fixture.remount();
            *fh = fixture.fs.open(ino, O_RDWR).unwrap();
        }
    }
    assert_eq!(fixture.fs.getattr(ino).unwrap().size, model.0.len() as u64);
}

/// Holes and data as `lseek` tells them agree with the contents: no byte of data in a hole.
fn seek_agrees(fixture: &Fixture, fh: Fh, model: &Model) {
    let mut at = 0;
    let size = model.0.len() as u64;
    while at < size {
        let data = match fixture.fs.lseek(fh, at, 3) {
            Ok(data) => data,
            Err(Error::NoSuchOffset) => size,
            Err(e) => panic!("{e}"),
        };
        let hole = model.slice(at, usize::try_from(data - at).unwrap());
        assert!(hole.iter().all(|b| *b == 0), "data in the hole {at}..{data}");
        if data < size {
            let next = fixture.fs.lseek(fh, data, 4).unwrap();
            assert!(next > data && next <= size);
            at = next;
        } else {
            at = size;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_file_behaves_as_a_vector_of_bytes(
        ops in prop::collection::vec(op(), 1..40),
        dirty_max in prop::sample::select(vec![0_u64, 100_000, 128 << 20]),
        // Slots of one block and of two; small and large blocks.
        (shift, sector) in prop::sample::select(vec![(12, 512), (12, 4096), (14, 512), (16, 4096)]),
    ) {
        let block_size = BlockSize::new(Bytes(1 << shift)).unwrap();
        let mut fixture = Fixture::shaped(memory(2, 256, sector), block_size, dirty_max);
        let (ino, mut fh) = fixture.create("f");
        let mut model = Model::default();
        for (i, op) in ops.iter().enumerate() {
            apply(&mut fixture, ino, &mut fh, &mut model, i as u64, op);
        }
        seek_agrees(&fixture, fh, &model);
        prop_assert!(fixture.read(fh, 0, 2 << 20) == model.0);
        apply(&mut fixture, ino, &mut fh, &mut model, 0, &Op::Remount);
        prop_assert!(fixture.read(fh, 0, 2 << 20) == model.0, "after a remount");
        seek_agrees(&fixture, fh, &model);
        fixture.fs.release(fh).unwrap();
        fixture.verify();
    }
}

#[test]
fn small_files_take_no_block() {
    let mut fixture = Fixture::new(1, 64, 1 << 20);
    let (ino, fh) = fixture.create("small");
    fixture.write(fh, 0, b"hello").unwrap();
    fixture.write(fh, 100, b"world").unwrap();
    fixture.fs.release(fh).unwrap();
    fixture.remount();
    // Less than a block: what the dinode itself holds.
    assert_eq!(fixture.fs.getattr(ino).unwrap().blocks512, 1);
    let fh = fixture.fs.open(ino, O_RDWR).unwrap();
    let all = fixture.read(fh, 0, 4096);
    assert_eq!(
        (&all[..5], &all[5..100], &all[100..]),
        (&b"hello"[..], &[0; 95][..], &b"world"[..])
    );
    fixture.fs.release(fh).unwrap();
    fixture.verify();
}

#[test]
fn a_full_pool_keeps_what_is_there() {
    let fixture = Fixture::new(1, 64, 4 << 20);
    let before = fixture.fs.statfs().unwrap();
    let mut files = Vec::new();
    // Direct and cached ones in turn, until nothing fits.
    let mut failures = 0;
    for i in 0_u64.. {
        let (ino, fh) = match fixture.fs.create(
            fixture.fs.root(),
            format!("f{i}").as_bytes(),
            0o644,
            O_RDWR,
            &Cred::default(),
        ) {
            Ok((attr, fh)) => (attr.ino, fh),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        };
        let mut size = 0;
        for step in 0..8 {
            let len = if i % 2 == 0 { 300 << 10 } else { 50_000 };
            match fixture.write(fh, size, &pattern(i * 8 + step, len)) {
                Ok(n) => size += n as u64,
                Err(Error::NoSpace) => {
                    failures += 1;
                    break;
                }
                Err(e) => panic!("{e}"),
            }
        }
        files.push((i, ino, fh, size));
        if failures > 20 {
            break;
        }
    }
    // A last block or two may be left; blocks that are reserved must really be there.
    fixture.fs.sync().unwrap();
    let full = fixture.fs.statfs().unwrap();
    assert!(full.free < before.blocks / 50, "{} of {} blocks free", full.free, before.blocks);
    for (i, ino, fh, size) in &files {
        assert_eq!(fixture.fs.getattr(*ino).unwrap().size, *size);
        let len = if i % 2 == 0 { 300 << 10 } else { 50_000 };
        for step in 0..*size / len {
            let got = fixture.read(*fh, step * len, usize::try_from(len).unwrap());
            assert!(got == pattern(i * 8 + step, got.len())[..], "file {i} step {step}");
        }
    }
    // Overwriting needs no space.
    let (_, _, fh, _) = files[0];
    fixture.write(fh, 0, &pattern(1, 100_000)).unwrap();
    fixture.fs.fsync(fh, false).unwrap();
    for (i, _, fh, _) in &files {
        fixture.fs.release(*fh).unwrap();
        fixture.fs.unlink(fixture.fs.root(), format!("f{i}").as_bytes()).unwrap();
    }
    fixture.fs.sync().unwrap();
    let after = fixture.fs.statfs().unwrap();
    // Chunks that became metadata stay so.
    let kept = before.free - after.free;
    assert!(kept <= 64 * (2 + files.len() as u64 / 32), "{kept} blocks did not come back");
    fixture.verify();
}

#[test]
fn df_counts_every_block() {
    let fixture = Fixture::new(2, 64, 64 << 20);
    let (ino, fh) = fixture.create("f");
    fixture.write(fh, 0, &pattern(1, 4096)).unwrap();
    fixture.fs.sync().unwrap();
    let before = fixture.fs.statfs().unwrap().free;
    fixture.write(fh, 4096, &pattern(2, 1 << 20)).unwrap();
    fixture.write(fh, 40 << 20, &pattern(3, 5_000)).unwrap();
    fixture.fs.sync().unwrap();
    assert_eq!(before - fixture.fs.statfs().unwrap().free, 256 + 2);
    assert_eq!(fixture.fs.getattr(ino).unwrap().blocks512, (1 + 256 + 2) * 8);
    fixture.fs.fallocate(fh, 3, 4096, 1 << 20).unwrap();
    fixture.fs.sync().unwrap();
    assert_eq!(before - fixture.fs.statfs().unwrap().free, 2);
    fixture.fs.fallocate(fh, 0, 0, 1 << 30).unwrap_err();
    fixture.fs.fallocate(fh, 1, 0, 2 << 20).unwrap();
    fixture.fs.sync().unwrap();
    assert_eq!(before - fixture.fs.statfs().unwrap().free, 511 + 2);
    fixture.fs.release(fh).unwrap();
    fixture.verify();
}

#[test]
fn sparse_files_reach_to_the_largest_size() {
    let mut fixture = Fixture::new(1, 64, 1 << 20);
    let (ino, mut fh) = fixture.create("sparse");
    let last = i64::MAX as u64;
    let places = [0, 1 << 20, (1 << 40) + 5, 1 << 62, last - 9_000];
    for (i, at) in places.iter().enumerate() {
        fixture.write(fh, *at, &pattern(i as u64, 9_000)).unwrap();
    }
    assert!(matches!(fixture.write(fh, last - 3, b"abcd"), Err(Error::TooLarge)));
    assert!(matches!(fixture.write(fh, u64::MAX, b"abcd"), Err(Error::TooLarge)));
    for pass in 0..2 {
        assert_eq!(fixture.fs.getattr(ino).unwrap().size, last);
        for (i, at) in places.iter().enumerate() {
            assert!(
                fixture.read(fh, *at, 9_000) == pattern(i as u64, 9_000)[..],
                "{at} pass {pass}"
            );
            let data = fixture.fs.lseek(fh, at.saturating_sub(100_000), 3).unwrap();
            assert_eq!(data, at / 4096 * 4096);
        }
        assert!(fixture.read(fh, 1 << 50, 10_000).iter().all(|b| *b == 0));
        fixture.fs.release(fh).unwrap();
        fixture.remount();
        fh = fixture.fs.open(ino, O_RDWR).unwrap();
    }
    fixture.fs.fallocate(fh, 3, 4096, last - 4096).unwrap();
    assert!(matches!(fixture.fs.lseek(fh, 8192, 3), Err(Error::NoSuchOffset)));
    fixture.fs.release(fh).unwrap();
    fixture.verify();
}

#[test]
fn alternate_blocks_make_a_tall_tree() {
    const N: u64 = 20_000;
    let mut fixture = Fixture::new(2, 128, 16 << 20);
    let (ino, mut fh) = fixture.create("holes");
    let block = |i: u64| pattern(i, 4096);
    for i in 0..N {
        // Not in order: leaves split in the middle.
        let i = i * 7 % N;
        fixture.write(fh, i * 8192, &block(i)).unwrap();
    }
    fixture.fs.release(fh).unwrap();
    fixture.remount();
    fh = fixture.fs.open(ino, O_RDWR).unwrap();
    for i in (0..N).step_by(37) {
        assert!(fixture.read(fh, i * 8192, 4096) == block(i)[..]);
        assert!(fixture.read(fh, i * 8192 + 4096, 4096).iter().all(|b| *b == 0));
    }
    assert!(fixture.fs.getattr(ino).unwrap().blocks512 > N * 8);
    // Half of it goes, then the holes of the rest are filled, then all goes.
    fixture.fs.setattr(ino, &SetAttr { size: Some(N * 4096), ..SetAttr::default() }, None).unwrap();
    for i in 0..N / 2 {
        fixture.write(fh, i * 8192 + 4096, &block(i + N)).unwrap();
    }
    fixture.fs.fsync(fh, false).unwrap();
    for i in (0..N / 2).step_by(37) {
        assert!(fixture.read(fh, i * 8192, 4096) == block(i)[..]);
        assert!(fixture.read(fh, i * 8192 + 4096, 4096) == block(i + N)[..]);
    }
    fixture.fs.fallocate(fh, 3, 100_000, 40 << 20).unwrap();
    fixture.fs.release(fh).unwrap();
    fixture.remount();
    fixture.fs.unlink(fixture.fs.root(), b"holes").unwrap();
    fixture.verify();
}

#[test]
fn threads_write_and_read_one_file() {
    const STEP: u64 = 256 << 10;
    let mut fixture = Fixture::new(4, 64, 1 << 20);
    let (ino, fh) = fixture.create("shared");
    let fs = &fixture.fs;
    std::thread::scope(|scope| {
        for t in 0..4_u64 {
            scope.spawn(move || {
                for i in 0..24 {
                    let n = i * 4 + t;
                    let data = pattern(n, 256 << 10);
                    let flags = WriteFlags { direct: true, ..WriteFlags::default() };
                    fs.write(fh, n * STEP, &data, flags).unwrap();
                    if i % 5 == 0 {
                        fs.fsync(fh, true).unwrap();
                    }
                    let mut back = AlignedBuf::zeroed(256 << 10);
                    assert_eq!(fs.read(fh, n * STEP, &mut back).unwrap(), back.len());
                    assert!(back[..] == data[..], "step {n}");
                    // The same hole by all of them: one of them wins each block.
                    let far = 200 * STEP + i * 8192;
                    fs.write(fh, far, &pattern(i, 8192), flags).unwrap();
                }
            });
        }
    });
    for pass in 0..2 {
        for n in 0..96 {
            assert!(
                fixture.read(fh, n * STEP, 256 << 10) == pattern(n, 256 << 10)[..],
                "pass {pass}"
            );
        }
        for i in 0..24 {
            assert!(fixture.read(fh, 200 * STEP + i * 8192, 8192) == pattern(i, 8192)[..]);
        }
        fixture.fs.fsync(fh, false).unwrap();
    }
    assert_eq!(fixture.fs.getattr(ino).unwrap().blocks512, 96 * 512 + 24 * 16);
    fixture.fs.release(fh).unwrap();
    fixture.remount();
    fixture.verify();
}

/// The file after each step since the last sync, and how long the record was when it was made.
struct Point {
    events: usize,
    /// Contents at the sync, then after each step that followed.
    versions: Vec<Vec<u8>>,
}

/// Cached and direct writes, truncations, holes, with a sync now and then, on a disk full of other
/// files' remains; what a power cut may leave at each moment.
fn recorded(seed: u64) -> (Arc<RecordingDevice>, InodeNo, Vec<Point>) {
    let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let device = RecordingDevice::new(inner).unwrap();
    let mut fixture = Fixture::on(vec![device.clone() as Arc<dyn Device>], 60_000);
    let (_, junk) = fixture.create("junk");
    for i in 0..20 {
        fixture.write(junk, i << 20, &vec![0xdb; 1 << 20]).unwrap();
    }
    fixture.fs.fsync(junk, false).unwrap();
    fixture.fs.release(junk).unwrap();
    fixture.fs.unlink(fixture.fs.root(), b"junk").unwrap();
    let (ino, mut fh) = fixture.create("f");
    fixture.fs.sync().unwrap();
    let mut rng = crate::test_volume::Rng(seed);
    let mut model = Model::default();
    let mut points = vec![Point { events: device.len(), versions: vec![Vec::new()] }];
    for i in 0..60 {
        let size = model.0.len() as u64;
        let at = if rng.below(2) == 0 { size } else { rng.below(200_000) };
        let len = usize::try_from(1 + rng.below(20_000)).unwrap();
        let op = match rng.below(9) {
            0..=2 => Op::Write { at, len, direct: false },
            3 | 4 => Op::Aligned { block: at / 4096, blocks: 1 + rng.below(9), direct: true },
            5 => Op::Truncate { size: rng.below(size + 10_000) },
            6 => Op::Fallocate { mode: 3, at, len: 30_000 },
            7 => Op::Fallocate { mode: 0, at, len: 30_000 },
            _ => Op::Sync { data_only: rng.below(2) == 0 },
        };
        apply(&mut fixture, ino, &mut fh, &mut model, i, &op);
        if matches!(op, Op::Sync { .. }) {
            points.push(Point { events: device.len(), versions: vec![model.0.clone()] });
        } else {
            points.last_mut().unwrap().versions.push(model.0.clone());
        }
    }
    // Only what came until now counts.
    points.push(Point { events: device.len(), versions: Vec::new() });
    fixture.fs.unmount().unwrap();
    (device, ino, points)
}

/// Every byte is one that the file had at its last sync before the cut or later, or a zero where
/// something was changed since; and never a byte of another file.
fn judge(found: &[u8], versions: &[Vec<u8>], what: &str) {
    let longest = versions.iter().map(Vec::len).max().unwrap();
    let shortest = versions.iter().map(Vec::len).min().unwrap();
    assert!((shortest..=longest).contains(&found.len()), "{what}: size {}", found.len());
    for (i, byte) in found.iter().enumerate() {
        let had = |v: &Vec<u8>| v.get(i).copied().unwrap_or(0);
        let first = had(&versions[0]);
        let changed = versions.iter().any(|v| had(v) != first);
        let known = versions.iter().any(|v| had(v) == *byte);
        assert!(known || (changed && *byte == 0), "{what}: byte {i} is {byte:#x}");
    }
}

#[test]
fn a_power_cut_loses_nothing_that_was_synced() {
    for seed in 1..=3 {
        let (device, ino, mut points) = recorded(seed);
        let (start, end) = (points[0].events, points.pop().unwrap().events);
        let step = (end - start).div_ceil(40);
        let mut places = braid_testkit::places(3).map(|n| usize::try_from(n).unwrap());
        let mut next = places.next();
        let mut replay = device.replay();
        while replay.position() < end && replay.step().is_some() {
            let n = replay.position();
            if n < start || (n - start) % step != 0 || next != Some((n - start) / step) {
                continue;
            }
            next = places.next();
            let image = replay.crash_image(seed) as Arc<dyn Device>;
            let pool = Pool::assemble(vec![image.clone()]).unwrap();
            // The dead node's own slot: its journal is replayed before the mount is done.
            let options = MountOptions { slot: Some(NodeId(0)), ..MountOptions::default() };
            let fs = Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap();
            // What follows the cut may have been on its way.
            let last = points.iter().rposition(|p| p.events <= n).unwrap();
            let fh = fs.open(ino, O_RDWR).unwrap();
            let found = fs
                .read_reply(fh, ReadRange { offset: 0, len: 4 << 20, fill: false }, <[u8]>::to_vec)
                .unwrap();
            judge(&found, &points[last].versions, &format!("seed {seed}, event {n}"));
            // It can be used: what follows its end is zero.
            let size = found.len() as u64;
            let set = SetAttr { size: Some(size + 10_000), ..SetAttr::default() };
            fs.setattr(ino, &set, Some(fh)).unwrap();
            let more = fs
                .read_reply(
                    fh,
                    ReadRange { offset: size, len: 10_000, fill: false },
                    <[u8]>::to_vec,
                )
                .unwrap();
            assert!(more.len() == 10_000 && more.iter().all(|b| *b == 0), "seed {seed}, event {n}");
            fs.release(fh).unwrap();
            fs.unmount().unwrap();
            let pool = Pool::assemble(vec![image]).unwrap();
            let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
            assert!(report.problems.is_empty(), "seed {seed}, event {n}: {:?}", report.problems);
        }
    }
}

/// Two nodes on one pool.
struct Pair {
    devices: Vec<Arc<dyn Device>>,
    nodes: [Fs; 2],
}

impl Pair {
    fn new() -> Self {
        let fixture = Fixture::new(2, 96, 8 << 20);
        let pool = Pool::assemble(fixture.devices.clone()).unwrap();
        let other = Fs::mount(pool, fixture.options.clone(), Arc::new(NoKernelCache)).unwrap();
        Self { devices: fixture.devices, nodes: [fixture.fs, other] }
    }
    fn verify(self) {
        for fs in &self.nodes {
            fs.unmount().unwrap();
        }
        let pool = Pool::assemble(self.devices.clone()).unwrap();
        let report = check(pool, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

#[test]
fn what_one_node_wrote_the_other_reads() {
    let pair = Pair::new();
    let [a, b] = &pair.nodes;
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    let fb = b.open(attr.ino, O_RDWR).unwrap();
    let read = |fs: &Fs, fh, at: u64, len: usize| {
        fs.read_reply(
            fh,
            ReadRange { offset: at, len: u32::try_from(len).unwrap(), fill: false },
            <[u8]>::to_vec,
        )
        .unwrap()
    };
    let mut model = Model::default();
    let mut rng = crate::test_volume::Rng(5);
    for i in 0..60 {
        let ((writer, fw), (reader, fr)) =
            if i % 2 == 0 { ((a, fa), (b, fb)) } else { ((b, fb), (a, fa)) };
        let at = rng.below(300_000);
        let data = pattern(i, usize::try_from(1 + rng.below(30_000)).unwrap());
        match rng.below(5) {
            0 => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                writer.setattr(attr.ino, &set, None).unwrap();
                model.grow(at);
                model.0.truncate(usize::try_from(at).unwrap());
            }
            1 => {
                let data = pattern(i, 300 << 10);
                let flags = WriteFlags { direct: true, ..WriteFlags::default() };
                writer.write(fw, at / 4096 * 4096, &data, flags).unwrap();
                model.put(at / 4096 * 4096, &data);
            }
            2 => {
                let flags = WriteFlags { append: true, ..WriteFlags::default() };
                writer.write(fw, 0, &data, flags).unwrap();
                model.put(model.0.len() as u64, &data);
            }
            _ => {
                writer.write(fw, at, &data, WriteFlags::default()).unwrap();
                model.put(at, &data);
            }
        }
        assert!(read(reader, fr, 0, 2 << 20) == model.0, "step {i}");
        assert_eq!(reader.getattr(attr.ino).unwrap().size, model.0.len() as u64);
    }
    a.release(fa).unwrap();
    b.release(fb).unwrap();
    pair.verify();
}

#[test]
fn appends_of_two_nodes_never_overlap() {
    const EACH: u64 = 60;
    let pair = Pair::new();
    let [a, b] = &pair.nodes;
    let (attr, fa) = a.create(a.root(), b"log", 0o644, O_RDWR, &Cred::default()).unwrap();
    let fb = b.open(attr.ino, O_RDWR).unwrap();
    std::thread::scope(|scope| {
        for (who, fs, fh) in [(1_u8, a, fa), (2, b, fb)] {
            scope.spawn(move || {
                for i in 0..EACH {
                    let record = [who, u8::try_from(i).unwrap(), 0xff, who];
                    let flags = WriteFlags { append: true, ..WriteFlags::default() };
                    fs.write(fh, 0, &record.repeat(50), flags).unwrap();
                }
            });
        }
    });
    let all = a
        .read_reply(fa, ReadRange { offset: 0, len: 1 << 20, fill: false }, <[u8]>::to_vec)
        .unwrap();
    assert_eq!(all.len() as u64, 2 * EACH * 200);
    let mut next = [0_u8; 3];
    for record in all.chunks(200) {
        let who = usize::from(record[0]);
        assert_eq!(record, [record[0], next[who], 0xff, record[0]].repeat(50));
        next[who] += 1;
    }
    a.release(fa).unwrap();
    b.release(fb).unwrap();
    pair.verify();
}

#[test]
fn a_write_that_fails_is_told_until_it_succeeds() {
    let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let device = FaultyDevice::new(inner, FaultPlan::default());
    let fixture = Fixture::on(vec![device.clone() as Arc<dyn Device>], 1 << 20);
    let (_, fh) = fixture.create("f");
    let before = fixture.fs.statfs().unwrap().free;
    fixture.write(fh, 0, &pattern(1, 100_000)).unwrap();
    // Heartbeats write too: the next few writes fail, whoever makes them.
    for round in 0..2 {
        device.arm(On::Write, 0, FaultKind::Fails);
        let mut told = false;
        for _ in 0..20 {
            if matches!(fixture.fs.fsync(fh, false), Err(Error::Contents(_))) {
                told = true;
                break;
            }
            fixture.write(fh, 0, &pattern(1, 100_000)).unwrap();
            device.arm(On::Write, 0, FaultKind::Fails);
        }
        assert!(told, "round {round}");
    }
    device.heal();
    assert!(fixture.read(fh, 0, 100_000) == pattern(1, 100_000)[..]);
    fixture.fs.fsync(fh, false).unwrap();
    assert_eq!(before - fixture.fs.statfs().unwrap().free, 25);
    fixture.fs.release(fh).unwrap();
    fixture.verify();
}

/// Every block a thread writes is filled with one byte, so a block of two bytes was torn.
#[test]
fn two_nodes_with_many_threads_agree() {
    let pair = Pair::new();
    let root = pair.nodes[0].root();
    let (attr, first) =
        pair.nodes[0].create(root, b"busy", 0o644, O_RDWR, &Cred::default()).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4_u64 {
            let fs = &pair.nodes[usize::try_from(t % 2).unwrap()];
            scope.spawn(move || {
                let fh = fs.open(attr.ino, O_RDWR).unwrap();
                let mut rng = crate::test_volume::Rng(t);
                for i in 0..400 {
                    let at = rng.below(60) * 4096;
                    let blocks = usize::try_from(1 + rng.below(20)).unwrap();
                    let mut data = AlignedBuf::zeroed(blocks * 4096);
                    data.fill(u8::try_from(1 + t * 60 + i % 60).unwrap());
                    let mut flags = WriteFlags::default();
                    match rng.below(8) {
                        0 => {
                            let set = SetAttr { size: Some(at), ..SetAttr::default() };
                            fs.setattr(attr.ino, &set, None).unwrap();
                        }
                        1 => fs.fsync(fh, i % 2 == 0).unwrap(),
                        2 => fs.fallocate(fh, 3, at, 40_960).unwrap(),
                        3 => {
                            let found = fs
                                .read_reply(
                                    fh,
                                    ReadRange { offset: 0, len: 1 << 20, fill: true },
                                    <[u8]>::to_vec,
                                )
                                .unwrap();
                            for block in found.chunks(4096) {
                                assert!(block.iter().all(|b| *b == block[0]), "torn block");
                            }
                        }
                        kind => {
                            flags.direct = kind > 5;
                            flags.from_page_cache = kind == 4;
                            fs.write(fh, at, &data, flags).unwrap();
                        }
                    }
                }
                fs.release(fh).unwrap();
            });
        }
    });
    let [a, b] = &pair.nodes;
    let fb = b.open(attr.ino, O_RDWR).unwrap();
    let one = a
        .read_reply(first, ReadRange { offset: 0, len: 1 << 20, fill: false }, <[u8]>::to_vec)
        .unwrap();
    let two = b
        .read_reply(fb, ReadRange { offset: 0, len: 1 << 20, fill: false }, <[u8]>::to_vec)
        .unwrap();
    assert!(one == two && one.chunks(4096).all(|c| c.iter().all(|b| *b == c[0])));
    a.release(first).unwrap();
    b.release(fb).unwrap();
    pair.verify();
}

/// Takes the writes that pages may not have.
#[derive(Default)]
struct Unseen(Vec<crate::UnseenWrite>);
impl crate::attr::EarlyReply for Unseen {
    fn may(&mut self) -> bool {
        false
    }
    fn send(&mut self) {}
    fn unseen(&mut self, write: crate::UnseenWrite) {
        self.0.push(write);
    }
}

#[test]
fn a_page_that_was_filled_before_a_write_does_not_bring_back_what_was_there() {
    // Small and in the dinode, in dirty pages, past the cache, appended; and synced ones.
    let ways = [
        (300, 100, WriteFlags::default()),
        (40_000, 100, WriteFlags::default()),
        (40_000, 4096, WriteFlags { direct: true, ..WriteFlags::default() }),
        (40_000, 100, WriteFlags { append: true, ..WriteFlags::default() }),
        (40_000, 100, WriteFlags { durable: Durable::All, ..WriteFlags::default() }),
    ];
    for (size, len, flags) in ways {
        let fixture = Fixture::new(1, 64, 8 << 20);
        let (_, fh) = fixture.create("f");
        fixture.write(fh, 0, &vec![1; size]).unwrap();
        let fill = |at| {
            let range = ReadRange { offset: at, len: 4096, fill: true };
            let mut page = fixture.fs.read_reply(fh, range, <[u8]>::to_vec).unwrap();
            page.resize(4096, 0);
            page
        };
        let write_back = |at, page: &[u8]| {
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            assert_eq!(fixture.fs.write(fh, at, page, flags).unwrap(), page.len());
        };
        let at = if flags.append { size } else { 0 };
        let page_at = (at - at % 4096) as u64;
        let mut page = fill(page_at);
        // The program's own bytes: beside those that the other one writes.
        let (mine, theirs) = if flags.append { (0, at % 4096) } else { (200, 0) };
        page[mine] = 7;
        let mut unseen = Unseen::default();
        let write = Write { offset: at as u64, bytes: &vec![9; len], flags };
        fixture.fs.write_behind(fh, write, &mut unseen).unwrap();
        assert_eq!(unseen.0.len(), 1, "{flags:?}");
        write_back(page_at, &page);
        let now = fill(page_at);
        assert!(now[theirs..theirs + len.min(4096 - theirs)].iter().all(|b| *b == 9), "{flags:?}");
        assert!(len == 4096 || now[mine] == 7, "the store is lost: {flags:?}");
        // That page has the write: it comes back as it is, though the program still waits.
        let mut page = now;
        page[theirs] = 8;
        write_back(page_at, &page);
        assert_eq!(fill(page_at)[theirs], 8, "{flags:?}");
        drop(unseen);
        fixture.fs.release(fh).unwrap();
        fixture.verify();
    }
}
