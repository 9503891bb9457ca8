//! Mounting and unmounting: by system call as root, through `fusermount3` otherwise.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use crate::error::FuseError;
use crate::options::FuseOptions;

/// The type in the mount table is `fuse.` and this.
pub const SUBTYPE: &str = "braid";

/// Mounts and returns the device that requests come from. No request has been read yet.
///
/// # Errors
/// See [`FuseError`].
pub fn mount(source: &str, options: &FuseOptions) -> Result<OwnedFd, FuseError> {
    let mount_point = options.mount_point.as_path();
    let stat = rustix::fs::stat(mount_point)
        .map_err(|errno| FuseError::MountPoint { path: mount_point.into(), errno })?;
    if options.use_helper || !rustix::process::geteuid().is_root() {
        return mount_by_helper(source, options);
    }
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(FuseError::NoDevice)?;
    let data = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0,default_permissions{}",
        device.as_raw_fd(),
        stat.st_mode & libc::S_IFMT,
        if options.allow_other { ",allow_other" } else { "" },
    );
    let data = CString::new(data)
        .map_err(|_| FuseError::Mount { path: mount_point.into(), errno: Errno::INVAL })?;
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(source, mount_point, kind.as_str(), options.flags(), data.as_c_str())
        .map_err(|errno| FuseError::Mount { path: mount_point.into(), errno })?;
    Ok(device)
}

/// The `-o` string for `fusermount3`.
fn helper_words(source: &str, options: &FuseOptions) -> String {
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={source},subtype={SUBTYPE},default_permissions");
    for word in options.words() {
        words.push(',');
        words.push_str(word);
    }
    words
}

/// `fusermount3` is set-user-ID root; it mounts, and sends the device over a socket.
fn mount_by_helper(source: &str, options: &FuseOptions) -> Result<OwnedFd, FuseError> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(FuseError::HelperSilent)?;
    // Only this end may be inherited.
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(FuseError::HelperSilent)?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_words(source, options))
        .arg("--")
        .arg(&options.mount_point)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .spawn()
        .map_err(FuseError::HelperMissing)?;
    drop(theirs);
    let device = receive_device(&ours);
    let status = child.wait().map_err(FuseError::HelperMissing)?;
    if !status.success() {
        return Err(FuseError::HelperFailed(status));
    }
    let device = device.map_err(FuseError::HelperSilent)?;
    fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(FuseError::HelperSilent)?;
    Ok(device)
}

fn receive_device(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 1];
    loop {
        let got = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        match got {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(device) = descriptors.next()
        {
            return Ok(device);
        }
    }
    Err(Errno::NODEV)
}

/// Unmounts. `lazy`: the name goes at once, the file system when its last user is gone; otherwise
/// it fails while programs use it.
///
/// # Errors
/// See [`FuseError`]; [`FuseError::Unmount`] with `EBUSY` while in use.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<(), FuseError> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-q"]);
            if lazy {
                command.arg("-z");
            }
            let status =
                command.arg("--").arg(mount_point).status().map_err(FuseError::HelperMissing)?;
            if status.success() { Ok(()) } else { Err(FuseError::HelperFailed(status)) }
        }
        Err(errno) => Err(FuseError::Unmount { path: mount_point.into(), errno }),
    }
}

/// Sets how far the kernel reads ahead on this mount. Best effort: needs root and sysfs.
pub fn set_read_ahead(mount_point: &Path, kib: u64) {
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        mount_point,
        // This must not cause a request, because nobody answers yet.
        rustix::fs::AtFlags::STATX_DONT_SYNC,
        rustix::fs::StatxFlags::TYPE,
    );
    let Ok(stat) = stat else { return };
    let path =
        format!("/sys/class/bdi/{}:{}/read_ahead_kb", stat.stx_dev_major, stat.stx_dev_minor);
    if let Err(error) = std::fs::write(&path, kib.to_string()) {
        tracing::debug!(path, %error, "read-ahead stays at the kernel's default");
    }
}
