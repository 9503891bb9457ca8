//! Why a device operation failed.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid_format::{ByteOffset, Bytes};
use thiserror::Error;

/// A device operation that failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused or failed the operation.
    #[error("{device}: {operation} at {at}: {source}")]
    Io {
        /// Device.
        device: Arc<str>,
        /// What was tried.
        operation: &'static str,
        /// Where.
        at: ByteOffset,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// Offset or length is not a multiple of the sector.
    #[error("{device}: {len} bytes at {at} are not whole sectors")]
    Unaligned {
        /// Device.
        device: Arc<str>,
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
    },
    /// The range ends beyond the device.
    #[error("{device}: {len} bytes at {at} end beyond the device")]
    OutOfRange {
        /// Device.
        device: Arc<str>,
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
    },
    /// A flush failed before: what was written may be lost.
    #[error("{device}: a flush failed earlier; nothing written since can be trusted")]
    Poisoned {
        /// Device.
        device: Arc<str>,
    },
    /// It was opened for reading only.
    #[error("{device}: opened for reading only")]
    ReadOnly {
        /// Device.
        device: Arc<str>,
    },
    /// Neither a block device nor a regular file.
    #[error("{device}: neither a block device nor a regular file")]
    NotADevice {
        /// Its path.
        device: Arc<str>,
    },
    /// A file that became smaller while it was in use: what stood behind its new end is lost, and
    /// writes there would make it look whole.
    #[error(
        "{device}: the file has been truncated while in use: {size} bytes, it had {expected}; nothing written since can be trusted"
    )]
    Truncated {
        /// Device.
        device: Arc<str>,
        /// Its size now.
        size: Bytes,
        /// Its size when it was opened.
        expected: Bytes,
    },
    /// Smaller than one sector.
    #[error("{device}: {size} bytes are less than a sector")]
    Empty {
        /// Device.
        device: Arc<str>,
        /// Its size.
        size: Bytes,
    },
    /// Exclusive use was asked for, but it is in use.
    #[error("{device}: in use: {by}")]
    InUse {
        /// Device.
        device: Arc<str>,
        /// By what.
        by: InUse,
    },
    /// The operator said that it is not to be used any more.
    #[error("{device}: taken out of use")]
    TakenOut {
        /// Device.
        device: Arc<str>,
    },
    /// Locks need a compare-and-write that the device cannot do.
    #[error(
        "{device}: compares and writes at most {most} bytes at once; {len} are needed for locks"
    )]
    NoCompareAndWrite {
        /// Device.
        device: Arc<str>,
        /// What it can do; 0 if nothing.
        most: Bytes,
        /// What is needed.
        len: Bytes,
    },
    /// Its node is not the one that the kernel made, so that its locks exclude nobody who uses another.
    #[error(
        "{device}: this device node is not the kernel's own (not in devtmpfs), as `docker run --device` makes them: locks on it are not seen by those who use another node of the same disk, so it cannot be shared safely. Give the container the host's own node: a bind mount of {device} and permission for it (docker: -v {device}:{device} --device-cgroup-rule 'b *:* rwm'), or of all of /dev with --privileged"
    )]
    PrivateNode {
        /// Device.
        device: Arc<str>,
    },
    /// The session that it was sent in broke before the answer: whether it was done must be looked for.
    #[error("{device}: {operation} at {at}: the session broke before it was answered")]
    Unknown {
        /// Device.
        device: Arc<str>,
        /// What was tried.
        operation: &'static str,
        /// Where.
        at: ByteOffset,
    },
    /// Somebody else's reservation stands in the way: this node was fenced, or never registered.
    #[error("{device}: reserved by others; this node has been fenced")]
    Fenced {
        /// Device.
        device: Arc<str>,
    },
    /// The key of this host's path to the device is gone, and somebody here who had it still has the
    /// device open: a new key would let through what the fence has ended.
    #[error(
        "{device}: this host was fenced, and a process of it that was registered has the device open yet: end it first"
    )]
    HostFenced {
        /// Device.
        device: Arc<str>,
    },
    /// It was asked before it was opened, and answers nothing.
    #[error("{device}: {silent}; nothing is done with it")]
    Silent {
        /// Device.
        device: Arc<str>,
        /// For how long.
        silent: Silent,
    },
    /// There is no session with the target that it is a unit of.
    #[error("{device}: cannot log in: {why}")]
    NoSession {
        /// Device.
        device: Arc<str>,
        /// What the network or the target said, and what to do.
        why: Arc<str>,
    },
    /// Its sessions have ended for good.
    #[error("{device} was given up: {why}")]
    GivenUp {
        /// Device.
        device: Arc<str>,
        /// What ended them.
        why: Arc<str>,
    },
    /// A test's device failed on purpose.
    #[error("{device}: {operation} at {at} fails by plan")]
    Injected {
        /// Device.
        device: Arc<str>,
        /// What was tried.
        operation: &'static str,
        /// Where.
        at: ByteOffset,
    },
}

impl DeviceError {
    /// Whether somebody else's reservation is the reason: of this node, or of its whole host.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. } | Self::HostFenced { .. })
    }
    /// Whether the device answered, with an error, about one place.
    pub fn is_of_one_place(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Injected { .. })
    }
}

/// For how long a device has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silent(pub Duration);
impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has not answered for {:.0} s", self.0.as_secs_f64())
    }
}

/// What uses a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InUse {
    /// Mounted here.
    Mounted(PathBuf),
    /// A loop device stands on it.
    Loop(PathBuf),
    /// Used as swap space.
    Swap,
    /// Another block device (RAID, logical volume, encryption) stands on it.
    Holder(PathBuf),
    /// The file on which this loop device stands is used.
    File(PathBuf),
    /// Nodes of a pool on this host have it open; one of them holds it against other programs.
    Node,
    /// Somebody (a mount of a part of it, a volume manager, a program) has claimed it exclusively.
    Claimed,
}
impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(at) => write!(f, "mounted on {}", at.display()),
            Self::Loop(device) => write!(f, "backs {}", device.display()),
            Self::Swap => f.write_str("used as swap space"),
            Self::Holder(device) => write!(f, "part of {}", device.display()),
            Self::File(file) => {
                write!(f, "its file {} is used, for example by a pool's node", file.display())
            }
            Self::Node => f.write_str("a node of a Braid pool has it open"),
            Self::Claimed => f.write_str("claimed exclusively"),
        }
    }
}
