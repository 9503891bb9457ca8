//! Persistent reservations (SPC-4, section 5.13; PERSISTENT RESERVE IN and OUT) as a unit's commands:
//! one code for units of targets and for the kernel's disks.

use std::io;

use super::unit::Data;
use super::{cdb, unit};
use crate::{DeviceError, Reservation, ReservationKind};

/// Room for the answer to PERSISTENT RESERVE IN: 1,024 keys.
pub(crate) const RESERVE_IN_LEN: u16 = 8 + 8 * 1024;

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

/// Has a unit do commands to their end, by whatever way. What says that it did not run (unit
/// attention, busy) is issued again; a reservation conflict is [`DeviceError::Fenced`].
pub(crate) trait Carrier {
    /// Has a command done; the bytes of `data` that were not moved. `once`: it is never issued again
    /// when it may have been done.
    fn carry(
        &self,
        operation: &'static str,
        cdb: &[u8],
        data: Data<'_>,
        once: bool,
    ) -> Result<usize, DeviceError>;
    /// Whether registrations are to outlive a loss of power.
    fn keeps_keys(&self) -> bool;
    /// An operation failed.
    fn failed(&self, operation: &'static str, source: io::Error) -> DeviceError;
}

/// PERSISTENT RESERVE OUT. Whoever asks for it must know whether it was done: never issued twice.
fn change(
    carrier: &impl Carrier,
    action: u8,
    kind: u8,
    keys: (u64, u64),
) -> Result<(), DeviceError> {
    let registers = matches!(action, action::REGISTER | action::REGISTER_ANYHOW);
    let kept = registers && carrier.keeps_keys();
    let (cdb, list) = cdb::reserve_out(action, kind, keys, kept);
    carrier.carry(PERSISTENT_RESERVE, &cdb, Data::Out(&list), true).map(|_| ())
}

/// PERSISTENT RESERVE IN; as much as there is.
fn look(carrier: &impl Carrier, action: u8) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; usize::from(RESERVE_IN_LEN)];
    let cdb = cdb::reserve_in(action, RESERVE_IN_LEN);
    let missing = carrier.carry(READ_RESERVATIONS, &cdb, Data::In(&mut bytes), false)?;
    bytes.truncate(bytes.len().saturating_sub(missing));
    Ok(bytes)
}

/// REGISTER.
pub(crate) fn register(carrier: &impl Carrier, old: u64, new: u64) -> Result<(), DeviceError> {
    change(carrier, action::REGISTER, 0, (old, new))
}

/// REGISTER AND IGNORE EXISTING KEY.
pub(crate) fn register_anyhow(carrier: &impl Carrier, new: u64) -> Result<(), DeviceError> {
    change(carrier, action::REGISTER_ANYHOW, 0, (0, new))
}

/// RESERVE.
pub(crate) fn reserve(
    carrier: &impl Carrier,
    own: u64,
    kind: ReservationKind,
) -> Result<(), DeviceError> {
    change(carrier, action::RESERVE, kind as u8, (own, 0))
}

/// CLEAR.
pub(crate) fn clear(carrier: &impl Carrier, own: u64) -> Result<(), DeviceError> {
    change(carrier, action::CLEAR, 0, (own, 0))
}

/// PREEMPT AND ABORT.
pub(crate) fn preempt_and_abort(
    carrier: &impl Carrier,
    (own, victim): (u64, u64),
    kind: ReservationKind,
) -> Result<(), DeviceError> {
    change(carrier, action::PREEMPT_AND_ABORT, kind as u8, (own, victim))
}

/// READ KEYS.
pub(crate) fn keys(carrier: &impl Carrier) -> Result<Vec<u64>, DeviceError> {
    let all = unit::keys(&look(carrier, 0)?);
    let more = || io::Error::other("the unit has more registrations than it says");
    all.ok_or_else(|| carrier.failed(READ_RESERVATIONS, more()))
}

/// READ RESERVATION.
pub(crate) fn reservation(carrier: &impl Carrier) -> Result<Option<Reservation>, DeviceError> {
    Ok(unit::reservation(&look(carrier, 1)?))
}
