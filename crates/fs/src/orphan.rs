//! Inodes without a name: unlinked but open, made without one, or too large to be freed in one
//! transaction. The node that takes the last name away lists the inode in its orphan blocks (same
//! transaction) until it is deleted.
//!
//! The node that closes the inode last deletes it ([`delete`]). When that is another node, the
//! entry here is stale, and [`reap`] clears it. A listed number counts for nothing by itself: only
//! an inode that stands there, without links and unused, is deleted.
//!
//! In use is also what the kernel refers to: it opens inodes that it has looked up before, and asks
//! nobody before a program opens a FIFO, a device or a directory to stand in. The kernel that removes
//! the last name drops the inode at once and says so ([`forget`]), unless a program uses it. What
//! another node removed it may keep as mere cache: [`leave_records`] has it let go of such inodes now and
//! then, so none stays for longer than a commit interval after its last use.
//!
//! Order: inode lock, then the table of this module (never held while waiting for a cluster lock
//! or for a transaction to begin).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::meta::MetaKind;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, InodeNo, LockNo, NodeId};
use braid_lock::{Local, Mode};
use braid_pool::device::processors;

use crate::alloc::Reservation;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::inode::{Inode, Locked, now};
use crate::meta::Tx;
use crate::orphan_list::{ENTRY, HEAD, LEAVE_PATIENCE, Listed, Table, bad, decode, encode};
use crate::volume::Volume;
use crate::xattr::place;

/// Seconds between two looks at an inode that another node has open. That node deletes it at its
/// last close; the look is for nodes that died.
const RETRY_SECONDS: i64 = 60;
/// How many listed inodes are looked at before that, when the lists are full and room is wanted.
const LOOKS_MAX: usize = 64;

/// A reservation of room in the lists. Dropped unused, it goes back.
pub(crate) struct Room {
    core: Arc<Core>,
    /// Whose file it is for.
    uid: u32,
    /// It is one of the places for what nobody has open.
    is_passing: bool,
    used: bool,
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.used
            && let Some(table) = self.core.orphans.table.lock().as_mut()
        {
            table.reserved = table.reserved.saturating_sub(1);
            table.uncount(self.uid, self.is_passing);
        }
    }
}

/// The `n`-th list of `node`.
fn block_of(core: &Core, node: NodeId, n: usize) -> BlockNo {
    core.volume.node_area(node, RawSuperblock::AREA_ORPHANS + n as u64)
}

fn read(core: &Core, block: BlockNo) -> Result<Vec<InodeNo>> {
    let body = core.meta.read(block, LockNo::from(block), MetaKind::Orphans)?;
    decode(&body, block)
}

/// Reads this node's lists unless that has been done. No transaction need be closed for it.
pub(crate) fn load(core: &Core) -> Result<()> {
    let mut table = core.orphans.table.lock();
    if table.is_some() {
        return Ok(());
    }
    let blocks = usize::try_from(RawSuperblock::ORPHAN_BLOCKS).unwrap_or(0);
    let mut listed = HashMap::new();
    let mut counts = Vec::with_capacity(blocks);
    for n in 0..blocks {
        let inos = read(core, block_of(core, core.me.slot, n))?;
        counts.push(inos.len());
        listed.extend(inos.into_iter().map(|ino| {
            let listed = Listed { block: n, retry_at: 0, uid: 0, is_passing: false };
            (ino, listed)
        }));
    }
    let capacity = core.volume.geo.body_len().saturating_sub(HEAD) / ENTRY;
    let (by_user, passing) = Default::default();
    *table = Some(Table { listed, counts, capacity, reserved: 0, by_user, passing });
    Ok(())
}

/// Reserves room for one inode, a file of user `uid`; `is_open`: a program on some node has it open.
///
/// # Errors
/// `TooManyOrphans`.
pub(crate) fn room(core: &Arc<Core>, uid: u32, is_open: bool) -> Result<Room> {
    load(core)?;
    let reserved = || {
        let mut table = core.orphans.table.lock();
        let table = table.as_mut()?;
        let is_passing = !table.has_room_for(uid);
        if is_passing && (is_open || !table.has_room_to_pass(uid)) {
            return None;
        }
        table.reserved += 1;
        table.count(uid, is_passing);
        Some(Room { core: core.clone(), uid, is_passing, used: false })
    };
    let room = reserved().or_else(|| {
        let left = core.orphans.await_leaving(LEAVE_PATIENCE);
        left.then(reserved).flatten()
    });
    room.ok_or(Error::TooManyOrphans)
}

/// Rooms given out and not used yet.
#[cfg(test)]
pub(crate) fn reserved(core: &Core) -> usize {
    core.orphans.table.lock().as_ref().map_or(0, |table| table.reserved)
}

/// Lists an inode that is losing its last name, in the same transaction.
///
/// # Errors
/// Fatal ones only.
pub(crate) fn list(core: &Core, tx: &mut Tx<'_>, mut room: Room, ino: InodeNo) -> Result<()> {
    let mut table = core.orphans.table.lock();
    let Some(table) = table.as_mut() else { return Err(Error::TooManyOrphans) };
    room.used = true;
    table.reserved = table.reserved.saturating_sub(1);
    // A stale entry of the number's former inode does as well.
    if table.listed.contains_key(&ino) {
        table.uncount(room.uid, room.is_passing);
        return Ok(());
    }
    let n = table.counts.iter().position(|&c| c < table.capacity).ok_or(Error::TooManyOrphans)?;
    change(core, tx, block_of(core, core.me.slot, n), |inos| inos.push(ino))?;
    if let Some(count) = table.counts.get_mut(n) {
        *count += 1;
    }
    let (uid, is_passing) = (room.uid, room.is_passing);
    table.listed.insert(ino, Listed { block: n, retry_at: 0, uid, is_passing });
    Ok(())
}

/// Takes an inode off this node's lists if it is there. [`load`] has been called.
///
/// # Errors
/// Fatal ones only.
pub(crate) fn unlist(core: &Core, tx: &mut Tx<'_>, ino: InodeNo) -> Result<()> {
    let mut table = core.orphans.table.lock();
    let Some(table) = table.as_mut() else { return Ok(()) };
    let Some(&Listed { block: n, uid, is_passing, .. }) = table.listed.get(&ino) else {
        return Ok(());
    };
    change(core, tx, block_of(core, core.me.slot, n), |inos| inos.retain(|&i| i != ino))?;
    table.listed.remove(&ino);
    table.uncount(uid, is_passing);
    if let Some(count) = table.counts.get_mut(n) {
        *count = count.saturating_sub(1);
    }
    Ok(())
}

/// Changes a list. It is private to this node, so nobody else changes it meanwhile.
fn change(
    core: &Core,
    tx: &mut Tx<'_>,
    block: BlockNo,
    f: impl FnOnce(&mut Vec<InodeNo>),
) -> Result<()> {
    let owner = LockNo::from(block);
    let body = tx.read(block, owner, MetaKind::Orphans)?;
    let mut inos = decode(&body, block)?;
    drop(body);
    f(&mut inos);
    if HEAD + inos.len() * ENTRY > core.volume.geo.body_len() {
        return Err(bad(block, "orphan list overflows"));
    }
    tx.modify(block, owner, MetaKind::Orphans, |body| encode(body, &inos))
}

/// Frees a dinode and the blocks of its attributes in `tx`: as many free-log entries as
/// [`crate::xattr::place::held`] says, and one. Its contents are gone already. The inode's state must not be used after it; the caller unloads it when the
/// transaction is closed.
pub(crate) fn free_dinode(
    core: &Core,
    tx: &mut Tx<'_>,
    r: &mut Reservation,
    inode: &Locked,
) -> Result<()> {
    let lock = inode.lock_no();
    for block in place::held(core, inode)? {
        tx.free(block, lock)?;
        core.alloc.free_slot(tx, r, block, false)?;
    }
    tx.free(inode.inode.block(), lock)?;
    core.alloc.free_slot(tx, r, inode.inode.block(), true)
}

/// Deletes an inode without links that nobody has open: contents, attributes, slot. Crash-safe
/// and idempotent; does nothing while someone has it open. No lock held.
pub(crate) fn delete(core: &Arc<Core>, ino: InodeNo) -> Result<()> {
    load(core)?;
    match core.lock_exclusive(ino) {
        Ok(locked) => delete_locked(core, &locked),
        // Another node deleted it: the entry here, if any, is stale.
        Err(Error::Stale(_)) => {
            core.orphans.has_gone(ino);
            unlist_stale(core, ino)
        }
        Err(e) => Err(e),
    }
}

/// This node's last close of `inode`, its handle counted out already: deletes it if it is unlinked,
/// here or elsewhere, and nobody refers to it any more. Takes its lock only if it was unlinked here or
/// the lock's record may name this node as an opener. No lock held.
///
/// # Errors
/// Those of taking the lock, and of deleting. What is left undone [`reap`] tries again.
pub(crate) fn last_close(core: &Arc<Core>, inode: &Inode) -> Result<()> {
    let unlinked = is_unlinked(inode);
    if !unlinked && !inode.may_be_opener() {
        return Ok(());
    }
    if core.kernel.refers(inode.ino) {
        if inode.may_be_opener() {
            // Perhaps unlinked by another node: the kernel knows nothing of that, and has to be asked.
            core.orphans.kernel.lock().later.insert(inode.ino);
            look_later(core);
        } else {
            // Unlinked by the kernel, which is giving it back.
            core.orphans.leaves(inode.ino);
        }
        return Ok(());
    }
    if !leave_record(core, inode)? && unlinked {
        delete(core, inode.ino)?;
    }
    Ok(())
}

fn is_unlinked(inode: &Inode) -> bool {
    inode.state_ref().is_some_and(|st| st.raw.nlink.get() == 0)
}

/// If the record of an inode's lock may name this node as an opener, and the inode is no longer
/// open here: takes this node out of the record, and deletes the inode if it is unlinked and nobody
/// else has it open. Returns whether it did so.
fn leave_record(core: &Arc<Core>, inode: &Inode) -> Result<bool> {
    if !inode.end_opener() {
        return Ok(false);
    }
    let done = delete(core, inode.ino);
    if done.is_err() {
        inode.still_opener();
    }
    done.map(|()| true)
}

/// [`leave_record`] for all inodes for which it could not be done at the last close.
fn leave_records(core: &Arc<Core>) -> Result<()> {
    for inode in core.inodes.closed_openers() {
        if core.kernel.refers(inode.ino) {
            // Used by a program, or cached since one used it: then the kernel lets go now.
            core.kernel.let_go(inode.ino);
            continue;
        }
        match leave_record(core, &inode) {
            Err(e) if !e.is_fatal() => {
                tracing::warn!("inode {} is still recorded as open here: {e}", inode.ino);
            }
            done => _ = done?,
        }
    }
    Ok(())
}

/// As [`delete`], of an inode locked exclusively. Once it is deleted its state is unloaded: the
/// caller only unlocks it.
pub(crate) fn delete_locked(core: &Arc<Core>, locked: &Locked) -> Result<()> {
    load(core)?;
    let ino = locked.ino();
    if locked.st().raw.nlink.get() > 0 {
        return unlist_stale(core, ino);
    }
    if core.is_in_use(locked) {
        return Ok(());
    }
    let mut attributes = place::held(core, locked)?.len();
    crate::data::free_contents(core, locked)?;
    while attributes > place::FREED_WITH_DINODE {
        place::remove_some(core, locked)?;
        attributes = place::held(core, locked)?.len();
    }
    let mut r = core.alloc.reserve(0, 0, 1 + attributes as u64)?;
    let mut tx = core.meta.begin()?;
    let done = free_dinode(core, &mut tx, &mut r, locked).and_then(|()| unlist(core, &mut tx, ino));
    drop(tx);
    locked.inode.unload();
    core.orphans.has_gone(ino);
    core.sealed(done)
}

/// This node's kernel has given back its last reference to `ino`, or may have: deletes the inode if it
/// is unlinked and nobody uses it. Never waits for another node; no lock held.
pub(crate) fn forget(core: &Arc<Core>, ino: InodeNo) -> Result<()> {
    let Some(inode) = core.inodes.find(ino) else { return Ok(()) };
    let unlinked = is_unlinked(&inode);
    if !unlinked && !inode.may_be_opener() || core.is_used_here(&inode) {
        return Ok(());
    }
    let change = core.freeze.try_enter();
    if unlinked
        && !inode.may_be_opener()
        && change.is_some()
        && let Some(locked) = core.try_lock(ino, Mode::Exclusive, Local::Exclusive)?
    {
        return delete_locked(core, &locked);
    }
    core.orphans.kernel.lock().later.insert(ino);
    look_later(core);
    Ok(())
}

/// Looks at what may have to be deleted now, in a thread of its own: it waits for other nodes.
pub(crate) fn look_later(core: &Arc<Core>) {
    {
        let mut kernel = core.orphans.kernel.lock();
        if kernel.later.is_empty() || std::mem::replace(&mut kernel.running, true) {
            return;
        }
    }
    let own = core.clone();
    let look = move || {
        processors::roam();
        loop {
            let next = {
                let mut kernel = own.orphans.kernel.lock();
                let next = kernel.later.iter().next().copied();
                match next {
                    Some(ino) => kernel.later.remove(&ino),
                    None => std::mem::replace(&mut kernel.running, false),
                };
                next
            };
            let Some(ino) = next else { return };
            match settle(&own, ino) {
                Err(e) if own.withdrawn.get().is_none() => {
                    tracing::warn!("inode {ino}, no longer in use here, is left for later: {e}");
                }
                _ => {}
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("orphans".into()).spawn(look) {
        // The next turn of the housekeeper tries again.
        tracing::error!(%error, "cannot start a thread");
        core.orphans.kernel.lock().running = false;
    }
}

/// What [`last_close`] does, for an inode that only the kernel may refer to: it is asked to let go.
fn settle(core: &Arc<Core>, ino: InodeNo) -> Result<()> {
    let _change = core.enter_change()?;
    core.check_alive()?;
    let Some(inode) = core.inodes.find(ino) else { return Ok(()) };
    if inode.opens.load(Ordering::Acquire) > 0 {
        return Ok(());
    }
    if core.kernel.refers(ino) {
        // If no program uses it, the kernel soon sends FORGET; otherwise this is tried again.
        core.kernel.let_go(ino);
        return Ok(());
    }
    core.watch(last_close(core, &inode))
}

/// Takes a stale entry off this node's lists, in a transaction of its own.
fn unlist_stale(core: &Core, ino: InodeNo) -> Result<()> {
    let listed =
        core.orphans.table.lock().as_ref().is_some_and(|table| table.listed.contains_key(&ino));
    if !listed {
        return Ok(());
    }
    let mut tx = core.meta.begin()?;
    let done = unlist(core, &mut tx, ino);
    drop(tx);
    core.sealed(done)
}

/// Deletes what can be deleted of this node's own list: at mount, after another node's recovery,
/// and now and then (it takes every listed inode's lock). Returns how many remain listed.
pub(crate) fn reap(core: &Arc<Core>) -> Result<usize> {
    load(core)?;
    leave_records(core)?;
    let present = now().sec;
    let due: Vec<InodeNo> = core.orphans.table.lock().as_ref().map_or_else(Vec::new, |table| {
        let due = table.listed.iter().filter(|(_, l)| l.retry_at <= present);
        due.map(|(&ino, _)| ino).collect()
    });
    for ino in due {
        look_at(core, ino, present)?;
    }
    Ok(core.orphans.table.lock().as_ref().map_or(0, |table| table.listed.len()))
}

/// Deletes a listed inode if nobody uses it. Not if it is in use here: its last user here does
/// that. The kernel may have it under a name that another node removed, and is asked to let go.
fn look_at(core: &Arc<Core>, ino: InodeNo, present: i64) -> Result<()> {
    if is_open_here(core, ino) {
        return Ok(());
    }
    if core.kernel.refers(ino) {
        core.kernel.let_go(ino);
        return Ok(());
    }
    match delete(core, ino) {
        Err(e) if !e.is_fatal() => {
            core.meta.note_damage(&e);
            tracing::warn!("orphan {ino} is left for later: {e}");
        }
        other => other?,
    }
    if let Some(table) = core.orphans.table.lock().as_mut()
        && let Some(listed) = table.listed.get_mut(&ino)
    {
        listed.retry_at = present + RETRY_SECONDS;
    }
    Ok(())
}

fn is_open_here(core: &Core, ino: InodeNo) -> bool {
    core.inodes.find(ino).is_some_and(|i| i.opens.load(Ordering::Acquire) > 0)
}

/// Runs `change`, which may list an inode. If the lists are full, looks at some of what is listed
/// without waiting for its time, and if that made room runs `change` once more. No lock held.
///
/// # Errors
/// Those of `change`: `TooManyOrphans` if the lists are full of what is open somewhere.
pub(crate) fn with_room<T>(core: &Arc<Core>, change: impl Fn() -> Result<T>) -> Result<T> {
    match change() {
        Err(Error::TooManyOrphans) if make_room(core)? => change(),
        done => done,
    }
}

/// Looks at up to [`LOOKS_MAX`] listed inodes that are not open here, those first whose last look was
/// longest ago: other nodes may have closed them since. Whether there is room then.
fn make_room(core: &Arc<Core>) -> Result<bool> {
    // One thread at a time; the others find out what it achieved when they are called again.
    let Some(_one) = core.orphans.looking.try_lock() else { return Ok(has_room(core)) };
    let mut all: Vec<(i64, InodeNo)> = match core.orphans.table.lock().as_ref() {
        Some(table) => table.listed.iter().map(|(&ino, l)| (l.retry_at, ino)).collect(),
        None => return Ok(false),
    };
    all.retain(|(_, ino)| !is_open_here(core, *ino));
    all.sort_unstable();
    let present = now().sec;
    for (_, ino) in all.into_iter().take(LOOKS_MAX) {
        look_at(core, ino, present)?;
    }
    Ok(has_room(core))
}

fn has_room(core: &Core) -> bool {
    core.orphans.table.lock().as_ref().is_some_and(|table| table.has_room_for(0))
}

/// Lets only `each` entries fit in a list, for tests; how many all of them hold.
#[cfg(test)]
pub(crate) fn shrink(core: &Core, each: usize) -> usize {
    let mut table = core.orphans.table.lock();
    let table = table.as_mut().expect("loaded");
    table.capacity = each;
    table.free()
}

/// Reads a node's lists, its journal being replayed, and changes nothing.
///
/// # Errors
/// The first that is damaged.
pub(crate) fn inspect(volume: &Volume, node: NodeId) -> Result<()> {
    (0..RawSuperblock::ORPHAN_BLOCKS).try_for_each(|n| {
        let block = volume.node_area(node, RawSuperblock::AREA_ORPHANS + n);
        decode(&volume.read_private(block, MetaKind::Orphans)?, block).map(drop)
    })
}

/// After replay of dead `node`'s journal: moves its list into this node's. Takes no inode lock (the
/// dead may still hold them): call [`reap`] once its slot is free. What does not fit stays for the
/// slot's next owner. Durable and in place on return; idempotent.
pub(crate) fn recover(core: &Arc<Core>, node: NodeId) -> Result<()> {
    load(core)?;
    for n in 0..usize::try_from(RawSuperblock::ORPHAN_BLOCKS).unwrap_or(0) {
        let block = block_of(core, node, n);
        let inos = read(core, block)?;
        if !inos.is_empty() {
            let mut rooms: Vec<Room> = Vec::new();
            while rooms.len() < inos.len()
                && let Ok(room) = room(core, 0, true)
            {
                rooms.push(room);
            }
            let taken = rooms.len();
            let mut tx = core.meta.begin()?;
            let moved = inos
                .iter()
                .zip(rooms)
                .try_for_each(|(&ino, room)| list(core, &mut tx, room, ino))
                .and_then(|()| change(core, &mut tx, block, |list| drop(list.drain(..taken))));
            drop(tx);
            core.sealed(moved)?;
            core.meta.sync_blocks(&[block])?;
        }
        // The slot's next owner writes it from now on.
        core.meta.drop_owner(LockNo::from(block));
    }
    Ok(())
}
