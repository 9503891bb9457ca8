//! Operations on names: lookup, create, link, unlink, rename.
//!
//! Inodes are locked in ascending order of their numbers. A child whose number is below its
//! directory's is found under the directory's lock, then locked first, and the name looked up
//! again; after [`RETRIES`] changes under our feet the operation gives up.
//!
//! Costs, all caches warm: no device I/O and no cluster-lock I/O for any operation here, beyond
//! what the allocator and the journal need from time to time.

mod adopt;
mod attributes;
mod children;
#[cfg(test)]
pub(crate) mod fixture;
mod lookup;
mod make;
mod remove;
mod rename;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use braid_format::InodeNo;
use braid_format::dinode::{Layout, RawDinode};
use braid_lock::{Local, Mode};

use crate::alloc::Reservation;
use crate::core::Core;
use crate::dir::{self, Found, Place, Probe};
use crate::error::{Error, Result};
use crate::inode::{Locked, now, raw_time};
use crate::inode_tree::{Editor, Reader};
use crate::meta::Tx;
use crate::mode::{S_IFDIR, S_IFMT};

pub(crate) use adopt::adopt;
pub(crate) use attributes::{getattr, setattr};
pub(crate) use lookup::{hand_out, lookup, lookup_number, readdir, readlink};
pub(crate) use make::{create, link, mkdir, mknod, symlink, tmpfile};
pub(crate) use remove::{rmdir, unlink};
pub(crate) use rename::rename;

/// How often an operation starts over because names changed before all its locks were held.
const RETRIES: usize = 100;
/// An inode to which a name leads each time, and which was not there so often, is damaged: nobody makes inodes of one
/// number and deletes them as often in between. A lock whose record is damaged takes longer from try to try.
const GONE_TIMES: u32 = 3;
/// Most links to one inode.
const LINKS_MAX: u32 = i32::MAX as u32;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// `DT_*` of a mode.
pub(crate) fn kind_of(mode: u32) -> u32 {
    (mode & S_IFMT) >> 12
}

/// Refuses changes on a read-only mount.
fn writable(core: &Core) -> Result<()> {
    if core.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
}

/// Refuses to change an inode that says so, or to remove from one that may only grow.
fn mutable(locked: &Locked, forbidden: u32) -> Result<()> {
    if locked.st().raw.flags.get() & forbidden == 0 { Ok(()) } else { Err(Error::NotPermitted) }
}

/// The first cookie that `name` may have here.
fn hash(core: &Core, name: &[u8]) -> u64 {
    dir::hash(core.volume.sb.hash_seed.get(), name)
}

/// To read a directory.
fn reader<'a>(core: &'a Core, dir: &'a Locked) -> Reader<'a> {
    Reader { meta: &core.meta, inode: &dir.inode }
}

/// Looks up `name` in a locked directory.
fn find(core: &Core, dir: &Locked, name: &[u8]) -> Result<Option<Found>> {
    if name.len() > braid_format::dirent::RawDirent::NAME_MAX {
        return Err(Error::NameTooLong);
    }
    dir::find(&mut reader(core, dir), hash(core, name), name)
}

/// Looks up `name`, or its place, in a directory locked exclusively.
fn probe(core: &Core, dir: &Locked, name: &[u8]) -> Result<Probe> {
    dir::probe(&mut reader(core, dir), hash(core, name), name)
}

/// The place of a name that must not be there yet.
fn vacant(core: &Core, dir: &Locked, name: &[u8]) -> Result<Place> {
    match probe(core, dir, name)? {
        Probe::Found(_) => Err(Error::Exists),
        Probe::Absent(place) => Ok(place),
    }
}

/// Locks an inode to read or to change it.
fn lock(core: &Core, ino: InodeNo, mode: Mode) -> Result<Locked> {
    match mode {
        Mode::Exclusive => core.lock_exclusive(ino),
        _ => core.lock_shared(ino),
    }
}

/// An entry that leads nowhere is damage: the inode exists while the entry does.
fn dangling(e: Error, ino: InodeNo) -> Error {
    match e {
        Error::Stale(_) => Error::Inconsistent {
            block: ino.into(),
            what: "a name leads to a slot without an inode",
        },
        e => e,
    }
}

/// A directory, an entry in it and the inode it leads to, both locked.
struct Named {
    dir: Locked,
    found: Found,
    child: Locked,
}

/// Locks a directory and the inode that `name` leads to, both in `mode`.
fn lock_named(core: &Arc<Core>, dir_ino: InodeNo, name: &[u8], mode: Mode) -> Result<Named> {
    let local = if mode == Mode::Exclusive { Local::Exclusive } else { Local::Shared };
    let mut below: Option<InodeNo> = None;
    let (mut gone, mut times) = (None, 0);
    let mut looks_ahead = mode == Mode::Shared;
    for _ in 0..RETRIES {
        let early = match below.take() {
            None => None,
            Some(ino) => match lock(core, ino, mode) {
                Ok(locked) => Some(locked),
                // Deleted meanwhile: the name leads elsewhere, or nowhere, now.
                Err(Error::Stale(_)) => {
                    times = if gone.replace(ino) == Some(ino) { times + 1 } else { 1 };
                    None
                }
                Err(e) => return Err(e),
            },
        };
        let dir = lock(core, dir_ino, mode)?;
        dir.require_dir()?;
        let found = find(core, &dir, name)?.ok_or(Error::NotFound)?;
        if found.ino == dir_ino {
            return Err(dangling(Error::Stale(found.ino), found.ino));
        }
        if gone == Some(found.ino) && times >= GONE_TIMES {
            return Err(dangling(Error::Stale(found.ino), found.ino));
        }
        if std::mem::take(&mut looks_ahead) && early.is_none() {
            let next = children::expected(core, &dir, found.ino);
            if !next.is_empty() {
                drop(dir);
                children::fetch(core, &next, &|| false);
                continue;
            }
        }
        if let Some(child) = early {
            if child.ino() == found.ino {
                return Ok(Named { dir, found, child });
            }
            drop(child);
        }
        if found.ino > dir_ino {
            let child = lock(core, found.ino, mode).map_err(|e| dangling(e, found.ino))?;
            return Ok(Named { dir, found, child });
        }
        // Against the order: only if that needs no waiting.
        if let Some(child) = core.try_lock(found.ino, mode, local)? {
            return Ok(Named { dir, found, child });
        }
        below = Some(found.ino);
    }
    Err(Error::WouldBlock)
}

/// What an operation changes in a directory.
#[derive(Debug, Clone, Copy, Default)]
struct DirChange {
    entries: i64,
    bytes: i64,
    /// Of its link count: subdirectories come and gone.
    links: i32,
}

impl DirChange {
    /// One entry more (or fewer), for an inode of `kind`.
    fn one(name: &[u8], added: bool) -> Self {
        let bytes =
            i64::try_from(braid_format::dirent::RawDirent::len_for(name.len())).unwrap_or(0);
        if added {
            Self { entries: 1, bytes, links: 0 }
        } else {
            Self { entries: -1, bytes: -bytes, links: 0 }
        }
    }
}

/// Notes a change of a directory in its dinode.
fn dir_changed(core: &Core, tx: &mut Tx<'_>, dir: &Locked, change: DirChange) -> Result<()> {
    core.kernel.changed_as_asked(dir.ino());
    let time = raw_time(now());
    dir.update(tx, |raw| {
        raw.entries = raw.entries.get().saturating_add_signed(change.entries).into();
        raw.size = raw.size.get().saturating_add_signed(change.bytes).into();
        raw.nlink = raw.nlink.get().saturating_add_signed(change.links).into();
        raw.mtime = time;
        raw.ctime = time;
        let layout =
            if raw.tree_height.get() == 0 { Layout::DirStuffed } else { Layout::DirHashed };
        raw.layout = (layout as u16).into();
    })?;
    // A directory's size is never ahead of the disk.
    let mut st = dir.st_mut();
    st.disk_size = st.raw.size.get();
    Ok(())
}

/// To change a directory in `tx`.
fn editor<'a, 't>(
    core: &'a Core,
    tx: &'a mut Tx<'t>,
    reservation: &'a mut Reservation,
    dir: &'a Locked,
) -> Editor<'a, 't> {
    Editor { alloc: &core.alloc, tx, reservation, inode: &dir.inode, geo: core.volume.geo }
}

/// Adds an entry at the place that was found for it.
fn add_entry(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    dir: &Locked,
    place: Place,
    (name, ino, kind): (&[u8], InodeNo, u32),
) -> Result<()> {
    dir::insert(&mut editor(core, tx, r, dir), place.cookie, (ino, kind), name)?;
    let links = i32::from(kind == kind_of(S_IFDIR));
    dir_changed(core, tx, dir, DirChange { links, ..DirChange::one(name, true) })
}

/// Removes an entry. `frees`: what [`dir::frees_for_remove`] said.
fn remove_entry(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    dir: &Locked,
    (name, found): (&[u8], Found),
    frees: u64,
) -> Result<()> {
    dir::remove(&mut editor(core, tx, r, dir), found.cookie, frees > 0)?;
    let links = -i32::from(found.kind == kind_of(S_IFDIR));
    dir_changed(core, tx, dir, DirChange { links, ..DirChange::one(name, false) })
}

/// Makes an entry lead to another inode.
fn replace_entry(
    core: &Core,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    dir: &Locked,
    old: Found,
    (ino, kind): (InodeNo, u32),
) -> Result<()> {
    dir::replace(&mut editor(core, tx, r, dir), old.cookie, ino, kind)?;
    let is_dir = |k| i32::from(k == kind_of(S_IFDIR));
    let links = is_dir(kind) - is_dir(old.kind);
    dir_changed(core, tx, dir, DirChange { links, ..DirChange::default() })
}

/// Ends an operation whose transaction has been closed; see [`Core::sealed`].
fn sealed<T>(core: &Core, result: Result<T>) -> Result<T> {
    core.sealed(result)
}

/// Sets the change time.
fn touch(raw: &mut RawDinode) {
    raw.ctime = raw_time(now());
}
