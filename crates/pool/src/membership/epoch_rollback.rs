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
//!   the epoch in force if its own is in force no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_device::{AlignedBuf, Device, DeviceError};
use braid_format::label::{Label, Member, MemberState};
use braid_format::lock_record::Life;

use super::claims::{Claims, Open, Refused};
use crate::cluster::Shared;
use crate::devices::absent::AbsentDevice;
use crate::error::PoolError;
use crate::labels::{Found, carriers, id, own_uuid, second, write_copies, write_second};
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::topology::Topology;

/// An epoch above that of `topology`, begun on the members `found`, that is in force by the labels of
/// members that are new in it.
pub(crate) fn in_force(topology: &Topology, found: &[Found], open: Open<'_>) -> Option<Label> {
    let ours = &topology.label;
    let newer = |l: &&Label| l.pool == ours.pool && l.epoch > ours.epoch;
    let mut begun: Vec<&Label> = found.iter().flat_map(Found::labels).filter(newer).collect();
    begun.sort_by_key(|l| (core::cmp::Reverse(l.epoch), l.change_id));
    begun.dedup_by_key(|l| id(l));
    let stands = |label: &Label, m: &Member| {
        let device = open(m).map(Found::read);
        device.is_some_and(|f| second(&f, label) && f.newest().and_then(own_uuid) == Some(m.uuid))
    };
    let is_new =
        |m: &&Member| m.state != MemberState::Failed && topology.index_of(m.uuid).is_none();
    let label = begun.into_iter().find(|l| l.members.iter().filter(is_new).any(|m| stands(l, m)));
    label.cloned()
}

/// Writes both labels of the epoch `label` on those of its members that are in `topology`, durably: all
/// see it then. The caller has claimed the change.
///
/// # Errors
/// None of them takes its second label.
pub(crate) fn complete(topology: &Topology, label: &Label) -> Result<(), Refused> {
    let place = |m: &Member| topology.index_of(m.uuid).map(|i| usize::from(i.0));
    let known = |m: &Member| topology.devices.get(place(m)?).cloned();
    let devices: Vec<Arc<dyn Device>> =
        label.members.iter().map(|m| known(m).unwrap_or_else(|| AbsentDevice::of(m))).collect();
    let stays = |i: &usize| label.members.get(*i).is_some_and(|m| known(m).is_some());
    let mut which: Vec<usize> = carriers(label).into_iter().filter(stays).collect();
    which.retain(|i| {
        let has = |d: &Arc<dyn Device>| Found::read(d.clone()).carries(id(label));
        devices.get(*i).is_some_and(has)
            || write_copies(&devices, label, 0, &[*i])
                .inspect_err(|error| tracing::warn!(%error, "a label could not be written"))
                .is_ok()
    });
    let mut unwritten = write_second(&devices, label, &which);
    if unwritten.len() < which.len() || which.is_empty() {
        tracing::warn!(
            pool = label.name,
            epoch = label.epoch.0,
            "a change of another node, which died over it, is brought to its end"
        );
        return Ok(());
    }
    let (member, error) = unwritten.swap_remove(0);
    Err((label.members.get(usize::from(member.0)).map(|m| m.uuid), error))
}

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
                tracing::warn!(%error, "the label of a change that failed stays on a device");
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
            "a change of another node has come to nothing: the epoch before it is used"
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
