//! For tests: a volume in memory with a hand-made superblock, on a device that remembers every
//! write and flush, so that a test can see what a power cut at any moment leaves.

use std::sync::Arc;
use std::time::Duration;

use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, LockNo, NodeId};
use braid_pool::device::{
    AlignedBuf, Command, CommandKind, Completion, Device, DeviceError, MemoryDevice, Rule,
    ScriptedDevice,
};
use braid_pool::{CreateOptions, Pool};
use parking_lot::Mutex;
use zerocopy::{FromZeros, IntoBytes};

use crate::journal;
use crate::volume::Volume;

/// Splitmix64: enough for tests, and the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Contents that follow from `seed`, in memory that devices take as it is.
pub(crate) fn pattern(seed: u64, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    buf.copy_from_slice(&braid_testkit::pattern(seed, len));
    buf
}

/// What went to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Write(usize, Vec<u8>),
    Flush,
}
impl Event {
    /// What a command that was done, no read, has done.
    fn of(at: ByteOffset, command: &Command<'_>) -> Self {
        let bytes = match command {
            Command::Flush => return Self::Flush,
            Command::Write(bytes) | Command::CompareAndWrite { new: bytes, .. } => bytes.to_vec(),
            zeros => vec![0; zeros.len().to_usize()],
        };
        Self::Write(Bytes(at.get()).to_usize(), bytes)
    }
}

/// What becomes of writes that were not flushed when the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Kept,
    /// Each sector of each write is kept or lost, by chance.
    Torn(u64),
}

/// A memory device that remembers.
#[derive(Debug)]
pub(crate) struct Tape {
    device: Arc<ScriptedDevice>,
    base: Mutex<Vec<u8>>,
    events: Arc<Mutex<Vec<Event>>>,
    recording: Arc<Rule>,
    fails: Arc<Rule>,
}
impl Tape {
    /// A device with these bytes.
    pub fn new(bytes: &[u8]) -> Arc<Self> {
        let memory = MemoryDevice::new("tape", Bytes::from(bytes.len()), Bytes(512));
        memory.write(ByteOffset(0), bytes).unwrap();
        let device = ScriptedDevice::over(memory);
        device.add(Rule::on(&[CommandKind::Deallocate]).is_unsupported());
        let poisoned = |_| DeviceError::Poisoned { device: "tape".into() };
        let changes = |_, command: &Command<'_>| {
            !matches!(command.kind(), CommandKind::Read | CommandKind::Deallocate)
        };
        let fails = device.add(Rule::all().when(changes).fails_with(poisoned).disabled());
        let events = Arc::new(Mutex::new(Vec::new()));
        let notes = events.clone();
        let recording = Rule::all().when(changes).then_calls(move |at, command, done| {
            if matches!(done, Ok(Completion::Done)) {
                notes.lock().push(Event::of(at, command));
            }
        });
        let recording = device.add(recording.disabled());
        Arc::new(Self { device, base: Mutex::default(), events, recording, fails })
    }
    /// The device, for a pool.
    pub fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }
    /// All its bytes now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.device.info().size.to_usize()];
        self.device.read(ByteOffset(0), &mut all).unwrap();
        all
    }
    /// Starts to remember, with what is there now as durable.
    pub fn record(&self) {
        *self.base.lock() = self.bytes();
        self.events.lock().clear();
        self.recording.enable(true);
    }
    /// How many events there were.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }
    /// The events from the `from`-th on, as letters: `w`rite, `f`lush.
    pub fn letters(&self, from: usize) -> String {
        let letter = |e: &Event| if *e == Event::Flush { 'f' } else { 'w' };
        self.events.lock()[from..].iter().map(letter).collect()
    }
    /// Lets `n` more writes and flushes succeed, and every later one fail.
    pub fn fail_after(&self, n: u64) {
        self.fails.strike_after(n);
    }
    /// Lets one read fail whose range has this byte of the device in it.
    pub fn fail_a_read_of(&self, at: ByteOffset) {
        self.device.add(Rule::on(&[CommandKind::Read]).covering(at).fails().once());
    }
    /// Counts reads from now on.
    pub fn count_reads(&self) -> Arc<Rule> {
        self.device.add(Rule::on(&[CommandKind::Read]))
    }
    /// Makes flushes take so much longer.
    pub fn slow_flush(&self, delay: Duration) {
        self.device.add(Rule::on(&[CommandKind::Flush]).delays(delay));
    }
    /// Calls `f(n, image)` for a power cut after each `n` of the events, with a fate for each.
    pub fn each_cut(&self, fates: &[Fate], mut f: impl FnMut(usize, Fate, &[u8])) {
        let events = self.events.lock().clone();
        let mut durable = self.base.lock().clone();
        let mut open: Vec<&Event> = Vec::new();
        for n in 0..=events.len() {
            for &fate in fates {
                let mut image = durable.clone();
                let mut rng = Rng(n as u64);
                if let Fate::Torn(seed) = fate {
                    rng.0 ^= seed << 32;
                }
                for event in &open {
                    let Event::Write(at, data) = event else { continue };
                    for (i, sector) in data.chunks(512).enumerate() {
                        let kept = match fate {
                            Fate::Lost => false,
                            Fate::Kept => true,
                            Fate::Torn(_) => rng.below(2) == 0,
                        };
                        if kept {
                            let at = at + i * 512;
                            image[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                f(n, fate, &image);
            }
            match events.get(n) {
                Some(Event::Flush) => {
                    for event in open.drain(..) {
                        let Event::Write(at, data) = event else { continue };
                        durable[*at..at + data.len()].copy_from_slice(data);
                    }
                }
                Some(write) => open.push(write),
                None => {}
            }
        }
    }
    /// The image after all events, with nothing that was not flushed.
    pub fn durable(&self) -> Vec<u8> {
        let events = self.events.lock();
        let mut image = self.base.lock().clone();
        let flushed = events.iter().rposition(|e| *e == Event::Flush).unwrap_or(0);
        for event in &events[..flushed] {
            if let Event::Write(at, data) = event {
                image[*at..at + data.len()].copy_from_slice(data);
            }
        }
        image
    }
}

/// What a test volume is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub geo: Geometry,
    /// Bytes of the pool, a multiple of 1 MiB.
    pub size: Bytes,
    pub nodes: u16,
    pub journal_blocks: u64,
}
impl Default for Shape {
    /// 4 MiB, two nodes, the smallest journals there may be.
    fn default() -> Self {
        Self { geo: Geometry::DEFAULT, size: Bytes(4 << 20), nodes: 2, journal_blocks: 112 }
    }
}

/// A volume in memory, and the device under it.
#[derive(Debug, Clone)]
pub(crate) struct TestVolume {
    pub volume: Arc<Volume>,
    pub tape: Arc<Tape>,
}

impl TestVolume {
    /// Formatted: superblock, empty journals, and one resource group that is nothing but slots,
    /// all zero. Recording has begun.
    pub fn new(shape: Shape) -> Self {
        let tape = Tape::new(&vec![0; shape.size.to_usize() + (2 << 20)]);
        let mut options = CreateOptions::new("test");
        options.lock_sector = Some(shape.geo.lock_sector);
        let pool = Pool::create(vec![tape.device()], &options).unwrap();
        let sb = superblock(&pool, &shape);
        let mut body = AlignedBuf::zeroed(shape.geo.body_len());
        sb.write_to_prefix(&mut body).unwrap();
        MetaHeader::seal(&mut body);
        pool.write(ByteOffset(0) + shape.geo.body_at(), &body).unwrap();
        let volume = Arc::new(Volume::open(pool).unwrap());
        for node in 0..shape.nodes {
            journal::format(&volume, NodeId(node), 1000).unwrap();
        }
        tape.record();
        Self { volume, tape }
    }
    /// What a machine finds that starts with these bytes on its device. Recording has begun.
    pub fn from_image(image: &[u8]) -> Self {
        let tape = Tape::new(image);
        let pool = Pool::assemble(vec![tape.device()]).unwrap();
        let volume = Arc::new(Volume::open(pool).unwrap());
        tape.record();
        Self { volume, tape }
    }
    /// After a power cut now that loses all that was not flushed.
    pub fn crash(&self) -> Self {
        Self::from_image(&self.tape.durable())
    }
    /// The `n`-th slot of the resource group.
    pub fn slot(&self, n: u64) -> BlockNo {
        let block = BlockNo(self.volume.rgrp(0).get() + n * self.volume.geo.slot_blocks());
        assert!(self.volume.rgrp_of(block).is_some(), "the test volume has fewer slots");
        block
    }
}

fn superblock(pool: &Pool, shape: &Shape) -> RawSuperblock {
    let geo = shape.geo;
    let slots = |n: u64| n * geo.slot_blocks();
    let packed = geo
        .block_size
        .blocks_for(Bytes(u64::from(shape.nodes) * geo.lock_sector.get()))
        .get()
        .next_multiple_of(geo.slot_blocks());
    let mut next = 0;
    let mut take = |blocks: u64| {
        let at = next;
        next += blocks;
        at
    };
    let mut sb = RawSuperblock::new_zeroed();
    sb.header = MetaHeader::new(MetaKind::Superblock, BlockNo(0), LockNo(0));
    sb.fs_magic = RawSuperblock::FS_MAGIC;
    sb.version.set(RawSuperblock::VERSION);
    sb.block_shift.set(geo.block_size.shift().try_into().unwrap());
    sb.lock_sector_shift.set(geo.lock_sector.get().trailing_zeros().try_into().unwrap());
    sb.pool_uuid = *pool.info().uuid.as_bytes();
    sb.fs_uuid = *uuid::Uuid::new_v4().as_bytes();
    sb.total_blocks.set(pool.info().size.get() >> geo.block_size.shift());
    sb.node_slots.set(shape.nodes);
    sb.named_count.set(RawSuperblock::NAMED_COUNT);
    sb.plock_count.set(RawSuperblock::PLOCK_COUNT);
    sb.node_area_slots.set(RawSuperblock::AREA_SLOTS);
    take(slots(1));
    sb.named_start.set(take(slots(u64::from(RawSuperblock::NAMED_COUNT))));
    sb.plock_start.set(take(slots(u64::from(RawSuperblock::PLOCK_COUNT))));
    sb.slot_area.set(take(packed));
    sb.heartbeat_area.set(take(packed));
    let areas = u64::from(shape.nodes) * u64::from(RawSuperblock::AREA_SLOTS);
    sb.node_area.set(take(slots(areas)));
    sb.journal_blocks.set(shape.journal_blocks);
    sb.journal_area.set(take(u64::from(shape.nodes) * shape.journal_blocks));
    let start = take(0);
    let end = geo.block_size.block_of(Volume::copy_offset(pool)).get();
    sb.rgrp_start.set(start);
    sb.rgrp_blocks.set(end - start);
    sb.rgrp_count.set(1);
    sb.root_inode.set(start);
    sb.stripe_unit.set(pool.info().stripe_unit.get());
    sb.stripe_width.set(pool.info().stripe_width.get());
    sb
}

#[test]
fn geometries_of_all_sizes_open() {
    for shift in 12..=16 {
        for lock_sector in [512, 4096] {
            let block_size = BlockSize::new(Bytes(1 << shift)).unwrap();
            let geo = Geometry { block_size, lock_sector: Bytes(lock_sector) };
            let shape = Shape { geo, size: Bytes(64 << 20), nodes: 2, journal_blocks: 160 };
            let t = TestVolume::new(shape);
            assert_eq!(t.volume.geo, geo);
        }
    }
}
