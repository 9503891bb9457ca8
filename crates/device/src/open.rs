//! From a name to a device: a path, or a unit of an iSCSI target.

use std::path::Path;
use std::sync::Arc;

use crate::{
    Device, DeviceError, FileDevice, IscsiDevice, OpenOptions, UnitName, answers, bounded,
};

/// Opens what `name` says: `iscsi://...`, or the path of a block device or file. A device that has to be
/// asked first whether it answers is ([`answers`]); a caller that opens many has them all asked at once
/// before, by [`answers::silent`].
///
/// # Errors
/// [`DeviceError::Silent`]; as [`FileDevice::open`] and [`IscsiDevice::open`].
pub fn open(name: &Path, options: OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    if let Some(word) = name.to_str().filter(|word| UnitName::is_meant(word)) {
        return Ok(IscsiDevice::open(word, options)?);
    }
    match answers::is_silent(name) {
        Some(silent) => {
            Err(DeviceError::Silent { device: name.display().to_string().into(), silent })
        }
        None => Ok(bounded::as_asked(FileDevice::open(name, options)?)),
    }
}

/// Whether `name` is a path where something is, or names a unit (which only opening it tells). A device that
/// is silent is there.
pub fn exists(name: &Path) -> bool {
    answers::is_unit(name) || answers::is_silent(name).is_some() || name.exists()
}
