//! What a device does.

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;

use braid_format::{ByteOffset, Bytes};

use crate::iscsi::ToUnit;
use crate::model::Ticket;
use crate::traffic::IoCounters;
use crate::{Abilities, CawOutcome, Command, Completion, DeviceError, DeviceInfo, Op};

/// A device that may cease to be what was opened: a file can be truncated under its user, and the next
/// write would make it long again, with a hole that reads as zeros.
pub trait Intact: Send + Sync + Debug {
    /// Whether it is still what was opened. Looks at the device: one system call for a file.
    ///
    /// # Errors
    /// [`DeviceError::Truncated`]; everything later is then refused, reads too.
    fn intact(&self) -> Result<(), DeviceError>;
    /// Whether it was still what was opened when that was last asked. Does not look.
    ///
    /// # Errors
    /// [`DeviceError::Truncated`].
    fn was_intact(&self) -> Result<(), DeviceError>;
}

/// The descriptor of a file that has no direct I/O, for writes that the file's other one refuses.
#[derive(Debug, Clone, Copy)]
pub struct BufferedTarget {
    /// Open as long as the device lives.
    pub fd: RawFd,
    /// Direct writes are whole units of so many bytes, as far as is known.
    pub unit: usize,
}

impl BufferedTarget {
    /// Whether direct I/O takes a write, as far as is known.
    pub fn takes(&self, at: u64, len: usize) -> bool {
        at.is_multiple_of(self.unit as u64) && len.is_multiple_of(self.unit)
    }
}

/// A descriptor, and what a ring must know to serve it.
#[derive(Debug, Clone, Copy)]
pub struct RingTarget<'a> {
    /// Open as long as the device lives.
    pub fd: RawFd,
    /// For writes that `fd` does not take because they are not whole units of its direct I/O.
    pub buffered: Option<BufferedTarget>,
    /// A transfer goes on only from a multiple of this.
    pub sector: usize,
    /// Memory aligned otherwise is copied through a buffer that is.
    pub memory_align: usize,
    /// Bytes that it takes at once if their memory is contiguous; what is longer is cut.
    pub most: usize,
    /// Bytes that it takes at once if each page of them may lie somewhere else.
    pub most_scattered: usize,
    /// Served by a plain call rather than a ring, which would only hand it to another thread.
    pub by_call: bool,
    /// Set when a flush fails; nothing is written while it is set.
    pub poisoned: Option<&'a AtomicBool>,
    /// Whether it is intact is asked before every flush and write; whether it was, before every read.
    pub intact: &'a dyn Intact,
    /// Where what is issued is counted.
    pub counters: Option<&'a IoCounters>,
}

/// A device whose requests take the time of a model.
pub trait Timed: Send + Sync {
    /// Does a request; it is due when the ticket is.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn start(&self, at: ByteOffset, op: Op<'_>) -> Result<Ticket, DeviceError>;
}

/// A device that has a thread of its own wait for each request.
pub trait Threaded: Send + Sync {
    /// Begins a request; what waits for its end.
    fn start(&self, at: ByteOffset, op: &Op<'_>) -> Box<dyn UnderWay + '_>;
}

/// A request that is under way.
pub trait UnderWay {
    /// Waits for its end. What it read goes to the memory of `op`, with which it was begun.
    ///
    /// # Errors
    /// See [`DeviceError`].
    fn finish(self: Box<Self>, op: &mut Op<'_>) -> Result<(), DeviceError>;
}

/// How [`run`](crate::run) and [`IoQueue`](crate::IoQueue) have many requests of a device under way at
/// once.
#[derive(Clone, Copy)]
pub enum Route<'a> {
    /// Not at all: by [`Device::submit`], one after the other.
    Submit,
    /// By a ring, together with other devices.
    Ring(RingTarget<'a>),
    /// By tickets of a model, counted there.
    Timed(&'a dyn Timed, Option<&'a IoCounters>),
    /// By threads, counted there.
    Threads(&'a dyn Threaded, Option<&'a IoCounters>),
    /// By the session of a unit of an iSCSI target.
    Unit(ToUnit<'a>),
}

impl<'a> Route<'a> {
    /// The same way, counted there.
    #[must_use]
    pub fn counted(self, counters: &'a IoCounters) -> Self {
        match self {
            Self::Submit => self,
            Self::Ring(target) => Self::Ring(RingTarget { counters: Some(counters), ..target }),
            Self::Timed(disk, _) => Self::Timed(disk, Some(counters)),
            Self::Threads(device, _) => Self::Threads(device, Some(counters)),
            Self::Unit(unit) => Self::Unit(unit.counted(counters)),
        }
    }
}

/// One device. Ranges are whole sectors; memory may stand anywhere, but memory that is not aligned to
/// 4096 bytes may cost a copy. All methods block until the device is done.
///
/// A device implements [`Device::info`], [`Device::submit`] and [`Device::abilities`]. One over another
/// device (which delays, counts, fails, ...) looks at the command, and passes it and the rest on; its
/// [`Device::route`] stays [`Route::Submit`], so that all commands come by its `submit`. The methods
/// from [`Device::read`] on are commands by name, for callers: no device implements them.
pub trait Device: Send + Sync + Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// Does one command, with what begins at `at`. [`run`](crate::run) does many at once.
    ///
    /// # Errors
    /// See [`DeviceError`], and [`Command`] for what may have been done then.
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError>;
    /// What it can do besides.
    fn abilities(&self) -> Abilities<'_>;
    /// How many of its requests can be under way at once.
    fn route(&self) -> Route<'_> {
        Route::Submit
    }
    /// The device below that has these bytes as this one has them, if there is one:
    /// [`run`](crate::run) reads them there.
    fn unchanged(&self, _at: ByteOffset, _len: Bytes) -> Option<&dyn Device> {
        None
    }

    /// [`Command::Read`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.submit(at, Command::Read(buf)).map(|_| ())
    }
    /// [`Command::Write`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        self.submit(at, Command::Write(buf)).map(|_| ())
    }
    /// [`Command::Flush`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn flush(&self) -> Result<(), DeviceError> {
        self.submit(ByteOffset(0), Command::Flush).map(|_| ())
    }
    /// [`Command::CompareAndWrite`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        Ok(match self.submit(at, Command::CompareAndWrite { expected, new })? {
            Completion::Mismatch(stands) => CawOutcome::Mismatch(stands),
            Completion::Done | Completion::Unsupported => CawOutcome::Written,
        })
    }
    /// [`Command::Discard`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.submit(at, Command::Discard(len)).map(|_| ())
    }
    /// [`Command::WriteZeroes`].
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.submit(at, Command::WriteZeroes(len)).map(|_| ())
    }
    /// [`Command::Deallocate`]; whether it was done.
    ///
    /// # Errors
    /// See [`DeviceError`].
    #[inline]
    fn deallocate(&self, at: ByteOffset, len: Bytes) -> Result<bool, DeviceError> {
        Ok(self.submit(at, Command::Deallocate(len))? != Completion::Unsupported)
    }
}
