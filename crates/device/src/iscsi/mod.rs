//! Units of iSCSI targets, from user space: `iscsi://[user[%secret]@]host[:port]/target/unit`.
//!
//! A unit is a device like any other. What is particular:
//! * a session that breaks is followed by another of the same port, see [`link`], and reads, writes
//!   and flushes that were under way are issued again; what must not be done twice (a
//!   compare-and-write, a change of reservations) ends with [`DeviceError::Unknown`];
//! * one port (initiator and ISID) per open device, so that a reservation belongs to one holder in
//!   one of its lives;
//! * a unit attention means that a command did not run: it is issued again. That others took a
//!   registration away is seen by the conflict that the next command meets. If a unit with a volatile
//!   cache says that it was switched on, its session is ended, and the next one begins only if nothing
//!   was lost;
//! * requests side by side become one command, see [`transfer`];
//! * liveness bytes are locks on files of this host, and the end of a process does not end what its
//!   target has from it: see [`alive`].

mod alive;
mod carried;
mod connection;
mod ffi;
mod link;
mod name;
mod probe;
mod reserve;
mod session;
mod transfer;
mod unanswered;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};

use crate::scsi::cdb::{self, sixteen as cdb16};
use crate::scsi::{self, Data};
use crate::{
    Abilities, AnswerBound, ByteLockGuard, CawOutcome, DeviceError, DeviceInfo, LivenessLocks,
    OpenOptions, Session,
};
use alive::Alive;
use link::{Gone, Link};
use session::{Direction, Ending, Memory, Ticket};

pub use name::{UnitName, redacted, without_secrets};
pub use transfer::ToUnit;
pub(crate) use transfer::{Gathered, UnitTransfer};

/// Longest transfer of one command, of one request or of several side by side; what is longer is
/// several, all under way at once.
const PIECE_MAX: usize = 1 << 20;
/// Most times that a command is issued anew because it did not run.
const TRIES_MAX: u32 = 64;
/// What is done, in errors.
const COMPARE_AND_WRITE: &str = "compare-and-write";
/// Pause before a busy target is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Sense key: the unit does not do such a command.
const ILLEGAL_REQUEST: u8 = 5;
/// Most blocks of one WRITE SAME or UNMAP, if the target does not say less.
const SAME_MAX: u64 = 32768;

/// A unit of an iSCSI target.
#[derive(Debug)]
pub struct IscsiDevice {
    pub(crate) info: DeviceInfo,
    link: Link,
    limits: Limits,
    alive: Alive,
    poisoned: AtomicBool,
    /// The unit refuses FUA with COMPARE AND WRITE: a flush follows instead.
    flushes_compared: AtomicBool,
}

/// What a unit can do, beyond what its information says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub(super) struct Limits {
    /// Writes that completed may be lost without a flush.
    write_cache: bool,
    /// Bytes of one transfer.
    transfer: usize,
    /// Blocks of one COMPARE AND WRITE.
    compare: u64,
    /// Blocks of one WRITE SAME.
    same: u64,
    /// WRITE SAME may let blocks go.
    same_unmaps: bool,
    /// What was let go reads as zeros.
    reads_zeros: bool,
    /// Blocks of one UNMAP.
    unmap: u64,
    /// Persistent reservations.
    reserves: bool,
    /// Registrations outlive its target.
    keeps_keys: bool,
    /// Its world-wide name.
    id: [u8; 16],
}

impl IscsiDevice {
    /// Logs in to the unit and asks what it is.
    ///
    /// # Errors
    /// [`DeviceError::NotADevice`] for what is no name of a unit; [`DeviceError::Io`] with what the
    /// target, the network or the loading of libiscsi said.
    pub fn open(word: &str, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let Some(name) = UnitName::parse(word) else {
            return Err(DeviceError::NotADevice { device: redacted(word).into() });
        };
        let port = alive::new_port();
        let link = Link::open(&name, &port, options.read_only)?;
        let (mut info, limits) = (link.found().info.clone(), link.found().limits);
        let alive = Alive::new(&name, &port, &link.found().identity());
        let alive = alive.map_err(|e| probe::failed(&name, "liveness files", e))?;
        info.lock_place = Some(alive.lock_place());
        Ok(Arc::new(Self {
            info,
            link,
            limits,
            alive,
            poisoned: AtomicBool::new(false),
            flushes_compared: AtomicBool::new(false),
        }))
    }
    fn error(&self, operation: &'static str, at: ByteOffset, source: io::Error) -> DeviceError {
        let device = self.info.name.as_str().into();
        DeviceError::Io { device, operation, at, source: Arc::new(source) }
    }
    fn gone(&self, operation: &'static str, at: ByteOffset, gone: &Gone) -> DeviceError {
        match gone {
            Gone::Fenced => DeviceError::Fenced { device: self.info.name.as_str().into() },
            Gone::Ended(why) => {
                let source = io::Error::new(io::ErrorKind::ConnectionAborted, why.to_string());
                self.error(operation, at, source)
            }
        }
    }
    /// What the ending of a command means; `None`: it did not run, or may be done twice, and is to be
    /// issued again. `once`: it is done once or not at all, and whoever asks for it settles what came
    /// of it.
    fn judge(
        &self,
        operation: &'static str,
        at: ByteOffset,
        (ticket, ending): (&Ticket, Ending),
        once: bool,
    ) -> Option<Result<Ending, DeviceError>> {
        match ending.status {
            ffi::STATUS_GOOD => Some(Ok(ending)),
            ffi::STATUS_CHECK if ending.sense.0 == 6 => None,
            ffi::STATUS_BUSY | ffi::STATUS_QUEUE_FULL => {
                std::thread::sleep(BUSY_PAUSE);
                None
            }
            // By a reset, or a fence: what was aborted never lands, so it may be issued again. After a
            // fence that meets the conflict.
            ffi::STATUS_ABORTED if !once => None,
            ffi::STATUS_CONFLICT => {
                Some(Err(DeviceError::Fenced { device: self.info.name.as_str().into() }))
            }
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR if once => {
                let device = self.info.name.as_str().into();
                Some(Err(DeviceError::Unknown { device, operation, at }))
            }
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR => match self.link.renew_after(ticket) {
                Ok(()) => None,
                Err(gone) => Some(Err(self.gone(operation, at, &gone))),
            },
            _ => Some(Err(self.error(operation, at, ending.into()))),
        }
    }
    /// A command by itself, with data of up to a few KiB or none; `once` as in
    /// [`IscsiDevice::judge`].
    fn command(
        &self,
        operation: &'static str,
        cdb: &[u8],
        data: Data<'_>,
        once: bool,
    ) -> Result<Ending, DeviceError> {
        let at = ByteOffset(0);
        let (direction, memory) = memory_of(data);
        for _ in 0..TRIES_MAX {
            // SAFETY: borrowed over the ticket's life, which ends here; written from is only read.
            let ticket = unsafe { self.link.start(cdb, direction, &memory, true) };
            let ticket = ticket.map_err(|e| self.gone(operation, at, &e))?;
            if let Some(judged) = self.judge(operation, at, (&ticket, ticket.wait()), once) {
                return judged;
            }
        }
        Err(self.error(operation, at, io::ErrorKind::ResourceBusy.into()))
    }
    /// A command by itself, issued once; how it ended.
    fn issue_once(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Ending> {
        let (direction, memory) = memory_of(data);
        // SAFETY: borrowed over the ticket's life, which ends here; written from is only read.
        let ticket = unsafe { self.link.start(cdb, direction, &memory, true) };
        let gone = |e| io::Error::other(self.gone("command", ByteOffset(0), &e));
        Ok(ticket.map_err(gone)?.wait())
    }
    /// Makes blocks durable that were written by a COMPARE AND WRITE without FUA. They stand already, so
    /// an error says that nobody knows whether they will.
    fn keep(&self, at: ByteOffset, first: u64, blocks: u8) -> Result<(), DeviceError> {
        let cdb = cdb16(0x91, 0, first, blocks.into());
        match self.command("flush", &cdb, Data::None, false) {
            Ok(_) => Ok(()),
            Err(fenced @ DeviceError::Fenced { .. }) => Err(fenced),
            Err(error) => {
                tracing::error!(%error, "a lock record that was written is not known to be durable");
                let device = self.info.name.as_str().into();
                Err(DeviceError::Unknown { device, operation: COMPARE_AND_WRITE, at })
            }
        }
    }
    /// One COMPARE AND WRITE; whether what stood there was as expected. Where the unit has a volatile
    /// cache, what it wrote is durable when it is answered: a lock record must not go back in time when
    /// the unit loses power while its nodes live.
    fn compare(&self, at: ByteOffset, expected: &[u8], new: &[u8]) -> Result<bool, DeviceError> {
        const OPERATION: &str = COMPARE_AND_WRITE;
        let blocks = new.len() as u64 / self.info.sector.get();
        if blocks > self.limits.compare {
            let (device, len) = (self.info.name.as_str().into(), Bytes::from(new.len()));
            return Err(DeviceError::NoCompareAndWrite {
                device,
                most: self.info.caps.compare_and_write,
                len,
            });
        }
        let first = at.get() / self.info.sector.get();
        let blocks = u8::try_from(blocks).unwrap_or(0);
        let both = [expected, new].concat();
        for _ in 0..TRIES_MAX {
            let through = self.limits.write_cache && !self.flushes_compared.load(Ordering::Relaxed);
            let cdb = cdb::compare_and_write(first, blocks, through);
            let memory = &[(both.as_ptr().cast_mut(), both.len())];
            // SAFETY: `both` outlives the ticket, and is only read.
            let ticket = unsafe { self.link.start(&cdb, Direction::Write, memory, true) };
            let ticket = ticket.map_err(|e| self.gone(OPERATION, at, &e))?;
            let ending = ticket.wait();
            if ending.status == ffi::STATUS_CHECK && ending.sense.0 == 0x0e {
                return Ok(false);
            }
            if through && ending.status == ffi::STATUS_CHECK && ending.sense.0 == ILLEGAL_REQUEST {
                // It did not run.
                self.flushes_compared.store(true, Ordering::Relaxed);
                continue;
            }
            let Some(judged) = self.judge(OPERATION, at, (&ticket, ending), true) else { continue };
            judged?;
            if self.limits.write_cache && !through {
                self.keep(at, first, blocks)?;
            }
            return Ok(true);
        }
        Err(self.error(OPERATION, at, io::ErrorKind::ResourceBusy.into()))
    }
    /// The same block again and again: zeros.
    fn same(&self, at: ByteOffset, len: Bytes, unmap: bool) -> Result<(), DeviceError> {
        let sector = self.info.sector.get();
        let zeros = vec![0; self.info.sector.to_usize()];
        let (mut block, end) = (at.get() / sector, (at.get() + len.get()) / sector);
        while block < end {
            let count = (end - block).min(self.limits.same.min(SAME_MAX));
            let flags = if unmap { 0x08 } else { 0 };
            let cdb = cdb16(0x93, flags, block, u32::try_from(count).unwrap_or(1));
            self.command("write zeros", &cdb, Data::Out(&zeros), false)?;
            block += count;
        }
        Ok(())
    }
}

fn memory_of(data: Data<'_>) -> (Direction, [Memory; 1]) {
    match data {
        Data::None => (Direction::Neither, [(std::ptr::null_mut(), 0)]),
        Data::In(buf) => (Direction::Read, [(buf.as_mut_ptr(), buf.len())]),
        Data::Out(buf) => (Direction::Write, [(buf.as_ptr().cast_mut(), buf.len())]),
    }
}

impl From<Ending> for io::Error {
    fn from(ending: Ending) -> Self {
        let (key, code) = ending.sense;
        match ending.status {
            ffi::STATUS_CHECK => Self::other(format!(
                "sense key {key:#x}, code {:#04x}/{:02x}",
                code >> 8,
                code & 255
            )),
            ffi::STATUS_CANCELLED | ffi::STATUS_ERROR => Self::new(
                io::ErrorKind::ConnectionAborted,
                "the session ended while it was under way; it may still land",
            ),
            status => Self::other(format!("SCSI status {status:#x}")),
        }
    }
}

/// What commands other than transfers come to.
impl IscsiDevice {
    fn flush(&self) -> Result<(), DeviceError> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(DeviceError::Poisoned { device: self.info.name.as_str().into() });
        }
        // Without a cache what completed is durable; a session that ended says so at the next use.
        if !self.limits.write_cache {
            return Ok(());
        }
        let covers = self.link.written();
        let flushed = self.command("flush", &cdb16(0x91, 0, 0, 0), Data::None, false);
        match &flushed {
            Ok(_) => self.link.flushed(covers),
            Err(_) => self.poisoned.store(true, Ordering::Release),
        }
        flushed.map(|_| ())
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.info.check_caw(at, expected, new)?;
        let read = |buf: &mut [u8]| ToUnit::new(self).read(at, buf);
        let settled =
            scsi::retry_until_compared(read, expected, || self.compare(at, expected, new))?;
        let busy = || self.error(COMPARE_AND_WRITE, at, io::ErrorKind::ResourceBusy.into());
        settled.ok_or_else(busy)
    }
    fn unmap(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        if self.limits.unmap == 0 {
            return Ok(());
        }
        let sector = self.info.sector.get();
        let (mut block, end) = (at.get() / sector, (at.get() + len.get()) / sector);
        while block < end {
            let count = (end - block).min(self.limits.unmap.min(SAME_MAX));
            let mut list = [0; 24];
            (list[1], list[3]) = (22, 16);
            list[8..16].copy_from_slice(&block.to_be_bytes());
            list[16..20].copy_from_slice(&u32::try_from(count).unwrap_or(1).to_be_bytes());
            let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
            self.command("discard", &cdb, Data::Out(&list), false)?;
            block += count;
        }
        Ok(())
    }
    fn zero(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        if self.limits.same != 0 {
            return self.same(at, len, self.limits.same_unmaps);
        }
        let zeros = crate::AlignedBuf::zeroed(len.to_usize().min(PIECE_MAX));
        let mut done = 0;
        while done < len.get() {
            let now = Bytes((len.get() - done).min(zeros.len() as u64));
            ToUnit::new(self).write(at + Bytes(done), zeros.split_at(now.to_usize()).0)?;
            done += now.get();
        }
        Ok(())
    }
    /// What it can do besides reading and writing.
    pub(crate) fn abilities(&self) -> Abilities<'_> {
        Abilities {
            reservations: self.limits.reserves.then_some(self),
            session: Some(self),
            bound: Some(self),
            ..Abilities::only(self)
        }
    }
}

impl Session for IscsiDevice {
    fn unit(&self) -> [u8; 16] {
        self.limits.id
    }
    fn sever(&self) {
        self.link.sever();
    }
    fn lease(&self, until: Instant) {
        self.link.lease(until);
    }
    fn repeats(&self, at: ByteOffset, len: Bytes) {
        let sector = self.info.sector.get();
        self.link.repeats(at.get() / sector..(at.get() + len.get()).div_ceil(sector));
    }
    fn given_up(&self) -> Option<Arc<str>> {
        self.link.given_up()
    }
}

impl AnswerBound for IscsiDevice {
    fn answers_within(&self, time: Duration) {
        self.link.answers_within(time);
    }
}

impl LivenessLocks for IscsiDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        let taken = self.alive.take(byte);
        taken.map_err(|e| self.error("lock", ByteOffset(byte), e))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.alive.is_taken(byte).map_err(|e| self.error("lock", ByteOffset(byte), e))
    }
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.alive.is_held(byte).map_err(|e| self.error("lock", ByteOffset(byte), e))
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.alive.settle_by_word(byte).map_err(|e| self.error("lock", ByteOffset(byte), e))
    }
}
