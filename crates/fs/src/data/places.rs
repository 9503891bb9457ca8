//! Where bytes of the pool are in a file.

use std::sync::Arc;

use braid_format::dinode::Layout;
use braid_format::{ByteOffset, InodeNo};

use super::HeldInode;
use crate::core::Core;
use crate::error::Result;
use crate::map::{self, LOGICAL_END};

/// Offsets in a regular file at which it has these bytes of the pool, which are sorted; in their order in the file.
/// Takes the file's lock shared.
///
/// # Errors
/// The file is gone, or its extents cannot be read.
pub(crate) fn offsets_of(
    core: &Arc<Core>,
    ino: InodeNo,
    places: &[ByteOffset],
) -> Result<Vec<u64>> {
    let locked = core.lock_shared(ino)?;
    let held = HeldInode::of(core, &locked);
    let view = held.view()?;
    let mut offsets = Vec::new();
    if view.layout != Layout::Extents {
        return Ok(offsets);
    }
    let block_size = core.volume.geo.block_size;
    let mut at = 0;
    while at < LOGICAL_END {
        let part = map::part(&mut held.reader(), held.bounds(), at)?;
        for extent in part.extents.iter().filter(|e| e.end() > at && !e.unwritten) {
            let first = block_size.offset_of(extent.physical);
            let end = first.0 + (extent.len << block_size.shift());
            let from = places.partition_point(|place| *place < first);
            let inside = places.iter().skip(from).take_while(|place| place.0 < end);
            let start = extent.logical << block_size.shift();
            offsets.extend(inside.map(|place| start + (place.0 - first.0)));
        }
        if part.high <= at {
            break;
        }
        at = part.high;
    }
    // What is behind the end is nobody's.
    offsets.retain(|offset| *offset < view.size);
    Ok(offsets)
}
