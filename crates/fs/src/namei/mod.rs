//! Operations on names: lookup, create, link, unlink, rename.

use std::sync::Arc;

use braid_format::InodeNo;

use crate::attr::{Attr, Cred, DirEntry, SetAttr};
use crate::core::Core;
use crate::error::Result;
use crate::inode::Locked;

/// The inode that `name` in `dir` leads to.
pub(crate) fn lookup(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    let _ = (core, dir, name);
    todo!()
}
/// An inode's attributes.
pub(crate) fn getattr(core: &Arc<Core>, ino: InodeNo) -> Result<Attr> {
    let _ = (core, ino);
    todo!()
}
/// Changes attributes; a size is set through [`crate::data`].
pub(crate) fn setattr(core: &Arc<Core>, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
    let _ = (core, ino, set);
    todo!()
}
/// Makes a regular file, FIFO, socket or device.
pub(crate) fn mknod(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    rdev: u64,
    cred: &Cred,
) -> Result<Attr> {
    let _ = (core, dir, name, mode, rdev, cred);
    todo!()
}
/// Makes a directory.
pub(crate) fn mkdir(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    cred: &Cred,
) -> Result<Attr> {
    let _ = (core, dir, name, mode, cred);
    todo!()
}
/// Makes a symbolic link to `target`.
pub(crate) fn symlink(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    target: &[u8],
    cred: &Cred,
) -> Result<Attr> {
    let _ = (core, dir, name, target, cred);
    todo!()
}
/// A symbolic link's target.
pub(crate) fn readlink(core: &Arc<Core>, ino: InodeNo) -> Result<Vec<u8>> {
    let _ = (core, ino);
    todo!()
}
/// Gives an inode one more name.
pub(crate) fn link(
    core: &Arc<Core>,
    ino: InodeNo,
    new_dir: InodeNo,
    new_name: &[u8],
) -> Result<Attr> {
    let _ = (core, ino, new_dir, new_name);
    todo!()
}
/// Removes a name of anything but a directory.
pub(crate) fn unlink(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<()> {
    let _ = (core, dir, name);
    todo!()
}
/// Removes an empty directory.
pub(crate) fn rmdir(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<()> {
    let _ = (core, dir, name);
    todo!()
}
/// Moves a name. `flags`: `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
pub(crate) fn rename(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    new_dir: InodeNo,
    new_name: &[u8],
    flags: u32,
) -> Result<()> {
    let _ = (core, dir, name, new_dir, new_name, flags);
    todo!()
}
/// Makes a regular file, or finds the one there (unless `exclusive`). Returned still locked
/// exclusive, so that the caller can open it before anyone can delete it.
pub(crate) fn create(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    mode: u32,
    cred: &Cred,
    exclusive: bool,
) -> Result<Locked> {
    let _ = (core, dir, name, mode, cred, exclusive);
    todo!()
}
/// Makes a regular file without a name, listed as an orphan. Returned locked exclusive.
pub(crate) fn tmpfile(core: &Arc<Core>, dir: InodeNo, mode: u32, cred: &Cred) -> Result<Locked> {
    let _ = (core, dir, mode, cred);
    todo!()
}
/// Hands the entries after `cookie` to `emit` until it says that it is full (that entry then
/// counts as not taken) or the directory ends. `plus`: with attributes.
pub(crate) fn readdir(
    core: &Arc<Core>,
    ino: InodeNo,
    cookie: u64,
    plus: bool,
    emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    let _ = (core, ino, cookie, plus, emit);
    todo!()
}
