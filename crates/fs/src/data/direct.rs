//! Direct writes: whole blocks, from the caller's memory to the devices.
//!
//! They run beside one another and beside readers: data goes to blocks that are written already, or
//! to new ones that nobody refers to; only the transaction that links new ones is serialised. No two
//! of them are in one block at a time ([`crate::inflight_writes`]).

use braid_format::dinode::Layout;
use braid_pool::PoolRequest;
use smallvec::SmallVec;

use super::read::bytes;
use super::{HeldInode, View, limit, touch};
use crate::attr::EarlyReply;
use crate::error::{Error, Result};
use crate::file_data::Delalloc;
use crate::inode::{InodeState, now_nanos};
use crate::map::{Load, slots_bound};
use crate::unseen_writes::UnseenWrite;
use crate::writeback::extent_commit::ExtentCommit;
use crate::writeback::extents::Pieces;
use crate::writeback::flush::{What, commit_extents, flush_locked};

/// Writes beside others (shared on this node). `false`: not possible so, nothing was changed that
/// the same write done again would not overwrite.
///
/// # Errors
/// `Contents`: the range may hold old or new bytes. None once the program was answered.
pub(super) fn write_concurrent(
    held: HeldInode<'_>,
    offset: u64,
    data: &[u8],
    reply: &mut dyn EarlyReply,
    unseen: &UnseenWrite,
) -> Result<bool> {
    let len = data.len() as u64;
    let end = offset + len;
    let mut delalloc = held.change_apart(offset, len);
    if must_flush(held, offset, end, held.view()?) {
        flush_locked(held, &mut delalloc, What::Contents)?;
    }
    let view = held.view()?;
    if view.layout != Layout::Extents || held.partial_tail(offset, view)?.is_some() {
        return Ok(false);
    }
    let mut ticket = held.core.inflight.begin(held.inode.ino, offset..end);
    drop(delalloc);
    let mut answered = false;
    let _changes = held.core.changes_concurrent(held.inode.ino);
    let done = put(held, None, (offset, data), &mut |holes| {
        ticket.fill(held.data(), holes);
        if reply.may() && ticket.may_answer(len, limit::room(held.core)) {
            held.change_state(|st| st.raw.size = st.raw.size.get().max(end).into())?;
            reply.send();
            answered = true;
        }
        Ok(())
    });
    match done {
        Err(e) if answered => {
            keep(held, offset, data, e);
            Ok(true)
        }
        Err(Error::NoSpace) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => {
            // Before the ticket goes, for which page fills wait.
            unseen.done();
            Ok(true)
        }
    }
}

/// Overwrites what is written already, while other nodes do the same (concurrent cluster lock): no
/// metadata change but the time, which the lock's record will carry. `false`: not possible so, nothing
/// was changed.
///
/// # Errors
/// `Contents`: the range may hold old or new bytes.
pub(super) fn overwrite(
    held: HeldInode<'_>,
    offset: u64,
    data: &[u8],
    unseen: &UnseenWrite,
) -> Result<bool> {
    let (shift, end) = (held.shift(), offset + data.len() as u64);
    let delalloc = held.change_apart(offset, data.len() as u64);
    let view = held.view()?;
    // Dirty: the exclusive lock is just being given up, and older bytes are about to be written here.
    if held.data().is_dirty() || view.layout != Layout::Extents || end > view.size {
        return Ok(false);
    }
    let pieces = held.lookup(offset >> shift..end >> shift)?;
    if pieces.iter().any(|p| p.written().is_none()) {
        return Ok(false);
    }
    let _ticket = held.core.inflight.begin(held.inode.ino, offset..end);
    drop(delalloc);
    // A program that reads the time after this write must find it later than the time before.
    held.change_state(|st| st.changed_concurrently(now_nanos()))?;
    // Other nodes may be writing these blocks now.
    held.run_concurrent(&mut requests(held, &pieces, &[], data))?;
    held.core.meta.note_data_written();
    unseen.done();
    Ok(true)
}

/// The program was answered, and then a device refuses: what it wrote stays dirty, and `fsync` of
/// the file reports it. If the error is not a device's, the node can do no more.
fn keep(held: HeldInode<'_>, offset: u64, data: &[u8], error: Error) {
    let ino = held.inode.ino;
    if error.is_fatal() {
        return held.core.withdraw(&error);
    }
    tracing::warn!(%ino, offset, len = data.len(), %error, "not written yet");
    let mut delalloc = held.data().change.lock();
    if let Err(again) = held.write_cached(&mut delalloc, offset, data) {
        tracing::error!(%ino, offset, len = data.len(), %again, "lost data that a program wrote");
        *held.data().lost.lock() = Some(error);
        if again.is_fatal() {
            return held.core.withdraw(&again);
        }
        // The file stays as long as was said, with a hole at its end.
        if let Err(error) = held.settle_size() {
            tracing::error!(%ino, %error, "the size of a file is behind");
        }
    }
}

/// Writes with no other user on this node; `change` held.
pub(super) fn write_alone(
    held: HeldInode<'_>,
    delalloc: &mut Delalloc,
    offset: u64,
    data: &[u8],
) -> Result<()> {
    let end = offset + data.len() as u64;
    let view = held.view()?;
    // What must be in blocks before the file may get longer: a stuffed file's bytes, zeros after
    // the end.
    let kept = offset > 0 || end < view.size;
    let fill = if view.layout == Layout::Stuffed {
        (view.size > 0 && kept && !held.data().is_dirty()).then_some(0)
    } else {
        held.partial_tail(offset, view)?
    };
    if let Some(block) = fill {
        held.reserve_for(delalloc, block..block + 1, &[])?;
        held.fill(block, view)?;
        held.recount();
    }
    if fill.is_some() || must_flush(held, offset, end, view) {
        flush_locked(held, delalloc, What::Contents)?;
    }
    let mut go_on = |_| Ok(());
    match put(held, Some(delalloc), (offset, data), &mut go_on) {
        Err(Error::NoSpace) => {
            flush_locked(held, delalloc, What::Contents)?;
            limit::write_out(held.core, 0)?;
            put(held, Some(delalloc), (offset, data), &mut go_on)
        }
        done => done,
    }
}

/// Dirty pages that must go first: those in the range, all when the file gets longer past bytes
/// that only they hold, all of a stuffed file.
fn must_flush(held: HeldInode<'_>, offset: u64, end: u64, view: View) -> bool {
    if !held.data().is_dirty() {
        return false;
    }
    let range = offset >> held.shift()..held.blocks_for(end);
    view.layout != Layout::Extents
        || (end > view.disk_size && view.disk_size < view.size)
        || held.data().pages.read().any(held.shift(), range)
}

/// Claims, writes, links. `claimed` is called, with the bytes that go to holes, when nothing but the
/// devices can refuse any more. The range is the caller's alone.
#[expect(clippy::needless_pass_by_value, reason = "a handle and a loan")]
fn put(
    held: HeldInode<'_>,
    change: Option<&mut Delalloc>,
    (offset, data): (u64, &[u8]),
    claimed: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let shift = held.shift();
    let end = offset + data.len() as u64;
    let pieces = held.lookup(offset >> shift..end >> shift)?;
    let mut links = Vec::new();
    let mut own = Delalloc::default();
    if pieces.iter().any(|p| p.written().is_none()) {
        claim(held, &mut own, &pieces, &mut links)?;
    }
    // Only once: a program that was answered has seen the times, and they stay.
    held.change_state(touch)?;
    claimed(pieces.iter().filter(|p| p.physical.is_none()).map(|p| p.len << shift).sum())?;
    if let Err(error) = held.run(&mut requests(held, &pieces, &links, data)) {
        held.keep_back(links, &error);
        return Err(error);
    }
    held.core.meta.note_data_written();
    if links.is_empty() && end <= held.view()?.disk_size {
        return Ok(());
    }
    let _serial = match change {
        Some(_) => None,
        None => Some(held.data().change.lock()),
    };
    for link in &links {
        let now = held.lookup(link.logical..link.logical + link.len)?;
        let same = |p: &crate::writeback::extents::Piece| match link.run {
            Some(_) => p.physical.is_none(),
            None => p.unwritten,
        };
        if !now.iter().all(same) {
            return Err(held.bad("a hole that another write has filled"));
        }
    }
    commit_extents(held, &mut own, links, end, |st: &mut InodeState, upto| {
        let upto = upto.min(end);
        st.raw.size = st.raw.size.get().max(upto).into();
        st.disk_size = st.disk_size.max(upto).min(st.raw.size.get());
    })
}

/// Promises and claims blocks for the holes; unwritten blocks will be marked written.
fn claim(
    held: HeldInode<'_>,
    own: &mut Delalloc,
    pieces: &Pieces,
    links: &mut Vec<ExtentCommit>,
) -> Result<()> {
    let holes: u64 = pieces.iter().filter(|p| p.physical.is_none()).map(|p| p.len).sum();
    let places = pieces.iter().filter(|p| p.written().is_none()).count() as u64;
    let load = Load { blocks: holes, places };
    let slots = slots_bound(&held.root()?, held.core.volume.geo.body_len(), load);
    held.top_up(own, holes, slots)?;
    for p in pieces {
        match p.physical {
            None => {
                let reservation = own.reservation.as_mut().ok_or(Error::NoSpace)?;
                held.claim_hole(reservation, (p.logical, p.len), links)?;
            }
            Some(physical) if p.unwritten => links.push(ExtentCommit {
                logical: p.logical,
                len: p.len,
                physical,
                run: None,
                unwritten: false,
            }),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Few.
type Requests<'a> = SmallVec<[PoolRequest<'a>; 2]>;

/// One submission for the whole range.
fn requests<'a>(
    held: HeldInode<'_>,
    pieces: &Pieces,
    links: &[ExtentCommit],
    data: &'a [u8],
) -> Requests<'a> {
    let (shift, block_size) = (held.shift(), held.core.volume.geo.block_size);
    let first = pieces.first().map_or(0, |p| p.logical);
    let slice = |logical: u64, len: u64| {
        let from = bytes(logical - first, shift);
        data.get(from..from + bytes(len, shift)).unwrap_or_default()
    };
    let old = pieces.iter().filter_map(|p| Some((p.logical, p.len, p.written()?)));
    let new = links.iter().map(|l| (l.logical, l.len, l.physical));
    old.chain(new)
        .map(|(logical, len, at)| PoolRequest::write(block_size.offset_of(at), slice(logical, len)))
        .collect()
}
