//! What can go wrong between this process and the kernel.

use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

/// Failure of the transport. Failures of the file system itself travel to the caller of the
/// operation as errno and never appear here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FuseError {
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0} (is the fuse module loaded, and may this user open it?)")]
    NoDevice(Errno),
    /// The mount point cannot be used.
    #[error("cannot use {path} as a mount point: {errno}")]
    MountPoint {
        /// Where.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// mount(2) refused.
    #[error("cannot mount on {path}: {errno}")]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// umount2(2) refused.
    #[error("cannot unmount {path}: {errno}{}", if *errno == Errno::BUSY { "; programs still use it (see `fuser -vm`), or detach it with the lazy form" } else { "" })]
    Unmount {
        /// Where.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// `fusermount3` cannot be run; it mounts for users other than root.
    #[error("cannot run fusermount3 (Debian package fuse3): {0}")]
    HelperMissing(#[source] std::io::Error),
    /// `fusermount3` refused; it said why on standard error.
    #[error("fusermount3 failed ({0})")]
    HelperFailed(std::process::ExitStatus),
    /// `fusermount3` ended without handing over the device.
    #[error("fusermount3 did not hand over the device: {0}")]
    HelperSilent(Errno),
    /// A mount option with a value that makes no sense.
    #[error("mount option {option}: {what}")]
    Option {
        /// The option as given.
        option: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The kernel speaks another protocol.
    #[error(
        "the kernel has FUSE {major}.{minor}; 7.{} or later is needed",
        crate::abi::MINOR_LEAST
    )]
    Version {
        /// Kernel's.
        major: u32,
        /// Kernel's.
        minor: u32,
    },
    /// The first request was not INIT, or made no sense.
    #[error("the kernel's first message is not a greeting: {0}")]
    Greeting(#[from] BadRequest),
    /// Reading requests or writing an answer failed.
    #[error("the FUSE device failed: {0}")]
    Device(Errno),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// A message that is not what the protocol says. It is answered with EIO and logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// Shorter than its header, or than the header says.
    #[error("message of {have} bytes, {need} expected")]
    Length {
        /// Bytes there.
        have: usize,
        /// Bytes expected.
        need: usize,
    },
    /// An argument is cut off.
    #[error("arguments end after {have} bytes, {need} expected")]
    Short {
        /// Bytes there.
        have: usize,
        /// Bytes expected.
        need: usize,
    },
    /// A name without its NUL.
    #[error("name without an end")]
    Name,
    /// Another request than the one that had to come.
    #[error("unexpected opcode {0}")]
    Opcode(u32),
    /// A number outside its range.
    #[error("value out of range")]
    Value,
}
