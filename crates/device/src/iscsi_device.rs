//! A unit of an iSCSI target as a device.

use braid_format::ByteOffset;

use crate::iscsi::ToUnit;
use crate::{Abilities, Command, Completion, Device, DeviceError, DeviceInfo, IscsiDevice, Route};

impl Device for IscsiDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        ToUnit::new(self).submit(at, command)
    }
    fn abilities(&self) -> Abilities<'_> {
        Self::abilities(self)
    }
    fn route(&self) -> Route<'_> {
        Route::Unit(ToUnit::new(self))
    }
}
