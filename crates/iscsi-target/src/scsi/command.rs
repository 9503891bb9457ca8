//! A command under execution, and a row of the table of commands.

use std::sync::Arc;

use crate::faults::Kind;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::outcome::Outcome;
use crate::pdu::Cdb;
use crate::reservations::Access;
use crate::state::TargetState;
use crate::tasks::Task;

/// A command on a unit.
pub(crate) struct Command<'a> {
    pub lun: &'a Arc<Lun>,
    pub nexus: &'a Nexus,
    pub cdb: &'a Cdb,
    /// What the initiator sent.
    pub data: &'a [u8],
    pub task: &'a Task,
    pub target: &'a TargetState,
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
