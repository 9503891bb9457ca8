//! What a device is, and what is checked before a command and said after it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::node::LockPlace;
use braid_format::{ByteOffset, Bytes};

use crate::DeviceError;

/// Longest compare-and-write: the largest sector there is.
pub const CAW_MAX: Bytes = Bytes(4096);

/// What a device can do beyond reading and writing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Most bytes of one atomic compare-and-write, up to [`CAW_MAX`]; 0: it has none. More is refused
    /// ([`DeviceError::NoCompareAndWrite`]): some disks take one sector of 512 bytes only.
    pub compare_and_write: Bytes,
    /// Zeroing without sending zeros.
    pub write_zeroes: bool,
    /// Discard.
    pub discard: bool,
    /// Zeroing that gives space back ([`Command::Deallocate`](crate::Command::Deallocate)), as far as is
    /// known before it is tried.
    pub deallocate: bool,
    /// Largest write that is never torn by a power cut.
    pub atomic_write: Bytes,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub struct DeviceInfo {
    /// Path or name, as it was given.
    pub name: String,
    /// Whole sectors.
    pub size: Bytes,
    /// Logical sector: unit of I/O, 512 or 4096.
    pub sector: Bytes,
    /// Physical sector: what is written without reading first.
    pub physical_sector: Bytes,
    /// A block device rather than a file.
    pub is_block: bool,
    /// Its name is the path of a file or block device of this host.
    pub is_path: bool,
    /// Opened for reading only, or nobody can write it.
    pub read_only: bool,
    /// Spinning, if known.
    pub rotational: Option<bool>,
    /// Abilities.
    pub caps: Capabilities,
    /// `io_uring`, `pread` or `memory`.
    pub engine: &'static str,
    /// Where this handle's liveness bytes are locked; `None`: they cannot be.
    pub lock_place: Option<LockPlace>,
    /// A compare-and-write is made of a kernel lock there: it excludes only those who lock the same
    /// place. Otherwise the device has the command.
    pub emulates_compare_and_write: bool,
}

impl DeviceInfo {
    /// Checks that a range is whole sectors inside the device.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`].
    pub fn check(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        let device = || Arc::from(self.name.as_str());
        let sector = self.sector.get();
        if !at.get().is_multiple_of(sector) || !len.get().is_multiple_of(sector) {
            return Err(DeviceError::Unaligned { device: device(), at, len });
        }
        match at.checked_add(len) {
            Some(end) if end.get() <= self.size.get() => Ok(()),
            _ => Err(DeviceError::OutOfRange { device: device(), at, len }),
        }
    }
    /// Checks the arguments of a compare-and-write: two equal lengths, one sector (up to
    /// [`CAW_MAX`], so that a 4 KiB record may stand on 512-byte sectors), aligned to itself.
    ///
    /// # Errors
    /// [`DeviceError::Unaligned`], [`DeviceError::OutOfRange`].
    pub fn check_caw(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<(), DeviceError> {
        let len = Bytes::from(new.len());
        self.check(at, len)?;
        let one = len.get().is_power_of_two() && len <= CAW_MAX;
        if !one || !at.get().is_multiple_of(len.get()) || expected.len() != new.len() {
            let device = Arc::from(self.name.as_str());
            return Err(DeviceError::Unaligned { device, at, len });
        }
        Ok(())
    }
    /// Refuses a device that takes no more changes, because a flush of it failed.
    pub(crate) fn check_poison(&self, poisoned: Option<&AtomicBool>) -> Result<(), DeviceError> {
        if poisoned.is_some_and(|p| p.load(Ordering::Acquire)) {
            return Err(DeviceError::Poisoned { device: self.name.as_str().into() });
        }
        Ok(())
    }
    /// Whether a write may be issued.
    pub(crate) fn check_write(
        &self,
        poisoned: Option<&AtomicBool>,
        at: ByteOffset,
        len: Bytes,
    ) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { device: self.name.as_str().into() });
        }
        self.check_poison(poisoned)?;
        self.check(at, len)
    }
    /// What the system said, as an error of the device.
    pub(crate) fn io_error(
        &self,
        operation: &'static str,
        at: ByteOffset,
        source: io::Error,
    ) -> DeviceError {
        let device = self.name.as_str().into();
        if source.raw_os_error() == Some(libc::EBADE) {
            // How the kernel says that a unit answered with a reservation conflict.
            return DeviceError::Fenced { device };
        }
        DeviceError::Io { device, operation, at, source: Arc::new(source) }
    }
}
