//! The values that callers of the file system give and get.

use std::ops::Range;

use braid_format::InodeNo;

use crate::mode::{S_IFDIR, S_IFMT, S_IFREG};
use crate::unseen_writes::UnseenWrite;

/// A point in time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds, may be negative.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

/// An inode's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: InodeNo,
    /// Tells apart inodes that had one number one after the other.
    pub generation: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes held.
    pub blocks512: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Birth.
    pub btime: Time,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Preferred I/O size, bytes.
    pub blksize: u32,
    /// `FS_*_FL`-like flags (immutable, append).
    pub flags: u32,
}

impl Attr {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
}

/// The caller, who owns new inodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
    /// Bits cleared in the mode of new inodes.
    pub umask: u32,
}

/// An open file's number.
pub type Fh = u64;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSet {
    /// The present.
    Now,
    /// This one.
    At(Time),
}

/// What `setattr` changes; `None` leaves a field alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeSet>,
    /// Modification time.
    pub mtime: Option<TimeSet>,
    /// Change time.
    pub ctime: Option<TimeSet>,
    /// Take set-user-ID and set-group-ID bits away, as a write by an unprivileged program does.
    pub kill_privileges: bool,
}

/// How a write is to be done.
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteFlags {
    /// To the devices, past the cache (`O_DIRECT`).
    pub direct: bool,
    /// At the end of the file, wherever that is now (`O_APPEND`).
    pub append: bool,
    /// From the kernel's page cache (a mapped page): never extends the file.
    pub from_page_cache: bool,
    /// Clear set-user-ID and set-group-ID bits.
    pub kill_privileges: bool,
    /// What is durable on return, unless the file was opened to have more so.
    pub durable: Durable,
}

/// What a write makes durable before it returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durable {
    /// Nothing.
    #[default]
    Nothing,
    /// Contents, and what is needed to read them (`O_DSYNC`).
    Contents,
    /// All metadata too (`O_SYNC`).
    All,
}

impl Durable {
    /// As the flags of open(2) say.
    pub fn of(flags: i32) -> Self {
        const O_DSYNC: i32 = 0o10_000;
        const O_SYNC: i32 = 0o4_000_000 | O_DSYNC;
        match flags & O_SYNC {
            O_SYNC => Self::All,
            some if some & O_DSYNC != 0 => Self::Contents,
            _ => Self::Nothing,
        }
    }
}

/// A write.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Where it begins; ignored if it appends.
    pub offset: u64,
    /// What is written.
    pub bytes: &'a [u8],
    /// How.
    pub flags: WriteFlags,
}

/// Tells a program that its write is done before the devices have the bytes. Each step is taken at
/// most once, and the second only after the first said yes.
pub trait EarlyReply {
    /// Whether the program may be told so. Asked when nothing but a device can refuse the write any
    /// more and its range is known to be written to.
    fn may(&mut self) -> bool;
    /// Tells it: the file is as long as the write makes it. From here on `fsync` of the file
    /// reports the result.
    fn send(&mut self);
    /// The write is about to make the file longer, which has so many bytes. The inode's lock is held exclusively.
    fn grows(&mut self, _size: u64) {}
    /// The write has taken effect, and pages in the kernel may not have it: see [`UnseenWrite`].
    fn unseen(&mut self, write: UnseenWrite) {
        drop(write);
    }
}
/// Nobody is told early.
impl EarlyReply for () {
    fn may(&mut self) -> bool {
        false
    }
    fn send(&mut self) {}
}

/// Whether `readdir` hands out attributes with the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithAttrs {
    /// Names alone.
    No,
    /// Those whose locks are here, or come within a tenth of a second in all: names do not wait for another node that
    /// holds a file.
    IfSoon,
    /// All of them.
    Yes,
}

/// An entry that `readdir` hands out.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The inode.
    pub ino: InodeNo,
    /// Where to go on after this entry.
    pub next: u64,
    /// `DT_*`.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
    /// Attributes, when asked for and the entry is still there.
    pub attr: Option<Attr>,
}

/// Totals for `df`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks in resource groups.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// The part of them that files can take, with room left for the metadata that leads to those
    /// files.
    pub available: u64,
    /// Inodes that could exist.
    pub files: u64,
    /// Of those, not in use.
    pub files_free: u64,
    /// Longest name.
    pub name_max: u32,
}

/// What the kernel holds and caches on this node's behalf, and how to take it back.
pub trait KernelCache: Send + Sync {
    /// Drops cached attributes of `ino`, and its pages too if `data`. May block while the kernel
    /// waits for a page fill that this node has yet to answer, so it is called from demotion threads
    /// only, never while a request of the kernel is being answered on the same thread.
    fn invalidate_inode(&self, ino: InodeNo, data: bool);
    /// The same, with the pages of these bytes only.
    fn invalidate_pages(&self, ino: InodeNo, _bytes: Range<u64>) {
        self.invalidate_inode(ino, true);
    }
    /// The bytes (from, to) of pages of `ino` that the kernel has asked for, and no thread has begun to answer. Never
    /// blocks: the lock of `ino` is being worked on.
    fn unbegun_fills(&self, _ino: InodeNo) -> Vec<(u64, u64)> {
        Vec::new()
    }
    /// Drops cached names of directory `dir`. Never blocks.
    fn invalidate_entries(&self, dir: InodeNo);
    /// This node has moved directory `ino` into directory `dir`. Never blocks.
    fn directory_moved(&self, _ino: InodeNo, _dir: InodeNo) {}
    /// The answer to a request hands `ino` and its attributes to the kernel: one more reference,
    /// until the kernel gives it back ([`crate::Fs::forget`]). Called under the inode's lock, so
    /// that a node that removes the inode sees the reference. Never blocks.
    fn handed_out(&self, _ino: InodeNo) {}
    /// An inode that was counted as handed out does not go to the kernel. Never blocks.
    fn kept_back(&self, _ino: InodeNo) {}
    /// Whether the kernel has a reference to `ino`: an inode that it has merely cached counts too.
    /// Never blocks.
    fn refers(&self, _ino: InodeNo) -> bool {
        false
    }
    /// Has the kernel drop `ino` unless a program uses it (has it open, has it as working
    /// directory, is about to open it). Returns whether one does. Called by demotions, never while
    /// a request is answered on the same thread.
    fn let_go(&self, _ino: InodeNo) -> bool {
        false
    }
    /// Attributes of `ino` have changed, and the lock under which they did is still held exclusively:
    /// drops what the kernel has cached, and makes it ignore answers to older questions. Never blocks.
    fn attributes_changed(&self, _ino: InodeNo) {}
    /// Something of `ino` is being changed of which a kernel that has asked for it knows by itself: names in a
    /// directory, the number of names of an inode, extended attributes. The lock is held exclusively. Never blocks.
    fn changed_as_asked(&self, _ino: InodeNo) {}
    /// The same for a change beside which others read the attributes: it begins. Until
    /// [`KernelCache::change_ends`] the kernel keeps none. Never blocks.
    fn change_begins(&self, _ino: InodeNo) {}
    /// It ends. Never blocks.
    fn change_ends(&self, _ino: InodeNo) {}
    /// This node may not act any more: its lease is over, or, `for_good`, it has withdrawn. Drops all
    /// that is cached, in `within`; from then on requests fail, those too that are under way and
    /// keep pages from being dropped. Later ones wait for `patience` first. Returns after `within` at the latest.
    fn suspend(&self, for_good: bool, within: std::time::Duration, patience: std::time::Duration) {
        let _ = (for_good, within, patience);
    }
    /// The lease lasts again: requests are answered.
    fn resume(&self) {}
    /// Pages may hold what a device returned that is not what was written to it: drops all that programs have not
    /// changed, now or soon. Never blocks.
    fn drop_pages(&self) {}
}

/// For native callers: nothing is cached above.
#[derive(Debug, Default)]
pub struct NoKernelCache;
impl KernelCache for NoKernelCache {
    fn invalidate_inode(&self, _ino: InodeNo, _data: bool) {}
    fn invalidate_entries(&self, _dir: InodeNo) {}
}
