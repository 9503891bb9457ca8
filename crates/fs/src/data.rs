//! File contents: dirty data held under exclusive locks, direct I/O, flush, truncate, fallocate.

use std::sync::Arc;

use braid_pool::device::AlignedBuf;

use crate::attr::WriteFlags;
use crate::core::Core;
use crate::error::Result;
use crate::handle::OpenFile;
use crate::inode::{Inode, Locked};

/// A file's dirty contents.
#[derive(Debug, Default)]
pub(crate) struct FileData {}

impl FileData {
    /// Contents that the devices do not have yet.
    #[expect(clippy::unused_self, reason = "signature first")]
    pub fn is_dirty(&self) -> bool {
        false
    }
}

/// The node's bound on dirty data, and who has some. One per mount, in [`Core`].
#[derive(Debug, Default)]
pub(crate) struct DirtyBound {}

/// Reads up to `len` bytes at `offset` and calls `reply` with them while the inode's lock is held.
pub(crate) fn read_reply<R>(
    core: &Arc<Core>,
    file: &OpenFile,
    offset: u64,
    len: u32,
    fill: bool,
    reply: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let _ = (core, file, offset, len, fill, reply);
    todo!()
}
/// Reads into the caller's memory; returns the bytes read.
pub(crate) fn read(
    core: &Arc<Core>,
    file: &OpenFile,
    offset: u64,
    buf: &mut AlignedBuf,
) -> Result<usize> {
    let _ = (core, file, offset, buf);
    todo!()
}
/// Writes; returns the bytes written.
pub(crate) fn write(
    core: &Arc<Core>,
    file: &OpenFile,
    offset: u64,
    bytes: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    let _ = (core, file, offset, bytes, flags);
    todo!()
}
/// Sets the size. Exclusive lock held.
pub(crate) fn truncate(core: &Arc<Core>, locked: &Locked, size: u64) -> Result<()> {
    let _ = (core, locked, size);
    todo!()
}
/// Writes dirty contents, then the transaction that makes them visible; not durable by itself.
/// Exclusive lock held.
pub(crate) fn flush_inode(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    let _ = (core, locked);
    todo!()
}
/// Contents (and all metadata, unless `data_only`) durable on return. No lock held.
pub(crate) fn fsync(core: &Arc<Core>, inode: &Arc<Inode>, data_only: bool) -> Result<()> {
    let _ = (core, inode, data_only);
    todo!()
}
/// Writes all dirty contents (and the dinode's dirty fields) of an inode whose exclusive lock this
/// node gives up: no new lock, no new reservation.
pub(crate) fn flush_for_demotion(core: &Core, inode: &Arc<Inode>) -> Result<()> {
    let _ = (core, inode);
    todo!()
}
/// fallocate(2).
pub(crate) fn fallocate(
    core: &Arc<Core>,
    file: &OpenFile,
    mode: i32,
    offset: u64,
    len: u64,
) -> Result<()> {
    let _ = (core, file, mode, offset, len);
    todo!()
}
/// lseek(2) with `SEEK_DATA` (3) or `SEEK_HOLE` (4).
pub(crate) fn lseek(core: &Arc<Core>, file: &OpenFile, offset: u64, whence: i32) -> Result<u64> {
    let _ = (core, file, offset, whence);
    todo!()
}
/// copy_file_range(2); returns the bytes copied.
pub(crate) fn copy_file_range(
    core: &Arc<Core>,
    from: (&OpenFile, u64),
    to: (&OpenFile, u64),
    len: u64,
) -> Result<u64> {
    let _ = (core, from, to, len);
    todo!()
}
/// Frees all contents (blocks and tree nodes) of an unlinked inode, in as many transactions as
/// needed; the inode is listed as an orphan meanwhile. Exclusive lock held.
pub(crate) fn free_contents(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    let _ = (core, locked);
    todo!()
}
