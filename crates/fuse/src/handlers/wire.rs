//! The file system's values as the kernel wants them, and back.

use std::time::Duration;

use braid_fs::{Attr, Plock, PlockKind, SetAttr, StatFs, Time, TimeSet};

use crate::abi::SetattrIn;
use crate::abi::{self, FileLock, StatfsOut, Statx, StatxTime, WireAttr, setattr};

/// Seconds that something under a held lock may be cached: until told otherwise.
pub const FOREVER: u64 = 1 << 31;

/// Seconds and nanoseconds for which the kernel may keep attributes: not at all, or until it is told otherwise, but no
/// longer than `most`.
pub fn valid(keep: bool, most: Option<Duration>) -> (u64, u32) {
    match most {
        _ if !keep => (0, 0),
        None => (FOREVER, 0),
        Some(most) => (most.as_secs().min(FOREVER), most.subsec_nanos()),
    }
}

/// The kernel's "to the end of the file" in locks.
const LOCK_END: u64 = i64::MAX as u64;
/// `STATX_BASIC_STATS | STATX_BTIME`.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// The size of a regular file; of anything else nobody relies on it.
pub fn file_size(a: &Attr) -> Option<u64> {
    (a.mode & libc::S_IFMT == libc::S_IFREG).then_some(a.size)
}

/// Attributes.
pub fn attr(a: &Attr) -> WireAttr {
    WireAttr {
        ino: a.ino.get(),
        size: a.size,
        blocks: a.blocks512,
        atime: a.atime.sec.cast_unsigned(),
        mtime: a.mtime.sec.cast_unsigned(),
        ctime: a.ctime.sec.cast_unsigned(),
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: device_low(a.rdev),
        blksize: a.blksize,
        flags: 0,
    }
}

/// The C library's device numbers have the kernel's 32-bit form in their low half, for all that
/// fit into it.
fn device_low(rdev: u64) -> u32 {
    u32::try_from(rdev & 0xffff_ffff).unwrap_or(0)
}

/// Attributes with birth time.
pub fn statx(a: &Attr) -> Statx {
    let time = |t: Time| StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    let device = device_low(a.rdev);
    Statx {
        mask: STATX_MASK,
        blksize: a.blksize,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: u16::try_from(a.mode & 0xffff).unwrap_or(0),
        ino: a.ino.get(),
        size: a.size,
        blocks: a.blocks512,
        atime: time(a.atime),
        btime: time(a.btime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: (device >> 8) & 0xfff,
        rdev_minor: (device & 0xff) | ((device >> 12) & 0xf_ff00),
        ..Statx::default()
    }
}

/// Totals.
pub fn statfs(s: &StatFs) -> StatfsOut {
    StatfsOut {
        blocks: s.blocks,
        bfree: s.free,
        bavail: s.available,
        files: s.files,
        ffree: s.files_free,
        bsize: s.block_size,
        namelen: s.name_max,
        frsize: s.block_size,
        ..StatfsOut::default()
    }
}

/// What a SETATTR changes.
pub fn set_attr(w: &SetattrIn) -> SetAttr {
    let has = |bit: u32| w.valid & bit != 0;
    let time = |set: u32, now: u32, sec: u64, nsec: u32| {
        if has(now) {
            Some(TimeSet::Now)
        } else {
            has(set).then(|| TimeSet::At(Time { sec: sec.cast_signed(), nsec }))
        }
    };
    SetAttr {
        mode: has(setattr::MODE).then_some(w.mode & 0o7777),
        uid: has(setattr::UID).then_some(w.uid),
        gid: has(setattr::GID).then_some(w.gid),
        size: has(setattr::SIZE).then_some(w.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, w.atime, w.atimensec),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, w.mtime, w.mtimensec),
        ctime: time(setattr::CTIME, 0, w.ctime, w.ctimensec),
        kill_privileges: has(setattr::KILL_SUIDGID),
    }
}

/// A lock of root's; `None` if the kernel's makes no sense.
pub fn plock(w: &FileLock, owner: u64) -> Option<Plock> {
    let kind = match i32::try_from(w.kind).ok()? {
        libc::F_RDLCK => PlockKind::Shared,
        libc::F_WRLCK => PlockKind::Exclusive,
        libc::F_UNLCK => PlockKind::Unlock,
        _ => return None,
    };
    let end = if w.end == LOCK_END { u64::MAX } else { w.end };
    (w.start <= end).then_some(Plock { start: w.start, end, kind, owner, pid: w.pid, uid: 0 })
}

/// The lock that is in the way, or that none is.
pub fn file_lock(lock: Option<&Plock>) -> FileLock {
    let number = |n: i32| n.cast_unsigned();
    let Some(lock) = lock else {
        return FileLock { kind: number(libc::F_UNLCK), ..FileLock::default() };
    };
    FileLock {
        start: lock.start,
        end: lock.end.min(LOCK_END),
        kind: number(match lock.kind {
            PlockKind::Shared => libc::F_RDLCK,
            PlockKind::Exclusive => libc::F_WRLCK,
            PlockKind::Unlock => libc::F_UNLCK,
        }),
        pid: lock.pid,
    }
}

/// How an open file goes about its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenMode {
    /// Reads go through the kernel's page cache; nothing is written.
    pub cached: bool,
}

impl OpenMode {
    /// Files open for reading only are cached. Those that may be written go past the page cache,
    /// so that the kernel holds no page lock while a write waits for another node's lock; so do
    /// those that ask for it, and all where the cache would not be exact (`may_cache`).
    pub fn of(flags: u32, may_cache: bool) -> Self {
        let reads = flags & abi::o::ACCMODE == abi::o::RDONLY;
        Self { cached: may_cache && reads && flags & abi::o::DIRECT == 0 }
    }
    /// For the kernel. `keep`: pages that it has of the file stay.
    pub fn open_flags(self, keep: bool) -> u32 {
        let keep = if keep { abi::open::KEEP_CACHE } else { 0 };
        if self.cached {
            keep
        } else {
            keep | abi::open::DIRECT_IO | abi::open::PARALLEL_DIRECT_WRITES
        }
    }
    /// The number that the kernel sees: the mode is kept in its lowest bit.
    pub fn number(self, fh: u64) -> u64 {
        fh << 1 | u64::from(self.cached)
    }
    /// And back.
    pub fn split(number: u64) -> (u64, Self) {
        (number >> 1, Self { cached: number & 1 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_format::InodeNo;

    #[test]
    fn locks_survive_both_ways() {
        for kind in [libc::F_RDLCK, libc::F_WRLCK] {
            let wire = FileLock { start: 5, end: LOCK_END, kind: kind.cast_unsigned(), pid: 3 };
            let lock = plock(&wire, 9).unwrap();
            assert_eq!((lock.end, lock.owner), (u64::MAX, 9));
            let back = file_lock(Some(&lock));
            assert_eq!((back.start, back.end, back.kind, back.pid), (5, LOCK_END, wire.kind, 3));
        }
        let backwards = FileLock { start: 5, end: 4, kind: 0, pid: 0 };
        assert_eq!(plock(&backwards, 0), None);
        assert_eq!(plock(&FileLock { kind: 77, ..FileLock::default() }, 0), None);
    }

    #[test]
    fn times_before_1970_and_device_numbers() {
        let a = Attr {
            ino: InodeNo(9),
            generation: 1,
            size: 0,
            blocks512: 0,
            atime: Time { sec: -5, nsec: 7 },
            mtime: Time::default(),
            ctime: Time::default(),
            btime: Time::default(),
            mode: libc::S_IFCHR | 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: libc::makedev(259, 70_000),
            blksize: 4096,
            flags: 0,
        };
        assert_eq!(attr(&a).atime.cast_signed(), -5);
        let x = statx(&a);
        assert_eq!((x.rdev_major, x.rdev_minor, x.atime.sec), (259, 70_000, -5));
    }

    #[test]
    fn open_modes() {
        let rdonly = OpenMode::of(0, true);
        assert!(rdonly.cached && !OpenMode::of(0, false).cached);
        assert_eq!(OpenMode::split(rdonly.number(77)), (77, rdonly));
        for flags in [1, 2, abi::o::DIRECT, 2 | abi::o::DIRECT] {
            assert!(!OpenMode::of(flags, true).cached);
            assert_eq!(OpenMode::of(flags, true).open_flags(true) & 1, 1);
        }
    }
}
