//! The header that each message begins with. docs/BULK.md section 2.

use braid_format::crc::{crc32c, crc32c_with_hole};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest arguments of a message, bytes.
pub const ARGS_MAX: usize = 4096;
/// Most data of a message, bytes, whatever the server allows.
pub const DATA_MAX: usize = 4 << 20;

/// The header as it is sent.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeader {
    /// "BULK".
    pub magic: [u8; 4],
    /// 1: request, 2: reply.
    pub kind: u8,
    /// An operation.
    pub op: u8,
    /// 1 in the first: something stands before the arguments.
    pub flags: [u8; 2],
    /// Number of the request in its slot.
    pub sequence: U64,
    /// Open file that the request is about.
    pub handle: U64,
    /// First byte in the file.
    pub offset: U64,
    /// Bytes.
    pub length: U32,
    /// Of a reply: what came of the request.
    pub status: U32,
    /// Bytes of arguments behind the header.
    pub args_len: U32,
    /// Bytes of data behind the arguments.
    pub data_len: U32,
    /// CRC-32C of the arguments.
    pub args_crc: U32,
    /// CRC-32C of the data.
    pub data_crc: U32,
    /// Zero.
    pub reserved: U32,
    /// CRC-32C of the header, with this field as zero.
    pub header_crc: U32,
}
const _: () = assert!(size_of::<RawHeader>() == RawHeader::LEN);
const _: () = assert!(core::mem::offset_of!(RawHeader, sequence) == 8);
const _: () = assert!(core::mem::offset_of!(RawHeader, offset) == 24);
const _: () = assert!(core::mem::offset_of!(RawHeader, args_len) == 40);
const _: () = assert!(core::mem::offset_of!(RawHeader, header_crc) == RawHeader::CRC_AT);

impl RawHeader {
    /// Bytes.
    pub const LEN: usize = 64;
    const MAGIC: [u8; 4] = *b"BULK";
    const CRC_AT: usize = 60;
}

/// Whether a message asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It asks.
    Request = 1,
    /// It answers.
    Reply = 2,
}

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Request or reply.
    pub kind: Kind,
    /// An operation's number; the receiver may not know it.
    pub op: u8,
    /// Before the arguments stands who asks ([`super::Caller`]), or in a reply what it means for leases
    /// ([`super::LeaseNote`]).
    pub prefixed: bool,
    /// Number of the request in its slot.
    pub sequence: u64,
    /// Open file that the request is about.
    pub handle: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Of a reply: what came of the request.
    pub status: u32,
    /// Bytes of arguments behind the header.
    pub args_len: u32,
    /// Bytes of data behind the arguments.
    pub data_len: u32,
    /// CRC-32C of the arguments.
    pub args_crc: u32,
    /// CRC-32C of the data.
    pub data_crc: u32,
}

/// Why bytes from the other side are no message. What follows them cannot be read either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Something else than this protocol is spoken.
    #[error("not a message of the bulk service")]
    Magic,
    /// It begins as TLS does.
    #[error("TLS, where messages without it are expected")]
    Tls,
    /// Bytes changed on the way.
    #[error("the checksum of a message's {part} is {found:08x}, not {expected:08x}")]
    Checksum {
        /// Which part.
        part: &'static str,
        /// As the message says.
        expected: u32,
        /// As it is.
        found: u32,
    },
    /// Neither request nor reply, or a reserved field is in use.
    #[error("a message's header has an unknown value")]
    Unknown,
    /// More bytes than either side takes.
    #[error("a message with {len} bytes of {part}: at most {most} are allowed")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// As the header says.
        len: u32,
        /// As many are allowed.
        most: usize,
    },
    /// The arguments are not those of the operation.
    #[error("the arguments of operation {op} cannot be read")]
    Arguments {
        /// Which.
        op: u8,
    },
}

impl Header {
    /// A request; what follows the header is not counted yet.
    pub fn request(op: u8) -> Self {
        Self {
            kind: Kind::Request,
            op,
            prefixed: false,
            sequence: 0,
            handle: 0,
            offset: 0,
            length: 0,
            status: 0,
            args_len: 0,
            data_len: 0,
            args_crc: 0,
            data_crc: 0,
        }
    }

    /// The answer to `request`; what follows is not counted yet.
    pub fn reply(request: &Self, status: u32) -> Self {
        let (op, sequence) = (request.op, request.sequence);
        Self { kind: Kind::Reply, sequence, status, ..Self::request(op) }
    }

    /// TLS begins so: a handshake, version 3.
    const TLS: [u8; 2] = [22, 3];

    /// Whether these bytes begin a message, as far as they go.
    pub fn is_begun(bytes: &[u8]) -> bool {
        let len = bytes.len().min(RawHeader::MAGIC.len());
        len > 0 && bytes.get(..len) == RawHeader::MAGIC.get(..len)
    }

    /// Counts what follows, and seals it.
    ///
    /// # Panics
    /// It is longer than a message may be.
    pub fn seal(&mut self, args: &[u8], data: &[u8]) -> [u8; RawHeader::LEN] {
        assert!(args.len() <= ARGS_MAX && data.len() <= DATA_MAX, "a message that is too long");
        self.args_len = u32::try_from(args.len()).expect("at most ARGS_MAX");
        self.data_len = u32::try_from(data.len()).expect("at most DATA_MAX");
        self.args_crc = crc32c(args);
        self.data_crc = crc32c(data);
        self.encode()
    }

    fn encode(&self) -> [u8; RawHeader::LEN] {
        let mut raw = RawHeader {
            magic: RawHeader::MAGIC,
            kind: self.kind as u8,
            op: self.op,
            flags: [u8::from(self.prefixed), 0],
            sequence: self.sequence.into(),
            handle: self.handle.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            status: self.status.into(),
            args_len: self.args_len.into(),
            data_len: self.data_len.into(),
            args_crc: self.args_crc.into(),
            data_crc: self.data_crc.into(),
            reserved: 0.into(),
            header_crc: 0.into(),
        };
        raw.header_crc = crc32c(raw.as_bytes()).into();
        zerocopy::transmute!(raw)
    }

    /// Reads a header. The lengths in it are within the limits.
    ///
    /// # Errors
    /// It is none, or more would follow than is allowed.
    pub fn decode(bytes: &[u8; RawHeader::LEN]) -> Result<Self, FrameError> {
        let raw: RawHeader = zerocopy::transmute!(*bytes);
        if raw.magic[..2] == Self::TLS {
            return Err(FrameError::Tls);
        }
        if raw.magic != RawHeader::MAGIC {
            return Err(FrameError::Magic);
        }
        let found = crc32c_with_hole(bytes, RawHeader::CRC_AT);
        check("header", raw.header_crc.get(), found)?;
        let kind = match raw.kind {
            1 => Kind::Request,
            2 => Kind::Reply,
            _ => return Err(FrameError::Unknown),
        };
        let prefixed = match raw.flags {
            [0, 0] => false,
            [1, 0] => true,
            _ => return Err(FrameError::Unknown),
        };
        if raw.reserved.get() != 0 {
            return Err(FrameError::Unknown);
        }
        within("arguments", raw.args_len.get(), ARGS_MAX)?;
        within("data", raw.data_len.get(), DATA_MAX)?;
        Ok(Self {
            kind,
            op: raw.op,
            prefixed,
            sequence: raw.sequence.get(),
            handle: raw.handle.get(),
            offset: raw.offset.get(),
            length: raw.length.get(),
            status: raw.status.get(),
            args_len: raw.args_len.get(),
            data_len: raw.data_len.get(),
            args_crc: raw.args_crc.get(),
            data_crc: raw.data_crc.get(),
        })
    }

    /// Whether these are the arguments that were sealed.
    ///
    /// # Errors
    /// They are not.
    pub fn check_args(&self, args: &[u8]) -> Result<(), FrameError> {
        check("arguments", self.args_crc, crc32c(args))
    }

    /// Whether this is the data that was sealed.
    ///
    /// # Errors
    /// It is not.
    pub fn check_data(&self, data: &[u8]) -> Result<(), FrameError> {
        check("data", self.data_crc, crc32c(data))
    }
}

fn check(part: &'static str, expected: u32, found: u32) -> Result<(), FrameError> {
    if expected == found { Ok(()) } else { Err(FrameError::Checksum { part, expected, found }) }
}

/// Whether a message may have so many bytes of something.
///
/// # Errors
/// It may not.
pub fn within(part: &'static str, len: u32, most: usize) -> Result<(), FrameError> {
    if usize::try_from(len).is_ok_and(|len| len <= most) {
        Ok(())
    } else {
        Err(FrameError::TooLong { part, len, most })
    }
}
