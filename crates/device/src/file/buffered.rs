//! Writes of a file that direct I/O does not take: they go through the page cache.
//!
//! A file system that writes a file's blocks elsewhere instead of in place takes only whole blocks by
//! direct I/O: XFS, once the file's blocks have been shared with a copy (`cp --reflink`). A file with
//! sectors of 512 bytes may become such a file at any time, also while it is open.
//!
//! Such a write is as good as a direct one, for those who share the file: nodes of this host.
//!
//! * The kernel changes the bytes of the write and no others: it reads the rest of the block, and changes
//!   it, under the file's own lock, which other buffered writes take as well. Direct writes of whole blocks
//!   drop what is cached of them, before and after. So the sectors beside it keep what others wrote there.
//! * A direct read of the range finds what was written: the kernel writes cached changes back first.
//! * It is complete and not durable. A flush of any descriptor of the file makes it durable, or fails.
//!
//! The node itself never reads a block to write it back with one sector changed: another node may have
//! written the next sector meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use braid_format::{ByteOffset, Bytes};

use crate::BufferedTarget;

/// A file that is written by direct I/O, opened once more without it.
#[derive(Debug)]
pub(super) struct Buffered {
    file: File,
    /// Direct writes are whole units of this, as far as is known.
    unit: Bytes,
}

impl Buffered {
    /// `direct` is what `path` was opened as.
    ///
    /// # Errors
    /// It cannot be opened, or another file has that path by now.
    pub fn beside(direct: &File, path: &Path, unit: Bytes) -> io::Result<Self> {
        let file = File::options().write(true).open(path)?;
        let inode = |f: &File| f.metadata().map(|m| (m.dev(), m.ino()));
        if inode(&file)? != inode(direct)? {
            return Err(io::Error::other("another file has this path by now"));
        }
        Ok(Self { file, unit })
    }
    /// For a ring.
    pub fn target(&self) -> BufferedTarget {
        BufferedTarget { fd: self.file.as_raw_fd(), unit: self.unit.to_usize() }
    }
    /// Writes by `direct` if it takes that, or else through the page cache.
    pub fn write_out(&self, direct: &File, at: ByteOffset, buf: &[u8]) -> io::Result<()> {
        if self.target().takes(at.get(), buf.len()) {
            match direct.write_all_at(buf, at.get()) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
                other => return other,
            }
        }
        self.file.write_all_at(buf, at.get())
    }
}
