//! Whether somebody uses a device (a mount, a loop device, swap, a volume manager), and what it stands on.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_format::ByteOffset;
use rustix::fs::{major, minor};

use crate::DeviceError;
use crate::backing::Loop;
use crate::block::{Claim, sysfs};
pub use crate::error::InUse;
use crate::hold::{Hold, Holding};
use crate::host_locks;
use crate::mount_table::{MountTable, unescape};

/// What uses the block device or file at `path`, if anything does; what this process itself has
/// opened does not count, nor do nodes of pools, which have members open together. A path that names nothing is
/// not in use.
///
/// # Errors
/// [`DeviceError::Io`] when the path cannot be examined.
pub fn in_use(path: &Path) -> Result<Option<InUse>, DeviceError> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, e)),
    };
    if is_swap(&meta) {
        return Ok(Some(InUse::Swap));
    }
    if !meta.file_type().is_block_device() {
        return Ok(loop_on(&meta).map(InUse::Loop));
    }
    let dev = meta.rdev();
    if let Some(at) = mounted_on(dev) {
        return Ok(Some(InUse::Mounted(at)));
    }
    if let Some(holder) = first_entry(&sysfs(dev).join("holders")) {
        return Ok(Some(InUse::Holder(Path::new("/dev").join(holder))));
    }
    if Claim::is_ours(dev) {
        return Ok(None);
    }
    if let Some(under) = Loop::of(&meta).filter(|under| is_locked(&under.file)) {
        return Ok(Some(InUse::File(under.file)));
    }
    match Hold::take(path).map_err(|e| failed(path, e))? {
        // Which nodes those are their liveness locks tell.
        Holding::Held(_) | Holding::ByNode => Ok(None),
        Holding::Claimed => Ok(Some(InUse::Claimed)),
    }
}

/// Devices on devices, and loop devices on files: more than anybody has.
const NESTED_MAX: usize = 64;

/// Device numbers (major, minor) of the file systems that keep the bytes of a file, or of a device that is made
/// of one by loop devices and device mapper: that of the file, and those below.
pub fn file_systems_under(device: &Path) -> Vec<(u32, u32)> {
    let (mut found, mut left) = (Vec::new(), vec![device.to_owned()]);
    for _ in 0..NESTED_MAX {
        let Some(meta) = left.pop().map(std::fs::metadata) else { break };
        let Ok(meta) = meta else { continue };
        let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
        if meta.is_file() {
            found.push((major(number), minor(number)));
        }
        let block = sysfs(number);
        // A partition is in the directory of its disk.
        for dir in [block.clone(), block.join("..")] {
            left.extend(Loop::described(&dir).map(|under| under.file));
            let parts = std::fs::read_dir(dir.join("slaves")).into_iter().flatten().flatten();
            left.extend(parts.map(|part| Path::new("/dev").join(part.file_name())));
        }
    }
    found
}

fn failed(path: &Path, e: io::Error) -> DeviceError {
    DeviceError::Io {
        device: path.display().to_string().into(),
        operation: "examine",
        at: ByteOffset(0),
        source: Arc::new(e),
    }
}

fn first_entry(dir: &Path) -> Option<PathBuf> {
    Some(std::fs::read_dir(dir).ok()?.flatten().next()?.file_name().into())
}

/// Where block device `dev` is mounted in this mount namespace.
fn mounted_on(dev: u64) -> Option<PathBuf> {
    let table = MountTable::own().ok()?;
    table.of_device((major(dev), minor(dev))).map(|m| m.dir.clone())
}

fn same(a: &Metadata, b: &Metadata) -> bool {
    if a.file_type().is_block_device() {
        b.file_type().is_block_device() && a.rdev() == b.rdev()
    } else {
        a.dev() == b.dev() && a.ino() == b.ino()
    }
}

fn is_swap(meta: &Metadata) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/swaps") else { return false };
    let paths = table.lines().skip(1).filter_map(|l| l.split_ascii_whitespace().next());
    paths
        .map(|p| unescape(p.as_bytes()))
        .any(|p| std::fs::metadata(p).is_ok_and(|m| same(meta, &m)))
}

/// Whether somebody holds a lock on some byte of a file, as nodes do on their members.
fn is_locked(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| host_locks::is_locked(&file, 0, 0).unwrap_or(false))
}

/// The loop device that stands on a file.
fn loop_on(meta: &Metadata) -> Option<PathBuf> {
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Some(under) = Loop::described(&entry.path()) else { continue };
        if std::fs::metadata(&under.file).is_ok_and(|m| same(meta, &m)) {
            return Some(Path::new("/dev").join(entry.file_name()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::canonical_node;

    #[test]
    fn a_plain_file_and_a_missing_one_are_free() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(in_use(file.path()).unwrap(), None);
        assert_eq!(in_use(Path::new("/nowhere/at/all")).unwrap(), None);
    }
    #[test]
    fn the_root_device_is_mounted() {
        let dev = std::fs::metadata("/").unwrap().dev();
        // Only where the root is a block device's file system.
        let node = canonical_node(Path::new("/dev/none"), dev);
        if node != Path::new("/dev/none") && std::fs::File::open(&node).is_ok() {
            assert!(matches!(in_use(&node).unwrap(), Some(InUse::Mounted(_))));
        }
    }
}
