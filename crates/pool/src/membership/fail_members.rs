//! Failing members: a member that fails a write is taken out of the pool, for all nodes.
//!
//! [`PoolState::fail_members`] is called before the write that met the failure counts as done. It
//! puts an epoch in force in which the member is `Failed`. Replacing and rebuilding are in
//! `maintenance`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use braid_device::DeviceError;
use braid_format::MemberIndex;
use braid_format::label::{Label, MemberState};

use super::joining::Joining;
use super::unfinished_epoch::Refused;
use crate::error::PoolError;
use crate::labels::{next_epoch, settle_move};
use crate::pool::PoolState;
use crate::topology::{FailedMembers, Topology};

/// The same is logged once in this time.
const SAID_AGAIN: Duration = Duration::from_secs(5);

impl PoolState {
    /// Takes members that failed out of the pool: on return the labels of all others say so,
    /// durably, and no request of any node uses them any more.
    ///
    /// # Errors
    /// The failure of the member that cannot be spared, or what kept the labels from being
    /// written; the pool then goes on as it was.
    pub fn fail_members(&self, lost: &FailedMembers) -> Result<(), PoolError> {
        loop {
            match self.try_fail_members(lost) {
                Err(PoolError::Device { .. }) if self.has_newer_epoch() => {}
                done => return done,
            }
        }
    }

    /// Whether the labels say more than this node knew, which is used from now on: called before a
    /// failure counts that the pool cannot spare. Another node may have filled a member, or moved one,
    /// of which this node has not heard yet; and it may hear nothing more by the member that fails. No
    /// epoch is held. A label that cannot be read is no news.
    ///
    /// Many requests may meet the failure at once. One thread reads the labels, and the others take what
    /// it finds, if it began after they had met the failure.
    pub fn has_newer_epoch(&self) -> bool {
        if self.cluster.shared().is_none_or(|s| s.others.has_ended()) {
            return false;
        }
        // There all threads of a node take turns, and none may wait for another.
        if self.simulated.get().is_some() {
            return self.follow().unwrap_or(false);
        }
        let before = self.epochs.rereads.load(Ordering::Acquire);
        let mut last = self.epochs.reread.lock();
        if last.number > before {
            return last.newer;
        }
        last.number = self.epochs.rereads.fetch_add(1, Ordering::AcqRel) + 1;
        last.newer = self.follow().unwrap_or_else(|error| {
            let (text, now) = (error.to_string(), Instant::now());
            let known = |(said, at): &(String, Instant)| {
                *said == text && now.duration_since(*at) < SAID_AGAIN
            };
            if !last.said.as_ref().is_some_and(known) {
                tracing::warn!(%error, "the labels tell nothing more of a member that fails");
                last.said = Some((text, now));
            }
            false
        });
        last.newer
    }

    /// As [`PoolState::fail_members`], in the epochs that this node knows.
    fn try_fail_members(&self, lost: &FailedMembers) -> Result<(), PoolError> {
        let mut lost = lost.clone();
        loop {
            // It is this node that does not see all of a device.
            if let Some((_, short)) = lost.iter().find(|(_, e)| is_short(e)) {
                return Err(short.clone().into());
            }
            self.await_settled()?;
            // Until the epoch that all use is one without them: it may be another node's.
            if without(&self.epochs.read(), &lost)?.is_none() {
                // It may have come between with a successor in place that has missed something.
                return self.check_migration();
            }
            let mut more = self.mend_labels(&lost)?;
            more.retain(|m| !lost.iter().any(|l| l.0 == m.0));
            if !more.is_empty() {
                lost.extend(more);
                continue;
            }
            let topology = self.enter_to_change()?;
            let Some(next) = without(&topology, &lost)? else { continue };
            topology.say_failed(&next, &lost);
            let name = next.name.clone();
            let devices = topology.devices.clone();
            match self.install(topology, (next, devices), &Joining::NONE) {
                Ok(more) => {
                    let epoch = self.epochs.read().label.epoch.0;
                    if lost.iter().all(|(_, error)| is_taken_out(error)) {
                        tracing::info!(pool = name, epoch, "the pool goes on without the member");
                    } else {
                        tracing::error!(
                            pool = name,
                            epoch,
                            "the pool goes on without the failed member; replace it soon"
                        );
                    }
                    lost.extend(more);
                    self.await_settled()?;
                }
                // One more that fails, now with its label.
                Err((Some(member), PoolError::Device { source }))
                    if !is_short(&source) && !lost.iter().any(|(m, _)| *m == member) =>
                {
                    lost.push((member, *source));
                }
                Err((_, PoolError::EpochMoved { by, .. })) => self.give_way(by)?,
                Err((_, error)) => return Err(error),
            }
        }
    }
}

/// Whether a member failed only because this node does not see all of its device.
fn is_short(error: &DeviceError) -> bool {
    matches!(error, DeviceError::OutOfRange { .. })
}

/// Whether an operator wanted it so.
fn is_taken_out(error: &DeviceError) -> bool {
    matches!(error, DeviceError::TakenOut { .. })
}

impl Topology {
    /// For the log: which members are failed in `next`, and were not.
    fn say_failed(&self, next: &Label, lost: &FailedMembers) {
        for (uuid, error) in lost {
            let Some(member) = self.index_of(*uuid) else { continue };
            let then = next.members.get(usize::from(member.0)).map(|m| m.state);
            if then != Some(MemberState::Failed) || self.state(member) == MemberState::Failed {
                continue;
            }
            let member = self.name(member);
            if is_taken_out(error) {
                tracing::warn!(
                    member,
                    "a member was taken out of use, by an order or because of what it returns"
                );
            } else {
                tracing::error!(%error, member, "member failed");
            }
        }
    }

    /// Those members that did not take their second label and are to be taken out. What cannot be
    /// spared is in use with one label, until that can be healed; whether the epoch outlasts a
    /// power cut until then is open, and the error says so.
    pub fn to_lose(
        &self,
        unwritten: Vec<(MemberIndex, PoolError)>,
    ) -> (FailedMembers, Option<Refused>) {
        let (mut lost, mut kept) = (FailedMembers::new(), None);
        for (member, error) in unwritten {
            tracing::warn!(%error, member = self.name(member), "the second label was not written");
            let uuid = self.uuid(member);
            match (error, uuid) {
                (PoolError::Device { source }, Some(uuid))
                    if !is_short(&source) && !source.is_fenced() && self.can_lose(member) =>
                {
                    lost.push((uuid, *source));
                }
                (error, _) => kept = kept.or(Some((uuid, error))),
            }
        }
        (lost, kept)
    }
}

/// The label of an epoch without the members in `lost`; `None`: they are out already.
fn without(topology: &Topology, lost: &FailedMembers) -> Result<Option<Label>, PoolError> {
    let mut next = next_epoch(&topology.label);
    for (uuid, error) in lost {
        // Removed meanwhile.
        let Some(member) = topology.index_of(*uuid) else { continue };
        // Nothing is wrong with the member.
        if error.is_fenced() {
            return Err(error.clone().into());
        }
        // It has failed, for good: what a member that is offline failed to write before it went, it would lack.
        if let Some(m) = next.members.get_mut(usize::from(member.0)) {
            m.offline = false;
        }
        // Another request, or node, may have been first.
        if topology.state(member) == MemberState::Failed {
            continue;
        }
        // An order was judged when it came: by force it counts whatever others are suspected of.
        let spared = if is_taken_out(error) {
            topology.can_lose_without(&[member], |_| false)
        } else {
            topology.can_lose(member)
        };
        if !spared {
            return Err(error.clone().into());
        }
        if let Some(m) = next.members.get_mut(usize::from(member.0)) {
            m.state = MemberState::Failed;
            m.state_epoch = next.epoch;
        }
    }
    if next.members == topology.label.members {
        return Ok(None);
    }
    settle_move(&mut next);
    Ok(Some(next))
}
