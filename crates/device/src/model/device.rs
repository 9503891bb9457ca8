//! A device that takes its time.

use std::os::fd::RawFd;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

use super::clock::{ModelBus, ModelClock, Ticket};
use super::disk::{DiskModel, ModelError};
use super::machine::{DiskStats, Work};
use super::mechanism::Access;
use super::time::Time;
use crate::{ByteLockGuard, CawOutcome, Device, DeviceError, DeviceInfo};

/// A device whose bytes are kept by another, and whose requests take as long as a modelled disk's
/// would. Its methods wait for the end of their requests; [`run`](crate::run) and
/// [`IoQueue`](crate::IoQueue) have many under way at once, as on real disks.
///
/// Bytes move when a request is submitted, not when it is due: two requests on the same sectors
/// that are under way at the same time are served in the order of submission.
#[derive(Debug)]
pub struct ModelDevice {
    clock: ModelClock,
    disk: usize,
    model: DiskModel,
    inner: Arc<dyn Device>,
    info: DeviceInfo,
}

impl ModelDevice {
    /// A disk that keeps its bytes on `inner`, alone or on a bus.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn new(
        clock: &ModelClock,
        inner: Arc<dyn Device>,
        model: DiskModel,
        bus: Option<&ModelBus>,
    ) -> Result<Arc<Self>, ModelError> {
        model.check()?;
        let info = DeviceInfo {
            rotational: Some(!model.rotation.is_zero()),
            engine: "model",
            ..inner.info().clone()
        };
        let disk = clock.disk(model, info.size.0, bus).ok_or(ModelError::OtherClock)?;
        Ok(Arc::new(Self { clock: clock.clone(), disk, model, inner, info }))
    }
    /// Its parameters.
    pub const fn model(&self) -> &DiskModel {
        &self.model
    }
    /// Its clock.
    pub const fn clock(&self) -> &ModelClock {
        &self.clock
    }
    /// What it has done.
    pub fn stats(&self) -> DiskStats {
        self.clock.disk_stats(self.disk)
    }

    fn submit(&self, at: Time, write: bool, from: ByteOffset, len: Bytes) -> Ticket {
        let access = Access { write, at: from.0, len: len.0 };
        self.clock.submit(at, self.disk, Work::Access(access))
    }
    /// Starts the time of an access that moves no bytes: for workloads where only time counts. It
    /// comes to the disk at `when`, or now if that is past.
    ///
    /// # Errors
    /// As [`DeviceInfo::check`].
    pub fn touch(
        &self,
        when: Time,
        write: bool,
        at: ByteOffset,
        len: Bytes,
    ) -> Result<Ticket, DeviceError> {
        self.info.check(at, len)?;
        Ok(self.submit(when, write, at, len))
    }
    /// Starts a read; its bytes are there, and due when the ticket is.
    pub(crate) fn start_read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<Ticket, DeviceError> {
        let ticket = self.touch(Time(0), false, at, Bytes::from(buf.len()))?;
        self.inner.read(at, buf)?;
        Ok(ticket)
    }
    /// Starts a write.
    pub(crate) fn start_write(&self, at: ByteOffset, buf: &[u8]) -> Result<Ticket, DeviceError> {
        let ticket = self.touch(Time(0), true, at, Bytes::from(buf.len()))?;
        self.inner.write(at, buf)?;
        Ok(ticket)
    }
    /// Starts a flush.
    pub(crate) fn start_flush(&self) -> Result<Ticket, DeviceError> {
        let ticket = self.clock.submit(Time(0), self.disk, Work::Flush);
        self.inner.flush()?;
        Ok(ticket)
    }
}

impl Device for ModelDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.start_read(at, buf)?.wait();
        Ok(())
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        self.start_write(at, buf)?.wait();
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.start_flush()?.wait();
        Ok(())
    }
    /// Takes a read and, if it writes, a write: the better part of a rotation later.
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.info.check_caw(at, expected, new)?;
        let len = Bytes::from(new.len());
        self.submit(Time(0), false, at, len).wait();
        let outcome = self.inner.compare_and_write(at, expected, new)?;
        if outcome == CawOutcome::Written {
            self.submit(Time(0), true, at, len).wait();
        }
        Ok(outcome)
    }
    /// Takes no time: these disks know no discard.
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.inner.discard(at, len)
    }
    /// Takes as long as writing them.
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        let ticket = self.touch(Time(0), true, at, len)?;
        self.inner.write_zeroes(at, len)?;
        ticket.wait();
        Ok(())
    }
    /// Takes no time, as [`Device::discard`].
    fn deallocate(&self, at: ByteOffset, len: Bytes) -> Result<bool, DeviceError> {
        self.inner.deallocate(at, len)
    }
    fn as_raw_fd(&self) -> Option<RawFd> {
        self.inner.as_raw_fd()
    }
    fn modelled(&self) -> Option<&ModelDevice> {
        Some(self)
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.inner.lock_byte(byte)
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.byte_locked(byte)
    }
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.byte_held(byte)
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.settle_byte(byte)
    }
}
