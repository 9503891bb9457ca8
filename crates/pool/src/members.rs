//! Labels on devices: reading both copies, judging many members together, writing an epoch.
//!
//! An epoch is written in two phases: copy 0 on every member, flush, then copy 1 on every member,
//! flush. So each member always has one whole label, and:
//! * copy 1 of any member carries the epoch => copy 0 of every member does: it is *committed*;
//! * no copy 1 carries it, and some member's copy 0 does not: it was never in use, and every
//!   member's copy 1 still carries the one before: the pool goes back to that.
//!
//! The highest committed epoch that stands on a majority of its own members is in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_device::{AlignedBuf, Device, Op, Request, run};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{ByteOffset, Bytes, Epoch, FormatError, MemberIndex};
use uuid::Uuid;

use crate::error::{LabelFault, MissingMember, PoolError};

/// What stands where a label should.
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

    /// Whether the device was a member that `label` calls failed: it is not used, whatever stands
    /// on it. One that was used since, without the others, is another matter.
    pub fn has_failed(&self, label: &Label) -> bool {
        let epoch = self.newest().map(|l| l.epoch);
        self.failed_at(label).is_some_and(|failed| epoch < Some(failed))
    }

    /// The epoch since which `label` calls the device a failed member, if it does.
    pub(crate) fn failed_at(&self, label: &Label) -> Option<Epoch> {
        let own = self.newest().and_then(own_uuid);
        let failed = |m: &&braid_format::label::Member| m.state == MemberState::Failed;
        let mut failed = label.members.iter().filter(failed);
        failed.find(|m| Some(m.uuid) == own).map(|m| m.state_epoch)
    }

    /// Why this device, which has no good label, is no member.
    pub fn refusal(&self) -> PoolError {
        let path = self.path().to_owned();
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
        // Of a change that was broken off, which called failed whoever is not there.
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

/// The label of the highest committed epoch that stands on a majority.
fn in_force<'a>(voters: &[&'a Found], minority: bool) -> Option<&'a Label> {
    let mut labels: Vec<&Label> = voters.iter().flat_map(|f| f.labels()).collect();
    // The order of two that claim one epoch is any, but not by chance.
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
    label.members.iter().filter(|m| m.state != MemberState::Failed).all(|m| carried(&m))
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
        .filter(|(_, m)| m.state != MemberState::Failed && !present.contains_key(&m.uuid))
        .map(|(i, m)| MissingMember {
            index: MemberIndex(i),
            uuid: m.uuid,
            last_path: m.path.clone(),
        })
        .collect()
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
    } else if epoch > label.epoch {
        Verdict::Ahead(epoch)
    } else {
        Verdict::Stale(epoch)
    }
}

/// Writes `label` on `devices` (in member order): copy 0 everywhere, flush, copy 1 everywhere,
/// flush. On return it is durable on all of them.
///
/// # Errors
/// [`PoolError::Label`] before anything is written, [`PoolError::Device`] in between: the pool
/// then has the old label or the new one, never a mixture.
pub fn write_epoch(devices: &[Arc<dyn Device>], label: &Label) -> Result<(), PoolError> {
    for copy in [0, 1] {
        let all: Vec<usize> = (0..devices.len()).collect();
        write_copies(devices, label, copy, &all)?;
    }
    Ok(())
}

/// Writes copy 1 of `label`, whose copies 0 are durable everywhere, on the members in `which`: the
/// epoch is in force, whatever becomes of these. The members that do not have it, and why.
pub(crate) fn write_second(
    devices: &[Arc<dyn Device>],
    label: &Label,
    which: &[usize],
) -> Vec<(MemberIndex, PoolError)> {
    let mut failed = Vec::new();
    let mut written: Vec<Image<'_>> = Vec::with_capacity(which.len());
    for i in which {
        match image(devices, label, 1, *i) {
            Ok(image) => written.extend(image),
            Err(error) => failed.push(error),
        }
    }
    let mut writes: Vec<Request<'_>> = written.iter().map(Image::write).collect();
    run(&mut writes);
    let results: Vec<_> = writes.into_iter().map(|r| r.result).collect();
    let mut results = results.into_iter();
    written.retain(|image| match results.next() {
        Some(Err(error)) => {
            failed.push((image.member, error.into()));
            false
        }
        _ => true,
    });
    let mut flushes: Vec<Request<'_>> =
        written.iter().map(|i| Request::flush(&**i.device)).collect();
    run(&mut flushes);
    for (image, flush) in written.iter().zip(flushes) {
        failed.extend(flush.result.err().map(|e| (image.member, e.into())));
    }
    failed
}

/// Writes copy `copy` of `label` on the members in `which`, all at once, and flushes them.
///
/// # Errors
/// As [`write_epoch`].
pub fn write_copies(
    devices: &[Arc<dyn Device>],
    label: &Label,
    copy: u32,
    which: &[usize],
) -> Result<(), PoolError> {
    try_copies(devices, label, copy, which).map_err(|(_, error)| error)
}

/// [`write_copies`].
///
/// # Errors
/// The member that failed first, and how.
pub(crate) fn try_copies(
    devices: &[Arc<dyn Device>],
    label: &Label,
    copy: u32,
    which: &[usize],
) -> Result<(), (MemberIndex, PoolError)> {
    let mut images = Vec::with_capacity(which.len());
    for i in which {
        images.extend(image(devices, label, copy, *i)?);
    }
    let mut writes: Vec<Request<'_>> = images.iter().map(Image::write).collect();
    let members: Vec<MemberIndex> = images.iter().map(|i| i.member).collect();
    finish(&mut writes, &members)?;
    let flushes = images.iter().map(|i| Request::flush(&**i.device));
    finish(&mut flushes.collect::<Vec<_>>(), &members)
}

/// A label as one member gets it.
struct Image<'a> {
    member: MemberIndex,
    device: &'a Arc<dyn Device>,
    at: ByteOffset,
    bytes: AlignedBuf,
}

impl Image<'_> {
    fn write(&self) -> Request<'_> {
        Request::new(&**self.device, self.at, Op::Write(&self.bytes))
    }
}

/// Copy `copy` of `label` for member `i`; `None`: there is no such member.
fn image<'a>(
    devices: &'a [Arc<dyn Device>],
    label: &Label,
    copy: u32,
    i: usize,
) -> Result<Option<Image<'a>>, (MemberIndex, PoolError)> {
    let index = MemberIndex(u16::try_from(i).unwrap_or(u16::MAX));
    let (Some(device), Some(member)) = (devices.get(i), label.members.get(i)) else {
        return Ok(None);
    };
    let path = || device.info().name.clone();
    let second = Label::copy1_at(member.device_size);
    let at = if copy == 0 { Some(Label::COPY0_AT) } else { second };
    let too_small = || PoolError::TooSmall {
        path: path(),
        size: member.device_size,
        needed: Bytes(Label::DATA_AT.0 + Label::ALIGN.0 + Label::TAIL.0),
    };
    let at = at.ok_or_else(|| (index, too_small()))?;
    let mut own = label.clone();
    own.member = index;
    let mut bytes = AlignedBuf::zeroed(own.encoded_len());
    own.encode(copy, at, &mut bytes)
        .map_err(|source| (index, PoolError::Label { path: path(), source: Box::new(source) }))?;
    Ok(Some(Image { member: index, device, at, bytes }))
}

/// Runs a request for each of `members`; the first failure is the result.
fn finish(
    requests: &mut [Request<'_>],
    members: &[MemberIndex],
) -> Result<(), (MemberIndex, PoolError)> {
    run(requests);
    for (r, member) in requests.iter_mut().zip(members) {
        core::mem::replace(&mut r.result, Ok(())).map_err(|e| (*member, e.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use braid_device::{DeviceError, pass_on};

    use super::*;
    use crate::Pool;

    /// A device of which bytes from one place to another cannot be read.
    #[derive(Debug)]
    struct Bad(Arc<dyn Device>, u64, u64);

    impl Device for Bad {
        fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
            if at.0 < self.2 && at.0 + buf.len() as u64 > self.1 {
                let device = self.info().name.as_str().into();
                return Err(DeviceError::Injected { device, operation: "read", at });
            }
            self.0.read(at, buf)
        }
        pass_on!(0: info write flush compare_and_write discard write_zeroes lock_byte byte_locked);
    }

    #[test]
    fn a_label_is_read_although_the_room_behind_it_cannot_be() {
        let device = Pool::for_tests(1, Bytes(8 << 20)).devices().remove(0);
        let at = Label::copy1_at(device.info().size).unwrap().0;
        let good = |from: u64, to: u64| {
            let found = Found::read(Arc::new(Bad(device.clone(), at + from, at + to)));
            assert!(found.copies[0].is_ok());
            found.copies[1].is_ok()
        };
        assert!(good(64 << 10, 65 << 10));
        assert!(!good(0, 512) && !good(512, 1024));
    }
}
