//! Attributes.

use std::sync::Arc;

use braid_format::InodeNo;
use braid_format::dinode::{RawDinode, RawTime};

use super::{mutable, sealed, writable};
use crate::attr::{Attr, SetAttr, TimeSet};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{now, raw_time};
use crate::mode::{S_IFDIR, S_IFMT, S_IFREG, unprivileged};

/// An inode's attributes.
pub(crate) fn getattr(core: &Arc<Core>, ino: InodeNo) -> Result<Attr> {
    Ok(core.lock_shared(ino)?.attr(core.volume.geo))
}

/// Changes attributes; a size is set through [`crate::data`].
///
/// A new owner or group takes privileges ([`unprivileged`]) away, unless a mode is given too.
pub(crate) fn setattr(core: &Arc<Core>, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
    writable(core)?;
    let locked = match set.size {
        Some(_) => core.lock_truncation(ino)?,
        None => core.lock_exclusive(ino)?,
    };
    let _changes = core.changes(ino);
    mutable(&locked, RawDinode::FLAG_IMMUTABLE)?;
    if let Some(size) = set.size {
        match locked.file_type() {
            S_IFREG => {}
            S_IFDIR => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("size of a special file")),
        }
        mutable(&locked, RawDinode::FLAG_APPEND)?;
        crate::data::truncate(core, &locked, size)?;
    }
    if set.size.is_some() || set.uid.is_some() || set.gid.is_some() || set.kill_privileges {
        crate::xattr::drop_capability(core, &locked)?;
    }
    let present = raw_time(now());
    let at = |t: TimeSet| match t {
        TimeSet::Now => present,
        TimeSet::At(time) => raw_time(time),
    };
    let mut tx = core.meta.begin()?;
    let changed = locked.update(&mut tx, |raw| apply(raw, set, present, &at));
    drop(tx);
    sealed(core, changed)?;
    Ok(locked.attr(core.volume.geo))
}

fn apply(raw: &mut RawDinode, set: &SetAttr, present: RawTime, at: &dyn Fn(TimeSet) -> RawTime) {
    let old = raw.mode.get();
    if let Some(uid) = set.uid {
        raw.uid = uid.into();
    }
    if let Some(gid) = set.gid {
        raw.gid = gid.into();
    }
    if let Some(mode) = set.mode {
        raw.mode = (old & S_IFMT | mode & !S_IFMT).into();
    } else if set.uid.is_some() || set.gid.is_some() || set.kill_privileges {
        raw.mode = unprivileged(old).into();
    }
    if let Some(t) = set.atime {
        raw.atime = at(t);
    }
    if let Some(t) = set.mtime {
        raw.mtime = at(t);
    }
    raw.ctime = set.ctime.map_or(present, at);
}
