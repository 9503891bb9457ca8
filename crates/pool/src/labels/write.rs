//! Writing the labels of an epoch, and wiping labels.

use std::sync::Arc;

use braid_device::{AlignedBuf, Device, DeviceError, Op, Request, run};
use braid_format::label::Label;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use crate::error::PoolError;

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

/// Zeroes a label that stands behind the end of a member.
pub(crate) fn wipe_behind(device: &dyn Device, at: braid_format::ByteOffset) {
    let zeros = AlignedBuf::zeroed(Label::LEN_MAX);
    let path = &device.info().name;
    match device.write(at, &zeros).and_then(|()| device.flush()) {
        Ok(()) => tracing::info!(path, "an old label behind the end was wiped"),
        Err(error) => tracing::warn!(path, %error, "an old label stays behind the end"),
    }
}

/// Zeroes both labels of a device that had `size` bytes when it joined, and its boot sector if that is
/// Braid's.
pub(crate) fn wipe_labels(device: &dyn Device, size: Bytes) -> Result<(), DeviceError> {
    let zeros = AlignedBuf::zeroed(Label::LEN_MAX);
    for at in [Some(Label::COPY0_AT), Label::copy1_at(size)].into_iter().flatten() {
        device.write(at, &zeros)?;
        device.flush()?;
    }
    let mut first = first_sector(device);
    device.read(ByteOffset(0), &mut first)?;
    if first.starts_with(&Label::BOOT_SECTOR) {
        device.write(ByteOffset(0), &first_sector(device))?;
    }
    device.flush()
}

/// Writes the boot sector by which tools of others see that the device is not empty. It is durable with the
/// next flush.
pub(crate) fn write_boot_sector(device: &dyn Device) -> Result<(), DeviceError> {
    let mut first = first_sector(device);
    first.split_at_mut(Label::BOOT_SECTOR.len()).0.copy_from_slice(&Label::BOOT_SECTOR);
    device.write(ByteOffset(0), &first)
}

/// Room for the boot sector, zeroed: a whole sector.
fn first_sector(device: &dyn Device) -> AlignedBuf {
    AlignedBuf::zeroed(device.info().sector.to_usize().max(Label::BOOT_SECTOR.len()))
}

/// Zeroes both ends, so that no signature of the former owner remains.
pub(crate) fn wipe(device: &Arc<dyn Device>) -> Result<(), PoolError> {
    let zeros = AlignedBuf::zeroed(Label::DATA_AT.0.try_into().unwrap_or(1 << 20));
    let size = device.info().size.0 / device.info().sector.0 * device.info().sector.0;
    let tail = ByteOffset(size - zeros.len() as u64);
    for at in [ByteOffset(0), tail] {
        device.write(at, &zeros)?;
    }
    Ok(())
}
