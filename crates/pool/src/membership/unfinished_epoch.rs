//! An epoch that a dead node began, and that is in force by the labels of joining devices alone.
//!
//! A joining device's second label is written first ([`super::epoch_rollback`]). So the node that claims the
//! next change looks at joining devices, too. If one of them has its second label, the node completes that
//! epoch, and follows it.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Label, Member, MemberState};
use uuid::Uuid;

use crate::devices::absent::AbsentDevice;
use crate::error::PoolError;
use crate::labels::{Found, carriers, id, own_uuid, second, write_copies, write_second};
use crate::topology::Topology;

/// Why an epoch was not put in force; by which member, if one failed.
pub(crate) type Refused = (Option<Uuid>, PoolError);

/// Finds the device of a member.
pub(crate) type Open<'a> = &'a dyn Fn(&Member) -> Option<Arc<dyn Device>>;

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
            "completing a change of another node, which died while making it"
        );
        return Ok(());
    }
    let (member, error) = unwritten.swap_remove(0);
    Err((label.members.get(usize::from(member.0)).map(|m| m.uuid), error))
}
