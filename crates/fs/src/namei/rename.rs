//! rename(2).
//!
//! Locks, in order: the named rename lock (only when a directory gets another parent: it keeps
//! the tree above still, so that a directory never comes to lie below itself), then both
//! directories and what the names lead to, ascending. The names are looked up before (to know
//! what to lock) and again after.

use std::sync::Arc;

use braid_format::InodeNo;
use braid_format::dinode::RawDinode;
use braid_format::superblock::RawSuperblock;
use braid_lock::{Local, Mode};

use super::lookup::parent_of;
use super::make::Whiteout;
use super::remove::{Dropped, Fate};
use super::{
    LINKS_MAX, RETRIES, add_entry, find, kind_of, mutable, reader, remove_entry, replace_entry,
    sealed, touch, vacant, writable,
};
use crate::alloc::Reservation;
use crate::core::Core;
use crate::dir::{self, Found, Place};
use crate::error::{Error, Result};
use crate::inode::Locked;
use crate::meta::Tx;
use crate::mode::S_IFDIR;
use crate::orphan;

/// Fail when the new name is taken.
const NOREPLACE: u32 = 1;
/// Swap the two names.
const EXCHANGE: u32 = 2;
/// Leave a whiteout at the old name: a character device 0/0, which hides a lower layer's name from
/// overlayfs. The kernel passes this on only from callers who may make devices.
const WHITEOUT: u32 = 4;
/// Longest way up to the root that is followed. All nodes wait for the rename lock meanwhile, so a tree that
/// no path can name (`PATH_MAX` allows 2,048 levels) must not make it long. A circle of parents, which
/// `check` finds, ends here, too.
const DEPTH_MAX: usize = 4_096;

/// A name's place.
#[derive(Debug, Clone, Copy)]
struct Spot<'a> {
    dir: InodeNo,
    name: &'a [u8],
}

/// Moves a name. `flags`: 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`; with the first two,
/// `RENAME_WHITEOUT`.
///
/// # Errors
/// As rename(2); `Invalid` for other flags and for a directory moved below itself.
pub(crate) fn rename(
    core: &Arc<Core>,
    dir: InodeNo,
    name: &[u8],
    new_dir: InodeNo,
    new_name: &[u8],
    flags: u32,
) -> Result<()> {
    writable(core)?;
    if !matches!(flags & !WHITEOUT, 0 | NOREPLACE) && flags != EXCHANGE {
        return Err(Error::Invalid("flags of rename"));
    }
    dir::check_name(name)?;
    dir::check_name(new_name)?;
    let (from, to) = (Spot { dir, name }, Spot { dir: new_dir, name: new_name });
    for _ in 0..RETRIES {
        if let Some(done) = orphan::with_room(core, || attempt(core, from, to, flags))? {
            return Ok(done);
        }
    }
    Err(Error::WouldBlock)
}

/// What is at a name now; no lock is kept.
fn peek(core: &Core, spot: Spot<'_>) -> Result<Option<Found>> {
    let dir = core.lock_shared(spot.dir)?;
    dir.require_dir()?;
    find(core, &dir, spot.name)
}

/// One attempt; `None` when the names changed before everything was locked.
fn attempt(core: &Arc<Core>, from: Spot<'_>, to: Spot<'_>, flags: u32) -> Result<Option<()>> {
    let src = peek(core, from)?.ok_or(Error::NotFound)?;
    let dst = peek(core, to)?;
    check_target(src, dst, flags)?;
    let is_dir = |f: Found| f.kind == kind_of(S_IFDIR);
    let exchanged_dir = flags == EXCHANGE && dst.is_some_and(is_dir);
    let _moving = if from.dir != to.dir && (is_dir(src) || exchanged_dir) {
        let lock = core.volume.named(RawSuperblock::NAMED_RENAME);
        let guard = core.guard(lock, Mode::Exclusive, Local::Exclusive)?;
        if is_dir(src) {
            not_below(core, to.dir, src.ino)?;
        }
        if let Some(dst) = dst.filter(|_| exchanged_dir) {
            not_below(core, from.dir, dst.ino)?;
        }
        Some(guard)
    } else {
        None
    };
    if let Some(dst) = dst {
        if dst.ino == src.ino {
            // Two names of one inode: nothing to do, says POSIX.
            return Ok(Some(()));
        }
        if dst.ino == from.dir {
            // The target holds the source.
            return Err(if is_dir(src) { Error::NotEmpty } else { Error::IsDirectory });
        }
    }
    if src.ino == to.dir {
        // A directory became a file's number meanwhile, or the like.
        return Ok(None);
    }
    let Some(locks) = Locks::take(core, from, to, src, dst)? else { return Ok(None) };
    let still = |dir: &Locked, spot: Spot<'_>, was: Option<Found>| -> Result<bool> {
        dir.require_dir()?;
        Ok(find(core, dir, spot.name)? == was)
    };
    if !still(locks.old_dir(), from, Some(src))? || !still(locks.new_dir(), to, dst)? {
        return Ok(None);
    }
    match dst {
        Some(dst) if flags == EXCHANGE => exchange(core, &locks, src, dst)?,
        _ => displace(core, locks, (from, src, flags & WHITEOUT != 0), (to, dst))?,
    }
    if from.dir != to.dir && is_dir(src) {
        core.kernel.directory_moved(src.ino, to.dir);
    }
    if let Some(dst) = dst.filter(|_| exchanged_dir && from.dir != to.dir) {
        core.kernel.directory_moved(dst.ino, from.dir);
    }
    Ok(Some(()))
}

/// What can be said before anything is locked for good.
fn check_target(src: Found, dst: Option<Found>, flags: u32) -> Result<()> {
    let dir = kind_of(S_IFDIR);
    match (dst, flags & !WHITEOUT) {
        (Some(_), NOREPLACE) => Err(Error::Exists),
        (None, EXCHANGE) => Err(Error::NotFound),
        (Some(dst), 0) if dst.ino != src.ino => match (src.kind == dir, dst.kind == dir) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Refuses when `dir` is `above` or lies below it. The rename lock is held.
///
/// # Errors
/// `Invalid`; `TooDeep`: `dir` lies more than [`DEPTH_MAX`] levels below the root, and `above` may be on
/// the way.
fn not_below(core: &Core, dir: InodeNo, above: InodeNo) -> Result<()> {
    if dir != above && !has_subdirectories(core, above)? {
        return Ok(());
    }
    let root = core.volume.root();
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == above {
            return Err(Error::Invalid("a directory moved below itself"));
        }
        if at == root {
            return Ok(());
        }
        let locked = match core.lock_shared(at) {
            Err(Error::Stale(_)) => return Err(Error::NotFound),
            other => other?,
        };
        locked.require_dir()?;
        at = parent_of(&locked);
    }
    Err(Error::TooDeep { levels: DEPTH_MAX })
}

/// Whether a directory may hold directories. While the rename lock is held, no directory is moved
/// into it. A directory that is made there meanwhile holds nothing that is being moved.
fn has_subdirectories(core: &Core, dir: InodeNo) -> Result<bool> {
    match core.lock_shared(dir) {
        Err(Error::Stale(_)) => Err(Error::NotFound),
        locked => Ok(locked?.st().raw.nlink.get() > 2),
    }
}

/// Everything a rename changes, locked exclusively.
struct Locks {
    old_dir: Locked,
    /// `None`: the same directory.
    new_dir: Option<Locked>,
    src: Locked,
    dst: Option<Locked>,
}

impl Locks {
    fn old_dir(&self) -> &Locked {
        &self.old_dir
    }
    fn new_dir(&self) -> &Locked {
        self.new_dir.as_ref().unwrap_or(&self.old_dir)
    }
    /// `None` when an inode went away meanwhile.
    fn take(
        core: &Core,
        from: Spot<'_>,
        to: Spot<'_>,
        src: Found,
        dst: Option<Found>,
    ) -> Result<Option<Self>> {
        let mut inos = vec![from.dir, src.ino];
        inos.extend((to.dir != from.dir).then_some(to.dir));
        inos.extend(dst.map(|d| d.ino));
        let mut sorted = inos.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Ok(None);
        }
        let mut locked = match core.lock_many(&inos) {
            Err(Error::Stale(ino)) if ino != from.dir && ino != to.dir => return Ok(None),
            other => other?,
        };
        let dst = dst.and_then(|_| locked.pop());
        let new_dir = if to.dir == from.dir { None } else { locked.pop() };
        let (Some(src), Some(old_dir)) = (locked.pop(), locked.pop()) else { return Ok(None) };
        Ok(Some(Self { old_dir, new_dir, src, dst }))
    }
    fn check_mutable(&self) -> Result<()> {
        const NEITHER: u32 = RawDinode::FLAG_IMMUTABLE | RawDinode::FLAG_APPEND;
        mutable(self.old_dir(), NEITHER)?;
        mutable(self.new_dir(), RawDinode::FLAG_IMMUTABLE)?;
        mutable(&self.src, NEITHER)?;
        self.dst.as_ref().map_or(Ok(()), |dst| mutable(dst, NEITHER))
    }
    /// Refuses when a directory cannot have the subdirectory that it may get.
    fn check_links(&self) -> Result<()> {
        let full = |dir: &Locked| dir.st().raw.nlink.get() >= LINKS_MAX;
        if self.new_dir.as_ref().is_some_and(full) || self.new_dir.is_some() && full(&self.old_dir)
        {
            return Err(Error::TooManyLinks);
        }
        Ok(())
    }
}

/// Notes a moved inode's new change time and, for a directory, its parent.
fn moved(core: &Core, tx: &mut Tx<'_>, inode: &Locked, parent: &Locked) -> Result<()> {
    core.kernel.changed_as_asked(inode.ino());
    let is_dir = inode.is_dir();
    inode.update(tx, |raw| {
        if is_dir {
            raw.parent = parent.ino().get().into();
        }
        touch(raw);
    })
}

/// Swaps two names.
fn exchange(core: &Arc<Core>, locks: &Locks, src: Found, dst: Found) -> Result<()> {
    let Some(other) = &locks.dst else { return Err(Error::NotFound) };
    locks.check_mutable()?;
    locks.check_links()?;
    mutable(locks.new_dir(), RawDinode::FLAG_APPEND)?;
    let (old_dir, new_dir) = (locks.old_dir(), locks.new_dir());
    let mut r = core.alloc.reserve(0, 0, 0)?;
    let mut tx = core.meta.begin()?;
    let done = (|| {
        replace_entry(core, (&mut tx, &mut r), old_dir, src, (dst.ino, dst.kind))?;
        replace_entry(core, (&mut tx, &mut r), new_dir, dst, (src.ino, src.kind))?;
        moved(core, &mut tx, &locks.src, new_dir)?;
        moved(core, &mut tx, other, old_dir)
    })();
    drop(tx);
    sealed(core, done)
}

/// Moves a name, replacing what had the new one.
fn displace(
    core: &Arc<Core>,
    locks: Locks,
    (from, src, whiteout): (Spot<'_>, Found, bool),
    (to, dst): (Spot<'_>, Option<Found>),
) -> Result<()> {
    locks.check_mutable()?;
    locks.check_links()?;
    let target = match (&locks.dst, dst) {
        (Some(inode), Some(found)) => {
            if inode.is_dir() && inode.st().raw.entries.get() > 0 {
                return Err(Error::NotEmpty);
            }
            mutable(locks.new_dir(), RawDinode::FLAG_APPEND)?;
            Target::Taken(found, Dropped::plan(core, inode)?)
        }
        _ => Target::Vacant(vacant(core, locks.new_dir(), to.name)?),
    };
    let frees = dir::frees_for_remove(&mut reader(core, locks.old_dir()), src.cookie)?;
    let (slots, more) = match &target {
        Target::Taken(_, dropped) => (0, dropped.frees()),
        Target::Vacant(place) => (place.slots, 0),
    };
    let mut r = core.alloc.reserve(0, slots + u64::from(whiteout), frees + more)?;
    let white = whiteout.then(|| Whiteout::new(core, &mut r, locks.old_dir())).transpose()?;
    let mut tx = core.meta.begin()?;
    let old = white.map_or(Gap::Removed(frees), |white| Gap::Whiteout(Box::new(white)));
    let done = displace_in(core, (&mut tx, &mut r), &locks, (from, src, old), (to, target));
    drop(tx);
    let fate = sealed(core, done)?;
    drop(r);
    let Locks { old_dir, new_dir, src, dst } = locks;
    drop((old_dir, new_dir, src));
    match dst {
        Some(inode) => fate.finish(core, &inode),
        None => Ok(()),
    }
}

/// What is at the new name.
enum Target {
    Taken(Found, Dropped),
    Vacant(Place),
}

/// What will be at the old name.
enum Gap {
    /// Nothing; so many frees may be needed.
    Removed(u64),
    Whiteout(Box<Whiteout>),
}

/// The transaction of [`displace`].
fn displace_in(
    core: &Arc<Core>,
    (tx, r): (&mut Tx<'_>, &mut Reservation),
    locks: &Locks,
    (from, src, gap): (Spot<'_>, Found, Gap),
    (to, target): (Spot<'_>, Target),
) -> Result<Fate> {
    let (old_dir, new_dir) = (locks.old_dir(), locks.new_dir());
    let entry = (src.ino, src.kind);
    let fate = match target {
        Target::Vacant(place) => {
            add_entry(core, (tx, r), new_dir, place, (to.name, src.ino, src.kind))?;
            Fate::Stays
        }
        Target::Taken(old, dropped) => {
            replace_entry(core, (tx, r), new_dir, old, entry)?;
            match &locks.dst {
                Some(inode) => dropped.apply(core, tx, r, inode)?,
                None => Fate::Stays,
            }
        }
    };
    match gap {
        Gap::Removed(frees) => remove_entry(core, (tx, r), old_dir, (from.name, src), frees)?,
        Gap::Whiteout(white) => {
            let white = white.born(tx)?;
            let entry = (white.ino(), kind_of(white.file_type()));
            replace_entry(core, (tx, r), old_dir, src, entry)?;
        }
    }
    moved(core, tx, &locks.src, new_dir)?;
    Ok(fate)
}
