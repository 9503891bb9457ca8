//! What a device is.

use std::fmt::Debug;
use std::os::fd::RawFd;

use braid_format::{ByteOffset, Bytes};

use crate::DeviceError;

/// What a device can do beyond reading and writing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Capabilities {
    /// Atomic compare-and-write of one sector.
    pub compare_and_write: bool,
    /// Persistent reservations.
    pub persistent_reservations: bool,
    /// Zeroing without sending zeros.
    pub write_zeroes: bool,
    /// Discard.
    pub discard: bool,
    /// Largest write that is never torn.
    pub atomic_write: Bytes,
}

/// What a device is.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Path or name.
    pub name: String,
    /// Bytes.
    pub size: Bytes,
    /// Logical sector: unit of I/O.
    pub sector: Bytes,
    /// Physical sector.
    pub physical_sector: Bytes,
    /// A block device rather than a file.
    pub is_block: bool,
    /// Opened for reading only.
    pub read_only: bool,
    /// Spinning, if known.
    pub rotational: Option<bool>,
    /// Abilities.
    pub caps: Capabilities,
    /// `io_uring`, `pread` or `memory`.
    pub engine: &'static str,
}

/// How a compare-and-write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CawOutcome {
    /// The new bytes stand.
    Written,
    /// Nothing was written; these bytes stand there.
    Mismatch(Vec<u8>),
}

/// Keeps a liveness byte locked; the kernel lets go when the process ends.
pub struct ByteLockGuard(pub(crate) Box<dyn std::any::Any + Send + Sync>);

/// One device. Completed writes are durable only after `flush`.
pub trait Device: Send + Sync + Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// Reads whole sectors.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes whole sectors; complete, not durable.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError>;
    /// Makes completed writes durable. A failure poisons the device.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn flush(&self) -> Result<(), DeviceError>;
    /// Writes one sector if it equals `expected`; atomic among all openers on this host.
    ///
    /// # Errors
    /// The outcome is then unknown.
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError>;
    /// Tells the device that a range is not needed.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError>;
    /// Makes a range read as zero.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError>;
    /// Descriptor, for rings that serve many devices.
    fn as_raw_fd(&self) -> Option<RawFd> {
        None
    }
    /// Takes liveness byte `byte`, or `None` if another opener holds it.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError>;
    /// Whether somebody else holds liveness byte `byte`.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError>;
}
