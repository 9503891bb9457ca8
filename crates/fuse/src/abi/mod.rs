//! The kernel's FUSE protocol, version 7: message layouts and constants of
//! `include/uapi/linux/fuse.h`, as far as this transport uses them.
//!
//! Messages never leave the machine, so integers are native. Every structure is free of padding
//! (the build fails otherwise) and its size is checked against the header's.
//!
//! Minor versions: 31 is the least that is spoken ([`MINOR_LEAST`]); a structure that grew since
//! then is read with `crate::transport::request::Body::take_grown`, which fills what an older kernel left
//! out with zeroes. What a younger kernel adds behind a structure is ignored.

mod consts;

pub use consts::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        impl Default for $name {
            fn default() -> Self { zerocopy::FromZeros::new_zeroed() }
        }
    )*};
}

wire! {
    /// Before every request.
    InHeader = 40 {
        /// Bytes of the whole message.
        len: u32,
        /// One of [`op`].
        opcode: u32,
        /// Names the request; its answer repeats it.
        unique: u64,
        /// The inode it is about; 1 is the root.
        nodeid: u64,
        /// Caller's user (fsuid).
        uid: u32,
        /// Caller's group (fsgid).
        gid: u32,
        /// Caller's process.
        pid: u32,
        /// Extensions behind the arguments, units of 8 bytes.
        total_extlen: u16,
        /// Zero.
        padding: u16,
    }
    /// Before every answer and notification.
    OutHeader = 16 {
        /// Bytes of the whole message.
        len: u32,
        /// Negative errno of an answer, or the code of a notification.
        error: i32,
        /// The request's, or 0 for a notification.
        unique: u64,
    }
    /// The head of a request by io_uring; of its answer, if an [`OutHeader`] stands in `in_out`.
    RingHead = 288 {
        /// An [`InHeader`], and zeroes.
        in_out: [u8; 128],
        /// The request's first structure.
        op_in: [u8; 128],
        /// Zero.
        flags: u64,
        /// Names the request in the command that answers it.
        commit_id: u64,
        /// Bytes of what comes behind the first structure, or of the answer.
        payload: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        reserved: u64,
    }
    /// What a command by io_uring carries.
    RingCommand = 24 {
        /// Zero.
        flags: u64,
        /// The request that is answered.
        commit_id: u64,
        /// The processor's number.
        queue: u16,
        /// Zero.
        padding: [u16; 3],
    }
    /// Attributes.
    WireAttr = 88 {
        /// Shown as `st_ino`.
        ino: u64,
        /// Bytes.
        size: u64,
        /// Units of 512 bytes.
        blocks: u64,
        /// Seconds.
        atime: u64,
        /// Seconds.
        mtime: u64,
        /// Seconds.
        ctime: u64,
        /// Nanoseconds.
        atimensec: u32,
        /// Nanoseconds.
        mtimensec: u32,
        /// Nanoseconds.
        ctimensec: u32,
        /// Type and permissions.
        mode: u32,
        /// Links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device of a special file, as the kernel packs it in 32 bits.
        rdev: u32,
        /// Preferred I/O size.
        blksize: u32,
        /// `FUSE_ATTR_*`; none used.
        flags: u32,
    }
    /// Answers LOOKUP and whatever makes a name.
    EntryOut = 128 {
        /// The inode; 0: no such name.
        nodeid: u64,
        /// Tells inodes apart that had one number.
        generation: u64,
        /// Seconds that the name may be cached.
        entry_valid: u64,
        /// Seconds that the attributes may be cached.
        attr_valid: u64,
        /// Nanoseconds.
        entry_valid_nsec: u32,
        /// Nanoseconds.
        attr_valid_nsec: u32,
        /// The attributes.
        attr: WireAttr,
    }
    /// Answers GETATTR and SETATTR.
    AttrOut = 104 {
        /// Seconds that the attributes may be cached.
        attr_valid: u64,
        /// Nanoseconds.
        attr_valid_nsec: u32,
        /// Zero.
        dummy: u32,
        /// The attributes.
        attr: WireAttr,
    }
    /// INIT.
    InitIn = 64 {
        /// Must be 7.
        major: u32,
        /// What the kernel speaks.
        minor: u32,
        /// Bytes.
        max_readahead: u32,
        /// `init::*`, low half.
        flags: u32,
        /// High half, if `EXT` is among the low.
        flags2: u32,
        /// Zero.
        unused: [u32; 11],
    }
    /// Answers INIT.
    InitOut = 64 {
        /// 7.
        major: u32,
        /// What is spoken here.
        minor: u32,
        /// Bytes.
        max_readahead: u32,
        /// Those of the offered flags that are wanted.
        flags: u32,
        /// Requests in the background at most.
        max_background: u16,
        /// From here on readahead is held back.
        congestion_threshold: u16,
        /// Bytes in a WRITE at most.
        max_write: u32,
        /// Nanoseconds between two time stamps that differ.
        time_gran: u32,
        /// Pages in a request at most.
        max_pages: u16,
        /// Unused here.
        map_alignment: u16,
        /// High half of `flags`.
        flags2: u32,
        /// Unused here.
        max_stack_depth: u32,
        /// Seconds; unused here.
        request_timeout: u16,
        /// Zero.
        unused: [u16; 11],
    }
    /// FORGET.
    ForgetIn = 8 {
        /// How many entries to forget.
        nlookup: u64,
    }
    /// BATCH_FORGET: this many [`ForgetOne`] follow.
    BatchForgetIn = 8 {
        /// Their number.
        count: u32,
        /// Zero.
        dummy: u32,
    }
    /// One inode of a BATCH_FORGET.
    ForgetOne = 16 {
        /// The inode.
        nodeid: u64,
        /// How many entries to forget.
        nlookup: u64,
    }
    /// STATX.
    StatxIn = 24 {
        /// As in GETATTR.
        getattr_flags: u32,
        /// Zero.
        reserved: u32,
        /// An open file, if the flags say so.
        fh: u64,
        /// `AT_STATX_*`.
        sx_flags: u32,
        /// `STATX_*` wanted.
        sx_mask: u32,
    }
    /// A time in [`Statx`].
    StatxTime = 16 {
        /// Seconds.
        sec: i64,
        /// Nanoseconds.
        nsec: u32,
        /// Zero.
        reserved: i32,
    }
    /// Attributes with birth time.
    Statx = 256 {
        /// `STATX_*` filled in.
        mask: u32,
        /// Preferred I/O size.
        blksize: u32,
        /// `STATX_ATTR_*`.
        attributes: u64,
        /// Links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Type and permissions.
        mode: u16,
        /// Zero.
        spare0: u16,
        /// Number.
        ino: u64,
        /// Bytes.
        size: u64,
        /// Units of 512 bytes.
        blocks: u64,
        /// Which `attributes` mean anything.
        attributes_mask: u64,
        /// Last access.
        atime: StatxTime,
        /// Birth.
        btime: StatxTime,
        /// Last change.
        ctime: StatxTime,
        /// Last change of contents.
        mtime: StatxTime,
        /// Device of a special file.
        rdev_major: u32,
        /// Device of a special file.
        rdev_minor: u32,
        /// Filled in by the kernel.
        dev_major: u32,
        /// Filled in by the kernel.
        dev_minor: u32,
        /// Zero.
        spare2: [u64; 14],
    }
    /// Answers STATX.
    StatxOut = 288 {
        /// Seconds that the attributes may be cached.
        attr_valid: u64,
        /// Nanoseconds.
        attr_valid_nsec: u32,
        /// Zero.
        flags: u32,
        /// Zero.
        spare: [u64; 2],
        /// The attributes.
        stat: Statx,
    }
    /// SETATTR.
    SetattrIn = 88 {
        /// `setattr::*`: which fields count.
        valid: u32,
        /// Zero.
        padding: u32,
        /// Open file.
        fh: u64,
        /// Truncate or extend to.
        size: u64,
        /// For mandatory locks; unused.
        lock_owner: u64,
        /// Seconds.
        atime: u64,
        /// Seconds.
        mtime: u64,
        /// Seconds.
        ctime: u64,
        /// Nanoseconds.
        atimensec: u32,
        /// Nanoseconds.
        mtimensec: u32,
        /// Nanoseconds.
        ctimensec: u32,
        /// Permissions.
        mode: u32,
        /// Zero.
        unused4: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Zero.
        unused5: u32,
    }
    /// MKNOD; the name follows.
    MknodIn = 16 {
        /// Type and permissions.
        mode: u32,
        /// Device, packed in 32 bits.
        rdev: u32,
        /// The caller's.
        umask: u32,
        /// Zero.
        padding: u32,
    }
    /// MKDIR; the name follows.
    MkdirIn = 8 {
        /// Permissions.
        mode: u32,
        /// The caller's.
        umask: u32,
    }
    /// RENAME; both names follow.
    RenameIn = 8 {
        /// Directory of the new name.
        newdir: u64,
    }
    /// RENAME2; both names follow.
    Rename2In = 16 {
        /// Directory of the new name.
        newdir: u64,
        /// `RENAME_*`.
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// LINK; the new name follows.
    LinkIn = 8 {
        /// The inode that gets another name.
        oldnodeid: u64,
    }
    /// OPEN and OPENDIR.
    OpenIn = 8 {
        /// `O_*`.
        flags: u32,
        /// `FUSE_OPEN_*`.
        open_flags: u32,
    }
    /// CREATE and TMPFILE; the name follows.
    CreateIn = 16 {
        /// `O_*`.
        flags: u32,
        /// Permissions.
        mode: u32,
        /// The caller's.
        umask: u32,
        /// `FUSE_OPEN_*`.
        open_flags: u32,
    }
    /// Answers OPEN, OPENDIR, and behind an [`EntryOut`] CREATE and TMPFILE.
    OpenOut = 16 {
        /// Names the open file in later requests.
        fh: u64,
        /// `open::*`.
        open_flags: u32,
        /// Unused here.
        backing_id: i32,
    }
    /// RELEASE and RELEASEDIR.
    ReleaseIn = 24 {
        /// Open file.
        fh: u64,
        /// `O_*`.
        flags: u32,
        /// `FUSE_RELEASE_*`.
        release_flags: u32,
        /// Whose flock to give up.
        lock_owner: u64,
    }
    /// FLUSH.
    FlushIn = 24 {
        /// Open file.
        fh: u64,
        /// Zero.
        unused: u32,
        /// Zero.
        padding: u32,
        /// Whose fcntl locks to give up.
        lock_owner: u64,
    }
    /// READ, READDIR, READDIRPLUS.
    ReadIn = 40 {
        /// Open file.
        fh: u64,
        /// Bytes, or the cookie of a directory.
        offset: u64,
        /// Bytes wanted.
        size: u32,
        /// `READ_LOCKOWNER`: a program reads; without it the kernel fills its cache.
        read_flags: u32,
        /// For mandatory locks; unused.
        lock_owner: u64,
        /// `O_*` as they are now.
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// WRITE; the bytes follow.
    WriteIn = 40 {
        /// Open file.
        fh: u64,
        /// Bytes.
        offset: u64,
        /// Bytes that follow.
        size: u32,
        /// `write::*`.
        write_flags: u32,
        /// For mandatory locks; unused.
        lock_owner: u64,
        /// `O_*` as they are now.
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// Answers WRITE and COPY_FILE_RANGE.
    WriteOut = 8 {
        /// Bytes done.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// Answers STATFS.
    StatfsOut = 80 {
        /// Units of `frsize`.
        blocks: u64,
        /// Units of `frsize`.
        bfree: u64,
        /// Units of `frsize`.
        bavail: u64,
        /// Inodes.
        files: u64,
        /// Inodes.
        ffree: u64,
        /// Preferred I/O size.
        bsize: u32,
        /// Longest name.
        namelen: u32,
        /// Bytes.
        frsize: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn = 16 {
        /// Open file.
        fh: u64,
        /// Bit 0: contents only.
        fsync_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// SETXATTR without the extended form; name and value follow.
    SetxattrIn = 8 {
        /// Bytes of the value.
        size: u32,
        /// `XATTR_CREATE`, `XATTR_REPLACE`.
        flags: u32,
    }
    /// Follows [`SetxattrIn`] if `SETXATTR_EXT` was agreed on.
    SetxattrMoreIn = 8 {
        /// [`SETXATTR_KILL_SGID`].
        setxattr_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// GETXATTR (the name follows) and LISTXATTR.
    GetxattrIn = 8 {
        /// Room for the answer; 0: only its size is asked for.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// Answers GETXATTR and LISTXATTR when only the size was asked for.
    GetxattrOut = 8 {
        /// Bytes.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// A lock of a program.
    FileLock = 24 {
        /// First byte.
        start: u64,
        /// Last byte; `i64::MAX`: to the end, wherever that is.
        end: u64,
        /// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
        kind: u32,
        /// Process.
        pid: u32,
    }
    /// GETLK, SETLK, SETLKW.
    LkIn = 48 {
        /// Open file.
        fh: u64,
        /// Whose lock.
        owner: u64,
        /// The lock.
        lk: FileLock,
        /// Bit 0: flock(2), not fcntl(2).
        lk_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// INTERRUPT.
    InterruptIn = 8 {
        /// The number of the request that a signal is to end.
        unique: u64,
    }
    /// FALLOCATE.
    FallocateIn = 32 {
        /// Open file.
        fh: u64,
        /// Bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// `FALLOC_FL_*`.
        mode: u32,
        /// Zero.
        padding: u32,
    }
    /// IOCTL; the argument follows.
    IoctlIn = 32 {
        /// Open file or directory.
        fh: u64,
        /// `FUSE_IOCTL_*`.
        flags: u32,
        /// Which.
        cmd: u32,
        /// The argument's address.
        arg: u64,
        /// Bytes of it that follow.
        in_size: u32,
        /// Bytes of it that are taken back.
        out_size: u32,
    }
    /// Answers IOCTL; the argument follows.
    IoctlOut = 16 {
        /// What ioctl(2) returns.
        result: i32,
        /// Zero.
        flags: u32,
        /// Zero.
        in_iovs: u32,
        /// Zero.
        out_iovs: u32,
    }
    /// What FITRIM is to do; `len` afterwards: what it did.
    TrimWanted = 24 {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// Shorter runs are left alone.
        least: u64,
    }
    /// Answers FITRIM.
    TrimOut = 40 {
        /// Success.
        head: IoctlOut,
        /// Of `len` bytes the space went back.
        range: TrimWanted,
    }
    /// LSEEK.
    LseekIn = 24 {
        /// Open file.
        fh: u64,
        /// Bytes.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
        /// Zero.
        padding: u32,
    }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn = 56 {
        /// Source.
        fh_in: u64,
        /// Bytes.
        off_in: u64,
        /// Target's inode.
        nodeid_out: u64,
        /// Target.
        fh_out: u64,
        /// Bytes.
        off_out: u64,
        /// Bytes.
        len: u64,
        /// Zero.
        flags: u64,
    }
    /// An entry of READDIR; its name follows, padded to 8 bytes.
    Dirent = 24 {
        /// Shown as `d_ino`.
        ino: u64,
        /// Where to go on after it.
        off: u64,
        /// Bytes of the name.
        namelen: u32,
        /// `DT_*`.
        kind: u32,
    }
    /// Notification: inodes, whose numbers follow, are to be dropped unless a program uses them.
    PruneOut = 16 {
        /// How many.
        count: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        spare: u64,
    }
    /// Notification: attributes, and pages of a range, are no longer right.
    InvalInodeOut = 24 {
        /// The inode.
        ino: u64,
        /// First byte; negative: attributes only.
        off: i64,
        /// Bytes; 0 or less: to the end.
        len: i64,
    }
}
