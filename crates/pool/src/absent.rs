//! A member that is not there.

use std::io;
use std::sync::Arc;

use braid_device::{ByteLockGuard, Capabilities, CawOutcome, Device, DeviceError, DeviceInfo};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes};

/// Stands for a member whose device was not found: every operation fails.
#[derive(Debug)]
pub(crate) struct AbsentDevice {
    info: DeviceInfo,
}

impl AbsentDevice {
    /// In place of `member`.
    pub fn of(member: &Member) -> Arc<dyn Device> {
        let info = DeviceInfo {
            name: format!("{} (missing)", member.path),
            size: member.device_size,
            // The smallest: it must not decide how others are read.
            sector: Bytes(512),
            physical_sector: Bytes(Label::GRAIN as u64),
            is_block: false,
            read_only: false,
            rotational: None,
            caps: Capabilities::default(),
            engine: "absent",
        };
        Arc::new(Self { info })
    }

    fn fail<T>(&self, operation: &'static str, at: ByteOffset) -> Result<T, DeviceError> {
        let device = self.info.name.as_str().into();
        let source = Arc::new(io::Error::from(io::ErrorKind::NotFound));
        Err(DeviceError::Io { device, operation, at, source })
    }
}

impl Device for AbsentDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, at: ByteOffset, _: &mut [u8]) -> Result<(), DeviceError> {
        self.fail("read", at)
    }
    fn write(&self, at: ByteOffset, _: &[u8]) -> Result<(), DeviceError> {
        self.fail("write", at)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.fail("flush", ByteOffset(0))
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        _: &[u8],
        _: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.fail("compare-and-write", at)
    }
    fn discard(&self, at: ByteOffset, _: Bytes) -> Result<(), DeviceError> {
        self.fail("discard", at)
    }
    fn write_zeroes(&self, at: ByteOffset, _: Bytes) -> Result<(), DeviceError> {
        self.fail("write", at)
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.fail("lock byte", ByteOffset(byte))
    }
    /// The other members say who lives.
    fn byte_locked(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
}
