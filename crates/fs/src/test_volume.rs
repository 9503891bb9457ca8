//! For tests: a volume in memory with a hand-made superblock, on a device that remembers every
//! write and flush, so that a test can see what a power cut at any moment leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, BlockSize, ByteOffset, Bytes, LockNo, NodeId};
use braid_pool::device::{
    Abilities, AlignedBuf, CawOutcome, Command, Completion, Device, DeviceError, DeviceInfo,
    MemoryDevice,
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

/// What went to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Write(usize, Vec<u8>),
    Flush,
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
pub(crate) struct Tape {
    inner: Arc<MemoryDevice>,
    base: Mutex<Vec<u8>>,
    events: Mutex<Vec<Event>>,
    recording: AtomicBool,
    /// Writes and flushes until one fails.
    fuse: AtomicU64,
    flush_delay_us: AtomicU64,
}
impl std::fmt::Debug for Tape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tape({:?})", self.inner)
    }
}
impl Tape {
    /// A device with these bytes.
    pub fn new(bytes: &[u8]) -> Arc<Self> {
        let inner = MemoryDevice::new("tape", Bytes::from(bytes.len()), Bytes(512));
        inner.write(ByteOffset(0), bytes).unwrap();
        Arc::new(Self {
            inner,
            base: Mutex::default(),
            events: Mutex::default(),
            recording: AtomicBool::new(false),
            fuse: AtomicU64::new(u64::MAX),
            flush_delay_us: AtomicU64::new(0),
        })
    }
    /// All its bytes now.
    pub fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; self.inner.info().size.to_usize()];
        self.inner.read(ByteOffset(0), &mut all).unwrap();
        all
    }
    /// Starts to remember, with what is there now as durable.
    pub fn record(&self) {
        *self.base.lock() = self.bytes();
        self.events.lock().clear();
        self.recording.store(true, Ordering::Release);
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
        self.fuse.store(n, Ordering::Release);
    }
    /// Makes flushes take this long.
    pub fn slow_flush(&self, delay: Duration) {
        self.flush_delay_us.store(delay.as_micros().try_into().unwrap(), Ordering::Release);
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
    fn burn(&self) -> Result<(), DeviceError> {
        let left = self.fuse.load(Ordering::Acquire);
        if left == 0 {
            return Err(DeviceError::Poisoned { device: "tape".into() });
        }
        if left != u64::MAX {
            self.fuse.store(left - 1, Ordering::Release);
        }
        Ok(())
    }
    fn note(&self, event: impl FnOnce() -> Event) {
        if self.recording.load(Ordering::Acquire) {
            self.events.lock().push(event());
        }
    }
}
impl Tape {
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        self.burn()?;
        self.inner.write(at, buf)?;
        self.note(|| Event::Write(Bytes(at.get()).to_usize(), buf.to_vec()));
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.burn()?;
        let delay = self.flush_delay_us.load(Ordering::Acquire);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        self.note(|| Event::Flush);
        Ok(())
    }
}
impl Device for Tape {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(_) => return self.inner.submit(at, command),
            Command::Write(buf) => self.write(at, buf)?,
            Command::Flush => self.flush()?,
            Command::CompareAndWrite { expected, new } => {
                self.burn()?;
                let outcome = self.inner.compare_and_write(at, expected, new)?;
                if outcome == CawOutcome::Written {
                    self.note(|| Event::Write(Bytes(at.get()).to_usize(), new.to_vec()));
                }
                return Ok(outcome.into());
            }
            Command::Discard(len) | Command::WriteZeroes(len) => {
                self.write(at, &vec![0; len.to_usize()])?;
            }
            Command::Deallocate(_) => return Ok(Completion::Unsupported),
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.inner.abilities()
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
        let device: Arc<dyn Device> = tape.clone();
        let pool = Pool::create(vec![device], &options).unwrap();
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
        let device: Arc<dyn Device> = tape.clone();
        let pool = Pool::assemble(vec![device]).unwrap();
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
