//! What a device is asked to do, and what comes of it.

use braid_format::Bytes;

/// What a device is asked to do with the whole sectors from some place on.
#[derive(Debug)]
pub enum Command<'a> {
    /// Fill this memory. A sector being written at the same time may read half old, half new, on files
    /// even when it is written by a compare-and-write. After an error the memory may hold anything.
    Read(&'a mut [u8]),
    /// Write this memory; complete, not durable. After an error any of the sectors may be old, new, or
    /// (without power) torn.
    Write(&'a [u8]),
    /// Make writes that completed before durable; the place means nothing. A failure poisons the
    /// handle: later writes and flushes are refused.
    Flush,
    /// Write one sector if what stands there is as expected; atomic among all openers on this host (and
    /// on all hosts where the device itself has the command). Complete, not durable. After an error of
    /// the system it is not known whether `new` stands.
    CompareAndWrite {
        /// What must stand there.
        expected: &'a [u8],
        /// What is written; as long.
        new: &'a [u8],
    },
    /// A range is not needed: it then reads as before or as zeros. Where the device knows no such
    /// thing, nothing happens.
    Discard(Bytes),
    /// Make a range read as zeros; complete, not durable.
    WriteZeroes(Bytes),
    /// Make a range read as zeros and give its space back, both at once: complete, not durable. Then
    /// all of it reads as zeros, until it is written again; before a flush a power cut may leave any of
    /// its sectors as they were. What is less than the device can give back at a time (the edges of a
    /// range) reads as zeros all the same. No zeros are ever sent to the device. If it is not done, or
    /// fails, each sector is as it was, or zeros.
    Deallocate(Bytes),
}

impl Command<'_> {
    /// Bytes of its range; none of a flush.
    #[inline]
    pub fn len(&self) -> Bytes {
        match self {
            Self::Read(buf) => Bytes::from(buf.len()),
            Self::Write(buf) => Bytes::from(buf.len()),
            Self::CompareAndWrite { new, .. } => Bytes::from(new.len()),
            Self::Discard(len) | Self::WriteZeroes(len) | Self::Deallocate(len) => *len,
            Self::Flush => Bytes(0),
        }
    }
    /// Whether its range is empty, as a flush's is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == Bytes(0)
    }
    /// What it is.
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Read(_) => CommandKind::Read,
            Self::Write(_) => CommandKind::Write,
            Self::Flush => CommandKind::Flush,
            Self::CompareAndWrite { .. } => CommandKind::CompareAndWrite,
            Self::Discard(_) => CommandKind::Discard,
            Self::WriteZeroes(_) => CommandKind::WriteZeroes,
            Self::Deallocate(_) => CommandKind::Deallocate,
        }
    }
    /// What it does, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Flush => "flush",
            Self::CompareAndWrite { .. } => "compare-and-write",
            Self::Discard(_) => "discard",
            Self::WriteZeroes(_) => "write zeros",
            Self::Deallocate(_) => "deallocate",
        }
    }
    /// Whether bytes of its range may be others after it: all but reads and flushes.
    pub const fn changes(&self) -> bool {
        !matches!(self, Self::Read(_) | Self::Flush)
    }
    /// The same command once more: for a device that has two others do it, or one do it twice.
    pub fn again(&mut self) -> Command<'_> {
        match self {
            Self::Read(buf) => Command::Read(buf),
            Self::Write(buf) => Command::Write(buf),
            Self::Flush => Command::Flush,
            Self::CompareAndWrite { expected, new } => Command::CompareAndWrite { expected, new },
            Self::Discard(len) => Command::Discard(*len),
            Self::WriteZeroes(len) => Command::WriteZeroes(*len),
            Self::Deallocate(len) => Command::Deallocate(*len),
        }
    }
}

/// What a command is, without its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// [`Command::Read`].
    Read,
    /// [`Command::Write`].
    Write,
    /// [`Command::Flush`].
    Flush,
    /// [`Command::CompareAndWrite`].
    CompareAndWrite,
    /// [`Command::Discard`].
    Discard,
    /// [`Command::WriteZeroes`].
    WriteZeroes,
    /// [`Command::Deallocate`].
    Deallocate,
}

/// What came of a command that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// It is done.
    Done,
    /// A compare-and-write has written nothing: these bytes stand there.
    Mismatch(Vec<u8>),
    /// Space is not given back: this device, or this kernel, does not do that.
    Unsupported,
}

impl From<CawOutcome> for Completion {
    #[inline]
    fn from(outcome: CawOutcome) -> Self {
        match outcome {
            CawOutcome::Written => Self::Done,
            CawOutcome::Mismatch(stands) => Self::Mismatch(stands),
        }
    }
}

/// How a compare-and-write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CawOutcome {
    /// The new bytes stand.
    Written,
    /// Nothing was written; these bytes stand there.
    Mismatch(Vec<u8>),
}

/// The commands of which a batch is made ([`run`](crate::run)): those that every device has.
#[derive(Debug)]
pub enum Op<'a> {
    /// Read into.
    Read(&'a mut [u8]),
    /// Write from.
    Write(&'a [u8]),
    /// Make durable what had completed before.
    Flush,
}

impl<'a> From<Op<'a>> for Command<'a> {
    #[inline]
    fn from(op: Op<'a>) -> Self {
        match op {
            Op::Read(buf) => Self::Read(buf),
            Op::Write(buf) => Self::Write(buf),
            Op::Flush => Self::Flush,
        }
    }
}
