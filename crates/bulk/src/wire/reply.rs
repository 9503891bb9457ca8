//! Replies and their arguments.

use braid_format::InodeNo;
use braid_fs::{Attr, Plock, StatFs};

use super::attributes::{put_attr, put_totals, take_attr, take_totals};
use super::fields::{FieldReader, FieldWriter};
use super::header::{FrameError, Header};
use super::locks::{put_lock, take_lock};
use super::op;
use super::request::SessionId;
use super::server_life::ServerLife;

/// The answer to a [`Hello`](super::Hello).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Version that the server speaks.
    pub version: u32,
    /// The session.
    pub session: SessionId,
    /// Slots of a session.
    pub slots: u16,
    /// Most bytes of data in a message.
    pub data_max: u32,
    /// A session without a connection lasts so long, milliseconds.
    pub session_ms: u32,
    /// The write verifier: another one after each start of the server.
    pub verifier: u64,
    /// The root directory.
    pub root: InodeNo,
    /// Which node serves. Of version 4; `None`: none that other nodes know.
    pub life: Option<ServerLife>,
}

/// What a reply that is no failure says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It is done; what was read is in the data.
    Done,
    /// A connection serves.
    Welcome(Welcome),
    /// Attributes of an inode.
    Attr(Attr),
    /// A file is open.
    Opened {
        /// Number of the open file in the session.
        handle: u64,
        /// Its attributes.
        attr: Attr,
    },
    /// Bytes were written, or everything that was is durable.
    Written {
        /// How many.
        length: u32,
        /// The write verifier.
        verifier: u64,
    },
    /// Checksum of what a file holds.
    Checksum {
        /// XXH3, 128 bits.
        sum: u128,
        /// Of so many bytes: fewer than were asked for at the end of the file.
        length: u32,
    },
    /// Totals of the file system.
    Totals(StatFs),
    /// An offset in a file, bytes that were copied, or whether a lock is granted (1) or waited for (0).
    Number(u64),
    /// The lock that is in the way, if one is.
    InTheWay(Option<Plock>),
}

impl Reply {
    /// The header of the answer to `request`, and its arguments.
    pub fn encode(&self, request: &Header) -> (Header, Vec<u8>) {
        let mut header = Header::reply(request, 0);
        let mut to = FieldWriter::default();
        match self {
            Self::Done | Self::InTheWay(None) => {}
            Self::Welcome(w) => {
                to.u32(w.version).fixed(&w.session).u16(w.slots).u32(w.data_max);
                to.u32(w.session_ms).u64(w.verifier).u64(w.root.0);
                if let Some(life) = w.life {
                    life.put(&mut to);
                }
            }
            Self::Attr(attr) => put_attr(&mut to, attr),
            Self::Opened { handle, attr } => {
                header.handle = *handle;
                put_attr(&mut to, attr);
            }
            Self::Written { length, verifier } => {
                header.length = *length;
                to.u64(*verifier);
            }
            Self::Checksum { sum, length } => {
                header.length = *length;
                to.fixed(&sum.to_le_bytes());
            }
            Self::Totals(totals) => put_totals(&mut to, totals),
            Self::Number(number) => {
                to.u64(*number);
            }
            Self::InTheWay(Some(lock)) => put_lock(&mut to, lock),
        }
        (header, to.finish())
    }

    /// Reads a reply whose status is 0.
    ///
    /// # Errors
    /// These are not the arguments of a reply to its operation.
    pub fn decode(header: &Header, args: &[u8]) -> Result<Self, FrameError> {
        let mut from = FieldReader::new(args);
        let read = Self::read(header, &mut from).filter(|_| from.end().is_some());
        read.ok_or(FrameError::Arguments { op: header.op })
    }

    fn read(header: &Header, from: &mut FieldReader<'_>) -> Option<Self> {
        let length = header.length;
        Some(match header.op {
            op::HELLO => Self::Welcome(Welcome {
                version: from.u32()?,
                session: from.array()?,
                slots: from.u16()?,
                data_max: from.u32()?,
                session_ms: from.u32()?,
                verifier: from.u64()?,
                root: InodeNo(from.u64()?),
                life: if from.is_empty() { None } else { Some(ServerLife::take(from)?) },
            }),
            op::LOOKUP
            | op::GETATTR
            | op::SETATTR
            | op::MKDIR
            | op::MAKE_NODE
            | op::SYMLINK
            | op::LINK => Self::Attr(take_attr(from)?),
            op::CREATE | op::OPEN | op::MAKE_FILE | op::OPEN_AS | op::TMPFILE => {
                Self::Opened { handle: header.handle, attr: take_attr(from)? }
            }
            op::WRITE | op::COMMIT | op::SYNC => Self::Written { length, verifier: from.u64()? },
            op::SEEK | op::COPY | op::LOCK_WAIT => Self::Number(from.u64()?),
            op::GETLOCK if from.is_empty() => Self::InTheWay(None),
            op::GETLOCK => Self::InTheWay(Some(take_lock(from)?)),
            op::CHECKSUM => Self::Checksum { sum: u128::from_le_bytes(from.array()?), length },
            op::STATFS => Self::Totals(take_totals(from)?),
            _ => Self::Done,
        })
    }
}
