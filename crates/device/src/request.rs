//! One request of a batch.

use braid_format::ByteOffset;

use crate::{Device, DeviceError, Op};

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
