//! From a name to a device: a path, or a unit of an iSCSI target.

use std::path::Path;
use std::sync::Arc;

use crate::{Device, DeviceError, FileDevice, IscsiDevice, OpenOptions, UnitName};

/// Opens what `name` says: `iscsi://...`, or the path of a block device or file.
///
/// # Errors
/// As [`FileDevice::open`] and [`IscsiDevice::open`].
pub fn open(name: &Path, options: OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    match name.to_str() {
        Some(word) if UnitName::is_meant(word) => Ok(IscsiDevice::open(word, options)?),
        _ => Ok(FileDevice::open(name, options)?),
    }
}

/// Whether `name` is a path where something is, or names a unit (which only opening it tells).
pub fn exists(name: &Path) -> bool {
    name.to_str().is_some_and(UnitName::is_meant) || name.exists()
}
