//! Why bytes from a disk were refused.

use thiserror::Error;

/// A structure that failed verification: which, where, and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The magic number is not this structure's.
    #[error("{what} at {at}: bad magic {found:#x}")]
    BadMagic {
        /// Structure expected.
        what: &'static str,
        /// Block or byte address it was read from.
        at: u64,
        /// Value found.
        found: u64,
    },
    /// The checksum does not match.
    #[error("{what} at {at}: checksum {found:#010x}, computed {expected:#010x}")]
    ChecksumMismatch {
        /// Structure expected.
        what: &'static str,
        /// Address.
        at: u64,
        /// Computed.
        expected: u32,
        /// Stored.
        found: u32,
    },
    /// The structure says it belongs elsewhere (a misdirected write).
    #[error("{what} at {at}: says it is at {found}")]
    WrongAddress {
        /// Structure expected.
        what: &'static str,
        /// Where it was read.
        at: u64,
        /// Where it says it is.
        found: u64,
    },
    /// A metadata block of another kind.
    #[error("block {at}: expected {expected}, found kind {found}")]
    WrongKind {
        /// Kind expected.
        expected: &'static str,
        /// Address.
        at: u64,
        /// Kind number found.
        found: u16,
    },
    /// A field has a value that it cannot have.
    #[error("{what} at {at}: field {field} is {value}")]
    BadField {
        /// Structure.
        what: &'static str,
        /// Address.
        at: u64,
        /// Field.
        field: &'static str,
        /// Value found.
        value: u64,
    },
    /// Fewer bytes than the structure has.
    #[error("{what}: {len} bytes are too few")]
    TooShort {
        /// Structure.
        what: &'static str,
        /// Bytes given.
        len: usize,
    },
    /// Made by a braid of another format version.
    #[error(
        "{what}: format version {found}, and this braid reads version {known} only. Mount it with \
         the braid that made it and copy its files to a pool made by this one"
    )]
    OtherVersion {
        /// Structure.
        what: &'static str,
        /// Version found.
        found: u32,
        /// The version of this braid.
        known: u32,
    },
    /// Laid out by a braid that has another layout for this structure alone.
    #[error(
        "{what} at {at}: layout revision {found}, and this braid reads revision {known} only: another braid wrote it; use that one"
    )]
    OtherRevision {
        /// Structure.
        what: &'static str,
        /// Address.
        at: u64,
        /// Revision found.
        found: u32,
        /// The revision of this braid.
        known: u32,
    },
    /// A feature bit that this version does not know and may ignore only if it changes nothing.
    #[error(
        "{what}: unknown feature bits {bits:#x}; a newer braid made it, and this version may not change it: use that one"
    )]
    UnknownChange {
        /// Structure.
        what: &'static str,
        /// The bits.
        bits: u64,
    },
    /// A feature bit that this version does not know and may not ignore.
    #[error("{what}: unknown incompatible feature bits {bits:#x}; a newer braid made it")]
    UnknownFeature {
        /// Structure.
        what: &'static str,
        /// The bits.
        bits: u64,
    },
}
