//! A device in memory, for tests.

use std::collections::HashSet;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use parking_lot::{Mutex, RwLock};

use crate::{ByteLockGuard, Capabilities, CawOutcome, Device, DeviceError, DeviceInfo};

/// A device in memory. Every write is durable at once.
pub struct MemoryDevice {
    info: DeviceInfo,
    bytes: RwLock<Vec<u8>>,
    held: Arc<Mutex<HashSet<u64>>>,
}
impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDevice({})", self.info.name)
    }
}
impl MemoryDevice {
    /// A device of `size` zero bytes.
    pub fn new(name: &str, size: Bytes, sector: Bytes) -> Arc<Self> {
        Arc::new(Self {
            info: DeviceInfo {
                name: name.to_owned(),
                size,
                sector,
                physical_sector: sector,
                is_block: false,
                read_only: false,
                rotational: Some(false),
                caps: Capabilities {
                    compare_and_write: true,
                    write_zeroes: true,
                    discard: true,
                    atomic_write: sector,
                    ..Capabilities::default()
                },
                engine: "memory",
            },
            bytes: RwLock::new(vec![0; size.to_usize()]),
            held: Arc::default(),
        })
    }
    fn range(&self, at: ByteOffset, len: usize) -> Result<std::ops::Range<usize>, DeviceError> {
        let device: Arc<str> = self.info.name.as_str().into();
        let (sector, bytes) = (self.info.sector.get(), Bytes::from(len));
        if at.get() % sector != 0 || bytes.get() % sector != 0 {
            return Err(DeviceError::Unaligned { device, at, len: bytes });
        }
        match at.checked_add(bytes) {
            Some(end) if end.get() <= self.info.size.get() => {
                let start = Bytes(at.get()).to_usize();
                Ok(start..start + len)
            }
            _ => Err(DeviceError::OutOfRange { device, at, len: bytes }),
        }
    }
}
struct Held(Arc<Mutex<HashSet<u64>>>, u64);
impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}
impl Device for MemoryDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = self.range(at, buf.len())?;
        buf.copy_from_slice(&self.bytes.read()[range]);
        Ok(())
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        let range = self.range(at, buf.len())?;
        self.bytes.write()[range].copy_from_slice(buf);
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        let range = self.range(at, new.len())?;
        let mut bytes = self.bytes.write();
        let slot = &mut bytes[range];
        if slot == expected {
            slot.copy_from_slice(new);
            Ok(CawOutcome::Written)
        } else {
            Ok(CawOutcome::Mismatch(slot.to_vec()))
        }
    }
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.write_zeroes(at, len)
    }
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        let range = self.range(at, len.to_usize())?;
        self.bytes.write()[range].fill(0);
        Ok(())
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        let fresh = self.held.lock().insert(byte);
        Ok(fresh.then(|| ByteLockGuard(Box::new(Held(self.held.clone(), byte)))))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        Ok(self.held.lock().contains(&byte))
    }
}
