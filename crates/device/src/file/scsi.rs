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
use crate::scsi::{ScsiError, SgIo, Unit, first_block, settle};
use crate::{CAW_MAX, CawOutcome, Device, DeviceError};

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
        let attempt = || {
            let written = self.unit.compare_and_write(block, self.sector, expected, new);
            written.map_err(|e| error(device, at, e))
        };
        let settled = settle(device, at, expected, attempt)?;
        settled.ok_or_else(|| error(device, at, ScsiError::Busy))
    }
}

fn error(device: &FileDevice, at: ByteOffset, e: ScsiError) -> DeviceError {
    const OPERATION: &str = "compare-and-write";
    match e {
        ScsiError::Conflict => DeviceError::Fenced { device: device.info().name.as_str().into() },
        ScsiError::Io(e) => device.wrap(OPERATION, at, e),
        e => device.wrap(OPERATION, at, io::Error::other(e)),
    }
}
