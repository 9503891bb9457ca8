//! Reading names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_format::dinode::{Layout, RawDinode};
use braid_format::tree::RawExtent;
use braid_format::{BlockCount, BlockNo, Bytes};
use braid_lock::{Local, Mode};
use braid_pool::device::AlignedBuf;
use zerocopy::FromBytes;

use super::{children, kind_of, lock_named, reader};
use crate::attr::{Attr, DirEntry, WithAttrs};
use crate::core::Core;
use crate::dir::{self, Listed};
use crate::error::{Error, Result};
use crate::inode::Locked;
use crate::mode::{S_IFDIR, S_IFLNK};

/// Entries taken out of a directory at a time; with attributes, fewer: the kernel's buffer holds
/// about twenty.
const BATCH: usize = 256;
const BATCH_PLUS: usize = 32;
/// See [`WithAttrs::IfSoon`].
const ATTRS_PATIENCE: Duration = Duration::from_millis(100);

/// The inode that `name` in `dir` leads to. "." and ".." work too.
pub(crate) fn lookup(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    match name {
        b"." | b".." => {
            let locked = core.lock_shared(dir)?;
            locked.require_dir()?;
            if name == b"." {
                return Ok(hand_out(core, &locked));
            }
            let parent = parent_of(&locked);
            drop(locked);
            Ok(hand_out(core, &core.lock_shared(parent)?))
        }
        _ => Ok(hand_out(core, &lock_named(core, dir, name, Mode::Shared)?.child)),
    }
}

/// An inode whose number a caller has kept, as in a file handle, with or without a name. The number
/// may be made up: see [`Core::check_kept_number`].
pub(crate) fn lookup_number(core: &Arc<Core>, ino: InodeNo) -> Result<Attr> {
    core.check_kept_number(ino)?;
    Ok(hand_out(core, &core.lock_shared(ino)?))
}

/// Attributes of a locked inode for the kernel, which refers to it from now on. This is the last
/// step of an operation before it succeeds. See [`crate::attr::KernelCache::handed_out`].
pub(crate) fn hand_out(core: &Core, inode: &Locked) -> Attr {
    core.kernel.handed_out(inode.ino());
    inode.attr(core.volume.geo)
}

/// A locked directory's parent; the root's is itself.
pub(super) fn parent_of(dir: &Locked) -> InodeNo {
    InodeNo(dir.st().raw.parent.get())
}

/// A symbolic link's target.
pub(crate) fn readlink(core: &Arc<Core>, ino: InodeNo) -> Result<Vec<u8>> {
    let locked = core.lock_shared(ino)?;
    if locked.file_type() != S_IFLNK {
        return Err(Error::Invalid("not a symbolic link"));
    }
    let bad = |what| Error::Inconsistent { block: locked.inode.block(), what };
    let size = usize::try_from(locked.st().raw.size.get()).unwrap_or(usize::MAX);
    if size > super::TARGET_MAX {
        return Err(bad("length of a symbolic link"));
    }
    let body = locked.body(&core.meta)?;
    let tail = body.get(RawDinode::TAIL_AT..).ok_or_else(|| bad("tail"))?;
    if locked.layout()? == Layout::Stuffed {
        return tail.get(..size).map(<[u8]>::to_vec).ok_or_else(|| bad("tail"));
    }
    let (extent, _) = RawExtent::read_from_prefix(tail).map_err(|_| bad("tail"))?;
    let start = BlockNo(extent.physical.get());
    let geo = core.volume.geo;
    let blocks = geo.block_size.blocks_for(Bytes::from(size));
    let (first, bound) = core.volume.data_bounds();
    let fits = BlockCount(u64::from(extent.len.get())) >= blocks
        && start.get() >= first
        && start.get().checked_add(blocks.0).is_some_and(|end| end <= bound);
    if !fits {
        return Err(bad("extent of a symbolic link"));
    }
    let mut buf = AlignedBuf::zeroed(geo.block_size.bytes_in(blocks).to_usize());
    core.volume.pool.read(geo.block_size.offset_of(start), &mut buf)?;
    buf.get(..size).map(<[u8]>::to_vec).ok_or_else(|| bad("length of a symbolic link"))
}

/// Hands the entries after `cookie` to `emit` until it says that it is full (that entry then
/// counts as not taken) or the directory ends.
///
/// No lock is held while `emit` runs. Attributes are read after the directory's lock was given
/// up, one child's lock at a time, so no lock order is violated; an entry whose inode has gone
/// meanwhile comes without them.
pub(crate) fn readdir(
    core: &Arc<Core>,
    ino: InodeNo,
    cookie: u64,
    with: WithAttrs,
    emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    let (plus, until) = (with != WithAttrs::No, Instant::now() + ATTRS_PATIENCE);
    let until = (with == WithAttrs::IfSoon).then_some(until);
    let mut cookie = cookie;
    let mut batch: Vec<Listed> = Vec::new();
    loop {
        batch.clear();
        let locked = core.lock_shared(ino)?;
        if !locked.is_dir() {
            return Err(Error::NotDirectory);
        }
        let parent = parent_of(&locked);
        let max = if plus { BATCH_PLUS } else { BATCH };
        let more =
            dir::list_after(&mut reader(core, &locked), cookie.max(dir::DOT_DOT), max, &mut batch)?;
        drop(locked);
        let dots: [(u64, InodeNo, &[u8]); 2] = [(1, ino, b"."), (dir::DOT_DOT, parent, b"..")];
        for (next, to, name) in dots {
            if next <= cookie {
                continue;
            }
            let kind = kind_of(S_IFDIR);
            // The kernel knows these two: it takes no inode from them.
            if emit(DirEntry { ino: to, next, kind, name, attr: None }) {
                return Ok(());
            }
            cookie = next;
        }
        if plus {
            let children: Vec<InodeNo> = batch.iter().map(|listed| listed.ino).collect();
            children::take_locks(core, ino, &children, until);
        }
        for Listed { cookie: next, ino: to, kind, name } in batch.drain(..) {
            let attr = if plus { attr_if_there(core, to, kind, until.is_some())? } else { None };
            let handed_out = attr.is_some();
            if emit(DirEntry { ino: to, next, kind, name: &name, attr }) {
                if handed_out {
                    core.kernel.kept_back(to);
                }
                return Ok(());
            }
            cookie = next;
        }
        if !more {
            return Ok(());
        }
    }
}

/// Attributes of a child seen a moment ago, handed out; `None` when it has gone. `at_once`: also when its lock is
/// not here.
fn attr_if_there(core: &Arc<Core>, ino: InodeNo, kind: u32, at_once: bool) -> Result<Option<Attr>> {
    let locked = if at_once {
        core.try_lock(ino, Mode::Shared, Local::Shared).transpose()
    } else {
        Some(core.lock_shared(ino))
    };
    match locked {
        Some(Ok(locked)) => {
            let attr = locked.attr(core.volume.geo);
            let there = attr.nlink > 0 && kind_of(attr.mode) == kind;
            Ok(there.then(|| hand_out(core, &locked)))
        }
        None | Some(Err(Error::Stale(_))) => Ok(None),
        // Its name is listed all the same; a request for the inode itself gets EIO.
        Some(Err(e)) if e.damaged_block().is_some() => {
            core.meta.note_damage(&e);
            Ok(None)
        }
        Some(Err(e)) => Err(e),
    }
}
