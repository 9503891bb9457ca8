//! What the kernel says about block devices: size, sectors, queue, canonical node.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use braid_format::{ByteOffset, Bytes};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, major, minor};

use crate::mount_table::MountTable;

/// What a segment of a request holds at least, where memory lies anywhere.
const PAGE: u64 = 4096;
/// Bounds of what is believed of a disk's largest request.
const MOST_MIN: u64 = 64 << 10;
const MOST_MAX: u64 = 1 << 30;

mod numbers {
    //! Request numbers of `linux/fs.h`: `_IOR(0x12, 114, size_t)`, `_IO(0x12, 119)`,
    //! `_IO(0x12, 127)`.
    nix::ioctl_read!(get_size, 0x12, 114, u64);
    nix::ioctl_write_ptr_bad!(discard, nix::request_code_none!(0x12, 119), [u64; 2]);
    nix::ioctl_write_ptr_bad!(zero_out, nix::request_code_none!(0x12, 127), [u64; 2]);
}

/// Size (`BLKGETSIZE64`).
pub(crate) fn size(file: &File) -> io::Result<Bytes> {
    let mut bytes = 0;
    // SAFETY: the kernel writes eight bytes to `bytes`.
    unsafe { numbers::get_size(file.as_raw_fd(), &raw mut bytes) }?;
    Ok(Bytes(bytes))
}

/// Logical sector (`BLKSSZGET`).
pub(crate) fn logical_sector(file: &File) -> io::Result<Bytes> {
    Ok(Bytes(rustix::fs::ioctl_blksszget(file)?.into()))
}

/// Physical sector (`BLKPBSZGET`).
pub(crate) fn physical_sector(file: &File) -> io::Result<Bytes> {
    Ok(Bytes(rustix::fs::ioctl_blkpbszget(file)?.into()))
}

/// `BLKDISCARD`.
pub(crate) fn discard(file: &File, at: ByteOffset, len: Bytes) -> io::Result<()> {
    let range = [at.get(), len.get()];
    // SAFETY: the kernel reads two numbers from `range`.
    unsafe { numbers::discard(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// `BLKZEROOUT`: by the device's own command, or by zeros that the kernel sends.
pub(crate) fn zero(file: &File, at: ByteOffset, len: Bytes) -> io::Result<()> {
    let range = [at.get(), len.get()];
    // SAFETY: the kernel reads two numbers from `range`.
    unsafe { numbers::zero_out(file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

/// What direct I/O asks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    /// Alignment of memory.
    pub memory: u32,
    /// Reads are whole units of this.
    pub read: Bytes,
    /// Writes are whole units of this. More than for reads where the file system writes elsewhere instead
    /// of in place, which it can do only with whole blocks: XFS, once a file has been copied by reference.
    pub sector: Bytes,
}

/// What direct I/O asks of a file, where the kernel (6.1) and the file system tell. It may change while
/// the file is open. An older kernel tells no unit for reads: it is then the same.
pub(crate) fn direct_alignment(file: BorrowedFd<'_>) -> Option<DirectAlignment> {
    /// `STATX_DIO_READ_ALIGN` of `linux/stat.h`, since 6.14.
    const READ_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2_0000);
    let asked = StatxFlags::DIOALIGN | READ_ALIGN;
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, asked).ok()?;
    let told = |what: StatxFlags| stat.stx_mask & what.bits() != 0;
    let sector = Bytes(stat.stx_dio_offset_align.into());
    let read = Some(Bytes(stat.stx_dio_read_offset_align.into()));
    let read = read.filter(|read| told(READ_ALIGN) && read.get() != 0).unwrap_or(sector);
    (told(StatxFlags::DIOALIGN) && sector.get() != 0).then_some(DirectAlignment {
        memory: stat.stx_dio_mem_align,
        read,
        sector,
    })
}

/// Whether a file lives in memory.
pub(crate) fn on_tmpfs(file: &File) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file.as_fd()).is_ok_and(|s| s.f_type == TMPFS_MAGIC)
}

/// What sysfs says about a device's queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Queue {
    pub rotational: Option<bool>,
    pub discard: bool,
    pub write_zeroes: bool,
    pub atomic_write: Option<Bytes>,
    /// What the disk takes in one request, rounded down to a power of two.
    pub most: Bytes,
    /// The same where the memory is in pages that lie anywhere.
    pub most_scattered: Bytes,
}

impl Queue {
    /// The queue of block device `dev`, or of the disk it is a partition of. Nothing is known of
    /// devices without one (memory, network).
    pub fn of(dev: u64) -> Self {
        let device = sysfs(dev);
        let own = device.join("queue");
        let queue = if own.is_dir() { own } else { device.join("../queue") };
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(queue.join(name)).ok()?.trim().parse().ok()
        };
        let some = |name| number(name).is_some_and(|n| n > 0);
        let limit = |name, unit: u64| {
            let told = number(name).map_or(MOST_MAX, |n| n.saturating_mul(unit));
            Bytes(1 << told.clamp(MOST_MIN, MOST_MAX).ilog2())
        };
        let most = limit("max_sectors_kb", 1 << 10);
        Self {
            rotational: number("rotational").map(|n| n != 0),
            discard: some("discard_max_bytes"),
            write_zeroes: some("write_zeroes_max_bytes"),
            atomic_write: number("atomic_write_unit_max_bytes").filter(|n| *n > 0).map(Bytes),
            most,
            most_scattered: most.min(limit("max_segments", PAGE)),
        }
    }
}

/// The directory of block device `dev` in sysfs.
pub(crate) fn sysfs(dev: u64) -> PathBuf {
    // Resolved, so that `..` of a partition is its disk.
    let link = PathBuf::from(format!("/sys/dev/block/{}:{}", major(dev), minor(dev)));
    std::fs::canonicalize(&link).unwrap_or(link)
}

/// Whether the kernel lets nobody write the block device there in sysfs, however it is opened.
pub(crate) fn is_read_only(sysfs: &Path) -> bool {
    std::fs::read_to_string(sysfs.join("ro")).is_ok_and(|ro| ro.trim() != "0")
}

/// Whether the disk may lose what it said was written, until it is flushed; for the disk of a partition
/// too. As the administrator may have said otherwise (`queue/write_cache`).
pub(crate) fn has_volatile_cache(sysfs: &Path) -> bool {
    let of = |dir: &Path| std::fs::read_to_string(dir.join("queue/write_cache")).ok();
    let told = of(sysfs).or_else(|| of(sysfs.parent()?));
    // Unknown: rather slow than wrong.
    told.is_none_or(|told| told.trim() != "write through")
}

/// What the kernel calls block device `dev`, below `/dev`.
fn kernel_name(dev: u64) -> Option<String> {
    let told = std::fs::read_to_string(sysfs(dev).join("uevent")).ok()?;
    told.lines().find_map(|l| l.strip_prefix("DEVNAME=")).map(str::to_owned)
}

fn is_node_of(node: &Path, dev: u64) -> bool {
    std::fs::metadata(node).is_ok_and(|m| m.file_type().is_block_device() && m.rdev() == dev)
}

/// The node of block device `dev` in `/dev` that has the name which the kernel gave it; `path` when
/// there is none.
pub(crate) fn canonical_node(path: &Path, dev: u64) -> PathBuf {
    let node = kernel_name(dev).map(|name| Path::new("/dev").join(name));
    node.filter(|node| is_node_of(node, dev)).unwrap_or_else(|| path.to_owned())
}

/// A device's node that is to be opened.
#[derive(Debug)]
pub(crate) struct Node {
    pub path: PathBuf,
    /// It is the kernel's own: whoever locks it meets all others under this kernel who do so.
    pub is_kernels: bool,
    /// Keeps the path good.
    _mount: Option<OwnedFd>,
}

impl Node {
    /// Not a block device: there is nothing to choose.
    pub fn of_file(path: &Path) -> Self {
        Self { path: path.to_owned(), is_kernels: true, _mount: None }
    }
    /// The kernel's own node of block device `dev`. A container may have been given another one in a
    /// `/dev` of its own; the kernel's is then reached by a mount that nobody else sees, which takes
    /// `CAP_SYS_ADMIN`. Without it: the one in `/dev`.
    pub fn of_block(path: &Path, dev: u64) -> Self {
        let found = canonical_node(path, dev);
        let is_kernels = std::fs::metadata(&found).is_ok_and(|m| has_devtmpfs(&m));
        if is_kernels {
            return Self { path: found, is_kernels, _mount: None };
        }
        let of_kernel = || {
            let mount = devtmpfs().ok()?;
            let path = format!("/proc/self/fd/{}/{}", mount.as_raw_fd(), kernel_name(dev)?);
            let path = PathBuf::from(path);
            is_node_of(&path, dev).then_some(Self { path, is_kernels: true, _mount: Some(mount) })
        };
        of_kernel().unwrap_or(Self { path: found, is_kernels: false, _mount: None })
    }
}

/// The kernel's one devtmpfs, mounted where only the holder of the answer sees it.
fn devtmpfs() -> io::Result<OwnedFd> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };
    let context = fsopen("devtmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Whether the directory in sysfs is a partition's.
pub(crate) fn is_partition(sysfs: &Path) -> bool {
    sysfs.join("partition").exists()
}

/// Whether it is that of a device-mapper device over several paths to one disk.
pub(crate) fn is_multipath(sysfs: &Path) -> bool {
    let uuid = std::fs::read_to_string(sysfs.join("dm/uuid"));
    uuid.is_ok_and(|uuid| uuid.starts_with("mpath-"))
}

/// Whether the node with this metadata is one of devtmpfs, of which a kernel has one, wherever it is
/// mounted: then locks on it meet those of everybody under this kernel. A container with nodes of its
/// own sees only its own locks.
fn has_devtmpfs(meta: &Metadata) -> bool {
    let device = (major(meta.dev()), minor(meta.dev()));
    MountTable::own().is_ok_and(|table| is_devtmpfs(&table, device))
}

/// Whether the file system with this number is devtmpfs.
fn is_devtmpfs(mounts: &MountTable, device: (u32, u32)) -> bool {
    mounts.iter().any(|m| m.device == device && m.kind == "devtmpfs")
}

/// Block devices that this process has opened exclusively: [`crate::in_use`] must not take our own
/// claim for somebody else's.
static CLAIMED: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);

/// A device in [`CLAIMED`].
#[derive(Debug)]
pub(crate) struct Claim(u64);

impl Claim {
    pub fn new(dev: u64) -> Self {
        *CLAIMED.lock().get_or_insert_default().entry(dev).or_default() += 1;
        Self(dev)
    }
    /// Whether this process has claimed `dev`.
    pub fn is_ours(dev: u64) -> bool {
        CLAIMED.lock().as_ref().is_some_and(|c| c.contains_key(&dev))
    }
}
impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock();
        let Some(claimed) = claimed.as_mut() else { return };
        if let Some(n) = claimed.get_mut(&self.0) {
            *n -= 1;
            if *n == 0 {
                claimed.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_the_kernels_own_or_of_somebodys_dev() {
        let mounts = MountTable::parse(
            b"22 28 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=1k\n\
              30 22 0:25 / /dev/shm rw - tmpfs tmpfs rw\n\
              31 22 0:26 /a - b /mnt rw - ext4 /dev/sda rw\n",
        );
        assert!(is_devtmpfs(&mounts, (0, 5)));
        for other in [(0, 25), (0, 26), (0, 50), (5, 0)] {
            assert!(!is_devtmpfs(&mounts, other), "{other:?}");
        }
        let lines = MountTable::parse(b"1 2 0:5\n - devtmpfs");
        assert!(!is_devtmpfs(&MountTable::default(), (0, 5)) && !is_devtmpfs(&lines, (0, 5)));
    }

    #[test]
    fn a_volatile_cache_is_there_unless_the_kernel_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("sda1");
        std::fs::create_dir_all(dir.path().join("queue")).unwrap();
        std::fs::create_dir(&part).unwrap();
        assert!(has_volatile_cache(dir.path()));
        for (told, volatile) in [("write back\n", true), ("write through\n", false)] {
            std::fs::write(dir.path().join("queue/write_cache"), told).unwrap();
            assert_eq!(
                [dir.path(), part.as_path()].map(has_volatile_cache),
                [volatile; 2],
                "{told}"
            );
        }
    }

    #[test]
    fn several_paths_to_a_disk_are_told_from_other_mappings() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_multipath(dir.path()));
        std::fs::create_dir(dir.path().join("dm")).unwrap();
        for (uuid, multipath) in [("LVM-abc\n", false), ("mpath-360a9\n", true), ("", false)] {
            std::fs::write(dir.path().join("dm/uuid"), uuid).unwrap();
            assert_eq!(is_multipath(dir.path()), multipath, "{uuid}");
        }
    }
}
