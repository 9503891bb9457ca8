//! Writes: which way each goes, and the cached way.

use std::ops::Range;
use std::sync::Arc;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_lock::{Held, Local, Mode};

use super::read::{bytes, small, with_scratch};
use super::{HeldInode, SIZE_MAX, View, direct, fsync, limit, require_regular, touch};
use crate::attr::{Durable, EarlyReply, Write, WriteFlags};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::file_data::Delalloc;
use crate::handle::OpenFile;
use crate::inode::Locked;
use crate::map::slots_bound;
use crate::mode::unprivileged;
use crate::unseen_writes::UnseenWrite;
use crate::writeback::flush::{What, flush_locked};

/// From this size on, aligned writes go past the cache: a copy and a second trip gain nothing.
const DIRECT_MIN: usize = 256 << 10;
/// A file with so much that is dirty is written out by its next writer: enough for large requests
/// and long runs, little enough to be in the processor's cache still.
const FILE_DIRTY_MAX: u64 = 8 << 20;
/// Memory must be aligned so for the devices to take it without a copy.
const MEMORY_ALIGN: usize = 4096;

/// Writes; returns the bytes written, durable as far as `what` or the open file asks for it.
///
/// # Errors
/// `NoSpace` and `Contents` leave the file as it was before (a direct write may have changed some
/// of the range that it was to change); `TooLarge`, `BadHandle`, `NotPermitted`.
pub(crate) fn write(
    core: &Arc<Core>,
    file: &OpenFile,
    what: Write<'_>,
    reply: &mut dyn EarlyReply,
) -> Result<usize> {
    if !file.writable() && !what.flags.from_page_cache {
        return Err(Error::BadHandle);
    }
    if what.bytes.is_empty() {
        return Ok(0);
    }
    // What goes past the cache dirties nothing, and what comes from the kernel's may be waited for.
    let may_wait =
        !what.flags.from_page_cache && !wants_direct(core, what.offset, what.bytes, what.flags);
    limit::make_room(core, what.bytes.len() as u64, may_wait)?;
    if what.flags.from_page_cache {
        // Stores into a mapping are made durable by msync(2), which asks for it after this. Here the
        // lock may be on its way to another node, which waits for this very page.
        return from_page_cache(core, file, what);
    }
    let durable = what.flags.durable.max(Durable::of(file.flags));
    let nobody: &mut dyn EarlyReply = &mut ();
    let early = if durable == Durable::Nothing { &mut *reply } else { nobody };
    let unseen = from_program(core, file, what, early)?;
    match durable {
        Durable::Nothing => {}
        Durable::Contents => fsync(core, &file.inode, true)?,
        Durable::All => fsync(core, &file.inode, false)?,
    }
    reply.unseen(unseen);
    Ok(what.bytes.len())
}

/// Whether a write is one of whole blocks.
fn is_aligned(core: &Core, offset: u64, data: &[u8]) -> bool {
    let mask = core.volume.geo.block_size.bytes().get() - 1;
    (offset | data.len() as u64) & mask == 0
}

/// Whether a write goes straight to the devices.
fn wants_direct(core: &Core, offset: u64, data: &[u8], flags: WriteFlags) -> bool {
    let large = data.len() >= DIRECT_MIN && data.as_ptr().addr().is_multiple_of(MEMORY_ALIGN);
    is_aligned(core, offset, data) && (flags.direct || large)
}

/// Refuses what the inode's flags forbid, and what lies past the largest size.
fn check(locked: &Locked, offset: u64, len: usize, append: bool) -> Result<()> {
    require_regular(locked)?;
    let inode_flags = locked.st().raw.flags.get();
    let append_only = inode_flags & RawDinode::FLAG_APPEND != 0 && !append;
    if inode_flags & RawDinode::FLAG_IMMUTABLE != 0 || append_only {
        return Err(Error::NotPermitted);
    }
    match offset.checked_add(len as u64) {
        Some(end) if end <= SIZE_MAX => Ok(()),
        _ => Err(Error::TooLarge),
    }
}

fn from_program(
    core: &Arc<Core>,
    file: &OpenFile,
    Write { offset, bytes: data, flags }: Write<'_>,
    reply: &mut dyn EarlyReply,
) -> Result<UnseenWrite> {
    let ino = file.inode.ino;
    let unseen = |at: u64| file.inode.unseen_writes.begin(at..at + data.len() as u64);
    if !flags.append && is_aligned(core, offset, data) {
        let locked = core.lock_concurrent(ino, Mode::Exclusive)?;
        check(&locked, offset, data.len(), false)?;
        let held = HeldInode::of(core, &locked);
        let size = locked.st().raw.size.get();
        if locked.guard.mode() == Mode::Exclusive && offset.saturating_add(data.len() as u64) > size
        {
            reply.grows(size);
        }
        let reply: &mut dyn EarlyReply = if flags.direct { &mut () } else { reply };
        let unseen = unseen(offset);
        let plain = || privileged(core, &locked, flags.kill_privileges).map(|p| !p);
        let done = match locked.guard.mode() {
            Mode::Exclusive if wants_direct(core, offset, data, flags) => {
                plain()? && direct::write_concurrent(held, offset, data, reply, &unseen)?
            }
            Mode::Concurrent => plain()? && direct::overwrite(held, offset, data, &unseen)?,
            _ => false,
        };
        if done {
            return Ok(unseen);
        }
    }
    let locked = core.lock(ino, Mode::Exclusive, Local::Exclusive)?;
    let _changes = core.changes(ino);
    let offset = if flags.append { locked.st().raw.size.get() } else { offset };
    check(&locked, offset, data.len(), flags.append)?;
    kill_privileges(core, &locked, flags.kill_privileges)?;
    let held = HeldInode::of(core, &locked);
    let size = locked.st().raw.size.get();
    if offset.saturating_add(data.len() as u64) > size {
        reply.grows(size);
    }
    let mut delalloc = held.data().change.lock();
    let unseen = unseen(offset);
    if wants_direct(core, offset, data, flags) {
        direct::write_alone(held, &mut delalloc, offset, data)?;
        unseen.done();
        return Ok(unseen);
    }
    held.stay_below(&mut delalloc, data.len())?;
    held.write_cached(&mut delalloc, offset, data)?;
    if flags.direct {
        flush_locked(held, &mut delalloc, What::Contents)?;
    }
    unseen.done();
    Ok(unseen)
}

/// A mapped page comes back from the kernel, perhaps because this node is giving the lock up: then
/// it is let in under the lock that is still held. Ranges of writes that are newer than the page stay
/// as they are.
fn from_page_cache(core: &Arc<Core>, file: &OpenFile, what: Write<'_>) -> Result<usize> {
    let (ino, offset, data) = (file.inode.ino, what.offset, what.bytes);
    let end = offset.saturating_add(data.len() as u64);
    let mut locked = core.lock_fill(ino, Mode::Exclusive, Held::Written(offset, end))?;
    if locked.guard.mode() != Mode::Exclusive {
        drop(locked);
        locked = core.lock(ino, Mode::Exclusive, Local::Shared)?;
    }
    require_regular(&locked)?;
    let held = HeldInode::of(core, &locked);
    let mut delalloc = held.change_apart(offset, data.len() as u64);
    // Never longer: what the page holds past the end is not part of the file.
    let size = held.view()?.size;
    let end = size.min(end).max(offset);
    for piece in file.inode.unseen_writes.may_change(offset..end) {
        let within = small(piece.start - offset)..small(piece.end - offset);
        if let Some(now) = data.get(within).filter(|d| !d.is_empty()) {
            held.stay_below(&mut delalloc, now.len())?;
            held.write_cached(&mut delalloc, piece.start, now)?;
        }
    }
    Ok(data.len())
}

/// What a change of contents takes away: capabilities always, set-user-ID and set-group-ID bits
/// when the program may not keep them (`mode_too`). Exclusive lock held, alone on this node.
pub(super) fn kill_privileges(core: &Arc<Core>, locked: &Locked, mode_too: bool) -> Result<()> {
    crate::xattr::drop_capability(core, locked)?;
    if mode_too {
        let mut st = locked.st_mut();
        let mode = st.raw.mode.get();
        let kept = unprivileged(mode);
        if kept != mode {
            st.raw.mode = kept.into();
            st.dirty = true;
        }
    }
    Ok(())
}

/// Whether [`kill_privileges`] would change anything.
fn privileged(core: &Arc<Core>, locked: &Locked, mode_too: bool) -> Result<bool> {
    let mode = locked.st().raw.mode.get();
    Ok(mode_too && unprivileged(mode) != mode || crate::xattr::has_capability(core, locked)?)
}

impl HeldInode<'_> {
    /// Writes this file out if much of it is dirty, or if the node's bound would be exceeded and
    /// other files could not be written out. If a device refuses, the writer gets the error.
    fn stay_below(&self, delalloc: &mut Delalloc, len: usize) -> Result<()> {
        let much = self.data().pages.read().blocks() << self.shift() >= FILE_DIRTY_MAX;
        if much || (self.data().is_dirty() && limit::would_pass(self.core, len as u64)) {
            flush_locked(*self, delalloc, What::Contents)?;
        }
        Ok(())
    }

    /// Writes into the tail or into dirty pages; makes the file longer where needed. Alone on this
    /// node (or inside the size), `change` held.
    ///
    /// # Errors
    /// `NoSpace` after everything that could be written out has been.
    pub fn write_cached(&self, delalloc: &mut Delalloc, offset: u64, data: &[u8]) -> Result<()> {
        match self.try_write_cached(delalloc, offset, data) {
            Err(Error::NoSpace) => {
                // Writing out turns reservations for the worst case into what is really used.
                flush_locked(*self, delalloc, What::Contents)?;
                limit::write_out(self.core, 0)?;
                self.try_write_cached(delalloc, offset, data)
            }
            done => done,
        }
    }

    fn try_write_cached(&self, delalloc: &mut Delalloc, offset: u64, data: &[u8]) -> Result<()> {
        let view = self.view()?;
        let end = offset + data.len() as u64;
        if view.layout == Layout::Stuffed
            && !self.data().is_dirty()
            && end.max(view.size) <= self.root()?.capacity as u64
        {
            return self.write_tail(offset, data, view.size.max(end));
        }
        let fills = self.fills(offset, end, view)?;
        self.reserve_for(delalloc, offset >> self.shift()..self.blocks_for(end), &fills)?;
        for block in fills {
            self.fill(block, view)?;
        }
        self.data().pages.write().put(&self.core.dirty.spare, self.shift(), offset, data);
        self.recount();
        self.change_state(|st| {
            st.raw.size = view.size.max(end).into();
            touch(st);
        })
    }

    /// A small file's bytes, by a transaction of their own.
    pub fn write_tail(&self, offset: u64, data: &[u8], size: u64) -> Result<()> {
        let from = usize::try_from(offset).map_err(|_| Error::TooLarge)?;
        let mut tx = self.core.meta.begin()?;
        let (block, lock) = (self.inode.block(), self.inode.lock_no());
        let done = tx
            .modify(block, lock, MetaKind::Dinode, |body| {
                let tail = body.get_mut(RawDinode::TAIL_AT..);
                match tail.and_then(|t| t.get_mut(from..from + data.len())) {
                    Some(to) => to.copy_from_slice(data),
                    None => debug_assert!(false, "tail write outside of the tail"),
                }
            })
            .and_then(|()| {
                self.change_state(|st| {
                    st.raw.size = size.into();
                    st.disk_size = size;
                    touch(st);
                })?;
                self.inode.encode(&mut tx)
            });
        self.fatal(done)
    }

    /// Blocks that must be filled with what they hold before `offset..end` is written into pages:
    /// those written in part, the last one of a file that gets longer, a stuffed file's only one.
    fn fills(&self, offset: u64, end: u64, view: View) -> Result<Vec<u64>> {
        let shift = self.shift();
        let mut out = Vec::new();
        let mut add = |block: u64| {
            // Wholly overwritten, as far as the file goes?
            let (from, to) = (block << shift, ((block + 1) << shift).min(view.size.max(end)));
            let covered = offset <= from && to <= end;
            if !covered && !out.contains(&block) {
                out.push(block);
            }
        };
        if view.size > 0 && view.layout == Layout::Stuffed && !self.data().is_dirty() {
            add(0);
        }
        add(offset >> shift);
        add((end - 1) >> shift);
        if let Some(last) = self.partial_tail(offset, view)? {
            add(last);
        }
        let pages = self.data().pages.read();
        out.retain(|b| !pages.has(shift, *b));
        Ok(out)
    }

    /// The last block of a file that will get longer by a write at `offset` or beyond, if the block
    /// may hold bytes past the end on disk.
    pub fn partial_tail(&self, offset: u64, view: View) -> Result<Option<u64>> {
        let block = view.size >> self.shift();
        if offset <= view.size || view.size & (self.block_size() - 1) == 0 {
            return Ok(None);
        }
        let written = self.lookup(block..block + 1)?.first().is_some_and(|p| p.written().is_some());
        Ok(Some(block).filter(|_| written))
    }

    /// Promises space for blocks that become dirty.
    pub fn reserve_for(
        &self,
        delalloc: &mut Delalloc,
        blocks: Range<u64>,
        fills: &[u64],
    ) -> Result<()> {
        let mut load = delalloc.load;
        let mut new = 0;
        let extra = fills.iter().filter(|b| !blocks.contains(b)).map(|b| *b..*b + 1);
        let all: Vec<Range<u64>> = std::iter::once(blocks.clone()).chain(extra).collect();
        for range in all {
            let clean = self.data().pages.read().clean_runs(self.shift(), range);
            for run in clean {
                for piece in self.lookup(run)? {
                    let hole = piece.physical.is_none();
                    new += if hole { piece.len } else { 0 };
                    load.places += u64::from(hole || piece.unwritten);
                }
            }
        }
        load.blocks += new;
        let slots = slots_bound(&self.root()?, self.core.volume.geo.body_len(), load);
        self.top_up(delalloc, new, slots)?;
        delalloc.load = load;
        Ok(())
    }

    /// Makes a block dirty as it is now. Its space is reserved.
    pub fn fill(&self, block: u64, view: View) -> Result<()> {
        let shift = self.shift();
        if self.data().pages.read().has(shift, block) {
            return Ok(());
        }
        with_scratch(bytes(1, shift), |memory| {
            if view.layout == Layout::Stuffed && block == 0 && !self.data().is_dirty() {
                let body = self.body()?;
                let all = self.stuffed(&body, view.size)?;
                let (bytes, zeros) = memory.split_at_mut(all.len().min(memory.len()));
                bytes.copy_from_slice(all);
                zeros.fill(0);
            } else {
                self.block_now(block, view.size, memory)?;
            }
            self.data().pages.write().put(&self.core.dirty.spare, shift, block << shift, memory);
            Ok(())
        })
    }
}
