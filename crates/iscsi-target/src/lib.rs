//! An iSCSI target (RFC 7143) over any Braid device: files, block devices, memory.
//!
//! It serves as a SAN on one host, and as the device that fails on purpose in tests of what must
//! survive one: see [`faults`].
//!
//! ```text
//! socket -> pdu -> login -> session ----> tasks -> faults -> scsi -> Device
//!                           (reader)      (which may be aborted, and which have ended)
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
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  limits          bounds of what a connection may take
//!  error           what ends a connection, a login, or a target
//!  text, pdu       `key=value` texts; protocol data units
//!  chap            who knows the secret
//!  negotiate       what both sides agree on at login
//!  pending_logins  connections that have not logged in
//!  buffers, ranges, workers  memory for data; ranges of a unit in use; threads
//!  faults          faults on purpose
//!  nexus           an initiator's port, and its unit attentions
//!  sense, outcome  how a SCSI command ends
//!  reservations    persistent reservations of a unit
//!  lun             a logical unit: a device, and what initiators have agreed on about it
//!  login           the login phase
//!  connection      a connection that has logged in: its numbers, what it sends
//!  tasks           commands under way
//!  session_table   the sessions of a target
//!  state           what the threads of a target have in common
//!  scsi            SCSI commands on a logical unit
//!  session         the full feature phase of one connection
//!  server          takes connections in
//!  control         the control socket of a running target
//! ```

#![forbid(unsafe_code)]

mod buffers;
mod chap;
mod connection;
mod control;
mod error;
pub mod faults;
mod limits;
mod login;
mod lun;
mod negotiate;
mod nexus;
mod outcome;
mod pdu;
mod pending_logins;
mod ranges;
mod reservations;
mod scsi;
mod sense;
mod server;
mod session;
mod session_table;
mod state;
mod tasks;
mod text;
mod workers;

pub use chap::{Chap, Secret};
pub use control::tell;
pub use error::{Broken, Refused, TargetError};
pub use limits::{COMMANDS_MAX, TRANSFER_MAX, WINDOW};
pub use lun::LunOptions;
pub use server::{Target, TargetOptions};
pub use session_table::SessionView;
