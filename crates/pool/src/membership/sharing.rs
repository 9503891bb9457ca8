//! Sharing a pool with other nodes: regions that are held against them, and the epoch that is
//! announced to them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_format::lock_record::Life;
use braid_format::{ByteOffset, Bytes};

use crate::cluster::{
    HeldRegions, Locks, Others, OthersWait, RegionHold, RegionLocks, Shared, add_locks,
};
use crate::error::PoolError;
use crate::layout::stretch::{Span, spans};
use crate::pool::{Pool, PoolState};
use crate::redundancy::log::redo::flush_all;
use crate::topology::{EpochTag, Lost, Topology};

impl PoolState {
    /// Holds what [`PoolState::locks`] says of the epoch in use; `wanted` is asked again when the
    /// epoch changes meanwhile. Nothing is held where no other node can be.
    pub(crate) fn hold_regions(
        &self,
        wanted: impl Fn(&Topology, u64) -> Locks,
    ) -> Result<Option<HeldRegions>, PoolError> {
        let Some(shared) = self.cluster.shared() else { return Ok(None) };
        let locks = wanted(&self.epochs.read(), shared.regions.count());
        if locks.is_empty() {
            return Ok(None);
        }
        let held = shared.regions.hold(&locks)?;
        if locks.iter().any(|(_, hold)| *hold != RegionHold::Shared) {
            self.make_grants_durable(&*shared.regions)?;
        }
        Ok(Some(held))
    }

    /// The records that say that this node has regions for itself are durable before its log names one of
    /// them. Otherwise a power cut might keep what the log says and take the record: another node would write
    /// there, and that log, which is recovered later, would bring back what stood there before.
    fn make_grants_durable(&self, regions: &dyn RegionLocks) -> Result<(), PoolError> {
        let granted = regions.grants();
        if self.cluster.durable_grants.load(Ordering::Acquire) >= granted {
            return Ok(());
        }
        let mut lost = Lost::new();
        let lost = {
            let topology = self.epochs.read();
            flush_all(&topology, &mut lost)?;
            topology.named(&lost)
        };
        if !lost.is_empty() {
            self.fail_members(&lost)?;
        }
        self.cluster.durable_grants.fetch_max(granted, Ordering::AcqRel);
        Ok(())
    }
}

impl PoolState {
    /// Holds runs of groups against the other nodes, or (`RegionHold::Alone`) everybody.
    pub(crate) fn hold_spans(
        &self,
        spans: &[Span],
        hold: RegionHold,
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

    /// Holds the pool's bytes of `len` at `at`, as far as they are on groups, in whole rows.
    pub(crate) fn hold_bytes(
        &self,
        at: ByteOffset,
        len: Bytes,
    ) -> Result<Option<HeldRegions>, PoolError> {
        self.hold_regions(|topology, count| {
            let mut locks = Locks::new();
            for (index, from, to) in spans(&topology.map, at.0, at.0 + len.0) {
                let group = topology.map.group(index);
                add_locks(&mut locks, (index, group), (from, to), RegionHold::Alone, count);
            }
            locks
        })
    }
}

impl Pool {
    /// From now on other nodes may use the pool too: epochs are agreed with them, and regions are
    /// held while they change.
    pub fn share(&self, others: Arc<dyn Others>, regions: Arc<dyn RegionLocks>) {
        *self.0.cluster.shared.write() = Some(Arc::new(Shared { others, regions }));
        // Others may still use the epoch before, or take this one back: it was only seen.
        let topology = self.0.epochs.read();
        topology.settled.store(false, Ordering::Release);
        topology.durable.store(false, Ordering::Release);
    }

    /// The end of [`Pool::share`]: this node has left, or withdrawn. Nothing is under way.
    pub fn unshare(&self) {
        *self.0.cluster.shared.write() = None;
        self.0.cluster.leave.has_left();
    }

    /// A wait of this thread for other nodes, for a lock of a region.
    pub fn others_wait(&self) -> OthersWait<'_> {
        self.0.cluster.leave.others_wait()
    }

    /// This node leaves: from now on no wait for other nodes lasts longer than `most`, until it has left
    /// ([`Pool::unshare`]). Waits that last longer fail with [`PoolError::BrokenOff`], and so do all later ones.
    pub fn leave_within(&self, most: Duration) {
        self.0.cluster.leave.begin(most);
    }

    /// The epoch that this node says in its heartbeat that it uses.
    pub fn epoch_tag(&self) -> EpochTag {
        *self.0.epochs.announced.read()
    }

    /// The epoch in use, if it is without a member that the last settled one had: heartbeats go to fewer places, and
    /// a node that does not use it looks for them where they are no more. Waits for nothing.
    pub fn epoch_without_members(&self) -> Option<EpochTag> {
        let leaves = self.0.epochs.leaves_members.load(Ordering::Acquire);
        leaves.then(|| self.0.epochs.snapshot().tag())
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

    /// Waits until every other node that lives uses the epoch that this node uses: what the last change has
    /// filled or moved counts on all nodes then. After `limit` it waits no more, and names those that do not
    /// use it yet, as far as they are known.
    ///
    /// # Errors
    /// This node has withdrawn.
    pub fn await_all_nodes(&self, limit: Duration) -> Result<Option<Vec<Life>>, PoolError> {
        let begun = Instant::now();
        if self.0.await_settled_unless(&|| begun.elapsed() >= limit)? {
            return Ok(None);
        }
        let tag = self.0.epochs.read().tag();
        Ok(Some(self.0.cluster.shared().map_or_else(Vec::new, |s| s.others.late(tag))))
    }

    /// Whether other nodes may use the pool, and agree with this one on each change of it.
    pub fn is_shared(&self) -> bool {
        self.0.cluster.shared().is_some()
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
            let topology = self.0.epochs.write();
            let next = crate::labels::next_epoch(&topology.label);
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }
}

#[cfg(test)]
mod tests;
