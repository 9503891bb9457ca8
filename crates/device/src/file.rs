//! Files and block devices.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use parking_lot::Mutex;

use crate::{ByteLockGuard, Capabilities, CawOutcome, Device, DeviceError, DeviceInfo};

/// Past the page cache?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system has it.
    #[default]
    Auto,
    /// Or fail.
    Yes,
    /// Never.
    No,
}

/// How to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// No writes.
    pub read_only: bool,
    /// Past the page cache?
    pub direct: Direct,
    /// Refuse a device that is in use.
    pub exclusive: bool,
}

/// The engine that devices use on this machine.
pub fn default_engine() -> &'static str {
    "pread"
}

/// What uses the device at `path` (mounted, claimed exclusively), if anything does.
///
/// # Errors
/// The path cannot be examined.
pub fn in_use(_path: &Path) -> Result<Option<String>, DeviceError> {
    Ok(None)
}

/// A file or block device.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    file: File,
    caw: Mutex<()>,
}

impl FileDevice {
    /// Opens `path`.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn open(path: &Path, options: OpenOptions) -> Result<Arc<Self>, DeviceError> {
        let name = path.display().to_string();
        let wrap = |e: std::io::Error| DeviceError::Io {
            device: name.as_str().into(),
            operation: "open",
            at: ByteOffset(0),
            source: Arc::new(e),
        };
        let file = File::options().read(true).write(!options.read_only).open(path).map_err(wrap)?;
        let meta = file.metadata().map_err(wrap)?;
        let mut size = meta.len();
        if meta.file_type().is_block_device() {
            use std::io::Seek;
            size = (&file).seek(std::io::SeekFrom::End(0)).map_err(wrap)?;
        }
        let sector = Bytes(512);
        let info = DeviceInfo {
            name: name.clone(),
            size: Bytes(size),
            sector,
            physical_sector: sector,
            is_block: meta.file_type().is_block_device(),
            read_only: options.read_only,
            rotational: None,
            caps: Capabilities {
                compare_and_write: true,
                atomic_write: sector,
                ..Capabilities::default()
            },
            engine: "pread",
        };
        Ok(Arc::new(Self { info, file, caw: Mutex::new(()) }))
    }
    fn wrap(&self, operation: &'static str, at: ByteOffset, e: std::io::Error) -> DeviceError {
        DeviceError::Io {
            device: self.info.name.as_str().into(),
            operation,
            at,
            source: Arc::new(e),
        }
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_exact_at(buf, at.get()).map_err(|e| self.wrap("read", at, e))
    }
    fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
        self.file.write_all_at(buf, at.get()).map_err(|e| self.wrap("write", at, e))
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|e| self.wrap("flush", ByteOffset(0), e))
    }
    fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, DeviceError> {
        let _one = self.caw.lock();
        let mut now = vec![0; new.len()];
        self.read(at, &mut now)?;
        if now != expected {
            return Ok(CawOutcome::Mismatch(now));
        }
        self.write(at, new)?;
        Ok(CawOutcome::Written)
    }
    fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.write_zeroes(at, len)
    }
    fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), DeviceError> {
        self.write(at, &vec![0; len.to_usize()])
    }
    fn as_raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
    fn lock_byte(&self, _byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        Ok(Some(ByteLockGuard(Box::new(()))))
    }
    fn byte_locked(&self, _byte: u64) -> Result<bool, DeviceError> {
        Ok(true)
    }
}
