//! SCSI: commands and sense data as bytes, what a unit does by them, and the kernel's way to a disk.
//!
//! [`Unit`] knows COMPARE AND WRITE (SBC-3) over any [`Transport`]; the one here is SG_IO, for the
//! kernel's disks. Persistent reservations (SPC-4) are made on units of targets only: of them there
//! are the bytes. Everything but its ioctl is bytes and is tested
//! against the crate of the target, which reads them by its own code.

pub mod cdb;
mod sense;
mod sg;
mod unit;

pub use sense::Sense;
pub use unit::{Answer, Data, ScsiError, Transport, Unit};

pub(crate) use sg::{SgIo, first_block};
pub(crate) use unit::{keys, reservation, settle};

/// Room for the answer to PERSISTENT RESERVE IN: 1,024 keys.
pub(crate) const RESERVE_IN_LEN: u16 = 8 + 8 * 1024;
