//! A name for an inode that has none: what a check found and nothing leads to.

use std::sync::Arc;

use braid_format::InodeNo;
use braid_format::dinode::RawDinode;

use super::{add_entry, kind_of, sealed, touch, vacant, writable};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::mode::S_IFDIR;

/// Puts `ino` into `dir` as `name`, and makes its link count `nlink`. Nobody else uses the file
/// system, and nothing leads to the inode. So a directory cannot end up inside itself.
pub(crate) fn adopt(
    core: &Arc<Core>,
    ino: InodeNo,
    dir: InodeNo,
    (name, nlink): (&[u8], u32),
) -> Result<()> {
    writable(core)?;
    let mut locked = core.lock_many(&[dir, ino])?;
    let (Some(inode), Some(dir)) = (locked.pop(), locked.pop()) else {
        return Err(Error::Stale(ino));
    };
    dir.require_dir()?;
    let place = vacant(core, &dir, name)?;
    let mut r = core.alloc.reserve(0, place.slots, 0)?;
    let kind = kind_of(inode.file_type());
    let mut tx = core.meta.begin()?;
    let done = (|| {
        inode.update(&mut tx, |raw| {
            raw.nlink = nlink.into();
            raw.flags = (raw.flags.get() & !RawDinode::FLAG_TMPFILE).into();
            if kind == kind_of(S_IFDIR) {
                raw.parent = dir.ino().get().into();
            }
            touch(raw);
        })?;
        add_entry(core, (&mut tx, &mut r), &dir, place, (name, ino, kind))
    })();
    drop(tx);
    sealed(core, done)
}
