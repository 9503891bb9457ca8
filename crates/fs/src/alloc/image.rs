//! Bytes of fresh metadata slots: lock record, then body.

use braid_format::crc::crc32c_with_hole;
use braid_format::lock_record::{Life, RawLockRecord};
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::{BlockNo, Generation, LockNo};
use zerocopy::{FromZeros, IntoBytes};

/// What a fresh slot holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fresh {
    /// Its place.
    pub block: BlockNo,
    /// The lock that covers its body.
    pub owner: LockNo,
    /// Kind of its body.
    pub kind: MetaKind,
    /// Generation of its body.
    pub generation: Generation,
    /// Who holds its lock from birth.
    pub holder: Option<Life>,
    /// Nonce of its lock record.
    pub nonce: u64,
}

impl Fresh {
    /// A slot that is its own owner, written for the first time, its lock free.
    pub fn own(block: BlockNo, kind: MetaKind, nonce: u64) -> Self {
        let owner = LockNo::from(block);
        Self { block, owner, kind, generation: Generation(1), holder: None, nonce }
    }

    /// Fills `slot` (one slot's bytes): lock record, header, what `f` puts after the header
    /// (`f` gets the whole body), checksum.
    ///
    /// # Panics
    /// If `slot` is not a slot of `geo`.
    pub fn write(&self, geo: Geometry, slot: &mut [u8], f: impl FnOnce(&mut [u8])) {
        assert_eq!(slot.len() as u64, geo.slot_bytes(), "not one slot");
        slot.fill(0);
        let (sector, body) = slot.split_at_mut(geo.body_at().to_usize());
        self.write_lock(sector);
        let mut header = MetaHeader::new(self.kind, self.block, self.owner);
        header.generation.set(self.generation.get());
        f(body);
        header.write_to_prefix(body).expect("a body is longer than its header");
        MetaHeader::seal(body);
    }

    fn write_lock(&self, sector: &mut [u8]) {
        let mut raw = RawLockRecord::new_zeroed();
        raw.magic.set(RawLockRecord::MAGIC);
        raw.revision.set(1);
        raw.lock.set(self.block.get());
        raw.nonce.set(self.nonce);
        if let Some(life) = self.holder {
            raw.mode.set(2);
            raw.holder_count.set(1);
            raw.holders[0].slot.set(life.slot.get());
            raw.holders[0].incarnation.set(life.incarnation.get());
        }
        let crc = crc32c_with_hole(raw.as_bytes(), core::mem::offset_of!(RawLockRecord, crc));
        raw.crc.set(crc);
        raw.write_to_prefix(sector).expect("a lock sector holds a record");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_decodes_and_record_is_sealed() {
        let geo = Geometry::DEFAULT;
        let mut slot = vec![0x5a; geo.slot_bytes() as usize];
        Fresh::own(BlockNo(9), MetaKind::Free, 7).write(geo, &mut slot, |_| {});
        let (header, kind) = MetaHeader::decode(&slot[512..], BlockNo(9)).unwrap();
        assert_eq!((kind, header.generation().get(), header.owner.get()), (MetaKind::Free, 1, 9));
        let crc = u32::from_le_bytes(slot[508..512].try_into().unwrap());
        assert_eq!(crc, crc32c_with_hole(&slot[..512], 508));
    }
}
