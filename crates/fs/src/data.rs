//! File contents: dirty data held under exclusive locks, direct I/O, flush, truncate, fallocate.

use std::sync::Arc;

use crate::core::Core;
use crate::error::Result;
use crate::inode::Inode;

/// A file's dirty contents.
#[derive(Debug, Default)]
pub(crate) struct FileData {}

/// Writes all dirty contents (and the dinode's dirty fields) of an inode whose exclusive lock this
/// node gives up: no new lock, no new reservation.
pub(crate) fn flush_for_demotion(core: &Core, inode: &Arc<Inode>) -> Result<()> {
    let _ = (core, inode);
    todo!()
}
