//! Requests that only mounts make. docs/BULK.md section 5 says what each does.

use braid_format::InodeNo;

use super::fields::{FieldReader, FieldWriter, NAME_MAX, ino, name};
use super::header::Header;
use super::op;

/// Longest value of an extended attribute, or list of their names, bytes.
pub const XATTR_MAX: usize = 64 << 10;

/// A request that only mounts make.
#[allow(missing_docs, reason = "docs/BULK.md section 5 says what each does")]
#[derive(Debug, Clone)]
pub enum MountRequest {
    ReadLink {
        ino: InodeNo,
    },
    GetXattr {
        ino: InodeNo,
        name: Vec<u8>,
    },
    /// The value is the message's data.
    SetXattr {
        ino: InodeNo,
        name: Vec<u8>,
        flags: u32,
    },
    ListXattr {
        ino: InodeNo,
    },
    RemoveXattr {
        ino: InodeNo,
        name: Vec<u8>,
    },
    MakeFile {
        dir: InodeNo,
        name: Vec<u8>,
        mode: u32,
        umask: u32,
        flags: u32,
    },
    OpenAs {
        ino: InodeNo,
        flags: u32,
        /// It was open before, and the server has begun anew.
        again: bool,
    },
    TmpFile {
        dir: InodeNo,
        mode: u32,
        umask: u32,
        flags: u32,
    },
    /// As `ReadDir`, with attributes. Of version 3.
    List {
        dir: InodeNo,
        cookie: u64,
        length: u32,
        handle: u64,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    Allocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Copy {
        handle: u64,
        offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    },
    Sync,
    MakeNode {
        dir: InodeNo,
        name: Vec<u8>,
        mode: u32,
        umask: u32,
        rdev: u64,
    },
    /// The target is the message's data.
    SymLink {
        dir: InodeNo,
        name: Vec<u8>,
    },
    Link {
        ino: InodeNo,
        dir: InodeNo,
        name: Vec<u8>,
    },
    RenameAs {
        from: (InodeNo, Vec<u8>),
        to: (InodeNo, Vec<u8>),
        flags: u32,
    },
}

/// Of open(2): what changes the file that is opened.
const O_TRUNC: u32 = 0o1000;
/// Of renameat2(2): both names stay, each with what the other had.
pub const RENAME_EXCHANGE: u32 = 2;

impl MountRequest {
    /// Its operation's number.
    pub const fn op(&self) -> u8 {
        match self {
            Self::ReadLink { .. } => op::READLINK,
            Self::GetXattr { .. } => op::GETXATTR,
            Self::SetXattr { .. } => op::SETXATTR,
            Self::ListXattr { .. } => op::LISTXATTR,
            Self::RemoveXattr { .. } => op::REMOVEXATTR,
            Self::MakeFile { .. } => op::MAKE_FILE,
            Self::OpenAs { .. } => op::OPEN_AS,
            Self::TmpFile { .. } => op::TMPFILE,
            Self::List { .. } => op::LIST,
            Self::Seek { .. } => op::SEEK,
            Self::Allocate { .. } => op::ALLOCATE,
            Self::Copy { .. } => op::COPY,
            Self::Sync => op::SYNC,
            Self::MakeNode { .. } => op::MAKE_NODE,
            Self::SymLink { .. } => op::SYMLINK,
            Self::Link { .. } => op::LINK,
            Self::RenameAs { .. } => op::RENAME_AS,
        }
    }

    /// See [`super::Request::is_idempotent`].
    pub(super) const fn is_idempotent(&self) -> bool {
        !matches!(
            self,
            Self::SetXattr { .. }
                | Self::RemoveXattr { .. }
                | Self::MakeFile { .. }
                | Self::MakeNode { .. }
                | Self::SymLink { .. }
                | Self::Link { .. }
                | Self::RenameAs { .. }
                | Self::Allocate { .. }
        )
    }

    /// See [`super::Request::is_change`].
    pub(super) const fn is_change(&self) -> bool {
        match self {
            Self::OpenAs { flags, .. } => *flags & 3 != 0 || *flags & O_TRUNC != 0,
            Self::ReadLink { .. }
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::List { .. }
            | Self::Seek { .. }
            | Self::Sync => false,
            _ => true,
        }
    }

    /// See [`super::Request::changes_names_or_attributes`].
    pub(super) const fn changes_names_or_attributes(&self) -> bool {
        match self {
            Self::OpenAs { flags, .. } => *flags & O_TRUNC != 0,
            Self::MakeFile { .. }
            | Self::SymLink { .. }
            | Self::Link { .. }
            | Self::MakeNode { .. }
            | Self::RenameAs { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. } => true,
            _ => false,
        }
    }

    /// The inodes that it names by number.
    pub(super) fn inodes(&self) -> Vec<InodeNo> {
        match self {
            Self::ReadLink { ino }
            | Self::GetXattr { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::ListXattr { ino }
            | Self::RemoveXattr { ino, .. }
            | Self::OpenAs { ino, .. } => vec![*ino],
            Self::MakeFile { dir, .. }
            | Self::TmpFile { dir, .. }
            | Self::List { dir, .. }
            | Self::MakeNode { dir, .. }
            | Self::SymLink { dir, .. } => vec![*dir],
            Self::Link { ino, dir, .. } => vec![*ino, *dir],
            Self::RenameAs { from, to, .. } => vec![from.0, to.0],
            Self::Seek { .. } | Self::Allocate { .. } | Self::Copy { .. } | Self::Sync => vec![],
        }
    }

    /// See [`super::Request::is_read`].
    pub(super) const fn is_read(&self) -> bool {
        matches!(
            self,
            Self::ReadLink { .. }
                | Self::GetXattr { .. }
                | Self::ListXattr { .. }
                | Self::List { .. }
        )
    }

    /// Its fields.
    pub(super) fn put(&self, header: &mut Header, to: &mut FieldWriter) {
        match self {
            Self::ReadLink { ino } | Self::ListXattr { ino } => {
                to.u64(ino.0);
            }
            Self::GetXattr { ino, name } | Self::RemoveXattr { ino, name } => {
                to.u64(ino.0).bytes(name);
            }
            Self::SetXattr { ino, name, flags } => {
                to.u64(ino.0).u32(*flags).bytes(name);
            }
            Self::MakeFile { dir, name, mode, umask, flags } => {
                to.u64(dir.0).u32(*mode).u32(*umask).u32(*flags).bytes(name);
            }
            Self::OpenAs { ino, flags, again } => {
                to.u64(ino.0).u32(*flags).u8(u8::from(*again));
            }
            Self::TmpFile { dir, mode, umask, flags } => {
                to.u64(dir.0).u32(*mode).u32(*umask).u32(*flags);
            }
            Self::List { dir, cookie, length, handle } => {
                (header.handle, header.offset, header.length) = (*handle, *cookie, *length);
                to.u64(dir.0);
            }
            Self::Seek { handle, offset, whence } => {
                (header.handle, header.offset) = (*handle, *offset);
                to.u32(*whence);
            }
            Self::Allocate { handle, offset, len, mode } => {
                (header.handle, header.offset) = (*handle, *offset);
                to.u64(*len).u32(*mode);
            }
            Self::Copy { handle, offset, to: other, to_offset, len } => {
                (header.handle, header.offset) = (*handle, *offset);
                to.u64(*other).u64(*to_offset).u64(*len);
            }
            Self::Sync => {}
            Self::MakeNode { dir, name, mode, umask, rdev } => {
                to.u64(dir.0).u32(*mode).u32(*umask).u64(*rdev).bytes(name);
            }
            Self::SymLink { dir, name } => {
                to.u64(dir.0).bytes(name);
            }
            Self::Link { ino, dir, name } => {
                to.u64(ino.0).u64(dir.0).bytes(name);
            }
            Self::RenameAs { from, to: into, flags } => {
                to.u64(from.0.0).u64(into.0.0).u32(*flags).bytes(&from.1).bytes(&into.1);
            }
        }
    }

    /// Reads one. `None`: its operation is not known, or these are not its fields.
    pub(super) fn read(header: &Header, from: &mut FieldReader<'_>) -> Option<Self> {
        let Header { handle, offset, .. } = *header;
        Some(match header.op {
            op::READLINK => Self::ReadLink { ino: ino(from)? },
            op::LISTXATTR => Self::ListXattr { ino: ino(from)? },
            op::GETXATTR => Self::GetXattr { ino: ino(from)?, name: word(from)? },
            op::REMOVEXATTR => Self::RemoveXattr { ino: ino(from)?, name: word(from)? },
            op::SETXATTR => {
                let (ino, flags) = (ino(from)?, from.u32()?);
                Self::SetXattr { ino, name: word(from)?, flags }
            }
            op::MAKE_FILE => {
                let (dir, mode, umask) = (ino(from)?, from.u32()?, from.u32()?);
                Self::MakeFile { dir, mode, umask, flags: from.u32()?, name: name(from)? }
            }
            op::OPEN_AS => {
                let (ino, flags) = (ino(from)?, from.u32()?);
                Self::OpenAs { ino, flags, again: from.u8().filter(|n| *n < 2)? == 1 }
            }
            op::TMPFILE => {
                let (dir, mode, umask) = (ino(from)?, from.u32()?, from.u32()?);
                Self::TmpFile { dir, mode, umask, flags: from.u32()? }
            }
            op::LIST => {
                Self::List { dir: ino(from)?, cookie: offset, length: header.length, handle }
            }
            op::SEEK => Self::Seek { handle, offset, whence: from.u32()? },
            op::ALLOCATE => {
                let len = from.u64()?;
                Self::Allocate { handle, offset, len, mode: from.u32()? }
            }
            op::COPY => {
                let (to, to_offset) = (from.u64()?, from.u64()?);
                Self::Copy { handle, offset, to, to_offset, len: from.u64()? }
            }
            op::SYNC => Self::Sync,
            op::MAKE_NODE => {
                let (dir, mode, umask) = (ino(from)?, from.u32()?, from.u32()?);
                Self::MakeNode { dir, mode, umask, rdev: from.u64()?, name: name(from)? }
            }
            op::SYMLINK => Self::SymLink { dir: ino(from)?, name: name(from)? },
            op::LINK => Self::Link { ino: ino(from)?, dir: ino(from)?, name: name(from)? },
            op::RENAME_AS => {
                let (dir, new_dir, flags) = (ino(from)?, ino(from)?, from.u32()?);
                let (old, new) = (name(from)?, name(from)?);
                Self::RenameAs { from: (dir, old), to: (new_dir, new), flags }
            }
            _ => return None,
        })
    }
}

/// The name of an extended attribute.
fn word(from: &mut FieldReader<'_>) -> Option<Vec<u8>> {
    let word = from.bytes(NAME_MAX)?;
    (!word.is_empty() && !word.contains(&0)).then(|| word.to_vec())
}
