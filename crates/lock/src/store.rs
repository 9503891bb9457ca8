//! Where lock records stand and how they are compared and written.

use braid_format::LockNo;

use crate::error::StoreError;

/// One lock sector's bytes.
pub type Sector = Vec<u8>;

/// Outcome of a compare-and-write that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CawOutcome {
    /// The new bytes stand.
    Written,
    /// Nothing was written; these bytes stand there.
    Mismatch(Sector),
}

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

/// A store in memory, for tests.
#[derive(Debug, Default)]
pub struct MemoryStore {}
