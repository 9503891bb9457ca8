//! Bytes of fresh metadata slots: lock record, then body.

use std::time::SystemTime;

use braid_format::lock_record::{Life, LockRecord};
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::{BlockNo, Generation, LockNo};
use zerocopy::IntoBytes;

use crate::journal::GENERATION_AFTER_LOSS;

/// What slots that are written together for the first time have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birth {
    /// Generation of their bodies.
    pub generation: Generation,
    /// Nonce of their lock records.
    pub nonce: u64,
}

impl Birth {
    /// The generation is the time, in microseconds since 1970. A body is written less often than
    /// that, so it is higher than that of any body that stood there before, in this file system or an
    /// earlier one: a disk that loses this write keeps an *older* body, which a scrub finds. (If the
    /// clock has been set back meanwhile, it does not.)
    pub fn now(nonce: u64) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let most = GENERATION_AFTER_LOSS.get() / 2;
        let micros = u64::try_from(since.as_micros()).unwrap_or(most);
        Self { generation: Generation(micros.clamp(1, most)), nonce }
    }
}

/// What a fresh slot holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fresh {
    /// Its place.
    pub block: BlockNo,
    /// The lock that covers its body.
    pub owner: LockNo,
    /// Kind of its body.
    pub kind: MetaKind,
    /// The life that holds its lock from birth.
    pub holder: Option<Life>,
    /// Generation of its body, nonce of its lock record.
    pub birth: Birth,
}

impl Fresh {
    /// A slot that is its own owner, written for the first time, its lock free.
    pub fn own(block: BlockNo, kind: MetaKind, birth: Birth) -> Self {
        let owner = LockNo::from(block);
        Self { block, owner, kind, holder: None, birth }
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
        header.generation.set(self.birth.generation.get());
        f(body);
        header.write_to_prefix(body).expect("a body is longer than its header");
        MetaHeader::seal(body);
    }

    fn write_lock(&self, sector: &mut [u8]) {
        let lock = LockNo::from(self.block);
        match self.holder {
            Some(life) => LockRecord::born(lock, life, self.birth.nonce),
            None => LockRecord::unlocked(lock, self.birth.nonce),
        }
        .encode(sector);
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn body_and_record_decode() {
        let geo = Geometry::DEFAULT;
        let birth = Birth { generation: Generation(3), nonce: 7 };
        let mut slot = vec![0x5a; geo.slot_bytes() as usize];
        Fresh::own(BlockNo(9), MetaKind::Free, birth).write(geo, &mut slot, |_| {});
        let (header, kind) = MetaHeader::decode(&slot[512..], BlockNo(9)).unwrap();
        assert_eq!((kind, header.generation().get(), header.owner.get()), (MetaKind::Free, 3, 9));
        let record = LockRecord::decode(&slot[..512], LockNo(9)).unwrap();
        assert_eq!(record, LockRecord::unlocked(LockNo(9), 7));
        let life = Life { slot: 3.into(), incarnation: 4.into() };
        let fresh = Fresh { holder: Some(life), ..Fresh::own(BlockNo(9), MetaKind::Free, birth) };
        fresh.write(geo, &mut slot, |_| {});
        let record = LockRecord::decode(&slot[..512], LockNo(9)).unwrap();
        assert_eq!(record.holders, [life]);
    }
}
