//! A mount's connection with the kernel, and how it is ended.
//!
//! The kernel lists connections by number in a file system of its own, fusectl; a write to the file `abort` there
//! ends one. A number goes to the next mount as soon as its connection is gone. A file that was opened while
//! the connection lived does not: written to later, it does nothing (`fuse_ctl_remove_conn` in
//! fs/fuse/control.c). So the file is opened when the file system is mounted, and kept.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use braid_pool::device::MountTable;
use rustix::io::Errno;

/// Where fusectl usually is.
const USUAL: &str = "/sys/fs/fuse/connections";

/// The connection of a mounted file system.
#[derive(Debug)]
pub struct Connection {
    /// Its number: that of the file system's device. Another mount's, once this one is gone.
    pub number: u32,
    /// Its file `abort`, open.
    pub abort: File,
}

impl Connection {
    /// That of the file system mounted at `mount_point`, an absolute path without links.
    ///
    /// # Errors
    /// It is not in the mount table, or its file in fusectl cannot be opened.
    pub fn of(mount_point: &Path) -> Result<Self> {
        let number = number(mount_point)?;
        let abort = open_abort(number);
        Ok(Self { number, abort: abort.context("cannot open its file in fusectl")? })
    }
    /// Ends it: every request of it fails from now on. Does nothing if it is gone.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn abort(&self) -> io::Result<()> {
        abort(&self.abort)
    }
}

/// Ends the connection of this file [`Connection::abort`], if it is still there.
///
/// # Errors
/// The kernel refuses.
pub fn abort(file: impl AsFd) -> io::Result<()> {
    rustix::io::write(file, b"1")?;
    Ok(())
}

/// The number of the connection whose file system is mounted at `mount_point`, an absolute path without
/// links.
///
/// # Errors
/// The mount table cannot be read, or it is not in it.
pub fn number(mount_point: &Path) -> Result<u32> {
    let table = MountTable::own()?;
    let mount = table.on(mount_point).context("the mount is not in the mount table")?;
    Ok(mount.device.1)
}

/// Opens a connection's file `abort`.
fn open_abort(number: u32) -> io::Result<File> {
    let usual = Path::new(USUAL).join(number.to_string()).join("abort");
    match File::options().write(true).open(usual) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    // fusectl is not mounted there, as in many containers. The file keeps the mount that only we see.
    let own = fusectl()?;
    let path = format!("/proc/self/fd/{}/{number}/abort", own.as_raw_fd());
    File::options().write(true).open(path)
}

/// The kernel's one fusectl, mounted where only the holder of the answer sees it.
fn fusectl() -> Result<OwnedFd, Errno> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use tempfile::TempDir;

    use super::*;

    /// A file system that nobody serves.
    struct Mounted {
        device: File,
        dir: PathBuf,
        _parent: TempDir,
    }

    impl Mounted {
        /// `None`: this machine does not let us mount.
        fn new() -> Option<Self> {
            let parent = TempDir::new().unwrap();
            let dir = parent.path().canonicalize().unwrap().join("a mount");
            std::fs::create_dir(&dir).unwrap();
            let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
            let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("none"), &dir, Some("fuse"), flags, Some(data.as_str())).ok()?;
            Some(Self { device, dir, _parent: parent })
        }
        fn is_connected(&self) -> bool {
            let mut asked = [PollFd::new(&self.device, PollFlags::IN)];
            poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            !asked[0].revents().contains(PollFlags::ERR)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            umount2(&self.dir, MntFlags::MNT_DETACH).ok();
        }
    }

    /// Mounts that are there while another is made that gets the number `wanted`.
    fn with_number(wanted: u32) -> Option<(Mounted, Vec<Mounted>)> {
        let mut others = Vec::new();
        while others.len() < 50 {
            let mounted = Mounted::new().unwrap();
            if number(&mounted.dir).unwrap() == wanted {
                return Some((mounted, others));
            }
            others.push(mounted);
        }
        None
    }

    #[test]
    fn a_connection_that_is_gone_is_not_mistaken_for_the_next_of_its_number() {
        // Another program may be quicker to take the number.
        for _ in 0..20 {
            let Some(first) = Mounted::new() else {
                return braid_testkit::skip("FUSE cannot be mounted");
            };
            let connection = Connection::of(&first.dir).unwrap();
            drop(first);
            let Some((next, _others)) = with_number(connection.number) else { continue };
            connection.abort().unwrap();
            assert!(next.is_connected(), "a stranger's connection was ended");
            let own = Connection::of(&next.dir).unwrap();
            assert_eq!(own.number, connection.number);
            own.abort().unwrap();
            assert!(!next.is_connected(), "its own connection was not ended");
            return;
        }
        panic!("no mount got the number of one that was gone");
    }
}
