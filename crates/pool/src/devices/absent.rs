//! A member whose device was not found, and a member whose device this host does not see in full.

use std::io;
use std::sync::Arc;

use braid_device::{ByteLockGuard, Capabilities, CawOutcome, Device, DeviceError, DeviceInfo};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes};
use parking_lot::RwLock;

use crate::simulation::Opener;

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
            lock_place: None,
            compares_by_lock: false,
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
    /// The other members show which nodes live.
    fn byte_locked(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
}

/// Stands for a member whose device has grown, which this host does not see yet: what it sees is
/// used. When more is asked for the device is looked at again.
pub(crate) struct ShortDevice {
    /// As it is where its growth is seen.
    info: DeviceInfo,
    member: Member,
    seen: RwLock<Arc<dyn Device>>,
    open: Opener,
}

impl std::fmt::Debug for ShortDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShortDevice").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl ShortDevice {
    /// `seen` is the device of `member`, as far as this host knows.
    pub fn over(seen: Arc<dyn Device>, member: &Member, open: Opener) -> Arc<dyn Device> {
        let info = DeviceInfo { size: member.device_size, ..seen.info().clone() };
        Arc::new(Self { info, member: member.clone(), seen: RwLock::new(seen), open })
    }

    /// The device, with all bytes of a range.
    fn whole(&self, at: ByteOffset, len: Bytes) -> Result<Arc<dyn Device>, DeviceError> {
        let seen = self.seen.read().clone();
        let Err(short) = seen.info().check(at, len) else { return Ok(seen) };
        let Some(now) = (self.open)(&self.member) else { return Err(short) };
        now.info().check(at, len)?;
        tracing::warn!(path = self.info.name, "this node sees now that the device has grown");
        *self.seen.write() = now.clone();
        Ok(now)
    }

    fn now(&self) -> Arc<dyn Device> {
        self.seen.read().clone()
    }
}

impl Device for ShortDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.whole(at, Bytes::from(buf.len()))?.read(at, buf)
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        self.whole(at, Bytes::from(buf.len()))?.write(at, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.now().flush()
    }
    fn intact(&self) -> Result<(), DeviceError> {
        self.now().intact()
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        self.whole(at, Bytes::from(new.len()))?.compare_and_write(at, expected, new)
    }
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.whole(at, len)?.discard(at, len)
    }
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.whole(at, len)?.write_zeroes(at, len)
    }
    fn deallocate(&self, at: ByteOffset, len: Bytes) -> Result<bool, DeviceError> {
        self.whole(at, len)?.deallocate(at, len)
    }
    fn sever(&self) {
        self.now().sever();
    }
    fn lease(&self, until: std::time::Instant) {
        self.now().lease(until);
    }
    fn answers_within(&self, time: std::time::Duration) {
        self.now().answers_within(time);
    }
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        self.now().lock_byte(byte)
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().byte_locked(byte)
    }
    fn byte_held(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().byte_held(byte)
    }
    fn settle_byte(&self, byte: u64) -> Result<bool, DeviceError> {
        self.now().settle_byte(byte)
    }
}
