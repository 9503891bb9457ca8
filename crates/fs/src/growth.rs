//! The file system uses space that was added to its pool.
//!
//! Order: (1) zeros, as when it is made, heads and bitmaps of the new groups, then a flush: nothing
//! refers to them; (2) one transaction: the superblock says of the region, and this node's counters
//! of what is free in it; (3) the superblock in its place, durable; (4) its copy; (5) every other
//! node knows of it; (6) the groups are used. Power may be cut anywhere: before the transaction is
//! durable nothing has changed, and what is left of (1) is written again; after it the region is
//! there, and the node that replays the journal puts the superblock in its place before anybody
//! reads a block of the region.

use std::sync::Arc;

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::superblock::{RawLeaving, RawRegions, RawSuperblock};
use braid_format::{BlockNo, ByteOffset, LockNo, MemberIndex};
use braid_lock::{Local, Mode};
use braid_pool::PoolInfo;
use braid_pool::device::AlignedBuf;
use zerocopy::{FromBytes, IntoBytes};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::make::{Addition, additions};
use crate::volume::Volume;

/// Where the superblock is, and its lock.
pub(crate) const HERE: BlockNo = BlockNo(0);
pub(crate) const LIVE: LockNo = LockNo(0);

/// What of a pool is not used yet.
fn pending(volume: &Volume, pool: &PoolInfo) -> Result<Vec<Addition>> {
    let nodes = volume.sb.node_slots.get();
    let all = additions(pool, volume.geo, nodes, volume.total_blocks())?;
    if volume.groups.added() + all.len() > RawRegions::MAX {
        return Err(Error::TooManyRegions { max: RawRegions::MAX });
    }
    Ok(all)
}

/// Whether the file system could use a pool that is, or would be, like this.
pub(crate) fn may_grow(core: &Core, pool: &PoolInfo) -> Result<()> {
    pending(&core.volume, pool).map(drop)
}

/// Uses all of the pool; blocks that came with it.
pub(crate) fn grow(core: &Arc<Core>) -> Result<u64> {
    let volume = &core.volume;
    let before = volume.total_blocks();
    let guard = core.guard(LIVE, Mode::Exclusive, Local::Exclusive)?;
    if volume.refresh()? {
        // The node that added it may have died before it told the others.
        volume.pool.renew_epoch()?;
    }
    for addition in pending(volume, &volume.pool.info())? {
        add(core, &addition)?;
    }
    drop(guard);
    Ok(volume.total_blocks() - before)
}

/// At mount time, journals being replayed: writes the superblock anew where it cannot be used, takes over
/// what it says of growth, and finishes one that was broken off, unless others may be at it.
pub(crate) fn catch_up(core: &Arc<Core>, alone: bool) -> Result<()> {
    if core.options.read_only {
        return core.volume.refresh().map(drop);
    }
    keep_first(core)?;
    core.volume.refresh()?;
    if !alone {
        if core.volume.groups.added() > 0 {
            // The node that added space may have died before it told the other nodes.
            core.volume.pool.renew_epoch()?;
        }
        return keep_copy(core);
    }
    keep_copy(core)?;
    if core.volume.groups.any_closed() {
        tracing::warn!(
            "a part of the pool is being emptied: `braid remove POOL MEMBER` goes on with it, `braid remove POOL --cancel` ends it"
        );
    }
    finish_leaving(core);
    match pending(&core.volume, &core.volume.pool.info()) {
        Ok(all) if all.is_empty() => Ok(()),
        Ok(_) => {
            let blocks = grow(core)?;
            tracing::info!(blocks, "the file system uses what was added to the pool");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(%error, "what was added to the pool cannot be used");
            Ok(())
        }
    }
}

/// The copy goes to the superblock's place if what stands there cannot be used.
fn keep_first(core: &Core) -> Result<()> {
    if core.volume.is_first_usable() {
        return Ok(());
    }
    // Who had the lock before may have put it in place; if it died, a replay has.
    let guard = core.guard(LIVE, Mode::Exclusive, Local::Exclusive)?;
    if !core.volume.is_first_usable() {
        put(&core.volume, core.volume.copy(), HERE)?;
        tracing::warn!("the first superblock could not be used: its copy was written over it");
    }
    drop(guard);
    Ok(())
}

/// The node that added space may have died before the superblock's copy said so.
fn keep_copy(core: &Core) -> Result<()> {
    if core.volume.groups.added() == 0 || same_copy(&core.volume)? {
        return Ok(());
    }
    let guard = core.guard(LIVE, Mode::Exclusive, Local::Exclusive)?;
    copy(&core.volume)?;
    drop(guard);
    Ok(())
}

fn add(core: &Core, addition: &Addition) -> Result<()> {
    let volume = &core.volume;
    // Sound before the first change.
    core.meta.read(HERE, LIVE, MetaKind::Superblock)?;
    addition.write(&volume.pool, volume.groups.count())?;
    volume.pool.flush()?;
    let part = addition.part();
    let (data, meta) = part.totals();
    let mut tx = core.meta.begin()?;
    tx.modify(HERE, LIVE, MetaKind::Superblock, |body| {
        let Ok((sb, rest)) = RawSuperblock::mut_from_prefix(body) else { return };
        let Ok((regions, _)) = RawRegions::mut_from_prefix(rest) else { return };
        if regions.count.get() == 0 {
            regions.base_blocks.set(sb.total_blocks.get());
        }
        let count = regions.count.get();
        let place = usize::try_from(count).ok().and_then(|n| regions.regions.get_mut(n));
        let Some(place) = place else { return };
        *place = part.raw(addition.end());
        regions.count.set(count + 1);
        sb.total_blocks.set(addition.end());
        let features = sb.features_incompat.get() | RawSuperblock::REGIONS;
        sb.features_incompat.set(features);
    })?;
    core.meta.sealed(core.alloc.count_added(&mut tx, data, meta))?;
    drop(tx);
    core.meta.sync_owner(LIVE)?;
    copy(volume)?;
    // An epoch that changes nothing: each node reads the superblock before it says that it uses it.
    volume.pool.renew_epoch()?;
    volume.refresh().map(drop)
}

/// What of a superblock's body its copy says too.
fn content(body: &AlignedBuf) -> Option<Vec<u8>> {
    let len = RawLeaving::AT + size_of::<RawLeaving>();
    body.get(MetaHeader::LEN..len).map(<[u8]>::to_vec)
}

fn same_copy(volume: &Volume) -> Result<bool> {
    let (body, ..) = volume.read_body(HERE)?;
    let copy = volume.read_body(volume.copy());
    Ok(copy.is_ok_and(|(copy, ..)| content(&copy) == content(&body)))
}

/// Makes the copy of the superblock say what the first does, if it does not.
pub(crate) fn copy(volume: &Volume) -> Result<()> {
    if same_copy(volume)? {
        return Ok(());
    }
    put(volume, HERE, volume.copy())
}

/// Writes the superblock at `from` to `to`, too. Durable on return.
fn put(volume: &Volume, from: BlockNo, to: BlockNo) -> Result<()> {
    let (mut body, mut header, _) = volume.read_body(from)?;
    header.block.set(to.get());
    let _ = header.write_to_prefix(&mut body);
    MetaHeader::seal(&mut body);
    volume.write_bodies(&[(to, &body)])?;
    Ok(volume.pool.flush()?)
}

/// What leaves, as bytes of the pool: regions by their numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    pub number: usize,
    pub from: ByteOffset,
    pub to: ByteOffset,
}

/// The superblock's regions, and which part of the pool each is, whatever of it is used.
pub(crate) fn regions(core: &Core) -> Result<Vec<Region>> {
    let volume = &core.volume;
    let raw = volume.regions_now()?;
    let shift = volume.geo.block_size.shift();
    let count = usize::try_from(raw.count.get()).unwrap_or(0).min(RawRegions::MAX);
    let segments = volume.pool.info().segments.clone();
    let mut start = raw.base_blocks.get() << shift;
    let mut all = Vec::new();
    for (number, region) in raw.regions.iter().take(count).enumerate() {
        let end = region.end.get() << shift;
        let own = || segments.iter().filter(|s| (start..end).contains(&s.start.get()));
        let from = own().map(|s| s.start).min();
        let to = own().map(|s| s.start.get() + s.len.get()).max();
        if let (Some(from), Some(to)) = (from, to) {
            all.push(Region { number, from, to: ByteOffset(to) });
        }
        start = end;
    }
    Ok(all)
}

pub(crate) fn bit(number: usize) -> u32 {
    u32::try_from(number).ok().and_then(|n| 1_u32.checked_shl(n)).unwrap_or(0)
}

/// Takes out of the pool what is gone and still in it; members that hold nothing any more. Failures
/// only go to the log: the next caller tries again.
pub(crate) fn finish_leaving(core: &Arc<Core>) -> Vec<MemberIndex> {
    let gone = core.volume.groups.leaving();
    if gone.gone.get() == 0 {
        return Vec::new();
    }
    let all = regions(core).and_then(|all| {
        let mut members = Vec::new();
        for r in all.iter().filter(|r| gone.gone.get() & bit(r.number) != 0) {
            members.extend(core.volume.pool.cut(r.from, r.to)?);
        }
        Ok(members)
    });
    all.unwrap_or_else(|error| {
        tracing::warn!(%error, "a part that has left the file system is still in the pool");
        Vec::new()
    })
}

#[cfg(test)]
pub(crate) mod tests;
