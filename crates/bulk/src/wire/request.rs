//! Requests and their arguments.

use braid_format::InodeNo;
use braid_fs::SetAttr;

use super::attributes::{put_set, take_set};
use super::fields::{FieldReader, FieldWriter, NAME_MAX, ino, name};
use super::header::{FrameError, Header};
use super::locks::LockRequest;
use super::mount::MountRequest;
use super::op;
use super::server_life::ServerLife;

/// How a WRITE is done: bits.
pub mod how {
    /// At the end of the file.
    pub const APPEND: u32 = 1;
    /// Contents are durable on return, and what is needed to read them.
    pub const STABLE: u32 = 2;
    /// All metadata, too. Of version 2, as those below.
    pub const ALL: u32 = 4;
    /// Set-user-ID and set-group-ID bits stay, if root opened the file.
    pub const KEEP_PRIVILEGES: u32 = 8;
    /// From mapped pages: does not extend the file.
    pub const FROM_PAGES: u32 = 16;
    /// To the devices, past the server's memory.
    pub const DIRECT: u32 = 32;
    /// All of them.
    pub const KNOWN: u32 = 63;
}

/// Names a session: who has it may use it.
pub type SessionId = [u8; 16];

/// What the sender of a [`Hello`] wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Begin a session.
    Session,
    /// Use a session by one more connection, or by one in the place of another.
    Join(SessionId),
    /// Begin a session after another one, with the server of which it was: when nothing of that one is under way any
    /// more. If it is this very server's and stands, join it. Of version 4.
    After(SessionId, ServerLife),
}

/// The first request of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Version that the client speaks.
    pub version: u32,
    /// With or without a session.
    pub begin: Begin,
    /// Slot that the connection's requests are of.
    pub slot: u16,
    /// The pool.
    pub pool: Vec<u8>,
    /// For people: who this is.
    pub client: Vec<u8>,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// It may be written.
    pub write: bool,
    /// Nothing is left of what it held.
    pub truncate: bool,
    /// Nobody else may have it open with this flag: a lock by flock(2).
    pub lock: bool,
}

impl OpenFlags {
    fn bits(self) -> u32 {
        let bits = [self.write, self.truncate, self.lock];
        bits.iter().rev().fold(0, |all, bit| all << 1 | u32::from(*bit))
    }
    fn of(bits: u32) -> Option<Self> {
        let is = |n: u32| bits >> n & 1 == 1;
        (bits < 8).then(|| Self { write: is(0), truncate: is(1), lock: is(2) })
    }
}

/// A request. What is in the header itself stands there, not in the arguments: handle, offset, length.
#[allow(missing_docs, reason = "docs/BULK.md section 5 says what each does")]
#[derive(Debug, Clone)]
pub enum Request {
    Hello(Hello),
    Ping,
    Bye,
    Lookup {
        dir: InodeNo,
        name: Vec<u8>,
    },
    GetAttr {
        ino: InodeNo,
    },
    SetAttr {
        ino: InodeNo,
        set: SetAttr,
        /// An open file through which it is asked for; 0: none.
        handle: u64,
    },
    ReadDir {
        dir: InodeNo,
        cookie: u64,
        length: u32,
        /// The directory, if it is open; 0: it is not.
        handle: u64,
    },
    StatFs,
    Create {
        dir: InodeNo,
        name: Vec<u8>,
        mode: u32,
        flags: OpenFlags,
    },
    Open {
        ino: InodeNo,
        generation: u64,
        flags: OpenFlags,
    },
    Close {
        handle: u64,
    },
    Read {
        handle: u64,
        offset: u64,
        length: u32,
        /// The client keeps it under a lease. Of version 3.
        keep: bool,
    },
    /// The bytes are the message's data.
    Write {
        handle: u64,
        offset: u64,
        /// Bits of [`how`].
        how: u32,
    },
    Commit {
        handle: u64,
    },
    Checksum {
        handle: u64,
        offset: u64,
        length: u32,
    },
    MkDir {
        dir: InodeNo,
        name: Vec<u8>,
        mode: u32,
    },
    Unlink {
        dir: InodeNo,
        name: Vec<u8>,
    },
    RmDir {
        dir: InodeNo,
        name: Vec<u8>,
    },
    Rename {
        from: (InodeNo, Vec<u8>),
        to: (InodeNo, Vec<u8>),
        no_replace: bool,
    },
    SyncDir {
        dir: InodeNo,
    },
    /// Of mounts.
    Mount(MountRequest),
    /// Of mounts, about locks of programs.
    Lock(LockRequest),
    /// Which leases are recalled.
    Leases {
        /// Of the last recalls that were carried out: their number.
        done: u64,
        /// Waits for some.
        patience_ms: u32,
    },
}

impl Request {
    /// Its operation's number.
    pub const fn op(&self) -> u8 {
        match self {
            Self::Hello(_) => op::HELLO,
            Self::Ping => op::PING,
            Self::Bye => op::BYE,
            Self::Lookup { .. } => op::LOOKUP,
            Self::GetAttr { .. } => op::GETATTR,
            Self::SetAttr { .. } => op::SETATTR,
            Self::ReadDir { .. } => op::READDIR,
            Self::StatFs => op::STATFS,
            Self::Create { .. } => op::CREATE,
            Self::Open { .. } => op::OPEN,
            Self::Close { .. } => op::CLOSE,
            Self::Read { .. } => op::READ,
            Self::Write { .. } => op::WRITE,
            Self::Commit { .. } => op::COMMIT,
            Self::Checksum { .. } => op::CHECKSUM,
            Self::MkDir { .. } => op::MKDIR,
            Self::Unlink { .. } => op::UNLINK,
            Self::RmDir { .. } => op::RMDIR,
            Self::Rename { .. } => op::RENAME,
            Self::SyncDir { .. } => op::SYNC_DIR,
            Self::Mount(request) => request.op(),
            Self::Lock(request) => request.op(),
            Self::Leases { .. } => op::LEASES,
        }
    }

    /// Whether it does the same done once more: only then it may be sent to a server that has
    /// forgotten whether it did it.
    pub const fn is_idempotent(&self) -> bool {
        match self {
            Self::Write { how, .. } => *how & how::APPEND == 0,
            Self::Mount(request) => request.is_idempotent(),
            Self::Create { .. }
            | Self::MkDir { .. }
            | Self::Unlink { .. }
            | Self::RmDir { .. }
            | Self::Rename { .. } => false,
            _ => true,
        }
    }

    /// Whether it changes names or attributes. Those changes of mounts are durable when they are answered.
    pub const fn changes_names_or_attributes(&self) -> bool {
        match self {
            Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::MkDir { .. }
            | Self::Unlink { .. }
            | Self::RmDir { .. }
            | Self::Rename { .. } => true,
            Self::Mount(request) => request.changes_names_or_attributes(),
            _ => false,
        }
    }

    /// Whether it changes something, or keeps others from it: not for clients that may only read.
    pub const fn is_change(&self) -> bool {
        match self {
            Self::Open { flags, .. } => flags.write || flags.truncate || flags.lock,
            Self::SetAttr { .. }
            | Self::Create { .. }
            | Self::Write { .. }
            | Self::MkDir { .. }
            | Self::Unlink { .. }
            | Self::RmDir { .. }
            | Self::Rename { .. } => true,
            Self::Mount(request) => request.is_change(),
            Self::Lock(request) => request.is_change(),
            Self::Hello(_)
            | Self::Ping
            | Self::Bye
            | Self::Lookup { .. }
            | Self::GetAttr { .. }
            | Self::ReadDir { .. }
            | Self::StatFs
            | Self::Close { .. }
            | Self::Read { .. }
            | Self::Commit { .. }
            | Self::Checksum { .. }
            | Self::Leases { .. }
            | Self::SyncDir { .. } => false,
        }
    }

    /// The inodes that it names by number, if it may change something of inodes: of them, of others that it names by an
    /// open file, and of those that it finds by name.
    pub fn changed_inodes(&self) -> Option<Vec<InodeNo>> {
        if !self.is_change() {
            return None;
        }
        match self {
            Self::Lock(_) => None,
            Self::Mount(request) => Some(request.inodes()),
            Self::SetAttr { ino, .. } | Self::Open { ino, .. } => Some(vec![*ino]),
            Self::Create { dir, .. }
            | Self::MkDir { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::RmDir { dir, .. } => Some(vec![*dir]),
            Self::Rename { from, to, .. } => Some(vec![from.0, to.0]),
            _ => Some(Vec::new()),
        }
    }

    /// Names that lead elsewhere afterwards, or whose inodes it may change, and their directories.
    pub fn taken_names(&self) -> Vec<(InodeNo, Vec<u8>)> {
        match self {
            Self::Unlink { dir, name }
            | Self::RmDir { dir, name }
            | Self::Mount(MountRequest::MakeFile { dir, name, .. }) => vec![(*dir, name.clone())],
            Self::Rename { from, to, .. }
            | Self::Mount(MountRequest::RenameAs { from, to, .. }) => {
                vec![from.clone(), to.clone()]
            }
            _ => Vec::new(),
        }
    }

    /// Whether its reply holds data, so that it is done again when it is asked for again.
    pub const fn is_read(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::ReadDir { .. }
            | Self::Checksum { .. }
            | Self::Leases { .. } => true,
            Self::Mount(request) => request.is_read(),
            Self::Lock(request) => matches!(request, LockRequest::Events { .. }),
            _ => false,
        }
    }

    /// Its header, and its arguments.
    pub fn encode(&self) -> (Header, Vec<u8>) {
        let mut header = Header::request(self.op());
        let mut to = FieldWriter::default();
        match self {
            Self::Hello(hello) => {
                let (begins, session) = match hello.begin {
                    Begin::Session => (0, [0; 16]),
                    Begin::Join(session) => (1, session),
                    Begin::After(session, _) => (2, session),
                };
                to.u32(hello.version).u8(begins).fixed(&session).u16(hello.slot);
                to.bytes(&hello.pool).bytes(&hello.client);
                if let Begin::After(_, life) = &hello.begin {
                    life.put(&mut to);
                }
            }
            Self::Ping | Self::Bye | Self::StatFs => {}
            Self::GetAttr { ino: of } | Self::SyncDir { dir: of } => {
                to.u64(of.0);
            }
            Self::Lookup { dir, name } | Self::Unlink { dir, name } | Self::RmDir { dir, name } => {
                to.u64(dir.0).bytes(name);
            }
            Self::SetAttr { ino, set, handle } => {
                header.handle = *handle;
                put_set(to.u64(ino.0), set);
            }
            Self::ReadDir { dir, cookie, length, handle } => {
                (header.handle, header.offset, header.length) = (*handle, *cookie, *length);
                to.u64(dir.0);
            }
            Self::Create { dir, name, mode, flags } => {
                to.u64(dir.0).u32(*mode).u32(flags.bits()).bytes(name);
            }
            Self::Open { ino, generation, flags } => {
                to.u64(ino.0).u64(*generation).u32(flags.bits());
            }
            Self::Close { handle } | Self::Commit { handle } => header.handle = *handle,
            Self::Checksum { handle, offset, length } => {
                (header.handle, header.offset, header.length) = (*handle, *offset, *length);
            }
            Self::Read { handle, offset, length, keep } => {
                (header.handle, header.offset, header.length) = (*handle, *offset, *length);
                if *keep {
                    to.u8(1);
                }
            }
            Self::Write { handle, offset, how } => {
                (header.handle, header.offset) = (*handle, *offset);
                to.u32(*how);
            }
            Self::MkDir { dir, name, mode } => {
                to.u64(dir.0).u32(*mode).bytes(name);
            }
            Self::Rename { from, to: into, no_replace } => {
                to.u64(from.0.0).u64(into.0.0).u8(u8::from(*no_replace));
                to.bytes(&from.1).bytes(&into.1);
            }
            Self::Mount(request) => request.put(&mut header, &mut to),
            Self::Lock(request) => request.put(&mut header, &mut to),
            Self::Leases { done, patience_ms } => {
                to.u64(*done).u32(*patience_ms);
            }
        }
        (header, to.finish())
    }

    /// Reads a request.
    ///
    /// # Errors
    /// The operation is not known, or these are not its arguments.
    pub fn decode(header: &Header, args: &[u8]) -> Result<Self, FrameError> {
        let mut from = FieldReader::new(args);
        let read = Self::read(header, &mut from).filter(|_| from.end().is_some());
        // Only a write has data, and what is too long for the arguments.
        let with_data = matches!(header.op, op::WRITE | op::SETXATTR | op::SYMLINK);
        let plain = with_data || header.data_len == 0;
        read.filter(|_| plain).ok_or(FrameError::Arguments { op: header.op })
    }

    fn read(header: &Header, from: &mut FieldReader<'_>) -> Option<Self> {
        let Header { handle, offset, length, .. } = *header;
        Some(match header.op {
            op::HELLO => Self::Hello(hello(from)?),
            op::PING => Self::Ping,
            op::BYE => Self::Bye,
            op::STATFS => Self::StatFs,
            op::LOOKUP => Self::Lookup { dir: ino(from)?, name: name(from)? },
            op::UNLINK => Self::Unlink { dir: ino(from)?, name: name(from)? },
            op::RMDIR => Self::RmDir { dir: ino(from)?, name: name(from)? },
            op::GETATTR => Self::GetAttr { ino: ino(from)? },
            op::SYNC_DIR => Self::SyncDir { dir: ino(from)? },
            op::SETATTR => Self::SetAttr { ino: ino(from)?, set: take_set(from)?, handle },
            op::READDIR => Self::ReadDir { dir: ino(from)?, cookie: offset, length, handle },
            op::CREATE => {
                let (dir, mode, flags) = (ino(from)?, from.u32()?, OpenFlags::of(from.u32()?)?);
                Self::Create { dir, name: name(from)?, mode, flags }
            }
            op::OPEN => {
                let (ino, generation) = (ino(from)?, from.u64()?);
                Self::Open { ino, generation, flags: OpenFlags::of(from.u32()?)? }
            }
            op::CLOSE => Self::Close { handle },
            op::COMMIT => Self::Commit { handle },
            op::READ if from.is_empty() => Self::Read { handle, offset, length, keep: false },
            op::READ => {
                let keep = from.u8().filter(|n| *n == 1)? == 1;
                Self::Read { handle, offset, length, keep }
            }
            op::CHECKSUM => Self::Checksum { handle, offset, length },
            op::WRITE => {
                let how = from.u32().filter(|bits| bits & !how::KNOWN == 0)?;
                Self::Write { handle, offset, how }
            }
            op::MKDIR => {
                let (dir, mode) = (ino(from)?, from.u32()?);
                Self::MkDir { dir, name: name(from)?, mode }
            }
            op::RENAME => {
                let (dir, new_dir) = (ino(from)?, ino(from)?);
                let no_replace = from.u8().filter(|n| *n < 2)? == 1;
                let (old, new) = (name(from)?, name(from)?);
                Self::Rename { from: (dir, old), to: (new_dir, new), no_replace }
            }
            op::LEASES => Self::Leases { done: from.u64()?, patience_ms: from.u32()? },
            op::GETLOCK..=op::EVENTS => Self::Lock(LockRequest::read(header, from)?),
            _ => Self::Mount(MountRequest::read(header, from)?),
        })
    }
}

fn hello(from: &mut FieldReader<'_>) -> Option<Hello> {
    let (version, begins, session) = (from.u32()?, from.u8()?, from.array()?);
    let begin = match begins {
        0 if session == [0; 16] => Begin::Session,
        1 | 2 => Begin::Join(session),
        _ => return None,
    };
    let slot = from.u16()?;
    let (pool, client) = (from.bytes(NAME_MAX)?.to_vec(), from.bytes(NAME_MAX)?.to_vec());
    let begin = match begins {
        2 => Begin::After(session, ServerLife::take(from)?),
        _ => begin,
    };
    Some(Hello { version, begin, slot, pool, client })
}
