//! Persistent reservations by a session of its own: one key for each open device.

use std::io;

use braid_format::ByteOffset;

use super::unit::IscsiDevice;
use crate::scsi::reserve::{self, Carrier};
use crate::scsi::{Answer, Data, Sense, Transport};
use crate::{DeviceError, Reservation, ReservationKind, Reservations};

impl Carrier for IscsiDevice {
    fn carry(
        &self,
        operation: &'static str,
        cdb: &[u8],
        data: Data<'_>,
        once: bool,
    ) -> Result<usize, DeviceError> {
        self.command(operation, cdb, data, once).map(|ending| ending.missing)
    }
    fn keeps_keys(&self) -> bool {
        self.limits.keeps_keys
    }
    fn failed(&self, operation: &'static str, source: io::Error) -> DeviceError {
        self.error(operation, ByteOffset(0), source)
    }
}

impl Reservations for IscsiDevice {
    fn register(&self, old: u64, new: u64) -> Result<(), DeviceError> {
        reserve::register(self, old, new)?;
        self.link.registered(new);
        Ok(())
    }
    fn register_anyhow(&self, new: u64) -> Result<u64, DeviceError> {
        reserve::register_anyhow(self, new)?;
        self.link.registered(new);
        Ok(new)
    }
    fn reserve(&self, own: u64, kind: ReservationKind) -> Result<(), DeviceError> {
        reserve::reserve(self, own, kind)
    }
    fn clear(&self, own: u64) -> Result<(), DeviceError> {
        reserve::clear(self, own)
    }
    fn preempt_and_abort(
        &self,
        own: u64,
        victim: u64,
        kind: ReservationKind,
    ) -> Result<(), DeviceError> {
        reserve::preempt_and_abort(self, (own, victim), kind)
    }
    fn registered(&self) -> u64 {
        self.link.key()
    }
    fn keys(&self) -> Result<Vec<u64>, DeviceError> {
        reserve::keys(self)
    }
    fn reservation(&self) -> Result<Option<Reservation>, DeviceError> {
        reserve::reservation(self)
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

/// A session as the one path of a host: each command once, as the unit answers it. Keys registered so
/// are not looked for when the session is begun anew.
impl Transport for IscsiDevice {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
        let ending = self.issue_once(cdb, data)?;
        let (key, code) = ending.sense;
        let checks = ending.status == super::ffi::STATUS_CHECK;
        let sense = checks.then_some(Sense { key, code, information: None });
        let status = u8::try_from(ending.status).map_err(|_| io::Error::from(ending))?;
        Ok(Answer { status, sense, missing: ending.missing })
    }
    fn reset(&self) -> io::Result<()> {
        Reservations::reset(self).map_err(io::Error::other)
    }
}
