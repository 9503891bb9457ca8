//! Requests to units as commands: cut into what a unit takes at once, and joined where they stand side
//! by side.
//!
//! ```text
//! request --add--> cut --> joined to one before? --issue--> under way --finish--> well: all parts are
//!                                                              ^          |       told so
//!                              did not run, its session broke  |          |
//!                              (whole, again)                  +----------+
//!                                                                         +--> an error was answered:
//!                                                                              each part by itself
//! ```
//!
//! * A command of several parts to which the unit has answered an error is over: nothing of it lands any
//!   more (SAM-5, section 5.3), so its parts may be issued again, and the error falls on the one that
//!   it is of. What a unit did not answer is issued again as a whole, as any other command, in a
//!   session in which nothing of the old one can land ([`super::link`]).
//! * A reservation conflict is told to all parts, and nothing is issued again: who was fenced does not
//!   try whether the next one gets through. So is the end of all sessions.

use std::io;
use std::time::Instant;

use braid_format::{ByteOffset, Bytes};

use super::limits::TRIES_MAX;
use super::session::{Direction, Memory, Ticket};
use super::unit::IscsiDevice;
use crate::scsi::cdb;
use crate::traffic::IoCounters;
use crate::{Command, Completion, DeviceError};

/// Requests of one command, at most: libiscsi gives them to the kernel together, which takes 1024.
const SEGMENTS_MAX: usize = 256;
/// How many of the commands before are looked at for one to join: the units of a row, in a wide stripe.
const JOIN_REACH: usize = 64;

/// Memory of one request in a command, and the caller's name for that request.
#[derive(Debug, Clone, Copy)]
struct Segment {
    owner: u32,
    memory: Memory,
}

/// A read or a write of one request, or of several that stand side by side on a unit. Dropping it waits
/// for its end.
#[derive(Debug)]
pub(crate) struct UnitTransfer {
    write: bool,
    at: ByteOffset,
    /// Bytes of all segments.
    len: usize,
    /// One at least.
    segments: Vec<Segment>,
    /// Once it is issued.
    ticket: Option<Ticket>,
}
// SAFETY: the memory is the requesters', who keep it as long as the command lives.
unsafe impl Send for UnitTransfer {}

impl UnitTransfer {
    fn new(write: bool, at: ByteOffset, segment: Segment) -> Self {
        let len = segment.memory.1;
        Self { write, at, len, segments: vec![segment], ticket: None }
    }
    /// Takes in what follows it, if both together are no more than `most`.
    fn join(&mut self, write: bool, at: ByteOffset, segment: Segment, most: usize) -> bool {
        let side_by_side = self.write == write && self.at + Bytes::from(self.len) == at;
        let fits = self.len + segment.memory.1 <= most && self.segments.len() < SEGMENTS_MAX;
        if side_by_side && fits {
            self.segments.push(segment);
            self.len += segment.memory.1;
        }
        side_by_side && fits
    }
    /// One of the requests that it is of.
    pub fn owner(&self) -> u32 {
        self.segments.first().map_or(0, |s| s.owner)
    }
    /// Whether waiting for it takes no time.
    pub fn is_done(&self) -> bool {
        self.ticket.as_ref().is_none_or(Ticket::is_done)
    }
    fn operation(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
    /// Each request of it by itself.
    fn parts(&self) -> impl Iterator<Item = Self> + '_ {
        self.segments.iter().scan(self.at, |at, segment| {
            let part = Self::new(self.write, *at, *segment);
            *at = *at + Bytes::from(part.len);
            Some(part)
        })
    }
}

/// A unit, and where what is issued to it is counted.
#[derive(Debug, Clone, Copy)]
pub struct ToUnit<'u> {
    unit: &'u IscsiDevice,
    counters: Option<&'u IoCounters>,
}

/// Requests that were not issued yet, as commands.
#[derive(Debug, Default)]
pub(crate) struct Gathered<'u>(Vec<(ToUnit<'u>, UnitTransfer)>);

/// What became of requests that were issued: those under way, and those that were not taken.
pub(crate) type Issued = (Vec<UnitTransfer>, Vec<(u32, DeviceError)>);

impl<'u> Gathered<'u> {
    /// Takes a request to the unit under a device, if there is one; how often [`ToUnit::finish`] or
    /// [`Gathered::issue`] will report its `owner`.
    ///
    /// # Safety
    /// The memory is valid, and used by nobody else, until the commands of [`Gathered::issue`] have been
    /// dropped or finished; they are not forgotten.
    pub unsafe fn add(
        &mut self,
        owner: u32,
        to: ToUnit<'u>,
        write: bool,
        at: ByteOffset,
        (base, len): Memory,
    ) -> Result<usize, DeviceError> {
        let unit = to.unit;
        if write {
            unit.info.check_write(Some(&unit.poisoned), at, Bytes::from(len))?;
        } else {
            unit.info.check(at, Bytes::from(len))?;
        }
        let (mut pieces, mut through) = (0, 0);
        while through < len {
            let here = (len - through).min(unit.limits.transfer);
            // SAFETY: inside the caller's memory.
            let memory = (unsafe { base.add(through) }, here);
            self.take(to, write, at + Bytes::from(through), Segment { owner, memory });
            pieces += 1;
            through += here;
        }
        Ok(pieces)
    }
    fn take(&mut self, to: ToUnit<'u>, write: bool, at: ByteOffset, segment: Segment) {
        let most = to.unit.limits.transfer;
        for (other, command) in self.0.iter_mut().rev().take(JOIN_REACH) {
            if std::ptr::eq(other.unit, to.unit) && command.join(write, at, segment, most) {
                return;
            }
        }
        self.0.push((to, UnitTransfer::new(write, at, segment)));
    }
    /// Issues them all; `now` says that the caller waits for one at once.
    pub fn issue(self, now: bool) -> Issued {
        let mut issued: Issued = (Vec::with_capacity(self.0.len()), Vec::new());
        for (to, mut command) in self.0 {
            match to.issue(&mut command, now) {
                Ok(()) => issued.0.push(command),
                Err(e) => {
                    let owners = command.segments.iter().map(|s| s.owner);
                    issued.1.extend(owners.map(|owner| (owner, e.clone())));
                }
            }
        }
        issued
    }
}

impl<'u> ToUnit<'u> {
    /// This unit, not counted.
    pub(crate) fn new(unit: &'u IscsiDevice) -> Self {
        Self { unit, counters: None }
    }
    /// The same unit, counted there.
    pub(crate) fn counted(self, counters: &'u IoCounters) -> Self {
        Self { counters: Some(counters), ..self }
    }
    /// Starts a command, of which the caller of [`Gathered::add`] has promised that its memory stays.
    fn start(self, command: &mut UnitTransfer, now: bool) -> Result<(), DeviceError> {
        let unit = self.unit;
        let sector = unit.info.sector.get();
        let count = u32::try_from(command.len as u64 / sector).unwrap_or(u32::MAX);
        let (opcode, direction) =
            if command.write { (0x8a, Direction::Write) } else { (0x88, Direction::Read) };
        let cdb = cdb::sixteen(opcode, 0, command.at.get() / sector, count);
        let start = |memory: &[Memory]| {
            // SAFETY: the promise to `Gathered::add`; the command keeps its ticket.
            unsafe { unit.link.start(&cdb, direction, memory, now) }
        };
        let ticket = match &command.segments[..] {
            [only] => start(&[only.memory]),
            all => start(&all.iter().map(|s| s.memory).collect::<Vec<_>>()),
        };
        let gone = |gone| unit.gone(command.operation(), command.at, &gone);
        command.ticket = Some(ticket.map_err(gone)?);
        Ok(())
    }
    /// Starts a command for the first time.
    fn issue(self, command: &mut UnitTransfer, now: bool) -> Result<(), DeviceError> {
        if let Some(counters) = self.counters {
            counters.transfer(command.write, command.len);
        }
        self.start(command, now)
    }
    /// Waits for a command that was issued when it `begun`, and says to each request that it is of how
    /// it ended.
    pub(crate) fn finish(
        self,
        mut command: UnitTransfer,
        begun: Instant,
        mut done: impl FnMut(u32, Result<(), DeviceError>),
    ) {
        let result = self.counted_end(self.wait(&mut command, begun));
        let alone = command.segments.len() == 1;
        if alone || !result.as_ref().is_err_and(is_answered) {
            for segment in &command.segments {
                done(segment.owner, result.clone());
            }
            return;
        }
        let mut fenced = Ok(());
        for mut part in command.parts() {
            let begun = Instant::now();
            let result = fenced.clone().and_then(|()| self.issue(&mut part, true));
            let result = result.and_then(|()| self.wait(&mut part, begun));
            let result = self.counted_end(result);
            if result.as_ref().is_err_and(DeviceError::is_fenced) {
                fenced.clone_from(&result);
            }
            done(part.owner(), result);
        }
    }
    fn counted_end(self, result: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if let Some(counters) = self.counters {
            counters.failed_if(&result);
        }
        result
    }
    /// Waits for the end of a command, which is issued again as long as it did not run or its session
    /// broke.
    fn wait(self, command: &mut UnitTransfer, begun: Instant) -> Result<(), DeviceError> {
        let (unit, at, operation) = (self.unit, command.at, command.operation());
        for _ in 0..TRIES_MAX {
            let Some(ticket) = &command.ticket else { break };
            let ending = ticket.wait();
            let Some(judged) = unit.judge(operation, at, (ticket, ending), false) else {
                self.start(command, true)?;
                continue;
            };
            if let (Some(counters), Some(ended)) = (self.counters, ticket.ended()) {
                counters.took(command.write, ended.saturating_duration_since(begun));
            }
            return match judged?.missing {
                0 => Ok(()),
                _ => Err(unit.error(operation, at, io::ErrorKind::UnexpectedEof.into())),
            };
        }
        Err(unit.error(operation, at, io::ErrorKind::ResourceBusy.into()))
    }
    /// Does one command.
    pub(crate) fn submit(
        self,
        at: ByteOffset,
        command: Command<'_>,
    ) -> Result<Completion, DeviceError> {
        let unit = self.unit;
        if command.changes() {
            unit.info.check_write(Some(&unit.poisoned), at, command.len())?;
        }
        match command {
            Command::Read(buf) => self.read(at, buf)?,
            Command::Write(buf) => self.write(at, buf)?,
            Command::Flush => unit.flush()?,
            Command::CompareAndWrite { expected, new } => {
                return unit.compare_and_write(at, expected, new).map(Completion::from);
            }
            Command::Discard(len) => unit.unmap(at, len)?,
            Command::WriteZeroes(len) => unit.zero(at, len)?,
            Command::Deallocate(_) if !unit.info.caps.deallocate => {
                return Ok(Completion::Unsupported);
            }
            // WRITE SAME (16) of zeros with UNMAP, which lets go where unmapped blocks read as zeros.
            Command::Deallocate(len) => unit.same(at, len, true)?,
        }
        Ok(Completion::Done)
    }
    pub(super) fn read(self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let memory = (buf.as_mut_ptr(), buf.len());
        // SAFETY: borrowed until the transfer is over, here.
        unsafe { self.transfer(false, at, memory) }
    }
    pub(super) fn write(self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        let memory = (buf.as_ptr().cast_mut(), buf.len());
        // SAFETY: borrowed until the transfer is over, here; only read.
        unsafe { self.transfer(true, at, memory) }
    }
    /// Moves the bytes of one request, in as many commands as it takes.
    ///
    /// # Safety
    /// The memory is valid, and used by nobody else meanwhile.
    unsafe fn transfer(
        self,
        write: bool,
        at: ByteOffset,
        memory: Memory,
    ) -> Result<(), DeviceError> {
        let mut gathered = Gathered::default();
        // SAFETY: the commands are finished here, or dropped.
        unsafe { gathered.add(0, self, write, at, memory) }?;
        let begun = Instant::now();
        let (commands, refused) = gathered.issue(true);
        let mut result = refused.into_iter().next().map_or(Ok(()), |(_, e)| Err(e));
        for command in commands {
            self.finish(command, begun, |_, ended| {
                result = std::mem::replace(&mut result, Ok(())).and(ended);
            });
        }
        result
    }
}

/// Whether a unit has answered so, other than by a conflict: the command is over, and nothing of it
/// lands any more.
fn is_answered(error: &DeviceError) -> bool {
    let DeviceError::Io { source, .. } = error else { return false };
    matches!(source.kind(), io::ErrorKind::Other | io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_joined_up_to_what_the_unit_takes() {
        let mut memory = vec![0; 4 * 4096];
        let mut segment = |owner: u32| {
            // Wherever it is.
            let from = [8192, 0, 12288, 4096][owner as usize];
            Segment { owner, memory: (memory[from..].as_mut_ptr(), 4096) }
        };
        let mut command = UnitTransfer::new(true, ByteOffset(4096), segment(0));
        assert!(!command.join(true, ByteOffset(12288), segment(1), 1 << 20), "a gap");
        assert!(!command.join(true, ByteOffset(0), segment(1), 1 << 20), "before it");
        assert!(!command.join(false, ByteOffset(8192), segment(1), 1 << 20), "another kind");
        assert!(!command.join(true, ByteOffset(8192), segment(1), 8191), "too large together");
        assert!(command.join(true, ByteOffset(8192), segment(1), 12288));
        assert!(command.join(true, ByteOffset(12288), segment(2), 12288));
        assert!(!command.join(true, ByteOffset(16384), segment(3), 12288), "too large together");
        assert_eq!((command.at, command.len, command.owner()), (ByteOffset(4096), 12288, 0));
        let parts: Vec<_> = command.parts().map(|p| (p.owner(), p.at.get(), p.len)).collect();
        assert_eq!(parts, [(0, 4096, 4096), (1, 8192, 4096), (2, 12288, 4096)]);
        for n in 3..SEGMENTS_MAX {
            let at = ByteOffset(4096 + 4096 * n as u64);
            assert!(command.join(true, at, segment(3), 1 << 30));
        }
        let at = ByteOffset(4096 + 4096 * SEGMENTS_MAX as u64);
        assert!(!command.join(true, at, segment(3), 1 << 30), "too many");
    }
}
