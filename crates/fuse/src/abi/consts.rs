//! Numbers of the protocol.

/// The only major version there is.
pub const MAJOR: u32 = 7;
/// The youngest minor version that this transport knows.
pub const MINOR: u32 = 45;
/// The oldest minor version that this transport speaks (Linux 5.4).
pub const MINOR_LEAST: u32 = 31;
/// From this minor version on there is [`notify::INC_EPOCH`] (Linux 6.16).
pub const MINOR_EPOCH: u32 = 44;
/// Gives free space back to the devices: `_IOWR('X', 121, struct fstrim_range)` of linux/fs.h.
pub const FITRIM: u32 = 0xc018_5879;
/// The root's node id.
pub const ROOT_ID: u64 = 1;
/// The kernel refuses to give a request to a smaller buffer.
pub const READ_BUFFER_LEAST: usize = 8192;

/// Opcodes.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// What kernel and server can do, as they tell each other in INIT.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The flags have a second half.
    pub const EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Commands of requests by io_uring.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod ring {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// `SETATTR.valid`.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut.open_flags`.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod open {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `WriteIn.write_flags`.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod write {
    pub const CACHE: u32 = 1 << 0;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// `OpenIn.open_flags`: clear set-user-ID and set-group-ID if the open truncates.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `SetxattrMoreIn.setxattr_flags`: clear the set-group-ID bit.
pub const SETXATTR_KILL_SGID: u32 = 1 << 0;
/// `ReadIn.read_flags`: a program reads. Page fills come without it.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `ReleaseIn.release_flags`: give up the owner's flock.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `FsyncIn.fsync_flags`: contents only.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// `LkIn.lk_flags`: flock(2).
pub const LK_FLOCK: u32 = 1 << 0;

/// Codes of notifications.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

/// Open and status flags of Linux that requests carry.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod o {
    pub const ACCMODE: u32 = 0o3;
    pub const RDONLY: u32 = 0;
    pub const APPEND: u32 = libc::O_APPEND as u32;
    pub const DIRECT: u32 = libc::O_DIRECT as u32;
    pub const TRUNC: u32 = libc::O_TRUNC as u32;
}
