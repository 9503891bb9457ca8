//! An iSCSI target (RFC 7143) over any Braid device: files, block devices, memory.
//!
//! It serves as a SAN on one host, and as the device that fails on purpose in tests of what must
//! survive one: see [`faults`].
//!
//! ```text
//! socket -> pdu -> login -> session ----> tasks -> faults -> scsi -> Device
//!                           (reader)      (who may be aborted, and has ended)
//! ```
//!
//! Invariants:
//! * a command is in the table of tasks from before its right to run is looked at until its I/O has
//!   ended, so whoever takes that right away and then waits for the table has drained it;
//! * compare-and-write, of whatever length, is atomic among all sessions;
//! * a write with FUA, and all writes before a SYNCHRONIZE CACHE, are on the device when it is
//!   answered; that there is a write cache is said where there is one;
//! * nothing from the wire panics, and no memory is taken beyond [`TRANSFER_MAX`] a command and
//!   [`WINDOW`] commands a session, with immediate ones [`COMMANDS_MAX`].

#![forbid(unsafe_code)]

mod buffers;
mod chap;
mod control;
mod error;
pub mod faults;
mod login;
mod lun;
mod negotiate;
mod pdu;
mod ranges;
mod scsi;
mod server;
mod session;
mod strangers;
mod tasks;
mod text;
mod workers;

pub use chap::{Chap, Secret};
pub use control::tell;
pub use error::{Broken, Refused, TargetError};
pub use lun::LunOptions;
pub use server::{SessionView, Target, TargetOptions};

/// Most bytes that one command moves.
pub const TRANSFER_MAX: usize = 4 << 20;
/// Most commands of one session under way.
pub const WINDOW: u32 = 64;
/// Most of them, those outside the order of commands (immediate ones) counted.
pub const COMMANDS_MAX: usize = 128;
