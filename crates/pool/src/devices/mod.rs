//! What stands in for a member's device: one that is not there, one that this host does not see in
//! full, and one whose contents are being moved to another.

pub(crate) mod absent;
pub(crate) mod copy_sector;
pub(crate) mod migration;
pub(crate) mod range_locks;

use std::io::ErrorKind;
use std::sync::Arc;

use braid_device::{AnswerBound, Device, DeviceError};

/// Whether something that was asked of a device and given up may yet be done.
pub(crate) fn is_late(device: &Arc<dyn Device>) -> bool {
    device.abilities().bound.is_some_and(AnswerBound::has_late)
}

/// Whether a discard has ended, without success. If its session broke, nobody knows: the discard
/// may still land, after another node has written there. Then it counts as a failed write.
pub(crate) fn is_refusal(error: &DeviceError) -> bool {
    let DeviceError::Io { source, .. } = error else { return false };
    let answered = matches!(source.kind(), ErrorKind::Other | ErrorKind::ResourceBusy);
    source.raw_os_error().is_some() || answered
}
