//! What a device was really asked for: counts and sizes of requests, as they were issued, and how
//! long transfers took.

use std::fmt::{self, Display, Formatter};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};

use crate::model::ModelDevice;
use crate::{
    ByteLockGuard, CawOutcome, Device, DeviceError, DeviceInfo, IscsiDevice, Reservations,
    RingTarget,
};

/// Classes of sizes: the first is up to 1 KiB, each next twice the one before, the last from 64 MiB.
pub const SIZE_CLASSES: usize = 18;
/// The first class begins at two to this power.
const FIRST_CLASS: u32 = 9;

/// Counts of requests, kept while they are issued.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct IoCounters {
    reads: Counter,
    writes: Counter,
    flushes: AtomicU64,
    compare_and_writes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
}

#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicU64,
    ended: AtomicU64,
    nanos: AtomicU64,
    sizes: [AtomicU64; SIZE_CLASSES],
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counter {
    fn count(&self, len: u64) {
        self.bytes.fetch_add(len, Ordering::Relaxed);
        if let Some(class) = self.sizes.get(class_of(len)) {
            one_more(class);
        }
    }
    fn now(&self) -> Traffic {
        let sizes = self.sizes.each_ref().map(|n| n.load(Ordering::Relaxed));
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Traffic {
            bytes: Bytes(of(&self.bytes)),
            sizes,
            ended: of(&self.ended),
            nanos: of(&self.nanos),
        }
    }
}

fn class_of(len: u64) -> usize {
    let class = len.max(1).ilog2().saturating_sub(FIRST_CLASS);
    (class as usize).min(SIZE_CLASSES - 1)
}

impl IoCounters {
    /// A transfer that was issued.
    pub(crate) fn transfer(&self, write: bool, len: usize) {
        (if write { &self.writes } else { &self.reads }).count(len as u64);
    }
    /// A transfer has ended, so long after it was issued.
    pub(crate) fn took(&self, write: bool, time: Duration) {
        let counter = if write { &self.writes } else { &self.reads };
        one_more(&counter.ended);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        counter.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
    /// A flush that was issued.
    pub(crate) fn flush(&self) {
        one_more(&self.flushes);
    }
    /// What was counted so far.
    pub fn now(&self) -> Issued {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Issued {
            reads: self.reads.now(),
            writes: self.writes.now(),
            flushes: of(&self.flushes),
            compare_and_writes: of(&self.compare_and_writes),
            discards: of(&self.discards),
            zeroes: of(&self.zeroes),
        }
    }
}

/// Transfers in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of all of them.
    pub bytes: Bytes,
    /// How many of each class of sizes.
    pub sizes: [u64; SIZE_CLASSES],
    /// How many have ended whose time is known.
    pub ended: u64,
    /// How long these took together, in nanoseconds. Over a stretch of time, divided by it: how
    /// many were under way on average.
    pub nanos: u64,
}

impl Traffic {
    /// How long one took on average; nothing when none is known.
    pub fn latency(&self) -> Option<Duration> {
        self.nanos.checked_div(self.ended).map(Duration::from_nanos)
    }
    /// How many there were.
    pub fn requests(&self) -> u64 {
        self.sizes.iter().sum()
    }
    /// Bytes of one on average; 0 when there was none.
    pub fn mean(&self) -> Bytes {
        Bytes(self.bytes.0.checked_div(self.requests()).unwrap_or(0))
    }
    /// The classes that have any: the least size of the class, and how many.
    pub fn classes(&self) -> impl Iterator<Item = (Bytes, u64)> + '_ {
        let least = (FIRST_CLASS..).map(|power| Bytes(1_u64 << power));
        least.zip(self.sizes).filter(|(_, count)| *count != 0)
    }
    fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let sizes = std::array::from_fn(|i| f(self.sizes[i], other.sizes[i]));
        Self {
            bytes: Bytes(f(self.bytes.0, other.bytes.0)),
            sizes,
            ended: f(self.ended, other.ended),
            nanos: f(self.nanos, other.nanos),
        }
    }
}

impl Display for Traffic {
    /// `1200 requests, 256 KiB on average: 98 % from 256 KiB, 2 % from 4 KiB`
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let all = self.requests();
        if all == 0 {
            return f.write_str("none");
        }
        let size = |b: u64| match b {
            0..0x400 => format!("{b} B"),
            0x400..0x10_0000 => format!("{} KiB", b >> 10),
            _ => format!("{} MiB", b >> 20),
        };
        write!(f, "{all} requests, {} on average:", size(self.mean().0))?;
        let mut classes: Vec<_> = self.classes().collect();
        classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (i, (from, count)) in classes.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match count * 100 / all {
                0 => write!(f, "{comma} {count} from {}", size(from.0))?,
                part => write!(f, "{comma} {part} % from {}", size(from.0))?,
            }
        }
        Ok(())
    }
}

/// What a device was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Issued {
    /// Reads.
    pub reads: Traffic,
    /// Writes.
    pub writes: Traffic,
    /// Flushes.
    pub flushes: u64,
    /// Compare-and-writes.
    pub compare_and_writes: u64,
    /// Discards, those that leave zeros included.
    pub discards: u64,
    /// Zeroed ranges.
    pub zeroes: u64,
}

impl Issued {
    fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            reads: self.reads.each(&other.reads, f),
            writes: self.writes.each(&other.writes, f),
            flushes: f(self.flushes, other.flushes),
            compare_and_writes: f(self.compare_and_writes, other.compare_and_writes),
            discards: f(self.discards, other.discards),
            zeroes: f(self.zeroes, other.zeroes),
        }
    }
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }
    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }
}

/// Passes everything on to another device, and counts it.
#[derive(Debug)]
pub struct CountedDevice {
    inner: Arc<dyn Device>,
    counters: IoCounters,
}

impl CountedDevice {
    /// `inner`, counted; a device that is counted already stays as it is, with its counts.
    pub fn over(inner: Arc<dyn Device>) -> Arc<dyn Device> {
        if inner.counters().is_some() {
            return inner;
        }
        Arc::new(Self { inner, counters: IoCounters::default() })
    }
}

impl Device for CountedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(unit) = self.inner.initiator() {
            return unit.read_counted(at, buf, Some(&self.counters));
        }
        self.counters.transfer(false, buf.len());
        let begun = Instant::now();
        let result = self.inner.read(at, buf);
        self.counters.took(false, begun.elapsed());
        result
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        if let Some(unit) = self.inner.initiator() {
            return unit.write_counted(at, buf, Some(&self.counters));
        }
        self.counters.transfer(true, buf.len());
        let begun = Instant::now();
        let result = self.inner.write(at, buf);
        self.counters.took(true, begun.elapsed());
        result
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.flush();
        self.inner.flush()
    }
    fn intact(&self) -> Result<(), DeviceError> {
        self.inner.intact()
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        one_more(&self.counters.compare_and_writes);
        self.inner.compare_and_write(at, expected, new)
    }
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        one_more(&self.counters.discards);
        self.inner.discard(at, len)
    }
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        one_more(&self.counters.zeroes);
        self.inner.write_zeroes(at, len)
    }
    fn deallocate(&self, at: ByteOffset, len: Bytes) -> Result<bool, DeviceError> {
        one_more(&self.counters.discards);
        self.inner.deallocate(at, len)
    }
    fn as_raw_fd(&self) -> Option<RawFd> {
        self.inner.as_raw_fd()
    }
    fn ring_target(&self) -> Option<RingTarget<'_>> {
        Some(RingTarget { counters: Some(&self.counters), ..self.inner.ring_target()? })
    }
    fn modelled(&self) -> Option<&ModelDevice> {
        self.inner.modelled()
    }
    fn compare_max(&self) -> Bytes {
        self.inner.compare_max()
    }
    fn initiator(&self) -> Option<&IscsiDevice> {
        self.inner.initiator()
    }
    fn unchanged(&self, at: ByteOffset, len: Bytes) -> Option<&dyn Device> {
        self.inner.unchanged(at, len)
    }
    fn sever(&self) {
        self.inner.sever();
    }
    fn lease(&self, until: Instant) {
        self.inner.lease(until);
    }
    fn answers_within(&self, time: std::time::Duration) {
        self.inner.answers_within(time);
    }
    fn reservations(&self) -> Option<&dyn Reservations> {
        self.inner.reservations()
    }
    fn counters(&self) -> Option<&IoCounters> {
        Some(&self.counters)
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.inner.lock_byte(byte)
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.byte_locked(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DiskModel, ModelClock, Rate};
    use crate::{
        AlignedBuf, FileDevice, IoQueue, MemoryDevice, OpenOptions, OwnedOp, Request, run,
    };
    use crate::{Op, Part};

    /// A read and a write of each way of issuing them, on `device`.
    fn every_way(device: &Arc<dyn Device>) -> Issued {
        let before = device.counters().unwrap().now();
        let mut buf = [0; 4096];
        device.read(ByteOffset(0), &mut buf).unwrap();
        device.write(ByteOffset(0), &buf).unwrap();
        device.flush().unwrap();
        device.compare_and_write(ByteOffset(0), &[0; 512], &[0; 512]).unwrap();
        let (mut a, b) = (vec![0; 65536], vec![0; 65536]);
        let request = |op| Request { device: &**device, at: ByteOffset(0), op, result: Ok(()) };
        let mut batch = [request(Op::Read(&mut a)), request(Op::Write(&b)), request(Op::Flush)];
        run(&mut batch);
        assert!(batch.iter().all(|r| r.result.is_ok()));
        run(&mut [request(Op::Read(&mut buf))]);
        let mut queue = IoQueue::new(4).unwrap();
        let part = |at, len| Part { device: device.clone(), at: ByteOffset(at), len: Bytes(len) };
        let parts = [part(0, 512), part(1 << 20, (32 << 10) - 512)];
        for (token, op) in [(0, OwnedOp::Read as fn(_) -> _), (1, OwnedOp::Write as fn(_) -> _)] {
            queue.submit_parts(token, op(AlignedBuf::zeroed(32 << 10)), &parts).unwrap();
        }
        for _ in 0..2 {
            queue.complete().2.unwrap();
        }
        device.counters().unwrap().now().since(&before)
    }

    #[test]
    fn every_way_of_issuing_is_counted_once_on_every_kind_of_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let memory = || MemoryDevice::new("m", Bytes(8 << 20), Bytes(512)) as Arc<dyn Device>;
        let (clock, model) = (ModelClock::virtual_time(), DiskModel::flat(Rate(100_000_000)));
        let modelled = ModelDevice::new(&clock, memory(), model, None).unwrap();
        let file = FileDevice::open(&path, OpenOptions::default()).unwrap();
        for device in [memory(), modelled, file] {
            let device = CountedDevice::over(device);
            let issued = every_way(&device);
            let name = &device.info().engine;
            assert_eq!((issued.reads.requests(), issued.writes.requests()), (5, 4), "{name}");
            let bytes = (32 << 10) + 65536 + 4096;
            assert_eq!((issued.reads.bytes.0, issued.writes.bytes.0), (bytes + 4096, bytes));
            // Modelled disks have a time of their own, which only their methods wait for.
            let known = if *name == "model" { (2, 1) } else { (5, 4) };
            assert_eq!((issued.reads.ended, issued.writes.ended), known, "{name}");
            assert!(issued.reads.latency().is_some_and(|l| l < Duration::from_hours(1)));
            let classes: Vec<_> = issued.reads.classes().map(|(b, n)| (b.0, n)).collect();
            assert_eq!(classes, [(512, 1), (4096, 2), (16384, 1), (65536, 1)], "{name}");
            assert_eq!((issued.flushes, issued.compare_and_writes), (2, 1), "{name}");
            let again = CountedDevice::over(device.clone());
            assert!(Arc::ptr_eq(&again, &device));
        }
    }

    #[test]
    fn classes_are_powers_of_two_and_said_in_order_of_number() {
        let counter = Counter::default();
        for len in [1, 512, 1023, 1024, 4096, 4096, 64 << 20, 1 << 40] {
            counter.count(len);
        }
        let now = counter.now();
        let classes: Vec<_> = now.classes().map(|(b, n)| (b.0, n)).collect();
        assert_eq!(classes, [(512, 3), (1024, 1), (4096, 2), (64 << 20, 2)]);
        let mut some = Traffic::default();
        assert_eq!(some.to_string(), "none");
        some.sizes[9] = 99;
        some.sizes[3] = 1;
        some.bytes = Bytes(99 * 262_144 + 4096);
        let said = "100 requests, 253 KiB on average: 99 % from 256 KiB, 1 % from 4 KiB";
        assert_eq!(some.to_string(), said);
    }
}
