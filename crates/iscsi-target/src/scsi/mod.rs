//! SCSI commands (SAM-5, SPC-4, SBC-3) on a logical unit.
//!
//! One table, [`table::COMMANDS`], says of each command which bits of its CDB mean something, whether a
//! reservation stands in its way, and what runs it; REPORT SUPPORTED OPERATION CODES shows that
//! same table.

mod caw;
mod command;
mod inquiry;
mod mode;
mod persistent_reserve;
mod rw;
mod same;
mod supported;
mod table;
mod unit;
mod verify;

pub(crate) use command::Command;
pub(crate) use rw::FUA;
pub(crate) use table::{execute, execute_nowhere, is_reservation, is_short, kind};
