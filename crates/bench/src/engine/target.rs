//! A target: the file or block device that is measured.
//!
//! A benchmark that writes destroys data. A device that is in use, belongs to a pool or holds something
//! known is written only with `--force-destroy`.

use std::fs::{File, OpenOptions as StdOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_pool::device::{
    self, Device, DeviceError, DeviceInfo, Direct, FileDevice, InUse, OpenOptions,
};
use thiserror::Error;

use super::layer::Layer;
use crate::run::cache::on_memory;

/// What a target is opened for.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices, each by name")]
pub(crate) struct OpenMode {
    pub write: bool,
    /// Past the page cache.
    pub direct: bool,
    /// Whatever stands there may be destroyed.
    pub force: bool,
    /// A plain file with something in it may be written over: what dd and lmdd do.
    pub overwrite: bool,
    /// What stands there is known to be an earlier run's of the same job.
    pub begun: bool,
}

/// Why something cannot be measured as it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum Refusal {
    #[error("{path}: there is no such file or device")]
    Missing { path: String },
    #[error("{path}: no permission to {what} it")]
    Rights { path: String, what: &'static str },
    #[error("{path}: a directory; name a file in it")]
    Directory { path: String },
    #[error("{path}: {by}; --force-destroy overwrites it")]
    InUse { path: String, by: InUse },
    #[error("{path}: a member of pool '{pool}'; --force-destroy overwrites it")]
    Member { path: String, pool: String },
    #[error("{path}: holds {what}; --force-destroy overwrites it")]
    Holds { path: String, what: String },
    #[error("{path}: direct I/O is not possible here ({why})")]
    NoDirect { path: String, why: std::io::Error },
    #[error("{path}: direct I/O goes in multiples of {sector} bytes; {what} is {value}")]
    Unaligned { path: String, what: &'static str, value: u64, sector: u64 },
    #[error("{path}: has {size} bytes, {end} are asked for")]
    Beyond { path: String, size: u64, end: u64 },
    #[error("{path}: byte {end} is beyond the largest file")]
    Largest { path: String, end: u64 },
    #[error("{what}: {value} is not possible; {why}")]
    Size { what: &'static str, value: u64, why: &'static str },
    #[error("{path}: only {free} bytes are free; {needed} are needed")]
    NoRoom { path: String, free: u64, needed: u64 },
    #[error("{path}: {needed} bytes do not fit; the file system has {size}")]
    Never { path: String, size: u64, needed: u64 },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// Largest request: a call of the kernel's is just below 2 GiB.
const REQUEST_MAX: u64 = 1 << 30;

/// How it was opened, for the result.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Opened {
    pub path: String,
    /// `block device` or `file`.
    pub kind: String,
    pub size: u64,
    pub direct: bool,
    pub sector: u64,
    pub rotational: Option<bool>,
    pub file_system: Option<String>,
}

/// An open file or device, or a layer above devices that is measured beside them.
#[derive(Debug)]
pub(crate) struct Target {
    pub layer: Layer,
    pub path: PathBuf,
    pub direct: bool,
    info: DeviceInfo,
    /// The block device under it, as the kernel numbers it.
    pub(super) number: u64,
}

impl Target {
    /// Opens it; a file that is to be written is made if it is not there, and stays.
    pub fn open(path: &Path, how: OpenMode) -> Result<Arc<Self>, Refusal> {
        let name = || path.display().to_string();
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => Refusal::Missing { path: name() },
            std::io::ErrorKind::PermissionDenied => {
                Refusal::Rights { path: name(), what: if how.write { "write" } else { "read" } }
            }
            _ => Refusal::Io { path: name(), source },
        };
        let mut made = false;
        if how.write && !path.exists() {
            StdOptions::new().write(true).create_new(true).open(path).map_err(io)?;
            made = true;
        }
        let meta = std::fs::metadata(path).map_err(io)?;
        if meta.is_dir() {
            return Err(Refusal::Directory { path: name() });
        }
        let opened = Self::open_there(path, how, &meta, io);
        if opened.is_err() && made {
            std::fs::remove_file(path).ok();
        }
        let device = opened?;
        let info = device.info().clone();
        let number = if info.is_block { meta.rdev() } else { meta.dev() };
        let (layer, path) = (Layer::Device(device), path.to_owned());
        Ok(Arc::new(Self { layer, path, direct: how.direct, info, number }))
    }
    /// A layer over a device, whose sectors it has.
    pub fn over(layer: Layer, name: &str, device: &DeviceInfo) -> Arc<Self> {
        let (path, info) = (PathBuf::from(name), device.clone());
        Arc::new(Self { layer, path, direct: true, info, number: 0 })
    }
    fn open_there(
        path: &Path,
        how: OpenMode,
        meta: &std::fs::Metadata,
        io: impl Fn(std::io::Error) -> Refusal,
    ) -> Result<Arc<FileDevice>, Refusal> {
        // Says what is missing before anything else is looked at.
        File::options().read(true).write(how.write).open(path).map_err(io)?;
        if how.write && !how.force {
            refuse(path, how, meta)?;
        }
        let options = OpenOptions {
            read_only: !how.write,
            direct: if how.direct { Direct::Yes } else { Direct::No },
            exclusive: false,
            growing: true,
            leaves_mode: false,
        };
        FileDevice::open(path, options).map_err(|e| match &e {
            DeviceError::Io { operation: "open", source, .. } if how.direct => {
                let why = std::io::Error::new(source.kind(), source.to_string());
                Refusal::NoDirect { path: path.display().to_string(), why }
            }
            _ => e.into(),
        })
    }
    /// Smallest unit of a request.
    pub fn sector(&self) -> u64 {
        self.info.sector.get().max(1)
    }
    pub fn is_block(&self) -> bool {
        self.info.is_block
    }
    /// Checks requests of so many bytes between two places.
    ///
    /// # Errors
    /// They are impossible here.
    pub fn check(&self, request: u64, from: u64, end: u64, reads: bool) -> Result<(), Refusal> {
        let path = || self.path.display().to_string();
        if request == 0 || request > REQUEST_MAX {
            let why = "a request has 1 byte to 1 GiB";
            return Err(Refusal::Size { what: "request size", value: request, why });
        }
        let sector = self.sector();
        for (what, value) in [("the request size", request), ("the first byte", from)] {
            if !value.is_multiple_of(sector) {
                return Err(Refusal::Unaligned { path: path(), what, value, sector });
            }
        }
        // Places are signed numbers to the kernel.
        if i64::try_from(end.max(from)).is_err() {
            return Err(Refusal::Largest { path: path(), end: end.max(from) });
        }
        let size = if self.is_block() { self.info.size.get() } else { self.len() };
        if (self.is_block() || reads) && end > size {
            return Err(Refusal::Beyond { path: path(), size, end });
        }
        Ok(())
    }
    pub fn len(&self) -> u64 {
        let device = self.is_block().then(|| self.info.size.get());
        device.or_else(|| std::fs::metadata(&self.path).ok().map(|m| m.len())).unwrap_or(0)
    }
    /// What it is, for the result.
    pub fn describe(&self) -> Opened {
        let info = &self.info;
        Opened {
            path: self.path.display().to_string(),
            kind: if info.is_block { "block device" } else { "file" }.to_owned(),
            size: self.len(),
            direct: self.direct,
            sector: info.sector.get(),
            rotational: info.rotational,
            file_system: crate::run::environment::file_system_of(&self.path),
        }
    }
}

/// What a file system has, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    size: u64,
    free: u64,
}
impl Extent {
    fn of(place: &Path) -> Option<Self> {
        let s = rustix::fs::statvfs(place).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        let all = Self { size: bytes(s.f_blocks), free: bytes(s.f_bavail) };
        let memory = crate::run::environment::available().filter(|_| on_memory(place));
        Some(match memory {
            Some(available) => all.in_memory(crate::run::environment::memory(), available),
            None => all,
        })
    }
    /// A file system in memory may say that it has more than the machine, and whoever fills it has
    /// other programs killed: some memory is left to them.
    fn in_memory(self, memory: u64, available: u64) -> Self {
        let spare = memory / SPARED;
        let (size, free) = (memory.saturating_sub(spare), available.saturating_sub(spare));
        Self { size: self.size.min(size), free: self.free.min(free) }
    }
}

/// The part of the memory, one in so many, that files in memory leave to others.
const SPARED: u64 = 16;

/// Whether a new file of so many bytes fits where it is to be.
///
/// # Errors
/// [`Refusal::NoRoom`].
pub(crate) fn room(path: &Path, needed: u64) -> Result<(), Refusal> {
    let dir = crate::run::names::parent(path);
    let Some(Extent { free, .. }) = Extent::of(dir) else { return Ok(()) };
    if free < needed {
        return Err(Refusal::NoRoom { path: dir.display().to_string(), free, needed });
    }
    Ok(())
}

/// Whether so many bytes could ever be written into a file: what only runs out of room on the way is
/// found out there, and what was moved until then counts. Devices have their own size.
///
/// # Errors
/// [`Refusal::Never`].
pub(crate) fn capacity(path: &Path, needed: u64) -> Result<(), Refusal> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return Ok(());
    }
    let there = if path.exists() { path } else { crate::run::names::parent(path) };
    let Some(Extent { size, .. }) = Extent::of(there) else { return Ok(()) };
    // Some have no size to tell.
    if size > 0 && needed > size {
        return Err(Refusal::Never { path: path.display().to_string(), size, needed });
    }
    Ok(())
}

/// Whether a device or a file that is there may be written as dd writes: over plain files, but not
/// on what somebody uses, nor on members of a pool.
pub(crate) fn may_write(path: &Path) -> Result<(), Refusal> {
    let io = |source| Refusal::Io { path: path.display().to_string(), source };
    let meta = std::fs::metadata(path).map_err(io)?;
    let kind = meta.file_type();
    if !kind.is_block_device() && !kind.is_file() {
        return Ok(());
    }
    refuse(path, OpenMode { write: true, overwrite: true, ..OpenMode::default() }, &meta)
}

/// Refuses what must not be written over.
fn refuse(path: &Path, how: OpenMode, meta: &std::fs::Metadata) -> Result<(), Refusal> {
    let name = || path.display().to_string();
    let is_block = meta.file_type().is_block_device();
    if let Some(by) = device::in_use(path)? {
        return Err(Refusal::InUse { path: name(), by });
    }
    if how.begun || !is_block && meta.len() == 0 {
        return Ok(());
    }
    let found = braid_pool::discover(Some(&[path.to_owned()]));
    if let Some(pool) = found.first() {
        return Err(Refusal::Member { path: name(), pool: pool.name.clone() });
    }
    if !is_block {
        let what = format!("{} bytes", meta.len());
        let held = (!how.overwrite).then(|| Refusal::Holds { path: name(), what });
        return held.map_or(Ok(()), Err);
    }
    let plain = OpenOptions { read_only: true, ..OpenOptions::default() };
    let foreign = FileDevice::open(path, plain).map(|d| device::probe(&*d))?;
    match foreign {
        Some(foreign) => Err(Refusal::Holds { path: name(), what: foreign.to_string() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_leave_some_of_it_to_others() {
        const GIB: u64 = 1 << 30;
        let all = |size, free| Extent { size: size * GIB, free: free * GIB };
        // A tmpfs that is as large as the memory, and one that is much smaller.
        assert_eq!(all(32, 30).in_memory(32 * GIB, 20 * GIB), all(30, 18));
        assert_eq!(all(3, 2).in_memory(32 * GIB, 20 * GIB), all(3, 2));
        assert_eq!(all(32, 30).in_memory(32 * GIB, GIB), all(30, 0));
    }
    #[test]
    fn room_in_memory_is_no_more_than_there_is_memory() {
        let place = Path::new("/dev/shm");
        let Some(available) = crate::run::environment::available() else {
            return braid_testkit::skip("/proc/meminfo does not say how much memory is available");
        };
        if !on_memory(place) {
            braid_testkit::skip("/dev/shm is no file system in memory here");
            return;
        }
        assert!(room(&place.join("new"), available).is_err());
        assert!(room(&place.join("new"), 0).is_ok());
    }
}
