//! How a SCSI command ends: data and good status, or why it was not done.

use crate::buffers::Buf;
use crate::sense::Sense;

/// Statuses.
pub(crate) mod status {
    pub const GOOD: u8 = 0;
    pub const CHECK: u8 = 2;
    pub const CONFLICT: u8 = 0x18;
    pub const ABORTED: u8 = 0x40;
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
