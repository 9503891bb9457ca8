//! Locks among nodes on regions of the pool's redundancy groups: 64 MiB of a group each, about.
//!
//! They lie below all other locks. A node that holds one waits for devices only.

use smallvec::SmallVec;

use crate::error::PoolError;
use crate::layout::group::{Group, Shape};

/// How a region is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionHold {
    /// Together with other nodes, each of which changes bytes of its own on mirrors.
    Shared,
    /// By this node alone, beside its other writers: rows of parity.
    Write,
    /// By this thread alone.
    Alone,
}

/// Regions, held until it is dropped.
pub type HeldRegions = Box<dyn Send>;

/// Locks among nodes on regions of groups. They lie below all other locks: a holder waits for
/// nothing but devices, not even for another of them.
pub trait RegionLocks: Send + Sync {
    /// How many there are.
    fn count(&self) -> u64;
    /// Takes locks, each named once, ascending by number: all or none at any moment. They are held
    /// until the result is dropped.
    ///
    /// # Errors
    /// This node has withdrawn, or a lock's record cannot be read.
    fn hold(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError>;
    /// Takes locks for the recovery of a dead node's log: all but those that a dead node holds
    /// exclusively, whose hold stands and keeps all others away. One node at a time recovers.
    ///
    /// # Errors
    /// As [`RegionLocks::hold`].
    fn hold_to_recover(&self, locks: &[(u64, RegionHold)]) -> Result<HeldRegions, PoolError>;
    /// How many exclusive locks this node was ever granted by a record: a record that was changed may not be
    /// durable before a flush.
    fn grants(&self) -> u64;
}

/// Bytes of a group under one lock, about: whole rows where there is parity.
const REGION: u64 = 64 << 20;

/// Region locks to take, and how.
pub(crate) type Locks = SmallVec<[(u64, RegionHold); 4]>;

/// Adds the locks of a group's bytes `from..to`.
pub(crate) fn add_locks(
    locks: &mut Locks,
    (index, group): (u16, &Group),
    (from, to): (u64, u64),
    hold: RegionHold,
    count: u64,
) {
    let region = group.row_len().map_or(REGION, |row| row * (REGION / row).max(1));
    for run in from / region..=(to.max(from + 1) - 1) / region {
        // Groups take different locks for their first regions, which are busy everywhere.
        let lock = (u64::from(index) * 7919 + run) % count.max(1);
        match locks.binary_search_by_key(&lock, |l| l.0) {
            Ok(i) => {
                if let Some(l) = locks.get_mut(i) {
                    l.1 = l.1.max(hold);
                }
            }
            Err(i) => locks.insert(i, (lock, hold)),
        }
    }
}

/// How a write to a group holds its regions.
pub(crate) fn hold_of(group: &Group) -> RegionHold {
    match group.shape {
        Shape::Mirror => RegionHold::Shared,
        Shape::Parity { .. } => RegionHold::Write,
    }
}
