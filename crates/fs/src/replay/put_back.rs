//! Images of a journal are put in place.

use braid_format::lock_record::{Life, LockRecord, Mode};
use braid_format::meta::MetaHeader;
use braid_format::{BlockNo, Bytes, LockNo, NodeId};
use braid_lock::LockError;
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;

use super::records::Found;
use super::writer::Writer;
use crate::error::{Error, Result};
use crate::journal::Ring;
use crate::volume::Volume;

/// Bodies compared and written at once; bounds memory.
pub(super) const BATCH: usize = 256;

/// Reads of a lock record that is not sound before it is taken for damaged. A block that is being
/// written is sound again after one or two.
pub(super) const RECORD_READS: usize = 32;

/// Writes those of `batch` in place that are newer than what stands there. Returns how many.
/// Complete, not durable.
pub(super) fn put_back(
    volume: &Volume,
    ring: &Ring,
    (dead, writer): (Life, Writer),
    batch: &[(BlockNo, Found)],
) -> Result<u64> {
    let len = Bytes(ring.image).to_usize();
    let mut images = AlignedBuf::zeroed(batch.len() * len);
    let mut places = AlignedBuf::zeroed(batch.len() * len);
    let mut requests: Vec<PoolRequest<'_>> = Vec::with_capacity(batch.len() * 2);
    for ((_, found), to) in batch.iter().zip(images.chunks_exact_mut(len)) {
        requests.push(PoolRequest::read(ring.at + Bytes(found.offset), to));
    }
    for ((block, _), to) in batch.iter().zip(places.chunks_exact_mut(len)) {
        requests.push(PoolRequest::read(volume.body_at(*block), to));
    }
    volume.run(&mut requests)?;
    drop(requests);
    let mut newer: Vec<(BlockNo, &[u8])> = Vec::with_capacity(batch.len());
    let both = images.chunks_exact(len).zip(places.chunks_exact(len));
    for ((block, found), (image, place)) in batch.iter().zip(both) {
        let (header, _) = MetaHeader::decode(image, *block)
            .map_err(|source| Error::Damaged { block: *block, source })?;
        let older = match MetaHeader::decode(place, *block) {
            Ok((in_place, _)) => in_place.generation() < found.generation,
            Err(damage) => {
                writer.may_have_changed(&damage) && may_mend(volume, dead, *block, &header)?
            }
        };
        if older {
            newer.push((*block, image));
        }
    }
    volume.write_bodies(&newer)?;
    Ok(newer.len() as u64)
}

/// Whether a block that reads as damaged belongs to the dead node, so that the image with header
/// `image` may repair it. If the lock that covers it says otherwise, it is not: a lock is given up
/// only when the block is in place and stable, so somebody else was granted it since, and either
/// writes the block just now, or died doing so and has a newer image in its own journal, which
/// another node may be replaying. If the lock is the dead node's, nobody writes the block any more;
/// but somebody may have while it was read the first time, and have handed the lock to the dead one
/// since.
pub(super) fn may_mend(
    volume: &Volume,
    dead: Life,
    block: BlockNo,
    image: &MetaHeader,
) -> Result<bool> {
    let owner = LockNo(image.owner.get());
    let lock_at = BlockNo(owner.get());
    // What belongs to one node slot is changed only by its node, or by the node that recovers it.
    let end = NodeId(volume.sb.node_slots.get());
    let private = volume.node_area(NodeId(0), 0)..volume.node_area(end, 0);
    // And nobody locks what can be no lock.
    if !volume.holds(lock_at) || volume.is_data_only(lock_at) || private.contains(&lock_at) {
        return Ok(true);
    }
    let store = volume.external_store.as_ref().map(|_| volume.lock_store(None));
    let mut sector = AlignedBuf::zeroed(volume.geo.lock_sector.to_usize());
    for _ in 0..RECORD_READS {
        if let Some(store) = &store {
            let record =
                store.read(owner).map_err(|source| LockError::Store { lock: owner, source })?;
            sector.fill(0);
            sector.iter_mut().zip(&record).for_each(|(to, from)| *to = *from);
        } else {
            volume.pool.read_lock(volume.slot_at(lock_at), &mut sector)?;
        }
        match LockRecord::decode(&sector, owner) {
            Ok(record) if record.mode_of(dead) == Mode::Exclusive => break,
            Ok(_) => return Ok(false),
            // Being written just now, or damaged for good: then it is granted to nobody.
            Err(_) => {}
        }
    }
    match volume.read_body(block) {
        Ok((_, in_place, _)) => Ok(in_place.generation() < image.generation()),
        Err(Error::Damaged { .. }) => Ok(true),
        Err(e) => Err(e),
    }
}
