//! What a pool must know of the other nodes that use it at the same time.
//!
//! The layers above know who lives and what is locked; they say it through these two traits. A
//! pool that one node uses alone has neither.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::lock_record::Life;
use braid_format::{ByteOffset, Bytes};
use smallvec::SmallVec;

use crate::error::PoolError;
use crate::group::repair::{Span, spans};
use crate::group::{Group, Shape};
use crate::topology::Topology;
use crate::{Inner, Pool};

/// An epoch as a heartbeat names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochTag {
    /// Low bits of its number.
    pub epoch: u32,
    /// First half of its `change_id`.
    pub change: u64,
}

/// The other nodes.
pub trait Others: Send + Sync {
    /// Who this node is.
    fn me(&self) -> Life;
    /// Whether `life` issues nothing any more, and nothing of it is in flight.
    fn is_gone(&self, life: Life) -> bool;
    /// Whether every other node that lives, or may live, has said that it uses the epoch. In doubt
    /// not. It is asked again after a while.
    fn all_use(&self, tag: EpochTag) -> bool;
    /// This node uses another epoch, and has not said so: what must be done before it does. It waits
    /// for no lock and for no epoch.
    fn adopt(&self);
    /// This node uses another epoch, and says so from now on ([`Pool::epoch_tag`]): the others should
    /// hear of it soon.
    fn announce(&self);
    /// This node has withdrawn: it waits for nobody any more.
    fn has_ended(&self) -> bool;
}

/// How a region is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// Beside others who change their own bytes of copies.
    Shared,
    /// By this node alone, beside its other writers: rows of parity.
    Write,
    /// By this thread alone.
    Alone,
}

/// Regions, held until it is dropped.
pub type HeldRegions = Box<dyn Send>;

/// Locks among nodes on regions of groups. They lie below all others: whoever holds one waits for
/// nothing but devices, not even for another of them.
pub trait RegionLocks: Send + Sync {
    /// How many there are.
    fn count(&self) -> u64;
    /// Takes locks, each named once, ascending by number: all or none at any moment. They are held
    /// until the result is dropped.
    ///
    /// # Errors
    /// This node has withdrawn, or a lock's record cannot be read.
    fn hold(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError>;
    /// Takes locks for the recovery of a dead node's log: all but those that a dead node holds
    /// exclusively, whose hold stands and keeps all others away. One node at a time recovers.
    ///
    /// # Errors
    /// As [`RegionLocks::hold`].
    fn hold_to_recover(&self, locks: &[(u64, Hold)]) -> Result<HeldRegions, PoolError>;
}

/// Both.
pub(crate) struct Shared {
    pub others: Arc<dyn Others>,
    pub regions: Arc<dyn RegionLocks>,
}
impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("me", &self.others.me()).finish_non_exhaustive()
    }
}

/// Bytes of a group under one lock, about: whole rows where there is parity.
const REGION: u64 = 64 << 20;

/// Region locks to take, and how.
pub(crate) type Locks = SmallVec<[(u64, Hold); 4]>;

/// Adds the locks of a group's bytes `from..to`.
pub(crate) fn add_locks(
    locks: &mut Locks,
    (index, group): (u16, &Group),
    (from, to): (u64, u64),
    hold: Hold,
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

impl Inner {
    /// The other nodes and the locks among them, if there can be any.
    pub(crate) fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.read().clone()
    }

    /// Holds what [`Inner::locks`] says of the epoch in use; `wanted` is asked again when the
    /// epoch changes meanwhile. Nothing is held where no other node can be.
    pub(crate) fn hold_regions(
        &self,
        wanted: impl Fn(&Topology, u64) -> Locks,
    ) -> Result<Option<HeldRegions>, PoolError> {
        let Some(shared) = self.shared() else { return Ok(None) };
        let locks = wanted(&self.topology.read(), shared.regions.count());
        if locks.is_empty() {
            return Ok(None);
        }
        shared.regions.hold(&locks).map(Some)
    }
}

impl Inner {
    /// Holds runs of groups against the other nodes, or (`Hold::Alone`) everybody.
    pub(crate) fn hold_spans(
        &self,
        spans: &[Span],
        hold: Hold,
    ) -> Result<Option<HeldRegions>, PoolError> {
        self.hold_regions(|topology, count| {
            let mut locks = Locks::new();
            for (index, from, to) in spans {
                if let Some(group) = topology.map.groups().get(usize::from(*index)) {
                    add_locks(&mut locks, (*index, group), (*from, *to), hold, count);
                }
            }
            locks
        })
    }

    /// Holds the pool's bytes of `len` at `at`, as far as they stand on groups, in whole rows.
    pub(crate) fn hold_bytes(
        &self,
        at: ByteOffset,
        len: Bytes,
    ) -> Result<Option<HeldRegions>, PoolError> {
        self.hold_regions(|topology, count| {
            let mut locks = Locks::new();
            for (index, from, to) in spans(topology, at.0, at.0 + len.0) {
                let group = topology.map.group(index);
                add_locks(&mut locks, (index, group), (from, to), Hold::Alone, count);
            }
            locks
        })
    }
}

/// How a write to a group holds its regions.
pub(crate) fn hold_of(group: &Group) -> Hold {
    match group.shape {
        Shape::Mirror => Hold::Shared,
        Shape::Parity { .. } => Hold::Write,
    }
}

impl Pool {
    /// From now on other nodes may use the pool too: epochs are agreed with them, and regions are
    /// held while they change.
    pub fn share(&self, others: Arc<dyn Others>, regions: Arc<dyn RegionLocks>) {
        *self.0.shared.write() = Some(Arc::new(Shared { others, regions }));
        // Others may still use the epoch before, or take this one back: it was only seen.
        let topology = self.0.topology.read();
        topology.settled.store(false, Ordering::Release);
        topology.durable.store(false, Ordering::Release);
    }

    /// The end of [`Pool::share`]: this node has left, or withdrawn. Nothing is under way.
    pub fn unshare(&self) {
        *self.0.shared.write() = None;
    }

    /// The epoch that this node says in its heartbeat that it uses.
    pub fn epoch_tag(&self) -> EpochTag {
        *self.0.said.read()
    }

    /// Another node may have changed the pool: its labels are read, and a newer epoch is used from
    /// now on; or the one before, if the change that this node saw has come to nothing. Waits for the
    /// requests under way. Whether there was one.
    ///
    /// # Errors
    /// What this node reaches does not hold every byte in the new epoch, or a device failed: this
    /// node must not go on.
    pub fn follow(&self) -> Result<bool, PoolError> {
        self.0.follow()
    }

    /// Whether other nodes may use the pool, and agree with this one on each change of it.
    pub fn is_shared(&self) -> bool {
        self.0.shared().is_some()
    }

    /// An epoch that changes nothing: on return every other node has taken notice of it. Nothing
    /// happens where there can be none.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn renew_epoch(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        if !self.is_shared() {
            return Ok(());
        }
        self.0.changing(|| {
            let topology = self.0.topology.write();
            let next = crate::redundancy::next_epoch(&topology.label);
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }
}

#[cfg(test)]
mod tests;
