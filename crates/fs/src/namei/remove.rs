//! Removing names, and what becomes of an inode whose last name goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::InodeNo;
use braid_format::dinode::{Layout, RawDinode};
use braid_lock::Mode;

use super::{Named, lock_named, mutable, reader, remove_entry, sealed, touch, writable};
use crate::alloc::Reservation;
use crate::core::Core;
use crate::dir;
use crate::error::{Error, Result};
use crate::inode::Locked;
use crate::meta::Tx;
use crate::mode::S_IFDIR;
use crate::orphan::{self, Room};
use crate::xattr::place;

/// Removes a name of anything but a directory.
///
/// The inode goes with its last name if nobody uses it: a small one in the same transaction, a
/// large one after it, listed as an orphan meanwhile. An inode that is in use stays listed until it
/// is closed everywhere and this node's kernel has forgotten it. The kernel that removes a name
/// refers to the inode itself, and lets go once it has the answer unless a program uses it.
pub(crate) fn unlink(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<()> {
    orphan::with_room(core, || take_away(core, dir, name, false))
}

/// Removes an empty directory.
pub(crate) fn rmdir(core: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Result<()> {
    match name {
        b"." => Err(Error::Invalid("removal of \".\"")),
        b".." => Err(Error::NotEmpty),
        _ => orphan::with_room(core, || take_away(core, dir, name, true)),
    }
}

fn take_away(core: &Arc<Core>, dir: InodeNo, name: &[u8], directory: bool) -> Result<()> {
    writable(core)?;
    let Named { dir, found, child } = lock_named(core, dir, name, Mode::Exclusive)?;
    mutable(&dir, RawDinode::FLAG_IMMUTABLE | RawDinode::FLAG_APPEND)?;
    mutable(&child, RawDinode::FLAG_IMMUTABLE | RawDinode::FLAG_APPEND)?;
    match (child.file_type() == S_IFDIR, directory) {
        (true, false) => return Err(Error::IsDirectory),
        (false, true) => return Err(Error::NotDirectory),
        (true, true) if child.st().raw.entries.get() > 0 => return Err(Error::NotEmpty),
        _ => {}
    }
    let dropped = Dropped::plan(core, &child)?;
    let frees = dir::frees_for_remove(&mut reader(core, &dir), found.cookie)?;
    let mut r = core.alloc.reserve(0, 0, frees + dropped.frees())?;
    let mut tx = core.meta.begin()?;
    let done = remove_entry(core, (&mut tx, &mut r), &dir, (name, found), frees)
        .and_then(|()| dropped.apply(core, &mut tx, &mut r, &child));
    drop(tx);
    let fate = sealed(core, done)?;
    drop(dir);
    drop(r);
    fate.finish(core, &child)
}

/// What is to become of an inode that loses a name.
pub(crate) struct Dropped {
    fate: Fate,
    /// For the orphan list.
    room: Option<Room>,
}

/// See [`Dropped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has other names.
    Stays,
    /// A program somewhere has it open, or this node's kernel refers to it: deleted when the last
    /// has let go of it.
    InUse,
    /// Too large for one transaction: deleted right after.
    Large,
    /// Freed in the same transaction.
    Freed {
        /// Blocks of its attributes, freed with it.
        attributes: usize,
    },
}

/// Whether nothing but the dinode (and an attribute block) is to be freed.
fn is_small(inode: &Locked) -> Result<bool> {
    let layout = inode.layout()?;
    let st = inode.st();
    let contents = match layout {
        Layout::None | Layout::Stuffed | Layout::DirStuffed => false,
        Layout::Extents | Layout::DirHashed => {
            st.raw.tree_height.get() > 0 || st.raw.tail_count.get() > 0
        }
    };
    Ok(!contents)
}

impl Dropped {
    /// Decides, before the transaction. Exclusive lock held.
    ///
    /// # Errors
    /// `TooManyOrphans` when it must be listed and the lists are full.
    pub fn plan(core: &Arc<Core>, inode: &Locked) -> Result<Self> {
        let links = inode.st().raw.nlink.get();
        let fate = if links > 1 && !inode.is_dir() {
            Fate::Stays
        } else if core.is_in_use(inode) {
            Fate::InUse
        } else if is_small(inode)? && !inode.inode.data.is_dirty() {
            match place::held(core, inode)?.len() {
                attributes @ 0..=place::FREED_WITH_DINODE => Fate::Freed { attributes },
                _ => Fate::Large,
            }
        } else {
            Fate::Large
        };
        let room = match fate {
            Fate::InUse | Fate::Large => {
                let is_open = inode.inode.opens.load(Ordering::Acquire) > 0
                    || !inode.guard.openers().is_empty();
                Some(orphan::room(core, inode.st().raw.uid.get(), is_open)?)
            }
            Fate::Stays | Fate::Freed { .. } => None,
        };
        Ok(Self { fate, room })
    }
    /// Free-log entries that [`Self::apply`] may take.
    pub fn frees(&self) -> u64 {
        match self.fate {
            Fate::Freed { attributes } => 1 + attributes as u64,
            _ => 0,
        }
    }
    /// Takes the link away. After a fate of `Freed` the inode's state must not be used any more.
    pub fn apply(
        self,
        core: &Arc<Core>,
        tx: &mut Tx<'_>,
        r: &mut Reservation,
        inode: &Locked,
    ) -> Result<Fate> {
        core.kernel.changed_as_asked(inode.ino());
        match self.fate {
            Fate::Stays => inode.update(tx, |raw| {
                raw.nlink = raw.nlink.get().saturating_sub(1).into();
                touch(raw);
            })?,
            Fate::InUse | Fate::Large => {
                inode.update(tx, |raw| {
                    raw.nlink = 0.into();
                    touch(raw);
                })?;
                let room = self.room.ok_or(Error::TooManyOrphans)?;
                orphan::list(core, tx, room, inode.ino())?;
                if inode.inode.opens.load(Ordering::Acquire) == 0 && core.kernel.refers(inode.ino())
                {
                    core.orphans.leaves(inode.ino());
                }
            }
            Fate::Freed { .. } => orphan::free_dinode(core, tx, r, inode)?,
        }
        Ok(self.fate)
    }
}

impl Fate {
    /// After the transaction, with the directories' locks given up. The caller then unlocks the
    /// inode, whose state may be unloaded.
    ///
    /// # Errors
    /// None for a large inode that could not be deleted now: it is listed, and tried again later.
    pub fn finish(self, core: &Arc<Core>, inode: &Locked) -> Result<()> {
        match self {
            Self::Stays | Self::InUse => Ok(()),
            Self::Freed { .. } => {
                inode.inode.unload();
                Ok(())
            }
            Self::Large => match orphan::delete_locked(core, inode) {
                Err(e) if !e.is_fatal() => {
                    core.meta.note_damage(&e);
                    tracing::warn!("a removed file's space is freed later: {e}");
                    Ok(())
                }
                other => other,
            },
        }
    }
}
