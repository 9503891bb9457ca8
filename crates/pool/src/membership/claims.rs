//! The claim of a change: if several nodes want to change the pool, one of them is first.
//!
//! A claim is written on every member that stays, by compare-and-write, in the order of the
//! members. It is removed when [`Claims`] is dropped. A node that meets the claim of another waits
//! for it, unless that node is dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::{CawOutcome, Device, DeviceError};
use braid_format::MemberIndex;
use braid_format::lock_record::Life;
use braid_format::redundancy::RawClaim;
use uuid::Uuid;

use super::unfinished_epoch::{self, Open, Refused};
use crate::cluster::Shared;
use crate::error::PoolError;
use crate::identity::fresh;
use crate::labels::{Found, assess_labels, carriers, id};
use crate::redundancy::EpochInUse;
use crate::topology::Topology;

/// Times that a claim is let go, if that fails.
const RELEASES: u32 = 3;

/// The epoch is another one than was thought: it is to be begun again.
pub(crate) fn moved(topology: &Topology) -> PoolError {
    PoolError::EpochMoved { name: topology.label.name.clone(), by: None }
}

/// Claims of a change, on every member that stays; let go when dropped.
pub(crate) struct Claims {
    shared: Arc<Shared>,
    pool: [u8; 16],
    /// Bytes in a lock sector.
    len: usize,
    /// The highest number of an epoch that any member knows, in force or not.
    pub seen: u64,
    /// Devices, and what stands there now.
    held: Vec<(Arc<dyn Device>, Vec<u8>)>,
}

impl Claims {
    /// Claims a change of `topology` in which the members in `kept` stay. The members are claimed in
    /// their order, so of two nodes that want to change the pool one is first. `open` finds devices
    /// that joined in a change that was broken off.
    pub fn take(
        shared: &Arc<Shared>,
        (topology, kept): (&EpochInUse, &[Uuid]),
        gone: &[Life],
        open: Open<'_>,
    ) -> Result<Self, Refused> {
        let mut claims = Self {
            shared: shared.clone(),
            pool: topology.label.pool.into_bytes(),
            len: topology.label.lock_sector.to_usize(),
            seen: topology.label.epoch.0,
            held: Vec::new(),
        };
        let stays =
            |i: &usize| topology.label.members.get(*i).is_some_and(|m| kept.contains(&m.uuid));
        let now = carriers(&topology.label);
        let mut staying: Vec<usize> = now.iter().copied().filter(stays).collect();
        // A member that leaves may have the label of a change that another node has broken off.
        let goes = now.iter().filter(|i| !staying.contains(i));
        let goes = goes.filter_map(|i| topology.devices.get(*i));
        let newest = |d: &Arc<dyn Device>| Some(Found::read(d.clone()).newest()?.epoch.0);
        let gone_with = goes.filter_map(newest).max().unwrap_or(0);
        if staying.is_empty() {
            // All are exchanged at once.
            staying = now;
        }
        let mut found = Vec::new();
        for i in staying {
            let Ok(i) = u16::try_from(i) else { continue };
            let device = topology.device(MemberIndex(i));
            match claims.take_one(device, gone) {
                Ok(None) => found.push(Found::read(device.clone())),
                Ok(Some(by)) => {
                    let name = topology.label.name.clone();
                    return Err((None, PoolError::EpochMoved { name, by: Some(by) }));
                }
                Err(error) => return Err((topology.uuid(MemberIndex(i)), error.into())),
            }
        }
        let now = assess_labels(&found, true).map_err(|e| (None, e))?.label;
        let ours = id(&topology.label);
        // If the epoch was never durable, the members that stay may not show that it is in force. Or its
        // labels are gone, because the power of all members was cut before they were durable. All living
        // nodes use it, so no node goes on in the epoch before: the labels are written again.
        let is_lost =
            topology.settled.load(Ordering::Acquire) && !topology.durable.load(Ordering::Acquire);
        let unsaid =
            now.epoch < topology.label.epoch && (is_lost || found.iter().all(|f| f.carries(ours)));
        if id(&now) != ours && !unsaid {
            return Err((None, moved(topology)));
        }
        if let Some(begun) = unfinished_epoch::in_force(topology, &found, open) {
            unfinished_epoch::complete(topology, &begun)?;
            return Err((None, moved(topology)));
        }
        let seen = found.iter().filter_map(|f| Some(f.newest()?.epoch.0)).max();
        claims.tries(seen.unwrap_or(0).max(gone_with));
        Ok(claims)
    }

    /// The highest number of an epoch that any member knows, in force or not.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// An epoch gets this number. The node that claims the next change knows of it, even if this change
    /// fails.
    pub fn tries(&mut self, epoch: u64) {
        self.seen = self.seen.max(epoch);
    }

    /// Claims on one member, unless another node does that is not known to be `gone`. Whether it
    /// is, is asked when no topology is held: the answer is read from the pool.
    fn take_one(
        &mut self,
        device: &Arc<dyn Device>,
        gone: &[Life],
    ) -> Result<Option<Life>, DeviceError> {
        let mut stands = vec![0; self.len];
        device.read(RawClaim::AT, &mut stands)?;
        let me = self.shared.others.me();
        let mut unknown = 0;
        loop {
            self.tries(RawClaim::highest(&stands, self.pool));
            if let Some(by) = RawClaim::claimer(&stands, self.pool)
                && by != me
                && !gone.contains(&by)
            {
                return Ok(Some(by));
            }
            let mine = self.sector(Some(me));
            match device.compare_and_write(RawClaim::AT, &stands, &mine) {
                Ok(CawOutcome::Written) => {
                    self.held.push((device.clone(), mine));
                    return Ok(None);
                }
                Ok(CawOutcome::Mismatch(now)) => stands = now,
                Err(error) => {
                    // It may stand all the same, and this node may never change anything again:
                    // others would wait for it for ever.
                    self.held.push((device.clone(), mine));
                    // If it was done, its own claim stands there, which is set aside.
                    if !matches!(error, DeviceError::Unknown { .. }) || unknown == RELEASES {
                        return Err(error);
                    }
                    unknown += 1;
                    device.read(RawClaim::AT, &mut stands)?;
                }
            }
        }
    }

    fn sector(&self, life: Option<Life>) -> Vec<u8> {
        let nonce = fresh().as_u64_pair().0;
        RawClaim::sector(self.pool, self.seen, life, nonce, self.len)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        for (device, mine) in &self.held {
            // While it stays this node alone can change the pool: one failure is not the end.
            let free = self.sector(None);
            let mut left = device.compare_and_write(RawClaim::AT, mine, &free);
            for _ in 1..RELEASES {
                if left.is_err() {
                    left = device.compare_and_write(RawClaim::AT, mine, &free);
                }
            }
            if let Err(error) = left {
                tracing::warn!(%error, "cannot release the claim of a change");
            }
        }
    }
}
