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
mod limits;
mod link;
mod name;
mod portal;
mod probe;
mod reserve;
mod session;
mod transfer;
mod unanswered;
mod unit;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};

use crate::scsi::cdb::{self, sixteen as cdb16};
use crate::scsi::{self, Data};
use crate::{
    Abilities, AnswerBound, ByteLockGuard, CawOutcome, DeviceError, LivenessLocks, Session,
};
use limits::{PIECE_MAX, TRIES_MAX};
use session::Direction;

pub use name::{UnitName, redacted, without_secrets};
pub use portal::{Portal, UnitList, UnitNumber};
pub use transfer::ToUnit;
pub(crate) use transfer::{Gathered, UnitTransfer};
pub use unit::IscsiDevice;

/// What is done, in errors.
const COMPARE_AND_WRITE: &str = "compare-and-write";
/// Sense key: the unit does not do such a command.
const ILLEGAL_REQUEST: u8 = 5;
/// Most blocks of one WRITE SAME or UNMAP, if the target does not say less.
const SAME_MAX: u64 = 32768;

/// What commands other than transfers come to.
impl IscsiDevice {
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
