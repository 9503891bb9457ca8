//! Liveness bytes that this process holds, or sees held, on the members: see
//! [`crate::cluster::liveness`].

use std::sync::Arc;

#[cfg(doc)]
use braid_device::Device;
use braid_format::node::LockPlace;

use crate::cluster::liveness::{bearers, distinct};
use crate::error::PoolError;
use crate::pool::{Pool, PoolState};

/// Holds a liveness byte of a pool until it is dropped or the process ends.
#[derive(Debug)]
pub struct PoolByteLock {
    inner: Arc<PoolState>,
    byte: u64,
}

impl Drop for PoolByteLock {
    fn drop(&mut self) {
        self.inner.cluster.liveness.0.lock().remove(&self.byte);
    }
}

impl Pool {
    /// Takes liveness byte `byte`, or `None` if anybody on this host, this process included, holds
    /// it.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn lock_byte(&self, byte: u64) -> Result<Option<PoolByteLock>, PoolError> {
        let topology = self.0.epochs.read();
        let mut guards = Vec::new();
        for member in bearers(&topology) {
            let uuid = topology.label.members.get(usize::from(member.0)).map(|m| m.uuid);
            let Some(guard) = topology.device(member).abilities().locks.lock_byte(byte)? else {
                return Ok(None);
            };
            guards.extend(uuid.map(|u| (u, guard)));
        }
        self.0.cluster.liveness.0.lock().insert(byte, guards);
        Ok(Some(PoolByteLock { inner: self.0.clone(), byte }))
    }

    /// Where this process looks for liveness bytes, each place once.
    pub fn lock_places(&self) -> Vec<LockPlace> {
        let topology = self.0.epochs.snapshot();
        let bearers = bearers(&topology);
        let mut places: Vec<_> =
            bearers.iter().filter_map(|m| topology.device(*m).info().lock_place).collect();
        distinct(&mut places);
        places
    }

    /// Where this process holds liveness byte `byte`, each place once.
    pub fn held_places(&self, byte: u64) -> Vec<LockPlace> {
        let topology = self.0.epochs.snapshot();
        let held = self.0.cluster.liveness.0.lock();
        let guards = held.get(&byte).map_or(&[][..], Vec::as_slice);
        let members = topology.label.members.iter().zip(topology.members());
        let held = members.filter(|(m, _)| guards.iter().any(|(uuid, _)| *uuid == m.uuid));
        let places = held.filter_map(|(_, m)| topology.device(m).info().lock_place);
        let mut places: Vec<_> = places.collect();
        distinct(&mut places);
        places
    }

    /// Whether some member has no compare-and-write command, so that it is done under a byte lock, which
    /// excludes only processes that lock the same place.
    pub fn emulates_compare_and_write(&self) -> bool {
        let topology = self.0.epochs.snapshot();
        let mut members = topology.members();
        members.any(|m| topology.device(m).info().emulates_compare_and_write)
    }

    /// Whether anybody on this host, this process included, holds liveness byte `byte`.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn byte_locked(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.epochs.snapshot();
        for member in bearers(&topology) {
            if topology.device(member).abilities().locks.byte_locked(byte)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a process of this host that lives holds it: see `Device::byte_held`.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn byte_held(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.epochs.snapshot();
        for member in bearers(&topology) {
            if topology.device(member).abilities().locks.byte_held(byte)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The operator confirms that the byte's holder has died, so the byte is free: see
    /// `Device::settle_byte`. False if a process that lives holds it on some member.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn settle_byte(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.epochs.snapshot();
        let mut settled = true;
        for member in bearers(&topology) {
            settled &= topology.device(member).abilities().locks.settle_byte(byte)?;
        }
        Ok(settled)
    }

    /// Whether others hold it on some members and not on others: a node holds it on all that it uses, so
    /// one of these is not a member to that node.
    ///
    /// # Errors
    /// [`PoolError::Device`].
    pub fn byte_partly_locked(&self, byte: u64) -> Result<bool, PoolError> {
        let topology = self.0.epochs.snapshot();
        let (mut held, mut free) = (false, false);
        for member in bearers(&topology) {
            let locked = topology.device(member).abilities().locks.byte_locked(byte)?;
            held |= locked;
            free |= !locked;
        }
        Ok(held && free)
    }
}
