//! Ending the move of a member's contents if its successor has missed a change on this node.
//!
//! One node copies; every node writes to both devices. If a change of this node did not reach the
//! successor, the copying node does not know. So the change counts only when the move has ended in
//! an epoch of all nodes, or, if the successor is in place already, when the successor is failed
//! ([`PoolState::check_migration`]).

use std::sync::Arc;

use braid_format::MemberIndex;
use braid_format::label::MemberState;
use parking_lot::RwLockWriteGuard;
use uuid::Uuid;

use super::joining::Joining;
use super::unfinished_epoch::Refused;
use crate::devices::migration::{MemberMigration, MigratingMember};
use crate::error::PoolError;
use crate::labels::{Moving, moving, next_epoch};
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::topology::{FailedMembers, Topology};

impl Topology {
    /// The member that is being moved, and its two devices.
    pub fn migration(&self) -> Option<(Moving, &Arc<MemberMigration>)> {
        Some((moving(&self.label)?, &self.migration.as_ref()?.migration))
    }

    /// The move under way, if its successor has missed something here.
    pub fn missed(&self) -> Option<Arc<MemberMigration>> {
        let MigratingMember { leaving, migration, .. } = self.migration.as_ref()?;
        // What a member without redundancy fails does not count anyway.
        let behind = migration.missed().is_some() && !self.bare.contains(leaving);
        (behind || migration.broken().is_some()).then(|| migration.clone())
    }

    /// Whether the member stands somewhere in the layout, and is read.
    pub fn uses(&self, member: Uuid) -> bool {
        let place = self.index_of(member);
        place.is_some_and(|m| self.map.members().contains(&m) && self.readable(m))
    }
}

impl PoolState {
    /// Ends the move under way; a successor that `failed` is out of use.
    pub fn end_move(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        failed: Option<MemberIndex>,
    ) -> Result<(), PoolError> {
        let lost = self.try_end_move(topology, failed).map_err(|e| e.1)?;
        if lost.is_empty() { Ok(()) } else { self.fail_members(&lost) }
    }

    /// As [`PoolState::end_move`]; says which member failed, and which failed after the change.
    fn try_end_move(
        &self,
        topology: RwLockWriteGuard<'_, EpochInUse>,
        failed: Option<MemberIndex>,
    ) -> Result<FailedMembers, Refused> {
        let mut next = next_epoch(&topology.label);
        let epoch = next.epoch;
        if let Some(m) = moving(&next).and_then(|m| next.members.get_mut(usize::from(m.leaving.0)))
        {
            m.successor = None;
            (m.state, m.state_epoch) = (MemberState::Active, epoch);
        }
        if let Some(m) = failed.and_then(|m| next.members.get_mut(usize::from(m.0))) {
            (m.state, m.state_epoch) = (MemberState::Failed, epoch);
        }
        let devices = topology.devices.clone();
        self.install(topology, (next, devices), &Joining::NONE)
    }

    /// Ends the move of `migration`, whichever of its devices has failed. Others that fail meanwhile are
    /// lost: a write waits for this.
    pub fn give_up_successor(&self, migration: &Arc<MemberMigration>) -> Result<(), PoolError> {
        loop {
            let mut refused = None;
            let ended = self.changing(|| {
                let topology = self.epochs.write();
                match topology.migration() {
                    Some((moving, t)) if t.pair == migration.pair => {
                        // Or was it the old one?
                        let broken = migration.broken().is_some() || migration.missed().is_none();
                        let failed = broken.then_some(moving.successor);
                        self.try_end_move(topology, failed).map_err(|(member, error)| {
                            refused = member;
                            error
                        })
                    }
                    _ => Ok(FailedMembers::new()),
                }
            });
            let lost = match (ended, refused) {
                (Ok(lost), _) if lost.is_empty() => return Ok(()),
                (Ok(lost), _) => return self.fail_members(&lost),
                (Err(PoolError::Device { source }), Some(member)) => vec![(member, *source)],
                (Err(error), _) => return Err(error),
            };
            self.fail_members(&lost)?;
        }
    }

    /// Called before a change counts as done. What a successor has missed here another node, which
    /// copies to it, does not know: the move ends, for all, in an epoch; and if that other node has
    /// been faster, the successor is taken out of the place that it has got.
    ///
    /// # Errors
    /// The labels cannot be written, or the successor cannot be spared: the change does not count.
    pub fn check_migration(&self) -> Result<(), PoolError> {
        if self.cluster.shared().is_none() {
            return Ok(());
        }
        let migration = self.epochs.read().missed();
        if let Some(migration) = migration {
            self.give_up_successor(&migration)?;
        }
        let ended = self.epochs.ended_migrations.lock().clone();
        for migration in ended {
            let target = migration.pair.1;
            if let Some(error) = migration.missed()
                && self.epochs.read().uses(target)
            {
                self.fail_members(&vec![(target, error.clone())])?;
            }
            // Not before: others wait for the same.
            self.epochs.ended_migrations.lock().retain(|t| !Arc::ptr_eq(t, &migration));
        }
        Ok(())
    }
}
