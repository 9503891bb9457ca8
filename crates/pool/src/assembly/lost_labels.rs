//! Devices that have lost both labels, beside others of their pool: which members they are, as far as that can be told,
//! so that the user hears how to write the labels again, and not how to replace what is whole.
//!
//! Nothing is said of a device with something else on it, of one whose contents contradict that it is a member, and of
//! one with nothing on it where the member had something: that is another device.

use std::collections::BTreeSet;
use std::sync::Arc;

use braid_device::Device;
use braid_format::MemberIndex;
use braid_format::label::{Label, Member};

use super::member_verify::{SampleReport, verify_members};
use crate::error::{LostMember, PoolError};
use crate::labels::{Found, id, own_uuid};

/// Says which members have lost their labels, if all devices without one are members for certain.
pub(crate) fn lost_labels(found: &[Found]) -> Option<PoolError> {
    let (with, without): (Vec<&Found>, Vec<&Found>) =
        found.iter().partition(|f| f.newest().is_some());
    let label = with.iter().filter_map(|f| f.newest()).max_by_key(|l| l.epoch)?;
    if without.is_empty() || with.iter().any(|f| f.newest().is_some_and(|l| l.pool != label.pool)) {
        return None;
    }
    let known: Vec<(MemberIndex, Arc<dyn Device>)> = with
        .iter()
        .filter(|f| f.carries(id(label)))
        .filter_map(|f| Some((place(label, f)?, f.device.clone())))
        .collect();
    let here: BTreeSet<_> = with.iter().filter_map(|f| f.newest().and_then(own_uuid)).collect();
    let mut missing: Vec<(MemberIndex, &Member)> = (0_u16..)
        .map(MemberIndex)
        .zip(&label.members)
        .filter(|(_, m)| !here.contains(&m.uuid) && !m.offline)
        .collect();
    let mut lost = Vec::new();
    for device in without {
        let index = which(device, label, &missing, &known)?;
        missing.retain(|(m, _)| *m != index);
        lost.push(LostMember { index, path: device.path().to_owned() });
    }
    let others = with.iter().map(|f| f.path().to_owned()).collect();
    Some(PoolError::LabelsLost { name: label.name.clone(), lost, others })
}

fn place(label: &Label, found: &Found) -> Option<MemberIndex> {
    let own = found.newest().and_then(own_uuid);
    let place = label.members.iter().position(|m| Some(m.uuid) == own)?;
    u16::try_from(place).ok().map(MemberIndex)
}

/// Which of the missing members a device without labels is.
fn which(
    device: &Found,
    label: &Label,
    missing: &[(MemberIndex, &Member)],
    known: &[(MemberIndex, Arc<dyn Device>)],
) -> Option<MemberIndex> {
    let info = device.device.info();
    if device.of_another_version().is_some() || braid_device::probe(&*device.device).is_some() {
        return None;
    }
    let mut fit: Vec<_> = missing.iter().filter(|(_, m)| m.device_size == info.size).collect();
    // Where it was last seen counts, if nothing contradicts it.
    fit.sort_by_key(|(_, m)| m.path != info.name);
    let damaged = device.copies.iter().any(|c| c.as_ref().is_err_and(|fault| !fault.absent()));
    let reported = fit.iter().map(|(index, member)| {
        let claim = [(*index, device.device.clone())];
        let report = verify_members(label, known, &claim).pop().unwrap_or_default();
        (*index, member.path == info.name, report)
    });
    let reported: Vec<_> = reported.collect();
    let is = |(_, at_home, report): &&(MemberIndex, bool, SampleReport)| {
        let proven = report.agree > 0 || (damaged || *at_home) && report.blank == 0;
        proven && !report.contradicts()
    };
    let all: Vec<_> = reported.iter().filter(is).collect();
    match all.as_slice() {
        [] => None,
        [(index, ..)] | [(index, true, _), ..] => Some(*index),
        // Copies of a mirror are alike, and so are columns of which the parity only knows the sum. The one with
        // the most to say for it comes first; a restoration compares again.
        several => several.iter().max_by_key(|(_, _, report)| report.agree).map(|(m, ..)| *m),
    }
}
