//! Persistent reservations of a unit: who may write it, said by its own target.

use std::io;

use braid_format::ByteOffset;

use super::{Data, IscsiDevice};
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
    fn of(code: u8) -> Option<Self> {
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

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_ANYHOW: u8 = 6;

impl IscsiDevice {
    fn change(&self, action: u8, kind: u8, own: u64, other: u64) -> Result<(), DeviceError> {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&own.to_be_bytes());
        list[8..16].copy_from_slice(&other.to_be_bytes());
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        self.command("persistent reserve", &cdb, Data::Out(&list)).map(|_| ())
    }
    /// PERSISTENT RESERVE IN; as much as there is.
    fn look(&self, action: u8) -> Result<Vec<u8>, DeviceError> {
        const LEN: u16 = 8 + 8 * 1024;
        let mut bytes = vec![0; usize::from(LEN)];
        let [high, low] = LEN.to_be_bytes();
        let cdb = [0x5e, action, 0, 0, 0, 0, 0, high, low, 0];
        let ending = self.command("read reservations", &cdb, Data::In(&mut bytes))?;
        bytes.truncate(bytes.len().saturating_sub(ending.missing));
        Ok(bytes)
    }
}

fn key_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes)
}

impl Reservations for IscsiDevice {
    fn register(&self, old: u64, new: u64) -> Result<(), DeviceError> {
        self.change(REGISTER, 0, old, new)
    }
    fn register_anyhow(&self, new: u64) -> Result<(), DeviceError> {
        self.change(REGISTER_ANYHOW, 0, 0, new)
    }
    fn reserve(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError> {
        self.change(RESERVE, kind as u8, own, 0)
    }
    fn release(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError> {
        self.change(RELEASE, kind as u8, own, 0)
    }
    fn clear(&self, own: u64) -> Result<(), DeviceError> {
        self.change(CLEAR, 0, own, 0)
    }
    fn preempt_and_abort(
        &self,
        own: u64,
        victim: u64,
        kind: ReservationKind,
    ) -> Result<(), DeviceError> {
        self.change(PREEMPT_AND_ABORT, kind as u8, own, victim)
    }
    fn keys(&self) -> Result<Vec<u64>, DeviceError> {
        let bytes = self.look(0)?;
        Ok((8..bytes.len()).step_by(8).map_while(|at| key_at(&bytes, at)).collect())
    }
    fn reservation(&self) -> Result<Option<Reservation>, DeviceError> {
        let bytes = self.look(1)?;
        let Some(key) = key_at(&bytes, 8) else { return Ok(None) };
        let kind = bytes.get(21).and_then(|code| ReservationKind::of(code & 0x0f));
        Ok(kind.map(|kind| Reservation { key, kind }))
    }
    fn reset(&self) -> Result<(), DeviceError> {
        const OPERATION: &str = "reset";
        let ticket = self.session.reset().map_err(|e| self.ended(OPERATION, ByteOffset(0), &e))?;
        match ticket.wait() {
            ending if ending.status == super::ffi::STATUS_GOOD => Ok(()),
            ending => Err(self.error(OPERATION, ByteOffset(0), io::Error::from(ending))),
        }
    }
}
