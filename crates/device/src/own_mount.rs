//! Walks in a file system that this very process serves.
//!
//! A thread that does so waits in the kernel for an answer of its own process, and cannot be killed
//! meanwhile. If it shared the process's descriptors, it would keep `/dev/fuse` open after a kill, the
//! kernel would wait for the answer for ever, and so would the thread. So it has a table of its own
//! ([`leave_descriptors`]), in which nothing of the process is open. Such a thread must not touch a device,
//! a socket or the log: their numbers mean nothing to it, or something else.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

/// `FILEID_INO64_GEN` of Linux: the form of a FUSE file handle.
const INO64_GEN: i32 = 0x81;
/// Standard input, output and error stay open.
const FIRST_CLOSED: libc::c_uint = 3;

/// A FUSE file handle, as `open_by_handle_at(2)` takes it.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    node_high: u32,
    node_low: u32,
    generation: u32,
}

/// A directory as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountedDir {
    /// The number of its node.
    pub node: u64,
    /// Tells apart nodes that had one number.
    pub generation: u32,
}

/// Gives the calling thread a table of descriptors of its own, and closes all in it but the first three.
/// Descriptors of other threads stay open. The thread can use nothing that was opened before.
///
/// # Errors
/// The kernel refuses; the thread must not walk in the mount then.
pub fn leave_descriptors() -> io::Result<()> {
    // SAFETY: no pointers. Descriptors that objects of other threads own stay open in those threads'
    // table; this thread owns none.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let closed = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_CLOSED, libc::c_uint::MAX, 0 as libc::c_uint)
    };
    if closed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Looks `name` up in a directory of the file system mounted at `mount_point`, so that the kernel learns
/// where the name leads. `dir`: which directory; `None`: the root.
///
/// # Errors
/// `EPERM` without the right to open by handle (`CAP_DAC_READ_SEARCH`); what the lookup ends with.
pub fn look_up(mount_point: &Path, dir: Option<MountedDir>, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mount_point, flags, Mode::empty())?;
    let dir = dir.map_or(Ok(root.as_fd().try_clone_to_owned()?), |dir| open(&root, dir))?;
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(&dir, name.as_c_str(), how, StatxFlags::INO)?;
    Ok(())
}

/// Opens a directory by its number, without a walk to it.
fn open(root: &OwnedFd, dir: MountedDir) -> io::Result<OwnedFd> {
    let low = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0);
    let mut handle = Handle {
        bytes: 12,
        kind: INO64_GEN,
        node_high: low(dir.node >> 32),
        node_low: low(dir.node),
        generation: dir.generation,
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads the head and `bytes` bytes after it, which are there.
    let fd = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw mut handle, flags)
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
