//! Changes in which devices join, and which came to nothing or were broken off.
//!
//! A joining device's second label is written first. So for a while an epoch is in force by labels
//! that stand on joining devices alone. A node that opens the pool then sees these labels; a node
//! that already uses the pool does not know of these devices. Each would go on in an epoch of its
//! own. Therefore:
//! * a node whose change fails takes those labels away while it still holds the claim: that epoch
//!   never was;
//! * a node that claims the next change after another node died looks at the joining devices too.
//!   If one of them has its second label, the node completes that change, and follows it;
//! * a node that has opened the pool in such an epoch, and has changed nothing in it, goes back to
//!   the epoch in force if its own is no longer in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_device::{AlignedBuf, DeviceError};
use braid_format::label::Label;
use braid_format::lock_record::Life;

use super::claims::Claims;
use super::unfinished_epoch::Open;
use crate::cluster::Shared;
use crate::error::PoolError;
use crate::labels::{carriers, id};
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::topology::Topology;

/// Takes the labels of the epoch `next`, which has come to nothing, off the devices that were to join
/// in it: the second ones first, by which it would be in force.
pub(crate) fn take_back(topology: &Topology, next: &Topology) {
    let joined = carriers(&next.label).into_iter().filter_map(|i| {
        let member = next.label.members.get(i)?;
        topology.index_of(member.uuid).is_none().then_some((member, next.devices.get(i)?))
    });
    let joined: Vec<_> = joined.collect();
    let zeros = AlignedBuf::zeroed(next.label.encoded_len());
    for copy in [1, 0] {
        for (member, device) in &joined {
            let second = || Label::copy1_at(member.device_size);
            let Some(at) = (if copy == 0 { Some(Label::COPY0_AT) } else { second() }) else {
                continue;
            };
            let wiped: Result<(), DeviceError> =
                device.write(at, &zeros).and_then(|()| device.flush());
            if let Err(error) = wiped {
                tracing::warn!(%error, "cannot remove the label of a failed change from a device");
            }
        }
    }
}

impl EpochInUse {
    /// Whether this is the epoch `label`, in which this node cannot have changed anything.
    pub(crate) fn is_only_seen(&self, label: &Label) -> bool {
        let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        id(&self.label) == id(label) && !is(&self.settled) && !is(&self.durable)
    }
}

impl PoolState {
    /// The labels no longer say that `before`, the epoch that this node uses, is in force: the node that
    /// wrote it has taken it back, or it was overwritten. If this node has changed nothing in `before`,
    /// it goes on with `now`, the epoch in force, like a node that opens the pool. Whether it does.
    ///
    /// This node holds the claim of a change in `now` until it has announced `now`. Otherwise another
    /// node could complete `before` meanwhile, and go on in it because it saw this node use it.
    ///
    /// # Errors
    /// As [`crate::pool::Pool::follow`].
    pub(crate) fn go_back(&self, before: &Label, now: EpochInUse) -> Result<bool, PoolError> {
        let Some(shared) = self.cluster.shared() else { return Ok(false) };
        let topology = self.epochs.write();
        if !topology.is_only_seen(before) {
            return Ok(false);
        }
        let gone = self.cluster.gone.lock().clone();
        let open: Open<'_> = &|m| self.open_member(m);
        let claims = match claim_what_answers(&shared, &now, &gone, open) {
            Ok(claims) => claims,
            Err(refused) => {
                drop(topology);
                match refused {
                    PoolError::EpochMoved { by, .. } => {
                        self.is_known_gone(by);
                    }
                    error => tracing::warn!(%error, "the epoch in force cannot be claimed"),
                }
                return Ok(false);
            }
        };
        tracing::warn!(
            pool = now.label.name,
            epoch = now.label.epoch.0,
            "a change of another node was abandoned: this node uses the epoch before it"
        );
        // No other change gets its number.
        self.epochs.attempted.fetch_max(before.epoch.0.max(claims.seen()), Ordering::AcqRel);
        self.use_seen(topology, now)?;
        drop(claims);
        Ok(true)
    }
}

/// Claims a change of `topology` on the members that answer, if the others can be spared. The next change
/// finds that those have failed.
fn claim_what_answers(
    shared: &Arc<Shared>,
    topology: &EpochInUse,
    gone: &[Life],
    open: Open<'_>,
) -> Result<Claims, PoolError> {
    let mut kept = topology.carrying();
    let mut lost = Vec::new();
    loop {
        let (member, error) = match Claims::take(shared, (topology, &kept), gone, open) {
            Ok(claims) => return Ok(claims),
            Err((member, PoolError::Device { source })) if !source.is_fenced() => (member, source),
            Err((_, error)) => return Err(error),
        };
        // What fails of one that is done without is another matter: each is left out once.
        let place = member.filter(|m| kept.contains(m)).and_then(|m| topology.index_of(m));
        lost.extend(place);
        if place.is_none() || kept.len() < 2 || !topology.can_lose_all(&lost) {
            return Err(PoolError::Device { source: error });
        }
        kept.retain(|m| Some(*m) != member);
    }
}
