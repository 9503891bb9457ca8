//! SCSI: commands and sense data as bytes, what a unit does by them, and the kernel's way to a disk.
//!
//! [`Unit`] knows COMPARE AND WRITE (SBC-3) over any [`Transport`]; the one here is SG_IO, for the
//! kernel's disks. Persistent reservations (SPC-4) are the same commands for those and for units of
//! targets; who registers is not: see [`PathReservations`]. Everything but the ioctls is bytes and is
//! tested against the crate of the target, which reads them by its own code.

pub mod cdb;
mod path;
pub(crate) mod reserve;
mod sense;
mod sg;
mod unit;

pub use path::PathReservations;
pub use sense::{Sense, is_power_on};
pub use unit::{Answer, Data, ScsiError, Transport, Unit};

pub(crate) use reserve::RESERVE_IN_LEN;
pub(crate) use sg::{SgIo, first_block};
pub(crate) use unit::{keys, reservation, retry_until_compared};
