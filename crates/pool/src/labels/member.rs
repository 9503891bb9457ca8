//! The entry of a member in a label: made from a device, and the words for its state.

use std::sync::Arc;

use braid_device::{Backing, Device, DeviceInfo, Session};
use braid_format::label::{DeviceClass, Label, Member, MemberState};
use braid_format::{Bytes, Epoch};

use crate::error::PoolError;
use crate::identity::fresh;

/// What is known of a device before it joins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hint {
    /// Bus or controller, from 1; 0 unknown.
    pub bus: u16,
    /// Bandwidth; 0 unknown.
    pub bytes_per_second: Bytes,
    /// Serial number or world-wide name.
    pub serial: String,
}

/// Two names of one device, or of devices that share bytes: links, the same node twice, a loop device and
/// the file under it.
pub(crate) fn same_device(a: &Arc<dyn Device>, b: &Arc<dyn Device>) -> bool {
    if Arc::ptr_eq(a, b) {
        return true;
    }
    let session = |d: &Arc<dyn Device>| d.abilities().session.map(Session::unit);
    if let (Some(a), Some(b)) = (session(a), session(b)) {
        return a == b;
    }
    let backing = |d: &Arc<dyn Device>| Backing::of(d.info().name.as_ref());
    backing(a).zip(backing(b)).is_some_and(|(a, b)| a.overlaps(&b))
}

pub(crate) fn member_of(device: &Arc<dyn Device>, hint: &Hint) -> Result<Member, PoolError> {
    let info = device.info();
    let copy1 = Label::copy1_at(info.size).ok_or_else(|| PoolError::TooSmall {
        path: info.name.clone(),
        size: info.size,
        needed: Bytes(Label::DATA_AT.0 + Label::ALIGN.0 + Label::TAIL.0),
    })?;
    let class = match (info.engine, info.rotational) {
        ("memory", _) => DeviceClass::Memory,
        (_, Some(true)) => DeviceClass::Rotational,
        (_, Some(false)) => DeviceClass::SolidState,
        (_, None) => DeviceClass::Unknown,
    };
    Ok(Member {
        uuid: fresh(),
        data_start: Label::DATA_AT,
        data_len: copy1 - Label::DATA_AT,
        // Whole sectors of the largest kind: the same file may be seen with other sectors later.
        device_size: Bytes(info.size.0 / Label::GRAIN as u64 * Label::GRAIN as u64),
        state: MemberState::Active,
        state_epoch: Epoch(1),
        suspected: false,
        offline: false,
        class,
        bytes_per_second: hint.bytes_per_second,
        bus: hint.bus,
        successor: None,
        path: kept_name(info),
        serial: hint.serial.clone(),
    })
}

/// A device's name for a label: processes with other working directories find it by that.
fn kept_name(info: &DeviceInfo) -> String {
    let path = info.is_path.then(|| std::path::absolute(&info.name).ok()).flatten();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| info.name.clone())
}

/// The bytes of `device` that a member in place of `old` must have.
pub(crate) fn fits(device: &Arc<dyn Device>, old: &Member) -> Result<Member, PoolError> {
    let mut new = member_of(device, &Hint::default())?;
    let end = old.data_start.0 + old.data_len.0;
    let available = new.data_start.0 + new.data_len.0;
    if available < end {
        return Err(PoolError::TooSmall {
            path: device.info().name.clone(),
            size: device.info().size,
            needed: Bytes(end + Label::TAIL.0),
        });
    }
    new.data_start = old.data_start;
    new.data_len = old.data_len;
    new.bus = old.bus;
    Ok(new)
}

/// The word for a member's state.
pub(crate) const fn state_word(state: MemberState) -> &'static str {
    match state {
        MemberState::Active => "active",
        MemberState::Failed => "failed",
        MemberState::Rebuilding => "being filled",
        MemberState::Spare => "a spare",
        MemberState::Leaving => "leaving",
    }
}
