//! Reading both labels of a device.

use std::sync::Arc;

use braid_device::{AlignedBuf, Device};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{ByteOffset, Bytes, Epoch, FormatError};
use uuid::Uuid;

use super::next::carries_labels;
use crate::error::{LabelFault, PoolError};

/// What is in the place of a label.
pub type Copy = Result<Label, LabelFault>;

/// A device and the two labels found on it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Copy 0 and copy 1.
    pub copies: [Copy; 2],
}

/// Names an epoch: the number, and which change it was.
pub(crate) type EpochId = (Epoch, Uuid);

pub(crate) fn id(label: &Label) -> EpochId {
    (label.epoch, label.change_id)
}

impl Found {
    /// Reads both labels of `device`; what is absent, damaged or unreadable is said in `copies`.
    pub fn read(device: Arc<dyn Device>) -> Self {
        let size = device.info().size;
        let first = read_copy(&device, 0, Some(Label::COPY0_AT));
        // A device that has grown has its second label where its end was.
        let joined = first.as_ref().ok().and_then(|l| l.members.get(usize::from(l.member.0)));
        let at_join = joined.and_then(|m| Label::copy1_at(m.device_size));
        let mut second = read_copy(&device, 1, at_join.or(Label::copy1_at(size)));
        if let (Ok(a), Ok(b)) = (&first, &second)
            && (a.pool, own_uuid(a)) != (b.pool, own_uuid(b))
        {
            // Left over from another life of the device: copy 0 is written first.
            let what = "pool label";
            let other = FormatError::BadField { what, at: size.0, field: "member", value: 0 };
            second = Err(other.into());
        }
        Self { device, copies: [first, second] }
    }

    /// The device's path.
    pub fn path(&self) -> &str {
        &self.device.info().name
    }

    /// The label of the highest epoch on this device.
    pub fn newest(&self) -> Option<&Label> {
        self.labels().max_by_key(|l| l.epoch)
    }

    /// The good labels.
    pub fn labels(&self) -> impl Iterator<Item = &Label> {
        self.copies.iter().filter_map(|c| c.as_ref().ok())
    }

    pub(crate) fn carries(&self, epoch: EpochId) -> bool {
        self.labels().any(|l| id(l) == epoch)
    }

    /// Whether the device was a member that `label`, which is in force, calls failed: then it is not used, whatever it
    /// holds. A device that was used since, without the others, is reported in another way.
    pub fn has_failed(&self, label: &Label) -> bool {
        let Some(failed) = self.failed_at(label) else { return false };
        let used = self.unfinished_change(label).map_or(self.newest(), |(_, before)| Some(before));
        used.is_some_and(|l| l.epoch < failed) || self.offline_epoch() == Some(failed)
    }

    /// The label of an unfinished change (copy 0), and the label before it (copy 1), if a change was begun on this
    /// device and never came into force: it was also to be written to another member, and that one carries `label`,
    /// which is in force and calls this device failed. The device was used by the label in copy 1, never by copy 0: a
    /// change is in force once its copy 0 stands on all of its members, and whoever changed the pool next would have
    /// found it on the other member.
    pub(crate) fn unfinished_change(&self, label: &Label) -> Option<(&Label, &Label)> {
        let [Ok(first), Ok(second)] = &self.copies else { return None };
        // This device is none of these: `label` calls it failed.
        let carries = |uuid| label.members.iter().any(|m| m.uuid == uuid && carries_labels(m));
        let is_unfinished = second.epoch < first.epoch
            && self.failed_at(label).is_some_and(|failed| failed <= first.epoch)
            && first.members.iter().any(|m| carries_labels(m) && carries(m.uuid));
        is_unfinished.then_some((first, second))
    }

    /// The epoch in which its own member went offline, if its own label says that it is: nobody has written there since.
    pub(crate) fn offline_epoch(&self) -> Option<Epoch> {
        let label = self.newest()?;
        let own = label.members.get(usize::from(label.member.0))?;
        own.is_offline().then_some(own.state_epoch)
    }

    /// The epoch since which `label` calls the device a failed member, if it does.
    pub(crate) fn failed_at(&self, label: &Label) -> Option<Epoch> {
        let own = self.newest().and_then(own_uuid);
        let failed = |m: &&Member| m.state == MemberState::Failed;
        let mut failed = label.members.iter().filter(failed);
        failed.find(|m| Some(m.uuid) == own).map(|m| m.state_epoch)
    }

    /// That this device has a sound label which this version cannot read, if that is so.
    pub(crate) fn of_another_version(&self) -> Option<PoolError> {
        let mut faults = self.copies.iter().filter_map(|copy| copy.as_ref().err());
        let fault = faults.find(|fault| fault.is_of_another_version())?;
        Some(PoolError::OtherLabel { path: self.path().to_owned(), fault: Box::new(fault.clone()) })
    }

    /// Why this device, which has no good label, is no member.
    pub fn refusal(&self) -> PoolError {
        let path = self.path().to_owned();
        if let Some(other) = self.of_another_version() {
            return other;
        }
        match &self.copies {
            [Err(first), Err(second)] if !(first.absent() && second.absent()) => {
                PoolError::LabelsDamaged {
                    path,
                    first: Box::new(first.clone()),
                    second: Box::new(second.clone()),
                }
            }
            _ => PoolError::NotAMember {
                path,
                found: braid_device::probe(&*self.device).map(|f| f.to_string()),
            },
        }
    }
}

/// Reads are repeated so often while a node changes the labels.
const READS_MAX: usize = 16;

/// The labels of the devices of `found`, and what `judge` makes of them.
///
/// A node may be changing the pool just now: labels that were read before and after that contradict each
/// other. So if `judge` finds something wrong all are read again, until they stay as they are.
pub(crate) fn settle<T, E>(
    mut found: Vec<Found>,
    judge: impl Fn(&[Found]) -> Result<T, E>,
) -> (Vec<Found>, Result<T, E>) {
    for _ in 1..READS_MAX {
        let judged = judge(&found);
        if judged.is_ok() {
            return (found, judged);
        }
        let again: Vec<_> = found.iter().map(|f| Found::read(f.device.clone())).collect();
        let same = |(a, b): (&Found, &Found)| a.labels().map(id).eq(b.labels().map(id));
        if found.iter().zip(&again).all(same) {
            return (found, judged);
        }
        found = again;
    }
    let judged = judge(&found);
    (found, judged)
}

pub(crate) fn own_uuid(label: &Label) -> Option<Uuid> {
    label.members.get(usize::from(label.member.0)).map(|m| m.uuid)
}

/// Bytes of a label that are read at a time where not all can be.
const PIECE: usize = 8192;

/// Reads and verifies the copy at `at`; a place the device does not have holds nothing.
fn read_copy(device: &Arc<dyn Device>, copy: u32, at: Option<ByteOffset>) -> Copy {
    let what = "pool label";
    let size = device.info().size;
    let at = at.filter(|at| at.0 < size.0).ok_or(FormatError::TooShort { what, len: 0 })?;
    let room = (size.0 - at.0).min(Label::LEN_MAX as u64);
    let len = room / device.info().sector.0 * device.info().sector.0;
    let mut buf = AlignedBuf::zeroed(Bytes(len).to_usize());
    if let Err(error) = device.read(at, &mut buf) {
        // A label is mostly shorter than the room it has: what is bad may be behind it.
        buf.fill(0);
        let pieces = (0_usize..).step_by(PIECE).zip(buf.chunks_mut(PIECE));
        for (from, piece) in pieces {
            if device.read(at + Bytes::from(from), piece).is_err() {
                piece.fill(0);
                break;
            }
        }
        if Label::decode(&buf, at).is_err() {
            return Err(error.into());
        }
    }
    let (label, found) = Label::decode(&buf, at)?;
    if found != copy {
        let value = found.into();
        return Err(FormatError::BadField { what, at: at.0, field: "copy", value }.into());
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use braid_device::{CommandKind, Rule, ScriptedDevice};

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn a_label_is_read_although_the_room_behind_it_cannot_be() {
        let device = Pool::for_tests(1, Bytes(8 << 20)).devices().remove(0);
        let at = Label::copy1_at(device.info().size).unwrap().0;
        let good = |from: u64, to: u64| {
            let bad = ScriptedDevice::over(device.clone());
            bad.add(Rule::on(&[CommandKind::Read]).overlapping(at + from..at + to).fails());
            let found = Found::read(bad);
            assert!(found.copies[0].is_ok());
            found.copies[1].is_ok()
        };
        assert!(good(64 << 10, 65 << 10));
        assert!(!good(0, 512) && !good(512, 1024));
    }
}
