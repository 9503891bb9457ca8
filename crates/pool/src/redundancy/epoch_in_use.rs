//! The epoch that requests run in: its topology, this node's redundancy log, and locks on ranges of
//! its groups.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_device::Device;
use braid_format::label::Label;

use super::log::Log;
use crate::devices::range_locks::{Range, RangeGuard, RangeLocks};
use crate::error::PoolError;
use crate::topology::{Lost, Topology};

/// An epoch in use.
#[derive(Debug)]
pub(crate) struct EpochInUse {
    topology: Topology,
    /// Of each group of the map.
    range_locks: Vec<RangeLocks>,
    /// This node's redundancy log, once it is attached.
    pub log: Option<Arc<Log>>,
    /// Every other node that lives uses this epoch too.
    pub settled: AtomicBool,
    /// Both labels of every carrier say so, durably: no power cut takes this epoch back.
    pub durable: AtomicBool,
}

impl Deref for EpochInUse {
    type Target = Topology;
    fn deref(&self) -> &Topology {
        &self.topology
    }
}

impl DerefMut for EpochInUse {
    fn deref_mut(&mut self) -> &mut Topology {
        &mut self.topology
    }
}

impl EpochInUse {
    /// Compiles a verified label over its members' devices.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn new(label: Label, devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        let topology = Topology::new(label, devices)?;
        let range_locks = topology.map.groups().iter().map(|_| RangeLocks::default()).collect();
        let (settled, durable) = (AtomicBool::new(true), AtomicBool::new(true));
        Ok(Self { topology, range_locks, log: None, settled, durable })
    }

    /// The epoch after `before`: this node's log goes on, and so does what is known of its members.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        let same = self.map.size() == before.map.size();
        self.log = match &before.log {
            Some(log) if !same => Some(Arc::new(log.resized(self.map.size()))),
            log => log.clone(),
        };
        self.topology.continue_from(&before.topology);
        self
    }

    /// The topology as it is now, for readers that must not wait for requests under way.
    pub fn snapshot(&self) -> Arc<Topology> {
        Arc::new(self.topology.clone())
    }

    /// Notes, durably, that the pool's bytes of `ranges` (from, to) are about to be written. No I/O when
    /// they are noted already.
    ///
    /// # Errors
    /// The log cannot be written anywhere, or [`PoolError::Unnoted`]: nothing may be written.
    pub fn note(&self, ranges: &[(u64, u64)], lost: &mut Lost) -> Result<(), PoolError> {
        if let Some(log) = &self.log {
            return log.note(self, ranges, lost);
        }
        let end = self.unnoted.load(Ordering::Acquire);
        if self.notes_missed && ranges.iter().any(|(_, to)| *to > end) {
            return Err(PoolError::Unnoted { name: self.label.name.clone() });
        }
        Ok(())
    }

    /// Whether what is changed now is changed in an epoch that all use, and that stays.
    pub fn ready(&self) -> bool {
        self.settled.load(Ordering::Acquire) && self.durable.load(Ordering::Acquire)
    }

    /// Holds ranges of a group's bytes; waits for every earlier request that overlaps them.
    pub fn lock(&self, group: u16, ranges: Vec<Range>) -> RangeGuard<'_> {
        self.range_locks.get(usize::from(group)).expect("every group has its locks").lock(ranges)
    }
}
