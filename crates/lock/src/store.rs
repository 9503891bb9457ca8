//! Where lock records stand and how they are compared and written.
//!
//! The protocol needs of a store: reads that return some sector that stood there whole (a torn
//! one fails its checksum and is read again), a compare-and-write that is atomic among all nodes,
//! and that a record written is seen by everybody's next read. Durability is not needed: with all
//! nodes gone no lock is held by anybody alive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid_format::label::SubpoolKind;
use braid_format::lock_record::LockRecord;
use braid_format::{BlockSize, ByteOffset, Bytes, FormatError, LockNo};
use braid_pool::{Pool, ReadPath};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::simulation;

pub use braid_device::CawOutcome;

/// One lock sector's bytes.
pub type Sector = Vec<u8>;

/// A store of lock records. Compare-and-write is atomic among all nodes; an `Err` from it means
/// that the outcome is unknown (it may even land later).
pub trait LockStore: Send + Sync {
    /// The record's sector as it stands now.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError>;
    /// Writes `new` if the sector equals `expected`.
    ///
    /// # Errors
    /// The device's: the outcome is then unknown.
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError>;
    /// Bytes in a sector.
    fn sector_len(&self) -> usize;
}

impl<S: LockStore + ?Sized> LockStore for Arc<S> {
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError> {
        (**self).read(lock)
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        (**self).compare_and_write(lock, expected, new)
    }
    fn sector_len(&self) -> usize {
        (**self).sector_len()
    }
}

/// Pauses, about 50 ms in all, after which a sector that fails its checksum is damaged and not
/// torn: a read may overtake a write of which half is done, and that writer may be off its CPU.
pub(crate) fn torn_pauses() -> impl Iterator<Item = Duration> {
    (0..12_u32).map(|n| Duration::from_micros(if n < 2 { 0 } else { 12 << n }))
}

/// Reads and verifies a record.
pub(crate) fn read_record(
    store: &dyn LockStore,
    lock: LockNo,
) -> Result<Result<LockRecord, FormatError>, StoreError> {
    let mut pauses = torn_pauses();
    loop {
        let decoded = LockRecord::decode(&store.read(lock)?, lock);
        if !matches!(decoded, Err(FormatError::ChecksumMismatch { .. })) {
            return Ok(decoded);
        }
        match pauses.next() {
            Some(pause) => simulation::pause(pause),
            None => return Ok(decoded),
        }
    }
}

/// [`LockStore::compare_and_write`]. What stands may be no record, because it was torn under a
/// device that compares without atomicity, or because the copy that decides is damaged. Where a
/// read has a good one all the same, that is put in its place, if nobody was faster, and given
/// back as what stands: without that, whoever believes what it reads would compare for ever.
///
/// # Errors
/// Those of the store.
pub(crate) fn change(
    store: &dyn LockStore,
    lock: LockNo,
    expected: &[u8],
    new: &[u8],
) -> Result<CawOutcome, StoreError> {
    let outcome = store.compare_and_write(lock, expected, new)?;
    let CawOutcome::Mismatch(stands) = &outcome else { return Ok(outcome) };
    if LockRecord::decode(stands, lock).is_ok() {
        return Ok(outcome);
    }
    let good = store.read(lock)?;
    if good != *stands && LockRecord::decode(&good, lock).is_ok() {
        tracing::warn!(%lock, "a damaged copy of a lock record is repaired from another");
        store.compare_and_write(lock, stands, &good)?;
        return Ok(CawOutcome::Mismatch(good));
    }
    Ok(outcome)
}

/// Lock records on the pool: each in the first lock sector of the block its number names.
#[derive(Debug, Clone)]
pub struct DeviceStore {
    pool: Pool,
    block_size: BlockSize,
    lock_sector: Bytes,
}

impl DeviceStore {
    /// The records of a file system with these sizes.
    pub fn new(pool: Pool, block_size: BlockSize, lock_sector: Bytes) -> Self {
        Self { pool, block_size, lock_sector }
    }
    /// Where a record stands; lock numbers come from disk and from the wire.
    fn offset(&self, lock: LockNo) -> Result<ByteOffset, StoreError> {
        let shift = self.block_size.shift();
        let at = lock.0.checked_mul(1 << shift).ok_or(StoreError::Outside { lock })?;
        let end = at.checked_add(self.lock_sector.0).ok_or(StoreError::Outside { lock })?;
        let info = self.pool.info();
        let at = ByteOffset(at);
        // File data may stand on parity, where a compare-and-write cannot be.
        let on_data = info.kind_of(at, self.lock_sector) == Some(SubpoolKind::Data);
        if end > info.size.0 || on_data {
            return Err(StoreError::Outside { lock });
        }
        Ok(at)
    }
}

impl LockStore for DeviceStore {
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError> {
        let at = self.offset(lock)?;
        let mut sector = vec![0; self.lock_sector.to_usize()];
        self.pool.read_lock(at, &mut sector)?;
        if LockRecord::decode(&sector, lock).is_err() {
            // A mirror may have it whole elsewhere.
            let mut other = vec![0; sector.len()];
            for nth in 0.. {
                match self.pool.read_otherwise(ReadPath::ReadLock, at, &mut other, nth) {
                    Ok(true) if LockRecord::decode(&other, lock).is_ok() => return Ok(other),
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => tracing::warn!(%lock, %error, "a copy of a damaged lock record"),
                }
            }
        }
        Ok(sector)
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        Ok(self.pool.compare_and_write(self.offset(lock)?, expected, new)?)
    }
    fn sector_len(&self) -> usize {
        self.lock_sector.to_usize()
    }
}

/// A store in memory, for tests: every lock exists, unlocked at first. Clones share the records.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<HashMap<LockNo, Sector>>>);

impl MemoryStore {
    const LEN: usize = 512;

    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
    /// Puts a record in place, as a metadata write does at the birth of its slot.
    pub fn put(&self, record: &LockRecord) {
        let mut sector = vec![0; Self::LEN];
        record.encode(&mut sector);
        self.0.lock().insert(record.lock, sector);
    }
    /// Flips a bit of a record.
    pub fn scribble(&self, lock: LockNo) {
        let mut sectors = self.0.lock();
        let sector = sectors.entry(lock).or_insert_with(|| Self::unlocked(lock));
        if let Some(byte) = sector.get_mut(17) {
            *byte ^= 4;
        }
    }
    fn unlocked(lock: LockNo) -> Sector {
        let mut sector = vec![0; Self::LEN];
        LockRecord::unlocked(lock, 0).encode(&mut sector);
        sector
    }
}

impl LockStore for MemoryStore {
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError> {
        let found = self.0.lock().get(&lock).cloned();
        Ok(found.unwrap_or_else(|| Self::unlocked(lock)))
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let mut sectors = self.0.lock();
        let stands = sectors.entry(lock).or_insert_with(|| Self::unlocked(lock));
        if stands.as_slice() != expected {
            return Ok(CawOutcome::Mismatch(stands.clone()));
        }
        stands.copy_from_slice(new);
        Ok(CawOutcome::Written)
    }
    fn sector_len(&self) -> usize {
        Self::LEN
    }
}

/// A store that loses answers, for tests. Clones lose them in turn.
#[derive(Debug, Clone)]
pub struct Unsure<S> {
    store: S,
    doubt: Arc<Doubt>,
}

#[derive(Debug, Default)]
struct Doubt {
    /// Every n-th compare-and-write reports failure; 0 = none.
    every: AtomicU64,
    writes: AtomicU64,
    /// Whether the failing one lands; turns each time.
    land: AtomicBool,
}

impl<S: LockStore> Unsure<S> {
    /// `store`, of which no answer is lost yet.
    pub fn new(store: S) -> Self {
        Self { store, doubt: Arc::default() }
    }
    /// From now on the outcome of every `n`-th compare-and-write is unknown to its caller; half of
    /// them land.
    pub fn fail_every(&self, n: u64) {
        self.doubt.every.store(n, Ordering::Relaxed);
    }
}

impl<S: LockStore> LockStore for Unsure<S> {
    fn read(&self, lock: LockNo) -> Result<Sector, StoreError> {
        self.store.read(lock)
    }
    fn compare_and_write(
        &self,
        lock: LockNo,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, StoreError> {
        let doubt = &self.doubt;
        let n = doubt.every.load(Ordering::Relaxed);
        let fails = n != 0 && doubt.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(n);
        if !fails {
            return self.store.compare_and_write(lock, expected, new);
        }
        if doubt.land.fetch_xor(true, Ordering::Relaxed) {
            self.store.compare_and_write(lock, expected, new)?;
        }
        Err(StoreError::Device(Arc::new(std::io::Error::other("the answer was lost"))))
    }
    fn sector_len(&self) -> usize {
        self.store.sector_len()
    }
}

#[cfg(test)]
mod tests {
    use braid_device::MemoryDevice;
    use braid_format::BlockNo;
    use braid_pool::CreateOptions;
    use braid_pool::layout::Redundancy;

    use super::*;

    fn sector(record: &LockRecord, len: usize) -> Sector {
        let mut bytes = vec![0; len];
        record.encode(&mut bytes);
        bytes
    }

    fn exercise(store: &dyn LockStore, lock: LockNo) {
        let len = store.sector_len();
        let old = sector(&LockRecord::unlocked(lock, 0), len);
        let new = sector(&LockRecord::unlocked(lock, 1), len);
        assert_eq!(store.compare_and_write(lock, &old, &new).unwrap(), CawOutcome::Written);
        let refused = store.compare_and_write(lock, &old, &old).unwrap();
        assert_eq!(refused, CawOutcome::Mismatch(new.clone()));
        assert_eq!(store.read(lock).unwrap(), new);
        assert_eq!(read_record(store, lock).unwrap().unwrap().nonce, 1);
    }

    #[test]
    fn memory_compares_and_writes() {
        exercise(&MemoryStore::new(), LockNo(5));
    }

    #[test]
    fn pool_compares_and_writes_at_the_block_of_the_number() {
        let pool = Pool::for_tests(2, Bytes(8 << 20));
        let store = DeviceStore::new(pool.clone(), BlockSize::DEFAULT, Bytes(512));
        let at = BlockSize::DEFAULT.offset_of(BlockNo(700));
        pool.write(at, &sector(&LockRecord::unlocked(LockNo(700), 0), 512)).unwrap();
        exercise(&store, LockNo(700));
        let mut block = vec![0; 4096];
        pool.read(at, &mut block).unwrap();
        assert_eq!(&block[..4], b"BRLK");
        assert!(block[512..].iter().all(|b| *b == 0));
    }

    /// A flipped bit in any copy of a record: the record is had from the other one, and the
    /// damaged one is made like it by the next change.
    #[test]
    fn a_damaged_copy_of_a_record_is_gone_around_and_mended() {
        // Ordinary reads of the two numbers take different copies.
        for (copy, number) in [(0, 700), (1, 700), (0, 1700), (1, 1700)] {
            let (pool, lock) = (mirrored(), LockNo(number));
            let store = DeviceStore::new(pool.clone(), BlockSize::DEFAULT, Bytes(512));
            let at = BlockSize::DEFAULT.offset_of(BlockNo(number));
            let good = sector(&LockRecord::unlocked(lock, 0), 512);
            pool.write(at, &good).unwrap();
            let start = pool.label().members[copy].data_start;
            let mut bad = good.clone();
            bad[9] ^= 1;
            pool.devices()[copy].write(start + Bytes(at.0), &bad).unwrap();
            assert_eq!(store.read(lock).unwrap(), good, "copy {copy}");
            let new = sector(&LockRecord::unlocked(lock, 1), 512);
            let mut tries = (0..4).map(|_| change(&store, lock, &good, &new).unwrap());
            assert!(tries.any(|o| o == CawOutcome::Written), "copy {copy}");
            for i in 0..2 {
                let mut there = vec![0; 512];
                pool.devices()[i].read(start + Bytes(at.0), &mut there).unwrap();
                assert_eq!(there, new, "copy {i} when {copy} was damaged");
            }
        }
    }

    fn mirrored() -> Pool {
        let device = |i| {
            let memory = MemoryDevice::new(&format!("m{i}"), Bytes(16 << 20), Bytes(512));
            memory as Arc<dyn braid_device::Device>
        };
        let options =
            CreateOptions { redundancy: Redundancy::Mirror(2), ..CreateOptions::new("mirrored") };
        Pool::create((0..2).map(device).collect(), &options).unwrap()
    }

    #[test]
    fn numbers_outside_the_pool_are_refused() {
        let pool = Pool::for_tests(1, Bytes(8 << 20));
        let store = DeviceStore::new(pool, BlockSize::DEFAULT, Bytes(512));
        for lock in [LockNo(u64::MAX), LockNo(1 << 52), LockNo(1 << 30)] {
            assert!(matches!(store.read(lock), Err(StoreError::Outside { .. })), "{lock}");
        }
    }

    #[test]
    fn no_lock_stands_among_file_data() {
        let text = "[subpools]\nmetadata = \"stripe(0[8M])\"\ndata = \"stripe(all)\"";
        let mut options = braid_pool::CreateOptions::new("apart");
        options.layout = Some(braid_pool::layout::LayoutFile::parse(text).unwrap().layout);
        let device = braid_pool::device::MemoryDevice::new("m", Bytes(32 << 20), Bytes(512));
        let pool = Pool::create(vec![device], &options).unwrap();
        let data = pool.info().subpools[1];
        let first = data.start.0 >> BlockSize::DEFAULT.shift();
        let sector = pool.info().lock_sector;
        let store = DeviceStore::new(pool, BlockSize::DEFAULT, sector);
        for lock in [first, first + 100].map(LockNo) {
            let bytes = vec![0; sector.to_usize()];
            let refused = store.compare_and_write(lock, &bytes, &bytes);
            assert!(matches!(refused, Err(StoreError::Outside { .. })), "{lock}");
        }
        assert!(store.read(LockNo(first - 1)).is_ok());
    }

    #[test]
    fn damage_is_reported_by_name() {
        let pool = Pool::for_tests(1, Bytes(8 << 20));
        let store = DeviceStore::new(pool, BlockSize::DEFAULT, Bytes(512));
        let found = read_record(&store, LockNo(3)).unwrap();
        assert!(matches!(found, Err(FormatError::BadMagic { at: 3, .. })));
    }
}
