//! A kernel's SCSI disk: what it does by commands of its own.
//!
//! COMPARE AND WRITE is atomic among all hosts, so a disk that has it is never used without.
//! Persistent reservations are of the whole disk, and of this host's path to it, which all that have
//! the disk open here share: see [`PathReservations`]. A partition has none.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

use crate::block::{has_volatile_cache, is_partition};
use crate::scsi::{PathReservations, ScsiError, SgIo, Unit, first_block, retry_until_compared};
use crate::{CAW_MAX, CawOutcome, Device, DeviceError, Reservations};

/// A SCSI disk, or a partition of one.
#[derive(Debug)]
pub(super) struct ScsiDisk {
    unit: Arc<Unit<SgIo>>,
    reservations: Option<PathReservations<SgIo>>,
    /// Where it begins on its disk.
    start: Bytes,
    sector: Bytes,
}

impl ScsiDisk {
    /// Asks the block device whose directory in sysfs this is, opened by the kernel's own node or by
    /// another; `None` if it is no SCSI disk, or does not compare and write.
    pub fn find(
        (sysfs, name, is_kernels_node): (&Path, &str, bool),
        file: &Arc<File>,
        sector: Bytes,
    ) -> Result<Option<Self>, ScsiError> {
        let Some(first) = first_block(sysfs) else { return Ok(None) };
        let Some(unit) = Unit::probe(SgIo(file.clone()))? else { return Ok(None) };
        let unit = Arc::new(unit.with_cache(has_volatile_cache(sysfs)));
        let why_not = if is_partition(sysfs) {
            Some("it is a partition, and reservations are of whole disks")
        } else if !is_kernels_node {
            Some("its node in /dev is not the kernel's own (devtmpfs): others here may use another")
        } else {
            None
        };
        let reservations = if let Some(why) = why_not {
            tracing::warn!("{name}: nodes are not fenced by reservation of it: {why}");
            None
        } else {
            PathReservations::find(unit.clone(), name, file.clone())?
        };
        Ok(Some(Self { unit, reservations, start: Bytes(first * 512), sector }))
    }
    /// A disk that has lost its cache since it was opened.
    #[cfg(test)]
    pub fn without_its_cache(file: &Arc<File>) -> Self {
        let unit = Arc::new(Unit::without_its_cache(SgIo(file.clone())));
        Self { unit, reservations: None, start: Bytes(0), sector: Bytes(512) }
    }
    pub fn reservations(&self) -> Option<&dyn Reservations> {
        Some(self.reservations.as_ref()?)
    }
    /// Most bytes of one compare-and-write.
    pub fn compare_max(&self) -> Bytes {
        Bytes(u64::from(self.unit.compare_max()) * self.sector.get()).min(CAW_MAX)
    }
    pub fn compare_and_write(
        &self,
        device: &dyn Device,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        let most = self.compare_max();
        if Bytes::from(new.len()) > most {
            let (device, len) = (device.info().name.as_str().into(), Bytes::from(new.len()));
            return Err(DeviceError::NoCompareAndWrite { device, most, len });
        }
        let block = (self.start.get() + at.get()) / self.sector.get();
        let error = |e: ScsiError| e.of(&device.info().name, "compare-and-write", at);
        let attempt = || {
            let written = self.unit.compare_and_write(block, self.sector, expected, new);
            written.map_err(error)
        };
        let read = |buf: &mut [u8]| device.read(at, buf);
        let settled = retry_until_compared(read, expected, attempt)?;
        if self.unit.has_lost_cache() {
            return Err(DeviceError::Poisoned { device: device.info().name.as_str().into() });
        }
        settled.ok_or_else(|| error(ScsiError::Busy))
    }
    /// Whether the disk has lost power, and its cache, since it was opened: what was written before and
    /// not flushed is gone, or not, and no flush makes it durable.
    pub fn has_lost_cache(&self) -> bool {
        self.unit.has_lost_cache()
    }
}
