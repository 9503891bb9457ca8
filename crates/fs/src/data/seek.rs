//! lseek(2) with `SEEK_DATA` and `SEEK_HOLE`.

use std::sync::Arc;

use braid_format::dinode::Layout;
use braid_lock::{Local, Mode};

use super::{HeldInode, require_regular};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::handle::OpenFile;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The next byte of data, or of a hole, at or after `offset`. The end of the file counts as a hole;
/// blocks that were allocated and never written are one. While a program of this node may have stored
/// through a mapping what the kernel has not written back, all up to the end is data.
///
/// # Errors
/// `NoSuchOffset` at or past the end, or when no data follows.
pub(crate) fn lseek(core: &Arc<Core>, file: &OpenFile, offset: u64, whence: i32) -> Result<u64> {
    let want_data = match whence {
        SEEK_DATA => true,
        SEEK_HOLE => false,
        _ => return Err(Error::Invalid("whence of lseek")),
    };
    let locked = core.lock(file.inode.ino, Mode::Shared, Local::Shared)?;
    require_regular(&locked)?;
    let held = HeldInode::of(core, &locked);
    core.inflight.wait_for(file.inode.ino, &(offset..u64::MAX));
    let view = held.view()?;
    if offset >= view.size {
        return Err(Error::NoSuchOffset);
    }
    if file.inode.may_have_unseen_stores() {
        // Any part may hold some: all of it is data, which POSIX allows.
        return Ok(if want_data { offset } else { view.size });
    }
    if view.layout == Layout::Stuffed && !held.data().is_dirty() {
        return Ok(if want_data { offset } else { view.size });
    }
    let shift = held.shift();
    let (mut at, end) = (offset >> shift, held.blocks_for(view.size));
    while at < end {
        let pieces = held.lookup_some(at..end)?;
        let to = pieces.last().map_or(end, crate::writeback::extents::Piece::end);
        let dirty = held.data().pages.read().runs(shift, at..to);
        for piece in pieces {
            let mut here = piece.logical;
            while here < piece.end() {
                // Up to `upto` all blocks are alike.
                let run = dirty.iter().find(|r| r.end > here);
                let (is_dirty, upto) = match run {
                    Some(r) if r.start <= here => (true, r.end),
                    Some(r) => (false, r.start),
                    None => (false, u64::MAX),
                };
                if (is_dirty || piece.written().is_some()) == want_data {
                    return Ok((here << shift).max(offset));
                }
                here = upto.min(piece.end());
            }
        }
        at = to;
    }
    if want_data { Err(Error::NoSuchOffset) } else { Ok(view.size) }
}
