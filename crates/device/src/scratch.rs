//! A device whose changes nobody else sees, and that end with it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use parking_lot::RwLock;

use crate::{Abilities, Command, Completion, Device, DeviceError, DeviceInfo};

/// Bytes that are kept, at most.
const KEPT_MAX: Bytes = Bytes(512 << 20);

/// Reads from another device, and never writes to it: what is written stays in memory. Liveness
/// bytes are the other's; reservations it has none.
pub struct ScratchDevice {
    inner: Arc<dyn Device>,
    /// Sectors that were written, by number.
    kept: RwLock<BTreeMap<u64, Box<[u8]>>>,
}
impl std::fmt::Debug for ScratchDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScratchDevice({})", self.inner.info().name)
    }
}

impl ScratchDevice {
    /// What `inner` holds, to be changed in memory.
    pub fn over(inner: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Self { inner, kept: RwLock::default() })
    }
    fn sector(&self) -> u64 {
        self.inner.info().sector.get()
    }
    /// Numbers of the sectors of a range.
    fn sectors(&self, at: ByteOffset, len: Bytes) -> std::ops::Range<u64> {
        at.get() / self.sector()..(at.get() + len.get()) / self.sector()
    }
    /// As [`Device::read`] of a range that was checked, with what is kept already locked.
    fn read_with(
        &self,
        kept: &BTreeMap<u64, Box<[u8]>>,
        at: ByteOffset,
        buf: &mut [u8],
    ) -> Result<(), DeviceError> {
        let range = self.sectors(at, Bytes::from(buf.len()));
        let first = range.start;
        let here = kept.range(range.clone());
        // What is kept may have been written because it could not be read.
        if here.clone().count() as u64 != range.end - range.start {
            self.inner.read(at, buf)?;
        }
        let sector = Bytes(self.sector()).to_usize();
        for (n, bytes) in here {
            let from = Bytes((n - first) * self.sector()).to_usize();
            if let Some(to) = buf.get_mut(from..from + sector) {
                to.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
    fn keep(
        &self,
        kept: &mut BTreeMap<u64, Box<[u8]>>,
        at: ByteOffset,
        buf: &[u8],
    ) -> Result<(), DeviceError> {
        let sector = Bytes(self.sector()).to_usize();
        for (n, bytes) in (at.get() / self.sector()..).zip(buf.chunks_exact(sector)) {
            if (kept.len() as u64 + 1) * self.sector() > KEPT_MAX.get() && !kept.contains_key(&n) {
                let why = "more would have to be changed than is kept in memory";
                return Err(DeviceError::Io {
                    device: self.info().name.as_str().into(),
                    operation: "write",
                    at,
                    source: Arc::new(io::Error::new(io::ErrorKind::StorageFull, why)),
                });
            }
            kept.insert(n, bytes.into());
        }
        Ok(())
    }
    fn compare(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<Completion, DeviceError> {
        self.info().check_caw(at, expected, new)?;
        let mut kept = self.kept.write();
        let mut stands = vec![0; new.len()];
        self.read_with(&kept, at, &mut stands)?;
        if stands != expected {
            return Ok(Completion::Mismatch(stands));
        }
        self.keep(&mut kept, at, new)?;
        Ok(Completion::Done)
    }
}

impl Device for ScratchDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        if matches!(command, Command::Flush) {
            return Ok(Completion::Done);
        }
        self.info().check(at, command.len())?;
        match command {
            Command::Read(buf) => self.read_with(&self.kept.read(), at, buf)?,
            Command::Write(buf) => self.keep(&mut self.kept.write(), at, buf)?,
            Command::CompareAndWrite { expected, new } => return self.compare(at, expected, new),
            Command::WriteZeroes(len) => {
                let zeros = vec![0; Bytes(self.sector()).to_usize()];
                let mut kept = self.kept.write();
                self.sectors(at, len).try_for_each(|n| {
                    self.keep(&mut kept, ByteOffset(n * self.sector()), &zeros)
                })?;
            }
            Command::Deallocate(_) => return Ok(Completion::Unsupported),
            Command::Discard(_) | Command::Flush => {}
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self.inner.abilities().locks)
    }
    fn unchanged(&self, at: ByteOffset, len: Bytes) -> Option<&dyn Device> {
        self.info().check(at, len).ok()?;
        let none = self.kept.read().range(self.sectors(at, len)).next().is_none();
        none.then_some(&*self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CawOutcome, MemoryDevice, Op, Request, run};

    #[test]
    fn what_is_written_is_read_again_and_stands_nowhere_else() {
        let below = MemoryDevice::new("m", Bytes(1 << 20), Bytes(512));
        below.write(ByteOffset(0), &[1; 4096]).unwrap();
        let device = ScratchDevice::over(below.clone());
        device.write(ByteOffset(512), &[2; 1024]).unwrap();
        device.write_zeroes(ByteOffset(2048), Bytes(512)).unwrap();
        let outcome = device.compare_and_write(ByteOffset(0), &[1; 512], &[3; 512]).unwrap();
        assert_eq!(outcome, CawOutcome::Written);
        let outcome = device.compare_and_write(ByteOffset(0), &[1; 512], &[4; 512]).unwrap();
        assert_eq!(outcome, CawOutcome::Mismatch(vec![3; 512]));
        let expected: Vec<u8> =
            [3, 2, 2, 1, 0, 1, 1, 1].into_iter().flat_map(|b| [b; 512]).collect();
        let (mut one, mut many) = (vec![9; 4096], vec![vec![9; 512]; 8]);
        device.read(ByteOffset(0), &mut one).unwrap();
        assert!(one == expected);
        let mut requests: Vec<_> = (0_u64..)
            .zip(&mut many)
            .map(|(i, buf)| Request::new(&*device, ByteOffset(i * 512), Op::Read(buf)))
            .collect();
        run(&mut requests);
        assert!(requests.iter().all(|r| r.result.is_ok()));
        assert!(many.concat() == expected);
        let mut there = vec![0; 4096];
        below.read(ByteOffset(0), &mut there).unwrap();
        assert_eq!(there, [1; 4096]);
    }
}
