//! What else may stand on a device.

use braid_device::Device;

/// The foreign signature on `device`, in words.
pub(crate) fn on(_device: &dyn Device) -> Option<String> {
    None
}
