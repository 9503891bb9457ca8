//! A device in memory, for tests.

#![expect(
    clippy::inline_always,
    reason = "measured: a command by name then costs as much as a method did"
)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::node::LockPlace;
use braid_format::{ByteOffset, Bytes};
use parking_lot::{Mutex, RwLock};

use crate::abilities::HeldByte;
use crate::{
    Abilities, ByteLockGuard, CAW_MAX, Capabilities, Command, Completion, Device, DeviceError,
    DeviceInfo, LivenessLocks,
};

/// Bytes that are allocated, and copied when a fork changes them, at once. A multiple of
/// [`crate::CAW_MAX`].
const CHUNK: usize = 64 << 10;

/// `None` reads as zeros.
type Chunk = RwLock<Option<Arc<[u8]>>>;

/// A device in memory. Every write is durable at once and, within 64 KiB, never seen half done.
/// Only what is not zero takes memory, and a [`MemoryDevice::fork`] shares what neither changes.
pub struct MemoryDevice {
    info: DeviceInfo,
    chunks: Vec<Chunk>,
    held: Arc<Mutex<HashSet<u64>>>,
}
impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDevice({})", self.info.name)
    }
}

impl MemoryDevice {
    /// A device of `size` zero bytes.
    ///
    /// # Panics
    /// If `sector` is not 512 or 4096, or `size` not a multiple of it.
    pub fn new(name: &str, size: Bytes, sector: Bytes) -> Arc<Self> {
        Arc::new(Self::plain(name, size, sector))
    }
    fn plain(name: &str, size: Bytes, sector: Bytes) -> Self {
        assert!(matches!(sector.get(), 512 | 4096), "a sector is 512 or 4096 bytes");
        assert!(size.get().is_multiple_of(sector.get()), "a device is whole sectors");
        let chunks = size.to_usize().div_ceil(CHUNK);
        Self {
            info: DeviceInfo {
                name: name.to_owned(),
                size,
                sector,
                physical_sector: sector,
                is_block: false,
                is_path: false,
                read_only: false,
                rotational: Some(false),
                caps: Capabilities {
                    compare_and_write: CAW_MAX,
                    write_zeroes: true,
                    discard: true,
                    deallocate: true,
                    atomic_write: sector,
                },
                engine: "memory",
                lock_place: Some(fresh_place()),
                emulates_compare_and_write: true,
            },
            chunks: (0..chunks).map(|_| RwLock::new(None)).collect(),
            held: Arc::default(),
        }
    }
    /// A device of zeros that stands for the one with `info`: its name, its size, its sectors, and the
    /// place of its locks. With that one's bytes it is that device after every process that had it
    /// open has died.
    ///
    /// # Panics
    /// As [`MemoryDevice::new`].
    pub fn in_place_of(info: &DeviceInfo) -> Arc<Self> {
        let Self { chunks, held, info: plain } = Self::plain(&info.name, info.size, info.sector);
        let lock_place = info.lock_place.or(plain.lock_place);
        Arc::new(Self { info: DeviceInfo { lock_place, ..plain }, chunks, held })
    }
    /// As [`MemoryDevice::new`], but says that it writes `physical` bytes at a time.
    ///
    /// # Panics
    /// As [`MemoryDevice::new`]; if `physical` is not a multiple of `sector`.
    pub fn emulating(name: &str, size: Bytes, sector: Bytes, physical: Bytes) -> Arc<Self> {
        assert!(physical.get().is_multiple_of(sector.get()), "a physical sector is whole sectors");
        let Self { info, chunks, held } = Self::plain(name, size, sector);
        Arc::new(Self { info: DeviceInfo { physical_sector: physical, ..info }, chunks, held })
    }
    /// The same device at a later time, when every process that had it open has died: it has the same
    /// bytes and the same place of locks, nobody holds its liveness bytes, and it goes its own way from
    /// here. Cheap: bytes are shared until one of the two changes them. Writes under way at the
    /// same time may be in it in part.
    pub fn fork(&self, name: &str) -> Arc<Self> {
        Arc::new(Self {
            info: DeviceInfo { name: name.to_owned(), ..self.info.clone() },
            chunks: self.chunks.iter().map(|c| RwLock::new(c.read().clone())).collect(),
            held: Arc::default(),
        })
    }
    /// The chunks of a checked range: chunk, range in it, range in the request.
    fn pieces(
        &self,
        at: ByteOffset,
        len: usize,
    ) -> impl Iterator<Item = (&Chunk, Range<usize>, Range<usize>)> {
        let start = Bytes(at.get()).to_usize();
        let mut done = 0;
        std::iter::from_fn(move || {
            let here = start + done;
            let (chunk, from) = (self.chunks.get(here / CHUNK)?, here % CHUNK);
            let now = (len - done).min(CHUNK - from);
            let piece = (chunk, from..from + now, done..done + now);
            done += now;
            (now != 0).then_some(piece)
        })
    }
}

/// No other device's.
fn fresh_place() -> LockPlace {
    static DEVICES: AtomicU64 = AtomicU64::new(1);
    LockPlace { kernel: 0, device: 0, inode: DEVICES.fetch_add(1, Ordering::Relaxed) }
}

/// The bytes to change: a fresh chunk, or the device's own copy.
fn own(chunk: &mut Option<Arc<[u8]>>) -> &mut [u8] {
    Arc::make_mut(chunk.get_or_insert_with(|| vec![0; CHUNK].into()))
}

/// Looked at in pieces, each without a branch inside.
fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|piece| piece.iter().fold(0, |all, b| all | b) == 0)
}

struct LivenessByte(Arc<Mutex<HashSet<u64>>>, u64);
impl HeldByte for LivenessByte {}
impl Drop for LivenessByte {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl MemoryDevice {
    #[inline(always)]
    fn fill(&self, at: ByteOffset, buf: &mut [u8]) {
        for (chunk, range, to) in self.pieces(at, buf.len()) {
            match &*chunk.read() {
                Some(bytes) => buf[to].copy_from_slice(&bytes[range]),
                None => buf[to].fill(0),
            }
        }
    }
    #[inline(always)]
    fn store(&self, at: ByteOffset, buf: &[u8]) {
        for (chunk, range, from) in self.pieces(at, buf.len()) {
            let (mut chunk, bytes) = (chunk.write(), &buf[from]);
            // Zeros where there are none but zeros take no memory.
            if chunk.is_some() || !all_zero(bytes) {
                own(&mut chunk)[range].copy_from_slice(bytes);
            }
        }
    }
    fn zero(&self, at: ByteOffset, len: Bytes) {
        for (chunk, range, _) in self.pieces(at, len.to_usize()) {
            let mut chunk = chunk.write();
            if range.len() == CHUNK {
                *chunk = None;
            } else if chunk.is_some() {
                own(&mut chunk)[range].fill(0);
            }
        }
    }
    #[inline(always)]
    fn compare(&self, at: ByteOffset, expected: &[u8], new: &[u8]) -> Completion {
        // Aligned to itself and not longer than a chunk: one piece.
        let Some((chunk, range, _)) = self.pieces(at, new.len()).next() else {
            return Completion::Done;
        };
        let mut chunk = chunk.write();
        let stands = &mut own(&mut chunk)[range];
        if stands != expected {
            return Completion::Mismatch(stands.to_vec());
        }
        stands.copy_from_slice(new);
        Completion::Done
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    #[inline(always)]
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(buf) => {
                self.info.check(at, Bytes::from(buf.len()))?;
                self.fill(at, buf);
            }
            Command::Write(buf) => {
                self.info.check(at, Bytes::from(buf.len()))?;
                self.store(at, buf);
            }
            Command::Flush => {}
            Command::Discard(len) | Command::WriteZeroes(len) | Command::Deallocate(len) => {
                self.info.check(at, len)?;
                self.zero(at, len);
            }
            Command::CompareAndWrite { expected, new } => {
                self.info.check_caw(at, expected, new)?;
                return Ok(self.compare(at, expected, new));
            }
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self)
    }
}

impl LivenessLocks for MemoryDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        let fresh = self.held.lock().insert(byte);
        Ok(fresh.then(|| ByteLockGuard::new(LivenessByte(self.held.clone(), byte))))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        Ok(self.held.lock().contains(&byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_cross_chunks_and_forks_go_their_own_way() {
        let a = MemoryDevice::new("a", Bytes(1 << 20), Bytes(512));
        let data: Vec<u8> = (0..200_704_u32).map(|i| (i % 251) as u8).collect();
        let at = ByteOffset(CHUNK as u64 - 1024);
        a.write(at, &data).unwrap();
        let b = a.fork("b");
        a.write_zeroes(at, Bytes::from(data.len())).unwrap();
        let mut back = vec![1; data.len()];
        a.read(at, &mut back).unwrap();
        assert!(back.iter().all(|x| *x == 0));
        b.read(at, &mut back).unwrap();
        assert!(back == data);
        assert_eq!(b.info().name, "b");
    }
    #[test]
    fn ranges_are_checked() {
        let a = MemoryDevice::new("a", Bytes(1 << 20), Bytes(512));
        let mut buf = [0; 512];
        let unaligned = a.read(ByteOffset(1), &mut buf);
        assert!(matches!(unaligned, Err(DeviceError::Unaligned { .. })));
        let short = a.write(ByteOffset(0), &buf[..100]);
        assert!(matches!(short, Err(DeviceError::Unaligned { .. })));
        let past = a.read(ByteOffset(1 << 20), &mut buf);
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })));
        let wrap = a.write_zeroes(ByteOffset(u64::MAX - 511), Bytes(1024));
        assert!(matches!(wrap, Err(DeviceError::OutOfRange { .. })));
        let long = a.compare_and_write(ByteOffset(0), &[0; 8192], &[0; 8192]);
        assert!(matches!(long, Err(DeviceError::Unaligned { .. })));
    }
    #[test]
    fn liveness_bytes_exclude() {
        let a = MemoryDevice::new("a", Bytes(1 << 20), Bytes(512));
        let guard = a.abilities().locks.lock_byte(3).unwrap();
        assert!(guard.is_some() && a.abilities().locks.byte_locked(3).unwrap());
        assert!(a.abilities().locks.lock_byte(3).unwrap().is_none());
        drop(guard);
        assert!(!a.abilities().locks.byte_locked(3).unwrap());
    }
}
