//! Truncation, and the end of a file.

use std::sync::Arc;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;

use super::{HeldInode, SIZE_MAX, View, require_regular, touch};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::file_data::Delalloc;
use crate::inode::Locked;
use crate::inode_tree::Editor;
use crate::map::LOGICAL_END;
use crate::tree;
use crate::writeback::flush::{What, flush_locked};

/// Sets the size. Exclusive lock held.
///
/// # Errors
/// `TooLarge`, `NotPermitted`, `NoSpace` (a small file that gets longer needs a block).
pub(crate) fn truncate(core: &Arc<Core>, locked: &Locked, size: u64) -> Result<()> {
    require_regular(locked)?;
    if size > SIZE_MAX {
        return Err(Error::TooLarge);
    }
    let forbidden = RawDinode::FLAG_IMMUTABLE | RawDinode::FLAG_APPEND;
    if locked.st().raw.flags.get() & forbidden != 0 {
        return Err(Error::NotPermitted);
    }
    let held = HeldInode::of(core, locked);
    let mut delalloc = held.data().change.lock();
    let view = held.view()?;
    if size < view.size {
        held.shrink(&mut delalloc, view, size)
    } else {
        held.extend(&mut delalloc, view, size)?;
        held.change_state(touch)
    }
}

impl HeldInode<'_> {
    /// Makes the file longer by a hole. `change` held, alone on this node.
    pub fn extend(&self, delalloc: &mut Delalloc, view: View, size: u64) -> Result<()> {
        if size <= view.size {
            return Ok(());
        }
        let dirty = self.data().is_dirty();
        if view.layout == Layout::Stuffed && !dirty {
            if size <= self.root()?.capacity as u64 {
                return self.write_tail(view.size, &[], size);
            }
            if view.size == 0 {
                self.leave_tail()?;
            } else {
                self.dirty_block(delalloc, 0, view)?;
            }
        } else if let Some(block) = self.partial_tail(size, view)? {
            self.dirty_block(delalloc, block, view)?;
        }
        self.change_state(|st| {
            st.raw.size = size.into();
            st.dirty = true;
        })?;
        self.settle_size()
    }

    /// The size goes to disk now, unless it waits for dirty pages.
    pub fn settle_size(&self) -> Result<()> {
        if self.data().is_dirty() {
            return Ok(());
        }
        let behind = self.inode.state_ref().is_some_and(|st| st.disk_size < st.raw.size.get());
        if !behind {
            return Ok(());
        }
        let mut tx = self.core.meta.begin()?;
        let done = self
            .change_state(|st| st.disk_size = st.raw.size.get())
            .and_then(|()| self.inode.encode(&mut tx));
        self.fatal(done)
    }

    /// Makes one block dirty as it is.
    fn dirty_block(&self, delalloc: &mut Delalloc, block: u64, view: View) -> Result<()> {
        self.reserve_for(delalloc, block..block + 1, &[])?;
        self.fill(block, view)?;
        self.recount();
        Ok(())
    }

    /// An empty stuffed file becomes an empty one with extents.
    pub fn leave_tail(&self) -> Result<()> {
        self.set_layout(Layout::Extents)
    }

    fn set_layout(&self, layout: Layout) -> Result<()> {
        let mut tx = self.core.meta.begin()?;
        let mut map = self.data().map.write();
        *map = None;
        let done = self.inode.update(&mut tx, |raw| raw.layout = (layout as u16).into());
        self.fatal(done)
    }

    fn shrink(&self, delalloc: &mut Delalloc, view: View, size: u64) -> Result<()> {
        let keep = self.blocks_for(size);
        self.forget_pages(delalloc, keep..u64::MAX >> self.shift());
        self.data().pages.write().zero_block_from(self.shift(), size);
        let clean = !self.data().is_dirty();
        if view.layout == Layout::Stuffed {
            if clean && size > self.root()?.capacity as u64 {
                // All its bytes were in the pages: what is left is a hole.
                self.leave_tail()?;
                self.change_state(|st| {
                    st.raw.size = size.into();
                    st.disk_size = st.disk_size.min(size);
                    touch(st);
                })?;
                return self.settle_size();
            }
            return self.shrink_tail(view, size);
        }
        let shift = self.shift();
        self.cut_end(keep, |st, nothing_from| {
            // A size in between, should the node die now.
            let upto = if nothing_from == keep { size } else { nothing_from << shift };
            let now = st.raw.size.get().min(upto);
            st.raw.size = now.into();
            st.disk_size = if clean { now } else { st.disk_size.min(now) };
            touch(st);
        })?;
        if size == 0 && clean {
            // Small again: the next contents may fit in the tail.
            self.set_layout(Layout::Stuffed)?;
        }
        Ok(())
    }

    /// Bytes after the end are zero in a tail.
    fn shrink_tail(&self, view: View, size: u64) -> Result<()> {
        let clean = !self.data().is_dirty();
        let in_tail = view.disk_size.min(self.root()?.capacity as u64);
        let from = usize::try_from(size.min(in_tail)).unwrap_or(0);
        let to = usize::try_from(in_tail).unwrap_or(0);
        let mut tx = self.core.meta.begin()?;
        let (block, lock) = (self.inode.block(), self.inode.lock_no());
        let done = tx
            .modify(block, lock, MetaKind::Dinode, |body| {
                if let Some(gone) = body.get_mut(RawDinode::TAIL_AT + from..RawDinode::TAIL_AT + to)
                {
                    gone.fill(0);
                }
            })
            .and_then(|()| {
                self.change_state(|st| {
                    st.raw.size = size.into();
                    st.disk_size = if clean { size } else { st.disk_size.min(size) };
                    touch(st);
                })?;
                self.inode.encode(&mut tx)
            });
        self.fatal(done)
    }

    /// A stuffed file's bytes move to a block now.
    pub fn unstuff(&self, delalloc: &mut Delalloc) -> Result<()> {
        let view = self.view()?;
        if view.layout != Layout::Stuffed {
            return Ok(());
        }
        if view.size == 0 && !self.data().is_dirty() {
            return self.leave_tail();
        }
        if !self.data().is_dirty() {
            self.dirty_block(delalloc, 0, view)?;
        }
        flush_locked(*self, delalloc, What::Contents)
    }
}

/// Frees all contents (blocks and tree nodes) of an unlinked inode, in as many transactions as
/// needed; the inode is listed as an orphan meanwhile. Exclusive lock held.
///
/// # Errors
/// What is on disk contradicts itself, or a device failed.
pub(crate) fn free_contents(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    let held = HeldInode::of(core, locked);
    let mut delalloc = held.data().change.lock();
    held.forget_pages(&mut delalloc, 0..u64::MAX >> held.shift());
    *held.data().lost.lock() = None;
    match locked.layout()? {
        Layout::Extents => held.cut_end(0, |st, nothing_from| {
            let now = st.raw.size.get().min(nothing_from.min(LOGICAL_END) << held.shift());
            st.raw.size = now.into();
            st.disk_size = st.disk_size.min(now);
        }),
        Layout::DirHashed => free_tree(held),
        Layout::None | Layout::Stuffed | Layout::DirStuffed => Ok(()),
    }
}

/// Frees a tree whose leaves hold nothing that must be freed.
fn free_tree(held: HeldInode<'_>) -> Result<()> {
    let core = held.core;
    while held.root()?.height > 0 {
        let path = tree::descend(&mut held.reader(), 0)?;
        let frees = tree::frees_for_remove(held.root()?.height);
        let mut reservation = core.alloc.reserve(0, 0, frees)?;
        let mut tx = core.meta.begin()?;
        let mut editor = Editor {
            alloc: &core.alloc,
            tx: &mut tx,
            reservation: &mut reservation,
            inode: held.inode,
            geo: core.volume.geo,
        };
        let done = tree::remove_leaf(&mut editor, path);
        held.fatal(done)?;
    }
    Ok(())
}
