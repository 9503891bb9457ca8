//! A device that counts what it is asked for.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use braid_format::{ByteOffset, Bytes};

use crate::model::ModelDevice;
use crate::traffic::{IoCounters, one_more};
use crate::{
    ByteLockGuard, CawOutcome, Device, DeviceError, DeviceInfo, IscsiDevice, Reservations,
    RingTarget,
};

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
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.byte_held(byte)
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.settle_byte(byte)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Issued;
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
}
