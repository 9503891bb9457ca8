//! Liveness bytes: locks that the kernel drops when their process ends.
//!
//! In a pool without redundancy they stand on member 0, without which it cannot be used. Where
//! members may come and go, a byte is held on every member in use, and on each that joins: whoever
//! opens the pool with any of them sees it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use braid_device::ByteLockGuard;
use braid_format::MemberIndex;
use braid_format::label::MemberState;
use braid_format::node::LockPlace;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::error::PoolError;
use crate::topology::Topology;
use crate::{Inner, Pool};

/// The bytes that this process holds: on which members.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(Mutex<BTreeMap<u64, Vec<(Uuid, ByteLockGuard)>>>);

/// Holds a liveness byte of a pool until it is dropped or the process ends.
#[derive(Debug)]
pub struct PoolByteLock {
    inner: Arc<Inner>,
    byte: u64,
}

impl Drop for PoolByteLock {
    fn drop(&mut self) {
        self.inner.held.0.lock().remove(&self.byte);
    }
}

/// Members whose bytes count.
fn bearers(topology: &Topology, redundant: bool) -> Vec<MemberIndex> {
    let count = if redundant { usize::MAX } else { 1 };
    let members = topology.members().take(count);
    members.filter(|m| topology.state(*m) != MemberState::Failed).collect()
}

fn distinct(places: &mut Vec<LockPlace>) {
    let mut seen = HashSet::new();
    places.retain(|p| seen.insert(*p));
}

impl HeldBytes {
    /// Lets go of those that stand on devices which are no members, any more or after all.
    pub fn part(&self, topology: &Topology) {
        let member = |uuid: &Uuid| topology.label.members.iter().any(|m| m.uuid == *uuid);
        for guards in self.0.lock().values_mut() {
            guards.retain(|(uuid, _)| member(uuid));
        }
    }

    /// Takes every held byte on members that have joined.
    pub fn join(&self, topology: &Topology) {
        for (byte, guards) in self.0.lock().iter_mut() {
            for member in bearers(topology, true) {
                let Some(m) = topology.label.members.get(usize::from(member.0)) else { continue };
                if guards.iter().any(|(uuid, _)| *uuid == m.uuid) {
                    continue;
                }
                match topology.device(member).lock_byte(*byte) {
                    Ok(guard) => guards.extend(guard.map(|g| (m.uuid, g))),
                    Err(error) => {
                        tracing::warn!(%error, "liveness is not shown on a new member");
                    }
                }
            }
        }
    }
}

impl Pool {
    /// Takes liveness byte `byte`, or `None` if anybody on this host, this process included, holds
    /// it.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn lock_byte(&self, byte: u64) -> Result<Option<PoolByteLock>, PoolError> {
        let topology = self.0.topology.read();
        let mut guards = Vec::new();
        for member in bearers(&topology, self.0.redundant) {
            let uuid = topology.label.members.get(usize::from(member.0)).map(|m| m.uuid);
            let Some(guard) = topology.device(member).lock_byte(byte)? else { return Ok(None) };
            guards.extend(uuid.map(|u| (u, guard)));
        }
        self.0.held.0.lock().insert(byte, guards);
        Ok(Some(PoolByteLock { inner: self.0.clone(), byte }))
    }

    /// Where this process looks for liveness bytes, each place once.
    pub fn lock_places(&self) -> Vec<LockPlace> {
        let topology = self.0.snapshot();
        let bearers = bearers(&topology, self.0.redundant);
        let mut places: Vec<_> =
            bearers.iter().filter_map(|m| topology.device(*m).info().lock_place).collect();
        distinct(&mut places);
        places
    }

    /// Where this process holds liveness byte `byte`, each place once.
    pub fn held_places(&self, byte: u64) -> Vec<LockPlace> {
        let topology = self.0.snapshot();
        let held = self.0.held.0.lock();
        let guards = held.get(&byte).map_or(&[][..], Vec::as_slice);
        let members = topology.label.members.iter().zip(topology.members());
        let held = members.filter(|(m, _)| guards.iter().any(|(uuid, _)| *uuid == m.uuid));
        let places = held.filter_map(|(_, m)| topology.device(m).info().lock_place);
        let mut places: Vec<_> = places.collect();
        distinct(&mut places);
        places
    }

    /// Whether compare-and-write on this pool excludes only those who lock the same places: some member
    /// has no such command.
    pub fn compares_by_lock(&self) -> bool {
        let topology = self.0.snapshot();
        let mut members = topology.members();
        members.any(|m| topology.device(m).info().compares_by_lock)
    }

    /// Whether anybody on this host, this process included, holds liveness byte `byte`.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn byte_locked(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.snapshot();
        for member in bearers(&topology, self.0.redundant) {
            if topology.device(member).byte_locked(byte)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether others hold it on some members and not on others: where members may come and go, a node
    /// holds it on all that it uses, so one of these is not a member to that node.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn byte_partly_locked(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.snapshot();
        let (mut held, mut free) = (false, false);
        for member in bearers(&topology, self.0.redundant) {
            let locked = topology.device(member).byte_locked(byte)?;
            held |= locked;
            free |= !locked;
        }
        Ok(held && free)
    }
}
