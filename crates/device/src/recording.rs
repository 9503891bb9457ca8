//! A device that remembers what was done to it, so that a crash after any write can be replayed.

use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use parking_lot::Mutex;

use crate::random::survivors;
use crate::{
    Abilities, AlignedBuf, Command, Completion, Device, DeviceError, DeviceInfo, MemoryDevice,
};

/// Read at once when the first image is taken.
const PIECE: u64 = 1 << 20;

/// What was done to the device, in the order in which it completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written: by a write or by a compare-and-write that matched.
    Write {
        /// Where.
        at: ByteOffset,
        /// What.
        data: Arc<[u8]>,
    },
    /// A range was zeroed.
    Zero {
        /// Where.
        at: ByteOffset,
        /// How much.
        len: Bytes,
    },
    /// Everything before is durable.
    Flush,
}

impl Event {
    /// What a command that was done has done.
    fn of(at: ByteOffset, command: &Command<'_>) -> Option<Self> {
        match command {
            Command::Write(data) | Command::CompareAndWrite { new: data, .. } => {
                Some(Self::Write { at, data: (*data).into() })
            }
            Command::WriteZeroes(len) | Command::Deallocate(len) => {
                Some(Self::Zero { at, len: *len })
            }
            Command::Flush => Some(Self::Flush),
            Command::Read(_) | Command::Discard(_) => None,
        }
    }
}

/// A device over another that records writes and flushes. Operations go one after the other, so
/// that the record is what happened.
#[derive(Debug)]
pub struct RecordingDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    /// The inner device's bytes when recording began.
    base: Arc<MemoryDevice>,
    events: Mutex<Vec<Event>>,
}

impl RecordingDevice {
    /// Records what is done to `inner` from now on.
    ///
    /// # Errors
    /// `inner` cannot be read.
    pub fn new(inner: Arc<dyn Device>) -> Result<Arc<Self>, DeviceError> {
        let info = DeviceInfo { engine: "recording", ..inner.info().clone() };
        let base = MemoryDevice::in_place_of(&info);
        let mut at = ByteOffset(0);
        while at.get() < info.size.get() {
            let len = Bytes((info.size.get() - at.get()).min(PIECE));
            let mut buf = AlignedBuf::zeroed(len.to_usize());
            inner.read(at, &mut buf)?;
            if buf.iter().any(|b| *b != 0) {
                base.write(at, &buf)?;
            }
            at = at + len;
        }
        Ok(Arc::new(Self { inner, info, base, events: Mutex::default() }))
    }
    /// Events recorded so far.
    pub fn len(&self) -> usize {
        self.events.lock().len()
    }
    /// Whether nothing was recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The record so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
    /// The device as it was after the first `n` events, all of them in place.
    pub fn image_after(&self, n: usize) -> Arc<MemoryDevice> {
        let mut replay = self.replay();
        while replay.position() < n && replay.step().is_some() {}
        replay.image()
    }
    /// The device after a power cut behind the first `n` events: what was flushed is there, of the
    /// rest an arbitrary subset, some of it torn between sectors. The same seed, the same subset.
    pub fn crash_after(&self, n: usize, seed: u64) -> Arc<MemoryDevice> {
        let mut replay = self.replay();
        while replay.position() < n && replay.step().is_some() {}
        replay.crash_image(seed)
    }
    /// A walk through the record.
    pub fn replay(&self) -> Replay {
        Replay {
            events: self.events(),
            next: 0,
            flushed: 0,
            image: self.base.fork(&self.info.name),
            durable: self.base.fork(&self.info.name),
        }
    }
}

/// A walk through a record, one event at a time. Images share the bytes that no later event
/// changes, so one per step is cheap.
#[derive(Debug)]
pub struct Replay {
    events: Vec<Event>,
    next: usize,
    /// Events up to the last flush.
    flushed: usize,
    image: Arc<MemoryDevice>,
    durable: Arc<MemoryDevice>,
}

impl Replay {
    /// Events done.
    pub fn position(&self) -> usize {
        self.next
    }
    /// Does the next event; `None` at the end.
    pub fn step(&mut self) -> Option<&Event> {
        let event = self.events.get(self.next)?;
        self.next += 1;
        match event {
            Event::Write { at, data } => put(&self.image, *at, data),
            Event::Zero { at, len } => zero(&self.image, *at, *len),
            Event::Flush => {
                self.durable = self.image.fork(&self.image.info().name);
                self.flushed = self.next;
            }
        }
        Some(event)
    }
    /// The device with all events so far in place.
    pub fn image(&self) -> Arc<MemoryDevice> {
        self.image.fork(&self.image.info().name)
    }
    /// The device after a power cut here: see [`RecordingDevice::crash_after`].
    pub fn crash_image(&self, seed: u64) -> Arc<MemoryDevice> {
        let image = self.durable.fork(&self.image.info().name);
        let size = image.info().sector.to_usize();
        let open = self.events.get(self.flushed..self.next).unwrap_or_default();
        let sectors = |n: usize| match &open[n] {
            Event::Write { data, .. } => data.len() / size,
            Event::Zero { len, .. } => len.to_usize() / size,
            Event::Flush => 0,
        };
        survivors(seed, open.len(), sectors, |n, kept| {
            let (from, to) = (kept.start * size, kept.end * size);
            match &open[n] {
                Event::Write { at, data } => put(&image, *at + Bytes::from(from), &data[from..to]),
                Event::Zero { at, .. } => {
                    zero(&image, *at + Bytes::from(from), Bytes::from(to - from));
                }
                Event::Flush => {}
            }
        });
        image
    }
}

/// Events are recorded only when the inner device, of the same size, took them.
fn put(image: &MemoryDevice, at: ByteOffset, data: &[u8]) {
    image.write(at, data).expect("a recorded write is in range");
}
fn zero(image: &MemoryDevice, at: ByteOffset, len: Bytes) {
    image.write_zeroes(at, len).expect("a recorded zeroing is in range");
}

impl Device for RecordingDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, mut command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(_) => return self.inner.submit(at, command),
            // What a discarded range reads as is not defined: leaving it is one of the ways.
            Command::Discard(len) => {
                return self.info.check(at, len).map(|()| Completion::Done);
            }
            _ => {}
        }
        let mut events = self.events.lock();
        let completion = self.inner.submit(at, command.again())?;
        if completion == Completion::Done {
            events.extend(Event::of(at, &command));
        }
        Ok(completion)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self.inner.abilities().locks)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::CawOutcome;

    fn at(d: &dyn Device, sector: u64) -> u8 {
        let mut buf = [0; 512];
        d.read(ByteOffset(sector * 512), &mut buf).unwrap();
        buf[0]
    }
    fn recorded() -> Arc<RecordingDevice> {
        let memory = MemoryDevice::new("m", Bytes(4 << 20), Bytes(512));
        memory.write(ByteOffset(0), &[9; 512]).unwrap();
        let d = RecordingDevice::new(memory).unwrap();
        d.write(ByteOffset(512), &[1; 512]).unwrap();
        d.flush().unwrap();
        d.write(ByteOffset(1024), &[2; 1024]).unwrap();
        let caw = d.compare_and_write(ByteOffset(512), &[1; 512], &[3; 512]).unwrap();
        assert_eq!(caw, CawOutcome::Written);
        d.compare_and_write(ByteOffset(512), &[1; 512], &[4; 512]).unwrap();
        d.write_zeroes(ByteOffset(0), Bytes(512)).unwrap();
        d
    }

    #[test]
    fn every_prefix_can_be_had() {
        let d = recorded();
        assert_eq!(d.len(), 5, "a mismatch is not a write");
        let expected =
            [[9, 0, 0, 0], [9, 1, 0, 0], [9, 1, 0, 0], [9, 1, 2, 2], [9, 3, 2, 2], [0, 3, 2, 2]];
        for (n, expected) in expected.into_iter().enumerate() {
            let image = d.image_after(n);
            let seen: [u8; 4] = std::array::from_fn(|s| at(&*image, s as u64));
            assert_eq!(seen, expected, "after {n} events");
        }
    }
    #[test]
    fn a_crash_keeps_what_was_flushed_and_any_subset_of_the_rest() {
        let d = recorded();
        let mut outcomes = HashSet::new();
        for seed in 0..4096 {
            let image = d.crash_after(5, seed);
            let seen: [u8; 4] = std::array::from_fn(|s| at(&*image, s as u64));
            assert_ne!(seen[1], 0, "flushed");
            outcomes.insert(seen);
        }
        assert_eq!(outcomes.len(), 2 * 2 * 2 * 2, "{outcomes:?}");
    }
}
