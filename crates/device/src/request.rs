//! One request, and what is checked before and said after it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::{ByteOffset, Bytes};

use crate::{Device, DeviceError};

/// What a request does.
#[derive(Debug)]
pub enum Op<'a> {
    /// Read into.
    Read(&'a mut [u8]),
    /// Write from.
    Write(&'a [u8]),
    /// Make durable what had completed before.
    Flush,
}

/// A request and, after [`crate::run()`], its result.
#[derive(Debug)]
pub struct Request<'a> {
    /// Where to.
    pub device: &'a dyn Device,
    /// Where on it.
    pub at: ByteOffset,
    /// What.
    pub op: Op<'a>,
    /// How it ended.
    pub result: Result<(), DeviceError>,
}

impl<'a> Request<'a> {
    /// Not run yet; `at` means nothing to a flush.
    pub fn new(device: &'a dyn Device, at: ByteOffset, op: Op<'a>) -> Self {
        Self { device, at, op, result: Ok(()) }
    }
    /// Makes durable what `device` has completed before.
    pub fn flush(device: &'a dyn Device) -> Self {
        Self::new(device, ByteOffset(0), Op::Flush)
    }
}

/// Refuses a device that takes no more changes, because a flush of it failed.
pub(crate) fn check_poison(
    device: &dyn Device,
    poisoned: Option<&AtomicBool>,
) -> Result<(), DeviceError> {
    if poisoned.is_some_and(|p| p.load(Ordering::Acquire)) {
        return Err(DeviceError::Poisoned { device: device.info().name.as_str().into() });
    }
    Ok(())
}

/// Whether a write may be issued.
pub(crate) fn check_write(
    device: &dyn Device,
    poisoned: Option<&AtomicBool>,
    at: ByteOffset,
    len: Bytes,
) -> Result<(), DeviceError> {
    if device.info().read_only {
        return Err(DeviceError::ReadOnly { device: device.info().name.as_str().into() });
    }
    check_poison(device, poisoned)?;
    device.info().check(at, len)
}

/// What the system said, as an error of `device`.
pub(crate) fn io_error(
    device: &dyn Device,
    operation: &'static str,
    at: ByteOffset,
    source: io::Error,
) -> DeviceError {
    let device = device.info().name.as_str().into();
    if source.raw_os_error() == Some(libc::EBADE) {
        // How the kernel says that a unit answered with a reservation conflict.
        return DeviceError::Fenced { device };
    }
    DeviceError::Io { device, operation, at, source: Arc::new(source) }
}
