//! The file system as a trait: the operations of [`Fs`], by inode numbers and handles, with the
//! errno that a program sees. A front end that brings them to programs (FUSE, other protocols)
//! calls these, and can be tested without devices.
//!
//! Methods may block; each call has a thread of its own. They may panic only on a broken invariant, which
//! ends the process.

use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_lock::{Company, Life};
use parking_lot::Mutex;
pub use rustix::io::Errno;

use crate::api::Fs;
use crate::attr::{Attr, Cred, DirEntry, EarlyReply, Fh, SetAttr, StatFs, WithAttrs, Write};
use crate::data::{ReadHold, ReadRange};
use crate::error::Error;
use crate::failure_log::FailureLog;
use crate::plock::Canceller;
use crate::plock_table::{Plock, WaitId};
use crate::trim::TrimRange;

/// Result of a call: a value, or the errno that the program sees.
pub type Answer<T> = Result<T, Errno>;

/// Takes the outcome of a wait for a lock.
pub type LockAnswer = Box<dyn FnOnce(Answer<()>) + Send>;

/// A file system that can be mounted.
#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "one to one with the facade of the file system"
)]
pub trait FileSystem: Send + Sync + 'static {
    /// The root directory's number.
    fn root(&self) -> InodeNo;
    /// Whatever this thread asks for from now on, it asks for that program.
    fn set_caller(&self, _caller: &Cred) {}
    /// The mount is gone: nobody waits for answers any more, so calls under way may fail.
    fn closing(&self) {}
    /// Whether no other node can ever mount this file system, so that what the kernel has cached of
    /// it stays true.
    fn is_single_node(&self) -> bool {
        false
    }
    /// The file system's own number, and which of its nodes this is. `None`: there are no nodes.
    fn node_life(&self) -> Option<([u8; 16], Life)> {
        None
    }
    /// Whether nothing that another node was asked for can reach the devices any more. In doubt not.
    fn life_has_ended(&self, _life: Life) -> bool {
        false
    }
    /// Who else can have used the file system since a life of a node ended. In doubt others.
    fn company_since(&self, _life: Life) -> Company {
        Company::Others
    }
    /// For how long the kernel may keep the attributes that the last call of this thread has returned, though it
    /// is not told to drop them. `None`: until it is told.
    fn attr_timeout(&self) -> Option<Duration> {
        None
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr>;
    fn lookup_number(&self, ino: InodeNo) -> Answer<Attr>;
    fn forget(&self, ino: InodeNo) -> Answer<()>;
    fn getattr(&self, ino: InodeNo) -> Answer<Attr>;
    fn setattr(&self, ino: InodeNo, set: &SetAttr, fh: Option<Fh>) -> Answer<Attr>;
    fn mknod(&self, dir: InodeNo, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Answer<Attr>;
    fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Answer<Attr>;
    fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], cred: &Cred) -> Answer<Attr>;
    fn readlink(&self, ino: InodeNo) -> Answer<Vec<u8>>;
    fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Answer<Attr>;
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()>;
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Answer<()>;
    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: u32) -> Answer<()>;
    fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()>;
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Answer<(Attr, Fh)>;
    fn tmpfile(&self, dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Answer<(Attr, Fh)>;
    fn open(&self, ino: InodeNo, flags: i32) -> Answer<Fh>;
    fn release(&self, fh: Fh) -> Answer<()>;
    fn flush(&self, fh: Fh, lock_owner: u64) -> Answer<()>;
    /// Whether a flush may be broken off if its program is killed. It then gives the program's locks up later.
    fn flush_may_be_interrupted(&self) -> bool {
        false
    }
    fn fsync(&self, fh: Fh, data_only: bool) -> Answer<()>;
    fn fsync_dir(&self, ino: InodeNo) -> Answer<()>;
    fn sync(&self) -> Answer<()>;
    /// `reply` runs once, with at most `len` bytes, while the inode's lock is still held; not at
    /// all if the call fails.
    fn read_reply<R>(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R>;
    /// Holds an inode's lock until it is dropped.
    type Hold;
    /// The same into `memory`, of at least `len` bytes; returns how many there are. The inode's lock
    /// is held until what is returned beside is dropped.
    fn read_into(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, Self::Hold)>;
    /// `reply` may be used; then nobody takes the result any more.
    fn write(&self, fh: Fh, what: Write<'_>, reply: &mut dyn EarlyReply) -> Answer<usize>;
    fn fallocate(
        &self,
        fh: Fh,
        mode: i32,
        offset: u64,
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Answer<()>;
    fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64>;
    fn copy_file_range(
        &self,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Answer<u64>;
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>>;
    fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()>;
    fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>>;
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()>;
    fn statfs(&self) -> Answer<StatFs>;
    /// Gives free space back to the devices: how many bytes of it. Interrupted: an error.
    fn trim(&self, _range: TrimRange, _canceller: &Canceller) -> Answer<u64> {
        Err(Errno::NOTTY)
    }
    fn getlk(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>>;
    /// fcntl(2) locks, without waiting for other programs.
    fn setlk(&self, ino: InodeNo, lock: &Plock) -> Answer<()>;
    /// flock(2) locks, without waiting for other programs.
    fn flock(&self, ino: InodeNo, lock: &Plock) -> Answer<()>;
    /// Names a wait for a lock.
    type Wait: Copy + Send + std::fmt::Debug + 'static;
    /// The same, for a caller that waits (`whole`: flock). `None`: granted. Otherwise `done` is
    /// called when the wait ends, on any thread, maybe before this returns. It is called only in
    /// this case.
    fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockAnswer,
    ) -> Answer<Option<Self::Wait>>;
    /// Ends a wait with `EINTR`, if it still stands.
    fn end_lock_wait(&self, wait: Self::Wait);
}

/// What was said of failed calls.
static FAILURES: Mutex<Option<FailureLog>> = Mutex::new(None);

/// What the program sees. Failures that are not the program's doing are logged here, with all
/// that errno cannot say: not each time, where many fail alike.
fn errno(error: &Error) -> Errno {
    let errno = Errno::from_raw_os_error(error.errno());
    if errno == Errno::IO {
        let mut failures = FAILURES.lock();
        let log = failures.get_or_insert_default();
        let unsaid = log.take(&error.to_string(), Instant::now());
        drop(failures);
        match unsaid {
            None => {}
            Some(0) => tracing::error!(%error, "request failed"),
            Some(more) => tracing::error!(%error, "request failed; so did {more} more before"),
        }
    }
    errno
}

fn seen<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(|error| {
        let errno = errno(&error);
        if errno == Errno::IO {
            tracing::debug!(%error, "a program gets EIO");
        }
        errno
    })
}

impl FileSystem for Fs {
    fn root(&self) -> InodeNo {
        self.root()
    }
    fn is_single_node(&self) -> bool {
        self.is_single_node()
    }
    fn node_life(&self) -> Option<([u8; 16], Life)> {
        Some((self.uuid(), self.life()))
    }
    fn life_has_ended(&self, life: Life) -> bool {
        self.life_has_ended(life)
    }
    fn company_since(&self, life: Life) -> Company {
        self.company_since(life)
    }
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        seen(self.lookup(dir, name))
    }
    fn lookup_number(&self, ino: InodeNo) -> Answer<Attr> {
        seen(self.lookup_number(ino))
    }
    fn forget(&self, ino: InodeNo) -> Answer<()> {
        seen(self.forget(ino))
    }
    fn getattr(&self, ino: InodeNo) -> Answer<Attr> {
        seen(self.getattr(ino))
    }
    fn setattr(&self, ino: InodeNo, set: &SetAttr, fh: Option<Fh>) -> Answer<Attr> {
        seen(self.setattr(ino, set, fh))
    }
    fn mknod(&self, dir: InodeNo, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Answer<Attr> {
        seen(self.mknod(dir, name, mode, rdev, cred))
    }
    fn mkdir(&self, dir: InodeNo, name: &[u8], mode: u32, cred: &Cred) -> Answer<Attr> {
        seen(self.mkdir(dir, name, mode, cred))
    }
    fn symlink(&self, dir: InodeNo, name: &[u8], target: &[u8], cred: &Cred) -> Answer<Attr> {
        seen(self.symlink(dir, name, target, cred))
    }
    fn readlink(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        seen(self.readlink(ino))
    }
    fn link(&self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Answer<Attr> {
        seen(self.link(ino, dir, name))
    }
    fn unlink(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.unlink(dir, name))
    }
    fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.rmdir(dir, name))
    }
    fn rename(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: u32) -> Answer<()> {
        seen(self.rename(from.0, from.1, to.0, to.1, flags))
    }
    fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        plus: bool,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        let with = if plus { WithAttrs::IfSoon } else { WithAttrs::No };
        seen(self.readdir(ino, cookie, with, emit))
    }
    fn create(
        &self,
        dir: InodeNo,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Answer<(Attr, Fh)> {
        seen(self.create(dir, name, mode, flags, cred))
    }
    fn tmpfile(&self, dir: InodeNo, mode: u32, flags: i32, cred: &Cred) -> Answer<(Attr, Fh)> {
        seen(self.tmpfile(dir, mode, flags, cred))
    }
    fn open(&self, ino: InodeNo, flags: i32) -> Answer<Fh> {
        seen(self.open(ino, flags))
    }
    fn release(&self, fh: Fh) -> Answer<()> {
        seen(self.release(fh))
    }
    fn flush(&self, fh: Fh, lock_owner: u64) -> Answer<()> {
        seen(self.flush(fh, lock_owner))
    }
    fn fsync(&self, fh: Fh, data_only: bool) -> Answer<()> {
        seen(self.fsync(fh, data_only))
    }
    fn fsync_dir(&self, ino: InodeNo) -> Answer<()> {
        seen(self.fsync_dir(ino))
    }
    fn sync(&self) -> Answer<()> {
        seen(self.sync())
    }
    fn read_reply<R>(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        reply: impl FnOnce(&[u8]) -> R,
    ) -> Answer<R> {
        seen(self.read_reply(fh, ReadRange { offset, len, fill }, reply))
    }
    type Hold = ReadHold;
    fn read_into(
        &self,
        fh: Fh,
        offset: u64,
        len: u32,
        fill: bool,
        memory: &mut [u8],
    ) -> Answer<(usize, ReadHold)> {
        seen(self.read_into(fh, ReadRange { offset, len, fill }, memory))
    }
    fn write(&self, fh: Fh, what: Write<'_>, reply: &mut dyn EarlyReply) -> Answer<usize> {
        seen(self.write_behind(fh, what, reply))
    }
    fn fallocate(
        &self,
        fh: Fh,
        mode: i32,
        offset: u64,
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Answer<()> {
        seen(self.fallocate_beside_pages(fh, mode, offset, len, reply))
    }
    fn lseek(&self, fh: Fh, offset: u64, whence: i32) -> Answer<u64> {
        seen(self.lseek(fh, offset, whence))
    }
    fn copy_file_range(
        &self,
        from: (Fh, u64),
        to: (Fh, u64),
        len: u64,
        reply: &mut dyn EarlyReply,
    ) -> Answer<u64> {
        seen(self.copy_file_range(from, to, len, reply))
    }
    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        seen(self.getxattr(ino, name))
    }
    fn setxattr(&self, ino: InodeNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        seen(self.setxattr(ino, name, value, flags))
    }
    fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        seen(self.listxattr(ino))
    }
    fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()> {
        seen(self.removexattr(ino, name))
    }
    fn statfs(&self) -> Answer<StatFs> {
        seen(self.statfs())
    }
    fn trim(&self, range: TrimRange, canceller: &Canceller) -> Answer<u64> {
        let done = seen(self.trim(range, canceller))?;
        if canceller.is_cancelled() && !done.finished {
            return Err(Errno::INTR);
        }
        Ok(done.given.get())
    }
    fn getlk(&self, ino: InodeNo, lock: &Plock) -> Answer<Option<Plock>> {
        seen(self.getlk(ino, lock))
    }
    fn setlk(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        seen(self.setlk(ino, lock, None))
    }
    fn flock(&self, ino: InodeNo, lock: &Plock) -> Answer<()> {
        seen(self.flock(ino, lock, None))
    }
    type Wait = WaitId;
    fn lock_later(
        &self,
        ino: InodeNo,
        lock: &Plock,
        whole: bool,
        done: LockAnswer,
    ) -> Answer<Option<WaitId>> {
        seen(self.lock_later(ino, lock, whole, Box::new(move |how| done(seen(how)))))
    }
    fn end_lock_wait(&self, wait: WaitId) {
        self.end_lock_wait(wait);
    }
}
