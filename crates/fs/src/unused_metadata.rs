//! Metadata that nobody uses becomes space for data again: when a node that mounts finds itself alone
//! and data short of space, and after a repair.
//!
//! Under the lock of each resource group, held exclusively: (1) no other node is alive, or was
//! alive since this one began; (2) one transaction for each bitmap: free slots become free blocks,
//! and the counters say so; (3) it is durable; (4) zeros where the slots were; (5) the group's lock
//! goes, and with it others, and this node, may take the blocks. Power may be cut anywhere: what is
//! durable is whole, and the next mount goes on with the rest.
//!
//! What may still believe in a slot, and why it does not matter:
//! * *nodes*, in their caches of locks and bodies: there is none but this one, which has just begun and
//!   looked at no inode. One that joins meanwhile cannot come to the number of a slot that no name, list
//!   or tree on disk leads to; its own slot in the table tells of it before it reads any of these;
//! * *images in journals*: this life has written none of a slot yet; what other lives wrote is in place,
//!   and is never replayed again, whatever is lost of the headers ([`crate::replay::Writer`]);
//! * *windows* of any node, returned or not: one may call a slot used that was freed and given to its group
//!   since, and says so when it goes back. Groups' blocks in windows are left alone;
//! * *orphan lists*: an entry may name an inode that is gone; who looks takes its lock. Left alone;
//! * *handles* that programs or NFS clients keep: the number leads to no lock record any more, and is
//!   answered with `ESTALE` ([`crate::core::Core::lock`]); an inode that gets the number later
//!   has another generation.
//!
//! Where records of locks are in a store, those of the slots would have to go there too: nothing is done.
//! Where metadata has a subpool of its own, no block of that can hold data: there is nothing to do.

use std::time::{Duration, Instant};

use braid_format::meta::MetaKind;
use braid_format::node::{SlotRecord, SlotState};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Incarnation, NodeId};
use braid_lock::LockError;

use crate::alloc::{PrivateRange, window_head};
use crate::core::Core;
use crate::error::Result;
use crate::orphan_list;
use crate::volume::Volume;

/// A mount does it when less than this part (divisor) of the blocks for data is free, ...
const SHORT: u64 = 8;
/// ... and more than this part could be given back; a repair, when more than [`WORTH_REPAIR`] could.
const WORTH: u64 = 16;
const WORTH_REPAIR: u64 = 256;
/// A mount begins with no further group after so long: the next one goes on.
const MOUNT_PATIENCE: Duration = Duration::from_secs(20);

/// The other nodes' slots when this node looked first: all free.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Alone(Vec<(NodeId, Incarnation)>);

impl Alone {
    /// `None`: another node lives, or may live; or locks are in a store.
    pub fn look(volume: &Volume, me: NodeId) -> Result<Option<Self>> {
        if volume.external_store.is_some() {
            return Ok(None);
        }
        let store = volume.node_store(volume.node_areas()?);
        let packed = store.read_slots().map_err(LockError::NodeStore)?;
        let slots = (0..volume.sb.node_slots.get()).map(NodeId);
        let mut all = Vec::new();
        for (slot, sector) in slots.zip(packed.chunks_exact(store.sector_len())) {
            if slot == me {
                continue;
            }
            match SlotRecord::decode(sector, slot) {
                Ok(record) if record.state == SlotState::Free => {
                    all.push((slot, record.last_named()));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(Self(all)))
    }
    /// Whether nobody has joined since. Whoever did before the caller took a lock is seen.
    fn still(&self, volume: &Volume, me: NodeId) -> Result<bool> {
        Ok(Self::look(volume, me)?.as_ref() == Some(self))
    }
}

/// Blocks that windows and orphan lists of any node speak of.
fn private_ranges(volume: &Volume) -> Result<Vec<PrivateRange>> {
    let mut ranges = Vec::new();
    let slot = volume.geo.slot_blocks();
    for node in (0..volume.sb.node_slots.get()).map(NodeId) {
        for n in 0..RawSuperblock::WINDOWS {
            let block = volume.node_area(node, RawSuperblock::AREA_WINDOWS + n);
            let body = volume.read_private(block, MetaKind::Window)?;
            ranges.extend(window_head(volume, block, &body)?.map(|(_, start, len)| (start, len)));
        }
        for n in 0..RawSuperblock::ORPHAN_BLOCKS {
            let block = volume.node_area(node, RawSuperblock::AREA_ORPHANS + n);
            let body = volume.read_private(block, MetaKind::Orphans)?;
            let listed = orphan_list::decode(&body, block)?;
            ranges.extend(listed.into_iter().map(|ino| (BlockNo::from(ino).get(), slot)));
        }
    }
    Ok(ranges)
}

/// Gives unused metadata back if that is due. Must be called before this node uses any inode.
///
/// # Errors
/// A device failed; this node must not go on.
pub(crate) fn give_back(core: &Core, alone: Option<&Alone>) -> Result<()> {
    let Some(alone) = alone.filter(|_| !core.options.read_only) else { return Ok(()) };
    let mut freed = 0;
    match give_all_back(core, alone, &mut freed) {
        Err(e) if e.is_fatal() || core.meta.check().is_err() => return Err(e),
        // Until a repair.
        Err(error) => tracing::warn!(%error, "unused metadata stays metadata"),
        Ok(()) => {}
    }
    if freed > 0 {
        let bytes = core.volume.geo.block_size.bytes().get() * freed;
        tracing::info!(bytes, "metadata that nobody used is space for data again");
    }
    core.given_back.set(freed).ok();
    Ok(())
}

/// Whether to give back `unused` blocks, where `data` may hold file data.
pub(crate) fn is_worth_it(unused: u64, data: u64, after_repair: bool) -> bool {
    unused > data / if after_repair { WORTH_REPAIR } else { WORTH }
}

fn give_all_back(core: &Core, alone: &Alone, freed: &mut u64) -> Result<()> {
    let (volume, me) = (&core.volume, core.me.slot);
    let after_repair = core.options.after_repair;
    let short = || {
        let totals = core.alloc.totals();
        totals.free < totals.blocks / SHORT
    };
    if !after_repair && !short() {
        return Ok(());
    }
    let (data, unused) = core.alloc.data_and_unused()?;
    if !is_worth_it(unused, data, after_repair) {
        return Ok(());
    }
    let ranges = private_ranges(volume)?;
    let begun = Instant::now();
    for index in 0..volume.groups.count() {
        if !after_repair && begun.elapsed() > MOUNT_PATIENCE {
            break;
        }
        match core.alloc.free_unused(index, &ranges, &|| alone.still(volume, me)) {
            Ok(Some(n)) => *freed += n,
            Ok(None) => break,
            // The others will do.
            Err(e) if e.is_of_one_group() && core.meta.check().is_ok() => {
                core.meta.note_damage(&e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
