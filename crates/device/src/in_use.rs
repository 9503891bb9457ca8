//! Whether somebody uses a device: a mount, a loop device, swap, a volume manager.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_format::ByteOffset;
use rustix::fs::{major, minor};

use crate::DeviceError;
use crate::block::{Claim, canonical_node, sysfs};
pub use crate::error::InUse;

/// What uses the block device or file at `path`, if anything does; what this process itself has
/// opened does not count. A path that names nothing is not in use.
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
    let claimed = File::options()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_NONBLOCK)
        .open(canonical_node(path, dev));
    match claimed {
        Ok(_) => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(Some(InUse::Claimed)),
        Err(e) => Err(failed(path, e)),
    }
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
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_point(&table, &format!("{}:{}", major(dev), minor(dev)))
}

/// The mount point of `dev` ("8:1") in a mountinfo table (proc(5)): `id parent major:minor root point ...`.
/// `None`: it is not mounted there.
pub fn mount_point(table: &str, dev: &str) -> Option<PathBuf> {
    let fields = |line: &str| {
        let mut f = line.split(' ').skip(2);
        (f.next()? == dev).then(|| f.nth(1).map(unescape))?
    };
    table.lines().find_map(fields)
}

/// Undoes the kernel's octal escapes (`\040` is a space).
fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escape = tail.get(..3).filter(|_| first == b'\\');
        let code = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(first));
        rest = tail.get(if code.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    std::ffi::OsString::from_vec(out).into()
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
    paths.map(unescape).any(|p| std::fs::metadata(p).is_ok_and(|m| same(meta, &m)))
}

/// The loop device that stands on a file.
fn loop_on(meta: &Metadata) -> Option<PathBuf> {
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(file) = std::fs::read(entry.path().join("loop/backing_file")) else { continue };
        let file = PathBuf::from(std::ffi::OsString::from_vec(file.trim_ascii_end().to_vec()));
        if std::fs::metadata(&file).is_ok_and(|m| same(meta, &m)) {
            return Some(Path::new("/dev").join(entry.file_name()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
        30 21 0:24 / /proc rw - proc proc rw\n\
        41 21 8:17 / /media/my\\040disk rw - xfs /dev/sdb1 rw\n";

    #[test]
    fn mount_points_are_found_by_device_number() {
        assert_eq!(mount_point(TABLE, "8:1"), Some("/".into()));
        assert_eq!(mount_point(TABLE, "8:17"), Some("/media/my disk".into()));
        assert_eq!(mount_point(TABLE, "8:18"), None);
        assert_eq!(unescape("a\\"), PathBuf::from("a\\"));
    }
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
