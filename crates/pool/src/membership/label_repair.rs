//! Writing labels anew that are damaged, or that a broken-off change left behind.
//!
//! This is not done when a pool is opened: another node may be changing the pool, and its
//! half-written change would look like a broken one. It is done by a node that may change the pool,
//! under the claim of a change.
//!
//! Labels that look whole may not be durable: the node that wrote them may have died before it
//! flushed them. Until all labels of an epoch are durable, the epoch is not *durable*, and no node
//! changes anything in it. Otherwise a power cut could bring back the epoch before, with members
//! that have missed writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::{AlignedBuf, ByteLockGuard, Device, Request, run};
use braid_format::label::Label;

use super::claims::Claims;
use super::unfinished_epoch::{Open, Refused};
use crate::error::PoolError;
use crate::labels::{Found, LABEL_LOCK_BYTE, carriers, id, own_uuid, wipe_behind, write_copies};
use crate::pool::{Pool, PoolState};
use crate::redundancy::EpochInUse;
use crate::simulation::Pause;
use crate::topology::{FailedMembers, Topology};

/// Between two looks whether another process still writes labels, and how many there are at most.
const WAIT: Duration = Duration::from_millis(20);
const WAITS: u32 = 100;

/// What is wrong with the labels of a pool.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wrong {
    /// Members whose copy 0, or copy 1, is not the label in force.
    copies: [Vec<usize>; 2],
    /// Members with an old label behind their end, left by a growth that was broken off.
    behind: Vec<usize>,
}

/// Where the second label would be on a device that is larger than the pool knows.
fn behind(topology: &Topology, i: usize) -> Option<braid_format::ByteOffset> {
    let (member, device) = (topology.label.members.get(i)?, topology.devices.get(i)?);
    let at = Label::copy1_at(device.info().size)?;
    (Some(at) != Label::copy1_at(member.device_size)).then_some(at)
}

impl Wrong {
    fn of(topology: &Topology) -> Self {
        let mut wrong = Self::default();
        for i in carriers(&topology.label) {
            let Some(device) = topology.devices.get(i) else { continue };
            let found = Found::read(device.clone());
            for (copy, wrong) in found.copies.iter().zip(&mut wrong.copies) {
                if !copy.as_ref().is_ok_and(|l| id(l) == id(&topology.label)) {
                    wrong.push(i);
                }
            }
            let mut room = AlignedBuf::zeroed(Label::LEN_MAX);
            let ours = |l: &Label| topology.label.pool == l.pool && own_uuid(l).is_some();
            if let Some(at) = behind(topology, i)
                && device.read(at, &mut room).is_ok()
                && Label::decode(&room, at).is_ok_and(|(l, _)| ours(&l))
            {
                wrong.behind.push(i);
            }
        }
        wrong
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Topology {
    /// Whether nothing may be written yet, or ever.
    fn is_frozen(&self) -> bool {
        self.provisional || self.devices.iter().any(|d| d.info().read_only)
    }

    /// Flushes every member that has a label; `failed`: those that could not be.
    pub(crate) fn flush_labels(&self, failed: &mut FailedMembers) {
        let all: Vec<_> = carriers(&self.label)
            .into_iter()
            .filter_map(|i| Some((self.label.members.get(i)?.uuid, self.devices.get(i)?)))
            .collect();
        let mut flushes: Vec<_> = all.iter().map(|(_, d)| Request::flush(&***d)).collect();
        run(&mut flushes);
        for ((member, _), flush) in all.iter().zip(flushes) {
            failed.extend(flush.result.err().map(|e| (*member, e)));
        }
    }

    /// Writes label `copy` of the members in `which`; those that have no label of this epoch then
    /// are `failed`, as `also`, their other copies, says.
    fn write_labels(&self, copy: u32, which: &[usize], also: &[usize], failed: &mut FailedMembers) {
        for i in which {
            let Some(device) = self.devices.get(*i) else { continue };
            let path = &device.info().name;
            match write_copies(&self.devices, &self.label, copy, &[*i]) {
                Ok(()) => tracing::warn!(path, copy, "label was damaged or out of date; healed"),
                Err(error) => {
                    tracing::warn!(path, copy, %error, "label could not be healed");
                    let bare = also.contains(i);
                    if let PoolError::Device { source } = error
                        && let Some(member) = self.label.members.get(*i).filter(|_| bare)
                    {
                        failed.push((member.uuid, *source));
                    }
                }
            }
        }
    }
}

/// Keeps other processes of this host from writing the labels, if no node has the pool mounted.
fn lock_labels(topology: &Topology) -> Result<ByteLockGuard, PoolError> {
    let lowest = carriers(&topology.label).into_iter().next();
    let lowest: Option<&Arc<dyn Device>> = lowest.and_then(|i| topology.devices.get(i));
    let lowest = lowest.ok_or(PoolError::NoDevices)?;
    lowest.abilities().locks.lock_byte(LABEL_LOCK_BYTE)?.ok_or_else(|| PoolError::InUse {
        path: lowest.info().name.clone(),
        how: "another process on this host writes its labels".to_owned(),
    })
}

impl PoolState {
    /// Makes both labels of all members those of the epoch in use, durably: copy 0 everywhere before
    /// the first copy 1, as when an epoch is written. What could not be flushed, or written at all,
    /// is returned; the epoch is durable if nothing is, and `but` is empty.
    ///
    /// `but`: members that are known to have failed.
    ///
    /// # Errors
    /// [`PoolError::EpochMoved`]; [`PoolError::InUse`]: another process on this host writes labels;
    /// [`PoolError::Device`].
    pub fn try_heal_labels(&self, but: &FailedMembers) -> Result<FailedMembers, PoolError> {
        let mut failed = FailedMembers::new();
        let topology = self.epochs.write();
        if topology.is_frozen() {
            topology.durable.store(true, Ordering::Release);
            return Ok(failed);
        }
        let _alone = match self.hold_labels(&topology, but) {
            Ok(alone) => alone,
            Err((Some(member), PoolError::Device { source })) => {
                return Ok(vec![(member, *source)]);
            }
            Err((_, error)) => return Err(error),
        };
        let wrong = Wrong::of(&topology);
        topology.write_labels(0, &wrong.copies[0], &wrong.copies[1], &mut failed);
        topology.flush_labels(&mut failed);
        failed.retain(|f| !but.iter().any(|b| b.0 == f.0));
        if failed.is_empty() && !wrong.copies[1].is_empty() {
            topology.write_labels(1, &wrong.copies[1], &[], &mut failed);
            topology.flush_labels(&mut failed);
            failed.retain(|f| !but.iter().any(|b| b.0 == f.0));
        }
        for i in &wrong.behind {
            if let (Some(device), Some(at)) = (topology.devices.get(*i), behind(&topology, *i)) {
                wipe_behind(&**device, at);
            }
        }
        if failed.is_empty() && but.is_empty() {
            topology.durable.store(true, Ordering::Release);
        }
        Ok(failed)
    }

    /// Makes the epoch in use, which is settled, one that stays whatever happens: its labels may have
    /// been seen before they were durable, and their writer have died over them. Members that fail
    /// are taken out.
    ///
    /// # Errors
    /// A member fails that cannot be spared; this node has withdrawn; another process on this host
    /// writes labels all the time.
    pub fn make_durable(&self) -> Result<(), PoolError> {
        let mut waits = 0;
        while !self.epochs.read().durable.load(Ordering::Acquire) {
            match self.try_heal_labels(&FailedMembers::new()) {
                Ok(failed) if failed.is_empty() => {}
                Ok(failed) => self.fail_members(&failed)?,
                // Mostly for a moment.
                Err(PoolError::InUse { .. }) if waits < WAITS => {
                    waits += 1;
                    self.pause(WAIT, Pause::Free);
                }
                Err(PoolError::EpochMoved { by, .. }) => {
                    self.give_way(by)?;
                    self.await_settled()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Called before an epoch is changed. The first step of a change overwrites each member's first
    /// label, so the second label must be there, and durable. It may have rotted, its write may have
    /// failed, or the node that wrote it may have died before the flush. `but`: members that have failed.
    ///
    /// If the epoch is not durable, other members that fail are returned: it cannot be changed with
    /// them. If it is durable, labels that cannot be healed do not prevent the change.
    ///
    /// # Errors
    /// This node has withdrawn.
    pub fn mend_labels(&self, but: &FailedMembers) -> Result<FailedMembers, PoolError> {
        let durable = {
            let topology = self.epochs.read();
            if topology.is_frozen() || !topology.settled.load(Ordering::Acquire) {
                return Ok(FailedMembers::new());
            }
            let failed = |i: &usize| {
                let member = topology.label.members.get(*i).map(|m| m.uuid);
                but.iter().any(|b| Some(b.0) == member)
            };
            let durable = topology.durable.load(Ordering::Acquire);
            if durable && Wrong::of(&topology).copies.iter().flatten().all(failed) {
                return Ok(FailedMembers::new());
            }
            durable
        };
        match self.try_heal_labels(but) {
            Err(PoolError::EpochMoved { by, .. }) => self.give_way(by)?,
            Err(error) => tracing::warn!(%error, "labels are not healed"),
            Ok(failed) if !durable => return Ok(failed),
            Ok(_) => {}
        }
        Ok(FailedMembers::new())
    }

    /// Keeps everybody else from writing labels of all members `but` some, while the result is held.
    pub(crate) fn hold_labels(
        &self,
        topology: &EpochInUse,
        but: &FailedMembers,
    ) -> Result<(Option<Claims>, Option<ByteLockGuard>), Refused> {
        let claims = self.claim(topology, but)?;
        // Where nodes have the pool, and claim what they change, nobody asks for the byte: a node that
        // lost a session with a target may not get it twice.
        let guard = if claims.is_none() {
            Some(lock_labels(topology).map_err(|e| (None, e))?)
        } else {
            None
        };
        Ok((claims, guard))
    }

    /// Claims the labels as they are, of all members `but` some, where other nodes may change them.
    pub(crate) fn claim(
        &self,
        topology: &EpochInUse,
        but: &FailedMembers,
    ) -> Result<Option<Claims>, Refused> {
        let Some(shared) = self.cluster.shared() else { return Ok(None) };
        let gone = self.cluster.gone.lock().clone();
        let open: Open<'_> = &|m| self.open_member(m);
        let mut kept = topology.carrying();
        kept.retain(|uuid| !but.iter().any(|b| b.0 == *uuid));
        Claims::take(&shared, (topology, &kept), &gone, open).map(Some)
    }
}

impl Pool {
    /// Writes anew what is damaged of the labels, or of a change that was broken off, and makes all of
    /// them durable. The caller has joined those who use the pool ([`Pool::share`]), or knows that
    /// there are none.
    ///
    /// A failure is only worth a warning here: before the first change it is tried again, and a member
    /// that fails then is taken out.
    ///
    /// # Errors
    /// This node has withdrawn, or cannot follow a change.
    pub fn heal_labels(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        {
            let topology = self.0.epochs.read();
            if topology.is_frozen() {
                return Ok(());
            }
            let mut failed = FailedMembers::new();
            topology.flush_labels(&mut failed);
            // Until they are looked at again, before the first change.
            topology.durable.store(false, Ordering::Release);
            if failed.is_empty() && Wrong::of(&topology).is_nothing() {
                topology.durable.store(true, Ordering::Release);
                return Ok(());
            }
        }
        // Not when the epoch is settled: others may wait for these very labels, to use it too.
        loop {
            match self.0.try_heal_labels(&FailedMembers::new()) {
                Err(PoolError::EpochMoved { by, .. }) => self.0.give_way(by)?,
                Err(error) => {
                    tracing::warn!(%error, "labels are not healed");
                    return Ok(());
                }
                Ok(failed) => {
                    for (_, error) in failed {
                        tracing::warn!(%error, "labels are not healed");
                    }
                    return Ok(());
                }
            }
        }
    }
}
