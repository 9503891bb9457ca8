//! Flush: claims blocks for what is dirty, writes it, and commits its extents.

use std::sync::Arc;

use braid_format::BlockNo;
use braid_lock::{Local, Mode};
use braid_pool::PoolRequest;

use super::extent_commit::{EXTENTS_PER_TX, ExtentCommit};
use super::held::{HeldInode, View};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::file_data::{Delalloc, Pages};
use crate::inode::{Inode, InodeState, Locked};

/// Requests in one submission: bounds memory, keeps all members busy.
const REQUESTS_MAX: usize = 512;

/// How much of an inode is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Contents and the dinode.
    All,
    /// Contents, and what is needed to read them: times may stay behind.
    Contents,
}

/// Dirty blocks and where they go.
struct Target {
    logical: u64,
    len: u64,
    physical: BlockNo,
}

/// Writes everything dirty and commits its extents. Exclusive cluster lock held, at least shared on this node.
pub(crate) fn flush(held: HeldInode<'_>, what: What) -> Result<()> {
    let mut delalloc = held.data().change.lock();
    flush_locked(held, &mut delalloc, what)
}

/// Writes dirty contents, then the transaction that makes them visible; not durable by itself.
/// Exclusive cluster lock held.
///
/// # Errors
/// `Contents` when a device refuses: the data stays dirty, so every later flush tells again.
pub(crate) fn flush_inode(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    flush(HeldInode::of(core, locked), What::All)
}

/// Contents (and all metadata, unless `data_only`) durable on return. No lock held.
///
/// # Errors
/// As [`flush_inode`]; `Withdrawn` when a flush of the devices failed.
pub(crate) fn fsync(core: &Arc<Core>, inode: &Arc<Inode>, data_only: bool) -> Result<()> {
    core.inflight.settle_file(inode)?;
    if inode.is_dirty() {
        let locked = core.lock(inode.ino, Mode::Exclusive, Local::Shared)?;
        let what = if data_only { What::Contents } else { What::All };
        flush(HeldInode::of(core, &locked), what)?;
    }
    core.meta.commit_and_flush()
}

/// Writes all dirty contents (and the dinode's dirty fields) of an inode whose exclusive lock this
/// node gives up: no new lock, no new reservation.
pub(crate) fn flush_for_demotion(core: &Core, inode: &Arc<Inode>) -> Result<()> {
    flush(HeldInode { core, inode }, What::All)
}

/// As [`flush`], unless another thread is doing that: for threads that hold another file's
/// `change`. Whether it was.
pub(crate) fn try_flush(held: HeldInode<'_>) -> Result<bool> {
    match held.data().change.try_lock() {
        Some(mut delalloc) => flush_locked(held, &mut delalloc, What::Contents).map(|()| true),
        None => Ok(false),
    }
}

/// As [`flush`], with `change` held.
pub(crate) fn flush_locked(held: HeldInode<'_>, delalloc: &mut Delalloc, what: What) -> Result<()> {
    if !held.inode.is_loaded() {
        return Ok(());
    }
    if !held.data().is_dirty() {
        return if what == What::All { encode(held) } else { Ok(()) };
    }
    if delalloc.short > 0 {
        // A demotion does not get here: a demotion that failed has ended the node.
        let short = delalloc.short;
        held.top_up(delalloc, short, 0)?;
        delalloc.short = 0;
    }
    let view = held.view()?;
    let commits = write_pages(held, delalloc, view).inspect_err(|e| held.data().put_off(e))?;
    *held.data().put_off.lock() = None;
    commit_flushed(held, delalloc, commits, view)?;
    held.data().pages.write().clear(&held.core.dirty.spare);
    held.recount();
    // What was reserved and not used goes back.
    *delalloc = Delalloc::default();
    Ok(())
}

/// Only the dinode's fields are dirty.
fn encode(held: HeldInode<'_>) -> Result<()> {
    if !held.inode.state_ref().is_some_and(|st| st.dirty) {
        return Ok(());
    }
    let mut tx = held.core.meta.begin()?;
    held.fatal(held.inode.encode(&mut tx))
}

/// Claims, writes; the extents to commit.
fn write_pages(
    held: HeldInode<'_>,
    delalloc: &mut Delalloc,
    view: View,
) -> Result<Vec<ExtentCommit>> {
    let mut commits = Vec::new();
    let mut targets = Vec::new();
    let pages = held.data().pages.read();
    let done = pages
        .runs(held.shift(), 0..held.blocks_for(view.size))
        .into_iter()
        .try_for_each(|run| place(held, delalloc, run, &mut commits, &mut targets))
        .and_then(|()| write_targets(held, &pages, &targets));
    drop(pages);
    held.core.meta.note_data_written();
    if let Err(e) = done {
        // The pages stay dirty and need their reservation again.
        let lost = commits.iter().filter(|l| l.run.is_some()).map(|l| l.len).sum();
        held.keep_back(commits, &e);
        // Not waiting: this may be a demotion, which then ends this node.
        match (held.core.alloc.reserve_here(lost), &mut delalloc.reservation) {
            (Some(fresh), Some(r)) => held.core.alloc.merge(r, fresh),
            _ => delalloc.short += lost,
        }
        return Err(e);
    }
    Ok(commits)
}

/// Decides where a run of dirty blocks goes.
fn place(
    held: HeldInode<'_>,
    delalloc: &mut Delalloc,
    run: std::ops::Range<u64>,
    commits: &mut Vec<ExtentCommit>,
    targets: &mut Vec<Target>,
) -> Result<()> {
    for piece in held.lookup(run)? {
        let (logical, len) = (piece.logical, piece.len);
        if let Some(physical) = piece.physical {
            targets.push(Target { logical, len, physical });
            if piece.unwritten {
                commits.push(ExtentCommit { logical, len, physical, run: None, unwritten: false });
            }
            continue;
        }
        let from = commits.len();
        let reservation = delalloc.reservation.as_mut().ok_or(Error::NoSpace)?;
        held.claim_hole(reservation, (logical, len), commits)?;
        targets.extend(commits.iter().skip(from).map(|l| Target {
            logical: l.logical,
            len: l.len,
            physical: l.physical,
        }));
    }
    Ok(())
}

/// Writes the pages to their places, many at once.
fn write_targets(held: HeldInode<'_>, pages: &Pages, targets: &[Target]) -> Result<()> {
    let block_size = held.core.volume.geo.block_size;
    let mut requests = Vec::new();
    for t in targets {
        for (first, bytes) in pages.slices(held.shift(), t.logical..t.logical + t.len) {
            let block = BlockNo(t.physical.get() + (first - t.logical));
            requests.push(PoolRequest::write(block_size.offset_of(block), bytes));
            if requests.len() >= REQUESTS_MAX {
                held.run(&mut requests)?;
                requests.clear();
            }
        }
    }
    held.run(&mut requests)
}

/// Commits the extents of what was flushed; the size on disk follows them.
fn commit_flushed(
    held: HeldInode<'_>,
    delalloc: &mut Delalloc,
    commits: Vec<ExtentCommit>,
    view: View,
) -> Result<()> {
    if commits.is_empty() {
        held.change_state(|st| {
            let size = st.raw.size.get();
            st.dirty |= st.disk_size < size;
            st.disk_size = size;
        })?;
        return encode(held);
    }
    commit_extents(held, delalloc, commits, view.size, |st, upto| {
        st.disk_size = upto.max(st.disk_size).min(st.raw.size.get());
    })
}

/// Commits `commits` in as many transactions as it takes, `change` held. `finish` gets the byte up to
/// which all is committed; in the last transaction that is `end`.
pub(crate) fn commit_extents(
    held: HeldInode<'_>,
    delalloc: &mut Delalloc,
    commits: Vec<ExtentCommit>,
    end: u64,
    finish: impl Fn(&mut InodeState, u64),
) -> Result<()> {
    let mut rest = commits;
    loop {
        let later = rest.split_off(rest.len().min(EXTENTS_PER_TX));
        let upto = match rest.last() {
            Some(l) if !later.is_empty() => (l.logical + l.len) << held.shift(),
            _ => end,
        };
        let reservation = held.slots_for(delalloc, &rest)?;
        held.commit(reservation, rest, |st| finish(st, upto))?;
        if later.is_empty() {
            return Ok(());
        }
        rest = later;
    }
}

/// Writes the dirty contents of every inode (not durable by itself). A file that cannot be written
/// does not stop the others, and is not tried again for a while, unless `all` are to be tried.
///
/// # Errors
/// The first error, which the inode's own users get, too. An error that ends everything is returned at once.
pub(crate) fn flush_all(core: &Arc<Core>, all: bool) -> Result<()> {
    let mut refused = Ok(());
    for inode in core.inodes.all() {
        if !inode.is_dirty() || !all && inode.data.is_put_off() {
            continue;
        }
        let done = core.lock_exclusive(inode.ino).and_then(|l| flush_inode(core, &l));
        match done {
            // Deleted meanwhile: nothing left to write.
            Ok(()) | Err(Error::Stale(_)) => {}
            Err(e @ (Error::Contents(_) | Error::NoSpace)) => refused = refused.and(Err(e)),
            Err(e) if e.damaged_block().is_some() => refused = refused.and(Err(e)),
            Err(e) => return Err(e),
        }
    }
    refused
}

/// All that programs have written so far: contents, then metadata.
pub(crate) fn make_stable(core: &Arc<Core>) -> Result<()> {
    core.inflight.settle_all();
    let flushed = flush_all(core, true);
    core.meta.commit_and_flush().and(flushed)
}
