//! A request of a program, or of a layer above, on a pool.

use braid_device::Op;
use braid_format::ByteOffset;

use crate::error::PoolError;

/// One request of a batch.
#[derive(Debug)]
pub struct PoolRequest<'a> {
    /// First logical byte; ignored by a flush.
    pub at: ByteOffset,
    /// What to do with which memory.
    pub op: Op<'a>,
    /// `Ok` once [`Pool::run`](crate::pool::Pool::run) has returned and the request has succeeded.
    pub result: Result<(), PoolError>,
}
impl<'a> PoolRequest<'a> {
    /// Reads `buf.len()` bytes from `at`.
    pub fn read(at: ByteOffset, buf: &'a mut [u8]) -> Self {
        Self { at, op: Op::Read(buf), result: Ok(()) }
    }
    /// Writes `buf` to `at`.
    pub fn write(at: ByteOffset, buf: &'a [u8]) -> Self {
        Self { at, op: Op::Write(buf), result: Ok(()) }
    }
    /// Flushes all members.
    pub fn flush() -> Self {
        Self { at: ByteOffset(0), op: Op::Flush, result: Ok(()) }
    }
}
