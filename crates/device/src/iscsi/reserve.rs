//! Persistent reservations of a unit: who may write it, said by its own target.

use std::io;

use braid_format::ByteOffset;

use super::{Data, IscsiDevice};
use crate::scsi::{self, cdb};
use crate::{DeviceError, Reservations};

/// What a reservation keeps from whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationKind {
    /// The holder writes, all read.
    WriteExclusive = 1,
    /// The holder alone.
    ExclusiveAccess = 3,
    /// Who is registered writes, all read.
    WriteExclusiveRegistrants = 5,
    /// Who is registered, alone.
    ExclusiveAccessRegistrants = 6,
    /// As [`ReservationKind::WriteExclusiveRegistrants`]; all who are registered hold it.
    WriteExclusiveAll = 7,
    /// As [`ReservationKind::ExclusiveAccessRegistrants`]; all who are registered hold it.
    ExclusiveAccessAll = 8,
}

impl ReservationKind {
    pub(crate) fn of(code: u8) -> Option<Self> {
        let all = [
            Self::WriteExclusive,
            Self::ExclusiveAccess,
            Self::WriteExclusiveRegistrants,
            Self::ExclusiveAccessRegistrants,
            Self::WriteExclusiveAll,
            Self::ExclusiveAccessAll,
        ];
        all.into_iter().find(|k| *k as u8 == code)
    }
}

/// A reservation that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Its holder's key; 0 where all who are registered hold it.
    pub key: u64,
    /// What it keeps from whom.
    pub kind: ReservationKind,
}

/// What is done, in errors.
const PERSISTENT_RESERVE: &str = "persistent reserve";

const READ_RESERVATIONS: &str = "read reservations";

/// Service actions of PERSISTENT RESERVE OUT.
mod action {
    pub const REGISTER: u8 = 0;
    pub const RESERVE: u8 = 1;
    pub const CLEAR: u8 = 3;
    pub const PREEMPT_AND_ABORT: u8 = 5;
    pub const REGISTER_ANYHOW: u8 = 6;
}

impl IscsiDevice {
    /// PERSISTENT RESERVE OUT. Whoever asks for it must know whether it was done: never issued twice.
    fn change(&self, action: u8, kind: u8, own: u64, other: u64) -> Result<(), DeviceError> {
        let registers = matches!(action, action::REGISTER | action::REGISTER_ANYHOW);
        let kept = registers && self.limits.keeps_keys;
        let (cdb, list) = cdb::reserve_out(action, kind, (own, other), kept);
        self.command(PERSISTENT_RESERVE, &cdb, Data::Out(&list), true).map(|_| ())
    }
    /// PERSISTENT RESERVE IN; as much as there is.
    fn look(&self, action: u8) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; usize::from(scsi::RESERVE_IN_LEN)];
        let cdb = cdb::reserve_in(action, scsi::RESERVE_IN_LEN);
        let ending = self.command(READ_RESERVATIONS, &cdb, Data::In(&mut bytes), false)?;
        bytes.truncate(bytes.len().saturating_sub(ending.missing));
        Ok(bytes)
    }
}

impl Reservations for IscsiDevice {
    fn register(&self, old: u64, new: u64) -> Result<(), DeviceError> {
        self.change(action::REGISTER, 0, old, new)?;
        self.link.registered(new);
        Ok(())
    }
    fn register_anyhow(&self, new: u64) -> Result<(), DeviceError> {
        self.change(action::REGISTER_ANYHOW, 0, 0, new)?;
        self.link.registered(new);
        Ok(())
    }
    fn reserve(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError> {
        self.change(action::RESERVE, kind as u8, own, 0)
    }
    fn clear(&self, own: u64) -> Result<(), DeviceError> {
        self.change(action::CLEAR, 0, own, 0)
    }
    fn preempt_and_abort(
        &self,
        own: u64,
        victim: u64,
        kind: ReservationKind,
    ) -> Result<(), DeviceError> {
        self.change(action::PREEMPT_AND_ABORT, kind as u8, own, victim)
    }
    fn registered(&self) -> u64 {
        self.link.key()
    }
    fn keys(&self) -> Result<Vec<u64>, DeviceError> {
        let all = scsi::keys(&self.look(0)?);
        let more = || io::Error::other("the unit has more registrations than it says");
        all.ok_or_else(|| self.error(READ_RESERVATIONS, ByteOffset(0), more()))
    }
    fn reservation(&self) -> Result<Option<Reservation>, DeviceError> {
        Ok(scsi::reservation(&self.look(1)?))
    }
    fn reset(&self) -> Result<(), DeviceError> {
        const OPERATION: &str = "reset";
        let ticket = self.link.reset().map_err(|e| self.gone(OPERATION, ByteOffset(0), &e))?;
        match ticket.wait() {
            ending if ending.status == super::ffi::STATUS_GOOD => Ok(()),
            ending => Err(self.error(OPERATION, ByteOffset(0), io::Error::from(ending))),
        }
    }
}
