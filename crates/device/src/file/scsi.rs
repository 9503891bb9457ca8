//! A kernel's SCSI disk: what it does by commands of its own.
//!
//! COMPARE AND WRITE is atomic among all hosts, so a disk that has it is never used without.
//! Persistent reservations are not used: a registration belongs to the path from this host to the
//! disk, and all that have the disk open here share one.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

use super::FileDevice;
use crate::scsi::{ScsiError, SgIo, Unit, first_block};
use crate::{CAW_MAX, CawOutcome, Device, DeviceError};

/// Most times that a miscompare is followed by reading what was expected.
const TRIES_MAX: u32 = 64;

/// A SCSI disk, or a partition of one.
#[derive(Debug)]
pub(super) struct ScsiDisk {
    unit: Unit<SgIo>,
    /// Where it begins on its disk.
    start: Bytes,
    sector: Bytes,
}

impl ScsiDisk {
    /// Asks the block device whose directory in sysfs this is; `None` if it is no SCSI disk, or
    /// does not compare and write.
    pub fn find(sysfs: &Path, file: &Arc<File>, sector: Bytes) -> Result<Option<Self>, ScsiError> {
        let Some(first) = first_block(sysfs) else { return Ok(None) };
        let unit = Unit::probe(SgIo(file.clone()))?;
        Ok(unit.map(|unit| Self { unit, start: Bytes(first * 512), sector }))
    }
    pub fn compare_and_write(
        &self,
        device: &FileDevice,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        let most = Bytes(u64::from(self.unit.compare_max()) * self.sector.get()).min(CAW_MAX);
        if Bytes::from(new.len()) > most {
            let (device, len) = (device.info().name.as_str().into(), Bytes::from(new.len()));
            return Err(DeviceError::NoCompareAndWrite { device, most, len });
        }
        let block = (self.start.get() + at.get()) / self.sector.get();
        for _ in 0..TRIES_MAX {
            let written = self.unit.compare_and_write(block, self.sector, expected, new);
            if written.map_err(|e| error(device, "compare-and-write", e))? {
                return Ok(CawOutcome::Written);
            }
            let mut found = vec![0; new.len()];
            device.read(at, &mut found)?;
            // Else it became what was expected meanwhile: once more.
            if found != expected {
                return Ok(CawOutcome::Mismatch(found));
            }
        }
        Err(error(device, "compare-and-write", ScsiError::Busy))
    }
}

fn error(device: &FileDevice, operation: &'static str, e: ScsiError) -> DeviceError {
    match e {
        ScsiError::Conflict => DeviceError::Fenced { device: device.info().name.as_str().into() },
        ScsiError::Io(e) => device.wrap(operation, ByteOffset(0), e),
        e => device.wrap(operation, ByteOffset(0), io::Error::other(e)),
    }
}
