//! Which label is in force, and what each device is to the pool that this label describes.

use std::collections::BTreeMap;

use braid_format::label::{Label, Member, MemberState};
use braid_format::{Bytes, Epoch, MemberIndex};
use uuid::Uuid;

use super::next::carries_labels;
use super::read::{Found, id, own_uuid};
use crate::error::{MissingMember, PoolError};

/// What a device is to the pool that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// A current member.
    Current(MemberIndex),
    /// Its label is of this older epoch.
    Stale(Epoch),
    /// Its label is of this newer epoch, which most members do not have.
    Ahead(Epoch),
    /// Not in the member table any more.
    Removed,
    /// Smaller than it was; it had this many bytes.
    Truncated(Bytes),
    /// It carries the same member's label as the device of this path.
    Duplicate(String, MemberIndex),
}

/// What the labels of one pool's devices say together.
#[derive(Debug, Clone)]
pub struct LabelAssessment {
    /// The label in force (of whichever member it was read from).
    pub label: Label,
    /// For each device, in the order given.
    pub verdicts: Vec<Verdict>,
    /// Members that no device carries.
    pub missing: Vec<MissingMember>,
}

/// Judges devices of one pool, each with at least one good label. `minority`: the operator says
/// that the members that are not there are lost, so no majority is needed.
///
/// # Errors
/// [`PoolError::Missing`] when so many members are missing that no epoch has a majority,
/// [`PoolError::NoMajority`] when the members contradict each other.
pub fn assess_labels(found: &[Found], minority: bool) -> Result<LabelAssessment, PoolError> {
    let mut first_with: BTreeMap<Uuid, usize> = BTreeMap::new();
    for (i, f) in found.iter().enumerate() {
        if let Some(uuid) = f.newest().and_then(own_uuid) {
            first_with.entry(uuid).or_insert(i);
        }
    }
    let voters: Vec<&Found> = first_with.values().filter_map(|i| found.get(*i)).collect();
    let newest =
        found.iter().filter_map(|f| f.newest().map(|l| (l, f.path()))).max_by_key(|(l, _)| l.epoch);
    let Some((highest, path)) = newest else { return Err(PoolError::NoDevices) };
    let Some(label) = in_force(&voters, minority) else {
        let mut missing = missing_of(highest, &first_with);
        // The label of a change that was broken off, and that called the missing members failed.
        if let Some(committed) = in_force(&voters, true).filter(|_| missing.is_empty()) {
            missing = missing_of(committed, &first_with);
        }
        let name = highest.name.clone();
        return Err(if missing.is_empty() {
            PoolError::NoMajority { name, highest: highest.epoch, path: path.to_owned() }
        } else {
            PoolError::Missing { name, missing }
        });
    };
    let verdicts =
        found.iter().enumerate().map(|(i, f)| verdict(i, f, label, found, &first_with)).collect();
    let missing = missing_of(label, &first_with);
    Ok(LabelAssessment { label: label.clone(), verdicts, missing })
}

/// The label that says that these devices' pool has ended, if one does that counts: as a second copy, so
/// the epoch is in force. Members may have been wiped since, so a majority is not asked for.
pub(crate) fn ended(found: &[Found]) -> Option<&Label> {
    let second = found.iter().filter_map(|f| f.copies[1].as_ref().ok());
    second.max_by_key(|l| l.epoch).filter(|l| l.ended)
}

/// The label of the highest committed epoch that stands on a majority.
fn in_force<'a>(voters: &[&'a Found], minority: bool) -> Option<&'a Label> {
    let mut labels: Vec<&Label> = voters.iter().flat_map(|f| f.labels()).collect();
    // If two labels claim one epoch, their order does not matter, but it must always be the same.
    labels.sort_by_key(|l| (core::cmp::Reverse(l.epoch), l.change_id));
    labels.into_iter().find(|label| {
        let carried = |m: &&Member| {
            let here = |v: &&&Found| v.newest().and_then(own_uuid) == Some(m.uuid);
            voters.iter().find(here).is_some_and(|v| v.carries(id(label)))
        };
        let in_sync = || label.members.iter().filter(|m| counts(m));
        let (members, carriers) = (in_sync().count(), in_sync().filter(carried).count());
        let committed = on_all(label, carried) || voters.iter().any(|v| second(v, label));
        committed && (minority || carriers * 2 > members)
    })
}

/// Whether copy 0 of a label was durable everywhere, as far as can be seen: every member that gets
/// labels has it, in use or not, as `carried` says.
pub(crate) fn on_all(label: &Label, carried: impl Fn(&&Member) -> bool) -> bool {
    label.members.iter().filter(|m| carries_labels(m)).all(|m| carried(&m))
}

/// Whether a device has `label` in its copy 1.
pub(crate) fn second(found: &Found, label: &Label) -> bool {
    found.copies[1].as_ref().is_ok_and(|l| id(l) == id(label))
}

/// Whether a member's label counts: what is in use of it is current.
pub(crate) fn counts(member: &Member) -> bool {
    match member.state {
        MemberState::Active => true,
        MemberState::Leaving => member.successor.is_some(),
        _ => false,
    }
}

fn missing_of(label: &Label, present: &BTreeMap<Uuid, usize>) -> Vec<MissingMember> {
    (0_u16..)
        .zip(&label.members)
        .filter(|(_, m)| carries_labels(m) && !present.contains_key(&m.uuid))
        .map(|(i, m)| MissingMember::of(MemberIndex(i), m))
        .collect()
}

/// Whether the newest label of a device is of an unfinished change: it was also to be written to another device, which
/// is here and whose newest label is `label`.
fn is_unfinished(device: &Found, label: &Label, all: &[Found]) -> bool {
    let Some((unfinished, _)) = device.unfinished_change(label) else { return false };
    let current = all.iter().filter_map(Found::newest).filter(|l| id(l) == id(label));
    let gets_it =
        |uuid: Uuid| unfinished.members.iter().any(|m| m.uuid == uuid && carries_labels(m));
    current.filter_map(own_uuid).any(gets_it)
}

fn verdict(
    i: usize,
    device: &Found,
    label: &Label,
    all: &[Found],
    first_with: &BTreeMap<Uuid, usize>,
) -> Verdict {
    let own = device.newest();
    let uuid = own.and_then(own_uuid);
    let place = label.members.iter().position(|m| Some(m.uuid) == uuid);
    let index = MemberIndex(place.and_then(|p| u16::try_from(p).ok()).unwrap_or(u16::MAX));
    let first = uuid.and_then(|u| first_with.get(&u)).copied().unwrap_or(i);
    if let Some(other) = all.get(first).filter(|_| first != i) {
        return Verdict::Duplicate(other.path().to_owned(), index);
    }
    let Some(member) = place.and_then(|p| label.members.get(p)) else { return Verdict::Removed };
    if device.device.info().size < member.device_size {
        return Verdict::Truncated(member.device_size);
    }
    let epoch = own.map_or(Epoch(0), |l| l.epoch);
    if device.carries(id(label)) {
        Verdict::Current(index)
    } else if epoch > label.epoch && !is_unfinished(device, label, all) {
        Verdict::Ahead(epoch)
    } else {
        Verdict::Stale(epoch)
    }
}
