//! SCSI commands (SAM-5, SPC-4, SBC-3) on a logical unit.
//!
//! One table, [`COMMANDS`], says of each command which bits of its CDB mean something, whether a
//! reservation stands in its way, and what runs it; REPORT SUPPORTED OPERATION CODES shows that
//! same table.

mod caw;
mod inquiry;
mod mode;
pub(crate) mod reserve;
mod rw;
mod same;
mod sense;
mod supported;
mod unit;
mod verify;

use std::sync::Arc;

use crate::buffers::{Buf, Buffers};
use crate::faults::Kind;
use crate::lun::{Lun, Nexus};
use crate::tasks::Task;

pub(crate) use sense::Sense;

/// The first bytes of a command descriptor block: all that these commands use.
pub(crate) type Cdb = [u8; 16];

/// Statuses.
pub(crate) mod status {
    pub const GOOD: u8 = 0;
    pub const CHECK: u8 = 2;
    pub const CONFLICT: u8 = 0x18;
    pub const ABORTED: u8 = 0x40;
}

/// Whether somebody else's reservation stands in the way (SPC-4, table 66; SBC-3, table 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Never.
    Free,
    /// If it is exclusive of readers.
    Reads,
    /// Always.
    Writes,
}

/// Data for the initiator.
#[derive(Debug)]
pub(crate) enum DataIn {
    None,
    Small(Vec<u8>),
    Large(Buf),
}

impl DataIn {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Small(bytes) => bytes,
            Self::Large(buf) => buf,
        }
    }
}

/// A command that was done.
#[derive(Debug)]
pub(crate) struct Done {
    /// What the initiator gets.
    pub data: DataIn,
    /// Bytes of the initiator's that the command was to take: more or less than it sent is a
    /// residual.
    pub wanted: usize,
}

impl Done {
    /// Neither way.
    pub const GOOD: Self = Self { data: DataIn::None, wanted: 0 };
    /// Bytes for the initiator, at most `limit` (the allocation length).
    pub fn small(mut bytes: Vec<u8>, limit: usize) -> Self {
        bytes.truncate(limit);
        Self { data: DataIn::Small(bytes), wanted: 0 }
    }
    /// Took so many bytes.
    pub fn took(wanted: usize) -> Self {
        Self { data: DataIn::None, wanted }
    }
}

/// A command that was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Sense(Sense),
    Conflict,
    /// Somebody has aborted it meanwhile.
    Aborted,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

pub(crate) type Outcome = Result<Done, Refusal>;

/// A command on a unit.
pub(crate) struct Command<'a> {
    pub lun: &'a Arc<Lun>,
    pub nexus: &'a Nexus,
    pub cdb: &'a Cdb,
    /// What the initiator sent.
    pub data: &'a [u8],
    pub task: &'a Task,
    pub buffers: &'a Buffers,
}

/// A row of the table of commands.
#[derive(Debug)]
pub(crate) struct Spec {
    pub opcode: u8,
    /// Which of the commands of this opcode.
    pub service: Option<u8>,
    /// Which bits of the CDB mean something; its length is the CDB's.
    pub usage: &'static [u8],
    pub access: Access,
    pub kind: Kind,
    pub run: fn(&Command<'_>) -> Outcome,
}

/// A pending unit attention does not stop these (SAM-5, section 5.14.5).
const REPORT_ANYHOW: [u8; 3] = [inquiry::INQUIRY, unit::REPORT_LUNS, unit::REQUEST_SENSE];

/// The row of a CDB.
fn find(cdb: &Cdb) -> Option<&'static Spec> {
    let mine = |s: &&Spec| s.opcode == cdb[0] && s.service.is_none_or(|n| n == cdb[1] & 0x1f);
    COMMANDS.iter().find(mine)
}

/// What a fault calls a command.
pub(crate) fn kind(cdb: &Cdb) -> Kind {
    find(cdb).map_or(Kind::Other, |s| s.kind)
}

/// Whether a command neither waits for a disk nor moves much.
pub(crate) fn is_short(lun: &Lun, cdb: &Cdb, transfer: usize) -> bool {
    const SHORT: usize = 32 << 10;
    let forced = cdb[1] & rw::FUA != 0 && lun.write_cache;
    let waits = match find(cdb).map_or(Kind::Other, |s| s.kind) {
        Kind::Read | Kind::Ready => false,
        Kind::Write => forced || matches!(cdb[0], 0x41 | 0x42 | 0x93),
        Kind::CompareAndWrite => forced,
        Kind::Any | Kind::Flush | Kind::Reserve | Kind::Other => true,
    };
    lun.fast && transfer <= SHORT && !waits
}

/// Whether a command reads or changes persistent reservations.
pub(crate) fn is_reservation(cdb: &Cdb) -> bool {
    matches!(cdb[0], 0x5e | 0x5f)
}

/// Runs a command.
pub(crate) fn execute(command: &Command<'_>) -> Outcome {
    let spec = find(command.cdb);
    if !REPORT_ANYHOW.contains(&command.cdb[0])
        && let Some(a) = command.lun.attention(command.nexus)
    {
        return Err(Sense::attention(a.0, a.1).into());
    }
    let Some(spec) = spec else {
        let known = COMMANDS.iter().any(|s| s.opcode == command.cdb[0]);
        return Err(if known { Sense::field(1) } else { Sense::OPCODE }.into());
    };
    // Looked at after the task stands in the table: who takes the right away waits for the task.
    if spec.access != Access::Free
        && command.lun.reservations.lock().conflicts(command.nexus, spec.access)
    {
        return Err(Refusal::Conflict);
    }
    (spec.run)(command)
}

/// On a unit that is not there.
pub(crate) fn execute_nowhere(cdb: &Cdb, luns: &[Arc<Lun>]) -> Outcome {
    match cdb[0] {
        inquiry::INQUIRY => inquiry::nowhere(cdb),
        unit::REPORT_LUNS => unit::report_luns_of(cdb, luns),
        unit::REQUEST_SENSE => {
            Ok(Done::small(Sense::NO_UNIT.bytes().to_vec(), usize::from(cdb[4])))
        }
        _ => Err(Sense::NO_UNIT.into()),
    }
}

/// 16 bits at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}
/// 32 bits at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}
/// 64 bits at `at`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Rows are wide on purpose: one command, one line.
#[rustfmt::skip]
pub(crate) static COMMANDS: &[Spec] = {
    use Access::{Free, Reads, Writes};
    const fn row(
        opcode: u8, service: Option<u8>, usage: &'static [u8], access: Access, kind: Kind,
        run: fn(&Command<'_>) -> Outcome,
    ) -> Spec {
        Spec { opcode, service, usage, access, kind, run }
    }
    &[
        row(0x00, None, &[0x00, 0, 0, 0, 0, 0x07], Free, Kind::Ready, unit::ready),
        row(0x03, None, &[0x03, 0x01, 0, 0, 0xff, 0x07], Free, Kind::Other, unit::request_sense),
        row(0x08, None, &[0x08, 0x1f, 0xff, 0xff, 0xff, 0x07], Reads, Kind::Read, rw::read),
        row(0x0a, None, &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0x07], Writes, Kind::Write, rw::write),
        row(0x12, None, &[0x12, 0x01, 0xff, 0xff, 0xff, 0x07], Free, Kind::Other, inquiry::inquiry),
        row(0x1a, None, &[0x1a, 0x08, 0xff, 0xff, 0xff, 0x07], Writes, Kind::Other, mode::sense6),
        row(0x25, None, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0x07], Free, Kind::Other, unit::capacity10),
        row(0x28, None, &[0x28, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Reads, Kind::Read, rw::read),
        row(0x2a, None, &[0x2a, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Writes, Kind::Write, rw::write),
        row(0x2e, None, &[0x2e, 0xf6, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Writes, Kind::Write, verify::write_verify),
        row(0x2f, None, &[0x2f, 0xf6, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Reads, Kind::Read, verify::verify),
        row(0x34, None, &[0x34, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Reads, Kind::Other, rw::prefetch),
        row(0x35, None, &[0x35, 0x06, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Writes, Kind::Flush, rw::flush),
        row(0x41, None, &[0x41, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0x07], Writes, Kind::Write, same::write_same),
        row(0x42, None, &[0x42, 0x01, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0x07], Writes, Kind::Write, same::unmap),
        row(0x5a, None, &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0x07], Writes, Kind::Other, mode::sense10),
        row(0x5e, Some(0), &[0x5e, 0x00, 0, 0, 0, 0, 0, 0xff, 0xff, 0x07], Free, Kind::Other, reserve::read_keys),
        row(0x5e, Some(1), &[0x5e, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0x07], Free, Kind::Other, reserve::read_reservation),
        row(0x5e, Some(2), &[0x5e, 0x02, 0, 0, 0, 0, 0, 0xff, 0xff, 0x07], Free, Kind::Other, reserve::capabilities),
        row(0x5e, Some(3), &[0x5e, 0x03, 0, 0, 0, 0, 0, 0xff, 0xff, 0x07], Free, Kind::Other, reserve::full_status),
        row(0x5f, Some(0), &[0x5f, 0x00, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(1), &[0x5f, 0x01, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(2), &[0x5f, 0x02, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(3), &[0x5f, 0x03, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(4), &[0x5f, 0x04, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(5), &[0x5f, 0x05, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(6), &[0x5f, 0x06, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x5f, Some(7), &[0x5f, 0x07, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07], Free, Kind::Reserve, reserve::out),
        row(0x88, None, &[0x88, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Reads, Kind::Read, rw::read),
        row(0x89, None, &[0x89, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0x1f, 0x07], Writes, Kind::CompareAndWrite, caw::compare_and_write),
        row(0x8a, None, &[0x8a, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, rw::write),
        row(0x8b, None, &[0x8b, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, rw::or_write),
        row(0x8e, None, &[0x8e, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, verify::write_verify),
        row(0x8f, None, &[0x8f, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Reads, Kind::Read, verify::verify),
        row(0x90, None, &[0x90, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Reads, Kind::Other, rw::prefetch),
        row(0x91, None, &[0x91, 0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Flush, rw::flush),
        row(0x93, None, &[0x93, 0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, same::write_same),
        row(0x9e, Some(0x10), &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x07], Free, Kind::Other, unit::capacity16),
        row(0x9e, Some(0x12), &[0x9e, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x07], Reads, Kind::Other, unit::lba_status),
        row(0xa0, None, &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0x07], Free, Kind::Other, unit::report_luns),
        row(0xa3, Some(0x0c), &[0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x07], Free, Kind::Other, supported::report),
        row(0xa8, None, &[0xa8, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Reads, Kind::Read, rw::read),
        row(0xaa, None, &[0xaa, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, rw::write),
        row(0xae, None, &[0xae, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Writes, Kind::Write, verify::write_verify),
        row(0xaf, None, &[0xaf, 0xf6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0x07], Reads, Kind::Read, verify::verify),
    ]
};
