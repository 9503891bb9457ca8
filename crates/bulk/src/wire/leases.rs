//! Leases: what a client may keep, and what it has to drop. docs/BULK.md section 10.

use braid_format::InodeNo;

use super::fields::{FieldReader, FieldWriter};
use super::header::{FrameError, Header};

/// Most inodes that a reply names. If there are more, it says that all are changed.
const CHANGED_MAX: usize = 64;

/// What a reply means for leases. It stands before the reply's arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseNote {
    /// The client has leases of the inodes that the request names, and of those that it found.
    pub granted: bool,
    /// All that the client has kept may be old.
    pub all: bool,
    /// Inodes that the request has changed, besides those that it names by number.
    pub changed: Vec<InodeNo>,
}

impl LeaseNote {
    /// As it stands before the arguments.
    pub fn encode(&self) -> Vec<u8> {
        let all = self.all || self.changed.len() > CHANGED_MAX;
        let named = if all { &[][..] } else { &self.changed[..] };
        let mut to = FieldWriter::default();
        to.u8(u8::from(self.granted) | u8::from(all) << 1);
        to.u8(u8::try_from(named.len()).unwrap_or(0));
        for ino in named {
            to.u64(ino.0);
        }
        to.finish()
    }

    /// Takes it off the arguments of a reply, if it is there: nothing is granted otherwise.
    ///
    /// # Errors
    /// It should be there, and is not.
    pub fn split<'a>(header: &Header, args: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        if !header.prefixed {
            return Ok((Self::default(), args));
        }
        let mut from = FieldReader::new(args);
        let note = Self::read(&mut from).ok_or(FrameError::Arguments { op: header.op })?;
        Ok((note, from.rest()))
    }

    fn read(from: &mut FieldReader<'_>) -> Option<Self> {
        let (bits, count) = (from.u8().filter(|bits| *bits < 4)?, usize::from(from.u8()?));
        // All are all: none is named then.
        if count > CHANGED_MAX || bits & 2 != 0 && count > 0 {
            return None;
        }
        let changed = (0..count).map(|_| from.u64().map(InodeNo)).collect::<Option<_>>()?;
        Some(Self { granted: bits & 1 != 0, all: bits & 2 != 0, changed })
    }
}

/// What the server says to a client that asks which leases are recalled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recalls {
    /// Of these recalls: the client says it when they are carried out.
    pub number: u64,
    /// Leases last for so long from when this was asked for.
    pub term_ms: u32,
    /// All leases are recalled.
    pub all: bool,
    /// Of these inodes.
    pub inodes: Vec<InodeNo>,
}

impl Recalls {
    /// As data of a message.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = FieldWriter::default();
        to.u64(self.number).u32(self.term_ms).u32(u32::from(self.all));
        for ino in &self.inodes {
            to.u64(ino.0);
        }
        to.finish()
    }
    /// `None`: it cannot be read.
    pub fn read(data: &[u8]) -> Option<Self> {
        let mut from = FieldReader::new(data);
        let (number, term_ms) = (from.u64()?, from.u32()?);
        let all = from.u32().filter(|n| *n < 2)? == 1;
        let mut inodes = Vec::new();
        while !from.is_empty() {
            inodes.push(InodeNo(from.u64()?));
        }
        Some(Self { number, term_ms, all, inodes })
    }
}
