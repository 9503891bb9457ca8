//! A device that takes the time of a model, and clients that use some.

mod clients;

use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

pub use clients::{Client, Outcome, Pause, Touch, drive};

use crate::model::Work;
use crate::model::{Access, DiskModel, DiskStats, ModelBus, ModelClock, ModelError, Ticket, Time};
use crate::{Abilities, Command, Completion, Device, DeviceError, DeviceInfo, Op, Route, Timed};

/// A device whose bytes are kept by another, and whose requests take as long as a modelled disk's
/// would. A command waits for its end; [`run`](crate::run) and
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

    fn access(&self, at: Time, write: bool, from: ByteOffset, len: Bytes) -> Ticket {
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
        Ok(self.access(when, write, at, len))
    }
    /// Starts an access; its bytes have moved, and are due when the ticket is.
    fn start_moving(
        &self,
        at: ByteOffset,
        command: Command<'_>,
        write: bool,
    ) -> Result<Ticket, DeviceError> {
        let ticket = self.touch(Time(0), write, at, command.len())?;
        self.inner.submit(at, command)?;
        Ok(ticket)
    }
    /// Takes a read and, if it writes, a write: the better part of a rotation later.
    fn compare(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<Completion, DeviceError> {
        self.info.check_caw(at, expected, new)?;
        let len = Bytes::from(new.len());
        self.access(Time(0), false, at, len).wait();
        let completion = self.inner.submit(at, Command::CompareAndWrite { expected, new })?;
        if completion == Completion::Done {
            self.access(Time(0), true, at, len).wait();
        }
        Ok(completion)
    }
}

impl Timed for ModelDevice {
    fn start(&self, at: ByteOffset, op: Op<'_>) -> Result<Ticket, DeviceError> {
        match op {
            Op::Read(buf) => self.start_moving(at, Command::Read(buf), false),
            Op::Write(buf) => self.start_moving(at, Command::Write(buf), true),
            Op::Flush => {
                let ticket = self.clock.submit(Time(0), self.disk, Work::Flush);
                self.inner.flush()?;
                Ok(ticket)
            }
        }
    }
}

impl Device for ModelDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let ticket = match command {
            Command::Read(buf) => self.start(at, Op::Read(buf))?,
            Command::Write(buf) => self.start(at, Op::Write(buf))?,
            Command::Flush => self.start(at, Op::Flush)?,
            // As long as writing them.
            Command::WriteZeroes(_) => self.start_moving(at, command, true)?,
            Command::CompareAndWrite { expected, new } => return self.compare(at, expected, new),
            // No time: these disks know no discard.
            Command::Discard(_) | Command::Deallocate(_) => return self.inner.submit(at, command),
        };
        ticket.wait();
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities::only(self.inner.abilities().locks)
    }
    fn route(&self) -> Route<'_> {
        Route::Timed(self, None)
    }
}

#[cfg(test)]
mod tests;
