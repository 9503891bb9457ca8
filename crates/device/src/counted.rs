//! A device that counts what it is asked for.

#![expect(
    clippy::inline_always,
    reason = "measured: a command by name then costs as much as a method did"
)]

use std::sync::Arc;
use std::time::Instant;

use braid_format::{ByteOffset, Bytes};

use crate::tasks::{self, Awaited, DeviceKey};
use crate::traffic::IoCounters;
use crate::{Abilities, Command, Completion, Device, DeviceError, DeviceInfo, Route};

/// Passes everything on to another device, and counts it.
#[derive(Debug)]
pub struct CountedDevice {
    inner: Arc<dyn Device>,
    under: Under,
    counters: IoCounters,
}

/// What is known of the device below, so that it is not asked each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Under {
    /// All its requests come by its `submit`.
    Plain,
    /// A unit of a target: transfers are counted as the commands that they become.
    Unit,
    Other,
}

impl CountedDevice {
    /// `inner`, counted; a device that is counted already stays as it is, with its counts.
    pub fn over(inner: Arc<dyn Device>) -> Arc<dyn Device> {
        if inner.abilities().counters.is_some() {
            return inner;
        }
        let under = match inner.route() {
            Route::Submit => Under::Plain,
            Route::Unit(_) => Under::Unit,
            Route::Ring(_) | Route::Timed(..) | Route::Threads(..) => Under::Other,
        };
        Arc::new(Self { inner, under, counters: IoCounters::default() })
    }
    /// A read or a write, and how long it takes.
    #[inline(always)]
    fn transfer(
        &self,
        at: ByteOffset,
        command: Command<'_>,
        write: bool,
    ) -> Result<Completion, DeviceError> {
        if self.under == Under::Unit
            && let Route::Unit(unit) = self.inner.route()
        {
            return unit.counted(&self.counters).submit(at, command);
        }
        self.counters.transfer(write, command.len().to_usize());
        let begun = Instant::now();
        let result = self.inner.submit(at, command);
        self.counters.took(write, begun.elapsed());
        self.counters.failed_if(&result);
        result
    }
}

impl Device for CountedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    #[inline(always)]
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let _waits = tasks::wait(Awaited::Device(DeviceKey::of(self.inner.info())));
        match &command {
            Command::Read(_) => return self.transfer(at, command, false),
            Command::Write(_) => return self.transfer(at, command, true),
            other => self.counters.other(other),
        }
        let result = self.inner.submit(at, command);
        self.counters.failed_if(&result);
        result
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities { counters: Some(&self.counters), ..self.inner.abilities() }
    }
    fn route(&self) -> Route<'_> {
        match self.under {
            Under::Plain => Route::Submit,
            Under::Unit | Under::Other => self.inner.route().counted(&self.counters),
        }
    }
    fn unchanged(&self, at: ByteOffset, len: Bytes) -> Option<&dyn Device> {
        self.inner.unchanged(at, len)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Issued;
    use crate::model::{DiskModel, ModelClock, Rate};
    use crate::modelled::ModelDevice;
    use crate::{
        AlignedBuf, FileDevice, IoQueue, MemoryDevice, OpenOptions, OwnedOp, Request, run,
    };
    use crate::{Op, Part};

    /// A read and a write of each way of issuing them, on `device`.
    fn every_way(device: &Arc<dyn Device>) -> Issued {
        let before = device.abilities().counters.unwrap().now();
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
        device.abilities().counters.unwrap().now().since(&before)
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
            assert_eq!((issued.reads.ended(), issued.writes.ended()), known, "{name}");
            assert!(issued.reads.latency().is_some_and(|l| l < Duration::from_hours(1)));
            let classes: Vec<_> = issued.reads.classes().map(|(b, n)| (b.0, n)).collect();
            assert_eq!(classes, [(512, 1), (4096, 2), (16384, 1), (65536, 1)], "{name}");
            assert_eq!((issued.flushes, issued.compare_and_writes), (2, 1), "{name}");
            let again = CountedDevice::over(device.clone());
            assert!(Arc::ptr_eq(&again, &device));
        }
    }
}
